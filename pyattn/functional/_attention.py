"""Attention by its scores: the C function itself, torch's signature, and merging of chunks of keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsFloat, get_args

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._core import attention
from pyattn._util.arguments import as_choice
from pyattn._util.halves import as_float32, check_same_half, expression_of, is_half, is_stored_dtype, rounded
from pyattn._util.typing import RNG, FloatArray, Layout
from pyattn.masks import Mask

__all__ = [
    "AttentionResult",
    "attention",
    "merge_states",
    "scaled_dot_product_attention",
]


class AttentionResult(tuple[FloatArray, ...]):
    """The output of attention, with the weights and lse if requested.

    It is a tuple of the arrays that were requested. Each array also has a name.

    Attributes
    ----------
    output : ndarray, (..., heads, L, v_dim)
        (..., L, heads, v_dim) with ``layout="bshd"``.
    weights : ndarray, (..., heads, L, S), or None
        Weight of each key for each query, in both layouts: rows sum to 1, or to 0 with nothing to attend to. None
        without need_weights.
    lse : ndarray, (..., heads, L), or None
        Logsumexp of the scores, a natural logarithm, in both layouts; -inf with nothing to attend to. None without
        need_lse.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.eye(2)
    >>> output, weights = pyattn.attention(x, x, x, need_weights=True)
    >>> output, lse = pyattn.attention(x, x, x, need_lse=True)
    >>> pyattn.attention(x, x, x, need_lse=True).lse.round(3)
    array([1.108, 1.108])
    """

    output: FloatArray
    weights: FloatArray | None
    lse: FloatArray | None

    def __new__(
        cls, output: FloatArray, weights: FloatArray | None = None, lse: FloatArray | None = None
    ) -> AttentionResult:
        """Make the tuple of those that are not None."""
        self = super().__new__(cls, (array for array in (output, weights, lse) if array is not None))
        self.output, self.weights, self.lse = output, weights, lse
        return self

    def __getnewargs__(self) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        """Return the arguments that make a copy, or what pickle saves."""
        return self.output, self.weights, self.lse

    def _rounded(self, dtype: np.dtype[Any]) -> AttentionResult:
        """Round output and weights to a half; lse stays float32."""
        return AttentionResult(rounded(self.output, dtype), rounded(self.weights, dtype), self.lse)

    def __repr__(self) -> str:
        """Show each array with its name."""
        named = ((name, getattr(self, name)) for name in ("output", "weights", "lse"))
        return f"AttentionResult({', '.join(f'{name}={array!r}' for name, array in named if array is not None)})"


def scaled_dot_product_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    attn_mask: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    is_causal: bool = False,
    *,
    scale: SupportsFloat | None = None,
    enable_gqa: bool = False,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
) -> FloatArray:
    """Compute `torch.nn.functional.scaled_dot_product_attention` for NumPy.

    Arguments have the same meaning. It is as strict as torch: query, key and value share one float dtype, a float mask
    has that dtype (or float32), and query heads share key and value heads only with `enable_gqa`. A causal mask is
    aligned upper left. Where torch's back ends disagree, pyattn follows three rules: a row with nothing to attend to
    gives 0, `attn_mask` and `is_causal` are combined, and masked positions never affect the result.

    Parameters
    ----------
    query : array_like, (..., L, head_dim)
        float16, bfloat16, float32 or float64.
    key : array_like, (..., S, head_dim)
        Keys, of query's dtype.
    value : array_like, (..., S, v_dim)
        Values, of query's dtype.
    attn_mask : array_like, optional
        Broadcasts to (..., L, S). bool: True = attend; float: added to the scaled scores. Default: None, no mask.
    dropout_p : float
        Probability that a weight becomes 0; the others are divided by ``1 - dropout_p``. Default: 0.0.
    is_causal : bool
        Query i attends to keys 0 to i. Default: False.
    scale : float, optional
        Default: ``1 / sqrt(head_dim)``.
    enable_gqa : bool
        Query heads (axis -3) may be a multiple of key and value heads. Default: False.
    rng : None, int, SeedSequence or Generator
        Draws dropout's mask; torch uses its global state. Default: None, fresh entropy, so each call differs.
    keep_mask : array_like of bool, optional
        Broadcasts to (..., L, S): True = kept. Used instead of drawing from rng. Default: None.

    Returns
    -------
    ndarray, (..., L, v_dim)
        Of query's dtype, in native byte order.

    Raises
    ------
    TypeError
        query, key and value are not all of one dtype, or not of floats.
    ValueError
        Shapes disagree; dropout_p is not a probability.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.eye(2, dtype=np.float32)
    >>> pyattn.scaled_dot_product_attention(x, x, x, is_causal=True).round(4)
    array([[1.    , 0.    ],
           [0.3302, 0.6698]], dtype=float32)
    """
    arrays, mask = as_torch_takes(query, key, value, attn_mask, enable_gqa)
    return attention(
        *arrays,
        attn_mask=mask,
        dropout_p=dropout_p,
        rng=rng,
        keep_mask=keep_mask,
        is_causal=is_causal,
        align="upper_left",
        scale=scale,
        enable_gqa=enable_gqa,
    )


def as_torch_takes(
    query: npt.ArrayLike, key: npt.ArrayLike, value: npt.ArrayLike, attn_mask: npt.ArrayLike | None, enable_gqa: bool
) -> tuple[list[npt.NDArray[Any]], Any]:
    """Read query, key and value, and the mask, which have to be of dtypes and heads that torch takes, too."""
    given = {"query": query, "key": key, "value": value}
    arrays = [_core.as_array(x, name) for name, x in given.items()]
    dtype, *_ = dtypes = [array.dtype.newbyteorder("=") for array in arrays]
    for (name, x), array, own in zip(given.items(), arrays, dtypes, strict=True):
        if own != dtype or not is_stored_dtype(dtype):
            wanted = dtype if is_stored_dtype(dtype) else np.dtype(np.float32)
            fix = _core.cast(x, name, expression_of(wanted))
            others = ", and key and value likewise" if len(set(dtypes)) == 1 else ""
            raise TypeError(f"{name} has dtype {array.dtype}, expected {wanted}; pass {fix}{others}")
    mask: Any = attn_mask
    if attn_mask is not None and not isinstance(attn_mask, Mask):
        mask = array = _core.as_array(attn_mask, "attn_mask")
        if array.dtype.newbyteorder("=") not in (np.bool_, np.float32, dtype):
            flags, numbers = (_core.cast(attn_mask, "attn_mask", kind) for kind in ("bool", expression_of(dtype)))
            wrong = f"attn_mask has dtype {array.dtype}, expected bool or {dtype}"
            raise TypeError(f"{wrong}; pass {flags} (True = attend) or {numbers}")
    if not enable_gqa:
        _require_equal_heads(arrays)
    return arrays, mask


def _require_equal_heads(arrays: list[npt.NDArray[Any]]) -> None:
    """Refuse head counts that do not broadcast; axis -3 holds heads if any array has four axes."""
    if max(x.ndim for x in arrays) < 4:
        return
    heads = [x.shape[-3] if x.ndim >= 3 else 1 for x in arrays]
    if len({h for h in heads if h != 1}) > 1:
        raise ValueError(
            f"query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads (axis -3), which do not broadcast; "
            "if query heads share keys, pass enable_gqa=True"
        )


def merge_states(
    outputs: Iterable[npt.ArrayLike], lses: Iterable[npt.ArrayLike], *, layout: Layout = "bhsd"
) -> tuple[FloatArray, FloatArray]:
    """Combine attention computed over disjoint chunks of keys.

    ``lse = log(sum_n exp(lse_n))`` and ``output = sum_n exp(lse_n - lse) * output_n``, as FlashAttention does between
    blocks and ring attention between machines. Chunks may come in any number and order. A chunk with ``lse == -inf``
    (no key was visible) contributes nothing, even if its output holds NaN.

    Parameters
    ----------
    outputs : iterable of array_like, (..., heads, L, v_dim)
        Output of each chunk, or one array with chunks along its first axis. Without heads: (..., L, v_dim). float16
        and bfloat16 are combined in float32, and the result is rounded to them.
    lses : iterable of array_like, (..., heads, L)
        Logsumexp of each chunk (natural logarithm), as `attention` returns it with ``need_lse=True``.
    layout : {'bhsd', 'bshd'}
        Layout of the calls of `attention`, default 'bhsd'. 'bshd': outputs are (..., L, heads, v_dim), with three axes
        or more; lses stay (..., heads, L). Omit it for arrays without
        heads. It must be given because shapes do not tell L from heads when both are equal.

    Returns
    -------
    output : ndarray
        Of the shape of each chunk's output.
    lse : ndarray, (..., heads, L)
        In both layouts.

    Raises
    ------
    ValueError
        outputs is empty, outputs and lses differ in number, shapes disagree, or layout is unknown.
    TypeError
        A chunk is not an array of real numbers.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.arange(12.0).reshape(4, 3) / 10
    >>> whole = pyattn.attention(x, x, x, need_lse=True)
    >>> left, right = (pyattn.attention(x, part, part, need_lse=True) for part in (x[:1], x[1:]))
    >>> output, lse = pyattn.merge_states([left.output, right.output], [left.lse, right.lse])
    >>> bool(np.allclose(output, whole.output)), bool(np.allclose(lse, whole.lse))
    (True, True)
    """
    as_choice(layout, "layout", get_args(Layout))
    outs, sums = _arrays(outputs, "outputs"), [as_float32(lse) for lse in _arrays(lses, "lses")]
    check_same_half((f"outputs[{n}]", out) for n, out in enumerate(outs))
    if not outs or len(outs) != len(sums):
        raise ValueError(
            f"outputs and lses have {len(outs)} and {len(sums)} entries; pass one of each per chunk, at least one"
        )
    shape = outs[0].shape
    if not shape:
        raise ValueError("outputs[0] is a scalar, expected (..., L, v_dim)")
    swap = layout == "bshd"  # the core takes lse in the row order of the output
    if swap and len(shape) < 3:
        raise ValueError(
            f"outputs[0] has shape {shape}, expected at least 3 axes: (..., L, heads, v_dim); without heads, leave "
            "layout out"
        )
    for n, (out, lse) in enumerate(zip(outs, sums, strict=True)):
        if out.shape != shape:
            raise ValueError(f"outputs[{n}] has shape {out.shape} but outputs[0] has {shape}")
        _check_lse(n, lse.shape, shape, layout)

    sums = [lse.swapaxes(-2, -1) for lse in sums] if swap else sums
    dtype, lse_dtype = np.result_type(*outs), np.result_type(*outs, *sums)
    dtype = dtype if is_half(dtype) and lse_dtype == np.float32 else lse_dtype
    parts = [
        tuple(np.ascontiguousarray(x, dtype=kind).reshape(x.shape) for x in xs)
        for xs, kind in ((outs, dtype), (sums, lse_dtype))
    ]
    output, lse = np.empty(shape, dtype), np.empty(shape[:-1], lse_dtype)
    _core.merge_states(parts[0], parts[1], output, lse)
    return output, np.ascontiguousarray(lse.swapaxes(-2, -1)) if swap else lse


def _arrays(xs: Iterable[npt.ArrayLike], name: str) -> list[FloatArray]:
    try:
        parts = iter(xs)
    except TypeError:
        kind = type(xs).__name__
        raise TypeError(f"{name} is of type {kind}, expected a list of arrays; for one chunk, pass [{name}]") from None
    return [_core.as_real(x, f"{name}[{n}]") for n, x in enumerate(parts)]


def _check_lse(n: int, lse: tuple[int, ...], output: tuple[int, ...], layout: Layout) -> None:
    expected = _lse_shape(output, layout)
    if lse == expected:
        return
    other: Layout = "bhsd" if layout == "bshd" else "bshd"
    offer = f"; if its axes are those of {other!r}, pass layout={other!r}" if lse == _lse_shape(output, other) else ""
    raise ValueError(f"lses[{n}] has shape {lse}, expected {expected}: outputs[{n}] is {output}{offer}")


def _lse_shape(output: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """Return the shape of lse for an output's: (..., heads, L), or (..., L) without heads."""
    swap = layout == "bshd" and len(output) > 2
    return (*output[:-3], output[-2], output[-3]) if swap else output[:-1]

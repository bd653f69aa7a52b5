"""Self-attention as articles write it: one head, three weight matrices, no output projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsFloat, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice
from pyattn._util.halves import check_same_half
from pyattn._util.typing import Align, Convention, EmptyRows, FloatArray, Window
from pyattn.functional._attention import AttentionResult
from pyattn.masks import Mask
from pyattn.masks._lowering import lower, warn_if_inverted

__all__ = ["check_inner", "read_rows", "read_weight", "self_attention"]

Array = npt.NDArray[Any]


@overload
def self_attention(
    x: npt.ArrayLike,
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_value: npt.ArrayLike,
    *,
    bias: Sequence[npt.ArrayLike | None] | None = None,
    scale: SupportsFloat | None = None,
    context: npt.ArrayLike | None = None,
    convention: Convention = "row",
    need_weights: Literal[False] = False,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
    num_threads: SupportsIndex | None = None,
) -> FloatArray: ...
@overload
def self_attention(
    x: npt.ArrayLike,
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_value: npt.ArrayLike,
    *,
    bias: Sequence[npt.ArrayLike | None] | None = None,
    scale: SupportsFloat | None = None,
    context: npt.ArrayLike | None = None,
    convention: Convention = "row",
    need_weights: Literal[True],
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
    num_threads: SupportsIndex | None = None,
) -> AttentionResult: ...
@overload
def self_attention(
    x: npt.ArrayLike,
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_value: npt.ArrayLike,
    *,
    bias: Sequence[npt.ArrayLike | None] | None = None,
    scale: SupportsFloat | None = None,
    context: npt.ArrayLike | None = None,
    convention: Convention = "row",
    need_weights: bool = False,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
    num_threads: SupportsIndex | None = None,
) -> FloatArray | AttentionResult: ...
def self_attention(
    x: npt.ArrayLike,
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_value: npt.ArrayLike,
    *,
    bias: Sequence[npt.ArrayLike | None] | None = None,
    scale: SupportsFloat | None = None,
    context: npt.ArrayLike | None = None,
    convention: Convention = "row",
    need_weights: bool = False,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
    num_threads: SupportsIndex | None = None,
) -> FloatArray | AttentionResult:
    """Compute self-attention, ``softmax(scale * Q K^T) V``, from inputs and weights.

    ``Q = x W_query``, ``K = x W_key`` and ``V = x W_value`` are computed in the same call. It has one head and no
    output projection, as articles on attention build it step by step. With `context` it is cross-attention: keys and
    values are projections of `context`.

    Parameters
    ----------
    x : array_like, (..., L, embed_dim)
        One input per row. Lists, bools and integers are read as float64; a list of float32 arrays stays float32.
    w_query, w_key : array_like, (embed_dim, key_dim)
        Weights, one input feature per row and one output feature per column.
    w_value : array_like, (embed_dim, v_dim)
        v_dim may differ from key_dim.
    bias : sequence of three array_like or None, optional
        Added to queries, keys and values. Default: None, no bias.
    scale : float, optional
        Factor on the scores. Default: ``1 / sqrt(key_dim)``. Pass 1 for articles whose first example has no scale.
    context : array_like, (..., S, embed_dim), optional
        Source of keys and values. Default: x.
    convention : {'row', 'column'}
        'column': ``K = W_key X``. Inputs (..., embed_dim, L) are columns, weights are (key_dim, embed_dim), the output
        is (..., v_dim, L), and the weights returned are (..., S, L), whose columns sum to 1. Default: 'row'.
    need_weights : bool
        Return the weights too. Default: False.
    attn_mask : array_like, optional
        Broadcasts to (..., L, S), in both conventions. bool: True = attend; float: added to the scaled scores. Default:
        None, no mask.
    is_causal : bool
        Query i attends to no key after its own position. Default: False.
    align : {'upper_left', 'lower_right'} or int, optional
        As in `attention`. Default: None; required for a causal mask or a window when L differs from S.
    window : int or (int or None, int or None), optional
        Number of keys before and after its own position that a query attends to. Default: None, unbounded.
    key_lengths : array_like of int, optional
        Number of keys in each batch entry. Default: None, all.
    empty_rows : {'zero', 'nan'}
        Output of a query with nothing to attend to. Default: 'zero'.
    num_threads : int, optional
        Default: as `set_num_threads` says.

    Returns
    -------
    ndarray, (..., L, v_dim)
        Or, with ``need_weights=True``, an `AttentionResult`: the output and the weights, (..., L, S).

    Raises
    ------
    ValueError
        Shapes disagree, or a rule of `attention` is broken.
    TypeError
        An argument is not an array of real numbers.

    References
    ----------
    Vaswani et al., "Attention Is All You Need" (2017), equation 1.

    Examples
    --------
    >>> import pyattn
    >>> x = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
    >>> w_query = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
    >>> w_key = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
    >>> w_value = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]
    >>> pyattn.self_attention(x, w_query, w_key, w_value, scale=1).round(4)
    array([[1.9366, 6.6831, 1.5951],
           [2.    , 7.964 , 0.054 ],
           [1.9997, 7.7599, 0.3584]])
    """
    columns = as_choice(convention, "convention", ("row", "column")) == "column"
    own, other = _inputs_of(x, context, columns)
    source = "x" if context is None else "context"
    weights = _weights_of(w_query, w_key, w_value, own, other, source, columns)
    q_bias, k_bias, v_bias = biases = _biases_of(bias, weights)
    named = {"x": own, source: other, **weights, **{f"bias[{n}]": b for n, b in enumerate(biases) if b is not None}}
    if len({array.dtype for array in named.values()}) > 1:
        check_same_half(named.items())
    key_limits = None
    if attn_mask is not None:
        pairs = (*own.shape[:-1], other.shape[-2])
        attn_mask, key_limits = _read_mask(attn_mask, pairs)
    output, attended = _core.multi_head(
        own,
        other,
        other,
        weights["w_query"],
        weights["w_key"],
        weights["w_value"],
        q_bias=q_bias,
        k_bias=k_bias,
        v_bias=v_bias,
        average_weights=True,  # the mean over one head drops its axis
        scale=scale,
        attn_mask=attn_mask,
        key_limits=key_limits,
        is_causal=is_causal,
        align=align,
        window=window,
        key_lengths=key_lengths,
        need_weights=need_weights,
        empty_rows=empty_rows,
        num_threads=num_threads,
    )
    output = output.swapaxes(-1, -2) if columns else output
    if attended is None:
        return output
    return AttentionResult(output, attended.swapaxes(-1, -2) if columns else attended)


def read_weight(weight: npt.ArrayLike, name: str, columns: bool) -> Array:
    """Read a weight as (dim, embed_dim), the core's own layout."""
    array = _core.as_real(weight, name)
    if array.ndim != 2:
        raise ValueError(
            f"{name} has shape {array.shape}, expected {'(dim, embed_dim)' if columns else '(embed_dim, dim)'}"
        )
    return array if columns else array.T


def _inputs_of(x: npt.ArrayLike, context: npt.ArrayLike | None, columns: bool) -> tuple[Array, Array]:
    """Return the inputs of queries, and those of keys and values, one per row."""
    own = read_rows(x, "x", columns)
    if context is None:
        return own, own
    other = read_rows(context, "context", columns)
    if other.shape[:-2] != own.shape[:-2]:
        raise ValueError(
            f"context has the leading axes {other.shape[:-2]}, expected {own.shape[:-2]}, those of x; "
            "numpy.broadcast_to repeats them without a copy"
        )
    return own, other


def read_rows(x: npt.ArrayLike, name: str, columns: bool) -> Array:
    """Read inputs as (..., length, embed_dim)."""
    array = _core.as_real(x, name)
    if array.ndim < 2:
        expected = "(..., embed_dim, length)" if columns else "(..., length, embed_dim)"
        raise ValueError(f"{name} has shape {array.shape}, expected {expected}")
    return array.swapaxes(-1, -2) if columns else array


def check_inner(name: str, weight: Array, source: str, rows: Array, columns: bool) -> None:
    """Check that a weight fits the rows; the message gives the shape that either of them would need."""
    inner, features = weight.shape[1], rows.shape[-1]
    if inner == features:
        return
    if columns:
        shapes, expected = (rows.mT.shape, weight.shape), (f"(..., {inner}, length)", f"(dim, {features})")
    else:
        shapes, expected = (rows.shape, weight.T.shape), (f"(..., length, {inner})", f"({features}, dim)")
    turned = f"; if its axes are the other way round, pass {name}.T" if weight.shape[0] == features else ""
    raise ValueError(
        f"{source} has shape {shapes[0]} and {name} has shape {shapes[1]}, "
        f"expected {source} {expected[0]} or {name} {expected[1]}{turned}"
    )


def _weights_of(
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_value: npt.ArrayLike,
    own: Array,
    other: Array,
    source: str,
    columns: bool,
) -> dict[str, Array]:
    """Read the weights, and check that they fit the inputs and each other; `source` is the name of `other`."""
    query = read_weight(w_query, "w_query", columns)
    key = read_weight(w_key, "w_key", columns)
    value = read_weight(w_value, "w_value", columns)
    check_inner("w_query", query, "x", own, columns)
    check_inner("w_key", key, source, other, columns)
    check_inner("w_value", value, source, other, columns)
    if len(query) != len(key):
        raise ValueError(f"w_query gives {len(query)} features per query, but w_key gives {len(key)} per key")
    return {"w_query": query, "w_key": key, "w_value": value}


def _read_mask(attn_mask: npt.ArrayLike, pairs: tuple[int, ...]) -> tuple[npt.ArrayLike | None, Array | None]:
    """Return the mask, with the core's heads axis before (L, S), and limits of a mask object."""
    if isinstance(attn_mask, Mask):
        attend, limits = lower(attn_mask, pairs, False)
        return _with_heads_axis(attend), _with_heads_axis(limits)
    mask = _core.as_array(attn_mask, "attn_mask")
    sizes = zip(mask.shape[::-1], pairs[::-1], strict=False)
    if mask.ndim > len(pairs) or any(size not in (1, wanted) for size, wanted in sizes):
        raise ValueError(f"attn_mask has shape {mask.shape}, which does not broadcast to {pairs}: (..., L, S)")
    warn_if_inverted(mask)
    # The core refuses integers, with a fix that depends on what was given.
    return attn_mask if mask.dtype.kind in "iu" else _with_heads_axis(mask), None


def _with_heads_axis(x: Array | None) -> Array | None:
    """Insert the core's heads axis before the last two of an array with a batch."""
    return x if x is None or x.ndim < 3 else x[..., np.newaxis, :, :]


def _biases_of(bias: Sequence[npt.ArrayLike | None] | None, weights: Mapping[str, Array]) -> list[Array | None]:
    """Read a bias for each weight, (dim, embed_dim)."""
    if bias is None:
        return [None] * 3
    for_each = "expected three, for queries, keys and values; each may be None"
    try:
        entries = list(bias)
    except TypeError:
        raise TypeError(f"bias is of type {type(bias).__name__}, {for_each}") from None
    if len(entries) != 3:
        raise ValueError(f"bias has {len(entries)} entries, {for_each}")
    biases = [None if entry is None else _core.as_real(entry, f"bias[{n}]") for n, entry in enumerate(entries)]
    for n, (vector, (name, weight)) in enumerate(zip(biases, weights.items(), strict=True)):
        size = len(weight)
        if vector is not None and vector.shape != (size,):
            raise ValueError(f"bias[{n}] has shape {vector.shape}, expected ({size},): {name} gives {size} features")
    return biases

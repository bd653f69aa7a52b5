"""Gradients of attention, from its output and logsumexp."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, SupportsFloat, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_choices, as_number
from pyattn._util.halves import as_float32, is_half, round_to
from pyattn._util.messages import short_repr
from pyattn._util.typing import RNG, Align, FloatArray, Layout, Score, Window
from pyattn.masks import Mask

__all__ = ["AttentionGradients", "attention_backward"]

_NAMES = ("query", "key", "value", "attn_mask", "score_weight", "scale")


class AttentionGradients(tuple[Any, ...]):
    """The gradients of attention that were asked for.

    It is a tuple of them, in the order below. Each also has a name, which is None for the others. Each array has its
    argument's shape, and its dtype if that is a half; else float64 for float64, float32 for float32.

    Attributes
    ----------
    query, key, value : ndarray or None
        Gradients of the three arrays.
    attn_mask : ndarray or None
        Gradient of a float mask, summed over the axes that it broadcasts.
    score_weight : ndarray or None
        Gradient of the weight of a bilinear or additive score.
    scale : float or None
        Gradient of the scale.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import functional as F
    >>> x = np.eye(2)
    >>> output, lse = F.attention(x, x, x, need_lse=True)
    >>> grad = F.attention_backward(output, x, x, x, output, lse, need=["value", "scale"])
    >>> round(grad.scale, 3)
    0.15
    >>> grad.query is None
    True
    """

    query: FloatArray | None
    key: FloatArray | None
    value: FloatArray | None
    attn_mask: FloatArray | None
    score_weight: FloatArray | None
    scale: float | None

    def __new__(
        cls,
        query: FloatArray | None = None,
        key: FloatArray | None = None,
        value: FloatArray | None = None,
        attn_mask: FloatArray | None = None,
        score_weight: FloatArray | None = None,
        scale: float | None = None,
    ) -> AttentionGradients:
        """Make the tuple of those that are not None."""
        given = (query, key, value, attn_mask, score_weight, scale)
        self = super().__new__(cls, (gradient for gradient in given if gradient is not None))
        self.query, self.key, self.value, self.attn_mask, self.score_weight, self.scale = given
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        """Return the arguments that make a copy, or what pickle saves."""
        return tuple(getattr(self, name) for name in _NAMES)

    def __repr__(self) -> str:
        """Show each gradient with its name."""
        named = ((name, getattr(self, name)) for name in _NAMES)
        return f"AttentionGradients({', '.join(f'{name}={x!r}' for name, x in named if x is not None)})"


def attention_backward(
    grad_output: npt.ArrayLike,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    output: npt.ArrayLike,
    lse: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    score: Score = "dot",
    score_weight: npt.ArrayLike | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    grad_lse: npt.ArrayLike | None = None,
    need: str | Iterable[str] = ("query", "key", "value"),
) -> AttentionGradients:
    """Compute the gradients of `pyattn.attention`.

    Weights are computed again, tile by tile, from the logsumexp: extra memory is O(L + S). The gradients are
    bit-identical for any number of threads. A hidden pair adds nothing to them, even if it holds NaN.

    Parameters
    ----------
    grad_output : array_like, (..., heads, L, v_dim)
        Gradient of the loss with respect to `output`, and in its layout.
    query : array_like, (..., heads, L, head_dim)
        Queries. `pyattn.attention` describes all arguments up to `num_threads`; pass those of the forward call.
    key : array_like, (..., heads, S, head_dim)
        Keys.
    value : array_like, (..., heads, S, v_dim)
        Values.
    output : array_like, (..., heads, L, v_dim)
        The output of ``attention(..., need_lse=True)``.
    lse : array_like, (..., heads, L)
        The logsumexp that it returned: float64 for float64, else float32.
    attn_mask : array_like or pyattn.masks.Mask, optional
        The forward call's mask. Default: None.
    is_causal : bool, default False
        The forward call's.
    align : {'upper_left', 'lower_right'} or int, optional
        The forward call's.
    scale : float, optional
        The forward call's.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}, default 'dot'
        The forward call's score.
    score_weight : array_like, optional
        Weight of a bilinear or additive score.
    window : int or (int or None, int or None), optional
        The forward call's.
    key_lengths : array_like of int, optional
        The forward call's.
    query_lengths : array_like of int, optional
        The forward call's.
    dropout_p : float, default 0.0
        The forward call's.
    rng : int or SeedSequence, optional
        The forward call's seed, from which the same weights are dropped.
    keep_mask : array_like of bool, optional
        The weights that the forward call kept, in place of `rng`.
    enable_gqa : bool, default False
        The forward call's.
    layout : {'bhsd', 'bshd'}, default 'bhsd'
        Layout of `grad_output`, `query`, `key`, `value`, `output` and their gradients.
    num_threads : int, optional
        Default: `get_num_threads`.
    grad_lse : array_like, (..., heads, L), optional
        Gradient of the loss with respect to `lse`, where that is used, too. Default: None, for 0.
    need : str or iterable of str, default ("query", "key", "value")
        Which gradients to compute: 'query', 'key', 'value', 'attn_mask' (a float mask), 'score_weight' or 'scale'.

    Returns
    -------
    AttentionGradients
        A tuple of what `need` names, in the order above.

    Raises
    ------
    ValueError
        Shapes disagree; `need` names an unknown gradient, or one of an argument that was not given; weights were
        dropped at random, and `rng` cannot draw the same again.
    TypeError
        As for `pyattn.attention`.

    Notes
    -----
    With the weights P = softmax(scale Q K.T + mask) and the gradient dO of the output O, without dropout::

        dV = P.T dO     dP = dO V.T     dS = P * (dP - delta)     delta = (dO * O).sum(-1) - grad_lse
        dQ = scale dS K     dK = scale dS.T Q     dmask = dS

    The formulas are those of Dao et al., "FlashAttention" (2022), appendix B.4. The other scores differ in the last
    line. With u = q / abs(q), the gradients of one query are, by the chain rule::

        cosine      (g - (g . u) u) / abs(q), where g = scale dS (unit vectors of the keys)
        distance    -2 scale sum over keys of dS (q - k)
        additive    scale score_weight * (sum over keys of dS (1 - tanh(q + k)**2))
        bilinear    scale score_weight (sum over keys of dS k); of the weight, scale (sum over pairs of dS q k.T)

    and those of a key likewise. The cosine score of a zero vector is constant, so its gradient is 0. A row that sees no
    key has gradients of 0. Where ``abs(lse)`` is above 64, it has too few digits, and the row's sum is computed again.

    Besides the gradients, each thread holds about ``3 * head_dim + 2 * v_dim + 4`` numbers for each row of `query` (the
    distance score one more head_dim): 1.3 KB a row of float32 if both are 64. Keys and values are held in blocks.

    `pyattn.additive_attention` attends to projected queries and keys: differentiate those, then their projections.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import functional as F
    >>> x = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
    >>> output, lse = F.attention(x, x, x, need_lse=True)
    >>> grad = F.attention_backward(np.ones((2, 3)), x, x, x, output, lse)
    >>> grad.value.round(4)
    array([[0.7308, 0.7308, 0.7308],
           [1.2692, 1.2692, 1.2692]])
    """
    names = as_choices(need, "need", _NAMES)
    _check_seed(dropout_p, rng, keep_mask)
    _check_given(names, attn_mask, score, score_weight)
    given = {"query": query, "key": key, "value": value, "attn_mask": attn_mask, "score_weight": score_weight}
    arrays = {name: _core.as_array(x, name) for name, x in given.items() if x is not None and not isinstance(x, Mask)}
    options = {
        "attn_mask": attn_mask,
        "is_causal": is_causal,
        "align": align,
        "scale": 1.0 if scale is None and score == "bilinear" else scale,
        "score": "dot" if score == "bilinear" else score,
        "window": window,
        "key_lengths": key_lengths,
        "query_lengths": query_lengths,
        "dropout_p": dropout_p,
        "rng": rng,
        "keep_mask": keep_mask,
        "enable_gqa": enable_gqa,
        "layout": layout,
        "num_threads": num_threads,
    }
    dots, weight = query, score_weight  # of a bilinear score: the keys are multiplied with `dots`
    if score == "bilinear":
        shaping = {"score": score, "score_weight": score_weight, "enable_gqa": enable_gqa, "layout": layout}
        _core.attention_shape(query, key, value, **shaping)
        matrix, queries = _reals(arrays["score_weight"], arrays["query"], arrays["key"], arrays["value"])[:2]
        dots, weight = _core.linear(queries, matrix.T, num_threads=num_threads), None
    need_in_core = {"query" if name == "score_weight" and score == "bilinear" else name for name in names}
    bits = sum(1 << n for n, name in enumerate(_NAMES) if name in need_in_core)
    found = _core.attention_backward(grad_output, dots, key, value, output, weight, lse, grad_lse, bits, **options)
    gradients: dict[str, Any] = dict(zip(_NAMES, found, strict=True))
    if score == "bilinear" and gradients["query"] is not None:
        of_dots = gradients["query"]
        rows, columns = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (queries, of_dots))
        if "score_weight" in names:
            gradients["score_weight"] = _core.linear(rows.T, columns.T, num_threads=num_threads)
        gradients["query"] = _core.linear(of_dots, matrix, num_threads=num_threads)
    return AttentionGradients(**{name: _rounded(gradients[name], arrays.get(name)) for name in names})


def _check_seed(dropout_p: SupportsFloat, rng: RNG, keep_mask: npt.ArrayLike | None) -> None:
    """Refuse to draw other weights than the forward call dropped."""
    if not drops_again(dropout_p, rng, keep_mask):
        raise ValueError(
            f"rng is {short_repr(rng)}, which would drop other weights than the forward call did; pass it the same int "
            "in both calls, or pass keep_mask=pyattn.functional.dropout_keep_mask(...) to both"
        )


def drops_again(dropout_p: SupportsFloat, rng: RNG, keep_mask: npt.ArrayLike | None) -> bool:
    """Tell whether a second call with these arguments drops the same weights."""
    if keep_mask is not None or as_number(dropout_p, "dropout_p") <= 0:
        return True
    return not isinstance(rng, bool) and isinstance(rng, (int, np.integer, np.random.SeedSequence))


def check_score(score: str, score_weight: object, is_used: bool = False) -> None:
    """Refuse a weight, or its gradient, where the score has none, and a score without its weight."""
    as_choice(score, "score", get_args(Score))
    if score not in _WEIGHT and (score_weight is not None or is_used):
        fix = "pass score='bilinear' or score='additive'"
        raise ValueError(f"score={score!r} takes no score_weight, and has no gradient of one; {fix}")
    if score in _WEIGHT and score_weight is None:
        raise ValueError(f"score={score!r} needs score_weight, an array: {_WEIGHT[score]}")


def _check_given(names: list[str], attn_mask: object, score: str, score_weight: object) -> None:
    """Refuse gradients of what is not there."""
    if "attn_mask" in names and (attn_mask is None or isinstance(attn_mask, Mask)):
        found = "was not given" if attn_mask is None else "is a mask object"
        raise ValueError(f"need names 'attn_mask', which {found}; a gradient needs an array of floats")
    check_score(score, score_weight, "score_weight" in names)


_WEIGHT = {"bilinear": "query's features, key's features", "additive": "query's features"}


def _reals(*arrays: npt.NDArray[Any]) -> list[FloatArray]:
    """Convert arrays to the dtype in which they are computed together."""
    reals = [as_float32(_core.as_real(x, "array")) for x in arrays]
    return [x.astype(np.result_type(*reals), copy=False) for x in reals]


def _rounded(gradient: Any, of: npt.NDArray[Any] | None) -> Any:
    """Round a gradient to its argument's dtype, if that is a half."""
    return gradient if of is None or not is_half(of.dtype) else round_to(gradient, of.dtype.newbyteorder("="))

"""How far a result may be from the exact one: the bounds the whole project is held to.

A ratio is an error over what rounding explains; it has to be compared with a bar: `output_ratio` with OUTPUT_BAR
(FLAT_OUTPUT_BAR where weights are nearly uniform and values share a sign, S up to 16,384), all others with 1. It is inf
where something is wrong that no rounding explains: a NaN in another place, a weight on a masked key, an empty row that
is not empty.

The bounds, for a row of a result, over the keys j that it attends to:

    u      2^-24 for float32, 2^-53 for float64
    tiny   2^-126, 2^-1022: denormals may be flushed
    a_j    |scale| size_j + |bias_j|: the size of what was added up to make a score; A = max_j a_j
    output   u sum_j p_j (|v_j| + |o|) (1 + a_j) + (S + D + 1) tiny
    weight   8u w (1 + 2A) + tiny;  a row's sum: 8u sqrt(S)
    lse      4u (1 + |lse| + A)

The size of a score, to first order in u and without what a sum's length adds, for which the bars have room:

    dot        sum_d |q_d| |k_d|
    cosine     sum_d |q_d| |k_d| / (|q| |k|), at most 1: rows of norm 1 are off by a unit or two of their own size
    distance   3 sum_d (q_d - k_d)^2: each difference is rounded, by u of itself, and then squared; and what a dot
               product of the differences has. Times |scale|, plus, of pairs near 0, what
               2 q . k - |k|^2 - |q|^2 may cost instead: the sum of its terms, |scale| sum_d (|q_d| + |k_d|)^2, where
               |scale| (|q|^2 + |k|^2) stays below PRODUCT_LIMIT; so at most 2 PRODUCT_LIMIT
    bilinear   sum_cd |q_c| |W_cd| |k_d|
    additive   sum_d |w_d|. x = q_d + k_d is rounded, by u |x|, which tanh makes u |x| / cosh(x)^2 < u / 2; tanh is off
               by 4 ULP at most, 8u, and by one or two at the usual place; w_d * scale is rounded, by u.

References are computed one float type wider than the result, else they would carry errors as large as those they judge.
(Where long double is no wider than double, the float64 cases do that: both sides' errors then share one bound.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference

__all__ = [
    "FLAT_OUTPUT_BAR",
    "OUTPUT_BAR",
    "PRODUCT_LIMIT",
    "WIDER",
    "Expected",
    "expect",
    "lse_ratio",
    "output_bars",
    "output_ratio",
    "output_ratios",
    "score_sizes",
    "softmax_ratio",
    "weights_ratio",
]

OUTPUT_BAR, FLAT_OUTPUT_BAR = 4.0, 16.0
PRODUCT_LIMIT = 32 / np.log2(np.e)  # the core's is 32 in units of log2
WIDER: dict[str, Any] = {"float32": np.float64, "float64": np.longdouble}

Array = npt.NDArray[Any]

# What counts as flat: at least so many keys, a sum that its terms' signs do not cut by half, and no weight that is more
# than so many times the mean. Elsewhere rounding errors cancel, or the scores' size makes the bound wide enough.
FLAT_KEYS, FLAT_SUM, FLAT_WEIGHT = 32, 0.5, 4.0


@dataclass(frozen=True)
class Expected:
    """The exact attention of some inputs and what each of its numbers may be off by.

    output (..., L, v_dim) in the caller's layout, like output_unit and flat; lse and largest (..., heads, L); the rest
    (..., heads, L, S).
    """

    dtype: np.dtype[Any]
    output: Array
    weights: Array
    lse: Array
    visible: Array
    output_unit: Array  # what an output error is divided by
    flat: Array  # where FLAT_OUTPUT_BAR is the bar
    largest: Array  # A

    @property
    def unit_roundoff(self) -> float:
        """Half of what is between 1 and the next number."""
        return float(np.finfo(self.dtype).eps) / 2

    @property
    def tiny(self) -> float:
        """The smallest number that is not denormal."""
        return float(np.finfo(self.dtype).tiny)


def expect(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    dtype: npt.DTypeLike,
    *,
    part_lse: Array | None = None,
    **arguments: Any,
) -> Expected:
    """Compute exact attention and its bounds. What else changes the numbers is named as for `pyattn.attention`.

    Parameters
    ----------
    query, key, value : array_like
        As for `pyattn.attention`.
    dtype : dtype_like
        Of the result that is judged.
    part_lse : ndarray, optional
        For merge_states' output: the LSE of the part that each key was in; broadcasts to (..., heads, L, S). Default:
        None.

    Returns
    -------
    Expected
    """
    wide = WIDER[np.dtype(dtype).name]
    output, weights, lse = reference.attention(query, key, value, dtype=wide, **arguments)

    # The bounds need no more than float64, whatever they bound.
    layout = {name: arguments[name] for name in ("layout", "enable_gqa") if name in arguments}
    q, k, v, has_heads = reference.operands(query, key, value, **layout)
    masks = ("is_causal", "align", "window", "key_lengths", "query_lengths")
    mask = None if arguments.get("attn_mask") is None else np.asarray(arguments["attn_mask"])
    visible = reference.visible_pairs(
        weights.shape, has_heads, mask, **{name: arguments[name] for name in masks if name in arguments}
    )
    scale, score = arguments.get("scale"), arguments.get("score", "dot")
    features, keys = q.shape[-1], k.shape[-2]
    scale = reference.default_scale(score, features) if scale is None else abs(scale)
    with np.errstate(all="ignore"):
        a = score_sizes(q, k, score, scale, arguments.get("score_weight"))
        if mask is not None and mask.dtype != np.bool_:
            a = a + np.abs(mask.astype(np.float64))
        a = np.where(visible, a, 0)
        largest = a.max(axis=-1, initial=0)
        if part_lse is not None:
            a = a + np.where(visible, np.abs(part_lse), 0)
        shares, sizes = np.where(visible, weights, 0).astype(np.float64), np.abs(np.nan_to_num(v))
        rows = output.swapaxes(-3, -2) if arguments.get("layout") == "bshd" and has_heads else output
        amplified = shares * (1 + a)
        magnitude = amplified @ sizes + amplified.sum(-1, keepdims=True) * np.abs(rows)
        flat = _flat(shares, visible)[..., np.newaxis] & (np.abs(rows) >= FLAT_SUM * (shares @ sizes))
        number = np.finfo(np.dtype(dtype))
        unit = (magnitude * (number.eps / 2) + (keys + features + 1) * number.tiny).astype(np.float64)
    if rows is not output:
        unit, flat = unit.swapaxes(-3, -2), flat.swapaxes(-3, -2)
    return Expected(np.dtype(dtype), output, weights, lse, visible, unit, flat, largest)


def score_sizes(q: Array, k: Array, score: reference.Score, scale: Any, weight: Any) -> Array:
    """Compute what the rounding of scores is relative to: the size of what was added up to make each.

    Parameters
    ----------
    q : ndarray, (..., L, features)
        Queries.
    k : ndarray, (..., S, features)
        Keys.
    score : str
        The score function.
    scale : float
        Its scale, without a sign.
    weight : array_like or None
        Its weight, if it has one.

    Returns
    -------
    ndarray, (..., L, S)
    """
    if score == "distance":
        return _distance_sizes(q, k, scale)
    q, k = np.abs(q), np.abs(k)
    if score == "additive":
        return np.full((*q.shape[:-1], k.shape[-2]), scale * np.abs(weight).sum(dtype=np.float64))
    if score == "cosine":
        norms = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
        q, k = (x / np.where(norm == 0, 1, norm) for x, norm in zip((q, k), norms, strict=True))
    return np.asarray(scale * ((q @ np.abs(weight) if score == "bilinear" else q) @ k.mT))


def _distance_sizes(q: Array, k: Array, scale: Any) -> Array:
    """Compute the same of distances. One that overflows or is NaN on its way is no reason for the others to be."""
    squares = [scale * (x * x).sum(-1) for x in (q, k)]
    both = squares[0][..., np.newaxis] + 2 * scale * (np.abs(q) @ np.abs(k).mT) + squares[1][..., np.newaxis, :]
    return np.asarray(np.fmin(both, 2 * PRODUCT_LIMIT) - 3 * reference.scores(q, k, "distance", scale))


def _flat(shares: Array, visible: Array) -> Array:
    """Tell which rows have many nearly equal weights."""
    keys = visible.sum(axis=-1)
    return np.asarray((keys >= FLAT_KEYS) & (shares.max(axis=-1, initial=0) * keys <= FLAT_WEIGHT))


def output_ratios(output: npt.ArrayLike, expected: Expected) -> Array:
    """Divide each error of an output by its unit.

    Parameters
    ----------
    output : array_like
        In the caller's layout, of any dtype.
    expected : Expected
        Of the same inputs.

    Returns
    -------
    ndarray
        Of the output's shape; to be compared with `output_bars`.

    Raises
    ------
    AssertionError
        Another shape.
    """
    return _ratios(output, expected.output, expected.output_unit)


def output_bars(expected: Expected) -> Array:
    """Tell how large `output_ratios` may be.

    Parameters
    ----------
    expected : Expected
        Of some inputs.

    Returns
    -------
    ndarray
        Of the output's shape: OUTPUT_BAR or, where it is flat, FLAT_OUTPUT_BAR.
    """
    return np.where(expected.flat, FLAT_OUTPUT_BAR, OUTPUT_BAR)


def output_ratio(output: npt.ArrayLike, expected: Expected) -> float:
    """Return the worst of `output_ratios`, of an output of the right dtype.

    Parameters
    ----------
    output : array_like
        In the caller's layout.
    expected : Expected
        Of the same inputs.

    Returns
    -------
    float
        Bar: OUTPUT_BAR, or FLAT_OUTPUT_BAR for the flat family.
    """
    return _worst(output, expected.output, expected.output_unit, expected.dtype)


def weights_ratio(weights: Array, expected: Expected) -> float:
    """Judge each weight, the sum of each row, and exact zeros where nothing is attended to.

    Parameters
    ----------
    weights : ndarray, (..., heads, L, S)
        In both layouts.
    expected : Expected
        Of the same inputs.

    Returns
    -------
    float
        Bar: 1.
    """
    assert weights.shape == expected.weights.shape, f"shape {weights.shape}, expected {expected.weights.shape}"
    rows = ~np.isnan(expected.lse)  # a row that attends to a NaN is all NaN, or not: nobody can use it
    weights, exact, u = weights[rows], expected.weights[rows], expected.unit_roundoff
    if np.any(weights[~expected.visible[rows]] != 0):
        return np.inf
    relative = 8 * u + 16 * u * expected.largest[rows][:, np.newaxis]  # u first: with finfo.min masks 1 + 2A overflows
    unit = relative * exact.astype(np.float64) + expected.tiny
    sums, attends = weights.astype(exact.dtype).sum(axis=-1), (expected.lse[rows] != -np.inf).astype(exact.dtype)
    sums_unit = np.full(sums.shape, 8 * u * np.sqrt(max(1, exact.shape[-1])))
    return max(_worst(weights, exact, unit, expected.dtype), _worst(sums, attends, sums_unit))


def lse_ratio(lse: npt.ArrayLike, expected: Expected) -> float:
    """Judge log-sum-exps.

    Parameters
    ----------
    lse : array_like, (..., heads, L)
        In both layouts.
    expected : Expected
        Of the same inputs.

    Returns
    -------
    float
        Bar: 1.
    """
    four_u = 4 * expected.unit_roundoff
    unit = four_u + four_u * np.abs(expected.lse).astype(np.float64) + four_u * expected.largest
    return _worst(lse, expected.lse, unit, expected.dtype)


def softmax_ratio(y: npt.ArrayLike, x: npt.ArrayLike, axis: int = -1, *, logarithm: bool = False) -> float:
    """Judge softmax as a row of weights and log_softmax as a log-sum-exp, with a_j = |x_j|.

    Parameters
    ----------
    y : array_like
        The result.
    x : array_like
        What it is the softmax of.
    axis : int
        Default: -1, the last.
    logarithm : bool
        Of log_softmax. Default: False.

    Returns
    -------
    float
        Bar: 1.
    """
    y, x = np.asarray(y), np.asarray(x)
    u, tiny = float(np.finfo(y.dtype).eps) / 2, float(np.finfo(y.dtype).tiny)
    exact = (reference.log_softmax if logarithm else reference.softmax)(x, axis, dtype=WIDER[y.dtype.name])
    with np.errstate(all="ignore"):
        size, magnitude = np.abs(exact).astype(np.float64), np.abs(x.astype(np.float64))
        largest = np.where(np.isfinite(magnitude), magnitude, 0).max(axis=axis, keepdims=True, initial=0)
        unit = 4 * u * (1 + size + largest) if logarithm else 8 * u * size * (1 + 2 * largest) + tiny
    return _worst(y, exact, unit, y.dtype)


def _worst(actual: npt.ArrayLike, exact: Array, unit: Array, dtype: npt.DTypeLike | None = None) -> float:
    return float(_ratios(actual, exact, unit, dtype).max(initial=0))


def _ratios(actual: npt.ArrayLike, exact: Array, unit: Array, dtype: npt.DTypeLike | None = None) -> Array:
    """|actual - exact| / unit; inf for NaN or infinity in a place of its own. Shape and dtype are exact."""
    actual = np.asarray(actual)
    assert actual.shape == exact.shape, f"shape {actual.shape}, expected {exact.shape}"
    assert dtype is None or actual.dtype == dtype, f"dtype {actual.dtype}, expected {dtype}"
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        same = (actual == exact) | (np.isnan(actual) & np.isnan(exact))
        error = np.abs(actual.astype(exact.dtype) - exact) / unit
        error = np.where(np.isnan(error), np.inf, error).astype(np.float64)
    return np.where(finite, error, np.where(same, 0, np.inf))

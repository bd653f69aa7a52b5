"""Rounding bounds: how far a result may be from the exact one. All tests of the project use them.

A ratio is an error divided by its rounding bound. Compare it with a bar: `output_ratio` with OUTPUT_BAR
(FLAT_OUTPUT_BAR where weights are nearly uniform and values share a sign, S up to 16,384), all others with 1. The ratio
is inf if rounding cannot explain the error: a NaN in another place, a weight on a masked key, or another result in an
empty row.

The bounds of a row of a result, over the keys j that it attends to:

    u      2^-8 for bfloat16, 2^-11 for float16, 2^-24 for float32, 2^-53 for float64
    tiny   2^-126, 2^-25, 2^-126, 2^-1022: denormals may be flushed, except float16's, which are rounded
    a_j    |scale| size_j + |bias_j|: the sum of the absolute terms of a score; A = max_j a_j
    output   u sum_j p_j (|v_j| + |o|) (1 + a_j) + (S + D + 1) tiny
    weight   8u w (1 + 2A) + tiny;  a row's sum: 8u sqrt(S)
    lse      4u (1 + |lse| + A)

size_j, to first order in u; the bars allow for the further error of long sums:

    dot        sum_d |q_d| |k_d|
    cosine     sum_d |q_d| |k_d| / (|q| |k|), at most 1: normalized rows are off by one or two units of their own size
    distance   3 sum_d (q_d - k_d)^2: each difference is rounded, by u of itself, and then squared, and the squares are
               added. Times |scale|, plus, for pairs near 0, the error of computing it as 2 q . k - |k|^2 - |q|^2
               instead: the sum of its terms, |scale| sum_d (|q_d| + |k_d|)^2, where |scale| (|q|^2 + |k|^2) stays
               below PRODUCT_LIMIT; so at most 2 PRODUCT_LIMIT
    bilinear   sum_cd |q_c| |W_cd| |k_d|
    additive   sum_d |w_d|. x = q_d + k_d is rounded, by u |x|, which tanh makes u |x| / cosh(x)^2 < u / 2; tanh is off
               by 4 ULP at most, 8u, and by one or two usually; w_d * scale is rounded, by u.

References are computed one float type wider than the result; otherwise their own errors would be as large as the bound.
(Where long double is not wider than double, this holds for float64, and the bound covers the errors of both.)

`stage_bounds` bounds every stage of a `Formula` for code that may sum in any order:

    linear   4u sqrt(n) (|x| |W| + |b|) with n features
    score    16u a_j
    weight, lse   as above
    heads    16u sqrt(S / 64) sum_j w_j (|v_j| + |o|) (1 + a_j) + (S + D + 1) tiny; without the root up to 64 keys

They are wider than the bounds above; the roots are for sums that, unlike pyattn's, are not split into blocks. Errors
inherited from earlier stages are added. Errors of features in a sum count as independent, so their squares add: with
absolute values, the bound of float32 would accept float16 results from about 100 features on. Over keys, absolute
values add, because an error of a query shifts all scores of its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference
from pyattn.testing.formula import STAGES, Affine, Computed, Formula, append_rows

__all__ = [
    "FLAT_OUTPUT_BAR",
    "OUTPUT_BAR",
    "PRECISIONS",
    "PRODUCT_LIMIT",
    "WIDER",
    "Errors",
    "Expected",
    "Precision",
    "agree",
    "attention_errors",
    "describe_gradient",
    "describe_worst",
    "error_ratios",
    "expect",
    "lse_ratio",
    "norm",
    "output_bars",
    "output_ratio",
    "output_ratios",
    "precision_of",
    "softmax_ratio",
    "stage_bounds",
    "weights_ratio",
]

OUTPUT_BAR, FLAT_OUTPUT_BAR = 4.0, 16.0
PRODUCT_LIMIT = 32 / np.log2(np.e)  # the core's is 32 in units of log2
WIDER: dict[str, Any] = {**dict.fromkeys(("bfloat16", "float16", "float32"), np.float64), "float64": np.longdouble}

Array = npt.NDArray[Any]

# A row is flat if it has at least FLAT_KEYS keys, if cancellation leaves at least the share FLAT_SUM of its sum of
# absolute terms, and if no weight exceeds FLAT_WEIGHT times the mean. In other rows rounding errors cancel, or the size
# of the scores makes the bound wide enough.
FLAT_KEYS, FLAT_SUM, FLAT_WEIGHT = 32, 0.5, 4.0


@dataclass(frozen=True)
class Expected:
    """Exact attention of some inputs, with the rounding bound of each number."""

    dtype: np.dtype[Any]
    output: Array
    """(..., L, v_dim) in the caller's layout, the same shape as output_unit and flat."""
    weights: Array
    """(..., heads, L, S), the same shape as visible."""
    lse: Array
    """(..., heads, L), the same shape as largest."""
    visible: Array
    output_unit: Array
    """The bound of each number of the output, before the bar."""
    flat: Array
    """Whether FLAT_OUTPUT_BAR is the bar of a number."""
    largest: Array
    """A of each row, as defined above."""

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next number."""
        return PRECISIONS[self.dtype.name].u

    @property
    def tiny(self) -> float:
        """How far a small number may be off."""
        return PRECISIONS[self.dtype.name].flushed


def expect(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    dtype: npt.DTypeLike,
    *,
    part_lse: Array | None = None,
    **arguments: Any,
) -> Expected:
    """Compute exact attention and its bounds for results of a dtype; arguments are those of `pyattn.attention`."""
    wide = WIDER[np.dtype(dtype).name]
    output, weights, lse = reference.attention(query, key, value, dtype=wide, **arguments)

    # float64 is enough for the bounds of any dtype.
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
        a = _score_sizes(q, k, score, scale, arguments.get("score_weight"))
        if mask is not None and mask.dtype != np.bool_:
            a = a + np.abs(mask.astype(np.float64))
        a = np.where(visible, a, 0)
        largest = a.max(axis=-1, initial=0)
        # part_lse is for the output of merge_states: for each key the LSE of its chunk, (..., heads, L, S).
        if part_lse is not None:
            a = a + np.where(visible, np.abs(part_lse), 0)
        shares, sizes = np.where(visible, weights, 0).astype(np.float64), np.abs(np.nan_to_num(v))
        rows = output.swapaxes(-3, -2) if arguments.get("layout") == "bshd" and has_heads else output
        amplified = shares * (1 + a)
        magnitude = amplified @ sizes + amplified.sum(-1, keepdims=True) * np.abs(rows)
        flat = _flat(shares, visible)[..., np.newaxis] & (np.abs(rows) >= FLAT_SUM * (shares @ sizes))
        precision = PRECISIONS[np.dtype(dtype).name]
        unit = (magnitude * precision.u + (keys + features + 1) * precision.flushed).astype(np.float64)
    if rows is not output:
        unit, flat = unit.swapaxes(-3, -2), flat.swapaxes(-3, -2)
    return Expected(np.dtype(dtype), output, weights, lse, visible, unit, flat, largest)


def _score_sizes(q: Array, k: Array, score: reference.Score, scale: Any, weight: Any) -> Array:
    """Return the sum of the absolute terms of each score, to which its rounding error is relative."""
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
    """Return the sizes of distances; where 2 q . k - |k|^2 - |q|^2 overflows or is NaN, the limit is used."""
    squares = [scale * (x * x).sum(-1) for x in (q, k)]
    both = squares[0][..., np.newaxis] + 2 * scale * (np.abs(q) @ np.abs(k).mT) + squares[1][..., np.newaxis, :]
    return np.asarray(np.fmin(both, 2 * PRODUCT_LIMIT) - 3 * reference.scores(q, k, "distance", scale))


def _flat(shares: Array, visible: Array) -> Array:
    """Tell which rows have many nearly equal weights."""
    keys = visible.sum(axis=-1)
    return np.asarray((keys >= FLAT_KEYS) & (shares.max(axis=-1, initial=0) * keys <= FLAT_WEIGHT))


def output_ratios(output: npt.ArrayLike, expected: Expected) -> Array:
    """Return the error of each number of an output, divided by its unit."""
    return _ratios(output, expected.output, expected.output_unit)


def output_bars(expected: Expected) -> Array:
    """Return the largest accepted value for each of `output_ratios`."""
    return np.where(expected.flat, FLAT_OUTPUT_BAR, OUTPUT_BAR)


def output_ratio(output: npt.ArrayLike, expected: Expected) -> float:
    """Return the largest of `output_ratios`; the dtype must match."""
    return _worst(output, expected.output, expected.output_unit, expected.dtype)


def weights_ratio(weights: Array, expected: Expected) -> float:
    """Return the largest ratio of the weights and of the row sums; inf if a masked key has a weight."""
    assert weights.shape == expected.weights.shape, f"shape {weights.shape}, expected {expected.weights.shape}"
    rows = ~np.isnan(expected.lse)  # a row that attends to a NaN may be NaN wholly or in part
    weights, exact, u = weights[rows], expected.weights[rows], expected.unit_roundoff
    if np.any(weights[~expected.visible[rows]] != 0):
        return np.inf
    relative = 8 * u + 16 * u * expected.largest[rows][:, np.newaxis]  # u first: with finfo.min masks 1 + 2A overflows
    unit = relative * exact.astype(np.float64) + expected.tiny
    sums, attends = weights.astype(exact.dtype).sum(axis=-1), (expected.lse[rows] != -np.inf).astype(exact.dtype)
    sums_unit = np.full(sums.shape, 8 * u * np.sqrt(max(1, exact.shape[-1])))
    return max(_worst(weights, exact, unit, expected.dtype), _worst(sums, attends, sums_unit))


def lse_ratio(lse: npt.ArrayLike, expected: Expected) -> float:
    """Return the largest ratio of log-sum-exps, (..., heads, L)."""
    four_u = 4 * expected.unit_roundoff
    unit = four_u + four_u * np.abs(expected.lse).astype(np.float64) + four_u * expected.largest
    return _worst(lse, expected.lse, unit, expected.dtype)


def softmax_ratio(y: npt.ArrayLike, x: npt.ArrayLike, axis: int = -1, *, logarithm: bool = False) -> float:
    """Return the largest ratio of softmax, with the bound of weights, or log_softmax, with that of lse; a_j = |x_j|."""
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
    """Return |actual - exact| / unit, or inf where only one of them is NaN or infinite. Shape and dtype must match."""
    actual = np.asarray(actual)
    assert actual.shape == exact.shape, f"shape {actual.shape}, expected {exact.shape}"
    assert dtype is None or actual.dtype == dtype, f"dtype {actual.dtype}, expected {dtype}"
    finite = np.isfinite(exact)
    with np.errstate(all="ignore"):
        same = (actual == exact) | (np.isnan(actual) & np.isnan(exact))
        error = np.abs(actual.astype(exact.dtype) - exact) / unit
        error = np.where(np.isnan(error), np.inf, error).astype(np.float64)
    return np.where(finite, error, np.where(same, 0, np.inf))


def describe_worst(name: str, actual: Array, expected: Expected, ratios: Array, bars: Array) -> str:
    """Describe in two lines how many numbers of an output exceed their bars, and the worst of them."""
    outside = np.count_nonzero(ratios > bars)
    index = tuple(int(n) for n in np.unravel_index(int(np.argmax(ratios / bars)), ratios.shape))
    exact, bar = expected.output[index], bars[index]
    with np.errstate(all="ignore"):
        given = actual[index].astype(exact.dtype)  # bools cannot be formatted as numbers
        error = abs(given - exact)
    return (
        f"{outside} of {ratios.size} numbers are further from exact attention than rounding explains\n"
        f"worst: {name}[{', '.join(map(str, index))}] is {given:.9g}, exact {exact:.9g}, "
        f"error {error:.3g}, bound {bar * expected.output_unit[index]:.3g}; "
        f"error ratio {ratios[index]:.3g}, at most {bar:g}"
    )


# Every stage of a formula, in any floating-point type


class Precision(NamedTuple):
    """The precision of a floating-point type, including bfloat16, which NumPy lacks."""

    name: str
    bits: int
    """In the significand, with the leading one: u is ``2 ** -bits``."""
    least: int
    """The smallest normal number is ``2 ** least``."""

    @property
    def u(self) -> float:
        """Half the distance from 1 to the next number."""
        return 2.0**-self.bits

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0**self.least

    @property
    def flushed(self) -> float:
        """How far a small number may be off: denormals may be flushed, except float16's."""
        return self.u * self.tiny if self.name == "float16" else self.tiny


PRECISIONS = {
    name: Precision(name, bits, least)
    for name, bits, least in (
        ("bfloat16", 8, -126),
        ("float16", 11, -14),
        ("float32", 24, -126),
        ("float64", 53, -1022),
    )
}


def precision_of(dtype: object) -> Precision | None:
    """Look up the precision of a NumPy or torch dtype; None if it is not a known float."""
    return PRECISIONS.get(str(dtype).rpartition(".")[2])


def error_ratios(actual: Array, expected: Array, allowed: Array) -> Array:
    """Divide errors by bounds: at most 1 if rounding explains them, inf if only one side is NaN or infinite."""
    with np.errstate(all="ignore"):
        found = np.abs(actual - expected) / allowed
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return np.where(same, 0.0, np.nan_to_num(found, nan=np.inf, posinf=np.inf))


def agree(actual: Array, expected: Array, allowed: Array) -> bool:
    """Whether shapes are equal and all errors within bounds."""
    return actual.shape == expected.shape and bool((error_ratios(actual, expected, allowed) <= 1).all())


def norm(x: Array) -> float:
    """Return the norm of the finite numbers."""
    return float(np.sqrt(np.square(x[np.isfinite(x)]).sum()))


def describe_gradient(name: str, actual: Array, exact: Array, unit: Array, bar: float) -> str:
    """Describe in two lines how many numbers of a gradient exceed their bounds, and the worst of them."""
    ratios = error_ratios(actual, exact, unit)
    index = tuple(int(n) for n in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    error = abs(actual[index] - exact[index])
    return (
        f"{np.count_nonzero(ratios > bar)} of {ratios.size} numbers are further from the exact gradient of {name} than "
        f"rounding explains\n"
        f"worst: at [{', '.join(map(str, index))}] it is {actual[index]:.9g}, exact {exact[index]:.9g}, "
        f"error {error:.3g}, bound {bar * unit[index]:.3g}"
    )


def stage_bounds(formula: Formula, computed: Computed, precision: Precision) -> dict[str, Array]:
    """Bound the error of each number of each stage, in the shapes of ``computed.stages``."""
    with np.errstate(all="ignore"):
        if formula.is_linear:
            return {"output": _linear_bound(formula.query, formula.out, precision)}
        return attention_errors(formula, computed, precision).stages


class Errors(NamedTuple):
    """Bounds of the stages of an attention, and of the arrays that its gradients are computed from."""

    stages: dict[str, Array]
    operands: reference.Operands | None
    """Of query, key and value, (..., H, length, D); None if they are the inputs themselves, which are exact."""
    weights: Array
    """(..., H, L, S)."""
    merged: Array
    """Of the input of the output projection."""


def _linear_bound(x: Array, parameters: Affine | None, precision: Precision, inherited: Any = 0.0) -> Array:
    """Bound a linear layer whose input is already off by `inherited`."""
    if parameters is None:
        return np.asarray(inherited)
    x, weight = np.abs(x.astype(np.float64)), np.abs(parameters.weight.astype(np.float64))
    size = x @ weight.T + (0.0 if parameters.bias is None else np.abs(parameters.bias.astype(np.float64)))
    own = 4 * precision.u * np.sqrt(max(1, x.shape[-1])) * size + (x.shape[-1] + 1) * precision.flushed
    return np.asarray(own + (np.sqrt(np.square(inherited) @ np.square(weight).T) if np.ndim(inherited) else 0.0))


def attention_errors(f: Formula, c: Computed, precision: Precision) -> Errors:
    """Bound every stage of an attention with or without projections."""
    u, tiny = precision.u, precision.flushed
    q, k, v = (np.abs(np.nan_to_num(x)) for x in c.operands[:3])
    found, operands = _projection_bounds(f, precision)
    scale, flush = abs(f.factor), (k.shape[-2] + q.shape[-1] + 1) * tiny
    query, key = (np.nan_to_num(x) for x in c.operands[:2])
    size = _score_sizes(query, key, f.score_function, scale, f.score_weight)
    size = np.where(c.visible, size + np.abs(np.nan_to_num(c.bias, posinf=0, neginf=0)), 0)
    largest = size.max(axis=-1, keepdims=True, initial=0)
    w, inherited, moved = np.abs(c.weights), np.zeros(()), np.zeros_like(c.weights)
    if operands is not None:
        errors = np.sqrt(operands.query**2 @ (k**2).mT + q**2 @ (operands.key**2).mT)
        inherited = np.where(c.visible, scale * errors, 0)
        moved = w * np.expm1(np.minimum(inherited, 80))  # e^80 exceeds any weight

    found["scores"] = inherited + 16 * u * size + flush
    weights = moved + w * moved.sum(axis=-1, keepdims=True) + 8 * u * w * (1 + 2 * largest) + tiny
    found["weights"] = f.weights_as_returned(weights)
    if "lse" in c.stages:
        found["lse"] = 4 * u * (1 + np.abs(c.stages["lse"]) + largest[..., 0])
    longer = max(1.0, k.shape[-2] / 64) ** 0.5
    amplified = 16 * u * longer * w * (1 + size) + moved
    heads = amplified @ v + amplified.sum(axis=-1, keepdims=True) * np.abs(c.heads) + flush
    found["heads"] = heads if operands is None else heads + np.sqrt(w**2 @ operands.value**2)
    merged = found["heads"] if f.projections is None else f.merge(found["heads"])
    output = merged if f.out is None else _linear_bound(c.merged, f.out, precision, merged)
    return Errors(found | {"output": f.as_returned(output)}, operands, weights, merged)


def _projection_bounds(f: Formula, precision: Precision) -> tuple[dict[str, Array], reference.Operands | None]:
    """Bound the projections, as returned and split into heads; without projections the inputs are exact."""
    if f.projections is None:
        return {}, None
    bounds = [_linear_bound(x, a, precision) for x, a in zip((f.query, f.key, f.value), f.projections, strict=True)]
    rows = [[precision.u * np.abs(extra[n]) + precision.flushed for extra in f.extras] for n in range(2)]
    bounds[1:] = [append_rows(x, extra) for x, extra in zip(bounds[1:], rows, strict=True)]
    return dict(zip(STAGES, bounds, strict=False)), f.operands(bounds)

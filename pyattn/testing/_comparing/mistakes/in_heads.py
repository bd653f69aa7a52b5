"""Mistakes from the softmax to the heads' results, and in what is multiplied with what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pyattn.testing._comparing.formula import Array, Formula
from pyattn.testing._comparing.mistakes.mistake import Mistake
from pyattn.testing._comparing.steps import merge_heads, softmax, split_heads

__all__ = ["in_empty_rows", "in_heads", "in_hidden_numbers"]


def in_heads(formula: Formula) -> Iterator[Mistake]:
    """Yield what may be wrong in an attention but its masks and scale, the common first.

    Parameters
    ----------
    formula : Formula
        The right one.

    Yields
    ------
    Mistake
    """
    yield from _swaps(formula)
    yield from _softmaxes(formula)
    yield from _overflows(formula)
    yield from _groups(formula)
    if formula.projections is not None:
        yield from _cuts(formula)
        yield from _averages(formula)
    if formula.query.ndim > 2 and not formula.columns:
        what, fix = "gives its output with two axes swapped, those before the last", "swap them back"
        turned = formula.but(turn=not formula.turn)
        yield Mistake("output not turned", "output", what, fix, turned)


def in_empty_rows(formula: Formula) -> Iterator[Mistake]:
    """Yield what libraries give, on purpose, for a row with nothing to attend to.

    Parameters
    ----------
    formula : Formula
        With such rows.

    Yields
    ------
    Mistake
    """
    normalize = formula.steps.normalize

    def filled(x: float) -> Formula:
        def fill(scores: Array, visible: Array) -> Array:
            empty = ~visible.any(axis=-1, keepdims=True)
            return np.where(empty, x, normalize(scores, visible))

        return formula.but(empty_rows="zero", normalize=fill)

    where = "where a query has nothing to attend to"
    fix = "give 0 there, as pyattn does unless asked for empty_rows='nan', or leave such rows out"
    if formula.empty_rows == "nan":
        yield Mistake("empty rows 0", "heads", f"gives 0 {where}", fix, filled(0.0), documented=True)
    yield Mistake("empty rows NaN", "weights", f"gives NaN {where}", fix, filled(np.nan), documented=True)
    keys = formula.lengths[1] + len(formula.extras)
    what = f"gives the mean of all values {where}: it hides with a large negative number"
    average = filled(1 / max(1, keys)).but(attend=lambda weights, visible, value: weights @ value)
    yield Mistake("empty rows averaged", "weights", what, fix, average, documented=True)

    if formula.query_lengths is not None:  # which would be the same as to ignore these
        return

    def seen(visible: Array) -> Array:
        return visible | ~visible.any(axis=-1, keepdims=True)

    steps = formula.steps
    what = f"gives what it would give without a mask {where}: it adds one large negative number to all scores"
    unmasked = formula.but(
        score=lambda products, scale, bias, visible: steps.score(products, scale, bias, seen(visible)),
        normalize=lambda scores, visible: normalize(scores, seen(visible)),
        attend=lambda weights, visible, value: steps.attend(weights, seen(visible), value),
    )
    yield Mistake("empty rows unmasked", "scores", what, fix, unmasked, documented=True)


_NAMES = ("query", "key", "value")
_ORDERS = (
    *((1, 0, 2), (0, 2, 1), (2, 1, 0)),  # two of them swapped
    *((1, 2, 0), (2, 0, 1), (0, 1, 1), (0, 2, 2), (0, 0, 2), (0, 1, 0), (1, 1, 2), (2, 1, 2), (0, 0, 0)),
)


def _swaps(f: Formula) -> Iterator[Mistake]:
    """Yield query, key and value in other places, as inputs and as weights."""
    inputs = (f.query, f.key, f.value)
    for order in _ORDERS:
        wrong = [n for n in range(3) if order[n] != n]
        first = _NAMES[wrong[0]]
        name = f"{first} and {_NAMES[wrong[1]]} swapped" if order in _ORDERS[:3] else "inputs mixed up"
        pairs = [f"{_NAMES[order[n]]} for {_NAMES[n]}" for n in wrong]
        fix = "the order is query, key, value"
        if any(inputs[order[n]] is not inputs[n] for n in wrong):
            stage = first if f.projections is not None else "heads" if first == "value" else "scores"
            changed = dict(zip(_NAMES, (inputs[n] for n in order), strict=True))
            yield Mistake(name, stage, f"takes {' and '.join(pairs)}", fix, f.but(**changed))
        if f.projections is not None:
            what = f"takes the weights of {' and those of '.join(pairs)}"
            one, two, three = (f.projections[n] for n in order)
            yield Mistake(name, first, what, fix, f.but(projections=(one, two, three)))


def _softmaxes(f: Formula) -> Iterator[Mistake]:
    right = f.steps.normalize
    axes = {-2: "queries", -3: "batch" if f.projections is None and f.query.ndim == 3 else "heads", -4: "batch"}

    def along(axis: int) -> Formula:
        def normalize(scores: Array, visible: Array) -> Array:
            turned = (x.swapaxes(axis, -1) for x in (scores, visible))
            return right(*turned).swapaxes(axis, -1)

        return f.but(normalize=normalize)

    fix = "normalise over the keys, the last axis of (..., queries, keys)"
    for axis, name in axes.items():
        if f.projections is not None or f.query.ndim >= -axis:
            what = f"takes the softmax over the {name}, not over the keys"
            yield Mistake(f"softmax over {name}", "weights", what, fix, along(axis))
    everything = f.but(normalize=_over_everything)
    yield Mistake("softmax over everything", "weights", "takes the softmax over all scores at once", fix, everything)
    for power, name in ((np.log(2), "powers of 2"), (1 / np.log(2), "scores times log2(e)")):
        what = f"takes the softmax of {name}, not powers of e" if power < 1 else f"takes the softmax of {name}"
        fix = "exp(s) = exp2(s * log2(e)): use both or neither"
        based = f.but(normalize=lambda scores, visible, power=power: right(scores * power, visible))
        yield Mistake("base of the softmax", "weights", what, fix, based)
    for name, what, fix, normalize in _NOT_SOFTMAX:
        yield Mistake(name, "weights", what, fix, f.but(normalize=normalize))


def _exponentials(scores: Array, visible: Array) -> Array:
    return np.where(visible, np.exp(scores), 0)


def _shifted(scores: Array, visible: Array) -> Array:
    return _exponentials(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf), visible)


def _over_everything(scores: Array, visible: Array) -> Array:
    exponentials = _exponentials(scores - scores.max(initial=-np.inf), visible)
    return np.asarray(exponentials / exponentials.sum())


def _without_axis(scores: Array, visible: Array) -> Array:
    exponentials = _shifted(scores, visible)
    return np.asarray(exponentials / exponentials.sum(axis=-1))


def _without_shift_or_axis(scores: Array, visible: Array) -> Array:
    exponentials = _exponentials(scores, visible)
    return np.asarray(exponentials / exponentials.sum(axis=-1))


def _maximum_without_axis(scores: Array, visible: Array) -> Array:
    exponentials = _exponentials(scores - scores.max(axis=-1), visible)
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def _twice(scores: Array, visible: Array) -> Array:
    once = np.where(visible, softmax(scores, visible), -np.inf)
    return softmax(once, visible)


def _proportional(scores: Array, visible: Array) -> Array:
    kept = np.where(visible, scores, 0)
    return np.asarray(kept / kept.sum(axis=-1, keepdims=True))


def _logarithm(scores: Array, visible: Array) -> Array:
    return np.asarray(np.log(softmax(scores, visible)))


def _averaged(scores: Array, visible: Array) -> Array:
    return np.asarray(softmax(scores, visible) / max(1, scores.shape[-1]))


def _with_one_more(scores: Array, visible: Array) -> Array:
    exponentials = _exponentials(scores, visible)
    return np.asarray(exponentials / (1 + exponentials.sum(axis=-1, keepdims=True)))


def _sigmoid(scores: Array, visible: Array) -> Array:
    return np.where(visible, 1 / (1 + np.exp(-scores)), 0)


def _none(scores: Array, visible: Array) -> Array:
    return np.where(visible, scores, 0)


_DIVIDE = "divide the exponentials by their sum over the keys"
_KEEPDIMS = "pass keepdims=True, so that each row meets its own"
_NOT_SOFTMAX = (
    ("softmax missing", "multiplies the values with the scores themselves", "take their softmax first", _none),
    ("not normalised", "does not divide the exponentials by their sum", _DIVIDE, _shifted),
    ("not normalised", "does not divide the exponentials by their sum", _DIVIDE, _exponentials),
    ("one more in the sum", "adds 1 to the sum that the exponentials are divided by", _DIVIDE, _with_one_more),
    ("sigmoid", "takes the sigmoid of the scores", "take their softmax", _sigmoid),
    ("sum without its axis", "divides rows by the sums of others", _KEEPDIMS, _without_axis),
    ("sum without its axis", "divides rows by the sums of others", _KEEPDIMS, _without_shift_or_axis),
    ("maximum without its axis", "subtracts the maxima of other rows", _KEEPDIMS, _maximum_without_axis),
    ("softmax twice", "takes the softmax twice", "take it once", _twice),
    (
        "softmax without exp",
        "divides the scores by their sum, without exp",
        "take their exponentials first",
        _proportional,
    ),
    ("logarithm of the softmax", "weighs the values with the softmax's logarithm", "take the softmax", _logarithm),
    ("values averaged", "averages the weighted values over the keys", "take their sum", _averaged),
)


def _overflows(f: Formula) -> Iterator[Mistake]:
    """Yield exp(score) without the row's own maximum taken off, in a dtype that cannot hold it."""

    def computed_in(dtype: Any, subtract: Callable[[Array], Any]) -> Formula:
        def normalize(scores: Array, visible: Array) -> Array:
            held = scores.astype(dtype)
            exponentials = _exponentials(held - subtract(held), visible)
            total = exponentials.sum(axis=-1, keepdims=True)
            return np.asarray(exponentials / np.where(visible.any(axis=-1, keepdims=True), total, 1), scores.dtype)

        return f.but(normalize=normalize)

    fix = "subtract each row's maximum, scores.max(axis=-1, keepdims=True), first"
    overflow = "takes exp(score) as it is, which overflows or underflows"
    other = "subtracts what is not each row's own maximum, and exp underflows"
    for dtype in (np.float16, np.float32, np.float64):
        for what, subtract in (
            (overflow, np.zeros_like),
            (other, lambda x: x.max(initial=-np.inf)),
            (other, lambda x: x.max(axis=-2, keepdims=True, initial=-np.inf)),
        ):
            yield Mistake("maximum not subtracted", "weights", what, fix, computed_in(dtype, subtract))


def _groups(f: Formula) -> Iterator[Mistake]:
    """Which key head a query head reads, where there are fewer of them."""

    def tile(x: Array, heads: int, axis: int) -> Array:
        repeats = [1] * x.ndim
        repeats[axis] = heads // x.shape[axis]
        return np.tile(x, repeats)

    what = "gives query head h the key head h % kv_heads"
    fix = "the key head is h // (heads // kv_heads): numpy.repeat, not numpy.tile"
    if f.projections is None:
        axis = -2 if f.layout == "bshd" else -3
        shared = f.query.ndim >= 3 and f.key.ndim >= 3 and 1 < f.key.shape[axis] < f.query.shape[axis]
    else:
        shared = 1 < f.kv_heads < f.heads
    if shared:
        yield Mistake("groups tiled", "heads", what, fix, f.but(share=tile))
    what = "multiplies the transposed weights with the values"
    turned = f.but(attend=lambda weights, visible, value: weights.mT @ value)
    yield Mistake("attention transposed", "heads", what, "weights are (queries, keys): weights @ value", turned)


def _interleaved_split(x: Array, heads: int) -> Array:
    """Feature d * H + h belongs to head h."""
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def _interleaved_merge(x: Array) -> Array:
    turned = np.moveaxis(x, -3, -1)
    return turned.reshape(*turned.shape[:-2], turned.shape[-2] * turned.shape[-1])


def _raw_split(x: Array, heads: int) -> Array:
    """Read the memory of (length, H * D) as (H, length, D)."""
    return x.reshape(*x.shape[:-2], heads, x.shape[-2], x.shape[-1] // heads)


def _raw_merge(x: Array) -> Array:
    return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])


def _cuts(f: Formula) -> Iterator[Mistake]:
    """How features are cut into heads and put together again."""
    if f.heads > 1:
        mixed, raw = "interleaves the features of heads", "reshapes without a transpose"
        ways = (
            ("features interleaved", mixed, _interleaved_split, _interleaved_merge),
            ("features interleaved", f"{mixed} in the projections", _interleaved_split, merge_heads),
            ("features interleaved", f"{mixed} in the output", split_heads, _interleaved_merge),
            ("heads not transposed", f"{raw} where it cuts the projections into heads", _raw_split, merge_heads),
            ("heads not transposed", f"{raw} where it puts the heads together", split_heads, _raw_merge),
            (
                "heads not transposed",
                f"{raw} between (length, heads, dim) and (heads, length, dim)",
                _raw_split,
                _raw_merge,
            ),
        )
        for name, what, split, merge in ways:
            stage = "output" if split is split_heads else "scores"
            fix = "(N, L, E) to (N, L, H, D) by reshape, then swap L and H; back the same way"
            yield Mistake(name, stage, what, fix, f.but(split=split, merge=merge))
    if f.heads == f.kv_heads:
        size = f.heads * f.head_dim
        for heads in (n for n in range(1, size + 1) if size % n == 0 and n != f.heads):
            what, fix = f"has {heads} heads", f"here there are {f.heads}"
            yield Mistake("number of heads", "scores", what, fix, f.but(heads=heads, kv_heads=heads))


def _averages(f: Formula) -> Iterator[Mistake]:
    if f.average:
        what, fix = "gives the weights of each head", "pass average_attn_weights=True, or take their mean over heads"
        yield Mistake("weights per head", "weights", what, fix, f.but(average=False))
    else:
        what, fix = "gives the mean of the weights over heads", "pass average_attn_weights=False"
        yield Mistake("weights averaged", "weights", what, fix, f.but(average=True))


def in_hidden_numbers(formula: Formula) -> Iterator[Mistake]:
    """Yield what libraries do, on purpose, with NaN and infinities where they are hidden.

    Parameters
    ----------
    formula : Formula
        With such numbers or without.

    Yields
    ------
    Mistake
    """
    if all(np.isfinite(x).all() for x in (formula.query, formula.key, formula.value)):
        return
    what = "lets a NaN or infinity of a hidden key or value through, because 0 * NaN is NaN"
    fix = "pyattn never touches what is hidden; put 0 in its place before the call"

    def poisoned(products: Array, scale: float, bias: Array, visible: Array) -> Array:
        return products * scale + bias + np.where(visible, 0, -np.inf)

    def plain(weights: Array, visible: Array, value: Array) -> Array:
        return weights @ value

    for steps in ({"attend": plain}, {"score": poisoned}, {"attend": plain, "score": poisoned}):
        yield Mistake("hidden NaN leaks", "scores", what, fix, formula.but(**steps), documented=True)

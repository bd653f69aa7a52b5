"""Common mistakes in attention: one table, used by `check` and `compare`.

A mistake explains wrong numbers if computing it gives the same numbers. To add a mistake, add a row to `HYPOTHESES` and
the function that changes the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pyattn.testing.formula import Affine, Array, Formula, merge_heads, softmax, split_heads

__all__ = ["HYPOTHESES", "Hypothesis", "Mistake", "conventions_for_empty_rows", "mistakes_in"]

Variants: TypeAlias = Iterable[tuple[str, dict[str, Any]]]
"""Sentences without a subject, each with the fields of the formula that it changes."""


class Mistake(NamedTuple):
    """One mistake in one formula."""

    name: str
    what: str
    """A sentence without its subject."""
    fix: str
    formula: Formula
    """The changed formula, which computes the wrong numbers."""
    documented: bool = False
    """Libraries differ here on purpose."""


class Hypothesis(NamedTuple):
    """A kind of mistake, with all its variants."""

    name: str
    variants: Callable[[Formula], Variants]
    fix: str
    """May contain {scale}."""
    documented: bool = False


def mistakes_in(formula: Formula) -> Iterator[Mistake]:
    """Yield every mistake that can be made in a formula, common ones first."""
    for one in HYPOTHESES:
        if not formula.is_linear or one.variants in (_transposed_parameters, _missing_parameters):
            yield from _made(one, formula)


def conventions_for_empty_rows(formula: Formula) -> Iterator[Mistake]:
    """Yield the conventions of libraries for a query whose keys are all masked."""
    yield from _made(EMPTY_ROWS, formula)


def _made(one: Hypothesis, formula: Formula) -> Iterator[Mistake]:
    fix = one.fix.format(scale=_scale_text(formula)) if "{scale}" in one.fix else one.fix
    for what, changes in one.variants(formula):
        yield Mistake(one.name, what, fix, replace(formula, **changes), one.documented)


# Parameters


_NAMES = ("query", "key", "value")


def _affine_but(f: Formula, places: Iterable[int], **changes: Any) -> dict[str, Any]:
    """Change some of the three projections."""
    layers = enumerate(f.projections or ())
    return {"projections": tuple(one._replace(**changes) if n in places else one for n, one in layers)}


def _is_square(one: Affine) -> bool:
    return bool(one.weight.shape[0] == one.weight.shape[1])


def _transposed_parameters(f: Formula) -> Variants:
    projections = f.projections or ()
    for n, one in enumerate(projections):
        if _is_square(one):
            yield f"has the weights of {_NAMES[n]} transposed", _affine_but(f, (n,), weight=one.weight.T)
    if projections and all(map(_is_square, projections)):
        transposed = tuple(one._replace(weight=one.weight.T) for one in projections)
        yield "has the weights of query, key and value transposed", {"projections": transposed}
    if f.out is not None and _is_square(f.out):
        yield f"has the weight of {_layer(f)} transposed", {"out": f.out._replace(weight=f.out.weight.T)}


def _layer(f: Formula) -> str:
    return "the layer" if f.is_linear else "the output projection"


def _missing_parameters(f: Formula) -> Variants:
    there = [n for n, one in enumerate(f.projections or ()) if one.bias is not None]
    for n in there:
        yield f"leaves out the bias of {_NAMES[n]}", _affine_but(f, (n,), bias=None)
    unbiased = _affine_but(f, there, bias=None) if there else {}
    if there:
        yield "leaves out the biases of query, key and value", unbiased
    if f.out is not None and f.out.bias is not None:
        without = {"out": f.out._replace(bias=None)}
        yield f"leaves out the bias of {_layer(f)}", without
        if there:
            yield "leaves out all biases", unbiased | without
    if f.out is not None and not f.is_linear and _is_square(f.out):
        yield "leaves out the output projection", {"out": None}


def _packed_parameters(f: Formula) -> Variants:
    """Yield in_proj_weight in other orders than query, key, value."""
    if f.projections is None or f.out is None or len({one.weight.shape for one in f.projections}) > 1:
        return
    weight = np.concatenate([one.weight for one in f.projections])
    biases = [one.bias for one in f.projections if one.bias is not None]
    bias = np.concatenate(biases) if biases else None
    size = len(weight) // 3
    for heads, how in ((f.heads, "head by head"), (size, "feature by feature")):
        places = np.arange(3 * size).reshape(heads, 3, size // heads).swapaxes(0, 1).ravel()
        for order, does in ((places, "reads"), (np.argsort(places), "has")) if heads > 1 else ():
            parts = tuple(Affine(weight[part], None if bias is None else bias[part]) for part in np.split(order, 3))
            yield f"{does} in_proj_weight {how}, each with its query, key and value", {"projections": parts}


# Scale and score function


def _scale_text(f: Formula) -> str:
    usual = {"dot": "1 / sqrt(head_dim)", "distance": "1 / (2 sqrt(head_dim))"}.get(f.score_function, "1")
    return f"{usual} = {f.factor:.4g}" if f.scale is None else f"scale={f.factor:.4g}"


def _unscaled(f: Formula) -> Variants:
    if not np.isclose(f.factor, 1):
        yield "does not scale the scores", {"scale": 1.0}


def _wrong_scales(f: Formula) -> Variants:
    factor, usual = f.factor, f.usual_factor
    default = f.scale is None and f.score_function == "dot"
    scales = {
        "divides the scores by head_dim, not by its square root" if default else "scales the scores twice": factor**2,
        "divides the scores by the number that they are to be multiplied by": 1 / (factor or 1),
        "takes powers of 2 in the softmax, not of e": factor * float(np.log(2)),
    }
    if f.scale is not None:
        scales[f"ignores scale, and scales the scores by {usual:.4g}"] = usual
        scales[f"scales the scores twice, by scale and by {usual:.4g}"] = factor * usual
    heads = f.heads if f.projections or f.query.ndim < 4 else int(f.query.shape[f.head_axis])
    sizes = {"head_dim": f.head_dim, "embed_dim": heads * f.head_dim, "num_heads": heads}
    sizes |= {"query's length": f.lengths[0], "key's length": f.lengths[1], "v_dim": int(f.value.shape[-1])}
    for name, size in sizes.items():
        scales[f"scales the scores by 1 / sqrt({name}) = {size**-0.5:.4g}"] = size**-0.5
    for what, scale in scales.items():
        if not np.isclose(scale, factor) and scale != 1:
            yield what, {"scale": scale}
    if not np.isclose(factor, 1):
        after = {"normalize": lambda scores, visible: factor * f.normalize(scores, visible)}
        yield "applies the scale after the softmax", {"scale": 1.0, **after}


SCORES = {
    "dot": "dot products, query . key",
    "cosine": "cosines, query . key / (|query| |key|)",
    "distance": "distances, -|query - key|^2",
}


def _other_scores(f: Formula) -> Variants:
    for score, text in SCORES.items() if f.score_function != "dot" else ():
        for scale in (f.scale, f.factor) if score != f.score_function else ():
            yield f"computes {text}", {"score_function": score, "score_weight": None, "scale": scale}
    if f.score_function == "bilinear":
        yield "multiplies by score_weight transposed", {"score_weight": np.asarray(f.score_weight).T}


# Masks


def _masks(f: Formula) -> Iterator[tuple[str, str, Array]]:
    """Yield the field, the argument and the array of each mask."""
    for field, argument in (("attn_mask", "attn_mask"), ("padding", "key_padding_mask")):
        if getattr(f, field) is not None:
            yield field, argument, np.atleast_1d(getattr(f, field))


def _ignored_arguments(f: Formula) -> Variants:
    given = {argument: field for field, argument, _ in _masks(f)}
    given |= {name: name for name in ("window", "key_lengths", "query_lengths") if getattr(f, name) is not None}
    for argument, field in given.items():
        yield f"ignores {argument}", {field: None}
    if f.is_causal:
        yield "is not causal", {"is_causal": False}


def _inverted_masks(f: Formula) -> Variants:
    meant, read = ("blocked", "attend") if f.blocked else ("attend", "blocked")
    for field, argument, mask in _masks(f):
        if mask.dtype == np.bool_:
            yield f"reads {argument} the other way round, True = {read}; here True = {meant}", {field: ~mask}


def _misread_masks(f: Formula) -> Variants:
    def scores_lost(products: Array, scale: float, bias: Array, visible: Array) -> Array:
        return np.where(visible, bias, -np.inf)  # float32 loses them when it adds 1e9

    for field, argument, mask in _masks(f):
        if mask.dtype == np.bool_:
            for numbers in (mask, ~mask):
                yield f"adds {argument} to the scores as 0 and 1", {field: numbers.astype(np.float64)}
            continue
        for flags in (mask != 0, mask == 0, mask > 0):
            yield f"reads the numbers of {argument} as flags", {field: flags}
        for sign, example in ((1, "1 = attend, as (1 - mask) * -1e9 does"), (-1, "1 = blocked, as mask * -1e9 does")):
            with np.errstate(invalid="ignore"):  # of infinities
                large = 1e9 * (sign * mask - _max(sign * mask))  # a constant added to a row has no effect
            for steps in ({}, {"score": scores_lost}):
                yield f"reads the numbers of {argument} as flags, {example}", {field: large, **steps}
        yield f"adds {argument} to the scores before they are scaled", {field: mask * f.factor}
        yield f"subtracts {argument}", {field: -mask}


def _leaking_masks(f: Formula) -> Variants:
    """Yield other ways to mask pairs than -inf before the softmax."""
    flags = any(mask.dtype == np.bool_ for _, _, mask in _masks(f))
    if not flags and not f.is_causal and f.window is None and f.key_lengths is None:
        return

    def everywhere(scores: Array, visible: Array) -> Array:
        return f.normalize(scores, np.ones_like(visible))

    def filled(number: float, add: float) -> dict[str, Any]:
        def score(products: Array, scale: float, bias: Array, visible: Array) -> Array:
            scores = products * scale + bias
            return np.where(visible, scores, number + add * scores)

        return {"score": score, "normalize": everywhere}

    for number in (-1e4, -1e3, -100.0, -10.0, -5.0):
        for add in (0, 1):
            yield f"sets masked scores to about {number:g}, which other scores come near", filled(number, add)
    yield "sets masked scores to 0, which the softmax still counts", filled(0.0, 0)
    after = {"normalize": lambda scores, visible: np.where(visible, everywhere(scores, visible), 0.0)}
    yield "masks weights after the softmax, so that rows no longer sum to 1", filled(0.0, 1) | after


def _transposed_masks(f: Formula) -> Variants:
    mask = f.attn_mask
    if mask is None:
        return
    if mask.ndim >= 2 and mask.shape[-1] == mask.shape[-2] > 1:
        yield "reads attn_mask as (keys, queries)", {"attn_mask": mask.mT}
    if f.projections is not None and mask.ndim == 4 and min(mask.shape[:2]) > 1:
        batch, heads = mask.shape[:2]
        read = mask.reshape(heads, batch, *mask.shape[2:]).swapaxes(0, 1)
        made = mask.swapaxes(0, 1).reshape(mask.shape)
        for other in (read, made):
            yield "has attn_mask as (num_heads * N, L, S), not (N * num_heads, L, S)", {"attn_mask": other}


def _wrong_corners(f: Formula) -> Variants:
    differ = f.lengths[0] != f.lengths[1] or f.key_lengths is not None or f.query_lengths is not None
    meant = f.align or "upper_left"
    if (f.is_causal or f.window is not None) and differ and isinstance(meant, str):
        other = {"upper_left": "lower_right", "lower_right": "upper_left"}[meant]
        where, right = (corner.replace("_", " ") for corner in (other, meant))
        yield f"aligns queries and keys at the {where} corner, not the {right} one", {"align": other}


def _added_causal(f: Formula) -> Variants:
    for align in ("upper_left", "lower_right") if not f.is_causal else ():
        yield "is causal", {"is_causal": True, "align": align}


def _reversed_causal(f: Formula) -> Variants:
    for first in (0, -1) if f.is_causal else ():
        yield "lets a query attend to later positions", {"is_causal": False, "window": (first, None)}
    left, right = f.window_ends
    if left != right:
        yield "swaps the window's left and right", {"window": (right, left)}


def _off_by_one(f: Formula) -> Variants:
    left, right = f.window_ends
    shifts = {-1: "does not let a query attend to its own position", 1: "lets a query attend to the position after its"}
    for shift, what in shifts.items() if f.is_causal else ():
        yield what, {"is_causal": False, "window": (left, shift if right is None else min(shift, right))}
    for a, b in ((-1, -1), (1, 1), (0, -1), (-1, 0), (0, 1), (1, 0)) if f.window is not None else ():
        if (left is not None or not a) and (right is not None or not b):
            ends = (None if left is None else left + a, None if right is None else right + b)
            yield f"has a window that is one {'smaller' if min(a, b) < 0 else 'larger'}", {"window": ends}
    for name in ("key_lengths", "query_lengths"):
        for by, how in ((-1, "less"), (1, "more")) if getattr(f, name) is not None else ():
            yield f"counts one {how} than {name}", {name: np.asarray(getattr(f, name)) + by}


# Softmax


def _exp(scores: Array, visible: Array, shift: Any = 0) -> Array:
    return np.where(visible, np.exp(scores - shift), 0)


def _sum(x: Array) -> Array:
    return np.asarray(x.sum(axis=-1, keepdims=True))


def _max(scores: Array) -> Array:
    return np.asarray(scores.max(axis=-1, keepdims=True, initial=-np.inf))


def _overflows(f: Formula) -> Variants:
    """Yield softmaxes without the row's own maximum subtracted, in dtypes that cannot hold the exponentials."""

    def computed_in(dtype: Any, shift: Callable[[Array], Any]) -> Callable[[Array, Array], Array]:
        def normalize(scores: Array, visible: Array) -> Array:
            held = scores.astype(dtype)
            exponentials = _exp(held, visible, shift(held))
            empty = ~visible.any(axis=-1, keepdims=True)
            return np.asarray(exponentials / np.where(empty, 1, _sum(exponentials)), scores.dtype)

        return normalize

    for dtype in (np.float32, np.float64):
        for shift in (lambda scores: 0, lambda scores: scores.max(initial=-np.inf)):
            what = "takes exp(score) without subtracting the row's own maximum, so it overflows or underflows"
            yield what, {"normalize": computed_in(dtype, shift)}


def _softmax_axes(f: Formula) -> Variants:
    batch = f.projections is None and f.query.ndim == 3
    for axis, name in ((-2, "queries"), (-3, "batch" if batch else "heads"), (-4, "batch")):
        if f.projections is not None or f.query.ndim >= -axis:

            def along(scores: Array, visible: Array, axis: int = axis) -> Array:
                return f.normalize(scores.swapaxes(axis, -1), visible.swapaxes(axis, -1)).swapaxes(axis, -1)

            yield f"takes the softmax over the {name}, not over the keys", {"normalize": along}
    everything = {
        "normalize": lambda scores, visible: (e := _exp(scores, visible, scores.max(initial=-np.inf))) / e.sum()
    }
    yield "takes the softmax over all scores at once", everything


def _other_softmaxes(f: Formula) -> Variants:
    divide = "does not divide the exponentials by their sum"
    for what, normalize in (
        ("multiplies the values by the scores themselves", lambda s, visible: np.where(visible, s, 0)),
        (
            "takes the softmax twice",
            lambda s, visible: softmax(np.where(visible, softmax(s, visible), -np.inf), visible),
        ),
        ("takes the sigmoid of the scores", lambda s, visible: np.where(visible, 1 / (1 + np.exp(-s)), 0)),
        (divide, lambda s, visible: _exp(s, visible, _max(s))),
        (divide, _exp),
        ("adds 1 to the sum of the exponentials", lambda s, visible: (e := _exp(s, visible)) / (1 + _sum(e))),
    ):
        yield what, {"normalize": normalize}


def _missing_keepdims(f: Formula) -> Variants:
    sums = "divides each row by the sums of other rows"
    for what, normalize in (
        (sums, lambda s, visible: (e := _exp(s, visible, _max(s))) / e.sum(axis=-1)),
        (sums, lambda s, visible: (e := _exp(s, visible)) / e.sum(axis=-1)),
        ("subtracts the maxima of other rows", lambda s, visible: (e := _exp(s, visible, s.max(axis=-1))) / _sum(e)),
    ):
        yield what, {"normalize": normalize}


# Inputs, axes and heads


def _swapped_inputs(f: Formula) -> Variants:
    inputs = (f.query, f.key, f.value)
    orders = ((1, 0, 2), (0, 2, 1), (2, 1, 0), (0, 1, 1), (0, 2, 2), (0, 0, 2), (0, 1, 0), (1, 1, 2), (2, 1, 2))
    for order in orders:
        wrong = [n for n in range(3) if order[n] != n]
        pairs = [f"{_NAMES[order[n]]} for {_NAMES[n]}" for n in wrong]
        if any(inputs[order[n]] is not inputs[n] for n in wrong):
            changed = dict(zip(_NAMES, (inputs[n] for n in order), strict=True))
            yield f"takes {' and '.join(pairs)}", changed
        if f.projections is not None:
            projections = tuple(f.projections[n] for n in order)
            yield f"takes the weights of {' and those of '.join(pairs)}", {"projections": projections}


def _untransposed_key(f: Formula) -> Variants:
    if f.projections is not None or f.layout == "bshd":
        return
    key = f.key
    yield "does not transpose key", {"key": key.mT}
    reshaped = key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2]).mT
    yield "reshapes key instead of transposing it, which mixes its numbers", {"key": reshaped}
    if key.ndim > 2:
        yield "reverses all axes of key, as key.T does", {"key": key.T.mT}


def _other_products(f: Formula) -> Variants:
    yield "multiplies the transposed weights by the values", {"attend": lambda weights, _, value: weights.mT @ value}
    if f.projections is None and f.layout == "bhsd":
        keys = f.key.shape[-2]
        yield "returns the weights", {"value": np.broadcast_to(np.eye(keys), (*f.key.shape[:-1], keys))}


def _transposed_output(f: Formula) -> Variants:
    yield "transposes the output", {"finish": lambda output: output.mT}
    if f.query.ndim > 2 and f.convention == "row":
        yield "returns the output with the two axes before the last swapped", {"length_first": not f.length_first}


def _without_masks(**changes: Any) -> dict[str, Any]:
    none = ("attn_mask", "window", "key_lengths", "query_lengths")
    return dict.fromkeys(none) | {"is_causal": False} | changes


def _misread_axes(f: Formula) -> Variants:
    if f.projections is None and f.layout == "bhsd":
        swapped = {"query": f.query.mT, "key": f.key.mT, "value": f.value.mT, "convention": "column"}
        for scale in (f.factor, None):
            yield "reads inputs as columns, (head_dim, length)", _without_masks(**swapped, scale=scale)
        if min(f.query.ndim, f.key.ndim) > 3:
            what = "reads axes as (batch, length, heads, dim), not (batch, heads, length, dim)"
            yield what, _without_masks(layout="bshd")
    if f.projections is not None and f.out is not None and f.query.ndim == 3:
        given, read = ("(L, N, E)", "(N, L, E)") if f.length_first else ("(N, L, E)", "(L, N, E)")
        changes = dict(zip(_NAMES, (x.swapaxes(0, 1) for x in (f.query, f.key, f.value)), strict=True))
        what = f"reads inputs as {read}, batch_first={f.length_first}, not {given}"
        yield what, {**changes, "length_first": not f.length_first}


def _reshaped_heads(f: Formula) -> Variants:
    if f.projections is not None and f.heads > 1:
        reshapes = "reshapes without swapping length and heads"
        for what, split, merge in (
            (f"{reshapes} where it splits the projections into heads", _raw_split, merge_heads),
            (f"{reshapes} where it merges the heads", split_heads, _raw_merge),
            (f"{reshapes} where it splits and merges heads", _raw_split, _raw_merge),
            ("interleaves the features of heads", _interleaved_split, _interleaved_merge),
            ("interleaves the features of heads where it splits the projections", _interleaved_split, merge_heads),
        ):
            yield what, {"split": split, "merge": merge}
    if f.projections is not None or f.layout == "bshd" or min(f.query.ndim, f.key.ndim) < 4:
        return

    def mixed(x: Array) -> Array:
        return x.swapaxes(-3, -2).reshape(x.shape)

    def unmixed(x: Array) -> Array:
        return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1]).swapaxes(-3, -2)

    merged: dict[str, Any] = {"finish": mixed}
    parts = {"query": unmixed(f.query), "key": unmixed(f.key), "value": unmixed(f.value)}
    for where, changes in (("its output", merged), ("its inputs", parts), ("its inputs and output", merged | parts)):
        yield f"mixes heads and positions of {where} by reshape", changes


def _interleaved_split(x: Array, heads: int) -> Array:
    """Feature d * H + h belongs to head h."""
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def _interleaved_merge(x: Array) -> Array:
    moved = np.moveaxis(x, -3, -1)
    return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])


def _raw_split(x: Array, heads: int) -> Array:
    """Read the memory of (length, H * D) as (H, length, D)."""
    return x.reshape(*x.shape[:-2], heads, x.shape[-2], x.shape[-1] // heads)


def _raw_merge(x: Array) -> Array:
    return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3] * x.shape[-1])


def _tiled_groups(f: Formula) -> Variants:
    def tile(x: Array, heads: int, axis: int) -> Array:
        repeats = [1] * x.ndim
        repeats[axis] = heads // x.shape[axis]
        return np.tile(x, repeats)

    shared = 1 < f.kv_heads < f.heads
    if f.projections is None and min(f.query.ndim, f.key.ndim) >= 3:
        shared = 1 < f.key.shape[f.head_axis] < f.query.shape[f.head_axis]
    if shared:
        yield "gives query head h the key head h % kv_heads", {"share": tile}


def _head_counts(f: Formula) -> Variants:
    size = f.heads * f.head_dim
    for heads in range(1, size + 1) if f.projections is not None and f.heads == f.kv_heads and f.out else ():
        if size % heads == 0 and heads != f.heads:
            yield f"has {heads} heads, not {f.heads}", {"heads": heads, "kv_heads": heads}


def _returned_weights(f: Formula) -> Variants:
    yield "returns its weights transposed, (keys, queries)", {"finish_weights": lambda weights: weights.mT}
    if f.projections is not None and f.out is not None:
        what = "returns the weights of each head" if f.average else "returns the mean of the weights over heads"
        yield what, {"average": not f.average}


# Intended differences between libraries


def _hidden_nan(f: Formula) -> Variants:
    if all(np.isfinite(x).all() for x in (f.query, f.key, f.value)):
        return

    def score(products: Array, scale: float, bias: Array, visible: Array) -> Array:
        return products * scale + bias + np.where(visible, 0, -np.inf)

    attend: dict[str, Any] = {"attend": lambda weights, visible, value: weights @ value}
    for steps in (attend, {"score": score}, {**attend, "score": score}):
        yield "lets a NaN or infinity of a masked key or value through, because 0 * NaN is NaN", steps


def _empty_rows(f: Formula) -> Variants:
    def filled(number: float) -> dict[str, Any]:
        def fill(scores: Array, visible: Array) -> Array:
            return np.where(visible.any(axis=-1, keepdims=True), f.normalize(scores, visible), number)

        return {"empty_rows": "zero", "normalize": fill}

    def seen(visible: Array) -> Array:
        return visible | ~visible.any(axis=-1, keepdims=True)

    where = "where a query has nothing to attend to"
    if f.empty_rows == "nan":
        yield f"gives 0 {where}", filled(0.0)
    yield f"gives NaN {where}", filled(np.nan)
    keys = f.lengths[1] + len(f.extras)
    mean = {**filled(1 / max(1, keys)), "attend": lambda weights, visible, value: weights @ value}
    yield f"gives the mean of all values {where}: it masks with a large negative number", mean
    if f.query_lengths is None:  # with query_lengths this would equal ignoring them
        unmasked = {
            "score": lambda products, scale, bias, visible: f.score(products, scale, bias, seen(visible)),
            "normalize": lambda scores, visible: f.normalize(scores, seen(visible)),
            "attend": lambda weights, visible, value: f.attend(weights, seen(visible), value),
        }
        yield f"gives the result without a mask {where}: it adds one large negative number to all scores", unmasked


_LINEAR = "y = x @ weight.T + bias, with weights of shape (out_features, in_features)"
HYPOTHESES = (
    # This comes first, as other mistakes may also give NaN throughout.
    Hypothesis(
        "hidden NaN leaks", _hidden_nan, "put 0 in its place before the call; pyattn never reads masked positions", True
    ),
    Hypothesis("weights transposed", _transposed_parameters, _LINEAR),
    Hypothesis("parameters missing", _missing_parameters, _LINEAR),
    Hypothesis("packed by heads", _packed_parameters, "the rows are those of query, then of key, then of value"),
    Hypothesis(
        "scale missing",
        _unscaled,
        "multiply them by {scale}, once; if that is meant, as in an article's first example, pass scale=1",
    ),
    Hypothesis("wrong scale", _wrong_scales, "multiply the scores by {scale}, once"),
    Hypothesis("another score", _other_scores, "use the score function that is asked for"),
    Hypothesis(
        "argument ignored",
        _ignored_arguments,
        "use the argument; a mask that adds -1e-9, not -1e9, has no effect either",
    ),
    Hypothesis("mask inverted", _inverted_masks, "pass the inverse, ~mask"),
    Hypothesis(
        "mask misread", _misread_masks, "set scores to -inf where a bool mask hides a key, and add a float mask to them"
    ),
    Hypothesis("mask transposed", _transposed_masks, "masks are (..., L, S): index them [batch, head, query, key]"),
    Hypothesis("mask leaks", _leaking_masks, "set masked scores to -inf before the softmax"),
    Hypothesis("causal corner", _wrong_corners, "say which one is meant: align='upper_left' or align='lower_right'"),
    Hypothesis("causal added", _added_causal, "leave the causal mask out, or make it an argument, is_causal"),
    Hypothesis("causal reversed", _reversed_causal, "query i attends to keys 0 to i: numpy.tril, not numpy.triu"),
    Hypothesis(
        "off by one",
        _off_by_one,
        "query i attends to keys 0 to i, a window includes both its ends, and lengths are counts",
    ),
    Hypothesis("inputs swapped", _swapped_inputs, "the order is query, key, value"),
    Hypothesis("softmax axis", _softmax_axes, "normalize over the keys, the last axis of (..., queries, keys)"),
    Hypothesis("not a softmax", _other_softmaxes, "divide the exponentials of the scores by their sum over the keys"),
    Hypothesis("maximum not subtracted", _overflows, "subtract scores.max(axis=-1, keepdims=True) first"),
    Hypothesis("keepdims missing", _missing_keepdims, "pass keepdims=True, so that each row meets its own number"),
    Hypothesis("groups tiled", _tiled_groups, "it is h // (heads // kv_heads): numpy.repeat, not numpy.tile"),
    Hypothesis("not weights @ value", _other_products, "weights are (queries, keys): return weights @ value"),
    Hypothesis("heads reshaped", _reshaped_heads, "(N, L, E) to (N, L, H, D) by reshape, then swap L and H; and back"),
    Hypothesis("number of heads", _head_counts, "give both the same num_heads"),
    Hypothesis("weights returned", _returned_weights, "check what is returned: (..., L, S), and average_attn_weights"),
    Hypothesis("output transposed", _transposed_output, "return (..., length, v_dim), in the order of the inputs"),
    Hypothesis("key not transposed", _untransposed_key, "scores are query @ key.swapaxes(-1, -2)"),
    Hypothesis(
        "axes misread",
        _misread_axes,
        "transpose the inputs, or pass the option for these axes: layout='bshd', batch_first",
    ),
)
EMPTY_ROWS = Hypothesis(
    "empty rows", _empty_rows, "give 0 there, as pyattn does unless empty_rows='nan' is passed, or drop such rows", True
)

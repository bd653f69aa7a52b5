"""Mistakes in what scores are made of: the scale, masks, causal alignment, windows and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from pyattn.testing._comparing.formula import Array, Formula
from pyattn.testing._comparing.mistakes.mistake import Mistake

__all__ = ["in_scores"]


def in_scores(formula: Formula) -> Iterator[Mistake]:
    """Yield what may be wrong before the softmax, the common first.

    Parameters
    ----------
    formula : Formula
        The right one.

    Yields
    ------
    Mistake
    """
    yield from _scales(formula)
    yield from _functions(formula)
    yield from _masks(formula)
    yield from _causal(formula)
    yield from _windows(formula)
    yield from _lengths(formula)


def _scales(f: Formula) -> Iterator[Mistake]:
    usual, factor = f.usual_factor, f.factor
    text = {"dot": "1 / sqrt(head_dim)", "distance": "1 / (2 sqrt(head_dim))"}.get(f.score_function, "1")
    given = f"scale={factor:.4g}" if f.scale is not None else f"{text} = {factor:.4g}"
    fix = f"multiply them by {given}, once"
    others = [("scale missing", "does not scale the scores", 1.0)]
    if f.scale is not None:
        others.append(("scale ignored", f"scales the scores by {text} = {usual:.4g}", usual))
        others.append(("scale squared", f"scales the scores twice, by scale and by {text}", factor * usual))
    if f.score_function != "dot":
        root = f.head_dim**-0.5
        others.append(("scale of another score", f"scales the scores by 1 / sqrt(head_dim) = {root:.4g}", root))
    alone = f.scale is None and f.score_function == "dot"
    squared = "divides the scores by head_dim, not by its square root" if alone else "scales the scores twice"
    others.append(("scale squared", squared, factor**2))
    others.append(("scale inverted", "divides the scores by what they are to be multiplied by", 1 / (factor or 1)))
    others.append(("square root twice", "scales the scores by the square root of the scale", abs(factor) ** 0.5))
    for name, size in _sizes(f).items():
        others.append(
            ("scale of another size", f"scales the scores by 1 / sqrt({name}) = {size**-0.5:.4g}", size**-0.5)
        )
    for name, what, scale in others:
        if not np.isclose(scale, factor):
            meant = "; if that is meant, as in an article's first example, pass scale=1" if scale == 1 else ""
            yield Mistake(name, "scores", what, fix + meant, f.but(scale=scale))
    if not np.isclose(1.0, factor):
        late = f.but(scale=1.0, normalize=lambda scores, visible: factor * f.steps.normalize(scores, visible))
        what = "applies the scale after the softmax"
        yield Mistake("scale after the softmax", "weights", what, "scale the scores, not the weights", late)


def _sizes(f: Formula) -> dict[str, int]:
    """Give sizes that head_dim is mistaken for."""
    if f.projections is not None:
        sizes = {"embed_dim": f.query.shape[-1], "num_heads": f.heads}
    else:
        heads = f.query.shape[-2 if f.layout == "bshd" else -3] if f.query.ndim > 3 else 1
        sizes = {"embed_dim": heads * f.head_dim, "heads": heads, "v_dim": f.value.shape[-1]}
    sizes |= dict(zip(("query's length", "key's length"), f.lengths, strict=True))
    return {name: int(size) for name, size in sizes.items() if size > 1 and size != f.head_dim}


_SCORES = {
    "dot": "dot products, query . key",
    "cosine": "cosines, query . key / (|query| |key|)",
    "distance": "distances, -|query - key|^2",
    "bilinear": "query score_weight key",
    "additive": "score_weight . tanh(query + key)",
}


def _functions(f: Formula) -> Iterator[Mistake]:
    """Yield what else than dot products may be mistaken for."""
    if f.score_function == "dot":
        return
    fix = f"scores are {_SCORES[f.score_function]}"
    for score in ("dot", "cosine", "distance"):
        for scale in (f.scale, f.factor) if score != f.score_function else ():
            other = f.but(score_function=score, score_weight=None, scale=scale)
            yield Mistake("another score", "scores", f"computes {_SCORES[score]}", fix, other)
    if f.score_function == "bilinear":
        what = "multiplies by score_weight transposed"
        yield Mistake("score_weight transposed", "scores", what, fix, f.but(score_weight=np.asarray(f.score_weight).T))
    if f.score_function == "distance":
        step = f.steps.score
        for what, change in (
            ("takes distances that are not squared", lambda products: -np.sqrt(-products)),
            ("adds distances, so that the farthest key counts most", lambda products: -products),
        ):
            changed = f.but(score=lambda products, *rest, change=change: step(change(products), *rest))
            yield Mistake("distance misread", "scores", what, fix, changed)


# Masks


def _masks(f: Formula) -> Iterator[Mistake]:
    for field, argument in (("attn_mask", "attn_mask"), ("padding", "key_padding_mask")):
        mask = getattr(f, field)
        if mask is None:
            continue
        short = argument.removeprefix("attn_").removeprefix("key_").replace("_", " ")
        fix = f"hand {argument} on; if it is used, what it adds may be tiny, as -1e-9 is"
        yield Mistake(f"{short} ignored", "scores", f"ignores {argument}", fix, f.but(**{field: None}))
        variants = _of_flags(f, mask, argument) if mask.dtype == np.bool_ else _of_numbers(f, mask, argument)
        for name, what, fix, other in variants:
            yield Mistake(name.format(short), "scores", what, fix, f.but(**{field: other}))
        yield from _misplaced(f, mask, field, argument)
        if mask.dtype != np.bool_:
            yield from _as_large_numbers(f, field, short, argument)
            yield from _added_late(f, argument)
    flags = any(mask is not None and mask.dtype == np.bool_ for mask in (f.attn_mask, f.padding))
    if flags or f.is_causal or f.window is not None or f.key_lengths is not None:
        yield from _in_other_steps(f)


def _of_flags(f: Formula, mask: Array, argument: str) -> Iterator[tuple[str, str, str, Array]]:
    meant, read = ("blocked", "attend") if f.blocked else ("attend", "blocked")
    what = f"reads {argument} the other way round, True = {read}; here True = {meant}"
    yield "{} inverted", what, f"pass ~{argument} to it", ~mask
    for numbers in (mask, ~mask):
        what = f"adds {argument} to the scores as numbers, 0 and 1"
        fix = "add -inf where a key is hidden and 0 elsewhere, or pass bools"
        yield "{} added as numbers", what, fix, numbers.astype(np.float64)


def _of_numbers(f: Formula, mask: Array, argument: str) -> Iterator[tuple[str, str, str, Array]]:
    fix = f"add {argument} to the scores, or raise a TypeError for floats"
    for flags in (mask != 0, mask == 0, mask > 0):
        yield "{} read as flags", f"takes the numbers of {argument} as flags", fix, flags
    yield "{} subtracted", f"subtracts {argument}", f"add {argument} to the scores", -mask
    what = f"adds {argument} to the scores before they are scaled"
    yield "{} before the scale", what, f"scale first, then add {argument}", mask * f.factor


def _as_large_numbers(f: Formula, field: str, short: str, argument: str) -> Iterator[Mistake]:
    """Yield what is right for 0 and 1 alone. Beside a billion, float32 has no digits left for the scores."""

    def lost(products: Array, scale: float, bias: Array, visible: Array) -> Array:
        return np.where(visible, bias, -np.inf)

    mask = np.atleast_1d(getattr(f, field))
    for sign, example in ((1, "1 = attend, as (1 - mask) * -1e9 does"), (-1, "1 = blocked, as mask * -1e9 does")):
        with np.errstate(invalid="ignore"):  # of infinities
            large = 1e9 * (
                sign * mask - (sign * mask).max(axis=-1, keepdims=True)
            )  # a constant of a row changes nothing
        what = f"takes the numbers of {argument} as flags, {example}"
        fix = f"add {argument} to the scores, or raise a TypeError for floats"
        for steps in ({}, {"score": lost}):
            yield Mistake(f"{short} read as flags", "scores", what, fix, f.but(**{field: large}, **steps))


def _added_late(f: Formula, argument: str) -> Iterator[Mistake]:
    added: list[Array] = []

    def score(products: Array, scale: float, bias: Array, visible: Array) -> Array:
        added[:] = [bias]
        return products * scale

    def normalize(scores: Array, visible: Array) -> Array:
        return f.steps.normalize(scores, np.ones_like(visible)) + added[0]

    what, fix = f"adds {argument} to the weights", f"add {argument} to the scores"
    yield Mistake("mask after the softmax", "weights", what, fix, f.but(score=score, normalize=normalize))


def _misplaced(f: Formula, mask: Array, field: str, argument: str) -> Iterator[Mistake]:
    """Yield masks along other axes than their own."""
    if field == "attn_mask" and mask.ndim >= 2 and mask.shape[-1] == mask.shape[-2] > 1:
        what, fix = f"takes {argument} with its axes swapped, as (keys, queries)", "index it [query, key]"
        yield Mistake("mask transposed", "scores", what, fix, f.but(attn_mask=mask.mT))
    if f.projections is not None and field == "attn_mask" and mask.ndim == 4 and min(mask.shape[:2]) > 1:
        batch, heads = mask.shape[:2]
        what, fix = "takes attn_mask as (num_heads * N, L, S)", "index it batch * num_heads + head"
        read = mask.reshape(heads, batch, *mask.shape[2:]).swapaxes(0, 1)
        made = mask.swapaxes(0, 1).reshape(mask.shape)
        for other in (read, made):
            yield Mistake("mask of another head", "scores", what, fix, f.but(attn_mask=other))
    if mask.ndim > 2 and len(mask) > 1:
        what, fix = f"gives every batch entry the first one's {argument}", f"broadcast {argument} without indexing it"
        yield Mistake("mask of the first entry", "scores", what, fix, f.but(**{field: mask[:1]}))


TOO_SMALL = (-1e4, -1e3, -100.0, -50.0, -20.0, -10.0, -5.0)
"""What people hide scores with; other scores come near."""


def _in_other_steps(f: Formula) -> Iterator[Mistake]:
    """Yield what is hidden by other means than -inf before the softmax."""

    def over_all(scores: Array, visible: Array) -> Array:
        return f.steps.normalize(scores, np.ones_like(visible))

    def afterwards(scores: Array, visible: Array) -> Array:
        return np.where(visible, over_all(scores, visible), 0.0)

    def filled(fill: float, add: float) -> Any:
        def score(products: Array, scale: float, bias: Array, visible: Array) -> Array:
            scores = products * scale + bias
            return np.where(visible, scores, fill + add * scores)

        return score

    def numbered(products: Array, scale: float, bias: Array, visible: Array) -> Array:
        return products * scale + bias + visible

    for fill in TOO_SMALL:
        for add in (0, 1):
            what = f"hides scores with a number such as {fill:g}, which other scores come near"
            leaky = f.but(score=filled(fill, add), normalize=over_all)
            yield Mistake("mask leaks", "scores", what, "hide them with -inf", leaky)
    what, fix = "sets hidden scores to 0, which the softmax still counts", "set them to -inf"
    yield Mistake("mask multiplied", "scores", what, fix, f.but(score=filled(0.0, 0), normalize=over_all))
    what, fix = "hides weights after the softmax, so that rows no longer sum to 1", "hide scores before it, with -inf"
    yield Mistake("mask after the softmax", "weights", what, fix, f.but(score=filled(0.0, 1), normalize=afterwards))
    what, fix = "adds what is hidden and what is not to the scores as 0 and 1", "add -inf where a key is hidden"
    yield Mistake("mask added as numbers", "scores", what, fix, f.but(score=numbered, normalize=over_all))


# Causal masks, windows, lengths


def _causal(f: Formula) -> Iterator[Mistake]:
    left, right = f.window if isinstance(f.window, tuple) else (f.window, f.window)
    differ = f.lengths[0] != f.lengths[1] or f.key_lengths is not None or f.query_lengths is not None
    corners = {"upper_left": "lower_right", "lower_right": "upper_left"}
    other: Any = corners[f.align or "upper_left"]
    if (f.is_causal or f.window is not None) and differ:
        what = f"aligns queries and keys at the {other.replace('_', ' ')} corner"
        fix = f"here they are aligned at the {(f.align or 'upper_left').replace('_', ' ')} one: say which is meant"
        yield Mistake("causal corner", "scores", what, fix, f.but(align=other))
    if not f.is_causal:
        for align in corners:
            what, fix = "is causal", "leave the causal mask out, or make it an argument, is_causal"
            yield Mistake("causal added", "scores", what, fix, f.but(is_causal=True, align=align))
        return
    fix = "let query i attend to keys 0 to i"
    yield Mistake("causal missing", "scores", "is not causal", "hand is_causal on", f.but(is_causal=False))
    shifts = {-1: "does not let a query attend to its own position", 1: "lets a query attend to the position after its"}
    for shift, what in shifts.items():
        end = shift if right is None else min(shift, right)
        one = f.but(is_causal=False, window=(left, end))
        yield Mistake("causal off by one", "scores", what, fix, one)
    for left in (0, -1):
        back = f.but(is_causal=False, window=(left, None))
        yield Mistake("causal reversed", "scores", "lets a query attend to the positions after its own", fix, back)


def _windows(f: Formula) -> Iterator[Mistake]:
    if f.window is None:
        return
    left, right = f.window if isinstance(f.window, tuple) else (f.window, f.window)
    yield Mistake("window ignored", "scores", "ignores window", "hand window on", f.but(window=None))
    fix = "keys i - left to i + right are visible, both ends included"
    steps = [(a, b) for a in (0, -1, 1) for b in (0, -1, 1) if (a, b) != (0, 0)]
    for a, b in steps:
        if (left is None and a) or (right is None and b):
            continue
        ends = (None if left is None else left + a, None if right is None else right + b)
        what = "takes the ends of the window as excluded" if min(a, b) < 0 else "has a window that is one wider"
        yield Mistake("window off by one", "scores", what, fix, f.but(window=ends))
    if left != right:
        yield Mistake("window reversed", "scores", "swaps left and right", fix, f.but(window=(right, left)))


def _lengths(f: Formula) -> Iterator[Mistake]:
    for name in ("key_lengths", "query_lengths"):
        given = getattr(f, name)
        if given is None:
            continue
        yield Mistake(f"{name} ignored", "scores", f"ignores {name}", f"hand {name} on", f.but(**{name: None}))
        for by in (-1, 1):
            other = f.but(**{name: np.asarray(given) + by})
            what = f"counts one {'less' if by < 0 else 'more'} than {name}"
            yield Mistake(f"{name} off by one", "scores", what, f"positions below {name} are visible", other)

"""Common mistakes in the gradients of attention: one table, used by `check` and `compare`, and the search in it.

A mistake explains wrong gradients if computing it gives the same numbers. To add a mistake, add a row to `HYPOTHESES`
and the function that changes the way back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pyattn.testing.bounds import PRECISIONS, Precision, agree, norm
from pyattn.testing.causes import SLACK, Reason, most_frequent
from pyattn.testing.formula import Affine, Array, Computed, Formula, compute, softmax
from pyattn.testing.gradients import Backward, Forward, Parts, bound_gradients, differentiate, forward_of, sum_to

__all__ = [
    "GradientEvidence",
    "GradientMistake",
    "Row",
    "assemble",
    "explain_gradients",
    "explain_gradients_together",
    "mistakes_in",
]

Variants: TypeAlias = Iterable[tuple[str, dict[str, Any]]]
"""Sentences without a subject, each with the fields of the way back that it changes."""

UNCHANGED = 1e-12
"""Relative difference of two computations of the same formula."""
MAX_MISTAKES = 4
"""How many mistakes one way back is searched for."""


class GradientMistake(NamedTuple):
    """One mistake on one way back."""

    name: str
    what: str
    """A sentence without its subject."""
    fix: str
    backward: Backward
    """The changed way back, which computes the wrong numbers."""


class Hypothesis(NamedTuple):
    """A kind of mistake, with all its variants."""

    name: str
    variants: Callable[[Backward], Variants]
    fix: str
    """May contain {scale}."""


def mistakes_in(backward: Backward) -> Iterator[GradientMistake]:
    """Yield every mistake that can be made on the way back through a formula, common ones first."""
    f = backward.formula
    scale = "" if f.is_linear else f"{f.factor:.4g}"
    for one in HYPOTHESES:
        if not f.is_linear or one.variants in _OF_LAYERS:
            for what, changes in one.variants(backward):
                fix = one.fix.format(scale=scale)
                yield GradientMistake(one.name, what, fix, replace(backward, **changes))


# The scale


def _scales(b: Backward) -> Variants:
    factor = b.formula.factor
    if np.isclose(factor, 1):
        return
    both = ("the gradients of query and key", ("scale_query", "scale_key"))
    alone = (("the gradient of query", ("scale_query",)), ("the gradient of key", ("scale_key",)))
    for where, fields in (both, *alone):
        yield f"leaves the scale out of {where}", dict.fromkeys(fields, 1.0)
        yield f"applies the scale twice to {where}", dict.fromkeys(fields, factor**2)
        yield f"divides {where} by the scale", dict.fromkeys(fields, 1 / (factor or 1))


# The softmax


def _jacobians(b: Backward) -> Variants:
    delta = "leaves delta, the row sums of P * dP, out of the softmax's gradient"
    yield delta, {"softmax": lambda p, grad, delta: p * grad}
    yield (
        "takes the softmax's gradient as P * (1 - P) * dP, that of a sigmoid",
        {"softmax": lambda p, grad, delta: p * (1 - p) * grad},
    )
    yield (
        "takes delta as the mean of P * dP over the keys, not the sum",
        {"delta": lambda p, grad, *_: (p * grad).mean(axis=-1, keepdims=True)},
    )
    yield (
        "takes delta as the sum over the queries, not over the keys",
        {"delta": lambda p, grad, *_: (p * grad).sum(axis=-2, keepdims=True)},
    )
    yield "adds delta in the softmax's gradient", {"softmax": lambda p, grad, delta: p * (grad + delta)}


def _unweighted(b: Backward) -> Variants:
    yield "does not multiply dP - delta by P", {"softmax": lambda p, grad, delta: grad - delta}
    yield "takes dP, the gradient of the weights, as that of the scores", {"softmax": lambda p, grad, delta: grad}


# What is multiplied with what


def _transposed_products(b: Backward) -> Variants:
    f = b.formula
    square = f.lengths[0] == f.lengths[1] and not f.extras
    if not square:
        return
    yield (
        "multiplies P by dO for the gradient of value, where P.T is meant",
        {"of_value": lambda weights, visible, grad: weights @ grad},
    )
    yield (
        "multiplies dS by query for the gradient of key, where dS.T is meant",
        {"of_key": lambda scores, visible, query: scores @ query},
    )
    yield (
        "multiplies dS.T by key for the gradient of query, where dS is meant",
        {"of_query": lambda scores, visible, key: scores.mT @ key},
    )
    yield "returns dO itself as the gradient of value", {"of_value": lambda weights, visible, grad: grad}


def _swapped_operands(b: Backward) -> Variants:
    f = b.formula
    if f.lengths[0] == f.lengths[1] and not f.extras and f.heads == f.kv_heads:
        operands = forward_of(f).plain.operands
        q, k = operands.query, operands.key
        yield (
            "multiplies dS by query, not key, for the gradient of query",
            {"of_query": lambda scores, visible, key: b.of_query(scores, visible, q)},
        )
        yield (
            "multiplies dS.T by key, not query, for the gradient of key",
            {"of_key": lambda scores, visible, query: b.of_key(scores, visible, k)},
        )


def _orders(b: Backward) -> Variants:
    names = ("query", "key", "value")
    for order in ((1, 0, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1)):
        given = tuple(names[n] for n in order)

        def swap(parts: Parts, given: tuple[str, ...] = given) -> Parts:
            return parts | {name: parts[one] for name, one in zip(names, given, strict=True)}

        yield f"returns gradients in the order {', '.join(given)}", {"finish": _then(b, swap)}


def _then(b: Backward, step: Callable[[Parts], Parts]) -> Callable[[Parts], Parts]:
    """Add a last step."""
    return lambda parts: step(b.finish(parts))


# Masks and dropout


def _forgotten_masks(b: Backward) -> Variants:
    """Yield weights that are computed again from fewer masks."""
    f = b.formula
    forms: list[tuple[str, dict[str, Any]]] = [("is_causal", {"is_causal": False})] if f.is_causal else []
    arguments = {"padding": "key_padding_mask"}
    names = ("attn_mask", "padding", "window", "key_lengths", "query_lengths")
    forms += [(arguments.get(name, name), {name: None}) for name in names if getattr(f, name) is not None]
    if len(forms) > 1:
        forms.append(("any mask", {key: x for _, changes in forms for key, x in changes.items()}))
    for argument, changes in forms:
        unmasked = compute(replace(f, drop=None, **changes))

        def normalized(_: Computed, made: Computed = unmasked) -> tuple[Array, Array]:
            return made.weights, made.visible

        def from_lse(c: Computed, made: Computed = unmasked) -> tuple[Array, Array]:
            lse = _log_sum_exp(c.stages["scores"])
            return np.where(np.isfinite(lse), np.exp(made.stages["scores"] - lse), 0), made.visible

        mask = {"is_causal": "the causal mask"}.get(argument, argument)
        what = f"does not apply {mask} on the way back, where it computes the weights again"
        for weigh in (from_lse, normalized):
            for delta in ({}, {"delta": _delta_of_output}):
                yield what, {"weigh": weigh, **delta}


def _delta_of_output(weights: Array, grad_weights: Array, grad: Array, heads: Array) -> Array:
    return np.asarray((grad * heads).sum(axis=-1, keepdims=True))


def _log_sum_exp(scores: Array) -> Array:
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    return np.asarray(np.log(np.exp(scores - shift).sum(axis=-1, keepdims=True)) + shift)


def _dropped(b: Backward) -> Variants:
    drop = b.formula.drop
    if drop is None:
        return
    factor = float(drop.max(initial=0)) or 1.0
    ways = (
        ("leaves dropout's factor 1 / (1 - p) out", lambda x, drop: x * drop / factor),
        ("leaves dropout's mask out, but not its factor,", lambda x, drop: x * factor),
        ("leaves dropout out", lambda x, drop: x),
    )
    for what, step in ways:
        both = {"drop_weights": step, "drop_gradient": step}
        yield f"{what} on the way back", both
        yield f"{what} in the gradient of value", {"drop_weights": step}
        yield f"{what} in dP, the gradient of the weights", {"drop_gradient": step}


def _masks_of_floats(b: Backward) -> Variants:
    f = b.formula
    given = {"attn_mask": f.attn_mask, "padding": f.padding}
    masks = {name: x for name, x in given.items() if x is not None and x.dtype != np.bool_}
    if not masks:
        return
    yield "gives no gradient of the mask", {"of_mask": lambda scores, shape: np.zeros(shape)}
    if not np.isclose(f.factor, 1):
        yield (
            "multiplies the mask's gradient by the scale",
            {"of_mask": lambda scores, shape: f.factor * sum_to(scores, shape)},
        )
        yield (
            "divides the mask's gradient by the scale",
            {"of_mask": lambda scores, shape: sum_to(scores, shape) / (f.factor or 1)},
        )
    yield (
        "does not sum the mask's gradient over the axes that the mask broadcasts",
        {"of_mask": lambda scores, shape: scores},
    )
    yield "takes the mask's gradient of the first entry of each axis that it broadcasts", {"of_mask": _first_of}
    yield (
        "averages the mask's gradient over the axes that it broadcasts, where they are to be summed",
        {"of_mask": lambda scores, shape: sum_to(scores, shape) * np.prod(shape) / max(1, scores.size)},
    )


def _first_of(x: Array, shape: tuple[int, ...]) -> Array:
    """Take the first entry of each axis along which an array of this shape was broadcast."""
    x = x[(0,) * (x.ndim - len(shape))]
    return x[tuple(slice(1 if size == 1 else None) for size in shape)]


def _ignored_lse(b: Backward) -> Variants:
    if b.grad_lse is not None:
        yield "ignores the gradient of lse", {"grad_lse": None}
        yield "subtracts the gradient of lse", {"grad_lse": -b.grad_lse}


# Heads and batches


def _groups(b: Backward) -> Variants:
    of = "the gradients of key and value"
    ways: dict[str, Callable[[Array], Array]] = {
        f"takes {of} of the first head of each group": lambda x: x[..., 0, :, :],
        f"takes {of} of the last head of each group": lambda x: x[..., -1, :, :],
        f"averages {of} over the heads of a group, where they are to be summed": lambda x: x.mean(axis=-3),
        f"does not sum {of} over the heads of a group": lambda x: x,
        f"sums {of} over every kv_heads-th head": _tiled,
    }
    for what, step in ways.items():
        yield what, {"sum_group": step}


def _tiled(x: Array) -> Array:
    """Sum over heads h % kv_heads, as if keys were repeated by numpy.tile."""
    *lead, kv_heads, group, length, dim = x.shape
    return np.asarray(x.reshape(*lead, group, kv_heads, length, dim).sum(axis=-4))


def _averaged(b: Backward) -> Variants:
    output = np.asarray(b.grad_output)
    batch = output.shape[1 if b.formula.length_first else 0] if output.ndim > 2 else 1
    if b.formula.is_linear:
        batch = output.shape[0] if output.ndim > 1 else 1
    sizes = {"batch": batch, "number of outputs": output.size}
    for name, size in sizes.items():
        if size > 1:

            def divide(parts: Parts, size: int = size) -> Parts:
                return {key: x / size for key, x in parts.items()}

            def divide_parameters(parts: Parts, size: int = size) -> Parts:
                return {key: x / size if _is_parameter(key) else x for key, x in parts.items()}

            yield f"divides all gradients by the {name}", {"finish": _then(b, divide)}
            yield f"divides the gradients of parameters by the {name}", {"finish": _then(b, divide_parameters)}


def _is_parameter(part: str) -> bool:
    return "." in part or part.startswith("bias_")


# Layers


def _of_biases(b: Backward) -> Variants:
    for layers, name in _layers(b.formula):
        if any(x.bias is not None for x in layers.values()):
            mean = _only(layers, lambda grad: grad.mean(axis=0), b.of_bias)
            none = _only(layers, lambda grad: np.zeros(grad.shape[1:]), b.of_bias)
            yield f"takes the mean over rows as the gradient of {name('bias')}", {"of_bias": mean}
            yield f"gives no gradient of {name('bias')}", {"of_bias": none}


def _only(layers: Container[str], step: Callable[..., Array], other: Callable[..., Array]) -> Callable[..., Array]:
    """Take a step in some layers, whose name is the last argument, and the other one elsewhere."""
    return lambda *args: step(*args[:-1]) if args[-1] in layers else other(*args)


def _transposed_weights(b: Backward) -> Variants:
    for layers, name in _layers(b.formula):
        what = f"returns the gradient of {name('weight')} transposed, (in_features, out_features)"
        yield what, {"of_weight": _only(layers, lambda grad, x: x.T @ grad, b.of_weight)}


def _untransposed_weights(b: Backward) -> Variants:
    layers = _affines(b.formula)
    if all(x.weight.shape[0] == x.weight.shape[1] for x in layers.values()):
        yield (
            "multiplies by a weight's transpose on the way back, grad @ weight.T",
            {"of_input": lambda grad, weight: grad @ weight.T},
        )


def _affines(f: Formula) -> dict[str, Affine]:
    """Return the layers by the names of their gradients."""
    found = dict(zip(("query", "key", "value"), f.projections or (), strict=False))
    return found if f.out is None else found | {"out": f.out}


def _layers(f: Formula) -> Iterator[tuple[dict[str, Affine], Callable[[str], str]]]:
    """Yield groups of layers, all at first, and a function from 'weight' or 'bias' to the words for theirs."""
    every = _affines(f)
    words = {"weight": "a weight", "bias": "a bias"}
    yield every, words.__getitem__
    if len(every) == 1:
        return
    inner = {name: x for name, x in every.items() if name != "out"}
    if len(inner) < len(every):
        yield inner, lambda kind: f"the {kind} of query, key and value"
    for name, x in every.items():
        owner = "the output projection" if name == "out" else name
        yield {name: x}, lambda kind, owner=owner: f"the {kind} of {owner}"  # type: ignore[misc]


def _missing_parts(b: Backward) -> Variants:
    """Yield gradients of an input that is used several times, without those of one use."""
    f = b.formula
    inputs = dict(zip(("query", "key", "value"), _inputs(f), strict=True))
    for name, x in inputs.items():
        if any(x is other for key, other in inputs.items() if key != name):

            def leave(parts: Parts, name: str = name) -> Parts:
                return parts | {name: np.zeros_like(parts[name])}

            yield f"leaves out what the input's gradient gets as {name}", {"finish": _then(b, leave)}


# The whole


def _starts(b: Backward) -> Variants:
    yield "ignores grad_output, and gives the gradients of output.sum()", {"start": np.ones_like}
    yield "gives gradients of the opposite sign", {"start": lambda grad: -grad, "grad_lse": _negative(b.grad_lse)}
    yield "gives the gradients of output.mean()", {"start": lambda grad: np.ones_like(grad) / max(1, grad.size)}


def _negative(x: Array | None) -> Array | None:
    return None if x is None else -x


def _twice(b: Backward) -> Variants:
    f = b.formula
    if f.is_linear:
        return

    def again(c: Computed) -> tuple[Array, Array]:
        return softmax(np.where(c.visible, c.weights, -np.inf), c.visible), c.visible

    yield "takes the softmax of the weights again on the way back", {"weigh": again}
    yield "takes the scores for the weights on the way back", {"weigh": _scores_for_weights}


def _scores_for_weights(c: Computed) -> tuple[Array, Array]:
    scores = c.stages["scores"]
    return np.where(c.visible, scores, 0), c.visible


def _nothing(b: Backward) -> Variants:
    f = b.formula
    groups: dict[int, list[str]] = {}
    for name, x in (("query", f.query),) if f.is_linear else zip(("query", "key", "value"), _inputs(f), strict=True):
        groups.setdefault(id(x), []).append(name)
    for names in groups.values():

        def none(parts: Parts, names: Iterable[str] = tuple(names)) -> Parts:
            return parts | {name: np.zeros_like(parts[name]) for name in names}

        words = "the input" if f.is_linear or len(names) == 3 else " and ".join(names)
        yield f"gives no gradient of {words}", {"finish": _then(b, none)}


def _inputs(f: Formula) -> tuple[Array, Array, Array]:
    return f.query, f.key, f.value


HYPOTHESES = (
    Hypothesis("gradient scale", _scales, "dQ = scale * dS @ K and dK = scale * dS.T @ Q, with scale = {scale}, once"),
    Hypothesis("delta missing", _jacobians, "dS = P * (dP - delta), with delta = (P * dP).sum(axis=-1, keepdims=True)"),
    Hypothesis("softmax not differentiated", _unweighted, "dS = P * (dP - delta): multiply by the weights"),
    Hypothesis(
        "products transposed", _transposed_products, "dV = P.T @ dO, dQ = scale * dS @ K and dK = scale * dS.T @ Q"
    ),
    Hypothesis("operands swapped", _swapped_operands, "dQ = scale * dS @ K and dK = scale * dS.T @ Q"),
    Hypothesis(
        "dropout on the way back",
        _dropped,
        "use the factors of the way there, M = keep_mask / (1 - p): dV = (P * M).T @ dO and dP = M * (dO @ V.T)",
    ),
    Hypothesis(
        "mask's gradient",
        _masks_of_floats,
        "it is dS, without the scale, summed over the axes that the mask broadcasts",
    ),
    Hypothesis("mask ignored on the way back", _forgotten_masks, "give hidden pairs the weight 0 on the way back, too"),
    Hypothesis(
        "groups not summed", _groups, "sum over all query heads h with the same key head, h // (heads // kv_heads)"
    ),
    Hypothesis("gradient of lse", _ignored_lse, "dS = P * (dP - delta + grad_lse)"),
    Hypothesis("bias not summed", _of_biases, "the gradient of a bias is the sum of its rows: grad.sum(axis=0)"),
    Hypothesis(
        "weight's gradient transposed",
        _transposed_weights,
        "for y = x @ weight.T it is grad.T @ x, (out_features, in_features)",
    ),
    Hypothesis("weight not transposed back", _untransposed_weights, "for y = x @ weight.T, dx = grad @ weight"),
    Hypothesis("averaged over the batch", _averaged, "sum over the batch; divide the loss, if an average is meant"),
    Hypothesis("parts of the input", _missing_parts, "add the gradients of all uses of the input"),
    Hypothesis("gradients swapped", _orders, "return the gradients of query, key and value, in this order"),
    Hypothesis("grad_output ignored", _starts, "start from grad_output, the gradient of the loss by the output"),
    Hypothesis("softmax twice", _twice, "P is the softmax of the scores, once"),
    Hypothesis("no gradient", _nothing, "compute it, and do not detach it from the graph"),
)
_OF_LAYERS = (_of_biases, _transposed_weights, _untransposed_weights, _averaged, _starts, _nothing)


# Rows of a report


class Row(NamedTuple):
    """A gradient in a report, made of parts: their sum, or, stacked, one below the other."""

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, ...] | None = None
    """Where it differs from that of the parts."""
    stacked: bool = False
    transposed: bool = False


def assemble(parts: Mapping[str, Array], rows: Sequence[Row]) -> dict[str, Array]:
    """Make the rows of gradients, or of their bounds."""
    made: dict[str, Array] = {}
    for row in rows:
        found = [parts[name] for name in row.parts]
        whole = np.concatenate(found) if row.stacked else np.asarray(sum(found[1:], found[0]))
        whole = whole.T if row.transposed else whole
        fits = row.shape is not None and whole.size == math.prod(row.shape)
        made[row.name] = whole.reshape(row.shape) if fits else whole
    return made


# The search


class GradientEvidence:
    """Gradients that a side gives, compared with those of its formula."""

    def __init__(
        self, backward: Backward, rows: Sequence[Row], actual: Mapping[str, Array], precision: Precision
    ) -> None:
        self.backward, self.rows, self.actual = backward, rows, actual
        self.forward: Forward = forward_of(backward.formula)
        self.right = self.made(backward)
        self.allowed = self.bounds(precision)
        self.agrees = {name: agree(x, self.right[name], self.allowed[name]) for name, x in actual.items()}

    @property
    def wrong(self) -> list[str]:
        """The names of gradients that differ, in order."""
        return [name for name, agrees in self.agrees.items() if not agrees]

    def made(self, backward: Backward) -> dict[str, Array]:
        """Compute the rows on another way back through the same formula."""
        return assemble(differentiate(backward, self.forward), self.rows)

    def bounds(self, precision: Precision) -> dict[str, Array]:
        """Return bounds for gradients of this precision, including the rounding of the float64 formula."""
        more = 1 + 2.0 ** (precision.bits - PRECISIONS["float64"].bits)
        found = assemble(bound_gradients(self.backward, self.forward, precision), self.rows)
        return {name: more * x for name, x in found.items()}

    def count(self, made: Mapping[str, Array]) -> int:
        """Count the gradients that computed numbers explain."""
        return sum(self._explains(name, made[name]) for name in self.actual)

    def best(self, mistakes: Iterable[GradientMistake], done: Mapping[str, Array]) -> list[GradientMistake]:
        """Return the mistakes with which most of the gradients agree; done are the numbers without one."""
        most = before = self.count(done)
        found: list[GradientMistake] = []
        for one in mistakes:
            with suppress(IndexError, ValueError):  # impossible with these shapes
                count = self.count(self.made(one.backward))
                if count > most:
                    most, found = count, []
                if count == most > before:
                    found.append(one)
        return found

    def _explains(self, name: str, made: Array) -> bool:
        """Whether computed numbers are those of the side: of a wrong gradient, with at most half its error."""
        actual, right, allowed = self.actual[name], self.right[name], self.allowed[name]
        if made.shape != actual.shape or not np.array_equal(np.isfinite(made), np.isfinite(actual)):
            return False
        if right.shape == made.shape and norm(made - right) <= UNCHANGED * norm(right):
            return self.agrees[name]
        # A mistake may give larger numbers than the bounds are for, in places where these are 0.
        size = max(1.0, norm(made) / norm(right)) if norm(right) else 1.0
        close = float(np.abs(actual - made).max(initial=0)) <= SLACK * size * float(allowed.max(initial=0))
        return close and (actual.shape != right.shape or 2 * norm(actual - made) <= norm(actual - right))


class GradientExplanation(NamedTuple):
    """Why gradients are wrong."""

    mistakes: tuple[tuple[str, GradientMistake], ...] = ()
    """Mistakes that together explain them, each with the first gradient that it changes; may be empty."""
    others: tuple[str, ...] = ()
    """Names of other mistakes that give the same numbers as the first one."""
    complete: bool = False


@np.errstate(all="ignore")
def explain_gradients(evidence: GradientEvidence) -> GradientExplanation:
    """Find the mistakes, each found in what the others leave, that give these gradients."""
    found, others = list[tuple[str, GradientMistake]](), tuple[str, ...]()
    backward, made = evidence.backward, evidence.right
    while evidence.count(made) < len(evidence.actual) and len(found) < MAX_MISTAKES:
        best = evidence.best(mistakes_in(backward), made)
        if not best:
            break
        if not found:
            others = tuple(dict.fromkeys(one.name for one in best if one.name != best[0].name))
        backward, before = best[0].backward, made
        made = evidence.made(backward)
        found.append((_first_change(before, made, evidence.actual), best[0]))
    return GradientExplanation(tuple(found), others, evidence.count(made) == len(evidence.actual))


@np.errstate(all="ignore")
def explain_gradients_together(cases: Sequence[GradientEvidence]) -> str | None:
    """Describe the mistake that explains the first case and most of the others, with its fix; None if unknown."""
    cause = most_frequent(cases, _reasons)
    return None if cause is None else f"your backward {cause}"


def _reasons(case: GradientEvidence, only: Container[str] | None) -> list[Reason]:
    tried = (one for one in mistakes_in(case.backward) if only is None or one.name in only)
    return [(one.name, one.what, one.fix) for one in case.best(tried, case.right)]


def _first_change(before: Mapping[str, Array], after: Mapping[str, Array], names: Iterable[str]) -> str:
    def changes(name: str) -> bool:
        one, other = before[name], after[name]
        return one.shape != other.shape or norm(other - one) > UNCHANGED * norm(one)

    return next(filter(changes, names))

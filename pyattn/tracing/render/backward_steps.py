"""The eight steps of a trace backwards, in words and with their gradients, and those of all heads together.

Indices: i query, j key, d feature. The notes compute some numbers of one input and one key, which `_Example` chooses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn.tracing.compute import PROJECTED, Intermediates, as_rows, seen_pairs
from pyattn.tracing.render.steps import TraceStep, make_step, name_input
from pyattn.tracing.render.text import factor_text, number_text, vector_text

__all__ = ["backward_steps", "joint_steps"]

Array = npt.NDArray[np.float64]
_MAX_TERMS = 4  # of a sum in a note
_MAX_LINES = 8  # of a note that has one for each head

_WEIGHTS = {
    "softmax": "delta = sum over the keys of weights * grad_weights\ngrad_scores = weights * (grad_weights - delta)",
    "sigmoid": "grad_scores = weights * (1 - weights) * grad_weights",
    "sparsemax": "delta = mean of grad_weights over the keys whose weight is above 0\n"
    "grad_scores = grad_weights - delta for these keys, 0 for the others",
}
_SCORES = {  # other scores than 'dot'
    "cosine": "cos = (q . k) / (|q| |k|)\n"
    "grad_q = sum over the keys of g * (k / |k| - cos * q / |q|) / |q|\n"
    "grad_k = sum over the queries of g * (q / |q| - cos * k / |k|) / |k|",
    "distance": "grad_q = sum over the keys of -2 g * (q - k)\ngrad_k = sum over the queries of 2 g * (q - k)",
    "bilinear": "grad_q = sum over the keys of g * W k\ngrad_k = sum over the queries of g * q W\n"
    "grad_score_weight = sum over all pairs of g * outer(q, k)",
    "additive": "grad_q = sum over the keys of g * w * (1 - tanh(q + k)^2)\n"
    "grad_k = sum over the queries of g * w * (1 - tanh(q + k)^2)\n"
    "grad_score_weight = sum over all pairs of g * tanh(q + k)",
}


@np.errstate(all="ignore")
def backward_steps(trace: Intermediates, grads: Mapping[str, Array]) -> tuple[TraceStep, ...]:
    """Return the steps from 8 to 1 of a trace and its gradients."""
    example = _choose(trace, grads)
    return (
        _start(trace, grads),
        _sum_backward(trace, example),
        _products_backward(trace, grads, example),
        _weights_backward(trace, grads, example),
        _scores_backward(trace, grads, example),
        *_projections_backward(trace, grads, example),
    )


class _Example(NamedTuple):
    """The query i and the key j of the notes, the gradients in the row convention, and whether i attends to j."""

    i: int
    j: int
    rows: dict[str, Array]
    name: str
    attends: bool


def _choose(trace: Intermediates, grads: Mapping[str, Array]) -> _Example:
    """Choose the first query that attends to two keys or more, else the first of all; and its first key."""
    seen = seen_pairs(trace)
    i = int(np.argmax(seen.sum(axis=1) > 1))
    j = int(np.argmax(seen[i]))
    rows = {name: as_rows(grad, trace.convention) for name, grad in grads.items()}
    return _Example(i, j, rows, name_input(trace, i), bool(seen[i, j]))


def _pick(grads: Mapping[str, Array], *names: str) -> dict[str, Array]:
    return {name: grads[name] for name in names if name in grads}


def _sum_text(factors: Iterable[float], vectors: Array) -> str:
    """Write a sum of numbers times vectors, without the terms whose number is 0."""
    terms = [
        f"{factor_text(factor)} * {vector_text(vector)}"
        for factor, vector in zip(factors, vectors, strict=True)
        if factor
    ]
    return " + ".join(terms[:_MAX_TERMS] + ["..."] * (len(terms) > _MAX_TERMS)) or "0"


def _dot_text(left: Array, right: Array) -> str:
    """Write a sum of products of numbers."""
    terms = [f"{factor_text(a)} * {factor_text(b)}" for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    return " + ".join(terms[:_MAX_TERMS] + ["..."] * (len(terms) > _MAX_TERMS))


def _start(trace: Intermediates, grads: Mapping[str, Array]) -> TraceStep:
    note = (
        "Each number says how fast the loss grows with that number of the outputs.\n"
        "All other gradients follow from these by the chain rule."
    )
    return make_step(trace, 8, "Start from the outputs' gradients", "", _pick(grads, "grad_outputs"), note)


def _sum_backward(trace: Intermediates, example: _Example) -> TraceStep:
    note = (
        f"The output of {name_input(trace, 0)} is the sum of {len(trace.in_rows('keys'))} weighted values.\n"
        f"Each of them has the gradient of that output: {vector_text(example.rows['grad_outputs'][0])}."
    )
    formula = "grad_weighted_values[j] = grad_output, for every key j"
    return make_step(trace, 7, "Back through the sum", formula, {}, note)


def _products_backward(trace: Intermediates, grads: Mapping[str, Array], example: _Example) -> TraceStep:
    i, j, rows, name, attends = example
    formula = "grad_values = weights.T @ grad_outputs\ngrad_weights = grad_outputs @ values.T"
    if trace.convention == "column":
        formula = "grad_values = grad_outputs @ weights.T\ngrad_weights = values.T @ grad_outputs"
    if trace.visible is not None or not attends:
        formula += ", and 0 where masked"
    weights, value, outputs = trace.in_rows("weights"), trace.in_rows("values")[j], rows["grad_outputs"]
    product = f"{vector_text(outputs[i])} . {vector_text(value)}" if attends else "hidden by the mask"
    note = (
        f"value {j + 1}, over all queries: {_sum_text(weights[:, j].tolist(), outputs)} = "
        f"{vector_text(rows['grad_values'][j])}\n"
        f"weight of key {j + 1} for {name}: {product} = {number_text(rows['grad_weights'][i, j])}"
    )
    arrays = _pick(grads, "grad_values", "grad_weights")
    return make_step(trace, 6, "Back through the products: values and weights", formula, arrays, note)


def _weights_backward(trace: Intermediates, grads: Mapping[str, Array], example: _Example) -> TraceStep:
    i, j, rows, name, attends = example
    weights, grad_weights, grad_scores = trace.in_rows("weights")[i], rows["grad_weights"][i], rows["grad_scores"][i]
    weight, grad, result = factor_text(weights[j]), number_text(grad_weights[j]), number_text(grad_scores[j])
    if not attends:
        note = f"{name}: every key is hidden by the mask, and the gradients of its scores are 0."
    elif trace.normalize == "softmax":
        delta = rows["delta"][i, 0]
        line = "row" if trace.convention == "row" else "column"
        note = (
            f"{name}: delta = {_dot_text(weights, grad_weights)} = {number_text(delta)}\n"
            f"key {j + 1}: {weight} * ({grad} - {factor_text(delta)}) = {result}\n"
            f"Each {line} sums to 0: adding one number to all scores of a query does not change its weights."
        )
    elif trace.normalize == "sigmoid":
        note = f"{name}, key {j + 1}: {weight} * (1 - {weight}) * {grad} = {result}"
    else:
        note = (
            f"{name}: {int((weights > 0).sum())} of {len(weights)} weights are above 0, and "
            f"delta = {number_text(rows['delta'][i, 0])}\ngradients of its scores: {vector_text(grad_scores)}"
        )
    arrays = _pick(grads, "delta", "grad_scores", "grad_attn_bias")
    return make_step(trace, 5, f"Back through the {trace.normalize}: scores", _WEIGHTS[trace.normalize], arrays, note)


def _scores_backward(trace: Intermediates, grads: Mapping[str, Array], example: _Example) -> TraceStep:
    i, j, rows, name, _ = example
    arrays = _pick(grads, "grad_queries", "grad_keys", "grad_score_weight")
    if trace.scale != 1:
        arrays |= _pick(grads, "grad_scale")
    grad_query, grad_key = vector_text(rows["grad_queries"][i]), vector_text(rows["grad_keys"][j])
    if trace.score != "dot":
        formula = f"for a query q, a key k and g = scale * grad_score:\n{_SCORES[trace.score]}"
        note = f"query of {name}: {grad_query}\nkey {j + 1}: {grad_key}"
    else:
        factor = "" if trace.scale == 1 else f"{number_text(trace.scale)} * "
        formula = f"grad_queries = {factor}grad_scores @ keys\ngrad_keys = {factor}grad_scores.T @ queries"
        if trace.convention == "column":
            formula = f"grad_queries = {factor}keys @ grad_scores\ngrad_keys = {factor}queries @ grad_scores.T"
        scores = rows["grad_scores"]
        sums = [
            _sum_text(scores[i].tolist(), trace.in_rows("keys")),
            _sum_text(scores[:, j].tolist(), trace.in_rows("queries")),
        ]
        for_query, for_key = sums if trace.scale == 1 else [f"scale * ({terms})" for terms in sums]
        note = f"query of {name}, over all keys: {for_query} = {grad_query}\n"
        note += f"key {j + 1}, over all queries: {for_key} = {grad_key}"
    if trace.scale != 1:
        formula += "\ngrad_scale = sum of grad_scores * scores before scaling"
    return make_step(trace, 4, "Back through the scores: queries and keys", formula, arrays, note)


def _projections_backward(trace: Intermediates, grads: Mapping[str, Array], example: _Example) -> tuple[TraceStep, ...]:
    titles = (
        "Back through the projections: weight matrices",
        "Move the weights against their gradients",
        "Back to the inputs",
    )
    if trace.x is None:
        note = "Not known: this trace starts from queries, keys and values."
        return tuple(make_step(trace, number, titles[3 - number], "", {}, note) for number in (3, 2, 1))
    x, row, lines, descent, paths = trace.in_rows("x"), trace.convention == "row", [], [], []
    for name, plural in PROJECTED:
        extra = len(example.rows[f"grad_{plural}"]) > len(x)  # MultiheadAttention's keys that come from no input
        part = f"grad_{plural}" + (f"[:{len(x)}]" if row else f"[:, :{len(x)}]") * extra
        lines.append(f"grad_w_{name} = " + (f"x.T @ {part}" if row else f"{part} @ x.T"))
        descent.append(f"w_{name} = w_{name} - learning_rate * grad_w_{name}")
        if f"grad_b_{name}" in grads:
            lines.append(f"grad_b_{name} = sum of {part} over the inputs")
            descent.append(f"b_{name} = b_{name} - learning_rate * grad_b_{name}")
        paths.append(f"{part} @ w_{name}.T" if row else f"w_{name}.T @ {part}")
    weights = _pick(grads, *(f"grad_{kind}_{name}" for kind in "wb" for name, _ in PROJECTED))
    about_descent = "A small enough step makes the loss smaller, unless all gradients are 0."
    formulas = "\n".join(lines), "\n".join(descent), f"grad_x = {' + '.join(paths)}"
    return (
        make_step(trace, 3, titles[0], formulas[0], weights, _about_matrices(trace, example)),
        make_step(trace, 2, titles[1], formulas[1], {}, about_descent),
        make_step(trace, 1, titles[2], formulas[2], _pick(grads, "grad_x"), _about_input(trace, example)),
    )


def _about_matrices(trace: Intermediates, example: _Example) -> str:
    x, rows = trace.in_rows("x"), example.rows
    note = (
        f"w_key, from number 1 of x to number 1 of a key: {_dot_text(x[:, 0], rows['grad_keys'][: len(x), 0])} = "
        f"{number_text(rows['grad_w_key'][0, 0])}"
    )
    only_inputs = len(rows["grad_keys"]) == len(x)
    if "grad_b_key" in rows and trace.score == "dot" and trace.normalize == "softmax" and only_inputs:
        note += (
            "\nb_key adds one number to all scores of a query, which does not change its weights: "
            "its gradient is 0, but for rounding."
        )
    return note


def _about_input(trace: Intermediates, example: _Example) -> str:
    i, rows = example.i, example.rows
    shares = [rows[f"grad_{plural}"][i] @ trace.in_rows(f"w_{name}").T for name, plural in PROJECTED]
    return (
        f"The gradient of {example.name} is a sum, as it gives a key, a query and a value: "
        f"{' + '.join(map(vector_text, shares))} = {vector_text(rows['grad_x'][i])}"
    )


# All heads


@np.errstate(all="ignore")
def joint_steps(
    heads: Sequence[tuple[Intermediates, Mapping[str, Array]]],
    grads: Mapping[str, Array],
    forward: Mapping[str, Array],
    num_kv_heads: int,
) -> tuple[TraceStep, ...]:
    """Return the steps of all heads: 10 and 9 before those of each head, 3 and 1 after them."""
    trace = heads[0][0]
    return (
        _projection_backward(trace, grads, forward),
        _concatenation_backward(heads),
        _join_weights(heads, grads, num_kv_heads),
        _add_inputs(heads, grads),
    )


def _projection_backward(trace: Intermediates, grads: Mapping[str, Array], forward: Mapping[str, Array]) -> TraceStep:
    row = trace.convention == "row"
    lines = ["grad_concatenated = " + ("grad_outputs @ w_out.T" if row else "w_out.T @ grad_outputs")]
    lines.append("grad_w_out = " + ("concatenated.T @ grad_outputs" if row else "grad_outputs @ concatenated.T"))
    lines += ["grad_b_out = sum of grad_outputs over the inputs"] * ("grad_b_out" in grads)
    rows = {name: as_rows(array, trace.convention) for name, array in {**grads, **forward}.items()}
    before, after = (vector_text(rows[name][0]) for name in ("grad_outputs", "grad_concatenated"))
    times = f"{before} x W_O^T" if row else f"W_O^T x {before}"
    note = (
        f"{name_input(trace, 0)}: {times} = {after}\n"
        f"w_out, from number 1 of concatenated to number 1 of the outputs: "
        f"{_dot_text(rows['concatenated'][:, 0], rows['grad_outputs'][:, 0])} = {number_text(rows['grad_w_out'][0, 0])}"
    )
    arrays = _pick(grads, "grad_outputs", "grad_w_out", "grad_b_out", "grad_concatenated")
    return make_step(trace, 10, "Back through W_O", "\n".join(lines), arrays, note)


def _concatenation_backward(heads: Sequence[tuple[Intermediates, Mapping[str, Array]]]) -> TraceStep:
    trace, count = heads[0][0], len(heads)
    lines = ["Each head goes on from its own part: the gradient of its outputs."]
    for n, (head, its) in enumerate(heads[:_MAX_LINES], 1):
        lines.append(
            f"head {n}, {name_input(trace, 0)}: {vector_text(as_rows(its['grad_outputs'], head.convention)[0])}"
        )
    lines += [f"... and {count - _MAX_LINES} more"] * (count > _MAX_LINES)
    side = "columns" if trace.convention == "row" else "rows"
    formula = f"grad_outputs of a head = its {side} of grad_concatenated"
    return make_step(trace, 9, "Split the gradient among the heads", formula, {}, "\n".join(lines))


def _join_weights(
    heads: Sequence[tuple[Intermediates, Mapping[str, Array]]], grads: Mapping[str, Array], num_kv_heads: int
) -> TraceStep:
    trace, size = heads[0][0], len(heads) // num_kv_heads
    title = "Join the gradients of the heads' weights"
    if trace.x is None:
        return make_step(trace, 3, title, "", {}, "Not known: the heads start from queries, keys and values.")
    lines = []
    for kind in "wb":
        for name, _ in PROJECTED:
            if f"grad_{kind}_{name}" in grads:
                joined = _joined_text(len(heads), 1 if name == "query" else size, trace.convention == "row")
                lines.append(f"grad_{kind}_{name} = {joined}")
    place = "side by side" if trace.convention == "row" else "on top of each other"
    note = f"A module stores the weights of all heads in one matrix, {place}."
    if size > 1:
        note += f"\n{size} heads share each key and value, so the gradients of their weights add up."
    arrays = _pick(grads, *(f"grad_{kind}_{name}" for kind in "wb" for name, _ in PROJECTED))
    return make_step(trace, 3, title, "\n".join(lines), arrays, note)


def _joined_text(heads: int, size: int, row: bool) -> str:
    """Write the heads' gradients side by side or stacked, each the sum of size heads."""
    sums = [" + ".join(f"head_{n + 1}" for n in range(first, first + size)) for first in range(0, heads, size)]
    if heads > _MAX_LINES:
        sums = [sums[0], "...", sums[-1]] if len(sums) > 1 else [f"head_1 + ... + head_{heads}"]
    return f"Concat({', '.join(sums)})" if row else f"[{'; '.join(sums)}]"


def _add_inputs(heads: Sequence[tuple[Intermediates, Mapping[str, Array]]], grads: Mapping[str, Array]) -> TraceStep:
    trace, title = heads[0][0], "Add the heads' gradients of the inputs"
    if trace.x is None:
        return make_step(trace, 1, title, "", {}, "Not known: the heads start from queries, keys and values.")
    shares = [vector_text(as_rows(its["grad_x"], head.convention)[0]) for head, its in heads[:_MAX_TERMS]]
    terms = " + ".join(shares + ["..."] * (len(heads) > _MAX_TERMS))
    note = f"Every head reads the same inputs.\n{name_input(trace, 0)}: {terms} = "
    note += vector_text(as_rows(grads["grad_x"], trace.convention)[0])
    return make_step(trace, 1, title, "grad_x = sum of grad_x over the heads", _pick(grads, "grad_x"), note)

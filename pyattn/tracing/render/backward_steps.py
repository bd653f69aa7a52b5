"""The eight steps of a trace backwards, in words and with their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from pyattn.tracing.compute import Intermediates, as_rows
from pyattn.tracing.render.steps import TraceStep, make_step, name_input
from pyattn.tracing.render.text import number_text, vector_text

__all__ = ["backward_steps"]

Array = npt.NDArray[np.float64]
_MAX_TERMS = 4  # of a sum in a note

_WEIGHTS = {
    "softmax": "delta = sum over the keys of weights * grad_weights\ngrad_scores = weights * (grad_weights - delta)",
    "sigmoid": "grad_scores = weights * (1 - weights) * grad_weights",
    "sparsemax": "delta = mean of grad_weights over the keys whose weight is above 0\n"
    "grad_scores = grad_weights - delta for these keys, 0 for the others",
}
_SCORES = {  # of other scores than 'dot': a query q, a key k, and g = scale * grad_score
    "cosine": "grad_q = sum over the keys of g * (k / |k| - score * q / |q|) / |q|\n"
    "grad_k = sum over the queries of g * (q / |q| - score * k / |k|) / |k|",
    "distance": "grad_q = sum over the keys of -2 g * (q - k)\ngrad_k = sum over the queries of 2 g * (q - k)",
    "bilinear": "grad_q = sum over the keys of g * W k\ngrad_k = sum over the queries of g * q W\n"
    "grad_score_weight = sum over all pairs of g * outer(q, k)",
    "additive": "grad_q = sum over the keys of g * w * (1 - tanh(q + k)^2)\n"
    "grad_k = sum over the queries of g * w * (1 - tanh(q + k)^2)\n"
    "grad_score_weight = sum over all pairs of g * tanh(q + k)",
}


@np.errstate(all="ignore")
def backward_steps(trace: Intermediates, grads: Mapping[str, Array]) -> tuple[TraceStep, ...]:
    """Return the steps from 8 to 1 of a trace and its gradients; notes give the numbers of the first input."""
    rows = {name: as_rows(grad, trace.convention) for name, grad in grads.items()}
    return (
        _start(trace, grads),
        _through_sum(trace, rows),
        _through_products(trace, grads, rows),
        _through_weights(trace, grads, rows),
        _through_scores(trace, grads, rows),
        *_through_projections(trace, grads, rows),
    )


def _pick(grads: Mapping[str, Array], *names: str) -> dict[str, Array]:
    return {name: grads[name] for name in names if name in grads}


def _sum_text(factors: Iterable[float], vectors: Array) -> str:
    """Write a sum of numbers times vectors, without the terms whose number is 0."""
    terms = [
        f"{_factor(factor)} * {vector_text(vector)}" for factor, vector in zip(factors, vectors, strict=True) if factor
    ]
    return " + ".join(terms[:_MAX_TERMS] + ["..."] * (len(terms) > _MAX_TERMS)) or "nothing"


def _dot_text(left: Array, right: Array) -> str:
    """Write a sum of products of numbers."""
    terms = [f"{_factor(a)} * {_factor(b)}" for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    return " + ".join(terms[:_MAX_TERMS] + ["..."] * (len(terms) > _MAX_TERMS))


def _factor(x: float) -> str:
    return f"({number_text(x)})" if x < 0 else number_text(x)


def _start(trace: Intermediates, grads: Mapping[str, Array]) -> TraceStep:
    note = (
        "Each number says how much the loss grows when that number of the outputs grows by 1, to first order.\n"
        "All other gradients follow from these by the chain rule."
    )
    return make_step(trace, 8, "Start from the outputs' gradients", "", _pick(grads, "grad_outputs"), note)


def _through_sum(trace: Intermediates, rows: Mapping[str, Array]) -> TraceStep:
    count = len(trace.in_rows("keys"))
    note = (
        f"I{name_input(trace, 0)[1:]}: its output is the sum of {count} weighted values, so that each of them "
        f"has the gradient of the output, {vector_text(rows['grad_outputs'][0])}."
    )
    return make_step(
        trace, 7, "Back through the sum", "grad_weighted_values[j] = grad_output, for every key j", {}, note
    )


def _through_products(trace: Intermediates, grads: Mapping[str, Array], rows: Mapping[str, Array]) -> TraceStep:
    formula = "grad_values = weights.T @ grad_outputs\ngrad_weights = grad_outputs @ values.T"
    if trace.convention == "column":
        formula = "grad_values = grad_outputs @ weights.T\ngrad_weights = values.T @ grad_outputs"
    weights, values, outputs = trace.in_rows("weights"), trace.in_rows("values"), rows["grad_outputs"]
    terms = _sum_text(weights[:, 0].tolist(), outputs)
    note = (
        f"value 1, over all queries: {terms} = {vector_text(rows['grad_values'][0])}\n"
        f"weight of key 1 for {name_input(trace, 0)}: {vector_text(outputs[0])} . {vector_text(values[0])} = "
        f"{number_text(rows['grad_weights'][0, 0])}"
    )
    arrays = _pick(grads, "grad_values", "grad_weights")
    return make_step(trace, 6, "Back through the products: values and weights", formula, arrays, note)


def _through_weights(trace: Intermediates, grads: Mapping[str, Array], rows: Mapping[str, Array]) -> TraceStep:
    weights, of_weights, of_scores = trace.in_rows("weights")[0], rows["grad_weights"][0], rows["grad_scores"][0]
    weight, grad = _factor(weights[0]), number_text(of_weights[0])
    lines = []
    if trace.normalize == "softmax":
        delta = number_text(rows["delta"][0, 0])
        lines += [f"{name_input(trace, 0)}: delta = {_dot_text(weights, of_weights)} = {delta}"]
        lines += [f"key 1: {weight} * ({grad} - {_factor(rows['delta'][0, 0])}) = {number_text(of_scores[0])}"]
        line = "row" if trace.convention == "row" else "column"
        lines += [f"Each {line} sums to 0: adding one number to all scores of a query does not change its weights."]
    elif trace.normalize == "sigmoid":
        lines += [f"{name_input(trace, 0)}, key 1: {weight} * (1 - {weight}) * {grad} = {number_text(of_scores[0])}"]
    else:
        above = int((weights > 0).sum())
        lines += [
            f"{name_input(trace, 0)}: {above} of {len(weights)} weights are above 0, "
            f"delta = {number_text(rows['delta'][0, 0])}, gradients {vector_text(of_scores)}"
        ]
    arrays = _pick(grads, "delta", "grad_scores", "grad_attn_bias")
    return make_step(
        trace, 5, f"Back through the {trace.normalize}: scores", _WEIGHTS[trace.normalize], arrays, "\n".join(lines)
    )


def _through_scores(trace: Intermediates, grads: Mapping[str, Array], rows: Mapping[str, Array]) -> TraceStep:
    arrays = _pick(grads, "grad_queries", "grad_keys", "grad_score_weight")
    if trace.scale != 1:
        arrays |= _pick(grads, "grad_scale")
    of_query, of_key = rows["grad_queries"][0], rows["grad_keys"][0]
    if trace.score != "dot":
        formula = _SCORES[trace.score]
        note = f"query 1: {vector_text(of_query)}\nkey 1, over all queries: {vector_text(of_key)}"
    else:
        factor = "" if trace.scale == 1 else f"{number_text(trace.scale)} * "
        formula = f"grad_queries = {factor}grad_scores @ keys\ngrad_keys = {factor}grad_scores.T @ queries"
        if trace.convention == "column":
            formula = f"grad_queries = {factor}keys @ grad_scores\ngrad_keys = {factor}queries @ grad_scores.T"
        scores, times = rows["grad_scores"], "scale * " * (trace.scale != 1)
        sums = (
            _sum_text(scores[0].tolist(), trace.in_rows("keys")),
            _sum_text(scores[:, 0].tolist(), trace.in_rows("queries")),
        )
        for_query, for_key = (f"{times}({terms})" if times else terms for terms in sums)
        note = f"query 1, over all keys: {for_query} = {vector_text(of_query)}\n"
        note += f"key 1, over all queries: {for_key} = {vector_text(of_key)}"
    if trace.scale != 1:
        formula += "\ngrad_scale = sum of grad_scores * scores before scaling"
    return make_step(trace, 4, "Back through the scores: queries and keys", formula, arrays, note)


def _through_projections(
    trace: Intermediates, grads: Mapping[str, Array], rows: Mapping[str, Array]
) -> tuple[TraceStep, ...]:
    titles = "Back through the projections: weight matrices", "What training does with them", "Back to the inputs"
    if trace.x is None:
        note = "Not known: this trace starts from queries, keys and values."
        return tuple(make_step(trace, number, titles[3 - number], "", {}, note) for number in (3, 2, 1))
    row, lines, descent, paths = trace.convention == "row", [], [], []
    names = (("key", "keys"), ("query", "queries"), ("value", "values"))
    for name, plural in names:
        lines.append(f"grad_w_{name} = " + (f"x.T @ grad_{plural}" if row else f"grad_{plural} @ x.T"))
        if f"grad_b_{name}" in grads:
            lines.append(f"grad_b_{name} = sum of grad_{plural} over the inputs")
        descent.append(f"w_{name} = w_{name} - learning_rate * grad_w_{name}")
        paths.append(f"grad_{plural} @ w_{name}.T" if row else f"w_{name}.T @ grad_{plural}")
    x, of_keys = trace.in_rows("x"), rows["grad_keys"]
    weights = _pick(grads, *(f"grad_{kind}_{name}" for kind in "wb" for name, _ in names))
    about_weights = (
        f"w_key, from number 1 of x to number 1 of a key: {_dot_text(x[:, 0], of_keys[: len(x), 0])} = "
        f"{number_text(rows['grad_w_key'][0, 0])}"
    )
    shares = [rows[f"grad_{plural}"][0] @ trace.in_rows(f"w_{name}").T for name, plural in names]
    about_x = (
        f"I{name_input(trace, 0)[1:]} counts three times, as it gives a key, a query and a value: "
        f"{' + '.join(map(vector_text, shares))} = {vector_text(rows['grad_x'][0])}"
    )
    about_descent = "Gradient descent moves each weight against its gradient. A small step makes the loss smaller."
    return (
        make_step(trace, 3, titles[0], "\n".join(lines), weights, about_weights),
        make_step(trace, 2, titles[1], "\n".join(descent), {}, about_descent),
        make_step(trace, 1, titles[2], f"grad_x = {' + '.join(paths)}", _pick(grads, "grad_x"), about_x),
    )

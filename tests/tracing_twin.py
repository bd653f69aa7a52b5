"""A trace as pyattn.plot reads one, computed by NumPy: eight steps of self-attention, each with its arrays."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


def trace_of(x, w_key, w_query, w_value, tokens=None):
    x, w_key, w_query, w_value = (np.asarray(array, float) for array in (x, w_key, w_query, w_value))
    keys, queries, values = x @ w_key, x @ w_query, x @ w_value
    scores = queries @ keys.T
    parts = np.exp(scores - scores.max(-1, keepdims=True))
    weights = parts / parts.sum(-1, keepdims=True)
    weighted = weights[0][:, None] * values
    named = {"x": x, "w_key": w_key, "w_query": w_query, "w_value": w_value, "keys": keys, "queries": queries}
    named |= {"values": values, "scores": scores, "weights": weights, "outputs": weights @ values}

    def step(number, title, formula, note, **arrays):
        return SimpleNamespace(number=number, title=title, formula=formula, note=note, arrays=arrays)

    def of(*names):
        return {name: named[name] for name in names}

    matrices = "keys = x @ w_key\nqueries = x @ w_query\nvalues = x @ w_value"
    steps = [
        step(1, "Prepare inputs", "", f"{len(x)} inputs, one per row.", x=x),
        step(2, "Initialise weights", "", "Small random numbers at first.", **of("w_key", "w_query", "w_value")),
        step(3, "Derive keys, queries and values", matrices, "As many.", **of("keys", "queries", "values")),
        step(4, "Scores for input 1", "scores = queries @ keys.T", "Every key is compared.", scores=scores[:1]),
        step(5, "Softmax of the scores: the weights", "weights[j] = exp(scores[j]) / sum", "", weights=weights[:1]),
        step(6, "Multiply the weights with the values", "", "One row per key.\n" * 9, weighted_values=weighted),
        step(7, "Sum the weighted values: output 1", "output = sum", "The sum.", outputs=weights[:1] @ values),
        step(
            8,
            "Repeat 4 to 7 for the other inputs",
            "outputs = weights @ values",
            "",
            **of("scores", "weights", "outputs"),
        ),
    ]
    return SimpleNamespace(steps=steps, tokens=tokens, convention="row", weighted_values=None, **named)


def draw_trace(count, features=4, tokens=None):
    """Of that many random inputs."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((3, features, features)) / features**0.5
    return trace_of(rng.standard_normal((count, features)), *weights, tokens=tokens)

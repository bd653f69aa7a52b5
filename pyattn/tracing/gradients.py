"""Compute the gradients of traces in float64: the arrays of a `BackwardTrace`, and those of several heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference
from pyattn._util.typing import Convention
from pyattn.tracing.compute import PROJECTED, Intermediates, as_rows, seen_pairs
from pyattn.tracing.inputs import read_matrix

__all__ = ["compute_gradients", "join_gradients", "read_gradient"]

Array = npt.NDArray[np.float64]


def read_gradient(grad_outputs: npt.ArrayLike, features: str, outputs: Array, convention: Convention) -> Array:
    """Read the gradient of outputs, in rows; features names their last axis."""
    given = read_matrix(grad_outputs, "grad_outputs", ("length", features), convention)
    shape = as_rows(given, convention).shape
    if shape != outputs.shape:
        raise ValueError(f"grad_outputs has shape {shape}; it must be {outputs.shape}, the shape of outputs")
    return given


@np.errstate(all="ignore")
def compute_gradients(trace: Intermediates, grad_outputs: npt.ArrayLike) -> dict[str, Any]:
    """Compute all fields of a backward trace but the trace itself."""
    if trace.round_weights is not None:
        raise ValueError(
            f"round_weights is {trace.round_weights}: rounded weights have no gradient; trace without round_weights"
        )
    given = read_gradient(grad_outputs, "v_dim", trace.outputs, trace.convention)
    queries, keys, values, weights = (trace.in_rows(name) for name in ("queries", "keys", "values", "weights"))
    visible = seen_pairs(trace)
    fields: dict[str, Any] = {"grad_outputs": given}
    fields["grad_values"] = reference.weighted_sum(weights.T, visible.T, given)
    fields["grad_weights"] = grad_weights = np.where(visible, given @ values.T, 0)
    grad_scores, delta = _normalize_backward(trace, grad_weights, weights, visible)
    fields |= {"delta": delta, "grad_scores": grad_scores}
    by_scores = reference.scores_backward(
        grad_scores, queries, keys, trace.score, trace.scale, trace.score_weight, visible=visible
    )
    fields |= {"grad_queries": by_scores.query, "grad_keys": by_scores.key}
    fields["grad_attn_bias"] = None if trace.attn_bias is None else grad_scores
    fields |= _projected(trace, {"query": by_scores.query, "key": by_scores.key, "value": fields["grad_values"]})
    for name, array in fields.items():
        if array is not None:
            array.flags.writeable = False
            fields[name] = as_rows(array, trace.convention)
    if by_scores.score_weight is not None:
        by_scores.score_weight.flags.writeable = False
    return fields | {"grad_score_weight": by_scores.score_weight, "grad_scale": float(by_scores.scale)}


def _normalize_backward(
    trace: Intermediates, grad: Array, weights: Array, visible: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Return the gradient of the scores, 0 where masked, and delta."""
    if trace.normalize == "softmax":
        return reference.softmax_backward(grad, weights, visible=visible)
    if trace.normalize == "sigmoid":
        return np.where(visible, weights * (1 - weights) * grad, 0), None
    counted = (weights > 0) | np.isnan(weights)
    delta = np.where(counted, grad * np.sign(weights), 0).sum(axis=1, keepdims=True)
    delta /= np.maximum(counted.sum(axis=1, keepdims=True), 1)
    return np.where(counted & visible, grad - delta, 0), delta


def _projected(trace: Intermediates, grads: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array | None]:
    """Return the gradients of x, weights and biases, in the row convention; None where there are none."""
    fields: dict[str, Array | None] = {"grad_x": None}
    for name, _ in PROJECTED:
        fields[f"grad_w_{name}"] = fields[f"grad_b_{name}"] = None
        if trace.x is None:
            continue
        x = trace.in_rows("x")
        grad = grads[name][: len(x)]  # MultiheadAttention may add keys and values that come from no input
        fields[f"grad_w_{name}"] = x.T @ grad
        if getattr(trace, f"b_{name}") is not None:
            fields[f"grad_b_{name}"] = grad.sum(axis=0, keepdims=True)
        from_here = grad @ trace.in_rows(f"w_{name}").T
        fields["grad_x"] = from_here if fields["grad_x"] is None else fields["grad_x"] + from_here
    return fields


@np.errstate(all="ignore")
def join_gradients(
    heads: Sequence[tuple[Intermediates, Mapping[str, Array]]], num_kv_heads: int
) -> dict[str, Array | None]:
    """Join the gradients of the heads' weights and biases, and add those of their x, in the row convention."""
    size = len(heads) // num_kv_heads
    fields: dict[str, Array | None] = {}
    for name in (*(f"grad_{kind}_{name}" for kind in "wb" for name, _ in PROJECTED), "grad_x"):
        found = [as_rows(grads[name], trace.convention) for trace, grads in heads if name in grads]
        if not found:
            fields[name] = None
            continue
        together = len(heads) if name == "grad_x" else 1 if name.endswith("query") else size
        sums = [sum(found[n + 1 : n + together], start=found[n]) for n in range(0, len(found), together)]
        fields[name] = np.concatenate(sums, axis=1)
    return fields

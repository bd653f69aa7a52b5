"""Gradients of the score functions and of their normalisation.

Shapes: query (L, features), key (S, features), scores (L, S). Indices: i query, j key, d feature.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.typing import Score
from pyattn.reference.attending import weighted_sum
from pyattn.reference.scoring import default_scale, directions, scores

__all__ = ["ScoreGradients", "scores_backward", "softmax_backward"]

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]


class ScoreGradients(NamedTuple):
    """Gradients of the arguments of `scores`, with their shapes.

    Attributes
    ----------
    query, key : ndarray
        As the arguments.
    score_weight : ndarray or None
        None without one.
    scale : ndarray, ()
        Of the scale.
    """

    query: Floats
    key: Floats
    score_weight: Floats | None
    scale: Floats


def softmax_backward(
    grad_weights: npt.ArrayLike,
    weights: npt.ArrayLike,
    *,
    visible: npt.ArrayLike = True,
    dtype: npt.DTypeLike = np.float64,
) -> tuple[Floats, Floats]:
    """Return the gradient of the scores of a softmax over the last axis, and delta.

    ``weights * (grad_weights - delta)`` with ``delta = sum(weights * grad_weights)`` of each row: the product with the
    softmax's Jacobian ``diag(weights) - outer(weights, weights)``.

    Parameters
    ----------
    grad_weights : array_like, (..., S)
        Gradient of the weights.
    weights : array_like, (..., S)
        Results of the softmax.
    visible : array_like of bool
        Broadcasts to (..., S); masked entries do not count, even if they are NaN. Default: True.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    grad_scores : ndarray, (..., S)
        0 where masked.
    delta : ndarray, (..., 1)
    """
    p, grad = (np.where(visible, np.asarray(x).astype(dtype), 0) for x in (weights, grad_weights))
    with np.errstate(all="ignore"):
        delta = np.asarray((p * grad).sum(axis=-1, keepdims=True))
        return np.where(visible, p * (grad - delta), 0), delta


def scores_backward(
    grad_scores: npt.ArrayLike,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    score: Score = "dot",
    scale: float | None = None,
    score_weight: npt.ArrayLike | None = None,
    *,
    visible: npt.ArrayLike = True,
    dtype: npt.DTypeLike = np.float64,
) -> ScoreGradients:
    """Return the gradients of the arguments of `scores`.

    Parameters
    ----------
    grad_scores : array_like, (L, S)
        Gradient of the scaled scores; 0 where a pair is not visible.
    query : array_like, (L, features)
        Queries.
    key : array_like, (S, features)
        Keys.
    score : {"dot", "cosine", "distance", "bilinear", "additive"}
        As in `scores`. Default: "dot".
    scale : float, optional
        As in `scores`. Default: None, `default_scale`.
    score_weight : array_like, optional
        As in `scores`. Default: None.
    visible : array_like of bool
        Broadcasts to (L, S); the query and the key of a masked pair do not count, even if they are NaN. Default: True.
    dtype : dtype_like
        The type of all arithmetic and of the results. Default: float64.

    Returns
    -------
    ScoreGradients
        The cosine score of a zero vector is constant here, so its gradient is 0.
    """
    grad, q, k, w = (np.asarray(0 if x is None else x).astype(dtype) for x in (grad_scores, query, key, score_weight))
    factor = default_scale(score, q.shape[-1], dtype) if scale is None else np.asarray(scale).astype(dtype)
    seen = np.broadcast_to(np.asarray(visible), grad.shape)
    with np.errstate(all="ignore"):
        unscaled = scores(q, k, score, 1.0, None if score_weight is None else w, dtype=dtype)
        grad_scale = np.where(seen, grad * unscaled, 0).sum()
        grad = factor * grad
        if score == "dot":
            return ScoreGradients(weighted_sum(grad, seen, k), weighted_sum(grad.T, seen.T, q), None, grad_scale)
        if score == "bilinear":
            for_query, for_key = weighted_sum(grad, seen, k @ w.T), weighted_sum(grad.T, seen.T, q @ w)
            grad_w = np.where(seen.any(axis=1, keepdims=True), q, 0).T @ weighted_sum(grad, seen, k)
            return ScoreGradients(for_query, for_key, grad_w, grad_scale)
        if score == "cosine":
            for_query, for_key = _cosine_backward(grad, seen, q, k), _cosine_backward(grad.T, seen.T, k, q)
            return ScoreGradients(for_query, for_key, None, grad_scale)
        for_query, for_key, grad_w = np.zeros_like(q), np.zeros_like(k), np.zeros_like(w)
        for d in range(q.shape[-1]):  # one feature at a time: memory is O(L * S)
            if score == "distance":
                slope = -2 * (q[:, np.newaxis, d] - k[np.newaxis, :, d])
                terms = np.where(seen, grad * slope, 0)
                for_query[:, d], for_key[:, d] = terms.sum(axis=1), -terms.sum(axis=0)
            else:
                tanh = np.tanh(q[:, np.newaxis, d] + k[np.newaxis, :, d])
                terms = np.where(seen, grad * w[d] * (1 - tanh * tanh), 0)
                for_query[:, d], for_key[:, d] = terms.sum(axis=1), terms.sum(axis=0)
                grad_w[d] = np.where(seen, grad * tanh, 0).sum()
    return ScoreGradients(for_query, for_key, grad_w if score == "additive" else None, grad_scale)


def _cosine_backward(grad: Floats, visible: Bools, x: Floats, other: Floats) -> Floats:
    """Return the gradient of x: the part of its unit vector's gradient at right angles to x, divided by |x|."""
    unit = directions(x)
    grad_unit = weighted_sum(grad, visible, directions(other))
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)  # whose square may overflow
    length = largest * np.linalg.norm(x / np.where(largest == 0, 1, largest), axis=-1, keepdims=True)
    across = grad_unit - unit * (unit * grad_unit).sum(axis=-1, keepdims=True)
    counts = visible.any(axis=-1, keepdims=True) & (length != 0)
    return np.where(counts, across / np.where(counts, length, 1), 0)

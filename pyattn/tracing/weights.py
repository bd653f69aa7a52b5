"""Weights from scores: softmax, sigmoid, sparsemax, and rounding for calculations on paper.

Shapes: scores and weights (L, S). Indices: i query, j key.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference

__all__ = ["Normalize", "normalize", "round_rows"]

Array = npt.NDArray[np.float64]
Normalize: TypeAlias = Literal["softmax", "sigmoid", "sparsemax"]


def normalize(scores: Array, kind: Normalize) -> Array:
    """Normalize each row of scores, -inf where masked; masked keys get weight 0, even in a row that holds NaN."""
    if kind == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-scores)))
    if kind == "softmax":
        weights = np.asarray(reference.softmax(scores), np.float64)
    else:  # in blocks of rows, as sorting takes several times their memory
        weights = np.concatenate([_sparsemax(scores[i : i + 256]) for i in range(0, len(scores), 256)])
    weights[scores == -np.inf] = 0
    return weights


def _sparsemax(scores: Array) -> Array:
    """Project each row onto the probability simplex (Martins & Astudillo 2016, algorithm 1)."""
    scores = scores - scores.max(axis=-1, keepdims=True)  # changes no weight, and keeps sums of large scores exact
    descending = -np.sort(-scores, axis=-1)
    sums = np.cumsum(descending, axis=-1)
    ranks = np.arange(1, scores.shape[-1] + 1)
    count = np.maximum((1 + ranks * descending > sums).sum(axis=-1, keepdims=True), 1)  # of weights above 0
    threshold = (np.take_along_axis(sums, count - 1, axis=-1) - 1) / count
    return np.asarray(np.maximum(scores - threshold, 0))


def round_rows(weights: Array, decimals: int) -> tuple[Array, float]:
    """Round weights to integers over a power of ten such that each row adds up to its rounded sum."""
    denominator = 10.0**decimals
    numerators = np.empty_like(weights)
    for i, row in enumerate(weights):
        exact = row * denominator
        numerators[i] = floor = np.floor(exact)
        # The largest-remainder method: [0.06, 0.47, 0.47] becomes [0, 0.5, 0.5], not [0.1, 0.5, 0.5].
        missing = int(np.nan_to_num(np.rint(exact.sum()) - floor.sum()))
        numerators[i, np.argsort(floor - exact, kind="stable")[:missing]] += 1  # a tie goes to the earlier key
    return numerators, denominator

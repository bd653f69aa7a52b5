"""What makes weights of scores, by its formulas in float64.

Shapes: scores and weights (L, S), values (S, v_dim). Indices: i query, j key.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference
from pyattn.reference import Score

__all__ = [
    "NORMALISERS",
    "SCORES",
    "Normaliser",
    "Rounded",
    "Score",
    "normalise",
    "round_rows",
    "weighted_sum",
]

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Normaliser = Literal["softmax", "sigmoid", "sparsemax"]

SCORES: tuple[Score, ...] = get_args(Score)
NORMALISERS: tuple[Normaliser, ...] = get_args(Normaliser)


def normalise(scores: Array, kind: Normaliser) -> Array:
    """Turn scores into weights, each query's by itself.

    Parameters
    ----------
    scores : ndarray, (L, S)
        -inf where a key is hidden.
    kind : {'softmax', 'sigmoid', 'sparsemax'}
        'softmax': exp(s_j) / sum_k exp(s_k). 'sigmoid': 1 / (1 + exp(-s_j)), every key by itself. 'sparsemax': the
        probabilities nearest to the scores, max(s_j - tau, 0) with tau such that they sum to 1; many are 0.

    Returns
    -------
    ndarray, (L, S)
        0 where a key is hidden, and in all of a row with nothing to attend to.

    References
    ----------
    Martins & Astudillo, "From Softmax to Sparsemax" (2016), algorithm 1.
    """
    with np.errstate(all="ignore"):
        if kind == "sigmoid":
            return np.asarray(1 / (1 + np.exp(-scores)))
        if kind == "softmax":
            weights = np.asarray(reference.softmax(scores), np.float64)
        else:  # it sorts: some rows at a time, or it would take many times the scores' memory
            weights = np.concatenate([_sparsemax(scores[i : i + 256]) for i in range(0, len(scores), 256)])
    weights[scores == -np.inf] = 0  # in a row that holds NaN, and in one with nothing to attend to
    return weights


def _sparsemax(scores: Array) -> Array:
    """Compute the weights of rows that attend to something."""
    scores = scores - scores.max(axis=-1, keepdims=True)  # changes no weight, and makes sums of large scores exact
    descending = -np.sort(-scores, axis=-1)
    sums = np.cumsum(descending, axis=-1)
    counts = np.arange(1, scores.shape[-1] + 1)
    kept = (1 + counts * descending > sums).sum(axis=-1, keepdims=True)
    threshold = (np.take_along_axis(sums, np.maximum(kept, 1) - 1, axis=-1) - 1) / np.maximum(kept, 1)
    return np.asarray(np.maximum(scores - threshold, 0))


class Rounded(NamedTuple):
    """Weights of few decimals as whole numbers over one denominator, which makes sums of products exact.

    Attributes
    ----------
    numerators : ndarray, (L, S)
        Whole numbers.
    denominator : float
        A power of ten.
    """

    numerators: Array
    denominator: float


def round_rows(weights: Array, decimals: int) -> Rounded:
    """Round weights so that a row's sum is rounded, too, and not the sum of rounding errors.

    All are cut to the decimals, and what the row then lacks goes to those that lost most: [0.06, 0.47, 0.47] becomes
    [0, 0.5, 0.5], not [0.1, 0.5, 0.5].

    Parameters
    ----------
    weights : ndarray, (L, S)
        0 or more.
    decimals : int
        How many are left.

    Returns
    -------
    Rounded
        NaN stays NaN.
    """
    denominator = 10.0**decimals
    numerators = np.empty_like(weights)
    for i, row in enumerate(weights):
        exact = row * denominator
        numerators[i] = cut = np.floor(exact)
        missing = int(np.nan_to_num(np.rint(exact.sum()) - cut.sum()))
        numerators[i, np.argsort(cut - exact, kind="stable")[:missing]] += 1  # a tie goes to the earlier key
    return Rounded(numerators, denominator)


def weighted_sum(weights: Array, values: Array, visible: Bools | None) -> Array:
    """Return the weighted values' sums over keys, without touching a hidden value: 0 * NaN would be NaN.

    Parameters
    ----------
    weights : ndarray, (L, S)
        0 where a key is hidden.
    values : ndarray, (S, v_dim)
        One per row.
    visible : ndarray of bool, (L, S), or None
        Which query attends to which key; None where nothing is hidden.

    Returns
    -------
    ndarray, (L, v_dim)
    """
    everywhere = np.broadcast_to(True, weights.shape) if visible is None else visible
    with np.errstate(all="ignore"):
        return np.asarray(reference.weighted_sum(weights, everywhere, values), np.float64)

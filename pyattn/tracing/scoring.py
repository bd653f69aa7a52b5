"""Scores and their normalisers by their formulas, in float64.

Shapes: queries (L, key_dim), keys (S, key_dim), scores and weights (L, S). Indices: i query, j key, d feature.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn import reference

__all__ = [
    "NORMALISERS",
    "SCORES",
    "Normaliser",
    "Rounded",
    "Score",
    "default_scale",
    "normalise",
    "round_rows",
    "score",
    "weighted_sum",
]

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Score = Literal["dot", "cosine", "distance", "bilinear", "additive"]
Normaliser = Literal["softmax", "sigmoid", "sparsemax"]

SCORES = ("dot", "cosine", "distance", "bilinear", "additive")
NORMALISERS = ("softmax", "sigmoid", "sparsemax")


def default_scale(kind: Score, key_dim: int) -> float:
    """Return what scores of a kind are multiplied by where nothing is said, as in `pyattn.attention`.

    Parameters
    ----------
    kind : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        The score function.
    key_dim : int
        Features of a query and of a key.

    Returns
    -------
    float
        1 for those that no dimension makes larger, or that are learned.
    """
    usual = {"dot": 1 / math.sqrt(key_dim), "distance": 1 / (2 * math.sqrt(key_dim))}
    return usual.get(kind, 1.0)


def score(queries: Array, keys: Array, kind: Score, scale: float, score_weight: Array | None = None) -> Array:
    """Return how well each query goes with each key, before any mask.

    Parameters
    ----------
    queries : ndarray, (L, key_dim)
        One per row.
    keys : ndarray, (S, key_dim)
        One per row. With 'bilinear' their features may be others than the queries'.
    kind : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        The score function.
    scale : float
        What the score is multiplied by.
    score_weight : ndarray, optional
        (q_dim, key_dim) with 'bilinear', (key_dim,) with 'additive'. Default: None, for the others.

    Returns
    -------
    ndarray, (L, S)
        A sum over features is taken one feature at a time where it is no matrix product: memory is O(L * S).
    """
    with np.errstate(all="ignore"):  # what is masked may overflow or be NaN, and is dropped later
        if kind == "cosine":
            return scale * (_directions(queries) @ _directions(keys).T)
        if kind == "distance":
            return 0.0 - scale * _sum_over_features(queries, keys, lambda q, k, d: (q - k) ** 2)  # 0, not -0, for q = k
        if kind == "bilinear":
            assert score_weight is not None
            return scale * (queries @ score_weight @ keys.T)
        if kind == "additive":
            assert score_weight is not None
            w = score_weight
            return scale * _sum_over_features(queries, keys, lambda q, k, d: w[d] * np.tanh(q + k))
        return scale * (queries @ keys.T)


def _directions(x: Array) -> Array:
    """Rows of length 1, and of zeros where there is no direction. The largest entry first: its square may overflow."""
    largest = np.abs(x).max(axis=-1, keepdims=True)
    x = x / np.where(largest == 0, 1, largest)
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.asarray(x / np.where(length == 0, 1, length))


def _sum_over_features(queries: Array, keys: Array, term: Any) -> Array:
    total = np.zeros((len(queries), len(keys)))
    for d in range(queries.shape[-1]):
        total += term(queries[:, d, np.newaxis], keys[:, d], d)
    return total


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
        empty = (scores == -np.inf).all(axis=-1)
        if kind == "softmax":
            weights = np.asarray(reference.softmax(scores), np.float64)
        else:  # it sorts: some rows at a time, or it would take many times the scores' memory
            weights = np.concatenate([_sparsemax(scores[i : i + 256]) for i in range(0, len(scores), 256)])
    weights[empty] = 0
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

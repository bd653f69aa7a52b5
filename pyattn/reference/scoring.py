"""The five score functions.

Shapes: query (..., L, features), key (..., S, features), scores (..., L, S). Indices: i query, j key, d feature.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn._util.typing import Score

__all__ = ["Score", "default_scale", "directions", "scores"]

Floats = npt.NDArray[np.floating[Any]]


def default_scale(score: Score, features: int, dtype: npt.DTypeLike = np.float64) -> Floats:
    """Return the default factor on scores.

    Parameters
    ----------
    score : {"dot", "cosine", "distance", "bilinear", "additive"}
        The score function.
    features : int
        Number of features of a query.
    dtype : dtype_like
        The type of the result. Default: float64.

    Returns
    -------
    ndarray, ()
        1 / sqrt(features) for "dot", half of that for "distance", 1 for the others.
    """
    one = np.ones((), dtype)
    root = np.sqrt(one * max(1, features))
    usual: dict[str, Any] = {"dot": one / root, "distance": one / (2 * root)}
    return np.asarray(usual.get(score, one))


def scores(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    score: Score = "dot",
    scale: float | None = None,
    score_weight: npt.ArrayLike | None = None,
    *,
    dtype: npt.DTypeLike = np.float64,
) -> Floats:
    """Return the scaled scores of all queries and keys, before any mask.

    Parameters
    ----------
    query : array_like, (..., L, features)
        Queries.
    key : array_like, (..., S, features)
        Keys. For "bilinear", their number of features may differ from the queries'.
    score : {"dot", "cosine", "distance", "bilinear", "additive"}
        ``q . k``, ``q . k / (|q| |k|)`` (0 for a zero vector), ``-|q - k|^2``, ``q W k``, or ``w . tanh(q + k)``.
        Default: "dot".
    scale : float, optional
        Multiplies the score. Default: None, `default_scale`.
    score_weight : array_like, optional
        W of "bilinear" or w of "additive"; required for these two. Default: None.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    ndarray, (..., L, S)
        Overflow gives no warning, because a mask may drop such scores.
    """
    q, k, w = (np.asarray(0 if x is None else x).astype(dtype) for x in (query, key, score_weight))
    factor = default_scale(score, q.shape[-1], dtype) if scale is None else np.asarray(scale).astype(dtype)
    with np.errstate(all="ignore"):
        if score == "cosine":
            q, k = directions(q), directions(k)
        if score in ("dot", "cosine", "bilinear"):
            return np.asarray((q @ w if score == "bilinear" else q) @ k.mT * factor)
        total = np.zeros((*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2]), dtype)
        for d in range(q.shape[-1]):  # one feature at a time: memory is O(L * S)
            one_query, one_key = q[..., :, np.newaxis, d], k[..., np.newaxis, :, d]
            if score == "distance":
                total -= (one_query - one_key) ** 2  # from 0: equal vectors score 0, not -0
            else:
                total += w[d] * np.tanh(one_query + one_key)
        return np.asarray(total * factor)


def directions(x: Floats) -> Floats:
    """Normalise rows to length 1, except zeros; first divide by the largest entry, whose square may overflow."""
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)
    x = x / np.where(largest == 0, 1, largest)
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.asarray(x / np.where(length == 0, 1, length))

"""What is done to scores before a token is chosen: penalties, and the warping of sampling, in transformers' order.

Scores are (rows, vocabulary); a token with -inf cannot be chosen. No function writes into what it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pyattn._util.typing import FloatArray
from pyattn.functional._softmax import softmax
from pyattn.functional._topk import top_k as largest_of
from pyattn.generation.protocol import IntArray

__all__ = ["draw_tokens", "forbid", "keep_nucleus", "keep_top_k", "penalise", "warp"]

FIRST_LOOK = 64  # tokens among which a nucleus is looked for at first: it is mostly small


def penalise(scores: FloatArray, seen: Sequence[IntArray], penalty: float) -> FloatArray:
    """Make tokens that a row has already less likely: ``score / penalty``, and ``score * penalty`` below 0.

    Keskar et al. 2019 (CTRL), section 4.1, with the sign seen to as in transformers.

    Parameters
    ----------
    scores : ndarray, (rows, vocabulary)
        Logits or log-probabilities.
    seen : sequence of ndarray of int
        The tokens of each row.
    penalty : float
        More than 0; 1 changes nothing.

    Returns
    -------
    ndarray, (rows, vocabulary)
    """
    if penalty == 1:
        return scores
    result = scores.copy()
    for row, tokens in zip(result, seen, strict=True):
        ids = np.unique(tokens)
        row[ids] = np.where(row[ids] < 0, row[ids] * penalty, row[ids] / penalty)
    return result


def forbid(scores: FloatArray, tokens: Sequence[int]) -> FloatArray:
    """Leave tokens out of the choice.

    Parameters
    ----------
    scores : ndarray, (rows, vocabulary)
        Of any kind.
    tokens : sequence of int
        As an end symbol before its time.

    Returns
    -------
    ndarray, (rows, vocabulary)
    """
    result = scores.copy()
    result[:, list(tokens)] = -np.inf
    return result


def warp(scores: FloatArray, temperature: float, top_k: int | None, top_p: float | None) -> FloatArray:
    """Warp what is sampled from: temperature, then the k likeliest, then the nucleus of those.

    Parameters
    ----------
    scores : ndarray, (rows, vocabulary)
        Logits.
    temperature : float
        Scores are divided by it.
    top_k : int or None
        See `keep_top_k`.
    top_p : float or None
        See `keep_nucleus`.

    Returns
    -------
    ndarray, (rows, vocabulary)
        `pyattn.softmax` of it is the distribution.
    """
    scores = scores if temperature == 1 else _divide(scores, temperature)
    scores = scores if top_k is None else keep_top_k(scores, top_k)
    return scores if top_p is None or top_p == 1 else keep_nucleus(scores, top_p)


def _divide(scores: FloatArray, temperature: float) -> FloatArray:
    """``scores / temperature``; where no float holds that, less the largest, which has all the chance there is."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result: FloatArray = scores / scores.dtype.type(temperature)
        if not np.isfinite(result.max(axis=-1)).all():
            wide = scores.astype(np.float64)
            result = ((wide - wide.max(axis=-1, keepdims=True)) / temperature).astype(scores.dtype)
    return result


def keep_top_k(scores: FloatArray, k: int) -> FloatArray:
    """Keep the k likeliest tokens of each row, and those that are as likely as the last of them (Fan et al. 2018).

    Parameters
    ----------
    scores : ndarray, (rows, vocabulary)
        Logits.
    k : int
        1 or more; with as many as there are tokens, all stay.

    Returns
    -------
    ndarray, (rows, vocabulary)
    """
    least = largest_of(scores, min(k, scores.shape[-1])).values[:, -1:]
    return np.where(scores < least, scores.dtype.type(-np.inf), scores)


def keep_nucleus(scores: FloatArray, p: float) -> FloatArray:
    """Keep the likeliest tokens of each row until they have the probability p together (Holtzman et al. 2020).

    Parameters
    ----------
    scores : ndarray, (rows, vocabulary)
        Logits.
    p : float
        The token that reaches it stays, and so does one at least.

    Returns
    -------
    ndarray, (rows, vocabulary)
    """
    probabilities = softmax(scores)
    size, count = scores.shape[-1], min(FIRST_LOOK, scores.shape[-1])
    while True:
        shares, places = largest_of(probabilities, count)
        together = np.cumsum(shares, axis=-1, dtype=np.float64)
        if count == size or (together[:, -1] >= p).all():
            break
        count = min(8 * count, size)
    kept = together - shares < p  # without itself
    kept[:, 0] = True
    result = np.full_like(scores, -np.inf)
    for row, tokens, keep in zip(range(len(scores)), places, kept, strict=True):
        result[row, tokens[keep]] = scores[row, tokens[keep]]
    return result


def draw_tokens(scores: FloatArray, draws: Sequence[np.random.Generator]) -> IntArray:
    """Draw a token of each row, by one number of its own generator.

    Parameters
    ----------
    scores : ndarray, (rows, vocabulary)
        Warped logits.
    draws : sequence of Generator
        One for each row.

    Returns
    -------
    ndarray of int64, (rows,)
    """
    sums = np.cumsum(softmax(scores), axis=-1, dtype=np.float64)
    tokens = np.empty(len(scores), np.int64)
    for row, (upto, generator) in enumerate(zip(sums, draws, strict=True)):
        place = np.searchsorted(upto, generator.random() * upto[-1], side="right")
        tokens[row] = min(place, np.searchsorted(upto, upto[-1]))  # no token behind the last that has a share
    return tokens

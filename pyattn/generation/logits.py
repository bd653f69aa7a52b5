"""From logits to the next token: penalties, temperature, top-k, top-p and sampling, as transformers orders them.

Scores are (rows, vocabulary); a token of score -inf cannot be chosen. No function writes into its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.typing import FloatArray, IntArray
from pyattn.generation.arguments import Options

__all__ = [
    "apply_penalties",
    "apply_repetition_penalty",
    "filter_top_k",
    "filter_top_p",
    "log_probabilities",
    "sample_tokens",
    "warp_logits",
]

FIRST_TOP_P = 64  # tokens to try first: the set is usually small, so the vocabulary need not be sorted


def log_probabilities(logits: FloatArray, options: Options, step: int) -> FloatArray:
    """Compute the model's log-probabilities; raise ValueError if no token can be chosen by them."""
    vocab_size = logits.shape[-1]
    for token in options.eos_token_ids:
        if token >= vocab_size:
            raise ValueError(f"eos_token_id is {token}, expected 0 <= id < {vocab_size}, the model's vocabulary")
    result = functional.log_softmax(logits)
    wrong = np.isnan(result).any(axis=-1)
    if wrong.any():
        raise ValueError(
            f"the model's logits in step {step}, row {int(np.argmax(wrong))} hold NaN or inf, or are all -inf: no "
            "token can be chosen"
        )
    return result


def apply_penalties(scores: FloatArray, seen: Sequence[IntArray], options: Options, step: int) -> FloatArray:
    """Penalise tokens that a row already contains, and forbid end symbols before min_new_tokens."""
    scores = apply_repetition_penalty(scores, seen, options.repetition_penalty)
    if step < options.min_new_tokens and options.eos_token_ids:
        scores = scores.copy()
        scores[:, list(options.eos_token_ids)] = -np.inf
        if (scores == -np.inf).all(axis=-1).any():
            raise ValueError(
                f"only eos_token_id can be chosen in step {step}, but min_new_tokens is {options.min_new_tokens}"
            )
    return scores


def apply_repetition_penalty(scores: FloatArray, seen: Sequence[IntArray], penalty: float) -> FloatArray:
    """Divide positive scores of seen tokens by the penalty, and multiply negative ones (Keskar et al. 2019)."""
    if penalty == 1:
        return scores
    result = scores.copy()
    for row, tokens in zip(result, seen, strict=True):
        ids = np.unique(tokens)
        row[ids] = np.where(row[ids] < 0, row[ids] * penalty, row[ids] / penalty)
    return result


def warp_logits(logits: FloatArray, temperature: float, top_k: int | None, top_p: float | None) -> FloatArray:
    """Apply temperature, then top-k, then top-p; the softmax of the result is the distribution to sample from."""
    logits = logits if temperature == 1 else _divide(logits, temperature)
    logits = logits if top_k is None else filter_top_k(logits, top_k)
    return logits if top_p is None or top_p == 1 else filter_top_p(logits, top_p)


def _divide(logits: FloatArray, temperature: float) -> FloatArray:
    """Divide logits by the temperature; if that overflows, subtract the maximum first, which softmax ignores."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result: FloatArray = logits / logits.dtype.type(temperature)
        if not np.isfinite(result.max(axis=-1)).all():
            wide = logits.astype(np.float64)
            result = ((wide - wide.max(axis=-1, keepdims=True)) / temperature).astype(logits.dtype)
    return result


def filter_top_k(logits: FloatArray, k: int) -> FloatArray:
    """Set logits below the k-th largest of their row to -inf (Fan et al. 2018)."""
    threshold = functional.topk(logits, min(k, logits.shape[-1])).values[:, -1:]
    return np.where(logits < threshold, logits.dtype.type(-np.inf), logits)


def filter_top_p(logits: FloatArray, p: float) -> FloatArray:
    """Keep the smallest set of most likely tokens whose probability reaches p (Holtzman et al. 2020)."""
    probabilities = functional.softmax(logits)
    vocab_size, count = logits.shape[-1], min(FIRST_TOP_P, logits.shape[-1])
    while True:
        best, tokens = functional.topk(probabilities, count)
        total = np.cumsum(best, axis=-1, dtype=np.float64)
        if count == vocab_size or (total[:, -1] >= p).all():
            break
        count = min(8 * count, vocab_size)
    is_kept = total - best < p  # more likely tokens alone do not reach p
    result = np.full_like(logits, -np.inf)
    for row, (ids, kept) in enumerate(zip(tokens, is_kept, strict=True)):
        result[row, ids[kept]] = logits[row, ids[kept]]
    return result


def sample_tokens(logits: FloatArray, generators: Sequence[np.random.Generator]) -> npt.NDArray[np.int64]:
    """Draw one token per row from the softmax of its logits, with one random number from the row's generator."""
    sums = np.cumsum(functional.softmax(logits), axis=-1, dtype=np.float64)
    tokens = np.empty(len(logits), np.int64)
    for row, (cumulative, generator) in enumerate(zip(sums, generators, strict=True)):
        token = np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right")
        last = np.searchsorted(cumulative, cumulative[-1])  # the last token with a positive probability
        tokens[row] = min(token, last)
    return tokens

"""From what a model gives to what tokens are chosen by; and the sequences that grow of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pyattn._util.typing import FloatArray
from pyattn.functional._softmax import log_softmax
from pyattn.generation.options import Options
from pyattn.generation.protocol import IntArray
from pyattn.generation.warping import forbid, penalise

__all__ = ["Grown", "log_probabilities_of", "process"]


class Grown(NamedTuple):
    """A sequence so far: its new tokens, the sum of their log-probabilities, and the row it was at each step."""

    prompt: IntArray
    tokens: tuple[int, ...] = ()
    score: float = 0.0
    trail: tuple[int, ...] = ()

    def followed_by(self, token: int, score: float, row: int) -> Grown:
        """Make the sequence that has a token more.

        Parameters
        ----------
        token : int
            The token.
        score : float
            Of the whole.
        row : int
            That of the step.

        Returns
        -------
        Grown
        """
        return Grown(self.prompt, (*self.tokens, token), score, (*self.trail, row))

    def whole(self) -> IntArray:
        """Give prompt and new tokens.

        Returns
        -------
        ndarray of int64, (length,)
        """
        return np.concatenate([self.prompt, np.array(self.tokens, np.int64)])


def log_probabilities_of(logits: FloatArray, options: Options, number: int) -> FloatArray:
    """Compute what the model says, and see to it that something can be chosen by it.

    Parameters
    ----------
    logits : ndarray, (rows, vocabulary)
        The model's.
    options : Options
        With the end symbols.
    number : int
        That of the step.

    Returns
    -------
    ndarray, (rows, vocabulary)

    Raises
    ------
    ValueError
        Logits are NaN or infinite, or an end symbol is none of the vocabulary.
    """
    words = logits.shape[-1]
    for token in options.eos_token_ids:
        if token >= words:
            raise ValueError(f"eos_token_id is {token}, expected 0 <= id < {words}: the model gives {words} scores")
    result = log_softmax(logits)
    wrong = np.isnan(result).any(axis=-1)
    if wrong.any():
        raise ValueError(
            f"the model's logits of row {int(np.argmax(wrong))} have NaN or inf among them, or are all -inf, in step "
            f"{number}: no token can be chosen by them"
        )
    return result


def process(scores: FloatArray, seen: Sequence[IntArray], options: Options, number: int) -> FloatArray:
    """Apply penalties: on tokens that a row has already, and on an end before its time.

    Parameters
    ----------
    scores : ndarray, (rows, vocabulary)
        Logits, or, of beams, log-probabilities.
    seen : sequence of ndarray of int
        All tokens of each row.
    options : Options
        What is asked for.
    number : int
        That of the step: how many new tokens there are.

    Returns
    -------
    ndarray, (rows, vocabulary)

    Raises
    ------
    ValueError
        No token is left.
    """
    scores = penalise(scores, seen, options.repetition_penalty)
    if number < options.min_new_tokens and options.eos_token_ids:
        scores = forbid(scores, options.eos_token_ids)
        if (scores == -np.inf).all(axis=-1).any():
            raise ValueError(f"no token but eos_token_id can be chosen, and min_new_tokens is {options.min_new_tokens}")
    return scores

"""What `generate` returns: tokens with their scores, and, step by step, how they came about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import numpy as np

from pyattn._util.arguments import as_count
from pyattn._util.typing import FloatArray
from pyattn._util.vocabulary import Vocabulary, word_of
from pyattn.functional._topk import TopK
from pyattn.generation.protocol import IntArray

__all__ = ["Generation", "GenerationStep", "RowStep"]

SHOWN = 3  # alternatives in a table
WIDEST = 40  # characters of what came before


class GenerationStep(NamedTuple):
    """One step of a whole batch: what rows went into the model, and which tokens follow them.

    A row that has ended takes no part in later steps. Beams are rows; several tokens may follow one of them, or none:
    ``tokens[j]`` follows the row ``parents[j]``.

    Attributes
    ----------
    number : int
        Counted from 0.
    entries : ndarray of int64, (rows,)
        Which sequence of the batch each row belongs to.
    decoder_inputs : list of ndarray of int64
        All tokens of each row so far, the prompt or start symbol first.
    tokens : ndarray of int64, (m,)
        The next tokens.
    parents : ndarray of int64, (m,)
        The row that each of them follows.
    probabilities : ndarray, (m,)
        Of these tokens, as the model gives them: before penalties and warping.
    best : TopK
        The likeliest tokens of each row, (rows, up to 6): `values` are their probabilities, `indices` the tokens.
    self_weights : ndarray, (layers, rows, heads, n, S), or None
        What each new token, of which the first step has whole prompts, gives to those so far.
    cross_weights : ndarray, (layers, rows, heads, n, S_source), or None
        The same of the attention to the source.
    """

    number: int
    entries: IntArray
    decoder_inputs: list[IntArray]
    tokens: IntArray
    parents: IntArray
    probabilities: FloatArray
    best: TopK
    self_weights: FloatArray | None
    cross_weights: FloatArray | None


class RowStep(NamedTuple):
    """One step of one sequence.

    Attributes
    ----------
    number : int
        Counted from 0.
    decoder_input : ndarray of int64, (n,)
        All tokens so far, the prompt or start symbol first.
    token : int
        The next one.
    probability : float
        Of it, as the model gives it.
    alternatives : TopK
        The likeliest other tokens, (up to 5,): `values` are their probabilities, `indices` the tokens.
    self_weights : ndarray, (layers, heads, new, n), or None
        What the new tokens, in the first step the whole prompt, give to those so far.
    cross_weights : ndarray, (layers, heads, new, S_source), or None
        The same of the attention to the source.
    """

    number: int
    decoder_input: IntArray
    token: int
    probability: float
    alternatives: TopK
    self_weights: FloatArray | None
    cross_weights: FloatArray | None


@dataclass(frozen=True, eq=False, repr=False)
class Generation:
    """What `pyattn.generate` returns. With several sequences for each of the batch, they are rows one after the other.

    Parameters
    ----------
    tokens : ndarray of int64, (rows, longest)
        The new tokens, end symbols included, without prompt or start symbol; padding behind.
    lengths : ndarray of int64, (rows,)
        How many there are of each row.
    scores : ndarray of float64, (rows,)
        The sum of the log-probabilities that the model gives to a row's new tokens. Of beams: of what penalties make of
        them, divided by ``length ** length_penalty``.
    prompts : list of ndarray of int64
        What each row's tokens follow: the prompt, or the start symbol.
    source_lengths : ndarray of int64, (rows,), or None
        Of an encoder-decoder.
    trails : list of ndarray of int64
        At each step, the row of the step that became this one.
    steps : list of GenerationStep, or None
        With return_steps.
    """

    tokens: IntArray
    lengths: IntArray
    scores: FloatArray
    prompts: list[IntArray]
    source_lengths: IntArray | None
    trails: list[IntArray]
    steps: list[GenerationStep] | None

    @property
    def sequences(self) -> list[IntArray]:
        """Each row as a whole: prompt or start symbol, and the new tokens."""
        new = (row[:length] for row, length in zip(self.tokens, self.lengths, strict=True))
        return [np.concatenate(both) for both in zip(self.prompts, new, strict=True)]

    def row_steps(self, row: SupportsIndex = 0) -> list[RowStep]:
        """Follow one sequence through the steps.

        Parameters
        ----------
        row : int
            A row of `tokens`. Default: 0.

        Returns
        -------
        list of RowStep
            One for each new token.

        Raises
        ------
        ValueError
            There is no such row, or steps were not kept.
        """
        number = as_count(row, "row", least=0)
        if number >= len(self.tokens):
            raise ValueError(f"row is {number}, expected 0 <= row < {len(self.tokens)}")
        if self.steps is None:
            raise ValueError("steps were not kept; call generate with return_steps=True")
        source = None if self.source_lengths is None else int(self.source_lengths[number])
        tokens = self.tokens[number, : self.lengths[number]].tolist()
        together = zip(self.steps, self.trails[number].tolist(), tokens, strict=False)  # others may take longer
        return [_of_row(step, at, token, source) for step, at, token in together]

    def table(self, row: SupportsIndex = 0, vocabulary: Vocabulary = None) -> str:
        """Write one sequence's steps as a table: what went in, what came out, and what else might have.

        Parameters
        ----------
        row : int
            A row of `tokens`. Default: 0.
        vocabulary : sequence of str or mapping of int to str, optional
            The word of each id. Default: None, ids are written.

        Returns
        -------
        str
            Of a line for each step, and one above them.

        Raises
        ------
        TypeError
            vocabulary is something else.
        ValueError
            There is no such row, steps were not kept, or vocabulary has no word for an id.
        """
        lines = [("step", "decoder input", "next token", "probability", "alternatives")]
        for step in self.row_steps(row):
            before = " ".join(word_of(token, vocabulary) for token in step.decoder_input.tolist())
            others = zip(step.alternatives.indices[:SHOWN].tolist(), step.alternatives.values[:SHOWN], strict=True)
            alternatives = ", ".join(f"{word_of(token, vocabulary)} {share:.4f}" for token, share in others)
            shown = before if len(before) <= WIDEST else "..." + before[3 - WIDEST :]
            word = word_of(step.token, vocabulary)
            lines.append((str(step.number + 1), shown, word, f"{step.probability:.4f}", alternatives))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        right = {0, 3}
        return "\n".join(
            "  ".join(
                cell.rjust(width) if n in right else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )

    def __repr__(self) -> str:
        """In one line."""
        steps = "" if self.steps is None else f", {len(self.steps)} steps"
        return f"Generation({len(self.tokens)} rows, lengths={self.lengths.tolist()}{steps})"

    def __str__(self) -> str:
        """Each row's tokens and score, and the steps of a single row where they were kept."""
        lines = [
            f"row {n}, score {score:.4f}: {' '.join(map(str, row[:length].tolist()))}"
            for n, (row, length, score) in enumerate(zip(self.tokens, self.lengths, self.scores, strict=True))
        ]
        if self.steps is not None and len(lines) == 1:
            lines.append(self.table())
        return "\n".join(lines)


def _of_row(step: GenerationStep, at: int, token: int, source: int | None) -> RowStep:
    """Give what a step has of its row `at`, which the token follows."""
    before = step.decoder_inputs[at]
    (places,) = np.nonzero((step.parents == at) & (step.tokens == token))
    others = step.best.indices[at] != token
    alternatives = TopK(step.best.values[at][others][:5], step.best.indices[at][others][:5])
    new = len(before) if step.number == 0 else 1
    own, cross = step.self_weights, step.cross_weights
    return RowStep(
        step.number,
        before,
        token,
        float(step.probabilities[places[0]]),
        alternatives,
        None if own is None else own[:, at, :, :new, : len(before)],
        None if cross is None else cross[:, at, :, :new, :source],
    )

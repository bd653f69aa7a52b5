"""The result of `generate`: tokens, scores and steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import numpy as np

from pyattn._util.arguments import as_count
from pyattn._util.typing import FloatArray, IntArray
from pyattn._util.vocabulary import Vocabulary, word_of
from pyattn.functional import TopK

__all__ = ["CandidateSequence", "Generation", "GenerationStep", "RowStep"]

ALTERNATIVES = 5  # of a RowStep
ALTERNATIVES_IN_TABLE = 3
WIDTH_OF_INPUT = 40  # characters


class CandidateSequence(NamedTuple):
    """A growing sequence: its prompt, new tokens, their total log-probability, and its row in each step."""

    prompt: IntArray
    tokens: tuple[int, ...] = ()
    score: float = 0.0
    rows: tuple[int, ...] = ()

    def extend(self, token: int, score: float, row: int) -> CandidateSequence:
        """Return the hypothesis with one more token, chosen for this row of the step; score is the new total."""
        return CandidateSequence(self.prompt, (*self.tokens, token), score, (*self.rows, row))

    @property
    def sequence(self) -> IntArray:
        """Prompt and new tokens, (length,)."""
        return np.concatenate([self.prompt, np.array(self.tokens, np.int64)])


class GenerationStep(NamedTuple):
    """One step of the whole batch: the decoder inputs and the chosen tokens.

    Rows that have ended are left out of later steps. In a beam search every beam is a row. Several tokens may follow
    one row, or none: ``tokens[j]`` follows row ``parents[j]``.

    Attributes
    ----------
    number : int
        Number of the step, from 0.
    batch_indices : ndarray of int64, (rows,)
        The batch entry that each row belongs to.
    decoder_inputs : list of ndarray of int64
        All tokens of each row so far, starting with its prompt or start symbol.
    tokens : ndarray of int64, (m,)
        The tokens chosen.
    parents : ndarray of int64, (m,)
        The row that each token follows.
    probabilities : ndarray, (m,)
        The model's probability of each token, before penalties, temperature, top_k and top_p.
    best : TopK
        The most likely tokens of each row, (rows, up to 6): `values` are probabilities, `indices` are token ids.
    self_weights : ndarray, (layers, rows, heads, n, S), or None
        Self-attention weights of the n tokens that are new in this step (in the first step whole prompts) over the S
        tokens so far; None if the model returns none.
    cross_weights : ndarray, (layers, rows, heads, n, S_source), or None
        Weights of the same tokens over the source of an encoder-decoder.

    Examples
    --------
    >>> import pyattn
    >>> from pyattn import nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, rng=0).eval()
    >>> generation = pyattn.generate(model, [[3, 1, 4]], max_new_tokens=2, return_steps=True)
    >>> step = generation.steps[0]
    >>> step.number, step.decoder_inputs, step.tokens.shape, step.best.indices.shape
    (0, [array([3, 1, 4])], (1,), (1, 6))
    """

    number: int
    batch_indices: IntArray
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
        Number of the step, from 0.
    decoder_input : ndarray of int64, (n,)
        All tokens so far, starting with the prompt or start symbol.
    token : int
        The token chosen.
    probability : float
        The model's probability of this token, before penalties, temperature, top_k and top_p.
    alternatives : TopK
        The most likely other tokens, (up to 5,): `values` are probabilities, `indices` are token ids.
    self_weights : ndarray, (layers, heads, new, n), or None
        Self-attention weights of the tokens that are new in this step (in the first step the whole prompt) over all
        tokens so far; None if the model returns none.
    cross_weights : ndarray, (layers, heads, new, S_source), or None
        Weights of the same tokens over the source of an encoder-decoder.
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
    """The result of `pyattn.generate`.

    With num_return_sequences, each batch entry has several rows in succession.

    Parameters
    ----------
    tokens : ndarray of int64, (rows, longest)
        The new tokens with their end symbol, without the prompt, padded on the right.
    lengths : ndarray of int64, (rows,)
        Number of new tokens in each row.
    scores : ndarray of float64, (rows,)
        Sum of the log-probabilities of a row's new tokens. In a beam search, penalties are applied to them, and the
        sum is divided by ``length ** length_penalty``.
    prompts : list of ndarray of int64
        The tokens that each row continues: its prompt, or the start symbol.
    source_lengths : ndarray of int64, (rows,), or None
        Number of tokens in the source of each row; None without an encoder.
    beam_indices : list of ndarray of int64, (number of new tokens,)
        For each row, the index of its row in each `GenerationStep`.
    steps : list of GenerationStep, or None
        All steps; None without return_steps.
    do_sample : bool
        Whether the tokens were drawn at random. Default: False.

    Examples
    --------
    >>> import pyattn
    >>> from pyattn import nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, rng=0).eval()
    >>> generation = pyattn.generate(model, [[3, 1, 4]], max_new_tokens=2)
    >>> generation.tokens.shape
    (1, 2)
    >>> generation.sequences[0][:3]
    array([3, 1, 4])
    """

    tokens: IntArray
    lengths: IntArray
    scores: FloatArray
    prompts: list[IntArray]
    source_lengths: IntArray | None
    beam_indices: list[IntArray]
    steps: list[GenerationStep] | None
    do_sample: bool = False

    @property
    def sequences(self) -> list[IntArray]:
        """Each row as a whole: its prompt or start symbol, then its new tokens."""
        new = (row[:length] for row, length in zip(self.tokens, self.lengths, strict=True))
        return [np.concatenate(both) for both in zip(self.prompts, new, strict=True)]

    def row_steps(self, row: SupportsIndex = 0) -> list[RowStep]:
        """Return the steps of one sequence.

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
            The row is out of range, or generate was called without return_steps.
        """
        index = as_count(row, "row", least=0)
        if index >= len(self.tokens):
            raise ValueError(f"row is {index}, expected 0 <= row < {len(self.tokens)}")
        if self.steps is None:
            raise ValueError("steps were not recorded; call generate with return_steps=True")
        source_length = None if self.source_lengths is None else int(self.source_lengths[index])
        tokens, rows = self.tokens[index, : self.lengths[index]].tolist(), self.beam_indices[index].tolist()
        # strict=False: other sequences may have more steps.
        return [_row_step(*each, source_length) for each in zip(self.steps, rows, tokens, strict=False)]

    def table(self, row: SupportsIndex = 0, vocabulary: Vocabulary = None) -> str:
        """Format one sequence's steps as a table.

        The columns are decoder input, next token, its probability, and alternatives.

        Parameters
        ----------
        row : int
            A row of `tokens`. Default: 0.
        vocabulary : sequence of str or mapping of int to str, optional
            The word of each id. Default: None, ids are printed.

        Returns
        -------
        str
            A heading and one line for each step.

        Raises
        ------
        TypeError
            vocabulary is neither a sequence nor a mapping.
        ValueError
            The row is out of range, generate was called without return_steps, or vocabulary has no word for an id.
        """
        lines = [("step", "decoder input", "next token", "probability", "alternatives")]
        for step in self.row_steps(row):
            tokens = step.alternatives.indices[:ALTERNATIVES_IN_TABLE].tolist()
            shares = step.alternatives.values[:ALTERNATIVES_IN_TABLE].tolist()
            others = [f"{word_of(token, vocabulary)} {p:.4f}" for token, p in zip(tokens, shares, strict=True)]
            before = " ".join(word_of(token, vocabulary) for token in step.decoder_input.tolist())
            before = before if len(before) <= WIDTH_OF_INPUT else "..." + before[3 - WIDTH_OF_INPUT :]
            word = word_of(step.token, vocabulary)
            lines.append((str(step.number + 1), before, word, f"{step.probability:.4f}", ", ".join(others)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligns = ">", "<", "<", ">", "<"
        rows = (
            "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, aligns, widths, strict=True))
            for line in lines
        )
        return "\n".join(line.rstrip() for line in rows)

    def __repr__(self) -> str:
        """Summarise in one line."""
        steps = "" if self.steps is None else f", {len(self.steps)} steps"
        return f"Generation({len(self.tokens)} rows, lengths={self.lengths.tolist()}{steps})"

    def __str__(self) -> str:
        """List each row's tokens and score, and the table of a single row if its steps were recorded."""
        lines = [
            f"row {n}, score {score:.4f}: {' '.join(map(str, row[:length].tolist()))}"
            for n, (row, length, score) in enumerate(zip(self.tokens, self.lengths, self.scores, strict=True))
        ]
        if self.steps is not None and len(lines) == 1:
            lines.append(self.table())
        return "\n".join(lines)


def _row_step(step: GenerationStep, row: int, token: int, source_length: int | None) -> RowStep:
    """Make the RowStep of one row of a step, given the chosen token."""
    decoder_input = step.decoder_inputs[row]
    (places,) = np.nonzero((step.parents == row) & (step.tokens == token))
    others = step.best.indices[row] != token
    alternatives = TopK(*(x[row][others][:ALTERNATIVES] for x in step.best))
    new = len(decoder_input) if step.number == 0 else 1
    own, cross = step.self_weights, step.cross_weights
    return RowStep(
        number=step.number,
        decoder_input=decoder_input,
        token=token,
        probability=float(step.probabilities[places[0]]),
        alternatives=alternatives,
        self_weights=None if own is None else own[:, row, :, :new, : len(decoder_input)],
        cross_weights=None if cross is None else cross[:, row, :, :new, :source_length],
    )

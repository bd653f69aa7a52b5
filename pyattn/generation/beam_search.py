"""Beam search with the same steps as in transformers.

Each step extends every beam by every token, and ranks the best ``2 * num_beams`` continuations of a batch entry. Among
the first num_beams of these, the ones that end become finished hypotheses, of which the num_beams best are kept; their
scores are divided by ``length ** length_penalty``. The first num_beams that do not end are the beams of the next step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import pyattn.functional as functional
from pyattn._util.typing import FloatArray, IntArray
from pyattn.generation.arguments import Options
from pyattn.generation.callbacks import StepRecorder
from pyattn.generation.decoding import Decoding
from pyattn.generation.logits import apply_penalties, log_probabilities
from pyattn.generation.result import CandidateSequence
from pyattn.generation.sequences import pad_sequences

__all__ = ["beam_search"]


class _Candidate(NamedTuple):
    """A beam extended by one token; row is the beam's row in the decoding state."""

    hypothesis: CandidateSequence
    row: int
    ends: bool


class _Entry:
    """One batch entry: its running beams and its finished hypotheses, both with the best first."""

    def __init__(self, prompt: IntArray, options: Options) -> None:
        self.options = options
        self.running = [CandidateSequence(prompt)]
        self.finished: list[CandidateSequence] = []  # with their final scores

    def candidates(self, log_probs: FloatArray, first_row: int, number: int) -> list[_Candidate]:
        """Find the best continuations of all beams; first_row is the row of the first beam in the decoding state."""
        options, vocab_size = self.options, log_probs.shape[-1]
        totals = log_probs.astype(np.float64) + np.array([[beam.score] for beam in self.running])
        count = max(2, 1 + len(options.eos_token_ids)) * options.num_beams
        scores, places = functional.topk(totals.reshape(-1), min(count, totals.size))
        found = []
        for score, place in zip(scores.tolist(), places.tolist(), strict=True):
            beam, token = divmod(place, vocab_size)
            if score == -np.inf:
                continue
            ends = token in options.eos_token_ids or number + 1 == options.max_new_tokens
            row = first_row + beam
            found.append(_Candidate(self.running[beam].extend(token, score, row), row, ends))
        return found

    def advance(self, candidates: list[_Candidate]) -> tuple[list[_Candidate], list[_Candidate]]:
        """Finish the candidates that end, continue with the others, and return both lists."""
        num_beams = self.options.num_beams
        ending = [one for one in candidates[:num_beams] if one.ends]
        self.finish([one.hypothesis for one in ending])
        going_on = [one for one in candidates if not one.ends][:num_beams]
        self.running = [one.hypothesis for one in going_on]
        return ending, going_on if self._may_improve() else []

    def finish(self, hypotheses: list[CandidateSequence]) -> None:
        """Add finished hypotheses, and keep the best num_beams."""
        penalty = self.options.length_penalty
        ranked = [one._replace(score=one.score / len(one.tokens) ** penalty) for one in hypotheses]
        self.finished = sorted([*self.finished, *ranked], key=lambda one: -one.score)[: self.options.num_beams]

    def _may_improve(self) -> bool:
        """Whether a running beam may still beat the worst of the finished hypotheses."""
        options = self.options
        if not self.running or len(self.finished) < options.num_beams:
            return bool(self.running)
        if options.early_stopping is True:
            return False
        at_full_length = options.early_stopping == "never" and options.length_penalty > 0
        length = options.max_new_tokens if at_full_length else len(self.running[0].tokens)
        return bool(self.running[0].score / length**options.length_penalty > self.finished[-1].score)


def beam_search(
    state: Decoding, prompts: list[IntArray], options: Options, recorder: StepRecorder
) -> list[CandidateSequence]:
    """Find the num_return_sequences best hypotheses of each prompt, best first, with a new `state`."""
    entries = [_Entry(prompt, options) for prompt in prompts]
    active = list(range(len(entries)))  # entries that still have beams
    ids, lengths = pad_sequences(prompts)
    for number in range(options.max_new_tokens):
        step = state.step(ids, lengths)
        beams = [beam for n in active for beam in entries[n].running]
        batch_indices = np.repeat(active, [len(entries[n].running) for n in active])
        needs_inputs = recorder.needs_steps or options.repetition_penalty != 1
        inputs = [beam.sequence for beam in beams] if needs_inputs else []
        log_probs = log_probabilities(step.logits, options, number)
        scores = apply_penalties(log_probs, inputs, options, number)
        going_on, chosen = _advance(entries, active, scores, number)
        tokens = np.array([one.hypothesis.tokens[-1] for one in chosen], np.int64)
        parents = np.array([one.row for one in chosen], np.int64)
        if recorder.record(number, step, log_probs, batch_indices, inputs, tokens, parents):
            # The callback stops the search: running beams count as finished.
            for n in {n for n, _ in going_on}:
                entries[n].finish(entries[n].running)
            break
        if not going_on:
            break
        state.reorder(np.array([one.row for _, one in going_on]))
        active = sorted({n for n, _ in going_on})
        ids = np.array([[one.hypothesis.tokens[-1]] for _, one in going_on])
        lengths = np.ones(len(going_on), np.int64)
    # Prompts with too few hypotheses get ones without tokens.
    missing = [CandidateSequence(np.zeros(0, np.int64), score=-np.inf)] * options.num_return_sequences
    return [
        one._replace(prompt=prompt)
        for entry, prompt in zip(entries, prompts, strict=True)
        for one in [*entry.finished, *missing][: options.num_return_sequences]
    ]


def _advance(
    entries: list[_Entry], active: list[int], scores: FloatArray, number: int
) -> tuple[list[tuple[int, _Candidate]], list[_Candidate]]:
    """Advance the active entries; return the candidates that go on, with their entries, and all that were chosen."""
    going_on: list[tuple[int, _Candidate]] = []
    chosen: list[_Candidate] = []  # may stay empty
    first_row = 0
    for n in active:
        rows = slice(first_row, first_row + len(entries[n].running))
        ending, others = entries[n].advance(entries[n].candidates(scores[rows], first_row, number))
        going_on += [(n, one) for one in others]
        chosen += [*ending, *others]
        first_row = rows.stop
    return going_on, chosen

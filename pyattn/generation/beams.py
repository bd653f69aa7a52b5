"""Beam search: the best few sequences at once, as transformers searches.

At each step every beam is continued with every token, and the best ``2 * num_beams`` of a sequence of the batch are
looked at. Those among the first num_beams of them that end are kept if their score, divided by ``length **
length_penalty``, is among the best; the first num_beams that do not end go on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyattn._util.typing import FloatArray
from pyattn.functional._topk import top_k
from pyattn.generation.options import Options
from pyattn.generation.protocol import Decoding, IntArray
from pyattn.generation.scoring import Grown, log_probabilities_of, process
from pyattn.generation.sequences import pad_sequences
from pyattn.generation.watching import Continuations, Watch

__all__ = ["search_beams"]


class _Candidate(NamedTuple):
    """A beam's continuation."""

    grown: Grown
    row: int
    ends: bool


class _Entry:
    """One sequence of the batch: the beams that go on, and what has ended, the best first."""

    def __init__(self, prompt: IntArray, options: Options) -> None:
        self.options = options
        self.running = [Grown(prompt)]
        self.ended: list[Grown] = []  # with their final scores

    def candidates(self, scores: FloatArray, first: int, number: int) -> list[_Candidate]:
        """Find the best continuations of all beams; their rows are from `first` on."""
        options, words = self.options, scores.shape[-1]
        totals = scores.astype(np.float64) + np.array([[beam.score] for beam in self.running])
        looked_at = max(2, 1 + len(options.eos_token_ids)) * options.num_beams
        values, places = top_k(totals.reshape(-1), min(looked_at, totals.size))
        found = []
        for value, place in zip(values.tolist(), places.tolist(), strict=True):
            beam, token = divmod(place, words)
            if value == -np.inf:
                continue
            ends = token in options.eos_token_ids or number + 1 == options.max_new_tokens
            found.append(_Candidate(self.running[beam].followed_by(token, value, first + beam), first + beam, ends))
        return found

    def advance(self, candidates: list[_Candidate]) -> tuple[list[_Candidate], list[_Candidate]]:
        """Keep what ends, and go on with the rest: those that end and may count, and those that go on."""
        beams = self.options.num_beams
        ending = [one for one in candidates[:beams] if one.ends]
        self.end([one.grown for one in ending])
        going = [one for one in candidates if not one.ends][:beams]
        self.running = [one.grown for one in going]
        return ending, going if self._may_improve() else []

    def end(self, grown: list[Grown]) -> None:
        """Keep the best of what has ended so far, and now."""
        ranked = [one._replace(score=one.score / len(one.tokens) ** self.options.length_penalty) for one in grown]
        self.ended = sorted([*self.ended, *ranked], key=lambda one: -one.score)[: self.options.num_beams]

    def _may_improve(self) -> bool:
        """Whether a beam that goes on may still be better than the last that has ended."""
        options = self.options
        if not self.running or len(self.ended) < options.num_beams:
            return bool(self.running)
        if options.early_stopping is True:
            return False
        longest = options.early_stopping == "never" and options.length_penalty > 0
        length = options.max_new_tokens if longest else len(self.running[0].tokens)
        return bool(self.running[0].score / length**options.length_penalty > self.ended[-1].score)


def search_beams(state: Decoding, prompts: list[IntArray], options: Options, watch: Watch) -> list[Grown]:
    """Generate until no beam can be better than those that have ended.

    Parameters
    ----------
    state : Decoding
        Without any tokens.
    prompts : list of ndarray of int
        One for each sequence of the batch.
    options : Options
        With num_beams and how they are ranked.
    watch : Watch
        Sees each step, and may stop: then beams that have not ended count as they are.

    Returns
    -------
    list of Grown
        The best num_return_sequences for each prompt, the best first; where there are not so many sequences, some have
        no tokens, and the score -inf.
    """
    entries = [_Entry(prompt, options) for prompt in prompts]
    live = list(range(len(entries)))  # those whose beams go on
    ids, lengths = pad_sequences(prompts)
    for number in range(options.max_new_tokens):
        step = state.step(ids, lengths)
        beams = [beam for n in live for beam in entries[n].running]
        owners = np.repeat(live, [len(entries[n].running) for n in live])
        inputs = [beam.whole() for beam in beams] if watch.looks or options.repetition_penalty != 1 else []
        log_probabilities = log_probabilities_of(step.logits, options, number)
        scores = process(log_probabilities, inputs, options, number)

        going, shown, first = [], [], 0
        for n in live:
            rows = slice(first, first + len(entries[n].running))
            ending, onward = entries[n].advance(entries[n].candidates(scores[rows], first, number))
            going += [(n, one) for one in onward]
            shown += [*ending, *onward]
            first = rows.stop
        tokens, parents = [one.grown.tokens[-1] for one in shown], [one.row for one in shown]  # there may be none
        chosen = Continuations(np.array(tokens, np.int64), np.array(parents, np.int64))
        if watch.see(number, step, log_probabilities, owners, inputs, chosen):
            for n in {n for n, _ in going}:
                entries[n].end(entries[n].running)
            break
        if not going:
            break
        state.reorder(np.array([one.row for _, one in going]))
        live = sorted({n for n, _ in going})
        ids, lengths = np.array([[one.grown.tokens[-1]] for _, one in going]), np.ones(len(going), np.int64)
    missing = [Grown(np.zeros(0, np.int64), score=-np.inf)] * options.num_return_sequences
    return [
        one._replace(prompt=entry_prompt)
        for entry, entry_prompt in zip(entries, prompts, strict=True)
        for one in [*entry.ended, *missing][: options.num_return_sequences]
    ]

"""Greedy search and sampling: each step chooses or draws one token per row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.typing import FloatArray, IntArray
from pyattn.generation.arguments import Options
from pyattn.generation.callbacks import StepRecorder
from pyattn.generation.decoding import Decoding
from pyattn.generation.logits import apply_penalties, log_probabilities, sample_tokens, warp_logits
from pyattn.generation.result import CandidateSequence
from pyattn.generation.sequences import pad_sequences

__all__ = ["sample"]


def sample(
    state: Decoding, prompts: list[IntArray], options: Options, seed: int, recorder: StepRecorder
) -> list[CandidateSequence]:
    """Extend num_return_sequences hypotheses of each prompt until all have ended; state must be new."""
    batch_indices = np.repeat(np.arange(len(prompts)), options.num_return_sequences)
    hypotheses = [CandidateSequence(prompts[n]) for n in batch_indices]
    generators = _make_generators(seed, len(hypotheses)) if options.do_sample else []
    # The state has one row per prompt in the first step, and one per active hypothesis in later steps. active[i] is the
    # index of a hypothesis, parents[i] the state's row that it continues, rows[r] a hypothesis that continues row r.
    active: IntArray = np.arange(len(hypotheses))
    parents: IntArray = batch_indices
    rows = [int(np.argmax(batch_indices == n)) for n in range(len(prompts))]
    ids, lengths = pad_sequences(prompts)
    for number in range(options.max_new_tokens):
        step = state.step(ids, lengths)
        needs_inputs = recorder.needs_steps or options.repetition_penalty != 1
        inputs = [hypotheses[n].sequence for n in rows] if needs_inputs else []
        log_probs = log_probabilities(step.logits, options, number)
        scores = apply_penalties(step.logits, inputs, options, number)
        tokens = _choose(scores, parents, options, [generators[n] for n in active] if generators else [])

        for n, row, token in zip(active.tolist(), parents.tolist(), tokens.tolist(), strict=True):
            score = hypotheses[n].score + float(log_probs[row, token])
            hypotheses[n] = hypotheses[n].extend(token, score, row)
        stop = recorder.record(number, step, log_probs, batch_indices[rows], inputs, tokens, parents)
        going_on = ~np.isin(tokens, options.eos_token_ids)
        if stop or not going_on.any() or number + 1 == options.max_new_tokens:
            break
        if not np.array_equal(parents[going_on], np.arange(len(step.logits))):
            state.reorder(parents[going_on])
        active, rows = active[going_on], active[going_on].tolist()
        parents = np.arange(len(active))
        ids, lengths = tokens[going_on, np.newaxis], np.ones(len(active), np.int64)
    return hypotheses


def _make_generators(seed: int, count: int) -> list[np.random.Generator]:
    """Make a random generator for each hypothesis, so that its draws do not depend on the others."""
    return [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n,))) for n in range(count)]


def _choose(
    scores: FloatArray, parents: IntArray, options: Options, generators: list[np.random.Generator]
) -> npt.NDArray[np.int64]:
    """Choose the token of each hypothesis i by the scores of its row, parents[i]."""
    if not options.do_sample:
        return functional.argmax(scores)[parents]
    warped = warp_logits(scores, options.temperature, options.top_k, options.top_p)
    return sample_tokens(warped[parents], generators)

"""One token after the other: the likeliest, or one that is drawn."""

from __future__ import annotations

import numpy as np

from pyattn._util.typing import FloatArray
from pyattn.functional._topk import argmax
from pyattn.generation.options import Options
from pyattn.generation.protocol import Decoding, IntArray
from pyattn.generation.scoring import Grown, log_probabilities_of, process
from pyattn.generation.sequences import pad_sequences
from pyattn.generation.warping import draw_tokens, warp
from pyattn.generation.watching import Continuations, Watch

__all__ = ["search"]


def search(state: Decoding, prompts: list[IntArray], options: Options, seed: int, watch: Watch) -> list[Grown]:
    """Generate until all rows have ended.

    Parameters
    ----------
    state : Decoding
        Without any tokens.
    prompts : list of ndarray of int
        One for each sequence of the batch.
    options : Options
        do_sample says how a token is chosen.
    seed : int
        Of what is drawn. Each sequence has numbers of its own, whatever is beside it.
    watch : Watch
        Sees each step, and may stop.

    Returns
    -------
    list of Grown
        num_return_sequences for each prompt.
    """
    owners = np.repeat(np.arange(len(prompts)), options.num_return_sequences)
    grown = [Grown(prompts[owner]) for owner in owners]
    draws = _generators(seed, len(grown)) if options.do_sample else []
    live, parents = np.arange(len(grown)), owners  # sequences that go on, and the rows of the state that they follow
    rows = [int(np.argmax(owners == n)) for n in range(len(prompts))]  # a sequence that each row is
    ids, lengths = pad_sequences(prompts)
    for number in range(options.max_new_tokens):
        step = state.step(ids, lengths)
        inputs = [grown[n].whole() for n in rows] if watch.looks or options.repetition_penalty != 1 else []
        log_probabilities = log_probabilities_of(step.logits, options, number)
        scores = process(step.logits, inputs, options, number)
        tokens = _choose(scores, parents, options, [draws[n] for n in live] if draws else draws)

        for n, row, token in zip(live.tolist(), parents.tolist(), tokens.tolist(), strict=True):
            grown[n] = grown[n].followed_by(token, grown[n].score + float(log_probabilities[row, token]), row)
        enough = watch.see(number, step, log_probabilities, owners[rows], inputs, Continuations(tokens, parents))
        going = ~np.isin(tokens, options.eos_token_ids)
        if enough or not going.any() or number + 1 == options.max_new_tokens:
            break
        if not np.array_equal(parents[going], np.arange(len(step.logits))):
            state.reorder(parents[going])
        live, rows = live[going], live[going].tolist()
        parents, ids, lengths = np.arange(len(live)), tokens[going, np.newaxis], np.ones(len(live), np.int64)
    return grown


def _generators(seed: int, count: int) -> list[np.random.Generator]:
    """Make one for each sequence."""
    return [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n,))) for n in range(count)]


def _choose(scores: FloatArray, parents: IntArray, options: Options, draws: list[np.random.Generator]) -> IntArray:
    """Choose the token that follows in each sequence, which goes on from the row parents[i]."""
    if not options.do_sample:
        return argmax(scores)[parents]
    return draw_tokens(warp(scores, options.temperature, options.top_k, options.top_p)[parents], draws)

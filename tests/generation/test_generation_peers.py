"""generate against transformers: the same model, with its own search and with ours."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.decoding import Peer, peer_of

import pyattn
from pyattn.generation import logits as processors

pytestmark = pytest.mark.peers
PAD, START = 0, 1
NEW = 12


def prompts_of(rng, vocabulary=60):
    """Prompts of different lengths, without padding."""
    return [rng.integers(2, vocabulary, n).tolist() for n in rng.integers(1, 9, 3)]


def ask(torch, model, prompts, **options):
    """Call transformers' generate: its new tokens, and the scores of a beam search."""
    longest = max(map(len, prompts))
    left = not model.config.is_encoder_decoder
    padding = [[PAD] * (longest - len(row)) for row in prompts]
    ids = [pad + row if left else row + pad for pad, row in zip(padding, prompts, strict=True)]
    mask = [
        [0] * len(pad) + [1] * len(row) if left else [1] * len(row) + [0] * len(pad)
        for pad, row in zip(padding, prompts, strict=True)
    ]
    more = {"output_scores": True, "return_dict_in_generate": True, "pad_token_id": PAD}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        found = model.generate(
            torch.tensor(ids), attention_mask=torch.tensor(mask), max_new_tokens=NEW, **more, **options
        )
    begins = longest if left else 1
    return found.sequences[:, begins:].numpy(), getattr(found, "sequences_scores", None)


def assert_same(generation, theirs, ends=()):
    """transformers pads rows that end early; after a beam search, with an end symbol where the padding token is 0."""
    for row, length, other in zip(generation.tokens, generation.lengths, theirs, strict=True):
        assert row[:length].tolist() == other[:length].tolist()
        assert np.isin(other[length:], [PAD, *ends]).all()


def both(torch, transformers, kind, seed, **options):
    rng = np.random.default_rng([1, seed])
    model, prompts = peer_of(torch, transformers, kind, seed), prompts_of(rng)
    start = {"start_token_id": START} if kind == "bart" else {}
    ours = pyattn.generate(Peer(torch, model), prompts, max_new_tokens=NEW, padding_idx=PAD, **start, **options)
    return ours, *ask(torch, model, prompts, **options)


kinds = pytest.mark.parametrize("kind", ["gpt2", "bart"])
seeds = pytest.mark.parametrize("seed", range(3))


@kinds
@seeds
def test_greedy(kind, seed, torch, transformers):
    ours, theirs, _ = both(torch, transformers, kind, seed, do_sample=False)
    assert_same(ours, theirs)
    assert (ours.lengths == NEW).all()
    assert len(np.unique(ours.tokens)) > 2, "a model that repeats one token proves nothing"


@kinds
@seeds
def test_greedy_until_an_end(kind, seed, torch, transformers):
    """Take tokens that the model generates in different steps as end symbols."""
    free, *_ = both(torch, transformers, kind, seed, do_sample=False)
    ends = sorted({int(free.tokens[0, 3]), int(free.tokens[1, 6])} - {PAD})
    ours, theirs, _ = both(torch, transformers, kind, seed, eos_token_id=ends)
    assert_same(ours, theirs)
    assert ours.lengths.min() < NEW


@kinds
@seeds
@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_greedy_with_penalties(kind, seed, penalty, torch, transformers):
    free, *_ = both(torch, transformers, kind, seed, do_sample=False)
    options = {"repetition_penalty": penalty, "eos_token_id": int(free.tokens[0, 1]), "min_new_tokens": 4}
    ours, theirs, _ = both(torch, transformers, kind, seed, **options)
    assert_same(ours, theirs)
    assert ours.lengths.min() >= 4


BEAMS = [
    {},
    {"length_penalty": 0.0},
    {"length_penalty": 2.0, "early_stopping": True},
    {"length_penalty": -1.5},
    {"early_stopping": "never", "length_penalty": 0.7},
    {"early_stopping": "never", "length_penalty": -0.5},
    {"repetition_penalty": 1.4, "min_new_tokens": 5},
    {"early_stopping": True, "num_beams": 7, "num_return_sequences": 5},
    {"num_beams": 2, "num_return_sequences": 2, "length_penalty": 0.3},
]


@kinds
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("options", BEAMS, ids=str)
def test_beams(kind, seed, options, torch, transformers):
    options = {"num_beams": 4, **options}
    free, *_ = both(torch, transformers, kind, seed, do_sample=False)
    ends = [int(token) for token in np.unique(free.tokens[:, [0, 2, 4, 7]]) if token != PAD]
    for eos in (None, ends[0], ends[:2], ends)[seed::2]:
        ours, theirs, scores = both(torch, transformers, kind, seed, eos_token_id=eos, **options)
        assert_same(ours, theirs, [] if eos is None else np.atleast_1d(eos))
        np.testing.assert_allclose(ours.scores, scores.numpy(), rtol=1e-4)


# Logits processors


@pytest.fixture
def logits():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 500)).astype(np.float32) * 3
    x[1] = x[1].round()  # with many ties
    x[2, 5:] = -np.inf
    x[3] = 0
    x[4] *= 10
    return x


@pytest.mark.parametrize("k", [1, 2, 7, 50, 499, 500, 1000])
def test_top_k(k, logits, torch, transformers):
    theirs = transformers.TopKLogitsWarper(k)(None, torch.from_numpy(logits)).numpy()
    np.testing.assert_array_equal(processors.filter_top_k(logits, k), theirs)


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.99, 0.999])
def test_top_p(p, logits, torch, transformers):
    """Without ties: of equal tokens, either may be kept."""
    for x in (logits[[0, 2, 4, 5]], np.repeat(logits[:1], 3, axis=0) / 30):
        theirs = transformers.TopPLogitsWarper(p)(None, torch.from_numpy(x)).numpy()
        np.testing.assert_array_equal(processors.filter_top_p(x, p), theirs)


@pytest.mark.parametrize(("temperature", "k", "p"), [(0.7, None, None), (2.5, 30, None), (0.3, 40, 0.8), (1.0, 3, 0.6)])
def test_all_of_them(temperature, k, p, logits, torch, transformers):
    """In transformers' order: temperature, top-k, top-p."""
    x, theirs = logits[[0, 4, 5]], torch.from_numpy(logits[[0, 4, 5]])
    theirs = transformers.TemperatureLogitsWarper(temperature)(None, theirs)
    theirs = theirs if k is None else transformers.TopKLogitsWarper(k)(None, theirs)
    theirs = theirs if p is None else transformers.TopPLogitsWarper(p)(None, theirs)
    np.testing.assert_array_equal(processors.warp_logits(x, temperature, k, p), theirs.numpy())


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.2, 3.0])
def test_penalty(penalty, logits, torch, transformers):
    seen = np.random.default_rng(1).integers(0, 500, (6, 9))
    theirs = transformers.RepetitionPenaltyLogitsProcessor(penalty)(torch.from_numpy(seen), torch.from_numpy(logits))
    np.testing.assert_array_equal(processors.apply_repetition_penalty(logits, list(seen), penalty), theirs.numpy())

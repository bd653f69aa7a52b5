"""generate: greedy search, beam search and sampling, on Markov chains."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support.decoding import CHAIN, END, LOG, TABLE, Markov
from support.helpers import EVERYTHING

import pyattn


def greedy(start, count, table=TABLE):
    tokens = []
    for _ in range(count):
        start = int(np.argmax(table[start]))
        tokens.append(start)
    return tokens


# Greedy search


def test_greedy_search_takes_the_most_likely_token():
    generation = pyattn.generate(Markov(TABLE), [[3, 1], [2], [0, 4, 4]], max_new_tokens=7)
    for row, last in zip(generation.tokens, (1, 2, 4), strict=True):
        assert row.tolist() == greedy(last, 7)
    expected = [sum(LOG[a, b] for a, b in itertools.pairwise([last, *greedy(last, 7)])) for last in (1, 2, 4)]
    np.testing.assert_allclose(generation.scores, expected, rtol=1e-12)
    assert [row.tolist() for row in generation.sequences] == [
        [*prompt, *greedy(prompt[-1], 7)] for prompt in ([3, 1], [2], [0, 4, 4])
    ]


def test_each_row_stops_at_its_own_end_symbol():
    model = Markov(CHAIN)
    generation = pyattn.generate(model, [[0], [3], [1, 2], [4]], max_new_tokens=9, eos_token_id=END, padding_idx=0)
    assert generation.tokens.tolist() == [[1, 2, 3, 4, 5], [4, 5, 0, 0, 0], [3, 4, 5, 0, 0], [5, 0, 0, 0, 0]]
    assert generation.lengths.tolist() == [5, 2, 3, 1]
    assert model.steps == 5


@pytest.mark.parametrize("ends", [[END, 2], (END, 2), np.array([END, 2]), range(2, END + 1, END - 2)])
def test_several_end_symbols(ends):
    generation = pyattn.generate(Markov(CHAIN), [[0], [3]], max_new_tokens=9, eos_token_id=ends)
    assert generation.tokens.tolist() == [[1, 2], [4, 5]]


@pytest.mark.parametrize(("options", "filling"), [({}, 5), ({"padding_idx": 3}, 3)])
def test_shorter_rows_are_padded(options, filling):
    generation = pyattn.generate(Markov(CHAIN), [[0], [4]], max_new_tokens=2, eos_token_id=END, **options)
    assert generation.tokens.tolist() == [[1, 2], [5, filling]]


def test_no_end_symbol_before_min_new_tokens():
    generation = pyattn.generate(Markov(CHAIN), [[3]], max_new_tokens=5, eos_token_id=END, min_new_tokens=3)
    assert END not in generation.tokens[0, :3]
    assert generation.lengths[0] >= 3


def test_all_forms_of_source_give_the_same():
    rows = [[3, 1, 2], [2], [4, 4]]
    padded, lengths = pyattn.generation.pad_sequences(rows, padding_value=5)
    left, _ = pyattn.generation.pad_sequences(rows, padding_value=5, side="left")
    forms = [
        (rows, {}),
        (tuple(map(np.array, rows)), {}),
        (padded, {"source_lengths": lengths}),
        (padded.astype("u1"), {"padding_idx": 5}),
        (left, {"padding_idx": 5}),
    ]
    for encodes in (False, True):
        options = {"max_new_tokens": 4, "start_token_id": 0} if encodes else {"max_new_tokens": 4}
        found = [pyattn.generate(Markov(TABLE, encodes=encodes), source, **options, **more) for source, more in forms]
        assert all(np.array_equal(one.tokens, found[0].tokens) for one in found)
        assert [row.tolist() for row in found[-1].prompts] == ([[0]] * 3 if encodes else rows)


def test_one_row_needs_no_batch():
    for source in ([3, 1], np.array([3, 1])):
        assert pyattn.generate(Markov(TABLE), source, max_new_tokens=3).tokens.tolist() == [greedy(1, 3)]


def test_padding_that_is_an_end_symbol_is_not_stripped():
    """Some models use the same token for padding and as their end symbol."""
    generation = pyattn.generate(Markov(CHAIN), [[4, 5]], max_new_tokens=2, eos_token_id=END, padding_idx=END)
    assert generation.tokens.tolist() == [[0, 1]]


def test_a_start_symbol_comes_first():
    assert pyattn.generate(Markov(TABLE), max_new_tokens=3, start_token_id=2).tokens.tolist() == [greedy(2, 3)]
    both = pyattn.generate(Markov(TABLE), [[3], []], max_new_tokens=3, start_token_id=2)
    assert both.tokens.tolist() == [greedy(3, 3), greedy(2, 3)]
    assert both.sequences[0].tolist() == [2, 3, *greedy(3, 3)]


def test_an_encoder_sees_the_source():
    model = Markov(TABLE, encodes=True)
    generation = pyattn.generate(model, [[3, 1], [4]], max_new_tokens=5, start_token_id=2)
    for row, first in zip(generation.tokens, (3, 4), strict=True):
        assert row.tolist() == greedy(2, 5, TABLE + 0.5 * TABLE[first])


# Beam search


def every_end(table, start, most, beams):
    """All sequences that end or reach the longest length, with their log-probabilities."""
    found = {}
    for count in range(1, most + 1):
        for tokens in itertools.product(range(len(table)), repeat=count):
            if END in tokens[:-1] or (tokens[-1] != END and count < most):
                continue
            found[tokens] = sum(table[a, b] for a, b in itertools.pairwise([start, *tokens]))
    return found


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_as_many_beams_as_there_are_sequences_find_the_best(penalty):
    ends = every_end(LOG, 2, 4, 6**4)
    ranked = sorted(ends, key=lambda tokens: -ends[tokens] / len(tokens) ** penalty)[:20]
    options = {"length_penalty": penalty, "early_stopping": "never", "num_return_sequences": 20, "eos_token_id": END}
    generation = pyattn.generate(Markov(TABLE), [[2]], max_new_tokens=4, num_beams=600, **options)
    found = [tuple(row[:length]) for row, length in zip(generation.tokens.tolist(), generation.lengths, strict=True)]
    assert found == ranked
    np.testing.assert_allclose(generation.scores, [ends[t] / len(t) ** penalty for t in ranked], rtol=1e-12)


def test_beams_find_what_greedy_search_misses():
    table = np.log(np.array([[1e-30, 0.55, 0.45], [0.34, 0.33, 0.33], [0.02, 0.97, 0.01]]))
    greedily = pyattn.generate(Markov(table), [[0]], max_new_tokens=2)
    pyattn.generate(Markov(table), [[0]], max_new_tokens=2, num_beams=2, length_penalty=50)  # the largest
    beams = pyattn.generate(Markov(table), [[0]], max_new_tokens=2, num_beams=2, length_penalty=0.0)
    assert greedily.tokens.tolist() == [[1, 0]]
    assert beams.tokens.tolist() == [[2, 1]]
    np.testing.assert_allclose(beams.scores, np.log(0.45 * 0.97), rtol=1e-12)


@pytest.mark.parametrize("encodes", [False, True])
@pytest.mark.parametrize("stopping", [False, True, "never"])
def test_beams_do_not_depend_on_the_batch(encodes, stopping):
    prompts = [[0], [4, 1], [2], [3, 3]]
    options = {"max_new_tokens": 8, "num_beams": 3, "eos_token_id": END, "early_stopping": stopping}
    options |= {"start_token_id": 1} if encodes else {}
    batch = pyattn.generate(Markov(TABLE, encodes=encodes), prompts, **options, num_return_sequences=2)
    for n, prompt in enumerate(prompts):
        alone = pyattn.generate(Markov(TABLE, encodes=encodes), [prompt], **options, num_return_sequences=2)
        assert alone.scores.tolist() == batch.scores[2 * n : 2 * n + 2].tolist()
        for row in range(2):
            assert alone.sequences[row].tolist() == batch.sequences[2 * n + row].tolist()


def test_there_may_be_fewer_sequences_than_beams():
    generation = pyattn.generate(Markov(TABLE[:3, :3]), [[0]], max_new_tokens=1, num_beams=5, num_return_sequences=4)
    assert generation.lengths.tolist() == [1, 1, 1, 0]
    assert sorted(generation.tokens[:3, 0].tolist()) == [0, 1, 2]
    assert generation.scores[3] == -np.inf


def test_all_beams_may_end():
    """One of two tokens is the end symbol, so that only one continuation goes on in each step."""
    table = np.array([[0.0, 0.0], [0.0, 0.0]])
    generation = pyattn.generate(
        Markov(table), [[0]], max_new_tokens=3, num_beams=4, eos_token_id=1, num_return_sequences=4, length_penalty=0.0
    )
    found = [tuple(row[:length]) for row, length in zip(generation.tokens.tolist(), generation.lengths, strict=True)]
    assert set(found) == {(1,), (0, 1), (0, 0, 0), (0, 0, 1)}


# Sampling


DRAWS = 20_000 if EVERYTHING else 4_000


def frequencies(found, words=6):
    return np.bincount(found.tokens[:, 0], minlength=words) / len(found.tokens)


def assert_drawn_from(shares, expected, count):
    """Allow five standard deviations."""
    assert (np.abs(shares - expected) <= 5 * np.sqrt(expected * (1 - expected) / count)).all(), (shares, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_from_the_distribution(temperature):
    options = {"do_sample": True, "temperature": temperature, "num_return_sequences": DRAWS, "rng": 0}
    found = pyattn.generate(Markov(TABLE), [[3]], max_new_tokens=1, **options)
    assert_drawn_from(frequencies(found), pyattn.softmax(TABLE[3] / temperature), DRAWS)
    np.testing.assert_allclose(found.scores, LOG[3, found.tokens[:, 0]], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-20])
def test_a_tiny_temperature_draws_the_most_likely_token(temperature, dtype):
    table = TABLE.astype(dtype) + 1000
    found = pyattn.generate(Markov(table), [[3]], max_new_tokens=7, do_sample=True, temperature=temperature, rng=0)
    assert found.tokens[0].tolist() == greedy(3, 7)


def test_a_huge_temperature_draws_all_tokens_equally():
    hot = pyattn.generate(Markov(TABLE), [[3]], max_new_tokens=1, do_sample=True, temperature=1e300,
                          num_return_sequences=6000, rng=0)  # fmt: skip
    counts = np.bincount(hot.tokens[:, 0], minlength=len(TABLE))
    expected = 6000 / len(TABLE)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.7}, {"top_k": 4, "top_p": 0.8, "temperature": 2.0}])
def test_tokens_outside_top_k_and_top_p_are_never_drawn(options):
    found = pyattn.generate(
        Markov(TABLE), [[1]], max_new_tokens=1, do_sample=True, num_return_sequences=DRAWS, rng=1, **options
    )
    order, shares = np.argsort(-TABLE[1]), np.exp(np.sort(TABLE[1])[::-1] / options.get("temperature", 1.0))
    shares[options.get("top_k", 6) :] = 0
    shares /= shares.sum()
    shares[np.cumsum(shares) - shares >= options.get("top_p", 1.0)] = 0
    expected = np.empty(6)
    expected[order] = shares / shares.sum()
    assert 1 < np.count_nonzero(expected) < 6
    assert_drawn_from(frequencies(found), expected, DRAWS)


def test_a_later_token_depends_on_those_drawn_before():
    found = pyattn.generate(Markov(TABLE), [[3]], max_new_tokens=2, do_sample=True, num_return_sequences=DRAWS, rng=3)
    for first in range(6):
        rows = found.tokens[found.tokens[:, 0] == first]
        shares = np.bincount(rows[:, 1], minlength=6) / len(rows)
        assert_drawn_from(shares, pyattn.softmax(TABLE[first]), len(rows))


def test_a_row_does_not_depend_on_the_rows_beside_it():
    prompts, options = [[0], [4, 1], [2], [3, 3]], {"max_new_tokens": 9, "do_sample": True, "eos_token_id": END}
    batch = pyattn.generate(Markov(TABLE), prompts, **options, rng=7)
    for count in (1, 2, 3):
        fewer = pyattn.generate(Markov(TABLE), prompts[:count], **options, rng=7)
        for row in range(count):
            assert fewer.sequences[row].tolist() == batch.sequences[row].tolist()
    other = pyattn.generate(Markov(TABLE), prompts, **options, rng=8)
    assert [row.tolist() for row in other.sequences] != [row.tolist() for row in batch.sequences]


def test_rng_sets_the_samples():
    def draw(rng):
        return pyattn.generate(Markov(TABLE), [[0]], max_new_tokens=20, do_sample=True, rng=rng).tokens.tolist()

    assert draw(3) == draw(3) == draw(np.random.SeedSequence(3)) == draw(np.random.default_rng(3))
    generator = np.random.default_rng(3)
    assert draw(generator) != draw(generator)
    assert draw(None) != draw(None)


@pytest.mark.parametrize(("logits", "token"), [([0, -np.inf, -np.inf], 0), ([-np.inf, 500, -1e30], 1)])
def test_a_token_of_probability_zero_is_never_drawn(logits, token):
    found = pyattn.generate(
        Markov([logits] * 3), [[0]], max_new_tokens=1, do_sample=True, num_return_sequences=500, rng=0
    )
    assert (found.tokens == token).all()

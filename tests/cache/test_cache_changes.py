"""What becomes of a KVCache: forks, truncations, windows. All give the bits of attention on arrays made anew."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import numpy as np
import pytest
from support.caches import (
    BATCH,
    LENGTH,
    PAGE,
    STEPS,
    cache_for,
    decode,
    draw,
    fill,
    page_addresses,
    page_bytes,
    pages_held,
    part,
)
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import KVCache


@pytest.fixture
def arrays(dtype):
    return draw(dtype)


# Beams


def test_a_fork_copies_one_page_a_layer_at_its_first_append(arrays):
    """And no full page. In bytes: the pages, as the cache counts them, and what Python's allocator gives out."""
    layers, beams = 3, 8
    one = [array[:1] for array in arrays]
    cache = cache_for(one, layers=layers)
    for layer in range(layers):
        fill(cache, one, 200, layer)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    forked = cache.fork(beams)
    assert tracemalloc.get_traced_memory()[0] - before < page_bytes(cache) / 2
    assert forked.nbytes == cache.nbytes
    row = [np.repeat(array[:, :, :1], beams, axis=0) for array in one[1:]]
    for layer in range(layers):
        forked.append(layer, *row)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert pages_held(forked) <= pages_held(cache) + beams * layers
    assert taken < (beams * layers + 1) * page_bytes(cache)

    held = forked.nbytes
    forked.append(0, *row)  # the page is its own by now
    assert forked.nbytes == held


def test_a_full_page_is_not_copied(arrays):
    cache = fill(cache_for(arrays), arrays, 128)
    forked = cache.fork(2)
    row = [np.repeat(array[:, :, :1], 2, axis=0) for array in arrays[1:]]
    forked.append(0, *row)
    for b in range(2 * BATCH):
        assert page_addresses(forked, batch=b)[:2] == page_addresses(cache, batch=b // 2)[:2]
    assert pages_held(forked) == 2 * BATCH + 2 * BATCH


def test_beams_go_on_by_themselves(arrays, level):
    """Each as if it had never been another's; the cache that they come from, too."""
    one = [array[:1] for array in arrays]
    cache = fill(cache_for(one), one, 100)
    forked = cache.fork(3)
    tails = [[array[:, :, at : at + 2] for array in one] for at in (100, 200, 300)]
    forked.append(0, *(np.concatenate(rows) for rows in zip(*(tail[1:] for tail in tails), strict=True)))
    result = forked.attend(0, np.concatenate([tail[0] for tail in tails]), is_causal=True)
    for b, (query, *rows) in enumerate(tails):
        whole = [np.concatenate([array[:, :, :100], row], axis=2) for array, row in zip(one[1:], rows, strict=True)]
        alone = pyattn.attention(query, *whole, is_causal=True, align="lower_right")
        assert_same_bits(result[b : b + 1], alone)
    for found, expected in zip(cache.to_arrays(0), one[1:], strict=True):
        assert_same_bits(found, expected[:, :, :100])


def test_who_is_left_alone_copies_nothing(arrays):
    cache = fill(cache_for(arrays), arrays, 100)
    forked = cache.fork()
    before = page_addresses(cache)
    del cache
    forked.append(0, *part(arrays[1:], 100, 101))
    assert page_addresses(forked) == before


def test_reordered_beams_are_those_they_came_from(arrays):
    cache = fill(cache_for(arrays), arrays, 70)
    before = [np.concatenate(cache.keys(0, b), axis=1) for b in range(BATCH)]
    cache.reorder([1, 1, 0])
    assert cache.batch_size == 3
    rows = [np.stack([array[0, :, 70:71]] * 3) for array in arrays[1:]]
    cache.append(0, *rows)
    for b, source in enumerate([1, 1, 0]):
        found = np.concatenate(cache.keys(0, b), axis=1)
        assert_same_bits(found[:, :70], before[source])
        assert_same_bits(found[:, 70:], rows[0][b])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_by_themselves(arrays, copied):
    cache = fill(cache_for(arrays), arrays, 70)
    other = copied(cache)
    cache.append(0, *part(arrays[1:], 70, 71))
    other.append(0, *part(arrays[1:], 100, 130))
    cache.append(0, *part(arrays[1:], 71, 72))
    assert_same_bits(cache.to_arrays(0)[0], arrays[1][:, :, :72])
    assert_same_bits(other.to_arrays(0)[0], arrays[1][:, :, np.r_[:70, 100:130]])


# Truncation


def test_truncated_and_appended_is_never_having_appended(arrays, level):
    cache = fill(cache_for(arrays), arrays, 128)
    cache.append(0, *part(arrays[1:], 128, 200))
    address = page_addresses(cache)[0]
    cache.truncate(70)
    assert pages_held(cache) == BATCH * 2
    cache.append(0, *part(arrays[1:], 200, 260))
    other = fill(cache_for(arrays), arrays, 70)
    other.append(0, *part(arrays[1:], 200, 260))
    assert_same_bits(cache.attend(0, arrays[0]), other.attend(0, arrays[0]))
    assert page_addresses(cache)[0] == address


def test_truncation_of_each_batch_entry(arrays):
    cache = fill(cache_for(arrays, layers=2), arrays, 100)
    fill(cache, arrays, 130, layer=1)
    cache.truncate([64, 120])
    assert cache.lengths.tolist() == [64, 100]
    assert [len(cache.keys(1, b)) for b in range(BATCH)] == [1, 2]
    cache.truncate(0)
    assert cache.length == cache.nbytes == 0


def test_a_piece_of_memory_goes_back_with_the_last_of_its_pages():
    """What one append makes: 16 pages, 16, and 8. With a window each page is a piece."""
    rows = np.ones((1, 1, 40 * PAGE, 64), np.float32)
    cache, windowed = KVCache(1, 1, 64), KVCache(1, 1, 64, window=40 * PAGE)
    for one in (cache, windowed):
        one.append(0, rows, rows)
    for length, held in [(40, 40), (33, 40), (32, 32), (17, 32), (16, 16), (1, 16), (0, 0)]:
        for one in (cache, windowed):
            one.truncate(length * PAGE)
            assert len(one.keys(0)) == length
        assert (pages_held(cache), pages_held(windowed)) == (held, length)


def test_a_half_done_step_is_undone(arrays):
    """Of two layers the first alone got the last token."""
    cache = fill(fill(cache_for(arrays, layers=2), arrays, 64), arrays, 64, layer=1)
    cache.append(0, *part(arrays[1:], 64, 65))
    assert cache.length == 64
    cache.truncate(cache.lengths)
    assert [cache.to_arrays(layer)[0].shape[2] for layer in (0, 1)] == [64, 64]


def test_a_fork_does_not_see_what_is_written_after_a_truncation(arrays):
    cache = fill(cache_for(arrays), arrays, 100)
    forked = cache.fork()
    cache.truncate(70)
    cache.append(0, *part(arrays[1:], 200, 230))
    assert_same_bits(forked.to_arrays(0)[0], arrays[1][:, :, :100])


# Windows


@pytest.mark.threads
@for_each("window", [0, 1, 63, 64, 100, 500])
@pytest.mark.parametrize("steps", STEPS)
def test_a_window_has_the_bits_of_windowed_attention(arrays, steps, window, level):
    expected = pyattn.attention(*arrays, is_causal=True, window=(window, None))
    assert_same_bits(decode(cache_for(arrays, window=window), arrays, STEPS[steps], num_threads=2), expected)


@pytest.mark.parametrize("window", [0, 64, 100])
def test_a_window_lets_pages_go(arrays, window):
    cache = cache_for(arrays, window=window)
    for at in range(LENGTH):
        cache.append(0, *part(arrays[1:], at, at + 1))
        assert pages_held(cache) <= BATCH * (-(-window // PAGE) + 2)
    assert cache.start(0) == (LENGTH - 1 - window) // PAGE * PAGE
    for found, expected in zip(cache.to_arrays(0), arrays[1:], strict=True):
        assert_same_bits(found, expected[:, :, cache.start(0) :])


def test_a_window_lets_the_pages_of_a_prompt_go(arrays):
    cache = fill(cache_for(arrays, window=10), arrays, 300)
    assert pages_held(cache) == BATCH * 5
    cache.append(0, *part(arrays[1:], 300, 301))
    assert pages_held(cache) == BATCH


def test_windows_of_batch_entries_of_different_lengths(arrays, level):
    cache = cache_for(arrays, window=10)
    for at in range(0, 300, 3):
        query, key, value = part(arrays, at, at + 3)
        cache.append(0, key, value, lengths=[3, at % 2])
        result = cache.attend(0, query, is_causal=True, query_lengths=[3, at % 2])
    rows = np.arange(3, 300, 6)
    query, key, value = (array[1:, :, rows] for array in arrays)
    alone = pyattn.attention(query, key, value, is_causal=True, window=(10, None))
    assert_same_bits(result[1:, :, :1], alone[:, :, -1:])
    whole = pyattn.attention(*(array[:1, :, :300] for array in arrays), is_causal=True, window=(10, None))
    assert_same_bits(result[:1], whole[:, :, -3:])
    assert pages_held(cache) == BATCH


# Anything, in any order


class Plain:
    """The same in arrays: keys and values (kv_heads, length, dim) of each batch entry."""

    def __init__(self, rows):
        self.rows = rows

    def append(self, key, value, counts):
        self.rows = [
            tuple(np.concatenate([old, new[b, :, :count]], axis=1) for old, new in zip(pair, (key, value), strict=True))
            for b, (pair, count) in enumerate(zip(self.rows, counts, strict=True))
        ]


@pytest.mark.parametrize("seed", range(30))
def test_any_series_of_changes(seed):
    """Against arrays made anew at each step. Of a fork, the one or the other goes on, and both are looked at."""
    rng = np.random.default_rng(seed)
    window = (None, None, 5, 64, 90)[seed % 5]
    dims = (2, 8, 4)
    cache = KVCache(1, *dims[:2], v_head_dim=dims[2], batch_size=2, window=window)
    plain = Plain([(np.zeros((2, 0, 8), "f"), np.zeros((2, 0, 4), "f"))] * 2)
    aside = []
    for _ in range(60):
        what = rng.choice(["append", "append", "append", "truncate", "fork", "reorder"])
        batches = cache.batch_size
        if what == "append":
            new = int(rng.choice([1, 1, 2, 30, 64, 70]))
            key, value = (rng.standard_normal((batches, 2, new, dim)).astype("f") for dim in (8, 4))
            counts = rng.integers(0, new, batches, endpoint=True) if rng.random() < 0.5 else [new] * batches
            cache.append(0, key, value, counts)
            plain.append(key, value, counts)
            query = rng.standard_normal((batches, 4, new, 8)).astype("f")
            check_attention(cache, plain, query, list(map(int, counts)), window)
        elif what == "truncate" and window is None:
            lengths = rng.integers(0, cache.length + 5, batches)
            cache.truncate(lengths)
            plain.rows = [tuple(x[:, :n] for x in pair) for pair, n in zip(plain.rows, lengths, strict=True)]
        elif what == "fork":
            other, also = cache.fork(), Plain(plain.rows)
            if rng.random() < 0.5:
                (cache, plain), (other, also) = (other, also), (cache, plain)
            aside = [*aside[-2:], (other, also)]
        elif what == "reorder":
            index = rng.integers(0, batches, rng.integers(1, 4))
            cache.reorder(index)
            plain.rows = [plain.rows[b] for b in index]
    for one, other in [*aside, (cache, plain)]:
        for b, (key, value) in enumerate(other.rows):
            start = key.shape[1] - sum(view.shape[1] for view in one.keys(0, b))
            assert start == 0 or window is not None
            if key.shape[1] > start:
                assert_same_bits(np.concatenate(one.keys(0, b), axis=1), key[:, start:])
                assert_same_bits(np.concatenate(one.values(0, b), axis=1), value[:, start:])


def check_attention(cache, plain, query, counts, window):
    result = cache.attend(0, query, is_causal=True, query_lengths=counts)
    for b, ((key, value), count) in enumerate(zip(plain.rows, counts, strict=True)):
        sides = None if window is None else (window, None)
        own = query[b : b + 1, :, :count]
        alone = pyattn.attention(own, key[None], value[None], is_causal=True, window=sides, align="lower_right")
        assert_same_bits(result[b : b + 1, :, :count], alone)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_knows_what_it_holds(protocol):
    cache = KVCache(1, 1, 4)
    rows = np.ones((1, 1, 70, 4), np.float32)
    cache.append(0, rows, rows)
    other = pickle.loads(pickle.dumps(cache, protocol=protocol))
    assert other.nbytes > 0
    other.append(0, rows, rows)
    np.testing.assert_allclose(other.attend(0, rows, is_causal=True), 1, rtol=1e-6)  # a mean of ones
    assert other.nbytes >= cache.nbytes


def test_rows_without_a_page_may_begin_at_different_positions():
    cache = pyattn.KVCache(1, 1, 4, batch_size=2, window=0)
    for count in (64, 6):
        rows = np.ones((2, 1, count, 4), np.float32)
        cache.append(0, rows, rows, [count, 0])
    cache.truncate(64)
    one = np.ones((2, 1, 1, 4), np.float32)
    cache.append(0, one, one, [0, 0])
    assert cache.lengths.tolist() == [64, 0]


def test_who_looks_at_a_step_that_fails_keeps_what_it_saw():
    """Its pages are then copied before others are written there."""
    cache = pyattn.KVCache(1, 1, 1)

    def append(number):
        cache.append(0, *[np.full((1, 1, 1, 1), number, np.float32)] * 2)

    held = []

    def fail():
        with cache._restored_on_error():
            append(2)
            held.append(cache._layers[0])
            raise KeyboardInterrupt

    append(1)
    with pytest.raises(KeyboardInterrupt):
        fail()
    append(9)
    assert [float(x) for x in held[0].pages[0][0][:2]] == [1, 2]
    assert cache.keys(0)[0].ravel().tolist() == [1, 9]

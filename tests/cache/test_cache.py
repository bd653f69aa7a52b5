"""KVCache: decoding with it has the bits of attention over everything, and nothing stored moves."""

from __future__ import annotations

import numpy as np
import pytest
from support.caches import (
    BATCH,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LENGTH,
    PAGE,
    STEPS,
    V_DIM,
    cache_for,
    decode,
    draw,
    fill,
    page_addresses,
    pages_held,
    part,
)
from support.helpers import assert_same_bits

import pyattn
from pyattn import KVCache


@pytest.fixture
def arrays(dtype):
    return draw(dtype)


# The bits of attention over everything


@pytest.mark.threads
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_decoding_has_the_bits_of_causal_attention(arrays, steps, num_threads, level):
    full = pyattn.attention(*arrays, is_causal=True)
    assert_same_bits(decode(cache_for(arrays), arrays, STEPS[steps], num_threads=num_threads), full)


@pytest.mark.threads
@pytest.mark.parametrize("heads", [1, 2, 6])
def test_a_long_cache_that_threads_share_out(heads, dtype, level):
    rng = np.random.default_rng(1)
    query = rng.standard_normal((1, heads * 2, 2, 16)).astype(dtype)
    key, value = (rng.standard_normal((1, 2, 3000, 16)).astype(dtype) for _ in "kv")
    cache = KVCache(1, 2, 16, dtype=dtype)
    cache.append(0, key, value)
    options = {"is_causal": True, "need_weights": heads == 1, "need_lse": True}
    expected = pyattn.attention(query, key, value, align="lower_right", **options)
    for num_threads in (1, 2, 3):
        assert_same_bits(cache.attend(0, query, num_threads=num_threads, **options), expected)


def test_every_option_means_what_it_means_on_arrays(arrays, level):
    cache = fill(cache_for(arrays), arrays)
    rng = np.random.default_rng(2)
    query = arrays[0][:, :, :3]
    weight = rng.standard_normal((HEAD_DIM, HEAD_DIM)).astype(query.dtype)
    options = [
        {"attn_mask": rng.random((3, LENGTH)) < 0.5, "need_weights": True},
        {"attn_mask": rng.standard_normal((BATCH, 1, 3, LENGTH)), "scale": 0.3, "need_lse": True},
        {"score": "cosine"},
        {"score": "distance", "need_lse": True},
        {"score": "additive", "score_weight": weight[0]},
        {"score": "bilinear", "score_weight": weight},
        {"window": (70, 1)},
        {"query_lengths": [3, 1], "is_causal": True, "empty_rows": "nan"},
        {"dropout_p": 0.5, "keep_mask": rng.random((3, LENGTH)) < 0.5},
    ]
    for option in options:
        expected = pyattn.attention(query, *arrays[1:], align="lower_right", **option)
        assert_same_bits(cache.attend(0, query, **option), expected, option)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("steps", STEPS)
def test_dropout_keeps_what_it_keeps_in_attention_over_everything(arrays, steps, window, level):
    """However many positions come at a time, and with pages that a window has let go."""
    dropped = {"dropout_p": 0.5, "rng": 3}
    limit = {} if window is None else {"window": (window, None), "align": "lower_right"}
    full = pyattn.attention(*arrays, is_causal=True, **limit, **dropped)
    assert_same_bits(decode(cache_for(arrays, window=window), arrays, STEPS[steps], **dropped), full)


def test_dropout_keeps_what_it_keeps_whatever_the_other_batch_entries_lengths(arrays, level):
    cache = cache_for(arrays)
    cache.append(0, *part(arrays[1:], 0, 100), lengths=[100, 37])
    result = cache.attend(0, arrays[0][:, :, 30:37], query_lengths=[2, 7], is_causal=True, dropout_p=0.5, rng=3)
    full = pyattn.attention(*part(arrays, 0, 37), is_causal=True, dropout_p=0.5, rng=3)
    assert_same_bits(result[1], full[1, :, 30:])


def test_layouts_and_out(arrays):
    cache, other = cache_for(arrays), fill(cache_for(arrays), arrays)
    query, key, value = (array.swapaxes(1, 2) for array in arrays)
    cache.append(0, key, value, layout="bshd")
    expected = other.attend(0, arrays[0])
    out = np.empty_like(expected.swapaxes(1, 2), order="C")
    assert cache.attend(0, query, layout="bshd", out=out) is out
    assert_same_bits(out.swapaxes(1, 2), expected)


def test_batch_entries_of_different_lengths(arrays, level):
    """Padding on the right is not stored, and each batch entry's queries stand at its own end."""
    cache = cache_for(arrays)
    cache.append(0, *part(arrays[1:], 0, 100), lengths=[100, 37])
    cache.append(0, *part(arrays[1:], 100, 105), lengths=[2, 5])
    assert cache.lengths.tolist() == [102, 42]
    assert cache.length == 102
    query = arrays[0][:, :, :5]
    result = cache.attend(0, query, is_causal=True, query_lengths=[2, 5])
    for b, (first, count) in enumerate(((100, 2), (37, 5))):
        key, value = (
            np.concatenate([array[b : b + 1, :, :first], array[b : b + 1, :, 100 : 100 + count]], axis=2)
            for array in arrays[1:]
        )
        alone = pyattn.attention(query[b : b + 1, :, :count], key, value, is_causal=True, align="lower_right")
        assert_same_bits(result[b : b + 1, :, :count], alone)
        assert not result[b, :, count:].any()


def test_what_is_stored_is_what_came(arrays):
    cache = cache_for(arrays, layers=2)
    decode(cache, arrays, STEPS["a prompt in chunks"])
    for found, expected in zip(cache.to_arrays(0), arrays[1:], strict=True):
        assert_same_bits(found, expected)
    for b in range(BATCH):
        assert_same_bits(np.concatenate(cache.keys(0, b), axis=1), arrays[1][b])
        assert_same_bits(np.concatenate(cache.values(0, b), axis=1), arrays[2][b])
    assert cache.to_arrays(1)[0].shape == (BATCH, KV_HEADS, 0, HEAD_DIM)
    assert cache.lengths.tolist() == [0, 0]  # layer 1 has none yet


def test_an_empty_cache_has_nothing_to_attend_to(arrays):
    output = cache_for(arrays).attend(0, arrays[0])
    assert output.shape == (BATCH, HEADS, LENGTH, V_DIM)
    assert not output.any()


def test_no_batch_entries(arrays):
    none = [array[:0] for array in arrays]
    cache = fill(cache_for(none), none)
    assert cache.attend(0, none[0]).shape == (0, HEADS, LENGTH, V_DIM)
    assert cache.length == 0


# Memory


def test_ten_thousand_appends_move_no_stored_position():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((10_000, 1, 1, 1, 4)).astype(np.float32)
    cache = KVCache(1, 1, 4)
    addresses = []
    for n, row in enumerate(rows):
        cache.append(0, row, -row)
        if n % PAGE == 0:
            addresses.append(page_addresses(cache)[len(cache.keys(0)) - 1])
    assert page_addresses(cache)[: len(addresses)] == addresses
    assert_same_bits(cache.to_arrays(0)[0], rows.reshape(1, 1, -1, 4))
    assert_same_bits(cache.to_arrays(0)[1], -rows.reshape(1, 1, -1, 4))


def test_a_view_that_is_kept_moves_nothing(arrays):
    cache = fill(cache_for(arrays), arrays, 100)
    kept, before = cache.keys(0), page_addresses(cache)
    cache.append(0, *part(arrays[1:], 100, 101))
    assert page_addresses(cache) == before
    assert np.shares_memory(kept[1], cache.keys(0)[1])


def test_views_are_read_only(arrays):
    cache = fill(cache_for(arrays), arrays, 3)
    with pytest.raises(ValueError, match="read-only"):
        cache.keys(0)[0][:] = 0
    with pytest.raises(ValueError, match="read-only"):
        cache.values(0)[0][:] = 0


def test_memory_is_that_of_the_pages(arrays):
    cache = cache_for(arrays, layers=3)
    assert cache.nbytes == 0
    fill(cache, arrays, 65, layer=1)
    assert pages_held(cache) == BATCH * 2


def test_pages_begin_at_cache_lines(arrays):
    assert all(address % 64 == 0 for address in page_addresses(fill(cache_for(arrays), arrays)))

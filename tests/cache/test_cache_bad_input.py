"""What a KVCache refuses, with which sentence; and that it is as it was afterwards."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
from support.helpers import for_each

from pyattn import KVCache, _core


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


KEY, VALUE, QUERY = zeros(2, 3, 5, 8), zeros(2, 3, 5, 4), zeros(2, 6, 5, 8)


def state(cache):
    return [(layer.pages, layer.starts, layer.lengths, layer.pages[0][:]) for layer in cache._layers]


@pytest.fixture
def cache():
    """Of 70 positions and, in the second batch entry, 3."""
    cache = KVCache(2, 3, 8, v_head_dim=4, batch_size=2, max_length=75)
    for layer in range(2):
        cache.append(layer, zeros(2, 3, 70, 8), zeros(2, 3, 70, 4), lengths=[70, 3])
    return cache


MAKING = {
    "num_layers": (lambda: KVCache(0, 1, 8), ValueError, "num_layers is 0, expected 1 or more"),
    "num_kv_heads": (lambda: KVCache(1, 2.0, 8), TypeError, "num_kv_heads is of type float, expected an int"),
    "head_dim": (lambda: KVCache(1, 1, -8), ValueError, "head_dim is -8, expected 1 or more"),
    "v_head_dim": (lambda: KVCache(1, 1, 8, v_head_dim=0), ValueError, "v_head_dim is 0, expected 1 or more"),
    "batch_size": (lambda: KVCache(1, 1, 8, batch_size=-1), ValueError, "batch_size is -1, expected 0 or more"),
    "dtype": (
        lambda: KVCache(1, 1, 8, dtype="i2"),
        TypeError,
        "dtype is 'i2', expected float16, bfloat16, float32 or float64",
    ),
    "window": (lambda: KVCache(1, 1, 8, window=-1), ValueError, "window is -1, expected 0 or more"),
    "window pair": (lambda: KVCache(1, 1, 8, window=(3, 0)), TypeError, "window is of type tuple, expected an int"),
    "max_length": (lambda: KVCache(1, 1, 8, max_length=-1), ValueError, "max_length is -1, expected 0 or more"),
}

USING = {
    "layer": (lambda c: c.append(2, KEY, VALUE), ValueError, "layer is 2, expected 0 to 1"),
    "layer type": (lambda c: c.attend("0", QUERY), TypeError, "layer is of type str, expected an int"),
    "batch": (lambda c: c.keys(0, 2), ValueError, "batch is 2, expected 0 to 1"),
    "key shape": (
        lambda c: c.append(0, zeros(2, 3, 5, 7), VALUE),
        ValueError,
        "key has shape (2, 3, 5, 7), expected (2, 3, new, 8): (batch_size, num_kv_heads, new, head_dim)",
    ),
    "key axes": (
        lambda c: c.append(0, KEY[0], VALUE),
        ValueError,
        "key has shape (3, 5, 8), expected (2, 3, new, 8): (batch_size, num_kv_heads, new, head_dim)",
    ),
    "value shape": (
        lambda c: c.append(0, KEY, KEY),
        ValueError,
        "value has shape (2, 3, 5, 8), expected (2, 3, new, 4): (batch_size, num_kv_heads, new, v_head_dim)",
    ),
    "layouts": (
        lambda c: c.append(0, KEY.swapaxes(1, 2), VALUE.swapaxes(1, 2)),
        ValueError,
        "key has shape (2, 5, 3, 8), expected (2, 3, new, 8): (batch_size, num_kv_heads, new, head_dim); if its axes "
        "are those of 'bshd', pass layout='bshd'",
    ),
    "other layout": (
        lambda c: c.append(0, KEY, VALUE, layout="bshd"),
        ValueError,
        "key has shape (2, 3, 5, 8), expected (2, new, 3, 8): (batch_size, new, num_kv_heads, head_dim); if its axes "
        "are those of 'bhsd', pass layout='bhsd'",
    ),
    "no layout": (
        lambda c: c.append(0, KEY, VALUE, layout="sbhd"),
        ValueError,
        "layout is 'sbhd'; it must be 'bhsd' or 'bshd'",
    ),
    "new": (lambda c: c.append(0, KEY, VALUE[:, :, :4]), ValueError, "value has 4 new positions but key has 5"),
    "dtype": (
        lambda c: c.append(0, KEY.astype(float), VALUE),
        TypeError,
        "key has dtype float64, expected float32 as the cache's; pass key.astype(numpy.float32), or make the cache "
        "with dtype=numpy.float64",
    ),
    "half": (
        lambda c: c.append(0, KEY, VALUE.astype("f2").tolist()),
        TypeError,
        "value has dtype float64, expected float32 as the cache's; pass numpy.asarray(value, numpy.float32), or make "
        "the cache with dtype=numpy.float64",
    ),
    "integers": (
        lambda c: c.append(0, KEY.astype(int), VALUE),
        TypeError,
        "key has dtype int64, expected float32 as the cache's; pass key.astype(numpy.float32)",
    ),
    "masked": (lambda c: c.append(0, np.ma.array(KEY), VALUE), TypeError, "key is a masked array"),
    "lengths": (
        lambda c: c.append(0, KEY, VALUE, lengths=[5, 6]),
        ValueError,
        "lengths holds 6, expected 0 <= n <= 5",
    ),
    "lengths shape": (
        lambda c: c.append(0, KEY, VALUE, lengths=[5]),
        ValueError,
        "lengths has shape (1,), expected (2,): one for each batch entry",
    ),
    "lengths dtype": (
        lambda c: c.append(0, KEY, VALUE, lengths=[1.0, 2.0]),
        TypeError,
        "lengths has dtype float64, expected integers; pass numpy.asarray(lengths, numpy.int64)",
    ),
    "max_length": (
        lambda c: c.append(1, zeros(2, 3, 6, 8), zeros(2, 3, 6, 4)),
        ValueError,
        "batch entry 0 has 70 positions and would get 6 more: max_length is 75",
    ),
    "query": (
        lambda c: c.attend(0, QUERY[:1]),
        ValueError,
        "query has shape (1, 6, 5, 8), expected (batch_size, heads, length, head_dim): the cache has 2 batch entries",
    ),
    "query axes": (
        lambda c: c.attend(0, QUERY[0], layout="bshd"),
        ValueError,
        "query has shape (6, 5, 8), expected (batch_size, length, heads, head_dim): the cache has 2 batch entries",
    ),
    "query dim": (
        lambda c: c.attend(0, QUERY[..., :7]),
        ValueError,
        "key has head_dim 8 but query has 7; both are (..., heads, length, dim). Given: query (2, 6, 5, 7), key "
        "(2, 3, 70, 8)",
    ),
    "query heads": (
        lambda c: c.attend(0, QUERY[:, :4]),
        ValueError,
        "query has 4 heads, key 3 and value 3; query heads must be a multiple of key and value heads",
    ),
    "query dtype": (
        lambda c: c.attend(0, QUERY.astype(float)),
        TypeError,
        "query has dtype float64, expected float32 as the cache's; pass query.astype(numpy.float32)",
    ),
    "query layout": (
        lambda c: c.attend(0, QUERY, layout=None),
        ValueError,
        "layout is None; it must be 'bhsd' or 'bshd'",
    ),
    "mask": (
        lambda c: c.attend(0, QUERY, attn_mask=np.ones((5, 75), bool)),
        ValueError,
        "attn_mask has shape (5, 75), which does not broadcast to (2, 6, 5, 70): (..., heads, q_len, kv_len)",
    ),
    "query_lengths": (
        lambda c: c.attend(0, QUERY, query_lengths=[6, 1]),
        ValueError,
        "query_lengths holds 6, expected 0 <= n <= 5 (the length of query)",
    ),
    "bilinear": (
        lambda c: c.attend(0, QUERY, score="bilinear"),
        ValueError,
        "score='bilinear' needs score_weight, an array of shape (8, 8): query's features, key's features",
    ),
    "score_weight dtype": (
        lambda c: c.attend(0, QUERY, score="additive", score_weight=np.zeros(8)),
        TypeError,
        "score_weight has dtype float64, expected float32 as the cache's; pass score_weight.astype(numpy.float32)",
    ),
    "truncate": (lambda c: c.truncate(-1), ValueError, "length holds -1, expected 0 or more"),
    "truncate shape": (
        lambda c: c.truncate([1, 2, 3]),
        ValueError,
        "length has shape (3,), expected (2,): one for each batch entry",
    ),
    "truncate type": (
        lambda c: c.truncate(1.5),
        TypeError,
        "length has dtype float64, expected integers; pass numpy.asarray(length, numpy.int64)",
    ),
    "fork": (lambda c: c.fork(-1), ValueError, "n is -1, expected 0 or more"),
    "reorder": (lambda c: c.reorder([0, 2]), ValueError, "index holds 2, expected batch entries from 0 to 1"),
    "reorder negative": (
        lambda c: c.reorder([-1, 0]),
        ValueError,
        "index holds -1, expected batch entries from 0 to 1",
    ),
    "reorder axes": (lambda c: c.reorder([[0, 1]]), ValueError, "index has shape (1, 2), expected one axis: (n,)"),
    "reorder type": (
        lambda c: c.reorder([True, False]),
        TypeError,
        "index has dtype bool, expected integers; pass numpy.asarray(index, numpy.int64)",
    ),
    "path": (lambda c: c.save("cache.txt"), ValueError, "path ends in '.txt', expected '.npz' or '.safetensors'"),
}


@pytest.mark.parametrize("name", MAKING)
def test_making(name):
    call, kind, message = MAKING[name]
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        call()


@for_each("sizes", [(1, 2**40), (1, 2**62), (2**50, 1)])
def test_a_cache_whose_lists_alone_fill_memory_is_refused_at_once(sizes):
    layers, batch_size = sizes
    with pytest.raises(MemoryError, match=f"^a KVCache of {layers} layers and batch_size {batch_size} does not fit"):
        KVCache(layers, 1, 1, batch_size=batch_size)


@pytest.mark.parametrize("name", USING)
def test_a_refused_call_leaves_the_cache_as_it_was(name, cache):
    call, kind, message = USING[name]
    before = state(cache)
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        call(cache)
    assert all(
        one is other or one == other
        for old, new in zip(before, state(cache), strict=True)
        for one, other in zip(old[:3], new[:3], strict=True)
    )
    cache.append(0, KEY, VALUE)


# Windows


@pytest.fixture
def windowed():
    """100 positions, of which the first page has been let go."""
    cache = KVCache(1, 3, 8, v_head_dim=4, batch_size=2, window=5)
    cache.append(0, zeros(2, 3, 99, 8), zeros(2, 3, 99, 4))
    cache.append(0, zeros(2, 3, 1, 8), zeros(2, 3, 1, 4))
    return cache


def test_queries_that_would_see_what_was_let_go(windowed):
    assert windowed.start(0) == 64
    query = zeros(2, 6, 32, 8)
    windowed.attend(0, query[:, :, :31])
    windowed.attend(0, query, query_lengths=[31, 0])
    message = (
        "query has 32 positions in batch entry 0, and the window of the first begins before position 64, the first "
        "one stored; at most 31 fit"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        windowed.attend(0, query)


def test_a_window_of_its_own_is_the_only_one(windowed):
    with pytest.raises(ValueError, match=r"^window was given, but the cache has its own, window=5: leave it out$"):
        windowed.attend(0, zeros(2, 6, 1, 8), window=3)


def test_a_truncation_to_what_was_let_go(windowed):
    message = (
        "length of batch entry 0 is 68, and its window of 5 begins before position 64, the first one stored; "
        "truncate to 69 or more, or to 0"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        windowed.truncate(68)
    assert windowed.length == 100
    windowed.truncate([69, 0])
    assert windowed.lengths.tolist() == [69, 0]


# The core itself

PAGE = zeros(3 * 64 * 12)
SIZES = (3, 8, 4)


def into(pages, first, new, sizes=SIZES, key=KEY[:1], value=VALUE[:1], layout="bhsd"):
    _core.append_to_pages((pages, PAGE.dtype, *sizes, 0, 0, first, new), key, value, layout)


CORE = {
    "pages": (lambda: into(PAGE, (0,), (5,)), TypeError,
              "pages is of type numpy.ndarray, expected a list of lists of arrays"),
    "table": (lambda: into([3], (0,), (5,)), TypeError,
              "pages is of type int, expected a list of lists of arrays"),
    "page": (lambda: into([[PAGE[1:]]], (0,), (5,)), ValueError,
             "a page must be a contiguous array of 2304 elements of the cache's dtype"),
    "layout": (lambda: into([[PAGE]], (0,), (5,), layout="sbhd"), ValueError,
               "layout is 'sbhd', expected 'bhsd' or 'bshd'"),
    "too few": (lambda: into([[PAGE]], (60,), (5,)), ValueError,
                "batch entry 0 of the cache has 1 pages of 64 positions, too few for 65"),
    "first": (lambda: into([[PAGE]], [0], (5,)), ValueError,
              "first must be a tuple of 1 ints"),
    "count": (lambda: into([[PAGE]], (0,), (-1,)), ValueError,
              "new is -1, expected 0 or more"),
    "rows": (lambda: into([[PAGE]], (0,), (5,), key=KEY, value=VALUE), ValueError,
             "key has shape (2, 3, 5, 8), expected (1, 3, 5, 8): (batch, kv_heads, new, dim)"),
    "sizes": (lambda: into([[PAGE]], (0,), (5,), (2**62, 8, 4)), ValueError,
              "a page is too large for memory"),
    "length": (lambda: _core.paged_attention(QUERY[:1], ([[PAGE]], PAGE.dtype, *SIZES, 65, 0, None, None)), ValueError,
               "batch entry 0 of the cache has 1 pages of 64 positions, too few for 65"),
    "negative length": (lambda: _core.paged_attention(QUERY[:1], ([[PAGE]], PAGE.dtype, *SIZES, -1, 0, None, None)),
                        ValueError, "length is -1, expected 0 or more"),
    "start": (lambda: _core.paged_attention(QUERY[:1], ([[PAGE]], PAGE.dtype, *SIZES, 5, 3, None, None)), ValueError,
                  "key_start is 3, expected a multiple of 64"),
    "dtype": (lambda: _core.paged_attention(QUERY[:1], ([[PAGE]], "f4", *SIZES, 5, 0, None, None)), TypeError,
              "dtype is 'f4', expected the dtype of the pages"),
    "missing": (lambda: _core.paged_attention(QUERY[:1], ([[PAGE]], PAGE.dtype, *SIZES, 5)), TypeError,
                "the cache argument must be a tuple of 9 items"),
    "no rows": (lambda: into([[PAGE]], None, None), ValueError,
                "first and new are missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", CORE)
def test_the_core_trusts_nobody(name):
    call, kind, message = CORE[name]
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        call()


# Other threads, and Ctrl-C


@pytest.mark.threads
def test_readers_beside_a_writer_do_not_crash():
    """What they read is some state of the cache, whatever happens meanwhile."""
    rng = np.random.default_rng(0)
    cache = KVCache(1, 2, 16, window=200)
    row = rng.standard_normal((1, 2, 33, 16)).astype(np.float32)
    query = rng.standard_normal((1, 4, 1, 16)).astype(np.float32)
    failures, done = [], threading.Event()

    def read():
        try:
            while not done.is_set():
                assert np.isfinite(cache.attend(0, query, num_threads=2)).all()
                assert np.isfinite(cache.fork().attend(0, query)).all()
                cache.to_arrays(0)
        except BaseException as failure:
            failures.append(failure)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        cache.append(0, row, row)
        if cache.length > 3000:
            cache.truncate(0)
    done.set()
    for reader in readers:
        reader.join()
    assert not failures, failures[0]


@pytest.mark.threads
def test_an_interrupted_call_leaves_the_cache_usable():
    cache = KVCache(1, 1, 256)
    key = np.zeros((1, 1, 60_000, 256), np.float32)
    cache.append(0, key, key)
    query = np.zeros((1, 8, 20_000, 256), np.float32)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            cache.attend(0, query, num_threads=2)
    finally:
        signal.signal(signal.SIGINT, before)
    cache.append(0, key[:, :, :1], key[:, :, :1])
    assert cache.length == 60_001
    assert not cache.attend(0, query[:, :, :1]).any()

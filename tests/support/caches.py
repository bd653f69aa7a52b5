"""A cache and what goes into it, for the tests of KVCache."""

from __future__ import annotations

import numpy as np
from support.helpers import make_arrays

from pyattn import KVCache

BATCH, HEADS, KV_HEADS, LENGTH, HEAD_DIM, V_DIM = 2, 4, 2, 330, 24, 20
PAGE = 64
STEPS = {
    "token by token": [1] * LENGTH,
    "a prompt, then tokens": [200] + [1] * 130,
    "a prompt in chunks": [64, 100, 3, 150, 13],
    "several at a time": [7] * 47 + [1],
}


def draw(dtype):
    """Query, key and value."""
    return make_arrays(
        (BATCH, HEADS, LENGTH, HEAD_DIM),
        (BATCH, KV_HEADS, LENGTH, HEAD_DIM),
        (BATCH, KV_HEADS, LENGTH, V_DIM),
        dtype=dtype,
    )


def cache_for(arrays, layers=1, **options):
    return KVCache(
        layers, KV_HEADS, HEAD_DIM, v_head_dim=V_DIM, batch_size=len(arrays[1]), dtype=arrays[1].dtype, **options
    )


def part(arrays, start, stop):
    return [array[:, :, start:stop] for array in arrays]


def fill(cache, arrays, stop=LENGTH, layer=0):
    cache.append(layer, *part(arrays[1:], 0, stop))
    return cache


def decode(cache, arrays, steps, **options):
    """The outputs of all steps side by side."""
    outputs, at = [], 0
    for step in steps:
        query, key, value = part(arrays, at, at + step)
        cache.append(0, key, value)
        outputs.append(cache.attend(0, query, is_causal=True, **options))
        at += step
    return np.concatenate(outputs, axis=2)


def page_addresses(cache, layer=0, batch=0):
    return [view.__array_interface__["data"][0] for view in cache.keys(layer, batch) + cache.values(layer, batch)]


def pages_held(cache):
    """As many as its memory has room for; beside them there are cache lines that align them."""
    return cache.nbytes // page_bytes(cache)


def page_bytes(cache):
    elements = cache.num_kv_heads * PAGE * (cache.head_dim + cache.v_head_dim)
    return elements * cache.dtype.itemsize

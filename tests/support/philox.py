"""Philox4x32-10 in NumPy, after Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011)."""

from __future__ import annotations

import numpy as np

MULTIPLIERS = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
WEYL = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
LOW = np.uint64(0xFFFFFFFF)


def philox(counter, key):
    """Four numbers for each counter (..., 4) of 32-bit words; key (2)."""
    x, key = np.asarray(counter, np.uint64), np.asarray(key, np.uint64)
    for _ in range(10):
        product = x[..., ::2] * MULTIPLIERS
        high, low = product >> np.uint64(32), product & LOW
        x = np.stack(
            [high[..., 1] ^ x[..., 1] ^ key[0], low[..., 1], high[..., 0] ^ x[..., 3] ^ key[1], low[..., 0]], -1
        )
        key = (key + WEYL) & LOW
    return x.astype(np.uint32)


def keep_mask(shape, dropout_p, seed):
    """The keeps of (units, q_len, kv_len), as pyattn documents them."""
    units, queries, keys = np.indices((*shape[:2], -(-shape[2] // 4)))
    counters = np.stack([keys, queries, units, np.zeros_like(keys)], -1)
    numbers = philox(counters, [seed & 0xFFFFFFFF, seed >> 32]).reshape(*shape[:2], -1)[..., : shape[2]]
    return numbers >= round(dropout_p * 2**32)

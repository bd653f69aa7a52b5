"""One layer of a `KVCache` during one call: new rows, masking, rotary positions, and checks."""

from __future__ import annotations

from typing import NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.halves import are_mixable
from pyattn._util.typing import CacheUse, FloatArray, Rotation
from pyattn.cache.kv_cache import KVCache
from pyattn.cache.pages import Growth
from pyattn.functional._multihead_masks import Masking
from pyattn.nn.positions import RotaryEmbedding

__all__ = ["Opened", "check_cache", "open_cache", "rotation_of"]


class Opened(NamedTuple):
    """A layer of a cache during one call."""

    use: CacheUse
    masking: Masking
    """Includes the lengths and the window of the cache."""
    starts: tuple[int, ...]
    """Position of each batch entry's first query."""
    ends: tuple[int, ...]
    """Number of positions in each batch entry after the call."""
    cache: KVCache
    growth: Growth | None
    """New rows of the call; None if it only reads."""

    def close(self) -> None:
        """Commit the call's new rows to the cache."""
        if self.growth is not None:
            self.cache._finish(self.growth)


def open_cache(
    cache: KVCache,
    layer: SupportsIndex,
    x: FloatArray,
    name: str,
    masking: Masking,
    lengths: npt.ArrayLike | None = None,
    *,
    stores: bool = True,
    cache_name: str = "cache",
) -> Opened:
    """Make room in a cache for a call's new rows, and return the masking for that call."""
    check_cache(cache, cache_name)
    if x.ndim != 3 or x.shape[0] != cache.batch_size:
        expected = f"({cache.batch_size}, L, {x.shape[-1]})"
        raise ValueError(
            f"{name}, with batch first, has shape {x.shape}, expected {expected}: one for each "
            f"batch entry of {cache_name}"
        )
    own = x.dtype.newbyteorder("=")
    if not are_mixable(own, cache.dtype):
        raise TypeError(
            f"{cache_name} has dtype {cache.dtype}, expected {own}, in which the module computes; "
            f"make it with dtype=numpy.{own}"
        )
    if not stores:
        held, use = cache._read(layer)
        masking = masking._replace(key_lengths=[length - use.start for length in held.lengths])
        if cache.window is not None:
            raise ValueError(f"{cache_name} has window={cache.window}, but a memory has no positions")
        if held.lengths and not any(held.lengths):
            raise ValueError(f"{cache_name} is empty, expected a memory: see encode_memory")
        return Opened(use, masking, held.lengths, held.lengths, cache, None)
    if cache.window is not None:
        if masking.window is not None:
            raise ValueError(f"window was given, but the cache has its own, window={cache.window}: leave it out")
        masking = masking._replace(window=(cache.window, None))
    growth = cache._begin(layer, x.shape[1], lengths)
    masking = masking._replace(key_lengths=[length - growth.use.start for length in growth.after.lengths])
    if any(count != x.shape[1] for count in growth.counts):
        masking = masking._replace(query_lengths=growth.counts)
    return Opened(growth.use, masking, growth.before.lengths, growth.after.lengths, cache, growth)


def check_cache(cache: KVCache, name: str = "cache") -> None:
    """Require a KVCache."""
    if not isinstance(cache, KVCache):
        raise TypeError(f"{name} is of type {type(cache).__name__}, expected pyattn.KVCache")


def rotation_of(
    rotary: RotaryEmbedding | None, starts: tuple[int, ...], ends: tuple[int, ...], length: int
) -> Rotation | None:
    """Return the rotation of consecutive rows, for the core."""
    if rotary is None:
        return None
    seq_len = max(ends, default=0)
    if all(start == starts[0] for start in starts):
        return rotary.rotation(starts[0] if starts else 0, None, seq_len)
    return rotary.rotation(0, np.array(starts)[:, None] + np.arange(length), seq_len)

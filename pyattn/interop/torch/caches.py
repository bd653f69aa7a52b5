"""Keys and values of transformers' caches, extended in place."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NamedTuple

import torch

__all__ = ["extend"]

_LEAST_ROOM = 64  # tokens


class _Room(NamedTuple):
    """Memory with room for more tokens, and the part that the cache has: if it has another, nothing is written."""

    memory: torch.Tensor
    used: torch.Tensor


_rooms: weakref.WeakKeyDictionary[Any, dict[str, _Room]] = weakref.WeakKeyDictionary()  # of a cache's layers


def extend(cache: Any, key: torch.Tensor, value: torch.Tensor, index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Do as `cache.update`, which copies all keys and values for each token."""
    layer = _growing_layer(cache, index)
    if layer is None or not (_fits(layer.keys, key) and _fits(layer.values, value)):
        keys, values = cache.update(key, value, index)
        return keys, values
    layer.keys, layer.values = _append(layer, "keys", key), _append(layer, "values", value)
    return layer.keys, layer.values


def _growing_layer(cache: Any, index: int) -> Any:
    """Return the layer of a cache whose update would only join old and new tokens."""
    home = sys.modules["transformers.cache_utils"]
    if type(cache).update is not home.Cache.update or cache.offloading or index >= len(cache.layers):
        return None
    layer = cache.layers[index]
    return layer if type(layer) is home.DynamicLayer and layer.is_initialized else None


def _fits(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Tell whether tokens can be joined without another conversion."""
    return (
        type(old) is torch.Tensor
        and old.is_cpu
        and old.dtype == new.dtype
        and old.ndim == new.ndim == 4
        and old.shape[:2] == new.shape[:2]
        and old.shape[3] == new.shape[3]
    )


def _append(layer: Any, name: str, new: torch.Tensor) -> torch.Tensor:
    """Write tokens behind the old ones."""
    old, rooms = getattr(layer, name), _rooms.setdefault(layer, {})
    length, total = old.shape[2], old.shape[2] + new.shape[2]
    room = rooms.get(name)
    memory = room.memory if room is not None and room.used is old and total <= room.memory.shape[2] else None
    if memory is None or (memory.is_inference() and not torch.is_inference_mode_enabled()):
        more = max(_LEAST_ROOM, total // 4)
        memory = old.new_empty((*old.shape[:2], total + more, old.shape[3]))
        memory[:, :, :length] = old
    memory[:, :, length:total] = new
    rooms[name] = _Room(memory, memory[:, :, :total])
    return rooms[name].used

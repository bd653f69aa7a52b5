"""Conversion of a cache to named arrays for saving, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import bfloat16, is_stored_dtype
from pyattn._util.typing import CacheUse
from pyattn.cache.pages import PAGE, Layer, PageSizes, empty_layer, gather, grow

__all__ = ["Saved", "read_state", "state_of", "with_bits"]

VERSION = 1

State = Mapping[str, npt.NDArray[Any]]


class Saved(NamedTuple):
    """Contents of a saved cache."""

    window: int | None
    max_length: int | None
    sizes: PageSizes
    layers: list[Layer]


def state_of(saved: Saved) -> dict[str, npt.NDArray[Any]]:
    """Write a cache as arrays; batch entries get copies of shared pages."""
    sizes, layers = saved.sizes, saved.layers
    state = {
        "version": np.array(VERSION),
        "settings": np.array([-1 if n is None else n for n in (saved.window, saved.max_length)], np.int64),
        "sizes": np.array(sizes[:3], np.int64),
        "starts": np.array([layer.starts for layer in layers], np.int64),
        "lengths": np.array([layer.lengths for layer in layers], np.int64),
    }
    for n, layer in enumerate(layers):
        for name, array in zip(("key", "value"), gather(layer, sizes), strict=True):
            state[f"{n}.{name}"] = array
    return state


def with_bits(state: State) -> dict[str, npt.NDArray[Any]]:
    """Replace bfloat16, which .npz lacks, by uint16 of the same bits."""
    return {name: x.view(np.uint16) if x.dtype.name == "bfloat16" else x for name, x in state.items()}


def read_state(state: State) -> Saved:
    """Read what `state_of` wrote."""
    if int(_array(state, "version", 0)) != VERSION:
        raise ValueError(f"version is {state['version']}, expected {VERSION}")
    (window, max_length), numbers = (_array(state, name, 1).tolist() for name in ("settings", "sizes"))
    starts, lengths = _array(state, "starts", 2), _array(state, "lengths", 2)
    if len(numbers) != 3 or min(numbers) < 1:
        raise ValueError(f"sizes are {numbers}, expected three of 1 or more")
    if starts.shape != lengths.shape or len(starts) == 0:
        raise ValueError(f"starts have shape {starts.shape} and lengths {lengths.shape}, expected the same")
    if (starts < 0).any() or (starts > lengths).any() or (starts % PAGE).any():
        raise ValueError(f"starts are {starts.tolist()} and lengths {lengths.tolist()}")
    sizes = PageSizes(numbers[0], numbers[1], numbers[2], _floats(state, "0.key").dtype)
    window, max_length = (None if n < 0 else n for n in (window, max_length))
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    layers = [_layer(state, n, sizes, window, *pair) for n, pair in enumerate(pairs)]
    return Saved(window, max_length, sizes, layers)


def _layer(state: State, n: int, sizes: PageSizes, window: int | None, starts: list[int], lengths: list[int]) -> Layer:
    batches, start = len(starts), min(starts, default=0)
    rows = [_floats(state, f"{n}.{name}") for name in ("key", "value")]
    for name, array, dim in zip(("key", "value"), rows, (sizes.head_dim, sizes.v_head_dim), strict=True):
        expected = (batches, sizes.kv_heads, max(lengths, default=0) - start, dim)
        if array.shape != expected or array.dtype != sizes.dtype:
            raise ValueError(f"{n}.{name} is {array.shape} of {array.dtype}, expected {expected} of {sizes.dtype}")
    held = [length - own for length, own in zip(lengths, starts, strict=True)]
    layer = grow(empty_layer(batches), sizes, held, window)
    for b, count in enumerate(held):
        at = starts[b] - start
        key, value = (array[b : b + 1, :, at : at + count] for array in rows)
        use = CacheUse(layer.pages[b : b + 1], sizes.dtype, *sizes[:3], count, 0, (0,), (count,))
        _core.append_to_pages(use, key, value, "bhsd")
    return Layer(layer.pages, tuple(starts), tuple(lengths))


def _array(state: State, name: str, axes: int) -> npt.NDArray[Any]:
    """Read an int64 array with this number of axes."""
    if name not in state:
        raise ValueError(f"{name} is missing")
    array = state[name]
    if array.dtype != np.int64 or array.ndim != axes:
        raise ValueError(f"{name} has {array.ndim} axes and dtype {array.dtype}, expected {axes} and int64")
    return array


def _floats(state: State, name: str) -> npt.NDArray[Any]:
    if name not in state:
        raise ValueError(f"{name} is missing")
    found = state[name].dtype
    if found == np.uint16:  # from a .npz file
        return state[name].view(bfloat16())
    if not is_stored_dtype(found):
        raise ValueError(f"{name} has dtype {found}, expected float16, float32 or float64, or uint16 for bfloat16")
    return state[name]

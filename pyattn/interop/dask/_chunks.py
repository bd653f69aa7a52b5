"""The chunks of a call's arrays: how they are made to match, and where they lie."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

import pyattn._core as _core

Array = npt.NDArray[Any]
Index = tuple[int, ...]
Key = tuple[Hashable, ...]
Cut = tuple[slice, ...]  # of the axes of the scores, (..., heads, L, S)

CHUNK = 512
"""Parts of the keys begin at multiples of it, so that sums are those of one call."""

NUMPY_CHUNK = 4096
"""Tokens of a chunk of a NumPy array."""


def is_lazy(x: object) -> bool:
    """Tell a dask array from others."""
    return isinstance(x, da.Array)


def key_of(array: da.Array, index: Index) -> Key:
    """Return the key of the chunk that lies here in a grid to which an array broadcasts."""
    places = zip(array.chunks, index[len(index) - array.ndim :], strict=True)
    return (array.name, *(0 if len(chunks) == 1 else n for chunks, n in places))


def check_sizes(x: Any, name: str) -> None:
    """Raise if dask does not know the sizes of an array's chunks."""
    if is_lazy(x) and any(np.isnan(size) for size in x.shape):
        raise ValueError(
            f"{name} has chunks of unknown sizes, shape {x.shape}; call {name}.compute_chunk_sizes() first"
        )


def has_heads(axes: int, enable_gqa: bool) -> bool:
    """Tell whether axis -3 holds heads."""
    return axes > 3 or (axes == 3 and enable_gqa)


def _chunked(x: Array) -> da.Array:
    """Make a dask array of one that lies in memory."""
    return da.from_array(x, chunks=tuple(NUMPY_CHUNK if n == x.ndim - 2 else -1 for n in range(x.ndim)))


def arranged(query: Any, key: Any, value: Any, enable_gqa: bool) -> tuple[da.Array, da.Array, da.Array]:
    """Give the three arrays matching chunks, or raise."""
    named = {"query": query, "key": key, "value": value}
    arrays = {name: x if is_lazy(x) else _chunked(_core.as_array(x, name)) for name, x in named.items()}
    for name, x in arrays.items():
        check_sizes(x, name)
        if not 2 <= x.ndim <= 8:
            raise ValueError(f"{name} has shape {x.shape}, expected 2 to 8 axes: (..., length, dim)")
    for name, x in arrays.items():
        single = [axis for axis in range(x.ndim - 2) if x.shape[axis] == 1]  # without empty chunks beside the entry
        arrays[name] = x.rechunk({-1: -1, **dict.fromkeys(single, (1,))})
    starts = np.cumsum((0, *arrays["key"].chunks[-2][:-1]))
    if (starts % CHUNK).any():
        sizes = arrays["key"].chunks[-2]
        best = max(CHUNK, round(max(sizes) / CHUNK) * CHUNK)
        raise ValueError(
            f"key's chunks along axis -2 start at {starts[starts % CHUNK > 0][0]}, expected multiples of {CHUNK}, "
            f"where sums are cut; pass key.rechunk({{-2: {best}}})"
        )
    if arrays["value"].shape[-2] == arrays["key"].shape[-2]:
        arrays["value"] = arrays["value"].rechunk({-2: arrays["key"].chunks[-2]})
    axes = max(x.ndim for x in arrays.values())
    for axis in range(3, axes + 1):
        _align_axis(arrays, -axis, is_heads=has_heads(axes, enable_gqa) and axis == 3)
    return arrays["query"], arrays["key"], arrays["value"]


def _align_axis(arrays: dict[str, da.Array], axis: int, *, is_heads: bool) -> None:
    """Give all arrays the chunks that the first one with more than one entry on this axis has."""
    present = {name: x for name, x in arrays.items() if x.ndim >= -axis and x.shape[axis] != 1}
    if not present:
        return
    leader, first = next(iter(present.items()))
    chunks, size = first.chunks[axis], first.shape[axis]
    for name, x in present.items():
        group = size // x.shape[axis] if is_heads and x.shape[axis] > 0 and size % x.shape[axis] == 0 else 1
        if x.shape[axis] * group != size:
            continue  # the core says what is wrong
        if any(one % group for one in chunks):
            raise ValueError(
                f"{leader} has chunks of {chunks} heads, which cut a group of {group} that share a head of {name}; "
                f"pass {leader}.rechunk({{{axis}: {max(1, max(chunks) // group) * group}}})"
            )
        arrays[name] = x.rechunk({axis: tuple(one // group for one in chunks)})


@dataclass(frozen=True)
class Grid:
    """The chunks of the scores, (..., heads, L, S)."""

    chunks: tuple[tuple[int, ...], ...]
    heads: bool
    v_dim: int

    @classmethod
    def of(cls, arrays: tuple[da.Array, ...], shape: tuple[int, ...], enable_gqa: bool) -> Grid:
        """Read the chunks of arranged arrays whose output has this shape."""
        axes = len(shape)
        outer = []
        for axis in range(axes, 2, -1):
            having = [x.chunks[-axis] for x in arrays if x.ndim >= axis and x.shape[-axis] == shape[-axis]]
            outer.append(having[0])
        query, key, _ = arrays
        return cls((*outer, query.chunks[-2], key.chunks[-2]), has_heads(axes, enable_gqa), shape[-1])

    @property
    def scores(self) -> tuple[int, ...]:
        """Shape of the scores."""
        return tuple(sum(one) for one in self.chunks)

    @functools.cached_property
    def bounds(self) -> list[Array]:
        """Where chunks begin on each axis, and the end of the last."""
        return [np.cumsum((0, *one)) for one in self.chunks]

    def outer(self) -> Iterator[Index]:
        """Yield the numbers of the chunks of batch entries and heads."""
        return itertools.product(*(range(len(one)) for one in self.chunks[:-2]))

    def cut(self, index: Index) -> Cut:
        """Return the slices of a chunk of the scores."""
        return tuple(slice(int(bounds[n]), int(bounds[n + 1])) for bounds, n in zip(self.bounds, index, strict=True))

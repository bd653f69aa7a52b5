"""Checks of the arguments of a cache's methods: keys, values, queries and integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice
from pyattn._util.halves import are_mixable, as_float32, check_same_half, expression_of, is_half, is_stored_dtype
from pyattn._util.ids import as_integers
from pyattn._util.typing import Layout
from pyattn.cache.pages import PageSizes

__all__ = ["as_counts", "as_floats", "as_query", "as_rows"]

AXES = {"bhsd": "(batch_size, {heads}, {length}, {dim})", "bshd": "(batch_size, {length}, {heads}, {dim})"}


def as_rows(
    key: npt.ArrayLike, value: npt.ArrayLike, batches: int, sizes: PageSizes, layout: Layout
) -> tuple[tuple[npt.NDArray[Any], npt.NDArray[Any]], int]:
    """Read keys and values of new positions."""
    as_choice(layout, "layout", AXES)
    given = {name: as_floats(x, name, sizes.dtype) for name, x in (("key", key), ("value", value))}
    check_same_half(given.items())
    arrays = []
    for (name, rows), dim in zip(given.items(), (sizes.head_dim, sizes.v_head_dim), strict=True):
        array = as_float32(rows) if sizes.dtype == np.float32 else rows
        new = array.shape[_length_axis(layout)] if array.ndim == 4 else 0
        other: Layout = "bhsd" if layout == "bshd" else "bshd"
        if array.shape != _shape(batches, sizes.kv_heads, new, dim, layout):
            wanted = _shape(batches, sizes.kv_heads, "new", dim, layout)
            dim_name = "head_dim" if name == "key" else "v_head_dim"
            axes = AXES[layout].format(heads="num_kv_heads", length="new", dim=dim_name)
            fits = array.ndim == 4 and array.shape == _shape(
                batches, sizes.kv_heads, array.shape[_length_axis(other)], dim, other
            )
            hint = f"; if its axes are those of {other!r}, pass layout={other!r}" if fits else ""
            expected = ", ".join(map(str, wanted))
            raise ValueError(f"{name} has shape {array.shape}, expected ({expected}): {axes}{hint}")
        arrays.append(array)
    new, others = (array.shape[_length_axis(layout)] for array in arrays)
    if new != others:
        raise ValueError(f"value has {others} new positions but key has {new}")
    return (arrays[0], arrays[1]), new


def as_query(x: npt.ArrayLike, batches: int, sizes: PageSizes, layout: Layout) -> tuple[npt.NDArray[Any], int]:
    """Read queries and check their layout; the core checks the rest of the shape. The widest dtype is the result's."""
    as_choice(layout, "layout", AXES)
    query = as_floats(x, "query", sizes.dtype)
    query = as_float32(query) if sizes.dtype == np.float32 else query
    if query.ndim != 4 or query.shape[0] != batches:
        axes = AXES[layout].format(heads="heads", length="length", dim="head_dim")
        raise ValueError(f"query has shape {query.shape}, expected {axes}: the cache has {batches} batch entries")
    return query, query.shape[_length_axis(layout)]


def as_counts(x: npt.ArrayLike, name: str, batches: int, most: int | None) -> list[int]:
    """Read the number of positions of each batch entry."""
    array = as_integers(x, name)
    if array.shape not in ((), (batches,)):
        raise ValueError(f"{name} has shape {array.shape}, expected ({batches},): one for each batch entry")
    counts = [int(n) for n in array.ravel()] * (batches if array.ndim == 0 else 1)
    for n in counts:
        if n < 0 or (most is not None and n > most):
            expected = "0 or more" if most is None else f"0 <= n <= {most}"
            raise ValueError(f"{name} holds {n}, expected {expected}")
    return counts


def as_floats(x: npt.ArrayLike, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Read an array of the cache's dtype; float32 and one kind of half may meet, others are probably a mistake."""
    array = _core.as_array(x, name)
    found = array.dtype.newbyteorder("=")
    if are_mixable(found, dtype):
        return array
    other = f", or make the cache with dtype={expression_of(found)}" if is_stored_dtype(found) else ""
    raise TypeError(
        f"{name} has dtype {array.dtype}, expected {dtype} as the cache's{' or float32' if is_half(dtype) else ''}; "
        f"pass {_core.cast(x, name, expression_of(dtype))}{other}"
    )


def _length_axis(layout: Layout) -> int:
    return 1 if layout == "bshd" else 2


def _shape(batches: int, heads: int, length: Any, dim: int, layout: Layout) -> tuple[Any, ...]:
    return (batches, length, heads, dim) if layout == "bshd" else (batches, heads, length, dim)

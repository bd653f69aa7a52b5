"""Rows of any array as contiguous ones, some at a time.

A copy of all would take as much memory again, and NumPy hears no Ctrl-C while it makes one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["compute_rows"]

SLAB = 4 << 20  # bytes


def compute_rows(
    moved: npt.NDArray[Any],
    kept: int,
    compute: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    target: npt.NDArray[Any],
) -> None:
    """Fill an array with what a function of contiguous rows gives."""
    size = math.prod(moved.shape[kept:])
    for slab in _slabs(moved.shape[:kept], size * moved.itemsize) if moved.size else ():
        part = moved[slab]
        rows = np.ascontiguousarray(part).reshape(part.size // size, size)
        target[slab] = compute(rows).reshape(target[slab].shape)


def _slabs(shape: tuple[int, ...], row_bytes: int) -> Iterator[tuple[int | slice, ...]]:
    """Index rows of this shape by as many at a time as fit into a slab, one at least."""
    axis = len(shape)
    while axis > 0 and row_bytes * shape[axis - 1] <= SLAB:
        axis -= 1
        row_bytes *= shape[axis]
    if axis == 0:
        yield ()
        return
    step = max(1, SLAB // row_bytes)
    for outer in np.ndindex(shape[: axis - 1]):
        for start in range(0, shape[axis - 1], step):
            yield (*outer, slice(start, start + step))

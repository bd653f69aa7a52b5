"""Apply functions of contiguous rows to any array, slab by slab.

Copying the whole array would double the memory, and NumPy does not react to Ctrl-C while it copies.
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
    outer_axes: int,
    compute: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    target: npt.NDArray[Any],
) -> None:
    """Fill target with a function of contiguous rows, slab by slab."""
    size = math.prod(moved.shape[outer_axes:])
    for slab in _slabs(moved.shape[:outer_axes], size * moved.itemsize) if moved.size else ():
        part = moved[slab]
        rows = np.ascontiguousarray(part).reshape(part.size // size, size)
        target[slab] = compute(rows).reshape(target[slab].shape)


def _slabs(shape: tuple[int, ...], row_bytes: int) -> Iterator[tuple[int | slice, ...]]:
    """Yield indices of rows of this shape, as many at a time as fit into a slab, at least one."""
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

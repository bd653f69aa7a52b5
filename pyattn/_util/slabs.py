"""Apply functions of contiguous rows to any array, slab by slab.

Copying the whole array would double the memory, and NumPy does not react to Ctrl-C while it copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["compute_rows"]

SLAB = 4 << 20  # bytes


def compute_rows(
    moved: npt.NDArray[Any] | Sequence[npt.NDArray[Any]],
    outer_axes: int,
    compute: Callable[..., npt.NDArray[Any]],
    target: npt.NDArray[Any],
) -> None:
    """Fill target with a function of contiguous rows, of one array or of several of one shape, slab by slab."""
    arrays = [moved] if isinstance(moved, np.ndarray) else moved
    first = arrays[0]
    size = math.prod(first.shape[outer_axes:])
    for slab in _slabs(first.shape[:outer_axes], size * first.itemsize) if first.size else ():
        parts = [array[slab] for array in arrays]
        rows = (np.ascontiguousarray(part).reshape(part.size // size, size) for part in parts)
        target[slab] = compute(*rows).reshape(target[slab].shape)


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

"""Types of arguments and results, and the tuples that the core takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # numpy.random is imported by the first draw
    from numpy.random import Generator, SeedSequence

__all__ = [
    "RNG",
    "Align",
    "CacheUse",
    "Convention",
    "EmptyRows",
    "FloatArray",
    "IntArray",
    "Layout",
    "Rotation",
    "Score",
    "Window",
]

Array: TypeAlias = npt.NDArray[Any]
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
Align: TypeAlias = Literal["upper_left", "lower_right"]
Convention: TypeAlias = Literal["row", "column"]
EmptyRows: TypeAlias = Literal["zero", "nan"]
Layout: TypeAlias = Literal["bhsd", "bshd"]
RNG: TypeAlias = "int | SeedSequence | Generator | None"
Score: TypeAlias = Literal["dot", "cosine", "distance", "bilinear", "additive"]
Window: TypeAlias = SupportsIndex | tuple[SupportsIndex | None, SupportsIndex | None] | None


class Rotation(NamedTuple):
    """How queries and keys are rotated with their positions, in the core's order."""

    inv_freq: npt.NDArray[np.float64]
    scale: float
    offset: int
    position_ids: npt.ArrayLike | None
    interleaved: bool


class CacheUse(NamedTuple):
    """How a call uses a layer of a KV cache, in the core's order."""

    pages: Sequence[Sequence[Array]]
    """Of each batch entry."""
    kv_heads: int
    head_dim: int
    v_head_dim: int
    length: int
    """Positions of the longest batch entry, from `start` on."""
    start: int
    """Position of each first page's first row."""
    first: tuple[int, ...] | None = None
    """Where each batch entry's new rows go, counted from `start`. None: the call adds no rows."""
    new: tuple[int, ...] | None = None
    """How many rows each batch entry gets."""

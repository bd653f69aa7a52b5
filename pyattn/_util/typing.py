"""Types of arguments and results, and tuples for the core."""

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
    "Axis",
    "CacheUse",
    "Convention",
    "Corner",
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
Corner: TypeAlias = Literal["upper_left", "lower_right"]
Align: TypeAlias = Corner | SupportsIndex  # an int: the position of query 0 among the keys
Axis: TypeAlias = SupportsIndex | tuple[SupportsIndex, ...] | None  # one, several or all
Convention: TypeAlias = Literal["row", "column"]
EmptyRows: TypeAlias = Literal["zero", "nan"]
Layout: TypeAlias = Literal["bhsd", "bshd"]
RNG: TypeAlias = "int | SeedSequence | Generator | None"
Score: TypeAlias = Literal["dot", "cosine", "distance", "bilinear", "additive"]
Window: TypeAlias = SupportsIndex | tuple[SupportsIndex | None, SupportsIndex | None] | None


class Rotation(NamedTuple):
    """Rotary position embedding of queries and keys, in the core's order."""

    inv_freq: npt.NDArray[np.float64]
    scale: float
    offset: int
    position_ids: npt.ArrayLike | None
    interleaved: bool


class CacheUse(NamedTuple):
    """One call's use of a layer of a KV cache, in the core's order."""

    pages: Sequence[Sequence[Array]]
    """Pages of each batch entry."""
    dtype: np.dtype[Any]
    """The pages' dtype."""
    kv_heads: int
    head_dim: int
    v_head_dim: int
    length: int
    """Number of positions of the longest batch entry, counted from `start`."""
    start: int
    """Position of the first row of every first page."""
    first: tuple[int, ...] | None = None
    """First new row of each batch entry, counted from `start`; None if the call only reads."""
    new: tuple[int, ...] | None = None
    """Number of new rows of each batch entry."""

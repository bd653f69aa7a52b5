"""What the core is told of positions: how rows turn with theirs, and where a cache keeps keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CacheUse", "Turning"]


class Turning(NamedTuple):
    """How queries and keys turn, in the core's order; as `pyattn.rotary.turn` takes them."""

    inv_freq: npt.NDArray[np.float64]
    scale: float
    offset: int
    position_ids: npt.ArrayLike | None
    interleaved: bool


class CacheUse(NamedTuple):
    """How a call uses a layer of a cache, in the core's order."""

    pages: Sequence[Sequence[npt.NDArray[Any]]]
    """Of each batch entry."""
    kv_heads: int
    head_dim: int
    v_head_dim: int
    length: int
    """Positions of the longest batch entry, from `start` on."""
    start: int
    """Position of each first page's first row."""
    first: tuple[int, ...] | None = None
    """Where each batch entry's new rows go, counted from `start`. None: no rows come."""
    new: tuple[int, ...] | None = None
    """How many rows each batch entry gets."""

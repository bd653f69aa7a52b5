"""Ids of tokens, and how many of a row's tokens count, as callers give them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core

__all__ = ["IntArray", "as_array_of_ids", "as_ids", "check_range", "read_lengths"]

IntArray = npt.NDArray[np.integer[Any]]


def as_array_of_ids(x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Read an array of whatever numbers; rows of different lengths are told what to do."""
    try:
        return _core.as_array(x, name)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        hint = "pyattn.generation.pad_sequences makes an array of them, and tells their lengths"
        raise ValueError(f"{name} has rows of different lengths, expected an array of ids: {hint}") from error


def as_ids(x: npt.ArrayLike, name: str, count: int | None) -> IntArray:
    """Read token ids."""
    ids = as_array_of_ids(x, name)
    if ids.dtype.kind not in "iu":
        if ids.size:
            raise TypeError(f"{name} has dtype {ids.dtype}, expected integers: ids of tokens")
        return ids.astype(np.int64)
    check_range(ids, name, count)
    return ids


def check_range(ids: IntArray, name: str, count: int | None, why: str = "") -> None:
    """Refuse ids for which there is nothing."""
    if ids.size == 0 or (ids.min() >= 0 and (count is None or ids.max() < count)):
        return
    wrong = ids < 0 if count is None else (ids < 0) | (ids >= count)
    place = tuple(map(int, np.argwhere(wrong)[0]))
    expected = "0 or more" if count is None else f"0 <= id < {count}"
    raise ValueError(f"{name} holds {ids[place]} at index {place}, expected {expected}{why and f': {why}'}")


def read_lengths(
    x: npt.ArrayLike, name: str, shape: tuple[int, ...], *, least: int = 0, most: int | None = None
) -> IntArray:
    """Read how many tokens of each row count."""
    ends = _core.as_array(x, name)
    if ends.dtype.kind not in "iu" and ends.size:
        raise TypeError(f"{name} has dtype {ends.dtype}, expected integers")
    if ends.shape != shape:
        raise ValueError(f"{name} has shape {ends.shape}, expected {shape}: one for each row")
    wrong = ends[(ends < least) | (ends > most)] if most is not None else ends[:0]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}, expected {least} <= length <= {most}")
    return ends

"""Token ids, and the number of tokens in each row, as callers pass them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.typing import IntArray

__all__ = ["as_array_of_ids", "as_ids", "as_integers", "as_signed_ids", "read_lengths"]


def as_array_of_ids(x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """View x as an array of any dtype; the error for rows of different lengths names pad_sequences."""
    try:
        return _core.as_array(x, name)
    except ValueError as error:
        if "rows of different lengths" not in str(error):
            raise
        fix = f"ids, lengths = pyattn.generation.pad_sequences({name}) pads them; pass ids, and lengths by name"
        raise ValueError(f"{name} has rows of different lengths; {fix}") from None


def as_integers(x: npt.ArrayLike, name: str) -> IntArray:
    """Read an array of integers, such as lengths, of any sign and shape; an empty list is read as int64."""
    return _require_integers(_core.as_array(x, name), x, name, "integers")


def as_signed_ids(x: npt.ArrayLike, name: str) -> IntArray:
    """Read an array of token ids of any sign and shape; an empty list is read as int64."""
    ids = as_array_of_ids(x, name)
    if ids.size and ids.dtype.kind in "US":
        raise TypeError(f"{name} has dtype {ids.dtype}, expected integers: token ids, which a tokenizer makes of text")
    return _require_integers(ids, x, name, "integers: token ids")


def _require_integers(array: npt.NDArray[Any], x: npt.ArrayLike, name: str, expected: str) -> IntArray:
    """Return the array that x was read as, if it is empty or of integers."""
    kind = array.dtype.kind
    if kind in "iu":
        return array
    if not array.size:
        return array.astype(np.int64)
    if kind == "O" and any(isinstance(one, int) and not -(2**63) <= one < 2**63 for one in array.flat):
        raise ValueError(f"{name} holds an int outside the range of int64")
    if kind == "b" and name.endswith("lengths"):
        raise TypeError(f"{name} has dtype bool, expected integers, not a mask")
    fix = f"; pass {_core.cast(x, name, 'numpy.int64')}" if kind in "bfO" else ""
    raise TypeError(f"{name} has dtype {array.dtype}, expected {expected}{fix}")


def as_ids(x: npt.ArrayLike, name: str, count: int | None = None) -> IntArray:
    """Read an array of token ids of any shape: 0 or more and, if count is given, less than count."""
    ids = as_signed_ids(x, name)
    if ids.size == 0 or (ids.min() >= 0 and (count is None or ids.max() < count)):
        return ids
    wrong = ids < 0 if count is None else (ids < 0) | (ids >= count)
    index = tuple(map(int, np.argwhere(wrong)[0]))
    expected = "0 or more" if count is None else f"0 <= id < {count}"
    raise ValueError(f"{name} holds {ids[index]} at index {index}, expected {expected}")


def read_lengths(
    x: npt.ArrayLike, name: str, shape: tuple[int, ...], *, least: int = 0, most: int | None = None
) -> IntArray:
    """Read the number of tokens in each row; without `most`, the caller checks the range."""
    lengths = as_integers(x, name)
    if lengths.shape != shape:
        raise ValueError(f"{name} has shape {lengths.shape}, expected {shape}: one length per row")
    wrong = lengths[(lengths < least) | (lengths > most)] if most is not None else lengths[:0]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}, expected {least} <= length <= {most}")
    return lengths

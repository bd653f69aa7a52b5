"""Sizes and dtypes among the arguments of what makes arrays."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

__all__ = ["FLOATS", "as_count", "as_float_dtype"]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def as_count(x: SupportsIndex, name: str, *, least: int) -> int:
    """Read a size.

    Parameters
    ----------
    x : int
        `least` or more.
    name : str
        What messages call it.
    least : int
        The smallest that makes sense.

    Returns
    -------
    int
        As a Python int.

    Raises
    ------
    TypeError
        x is not an integer.
    ValueError
        x is too small.
    """
    try:
        n = operator.index(x)
    except TypeError:
        raise TypeError(f"{name} is of type {type(x).__name__}, expected an int") from None
    if n < least:
        raise ValueError(f"{name} is {n}, expected {least} or more")
    return n


def as_float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Read the dtype of what is to be made.

    Parameters
    ----------
    dtype : dtype
        float32 or float64. None, which NumPy reads as float64 and torch as float32, is neither.

    Returns
    -------
    dtype
        In native byte order.

    Raises
    ------
    TypeError
        dtype is something else.
    """
    found = np.dtype(dtype).newbyteorder("=")
    if dtype is None or found not in FLOATS:
        name = None if dtype is None else found
        raise TypeError(f"dtype is {name}, expected numpy.float32 or numpy.float64")
    return found

"""Integers, numbers, flags, words and dtypes among the arguments."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.messages import short_repr

__all__ = [
    "FLOATS",
    "as_choice",
    "as_count",
    "as_finite",
    "as_flag",
    "as_float_dtype",
    "as_index",
    "as_number",
    "as_probability",
]


FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_NO_NUMBERS = "bcmMSU"  # kinds of NumPy's scalars that float() reads all the same


def as_index(x: SupportsIndex, name: str, expected: str = "an int") -> int:
    """Read an integer. A bool is likelier a mistake than one."""
    try:
        n = None if isinstance(x, bool) else operator.index(x)
    except TypeError:
        n = None
    if n is None:
        raise TypeError(f"{name} is of type {type(x).__name__}, expected {expected}")
    return n


def as_count(x: SupportsIndex, name: str, *, least: int, most: int = sys.maxsize) -> int:
    """Read a size."""
    n = as_index(x, name)
    if n > most:  # it may have more digits than a message
        raise ValueError(f"{name} is too large, expected at most {most}")
    if n < least:
        raise ValueError(f"{name} is {short_repr(n)}, expected {least} or more")
    return n


def as_number(x: SupportsFloat, name: str) -> float:
    """Read a number, which may be infinite or NaN. A bool is likelier a mistake than one."""
    kind = getattr(getattr(x, "dtype", None), "kind", "f")
    if isinstance(x, bool) or not isinstance(x, SupportsFloat) or kind in _NO_NUMBERS or getattr(x, "ndim", 0) > 0:
        raise TypeError(f"{name} is of type {type(x).__name__}, expected a number")
    try:
        return float(x)
    except OverflowError:
        raise ValueError(f"{name} is too large, expected a finite number") from None


def as_finite(x: SupportsFloat, name: str, *, least: float = -math.inf, above: float = -math.inf) -> float:
    """Read a finite number."""
    number = as_number(x, name)
    if math.isfinite(number) and number >= least and number > above:
        return number
    limit = f" of {least:g} or more" if least > -math.inf else f" above {above:g}" if above > -math.inf else ""
    raise ValueError(f"{name} is {x}, expected a finite number{limit}")


def as_probability(x: SupportsFloat, name: str) -> float:
    """Read a probability."""
    p = as_number(x, name)
    if not 0 <= p <= 1:
        raise ValueError(f"{name} is {x}, expected a probability from 0 to 1")
    return p


def as_float_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Read the dtype of what is to be made."""
    found = np.dtype(dtype).newbyteorder("=")
    if dtype is None or found not in FLOATS:
        name = None if dtype is None else found
        raise TypeError(f"dtype is {name}, expected numpy.float32 or numpy.float64")
    return found


def as_flag(x: bool, name: str) -> bool:
    """Read an option that is True or False. Other objects have a truth, too, and that of "no" is True."""
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name} is of type {type(x).__name__}, expected True or False")
    return bool(x)


def as_choice(x: object, name: str, choices: Iterable[Any]) -> Any:
    """Read one of a few words, None among them where the caller lists it; an array is refused, not compared."""
    known = list(choices)
    if (x is None or isinstance(x, str)) and x in known:
        return x
    given = short_repr(x) if x is None or isinstance(x, str) else f"of type {type(x).__name__}"
    expected = ", ".join(map(repr, known[:-1])) + " or " + repr(known[-1])
    raise ValueError(f"{name} is {given}; it must be {expected}")

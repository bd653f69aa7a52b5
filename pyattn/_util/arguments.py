"""Integers, numbers, flags, words and dtypes among the arguments."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

from pyattn._util.messages import short_repr

__all__ = [
    "FLOATS",
    "as_choice",
    "as_choices",
    "as_count",
    "as_finite",
    "as_flag",
    "as_index",
    "as_number",
    "as_probability",
    "as_scale",
    "is_collection",
]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
_NO_NUMBERS = "bcmMSU"  # kinds of NumPy scalars that float() accepts, but that are not numbers here


def as_index(x: SupportsIndex | None, name: str, expected: str = "an int") -> int:
    """Read an integer, but not a bool, which is probably a mistake."""
    try:
        n = None if x is None or isinstance(x, bool) else operator.index(x)
    except TypeError:
        n = None
    if n is None:
        raise TypeError(f"{name} is of type {type(x).__name__}, expected {expected}")
    return n


def as_count(
    x: SupportsIndex | None, name: str, *, least: int, most: int = sys.maxsize, default: int | None = None
) -> int:
    """Read a size, which may be None where a default is given."""
    n = as_index(default if x is None else x, name)
    if n > most:  # not quoted: n may have very many digits
        raise ValueError(f"{name} is too large, expected at most {most}")
    if n < least:
        raise ValueError(f"{name} is {short_repr(n)}, expected {least} or more")
    return n


def as_number(x: SupportsFloat, name: str) -> float:
    """Read a number, possibly infinite or NaN, but not a bool, which is probably a mistake."""
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


def as_scale(x: SupportsFloat | None) -> float | None:
    """Read the factor of the scores; None stands for 1 / sqrt(head_dim)."""
    if isinstance(x, (bool, np.bool_)):
        raise TypeError(
            "scale is of type bool, expected a number; pass 1 not to scale, or leave it out for the default"
        )
    return None if x is None else as_finite(x, "scale")


def as_probability(x: SupportsFloat, name: str) -> float:
    """Read a probability."""
    p = as_number(x, name)
    if not 0 <= p <= 1:
        raise ValueError(f"{name} is {x}, expected a probability from 0 to 1")
    return p


def is_collection(x: object) -> bool:
    """Tell arrays, lists and dicts from numbers, of NumPy too."""
    return isinstance(x, (list, tuple, Mapping)) or getattr(x, "shape", ()) != ()


def as_flag(x: bool | None, name: str, *, default: bool | None = None) -> bool:
    """Read an option that is True or False; reject truthy non-bools such as "no"."""
    x = default if x is None else x
    if not isinstance(x, (bool, np.bool_)):
        raise TypeError(f"{name} is of type {type(x).__name__}, expected True or False")
    return bool(x)


def as_choice(x: object, name: str, choices: Collection[Any], *, other: str = "") -> Any:
    """Read one of a few words, or None if listed; `other` tells the message what else the caller takes."""
    # An array is refused, not compared with each word.
    if (x is None or isinstance(x, str)) and x in choices:
        return x
    known = [*map(repr, choices), *([other] if other else [])]
    given = short_repr(x) if x is None or isinstance(x, str) else f"of type {type(x).__name__}"
    expected = ", ".join(known[:-1]) + " or " + known[-1]
    raise ValueError(f"{name} is {given}; it must be {expected}")


def as_choices(x: str | Iterable[str], name: str, choices: Collection[str]) -> list[str]:
    """Read one or some of a few words."""
    if not isinstance(x, Iterable):
        raise TypeError(f"{name} is of type {type(x).__name__}, expected some of {', '.join(map(repr, choices))}")
    words = [x] if isinstance(x, str) else list(x)
    for word in words:
        as_choice(word, name, choices)
    return words

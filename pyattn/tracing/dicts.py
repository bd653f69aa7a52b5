"""Convert the fields of a trace to values for JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["MAX_LISTED", "as_plain", "check_entries", "read_numbers"]

MAX_LISTED = 2**18
"""Numbers of an array that is computed from others, in a dict: a list of a million floats takes 32 MB."""


def as_plain(x: Any) -> Any:
    """Convert an array to nested lists; NaN and infinities become strings. Other values are returned unchanged."""
    if isinstance(x, float):
        return _spell(x)
    if not isinstance(x, np.ndarray):
        return list(x) if isinstance(x, list) else x
    finite = x.dtype == np.bool_ or bool(np.isfinite(x).all())
    return x.tolist() if finite else _spell(x.tolist())


def _spell(x: Any) -> Any:
    """Replace infinities and NaN by strings that `float` reads."""
    if isinstance(x, list):
        return [_spell(entry) for entry in x]
    if math.isfinite(x):
        return x
    return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"


def check_entries(entries: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise TypeError if entries is not a mapping, ValueError if a field is missing."""
    if not isinstance(entries, Mapping):
        raise TypeError(f"entries is of type {type(entries).__name__}, expected what to_dict() returned")
    missing = [name for name in names if name not in entries]
    if missing:
        raise ValueError(f"entries lacks {', '.join(missing)}: pass what to_dict() returned")


def read_numbers(entries: Mapping[str, Any], name: str) -> Any:
    """Read an array from a dict, including the strings that `as_plain` writes; None stays None."""
    try:
        return None if entries[name] is None else np.array(entries[name], np.float64)
    except (OverflowError, RecursionError, TypeError, ValueError) as problem:
        raise ValueError(f"{name} must be a matrix of numbers: {problem}") from None

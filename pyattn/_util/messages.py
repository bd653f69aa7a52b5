"""Values that a message quotes: readable, however long or deep they are."""

from __future__ import annotations

import reprlib
from typing import Any

__all__ = ["short_repr"]

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 60, 60


def short_repr(value: Any) -> str:
    """Write a value's repr, cut to some 60 characters where it is longer."""
    return _SHORT.repr(value)

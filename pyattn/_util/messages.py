"""Short reprs of values, for messages."""

from __future__ import annotations

import reprlib
from typing import Any

__all__ = ["short_repr"]

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 60, 60


def short_repr(value: Any) -> str:
    """Return a value's repr, shortened to about 60 characters."""
    return _SHORT.repr(value)

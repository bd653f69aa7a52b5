"""Read a config.json; each value is checked for its type and range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pyattn._util.messages import short_repr

__all__ = ["MAX_SIZE", "Config"]

MAX_SIZE = 10**8  # of one axis; products of two such sizes fit into int64


class Config:
    """The values of a config.json; unused entries are ignored."""

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = dict(values)
        self.source = source  # the path, for messages

    def count(self, name: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """Read an integer from `least` to `most`; without a default it is required."""
        value = self.values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(name, f"an int from {least} to {most}")
        return value

    def padding(self, words: int, default: int | None = None) -> int | None:
        """Read pad_token_id, an id of so many words; a negative one counts from the end. None if it is null."""
        if self.values.get("pad_token_id", default) is None:
            return None
        return self.count("pad_token_id", default, least=-words, most=words - 1)

    def number(self, name: str, default: float) -> float:
        """Read a finite number of 0 or more."""
        value = self.values.get(name, default)
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise self.error(name, "a finite number of 0 or more")
        try:
            return float(value)
        except OverflowError:
            raise self.error(name, "a finite number of 0 or more") from None

    def flag(self, name: str, default: bool) -> bool:
        """Read true or false."""
        value = self.values.get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def choice(self, name: str, default: str | None, choices: Mapping[str, Any]) -> Any:
        """Read a string that must be a key of `choices`, and return its value there."""
        value = self.values.get(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.error(name, f"one of {', '.join(map(repr, choices))}")
        return choices[value]

    def require(self, allowed: Mapping[str, tuple[Any, ...]]) -> None:
        """Raise an error for unsupported values: each name must be absent, null or have one of its allowed values."""
        for name, values in allowed.items():
            value = self.values.get(name)
            if value is not None and not any(type(value) is type(one) and value == one for one in values):
                raise self.error(name, f"{' or '.join(map(repr, values)) or 'no value'}; nothing else is supported")

    def error(self, name: str, expected: str) -> ValueError:
        """Make the error for a missing or invalid value."""
        value = f"is {short_repr(self.values[name])}" if name in self.values else "is missing"
        return ValueError(f"{self.source}: {name} {value}, expected {expected}")

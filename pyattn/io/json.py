"""Read the JSON files of models; invalid content raises ValueError with the name of the file."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["parse_object", "read_json", "read_object"]

MAX_BYTES = 64 << 20  # a hundred times the largest index of a published model


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    return _as_object(read_json(path), os.fspath(path))


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a file that holds any JSON value."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise ValueError(f"{name} has {size} bytes, expected at most {MAX_BYTES} for a file of JSON")
        return _parse(file.read(size), name)  # only the checked size, even if the file grows


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Read a JSON object in UTF-8; messages refer to it by `name`."""
    return _as_object(_parse(text, name), name)


def _as_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} holds a JSON {type(value).__name__}, expected an object: {{...}}")
    return value


def _parse(text: bytes, name: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))  # some editors write a byte-order mark
    except RecursionError:
        raise ValueError(f"{name} is damaged or not JSON: it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name} is damaged or not JSON: {error}") from error

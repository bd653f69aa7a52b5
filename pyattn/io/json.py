"""JSON as files of models hold it, with one kind of error for all that can be wrong in it."""

from __future__ import annotations

import json
import os
import reprlib
import stat
from typing import Any

__all__ = ["check_is_file", "parse_object", "read_object", "read_value", "shown"]

MOST_BYTES = 64 << 20  # of a file that is JSON alone; the longest index of a published model has a hundredth of that
MOST_DIGITS = 25  # more than any size in bytes has: Python is slow at reading long integers

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 60, 60


def shown(value: Any) -> str:
    """Write what a file holds into a message, however long or deep it is.

    Parameters
    ----------
    value : object
        Of a file of JSON.

    Returns
    -------
    str
        Its repr, or the beginnings of that.
    """
    return _SHORT.repr(value)


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that holds an object.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    dict
        In the file's order.

    Raises
    ------
    ValueError
        It is too long, no JSON, or not an object.
    OSError
        It cannot be read.
    """
    return _as_object(read_value(path), os.fspath(path))


def read_value(path: str | os.PathLike[str]) -> Any:
    """Read a file that holds any value.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    object
        As Python has it.

    Raises
    ------
    ValueError
        It is too long, or no JSON.
    OSError
        It cannot be read.
    """
    name = os.fspath(path)
    check_is_file(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"{name} has {size} bytes, expected a short file of JSON: {MOST_BYTES} at most")
        return _parse(file.read(size), name)  # without a size it would take as much memory as the file grows to


def check_is_file(path: str | os.PathLike[str]) -> None:
    """Refuse what is there and no file: a folder, or a pipe, which would have to be waited for.

    Parameters
    ----------
    path : str or path
        Of what is to be read.

    Raises
    ------
    ValueError
        It is something else.
    OSError
        It is not there.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{os.fspath(path)} is no file")


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Read an object.

    Parameters
    ----------
    text : bytes
        JSON in UTF-8.
    name : str
        What messages call it.

    Returns
    -------
    dict
        In its order.

    Raises
    ------
    ValueError
        It is no JSON, or not an object; a key comes twice.
    """
    return _as_object(_parse(text, name), name)


def _as_object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} holds a JSON {type(value).__name__}, expected an object: {{...}}")
    return value


def _parse(text: bytes, name: str) -> Any:
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_without_repetition, parse_int=_short_int)
    except RecursionError:
        raise ValueError(f"{name} is damaged, or no JSON: it is nested too deeply") from None
    except ValueError as error:  # of the bytes, of the text or of what it says
        raise ValueError(f"{name} is damaged, or no JSON: {error}") from error


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict; of a key that comes twice, readers disagree which value counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {shown(twice)} comes twice")
    return found


def _short_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits, expected {MOST_DIGITS} at most")
    return int(digits)

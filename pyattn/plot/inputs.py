"""Read the arguments of the pictures: arrays, tokens and titles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core

__all__ = ["Array", "Tokens", "read_matrix", "read_title", "read_tokens"]

Array = npt.NDArray[Any]
Tokens = Sequence[object]

_ARRAY_IN = {"heads": "[head.weights for head in {}.heads]", "weights": "{}.weights"}
"""Attribute of an object passed instead of an array: the expression that gives the array."""


def read_matrix(x: npt.ArrayLike, name: str, shape: str, otherwise: str) -> Array:
    """Read a nonempty array of real numbers with the axes of `shape` as float64; NaN and infinities are allowed."""
    found = next((expression for attribute, expression in _ARRAY_IN.items() if hasattr(x, attribute)), None)
    if found is not None:
        raise TypeError(f"{name} is of type {type(x).__name__}, expected an array {shape}; pass {found.format(name)}")
    array = _core.as_real(x, name)
    axes = shape.count(",") + 1
    if array.ndim != axes:
        hint = f"; {otherwise}" if array.ndim > axes else ""
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}{hint}")
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}; it must not be empty")
    return np.asarray(array, dtype=np.float64)


def read_title(title: str | None, name: str = "title") -> str | None:
    """Read the title of a picture or the name of an axis, a str or None."""
    if title is not None and not isinstance(title, str):
        raise TypeError(f"{name} is of type {type(title).__name__}, expected str or None")
    return title


def read_tokens(tokens: Tokens | None, name: str, count: int, of: str) -> list[str]:
    """Read the names of the positions along one axis; None numbers them from 0."""
    if tokens is None:
        return [str(position) for position in range(count)]
    if isinstance(tokens, (str, bytes)):
        raise TypeError(f"{name} is one text, expected a sequence of {count} tokens: {name}.split() perhaps")
    try:
        texts = [str(token) for token in tokens]
    except TypeError:
        raise TypeError(f"{name} is of type {type(tokens).__name__}, expected a sequence of tokens") from None
    if len(texts) != count:
        raise ValueError(f"{name} has {len(texts)} tokens, expected {count}: {of}")
    return texts

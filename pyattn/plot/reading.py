"""What the pictures are given: arrays, and the tokens beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core

__all__ = ["Array", "Tokens", "read_matrix", "read_title", "read_tokens"]

Array = npt.NDArray[Any]
Tokens = Sequence[object]

_WITHIN = {"heads": "[head.weights for head in {}.heads]", "weights": "{}.weights"}
"""Attribute of what is given in place of an array: where the array is."""


def read_matrix(x: npt.ArrayLike, name: str, shape: str, otherwise: str) -> Array:
    """Read an array of as many axes as shape says, with something in it, as float64.

    Parameters
    ----------
    x : array_like
        Real numbers; NaN and infinities are allowed.
    name : str
        What messages call it.
    shape : str
        What is expected, such as '(L, S)'.
    otherwise : str
        What to do with an array of more axes.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    ValueError
        It has another number of axes, or is empty.
    TypeError
        It is no array of real numbers, but a trace or a result that has one, for instance.
    """
    within = next((way for attribute, way in _WITHIN.items() if hasattr(x, attribute)), None)
    if within is not None:
        raise TypeError(f"{name} is of type {type(x).__name__}, expected an array {shape}; pass {within.format(name)}")
    array = _core.as_real(x, name)
    axes = shape.count(",") + 1
    if array.ndim != axes:
        hint = f"; {otherwise}" if array.ndim > axes else ""
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}{hint}")
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: there is nothing to draw")
    return np.asarray(array, dtype=np.float64)


def read_title(title: str | None) -> str | None:
    """Read what is written above.

    Parameters
    ----------
    title : str or None
        As the caller gave it.

    Returns
    -------
    str or None

    Raises
    ------
    TypeError
        It is something else.
    """
    if title is not None and not isinstance(title, str):
        raise TypeError(f"title is of type {type(title).__name__}, expected str or None")
    return title


def read_tokens(tokens: Tokens | None, name: str, count: int, of: str) -> list[str]:
    """Read the names of the positions along one axis.

    Parameters
    ----------
    tokens : sequence or None
        Whatever has a text; None numbers the positions from 0.
    name : str
        What messages call it.
    count : int
        How many there must be.
    of : str
        Of what they are the names, for messages.

    Returns
    -------
    list of str

    Raises
    ------
    TypeError
        It is no sequence, or one text.
    ValueError
        There are more or fewer.
    """
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

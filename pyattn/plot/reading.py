"""What the pictures are given: arrays, and the tokens beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn import _core

__all__ = ["Array", "Tokens", "read_matrix", "read_tokens"]

Array = npt.NDArray[Any]
Tokens = Sequence[object]


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
        It is no array of real numbers.
    """
    array = _core.as_real(x, name)
    axes = shape.count(",") + 1
    if array.ndim != axes:
        hint = f"; {otherwise}" if array.ndim > axes else ""
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}{hint}")
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}: there is nothing to draw")
    return np.asarray(array, dtype=np.float64)


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

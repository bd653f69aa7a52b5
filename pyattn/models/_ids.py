"""What an encoder is called with: ids of tokens, of their types and positions, and which of them are padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.ids import IntArray, as_array_of_ids

__all__ = ["as_ids", "as_padding", "as_tokens"]


def as_tokens(x: npt.ArrayLike) -> IntArray:
    """Read input_ids.

    Parameters
    ----------
    x : array_like of int, (N, L)
        As the caller gave them.

    Returns
    -------
    ndarray, (N, L)
        Without a copy where NumPy can view x.

    Raises
    ------
    TypeError
        x holds no integers.
    ValueError
        It has another shape, or L is 0.
    """
    ids = as_array_of_ids(x, "input_ids")
    if ids.ndim != 2:
        offer = "; for one sequence pass [input_ids]" if ids.ndim == 1 else ""
        raise ValueError(f"input_ids has shape {ids.shape}, expected (batch, length){offer}")
    if not ids.shape[1]:
        raise ValueError(f"input_ids has shape {ids.shape}, expected a token or more in each sequence")
    return _integers(ids, x, "input_ids")


def as_ids(x: npt.ArrayLike, name: str, shape: tuple[int, ...]) -> IntArray:
    """Read ids that go with the tokens.

    Parameters
    ----------
    x : array_like of int, (N, L), (1, L) or (L,)
        As the caller gave them.
    name : str
        What messages call them.
    shape : (int, int)
        Of the tokens.

    Returns
    -------
    ndarray, (N, L)
        Without a copy where NumPy can view x.

    Raises
    ------
    TypeError
        x holds no integers.
    ValueError
        It has another shape.
    """
    ids = _core.as_array(x, name)
    if ids.shape != shape:
        if ids.shape not in (shape[1:], (1, shape[1])):
            raise ValueError(f"{name} has shape {ids.shape}, expected {shape} as input_ids, or {shape[1:]} for all")
        ids = np.broadcast_to(ids, shape)
    return _integers(ids, x, name)


def _integers(ids: npt.NDArray[Any], x: object, name: str) -> IntArray:
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {ids.dtype}, expected integers; pass {_core.cast(x, name, 'numpy.int64')}")
    return ids


def as_padding(x: npt.ArrayLike | None, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
    """Read an attention_mask, in which 1 or True = attend.

    Parameters
    ----------
    x : array_like, (N, L), optional
        As the caller gave it.
    shape : (int, int)
        Of the tokens.

    Returns
    -------
    ndarray of bool, (N, L), or None
        True = blocked, as layers have it; None where nothing is.

    Raises
    ------
    TypeError
        x holds no numbers.
    ValueError
        It has another shape, or holds something else than 0 and 1.
    """
    if x is None:
        return None
    mask = _core.as_array(x, "attention_mask")
    if mask.shape != shape:
        raise ValueError(f"attention_mask has shape {mask.shape}, expected {shape} as input_ids")
    if mask.dtype.kind not in "biuf":
        raise TypeError(f"attention_mask has dtype {mask.dtype}, expected bool or integers: True or 1 = attend")
    attended = mask != 0
    if mask.dtype != np.bool_ and not np.array_equal(mask == 1, attended):
        raise ValueError("attention_mask holds other numbers than 0 and 1, expected 1 = attend and 0 = padding")
    return None if attended.all() else ~attended

"""Read the inputs of published models: ids of tokens, token types and positions, and padding masks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.ids import as_ids
from pyattn._util.typing import IntArray
from pyattn.functional._multihead_masks import read_padding_mask
from pyattn.masks import Mask

__all__ = ["as_ids_per_token", "as_padding", "as_tokens"]


def as_tokens(x: npt.ArrayLike, vocab_size: int) -> IntArray:
    """Read input_ids, (N, L) with L of 1 or more."""
    ids = as_ids(x, "input_ids", vocab_size)
    if ids.ndim != 2:
        hint = "; for one sequence pass [input_ids]" if ids.ndim == 1 else ""
        raise ValueError(f"input_ids has shape {ids.shape}, expected (batch, length){hint}")
    if not ids.shape[1]:
        raise ValueError(f"input_ids has shape {ids.shape}, expected at least one token in each sequence")
    return ids


def as_ids_per_token(x: npt.ArrayLike, name: str, count: int, shape: tuple[int, ...]) -> IntArray:
    """Read an id below `count` for each token: (N, L), or (1, L) or (L,) for all rows."""
    ids = as_ids(x, name, count)
    if ids.shape != shape:
        if ids.shape not in (shape[1:], (1, shape[1])):
            raise ValueError(f"{name} has shape {ids.shape}, expected {shape} as input_ids, or {shape[1:]} for all")
        ids = np.broadcast_to(ids, shape)
    return ids


def as_padding(x: npt.ArrayLike | None, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
    """Convert an attention_mask, 1 or True = attend, to a padding mask, True = blocked; None if none is."""
    if x is None:
        return None
    if isinstance(x, Mask):
        x = ~read_padding_mask(x, "attention_mask")
    mask = _core.as_array(x, "attention_mask")
    if mask.shape != shape:
        raise ValueError(f"attention_mask has shape {mask.shape}, expected {shape} as input_ids")
    if mask.dtype.kind not in "biuf":
        raise TypeError(f"attention_mask has dtype {mask.dtype}, expected bool or integers: True or 1 = attend")
    attended = mask != 0
    if mask.dtype != np.bool_ and not np.array_equal(mask == 1, attended):
        raise ValueError("attention_mask must hold 1 = attend and 0 = padding only")
    return None if attended.all() else ~attended

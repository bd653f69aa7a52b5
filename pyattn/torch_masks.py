"""The masks of torch's multi-head attention, in which True = blocked, as those of `attention`, in which True = attend.

Indices: N batch, H heads, L queries, S keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from pyattn import _core, masks

__all__ = ["Hidden", "Sizes", "Window", "for_the_core"]

Array: TypeAlias = npt.NDArray[Any]
Window: TypeAlias = SupportsIndex | tuple[SupportsIndex | None, SupportsIndex | None] | None


class Hidden(NamedTuple):
    """What hides keys from queries: torch's masks, in which True = blocked, and pyattn's window and lengths."""

    attn_mask: npt.ArrayLike | None = None
    key_padding_mask: npt.ArrayLike | None = None
    is_causal: bool = False
    window: Window = None
    key_lengths: npt.ArrayLike | None = None


class Sizes(NamedTuple):
    """batch is () or (N,); extras are the keys behind the given ones: bias_k's and add_zero_attn's."""

    batch: tuple[int, ...]
    heads: int
    q_len: int
    kv_len: int
    extras: int


def for_the_core(hidden: Hidden, sizes: Sizes) -> tuple[Array | None, bool, Window, npt.ArrayLike | None]:
    """Say what is hidden in the core's terms: True = attend, and the extra keys are keys as all others.

    Parameters
    ----------
    hidden : Hidden
        As the caller gave it.
    sizes : Sizes
        Of the call.

    Returns
    -------
    attn_mask : ndarray or None
        Broadcasts to (N, H, L, S + extras).
    is_causal : bool
        False where the mask says it.
    window, key_lengths : as in Hidden
        None where the mask says it.

    Raises
    ------
    TypeError
        A mask is neither bool nor of floats.
    ValueError
        A mask has another shape.
    """
    is_causal, window, lengths = hidden.is_causal, hidden.window, hidden.key_lengths
    padding = _read_padding(hidden.key_padding_mask, sizes)
    if padding is not None and lengths is None and not sizes.extras:
        lengths = _lengths_of(padding)  # no array of (N, L, S) for a mask and padding together
        padding = None if lengths is not None else padding
    parts = [_read_mask(hidden.attn_mask, sizes), None if padding is None else _visible(padding[..., None, None, :])]
    if sizes.extras:
        parts += _bands(hidden, sizes)
        is_causal, window, lengths = False, None, None
    mask: Array | None = None
    for part in parts:
        mask = part if mask is None else mask if part is None else _both(mask, part)
    if mask is not None and sizes.extras:
        attendable = mask.dtype == np.bool_  # True, or 0.0
        mask = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, sizes.extras)], constant_values=attendable)
    return mask, is_causal, window, lengths


def _read_mask(x: npt.ArrayLike | None, sizes: Sizes) -> Array | None:
    """attn_mask as (L, S) or (N, H, L, S), True = attend."""
    if x is None:
        return None
    mask = _flags_or_floats(x, "attn_mask")
    pair = (sizes.q_len, sizes.kv_len)
    each = (*sizes.batch, sizes.heads)
    rows = math.prod(each)
    if mask.shape == (rows, *pair):
        mask = mask.reshape(*each, *pair)
    elif mask.shape != pair:
        meaning = "(L, S) or (N * num_heads, L, S)" if sizes.batch else "(L, S) or (num_heads, L, S)"
        offer = ""
        if sizes.batch and mask.shape == (*sizes.batch, *pair):
            offer = f"; if heads share it, pass numpy.repeat(attn_mask, {sizes.heads}, axis=0)"
        raise ValueError(f"attn_mask has shape {mask.shape}, expected {pair} or {(rows, *pair)}: {meaning}{offer}")
    return _visible(mask)


def _read_padding(x: npt.ArrayLike | None, sizes: Sizes) -> Array | None:
    """key_padding_mask as it is, True = blocked."""
    if x is None:
        return None
    mask = _flags_or_floats(x, "key_padding_mask")
    if mask.shape != (*sizes.batch, sizes.kv_len):
        meaning = "(N, S)" if sizes.batch else "(S,), unbatched as query"
        raise ValueError(f"key_padding_mask has shape {mask.shape}, expected {(*sizes.batch, sizes.kv_len)}: {meaning}")
    return mask


def _flags_or_floats(x: npt.ArrayLike, name: str) -> Array:
    mask = _core.as_array(x, name)
    if mask.dtype.kind not in "bf":
        flags, numbers = (_core.cast(x, name, kind) for kind in ("bool", "numpy.float32"))
        raise TypeError(
            f"{name} has dtype {mask.dtype}, expected bool or floats; pass {flags} (True = blocked) or {numbers} "
            "(added to the scores)"
        )
    return mask


def _visible(mask: Array) -> Array:
    """Turn torch's polarity into the core's."""
    return ~mask if mask.dtype == np.bool_ else mask


def _both(one: Array, other: Array) -> Array:
    """Combine masks of the core's polarity: flags hide, floats are added."""
    flags = [mask.dtype == np.bool_ for mask in (one, other)]
    if all(flags):
        return one & other
    if not any(flags):
        with np.errstate(invalid="ignore"):
            return np.add(one, other)
    flag, numbers = (one, other) if flags[0] else (other, one)
    return np.where(flag, numbers, numbers.dtype.type(-np.inf))


def _lengths_of(padding: Array) -> Array | None:
    """key_lengths that hide what padding does, where that is the ends of rows alone."""
    if padding.dtype != np.bool_ or (padding[..., :-1] & ~padding[..., 1:]).any():
        return None
    return padding.shape[-1] - np.count_nonzero(padding, axis=-1)  # type: ignore[no-any-return]


def _bands(hidden: Hidden, sizes: Sizes) -> list[Array]:
    """is_causal, window and key_lengths over the given keys, as masks of their own."""
    found = []
    lengths = (sizes.q_len, sizes.kv_len)
    if hidden.is_causal:
        found.append(masks.causal(*lengths, align="upper_left"))
    if hidden.window is not None:
        left, right = hidden.window if isinstance(hidden.window, (tuple, list)) else (hidden.window, hidden.window)
        found.append(masks.window(*lengths, left=left, right=right, align="upper_left"))
    if hidden.key_lengths is not None:
        found.append(masks.padding(hidden.key_lengths, sizes.kv_len))
    return found

"""The rules on arguments of torch's multi-head attention, which its function, its module and layers of it share.

True = blocked in all masks here, as in torch; the core can be told so.

Indices: N batch, H heads, L queries, S keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.typing import Window

__all__ = ["Masking", "Sizes", "Window", "lengths_of", "to_core", "with_batch_first"]

Array: TypeAlias = npt.NDArray[Any]


class Masking(NamedTuple):
    """What hides keys from queries: torch's masks, in which True = blocked, and pyattn's window and lengths.

    query_lengths, where some queries are padding, come with a cache alone.
    """

    attn_mask: npt.ArrayLike | None = None
    key_padding_mask: npt.ArrayLike | None = None
    is_causal: bool = False
    window: Window = None
    key_lengths: npt.ArrayLike | None = None
    query_lengths: npt.ArrayLike | None = None


class Sizes(NamedTuple):
    """batch is () or (N,)."""

    batch: tuple[int, ...]
    heads: int
    q_len: int
    kv_len: int


def with_batch_first(
    query: Array,
    key: Array,
    value: Array,
    features: list[int] | tuple[int, ...],
    *,
    batch_first: bool,
    names: tuple[str, str, str] = ("query", "key", "value"),
) -> tuple[Array, Array, Array]:
    """Check three inputs against one another and turn them to (N, length, features), without a copy."""
    axes, q, k, v = query.ndim, query.shape, key.shape, value.shape
    fits = axes in (2, 3) and len(k) == len(v) == axes and (q[-1], k[-1], v[-1]) == tuple(features)
    if fits and axes == 3:
        batch = 0 if batch_first else 1
        fits = q[batch] == k[batch] == v[batch] and k[1 - batch] == v[1 - batch]
    elif fits:
        fits = k[0] == v[0]
    if not fits:
        _refuse_shapes((query, key, value), features, batch_first, names)
    if axes == 2 or batch_first:
        return query, key, value
    return query.swapaxes(0, 1), key.swapaxes(0, 1), value.swapaxes(0, 1)


def _refuse_shapes(
    inputs: tuple[Array, Array, Array],
    features: list[int] | tuple[int, ...],
    batch_first: bool,
    names: tuple[str, str, str],
) -> None:
    """Name the first that does not fit, and what would."""
    query, key, value = inputs
    axes, last = query.ndim, features[0]
    if axes not in (2, 3) or query.shape[-1] != last:
        order = "N, L" if batch_first else "L, N"
        raise ValueError(f"{names[0]} has shape {query.shape}, expected ({order}, {last}) or, unbatched, (L, {last})")
    place = 1 if batch_first and axes == 3 else 0
    length: int | str = "S"
    for n, x in enumerate((key, value), 1):
        expected: list[int | str] = [length, features[n]]
        if axes == 3:
            expected.insert(1 - place, query.shape[1 - place])
        if x.ndim != axes or any(one not in ("S", size) for one, size in zip(expected, x.shape, strict=True)):
            shapes = f"{names[0]} has shape {query.shape}" + (f" and {names[1]} {key.shape}" if n == 2 else "")
            raise ValueError(f"{names[n]} has shape {x.shape}, expected ({', '.join(map(str, expected))}): {shapes}")
        length = x.shape[place]


def to_core(hidden: Masking, sizes: Sizes, names: tuple[str, str] = ("attn_mask", "key_padding_mask")) -> Masking:
    """Say what is hidden in shapes that the core broadcasts."""
    mask = _read_mask(hidden.attn_mask, sizes, names[0])
    padding = _read_padding(hidden.key_padding_mask, sizes, names[1])
    lengths = hidden.key_lengths
    if padding is not None and lengths is None:
        lengths = lengths_of(padding)
        padding = padding if lengths is None else None
    over_queries = None if padding is None else padding[..., None, None, :]
    return hidden._replace(attn_mask=mask, key_padding_mask=over_queries, key_lengths=lengths)


def _read_mask(x: npt.ArrayLike | None, sizes: Sizes, name: str) -> Array | None:
    """Bring a mask of pairs to (L, S) or (N, H, L, S)."""
    if x is None:
        return None
    mask = _flags_or_floats(x, name)
    pair = (sizes.q_len, sizes.kv_len)
    each = (*sizes.batch, sizes.heads)
    rows = math.prod(each)
    if mask.shape == (rows, *pair):
        mask = mask.reshape(*each, *pair)
    elif mask.shape != pair:
        meaning = "(L, S) or (N * num_heads, L, S)" if sizes.batch else "(L, S) or (num_heads, L, S)"
        offer = ""
        if sizes.batch and mask.shape == (*sizes.batch, *pair):
            offer = f"; if heads share it, pass numpy.repeat({name}, {sizes.heads}, axis=0)"
        raise ValueError(f"{name} has shape {mask.shape}, expected {pair} or {(rows, *pair)}: {meaning}{offer}")
    return mask


def _read_padding(x: npt.ArrayLike | None, sizes: Sizes, name: str) -> Array | None:
    """Check a mask of keys."""
    if x is None:
        return None
    mask = _flags_or_floats(x, name)
    if mask.shape != (*sizes.batch, sizes.kv_len):
        meaning = "(N, S)" if sizes.batch else "(S,), unbatched as query"
        raise ValueError(f"{name} has shape {mask.shape}, expected {(*sizes.batch, sizes.kv_len)}: {meaning}")
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


def lengths_of(padding: Array) -> Array | None:
    """Find the lengths that hide what a mask of padding does."""
    if padding.dtype != np.bool_ or (padding[..., :-1] & ~padding[..., 1:]).any():
        return None
    return padding.shape[-1] - np.count_nonzero(padding, axis=-1)  # type: ignore[no-any-return]

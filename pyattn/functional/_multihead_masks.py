"""Masks of torch's multi-head attention, shared by its function, its module and the Transformer's layers.

True = blocked in bare masks here, as in torch; mask objects carry their own meaning.

Indices: N batch, H heads, L queries, S keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.masks._lowering as lowering
from pyattn._util.halves import as_float32
from pyattn._util.typing import Window
from pyattn._util.warnings import MaskWarning, warn
from pyattn.masks import Mask, from_blocked

__all__ = ["Masking", "ScoreSizes", "as_objects", "lengths_of", "read_padding_mask", "to_core", "with_batch_first"]

Array: TypeAlias = npt.NDArray[Any]


class Masking(NamedTuple):
    """Masks of one attention: torch's, in which True = blocked, and pyattn's window, limits and lengths."""

    attn_mask: npt.ArrayLike | None = None
    key_padding_mask: npt.ArrayLike | None = None
    is_causal: bool = False
    window: Window = None
    key_lengths: npt.ArrayLike | None = None
    query_lengths: npt.ArrayLike | None = None
    """Only with a cache, if some queries are padding."""
    key_limits: npt.NDArray[np.int64] | None = None
    """Of a mask object: see `pyattn.masks._lowering.Lowered`."""


class ScoreSizes(NamedTuple):
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
    """Check that three inputs match and transpose them to (N, length, features), without a copy."""
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
    """Raise for the first input that does not fit, with the expected shape."""
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


def to_core(
    masking: Masking,
    sizes: ScoreSizes,
    names: tuple[str, str] = ("attn_mask", "key_padding_mask"),
) -> Masking:
    """Bring masks to shapes that the core broadcasts; mask objects become limits, an array or both."""
    if isinstance(masking.attn_mask, Mask):
        attend, limits = lowering.lower(
            masking.attn_mask, (*sizes.batch, sizes.heads, sizes.q_len, sizes.kv_len), True, names[0]
        )
        masking = masking._replace(key_limits=limits)
        mask = None if attend is None else ~attend
    else:
        mask = _read_mask(masking.attn_mask, sizes, names[0])
    padding = _read_padding(masking.key_padding_mask, sizes, names[1])
    lengths = masking.key_lengths
    if padding is not None and lengths is None:
        lengths = lengths_of(padding)
        padding = padding if lengths is None else None
    over_queries = None if padding is None else padding[..., None, None, :]
    return masking._replace(attn_mask=mask, key_padding_mask=over_queries, key_lengths=lengths)


def as_objects(masking: Masking, read: Masking) -> Masking:
    """Turn bare masks of bools, which `to_core` has read, into mask objects, so that no part warns of them again."""
    mask, padding = masking.attn_mask, masking.key_padding_mask
    if mask is not None and not isinstance(mask, Mask):
        array = np.asarray(read.attn_mask)
        mask = from_blocked(array) if array.dtype == np.bool_ else mask
    if padding is not None and not isinstance(padding, Mask):
        array = _core.as_array(padding, "key_padding_mask")
        padding = from_blocked(array) if array.dtype == np.bool_ else array
    return masking._replace(attn_mask=mask, key_padding_mask=padding)


def _read_mask(x: npt.ArrayLike | None, sizes: ScoreSizes, name: str) -> Array | None:
    """Reshape a bare mask of pairs to (L, S) or (N, H, L, S)."""
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
        elif sizes.q_len == sizes.kv_len and mask.shape == (*sizes.batch, *sizes.batch):
            offer = "; for inputs of (batch, length, embed_dim), make the module with batch_first=True"
        raise ValueError(f"{name} has shape {mask.shape}, expected {pair} or {(rows, *pair)}: {meaning}{offer}")
    elif mask.dtype == np.bool_ and _looks_causal_inverted(mask):
        warn(
            MaskWarning,
            f"{name} blocks each query's own key and all before it, since True = blocked here, as in torch.nn. If that "
            f"is meant, pass pyattn.masks.from_blocked({name}); if True means attend, pyattn.masks.from_array({name})",
        )
    return mask


def _looks_causal_inverted(blocked: Array) -> bool:
    """Tell whether queries attend only to later keys; the diagonal rules out most masks early."""
    if len(blocked) < 2 or not blocked.diagonal().all() or not blocked[-1, : len(blocked)].all():
        return False
    return not blocked.all() and all(row[: i + 1].all() for i, row in enumerate(blocked))


def _read_padding(x: npt.ArrayLike | None, sizes: ScoreSizes, name: str) -> Array | None:
    """Check a mask of keys."""
    if x is None:
        return None
    mask = read_padding_mask(x, name)
    if mask.shape != (*sizes.batch, sizes.kv_len):
        meaning = "(N, S)" if sizes.batch else "(S,), unbatched as query"
        if mask.shape == (sizes.kv_len, *sizes.batch):
            meaning += f"; for inputs (N, S, embed_dim) make the module with batch_first=True, else pass {name}.T"
        raise ValueError(f"{name} has shape {mask.shape}, expected {(*sizes.batch, sizes.kv_len)}: {meaning}")
    if not isinstance(x, Mask) and mask.dtype == np.bool_ and _looks_padding_inverted(mask):
        warn(
            MaskWarning,
            f"{name} blocks the first keys of its rows, since True = blocked here, as in torch.nn. If padding is on "
            f"the left, pass pyattn.masks.from_blocked({name}); if True means attend, pyattn.masks.from_array({name})",
        )
    return mask


def _looks_padding_inverted(blocked: Array) -> bool:
    """Tell whether every row is blocked first and visible after, with at least one mixed row."""
    if not blocked.size or not blocked[..., 0].any() or (~blocked[..., :-1] & blocked[..., 1:]).any():
        return False
    return bool((blocked[..., 0] & ~blocked[..., -1]).any())


def read_padding_mask(x: npt.ArrayLike, name: str) -> Array:
    """Read a mask of keys as (N, S) or (S,), True = blocked; mask objects are converted."""
    if not isinstance(x, Mask):
        return _flags_or_floats(x, name)
    lengths = lowering.padding_lengths(x)
    if lengths is not None:
        return np.asarray(np.arange(x.shape[-1]) >= lengths[..., np.newaxis])
    blocked = x.blocked()
    while blocked.ndim > 2 and blocked.shape[-2] == 1:  # of heads and queries
        blocked = blocked[..., 0, :]
    if blocked.ndim > 2 or lowering.has_pairs(x):
        raise ValueError(
            f"{name} is a mask of pairs of query and key, of shape {blocked.shape}; expected a mask of keys: "
            "pyattn.masks.padding(lengths, S), or an array (N, S)"
        )
    return blocked


def _flags_or_floats(x: npt.ArrayLike, name: str) -> Array:
    mask = _core.as_array(x, name)
    mask = mask if mask.dtype.kind == "f" else as_float32(mask)  # NumPy has functions for float16, not for bfloat16
    if mask.dtype.kind not in "bf":
        wrong = f"{name} has dtype {mask.dtype}, expected bool or floats"
        if mask.dtype.kind in "iu" and ((mask != 0) & (mask != 1)).any():
            raise TypeError(f"{wrong}; if it holds lengths, pass pyattn.masks.padding({name}, S), S the number of keys")
        flags, numbers = (_core.cast(x, name, kind) for kind in ("bool", "numpy.float32"))
        raise TypeError(
            f"{wrong}; pass pyattn.masks.from_array({name}) if 1 = attend, {flags} if 1 = blocked, or {numbers} if it "
            "is added to the scores"
        )
    return mask


def lengths_of(padding: Array) -> Array | None:
    """Return the lengths equivalent to a padding mask; None unless it blocks only the ends of rows."""
    if padding.dtype != np.bool_ or (padding[..., :-1] & ~padding[..., 1:]).any():
        return None
    lengths: Array = padding.shape[-1] - np.count_nonzero(padding, axis=-1)
    return lengths

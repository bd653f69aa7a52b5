"""Which keys the queries of a call see, and which pairs of chunks need no task."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from operator import methodcaller
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize

import pyattn._core as _core
from pyattn._util.typing import Align
from pyattn.interop.dask._chunks import Grid, Index, Key, is_lazy, key_of
from pyattn.masks import Mask, from_array
from pyattn.masks._lowering import check_shape, holds_array, take_limits
from pyattn.masks._mask import BoolArray, Both, Complement, Document, Either, Given, Limits, intersect, sliced

Array = npt.NDArray[Any]


class Visible:
    """The masks of a call: limits of the keys of each query, and masks that have no limits.

    Attributes
    ----------
    limits : ndarray of int64, (..., L, 2), or None
        First key of each query and the one after its last.
    masks : dict of str to Mask, ndarray, dask.array.Array or None
        The parts of attn_mask that have no limits, and keep_mask.
    wholes : dict of str to Key
        Tasks of the masks that go to the workers as a whole, and are cut there: a few numbers for each token.
    """

    def __init__(self, grid: Grid, own: Mapping[str, Any], masks: Mapping[str, Any]) -> None:
        self.grid = grid
        known = [_own_limits(grid, **own)]
        self.masks: dict[str, Any] = {}
        for name, given in masks.items():
            mask = _as_mask(given, name)
            if not isinstance(mask, Mask):
                self.masks[name] = _rechunked(mask, grid) if is_lazy(mask) else mask
                continue
            check_shape(mask, grid.scores, grid.heads, name)
            if name == "keep_mask":
                self.masks[name] = mask
            else:
                limits, pairs = take_limits(mask)
                known.append(limits)
                self.masks[name] = functools.reduce(Both, pairs) if pairs else None
        some = [one for one in known if one is not None]
        self.limits: Limits | None = functools.reduce(intersect, some) if some else None
        self.wholes: dict[str, Key] = {
            name: (f"attention-{name}-{tokenize(mask)}", *(0,) * len(grid.scores))
            for name, mask in self.masks.items()
            if isinstance(mask, Mask) and not holds_array(mask)
        }

    def rows(self, outer: Index, queries: int) -> Limits | None:
        """Return the limits of a chunk of queries."""
        if self.limits is None:
            return None
        cut = self.grid.cut((*outer, queries, 0))[:-1]
        return sliced(self.limits, (*cut, slice(None)))

    def live(self, outer: Index) -> list[list[int]]:
        """List the chunks of keys that each chunk of queries may see."""
        cut = (*self.grid.cut((*outer, 0, 0))[:-2], *(slice(0, n) for n in self.grid.scores[-2:]))
        q_bounds, kv_bounds = bounds = self.grid.bounds[-2:]
        seen = np.broadcast_to(np.diff(kv_bounds) > 0, (len(q_bounds) - 1, len(kv_bounds) - 1))
        if self.limits is not None:
            seen = seen & _seen_within(sliced(self.limits, (*cut[:-1], slice(None))), bounds)[0]
        mask = self.masks["attn_mask"]
        if isinstance(mask, Mask):
            seen = seen & _seen(mask._part(cut), bounds)[0]
        return [np.flatnonzero(row).tolist() for row in seen]

    def block(self, name: str, index: Index) -> Any:
        """Return the chunk of a mask, as a value or as a task or its key in the graph."""
        mask = self.masks[name]
        if mask is None:
            return None
        if is_lazy(mask):
            return key_of(mask, index)
        cut = self.grid.cut(index)
        if name in self.wholes:
            return (methodcaller("_part", cut), self.wholes[name])
        return mask._part(cut) if isinstance(mask, Mask) else sliced(mask, cut)


def _as_mask(mask: Any, name: str) -> Any:
    """Read a mask: an object for a bool attn_mask; None and dask arrays stay."""
    if mask is None or isinstance(mask, Mask) or is_lazy(mask):
        return mask
    array = np.atleast_1d(_core.as_array(mask, name))
    return from_array(array) if name == "attn_mask" and array.dtype == np.bool_ else array


def _rechunked(mask: da.Array, grid: Grid) -> da.Array:
    """Give a mask the chunks of the scores, on the axes that it does not broadcast."""
    axes = range(-1, -1 - mask.ndim, -1)
    return mask.rechunk({n: (1,) if mask.shape[n] == 1 else grid.chunks[n] for n in axes})


def _own_limits(
    grid: Grid,
    *,
    is_causal: bool,
    align: Align | None,
    window: Any,
    key_lengths: npt.ArrayLike | None,
    query_lengths: npt.ArrayLike | None,
) -> Limits | None:
    """Compute the limits of a call's own arguments, which have been checked; None if each query sees all keys."""
    left, right = (window, window) if window is None or np.ndim(window) == 0 else window
    right = 0 if is_causal else right
    if left is None and right is None and key_lengths is None and query_lengths is None:
        return None
    q_len, kv_len = grid.scores[-2:]
    queries, keys = (
        np.asarray(whole if given is None else given, np.int64)[..., np.newaxis]
        for whole, given in ((q_len, query_lengths), (kv_len, key_lengths))
    )
    if left is None and right is None and query_lengths is None:  # the same for all queries
        limits = np.stack([np.zeros_like(keys), keys], axis=-1)
        return limits[..., np.newaxis, :, :] if grid.heads and limits.ndim > 2 else limits
    offset = keys - queries if align == "lower_right" else np.asarray(0 if align in (None, "upper_left") else align)
    rows, far = np.arange(q_len), q_len + kv_len + int(np.abs(offset).max(initial=0))  # far: effectively unbounded
    limits = np.empty((*np.broadcast_shapes(queries.shape, keys.shape)[:-1], q_len, 2), np.int64)
    limits[..., 0] = 0 if left is None else rows + offset - min(int(left), far)
    limits[..., 1] = keys if right is None else np.minimum(rows + offset + min(int(right), far) + 1, keys)
    limits[..., 1][np.broadcast_to(rows >= queries, limits.shape[:-1])] = 0
    return limits[..., np.newaxis, :, :] if grid.heads and limits.ndim > 2 else limits


def _live_chunks(limits: Limits, bounds: npt.NDArray[np.int64]) -> BoolArray:
    """Tell which chunks of keys, between neighbouring bounds, some query sees."""
    first, end = np.maximum(limits[..., 0], 0).ravel(), np.minimum(limits[..., 1], bounds[-1]).ravel()
    seen = first < end
    chunks = len(bounds) - 1
    begins, ends = (np.searchsorted(bounds, keys[seen], "right") for keys in (first, end - 1))
    counts = np.bincount(begins - 1, minlength=chunks + 1) - np.bincount(ends, minlength=chunks + 1)
    return (np.cumsum(counts)[:chunks] > 0) & (np.diff(bounds) > 0)


def _seen(mask: Mask, bounds: list[Array]) -> tuple[BoolArray, BoolArray]:
    """Tell for each pair of chunks of queries and keys whether some of it may be seen, and whether all surely is."""
    limits = mask._limits()
    if limits is not None:
        return _seen_within(limits, bounds)
    if isinstance(mask, Complement):
        some, every = _seen(mask.mask, bounds)
        return ~every, ~some
    if isinstance(mask, Both | Either):
        operands = [_seen(one, bounds) for one in mask.operands]
        some, every = (functools.reduce(mask.combine, [one[side] for one in operands]) for side in (0, 1))
        return some, every
    if isinstance(mask, Document):
        queries, keys = (
            [set(np.unique(one).tolist()) for one in _split(ids, cuts, -1)]
            for ids, cuts in zip((mask.q_ids, mask.kv_ids), bounds, strict=True)
        )
        return (
            np.array([[not one.isdisjoint(other) for other in keys] for one in queries]),
            np.array([[len(one) == 1 and one == other for other in keys] for one in queries]),
        )
    array = np.atleast_2d(mask.array if isinstance(mask, Given) else np.asarray(mask))
    parts = [_split(rows, bounds[1], -1) for rows in _split(array, bounds[0], -2)]
    return (
        np.array([[one.any() for one in row] for row in parts]),
        np.array([[one.all() for one in row] for row in parts]),
    )


def _seen_within(limits: Limits, bounds: list[Array]) -> tuple[BoolArray, BoolArray]:
    """Tell the same of a mask that has limits."""
    q_bounds, kv_bounds = bounds
    rows = _split(limits, q_bounds, -2)
    some = [_live_chunks(row, kv_bounds) for row in rows]
    every = [
        (row[..., 0].max(initial=0) <= kv_bounds[:-1]) & (row[..., 1].min(initial=kv_bounds[-1]) >= kv_bounds[1:])
        for row in rows
    ]
    return np.array(some), np.array(every)


def _split(array: Array, bounds: Array, axis: int) -> list[Array]:
    """Cut an axis into chunks; one of size 1 broadcasts to all of them."""
    return [array] * (len(bounds) - 1) if array.shape[axis] == 1 else np.split(array, bounds[1:-1], axis)

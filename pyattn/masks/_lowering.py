"""Lowering of masks to the core, which takes one interval, one length for each batch entry and one array."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_flag
from pyattn._util.warnings import MaskWarning, warn
from pyattn.masks._mask import BoolArray, Both, Document, Interval, Lengths, Mask, intersect, offset_of


class Parts(NamedTuple):
    """A mask as the core's arguments: keys i + first to i + last, lengths, and an array for the rest."""

    first: int | None
    last: int | None
    lengths: npt.NDArray[np.int64] | None
    attend: BoolArray | None


def parts_of(mask: Mask, scores: tuple[int, ...], heads: bool, name: str) -> Parts:
    """Split a mask for scores of this shape, (..., heads, L, S) or, without heads, (..., L, S)."""
    _check_shape(mask, scores, heads, name)
    bounds: tuple[int | None, int | None] = (None, None)
    lengths: npt.NDArray[np.int64] | None = None
    rest: list[Mask] = []
    batch = scores[: -3 if heads else -2]
    for leaf in _leaves(mask, Both):
        if type(leaf) is Interval and leaf.shape == scores[-2:]:
            bounds = intersect(bounds, (leaf.first, leaf.last))
        elif isinstance(leaf, Lengths) and leaf.kv_len == scores[-1] and leaf.lengths.ndim <= len(batch):
            lengths = leaf.lengths if lengths is None else np.minimum(lengths, leaf.lengths)
        else:
            rest.append(leaf)
    attend = functools.reduce(np.logical_and, (leaf._attend() for leaf in rest)) if rest else None
    return Parts(*bounds, lengths, attend)


def checked_array(mask: Mask, scores: tuple[int, ...], heads: bool, name: str = "attn_mask") -> BoolArray:
    """Check a mask and compute it as one array, for calls with a cache and for compare."""
    _check_shape(mask, scores, heads, name)
    return mask._attend()


def as_arguments(
    mask: Mask,
    scores: tuple[int, ...],
    heads: bool,
    is_causal: bool,
    align: Any,
    window: Any,
    key_lengths: Any,
) -> tuple[BoolArray | None, bool, Any, Any, Any]:
    """Lower a mask to attn_mask, is_causal, align, window and key_lengths, combined with those of the call."""
    is_causal = is_causal if isinstance(is_causal, int) else as_flag(is_causal, "is_causal")
    offset_of(align, scores[-2], scores[-1])  # raises if it is not an alignment
    parts = parts_of(mask, scores, heads, "attn_mask")
    attend, lengths, bounds = parts.attend, parts.lengths, (parts.first, parts.last)
    own = bool(is_causal) or window is not None
    if lengths is not None:
        if own and align == "lower_right":  # as key_lengths they would move the lower right corner
            attend = _and(attend, Lengths(lengths, scores[-1], heads)._attend())
        else:
            key_lengths = shorter_lengths(key_lengths, lengths)
    if bounds == (None, None):
        return attend, is_causal, align, window, key_lengths
    if own or (bounds[0] is not None and bounds[1] is not None and bounds[0] > bounds[1]):
        attend = _and(attend, interval(scores[-2], scores[-1], *bounds))
        return attend, is_causal, align, window, key_lengths
    far = sum(scores[-2:])
    first, last = (side and max(-far, min(side, far)) for side in bounds)
    if last is None:
        return attend, False, first, (0, None), key_lengths
    return attend, True, last, None if first is None else (last - first, 0), key_lengths


def for_attention(
    mask: Mask,
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    layout: str | None,
    enable_gqa: bool | None,
    *options: Any,
) -> tuple[Any, ...]:
    """Lower a mask for `pyattn.attention`; the core reports shapes that disagree."""
    length, head = (-3, -2) if layout == "bshd" else (-2, -3)
    axes = max(len(query), len(key), len(value))
    heads = axes > 3 or (axes == 3 and bool(enable_gqa))
    least = 3 if heads else 2
    if min(len(query), len(key), len(value)) < (least if layout == "bshd" else 2):
        return (np.asarray(mask), *options)
    query, key, value = ((1,) * (axes - len(shape)) + shape for shape in (query, key, value))
    length = length if heads else -2
    try:
        batch = np.broadcast_shapes(query[:-least], key[:-least], value[:-least])
    except ValueError:
        return (np.asarray(mask), *options)
    scores = (*batch, *((max(query[head], key[head]),) if heads else ()), query[length], key[length])
    return as_arguments(mask, scores, heads, *options)


def shorter_lengths(given: npt.ArrayLike | None, lengths: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Combine key_lengths of a call with those of its mask; if they do not fit, the core's message will name them."""
    if given is None:
        return lengths
    array = _core.as_array(given, "key_lengths")
    try:
        np.broadcast_shapes(array.shape, lengths.shape)
    except ValueError:
        return array
    fits = array.dtype.kind in "iu" and (array.dtype != np.uint64 or not array.size or array.max() < 2**63)
    return np.minimum(array.astype(np.int64), lengths) if fits else array


def _and(one: BoolArray | None, other: BoolArray) -> BoolArray:
    return other if one is None else one & other


def _leaves(mask: Mask, opened: type[Mask]) -> Iterator[Mask]:
    """Yield the masks that a mask is made of; those of the type `opened` are taken apart."""
    stack = [mask]
    while stack:
        one = stack.pop()
        parts = one._operands() if isinstance(one, opened) else ()
        if parts:
            stack += reversed(parts)
        else:
            yield one


def has_pairs(mask: Mask) -> bool:
    """Tell whether what a mask hides depends on the query."""
    return any(isinstance(one, (Interval, Document)) for one in _leaves(mask, Mask))


def _check_shape(mask: Mask, scores: tuple[int, ...], heads: bool, name: str) -> None:
    """Require the call's sizes, because masks are never cropped, and its heads axis."""
    made = list(_leaves(mask, Mask))
    for one in made:
        if isinstance(one, (Interval, Document)) and one.shape[-2:] != scores[-2:]:
            raise ValueError(
                f"{name} is {one._name()} for {one.shape[-2]} queries and {one.shape[-1]} keys; the call has "
                f"{scores[-2]} and {scores[-1]}"
            )
        if isinstance(one, Lengths) and one.kv_len != scores[-1]:
            raise ValueError(f"{name} is {one._name()} for {one.kv_len} keys; the call has {scores[-1]}")
    for one in made:
        if isinstance(one, (Lengths, Document)) and one.batch and one.heads != heads:
            which = "has a heads axis" if heads else "has no heads axis"
            raise ValueError(f"{name} is {one._name()}, and the call {which}; make it with heads={heads}")
    shape = mask.shape
    sizes = zip(shape[::-1], scores[::-1], strict=False)
    if len(shape) > len(scores) or any(size not in (1, wanted) for size, wanted in sizes):
        raise ValueError(f"{name} has shape {shape}, which does not broadcast to {scores}")


def interval(q_len: int, kv_len: int, first: int | None, last: int | None) -> BoolArray:
    """Compute which keys i + first to i + last each query i attends to."""
    return Interval(q_len, kv_len, first, last, "")._attend()


def padding_lengths(mask: Mask) -> npt.NDArray[np.int64] | None:
    """Return the lengths of a mask made by `padding`, else None."""
    return mask.lengths if isinstance(mask, Lengths) else None


def warn_if_inverted(attend: npt.NDArray[Any]) -> None:
    """Warn of a bare attn_mask that is causal with True = blocked: of bools, (L, S), where True = attend."""
    if attend.ndim != 2 or attend.dtype != np.bool_ or min(attend.shape) < 2:
        return
    if attend[0, 0] or not attend[0, 1]:  # rules out most masks early
        return
    keys = np.arange(attend.shape[1])
    if all(np.array_equal(row, keys > i) for i, row in enumerate(attend)):
        warn(
            MaskWarning,
            "attn_mask lets each query attend only to keys after its own, since True = attend here. If that is meant, "
            "pass pyattn.masks.from_array(attn_mask); if True means blocked, pyattn.masks.from_blocked(attn_mask)",
        )

"""Lowering of masks to the core, which takes limits of each query's keys, and one array."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.warnings import MaskWarning, warn
from pyattn.masks._mask import BoolArray, Both, Document, Given, Interval, Lengths, Limits, Mask, intersect


class Lowered(NamedTuple):
    """A mask as the core's arguments; a pair must pass both."""

    attend: npt.NDArray[Any] | None
    key_limits: npt.NDArray[np.int64] | None
    """(..., L, 2): the first key of each query, and the one after its last."""


def lower(mask: Mask, scores: tuple[int, ...], heads: bool, name: str = "attn_mask") -> Lowered:
    """Check a mask for scores of this shape, (..., heads, L, S) or, without heads, (..., L, S), and lower it."""
    check_shape(mask, scores, heads, name)
    limits, rest = take_limits(mask)
    attend = functools.reduce(np.logical_and, (leaf._attend() for leaf in rest)) if rest else None
    return Lowered(attend, limits)


def take_limits(mask: Mask) -> tuple[Limits | None, list[Mask]]:
    """Part a mask into limits, and masks that have none; a pair must pass all."""
    known: list[Limits] = []
    rest: list[Mask] = []
    for leaf in _leaves(mask, Both):
        limits = leaf._limits()
        if limits is None:
            rest.append(leaf)
        else:
            known.append(limits)
    return (functools.reduce(intersect, known) if known else None), rest


def checked_array(mask: Mask, scores: tuple[int, ...], heads: bool, name: str = "attn_mask") -> BoolArray:
    """Check a mask and compute it as one array, for calls with a cache and for compare."""
    check_shape(mask, scores, heads, name)
    return mask._attend()


def for_attention(
    mask: Mask,
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    layout: str | None,
    enable_gqa: bool | None,
) -> Lowered:
    """Lower a mask for `pyattn.attention`; the core reports shapes that disagree."""
    length, head = (-3, -2) if layout == "bshd" else (-2, -3)
    axes = max(len(query), len(key), len(value))
    heads = axes > 3 or (axes == 3 and bool(enable_gqa))
    least = 3 if heads else 2
    if min(len(query), len(key), len(value)) < (least if layout == "bshd" else 2):
        return Lowered(np.asarray(mask), None)
    query, key, value = ((1,) * (axes - len(shape)) + shape for shape in (query, key, value))
    length = length if heads else -2
    try:
        batch = np.broadcast_shapes(query[:-least], key[:-least], value[:-least])
    except ValueError:
        return Lowered(np.asarray(mask), None)
    scores = (*batch, *((max(query[head], key[head]),) if heads else ()), query[length], key[length])
    return lower(mask, scores, heads)


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


def holds_array(mask: Mask) -> bool:
    """Tell whether a mask was made of an array, which may be as large as the scores."""
    return any(isinstance(one, Given) for one in _leaves(mask, Mask))


def check_shape(mask: Mask, scores: tuple[int, ...], heads: bool, name: str) -> None:
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


def padding_lengths(mask: Mask) -> npt.NDArray[np.int64] | None:
    """Return the lengths of a mask made by `padding`, else None."""
    return mask.lengths if isinstance(mask, Lengths) else None


def warn_if_inverted(attend: npt.NDArray[Any]) -> None:
    """Warn of a bare bool mask (L, S), or (1, ..., L, S), that hides every key, or shows each query only later keys."""
    attend = attend[(0,) * (attend.ndim - 2)] if math.prod(attend.shape[:-2]) == 1 else attend
    if attend.ndim != 2 or attend.dtype != np.bool_ or min(attend.shape) < 2 or attend[0, 0]:
        return
    if not attend[0, 1]:
        seen = None if attend.any() else "to no key"
    else:
        keys = np.arange(attend.shape[1])
        inverted = all(np.array_equal(row, keys > i) for i, row in enumerate(attend))
        seen = "only to keys after its own" if inverted else None
    if seen is not None:
        warn(
            MaskWarning,
            f"attn_mask lets each query attend {seen}, since True = attend here. If that is meant, pass "
            "pyattn.masks.from_array(attn_mask); if True means blocked, pyattn.masks.from_blocked(attn_mask)",
        )

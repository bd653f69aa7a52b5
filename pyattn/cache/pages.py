"""The pages that a `KVCache` keeps keys and values in, and what happens to lists of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.typing import CacheUse

PAGE = 64
"""Positions in a page: a block of keys to the core's kernels."""

TOGETHER = 16
"""Pages of a prompt that share a piece of memory, which is let go with the last of them.

The system maps large pieces in huge pages. One query, 32 heads on 8, 4,096 keys, 128 features, on Zen 5: 1.50 ms; a
piece for each page 1.63; one array for all keys 1.29.
"""

Page: TypeAlias = npt.NDArray[Any]
"""Keys (kv_heads, PAGE, head_dim), and behind them values (kv_heads, PAGE, v_head_dim), with one axis.

A view of an array that owns the memory, and so is every part of it: who looks at a page does not hold it. The
references to a page are those of the lists that it is in, and tell who shares it.
"""


class Sizes(NamedTuple):
    """Of a page."""

    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: np.dtype[Any]

    def new_pages(self, count: int) -> list[Page]:
        """Make pages of zeros: nothing of what the memory held before gets into a file."""
        elements, like = self.kv_heads * PAGE * (self.head_dim + self.v_head_dim), np.empty(0, self.dtype)
        made: list[Page] = []
        while len(made) < count:
            some = min(TOGETHER, count - len(made))
            memory = _core.new_page(some * elements, like)
            made += [memory[n * elements : (n + 1) * elements] for n in range(some)]
        return made

    def views(self, page: Page) -> tuple[Page, Page]:
        """Look into a page."""
        border = self.kv_heads * PAGE * self.head_dim
        keys = page[:border].reshape(self.kv_heads, PAGE, self.head_dim)
        return keys, page[border:].reshape(self.kv_heads, PAGE, self.v_head_dim)


class Layer(NamedTuple):
    """What a layer holds. Neither it nor its lists are changed: a change is another layer in its place.

    So a change that fails leaves what was, and who reads in another thread sees all of one or all of the other.
    """

    pages: tuple[list[Page], ...]
    """Of each batch entry; no list is that of two, for the references to a page to be counted."""
    starts: tuple[int, ...]
    """Position of each batch entry's first page: a multiple of PAGE."""
    lengths: tuple[int, ...]
    """Each batch entry's positions, with those whose pages were let go."""

    @property
    def start(self) -> int:
        """The first position that any batch entry holds."""
        return min(self.starts, default=0)

    @property
    def length(self) -> int:
        """That of the longest batch entry."""
        return max(self.lengths, default=0)


def empty_layer(batches: int) -> Layer:
    """Begin without positions."""
    return Layer(tuple([] for _ in range(batches)), (0,) * batches, (0,) * batches)


class Growth(NamedTuple):
    """A layer with room for new positions, which whoever asked for it is about to fill."""

    number: int
    """Of the layer."""
    before: Layer
    after: Layer
    counts: tuple[int, ...]
    """New positions of each batch entry."""
    use: CacheUse
    """Where the core writes, and where it reads then."""


# A list that holds an object, and what `sys.getrefcount` itself holds.
_probe = [object()]
_ALONE = sys.getrefcount(_probe[-1])


def is_shared(pages: list[Page]) -> bool:
    """Tell whether the last of some pages is in another list, too."""
    return sys.getrefcount(pages[-1]) > _ALONE


def grow(layer: Layer, sizes: Sizes, counts: Sequence[int], window: int | None) -> Layer:
    """Make room for more positions; what is stored stays where it is.

    A page that is neither full nor this batch entry's alone is copied: one at most.
    """
    grown = [
        _grow_entry(table, start, length, count, sizes, window)
        for table, start, length, count in zip(*layer, counts, strict=True)
    ]
    return Layer(
        tuple(table for table, _ in grown),
        tuple(start for _, start in grown),
        tuple(length + count for length, count in zip(layer.lengths, counts, strict=True)),
    )


def _grow_entry(
    table: list[Page], start: int, length: int, count: int, sizes: Sizes, window: int | None
) -> tuple[list[Page], int]:
    """Make room in one batch entry: its pages then, and the position of the first."""
    missing = -((start - length - count) // PAGE) - len(table)
    copies = length % PAGE and is_shared(table)
    gone = 0 if window is None else max(0, length - window - start) // PAGE
    if count == 0 or not (missing or copies or gone):
        return table, start  # the list itself, as most tokens do: of the layers before and after, one is kept
    copied = []
    if copies:
        copied = sizes.new_pages(1)
        copied[0][:] = table[-1]
    kept = table[: len(table) - len(copied)] + copied
    alone = window is not None  # to be let go one by one
    new = [sizes.new_pages(1)[0] for _ in range(missing)] if alone else sizes.new_pages(missing)
    return (kept + new)[gone:], start + gone * PAGE


def pick(layer: Layer, index: Iterable[int]) -> Layer:
    """Choose batch entries, which share all pages with those they come from."""
    chosen = [(list(layer.pages[b]), layer.starts[b], layer.lengths[b]) for b in index]
    return Layer(
        tuple(pages for pages, _, _ in chosen),
        tuple(start for _, start, _ in chosen),
        tuple(length for _, _, length in chosen),
    )


def cut(layer: Layer, lengths: Sequence[int]) -> Layer:
    """Drop what is at the end."""
    pages, starts, kept = [], [], []
    for table, start, length, most in zip(*layer, lengths, strict=True):
        own = min(length, most)
        pages.append(table[: -((start - own) // PAGE)] if own else [])
        starts.append(start if own else 0)
        kept.append(own)
    return Layer(tuple(pages), tuple(starts), tuple(kept))


def views_of(layer: Layer, sizes: Sizes, batch: int) -> list[tuple[Page, Page]]:
    """Look into the pages of a batch entry, read-only."""
    views = []
    for n, page in enumerate(layer.pages[batch]):
        filled = min(PAGE, layer.lengths[batch] - layer.starts[batch] - n * PAGE)
        keys, values = (part[:, :filled] for part in sizes.views(page))
        keys.flags.writeable = values.flags.writeable = False
        views.append((keys, values))
    return views


def gather(layer: Layer, sizes: Sizes) -> tuple[Page, Page]:
    """Copy all pages into two arrays, with zeros where a batch entry has no position."""
    shape = (len(layer.lengths), sizes.kv_heads, layer.length - layer.start)
    keys = np.zeros((*shape, sizes.head_dim), sizes.dtype)
    values = np.zeros((*shape, sizes.v_head_dim), sizes.dtype)
    for b, start in enumerate(layer.starts):
        at = start - layer.start
        for key, value in views_of(layer, sizes, b):
            keys[b, :, at : at + key.shape[1]] = key
            values[b, :, at : at + key.shape[1]] = value
            at += PAGE
    return keys, values


def use_of(layer: Layer, sizes: Sizes) -> CacheUse:
    """Tell the core where to read."""
    first, tables = layer.start, layer.pages
    if any(start != first for start in layer.starts):
        unseen: list[Page] = next((table[:1] for table in layer.pages if table), [])
        tables = tuple(
            unseen * ((start - first) // PAGE) + table for table, start in zip(tables, layer.starts, strict=True)
        )
    return CacheUse(tables, *sizes[:3], layer.length - first, first)


def bytes_of(layers: Iterable[Layer]) -> int:
    """Count the memory that pages hold, each piece once."""
    pages = (page for layer in layers for table in layer.pages for page in table)
    bases = (page.base if isinstance(page.base, np.ndarray) else page for page in pages)  # some pickles' are of bytes
    return sum(piece.nbytes for piece in {id(piece): piece for piece in bases}.values())

"""Pages that store the keys and values of a `KVCache`, and operations on lists of pages."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.typing import CacheUse

PAGE = 64
"""Positions in a page, the key block of the core's kernels."""

TOGETHER = 16
"""Pages of a prompt that share one block of memory, which is freed with the last of them.

The system maps large blocks to huge pages, which makes attention to a long prompt about 8 % faster than separate pages.
"""

Page: TypeAlias = npt.NDArray[Any]
"""Keys (kv_heads, PAGE, head_dim), then values (kv_heads, PAGE, v_head_dim), flattened to one axis.

A page is a view of the array that owns the memory, and views of a page refer to that array, not to the page. So only
lists of pages hold references to a page, and the reference count tells whether several lists share it.
"""


class PageSizes(NamedTuple):
    """Sizes and dtype of a page."""

    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: np.dtype[Any]

    def new_pages(self, count: int) -> list[Page]:
        """Make pages of zeros, so that old memory contents never get into a file."""
        elements = self.kv_heads * PAGE * (self.head_dim + self.v_head_dim)
        made: list[Page] = []
        while len(made) < count:
            some = min(TOGETHER, count - len(made))
            memory = _core.new_page(some * elements, self.dtype)
            made += [memory[n * elements : (n + 1) * elements] for n in range(some)]
        return made

    def views(self, page: Page) -> tuple[Page, Page]:
        """Return views of a page's keys and values."""
        border = self.kv_heads * PAGE * self.head_dim
        keys = page[:border].reshape(self.kv_heads, PAGE, self.head_dim)
        return keys, page[border:].reshape(self.kv_heads, PAGE, self.v_head_dim)


class Layer(NamedTuple):
    """Pages of one layer. A layer and its lists are never modified; a change makes a new layer.

    A change that fails leaves the old layer, and another thread reads either the old layer or the new one.
    """

    pages: tuple[list[Page], ...]
    """Pages of each batch entry, each in a list of its own, so that reference counts tell who shares a page."""
    starts: tuple[int, ...]
    """Position of each batch entry's first page: a multiple of PAGE."""
    lengths: tuple[int, ...]
    """Number of positions of each batch entry, including those whose pages were freed."""

    @property
    def start(self) -> int:
        """The first position that any batch entry holds."""
        return min(self.starts, default=0)

    @property
    def length(self) -> int:
        """Length of the longest batch entry."""
        return max(self.lengths, default=0)


def check_memory(layers: int, batches: int) -> None:
    """Check that empty layers fit into memory, because making them would exhaust the machine first."""
    entry = sys.getsizeof([]) + 3 * np.dtype(np.intp).itemsize  # a list of pages, and an entry in three tuples
    try:
        np.empty((layers, batches, entry), np.uint8)
    except (MemoryError, ValueError) as error:
        raise MemoryError(f"a KVCache of {layers} layers and batch_size {batches} does not fit into memory") from error


def empty_layer(batches: int) -> Layer:
    """Make a layer without positions."""
    return Layer(tuple([] for _ in range(batches)), (0,) * batches, (0,) * batches)


class Growth(NamedTuple):
    """A layer with room for new positions, which the caller fills."""

    number: int
    """Index of the layer."""
    before: Layer
    after: Layer
    counts: tuple[int, ...]
    """Number of new positions of each batch entry."""
    use: CacheUse
    """Pages for the core to write to and then read."""


# Reference count of an object in one list, with the reference of `sys.getrefcount` itself.
_probe = [object()]
_ALONE = sys.getrefcount(_probe[-1])


def is_shared(pages: list[Page]) -> bool:
    """Tell whether the last page is also in another list."""
    return sys.getrefcount(pages[-1]) > _ALONE


def grow(layer: Layer, sizes: PageSizes, counts: Sequence[int], window: int | None) -> Layer:
    """Make room for more positions; stored positions do not move."""
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
    table: list[Page], start: int, length: int, count: int, sizes: PageSizes, window: int | None
) -> tuple[list[Page], int]:
    """Make room in one batch entry; return its pages and the position of the first."""
    missing = -((start - length - count) // PAGE) - len(table)
    copies = length % PAGE and is_shared(table)
    gone = 0 if window is None else max(0, length - window - start) // PAGE
    if count == 0 or not (missing or copies or gone):
        return table, start  # the same list, as for most tokens: only one of the two layers is kept
    # Only the last page is copied, if it is shared and not full.
    copied = []
    if copies:
        copied = sizes.new_pages(1)
        copied[0][:] = table[-1]
    stored = table[: len(table) - len(copied)] + copied
    alone = window is not None  # so that pages are freed one by one
    new = [sizes.new_pages(1)[0] for _ in range(missing)] if alone else sizes.new_pages(missing)
    return (stored + new)[gone:], start + gone * PAGE


def pick(layer: Layer, index: Iterable[int]) -> Layer:
    """Select batch entries; all pages are shared."""
    chosen = [(list(layer.pages[b]), layer.starts[b], layer.lengths[b]) for b in index]
    return Layer(
        tuple(pages for pages, _, _ in chosen),
        tuple(start for _, start, _ in chosen),
        tuple(length for _, _, length in chosen),
    )


def cut(layer: Layer, lengths: Sequence[int]) -> Layer:
    """Truncate batch entries to at most these lengths."""
    pages, starts, new_lengths = [], [], []
    for table, start, length, most in zip(*layer, lengths, strict=True):
        own = min(length, most)
        pages.append(table[: -((start - own) // PAGE)] if own else [])
        starts.append(start if own else 0)
        new_lengths.append(own)
    return Layer(tuple(pages), tuple(starts), tuple(new_lengths))


def views_of(layer: Layer, sizes: PageSizes, batch: int) -> list[tuple[Page, Page]]:
    """Return read-only views of the pages of a batch entry."""
    views = []
    for n, page in enumerate(layer.pages[batch]):
        filled = min(PAGE, layer.lengths[batch] - layer.starts[batch] - n * PAGE)
        keys, values = (part[:, :filled] for part in sizes.views(page))
        keys.flags.writeable = values.flags.writeable = False
        views.append((keys, values))
    return views


def gather(layer: Layer, sizes: PageSizes) -> tuple[Page, Page]:
    """Copy all pages into two arrays; missing positions are zeros."""
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


def use_of(layer: Layer, sizes: PageSizes) -> CacheUse:
    """Return a layer's pages as the core reads them."""
    first, tables = layer.start, layer.pages
    if any(start != first for start in layer.starts):
        unseen: list[Page] = next((table[:1] for table in layer.pages if table), [])
        tables = tuple(
            unseen * ((start - first) // PAGE) + table for table, start in zip(tables, layer.starts, strict=True)
        )
    return CacheUse(tables, sizes.dtype, *sizes[:3], layer.length - first, first)


def bytes_of(layers: Iterable[Layer]) -> int:
    """Count the memory of all pages, each block once."""
    pages = (page for layer in layers for table in layer.pages for page in table)
    bases = (page.base if isinstance(page.base, np.ndarray) else page for page in pages)  # a pickle's base may be bytes
    return sum(piece.nbytes for piece in {id(piece): piece for piece in bases}.values())

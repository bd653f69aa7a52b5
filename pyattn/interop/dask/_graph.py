"""The graph of attention over chunks: a chain of tasks for each chunk of queries."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from pyattn.interop.dask import _tasks
from pyattn.interop.dask._chunks import Grid, Index, Key, is_lazy, key_of
from pyattn.interop.dask._visible import Visible


class Graph:
    """The tasks of one call, and its results."""

    def __init__(
        self,
        grid: Grid,
        arrays: tuple[da.Array, ...],
        visible: Visible,
        options: _tasks.Options,
        splits: int,
        dtype: np.dtype[Any],
        token: str,
    ) -> None:
        self.grid, self.arrays, self.visible, self.options, self.dtype = grid, arrays, visible, options, dtype
        self.token = token  # in the names of all tasks
        chunks = len(grid.chunks[-1])
        self.edges = [chunks * n // splits for n in range(splits + 1)]  # of the ranges of chunks of keys
        self.tasks: dict[Key, Any] = {key: visible.masks[name] for name, key in visible.wholes.items()}

    def results(self) -> da.Array | tuple[da.Array, da.Array]:
        """Make the graph, and the arrays that it computes."""
        both = self.options.need_lse
        names = [f"attention-{self.token}", f"attention-lse-{self.token}"]
        made = f"attention-both-{self.token}" if both else names[0]
        for outer in self.grid.outer():
            self._add_heads(made, outer)
        sources = [*self.arrays, *filter(is_lazy, self.visible.masks.values())]
        *outer_chunks, _, keys = map(len, self.grid.chunks)
        urgency = partial(_urgency, (*outer_chunks, keys))
        layer = MaterializedLayer(self.tasks, {"priority": urgency, **dask.get_annotations()})
        graph = HighLevelGraph.from_collections(made, layer, dependencies=sources)
        chunks = (*self.grid.chunks[:-1], (self.grid.v_dim,))
        if not both:
            return da.Array(graph, made, chunks, dtype=self.dtype)
        lse_dtype = np.dtype(np.float64 if self.dtype == np.float64 else np.float32)
        output, lse = (
            _result(graph, made, name, n, chunks[: len(chunks) - n], dtype)
            for n, (name, dtype) in enumerate(zip(names, (self.dtype, lse_dtype), strict=True))
        )
        return output, lse

    def _add_heads(self, made: str, outer: Index) -> None:
        """Add the chains of one chunk of batch entries and heads."""
        rows = range(len(self.grid.chunks[-2]))
        live = self.visible.live(outer)
        ends: list[list[Key]] = [[] for _ in rows]
        for split in range(len(self.edges) - 1):
            begin, end = self.edges[split : split + 2]
            some = [[n for n in keys if begin <= n < end] for keys in live]
            self._add_range(made, outer, split, some, ends)
        for row, parts in enumerate(ends):
            key = (made, *outer, row, 0)
            if not parts:
                self.tasks[key] = self._nothing(outer, row)
            elif self._merges:
                self.tasks[key] = (partial(_tasks.merge, self.dtype, self.options), parts)

    @property
    def _merges(self) -> bool:
        return len(self.edges) > 2

    def _add_range(self, made: str, outer: Index, split: int, live: list[list[int]], ends: list[list[Key]]) -> None:
        """Add the chains over one range of chunks of keys."""
        chains = {row: keys for row, keys in enumerate(live) if keys}
        if not chains:
            return
        first = min(keys[0] for keys in chains.values())
        carries = {row: self._begin(outer, split, row) for row in chains}
        waits = self._begun(outer, split, [carries[row] for row, keys in chains.items() if first in keys])
        for row, keys in chains.items():
            for number in keys:
                name = self._name("link", *outer, row, number)
                is_last = number == keys[-1]
                if is_last:
                    name = name if self._merges else (made, *outer, row, 0)
                    ends[row].append(name)
                index = (*outer, row, number)
                before = waits if number == first else []
                self.tasks[name] = self._link(index, is_last, carries[row], before)
                carries[row] = name

    def _begin(self, outer: Index, split: int, row: int) -> Key:
        """Add the task that begins a chain."""
        name = self._name("begin", *outer, row, split)
        begin = partial(_tasks.begin, self.visible.rows(outer, row), self._merges)
        self.tasks[name] = (begin, key_of(self.arrays[0], (*outer, row, 0)))
        return name

    def _begun(self, outer: Index, split: int, begins: list[Key]) -> list[Key]:
        """Add the task for which the first links wait: all chains have begun, so all workers get as many."""
        if len(begins) < 2:
            return []
        ticks = {self._name("tick", *begin[1:]): (_tasks.tick, begin) for begin in begins}
        begun = self._name("begun", *outer, split)
        self.tasks |= {**ticks, begun: (_tasks.tick, [*ticks])}
        return [begun]

    def _link(self, index: Index, is_last: bool, carry: Key, waits: list[Key]) -> tuple[Any, ...]:
        """Make the task of a chunk of queries and a chunk of keys."""
        cut = self.grid.cut(index)
        place = _tasks.Place(cut[-2].start, cut[-1].start, self._units(cut))
        attend = partial(_tasks.attend, self.options, place, is_last, self._merges)
        masks = [self.visible.block(name, index) for name in ("attn_mask", "keep_mask")]
        return (
            attend,
            carry,
            *(key_of(array, (*index[:-2], index[-1], 0)) for array in self.arrays[1:]),
            *masks,
            *waits,
        )

    def _units(self, cut: tuple[slice, ...]) -> npt.NDArray[np.int64] | None:
        """Return the numbers of a chunk's batch entries and heads among all, as dropout counts them."""
        if self.options.seed is None:
            return None
        return self._numbers[cut[:-2]]

    @functools.cached_property
    def _numbers(self) -> npt.NDArray[np.int64]:
        outer = self.grid.scores[:-2]
        return np.arange(int(np.prod(outer))).reshape(outer)

    def _nothing(self, outer: Index, row: int) -> tuple[Any, ...]:
        """Make the task of queries that see no key."""
        cut = self.grid.cut((*outer, row, 0))
        shape = (*(one.stop - one.start for one in cut[:-1]), self.grid.v_dim)
        return (partial(_tasks.nothing, shape, self.dtype, self.options),)

    def _name(self, kind: str, *index: Any) -> Key:
        return (f"attention-{kind}-{self.token}", *index)


def _urgency(chunks: tuple[int, ...], key: Key) -> int:
    """Rank a task for distributed: chains keep in step, so that few chunks of keys are needed at a time."""
    # Positive ranks come before the tasks of the arrays themselves, so that no chunk is made long before its use.
    number = key[-1] if str(key[0]).startswith("attention-link") else 0
    place: Any = (*key[1 : len(chunks)], number)
    return math.prod(chunks) - int(np.ravel_multi_index(place, chunks))


def _result(
    graph: HighLevelGraph, made: str, name: str, n: int, chunks: tuple[tuple[int, ...], ...], dtype: np.dtype[Any]
) -> da.Array:
    """Make the array of one of the two results of `made`."""
    places = itertools.product(*(range(len(one)) for one in chunks))
    layer = {(name, *at): (operator.getitem, (made, *at, *(0,) * n), n) for at in places}
    layers = {**graph.layers, name: MaterializedLayer(layer)}
    return da.Array(HighLevelGraph(layers, {**graph.dependencies, name: {made}}), name, chunks, dtype=dtype)

"""The graph of attention over chunks: a chain of tasks for each chunk of queries."""

from __future__ import annotations

import functools
import itertools
import operator
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from pyattn.interop.dask import _tasks
from pyattn.interop.dask._chunks import Grid, Index, Key, key_of
from pyattn.interop.dask._visible import Visible
from pyattn.masks import Mask

Live = list[tuple[int, Mask | None]]


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
        self.tasks: dict[Key, Any] = {}

    def results(self) -> da.Array | tuple[da.Array, da.Array]:
        """Make the graph, and the arrays that it computes."""
        both = self.options.need_lse
        names = [f"attention-{self.token}", f"attention-lse-{self.token}"]
        made = f"attention-both-{self.token}" if both else names[0]
        for outer in self.grid.outer():
            self._add_heads(made, outer)
        sources = [*self.arrays, *(x for x in self.visible.arrays.values() if isinstance(x, da.Array))]
        graph = HighLevelGraph.from_collections(made, self.tasks, dependencies=sources)
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
        live = [self.visible.keys(outer, row) for row in rows]
        ends: list[list[Key]] = [[] for _ in rows]
        for split in range(len(self.edges) - 1):
            begin, end = self.edges[split : split + 2]
            some = [[one for one in keys if begin <= one[0] < end] for keys in live]
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

    def _add_range(self, made: str, outer: Index, split: int, live: list[Live], ends: list[list[Key]]) -> None:
        """Add the chains over one range of chunks of keys, in step with each other."""
        chains = {row: dict(keys) for row, keys in enumerate(live) if keys}
        carries: dict[int, Key] = {}
        for row in chains:
            carries[row] = self._name("begin", *outer, row, split)
            begin = partial(_tasks.begin, self.visible.rows(outer, row), self._merges)
            self.tasks[carries[row]] = (begin, key_of(self.arrays[0], (*outer, row, 0)))

        numbers = sorted({number for keys in chains.values() for number in keys})
        last = {row: max(keys) for row, keys in chains.items()}
        at_work = [[row for row, keys in chains.items() if number in keys] for number in numbers]
        steps: list[list[Key]] = []
        waiting = _steps_before([len(rows) for rows in at_work], len(chains))
        for number, rows, before in zip(numbers, at_work, waiting, strict=True):
            waits = []
            if before is not None:
                waits = [self._gate((*outer, numbers[before]), steps[before])]
            elif not steps and len(rows) > 1:  # the queries come first, so that all workers get as many chains
                waits = [self._gate((*outer, "begin", split), [carries[row] for row in rows])]
            for row in rows:
                is_last = number == last[row]
                name = self._name("link", *outer, row, number)
                if is_last:
                    name = name if self._merges else (made, *outer, row, 0)
                    ends[row].append(name)
                index = (*outer, row, number)
                self.tasks[name] = self._link(index, chains[row][number], is_last, carries[row], waits)
                carries[row] = name
            steps.append([carries[row] for row in rows])

    def _link(self, index: Index, pairs: Mask | None, is_last: bool, carry: Key, waits: list[Key]) -> tuple[Any, ...]:
        """Make the task of a chunk of queries and a chunk of keys."""
        cut = self.grid.cut(index)
        keeps = None if self.visible.keeps is None else self.visible.keeps._part(cut)
        place = _tasks.Place(cut[-2].start, cut[-1].start, self._units(cut), pairs, keeps)
        attend = partial(_tasks.attend, self.options, place, is_last, self._merges)
        masks = [self.visible.block(name, index) for name in ("attn_mask", "keep_mask")]
        return (
            attend,
            carry,
            *(key_of(array, (*index[:-2], index[-1], 0)) for array in self.arrays[1:]),
            *masks,
            *waits,
        )

    def _gate(self, at: tuple[Any, ...], links: list[Key]) -> Key:
        """Add the task that is done when these are; their results stay where they are."""
        gate = self._name("gate", *at)
        if gate not in self.tasks:
            ticks = {self._name("tick", *at, n): (_tasks.tick, link) for n, link in enumerate(links)}
            self.tasks.update(ticks)
            self.tasks[gate] = (_tasks.tick, [*ticks])
        return gate

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


def _steps_before(links: list[int], chains: int) -> list[int | None]:
    """Find, for each step, the one that must be done before it: at least `chains` links lie between them."""
    # So a worker holds the keys of two steps, and steps of few links, as in a window, do not wait for each other.
    before: list[int | None] = []
    done, between = -1, 0
    for step, count in enumerate(links):
        while done + 1 < step and between - links[done + 1] >= chains > 1:
            done += 1
            between -= links[done]
        before.append(None if done < 0 else done)
        between += count
    return before


def _result(
    graph: HighLevelGraph, made: str, name: str, n: int, chunks: tuple[tuple[int, ...], ...], dtype: np.dtype[Any]
) -> da.Array:
    """Make the array of one of the two results of `made`."""
    places = itertools.product(*(range(len(one)) for one in chunks))
    layer = {(name, *at): (operator.getitem, (made, *at, *(0,) * n), n) for at in places}
    layers = {**graph.layers, name: MaterializedLayer(layer)}
    return da.Array(HighLevelGraph(layers, {**graph.dependencies, name: {made}}), name, chunks, dtype=dtype)

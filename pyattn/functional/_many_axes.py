"""Run the core on arrays with more than 8 axes: merge their batch axes, then restore them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core

__all__ = ["attention", "embedding", "feed_forward", "linear", "multi_head", "rotary"]

_Array = npt.NDArray[Any]
_Shape = tuple[int, ...]
_MOST = 5  # batch axes after merging: heads, length and dim come after them
_MASKS = {
    "attn_mask": 3,
    "key_padding_mask": 3,
    "keep_mask": 3,
    "key_limits": 3,
    "key_lengths": 0,
    "query_lengths": 0,
}
"""Number of axes that follow the batch axes: (..., heads, L, S), (..., heads, L, 2), and (...)."""


def attention(query: npt.ArrayLike, key: npt.ArrayLike, value: npt.ArrayLike, **options: Any) -> Any:
    """Compute attention with merged batch axes."""
    inputs = _read({"query": query, "key": key, "value": value}, 3)
    batch = _Batch.of(inputs, _read(options, _MASKS))
    out = _Out(options.pop("out", None), batch, 3)
    result = _core.attention(**batch.merge(inputs), **options | batch.merge(_read(options, _MASKS)), out=out.merged)
    if isinstance(result, np.ndarray):
        return out.finish(result)
    others = (None if x is None else batch.split(x) for x in (result.weights, result.lse))
    return type(result)(out.finish(result.output), *others)


def multi_head(query: npt.ArrayLike, key: Any, value: Any, *weights: Any, **options: Any) -> tuple[_Array, Any]:
    """Compute multi-head attention with merged batch axes."""
    inputs = _read({"query": query, "key": key, "value": value}, 2)
    masks = _read(options, _MASKS)
    batch = _Batch.of(inputs, masks)
    output, attended = _core.multi_head(*batch.merge(inputs).values(), *weights, **options | batch.merge(masks))
    return batch.split(output), None if attended is None else batch.split(attended)


def rotary(x: npt.ArrayLike, inv_freq: npt.NDArray[np.float64], **options: Any) -> _Array:
    """Rotate pairs of features with merged batch axes."""
    inputs, ids = _read({"x": x}, 3), _read(options, {"position_ids": 1})
    batch = _Batch.of(inputs, ids)
    out = _Out(options.pop("out", None), batch, 3)
    rows = batch.merge(inputs)["x"]
    return out.finish(_core.rotary(rows, inv_freq, **options | batch.merge(ids), out=out.merged))


def linear(x: npt.ArrayLike, weight: npt.ArrayLike, bias: Any = None, **options: Any) -> _Array:
    """Compute a linear layer of rows."""
    return _of_rows(lambda rows, **given: _core.linear(rows, weight, bias, **given), {"x": x}, options)


def feed_forward(x: npt.ArrayLike, *weights: Any, **options: Any) -> _Array:
    """Compute the feed-forward part of rows."""
    return _of_rows(lambda rows, **given: _core.feed_forward(rows, *weights, **given), {"x": x}, options)


def embedding(
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    padding_idx: Any = None,
    **options: Any,
) -> _Array:
    """Look up the rows of ids."""
    inputs, added = _read({"input": input}, 0), _read(options, {"residual": 1})
    batch = _Batch.of(inputs, added)
    out = _Out(options.pop("out", None), batch, 1)
    (ids,) = batch.merge(inputs).values()
    return out.finish(_core.embedding(ids, weight, padding_idx, **options | batch.merge(added), out=out.merged))


def _of_rows(function: Any, x: dict[str, npt.ArrayLike], options: dict[str, Any]) -> _Array:
    """Call a function of rows, whose gate and residual have the rows of x."""
    inputs, others = _read(x, 1), _read(options, {"gate": 1, "residual": 1})
    batch = _Batch.of(inputs)
    for name, (array, _) in others.items():
        if array.shape[:-1] != batch.shape:
            raise ValueError(f"{name} has shape {array.shape}, expected {batch.shape} for its axes but the last")
    out = _Out(options.pop("out", None), batch, 1)
    (rows,) = batch.merge(inputs).values()
    return out.finish(function(rows, **options | batch.merge(others), out=out.merged))


_Arrays = dict[str, tuple[_Array, int]]
"""Arrays by name, each with the number of axes after its batch axes."""


def _read(given: dict[str, Any], trailing: int | dict[str, int]) -> _Arrays:
    """Read those of the arrays that are given."""
    axes = dict.fromkeys(given, trailing) if isinstance(trailing, int) else trailing
    return {name: (_core.as_array(given[name], name), n) for name, n in axes.items() if given.get(name) is not None}


class _Batch(NamedTuple):
    """Batch axes, and groups of neighbouring ones, along which each array broadcasts or does not."""

    shape: _Shape
    groups: tuple[range, ...]

    @classmethod
    def of(cls, inputs: _Arrays, others: _Arrays | None = None) -> _Batch:
        """Broadcast the batch axes of the inputs; those of masks and the like must fit."""
        shape = _broadcast([array.shape[: array.ndim - n] for array, n in inputs.values()])
        if shape is None:
            shapes = ", ".join(f"{name} {array.shape}" for name, (array, _) in inputs.items())
            raise ValueError(f"the batch axes do not broadcast: {shapes}")
        leads = []
        for name, (array, n) in {**inputs, **(others or {})}.items():
            lead = array.shape[: max(0, array.ndim - n)]
            if _broadcast([shape, lead]) != shape:
                raise ValueError(f"{name} has shape {array.shape}, whose batch axes do not broadcast to {shape}")
            leads.append((1,) * (len(shape) - len(lead)) + lead)
        kinds = [tuple(lead[axis] == 1 for lead in leads) for axis in range(len(shape))]
        starts = [a for a in range(len(shape)) if shape[a] != 1]
        starts = [a for n, a in enumerate(starts) if n == 0 or kinds[a] != kinds[starts[n - 1]]]
        if len(starts) > _MOST:
            starts = starts[:1]  # arrays that broadcast are copied then
        return cls(shape, tuple(map(range, [0, *starts[1:]], [*starts[1:], len(shape)])))

    def merge(self, arrays: _Arrays) -> dict[str, Any]:
        """Merge the batch axes of arrays; one without batch axes stays as it is."""
        merged = {}
        for name, (array, n) in arrays.items():
            lead, rest = array.shape[: max(0, array.ndim - n)], array.shape[max(0, array.ndim - n) :]
            own = (1,) * (len(self.shape) - len(lead)) + lead
            sizes = [math.prod(own[axis] for axis in group) for group in self.groups]
            whole = [math.prod(self.shape[axis] for axis in group) for group in self.groups]
            if any(size not in (1, full) for size, full in zip(sizes, whole, strict=True)):
                array, sizes = np.broadcast_to(array, self.shape + rest), whole
            merged[name] = array.reshape(*sizes, *rest) if lead else array
        return merged

    def split(self, x: _Array) -> _Array:
        """Restore the batch axes of a result."""
        return x.reshape(self.shape + x.shape[len(self.groups) :])


def _broadcast(shapes: Sequence[_Shape]) -> _Shape | None:
    """Broadcast shapes of any number of axes; None if they do not fit. NumPy's own function takes 32 axes."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    sizes = [set(column) - {1} for column in columns]
    return None if any(len(size) > 1 for size in sizes) else tuple(size.pop() if size else 1 for size in sizes)


class _Out:
    """The array that a caller gave for a result, and its merged form for the core."""

    def __init__(self, out: Any, batch: _Batch, trailing: int) -> None:
        """Check the shape; the core checks the rest."""
        self._given, self._batch, self.merged = out, batch, out
        if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
            return  # the core refuses what is not None
        if out.ndim != len(batch.shape) + trailing or out.shape[: len(batch.shape)] != batch.shape:
            raise ValueError(f"out has shape {out.shape}, expected {batch.shape} for its batch axes")
        if not out.flags.c_contiguous and _may_overlap_itself(out):
            raise ValueError("out overlaps itself: elements share memory; pass an array without overlap")
        if not out.flags.writeable:
            raise ValueError("out is read-only; pass an array that can be written")
        memory = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        self.merged = batch.merge({"out": (np.asarray(memory), trailing)})["out"]

    def finish(self, result: _Array) -> _Array:
        """Return the caller's array, or the result with its batch axes restored."""
        if self._given is None:
            return self._batch.split(result)
        if not np.may_share_memory(self._given, self.merged):
            self._given[...] = self._batch.split(result)
        given: _Array = self._given
        return given


def _may_overlap_itself(array: _Array) -> bool:
    """Return whether strides alone do not show that all elements are apart."""
    reach = array.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape, strict=True)):
        if size > 1 and step < reach:
            return True
        reach += (size - 1) * step if size > 1 else 0
    return False

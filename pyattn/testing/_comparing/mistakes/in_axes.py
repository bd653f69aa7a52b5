"""Mistakes in axes: which is which, and in what order things lie along them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from pyattn.testing._comparing.formula import Array, Formula
from pyattn.testing._comparing.mistakes.mistake import Mistake

__all__ = ["in_axes"]

MOST_KEYS = 1024  # for a matrix of keys by keys
ALL_ORDERS = 4  # up to so many heads are tried in every order; of more, the usual ones


def in_axes(formula: Formula) -> Iterator[Mistake]:
    """Yield what is transposed, reshaped, flattened, or in another order, the common first.

    Parameters
    ----------
    formula : Formula
        The right one, of an attention.

    Yields
    ------
    Mistake
    """
    turned = formula.but(leave=lambda output: output.mT)
    yield Mistake("output transposed", "output", "transposes the output", "give it back as (length, v_dim)", turned)
    if formula.projections is None and formula.layout == "bhsd":
        yield from _keys(formula)
        yield from _columns(formula)
        if min(formula.query.ndim, formula.key.ndim) > 2:
            yield from _batches(formula)
            yield from _reshaped(formula)
    yield from _heads(formula)
    yield from _values(formula)


def _keys(f: Formula) -> Iterator[Mistake]:
    key, fix = f.key, "scores are query @ key.swapaxes(-1, -2)"
    yield Mistake("key not transposed", "scores", "does not transpose key", fix, f.but(key=key.mT))
    reshaped = key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2]).mT
    what = "reshapes key, which mixes its numbers, and does not transpose it"
    yield Mistake("key reshaped", "scores", what, fix, f.but(key=reshaped))
    if key.ndim > 2:
        what = "reverses all axes of key, as key.T does"
        yield Mistake("key.T", "scores", what, fix, f.but(key=key.T.mT))
    if key.shape[-2] <= MOST_KEYS:
        every = np.broadcast_to(np.eye(key.shape[-2]), (*key.shape[:-1], key.shape[-2]))
        yield Mistake("weights returned", "heads", "returns the weights", "return weights @ value", f.but(value=every))


def _without_masks(f: Formula, **changes: Any) -> Formula:
    return f.but(attn_mask=None, is_causal=False, window=None, key_lengths=None, query_lengths=None, **changes)


def _columns(f: Formula) -> Iterator[Mistake]:
    """Attend between features, which are as many as positions."""
    what = "reads inputs as columns, (head_dim, length)"
    fix = "each row is a position; if columns are meant, hand over transposed arrays, and transpose the result"
    turned = {"query": f.query.mT, "key": f.key.mT, "value": f.value.mT, "columns": True}
    for scale in (f.factor, None):
        yield Mistake("columns", "scores", what, fix, _without_masks(f, **turned, scale=scale))


def _batches(f: Formula) -> Iterator[Mistake]:
    """Yield batch entries, or heads, that are not kept apart."""
    what, fix = "attends to the first batch entry's keys and values in all", "keep the entries apart"
    yield Mistake("first batch entry", "heads", what, fix, f.but(key=f.key[:1], value=f.value[:1]))
    what = "attends to the keys of all batch entries"
    yield Mistake("batch flattened", "scores", what, fix, _joined(f, f.query.ndim - 2))
    if f.query.ndim > 3:
        what, fix = "lets heads attend to each other's keys", "keep the heads apart"
        yield Mistake("heads flattened", "scores", what, fix, _joined(f, 1))


def _joined(f: Formula, axes: int) -> Formula:
    """Count the last leading axes as positions."""
    shape = (*f.query.shape[:-1], f.value.shape[-1])
    flat = {
        name: x.reshape(*x.shape[: x.ndim - 2 - axes], -1, x.shape[-1])
        for name, x in (("query", f.query), ("key", f.key), ("value", f.value))
    }
    return _without_masks(f, **flat, scale=f.factor, leave=lambda output: output.reshape(shape))


def _reshaped(f: Formula) -> Iterator[Mistake]:
    """Yield axes that change places, or that ought to."""
    if f.query.ndim < 4:
        return
    what, fix = (
        "reads axes as (batch, length, heads, dim)",
        "they are (batch, heads, length, dim); if the former is meant, pass layout='bshd'",
    )
    yield Mistake("layout misread", "scores", what, fix, _without_masks(f, layout="bshd"))

    def mixed(x: Array) -> Array:
        return x.swapaxes(-3, -2).reshape(x.shape)

    def split(x: Array) -> Array:
        return x.reshape(*x.shape[:-3], x.shape[-2], x.shape[-3], x.shape[-1]).swapaxes(-3, -2)

    merged: dict[str, Any] = {"leave": mixed}
    parts = {"query": split(f.query), "key": split(f.key), "value": split(f.value)}
    for where, changes in (("output", merged), ("inputs", parts), ("inputs and its output", merged | parts)):
        what = f"mixes heads and positions of its {where} by reshape"
        yield Mistake("heads reshaped", "output", what, "let axes change places with swapaxes", f.but(**changes))


def _heads(f: Formula) -> Iterator[Mistake]:
    attend, counts = f.steps.attend, (f.heads, f.kv_heads)
    if f.projections is None:
        axis = -2 if f.layout == "bshd" else -3
        counts = (f.query.shape[axis], f.key.shape[axis]) if min(f.query.ndim, f.key.ndim) > 3 else (1, 1)
    for order in _orders(counts[0]):
        what = f"gives its heads in another order, {_listed(order)}"
        moved = f.but(attend=lambda weights, visible, value, n=order: attend(weights, visible, value)[..., n, :, :])
        yield Mistake("heads in another order", "heads", what, "leave the axis of the heads as it comes", moved)
    for order in _orders(counts[1]):
        what = f"attends with key and value heads in another order, {_listed(order)}"
        fix = "query head h reads key head h // (heads / key heads)"
        moved = f.but(share=lambda x, heads, axis, n=order: x.take(n, axis))
        yield Mistake("key heads in another order", "heads", what, fix, moved)


def _orders(count: int) -> Iterator[Array]:
    """Yield orders of heads but the right one."""
    right = np.arange(count)
    if count <= ALL_ORDERS:
        yield from map(np.array, list(permutations(range(count)))[1:])
    else:
        yield from (right[::-1], np.roll(right, 1), np.roll(right, -1), right ^ 1 if count % 2 == 0 else right[::-1])


def _listed(order: Array) -> str:
    return f"{', '.join(map(str, order[:8]))}{', ...' if len(order) > 8 else ''}"


def _values(f: Formula) -> Iterator[Mistake]:
    attend, fix = f.steps.attend, "weight j belongs to value j"
    for what, change in (
        ("takes the values from the last to the first", lambda value: value[..., ::-1, :]),
        ("takes each key's value from the position before", lambda value: np.roll(value, 1, axis=-2)),
        ("takes each key's value from the position after", lambda value: np.roll(value, -1, axis=-2)),
    ):
        moved = f.but(attend=lambda weights, visible, value, change=change: attend(weights, visible, change(value)))
        yield Mistake("values in another order", "heads", what, fix, moved)

"""Memory order of the weights of linear layers, which `Module.to_order` changes.

Weights have torch's shape, (out, in). New ones are stored as (in, out), like the W of ``x @ W``, which is multiplied
with a single row without a transpose. The order changes no bit of a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from pyattn._util.typing import FloatArray

__all__ = ["MemoryOrder", "reordered"]

MemoryOrder = Literal["in_out", "out_in"]


def reordered(
    weights: Mapping[str, FloatArray], others: Iterable[FloatArray], order: MemoryOrder, copy: bool
) -> dict[int, FloatArray]:
    """Return the arrays that replace weights of another order, by the id of each; see `Module.to_order`."""
    others = list(others)
    keep, everything = {id(array) for array in others}, [*weights.values(), *others]
    replaced: dict[int, FloatArray] = {}
    for name, array in weights.items():
        if id(array) in replaced or id(array) in keep or _has_order(array, order):
            continue
        if not copy and (not _owns(array) or _is_viewed(array, everything)):
            raise ValueError(
                f"{name} shares memory with another array, a file or another library, and to_order would separate "
                "them; pass copy=True to allow that"
            )
        replaced[id(array)] = np.array(array, order="F" if order == "in_out" else "C")
    return replaced


def _has_order(array: FloatArray, order: MemoryOrder) -> bool:
    return array.flags.f_contiguous if order == "in_out" else array.flags.c_contiguous


def _owns(array: FloatArray) -> bool:
    """Return whether no other object uses the memory. An unpickled array has its own bytes or bytearray."""
    base: Any = array.base
    if isinstance(base, np.ndarray) and base.nbytes == array.nbytes:  # protocol 5 reshapes a flat array
        base = base.base
    return array.flags.owndata or isinstance(getattr(base, "obj", base), (bytes, bytearray))


def _is_viewed(array: FloatArray, others: list[FloatArray]) -> bool:
    """Return whether another parameter is a view of this one."""
    return any(other is not array and np.may_share_memory(array, other) for other in others)

"""Memory order of the weights of linear layers, which `Module.to_order` changes.

A weight has torch's shape, (out, in). As (in, out) it lies like the W of ``x @ W``: a row then reads it as it comes,
without a transposition. The order changes no bit of a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np

from pyattn._util.typing import FloatArray

__all__ = ["MemoryOrder", "reordered"]

MemoryOrder = Literal["in_out", "out_in"]


def reordered(
    weights: Mapping[str, FloatArray], others: Iterable[FloatArray], order: MemoryOrder, copy: bool
) -> dict[int, FloatArray]:
    """Return the arrays that replace weights of another order, by the id of each; see `Module.to_order`."""
    others = list(others)
    keep = {id(array) for array in others}
    replaced: dict[int, FloatArray] = {}
    for name, array in weights.items():
        if id(array) in replaced or id(array) in keep or _lies(array, order):
            continue
        if not copy and (not array.flags.owndata or _is_viewed(array, [*weights.values(), *others])):
            raise ValueError(
                f"{name} shares its memory with another array, a file or another library, which would no longer see "
                "changes of it; pass copy=True to replace it by an array of its own"
            )
        replaced[id(array)] = np.array(array, order="F" if order == "in_out" else "C")
    return replaced


def _lies(array: FloatArray, order: MemoryOrder) -> bool:
    return array.flags.f_contiguous if order == "in_out" else array.flags.c_contiguous


def _is_viewed(array: FloatArray, others: list[FloatArray]) -> bool:
    """Return whether another parameter is a view of this one."""
    return any(other is not array and np.may_share_memory(array, other) for other in others)

"""A module with gradients that a test sets, and memory of every kind."""

from __future__ import annotations

import numpy as np

from pyattn import nn


class Learner(nn.Module):
    """Parameters by name; `grads` is a fresh dict of the arrays that were set."""

    def __init__(self, **parameters):
        super().__init__()
        for name, array in parameters.items():
            self.register_parameter(name, array)
        self.set_grads()

    def set_grads(self, **gradients):
        object.__setattr__(self, "_set", gradients)

    @property
    def grads(self):
        return dict(self._set)

    def zero_grad(self):
        self.set_grads()


def stored_in(array, kind):
    """The same numbers in another memory: dense in some order, or not dense, or not for the core at all."""
    if kind == "F":
        return np.asfortranarray(array)
    if kind == "permuted":
        return np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1)
    if kind == "strided":
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if kind == "backwards":
        return np.ascontiguousarray(array[::-1])[::-1]
    if kind == "unaligned":
        raw = bytearray(array.nbytes + 1)
        found = np.frombuffer(raw, array.dtype, array.size, offset=1).reshape(array.shape)
        found[...] = array
        return found
    if kind == "swapped":
        return array.astype(array.dtype.newbyteorder())
    return array.copy()


MEMORY = ("C", "F", "permuted", "strided", "backwards", "unaligned", "swapped")

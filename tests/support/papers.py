"""Attention as papers write it, head by head in NumPy, in both conventions, and how far off pyattn's numbers may be.

Nothing here is pyattn's. A number travels with its bound, to first order in u, the unit roundoff of the dtype on trial:
a sum of n products is off by 4 u sqrt(n) times the sum of their sizes, a softmax over scores that are each off by at
most e by 2 e + 8 u (1 + 2 max |score|) relative to each weight, and what goes in passes its own error on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Near(NamedTuple):
    """The exact number, and what a computed one may be off by."""

    value: np.ndarray
    error: np.ndarray

    def turned(self):
        return Near(self.value.mT, self.error.mT)


def exactly(array) -> Near:
    wide = np.asarray(array, np.longdouble)
    return Near(wide, np.zeros_like(wide))


class Papers:
    """The formulas, for one dtype on trial."""

    def __init__(self, dtype):
        self.u = float(np.finfo(dtype).eps) / 2

    def product(self, a: Near, b: Near, bias=None) -> Near:
        sizes = np.abs(a.value) @ np.abs(b.value) + (0 if bias is None else np.abs(bias))
        error = a.error @ np.abs(b.value) + np.abs(a.value) @ b.error + a.error @ b.error
        value = a.value @ b.value + (0 if bias is None else np.asarray(bias, np.longdouble))
        return Near(value, error + 4 * self.u * np.sqrt(a.value.shape[-1]) * sizes)

    def softmax(self, scores: Near, scale, axis) -> Near:
        scaled, error = scores.value * scale, scores.error * abs(scale)
        e = np.exp(scaled - scaled.max(axis, keepdims=True))
        weights, worst = e / e.sum(axis, keepdims=True), error.max(axis, keepdims=True)
        relative = 2 * worst + 8 * self.u * (1 + 2 * np.abs(scaled).max(axis, keepdims=True))
        return Near(weights, weights * relative)

    def rows(self, x, key, value, weights, biases=(None, None, None), scale=None) -> tuple[Near, Near]:
        """One head, an input per row: ``softmax(Q K^T / sqrt(d_k)) V`` with ``Q = x W_Q``; output and weights."""
        q, k, v = (
            self.product(exactly(one), exactly(w), b)
            for one, w, b in zip((x, key, value), weights, biases, strict=True)
        )
        scale = 1 / np.sqrt(np.longdouble(q.value.shape[-1])) if scale is None else scale
        attended = self.softmax(self.product(q, k.turned()), scale, axis=-1)
        return self.product(attended, v), attended

    def columns(self, x, key, value, weights, biases=(None, None, None), scale=None) -> tuple[Near, Near]:
        """One head, an input per column: ``O = V softmax(K^T Q / sqrt(d_k))`` by column, with ``Q = W_Q x``."""
        q, k, v = (
            self.product(exactly(w), exactly(one), None if b is None else np.asarray(b)[:, np.newaxis])
            for one, w, b in zip((x, key, value), weights, biases, strict=True)
        )
        scale = 1 / np.sqrt(np.longdouble(q.value.shape[-2])) if scale is None else scale
        attended = self.softmax(self.product(k.turned(), q), scale, axis=-2)
        return self.product(v, attended), attended

    def multi_head(self, inputs, given, *, columns=False) -> tuple[Near, list[Near]]:
        """``Concat(head_1 ... head_H) W_O``, or ``W_O [head_1; ...; head_H]``; the output, and each head's weights.

        given: lists w_query, w_key, w_value, then w_out, and biases b_query, b_key, b_value, b_out, or None.
        """
        matrices, w_out, vectors, b_out = given[:3], given[3], given[4:7], given[7]
        group = len(matrices[0]) // len(matrices[1])
        heads = []
        for i in range(len(matrices[0])):
            places = (i, i // group, i // group)
            weights = [m[n] for m, n in zip(matrices, places, strict=True)]
            biases = [None if b is None else b[n] for b, n in zip(vectors, places, strict=True)]
            heads.append((self.columns if columns else self.rows)(*inputs, weights, biases))
        axis = -2 if columns else -1
        both = Near(*(np.concatenate(parts, axis) for parts in zip(*(output for output, _ in heads), strict=True)))
        if columns:
            b_out = None if b_out is None else np.asarray(b_out)[:, np.newaxis]
            output = self.product(exactly(w_out), both, b_out)
        else:
            output = self.product(both, exactly(w_out), b_out)
        return output, [attended for _, attended in heads]


def assert_near(actual, expected: Near):
    assert actual.shape == expected.value.shape
    assert (np.abs(actual - expected.value) <= expected.error).all()

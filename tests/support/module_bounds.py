"""What a MultiheadAttention's output and weights may be off by, derived step by step from the bounds of its parts.

The reference is the formula, computed one float type wider than the module. Rounding of the projections is that of
`linear`, 4u sqrt(inner) (|x| |W| + |b|). It moves values, and it moves scores: by e_ij at most, for query i and key
j. A weight w_ij is then off by a factor of exp(e_ij + max_j e_ij) at most, up or down. What attention itself adds is
its own bound, and the output's projection passes all that on through |W_o| and adds its own.

Distances compares with torch's own: over all cases of a family.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from pyattn import reference
from pyattn.testing.bounds import WIDER, expect, output_bars

LINEAR_BAR = 4.0
NO_FURTHER = 1.5  # than torch, from the formula


class Near(NamedTuple):
    """Exact numbers, and what each of them may be off by."""

    exact: np.ndarray
    error: np.ndarray

    def ratio(self, actual) -> float:
        """The worst error over its bound: at most 1. Inf where a NaN or another shape is wrong."""
        if actual.shape != self.exact.shape:
            return np.inf
        error = np.abs(actual.astype(self.exact.dtype) - self.exact)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.where(error == 0, 0, error / self.error)
        return float(np.where(np.isnan(ratios), np.inf, ratios).max(initial=0))


class Masking(NamedTuple):
    """What a case hides, as the module takes it: True = blocked. Axes: (N, ...), or none of it for one batch entry."""

    attn_mask: np.ndarray | None = None
    key_padding_mask: np.ndarray | None = None
    is_causal: bool = False
    window: tuple[int | None, int | None] | None = None
    key_lengths: np.ndarray | None = None


def added_to_scores(hidden: Masking, batch: int, heads: int, q_len: int, kv_len: int, extras: int) -> np.ndarray:
    """What all of it comes to: numbers or -inf, (batch, heads, L, S and the keys behind, which nothing hides)."""
    total = np.zeros((batch, heads, q_len, kv_len))
    for mask, axes in (
        (hidden.attn_mask, (-1, heads if np.ndim(hidden.attn_mask) == 3 else 1, q_len, kv_len)),
        (hidden.key_padding_mask, (batch, 1, 1, kv_len)),
    ):
        if mask is not None:
            total += (np.where(mask, -np.inf, 0) if mask.dtype == bool else mask.astype("f8")).reshape(axes)
    i, j = np.ogrid[:q_len, :kv_len]
    left, right = hidden.window or (None, None)
    if hidden.is_causal:
        total[..., j > i] = -np.inf
    if left is not None:
        total[..., j < i - left] = -np.inf
    if right is not None:
        total[..., j > i + right] = -np.inf
    if hidden.key_lengths is not None:
        total[np.broadcast_to(j >= np.reshape(hidden.key_lengths, (-1, 1, 1, 1)), total.shape)] = -np.inf
    return np.pad(total, [(0, 0)] * 3 + [(0, extras)])


def expect_module(module, inputs, hidden, *, average, keep=None) -> tuple[Near, Near]:
    """Output (N, L, out_dim) and weights (N, heads, L, S) or their mean of inputs (N, length, features).

    keep: which weights dropout keeps (N, heads, L, S); None in evaluation.
    """
    heads, dtype = module.num_heads, module.out_proj.weight.dtype.name
    u = np.finfo(dtype).eps / 2
    q, k, v = _projections(module, inputs)
    extras = k.exact.shape[2] - inputs[1].shape[1]
    mask = added_to_scores(hidden, len(inputs[0]), heads, inputs[0].shape[1], inputs[1].shape[1], extras)
    exact = expect(q.exact, k.exact, v.exact, dtype, attn_mask=mask)

    q_size, k_size, v_size = (np.abs(near.exact).astype("f8") for near in (q, k, v))  # bounds need no more than float64
    moved = q.error @ k_size.mT + q_size @ k.error.mT + q.error @ k.error.mT
    moved = np.where(exact.visible, moved / np.sqrt(module.head_dim), 0)
    factor = np.expm1(moved + moved.max(-1, keepdims=True, initial=0))
    kept = np.ones(moved.shape) if keep is None else keep / (1 - np.longdouble(module.dropout))
    weights = exact.weights if keep is None else exact.weights * kept
    shares = weights.astype("f8")
    after = 8 * u * (1 + (keep is not None) + 2 * exact.largest[..., np.newaxis])  # dropout divides once more
    weights_error = shares * (factor + after) + exact.tiny

    own = output_bars(exact) * exact.output_unit * float(kept.max(initial=1))
    head_error = (shares * factor) @ (v_size + v.error) + shares @ v.error + own
    side, side_error = (
        x.swapaxes(1, 2).reshape(len(x), q.exact.shape[2], heads * x.shape[-1]) for x in (weights @ v.exact, head_error)
    )
    output = _linear(side, module.out_proj.weight, module.out_proj.bias, dtype)
    passed_on = side_error @ np.abs(module.out_proj.weight.astype("f8")).T
    if average:  # a sum of as many as there are heads
        weights, weights_error = weights.mean(1), weights_error.mean(1) + heads * u * shares.mean(1)
    return Near(output.exact, output.error + passed_on), Near(weights, weights_error)


def _projections(module, inputs) -> list[Near]:
    """Of query, key and value, with what is appended: (N, num_heads, length, features of a head) each."""
    rows = [module.num_heads * module.head_dim, module.num_kv_heads * module.head_dim]
    packed = module.in_proj_weight
    weights = [getattr(module, f"{x}_proj_weight") for x in "qkv"] if packed is None else np.split(packed, 3)
    biases = [None] * 3 if module.in_proj_bias is None else np.split(module.in_proj_bias, np.cumsum(rows))
    parts = []
    for n, (x, weight, bias) in enumerate(zip(inputs, weights, biases, strict=True)):
        behind = [] if n == 0 or module.bias_k is None else [(module.bias_k, module.bias_v)[n - 1].reshape(-1)]
        behind += [np.zeros(len(weight))] if n > 0 and module.add_zero_attn else []
        near = _linear(x, weight, bias, module.out_proj.weight.dtype.name)
        exact, error = near.exact, near.error
        for row in behind:
            exact = np.concatenate([exact, np.broadcast_to(row, (len(x), 1, len(row)))], axis=1)
            error = np.concatenate([error, np.zeros((len(x), 1, len(row)))], axis=1)
        own = module.num_heads if n == 0 else module.num_kv_heads
        by_head = (y.reshape(*y.shape[:2], own, -1).swapaxes(1, 2) for y in (exact, error))
        parts.append(Near(*(np.repeat(y, module.num_heads // own, axis=1) for y in by_head)))
    return parts


def _linear(x, weight, bias, dtype) -> Near:
    size = np.abs(x).astype("f8") @ np.abs(weight).astype("f8").T + (0 if bias is None else np.abs(bias))
    error = LINEAR_BAR * np.finfo(dtype).eps / 2 * np.sqrt(weight.shape[1]) * size
    return Near(reference.linear(x, weight, bias, dtype=WIDER[dtype]), error)


def distance(actual, near: Near, of=True) -> float:
    """The largest error over the largest number, in units of rounding; `of`: the numbers that count."""
    error = np.where(of, np.abs(actual.astype(near.exact.dtype) - near.exact), 0).max(initial=0)
    scale = np.where(of, np.abs(near.exact), 0).max(initial=0)
    return 0.0 if error == 0 else float(error / scale / (np.finfo(actual.dtype).eps / 2))


class Distances:
    """The largest error of each case over its largest number, in units of rounding, ours and torch's; by family."""

    def __init__(self):
        self.pairs = defaultdict(list)
        self.shares = defaultdict(float)  # of a bound, where there is one

    def note(self, family, ours, theirs, share=0.0):
        """Add a case; share: what part of its bound it takes."""
        self.pairs[family].append((ours, theirs))
        self.shares[family] = max(self.shares[family], share)

    def assert_no_further(self):
        """One case alone may be beyond the bar by chance: the worst of all cases may not, nor the 99th percentile."""
        for family in self.pairs:
            for ours, theirs in self._figures(family):
                assert ours <= NO_FURTHER * theirs, family

    def lines(self):
        yield "distance from the formula, in u of the largest number: pyattn, torch; the largest share of its bound"
        for family, pairs in self.pairs.items():
            worst, most = self._figures(family)
            numbers = f"worst {worst[0]:7.2f} {worst[1]:7.2f}   99 % {most[0]:7.2f} {most[1]:7.2f}"
            share = f"   {self.shares[family]:.2f}" if self.shares[family] else ""
            yield f"{' '.join(family):24} {len(pairs):4} cases   {numbers}{share}"

    def _figures(self, family):
        """(ours, torch's) at worst, and as 99th percentiles."""
        return np.max(self.pairs[family], axis=0), np.percentile(self.pairs[family], 99, axis=0)

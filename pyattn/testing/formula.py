"""Attention as data that is computed stage by stage.

A `Formula` holds everything that determines the numbers: inputs, parameters, masks, and the functions for steps that
people write in different ways. A mistake is a copy with a field or two changed: see mistakes.py.

Indices: N batch, H heads, L queries, S keys, E features, D features of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference

__all__ = ["STAGES", "Affine", "Computed", "Formula", "append_rows", "compute", "merge_heads", "softmax", "split_heads"]

Array: TypeAlias = npt.NDArray[Any]

STAGES = ("query", "key", "value", "scores", "weights", "lse", "heads", "output")
"""Stages in the order of computation. Attention without projections begins with the scores."""


class Affine(NamedTuple):
    """``y = x @ weight.T + bias``; weight is (out_features, in_features)."""

    weight: Array
    bias: Array | None = None


# Steps: the defaults of a Formula


def split_heads(x: Array, heads: int) -> Array:
    """Split (..., length, H * D) into (..., H, length, D)."""
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-3, -2)


def merge_heads(x: Array) -> Array:
    """Merge (..., H, length, D) into (..., length, H * D)."""
    swapped = x.swapaxes(-3, -2)
    return swapped.reshape(*swapped.shape[:-2], swapped.shape[-2] * swapped.shape[-1])


def softmax(scores: Array, visible: Array) -> Array:
    """Normalize over the keys; a row with nothing to attend to gives 0."""
    return np.where(visible.any(axis=-1, keepdims=True), reference.softmax(scores, dtype=scores.dtype), 0)


def _score(products: Array, scale: float, bias: Array, visible: Array) -> Array:
    return np.where(visible, products * products.dtype.type(scale) + bias, -np.inf)


@dataclass(frozen=True, eq=False)
class Formula:
    """One linear layer, one attention, or one multi-head attention with its projections."""

    query: Array
    """The input of a linear layer; with projections (N, length, E) or (length, E); else as in `pyattn.attention`."""
    key: Any = None
    value: Any = None
    projections: tuple[Affine, Affine, Affine] | None = None
    out: Affine | None = None
    """The output projection, or the linear layer itself."""
    heads: int = 1
    kv_heads: int = 1
    extras: tuple[tuple[Array, Array], ...] = ()
    """Keys and values that add_bias_kv and add_zero_attn append; they are never masked."""
    layout: Any = "bhsd"
    enable_gqa: bool = False
    scale: float | None = None
    score_function: Any = "dot"
    score_weight: Any = None
    attn_mask: Array | None = None
    """bool, True = attend, or float, added to the scores; broadcasts to (..., H, L, S), as does padding."""
    padding: Array | None = None
    blocked: bool = False
    """Whether True meant blocked in the caller's masks. Used in messages only."""
    is_causal: bool = False
    align: Any = None
    window: Any = None
    key_lengths: Any = None
    query_lengths: Any = None
    drop: Array | None = None
    """Factors of the weights after the softmax: 0 where dropped, else 1 / (1 - dropout_p)."""
    empty_rows: str = "zero"
    average: bool = False
    """Whether to return the mean of the weights over heads."""
    length_first: bool = False
    """Whether the output is (L, N, E). Without projections: whether it has the other layout than the inputs."""
    convention: str = "row"
    """'column': output and weights are returned with their last two axes swapped."""

    split: Callable[[Array, int], Array] = split_heads
    share: Callable[[Array, int, int], Array] = lambda x, heads, axis: x
    """Expands keys or values to the query heads, if that is not key head h // (query heads / key heads)."""
    score: Callable[[Array, float, Array, Array], Array] = _score
    """(products, scale, bias, visible) -> scores."""
    normalize: Callable[[Array, Array], Array] = softmax
    """(scores, visible) -> weights."""
    attend: Callable[[Array, Array, Array], Array] = reference.weighted_sum
    """(weights, visible, value) -> heads."""
    merge: Callable[[Array], Array] = merge_heads
    round_stage: Callable[[Array, str], Array] = lambda x, stage: x
    """(numbers, stage) -> numbers, after each stage."""
    finish: Callable[[Array], Array] = lambda x: x
    """Output -> output, as the last step."""
    finish_weights: Callable[[Array], Array] = lambda x: x

    @property
    def is_linear(self) -> bool:
        """Whether this is a linear layer alone."""
        return self.key is None

    @property
    def length_axis(self) -> int:
        """The axis of positions in query, key and value."""
        return -3 if self.layout == "bshd" and self.projections is None else -2

    @property
    def head_axis(self) -> int:
        """The axis of heads in query, key and value, where they have one."""
        return -2 if self.layout == "bshd" else -3

    @property
    def lengths(self) -> tuple[int, int]:
        """L and S, without extra keys."""
        return int(self.query.shape[self.length_axis]), int(self.key.shape[self.length_axis])

    @property
    def head_dim(self) -> int:
        """D of queries and keys."""
        if self.projections is None:
            return int(self.query.shape[-1])
        return int(self.projections[0].weight.shape[0]) // self.heads

    @property
    def factor(self) -> float:
        """The number that scores are multiplied by."""
        return float(self.usual_factor if self.scale is None else self.scale)

    @property
    def usual_factor(self) -> float:
        """The default factor, used if the caller gives no scale."""
        return float(reference.default_scale(self.score_function, self.head_dim))

    @property
    def window_ends(self) -> tuple[int | None, int | None]:
        """Number of keys that a query sees to the left and to the right of its own position."""
        left, right = self.window if isinstance(self.window, tuple) else (self.window, self.window)
        return left, right

    def as_returned(self, output: Array) -> Array:
        """Convert an output, (..., L, features), to the axes that the caller gets."""
        swap = self.length_first != (self.layout == "bshd" and self.projections is None)
        output = output.swapaxes(-3, -2) if swap else output
        return self.finish(output.mT if self.convention == "column" else output)

    def as_computed(self, output: Array) -> Array:
        """Convert an output, or its gradient, from the caller's axes to (..., L, features)."""
        output = output.mT if self.convention == "column" else output
        swap = self.length_first != (self.layout == "bshd" and self.projections is None)
        return output.swapaxes(-3, -2) if swap else output

    def weights_as_returned(self, weights: Array) -> Array:
        """Convert weights, (..., H, L, S), or their bounds, to the axes that the caller gets."""
        weights = weights.mean(axis=-3) if self.average else weights
        return self.finish_weights(weights.mT if self.convention == "column" else weights)

    def products(self, q: Array, k: Array) -> Array:
        """Compute scores before they are scaled."""
        if self.score_function == "dot":
            return np.asarray(q @ k.mT)
        return reference.scores(q, k, self.score_function, 1.0, self.score_weight, dtype=q.dtype)

    def operands(self, projected: list[Array]) -> reference.Operands:
        """Split projections into heads, or take inputs as they are, and expand keys and values to query heads."""
        gqa, (q, k, v) = self.enable_gqa, projected
        if self.projections is not None:
            gqa, counts = True, (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = (self.split(x, heads) for x, heads in zip(projected, counts, strict=True))
        axis = self.head_axis
        if max(x.ndim for x in (q, k, v)) >= (3 if gqa else 4) and q.ndim >= 3:
            k, v = (self.share(x, q.shape[axis], axis) for x in (k, v))
        return reference.operands(q, k, v, layout=self.layout, enable_gqa=gqa, dtype=q.dtype)


class Computed(NamedTuple):
    """Results by stage, and the arrays that their error bounds need."""

    stages: dict[str, Array]
    """Results in the shapes that the caller gets."""
    operands: Any = None
    """Query, key and value, (..., H, length, D)."""
    bias: Any = None
    visible: Any = None
    weights: Any = None
    """The weights of each head, after dropout and before they are averaged."""
    heads: Any = None
    merged: Any = None


def compute(formula: Formula, dtype: npt.DTypeLike = np.float64) -> Computed:
    """Compute every stage in one dtype."""
    f = formula
    with np.errstate(all="ignore"):  # masked numbers may overflow, and mistakes may be invalid
        if f.is_linear:
            return Computed({"output": f.round_stage(_affine(f.round_stage(f.query, "input"), f.out, dtype), "output")})
        found, operands = _project(f, dtype)
        q, k, v, has_heads = operands
        bias, visible = _mask(f, (*q.shape[:-1], k.shape[-2]), has_heads, dtype)
        scores = f.round_stage(f.score(f.products(q, k), f.factor, bias, visible), "scores")
        weights = f.round_stage(f.normalize(scores, visible), "weights")
        weights = weights if f.drop is None else weights * f.drop.astype(dtype)
        heads = f.round_stage(f.attend(weights, visible, v), "heads")
        if f.empty_rows == "nan":
            heads = np.where(visible.any(axis=-1, keepdims=True), heads, np.nan)
        merged = heads if f.projections is None else f.merge(heads)
        output = f.round_stage(_affine(merged, f.out, dtype), "output")
        found |= {"scores": scores, "weights": f.weights_as_returned(weights)}
        found |= {"lse": _log_sum_exp(scores)} if f.projections is None else {}
        found |= {"heads": heads, "output": f.as_returned(output)}
    return Computed(found, operands, bias, visible, weights, heads, merged)


def _log_sum_exp(scores: Array) -> Array:
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    return np.asarray((np.log(np.exp(scores - shift).sum(axis=-1, keepdims=True)) + shift)[..., 0])


def _affine(x: Array, parameters: Affine | None, dtype: npt.DTypeLike) -> Array:
    return x if parameters is None else reference.linear(x, *parameters, dtype=dtype)


def _project(f: Formula, dtype: npt.DTypeLike) -> tuple[dict[str, Array], reference.Operands]:
    """Return the projections as the caller gets them, and split into heads."""
    inputs = [f.round_stage(np.asarray(x, dtype), "input") for x in (f.query, f.key, f.value)]
    if f.projections is None:
        return {}, f.operands(inputs)
    inputs = [_affine(x, parameters, dtype) for x, parameters in zip(inputs, f.projections, strict=True)]
    inputs[1:] = [append_rows(x, [extra[n] for extra in f.extras]) for n, x in enumerate(inputs[1:])]
    inputs = [f.round_stage(x, name) for name, x in zip(STAGES, inputs, strict=False)]
    return dict(zip(STAGES, inputs, strict=False)), f.operands(inputs)


def append_rows(x: Array, rows: list[Array]) -> Array:
    """Append extra keys or values, each (features,), to those of every batch entry."""
    behind = [np.broadcast_to(row.astype(x.dtype), (*x.shape[:-2], 1, x.shape[-1])) for row in rows]
    return np.concatenate([x, *behind], axis=-2)


def _mask(f: Formula, shape: tuple[int, ...], has_heads: bool, dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """Return the bias of the scores, which may be infinite, and which pairs are visible."""
    extras = len(f.extras)
    given = (*shape[:-1], shape[-1] - extras)
    visible = reference.visible_pairs(
        given, has_heads, None, f.is_causal, f.align, f.window, f.key_lengths, f.query_lengths
    )
    bias: Array = np.zeros(given, dtype)
    for mask in (f.attn_mask, f.padding):
        if mask is not None and mask.dtype == np.bool_:
            visible = visible & mask
        elif mask is not None:
            visible, bias = visible & (mask != -np.inf), bias + mask.astype(dtype)
    if not extras:
        return bias, visible
    ends = [(0, 0)] * (len(shape) - 1) + [(0, extras)]
    return np.pad(bias, ends), np.pad(visible, ends, constant_values=True)

"""Attention as data, computed stage by stage: in float64, or in the dtype of one of the two sides.

A `Formula` holds all that decides the numbers: inputs, parameters, what is hidden, and the steps that people write in
more than one way. What may have gone wrong is then a copy with a field or two changed: see mistakes/.

Indices: N batch, H heads, L queries, S keys, E features, D features of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference
from pyattn.testing._comparing.steps import Steps

__all__ = [
    "STAGES",
    "Affine",
    "Computed",
    "Formula",
    "append_rows",
    "compute",
]

Array: TypeAlias = npt.NDArray[Any]

STAGES = ("query", "key", "value", "scores", "weights", "lse", "heads", "output")
"""In the order in which they are computed; a function's has no projections, and lse where it returns one."""


class Affine(NamedTuple):
    """``y = x @ weight.T + bias``; weight is (out_features, in_features)."""

    weight: Array
    bias: Array | None = None


@dataclass(frozen=True, eq=False)
class Formula:
    """One linear layer, one attention, or one multi-head attention with its projections.

    Attributes
    ----------
    query, key, value : ndarray
        Of multi-head attention (N, length, E) or (length, E); of attention as `pyattn.attention` takes them. A linear
        layer has its input as query, and no key and value.
    projections : tuple of three Affine, or None
        Of query, key and value; None for attention alone.
    out : Affine or None
        The output's projection, or the linear layer itself.
    heads, kv_heads : int
        What projections are cut into.
    extras : tuple of (row, row)
        Keys and values behind all others, which nothing hides.
    attn_mask, padding : ndarray or None
        True = attend, or numbers to add; they broadcast to (..., H, L, S).
    score_function, score_weight : str, ndarray or None
        The score function, and its weight.
    blocked : bool
        Whether the caller's masks meant the opposite, as torch's modules do. For what is said of them alone.
    average : bool
        Weights are their mean over heads.
    turn : bool
        The output is (L, N, E), not (N, L, E). Of attention alone: not in its layout.
    columns : bool
        Output and weights leave with their last two axes swapped.
    """

    query: Array
    key: Any = None
    value: Any = None
    projections: tuple[Affine, Affine, Affine] | None = None
    out: Affine | None = None
    heads: int = 1
    kv_heads: int = 1
    extras: tuple[tuple[Array, Array], ...] = ()
    layout: Any = "bhsd"
    enable_gqa: bool = False
    scale: float | None = None
    score_function: Any = "dot"
    score_weight: Any = None
    attn_mask: Array | None = None
    padding: Array | None = None
    blocked: bool = False
    is_causal: bool = False
    align: Any = None
    window: Any = None
    key_lengths: Any = None
    query_lengths: Any = None
    empty_rows: str = "zero"
    average: bool = False
    turn: bool = False
    columns: bool = False
    steps: Steps = field(default_factory=Steps)

    @property
    def is_linear(self) -> bool:
        """A linear layer alone."""
        return self.key is None

    def turned(self, output: Array) -> Array:
        """Give an output the axes in which a caller sees it.

        Parameters
        ----------
        output : ndarray, (..., L, features)
            As it is computed.

        Returns
        -------
        ndarray
        """
        turn = self.turn != (self.layout == "bshd" and self.projections is None)
        output = output.swapaxes(-3, -2) if turn else output
        return self.steps.leave(output.mT if self.columns else output)

    def gathered(self, weights: Array) -> Array:
        """Give weights, or their bounds, the axes in which a caller sees them.

        Parameters
        ----------
        weights : ndarray, (..., H, L, S)
            As they are computed.

        Returns
        -------
        ndarray
        """
        weights = weights.mean(axis=-3) if self.average else weights
        return weights.mT if self.columns else weights

    @property
    def lengths(self) -> tuple[int, int]:
        """L and S, without the keys of extras."""
        axis = -3 if self.layout == "bshd" and self.projections is None else -2
        return int(self.query.shape[axis]), int(self.key.shape[axis])

    @property
    def head_dim(self) -> int:
        """D of queries and keys."""
        if self.projections is None:
            return int(self.query.shape[-1])
        return int(self.projections[0].weight.shape[0]) // self.heads

    @property
    def factor(self) -> float:
        """What scores are scaled by."""
        return float(self.usual_factor if self.scale is None else self.scale)

    @property
    def usual_factor(self) -> float:
        """What they are scaled by where nothing is said."""
        return float(reference.default_scale(self.score_function, self.head_dim))

    def products(self, q: Array, k: Array) -> Array:
        """Compute scores that are not scaled.

        Parameters
        ----------
        q, k : ndarray, (..., L, D) and (..., S, D)
            Queries and keys, of one dtype.

        Returns
        -------
        ndarray, (..., L, S)
        """
        if self.score_function == "dot":
            return np.asarray(q @ k.mT)
        return reference.scores(q, k, self.score_function, 1.0, self.score_weight, dtype=q.dtype)

    def but(self, **changes: Any) -> Formula:
        """Make the same with fields, or steps, changed by name.

        Returns
        -------
        Formula
        """
        steps = {name: changes.pop(name) for name in Steps._fields if name in changes}
        return replace(self, steps=self.steps._replace(**steps), **changes)

    def cut(self, projected: list[Array]) -> reference.Operands:
        """Cut projections into heads, or take the inputs as they are, and give each query head its keys and values.

        Parameters
        ----------
        projected : list of three ndarray
            Of query, key and value, all of one dtype.

        Returns
        -------
        Operands
            (..., H, length, D).
        """
        gqa, (q, k, v) = self.enable_gqa, projected
        if self.projections is not None:
            gqa, counts = True, (self.heads, self.kv_heads, self.kv_heads)
            q, k, v = (self.steps.split(x, heads) for x, heads in zip(projected, counts, strict=True))
        axis = -2 if self.layout == "bshd" else -3
        if max(x.ndim for x in (q, k, v)) >= (3 if gqa else 4) and q.ndim >= 3:
            k, v = (self.steps.share(x, q.shape[axis], axis) for x in (k, v))
        return reference.operands(q, k, v, layout=self.layout, enable_gqa=gqa, dtype=q.dtype)


class Computed(NamedTuple):
    """Results by stage, and what their error bounds are made of.

    Attributes
    ----------
    stages : dict of str to ndarray
        In the shapes that a caller sees.
    operands : reference.Operands
        Query, key and value, (..., H, length, D), as they are multiplied.
    bias, visible : ndarray
        What is added to the scores, and which pairs there are.
    weights, heads, merged : ndarray
        Before they are averaged, turned or projected.
    """

    stages: dict[str, Array]
    operands: Any = None
    bias: Any = None
    visible: Any = None
    weights: Any = None
    heads: Any = None
    merged: Any = None


def compute(formula: Formula, dtype: npt.DTypeLike = np.float64, last: str | None = None) -> Computed:
    """Compute every stage, or those up to one.

    Parameters
    ----------
    formula : Formula
        Of shapes that go together.
    dtype : dtype
        Of all arithmetic; float64 by default.
    last : str, optional
        'query', 'key', 'value' or 'scores', after which all else may be left out. Default: None, nothing is.

    Returns
    -------
    Computed
        Arrays of dtype.
    """
    f, keep = formula, formula.steps.keep
    with np.errstate(all="ignore"):  # what is hidden may overflow, and a mistake may do anything
        if f.is_linear:
            return Computed({"output": keep(_affine(keep(f.query, "input"), f.out, dtype), "output")})
        found, operands = _project(f, dtype)
        if last in found:
            return Computed(found)
        q, k, v, has_heads = operands
        bias, visible = _hide(f, (*q.shape[:-1], k.shape[-2]), has_heads, dtype)
        scores = keep(f.steps.score(f.products(q, k), f.factor, bias, visible), "scores")
        if last == "scores":
            return Computed({**found, "scores": scores})
        weights = keep(f.steps.normalize(scores, visible), "weights")
        heads = keep(f.steps.attend(weights, visible, v), "heads")
        if f.empty_rows == "nan":
            heads = np.where(visible.any(axis=-1, keepdims=True), heads, np.nan)
        merged = heads if f.projections is None else f.steps.merge(heads)
        output = keep(merged if f.out is None else _affine(merged, f.out, dtype), "output")
        found |= {"scores": scores, "weights": f.gathered(weights)}
        found |= {"lse": _log_sum_exp(scores)} if f.projections is None else {}
        found |= {"heads": heads, "output": f.turned(output)}
    return Computed(found, operands, bias, visible, weights, heads, merged)


def _log_sum_exp(scores: Array) -> Array:
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    return np.asarray((np.log(np.exp(scores - shift).sum(axis=-1, keepdims=True)) + shift)[..., 0])


def _affine(x: Array, parameters: Affine | None, dtype: npt.DTypeLike) -> Array:
    if parameters is None:
        return x
    return reference.linear(x, parameters.weight, parameters.bias, dtype=dtype)


def _project(f: Formula, dtype: npt.DTypeLike) -> tuple[dict[str, Array], reference.Operands]:
    """Give the projections as a caller sees them, and as they are multiplied."""
    inputs = [f.steps.keep(np.asarray(x, dtype), "input") for x in (f.query, f.key, f.value)]
    if f.projections is None:
        return {}, f.cut(inputs)
    inputs = [_affine(x, parameters, dtype) for x, parameters in zip(inputs, f.projections, strict=True)]
    inputs[1:] = [append_rows(x, [extra[n] for extra in f.extras]) for n, x in enumerate(inputs[1:])]
    inputs = [f.steps.keep(x, name) for name, x in zip(STAGES, inputs, strict=False)]
    return dict(zip(STAGES, inputs, strict=False)), f.cut(inputs)


def append_rows(x: Array, rows: list[Array]) -> Array:
    """Put extra keys or values behind those of every batch entry.

    Parameters
    ----------
    x : ndarray, (..., length, features)
        Keys or values.
    rows : list of ndarray, (features,)
        What comes behind.

    Returns
    -------
    ndarray, (..., length + len(rows), features)
    """
    behind = [np.broadcast_to(row.astype(x.dtype), (*x.shape[:-2], 1, x.shape[-1])) for row in rows]
    return np.concatenate([x, *behind], axis=-2)


def _hide(f: Formula, shape: tuple[int, ...], has_heads: bool, dtype: npt.DTypeLike) -> tuple[Array, Array]:
    """Give what is added to the scores, finite or not, and which pairs are left."""
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

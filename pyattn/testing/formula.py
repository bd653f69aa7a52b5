"""Attention's formula with a place for every mistake: what people get wrong, computed on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn import _bounds, reference
from pyattn.testing.cases import Case

__all__ = ["LENIENCY", "Setting", "Variant", "softmax"]

Array = npt.NDArray[Any]

LENIENCY = 16.0
"""How many times further from a formula than the bars allow a function may be that computes it without great care."""


class Variant(NamedTuple):
    """An output, and how far from it rounding may take a function that computes the same."""

    output: Array
    tolerance: Array

    def reproduces(self, actual: Array) -> bool:
        """Tell whether a function may have computed this.

        Parameters
        ----------
        actual : ndarray
            What it returned.

        Returns
        -------
        bool
            It has this shape, NaN and infinities in the same places, and all else within the tolerance.
        """
        if actual.shape != self.output.shape:
            return False
        finite = np.isfinite(self.output)
        with np.errstate(all="ignore"):
            close = np.abs(actual - self.output)[finite] <= self.tolerance[finite]
        return bool(close.all()) and np.array_equal(actual[~finite], self.output[~finite], equal_nan=True)

    def map(self, function: Callable[[Array], Array]) -> Variant:
        """Move the numbers to other places.

        Parameters
        ----------
        function : callable
            Of an array with the output's shape.

        Returns
        -------
        Variant
        """
        return Variant(function(self.output), function(self.tolerance))


def softmax(scores: Array, axis: int | None = -1) -> Array:
    """Compute softmax; NaN where all scores are -inf.

    Parameters
    ----------
    scores : ndarray
        Of floats.
    axis : int or None
        None is all axes. Default: -1.

    Returns
    -------
    ndarray
    """
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


class Setting:
    """A case taken apart into what the formula works on.

    Parameters
    ----------
    case : Case
        What was called with.
    scale : float or None
        Of cases that say nothing about it; None is ``1 / sqrt(head_dim)``.

    Attributes
    ----------
    layout : {"bhsd", "bshd"}
        Of the case's arrays. All that follow are (..., heads, length, dim) and (..., heads, L, S).
    query, key, value : ndarray
        In float64, with equal leading axes: repeated for heads that share keys.
    pairs : tuple of int
        Shape of the scores.
    scale, usual_scale : float
        Of this case, and of one that says nothing about it.
    told_scale : bool
        Whether this one does.
    parts : dict of str to ndarray of bool
        What the bool mask, is_causal, window, key_lengths and query_lengths each let be seen.
    bias : ndarray or float
        The float mask, or 0.
    """

    def __init__(self, case: Case, scale: float | None) -> None:
        self.case = case
        self.layout = case.arguments.get("layout", "bhsd")
        shared = case.arguments.get("enable_gqa", False)
        self.query, self.key, self.value, has_heads = reference.operands(
            case.query, case.key, case.value, layout=self.layout, enable_gqa=shared
        )
        self.pairs = (*self.query.shape[:-1], self.key.shape[-2])
        self.usual_scale = case.query.shape[-1] ** -0.5 if scale is None else scale
        self.told_scale = case.arguments.get("scale") is not None
        self.scale: float = case.arguments["scale"] if self.told_scale else self.usual_scale

        self.parts: dict[str, Array] = {}
        self.bias: Any = 0.0
        mask = case.arguments.get("attn_mask")
        if mask is not None and mask.dtype == np.bool_:
            self.parts["mask"] = np.broadcast_to(mask, self.pairs)
        elif mask is not None:
            self.bias = np.broadcast_to(mask.astype(np.float64), self.pairs)
        lengths = {name: case.arguments.get(name) for name in ("key_lengths", "query_lengths")}
        aligned = {"align": case.arguments.get("align"), **lengths}
        for name, with_it in {"is_causal": aligned, "window": aligned, "key_lengths": {}, "query_lengths": {}}.items():
            option = case.arguments.get(name)
            if option is not None and option is not False:
                self.parts[name] = reference.visible_pairs(self.pairs, has_heads, **{**with_it, name: option})

    def visible(self, without: str = "") -> Array:
        """Combine `parts`.

        Parameters
        ----------
        without : str
            The name of one that is left out. Default: none is.

        Returns
        -------
        ndarray of bool
        """
        visible = np.ones(self.pairs, bool)
        for name, part in self.parts.items():
            visible &= part | (name == without)
        return visible

    def attend(
        self,
        *,
        query: Array | None = None,
        key: Array | None = None,
        value: Array | None = None,
        scale: float | None = None,
        bias: Any = None,
        visible: Array | None = None,
        fill: float = -np.inf,
        weigh: Callable[[Array], Array] = softmax,
        after: Any = 1.0,
        dtype: npt.DTypeLike = np.float64,
    ) -> Variant:
        """Compute ``weigh(where(visible, scale * query key^T + bias, fill)) * after @ value``.

        Parameters
        ----------
        query, key, value : ndarray, optional
            Default: the case's.
        scale : float, optional
            What scores are multiplied with. Default: the case's.
        bias : ndarray or float, optional
            What is added to them then. Default: the case's.
        visible : ndarray of bool, optional
            Which of them are kept. Default: the case's.
        fill : float
            What the others become. Default: -inf.
        weigh : callable
            Scores to weights. Default: softmax.
        after : ndarray or float
            What weights are multiplied with. Default: 1.
        dtype : dtype_like
            What is computed in, where that matters: where the mistake is an overflow. Default: float64.

        Returns
        -------
        Variant
        """
        q, k, v = (
            (own if other is None else other).astype(dtype)
            for own, other in ((self.query, query), (self.key, key), (self.value, value))
        )
        factor = np.asarray(self.scale if scale is None else scale, dtype)
        added = np.asarray(self.bias if bias is None else bias, dtype)
        with np.errstate(all="ignore"):
            kept = self.visible() if visible is None else visible
            scores = np.where(kept, q @ k.mT * factor + added, fill)
            weights = weigh(scores.astype(dtype)) * after
            output = weights @ v
            sizes = np.abs(q) @ np.abs(k).mT * np.abs(factor) + np.where(np.isfinite(added), np.abs(added), 0)
            sizes = np.where(kept & np.isfinite(sizes), sizes, 0)
            magnitude = np.abs(weights) @ np.abs(v) + np.abs(output)
            tolerance = self.unit_roundoff * (1 + sizes.max(initial=0)) * magnitude
        number = np.finfo(self.case.query.dtype)
        floor = (self.pairs[-1] + q.shape[-1] + 1) * float(number.tiny)
        return Variant(output.astype(np.float64), LENIENCY * _bounds.OUTPUT_BAR * (tolerance + floor))

    def exact(self) -> Array:
        """Compute what is right.

        Returns
        -------
        ndarray, (..., heads, L, v_dim)
        """
        case = self.case
        output = reference.attention(case.query, case.key, case.value, **{**case.arguments, "scale": self.scale}).output
        return output.swapaxes(-3, -2) if self.layout == "bshd" else output

    @property
    def unit_roundoff(self) -> float:
        """Half of what is between 1 and the next number, in the case's dtype."""
        return float(np.finfo(self.case.query.dtype).eps) / 2

"""Attention over the visible keys, step by step.

Shapes: query (..., heads, L, head_dim), key (..., heads, S, head_dim), value (..., heads, S, v_dim). Indices: i query,
j key, d feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.typing import Align, EmptyRows, Layout, Score
from pyattn.reference.scoring import scores

__all__ = [
    "Attended",
    "Operands",
    "attention",
    "merge_states",
    "operands",
    "visible_pairs",
    "weighted_sum",
]

Floats = npt.NDArray[np.floating[Any]]
Bools = npt.NDArray[np.bool_]
Window = int | tuple[int | None, int | None]


class Operands(NamedTuple):
    """Query, key and value, (..., length, features), with equal leading axes."""

    query: Floats
    key: Floats
    value: Floats
    has_heads: bool


class Attended(NamedTuple):
    """Output in the caller's layout, weights (..., heads, L, S), lse (..., heads, L)."""

    output: Floats
    weights: Floats
    lse: Floats


def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: float | None = None,
    score: Score = "dot",
    score_weight: npt.ArrayLike | None = None,
    window: Window | None = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    dtype: npt.DTypeLike = np.float64,
) -> Attended:
    """Return softmax(scale * score(query, key) + bias) value over visible keys.

    Arguments mean the same as in `pyattn.attention`, except that align has a default.

    Parameters
    ----------
    query, key, value : array_like
        (..., heads, length, features), or (..., length, heads, features) with ``layout="bshd"``.
    attn_mask : array_like, optional
        bool, True = attend, or float, added to the scaled scores; broadcasts to (..., heads, L, S). Default: None.
    is_causal : bool
        Query i does not see keys after its own position. Default: False.
    align : {"upper_left", "lower_right"} or int, optional
        Whether the first query is aligned with the first key, or the last with the last; an int is the first query's
        position among the keys. Default: None, upper left.
    scale : float, optional
        Default: None, `default_scale`.
    score : {"dot", "cosine", "distance", "bilinear", "additive"}
        The score function. Default: "dot".
    score_weight : array_like, optional
        The weight of a bilinear or additive score. Default: None.
    window : int or tuple, optional
        (left, right), inclusive; one int is both. Default: None, unbounded.
    key_lengths, query_lengths : array_like of int, optional
        Broadcast to the axes before the heads. Default: None, all S keys and all L queries.
    enable_gqa : bool
        Whether arrays with three axes have heads. Default: False.
    empty_rows : {"zero", "nan"}
        Output of a row with nothing to attend to. Default: "zero".
    layout : {"bhsd", "bshd"}
        The axes of query, key, value and output. Default: "bhsd".
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64; use `numpy.longdouble` to test float64.

    Returns
    -------
    Attended
        An empty row has output 0 or, by `empty_rows`, NaN; weights 0; and lse -inf.

    Examples
    --------
    >>> from pyattn import reference
    >>> reference.attention([[1], [1]], [[2], [4]], [[10], [20]], is_causal=True, scale=1).output.round(2)
    array([[10.  ],
           [18.81]])
    """
    q, k, v, has_heads = operands(query, key, value, layout=layout, enable_gqa=enable_gqa, dtype=dtype)
    mask = None if attn_mask is None else np.asarray(attn_mask)
    pairs = (*q.shape[:-1], k.shape[-2])
    visible = visible_pairs(pairs, has_heads, mask, is_causal, align, window, key_lengths, query_lengths)
    with np.errstate(all="ignore"):  # masked values may overflow or be NaN; np.where drops them
        logits = scores(q, k, score, scale, score_weight, dtype=dtype)
        if mask is not None and mask.dtype != np.bool_:
            logits = logits + mask.astype(dtype)
        logits = np.where(visible, logits, -np.inf)
        top = logits.max(axis=-1, keepdims=True, initial=-np.inf)
        empty = top == -np.inf
        exponentials = np.exp(logits - np.where(empty, 0, top))
        total = exponentials.sum(axis=-1, keepdims=True)
        weights = np.where(visible, exponentials / np.where(empty, 1, total), 0)
        lse = (top + np.log(total))[..., 0]
        output = weighted_sum(weights, visible, v)
    if empty_rows == "nan":
        output = np.where(empty, np.nan, output)
    return Attended(output.swapaxes(-3, -2) if layout == "bshd" else output, weights, lse)


def operands(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    layout: Layout = "bhsd",
    enable_gqa: bool = False,
    dtype: npt.DTypeLike = np.float64,
) -> Operands:
    """Broadcast query, key and value to one layout, rank and dtype.

    Arrays have heads if one has at least 4 axes, or 3 with `enable_gqa`. Query head h then reads key and value head
    h // (query heads / key heads).

    Parameters
    ----------
    query, key, value : array_like
        In `layout`, with leading axes that broadcast.
    layout : {"bhsd", "bshd"}
        "bshd": (..., length, heads, features). Default: "bhsd".
    enable_gqa : bool
        Whether arrays with three axes have heads. Default: False.
    dtype : dtype_like
        The type of the result. Default: float64.

    Returns
    -------
    Operands
        Read-only where they are broadcast.

    Raises
    ------
    ValueError
        The layout is "bshd", and the arrays have no heads.
    """
    arrays = [np.asarray(array) for array in (query, key, value)]
    rank = max(array.ndim for array in arrays)
    has_heads = rank >= 4 or (enable_gqa and rank == 3)
    if layout == "bshd":
        if not has_heads:
            raise ValueError("layout='bshd' without a heads axis")
        arrays = [array.swapaxes(-3, -2) if array.ndim >= 3 else array for array in arrays]
    arrays = [array.reshape((1,) * (rank - array.ndim) + array.shape) for array in arrays]
    if has_heads:
        heads = arrays[0].shape[-3]
        times = [heads // x.shape[-3] if 1 < x.shape[-3] < heads else 1 for x in arrays]
        arrays = [np.repeat(x, n, axis=-3) if n > 1 else x for x, n in zip(arrays, times, strict=True)]
    leading = np.broadcast_shapes(*(array.shape[:-2] for array in arrays))
    q, k, v = (np.broadcast_to(array.astype(dtype), leading + array.shape[-2:]) for array in arrays)
    return Operands(q, k, v, has_heads)


def visible_pairs(
    shape: tuple[int, ...],
    has_heads: bool,
    mask: npt.NDArray[Any] | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    window: Window | None = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
) -> Bools:
    """Return which query attends to which key, one line per rule.

    Parameters
    ----------
    shape : tuple of int
        (..., heads, L, S), without the heads unless `has_heads`.
    has_heads : bool
        Whether axis -3 is heads; lengths then belong to the axes before it.
    mask : ndarray, optional
        bool, or float where -inf hides a key. Default: None.
    is_causal, align, window, key_lengths, query_lengths : optional
        As for `attention`; "lower_right" aligns each batch entry by its own lengths. Default: everything is visible.

    Returns
    -------
    ndarray of bool
        Of the given shape, read-only.
    """
    i, j = np.arange(shape[-2])[:, np.newaxis], np.arange(shape[-1])
    axes = (np.newaxis,) * (3 if has_heads else 2)
    key_end = np.asarray(shape[-1] if key_lengths is None else key_lengths, np.int64)[(..., *axes)]
    query_end = np.asarray(shape[-2] if query_lengths is None else query_lengths, np.int64)[(..., *axes)]
    starts: dict[Any, Any] = {None: 0, "upper_left": 0, "lower_right": key_end - query_end}
    diagonal = i + starts.get(align, align)
    left, right = window if isinstance(window, tuple) else (window, window)

    visible: Bools = (i < query_end) & (j < key_end)
    if is_causal:
        visible = visible & (j <= diagonal)
    if left is not None:
        visible = visible & (j >= diagonal - left)
    if right is not None:
        visible = visible & (j <= diagonal + right)
    if mask is not None:
        visible = visible & (mask if mask.dtype == np.bool_ else mask != -np.inf)
    return np.broadcast_to(visible, shape)


def weighted_sum(weights: Floats, visible: Bools, value: Floats) -> Floats:
    """Return weights @ value without the masked values, since 0 * NaN is NaN.

    Parameters
    ----------
    weights : ndarray, (..., L, S)
        0 where a pair is not visible.
    visible : ndarray of bool, (..., L, S)
        Which query attends to which key.
    value : ndarray, (..., S, v_dim)
        Values.

    Returns
    -------
    ndarray, (..., L, v_dim)
    """
    if np.isfinite(value).all():
        return np.asarray(weights @ value)
    columns = (value[..., np.newaxis, :, d] for d in range(value.shape[-1]))
    return np.stack([np.where(visible, weights * column, 0).sum(axis=-1) for column in columns], axis=-1)


def merge_states(
    outputs: Sequence[npt.ArrayLike], lses: Sequence[npt.ArrayLike], *, dtype: npt.DTypeLike = np.float64
) -> tuple[Floats, Floats]:
    """Combine attention computed over chunks of keys, each with weight exp(lse).

    Parameters
    ----------
    outputs : sequence of array_like
        One (..., L, v_dim) for each chunk.
    lses : sequence of array_like
        One (..., L) for each chunk, natural logarithm.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    output, lse : ndarray
        0 and -inf for queries that saw no key in any chunk.
    """
    o = np.stack([np.asarray(output).astype(dtype) for output in outputs])
    lse = np.stack([np.asarray(chunk).astype(dtype) for chunk in lses])
    with np.errstate(all="ignore"):
        top = lse.max(axis=0)
        empty = top == -np.inf
        shares = np.exp(lse - np.where(empty, 0, top))
        total = shares.sum(axis=0)
        seen = np.where(lse[..., np.newaxis] == -np.inf, 0, o)
        output = (shares[..., np.newaxis] * seen).sum(axis=0) / np.where(empty, 1, total)[..., np.newaxis]
        return output, top + np.log(total)

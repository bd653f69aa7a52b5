"""Additive (Bahdanau) attention: two projections, then attention with additive scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._core import linear
from pyattn._util.halves import as_float32, check_same_half, is_half, rounded
from pyattn._util.typing import RNG, Align, EmptyRows, FloatArray, Layout, Window
from pyattn.functional._attention import AttentionResult, attention
from pyattn.functional._self_attention import check_inner, read_rows, read_weight

__all__ = ["additive_attention"]


@overload
def additive_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    w_query: npt.ArrayLike | None,
    w_key: npt.ArrayLike | None,
    w_score: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: Literal[False] = False,
    need_lse: Literal[False] = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: FloatArray | None = None,
) -> FloatArray: ...
@overload
def additive_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    w_query: npt.ArrayLike | None,
    w_key: npt.ArrayLike | None,
    w_score: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: Literal[True],
    need_lse: bool = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: FloatArray | None = None,
) -> AttentionResult: ...
@overload
def additive_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    w_query: npt.ArrayLike | None,
    w_key: npt.ArrayLike | None,
    w_score: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: bool = False,
    need_lse: Literal[True],
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: FloatArray | None = None,
) -> AttentionResult: ...
@overload
def additive_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    w_query: npt.ArrayLike | None,
    w_key: npt.ArrayLike | None,
    w_score: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: bool = False,
    need_lse: bool = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: FloatArray | None = None,
) -> FloatArray | AttentionResult: ...
def additive_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    w_query: npt.ArrayLike | None,
    w_key: npt.ArrayLike | None,
    w_score: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: bool = False,
    need_lse: bool = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: FloatArray | None = None,
) -> FloatArray | AttentionResult:
    """Attention whose score is a small network instead of a dot product.

    ``softmax(w_score . tanh(q W_query + k W_key + bias)) V``. The concat form, ``w_score . tanh([q, k] W)`` with one
    weight (d_q + d_k, hidden), is the same after splitting W: ``additive_attention(query, key, value, *numpy.split(w,
    [d_q]), w_score)``. Keras's form has no projections: leave w_query and w_key as None, and pass the layer's scale as
    w_score (``numpy.ones(d)`` for a layer without scale). That equals ``attention(query, key, value,
    score="additive", score_weight=w_score)``.

    Parameters
    ----------
    query : array_like, (..., L, d_q)
        float16, bfloat16, float32 or float64; lists, bools and integers are read as float64. Heads and leading axes as
        in `attention`; so is the rule for half precision.
    key : array_like, (..., S, d_k)
        Keys; d_k may differ from d_q.
    value : array_like, (..., S, v_dim)
        Values.
    w_query, w_key : array_like, (d_q, hidden) and (d_k, hidden), or both None
        Weights, one input feature per row and one hidden feature per column. None: queries and keys are added without
        projections, and d_q, d_k and hidden are equal.
    w_score : array_like, (hidden,)
        Weight of the network's last layer.
    bias : array_like, (hidden,), optional
        Bias of the network's first layer. Default: None, no bias.
    attn_mask : array_like, optional
        Broadcasts to (..., heads, L, S). bool: True = attend; float: added to the scores. Default: None, no mask.
    is_causal : bool
        Query i attends to no key after its own position. Default: False.
    align : {'upper_left', 'lower_right'} or int, optional
        As in `attention`. Default: None; required for a causal mask or a window when L differs from S.
    scale : float, optional
        Factor on the scores. Default: 1.
    window : int or (int or None, int or None), optional
        Number of keys before and after its own position that a query attends to. Default: None, unbounded.
    key_lengths, query_lengths : array_like of int, optional
        Number of keys and of queries in each batch entry. Default: None, all.
    dropout_p : float
        Probability that a weight becomes 0; the others are divided by ``1 - dropout_p``. Default: 0.0.
    rng : None, int, SeedSequence or Generator
        Draws dropout's mask. Default: None, fresh entropy, so each call differs.
    keep_mask : array_like of bool, optional
        Broadcasts to (..., heads, L, S): True = kept. Used instead of drawing from rng. Default: None.
    enable_gqa : bool
        In arrays with three axes too, axis -3 ('bshd': -2) holds heads. Default: False.
    need_weights, need_lse : bool
        Return an `AttentionResult` with the weights, or the logsumexp of the scores. Default: False.
    empty_rows : {'zero', 'nan'}
        Output of a query with nothing to attend to. Default: 'zero'.
    layout : {'bhsd', 'bshd'}
        'bshd': query, key, value and the output are (..., length, heads, dim). Default: 'bhsd'.
    num_threads : int, optional
        Default: as `set_num_threads` says.
    out : ndarray, optional
        Array for the output, of its shape and dtype. Default: None, a new one.

    Returns
    -------
    ndarray, (..., L, v_dim)
        With need_weights or need_lse: an `AttentionResult` of the output and what was requested.

    Raises
    ------
    ValueError
        Shapes disagree, or a rule of `attention` is broken.
    TypeError
        An argument is not an array of real numbers.

    References
    ----------
    Bahdanau et al., "Neural Machine Translation by Jointly Learning to Align and Translate" (2015), appendix A.1.2.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> states = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])  # of an encoder
    >>> query, w_score = np.array([[0.5, 1.0, 0.0]]), np.array([1.0, -2.0])
    >>> w = np.arange(10.0).reshape(5, 2) / 10  # of the concat form: three rows for the query, two for a state
    >>> pyattn.additive_attention(query, states, states, *np.split(w, [3]), w_score).round(4)
    array([[0.6638, 0.6516]])
    """
    given: dict[str, Any] = {"query": query, "key": key, "value": value, "w_query": w_query, "w_key": w_key}
    given |= {"w_score": w_score, "bias": bias}
    # as_real's message names a required argument that is None.
    given = {name: x for name, x in given.items() if x is not None or name in _REQUIRED}
    arrays = {name: _core.as_real(x, name) for name, x in given.items()}
    check_same_half(arrays.items())
    half = arrays["query"].dtype if all(is_half(x.dtype) for x in arrays.values()) else None
    arrays = {name: as_float32(x) for name, x in arrays.items()}
    if w_query is None and w_key is None:
        queries, keys, weight = _without_layer(arrays)
    else:
        queries, keys, weight = _first_layer(arrays, num_threads)
    result = attention(
        queries,
        keys,
        arrays["value"],
        score="additive",
        score_weight=weight,
        attn_mask=attn_mask,
        is_causal=is_causal,
        align=align,
        scale=scale,
        window=window,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
        dropout_p=dropout_p,
        rng=rng,
        keep_mask=keep_mask,
        enable_gqa=enable_gqa,
        need_weights=need_weights,
        need_lse=need_lse,
        empty_rows=empty_rows,
        layout=layout,
        num_threads=num_threads,
        out=out if half is None else None,
    )
    return result if half is None else _rounded(result, half, out)


_REQUIRED = ("query", "key", "value", "w_score")


def _rounded(
    result: FloatArray | AttentionResult, half: np.dtype[Any], out: FloatArray | None
) -> FloatArray | AttentionResult:
    """Round output and weights of a result, and write the output to `out`, if given."""
    whole: FloatArray | AttentionResult = rounded(result, half)
    if out is None:
        return whole
    output = whole.output if isinstance(whole, AttentionResult) else whole
    _core.check_out(out, output)
    np.copyto(out, output)
    return AttentionResult(out, whole.weights, whole.lse) if isinstance(whole, AttentionResult) else out


def _without_layer(given: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Check the arguments of Keras's form; return queries, keys and w_score unprojected."""
    if "bias" in given:
        raise ValueError("bias is given, but w_query and w_key are None; pass both weights, or leave bias out")
    queries, keys = (read_rows(given[name], name, columns=False) for name in ("query", "key"))
    d_q, d_k = queries.shape[-1], keys.shape[-1]
    if d_q != d_k:
        raise ValueError(f"query has {d_q} features and key {d_k}; without w_query and w_key they must be equal")
    return queries, keys, _vector(given, "w_score", d_q, f"query and key have {d_q} features")


def _first_layer(
    given: Mapping[str, FloatArray], num_threads: SupportsIndex | None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Check the arguments; return the projected queries and keys, and w_score."""
    rows, weights = [], []
    for x_name, w_name in (("query", "w_query"), ("key", "w_key")):
        if w_name not in given:
            raise ValueError(f"{w_name} is None, expected a weight, or None for both w_query and w_key (Keras's form)")
        rows.append(read_rows(given[x_name], x_name, columns=False))
        weights.append(read_weight(given[w_name], w_name, columns=False))
        check_inner(w_name, weights[-1], x_name, rows[-1], columns=False)
    hidden, other = map(len, weights)
    if hidden != other:
        raise ValueError(f"w_query gives {hidden} features per query, but w_key gives {other} per key")
    why = f"w_query and w_key give {hidden} features"
    weight = _vector(given, "w_score", hidden, why)
    offset = _vector(given, "bias", hidden, why) if "bias" in given else None
    queries = linear(rows[0], weights[0], offset, num_threads=num_threads)
    return queries, linear(rows[1], weights[1], num_threads=num_threads), weight


def _vector(given: Mapping[str, FloatArray], name: str, hidden: int, why: str) -> FloatArray:
    array = given[name]
    if array.shape != (hidden,):
        raise ValueError(f"{name} has shape {array.shape}, expected ({hidden},): {why}")
    return array

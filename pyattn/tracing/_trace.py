"""`trace` and `trace_attention`: attention in eight steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsFloat, SupportsIndex

import numpy.typing as npt

from pyattn._util.typing import Align, Convention, Score
from pyattn.tracing.compute import compute, project
from pyattn.tracing.inputs import (
    check_pairs,
    read_convention,
    read_given,
    read_mask,
    read_matrix,
    read_options,
    read_tokens,
)
from pyattn.tracing.traces import Trace
from pyattn.tracing.weights import Normalize

__all__ = ["trace", "trace_attention"]


def trace(
    x: npt.ArrayLike,
    w_query: npt.ArrayLike,
    w_key: npt.ArrayLike,
    w_value: npt.ArrayLike,
    *,
    scale: SupportsFloat | None = 1.0,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    bias: Sequence[npt.ArrayLike | None] | None = None,
    score: Score = "dot",
    score_weight: npt.ArrayLike | None = None,
    normalize: Normalize = "softmax",
    round_weights: SupportsIndex | None = None,
    convention: Convention = "row",
    tokens: Sequence[str] | None = None,
) -> Trace:
    """Trace self-attention in eight steps.

    Scores are not scaled by default, as `scale` is 1. The steps are: 1 inputs; 2 weights; 3 keys, queries and values;
    then for each input 4 its scores against all keys, 5 their softmax, 6 all values times these weights, and 7 their
    sum; 8 repeats 4 to 7 for the other inputs::

        keys = x @ w_key        queries = x @ w_query        values = x @ w_value
        scores = scale * queries @ keys.T        weights = softmax(scores)        outputs = weights @ values

    `pyattn.self_attention` computes the outputs in one call, with a scale of ``1 / sqrt(key_dim)`` by default. A trace
    is computed in float64 NumPy, to be looked at: print it, or let a notebook show it.

    Parameters
    ----------
    x : array_like, (L, embed_dim)
        One input per row.
    w_query, w_key : array_like, (embed_dim, key_dim)
        Weights, one input feature per row and one output feature per column.
    w_value : array_like, (embed_dim, v_dim)
        v_dim may differ from key_dim.
    scale : float or None
        Factor of the scores. Default: 1.0 for every score function, as in the worked example. None: the default of the
        score function, as in `trace_attention`.
    attn_mask : array_like, optional
        Broadcasts to (L, S), in both conventions. bool: True = attend; float: added to the scores. Default: None.
    is_causal : bool
        Query i attends to keys 0 to i only. Default: False.
    bias : sequence of three array_like or None, optional
        Biases of queries, keys and values, (key_dim,), (key_dim,) and (v_dim,). Default: None, no biases.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        Score of a query q and a key k before scaling: ``q . k``, ``q . k / (|q| |k|)`` (0 for a zero vector),
        ``-|q - k|^2``, ``q W k``, or ``w . tanh(q + k)``. Default: 'dot'.
    score_weight : array_like, optional
        W of 'bilinear', (key_dim, key_dim), or w of 'additive', (key_dim,). Default: None.
    normalize : {'softmax', 'sigmoid', 'sparsemax'}
        Function from scores to weights. 'sigmoid' takes each key by itself; 'sparsemax' gives the distribution nearest
        to the scores, with many zeros. Default: 'softmax'.
    round_weights : int, optional
        Decimals to round weights to, 0 to 15, such that each query's weights keep their sum. Default: None, unrounded.
    convention : {'row', 'column'}
        'column': inputs (embed_dim, L) are columns, weights are (key_dim, embed_dim), K = W_key X, A = K^T Q, softmax
        by column, O = V A'. The numbers are the same, transposed. Default: 'row'.
    tokens : sequence of str, optional
        Names of the inputs. Default: None, their numbers.

    Returns
    -------
    Trace
        Every intermediate by name, and ``steps``.

    Raises
    ------
    ValueError
        Shapes do not match, or an argument has an unknown value.
    TypeError
        An argument is not an array of real numbers, or a mask holds integers.

    References
    ----------
    Martins & Astudillo, "From Softmax to Sparsemax" (2016).

    Examples
    --------
    >>> import pyattn
    >>> x = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
    >>> w_query = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
    >>> w_key = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
    >>> w_value = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]
    >>> trace = pyattn.trace(x, w_query, w_key, w_value)
    >>> trace.keys
    array([[0., 1., 1.],
           [4., 4., 0.],
           [2., 3., 1.]])
    >>> trace.queries
    array([[1., 0., 2.],
           [2., 2., 2.],
           [2., 1., 3.]])
    >>> trace.values
    array([[1., 2., 3.],
           [2., 8., 0.],
           [2., 6., 3.]])
    >>> trace.scores
    array([[ 2.,  4.,  4.],
           [ 4., 16., 12.],
           [ 4., 12., 10.]])
    >>> for row in trace.weights:
    ...     print(*(f"{weight:.4e}" for weight in row))
    6.3379e-02 4.6831e-01 4.6831e-01
    6.0337e-06 9.8201e-01 1.7986e-02
    2.9539e-04 8.8054e-01 1.1917e-01
    >>> trace.outputs.round(4)
    array([[1.9366, 6.6831, 1.5951],
           [2.    , 7.964 , 0.054 ],
           [1.9997, 7.7599, 0.3584]])

    With rounded weights, as for a calculation on paper: the weighted values of input 1, 2 and 3, and the outputs:

    >>> rounded = pyattn.trace(x, w_query, w_key, w_value, round_weights=1)
    >>> rounded.weights
    array([[0. , 0.5, 0.5],
           [0. , 1. , 0. ],
           [0. , 0.9, 0.1]])
    >>> for query in range(3):
    ...     print(rounded.weighted_values[:, query])
    [[0.  0.  0. ]
     [1.  4.  0. ]
     [1.  3.  1.5]]
    [[0. 0. 0.]
     [2. 8. 0.]
     [0. 0. 0.]]
    [[0.  0.  0. ]
     [1.8 7.2 0. ]
     [0.2 0.6 0.3]]
    >>> rounded.outputs
    array([[2. , 7. , 1.5],
           [2. , 8. , 0. ],
           [2. , 7.8, 0.3]])

    With inputs as columns everything is transposed:

    >>> import numpy as np
    >>> x, w_query, w_key, w_value = (np.transpose(matrix) for matrix in (x, w_query, w_key, w_value))
    >>> columns = pyattn.trace(x, w_query, w_key, w_value, convention="column")
    >>> columns.keys
    array([[0., 4., 2.],
           [1., 4., 3.],
           [1., 0., 1.]])
    >>> columns.queries
    array([[1., 2., 2.],
           [0., 2., 1.],
           [2., 2., 3.]])
    >>> columns.values
    array([[1., 2., 2.],
           [2., 8., 6.],
           [3., 0., 3.]])
    >>> columns.scores
    array([[ 2.,  4.,  4.],
           [ 4., 16., 12.],
           [ 4., 12., 10.]])
    >>> for row in columns.weights:
    ...     print(*(f"{weight:.4e}" for weight in row))
    6.3379e-02 6.0337e-06 2.9539e-04
    4.6831e-01 9.8201e-01 8.8054e-01
    4.6831e-01 1.7986e-02 1.1917e-01
    >>> columns.outputs.round(4)
    array([[1.9366, 2.    , 1.9997],
           [6.6831, 7.964 , 7.7599],
           [1.5951, 0.054 , 0.3584]])
    >>> pyattn.trace(x, w_query, w_key, w_value, convention="column", round_weights=1).outputs
    array([[2. , 2. , 2. ],
           [7. , 8. , 7.8],
           [1.5, 0. , 0.3]])
    """
    read_convention(convention)
    given = read_given(x, {"query": w_query, "key": w_key, "value": w_value}, bias, convention)
    queries, keys, values = project([given["x"]] * 3, given)
    names = read_tokens(tokens, "tokens", len(queries))
    options = read_options(
        queries,
        keys,
        ("w_query", "w_key"),
        score=score,
        score_weight=score_weight,
        scale=scale,
        normalize=normalize,
        round_weights=round_weights,
        convention=convention,
        tokens=names,
        key_tokens=names,
    )
    visible, attn_bias = read_mask(len(queries), len(keys), attn_mask, is_causal)
    return Trace(**compute(given, queries, keys, values, visible, attn_bias, options))


def trace_attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    scale: SupportsFloat | None = None,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    score: Score = "dot",
    score_weight: npt.ArrayLike | None = None,
    normalize: Normalize = "softmax",
    round_weights: SupportsIndex | None = None,
    convention: Convention = "row",
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
) -> Trace:
    """Trace attention of one head, from its queries, keys and values.

    This is `pyattn.attention` step by step, for cross-attention too::

        scores = scale * query @ key.T        weights = softmax(scores)        outputs = weights @ value

    The trace has neither inputs nor weight matrices: its x, w_query, w_key and w_value are None.

    Parameters
    ----------
    query : array_like, (L, key_dim)
        Queries of one head, one per row: ``query[b, h]`` of an array with more axes.
    key : array_like, (S, key_dim)
        Keys. With ``score='bilinear'`` their size may differ from that of queries.
    value : array_like, (S, v_dim)
        Values, one for each key.
    scale : float, optional
        Factor of the scores. Default: ``1 / sqrt(key_dim)`` for 'dot', ``1 / (2 sqrt(key_dim))`` for 'distance', 1 for
        the others.
    attn_mask : array_like, optional
        Broadcasts to (L, S), in both conventions. bool: True = attend; float: added to the scores. Default: None.
    is_causal : bool
        Query i attends to keys 0 to i only. Default: False.
    align : {'upper_left', 'lower_right'} or int, optional
        As in `pyattn.attention`: needed for a causal mask when L differs from S. Default: None.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        As in `trace`. Default: 'dot'.
    score_weight : array_like, optional
        W of 'bilinear', (query's key_dim, key's key_dim), or w of 'additive', (key_dim,). Default: None.
    normalize : {'softmax', 'sigmoid', 'sparsemax'}
        As in `trace`. Default: 'softmax'.
    round_weights : int, optional
        As in `trace`. Default: None.
    convention : {'row', 'column'}
        'column': each query, key and value is a column. Default: 'row'.
    tokens : sequence of str, optional
        Names of the queries. Default: None, their numbers.
    key_tokens : sequence of str, optional
        Names of the keys. Default: tokens if L equals S, else their numbers.

    Returns
    -------
    Trace
        Every intermediate by name, and ``steps``.

    Raises
    ------
    ValueError
        Shapes do not match, or an argument has an unknown value.
    TypeError
        An argument is not an array of real numbers, or a mask holds integers.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace_attention([[1, 0]], [[4, 0], [0, 4]], [[10], [20]], scale=1, tokens=["it"])
    >>> print(trace.for_query(0)[0])
    Step 4: Scores for input 1 (it)
      scores = queries @ keys.T
      input 1 (it): [1, 0] x K^T = [4, 0]
    <BLANKLINE>
      scores, 1 x 2
        it  4  0
    <BLANKLINE>
    """
    read_convention(convention)
    queries = read_matrix(query, "query", ("length", "key_dim"), convention)
    keys = read_matrix(key, "key", ("length", "key_dim"), convention)
    values = read_matrix(value, "value", ("length", "v_dim"), convention)
    check_pairs(keys, values, ("key", "value"), convention)
    names = read_tokens(tokens, "tokens", len(queries))
    key_names = read_tokens(key_tokens, "key_tokens", len(keys))
    if key_names is None and len(keys) == len(queries):
        key_names = names
    options = read_options(
        queries,
        keys,
        ("query", "key"),
        score=score,
        score_weight=score_weight,
        scale=scale,
        normalize=normalize,
        round_weights=round_weights,
        convention=convention,
        tokens=names,
        key_tokens=key_names,
    )
    visible, attn_bias = read_mask(len(queries), len(keys), attn_mask, is_causal, align)
    return Trace(**compute({}, queries, keys, values, visible, attn_bias, options))

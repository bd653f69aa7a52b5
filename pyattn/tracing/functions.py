"""`trace` and `trace_attention`, and the projections that the first makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn.tracing import inputs
from pyattn.tracing.data import Convention, Trace, make_trace
from pyattn.tracing.inputs import Align
from pyattn.tracing.scoring import Normaliser, Score

__all__ = ["project", "trace", "trace_attention"]

Array = npt.NDArray[np.float64]


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
    normalise: Normaliser = "softmax",
    round_weights: SupportsIndex | None = None,
    convention: Convention = "row",
    tokens: Sequence[str] | None = None,
) -> Trace:
    """Self-attention in eight steps, with every number kept: what `pyattn.self_attention` does in one call.

    1 inputs; 2 weights; 3 keys, queries and values; then for each input 4 its scores against all keys, 5 their softmax,
    6 all values times these weights, and 7 their sum; 8 repeats 4 to 7 for the other inputs. Computed in float64 NumPy,
    to be looked at: print it, or let a notebook show it.

    Parameters
    ----------
    x : array_like, (L, d_x)
        One input per row.
    w_query, w_key : array_like, (d_x, key_dim)
        Weights, one input per row and one output per column.
    w_value : array_like, (d_x, v_dim)
        v_dim may differ from key_dim.
    scale : float or None
        What scores are multiplied by. Default: 1.0, for every score function: the example's scores are not scaled.
        None is the score function's own, as in `trace_attention`.
    attn_mask : array_like, optional
        Broadcasts to (L, S), in both conventions. bool: True = attend; float: added to the scores. Default: None.
    is_causal : bool
        Query i attends to no key after its own position. Default: False.
    bias : sequence of three array_like or None, optional
        Added to queries, keys and values. Default: None, no bias.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        How well a query q goes with a key k, times scale: ``q . k``, ``q . k / (|q| |k|)`` (0 for a zero vector),
        ``-|q - k|^2``, ``q W k``, or ``w . tanh(q + k)``. Default: 'dot'.
    score_weight : array_like, optional
        W of 'bilinear', (key_dim, key_dim), or w of 'additive', (key_dim,). Default: None.
    normalise : {'softmax', 'sigmoid', 'sparsemax'}
        What makes weights of scores. Default: 'softmax'.
    round_weights : int, optional
        Round weights to so many decimals, such that a row's sum stays what it is: with 1, the example's variant for
        reading along. Default: None.
    convention : {'row', 'column'}
        'column': inputs (d_x, L) are columns, weights are (key_dim, d_x), K = W_key X, A = K^T Q, softmax by column,
        O = V A'. The same numbers, transposed. Default: 'row'.
    tokens : sequence of str, optional
        Names of the inputs. Default: None, their numbers.

    Returns
    -------
    Trace
        With every intermediate by name, and ``steps``.

    Raises
    ------
    ValueError
        Shapes do not go together, or an argument has none of its values.
    TypeError
        An argument is not an array of real numbers, or a mask is of integers.

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

    The example's variant with rounded weights; its weighted values for input 1, 2 and 3, then the outputs:

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

    With inputs as columns, everything is transposed:

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
    columns = inputs.is_column(convention)
    given = inputs.read_given(x, {"query": w_query, "key": w_key, "value": w_value}, bias, columns)
    queries, keys, values = project(given)
    length = len(queries)
    inputs.check_key_dim(queries, keys, score, ("w_query", "w_key"))
    names = inputs.names_of(tokens, "tokens", length)
    function = inputs.ScoreFunction(score, score_weight, scale)
    settings = inputs.settings_of(function, (queries, keys), normalise, round_weights, convention, (names, names))
    return make_trace(given, keys, queries, values, inputs.hiding_of(length, length, attn_mask, is_causal), settings)


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
    normalise: Normaliser = "softmax",
    round_weights: SupportsIndex | None = None,
    convention: Convention = "row",
    tokens: Sequence[str] | None = None,
    key_tokens: Sequence[str] | None = None,
) -> Trace:
    """Attention of one head in steps, from queries, keys and values that are there: cross-attention, for instance.

    What `pyattn.attention` does in one call. Inputs and their weights are not known: the trace's x and w_* are None.

    Parameters
    ----------
    query : array_like, (L, key_dim)
        One per row. Of one head: ``query[b, h]`` of an array with more axes.
    key : array_like, (S, key_dim)
        With ``score='bilinear'`` it may have other features than query.
    value : array_like, (S, v_dim)
        As many as keys.
    scale : float, optional
        What scores are multiplied by. Default: ``1 / sqrt(key_dim)`` for 'dot', ``1 / (2 sqrt(key_dim))`` for
        'distance', 1 for the others.
    attn_mask : array_like, optional
        Broadcasts to (L, S), in both conventions. bool: True = attend; float: added to the scores. Default: None.
    is_causal : bool
        Query i attends to no key after its own position. Default: False.
    align : {'upper_left', 'lower_right'}, optional
        As in `pyattn.attention`. Default: None; must be said for a causal mask when L differs from S.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        As in `trace`. Default: 'dot'.
    score_weight : array_like, optional
        W of 'bilinear', (query's features, key's), or w of 'additive', (key_dim,). Default: None.
    normalise : {'softmax', 'sigmoid', 'sparsemax'}
        What makes weights of scores. Default: 'softmax'.
    round_weights : int, optional
        As in `trace`. Default: None.
    convention : {'row', 'column'}
        'column': each query, key and value is a column. Default: 'row'.
    tokens : sequence of str, optional
        Names of the queries. Default: None, their numbers.
    key_tokens : sequence of str, optional
        Names of the keys. Default: tokens where there are as many keys as queries, else their numbers.

    Returns
    -------
    Trace
        With every intermediate by name, and ``steps``.

    Raises
    ------
    ValueError
        Shapes do not go together, or an argument has none of its values.
    TypeError
        An argument is not an array of real numbers, or a mask is of integers.

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
        4  0
    <BLANKLINE>
    """
    columns = inputs.is_column(convention)
    queries = inputs.read_matrix(query, "query", ("length", "key_dim"), columns)
    keys = inputs.read_matrix(key, "key", ("length", "key_dim"), columns)
    values = inputs.read_matrix(value, "value", ("length", "v_dim"), columns)
    inputs.check_key_dim(queries, keys, score, ("query", "key"))
    if len(keys) != len(values):
        raise ValueError(f"value has {len(values)} {convention}s, expected {len(keys)}: one for each key")
    names = inputs.names_of(tokens, "tokens", len(queries))
    key_names = inputs.names_of(key_tokens, "key_tokens", len(keys))
    if key_names is None and len(keys) == len(queries):
        key_names = names
    function = inputs.ScoreFunction(score, score_weight, scale)
    settings = inputs.settings_of(function, (queries, keys), normalise, round_weights, convention, (names, key_names))
    hiding = inputs.hiding_of(len(queries), len(keys), attn_mask, is_causal, align)
    return make_trace({}, keys, queries, values, hiding, settings)


def project(given: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Compute the third step.

    Parameters
    ----------
    given : mapping of str to ndarray
        As `read_given` returns it.

    Returns
    -------
    queries, keys, values : ndarray
        One of each per input.
    """
    with np.errstate(all="ignore"):
        queries, keys, values = (
            given["x"] @ given[f"w_{name}"] + given.get(f"b_{name}", 0.0) for name in ("query", "key", "value")
        )
    return queries, keys, values

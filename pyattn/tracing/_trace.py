"""`Trace`, and the functions that make one: `trace` and `trace_attention`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.names import unknown_field
from pyattn._util.typing import Align, Convention, Score
from pyattn.tracing.compute import GIVEN, Intermediates, as_rows, compute, project
from pyattn.tracing.dicts import MAX_LISTED, as_plain, check_entries, read_numbers
from pyattn.tracing.inputs import (
    check_pairs,
    read_convention,
    read_given,
    read_mask,
    read_matrix,
    read_options,
    read_tokens,
)
from pyattn.tracing.render.html import to_html
from pyattn.tracing.render.markdown import steps_markdown
from pyattn.tracing.render.page import save_page
from pyattn.tracing.render.steps import TraceStep, eight_steps, steps_of_query
from pyattn.tracing.weights import Normalize

__all__ = ["Trace", "trace", "trace_attention"]

Array = npt.NDArray[np.float64]
_NAMES = ("query", "key", "value")
_MEANT = {"query": "queries", "key": "keys", "value": "values", **dict.fromkeys(("attention", "attn"), "weights")}


class Trace(Intermediates):
    """Every intermediate of one attention, in the order of the eight steps.

    All arrays are float64 and read-only. Printed, it is text; in a notebook, a page where hovering over a number shows
    its origin. Shapes below are those of ``convention="row"``, one input per row; with ``convention="column"`` every
    array is transposed. The first seven fields are None if the trace comes from `pyattn.trace_attention`.

    Attributes
    ----------
    x : ndarray, (L, embed_dim), or None
        Inputs.
    w_key : ndarray, (embed_dim, key_dim), or None
        Weight of the projection to keys.
    w_query : ndarray, (embed_dim, key_dim), or None
        Weight of the projection to queries.
    w_value : ndarray, (embed_dim, v_dim), or None
        Weight of the projection to values.
    b_key : ndarray, (1, key_dim), or None
        Bias of keys; None without.
    b_query : ndarray, (1, key_dim), or None
        Bias of queries; None without.
    b_value : ndarray, (1, v_dim), or None
        Bias of values; None without.
    keys : ndarray, (S, key_dim)
        Keys; S is L in self-attention.
    queries : ndarray, (L, key_dim)
        Queries.
    values : ndarray, (S, v_dim)
        Values.
    scores : ndarray, (L, S)
        Scaled scores of query i and key j, plus a float mask; -inf where masked.
    weights : ndarray, (L, S)
        Normalized scores; 0 where masked.
    outputs : ndarray, (L, v_dim)
        Sums of the weighted values.
    visible : ndarray of bool, (L, S), or None
        Whether query i attends to key j; None if all do.
    attn_bias : ndarray, (L, S), or None
        Float mask, which is part of the scores; None without.
    score : str
        Score function.
    score_weight : ndarray or None
        Weight of the score functions 'bilinear' and 'additive', the same in both conventions.
    scale : float
        Factor of the scores.
    normalize : {'softmax', 'sigmoid', 'sparsemax'}
        Function from scores to weights.
    round_weights : int or None
        Decimals of the weights; None if they are not rounded.
    empty_rows : {'zero', 'nan'}
        Output of a query with nothing to attend to.
    convention : {'row', 'column'}
        Whether an input is a row or a column.
    tokens : list of str, or None
        Names of the queries.
    key_tokens : list of str, or None
        Names of the keys; those of the queries in self-attention.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace_attention([[1, 0]], [[4, 0], [0, 4]], [[10], [20]], scale=1)
    >>> trace
    Trace(1 queries, 2 keys, key_dim=2, v_dim=1, score='dot', convention='row')
    >>> trace.scores, trace.weights.round(4), trace.outputs.round(4)
    (array([[4., 0.]]), array([[0.982, 0.018]]), array([[10.1799]]))
    """

    @property
    def steps(self) -> tuple[TraceStep, ...]:
        """The eight steps; 4 to 7 are those of the first input."""
        return eight_steps(self)

    def for_query(self, i: SupportsIndex) -> tuple[TraceStep, ...]:
        """Return steps 4 to 7 of one input.

        Parameters
        ----------
        i : int
            Index of the input: 0 is input 1, -1 the last.

        Returns
        -------
        tuple of TraceStep
            Scores, weights, weighted values and output; the notes are the formulas with numbers.

        Raises
        ------
        IndexError
            i is out of range.
        TypeError
            i is not an integer.

        Examples
        --------
        >>> import pyattn
        >>> trace = pyattn.trace_attention([[1, 0, 2]], [[0, 1, 1], [4, 4, 0], [2, 3, 1]], [[1], [2], [2]], scale=1)
        >>> print(trace.for_query(0)[0].note)
        input 1: [1, 0, 2] x K^T = [2, 4, 4]
        """
        return steps_of_query(self, i)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and weighted_values, as values for `json.dumps`.

        Returns
        -------
        dict
            Numbers that JSON lacks are the strings 'Infinity', '-Infinity' and 'NaN', which ``float`` reads.
            weighted_values is None above 262,144 numbers, those of 64 tokens with 64 features.

        See Also
        --------
        from_dict : The reverse. ``python -m pyattn explain`` reads such a .json file, too.

        Examples
        --------
        >>> import pyattn
        >>> pyattn.trace_attention([[1]], [[2]], [[3]], scale=1).to_dict()["scores"]
        [[2.0]]
        """
        entries: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            if field.name == "outputs":
                count = self.weights.size * self.in_rows("values").shape[1]
                entries["weighted_values"] = as_plain(self.weighted_values) if count <= MAX_LISTED else None
            entries[field.name] = as_plain(getattr(self, field.name))
        return entries

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> Trace:
        """Make a trace from what `to_dict` returned.

        Only the inputs and options are read: x, weights and biases, or keys, queries and values where x is None. All
        else is computed again, so that an edited input changes everything after it.

        Parameters
        ----------
        entries : mapping of str to object
            All fields of a trace.

        Returns
        -------
        Trace
            Equal to the original.

        Raises
        ------
        ValueError
            A field is missing, is not a matrix, or does not match the others.
        TypeError
            A field has another type.

        Examples
        --------
        >>> import json, pyattn
        >>> trace = pyattn.trace_attention([[1]], [[2]], [[3]], scale=1)
        >>> pyattn.tracing.Trace.from_dict(json.loads(json.dumps(trace.to_dict()))).scores
        array([[2.]])
        """
        check_entries(entries, [field.name for field in dataclasses.fields(cls)])
        convention = read_convention(entries["convention"])
        names = ("keys", "queries", "values", "score_weight", "visible", "attn_bias")
        numbers = {name: read_numbers(entries, name) for name in (*GIVEN, *names)}
        given, queries, keys, values = _read_projected(numbers, convention)
        check_pairs(keys, values, ("keys", "values"), convention)
        options = read_options(
            queries,
            keys,
            ("queries", "keys"),
            **{name: entries[name] for name in ("score", "scale", "normalize", "round_weights", "empty_rows")},
            score_weight=numbers["score_weight"],
            convention=convention,
            tokens=read_tokens(entries["tokens"], "tokens", len(queries)),
            key_tokens=read_tokens(entries["key_tokens"], "key_tokens", len(keys)),
        )
        visible, attn_bias = _read_pairs(numbers, len(queries), len(keys), convention)
        return cls(**compute(given, queries, keys, values, visible, attn_bias, options))

    def to_markdown(self) -> str:
        """Return the steps as Markdown, with a table for each matrix.

        Returns
        -------
        str
            Matrices above 12 rows or columns are shown by the first 6 and the last 3.

        Examples
        --------
        >>> import pyattn
        >>> print(pyattn.trace_attention([[1]], [[2]], [[3]], scale=1).to_markdown()[:25])
        ## Step 1: Prepare inputs
        <BLANKLINE>
        """
        return steps_markdown(self.steps)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as one self-contained HTML page, which works offline.

        Inputs, weights, mask and scale can be edited on the page, which then recomputes all steps. This needs matrices
        of at most 12 rows and columns, keys that all come from inputs, and ``empty_rows="zero"``.

        Parameters
        ----------
        path : str or path
            File to write; an existing one is replaced.

        Examples
        --------
        >>> import pathlib, pyattn, tempfile
        >>> trace = pyattn.trace_attention([[1]], [[2]], [[3]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trace.save_html(pathlib.Path(folder, "steps.html"))
        """
        save_page(to_html(self, page=True), path)

    def _repr_html_(self) -> str:
        return to_html(self)

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name, and list those there are."""
            draws = name in ("draw", "plot", "show")
            rest = ". To draw it: pyattn.plot.steps(trace)" if draws else ""
            unknown_field(self, name, [field.name for field in dataclasses.fields(self)], _MEANT, rest)

    def __str__(self) -> str:
        """Write all steps as text."""
        return "\n".join(map(str, self.steps)).rstrip("\n")

    def __repr__(self) -> str:
        """Show the sizes."""
        (queries, keys), v_dim = self.in_rows("scores").shape, self.in_rows("values").shape[1]
        sizes = f"{queries} queries, {keys} keys, key_dim={self.in_rows('keys').shape[1]}, v_dim={v_dim}"
        return f"Trace({sizes}, score={self.score!r}, convention={self.convention!r})"


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


# Fields of a dict


def _read_projected(numbers: Mapping[str, Any], convention: Convention) -> tuple[dict[str, Array], Array, Array, Array]:
    """Read x, weights and biases, and queries, keys and values, which are projected again if x is given."""
    keys, queries, values = (
        read_matrix(numbers[name], name, ("length", dim), convention)
        for name, dim in (("keys", "key_dim"), ("queries", "key_dim"), ("values", "v_dim"))
    )
    if numbers["x"] is None:
        return {}, queries, keys, values
    weights = {name: numbers[f"w_{name}"] for name in _NAMES}
    bias = [None if vector is None else vector.ravel() for vector in (numbers[f"b_{name}"] for name in _NAMES)]
    given = read_given(numbers["x"], weights, bias, convention)
    given_keys = len(queries)  # MultiheadAttention may add keys and values that come from no input
    queries, new_keys, new_values = project([given["x"]] * 3, given)
    keys = np.concatenate([new_keys, keys[given_keys:]])
    values = np.concatenate([new_values, values[given_keys:]])
    return given, queries, keys, values


def _read_pairs(
    numbers: Mapping[str, Any], q_len: int, kv_len: int, convention: Convention
) -> tuple[npt.NDArray[np.bool_] | None, Array | None]:
    """Read the two arrays of pairs, visible and attn_bias, as (L, S); both may be None."""
    shape = (q_len, kv_len) if convention == "row" else (kv_len, q_len)
    for name in ("visible", "attn_bias"):
        if numbers[name] is not None and numbers[name].shape != shape:
            raise ValueError(f"{name} has shape {numbers[name].shape}; it must be {shape}")
    visible = None if numbers["visible"] is None else as_rows(numbers["visible"] != 0, convention)
    attn_bias = None if numbers["attn_bias"] is None else as_rows(numbers["attn_bias"], convention)
    return visible, attn_bias

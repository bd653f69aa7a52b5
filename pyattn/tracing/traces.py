"""`Trace`, and `BackwardTrace` with its gradients."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.names import unknown_field
from pyattn._util.typing import Convention
from pyattn.tracing.compute import GIVEN, Intermediates, as_rows, compute, project
from pyattn.tracing.dicts import MAX_LISTED, as_plain, check_entries, read_numbers
from pyattn.tracing.gradients import compute_gradients
from pyattn.tracing.inputs import (
    check_pairs,
    read_convention,
    read_given,
    read_matrix,
    read_options,
    read_tokens,
)
from pyattn.tracing.render.backward_page import TITLE, backward_html
from pyattn.tracing.render.backward_steps import backward_steps
from pyattn.tracing.render.html import to_html
from pyattn.tracing.render.markdown import steps_markdown
from pyattn.tracing.render.page import save_page
from pyattn.tracing.render.steps import TraceStep, eight_steps, steps_of_query

__all__ = ["BackwardTrace", "Trace"]

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

    def backward(self, grad_outputs: npt.ArrayLike) -> BackwardTrace:
        """Compute the eight steps backwards: the gradients of a loss.

        Parameters
        ----------
        grad_outputs : array_like, (L, v_dim)
            Gradient of a loss with respect to each number of outputs; (v_dim, L) with ``convention="column"``. For
            half the sum of squared errors it is ``trace.outputs - target``.

        Returns
        -------
        BackwardTrace
            Gradients of values, weights, scores, queries, keys, masks, weight matrices, biases and inputs. x counts
            three times, as it gives keys, queries and values: grad_x is the sum.

        Raises
        ------
        ValueError
            grad_outputs has another shape than outputs, or the trace has rounded weights, which have no gradient.
        TypeError
            grad_outputs is not an array of real numbers.

        Notes
        -----
        The chain rule, with P for weights and S for scores: ``dV = P^T dO``, ``dP = dO V^T``,
        ``dS = P * (dP - rowsum(P * dP))``, ``dQ = scale dS K``, ``dK = scale dS^T Q``, ``dW = X^T dQ`` and so on.

        Examples
        --------
        >>> import pyattn
        >>> x = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
        >>> w_query = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
        >>> w_key = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
        >>> w_value = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]
        >>> backward = pyattn.trace(x, w_query, w_key, w_value).backward([[1, 0, 0], [0, 0, 0], [0, 0, 0]])
        >>> backward.grad_weights
        array([[1., 2., 2.],
               [0., 0., 0.],
               [0., 0., 0.]])
        >>> backward.grad_scores.round(4)
        array([[-0.0594,  0.0297,  0.0297],
               [ 0.    ,  0.    ,  0.    ],
               [ 0.    ,  0.    ,  0.    ]])
        """
        return BackwardTrace(self, **compute_gradients(self, grad_outputs))

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
            rest = ". To draw it: pyattn.plot.steps(trace)" if name in ("draw", "plot", "show") else ""
            if name.startswith("grad") or name in ("jvp", "vjp"):
                raise AttributeError(
                    f"a Trace has no {name!r}; trace.backward(grad_outputs) computes all gradients", name=name, obj=self
                )
            unknown_field(self, name, [field.name for field in dataclasses.fields(self)], _MEANT, rest)

    def __str__(self) -> str:
        """Write all steps as text."""
        return "\n".join(map(str, self.steps)).rstrip("\n")

    def __repr__(self) -> str:
        """Show the sizes."""
        (queries, keys), v_dim = self.in_rows("scores").shape, self.in_rows("values").shape[1]
        sizes = f"{queries} queries, {keys} keys, key_dim={self.in_rows('keys').shape[1]}, v_dim={v_dim}"
        return f"Trace({sizes}, score={self.score!r}, convention={self.convention!r})"


@dataclass(frozen=True, eq=False, repr=False)
class BackwardTrace:
    """Every gradient of one attention, from the outputs back to the inputs.

    `Trace.backward` returns it. ``grad_x`` is the gradient of the trace's ``x``: how fast the loss grows with each of
    its numbers. All arrays are float64 and read-only, and have the shape of what they are the gradient of. Printed, it
    is text; in a notebook, a page. Shapes below are those of ``convention="row"``; with ``convention="column"`` every
    array but grad_score_weight is transposed. A query that attends to nothing has no effect on any gradient. The
    gradients of x, weights and biases are None if the trace comes from `pyattn.trace_attention`.

    Attributes
    ----------
    trace : Trace
        The forward pass.
    grad_outputs : ndarray, (L, v_dim)
        As given.
    grad_values : ndarray, (S, v_dim)
        ``weights.T @ grad_outputs``.
    grad_weights : ndarray, (L, S)
        ``grad_outputs @ values.T``; 0 where masked.
    delta : ndarray, (L, 1), or None
        Mean gradient of the weights of each query: for 'softmax' weighted by the weights, for 'sparsemax' over the
        weights above 0; None for 'sigmoid'.
    grad_scores : ndarray, (L, S)
        ``weights * (grad_weights - delta)`` for 'softmax'; 0 where masked.
    grad_queries : ndarray, (L, key_dim)
        ``scale * grad_scores @ keys`` for the score 'dot'.
    grad_keys : ndarray, (S, key_dim)
        ``scale * grad_scores.T @ queries`` for the score 'dot'.
    grad_attn_bias : ndarray, (L, S), or None
        Of a float mask: the same as grad_scores. None without one, or if it holds only zeros. Sum it over the axes
        along which the mask was broadcast.
    grad_score_weight : ndarray, (key_dim, key_dim) or (key_dim,), or None
        Of the weight of the score function 'bilinear' or 'additive', the same in both conventions; None for others.
    grad_scale : float
        Of the scale.
    grad_w_key, grad_w_query : ndarray, (embed_dim, key_dim), or None
        ``x.T @ grad_keys`` and ``x.T @ grad_queries``. Keys and values that come from no input do not count here, nor
        in the gradients below.
    grad_w_value : ndarray, (embed_dim, v_dim), or None
        ``x.T @ grad_values``.
    grad_b_key, grad_b_query, grad_b_value : ndarray, (1, dim), or None
        Sums of grad_keys, grad_queries and grad_values over the inputs; None without a bias.
    grad_x : ndarray, (L, embed_dim), or None
        ``grad_keys @ w_key.T + grad_queries @ w_query.T + grad_values @ w_value.T``.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace_attention([[1, 0]], [[4, 0], [0, 4]], [[10], [20]], scale=1)
    >>> backward = trace.backward([[1]])
    >>> backward
    BackwardTrace(1 queries, 2 keys, key_dim=2, v_dim=1, score='dot', convention='row')
    >>> backward.grad_values.round(4), backward.grad_scores.round(4)
    (array([[0.982],
           [0.018]]), array([[-0.1766,  0.1766]]))
    """

    trace: Trace
    grad_outputs: Array
    grad_values: Array
    grad_weights: Array
    delta: Array | None
    grad_scores: Array
    grad_queries: Array
    grad_keys: Array
    grad_attn_bias: Array | None
    grad_score_weight: Array | None
    grad_scale: float
    grad_w_key: Array | None
    grad_w_query: Array | None
    grad_w_value: Array | None
    grad_b_key: Array | None
    grad_b_query: Array | None
    grad_b_value: Array | None
    grad_x: Array | None

    @property
    def steps(self) -> tuple[TraceStep, ...]:
        """The steps from 8 to 1; the notes give the numbers of one input."""
        return backward_steps(self.trace, self.arrays)

    @property
    def arrays(self) -> dict[str, Array]:
        """All gradients by name, and delta, without those that are None.

        grad_scale is a matrix of one number.
        """
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[1:]}
        return {name: np.atleast_2d(array) for name, array in fields.items() if array is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return all gradients and delta as values for `json.dumps`.

        `Trace.to_dict` returns the forward pass.

        Returns
        -------
        dict
            Numbers that JSON lacks are the strings 'Infinity', '-Infinity' and 'NaN'.

        Examples
        --------
        >>> import pyattn
        >>> pyattn.trace_attention([[1]], [[2]], [[3]]).backward([[4]]).to_dict()["grad_values"]
        [[4.0]]
        """
        return {field.name: as_plain(getattr(self, field.name)) for field in dataclasses.fields(self)[1:]}

    def to_markdown(self) -> str:
        """Return the steps as Markdown, with a table for each matrix.

        Returns
        -------
        str
            Matrices above 12 rows or columns are shown by the first 6 and the last 3.

        Examples
        --------
        >>> import pyattn
        >>> print(pyattn.trace_attention([[1]], [[2]], [[3]]).backward([[4]]).to_markdown()[:45])
        ## Step 8: Start from the outputs' gradients
        """
        return steps_markdown(self.steps)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as one self-contained HTML page, which works offline.

        Parameters
        ----------
        path : str or path
            File to write; an existing one is replaced.

        Examples
        --------
        >>> import pathlib, pyattn, tempfile
        >>> backward = pyattn.trace_attention([[1]], [[2]], [[3]]).backward([[4]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     backward.save_html(pathlib.Path(folder, "backward.html"))
        """
        save_page(backward_html(self.trace, self.arrays, page=True), path, TITLE)

    def _repr_html_(self) -> str:
        return backward_html(self.trace, self.arrays)

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name, and list those there are."""
            names = [field.name for field in dataclasses.fields(self)]
            forward = {field: f"trace.{field}" for field in Intermediates.__dataclass_fields__}
            letters = {
                "q": "queries",
                "k": "keys",
                "v": "values",
                "p": "weights",
                "s": "scores",
                "o": "outputs",
                "x": "x",
            }
            short = {f"{prefix}{one}": f"grad_{full}" for one, full in letters.items() for prefix in ("d", "grad_")}
            short |= {f"grad_{full.rstrip('s')}": f"grad_{full}" for full in letters.values()}
            short |= {"grad_query": "grad_queries", "dw": "grad_w_query", "grad_mask": "grad_attn_bias"}
            rest = ". To draw it: pyattn.plot.steps(backward)" if name in ("draw", "plot", "show") else ""
            meant = {**forward, **short, name: short.get(name.lower(), forward.get(name))}
            unknown_field(self, name, names, meant, rest)

    def __str__(self) -> str:
        """Write all steps as text."""
        return "\n".join(map(str, self.steps)).rstrip("\n")

    def __repr__(self) -> str:
        """Show the sizes."""
        return f"Backward{self.trace!r}"


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

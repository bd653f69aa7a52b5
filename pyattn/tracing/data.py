"""What a trace holds, and its eight steps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference
from pyattn.tracing import scoring

__all__ = ["MOST_BYTES", "Convention", "EmptyRows", "Settings", "Step", "Trace", "make_trace"]

Array = npt.NDArray[np.float64]
Convention = Literal["row", "column"]
EmptyRows = Literal["zero", "nan"]
MOST_BYTES = 2**28
"""Larger weighted values are not made: at 4,096 tokens of 64 features they would take 8 gigabytes."""


class Step(NamedTuple):
    """One of the eight steps.

    Attributes
    ----------
    number : int
        1 to 8.
    title : str
        What the step does.
    formula : str
        How, in NumPy's notation or that of a formula; empty where nothing is computed.
    arrays : dict of str to ndarray
        What comes out of it, each with two axes, by the names of the trace's fields.
    note : str
        What to look at, in lines; may be empty.
    """

    number: int
    title: str
    formula: str
    arrays: dict[str, Array]
    note: str

    def __str__(self) -> str:
        """Write the step as a block of text."""
        from pyattn.tracing.text import step_text

        return step_text(self)


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Every intermediate of one attention, in float64 and read-only, in the order of the eight steps.

    Shapes are those of the row convention, an input per row; with ``convention="column"`` every array is transposed.
    The first seven are None where `pyattn.trace_attention` was given queries, keys and values.

    Attributes
    ----------
    x : ndarray, (L, d_x), or None
        The inputs.
    w_key : ndarray, (d_x, key_dim), or None
        What makes keys of inputs.
    w_query : ndarray, (d_x, key_dim), or None
        What makes queries of inputs.
    w_value : ndarray, (d_x, v_dim), or None
        What makes values of inputs.
    b_key : ndarray, (1, key_dim), or None
        Bias of keys.
    b_query : ndarray, (1, key_dim), or None
        Bias of queries.
    b_value : ndarray, (1, v_dim), or None
        Bias of values.
    keys : ndarray, (S, key_dim)
        What is looked up; S is L in self-attention.
    queries : ndarray, (L, key_dim)
        What is looked for.
    values : ndarray, (S, v_dim)
        What is found.
    scores : ndarray, (L, S)
        How well query i goes with key j; a float mask is added to it, and it is -inf where the key is hidden.
    weights : ndarray, (L, S)
        How much of each value query i takes; 0 where the key is hidden.
    outputs : ndarray, (L, v_dim)
        Sums of the weighted values.
    visible : ndarray of bool, (L, S), or None
        Which query attends to which key; None where nothing is hidden.
    attn_bias : ndarray, (L, S), or None
        A float mask, which is part of the scores.
    score : str
        The score function.
    score_weight : ndarray or None
        Its weight.
    scale : float
        What scores are multiplied by.
    normalise : str
        What makes weights of scores.
    round_weights : int or None
        Decimals of the weights.
    empty_rows : {'zero', 'nan'}
        What the output of a query is that attends to nothing.
    convention : {'row', 'column'}
        Whether an input is a row or a column.
    tokens : list of str, or None
        Names of the queries.
    key_tokens : list of str, or None
        Names of the keys: tokens, in self-attention.
    """

    x: Array | None
    w_key: Array | None
    w_query: Array | None
    w_value: Array | None
    b_key: Array | None
    b_query: Array | None
    b_value: Array | None
    keys: Array
    queries: Array
    values: Array
    scores: Array
    weights: Array
    outputs: Array
    visible: npt.NDArray[np.bool_] | None
    attn_bias: Array | None
    score: scoring.Score
    score_weight: Array | None
    scale: float
    normalise: scoring.Normaliser
    round_weights: int | None
    empty_rows: EmptyRows
    convention: Convention
    tokens: list[str] | None
    key_tokens: list[str] | None

    @property
    def weighted_values(self) -> Array:
        """Each value times each weight, [key, query, v_dim], made anew on each access; their sum over keys is outputs.

        With ``convention="column"`` it is transposed as the rest: [v_dim, query, key].
        """
        weights, values = self.in_rows("weights"), self.in_rows("values")
        queries, keys = weights.shape
        shape = (keys, queries, values.shape[-1])
        size = 8 * keys * queries * values.shape[-1]
        if size > MOST_BYTES:
            raise ValueError(
                f"weighted_values of shape {shape} would take {size / 2**20:,.0f} MiB, more than the "
                f"{MOST_BYTES / 2**20:,.0f} MiB that are allowed; for_query(i) gives those of one query"
            )
        return self._turned(self._weighted(slice(None)))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The eight steps; 4 to 7 are those of the first input."""
        from pyattn.tracing.steps import steps_of

        return steps_of(self)

    def for_query(self, i: SupportsIndex) -> tuple[Step, ...]:
        """Return steps 4 to 7 for one input.

        Parameters
        ----------
        i : int
            Which: 0 is input 1; -1 is the last.

        Returns
        -------
        tuple of Step
            Scores, weights, weighted values and output, whose notes have the numbers.

        Raises
        ------
        IndexError
            There is no such input.
        TypeError
            i is no integer.

        Examples
        --------
        >>> import pyattn
        >>> trace = pyattn.trace_attention([[1, 0, 2]], [[0, 1, 1], [4, 4, 0], [2, 3, 1]], [[1], [2], [2]], scale=1)
        >>> print(trace.for_query(0)[0].note)
        input 1: [1, 0, 2] x K^T = [2, 4, 4]
        """
        from pyattn.tracing.steps import steps_for

        return steps_for(self, i)

    def in_rows(self, name: str) -> npt.NDArray[Any]:
        """Return a field as in the row convention, whichever is the trace's own.

        Parameters
        ----------
        name : str
            Of a field that is not None.

        Returns
        -------
        ndarray
            A view.
        """
        return self._turned(getattr(self, name))

    def _turned(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.T if self.convention == "column" else array

    def _weighted(self, queries: slice) -> Array:
        """Weighted values of some queries, [key, query, v_dim], without touching what is hidden."""
        weights, values = self.in_rows("weights")[queries], self.in_rows("values")
        numerators, denominator = weights, 1.0
        if self.round_weights is not None:
            denominator = 10.0**self.round_weights
            numerators = np.rint(weights * denominator)
        with np.errstate(all="ignore"):
            weighted: Array = values[:, np.newaxis] * numerators.T[:, :, np.newaxis]
            weighted /= denominator  # in place: it may be large
        if self.visible is not None:
            weighted[~self.in_rows("visible")[queries].T] = 0
        return weighted

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as lists, numbers and strings, which `json.dumps` takes.

        Returns
        -------
        dict
            In the order of the steps. Numbers that JSON lacks are the strings 'Infinity', '-Infinity' and 'NaN', which
            ``float`` reads; weighted_values is None where there are more than 262,144 of them, those of 64 tokens
            with 64 features. Of a .json file of it ``python -m pyattn explain`` writes the same page.

        Examples
        --------
        >>> import pyattn
        >>> pyattn.trace_attention([[1]], [[2]], [[3]], scale=1).to_dict()["scores"]
        [[2.0]]
        """
        from pyattn.tracing.text import to_dict

        return to_dict(self)

    def to_markdown(self) -> str:
        """Return the steps as Markdown, with a table for each matrix.

        Returns
        -------
        str
            Large matrices are shown by their first and last rows and columns.
        """
        from pyattn.tracing.markdown import to_markdown

        return to_markdown(self)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as a page that needs nothing else: no network, no library.

        Parameters
        ----------
        path : str or path
            Of the file, which is replaced.
        """
        from pyattn.tracing.page import write_page

        write_page(self._repr_html_(), path)

    def _repr_html_(self) -> str:
        from pyattn.tracing.html import to_html

        return to_html(self)

    def __str__(self) -> str:
        """Write all steps as text."""
        from pyattn.tracing.text import to_text

        return to_text(self)

    def __repr__(self) -> str:
        """Tell the sizes."""
        (queries, keys), v_dim = self.in_rows("scores").shape, self.in_rows("values").shape[1]
        sizes = f"{queries} queries, {keys} keys, key_dim={self.in_rows('keys').shape[1]}, v_dim={v_dim}"
        return f"Trace({sizes}, score={self.score!r}, convention={self.convention!r})"


class Settings(NamedTuple):
    """What a trace was asked for: its fields of the same names.

    Attributes
    ----------
    score : str
        The score function.
    score_weight : ndarray or None
        Its weight; the same in both conventions.
    scale : float
        What scores are multiplied by.
    normalise : str
        What makes weights of scores.
    round_weights : int or None
        Decimals of the weights.
    convention : {'row', 'column'}
        Whether an input is a row or a column.
    tokens : list of str, or None
        Names of the queries.
    key_tokens : list of str, or None
        Names of the keys.
    empty_rows : {'zero', 'nan'}
        What the output of a query is that attends to nothing. Default: 'zero'.
    """

    score: scoring.Score
    score_weight: Array | None
    scale: float
    normalise: scoring.Normaliser
    round_weights: int | None
    convention: Convention
    tokens: list[str] | None
    key_tokens: list[str] | None
    empty_rows: EmptyRows = "zero"


def make_trace(
    given: Mapping[str, Array | None],
    keys: Array,
    queries: Array,
    values: Array,
    hiding: tuple[npt.NDArray[np.bool_] | None, Array | None],
    settings: Settings,
) -> Trace:
    """Compute scores, weights and outputs. All arrays are in the row convention, and the trace's from now on.

    Parameters
    ----------
    given : mapping of str to ndarray or None
        x, weights and biases, by the names of the trace's fields; those that are left out are None.
    keys : ndarray, (S, key_dim)
        The third step's.
    queries : ndarray, (L, key_dim)
        The third step's.
    values : ndarray, (S, v_dim)
        The third step's.
    hiding : (ndarray of bool or None, ndarray or None)
        Which query attends to which key, and what is added to the scores, both (L, S).
    settings : Settings
        All else.

    Returns
    -------
    Trace
        With read-only arrays.
    """
    visible, bias = hiding
    scores: npt.NDArray[Any] = reference.scores(queries, keys, settings.score, settings.scale, settings.score_weight)
    with np.errstate(invalid="ignore"):
        scores = scores if bias is None else scores + bias
    if visible is not None:
        scores[~visible] = -np.inf
    weights = scoring.normalise(scores, settings.normalise)
    numerators, denominator = weights, 1.0
    if settings.round_weights is not None:
        numerators, denominator = scoring.round_rows(weights, settings.round_weights)
        weights = numerators / denominator
    outputs = scoring.weighted_sum(numerators, values, visible) / denominator
    if settings.empty_rows == "nan":
        outputs[(scores == -np.inf).all(axis=1)] = np.nan
    arrays = dict.fromkeys(("x", "w_key", "w_query", "w_value", "b_key", "b_query", "b_value")) | dict(given)
    arrays |= {"keys": keys, "queries": queries, "values": values, "scores": scores, "weights": weights}
    fields: dict[str, Any] = {**arrays, "outputs": outputs, "visible": visible, "attn_bias": bias}
    for name, array in fields.items():
        if array is not None:
            array.flags.writeable = False
            fields[name] = array.T if settings.convention == "column" else array
    return Trace(**fields, **settings._asdict())

"""A trace as text, and as lists."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn.tracing.data import Step, Trace
from pyattn.tracing.digits import Shown, cut, pad, part_of, width_of

__all__ = ["labels_of", "matrix_lines", "plain", "step_text", "to_dict", "to_text"]

Array = npt.NDArray[np.float64]
Names = Sequence[str] | None
_MOST_LISTED = 2**18
"""Numbers of weighted values: as lists a million would take 32 MB, and they are products of what stands beside them."""

_BY_QUERY, _BY_KEY = ("x", "queries", "concatenated", "outputs"), ("keys", "values", "weighted_values")


def labels_of(trace: Trace, name: str, query: int | None = None) -> tuple[Names, Names]:
    """Return the tokens along the axes of a field as the trace shows it.

    Parameters
    ----------
    trace : Trace
        Of any kind.
    name : str
        Of the field.
    query : int, optional
        The only query, where the array is that of one. Default: None, it is that of all.

    Returns
    -------
    rows, columns : list of str or None
        None where an axis has no tokens.
    """
    queries = trace.tokens
    if queries is not None and query is not None:
        queries = queries[query : query + 1]
    rows, columns = {
        **dict.fromkeys(_BY_QUERY, (queries, None)),
        **dict.fromkeys(_BY_KEY, (trace.key_tokens, None)),
        **dict.fromkeys(("attn_bias", "scores", "weights"), (queries, trace.key_tokens)),
    }.get(name, (None, None))
    return (columns, rows) if trace.convention == "column" else (rows, columns)


def to_text(trace: Trace) -> str:
    """Write a trace as text, one step a block.

    Parameters
    ----------
    trace : Trace
        Of any kind.

    Returns
    -------
    str
        Large matrices are shown by their first and last rows and columns.
    """
    return "\n".join(step_text(step, trace) for step in trace.steps).rstrip("\n")


def step_text(step: Step, trace: Trace | None = None) -> str:
    """Write a step as text.

    Parameters
    ----------
    step : Step
        Any.
    trace : Trace, optional
        Whose tokens name rows and columns. Default: None, they have no names.

    Returns
    -------
    str
        Lines, the last one empty.
    """
    lines = [f"Step {step.number}: {step.title}"]
    lines += [f"  {line}" for part in (step.formula, step.note) for line in part.splitlines()]
    for name, array in step.arrays.items():
        names: tuple[Names, Names] = (None, None)
        if trace is not None:
            names = labels_of(trace, name, 0 if step.number in (4, 5, 6, 7) else None)
        lines += ["", f"  {name}, {array.shape[0]} x {array.shape[1]}"]
        lines += [f"    {line}" for line in matrix_lines(array, *names)]
    return "\n".join([*lines, ""])


def matrix_lines(matrix: Array, rows: Names = None, columns: Names = None) -> list[str]:
    """Write a matrix with its numbers below one another.

    Parameters
    ----------
    matrix : ndarray, (rows, columns)
        Of any size.
    rows : sequence of str, optional
        Names of the rows. Default: None.
    columns : sequence of str, optional
        Names of the columns. Default: None.

    Returns
    -------
    list of str
        A line for each row, and one for the columns' names.
    """
    part = part_of(matrix)
    table = [*([_names_shown(columns, part.columns)] if columns is not None else []), *part.texts]
    if rows is not None:
        names = [*([""] if columns is not None else []), *_names_shown(rows, part.rows)]
        width = max(map(width_of, names))
        heads = [pad(name, width, left=True) + "  " for name in names]
    else:
        heads = [""] * len(table)
    widths = [max(map(width_of, column)) for column in zip(*table, strict=True)]
    return [
        head + "  ".join(pad(cell, width) for cell, width in zip(cells, widths, strict=True))
        for head, cells in zip(heads, table, strict=True)
    ]


def _names_shown(names: Sequence[str], axis: Shown) -> list[str]:
    return ["..." if n < 0 else cut(names[n]) for n in axis.indices]


# As lists


def to_dict(trace: Trace) -> dict[str, Any]:
    """Return a trace as lists, numbers and strings.

    Parameters
    ----------
    trace : Trace
        Of any kind.

    Returns
    -------
    dict
        In the order of the fields.
    """
    entries: dict[str, Any] = {}
    for field in dataclasses.fields(trace):
        if field.name == "outputs":
            count = trace.weights.size * trace.in_rows("values").shape[1]
            entries["weighted_values"] = plain(trace.weighted_values) if count <= _MOST_LISTED else None
        entries[field.name] = plain(getattr(trace, field.name))
    return entries


def plain(x: Any) -> Any:
    """Return arrays as lists, and all else as it is.

    Parameters
    ----------
    x : object
        A field of a trace.

    Returns
    -------
    object
        What `json.dumps` takes.
    """
    if isinstance(x, np.ndarray):
        finite = x.dtype == np.bool_ or bool(np.isfinite(x).all())
        return x.tolist() if finite else _spelled(x.tolist())
    return list(x) if isinstance(x, list) else x


def _spelled(x: Any) -> Any:
    """Write what JSON has no number for as a string that `float` reads."""
    if isinstance(x, list):
        return [_spelled(entry) for entry in x]
    if math.isfinite(x):
        return x
    return "NaN" if math.isnan(x) else "Infinity" if x > 0 else "-Infinity"

"""A trace out of what `to_dict` made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from pyattn.tracing import inputs
from pyattn.tracing.data import EmptyRows, Trace, make_trace
from pyattn.tracing.functions import project
from pyattn.tracing.heads import HeadTraces, join_heads

__all__ = ["from_dict", "is_dict_of_trace"]

Array = npt.NDArray[np.float64]
_FIELDS = {field.name for field in dataclasses.fields(Trace)}
_NAMES = ("query", "key", "value")
_PLURALS = ("queries", "keys", "values")


def is_dict_of_trace(entries: Mapping[str, Any]) -> bool:
    """Tell whether this is what `to_dict` of a trace, or of the traces of several heads, returns.

    Parameters
    ----------
    entries : mapping of str to object
        Any.

    Returns
    -------
    bool
    """
    return entries.keys() >= _FIELDS or entries.keys() >= {"heads", "w_out", "b_out"}


def from_dict(entries: Mapping[str, Any]) -> Trace | HeadTraces:
    """Make a trace of what `to_dict` returned.

    Only what is given is read: what is computed from it is computed anew, so a changed input changes all that follows.

    Parameters
    ----------
    entries : mapping of str to object
        As `is_dict_of_trace` knows it.

    Returns
    -------
    Trace or HeadTraces
        Equal to the one that it came from.

    Raises
    ------
    ValueError
        Shapes do not go together, or an entry has none of its values.
    TypeError
        An entry is not a matrix of numbers.
    """
    if "heads" not in entries:
        return _trace_of(entries)
    heads = entries["heads"]
    if not (
        isinstance(heads, list) and heads and all(isinstance(head, dict) and head.keys() >= _FIELDS for head in heads)
    ):
        raise ValueError("heads is no list of traces, expected what to_dict() returns")
    traces = [_trace_of(head) for head in heads]
    w_out = _matrix(entries, "w_out", ("heads * v_dim", "out_dim"))
    b_out = None if entries["b_out"] is None else _matrix(entries, "b_out", ("1", "out_dim"))
    wide = sum(trace.outputs.shape[1] for trace in traces)
    if len({trace.outputs.shape[0] for trace in traces}) > 1 or len(w_out) != wide:
        raise ValueError(f"w_out has shape {w_out.shape}, expected ({wide}, out_dim): the heads have {wide} outputs")
    if b_out is not None and b_out.shape != (1, w_out.shape[1]):
        raise ValueError(f"b_out has shape {b_out.shape}, expected (1, {w_out.shape[1]}) as w_out")
    return join_heads(traces, w_out, b_out)


def _trace_of(entries: Mapping[str, Any]) -> Trace:
    columns = inputs.is_column(entries["convention"])
    dims = ("length", "key_dim"), ("length", "key_dim"), ("length", "v_dim")
    queries, keys, values = (_matrix(entries, name, axes, columns) for name, axes in zip(_PLURALS, dims, strict=True))
    given: dict[str, Array] = {}
    if entries["x"] is not None:
        given = _given(entries, columns)
        projected = project(given)
        queries = projected[0]  # of keys and values, some may be made of no input
        keys, values = (
            np.concatenate([new, old[len(new) :]]) for new, old in zip(projected[1:], (keys, values), strict=True)
        )
    inputs.check_key_dim(queries, keys, entries["score"], ("queries", "keys"))
    if len(keys) != len(values):
        raise ValueError(f"there are {len(values)} values, expected {len(keys)}: one for each key")
    names = inputs.names_of(entries["tokens"], "tokens", len(queries))
    key_names = inputs.names_of(entries["key_tokens"], "key_tokens", len(keys))
    weight = None if entries["score_weight"] is None else _numbers(entries, "score_weight")
    function = inputs.ScoreFunction(entries["score"], weight, entries["scale"])
    asked = entries["normalise"], entries["round_weights"], entries["convention"]
    settings = inputs.settings_of(function, (queries, keys), *asked, (names, key_names))
    inputs.check_choice(entries["empty_rows"], "empty_rows", get_args(EmptyRows))
    settings = settings._replace(empty_rows=entries["empty_rows"])
    hiding = _pairs(entries, "visible", queries, keys, columns), _pairs(entries, "attn_bias", queries, keys, columns)
    return make_trace(
        given, keys, queries, values, (None if hiding[0] is None else hiding[0] != 0, hiding[1]), settings
    )


def _given(entries: Mapping[str, Any], columns: bool) -> dict[str, Array]:
    """Read inputs, weights and biases."""
    weights = {name: _numbers(entries, f"w_{name}") for name in _NAMES}
    biases = [None if entries[f"b_{name}"] is None else _numbers(entries, f"b_{name}").ravel() for name in _NAMES]
    return inputs.read_given(_numbers(entries, "x"), weights, biases, columns)


def _pairs(entries: Mapping[str, Any], name: str, queries: Array, keys: Array, columns: bool) -> Array | None:
    """Read what belongs to each query and key, or None."""
    if entries[name] is None:
        return None
    array = _matrix(entries, name, ("L", "S"), columns)
    if array.shape != (len(queries), len(keys)):
        expected = (len(keys), len(queries)) if columns else (len(queries), len(keys))
        raise ValueError(f"{name} has shape {array.shape[::-1] if columns else array.shape}, expected {expected}")
    return array


def _matrix(entries: Mapping[str, Any], name: str, axes: tuple[str, str], columns: bool = False) -> Array:
    return inputs.read_matrix(_numbers(entries, name), name, axes, columns)


def _numbers(entries: Mapping[str, Any], name: str) -> Array:
    """Read numbers, of which some may be spelled, such as 'NaN'."""
    try:
        return np.array(entries[name], np.float64)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{name} is no matrix of numbers: {problem}") from None

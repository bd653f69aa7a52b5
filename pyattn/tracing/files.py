"""`python -m pyattn explain`: the worked example, or matrices of a file, as a page."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import pyattn.tracing.article as article
from pyattn.tracing.data import Trace
from pyattn.tracing.functions import trace, trace_attention
from pyattn.tracing.heads import HeadTraces
from pyattn.tracing.reading import from_dict, is_dict_of_trace

__all__ = ["explain", "trace_of_file"]


def explain(file: str | None, output: str, as_text: bool) -> int:
    """Write a page, and say where.

    Parameters
    ----------
    file : str or None
        Of matrices; None is the worked example.
    output : str
        Path of the page.
    as_text : bool
        Print the steps, too.

    Returns
    -------
    int
        2 where the file cannot be read or the page not be written, else 0.
    """
    try:
        made = _example() if file is None else trace_of_file(file)
        made.save_html(output)
    except (OSError, ValueError, TypeError) as problem:
        print(f"python -m pyattn explain: {problem}", file=sys.stderr)
        return 2
    if as_text:
        print(made)
    print(f"{output}: open it in a browser", file=sys.stderr if as_text else sys.stdout)
    return 0


def _example() -> Trace:
    return trace(article.X, article.W_QUERY, article.W_KEY, article.W_VALUE)


def trace_of_file(file: str) -> Trace | HeadTraces:
    """Trace the matrices of a file.

    Parameters
    ----------
    file : str
        Path of an .npz or .json file that holds the arguments of `trace`, x, w_query, w_key, w_value, or those of
        `trace_attention`, query, key and value, by their names, and any others of theirs. Other names are told of on
        standard error, and not used. Or a .json file of what `to_dict` returned, also that of several heads.

    Returns
    -------
    Trace or HeadTraces
        In the file's convention.

    Raises
    ------
    ValueError
        It is no such file, or lacks a name.
    OSError
        It cannot be opened.
    """
    given = _read(file)
    if is_dict_of_trace(given):
        return from_dict(given)
    function = trace_attention if {"query", "key", "value"} <= given.keys() else trace
    parameters = inspect.signature(function).parameters
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in given]
    if missing:
        raise ValueError(
            f"{file} has no {', '.join(missing)}: expected x, w_query, w_key and w_value, or query, key and value; "
            f"it has {', '.join(given) or 'nothing'}"
        )
    unused = [name for name in given if name not in parameters]
    if unused:
        print(f"{file}: not used: {', '.join(unused)}", file=sys.stderr)
    made: Trace = function(**{name: x for name, x in given.items() if name in parameters})
    return made


def _read(file: str) -> Mapping[str, Any]:
    """Names to values; numbers and strings are those of Python."""
    if file.endswith(".npz"):
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return {name: array.tolist() if array.dtype.kind in "US" or array.ndim == 0 else array
                        for name, array in arrays.items()}  # fmt: skip
        except OSError:
            raise
        except Exception as problem:  # of zipfile, of zlib, of NumPy: a file can be broken in many ways
            raise ValueError(f"{file} is not an .npz file of numbers and strings") from problem
    if not file.endswith(".json"):
        raise ValueError(f"{file} has an unknown ending, expected .npz or .json")
    try:
        read = json.loads(Path(file).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise ValueError(f"{file} is not a JSON file: {problem}") from problem
    if not isinstance(read, dict):
        raise ValueError(f"{file} holds a {type(read).__name__}, expected an object of names and matrices")
    return read

"""`python -m pyattn explain`: the worked example, or the matrices of a file, as a page."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import pyattn.io as io
import pyattn.tracing.article as article
from pyattn._util.names import nearest
from pyattn.io.json import read_object
from pyattn.tracing._trace import trace, trace_attention
from pyattn.tracing.heads import HeadTraces
from pyattn.tracing.traces import Trace

__all__ = ["explain"]


def explain(file: str | None, output: str, as_text: bool) -> int:
    """Write a page and print its path; return 0, or 2 if the file cannot be read or the page cannot be written."""
    try:
        if not output:
            raise ValueError("-o needs the name of a file")
        traced = _trace_file(file) if file is not None else trace(
            article.X, article.W_QUERY, article.W_KEY, article.W_VALUE)  # fmt: skip
        traced.save_html(output)
    except (OSError, ValueError, TypeError) as problem:
        print("python -m pyattn explain:", " ".join(str(problem).split()), file=sys.stderr)
        return 2
    if as_text:
        print(traced)
    print(f"{output}: open it in a browser", file=sys.stderr if as_text else sys.stdout)
    return 0


def _trace_file(file: str) -> Trace | HeadTraces:
    """Trace a file that holds named arguments of `trace` or `trace_attention`, or the result of `to_dict`."""
    given = _read(file)
    if {"heads", "w_out", "b_out"} <= given.keys():
        return HeadTraces.from_dict(given)
    if {field.name for field in dataclasses.fields(Trace)} <= given.keys():
        return Trace.from_dict(given)
    function = trace_attention if {"query", "key", "value"} <= given.keys() else trace
    parameters = inspect.signature(function).parameters
    missing = [name for name, one in parameters.items() if one.default is one.empty and name not in given]
    if missing:
        near = {name: nearest(name, [*missing, "query", "key", "value"]) for name in given if name not in parameters}
        renamed = [f"{meant} for {name}" for name, meant in near.items() if meant]
        hint = f"; did you mean {' and '.join(renamed)}?" if renamed else ""
        raise ValueError(
            f"{file} lacks {', '.join(missing)}: it needs x, w_query, w_key and w_value, or query, key and value; "
            f"it has {', '.join(given) or 'nothing'}{hint}"
        )
    unused = [name for name in given if name not in parameters]
    for name in {*unused} - {field.name for field in dataclasses.fields(Trace)}:  # results may stand in the file
        meant = nearest(name, [known for known in parameters if known not in given])
        if meant:
            raise ValueError(f"{file}: {name} is not used; did you mean {meant}?")
    if np.asarray(given.get("attn_mask")).dtype.kind == "i" and file.endswith(".json"):
        raise ValueError(
            f"{file}: attn_mask holds integers; write true (attend) and false, or numbers with a decimal point, which "
            "are added to the scores"
        )
    if unused:
        print(f"{file}: not used: {', '.join(unused)}", file=sys.stderr)
    traced: Trace = function(**{name: x for name, x in given.items() if name in parameters})
    return traced


def _read(file: str) -> Mapping[str, Any]:
    """Read names and values; scalars become Python's own numbers and strings."""
    if file.endswith(".npz"):
        arrays = io.load(file)
        return {name: x.tolist() if x.dtype.kind in "US" or x.ndim == 0 else x for name, x in arrays.items()}
    if not file.endswith(".json"):
        raise ValueError(f"{file} has an unknown ending: it must be .npz or .json")
    return read_object(file)

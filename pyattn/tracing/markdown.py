"""A trace as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyattn.tracing.data import Step, Trace
from pyattn.tracing.digits import cut, part_of
from pyattn.tracing.text import labels_of

__all__ = ["step_markdown", "to_markdown"]

Array = npt.NDArray[np.float64]


def to_markdown(trace: Trace) -> str:
    """Write a trace as Markdown: a heading for each step, a table for each matrix.

    Parameters
    ----------
    trace : Trace
        Of any kind.

    Returns
    -------
    str
        Large matrices are shown by their first and last rows and columns.
    """
    return "\n\n".join(step_markdown(step, trace) for step in trace.steps) + "\n"


def step_markdown(step: Step, trace: Trace) -> str:
    """Write a step as Markdown.

    Parameters
    ----------
    step : Step
        Any.
    trace : Trace
        Whose tokens name rows and columns.

    Returns
    -------
    str
        A heading, and a table for each matrix.
    """
    blocks = [f"## Step {step.number}: {_escaped(step.title)}"]
    if step.formula:
        blocks.append(f"```\n{step.formula}\n```")
    if step.note:
        blocks.append("  \n".join(map(_escaped, step.note.splitlines())))
    for name, array in step.arrays.items():
        blocks.append(f"**{_escaped(name)}**, {array.shape[0]} x {array.shape[1]}")
        blocks.append(_table(array, *labels_of(trace, name, 0 if step.number in (4, 5, 6, 7) else None)))
    return "\n\n".join(blocks)


def _table(matrix: Array, rows: Sequence[str] | None, columns: Sequence[str] | None) -> str:
    """Write a table; where rows and columns have no names they have numbers, because Markdown needs a head."""
    part = part_of(matrix)
    heads = [_label(columns, n) for n in part.columns.indices]
    lines = [["", *heads], ["---"] + ["---:"] * len(heads)]
    for n, texts in zip(part.rows.indices, part.texts, strict=True):
        lines.append([f"**{_label(rows, n)}**", *texts])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _label(names: Sequence[str] | None, n: int) -> str:
    if n < 0:
        return "..."
    return str(n + 1) if names is None else _escaped(cut(names[n]))


def _escaped(text: str) -> str:
    """Keep a token from being Markdown or HTML."""
    return re.sub(r"([\\`*_\[\]<>&|#~$])", r"\\\1", text)

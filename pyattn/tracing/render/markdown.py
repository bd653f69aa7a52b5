"""Write the steps of a trace as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pyattn.tracing.render.steps import TraceStep
from pyattn.tracing.render.text import cut, part_of

__all__ = ["steps_markdown"]

Array = npt.NDArray[np.float64]


def steps_markdown(steps: Iterable[TraceStep], word: str = "Step") -> str:
    """Write a heading for each step, which begins with the word, and a table for each of its arrays."""
    return "\n\n".join(_step(step, word) for step in steps) + "\n"


def _step(step: TraceStep, word: str) -> str:
    blocks = [f"## {word} {step.number}: {_escaped(step.title)}"]
    if step.formula:
        blocks.append(f"```\n{step.formula}\n```")
    if step.note:
        blocks.append("  \n".join(map(_escaped, step.note.splitlines())))
    for name, array in step.arrays.items():
        blocks += [f"**{_escaped(name)}**, {array.shape[0]} x {array.shape[1]}", _table(array, *step.labels[name])]
    return "\n\n".join(blocks)


def _table(matrix: Array, row_tokens: Sequence[str] | None, column_tokens: Sequence[str] | None) -> str:
    """Write a table; rows and columns without tokens are numbered, as Markdown tables need a header."""
    texts, rows, columns = part_of(matrix)
    table = [["", *(_label(column_tokens, n) for n in columns)], ["---"] + ["---:"] * len(columns)]
    table += [[f"**{_label(row_tokens, n)}**", *cells] for n, cells in zip(rows, texts, strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def _label(tokens: Sequence[str] | None, n: int) -> str:
    if n < 0:
        return "..."
    return str(n + 1) if tokens is None else _escaped(cut(tokens[n]))


def _escaped(text: str) -> str:
    """Escape what Markdown or HTML would read as markup."""
    return re.sub(r"([\\`*_\[\]<>&|#~$])", r"\\\1", text)

"""A matrix as a table of HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pyattn.tracing.render.steps import Labels
from pyattn.tracing.render.text import MAX_SHOWN, cut, part_of

__all__ = ["OPACITY", "table_of"]

Array = npt.NDArray[np.float64]
OPACITY = 0.8  # of the largest weight: text on it is still legible


def table_of(
    array: Array, labels: Labels, attributes: str = "", *, top: float | None = None, most: int = MAX_SHOWN
) -> str:
    """Write a table, or its edges if it is large; with top, numbers are shaded in proportion to it."""
    row_tokens, column_tokens = labels
    texts, rows, columns = part_of(array, most)
    for axis, indices in (("rows", rows), ("cols", columns)):
        if -1 in indices:  # the script must know which are shown; -1 is the gap
            attributes += f' data-{axis}="{" ".join(map(str, indices))}"'
    head = ""
    if column_tokens is not None:
        corner = "" if row_tokens is None else "<th></th>"
        head = f"<thead><tr>{corner}{''.join(_head(column_tokens, j) for j in columns)}</tr></thead>"
    lines = []
    for i, row in zip(rows, texts, strict=True):
        cells = ["" if row_tokens is None else _head(row_tokens, i)]
        for j, text in zip(columns, row, strict=True):
            if i < 0 or j < 0:
                cells.append('<td class="pa-gap">...</td>')
            elif top is None:
                cells.append(f"<td>{text}</td>")
            else:
                share = float(np.nan_to_num(array[i, j])) / (top or 1.0)
                cells.append(f'<td style="--w:{OPACITY * share:.2g}">{text}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table{attributes}>{head}<tbody>{''.join(lines)}</tbody></table>"


def _head(tokens: Sequence[str], n: int) -> str:
    return "<th>...</th>" if n < 0 else f"<th>{html.escape(cut(tokens[n]))}</th>"

"""Format numbers, tokens and matrices as plain text, aligned for a terminal."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_SHOWN", "cut", "factor_text", "matrix_lines", "number_text", "part_of", "vector_text", "width_of"]

Array = npt.NDArray[np.float64]
MAX_SHOWN = 12  # rows or columns; larger matrices show the first 6 and the last 3

_DECIMALS = 4
_TINY, _HUGE = 0.5 * 10**-_DECIMALS, 1e7  # numbers outside this range have an exponent
_VECTOR = 8  # numbers shown of a vector


def number_text(x: float, decimals: int | None = None) -> str:
    """Format a number with the given decimals, or up to 4 as needed; only an exact 0 becomes '0'."""
    if not math.isfinite(x):
        return str(float(x))
    if x == 0:
        return "0"
    if not _TINY <= abs(x) < _HUGE:
        return f"{x:.1e}" if abs(x) < _TINY else f"{x:.4g}"
    return f"{x:.{_decimals_of(np.array([x])) if decimals is None else decimals}f}"


def factor_text(x: float) -> str:
    """Format a factor of a product, a negative one in brackets."""
    return f"({number_text(x)})" if x < 0 else number_text(x)


def _decimals_of(numbers: Array) -> int:
    """Return the number of decimals, up to 4, that shows all numbers without an exponent exactly."""
    usual = numbers[np.isfinite(numbers) & (np.abs(numbers) < _HUGE) & ((numbers == 0) | (np.abs(numbers) >= _TINY))]
    for decimals in range(_DECIMALS):
        if np.array_equal(np.round(usual, decimals), usual):
            return decimals
    return _DECIMALS


def vector_text(vector: Array) -> str:
    """Format a vector as [1, 0, 2]; long vectors are cut off."""
    texts = [number_text(x) for x in vector[:_VECTOR].tolist()]
    return f"[{', '.join(texts + ['...'] * (len(vector) > _VECTOR))}]"


def part_of(matrix: Array, most: int = MAX_SHOWN) -> tuple[list[list[str]], list[int], list[int]]:
    """Format the first and last rows and columns; return the texts and the shown indices, with -1 for a gap."""
    rows, columns = (
        [*range(count)] if count <= most else [*range(most // 2), -1, *range(count - most // 4, count)]
        for count in matrix.shape
    )
    shown = matrix[np.ix_([i for i in rows if i >= 0], [j for j in columns if j >= 0])]
    decimals = _decimals_of(shown)
    texts = [[number_text(x, decimals) for x in row] for row in shown.tolist()]
    if -1 in columns:
        for row in texts:
            row.insert(columns.index(-1), "...")
    if -1 in rows:
        texts.insert(rows.index(-1), ["..."] * len(columns))
    return texts, rows, columns


def matrix_lines(matrix: Array, rows: Sequence[str] | None = None, columns: Sequence[str] | None = None) -> list[str]:
    """Format a matrix as lines, one per row, with optional tokens for rows and columns."""
    table, shown_rows, shown_columns = part_of(matrix)
    labels = None if rows is None else _labels(rows, shown_rows)
    if columns is not None:
        table = [_labels(columns, shown_columns), *table]
        labels = None if labels is None else ["", *labels]
    widths = [max(map(width_of, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(map(_pad, row, widths)) for row in table]
    if labels is None:
        return lines
    wide = max(map(width_of, labels))
    return [label + " " * (wide - width_of(label)) + "  " + line for label, line in zip(labels, lines, strict=True)]


def _labels(tokens: Sequence[str], shown: Sequence[int]) -> list[str]:
    return ["..." if n < 0 else cut(tokens[n]) for n in shown]


def _pad(text: str, width: int) -> str:
    return " " * (width - width_of(text)) + text


def width_of(text: str) -> int:
    """Return the width of a line in a terminal: 2 for Chinese characters, 0 for combining marks."""
    none = ("Mn", "Me", "Cf")
    return sum(
        0 if unicodedata.category(c) in none else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def cut(token: str, width: int = 16) -> str:
    """Shorten a token to a label; line breaks and other characters that do not print become escapes."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    if width_of(text) <= width:
        return text
    kept = ""
    for c in text:
        if width_of(kept + c) > width - 1:
            break
        kept += c
    return kept + "\N{HORIZONTAL ELLIPSIS}"

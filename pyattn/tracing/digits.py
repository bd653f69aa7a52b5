"""Numbers and names as text: as few digits as they need, four decimals at most, and as wide as they print."""

from __future__ import annotations

import math
import unicodedata
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Part", "Shown", "cut", "matrix_texts", "number_text", "pad", "part_of", "shown", "vector_text", "width_of"]

Array = npt.NDArray[np.float64]
_DECIMALS = 4
_TINY, _HUGE = 0.5 * 10**-_DECIMALS, 1e7  # beyond these a number has an exponent
_MOST_OF_VECTOR = 8


def _decimals_of(numbers: Array) -> int:
    """As many as all numbers of usual size need, so that their points stand below one another."""
    usual = numbers[np.isfinite(numbers) & (np.abs(numbers) < _HUGE) & ((numbers == 0) | (np.abs(numbers) >= _TINY))]
    for decimals in range(_DECIMALS):
        if np.array_equal(np.round(usual, decimals), usual):
            return decimals
    return _DECIMALS


def number_text(x: float, decimals: int | None = None) -> str:
    """Write a number.

    Parameters
    ----------
    x : float
        Any.
    decimals : int, optional
        Default: as many as it needs, four at most.

    Returns
    -------
    str
        An exact 0 is '0': unlike '0.0000' it is not a small number that was rounded.
    """
    if not math.isfinite(x):
        return str(float(x))
    if x == 0:
        return "0"
    if not _TINY <= abs(x) < _HUGE:
        return f"{x:.1e}" if abs(x) < _TINY else f"{x:.4g}"
    return f"{x:.{_decimals_of(np.array([x])) if decimals is None else decimals}f}"


def matrix_texts(matrix: Array) -> list[list[str]]:
    """Write the numbers of a matrix with one number of decimals.

    Parameters
    ----------
    matrix : ndarray, (rows, columns)
        Any numbers.

    Returns
    -------
    list of list of str
        Not padded.
    """
    decimals = _decimals_of(matrix)
    return [[number_text(x, decimals) for x in row] for row in matrix.tolist()]


def vector_text(vector: Array) -> str:
    """Write a vector on one line.

    Parameters
    ----------
    vector : ndarray, (n,)
        Any numbers.

    Returns
    -------
    str
        '[1, 0, 2]'; a long one by its first numbers.
    """
    texts = [number_text(x) for x in vector[:_MOST_OF_VECTOR].tolist()]
    return f"[{', '.join(texts + ['...'] * (len(vector) > _MOST_OF_VECTOR))}]"


class Shown(NamedTuple):
    """Which rows or columns of a large matrix are shown: -1 stands for those left out.

    Attributes
    ----------
    indices : list of int
        Ascending but for the -1.
    total : int
        How many there are.
    """

    indices: list[int]
    total: int


def shown(count: int, most: int, first: int, last: int) -> Shown:
    """Choose rows or columns.

    Parameters
    ----------
    count : int
        How many there are.
    most : int
        Up to so many, all are shown.
    first : int
        Else the first ones,
    last : int
        and the last ones.

    Returns
    -------
    Shown
        With one gap at most.
    """
    if count <= most:
        return Shown(list(range(count)), count)
    return Shown([*range(first), -1, *range(count - last, count)], count)


class Part(NamedTuple):
    """What is shown of a matrix.

    Attributes
    ----------
    texts : list of list of str
        Numbers, and an ellipsis where some are left out.
    rows : Shown
        Which rows.
    columns : Shown
        Which columns.
    """

    texts: list[list[str]]
    rows: Shown
    columns: Shown


def part_of(matrix: Array, most: int = 12, first: int = 6, last: int = 3) -> Part:
    """Write what is to be shown of a matrix.

    Parameters
    ----------
    matrix : ndarray, (rows, columns)
        Of any size.
    most : int
        More rows or columns are not shown. Default: 12.
    first : int
        Of more, so many first ones are. Default: 6.
    last : int
        And so many last ones. Default: 3.

    Returns
    -------
    Part
        Its time does not grow with the matrix.
    """
    rows, columns = (shown(count, most, first, last) for count in matrix.shape)
    kept = [[n for n in axis.indices if n >= 0] for axis in (rows, columns)]
    texts = matrix_texts(np.asarray(matrix[np.ix_(*kept)]))
    if -1 in columns.indices:
        for row in texts:
            row.insert(columns.indices.index(-1), "...")
    if -1 in rows.indices:
        texts.insert(rows.indices.index(-1), ["..."] * len(columns.indices))
    return Part(texts, rows, columns)


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: Chinese characters two, combining marks none.

    Parameters
    ----------
    text : str
        Of one line.

    Returns
    -------
    int
    """
    none = ("Mn", "Me", "Cf")
    return sum(
        0 if unicodedata.category(c) in none else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def pad(text: str, width: int, left: bool = False) -> str:
    """Fill a text up with spaces.

    Parameters
    ----------
    text : str
        Of one line.
    width : int
        What it shall take, as `width_of` counts.
    left : bool
        The text stands on the left, not on the right. Default: False.

    Returns
    -------
    str
    """
    spaces = " " * (width - width_of(text))
    return text + spaces if left else spaces + text


def cut(token: str, width: int = 16) -> str:
    """Make a token fit into a label.

    Parameters
    ----------
    token : str
        Of any length, with any characters.
    width : int
        What it may take, as `width_of` counts. Default: 16.

    Returns
    -------
    str
        Line breaks and the like are written as escapes; what is too long ends in an ellipsis.
    """
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in token)
    if width_of(text) <= width:
        return text
    kept = ""
    for c in text:
        if width_of(kept + c) > width - 1:
            break
        kept += c
    return kept + "\N{HORIZONTAL ELLIPSIS}"

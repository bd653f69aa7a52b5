"""Numbers in cells: short, and only as large as the cell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.text import Text

from pyattn.plot.looks import contrasting
from pyattn.plot.reading import Array

__all__ = ["as_text", "write_numbers"]

_LEAST_SIZE, _MOST_SIZE = 5.5, 11.0
"""Of letters in points: what can be read, and what is large enough."""


def as_text(array: Array) -> list[list[str]]:
    """Write the numbers of a matrix: whole ones as such if all are, or else with two digits after the point.

    Parameters
    ----------
    array : ndarray, (rows, columns)
        Real numbers.

    Returns
    -------
    list of list of str
    """
    finite = array[np.isfinite(array)]
    largest = np.abs(finite).max(initial=0)
    if largest >= 1e5:
        pattern = "{:.1e}"
    elif np.all(finite == np.round(finite)):
        pattern = "{:.0f}"
    else:
        pattern = "{:.2f}" if largest < 100 else "{:.1f}"
    return [[_one_text(x, pattern) for x in row] for row in array.tolist()]


def _one_text(x: float, pattern: str) -> str:
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "\N{MINUS SIGN}∞"
    text = pattern.format(x)
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else pattern.format(0)


def write_numbers(image: AxesImage, array: Array, *, always: bool) -> None:
    """Write numbers into the cells of a heat map, in black or white.

    Parameters
    ----------
    image : AxesImage
        The map.
    array : ndarray, (rows, columns)
        Its numbers.
    always : bool
        Whether to do so where they are too small to be read.
    """
    ax = image.axes
    figure = ax.figure.canvas.figure
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # the axes take the size in which they will be drawn
    texts = as_text(array)
    cells = array.shape, max(len(text) for row in texts for text in row)
    if _size_in(ax, *cells) < _LEAST_SIZE and not always:
        return
    colours = image.to_rgba(image.get_array())
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            ground = contrasting(tuple(colours[i, j])) if math.isfinite(array[i, j]) else _on_ground(image)
            ax.add_artist(_Number(j, i, text, cells, always, ha="center", va="center", color=ground, in_layout=False))


def _size_in(ax: Axes, shape: tuple[int, ...], letters: int) -> float:
    """Of so many letters in a cell of the axes' present size, in points."""
    height, width = (
        side * 72 / ax.figure.dpi / n for side, n in zip((ax.bbox.height, ax.bbox.width), shape, strict=True)
    )
    return float(min(0.5 * height, 0.85 * width / (0.65 * letters), _MOST_SIZE))


class _Number(Text):  # type: ignore[misc] # matplotlib is skipped, pyproject.toml
    """As large as its cell lets it be whenever it is drawn: other axes, or the window, may have taken room since."""

    def __init__(
        self, x: int, y: int, text: str, cells: tuple[tuple[int, ...], int], always: bool, **style: Any
    ) -> None:
        super().__init__(x, y, text, **style)
        self._cells = cells
        self._always = always

    def draw(self, renderer: Any) -> None:
        size = _size_in(self.axes, *self._cells)
        if size != self.get_fontsize():
            self.set_fontsize(size)
        if size >= _LEAST_SIZE or self._always:
            super().draw(renderer)


def _on_ground(image: AxesImage) -> str:
    """Of a cell that is left empty."""
    return contrasting(image.axes.get_facecolor())

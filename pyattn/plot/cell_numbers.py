"""Numbers in the cells of a heat map: formatted, and as large as the cells allow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.text import Text

from pyattn.plot.inputs import Array
from pyattn.plot.theme import contrasting

__all__ = ["format_matrix", "write_numbers"]

_MIN_SIZE, _MAX_SIZE = 5.5, 11.0
"""Font sizes in points: the smallest that can be read, and the largest in use."""


def format_matrix(array: Array) -> list[list[str]]:
    """Format a matrix: integers, or two decimals, or fewer for large numbers; what would be 0.00 is left empty."""
    finite = array[np.isfinite(array)]
    largest = np.abs(finite).max(initial=0)
    if largest >= 1e5:
        pattern = "{:.1e}"
    elif np.all(finite == np.round(finite)):
        pattern = "{:.0f}"
    else:
        pattern = "{:.2f}" if largest < 100 else "{:.1f}"
    return [[_format_number(x, pattern) for x in row] for row in array.tolist()]


def _format_number(x: float, pattern: str) -> str:
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "∞" if x > 0 else "\N{MINUS SIGN}∞"
    if x == 0:
        return "0"
    text = pattern.format(x)
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else ""


def write_numbers(image: AxesImage, array: Array, *, always: bool) -> None:
    """Write numbers into the cells of a heat map, in black or white; too small ones only if `always`."""
    ax = image.axes
    figure = ax.figure.canvas.figure
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()  # gives the axes their final size
    texts = format_matrix(array)
    cells = array.shape, max(1, *(len(text) for row in texts for text in row))
    if _font_size(ax, *cells) < _MIN_SIZE and not always:
        return
    colours = image.to_rgba(image.get_array())
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            if not text:
                continue
            colour = contrasting(tuple(colours[i, j])) if math.isfinite(array[i, j]) else _colour_on_empty(image)
            ax.add_artist(_Number(j, i, text, cells, always, ha="center", va="center", color=colour, in_layout=False))


def _font_size(ax: Axes, shape: tuple[int, ...], letters: int) -> float:
    """Return the font size, in points, at which this many letters fit into a cell at the axes' present size."""
    height, width = (
        side * 72 / ax.figure.dpi / n for side, n in zip((ax.bbox.height, ax.bbox.width), shape, strict=True)
    )
    return float(min(0.5 * height, 0.85 * width / (0.65 * letters), _MAX_SIZE))


class _Number(Text):
    """A number that fits its size to the cell each time it is drawn: the axes may have been resized since."""

    def __init__(
        self, x: int, y: int, text: str, cells: tuple[tuple[int, ...], int], always: bool, **style: Any
    ) -> None:
        super().__init__(x, y, text, **style)
        self._cells = cells
        self._always = always

    def draw(self, renderer: Any) -> None:
        size = _font_size(self.axes, *self._cells)
        if size != self.get_fontsize():
            self.set_fontsize(size)
        if size >= _MIN_SIZE or self._always:
            super().draw(renderer)


def _colour_on_empty(image: AxesImage) -> str:
    """Return the colour of text in a cell that is left empty."""
    return contrasting(image.axes.get_facecolor())

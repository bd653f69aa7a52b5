"""Numbers in cells: short, and only as large as the cell."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.image import AxesImage

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
    box = ax.get_window_extent()
    height, width = box.height * 72 / figure.dpi / array.shape[0], box.width * 72 / figure.dpi / array.shape[1]
    texts = as_text(array)
    letters = max(len(text) for row in texts for text in row)
    size = min(0.5 * height, 0.85 * width / (0.65 * letters), _MOST_SIZE)
    if size < _LEAST_SIZE and not always:
        return
    colours = image.to_rgba(image.get_array())
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            ground = contrasting(tuple(colours[i, j])) if math.isfinite(array[i, j]) else _on_ground(image)
            ax.text(j, i, text, ha="center", va="center", fontsize=size, color=ground, clip_on=True, in_layout=False)


def _on_ground(image: AxesImage) -> str:
    """Of a cell that is left empty."""
    return contrasting(image.axes.get_facecolor())

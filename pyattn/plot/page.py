"""A page measured in points, with lines of text and matrices of coloured cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from pyattn.plot.cell_numbers import format_matrix
from pyattn.plot.fonts import Fonts
from pyattn.plot.inputs import Array
from pyattn.plot.theme import PALETTE, Theme, contrasting, sequential_colormap

__all__ = ["ARRAY_LABELS", "NUMBER_SIZE", "MatrixBox", "Page", "fit_matrix", "measure_matrix"]

NUMBER_SIZE = 8.0
"""Font size of numbers in cells, in points."""

_ROW_HEIGHT = 15.0
_MIN_SIDE = 26.0
_MAX_LINES = 16
"""Matrices with more rows or columns are drawn without numbers."""

ARRAY_LABELS = {
    "x": ("inputs", "inputs"),
    "w_key": ("key weights", "keys"),
    "w_query": ("query weights", "queries"),
    "w_value": ("value weights", "values"),
    "b_key": ("key bias", "keys"),
    "b_query": ("query bias", "queries"),
    "b_value": ("value bias", "values"),
    "keys": ("keys", "keys"),
    "queries": ("queries", "queries"),
    "values": ("values", "values"),
    "attn_bias": ("mask", "scores"),
    "scores": ("scores", "scores"),
    "weights": ("attention weights", "scores"),
    "weighted_values": ("weighted values", "weighted_values"),
    "outputs": ("outputs", "outputs"),
}
"""Array of a trace: its caption, and its kind, which is a key of PALETTE."""


class MatrixBox(NamedTuple):
    """A matrix with its size on the page, in points; texts is None if the matrix is too large for numbers."""

    name: str
    array: Array
    width: float
    height: float
    texts: list[list[str]] | None

    @property
    def caption(self) -> str:
        """The text under the matrix: name and shape."""
        label = ARRAY_LABELS.get(self.name, (self.name.replace("_", " "), ""))[0]
        return f"{label} {self.array.shape[0]}×{self.array.shape[1]}"


def measure_matrix(name: str, array: Array, fonts: Fonts, max_size: tuple[float, float]) -> MatrixBox:
    """Compute the size of a matrix on the page."""
    rows, columns = array.shape
    if max(rows, columns) <= _MAX_LINES:
        texts = format_matrix(array)
        widest = max(fonts.width(text, NUMBER_SIZE) for row in texts for text in row)
        width, height = columns * max(widest + 7, 18.0), rows * _ROW_HEIGHT
        if width <= max_size[0] and height <= max_size[1]:
            return MatrixBox(name, array, width, height, texts)
    return MatrixBox(name, array, *fit_matrix(array.shape, max_size, _ROW_HEIGHT / 2), None)


def fit_matrix(shape: tuple[int, int], max_size: tuple[float, float], max_cell: float) -> tuple[float, float]:
    """Compute the size of a matrix with square cells and no numbers; a thin one gets a visible width."""
    rows, columns = shape
    cell = min(max_size[0] / columns, max_size[1] / rows, max_cell)
    return min(max(columns * cell, _MIN_SIDE), max_size[0]), min(max(rows * cell, _MIN_SIDE), max_size[1])


class Page:
    """A page on a figure, with coordinates in points; it shrinks to fit a smaller figure."""

    def __init__(self, figure: Figure | SubFigure, size: tuple[float, float], theme: Theme, fonts: Fonts) -> None:
        self.ax = figure.add_axes((0, 0, 1, 1))
        self.ax.set_axis_off()
        self.ax.set(xlim=(0, size[0]), ylim=(size[1], 0), xticks=[], yticks=[], aspect="equal", anchor="N")
        self.theme = theme
        self.fonts = fonts
        pixels = min(figure.bbox.width / size[0], figure.bbox.height / size[1])
        self.scale = pixels * 72 / figure.dpi

    def write(
        self,
        x: float,
        y: float,
        line: str,
        size: float,
        *,
        colour: str | None = None,
        across: Literal["left", "center", "right"] = "left",
        **font: Any,
    ) -> None:
        """Write a line of text, vertically centred at y."""
        family = [font.pop("family"), *self.fonts.family] if "family" in font else self.fonts.family
        style: dict[str, Any] = {"fontsize": size * self.scale, "fontfamily": family}
        style["color"] = colour or self.theme.foreground
        self.ax.text(x, y, line, ha=across, va="center_baseline", **style, **font)

    def draw(self, x: float, y: float, box: MatrixBox, shown: Sequence[bool] | None = None, axis: int = 0) -> None:
        """Draw a matrix, or some of its rows or columns, with a caption under it."""
        colour = PALETTE.get(ARRAY_LABELS.get(box.name, ("", ""))[1], self.theme.muted)
        filled = np.ones(box.array.shape, bool)
        if shown is not None:
            filled[:] = np.expand_dims(np.asarray(shown), 1 - axis)
        if box.texts is None:
            self._draw_without_numbers(x, y, box, colour, filled)
        else:
            self._draw_with_numbers(x, y, box, colour, filled)
        self.outline(x, y, box.width, box.height, 0.6)
        caption = self.fonts.escape(box.caption)
        self.write(x + box.width / 2, y + box.height + 9, caption, 7.5, across="center", colour=self.theme.muted)

    def mark(self, x: float, y: float, box: MatrixBox, lines: slice, axis: int = 0, dashed: bool = False) -> None:
        """Draw a thick frame around some rows or columns of a matrix."""
        start, stop, _ = lines.indices(box.array.shape[axis])
        if axis == 0:
            pitch = box.height / box.array.shape[0]
            self.outline(x, y + start * pitch, box.width, (stop - start) * pitch, 2.2, dashed)
        else:
            pitch = box.width / box.array.shape[1]
            self.outline(x + start * pitch, y, (stop - start) * pitch, box.height, 2.2, dashed)

    def outline(self, x: float, y: float, width: float, height: float, line: float, dashed: bool = False) -> None:
        """Draw a frame; one of at most 1 point is in the muted colour."""
        colour = self.theme.foreground if line > 1 else self.theme.muted
        edge = {"linewidth": line * self.scale, "edgecolor": colour, "facecolor": "none", "zorder": 2 + line}
        edge |= {"linestyle": (0, (2.2, 1.3)) if dashed else "solid"}
        self.ax.add_artist(Rectangle((x, y), width, height, **edge))  # add_patch would update the data limits

    def _draw_with_numbers(self, x: float, y: float, box: MatrixBox, colour: str, filled: Array) -> None:
        assert box.texts is not None
        rows, columns = box.array.shape
        across, down = box.width / columns, box.height / rows
        line = {"linewidth": 0.8 * self.scale, "edgecolor": self.theme.background}
        for i, row in enumerate(box.texts):
            for j, text in enumerate(row):
                background = colour if filled[i, j] else self.theme.empty
                self.ax.add_patch(Rectangle((x + j * across, y + i * down), across, down, facecolor=background, **line))
                if filled[i, j]:
                    centre = (x + (j + 0.5) * across, y + (i + 0.5) * down)
                    self.write(*centre, text, NUMBER_SIZE, colour=contrasting(background), across="center")

    def _draw_without_numbers(self, x: float, y: float, box: MatrixBox, colour: str, filled: Array) -> None:
        array = np.ma.masked_where(~filled | ~np.isfinite(box.array), box.array)
        finite = box.array[np.isfinite(box.array)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        colormap = sequential_colormap(colour, self.theme).with_extremes(bad=to_rgb(self.theme.empty))
        limits = Normalize(low, high if high > low else low + 1)
        self.draw_image((x, y, box.width, box.height), array, colormap, limits)

    def draw_image(
        self, bounds: tuple[float, float, float, float], array: Array, colormap: Colormap, limits: Normalize
    ) -> None:
        """Draw a matrix as an image, a coloured cell for each number."""
        x, y, width, height = bounds
        extent = (x, x + width, y + height, y)
        image = AxesImage(self.ax, cmap=colormap, norm=limits, extent=extent, origin="upper", interpolation="nearest")
        image.set_data(array)
        self.ax.add_image(image)

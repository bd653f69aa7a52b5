"""A page measured in points, with lines of text and matrices of coloured cells on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from pyattn.plot.lettering import Lettering
from pyattn.plot.looks import PALETTE, Look, contrasting, tint
from pyattn.plot.numbers import as_text
from pyattn.plot.reading import Array

__all__ = ["NUMBER_SIZE", "WORDS", "Canvas", "Cells", "fit_sides", "measure"]

NUMBER_SIZE = 8.0
"""Of numbers in cells, in points."""

_ROW = 15.0
_LEAST_SIDE = 26.0
_MOST_LINES = 16
"""Matrices of more rows or columns are drawn without numbers."""

WORDS = {
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
"""Name of an array of a trace: what it is called in words, and whose colour it has."""


class Cells(NamedTuple):
    """A matrix as it will be drawn, in points; without texts it is too large for numbers."""

    name: str
    array: Array
    width: float
    height: float
    texts: list[list[str]] | None

    @property
    def words(self) -> str:
        """What stands under it."""
        named = WORDS.get(self.name, (self.name.replace("_", " "), ""))[0]
        return f"{named} {self.array.shape[0]}×{self.array.shape[1]}"


def measure(name: str, array: Array, lettering: Lettering, room: tuple[float, float]) -> Cells:
    """Find out how large a matrix will be.

    Parameters
    ----------
    name : str
        Of the array in the trace.
    array : ndarray, (rows, columns)
        Its numbers.
    lettering : Lettering
        How they are written.
    room : (float, float)
        Width and height that are there, in points.

    Returns
    -------
    Cells
    """
    rows, columns = array.shape
    if max(rows, columns) <= _MOST_LINES:
        texts = as_text(array)
        widest = max(lettering.width(text, NUMBER_SIZE) for row in texts for text in row)
        width, height = columns * max(widest + 7, 18.0), rows * _ROW
        if width <= room[0] and height <= room[1]:
            return Cells(name, array, width, height, texts)
    return Cells(name, array, *fit_sides(array.shape, room, _ROW / 2), None)


def fit_sides(shape: tuple[int, int], room: tuple[float, float], most: float) -> tuple[float, float]:
    """Find out how large a matrix without numbers will be: cells are square, unless it would be too thin to be seen.

    Parameters
    ----------
    shape : (int, int)
        Rows and columns.
    room : (float, float)
        Width and height that are there, in points.
    most : float
        The side of a cell where there is room, in points.

    Returns
    -------
    (float, float)
        Width and height, in points.
    """
    rows, columns = shape
    fit = min(room[0] / columns, room[1] / rows, most)
    return min(max(columns * fit, _LEAST_SIDE), room[0]), min(max(rows * fit, _LEAST_SIDE), room[1])


class Canvas:
    """An axes over a whole figure whose unit is a point, or less where the figure is smaller than the page.

    Parameters
    ----------
    figure : Figure or SubFigure
        To draw on.
    size : (float, float)
        Width and height of the page, in points.
    look : Look
        Its colours.
    lettering : Lettering
        Its fonts.
    """

    def __init__(self, figure: Figure | SubFigure, size: tuple[float, float], look: Look, lettering: Lettering) -> None:
        self.ax = figure.add_axes((0, 0, 1, 1))
        self.ax.set_axis_off()
        self.ax.set(xlim=(0, size[0]), ylim=(size[1], 0), xticks=[], yticks=[], aspect="equal", anchor="N")
        self.look = look
        self.lettering = lettering
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
        """Write a line, y being its middle; `font` are more of matplotlib's arguments of a text.

        Parameters
        ----------
        x, y : float
            Where, in points.
        line : str
            As the lettering gave it.
        size : float
            Of the letters, in points.
        colour : str, optional
            Default: None, the ink of the page.
        across : {'left', 'center', 'right'}
            What of the line x is. Default: 'left'.
        """
        family = [font.pop("family"), *self.lettering.family] if "family" in font else self.lettering.family
        style: dict[str, Any] = {"fontsize": size * self.scale, "color": colour or self.look.ink, "fontfamily": family}
        self.ax.text(x, y, line, ha=across, va="center_baseline", **style, **font)

    def draw(self, x: float, y: float, cells: Cells, shown: Sequence[bool] | None = None, axis: int = 0) -> None:
        """Draw a matrix, all of it or some rows, and its name under it.

        Parameters
        ----------
        x, y : float
            The corner at the upper left, in points.
        cells : Cells
            The matrix.
        shown : sequence of bool, optional
            Which rows to fill; the others are left empty. Default: None, all.
        axis : int
            0: shown names rows; 1: columns. Default: 0.
        """
        colour = PALETTE.get(WORDS.get(cells.name, ("", ""))[1], self.look.faint)
        filled = np.ones(cells.array.shape, bool)
        if shown is not None:
            filled[:] = np.expand_dims(np.asarray(shown), 1 - axis)
        if cells.texts is None:
            self._draw_image(x, y, cells, colour, filled)
        else:
            self._draw_cells(x, y, cells, colour, filled)
        self.outline(x, y, cells.width, cells.height, 0.6)
        words = self.lettering.write(cells.words)
        self.write(x + cells.width / 2, y + cells.height + 9, words, 7.5, across="center", colour=self.look.faint)

    def mark(self, x: float, y: float, cells: Cells, lines: slice, axis: int = 0, dashed: bool = False) -> None:
        """Draw a thick line around some rows of a matrix.

        Parameters
        ----------
        x, y : float
            The corner of the matrix at the upper left, in points.
        cells : Cells
            The matrix.
        lines : slice
            Which rows.
        axis : int
            0: rows; 1: columns. Default: 0.
        dashed : bool
            The line has gaps. Default: False.
        """
        start, stop, _ = lines.indices(cells.array.shape[axis])
        if axis == 0:
            pitch = cells.height / cells.array.shape[0]
            self.outline(x, y + start * pitch, cells.width, (stop - start) * pitch, 2.2, dashed)
        else:
            pitch = cells.width / cells.array.shape[1]
            self.outline(x + start * pitch, y, (stop - start) * pitch, cells.height, 2.2, dashed)

    def outline(self, x: float, y: float, width: float, height: float, line: float, dashed: bool = False) -> None:
        """Draw a frame, faint where it is thin.

        Parameters
        ----------
        x, y : float
            The corner at the upper left, in points.
        width, height : float
            In points.
        line : float
            Its thickness, in points.
        dashed : bool
            The line has gaps. Default: False.
        """
        colour = self.look.ink if line > 1 else self.look.faint
        edge = {"linewidth": line * self.scale, "edgecolor": colour, "facecolor": "none", "zorder": 2 + line}
        edge |= {"linestyle": (0, (2.2, 1.3)) if dashed else "solid"}
        self.ax.add_artist(Rectangle((x, y), width, height, **edge))  # add_patch would find out where the page ends

    def _draw_cells(self, x: float, y: float, cells: Cells, colour: str, filled: Array) -> None:
        assert cells.texts is not None
        rows, columns = cells.array.shape
        across, down = cells.width / columns, cells.height / rows
        line = {"linewidth": 0.8 * self.scale, "edgecolor": self.look.ground}
        for i, row in enumerate(cells.texts):
            for j, text in enumerate(row):
                ground = colour if filled[i, j] else self.look.empty
                self.ax.add_patch(Rectangle((x + j * across, y + i * down), across, down, facecolor=ground, **line))
                if filled[i, j]:
                    place = (x + (j + 0.5) * across, y + (i + 0.5) * down)
                    self.write(*place, text, NUMBER_SIZE, colour=contrasting(ground), across="center")

    def _draw_image(self, x: float, y: float, cells: Cells, colour: str, filled: Array) -> None:
        array = np.ma.masked_where(~filled | ~np.isfinite(cells.array), cells.array)
        finite = cells.array[np.isfinite(cells.array)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        scale = tint(colour, self.look).with_extremes(bad=to_rgb(self.look.empty))
        limits = Normalize(low, high if high > low else low + 1)
        self.paint((x, y, cells.width, cells.height), array, scale, limits)

    def paint(self, place: tuple[float, float, float, float], array: Array, scale: Colormap, limits: Normalize) -> None:
        """Draw a matrix as an image: a cell of colour for each number.

        Parameters
        ----------
        place : (float, float, float, float)
            The corner at the upper left, width and height, in points.
        array : ndarray or masked array, (rows, columns)
            Its numbers.
        scale : Colormap
            Their colours.
        limits : Normalize
            The ends of the scale.
        """
        x, y, width, height = place
        extent = (x, x + width, y + height, y)
        image = AxesImage(self.ax, cmap=scale, norm=limits, extent=extent, origin="upper", interpolation="nearest")
        image.set_data(array)
        self.ax.add_image(image)

"""A page measured in points, with lines of text and matrices of coloured cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path

from pyattn.plot.fonts import Fonts
from pyattn.plot.inputs import Array
from pyattn.plot.theme import PALETTE, Theme, contrasting, sequential_colormap
from pyattn.tracing.render.text import number_text

__all__ = [
    "ARRAY_LABELS",
    "CAPTION_SIZE",
    "LABEL_SIZE",
    "NUMBER_SIZE",
    "Connector",
    "MatrixBox",
    "Page",
    "cell_texts",
    "fit_matrix",
    "label_margin",
    "measure_matrix",
]

NUMBER_SIZE = 8.0
"""Font size of numbers in cells, in points."""

CAPTION_SIZE, LABEL_SIZE = 7.5, 7.5
"""Font sizes of the captions under matrices and of the labels beside their lines."""

_MAX_LABEL_WIDTH = 12

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
    "products": ("products", "scores"),
    "scores": ("scores", "scores"),
    "weights": ("attention weights", "scores"),
    "weighted_values": ("weighted values", "weighted_values"),
    "outputs": ("outputs", "outputs"),
}
"""Array of a trace: its caption, and its kind, which is a key of PALETTE."""


def label_of(name: str) -> tuple[str, str]:
    """Return the caption and the kind of an array; a gradient has its own name, and the kind of its array."""
    if name == "delta":
        return name, "scores"
    if name.startswith("grad_"):
        return name, ARRAY_LABELS.get(name.removeprefix("grad_"), ("", ""))[1]
    return ARRAY_LABELS.get(name, (name.replace("_", " "), ""))


class MatrixBox(NamedTuple):
    """A matrix with its size on the page, in points; texts is None if the matrix is too large for numbers."""

    name: str
    array: Array
    width: float
    height: float
    texts: list[list[str]] | None
    of: str = ""

    @property
    def caption(self) -> str:
        """The text under the matrix: its name, and its shape or the input that it belongs to."""
        if self.of:
            return f"{label_of(self.name)[0]} of {self.of}"
        return f"{label_of(self.name)[0]} {self.array.shape[0]}×{self.array.shape[1]}"


def measure_matrix(name: str, array: Array, fonts: Fonts, max_size: tuple[float, float], of: str = "") -> MatrixBox:
    """Compute the size of a matrix on the page."""
    rows, columns = array.shape
    if max(rows, columns) <= _MAX_LINES:
        texts = cell_texts(array)
        widest = max(fonts.width(text, NUMBER_SIZE) for row in texts for text in row)
        width, height = columns * max(widest + 5, 17.0), rows * _ROW_HEIGHT
        if width <= max_size[0] and height <= max_size[1]:
            return MatrixBox(name, array, width, height, texts, of)
    return MatrixBox(name, array, *fit_matrix(array.shape, max_size, _ROW_HEIGHT / 2), None, of)


def cell_texts(array: Array) -> list[list[str]]:
    """Format each number with the digits that the notes of a trace have."""
    signs = {"inf": "∞", "-inf": "\N{MINUS SIGN}∞", "nan": "NaN"}
    # A tiny number has one digit, as no note names it: 6.0e-06 would widen all cells.
    texts = [[f"{x:.0e}" if 0 < abs(x) < 5e-5 else number_text(x) for x in row] for row in array.tolist()]
    return [[signs.get(text) or text.replace("-", "\N{MINUS SIGN}") for text in row] for row in texts]


def label_margin(labels: Sequence[str], fonts: Fonts) -> float:
    """Return the width of labels at the left of a matrix and their distance from it; 0 without labels."""
    widths = [fonts.width(fonts.escape(text, _MAX_LABEL_WIDTH), LABEL_SIZE) for text in labels]
    return max(widths, default=-5.0) + 5


def fit_matrix(shape: tuple[int, int], max_size: tuple[float, float], max_cell: float) -> tuple[float, float]:
    """Compute the size of a matrix with square cells and no numbers; a thin one gets a visible width."""
    rows, columns = shape
    cell = min(max_size[0] / columns, max_size[1] / rows, max_cell)
    return min(max(columns * cell, _MIN_SIDE), max_size[0]), min(max(rows * cell, _MIN_SIDE), max_size[1])


class Connector(FancyArrowPatch):
    """An arrow from matrices that are read to one that comes of them, through some points of the page."""

    def __init__(
        self, points: Sequence[tuple[float, float]], sources: tuple[str, ...], target: str, **style: Any
    ) -> None:
        super().__init__(path=Path(list(points)), arrowstyle="-|>", shrinkA=0, shrinkB=0, **style)
        self.points, self.sources, self.target = list(points), sources, target


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
        colour = PALETTE.get(label_of(box.name)[1], self.theme.muted)
        filled = np.ones(box.array.shape, bool)
        if shown is not None:
            filled[:] = np.expand_dims(np.asarray(shown), 1 - axis)
        if box.texts is None:
            self._draw_without_numbers(x, y, box, colour, filled)
        else:
            self._draw_with_numbers(x, y, box, colour, filled)
        self.outline(x, y, box.width, box.height, 0.6)
        caption = self.fonts.escape(box.caption)
        self.write(
            x + box.width / 2, y + box.height + 9, caption, CAPTION_SIZE, across="center", colour=self.theme.muted
        )

    def label(self, x: float, y: float, box: MatrixBox, labels: Sequence[str], axis: int = 0) -> None:
        """Write labels at the left of the rows of a matrix, or above its columns, as many as have room."""
        if not labels:
            return
        texts = [self.fonts.escape(text, _MAX_LABEL_WIDTH) for text in labels]
        pitch = (box.height, box.width)[axis] / len(texts)
        needed = 1.3 * LABEL_SIZE if axis == 0 else max(self.fonts.width(text, LABEL_SIZE) for text in texts) + 3
        for at in range(0, len(texts), max(1, math.ceil(needed / pitch))):
            middle = (at + 0.5) * pitch
            if axis == 0:
                self.write(x - 4, y + middle, texts[at], LABEL_SIZE, across="right", colour=self.theme.muted)
            else:
                self.write(x + middle, y - 6, texts[at], LABEL_SIZE, across="center", colour=self.theme.muted)

    def connect(
        self, points: Sequence[tuple[float, float]], sources: tuple[str, ...], target: str, strong: bool = True
    ) -> None:
        """Draw an arrow through some points, from the arrays that are read to the one that comes of them."""
        width, head = (1.3, 8.0) if strong else (0.7, 6.0)
        style: dict[str, Any] = {"linewidth": width * self.scale, "mutation_scale": head * self.scale}
        style |= {"color": self.theme.foreground if strong else self.theme.muted, "zorder": 5 if strong else 1.5}
        self.ax.add_artist(Connector(points, sources, target, joinstyle="miter", **style))

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

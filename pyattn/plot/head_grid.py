"""Maps of all heads of all layers beside and below one another, with tokens along their outer edges."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import Colormap, Normalize

from pyattn.plot.canvas import Canvas, fit_sides
from pyattn.plot.lettering import Lettering
from pyattn.plot.reading import Array

__all__ = ["GridOfHeads", "arrange"]

_TITLE, _NAMES, _GAP = 18.0, 12.0, 8.0
_LETTERS, _LINE = 7.0, 9.5
"""Of tokens in points: their size, and what one of them takes."""

_CELL = 22.0
_ROOMS = range(130, 13, -2)
"""Points that a map may take: the largest at which the page is not too large."""

_BESIDE, _BELOW = 34.0, 16.0
"""From one grid to the next."""


class GridOfHeads:
    """A map for each head: a row of maps for each layer.

    Parameters
    ----------
    title : str
        Written above.
    weights : ndarray, (layers, heads, rows, columns)
        NaN is left empty.
    rows : list of str
        Tokens, as the lettering wrote them.
    columns : list of str or None
        As the rows; None are these, and come with them.
    lettering : Lettering
        How wide they are.
    """

    def __init__(
        self, title: str, weights: Array, rows: list[str], columns: list[str] | None, lettering: Lettering
    ) -> None:
        self.title, self.weights, self.rows = title, weights, rows
        self.columns, self.grows = (rows, True) if columns is None else (columns, False)
        self.widths = [lettering.width(text, _LETTERS) for text in self.columns]
        self.lying = max(self.widths) > 2.5 * _LETTERS  # two digits, or two Chinese characters, stand upright
        self.left = max(lettering.width(text, _LETTERS) for text in rows) + 5 + _NAMES
        self.below = 6 + (max(self.widths) if self.lying else _LINE)
        self.above = _TITLE + _NAMES
        self.side = (0.0, 0.0)

    def fit(self, room: float) -> tuple[float, float]:
        """Make each map as large as this room allows.

        Parameters
        ----------
        room : float
            Width and height of a map at most, in points.

        Returns
        -------
        (float, float)
            Width and height of it all.
        """
        layers, heads, rows, columns = self.weights.shape
        self.side = fit_sides((rows, columns), (room, room), _CELL)
        width, height = (n * (side + _GAP) - _GAP for n, side in zip((heads, layers), self.side, strict=True))
        return self.left + width, self.above + height + self.below

    def draw(
        self,
        canvas: Canvas,
        place: tuple[float, float],
        there: int,
        colours: tuple[Colormap, Normalize],
        *,
        marked: bool,
    ) -> None:
        """Draw the maps, as far as they are there.

        Parameters
        ----------
        canvas : Canvas
            The page.
        place : (float, float)
            The corner at the upper left, in points.
        there : int
            How many rows are filled and named.
        colours : (Colormap, Normalize)
            Of the weights: a scale and its ends.
        marked : bool
            The last row that is there has a frame.
        """
        (x, y), (width, height) = place, self.side
        layers, heads, rows, _ = self.weights.shape
        canvas.write(x + self.left, y + 6, self.title, 9)
        shown = np.where(np.arange(rows)[:, np.newaxis] < there, self.weights, np.nan)
        for layer in range(layers):
            for head in range(heads):
                corner = x + self.left + head * (width + _GAP), y + self.above + layer * (height + _GAP)
                canvas.paint((*corner, width, height), np.ma.masked_invalid(shown[layer, head]), *colours)
                canvas.outline(*corner, width, height, 0.6)
                if marked:
                    pitch = height / rows
                    canvas.outline(corner[0], corner[1] + (there - 1) * pitch, width, pitch, min(1.8, 1 + pitch / 10))
        self._name_heads(canvas, place)
        self._name_tokens(canvas, place, there)

    def _name_heads(self, canvas: Canvas, place: tuple[float, float]) -> None:
        """Above the first maps and beside them, as many as do not touch."""
        layers, heads = self.weights.shape[:2]
        style: dict[str, Any] = {"colour": canvas.look.faint, "across": "center"}
        for word, count, side in (("head", heads, self.side[0]), ("layer", layers, self.side[1])):
            need = canvas.lettering.width(f"{word} {count}", _LETTERS) + 4
            for at in range(0, count, _step(need, side + _GAP)):
                middle = at * (side + _GAP) + side / 2
                if word == "head":
                    where, turned = (place[0] + self.left + middle, place[1] + self.above - 8), 0
                else:
                    where, turned = (place[0] + 4, place[1] + self.above + middle), 90
                canvas.write(*where, f"{word} {at}", _LETTERS, **style, rotation=turned, rotation_mode="anchor")

    def _name_tokens(self, canvas: Canvas, place: tuple[float, float], there: int) -> None:
        """Rows at the left of each layer, columns under the last one."""
        (x, y), (width, height) = place, self.side
        layers, heads, rows, columns = self.weights.shape
        for layer in range(layers):
            top = y + self.above + layer * (height + _GAP)
            for at in range(0, there, _step(_LINE, height / rows)):
                middle = top + (at + 0.5) * height / rows
                canvas.write(x + self.left - 4, middle, self.rows[at], _LETTERS, across="right")
        under = y + self.above + layers * (height + _GAP) - _GAP
        step = _step(_LINE, width / columns) if self.lying else _upright_step(self.widths, width / columns)
        for head in range(heads):
            for at in range(0, there if self.grows else columns, step):
                middle = x + self.left + head * (width + _GAP) + (at + 0.5) * width / columns
                if self.lying:
                    turned: dict[str, Any] = {"across": "right", "rotation": 90, "rotation_mode": "anchor"}
                    canvas.write(middle, under + 4, self.columns[at], _LETTERS, **turned)
                else:
                    canvas.write(middle, under + 4 + _LINE / 2, self.columns[at], _LETTERS, across="center")


def _step(need: float, pitch: float) -> int:
    """Every token, or every second, fifth, tenth ..., so that each has the points that it needs."""
    step: int = next(s * 10**e for e in range(12) for s in (1, 2, 5) if s * 10**e * pitch >= need)
    return step


def _upright_step(widths: list[float], pitch: float) -> int:
    """Every token, or every second, fifth, tenth ..., so that neighbours do not touch, nor those of the next head."""
    for step in (s * 10**e for e in range(12) for s in (1, 2, 5)):
        shown = [(at * pitch, widths[at]) for at in range(0, len(widths), step)]
        shown.append((len(widths) * pitch + _GAP, widths[0]))
        if all((one + other) / 2 + 2 <= there - here for (here, one), (there, other) in itertools.pairwise(shown)):
            break
    return int(step)


def arrange(
    grids: Sequence[GridOfHeads], most: tuple[float, float]
) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Put grids beside or below one another, with maps as large as fit.

    Parameters
    ----------
    grids : sequence of GridOfHeads
        They are made to fit.
    most : (float, float)
        Width and height that are there; maps of too many heads take more.

    Returns
    -------
    places : list of (float, float)
        Their corners at the upper left.
    size : (float, float)
        Width and height that are taken.
    """
    for room in _ROOMS:
        sizes = [grid.fit(room) for grid in grids]
        widths, heights = zip(*sizes, strict=True)
        beside = sum(widths) + _BESIDE * (len(grids) - 1), max(heights)
        below = max(widths), sum(heights) + _BELOW * (len(grids) - 1)
        if beside[0] <= most[0] and beside[1] <= most[1]:
            break
        if below[0] <= most[0] and below[1] <= most[1]:
            return _corners(heights, _BELOW, 1), below
    return _corners(widths, _BESIDE, 0), beside


def _corners(sides: Sequence[float], gap: float, axis: int) -> list[tuple[float, float]]:
    starts = [math.fsum(sides[:at]) + at * gap for at in range(len(sides))]
    return [(start, 0.0) if axis == 0 else (0.0, start) for start in starts]

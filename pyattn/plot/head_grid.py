"""A grid of heat maps: a row for each layer, a column for each head, with tokens along the outer edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import Colormap, Normalize

from pyattn.plot.fonts import Fonts
from pyattn.plot.inputs import Array
from pyattn.plot.page import Page

__all__ = ["HeadGrid", "arrange_grids"]

_TITLE, _NOTE, _NAMES, _GAP = 16.0, 12.0, 13.0, 8.0
_FONT_SIZE, _LINE_HEIGHT = 8.0, 10.5
"""Font size and line height of tokens, in points."""

_CELL, _MAX_CELL = 22.0, 44.0
"""Sides of a large cell; its width may grow to the second number, so that its token is not rotated."""

_MAX_STEP = 5
"""With more tokens from one label to the next, tokens are counted instead."""

_OVERHANG = 3.0
"""Points by which a label may exceed its cell at either side, where other cells have none."""

_MAP_SIZES = range(200, 13, -2)
"""Sides of a map in points; the largest one with which the grids fit is used."""

_COLUMN_GAP, _ROW_GAP = 30.0, 16.0
"""Between grids side by side, and between grids below one another."""


class HeadGrid:
    """A grid with a heat map for each head of each layer; NaN cells stay empty."""

    def __init__(
        self,
        title: str,
        kinds: tuple[str, str],
        weights: Array,
        rows: list[str],
        columns: list[str] | None,
        fonts: Fonts,
    ) -> None:
        self.title, self.kinds, self.weights, self.rows, self.fonts = title, kinds, weights, rows, fonts
        # Without columns, the tokens of the rows are written, as many as rows are shown.
        self.columns, self.columns_follow_rows = (rows, True) if columns is None else (columns, False)
        self.widths = [fonts.width(text, _FONT_SIZE) for text in self.columns]
        self.above = _TITLE + _NOTE + _NAMES
        self.side = (0.0, 0.0)
        self.row_step = self.column_step = 1
        self.rotated: list[bool] = []
        self.left = self.below = 0.0

    def fit(self, map_size: float) -> tuple[float, float]:
        """Set the largest width and height of a map, in points; return the width and height of the grid."""
        layers, heads, rows, columns = self.weights.shape
        cell = min(map_size / columns, max(_CELL, min(max(self.widths) + 4, _MAX_CELL))), min(map_size / rows, _CELL)
        self.side = max(columns * cell[0], 26.0), max(rows * cell[1], 26.0)
        width, height = (n * (side + _GAP) - _GAP for n, side in zip((heads, layers), self.side, strict=True))
        self._fit_labels(self.side[0] / columns, self.side[1] / rows)
        return max(
            self.left + width, self.left + self.fonts.width(self.note, _FONT_SIZE)
        ), self.above + height + self.below

    def _fit_labels(self, pitch: float, row_pitch: float) -> None:
        """Choose which tokens are written at these widths and heights of a cell, and which of them are rotated."""
        self.row_step, self.column_step = _label_step(_LINE_HEIGHT, row_pitch), _label_step(_LINE_HEIGHT, pitch)
        room = pitch - 1 if self.column_step == 1 else min(pitch + 2 * _OVERHANG, self.column_step * pitch - 2)
        self.rotated = [width > room for width in self.widths]
        turned = [width for width, rotated in zip(self.widths, self.rotated, strict=True) if rotated]
        self.below = 6.0 + (max([_LINE_HEIGHT, *turned]) if self.column_step <= _MAX_STEP else 0.0)
        widest = max(self.fonts.width(text, _FONT_SIZE) for text in self.rows)
        self.left = _NAMES + (widest + 5 if self.row_step <= _MAX_STEP else 3.0)

    @property
    def note(self) -> str:
        """The line under the title: the meaning of rows and columns, with their number where tokens are not written."""
        _, _, rows, columns = self.weights.shape
        counts = (rows if self.row_step > _MAX_STEP else 0), (columns if self.column_step > _MAX_STEP else 0)
        row, column = (f"{count} {kind}" if count else kind for count, kind in zip(counts, self.kinds, strict=True))
        return f"rows: {row}; columns: {column}"

    def draw(
        self,
        page: Page,
        place: tuple[float, float],
        shown_rows: int,
        colours: tuple[Colormap, Normalize],
        *,
        marked: bool,
    ) -> None:
        """Draw the first rows of each map."""
        (x, y), (width, height) = place, self.side
        layers, heads, rows, _ = self.weights.shape
        page.write(x + self.left, y + 6, self.title, 10, weight=self.fonts.bold)
        page.write(x + self.left, y + _TITLE + 4, self.note, _FONT_SIZE, colour=page.theme.muted)
        shown = np.where(np.arange(rows)[:, np.newaxis] < shown_rows, self.weights, np.nan)
        for layer in range(layers):
            for head in range(heads):
                corner = x + self.left + head * (width + _GAP), y + self.above + layer * (height + _GAP)
                page.draw_image((*corner, width, height), np.ma.masked_invalid(shown[layer, head]), *colours)
                page.outline(*corner, width, height, 0.6)
                if marked:
                    pitch = height / rows
                    page.outline(
                        corner[0], corner[1] + (shown_rows - 1) * pitch, width, pitch, min(1.8, 1 + pitch / 10)
                    )
        self._label_heads(page, place)
        self._label_tokens(page, place, shown_rows)

    def _label_heads(self, page: Page, place: tuple[float, float]) -> None:
        """Write head numbers above the maps and layer numbers at the left, skipping labels that would touch."""
        layers, heads = self.weights.shape[:2]
        style: dict[str, Any] = {"colour": page.theme.muted, "across": "center"}
        for word, count, side in (("head", heads, self.side[0]), ("layer", layers, self.side[1])):
            size = page.fonts.width(f"{word} {count}", _FONT_SIZE) + 4
            for at in range(0, count, _label_step(size, side + _GAP)):
                middle = at * (side + _GAP) + side / 2
                if word == "head":
                    position, angle = (place[0] + self.left + middle, place[1] + self.above - 8), 0
                else:
                    position, angle = (place[0] + 4, place[1] + self.above + middle), 90
                page.write(*position, f"{word} {at}", _FONT_SIZE, **style, rotation=angle, rotation_mode="anchor")

    def _label_tokens(self, page: Page, place: tuple[float, float], shown_rows: int) -> None:
        """Write the tokens of the rows at the left of each layer, those of the columns under the last layer."""
        (x, y), (width, height) = place, self.side
        layers, heads, rows, columns = self.weights.shape
        for layer in range(layers if self.row_step <= _MAX_STEP else 0):
            top = y + self.above + layer * (height + _GAP)
            for at in range(0, shown_rows, self.row_step):
                middle = top + (at + 0.5) * height / rows
                page.write(x + self.left - 4, middle, self.rows[at], _FONT_SIZE, across="right")
        if self.column_step > _MAX_STEP:
            return
        under = y + self.above + layers * (height + _GAP) - _GAP
        for head in range(heads):
            for at in range(0, shown_rows if self.columns_follow_rows else columns, self.column_step):
                middle = x + self.left + head * (width + _GAP) + (at + 0.5) * width / columns
                if self.rotated[at]:
                    options: dict[str, Any] = {"across": "right", "rotation": 90, "rotation_mode": "anchor"}
                    page.write(middle, under + 4, self.columns[at], _FONT_SIZE, **options)
                else:
                    page.write(middle, under + 4 + _LINE_HEIGHT / 2, self.columns[at], _FONT_SIZE, across="center")


def _label_step(size: float, pitch: float) -> int:
    """Choose how many tokens to step from label to label, 1, 2, 5, 10 ..., so that each label has enough points."""
    step: int = next(s * 10**e for e in range(12) for s in (1, 2, 5) if s * 10**e * pitch >= size)
    return step


def arrange_grids(
    grids: Sequence[HeadGrid], max_size: tuple[float, float]
) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Place grids with the largest maps that fit; return their upper left corners and the size of all."""
    for map_size in _MAP_SIZES:
        sizes = [grid.fit(map_size) for grid in grids]
        widths, heights = zip(*sizes, strict=True)
        beside = sum(widths) + _COLUMN_GAP * (len(grids) - 1), max(heights)
        below = max(widths), sum(heights) + _ROW_GAP * (len(grids) - 1)
        if beside[0] <= max_size[0] and beside[1] <= max_size[1]:
            break
        if below[0] <= max_size[0] and below[1] <= max_size[1]:
            return _stack_corners(heights, _ROW_GAP, 1), below
    return _stack_corners(widths, _COLUMN_GAP, 0), beside


def _stack_corners(sides: Sequence[float], gap: float, axis: int) -> list[tuple[float, float]]:
    starts = [math.fsum(sides[:at]) + at * gap for at in range(len(sides))]
    return [(start, 0.0) if axis == 0 else (0.0, start) for start in starts]

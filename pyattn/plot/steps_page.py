"""The eight steps of a trace on one page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure, SubFigure

from pyattn.plot.fonts import Fonts
from pyattn.plot.inputs import Array
from pyattn.plot.page import CAPTION_SIZE, MatrixBox, Page, label_margin, measure_matrix
from pyattn.plot.theme import figure_theme
from pyattn.plot.trace_arrays import StepLike, TraceArrays, TraceLike, read_steps
from pyattn.tracing.compute import PROJECTED
from pyattn.tracing.render.text import number_text

__all__ = ["MONO", "page_texts", "steps"]

MONO = "DejaVu Sans Mono"
"""Font of formulas; it is installed with matplotlib."""

_MIN_WIDTH, _GAP, _MARGIN = 430.0, 20.0, 18.0
_TITLE_SIZE, _FORMULA_SIZE, _NOTE_SIZE = 12.0, 8.5, 8.5
_MAX_MATRIX_SIZE = (160.0, 130.0)
_MAX_NOTES = 10
_MAX_REPEATS = 2
"""Inputs whose weighted values step 8 shows, after the first input."""

_MIN_INPUTS, _ASIDE = 150.0, 30.0
"""Width that the titles of steps 1 and 2 need, and the distance between these steps."""

_BETWEEN = 14.0
"""Distance between matrices side by side."""


class _Sign(NamedTuple):
    """A sign between two matrices, or an arrow with a word above it."""

    text: str
    arrow: bool = False


class _Placed(NamedTuple):
    """A matrix at its place in a panel, with the labels of its lines."""

    x: float
    y: float
    box: MatrixBox
    labels: list[str]


class _Line(NamedTuple):
    """A line of text at its place in a panel."""

    x: float
    y: float
    text: str
    size: float
    style: dict[str, Any]


class _Arrow(NamedTuple):
    """An arrow from the arrays that are read to the one that comes of them, level at y."""

    x: float
    y: float
    to_x: float
    sources: tuple[str, ...]
    target: str


class _Panel:
    """The contents of one step, with positions from the panel's corner: text, matrices and arrows between them."""

    def __init__(self) -> None:
        self.lines: list[_Line] = []
        self.matrices: list[_Placed] = []
        self.connectors: list[_Arrow] = []
        self.width = self.height = 0.0


def steps(
    trace: TraceLike, figure: Figure | SubFigure | None = None, *, dark: bool | None = None
) -> Figure | SubFigure:
    """Draw the eight steps of a trace on one page, or the steps of its gradients.

    Each step shows what it reads, an arrow, and what comes of it. Step 4 shows the products of the first query with
    every key, whose sums are the scores.

    Parameters
    ----------
    trace : Trace or BackwardTrace
        The result of `pyattn.trace` or of its ``backward``. Matrices too large for numbers are drawn as images.
    figure : Figure or SubFigure, optional
        An empty figure to draw on; the page is scaled to fit. Default: None, a new one as large as the page.
    dark : bool, optional
        Draw in light colours on a dark background. Default: None, by the figure's background.

    Returns
    -------
    Figure or SubFigure

    Raises
    ------
    TypeError
        trace is not the result of `pyattn.trace`.
    ValueError
        One of its arrays does not have one or two axes.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace(x, w_query, w_key, w_value)  # doctest: +SKIP
    >>> pyattn.plot.steps(trace).savefig("steps.png")  # doctest: +SKIP
    """
    trace_steps = read_steps(trace)
    arrays = TraceArrays(trace)
    layout = _Layout(arrays, Fonts(page_texts(arrays.trace, trace_steps)))
    panels = layout.panels(trace_steps)
    width = max(_MIN_WIDTH, *(panel.width for panel in panels))
    # Steps 1 and 2 compute nothing: they stand side by side where they are narrow.
    aside = max(panels[0].width, _MIN_INPUTS) + _ASIDE
    aside = aside if aside + max(panels[1].width, _MIN_INPUTS) <= width and not arrays.grads else 0.0
    for at, (step, panel) in enumerate(zip(trace_steps, panels, strict=True)):
        layout.write(panel, step, width if at > 1 or not aside else (aside - _ASIDE, width - aside)[at])
    places, y = [], _MARGIN
    for at, panel in enumerate(panels):
        if at == 1 and aside:
            places.append((_MARGIN + aside, _MARGIN))
            y = _MARGIN + max(panels[0].height, panel.height) + _GAP
            continue
        places.append((_MARGIN, y))
        y += panel.height + _GAP
    size = (2 * _MARGIN + width, y - _GAP + _MARGIN)
    if figure is None:
        figure = Figure(figsize=(size[0] / 72, size[1] / 72))
    page = Page(figure, size, figure_theme(figure, dark), layout.fonts)
    for panel, place in zip(panels, places, strict=True):
        _draw_panel(page, panel, *place, layout.arrays.axis)
    return figure


def page_texts(trace: TraceLike, trace_steps: Iterable[StepLike]) -> list[str]:
    """Collect all texts on a page of a trace, to choose fonts for them."""
    signs = "×∞@→\N{MINUS SIGN}"  # in shapes and numbers
    texts = (text for step in trace_steps for text in (step.title, step.formula, step.note))
    return [*(trace.tokens or ()), *(getattr(trace, "key_tokens", None) or ()), *texts, signs]


class _Layout:
    """Places the matrices, arrows and lines of each step."""

    def __init__(self, arrays: TraceArrays, fonts: Fonts) -> None:
        self.arrays, self.fonts = arrays, fonts

    def panels(self, trace_steps: Sequence[StepLike]) -> list[_Panel]:
        """Place the matrices of each step, with the corner of the first at the panel's origin."""
        return [self._panel(step) for step in trace_steps]

    def _panel(self, step: StepLike) -> _Panel:
        panel = _Panel()
        for row in self._rows(step):
            self._place(panel, row)
        return panel

    def write(self, panel: _Panel, step: StepLike, width: float) -> None:
        """Write the title and the formula above the matrices, and the notes below."""
        fonts, y = self.fonts, _TITLE_SIZE / 2
        lines: list[_Line] = []
        for line in _wrap_title(fonts.escape(f"{step.number}  {step.title}"), fonts, width):
            lines.append(_Line(0.0, y, line, _TITLE_SIZE, {"weight": fonts.bold}))
            y += 1.4 * _TITLE_SIZE
        for line in fonts.wrap(step.formula, _FORMULA_SIZE, width, MONO):
            lines.append(_Line(0.0, y, line, _FORMULA_SIZE, {"family": MONO}))
            y += 1.5 * _FORMULA_SIZE
        panel.lines = [*lines, *(line._replace(y=line.y + y) for line in panel.lines)]
        panel.matrices = [placed._replace(y=placed.y + y) for placed in panel.matrices]
        panel.connectors = [arrow._replace(y=arrow.y + y) for arrow in panel.connectors]
        y += panel.height
        sums = self.arrays.score_sums(0) if step.number == 4 and not self.arrays.grads else []
        notes = fonts.wrap("\n".join(sums) or step.note, _NOTE_SIZE, 0.97 * width)  # small letters are wider
        for line in notes if len(notes) <= _MAX_NOTES else [*notes[: _MAX_NOTES - 1], "…"]:
            panel.lines.append(_Line(0.0, y + 3, line, _NOTE_SIZE, {"muted": True}))
            y += 1.45 * _NOTE_SIZE
        panel.height = y

    def _rows(self, step: StepLike) -> list[list[MatrixBox | _Sign]]:
        """Choose the matrices of a step in rows: what is read, arrows, and what comes of it."""
        arrays, number = self.arrays, step.number
        results = {name: np.atleast_2d(np.asarray(array, dtype=np.float64)) for name, array in step.arrays.items()}
        made = {name: self._measure(name, array) for name, array in results.items()}
        if arrays.grads:
            rows = [*self._backward_rows(number, made)]
            shown = {id(part) for row in rows for part in row}
            alone: list[MatrixBox | _Sign] = [box for box in made.values() if id(box) not in shown]
            return [*rows, alone] if alone else rows
        if number == 3 and "x" in arrays.whole:
            return [self._projected(made[name], word) for word, name in PROJECTED if name in made]
        if number == 4 and "scores" in made:
            return [self._scored(made)]
        if number == 5 and "weights" in made:
            normalize = str(getattr(arrays.trace, "normalize", "softmax"))
            return [[self._of_query("scores"), _Sign(normalize, True), *made.values()]]
        if number == 6 and "weighted_values" in made:
            read = self._of_query("weights"), _Sign("×"), self._whole("values")
            return [[*read, _Sign("multiply", True), *made.values()]]
        if number == 7 and "outputs" in made:
            weighted = self._measure("weighted_values", arrays.weighted_values(0))
            return [[weighted, _Sign("add", True), *made.values()]]
        if number == 8 and {"scores", "weights", "outputs"} <= made.keys():
            return self._repeated(made)
        return [list(made.values())]

    def _measure(self, name: str, array: Array, of: str = "") -> MatrixBox:
        return measure_matrix(name, array, self.fonts, _MAX_MATRIX_SIZE, of)

    def _whole(self, name: str) -> MatrixBox:
        return self._measure(name, self.arrays.of(name))

    def _of_query(self, name: str, query: int = 0) -> MatrixBox:
        return self._measure(name, self.arrays.of_query(name, query))

    def _projected(self, made: MatrixBox, word: str) -> list[MatrixBox | _Sign]:
        """Return the inputs, a weight with its bias, and the keys, queries or values that come of them."""
        read: list[MatrixBox | _Sign] = [self._whole("x"), _Sign("@"), self._whole(f"w_{word}")]
        if self.arrays.axis == 1:
            read.reverse()
        if f"b_{word}" in self.arrays.whole:
            read += [_Sign("+"), self._whole(f"b_{word}")]
        return [*read, _Sign("", True), made]

    def _scored(self, made: dict[str, MatrixBox]) -> list[MatrixBox | _Sign]:
        """Return one query, the keys, their products and the scores."""
        arrays = self.arrays
        row: list[MatrixBox | _Sign] = [self._of_query("queries"), _Sign("×"), self._whole("keys")]
        add = "add"
        if arrays.has_products:
            row += [_Sign("multiply", True), self._measure("products", arrays.products(0))]
            add = "add" if arrays.scale == 1 else f"add, × {number_text(arrays.scale)}"
        if "attn_bias" in made:
            row += [_Sign("+"), made["attn_bias"]]
        return [*row, _Sign(add if arrays.has_products else "", True), made["scores"]]

    def _repeated(self, made: dict[str, MatrixBox]) -> list[list[MatrixBox | _Sign]]:
        """Return steps 4 to 7 of the other inputs, with their weighted values one by one where these are few."""
        arrays = self.arrays
        normalize = str(getattr(arrays.trace, "normalize", "softmax"))
        read = self._whole("queries"), _Sign("×"), self._whole("keys")
        scored: list[MatrixBox | _Sign] = [
            *read,
            _Sign("", True),
            made["scores"],
            _Sign(normalize, True),
            made["weights"],
        ]
        others = range(1, arrays.queries)
        if not others or len(others) > _MAX_REPEATS or made["scores"].texts is None:
            return [scored, [made["weights"], _Sign("×"), self._whole("values"), _Sign("", True), made["outputs"]]]
        weighted: list[MatrixBox | _Sign] = [
            self._measure("weighted_values", arrays.weighted_values(i), f"input {i + 1}") for i in others
        ]
        return [scored, [*weighted, _Sign("add", True), made["outputs"]]]

    def _backward_rows(self, number: int, made: dict[str, MatrixBox]) -> Iterator[list[MatrixBox | _Sign]]:
        """Choose the matrices of a step backwards in rows, as in its formulas, without results that stand alone."""
        arrays = self.arrays
        word = "" if arrays.scale == 1 else f"× {number_text(arrays.scale)}"
        if number == 7:
            copies = np.repeat(arrays.of_query("grad_outputs", 0), arrays.keys, axis=arrays.axis)
            copied = self._measure("grad_weighted_values", copies)
            yield [self._of_query("grad_outputs"), _Sign("copy", True), copied]
        elif number == 6:
            yield self._product(("weights", True), ("grad_outputs", False), made["grad_values"])
            yield self._product(("grad_outputs", False), ("values", True), made["grad_weights"])
        elif number == 5 and "delta" in made and arrays.trace.normalize == "softmax":
            weights, grads = self._whole("weights"), self._whole("grad_weights")
            yield [weights, _Sign("×"), grads, _Sign("sum", True), made["delta"]]
            differences = _Sign("× ("), grads, _Sign("\N{MINUS SIGN}"), made["delta"], _Sign(")")
            yield [weights, *differences, _Sign("", True), made["grad_scores"]]
        elif number == 4 and arrays.has_products:
            yield self._product(("grad_scores", False), ("keys", False), made["grad_queries"], word)
            yield self._product(("grad_scores", True), ("queries", False), made["grad_keys"], word)
        elif number == 3 and "grad_w_key" in made:
            for name, plural in PROJECTED:
                yield self._product(("x", True), (f"grad_{plural}", False), made[f"grad_w_{name}"])
        elif number == 1 and "grad_x" in made:
            for name, plural in PROJECTED[:2]:
                yield [*self._factors((f"grad_{plural}", False), (f"w_{name}", True)), _Sign("+")]
            yield self._product(("grad_values", False), ("w_value", True), made["grad_x"])

    def _product(
        self, left: tuple[str, bool], right: tuple[str, bool], result: MatrixBox, word: str = ""
    ) -> list[MatrixBox | _Sign]:
        """Return the factors of a matrix product, each with whether it is transposed, and what comes of it."""
        return [*self._factors(left, right), _Sign(word, True), result]

    def _factors(self, left: tuple[str, bool], right: tuple[str, bool]) -> list[MatrixBox | _Sign]:
        """Return two factors and the signs between them; where inputs are columns, their order is reversed."""
        if self.arrays.axis == 1:
            left, right = right, left
        between = _Sign(".T @" if left[1] else "@")
        return [self._whole(left[0]), between, self._whole(right[0]), *([_Sign(".T")] * right[1])]

    def _place(self, panel: _Panel, row: Sequence[MatrixBox | _Sign]) -> None:
        """Place a row of matrices, with the signs and arrows between them, under what the panel has."""
        boxes = [part for part in row if isinstance(part, MatrixBox)]
        above = 12.0 if self.arrays.axis == 1 else 4.0  # for labels of columns
        deepest = max((box.height for box in boxes), default=0.0)
        x, top, last = 0.0, panel.height + above, None
        before: list[str] = []
        read: list[_Placed] = []
        for part in row:
            middle = top + deepest / 2
            if isinstance(part, _Sign) and not part.arrow:
                panel.lines.append(_Line(x + 6, middle, part.text, 11.0, {"across": "center"}))
                x += 12 + _BETWEEN
                before = []
                continue
            if isinstance(part, _Sign):
                last, before = (x, part), []
                x += max(self.fonts.width(part.text, CAPTION_SIZE) + 14, 30.0) + _BETWEEN
                continue
            query = 0 if part.array.shape[self.arrays.axis] == 1 else None
            labels = self.arrays.labels(part.name, query)
            labels = [] if len(labels) != part.array.shape[self.arrays.axis] or labels == before else labels
            margin = label_margin(labels, self.fonts) if self.arrays.axis == 0 else 0.0
            caption = self.fonts.width(self.fonts.escape(part.caption), CAPTION_SIZE)
            left = max(margin, (caption - part.width) / 2)
            placed = _Placed(x + left, top + (deepest - part.height) / 2, part, labels)
            if last is not None:
                self._connect(panel, read, last, (x + left - margin, middle), part.name)
                read, last = [], None
            panel.matrices.append(placed)
            read.append(placed)
            before = self.arrays.labels(part.name, query)
            x += left + max(part.width, (caption + part.width) / 2) + _BETWEEN
        panel.width = max(panel.width, x - _BETWEEN)
        panel.height = top + (deepest + 24 if boxes else 0)

    def _connect(
        self, panel: _Panel, read: list[_Placed], start: tuple[float, _Sign], end: tuple[float, float], name: str
    ) -> None:
        """Draw an arrow from what is read to what comes of it, with its word above."""
        (x, sign), (to, middle) = start, end
        sources = tuple(placed.box.name for placed in read)
        panel.connectors.append(_Arrow(x - _BETWEEN + 3, middle, to - 3, sources, name))
        if sign.text:
            style = {"across": "center", "muted": True}
            centre = (x - _BETWEEN + to) / 2
            panel.lines.append(_Line(centre, middle - 8, self.fonts.escape(sign.text), CAPTION_SIZE, style))


def _wrap_title(title: str, fonts: Fonts, width: float) -> list[str]:
    """Wrap a title; `Fonts.wrap` measures normal letters, and bold ones are about a tenth wider."""
    return fonts.wrap(title.replace(r"\$", "$"), 1.15 * _TITLE_SIZE, width)


def _draw_panel(page: Page, panel: _Panel, x: float, y: float, axis: int) -> None:
    for dx, dy, line, size, style in panel.lines:
        more = dict(style)
        colour = page.theme.muted if more.pop("muted", False) else None
        page.write(x + dx, y + dy, line, size, colour=colour, **more)
    for placed in panel.matrices:
        page.draw(x + placed.x, y + placed.y, placed.box)
        page.label(x + placed.x, y + placed.y, placed.box, placed.labels, axis)
    for arrow in panel.connectors:
        points = [(x + start, y + arrow.y) for start in (arrow.x, arrow.to_x)]
        page.connect(points, arrow.sources, arrow.target)

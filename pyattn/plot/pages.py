"""The eight steps of a trace on one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from matplotlib.figure import Figure, SubFigure

from pyattn.plot.canvas import Canvas, Cells, measure
from pyattn.plot.lettering import Lettering, shorten
from pyattn.plot.looks import look_of_figure
from pyattn.plot.reading import Array, read_tokens

__all__ = ["MONO", "StepLike", "TraceLike", "read_steps", "steps", "texts_of"]

MONO = "DejaVu Sans Mono"
"""For formulas; matplotlib brings it."""

_WIDTH, _GAP, _MARGIN = 400.0, 34.0, 26.0
_TITLE, _FORMULA, _NOTE, _TOKEN = 12.0, 8.5, 8.5, 8.0
_ROOM = (190.0, 190.0)  # of one matrix
_MOST_NOTES = 10


class StepLike(Protocol):
    """A step of a trace, as `pyattn.tracing` makes it."""

    @property
    def number(self) -> int:
        """From 1 to 8."""

    @property
    def title(self) -> str:
        """What is done."""

    @property
    def formula(self) -> str:
        """How; empty where there is none."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """What comes of it, by name."""

    @property
    def note(self) -> str:
        """A word more."""


class TraceLike(Protocol):
    """A trace, as `pyattn.tracing` makes it; of its attributes those that hold its arrays are read, too."""

    @property
    def steps(self) -> Iterable[StepLike]:
        """Eight of them."""

    @property
    def tokens(self) -> Sequence[str] | None:
        """One for each input."""


class _Panel(NamedTuple):
    """One step laid out: lines (x, y, text, size, style) and matrices (x, y, cells), from its own corner."""

    lines: list[tuple[float, float, str, float, dict[str, Any]]]
    matrices: list[tuple[float, float, Cells]]
    height: float


def steps(
    trace: TraceLike, figure: Figure | SubFigure | None = None, *, dark: bool | None = None
) -> Figure | SubFigure:
    """Draw the eight steps of a trace on one page, with all numbers where there is room.

    Parameters
    ----------
    trace : Trace
        Of `pyattn.trace`. Matrices too large for numbers are drawn as images of their colour.
    figure : Figure or SubFigure, optional
        An empty one to draw on; the page is scaled to fit. Default: None, a new one as large as the page.
    dark : bool, optional
        Default: None, what the colour of the figure's ground asks for.

    Returns
    -------
    Figure or SubFigure

    Raises
    ------
    TypeError
        trace is none.
    ValueError
        One of its arrays has not one or two axes.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace(x, w_query, w_key, w_value)  # doctest: +SKIP
    >>> pyattn.plot.steps(trace).savefig("steps.png")  # doctest: +SKIP
    """
    parts = read_steps(trace)
    lettering = Lettering(texts_of(trace, parts))
    panels = [_lay_out(step, trace, lettering) for step in parts]
    heights = [max(panel.height for panel in panels[at : at + 2]) for at in range(0, len(panels), 2)]
    size = (2 * _MARGIN + 2 * _WIDTH + _GAP, 2 * _MARGIN + sum(heights) + _GAP * (len(heights) - 1))
    if figure is None:
        figure = Figure(figsize=(size[0] / 72, size[1] / 72))
    canvas = Canvas(figure, size, look_of_figure(figure, dark), lettering)
    y = _MARGIN
    for at, panel in enumerate(panels):
        _draw_panel(canvas, panel, _MARGIN + (at % 2) * (_WIDTH + _GAP), y)
        if at % 2:
            y += heights[at // 2] + _GAP
    return figure


def read_steps(trace: TraceLike) -> list[StepLike]:
    """Read the steps of a trace.

    Parameters
    ----------
    trace : Trace
        Of `pyattn.trace`.

    Returns
    -------
    list of Step

    Raises
    ------
    TypeError
        trace is none.
    ValueError
        One of its arrays has not one or two axes.
    """
    if not hasattr(trace, "steps"):
        fix = "; choose a head, trace.heads[0]" if hasattr(trace, "heads") else ""
        raise TypeError(f"trace is of type {type(trace).__name__}, expected what pyattn.trace returns{fix}")
    parts = list(trace.steps)
    for part in parts:
        for name, array in part.arrays.items():
            if np.ndim(array) not in (1, 2):
                raise ValueError(f"{name} of step {part.number} has shape {np.shape(array)}, expected (rows, columns)")
    return parts


def texts_of(trace: TraceLike, parts: Iterable[StepLike]) -> list[str]:
    """Collect all that is written on a page of a trace.

    Parameters
    ----------
    trace : Trace
        Of `pyattn.trace`.
    parts : iterable of Step
        Its steps.

    Returns
    -------
    list of str
    """
    signs = "×∞\N{MINUS SIGN}"  # of sizes and numbers
    return [*(trace.tokens or ()), *(text for part in parts for text in (part.title, part.formula, part.note)), signs]


def _lay_out(step: StepLike, trace: TraceLike, lettering: Lettering) -> _Panel:
    """Title, formula, matrices in as many rows as they need, note."""
    title = lettering.write(f"{step.number}  {step.title}")
    lines: list[Any] = []
    y = _TITLE / 2
    for line in _wrap_title(title, lettering):
        lines.append((0.0, y, line, _TITLE, {"weight": lettering.bold}))
        y += 1.4 * _TITLE
    for line in lettering.wrap(step.formula, _FORMULA, _WIDTH, MONO):
        lines.append((0.0, y, line, _FORMULA, {"family": MONO}))
        y += 1.5 * _FORMULA
    labels, matrices, y = _place_matrices(step, trace, lettering, y)
    lines += labels
    notes = lettering.wrap(step.note, _NOTE, _WIDTH)
    for line in notes if len(notes) <= _MOST_NOTES else [*notes[: _MOST_NOTES - 1], "…"]:
        lines.append((0.0, y, line, _NOTE, {"faint": True}))
        y += 1.45 * _NOTE
    return _Panel(lines, matrices, y)


def _wrap_title(title: str, lettering: Lettering) -> list[str]:
    """Bold letters are a tenth wider than those that wrap measures."""
    return lettering.wrap(title.replace(r"\$", "$"), 1.15 * _TITLE, _WIDTH)


def _place_matrices(
    step: StepLike, trace: TraceLike, lettering: Lettering, y: float
) -> tuple[list[Any], list[tuple[float, float, Cells]], float]:
    """Side by side, and below one another where the panel ends; the first of a row has tokens beside it."""
    labels: list[Any] = []
    matrices: list[tuple[float, float, Cells]] = []
    x, deepest = 0.0, 0.0
    for name, array in step.arrays.items():
        matrix = np.atleast_2d(np.asarray(array, dtype=np.float64))
        cells = measure(name, matrix, lettering, _ROOM if len(matrix) > 1 else (_WIDTH, _ROOM[1]))
        beside = _tokens_beside(cells, trace, lettering) if x == 0 else []
        width = max(cells.width, lettering.width(lettering.write(cells.words), 7.5))
        if x > 0 and x + width > _WIDTH:
            x, y, deepest = 0.0, y + deepest + 30, 0.0
            beside = _tokens_beside(cells, trace, lettering)
        margin = max((lettering.width(text, _TOKEN) + 6 for _, text in beside), default=0.0)
        centred = x + margin + max(0.0, (width - cells.width) / 2 - margin)
        labels += [(centred - 5, y + 4 + at, text, _TOKEN, {"across": "right"}) for at, text in beside]
        matrices.append((centred, y + 4, cells))
        deepest = max(deepest, cells.height)
        x = max(x + margin + width, centred + (cells.width + width) / 2) + 18
    return labels, matrices, y + (deepest + 34 if matrices else 4)


_BY_TOKEN = ("x", "keys", "queries", "values", "attn_bias", "scores", "weights", "outputs")


def _tokens_beside(cells: Cells, trace: TraceLike, lettering: Lettering) -> list[tuple[float, str]]:
    """(middle of the row, token) for a matrix with a row per token, as many as do not touch."""
    rows = cells.array.shape[0]
    in_rows = getattr(trace, "convention", "row") == "row"
    if not trace.tokens or not in_rows or cells.name not in _BY_TOKEN or len(trace.tokens) != rows:
        return []
    pitch = cells.height / rows
    step = max(1, int(np.ceil(1.3 * _TOKEN / pitch)))
    tokens = read_tokens(trace.tokens, "tokens", rows, "one for each input")
    return [((at + 0.5) * pitch, lettering.write(shorten(tokens[at], 12))) for at in range(0, rows, step)]


def _draw_panel(canvas: Canvas, panel: _Panel, x: float, y: float) -> None:
    for dx, dy, line, size, style in panel.lines:
        more = dict(style)
        colour = canvas.look.faint if more.pop("faint", False) else None
        canvas.write(x + dx, y + dy, line, size, colour=colour, **more)
    for dx, dy, cells in panel.matrices:
        canvas.draw(x + dx, y + dy, cells)

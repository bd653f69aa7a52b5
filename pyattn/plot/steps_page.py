"""The eight steps of a trace on one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from matplotlib.figure import Figure, SubFigure

from pyattn.plot.fonts import Fonts, shorten
from pyattn.plot.inputs import Array, read_tokens
from pyattn.plot.page import MatrixBox, Page, measure_matrix
from pyattn.plot.theme import figure_theme

__all__ = ["MONO", "StepLike", "TraceLike", "page_texts", "read_steps", "steps"]

MONO = "DejaVu Sans Mono"
"""Font of formulas; it is installed with matplotlib."""

_WIDTH, _GAP, _MARGIN = 400.0, 34.0, 26.0
_TITLE_SIZE, _FORMULA_SIZE, _NOTE_SIZE, _TOKEN_SIZE = 12.0, 8.5, 8.5, 8.0
_MAX_MATRIX_SIZE = (190.0, 190.0)
_MAX_NOTES = 10


class StepLike(Protocol):
    """A step of a trace, as `pyattn.tracing` makes it."""

    @property
    def number(self) -> int:
        """From 1 to 8."""

    @property
    def title(self) -> str:
        """Title of the step."""

    @property
    def formula(self) -> str:
        """Formula of the step; may be empty."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Results of the step, by name."""

    @property
    def note(self) -> str:
        """Remark on the step; may be empty."""


class TraceLike(Protocol):
    """A trace, as `pyattn.tracing` makes it. The attributes that hold its arrays are read, too."""

    @property
    def steps(self) -> Iterable[StepLike]:
        """The eight steps."""

    @property
    def tokens(self) -> Sequence[str] | None:
        """A token for each input, or None."""


class _Panel(NamedTuple):
    """Layout of one step: lines (x, y, text, size, style) and matrices (x, y, box), from the panel's corner."""

    lines: list[tuple[float, float, str, float, dict[str, Any]]]
    matrices: list[tuple[float, float, MatrixBox]]
    height: float


def steps(
    trace: TraceLike, figure: Figure | SubFigure | None = None, *, dark: bool | None = None
) -> Figure | SubFigure:
    """Draw the eight steps of a trace on one page.

    Parameters
    ----------
    trace : Trace
        The result of `pyattn.trace`. Matrices too large for numbers are drawn as images.
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
    fonts = Fonts(page_texts(trace, trace_steps))
    panels = [_layout_step(step, trace, fonts) for step in trace_steps]
    heights = [max(panel.height for panel in panels[at : at + 2]) for at in range(0, len(panels), 2)]
    size = (2 * _MARGIN + 2 * _WIDTH + _GAP, 2 * _MARGIN + sum(heights) + _GAP * (len(heights) - 1))
    if figure is None:
        figure = Figure(figsize=(size[0] / 72, size[1] / 72))
    page = Page(figure, size, figure_theme(figure, dark), fonts)
    y = _MARGIN
    for at, panel in enumerate(panels):
        _draw_panel(page, panel, _MARGIN + (at % 2) * (_WIDTH + _GAP), y)
        if at % 2:
            y += heights[at // 2] + _GAP
    return figure


def read_steps(trace: TraceLike) -> list[StepLike]:
    """Read the steps of a trace, and check their arrays."""
    if not hasattr(trace, "steps"):
        fix = "; choose a head, trace.heads[0]" if hasattr(trace, "heads") else ""
        raise TypeError(f"trace is of type {type(trace).__name__}, expected what pyattn.trace returns{fix}")
    trace_steps = list(trace.steps)
    for step in trace_steps:
        for name, array in step.arrays.items():
            if np.ndim(array) not in (1, 2):
                raise ValueError(f"{name} of step {step.number} has shape {np.shape(array)}, expected (rows, columns)")
    return trace_steps


def page_texts(trace: TraceLike, trace_steps: Iterable[StepLike]) -> list[str]:
    """Collect all texts on a page of a trace, to choose fonts for them."""
    signs = "×∞\N{MINUS SIGN}"  # in shapes and numbers
    texts = (text for step in trace_steps for text in (step.title, step.formula, step.note))
    return [*(trace.tokens or ()), *texts, signs]


def _layout_step(step: StepLike, trace: TraceLike, fonts: Fonts) -> _Panel:
    """Place the title, the formula, the matrices and the note of a step below one another."""
    title = fonts.escape(f"{step.number}  {step.title}")
    lines: list[Any] = []
    y = _TITLE_SIZE / 2
    for line in _wrap_title(title, fonts):
        lines.append((0.0, y, line, _TITLE_SIZE, {"weight": fonts.bold}))
        y += 1.4 * _TITLE_SIZE
    for line in fonts.wrap(step.formula, _FORMULA_SIZE, _WIDTH, MONO):
        lines.append((0.0, y, line, _FORMULA_SIZE, {"family": MONO}))
        y += 1.5 * _FORMULA_SIZE
    labels, matrices, y = _layout_matrices(step, trace, fonts, y)
    lines += labels
    notes = fonts.wrap(step.note, _NOTE_SIZE, _WIDTH)
    for line in notes if len(notes) <= _MAX_NOTES else [*notes[: _MAX_NOTES - 1], "…"]:
        lines.append((0.0, y, line, _NOTE_SIZE, {"muted": True}))
        y += 1.45 * _NOTE_SIZE
    return _Panel(lines, matrices, y)


def _wrap_title(title: str, fonts: Fonts) -> list[str]:
    """Wrap a title; `Fonts.wrap` measures normal letters, and bold ones are about a tenth wider."""
    return fonts.wrap(title.replace(r"\$", "$"), 1.15 * _TITLE_SIZE, _WIDTH)


def _layout_matrices(
    step: StepLike, trace: TraceLike, fonts: Fonts, y: float
) -> tuple[list[Any], list[tuple[float, float, MatrixBox]], float]:
    """Place matrices side by side in rows of the panel's width; the first of each row has tokens at its left."""
    labels: list[Any] = []
    matrices: list[tuple[float, float, MatrixBox]] = []
    x, deepest = 0.0, 0.0
    for name, array in step.arrays.items():
        matrix = np.atleast_2d(np.asarray(array, dtype=np.float64))
        max_size = _MAX_MATRIX_SIZE if len(matrix) > 1 else (_WIDTH, _MAX_MATRIX_SIZE[1])
        box = measure_matrix(name, matrix, fonts, max_size)
        beside = _row_labels(box, trace, fonts) if x == 0 else []
        width = max(box.width, fonts.width(fonts.escape(box.caption), 7.5))
        if x > 0 and x + width > _WIDTH:
            x, y, deepest = 0.0, y + deepest + 30, 0.0
            beside = _row_labels(box, trace, fonts)
        margin = max((fonts.width(text, _TOKEN_SIZE) + 6 for _, text in beside), default=0.0)
        centred = x + margin + max(0.0, (width - box.width) / 2 - margin)
        labels += [(centred - 5, y + 4 + at, text, _TOKEN_SIZE, {"across": "right"}) for at, text in beside]
        matrices.append((centred, y + 4, box))
        deepest = max(deepest, box.height)
        x = max(x + margin + width, centred + (box.width + width) / 2) + 18
    return labels, matrices, y + (deepest + 34 if matrices else 4)


_BY_TOKEN = ("x", "keys", "queries", "values", "attn_bias", "scores", "weights", "outputs")


def _row_labels(box: MatrixBox, trace: TraceLike, fonts: Fonts) -> list[tuple[float, str]]:
    """Return (middle of the row, token) for a matrix with a row per token, skipping tokens that would touch."""
    rows = box.array.shape[0]
    in_rows = getattr(trace, "convention", "row") == "row"
    if not trace.tokens or not in_rows or box.name not in _BY_TOKEN or len(trace.tokens) != rows:
        return []
    pitch = box.height / rows
    step = max(1, int(np.ceil(1.3 * _TOKEN_SIZE / pitch)))
    tokens = read_tokens(trace.tokens, "tokens", rows, "one for each input")
    return [((at + 0.5) * pitch, fonts.escape(shorten(tokens[at], 12))) for at in range(0, rows, step)]


def _draw_panel(page: Page, panel: _Panel, x: float, y: float) -> None:
    for dx, dy, line, size, style in panel.lines:
        more = dict(style)
        colour = page.theme.muted if more.pop("muted", False) else None
        page.write(x + dx, y + dy, line, size, colour=colour, **more)
    for dx, dy, box in panel.matrices:
        page.draw(x + dx, y + dy, box)

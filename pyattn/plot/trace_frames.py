"""The frames of an animated trace: the matrices appear one after another, as the eight steps compute them."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure

from pyattn.plot.fonts import Fonts
from pyattn.plot.inputs import Array
from pyattn.plot.page import CAPTION_SIZE, MatrixBox, Page, label_margin, measure_matrix
from pyattn.plot.steps_page import MONO, page_texts
from pyattn.plot.theme import PALETTE, Theme
from pyattn.plot.trace_arrays import StepLike, TraceArrays, TraceLike, read_steps

__all__ = ["TraceFrames"]

_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("x",),
    ("w_key", "w_query", "w_value"),
    ("keys", "queries", "values"),
    ("products", "attn_bias", "weighted_values"),
    ("scores", "weights", "outputs"),
)
"""Name of the array in each place, column by column; the arrays of a row of places are aligned."""

_MAX_MATRIX_SIZE = (180.0, 110.0)
_MARGIN, _COLUMN_GAP, _ROW_GAP = 14.0, 26.0, 34.0
_HEADER, _FOOTER = 92.0, 46.0
_MAX_REPEATS = 6
"""Inputs that step 8 shows one by one if matrices have numbers; all further inputs appear in one frame."""

_FIRST_STEP = {"x": 1, "w_key": 2, "w_query": 2, "w_value": 2, "keys": 3, "queries": 3, "values": 3, "scores": 4}
_FIRST_STEP |= {"products": 4, "attn_bias": 4, "weights": 5, "weighted_values": 6, "outputs": 7}
"""The step in which each array appears."""

_PROJECTED: dict[str, tuple[str, ...]] = {
    "keys": ("x", "w_key"),
    "queries": ("x", "w_query"),
    "values": ("x", "w_value"),
}
_MADE: dict[int, dict[str, tuple[str, ...]]] = {
    3: _PROJECTED,
    4: {"products": ("queries", "keys"), "scores": ("products", "attn_bias")},
    5: {"weights": ("scores",)},
    6: {"weighted_values": ("weights", "values")},
    7: {"outputs": ("weighted_values",)},
}
"""For each step the arrays that it computes, and what each is computed from."""

_OF_ONE_QUERY = ("queries", "scores", "weights", "outputs", "attn_bias")


class _Frame(NamedTuple):
    """One frame: its step, the index of its input, whether it shows the result, and the visible arrays."""

    step: StepLike
    query: int
    finished: bool
    visible: frozenset[str]


class TraceFrames:
    """The frames of an animated trace; each matrix has the same position in all of them."""

    title = "The eight steps of attention"

    def __init__(self, trace: TraceLike) -> None:
        trace_steps = read_steps(trace)
        self.fonts = Fonts(page_texts(trace, trace_steps))
        self.arrays = TraceArrays(trace)
        self.axis, self.queries = self.arrays.axis, self.arrays.queries
        arrays = {name: array for name, array in self.arrays.whole.items() if name in _FIRST_STEP}
        arrays["weighted_values"] = self.arrays.weighted_values(0)
        if self.arrays.has_products:
            arrays["products"] = self.arrays.products(0)
        self.boxes = {name: self._measure(name, array) for name, array in arrays.items()}
        for name in {"products", "weighted_values"} & self.boxes.keys():
            self._widen(name)
        self.made = {number: self._sources(made) for number, made in _MADE.items()}
        self.positions: dict[str, tuple[float, float]] = {}
        self.size = self._layout()
        self.frames = self._frames(trace_steps)

    def _measure(self, name: str, array: Array, query: int = 0) -> MatrixBox:
        of = f"input {query + 1}" if name in ("products", "weighted_values") else ""
        return measure_matrix(name, array, self.fonts, _MAX_MATRIX_SIZE, of)

    def _widen(self, name: str) -> None:
        """Give a matrix that differs from input to input the size that it needs for the widest."""
        if self.boxes[name].texts is None:
            return
        shown = range(min(self.queries, _MAX_REPEATS + 1))
        boxes = [self._measure(name, self._lines_of(name, query), query) for query in shown]
        if all(box.texts is not None for box in boxes):
            self.boxes[name] = self.boxes[name]._replace(width=max(box.width for box in boxes))

    def _lines_of(self, name: str, query: int) -> Array:
        return self.arrays.products(query) if name == "products" else self.arrays.weighted_values(query)

    def _sources(self, made: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """Leave out arrays that the trace lacks; without products, scores come of queries and keys."""
        if "scores" in made and "products" not in self.boxes:
            made = {"scores": ("queries", "keys", "attn_bias")}
        sources = {name: tuple(one for one in read if one in self.boxes) for name, read in made.items()}
        return {name: read for name, read in sources.items() if name in self.boxes and read}

    def _layout(self) -> tuple[float, float]:
        """Place the matrices in columns, in the order of the steps, and return the size of the page."""
        rows = [[column[at] for column in _COLUMNS if at < len(column) and column[at] in self.boxes] for at in range(3)]
        tops, y = [], _HEADER
        for names in rows:
            tops.append(y)
            y += max((self.boxes[name].height for name in names), default=-_ROW_GAP) + _ROW_GAP
        x = _MARGIN
        for column in _COLUMNS:
            names = [name for name in column if name in self.boxes]
            if not names:
                continue
            margin = max(self._margin(name) for name in names)
            captions = [self.fonts.width(self.fonts.escape(self.boxes[name].caption), CAPTION_SIZE) for name in names]
            widest = max(self.boxes[name].width for name in names)
            aside = max(margin, (max(captions) - widest) / 2)
            for at, name in enumerate(column):
                if name in self.boxes:
                    self.positions[name] = (x + aside + (widest - self.boxes[name].width) / 2, tops[at])
            x += aside + max(widest, (max(captions) + widest) / 2) + _COLUMN_GAP
        return max(x - _COLUMN_GAP + _MARGIN, 460.0), y - 6 + _FOOTER

    def _margin(self, name: str) -> float:
        """Return the width of the labels at the left of an array's rows."""
        return label_margin(self._labels(name), self.fonts) if self.axis == 0 else 0.0

    def _labels(self, name: str) -> list[str]:
        labels = self.arrays.labels(name)
        return labels if len(labels) == self.boxes[name].array.shape[self.axis] else []

    def _frames(self, trace_steps: list[StepLike]) -> list[_Frame]:
        """Begin with the finished result, then show step by step what is computed."""
        every = frozenset(self.boxes)
        frames = [_Frame(trace_steps[-1], self.queries - 1, True, every)]
        for step in trace_steps[:-1]:
            visible = {name for name in self.boxes if _FIRST_STEP[name] <= step.number}
            frames.append(_Frame(step, 0, False, frozenset(visible)))
        repeats = _MAX_REPEATS if self.boxes["scores"].texts is not None else 2
        shown = range(1, min(self.queries, repeats + 1))
        return frames + [_Frame(trace_steps[-1], query, False, every) for query in shown]

    def captions(self) -> list[str]:
        """Return a caption for each frame."""
        return [
            f"{self.title}: the result" if frame.finished else f"Step {self._title(frame)}" for frame in self.frames
        ]

    def colours(self, theme: Theme) -> list[str]:
        """Return colours that a picture with few colours must keep."""
        return [*PALETTE.values(), theme.empty, theme.muted]

    def _title(self, frame: _Frame) -> str:
        if frame.finished:
            return self.title
        about = f": {frame.query + 1}" if frame.step.number == 8 else ""
        return f"{frame.step.number}  {frame.step.title}{about}"

    def draw(self, number: int, figure: Figure, theme: Theme) -> None:
        """Draw a frame; matrices that are not yet computed are empty cells."""
        frame = self.frames[number]
        page = Page(figure, self.size, theme, self.fonts)
        made = self._made_in(frame)
        read = {name for sources in made.values() for name in sources}
        for name, box in self.boxes.items():
            if name in ("products", "weighted_values"):
                box = self._box_of(name, frame.query)
            shown = self._visible_rows(name, frame)
            position = self.positions[name]
            page.draw(*position, box, shown, self.axis)
            page.label(*position, box, self._labels(name), self.axis)
            if not frame.finished and name in read | made.keys() and any(shown):
                by_query = name in _OF_ONE_QUERY and frame.step.number > 3
                lines = slice(frame.query, frame.query + 1) if by_query else slice(None)
                page.mark(*position, box, lines, self.axis, dashed=name not in made)
        for target, sources in made.items():
            for source in sources:
                strong = not frame.finished
                page.connect(self._route(source, target, frame), (source,), target, strong)
        self._write_text(page, frame)

    def _made_in(self, frame: _Frame) -> dict[str, tuple[str, ...]]:
        """Return the arrays that a frame computes and their sources; all of them at the end."""
        if frame.finished:
            return {name: read for made in self.made.values() for name, read in made.items()}
        if frame.step.number == 8:
            return {name: read for number, made in self.made.items() if number > 3 for name, read in made.items()}
        return self.made.get(frame.step.number, {})

    def _route(self, source: str, target: str, frame: _Frame) -> list[tuple[float, float]]:
        """Lead an arrow from one array to another, around those between them."""
        (x, y), box = self.positions[source], self.boxes[source]
        (to_x, to_y), to = self.positions[target], self.boxes[target]
        by_query = self.axis == 0 and source in _OF_ONE_QUERY and frame.step.number > 3 and not frame.finished
        middle = (frame.query + 0.5) * box.height / self.queries if by_query else box.height / 2
        start, end = (x + box.width + 2, y + middle), (to_x - 2 - self._margin(target), to_y + to.height / 2)
        if source == "x":  # above the weights, from one gap between columns to the next
            first, second = x + box.width + 0.4 * _COLUMN_GAP, self._gap_before(target)
            lane = to_y - 9
            low = to_y + 0.2 * to.height
            return [start, (first, start[1]), (first, lane), (second, lane), (second, low), (end[0], low)]
        if source == "scores":  # straight down, from below the caption
            centre = to_x + to.width / 2
            return [(centre, y + box.height + 16), (centre, to_y - (14 if self.axis == 1 else 2))]
        if x > to_x:  # to the left, and into the right side
            gap = x - self._margin(source) - 0.35 * _COLUMN_GAP
            low = to_y + 0.2 * to.height
            return [
                (x - 2 - self._margin(source), y + middle),
                (gap, y + middle),
                (gap, low),
                (to_x + to.width + 2, low),
            ]
        if abs(y - to_y) < 1:
            return [(start[0], end[1]), end] if not by_query else [start, (end[0], start[1])]
        gap = self._gap_before(target)
        low = to_y + (0.8 if y > to_y else 0.2) * to.height
        return [start, (gap, start[1]), (gap, low), (end[0], low)]

    def _gap_before(self, name: str) -> float:
        """Return the middle of the gap at the left of an array's column."""
        column = next(column for column in _COLUMNS if name in column)
        return min(self.positions[one][0] - self._margin(one) for one in column if one in self.boxes) - _COLUMN_GAP / 2

    def _box_of(self, name: str, query: int) -> MatrixBox:
        """Return a matrix of one input, in its place."""
        box, array = self.boxes[name], self._lines_of(name, query)
        measured = self._measure(name, array, query)
        return box._replace(array=array, texts=None if box.texts is None else measured.texts, of=measured.of)

    def _visible_rows(self, name: str, frame: _Frame) -> list[bool]:
        """Tell which rows to fill: arrays with a row per query are filled up to the frame's query."""
        count = self.boxes[name].array.shape[self.axis]
        if name in ("scores", "weights", "outputs", "attn_bias"):
            return [name in frame.visible and query <= frame.query for query in range(count)]
        return [name in frame.visible] * count

    def _write_text(self, page: Page, frame: _Frame) -> None:
        """Write the title and the formula above the matrices and the note below, up to three lines each."""
        # Letters of a few pixels are rounded to whole ones, which makes a line of digits up to a tenth wider.
        width = (0.97 if page.scale >= 1 else 0.88) * (self.size[0] - 2 * _MARGIN)
        step, write = frame.step, page.write
        title = self.fonts.wrap(self._title(frame), 16, width)[0]
        write(_MARGIN, 22, title, 14, weight=self.fonts.bold)
        for at, line in enumerate(self.fonts.wrap(step.formula, 8.5, width, MONO)[:3]):
            write(_MARGIN, 41 + 12 * at, line, 8.5, family=MONO)
        top = self.size[1] - _FOOTER
        for at, line in enumerate(self.fonts.wrap(self._note(frame), 9, width)[:3]):
            write(_MARGIN, top + 8 + 13 * at, line, 9, colour=page.theme.muted)

    def _note(self, frame: _Frame) -> str:
        """Return the note of a step; where scores are short sums, these in numbers."""
        sums = self.arrays.score_sums(frame.query) if frame.step.number in (4, 8) and not frame.finished else []
        return "\n".join(sums) if 0 < len(sums) <= 3 else frame.step.note

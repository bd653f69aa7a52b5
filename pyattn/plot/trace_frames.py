"""The frames of an animated trace: the matrices appear one after another, as the eight steps compute them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pyattn.plot.fonts import Fonts
from pyattn.plot.inputs import Array
from pyattn.plot.page import MatrixBox, Page, measure_matrix
from pyattn.plot.steps_page import MONO, StepLike, TraceLike, page_texts, read_steps
from pyattn.plot.theme import Theme

__all__ = ["TraceFrames"]

_COLUMNS = (("x",), ("w_key", "w_query", "w_value"), ("keys", "queries", "values"), ("scores", "weights"))
_LAST_COLUMN = ("weighted_values", "outputs")
_MAX_MATRIX_SIZE = (150.0, 110.0)
_MARGIN, _COLUMN_GAP, _ROW_GAP = 24.0, 30.0, 34.0
_HEADER, _FOOTER = 84.0, 58.0
_MAX_REPEATS = 6
"""Inputs that step 8 shows one by one if matrices have numbers; all further inputs appear in one frame."""

_FIRST_STEP = {"x": 1, "w_key": 2, "w_query": 2, "w_value": 2, "keys": 3, "queries": 3, "values": 3, "scores": 4}
_FIRST_STEP |= {"weights": 5, "weighted_values": 6, "outputs": 7}
"""The step in which each array appears."""

_READ = {4: ("queries", "keys"), 5: ("scores",), 6: ("weights", "values"), 7: ("weighted_values",)}
_PROJECTED = (("keys", "w_key"), ("queries", "w_query"), ("values", "w_value"))


class _Frame(NamedTuple):
    """One frame: its step, the index of its input, and the names of visible, read and newly computed arrays."""

    step: StepLike
    query: int
    visible: frozenset[str]
    read: frozenset[str]
    computed: frozenset[str]


class TraceFrames:
    """The frames of an animated trace; each matrix has the same position in all of them."""

    title = "The eight steps of attention"

    def __init__(self, trace: TraceLike) -> None:
        trace_steps = read_steps(trace)
        self.fonts = Fonts(page_texts(trace, trace_steps))
        self.axis = 0 if getattr(trace, "convention", "row") == "row" else 1
        names = [name for column in (*_COLUMNS, _LAST_COLUMN) for name in column if name != "weighted_values"]
        known = {name: getattr(trace, name, None) for name in names}
        self.arrays = {name: np.asarray(array, dtype=np.float64) for name, array in known.items() if array is not None}
        self.queries = self.arrays["weights"].shape[self.axis]
        arrays = {**self.arrays, "weighted_values": self._weighted_values(0)}
        self.boxes = {name: measure_matrix(name, array, self.fonts, _MAX_MATRIX_SIZE) for name, array in arrays.items()}
        self.positions: dict[str, tuple[float, float]] = {}
        self.size = self._layout()
        self.frames = self._frames(trace_steps)

    def _weighted_values(self, query: int) -> Array:
        """Multiply the values by the weights of one query, with a row, or column, for each key."""
        weights = self.arrays["weights"].take([query], axis=self.axis)
        return np.asarray(self.arrays["values"] * weights.T)

    def _layout(self) -> tuple[float, float]:
        """Place the matrices in columns, in the order of the steps, and return the size of the page."""
        x, deepest = _MARGIN, 0.0
        for column in (*_COLUMNS, _LAST_COLUMN):
            names = [name for name in column if name in self.boxes]
            labels = [self.fonts.width(self.fonts.escape(self.boxes[name].caption), 7.5) for name in names]
            widths = [max(self.boxes[name].width, label) for name, label in zip(names, labels, strict=True)]
            y = _HEADER
            for name in names:
                self.positions[name] = (x + (max(widths) - self.boxes[name].width) / 2, y)
                y += self.boxes[name].height + _ROW_GAP
            deepest = max(deepest, y)
            x += max(widths, default=-_COLUMN_GAP) + _COLUMN_GAP
        return max(x - _COLUMN_GAP + _MARGIN, 460.0), deepest + _FOOTER

    def _frames(self, trace_steps: list[StepLike]) -> list[_Frame]:
        frames = []
        for step in trace_steps:
            visible = {name for name in self.boxes if _FIRST_STEP[name] <= step.number}
            if step.number == 3 and "x" in self.boxes:
                for at, (name, weight) in enumerate(_PROJECTED):
                    later = {other for other, _ in _PROJECTED[at + 1 :]}
                    read = frozenset({"x", weight})
                    frames.append(_Frame(step, 0, frozenset(visible - later), read, frozenset({name})))
            elif step.number < 8:
                new = {name for name in self.boxes if _FIRST_STEP[name] == step.number and step.number > 3}
                read = frozenset(_READ.get(step.number, ()))
                frames.append(_Frame(step, 0, frozenset(visible), read, frozenset(new)))
            else:
                every = frozenset(self.boxes)
                repeats = _MAX_REPEATS if self.boxes["scores"].texts is not None else 2
                shown = min(self.queries, repeats + 1)
                read, computed = frozenset({"queries"}), frozenset({"scores", "weights", "outputs"})
                frames += [_Frame(step, query, every, read, computed) for query in range(1, shown)]
                frames += [_Frame(step, self.queries - 1, every, frozenset(), frozenset())] * 2
        return frames

    def captions(self) -> list[str]:
        """Return a caption for each frame."""
        return [f"Step {self._title(frame)}" for frame in self.frames]

    def _title(self, frame: _Frame) -> str:
        about = f": {frame.query + 1}" if frame.step.number == 8 and frame.computed else ""
        return f"{frame.step.number}  {frame.step.title}{about}"

    def draw(self, number: int, figure: Figure, theme: Theme) -> None:
        """Draw a frame; matrices that are not yet computed are empty cells."""
        frame = self.frames[number]
        page = Page(figure, self.size, theme, self.fonts)
        for name, box in self.boxes.items():
            if name == "weighted_values":
                box = self._weighted_box(box, frame.query)
            shown = self._visible_rows(name, frame)
            position = self.positions[name]
            page.draw(*position, box, shown, self.axis)
            if name in frame.read | frame.computed and any(shown):
                by_query = name in ("queries", "scores", "weights", "outputs") and frame.step.number > 3
                lines = slice(frame.query, frame.query + 1) if by_query else slice(None)
                page.mark(*position, box, lines, self.axis, dashed=name in frame.read)
        self._write_text(page, frame)

    def _weighted_box(self, box: MatrixBox, query: int) -> MatrixBox:
        array = self._weighted_values(query)
        measured = measure_matrix("weighted_values", array, self.fonts, _MAX_MATRIX_SIZE)
        return box._replace(array=array, texts=None if box.texts is None else measured.texts)

    def _visible_rows(self, name: str, frame: _Frame) -> list[bool]:
        """Tell which rows to fill: arrays with a row per query are filled up to the frame's query."""
        count = self.boxes[name].array.shape[self.axis]
        if name in ("scores", "weights", "outputs"):
            return [name in frame.visible and query <= frame.query for query in range(count)]
        return [name in frame.visible] * count

    def _write_text(self, page: Page, frame: _Frame) -> None:
        """Write the title and the formula above the matrices and the note below, up to three lines each."""
        width = self.size[0] - 2 * _MARGIN
        step, write = frame.step, page.write
        title = self.fonts.wrap(self._title(frame), 16, width)[0]
        write(_MARGIN, 22, title, 14, weight=self.fonts.bold)
        for at, line in enumerate(self.fonts.wrap(step.formula, 8.5, width, MONO)[:3]):
            write(_MARGIN, 41 + 12 * at, line, 8.5, family=MONO)
        top = self.size[1] - _FOOTER
        for at, line in enumerate(self.fonts.wrap(step.note, 9, width)[:3]):
            write(_MARGIN, top + 8 + 13 * at, line, 9, colour=page.theme.muted)

"""The eight steps of a trace, frame by frame."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from pyattn.plot.canvas import Canvas, Cells, measure
from pyattn.plot.lettering import Lettering
from pyattn.plot.looks import Look
from pyattn.plot.pages import MONO, StepLike, TraceLike, read_steps, texts_of
from pyattn.plot.reading import Array

__all__ = ["StepFilm"]

_COLUMNS = (("x",), ("w_key", "w_query", "w_value"), ("keys", "queries", "values"), ("scores", "weights"))
_LAST = ("weighted_values", "outputs")
_ROOM = (150.0, 110.0)  # of one matrix
_MARGIN, _ACROSS, _DOWN = 24.0, 30.0, 34.0
_HEAD, _FOOT = 84.0, 58.0
_MOST_REPEATS = 6
"""Inputs that step 8 goes through one by one, where there are numbers to see; then the others come at once."""

_FIRST = {"x": 1, "w_key": 2, "w_query": 2, "w_value": 2, "keys": 3, "queries": 3, "values": 3, "scores": 4}
_FIRST |= {"weights": 5, "weighted_values": 6, "outputs": 7}
"""The step that each array comes with."""

_READ = {4: ("queries", "keys"), 5: ("scores",), 6: ("weights", "values"), 7: ("weighted_values",)}
_PROJECTED = (("keys", "w_key"), ("queries", "w_query"), ("values", "w_value"))


class _Frame(NamedTuple):
    """What is seen at one time: a step, the input that it is about, the arrays there, those read from, those made."""

    step: StepLike
    query: int
    there: frozenset[str]
    read: frozenset[str]
    made: frozenset[str]


class StepFilm:
    """Where each matrix stands, the same in all frames, and which frames there are.

    Parameters
    ----------
    trace : Trace
        Of `pyattn.trace`.
    """

    title = "The eight steps of attention"

    def __init__(self, trace: TraceLike) -> None:
        parts = read_steps(trace)
        self.lettering = Lettering(texts_of(trace, parts))
        self.axis = 0 if getattr(trace, "convention", "row") == "row" else 1
        names = [name for column in (*_COLUMNS, _LAST) for name in column if name != "weighted_values"]
        known = {name: getattr(trace, name, None) for name in names}
        self.arrays = {name: np.asarray(array, dtype=np.float64) for name, array in known.items() if array is not None}
        self.queries = self.arrays["weights"].shape[self.axis]
        cells = {name: measure(name, array, self.lettering, _ROOM) for name, array in self.arrays.items()}
        cells["weighted_values"] = measure("weighted_values", self._weighted(0), self.lettering, _ROOM)
        self.cells = cells
        self.places: dict[str, tuple[float, float]] = {}
        self.size = self._place()
        self.frames = self._frames(parts)

    def _weighted(self, query: int) -> Array:
        """Multiply the values with the weights of one query: a row per key, or a column."""
        weights = self.arrays["weights"].take([query], axis=self.axis)
        return np.asarray(self.arrays["values"] * weights.T)

    def _place(self) -> tuple[float, float]:
        """Columns from left to right, in the order of the steps; returns the size of the page."""
        x, deepest = _MARGIN, 0.0
        for column in (*_COLUMNS, _LAST):
            names = [name for name in column if name in self.cells]
            labels = [self.lettering.width(self.lettering.write(self.cells[name].words), 7.5) for name in names]
            widths = [max(self.cells[name].width, label) for name, label in zip(names, labels, strict=True)]
            y = _HEAD
            for name in names:
                self.places[name] = (x + (max(widths) - self.cells[name].width) / 2, y)
                y += self.cells[name].height + _DOWN
            deepest = max(deepest, y)
            x += max(widths, default=-_ACROSS) + _ACROSS
        return max(x - _ACROSS + _MARGIN, 460.0), deepest + _FOOT

    def _frames(self, parts: list[StepLike]) -> list[_Frame]:
        frames = []
        for step in parts:
            there = {name for name in self.cells if _FIRST[name] <= step.number}
            if step.number == 3 and "x" in self.cells:
                for at, (name, weight) in enumerate(_PROJECTED):
                    later = {other for other, _ in _PROJECTED[at + 1 :]}
                    read = frozenset({"x", weight})
                    frames.append(_Frame(step, 0, frozenset(there - later), read, frozenset({name})))
            elif step.number < 8:
                new = {name for name in self.cells if _FIRST[name] == step.number and step.number > 3}
                read = frozenset(_READ.get(step.number, ()))
                frames.append(_Frame(step, 0, frozenset(there), read, frozenset(new)))
            else:
                every = frozenset(self.cells)
                repeats = _MOST_REPEATS if self.cells["scores"].texts is not None else 2
                shown = min(self.queries, repeats + 1)
                read, made = frozenset({"queries"}), frozenset({"scores", "weights", "outputs"})
                frames += [_Frame(step, query, every, read, made) for query in range(1, shown)]
                frames += [_Frame(step, self.queries - 1, every, frozenset(), frozenset())] * 2
        return frames

    def captions(self) -> list[str]:
        """Say in words what each frame shows.

        Returns
        -------
        list of str
        """
        return [f"Step {self._title(frame)}" for frame in self.frames]

    def _title(self, frame: _Frame) -> str:
        about = f": {frame.query + 1}" if frame.step.number == 8 and frame.made else ""
        return f"{frame.step.number}  {frame.step.title}{about}"

    def draw(self, number: int, figure: Figure, look: Look) -> None:
        """Draw all matrices, those that are not there yet as empty cells.

        Parameters
        ----------
        number : int
            Of the frame.
        figure : Figure
            An empty one.
        look : Look
            Its colours.
        """
        frame = self.frames[number]
        canvas = Canvas(figure, self.size, look, self.lettering)
        for name, cells in self.cells.items():
            if name == "weighted_values":
                cells = self._cells_of_weighted(cells, frame.query)
            shown = self._shown(name, frame)
            place = self.places[name]
            canvas.draw(*place, cells, shown, self.axis)
            if name in frame.read | frame.made and any(shown):
                by_query = name in ("queries", "scores", "weights", "outputs") and frame.step.number > 3
                lines = slice(frame.query, frame.query + 1) if by_query else slice(None)
                canvas.mark(*place, cells, lines, self.axis, dashed=name in frame.read)
        self._write(canvas, frame)

    def _cells_of_weighted(self, cells: Cells, query: int) -> Cells:
        array = self._weighted(query)
        fresh = measure("weighted_values", array, self.lettering, _ROOM)
        return cells._replace(array=array, texts=None if cells.texts is None else fresh.texts)

    def _shown(self, name: str, frame: _Frame) -> list[bool]:
        """Which rows are filled: of what is computed for each query, those up to the present one."""
        count = self.cells[name].array.shape[self.axis]
        if name in ("scores", "weights", "outputs"):
            return [name in frame.there and query <= frame.query for query in range(count)]
        return [name in frame.there] * count

    def _write(self, canvas: Canvas, frame: _Frame) -> None:
        """Title and formula above, note below; of these as many lines as there is room for."""
        room = self.size[0] - 2 * _MARGIN
        step, write = frame.step, canvas.write
        title = self.lettering.wrap(self._title(frame), 16, room)[0]
        write(_MARGIN, 22, title, 14, weight=self.lettering.bold)
        for at, line in enumerate(self.lettering.wrap(step.formula, 8.5, room, MONO)[:3]):
            write(_MARGIN, 41 + 12 * at, line, 8.5, family=MONO)
        top = self.size[1] - _FOOT
        for at, line in enumerate(self.lettering.wrap(step.note, 9, room)[:3]):
            write(_MARGIN, top + 8 + 13 * at, line, 9, colour=canvas.look.faint)

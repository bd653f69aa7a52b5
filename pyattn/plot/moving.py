"""The eight steps of a trace as a moving picture."""

from __future__ import annotations

import html
import io
import math
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.figure import Figure
from PIL import Image  # matplotlib needs it, too

from pyattn.plot.canvas import Canvas, Cells, measure
from pyattn.plot.lettering import Lettering
from pyattn.plot.looks import Look, look_of_figure
from pyattn.plot.pages import MONO, StepLike, TraceLike, read_steps, texts_of
from pyattn.plot.reading import Array

__all__ = ["StepsAnimation", "animate"]

_COLUMNS = (("x",), ("w_key", "w_query", "w_value"), ("keys", "queries", "values"), ("scores", "weights"))
_LAST = ("weighted_values", "outputs")
_ROOM = (150.0, 110.0)  # of one matrix
_MARGIN, _ACROSS, _DOWN = 24.0, 30.0, 34.0
_HEAD, _FOOT = 84.0, 58.0
_MOST_REPEATS = 6
"""Inputs that step 8 goes through one by one, where there are numbers to see; then the others come at once."""

_MOST_BYTES = 950_000
"""Of all pictures in an HTML page."""

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


class StepsAnimation(FuncAnimation):  # type: ignore[misc] # matplotlib is skipped, pyproject.toml
    """The eight steps of a trace, one after another; `animate` makes it.

    Parameters
    ----------
    figure : Figure
        Drawn anew for each frame.
    draw : callable
        Draws the frame of a number.
    captions : list of str
        What each frame shows, in words.
    interval : float
        Milliseconds from one frame to the next.
    """

    def __init__(self, figure: Figure, draw: Any, captions: list[str], interval: float) -> None:
        self.captions = captions
        self._figure, self._draw, self._milliseconds = figure, draw, interval
        super().__init__(figure, draw, frames=len(captions), interval=interval, init_func=list, blit=False)

    def save(self, filename: str | Path, writer: Any = None, **options: Any) -> None:
        """Save as a GIF, or as one HTML file with everything in it; in other formats as matplotlib does.

        More options are those of `matplotlib.animation.Animation.save`.

        Parameters
        ----------
        filename : str or Path
            Its ending says the format: .gif, .html or .htm, or whatever matplotlib finds a writer for.
        writer : matplotlib.animation.AbstractMovieWriter or str, optional
            Default: None, Pillow for a GIF.
        """
        ending = Path(filename).suffix.lower()
        if writer is None and ending in (".html", ".htm"):
            Path(filename).write_text(self.to_html(), encoding="utf-8")
            return
        if writer is None and ending == ".gif":
            writer = PillowWriter(fps=1000 / self._milliseconds)
        super().save(filename, writer=writer, **options)

    def to_html(self) -> str:
        """Give a page that shows the frames, one by one or all below one another where scripts are off.

        Returns
        -------
        str
            HTML with pictures and script in it: it needs no network.
        """
        ground = html.escape(_hex(self._figure.get_facecolor()))
        head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        head += "<title>The eight steps of attention</title>"
        body = f'<body style="margin:0;background:{ground}">{self._repr_html_()}</body>'
        return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>{body}</html>\n'

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        style = "max-width:100%;display:block"
        images = "\n".join(
            f'<img style="{style}" alt="{html.escape(caption)}" src="data:image/png;base64,{picture}">'
            for caption, picture in zip(self.captions, self._pictures(), strict=True)
        )
        return _PLAYER.replace("IMAGES", images).replace("INTERVAL", f"{self._milliseconds:.0f}")

    def _pictures(self) -> list[str]:
        """Draw each frame as a PNG in base64, together less than a megabyte."""
        self._draw_was_started = True  # else matplotlib warns that nothing was ever shown
        pictures: list[str] = []
        for dpi in (self._figure.dpi, 72, 50):
            pictures = [self._picture(number, dpi) for number in range(len(self.captions))]
            if sum(map(len, pictures)) < _MOST_BYTES:
                break
        return pictures

    def _picture(self, number: int, dpi: float) -> str:
        """Of few colours: half the bytes, and no difference to be seen."""
        self._draw(number)
        drawn, small = io.BytesIO(), io.BytesIO()
        self._figure.savefig(drawn, format="png", dpi=dpi)
        with Image.open(drawn) as image:
            image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        return b64encode(small.getvalue()).decode()


_PLAYER = """<div>
<p style="margin:0.3em;display:none">
<button>◀</button> <button>pause</button> <button>▶</button>
</p>
IMAGES
<script>
(function (player) {
  var images = player.querySelectorAll("img"), buttons = player.querySelectorAll("button"), at = 0, timer = null;
  function show(to) {
    at = (to + images.length) % images.length;
    images.forEach(function (image, i) { image.style.display = i === at ? "block" : "none"; });
  }
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(function () { show(at + 1); }, INTERVAL) : null;
    buttons[1].textContent = on ? "pause" : "play";
  }
  buttons[0].onclick = function () { play(false); show(at - 1); };
  buttons[1].onclick = function () { play(timer === null); };
  buttons[2].onclick = function () { play(false); show(at + 1); };
  player.querySelector("p").style.display = "block";
  show(0);
  play(true);
})(document.currentScript.parentElement);
</script>
</div>"""


def animate(
    trace: TraceLike, figure: Figure | None = None, *, interval: float = 1800, dark: bool | None = None
) -> StepsAnimation:
    """Show the eight steps of a trace one after another: what is read has a dashed frame, what comes of it a solid one.

    Parameters
    ----------
    trace : Trace
        Of `pyattn.trace`. Steps 4 to 7 are those of its first input; step 8 goes through the next ones.
    figure : Figure, optional
        An empty one to draw on; the page is scaled to fit. Default: None, a new one as large as the page.
    interval : float
        Milliseconds from one frame to the next. Default: 1800.
    dark : bool, optional
        Default: None, what the colour of the figure's ground asks for.

    Returns
    -------
    StepsAnimation
        With ``.save("steps.gif")`` and ``.save("steps.html")``; a notebook shows it.

    Raises
    ------
    TypeError
        trace is none, or interval is no number.
    ValueError
        One of its arrays has not one or two axes; interval is not positive.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace(x, w_query, w_key, w_value)  # doctest: +SKIP
    >>> pyattn.plot.animate(trace).save("steps.gif")  # doctest: +SKIP
    """
    try:
        milliseconds = float(interval)
    except (TypeError, ValueError):
        raise TypeError(f"interval is {interval!r}, expected a number of milliseconds") from None
    if not 0 < milliseconds < math.inf:
        raise ValueError(f"interval is {interval}, expected a number of milliseconds above 0")
    parts = read_steps(trace)
    lettering = Lettering(texts_of(trace, parts))
    film = _Film(trace, parts, lettering)
    if figure is None:
        figure = Figure(figsize=(film.size[0] / 72, film.size[1] / 72))
    look = look_of_figure(figure, dark)
    if not isinstance(figure, Figure):
        raise TypeError(f"figure is of type {type(figure).__name__}, expected a Figure: all of it is saved")

    def draw(number: int) -> list[Any]:
        figure.clear()
        film.draw(film.frames[number], figure, look)
        return []

    draw(0)
    return StepsAnimation(figure, draw, film.captions(), milliseconds)


class _Film:
    """Where each matrix stands, the same in all frames, and which frames there are."""

    def __init__(self, trace: TraceLike, parts: list[StepLike], lettering: Lettering) -> None:
        self.lettering = lettering
        self.axis = 0 if getattr(trace, "convention", "row") == "row" else 1
        names = [name for column in (*_COLUMNS, _LAST) for name in column if name != "weighted_values"]
        known = {name: getattr(trace, name, None) for name in names}
        self.arrays = {name: np.asarray(array, dtype=np.float64) for name, array in known.items() if array is not None}
        self.queries = self.arrays["weights"].shape[self.axis]
        cells = {name: measure(name, array, lettering, _ROOM) for name, array in self.arrays.items()}
        cells["weighted_values"] = measure("weighted_values", self._weighted(0), lettering, _ROOM)
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
        """Say in words what each frame shows."""
        return [f"Step {self._title(frame)}" for frame in self.frames]

    def _title(self, frame: _Frame) -> str:
        about = f": {frame.query + 1}" if frame.step.number == 8 and frame.made else ""
        return f"{frame.step.number}  {frame.step.title}{about}"

    def draw(self, frame: _Frame, figure: Figure, look: Look) -> None:
        """Draw all matrices, those that are not there yet as empty cells."""
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


def _hex(colour: Any) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in tuple(colour)[:3])

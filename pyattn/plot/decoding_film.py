"""A generation frame by frame: what every head attends to while a model writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.figure import Figure

from pyattn._util.vocabulary import Vocabulary, word_of
from pyattn.plot.canvas import Canvas
from pyattn.plot.head_grid import GridOfHeads, arrange
from pyattn.plot.lettering import Lettering
from pyattn.plot.looks import Look
from pyattn.plot.reading import Array, Tokens, read_tokens

__all__ = ["DecodingFilm", "GenerationLike", "RowStepLike"]

_MARGIN, _HEAD, _FOOT = 24.0, 96.0, 36.0
_PAGE = (860.0, 640.0)
"""Width and height in points that maps take at most, unless there are too many heads for it."""

_MOST_FRAMES = 40
_MOST_OTHERS = 3
_MOST_LETTERS = 12
"""How wide a token is beside a map before it is cut."""


class RowStepLike(Protocol):
    """A step of one sequence, as `pyattn.generation` makes it."""

    @property
    def decoder_input(self) -> npt.NDArray[Any]:
        """Ids of all tokens so far, (n,)."""

    @property
    def token(self) -> int:
        """The id that follows."""

    @property
    def probability(self) -> float:
        """Of it."""

    @property
    def alternatives(self) -> Any:
        """Other ids in `indices`, and their probabilities in `values`."""

    @property
    def self_weights(self) -> Array | None:
        """What new tokens give to those so far, (layers, heads, new, n)."""

    @property
    def cross_weights(self) -> Array | None:
        """What they give to the source, (layers, heads, new, S)."""


class GenerationLike(Protocol):
    """What `pyattn.generate` returns with return_steps."""

    def row_steps(self, row: SupportsIndex = 0) -> Sequence[Any]:
        """Follow one sequence through its steps.

        Parameters
        ----------
        row : int
            Which of them. Default: 0.

        Returns
        -------
        sequence of RowStepLike
        """


class _Frame(NamedTuple):
    """What is seen at one time: a step, by its number, or with `ended` all that comes of the last one."""

    number: int
    ended: bool


class DecodingFilm:
    """Where the map of each head stands, the same in all frames, and which frames there are.

    Parameters
    ----------
    generation : Generation
        With its steps.
    row : int
        A row of its tokens.
    source : sequence or None
        The tokens that an encoder has read; None numbers them.
    vocabulary : sequence of str, mapping of int to str, or None
        The word of each id that the decoder reads and writes; None writes ids.

    Raises
    ------
    TypeError
        source or vocabulary is of another type.
    ValueError
        There is no such row, it has no tokens or no weights, or words do not fit.
    """

    title = "Decoding, step by step"

    def __init__(
        self, generation: GenerationLike, row: SupportsIndex, source: Tokens | None, vocabulary: Vocabulary
    ) -> None:
        self.steps: list[RowStepLike] = list(generation.row_steps(row))
        if not self.steps:
            raise ValueError(f"row {row} of the generation has no tokens: there is nothing to draw")
        own, cross = _self_weights(self.steps), _cross_weights(self.steps)
        if source is not None and cross is None:
            raise ValueError("source was given, and the generation has no weights of attention to one: leave it out")
        length = 0 if cross is None else cross.shape[-1]
        self.source = read_tokens(source, "source", length, "one for each token that the encoder has read")
        words = _read_words(self.steps, vocabulary)
        last = self.steps[-1]
        self.said = [words[token] for token in (*last.decoder_input.tolist(), last.token)]
        self.others = [_alternatives(step, words) for step in self.steps]
        self.lettering = Lettering([*self.source, *self.said, *self.others, "→…", *map(str, range(10))])
        self.grids = self._grids(own, cross)
        largest = max(float(np.nanmax(grid.weights, initial=0)) for grid in self.grids)
        self.limits = Normalize(0, largest or 1.0)
        self.places, size = arrange(self.grids, _PAGE)
        self.size = max(size[0], 400.0) + 2 * _MARGIN, _HEAD + size[1] + _FOOT
        self.frames = self._frames()

    def _grids(self, own: Array | None, cross: Array | None) -> list[GridOfHeads]:
        """Of attention to the source, beside whose rows stands what comes of them, and to what is written."""
        inputs = [self.lettering.write(word, _MOST_LETTERS) for word in self.said[:-1]]
        grids = []
        if cross is not None:
            outputs = [self.lettering.write(f"→ {word}", _MOST_LETTERS + 2) for word in self.said[1:]]
            columns = [self.lettering.write(word, _MOST_LETTERS) for word in self.source]
            grids.append(GridOfHeads("attention to the source", cross, outputs, columns, self.lettering))
        if own is not None:
            grids.append(GridOfHeads("attention to what is written", own, inputs, None, self.lettering))
        if not grids:
            raise ValueError("the generation has no weights of attention: its model gives none")
        return grids

    def _frames(self) -> list[_Frame]:
        """Each step, or every second, third ... of many; and then all."""
        every, last = -(-len(self.steps) // _MOST_FRAMES), len(self.steps) - 1
        shown = sorted({*range(0, last, every), last})
        return [*(_Frame(number, False) for number in shown), _Frame(last, True)]

    def captions(self) -> list[str]:
        """Say in words what each frame shows.

        Returns
        -------
        list of str
        """
        return [f"{self._title(frame)}: {' '.join(self._written(frame))}" for frame in self.frames]

    def _title(self, frame: _Frame) -> str:
        count = len(self.steps)
        return f"After {count} steps" if frame.ended else f"Step {frame.number + 1} of {count}"

    def _written(self, frame: _Frame) -> list[str]:
        """Give what went in, an arrow, and what came out; or all of it."""
        before = len(self.steps[frame.number].decoder_input)
        return self.said if frame.ended else [*self.said[:before], "→", self.said[before]]

    def draw(self, number: int, figure: Figure, look: Look) -> None:
        """Draw the maps of all heads, with a row for each token so far.

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
        scale = colormaps[look.scale].with_extremes(bad=to_rgb(look.empty))
        so_far = len(self.steps[frame.number].decoder_input)
        for grid, (x, y) in zip(self.grids, self.places, strict=True):
            place = (_MARGIN + x, _HEAD + y)
            grid.draw(canvas, place, so_far, (scale, self.limits), marked=not frame.ended)
        self._write(canvas, frame)
        self._draw_scale(canvas, scale)

    def _write(self, canvas: Canvas, frame: _Frame) -> None:
        """Say what is done, what was read, what is written, and what else might have been."""
        faint = canvas.look.faint
        canvas.write(_MARGIN, 22, self._title(frame), 14, weight=self.lettering.bold)
        if self.source:
            canvas.write(_MARGIN, 45, self._ending(["source:", *self.source]), 9, colour=faint)
        canvas.write(_MARGIN, 62, self._ending(self._written(frame)), 11)
        if not frame.ended:
            step = self.steps[frame.number]
            line = f"probability {step.probability:.3f}{self.others[frame.number]}"
            canvas.write(_MARGIN, 79, self.lettering.wrap(line, 9, self.size[0] - 2 * _MARGIN)[0], 9, colour=faint)

    def _ending(self, words: list[str]) -> str:
        """As many of the last words as a line has room for, in the larger letters that are used."""
        room = self.size[0] - 2 * _MARGIN
        for start in range(len(words)):
            line = self.lettering.write(" ".join(["…", *words[start:]] if start else words))
            if self.lettering.width(line, 11) <= room:
                return line
        return "…"

    def _draw_scale(self, canvas: Canvas, scale: Colormap) -> None:
        """Draw a strip with the colours of all weights, and say what its ends mean."""
        y, width, height = self.size[1] - 22, 120.0, 7.0
        canvas.paint((_MARGIN, y, width, height), np.linspace(0, 1, 64)[np.newaxis], scale, Normalize(0, 1))
        canvas.outline(_MARGIN, y, width, height, 0.6)
        end = f"{self.limits.vmax:.2g}"
        canvas.write(_MARGIN + width + 6, y + height / 2, f"weights from 0 to {end}", 7.5, colour=canvas.look.faint)


def _cross_weights(steps: list[RowStepLike]) -> Array | None:
    """Of all tokens that went in, (layers, heads, n, S)."""
    rows = [step.cross_weights for step in steps if step.cross_weights is not None]
    return np.concatenate(rows, axis=2).astype(np.float64) if rows else None


def _self_weights(steps: list[RowStepLike]) -> Array | None:
    """Of all tokens that went in, (layers, heads, n, n); NaN where a token does not see those after it."""
    rows = [step.self_weights for step in steps if step.self_weights is not None]
    if not rows:
        return None
    size = len(steps[-1].decoder_input)
    whole = np.full((*rows[0].shape[:2], size, size), np.nan)
    start = 0
    for part in rows:
        whole[:, :, start : start + part.shape[2], : part.shape[3]] = part
        start += part.shape[2]
    whole[:, :, np.triu(np.ones((size, size), bool), 1)] = np.nan
    return whole


def _read_words(steps: list[RowStepLike], vocabulary: Vocabulary) -> dict[int, str]:
    """Find the word of each id that is written anywhere."""
    last = steps[-1]
    ids = {*last.decoder_input.tolist(), last.token}
    ids |= {token for step in steps for token in step.alternatives.indices[:_MOST_OTHERS].tolist()}
    return {token: word_of(token, vocabulary) for token in sorted(ids)}


def _alternatives(step: RowStepLike, words: dict[int, str]) -> str:
    """Write the likeliest other tokens, those that are not all but impossible."""
    others = zip(step.alternatives.indices.tolist(), step.alternatives.values.tolist(), strict=True)
    likely = [f"{words[token]} {share:.3f}" for token, share in list(others)[:_MOST_OTHERS] if share >= 0.0005]
    return f"; also possible: {', '.join(likely)}" if likely else ""

"""The frames of an animated generation: the attention weights of every head, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.colors import Colormap, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.typing import ColorType

from pyattn._util.vocabulary import Vocabulary, word_of
from pyattn.plot.fonts import Fonts
from pyattn.plot.head_grid import HeadGrid, arrange_grids
from pyattn.plot.inputs import Array, Tokens, read_tokens
from pyattn.plot.page import Page
from pyattn.plot.theme import Theme

__all__ = ["DecodingFrames", "GenerationLike", "RowStepLike"]

_MARGIN, _HEADER, _FOOTER = 24.0, 96.0, 36.0
_MAX_GRID_SIZE = (560.0, 700.0)
"""Largest width and height of the heat maps in points, unless there are too many heads to fit."""

_MAX_FRAMES = 40
_LEVELS = 48
"""Colours of the heat maps: few enough for a GIF to keep all of them."""

_MAX_ALTERNATIVES = 3
_MAX_TOKEN_WIDTH = 12
"""Longer tokens beside a heat map are shortened."""


class RowStepLike(Protocol):
    """A step of one sequence, as `pyattn.generation` makes it."""

    @property
    def decoder_input(self) -> npt.NDArray[Any]:
        """Ids of all tokens so far, (n,)."""

    @property
    def token(self) -> int:
        """The id of the next token."""

    @property
    def probability(self) -> float:
        """The probability of that token."""

    @property
    def alternatives(self) -> Any:
        """The most likely other tokens: ids in `indices`, probabilities in `values`."""

    @property
    def self_weights(self) -> Array | None:
        """Self-attention weights of the new tokens, (layers, heads, new, n), or None."""

    @property
    def cross_weights(self) -> Array | None:
        """Cross-attention weights of the new tokens, (layers, heads, new, S), or None."""


class GenerationLike(Protocol):
    """The result of `pyattn.generate` with ``return_steps=True``."""

    def row_steps(self, row: SupportsIndex = 0) -> Sequence[Any]:
        """Return the steps of one sequence."""


class _Frame(NamedTuple):
    """One frame: the number of its step; ended marks the first frame, which shows the finished sequence."""

    number: int
    ended: bool


class DecodingFrames:
    """The frames of an animated generation; each heat map has the same position in all of them."""

    title = "Decoding, step by step"

    def __init__(
        self, generation: GenerationLike, row: SupportsIndex, source: Tokens | None, vocabulary: Vocabulary
    ) -> None:
        self.steps: list[RowStepLike] = list(generation.row_steps(row))
        if not self.steps:
            raise ValueError(f"row {row} of the generation has no tokens; choose another row")
        self_weights, cross_weights = _self_weights(self.steps), _cross_weights(self.steps)
        if source is not None and cross_weights is None:
            raise ValueError("source was given, but the generation has no cross-attention weights; leave it out")
        length = 0 if cross_weights is None else cross_weights.shape[-1]
        self.source = read_tokens(source, "source", length, "one for each token of the encoder's source")
        words = _read_words(self.steps, vocabulary)
        last = self.steps[-1]
        self.words = [words[token] for token in (*last.decoder_input.tolist(), last.token)]
        self.sampled = bool(getattr(generation, "do_sample", False))
        self.alternatives = [_alternatives(step, words) for step in self.steps]
        self.fonts = Fonts([*self.source, *self.words, *self.alternatives, "→…", *map(str, range(10))])
        self.grids = self._grids(self_weights, cross_weights)
        largest = max(float(np.nanmax(grid.weights, initial=0)) for grid in self.grids)
        self.limits = Normalize(0, largest or 1.0)
        self.positions, size = arrange_grids(self.grids, _MAX_GRID_SIZE)
        self.size = max(size[0], 400.0) + 2 * _MARGIN, _HEADER + size[1] + _FOOTER
        self.frames = self._frames()

    def _grids(self, self_weights: Array | None, cross_weights: Array | None) -> list[HeadGrid]:
        """Make the grids: cross-attention, with the next token beside each row, and self-attention."""
        inputs = [self.fonts.escape(word, _MAX_TOKEN_WIDTH) for word in self.words[:-1]]
        grids = []
        if cross_weights is not None:
            outputs = [self.fonts.escape(f"→ {word}", _MAX_TOKEN_WIDTH + 2) for word in self.words[1:]]
            columns = [self.fonts.escape(word, _MAX_TOKEN_WIDTH) for word in self.source]
            grids.append(
                HeadGrid(
                    "cross-attention", ("next tokens", "source tokens"), cross_weights, outputs, columns, self.fonts
                )
            )
        if self_weights is not None:
            grids.append(
                HeadGrid(
                    "masked self-attention",
                    ("decoder inputs", "decoder inputs"),
                    self_weights,
                    inputs,
                    None,
                    self.fonts,
                )
            )
        if not grids:
            raise ValueError("the generation has no attention weights: its model returns none")
        return grids

    def _frames(self) -> list[_Frame]:
        """Begin with the finished sequence, then show up to 40 steps at regular intervals, the last one included."""
        every, last = -(-len(self.steps) // _MAX_FRAMES), len(self.steps) - 1
        shown = sorted({*range(0, last, every), last})
        return [_Frame(last, True), *(_Frame(number, False) for number in shown)]

    def _colormap(self, theme: Theme) -> Colormap:
        return colormaps[theme.colormap].resampled(_LEVELS).with_extremes(bad=to_rgb(theme.empty))

    def colours(self, theme: Theme) -> list[ColorType]:
        """Return colours that a picture with few colours must keep: those of the heat maps."""
        return [*map(tuple, self._colormap(theme)(np.arange(_LEVELS))), theme.empty, theme.muted]

    def captions(self) -> list[str]:
        """Return a caption for each frame."""
        return [f"{self._title(frame)}: {' '.join(self._words_so_far(frame))}" for frame in self.frames]

    def _title(self, frame: _Frame) -> str:
        count = len(self.steps)
        title = f"After {count} steps" if frame.ended else f"Step {frame.number + 1} of {count}"
        return f"{title}, sampled" if self.sampled else title

    def _words_so_far(self, frame: _Frame) -> list[str]:
        """Return the decoder input, an arrow and the next token; at the end, the whole sequence."""
        before = len(self.steps[frame.number].decoder_input)
        return self.words if frame.ended else [*self.words[:before], "→", self.words[before]]

    def draw(self, number: int, figure: Figure, theme: Theme) -> None:
        """Draw a frame: the heat maps of all heads, with a row for each token so far."""
        frame = self.frames[number]
        page = Page(figure, self.size, theme, self.fonts)
        colormap = self._colormap(theme)
        shown_rows = len(self.steps[frame.number].decoder_input)
        for grid, (x, y) in zip(self.grids, self.positions, strict=True):
            place = (_MARGIN + x, _HEADER + y)
            grid.draw(page, place, shown_rows, (colormap, self.limits), marked=not frame.ended)
        self._write_text(page, frame)
        self._draw_colorbar(page, colormap)

    def _write_text(self, page: Page, frame: _Frame) -> None:
        """Write the title, the source, the tokens so far, and the probabilities of the next token."""
        muted = page.theme.muted
        page.write(_MARGIN, 22, self._title(frame), 14, weight=self.fonts.bold)
        if self.source:
            page.write(_MARGIN, 45, self._last_words(["source:", *self.source]), 9, colour=muted)
        page.write(_MARGIN, 62, self._last_words(self._words_so_far(frame)), 11)
        if not frame.ended:
            step, kind = self.steps[frame.number], "sampled with probability" if self.sampled else "probability"
            line = f"{kind} {step.probability:.3f}{self.alternatives[frame.number]}"
            page.write(_MARGIN, 79, self.fonts.wrap(line, 9, self.size[0] - 2 * _MARGIN)[0], 9, colour=muted)

    def _last_words(self, words: list[str]) -> str:
        """Return as many of the last words as fit into one line at the larger font size of the page."""
        max_width = self.size[0] - 2 * _MARGIN
        for start in range(len(words)):
            line = self.fonts.escape(" ".join(["…", *words[start:]] if start else words))
            if self.fonts.width(line, 11) <= max_width:
                return line
        return "…"

    def _draw_colorbar(self, page: Page, colormap: Colormap) -> None:
        """Draw a colorbar for all heat maps, with the weights at its ends."""
        y, width, height = self.size[1] - 22, 120.0, 7.0
        levels = (np.arange(_LEVELS) + 0.5) / _LEVELS
        page.draw_image((_MARGIN, y, width, height), levels[np.newaxis], colormap, Normalize(0, 1))
        page.outline(_MARGIN, y, width, height, 0.6)
        end = f"{self.limits.vmax:.2g}"
        page.write(_MARGIN + width + 6, y + height / 2, f"weights from 0 to {end}", 7.5, colour=page.theme.muted)


def _cross_weights(steps: list[RowStepLike]) -> Array | None:
    """Join the cross-attention weights of all decoder inputs, (layers, heads, n, S)."""
    rows = [step.cross_weights for step in steps if step.cross_weights is not None]
    return np.concatenate(rows, axis=2).astype(np.float64) if rows else None


def _self_weights(steps: list[RowStepLike]) -> Array | None:
    """Join the self-attention weights of all decoder inputs, (layers, heads, n, n); NaN for later keys."""
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
    """Look up the word of each token id that a frame shows."""
    last = steps[-1]
    ids = {*last.decoder_input.tolist(), last.token}
    ids |= {token for step in steps for token in step.alternatives.indices[:_MAX_ALTERNATIVES].tolist()}
    return {token: word_of(token, vocabulary) for token in sorted(ids)}


def _alternatives(step: RowStepLike, words: dict[int, str]) -> str:
    """List the most likely other tokens whose probability does not round to 0.000."""
    others = zip(step.alternatives.indices.tolist(), step.alternatives.values.tolist(), strict=True)
    likely = [(token, share) for token, share in list(others)[:_MAX_ALTERNATIVES] if share >= 0.0005]
    more = sum(share > step.probability for _, share in likely)
    named = [f"{words[token]} {share:.3f}" for token, share in likely]
    parts = [("more likely", named[:more]), ("also possible" if not more else "less likely", named[more:])]
    return "".join(f"; {what}: {', '.join(some)}" for what, some in parts if some)

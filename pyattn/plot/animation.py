"""`animate`: the eight steps of a trace, or decoding token by token, as an animation."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex

from matplotlib.figure import Figure

from pyattn._util.vocabulary import Vocabulary
from pyattn.plot.decoding_frames import DecodingFrames, GenerationLike
from pyattn.plot.inputs import Tokens
from pyattn.plot.steps_animation import StepsAnimation
from pyattn.plot.theme import figure_theme
from pyattn.plot.trace_arrays import TraceLike
from pyattn.plot.trace_frames import TraceFrames
from pyattn.tracing.heads import BackwardHeadTraces
from pyattn.tracing.traces import BackwardTrace

__all__ = ["animate"]

_MAX_INTERVAL, _MAX_SECONDS = 1200.0, 12.0
"""Milliseconds per frame and seconds of an animation, if no interval is given."""


def animate(
    steps: TraceLike | GenerationLike,
    figure: Figure | None = None,
    *,
    row: SupportsIndex = 0,
    source: Tokens | None = None,
    vocabulary: Vocabulary = None,
    interval: float | None = None,
    dark: bool | None = None,
) -> StepsAnimation:
    """Animate the eight steps of a trace, or the steps of a generation.

    The first frame is the finished result. For a trace, arrays that a step reads have a dashed frame, its results a
    solid one, and arrows lead from what is read to what comes of it. For a generation, every head of each layer has a
    heat map, with a row for each decoder input and a column for each token that it attends to; a frame marks the row
    from which the next token is predicted.

    Parameters
    ----------
    steps : Trace or Generation
        The result of `pyattn.trace`: steps 4 to 7 show the first input, and step 8 repeats them for the others. Or the
        result of `pyattn.generate` with ``return_steps=True``: at most 40 steps are shown, at regular intervals.
    figure : Figure, optional
        An empty figure to draw on; the page is scaled to fit. Default: None, a new one as large as the page.
    row : int
        For a generation: the row of its tokens to show. Default: 0.
    source : sequence, optional
        For a generation: the tokens of the encoder's source. Default: None, positions.
    vocabulary : sequence of str or mapping of int to str, optional
        For a generation: the word of each token id. Default: None, ids are written.
    interval : float
        Milliseconds per frame. Default: None, 1200, or less to play all frames within 12 seconds.
    dark : bool, optional
        Draw in light colours on a dark background. Default: None, by the figure's background.

    Returns
    -------
    StepsAnimation
        Save it with ``.save("steps.gif")`` or ``.save("steps.html")``; a notebook plays it.

    Raises
    ------
    TypeError
        steps is neither, an argument is of another type, or an argument for a generation is given with a trace.
    ValueError
        An array of the trace does not have one or two axes; the generation has no steps, row or attention weights to
        show, or its tokens do not match source or vocabulary; or interval is not positive.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace(x, w_query, w_key, w_value)  # doctest: +SKIP
    >>> pyattn.plot.animate(trace).save("steps.gif")  # doctest: +SKIP
    >>> generation = pyattn.generate(model, source, max_new_tokens=9, return_steps=True)  # doctest: +SKIP
    >>> pyattn.plot.animate(generation, vocabulary=words).save("decoding.html")  # doctest: +SKIP
    """
    milliseconds = None if interval is None else _read_interval(interval)
    frames = _make_frames(steps, row, source, vocabulary)
    captions = frames.captions()
    if milliseconds is None:
        milliseconds = min(_MAX_INTERVAL, _MAX_SECONDS * 1000 / len(captions))
    if figure is None:
        figure = Figure(figsize=(frames.size[0] / 72, frames.size[1] / 72))
    theme = figure_theme(figure, dark)
    if not isinstance(figure, Figure):
        raise TypeError(f"figure is of type {type(figure).__name__}, expected a Figure, which can be saved")

    def draw(number: int) -> list[Any]:
        figure.clear()
        frames.draw(number, figure, theme)
        return []

    draw(0)
    colours = [theme.background, theme.foreground, *frames.colours(theme)]
    return StepsAnimation(figure, draw, captions, milliseconds, frames.title, colours)


def _read_interval(interval: float) -> float:
    try:
        milliseconds = float(interval)
    except (TypeError, ValueError):
        raise TypeError(f"interval is {interval!r}, expected a number of milliseconds") from None
    if not 0 < milliseconds < math.inf:
        raise ValueError(f"interval is {interval}, expected a number of milliseconds above 0")
    return milliseconds


def _make_frames(
    steps: Any, row: SupportsIndex, source: Tokens | None, vocabulary: Vocabulary
) -> TraceFrames | DecodingFrames:
    if hasattr(steps, "row_steps"):
        return DecodingFrames(steps, row, source, vocabulary)
    if not hasattr(steps, "steps") or isinstance(steps, BackwardTrace):
        fix = "; choose a head, steps.heads[0]" if hasattr(steps, "heads") else ""
        if isinstance(steps, BackwardTrace):
            fix = "; gradients are not animated: pyattn.plot.steps draws them"
        elif isinstance(steps, BackwardHeadTraces):
            fix = "; gradients are not animated: pyattn.plot.steps(steps.heads[0]) draws those of a head"
        raise TypeError(
            f"steps is of type {type(steps).__name__}, expected what pyattn.trace or pyattn.generate returns{fix}"
        )
    for name, value in (("row", row or None), ("source", source), ("vocabulary", vocabulary)):
        if value is not None:
            raise TypeError(f"{name} is for a generation, but steps is of type {type(steps).__name__}; leave it out")
    return TraceFrames(steps)

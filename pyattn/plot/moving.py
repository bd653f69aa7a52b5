"""Moving pictures: the eight steps of a trace, and decoding, token by token."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex

from matplotlib.figure import Figure

from pyattn._util.vocabulary import Vocabulary
from pyattn.plot.decoding_film import DecodingFilm, GenerationLike
from pyattn.plot.looks import look_of_figure
from pyattn.plot.pages import TraceLike
from pyattn.plot.playing import StepsAnimation
from pyattn.plot.reading import Tokens
from pyattn.plot.step_film import StepFilm

__all__ = ["animate"]


def animate(
    steps: TraceLike | GenerationLike,
    figure: Figure | None = None,
    *,
    row: SupportsIndex = 0,
    source: Tokens | None = None,
    vocabulary: Vocabulary = None,
    interval: float = 1800,
    dark: bool | None = None,
) -> StepsAnimation:
    """Show steps one after another: those of a trace, or those in which a model wrote.

    Of a trace: what is read has a dashed frame, what comes of it a solid one. Of a generation: a map for each head of
    each layer, with a row for each token that went in, a column for each token that it attends to, and a frame around
    the row that the next token comes of.

    Parameters
    ----------
    steps : Trace or Generation
        Of `pyattn.trace`: its steps 4 to 7 are those of the first input, and step 8 goes through the next ones. Or of
        `pyattn.generate` with return_steps: of more than 40 steps, every second, third and so on is shown.
    figure : Figure, optional
        An empty one to draw on; the page is scaled to fit. Default: None, a new one as large as the page.
    row : int
        Of a generation: which row of its tokens. Default: 0.
    source : sequence, optional
        Of a generation: the tokens that the encoder has read. Default: None, their positions.
    vocabulary : sequence of str or mapping of int to str, optional
        Of a generation: the word of each id. Default: None, ids are written.
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
        steps is neither, an argument is of another type, or one of a generation stands beside a trace.
    ValueError
        An array of the trace has not one or two axes; the generation has no steps, no such row or no weights, or words
        do not fit it; interval is not positive.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace(x, w_query, w_key, w_value)  # doctest: +SKIP
    >>> pyattn.plot.animate(trace).save("steps.gif")  # doctest: +SKIP
    >>> generation = pyattn.generate(model, source, max_new_tokens=9, return_steps=True)  # doctest: +SKIP
    >>> pyattn.plot.animate(generation, vocabulary=words).save("decoding.html")  # doctest: +SKIP
    """
    try:
        milliseconds = float(interval)
    except (TypeError, ValueError):
        raise TypeError(f"interval is {interval!r}, expected a number of milliseconds") from None
    if not 0 < milliseconds < math.inf:
        raise ValueError(f"interval is {interval}, expected a number of milliseconds above 0")
    film = _make_film(steps, row, source, vocabulary)
    if figure is None:
        figure = Figure(figsize=(film.size[0] / 72, film.size[1] / 72))
    look = look_of_figure(figure, dark)
    if not isinstance(figure, Figure):
        raise TypeError(f"figure is of type {type(figure).__name__}, expected a Figure: all of it is saved")

    def draw(number: int) -> list[Any]:
        figure.clear()
        film.draw(number, figure, look)
        return []

    draw(0)
    return StepsAnimation(figure, draw, film.captions(), milliseconds, film.title)


def _make_film(
    steps: Any, row: SupportsIndex, source: Tokens | None, vocabulary: Vocabulary
) -> StepFilm | DecodingFilm:
    if hasattr(steps, "row_steps"):
        return DecodingFilm(steps, row, source, vocabulary)
    if not hasattr(steps, "steps"):
        fix = "; choose a head, steps.heads[0]" if hasattr(steps, "heads") else ""
        raise TypeError(
            f"steps is of type {type(steps).__name__}, expected what pyattn.trace or pyattn.generate returns{fix}"
        )
    for name, value in (("row", row or None), ("source", source), ("vocabulary", vocabulary)):
        if value is not None:
            raise TypeError(f"{name} goes with a generation, and steps is of type {type(steps).__name__}")
    return StepFilm(steps)

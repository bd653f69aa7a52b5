"""How pictures look: colours on a light or a dark ground, and figures that pyplot knows nothing of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_rgb, to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.typing import ColorType

__all__ = [
    "DARK",
    "LIGHT",
    "PALETTE",
    "Look",
    "choose_look",
    "contrasting",
    "look_of_figure",
    "new_axes",
    "room_for_labels",
    "tint",
    "two_sided",
]

PALETTE = {
    "inputs": "#aae28d",
    "keys": "#ec8a12",
    "queries": "#c31d14",
    "values": "#762b80",
    "scores": "#568cf0",
    "weighted_values": "#fdee1c",
    "outputs": "#144233",
}
"""The worked example's colours: green, orange, red, purple, blue, yellow and dark green.

Of all such colours those that stay furthest apart for readers who lack one kind of cone, too."""


class Look(NamedTuple):
    """A ground and what is written on it; `scale` runs from the ground to the strongest colour."""

    dark: bool
    ground: str
    ink: str
    faint: str
    empty: str
    line: str
    scale: str


LIGHT = Look(False, "#ffffff", "#1c1c22", "#5c5c66", "#efeff2", "#2563b0", "magma_r")
DARK = Look(True, "#17171c", "#f0f0f2", "#a9a9b4", "#2b2b33", "#7db4f5", "magma")


def choose_look(ax: Axes, dark: bool | None, *, own: bool) -> Look:
    """Choose light or dark for an axes, and colour its ground where that is asked for.

    Parameters
    ----------
    ax : Axes
        To draw on.
    dark : bool or None
        None takes what the axes' face colour is, or the figure's where that is transparent.
    own : bool
        Whether the figure was made for this picture, so that all of it takes the ground.

    Returns
    -------
    Look

    Raises
    ------
    TypeError
        ax is no axes.
    """
    if not isinstance(ax, Axes):
        fix = "; choose one, ax.flat[0]" if isinstance(ax, np.ndarray) else ""
        raise TypeError(f"ax is of type {type(ax).__name__}, expected one of matplotlib's Axes{fix}")
    figure = ax.figure
    if dark is None:
        return _look_on(ax.get_facecolor(), figure.get_facecolor())
    look = DARK if dark else LIGHT
    ax.set_facecolor(look.ground)
    if own:
        figure.set_facecolor(look.ground)
    return look


def look_of_figure(figure: Figure | SubFigure, dark: bool | None) -> Look:
    """Choose light or dark for a figure that one picture takes all of.

    Parameters
    ----------
    figure : Figure or SubFigure
        To draw on.
    dark : bool or None
        None takes what the figure's face colour is.

    Returns
    -------
    Look

    Raises
    ------
    TypeError
        figure is none.
    """
    if not isinstance(figure, (Figure, SubFigure)):
        raise TypeError(f"figure is of type {type(figure).__name__}, expected a Figure of matplotlib")
    if dark is None:
        return _look_on(figure.get_facecolor())
    look = DARK if dark else LIGHT
    figure.set_facecolor(look.ground)
    return look


def new_axes(width: float, height: float) -> Axes:
    """Make a figure of this size in inches, whose only axes leave room for labels as these need it.

    Parameters
    ----------
    width, height : float
        In inches.

    Returns
    -------
    Axes
    """
    return Figure(figsize=(width, height), layout=room_for_labels()).add_subplot()


def room_for_labels() -> ConstrainedLayoutEngine:
    """Make the layout of a new figure: labels have as much room as they need, and a margin.

    Returns
    -------
    ConstrainedLayoutEngine
    """
    return ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)


def contrasting(colour: ColorType) -> str:
    """Black or white, whichever is read more easily on a colour.

    Parameters
    ----------
    colour : color
        What is written on.

    Returns
    -------
    str
    """
    return "#000000" if _luminance(colour) > 0.179 else "#ffffff"  # where both have the contrast 4.6 : 1


def tint(colour: str, look: Look) -> Colormap:
    """Make a scale from nearly the ground to a colour, for matrices too large to write numbers in.

    Parameters
    ----------
    colour : str
        The strongest.
    look : Look
        Its ground.

    Returns
    -------
    Colormap
    """
    start = 0.9 * np.array(to_rgb(look.ground)) + 0.1 * np.array(to_rgb(look.faint))
    end = to_rgb(colour)
    if abs(_luminance(tuple(start)) - _luminance(end)) < 0.15:  # dark green on a dark ground: on through it, to white
        return LinearSegmentedColormap.from_list("tint", [tuple(start), end, look.ink])
    return LinearSegmentedColormap.from_list("tint", [tuple(start), end])


def two_sided(look: Look) -> Colormap:
    """Make a scale for numbers of both signs: orange, through the ground, to blue.

    Parameters
    ----------
    look : Look
        Its ground.

    Returns
    -------
    Colormap
    """
    return LinearSegmentedColormap.from_list("two-sided", [PALETTE["keys"], look.ground, look.line])


def _look_on(*faces: ColorType) -> Look:
    """Of the first that can be seen; where all are transparent, paper is likelier than night."""
    seen = [face for face in faces if to_rgba(face)[3]]
    return DARK if seen and _luminance(seen[0]) < 0.2 else LIGHT


def _luminance(colour: ColorType) -> float:
    """Relative luminance as WCAG defines it, from 0 to 1."""
    part = np.array(to_rgb(colour))
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))

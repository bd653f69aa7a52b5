"""Light and dark themes: colours, colormaps, and new figures that pyplot does not manage."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_rgb, to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.typing import ColorType

__all__ = [
    "DARK",
    "HEAD_COLOURS",
    "LIGHT",
    "PALETTE",
    "ShownAxes",
    "Theme",
    "choose_theme",
    "contrasting",
    "diverging_colormap",
    "figure_theme",
    "label_layout",
    "new_axes",
    "sequential_colormap",
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

The shades are chosen to stay as far apart as possible for colour-blind readers, too."""


HEAD_COLOURS = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
    *("#5b5bff", "#00b38a", "#d400d4", "#b07d00", "#ff5c8a", "#66c400"),
)
"""The colour of each head: the ten that bertviz uses, then six more; head 16 has the first again."""


class Theme(NamedTuple):
    """The colours of a picture; `colormap` runs from near the background to the strongest colour."""

    dark: bool
    background: str
    foreground: str
    muted: str
    empty: str
    line: str
    colormap: str


LIGHT = Theme(False, "#ffffff", "#1c1c22", "#5c5c66", "#efeff2", "#2563b0", "magma_r")
DARK = Theme(True, "#17171c", "#f0f0f2", "#a9a9b4", "#2b2b33", "#7db4f5", "magma")


def choose_theme(ax: Axes, dark: bool | None, *, own: bool) -> Theme:
    """Choose the theme of an axes. If `dark` is given, colour its background and, if `own`, the figure's."""
    if not isinstance(ax, Axes):
        fix = "; choose one, ax.flat[0]" if isinstance(ax, np.ndarray) else ""
        raise TypeError(f"ax is of type {type(ax).__name__}, expected one of matplotlib's Axes{fix}")
    figure = ax.figure
    if dark is None:
        return _theme_for(ax.get_facecolor(), figure.get_facecolor())
    theme = DARK if dark else LIGHT
    ax.set_facecolor(theme.background)
    if own:
        figure.set_facecolor(theme.background)
    return theme


def figure_theme(figure: Figure | SubFigure, dark: bool | None) -> Theme:
    """Choose the theme of a figure that holds one picture. If `dark` is given, colour its background."""
    if not isinstance(figure, (Figure, SubFigure)):
        raise TypeError(f"figure is of type {type(figure).__name__}, expected a Figure of matplotlib")
    if dark is None:
        return _theme_for(figure.get_facecolor())
    theme = DARK if dark else LIGHT
    figure.set_facecolor(theme.background)
    return theme


class ShownAxes(Axes):
    """Axes that a notebook shows as the last line of a cell, as it does a figure."""

    def _repr_png_(self) -> bytes:
        """Draw the whole figure."""
        memory = io.BytesIO()
        self.figure.savefig(memory, format="png")
        return memory.getvalue()


def new_axes(width: float, height: float, kind: type[Axes] = ShownAxes) -> Axes:
    """Make a figure of this size in inches, with one axes and a layout that makes room for labels."""
    return Figure(figsize=(width, height), layout=label_layout()).add_subplot(axes_class=kind)


def label_layout() -> ConstrainedLayoutEngine:
    """Make the layout of a new figure: it leaves room for labels, and a margin."""
    return ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)


def contrasting(colour: ColorType) -> str:
    """Return black or white, whichever is easier to read on a colour."""
    return "#000000" if _luminance(colour) > 0.179 else "#ffffff"  # where both have the contrast 4.6 : 1


def sequential_colormap(colour: str, theme: Theme) -> Colormap:
    """Make a colormap from near the background to a colour, for matrices too large to write numbers in."""
    start = 0.9 * np.array(to_rgb(theme.background)) + 0.1 * np.array(to_rgb(theme.muted))
    end = to_rgb(colour)
    # Dark green hardly differs from a dark background: continue through it to white.
    if abs(_luminance(tuple(start)) - _luminance(end)) < 0.15:
        return LinearSegmentedColormap.from_list("sequential", [tuple(start), end, theme.foreground])
    return LinearSegmentedColormap.from_list("sequential", [tuple(start), end])


def diverging_colormap(theme: Theme) -> Colormap:
    """Make a colormap for numbers of both signs: orange, through the background, to blue."""
    return LinearSegmentedColormap.from_list("diverging", [PALETTE["keys"], theme.background, theme.line])


def _theme_for(*faces: ColorType) -> Theme:
    """Return the theme of the first face colour that is not transparent; light if all are."""
    seen = [face for face in faces if to_rgba(face)[3]]
    return DARK if seen and _luminance(seen[0]) < 0.2 else LIGHT


def _luminance(colour: ColorType) -> float:
    """Relative luminance as WCAG defines it, from 0 to 1."""
    part = np.array(to_rgb(colour))
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))

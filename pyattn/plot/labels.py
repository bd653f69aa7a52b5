"""Labels along an axis: as many tokens as there is room for, at whatever size the axes have when they are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, Locator

from pyattn.plot.lettering import Lettering
from pyattn.plot.looks import Look

__all__ = ["MOST_LETTERS", "TokenLocator", "colour_axes", "label_tokens"]

MOST_LETTERS = 18
"""How wide a token may be before it is cut."""


class TokenLocator(Locator):  # type: ignore[misc] # matplotlib is skipped, pyproject.toml
    """Every token, or every second, fifth, tenth ..., so that labels do not touch.

    Parameters
    ----------
    count : int
        Number of tokens, which lie at 0, 1, 2 ... along the axis.
    need : float
        How much of the axis one label takes, in points.
    """

    def __init__(self, count: int, need: float) -> None:
        self.count = count
        self.need = need

    def __call__(self) -> list[float]:
        """Find the positions that are labelled in the axes' present size.

        Returns
        -------
        list of float
        """
        low, high = sorted(self.axis.get_view_interval())
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Find the positions that are labelled between two ends.

        Parameters
        ----------
        vmin, vmax : float
            The ends.

        Returns
        -------
        list of float
        """
        axes = self.axis.axes
        pixels = axes.bbox.width if self.axis.axis_name == "x" else axes.bbox.height
        pitch = max(pixels * 72 / axes.figure.dpi / max(vmax - vmin, 1e-9), 1e-9)  # points from one token to the next
        step = next((s * 10**e for e in range(12) for s in (1, 2, 5) if s * 10**e * pitch >= self.need), self.count)
        return [float(at) for at in range(0, self.count, step) if vmin - 1e-9 <= at <= vmax + 1e-9]


def label_tokens(
    ax: Axes,
    which: Literal["x", "y"],
    tokens: Sequence[str],
    lettering: Lettering,
    look: Look,
    *,
    name: str = "",
    size: float = 9,
) -> None:
    """Write tokens along an axis; upright along x only where all of them have room side by side.

    Parameters
    ----------
    ax : Axes
        Its tokens lie at 0, 1, 2 ...
    which : {'x', 'y'}
        The axis.
    tokens : sequence of str
        One for each position.
    lettering : Lettering
        Made of these tokens, among others.
    look : Look
        Of the axes.
    name : str
        Of the axis, written beside the tokens. Default: '', nothing.
    size : float
        Of the letters, in points. Default: 9.
    """
    axis = ax.xaxis if which == "x" else ax.yaxis
    texts = [lettering.write(token, MOST_LETTERS) for token in tokens]
    widest = max(lettering.width(text, size) for text in texts)
    room = ax.get_window_extent().width * 72 / ax.figure.dpi / len(texts)
    lying = which == "x" and widest + size > 0.8 * room and any(len(text) > 3 for text in texts)
    axis.set_major_locator(TokenLocator(len(texts), widest + size if which == "x" and not lying else 1.5 * size))
    axis.set_major_formatter(FuncFormatter(lambda at, _: texts[round(at)] if 0 <= round(at) < len(texts) else ""))
    axis.set_tick_params(
        labelsize=size, labelfontfamily=lettering.family, labelrotation=90 if lying else 0, length=2, colors=look.faint
    )
    axis.set_tick_params(labelcolor=look.ink)
    axis.set_label_text(name, color=look.ink, fontsize=size + 1)


def colour_axes(ax: Axes, look: Look) -> None:
    """Give the frame and the words around an axes the colours of its ground.

    Parameters
    ----------
    ax : Axes
        To colour.
    look : Look
        What it looks like.
    """
    for spine in ax.spines.values():
        spine.set_color(look.faint)
        spine.set_linewidth(0.6)
    ax.tick_params(color=look.faint, labelcolor=look.ink)
    for text in (ax.title, ax.xaxis.label, ax.yaxis.label):
        text.set_color(look.ink)

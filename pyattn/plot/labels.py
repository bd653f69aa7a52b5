"""Token labels along an axis: as many as fit when the axes are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.ticker import Formatter, Locator

from pyattn.plot.fonts import Fonts
from pyattn.plot.theme import Theme

__all__ = ["MAX_TOKEN_WIDTH", "TokenLocator", "colour_axes", "label_tokens"]

MAX_TOKEN_WIDTH = 18
"""Longer tokens are shortened; a Chinese character counts as two letters."""

_MAX_OVERHANG = 5.0
"""Points by which an upright label may be wider than its cell where its neighbours have no label."""


class TokenLocator(Locator):
    """Place ticks at every token, or every second, fifth, tenth ..., so that labels do not touch."""

    def __init__(self, count: int, label_size: float) -> None:
        self.count = count
        self.label_size = label_size

    def __call__(self) -> list[float]:
        """Return the labelled positions at the axes' present size."""
        low, high = sorted(self.axis.get_view_interval())
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the labelled positions between two limits."""
        axes = self.axis.axes
        pixels = axes.bbox.width if self.axis.axis_name == "x" else axes.bbox.height
        pitch = max(pixels * 72 / axes.figure.dpi / max(vmax - vmin, 1e-9), 1e-9)  # points from one token to the next
        step = next(
            (s * 10**e for e in range(12) for s in (1, 2, 5) if s * 10**e * pitch >= self.label_size), self.count
        )
        return [float(at) for at in range(0, self.count, step) if vmin - 1e-9 <= at <= vmax + 1e-9]


class _TokenFormatter(Formatter):
    """Write the token at each tick; if tokens are rotated, a token that has room stays upright."""

    def __init__(self, texts: Sequence[str], widths: Sequence[float], rotated: bool) -> None:
        self.texts, self.widths, self.rotated = texts, widths, rotated

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the token at a position."""
        return self.texts[round(x)] if 0 <= round(x) < len(self.texts) else ""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the tokens of all ticks, and rotate their labels one by one."""
        if self.rotated and len(values):
            axes = self.axis.axes
            low, high = sorted(self.axis.get_view_interval())
            pitch = axes.bbox.width * 72 / axes.figure.dpi / max(high - low, 1e-9)
            step = values[1] - values[0] if len(values) > 1 else 1
            room = pitch - 2 if step == 1 else min(step * pitch - 4, pitch + _MAX_OVERHANG)
            for tick, at in zip(self.axis.get_major_ticks(len(values)), values, strict=True):
                fits = 0 <= round(at) < len(self.widths) and self.widths[round(at)] <= room
                tick.label1.set_rotation(0 if fits else 90)
        return [self(at) for at in values]


def label_tokens(
    ax: Axes,
    which: Literal["x", "y"],
    tokens: Sequence[str],
    fonts: Fonts,
    theme: Theme,
    *,
    name: str = "",
    size: float = 9,
) -> None:
    """Write tokens along an axis; along x, if they do not fit side by side, those wider than their cell are rotated."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    texts = [fonts.escape(token, MAX_TOKEN_WIDTH) for token in tokens]
    widest = max(fonts.width(text, size) for text in texts)
    pitch = ax.get_window_extent().width * 72 / ax.figure.dpi / len(texts)
    rotated = which == "x" and widest + size > 0.8 * pitch and any(len(text) > 3 for text in texts)
    axis.set_major_locator(TokenLocator(len(texts), widest + size if which == "x" and not rotated else 1.5 * size))
    axis.set_major_formatter(_TokenFormatter(texts, [fonts.width(text, size) for text in texts], rotated))
    axis.set_tick_params(
        labelsize=size, labelfontfamily=fonts.family, labelrotation=90 if rotated else 0, length=2, colors=theme.muted
    )
    axis.set_tick_params(labelcolor=theme.foreground)
    axis.set_label_text(fonts.escape(name), color=theme.foreground, fontsize=size + 1, fontfamily=fonts.family)


def colour_axes(ax: Axes, theme: Theme) -> None:
    """Apply the theme to the frame, ticks and titles of an axes."""
    for spine in ax.spines.values():
        spine.set_color(theme.muted)
        spine.set_linewidth(0.6)
    ax.tick_params(color=theme.muted, labelcolor=theme.foreground)
    for text in (ax.title, ax.xaxis.label, ax.yaxis.label):
        text.set_color(theme.foreground)

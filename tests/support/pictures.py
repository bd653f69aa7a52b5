"""What tests of pictures ask matplotlib for: where all its text lies, and inputs to draw."""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.axis import Axis
from matplotlib.text import Text
from support.helpers import EVERYTHING

from pyattn.plot import fonts

ENGLISH = ("the", "animal", "did", "not", "cross", "the", "street", "because", "it", "antidisestablishmentarianism")
CHINESE = (*"动物没有过马路因为它", "自然语言处理与深度学习的应用场景")
KINDS = {"English": ENGLISH, "long": ENGLISH[-1:], "Chinese": CHINESE}
SIZES = (3, 12, 128, 200) if EVERYTHING else (3, 50)


def tokens_of(kind, count):
    return list(itertools.islice(itertools.cycle(KINDS[kind]), count))


def draw_weights(*shape):
    scores = np.random.default_rng(0).standard_normal(shape) * 2
    parts = np.exp(scores)
    return parts / parts.sum(-1, keepdims=True)


def texts_of(figure):
    """All text that a figure shows, with its extents in pixels."""
    figure.canvas.figure.draw_without_rendering()
    left_out = labels_left_out(figure)
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in shown if id(text) not in left_out]


def labels_left_out(figure):
    """Tick labels that an axis keeps and does not draw, as those beyond its ends."""
    kept, drawn = set(), set()
    for axis in figure.findobj(Axis):
        for ticks, labels in (([*axis.majorTicks, *axis.minorTicks], kept), (axis._update_ticks(), drawn)):
            labels |= {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
    return kept - drawn


def assert_legible(figure):
    """Ask for the extents of all text: no two overlap, none leaves the figure. Returns the texts."""
    found = texts_of(figure)
    page = figure.canvas.figure.bbox
    for text, box in found:
        assert box.width > 0, text
        inside = box.x0 >= page.x0 and box.x1 <= page.x1 and box.y0 >= page.y0 and box.y1 <= page.y1
        assert inside, f"{text!r} leaves the figure: {box.extents} of {page.extents}"
    order = sorted(found, key=lambda one: one[1].x0)
    for at, (text, box) in enumerate(order):
        for other_text, other in order[at + 1 :]:
            if other.x0 >= box.x1:
                break
            assert other.y0 >= box.y1 or other.y1 <= box.y0, f"{text!r} and {other_text!r} overlap"
    return [text for text, _ in found]


def without_chinese_fonts(monkeypatch):
    """Fonts as on a machine that has none but matplotlib's own."""
    monkeypatch.setattr(fonts, "_FALLBACKS", ())

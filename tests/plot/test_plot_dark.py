"""Pictures on a dark ground, and beside one another on axes of a figure of the caller's."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from support.pictures import assert_legible, draw_weights, tokens_of
from test_plot_maps import contrast
from test_plot_steps import draw_trace

from pyattn import masks, plot

pytestmark = pytest.mark.filterwarnings("ignore:no installed font has")

COUNT = 12
WEIGHTS = draw_weights(COUNT, COUNT)
DRAW = {
    "heatmap": lambda tokens: plot.heatmap(WEIGHTS, tokens, title="a title", dark=True).figure,
    "heads": lambda tokens: plot.heads(draw_weights(5, COUNT, COUNT), tokens, title="a title", dark=True),
    "flow": lambda tokens: plot.flow(WEIGHTS, tokens, title="a title", dark=True).figure,
    "mask": lambda tokens: plot.mask(masks.causal(COUNT), tokens, title="a title", dark=True).figure,
    "mask that adds": lambda tokens: plot.mask(np.log(WEIGHTS), tokens, title="a title", dark=True).figure,
    "positional": lambda tokens: plot.positional(WEIGHTS - 0.1, tokens, dark=True).figure,
    "steps": lambda tokens: plot.steps(draw_trace(COUNT, 8, tokens), dark=True),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", ["long", "Chinese"])
@pytest.mark.parametrize("what", DRAW)
def test_dark_pictures_are_legible(what, kind):
    """Numbers stand on cells of their own colour: tests of these look at them."""
    figure = DRAW[what](tokens_of(kind, COUNT))
    found = assert_legible(figure)
    words = [text for text in figure.findobj(Text) if text.get_visible() and re.search(r"[^\W\d_]|□", text.get_text())]
    assert len(words) > 5
    assert len(found) > COUNT
    for text in words:
        assert contrast(text.get_color(), figure.get_facecolor()) >= 4.5, text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["English", "long", "Chinese"])
def test_pictures_side_by_side_are_legible(kind):
    """On axes of a figure whose layout leaves room for labels, as the docstrings ask for."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens = tokens_of(kind, COUNT)
    plot.heatmap(WEIGHTS, tokens, ax=left)
    plot.flow(WEIGHTS, tokens, ax=right)
    assert_legible(figure)

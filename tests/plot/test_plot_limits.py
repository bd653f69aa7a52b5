"""Pictures of numbers that none can show, and of many heads."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.helpers import for_each
from support.pictures import assert_legible, draw_weights, tokens_of

from pyattn import plot


@for_each(
    ("draw", "numbers", "message"),
    [
        (plot.heatmap, [[1e308, -1e308]], "numbers from -1e+308 to 1e+308 are too large for a scale of colours"),
        (plot.heatmap, [[1.7e308]], "numbers from 0 to 1.7e+308 are too large for a scale of colours; divide them"),
        (plot.mask, np.full((2, 2), 1e308), "numbers from 1e+308 to 1e+308 are too large for a scale of colours"),
        (plot.mask, [[0.0, np.nan]], "mask[0, 1] is nan, which makes all weights of a row NaN; -inf blocks a key"),
        (plot.mask, [[np.inf, 0.0]], "mask[0, 0] is inf, which makes all weights of a row NaN; -inf blocks a key"),
        (plot.mask, np.array([[0, 1]]) * np.longdouble(1e308) * 1e308, "mask[0, 1] is inf, which makes"),
    ],
)
def test_numbers_that_no_picture_can_show_are_named(draw, numbers, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        draw(numbers)


def test_large_numbers_are_drawn():
    plot.heatmap([[2e307, -2e307]]).figure.draw_without_rendering()
    plot.mask([[0.0, -np.inf, np.finfo(np.float64).min]]).figure.draw_without_rendering()


def test_many_heads_take_time_in_proportion():
    """Axes that share their limits ask one another for them."""
    figure = plot.heads(draw_weights(30, 4, 4))
    first = figure.axes[0]
    assert len(figure.axes) == 31
    assert first.get_shared_x_axes().get_siblings(first) == [first]
    for labels in (first.get_yticklabels(), figure.axes[29].get_xticklabels()):  # at the outer edges
        assert [text.get_text() for text in labels] == ["0", "1", "2", "3"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no installed font has")
@pytest.mark.parametrize("dark", [False, True])
def test_pictures_of_many_tokens_heads_and_long_words_are_legible(dark):
    """Where labels do not fit, some are left out, at equal distances."""
    found = assert_legible(plot.heatmap(draw_weights(200, 200), range(200), dark=dark).figure)
    assert "195" in found
    assert "196" not in found
    found = assert_legible(plot.heads(draw_weights(12, 128, 128), tokens_of("English", 128), dark=dark))
    assert "head 11" in found
    tokens = [f"token {at}" for at in range(40)]
    found = assert_legible(plot.flow(draw_weights(40, 40), tokens, dark=dark).figure)
    assert all(found.count(token) == 2 for token in tokens)
    assert_legible(plot.heatmap(draw_weights(14, 14), tokens_of("Chinese", 14), title="自然语言处理", dark=dark).figure)


def test_the_colours_of_an_encoding_are_centred_at_zero():
    encoding = np.array([[0.5, -2.0], [np.nan, 1.0]])
    for dark in (False, True):
        image = plot.positional(encoding, dark=dark).get_images()[0]
        assert image.get_clim() == (-2, 2)
        np.testing.assert_allclose(image.to_rgba(0), image.axes.get_facecolor(), atol=1 / 128)  # of 256 colours
    assert plot.positional(np.zeros((2, 2))).get_images()[0].get_clim() == (-1, 1)

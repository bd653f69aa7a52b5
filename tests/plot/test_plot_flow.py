"""pyattn.plot.flow: lines are as thick and as opaque as weights are large, and end where their tokens stand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.helpers import for_each
from support.pictures import SIZES, assert_legible, draw_weights, tokens_of

from pyattn import plot

pytestmark = pytest.mark.filterwarnings("ignore:no installed font has")


def lines_of(ax):
    """(start, end, width, opacity) of each line, from (0, query's height) to (1, key's height), in pixels."""
    (lines,) = ax.collections
    ends = [ax.transData.transform(segment) for segment in lines.get_segments()]
    return list(zip(ends, lines.get_linewidths(), lines.get_colors()[:, 3], strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", ["English", "long", "Chinese"])
def test_it_is_legible(count, kind):
    tokens = tokens_of(kind, count)
    found = assert_legible(plot.flow(draw_weights(count, count), tokens, title=tokens[-1]).figure)
    assert len(found) >= 3 + 2 * min(count, 12)


@pytest.mark.parametrize("shape", [(1, 30), (30, 1), (200, 3)])
def test_other_shapes_are_legible(shape):
    assert_legible(
        plot.flow(draw_weights(*shape), tokens_of("English", shape[0]), tokens_of("Chinese", shape[1])).figure
    )


def test_width_and_opacity_are_the_weights():
    weights = draw_weights(6, 9)
    (lines,) = plot.flow(weights).collections
    shown = np.sort(weights[weights >= weights.max() / 100])
    widths = np.array(lines.get_linewidths())
    np.testing.assert_allclose(widths / widths.max(), shown / shown.max(), rtol=1e-12)
    np.testing.assert_allclose(lines.get_colors()[:, 3], shown / shown.max(), rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 3), (2, 5), (5, 2)])
def test_each_line_joins_its_query_and_its_key(shape):
    weights = draw_weights(*shape)
    ax = plot.flow(weights, list("abcde")[: shape[0]], list("vwxyz")[: shape[1]])
    ax.figure.draw_without_rendering()
    sides = [
        {label.get_text(): side.transData.transform(label.get_position())[1] for label in side.get_yticklabels()}
        for side in ax.figure.axes
    ]
    joined = np.zeros(shape)
    for ends, _, share in lines_of(ax):
        i = np.argmin([abs(sides[0][token] - ends[0][1]) for token in "abcde"[: shape[0]]])
        j = np.argmin([abs(sides[1][token] - ends[1][1]) for token in "vwxyz"[: shape[1]]])
        assert abs(sides[0]["abcde"[i]] - ends[0][1]) < 1e-6
        assert abs(sides[1]["vwxyz"[j]] - ends[1][1]) < 1e-6
        joined[i, j] = share
    np.testing.assert_allclose(joined, np.where(weights >= weights.max() / 100, weights / weights.max(), 0), rtol=1e-12)


def test_of_very_many_lines_the_strongest_are_drawn():
    weights = np.random.default_rng(0).random((201, 201)) + 1
    lines = plot.flow(weights).collections[0]
    assert len(lines.get_segments()) == 40_000
    strongest = np.sort(weights, axis=None)[-40_000:] / weights.max()
    np.testing.assert_allclose(lines.get_colors()[:, 3], strongest, rtol=1e-15)


def test_keys_have_the_tokens_of_the_queries_unless_they_have_their_own():
    both = plot.flow(np.eye(2), ["a", "b"]).figure.axes[1]
    assert [label.get_text() for label in both.get_yticklabels()] == ["a", "b"]
    own = plot.flow(np.eye(2), ["a", "b"], ["c", "d"]).figure.axes[1]
    assert [label.get_text() for label in own.get_yticklabels()] == ["c", "d"]


def test_nothing_attended_to_draws_no_line():
    assert not plot.flow(np.zeros((2, 2))).collections[0].get_segments()


def test_given_axes_are_drawn_on():
    ax = Figure(facecolor="black").add_subplot(facecolor="black")
    assert plot.flow(np.eye(2), ["a", "b"], ax=ax) is ax
    dark = ax.collections[0].get_colors()[0, :3]
    assert dark.sum() > plot.flow(np.eye(2)).collections[0].get_colors()[0, :3].sum()


@for_each(
    ("call", "kind", "message"),
    [
        (
            lambda: plot.flow(np.ones((8, 5, 5))),
            ValueError,
            "weights has shape (8, 5, 5), expected (L, S); choose a head",
        ),
        (
            lambda: plot.flow([[0.5, -1.0]]),
            ValueError,
            "weights holds -1, expected numbers of 0 or more: weights, not scores",
        ),
        (lambda: plot.flow([[0.5, np.nan]]), ValueError, "weights holds nan, expected numbers of 0 or more"),
        (lambda: plot.flow([[0.5, np.inf]]), ValueError, "weights holds inf, expected numbers of 0 or more"),
        (
            lambda: plot.flow(np.eye(2), ["a"]),
            ValueError,
            "tokens has 1 tokens, expected 2: one for each query, along axis 0 of weights",
        ),
        (
            lambda: plot.flow(np.eye(2), keys=["a"]),
            ValueError,
            "keys has 1 tokens, expected 2: one for each key, along axis 1 of weights",
        ),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        call()

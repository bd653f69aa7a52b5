"""pyattn.plot.flow: lines as thick and opaque as weights are large, a colour per head; and its page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from support.helpers import for_each
from support.pictures import SIZES, assert_legible, draw_weights, tokens_of

from pyattn import plot
from pyattn.plot.theme import DARK, HEAD_COLOURS, LIGHT

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


# Several heads


def distance(one, other):
    """In RGB, from 0 to sqrt(3)."""
    return np.linalg.norm(np.subtract(to_rgb(one), to_rgb(other)))


@pytest.mark.parametrize("heads", [None, [2, 0], [-1]])
def test_each_head_has_its_lines_in_its_colour(heads):
    weights = draw_weights(3, 4, 5)
    ax = plot.flow(weights, list("abcd"), list("vwxyz"), heads=heads)
    assert_legible(ax.figure)
    chosen = [0, 1, 2] if heads is None else [head % 3 for head in heads]
    legend = ax.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == [f"head {head}" for head in chosen]
    for lines, head, handle in zip(ax.collections, chosen, legend.get_lines(), strict=True):
        assert {to_hex(colour) for colour in lines.get_colors()} == {HEAD_COLOURS[head]} == {handle.get_color()}
        drawn = weights[head][weights[head] >= weights[chosen].max() / 100]
        np.testing.assert_allclose(lines.get_colors()[:, 3], np.sort(drawn) / weights[chosen].max(), rtol=1e-12)


def test_lines_of_heads_lie_beside_one_another_within_their_row():
    ax = plot.flow(np.ones((4, 1, 1)))
    starts = [lines.get_segments()[0][0, 1] for lines in ax.collections]
    assert len(set(starts)) == 4
    assert max(map(abs, starts)) < 0.5
    assert sum(starts) == pytest.approx(0)


def test_colours_of_heads_differ_from_one_another_and_from_the_ground():
    for at, colour in enumerate(HEAD_COLOURS):
        others = [*HEAD_COLOURS[:at], LIGHT.background, DARK.background]
        assert min(distance(colour, other) for other in others) > 0.2, colour


@pytest.mark.parametrize("count", [2, 12, 40])
@pytest.mark.parametrize("dark", [False, True])
def test_many_heads_are_legible(count, dark):
    ax = plot.flow(draw_weights(count, 6, 6), tokens_of("English", 6), title="a layer", dark=dark)
    assert sum(text.startswith("head ") for text in assert_legible(ax.figure)) == count


# The page


class Page(HTMLParser):
    """Lines, tokens and buttons of a page, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.lines, self.tokens, self.buttons, self.loaded, self.open = [], [], [], [], []
        self.feed(text)

    def handle_startendtag(self, tag, attrs):
        if tag == "line":
            self.lines.append(dict(attrs))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.loaded += [attrs[name] for name in ("src", "href", "xlink:href") if name in attrs]
        if tag == "g" and "data-s" in attrs:
            self.tokens.append(attrs)
        if tag == "button":
            self.buttons.append(attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_the_lines_of_the_picture_and_names_their_weights():
    weights = draw_weights(2, 3, 4)
    page = Page(plot.flow(weights, list("abc"), list("wxyz")).to_html())
    assert not page.open
    found = np.zeros(weights.shape)
    for line in page.lines:
        found[int(line["data-h"]), int(line["data-q"]), int(line["data-k"])] = float(line["stroke-opacity"])
    expected = np.where(weights >= weights.max() / 100, weights / weights.max(), 0)
    np.testing.assert_allclose(found, expected, atol=0.005 + 1e-12)
    assert len(page.buttons) == 2
    assert {line["stroke"] for line in page.lines} == set(HEAD_COLOURS[:2])
    about = {(token["data-s"], int(token["data-n"])): token["aria-label"] for token in page.tokens}
    assert len(about) == 7
    for side, others, part in (("q", "wxyz", weights[1, 2]), ("k", "abc", weights[1, :, 2])):
        verb = "c attends to" if side == "q" else "y is attended to by"
        order = [j for j in np.argsort(-part) if part[j] >= 0.005]
        expected = ", ".join(f"{others[j]} {part[j]:.2f}" for j in order)
        assert about[side, 2].splitlines()[1] == f"head 1: {verb} {expected}"


def test_the_page_needs_no_network_and_every_token_takes_the_keyboard(tmp_path):
    ax = plot.flow(np.eye(3), ['<b>"in"</b>', "</script>", "动物\n"], title="<i>")
    ax.save_html(tmp_path / "flow.html")
    text = (tmp_path / "flow.html").read_text(encoding="utf-8")
    page = Page(text)
    assert text == ax.to_html()
    assert page.loaded == []
    assert "http" not in text
    assert [token["tabindex"] for token in page.tokens] == ["0"] * 6
    assert page.tokens[0]["aria-label"] == '<b>"in"</b> attends to <b>"in"</b> 1.00'
    assert "动物↵" in page.tokens[2]["aria-label"]
    assert text.count("<script") == text.count("</script>") == 1


@pytest.mark.parametrize(("dark", "scheme"), [(None, "light dark"), (True, "dark"), (False, "light")])
def test_the_page_follows_the_reader_unless_dark_is_given(dark, scheme):
    text = plot.flow(np.eye(2), dark=dark).to_html()
    assert f'<meta name="color-scheme" content="{scheme}">' in text
    assert f'class="pa-flow{ {None: "", True: " pa-dark", False: " pa-light"}[dark] }"' in text


def test_a_page_of_many_weights_has_the_largest():
    weights = np.random.default_rng(0).random((3, 80, 80)) + 1
    text = plot.flow(weights).to_html()
    lines = Page(text).lines
    assert len(lines) == 5000
    assert len(text) < 1_000_000
    shown = [weights[int(line["data-h"]), int(line["data-q"]), int(line["data-k"])] for line in lines]
    assert min(shown) == np.sort(weights, axis=None)[-5000]


def test_a_notebook_shows_the_page():
    ax = plot.flow(np.eye(2))
    assert ax._repr_html_() in ax.to_html()
    assert isinstance(ax, plot.FlowAxes)


def test_the_page_of_axes_that_are_drawn_on_again_shows_the_new_weights():
    ax = plot.flow(np.eye(2), ["a", "b"])
    ax.clear()
    assert plot.flow([[0.25, 0.75]], ["c"], ["d", "e"], ax=ax, title="again") is ax
    assert ax.to_html() == plot.flow([[0.25, 0.75]], ["c"], ["d", "e"], title="again").to_html()


def test_given_axes_are_drawn_on():
    ax = Figure(facecolor="black").add_subplot(facecolor="black")
    assert plot.flow(np.eye(2), ["a", "b"], ax=ax) is ax
    dark = ax.collections[0].get_colors()[0, :3]
    assert dark.sum() > plot.flow(np.eye(2)).collections[0].get_colors()[0, :3].sum()


@for_each(
    ("call", "kind", "message"),
    [
        (
            lambda: plot.flow(np.ones((1, 8, 5, 5))),
            ValueError,
            "weights has shape (1, 8, 5, 5), expected (heads, L, S); choose a batch entry, weights[0]",
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
            "tokens has 1 tokens, expected 2: one for each query, along axis -2 of weights",
        ),
        (
            lambda: plot.flow(np.eye(2), keys=["a"]),
            ValueError,
            "keys has 1 tokens, expected 2: one for each key, along axis -1 of weights",
        ),
        (lambda: plot.flow(np.eye(2), heads=[0]), ValueError, "heads chooses among weights of shape (heads, L, S)"),
        (lambda: plot.flow(np.ones((2, 3, 3)), heads=[2]), IndexError, "heads has 2, but weights has 2 heads, 0 to 1"),
        (lambda: plot.flow(np.ones((2, 3, 3)), heads=[0.5]), TypeError, "heads is [0.5], expected a sequence of"),
        (lambda: plot.flow(np.ones((2, 3, 3)), heads=1), TypeError, "heads is 1, expected a sequence of integers"),
        (lambda: plot.flow(np.ones((2, 3, 3)), heads=[]), ValueError, "heads is empty; leave it out to draw all"),
        (lambda: plot.flow(np.ones(3)), ValueError, "weights has shape (3,), expected (L, S)"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        call()

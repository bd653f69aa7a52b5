"""pyattn.plot's maps: what is drawn is what was given, and all of it can be read."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from support.halves import HALVES
from support.helpers import for_each, run_python
from support.pictures import CHINESE, SIZES, assert_legible, draw_weights, texts_of, tokens_of, without_chinese_fonts

import pyattn
from pyattn import masks, plot

every_size = pytest.mark.parametrize("count", SIZES)
every_kind = pytest.mark.parametrize("kind", ["English", "long", "Chinese"])
# Where no font has Chinese, boxes are drawn, and test_plot_text.py asks for the warning.
pytestmark = pytest.mark.filterwarnings("ignore:no installed font has")


@pytest.fixture(scope="module")
def weights():
    return draw_weights(12, 12)


# Legible


@pytest.mark.sampled(3)
@every_size
@every_kind
def test_heat_maps_are_legible(count, kind):
    tokens = tokens_of(kind, count)
    found = assert_legible(plot.heatmap(draw_weights(count, count), tokens, title=tokens[0]).figure)
    assert len(found) >= 2 + 2 * min(count, 10)


@pytest.mark.sampled(3)
@every_size
@every_kind
def test_grids_of_heads_are_legible(count, kind):
    figure = plot.heads(draw_weights(7, count, count), tokens_of(kind, count), title="seven")
    found = assert_legible(figure)
    assert {f"head {head}" for head in range(7)} <= set(found)
    scale = sum(text.replace(".", "").isdigit() for text in found)
    assert (
        len(found) - scale >= 7 + len(("seven", "queries", "keys")) + 3 * 6
    )  # three rows and columns, each of three or more


@pytest.mark.sampled(2)
@every_size
@every_kind
def test_masks_are_legible(count, kind):
    found = assert_legible(plot.mask(masks.causal(count), tokens_of(kind, count), title="which keys are seen").figure)
    assert {"attend", "blocked"} <= set(found)


@pytest.mark.sampled(2)
@every_size
@pytest.mark.parametrize("blocks", [False, True])
def test_masks_that_add_are_legible(count, blocks):
    drawn = -0.5 * np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    drawn[masks.causal(count).blocked()] *= np.inf if blocks else 1
    found = assert_legible(plot.mask(drawn, tokens_of("English", count), title="a bias").figure)
    assert "added to the score" in found
    assert ("blocked, -inf is added" in found) == blocks


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(3, 4), (50, 64), (200, 512)])
def test_positional_encodings_are_legible(shape):
    assert_legible(plot.positional(np.random.default_rng(0).standard_normal(shape)).figure)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(2, 30), (30, 2), (1, 1), (1, 200), (200, 1)])
def test_other_shapes_are_legible(shape):
    queries, keys = tokens_of("English", shape[0]), tokens_of("Chinese", shape[1])
    assert_legible(plot.heatmap(draw_weights(*shape), queries, keys).figure)


def test_long_tokens_are_cut_and_leave_room_for_the_map():
    tokens = ["x" * 500, "自" * 500, "a"]
    for draw in (plot.heatmap, plot.flow, plot.mask):
        ax = draw(np.eye(3) > 0 if draw is plot.mask else np.eye(3), tokens)
        found = assert_legible(ax.figure)
        assert sum(text.endswith("…") for text in found) == 4
        assert ax.get_window_extent().width > ax.figure.bbox.width / 3


def test_labels_are_thinned_again_when_the_figure_changes_its_size():
    figure = plot.heatmap(draw_weights(60, 60), tokens_of("English", 60)).figure
    before = len(assert_legible(figure))
    figure.set_size_inches(4, 4)
    assert len(assert_legible(figure)) < before


def test_of_few_tokens_all_are_written(weights):
    tokens = [f"token{at}" for at in range(12)]
    found = assert_legible(plot.heatmap(weights, tokens).figure)
    assert all(found.count(token) == 2 for token in tokens)


# Right


def test_the_image_holds_the_weights(weights):
    (image,) = plot.heatmap(weights, numbers=False).get_images()
    np.testing.assert_array_equal(image.get_array(), weights)
    assert image.get_clim() == (0, weights.max())


def test_the_colours_of_scores_begin_at_the_least(article):
    (image,) = plot.heatmap(article["scores"] - 5.0).get_images()
    assert image.get_clim() == (-3, 11)


def test_numbers_in_cells_are_the_weights_and_can_be_read(weights):
    ax = plot.heatmap(weights)
    places = [text.get_position()[::-1] for text in ax.texts]
    assert places == [tuple(at) for at in np.argwhere(np.round(weights, 2) > 0)]
    colours = ax.get_images()[0].to_rgba(weights)
    for text, at in zip(ax.texts, places, strict=True):
        assert abs(float(text.get_text()) - weights[at]) <= 0.005 + 1e-12
        ground = colours[at]
        assert contrast(text.get_color(), ground) >= 4.5


def contrast(one, other):
    """WCAG's ratio of luminances; 4.5 is asked of text."""

    def luminance(colour):
        part = np.array(to_rgb(colour))
        return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)

    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_numbers_lie_inside_their_cells():
    ax = plot.heatmap(draw_weights(9, 14))
    assert_legible(ax.figure)
    for text in ax.texts:
        (x, y), box = text.get_position(), text.get_window_extent()
        corners = ax.transData.transform([(x - 0.5, y + 0.5), (x + 0.5, y - 0.5)])
        assert np.all(corners[0] <= (box.x0, box.y0))
        assert np.all(corners[1] >= (box.x1, box.y1))


@pytest.mark.parametrize(("numbers", "tokens", "count"), [(None, 32, 0), (True, 32, 32 * 32), (False, 6, 0)])
def test_numbers_are_written_where_asked(numbers, tokens, count):
    weights = 0.1 + draw_weights(tokens, tokens)  # none rounds to 0.00
    assert len(plot.heatmap(weights, numbers=numbers).texts) == count


def test_a_number_that_rounds_to_zero_is_left_out_and_zero_is_written():
    texts = [text.get_text() for text in plot.heatmap([[0.004, 0.0, -0.004], [0.75, 0.246, -0.006]]).texts]
    assert texts == ["0", "0.75", "0.25", "\N{MINUS SIGN}0.01"]
    assert not plot.heatmap([[0.001, 0.002]], numbers=True, vmax=1).texts


def test_whole_numbers_are_written_as_such(article):
    texts = [text.get_text() for text in plot.heatmap(article["scores"]).texts]
    assert texts == ["2", "4", "4", "4", "16", "12", "4", "12", "10"]


def test_what_is_not_finite_is_left_empty():
    ax = plot.heatmap([[1.0, -np.inf], [np.nan, 3.0]])
    image = ax.get_images()[0]
    np.testing.assert_array_equal(image.get_array().mask, [[False, True], [True, False]])
    assert image.get_clim() == (0, 3)
    assert [text.get_text() for text in ax.texts] == ["1", "\N{MINUS SIGN}∞", "NaN", "3"]
    plot.heatmap([[np.nan]]).figure.draw_without_rendering()


@for_each(
    ("ends", "limits"),
    [
        ({"vmin": 0, "vmax": 1}, (0, 1)),
        ({"vmax": 9}, (-1, 9)),
        ({"vmin": -4}, (-4, 3)),
        ({"vmin": 5}, (5, 6)),  # beyond all numbers
        ({"vmax": -5}, (-6, -5)),
        ({"center": 0}, (-3, 3)),
        ({"center": 2}, (-1, 5)),
        ({"center": 0, "vmin": -10}, (-10, 3)),
        ({"center": 1, "vmin": 0, "vmax": 4}, (0, 4)),
    ],
)
def test_the_ends_and_the_middle_of_the_colours_may_be_chosen(ends, limits):
    for dark in (False, True):
        ax = plot.heatmap([[-1.0, 0.5], [np.nan, 3.0]], dark=dark, **ends)
        image = ax.get_images()[0]
        assert image.get_clim() == limits
        if "center" in ends:
            middle = image.to_rgba(ends["center"])
            np.testing.assert_allclose(middle, ax.get_facecolor(), atol=1 / 128)  # of 256 colours
            low, high = (image.to_rgba(x)[:3] for x in limits)
            assert low[0] > low[2]  # orange
            assert high[0] < high[2]  # blue
    assert_legible(ax.figure)


def test_axes_have_the_names_that_are_given():
    ax = plot.heatmap(np.eye(2), xlabel="heads", ylabel="层 $x$")
    assert_legible(ax.figure)
    assert [ax.get_xlabel(), ax.get_ylabel().replace("□", "层")] == ["heads", r"层 \$x\$"]
    assert [plot.heatmap(np.eye(2), xlabel="").get_xlabel(), plot.heatmap(np.eye(2)).get_ylabel()] == ["", "queries"]


@pytest.mark.parametrize("draw", [plot.heatmap, lambda weights, tokens: plot.heads(weights[None], tokens).axes[0]])
def test_a_token_that_fits_its_cell_stays_upright_among_rotated_ones(draw):
    tokens = ["a", "antidisestablishment", "b", *["another long word"] * 9]
    ax = draw(draw_weights(12, 12), tokens)
    assert_legible(ax.figure)
    turned = {label.get_text(): label.get_rotation() for label in ax.get_xticklabels()}
    assert turned == {"a": 0, "antidisestablishm…": 90, "b": 0, "another long word": 90}


@pytest.mark.parametrize("count", [1, 5])
def test_heads_are_drawn_in_order_with_one_scale(count):
    weights = draw_weights(count, 6, 8)
    images = [image for ax in plot.heads(weights).axes for image in ax.get_images()]
    assert len(images) == count
    for image, head in zip(images, weights, strict=True):
        np.testing.assert_array_equal(image.get_array(), head)
        assert image.get_clim() == (0, weights.max())


def test_five_heads_in_a_row_take_no_more_width_than_four():
    """From there on, the maps are smaller."""
    four, five = (plot.heads(draw_weights(count, 3, 3)).get_figwidth() for count in (16, 17))
    assert five <= four < 12


def test_a_bool_mask_is_drawn_in_the_colours_of_its_legend():
    mask = masks.causal(4)
    ax = plot.mask(mask)
    image = ax.get_images()[0]
    legend = ax.get_legend()
    named = {
        text.get_text(): patch.get_facecolor()
        for text, patch in zip(legend.get_texts(), legend.get_patches(), strict=True)
    }
    expected = np.where(mask[..., np.newaxis], named["attend"], named["blocked"])
    np.testing.assert_allclose(image.to_rgba(image.get_array()), expected)


@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min, np.finfo(np.float16).min])
def test_a_float_mask_of_zeros_and_lowest_numbers_is_two_colours(lowest):
    drawn = np.where(masks.causal(4), 0, lowest).astype(np.float32)
    ax = plot.mask(drawn)
    np.testing.assert_array_equal(ax.get_images()[0].get_array(), masks.causal(4).blocked())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "attend, nothing is added",
        "blocked, -inf is added",
    ]


def test_a_float_mask_is_drawn_as_what_it_adds():
    drawn = np.array([[0.5, -np.inf], [-1.5, 2.0]])
    for dtype in (np.float64, *HALVES.values()):
        image = plot.mask(drawn.astype(dtype)).get_images()[0]
        np.testing.assert_array_equal(image.get_array().filled(-np.inf), drawn)
        assert image.get_clim() == (-1.5, 2)


def test_the_encoding_is_drawn():
    encoding = np.random.default_rng(0).standard_normal((20, 8))
    np.testing.assert_array_equal(plot.positional(encoding).get_images()[0].get_array(), encoding)


# Light and dark, on axes that were given


@pytest.mark.parametrize("dark", [False, True])
def test_the_ground_of_given_axes_decides_unless_it_is_said(weights, dark):
    ax = Figure(facecolor="black" if dark else "white").add_subplot(facecolor="black" if dark else "white")
    assert plot.heatmap(weights, ax=ax) is ax
    ground, colours = ax.figure.get_facecolor(), {text.get_color() for text in ax.get_xticklabels()}
    assert all(contrast(colour, ground) > 7 for colour in colours)
    assert ax.get_images()[0].get_cmap().name == ("magma" if dark else "magma_r")
    assert to_rgb(ax.get_facecolor()) == to_rgb(ground)  # as it was


def test_a_transparent_axes_takes_the_ground_of_its_figure(weights):
    ax = Figure(facecolor="black").add_subplot(facecolor="none")
    assert plot.heatmap(weights, ax=ax).get_images()[0].get_cmap().name == "magma"


def test_dark_may_be_said(weights):
    figure = plot.heatmap(weights, dark=True).figure
    assert max(to_rgb(figure.get_facecolor())) < 0.2
    for ax in figure.axes:
        assert all(contrast(label.get_color(), figure.get_facecolor()) > 7 for label in ax.get_yticklabels())
    given = Figure(facecolor="white").add_subplot()
    assert to_rgb(plot.heatmap(weights, ax=given, dark=True).figure.get_facecolor()) == (1, 1, 1)


def test_subfigures_are_drawn_on():
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    assert plot.heads(draw_weights(4, 6, 6), tokens_of("English", 6), figure=left) is left
    plot.heatmap(draw_weights(6, 6), tokens_of("Chinese", 6), ax=right.subplots())
    assert_legible(figure)


# Mistakes


@for_each(
    ("call", "kind", "message"),
    [
        (
            lambda: plot.heatmap(np.ones((8, 5, 5))),
            ValueError,
            "weights has shape (8, 5, 5), expected (L, S); choose a head, weights[0], or draw all with heads",
        ),
        (lambda: plot.heatmap(np.ones(5)), ValueError, "weights has shape (5,), expected (L, S)"),
        (lambda: plot.heatmap(np.ones((0, 5))), ValueError, "weights has shape (0, 5); it must not be empty"),
        (
            lambda: plot.heatmap([["a"]]),
            TypeError,
            "weights holds text (dtype <U1)",
        ),
        (
            lambda: plot.heatmap(np.eye(3), ["a", "b"]),
            ValueError,
            "queries has 2 tokens, expected 3: one for each query, along axis 0",
        ),
        (
            lambda: plot.heatmap(np.ones((3, 2)), keys=["a"]),
            ValueError,
            "keys has 1 tokens, expected 2: one for each key, along axis 1",
        ),
        (
            lambda: plot.heatmap(np.eye(3), "a b c"),
            TypeError,
            "queries is one text, expected a sequence of 3 tokens: queries.split() perhaps",
        ),
        (lambda: plot.heatmap(np.eye(3), 3), TypeError, "queries is of type int, expected a sequence of tokens"),
        (
            lambda: plot.heatmap(np.eye(3), ax=np.array([None])),
            TypeError,
            "ax is of type ndarray, expected one of matplotlib's Axes; choose one, ax.flat[0]",
        ),
        (lambda: plot.mask(np.eye(3) > 0, ax=3), TypeError, "ax is of type int, expected one of matplotlib's Axes"),
        (lambda: plot.heads(np.ones((2, 3, 3)), figure=3), TypeError, "figure is of type int, expected a Figure"),
        (
            lambda: plot.heads(np.ones((2, 8, 5, 5))),
            ValueError,
            "weights has shape (2, 8, 5, 5), expected (heads, L, S); choose a batch entry, weights[0]",
        ),
        (lambda: plot.heads(np.eye(3)), ValueError, "weights has shape (3, 3), expected (heads, L, S)"),
        (
            lambda: plot.mask(np.eye(3, dtype=int)),
            TypeError,
            "mask has dtype int64, expected bool (True = attend) or float (added); pass masks.from_array(mask) if",
        ),
        (lambda: plot.mask([["a"]]), TypeError, "mask has dtype <U1, expected bool (True = attend) or float (added)"),
        (
            lambda: plot.mask(np.ones((1, 3, 3), bool)),
            ValueError,
            "mask has shape (1, 3, 3), expected (L, S); choose one, mask[0]",
        ),
        (
            lambda: plot.positional(np.ones((1, 3, 4))),
            ValueError,
            "encoding has shape (1, 3, 4), expected (length, features); choose one, encoding[0]",
        ),
        (
            lambda: plot.heatmap(pyattn.attention(*np.ones((3, 2, 2)), need_weights=True)),
            TypeError,
            "weights is of type AttentionResult, expected an array (L, S); pass weights.weights",
        ),
        (
            lambda: plot.heads(pyattn.MultiheadAttention(4, 2, rng=0).trace(np.ones((3, 4)))),
            TypeError,
            "HeadTraces, expected an array (heads, L, S); pass [head.weights for head in weights.heads]",
        ),
        (lambda: plot.mask(np.eye(3) > 0, title=3), TypeError, "title is of type int, expected str or None"),
        (lambda: plot.heatmap(np.eye(3), xlabel=3), TypeError, "xlabel is of type int, expected str or None"),
        (lambda: plot.heatmap(np.eye(3), vmin=1, vmax=1), ValueError, "vmin=1, vmax=1: vmin, center and vmax must"),
        (lambda: plot.heatmap(np.eye(3), center=2, vmax=1), ValueError, "center=2, vmax=1: vmin, center and vmax must"),
        (lambda: plot.heatmap(np.eye(3), vmax=np.inf), ValueError, "vmax is inf, expected a finite number"),
        (lambda: plot.heatmap(np.eye(3), center="0"), TypeError, "center is of type str"),
        (lambda: plot.heatmap(np.eye(3), vmax=1e308), ValueError, "numbers from 0 to 1e+308 are too large"),
        (
            lambda: plot.positional(np.ones((3, 4)), ["a"]),
            ValueError,
            "tokens has 1 tokens, expected 3: one for each position",
        ),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        call()


# State


STATE = """
import io, numpy as np, matplotlib as mpl
import matplotlib.pyplot as plt
mpl.use("Agg")
figure, mine = plt.subplots()
settings = dict(mpl.rcParams)
from pyattn import plot
plt.show = None
weights = np.full((4, 6, 6), 1 / 6)
for drawn in (
    plot.heatmap(weights[0], list("abcdef"), dark=True).figure,
    plot.heads(weights),
    plot.flow(weights[0]).figure,
    plot.mask(weights[0] > 0).figure,
    plot.positional(weights[0]).figure,
):
    drawn.savefig(io.BytesIO(), format="png")
assert plt.get_fignums() == [1] and plt.gcf() is figure and plt.gca() is mine
assert dict(mpl.rcParams) == settings
"""


def test_a_notebook_shows_new_axes():
    for ax in (plot.heatmap(draw_weights(3, 3)), plot.mask(masks.causal(3)), plot.flow(draw_weights(3, 3))):
        width, height = struct.unpack(">II", ax._repr_png_()[16:24])
        assert (width, height) == tuple(int(side) for side in ax.figure.bbox.size)


def test_neither_pyplot_nor_its_settings_change():
    run_python(STATE)


MISSING = """
import sys
sys.modules["matplotlib"] = None
import inspect, pyattn
assert hasattr(pyattn, "plot") and inspect.getmembers(pyattn)
exec("from pyattn import *")
try:
    pyattn.plot.mask
except ImportError as error:
    assert str(error) == "pyattn.plot.mask draws with matplotlib: pip install matplotlib", error
else:
    raise AssertionError
"""


def test_a_missing_matplotlib_is_named_with_the_way_to_it():
    run_python(MISSING)


def test_the_room_is_imported_on_first_use():
    script = "import sys, pyattn; 'plot' in dir(pyattn) or exit(1); 'matplotlib' in sys.modules and exit(2); "
    run_python(script + "pyattn.plot.heatmap; 'matplotlib.pyplot' in sys.modules and exit(3)")


def test_chinese_without_a_font_is_legible_too(monkeypatch):
    without_chinese_fonts(monkeypatch)
    texts = [text for text, _ in texts_of(plot.heatmap(np.eye(11), CHINESE).figure)]
    assert texts.count("□") == 20

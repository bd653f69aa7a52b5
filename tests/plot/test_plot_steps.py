"""pyattn.plot.steps and animate: the worked example on one page and as a moving picture."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import same_color, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from support.helpers import EVERYTHING, for_each, run_python
from support.pictures import SIZES, assert_legible, texts_of, tokens_of

import pyattn
from pyattn import plot
from pyattn.plot.page import Connector
from pyattn.plot.theme import PALETTE

pytestmark = pytest.mark.filterwarnings("ignore:no installed font has")


NAMES = ("x", "w_query", "w_key", "w_value")


@pytest.fixture(scope="module")
def example(article):
    return pyattn.trace(*(article[name] for name in NAMES))


def draw_trace(count, features=4, tokens=None):
    """Of that many random inputs."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((3, features, features)) / features**0.5
    return pyattn.trace(rng.standard_normal((count, features)), *weights, tokens=tokens)


def changed(trace, steps):
    """What looks like a trace, with other fields in the steps of these numbers."""
    fields = {name: getattr(trace, name) for name in (*NAMES, "keys", "queries", "values", "scores", "weights")}
    parts = [part._replace(**steps.get(part.number, {})) for part in trace.steps]
    return SimpleNamespace(steps=parts, tokens=trace.tokens, convention="row", outputs=trace.outputs, **fields)


def small_figure():
    """As many pixels as are drawn quickly."""
    return Figure(figsize=(7, 6), dpi=40)


# One page


@pytest.mark.sampled(3)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", ["English", "long", "Chinese"])
def test_pages_are_legible(count, kind):
    found = assert_legible(plot.steps(draw_trace(count, 8, tokens_of(kind, count))))
    assert sum(re.match(r"[1-8]  ", text) is not None for text in found) == 8
    assert f"queries {count}×8" in found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("features", [1, 20, 64])
def test_other_sizes_are_legible(features):
    assert_legible(plot.steps(draw_trace(5, features)))


def test_long_titles_formulas_and_notes_are_wrapped(example):
    long = {"title": "title " * 30, "formula": "formula_" * 40, "note": "a note that goes on " * 60}
    found = assert_legible(plot.steps(changed(example, {5: long, 6: long})))
    assert "…" in found
    lines = [changed(example, {5: {"note": "\n".join(["a line"] * count)}}) for count in (10, 11)]
    assert [sum(text == "a line" for text in assert_legible(plot.steps(trace))) for trace in lines] == [10, 9]


def test_all_numbers_of_the_example_are_written(example, article):
    found = [text for text, _ in texts_of(plot.steps(example))]
    for name in ("keys", "queries", "values", "x"):
        assert " ".join(str(int(number)) for number in article[name].ravel()) in " ".join(found)
    outputs = [f"{number:.4f}" for number in example.outputs.ravel()]
    assert " ".join(outputs) in " ".join(found)


def test_each_array_has_its_colour_and_its_name(example):
    figure = plot.steps(example)
    cells = [patch for patch in figure.findobj(Rectangle) if patch.get_window_extent().width < 60]
    for name, colour in PALETTE.items():
        assert any(same_color(patch.get_facecolor(), colour) for patch in cells), name
    words = {"inputs 3×4", "key weights 4×3", "query weights 4×3", "value weights 4×3", "keys 3×3", "queries 3×3"}
    words |= {"values 3×3", "scores 1×3", "attention weights 1×3", "weighted values 3×3", "outputs 1×3", "outputs 3×3"}
    assert words <= {text for text, _ in texts_of(figure)}


def test_large_matrices_are_images_that_hold_the_numbers():
    trace = draw_trace(40, 20)
    figure = plot.steps(trace)
    images = [image.get_array() for image in figure.axes[0].get_images()]
    for name in ("x", "w_key", "keys", "scores", "weights", "outputs"):
        assert any(np.array_equal(image, getattr(trace, name)) for image in images), name


def test_what_is_not_finite_can_be_drawn():
    x = np.eye(3)
    x[0, 0] = np.nan
    found = assert_legible(plot.steps(pyattn.trace(x, *np.ones((3, 3, 2)), is_causal=True)))
    assert "\N{MINUS SIGN}∞" in found
    assert "NaN" in found


def test_scores_that_are_hidden_all_can_be_drawn():
    hidden = pyattn.masks.from_array(np.zeros((40, 40), bool))
    figure = plot.steps(pyattn.trace_attention(*np.ones((3, 40, 2)), attn_mask=hidden))
    assert_legible(figure)
    assert any(image.get_array().shape == (40, 40) and image.get_array().mask.all() for image in figure.axes[0].images)


def test_arrays_of_other_names_and_of_one_axis_are_drawn(example):
    arrays = {"b_key": np.array([1.0, 2.0, 3.0]), "some_thing": np.eye(2)}
    assert {"key bias 1×3", "some thing 2×2"} <= set(
        assert_legible(plot.steps(changed(example, {2: {"arrays": arrays}})))
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(6, 9), (14, 10), (20, 30)])
def test_a_page_fits_the_figure_that_is_given(example, size):
    figure = Figure(figsize=size)
    assert plot.steps(example, figure) is figure
    assert_legible(figure)


def test_a_page_fits_a_subfigure(example):
    left, right = Figure(figsize=(16, 8)).subfigures(1, 2)
    assert plot.steps(example, left) is left
    plot.steps(example, right)
    assert_legible(left.figure)


def test_the_ground_of_the_figure_decides_unless_it_is_said(example):
    for figure in (plot.steps(example, dark=True), plot.steps(example, Figure(facecolor="black"))):
        assert max(to_rgb(figure.get_facecolor())) < 0.2
        title = next(text for text in figure.axes[0].texts if text.get_text().startswith("1  "))
        assert min(to_rgb(title.get_color())) > 0.8
    assert to_rgb(plot.steps(example).get_facecolor()) == (1, 1, 1)


# The page of gradients


OPTIONS = {
    "plain": {},
    "columns": {"convention": "column", "tokens": ["I", "am", "我"]},
    "all": {"scale": 0.5, "bias": [[1, 2, 3]] * 3, "attn_mask": np.full((3, 3), 0.5)},
    "distance": {"score": "distance", "normalize": "sigmoid"},
    "sparsemax": {"score": "additive", "score_weight": [1, 2, 3], "normalize": "sparsemax"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_page_of_gradients_is_legible_and_has_each_of_them(article, options):
    turned = np.transpose if options.get("convention") == "column" else np.asarray
    trace = pyattn.trace(*(turned(article[name]) for name in NAMES), **options)
    backward = trace.backward(turned(np.arange(9.0).reshape(3, 3)))
    figure = plot.steps(backward)
    found = assert_legible(figure)
    assert [text[0] for text in found if re.match(r"[1-8]  ", text)] == list("87654321")
    for step in backward.steps:
        for name, array in step.arrays.items():
            assert f"{name} {array.shape[0]}×{array.shape[1]}" in found, name
    arrows = [(arrow.sources, arrow.target) for arrow in figure.findobj(Connector)]
    assert (("grad_outputs",), "grad_weighted_values") in arrows
    targets = {target for _, target in arrows}
    assert {"grad_values", "grad_weights", "grad_w_key", "grad_w_query", "grad_w_value", "grad_x"} <= targets
    assert ("grad_queries" in targets) == ("score" not in options)
    assert ("delta" in targets) == ("normalize" not in options)


def test_factors_of_the_page_of_gradients_are_in_the_order_of_the_formulas(article):
    for convention, order in (("row", ("weights", "grad_outputs")), ("column", ("grad_outputs", "weights"))):
        turned = np.transpose if convention == "column" else np.asarray
        trace = pyattn.trace(*(turned(article[name]) for name in NAMES), convention=convention)
        arrows = plot.steps(trace.backward(np.ones((3, 3)))).findobj(Connector)
        assert [arrow.sources for arrow in arrows if arrow.target == "grad_values"] == [order]


def test_gradients_are_not_animated(example):
    heads = pyattn.MultiheadAttention(4, 2, rng=0).trace(np.ones((3, 4)))
    for backward, draws in (
        (example.backward(np.ones((3, 3))), "plot.steps draws them"),
        (heads.backward(np.ones((3, 4))), "plot.steps(steps.heads[0]) draws those of a head"),
    ):
        kind = type(backward).__name__
        message = f"^steps is of type {kind}, .*; gradients are not animated: {re.escape('pyattn.' + draws)}$"
        with pytest.raises(TypeError, match=message):
            plot.animate(backward)


def test_large_gradients_are_images():
    trace = draw_trace(40, 20)
    backward = trace.backward(np.ones((40, 20)))
    images = [image.get_array() for image in plot.steps(backward).axes[0].get_images()]
    for name, array in backward.arrays.items():
        assert name == "grad_scale" or any(np.array_equal(image, array) for image in images), name


# The moving picture


def frames_of(animation, every=1):
    """The figure at each frame, or at some, the last one among them."""
    for number in range(len(animation.captions))[::-every][::-1]:
        animation._draw(number)
        yield animation._figure


@pytest.fixture
def animation(example):
    made = plot.animate(example, small_figure())
    yield made
    made._draw_was_started = True  # matplotlib warns of an animation that nobody saw


@pytest.fixture(scope="module")
def frames(example):
    """Of each frame the texts, and how many dashed and solid lines are around matrices."""
    made, found = plot.animate(example, small_figure()), []
    for figure in frames_of(made):
        lines = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
        styles = [line.get_linestyle() for line in lines if line.get_zorder() > 4]  # beyond the cells and their edges
        texts = [text for text, _ in texts_of(figure)]
        found.append((texts, sum(style != "solid" for style in styles), styles.count("solid")))
    made._draw_was_started = True
    return found


def test_it_begins_with_the_result_and_goes_through_all_steps_in_twelve_seconds(animation):
    assert animation.captions[0] == "The eight steps of attention: the result"
    numbers = [int(re.match(r"Step (\d)  ", caption)[1]) for caption in animation.captions[1:]]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    assert len(animation.captions) * animation._milliseconds <= 12_000


@pytest.mark.parametrize(
    ("count", "features"),
    [(3, 4), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in [(12, 8), (128, 8), (200, 64)])],
)
@pytest.mark.parametrize("kind", [pytest.param("long", marks=pytest.mark.slow), "Chinese"])
def test_frames_are_legible(kind, count, features):
    figure = Figure(figsize=(7, 6), dpi=60)  # in smaller letters every width is rounded up to another pixel
    made = plot.animate(draw_trace(count, features, tokens_of(kind, count)), figure)
    for figure in frames_of(made, 1 if EVERYTHING else 4):
        assert_legible(figure)
    made._draw_was_started = True


def test_numbers_appear_with_their_step(frames):
    numbers = r"[\d.]+(e\N{MINUS SIGN}\d+)?"
    counts = [sum(re.fullmatch(numbers, text) is not None for text in texts) for texts, _, _ in frames]
    labels = 9 * 3  # a number for each row of all but the weights that are learned
    inputs, weights, one = 12, 36, 9
    third = inputs + weights + 3 * one
    fourth_to_seventh = [third + 12, third + 15, third + 24, third + 27]
    everything = third + 5 * one
    expected = [everything, inputs, inputs + weights, third, *fourth_to_seventh, everything - one, everything]
    assert [count - labels for count in counts] == expected


def test_what_is_read_has_a_dashed_frame_and_what_is_made_a_solid_one(frames):
    """As many of each as a step reads and makes; none in the finished picture."""
    lines = [(dashed, solid) for _, dashed, solid in frames]
    assert lines == [(0, 0), (0, 0), (0, 0), (4, 3), (2, 2), (1, 1), (2, 1), (1, 1), *[(3, 5)] * 2]


def test_the_first_frame_and_the_last_hold_all_outputs(frames, example):
    outputs = " ".join(f"{number:.4f}" for number in example.outputs.ravel())
    assert outputs in " ".join(frames[0][0])
    assert outputs in " ".join(frames[-1][0])


def test_the_weighted_values_are_those_of_the_present_input(frames, example):
    texts = [" ".join(texts) for texts, _, _ in frames]
    for frame, query in ((6, 0), (7, 0), (8, 1), (9, 2)):
        weighted = example.weights[query][1:2, None] * example.values[1:2]
        assert " ".join(f"{number:.4f}" if number else "0" for number in weighted.ravel()) in texts[frame]
        assert f"weighted values of input {query + 1}" in texts[frame]
        assert f"products of input {query + 1}" in texts[frame]


def test_the_digits_of_cells_and_notes_are_the_same(frames, example):
    """Each number that a note of the first input names is in a cell, to the letter."""
    for number, (texts, _, _) in zip((5, 6, 7), frames[5:8], strict=True):
        note = example.steps[number - 1].note
        named = set(re.findall(r"\d+\.\d+", note))
        assert named
        assert named <= set(texts)
        assert note.splitlines()[0] in texts


def test_step_4_writes_the_products_whose_sums_are_the_scores(frames, example, article):
    texts = frames[4][0]
    sums = [f"{a}×{b}" for a, b in zip(article["queries"][0].astype(int), article["keys"][1].astype(int), strict=True)]
    assert f"score of key 2: {' + '.join(sums)} = 4" in texts
    products = (article["queries"][0] * article["keys"]).astype(int)
    assert " ".join(map(str, products.ravel())) in " ".join(texts)
    assert " ".join(map(str, products.ravel())) in " ".join(text for text, _ in texts_of(plot.steps(example)))


# Arrows


READ_BY = {
    "keys": {"x", "w_key"},
    "queries": {"x", "w_query"},
    "values": {"x", "w_value"},
    "products": {"queries", "keys"},
    "scores": {"products"},
    "weights": {"scores"},
    "weighted_values": {"weights", "values"},
    "outputs": {"weighted_values"},
}


def arrows_of(figure):
    """What comes of an array to what it is computed from, by the arrows of a picture."""
    found = {}
    for arrow in figure.findobj(Connector):
        found.setdefault(arrow.target, set()).update(arrow.sources)
    return found


def test_arrows_lead_from_what_each_step_reads_to_what_comes_of_it(example):
    made = plot.animate(example, small_figure())
    steps = [
        {},
        {},
        {},
        {"keys", "queries", "values"},
        {"products", "scores"},
        {"weights"},
        {"weighted_values"},
        {"outputs"},
    ]
    for number, targets in enumerate(steps):
        made._draw(number)
        expected = READ_BY if number == 0 else {name: READ_BY[name] for name in targets}
        assert arrows_of(made._figure) == expected, number
    made._draw_was_started = True


def test_arrows_begin_and_end_at_their_arrays(example):
    made = plot.animate(example, small_figure())
    made._draw(0)
    frames = [one for one in made._figure.axes[0].patches if isinstance(one, Rectangle)]
    arrows = made._figure.findobj(Connector)
    assert len(arrows) == 13
    for arrow in arrows:
        for x, y in (arrow.points[0], arrow.points[-1]):
            gaps = []
            for box in frames:
                (left, top), (right, bottom) = box.get_xy(), np.add(box.get_xy(), (box.get_width(), box.get_height()))
                gaps.append(np.hypot(max(left - x, 0, x - right), max(top - y, 0, y - bottom)))
            assert min(gaps) < 18, arrow.sources  # the room of a caption or a label
    made._draw_was_started = True


def test_the_page_has_the_arrows_of_all_steps(example):
    found = arrows_of(plot.steps(example))
    assert {name: found[name] & read for name, read in READ_BY.items()} == READ_BY


def test_scores_that_are_not_sums_of_products_come_of_queries_and_keys(article):
    trace = pyattn.trace(*(article[name] for name in NAMES), score="distance")
    made = plot.animate(trace, small_figure())
    assert arrows_of(made._figure)["scores"] == {"queries", "keys"} <= arrows_of(plot.steps(trace))["scores"]
    made._draw_was_started = True


@pytest.mark.parametrize("tokens", [None, ["我", "是", "学生"]])
def test_rows_are_labelled(article, tokens):
    trace = pyattn.trace(*(article[name] for name in NAMES), tokens=tokens)
    made = plot.animate(trace)
    found = [text for text, _ in texts_of(made._figure)]
    for label in tokens or "123":
        assert sum(text in (label, "□" * len(label)) for text in found) >= 9  # without a Chinese font
    made._draw_was_started = True


def test_columns_are_shown_as_rows_are(example, article):
    """The same numbers turned: what is a row of one is a column of the other."""
    turned = pyattn.trace(*(article[name].T for name in NAMES), convention="column")
    pair = [plot.animate(trace, small_figure()) for trace in (example, turned)]
    for frame in (4, 8, 9) if EVERYTHING else (4, 9):
        numbers = []
        for made in pair:
            made._draw(frame)
            numbers.append(sorted(text for text, _ in texts_of(made._figure) if re.fullmatch(r"[\d.]+", text)))
        assert len(numbers[0]) > 60
        assert numbers[0] == numbers[1]
    for made in pair:
        made._draw_was_started = True


def test_cross_attention_has_no_inputs_and_may_have_other_lengths():
    rng = np.random.default_rng(0)
    queries, keys, values = rng.random((2, 3)), rng.random((5, 3)), rng.random((5, 4))
    made = plot.animate(pyattn.trace_attention(queries, keys, values), small_figure())
    for figure in frames_of(made, 1 if EVERYTHING else 3):
        assert not any(text.startswith("inputs") for text in assert_legible(figure))
    made._draw_was_started = True


@pytest.mark.slow
def test_a_gif_has_all_frames_in_the_interval(example, tmp_path):
    made = plot.animate(example, small_figure(), interval=500)
    made.save(tmp_path / "steps.gif")
    with Image.open(tmp_path / "steps.gif") as image:
        durations = []
        for frame in range(image.n_frames):
            image.seek(frame)
            durations.append(image.info["duration"])
    assert sum(durations) == 500 * len(made.captions)  # equal frames are one


class Page(HTMLParser):
    """Tags that are opened and closed, and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.references = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.references += [attrs[name] for name in ("src", "href") if name in attrs]
        if tag == "img":
            self.images.append(attrs)
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_an_html_page_holds_all_it_needs(tmp_path):
    tokens = ['<b>"in"</b>', "<script>", "&"]
    made = plot.animate(draw_trace(3, 1, tokens), small_figure())
    assert '(<b>"in"</b>)' in " ".join(made.captions)
    made.save(tmp_path / "steps.html")
    text = (tmp_path / "steps.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not page.open
    assert [image["alt"] for image in page.images] == made.captions
    assert all(reference.startswith("data:image/png;base64,") for reference in page.references)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    assert "display:none" not in "".join(image["style"] for image in page.images)  # all are seen where scripts are off


@pytest.mark.slow
def test_html_of_200_tokens_is_below_a_megabyte(tmp_path):
    plot.animate(draw_trace(200, 200)).save(tmp_path / "steps.html")
    assert (tmp_path / "steps.html").stat().st_size < 1_000_000


STATE = """
import matplotlib as mpl, matplotlib.pyplot as plt, sys
mpl.use("Agg")
figure, mine = plt.subplots()
settings = dict(mpl.rcParams)
from pyattn import plot
import numpy as np, pyattn
trace = pyattn.trace(np.eye(3), *np.ones((3, 3, 2)))
plot.steps(trace).draw_without_rendering()
from matplotlib.figure import Figure
made = plot.animate(trace, Figure(dpi=30))
made.to_html()
assert plt.get_fignums() == [1] and plt.gcf() is figure and plt.gca() is mine
assert dict(mpl.rcParams) == settings
"""


@pytest.mark.slow
def test_neither_pyplot_nor_its_settings_change():
    run_python(STATE)


KINDS = [(plot.steps, "trace", "pyattn.trace"), (plot.animate, "steps", "pyattn.trace or pyattn.generate")]


@for_each(("draw", "name", "makers"), KINDS)
def test_mistakes_are_named(draw, name, makers, example):
    message = f"{name} is of type ndarray, expected what {makers} returns"
    with pytest.raises(TypeError, match=re.escape(message)):
        draw(np.eye(3))
    spoilt = changed(example, {6: {"arrays": {"weighted_values": np.ones((3, 3, 3))}}})
    message = "weighted_values of step 6 has shape (3, 3, 3), expected (rows, columns)"
    with pytest.raises(ValueError, match=re.escape(message)):
        draw(spoilt)


@pytest.mark.parametrize(("draw", "name", "makers"), KINDS)
def test_of_several_heads_one_is_to_be_chosen(draw, name, makers):
    message = f"{name} is of type HeadTraces, expected what {makers} returns; choose a head, {name}.heads[0]"
    traced = pyattn.MultiheadAttention(4, 2, rng=0).trace(np.ones((3, 4)))
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        draw(traced)
    if draw is plot.steps:
        with pytest.raises(TypeError, match=f"^{re.escape(message.replace('HeadTraces', 'BackwardHeadTraces'))}$"):
            draw(traced.backward(np.ones((3, 4))))


def test_a_figure_is_needed_to_draw_on(example):
    with pytest.raises(TypeError, match=r"^figure is of type str, expected a Figure of matplotlib$"):
        plot.steps(example, "steps.png")
    message = r"^figure is of type SubFigure, expected a Figure, which can be saved$"
    with pytest.raises(TypeError, match=message):
        plot.animate(example, Figure().subfigures())


@pytest.mark.parametrize(
    ("interval", "kind", "message"),
    [
        ("fast", TypeError, "interval is 'fast', expected a number of milliseconds"),
        (0, ValueError, "interval is 0, expected a number of milliseconds above 0"),
        (float("nan"), ValueError, "interval is nan, expected a number of milliseconds above 0"),
    ],
)
def test_an_interval_is_a_positive_number(example, interval, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        plot.animate(example, interval=interval)

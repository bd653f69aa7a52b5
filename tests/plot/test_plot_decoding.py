"""pyattn.plot.animate of a generation: the maps of all heads, token by token."""

from __future__ import annotations

import io
import itertools
import re
from base64 import b64decode
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from support.helpers import for_each
from support.pictures import SIZES, assert_legible, texts_of, tokens_of

import pyattn
from pyattn import plot

pytestmark = pytest.mark.filterwarnings("ignore:no installed font has")

WORDS = ["<s>", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def made_up(layers=2, heads=3, prompt=1, steps=4, source=5, words=10, seed=0):
    """What looks like a generation: random weights, and each token the one before it plus one."""
    rng = np.random.default_rng(seed)

    def weights(rows, columns, causal):
        scores = 3 * rng.standard_normal((layers, heads, rows, columns))
        if causal:
            scores[..., np.triu(np.ones((rows, columns), bool), columns - rows + 1)] = -np.inf
        return pyattn.softmax(scores)

    def step(number):
        length = prompt + number
        new = prompt if number == 0 else 1
        other = np.array([(length + 3) % words, (length + 4) % words])
        return SimpleNamespace(
            number=number,
            decoder_input=np.arange(length) % words,
            token=length % words,
            probability=0.75,
            alternatives=SimpleNamespace(indices=other, values=np.array([0.2, 0.0001])),
            self_weights=weights(new, length, causal=True),
            cross_weights=None if source is None else weights(new, source, causal=False),
        )

    kept = [step(number) for number in range(steps)]
    return SimpleNamespace(row_steps=lambda row=0: kept)


@pytest.fixture
def animate():
    """plot.animate; matplotlib warns of animations that nobody saw."""
    made = []

    def make(*arguments, **options):
        made.append(plot.animate(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one._draw_was_started = True


def frames_of(animation):
    """The figure at each frame, and last at the first one, which shows the finished sequence."""
    for number in (*range(1, len(animation.captions)), 0):
        animation._draw(number)
        yield animation._figure


def maps_of(figure):
    """Arrays of all maps, in order; the last image is the scale."""
    return [image.get_array() for image in figure.axes[0].get_images()][:-1]


def marks_of(figure):
    """The thick frames, (x, y, width, height)."""
    thick = [one for one in figure.axes[0].patches if isinstance(one, Rectangle) and one.get_zorder() > 2.6]
    return [(*one.get_xy(), one.get_width(), one.get_height()) for one in thick]


# What is shown


def test_the_first_frame_shows_all_and_each_step_is_another(animate):
    made = animate(made_up(), vocabulary=WORDS, source=list("abcde"))
    assert made.captions == [
        "After 4 steps: <s> zero one two three",
        "Step 1 of 4: <s> → zero",
        "Step 2 of 4: <s> zero → one",
        "Step 3 of 4: <s> zero one → two",
        "Step 4 of 4: <s> zero one two → three",
    ]


@pytest.mark.parametrize("prompt", [1, 4])
@pytest.mark.parametrize("source", [5, None])
def test_each_head_has_a_map_of_all_its_weights_so_far(animate, prompt, source):
    generation = made_up(prompt=prompt, source=source)
    steps = generation.row_steps()
    made = animate(generation)
    for at, figure in enumerate(frames_of(made)):
        so_far = steps[: at + 1]  # the last figure is the finished sequence
        maps = iter(maps_of(figure))
        kinds = ["self_weights"] if source is None else ["cross_weights", "self_weights"]
        for kind in kinds:
            for layer in range(2):
                for head in range(3):
                    found = next(maps)
                    row = 0
                    for step in so_far:
                        expected = getattr(step, kind)[layer, head]
                        part = found[row : row + len(expected), : expected.shape[1]]
                        seen = expected > 0  # what a token does not see, those after it, is left empty
                        np.testing.assert_array_equal(part[seen].data, expected[seen])
                        np.testing.assert_array_equal(np.ma.getmaskarray(part), ~seen)
                        row += len(expected)
                    assert row == len(so_far[-1].decoder_input)
                    assert np.ma.getmaskarray(found[row:]).all()
        assert next(maps, None) is None


def test_all_maps_have_one_scale(animate):
    generation = made_up()
    largest = max(step.cross_weights.max() for step in generation.row_steps())
    largest = max(largest, *(step.self_weights.max() for step in generation.row_steps()))
    *_, figure = frames_of(animate(generation))
    *maps, scale = figure.axes[0].get_images()
    assert {(image.norm.vmin, image.norm.vmax) for image in maps} == {(0, largest)}
    assert (scale.norm.vmin, scale.norm.vmax) == (0, 1)
    np.testing.assert_allclose(np.diff(scale.get_array()), 1 / scale.get_array().size)
    assert f"weights from 0 to {largest:.2g}" in [text for text, _ in texts_of(figure)]


def test_the_row_that_the_next_token_comes_of_has_a_frame(animate):
    *steps, last = [marks_of(figure) for figure in frames_of(animate(made_up(prompt=2)))]
    assert last == []
    assert [len(marks) for marks in steps] == [12] * 4
    for before, after in itertools.pairwise(steps):
        for (x, y, width, height), (x_after, y_after, *size) in zip(before, after, strict=True):
            assert (x_after, *size) == (x, width, height)
            assert y_after == pytest.approx(y + height)


def test_tokens_are_named_when_they_are_there(animate):
    """Beside maps of the source what comes out; beside and below maps of what is written what went in."""
    made = animate(made_up(layers=1, heads=2), vocabulary=WORDS, source=["A", "B", "C", "D", "E"])
    for at, figure in enumerate(frames_of(made)):
        found = [text for text, _ in texts_of(figure)]
        for place, word in enumerate(WORDS[1:5]):
            assert found.count(f"→ {word}") == (1 if place <= min(at, 3) else 0)
        for place, word in enumerate(WORDS[:4]):
            assert found.count(word) == (3 if place <= min(at, 3) else 0)  # a row, and a column under each head
        assert found.count("C") == 2
        assert "source: A B C D E" in found


def test_what_else_was_likely_is_said(animate):
    generation = made_up()
    first = next(frames_of(animate(generation, vocabulary=WORDS)))
    assert "probability 0.750; also possible: three 0.200" in [text for text, _ in texts_of(first)]
    generation.do_sample = True
    steps = generation.row_steps()
    steps[0].probability = 0.1
    found = [text for text, _ in texts_of(next(frames_of(animate(generation, vocabulary=WORDS))))]
    assert "Step 1 of 4, sampled" in found
    assert "sampled with probability 0.100; more likely: three 0.200" in found


def test_ids_and_positions_stand_for_words_that_are_not_given(animate):
    made = animate(made_up())
    assert made.captions[2] == "Step 2 of 4: 0 1 → 2"
    assert "source: 0 1 2 3 4" in [text for text, _ in texts_of(made._figure)]


def test_of_many_steps_some_are_shown_and_the_last_one(animate):
    made = animate(made_up(1, 1, steps=100, source=None), Figure(figsize=(4, 4), dpi=40))
    numbers = [int(re.match(r"Step (\d+) of 100: ", caption)[1]) for caption in made.captions[1:]]
    assert numbers == [*range(1, 100, 3), 100]
    assert made.captions[0].startswith("After 100 steps: 0 1 2")


def test_long_texts_keep_their_end(animate):
    made = animate(made_up(1, 1, steps=60, source=80), Figure(figsize=(6, 6), dpi=40), vocabulary=["a word"] * 10)
    made._draw(0)
    lines = [text for text, _ in texts_of(made._figure) if text.startswith("…")]
    assert any(line.endswith("a word a word") for line in lines)
    assert any(line.endswith("78 79") for line in lines)


# Legible


@pytest.mark.sampled(6)
@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", ["English", "long", "Chinese"])
def test_frames_are_legible(animate, count, kind):
    made = animate(
        made_up(2, 4, steps=min(count, 60), source=count), vocabulary=tokens_of(kind, 10), source=tokens_of(kind, count)
    )
    last = len(made.captions) - 1
    for number in (0, last // 2, last - 1, last):
        made._draw(number)
        assert_legible(made._figure)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (6, 12), (12, 12), (2, 40)])
@pytest.mark.parametrize("source", [3, 40, None])
def test_any_number_of_heads_is_legible(animate, shape, source):
    made = animate(made_up(*shape, prompt=5, steps=2, source=source), dark=True)
    assert_legible(made._figure)
    made._draw(2)
    assert_legible(made._figure)
    assert len(maps_of(made._figure)) == shape[0] * shape[1] * (1 if source is None else 2)


@pytest.mark.parametrize("size", [(4, 4), (9, 3), (20, 30)])
def test_a_page_fits_the_figure_that_is_given(animate, size):
    figure = Figure(figsize=size)
    assert animate(made_up(), figure)._figure is figure
    assert_legible(figure)


def test_the_ground_of_the_figure_decides_unless_it_is_said(animate):
    for made in (animate(made_up(), dark=True), animate(made_up(), Figure(facecolor="black"))):
        assert max(to_rgb(made._figure.get_facecolor())) < 0.2
        title = next(text for text in made._figure.axes[0].texts if text.get_text().startswith("After"))
        assert min(to_rgb(title.get_color())) > 0.8
    assert to_rgb(animate(made_up())._figure.get_facecolor()) == (1, 1, 1)


def test_grids_are_named_and_say_what_their_rows_and_columns_are(animate):
    found = [text for text, _ in texts_of(animate(made_up())._figure)]
    assert [text for text in found if "attention" in text] == ["cross-attention", "masked self-attention"]
    assert [text for text in found if text.startswith("rows")] == [
        "rows: next tokens; columns: source tokens",
        "rows: decoder inputs; columns: decoder inputs",
    ]
    found = [text for text, _ in texts_of(animate(made_up(6, 12, steps=30, source=40))._figure)]
    assert "rows: 30 next tokens; columns: 40 source tokens" in found  # too many to write them
    assert "39" not in found


@pytest.mark.parametrize("words", [WORDS, ["a", "word", "of", "several", "letters", *"bcdef"]])
def test_tokens_stay_at_their_map_and_those_that_fit_are_upright(animate, words):
    figure = animate(made_up(1, 3, steps=8, source=7), vocabulary=words)._figure
    texts_of(figure)
    maps = [image.get_window_extent() for image in figure.axes[0].get_images()][:-1]
    below = [text for text in figure.axes[0].texts if text.get_text() in words and text.get_ha() == "center"]
    turned = [text for text in figure.axes[0].texts if text.get_text() in words and text.get_rotation() == 90]
    assert len(below) + len(turned) == 24
    assert all(len(text.get_text()) > 1 for text in turned)
    for text in below:
        box = text.get_window_extent()
        assert any(one.x0 <= box.x0 and box.x1 <= one.x1 for one in maps), text


# Files


def colours_by_weight(picture, figure, image):
    """The colours of some cells of a map in a file, by their level; and those of the colorbar at these levels."""
    *_, scale = figure.axes[0].get_images()
    levels = scale.get_array().size
    pixels = np.asarray(picture)
    ratio = pixels.shape[1] / figure.bbox.width

    def at(drawn, row, column):
        box = drawn.get_window_extent()
        rows, columns = drawn.get_array().shape
        x = box.x0 + (column + 0.5) * box.width / columns
        y = figure.bbox.height - box.y1 + (row + 0.5) * box.height / rows
        return tuple(pixels[int(y * ratio), int(x * ratio)].tolist())

    weights = image.get_array()
    for row, column in np.argwhere(~np.ma.getmaskarray(weights)):
        level = min(int(weights[row, column] / image.norm.vmax * levels), levels - 1)
        yield at(image, row, column), at(scale, 0, level)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("shape", [(2, 3), (6, 12)])
def test_cells_have_the_colour_of_the_colorbar_in_files_of_few_colours(animate, tmp_path, shape, dark):
    """The dark words and grounds of many maps must not crowd out the colours of few cells."""
    made = animate(made_up(*shape, steps=6), dark=dark)
    made._draw(0)
    files = [io.BytesIO(b64decode(made._encode_frame(0, 72)))]
    if shape == (2, 3):
        made.save(tmp_path / "decoding.gif", dpi=72)
        files.append(tmp_path / "decoding.gif")
    made._draw(0)
    made._figure.set_dpi(72)
    made._figure.draw_without_rendering()
    for file in files:
        with Image.open(file) as picture:
            drawn = picture.convert("RGB")
        assert len(drawn.getcolors(1 << 24)) <= 256
        maps = made._figure.axes[0].get_images()[:-1]
        pairs = [pair for image in maps for pair in colours_by_weight(drawn, made._figure, image)]
        assert len({cell for cell, _ in pairs}) > 20
        assert all(cell == bar for cell, bar in pairs)


def test_an_animation_takes_at_most_twelve_seconds(animate, tmp_path):
    small = Figure(figsize=(4, 4), dpi=30)
    for steps in (2, 30):
        made = animate(made_up(1, 1, steps=steps, source=None), small)
        assert made._milliseconds == min(1200, 12_000 / (steps + 1))
    assert animate(made_up(), small, interval=5000)._milliseconds == 5000


def test_a_gif_has_all_frames(animate, tmp_path):
    made = animate(made_up(), Figure(figsize=(6, 6), dpi=30), interval=500)
    made.save(tmp_path / "decoding.gif")
    with Image.open(tmp_path / "decoding.gif") as image:
        assert image.n_frames == 5


@pytest.mark.slow
def test_html_of_many_heads_and_tokens_is_below_a_megabyte(animate, tmp_path):
    made = animate(made_up(12, 12, prompt=20, steps=100, source=60), vocabulary=WORDS)
    made.save(tmp_path / "decoding.html")
    assert (tmp_path / "decoding.html").stat().st_size < 1_000_000
    text = (tmp_path / "decoding.html").read_text()
    assert "<title>Decoding, step by step</title>" in text
    assert text.count("<img ") == len(made.captions) <= 42
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)


# Of real models


def test_the_tokens_and_weights_of_a_model_are_shown(animate):
    model = pyattn.nn.TransformerLM(10, 16, 2, 2, 32, rng=0).eval()
    generation = pyattn.generate(model, [3, 1, 4], max_new_tokens=3, return_steps=True)
    made = animate(generation)
    assert made.captions[0] == f"After 3 steps: {' '.join(map(str, generation.sequences[0]))}"
    _, weights, _ = model.encoder.layers[0](
        model.embedding(generation.sequences[0][None, :-1]) * 4
        + pyattn.functional.positional_encoding(5, 16, dtype=np.float32),
        is_causal=True,
        need_weights=True,
    )
    made._draw(0)
    figure = made._figure
    seen = np.tril(np.ones((5, 5), bool))
    for head in range(2):
        np.testing.assert_allclose(maps_of(figure)[head][seen], weights[0, head][seen], atol=1e-6)


def test_rows_of_a_batch_and_beams_are_drawn_by_themselves(animate):
    model = pyattn.nn.Seq2SeqTransformer(10, 10, 16, 2, 1, 1, 32, padding_idx=0, rng=3).eval()
    options = {"max_new_tokens": 4, "start_token_id": 1, "num_beams": 3, "num_return_sequences": 2}
    generation = pyattn.generate(model, [[5, 6, 7, 8], [9, 4]], **options, return_steps=True)
    for row, length in enumerate((4, 4, 2, 2)):
        made = animate(generation, Figure(figsize=(6, 6), dpi=40), row=row)
        assert made.captions[0] == f"After 4 steps: {' '.join(map(str, generation.sequences[row]))}"
        assert [array.shape for array in maps_of(made._figure)] == [(4, length)] * 2 + [(4, 4)] * 2


# Mistakes


@for_each(
    ("options", "kind", "message"),
    [
        (
            {"source": ["a"]},
            ValueError,
            "source has 1 tokens, expected 5: one for each token of the encoder's source",
        ),
        ({"source": "abcde"}, TypeError, "source is one text, expected a sequence of 5 tokens"),
        ({"vocabulary": ["a", "b"]}, ValueError, "vocabulary has no word for the id 2"),
        ({"vocabulary": {0: "a"}}, ValueError, "vocabulary has no word for the id 1"),
        ({"vocabulary": "words"}, TypeError, "vocabulary is of type str, expected a sequence of words or a mapping"),
        ({"vocabulary": 3}, TypeError, "vocabulary is of type int, expected a sequence of words or a mapping"),
        ({"interval": 0}, ValueError, "interval is 0, expected a number of milliseconds above 0"),
        ({"figure": "x.gif"}, TypeError, "figure is of type str, expected a Figure of matplotlib"),
    ],
)
def test_mistakes_are_named(options, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        plot.animate(made_up(), **options)


def test_a_source_needs_an_encoder():
    with pytest.raises(
        ValueError, match=r"^source was given, but the generation has no cross-attention weights; leave it out$"
    ):
        plot.animate(made_up(source=None), source=["a"])


def test_a_generation_without_steps_or_rows_is_named():
    model = pyattn.nn.TransformerLM(10, 16, 2, 1, 32, rng=0).eval()
    with pytest.raises(ValueError, match=r"^steps were not recorded; call generate with return_steps=True$"):
        plot.animate(pyattn.generate(model, [1], max_new_tokens=1))
    with pytest.raises(ValueError, match=r"^row is 1, expected 0 <= row < 1$"):
        plot.animate(pyattn.generate(model, [1], max_new_tokens=1, return_steps=True), row=1)
    with pytest.raises(ValueError, match=r"^row 0 of the generation has no tokens; choose another row$"):
        plot.animate(SimpleNamespace(row_steps=lambda row: []))
    without = made_up()
    for step in without.row_steps():
        step.self_weights = step.cross_weights = None
    with pytest.raises(ValueError, match=r"^the generation has no attention weights: its model returns none$"):
        plot.animate(without)


@for_each(("name", "value"), [("row", 1), ("source", ["a"]), ("vocabulary", WORDS)])
def test_words_of_a_generation_are_refused_beside_a_trace(name, value):
    trace = pyattn.trace(np.eye(3), *np.ones((3, 3, 2)))
    with pytest.raises(TypeError, match=f"^{name} is for a generation, but steps is of type Trace; leave it out$"):
        plot.animate(trace, **{name: value})

"""The architecture figure of docs/draw_lessons.py has each part and connection that the paper's text describes."""

from __future__ import annotations

import functools
import runpy

import numpy as np
import pytest
from support.helpers import ROOT

agg = pytest.importorskip("matplotlib.backends.backend_agg")


@functools.cache
def lessons():
    return runpy.run_path(str(ROOT / "docs" / "draw_lessons.py"))


def boxes():
    return lessons()["BOXES"]


def titles(names):
    return [boxes()[name].text.replace("\n", " ") for name in names]


def arrows():
    return {(arrow.start, arrow.end): arrow for arrow in lessons()["ARROWS"]}


def column(first, last):
    """Boxes from first to last along the arrows without corners, which go up."""
    names = [first]
    while names[-1] != last:
        (following,) = [a.end for a in lessons()["ARROWS"] if a.start == names[-1] and not a.via]
        names.append(following)
    return names


NORM = "Add & Norm LayerNorm(X + Sublayer(X))"
FEED = "Feed-forward $W_2$ ReLU($W_1$x + $b_1$) + $b_2$"


def test_the_encoder_layer_is_attention_and_feed_forward_each_followed_by_add_and_norm():
    names = column("source_sum", "memory")
    assert titles(names) == ["+", "Multi-head self-attention", NORM, FEED, NORM, "Output of the encoder"]


def test_the_decoder_layer_has_masked_attention_attention_to_the_encoder_and_feed_forward():
    names = column("target_sum", "word")
    cross = "Encoder-decoder attention (cross-attention)"
    layer = ["Masked multi-head self-attention", NORM, cross, NORM, FEED, NORM]
    ends = ["Linear layer, last row", "Softmax over the vocabulary", "next word, until <end>"]
    assert titles(names) == ["+", *layer, *ends]


def test_every_part_has_a_residual_connection_around_it_and_dropout_before_the_sum():
    for first, last in (("source_sum", "memory"), ("target_sum", "word")):
        names = column(first, last)
        norms = [n for n, name in enumerate(names) if boxes()[name].kind == "norm"]
        assert len(norms) == (2 if last == "memory" else 3)
        for n in norms:
            assert arrows()[names[n - 1], names[n]].label == "dropout"
            assert arrows()[names[n - 2], names[n]].via, "the way around the part"


def test_both_stacks_have_six_equal_layers():
    encoder, decoder = lessons()["FRAMES"]
    assert encoder.text == "Encoder:\n6 equal layers"
    assert decoder.text == "Decoder:\n6 equal layers"
    assert set(encoder.names) == set(column("source_sum", "memory")[1:-1])
    assert set(decoder.names) == set(column("target_sum", "word")[1:-3])
    for frame in (encoder, decoder):
        for box in (boxes()[name] for name in frame.names):
            assert frame.x < box.x - box.width / 2
            assert box.x + box.width / 2 < frame.x + frame.width
            assert frame.bottom < box.y - box.height / 2
            assert box.y + box.height / 2 < frame.top


def test_inputs_are_embeddings_plus_fixed_positional_encodings():
    for side in ("source", "target"):
        into = {start for start, end in arrows() if end == f"{side}_sum"}
        assert into == {f"{side}_embedding", f"{side}_positions"}
        assert titles([f"{side}_positions"]) == ["Positional encoding sin, cos: fixed"]
        assert (side, f"{side}_embedding") in arrows()


def test_keys_and_values_come_from_the_encoder_through_two_matrices_and_queries_from_the_decoder():
    into = {start: arrow.label for (start, end), arrow in arrows().items() if end == "cross_attention"}
    assert into == {"w_key": "$K^{enc}$", "w_value": "$V^{enc}$", "decoder_norm_1": "queries"}
    assert {end for start, end in arrows() if start == "memory"} == {"w_key", "w_value"}
    assert titles(["w_key", "w_value"]) == ["$W_K$", "$W_V$"]


def test_the_target_is_shifted_right_and_each_word_is_appended_to_it():
    assert boxes()["target"].text == "target, shifted right: <s> I am a student"
    assert arrows()["word", "target"].label == "append the word"


def test_every_text_fits_its_box_and_every_arrow_ends_at_one():
    figure = lessons()["draw_transformer"]()
    agg.FigureCanvasAgg(figure).draw()
    ax = figure.axes[0]
    inside = ax.transData.inverted()
    texts = {(round(t.get_position()[0], 3), t.get_text()): inside.transform(t.get_window_extent()) for t in ax.texts}
    for box in boxes().values():
        for line in box.text.split("\n"):
            (left, _), (right, _) = texts[round(box.x, 3), line]
            assert box.width + 0.02 > right - left, line
    for arrow in lessons()["ARROWS"]:
        way = lessons()["way_of"](arrow)
        assert np.abs(np.subtract(way[-1], way[-2])).sum() > 0.15, "room for its head"
        for (x, y), name in ((way[0], arrow.start), (way[-1], arrow.end)):
            box = boxes()[name]
            across, up = abs(x - box.x) - box.width / 2, abs(y - box.y) - box.height / 2
            assert max(across, up) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("name", ["transformer", "transformer-dark"])
def test_the_saved_figure_is_the_one_that_is_drawn(name):
    image = pytest.importorskip("PIL.Image")
    figure = lessons()["draw_transformer"](dark=name.endswith("dark"))
    figure.set_dpi(lessons()["DPI"])
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    drawn = np.asarray(canvas.buffer_rgba())[..., :3].astype(float)
    with image.open(ROOT / "docs" / "pictures" / f"{name}.png") as saved:
        found = np.asarray(saved.convert("RGB"), float)
    assert found.shape == drawn.shape
    assert np.abs(found - drawn).mean() < 2  # of 255: it has 256 colours

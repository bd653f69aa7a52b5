"""How pictures write text: fonts that have it, no formulas, ellipses; and colours that all readers can tell apart."""

from __future__ import annotations

import itertools
import re
import tracemalloc
import warnings

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder  # comes with matplotlib
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import rcParams
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from PIL import Image
from support.pictures import texts_of, without_chinese_fonts

from pyattn import plot
from pyattn.plot import fonts as module
from pyattn.plot.fonts import Fonts, shorten
from pyattn.plot.quantising import quantise
from pyattn.plot.theme import DARK, LIGHT, PALETTE, contrasting

# Fonts


@pytest.fixture
def make_font(monkeypatch, tmp_path):
    """Make and install fonts that are squares throughout."""
    module._add_new_fonts()  # those of this machine, which stay
    monkeypatch.setattr(fontManager, "ttflist", [*fontManager.ttflist])

    def make(family, characters, install=True):
        path = tmp_path / f"{family}.ttf"
        square = TTGlyphPen(None)
        for place, step in enumerate([(0, 0), (0, 800), (800, 800), (800, 0)]):
            (square.lineTo if place else square.moveTo)(step)
        square.closePath()
        font = FontBuilder(1000)
        names = [".notdef", *(f"u{ord(one)}" for one in characters)]
        font.setupGlyphOrder(names)
        font.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
        font.setupGlyf(dict.fromkeys(names, square.glyph()))
        font.setupHorizontalMetrics(dict.fromkeys(names, (1000, 0)))
        font.setupHorizontalHeader(ascent=800, descent=-200)
        font.setupNameTable({"familyName": family, "styleName": "Regular"})
        font.setupOS2()
        font.setupPost()
        font.save(path)
        if install:
            fontManager.addfont(path)
        return path

    return make


def test_without_a_chinese_font_one_warning_names_the_package(monkeypatch):
    without_chinese_fonts(monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plot.heads(np.ones((3, 2, 2)), ["动物", "路"], title="注意力").draw_without_rendering()
    assert [str(warning.message) for warning in caught] == [
        "no installed font has 力动意注物路: boxes are drawn instead; on Debian: apt install fonts-noto-cjk"
    ]
    assert caught[0].filename == __file__


def test_other_missing_characters_are_named_without_that_package():
    with pytest.warns(UserWarning, match=r"^no installed font has 𓀀: boxes are drawn instead$"):
        assert Fonts(["a 𓀀"]).escape("a 𓀀") == "a □"


def test_an_installed_font_that_has_the_characters_is_used(monkeypatch, make_font):
    """It stands behind matplotlib's own, which goes on writing what it can; and matplotlib has nothing to warn of."""
    make_font("Chinese squares", "动物路注意力")
    monkeypatch.setattr(module, "_FALLBACKS", ("Chinese squares",))
    fonts = Fonts(["动物 a"])
    assert fonts.family == [*rcParams["font.family"], "Chinese squares"]
    assert fonts.escape("动物 a") == "动物 a"
    assert fonts.width("动物", 10) == pytest.approx(20, rel=0.01)
    plot.heads(np.ones((3, 2, 2)), ["动物", "路"], title="注意力").draw_without_rendering()


def test_fonts_are_tried_in_order_until_no_character_is_missing(monkeypatch, make_font):
    make_font("first squares", "动物")
    make_font("second squares", "动")
    make_font("third squares", "动한")
    monkeypatch.setattr(module, "_FALLBACKS", ("not installed", "first squares", "second squares", "third squares"))
    assert Fonts(["动物"]).family[1:] == ["first squares"]
    assert Fonts(["动한"]).family[1:] == ["first squares", "third squares"]
    assert Fonts(["a"]).family == rcParams["font.family"]


def test_titles_are_not_bold_where_the_chosen_font_is_not(monkeypatch, make_font):
    """Matplotlib would log that it finds no such weight."""
    make_font("Chinese squares", "动物")
    monkeypatch.setattr(module, "_FALLBACKS", ("Chinese squares",))
    assert [Fonts(["动物"]).bold, Fonts(["a"]).bold] == ["normal", "bold"]


def test_a_font_that_was_installed_after_matplotlib_listed_them_is_found(monkeypatch, make_font, tmp_path):
    late = make_font("late squares", "动物", install=False)
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(module, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), str(late)])
    monkeypatch.setattr(module, "_FALLBACKS", ("late squares",))
    module._add_new_fonts.cache_clear()
    assert Fonts(["动物 a"]).family[-1] == "late squares"


# Text


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("attention", None, "attention"),
        ("attention", 9, "attention"),
        ("attention", 8, "attenti…"),
        ("自然语言处理", 12, "自然语言处理"),
        ("自然语言处理", 11, "自然语言处…"),
        ("自然语言处理", 10, "自然语言…"),
        ("a lone word", 3, "a…"),
    ],
)
def test_long_tokens_end_in_an_ellipsis(text, most, expected):
    assert shorten(text, most) == expected


def test_dollars_open_no_formula():
    ax = plot.heatmap(np.eye(3), ["$x^2$", "$", r"\$"], title="$a$ and $b$")
    ax.figure.draw_without_rendering()
    for text in (*ax.get_yticklabels(), ax.title):
        assert not text._preprocess_math(text.get_text())[1]
    assert [text._preprocess_math(text.get_text())[0] for text in ax.get_yticklabels()] == ["$x^2$", "$", r"\$"]


def test_line_breaks_and_control_characters_in_tokens_stay_on_one_line():
    texts = [text for text, _ in texts_of(plot.heatmap(np.eye(3), ["\n", "a\tb", "\x00"]).figure)]
    assert texts.count("↵") == texts.count("a→b") == texts.count("□") == 2


def test_wrapped_lines_have_room_and_lose_nothing():
    fonts = Fonts([])
    text = "each input is compared with all keys " * 5 + "x" * 200
    lines = fonts.wrap(text, 9, 150)
    assert len(lines) > 5
    assert all(fonts.width(line, 9) <= 150 for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_the_measured_width_is_what_is_drawn():
    figure = Figure(dpi=300)
    fonts = Fonts([])
    text = figure.text(0, 0, "scores = queries @ keys.T", fontsize=9)
    assert fonts.width(text.get_text(), 9) == pytest.approx(text.get_window_extent().width * 72 / 300, rel=0.03)


# Colours

# Machado, Oliveira, Fernandes, "A physiologically-based model for simulation of color vision deficiency" (2009),
# severity 1: linear RGB as it is seen with no cones for long, middle and short waves.
SIGHT = {
    "all cones": np.eye(3),
    "no long": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no middle": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no short": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour):
    part = np.array(to_rgb(colour))
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b* of linear sRGB, in daylight D65."""
    xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x, y, z = np.cbrt(np.clip(np.array(xyz) @ np.clip(rgb, 0, 1) / (0.95047, 1, 1.08883), 0.008856, None))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", SIGHT)
def test_the_palette_stays_apart_for_every_reader(sight):
    """A difference of 2.3 is just seen; ten times that is plain."""
    seen = {name: lab(SIGHT[sight] @ linear(colour)) for name, colour in PALETTE.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 23, f"{one} and {other}"


@pytest.mark.parametrize(
    "colour", [*PALETTE.values(), LIGHT.background, DARK.background, LIGHT.empty, DARK.empty, "#777777"]
)
def test_numbers_on_any_colour_can_be_read(colour):
    weights = (0.2126, 0.7152, 0.0722)
    low, high = sorted(float(linear(one) @ weights) for one in (colour, contrasting(colour)))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_messages_are_one_line(monkeypatch):
    without_chinese_fonts(monkeypatch)
    with pytest.warns(UserWarning, match=re.escape("…: boxes")):
        Fonts(["一二三四五六七八九十"])


def test_few_colours_keep_those_that_mean_something_and_thin_letters():
    """Many shades of blue must not crowd out a thin black line, nor a colour that is asked for."""
    pixels = np.full((100, 257, 3), 255, np.uint8)
    pixels[:90, :256, 0] = np.arange(256)
    pixels[95, :20] = 0
    pixels[97, 3] = (200, 40, 7)
    (small,) = quantise([Image.fromarray(pixels)], [(200 / 255, 40 / 255, 7 / 255)], 32)
    drawn = np.asarray(small.convert("RGB"))
    assert len(small.getcolors()) == 32
    assert drawn[97, 3].tolist() == [200, 40, 7]
    assert (drawn[95, :20] == 0).all()
    assert np.abs(drawn.astype(int) - pixels).max() < 25


def test_every_colour_to_keep_is_kept_however_few_others_there_is_room_for():
    greys = np.repeat(np.arange(0, 256, 4, np.uint8), 3).reshape(1, 64, 3)
    asked = [tuple(grey / 255) for grey in greys[0]]
    (small,) = quantise([Image.fromarray(greys)], asked, 32)
    np.testing.assert_array_equal(np.asarray(small.convert("RGB")), greys)


def test_more_colours_to_keep_than_a_palette_has_are_refused():
    pixels = np.zeros((2, 256, 3), np.uint8)
    pixels[0, :, 0] = pixels[1, :, 1] = np.arange(256)
    asked = [tuple(pixel / 255) for pixel in pixels.reshape(-1, 3)]
    with pytest.raises(ValueError, match="511 colours are to be kept, and a palette has 256: ask for fewer"):
        quantise([Image.fromarray(pixels)], asked, 32)


def test_the_colours_of_a_photo_are_compared_with_many_in_little_memory():
    """Its 2**16 colours against 48 take 75 MB of differences if they are measured at once."""
    codes = np.arange(2**16) * 256
    pixels = np.stack([codes >> 16, codes >> 8 & 255, codes >> 10 & 255], -1).astype(np.uint8).reshape(256, 256, 3)
    asked = [(n / 64, 0.5, 0.5) for n in range(48)]
    tracemalloc.start()
    try:
        quantise([Image.fromarray(pixels)], asked, 64)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 40e6

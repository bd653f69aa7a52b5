"""A trace as HTML: well formed, self-contained, of bounded size, and no token gets out of its cell."""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

import pyattn
from pyattn.tracing.render.colours import COLOURS, DARK_EDGES, HEAT, KINDS
from pyattn.tracing.render.html import heat_map
from pyattn.tracing.render.page import class_of, script, style

VOID = {"img", "meta"}
EVIL = ["</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "&amp;<b>", "'];alert(1)//"]
RNG = np.random.default_rng(3)


class Reader(HTMLParser):
    """Insists on closed elements. tables: name, attributes and rows of cells' text; the rest as it comes."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.elements, self.tables, self.scripts, self.text = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.stack, f"not closed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "table":
            self.tables.append({**dict(attrs), "cells": [], "names": []})
        elif tag == "tr":
            self.tables[-1]["cells"].append([])
        elif tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        inside = self.stack[-1] if self.stack else ""
        if inside == "td":
            self.tables[-1]["cells"][-1].append(data)
        elif inside == "th":
            self.tables[-1]["names"].append(data)
        elif inside == "script":
            self.scripts[-1] += data
        elif inside != "style":
            self.text.append(data)

    def table(self, name, which=-1):
        return [table for table in self.tables if table["data-m"] == name][which]


def example(article, **arguments):
    return pyattn.trace(*(article[name] for name in ("x", "w_query", "w_key", "w_value")), **arguments)


def large(count=64, features=64, key_dim=64, **arguments):
    x = RNG.standard_normal((count, features))
    return pyattn.trace(x, *RNG.standard_normal((3, features, key_dim)) / 8, scale=None, **arguments)


def data_of(reader):
    return json.loads(reader.scripts[0])


def matrix(encoded):
    rows, columns, text = encoded
    return np.frombuffer(base64.b64decode(text), "<f4").reshape(rows, columns)


# What it shows


def test_every_matrix_of_the_example_is_a_table_with_its_numbers(article):
    reader = Reader(example(article)._repr_html_())
    for name in ("x", "w_key", "w_query", "w_value", "keys", "queries", "values", "scores"):
        np.testing.assert_array_equal(np.array(reader.table(name)["cells"], float), article[name], err_msg=name)
    weights = np.array(reader.table("weights")["cells"], float)
    np.testing.assert_allclose(weights, article["softmax"].astype(float), rtol=0.02, atol=5.01e-5)


def test_the_page_is_readable_without_its_scripts(article):
    text = re.sub(r"<script.*?</script>", "", example(article, round_weights=1)._repr_html_(), flags=re.DOTALL)
    reader = Reader(text)
    assert not reader.scripts
    assert reader.table("outputs")["cells"] == [["2.0", "7.0", "1.5"], ["2.0", "8.0", "0"], ["2.0", "7.8", "0.3"]]
    assert "input 1: [1, 0, 2] x K^T = [2, 4, 4]" in "".join(reader.text)


def test_eight_steps_have_a_heading_each_and_every_matrix_its_name(article):
    trace = example(article)
    words = "".join(Reader(trace._repr_html_()).text)
    assert re.findall(r"^(\d)\. ", words, re.MULTILINE) == list("12345678")
    for name in KINDS:
        if getattr(trace, name, None) is not None:
            assert name.replace("_", " ") in words or name in words


@pytest.mark.parametrize("convention", ["row", "column"])
def test_tokens_name_the_rows_and_columns_of_scores(article, convention):
    matrices = [article[name] for name in ("x", "w_query", "w_key", "w_value")]
    matrices = [np.transpose(matrix) for matrix in matrices] if convention == "column" else matrices
    trace = pyattn.trace(*matrices, convention=convention, tokens=["我", "b", "c"])
    reader = Reader(trace._repr_html_())
    assert reader.table("scores")["names"] == ["我", "b", "c", "我", "b", "c"]
    assert reader.table("x")["names"] == ["我", "b", "c"]


def test_the_opacity_of_a_weight_is_its_share_of_the_largest(article):
    reader = Reader(example(article)._repr_html_())
    styles = [float(attrs["style"].split(":")[1]) for tag, attrs in reader.elements if tag == "td" and "style" in attrs]
    weights = example(article).weights
    expected = [*weights[0], *weights.ravel()]  # of step 5, then of step 8
    np.testing.assert_allclose(styles, 0.8 * np.array(expected) / weights.max(), rtol=0.06)


def test_large_weights_are_a_picture_of_all_of_them():
    trace = large(40, 8, 8, is_causal=True)
    (image,) = (attrs for tag, attrs in Reader(trace._repr_html_()).elements if tag == "img")
    png = base64.b64decode(image["src"].partition(",")[2])
    assert image["src"].startswith("data:image/png;base64,")
    assert image["data-n"] == "40 40"
    expected = np.rint(255 * trace.weights / trace.weights.max())
    np.testing.assert_array_equal(levels_of(png), expected)


def test_the_picture_of_many_weights_keeps_the_largest_of_each_block():
    weights = np.zeros((600, 300))
    weights[599, 0], weights[3, 299] = 1, 0.5
    png = base64.b64decode(re.search(r"base64,([^\"]+)", heat_map(weights))[1])
    levels = levels_of(png)
    assert levels.shape == (200, 150)
    assert levels[199, 0] == 255
    assert levels[1, 149] == 128
    assert (levels > 0).sum() == 2


def levels_of(png):
    """Read a PNG of a palette without filters, chunk by chunk."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(png):
        (size,), name = struct.unpack(">I", png[place : place + 4]), png[place + 4 : place + 8]
        chunks[name] = png[place + 8 : place + 8 + size]
        assert struct.unpack(">I", png[place + 8 + size : place + 12 + size])[0] == zlib.crc32(name + chunks[name])
        place += 12 + size
    width, height, *kind = struct.unpack(">2I5B", chunks[b"IHDR"])
    assert kind == [8, 3, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:]


# What it holds


@pytest.mark.parametrize("bias", [None, [[1, 2, 3], None, [0, 1, 0]]], ids=["no bias", "bias"])
def test_the_matrices_behind_the_hovers_are_embedded_once(article, bias):
    trace = example(article, bias=bias)
    held = data_of(Reader(trace._repr_html_()))["m"]
    assert set(held) == {"x", "w_key", "w_query", "w_value"} | ({"b_query", "b_value"} if bias else set())
    for name, encoded in held.items():
        np.testing.assert_array_equal(matrix(encoded), getattr(trace, name), err_msg=name)


def test_what_is_hidden_is_embedded_too():
    mask = RNG.random((5, 5)) < 0.5
    trace = pyattn.trace_attention(*RNG.standard_normal((3, 5, 2)), attn_mask=mask)
    held = data_of(Reader(trace._repr_html_()))
    packed = np.frombuffer(base64.b64decode(held["visible"]), np.uint8)
    np.testing.assert_array_equal(np.unpackbits(packed)[:25].reshape(5, 5), mask)
    assert set(held["m"]) == {"keys", "queries", "values"}


def test_inputs_of_many_features_give_way_to_queries_keys_and_values():
    assert set(data_of(Reader(large(64, 2048, 64)._repr_html_()))["m"]) == {"keys", "queries", "values"}
    assert data_of(Reader(large(64, 2048, 2048)._repr_html_()))["m"] == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("features", [64, 100, 768, 4096])
@pytest.mark.parametrize("kind", ["plain", "causal", "float mask", "rounded", "tokens", "column"])
def test_a_page_of_64_tokens_stays_small(tmp_path, features, kind):
    arguments = {
        "causal": {"is_causal": True},
        "float mask": {"attn_mask": RNG.standard_normal((64, 64))},
        "rounded": {"round_weights": 2},
        "tokens": {"tokens": ["很长的词语" * 100] * 64},
    }.get(kind, {})
    trace = large(64, features, 64, **arguments)
    if kind == "column":
        given = (trace.x, trace.w_query, trace.w_key, trace.w_value)
        trace = pyattn.trace(*(array.T for array in given), convention="column")
    trace.save_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size < 220_000
    assert len(trace._repr_html_().encode()) < 205_000


def test_tables_of_more_than_12_rows_are_shown_by_their_edges():
    assert len(Reader(large(12, 8, 8)._repr_html_()).table("scores")["cells"]) == 12
    table = Reader(large(13, 8, 8)._repr_html_()).table("scores")
    assert len(table["cells"]) == 6 + 1 + 3
    assert table["data-rows"] == table["data-cols"] == "0 1 2 3 4 5 -1 10 11 12"


# What gets out of it


def test_tokens_are_escaped_everywhere(article):
    for tokens in (EVIL[:3], EVIL[1:]):
        page = example(article, tokens=tokens)._repr_html_()
        reader = Reader(page)
        assert [tag for tag, _ in reader.elements].count("script") == 2
        assert not any(tag in ("img", "b") for tag, _ in reader.elements)
        assert not any(name.startswith("on") for _, attrs in reader.elements for name in attrs)
        assert not re.search("[<>&]", reader.scripts[0])
        assert data_of(reader)["q"] == [token if len(token) <= 16 else token[:15] + "…" for token in tokens]


@pytest.mark.parametrize("kind", ["example", "large"])
def test_nothing_is_fetched(tmp_path, article, kind):
    path = tmp_path / "page.html"
    (example(article) if kind == "example" else large()).save_html(path)
    page = path.read_text(encoding="utf-8")
    reader = Reader(page)
    assert "://" not in page
    assert "@import" not in style(page=True)
    assert "url(" not in style(page=True)
    assert not any(tag in ("link", "iframe", "object") for tag, _ in reader.elements)
    assert all(attrs["src"].startswith("data:") for _, attrs in reader.elements if "src" in attrs)


def test_a_page_is_a_document_in_utf8(tmp_path, article):
    path = tmp_path / "page.html"
    example(article, tokens=["我", "b", "c"]).save_html(path)
    page = path.read_bytes().decode("utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert ("meta", {"charset": "utf-8"}) in Reader(page).elements
    assert [tag for tag, _ in Reader(page).elements].count("title") == 1


def test_two_traces_in_one_notebook_do_not_collide(article):
    trace = example(article)
    ids = [re.search(r'id="([^"]+)"', trace._repr_html_())[1] for _ in range(20)]
    assert len(set(ids)) == 20
    reader = Reader(trace._repr_html_())
    (own,) = (attrs["id"] for _, attrs in reader.elements if "id" in attrs)
    assert f"document.querySelectorAll('#{own}')" in reader.scripts[1]


def test_style_reaches_nothing_outside():
    selectors = re.findall(r"([^{}]+)\{", re.sub(r"@media\([^)]*\)\{", "", style(page=True)))
    assert len(selectors) > 20
    for selector in itertools.chain.from_iterable(group.split(",") for group in selectors):
        assert ".pyattn" in selector, selector


# Colours

# Machado, Oliveira & Fernandes (2009), severity 1, on linear RGB.
SEEN = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def rgb(colour):
    return np.array([int(colour[n : n + 2], 16) for n in (1, 3, 5)]) / 255


def linear(colour):
    return np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)


def lab(light):
    to_xyz = np.array(
        [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    )
    xyz = to_xyz @ light / (0.95047, 1, 1.08883)
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def nearest(colours, sight):
    """The two kinds whose colours are seen as most alike, and how far apart they are."""
    seen = {kind: lab(np.clip(SEEN[sight] @ linear(colour), 0, 1)) for kind, colour in colours.items()}
    pairs = itertools.combinations(seen, 2)
    return min((np.linalg.norm(seen[one] - seen[other]), one, other) for one, other in pairs)


def style_of(theme):
    """What is set first where a theme begins."""
    return style() if theme == "light" else style()[style().index("@media") :]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SEEN)
def test_edges_stay_apart_for_colour_blind_readers(sight, theme):
    """A difference of 2 can just be seen side by side; 20 is another colour. Cells are too pale for that."""
    style = style_of(theme)
    edges = {kind: re.search(rf"--{class_of(kind)}:(#\w+)", style)[1] for kind in COLOURS}
    assert edges == (COLOURS if theme == "light" else DARK_EDGES)
    distance, *pair = nearest({kind: rgb(colour) for kind, colour in edges.items()}, sight)
    assert distance >= 20, pair


def test_every_kind_has_a_caption_of_its_own(article):
    """What carries the meaning for those who see no colours at all."""
    page = example(article)._repr_html_()
    captions = re.findall(r'<figure class="pa-([\w-]+)"><figcaption>(.*?)</figcaption>', page)
    assert {kind for kind, _ in captions} == {kind.replace(" ", "-") for kind in COLOURS}
    for kind, caption in captions:
        assert kind.replace("-", " ") in caption


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_can_be_read_on_their_cells(theme):
    """By WCAG 2's contrast, 4.5 for text."""
    found = {name: re.search(rf"--{name}:([^;}}]+)", style_of(theme))[1] for name in ("ink", "paper", "soft", "tint")}
    ink, paper, soft = (rgb(found[name]) for name in ("ink", "paper", "soft"))
    tint = float(found["tint"].rstrip("%")) / 100

    def contrast(one, other):
        low, high = sorted(float(np.dot(linear(colour), (0.2126, 0.7152, 0.0722))) for colour in (one, other))
        return (high + 0.05) / (low + 0.05)

    assert contrast(soft, paper) >= 4.5
    if theme == "dark":  # on a light page the example's own colours stay
        assert all(contrast(rgb(edge), paper) >= 3 for edge in DARK_EDGES.values())
    for kind, colour in COLOURS.items():
        assert contrast(ink, tint * rgb(colour) + (1 - tint) * paper) >= 4.5, kind
    for share in np.linspace(0, 0.8, 9):
        assert contrast(ink, share * np.array(HEAT) / 255 + (1 - share) * paper) >= 4.5, share


# What a saved page has besides


def saved(trace, tmp_path):
    trace.save_html(tmp_path / "page.html")
    return (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_saved_page_says_how_to_look_and_sets_a_task(tmp_path, article):
    words = "".join(Reader(saved(example(article), tmp_path)).text)
    assert "Hover, tap or tab to a number: the page shows" in words
    assert "Set w_value[0][0] to 1, predict output 1, then look at step 7." in words
    projected = pyattn.trace_attention([[1, 0]], [[1, 0]], [[1, 5]])
    words = "".join(Reader(saved(projected, tmp_path)).text)
    assert "Set values[0][0] to 2, predict output 1, then look at step 7." in words


@pytest.mark.parametrize("convention", ["row", "column"])
def test_each_step_of_a_saved_page_repeats_what_it_reads(tmp_path, article, convention):
    matrices = (article[name] for name in ("x", "w_query", "w_key", "w_value"))
    matrices = [matrix.T if convention == "column" else matrix for matrix in matrices]
    sections = re.split(
        r'<section id="[\w-]+" data-step="\d">', saved(pyattn.trace(*matrices, convention=convention), tmp_path)
    )
    reads = {
        3: ["x", "w_key", "w_query", "w_value"],
        4: ["queries", "keys", "scale", "visible"],
        5: ["scores"],
        6: ["weights", "values"],
        7: ["weighted_values"],
        8: ["queries", "keys", "values", "scale", "visible"],
    }
    for step, section in enumerate(sections[1:], 1):
        copies = section.partition('class="pa-reads"')[2].partition("It computes")[0]
        assert re.findall(r'<table data-m="(\w+)"', copies) == reads.get(step, [])
    (query,) = Reader(re.search(r'<table data-m="queries" data-q="0".*?</table>', sections[4])[0]).tables
    cells = np.array(query["cells"], float)
    np.testing.assert_array_equal(cells.T if convention == "column" else cells, article["queries"][:1])


def test_the_numbers_of_a_page_that_can_be_changed_are_embedded_in_full(tmp_path):
    given = RNG.standard_normal((4, 3)), *RNG.standard_normal((3, 3, 2))
    trace = pyattn.trace(*given, round_weights=2)
    held = data_of(Reader(saved(trace, tmp_path)))
    assert held["editable"]
    assert "weights" not in held["m"]  # they are rounded anew
    for name in ("x", "w_key", "w_query", "w_value"):
        rows, columns, text = held["m"][name]
        np.testing.assert_array_equal(
            np.frombuffer(base64.b64decode(text)).reshape(rows, columns), getattr(trace, name)
        )


@pytest.mark.parametrize("kind", ["large", "extra keys", "nan", "heads"])
def test_a_page_whose_numbers_cannot_be_changed_says_why(tmp_path, kind):
    module = pyattn.MultiheadAttention(6, 2, add_zero_attn=kind == "extra keys", rng=0)
    x = RNG.standard_normal((3, 6))
    trace, sentence = {
        "large": (large(13, 4, 4), "a matrix has more than 12 rows or columns."),
        "extra keys": (module.trace(x).heads[0], "some keys are not projected from an input."),
        "nan": (module.trace(x, empty_rows="nan").heads[0], "its trace was made with empty_rows='nan'."),
        "heads": (module.trace(x), "To edit those of head 1, save it: heads[0].save_html(path)."),
    }[kind]
    reader = Reader(saved(trace, tmp_path))
    (found,) = re.findall(r"The numbers of this page cannot be edited.*", "".join(reader.text))
    assert found.endswith(sentence)
    assert not any(tag == "button" for tag, _ in reader.elements)
    assert "const edit" not in reader.scripts[-1]
    if kind == "heads":  # the advice holds
        assert "const edit" in saved(trace.heads[0], tmp_path)


def test_an_output_of_a_notebook_holds_neither_copies_nor_fields(article):
    fragment = example(article)._repr_html_()
    assert "const edit" not in fragment
    assert not any(word in fragment for word in ("pa-reads", "button", "pa-tools"))
    assert len(fragment) < 30_000


@pytest.mark.parametrize("more", ["edit.js", "backward.js"])
def test_scripts_evaluate_no_text_and_reach_no_network(more):
    words = ("eval", "Function(", "fetch", "XMLHttpRequest", "import(", "innerHTML", "document.write", "src")
    assert not [word for word in words if word in script(more)]


def test_a_page_forbids_what_is_not_its_own(tmp_path, article):
    policies = [
        attrs["content"] for tag, attrs in Reader(saved(example(article), tmp_path)).elements if "http-equiv" in attrs
    ]
    assert policies == ["default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"]

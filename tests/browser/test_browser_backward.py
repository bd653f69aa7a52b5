"""The page of gradients: all eight steps are seen, and a number under the mouse says how it came to be."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn

GIVEN = np.random.default_rng(22).standard_normal((3, 3))
MATRICES = ("x", "w_query", "w_key", "w_value")
OPTIONS = {
    "article": {},
    "column": {"convention": "column", "tokens": ["a", "我", "c"]},
    "scaled": {"scale": 0.5, "is_causal": True, "bias": [[1, 2, 3]] * 3, "attn_mask": np.full((3, 3), 0.5)},
    "bilinear": {"convention": "column", "score": "bilinear", "score_weight": np.arange(9.0).reshape(3, 3)},
    "sigmoid": {"normalize": "sigmoid", "score": "distance"},
    "sparsemax": {"normalize": "sparsemax", "score": "additive", "score_weight": [1, 2, 3]},
    "cosine": {"score": "cosine", "scale": 3, "attn_mask": np.arange(9).reshape(3, 3) % 4 > 0},
    "distance": {"score": "distance", "scale": 0.25, "is_causal": True, "convention": "column"},
    "masked bilinear": {"score": "bilinear", "scale": 0.1, "score_weight": np.cos(np.arange(9.0)).reshape(3, 3),
                        "attn_mask": np.array([[True] * 3, [False] * 3, [True, False, True]])},
    "additive": {"score": "additive", "scale": -0.5, "score_weight": [0.5, -1, 1], "is_causal": True,
                 "convention": "column"},
}  # fmt: skip


@pytest.fixture(params=OPTIONS)
def traced(request, article, tmp_path):
    options = OPTIONS[request.param]
    swapped = np.transpose if options.get("convention") == "column" else np.asarray
    trace = pyattn.trace(*(swapped(article[name]) for name in MATRICES), **options)
    backward = trace.backward(swapped(GIVEN))
    backward.save_html(tmp_path / "backward.html")
    return backward, tmp_path / "backward.html"


def spread_of(code):
    """How far off a formula may be whose numbers are off by half of the fourth decimal each."""
    parts, value = re.split(r"([\d.]+(?:e[-+]\d+)?)", code), eval(code)
    moved = [[*parts[:n], str(float(parts[n]) + 5e-5), *parts[n + 1 :]] for n in range(1, len(parts), 2)]
    return 1.01 * sum(abs(eval("".join(one)) - value) for one in moved)  # 1 % for products of two errors


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_all_steps_are_seen_below_each_other(browser, traced, pictures, look):
    backward, path = traced
    browser.look(dark=look == "dark", narrow=look == "narrow")
    browser.open(path)
    headings = browser.all("h3")
    assert [heading.text for heading in headings] == [f"{step.number}. {step.title}" for step in backward.steps]
    tops = [heading.location["y"] for heading in headings]
    assert tops == sorted(set(tops))
    wide, room = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert wide <= room
    browser.save_picture(f"backward-{backward.trace.score}-{backward.trace.convention}-{look}")


def test_every_gradient_says_how_it_is_computed(browser, traced):
    """The last number of each explanation is the gradient; a line of products before it has that value, too."""
    backward, path = traced
    browser.open(path)
    checked = 0
    for name, array in backward.arrays.items():
        tables = browser.all(f"table[data-m='{name}']")
        if name == "grad_scale" and backward.trace.scale == 1:
            assert not tables
            continue
        for row, column in np.ndindex(array.shape):
            tip = browser.hover(browser.cell(tables[-1], row, column))
            if "hidden by the mask" in tip or "its weight is 0" in tip:
                assert array[row, column] == 0
                continue
            left, _, right = tip.removesuffix("\ngiven").rpartition("= ")
            assert abs(float(right) - array[row, column]) <= 5e-5 + 1e-6 * abs(array[row, column]), tip
            sums = left.strip().splitlines()[-1].replace("\u00d7", "*")
            if name == "grad_x":
                sums = "".join(line.removeprefix("as a ").partition(": ")[2] + " + " for line in left.splitlines()[1:])
                sums = sums.replace("\u00d7", "*").strip(" +")
            is_sum = re.fullmatch(r"[-\d.e+*/() ]+", sums) and "..." not in sums
            assert is_sum or name == "grad_outputs" or "..." in sums, tip
            if is_sum and name != "grad_outputs":
                assert abs(eval(sums) - array[row, column]) <= 5e-5 + spread_of(sums), tip
                checked += 1
    assert checked > 40


def test_a_weight_of_the_scores_is_explained_by_its_own_numbers(browser, article, tmp_path):
    weight = np.arange(9.0).reshape(3, 3) / 8
    for convention, swapped in (("row", np.asarray), ("column", np.transpose)):
        given = [swapped(article[name]) for name in MATRICES]
        trace = pyattn.trace(*given, score="bilinear", score_weight=weight, convention=convention, scale=0.1)
        trace.backward(GIVEN).save_html(tmp_path / "backward.html")
        browser.open(tmp_path / "backward.html")
        table = browser.all("table[data-m='score_weight']")[0]
        tip = browser.hover(browser.cell(table, 0, 2))
        assert tip == "weight of the scores, number 1, 3 = 0.25\ngiven"


def marked_cells(browser):
    """Matrix, row and column of each cell that the hovered one is computed from."""
    return browser.run(
        "return [...document.querySelectorAll('.pa-from')].map(e => [e.closest('table').dataset.m, "
        "e.parentNode.rowIndex, e.cellIndex])"
    )


def test_what_a_gradient_is_computed_from_is_marked(browser, article, tmp_path):
    trace = pyattn.trace(*(article[name] for name in MATRICES))
    trace.backward(GIVEN).save_html(tmp_path / "backward.html")
    browser.open(tmp_path / "backward.html")
    browser.hover(browser.cell(browser.all("table[data-m='grad_scores']")[0], 1, 2))
    marked = marked_cells(browser)
    assert {name for name, _, _ in marked} == {"weights", "grad_weights", "delta"}
    assert {tuple(place) for name, *place in marked if name == "weights"} == {(1, 2)}
    assert {tuple(place) for name, *place in marked if name == "delta"} == {(1, 0)}


def test_cells_that_a_gradient_of_another_score_is_computed_from_are_marked(browser, article, tmp_path):
    read = {
        "bilinear": {"grad_scores", "scale", "keys", "score_weight"},
        "additive": {"grad_scores", "scale", "keys", "queries", "score_weight"},
        "distance": {"grad_scores", "scale", "keys", "queries"},
        "cosine": {"grad_scores", "scale", "keys", "queries"},
    }
    for score, names in read.items():
        weight = {"bilinear": np.eye(3), "additive": [1, 2, 3]}.get(score)
        trace = pyattn.trace(*(article[name] for name in MATRICES), score=score, score_weight=weight, scale=0.5)
        trace.backward(GIVEN).save_html(tmp_path / "backward.html")
        browser.open(tmp_path / "backward.html")
        browser.hover(browser.cell(browser.all("table[data-m='grad_queries']")[0], 1, 2))
        marked = marked_cells(browser)
        assert {name for name, _, _ in marked} == names, score
        assert {tuple(place) for name, *place in marked if name == "grad_scores"} == {(1, j) for j in range(3)}
        wanted = {"bilinear": {(2, j) for j in range(3)}, "additive": {(0, 2)}}.get(score, set())
        assert {tuple(place) for name, *place in marked if name == "score_weight"} == wanted


def test_a_vector_of_zeros_has_no_gradient_of_a_cosine(browser, tmp_path):
    trace = pyattn.trace_attention([[0, 0], [1, 2]], [[1, 2], [0, 0]], [[1], [3]], score="cosine")
    trace.backward([[1], [1]]).save_html(tmp_path / "backward.html")
    browser.open(tmp_path / "backward.html")
    tip = browser.hover(browser.cell(browser.all("table[data-m='grad_queries']")[0], 0, 1))
    assert tip.splitlines()[-2].endswith("|q| [0, 0]")
    assert tip.endswith(" = 0")
    tip = browser.hover(browser.cell(browser.all("table[data-m='grad_keys']")[0], 1, 0))
    assert tip.endswith(" = 0")


def test_gradients_of_matrices_that_a_page_does_not_hold_are_given_alone(browser, tmp_path):
    """Of 64 inputs with 768 features the page holds keys, queries and values, and not x."""
    rng = np.random.default_rng(3)
    x, weights = rng.standard_normal((64, 768)), rng.standard_normal((3, 768, 16)) / 30
    backward = pyattn.trace(x, *weights).backward(rng.standard_normal((64, 16)))
    (tmp_path / "backward.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{backward._repr_html_()}", "utf-8")
    browser.open(tmp_path / "backward.html")
    large = "The matrices are too large to be embedded in this page."
    tip = browser.hover(browser.cell(browser.all("table[data-m='grad_keys']")[0], 0, 0))
    assert tip.startswith("gradient of key 1, number 1\ngradients of its scores [")
    for name in ("grad_w_key", "grad_w_value", "grad_x"):
        tip = browser.hover(browser.cell(browser.all(f"table[data-m='{name}']")[0], 0, 0))
        assert tip.endswith(large), name
        held = f" = {backward.arrays[name][0, 0]:.4f}".rstrip("0") if name == "grad_w_key" else ""
        assert tip.startswith(name + held), name


@pytest.mark.parametrize("convention", ["row", "column"])
def test_numbers_of_every_head_explain_themselves(browser, tmp_path, convention):
    swapped = np.transpose if convention == "column" else np.asarray
    mha = pyattn.MultiheadAttention(4, 2, rng=0, dtype="float64")
    traced = mha.trace(swapped(np.random.default_rng(1).standard_normal((3, 4))), convention=convention)
    backward = traced.backward(swapped(np.random.default_rng(2).standard_normal((3, 4))))
    backward.save_html(tmp_path / "backward.html")
    browser.open(tmp_path / "backward.html")
    assert [one.text for one in browser.all("h3") if one.text.startswith(("10.", "9."))] == [
        "10. Back through W_O",
        "9. Split the gradient among the heads",
    ]
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    for n, head in enumerate(backward.heads):
        for name in ("grad_queries", "grad_w_value", "grad_x"):
            table = browser.all(f"details:nth-of-type({n + 1}) table[data-m='{name}']")[-1]
            tip = browser.hover(browser.cell(table, 1, 1))
            number = float(tip.rpartition("= ")[2])
            assert abs(number - getattr(head, name)[1, 1]) <= 5e-5, tip
    wide, room = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert wide <= room
    browser.save_picture(f"backward-heads-{convention}")

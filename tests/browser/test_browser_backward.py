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
}


@pytest.fixture(params=OPTIONS)
def traced(request, article, tmp_path):
    options = OPTIONS[request.param]
    swapped = np.transpose if options.get("convention") == "column" else np.asarray
    trace = pyattn.trace(*(swapped(article[name]) for name in MATRICES), **options)
    backward = trace.backward(swapped(GIVEN))
    backward.save_html(tmp_path / "backward.html")
    return backward, tmp_path / "backward.html"


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
            if re.fullmatch(r"[-\d.e+*/() ]+", sums) and "..." not in sums and name != "grad_outputs":
                # Each factor of a product is off by half of the fourth decimal.
                numbers = [float(number) for number in re.findall(r"[\d.]+(?:e[-+]\d+)?", sums)]
                assert abs(eval(sums) - array[row, column]) <= 5e-5 * (sum(numbers) + 1), tip
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


def test_what_a_gradient_is_computed_from_is_marked(browser, article, tmp_path):
    trace = pyattn.trace(*(article[name] for name in MATRICES))
    trace.backward(GIVEN).save_html(tmp_path / "backward.html")
    browser.open(tmp_path / "backward.html")
    browser.hover(browser.cell(browser.all("table[data-m='grad_scores']")[0], 1, 2))
    marked = browser.run(
        "return [...document.querySelectorAll('.pa-from')].map(e => [e.closest('table').dataset.m, "
        "e.parentNode.rowIndex, e.cellIndex])"
    )
    assert {name for name, _, _ in marked} == {"weights", "grad_weights", "delta"}
    assert {tuple(place) for name, *place in marked if name == "weights"} == {(1, 2)}
    assert {tuple(place) for name, *place in marked if name == "delta"} == {(1, 0)}

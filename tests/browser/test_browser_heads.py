"""The page of all heads of a module: weights side by side, and the steps of each head to unfold."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn

HEADS, TOKENS = 3, 5


@pytest.fixture(scope="module")
def module():
    return pyattn.MultiheadAttention(12, HEADS, dtype=np.float64, rng=0)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).standard_normal((TOKENS, 12))


@pytest.fixture(scope="module")
def page(module, x, tmp_path_factory):
    path = tmp_path_factory.mktemp("heads") / "heads.html"
    module.trace(x, tokens=["猫", "坐", "在", "垫子", "上"]).save_html(path)
    return path


@pytest.fixture(scope="module")
def weights(module, x):
    return module(x, x, x, average_attn_weights=False)[1]


def last_number(tip):
    return float(tip.rpartition(" = ")[2])


@pytest.mark.parametrize("look", ["light", "dark", "narrow"])
def test_the_weights_of_every_head_are_seen_and_the_steps_are_folded(browser, page, pictures, look):
    browser.look(dark=look == "dark", narrow=look == "narrow")
    browser.open(page)
    seen = [re.match(r"head \d, weights", figure.text) for figure in browser.all("figure") if figure.is_displayed()]
    assert sum(map(bool, seen)) == HEADS
    headings = [heading.text for heading in browser.all("h3") if heading.is_displayed()]
    assert headings == ["9. Concatenate the heads", "10. Multiply by W_O: the outputs"]
    wide, room = browser.run("const e = document.documentElement; return [e.scrollWidth, e.clientWidth]")
    assert wide <= room
    browser.save_picture(f"heads-{look}")


def test_heads_stand_side_by_side_where_there_is_room(browser, page):
    browser.open(page)
    first, second = browser.all("[data-of] > figure")[:2]
    assert first.location["y"] == second.location["y"]
    assert first.location["x"] + first.size["width"] <= second.location["x"]


@pytest.mark.parametrize("scripts", [True, False])
def test_a_head_unfolds_into_its_eight_steps(browser, page, pictures, scripts):
    browser.look(scripts=scripts)
    browser.open(page)
    browser.all("summary")[1].click()
    headings = [heading.text.partition(".")[0] for heading in browser.all("h3") if heading.is_displayed()]
    assert headings == [str(n) for n in range(1, 11)]
    summaries = [(summary.location["x"], summary.text) for summary in browser.all("summary")]
    assert summaries == [(summaries[0][0], f"Head {n}, step by step") for n in range(1, HEADS + 1)]
    browser.save_picture("heads-unfolded")


@pytest.mark.parametrize("head", range(HEADS))
def test_hovering_over_a_weight_explains_it_by_its_own_head(browser, page, weights, head):
    """Four decimals are shown, of inputs and weights in float32: some units of 1e-7 here."""
    browser.open(page)
    figure = browser.all("[data-of] > figure")[head]
    for i, j in ((0, 0), (1, 4), (4, 2)):
        tip = browser.hover(browser.cell(figure, i, j))
        assert tip.startswith(f"weight of key {j + 1} (")
        assert abs(last_number(tip) - weights[head, i, j]) <= 5e-5 + 1e-5


@pytest.mark.parametrize("head", range(HEADS))
def test_hovering_in_an_unfolded_head_explains_its_outputs(browser, page, module, x, weights, head):
    browser.open(page)
    browser.all("summary")[head].click()
    values = x @ module.in_proj_weight[24:].T + module.in_proj_bias[24:]
    outputs = weights[head] @ values[:, 4 * head : 4 * head + 4]
    table = browser.all("details")[head].find_elements("css selector", "table[data-m='outputs']")[-1]
    for i, j in ((0, 0), (2, 3), (4, 1)):
        tip = browser.hover(browser.cell(table, i, j))
        assert tip.startswith(f"output {i + 1} (")
        assert abs(last_number(tip) - outputs[i, j]) <= 5e-5 + 1e-5


def test_the_mouse_takes_what_pops_up_from_head_to_head(browser, page):
    browser.open(page)
    figures = browser.all("[data-of] > figure")
    assert len(figures) == HEADS
    for figure in figures:
        assert browser.hover(browser.cell(figure, 0, 0)) is not None  # never two
    assert browser.hover(browser.all("h1")[0]) is None

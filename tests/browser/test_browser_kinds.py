"""Hovering over other scores, other ways to weights, masks that add and biases: true equations with NumPy's numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_browser_trace import places
from tracing.test_trace_html import SEEN, nearest

import pyattn

WEIGHT = np.array([[1.0, -1, 0], [0, 2, 1], [0.5, 0, -1]])
VECTOR = np.array([1.0, -2, 0.5])
MASK = np.array([[5, 0.5, -1], [0, 0, 0], [0, -np.inf, 2]])
BIAS = np.array([[1.0, -1, 0], [0, 2, -1], [3, 0, -2]])

KINDS = {
    "cosine": {"score": "cosine"},
    "distance": {"score": "distance", "scale": 0.25},
    "distance that is sought": {"score": "distance", "scale": -0.25},
    "bilinear": {"score": "bilinear", "score_weight": WEIGHT},
    "additive": {"score": "additive", "score_weight": VECTOR, "scale": 1.5},
    "negative scale": {"scale": -1},
    "sigmoid": {"normalize": "sigmoid", "scale": 0.25},
    "sparsemax": {"normalize": "sparsemax", "scale": 0.125},
    "rounded": {"round_weights": 1},
    "mask that adds": {"attn_mask": MASK},
    "biases": {"bias": BIAS},
}
CLOSE = {"rtol": 1e-6, "atol": 6e-5}  # four decimals are shown, of numbers in float32
SHORT = {"rtol": 1e-3, "atol": 1e-3}  # made of numbers of four decimals


class Exact:
    """The worked example with the options of a page, by the formulas."""

    def __init__(self, article, score="dot", score_weight=None, scale=1, normalize="softmax", **options):
        x, *weights = (article[name].astype(float) for name in ("x", "w_query", "w_key", "w_value"))
        biases = options.get("bias", np.zeros((3, 3)))
        self.queries, self.keys, self.values = (x @ w + b for w, b in zip(weights, biases, strict=True))
        q, k = self.queries, self.keys
        apart = q[:, np.newaxis] - k
        scores = {
            "dot": lambda: q @ k.T,
            "cosine": lambda: q @ k.T / np.outer(np.linalg.norm(q, axis=1), np.linalg.norm(k, axis=1)),
            "distance": lambda: -(apart**2).sum(-1),
            "bilinear": lambda: q @ score_weight @ k.T,
            "additive": lambda: np.tanh(q[:, np.newaxis] + k) @ score_weight,
        }[score]()
        self.scores = scale * scores + options.get("attn_mask", 0)
        if "round_weights" in options:
            self.weights = article["softmax_rounded"]
        else:
            self.weights = np.stack([NORMALISED[normalize](row) for row in self.scores])
        self.outputs = self.weights @ self.values


NORMALISED = {
    "softmax": lambda row: np.exp(row) / np.exp(row).sum(),
    "sigmoid": lambda row: 1 / (1 + np.exp(-row)),
    # Of all thresholds that make the largest n sum to 1, the largest is right.
    "sparsemax": lambda row: np.maximum(row - ((np.cumsum(-np.sort(-row)) - 1) / np.arange(1, 4)).max(), 0),
}


@pytest.fixture(params=KINDS)
def hovered(request, browser, article, tmp_path):
    """A page in which to hover: its kind, and what is right."""
    options = KINDS[request.param]
    trace = pyattn.trace(*(article[name] for name in ("x", "w_query", "w_key", "w_value")), **options)
    trace.save_html(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    return request.param, Exact(article, **options)


def value_of(expression):
    """Of a product, a sum, a quotient as it is written on a page."""
    python = expression.replace("×", "*").replace("²", "**2").replace("bias ", "")
    assert re.fullmatch(r"(?:[-+*/(). \d]|e[-+]\d|tanh|exp)+", python), expression
    return eval(python, {"tanh": np.tanh, "exp": np.exp})  # of numbers alone


def assert_true(equation, number):
    """Both sides are the number."""
    left, _, right = equation.rpartition(" = ")
    np.testing.assert_allclose(float(right), number, **CLOSE, err_msg=equation)
    np.testing.assert_allclose(value_of(left), number, **SHORT, err_msg=equation)


def test_hovering_over_a_score_shows_a_true_equation(browser, hovered):
    kind, exact = hovered
    for (i, j), cell in places(browser, "scores"):
        head, *lines = browser.hover(cell).splitlines()
        assert head == f"score of query {i + 1} and key {j + 1}"
        if exact.scores[i, j] == -np.inf:
            assert lines == ["hidden by the mask = -inf"]
            continue
        for line, row in ((lines.pop(0), exact.queries[i]), (lines.pop(0), exact.keys[j])):
            assert [float(number) for number in re.findall(r"-?[\d.]+", line)] == row.tolist()
        if kind == "bilinear":
            turned = lines.pop(0).removeprefix("query times W ")
            assert [float(number) for number in turned[1:-1].split(", ")] == (exact.queries[i] @ WEIGHT).tolist()
        if kind == "mask that adds":
            added, _, total = lines.pop().removeprefix("+ ").partition(" from the mask = ")
            assert value_of(added) == MASK[i, j]
            assert float(total) == exact.scores[i, j]
            assert_true(lines[0], exact.scores[i, j] - MASK[i, j])
        else:
            assert_true(lines[0], exact.scores[i, j])
        assert len(lines) == 1
        assert "--" not in lines[0]


def test_hovering_over_a_weight_shows_where_it_comes_from(browser, hovered):
    kind, exact = hovered
    for (i, j), cell in places(browser, "weights"):
        head, scores, line = browser.hover(cell).splitlines()
        assert head == f"weight of key {j + 1} for query {i + 1}"
        shown = [float(number) for number in scores.removeprefix("scores ")[1:-1].split(", ")]
        np.testing.assert_allclose(shown, exact.scores[i], **CLOSE)
        if kind == "rounded":
            line, _, rest = line.partition(", ")
            assert rest == "rounded to 1 decimal"
            fraction, _, weight = line.rpartition(" = ")
            assert float(weight) == exact.weights[i, j]
            assert abs(value_of(fraction) - exact.weights[i, j]) < 0.1
        elif exact.scores[i, j] == -np.inf:
            assert line == "hidden by the mask = 0"
        elif kind == "sparsemax":
            words, _, weight = line.rpartition(" = ")
            score = float(re.fullmatch(r"max\(([-\d.]+) - tau, 0\)", words)[1])
            np.testing.assert_allclose([score, float(weight)], [exact.scores[i, j], exact.weights[i, j]], **CLOSE)
        else:
            assert_true(line, exact.weights[i, j])


def test_hovering_over_an_output_shows_a_true_sum(browser, hovered):
    _, exact = hovered
    for (i, j), cell in places(browser, "outputs"):
        head, _, _, line = browser.hover(cell).splitlines()
        assert head == f"output {i + 1}, number {j + 1}"
        assert_true(line, exact.outputs[i, j])


def test_hovering_over_what_is_derived_shows_its_bias(browser, article, tmp_path):
    trace = pyattn.trace(*(article[name] for name in ("x", "w_query", "w_key", "w_value")), bias=BIAS)
    trace.save_html(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    exact = Exact(article, bias=BIAS)
    for n, name in enumerate(("queries", "keys", "values")):
        for (i, j), cell in places(browser, name):
            line = browser.hover(cell).splitlines()[-1]
            assert re.search(r" \+ bias \(?(-?\d)\)? = ", line)[1] == f"{BIAS[n, j]:g}"
            assert_true(line, getattr(exact, name)[i, j])


def test_hovering_over_a_mask_that_adds_tells_its_number(browser, article, tmp_path):
    trace = pyattn.trace(*(article[name] for name in ("x", "w_query", "w_key", "w_value")), attn_mask=MASK)
    trace.save_html(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    for (i, j), cell in places(browser, "attn_bias"):
        head, rest = browser.hover(cell).splitlines()
        assert head == f"mask for query {i + 1} and key {j + 1} = {MASK[i, j]:g}"
        assert rest == "added to the score"
    browser.save_picture("mask-that-adds")


def test_hovering_over_an_output_that_is_not_a_number_tells_why(browser, tmp_path):
    module = pyattn.MultiheadAttention(4, 2, rng=0)
    blocked = np.arange(3)[:, np.newaxis] == [1] * 3
    head = module.trace(np.eye(3, 4), attn_mask=blocked, empty_rows="nan").heads[0]
    head.save_html(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    for (i, j), cell in places(browser, "outputs"):
        tip = browser.hover(cell)
        if i == 1:
            assert tip == f"output 2, number {j + 1} = nan\nevery key is masked"
        else:
            np.testing.assert_allclose(float(tip.rpartition(" = ")[2]), head.outputs[i, j], **CLOSE)


@pytest.mark.parametrize("sight", SEEN)
@pytest.mark.parametrize("look", ["light", "dark"])
def test_edges_are_drawn_in_colours_that_stay_apart(browser, pages, look, sight):
    browser.look(dark=look == "dark")
    browser.open(pages["article"].path)
    drawn = {}
    for kind, *edges in browser.run(EDGES):
        assert set(edges) == {edges[0]}, kind
        drawn[kind] = np.array([int(part) for part in re.findall(r"\d+", edges[0])[:3]]) / 255
    assert len(drawn) == 7
    distance, *pair = nearest(drawn, sight)
    assert distance >= 20, pair


EDGES = """
return [...document.querySelectorAll("figure")].map(f => [f.className,
  ...[["figcaption", "borderLeftColor"], ["table", "borderLeftColor"], ["td", "borderBottomColor"]].map(
    ([tag, edge]) => getComputedStyle(f.querySelector(tag))[edge])]);
"""

"""The worked example: every number that it gives, at every level, in both dtypes and typed as lists of integers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn
import pyattn.tracing.article as _article
from pyattn.__main__ import main
from pyattn.testing import speed, worked_example
from pyattn.testing.speed import describe_speed


@pytest.fixture(params=["float32", "float64", "lists"])
def typed(request):
    """How the example's matrices are given: as arrays of a dtype, or as typed."""
    if request.param == "lists":
        return lambda matrix: matrix.astype(int).tolist()
    return lambda matrix: matrix.astype(request.param)


@pytest.fixture
def operands(article, typed):
    return [typed(article[name]) for name in ("queries", "keys", "values")]


def five_digits(matrix):
    return [[f"{number:.4e}" for number in row] for row in matrix]


def test_projections_and_scores_are_exact(level, article, typed):
    """A weight of `linear` has a row for each feature, as in PyTorch; the article's have a column."""
    x, *weights = (typed(article[name]) for name in ("x", "w_key", "w_query", "w_value"))
    keys, queries, values = (pyattn.functional.linear(x, np.transpose(weight)) for weight in weights)
    np.testing.assert_array_equal(keys, article["keys"])
    np.testing.assert_array_equal(queries, article["queries"])
    np.testing.assert_array_equal(values, article["values"])
    np.testing.assert_array_equal(pyattn.functional.linear(queries, keys), article["scores"])


def test_each_score_is_the_lse_of_one_key(level, article, operands):
    queries, keys, values = operands
    for j in range(3):
        lse = pyattn.attention(queries, keys[j : j + 1], values[j : j + 1], scale=1, need_lse=True).lse
        np.testing.assert_allclose(lse, article["scores"][:, j], rtol=3e-7)


def test_softmax_has_all_five_digits(level, article, typed, operands):
    weights = pyattn.attention(*operands, scale=1, need_weights=True).weights
    assert five_digits(weights) == five_digits(article["softmax"])
    assert five_digits(pyattn.softmax(typed(article["scores"]))) == five_digits(article["softmax"])


def test_outputs_equal_numpy(level, article, operands):
    exponentials = np.exp(np.float64(article["scores"]))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True) @ article["values"]
    np.testing.assert_allclose(pyattn.attention(*operands, scale=1), expected, rtol=0, atol=1e-6)


def test_the_demo_shows_the_same_example(article):
    for name, matrix in article.items():
        if hasattr(_article, name.upper()) and name != "softmax":
            np.testing.assert_array_equal(getattr(_article, name.upper()), matrix)
    assert [list(row) for row in _article.SOFTMAX] == five_digits(article["softmax"])


# What the demo prints


def test_the_demo_prints_each_matrix_once_and_ticks_each_check(level, article, capsys, monkeypatch):
    monkeypatch.setattr("pyattn.testing.speed.describe_speed", lambda: "Speed")
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    for line in ("2   4   4                   6.3379e-02  4.6831e-01  4.6831e-01", "1.9366  6.6831  1.5951"):
        assert printed.count(line) == 1
    assert printed.count("\u2713") == 4
    assert "\u2717" not in printed
    assert printed.index("Every number is right.") < printed.index("Speed")
    assert printed.splitlines()[-1].startswith("Next: `python -m pyattn explain`")


def test_checks_of_the_demo_have_a_small_error(level):
    (check,) = (check for check in worked_example.check_example() if "outputs" in check.claim)
    errors = [float(text) for text in re.findall(r"[\d.]+e-\d+", check.claim)]
    assert len(errors) == 2
    assert errors[0] <= 1e-6
    assert errors[1] <= 1e-14


@pytest.mark.parametrize("wrong", ["keys", "scores", "weights", "outputs"])
def test_the_demo_fails_when_a_number_differs(wrong, monkeypatch, capsys):
    monkeypatch.setattr("pyattn.testing.speed.describe_speed", lambda: "Speed")
    if wrong == "outputs":
        monkeypatch.setattr(worked_example, "_exact_outputs", lambda: np.float64([[1.936622, 6.683105, 1.595068]] * 3))
    elif wrong == "weights":
        monkeypatch.setattr(_article, "SOFTMAX", (("1.0000e+00",) * 3,) * 3)
    elif wrong == "scores":
        monkeypatch.setattr(_article, "SCORES", [[2, 4, 5], [4, 16, 12], [4, 12, 10]])
    else:
        monkeypatch.setattr(_article, "KEYS", [[0, 1, 2], [4, 4, 0], [2, 3, 1]])
    assert main(["demo"]) == 1
    printed = capsys.readouterr().out
    assert f"\u2717 {wrong}" in printed
    assert "WRONG: a number differs." in printed


def test_the_line_about_speed_names_what_was_timed():
    times = r"pyattn \d+ us, NumPy [\d.]+ [mu]s \([\d.]+x as long\)(, PyTorch [\d.]+ [mu]s \([\d.]+x as long\))?"
    assert re.fullmatch(f"Speed, 2 heads, 16 tokens, causal: {times}", describe_speed(2, 16))


def test_the_calls_that_are_timed_give_the_same_numbers():
    arrays = [np.random.default_rng(0).standard_normal((1, 2, 9, 64), np.float32) for _ in range(3)]
    expected = speed._pyattn_call(arrays)()
    np.testing.assert_allclose(speed._numpy_call(arrays)(), expected, rtol=0, atol=1e-5)

"""The worked example: every number that it gives, at every level, in both dtypes and typed as lists of integers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn
import pyattn.tracing.article as _article
from pyattn import __main__ as demo


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


def test_the_demo_prints_what_it_says(level, capsys):
    """Beside each number is the same number, and how far off the outputs are is told."""
    assert demo.show_article()
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if re.fullmatch(r"[-+.e\d ]+", line)]
    assert len(rows) == 18
    for row in rows:
        assert row[:3] == row[3:]
    differences = re.findall(r"largest difference from float64 NumPy: (\S+) \(at most 1e-06 is right\)", printed)
    assert len(differences) == 2
    assert all(float(difference) <= 1e-6 for difference in differences)
    assert "Every number is as expected." in printed


@pytest.mark.parametrize("wrong", ["output", "softmax", "scores"])
def test_the_demo_fails_when_a_number_differs(wrong, monkeypatch, capsys):
    monkeypatch.setattr(demo, "show_speed", lambda: None)
    if wrong == "output":
        monkeypatch.setattr(demo, "_exact_outputs", lambda: np.float64([[1.936622, 6.683105, 1.595068]] * 3))
    elif wrong == "softmax":
        monkeypatch.setattr(_article, "SOFTMAX", (("1.0000e+00",) * 3,) * 3)
    else:
        monkeypatch.setattr(_article, "SCORES", [[2, 4, 5], [4, 16, 12], [4, 12, 10]])
    assert demo.main(["demo"]) == 1
    assert "WRONG: not every number is as expected." in capsys.readouterr().out

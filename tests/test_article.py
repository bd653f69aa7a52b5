"""The worked example: every number that it gives, at every level, in both dtypes and typed as lists of integers."""

from __future__ import annotations

import numpy as np
import pytest

import pyattn
from pyattn import _article


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


def test_projections_and_scores_are_exact(article, typed):
    x, *weights = (np.asarray(typed(article[name])) for name in ("x", "w_key", "w_query", "w_value"))
    keys, queries, values = (x @ weight for weight in weights)
    np.testing.assert_array_equal(keys, article["keys"])
    np.testing.assert_array_equal(queries, article["queries"])
    np.testing.assert_array_equal(values, article["values"])
    np.testing.assert_array_equal(queries @ keys.T, article["scores"])


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

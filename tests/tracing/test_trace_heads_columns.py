"""MultiheadAttention.trace in the column convention: the formulas of texts that write an input per column."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_trace_heads import BEYOND, CLOSE, module
from test_trace_html import Reader

from pyattn import nn

RNG = np.random.default_rng(12)
ARRAYS = ("x", "w_key", "w_query", "w_value", "b_key", "b_query", "b_value", "keys", "queries", "values", "scores")

SECOND = {  # a second head beside the article's
    "w_query": [[1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1]],
    "w_key": [[1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1]],
    "w_value": [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]],
}
W_OUT = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]], float)


def of_two_heads(article, convention="row", **options):
    """The article's head, a second one, and W_O."""
    swapped = np.transpose if convention == "column" else np.asarray
    matrices = ([swapped(article[name]), swapped(np.array(SECOND[name], float))] for name in SECOND)
    return nn.from_heads(*matrices, swapped(W_OUT), convention=convention, **options)


def attend_in_columns(inputs, w_query, w_key, w_value):
    """O = V A' of the column texts: K = W_k I, Q = W_q I, V = W_v I, A = K^T Q, A' = softmax(A) by column."""
    scores = (w_key @ inputs).T @ (w_query @ inputs)
    weights = np.exp(scores) / np.exp(scores).sum(axis=0)
    return scores, weights, w_value @ inputs @ weights


def test_the_numbers_are_those_of_the_column_formulas(article):
    inputs = article["x"].astype(float).T
    traced = of_two_heads(article, scale=1).trace(inputs, convention="column")
    outputs = []
    for h, head in enumerate(traced.heads):
        w_query, w_key, w_value = (np.array((article, SECOND)[h][name], float).T for name in SECOND)
        scores, weights, output = attend_in_columns(inputs, w_query, w_key, w_value)
        np.testing.assert_array_equal(head.w_query, w_query)
        np.testing.assert_array_equal(head.queries, w_query @ inputs)
        np.testing.assert_array_equal(head.scores, scores)
        np.testing.assert_allclose(head.weights, weights, rtol=1e-14)
        np.testing.assert_allclose(head.outputs, output, rtol=1e-14)
        outputs.append(output)
    np.testing.assert_array_equal(traced.concatenated, np.vstack([head.outputs for head in traced.heads]))
    np.testing.assert_array_equal(traced.w_out, W_OUT.T)
    np.testing.assert_allclose(traced.outputs, W_OUT.T @ np.vstack(outputs), rtol=1e-14)


def test_the_first_head_has_the_articles_numbers_transposed(article):
    head = of_two_heads(article, scale=1).trace(article["x"].T, convention="column").heads[0]
    for name in ("keys", "queries", "values", "scores"):
        np.testing.assert_array_equal(head.in_rows(name), article[name], err_msg=name)
        np.testing.assert_array_equal(getattr(head, name), article[name].T, err_msg=name)
    digits = [[f"{number:.4e}" for number in row] for row in head.weights.T]
    assert digits == [[f"{number:.4e}" for number in row] for row in article["softmax"]]


def test_a_module_from_columns_has_the_same_trace(article):
    x = article["x"].T
    one, other = (of_two_heads(article, name).trace(x, convention="column") for name in ("row", "column"))
    assert one.to_dict() == other.to_dict()


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "3-D", *BEYOND])
def test_every_matrix_is_transposed(mask):
    mha = module(add_zero_attn=True, num_heads=4, num_kv_heads=2, head_dim=3, v_head_dim=5, out_dim=7)
    x = RNG.standard_normal((5, 12))
    blocked = RNG.random((5, 5)) < 0.4
    masks = {
        "none": {},
        "causal": {"is_causal": True},
        "bool": {"attn_mask": blocked},
        "float": {"attn_mask": np.where(blocked, -np.inf, RNG.standard_normal((5, 5)))},
        "3-D": {"attn_mask": RNG.random((4, 5, 5)) < 0.4},
        **BEYOND,
    }[mask]
    rows, columns = mha.trace(x, **masks), mha.trace(x.T, convention="column", **masks)
    assert (rows.convention, columns.convention) == ("row", "column")
    pairs = [(rows, columns, name) for name in ("concatenated", "w_out", "b_out", "outputs")]
    for row_head, column_head in zip(rows.heads, columns.heads, strict=True):
        pairs += [(row_head, column_head, name) for name in (*ARRAYS, "weights", "outputs", "visible", "attn_bias")]
    for row, column, name in pairs:
        one, other = getattr(row, name), getattr(column, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_array_equal(other, one.T, err_msg=name)


def test_key_and_value_are_columns_too():
    mha = module(kdim=4, vdim=5)
    query, key, value = (RNG.standard_normal(shape) for shape in ((3, 12), (6, 4), (6, 5)))
    traced = mha.trace(query.T, key.T, value.T, convention="column", key_tokens=list("uvwxyz"))
    output, weights = mha(query, key, value, average_attn_weights=False)
    np.testing.assert_allclose([head.weights.T for head in traced.heads], weights, **CLOSE)
    np.testing.assert_allclose(traced.outputs.T, output, **CLOSE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"x": np.ones((5, 12))},
            "x has shape (5, 12); with convention='column' it must be (12, length): each column is an input",
        ),
        (
            {"key": np.ones((6, 4))},
            "key has shape (6, 4); with convention='column' it must be (12, length): each column is an input",
        ),
        (
            {"x": np.ones((2, 12, 5))},
            "x has shape (2, 12, 5); it must be (embed_dim, length): trace one matrix, such as x[0]",
        ),
        ({"x": np.ones(12)}, "x has shape (12,); it must be (embed_dim, length)"),
        ({"key": np.ones(12)}, "key has shape (12,); it must be (kdim, length)"),
        ({"convention": "columns"}, "convention is 'columns'"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_mistakes_name_the_convention(arguments, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        module().trace(**{"x": np.ones((12, 5)), "convention": "column", **arguments})


ROW_HEAD = module().trace(np.ones((12, 12))).heads[0].to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given["heads"].append(ROW_HEAD), "heads have different conventions: all must be 'row', or"),
        (lambda given: given.update(w_out=[[1.0] * 6]), "w_out has shape (1, 6); it must be (out_dim, 12), as heads"),
        (lambda given: given.update(b_out=[[1.0] * 12]), "b_out has shape (1, 12); it must be (12, 1), as w_out"),
    ],
    ids=["convention", "w_out", "b_out"],
)
def test_a_dict_that_does_not_fit_is_refused(change, message):
    traced = module().trace(RNG.standard_normal((12, 12)), convention="column")
    given = traced.to_dict()
    change(given)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        type(traced).from_dict(given)


# As text and pages


def test_both_steps_that_join_the_heads_are_stages_of_text_markdown_and_page(article):
    traced = of_two_heads(article, scale=1).trace(article["x"].T, convention="column", tokens=["我", "b", "c"])
    text = str(traced)
    for line in (
        "  concatenated = [head_1; head_2]",
        "  head 1, input 1 (我): [1.9366, 6.6831, 1.5951]",
        "  head 2, input 1 (我): [0.9757, 1.0729, 0.9757]",
        "  concatenated: [1.9366, 6.6831, 1.5951, 0.9757, 1.0729, 0.9757]",
        "  concatenated, 6 x 3",
        "  outputs = w_out @ concatenated",
        "  input 1 (我): W_O x [1.9366, 6.6831, 1.5951, 0.9757, 1.0729, 0.9757]",
        "  = [3.0095, 7.6588, 1.5951, 0.9757]",
        "  outputs, 4 x 3",
    ):
        assert line in text.splitlines()
    assert "concatenated = [head_1; head_2]" in traced.to_markdown()
    reader = Reader(traced._repr_html_())
    for name, array in (("concatenated", traced.concatenated), ("outputs", traced.outputs)):
        shown = reader.table(name)["cells"][1:]  # below the tokens
        np.testing.assert_allclose(np.array(shown, float), array, rtol=0, atol=5.1e-5)
    assert reader.table("outputs")["names"] == ["我", "b", "c"]


def test_many_heads_are_abbreviated_in_the_formula():
    step = module(embed_dim=36, num_heads=18).trace(RNG.standard_normal((3, 36))).concatenation
    assert step.formula == "concatenated = Concat(head_1, ..., head_18)"
    assert [line.partition(":")[0] for line in step.note.splitlines()[1:]] == [
        *(f"head {n}, input 1" for n in range(1, 9)),
        "... and 10 more",
        "concatenated",
    ]

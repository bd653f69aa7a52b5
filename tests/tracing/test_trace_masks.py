"""What a trace says of masks that add, of signs, and of queries that attend to nothing."""

from __future__ import annotations

import numpy as np
import pytest
from test_trace_html import Reader

import pyattn

NAMES = ("x", "w_query", "w_key", "w_value")
MASK = np.array([[5, 0.5, -1], [0, 0, 0], [0, 0, 2]])


@pytest.fixture(params=["row", "column"])
def example(request, article):
    """The worked example in a convention, with arguments of one's own."""
    column = request.param == "column"
    matrices = [article[name].T if column else article[name] for name in NAMES]
    return lambda **arguments: pyattn.trace(*matrices, convention=request.param, **arguments)


# A mask that adds


def test_a_mask_that_adds_stands_in_the_equation(example):
    trace = example(attn_mask=MASK)
    step = trace.for_query(0)[0]
    row = trace.convention == "row"
    product, matrices = ("[1, 0, 2] x K^T", "queries @ keys.T") if row else ("K^T x [1, 0, 2]", "keys.T @ queries")
    assert step.note == f"input 1: {product} + mask [5, 0.5, -1] = [7, 4.5, 3]"
    assert step.formula == f"scores = {matrices} + attn_bias"
    assert trace.for_query(2)[0].note.endswith(" + mask [0, 0, 2] = [4, 12, 12]")
    assert trace.steps[7].formula.splitlines()[0] == step.formula


def test_a_mask_that_adds_is_shown(example):
    trace = example(attn_mask=MASK)
    one, every = trace.for_query(1)[0].arrays, trace.steps[7].arrays
    assert list(one) == ["attn_bias", "scores"]
    assert list(every) == ["attn_bias", "scores", "weights", "outputs"]
    turned = MASK if trace.convention == "row" else MASK.T
    np.testing.assert_array_equal(one["attn_bias"], turned[1:2] if trace.convention == "row" else turned[:, 1:2])
    np.testing.assert_array_equal(every["attn_bias"], turned)


@pytest.mark.parametrize(
    "mask", [np.ones((3, 3), bool), np.zeros((3, 3)), np.zeros(3, np.float32)], ids=["bools", "zeros", "a row"]
)
def test_a_mask_that_changes_nothing_is_not_shown(example, mask):
    trace, plain = example(attn_mask=mask), example()
    assert str(trace) == str(plain)
    assert trace.visible is trace.attn_bias is None


@pytest.mark.parametrize("score", ["cosine", "distance", "bilinear", "additive"])
def test_a_mask_that_adds_stands_beside_other_scores(example, score):
    weight = {"bilinear": np.eye(3), "additive": np.ones(3)}.get(score)
    step = example(attn_mask=MASK, score=score, score_weight=weight).for_query(0)[0]
    assert step.formula.endswith(" + attn_bias")
    assert "against every key + mask [5, 0.5, -1] gives [" in step.note


def test_what_a_mask_that_adds_hides_is_told_too(example):
    mask = np.where(np.tri(3, dtype=bool), 0.5, -np.inf)
    note = example(attn_mask=mask).for_query(0)[0].note
    assert note.splitlines() == [note.splitlines()[0], "-inf: hidden by the mask, 2 of 3 keys"]
    assert note.splitlines()[0].endswith(" + mask [0.5, -inf, -inf] = [2.5, -inf, -inf]")


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": np.tri(3, dtype=bool)}], ids=str)
def test_without_numbers_to_add_no_mask_is_added(example, options):
    trace = example(**options)
    assert list(trace.steps[3].arrays) == ["scores"]
    assert "attn_bias" not in str(trace)
    assert "+ mask" not in str(trace)


def test_text_markdown_and_page_have_the_mask(example):
    trace = example(attn_mask=MASK, tokens=["a", "b", "c"])
    page = Reader(trace._repr_html_())
    for text in (str(trace), trace.to_markdown().replace("\\", ""), "".join(page.text)):
        assert "+ attn_bias" in text
        assert "+ mask [5, 0.5, -1] = [7, 4.5, 3]" in text
    turned = MASK if trace.convention == "row" else MASK.T
    np.testing.assert_array_equal(np.array(page.table("attn_bias")["cells"][1:], float), turned)
    assert page.table("attn_bias")["names"] == ["a", "b", "c"] * 2


def test_a_head_has_the_mask_in_its_equation():
    module = pyattn.MultiheadAttention(4, 2, rng=0, dtype=np.float64)
    traced = module.trace(np.eye(3, 4), attn_mask=MASK, key_padding_mask=np.array([0, 0, -1.5]))
    for head in traced.heads:
        step = head.for_query(0)[0]
        assert step.formula.endswith(" * queries @ keys.T + attn_bias")
        assert " x K^T + mask [5, 0.5, -2.5] = [" in step.note
        expected = head.scale * head.queries[:1] @ head.keys.T + step.arrays["attn_bias"]
        np.testing.assert_allclose(step.arrays["scores"], expected, rtol=1e-14)


# Signs


@pytest.mark.parametrize(
    ("scale", "dot", "distance"),
    [
        (1, "queries @ keys.T", "-|q - k|^2"),
        (-1, "-queries @ keys.T", "|q - k|^2"),
        (0.5, "0.5 * queries @ keys.T", "-0.5 * |q - k|^2"),
        (-0.5, "-0.5 * queries @ keys.T", "0.5 * |q - k|^2"),
    ],
)
def test_a_scale_has_one_sign(article, scale, dot, distance):
    matrices = [article[name] for name in NAMES]
    assert pyattn.trace(*matrices, scale=scale).steps[3].formula == f"scores = {dot}"
    trace = pyattn.trace(*matrices, scale=scale, score="distance")
    assert trace.steps[3].formula == f"score(q, k) = {distance}"


# Nothing to attend to


@pytest.mark.parametrize("empty_rows", ["zero", "nan"])
def test_a_query_that_attends_to_nothing_is_told_of(empty_rows):
    module = pyattn.MultiheadAttention(4, 2, rng=0)
    head = module.trace(np.eye(3, 4), key_lengths=0, empty_rows=empty_rows).heads[0]
    assert head.empty_rows == empty_rows
    assert head.for_query(0)[1].note.endswith("\nEvery key is masked: all weights are 0.")
    assert (
        head.for_query(0)[3].note
        == {
            "zero": "[0, 0] + [0, 0] + [0, 0] = [0, 0]",
            "nan": "Every key is masked: the output is [nan, nan] because of empty_rows='nan'.",
        }[empty_rows]
    )

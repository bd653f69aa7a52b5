"""What a trace computes: the worked example exactly, and all else by formulas in plain Python or by the C core."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from support.papers import Papers, assert_near

import pyattn
from pyattn.testing.bounds import OUTPUT_BAR, expect, output_ratio, weights_ratio

NAMES = ("x", "w_key", "w_query", "w_value", "keys", "queries", "values", "scores")
RNG = np.random.default_rng(5)


@pytest.fixture(params=["row", "column"])
def convention(request):
    return request.param


@pytest.fixture
def turned(convention):
    """What the convention does to an array."""
    return np.transpose if convention == "column" else np.asarray


@pytest.fixture
def example(article, turned, convention):
    """The worked example in a convention, with arguments of one's own."""
    matrices = [turned(article[name]) for name in ("x", "w_query", "w_key", "w_value")]
    return lambda **arguments: pyattn.trace(*matrices, convention=convention, **arguments)


def random_call(queries=5, keys=7, key_dim=4, v_dim=3):
    shapes = (queries, key_dim), (keys, key_dim), (keys, v_dim)
    return [RNG.standard_normal(shape) for shape in shapes]


# The worked example


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_exact(example, article, turned, name):
    np.testing.assert_array_equal(getattr(example(), name), turned(article[name]))


def test_the_weights_of_the_example_have_all_five_digits(example, article, turned):
    found = turned(example().weights)
    assert [[f"{x:.4e}" for x in row] for row in found] == [[f"{x:.4e}" for x in row] for row in article["softmax"]]


def test_the_outputs_of_the_example_are_the_formulas(example, article, turned):
    expected = expect(article["queries"], article["keys"], article["values"], "float64", scale=1)
    assert output_ratio(turned(example().outputs), expected) <= OUTPUT_BAR


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("weights", "softmax_rounded"),
        ("weighted_values", "weighted_values_of_rounded"),
        ("outputs", "outputs_of_rounded"),
    ],
)
def test_the_rounded_variant_is_exact(example, article, turned, name, expected):
    np.testing.assert_array_equal(turned(getattr(example(round_weights=1), name)), article[expected])


@pytest.mark.parametrize(
    "typed",
    [np.float16, np.float32, np.longdouble, np.int8, lambda x: np.asarray(x).tolist()],
    ids=["float16", "float32", "longdouble", "int8", "lists"],
)
def test_any_type_of_input_is_computed_in_float64(article, typed):
    trace = pyattn.trace(*(typed(article[name]) for name in ("x", "w_query", "w_key", "w_value")))
    assert trace.outputs.dtype == np.float64
    np.testing.assert_array_equal(trace.scores, article["scores"])


# Against the core


@pytest.mark.parametrize("mask", ["none", "bool", "float", "causal", "causal and bool"])
def test_a_trace_is_what_attention_computes(mask):
    query, key, value = random_call(6, 6)
    arguments = {"is_causal": mask.startswith("causal")}
    if mask.endswith("bool"):
        arguments["attn_mask"] = RNG.random((6, 6)) < 0.6
    elif mask == "float":
        arguments["attn_mask"] = np.where(RNG.random((6, 6)) < 0.3, -np.inf, RNG.standard_normal((6, 6)))
    trace = pyattn.trace_attention(query, key, value, **arguments)
    expected = expect(query, key, value, "float64", **arguments)
    assert output_ratio(trace.outputs, expected) <= OUTPUT_BAR
    assert weights_ratio(trace.weights, expected) <= 1
    core = pyattn.attention(query, key, value, **arguments)
    assert output_ratio(core, expected) <= OUTPUT_BAR, "the same arguments mean the same"


@pytest.mark.parametrize("align", ["upper_left", "lower_right", 2, -1, 0])
def test_causal_alignment_is_attentions(align):
    query, key, value = random_call(3, 5)
    trace = pyattn.trace_attention(query, key, value, is_causal=True, align=align)
    weights = pyattn.attention(query, key, value, is_causal=True, align=align, need_weights=True).weights
    np.testing.assert_array_equal(trace.weights == 0, weights == 0)


def test_trace_is_the_papers_formula(convention, turned):
    x, w_query, w_key, w_value = (RNG.standard_normal(shape) for shape in ((5, 4), (4, 3), (4, 3), (4, 2)))
    x, *weights = [turned(matrix) for matrix in (x, w_query, w_key, w_value)]
    biases = [RNG.standard_normal(3), None, RNG.standard_normal(2)]
    trace = pyattn.trace(x, *weights, bias=biases, scale=0.5, convention=convention)
    formula = Papers(np.float64).columns if convention == "column" else Papers(np.float64).rows
    output, attended = formula(x, x, x, weights, biases, scale=0.5)
    assert_near(trace.outputs, output)
    assert_near(trace.weights, attended)


@pytest.mark.parametrize("mask", ["bool", "causal"])
def test_masks_of_trace_are_those_of_self_attention(convention, turned, mask):
    x, w_query, w_key, w_value = (turned(RNG.standard_normal(shape)) for shape in ((5, 4), (4, 3), (4, 3), (4, 2)))
    masks = {"is_causal": True} if mask == "causal" else {"attn_mask": RNG.random((5, 5)) < 0.5}
    trace = pyattn.trace(x, w_query, w_key, w_value, convention=convention, **masks)
    core = pyattn.self_attention(x, w_query, w_key, w_value, convention=convention, scale=1, need_weights=True, **masks)
    np.testing.assert_array_equal(trace.weights == 0, core.weights == 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
def test_numbers_that_overflow_are_shown_without_a_warning(value):
    trace = pyattn.trace_attention([[value, 1]], [[1, value], [1, 1]], [[value], [1]], round_weights=1)
    assert all((str(trace), trace.to_markdown(), trace._repr_html_(), json.dumps(trace.to_dict(), allow_nan=False)))


@pytest.mark.parametrize("value", [5e-324, 1e-310, 1e-200, 1e200, np.nan, np.inf])
def test_a_trace_does_not_care_for_the_callers_error_state(value):
    """With denormals, quotients of weights underflow."""
    matrix = np.array([[value, 1], [1, value]])
    for options in ({}, {"normalize": "sigmoid", "round_weights": 3}, {"normalize": "sparsemax", "score": "cosine"}):
        with np.errstate(all="raise"):
            trace = pyattn.trace(matrix, matrix, -1000 * matrix, matrix, attn_mask=matrix, **options)
            heads = pyattn.MultiheadAttention(2, 1, rng=0).trace(np.abs(np.nan_to_num(matrix, posinf=1)))
            for one in (trace, heads):
                assert all((str(one), one.to_markdown(), one._repr_html_(), one.to_dict()))
            assert trace.weighted_values.shape == (2, 2, 2)


def test_biases_may_be_rows_of_one_array(article):
    matrices = [article[name] for name in ("x", "w_query", "w_key", "w_value")]
    biases = np.arange(9.0).reshape(3, 3)
    one, other = (pyattn.trace(*matrices, bias=bias) for bias in (biases, list(biases)))
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.b_value, [[6, 7, 8]])


def test_both_conventions_show_the_same_numbers(article):
    matrices = [article[name] for name in ("x", "w_query", "w_key", "w_value")]
    rows = pyattn.trace(*matrices, bias=[[1, 2, 3], None, None], is_causal=True)
    columns = pyattn.trace(
        *(matrix.T for matrix in matrices), bias=[[1, 2, 3], None, None], is_causal=True, convention="column"
    )
    for name in (*NAMES, "b_query", "weights", "outputs", "weighted_values", "visible"):
        np.testing.assert_array_equal(getattr(columns, name), getattr(rows, name).T, err_msg=name)


@pytest.mark.parametrize("kind", ["bool", "float", "causal"])
def test_masked_nan_never_leaks(kind):
    query, key, value = random_call(3, 3)
    key[2], value[2] = np.nan, np.nan
    visible = np.array([[True, False, False], [True, True, False], [False, False, False]])
    arguments = {"attn_mask": visible if kind == "bool" else np.where(visible, 0.5, -np.inf)}
    if kind == "causal":
        arguments, visible = {"is_causal": True}, np.tri(3, dtype=bool)
    trace = pyattn.trace_attention(query, key, value, **arguments)
    rows = visible[:, 2] == False  # noqa: E712 (of an array)
    assert np.isfinite(trace.outputs[rows]).all()
    assert (trace.scores[~visible] == -np.inf).all()
    assert (trace.weights[~visible] == 0).all()
    assert np.isfinite(trace.weighted_values[:, rows]).all()
    assert np.isnan(trace.outputs[~rows]).all()


@pytest.mark.parametrize("normalize", ["softmax", "sigmoid", "sparsemax"])
def test_hidden_keys_weigh_nothing_beside_one_that_is_not_a_number(normalize):
    query, key, value = random_call(3, 3)
    key[0] = np.nan
    trace = pyattn.trace_attention(query, key, value, is_causal=True, normalize=normalize)
    assert np.isnan(trace.weights[:, 0]).all()
    assert (trace.weights[~np.tri(3, dtype=bool)] == 0).all()


@pytest.mark.parametrize("normalize", ["softmax", "sigmoid", "sparsemax"])
def test_a_row_with_nothing_to_attend_to_gives_zero(normalize):
    visible = np.array([[True, True], [False, False]])
    trace = pyattn.trace_attention(*random_call(2, 2), attn_mask=visible, normalize=normalize, round_weights=2)
    assert (trace.weights[1] == 0).all()
    assert (trace.outputs[1] == 0).all()
    assert (trace.weights[0] > 0).any()


# Scores and normalizers


def dot(q, k):
    return sum(a * b for a, b in zip(q, k, strict=True))


SCORES = {
    "dot": (lambda q, k, w: dot(q, k), lambda d: 1 / math.sqrt(d)),
    "cosine": (lambda q, k, w: dot(q, k) / (math.hypot(*q) * math.hypot(*k)), lambda d: 1),
    "distance": (lambda q, k, w: -(math.dist(q, k) ** 2), lambda d: 1 / (2 * math.sqrt(d))),
    "bilinear": (lambda q, k, w: sum(q[a] * w[a][b] * k[b] for a in range(4) for b in range(4)), lambda d: 1),
    "additive": (lambda q, k, w: sum(w[d] * math.tanh(q[d] + k[d]) for d in range(4)), lambda d: 1),
}
WEIGHTS = {"bilinear": RNG.standard_normal((4, 4)), "additive": RNG.standard_normal(4)}


@pytest.mark.parametrize("scale", [None, 0.7], ids=["default scale", "scale"])
@pytest.mark.parametrize("score", SCORES)
def test_scores_are_their_formulas(score, scale):
    query, key, value = random_call()
    trace = pyattn.trace_attention(query, key, value, score=score, score_weight=WEIGHTS.get(score), scale=scale)
    formula, usual = SCORES[score]
    weight = WEIGHTS.get(score, np.zeros(0)).tolist()
    expected = [
        [(usual(4) if scale is None else scale) * formula(q, k, weight) for k in key.tolist()] for q in query.tolist()
    ]
    np.testing.assert_allclose(trace.scores, expected, rtol=0, atol=40 * 2.0**-53 * 20)  # 40 operations, terms below 20


@pytest.mark.parametrize("score", SCORES)
def test_the_scale_of_trace_is_one_unless_given(score, article):
    matrices = [article[name] for name in ("x", "w_query", "w_key", "w_value")]
    weight = {"bilinear": np.eye(3), "additive": np.ones(3)}.get(score)
    unscaled = pyattn.trace(*matrices, score=score, score_weight=weight)
    scaled = pyattn.trace(*matrices, score=score, score_weight=weight, scale=None)
    assert unscaled.scale == 1
    assert scaled.scale == pytest.approx(SCORES[score][1](3), rel=1e-15)
    np.testing.assert_allclose(scaled.scores, unscaled.scores * scaled.scale, rtol=1e-15)


def test_the_cosine_of_a_zero_vector_is_zero():
    trace = pyattn.trace_attention([[0, 0], [3, 4]], [[3, 4], [0, 0]], [[1], [2]], score="cosine")
    np.testing.assert_allclose(trace.scores, [[0, 0], [1, 0]], rtol=0, atol=2.0**-52)


def test_the_cosine_of_huge_and_tiny_vectors_is_right():
    trace = pyattn.trace_attention([[3e200, 4e200]], [[4e-200, 3e-200]], [[1]], score="cosine")
    assert trace.scores[0, 0] == pytest.approx(24 / 25, rel=1e-15)


def test_bilinear_compares_vectors_of_different_sizes():
    trace = pyattn.trace_attention([[1, 2]], [[1, 0, 1]], [[1]], score="bilinear", score_weight=[[1, 2, 3], [4, 5, 6]])
    assert trace.scores.tolist() == [[1 + 3 + 2 * (4 + 6)]]


def test_sigmoid_takes_every_key_by_itself():
    query, key, value = random_call()
    trace = pyattn.trace_attention(query, key, value, normalize="sigmoid", attn_mask=np.arange(7) < 5)
    expected = [[1 / (1 + math.exp(-s)) for s in row] for row in trace.scores[:, :5].tolist()]
    np.testing.assert_allclose(trace.weights[:, :5], expected, rtol=4 * 2.0**-53)
    assert (trace.weights[:, 5:] == 0).all()


@pytest.mark.parametrize("size", [0.1, 1, 30, 1e9])
def test_sparsemax_is_the_nearest_distribution(size):
    """By the conditions of the minimum: weights are scores less one number, or 0 where that would be negative."""
    query, key, value = random_call(40, 30)
    visible = RNG.random((40, 30)) < 0.8
    trace = pyattn.trace_attention(query * size, key, value, normalize="sparsemax", attn_mask=visible)
    for scores, weights, seen in zip(trace.scores, trace.weights, visible, strict=True):
        kept = weights > 0
        rounding = 2.0**-50 * (1 + np.abs(scores[seen]).max())
        assert not kept[~seen].any()
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(1, abs=30 * 2.0**-52)
        tau = scores[kept] - weights[kept]
        np.testing.assert_allclose(tau, tau[0], rtol=0, atol=rounding)
        assert (scores[~kept] <= tau[0] + rounding).all()


def test_sparsemax_of_the_papers_kind_is_sparse():
    trace = pyattn.trace_attention([[1]], [[1.0], [0.8], [-1]], np.eye(3), 1, normalize="sparsemax")
    np.testing.assert_allclose(trace.weights, [[0.6, 0.4, 0]], rtol=0, atol=2.0**-52)


@pytest.mark.parametrize("decimals", [0, 1, 2, 5])
def test_rounded_rows_keep_their_sum(decimals):
    trace = pyattn.trace_attention(*random_call(50, 20), round_weights=decimals)
    exact = pyattn.trace_attention(trace.queries, trace.keys, trace.values)
    units = trace.weights * 10**decimals
    np.testing.assert_allclose(units, np.rint(units), rtol=0, atol=1e-9)
    np.testing.assert_allclose(trace.weights.sum(axis=-1), 1, rtol=0, atol=1e-14)
    assert np.abs(trace.weights - exact.weights).max() < 10.0**-decimals


# Fields and steps


def test_weighted_values_sum_to_the_outputs():
    trace = pyattn.trace_attention(*random_call())
    assert trace.weighted_values.shape == (7, 5, 3)
    np.testing.assert_allclose(trace.weighted_values.sum(0), trace.outputs, rtol=1e-14, atol=1e-15)


def test_weighted_values_beyond_the_limit_name_their_size():
    trace = pyattn.trace_attention(np.ones((1024, 1)), np.ones((1024, 1)), np.ones((1024, 64)))
    with pytest.raises(ValueError, match=r"^weighted_values of shape \(1024, 1024, 64\) would take 512 MiB, above"):
        trace.weighted_values  # noqa: B018 (a property)
    assert trace.for_query(1023)[2].arrays["weighted_values"].shape == (1024, 64)


def test_a_trace_is_its_own_and_read_only():
    query, key, value = random_call()
    trace = pyattn.trace_attention(query, key, value)
    before = trace.queries.copy()
    query[...] = 0
    np.testing.assert_array_equal(trace.queries, before)
    with pytest.raises(ValueError, match="read-only"):
        trace.scores[0, 0] = 1


def test_the_fields_are_in_the_order_of_the_steps(example):
    names = [name for name in example().to_dict() if name in (*NAMES, "weights", "weighted_values", "outputs")]
    assert names == [*NAMES, "weights", "weighted_values", "outputs"]


def test_there_are_eight_steps_with_the_arrays_of_the_example(example, article, turned):
    steps = example().steps
    assert [step.number for step in steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    names = [tuple(step.arrays) for step in steps]
    assert names[:3] == [("x",), ("w_key", "w_query", "w_value"), ("keys", "queries", "values")]
    assert names[3:] == [
        ("scores",),
        ("weights",),
        ("weighted_values",),
        ("outputs",),
        ("scores", "weights", "outputs"),
    ]
    assert all(array.ndim == 2 for step in steps for array in step.arrays.values())
    np.testing.assert_array_equal(turned(steps[3].arrays["scores"]), article["scores"][:1])
    np.testing.assert_array_equal(turned(steps[7].arrays["scores"]), article["scores"])


@pytest.mark.parametrize("i", [0, 1, -1])
def test_for_query_gives_steps_four_to_seven_of_one_input(example, article, turned, i):
    steps = example(round_weights=1).for_query(i)
    assert [step.number for step in steps] == [4, 5, 6, 7]
    arrays = {name: turned(array) for step in steps for name, array in step.arrays.items()}
    np.testing.assert_array_equal(arrays["scores"], article["scores"][i][np.newaxis])
    np.testing.assert_array_equal(arrays["weighted_values"], article["weighted_values_of_rounded"][:, i])
    np.testing.assert_array_equal(arrays["outputs"], article["outputs_of_rounded"][i][np.newaxis])


def test_for_query_tells_the_products_as_the_example_does(article):
    trace = pyattn.trace(*(article[name] for name in ("x", "w_query", "w_key", "w_value")))
    assert trace.for_query(0)[0].note == "input 1: [1, 0, 2] x K^T = [2, 4, 4]"
    assert trace.for_query(2)[0].note == "input 3: [2, 1, 3] x K^T = [4, 12, 10]"


@pytest.mark.parametrize("i", [3, -4])
def test_for_query_refuses_an_input_that_is_not_there(example, i):
    with pytest.raises(IndexError, match=rf"^i is {i}; it must be from -3 to 2, for 3 inputs$"):
        example().for_query(i)


def test_a_dict_is_json_and_keeps_every_number(example):
    trace = example(is_causal=True, tokens=["a", "b", "c"])
    read = json.loads(json.dumps(trace.to_dict(), allow_nan=False))
    np.testing.assert_array_equal(np.array(read["scores"], float), trace.scores)
    np.testing.assert_array_equal(read["weights"], trace.weights)
    np.testing.assert_array_equal(read["weighted_values"], trace.weighted_values)
    assert read["tokens"] == ["a", "b", "c"]

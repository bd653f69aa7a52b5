"""assert_attention_close lets rounding pass and nothing else, and says where and why."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from support.halves import HALVES

import pyattn
from pyattn.interop.torch.tensors import view_as_tensor
from pyattn.testing import assert_attention_close
from pyattn.testing.bounds import PRECISIONS


def inputs_of(dtype, *, heads=False, q_len=5, kv_len=7):
    rng = np.random.default_rng(0)
    leading = (2, 3) if heads else ()
    return [rng.standard_normal((*leading, *shape)).astype(dtype) for shape in ((q_len, 8), (kv_len, 8), (kv_len, 4))]


def formula(query, key, value, scale=None, mask=None):
    """As a NumPy user writes it, in the dtype of the query."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.swapaxes(-1, -2) * query.dtype.type(scale)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ value


def message_of(actual, *inputs, **arguments):
    with pytest.raises(AssertionError) as caught:
        assert_attention_close(actual, *inputs, **arguments)
    return str(caught.value)


# What passes


def test_numpy_passes(dtype):
    inputs = inputs_of(dtype, heads=True)
    assert_attention_close(formula(*inputs), *inputs)


MASK = np.random.default_rng(1).random((5, 7)) < 0.5
EQUAL_ARGUMENTS = {
    "mask": {"attn_mask": MASK},
    "float mask": {"attn_mask": np.where(MASK, 0.5, -np.inf)},
    "causal": {"is_causal": True, "align": "lower_right"},
    "causal from a position": {"is_causal": True, "align": 2},
    "scale": {"scale": 0.25},
    "window": {"window": (2, 1), "align": "upper_left"},
    "window as a list": {"window": [2, 1], "align": "upper_left"},
    "lengths": {"key_lengths": [2, 7], "query_lengths": [5, 0]},
    "empty rows": {"key_lengths": [0, 7], "empty_rows": "nan"},
}


@pytest.mark.parametrize("arguments", EQUAL_ARGUMENTS.values(), ids=EQUAL_ARGUMENTS)
def test_arguments_mean_what_they_mean_in_attention(dtype, arguments):
    inputs = inputs_of(dtype, heads=True)
    assert_attention_close(pyattn.attention(*inputs, **arguments), *inputs, **arguments)
    with pytest.raises(AssertionError):
        assert_attention_close(pyattn.attention(*inputs), *inputs, **arguments)


WEIGHTS = {"bilinear": np.random.default_rng(2).standard_normal((8, 8)), "additive": np.linspace(-1, 1, 8)}


@pytest.mark.parametrize("score", ["cosine", "distance", "bilinear", "additive"])
def test_scores_mean_what_they_mean_in_attention(score, dtype):
    inputs = inputs_of(dtype, heads=True)
    option = {"score": score, "score_weight": WEIGHTS[score].astype(dtype) if score in WEIGHTS else None}
    for same in ({}, {"scale": 0.3, "attn_mask": MASK}):
        result = pyattn.attention(*inputs, **option, **same)
        assert_attention_close(result, *inputs, **option, **same)
        with pytest.raises(AssertionError, match="further from exact attention than rounding explains"):
            assert_attention_close(result, *inputs, **same)


def test_another_score_is_named():
    inputs = inputs_of("float32", heads=True)
    assert "likely cause: your function computes dot products" in message_of(formula(*inputs), *inputs, score="cosine")


def test_a_score_that_lacks_its_weight_is_named():
    inputs = inputs_of("float32")
    with pytest.raises(ValueError, match=r"^score='additive' needs score_weight"):
        assert_attention_close(formula(*inputs), *inputs, score="additive")


def test_layout_and_shared_heads(dtype):
    query, key, value = (x.swapaxes(1, 2) for x in inputs_of(dtype, heads=True))
    shared = query, key[:, :, :1], value[:, :, :1]
    assert_attention_close(pyattn.attention(*shared, layout="bshd"), *shared, layout="bshd")
    unbatched = query[0].swapaxes(0, 1), key[0].swapaxes(0, 1)[:1], value[0].swapaxes(0, 1)[:1]
    assert_attention_close(pyattn.attention(*unbatched, enable_gqa=True), *unbatched, enable_gqa=True)


@pytest.mark.peers
@pytest.mark.parametrize("kind", HALVES)
def test_halves(torch, kind):
    """Within their own rounding: pyattn's, and torch's, which rounds on the way; one in eight bits is too much."""
    inputs = [x.astype(HALVES[kind]) for x in inputs_of("float32", heads=True)]
    assert_attention_close(pyattn.attention(*inputs), *inputs)
    tensors = [view_as_tensor(x) for x in inputs]
    assert_attention_close(torch.nn.functional.scaled_dot_product_attention(*tensors), *tensors)
    wrong = pyattn.attention(*inputs) * HALVES[kind].type(1 + 32 * 2.0 ** -PRECISIONS[kind].bits)
    assert "further from exact attention" in message_of(wrong, *inputs)


def test_lists_are_float64():
    inputs = inputs_of("float64")
    assert_attention_close(formula(*inputs).tolist(), *(x.tolist() for x in inputs))


@pytest.mark.peers
def test_tensors_pass(torch, dtype):
    tensors = [torch.from_numpy(x) for x in inputs_of(dtype, heads=True)]
    assert_attention_close(torch.nn.functional.scaled_dot_product_attention(*tensors), *tensors)


def test_nothing_is_close_to_nothing():
    inputs = inputs_of("float32", q_len=0)
    assert_attention_close(np.empty((0, 4), np.float32), *inputs)


# What does not


@pytest.mark.parametrize(("dtype", "relative"), [("float32", 2e-5), ("float64", 1e-13)])
def test_errors_beyond_rounding_do_not(dtype, relative):
    """A usual rtol would let them pass: 1e-4 the first, and 1e-7 the second."""
    inputs = inputs_of(dtype)
    actual = formula(*inputs)
    actual[3, 2] *= 1 + actual.dtype.type(relative)
    message = message_of(actual, *inputs)
    assert message.startswith("1 of 20 numbers are further from exact attention than rounding explains\n")
    assert "worst: actual[3, 2] is" in message


def test_the_message_has_the_numbers():
    inputs = inputs_of("float64")
    exact = formula(*inputs)
    actual = exact.copy()
    actual[1, 3] += 0.5
    message = message_of(actual, *inputs)
    pattern = r"actual\[1, 3\] is (.*), exact (.*), error (.*), bound (.*); error ratio (.*), at most (\S*)"
    given, right, error, bound, ratio, bar = (float(text) for text in re.search(pattern, message).groups())
    np.testing.assert_allclose([given, right, error], [actual[1, 3], exact[1, 3], 0.5], rtol=1e-8)
    assert bar == 4
    np.testing.assert_allclose(ratio, bar * error / bound, rtol=0.01)
    assert 1e-17 < bound < 1e-14


def test_the_index_is_in_the_callers_layout():
    inputs = [x.swapaxes(1, 2) for x in inputs_of("float64", heads=True)]
    actual = pyattn.attention(*inputs, layout="bshd")
    actual[1, 4, 2, 3] += 1
    assert "actual[1, 4, 2, 3] is" in message_of(actual, *inputs, layout="bshd")


def test_nan_in_another_place_does_not():
    inputs = inputs_of("float32")
    actual = formula(*inputs)
    actual[0, 1] = np.nan
    assert "actual[0, 1] is nan" in message_of(actual, *inputs)


def test_a_known_mistake_is_named():
    inputs = inputs_of("float32")
    assert "likely cause: your function does not scale the scores" in message_of(formula(*inputs, scale=1), *inputs)
    message = message_of(formula(*inputs, mask=~MASK), *inputs, attn_mask=MASK)
    assert "likely cause: your function reads attn_mask the other way round" in message
    swapped = [x.swapaxes(1, 2) for x in inputs_of("float32", heads=True)]
    message = message_of(pyattn.attention(*swapped, layout="bshd", scale=1), *swapped, layout="bshd")
    assert "likely cause: your function does not scale the scores" in message


def test_an_unknown_mistake_is_not():
    inputs = inputs_of("float32")
    assert "cause" not in message_of(np.tanh(formula(*inputs)), *inputs)


def test_a_little_too_much_rounding_is_no_other_mistake():
    inputs = inputs_of("float32")
    message = message_of(formula(*inputs) * np.float32(1 + 2e-6), *inputs)
    assert "likely cause: rounding errors only" in message


@pytest.mark.slow
def test_long_flat_rows_may_round_more(dtype):
    """4,096 numbers of one sign, added one by one, lose more digits than the bar allows; in blocks they do not."""
    query, key, value = inputs_of(dtype, kv_len=4096)
    key, value = key * key.dtype.type(1e-3), np.abs(value) + value.dtype.type(0.5)
    weights = np.exp(query @ key.T * query.dtype.type(8**-0.5))
    output, total = np.zeros((5, 4), dtype), np.zeros((5, 1), dtype)
    for j in range(4096):
        output += weights[:, j : j + 1] * value[j]
        total += weights[:, j : j + 1]
    assert_attention_close(pyattn.attention(query, key, value), query, key, value)
    assert "at most 16" in message_of(output / total, query, key, value)
    assert_attention_close(output / total, query, key, value, bar=64)


# What is refused


def test_shapes_are_compared():
    query, key, value = inputs_of("float32")
    message = message_of(formula(query, key, value).T, query, key, value)
    assert message == (
        "actual has shape (4, 5), expected (5, 4): query has shape (5, 8), key has shape (7, 8), value has shape (7, 4)"
    )


def test_dtypes_are_compared():
    inputs = inputs_of("float32")
    message = message_of(formula(*inputs).astype(np.float64), *inputs)
    expected = "actual has dtype float64, expected that of the inputs, float32; pass actual.astype(numpy.float32)"
    why = "a NumPy scalar such as numpy.sqrt(head_dim) is float64 and widens them; use math.sqrt(head_dim)"
    assert message == f"{expected}, or leave them float32: {why}"
    assert message_of(formula(*inputs).tolist(), *inputs).endswith("; pass numpy.asarray(actual, numpy.float32)")


@pytest.mark.parametrize("bar", [0, -1.0, np.nan])
def test_a_bar_is_positive(bar):
    inputs = inputs_of("float32")
    with pytest.raises(ValueError, match=r"^bar is .*; it must be a positive number$"):
        assert_attention_close(formula(*inputs), *inputs, bar=bar)


def test_rules_are_those_of_attention():
    inputs = inputs_of("float32")
    with pytest.raises(ValueError, match="needs align="):
        assert_attention_close(formula(*inputs), *inputs, is_causal=True)
    with pytest.raises(TypeError, match="attn_mask has dtype int64"):
        assert_attention_close(formula(*inputs), *inputs, attn_mask=np.ones((5, 7), int))
    with pytest.raises(TypeError, match="actual is an object of type NoneType"):
        assert_attention_close(None, *inputs)


def test_a_mask_object_that_hides_everything_does_not_warn():
    x = np.ones((4, 3), np.float32)
    mask = pyattn.masks.causal(4).complement()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_attention_close(pyattn.attention(x, x, x, attn_mask=mask), x, x, x, attn_mask=mask)

"""additive_attention: the formula in its three forms, its options, and clear words for what does not fit."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.halves import HALVES, assert_rounded, half_bits, single
from support.helpers import assert_same_bits, for_each, make_arrays

import pyattn
from pyattn import reference


def draw(dtype, *, leading=(3,), d_q=10, d_k=7, hidden=16, v_dim=5, q_len=9, kv_len=13):
    """Query, key, value, w_query, w_key, w_score, bias."""
    shapes = [(*leading, q_len, d_q), (*leading, kv_len, d_k), (*leading, kv_len, v_dim)]
    shapes += [(d_q, hidden), (d_k, hidden), (hidden,), (hidden,)]
    return make_arrays(*shapes, dtype=dtype)


def formula(query, key, value, w_query, w_key, w_score, bias=0, **same):
    """Projections in long double, then the reference's attention."""
    query, key, value, w_query, w_key, bias = (
        np.asarray(x, np.longdouble) for x in (query, key, value, w_query, w_key, bias)
    )
    same |= {"score": "additive", "score_weight": w_score, "dtype": np.longdouble}
    return reference.attention(query @ w_query + bias, key @ w_key, value, **same)


def allowance(arrays):
    """How far a weight may be off, relatively: twice what its score is, which is first the rounding of the projections.

    That is u times |q||W|, some four times for the length of its sum; tanh makes it no larger. Then it is multiplied
    with w_score, and the score's own rounding comes on top, as bounds.py has it.
    """
    query, key, _, w_query, w_key, w_score, bias = map(np.abs, arrays)
    hidden = (query @ w_query).max(axis=(0, 1)) + (key @ w_key).max(axis=(0, 1)) + bias
    return 2 * 4 * float(np.finfo(arrays[0].dtype).eps / 2) * float(w_score @ (1 + hidden))


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_formula(with_bias, dtype, level):
    *arrays, bias = draw(dtype)
    options = {"bias": bias} if with_bias else {}
    result = pyattn.additive_attention(*arrays, **options, need_weights=True, need_lse=True)
    expected = formula(*arrays, **options)
    slack = allowance([*arrays, bias])
    assert result.output.dtype == dtype
    np.testing.assert_allclose(result.weights, np.float64(expected.weights), rtol=slack)
    np.testing.assert_allclose(result.lse, np.float64(expected.lse), rtol=0, atol=slack)
    np.testing.assert_allclose(result.output, np.float64(expected.output), atol=slack * np.abs(arrays[2]).max())


@pytest.mark.peers
def test_torchs_layers_have_the_same_formula(torch):
    query, key, value, w_query, w_key, w_score, bias = draw("float64")
    q, k, v = map(torch.from_numpy, (query, key, value))
    first, second, last = torch.nn.Linear(10, 16).double(), torch.nn.Linear(7, 16, bias=False).double(), w_score
    with torch.no_grad():
        for parameter, array in ((first.weight, w_query.T), (first.bias, bias), (second.weight, w_key.T)):
            parameter.copy_(torch.from_numpy(array))
        scores = torch.tanh(first(q)[:, :, None] + second(k)[:, None]) @ torch.from_numpy(last)
        expected = torch.softmax(scores, dim=-1) @ v
    output = pyattn.additive_attention(query, key, value, w_query, w_key, w_score, bias)
    np.testing.assert_allclose(output, expected, rtol=1e-12)


def test_the_concat_form_is_one_weight_in_two_parts(dtype):
    """As it is written: both vectors side by side, one matrix, tanh, w_score."""
    query, key, value, w_query, w_key, w_score, _ = draw(dtype)
    w = np.concatenate([w_query, w_key])
    sides = [np.broadcast_to(x, (3, 9, 13, x.shape[-1])) for x in (query[:, :, None], key[:, None])]
    weights = reference.softmax(np.tanh(np.concatenate(sides, axis=-1).astype(np.float64) @ w) @ w_score)
    output = pyattn.additive_attention(query, key, value, *np.split(w, [10]), w_score)
    slack = allowance(draw(dtype)) * np.abs(value).max()
    np.testing.assert_allclose(output, weights @ value.astype(np.float64), rtol=0, atol=slack)


def test_kerass_form_has_no_projections(dtype):
    """sum(scale * tanh(q + k)), as keras.layers.AdditiveAttention writes it."""
    query, _, value, w_query, *_ = draw(dtype)
    key, scale = value @ w_query[:5, :10], w_query[:, 0]
    weights = reference.softmax((scale * np.tanh(query[:, :, None].astype(np.float64) + key[:, None])).sum(axis=-1))
    result = pyattn.additive_attention(query, key, value, None, None, scale, need_weights=True)
    eps = np.finfo(dtype).eps
    size = float(np.abs(scale).sum())  # of a score: bounds.py has 4u (1 + 2A) for each of what it is made of
    np.testing.assert_allclose(result.weights, weights, rtol=4 * eps * (1 + 2 * size))
    np.testing.assert_allclose(
        result.output, weights @ value, rtol=0, atol=8 * eps * (1 + 2 * size) * np.abs(value).max()
    )


def test_without_projections_it_is_attention(dtype):
    query, key, value, w_query, w_key, w_score, bias = draw(dtype)
    queries, keys = pyattn.functional.linear(query, w_query.T, bias), pyattn.functional.linear(key, w_key.T)
    keras = {"score": "additive", "score_weight": w_score}
    rng = np.random.default_rng(1)
    for options in (
        {"attn_mask": rng.random((3, 9, 13)) < 0.7},
        {"attn_mask": rng.standard_normal((9, 13))},
        {"is_causal": True, "align": "lower_right"},
        {"window": (2, 1), "align": "upper_left", "scale": 0.5},
        {"key_lengths": [4, 13, 0], "query_lengths": [9, 1, 9], "empty_rows": "nan"},
        {"dropout_p": 0.3, "rng": 5, "need_weights": True},
        {"dropout_p": 0.3, "keep_mask": rng.random((9, 13)) < 0.7},
        {"need_weights": True, "need_lse": True, "num_threads": 2},
        {"enable_gqa": True},
        {"enable_gqa": True, "layout": "bshd"},
    ):
        arrays = [(queries, keys, value), (query, key, value)]
        if "layout" in options:
            arrays = [[np.moveaxis(x, 0, 1) for x in inputs] for inputs in arrays]
        expected = pyattn.attention(*arrays[0], **keras, **options)
        assert_same_bits(
            pyattn.additive_attention(*arrays[1], w_query, w_key, w_score, bias, **options), expected, options
        )


def test_out_is_what_is_returned(dtype):
    arrays, out = draw(dtype), np.empty((3, 9, 5), dtype)
    assert pyattn.additive_attention(*arrays, out=out) is out
    assert_same_bits(out, pyattn.additive_attention(*arrays))


@pytest.mark.parametrize("kind", HALVES)
@for_each("projected", [True, False])
def test_halves(projected, kind):
    """Computed in float32 and rounded once, except lse; projections are not rounded in between."""
    arrays = draw("float32") if projected else [*draw("float32", d_q=16, d_k=16)[:3], None, None, draw("float32")[5]]
    arrays = [None if x is None else x.astype(HALVES[kind]) for x in arrays]
    wide = pyattn.additive_attention(*map(single, arrays), need_weights=True, need_lse=True)
    found = pyattn.additive_attention(*arrays, need_weights=True, need_lse=True)
    assert_rounded((found.output, found.weights), (wide.output, wide.weights), kind)
    assert_same_bits(found.lse, wide.lse)
    out = np.empty((3, 9, 5), HALVES[kind])
    assert pyattn.additive_attention(*arrays, out=out) is out
    assert_rounded(out, wide.output, kind)
    mixed = [single(arrays[0]), *arrays[1:]]
    assert_same_bits(pyattn.additive_attention(*mixed), wide.output)
    swapped = np.empty((9, 5, 3), HALVES[kind]).transpose(2, 0, 1)
    assert pyattn.additive_attention(*arrays, out=swapped) is swapped
    assert_same_bits(half_bits(swapped), half_bits(out))
    shared = np.lib.stride_tricks.as_strided(np.empty(5, HALVES[kind]), out.shape, (0, 0, 2))
    read_only = out.copy()
    read_only.flags.writeable = False
    for wrong, message in (
        (np.empty(9, HALVES[kind]), r"has shape \(9,\), expected \(3, 9, 5\)"),
        (np.empty(out.shape, np.float32), f"has dtype float32, expected {kind}"),
        (shared, "overlaps itself"),
        (read_only, "is read-only"),
    ):
        with pytest.raises(ValueError, match=f"^out {message}"):
            pyattn.additive_attention(*arrays, out=wrong)


def test_lists_and_integers_become_float64():
    arrays = [np.arange(6).reshape(2, 3), [[1, 2], [3, 4]], [[1], [2]], [[1, 0]] * 3, [[0, 1]] * 2, [1, -1]]
    result = pyattn.additive_attention(*arrays)
    assert_same_bits(result, pyattn.additive_attention(*(np.asarray(x, np.float64) for x in arrays)))


NAMES = ("query", "key", "value", "w_query", "w_key", "w_score", "bias")
GOOD = dict(zip(NAMES, draw("float32"), strict=True))


@for_each(
    ("arguments", "message"),
    [
        ({"query": GOOD["query"][0, 0]}, "query has shape (10,), expected (..., length, embed_dim)"),
        ({"w_key": GOOD["bias"]}, "w_key has shape (16,), expected (embed_dim, dim)"),
        (
            {"w_query": GOOD["w_query"].T},
            "query has shape (3, 9, 10) and w_query has shape (16, 10), expected query (..., length, 16) or w_query "
            "(10, dim)",
        ),
        (
            {"key": GOOD["query"]},
            "key has shape (3, 9, 10) and w_key has shape (7, 16), expected key (..., length, 7) or w_key (10, dim)",
        ),
        ({"w_key": GOOD["w_key"][:, :4]}, "w_query gives 16 features per query, but w_key gives 4 per key"),
        ({"w_score": GOOD["bias"][:, None]}, "w_score has shape (16, 1), expected (16,): w_query and w_key give 16"),
        ({"bias": GOOD["bias"][:3]}, "bias has shape (3,), expected (16,): w_query and w_key give 16 features"),
        ({"value": GOOD["value"][:, :4]}, "value has length 4 but key has 13"),
        (
            {"w_query": None},
            "w_query is None, expected a weight, or None for both w_query and w_key (Keras's form)",
        ),
        ({"w_key": None}, "w_key is None, expected a weight, or None for both w_query and w_key (Keras's form)"),
        (
            {"w_query": None, "w_key": None},
            "bias is given, but w_query and w_key are None; pass both weights, or leave bias out",
        ),
        (
            {"w_query": None, "w_key": None, "bias": None},
            "query has 10 features and key 7; without w_query and w_key they must be equal",
        ),
        (
            {"w_query": None, "w_key": None, "bias": None, "key": GOOD["query"]},
            "w_score has shape (16,), expected (10,): query and key have 10 features",
        ),
        ({"is_causal": True}, "is_causal=True with 9 queries and 13 keys needs align="),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        pyattn.additive_attention(**{**GOOD, **arguments})


@for_each("name", NAMES)
def test_what_is_no_array_of_real_numbers_is_named(name):
    with pytest.raises(
        TypeError, match=rf"^{name} has dtype complex64, expected float16, bfloat16, float32 or float64; pass "
    ):
        pyattn.additive_attention(**{**GOOD, name: GOOD[name] * np.complex64(1j)})


@for_each("name", ["query", "key", "value", "w_score"])
def test_required_arrays_that_are_none_are_named(name):
    for projections in ({}, {"w_query": None, "w_key": None, "bias": None}):
        with pytest.raises(TypeError, match=f"^{name} is an object of type NoneType, expected an array of numbers"):
            pyattn.additive_attention(**{**GOOD, **projections, name: None})

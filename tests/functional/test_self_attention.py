"""self_attention: the article's numbers, the formula in both conventions, and clear words for what does not fit."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn, reference


@pytest.fixture
def matrices(article, dtype):
    return [article[name].astype(dtype) for name in ("x", "w_query", "w_key", "w_value")]


def draw(rng, dtype, *, inputs=(2, 9), contexts=(2, 13), embed_dim=10, d_c=10, key_dim=6, v_dim=4):
    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    x, context = normal(*inputs, embed_dim), normal(*contexts, d_c)
    return x, context, [normal(embed_dim, key_dim), normal(d_c, key_dim), normal(d_c, v_dim)]


def formula(x, context, weights, bias=(0, 0, 0), scale=None, **same):
    """Projections in long double, then the reference's attention."""
    wide = np.longdouble
    q, k, v = (
        np.asarray(one, wide) @ np.asarray(w, wide) + np.asarray(b, wide)
        for one, w, b in zip((x, context, context), weights, bias, strict=True)
    )
    return reference.attention(q, k, v, scale=scale, dtype=wide, **same)


def close(actual, expected, scores):
    """A score is off by some u times its size, |x| |W| of a dozen terms squared; weights by as much again."""
    u = np.finfo(actual.dtype).eps / 2
    np.testing.assert_allclose(
        actual, np.float64(expected), rtol=0, atol=8 * u * (1 + scores) * (1 + abs(expected).max())
    )


def test_the_article(article, matrices, level):
    result = pyattn.self_attention(*matrices, scale=1, need_weights=True)
    exact = np.exp(np.float64(article["scores"]) - np.max(article["scores"], axis=1, keepdims=True))
    exact /= exact.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(result.output, exact @ article["values"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(result.weights, exact, rtol=0, atol=1e-6)
    assert result.output.dtype == matrices[0].dtype


def test_the_article_typed_as_lists(article):
    x, *weights = (article[name].astype(int).tolist() for name in ("x", "w_query", "w_key", "w_value"))
    output = pyattn.self_attention(x, *weights, scale=1)
    assert_same_bits(output, pyattn.attention(article["queries"], article["keys"], article["values"], scale=1.0))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scale", [None, 0.5])
def test_the_formula(bias, scale, dtype, level):
    rng = np.random.default_rng(0)
    x, context, weights = draw(rng, dtype, d_c=7)
    vectors = [rng.standard_normal(w.shape[1]).astype(dtype) for w in weights] if bias else None
    options = {"bias": vectors, "scale": scale, "context": context, "need_weights": True}
    expected = formula(x, context, weights, vectors or (0, 0, 0), scale)
    scores = float(np.abs(x).max() * np.abs(context).max() * np.abs(weights[0]).sum() * np.abs(weights[1]).max())
    actual = pyattn.self_attention(x, *weights, **options)
    close(actual.output, expected[0], scores)
    close(actual.weights, expected[1], scores)
    assert_same_bits(pyattn.self_attention(x, *weights, **{**options, "need_weights": False}), actual.output)


def test_the_column_convention_is_the_transpose(dtype):
    x, context, weights = draw(np.random.default_rng(1), dtype)
    rows = pyattn.self_attention(x, *weights, context=context, need_weights=True)
    turned = [x.swapaxes(-1, -2), *(w.T for w in weights)]
    result = pyattn.self_attention(*turned, context=context.swapaxes(-1, -2), convention="column", need_weights=True)
    assert_same_bits(result.output, rows.output.swapaxes(-1, -2))
    assert_same_bits(result.weights, rows.weights.swapaxes(-1, -2))
    np.testing.assert_allclose(result.weights.sum(axis=-2), 1, rtol=1e-6)


def test_the_options_of_attention(dtype):
    x, _, weights = draw(np.random.default_rng(2), dtype)
    q, k, v = (pyattn.functional.linear(x, w.T) for w in weights)
    mask = np.random.default_rng(3).random((9, 9)) < 0.7
    for options in (
        {"is_causal": True},
        {"window": 2},
        {"key_lengths": [4, 9]},
        {"attn_mask": mask},
        {"attn_mask": np.stack([mask, ~mask])},
        {"attn_mask": np.stack([mask[:1], ~mask[:1]]).tolist()},
        {"attn_mask": np.where(mask, 0.5, -np.inf)[np.newaxis]},
        {"num_threads": 2},
    ):
        assert_same_bits(pyattn.self_attention(x, *weights, **options), pyattn.attention(q, k, v, **options))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("inputs", "contexts"),
    [((0,), None), ((2, 0), None), ((0, 3), None), ((2, 0), (2, 5)), ((0, 3), (0, 5)), ((3,), (0,)), ((2, 3), (2, 0))],
    ids=str,
)
def test_inputs_without_entries(inputs, contexts, columns, dtype):
    x, context, weights = draw(np.random.default_rng(0), dtype, inputs=inputs, contexts=contexts or inputs)
    if columns:
        x, context, weights = x.swapaxes(-1, -2), context.swapaxes(-1, -2), [w.T for w in weights]
    context = None if contexts is None else context
    pair = (inputs[-1], (contexts or inputs)[-1])
    for attend in (
        functools.partial(pyattn.self_attention, w_query=weights[0], w_key=weights[1], w_value=weights[2]),
        nn.SelfAttention.from_arrays(*weights, convention="column" if columns else "row"),
    ):
        options = {"context": context} | (
            {"convention": "column" if columns else "row"} if isinstance(attend, functools.partial) else {}
        )
        output, attended = attend(x, **options, need_weights=True)
        assert (output.swapaxes(-1, -2) if columns else output).shape == (*inputs, 4)
        assert attended.shape == (*inputs[:-1], *(pair[::-1] if columns else pair))
        assert output.dtype == dtype
        assert not output.any()
        assert_same_bits(attend(x, **options), output)


X, CONTEXT, WEIGHTS = draw(np.random.default_rng(0), "float64")


@for_each(
    ("arguments", "message"),
    [
        ({"x": X[0, 0]}, r"x has shape \(10,\), expected \(..., length, embed_dim\)"),
        ({"x": X[0, 0], "convention": "column"}, r"x has shape \(10,\), expected \(..., embed_dim, length\)"),
        (
            {"w_key": WEIGHTS[1].T},
            r"^x has shape \(2, 9, 10\) and w_key has shape \(6, 10\), "
            r"expected x \(..., length, 6\) or w_key \(10, dim\); if its axes are the other way round, pass w_key.T$",
        ),
        (
            {"convention": "column"},
            r"^x has shape \(2, 9, 10\) and w_query has shape \(10, 6\), "
            r"expected x \(..., 6, length\) or w_query \(dim, 9\)$",
        ),
        (
            {"context": CONTEXT[..., :7]},
            r"^context has shape \(2, 13, 7\) and w_key has shape \(10, 6\), "
            r"expected context \(..., length, 10\) or w_key \(7, dim\)$",
        ),
        ({"w_value": WEIGHTS[1][0]}, r"w_value has shape \(6,\), expected \(embed_dim, dim\)"),
        ({"w_query": WEIGHTS[2]}, "w_query gives 4 features per query, but w_key gives 6 per key"),
        ({"bias": (None, None)}, "bias has 2 entries, expected three"),
        ({"bias": (None, X[0, 0], None)}, r"^bias\[1\] has shape \(10,\), expected \(6,\): w_key gives 6 features$"),
        ({"bias": (None, None, WEIGHTS[2][:1])}, r"^bias\[2\] has shape \(1, 4\), expected \(4,\): w_value gives 4"),
        (
            {"context": CONTEXT[:1]},
            r"^context has the leading axes \(1,\), expected \(2,\), those of x; numpy.broadcast_to",
        ),
        (
            {"attn_mask": np.ones((3, 9, 9), bool)},
            r"^attn_mask has shape \(3, 9, 9\), .* to \(2, 9, 9\): \(..., L, S\)$",
        ),
        ({"attn_mask": np.ones((1, 2, 9, 9), bool)}, r"^attn_mask has shape \(1, 2, 9, 9\), .* to \(2, 9, 9\)"),
        (
            {"context": CONTEXT, "attn_mask": np.ones((13, 9), bool)},
            r"^attn_mask has shape \(13, 9\), .* to \(2, 9, 13\)",
        ),
        ({"context": CONTEXT, "is_causal": True}, "is_causal=True with 9 queries and 13 keys needs align="),
    ],
)
def test_mistakes_are_named(arguments, message):
    call = {"x": X, **dict(zip(("w_query", "w_key", "w_value"), WEIGHTS, strict=True)), **arguments}
    with pytest.raises(ValueError, match=message):
        pyattn.self_attention(**call)


def test_a_mask_of_integers_is_refused_with_a_fix_for_what_was_given():
    mask = np.ones((2, 9, 9), int)
    for given, fix in ((mask, "attn_mask.astype(bool)"), (mask.tolist(), "numpy.asarray(attn_mask, bool)")):
        with pytest.raises(
            TypeError, match=f"^attn_mask has dtype int64; pass {re.escape(fix)} if nonzero means attend"
        ):
            pyattn.self_attention(X, *WEIGHTS, attn_mask=given)


def test_a_bias_that_is_a_flag_is_told_to_be_three():
    message = "^bias is of type bool, expected three, for queries, keys and values; each may be None$"
    with pytest.raises(TypeError, match=message):
        pyattn.self_attention(X, *WEIGHTS, bias=True)


def test_a_bias_that_is_no_array_of_numbers_is_named():
    for bias, message in (("text", "is a string: pass"), (np.ones(6) * 1j, "has dtype complex128, expected")):
        with pytest.raises(TypeError, match=rf"^bias\[1\] {message}"):
            pyattn.self_attention(X, *WEIGHTS, bias=(None, bias, None))


@for_each("name", ["x", "context", "w_query", "w_key", "w_value"])
@for_each(
    ("dtype", "message"),
    [
        ("longdouble", "expected float16, bfloat16, float32 or float64; pass {}.astype(numpy.float64)"),
        (
            "complex128",
            "has dtype complex128, expected float16, bfloat16, float32 or float64; pass {}.real.astype(numpy.float64)",
        ),
        ("object", "has dtype object, expected float16, bfloat16, float32 or float64; pass {}.astype(numpy.float64)"),
    ],
)
def test_an_argument_of_another_dtype_is_named_as_its_caller_does(name, dtype, message):
    call = {"x": X, "context": CONTEXT, **dict(zip(("w_query", "w_key", "w_value"), WEIGHTS, strict=True))}
    with pytest.raises(TypeError, match=f"^{name} .*{re.escape(message.format(name))}$"):
        pyattn.self_attention(**{**call, name: call[name].astype(dtype)})


@for_each("name", ["need_weights", "is_causal"])
def test_a_flag_that_is_text_is_refused(name):
    with pytest.raises(TypeError, match=f"^{name} is of type str, expected True or False$"):
        pyattn.self_attention(X, *WEIGHTS, **{name: "no"})

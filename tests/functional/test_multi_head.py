"""The core's multi-head attention: PyTorch's module, its steps' own bits, and clear words for what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.multi_head_twin import multi_head

import pyattn
from pyattn import _core


def draw(rng, dtype, *, batch=2, q_len=7, kv_len=9, inner=12, heads=4, kv_heads=2, dim=8, v_dim=5, out=6):
    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    weights = (normal(heads * dim, inner), normal(kv_heads * dim, inner), normal(kv_heads * v_dim, inner))
    biases = {f"{name}_bias": normal(len(weight)) for name, weight in zip("qkv", weights, strict=True)}
    out_weight = {"out_weight": normal(out, heads * v_dim), "out_bias": normal(out)}
    inputs = normal(batch, q_len, inner), normal(batch, kv_len, inner), normal(batch, kv_len, inner)
    return inputs, weights, {**biases, **out_weight, "heads": heads, "kv_heads": kv_heads}


def step_by_step(inputs, weights, options, **attention):
    heads = options["heads"], options["kv_heads"], options["kv_heads"]
    q, k, v = (
        pyattn.functional.linear(x, weight, options[f"{name}_bias"]).reshape(*x.shape[:-1], n, -1)
        for x, weight, name, n in zip(inputs, weights, "qkv", heads, strict=True)
    )
    result = pyattn.attention(q, k, v, layout="bshd", enable_gqa=True, need_weights=True, **attention)
    side_by_side = result.output.reshape(*result.output.shape[:-2], -1)
    return pyattn.functional.linear(side_by_side, options["out_weight"], options["out_bias"]), result.weights


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "attention", [{}, {"is_causal": True, "align": "lower_right"}, {"window": (2, 3), "scale": 0.3}]
)
def test_it_has_the_bits_of_its_steps(attention, threads, dtype, level):
    rng = np.random.default_rng(threads)
    for sizes in ({}, {"batch": 1, "q_len": 1, "kv_len": 400}, {"q_len": 130, "kv_len": 130, "inner": 200}):
        sizes = {"kv_len": 7, **sizes} if "window" in attention else sizes
        inputs, weights, options = draw(rng, dtype, **sizes)
        if inputs[0].shape[1] != inputs[1].shape[1]:
            attention = {"align": "upper_left", **attention}
        expected = step_by_step(inputs, weights, options, **attention)
        actual = _core.multi_head(*inputs, *weights, **options, **attention, need_weights=True, num_threads=threads)
        assert_same_bits(actual[0], expected[0])
        assert_same_bits(actual[1], expected[1])


@for_each("add_zero", [False, True])
@for_each("extra", [False, True])
@for_each("attention", [{}, {"is_causal": True, "align": "lower_right"}, {"window": 3, "align": "upper_left"}])
def test_equals_the_oracle(attention, extra, add_zero, dtype, level):
    rng = np.random.default_rng([extra, add_zero])
    for sizes in ({}, {"batch": 1, "q_len": 1, "kv_len": 300}, {"q_len": 70, "kv_len": 130, "inner": 100, "heads": 6}):
        inputs, weights, options = draw(rng, dtype, **sizes)
        pair = [rng.standard_normal(len(weight)).astype(dtype) for weight in weights[1:]]
        options |= {"extra_key": pair[0], "extra_value": pair[1]} if extra else {}
        options |= {"add_zero": add_zero, **attention}
        actual = _core.multi_head(*inputs, *weights, **options, need_weights=True)
        for one, other in zip(actual, multi_head(*inputs, *weights, **options), strict=True):
            size = np.abs(other).max()  # inputs are not small, and neither are scores
            np.testing.assert_allclose(one, other, rtol=0, atol=size * (1e-4 if dtype == "float32" else 1e-12))


@pytest.mark.peers
@pytest.mark.parametrize("average", [True, False])
def test_equals_the_module_of_torch(average, dtype, level, torch):
    rng = np.random.default_rng(3)
    embed, heads = 24, 3
    module = torch.nn.MultiheadAttention(embed, heads, batch_first=True, dtype=getattr(torch, dtype)).eval()
    query, key = (rng.standard_normal((2, n, embed)).astype(dtype) for n in (5, 11))
    with torch.no_grad():
        module.in_proj_bias.normal_()
        theirs = module(*map(torch.from_numpy, (query, key, key)), average_attn_weights=average)
        weight, bias = module.in_proj_weight.numpy(), module.in_proj_bias.numpy()
        out = {"out_weight": module.out_proj.weight.numpy(), "out_bias": module.out_proj.bias.numpy()}
    biases = dict(zip(("q_bias", "k_bias", "v_bias"), np.split(bias, 3), strict=True))
    ours = _core.multi_head(
        query, key, key, *np.split(weight, 3), **biases, **out, heads=heads, need_weights=True, average_weights=average
    )
    tolerance = 1e-5 if dtype == "float32" else 1e-13
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == tuple(other.shape)
        np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=tolerance)


def test_axes_in_another_order(dtype):
    inputs, weights, options = draw(np.random.default_rng(0), dtype)
    expected = _core.multi_head(*inputs, *weights, **options)[0]
    turned = [np.asfortranarray(x) for x in inputs], [np.asfortranarray(w) for w in weights]
    assert_same_bits(_core.multi_head(*turned[0], *turned[1], **options)[0], expected)
    batch_last = [np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, 1)), 0, 1) for x in inputs]
    assert_same_bits(_core.multi_head(*batch_last, *weights, **options)[0], expected)


INPUTS, WEIGHTS, OPTIONS = draw(np.random.default_rng(0), "float64")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"key": INPUTS[1][:1]},
            r"key has shape \(1, 9, 12\), expected \(..., length, features\) with the leading axes",
        ),
        ({"value": INPUTS[2][:, :3]}, "value has length 3 but key has 9"),
        ({"heads": 3}, "heads is 3 and kv_heads 2: heads must be a multiple of kv_heads"),
        ({"heads": 0}, "heads is 0 and kv_heads"),
        ({"k_weight": WEIGHTS[1][:, :5]}, r"k_weight has shape \(16, 5\), expected \(2 \* head_dim, 12\)"),
        ({"k_weight": WEIGHTS[2], "k_bias": None}, "q_weight has head_dim 8 but k_weight has 5"),
        ({"out_weight": None}, "out_bias needs out_weight"),
        ({"k_bias": np.zeros(3)}, r"k_bias has shape \(3,\), expected \(16,\): k_weight has shape"),
        ({"out_bias": np.zeros(3)}, r"bias has shape \(3,\), expected \(6,\)"),
        ({"out_weight": WEIGHTS[0]}, r"out_weight has shape \(32, 12\), expected \(out_dim, 20\)"),
        ({"extra_key": np.zeros(16)}, "extra_key and extra_value must be given together"),
        ({"is_causal": True}, "is_causal=True with 7 queries and 9 keys needs align="),
    ],
    ids=lambda x: "" if isinstance(x, dict) else x[:30],
)
def test_mistakes_are_named(arguments, message):
    names = ("query", "key", "value", "q_weight", "k_weight", "v_weight")
    call = {**dict(zip(names, (*INPUTS, *WEIGHTS), strict=True)), **OPTIONS, **arguments}
    required = [call.pop(name) for name in names]
    with pytest.raises(ValueError, match=message):
        _core.multi_head(*required, **call)


def test_weights_on_top_of_one_another_are_three():
    rng = np.random.default_rng(0)
    x, weight, bias = rng.standard_normal((5, 4)), rng.standard_normal((12, 4)), rng.standard_normal(12)
    expected = _core.multi_head(x, x, x, *np.split(weight, 3), None, *np.split(bias, 3), heads=2)[0]
    assert_same_bits(_core.multi_head(x, x, x, weight, None, None, None, bias, heads=2)[0], expected)
    with pytest.raises(ValueError, match=r"in_proj_weight stacks .* must have a multiple of 3 rows, and has 11"):
        _core.multi_head(x, x, x, weight[:11], heads=1)
    with pytest.raises(ValueError, match="in_proj_bias stacks the rows of query, key and value"):
        _core.multi_head(x, x, x, weight, q_bias=bias, k_bias=bias[:4], heads=1)
    with pytest.raises(ValueError, match=r"k_weight|v_weight|value"):
        _core.multi_head(x, x, x, weight, weight[:4], heads=1)

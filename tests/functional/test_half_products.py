"""Linear layers, feed-forward and multi-head attention with half precision for x, for the weights, or for both."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from support.halves import HALVES, assert_rounded, single
from support.helpers import assert_same_bits, for_each, normal

import pyattn._core as _core
from pyattn import functional

ROWS = (1, 2, 3, 5, 8, 9, 16, 17, 48, 49, 100, 300)
SIZES = ((1, 1), (7, 5), (64, 64), (100, 37), (130, 300), (257, 1025))
ORDERS = {
    "out, in": np.ascontiguousarray,
    "in, out": np.asfortranarray,
    "neither": lambda w: np.repeat(np.repeat(w, 2, 0), 3, 1)[::2, ::3],
}

pytestmark = pytest.mark.parametrize("kind", HALVES)


def check(function, others, weights, kind):
    """`others` and `weights` as float32, the weights as halves, and everything as halves."""
    expected = function(**{name: single(x) for name, x in {**others, **weights}.items()})
    mixed = function(**{name: single(x) for name, x in others.items()}, **weights)
    assert_same_bits(mixed, expected)
    assert_rounded(function(**others, **weights), expected, kind)


@for_each("order", ORDERS)
@for_each("threads", [1, 2])
def test_linear(order, threads, kind, level):
    """Every form of the product, with and without what follows it."""
    half = HALVES[kind]
    linear = partial(functional.linear, num_threads=threads)
    for inner, features in SIZES:
        weight = ORDERS[order](normal(features, inner, seed=1).astype(half))
        bias = normal(features, seed=2).astype(half)
        for rows in ROWS:
            x, y = normal(rows, inner).astype(half), normal(2, rows, features, seed=3).astype(half)
            check(linear, {"x": x}, {"weight": weight}, kind)
            others, weights = {"x": x[::-1], "gate": y[0], "residual": y[1]}, {"weight": weight, "bias": bias}
            check(partial(linear, activation="gelu"), others, weights, kind)


def test_strided_rows(kind, level):
    half = HALVES[kind]
    weight, out = normal(30, 20, seed=1).astype(half), np.zeros((2, 5, 30), half)
    x = normal(20, 5, 2).astype(half).T
    expected = functional.linear(single(x), single(weight)).astype(half)
    assert functional.linear(x, weight, out=out) is out
    assert_same_bits(out.view(np.uint16), expected.view(np.uint16))
    assert functional.linear(x, weight, residual=out, out=out) is out
    again = functional.linear(single(x), single(weight), residual=single(expected)).astype(half)
    assert_same_bits(out.view(np.uint16), again.view(np.uint16))


@for_each("gated", [False, True])
@for_each("order", ORDERS)
def test_feed_forward(order, gated, kind, level):
    half = HALVES[kind]
    turn = ORDERS[order]
    weights = {"in_weight": turn(normal(96, 32, seed=1)), "in_bias": normal(96, seed=2)}
    weights |= {"out_weight": turn(normal(32, 96, seed=3) / 8), "out_bias": normal(32, seed=4)}
    if gated:
        weights |= {"gate_weight": turn(normal(96, 32, seed=5)), "gate_bias": normal(96, seed=6)}
    weights = {name: w.astype(half) for name, w in weights.items()}
    for rows in (1, 7, 60):
        x = normal(2, rows, 32).astype(half)
        check(partial(functional.feed_forward, activation="silu"), {"x": x, "residual": x[::-1]}, weights, kind)


@for_each("order", ORDERS)
@for_each("projects", [True, False])
@for_each("lengths", [(1, 1), (5, 7), (70, 70), (800, 70)])
def test_multi_head(order, projects, lengths, kind, level):
    """Rounded once: the projections and the heads between are float32."""
    half, (q_len, kv_len) = HALVES[kind], lengths
    turn = ORDERS[order]
    weights = {
        f"{n}_weight": turn(normal(size, 32, seed=k) / 3)
        for k, (n, size) in enumerate(zip("qkv", (32, 16, 16), strict=True))
    }
    weights |= {f"{n}_bias": normal(size, seed=k) for k, (n, size) in enumerate(zip("qkv", (32, 16, 16), strict=True))}
    weights |= {"extra_key": normal(16, seed=8), "extra_value": normal(16, seed=9)}
    if projects:
        weights |= {"out_weight": turn(normal(32, 32, seed=6)), "out_bias": normal(32, seed=7)}
    weights = {name: w.astype(half) for name, w in weights.items()}
    names = ("query", "key", "value")
    inputs = {
        name: normal(2, n, 32, seed=n).astype(half) for name, n in zip(names, (q_len, kv_len, kv_len), strict=True)
    }
    for more in ({}, {"need_weights": True}, {"need_weights": True, "average_weights": True}):
        check(partial(_core.multi_head, heads=4, kv_heads=2, **more), inputs, weights, kind)


@for_each("separate", [False, True])
def test_torchs_signature(separate, kind, level):
    """Rounded once where all arrays are halves; float32 and one half give float32."""
    half = HALVES[kind]
    function = functional.multi_head_attention_forward
    inputs = {name: normal(5, 2, 8, seed=n).astype(half) for n, name in enumerate(("query", "key", "value"))}
    weights = {"in_proj_bias": normal(24, seed=3), "out_proj_weight": normal(8, 8, seed=4)}
    weights |= {"out_proj_bias": normal(8, seed=5), "bias_k": normal(1, 1, 8, seed=6), "bias_v": normal(1, 1, 8)}
    if separate:
        weights |= {f"{n}_proj_weight": normal(8, 8, seed=k) for k, n in enumerate("qkv")}
    else:
        weights["in_proj_weight"] = normal(24, 8, seed=7)
    weights = {name: w.astype(half) for name, w in weights.items()}
    options = {"embed_dim_to_check": 8, "num_heads": 2, "add_zero_attn": False, "dropout_p": 0.0}
    options |= {"use_separate_proj_weight": separate} | ({"in_proj_weight": None} if separate else {})
    mask = np.where(np.tri(5), 0, -np.inf).astype(half)
    check(partial(function, **options, attn_mask=mask), inputs, weights, kind)
    static = {"static_k": normal(4, 7, 4, seed=8).astype(half), "static_v": normal(4, 7, 4, seed=9).astype(half)}
    others = {name: w for name, w in weights.items() if name not in ("bias_k", "bias_v")}
    check(partial(function, **options, bias_k=None, bias_v=None), inputs | static, others, kind)
    other = HALVES["bfloat16" if kind == "float16" else "float16"]
    with pytest.raises(TypeError, match=f"query has dtype {half} and value {other}; convert one of them"):
        function(**options, **weights, **{**inputs, "value": inputs["value"].astype(other)})
    with pytest.raises(TypeError, match=r"key has dtype float64, expected float32; pass key.astype\(numpy.float32\)"):
        function(**options, **weights, **{**inputs, "key": inputs["key"].astype(np.float64)})


def test_wider_arrays_make_the_result_wider(kind):
    half = HALVES[kind]
    x, weight = normal(4, 8).astype(half), normal(6, 8, seed=1)
    assert_same_bits(functional.linear(x, weight), functional.linear(single(x), weight))
    assert functional.linear(x, weight.astype(np.float64)).dtype == np.float64
    other = HALVES["bfloat16" if kind == "float16" else "float16"]
    with pytest.raises(TypeError, match=f"x has dtype {half} and weight {other}; convert one of them"):
        functional.linear(x, weight.astype(other))

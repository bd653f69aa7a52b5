"""Functions of rows in half precision: f(half) is f(half.astype(float32)).astype(half), bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from support.halves import HALVES, assert_rounded, half_bits
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import functional

SHAPES = [(1,), (3, 17), (2, 5, 64), (700, 130), (2, 100_003)]
FUNCTIONS = {
    "softmax": functional.softmax,
    "softmax, first axis": lambda x: functional.softmax(x, axis=0),
    "log_softmax": functional.log_softmax,
    "gelu": functional.gelu,
    "gelu, tanh": lambda x: functional.gelu(x, "tanh"),
    "silu": functional.silu,
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1]),
    "layer_norm, everything": lambda x: functional.layer_norm(
        x, x.shape[-1], x.reshape(-1, x.shape[-1])[0], x.reshape(-1, x.shape[-1])[-1], residual=x[::-1], need_sum=True
    ),
    "rms_norm": lambda x: functional.rms_norm(x, x.shape[-1], x.reshape(-1, x.shape[-1])[0]),
    "dropout": lambda x: functional.dropout(x, 0.3, rng=5),
    "dropout of nothing": lambda x: functional.dropout(x, 0.0),
    "rms_norm, residual": lambda x: functional.rms_norm(x, x.shape[-1], eps=1e-6, residual=x),
}

pytestmark = pytest.mark.parametrize("kind", HALVES)


@for_each("shape", SHAPES)
@for_each("name", FUNCTIONS)
def test_the_result_is_rounded(name, shape, kind, level):
    x = (normal(*shape) * 3).astype(HALVES[kind])
    assert_rounded(FUNCTIONS[name](x), FUNCTIONS[name](x.astype(np.float32)), kind)


@for_each("name", FUNCTIONS)
def test_any_strides_and_special_numbers(name, kind, level):
    x = (normal(40, 66) * 3).astype(HALVES[kind])
    x[3, 5], x[4, 6], x[5, 7], x[6] = np.nan, np.inf, -np.inf, np.finfo(np.float16).tiny / 8
    function = FUNCTIONS[name]
    for view in (x.T, x[::-2, ::3], x[:, None].swapaxes(0, 2)):
        assert_rounded(function(view), function(view.astype(np.float32)), kind)


def test_every_number(kind, level):
    x = np.arange(1 << 16, dtype=np.uint16).view(HALVES[kind])
    for function in (functional.gelu, functional.silu):
        assert_rounded(function(x), function(x.astype(np.float32)), kind)


def test_with_float32_the_result_is_float32(kind, level):
    x, weight = normal(5, 40), normal(40).astype(HALVES[kind])
    wide = weight.astype(np.float32)
    assert_same_bits(functional.layer_norm(x, 40, weight, weight), functional.layer_norm(x, 40, wide, wide))
    residual = normal(5, 40, seed=1).astype(HALVES[kind])
    assert_same_bits(
        functional.rms_norm(x, 40, residual=residual), functional.rms_norm(x, 40, residual=residual.astype(np.float32))
    )
    half = x.astype(HALVES[kind])
    found, total = functional.layer_norm(half, 40, wide, residual=residual, need_sum=True)
    single = half.astype(np.float32), residual.astype(np.float32)
    expected = functional.layer_norm(single[0], 40, wide, residual=single[1], need_sum=True)
    for one, other in zip((found, total), expected, strict=True):
        assert_same_bits(one, other)


@for_each("parts", [1, 2, 5])
def test_parts_are_merged(parts, kind, level):
    outputs = [(normal(3, 20, 33, seed=n) * 2).astype(HALVES[kind]) for n in range(parts)]
    lses = [normal(3, 20, seed=10 + n) for n in range(parts)]
    lses[0][1] = -np.inf
    output, lse = pyattn.merge_states(outputs, lses)
    expected = pyattn.merge_states([x.astype(np.float32) for x in outputs], lses)
    assert_rounded(output, expected[0], kind)
    assert_same_bits(lse, expected[1])
    double = pyattn.merge_states(outputs, [x.astype(np.float64) for x in lses])
    assert [x.dtype for x in double] == [np.float64] * 2


@for_each("options", [{}, {"interleaved": True}, {"layout": "bshd", "offset": 7}, {"rotary_dim": 12}])
def test_rotary_embedding(options, kind, level):
    x = normal(2, 5, 40, 34).astype(HALVES[kind])
    for view in (x, x.swapaxes(1, 2), x[..., ::-1]):
        assert_rounded(
            functional.rotary_embedding(view, **options),
            functional.rotary_embedding(view.astype(np.float32), **options),
            kind,
        )
    expected = functional.rotary_embedding(x, **options)
    assert functional.rotary_embedding(x, **options, out=x) is x
    assert_same_bits(half_bits(x), half_bits(expected))


def test_embedding(kind, level):
    """Without a scale or residual rows are copied bit for bit, denormals and all."""
    weight = normal(50, 70).astype(HALVES[kind])
    weight[7] = np.arange(1, 71, dtype=np.uint16).view(HALVES[kind])
    ids, wide = np.random.default_rng(0).integers(0, 50, (4, 9)), weight.astype(np.float32)
    residual = normal(9, 70, seed=1).astype(HALVES[kind])
    for turned in (weight, np.asfortranarray(weight), np.repeat(weight, 2, 1)[:, ::2]):
        assert_same_bits(functional.embedding(ids, turned).view(np.uint16), weight[ids].view(np.uint16))
        for options in ({"scale": 2.5}, {"residual": residual}, {"scale": 0.3, "residual": residual[:, :1]}):
            single = {name: np.float32(x) if name == "residual" else x for name, x in options.items()}
            assert_rounded(
                functional.embedding(ids, turned, **options), functional.embedding(ids, wide, **single), kind
            )
            mixed = functional.embedding(ids, turned, **(options | {"residual": single.get("residual", np.float32(0))}))
            assert_same_bits(mixed, functional.embedding(ids, wide, **({"residual": np.float32(0)} | single)))
    out = np.empty((4, 9, 70), HALVES[kind])
    assert functional.embedding(ids, weight, scale=2, out=out) is out
    assert_rounded(out, functional.embedding(ids, wide, scale=2), kind)


def test_largest_elements(kind, level):
    x = normal(40, 130).astype(HALVES[kind])
    x[3, 5], x[4, 6] = np.nan, np.inf
    wide = x.astype(np.float32)
    assert_same_bits(functional.argmax(x), functional.argmax(wide))
    found, expected = functional.topk(x, 7), functional.topk(wide, 7)
    assert_rounded(found.values, expected.values, kind)
    assert_same_bits(found.indices, expected.indices)


def test_two_kinds_of_half_are_refused(kind):
    arrays = [np.ones((2, 3), half) for half in HALVES.values()]
    with pytest.raises(TypeError, match=r"outputs\[0\] has dtype float16 and outputs\[1\] bfloat16; convert one"):
        pyattn.merge_states(arrays, [np.zeros(2)] * 2)
    with pytest.raises(TypeError, match="x has dtype float16 and residual bfloat16; convert one"):
        functional.layer_norm(arrays[0], 3, residual=arrays[1])

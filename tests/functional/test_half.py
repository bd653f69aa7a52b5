"""float16 and bfloat16 are storage: f(half) is f(half.astype(float32)).astype(half), bit for bit."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.halves import HALVES
from support.helpers import assert_same_bits, for_each

import pyattn

SIZES = {
    "prefill": (5, 33, 200, 40),
    "aligned": (2, 64, 128, 64),
    "decode": (4, 1, 300, 64),
    "few": (1, 3, 70, 5),
    "five keys": (1, 4, 5, 8),
}
OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True, "align": "lower_right"},
    "window": {"window": (20, 3), "align": "lower_right"},
    "lengths": {"key_lengths": [3], "empty_rows": "nan"},
    "cosine": {"score": "cosine"},
    "distance": {"score": "distance"},
    "bilinear": {"score": "bilinear"},
    "additive": {"score": "additive"},
    "dropout": {"dropout_p": 0.3, "rng": 3},
    "steep": {"scale": 300.0},
}


def draw(kind, heads, q_len, kv_len, dim):
    rng = np.random.default_rng(0)
    shapes = (1, heads, q_len, dim), (1, heads, kv_len, dim), (1, heads, kv_len, dim)
    return [rng.standard_normal(shape, dtype=np.float32).astype(HALVES[kind]) for shape in shapes]


def check(arrays, **options):
    kind = arrays[0].dtype
    wide = [array.astype(np.float32) for array in arrays]
    single = {name: x.astype(np.float32) if name == "score_weight" else x for name, x in options.items()}
    with np.errstate(over="ignore"):
        expected = pyattn.attention(*wide, need_weights=True, need_lse=True, **single)
        rounded = [expected.output.astype(kind), expected.weights.astype(kind), expected.lse]
    result = pyattn.attention(*arrays, need_weights=True, need_lse=True, **options)
    assert [part.dtype for part in result] == [kind, kind, np.float32]
    for one, other in zip(result, rounded, strict=True):
        assert_same_bits(
            one if one.itemsize > 2 else one.view(np.uint16), other if other.itemsize > 2 else other.view(np.uint16)
        )
    assert_same_bits(pyattn.attention(*arrays, **options).view(np.uint16), rounded[0].view(np.uint16))


@for_each("sizes", SIZES)
@for_each("options", OPTIONS)
@pytest.mark.parametrize("kind", HALVES)
def test_halves_are_floats_in_memory(kind, options, sizes, level):
    arrays, given = draw(kind, *SIZES[sizes]), dict(OPTIONS[options])
    if options in ("bilinear", "additive"):
        given["score_weight"] = weight_of(options, arrays[0])
    check(arrays, **given)


def weight_of(score, query):
    dim = query.shape[-1]
    weight = np.random.default_rng(1).standard_normal((dim, dim) if score == "bilinear" else dim)
    return (weight / dim**0.5).astype(query.dtype)


@for_each("score", ["bilinear", "additive"])
@pytest.mark.parametrize("kind", HALVES)
def test_a_score_weight_of_float32_makes_the_result_float32(kind, score, level):
    """In a cache, too, whose queries are half precision as well."""
    query, key, value = draw(kind, 2, 5, 40, 24)
    weight = weight_of(score, query)
    wide = [x.astype(np.float32) for x in (query, key, value, weight)]
    expected = pyattn.attention(*wide[:3], score=score, score_weight=wide[3])
    found = pyattn.attention(query, key, value, score=score, score_weight=wide[3])
    assert_same_bits(found, expected)
    cache = pyattn.KVCache(1, 2, 24, dtype=kind)
    cache.append(0, key, value)
    assert_same_bits(cache.attend(0, query, score=score, score_weight=wide[3]), expected)
    rounded = cache.attend(0, query, score=score, score_weight=weight)
    assert_same_bits(rounded.view(np.uint16), expected.astype(HALVES[kind]).view(np.uint16))


@pytest.mark.parametrize("kind", HALVES)
def test_any_strides(kind, level):
    query, key, value = draw(kind, 3, 20, 150, 33)
    for turn in (
        lambda a: a.swapaxes(-1, -2).copy().swapaxes(-1, -2),
        lambda a: np.repeat(a, 2, -1)[..., ::2],
        lambda a: np.flip(np.flip(a, -2).copy(), -2),
        lambda a: a[..., ::-1],
    ):
        check([turn(query), turn(key), turn(value)])


@pytest.mark.parametrize("kind", HALVES)
def test_every_number_survives(kind, level):
    """Each of the 65,536 numbers, as the one value that a query sees."""
    value = np.arange(1 << 16, dtype=np.uint16).view(HALVES[kind]).reshape(1, 1, 256, 256)
    query = np.zeros((1, 1, 256, 8), HALVES[kind])
    mask = np.eye(256, dtype=bool)
    given = value.astype(np.float32)
    output = pyattn.attention(query, query, value, attn_mask=mask).astype(np.float32)
    finite = np.isfinite(given).all(-1)
    normal = np.where(np.abs(given) < np.finfo(np.float32).tiny, 0, given)  # the core's arithmetic has no denormals
    assert_same_bits(output[finite] + np.float32(0), normal[finite] + np.float32(0))  # -0 becomes 0 in a sum
    assert_same_bits(np.isnan(output), np.isnan(given))


@pytest.mark.parametrize("kind", HALVES)
def test_nan_and_infinities(kind, level):
    query, key, value = draw(kind, 2, 40, 200, 24)
    value[..., 70, 3] = np.nan
    value[..., 71, 4] = np.inf
    mask = np.random.default_rng(1).random((40, 200)) < 0.7
    check([query, key, value], attn_mask=mask)
    check([query, key, value], is_causal=True, align="lower_right")


@pytest.mark.parametrize("kind", HALVES)
def test_with_float32_the_result_is_float32(kind, level):
    query, key, value = draw(kind, 2, 17, 90, 16)
    wide = query.astype(np.float32)
    mixed = pyattn.attention(wide, key, value)
    assert mixed.dtype == np.float32
    assert_same_bits(mixed, pyattn.attention(wide, key.astype(np.float32), value.astype(np.float32)))


@pytest.mark.parametrize("kind", HALVES)
def test_torchs_signature(kind, level):
    query, key, value = draw(kind, 2, 17, 90, 16)
    for options in ({}, {"is_causal": True}, {"attn_mask": np.tri(17, 90, dtype=HALVES[kind])}):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pyattn.MaskWarning)
            output = pyattn.scaled_dot_product_attention(query, key, value, **options)
        single = [x.astype(np.float32) for x in (query, key, value)]
        align = {"align": "upper_left"} if "is_causal" in options else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pyattn.MaskWarning)
            expected = pyattn.attention(*single, **options, **align).astype(HALVES[kind])
        assert_same_bits(output.view(np.uint16), expected.view(np.uint16))
    with pytest.raises(TypeError, match=f"key has dtype float32, expected {kind}"):
        pyattn.scaled_dot_product_attention(query, key.astype(np.float32), value)


def test_two_kinds_of_half_are_refused():
    arrays = [draw(kind, 1, 4, 4, 4)[0] for kind in HALVES]
    with pytest.raises(TypeError, match="query has dtype float16 and key bfloat16; convert one of them"):
        pyattn.attention(arrays[0], arrays[1], arrays[1])


@pytest.mark.parametrize("kind", HALVES)
def test_masks_and_out(kind, level):
    query, key, value = draw(kind, 2, 40, 100, 16)
    mask = np.random.default_rng(1).standard_normal((40, 100)).astype(HALVES[kind])
    check([query, key, value], attn_mask=mask)
    out = np.empty((1, 2, 40, 16), HALVES[kind])
    assert pyattn.attention(query, key, value, out=out) is out
    assert_same_bits(out.view(np.uint16), pyattn.attention(query, key, value).view(np.uint16))
    assert_same_bits(
        pyattn.attention(query, key, value, attn_mask=mask).view(np.uint16),
        pyattn.attention(query, key, value, attn_mask=mask.astype(np.float32)).view(np.uint16),
    )

"""Tangents of attention: what the drawn cases (test_attention_jvp_drawn.py) do not have, and promises.

Dropout, bilinear scores, halves, large masks; agreement with attention_backward; the same bits; NaN that is hidden; bad
input.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import pyattn
from pyattn import _core
from pyattn.functional import attention_backward, attention_jvp

RNG = np.random.default_rng(23)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers():
    """Each test draws the same numbers, whichever ran before."""
    RNG.bit_generator.state = START


SCORES = ("dot", "cosine", "distance", "additive")
ALL_SCORES = (*SCORES, "bilinear")
NAMES = ("query", "key", "value", "attn_mask")


def numbers(*shape, dtype=np.float64):
    return RNG.standard_normal(shape).astype(dtype)


def of_score(score, features, dtype=np.float64):
    """The options of a score function."""
    shape = {"additive": (features,), "bilinear": (features, features)}.get(score)
    return {"score": score, "score_weight": None if shape is None else numbers(*shape, dtype=dtype) / 2}


def small(dtype=np.float64, heads=2, q_len=70, kv_len=130):
    """Query, key and value that fill several blocks of queries and of keys, none of them evenly."""
    return [numbers(2, heads, n, d, dtype=dtype) for n, d in ((q_len, 12), (kv_len, 12), (kv_len, 9))]


def tiny():
    return [numbers(2, 3, 4), numbers(2, 5, 4), numbers(2, 5, 3)]


def along(*arrays):
    """Draw a tangent of each array."""
    return [numbers(*x.shape, dtype=x.dtype) for x in arrays]


def numeric(attend, arrays, tangents, step=1e-4):
    """The derivative of an output, by central differences of the fourth order in float64."""

    def at(t):
        return attend(*(x + t * tangent for x, tangent in zip(arrays, tangents, strict=True)))

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


@pytest.mark.parametrize("dropped", [{}, {"rng": 3}, {"keep_mask": RNG.random((2, 3, 5)) < 0.6}], ids=str)
@pytest.mark.parametrize("dropout_p", [0.4, 1.0])
@pytest.mark.parametrize("score", ALL_SCORES)
def test_dropout(score, dropped, dropout_p):
    q, k, v = tiny()
    bias, options = numbers(3, 5), {"dropout_p": dropout_p if dropped else 0, **dropped, **of_score(score, 4)}
    arrays = (q, k, v, bias)
    tangents = along(*arrays)

    def attend(q, k, v, bias):
        return pyattn.attention(q, k, v, attn_mask=bias, scale=0.7, **options)

    options_of_jvp = {"attn_mask": bias, "tangent_attn_mask": tangents[3], "scale": 0.7, **options}
    output, tangent = attention_jvp(q, k, v, *tangents[:3], **options_of_jvp)
    np.testing.assert_array_equal(output, attend(*arrays))
    np.testing.assert_allclose(tangent, numeric(attend, arrays, tangents), atol=1e-10)


@pytest.mark.parametrize("score", ALL_SCORES)
def test_tangents_that_are_not_given_are_0(score):
    q, k, v = small()
    bias, options = numbers(70, 130), of_score(score, 12)
    tangents = dict(zip(NAMES, along(q, k, v, bias), strict=True))
    for count in range(5):
        for names in itertools.combinations(NAMES, count):
            given = {f"tangent_{name}": tangents[name] for name in names}
            zeros = {f"tangent_{name}": tangents[name] * (name in names) for name in NAMES}
            _, found = attention_jvp(q, k, v, attn_mask=bias, **given, **options)
            np.testing.assert_allclose(found, attention_jvp(q, k, v, attn_mask=bias, **zeros, **options)[1], atol=1e-14)
            assert found.any() == (count > 0)


@pytest.mark.parametrize("dropped", [{}, {"dropout_p": 0.3, "rng": 5}], ids=["all", "dropped"])
@pytest.mark.parametrize("score", ALL_SCORES)
def test_forward_and_reverse_mode_agree(score, dropped):
    """The product of a tangent and a gradient is the same from either side."""
    q, k, v = small()
    bias = np.where(RNG.random((70, 130)) < 0.2, -np.inf, numbers(70, 130))
    options = {"attn_mask": bias, "window": (40, 20), "align": "lower_right", **dropped, **of_score(score, 12)}
    tangents = along(q, k, v, bias)
    output, tangent = attention_jvp(q, k, v, *tangents[:3], tangent_attn_mask=tangents[3], **options)
    up = numbers(*output.shape)
    lse = pyattn.attention(q, k, v, need_lse=True, **options).lse
    grad = attention_backward(up, q, k, v, output, lse, need=NAMES, **options)
    products = [g * t for g, t in zip(grad, tangents, strict=True)]
    scale = sum(np.abs(x).sum() for x in products)
    assert abs((up * tangent).sum() - sum(x.sum() for x in products)) <= 1e-14 * scale


def test_the_tangent_is_that_of_jax(jax):
    """Of its own attention, in float32: both are as far from float64 as their rounding."""
    q, k, v = (numbers(2, n, 3, 8, dtype=np.float32) for n in (20, 30, 30))
    tangents = along(q, k, v)
    known, expected = jax.jvp(jax.nn.dot_product_attention, (q, k, v), tuple(tangents))
    output, tangent = attention_jvp(q, k, v, *tangents, layout="bshd")
    np.testing.assert_allclose(output, known, atol=3e-6)
    np.testing.assert_allclose(tangent, expected, atol=2e-5)


@pytest.mark.threads
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("score", ALL_SCORES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (4, 1), (1, 1)])
def test_the_same_bits_for_any_threads_batch_and_memory_order(levels, threads, heads, kv_heads, score):
    q = numbers(2, heads, 200, 16, dtype=np.float32)
    k, v = numbers(2, kv_heads, 300, 16, dtype=np.float32), numbers(2, kv_heads, 300, 8, dtype=np.float32)
    bias = numbers(heads, 1, 300, dtype=np.float32)
    *tangents, of_bias = along(q, k, v, bias)
    options = {"attn_mask": bias, "tangent_attn_mask": of_bias, "is_causal": True, "align": "lower_right"}
    options |= {"dropout_p": 0.2, "rng": 7, **of_score(score, 16, np.float32)}
    bits = set()
    for level in levels:
        _core._set_isa(level)
        known = attention_jvp(q, k, v, *tangents, **options, num_threads=1)[1]
        found = attention_jvp(q, k, v, *tangents, **options, num_threads=threads)[1]
        ordered = [np.asfortranarray(x) for x in (q, k, v, *tangents)]
        options_in_order = options | {"tangent_attn_mask": np.asfortranarray(of_bias), "num_threads": threads}
        in_order = attention_jvp(*ordered, **options_in_order)[1]
        one_entry = attention_jvp(*(x[:1] for x in (q, k, v, *tangents)), **options)[1]
        np.testing.assert_array_equal(found, known)
        np.testing.assert_array_equal(in_order, known)
        np.testing.assert_array_equal(one_entry, known[:1])
        if level != "scalar":  # it lacks fused multiply-add
            bits.add(known.tobytes())
    assert len(bits) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["query", "key", "value", "tangent_query", "tangent_key", "tangent_value"])
@pytest.mark.parametrize("score", SCORES)
def test_what_is_hidden_adds_nothing(levels, score, bad, which):
    """Padded keys, and pairs of a mask: their rows may hold anything."""
    mask = RNG.random((70, 130)) < 0.7
    mask[33:, 60:62] = False  # only query 10 sees keys 60 and 61
    mask[:33, 60:62] = False
    mask[10, 60:62] = True
    options = {"attn_mask": mask, "key_lengths": [130, 90], **of_score(score, 12)}
    names = ("query", "key", "value")
    arrays = dict(zip(names, small(), strict=True))
    arrays |= {f"tangent_{name}": x for name, x in zip(names, along(*arrays.values()), strict=True)}
    changed = {**arrays, which: arrays[which].copy()}
    changed[which][:, :, 10 if "query" in which else 60] = bad
    changed[which][1, :, 100:] = bad
    others = np.r_[:10, 11:70]
    for level in levels:
        _core._set_isa(level)
        clean, found = (attention_jvp(**given, **options)[1] for given in (arrays, changed))
        assert np.isfinite(clean).all()
        np.testing.assert_array_equal(found[:, :, others], clean[:, :, others])
        sees_it = not np.isfinite(found[:, :, 10]).all()
        assert sees_it or (np.isinf(bad) and which in ("query", "key") and score in ("distance", "additive"))


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("score", SCORES)
def test_rows_that_see_nothing_have_tangents_of_0(score, bad):
    q, k, v = small()
    mask, of_mask = numbers(70, 130), numbers(70, 130)
    mask[5], of_mask[5] = -np.inf, bad
    tangents = along(q, k, v)
    q[:, :, 5] = tangents[0][:, :, 5] = bad
    options = {"attn_mask": mask, "tangent_attn_mask": of_mask, **of_score(score, 12)}
    _, found = attention_jvp(q, k, v, *tangents, **options)
    assert not found[:, :, 5].any()
    assert np.isfinite(found).all()
    assert found[:, :, 6].all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [-1e4, 1e4, -1e9])
@pytest.mark.parametrize("score", SCORES)
def test_a_large_mask_on_all_keys_changes_nothing(dtype, offset, levels, score):
    """The logsumexp then has few digits, or none: weights from it alone would be wrong by any factor."""
    q, k, v = small(dtype)
    error = {np.float32: 1e-2, np.float64: 1e-5}[dtype]
    options, tangents = of_score(score, 12, dtype), along(q, k, v)
    if abs(offset) > 1e5 and dtype == np.float32:  # no score is left beside it
        q = np.zeros_like(q)
        k = np.zeros_like(k) if score in ("distance", "additive") else k
    known = attention_jvp(q, k, v, *tangents, **options)[1]
    for level in levels:
        _core._set_isa(level)
        mask = np.full((70, 1), offset, dtype)
        np.testing.assert_allclose(attention_jvp(q, k, v, *tangents, attn_mask=mask, **options)[1], known, atol=error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", SCORES)
def test_a_tangent_of_all_scores_alike_is_0(dtype, score, levels):
    """A softmax does not change when a number is added to its row: what is left is the rounding of c O."""
    q, k, v = small(dtype)
    of_mask = np.full((70, 1), 3.0, dtype)
    for level in levels:
        _core._set_isa(level)
        mask = np.zeros((70, 1), dtype)
        options = {"attn_mask": mask, "tangent_attn_mask": of_mask, **of_score(score, 12, dtype)}
        output, found = attention_jvp(q, k, v, **options)
        assert np.abs(found).max() <= 64 * np.finfo(dtype).eps * np.abs(v).max()
        assert output.any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_of_zeros_has_a_cosine_tangent_of_0(dtype, levels):
    """Its score is the constant 0: its own tangent adds nothing."""
    q, k, v = small(dtype)
    q[:, :, 5], k[:, :, 7] = 0, 0
    of_q, of_k, _ = along(q, k, v)
    for level in levels:
        _core._set_isa(level)
        _, found = attention_jvp(q, k, v, of_q, score="cosine")
        assert not found[:, :, 5].any()
        assert found[:, :, 6].all()
        of_others = of_k.copy()
        of_others[:, :, 7] = 0
        _, all_keys = attention_jvp(q, k, v, None, of_k, score="cosine")
        np.testing.assert_array_equal(all_keys, attention_jvp(q, k, v, None, of_others, score="cosine")[1])


@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_distance_tangents_do_not_cancel(shift, levels):
    """Queries and keys that lie far from 0, yet close to each other: shifting both changes nothing."""
    q, k, v = small(np.float32)
    q, k = (np.round(x * 16) / 16 for x in (q, k))  # so that the shift rounds nothing
    tangents = along(q, k, v)
    wide = [x.astype(np.float64) for x in (q, k, v, *tangents)]
    known = attention_jvp(*wide, score="distance")[1]
    for level in levels:
        _core._set_isa(level)
        found = attention_jvp(q + np.float32(shift), k + np.float32(shift), v, *tangents, score="distance")[1]
        np.testing.assert_allclose(found, known, atol=1e-5)


@pytest.mark.parametrize(("dtype", "x"), [(np.float32, 15.0), (np.float32, 40.0), (np.float64, 30.0)])
def test_additive_tangents_keep_their_digits_where_tanh_is_near_1(dtype, x, levels):
    """1 - tanh^2 would be 0 there, or have no digit."""
    q, k = np.full((1, 8), x / 2, dtype), np.full((2, 8), x / 2, dtype)
    v, options = np.array([[1.0], [3.0]], dtype), {"score": "additive", "score_weight": np.ones(8, dtype)}
    tangent = np.array([[1.0], [0.0]], dtype) * np.ones(8, dtype)
    for level in levels:
        _core._set_isa(level)
        found = attention_jvp(q, k, v, None, tangent, **options)[1]
        expected = 8 / np.cosh(np.float64(x)) ** 2 * 0.25 * (1 - 3)
        np.testing.assert_allclose(found, [[expected]], rtol=1e-4 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("scale", [0.0, 1e-30, -2.0])
@pytest.mark.parametrize("score", ALL_SCORES)
def test_scales(score, scale):
    q, k, v = tiny()
    options, arrays = {"scale": scale, **of_score(score, 4)}, (q, k, v)
    tangents = along(*arrays)
    found = attention_jvp(*arrays, *tangents, **options)[1]
    wanted = numeric(lambda *x: pyattn.attention(*x, **options), arrays, tangents)
    np.testing.assert_allclose(found, wanted, atol=1e-10)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("score", ALL_SCORES)
def test_halves_are_the_rounded_results_of_float32(half, score):
    half = np.dtype(half) if half == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    q, k, v = small(half)
    tangents, mask = along(q, k, v), numbers(70, 130, dtype=half)
    options = of_score(score, 12, half) | {"attn_mask": mask}
    in_float32 = {name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    found = attention_jvp(q, k, v, *tangents, tangent_attn_mask=mask, **options)
    exact = attention_jvp(
        *(x.astype(np.float32) for x in (q, k, v, *tangents)), tangent_attn_mask=mask.astype(np.float32), **in_float32
    )
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == half
        np.testing.assert_array_equal(one, other.astype(half))
    np.testing.assert_array_equal(found[0], pyattn.attention(q, k, v, **options))


def test_dtypes_are_promoted_together():
    q, k, v = tiny()
    q32, k16 = q.astype(np.float32), k.astype(np.float16)
    assert attention_jvp(q32, k16, v.astype(np.float32), q32)[1].dtype == np.float32
    assert attention_jvp(k16, k16, k16, k16)[1].dtype == np.float16
    output, tangent = attention_jvp(q32, k16, k16, q)
    assert output.dtype == tangent.dtype == np.float64
    np.testing.assert_array_equal(tangent, attention_jvp(*(x.astype(np.float64) for x in (q32, k16, k16)), q)[1])
    assert attention_jvp(k16[0].tolist(), [[1, 2, 3, 4]], [[True]])[1].dtype == np.float64


def test_arrays_that_broadcast():
    q, k, v = numbers(1, 1, 3, 4), numbers(2, 1, 5, 4), numbers(1, 1, 5, 3)
    arrays = (q, k, v)
    tangents = along(*arrays)
    found = attention_jvp(*arrays, *tangents)[1]
    np.testing.assert_allclose(found, numeric(pyattn.attention, arrays, tangents), atol=1e-10)


def test_views_of_any_strides():
    q, k, v = small()
    tangents = along(q, k, v)
    known = attention_jvp(q, k, v, *tangents, attn_mask=np.zeros((70, 130)), tangent_attn_mask=np.ones((70, 130)))[1]
    views = [np.repeat(x, 3, -1)[..., ::3][:, :, ::-1][:, :, ::-1] for x in (q, k, v, *tangents)]
    zero, one = np.broadcast_to(0.0, (70, 130)), np.broadcast_to(1.0, (70, 130))
    np.testing.assert_array_equal(attention_jvp(*views, attn_mask=zero, tangent_attn_mask=one)[1], known)


@pytest.mark.parametrize("score", ALL_SCORES)
@pytest.mark.parametrize("sizes", [(0, 5, 4, 3), (3, 0, 4, 3), (3, 5, 0, 3), (3, 5, 4, 0)])
def test_zero_sizes(score, sizes):
    q_len, kv_len, features, v_dim = sizes
    q, k, v = numbers(q_len, features), numbers(kv_len, features), numbers(kv_len, v_dim)
    of_value = numbers(kv_len, v_dim)
    output, tangent = attention_jvp(q, k, v, q, k, of_value, **of_score(score, features))
    assert output.shape == tangent.shape == (q_len, v_dim)
    expected = np.broadcast_to(of_value.mean(0) if features == 0 else 0.0, (q_len, v_dim))
    if features == 0 or kv_len == 0:
        np.testing.assert_allclose(tangent, expected, atol=1e-15)


MISTAKES = {
    "tangent_query": ({"tangent_query": np.ones((2, 3, 3))}, ValueError,
                      r"tangent_query has shape \(2, 3, 3\), expected \(2, 3, 4\)"),
    "tangent_key": ({"tangent_key": np.ones((5, 4))}, ValueError, "tangent_key has shape"),
    "tangent_value": ({"tangent_value": np.ones((2, 5, 4))}, ValueError, "tangent_value has shape"),
    "bilinear tangent_query": ({"tangent_query": np.ones((2, 3, 3)), "score": "bilinear", "score_weight": np.eye(4)},
                               ValueError, r"tangent_query has shape \(2, 3, 3\), expected \(2, 3, 4\)"),
    "bilinear score_weight": ({"score": "bilinear", "score_weight": np.eye(3)}, ValueError, "query's features"),
    "complex tangent": ({"tangent_key": np.ones((2, 5, 4), complex)}, TypeError, "tangent_key"),
    "no mask": ({"tangent_attn_mask": np.ones((3, 5))}, ValueError, "attn_mask is not an array of floats"),
    "a bool mask": ({"tangent_attn_mask": np.ones((3, 5)), "attn_mask": np.ones((3, 5), bool)}, ValueError,
                    "attn_mask is not an array of floats"),
    "a mask object": ({"tangent_attn_mask": np.ones((3, 5)),
                       "attn_mask": pyattn.masks.causal(3, 5, align="upper_left")}, ValueError,
                      "attn_mask is not an array of floats"),
    "tangent_attn_mask": ({"tangent_attn_mask": np.ones(5), "attn_mask": np.zeros((3, 5))}, ValueError,
                          r"tangent_attn_mask has shape \(5,\), expected \(3, 5\)"),
    "no weight": ({"score": "additive"}, ValueError, "needs score_weight"),
    "a weight that is not used": ({"score_weight": np.ones(4)}, ValueError, "takes no score_weight"),
    "another score": ({"score": "cubic"}, ValueError, "'cosine'"),
    "dropout anew": ({"dropout_p": 0.5}, ValueError, "pass an int"),
    "a generator": ({"dropout_p": 0.5, "rng": np.random.default_rng(0)}, ValueError, "pass an int"),
    "halves of two kinds": ({"query": np.ones((2, 3, 4), np.float16), "tangent_query": "bfloat16"}, TypeError,
                            "float16 and tangent_query bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(change, error, message):
    arguments = {**dict(zip(("query", "key", "value"), tiny(), strict=True)), **change}
    if arguments.get("tangent_query") is not None and isinstance(arguments["tangent_query"], str):
        half = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
        arguments["tangent_query"] = np.ones((2, 3, 4), half)
    with pytest.raises(error, match=message):
        attention_jvp(**arguments)

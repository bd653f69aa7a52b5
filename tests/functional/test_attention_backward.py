"""Gradients of attention: what the drawn cases (test_attention_backward_drawn.py) do not have, and promises.

Dropout, a loss that uses lse, bilinear scores, vectors of zeros, halves, mask objects; the same bits; NaN that is
hidden; bad input.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import pyattn
from pyattn import _core
from pyattn.functional import attention_backward

RNG = np.random.default_rng(22)
START = RNG.bit_generator.state


@pytest.fixture(autouse=True)
def _same_numbers():
    """Each test draws the same numbers, whichever ran before."""
    RNG.bit_generator.state = START


SCORES = ("dot", "cosine", "distance", "additive")


def of_score(score, features, dtype=np.float64):
    """The options of a score function."""
    return {"score": score, "score_weight": numbers(features, dtype=dtype) if score == "additive" else None}


def numbers(*shape, dtype=np.float64):
    return RNG.standard_normal(shape).astype(dtype)


def small(dtype=np.float64, heads=2, q_len=70, kv_len=130):
    """Arrays that fill several blocks of queries and of keys, none of them evenly; and grad_output."""
    q, k, v = numbers(2, heads, q_len, 12), numbers(2, heads, kv_len, 12), numbers(2, heads, kv_len, 9)
    return [x.astype(dtype) for x in (q, k, v, numbers(2, heads, q_len, 9))]


def both(q, k, v, grad_output, need=("query", "key", "value"), grad_lse=None, **options):
    """Forwards and backwards."""
    output, lse = pyattn.attention(q, k, v, need_lse=True, **options)
    return attention_backward(grad_output, q, k, v, output, lse, need=need, grad_lse=grad_lse, **options)


def numeric(loss, x, step=1e-6):
    """The gradient of a loss, by central differences in float64."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        at = x[index]
        x[index] = at + step
        above = loss()
        x[index] = at - step
        gradient[index] = (above - loss()) / (2 * step)
        x[index] = at
    return gradient


def tiny():
    return [numbers(2, 3, 4), numbers(2, 5, 4), numbers(2, 5, 3), numbers(2, 3, 3)]


def test_a_loss_of_output_and_lse():
    q, k, v, up = tiny()
    up_lse = numbers(2, 3)

    def loss():
        output, lse = pyattn.attention(q, k, v, need_lse=True)
        return (output * up).sum() + (lse * up_lse).sum()

    found = both(q, k, v, up, grad_lse=up_lse)
    for name, x in (("query", q), ("key", k), ("value", v)):
        np.testing.assert_allclose(getattr(found, name), numeric(loss, x), atol=1e-8, err_msg=name)


@pytest.mark.parametrize("dropped", [{"rng": 3}, {"keep_mask": RNG.random((2, 3, 5)) < 0.6}], ids=["seed", "keep_mask"])
@pytest.mark.parametrize("dropout_p", [0.4, 1.0])
@pytest.mark.parametrize("score", SCORES)
def test_dropout(score, dropped, dropout_p):
    q, k, v, up = tiny()
    bias, options = numbers(3, 5), {"dropout_p": dropout_p, **dropped, **of_score(score, 4)}
    found = both(
        q, k, v, up, need=("query", "key", "value", "attn_mask", "scale"), attn_mask=bias, scale=0.7, **options
    )
    scale = np.array(0.7)

    def loss():
        return (pyattn.attention(q, k, v, attn_mask=bias, scale=float(scale), **options) * up).sum()

    for name, x in (("query", q), ("key", k), ("value", v), ("attn_mask", bias), ("scale", scale)):
        np.testing.assert_allclose(getattr(found, name), numeric(loss, x), atol=1e-8, err_msg=name)


def test_bilinear_scores():
    q, k, v, up = tiny()
    q, weight = q[..., :2].copy(), numbers(2, 4)
    options = {"score": "bilinear", "score_weight": weight}
    found = both(q, k, v, up, need=("query", "key", "value", "score_weight", "scale"), **options)

    def loss():
        return (pyattn.attention(q, k, v, **options) * up).sum()

    for name, x in (("query", q), ("key", k), ("value", v), ("score_weight", weight)):
        np.testing.assert_allclose(getattr(found, name), numeric(loss, x), atol=1e-8, err_msg=name)
    np.testing.assert_allclose(found.scale, (found.query * q).sum(), rtol=1e-12)  # the scale is 1


@pytest.mark.parametrize("score", SCORES)
def test_a_loss_of_lse_alone(score):
    """The gradients of a row's scores then add up to its grad_lse, not to 0."""
    q, k, v, up = tiny()
    options, up_lse = of_score(score, 4), numbers(2, 3)
    need = ["query", "key", "scale", *(["score_weight"] if score == "additive" else [])]
    scale = np.array(1.3)
    found = both(q, k, v, np.zeros_like(up), grad_lse=up_lse, need=need, scale=1.3, **options)

    def loss():
        return (pyattn.attention(q, k, v, need_lse=True, scale=float(scale), **options).lse * up_lse).sum()

    for name, x in (("query", q), ("key", k), ("scale", scale), ("score_weight", options["score_weight"])):
        if name in need:
            np.testing.assert_allclose(getattr(found, name), numeric(loss, x), atol=1e-8, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_vector_of_zeros_has_no_gradient_of_its_cosine(dtype, levels):
    """Its score is the constant 0; the others' gradients are as usual."""
    q, k, v, up = small(dtype)
    q[:, :, 5], k[:, :, 7] = 0, 0
    for level in levels:
        _core._set_isa(level)
        found = both(q, k, v, up, score="cosine")
        assert not found.query[:, :, 5].any()
        assert not found.key[:, :, 7].any()
        assert found.query[:, :, 6].all()
        assert found.key[:, :, 6].all()
        assert found.value[:, :, 7].all()


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
def test_cosine_gradients_of_large_and_small_vectors(size, levels):
    """The gradient of size * q is that of q, divided by the size: squares of rows may leave the range of a float."""
    q, k, v, up = small(np.float32)
    known = both(*(x.astype(np.float64) for x in (q, k, v, up)), score="cosine")
    for level in levels:
        _core._set_isa(level)
        found = both(q * np.float32(size), k * np.float32(1 / size), v, up, score="cosine")
        np.testing.assert_allclose(found.query * size, known.query, atol=1e-6)
        np.testing.assert_allclose(found.key / size, known.key, atol=1e-6)


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
def test_cosine_gradients_of_large_and_small_float64(size):
    q, k, v, up = small()
    known, found = both(q, k, v, up, score="cosine"), both(q * size, k / size, v, up, score="cosine")
    np.testing.assert_allclose(found.query * size, known.query, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(found.key / size, known.key, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_distance_gradients_do_not_cancel(shift, levels):
    """Queries and keys that lie far from 0, yet close to each other: shifting both changes nothing."""
    q, k, v, up = small(np.float32)
    q, k = (np.round(x * 16) / 16 for x in (q, k))  # so that the shift rounds nothing
    known = both(*(x.astype(np.float64) for x in (q, k, v, up)), score="distance")
    for level in levels:
        _core._set_isa(level)
        found = both(*(x + np.float32(shift) for x in (q, k)), v, up, score="distance")
        for name in ("query", "key"):
            np.testing.assert_allclose(getattr(found, name), getattr(known, name), atol=3e-6, err_msg=name)


def test_distances_of_hidden_vectors_may_overflow(levels):
    q, k, v, up = small(np.float32)
    mask = np.ones((70, 130), bool)
    mask[5], mask[:, 7] = False, False
    known = both(q, k, v, up, attn_mask=mask, score="distance")
    q[:, :, 5], k[:, :, 7] = 3e38, -3e38
    for level in levels:
        _core._set_isa(level)
        for one, other in zip(both(q, k, v, up, attn_mask=mask, score="distance"), known, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 if level == "scalar" else 1e-7)


@pytest.mark.parametrize(("dtype", "x"), [(np.float32, 15.0), (np.float32, 40.0), (np.float64, 30.0)])
def test_additive_gradients_keep_their_digits_where_tanh_is_near_1(dtype, x, levels):
    """1 - tanh^2 would be 0 there, or have no digit."""
    q, k = np.full((1, 8), x / 2, dtype), np.zeros((2, 8), dtype)
    k[:] = x / 2
    v, weight = np.array([[1.0], [3.0]], dtype), np.ones(8, dtype)
    up = np.ones((1, 1), dtype)
    for level in levels:
        _core._set_isa(level)
        found = both(q, k, v, up, score="additive", score_weight=weight)
        slope = 1 / np.cosh(np.float64(x)) ** 2
        expected = 0.5 * (v - 2) * slope
        np.testing.assert_allclose(
            found.key, np.broadcast_to(expected, (2, 8)), rtol=1e-4 if dtype == np.float32 else 1e-12
        )


def test_additive_attention_has_gradients_through_its_projections():
    """The chain that its documentation gives: two products, then attention with additive scores."""
    q, k, v, up = tiny()
    w_query, w_key, w_score, bias = numbers(4, 6), numbers(4, 6), numbers(6), numbers(6)

    def loss():
        return (pyattn.additive_attention(q, k, v, w_query, w_key, w_score, bias) * up).sum()

    options = {"score": "additive", "score_weight": w_score}
    found = both(q @ w_query + bias, k @ w_key, v, up, need=("query", "key", "value", "score_weight"), **options)
    gradients = {
        "query": (q, found.query @ w_query.T),
        "key": (k, found.key @ w_key.T),
        "value": (v, found.value),
        "w_query": (w_query, np.einsum("bld,blh->dh", q, found.query)),
        "w_key": (w_key, np.einsum("bsd,bsh->dh", k, found.key)),
        "bias": (bias, found.query.sum((0, 1))),
        "w_score": (w_score, found.score_weight),
    }
    for name, (x, gradient) in gradients.items():
        np.testing.assert_allclose(gradient, numeric(loss, x), atol=1e-8, err_msg=name)


def test_mask_objects_are_what_they_are_forwards():
    q, k, v, up = small(q_len=130)
    documents = np.repeat([0, 1, 2], [50, 60, 20])
    mask = pyattn.masks.document(documents) & pyattn.masks.causal(130)
    for one, other in zip(
        both(q, k, v, up, attn_mask=mask), both(q, k, v, up, attn_mask=np.asarray(mask)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.threads
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (4, 1), (1, 1)])
def test_the_same_bits_for_any_threads_batch_and_memory_order(levels, threads, heads, kv_heads, score):
    """One task for all gradients of a unit, or pieces of units: the sums are the same."""
    q, up = numbers(2, heads, 200, 16, dtype=np.float32), numbers(2, heads, 200, 8, dtype=np.float32)
    k, v = numbers(2, kv_heads, 300, 16, dtype=np.float32), numbers(2, kv_heads, 300, 8, dtype=np.float32)
    bias = numbers(heads, 1, 300, dtype=np.float32)
    options = {"attn_mask": bias, "is_causal": True, "align": "lower_right", **of_score(score, 16, np.float32)}
    need = ("query", "key", "value", "attn_mask", "scale", *(("score_weight",) if score == "additive" else ()))
    output, lse = pyattn.attention(q, k, v, need_lse=True, **options)
    bits = set()
    for level in levels:
        _core._set_isa(level)
        known = attention_backward(up, q, k, v, output, lse, **options, need=need, num_threads=1)
        found = attention_backward(up, q, k, v, output, lse, **options, need=need, num_threads=threads)
        ordered = [np.asfortranarray(x) for x in (up, q, k, v, output, lse)]
        in_order = attention_backward(*ordered, **options, need=need, num_threads=threads)
        one_entry = attention_backward(*(x[:1] for x in (up, q, k, v, output, lse)), **options, need=need)
        for name in need:
            np.testing.assert_array_equal(getattr(known, name), getattr(found, name), err_msg=name)
            np.testing.assert_array_equal(getattr(known, name), getattr(in_order, name), err_msg=name)
        for name in ("query", "key", "value"):
            np.testing.assert_array_equal(getattr(known, name)[:1], getattr(one_entry, name), err_msg=name)
        if level != "scalar":  # it lacks fused multiply-add
            bits.add(b"".join(np.asarray(x).tobytes() for x in known))
    assert len(bits) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["query", "key", "value", "grad_output"])
@pytest.mark.parametrize("score", SCORES)
def test_what_is_hidden_adds_nothing(levels, score, bad, which):
    """Padded keys and queries, and pairs of a mask: their rows may hold anything."""
    mask = RNG.random((70, 130)) < 0.7
    mask[33:, 60:62] = False  # only queries before 33 see keys 60 and 61
    mask[:33, :60] = mask[:33, 62:] = False  # and these see nothing else
    mask[10, 60:62] = True
    options = {"attn_mask": mask, "key_lengths": [130, 90], **of_score(score, 12)}
    arrays = dict(zip(("query", "key", "value", "grad_output"), small(), strict=True))
    changed = {**arrays, which: arrays[which].copy()}
    changed[which][:, :, 60 if which in ("key", "value") else 10] = bad
    changed[which][1, :, 100:] = bad
    for level in levels:
        _core._set_isa(level)
        clean, found = (both(*given.values(), **options) for given in (arrays, changed))
        np.testing.assert_array_equal(found.query[:, :, 33:], clean.query[:, :, 33:])
        others = np.r_[:60, 62:130]
        np.testing.assert_array_equal(found.key[:, :, others], clean.key[:, :, others])
        np.testing.assert_array_equal(found.value[:, :, others], clean.value[:, :, others])
        sees_it = not np.isfinite(found.query[:, :, 10]).all()
        assert sees_it or (np.isinf(bad) and which in ("query", "key") and score in ("distance", "additive"))


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("score", SCORES)
def test_rows_that_see_nothing_have_gradients_of_zero(score, bad):
    q, k, v, up = small()
    mask = np.ones((70, 130), bool)
    mask[5], mask[:, 7] = False, False
    q[:, :, 5] = k[:, :, 7] = v[:, :, 7] = bad
    found = both(q, k, v, up, attn_mask=mask, **of_score(score, 12))
    assert not found.query[:, :, 5].any()
    assert not found.key[:, :, 7].any()
    assert not found.value[:, :, 7].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, -1e4, 1e4, -1e9, -3e38])
@pytest.mark.parametrize("score", SCORES)
def test_a_large_mask_on_all_keys_changes_nothing(dtype, offset, levels, score):
    """The logsumexp then has few digits, or none: weights from it alone would be wrong by any factor."""
    q, k, v, up = small(dtype)
    error = {np.float32: 2e-3, np.float64: 1e-6}[dtype]
    if abs(offset) > 1e5 and (dtype == np.float32 or offset < -1e10):  # no score is left beside it
        q = np.zeros_like(q)
        k = np.zeros_like(k) if score in ("distance", "additive") else k
    options = of_score(score, 12, dtype)
    known = both(q, k, v, up, **options)
    for level in levels:
        _core._set_isa(level)
        found = both(q, k, v, up, attn_mask=np.full((70, 1), offset, dtype), **options)
        for name in ("query", "key", "value"):
            np.testing.assert_allclose(getattr(found, name), getattr(known, name), atol=error, err_msg=name)


@pytest.mark.parametrize("scale", [0.0, 1e-30, -2.0])
@pytest.mark.parametrize("score", SCORES)
def test_scales(score, scale):
    q, k, v, up = tiny()
    options = of_score(score, 4)
    found = both(q, k, v, up, need=("query", "key", "scale"), scale=scale, **options)
    at = np.array(scale)
    wanted = numeric(lambda: (pyattn.attention(q, k, v, scale=float(at), **options) * up).sum(), at)
    np.testing.assert_allclose(found.scale, wanted, atol=1e-8)
    assert found.query.any() == found.key.any() == (scale != 0)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("score", SCORES)
def test_halves_are_the_rounded_gradients_of_float32(half, score):
    half = np.dtype(half) if half == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    q, k, v, up = (x.astype(half) for x in small())
    options = of_score(score, 12, half)
    options["need"] = ("query", "key", "value", *(("score_weight",) if score == "additive" else ()))
    weights = {"score": score, "score_weight": options["score_weight"]}
    output, lse = pyattn.attention(q, k, v, need_lse=True, **weights)
    found = attention_backward(up, q, k, v, output, lse, **options)
    if score == "additive":
        options["score_weight"] = options["score_weight"].astype(np.float32)
    exact = attention_backward(*(x.astype(np.float32) for x in (up, q, k, v, output)), lse, **options)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == half
        np.testing.assert_array_equal(one, other.astype(half))


@pytest.mark.parametrize("score", SCORES)
def test_arrays_that_broadcast_have_gradients_of_their_own_shape(score):
    q, k, v, up = numbers(1, 3, 4), numbers(2, 1, 5, 4), numbers(5, 3), numbers(2, 1, 3, 3)
    q, v, options = q[None], v[None, None], of_score(score, 4)

    def loss():
        return (pyattn.attention(q, k, v, **options) * up).sum()

    found = both(q, k, v, up, **options)
    for name, x in (("query", q), ("key", k), ("value", v)):
        np.testing.assert_allclose(getattr(found, name), numeric(loss, x), atol=1e-8, err_msg=name)


@pytest.mark.parametrize("score", SCORES)
def test_need_chooses(score):
    q, k, v, up = tiny()
    all_names = ("query", "key", "value", "attn_mask", *(("score_weight",) if score == "additive" else ()), "scale")
    options = {"attn_mask": numbers(5), **of_score(score, 4)}
    everything = both(q, k, v, up, need=all_names, **options)
    for count in range(len(all_names) + 1):
        for names in itertools.combinations(all_names, count):
            found = both(q, k, v, up, need=names, **options)
            assert len(found) == len(names)
            for name in all_names:
                if name in names:
                    np.testing.assert_array_equal(getattr(found, name), getattr(everything, name))
                else:
                    assert getattr(found, name) is None
    (alone,) = both(q, k, v, up, need="value", **options)
    np.testing.assert_array_equal(alone, everything.value)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("sizes", [(0, 5, 4), (3, 0, 4), (3, 5, 0)])
def test_zero_sizes(score, sizes):
    q_len, kv_len, features = sizes
    q, k, v, up = numbers(q_len, features), numbers(kv_len, features), numbers(kv_len, 3), numbers(q_len, 3)
    options = of_score(score, features)
    need = ("query", "key", "value", "scale", *(("score_weight",) if score == "additive" else ()))
    found = both(q, k, v, up, need=need, **options)
    for name, x in (("query", q), ("key", k), ("score_weight", options["score_weight"])):
        if name in need:
            np.testing.assert_array_equal(getattr(found, name), np.zeros_like(x))
    assert found.scale == 0


MISTAKES = {
    "need is grad, which": ({"need": "grad"}, ValueError, "'query', 'key', 'value'"),
    "need is a number": ({"need": 3}, TypeError, "need is of type int, expected some of 'query', 'key', 'value'"),
    "no mask": ({"need": "attn_mask"}, ValueError, "'attn_mask', which was not given"),
    "a bool mask": ({"need": "attn_mask", "attn_mask": np.ones((3, 5), bool)}, ValueError, "not a float mask"),
    "a mask object": ({"need": "attn_mask", "attn_mask": pyattn.masks.causal(3, 5, align="upper_left")}, ValueError,
                      "a mask object"),
    "no weight": ({"need": "score_weight"}, ValueError, "pass score='bilinear'"),
    "a weight": ({"score": "bilinear"}, ValueError, "needs score_weight"),
    "no vector": ({"score": "additive"}, ValueError, "needs score_weight"),
    "a matrix": ({"score": "additive", "score_weight": np.ones((4, 4))}, ValueError, r"expected \(4,\)"),
    "a weight that is not used": ({"score": "cosine", "score_weight": np.ones(4)}, ValueError, "takes no score_weight"),
    "another score": ({"score": "cubic"}, ValueError, "'cosine'"),
    "dropout anew": ({"dropout_p": 0.5}, ValueError, "the same int"),
    "a generator": ({"dropout_p": 0.5, "rng": np.random.default_rng(0)}, ValueError, "the same int"),
    "grad_output": ({"grad_output": np.ones((2, 3, 2))}, ValueError, r"grad_output has shape \(2, 3, 2\), expected"),
    "output": ({"output": np.ones((2, 3, 2))}, ValueError, r"output has shape \(2, 3, 2\), expected"),
    "lse": ({"lse": np.ones((2, 4))}, ValueError, r"lse has shape \(2, 4\), expected \(2, 3\)"),
    "grad_lse": ({"grad_lse": np.ones(3)}, ValueError, r"grad_lse has shape \(3,\), expected \(2, 3\)"),
    "lse of ints": ({"lse": "lse"}, TypeError, "lse"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(change, error, message):
    q, k, v, up = tiny()
    output, lse = pyattn.attention(q, k, v, need_lse=True)
    arguments = {"grad_output": up, "query": q, "key": k, "value": v, "output": output, "lse": lse, **change}
    with pytest.raises(error, match=message):
        attention_backward(**arguments)


@pytest.mark.parametrize("shape", [(7, 7), (4, 8, 8), (8, 7)])
def test_a_wrong_weight_of_a_bilinear_score_is_named_as_in_attention(shape):
    x, weight, lse = np.ones((5, 8)), np.ones(shape), np.ones(5)
    messages = []
    for call in (
        lambda: pyattn.attention(x, x, x, score="bilinear", score_weight=weight),
        lambda: attention_backward(x, x, x, x, x, lse, score="bilinear", score_weight=weight),
    ):
        with pytest.raises(ValueError, match="score_weight has shape") as raised:
            call()
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_a_bilinear_score_of_grouped_heads():
    query, key, weight, up = numbers(4, 5, 8), numbers(2, 6, 8), numbers(8, 8), numbers(4, 5, 8)
    options = {"score": "bilinear", "score_weight": weight, "enable_gqa": True}
    need = ("query", "key", "value")
    output, lse = pyattn.attention(query, key, key, need_lse=True, **options)
    grouped = attention_backward(up, query, key, key, output, lse, need=need, **options)
    repeated = np.repeat(key, 2, axis=0)
    each = attention_backward(up, query, repeated, repeated, output, lse, need=need, **options)
    np.testing.assert_allclose(grouped.query, each.query, rtol=1e-12)
    for ours, theirs in ((grouped.key, each.key), (grouped.value, each.value)):
        np.testing.assert_allclose(ours, theirs.reshape(2, 2, 6, 8).sum(axis=1), rtol=1e-12, atol=1e-14)


def test_a_bilinear_score_without_features():
    x, value = np.ones((5, 0)), np.ones((5, 3))
    options = {"score": "bilinear", "score_weight": np.ones((0, 0))}
    output, lse = pyattn.attention(x, x, value, need_lse=True, **options)
    need = ("query", "value", "score_weight")
    found = attention_backward(value, x, x, value, output, lse, need=need, **options)
    assert (found.query.shape, found.score_weight.shape) == ((5, 0), (0, 0))
    np.testing.assert_allclose(found.value, np.ones((5, 3)), rtol=1e-15)

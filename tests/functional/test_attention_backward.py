"""Gradients of attention: what the drawn cases (test_attention_backward_drawn.py) do not have, and promises.

Dropout, a loss that uses lse, bilinear scores, halves, mask objects; the same bits; NaN that is hidden; bad input.
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
def test_dropout(dropped, dropout_p):
    q, k, v, up = tiny()
    bias, options = numbers(3, 5), {"dropout_p": dropout_p, **dropped}
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
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 8), (4, 1), (1, 1)])
def test_the_same_bits_for_any_threads_batch_and_memory_order(levels, threads, heads, kv_heads):
    """One task for all gradients of a unit, or pieces of units: the sums are the same."""
    q, up = numbers(2, heads, 200, 16, dtype=np.float32), numbers(2, heads, 200, 8, dtype=np.float32)
    k, v = numbers(2, kv_heads, 300, 16, dtype=np.float32), numbers(2, kv_heads, 300, 8, dtype=np.float32)
    bias = numbers(heads, 1, 300, dtype=np.float32)
    options = {"attn_mask": bias, "is_causal": True, "align": "lower_right"}
    need = ("query", "key", "value", "attn_mask", "scale")
    output, lse = pyattn.attention(q, k, v, need_lse=True, **options)
    bits = set()
    for level in levels:
        _core._set_isa(level)
        known = attention_backward(up, q, k, v, output, lse, **options, need=need, num_threads=1)
        found = attention_backward(up, q, k, v, output, lse, **options, need=need, num_threads=threads)
        ordered = [np.asfortranarray(x) for x in (up, q, k, v, output, lse)]
        in_order = attention_backward(*ordered, **options, need=need, num_threads=threads)
        one_entry = attention_backward(*(x[:1] for x in (up, q, k, v, output, lse)), **options, need=need)
        for name, gradient, ours, theirs in zip(need, known, found, in_order, strict=True):
            np.testing.assert_array_equal(gradient, ours, err_msg=name)
            np.testing.assert_array_equal(gradient, theirs, err_msg=name)
        for name in ("query", "key", "value"):
            np.testing.assert_array_equal(getattr(known, name)[:1], getattr(one_entry, name), err_msg=name)
        if level != "scalar":  # it lacks fused multiply-add
            bits.add(b"".join(np.asarray(x).tobytes() for x in known))
    assert len(bits) <= 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", ["query", "key", "value", "grad_output"])
def test_what_is_hidden_adds_nothing(levels, bad, which):
    """Padded keys and queries, and pairs of a mask: their rows may hold anything."""
    mask = RNG.random((70, 130)) < 0.7
    mask[33:, 60:62] = False  # only queries before 33 see keys 60 and 61
    mask[:33, :60] = mask[:33, 62:] = False  # and these see nothing else
    mask[10, 60:62] = True
    options = {"attn_mask": mask, "key_lengths": [130, 90]}
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
        assert not np.isfinite(found.query[:, :, 10]).all()  # it sees it


def test_rows_that_see_nothing_have_gradients_of_zero():
    q, k, v, up = small()
    mask = np.ones((70, 130), bool)
    mask[5], mask[:, 7] = False, False
    found = both(q, k, v, up, attn_mask=mask)
    assert not found.query[:, :, 5].any()
    assert not found.key[:, :, 7].any()
    assert not found.value[:, :, 7].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, -1e4, 1e4, -1e9, -3e38])
def test_a_large_mask_on_all_keys_changes_nothing(dtype, offset, levels):
    """The logsumexp then has few digits, or none: weights from it alone would be wrong by any factor."""
    q, k, v, up = small(dtype)
    error = {np.float32: 2e-3, np.float64: 1e-6}[dtype]
    if abs(offset) > 1e5 and (dtype == np.float32 or offset < -1e10):  # no score is left beside it
        q = np.zeros_like(q)
    known = both(q, k, v, up)
    for level in levels:
        _core._set_isa(level)
        found = both(q, k, v, up, attn_mask=np.full((70, 1), offset, dtype))
        for name in ("query", "key", "value"):
            np.testing.assert_allclose(getattr(found, name), getattr(known, name), atol=error, err_msg=name)


@pytest.mark.parametrize("scale", [0.0, 1e-30, -2.0])
def test_scales(scale):
    q, k, v, up = tiny()
    found = both(q, k, v, up, need=("query", "key", "scale"), scale=scale)
    at = np.array(scale)
    wanted = numeric(lambda: (pyattn.attention(q, k, v, scale=float(at)) * up).sum(), at)
    np.testing.assert_allclose(found.scale, wanted, atol=1e-8)
    assert found.query.any() == found.key.any() == (scale != 0)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_halves_are_the_rounded_gradients_of_float32(half):
    half = np.dtype(half) if half == "float16" else np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    q, k, v, up = (x.astype(half) for x in small())
    output, lse = pyattn.attention(q, k, v, need_lse=True)
    found = attention_backward(up, q, k, v, output, lse)
    exact = attention_backward(*(x.astype(np.float32) for x in (up, q, k, v, output)), lse)
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == half
        np.testing.assert_array_equal(one, other.astype(half))


def test_arrays_that_broadcast_have_gradients_of_their_own_shape():
    q, k, v, up = numbers(1, 3, 4), numbers(2, 1, 5, 4), numbers(5, 3), numbers(2, 1, 3, 3)
    q, v = q[None], v[None, None]

    def loss():
        return (pyattn.attention(q, k, v) * up).sum()

    found = both(q, k, v, up)
    for name, x in (("query", q), ("key", k), ("value", v)):
        np.testing.assert_allclose(getattr(found, name), numeric(loss, x), atol=1e-8, err_msg=name)


def test_need_chooses():
    q, k, v, up = tiny()
    all_names = ("query", "key", "value", "attn_mask", "scale")
    bias = numbers(5)
    everything = both(q, k, v, up, need=all_names, attn_mask=bias)
    for count in range(len(all_names) + 1):
        for names in itertools.combinations(all_names, count):
            found = both(q, k, v, up, need=names, attn_mask=bias)
            assert len(found) == len(names)
            for name in all_names:
                if name in names:
                    np.testing.assert_array_equal(getattr(found, name), getattr(everything, name))
                else:
                    assert getattr(found, name) is None
    (alone,) = both(q, k, v, up, need="value", attn_mask=bias)
    np.testing.assert_array_equal(alone, everything.value)


MISTAKES = {
    "need is grad, which": ({"need": "grad"}, ValueError, "'query', 'key', 'value'"),
    "no mask": ({"need": "attn_mask"}, ValueError, "'attn_mask', which was not given"),
    "a bool mask": ({"need": "attn_mask", "attn_mask": np.ones((3, 5), bool)}, ValueError, "not a float mask"),
    "a mask object": ({"need": "attn_mask", "attn_mask": pyattn.masks.causal(3, 5, align="upper_left")}, ValueError,
                      "a mask object"),
    "no weight": ({"need": "score_weight"}, ValueError, "pass score='bilinear'"),
    "a weight": ({"score": "bilinear"}, ValueError, "needs score_weight"),
    "another score": ({"score": "cosine"}, ValueError, "no gradients yet"),
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

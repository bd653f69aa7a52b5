"""Arrays of more axes than the core takes: the same bits as with their batch axes reshaped to one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import nn

BATCH = (2, 1, 1, 3, 1, 2, 1, 1)
COUNT = 12


def flat(x, trailing):
    return x.reshape(COUNT, *x.shape[x.ndim - trailing :])


def spread(x):
    return x.reshape(BATCH + x.shape[1:])


@for_each("layout", ["bhsd", "bshd"])
def test_attention(layout):
    heads = {"bhsd": (4, 5), "bshd": (5, 4)}[layout]
    query = normal(*BATCH, *heads, 8)
    key, value = (normal(2, *[1] * 7, *(2 if n == 4 else n for n in heads), dim, seed=dim) for dim in (8, 3))
    whole = [np.broadcast_to(x, BATCH + x.shape[8:]) for x in (key, value)]
    mask = normal(3, 1, 2, 1, 1, 4, 5, 5) > 0
    wide = np.broadcast_to(mask, BATCH + mask.shape[-3:])
    lengths = np.array([[[[5]]], [[[3]]]])  # of the last four batch axes but one
    lengths = np.broadcast_to(lengths.reshape(2, *[1] * 7), BATCH)
    options = {"is_causal": True, "need_weights": True, "need_lse": True, "layout": layout, "dropout_p": 0.3, "rng": 5}
    result = pyattn.attention(query, key, value, attn_mask=mask, key_lengths=lengths, **options)
    expected = pyattn.attention(
        flat(query, 3),
        *(flat(x, 3) for x in whole),
        attn_mask=flat(wide, 3),
        key_lengths=lengths.reshape(-1),
        **options,
    )
    assert_same_bits(result, tuple(map(spread, expected)))
    out = np.empty_like(result.output)
    again = pyattn.attention(query, key, value, attn_mask=mask, key_lengths=lengths, out=out, **options)
    assert again.output is out
    assert_same_bits(again, result)
    bare = {"layout": layout, "attn_mask": np.tri(5, dtype=bool)}
    output = pyattn.attention(query, key, value, **bare)
    assert_same_bits(output, spread(pyattn.attention(flat(query, 3), *(flat(x, 3) for x in whole), **bare)))
    assert pyattn.attention(query, key, value, out=out, **bare) is out
    assert_same_bits(out, output)


def test_batches_of_one_entry_and_of_none():
    x = normal(*[1] * 9, 3, 4)
    assert_same_bits(pyattn.attention(x, x, x).reshape(3, 4), pyattn.attention(*[x.reshape(3, 4)] * 3))
    none = np.empty((2, 0, *[1] * 7, 3, 4), np.float32)
    assert pyattn.attention(none, none, none).shape == none.shape


def test_functions_of_rows():
    x, weight, narrow = normal(*BATCH, 2, 6), normal(7, 6, seed=1), normal(6, 7, seed=2)
    rows, beside = x.reshape(-1, 6), normal(*BATCH, 2, 7, seed=3)
    functional = pyattn.functional
    options = {"activation": "gelu", "gate": beside, "residual": beside}
    expected = functional.linear(rows, weight, **options | {"gate": beside.reshape(-1, 7)} | {"residual": None})
    result = functional.linear(x, weight, **options | {"residual": None})
    assert_same_bits(result, expected.reshape(beside.shape))
    out = np.empty_like(beside)
    assert functional.linear(x, weight, residual=beside, out=out) is out
    assert_same_bits(out, functional.linear(rows, weight, residual=beside.reshape(-1, 7)).reshape(beside.shape))
    fed = functional.feed_forward(x, weight, None, narrow, None, residual=x)
    assert_same_bits(fed, functional.feed_forward(rows, weight, None, narrow, None, residual=rows).reshape(x.shape))
    for norm in (functional.layer_norm, functional.rms_norm):
        normed = norm(x, 6, residual=x, need_sum=True)
        assert_same_bits(normed, tuple(one.reshape(x.shape) for one in norm(rows, 6, residual=rows, need_sum=True)))


def test_embedding():
    weight, ids = normal(9, 4), np.arange(COUNT).reshape(BATCH) % 9
    added = normal(3, 1, 2, 1, 1, 4, seed=1)
    result = pyattn.functional.embedding(ids, weight, residual=added, scale=2)
    expected = pyattn.functional.embedding(ids.reshape(-1), weight, scale=2).reshape(*BATCH, 4) + added
    np.testing.assert_allclose(result, expected, rtol=2**-22)
    assert_same_bits(result, result.copy())


@for_each("layout", ["bhsd", "bshd"])
def test_rotary(layout):
    x, ids = normal(*BATCH, 3, 5, 8), np.arange(COUNT * (5 if layout == "bhsd" else 3)).reshape(*BATCH, -1)
    rotate = pyattn.functional.rotary_embedding
    expected = rotate(flat(x, 3), layout=layout, position_ids=ids.reshape(COUNT, 1, -1)[:, 0])
    assert_same_bits(rotate(x, layout=layout, position_ids=ids), spread(expected))
    assert rotate(x, layout=layout, position_ids=ids, out=x) is x
    assert_same_bits(x, spread(expected))


def test_modules():
    x = normal(*BATCH, 4, 6)
    head = nn.SelfAttention(6, 5, rng=0)
    result = head(x, is_causal=True, need_weights=True)
    assert_same_bits(result, tuple(map(spread, head(flat(x, 2), is_causal=True, need_weights=True))))


def test_mask_objects():
    x, lengths = normal(1, 2, 1, 1, 2, 1, 1, 2, 5, 8), np.arange(8).reshape(1, 2, 1, 1, 2, 1, 1, 2) % 5 + 1
    mask = pyattn.masks.padding(lengths, 5, heads=False) & pyattn.masks.causal(5)
    weights = [normal(8, 4, seed=n) for n in range(3)]
    found = pyattn.self_attention(x, *weights, attn_mask=mask)
    assert_same_bits(found, pyattn.self_attention(x, *weights, attn_mask=np.asarray(mask)))
    heads = pyattn.masks.padding(lengths[..., 0], 5) & pyattn.masks.causal(5)
    assert_same_bits(pyattn.attention(x, x, x, attn_mask=heads), pyattn.attention(x, x, x, attn_mask=np.asarray(heads)))


def test_mistakes_name_the_argument():
    x, weight = normal(*BATCH, 2, 6), normal(7, 6, seed=1)
    with pytest.raises(ValueError, match=r"^weight has 9 axes, expected at most 8$"):
        pyattn.functional.linear(x, weight.reshape(*[1] * 7, 7, 6))
    with pytest.raises(ValueError, match=r"^query has 9 axes, expected at most 8$"):
        pyattn.attention(np.ones([1] * 9).tolist(), weight, weight)
    with pytest.raises(ValueError, match=r"^attn_mask has 9 axes, expected at most 8$"):
        pyattn.attention(weight, weight, weight, attn_mask=np.ones([1] * 9, bool))
    with pytest.raises(ValueError, match=r"^residual has shape .*, expected \(2, 1, .* 2\) for its axes but the last$"):
        pyattn.functional.linear(x, weight, residual=x[:1])
    with pytest.raises(
        ValueError, match=r"^attn_mask has shape .*, whose batch axes do not broadcast to \(2, 1, .*\)$"
    ):
        pyattn.attention(x, x, x, attn_mask=np.ones((5, 1, 1, 2, 2), bool))
    with pytest.raises(ValueError, match=r"^the batch axes do not broadcast: query .*, key .*, value \(3, 1, "):
        pyattn.attention(x, x, np.ones((3, *x.shape[1:])))


RESULTS = (*BATCH, 3, 4, 8)


@for_each(
    ("out", "message"),
    [
        ([1.0], "^out is of type list"),
        (np.ma.zeros(RESULTS, "f4"), "^out is of type MaskedArray"),
        (np.zeros(3, "f4"), r"^out has shape \(3,\), expected \(2, 1, .*\) for its batch axes$"),
        (np.zeros((*BATCH, 4, 3, 8), "f4"), r"^out has shape \(12, 4, 3, 8\), expected \(12, 3, 4, 8\)$"),
        (np.zeros(RESULTS), "^out has dtype float64, expected float32$"),
        (np.zeros(RESULTS[::-1]).T, "^out has dtype float64, expected float32$"),
        (np.broadcast_to(np.float32(0), RESULTS), "^out overlaps itself"),
    ],
)
def test_out_is_held_to_the_same_rules(out, message):
    x = normal(*RESULTS)
    for call in (lambda: pyattn.attention(x, x, x, out=out), lambda: pyattn.functional.rotary_embedding(x, out=out)):
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_out_in_any_memory_order():
    x = normal(*RESULTS)
    for out in (np.empty(RESULTS[::-1], np.float32).T, np.empty((*RESULTS, 2), np.float32)[..., 1]):
        assert pyattn.attention(x, x, x, out=out) is out
        assert_same_bits(out, pyattn.attention(x, x, x))
        assert pyattn.functional.rotary_embedding(x, out=out) is out
        assert_same_bits(out, pyattn.functional.rotary_embedding(x))


def test_what_broadcasts_is_not_copied():
    """Neighbouring axes along which the same arrays broadcast become one axis each."""
    query, key = normal(64, *[1] * 6, 2, 1, 16), normal(1, 4, *[1] * 5, 2, 512, 16)
    tracemalloc.start()
    output = pyattn.attention(query, key, key)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * output.nbytes  # the result alone: key for each query would be 64 times key
    by_hand = pyattn.attention(query.reshape(64, 1, 2, 1, 16), *[key.reshape(1, 4, 2, 512, 16)] * 2)
    assert_same_bits(output, by_hand.reshape(output.shape))
    changing = [n % 2 for n in range(12)]  # too many changes for the core: these are copied
    query, key = (normal(*(2 if n == kind else 1 for n in changing), 1, 3, 4) for kind in (0, 1))
    flat = [np.broadcast_to(x, (*[2] * 12, 1, 3, 4)).reshape(-1, 1, 3, 4) for x in (query, key)]
    assert_same_bits(pyattn.attention(query, key, key), pyattn.attention(*flat, flat[1]).reshape(*[2] * 12, 1, 3, 4))


CALLS = {
    "attention": lambda x: pyattn.attention(x, x, x),
    "self_attention": lambda x: pyattn.self_attention(x, *[normal(4, 4)] * 3),
    "linear": lambda x: pyattn.functional.linear(x, normal(5, 4)),
    "feed_forward": lambda x: pyattn.functional.feed_forward(x, normal(5, 4), None, normal(4, 5), None),
    "layer_norm": lambda x: pyattn.functional.layer_norm(x, 4),
    "rotary_embedding": lambda x: pyattn.functional.rotary_embedding(x),
    "embedding": lambda x: pyattn.functional.embedding((x > 0).astype(int), normal(2, 3)),
}


@for_each("name", CALLS)
def test_every_number_of_axes_gives_the_same_numbers(name):
    """Up to 8 the core takes them as they are."""
    x, call = normal(2, 3, 4), CALLS[name]
    expected = call(x)
    for more in range(1, 10):
        assert_same_bits(call(x.reshape(*[1] * more, 2, 3, 4)), expected.reshape(*[1] * more, *expected.shape))


def test_as_many_axes_as_numpy_has():
    x = normal(*[1] * 58, 2, 1, 1, 3, 4)
    assert_same_bits(pyattn.attention(x, x, x).reshape(2, 1, 3, 4), pyattn.attention(*[x.reshape(2, 1, 3, 4)] * 3))

"""attn_mask and key_padding_mask together, in either polarity: as one mask that hides what either does."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, nn

# (q_len, kv_len): the decode layout, and blocks of queries with a rest
SIZES = [(1, 200), (3, 70), (5, 600), (70, 131), (130, 640)]
KINDS = ["flags", "floats", "float64", "float16"]


def make_mask(kind, shape, seed):
    """Flags say True = blocked. Some keys are dead or free for whole blocks."""
    rng = np.random.default_rng(seed)
    blocked = rng.random(shape) < 0.3
    blocked[..., 64:128] = seed % 2
    blocked[..., 128:192] = False
    if kind == "flags":
        return blocked
    dtype = "float32" if kind == "floats" else kind
    return np.where(blocked, -np.inf, rng.integers(-3, 4, shape) / 4).astype(dtype)  # exact in every dtype


def blocked_of(mask):
    return mask if mask.dtype == bool else np.isneginf(mask)


def attend(arrays, **masks):
    """Attention of two heads; products with the identity are exact."""
    eye = np.eye(16, dtype=arrays[0].dtype)
    return _core.multi_head(*arrays, eye, eye, eye, heads=2, need_weights=True, **masks)


@pytest.fixture(params=SIZES, ids=str)
def arrays(request, dtype):
    q_len, kv_len = request.param
    return [normal(2, length, 16, dtype=dtype, seed=n) for n, length in enumerate((q_len, kv_len, kv_len))]


@for_each("padding", KINDS)
@for_each("mask", KINDS)
def test_two_masks_are_one_that_hides_what_either_does(arrays, mask, padding, level):
    """Against a mask of flags alone, or of floats, whose sums are exact here: the same bits."""
    q_len, kv_len = arrays[0].shape[1], arrays[1].shape[1]
    one, other = make_mask(mask, (2, 1, q_len, kv_len), 0), make_mask(padding, (2, 1, 1, kv_len), 1)
    blocked = blocked_of(one) | blocked_of(other)
    added = sum(np.where(blocked, 0, m).astype(np.float64) for m in (one, other) if m.dtype != bool)
    whole = ~blocked if "flags" == mask == padding else np.where(blocked, -np.inf, added).astype(arrays[0].dtype)
    output, weights = attend(arrays, attn_mask=one, key_padding_mask=other, blocked=True)
    expected = attend(arrays, attn_mask=whole)
    assert_same_bits(output, expected[0])
    assert_same_bits(weights, expected[1])


def test_two_float_masks_are_their_sum(arrays, level):
    """Also where they all but cancel: nothing is rounded before the sum is taken."""
    q_len, kv_len = arrays[0].shape[1], arrays[1].shape[1]
    dtype = arrays[0].dtype
    one, other = (
        normal(q_len, kv_len, dtype=dtype) + dtype.type(1e4),
        normal(kv_len, dtype=dtype, seed=1) - dtype.type(1e4),
    )
    found = attend(arrays, attn_mask=one, key_padding_mask=other)
    for array, expected in zip(found, attend(arrays, attn_mask=one + other), strict=True):
        assert_same_bits(array, expected)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_finite_masks_do_not_add_up_to_an_empty_row(share, dtype, level):
    """Half of finfo.min is what people use so that two masks can be added."""
    arrays = [np.zeros((1, 4, 16), dtype)] * 3
    least = np.full((4, 4), share * np.finfo(dtype).min, dtype)
    weights = attend(arrays, attn_mask=least, key_padding_mask=least[:1])[1]
    np.testing.assert_array_equal(weights, np.full((1, 2, 4, 4), 0.25))
    infinite = np.full((4, 4), np.inf, dtype)
    assert np.all(np.isnan(attend(arrays, attn_mask=infinite, key_padding_mask=infinite[:1])[1]))


@for_each("strided", [False, True])
def test_both_polarities_have_the_same_bits(arrays, strided, level):
    shape = (2, 2, arrays[0].shape[1], arrays[1].shape[1])
    blocked = make_mask("flags", shape, 0)
    if strided:
        blocked = np.repeat(blocked, 2, axis=-1)[..., ::2]
    for one, other in zip(
        attend(arrays, attn_mask=blocked, blocked=True), attend(arrays, attn_mask=~blocked), strict=True
    ):
        assert_same_bits(one, other)


def test_any_nonzero_byte_blocks(level):
    """Flags that a view made of bytes: 2 is True, too."""
    arrays = [normal(1, length, 16, seed=n) for n, length in enumerate((50, 64, 64))]
    whole = np.zeros((50, 64), bool)
    whole[:, 32:] = True
    bytes_ = (whole * np.uint8(2)).view(bool)
    assert_same_bits(attend(arrays, attn_mask=bytes_, blocked=True)[0], attend(arrays, attn_mask=~whole)[0])


def test_what_one_mask_hides_no_infinity_of_the_other_brings_back(level):
    arrays = [normal(1, 5, 16, seed=n) for n in range(3)]
    blocked, endless = np.zeros((5, 5), np.float32), np.zeros((1, 5), np.float32)
    blocked[:, 2], endless[:, 2] = -np.inf, np.inf
    for masks in ((blocked, endless), (endless, blocked)):
        output = attend(arrays, attn_mask=masks[0], key_padding_mask=masks[1])[0]
        assert_same_bits(output, attend(arrays, attn_mask=blocked)[0])


def test_a_nan_behind_either_mask_is_not_touched(level):
    query, key, value = (normal(2, length, 16, seed=n) for n, length in enumerate((70, 131, 131)))
    blocked, padding = np.zeros((70, 131), bool), np.zeros((2, 1, 1, 131), bool)
    blocked[:, 7], padding[1, ..., 100] = True, True
    expected = attend((query, key, value), attn_mask=blocked, key_padding_mask=padding, blocked=True)[0]
    key[:, 7] = value[:, 7] = key[1, 100] = value[1, 100] = np.nan
    result = attend((query, key, value), attn_mask=blocked, key_padding_mask=padding, blocked=True)[0]
    assert_same_bits(result, expected)


SCATTERED = np.random.default_rng(0).random((4, 1500)) < 0.3
PAIRS = np.triu(np.ones((1500, 1500), bool), 1)


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
@pytest.mark.parametrize(
    "hidden",
    [
        {"attn_mask": PAIRS, "key_padding_mask": SCATTERED},
        {"attn_mask": np.where(PAIRS, -np.inf, 0).astype("f4"), "is_causal": True},
        {"attn_mask": np.broadcast_to(PAIRS, (8, 1500, 1500)), "window": 3},
        {"key_padding_mask": SCATTERED.astype("f4") / 2, "key_lengths": [9, 8, 0, 1500]},
    ],
    ids=lambda hidden: ", ".join(hidden),
)
def test_no_array_of_all_pairs_is_made(options, hidden):
    """What the call allocates is far below one byte a pair."""
    module = nn.MultiheadAttention(16, 2, 0.1, **options, batch_first=True, rng=0)
    x = normal(4, 1500, 16)

    def call():
        module(x, x, x, **hidden, need_weights=False, rng=0)

    call()
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1500 * 1500 / 4 + x.nbytes


def test_a_warning_looks_at_the_first_and_last_batch_entry():
    """Of a padding: one whose first entry is full says nothing, and one with halves in the last is meant."""
    module = nn.MultiheadAttention(8, 2, batch_first=True, rng=0)
    x = normal(2, 4, 8)
    with pytest.warns(pyattn.MaskWarning, match="key_padding_mask"):
        module(x, x, x, np.array([[0, 0, 0, 0], [0, 0, 1, 1]], np.float32))
    module(x, x, x, np.array([[0, 0, 0, 1], [0.5, 0.25, 0.5, 0.5]], np.float32))  # warnings are errors here


@pytest.mark.parametrize(
    ("name", "shape"), [("attn_mask", (5, 5)), ("key_padding_mask", (2, 5))], ids=["attn_mask", "key_padding_mask"]
)
def test_a_float_mask_of_zeros_and_ones_warns(name, shape):
    module = nn.MultiheadAttention(8, 2, batch_first=True, rng=0)
    x, ones = normal(2, 5, 8), np.eye(*shape, dtype=np.float32)
    message = rf"{name} is a float mask .*; if it means blocked, pass {name}=pyattn.masks.from_blocked\({name}\)$"
    with pytest.warns(pyattn.MaskWarning, match=message) as warned:
        module(x, x, x, **{name: ones})
    assert warned[0].filename == __file__

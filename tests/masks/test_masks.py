"""pyattn.masks against pictures drawn pair by pair; masks together with arguments; masks at the end of the range."""

from __future__ import annotations

import re
import tracemalloc
from itertools import product

import numpy as np
import pytest
from support.helpers import for_each, make_arrays

import pyattn
from pyattn import masks
from pyattn.testing import bounds

SIZES = [(0, 0), (1, 1), (4, 4), (3, 5), (5, 3), (1, 4), (0, 3), (3, 0)]
ALIGNS = ("upper_left", "lower_right")


def drawn(q_len, kv_len, align, left, right):
    """The band of a causal mask or window, pair by pair."""
    offset = kv_len - q_len if align == "lower_right" else 0
    pairs = np.zeros((q_len, kv_len), bool)
    for i, j in product(range(q_len), range(kv_len)):
        before, after = i + offset - j, j - i - offset
        pairs[i, j] = (left is None or before <= left) and (right is None or after <= right)
    return pairs


@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
@pytest.mark.parametrize("align", ALIGNS)
def test_causal_is_a_triangle(q_len, kv_len, align):
    mask = masks.causal(q_len, kv_len, align=align)
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask, drawn(q_len, kv_len, align, None, 0))


@for_each(("q_len", "kv_len"), SIZES)
@for_each("align", ALIGNS)
@for_each("left", [None, 0, 1, 2, 9])
@for_each("right", [None, 0, 1, 9])
def test_window_is_a_band(q_len, kv_len, align, left, right):
    mask = masks.window(q_len, kv_len, left=left, right=right, align=align)
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask, drawn(q_len, kv_len, align, left, right))


def test_squares_need_one_length_and_no_align():
    np.testing.assert_array_equal(masks.causal(4), np.tri(4, dtype=bool))
    np.testing.assert_array_equal(masks.window(4, left=0, right=0), np.eye(4, dtype=bool))


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16"])
@pytest.mark.parametrize("kv_len", [4, 6])
def test_padding_hides_what_lies_behind_each_length(dtype, kv_len):
    lengths = np.array([4, 0, 2], dtype)
    mask = masks.padding(lengths, kv_len)
    assert (mask.dtype, mask.shape) == (np.bool_, (3, 1, 1, kv_len))
    for b, j in np.ndindex(3, kv_len):
        assert mask[b, 0, 0, j] == (j < lengths[b])


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 2), (0, 3)], ids=str)
def test_padding_of_any_batch_axes(shape):
    lengths = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    mask = masks.padding(lengths, np.int64(6))
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask, (np.arange(6) < lengths[..., np.newaxis])[..., np.newaxis, np.newaxis, :])
    np.testing.assert_array_equal(masks.padding(lengths.astype(np.uint8), 6), mask)


def test_padding_of_several_batch_axes_says_what_key_lengths_says():
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((2, 3, 2, n, 4)) for n in (5, 7, 7))
    lengths = rng.integers(0, 8, (2, 3))
    np.testing.assert_array_equal(
        pyattn.attention(query, key, value, attn_mask=masks.padding(lengths, 7)),
        pyattn.attention(query, key, value, key_lengths=lengths),
    )


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_padding_without_heads_says_what_key_lengths_says(batch):
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((batch, n, 4)) for n in (5, 7, 7))
    lengths = rng.integers(0, 8, batch)
    mask = masks.padding(lengths, 7, heads=False)
    assert mask.shape == (batch, 1, 7)
    np.testing.assert_array_equal(
        pyattn.attention(query, key, value, attn_mask=mask), pyattn.attention(query, key, value, key_lengths=lengths)
    )
    np.testing.assert_array_equal(mask, masks.padding(lengths, 7, heads=True)[:, 0])


def test_numpy_integers_are_integers():
    np.testing.assert_array_equal(masks.padding(2, np.int8(3)), [[[True, True, False]]])
    np.testing.assert_array_equal(masks.causal(np.int8(4), np.uint64(4)), np.tri(4, dtype=bool))
    np.testing.assert_array_equal(masks.window(4, left=np.int8(0), right=np.uint8(0)), np.eye(4, dtype=bool))


def test_padding_of_no_batch():
    assert masks.padding([], 3).shape == (0, 1, 1, 3)


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "float16", "float32", "longdouble"])
def test_from_array_reads_one_as_attend(dtype):
    ones = np.array([[1, 0, 1], [0, 0, 1]]).astype(dtype)
    np.testing.assert_array_equal(masks.from_array(ones), ones != 0)
    np.testing.assert_array_equal(masks.from_blocked(ones), ones == 0)


@pytest.mark.parametrize("far", [3, 2**31, 2**63, 10**30])
def test_beyond_the_array_a_side_is_unbounded(far):
    for align in ALIGNS:
        np.testing.assert_array_equal(
            masks.window(5, 3, left=far + 5, right=far + 5, align=align), np.ones((5, 3), bool)
        )
        np.testing.assert_array_equal(
            masks.window(5, 3, left=far + 5, right=0, align=align), masks.causal(5, 3, align=align)
        )


@pytest.mark.parametrize(
    ("make", "most"),
    [
        (lambda n: masks.causal(n), 1.1),
        (lambda n: masks.window(n, left=None, right=3), 1.1),
        (lambda n: masks.window(n, left=3, right=3), 2.1),
        (lambda n: masks.padding(np.full(n, n), n), 1.1),
    ],
    ids=["causal", "one side", "window", "padding"],
)
def test_masks_are_made_of_bools_alone(make, most):
    """Of n * n numbers of eight bytes none is made on the way."""
    tracemalloc.start()
    size = np.asarray(make(1500)).nbytes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == 1500**2
    assert peak <= most * size


# Mistakes


@for_each(
    ("call", "kind", "message"),
    [
        (lambda: masks.causal(3, 5), ValueError, "causal with 3 queries and 5 keys needs align='upper_left' (query 0"),
        (lambda: masks.prefix(2, 3, 5), ValueError, "prefix with 3 queries and 5 keys needs align="),
        (lambda: masks.causal(-1), ValueError, "L is -1, expected 0 or more"),
        (lambda: masks.causal(3, -5, align="upper_left"), ValueError, "S is -5, expected 0 or more"),
        (lambda: masks.causal(3, align="left"), ValueError, "align is 'left'; it must be 'upper_left', 'lower_right'"),
        (
            lambda: masks.causal(3, align=1.5),
            TypeError,
            "align is of type float, expected 'upper_left', 'lower_right' or",
        ),
        (lambda: masks.causal(2.5), TypeError, "L is of type float, expected an int"),
        (lambda: masks.causal(None), TypeError, "L is of type NoneType, expected an int"),
        (lambda: masks.causal(2, 2.0), TypeError, "S is of type float, expected an int"),
        (lambda: masks.causal(True), TypeError, "L is of type bool, expected an int"),
        (lambda: masks.causal(2**63 - 1), ValueError, "L is too large, expected at most 4611686018427387904"),
        (lambda: masks.window(3, left=1.5, right=0), TypeError, "left is of type float, expected an int"),
        (lambda: masks.window(3, left=None, right="0"), TypeError, "right is of type str, expected an int"),
        (lambda: masks.window(3, 5, left=1, right=1), ValueError, "window with 3 queries and 5 keys needs align="),
        (lambda: masks.window(3, left=-1, right=0), ValueError, "left is -1, expected 0 or more"),
        (lambda: masks.window(3, 1, 1), TypeError, "positional"),
        (lambda: masks.padding([1, 2], 2.5), TypeError, "S is of type float, expected an int"),
        (lambda: masks.padding([], -1), ValueError, "S is -1, expected 0 or more"),
        (lambda: masks.padding([3, 5], 4), ValueError, "lengths go from 3 to 5; they must lie between 0 and S, 4"),
        (lambda: masks.padding([-1, 2], 2), ValueError, "lengths go from -1 to 2; they must lie between 0 and S, 2"),
        (lambda: masks.padding([1.0, 2.0], 2), TypeError, "lengths has dtype float64, expected integers; pass numpy"),
        (lambda: masks.padding([True], 2), TypeError, "lengths has dtype bool, expected integers, not a mask"),
        (
            lambda: masks.padding(np.array([2**64 - 1, 2], "u8"), 5),
            ValueError,
            "lengths go from 2 to 18446744073709551615",
        ),
        (lambda: masks.padding([2**70], 5), ValueError, "lengths holds an int outside the range of int64"),
        (
            lambda: masks.padding(np.array([1], object), 5),
            TypeError,
            "lengths has dtype object, expected integers; pass lengths.astype(numpy.int64)",
        ),
        (lambda: masks.padding(["a"], 5), TypeError, "lengths has dtype <U1, expected integers"),
        (lambda: masks.padding([1], 2**63), ValueError, "S is too large, expected at most 4611686018427387904"),
        (lambda: masks.padding([1], 2, heads=1), TypeError, "heads is of type int, expected True or False"),
        (lambda: masks.document([0.5]), TypeError, "q_ids has dtype float64; pass integers"),
        (lambda: masks.document(3), ValueError, "q_ids is a scalar; pass one id for each position"),
        (lambda: masks.document([[1]] * 2, [[1]] * 3), ValueError, "have batch axes that do not broadcast"),
        (
            lambda: masks.from_array([[0.5, 1]]),
            ValueError,
            "array holds values other than 0 and 1; pass a mask that is added",
        ),
        (lambda: masks.from_array([[0, -np.inf]]), ValueError, "array holds values other than 0 and 1"),
        (lambda: masks.from_blocked([[0, np.nan]]), ValueError, "array holds values other than 0 and 1"),
        (lambda: masks.from_array(True), ValueError, "array is a scalar; a mask has shape (..., L, S) or (S,)"),
        (lambda: ~masks.causal(2), TypeError, "~mask is not defined: a mask object means the same everywhere"),
        (
            lambda: bool(masks.causal(2)),
            ValueError,
            "the truth value of a mask is ambiguous; use mask.any() or mask.all()",
        ),
        (lambda: masks.causal(2) & masks.causal(3), ValueError, "masks of shapes (2, 2) and (3, 3) do not broadcast"),
        (
            lambda: masks.causal(2) & np.ones((2, 2)),
            TypeError,
            "the other side of & has dtype float64; it must be a mask",
        ),
        (lambda: np.ones((2, 2), int) | masks.causal(2), TypeError, "the other side of | has dtype int64; it must be"),
        (lambda: masks.causal(2).to_bias(int), TypeError, "dtype is int64; a bias needs floats"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        call()


# With attention


@pytest.fixture
def arrays(dtype):
    return make_arrays((2, 2, 50, 8), (2, 2, 90, 8), (2, 2, 90, 5), dtype=dtype)


def assert_exact(arrays, **arguments):
    """Within the bounds of what is expected of the same arguments."""
    dtype = arrays[0].dtype
    result = pyattn.attention(*arrays, need_weights=True, need_lse=True, **arguments)
    expected = bounds.expect(*arrays, dtype, **arguments)
    assert bounds.output_ratio(result.output, expected) <= bounds.OUTPUT_BAR
    assert bounds.weights_ratio(result.weights, expected) <= 1
    if np.all(np.abs(expected.lse) <= np.finfo(dtype).max):
        assert bounds.lse_ratio(result.lse, expected) <= 1
    return result


@pytest.mark.parametrize("align", ALIGNS)
def test_masks_say_what_arguments_say(arrays, align):
    for said, mask in [
        ({"is_causal": True}, masks.causal(50, 90, align=align)),
        ({"window": (7, 3)}, masks.window(50, 90, left=7, right=3, align=align)),
        ({"window": (None, 3)}, masks.window(50, 90, left=None, right=3, align=align)),
        ({"key_lengths": [90, 17]}, masks.padding([90, 17], 90)),
    ]:
        np.testing.assert_array_equal(
            pyattn.attention(*arrays, align=align, **said), pyattn.attention(*arrays, attn_mask=mask)
        )


@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_and_arguments_are_combined(arrays, align, kind, dtype, level):
    keep = np.random.default_rng(1).random((50, 90)) < 0.5
    mask = keep if kind == "bool" else np.where(keep, 0.25, -np.inf).astype(dtype)
    for said, band in [({"is_causal": True}, (None, 0)), ({"window": 9}, (9, 9)), ({"window": (9, None)}, (9, None))]:
        result = assert_exact(arrays, attn_mask=mask, align=align, **said)
        visible = keep & drawn(50, 90, align, *band)
        np.testing.assert_array_equal(result.weights > 0, np.broadcast_to(visible, result.weights.shape))


def test_all_reasons_at_once(arrays, dtype, level):
    mask = np.random.default_rng(1).random((2, 1, 50, 90)) < 0.8
    assert_exact(
        arrays,
        attn_mask=mask,
        is_causal=True,
        align="lower_right",
        window=(30, 5),
        key_lengths=[70, 90],
        query_lengths=[50, 20],
    )


# The end of the range: finfo.min stands for -inf in many programs


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("queries", [1, 50])
def test_finfo_min_gives_what_float64_gives(arrays, kind, queries, dtype, level):
    """A row that holds only finfo.min is not empty: its keys stay equal, as in the formula."""
    query, key, value = arrays
    mask = np.where(np.random.default_rng(1).random((50, 90)) < 0.5, 0, np.finfo(kind).min).astype(kind)
    mask[0] = mask[7] = np.finfo(kind).min
    mask[3] = np.finfo(kind).max
    result = assert_exact((query[:, :, :queries], key, value), attn_mask=mask[:queries])
    np.testing.assert_allclose(result.weights[:, :, 0].sum(-1), 1, rtol=1e-5)
    if kind != "float16":
        np.testing.assert_allclose(result.weights[:, :, 0], 1 / 90, rtol=1e-5)
    assert np.isfinite(result.lse).all()  # where float32 ends before the mask's dtype does, its last number


@pytest.mark.parametrize("kind", ["float32", "float64", "longdouble"])
def test_finfo_min_hides_as_minus_infinity_does(arrays, kind, level):
    keep = np.random.default_rng(1).random((50, 90)) < 0.5
    keep[:, 0] = True
    least, infinite = (np.where(keep, 0, number).astype(kind) for number in (np.finfo(kind).min, -np.inf))
    one, other = (pyattn.attention(*arrays, attn_mask=mask, need_weights=True) for mask in (least, infinite))
    np.testing.assert_array_equal(one.weights, other.weights)
    np.testing.assert_array_equal(one.output, other.output)


def test_a_mask_beyond_the_query_dtype_stays_finite(level):
    """1e300 is finite: in float32 it becomes the largest number, and wins over all others by itself."""
    query, key, value = (np.ones(shape, np.float32) for shape in ((1, 4), (3, 4), (3, 2)))
    value = np.arange(6, dtype=np.float32).reshape(3, 2)
    for wide in (np.float64, np.longdouble):
        mask = np.array([0, 1e300, -1e300], wide)
        np.testing.assert_array_equal(pyattn.attention(query, key, value, attn_mask=mask), value[1:2])

"""merge_states: attention over parts of the keys, however they are cut and in whatever order, gives the whole."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import _core
from pyattn.testing import bounds

HEADS, Q_LEN, KV_LEN, HEAD_DIM, V_DIM = 2, 9, 700, 16, 5
CUTS = {
    "nothing cut": [],
    "halves": [350],
    "one key first": [1],
    "one key last": [699],
    "at a tile and a chunk": [64, 512],
    "empty parts": [0, 0, 300, 300, 700],
    "many": list(range(7, 700, 13)),
    "single keys": list(range(1, 40)),
}


@pytest.fixture
def arrays(dtype):
    rng = np.random.default_rng(0)
    shapes = ((HEADS, Q_LEN, HEAD_DIM), (HEADS, KV_LEN, HEAD_DIM), (HEADS, KV_LEN, V_DIM))
    return [(rng.standard_normal(shape) * 2).astype(dtype) for shape in shapes]


def parts_of(arrays, cuts, mask=None):
    """Attention over each part of the keys: (part, its keys)."""
    query, key, value = arrays
    for start, stop in zip([0, *cuts], [*cuts, KV_LEN], strict=True):
        own = None if mask is None else mask[..., start:stop]
        part = pyattn.attention(query, key[:, start:stop], value[:, start:stop], attn_mask=own, need_lse=True)
        yield part, slice(start, stop)


def assert_whole(arrays, parts, mask=None):
    """The merged parts are within the bounds of attention over all keys at once."""
    merged, lse = pyattn.merge_states([part.output for part, _ in parts], [part.lse for part, _ in parts])
    part_lse = np.zeros((HEADS, Q_LEN, KV_LEN))
    for part, keys in parts:
        part_lse[..., keys] = part.lse[..., np.newaxis]
    part_lse[part_lse == -np.inf] = 0
    expected = bounds.expect(*arrays, arrays[0].dtype, attn_mask=mask, part_lse=part_lse)
    assert bounds.output_ratio(merged, expected) <= bounds.OUTPUT_BAR
    assert bounds.lse_ratio(lse, expected) <= 1


@for_each("order", ["as cut", "backwards", "shuffled"])
@for_each("cuts", CUTS)
def test_parts_give_the_whole(cuts, order, arrays, level):
    parts = list(parts_of(arrays, CUTS[cuts]))
    if order == "backwards":
        parts.reverse()
    elif order == "shuffled":
        np.random.default_rng(1).shuffle(parts)
    assert_whole(arrays, parts)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masked_parts_give_the_whole(kind, arrays, dtype, level):
    """Some rows see nothing in some parts, and row 3 nothing at all."""
    rng = np.random.default_rng(2)
    keep = rng.random((Q_LEN, KV_LEN)) < 0.3
    keep[0, :400] = keep[1, 300:] = keep[3] = False
    mask = keep if kind == "bool" else np.where(keep, rng.standard_normal(keep.shape), -np.inf).astype(dtype)
    assert_whole(arrays, list(parts_of(arrays, [150, 350, 500], mask)), mask)


def test_parts_of_very_different_weight(arrays, dtype, level):
    """One part outweighs the other by e^60, or by more than the dtype can hold."""
    for gap in (60, 500):
        bias = np.where(np.arange(KV_LEN) < 300, 0, -gap).astype(dtype)
        mask = np.broadcast_to(bias, (Q_LEN, KV_LEN))
        assert_whole(arrays, list(parts_of(arrays, [300, 500], mask)), mask)


def test_merged_parts_can_be_merged_again(arrays, level):
    parts, halves = list(parts_of(arrays, [100, 350, 600])), []
    for (one, first), (other, last) in (parts[:2], parts[2:]):
        output, lse = pyattn.merge_states([one.output, other.output], [one.lse, other.lse])
        halves.append((pyattn.AttentionResult(output, None, lse), slice(first.start, last.stop)))
    assert_whole(arrays, halves)


def test_one_part_is_the_whole(arrays):
    whole = pyattn.attention(*arrays, need_lse=True)
    output, lse = pyattn.merge_states([whole.output], [whole.lse])
    assert_same_bits(output, whole.output)
    assert_same_bits(lse, whole.lse)
    nothing = np.full_like(whole.output, np.nan), np.full_like(whole.lse, -np.inf)
    output, lse = pyattn.merge_states([nothing[0], whole.output, nothing[0]], [nothing[1], whole.lse, nothing[1]])
    assert_same_bits(output, whole.output)
    assert_same_bits(lse, whole.lse)


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("number", [0, np.nan, np.inf])
def test_nothing_and_nothing_is_nothing(parts, number, dtype):
    """Whatever the outputs hold."""
    outputs = [np.full((2, 3), number, dtype)] * parts
    output, lse = pyattn.merge_states(outputs, [np.full(2, -np.inf, dtype)] * parts)
    assert_same_bits(output, np.zeros((2, 3), dtype))
    np.testing.assert_array_equal(lse, [-np.inf, -np.inf])


def test_nan_that_counts_is_not_lost():
    outputs, lses = np.array([[[1.0, np.nan]], [[3.0, 4.0]]]), np.zeros((2, 1))
    np.testing.assert_array_equal(pyattn.merge_states(outputs, lses)[0], [[2, np.nan]])
    for order in ([np.nan, 0], [0, np.nan]):
        output, lse = pyattn.merge_states([[1.0], [2.0]], order)
        assert np.isnan(output).all()
        assert np.isnan(lse)


# Layouts


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize(("q_len", "heads"), [(4, 4), (5, 2), (1, 3), (3, 1)])
def test_layouts_give_the_same(q_len, heads, batch, dtype):
    """Where L is the number of heads, too: shapes cannot tell there."""
    rng = np.random.default_rng(0)
    axes = ((q_len, heads, 8), (30, heads, 8), (30, heads, 5))
    query, key, value = (rng.standard_normal(batch + shape).astype(dtype) for shape in axes)
    said = {"layout": "bshd", "enable_gqa": True, "need_lse": True}
    whole = pyattn.attention(query, key, value, **said)
    parts = [pyattn.attention(query, key[..., s, :, :], value[..., s, :, :], **said) for s in np.s_[:7, 7:20, 20:]]
    outputs, lses = [part.output for part in parts], [part.lse for part in parts]
    output, lse = pyattn.merge_states(outputs, lses, layout="bshd")
    tolerance = 50 * np.finfo(dtype).eps
    np.testing.assert_allclose(output, whole.output, rtol=0, atol=tolerance)
    np.testing.assert_allclose(lse, whole.lse, rtol=tolerance)
    assert output.flags.c_contiguous
    assert lse.flags.c_contiguous
    moved = pyattn.merge_states([out.swapaxes(-3, -2) for out in outputs], lses, layout="bhsd")
    assert_same_bits(output, moved[0].swapaxes(-3, -2))
    assert_same_bits(lse, moved[1])


@pytest.mark.parametrize("shape", [(3,), (3, 5), (0, 5)], ids=str)
def test_without_heads_there_is_no_other_layout(shape):
    """As of attention, whose outputs these are."""
    message = f"outputs[0] has shape {shape}, expected at least 3 axes: (..., L, heads, v_dim); without heads, leave"
    with pytest.raises(ValueError, match=re.escape(message)):
        pyattn.merge_states([np.ones(shape)], [np.ones(shape[:-1])], layout="bshd")
    with pytest.raises(ValueError, match="layout='bshd' needs 4 axes"):
        pyattn.attention(*[np.ones((3, 5))] * 3, layout="bshd")
    pyattn.merge_states([np.ones(shape)], [np.ones(shape[:-1])])


@pytest.mark.parametrize(
    ("output", "lse", "layout", "message"),
    [
        (
            (2, 7, 3, 5),
            (2, 3, 7),
            "bhsd",
            "lses[0] has shape (2, 3, 7), expected (2, 7, 3): outputs[0] is (2, 7, 3, 5); "
            "if its axes are those of 'bshd', pass layout='bshd'",
        ),
        (
            (2, 3, 7, 5),
            (2, 3, 7),
            "bshd",
            "lses[0] has shape (2, 3, 7), expected (2, 7, 3): outputs[0] is (2, 3, 7, 5); "
            "if its axes are those of 'bhsd', pass layout='bhsd'",
        ),
        (
            (2, 3, 7, 5),
            (3, 2, 7),
            "bhsd",
            "lses[0] has shape (3, 2, 7), expected (2, 3, 7): outputs[0] is (2, 3, 7, 5)",
        ),
        ((2, 3), (2,), "sbhd", "layout is 'sbhd'; it must be 'bhsd' or 'bshd'"),
        ((2, 3), (2,), None, "layout is None; it must be 'bhsd' or 'bshd'"),
        ((2, 3), (2,), ["bhsd"], "layout is of type list; it must be 'bhsd' or 'bshd'"),
    ],
    ids=str,
)
def test_layouts_are_checked(output, lse, layout, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pyattn.merge_states([np.ones(output)], [np.ones(lse)], layout=layout)


# How parts are given


def test_one_array_holds_the_parts_too(dtype):
    rng = np.random.default_rng(0)
    outputs, lses = rng.random((4, 2, 3, 5)).astype(dtype), rng.random((4, 2, 3)).astype(dtype)
    for one, other in zip(pyattn.merge_states(outputs, lses), pyattn.merge_states(list(outputs), [*lses]), strict=True):
        assert one.dtype == dtype
        assert_same_bits(one, other)


@pytest.mark.parametrize("shape", [(1,), (3,), (0,), (2, 0), (0, 3), (2, 1, 3)], ids=str)
def test_shapes(shape, dtype):
    output, lse = pyattn.merge_states([np.ones(shape, dtype)] * 2, [np.zeros(shape[:-1], dtype)] * 2)
    assert (output.shape, lse.shape) == (shape, shape[:-1])
    assert (output.dtype, lse.dtype) == (dtype, dtype)
    np.testing.assert_array_equal(output, 1)
    np.testing.assert_allclose(lse, np.log(2), rtol=1e-6)


def test_memory_and_dtypes_do_not_matter():
    rng = np.random.default_rng(0)
    outputs, lses = rng.random((2, 4, 3)), rng.random((2, 4))
    expected = pyattn.merge_states(outputs, lses)
    for store in (np.asfortranarray, lambda x: x[::-1].copy()[::-1], lambda x: x.astype(">f8"), np.ndarray.tolist):
        for one, other in zip(
            pyattn.merge_states([store(x) for x in outputs], [store(x) for x in lses]), expected, strict=True
        ):
            assert_same_bits(one, other)
    single = outputs.astype(np.float32)
    assert [x.dtype for x in pyattn.merge_states([single[0], single[1]], lses)] == [np.float64, np.float64]
    assert [x.dtype for x in pyattn.merge_states([[[1, 2]]], [[0]])] == [np.float64, np.float64]


@pytest.mark.parametrize(
    ("outputs", "lses", "kind", "message"),
    [
        ([], [], ValueError, "outputs and lses have 0 and 0 entries; pass one of each per chunk, at least one"),
        ([[[1.0]]], [], ValueError, "outputs and lses have 1 and 0 entries; pass one of each per chunk, at least one"),
        ([1.0], [1.0], ValueError, "outputs[0] is a scalar, expected (..., L, v_dim)"),
        ([[[1.0]], [[1.0, 2.0]]], [[0.0]] * 2, ValueError, "outputs[1] has shape (1, 2) but outputs[0] has (1, 1)"),
        ([[[1.0]]], [[0.0, 0.0]], ValueError, "lses[0] has shape (2,), expected (1,): outputs[0] is (1, 1)"),
        (
            [[[1j]]],
            [[0.0]],
            TypeError,
            "outputs[0] has dtype complex128, expected float16, bfloat16, float32 or float64",
        ),
        ([[[1.0]]], [np.ma.array([0.0])], TypeError, "lses[0] is a masked array"),
        ([[["a"]]], [[0.0]], TypeError, "outputs[0] holds text (dtype <U1)"),
        ([[[1.0]], None], [[0.0]] * 2, TypeError, "outputs[1] is an object of type NoneType"),
        (3, 3, TypeError, "outputs is of type int, expected a list of arrays; for one chunk, pass [outputs]"),
        (np.float64(3), [0.0], TypeError, "outputs is of type float64, expected a list of arrays"),
        ([[1.0]], None, TypeError, "lses is of type NoneType, expected a list of arrays"),
    ],
    ids=str,
)
def test_mistakes_are_named(outputs, lses, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        pyattn.merge_states(outputs, lses)


@for_each("parts", [2, 20, 50, 1000])
@for_each("sign", [1, -1])
def test_equal_outputs_at_the_end_of_the_range_stay_there(parts, sign, dtype):
    """Shares add up to 1 and a rounding, so that the sum may overflow."""
    largest = sign * np.finfo(dtype).max
    outputs, lses = [np.full((1, 2), largest, dtype)] * parts, [np.zeros(1, dtype)] * parts
    output, _ = pyattn.merge_states(outputs, lses)
    np.testing.assert_allclose(output, largest, rtol=1000 * np.finfo(np.float64).eps)
    infinite = [*outputs[1:], np.full((1, 2), sign * np.inf, dtype)]
    assert (pyattn.merge_states(infinite, lses)[0] == sign * np.inf).all()


@for_each("place", range(4))
def test_the_core_takes_tuples_and_arrays(place):
    x, lse = np.ones((2, 3)), np.ones(2)
    given = [(x,), (lse,), x.copy(), lse.copy()]
    given[place] = [given[place]] if place > 1 else list(given[place])
    with pytest.raises(
        TypeError, match=r"^merge_states\(outputs: tuple, lses: tuple, output: ndarray, lse: ndarray\)$"
    ):
        _core.merge_states(*given)

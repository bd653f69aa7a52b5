"""attention(..., out=): the same object comes back, filled; what does not fit is refused and left as it was."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from support.helpers import assert_same_bits, bits, for_each

import pyattn

SHAPE = (2, 3, 40, 8)  # (batch, heads, length, dim) of query, key, value and output alike


@pytest.fixture
def arrays(dtype):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(SHAPE).astype(dtype) for _ in range(3)]


def filled(shape, dtype):
    return np.full(shape, 7, dtype)


def unaligned(shape, dtype):
    raw = np.zeros(np.prod(shape) * np.dtype(dtype).itemsize + 1, np.uint8)[1:]
    return raw.view(dtype).reshape(shape)


OUTS = {
    "contiguous": filled,
    "fortran": lambda shape, dtype: np.asfortranarray(filled(shape, dtype)),
    "last axis stepped": lambda shape, dtype: filled((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2],
    "last axis backwards": lambda shape, dtype: filled(shape, dtype)[..., ::-1],
    "rows backwards": lambda shape, dtype: filled(shape, dtype)[..., ::-1, :],
    "part of a wider array": lambda shape, dtype: filled((*shape[:-1], 50), dtype)[..., 5 : 5 + shape[-1]],
    "heads behind lengths": lambda shape, dtype: filled((2, 40, 3, 8), dtype).swapaxes(1, 2),
    "byte-swapped": lambda shape, dtype: filled(shape, np.dtype(dtype).newbyteorder()),
    "unaligned": unaligned,
    "subclass": lambda shape, dtype: filled(shape, dtype).view(type("Named", (np.ndarray,), {})),
}


@for_each("need_weights", [False, True])
@for_each("kind", OUTS)
def test_out_comes_back_filled(kind, need_weights, arrays, dtype, level):
    out = OUTS[kind](SHAPE, dtype)
    result = pyattn.attention(*arrays, out=out, need_weights=need_weights)
    assert (result.output if need_weights else result) is out
    assert_same_bits(np.asarray(out), pyattn.attention(*arrays))


def test_nothing_around_out_is_written(arrays, dtype):
    around = filled((4, 5, 44, 12), dtype)
    inside = around[1:3, 1:4, 2:42, 2:10]
    expected = around.copy()
    expected[1:3, 1:4, 2:42, 2:10] = pyattn.attention(*arrays)
    pyattn.attention(*arrays, out=inside)
    assert_same_bits(around, expected)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("view", ["itself", "shifted", "backwards"])
def test_out_may_overlap_an_input(which, view, arrays, level):
    expected = pyattn.attention(*arrays)
    if view == "itself":
        out = arrays[which]
    else:
        longer = np.concatenate([arrays[which], arrays[which][:1]])
        arrays[which] = longer[:2]
        out = longer[1:] if view == "shifted" else longer[:2, :, ::-1]
    assert pyattn.attention(*arrays, out=out) is out
    assert_same_bits(out, expected)


def test_out_may_overlap_the_mask(arrays, dtype):
    memory = np.random.default_rng(1).standard_normal(40 * 40 * 6).astype(dtype)
    mask, out = memory[:1600].reshape(40, 40), memory[: np.prod(SHAPE)].reshape(SHAPE)
    expected = pyattn.attention(*arrays, attn_mask=mask.copy())
    assert_same_bits(pyattn.attention(*arrays, attn_mask=mask, out=out), expected)


@pytest.mark.parametrize("name", ["key_lengths", "query_lengths"])
def test_out_may_overlap_lengths(name, arrays, dtype):
    memory = np.zeros(2000, np.int64)
    lengths, out = memory[1:3], memory.view(dtype)[: np.prod(SHAPE)].reshape(SHAPE)
    lengths[:] = 30, 7
    expected = pyattn.attention(*arrays, **{name: lengths.copy()})
    assert_same_bits(pyattn.attention(*arrays, **{name: lengths}, out=out), expected)


def frozen(shape, dtype):
    array = filled(shape, dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda dtype: filled((2, 3, 40, 9), dtype), r"out has shape \(2, 3, 40, 9\), expected \(2, 3, 40, 8\)"),
        (lambda dtype: filled((6, 40, 8), dtype), r"out has shape \(6, 40, 8\), expected \(2, 3, 40, 8\)"),
        (lambda dtype: filled(SHAPE, np.float16), "out has dtype float16, expected float"),
        (lambda dtype: filled(SHAPE, np.int64), "out has dtype int64, expected float"),
        (lambda dtype: frozen(SHAPE, dtype), "out is read-only; pass an array that can be written"),
    ],
    ids=["shape", "axes", "narrow dtype", "integers", "read-only"],
)
def test_what_does_not_fit_is_refused_untouched(make, message, arrays, dtype):
    out = make(dtype)
    before = out.copy()
    with pytest.raises(ValueError, match=message):
        pyattn.attention(*arrays, out=out)
    np.testing.assert_array_equal(out, before)


def test_the_other_float_dtype_is_refused(arrays, dtype):
    other = "float64" if dtype == "float32" else "float32"
    with pytest.raises(ValueError, match=f"out has dtype {other}, expected {dtype}"):
        pyattn.attention(*arrays, out=filled(SHAPE, other))


def test_what_is_no_ndarray_is_refused(arrays):
    with pytest.raises(TypeError, match=r"out is of type list, expected a numpy\.ndarray"):
        pyattn.attention(*arrays, out=[])


@pytest.mark.parametrize(
    "mistake", [{"attn_mask": np.ones((2, 2), bool)}, {"key_lengths": [41, 0]}, {"scale": "1"}], ids=str
)
def test_other_mistakes_leave_out_untouched(mistake, arrays, dtype):
    out = filled(SHAPE, dtype)
    with pytest.raises((ValueError, TypeError)):
        pyattn.attention(*arrays, **mistake, out=out)
    np.testing.assert_array_equal(out, 7)


def test_a_warning_turned_error_leaves_out_untouched(arrays, dtype):
    out = filled(SHAPE, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(pyattn.MaskWarning):
            pyattn.attention(*arrays, attn_mask=np.eye(40, dtype=dtype), out=out)
    np.testing.assert_array_equal(out, 7)


def test_a_call_without_rows_writes_nothing():
    empty = np.zeros((0, 4))
    out = np.zeros((0, 4))
    assert pyattn.attention(empty, empty, empty, out=out) is out
    assert bits(out).size == 0


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_arrays_with_another_meaning_are_refused(arrays, dtype):
    flat = [x[0, 0] for x in arrays]
    for out in (np.ma.masked_all((40, 8), dtype), np.matrix(np.zeros((40, 8), dtype))):
        with pytest.raises(TypeError, match=r"^out is of type \w+; pass a plain numpy.ndarray"):
            pyattn.attention(*flat, out=out)


def test_converted_masks_and_arrays_stay_small(dtype):
    """Broadcast axes are converted once: the other byte order, or another dtype, costs the memory of what is there."""
    rng = np.random.default_rng(1)
    query = rng.standard_normal((2, 3, 200, 32)).astype(dtype)
    key = rng.standard_normal((2000, 32)).astype(np.float32)
    mask = rng.standard_normal(2000).astype(np.float32)
    keys = np.broadcast_to(key.astype(">f4"), (2, 3, 2000, 32))
    masks = np.broadcast_to(mask.astype(">f4"), (2, 3, 200, 2000))
    native = np.broadcast_to(key.astype(dtype), keys.shape)

    def call(keys, masks):
        tracemalloc.start()
        output = pyattn.attention(query, keys, keys, attn_mask=masks)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return output, peak

    call(native, mask)  # makes the scratch memory that later calls find
    plain, usual = call(native, mask)
    output, peak = call(keys, masks)
    converted = 2 * key.astype(dtype).nbytes + mask.nbytes  # keys and values
    assert peak < usual + 1.2 * converted
    assert_same_bits(output, plain)

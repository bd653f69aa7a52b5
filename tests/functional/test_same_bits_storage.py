"""The same bits however the numbers lie in memory: strides, order, alignment, byte order, files; arrays and masks."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support import drawing
from support.helpers import assert_same_bits, for_each, make_arrays

import pyattn
from pyattn import _core, nn

pytestmark = pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # drawn masks may hide all keys


def stepped(array):
    wide = np.repeat(array, 2, axis=-1)
    wide[..., 1::2] = True if array.dtype == bool else np.nan
    return wide[..., ::2]


def rows_apart(array, bytes_apart=16384):
    """Rows a power of two apart, as those of (batch, length, heads, dim) views are."""
    wide = np.full((*array.shape[:-1], bytes_apart // array.itemsize), 7).astype(array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def unaligned(array):
    return np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


STORAGE = {
    "stepped": stepped,
    "rows apart": rows_apart,
    "columns first": lambda array: array.swapaxes(-1, -2).copy().swapaxes(-1, -2),
    "heads last": lambda array: np.moveaxis(np.moveaxis(array, 0, -1).copy(), -1, 0),
    "fortran": np.asfortranarray,
    "last axis backwards": lambda array: array[..., ::-1].copy()[..., ::-1],
    "rows backwards": lambda array: array[..., ::-1, :].copy()[..., ::-1, :],
    "all backwards": lambda array: np.flip(np.flip(array).copy()),
    "unaligned": unaligned,
    "byte-swapped": lambda array: array.astype(array.dtype.newbyteorder()),
    "read-only": frozen,
    "subclass": lambda array: array.view(type("Named", (np.ndarray,), {})),
}
HEADS, Q_LEN, KV_LEN, HEAD_DIM, V_DIM = 3, 37, 600, 20, 12


@pytest.fixture
def arrays(dtype):
    return make_arrays(
        (2, HEADS, Q_LEN, HEAD_DIM), (2, HEADS, KV_LEN, HEAD_DIM), (2, HEADS, KV_LEN, V_DIM), dtype=dtype
    )


def attend(query, key, value, queries=Q_LEN, **arguments):
    return pyattn.attention(query[..., :queries, :], key, value, need_lse=True, need_weights=True, **arguments)


@for_each("queries", [1, Q_LEN])
@for_each("storage", STORAGE)
def test_arrays_in_any_memory(storage, queries, arrays, level):
    expected = attend(*arrays, queries)
    stored = [STORAGE[storage](array) for array in arrays]
    assert_same_bits(attend(*stored, queries), expected)
    for n in range(3):  # one alone, too
        mixed = [*arrays]
        mixed[n] = stored[n]
        assert_same_bits(attend(*mixed, queries), expected, f"argument {n}")


@pytest.mark.parametrize("queries", [1, Q_LEN])
def test_arrays_in_a_file(queries, arrays, dtype, tmp_path):
    expected = attend(*arrays, queries)
    mapped = []
    for n, array in enumerate(arrays):
        array.tofile(tmp_path / str(n))
        mapped.append(np.memmap(tmp_path / str(n), dtype=dtype, mode="r", shape=array.shape))
    assert_same_bits(attend(*mapped, queries), expected)


@pytest.mark.parametrize("queries", [1, Q_LEN])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_arrays_that_are_broadcast(axes, queries, arrays, level):
    """A stride of 0, an axis of size 1 and a full copy."""
    query, *shared = arrays
    ones = [array[tuple(slice(0, 1) if n in axes else slice(None) for n in range(4))] for array in shared]
    zero_strides = [np.broadcast_to(one, array.shape) for one, array in zip(ones, shared, strict=True)]
    expected = attend(query, *(array.copy() for array in zero_strides), queries)
    assert_same_bits(attend(query, *zero_strides, queries), expected)
    assert_same_bits(attend(query, *ones, queries), expected)


@pytest.mark.parametrize("queries", [1, Q_LEN])
def test_layouts_are_alike(queries, arrays, level):
    expected = attend(*(array[..., :queries, :] if n == 0 else array for n, array in enumerate(arrays)))
    query, key, value = (array.swapaxes(1, 2) for array in arrays)
    for copy in (np.asarray, np.ascontiguousarray):
        result = pyattn.attention(
            *map(copy, (query[:, :queries], key, value)), layout="bshd", need_lse=True, need_weights=True
        )
        assert_same_bits((result.output.swapaxes(1, 2), *result[1:]), expected)


@functools.cache
def make_mask(kind):
    rng = np.random.default_rng(1)
    keep = rng.random((2, HEADS, Q_LEN, KV_LEN)) < 0.6
    keep[:, :, :, 192:320] = False
    return keep if kind == "bool" else np.where(keep, rng.standard_normal(keep.shape), -np.inf).astype(kind)


@for_each("kind", ["bool", "float16", "float32", "float64", "longdouble"])
@for_each("storage", STORAGE)
def test_masks_in_any_memory(storage, kind, arrays, level):
    for queries in (1, Q_LEN):
        mask = make_mask(kind)[..., :queries, :]
        expected = attend(*arrays, queries, attn_mask=mask.copy())
        assert_same_bits(attend(*arrays, queries, attn_mask=STORAGE[storage](mask)), expected, f"{queries} queries")


@for_each("kind", ["bool", "float16", "float32", "float64"])
@for_each("axes", [(0,), (0, 1), (2,), (3,), (0, 1, 2), (0, 1, 2, 3)])
def test_masks_that_are_broadcast(axes, kind, arrays, level):
    for queries in (1, Q_LEN):
        mask = make_mask(kind)[..., :queries, :]
        one = mask[tuple(slice(0, 1) if n in axes else slice(None) for n in range(4))]
        expected = attend(*arrays, queries, attn_mask=np.broadcast_to(one, mask.shape).copy())
        assert_same_bits(attend(*arrays, queries, attn_mask=np.broadcast_to(one, mask.shape)), expected)
        assert_same_bits(attend(*arrays, queries, attn_mask=one), expected)


LIMITS = {
    "lengths": {"key_lengths": [300, 77], "query_lengths": [30, 33]},
    "causal": {"is_causal": True, "align": "lower_right"},
    "window": {"window": (70, 10), "align": "lower_right"},
    "dropout": {"dropout_p": 0.3, "rng": 5},
    "long rows": {"key_lengths": [KV_LEN, 1]},
}


@for_each("kind", ["bool", "float16", "float32", "float64"])
@for_each("limits", LIMITS)
def test_a_mask_that_heads_share_is_read_for_each_of_them(limits, kind, arrays, level):
    """It is read once for all heads of a task, whose rows may see other keys."""
    one = make_mask(kind)[0, 0]
    copied = np.broadcast_to(one, make_mask(kind).shape).copy()
    nan = [arrays[0], arrays[1], np.where(np.arange(KV_LEN)[:, np.newaxis] == 200, np.nan, arrays[2])]
    for given in (arrays, nan):
        for threads in (1, 3):
            options = {**LIMITS[limits], "num_threads": threads, "need_lse": True}
            expected = pyattn.attention(*given, attn_mask=copied, **options)
            assert_same_bits(pyattn.attention(*given, attn_mask=one, **options), expected)


@pytest.mark.parametrize("kind", ["int8", ">i4", "uint16", ">u8"])
def test_lengths_of_any_integer_dtype(kind, arrays):
    expected = attend(*arrays, key_lengths=[100, 7], query_lengths=[30, 5])
    lengths = [np.array(pair).astype(kind) for pair in ([100, 7], [30, 5])]
    assert_same_bits(attend(*arrays, key_lengths=lengths[0], query_lengths=lengths[1]), expected)
    backwards = [np.flip(np.flip(pair).copy()) for pair in lengths]
    assert_same_bits(attend(*arrays, key_lengths=backwards[0], query_lengths=backwards[1]), expected)


def module_of(state):
    return nn.MultiheadAttention.from_arrays(state, 2, batch_first=True)


def in_a_file(folder, array):
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("storage", [*STORAGE, "stride 0", "in a file"])
def test_inputs_masks_and_weights_of_multi_head_attention(storage, dtype, tmp_path):
    stores = {"stride 0": lambda array: np.broadcast_to(array[:1], array.shape)}
    stores["in a file"] = functools.partial(in_a_file, tmp_path)
    stores |= {name: lambda array, store=store: store(array[np.newaxis])[0] for name, store in STORAGE.items()}
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((2, Q_LEN, 8)).astype(dtype) for name in ("query", "key", "value")}
    masks = {"attn_mask": rng.standard_normal((4, Q_LEN, Q_LEN)), "key_padding_mask": rng.random((2, Q_LEN)) < 0.3}
    weights = nn.MultiheadAttention(8, 2, add_bias_kv=True, dtype=dtype, rng=1).state_dict()
    stored = [{name: stores[storage](array) for name, array in some.items()} for some in (weights, inputs, masks)]
    weights, inputs, masks = (
        {name: np.array(array, array.dtype.newbyteorder("="), order="C") for name, array in some.items()}
        for some in stored
    )
    expected = module_of(weights)(**inputs, **masks)
    for n, (arrays, plain) in enumerate(zip(stored, (weights, inputs, masks), strict=True)):
        for name in arrays:  # one alone, too
            mixed = [weights, inputs, masks]
            mixed[n] = {**plain, name: arrays[name]}
            for one, other in zip(module_of(mixed[0])(**mixed[1], **mixed[2]), expected, strict=True):
                assert_same_bits(one, other, name)
    for one, other in zip(module_of(stored[0])(**stored[1], **stored[2]), expected, strict=True):
        assert_same_bits(one, other)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(10))
def test_drawn_cases(first, levels):
    """Of the cases that are checked against exact numbers, every third: contiguous, more threads, other wide levels."""
    wide = [level for level in levels if level != "scalar"] or levels
    for index in range(first, drawing.CASES, 30):
        case = drawing.draw(index)
        query, key, value, arguments = drawing.build(case)
        _core._set_isa(wide[0])
        expected = pyattn.attention(query, key, value, **arguments, need_weights=True, need_lse=True, num_threads=1)
        copies = [np.array(array, dtype=case.dtype, order="C") for array in (query, key, value)]
        if arguments["attn_mask"] is not None:
            mask = arguments["attn_mask"]
            arguments["attn_mask"] = np.array(mask, dtype=mask.dtype.newbyteorder("="), order="C")
        for level in wide:
            _core._set_isa(level)
            result = pyattn.attention(*copies, **arguments, need_weights=True, need_lse=True, num_threads=3)
            assert_same_bits(result, expected, case)
        assert_same_bits(pyattn.attention(*copies, **arguments, num_threads=2), expected.output, case)


def test_other_dtypes_are_converted_first(arrays):
    """Mixed float dtypes give what the promoted arrays give."""
    wide = [array.astype(np.float64) for array in arrays]
    for n in range(3):
        mixed = [array.astype(np.float32) for array in wide]
        promoted = [array.astype(np.float64) for array in mixed]
        mixed[n] = promoted[n]
        assert_same_bits(attend(*mixed), attend(*promoted))

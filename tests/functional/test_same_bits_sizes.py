"""The claims of test_same_bits.py where heads have other sizes, and where they are (batch, length, heads, dim) views.

The sizes are those at which the kernels change their ways: less than a vector, a vector and a rest, whole vectors, the
128 features after which a dot product is folded, and more than one fold.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.helpers import EVERYTHING, assert_same_bits, for_each, part

import pyattn
from pyattn import _core

BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN = 2, 4, 2, 36, 580
LAST = KV_LEN - Q_LEN  # query i of a causal call sees keys 0 to LAST + i
CAUSAL = {"is_causal": True, "align": "lower_right"}
# (head_dim, v_dim)
DIMS = [(1, 24), (130, 300), (64, 128), (24, 130), (64, 64), (128, 128), (300, 1)][: 7 if EVERYTHING else 3]


def as_view(array):
    """The same numbers in (batch, length, heads, dim) order."""
    return np.ascontiguousarray(array.swapaxes(1, 2)).swapaxes(1, 2)


ARRANGEMENTS = {"contiguous": lambda array: array, "view": as_view}


@functools.cache
def drawn(dims, dtype):
    rng = np.random.default_rng(dims)
    head_dim, v_dim = dims
    shapes = ((BATCH, HEADS, Q_LEN, head_dim), (BATCH, KV_HEADS, KV_LEN, head_dim), (BATCH, KV_HEADS, KV_LEN, v_dim))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


@pytest.fixture(params=DIMS, ids=str)
def dims(request):
    return request.param


@pytest.fixture(params=ARRANGEMENTS)
def arrays(request, dims, dtype):
    return [ARRANGEMENTS[request.param](array) for array in drawn(dims, dtype)]


@functools.cache
def keep():
    mask = np.random.default_rng(0).random((Q_LEN, KV_LEN)) < 0.7
    mask[:, 128:256] = False  # some tiles are dead, others whole
    mask[:, 256:330] = True
    return mask


@pytest.fixture(params=["all", "causal", "bool"])
def masked(request):
    """One way to mask, as arguments."""
    return {"all": {}, "causal": CAUSAL, "bool": {"attn_mask": keep()}}[request.param]


def attend(arrays, **arguments):
    return pyattn.attention(*arrays, need_lse=True, **arguments)


@pytest.mark.threads
def test_any_number_of_threads(arrays, masked, level):
    alone = attend(arrays, num_threads=1, **masked)
    for threads in (2, 3, 7):
        assert_same_bits(attend(arrays, num_threads=threads, **masked), alone, f"{threads} threads")


def test_a_query_whose_keys_are_in_memory(dtype, level):
    """One query of 128 features reads keys of more than 8 MB in another way than several, or than keys in the cache."""
    query, key = (np.random.default_rng(n).standard_normal((n, 128)).astype(dtype) for n in (40, 17_000))
    several = pyattn.attention(query, key, key)
    assert_same_bits(pyattn.attention(query[:1], key, key), several[:1])


@pytest.mark.threads
@for_each("queries", [1, 16])
def test_any_number_of_threads_in_decode(arrays, queries, level):
    """The threads share out the keys, which are here given thrice to make the call worth it."""
    query, *others = arrays
    arrays = (query[:, :, -queries:], *(np.concatenate([array] * 3, axis=2) for array in others))
    alone = attend(arrays, num_threads=1, **CAUSAL)
    for threads in (2, 3):
        assert_same_bits(attend(arrays, num_threads=threads, **CAUSAL), alone, f"{threads} threads")


def test_a_batch_entry_and_a_head_alone(arrays, masked, level):
    query, key, value = arrays
    together = attend(arrays, **masked)
    assert_same_bits(attend([array[1:] for array in arrays], **masked), part(together, slice(1, 2)))
    assert_same_bits(attend((query[1, 3], key[1, 1], value[1, 1]), **masked), part(together, 1, 3))


@for_each("rows", [[0], list(range(2, 17)), list(range(3, 30))])
def test_all_rows_and_a_few_alone(arrays, rows, level):
    """A few rows take the decode path, all of them the prefill path."""
    query, key, value = arrays
    for mask in (None, keep()):
        together = attend(arrays, attn_mask=mask, need_weights=True)
        own = None if mask is None else mask[rows]
        alone = attend((query[:, :, rows], key, value), attn_mask=own, need_weights=True)
        assert_same_bits(alone, part(together, slice(None), slice(None), rows))


@for_each("i", [0, 35])
def test_decode_has_prefill_bits(arrays, i, level):
    query, key, value = arrays
    prefill, seen = attend(arrays, **CAUSAL), LAST + i + 1
    decode = attend((query[:, :, i : i + 1], key[:, :, :seen], value[:, :, :seen]))
    assert_same_bits(decode, part(prefill, slice(None), slice(None), slice(i, i + 1)))


def test_what_else_is_asked_for(arrays, masked, level):
    everything = attend(arrays, need_weights=True, **masked)
    assert_same_bits(pyattn.attention(*arrays, **masked), everything.output)
    out = as_view(np.full_like(everything.output, 7))
    assert_same_bits(pyattn.attention(*arrays, out=out, **masked), everything.output)


@pytest.mark.parametrize("queries", [2, Q_LEN])
def test_a_view_its_layout_and_a_copy_are_alike(dims, queries, dtype, level):
    query, *others = drawn(dims, dtype)
    arrays = query[:, :, :queries], *others
    copy, views = attend(arrays, need_weights=True), [as_view(array) for array in arrays]
    assert_same_bits(attend(views, need_weights=True), copy)
    turned = attend([view.swapaxes(1, 2) for view in views], layout="bshd", need_weights=True)
    assert_same_bits((turned.output.swapaxes(1, 2), *turned[1:]), copy)


@pytest.mark.parametrize("queries", [1, Q_LEN])
def test_wide_levels_are_alike(arrays, queries, levels):
    """All but scalar, which cannot fuse a multiplication and an addition on every machine."""
    wide = [level for level in levels if level != "scalar"]
    if len(wide) < 2:
        pytest.skip(f"this machine has {wide or 'no wide level'}: nothing to compare")
    query, key, value = arrays
    results = []
    for level in wide:
        _core._set_isa(level)
        results.append(attend((query[:, :, -queries:], key, value), need_weights=True, **CAUSAL))
    for level, result in zip(wide[1:], results[1:], strict=True):
        assert_same_bits(result, results[0], f"{level} and {wide[0]}")

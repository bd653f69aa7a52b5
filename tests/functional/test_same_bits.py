"""The same bits for a row, whatever surrounds it: threads, batch, other rows, memory, what else is asked for, level."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, part

import pyattn
from pyattn import _core

THREADS = (1, 2, 3, 7)
BATCH, HEADS, KV_HEADS, Q_LEN, KV_LEN, HEAD_DIM, V_DIM = 2, 4, 2, 70, 1100, 24, 20
LAST = KV_LEN - Q_LEN  # under lower_right, query i sees keys 0 to LAST + i

MASKS = {
    "all": {},
    "causal": {"is_causal": True, "align": "lower_right"},
    "causal upper left": {"is_causal": True, "align": "upper_left"},
    "window": {"window": (200, 30), "align": "lower_right"},
    "lengths": {"key_lengths": [900, 64], "query_lengths": [70, 33]},
}


@pytest.fixture(scope="module")
def drawn():
    """The arrays of all tests here in both dtypes, and a bool and a float mask."""
    rng = np.random.default_rng(0)
    shapes = ((BATCH, HEADS, Q_LEN, HEAD_DIM), (BATCH, KV_HEADS, KV_LEN, HEAD_DIM), (BATCH, KV_HEADS, KV_LEN, V_DIM))
    arrays = [rng.standard_normal(shape) for shape in shapes]
    keep = rng.random((Q_LEN, KV_LEN)) < 0.7
    keep[:, 256:512] = False  # some tiles are dead, others whole
    keep[:, 512:640] = True
    bias = np.where(keep, rng.standard_normal(keep.shape), -np.inf)
    return {dtype: [array.astype(dtype) for array in arrays] for dtype in ("float32", "float64")}, keep, bias


@pytest.fixture
def arrays(drawn, dtype):
    return drawn[0][dtype]


@pytest.fixture(params=[*MASKS, "bool", "float"])
def masked(request, drawn, dtype):
    """One way to mask, as arguments."""
    if request.param in MASKS:
        return MASKS[request.param]
    return {"attn_mask": drawn[1] if request.param == "bool" else drawn[2].astype(dtype)}


@pytest.fixture
def wide_levels(levels):
    """All but scalar, which cannot fuse a multiplication and an addition on every machine."""
    wide = [level for level in levels if level != "scalar"]
    if len(wide) < 2:
        pytest.skip(f"this machine has {wide or 'no wide level'}: nothing to compare")
    return wide


def attend(arrays, **arguments):
    return pyattn.attention(*arrays, need_lse=True, **arguments)


def of_first(queries, arguments):
    """The same mask for the first few queries."""
    cut = {"attn_mask": lambda mask: mask[:queries], "query_lengths": lambda lengths: np.minimum(lengths, queries)}
    return {name: cut[name](given) if name in cut else given for name, given in arguments.items()}


def of_batch(index, arguments):
    """The same mask for a batch entry, or for some."""
    return {name: given[index] if name.endswith("lengths") else given for name, given in arguments.items()}


@pytest.mark.threads
@for_each("need_weights", [False, True])
def test_any_number_of_threads(arrays, masked, need_weights, level):
    alone = attend(arrays, num_threads=1, need_weights=need_weights, **masked)
    for threads in THREADS[1:]:
        assert_same_bits(attend(arrays, num_threads=threads, need_weights=need_weights, **masked), alone, threads)


@pytest.mark.threads
@for_each("queries", [1, 2, 5, 16])
def test_any_number_of_threads_in_decode(arrays, masked, queries, level):
    """A few queries: the threads share out the keys, which are here given thrice to make the call worth it."""
    query, *others = arrays
    arrays = (query[:, :, :queries], *(np.concatenate([array] * 3, axis=2) for array in others))
    few = of_first(queries, masked)
    if "attn_mask" in few:
        few["attn_mask"] = np.tile(few["attn_mask"], 3)
    alone = attend(arrays, num_threads=1, **few)
    for threads in THREADS[1:]:
        assert_same_bits(attend(arrays, num_threads=threads, **few), alone, f"{threads} threads")


def test_a_batch_and_its_slices(arrays, masked, level):
    together = attend(arrays, **masked)
    for b in range(BATCH):
        entry = slice(b, b + 1)
        alone = attend([array[entry] for array in arrays], **of_batch(entry, masked))
        assert_same_bits(alone, part(together, entry), f"batch entry {b}")


def test_heads_together_and_alone(arrays, masked, level):
    query, key, value = arrays
    together = attend(arrays, **masked)
    for b, h in ((0, 0), (0, 3), (1, 2)):
        shared = h * KV_HEADS // HEADS
        alone = attend((query[b, h], key[b, shared], value[b, shared]), **of_batch(b, masked))
        assert_same_bits(alone, part(together, b, h), f"head {h} of batch entry {b}")


@for_each("rows", [[0], [69], [17, 18], list(range(16)), list(range(3, 40))])
@for_each("need_weights", [False, True])
def test_all_rows_and_a_few_alone(arrays, drawn, rows, need_weights, level):
    """One row alone takes the decode path, all of them the prefill path."""
    _, keep, _ = drawn
    query, key, value = arrays
    for mask in (None, keep):
        together = attend(arrays, attn_mask=mask, need_weights=need_weights)
        own = None if mask is None else mask[rows]
        alone = attend((query[:, :, rows], key, value), attn_mask=own, need_weights=need_weights)
        assert_same_bits(alone, part(together, slice(None), slice(None), rows))


@for_each("kv_len", [1, 5, 31, 32, 63, 64, 65, 512, 513, 1100])
def test_a_row_alone_with_any_number_of_keys(arrays, kv_len, level):
    query, key, value = arrays
    together = attend((query, key[:, :, :kv_len], value[:, :, :kv_len]))
    for i in (0, 40, 69):
        alone = attend((query[:, :, i : i + 1], key[:, :, :kv_len], value[:, :, :kv_len]))
        assert_same_bits(alone, part(together, slice(None), slice(None), slice(i, i + 1)), f"row {i}")


@pytest.mark.parametrize("i", [0, 1, 35, 69])
def test_decode_has_prefill_bits(arrays, i, level):
    """A decode call knows the keys up to its own position; the prefill hides the later ones."""
    query, key, value = arrays
    prefill = attend(arrays, **MASKS["causal"])
    seen = LAST + i + 1
    for causal in ({}, MASKS["causal"]):
        decode = attend((query[:, :, i : i + 1], key[:, :, :seen], value[:, :, :seen]), **causal)
        assert_same_bits(decode, part(prefill, slice(None), slice(None), slice(i, i + 1)))


def test_a_prefill_in_pieces_has_the_bits_of_the_whole(arrays, level):
    query, key, value = arrays
    whole = attend(arrays, **MASKS["causal"])
    for start, stop in ((0, 7), (7, 8), (8, 70)):
        seen = LAST + stop
        piece = attend((query[:, :, start:stop], key[:, :, :seen], value[:, :, :seen]), **MASKS["causal"])
        assert_same_bits(piece, part(whole, slice(None), slice(None), slice(start, stop)), f"{start} to {stop}")


@for_each("queries", [3, Q_LEN])
def test_what_else_is_asked_for(arrays, masked, queries, level):
    query, key, value = arrays
    arrays, few = (query[:, :, :queries], key, value), of_first(queries, masked)
    everything = pyattn.attention(*arrays, need_weights=True, need_lse=True, **few)
    assert_same_bits(pyattn.attention(*arrays, **few), everything.output)
    assert_same_bits(pyattn.attention(*arrays, need_weights=True, **few).weights, everything.weights)
    assert_same_bits(pyattn.attention(*arrays, need_lse=True, **few).lse, everything.lse)
    out = np.full_like(everything.output, 7)
    assert_same_bits(pyattn.attention(*arrays, need_lse=True, out=out, **few).output, everything.output)


@pytest.mark.parametrize("queries", [1, Q_LEN])
def test_wide_levels_are_alike(arrays, masked, queries, wide_levels):
    query, key, value = arrays
    arrays, few = (query[:, :, :queries], key, value), of_first(queries, masked)
    results = []
    for level in wide_levels:
        _core._set_isa(level)
        results.append(attend(arrays, need_weights=True, **few))
    for level, result in zip(wide_levels[1:], results[1:], strict=True):
        assert_same_bits(result, results[0], f"{level} and {wide_levels[0]}")


@pytest.mark.parametrize("queries", [1, Q_LEN])
def test_ways_to_hide_the_same_keys(arrays, queries, level, dtype):
    query, key, value = arrays
    arrays = (query[:, :, :queries], key, value)
    causal = pyattn.masks.causal(queries, KV_LEN, align="lower_right")
    said = attend(arrays, **MASKS["causal"])
    for mask in (causal, np.where(causal, 0, -np.inf).astype(dtype), np.where(causal, 0, -np.inf).astype("f2")):
        assert_same_bits(attend(arrays, attn_mask=mask), said, mask.dtype)
    padded = attend(arrays, key_lengths=[900, 64])
    assert_same_bits(attend(arrays, attn_mask=pyattn.masks.padding([900, 64], KV_LEN)), padded)


@pytest.mark.sampled(4)
@pytest.mark.threads
@pytest.mark.parametrize("causal", [False, True])
def test_chunks_that_are_shared_out_in_waves(causal, dtype):
    """Few queries and many keys: the states of all chunks would take more memory than a call may."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((30, 4)).astype(dtype), rng.standard_normal((30_000, 4)).astype(dtype)
    value = rng.standard_normal((30_000, 600)).astype(dtype)
    value[29_990:] = np.nan
    arguments = {"key_lengths": 29_990, "need_lse": True}
    if causal:
        arguments.update(is_causal=True, align="lower_right")
    one = pyattn.attention(query, key, value, num_threads=1, **arguments)
    assert np.isfinite(one.output).all()
    for threads in (2, 3):
        tracemalloc.start()
        several = pyattn.attention(query, key, value, num_threads=threads, **arguments)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert_same_bits(several, one)
        assert peak < 16e6

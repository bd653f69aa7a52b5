"""NaN and infinities: a masked position is never touched, an attended one is, and a row without keys is empty."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, make_arrays, part

import pyattn
from pyattn import masks, reference

Q_LEN, KV_LEN, HEADS, HEAD_DIM, V_DIM = 70, 600, 2, 12, 7
LAST = KV_LEN - Q_LEN
POISONS = [np.nan, np.inf, -np.inf]


@pytest.fixture
def arrays(dtype):
    return make_arrays(
        (2, HEADS, Q_LEN, HEAD_DIM), (2, HEADS, KV_LEN, HEAD_DIM), (2, HEADS, KV_LEN, V_DIM), dtype=dtype
    )


def visible_pairs():
    """A mask with dead tiles, whole tiles, and keys that some queries of a tile see and others do not."""
    keep = np.random.default_rng(1).random((Q_LEN, KV_LEN)) < 0.6
    keep[:, 128:256] = False
    keep[:, 300:400] = True
    keep[30] = False
    return keep


def visible_of(arguments):
    """Which pairs a call attends to, (Q_LEN, KV_LEN); the same for both batch entries."""
    i, j = np.ogrid[:Q_LEN, :KV_LEN]
    if "attn_mask" in arguments:
        mask = np.asarray(arguments["attn_mask"])
        return mask if mask.dtype == bool else mask == 0
    if "key_lengths" in arguments:
        return np.broadcast_to(j < 321, (Q_LEN, KV_LEN))
    left, right = arguments.get("window", (KV_LEN, 0))
    return (j >= i + LAST - left) & (j <= i + LAST + right)


MASKED = {
    "bool": {"attn_mask": visible_pairs()},
    "-inf": {"attn_mask": np.where(visible_pairs(), 0, -np.inf).astype(np.float32)},
    "-inf, float16": {"attn_mask": np.where(visible_pairs(), 0, -np.inf).astype(np.float16)},
    "documents": {"attn_mask": np.arange(Q_LEN)[:, np.newaxis] // 12 == np.arange(KV_LEN) // 100},
    "lengths": {"key_lengths": [321, 321]},
    "causal": {"is_causal": True, "align": "lower_right"},
    "window": {"window": (40, 5), "align": "lower_right"},
    "limits": {
        "attn_mask": masks.prefix(70, Q_LEN, KV_LEN, align=300)
        & masks.window(Q_LEN, KV_LEN, left=390, right=None, align=300)
    },
}


def attend(arrays, arguments, rows=slice(None), **more):
    """Attention of some of the queries."""
    query, key, value = arrays
    if "attn_mask" in arguments and rows != slice(None):
        arguments = {**arguments, "attn_mask": arguments["attn_mask"][rows]}
    return pyattn.attention(query[:, :, rows], key, value, **arguments, need_lse=True, **more)


def poisoned(arrays, which, keys, poison):
    arrays = [array.copy() for array in arrays]
    for n in which:
        arrays[n][:, :, keys] = poison
    return arrays


def rows_of(result, rows):
    return part(result, slice(None), slice(None), rows)


# Masked: never touched


@for_each("poison", POISONS)
@for_each("masked", MASKED)
@for_each("need_weights", [False, True])
def test_masked_nan_never_leaks(masked, poison, need_weights, arrays, level):
    """What no query sees is poisoned, in keys and in values: nothing changes."""
    arguments = MASKED[masked]
    unseen = ~visible_of(arguments).any(axis=0)
    clean = attend(arrays, arguments, need_weights=need_weights)
    for which in ((1,), (2,), (1, 2)):
        dirty = attend(poisoned(arrays, which, unseen, poison), arguments, need_weights=need_weights)
        assert_same_bits(dirty, clean, which)


@for_each("poison", POISONS)
@for_each("masked", ["bool", "-inf", "-inf, float16", "causal", "window"])
@for_each("need_weights", [False, True])
def test_nan_stays_in_the_rows_that_see_it(masked, poison, need_weights, arrays, level):
    """A key that is masked for some queries of a tile and not for others."""
    arguments = MASKED[masked]
    visible = visible_of(arguments)
    clean = attend(arrays, arguments, need_weights=need_weights)
    for key in (0, 63, 350, 599):
        unaffected = ~visible[:, key]
        for which in ((1,), (2,)):
            dirty = attend(poisoned(arrays, which, key, poison), arguments, need_weights=need_weights)
            assert_same_bits(rows_of(dirty, unaffected), rows_of(clean, unaffected), f"{which}, key {key}")


@for_each("masked", MASKED)
@for_each("kinds", [[np.nan], POISONS])
def test_nonfinite_values_reach_their_columns_of_the_rows_that_see_them(masked, kinds, arrays, level):
    """From none to all of a column: nothing else changes."""
    arguments, rng = MASKED[masked], np.random.default_rng(4)
    is_odd = rng.random((KV_LEN, V_DIM)) < [0, 1, 0.5, 0.02, 0.004, 0.002, 0]
    odd = np.where(is_odd, rng.choice(kinds, is_odd.shape), 0)
    value = np.where(is_odd, odd, arrays[2]).astype(arrays[2].dtype)
    for rows in (slice(None), slice(20, 36)) if "attn_mask" in arguments else (slice(None),):
        visible = visible_of(arguments)[rows, :, np.newaxis]
        nan, high, low = ((visible & test(odd)).any(axis=1) for test in (np.isnan, np.isposinf, np.isneginf))
        expected = attend(arrays, arguments, rows).output
        expected = np.where(high, np.inf, np.where(low, -np.inf, expected))
        expected = np.where(nan | (high & low), np.nan, expected).astype(value.dtype)
        dirty = attend([*arrays[:2], value], arguments, rows).output
        assert (np.isnan(dirty) == np.isnan(expected)).all()
        assert_same_bits(np.where(np.isnan(expected), 0, dirty), np.where(np.isnan(expected), 0, expected))


@for_each("poison", POISONS)
@for_each("masked", ["bool", "-inf", "window"])
@for_each("rows", [slice(5, 6), slice(0, 3), slice(20, 36)])
def test_masked_nan_never_leaks_in_decode(masked, poison, rows, arrays, level):
    arguments = MASKED[masked]
    visible = visible_of(arguments)
    if masked == "window":  # of these queries alone
        arguments = {"attn_mask": visible}
    clean = attend(arrays, arguments, rows)
    unseen = ~visible[rows].any(axis=0)
    dirty = attend(poisoned(arrays, (1, 2), unseen, poison), arguments, rows)
    assert_same_bits(dirty, clean)
    key = int(np.flatnonzero(visible[rows][0])[3])
    unaffected = ~visible[rows][:, key]
    for which in ((1,), (2,)):
        dirty = attend(poisoned(arrays, which, key, poison), arguments, rows)
        assert_same_bits(rows_of(dirty, unaffected), rows_of(clean, unaffected))


@pytest.mark.threads
@pytest.mark.parametrize("poison", POISONS)
def test_masked_nan_never_leaks_when_threads_share_the_keys(poison, dtype, level):
    """A few queries and many keys: each thread has some of the keys, and none has all of a row."""
    rng = np.random.default_rng(3)
    query, key, value = (rng.standard_normal((n, 32)).astype(dtype) for n in (8, 8000, 8000))
    keep = rng.random((8, 8000)) < 0.6
    keep[3:, 5000] = False
    clean = pyattn.attention(query, key, value, attn_mask=keep, num_threads=2, need_lse=True)
    for poisoned in (key, value):
        before, poisoned[5000] = poisoned[5000].copy(), poison
        for threads in (1, 2, 3):
            dirty = pyattn.attention(query, key, value, attn_mask=keep, num_threads=threads, need_lse=True)
            assert_same_bits(dirty.output[3:], clean.output[3:], f"{threads} threads")
            assert_same_bits(dirty.lse[3:], clean.lse[3:], f"{threads} threads")
        poisoned[5000] = before


def test_few_keys(dtype, level):
    """Fewer than a tile has, where other code may be at work."""
    rng = np.random.default_rng(2)
    for kv_len in (2, 5, 16, 33):
        query, key, value = (rng.standard_normal((n, 3)).astype(dtype) for n in (4, kv_len, kv_len))
        keep = np.ones((4, kv_len), bool)
        keep[1:, -1] = False
        clean = pyattn.attention(query, key, value, attn_mask=keep)
        key[-1] = value[-1] = np.nan
        dirty = pyattn.attention(query, key, value, attn_mask=keep)
        assert_same_bits(dirty[1:], clean[1:])
        assert np.isnan(dirty[0]).all()


@pytest.mark.parametrize("poison", POISONS)
def test_queries_past_their_length_are_never_touched(poison, arrays, level):
    query, key, value = arrays
    clean = pyattn.attention(query, key, value, query_lengths=[33, 0], need_lse=True, need_weights=True)
    query = query.copy()
    query[0, :, 33:] = query[1] = poison
    dirty = pyattn.attention(query, key, value, query_lengths=[33, 0], need_lse=True, need_weights=True)
    assert_same_bits(dirty, clean)


@for_each("queries", [1, 100])
def test_bits_of_a_masked_nan_never_leak(queries, arrays, level):
    """Not even where a row sees a NaN of its own, in every column: a NaN has one form in a result."""
    query, key, value = arrays
    query, value = query[..., :queries, :], value.copy()
    value[..., -1, :] = np.nan
    attend = np.ones((query.shape[-2], key.shape[-2]), bool)
    attend[:, 10] = False
    seen = []
    for poison in (0.0, np.inf, -np.nan):
        value[..., 10, :] = poison
        seen.append(pyattn.attention(query, key, value, attn_mask=attend))
        assert np.isnan(seen[-1]).all()
        assert_same_bits(seen[-1], seen[0], poison)


@pytest.mark.parametrize("queries", [1, 16, Q_LEN])
def test_masked_weights_are_zero_even_in_rows_of_nan(queries, arrays, level):
    """However wide the tile: a row of NaN has the same bits in any company, too."""
    arguments = {"attn_mask": np.ascontiguousarray(np.tri(queries, KV_LEN, dtype=bool))}
    dirty = attend(poisoned(arrays, (1,), 0, np.nan), arguments, slice(queries), need_weights=True)
    assert np.isnan(dirty.lse).all()
    assert np.all(dirty.weights[:, :, ~arguments["attn_mask"]] == 0)


# Attended: propagates


@pytest.mark.parametrize("rows", [slice(0, 1), slice(None)], ids=["decode", "prefill"])
def test_nan_in_a_value_reaches_its_feature_of_the_rows_that_attend(rows, arrays, level):
    arguments = MASKED["bool"]
    visible = visible_of(arguments)[rows]
    key = int(np.flatnonzero(visible[0])[0])
    arrays[2][:, :, key, 3] = np.nan
    output = attend(arrays, arguments, rows).output
    expected = np.zeros(output.shape, bool)
    expected[:, :, visible[:, key], 3] = True
    np.testing.assert_array_equal(np.isnan(output), expected)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(None)], ids=["decode", "prefill"])
@pytest.mark.parametrize("masked", ["bool", "-inf"])
def test_nan_in_a_key_reaches_the_rows_that_attend(masked, rows, arrays, level):
    arguments = MASKED[masked]
    visible = visible_of(arguments)[rows]
    key = int(np.flatnonzero(visible[0])[0])
    arrays[1][:, :, key, 2] = np.nan
    result = attend(arrays, arguments, rows)
    for array in (result.output, result.lse[..., np.newaxis]):
        np.testing.assert_array_equal(np.isnan(array), np.broadcast_to(visible[:, key, np.newaxis], array.shape))


@for_each("arguments", [{}, {"is_causal": True, "align": "lower_right"}, {"window": (90, 0), "align": "lower_right"}])
def test_a_row_with_a_nan_is_redone_for_its_other_columns(arguments, arrays, level):
    """Values whose sum overflows, beside a NaN: only where every column is lost is there nothing to redo."""
    query, key, value = arrays
    largest = np.finfo(value.dtype).max
    value[..., 0] = largest
    value[:, :, 580, 1] = np.nan
    output = pyattn.attention(query, key, value, **arguments)
    visible = visible_of(arguments)[:, 580] if arguments else np.ones(Q_LEN, bool)
    np.testing.assert_array_equal(np.isnan(output[..., 1]), np.broadcast_to(visible, (2, HEADS, Q_LEN)))
    np.testing.assert_allclose(output[..., 0], largest, rtol=1e-5)
    assert np.isfinite(np.delete(output, 1, -1)).all()


@for_each("queries", [1, 5, Q_LEN])
@for_each("poison", ["overflow", "nan"])
def test_a_redone_row_keeps_what_was_right(poison, queries, dtype, level):
    """A sum that overflows is redone with values scaled down, in which the smallest ones would be lost."""
    import ml_dtypes

    for kind in (dtype, *([ml_dtypes.bfloat16] if dtype == np.float32 else [])):
        limits = ml_dtypes.finfo(kind)
        query, key, value = (np.zeros((2, n, 3), kind) for n in (queries, 64, 64))
        value[..., 0], value[..., 1], value[..., 2] = limits.max, limits.tiny * 8, -limits.tiny * 64
        if poison == "nan":
            value[:, 10, 0] = np.nan
        output = pyattn.attention(query, key, value)
        np.testing.assert_array_equal(output[..., 1:], np.broadcast_to(value[:, :1, 1:], (2, queries, 2)))
        expected = np.nan if poison == "nan" else np.float64(limits.max)
        np.testing.assert_allclose(np.float64(output[..., 0]), expected, rtol=1e-5)


def test_nan_in_a_query_reaches_its_own_row(arrays, level):
    arrays[0][1, 0, 17, 4] = np.nan
    result = attend(arrays, {})
    assert np.isnan(result.output[1, 0, 17]).all()
    assert (np.isnan(result.output).sum(), np.isnan(result.lse).sum()) == (V_DIM, 1)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_nan_in_a_mask_reaches_its_own_row(kind, arrays, level):
    mask = np.zeros((Q_LEN, KV_LEN), kind)
    mask[17, 100] = np.nan
    result = attend(arrays, {"attn_mask": mask})
    assert np.isnan(result.output[:, :, 17]).all()
    assert np.isnan(result.lse).sum() == np.isnan(result.lse[:, :, 17]).sum() == 2 * HEADS


@for_each("queries", [1, Q_LEN])
@for_each("name", ["query", "key", "value", "mask"])
@for_each("infinite", [[np.inf], [-np.inf], [np.inf, -np.inf], [np.inf, np.inf]])
def test_infinities_do_what_the_formula_does(infinite, name, queries, arrays, dtype, level):
    """inf - inf and 0 * inf are NaN, exp(-inf) is 0: at the same places as in float64."""
    query, key, value = arrays[0][:, :, :queries].copy(), *arrays[1:]
    mask = np.zeros((queries, KV_LEN), dtype)
    for n, number in enumerate(infinite):
        place = {"query": (1, 0, 0, n), "key": (1, 0, 5 + n, 3), "value": (1, 0, 5 + n, 3), "mask": (0, 5 + n)}[name]
        {"query": query, "key": key, "value": value, "mask": mask}[name][place] = number
    result = pyattn.attention(query, key, value, attn_mask=mask, need_lse=True)
    expected = reference.attention(query, key, value, attn_mask=mask)
    np.testing.assert_allclose(result.output, expected.output, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(result.lse, expected.lse, rtol=1e-5)


# Nothing to attend to


@for_each("empty_rows", ["zero", "nan"])
@for_each("need_weights", [False, True])
@for_each(
    "arguments",
    [
        {"attn_mask": np.arange(Q_LEN)[:, np.newaxis] >= 20},
        {"attn_mask": np.where(np.arange(Q_LEN)[:, np.newaxis] >= 20, np.zeros(KV_LEN), -np.inf)},
        {"query_lengths": Q_LEN, "attn_mask": np.arange(Q_LEN)[:, np.newaxis] >= 20},
        {"window": (None, 0), "align": "upper_left", "attn_mask": np.arange(Q_LEN)[:, np.newaxis] >= 20},
    ],
)
def test_a_row_with_nothing_to_attend_to(arguments, need_weights, empty_rows, arrays, level):
    result = attend(arrays, arguments, need_weights=need_weights, empty_rows=empty_rows)
    empty = np.arange(Q_LEN) < 20
    np.testing.assert_array_equal(result.output[:, :, empty], 0 if empty_rows == "zero" else np.nan)
    np.testing.assert_array_equal(result.lse[:, :, empty], -np.inf)
    assert np.isfinite(result.output[:, :, ~empty]).all()
    assert np.isfinite(result.lse[:, :, ~empty]).all()
    if need_weights:
        np.testing.assert_array_equal(result.weights[:, :, empty], 0)


@for_each("queries", [1, 16, Q_LEN])
@for_each(
    "arguments",
    [
        {"key_lengths": 0},
        {"query_lengths": 0},
        {"attn_mask": False},
        {"attn_mask": -np.inf},
        {"window": (0, 0), "align": "lower_right", "key_lengths": 0},
        {"is_causal": True, "align": "lower_right", "key_lengths": 0},
    ],
)
def test_nothing_but_empty_rows(arguments, queries, arrays, level):
    query, key, value = arrays
    everything = np.full_like(value, np.nan)
    for values in (value, everything):
        result = pyattn.attention(query[:, :, :queries], key, values, **arguments, need_lse=True, need_weights=True)
        assert np.all(result.output == 0)
        assert np.all(result.weights == 0)
        assert np.all(result.lse == -np.inf)


@pytest.mark.parametrize("empty_rows", ["zero", "nan"])
def test_no_keys_at_all(empty_rows, dtype, level):
    query, none = np.ones((3, 4), dtype), np.ones((0, 4), dtype)
    result = pyattn.attention(query, none, none, need_lse=True, need_weights=True, empty_rows=empty_rows)
    np.testing.assert_array_equal(result.output, np.full((3, 4), 0 if empty_rows == "zero" else np.nan))
    np.testing.assert_array_equal(result.lse, np.full(3, -np.inf))
    assert result.weights.shape == (3, 0)

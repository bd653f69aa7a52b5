"""Sums of values that overflow where their mean does not: the mean comes out, and no other row changes."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits

import pyattn

LARGEST = {"float32": 3e38, "float64": 1.7e308}
SHAPES = [(1, 4), (1, 4096), (5, 700), (80, 2000)]  # (queries, keys): decode, prefill, chunks, spans of chunks


def close_to(actual, expected, keys, dtype):
    """Within the error that sums of so many equal values may have."""
    bound = 4 * np.finfo(dtype).eps * np.sqrt(keys) * np.abs(expected)
    return bool((np.abs(actual / LARGEST[dtype] - expected / LARGEST[dtype]) <= bound / LARGEST[dtype]).all())


@pytest.mark.parametrize(("queries", "keys"), SHAPES)
def test_the_mean_of_the_largest_values(queries, keys, dtype, level):
    value = np.full((keys, 3), 0.99 * LARGEST[dtype], dtype)
    output = pyattn.attention(np.zeros((queries, 4), dtype), np.zeros((keys, 4), dtype), value, num_threads=2)
    assert close_to(output, value[0, 0], keys, dtype)


@pytest.mark.parametrize(("queries", "keys"), [*SHAPES, (2, 1000)])
def test_a_mean_of_finite_values_is_finite(queries, keys, dtype, level):
    """Rounding the mean of equal values may take it one step up, which for finfo.max is infinity."""
    most = np.finfo(dtype).max
    value = np.array([[most, -most, np.inf]] * keys, dtype)
    output = pyattn.attention(np.zeros((queries, 4), dtype), np.zeros((keys, 4), dtype), value, num_threads=2)
    assert close_to(output[:, :2], value[0, :2], keys, dtype)
    assert np.isposinf(output[:, 2]).all()


@pytest.mark.parametrize(("queries", "keys"), SHAPES)
def test_large_values_that_cancel(queries, keys, dtype, level):
    value = np.full((keys, 3), LARGEST[dtype], dtype)
    value[keys // 2 :] *= -1
    output = pyattn.attention(np.zeros((queries, 4), dtype), np.zeros((keys, 4), dtype), value, num_threads=2)
    assert (np.abs(output / LARGEST[dtype]) <= 4 * np.finfo(dtype).eps * np.sqrt(keys)).all()


def test_only_the_row_that_overflows_is_computed_anew(dtype, level):
    """Its neighbours meet values so small that the smaller ones of a second try would be flushed."""
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((n, 16)).astype(dtype) for n in (60, 300, 300))
    value *= np.finfo(dtype).tiny * 1e4
    value[[7, 9]] = 0.9 * LARGEST[dtype]
    key[[7, 9]] = 0
    mask = np.ones((60, 300), bool)
    mask[:, [7, 9]] = False
    without = pyattn.attention(query, key, value, attn_mask=mask)
    mask[5, [7, 9]] = True
    query[5] = 0
    result = pyattn.attention(query, key, value, attn_mask=mask, need_weights=True)
    expected = result.weights[5, [7, 9]].astype(np.longdouble).sum() * np.longdouble(value[7, 0])
    assert_same_bits(np.delete(result.output, 5, axis=0), np.delete(without, 5, axis=0))
    assert close_to(result.output[5], expected.astype(dtype), 300, dtype)
    assert_same_bits(result.output[5], pyattn.attention(query[5:6], key, value, attn_mask=mask[5:6])[0])


def test_infinities_and_nan_stay(dtype, level):
    value = np.full((300, 3), LARGEST[dtype], dtype)
    value[3, 1], value[200, 2] = np.inf, np.nan
    output = pyattn.attention(np.zeros((20, 4), dtype), np.zeros((300, 4), dtype), value)
    assert np.isfinite(output[:, 0]).all()
    assert np.isposinf(output[:, 1]).all()
    assert np.isnan(output[:, 2]).all()

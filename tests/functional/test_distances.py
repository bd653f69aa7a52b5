"""score="distance" far from zero: an offset that queries and keys share costs no digits, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from test_scores import keep

import pyattn
from pyattn import _core, reference
from pyattn.testing import bounds

# What queries and keys have in common, and what they are spread by: positions and times, in the units people have.
OFFSETS = {
    "float32": {"0": 0, "1": 1, "100": 100, "1e4": 1e4, "1e6": 1e6, "years": 2000},
    "float64": {"0": 0, "1": 1, "1e4": 1e4, "seconds": 1.7e9},
}
every_offset = pytest.mark.parametrize(
    ("dtype", "offset"), [(dtype, offset) for dtype, some in OFFSETS.items() for offset in some.values()]
)


def draw(dtype, offset, query=(3, 9, 20), key=(3, 13, 20), v_dim=6):
    rng = np.random.default_rng([3, *query, *key])
    arrays = [rng.standard_normal(shape) for shape in (query, key, (*key[:-1], v_dim))]
    return [(x + shift).astype(dtype) for x, shift in zip(arrays, (offset, offset, 0), strict=True)]


def mixed(dtype, query=(2, 2, 60, 40), key=(2, 2, 700, 40)):
    """Rows from nearly zero to far away, so that pairs on both sides of the limit stand in every block."""
    query, key, value = draw(dtype, 0, query, key)
    for x in (query, key):
        x *= np.random.default_rng(4).uniform(0, 3, (*x.shape[:-1], 1)).astype(dtype)
    return query, key, value


def fraction_near(query, key):
    scale = reference.default_scale("distance", query.shape[-1])
    squares = [scale * (x.astype(np.float64) ** 2).sum(-1) for x in (query, key)]
    return float((squares[0][..., :, np.newaxis] + squares[1][..., np.newaxis, :] < bounds.PRODUCT_LIMIT).mean())


def test_seconds_since_1970():
    """-(i - j)^2 / 2 whatever the first second is. The numbers are those of seconds 0 to 4."""
    times = (np.arange(5) + 1.7e9)[:, np.newaxis]
    values = np.arange(5.0)[:, np.newaxis]
    output = pyattn.attention(times, times, values, score="distance")
    np.testing.assert_allclose(output[:, 0], [0.52008479, 1.12883951, 2, 2.87116049, 3.47991521], rtol=1e-8)


@pytest.mark.parametrize("q_len", [1, 40])
@every_offset
def test_positions_mean_the_same_wherever_they_start(dtype, offset, q_len, level):
    """Whole numbers are exact, and so are their differences: what is expected is that of positions 0 to 99."""
    query, key = np.arange(100.0 - q_len, 100)[:, np.newaxis], np.arange(100.0)[:, np.newaxis]
    value = np.random.default_rng(0).standard_normal((100, 3)).astype(dtype)
    options = {"score": "distance", "scale": 0.03}
    moved = [(x + offset).astype(dtype) for x in (query, key)]
    result = pyattn.attention(*moved, value, **options, need_weights=True, need_lse=True)
    expected = bounds.expect(query, key, value, dtype, **options)
    assert bounds.output_ratio(result.output, expected) <= bounds.OUTPUT_BAR
    assert bounds.weights_ratio(result.weights, expected) <= 1
    assert bounds.lse_ratio(result.lse, expected) <= 1


CASES = {
    "one feature": ((33, 1), (41, 1), {}),
    "one feature, decode": ((1, 1), (300, 1), {}),
    "prefill": ((2, 2, 101, 40), (2, 2, 290, 40), {}),
    "decode": ((3, 1, 64), (3, 1100, 64), {}),
    "folds": ((40, 300), (70, 300), {}),
    "folds, decode": ((3, 300), (70, 300), {}),
    "causal": ((150, 16), (150, 16), {"is_causal": True}),
    "bool mask": ((3, 50, 24), (3, 140, 24), {"attn_mask": keep(3, 50, 140)}),
    "bool mask, decode": ((2, 24), (140, 24), {"attn_mask": keep(2, 140)}),
    "float mask": ((4, 80, 24), (4, 80, 24), {"attn_mask": np.random.default_rng(8).standard_normal((80, 80))}),
    "lengths": ((3, 20, 8), (3, 90, 8), {"key_lengths": [90, 7, 0], "query_lengths": [20, 20, 3]}),
    "grouped decode": ((2, 6, 1, 12), (2, 2, 300, 12), {}),
    "scale": ((30, 12), (40, 12), {"scale": -0.25}),
    "steep": ((30, 12), (40, 12), {"scale": 7.0}),
}


@pytest.mark.sampled(2)
@every_offset
@for_each("name", CASES)
def test_bounds_hold_with_an_offset(name, dtype, offset, levels):
    query, key, more = CASES[name]
    arrays = draw(dtype, offset, query, key)
    expected = bounds.expect(*arrays, dtype, score="distance", **more)
    for level in levels:
        _core._set_isa(level)
        result = pyattn.attention(*arrays, **more, score="distance", need_weights=True, need_lse=True)
        assert bounds.output_ratio(result.output, expected) <= bounds.OUTPUT_BAR, level
        assert bounds.weights_ratio(result.weights, expected) <= 1, level
        assert bounds.lse_ratio(result.lse, expected) <= 1, level


def test_the_bound_sees_the_product_form(dtype):
    """2 q . k - |k|^2 - |q|^2 of years: what the bounds are there to refuse."""
    query, key, value = draw(dtype, OFFSETS[dtype].get("years", 1.7e9), (33, 1), (41, 1))
    scores = (2 * (query @ key.T) - key.T**2 - query**2) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = bounds.expect(query, key, value, dtype, score="distance")
    assert bounds.output_ratio(weights / weights.sum(-1, keepdims=True) @ value, expected) > bounds.OUTPUT_BAR


@pytest.mark.parametrize("q_len", [1, 40])
@pytest.mark.parametrize("head_dim", [1, 40, 300])
def test_a_pair_is_as_exact_as_its_own_numbers_allow(q_len, head_dim, dtype, level):
    """The lse of a query that sees one key is their score: each pair is held to the bound of its own form."""
    query, key, value = mixed(dtype, (q_len, head_dim), (64, head_dim))
    query *= 3 if head_dim == 1 else 1
    mask = np.eye(64, dtype=bool)[np.arange(q_len) % 64]
    lse = pyattn.attention(query, key, value, score="distance", attn_mask=mask, need_lse=True).lse
    q, k = query.astype(bounds.WIDER[dtype]), key[:q_len].astype(bounds.WIDER[dtype])
    scale = reference.default_scale("distance", head_dim)
    exact, both = (scale * (x**2).sum(-1) for x in (q - k, abs(q) + abs(k)))
    near = scale * ((q**2).sum(-1) + (k**2).sum(-1)) < 1.01 * bounds.PRODUCT_LIMIT
    unit = np.finfo(dtype).eps / 2 * (1 + 3 * exact + np.where(near, both, 0))
    assert (abs(lse + exact) / unit).max() <= bounds.OUTPUT_BAR


# Bits


def test_the_mixed_draw_is_mixed(dtype):
    query, key, _ = mixed(dtype)
    assert 0.3 < fraction_near(query, key) < 0.9


def test_a_row_of_mixed_pairs_has_the_same_bits_however_it_is_computed(dtype, level):
    query, key, value = mixed(dtype)
    options = {"score": "distance", "need_lse": True, "need_weights": True}
    whole = pyattn.attention(query, key, value, **options)
    assert_same_bits(pyattn.attention(query, key, value, **options, num_threads=3), whole)
    assert_same_bits(pyattn.attention(query[1, 1], key[1, 1], value[1, 1], score="distance"), whole.output[1, 1])
    for i in (0, 33, 59):
        alone = pyattn.attention(query[:, :, i : i + 1], key, value, **options)
        for one, all_rows in zip(alone, whole, strict=True):
            assert_same_bits(one, all_rows[:, :, i : i + 1], f"row {i}")


@pytest.mark.parametrize("neighbour", ["far", "nan", "infinite"])
@pytest.mark.parametrize("q_len", [2, 40])
def test_neighbours_do_not_change_a_pairs_form(neighbour, q_len, dtype, level):
    """Near pairs alone, and beside a query and a masked key for which the tile is walked once more."""
    query, key, value = draw(dtype, 0, (q_len, 40), (130, 40))
    mask = keep(q_len, 130)
    mask[:, [3, 129]] = False
    options = {"score": "distance", "attn_mask": mask, "need_weights": True, "need_lse": True}
    alone = pyattn.attention(query, key, value, **options)
    query[-1] = key[[3, 129]] = {"far": 1e3, "nan": np.nan, "infinite": np.inf}[neighbour]
    beside = pyattn.attention(query, key, value, **options)
    for one, other in zip(beside, alone, strict=True):
        assert_same_bits(one[:-1], other[:-1])


@pytest.mark.parametrize("q_len", [3, 40])
def test_levels_agree_on_mixed_pairs(q_len, dtype, levels):
    arrays = mixed(dtype, (q_len, 300), (300, 300))
    results = []
    for level in levels:
        pyattn._core._set_isa(level)
        if level != "scalar":
            results.append(pyattn.attention(*arrays, score="distance", need_weights=True, need_lse=True))
    for result in results:
        assert_same_bits(result, results[0])


@pytest.mark.threads
def test_spans_of_keys_over_threads_have_the_same_bits_with_an_offset(dtype):
    arrays = draw(dtype, 100, (2, 128), (9000, 128))
    one, many = (pyattn.attention(*arrays, score="distance", need_lse=True, num_threads=n) for n in (1, 4))
    assert_same_bits(many, one)


# What is not finite


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("q_len", [1, 40])
def test_masked_numbers_are_never_touched_far_from_zero(poison, q_len, dtype, level):
    query, key, value = draw(dtype, 100, (q_len, 20), (130, 20))
    mask = keep(q_len, 130)
    mask[:, [3, 70, 129]] = False
    options = {"score": "distance", "attn_mask": mask, "need_weights": True, "need_lse": True}
    clean = pyattn.attention(query, key, value, **options)
    key[[3, 129]] = value[[70, 129]] = poison
    assert_same_bits(pyattn.attention(query, key, value, **options), clean)


@pytest.mark.parametrize("q_len", [2, 40])
def test_an_infinite_key_scores_what_the_formula_gives(q_len, dtype, level):
    """-inf with a finite query, and so no weight; inf - inf is NaN."""
    query, key, value = draw(dtype, 0, (q_len, 20), (50, 20))
    without = pyattn.attention(query, key[1:], value[1:], score="distance", need_weights=True)
    key[0, 7] = np.inf
    query[1, 7] = np.inf
    result = pyattn.attention(query, key, value, score="distance", need_weights=True)
    assert result.weights[0, 0] == 0
    assert np.isnan(result.output[1]).all()
    np.testing.assert_allclose(result.weights[0, 1:], without.weights[0], rtol=64 * np.finfo(dtype).eps)


@pytest.mark.parametrize("q_len", [2, 40])
def test_equal_rows_whose_squares_overflow_have_distance_0(q_len, dtype, level):
    query, key, value = draw(dtype, 0, (q_len, 20), (50, 20))
    query[0] = key[5] = np.finfo(dtype).max
    result = pyattn.attention(query, key, value, score="distance", need_weights=True, need_lse=True)
    assert result.weights[0].tolist() == [0.0] * 5 + [1.0] + [0.0] * 44
    assert result.lse[0] == 0


# Elsewhere


@every_offset
def test_a_trace_has_the_same_numbers(dtype, offset):
    arrays = draw(dtype, offset, (9, 3), (13, 3))
    trace = pyattn.trace_attention(*arrays, score="distance")
    result = pyattn.attention(*arrays, score="distance", need_weights=True)
    slack = 2**8 * np.finfo(dtype).eps
    np.testing.assert_allclose(result.weights, trace.weights, rtol=slack, atol=0)
    np.testing.assert_allclose(result.output, trace.outputs, rtol=slack, atol=slack)

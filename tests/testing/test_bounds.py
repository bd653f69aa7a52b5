"""The bounds on trial: they let the rounding of their dtype pass, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import for_each

from pyattn.testing import bounds


def formula(query, key, value, mask=None):
    """Attention as a NumPy user writes it: output, weights, lse in the dtype of the query."""
    scores = query @ key.T / np.sqrt(query.shape[-1], dtype=query.dtype)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    exponentials = np.exp(scores - top)
    total = exponentials.sum(-1, keepdims=True)
    return (exponentials / total) @ value, exponentials / total, (top + np.log(total))[:, 0]


def ratios(result, expected):
    output, weights, lse = result
    return (
        bounds.output_ratio(output, expected) / bounds.OUTPUT_BAR,
        bounds.weights_ratio(weights, expected),
        bounds.lse_ratio(lse, expected),
    )


@pytest.fixture
def ordinary(dtype):
    rng = np.random.default_rng(8)
    return [rng.standard_normal((length, 16)).astype(dtype) for length in (50, 300, 300)]


def test_rounding_passes(ordinary, dtype):
    assert max(ratios(formula(*ordinary), bounds.expect(*ordinary, dtype))) <= 1


@for_each("mistake", ["one key too many", "scale", "another query's row", "half precision weights"])
def test_mistakes_do_not(ordinary, dtype, mistake):
    query, key, value = ordinary
    keep = np.ones((50, 300), bool)
    keep[20, 299] = False
    expected = bounds.expect(query, key, value, dtype, attn_mask=keep)
    wrong = list(formula(query, key, value, keep))
    if mistake == "one key too many":
        wrong = formula(query, key, value)
    elif mistake == "scale":
        wrong = formula(query * np.asarray(1 + 1e-3, dtype), key, value, keep)
    elif mistake == "another query's row":
        wrong[:] = (part[np.r_[0:49, 48]] for part in wrong)
    else:
        weights = wrong[1].astype(np.float16).astype(dtype)
        wrong[:2] = weights @ value, weights
    assert ratios(wrong, expected)[0] > 1
    assert ratios(wrong, expected)[1] > 1


def test_nan_in_another_place_does_not(ordinary, dtype):
    expected = bounds.expect(*ordinary, dtype)
    output, weights, lse = formula(*ordinary)
    output[3, 4] = weights[3, 4] = lse[3] = np.nan
    assert ratios((output, weights, lse), expected) == (np.inf,) * 3


def test_empty_rows_have_to_be_empty(ordinary, dtype):
    mask = np.ones((50, 300), bool)
    mask[7] = False
    expected = bounds.expect(*ordinary, dtype, attn_mask=mask)
    output, weights, lse = formula(*ordinary)
    ratio = ratios((output, weights, lse), expected)
    assert ratio[0] > 1e6
    assert ratio[1:] == (np.inf, np.inf)
    output[7] = weights[7] = 0
    lse[7] = -np.inf
    assert max(ratios((output, weights, lse), expected)) <= 1


def test_merging_has_the_errors_of_its_parts(ordinary, dtype):
    query, key, value = ordinary
    (left, _, left_lse), (right, _, right_lse) = (
        formula(query, key[cut], value[cut]) for cut in (slice(130), slice(130, None))
    )
    part_lse = np.where(np.arange(300) < 130, left_lse[:, np.newaxis], right_lse[:, np.newaxis])
    expected = bounds.expect(query, key, value, dtype, part_lse=part_lse)
    share = 1 / (1 + np.exp(right_lse - left_lse))[:, np.newaxis]
    assert bounds.output_ratio(share * left + (1 - share) * right, expected) <= bounds.OUTPUT_BAR
    assert bounds.output_ratio((left + right) / 2, expected) > bounds.OUTPUT_BAR


@pytest.mark.parametrize("logarithm", [False, True])
def test_softmax_has_bounds_too(dtype, logarithm):
    x = np.random.default_rng(9).standard_normal((40, 300)).astype(dtype) * 5
    below = x - x.max(-1, keepdims=True)
    total = np.exp(below).sum(-1, keepdims=True)
    y = below - np.log(total) if logarithm else np.exp(below) / total
    assert bounds.softmax_ratio(y, x, logarithm=logarithm) <= 1
    assert bounds.softmax_ratio(y * np.asarray(1 + 1e-3, dtype), x, logarithm=logarithm) > 1


def flat_inputs(dtype, keys, *, spread=1e-3, sign=1.0):
    rng = np.random.default_rng(10)
    query, key, value = (rng.standard_normal((length, 8)) for length in (3, keys, keys))
    return [x.astype(dtype) for x in (query, key * spread, sign * (np.abs(value) + 0.5))]


def test_the_flat_bar_is_for_equal_weights_and_values_of_one_sign(dtype):
    assert (bounds.output_bars(bounds.expect(*flat_inputs(dtype, 200), dtype)) == bounds.FLAT_OUTPUT_BAR).all()
    for others in (
        flat_inputs(dtype, 20),  # few keys
        flat_inputs(dtype, 200, spread=3),  # some weigh more
        flat_inputs(dtype, 200, sign=np.where(np.arange(200) % 2, 1, -1)[:, np.newaxis]),
    ):
        assert (bounds.output_bars(bounds.expect(*others, dtype)) == bounds.OUTPUT_BAR).all()


def test_each_row_has_a_bar_of_its_own(dtype):
    query, key, value = flat_inputs(dtype, 200)
    mask = np.ones((3, 200), bool)
    mask[1, 10:] = False
    bars = bounds.output_bars(bounds.expect(query, key, value, dtype, attn_mask=mask))
    assert bars[:, 0].tolist() == [bounds.FLAT_OUTPUT_BAR, bounds.OUTPUT_BAR, bounds.FLAT_OUTPUT_BAR]


def test_bars_lie_as_the_output_does(dtype):
    query, key, value = (np.stack([x] * 2)[np.newaxis] for x in flat_inputs(dtype, 200))
    value[:, 1] *= np.where(np.arange(200) % 2, 1, -1)[:, np.newaxis].astype(dtype)
    swapped = [x.swapaxes(1, 2) for x in (query, key, value)]
    bars = bounds.output_bars(bounds.expect(*swapped, dtype, layout="bshd"))
    assert bars.shape == (1, 3, 2, 8)
    assert (bars[:, :, 0] == bounds.FLAT_OUTPUT_BAR).all()
    assert (bars[:, :, 1] == bounds.OUTPUT_BAR).all()


def test_ratios_say_where_the_error_is(ordinary, dtype):
    expected = bounds.expect(*ordinary, dtype)
    output = formula(*ordinary)[0]
    output[3, 4] += 1
    ratios = bounds.output_ratios(output, expected)
    assert np.argwhere(ratios > bounds.OUTPUT_BAR).tolist() == [[3, 4]]
    assert ratios.max() == bounds.output_ratio(output, expected)

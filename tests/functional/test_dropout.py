"""Dropout: which weights are kept, that they are random, and what attention does with them."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from support import philox
from support.chance import chi_square_is_likely, deviations
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, nn
from pyattn._util.random import draw_seed
from pyattn.testing.bounds import OUTPUT_BAR, expect

# (units, q_len, kv_len): less than a block of keys, several with a rest, the decode layout's few rows
SHAPES = [(1, 1, 1), (2, 3, 5), (3, 70, 131), (5, 2, 600), (1, 17, 1000)]


def arrays_for(units, q_len, kv_len, dtype="float32"):
    shapes = ((1, units, q_len, 8), (1, units, kv_len, 8), (1, units, kv_len, 5))
    return [normal(*shape, dtype=dtype, seed=n) for n, shape in enumerate(shapes)]


# Which weights are kept


@pytest.mark.parametrize(
    ("counter", "key", "numbers"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_the_yardstick_has_the_published_numbers(counter, key, numbers):
    """The known answers of the authors' own library."""
    assert philox.philox(counter, key).tolist() == numbers


@for_each("dropout_p", [1e-12, 0.1, 0.5, 1 - 2**-20, 1.0])
@for_each("shape", SHAPES)
def test_keeps_are_those_of_the_documented_generator(shape, dropout_p, level):
    seed = draw_seed(3)
    expected = philox.keep_mask(shape, max(dropout_p, 2**-32), seed)
    np.testing.assert_array_equal(pyattn.functional.dropout_keep_mask(shape, dropout_p, rng=3), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_drops_what_the_mask_tells(shape, level, dtype):
    keep = pyattn.functional.dropout_keep_mask((1, *shape), 0.4, rng=7)
    result = pyattn.attention(*arrays_for(*shape, dtype), dropout_p=0.4, rng=7, need_weights=True)
    np.testing.assert_array_equal(result.weights != 0, keep)


def test_the_axes_of_the_mask_are_those_of_the_weights():
    """Batch and heads are counted on as one: (2, 3) has the keeps of 6."""
    flat = pyattn.functional.dropout_keep_mask((6, 10, 20), 0.5, rng=1)
    np.testing.assert_array_equal(
        pyattn.functional.dropout_keep_mask((2, 3, 10, 20), 0.5, rng=1), flat.reshape(2, 3, 10, 20)
    )
    np.testing.assert_array_equal(pyattn.functional.dropout_keep_mask((10, 20), 0.5, rng=1), flat[0])
    np.testing.assert_array_equal(pyattn.functional.dropout_keep_mask((6, 7, 13), 0.5, rng=1), flat[:, :7, :13])


def test_an_int_repeats_and_a_generator_goes_on():
    def keep(rng):
        return pyattn.functional.dropout_keep_mask((8, 8), 0.5, rng=rng)

    generator = np.random.default_rng(5)
    first, second = keep(generator), keep(generator)
    np.testing.assert_array_equal(first, keep(5))
    assert np.any(first != second)
    assert np.any(keep(None) != keep(None))
    np.testing.assert_array_equal(keep(np.random.SeedSequence(5)), first)


def test_nothing_is_drawn_where_nothing_is_dropped():
    generator = np.random.default_rng(5)
    x = normal(3, 4)
    pyattn.attention(x, x, x, rng=generator)
    pyattn.attention(x, x, x, rng=generator, dropout_p=0.5, keep_mask=np.ones((3, 3), bool))
    assert draw_seed(generator) == draw_seed(5)


def test_a_call_that_fails_draws_nothing():
    generator, x = np.random.default_rng(5), normal(3, 4)
    with pytest.raises(ValueError, match="head_dim"):
        pyattn.attention(x, x[:, :3], x, dropout_p=0.5, rng=generator)
    with pytest.raises(ValueError, match="attn_mask has shape"):
        nn.MultiheadAttention(4, 1, 0.5)(x, x, x, attn_mask=np.eye(2, dtype=bool), rng=generator)
    assert draw_seed(generator) == draw_seed(5)


def test_a_long_row_is_cut_into_pieces(level):
    shape = (1, 2, 3 * 65536 + 7)
    np.testing.assert_array_equal(
        pyattn.functional.dropout_keep_mask(shape, 0.5, rng=0), philox.keep_mask(shape, 0.5, draw_seed(0))
    )


# They are random


@pytest.fixture(scope="module")
def keeps():
    return pyattn.functional.dropout_keep_mask((12, 96, 4096), 0.3, rng=2026)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_as_many_are_kept_as_they_should(keeps, axes):
    """Chi-square of the counts along each axis and each pair of axes."""
    counts, number = keeps.sum(axis=axes), math.prod(keeps.shape[axis] for axis in axes)
    assert chi_square_is_likely(deviations(counts, number, 0.7))


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 32, 64])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbours_are_independent(keeps, axis, distance):
    """Both of a pair are kept with probability p * p, along each axis, also across a counter's four numbers."""
    distance = min(distance, keeps.shape[axis] - 1)
    ahead, behind = (
        np.take(keeps, range(distance, keeps.shape[axis]), axis),
        np.take(keeps, range(keeps.shape[axis] - distance), axis),
    )
    both = ahead & behind
    others = tuple(n for n in range(3) if n != axis)
    # pairs overlap, so a pair and the next share a number: take every other stretch of `distance`
    apart = (np.arange(both.shape[axis]) // distance) % 2 == 0
    both = np.compress(apart, both, axis)
    assert abs(deviations(both.sum(), both.size, 0.49)) < 5
    counts, number = both.sum(axis=(axis, *others[:1])), both.size // both.shape[others[1]]
    assert chi_square_is_likely(deviations(counts, number, 0.49))


def test_seeds_have_nothing_in_common():
    first, second = (pyattn.functional.dropout_keep_mask((4, 64, 1024), 0.5, rng=seed) for seed in (0, 1))
    assert abs(deviations((first == second).sum(), first.size, 0.5)) < 5


@pytest.mark.parametrize("dropout_p", [0.01, 0.1, 0.25, 0.9])
def test_the_share_is_dropout_p(dropout_p):
    keep = pyattn.functional.dropout_keep_mask((4, 256, 1024), dropout_p, rng=0)
    assert abs(deviations(keep.sum(), keep.size, 1 - dropout_p)) < 5


# What attention does with them


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_weights_are_those_of_the_formula(shape, level, dtype):
    query, key, value = arrays_for(*shape, dtype)
    keep = np.random.default_rng(1).random((1, *shape)) < 0.7
    result = pyattn.attention(query, key, value, dropout_p=0.3, keep_mask=keep, need_weights=True, need_lse=True)
    plain = pyattn.attention(query, key, value, need_weights=True, need_lse=True)

    exact = expect(query, key, value, dtype)
    weights = exact.weights * keep / (1 - np.float64(0.3))
    u, largest = exact.unit_roundoff, exact.largest[..., np.newaxis]
    assert np.all(abs(result.weights - weights) <= 8 * u * weights * (2 + 2 * largest) + exact.tiny)
    output = weights @ value.astype(weights.dtype)
    # dropped weights weigh nothing; the others 1 / (1 - p) as much, on a scale of the sum of all
    assert np.all(abs(result.output - output) <= OUTPUT_BAR * exact.output_unit / (1 - 0.3))
    assert_same_bits(result.lse, plain.lse)


def test_a_mask_given_is_a_mask_drawn(level, dtype):
    arrays = arrays_for(3, 70, 131, dtype)
    keep = pyattn.functional.dropout_keep_mask((1, 3, 70, 131), 0.2, rng=9)
    drawn = pyattn.attention(*arrays, dropout_p=0.2, rng=9, need_weights=True, need_lse=True)
    assert_same_bits(pyattn.attention(*arrays, dropout_p=0.2, keep_mask=keep, need_weights=True, need_lse=True), drawn)


@pytest.mark.threads
@pytest.mark.parametrize("shape", [(3, 70, 131), (1, 5, 3000), (2, 1, 5000)], ids=str)
def test_threads_and_neighbours_change_nothing(shape):
    arrays = arrays_for(*shape)
    one = pyattn.attention(*arrays, dropout_p=0.3, rng=4, num_threads=1)
    assert_same_bits(pyattn.attention(*arrays, dropout_p=0.3, rng=4, num_threads=3), one)
    weighed = pyattn.attention(*arrays, dropout_p=0.3, rng=4, need_weights=True)
    assert_same_bits(weighed.output, one)
    rows = slice(0, 1 + shape[1] // 2)  # the first queries alone: another layout, other blocks
    assert_same_bits(pyattn.attention(arrays[0][:, :, rows], *arrays[1:], dropout_p=0.3, rng=4), one[:, :, rows])


def test_every_level_drops_the_same(levels):
    arrays = arrays_for(3, 70, 131)
    keeps = []
    for name in levels:
        _core._set_isa(name)
        keeps.append(pyattn.attention(*arrays, dropout_p=0.5, rng=0, need_weights=True).weights != 0)
    for other in keeps[1:]:
        np.testing.assert_array_equal(other, keeps[0])


def test_masks_groups_and_layouts_go_with_it(level):
    query, key, value = normal(2, 6, 37, 8), normal(2, 2, 90, 8, seed=1), normal(2, 2, 90, 5, seed=2)
    mask = np.random.default_rng(3).random((37, 90)) < 0.8
    keep = pyattn.functional.dropout_keep_mask((2, 6, 37, 90), 0.25, rng=5)
    arguments = {"attn_mask": mask, "is_causal": True, "align": "lower_right", "need_weights": True}
    result = pyattn.attention(query, key, value, dropout_p=0.25, rng=5, **arguments)
    plain = pyattn.attention(query, key, value, **arguments).weights.astype(np.float64)
    expected = plain * keep / 0.75
    np.testing.assert_allclose(result.weights, expected, rtol=1e-6, atol=0)
    np.testing.assert_allclose(result.output, expected @ np.repeat(value, 3, axis=1), rtol=0, atol=5e-6)
    turned = [x.swapaxes(1, 2) for x in (query, key, value)]
    other = pyattn.attention(*turned, layout="bshd", dropout_p=0.25, rng=5, **arguments)
    assert_same_bits(other.output.swapaxes(1, 2), result.output)
    assert_same_bits(other.weights, result.weights)


def test_all_dropped_gives_zeros_and_an_empty_row_stays_empty(level, dtype):
    query, key, value = arrays_for(2, 3, 70, dtype)
    assert not np.any(pyattn.attention(query, key, value, dropout_p=1.0))
    assert not np.any(pyattn.attention(query, key, value, keep_mask=False))
    hidden = {"key_lengths": [0], "empty_rows": "nan"}
    assert np.all(np.isnan(pyattn.attention(query, key, value, dropout_p=0.5, rng=0, **hidden)))
    assert not np.any(np.isnan(pyattn.attention(query, key, value, dropout_p=1.0, empty_rows="nan")))


def test_without_dropout_p_a_mask_divides_nothing():
    x, keep = normal(3, 4), np.eye(3, dtype=bool)
    weights = pyattn.attention(x, x, x, need_weights=True).weights
    assert_same_bits(pyattn.attention(x, x, x, keep_mask=keep, need_weights=True).weights, weights * keep)


@pytest.mark.parametrize("shape", [(1, 3, 70), (2, 70, 131)], ids=str)
def test_a_nan_that_is_dropped_is_still_attended_to_and_a_masked_one_is_not(shape, level):
    query, key, value = arrays_for(*shape)
    keep = np.ones(shape[2], bool)
    keep[5] = False
    clean = pyattn.attention(query, key, value, attn_mask=keep, dropout_p=0.5, rng=0)
    value[..., 5, :] = np.nan
    assert np.all(np.isnan(pyattn.attention(query, key, value, keep_mask=keep)))
    assert_same_bits(pyattn.attention(query, key, value, attn_mask=keep, dropout_p=0.5, rng=0), clean)


def test_a_keep_mask_is_read_in_place(level):
    """Any strides, and axes that broadcast. Some blocks of keys are dropped as a whole, some kept."""
    arrays = arrays_for(3, 20, 300)
    whole = np.random.default_rng(0).random((3, 1, 600)) < 0.5
    whole[..., -258:-128] = False
    whole[..., :-400] = True
    keep = whole[..., ::-2]
    expanded = np.ascontiguousarray(np.broadcast_to(keep, (1, 3, 20, 300)))
    result = pyattn.attention(*arrays, dropout_p=0.5, keep_mask=keep, need_weights=True)
    assert_same_bits(pyattn.attention(*arrays, dropout_p=0.5, keep_mask=expanded, need_weights=True), result)
    np.testing.assert_array_equal(result.weights != 0, expanded)


def test_dropout_takes_no_memory():
    """Far below a byte a pair; one thread's scratch is kept from call to call, and counted here."""
    query, key, value = arrays_for(1, 1500, 1500)
    tracemalloc.start()
    pyattn.attention(query, key, value, dropout_p=0.5, rng=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1500 * 1500 / 2


# Modules, and torch


@pytest.mark.peers
def test_the_module_in_training_is_torchs_with_the_same_keeps(torch):
    """torch returns its weights after dropout: where they are 0 it dropped."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(16, 4, dropout=0.35, batch_first=True, dtype=torch.float64)
    ours = pyattn.interop.torch.from_torch(theirs)
    x = normal(2, 9, 16, dtype="float64")
    tensor = torch.from_numpy(x)
    output, weights = theirs(tensor, tensor, tensor, average_attn_weights=False)
    keep = weights.detach().numpy() != 0
    assert 0.5 < keep.mean() < 0.8
    mine = ours.train()(x, x, x, average_attn_weights=False, keep_mask=keep)
    np.testing.assert_allclose(mine[1], weights.detach(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(mine[0], output.detach(), rtol=0, atol=1e-14)
    mean = ours(x, x, x, keep_mask=keep)[1]
    np.testing.assert_allclose(mean, weights.detach().mean(dim=1), rtol=0, atol=1e-14)


def test_a_module_drops_in_training_alone():
    module = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True, rng=0)
    x = normal(2, 5, 8)
    plain = module.eval()(x, x, x, rng=3)[0]
    assert_same_bits(module(x, x, x)[0], plain)
    dropped = module.train()(x, x, x, rng=3, average_attn_weights=False)
    keep = pyattn.functional.dropout_keep_mask((2, 2, 5, 5), 0.5, rng=3)
    np.testing.assert_array_equal(dropped[1] != 0, keep)
    assert_same_bits(module(x, x, x, keep_mask=keep)[0], dropped[0])
    assert np.any(module(x, x, x)[0] != module(x, x, x)[0])


def test_extra_keys_are_dropped_as_others():
    module = nn.MultiheadAttention(8, 2, dropout=0.5, add_bias_kv=True, add_zero_attn=True, rng=0)
    x = normal(5, 2, 8)
    weights = module(x, x, x, rng=3, average_attn_weights=False)[1]
    np.testing.assert_array_equal(weights != 0, pyattn.functional.dropout_keep_mask((2, 2, 5, 7), 0.5, rng=3))


def test_sdpa_drops_too():
    x = normal(2, 4, 5, 8)
    expected = pyattn.attention(x, x, x, dropout_p=0.5, rng=1)
    assert_same_bits(pyattn.scaled_dot_product_attention(x, x, x, None, 0.5, rng=1), expected)
    keep = pyattn.functional.dropout_keep_mask((2, 4, 5, 5), 0.5, rng=1)
    assert_same_bits(pyattn.scaled_dot_product_attention(x, x, x, None, 0.5, keep_mask=keep), expected)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (((3,), 0.5), ValueError, r"shape is \(3,\), expected \(\.\.\., L, S\)"),
        (((3.0, 4), 0.5), TypeError, r"shape is \(3.0, 4\), expected a sequence of ints"),
        ((5, 0.5), TypeError, "shape is 5, expected a sequence of ints"),
        (((3, 4), "0.5"), TypeError, "dropout_p is of type str, expected a number"),
        (((3, 4), True), TypeError, "dropout_p is of type bool, expected a number"),
        (((3, -1), 0.5), ValueError, r"shape is \(3, -1\), expected"),
        (((3, 4), 1.5), ValueError, "dropout_p is 1.5, expected a probability from 0 to 1"),
        (((3, 4), np.nan), ValueError, "dropout_p is nan, expected a probability"),
        (((3, 4), 0.5, "seed"), TypeError, "rng is 'seed', expected None, an int of 0 or more"),
        (((3, 4), 0.5, -1), ValueError, "rng is -1, expected None, an int of 0 or more"),
        (((2**33, 1, 0), 0.5), ValueError, r"dropout with 8589934592 heads in all, .* expected at most 2\*\*32"),
    ],
    ids=str,
)
def test_mistakes_in_the_mask_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        pyattn.functional.dropout_keep_mask(*arguments)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"dropout_p": 0.5, "rng": 1.5}, TypeError, "rng is 1.5, expected None"),
        ({"dropout_p": True}, TypeError, "dropout_p is of type bool, expected a number"),
        ({"keep_mask": np.ones((3, 3))}, TypeError, "keep_mask has dtype float64, expected bool .* keep_mask.astype"),
        (
            {"keep_mask": np.ones((2, 3), bool)},
            ValueError,
            r"keep_mask has shape \(2, 3\), which does not broadcast to",
        ),
    ],
    ids=str,
)
def test_mistakes_in_a_call_are_named(arguments, kind, message):
    x = normal(3, 4)
    with pytest.raises(kind, match=message):
        pyattn.attention(x, x, x, **arguments)

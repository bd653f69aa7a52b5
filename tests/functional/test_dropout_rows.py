"""pyattn.functional.dropout and nn.Dropout: which elements are kept, that they are random, and what becomes of them."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from support import philox
from support.chance import chi_square_is_likely, deviations
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, nn
from pyattn._util.random import draw_seed

SHAPES = [(1, 1), (3, 5), (70, 131), (2, 600), (17, 1000), (1, 3 * 65536 + 7), (400, 3)]


@pytest.fixture(autouse=True)
def _restore_number():
    yield
    pyattn.set_num_threads(None)


# Which are kept


@for_each("p", [1e-12, 0.1, 0.5, 1 - 2**-20, 1.0])
@for_each("shape", SHAPES)
def test_keeps_are_those_of_the_documented_generator(shape, p, level, dtype):
    expected = philox.keep_mask((1, *shape), max(p, 2**-32), draw_seed(3))[0]
    np.testing.assert_array_equal(pyattn.functional.dropout(np.ones(shape, dtype), p, rng=3) != 0, expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_keep_mask_tells_what_is_kept(shape):
    keep = pyattn.functional.dropout_keep_mask(shape, 0.4, rng=7)
    np.testing.assert_array_equal(pyattn.functional.dropout(np.ones(shape), 0.4, rng=7) != 0, keep)


def test_leading_axes_are_rows():
    x = normal(6, 10)
    flat = pyattn.functional.dropout(x, 0.5, rng=1)
    assert_same_bits(pyattn.functional.dropout(x.reshape(2, 3, 10), 0.5, rng=1), flat.reshape(2, 3, 10))
    assert_same_bits(pyattn.functional.dropout(x[0], 0.5, rng=1), flat[0])
    assert_same_bits(pyattn.functional.dropout(x[:4], 0.5, rng=1), flat[:4])
    assert_same_bits(pyattn.functional.dropout(x[:, :7], 0.5, rng=1), np.ascontiguousarray(flat[:, :7]))


def test_an_int_repeats_and_a_generator_goes_on():
    x, generator = np.ones((8, 8)), np.random.default_rng(5)
    first, second = (pyattn.functional.dropout(x, rng=generator) for _ in range(2))
    assert_same_bits(pyattn.functional.dropout(x, rng=5), first)
    assert_same_bits(pyattn.functional.dropout(x, rng=np.random.SeedSequence(5)), first)
    assert np.any(first != second)
    assert np.any(pyattn.functional.dropout(x) != pyattn.functional.dropout(x))


def test_nothing_is_drawn_where_nothing_is_dropped_or_the_call_fails():
    x, generator = np.ones((8, 8)), np.random.default_rng(5)
    pyattn.functional.dropout(x, 0.0, rng=generator)
    pyattn.functional.dropout(x, training=False, rng=generator)
    with pytest.raises(ValueError, match="p is 2"):
        pyattn.functional.dropout(x, 2, rng=generator)
    with pytest.raises(TypeError, match="x has dtype complex128"):
        pyattn.functional.dropout(x * 1j, rng=generator)
    assert draw_seed(generator) == draw_seed(5)


# They are random


@pytest.fixture(scope="module")
def keeps():
    return pyattn.functional.dropout(np.ones((1152, 4096), np.float32), 0.3, rng=2026) != 0


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)], ids=str)
def test_as_many_are_kept_as_they_should(keeps, axes):
    number = math.prod(keeps.shape[axis] for axis in axes)
    assert chi_square_is_likely(deviations(keeps.sum(axis=axes), number, 0.7))


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("axis", [0, 1])
def test_neighbours_are_independent(keeps, axis, distance):
    """Both of a pair are kept with probability p * p; pairs that share no element."""
    length = keeps.shape[axis] // (2 * distance) * 2 * distance
    split = np.moveaxis(keeps, axis, 0)[:length].reshape(-1, 2, distance, keeps.shape[1 - axis])
    both = split[:, 0] & split[:, 1]
    assert abs(deviations(both.sum(), both.size, 0.49)) < 5
    assert chi_square_is_likely(deviations(both.sum(axis=(0, 1)), both.shape[0] * both.shape[1], 0.49))


def test_seeds_have_nothing_in_common():
    first, second = (pyattn.functional.dropout(np.ones((256, 1024)), rng=seed) for seed in (0, 1))
    assert abs(deviations((first == second).sum(), first.size, 0.5)) < 5


@pytest.mark.peers
@pytest.mark.parametrize("p", [0.01, 0.1, 0.25, 0.9])
def test_the_laws_are_torchs(p, dtype, torch):
    """As many zeros, the same number elsewhere, and the same mean."""
    ones = np.ones((1024, 1024), dtype)
    theirs = torch.nn.functional.dropout(torch.from_numpy(ones), p).numpy()
    ours = pyattn.functional.dropout(ones, p, rng=0)
    for result in (ours, theirs):
        assert abs(deviations((result != 0).sum(), result.size, 1 - p)) < 5
    np.testing.assert_allclose(ours.max(), theirs.max(), rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(np.unique(ours), [0, ours.max()])
    assert abs(ours.mean() - 1) < 5 * math.sqrt(p / (1 - p) / ours.size)


# What becomes of them


@for_each("shape", SHAPES)
@for_each("p", [0.1, 0.3, 0.9])
def test_what_is_kept_is_divided(shape, p, dtype, level):
    x = normal(*shape, dtype=dtype)
    wide = np.longdouble if dtype == "float64" else np.float64
    exact = x.astype(wide) / (1 - wide(p)) * pyattn.functional.dropout_keep_mask(shape, p, rng=0)
    # the factor is rounded twice, in double and to dtype, and its 1 - p once; the product once
    assert (np.abs(pyattn.functional.dropout(x, p, rng=0) - exact) <= 2 * np.finfo(dtype).eps * np.abs(exact)).all()


@for_each("shape", SHAPES)
@for_each("p", [0.1, 0.3, 0.9])
def test_the_gradient_is_dropout_with_the_same_seed(shape, p, dtype, level):
    """Dropout multiplies by a diagonal, which is dropout of ones; so does its gradient, bit for bit."""
    upstream, diagonal = normal(*shape, seed=1, dtype=dtype), pyattn.functional.dropout(np.ones(shape, dtype), p, rng=8)
    gradient = np.where(diagonal == 0, np.zeros_like(upstream), upstream * diagonal)
    assert_same_bits(pyattn.functional.dropout(upstream, p, rng=8), gradient)


def test_nan_and_infinity_that_are_dropped_are_gone(dtype, level):
    x = normal(40, 70, dtype=dtype)
    plain, keep = pyattn.functional.dropout(x, 0.5, rng=0), pyattn.functional.dropout_keep_mask(x.shape, 0.5, rng=0)
    for number in (np.nan, np.inf, -np.inf):
        assert_same_bits(pyattn.functional.dropout(np.where(keep, x, number), 0.5, rng=0), plain)
        other = pyattn.functional.dropout(np.where(keep, number, x), 0.5, rng=0)
        assert not np.isfinite(other[keep]).any()
        assert (other[~keep] == 0).all()


def test_a_probability_of_one_leaves_zeros(dtype, level):
    assert_same_bits(pyattn.functional.dropout(np.full((3, 50), np.nan, dtype), 1, rng=0), np.zeros((3, 50), dtype))


def test_where_nothing_is_dropped_it_is_the_array_itself(dtype):
    x = normal(3, 4, dtype=dtype)
    assert pyattn.functional.dropout(x, 0) is x
    assert pyattn.functional.dropout(x, 0.5, training=False) is x
    assert pyattn.functional.dropout([1, 2], 0.0).tolist() == [1.0, 2.0]


def test_levels_give_the_same_bits(dtype, levels):
    x, results = normal(50, 301, dtype=dtype), []
    for level in levels:
        _core._set_isa(level)
        results.append(pyattn.functional.dropout(x, 0.3, rng=0))
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.threads
@pytest.mark.parametrize("shape", [(3000, 64), (2, 200000)], ids=str)
def test_threads_and_neighbours_do_not_change_a_bit(shape):
    x = normal(*shape)
    pyattn.set_num_threads(1)
    one = pyattn.functional.dropout(x, 0.3, rng=0)
    for threads in (2, 3, 7):
        pyattn.set_num_threads(threads)
        assert_same_bits(pyattn.functional.dropout(x, 0.3, rng=0), one)
    assert_same_bits(pyattn.functional.dropout(x[:1], 0.3, rng=0), one[:1])


def test_strides_do_not_change_a_bit(dtype):
    x = normal(6, 5, 37, dtype=dtype)
    plain = pyattn.functional.dropout(x, 0.3, rng=0)
    memory = np.empty(x.nbytes + 1, np.uint8)[1:].view(dtype).reshape(x.shape)
    memory[...] = x
    others = [np.asfortranarray(x), x[..., ::-1].copy()[..., ::-1], x.astype(x.dtype.newbyteorder()), memory]
    for other in others:
        assert_same_bits(pyattn.functional.dropout(other, 0.3, rng=0), plain)


def test_x_stays_as_it_is():
    x = normal(30, 40)
    x.flags.writeable = False
    before = x.copy()
    pyattn.functional.dropout(x, rng=0)
    assert_same_bits(x, before)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,)], ids=str)
def test_shapes_stay(shape):
    assert pyattn.functional.dropout(np.ones(shape), 0.5).shape == shape


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"p": 1.5}, ValueError, "^p is 1.5, expected a probability from 0 to 1"),
        ({"p": math.nan}, ValueError, "^p is nan, expected a probability from 0 to 1"),
        ({"p": True}, TypeError, "^p is of type bool, expected a number"),
        ({"p": "a"}, TypeError, "^p is of type str, expected a number"),
        ({"training": "no"}, TypeError, "^training is of type str, expected True or False"),
        ({"training": None}, TypeError, "^training is of type NoneType, expected True or False"),
        ({"x": None}, TypeError, "^x is an object of type NoneType"),
        ({"rng": "a"}, TypeError, "^rng is 'a', expected None, an int"),
        ({"rng": -1}, ValueError, "^rng is -1, expected None, an int"),
    ],
)
def test_mistakes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        pyattn.functional.dropout(**{"x": np.ones(3), **arguments})


# The module


def test_the_module_drops_in_training_alone():
    dropout, x = nn.Dropout(0.25), normal(30, 40)
    assert_same_bits(dropout(x, rng=0), pyattn.functional.dropout(x, 0.25, rng=0))
    assert dropout.eval()(x, rng=0) is x
    assert dropout.state_dict() == {}
    for twin in (copy.deepcopy(dropout), pickle.loads(pickle.dumps(dropout))):
        assert repr(twin) == repr(dropout)
        assert not twin.training


@pytest.mark.peers
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
def test_the_module_there_and_back(p, torch):
    theirs = torch.nn.Dropout(p).eval()
    ours = pyattn.interop.torch.from_torch(theirs)
    assert type(ours) is nn.Dropout
    assert not ours.training
    back = pyattn.interop.torch.to_torch(ours)
    assert type(back) is torch.nn.Dropout
    assert repr(back) == repr(theirs) == repr(nn.Dropout(p)) or p in (0.0, 1.0)  # torch tells the int or the float
    assert back.p == theirs.p


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"p": -0.1}, ValueError, "^p is -0.1, expected a probability from 0 to 1"),
        ({"p": "a"}, TypeError, "^p is of type str, expected a number"),
    ],
)
def test_mistakes_with_the_module_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        nn.Dropout(**arguments)

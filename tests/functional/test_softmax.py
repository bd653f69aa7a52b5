"""softmax and log_softmax: any axis, any memory, and an error of some ULP of the formula one float type wider."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import functional, reference
from pyattn.testing import bounds

FUNCTIONS = {"softmax": False, "log_softmax": True}


@pytest.fixture(params=FUNCTIONS)
def name(request):
    return request.param


@pytest.fixture
def function(name):
    return getattr(functional, name)


def exact(name, x, axis=-1):
    return getattr(reference, name)(x, axis, dtype=bounds.WIDER[x.dtype.name])


def assert_near(y, x, name, axis=-1):
    """Within 4 ULP, and what must be lost on t = x - max(x): half an ULP of t, twice where nothing fuses, above the
    fraction bar and below it. log_softmax is a difference: its ULP are those of the larger number, |t| + log(n).
    """
    wanted = exact(name, x, axis)
    u = float(np.finfo(x.dtype).eps) / 2
    with np.errstate(all="ignore"):
        t = np.abs(x.astype(wanted.dtype) - x.max(axis=axis, keepdims=True))
        shares = np.exp(-t)
        mean = (shares * t).sum(axis=axis, keepdims=True) / shares.sum(axis=axis, keepdims=True)
        log_n = np.log2(x.size / mean.size)
        slack = 8 * u * (1 + t + log_n) if FUNCTIONS[name] else u * np.abs(wanted) * (8 + 2 * t + 2 * mean + log_n)
        rounded = wanted.astype(x.dtype)
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(y[~finite], rounded[~finite])
    assert y.dtype == x.dtype
    assert np.all(np.abs(y - wanted)[finite] <= (slack + np.finfo(x.dtype).tiny)[finite])


SHAPES = [(1,), (2,), (3,), (15,), (16,), (17,), (1000,), (70000,), (5, 33), (3, 4, 5), (64, 64), (2000, 40)]


@for_each("shape", SHAPES)
@for_each("size", [1, 30])
def test_error_is_some_ulp(shape, size, name, function, dtype, level):
    x = (np.random.default_rng(0).standard_normal(shape) * size).astype(dtype)
    y = function(x)
    assert_near(y, x, name)
    assert bounds.softmax_ratio(y, x, logarithm=FUNCTIONS[name]) <= 1


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_one_axis(axis, name, function, dtype):
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(dtype)
    assert_near(function(x, axis), x, name, axis)
    assert_same_bits(function(x, axis=axis), function(x, axis))


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (-1, 0), (0, 1, 2), (1,)], ids=str)
def test_several_axes_are_one(axes, name, function, dtype):
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(dtype)
    moved = np.moveaxis(x, axes, range(-len(axes), 0))
    flat = function(moved.reshape(*moved.shape[: -len(axes)], -1))
    assert_same_bits(np.moveaxis(function(x, axes), axes, range(-len(axes), 0)), flat.reshape(moved.shape))
    total = np.exp(function(x, axes)) if FUNCTIONS[name] else function(x, axes)
    np.testing.assert_allclose(total.sum(axis=axes), 1, rtol=1e-5)


def test_no_axis_is_all_axes(name, function, dtype):
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(dtype)
    np.testing.assert_array_equal(function(x, None), function(x.ravel()).reshape(x.shape))
    np.testing.assert_array_equal(function(x, ()), np.full_like(x, name == "softmax"))


@pytest.mark.parametrize("axis", [None, 0, -1, np.int64(0), ()], ids=str)
def test_a_scalar_is_a_row_of_one(axis, name, function, dtype):
    """As in SciPy."""
    for scalar in (3.0, np.array(3, dtype)):
        y = function(scalar, axis)
        assert (y.shape, y.dtype) == ((), np.asarray(scalar).dtype)
        assert y == (name == "softmax")
    assert np.isnan(function(np.nan, axis))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)], ids=str)
def test_axes_of_size_0(shape, function, dtype):
    for axis in (*range(len(shape)), None):
        y = function(np.zeros(shape, dtype), axis)
        assert (y.shape, y.dtype) == (shape, dtype)


def test_memory_does_not_matter(function, dtype, level):
    x = np.random.default_rng(0).standard_normal((6, 70)).astype(dtype)
    expected = function(x)
    wide = np.full((6, 140), np.nan, dtype)
    wide[:, ::2] = x
    raw = np.frombuffer(b"\0" + x.tobytes(), dtype, offset=1).reshape(x.shape)
    swapped = x.astype(x.dtype.newbyteorder())
    backwards = np.flip(np.flip(x).copy())
    for stored in (np.asfortranarray(x), wide[:, ::2], raw, swapped, backwards, memoryview(x)):
        y = function(stored)
        assert_same_bits(y, expected)
        assert y.flags.c_contiguous
    assert_same_bits(function(x.T, 0), np.ascontiguousarray(expected.T))


def test_rows_do_not_matter_to_each_other(function, dtype, level):
    x = np.random.default_rng(0).standard_normal((5000, 30)).astype(dtype)
    together = function(x)
    for row in (0, 1, 2499, 4999):
        assert_same_bits(function(x[row]), together[row])


@for_each("slab", [8, 100, 400, 5000, 1 << 30])
@for_each("axis", [0, 1, 2, 3, (0, 2), (3, 1), (2, 3), (1, 2, 3), None])
def test_slabs_change_no_bit(slab, axis, function, dtype, monkeypatch):
    """Whatever number of rows is copied at a time, as with the whole at once."""
    x = np.random.default_rng(0).standard_normal((3, 4, 5, 6)).astype(dtype)
    axes = (0, 1, 2, 3) if axis is None else np.atleast_1d(axis)
    moved = np.moveaxis(x, axes, range(-len(axes), 0))
    flat = function(np.ascontiguousarray(moved).reshape(*moved.shape[: 4 - len(axes)], -1))
    expected = np.moveaxis(flat.reshape(moved.shape), range(-len(axes), 0), axes)
    with monkeypatch.context() as patch:
        patch.setattr(pyattn._util.slabs, "SLAB", slab)
        for given in (x, np.asfortranarray(x), np.repeat(x, 2, axis=3)[..., ::2], x.astype(x.dtype.newbyteorder(">"))):
            result = function(given, axis)
            assert_same_bits(result, expected)
            assert result.flags.c_contiguous
            assert result.dtype == dtype


@pytest.mark.parametrize(("shape", "axis"), [((3000, 2000), 0), ((20, 3000, 100), 1), ((1000, 60, 100), (0, 2))])
def test_another_axis_takes_the_result_and_some_mb(shape, axis, function):
    x = np.zeros(shape, np.float32)
    function(x[:2], axis)  # what is made once
    tracemalloc.start()
    result = function(x, axis)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.nbytes >= 20e6
    assert peak <= result.nbytes + 3 * pyattn._util.slabs.SLAB


def test_input_is_left_alone(function, dtype):
    x = np.random.default_rng(0).standard_normal((6, 7)).astype(dtype)
    before = x.copy()
    x.flags.writeable = False
    assert not np.shares_memory(function(x), x)
    np.testing.assert_array_equal(x, before)


def test_lists_bools_and_integers_become_float64(function):
    for given in ([1, 2, 4], (1, 2, 4), np.array([1, 2, 4], np.int8), np.array([1, 2, 4], ">u4")):
        y = function(given)
        assert y.dtype == np.float64
        np.testing.assert_array_equal(y, function(np.array([1.0, 2, 4])))
    np.testing.assert_array_equal(function([True, False]), function([1.0, 0.0]))


# Extremes


def test_large_and_small_numbers(name, function, dtype, level):
    most = np.finfo(dtype).max
    for row in (
        [most, most],
        [most, -most],
        [-most, -most],
        [most / 2, 0, 1],
        [1e30, 1e30, -1e30],
        [700, 0, -700],
        [88.5, 0],
    ):
        x = np.array(row, dtype)
        assert_near(function(x), x, name)
    tiny = np.array([np.finfo(dtype).smallest_subnormal, 0], dtype)
    np.testing.assert_allclose(pyattn.softmax(tiny), 0.5, rtol=1e-6)


def test_scores_are_shifted_without_loss(function, dtype, level):
    x = np.random.default_rng(0).integers(-50, 0, 40).astype(dtype)
    np.testing.assert_array_equal(function(x), function(x + 512))


@pytest.mark.parametrize(
    ("row", "soft", "log_soft"),
    [
        ([-np.inf, 0], [0, 1], [-np.inf, 0]),
        ([-np.inf, 5, 5], [0, 0.5, 0.5], [-np.inf, -np.log(2), -np.log(2)]),
        ([-np.inf, -np.inf], [np.nan, np.nan], [np.nan, np.nan]),
        ([np.inf, 0], [np.nan, np.nan], [np.nan, np.nan]),
        ([np.nan, 0], [np.nan, np.nan], [np.nan, np.nan]),
        ([-np.inf, np.nan], [np.nan, np.nan], [np.nan, np.nan]),
        ([7], [1], [0]),
    ],
    ids=str,
)
def test_infinities_and_nan(row, soft, log_soft, dtype, level):
    """A row of nothing but -inf is NaN, as in SciPy and torch: unlike attention, softmax has no masks."""
    padded = np.array([row, row], dtype)
    np.testing.assert_allclose(pyattn.softmax(padded)[1], soft, rtol=1e-6)
    np.testing.assert_allclose(pyattn.functional.log_softmax(padded)[1], log_soft, rtol=1e-6)


@pytest.mark.parametrize("place", [0, 5, 16, 17, 39])
def test_one_nan_or_minus_infinity_among_many(place, dtype, level):
    x = np.random.default_rng(0).standard_normal(40).astype(dtype)
    rest = pyattn.softmax(np.delete(x, place))
    x[place] = -np.inf
    np.testing.assert_allclose(np.delete(pyattn.softmax(x), place), rest, rtol=1e-6)
    assert pyattn.softmax(x)[place] == 0
    x[place] = np.nan
    assert np.isnan(pyattn.softmax(x)).all()
    assert np.isnan(pyattn.functional.log_softmax(x)).all()


@pytest.mark.parametrize(
    ("x", "axis", "kind", "message"),
    [
        ([1.0], 1, np.exceptions.AxisError, "axis 1 is out of bounds for array of dimension 1"),
        (1.0, 1, np.exceptions.AxisError, "axis 1 is out of bounds for array of dimension 0"),
        (1.0, (0,), np.exceptions.AxisError, "axis 0 is out of bounds for array of dimension 0"),
        ([[1.0]], (0, 2), np.exceptions.AxisError, "axis 2 is out of bounds for array of dimension 2"),
        ([[1.0]], (0, 0), ValueError, "repeated axis"),
        ([[1.0]], (0, -2), ValueError, "repeated axis"),
        ([1.0], 1.0, TypeError, "^axis is of type float, expected an int, a tuple of ints or None$"),
        ([1.0], "0", TypeError, "^axis is of type str, expected an int, a tuple of ints or None$"),
        ([[1.0]], [0, 1], TypeError, "^axis is of type list, expected an int, a tuple of ints or None$"),
        ([[1.0]], (0, 1.0), TypeError, r"^axis\[1\] is of type float, expected an int$"),
        (1.0, 0.0, TypeError, "^axis is of type float"),
        (["a"], -1, TypeError, "x holds text .dtype <U1.: turn it into numbers first"),
        ([1j], -1, TypeError, "x has dtype complex128, expected float16, bfloat16, float32 or float64"),
        (None, -1, TypeError, "x is an object of type NoneType"),
        (np.ma.array([1.0]), -1, TypeError, "x is a masked array"),
    ],
    ids=str,
)
def test_mistakes_are_named(x, axis, kind, message, function):
    with pytest.raises(kind, match=message):
        function(x, axis)

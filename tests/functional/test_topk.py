"""argmax and top_k: NumPy's stable sort, any memory and level, NaN and equals, and clear words for mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.exceptions import AxisError
from support.helpers import assert_same_bits, for_each

import pyattn


def draw(shape, dtype, seed=0):
    """Many equals, infinities, both zeros, denormals and NaN."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(dtype)
    few = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1, 2, -np.finfo(dtype).max], dtype)
    few = np.concatenate([few, np.finfo(dtype).smallest_subnormal * np.arange(1, 4, dtype=dtype)])
    return np.where(rng.random(shape) < 0.6, few[rng.integers(len(few), size=shape)], x)


def sorted_places(x):
    """From the largest on, stably: NumPy's sort of the reversed row puts NaN last, and of equals the highest index."""
    n = x.shape[-1]
    return n - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]


@for_each("n", [1, 2, 3, 15, 16, 17, 31, 64, 65, 127, 300, 1000])
def test_top_k_is_the_beginning_of_a_stable_sort(n, dtype, level):
    x = draw((5, 3, n), dtype, n)
    for k in {0, 1, 2, 7, n // 2, n - 1, n} & set(range(n + 1)):
        values, indices = pyattn.functional.topk(x, k)
        assert indices.dtype == np.int64
        np.testing.assert_array_equal(indices, sorted_places(x)[..., :k])
        assert_same_bits(values, np.take_along_axis(x, indices, -1))


@pytest.mark.parametrize("n", [1, 2, 17, 64, 300, 20000])
def test_argmax_is_numpys(n, dtype, level):
    x = draw((4, n), dtype, n)
    for row in (x, np.nan_to_num(x), -np.isnan(x).astype(dtype)):
        np.testing.assert_array_equal(pyattn.functional.argmax(row), np.argmax(row, axis=-1))


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1, -3, np.int64(1)])
def test_argmax_along_any_axis(axis, dtype):
    x = draw((7, 20, 9), dtype)
    for stored in (x, np.asfortranarray(x), x[::-1, :, ::-1]):
        np.testing.assert_array_equal(pyattn.functional.argmax(stored, axis), np.argmax(stored, axis))


@pytest.mark.parametrize("slab", [8, 400, 1 << 30])
@pytest.mark.parametrize("axis", [0, 1])
def test_slabs_change_nothing(slab, axis, monkeypatch):
    x = draw((11, 13, 5), "f4")
    monkeypatch.setattr(pyattn._util.slabs, "SLAB", slab)
    np.testing.assert_array_equal(pyattn.functional.argmax(x, axis), np.argmax(x, axis))


@pytest.mark.parametrize("order", [1, -1])
def test_a_vocabulary_in_order(order, dtype, level):
    """Ascending, every element joins the heap; descending, none after the first k."""
    x = (order * np.arange(60001)).astype(dtype)
    assert pyattn.functional.argmax(x) == (60000 if order > 0 else 0)
    for k in (1, 50, 60001):
        np.testing.assert_array_equal(pyattn.functional.topk(x, k).indices, np.arange(60001)[::-order][:k])


def test_equals_come_by_their_index(dtype, level):
    x = np.zeros(500, dtype)
    x[1::2] = -0.0
    np.testing.assert_array_equal(pyattn.functional.topk(x, 500).indices, np.arange(500))
    assert_same_bits(pyattn.functional.topk(x, 500).values, x)
    assert pyattn.functional.argmax(x) == 0


def test_denormals_are_told_apart(dtype, level):
    x = np.finfo(dtype).smallest_subnormal * np.arange(100).astype(dtype)
    assert pyattn.functional.argmax(x) == 99
    np.testing.assert_array_equal(pyattn.functional.topk(-x, 3).indices, [0, 1, 2])


def test_nan_is_the_largest(dtype, level):
    x = np.array([[1, np.nan, np.inf, np.nan, 3] * 20], dtype)
    assert pyattn.functional.argmax(x) == 1
    values, indices = pyattn.functional.topk(x, 42)
    np.testing.assert_array_equal(indices[0, :4], [1, 3, 6, 8])
    assert np.isnan(values[0, :40]).all()
    assert (values[0, 40:] == np.inf).all()


@pytest.mark.peers
def test_values_are_torchs(dtype, torch, level):
    """Which of equals torch takes is its own affair."""
    x = draw((6, 700), dtype)
    for k in (1, 5, 50, 700):
        theirs = torch.topk(torch.from_numpy(x), k)
        np.testing.assert_array_equal(pyattn.functional.topk(x, k).values, theirs.values.numpy())


def test_memory_does_not_matter(dtype, level):
    x = draw((6, 70), dtype)
    expected, largest = pyattn.functional.topk(x, 9), pyattn.functional.argmax(x)
    wide = np.full((6, 140), np.nan, dtype)
    wide[:, ::2] = x
    raw = np.frombuffer(b"\0" + x.tobytes(), dtype, offset=1).reshape(x.shape)
    backwards = np.flip(np.flip(x).copy())
    for stored in (np.asfortranarray(x), wide[:, ::2], raw, x.astype(x.dtype.newbyteorder()), backwards, memoryview(x)):
        assert_same_bits(pyattn.functional.topk(stored, 9).values, expected.values)
        np.testing.assert_array_equal(pyattn.functional.topk(stored, 9).indices, expected.indices)
        np.testing.assert_array_equal(pyattn.functional.argmax(stored), largest)


@pytest.mark.threads
def test_threads_change_nothing(dtype):
    x = draw((300, 2000), dtype)
    pyattn.set_num_threads(1)
    expected, largest = pyattn.functional.topk(x, 20), pyattn.functional.argmax(x)
    try:
        for threads in (2, 5):
            pyattn.set_num_threads(threads)
            np.testing.assert_array_equal(pyattn.functional.topk(x, 20).indices, expected.indices)
            np.testing.assert_array_equal(pyattn.functional.argmax(x), largest)
    finally:
        pyattn.set_num_threads(None)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 4)])
def test_no_rows(shape, dtype):
    x = np.zeros(shape, dtype)
    assert pyattn.functional.argmax(x).shape == shape[:-1]
    values, indices = pyattn.functional.topk(x, 2)
    assert (values.shape, indices.shape, values.dtype) == ((*shape[:-1], 2), (*shape[:-1], 2), dtype)


def test_nothing_of_nothing():
    values, indices = pyattn.functional.topk(np.zeros((3, 0)), 0)
    assert values.shape == indices.shape == (3, 0)


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_a_scalar_is_a_row_of_one(axis):
    for scalar in (3.0, np.array(np.nan, "f4")):
        largest = pyattn.functional.argmax(scalar, axis)
        assert largest.shape == ()
        assert largest == 0


def test_lists_bools_and_integers_become_float64():
    for given in ([1, 4, 2], (1, 4, 2), np.array([1, 4, 2], np.int8), np.array([1, 4, 2], ">u4")):
        assert pyattn.functional.topk(given, 2).values.dtype == np.float64
        assert pyattn.functional.topk(given, 2).indices.tolist() == [1, 2]
        assert pyattn.functional.argmax(given) == 1
    assert pyattn.functional.argmax([False, True, True]) == 1


def test_input_is_left_alone(dtype):
    x = draw((6, 70), dtype)
    before = x.copy()
    x.flags.writeable = False
    assert not np.shares_memory(pyattn.functional.topk(x, 70).values, x)
    assert_same_bits(x, before)


@for_each(
    ("call", "kind", "message"),
    [
        (lambda: pyattn.functional.argmax([[1.0]], 2), AxisError, "axis 2 is out of bounds for array of dimension 2"),
        (lambda: pyattn.functional.argmax([1.0], 0.0), TypeError, "^axis is of type float, expected an int or None$"),
        (
            lambda: pyattn.functional.argmax([[1.0]], (0, 1)),
            TypeError,
            "^axis is of type tuple, expected an int or None$",
        ),
        (
            lambda: pyattn.functional.argmax(["a"]),
            TypeError,
            "x holds text",
        ),
        (
            lambda: pyattn.functional.argmax(np.longdouble([1])),
            TypeError,
            r"x has dtype \w+, expected float16, bfloat16, float32 or float64",
        ),
        (lambda: pyattn.functional.argmax(np.ma.array([1.0])), TypeError, "x is a masked array"),
        (
            lambda: pyattn.functional.argmax([]),
            ValueError,
            r"^x has shape \(0,\): axis 0 is empty; argmax needs at least one",
        ),
        (lambda: pyattn.functional.argmax(np.ones((3, 0, 2)), 1), ValueError, r"\(3, 0, 2\): axis 1 is empty"),
        (
            lambda: pyattn.functional.topk([1.0, 2.0], 3),
            ValueError,
            r"^k is 3, expected 0 <= k <= 2: x has shape \(2,\)$",
        ),
        (lambda: pyattn.functional.topk([1.0, 2.0], -1), ValueError, "^k is -1, expected 0 or more$"),
        (lambda: pyattn.functional.topk([1.0, 2.0], 2**70), ValueError, "^k is too large, expected at most"),
        (lambda: pyattn.functional.topk([1.0, 2.0], 1.0), TypeError, "^k is of type float, expected an int$"),
        (
            lambda: pyattn.functional.topk(1.0, 1),
            ValueError,
            r"^x is a scalar, expected \(..., n\); for one row, pass \[x\]$",
        ),
        (
            lambda: pyattn.functional.topk([1j], 1),
            TypeError,
            "x has dtype complex128, expected float16, bfloat16, float32 or float64",
        ),
        (lambda: pyattn.functional.topk(None, 1), TypeError, "x is an object of type NoneType"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()

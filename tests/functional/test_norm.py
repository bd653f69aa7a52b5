"""layer_norm and rms_norm: against the formula and torch, in the same bits however they are called."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import _core, reference

WIDER = {"float32": np.float64, "float64": np.longdouble}
SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 768, 1000, 4096, 4097, 9000)


def assert_close(y, x, weight, bias, eps, *, rms):
    """What is judged is n = (x - mean) / deviation. Rounding the mean, a sum of 16 chains of at most 256 terms, takes
    u times a few times the mean of |x|, x - mean u |x - mean|, and the sum of squares shares of n itself."""
    wide, u = WIDER[y.dtype.name], np.finfo(y.dtype).eps / 2
    exact = (
        reference.rms_norm(x, weight, eps, dtype=wide)
        if rms
        else reference.layer_norm(x, weight, bias, eps, dtype=wide)
    )
    x, chain = x.astype(wide), np.sqrt(min(x.shape[-1], 4096) / 16) + 4
    mean = 0 if rms else x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + eps)
    shift = 0 if rms else chain * np.abs(x).mean(axis=-1, keepdims=True) / deviation
    bound = (shift + (chain + 6) * np.abs(x - mean) / deviation) * (1 if weight is None else np.abs(weight))
    bound = u * (bound + 2 * np.abs(exact) + (0 if bias is None else np.abs(bias)))
    assert (np.abs(y - exact) <= bound + np.finfo(y.dtype).tiny).all()


@for_each("offset", [0, 3, 1000])
@for_each("n", SIZES)
def test_against_the_formula(n, offset, dtype, level):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal((5, n)) * 2 + offset).astype(dtype)
    weight, bias = rng.standard_normal((2, n)).astype(dtype)
    for eps in (1e-5, 1e-12):
        if n > 1:  # of one number nothing but rounding is left
            assert_close(pyattn.functional.layer_norm(x, n, None, None, eps), x, None, None, eps, rms=False)
            assert_close(pyattn.functional.layer_norm(x, n, weight, bias, eps), x, weight, bias, eps, rms=False)
        assert_close(pyattn.functional.rms_norm(x, n, weight, eps), x, weight, None, eps, rms=True)


@pytest.mark.parametrize("n", [2, 17, 768, 5000])
def test_squares_beyond_the_largest_number(n, dtype, level):
    """torch's layer_norm gives NaN there, and its rms_norm 0."""
    rng, most = np.random.default_rng(n), np.finfo(dtype).max
    spread = np.exp2(rng.uniform(-30, 0, (3, n)))
    rows = [rng.uniform(-1, 1, (3, n)) * spread, rng.uniform(0.5, 1, (3, n)), np.where(rng.random((3, n)) < 0.5, -1, 1)]
    for size in (most, most / 2, np.sqrt(most) * 4):
        for x in (np.asarray(np.float64(size) * row, dtype) for row in rows):
            if x.std(axis=-1, dtype=np.longdouble).all():
                assert_close(pyattn.functional.layer_norm(x, n), x, None, None, 1e-5, rms=False)
            assert_close(pyattn.functional.rms_norm(x, n), x, None, None, np.finfo(dtype).eps, rms=True)
            y, total = pyattn.functional.rms_norm(x, n, residual=0 * x, need_sum=True)
            assert_same_bits(total, x)
            assert_same_bits(y, pyattn.functional.rms_norm(x, n))


def test_infinity_stays_nan_in_its_row(dtype, level):
    x = np.full((3, 40), np.finfo(dtype).max)
    x[1, 7] = np.inf
    for norm in (pyattn.functional.layer_norm, pyattn.functional.rms_norm):
        np.testing.assert_array_equal(np.isnan(norm(x, 40)).any(axis=1), [False, True, False])


def test_one_number_is_its_bias(dtype, level):
    x = np.array([[3.7], [-1e30], [0.0]], dtype)
    np.testing.assert_array_equal(pyattn.functional.layer_norm(x, 1, [5], [2]), [[2], [2], [2]])


@pytest.mark.peers
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 4, 5), (7, 768)])
def test_equals_torch(shape, dtype, torch):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    for axes in range(1, len(shape)):
        weight, bias = rng.standard_normal((2, *shape[-axes:])).astype(dtype)
        theirs = torch.nn.functional.layer_norm(
            *map(torch.from_numpy, (x,)), shape[-axes:], *map(torch.from_numpy, (weight, bias))
        )
        limit = 40 * np.finfo(dtype).eps
        np.testing.assert_allclose(
            pyattn.functional.layer_norm(x, shape[-axes:], weight, bias), theirs, rtol=limit, atol=limit
        )
        theirs = torch.nn.functional.rms_norm(torch.from_numpy(x), shape[-axes:], torch.from_numpy(weight))
        np.testing.assert_allclose(pyattn.functional.rms_norm(x, shape[-axes:], weight), theirs, rtol=limit, atol=limit)


@pytest.mark.parametrize("n", [3, 16, 100, 5000])
def test_residual_has_the_bits_of_its_steps(n, dtype, level):
    x, other = np.random.default_rng(n).standard_normal((2, 4, n)).astype(dtype)
    for norm in (pyattn.functional.layer_norm, pyattn.functional.rms_norm):
        result, total = norm(x, n, residual=other, need_sum=True)
        assert_same_bits(total, x + other)
        assert_same_bits(result, norm(x + other, n))
        assert_same_bits(result, norm(x, n, residual=other))


@pytest.mark.parametrize("norm", [pyattn.functional.layer_norm, pyattn.functional.rms_norm])
def test_levels_strides_threads_and_neighbours_give_the_same_bits(norm, dtype, levels):
    x = np.random.default_rng(1).standard_normal((200, 771)).astype(dtype) + 5
    results = []
    for level in [one for one in levels if one != "scalar"] or levels:
        _core._set_isa(level)
        for threads in (1, 2):
            pyattn.set_num_threads(threads)
            results += [norm(x, 771), norm(np.asfortranarray(x), 771), norm(x[::-1], 771)[::-1]]
            results.append(np.concatenate([norm(row[None], 771) for row in x]))
    pyattn.set_num_threads(None)
    for other in results[1:]:
        assert_same_bits(other, results[0])


@pytest.mark.threads
@pytest.mark.parametrize("rms", [False, True])
def test_several_threads_give_the_same_bits(rms, dtype):
    x, other = np.random.default_rng(2).standard_normal((2, 600, 771)).astype(dtype)
    options = {"residual": other, "rms": rms, "need_sum": True}
    first = _core.normalize(x, **options, num_threads=1)
    for threads in (2, 3, 7):
        for actual, expected in zip(_core.normalize(x, **options, num_threads=threads), first, strict=True):
            assert_same_bits(actual, expected)


def test_nan_stays_in_its_row(dtype, level):
    x = np.arange(12, dtype=dtype).reshape(3, 4)
    x[1, 2] = np.nan
    for y in (pyattn.functional.layer_norm(x, 4), pyattn.functional.rms_norm(x, 4)):
        np.testing.assert_array_equal(np.isnan(y).any(axis=1), [False, True, False])


def test_shapes_and_dtypes():
    assert pyattn.functional.layer_norm(np.ones((0, 3), "f4"), 3).shape == (0, 3)
    assert pyattn.functional.layer_norm(np.ones((2, 0), "f4"), 0).shape == (2, 0)
    assert pyattn.functional.rms_norm([[1, 2]], 2).dtype == np.float64
    assert pyattn.functional.rms_norm(np.ones((2, 2), "f4"), 2, np.ones(2)).dtype == np.float64
    assert pyattn.functional.layer_norm(np.ones((2, 3, 4), "f4"), (3, 4)).shape == (2, 3, 4)


X = np.ones((2, 3))


@for_each(
    ("call", "kind", "message"),
    [
        (
            lambda: pyattn.functional.layer_norm(X, 2),
            ValueError,
            r"x has shape \(2, 3\), expected \(\.\.\., 2\): normalized_shape is 2",
        ),
        (lambda: pyattn.functional.layer_norm(X, ()), ValueError, r"expected \(\.\.\., \)"),
        (
            lambda: pyattn.functional.layer_norm(X, 3.0),
            TypeError,
            "normalized_shape is of type float, expected an int or a sequence",
        ),
        (lambda: pyattn.functional.layer_norm(X, (2.0, 3)), TypeError, r"normalized_shape\[0\] is of type float"),
        (lambda: pyattn.functional.layer_norm(X, 3, [1, 2]), ValueError, r"weight has shape \(2,\), expected \(3,\)"),
        (lambda: pyattn.functional.layer_norm(X, 3, None, [1]), ValueError, r"bias has shape \(1,\), expected \(3,\)"),
        (lambda: pyattn.functional.layer_norm(X, 3, eps=-1), ValueError, "eps is -1, expected 0 or more"),
        (lambda: pyattn.functional.rms_norm(X, 3, eps=np.nan), ValueError, "eps is -?nan, expected 0 or more"),
        (lambda: pyattn.functional.rms_norm(X, 3, eps="1"), TypeError, "eps is of type str, expected a number"),
        (
            lambda: pyattn.functional.rms_norm(X, 3, residual=[1]),
            ValueError,
            r"residual has shape \(1,\), expected \(2, 3\)",
        ),
        (lambda: pyattn.functional.rms_norm(X, 3, need_sum=True), ValueError, "need_sum=True returns x \\+ residual"),
        (lambda: pyattn.functional.layer_norm(X * 1j, 3), TypeError, "x has dtype complex128"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()

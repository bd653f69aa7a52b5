"""Gradients of softmax and log_softmax: the formula's and torch's, along any axes."""

from __future__ import annotations

import numpy as np
import pytest
from support.halves import HALVES, assert_rounded, half_bits
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, functional

FUNCTIONS = {False: functional.softmax_backward, True: functional.log_softmax_backward}
FORWARD = {False: functional.softmax, True: functional.log_softmax}
SIZES = (1, 2, 3, 7, 16, 17, 33, 100, 4096, 4097, 20_000)


@pytest.fixture(autouse=True)
def _restore_number():
    yield
    pyattn.set_num_threads(None)


def claim_close(found, upstream, y, logarithm):
    """Return the largest error in bounds, and require that it is at most 1.

    Sums of a block of 4,096 are 16 chains of at most 256 terms, whose roundings are independent; sums of blocks are
    compensated. exp is off by 6 u, and products and differences are rounded once.
    """
    wide = np.longdouble if y.dtype == np.float64 else np.float64
    u, tiny, chain = np.finfo(y.dtype).eps / 2, np.finfo(y.dtype).tiny, np.sqrt(min(y.shape[-1], 4096) / 16) + 4
    up, y = upstream.astype(wide), y.astype(wide)
    terms = up if logarithm else up * y
    total, sizes = (x.sum(axis=-1, keepdims=True) for x in (terms, np.abs(terms)))
    factor = np.exp(y) if logarithm else y
    exact = up - factor * total if logarithm else factor * (up - total)
    bound = factor * (chain * sizes + 8 * np.abs(total)) + (1 if logarithm else 3 * factor) * np.abs(up)
    ratio = np.max(np.abs(found - exact) / (u * (bound + 2 * np.abs(exact)) + tiny * (1 + sizes)), initial=0)
    assert ratio <= 1, ratio
    return ratio


@for_each("logarithm", [False, True])
@for_each("n", SIZES)
@for_each("size", [1, 20])
def test_against_the_formula(size, n, logarithm, dtype, level):
    y = FORWARD[logarithm](normal(4, n, dtype=dtype) * size)
    for upstream in (normal(4, n, seed=1, dtype=dtype), np.abs(normal(4, n, seed=2, dtype=dtype))):
        claim_close(FUNCTIONS[logarithm](upstream, y), upstream, y, logarithm)


@pytest.mark.peers
@for_each("logarithm", [False, True])
@for_each("axis", [-1, 0, 1])
def test_equals_torch(axis, logarithm, dtype, torch):
    x, upstream = normal(6, 7, 30, dtype=dtype), normal(6, 7, 30, seed=1, dtype=dtype)
    leaf = torch.from_numpy(x.astype(np.float64)).requires_grad_()
    function = torch.log_softmax if logarithm else torch.softmax
    (expected,) = torch.autograd.grad(function(leaf, axis), leaf, torch.from_numpy(upstream.astype(np.float64)))
    found = FUNCTIONS[logarithm](upstream, FORWARD[logarithm](x, axis), axis)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=100 * np.finfo(dtype).eps)


@for_each("logarithm", [False, True])
@for_each("axis", [0, 1, -2, (0, 2), (2, 1), None, ()])
def test_axes_are_those_of_the_forward_call(axis, logarithm, dtype, level):
    """As moved to the end, copied and moved back."""
    y, upstream = FORWARD[logarithm](normal(3, 5, 8, dtype=dtype), axis), normal(3, 5, 8, seed=1, dtype=dtype)
    axes = tuple(range(3)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    last = tuple(range(-len(axes), 0))
    moved = [np.ascontiguousarray(np.moveaxis(one, axes, last)) for one in (upstream, y)]
    outer = moved[0].shape[: 3 - len(axes)]
    rows = [one.reshape(*outer, one.size // int(np.prod(outer))) for one in moved]
    expected = np.moveaxis(_core.softmax_backward(*rows, logarithm).reshape(moved[0].shape), last, axes)
    found = FUNCTIONS[logarithm](upstream, y, axis)
    assert_same_bits(found, np.ascontiguousarray(expected))
    assert_same_bits(FUNCTIONS[logarithm](np.asfortranarray(upstream), y[::-1].copy()[::-1], axis), found)


@for_each("logarithm", [False, True])
def test_levels_and_threads_give_the_same_bits(logarithm, dtype, levels):
    y, upstream = FORWARD[logarithm](normal(300, 771, dtype=dtype)), normal(300, 771, seed=1, dtype=dtype)
    results = []
    for level in levels:
        _core._set_isa(level)
        pyattn.set_num_threads(1)
        found = FUNCTIONS[logarithm](upstream, y)
        results += [found] if level != "scalar" else []
        for threads in (2, 3):
            pyattn.set_num_threads(threads)
            assert_same_bits(FUNCTIONS[logarithm](upstream, y), found)
        assert_same_bits(FUNCTIONS[logarithm](upstream[:1], y[:1]), found[:1])
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("half", HALVES)
@for_each("logarithm", [False, True])
@for_each("shape", [(3, 17), (2, 5, 64), (2, 100_003)])
def test_halves_are_computed_in_float32(shape, logarithm, half, level):
    y = FORWARD[logarithm](normal(*shape).astype(HALVES[half]))
    upstream = normal(*shape, seed=1).astype(HALVES[half])
    single = upstream.astype(np.float32), y.astype(np.float32)
    function = FUNCTIONS[logarithm]
    assert_rounded(function(upstream, y), function(*single), half)
    assert_rounded(function(single[0], y, 0), function(*single, 0), half)
    assert_same_bits(function(upstream, single[1]), function(*single))
    double = function(upstream.astype(np.float64), y.astype(np.float64)).astype(HALVES[half])
    assert_same_bits(half_bits(function(upstream.astype(np.float64), y)), half_bits(double))


def test_masked_elements_have_no_gradient(dtype, level):
    """A weight of 0 has a gradient of 0; the logarithm -inf hands its upstream gradient on, as in torch."""
    x, upstream = normal(4, 9, dtype=dtype), normal(4, 9, seed=1, dtype=dtype)
    x[:, 3:6] = -np.inf
    assert (functional.softmax_backward(upstream, functional.softmax(x))[:, 3:6] == 0).all()
    found = functional.log_softmax_backward(upstream, functional.log_softmax(x))
    assert_same_bits(found[:, 3:6].copy(), upstream[:, 3:6].copy())


def test_nan_and_infinity_stay_in_their_row(dtype, level):
    y = functional.softmax(normal(3, 9000, dtype=dtype))
    for number in (np.nan, np.inf):
        upstream = normal(3, 9000, seed=1, dtype=dtype)
        upstream[1, 4] = number
        for logarithm, function in FUNCTIONS.items():
            found = function(upstream, np.log(y) if logarithm else y)
            np.testing.assert_array_equal(np.isfinite(found).all(axis=1), [True, False, True])


def test_shapes_and_dtypes():
    for function in FUNCTIONS.values():
        assert function(1, 1).shape == ()
        assert function([[1, 2]], [[1, 2]]).dtype == np.float64
        for shape in ((0, 3), (3, 0), (0,)):
            assert function(np.ones(shape, "f4"), np.ones(shape, "f4")).shape == shape
        assert function(np.ones((1,) * 10 + (3,)), np.ones((1,) * 10 + (3,))).shape == (1,) * 10 + (3,)


X = np.ones((2, 3))


@for_each(
    ("call", "kind", "message"),
    [
        (
            lambda: functional.softmax_backward(X[0], X),
            ValueError,
            r"grad_output has shape \(3,\), expected \(2, 3\) as",
        ),
        (lambda: functional.softmax_backward(X, X * 1j), TypeError, "output has dtype complex128"),
        (lambda: functional.log_softmax_backward(X, X, 2), np.exceptions.AxisError, "axis 2 is out of bounds"),
        (lambda: functional.log_softmax_backward(X, X, 0.5), TypeError, "axis is of type float, expected an int"),
        (lambda: _core.softmax_backward(X, X.T, False), ValueError, "must be C-contiguous arrays of real numbers"),
        (lambda: _core.softmax_backward(X, X.astype("f4"), False), ValueError, "of one shape and dtype"),
        (lambda: _core.softmax_backward([1], X, False), TypeError, r"softmax_backward\(grad_output: ndarray, output"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()

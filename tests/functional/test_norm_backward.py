"""Gradients of layer_norm and rms_norm: the formula's and torch's, in the same bits however they are called."""

from __future__ import annotations

import numpy as np
import pytest
from support.halves import HALVES, assert_rounded, half_bits
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, functional

WIDER = {"float32": np.float64, "float64": np.longdouble}
SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 768, 4096, 4097, 9000)


@pytest.fixture(autouse=True)
def _restore_number():
    yield
    pyattn.set_num_threads(None)


def exact_and_bounds(upstream, x, weight, eps, rms):
    """The three gradients by the formula, and bounds of their errors, in units of u.

    Sums over a row are 16 chains of at most 256 terms, those over rows 64 parts of blocks of 64 terms: as errors of
    rounding are independent, they add up to some square root of the numbers of terms. An error of the mean shifts all
    n = (x - mean) r of a row; one of r is a share of n and of grad_x.
    """
    wide = WIDER[x.dtype.name]
    up, x = upstream.astype(wide), x.astype(wide)
    g = up if weight is None else up * weight.astype(wide)
    chain, row_chain = np.sqrt(min(x.shape[-1], 4096) / 16) + 4, np.sqrt(128 + len(x) / 4096) + 4

    def mean(array):
        return array.mean(axis=-1, keepdims=True)

    centred = x if rms else x - mean(x)
    r = 1 / np.sqrt(mean(centred**2) + wide(eps))
    n = centred * r
    mean_g, mean_gn = 0 * mean(g) if rms else mean(g), mean(g * n)
    exact = r * (g - mean_g - n * mean_gn), (up * n).sum(axis=0), up.sum(axis=0)

    error_n = (0 if rms else chain * mean(np.abs(x)) * r) + (chain + 6) * np.abs(n)
    error_mean_gn = mean(np.abs(g) * error_n) + (chain + 2) * mean(np.abs(g * n))
    sizes = 3 * (np.abs(g) + np.abs(mean_g) + np.abs(n * mean_gn)) + (0 if rms else chain * mean(np.abs(g)))
    of_x = r * (sizes + error_n * np.abs(mean_gn) + np.abs(n) * error_mean_gn) + (chain + 8) * np.abs(exact[0])
    of_weight = (np.abs(up) * error_n).sum(axis=0) + row_chain * np.abs(up * n).sum(axis=0)
    return exact, (of_x, of_weight, row_chain * np.abs(up).sum(axis=0))


def assert_close(found, upstream, x, weight, eps, rms):
    """Return the largest error, in bounds."""
    u, tiny = np.finfo(x.dtype).eps / 2, np.finfo(x.dtype).tiny
    ratios = []
    for one, exact, bound in zip(found, *exact_and_bounds(upstream, x, weight, eps, rms), strict=True):
        ratios.append(np.max(np.abs(one - exact) / (u * bound + x.shape[-1] * tiny), initial=0))
    assert max(ratios) <= 1, ratios
    return max(ratios)


@for_each("offset", [0, 3, 1000])
@for_each("n", SIZES)
@for_each("rms", [False, True])
def test_against_the_formula(rms, n, offset, dtype, level):
    if n == 1 and not rms:
        return  # nothing but rounding is left
    upstream, x = (normal(5, n, seed=seed, dtype=dtype) for seed in (n, n + 1))
    weight, x = normal(n, seed=n + 2, dtype=dtype), (x * 2 + offset).astype(dtype)
    for eps in (1e-5, 1e-12):
        for one in (None, weight):
            found = _core.normalize_backward(upstream, x, one, rms=rms, eps=eps, need_weight=True, need_bias=True)
            assert_close(found, upstream, x, one, eps, rms)


@for_each("rows", [1, 2, 63, 64, 65, 1000, 3001, 20000])
@for_each("rms", [False, True])
def test_sums_over_many_rows(rms, rows, dtype, level):
    upstream, x = normal(rows, 5, dtype=dtype) + 1, normal(rows, 5, seed=1, dtype=dtype) + 2
    found = _core.normalize_backward(upstream, x, rms=rms)
    assert_close(found, upstream, x, None, 1e-5, rms)


@pytest.mark.parametrize("n", [2, 17, 768, 5000])
@for_each("rms", [False, True])
def test_squares_beyond_the_largest_number(rms, n, dtype, level):
    """The gradient is as small as x is large: a large upstream gradient brings it back among the normal numbers."""
    most = float(np.finfo(dtype).max)
    for size in (most, np.sqrt(most) * 4):
        x = (np.random.default_rng(n).uniform(-1, 1, (3, n)) * size).astype(dtype)
        upstream = (normal(3, n, seed=1, dtype=np.float64) * np.sqrt(most) / n).astype(dtype)
        found = _core.normalize_backward(upstream, x, rms=rms, need_weight=True, need_bias=True)
        assert np.abs(found[0]).max() > 0
        assert_close(found, upstream, x, None, 1e-5, rms)


def torch_gradients(torch, upstream, x, shape, weight, eps, rms):
    """In float64."""
    leaves = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (x, weight)]
    bias = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    functions = torch.nn.functional
    if rms:
        y = functions.rms_norm(leaves[0], shape, leaves[1], eps) + bias
    else:
        y = functions.layer_norm(leaves[0], shape, leaves[1], bias, eps)
    found = torch.autograd.grad(y, [*leaves, bias], torch.from_numpy(upstream.astype(np.float64)))
    return [gradient.numpy() for gradient in found]


@pytest.mark.peers
@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 4, 5), (7, 768)])
def test_equals_torch(shape, dtype, torch):
    upstream, x = (normal(*shape, seed=seed, dtype=dtype) for seed in (0, 1))
    for axes in range(1, len(shape)):
        last = shape[-axes:]
        weight = normal(*last, seed=2, dtype=dtype)
        layer = functional.layer_norm_backward(upstream, x, last, weight)
        rms = functional.rms_norm_backward(upstream, x, last, weight, 1e-6)
        assert rms.bias is None
        limit = 40 * np.finfo(dtype).eps
        for found, eps in ((layer, 1e-5), (rms, 1e-6)):
            expected = torch_gradients(torch, upstream, x, last, weight, eps, found is rms)
            for one, other in zip(found, expected, strict=True):
                if one is not None:
                    assert one.shape == other.shape
                    np.testing.assert_allclose(one, other, rtol=limit, atol=limit)


def test_default_eps_is_that_of_the_forward_call(dtype):
    x = normal(3, 5, dtype=dtype) * 1e-3
    found, eps = functional.rms_norm_backward(x, x, 5).x, float(np.finfo(dtype).eps)
    assert_same_bits(found, functional.rms_norm_backward(x, x, 5, None, eps).x)
    half = x.astype(np.float16)
    single = functional.rms_norm_backward(half, half, 5, None, float(np.finfo(np.float32).eps))
    assert_same_bits(half_bits(functional.rms_norm_backward(half, half, 5).x), half_bits(single.x))


@for_each("rms", [False, True])
def test_levels_strides_and_neighbours_give_the_same_bits(rms, dtype, levels):
    upstream, x = (normal(200, 771, seed=seed, dtype=dtype) + 2 for seed in (0, 1))
    weight, results = normal(771, seed=2, dtype=dtype), []
    for level in levels:
        _core._set_isa(level)
        found = _core.normalize_backward(upstream, x, weight, rms=rms)
        results += [found] if level != "scalar" else []
        others = (
            (np.asfortranarray(upstream), np.asfortranarray(x), np.repeat(weight, 2)[::2]),
            (upstream[::-1].copy()[::-1], np.repeat(x, 2, axis=0)[::2], weight[::-1].copy()[::-1]),
            (upstream.reshape(20, 10, 771), x.reshape(20, 10, 771), weight),
        )
        for arrays in others:
            for one, other in zip(_core.normalize_backward(*arrays, rms=rms), found, strict=True):
                assert_same_bits(one.reshape(other.shape), other)
        alone = [_core.normalize_backward(upstream[n : n + 1], x[n : n + 1], weight, rms=rms)[0] for n in range(200)]
        assert_same_bits(np.concatenate(alone), found[0])
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            assert_same_bits(one, other)


@pytest.mark.threads
@for_each("shape", [(3, 100_000), (600, 771), (10_000, 33), (1, 5), (70_000, 3)])
@for_each("rms", [False, True])
def test_threads_give_the_same_bits(rms, shape, dtype):
    upstream, x = (normal(*shape, seed=seed, dtype=dtype) for seed in (0, 1))
    first = _core.normalize_backward(upstream, x, rms=rms, num_threads=1)
    for threads in (2, 3, 7):
        for one, other in zip(_core.normalize_backward(upstream, x, rms=rms, num_threads=threads), first, strict=True):
            assert_same_bits(one, other)


@for_each("needs", [(False, False), (True, False), (False, True)])
def test_what_is_not_needed_is_none_and_changes_no_bit(needs, dtype, level):
    upstream, x = (normal(300, 40, seed=seed, dtype=dtype) for seed in (0, 1))
    every = _core.normalize_backward(upstream, x)
    found = _core.normalize_backward(upstream, x, need_weight=needs[0], need_bias=needs[1])
    for one, other, needed in zip(found, every, (True, *needs), strict=True):
        assert (one is not None) == needed
        if needed:
            assert_same_bits(one, other)
    names = [name for name, needed in zip(("weight", "bias"), needs, strict=True) if needed]
    gradients = functional.layer_norm_backward(upstream, x, 40, need=names)
    assert [one is not None for one in gradients] == [False, *needs]


@pytest.mark.parametrize("half", HALVES)
@for_each("shape", [(3, 17), (2, 5, 64), (700, 130), (2, 100_003)])
@for_each("rms", [False, True])
def test_halves_are_computed_in_float32(rms, shape, half, level):
    upstream, x = (normal(*shape, seed=seed).astype(HALVES[half]) for seed in (0, 1))
    weight = normal(shape[-1], seed=2).astype(HALVES[half])
    for arrays in ((upstream, x, weight), (upstream.astype(np.float32), x, weight), (upstream, x)):
        found = _core.normalize_backward(*arrays, rms=rms)
        expected = _core.normalize_backward(*(one.astype(np.float32) for one in arrays), rms=rms)
        assert_rounded(found[0], expected[0], half)
        assert_same_bits(found[1], expected[1])
        assert_same_bits(found[2], expected[2])
    wide = _core.normalize_backward(upstream, x.astype(np.float32), weight, rms=rms)[0]
    single = (one.astype(np.float32) for one in (upstream, x, weight))
    assert_same_bits(wide, _core.normalize_backward(*single, rms=rms)[0])


@pytest.mark.parametrize("half", HALVES)
def test_the_gradient_has_the_dtype_of_a_half(half):
    upstream, x = normal(6, 9), normal(6, 9, seed=1).astype(HALVES[half])
    found = functional.layer_norm_backward(upstream.astype(np.float64), x, 9)
    expected = functional.layer_norm_backward(upstream.astype(np.float64), x.astype(np.float64), 9)
    assert_same_bits(half_bits(found.x), half_bits(expected.x.astype(HALVES[half])))
    assert_same_bits(found.weight, expected.weight)


def test_nan_stays_in_its_row(dtype, level):
    x = np.arange(12, dtype=dtype).reshape(3, 4)
    for number in (np.nan, np.inf):
        x[1, 2] = number
        for rms in (False, True):
            found = _core.normalize_backward(np.ones_like(x), x, rms=rms)
            np.testing.assert_array_equal(np.isnan(found[0]).any(axis=1), [False, True, False])
            assert np.isnan(found[1]).any()
            assert_same_bits(found[2], np.full(4, 3, dtype))


def test_a_need_that_is_not_a_name_is_refused():
    with pytest.raises(TypeError, match="need is of type int, expected some of 'x', 'weight', 'bias'"):
        functional.layer_norm_backward([[1.0, 0.0]], [[3.0, 4.0]], 2, need=3)


def test_shapes_and_dtypes():
    for rows, columns in ((0, 3), (2, 0), (0, 0)):
        empty = np.ones((rows, columns), "f4")
        found = functional.layer_norm_backward(empty, empty, columns)
        assert [one.shape for one in found] == [(rows, columns), (columns,), (columns,)]
        assert_same_bits(found.weight, np.zeros(columns, "f4"))
        assert_same_bits(found.bias, np.zeros(columns, "f4"))
    assert functional.rms_norm_backward([[1, 2]], [[1, 2]], 2).x.dtype == np.float64
    ones = np.ones((2, 3, 4), "f4")
    assert [one.shape for one in functional.layer_norm_backward(ones, ones, (3, 4))] == [(2, 3, 4), (3, 4), (3, 4)]
    assert functional.rms_norm_backward(ones, ones, 4, np.ones(4)).weight.dtype == np.float64
    many = np.ones((1,) * 9 + (2, 3), "f4")
    assert functional.layer_norm_backward(many, many, 3).x.shape == many.shape


X = np.ones((2, 3))


@for_each(
    ("call", "kind", "message"),
    [
        (lambda: functional.layer_norm_backward(X, X, 2), ValueError, r"x has shape \(2, 3\), expected \(\.\.\., 2\)"),
        (
            lambda: functional.layer_norm_backward(X[0], X, 3),
            ValueError,
            r"grad_output has shape \(3,\), expected \(2, 3\) as x",
        ),
        (
            lambda: functional.layer_norm_backward(X, X, 3, [1, 2]),
            ValueError,
            r"weight has shape \(2,\), expected \(3,\), the normalized_shape",
        ),
        (lambda: functional.layer_norm_backward(X, X, 3, eps=-1), ValueError, "eps is -1, expected 0 or more"),
        (lambda: functional.rms_norm_backward(X, X, 3, eps="1"), TypeError, "eps is of type str, expected a number"),
        (lambda: functional.rms_norm_backward(X, X, 3, need="bias"), ValueError, "need is 'bias'; it must be 'x' or"),
        (lambda: functional.layer_norm_backward(X, X, 3, need=["y"]), ValueError, "need is 'y'; it must be 'x', 'weig"),
        (lambda: functional.layer_norm_backward(X * 1j, X, 3), TypeError, "grad_output has dtype complex128"),
        (lambda: functional.layer_norm_backward(X, X, 3, X[0] * 1j), TypeError, "weight has dtype complex128"),
        (lambda: _core.normalize_backward(X, X[:1]), ValueError, r"grad_output has shape \(2, 3\), expected \(1, 3\)"),
        (lambda: _core.normalize_backward(X, X, X), ValueError, r"weight has shape \(2, 3\), expected \(3,\)"),
        (lambda: _core.normalize_backward(X, X, need_weight=X), TypeError, "need_weight is of type"),
        (lambda: _core.normalize_backward(X, X, num_threads=0), ValueError, "num_threads is 0, expected 1 or more"),
        (lambda: _core.normalize_backward(X), TypeError, "missing required argument 'x'"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])  # whose mean is exact
def test_a_constant_huge_row_has_no_nan(n):
    """A mean that overflows when it is multiplied with 1 / sqrt(eps) must not reach the lanes past the end of a row."""
    x, grad = np.full((1, n), 2e36, np.float32), np.arange(n, dtype=np.float32)[None]
    expected = (grad - grad.mean(dtype=np.float64)) / np.sqrt(1e-5)
    found = pyattn.functional.layer_norm_backward(grad, x, n).x
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-3)

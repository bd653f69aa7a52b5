"""Gradients of activations: within ULP of mpmath's slopes, torch's numbers, and the same bits however computed."""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import pytest
from support.halves import HALVES, assert_rounded, half_bits
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, functional

KINDS = [None, "relu", "gelu", "gelu_tanh", "silu", "tanh"]
FUNCTIONS = {
    "gelu": functional.gelu_backward,
    "gelu_tanh": lambda upstream, x: functional.gelu_backward(upstream, x, "tanh"),
    "silu": functional.silu_backward,
}


@pytest.fixture(autouse=True)
def _restore_number():
    yield
    pyattn.set_num_threads(None)


def slope(kind, x):
    """Both terms of the slope in 40 digits, and the exponent that is rounded."""
    x = mpmath.mpf(float(x))
    if kind == "gelu":
        return mpmath.erfc(-x / mpmath.sqrt(2)) / 2, x * mpmath.npdf(x), 0
    if kind == "tanh":
        return mpmath.sech(x) ** 2, 0, 0
    root = 2 * mpmath.sqrt(2 / mpmath.pi)
    z, times = (x, 1) if kind == "silu" else (root * (x + 0.044715 * x**3), root * (1 + 3 * 0.044715 * x**2))
    s = 1 / (1 + mpmath.exp(-z))
    return s, x * times * s / (1 + mpmath.exp(z)), 0 if kind == "silu" else abs(z)


@functools.cache
def exact_slopes(kind, dtype):
    x = np.concatenate([np.linspace(-8, 8, 201), [-1e-3, 1e-9, -1e-30, -0.7517, -1.2784]]).astype(dtype)
    with mpmath.workdps(40):
        return x, [slope(kind, one) for one in x]


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "silu", "tanh"])
def test_digits(kind, dtype, level):
    """8 u of the terms' sizes; gelu_tanh loses 4 u for each unit of its exponent."""
    x, exact = exact_slopes(kind, dtype)
    found, u = _core.activate_backward(np.ones_like(x), x, kind), np.finfo(dtype).eps / 2
    for y, (first, second, exponent) in zip(found, exact, strict=True):
        assert abs(mpmath.mpf(float(y)) - first - second) <= (8 + 4 * exponent) * u * (abs(first) + abs(second))


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "silu", "tanh"])
def test_slopes_are_those_of_the_function(kind):
    """Central differences, whose error is step^2 / 6 times the third derivative, and u / step of the function."""
    x, step = np.linspace(-6, 6, 1001), 1e-5
    differences = (_core.activate(x + step, kind) - _core.activate(x - step, kind)) / (2 * step)
    np.testing.assert_allclose(_core.activate_backward(np.ones_like(x), x, kind), differences, rtol=0, atol=1e-9)


def torch_function(torch, kind):
    functions = torch.nn.functional
    return {
        None: lambda t: t,
        "relu": torch.relu,
        "gelu": functions.gelu,
        "gelu_tanh": lambda t: functions.gelu(t, approximate="tanh"),
        "silu": functions.silu,
        "tanh": torch.tanh,
    }[kind]


@pytest.mark.peers
@for_each("kind", KINDS)
def test_equals_torch(kind, dtype, level, torch):
    """Of torch in float64: 8 u of the terms, which add up to at most 1.2, and 14 of the value; products round, too."""
    upstream, x, gate = (normal(40, 67, seed=n, dtype=dtype) * 2 for n in range(3))
    x[0, :2] = 0, -0.0
    leaves = [torch.from_numpy(one.astype(np.float64)).requires_grad_() for one in (x, gate)]
    function, outer = torch_function(torch, kind), torch.from_numpy(upstream.astype(np.float64))
    (plain,) = torch.autograd.grad(function(leaves[0]), leaves[0], outer)
    of_x, of_gate = torch.autograd.grad(function(leaves[0]) * leaves[1], leaves, outer)
    found = _core.activate_backward(upstream, x, kind)
    found_x, found_gate = _core.activate_backward(upstream, x, kind, gate)
    exponent = 1.6 * np.abs(x) * (1 + 0.0448 * x**2) if kind == "gelu_tanh" else 0
    bound = (16 + 4 * exponent) * np.finfo(dtype).eps / 2 * 1.2
    assert (np.abs(found - plain.numpy()) <= bound * np.abs(upstream)).all()
    assert (np.abs(found_x - of_x.numpy()) <= bound * np.abs(upstream * gate)).all()
    assert (np.abs(found_gate - of_gate.numpy()) <= bound * np.abs(upstream) * np.maximum(np.abs(x), 1)).all()


@pytest.mark.peers
@for_each("kind", KINDS)
def test_special_numbers(kind, dtype, level, torch):
    """As torch, but for the limits of gelu and silu at infinity, where that has NaN."""
    x = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf], dtype)
    leaf = torch.from_numpy(x).requires_grad_()
    (expected,) = torch.autograd.grad(torch_function(torch, kind)(leaf), leaf, torch.full_like(leaf, 2))
    found, expected = _core.activate_backward(np.full_like(x, 2), x, kind), expected.numpy()
    if kind in FUNCTIONS:
        expected[3:] = 2, 0
    np.testing.assert_array_equal(found, expected)


@for_each("upstream", [np.inf, np.nan])
def test_relu_stops_any_gradient(upstream, dtype, level):
    x = np.array([-1, 0, -np.inf], dtype)
    assert_same_bits(_core.activate_backward(np.full_like(x, upstream), x, "relu"), np.zeros_like(x))


@for_each("kind", KINDS)
@for_each("shape", [(), (1,), (7,), (3, 5, 11), (2, 8192 + 5)])
def test_a_gate_multiplies(kind, shape, dtype, level):
    """Its gradient has the bits of the upstream gradient times the activation, x's those of the gated gradient."""
    upstream, x, gate = (np.asarray(normal(*shape, seed=n, dtype=dtype)) for n in range(3))
    of_x, of_gate = _core.activate_backward(upstream, x, kind, gate)
    assert_same_bits(of_gate, np.asarray(upstream * (x if kind is None else _core.activate(x, kind))))
    assert_same_bits(of_x, _core.activate_backward(np.asarray(upstream * gate), x, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_levels_strides_and_threads_give_the_same_bits(kind, dtype, levels):
    upstream, x, gate = (normal(300, 257, seed=n, dtype=dtype) * 4 for n in range(3))
    results, expected = [], {}
    for level in levels:
        _core._set_isa(level)
        for threads in (1, 2, 3):
            pyattn.set_num_threads(threads)
            found = _core.activate_backward(upstream, x, kind, gate)
            for one, other in zip(found, expected.setdefault(level, found), strict=True):
                assert_same_bits(one, other)
            if kind in FUNCTIONS:
                function = FUNCTIONS[kind]
                plain = function(upstream, x)
                assert_same_bits(function(np.asfortranarray(upstream), x[::-1][::-1]), plain)
                assert_same_bits(function(upstream[::-1], x[::-1])[::-1], plain)
        results += [expected[level]] if level != "scalar" else []
    for result in results[1:]:
        for one, other in zip(result, results[0], strict=True):
            assert_same_bits(one, other)


@pytest.mark.parametrize("half", HALVES)
@for_each("kind", KINDS)
@for_each("shape", [(1,), (3, 17), (2, 8192 + 5)])
def test_halves_are_computed_in_float32(kind, shape, half, level):
    arrays = [(normal(*shape, seed=n) * 3).astype(HALVES[half]) for n in range(3)]
    wide = [x.astype(np.float32) for x in arrays]
    assert_rounded(_core.activate_backward(*arrays[:2], kind), _core.activate_backward(*wide[:2], kind), half)
    found = _core.activate_backward(*arrays[:2], kind, arrays[2])
    for one, other in zip(found, _core.activate_backward(*wide[:2], kind, wide[2]), strict=True):
        assert_rounded(one, other, half)


@pytest.mark.parametrize("half", HALVES)
@for_each("name", FUNCTIONS)
def test_the_gradient_has_the_dtype_of_a_half(name, half, level):
    function, upstream, x = FUNCTIONS[name], normal(6, 9), normal(6, 9, seed=1).astype(HALVES[half])
    assert_rounded(function(upstream, x), function(upstream, x.astype(np.float32)), half)
    double = upstream.astype(np.float64)
    assert_same_bits(
        *(half_bits(one) for one in (function(double, x), function(double, x.astype("f8")).astype(x.dtype)))
    )
    wide = x.astype(np.float32)
    assert_same_bits(function(x, wide), function(wide, wide))
    assert function(double, wide).dtype == function(wide, x.astype(np.float64)).dtype == np.float64


def test_shapes_and_dtypes():
    assert functional.silu_backward(2, 3).shape == ()
    assert functional.gelu_backward([[1, 2]], [[1, 2]]).dtype == np.float64
    assert functional.gelu_backward(np.ones((0, 3), "f4"), np.ones((0, 3), "f4")).shape == (0, 3)


def test_nothing_is_written_to_what_is_given(dtype):
    arrays = [normal(30, 40, seed=n, dtype=dtype) for n in range(3)]
    before = [x.copy() for x in arrays]
    for x in arrays:
        x.flags.writeable = False
    _core.activate_backward(arrays[0], arrays[1], "gelu", arrays[2])
    for x, other in zip(arrays, before, strict=True):
        assert_same_bits(x, other)


X = np.ones((2, 3))


@for_each(
    ("call", "kind", "message"),
    [
        (lambda: functional.gelu_backward(X, X, "erf"), ValueError, "approximate is 'erf'; it must be 'none' or"),
        (
            lambda: functional.silu_backward(X[0], X),
            ValueError,
            r"grad_output has shape \(3,\), expected \(2, 3\) as x",
        ),
        (lambda: functional.silu_backward(X, 1j * X), TypeError, "x has dtype complex128"),
        (lambda: functional.silu_backward(1j * X, X), TypeError, "grad_output has dtype complex128"),
        (lambda: functional.gelu_backward(np.ma.array(X), X), TypeError, "grad_output is a masked array"),
        (
            lambda: functional.gelu_backward(*(X.astype(half) for half in HALVES.values())),
            TypeError,
            "grad_output has dtype float16 and x bfloat16; convert one of them",
        ),
        (lambda: _core.activate_backward(X, X, "swish"), ValueError, "activation is 'swish', expected None, 'relu'"),
        (lambda: _core.activate_backward(X, X.T, "relu"), ValueError, "x must be a C-contiguous array"),
        (lambda: _core.activate_backward(X[:1], X, "relu"), ValueError, "grad_output must be a C-contiguous array of"),
        (lambda: _core.activate_backward(X, X, "relu", X.astype("f4")), ValueError, "gate must be a C-contiguous"),
        (lambda: _core.activate_backward(X, X, "relu", [1]), TypeError, "gate is of type list, expected numpy.ndarray"),
        (lambda: _core.activate_backward(X.astype(int), X.astype(int), "relu"), ValueError, "of real numbers"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()

"""gelu and silu: within their ULP of mpmath's, at the ends of the range, and torch's numbers."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import _core


def exact(name, x):
    """In 40 digits."""
    with mpmath.workdps(40):
        x = mpmath.mpf(float(x))
        if name == "gelu":
            return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2
        z = x if name == "silu" else 2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)
        return x / (1 + mpmath.exp(-z))


def ulps(y, wanted, dtype):
    unit = mpmath.mpf(2) ** (mpmath.floor(mpmath.log(abs(wanted), 2)) - np.finfo(dtype).nmant)
    return float(abs(mpmath.mpf(float(y)) - wanted) / unit)


FUNCTIONS = {
    "gelu": pyattn.functional.gelu,
    "gelu_tanh": lambda x: pyattn.functional.gelu(x, "tanh"),
    "silu": pyattn.functional.silu,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_digits(name, dtype, level):
    """7 ULP of gelu, 4 of silu; gelu_tanh loses 4 ULP for each unit of its exponent where x is negative."""
    x = np.concatenate([np.linspace(-8, 8, 401), [-1e-3, 1e-9, -1e-30, 1e-30]]).astype(dtype)
    x = x[x != 0]
    for one, y in zip(x, FUNCTIONS[name](x), strict=True):
        exponent = 1.6 * abs(one) * (1 + 0.0448 * one**2) if name == "gelu_tanh" and one < 0 else 0
        assert ulps(y, exact(name, one), dtype) <= {"gelu": 7, "silu": 4}.get(name, 4 + 4 * exponent)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ends_of_the_range(name, dtype, level):
    most = np.finfo(dtype).max
    y = FUNCTIONS[name](np.array([-np.inf, np.inf, np.nan, -most, most, 0.0], dtype))
    np.testing.assert_array_equal(y, np.array([0, np.inf, np.nan, 0, most, 0], dtype))


@pytest.mark.peers
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_torch(name, dtype, torch):
    """torch takes 1 + erf, or 1 + tanh: some u of x itself."""
    x = np.random.default_rng(0).standard_normal(1000).astype(dtype) * 3
    functional = torch.nn.functional
    theirs = {"gelu": functional.gelu, "gelu_tanh": lambda t: functional.gelu(t, approximate="tanh")}
    expected = theirs.get(name, functional.silu)(torch.from_numpy(x)).numpy()
    assert (np.abs(FUNCTIONS[name](x) - expected) <= 8 * np.finfo(dtype).eps * np.abs(x)).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_levels_strides_and_threads_give_the_same_bits(name, dtype, levels):
    x = np.random.default_rng(1).standard_normal((300, 257)).astype(dtype) * 4
    results = []
    for level in [one for one in levels if one != "scalar"] or levels:
        _core._set_isa(level)
        for threads in (1, 2):
            pyattn.set_num_threads(threads)
            results += [FUNCTIONS[name](x), FUNCTIONS[name](np.asfortranarray(x)), FUNCTIONS[name](x[::-1])[::-1]]
    for other in results[1:]:
        assert_same_bits(other, results[0])


def test_shapes_and_dtypes():
    assert pyattn.functional.silu(2).shape == ()
    assert pyattn.functional.gelu([[1, 2]]).dtype == np.float64
    assert pyattn.functional.gelu(np.ones((0, 3), "f4")).shape == (0, 3)


@for_each(
    ("call", "kind", "message"),
    [
        (lambda: pyattn.functional.gelu(1.0, "erf"), ValueError, "approximate is 'erf'; it must be 'none' or 'tanh'"),
        (
            lambda: pyattn.functional.gelu(1.0, np.array(["none", "tanh"])),
            ValueError,
            "approximate is of type ndarray; it",
        ),
        (lambda: pyattn.functional.silu(1j), TypeError, "x has dtype complex128"),
        (lambda: pyattn.functional.gelu(np.ma.array([1.0])), TypeError, "x is a masked array"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()

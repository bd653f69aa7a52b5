"""nn.LayerNorm and nn.RMSNorm: torch's arguments, numbers and state."""

from __future__ import annotations

import copy
import math
import pickle
import re

import numpy as np
import pytest
from functional.test_norm import assert_close
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn

KINDS = [nn.LayerNorm, nn.RMSNorm]


def drawn(kind, *args, dtype="float32", **options):
    """A module whose parameters are random numbers."""
    module, rng = kind(*args, **options, dtype=dtype), np.random.default_rng(0)
    for array in module.parameters():
        array[...] = rng.standard_normal(array.shape)
    return module


def draw(kind, rng):
    """Arguments of the constructor, and the shape of an input."""
    sizes = tuple(int(n) for n in rng.integers(1, 70 if rng.random() < 0.3 else 8, size=rng.integers(1, 4)))
    options = {"normalized_shape": list(sizes) if rng.random() < 0.5 else sizes[0] if len(sizes) == 1 else sizes}
    options |= {"elementwise_affine": bool(rng.integers(2))} if rng.random() < 0.8 else {}
    options |= {"eps": float(10 ** rng.uniform(-12, 0))} if rng.random() < 0.7 else {}
    options |= {"bias": bool(rng.integers(2))} if kind is nn.LayerNorm and rng.random() < 0.8 else {}
    return options, (*(int(n) for n in rng.integers(5, size=rng.integers(4))), *sizes)


@pytest.mark.peers
@pytest.mark.parametrize("block", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch(kind, block, dtype, torch):
    """The formula's numbers, as exact as its own steps allow, and torch's to within as much."""
    rng = np.random.default_rng([15, block])
    for _ in range(5):
        options, shape = draw(kind, rng)
        x = (rng.standard_normal(shape) * 10 ** rng.uniform(-2, 2) + rng.uniform(-3, 3)).astype(dtype)
        ours = drawn(kind, **options, dtype=dtype)
        theirs = getattr(torch.nn, kind.__name__)(**options, dtype=getattr(torch, dtype))
        assert repr(ours) == repr(theirs)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        theirs.load_state_dict({key: torch.from_numpy(array) for key, array in ours.state_dict().items()}, strict=True)
        expected, actual = theirs(torch.from_numpy(x)).detach().numpy(), ours(x)
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        rows = -1, math.prod(ours.normalized_shape)
        weights = [None if each is None else each.ravel() for each in (ours.weight, getattr(ours, "bias", None))]
        eps = np.finfo(dtype).eps if ours.eps is None else ours.eps
        for y in (actual, expected):
            assert_close(y.reshape(rows), x.reshape(rows), *weights, eps, rms=kind is nn.RMSNorm)


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_numbers_are_torchs(kind, torch):
    ours, theirs = kind((2, 3)), getattr(torch.nn, kind.__name__)((2, 3))
    for key, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[key], tensor.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_has_the_bits_of_its_function(kind, dtype):
    module, x = drawn(kind, 7, eps=0.5, dtype=dtype), np.random.default_rng(2).standard_normal((3, 7)).astype(dtype)
    function = pyattn.functional.layer_norm if kind is nn.LayerNorm else pyattn.functional.rms_norm
    assert_same_bits(module(x), function(x, 7, *module.parameters(), eps=0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_there_and_back(kind):
    module = drawn(kind, (2, 3))
    other = kind((2, 3))
    other.load_state_dict(module.state_dict(), strict=True)
    x = np.random.default_rng(3).standard_normal((4, 2, 3)).astype("f4")
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_same_bits(twin(x), module(x))
    module.reset_parameters()
    assert_same_bits(module(x), kind((2, 3))(x))


def test_what_is_written_to_a_weight_counts():
    module, x = nn.LayerNorm(4), np.arange(4, dtype="f4")
    before = module(x)
    module.weight *= 2
    assert_same_bits(module(x), 2 * before)


@for_each("kind", KINDS)
@for_each(
    ("arguments", "error", "message"),
    [
        ({"normalized_shape": ()}, ValueError, r"normalized_shape is \(\), expected one size or more, each 1 or more"),
        ({"normalized_shape": (3, 0)}, ValueError, r"normalized_shape is \(3, 0\), expected"),
        ({"normalized_shape": 2.0}, TypeError, "normalized_shape is of type float, expected an int or a sequence of"),
        ({"eps": -1e-5}, ValueError, "eps is -1e-05, expected a finite number of 0 or more"),
        ({"eps": float("nan")}, ValueError, "eps is nan, expected a finite number of 0 or more"),
        ({"eps": "1e-5"}, TypeError, "eps is of type str, expected a number"),
        ({"elementwise_affine": 1}, TypeError, "elementwise_affine is of type int, expected True or False"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8', expected float16, bfloat16, float32 or float64"),
    ],
)
def test_mistakes_of_the_constructor_are_named(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**{"normalized_shape": 3, **arguments})


@for_each("kind", KINDS)
@for_each(
    ("x", "error", "message"),
    [
        (np.ones((2, 3)), TypeError, "x has dtype float64, expected float32 .*; pass x.astype(numpy.float32)"),
        (np.ones((2, 4), "f4"), ValueError, "x has shape (2, 4), expected (..., 3): normalized_shape is (3,)"),
        (np.ones((), "f4"), ValueError, "x has shape (), expected (..., 3)"),
        (None, TypeError, "x is an object of type NoneType, expected an array of numbers"),
    ],
)
def test_mistakes_of_a_call_are_named(kind, x, error, message):
    with pytest.raises(error, match=re.escape(message).replace(r"\.\*", ".*")):
        kind(3)(x)

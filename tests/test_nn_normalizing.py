"""nn.LayerNorm and nn.RMSNorm: torch's arguments, numbers and state."""

from __future__ import annotations

import copy
import itertools
import pickle
import re

import numpy as np
import pytest
from helpers import assert_same_bits

import pyattn
from pyattn import nn

KINDS = [nn.LayerNorm, nn.RMSNorm]


def drawn(kind, *args, dtype="float32", **options):
    """A module whose parameters are random numbers."""
    module, rng = kind(*args, **options, dtype=dtype), np.random.default_rng(0)
    for array in module.parameters():
        array[...] = rng.standard_normal(array.shape)
    return module


def cases(kind):
    """Arguments of the constructor."""
    for shape, eps, affine in itertools.product((6, (6,), [5, 6]), (None, 1e-5, 1e-12, 0.1), (False, True)):
        options = {"normalized_shape": shape, "elementwise_affine": affine}
        options |= {} if eps is None else {"eps": eps}
        for bias in (False, True) if kind is nn.LayerNorm else (None,):
            yield options if bias is None else {**options, "bias": bias}


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
def test_equals_torch(kind, dtype, torch):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((4, 5, 6)) * 3 + 1).astype(dtype)
    for options in cases(kind):
        ours = drawn(kind, **options, dtype=dtype)
        theirs = getattr(torch.nn, kind.__name__)(**options, dtype=getattr(torch, dtype))
        assert repr(ours) == repr(theirs)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        theirs.load_state_dict({key: torch.from_numpy(array) for key, array in ours.state_dict().items()}, strict=True)
        expected = theirs(torch.from_numpy(x)).detach().numpy()
        actual = ours(x)
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.peers
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_numbers_are_torchs(kind, torch):
    ours, theirs = kind((2, 3)), getattr(torch.nn, kind.__name__)((2, 3))
    for key, tensor in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[key], tensor.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_has_the_bits_of_its_function(kind, dtype):
    module, x = drawn(kind, 7, eps=0.5, dtype=dtype), np.random.default_rng(2).standard_normal((3, 7)).astype(dtype)
    function = pyattn.layer_norm if kind is nn.LayerNorm else pyattn.rms_norm
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"normalized_shape": ()}, ValueError, r"normalized_shape is \(\), expected one size or more, each 1 or more"),
        ({"normalized_shape": (3, 0)}, ValueError, r"normalized_shape is \(3, 0\), expected"),
        ({"normalized_shape": 2.0}, TypeError, "normalized_shape is of type float, expected an int or a sequence of"),
        ({"eps": -1e-5}, ValueError, "eps is -1e-05, expected a finite number of 0 or more"),
        ({"eps": float("nan")}, ValueError, "eps is nan, expected a finite number of 0 or more"),
        ({"eps": "1e-5"}, TypeError, "eps is of type str, expected a number"),
        ({"elementwise_affine": 1}, TypeError, "elementwise_affine is of type int, expected True or False"),
        ({"dtype": "float16"}, TypeError, "dtype is float16, expected numpy.float32 or numpy.float64"),
    ],
)
def test_mistakes_of_the_constructor_are_named(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**{"normalized_shape": 3, **arguments})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        (np.ones((2, 3)), TypeError, "input has dtype float64, expected float32 .*; pass input.astype(numpy.float32)"),
        (np.ones((2, 4), "f4"), ValueError, "input has shape (2, 4), expected (..., 3): normalized_shape is (3,)"),
        (np.ones((), "f4"), ValueError, "input has shape (), expected (..., 3)"),
        (None, TypeError, "input is an object of type NoneType, expected an array of numbers"),
    ],
)
def test_mistakes_of_a_call_are_named(kind, x, error, message):
    with pytest.raises(error, match=re.escape(message).replace(r"\.\*", ".*")):
        kind(3)(x)

"""nn.RotaryEmbedding: pyattn.functional.rotary_embedding, with a configuration of its own."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.rope_scalings import YARN

import pyattn
from pyattn import nn


def test_the_module_is_the_function(dtype):
    x = np.random.default_rng(5).standard_normal((2, 5, 3, 24)).astype(dtype)
    module = nn.RotaryEmbedding(24, theta=500, rotary_dim=16, interleaved=True, layout="bshd")
    options = {"theta": 500, "rotary_dim": 16, "interleaved": True, "layout": "bshd"}
    expected = pyattn.functional.rotary_embedding(x, **options, offset=9)
    assert_same_bits(module(x, offset=9), expected)
    assert_same_bits(module(x=x, position_ids=[[9, 10, 11, 12, 13]]), expected)
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert_same_bits(other(x, offset=9), expected)
        assert repr(other) == repr(module)
    assert module(x, offset=9, out=x) is x
    assert_same_bits(x, expected)
    assert pyattn.nn.RotaryEmbedding is nn.RotaryEmbedding


def test_the_module_has_no_parameters():
    module = nn.RotaryEmbedding(8)
    assert list(module.parameters()) == []
    assert module.state_dict() == {}
    assert module.dtype is None
    assert module.to("float64")(np.ones((1, 8), "f4")).dtype == np.float32


def test_the_module_keeps_a_configuration_of_its_own():
    scaling = dict(YARN)
    module = nn.RotaryEmbedding(64, scaling=scaling)
    before = module.frequencies().inv_freq
    scaling["factor"] = 2.0
    assert_same_bits(module.frequencies().inv_freq, before)


def test_the_modules_repr():
    assert repr(nn.RotaryEmbedding(64)) == "RotaryEmbedding(64, theta=10000.0)"
    module = nn.RotaryEmbedding(
        64, interleaved=True, layout="bshd", scaling={"rope_theta": 5e5, "partial_rotary_factor": 0.5}
    )
    assert repr(module) == (
        "RotaryEmbedding(64, theta=500000.0, rotary_dim=32, interleaved=True, "
        "scaling={'rope_theta': 500000.0, 'partial_rotary_factor': 0.5}, layout='bshd')"
    )


@for_each(
    ("make", "kind", "message"),
    [
        (
            lambda: nn.RotaryEmbedding(8)(np.ones((2, 6))),
            ValueError,
            r"x has shape \(2, 6\), expected \(..., 8\): dim",
        ),
        (lambda: nn.RotaryEmbedding(8)(3.0), ValueError, r"x has shape \(\), expected \(..., 8\)"),
        (lambda: nn.RotaryEmbedding(8)(np.ones((1, 8), complex)), TypeError, "x has dtype complex128, expected"),
        (lambda: nn.RotaryEmbedding(7), ValueError, "rotary_dim is 7, expected an even number"),
        (lambda: nn.RotaryEmbedding(8, scaling=3), TypeError, "scaling is of type int, expected a dict"),
        (lambda: nn.RotaryEmbedding(8.0), TypeError, "dim is of type float, expected an int"),
        (lambda: nn.RotaryEmbedding(8, layout="bsd"), ValueError, "layout is 'bsd'; it must be 'bhsd' or 'bshd'"),
        (lambda: nn.RotaryEmbedding(8, interleaved=1), TypeError, "interleaved is of type int, expected True or False"),
        (
            lambda: nn.RotaryEmbedding(8, scaling={"type": "ntk"}),
            ValueError,
            r"scaling\['type'\] is 'ntk'; it must be",
        ),
    ],
)
def test_mistakes_with_the_module_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()

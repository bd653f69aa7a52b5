"""nn.FeedForward: the formula with every activation, gate and bias, in one call of the core where that is possible."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import re

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn, reference
from pyattn.testing.bounds import WIDER

TANH_GELU = functools.partial(pyattn.functional.gelu, approximate="tanh")
KNOWN = {  # as given: its name in the core
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "silu": "silu",
    pyattn.functional.gelu: "gelu",
    pyattn.functional.silu: "silu",
    functools.partial(pyattn.functional.gelu): "gelu",
    functools.partial(pyattn.functional.gelu, approximate="none"): "gelu",
    TANH_GELU: "gelu_tanh",
}


def drawn_input(dtype, *shape):
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


def arrays_of(module):
    """As pyattn.functional.feed_forward takes them."""
    gate = {"gate_weight": module.gate.weight, "gate_bias": module.gate.bias} if module.gate else {}
    one, two = module.linear1, module.linear2
    return (one.weight, one.bias, two.weight, two.bias), gate


@pytest.fixture
def calls(monkeypatch):
    """Counts of the core's calls."""
    counts = {"feed_forward": 0}
    core = pyattn.functional.feed_forward

    def counting(*args, **options):
        counts["feed_forward"] += 1
        return core(*args, **options)

    monkeypatch.setattr(pyattn.functional, "feed_forward", counting)
    return counts


@pytest.mark.parametrize(("gated", "bias"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("activation", KNOWN)
def test_is_one_call_with_the_formulas_result(activation, gated, bias, dtype, calls):
    module = nn.FeedForward(9, 20, activation=activation, gated=gated, bias=bias, out_dim=5, dtype=dtype, rng=0)
    x = drawn_input(dtype, 2, 7, 9)
    actual = module(x)
    assert calls == {"feed_forward": 1}
    arrays, gate = arrays_of(module)
    expected = reference.feed_forward(x, *arrays, activation=KNOWN[activation], **gate, dtype=WIDER[dtype])
    assert actual.shape == (2, 7, 5)
    assert actual.dtype == dtype
    # two sums, of 9 and 20 products of numbers of size 1, each within 4u sqrt(inner); the activations' slope is below 2
    u = np.finfo(dtype).eps / 2
    np.testing.assert_allclose(actual.astype(WIDER[dtype]), expected, rtol=0, atol=200 * u)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", KNOWN)
def test_a_function_of_the_callers_gives_the_same_bits(activation, gated, dtype, calls):
    """It is applied between two linear layers."""
    function = {
        "relu": lambda x: np.maximum(x, 0),
        "gelu": pyattn.functional.gelu,
        "gelu_tanh": TANH_GELU,
        "silu": pyattn.functional.silu,
    }
    name = KNOWN[activation]
    options = {"gated": gated, "dtype": dtype, "rng": 0}
    x = drawn_input(dtype, 11, 6)
    expected = nn.FeedForward(6, 8, activation=activation, **options)(x)
    actual = nn.FeedForward(6, 8, activation=lambda x: function[name](x), **options)(x)
    assert calls == {"feed_forward": 1}
    assert_same_bits(actual, expected)


def test_what_took_a_linear_layers_place_is_called(dtype):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    module = nn.FeedForward(4, 6, dtype=dtype, rng=0)
    x = drawn_input(dtype, 3, 4)
    expected = 2 * (module(x) - module.linear2.bias) + 2 * module.linear2.bias
    module.linear2 = Doubled.from_arrays(module.linear2.weight, module.linear2.bias)
    np.testing.assert_allclose(module(x), expected, rtol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_state_goes_there_and_back(gated):
    module = nn.FeedForward(3, 5, activation=TANH_GELU, gated=gated, rng=0)
    names = ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]
    assert list(module.state_dict()) == names + ["gate.weight", "gate.bias"] * gated
    other = nn.FeedForward(3, 5, activation=TANH_GELU, gated=gated, rng=1)
    x = drawn_input("f4", 2, 3)
    assert not np.array_equal(other(x), module(x))
    other.load_state_dict(module.state_dict(), strict=True)
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_same_bits(twin(x), module(x))


def test_the_repr_tells_all():
    assert repr(nn.FeedForward(3, 5, 0.1, pyattn.functional.silu, bias=False, out_dim=4)) == (
        "FeedForward(\n"
        "  activation=silu, dropout=0.1\n"
        "  (linear1): Linear(in_features=3, out_features=5, bias=False)\n"
        "  (linear2): Linear(in_features=5, out_features=4, bias=False)\n"
        ")"
    )


def test_what_is_written_to_a_weight_or_as_an_activation_counts():
    module, x = nn.FeedForward(3, 4, rng=0), drawn_input("f4", 2, 3)
    module.linear2.weight[...] = 0
    np.testing.assert_array_equal(module(x), np.broadcast_to(module.linear2.bias, (2, 3)))
    module = nn.FeedForward(3, 4, rng=0)
    module.activation = "gelu"
    assert_same_bits(module(x), nn.FeedForward(3, 4, activation="gelu", rng=0)(x))


def test_dropout_is_at_work_in_training_alone(dtype):
    module, x = nn.FeedForward(3, 4, dropout=0.5, dtype=dtype, rng=0), drawn_input(dtype, 2, 3)
    hidden = pyattn.functional.linear(x, module.linear1.weight, module.linear1.bias, activation="relu")
    assert_same_bits(module(x, rng=3), module.linear2(pyattn.functional.dropout(hidden, 0.5, rng=3)))
    assert_same_bits(module.eval()(x), nn.FeedForward(3, 4, dtype=dtype, rng=0)(x))


@for_each(
    ("arguments", "error", "message"),
    [
        ({"embed_dim": 0}, ValueError, "embed_dim is 0, expected 1 or more"),
        ({"dim_feedforward": 2.5}, TypeError, "dim_feedforward is of type float, expected an int"),
        ({"out_dim": 0}, ValueError, "out_dim is 0, expected 1 or more"),
        ({"dropout": 2}, ValueError, "dropout is 2, expected a probability from 0 to 1"),
        (
            {"activation": "swish"},
            ValueError,
            "activation is 'swish'; it must be 'relu', 'gelu', .* or a callable",
        ),
        ({"activation": None}, ValueError, "activation is None; it must be 'relu', .* or a callable"),
        ({"gated": 1}, TypeError, "gated is of type int, expected True or False"),
        ({"bias": None}, TypeError, "bias is of type NoneType, expected True or False"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8', expected float16, bfloat16, float32 or float64"),
    ],
)
def test_mistakes_of_the_constructor_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.FeedForward(**{"embed_dim": 3, "dim_feedforward": 4, **arguments})


@for_each(
    ("activation", "x", "error", "message"),
    [
        ("relu", np.ones((2, 3)), TypeError, "x has dtype float64, expected float32 as the module's weights"),
        ("relu", np.ones((2, 4), "f4"), ValueError, "x has shape (2, 4), expected (..., 3): embed_dim is last"),
        ("relu", np.ones((), "f4"), ValueError, "x has shape (), expected (..., 3): embed_dim is last"),
        (lambda x: x.astype("f8"), np.ones((2, 3), "f4"), TypeError, "activation(x) has dtype float64, expected"),
        (lambda x: x[:1], np.ones((2, 3), "f4"), ValueError, "activation(x) has shape (1, 5), expected (2, 5) as x"),
        (lambda x: None, np.ones((2, 3), "f4"), TypeError, "activation(x) is an object of type NoneType"),
    ],
)
def test_mistakes_of_a_call_are_named(activation, x, error, message):
    with pytest.raises(error, match=re.escape(message)):
        nn.FeedForward(3, 5, activation=activation)(x)

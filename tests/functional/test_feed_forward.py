"""feed_forward: the bits of its products, the formula's numbers, and clear words for what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import _core, reference

ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "tanh")


def draw(rng, rows, features, hidden, dtype):
    shapes = [
        (rows, features),
        (hidden, features),
        (hidden,),
        (features, hidden),
        (features,),
        (hidden, features),
        (hidden,),
    ]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@for_each("rows", [1, 5, 60])
@for_each("activation", ACTIVATIONS)
def test_has_the_bits_of_its_products(rows, activation, dtype, level):
    x, w1, b1, w2, b2, w3, b3 = draw(np.random.default_rng(rows), rows, 40, 130, dtype)
    hidden = pyattn.functional.linear(x, w1, b1, activation=activation)
    whole = pyattn.functional.feed_forward(x, w1, b1, w2, b2, activation=activation, residual=x)
    assert_same_bits(whole, pyattn.functional.linear(hidden, w2, b2, residual=x))
    gate = pyattn.functional.linear(x, w3, b3, activation=activation)
    whole = pyattn.functional.feed_forward(x, w1, None, w2, None, activation=activation, gate_weight=w3, gate_bias=b3)
    assert_same_bits(whole, pyattn.functional.linear(pyattn.functional.linear(x, w1, gate=gate), w2))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_against_the_formula(activation, dtype, level):
    """Two products in turn: each takes its own bound, 4u times the root of its inner length, of what it adds up; the
    first one's errors go through the second (the slope of an activation is at most 1.13)."""
    x, w1, b1, w2, b2, *_ = draw(np.random.default_rng(3), 20, 40, 130, dtype)
    wide = {"float32": np.float64, "float64": np.longdouble}[np.dtype(dtype).name]
    exact = reference.feed_forward(x, w1, b1, w2, b2, activation=activation, dtype=wide)
    size = reference.linear(np.abs(x), np.abs(w1), np.abs(b1), dtype=wide) * (np.sqrt(41) * 1.13 + np.sqrt(131) + 10)
    bound = 4 * np.finfo(dtype).eps / 2 * reference.linear(size, np.abs(w2), np.abs(b2) * 12, dtype=wide)
    y = pyattn.functional.feed_forward(x, w1, b1, w2, b2, activation=activation)
    assert (np.abs(y - exact) <= bound).all()


def test_threads_batches_and_out_give_the_same_bits(dtype, level):
    x, w1, b1, w2, b2, *_ = draw(np.random.default_rng(4), 100, 64, 200, dtype)
    first = pyattn.functional.feed_forward(x, w1, b1, w2, b2, activation="gelu", num_threads=1)
    assert_same_bits(pyattn.functional.feed_forward(x, w1, b1, w2, b2, activation="gelu", num_threads=2), first)
    by_row = [pyattn.functional.feed_forward(row, w1, b1, w2, b2, activation="gelu") for row in x]
    assert_same_bits(np.stack(by_row), first)
    batches = pyattn.functional.feed_forward(x.reshape(5, 20, 64), w1, b1, w2, b2, activation="gelu")
    assert_same_bits(batches.reshape(100, 64), first)
    out = x.copy()
    assert pyattn.functional.feed_forward(out, w1, b1, w2, b2, activation="gelu", out=out) is out
    assert_same_bits(out, first)


@pytest.mark.threads
def test_several_threads_give_the_same_bits(dtype):
    """Also where the result takes the place of what is added."""
    x, w1, b1, w2, b2, w3, b3 = draw(np.random.default_rng(7), 500, 64, 200, dtype)
    results = []
    for threads in (1, 2, 3, 7):
        y, options = x.copy(), {"gate_weight": w3, "gate_bias": b3, "num_threads": threads}
        pyattn.functional.feed_forward(x, w1, b1, w2, b2, activation="gelu", residual=y, out=y, **options)
        results.append(y)
    for other in results[1:]:
        assert_same_bits(other, results[0])


def test_levels_give_the_same_bits(dtype, levels):
    x, w1, b1, w2, b2, w3, b3 = draw(np.random.default_rng(5), 30, 96, 200, dtype)
    results = []
    for level in [one for one in levels if one != "scalar"] or levels:
        _core._set_isa(level)
        results.append(
            pyattn.functional.feed_forward(x, w1, b1, w2, b2, activation="silu", gate_weight=w3, gate_bias=b3)
        )
    for other in results[1:]:
        assert_same_bits(other, results[0])


def test_strides_make_no_difference(dtype):
    x, w1, b1, w2, b2, *_ = draw(np.random.default_rng(6), 10, 24, 50, dtype)
    strided = [
        np.asfortranarray(x),
        np.asfortranarray(w1),
        np.repeat(b1, 2)[::2],
        w2[:, ::-1].copy()[:, ::-1],
        b2[::-1].copy()[::-1],
    ]
    assert_same_bits(
        pyattn.functional.feed_forward(*strided, residual=x.T.copy().T),
        pyattn.functional.feed_forward(x, w1, b1, w2, b2, residual=x),
    )


X, W1, W2 = np.ones((2, 3)), np.ones((5, 3)), np.ones((4, 5))


@for_each(
    ("arguments", "options", "kind", "message"),
    [
        ((X, W2, None, W2, None), {}, ValueError, r"in_weight has shape \(4, 5\), expected \(hidden, 3\)"),
        (
            (X, W1, None, W2, None),
            {"gate_weight": W2},
            ValueError,
            r"gate_weight has shape \(4, 5\), expected \(hidden, 3\)",
        ),
        ((X, W1, [1], W2, None), {}, ValueError, r"in_bias has shape \(1,\), expected \(5,\)"),
        (
            (X, W1, None, W1, None),
            {},
            ValueError,
            r"out_weight has shape \(5, 3\), expected \(features, 5\): in_weight has",
        ),
        ((X, W1, None, W2, [1]), {}, ValueError, r"out_bias has shape \(1,\), expected \(4,\)"),
        ((X, W1, None, W2, None), {"residual": X}, ValueError, r"residual has shape \(2, 3\), expected \(2, 4\)"),
        (
            (X, W1, None, W2, None),
            {"gate_weight": W1[:4]},
            ValueError,
            r"gate_weight has shape \(4, 3\), expected that of",
        ),
        ((X, W1, None, W2, None), {"gate_bias": W1[:, 0]}, ValueError, "gate_bias needs gate_weight"),
        ((X, W1, None, W2, None), {"activation": "swish"}, ValueError, "activation is 'swish'"),
        ((X, W1, None, W2, None), {"out": X}, ValueError, r"out has shape \(2, 3\), expected \(2, 4\)"),
        ((X, None, None, W2, None), {}, TypeError, "in_weight is an object of type NoneType"),
        ((X, W1 * 1j, None, W2, None), {}, TypeError, "in_weight has dtype complex128"),
    ],
)
def test_mistakes_are_named(arguments, options, kind, message):
    with pytest.raises(kind, match=message):
        pyattn.functional.feed_forward(*arguments, **options)

"""What bad calls of pyattn.compare are told."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from support import planted
from support.planted import KEY, QUERY, VALUE, compare

import pyattn
from pyattn import nn

LAYER = nn.MultiheadAttention(8, 2, batch_first=True, rng=0)
X = QUERY[0]


MISTAKES = [
    (lambda: compare(None), TypeError, "theirs is None, expected a module, a function or expected numbers"),
    (
        lambda: pyattn.compare(VALUE, VALUE, QUERY, KEY, VALUE),
        TypeError,
        "ours is of type ndarray, expected MultiheadAttention, SelfAttention, Linear or a function of",
    ),
    (
        lambda: pyattn.compare(pyattn.attention, planted.right, QUERY, KEY),
        TypeError,
        "2 inputs are given, expected 3, or 1 for all: query, key, value; pass everything else by name",
    ),
    (
        lambda: pyattn.compare(nn.Linear(8, 8), VALUE, QUERY, KEY),
        TypeError,
        "2 inputs are given, expected 1: input; pass everything else by name",
    ),
    (
        lambda: pyattn.compare(nn.Linear(8, 8), LAYER, X),
        TypeError,
        "ours is a Linear and theirs a MultiheadAttention, expected two of a kind",
    ),
    (
        lambda: pyattn.compare(lambda *_, **__: VALUE, planted.right, QUERY, KEY, VALUE, mask=planted.VISIBLE),
        TypeError,
        "the formula of attention alone does not know the argument mask; it knows attn_mask, is_causal,",
    ),
    (
        lambda: pyattn.compare(pyattn.attention, functools.partial(planted.right, QUERY), QUERY, KEY, VALUE),
        TypeError,
        "theirs is a partial with positional arguments; bind them by name",
    ),
    (
        lambda: pyattn.compare(lambda *_: VALUE, VALUE, QUERY, KEY[..., :5], VALUE),
        ValueError,
        "the formula of attention alone cannot be computed with query (2, 4, 6, 8), key (2, 4, 9, 5), value",
    ),
    (
        lambda: pyattn.compare(pyattn.attention, VALUE, QUERY, "key", VALUE),
        TypeError,
        "key is a string: pass an array of numbers",
    ),
    (
        lambda: pyattn.compare(pyattn.attention, LAYER, X),
        TypeError,
        "ours, pyattn.attention, has no weights, but theirs, pyattn.nn.MultiheadAttention, has: pass a module of "
        "pyattn as ours",
    ),
    (
        lambda: pyattn.compare(LAYER, pyattn.attention, X),
        TypeError,
        "theirs, pyattn.attention, has no weights, but ours, pyattn.nn.MultiheadAttention, has",
    ),
    (
        lambda: compare(VALUE.astype(complex)),
        TypeError,
        "the output of theirs has dtype complex128, expected real numbers",
    ),
    (
        lambda: compare((VALUE,) * 4),
        TypeError,
        "theirs gives a tuple of 4, expected the output, or (output, weights, lse)",
    ),
    (
        lambda: compare(lambda *_: [VALUE] * 4),
        TypeError,
        "theirs gives a list of 4, expected the output, or (output, weights, lse)",
    ),
    (
        lambda: compare(nn.Linear),
        TypeError,
        "theirs is the class Linear, expected an instance: Linear(...)",
    ),
    (
        lambda: compare(lambda *_: None),
        TypeError,
        "theirs gives None, expected the output, or (output, weights, lse)",
    ),
    (lambda: compare(()), TypeError, "theirs gives a tuple of 0, expected the output, or (output, weights, lse)"),
    (
        lambda: pyattn.compare(nn.Linear(8, 8), (X, X), X),
        TypeError,
        "theirs returns weights, which a Linear does not have",
    ),
    (
        lambda: compare(lambda *_: {"output": VALUE}),
        TypeError,
        "the output of theirs is an object of type dict, expected an array of numbers",
    ),
]


def test_mistakes_of_the_caller_are_told():
    for call, kind, message in MISTAKES:
        with pytest.raises(kind, match=f"^{re.escape(message)}"):
            call()


def test_what_a_side_raises_comes_through():
    with pytest.raises(ZeroDivisionError):
        compare(lambda *_: 1 / 0)
    with pytest.raises(ValueError, match=r"^is_causal=True with 6 queries and 9 keys needs align="):
        compare(planted.right, is_causal=True)


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize("error", [UnspeakableError, StopIteration])
def test_an_exception_comes_through_whatever_it_does(error):
    def theirs(query, key, value):
        raise error

    with pytest.raises(error):
        compare(theirs)


# A side that does not take the call


def alone(x):
    return x


class Layer:
    """A module of an unknown kind, with a forward of one input."""

    def state_dict(self):
        return {}

    def forward(self, x):
        return x

    __call__ = forward


WEIGHTS = [VALUE[0, 0, :8, :8]] * 3
REFUSED = [
    (
        lambda: pyattn.compare(pyattn.self_attention, Layer(), QUERY[0, 0], *WEIGHTS),
        "theirs, {name}.Layer, does not take this call: too many positional arguments; a module has weights "
        "of its own: compare it with pyattn.nn.SelfAttention.from_arrays(w_query, w_key, w_value), and pass x alone",
    ),
    (
        lambda: pyattn.compare(pyattn.self_attention, alone, QUERY[0, 0], *WEIGHTS),
        "theirs, {name}.alone, does not take this call: too many positional arguments; the inputs are x, w_query, "
        "w_key, w_value: wrap it in a function of these",
    ),
    (
        lambda: pyattn.compare(LAYER, Layer(), X, is_causal=True, attn_mask=np.zeros((6, 6), bool)),
        "theirs, {name}.Layer, does not take this call: got an unexpected keyword argument 'is_causal'; "
        "if it masks by itself, give is_causal and attn_mask to ours alone: functools.partial(ours, "
        "is_causal=True, attn_mask=...)",
    ),
    (
        lambda: pyattn.compare(alone, planted.right, QUERY, scale=2.0),
        "ours, {name}.alone, does not take this call: got an unexpected keyword argument 'scale'; give scale "
        "to theirs alone: functools.partial(theirs, scale=2.0)",
    ),
]


def test_a_side_that_does_not_take_the_call_is_named_with_a_fix():
    for call, message in REFUSED:
        with pytest.raises(TypeError, match=f"^{re.escape(message.format(name=__name__))}$"):
            call()


def test_the_fix_for_a_module_that_masks_by_itself_works():
    def causal(query, key, value):
        return planted.right(query, key, value, attn_mask=np.tri(6, dtype=bool))

    with pytest.raises(TypeError, match="if it masks by itself"):
        pyattn.compare(pyattn.attention, causal, X[0], X[0], X[0], is_causal=True)
    assert pyattn.compare(functools.partial(pyattn.attention, is_causal=True), causal, X[0], X[0], X[0]).equal


@pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="notes are new in Python 3.11")
def test_a_note_names_the_side_that_raised():
    with pytest.raises(ZeroDivisionError) as caught:
        compare(lambda *_: 1 / 0)
    assert [note.split(",")[0] for note in caught.value.__notes__] == ["raised by theirs"]


def test_shapes_that_differ_get_a_fix():
    batch_first = QUERY[:, 0]  # (2, 6, 8)
    for theirs, fix in (
        (np.zeros((6, 2, 8)), "swap axes 0 and 1 of theirs, as batch_first does"),
        (np.zeros((2, 8, 6)), "swap axes 1 and 2 of theirs"),
        (np.zeros((12, 8)), "reshape theirs to (2, 6, 8)"),
        (np.zeros((2, 6, 5)), "return (2, 6, 8) from theirs; its last axis is v_dim, or embed_dim of a module"),
        (np.zeros((2, 8)), "return (2, 6, 8) from theirs: 3 axes, not 2"),
        (np.zeros((3, 6, 8)), "return (2, 6, 8) from theirs"),
    ):
        text = str(pyattn.compare(pyattn.attention, theirs, batch_first))
        assert f"ours has shape (2, 6, 8) and theirs {theirs.shape}.\n  Fix: {fix}.\n" in f"{text}\n"
    text = str(pyattn.compare(lambda q, k, v: q[0], pyattn.attention, batch_first))
    assert "Fix: return (2, 6, 8) from ours: 3 axes, not 2." in text

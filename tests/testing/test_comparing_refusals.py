"""What bad calls of pyattn.compare are told."""

from __future__ import annotations

import functools
import re

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
        "key has dtype <U3, expected float16, bfloat16, float32 or float64",
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

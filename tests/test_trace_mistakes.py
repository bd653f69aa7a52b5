"""What a trace says of arguments that do not go together."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn

X, WEIGHT = np.ones((3, 4)), np.ones((4, 2))
QUERY, KEY, VALUE = np.ones((3, 2)), np.ones((5, 2)), np.ones((5, 1))


def refuse(kind, message, call, *arrays, **arguments):
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call(*arrays, **arguments)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (ValueError, {"x": np.ones(4)}, "x has shape (4,), expected (length, d_x)"),
        (
            ValueError,
            {"x": np.ones((2, 3, 4))},
            "x has shape (2, 3, 4), expected (length, d_x): trace one of its matrices, such as x[0]",
        ),
        (ValueError, {"x": np.ones((0, 4))}, "x has shape (0, 4), expected something to look at in each axis"),
        (
            TypeError,
            {"x": X.astype(complex)},
            "x has dtype complex128, expected float32 or float64; pass x.real.astype(numpy.float64)",
        ),
        (ValueError, {"w_key": np.ones((3, 2))}, "w_key has shape (3, 2), expected (4, dim): x has shape (3, 4)"),
        (
            ValueError,
            {"w_key": np.ones((4, 3))},
            "w_query gives 2 numbers a query but w_key 3 a key; "
            "only score='bilinear' compares vectors of different sizes",
        ),
        (
            ValueError,
            {"bias": [None, None]},
            "bias has 2 entries, expected three, for queries, keys and values; each may be None",
        ),
        (
            TypeError,
            {"bias": 1.5},
            "bias is of type float, expected three, for queries, keys and values; each may be None",
        ),
        (
            TypeError,
            {"bias": np.array(1.5)},
            "bias is of type ndarray, expected three, for queries, keys and values; each may be None",
        ),
        (ValueError, {"bias": [None, [1], None]}, "bias[1] has shape (1,), expected (2,): w_key gives 2 numbers"),
        (
            ValueError,
            {"x": np.ones((1, 2, 3, 4))},
            "x has shape (1, 2, 3, 4), expected (length, d_x): trace one of its matrices, such as x[0, 0]",
        ),
        (
            ValueError,
            {"convention": np.array(["row", "a"])},
            "convention is array(['row', 'a'], dtype='<U3'), expected 'row' or 'column'",
        ),
        (
            ValueError,
            {"score": np.array(["dot", "a"])},
            "score is array(['dot', 'a'], dtype='<U3'), expected 'dot', 'cosine', 'distance', 'bilinear' or 'additive'",
        ),
        (ValueError, {"convention": "columns"}, "convention is 'columns', expected 'row' or 'column'"),
        (
            ValueError,
            {"score": "dots"},
            "score is 'dots', expected 'dot', 'cosine', 'distance', 'bilinear' or 'additive'",
        ),
        (ValueError, {"normalise": "max"}, "normalise is 'max', expected 'softmax', 'sigmoid' or 'sparsemax'"),
        (ValueError, {"score": "bilinear"}, "score='bilinear' needs a score_weight of shape (2, 2)"),
        (ValueError, {"score_weight": [1, 2]}, "score='dot' takes no score_weight; 'bilinear' and 'additive' do"),
        (
            ValueError,
            {"score": "additive", "score_weight": [1, 2, 3]},
            "score_weight has shape (3,), expected (2,) with score='additive'",
        ),
        (TypeError, {"scale": "1"}, "scale is of type str, expected a number"),
        (TypeError, {"scale": np.ones(1)}, "scale is of type ndarray, expected a number"),
        (ValueError, {"scale": np.nan}, "scale is nan, expected a finite number"),
        (TypeError, {"round_weights": 1.5}, "round_weights is of type float, expected an int, the number of decimals"),
        (TypeError, {"round_weights": True}, "round_weights is of type bool, expected an int, the number of decimals"),
        (ValueError, {"round_weights": -1}, "round_weights is -1, expected 0 to 15 decimals"),
        (
            TypeError,
            {"tokens": "abc"},
            "tokens is one string, expected a sequence of 3; pass tokens.split() or list(tokens)",
        ),
        (TypeError, {"tokens": ["a", 1, "c"]}, "tokens[1] is of type int, expected str"),
        (TypeError, {"tokens": 3}, "tokens is of type int, expected a sequence of 3 strings"),
        (ValueError, {"tokens": ["a"]}, "tokens has 1 entry, expected 3: one for each"),
        (
            ValueError,
            {"attn_mask": np.ones((2, 3), bool)},
            "attn_mask has shape (2, 3), which does not broadcast to (3, 3): (..., q_len, kv_len)",
        ),
    ],
    ids=str,
)
def test_trace_names_the_mistake(kind, arguments, message):
    given = {"x": X, "w_query": WEIGHT, "w_key": WEIGHT, "w_value": WEIGHT} | arguments
    refuse(kind, message, pyattn.trace, **given)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((X, WEIGHT.T, WEIGHT, WEIGHT), "w_query has shape (2, 4), expected (dim, 3): x has shape (3, 4)"),
        ((np.ones(4), WEIGHT, WEIGHT, WEIGHT), "x has shape (4,), expected (d_x, length)"),
    ],
)
def test_in_the_column_convention_shapes_are_told_as_given(arrays, message):
    refuse(ValueError, message, pyattn.trace, *arrays, convention="column")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((QUERY, KEY, VALUE[:4]), "value has 4 rows, expected 5: one for each key"),
        (
            (QUERY, np.ones((5, 3)), VALUE),
            "query gives 2 numbers a query but key 3 a key; only score='bilinear' compares vectors of different sizes",
        ),
        ((QUERY, KEY, np.ones(5)), "value has shape (5,), expected (length, v_dim)"),
    ],
)
def test_trace_attention_names_the_mistake(arrays, message):
    refuse(ValueError, message, pyattn.trace_attention, *arrays)


def test_the_number_of_an_input_is_an_int():
    trace = pyattn.trace_attention(QUERY, KEY, VALUE)
    assert trace.for_query(np.int64(1))[0].title == "Scores for input 2"
    refuse(TypeError, "i is of type float, expected an int, the number of an input from 0", trace.for_query, 1.0)


def test_key_tokens_are_as_many_as_keys():
    refuse(
        ValueError,
        "key_tokens has 3 entries, expected 5: one for each",
        pyattn.trace_attention,
        QUERY,
        KEY,
        VALUE,
        key_tokens=list("abc"),
    )


def test_a_causal_mask_of_different_lengths_needs_an_alignment():
    with pytest.raises(ValueError, match="needs align='upper_left'"):
        pyattn.trace_attention(QUERY, KEY, VALUE, is_causal=True)


def test_an_integer_mask_is_refused_with_the_fix():
    with pytest.raises(TypeError, match=r"attn_mask has dtype int64; pass attn_mask\.astype\(bool\)"):
        pyattn.trace_attention(QUERY, KEY, VALUE, attn_mask=np.ones((3, 5), np.int64))


def test_a_float_mask_of_ones_and_zeros_is_warned_of():
    with pytest.warns(pyattn.MaskWarning, match="first and last rows hold zeros and ones alone"):
        pyattn.trace_attention(QUERY, KEY, VALUE, attn_mask=np.ones((3, 5)))

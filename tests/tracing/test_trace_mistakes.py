"""Messages of a trace about arguments that do not match: the problem, then the fix."""

from __future__ import annotations

import re

import numpy as np
import pytest

import pyattn

X, WEIGHT = np.ones((3, 4)), np.ones((4, 2))
QUERY, KEY, VALUE = np.ones((3, 2)), np.ones((5, 2)), np.ones((5, 1))


def refuse(kind, message, call, *arrays, **arguments):
    """Messages that other modules write are given by their beginnings, which end in '...'."""
    end = "" if message.endswith("...") else "$"
    with pytest.raises(kind, match=f"^{re.escape(message.removesuffix('...'))}{end}"):
        call(*arrays, **arguments)


def test_trace_names_the_mistake():
    mistakes = [
        (
            ValueError,
            {"x": np.ones(4)},
            "x has shape (4,); it must be (length, embed_dim); for a single input, pass numpy.atleast_2d(x)",
        ),
        (
            ValueError,
            {"x": np.ones((2, 3, 4))},
            "x has shape (2, 3, 4); it must be (length, embed_dim): trace one matrix, such as x[0]",
        ),
        (
            ValueError,
            {"x": np.ones((1, 2, 3, 4))},
            "x has shape (1, 2, 3, 4); it must be (length, embed_dim): trace one matrix, such as x[0, 0]",
        ),
        (ValueError, {"x": np.ones((0, 4))}, "x has shape (0, 4); it must not be empty"),
        (TypeError, {"x": X.astype(complex)}, "x has dtype complex128..."),
        (
            TypeError,
            {"x": ["the", "cat", "sat"]},
            "x holds text: pass numbers, such as a vector for each word; tokens takes the names of inputs",
        ),
        (TypeError, {"w_key": [["a"]]}, "w_key holds text: pass numbers, such as a vector for each word"),
        (ValueError, {"w_key": [[1, 2], [3]]}, "w_key has rows of different lengths; pad them to one length..."),
        (ValueError, {"w_key": np.ones((3, 2))}, "w_key has shape (3, 2); it must be (4, dim), as x has shape (3, 4)"),
        (
            ValueError,
            {"w_key": np.ones((2, 4))},
            "w_key has shape (2, 4); it must be (4, dim), as x has shape (3, 4); if its axes are the other way round, "
            "transpose it",
        ),
        (
            ValueError,
            {"w_key": np.ones((4, 3))},
            "queries (w_query) have size 2, keys (w_key) have size 3: make them equal, or pass score='bilinear'",
        ),
        (
            ValueError,
            {"bias": [None, None]},
            "bias has 2 entries; it needs three: for queries, keys and values, each an array or None",
        ),
        (
            TypeError,
            {"bias": 1.5},
            "bias is of type float; it needs three: for queries, keys and values, each an array or None",
        ),
        (
            TypeError,
            {"bias": np.array(1.5)},
            "bias is of type ndarray; it needs three: for queries, keys and values, each an array or None",
        ),
        (ValueError, {"bias": [None, [1], None]}, "bias[1] has shape (1,); it must be (2,), as w_key gives 2"),
        (ValueError, {"convention": np.array(["row", "a"])}, "convention is ..."),
        (ValueError, {"score": np.array(["dot", "a"])}, "score is ..."),
        (ValueError, {"convention": "columns"}, "convention is 'columns'..."),
        (ValueError, {"score": "dots"}, "score is 'dots'..."),
        (ValueError, {"normalize": "max"}, "normalize is 'max'..."),
        (ValueError, {"score": "bilinear"}, "score='bilinear' needs a score_weight of shape (2, 2)"),
        (ValueError, {"score_weight": [1, 2]}, "score='dot' takes no score_weight; 'bilinear' and 'additive' do"),
        (
            ValueError,
            {"score": "additive", "score_weight": [1, 2, 3]},
            "score_weight has shape (3,); score='additive' needs (2,)",
        ),
        (TypeError, {"scale": "1"}, "scale is of type str..."),
        (TypeError, {"scale": np.ones(1)}, "scale is of type ndarray..."),
        (ValueError, {"scale": np.nan}, "scale is nan..."),
        (TypeError, {"round_weights": 1.5}, "round_weights is of type float..."),
        (TypeError, {"round_weights": True}, "round_weights is of type bool..."),
        (ValueError, {"round_weights": -1}, "round_weights is -1..."),
        (ValueError, {"round_weights": 16}, "round_weights is ..."),
        (
            TypeError,
            {"tokens": "abc"},
            "tokens is one string; it must be 3 strings: pass tokens.split() or list(tokens)",
        ),
        (
            TypeError,
            {"tokens": ["a", 1, "c"]},
            "tokens[1] is of type int; it must be a str: pass list(map(str, tokens))",
        ),
        (TypeError, {"tokens": 3}, "tokens is of type int; it must be 3 strings"),
        (ValueError, {"tokens": ["a"]}, "tokens has 1 entry; it must have 3"),
        (ValueError, {"attn_mask": np.ones((2, 3), bool)}, "attn_mask has shape (2, 3)..."),
    ]
    for kind, arguments, message in mistakes:
        given = {"x": X, "w_query": WEIGHT, "w_key": WEIGHT, "w_value": WEIGHT} | arguments
        refuse(kind, message, pyattn.trace, **given)


def test_in_the_column_convention_shapes_are_told_as_given():
    message = "w_query has shape (2, 4); it must be (dim, 3), as x has shape (3, 4)"
    refuse(ValueError, message, pyattn.trace, X, WEIGHT.T, WEIGHT, WEIGHT, convention="column")
    message = "x has shape (4,); it must be (embed_dim, length)"
    refuse(ValueError, message, pyattn.trace, np.ones(4), WEIGHT, WEIGHT, WEIGHT, convention="column")


def test_trace_attention_names_the_mistake():
    mistakes = [
        ((QUERY, KEY, VALUE[:4]), "value has 4 rows, key has 5: each key needs one value"),
        (
            (QUERY, np.ones((5, 3)), VALUE),
            "queries (query) have size 2, keys (key) have size 3: make them equal, or pass score='bilinear'",
        ),
        ((QUERY, KEY, np.ones(5)), "value has shape (5,); it must be (length, v_dim)"),
    ]
    for arrays, message in mistakes:
        refuse(ValueError, message, pyattn.trace_attention, *arrays)
    message = "key_tokens has 3 entries; it must have 5"
    refuse(ValueError, message, pyattn.trace_attention, QUERY, KEY, VALUE, key_tokens=list("abc"))


def test_the_number_of_an_input_is_an_int():
    trace = pyattn.trace_attention(QUERY, KEY, VALUE)
    assert trace.for_query(np.int64(1))[0].title == "Scores for input 2"
    refuse(TypeError, "i is of type float...", trace.for_query, 1.0)


def test_a_causal_mask_of_different_lengths_needs_an_alignment():
    with pytest.raises(ValueError, match="needs align='upper_left'"):
        pyattn.trace_attention(QUERY, KEY, VALUE, is_causal=True)


def test_an_integer_mask_is_refused_with_the_fix():
    with pytest.raises(TypeError, match=r"attn_mask has dtype int64; pass attn_mask\.astype\(bool\)"):
        pyattn.trace_attention(QUERY, KEY, VALUE, attn_mask=np.ones((3, 5), np.int64))


def test_a_float_mask_of_ones_and_zeros_is_warned_of():
    with pytest.warns(pyattn.MaskWarning, match="first and last rows hold only zeros and ones"):
        pyattn.trace_attention(QUERY, KEY, VALUE, attn_mask=np.ones((3, 5)))


def test_a_mask_warning_names_the_callers_line():
    """Once per call site, so a second line warns again."""
    module = pyattn.MultiheadAttention(4, 2, batch_first=True, rng=0).eval()
    with pytest.warns(pyattn.MaskWarning) as caught:
        module.trace(np.eye(4), attn_mask=np.tri(4, dtype=bool))
    assert [warning.filename for warning in caught] == [__file__]

"""pyattn.attention as its callers see it: arguments, axes, layouts, broadcasting, results and help."""

from __future__ import annotations

import doctest
import inspect
import pickle
import pydoc
import re

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, make_arrays

import pyattn
from pyattn.testing import bounds

DEFAULTS = {
    "attn_mask": None,
    "is_causal": False,
    "align": None,
    "scale": None,
    "score": "dot",
    "score_weight": None,
    "window": None,
    "key_lengths": None,
    "query_lengths": None,
    "dropout_p": 0.0,
    "rng": None,
    "keep_mask": None,
    "enable_gqa": False,
    "need_weights": False,
    "need_lse": False,
    "empty_rows": "zero",
    "layout": "bhsd",
    "num_threads": None,
    "out": None,
}

# query, key, value, arguments, output, weights
SHAPES = [
    ((3, 4), (5, 4), (5, 2), {}, (3, 2), (3, 5)),
    ((2, 3, 4), (2, 5, 4), (2, 5, 2), {}, (2, 3, 2), (2, 3, 5)),
    ((2, 6, 3, 4), (2, 6, 5, 4), (2, 6, 5, 2), {}, (2, 6, 3, 2), (2, 6, 3, 5)),
    ((7, 2, 6, 3, 4), (7, 2, 6, 5, 4), (7, 2, 6, 5, 2), {}, (7, 2, 6, 3, 2), (7, 2, 6, 3, 5)),
    # leading axes broadcast, also those that are not there
    ((3, 4), (2, 5, 4), (2, 5, 2), {}, (2, 3, 2), (2, 3, 5)),
    ((2, 3, 4), (5, 4), (1, 5, 2), {}, (2, 3, 2), (2, 3, 5)),
    ((3, 4), (5, 4), (2, 6, 5, 2), {}, (2, 6, 3, 2), (2, 6, 3, 5)),
    ((2, 1, 3, 4), (1, 6, 5, 4), (6, 5, 2), {}, (2, 6, 3, 2), (2, 6, 3, 5)),
    ((7, 1, 6, 3, 4), (2, 6, 5, 4), (5, 2), {}, (7, 2, 6, 3, 2), (7, 2, 6, 3, 5)),
    # query heads share key heads and value heads, each in its own number
    ((2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2), {}, (2, 6, 3, 2), (2, 6, 3, 5)),
    ((2, 6, 3, 4), (2, 3, 5, 4), (2, 2, 5, 2), {}, (2, 6, 3, 2), (2, 6, 3, 5)),
    ((6, 3, 4), (2, 5, 4), (2, 5, 2), {"enable_gqa": True}, (6, 3, 2), (6, 3, 5)),
    ((2, 6, 3, 4), (2, 5, 4), (2, 5, 2), {"enable_gqa": True}, (2, 6, 3, 2), (2, 6, 3, 5)),
    # bshd moves the axes of query, key, value and output, not of weights
    ((2, 3, 6, 4), (2, 5, 2, 4), (2, 5, 2, 2), {"layout": "bshd"}, (2, 3, 6, 2), (2, 6, 3, 5)),
    ((3, 6, 4), (5, 2, 4), (5, 2, 2), {"layout": "bshd", "enable_gqa": True}, (3, 6, 2), (6, 3, 5)),
    # axes of size 0 and 1
    ((0, 4), (5, 4), (5, 2), {}, (0, 2), (0, 5)),
    ((3, 4), (0, 4), (0, 2), {}, (3, 2), (3, 0)),
    ((3, 0), (5, 0), (5, 2), {"scale": 1}, (3, 2), (3, 5)),
    ((3, 4), (5, 4), (5, 0), {}, (3, 0), (3, 5)),
    ((0, 3, 4), (0, 5, 4), (1, 5, 2), {}, (0, 3, 2), (0, 3, 5)),
    ((2, 0, 3, 4), (2, 0, 5, 4), (2, 0, 5, 2), {}, (2, 0, 3, 2), (2, 0, 3, 5)),
    ((1, 1), (1, 1), (1, 1), {}, (1, 1), (1, 1)),
]


@pytest.fixture
def arrays(dtype):
    """Query, key and value of 3 queries and 5 keys."""
    return make_arrays((3, 4), (5, 4), (5, 2), dtype=dtype)


# Shapes


@for_each(("query", "key", "value", "arguments", "output", "weights"), SHAPES)
def test_shapes_and_numbers(query, key, value, arguments, output, weights, level, dtype):
    arrays = make_arrays(query, key, value, dtype=dtype)
    result = pyattn.attention(*arrays, **arguments, need_weights=True, need_lse=True)
    assert (result.output.shape, result.weights.shape, result.lse.shape) == (output, weights, weights[:-1])
    expected = bounds.expect(*arrays, dtype, **arguments)
    assert bounds.output_ratio(result.output, expected) <= bounds.OUTPUT_BAR
    assert bounds.weights_ratio(result.weights, expected) <= 1
    assert bounds.lse_ratio(result.lse, expected) <= 1


@for_each("dtype", ["float32", "float64"])
def test_rows_of_weights_that_share_sets_of_the_cache(dtype, level):
    """Rows 4,096 bytes apart are written by themselves, a vector of queries after another."""
    kv_len = 4096 // np.dtype(dtype).itemsize
    query, key = make_arrays((70, 4), (kv_len, 4), dtype=dtype)
    result = pyattn.attention(query, key, key, need_weights=True)
    assert bounds.weights_ratio(result.weights, bounds.expect(query, key, key, dtype)) <= 1


@for_each("shape", [(3, 5), (1, 5), (3, 1), (5,), (1,), (), (6, 3, 5), (2, 1, 1, 5), (2, 6, 3, 5), (1, 6, 1, 1)])
@for_each("layout", ["bhsd", "bshd"])
@for_each("kind", ["bool", "float16", "float32", "float64", "longdouble"])
def test_masks_broadcast_to_heads_queries_keys(shape, layout, kind):
    arrays = make_arrays((2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2))
    if layout == "bshd":
        arrays = [array.swapaxes(1, 2) for array in arrays]
    numbers = np.random.default_rng(1).standard_normal(shape)
    mask = np.asarray(numbers > -0.5 if kind == "bool" else numbers).astype(kind)
    result = pyattn.attention(*arrays, attn_mask=mask, layout=layout, need_weights=True)
    expected = bounds.expect(*arrays, "float32", attn_mask=mask, layout=layout)
    assert bounds.output_ratio(result.output, expected) <= bounds.OUTPUT_BAR
    assert bounds.weights_ratio(result.weights, expected) <= 1


MASK_LAYOUTS = {
    "columns": np.asfortranarray,
    "every second key": lambda mask: np.repeat(mask, 2, 1)[:, ::2],
    "every second row of columns": lambda mask: np.repeat(mask.T, 2, 1)[:, ::2].T,
    "backwards": lambda mask: mask[::-1, ::-1].copy()[::-1, ::-1],
    "one row": lambda mask: np.broadcast_to(mask[:1], mask.shape),
    "one column": lambda mask: np.broadcast_to(mask[:, :1], mask.shape),
}


LIMITS = {kind: [np.finfo(kind).min, np.finfo(kind).max, 6e-8] for kind in ("float16", "float32", "float64")}


@pytest.mark.parametrize("kind", ["bool", "float16", "float32", "float64", "longdouble"])
@for_each("layout", MASK_LAYOUTS)
@for_each("q_len", [1, 3, 70])
def test_masks_of_any_strides_have_the_bits_of_contiguous_ones(kind, layout, q_len, level, dtype):
    """Tiles of whole vectors and of parts of one; columns that are visible or masked altogether, too."""
    query, key = make_arrays((q_len, 8), (150, 8), dtype=dtype)
    numbers = np.random.default_rng(2).standard_normal((q_len, 150))
    numbers[:, 64:128] = 1
    numbers[numbers < -0.5] = -np.inf
    numbers[:, 3:6] = LIMITS.get(kind, 1)
    mask = MASK_LAYOUTS[layout](np.asarray(numbers > -0.5 if kind == "bool" else numbers).astype(kind))
    result = pyattn.attention(query, key, key, attn_mask=mask, need_weights=True)
    expected = pyattn.attention(query, key, key, attn_mask=np.ascontiguousarray(mask), need_weights=True)
    for one, other in zip(result, expected, strict=True):
        assert_same_bits(one, other)
    if kind in ("float16", "bool"):  # what float64 holds exactly
        wide = np.where(mask, 0, -np.inf) if kind == "bool" else mask.astype(np.float64)
        assert_same_bits(pyattn.attention(query, key, key, attn_mask=wide), result.output)


@pytest.mark.parametrize("shape", [(), (1,), (2,), (7, 1), (7, 2)], ids=str)
def test_lengths_broadcast_to_the_batch_axes(shape, dtype):
    arrays = make_arrays((7, 2, 6, 3, 4), (7, 2, 6, 5, 4), (7, 2, 6, 5, 2), dtype=dtype)
    rng = np.random.default_rng(1)
    lengths = {"key_lengths": rng.integers(0, 6, shape), "query_lengths": rng.integers(0, 4, shape)}
    expected = bounds.expect(*arrays, dtype, **lengths)
    assert bounds.output_ratio(pyattn.attention(*arrays, **lengths), expected) <= bounds.OUTPUT_BAR


def test_lists_bools_and_integers_become_float64(arrays):
    numbers = [np.rint(array * 3) for array in arrays]
    expected = pyattn.attention(*(array.astype(np.float64) for array in numbers))
    for kind in ("int8", "uint16", "int64"):
        result = pyattn.attention(*(np.abs(array).astype(kind) for array in numbers))
        assert result.dtype == np.float64
    np.testing.assert_array_equal(pyattn.attention(*(array.astype(int).tolist() for array in numbers)), expected)
    np.testing.assert_array_equal(pyattn.attention(*(tuple(array.tolist()) for array in numbers)), expected)
    flags = [array > 0 for array in arrays]
    np.testing.assert_array_equal(pyattn.attention(*flags), pyattn.attention(*(x.astype(float) for x in flags)))


def test_float_dtypes_are_promoted():
    query, key, value = make_arrays((3, 4), (5, 4), (5, 2))
    wide = pyattn.attention(*(array.astype(np.float64) for array in (query, key, value)))
    for mixed in ((query.astype(np.float64), key, value), (query, key, value.astype(np.float64))):
        np.testing.assert_array_equal(pyattn.attention(*mixed), wide)
    assert pyattn.attention(query, key, value).dtype == np.float32
    assert pyattn.attention(query, key, np.ones((5, 2), int)).dtype == np.float64


# Arguments


def test_the_default_is_the_formula(arrays):
    query, key, value = (array.astype(np.float64) for array in arrays)
    exponentials = np.exp(query @ key.T / np.sqrt(4))
    np.testing.assert_allclose(
        pyattn.attention(query, key, value), exponentials / exponentials.sum(-1, keepdims=True) @ value, rtol=1e-13
    )


def test_each_default_can_be_said(arrays):
    plain = pyattn.attention(*arrays)
    np.testing.assert_array_equal(pyattn.attention(*arrays, **DEFAULTS), plain)
    query, key, value = arrays
    np.testing.assert_array_equal(pyattn.attention(value=value, key=key, query=query), plain)
    np.testing.assert_array_equal(pyattn.attention(query, value=value, key=key), plain)


def test_keywords_made_at_run_time_are_found(arrays):
    spelled = {f"need_{name}": True for name in ("weights", "lse")}
    assert pyattn.attention(*arrays, **spelled).lse is not None


@pytest.mark.parametrize(
    ("positional", "keywords", "message"),
    [
        ("qkvm", {}, "attention() takes 3 positional arguments but 4 were given"),
        ("qk", {}, "attention() missing required argument 'value' (position 3)"),
        ("", {"key": "k", "value": "v"}, "attention() missing required argument 'query' (position 1)"),
        ("qkv", {"query": "q"}, "attention() got multiple values for argument 'query'"),
        ("qkv", {"mask": "m"}, "attention() got an unexpected keyword argument 'mask'"),
    ],
    ids=lambda argument: str(argument)[:40],
)
def test_wrong_arguments_are_named(positional, keywords, message):
    query, key, value = make_arrays((3, 4), (5, 4), (5, 2))
    given = {"q": query, "k": key, "v": value, "m": None}
    with pytest.raises(TypeError, match=re.escape(message)):
        pyattn.attention(
            *(given[letter] for letter in positional), **{name: given[letter] for name, letter in keywords.items()}
        )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"window": 1}, {"window": (1, 1)}),
        ({"window": (2, 1)}, {"window": [np.int64(2), np.int8(1)]}),
        ({"window": (None, None)}, {"window": None}),
        ({"window": (None, 0)}, {"is_causal": True}),
        ({"scale": None}, {"scale": 0.5}),
        ({"scale": 2}, {"scale": np.float32(2)}),
        ({"key_lengths": 3}, {"key_lengths": np.uint8(3)}),
        ({"is_causal": 1}, {"is_causal": np.True_}),
        ({"need_weights": 0}, {"need_weights": False}),
    ],
    ids=str,
)
def test_two_ways_to_say_the_same(one, other, arrays):
    first, second = (pyattn.attention(*arrays, align="lower_right", **said) for said in (one, other))
    np.testing.assert_array_equal(first, second)


def test_align_need_not_be_said_for_squares(dtype):
    arrays = make_arrays((5, 4), (5, 4), (5, 2), dtype=dtype)
    for said in ({"is_causal": True}, {"window": 1}, {"window": (0, None)}):
        unsaid = pyattn.attention(*arrays, **said)
        for align in ("upper_left", "lower_right"):
            np.testing.assert_array_equal(pyattn.attention(*arrays, **said, align=align), unsaid)


def test_lower_right_counts_from_the_lengths():
    arrays = make_arrays((1, 3, 4), (1, 5, 4), (1, 5, 2))
    lengths = {"key_lengths": [4], "query_lengths": [2]}
    result = pyattn.attention(*arrays, is_causal=True, align="lower_right", need_weights=True, **lengths)
    assert (result.weights[0] > 0).tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False], [False] * 5]


# Results


def test_more_than_the_output_is_an_attention_result(arrays):
    output = pyattn.attention(*arrays)
    assert type(output) is np.ndarray
    for need_weights in (False, True):
        for need_lse in (False, True):
            result = pyattn.attention(*arrays, need_weights=need_weights, need_lse=need_lse)
            if not (need_weights or need_lse):
                assert type(result) is np.ndarray
                continue
            assert type(result) is pyattn.AttentionResult
            assert (result.weights is not None, result.lse is not None) == (need_weights, need_lse)
            np.testing.assert_array_equal(result.output, output)
            assert [id(one) for one in result] == [id(x) for x in vars(result).values() if x is not None]
            copied = pickle.loads(pickle.dumps(result))
            assert_same_bits(copied, result)
            assert repr(copied) == repr(result)


def test_the_result_is_a_fresh_c_contiguous_array(arrays):
    result = pyattn.attention(*(np.asfortranarray(array) for array in arrays), need_weights=True, need_lse=True)
    for array in result:
        assert array.flags.c_contiguous
        assert array.flags.owndata
        assert array.flags.writeable


def test_subclasses_come_back_as_ndarrays(arrays):
    class Named(np.ndarray):
        pass

    result = pyattn.attention(*(array.view(Named) for array in arrays))
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, pyattn.attention(*arrays))


# Help


def test_inspect_shows_the_full_signature():
    signature = inspect.signature(pyattn.attention)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    assert list(kinds) == ["query", "key", "value", *DEFAULTS]
    assert {kinds[name] for name in ("query", "key", "value")} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert {kinds[name] for name in DEFAULTS} == {inspect.Parameter.KEYWORD_ONLY}
    assert {name: signature.parameters[name].default for name in DEFAULTS} == DEFAULTS


def test_help_explains_every_argument():
    text = pydoc.plain(pydoc.render_doc(pyattn.attention))
    signature = re.sub(r"\s+", " ", text).replace("( ", "(")  # from Python 3.13 on, a line for each argument
    assert "attention(query, key, value, *, attn_mask=None, is_causal=False, align=None" in signature
    for section in ("Parameters", "Returns", "Raises", "Warns", "Notes", "Examples"):
        assert re.search(rf"^ *{section}\n *-{{{len(section)}}}$", text, re.MULTILINE), section
    for name in ("query", "key", "value", *DEFAULTS):
        assert re.search(rf"^ +(\w+, )*{name}(, \w+)* : ", text, re.MULTILINE), name


@pytest.mark.parametrize("name", [name for name in pyattn.__all__ if inspect.isroutine(getattr(pyattn, name))])
def test_the_example_in_the_docstring_runs(name):
    function = getattr(pyattn, name)
    assert function.__doc__, name
    examples = doctest.DocTestParser().get_doctest(function.__doc__, {}, name, None, None)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=report.append)
    assert not report, "".join(report)


@pytest.mark.parametrize("name", ["attention", "scaled_dot_product_attention", "softmax", "merge_states"])
def test_every_computing_function_has_an_example(name):
    assert ">>> " in getattr(pyattn, name).__doc__

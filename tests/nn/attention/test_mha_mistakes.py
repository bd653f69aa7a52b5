"""Mistakes in calls of multi-head attention: errors that name torch's argument, what was expected, and the fix."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.helpers import for_each

import pyattn
from pyattn import nn

X, Y = np.ones((5, 2, 8), np.float32), np.ones((7, 2, 8), np.float32)
MODULE = nn.MultiheadAttention(8, 4, rng=0)
WEIGHT, OUT = np.ones((24, 8), np.float32), np.ones((8, 8), np.float32)


def call(**arguments):
    given = {"query": X, "key": Y, "value": Y, **arguments}
    return MODULE(given.pop("query"), given.pop("key"), given.pop("value"), **given)


@for_each(
    ("arguments", "message"),
    [
        ({"query": X[0, 0]}, r"query has shape \(8,\), expected \(L, N, 8\) or, unbatched, \(L, 8\)"),
        ({"query": X[None]}, r"query has shape \(1, 5, 2, 8\), expected \(L, N, 8\)"),
        ({"query": X[..., :5]}, r"query has shape \(5, 2, 5\), expected \(L, N, 8\)"),
        ({"key": Y[:, 0]}, r"key has shape \(7, 8\), expected \(S, 2, 8\): query has shape \(5, 2, 8\)"),
        ({"key": Y[:, :1]}, r"key has shape \(7, 1, 8\), expected \(S, 2, 8\)"),
        ({"key": Y[..., :5]}, r"key has shape \(7, 2, 5\), expected \(S, 2, 8\)"),
        ({"value": Y[:6]}, r"value has shape \(6, 2, 8\), expected \(7, 2, 8\): .* and key \(7, 2, 8\)"),
        ({"attn_mask": np.ones((7, 5), bool)}, r"attn_mask has shape \(7, 5\), expected \(5, 7\) or \(8, 5, 7\): "),
        (
            {"key": X, "value": X, "attn_mask": np.ones((2, 2), bool)},
            r"num_heads, L, S\); for inputs of \(batch, length, embed_dim\), make the module with batch_first=True$",
        ),
        ({"attn_mask": np.ones((2, 5, 7), bool)}, r"pass numpy.repeat\(attn_mask, 4, axis=0\)$"),
        ({"attn_mask": np.ones((5, 1), bool)}, r"attn_mask has shape \(5, 1\), expected \(5, 7\)"),
        (
            {"key_padding_mask": np.ones((7, 2), bool)},
            r"key_padding_mask has shape \(7, 2\), expected \(2, 7\): \(N, S\)",
        ),
        ({"key_padding_mask": np.ones(7, bool)}, r"key_padding_mask has shape \(7,\), expected \(2, 7\)"),
        ({"key_lengths": [3, 8]}, "key_lengths"),
        ({"empty_rows": "inf"}, "empty_rows is 'inf'"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        call(**arguments)


@for_each(
    ("arguments", "message"),
    [
        (
            {"query": X.astype(float)},
            r"query has dtype float64, expected float32 .* pass query.astype\(numpy.float32\)",
        ),
        ({"value": Y.astype("g")}, r"value has dtype \w+, .* pass value.astype\(numpy.float32\)"),
        (
            {"attn_mask": np.ones((5, 7), int)},
            r"attn_mask has dtype int64, .* attn_mask.astype\(bool\) if 1 = blocked",
        ),
        ({"key_padding_mask": np.ones((2, 7), np.uint8)}, r"key_padding_mask has dtype uint8, expected bool or floats"),
        ({"attn_mask": np.ones((5, 7), complex)}, "attn_mask has dtype complex128"),
        ({"attn_mask": np.ma.ones((5, 7))}, "attn_mask is a masked array"),
        ({"key": None}, "key is an object of type NoneType"),
        ({"is_causal": "yes"}, "is_causal"),
        ({"average_attn_weights": "no"}, "^average_attn_weights is of type str, expected True or False"),
        ({"need_weights": "no"}, "^need_weights is of type str, expected True or False"),
    ],
)
def test_another_type_is_refused_with_the_fix(arguments, message):
    with pytest.raises(TypeError, match=message):
        call(**arguments)


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"key_lengths": [3, 9]}, ValueError, r"key_lengths holds 9, expected 0 <= n <= 7 \(the length of key\)"),
        ({"key_lengths": [1.5, 2]}, TypeError, "key_lengths has dtype float64, expected integers"),
        ({"key_lengths": [1, 2, 3]}, ValueError, r"key_lengths has shape \(3,\), which does not broadcast"),
        ({"is_causal": "no"}, TypeError, "is_causal is of type str, expected True or False"),
        ({"window": -1}, ValueError, "window is -1, expected 0 or more"),
        ({"window": "x"}, TypeError, "window is of type str, expected an int or"),
    ],
)
def test_appended_keys_change_no_message(arguments, kind, message):
    for options in ({}, {"add_zero_attn": True}):
        with pytest.raises(kind, match=message):
            nn.MultiheadAttention(8, 4, **options, rng=0)(X, Y, Y, **arguments)


def test_the_fixes_that_are_offered_work():
    mask = np.zeros((2, 5, 7), bool)
    assert call(attn_mask=np.repeat(mask, 4, axis=0))[0].shape == (5, 2, 8)
    assert call(attn_mask=np.zeros((5, 7), int).astype(bool))[0].shape == (5, 2, 8)


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"embed_dim": 9}, ValueError, "embed_dim is 9 and num_heads is 2, expected a multiple; or pass head_dim"),
        ({"embed_dim": 0}, ValueError, "embed_dim is 0, expected 1 or more"),
        ({"num_heads": -1}, ValueError, "num_heads is -1, expected 1 or more"),
        ({"num_heads": 2.0}, TypeError, "num_heads is of type float, expected an int"),
        ({"num_kv_heads": 3}, ValueError, "num_heads is 2 and num_kv_heads is 3, expected a multiple"),
        ({"dropout": 1.5}, ValueError, "dropout is 1.5, expected a probability"),
        ({"kdim": 0}, ValueError, "kdim is 0, expected 1 or more"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8'"),
        ({"bias": "no"}, TypeError, "^bias is of type str, expected True or False"),
        ({"add_bias_kv": 1}, TypeError, "^add_bias_kv is of type int, expected True or False"),
        ({"add_zero_attn": None}, TypeError, "^add_zero_attn is of type NoneType, expected True or False"),
        ({"batch_first": "yes"}, TypeError, "^batch_first is of type str, expected True or False"),
        ({"rng": "x"}, TypeError, "^rng is 'x', expected None, an int of 0 or more, "),
    ],
)
def test_sizes_that_make_no_module_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        nn.MultiheadAttention(**{"embed_dim": 8, "num_heads": 2, **arguments})


def test_flags_may_be_numpys():
    made = nn.MultiheadAttention(8, 2, bias=np.False_, add_bias_kv=np.True_, batch_first=np.True_)
    assert made.in_proj_bias is None
    assert made.bias_k is not None
    x = np.ones((2, 3, 8), np.float32)
    assert made(x, x, x, average_attn_weights=np.False_)[1].shape == (2, 2, 3, 4)
    with pytest.raises(TypeError, match=r"^average_attn_weights is of type int, expected True or False"):
        made(x, x, x, average_attn_weights=7)


def test_a_state_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"- in_proj_weight has shape \(12, 4\), expected \(24, 8\)"):
        MODULE.load_state_dict(nn.MultiheadAttention(4, 2).state_dict())
    with pytest.raises(ValueError, match=r"- in_proj_weight is missing\n(.*\n)*- q_proj_weight is unexpected"):
        MODULE.load_state_dict(nn.MultiheadAttention(8, 4, kdim=3).state_dict())


@for_each(
    ("change", "kind", "message"),
    [
        ({"in_proj_weight": None}, ValueError, "q_proj_weight is missing"),
        ({"in_proj_bias": np.ones(5, "f4")}, ValueError, r"in_proj_bias has shape \(5,\), expected \(24,\)"),
        ({"bias_k": np.ones((1, 1, 8), "f4")}, ValueError, "bias_v is missing; expected in_proj_weight, "),
        ({"weight": np.ones(3, "f4")}, ValueError, "weight is unexpected; expected in_proj_weight, "),
        ({"out_proj.weight": np.ones(8, "f4")}, ValueError, r"out_proj.weight has shape \(8,\), expected 2 axes"),
        ({"in_proj_bias": np.ones(24)}, TypeError, "in_proj_bias has dtype float64, expected float32 as out_proj"),
        ({"in_proj_weight": [[1.0]]}, TypeError, "in_proj_weight is a parameter and takes an array"),
    ],
)
def test_arrays_that_make_no_module_are_refused(change, kind, message):
    state = {key: array for key, array in {**MODULE.state_dict(), **change}.items() if array is not None}
    with pytest.raises(kind, match=message):
        nn.MultiheadAttention.from_arrays(state, 4)


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"in_proj_weight": None}, ValueError, "in_proj_weight is None, but use_separate_proj_weight=False needs it"),
        ({"use_separate_proj_weight": True}, ValueError, "q_proj_weight is None, but use_separate_proj_weight=True"),
        ({"in_proj_weight": WEIGHT[1:]}, ValueError, r"in_proj_weight has shape \(23, 8\), expected \(24, 8\)"),
        ({"out_proj_weight": OUT[:, 1:]}, ValueError, r"out_proj_weight has shape \(8, 7\), expected \(any, 8\)"),
        ({"out_proj_weight": None}, TypeError, "out_proj_weight is an object of type NoneType"),
        ({"out_proj_bias": OUT[0, 1:]}, ValueError, r"out_proj_bias has shape \(7,\), expected \(8,\)"),
        ({"bias_k": OUT[None, :1]}, ValueError, "bias_k and bias_v come together"),
        ({"embed_dim_to_check": 9}, ValueError, "embed_dim_to_check is 9 and num_heads is 4, expected a multiple"),
        ({"embed_dim_to_check": 12}, ValueError, r"in_proj_weight has shape \(24, 8\), expected \(36, 12\)"),
        ({"query": X.astype(float)}, TypeError, r"key has dtype float32, expected float64; pass key.astype"),
        ({"in_proj_weight": WEIGHT.astype(float)}, TypeError, r"pass in_proj_weight.astype\(numpy.float32\)"),
        (
            {"static_k": Y},
            ValueError,
            r"static_k has shape \(7, 2, 8\), expected \(8, S, 2\): \(N \* num_heads, S, head_dim\)",
        ),
        ({"dropout_p": 1.1}, ValueError, "dropout_p is 1.1, expected a probability"),
        (
            {"static_v": OUT[:, None, :2].repeat(5, axis=1)},
            ValueError,
            "^static_v has length 5, expected 7 as key$",
        ),
        (
            {"static_k": OUT[:, None, :2].repeat(5, axis=1)},
            ValueError,
            "^value has length 7, expected 5 as static_k$",
        ),
        ({"add_zero_attn": "no"}, TypeError, "^add_zero_attn is of type str, expected True or False"),
        ({"training": "False"}, TypeError, "^training is of type str, expected True or False"),
        ({"use_separate_proj_weight": "no"}, TypeError, "^use_separate_proj_weight is of type str, expected True or"),
        ({"num_heads": 2.5}, TypeError, "^num_heads is of type float, expected an int"),
        ({"num_heads": True}, TypeError, "^num_heads is of type bool, expected an int"),
        ({"num_heads": "4"}, TypeError, "^num_heads is of type str, expected an int"),
        ({"num_heads": None}, TypeError, "^num_heads is of type NoneType, expected an int"),
        ({"num_heads": 0}, ValueError, "^num_heads is 0, expected 1 or more"),
        ({"embed_dim_to_check": None}, TypeError, "^embed_dim_to_check is of type NoneType, expected an int"),
    ],
)
def test_mistakes_in_the_function_are_named(arguments, kind, message):
    names = ("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k")
    names += ("bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias")
    given = dict(zip(names, (X, Y, Y, 8, 4, WEIGHT, None, None, None, False, 0.0, OUT, None), strict=True))
    assert pyattn.functional.multi_head_attention_forward(**given)[1].shape == (2, 5, 7)
    with pytest.raises(kind, match=message):
        pyattn.functional.multi_head_attention_forward(**{**given, **arguments})


def assign(module, name, array):
    """To an attribute of the module or of a part."""
    *parts, last = name.split(".")
    setattr(functools.reduce(getattr, parts, module), last, array)


@pytest.mark.parametrize("options", [{}, {"kdim": 3, "add_bias_kv": True}], ids=str)
def test_a_parameter_of_another_dtype_is_named(options):
    names = nn.MultiheadAttention(8, 4, **options).state_dict().keys() - {"out_proj.weight"}
    for name in names:
        module = nn.MultiheadAttention(8, 4, **options, rng=0)
        assign(module, name, module.state_dict()[name].astype("f8"))
        inputs = X, Y[..., : module.kdim], Y
        with pytest.raises(TypeError, match=f"^{name} has dtype float64, expected float32 as the module's other"):
            module(*inputs)
        assert module.float()(*inputs)[0].dtype == np.float32


@for_each(
    ("assigned", "message"),
    [
        ({"out_proj": nn.Linear(7, 3)}, r"^out_proj.weight has shape \(3, 7\), expected \(3, 8\)$"),
        ({"bias_k": None}, r"^bias_k is None, expected an array of shape \(1, 1, 8\)$"),
        ({"bias_k": np.ones(8, "f4")}, r"^bias_k has shape \(8,\), expected \(1, 1, 8\)$"),
        ({"bias_k": np.ones((2, 1, 8), "f4")}, r"^bias_k has shape \(2, 1, 8\), expected \(1, 1, 8\)$"),
        ({"bias_v": np.ones((1, 1, 4), "f4")}, r"^bias_v has shape \(1, 1, 4\), expected \(1, 1, 8\)$"),
        ({"in_proj_weight": None}, r"^in_proj_weight is None, expected an array of shape \(24, 8\)$"),
        ({"in_proj_weight": WEIGHT[1:]}, r"^in_proj_weight has shape \(23, 8\), expected \(24, 8\)$"),
        ({"in_proj_bias": WEIGHT[1:, 0]}, r"^in_proj_bias has shape \(23,\), expected \(24,\)$"),
        ({"out_proj.bias": np.ones(3, "f4")}, r"^out_proj.bias has shape \(3,\), expected \(8,\)$"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named_as_the_module_does(assigned, message):
    module = nn.MultiheadAttention(8, 4, add_bias_kv=True, rng=0)
    for name, x in assigned.items():
        assign(module, name, x)
    with pytest.raises(ValueError, match=message):
        module(X, Y, Y)


@for_each("name", ["decode_step", "encode_memory", "attend_memory"])
def test_a_parameter_that_does_not_fit_is_named_with_a_cache_too(name):
    module = nn.MultiheadAttention(8, 4, rng=0)
    cache = pyattn.KVCache(1, 4, 2, batch_size=2)
    module.encode_memory(X, cache)
    bias = module.in_proj_bias
    for wrong, kind, came in (
        (bias[:7], ValueError, r"has shape \(7,\), expected \(24,\)"),
        (bias.astype("f8"), TypeError, "has dtype float64, expected float32 as the module's other parameters"),
    ):
        module.in_proj_bias = wrong
        with pytest.raises(kind, match=f"^in_proj_bias {came}"):
            getattr(module, name)(X, cache)


def test_biases_that_were_left_out_are_not_what_a_mistake_in_a_call_is_about():
    module = nn.MultiheadAttention(8, 4, rng=0)
    module.in_proj_bias = module.out_proj.bias = None
    with pytest.raises(ValueError, match=r"^key_lengths holds 9, expected 0 <= n <= 7"):
        module(X, Y, Y, key_lengths=[3, 9])


@pytest.mark.peers
def test_the_function_has_the_arguments_of_torch(torch):
    import inspect

    theirs = inspect.signature(torch.nn.functional.multi_head_attention_forward).parameters.values()
    ours = list(inspect.signature(pyattn.functional.multi_head_attention_forward).parameters.values())
    for one, other in zip(ours, theirs, strict=False):
        assert (one.name, one.default, one.kind) == (other.name, other.default, other.kind)
    assert [argument.name for argument in ours[len(theirs) :]] == ["rng", "keep_mask", "empty_rows"]
    theirs = list(inspect.signature(torch.nn.MultiheadAttention.forward).parameters.values())
    for one, other in zip(inspect.signature(nn.MultiheadAttention.forward).parameters.values(), theirs, strict=False):
        assert (one.name, one.default, one.kind) == (other.name, other.default, other.kind)


def test_docstrings_have_the_table_of_polarities_before_the_parameters():
    for thing in (nn.MultiheadAttention, pyattn.functional.multi_head_attention_forward, pyattn.attention):
        lines = [line.split() for line in thing.__doc__.splitlines()]
        first = lines.index(["attention:", "True", "=", "attend"])
        assert lines[first + 1] == ["MultiheadAttention,", "as", "torch:", "True", "=", "blocked"]
        assert first < lines.index(["Parameters"])

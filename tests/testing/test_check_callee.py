"""check finds out what a function takes, and refuses what is none."""

from __future__ import annotations

import itertools
import math
import re
import sys

import numpy as np
import pytest
from support.planted import softmax
from support.right_attentions import careful, counts_of, formula
from support.wrong_attentions import WRONG

import pyattn
from pyattn.testing import check


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError


class Unreadable:
    def __array__(self, *_, **__):
        raise UnspeakableError

    detach = __array__


class UnreadableTuple(tuple):
    def __iter__(self):
        raise UnspeakableError


class UnreadableList(list):
    def __getitem__(self, index):
        raise UnspeakableError


UNREADABLE = (
    (lambda x: Unreadable(), "cannot be read: UnspeakableError"),
    (lambda x: UnreadableTuple((x,)), "cannot be read: UnspeakableError"),
    (lambda x: UnreadableList([x]), "cannot be read: UnspeakableError"),
    (lambda x: {"output": x}, "is an object of type dict"),
    (lambda x: iter(x), "is an object of type"),
    (lambda x: x.astype(object), "has dtype object"),
    (lambda x: np.ma.array(x), "is a masked array"),
    (lambda x: [[1], [2, 3]], "has rows of different lengths"),
)

# What a function takes


def test_arguments_go_by_many_names():
    def attention(Q, K, V, mask=None, causal=False, softmax_scale=None):  # noqa: N803
        return careful(Q, K, V, mask, causal, softmax_scale)

    result = check(attention, strict=True)
    assert result.passed, result
    assert not any(counts_of(result, name)[2] for name in ("bool masks", "causal", "scale"))


def test_inputs_may_come_in_any_order():
    def attention(keys, queries, values):
        return formula(queries, keys, values)

    assert check(attention, strict=True).passed
    assert check(lambda *, value, key, query: formula(query, key, value), strict=True).passed


def test_unknown_names_are_taken_in_order():
    assert check(lambda a, b, c: formula(a, b, c), strict=True).passed
    assert check(lambda *arrays: formula(*arrays), strict=True).passed


def test_arguments_that_must_be_given_are():
    def attention(query, key, value, mask, d_k, dropout=None):
        scores = query @ key.swapaxes(-1, -2) / math.sqrt(d_k)
        return softmax(np.where(mask, scores, -np.inf)) @ value

    result = check(attention)
    assert result.passed, result
    assert counts_of(result, "bool masks") == (12, 0, 0)


def test_a_mask_that_is_a_flag_is_a_causal_one():
    def attention(query, key, value, mask=False, scale=True):
        return careful(query, key, value, is_causal=mask)

    result = check(attention, strict=True)
    assert result.passed, result
    assert counts_of(result, "causal") == (10, 0, 0)
    assert counts_of(result, "bool masks") == counts_of(result, "masks that broadcast") == (0, 0, 12)
    assert counts_of(result, "scale") == (0, 0, 8)


@pytest.mark.parametrize("rank", [3, 4])
def test_a_function_may_want_more_axes(rank):
    def attention(query, key, value, mask=None):
        if query.ndim != rank:
            raise ValueError(f"{query.ndim} axes")
        return careful(query, key, value, mask)

    result = check(attention, strict=True)
    assert result.passed, result
    assert counts_of(result, "plain") == (14, 0, 0)
    assert counts_of(result, "bool masks") == ((10 if rank == 3 else 12), 0, (2 if rank == 3 else 0))


def test_the_layout_may_be_said():
    def attention(query, key, value, mask=None):
        swapped = [x.swapaxes(1, 2) for x in (query, key, value)]
        return careful(*swapped, mask).swapaxes(1, 2)

    assert "layout='bshd'" in check(lambda query, key, value: attention(query, key, value)).cause
    result = check(attention, layout="bshd", strict=True)
    assert result.passed, result
    assert counts_of(result, "batch and heads axes") == (9, 0, 0)


def test_a_cause_is_found_in_either_layout():
    def attention(query, key, value):
        swapped = [x.swapaxes(1, 2) for x in (query, key, value)]
        return WRONG["unscaled"].function(*swapped).swapaxes(1, 2)

    assert "does not scale the scores" in check(attention, layout="bshd").cause


def test_other_libraries_arrays_may_be_asked_for():
    seen = set()

    def attention(query, key, value):
        seen.add(type(query).__module__)
        return formula(query, key, value)

    check(attention, arrays="numpy")
    assert seen == {"numpy"}


@pytest.mark.peers
def test_tensors_may_be_asked_for(torch):
    seen = set()

    def attention(query, key, value):
        seen.add(type(query))
        return torch.softmax(query @ key.mT / query.shape[-1] ** 0.5, dim=-1) @ value

    assert check(attention, arrays="torch").passed
    assert seen == {torch.Tensor}


def test_the_functions_own_exceptions_come_with_their_line():
    result = check(lambda query, key, value: formula(query, key, value.missing))
    assert "(test_check_callee.py, line " in result.first_failure.what


def test_a_list_of_output_and_weights_is_a_tuple():
    def attention(query, key, value):
        output = formula(query, key, value)
        return [output, output]

    result = check(attention)
    assert result.passed, result
    assert any("tuple" in remark for remark in result.remarks)


def test_leaving_python_is_an_exception_like_others():
    result = check(lambda query, key, value: sys.exit(3))
    assert result.first_failure.what.startswith("SystemExit: 3 (test_check_callee.py, line ")


def test_an_exception_without_a_message_is_one_like_others():
    def attention(query, key, value):
        raise UnspeakableError

    assert check(attention).first_failure.what.startswith("UnspeakableError (test_check_callee.py, line ")


def test_other_ends_of_a_test_are_exceptions_like_others():
    class Outcome(BaseException):
        """As pytest.fail raises."""

    def attention(query, key, value):
        raise Outcome("nothing")

    assert check(attention).first_failure.what.startswith("Outcome: nothing (")


def test_whatever_is_returned_is_read_or_refused():
    for make, what in UNREADABLE:
        result = check(lambda query, key, value, make=make: make(value))
        assert not result.passed
        assert what in result.first_failure.what, result
        with pytest.raises(TypeError, match=rf"^the (output|result) of theirs {re.escape(what)}"):
            pyattn.compare(pyattn.attention, lambda query, key, value, make=make: make(value), *np.ones((3, 2, 4)))
    for make in (lambda x: x > 0, lambda x: x.astype(int), lambda x: x.astype(np.float16), lambda x: x * np.inf):
        result = check(lambda query, key, value, make=make: make(formula(query, key, value)))
        assert "numbers are further from exact attention" in result.first_failure.what


def test_results_of_other_shapes_in_each_call_are_random():
    sizes = itertools.count()
    result = check(lambda query, key, value: np.zeros((next(sizes) % 3 + 1, 1)))
    assert result.first_failure.what.startswith("the result has shape (")
    assert result.cause.startswith("two equal calls give different results")


def test_an_output_is_read_before_its_memory_is_used_again():
    kept = np.empty((4096, 64), np.float32)

    def attention(query, key, value):
        output = kept[: len(query), : value.shape[-1]]
        output[...] = formula(query, key, value) * np.float32(0.5)
        return output

    assert check(attention, arrays="numpy").cause == check(lambda *inputs: attention(*inputs).copy()).cause


def test_ctrl_c_ends_the_check():
    def attention(query, key, value):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(attention)


# What is refused


@pytest.mark.peers
def test_a_module_of_torch_is_sent_to_compare(torch):
    with pytest.raises(TypeError, match=r"pyattn\.compare\(.*\(pyattn\.interop\.torch\.from_torch makes ours\)$"):
        check(torch.nn.MultiheadAttention(8, 2))


class Named:
    def __call__(self, query, key, value):
        return formula(query, key, value)


def test_other_things_than_attention_are_refused():
    for function, message in (
        (3, "my_attention is of type int, expected a function of query, key and value, or an object like one"),
        (Named, "my_attention is the class Named, expected a function of query, key and value, or an object like one"),
        (
            pyattn.MultiheadAttention(8, 2),
            "my_attention is a MultiheadAttention with weights of its own, expected a function of query, key and "
            "value; use pyattn.compare(ours, theirs, query, key, value) for modules",
        ),
        (lambda x, mask=None: x, "<lambda> takes (x, mask), expected a function of query, key and value"),
        (pyattn.self_attention, "self_attention needs w_value, expected a function of query, key and value"),
        (lambda query, key, value, heads: value, "<lambda> needs heads, expected a function of query, key and value"),
    ):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            check(function)


def test_options_have_names():
    for name in ("align", "layout", "arrays"):
        with pytest.raises(ValueError, match=rf"^{name} is 'middle'; it must be '.*' or None$"):
            check(formula, **{name: "middle"})


def test_an_object_that_can_be_called_is_a_function():
    result = check(Named(), strict=True)
    assert (result.name, result.passed) == ("Named", True)

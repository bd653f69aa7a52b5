"""check names what is wrong with an attention, and accepts those that are right."""

from __future__ import annotations

import functools
import math
import warnings

import numpy as np
import pytest
from support import wrong_masks  # noqa: F401  it adds to WRONG
from support.planted import softmax
from support.right_attentions import careful, counts_of, formula
from support.wrong_attentions import WRONG, scores_of

import pyattn
from pyattn.testing import check
from pyattn.testing.callee import Callee, RefusedError
from pyattn.testing.cases import Case

# Wrong ones


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WRONG)
def test_the_mistake_is_named(name):
    function, group, cause, options = WRONG[name]
    result = check(function, **options)
    assert not result.passed
    assert cause in (result.cause or "nothing"), result
    assert result.first_failure.group == group


def test_what_nobody_knows_is_not_explained():
    result = check(lambda query, key, value: np.tanh(careful(query, key, value)))
    assert (result.passed, result.cause) == (False, None)
    assert "no known mistake gives these numbers" in str(result)


def test_errors_of_one_sign_are_no_dtypes():
    def attention(query, key, value):
        output = careful(query, key, value)
        return output + np.float32(1e-3) * output * output

    assert check(attention).cause is None


def test_large_scores_are_not_an_excuse():
    """What rounds to float16 could be anything where scores are in the thousands."""

    def attention(query, key, value):
        scores = scores_of(query, key)
        return softmax(scores if np.abs(scores).max() < 5000 else 0 * scores) @ value

    result = check(attention)
    assert (result.first_failure.group, result.cause) == ("large scores", None)


def test_writing_to_an_input_fails_even_if_it_is_undone():
    def attention(query, key, value):
        query[...] = query
        return formula(query, key, value)

    result = check(attention)
    assert result.first_failure.group == "views and read-only arrays"
    assert "read-only" in result.first_failure.what


def test_the_first_of_two_mistakes_is_named():
    def attention(query, key, value, mask=None):
        scores = query @ key.swapaxes(-1, -2)
        return softmax(scores if mask is None else np.where(mask, -1e9, scores)) @ value

    assert "does not scale the scores" in check(attention).cause
    assert "reads attn_mask the other way round" in check(attention, scale=1).cause


def test_an_exception_is_a_failure_and_is_shown():
    def attention(query, key, value):
        if len(key) > 10:
            raise RuntimeError("too long")
        return formula(query, key, value)

    result = check(attention)
    assert result.first_failure.what.startswith("RuntimeError: too long (test_testing.py, line ")
    assert result.cause is None
    passed, failed, not_taken = counts_of(result, "plain")
    assert passed > 0
    assert failed > 0
    assert not_taken == 0


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (None, "it returned None: is a return missing?"),
        ("text", "the result has dtype <U4, expected real numbers"),
        (object(), "the result is an object of type object, expected an array of numbers"),
        (np.ones((1, 2), complex), "complex"),
    ],
)
def test_what_is_no_array_of_numbers_is_a_failure(returned, what):
    result = check(lambda query, key, value: returned)
    assert what in result.first_failure.what
    assert not any(group.passed for group in result.groups)


def test_a_wrong_shape_is_a_failure():
    result = check(lambda query, key, value: formula(query, key, value)[:, :-1])
    assert result.first_failure.what.startswith("the result has shape (3, 2), expected (3, 3)")


def test_a_mask_that_is_always_refused_is_a_failure():
    """A branch that nobody ran before is not what a function does not take."""

    def attention(query, key, value, mask=None):
        return formula(query, key, value) if mask is None else formula(query, key, value, mask)

    result = check(attention)
    assert result.first_failure.group == "bool masks"
    assert "TypeError" in result.first_failure.what


def test_an_argument_that_always_raises_is_a_failure():
    def attention(query, key, value, enable_gqa=False):
        if enable_gqa:
            key = numpy.repeat(key, 2, axis=1)  # noqa: F821
        return careful(query, key, value)

    result = check(attention)
    assert result.first_failure.group == "grouped heads"
    assert result.first_failure.what.startswith("NameError: name 'numpy' is not defined")


# Right ones


def test_six_lines_of_numpy_pass():
    result = check(formula)
    assert result.passed, result
    assert counts_of(result, "plain") == (14, 0, 0)
    assert counts_of(result, "float64") == (6, 0, 0)
    assert counts_of(result, "causal") == (0, 0, 10)
    assert counts_of(result, "batch axis") == (0, 0, 9)


def test_careful_numpy_passes_strictly():
    result = check(careful, strict=True)
    assert result.passed, result
    not_taken = [name for name, *_, not_taken in result.groups if not_taken]
    assert not_taken == ["key lengths"]


def test_pyattn_passes_strictly():
    result = check(pyattn.attention, strict=True)
    assert result.passed, result
    assert not any(group.not_taken for group in result.groups)
    assert sum(group.passed for group in result.groups) >= 200
    assert check(pyattn.attention, strict=True, align="lower_right").passed
    assert check(functools.partial(pyattn.attention, layout="bshd"), layout="bshd", strict=True).passed


def test_loops_over_lists_pass():
    def attention(query, key, value):
        output = []
        for q in query.tolist():
            scores = [sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in key.tolist()]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            total = sum(weights)
            rows = [[weight / total * x for x in v] for weight, v in zip(weights, value.tolist(), strict=True)]
            output.append([sum(column) for column in zip(*rows, strict=True)])
        return output

    result = check(attention)
    assert result.passed, result


@pytest.mark.peers
def test_torch_passes(torch):
    result = check(torch.nn.functional.scaled_dot_product_attention)
    assert result.passed, result
    assert [name for name, *_, not_taken in result.groups if not_taken] == ["key lengths", "mask and causal"]
    assert any("upper left" in remark for remark in result.remarks)
    assert any("a masked NaN reaches the output" in remark for remark in result.remarks)


@pytest.mark.peers
def test_a_function_of_tensors_passes(torch):
    def attention(query, key, value, mask=None):
        scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = torch.softmax(scores, dim=-1)
        return torch.matmul(weights, value), weights

    result = check(attention)
    assert result.passed, result
    assert any("tuple" in remark for remark in result.remarks)
    assert counts_of(result, "bool masks") == (12, 0, 0)


def test_a_tuple_that_begins_with_the_weights_is_named():
    def swapped(query, key, value):
        result = pyattn.attention(query, key, value, need_weights=True)
        return result.weights, result.output

    assert check(swapped).cause == (
        "your function returns a tuple that begins with the weights: return (output, weights), or the output alone"
    )


@pytest.mark.peers
def test_a_module_of_torch_passes(torch):
    class Attention(torch.nn.Module):
        def forward(self, q, k, v, attn_mask=None):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)

    result = check(Attention())
    assert (result.name, result.passed) == ("Attention", True), result
    assert counts_of(result, "bool masks") == (12, 0, 0)


@pytest.mark.peers
def test_jax_has_its_own_layout_and_dtypes(jax):
    callee = Callee(functools.partial(jax.nn.dot_product_attention, implementation="xla"))
    assert callee.name == "dot_product_attention"
    assert callee.refusals == {**dict.fromkeys((2, 3), "arrays are (batch, length, heads, dim)"), 4: ""}
    x = np.ones((2, 5, 3, 4))
    with pytest.raises(RefusedError, match=r"^JAX makes float32 of float64 unless jax_enable_x64 is on$"):
        callee.call(Case(x, x, x))


@pytest.mark.peers
@pytest.mark.slow
def test_jax_passes(jax):
    result = check(jax.nn.dot_product_attention)
    assert result.passed, result
    assert counts_of(result, "grouped heads") == (8, 0, 0)
    assert counts_of(result, "float masks") == (10, 0, 0)
    assert counts_of(result, "key lengths") == (4, 0, 0)
    assert any("is the mean of all values, as in JAX" in remark for remark in result.remarks)


# What libraries differ in


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("empty_rows_averaged", "is the mean of all values"),
        ("empty_rows_nan", "is NaN"),
        ("masked_nan_leaks", "a masked NaN reaches the output"),
        ("causal_at_the_lower_right", "(lower right)"),
        ("causal_at_the_upper_left", "(upper left)"),
    ],
)
def test_conventions_are_remarks_unless_asked_for(name, remark):
    result = check(WRONG[name].function)
    assert result.passed, result
    assert any(remark in line for line in result.remarks)


def test_wide_results_are_a_remark_unless_strict():
    def attention(query, key, value):
        return formula(query.astype(np.float64), key, value)

    result = check(attention)
    assert result.passed, result
    assert any(remark.startswith("float32 inputs give float64") for remark in result.remarks)
    strict = check(attention, strict=True)
    assert strict.first_failure.what == "float32 inputs give float64"


def test_float64_may_not_be_taken():
    def attention(query, key, value):
        return formula(*(x.astype(np.float32) for x in (query, key, value)))

    result = check(attention)
    assert result.passed, result
    assert counts_of(result, "float64") == (0, 0, 6)


@pytest.mark.slow
def test_long_sums_are_a_remark_unless_strict():
    def attention(query, key, value):
        weights = np.exp(scores_of(query, key) - scores_of(query, key).max(axis=-1, keepdims=True))
        output, total = np.zeros((len(query), value.shape[-1]), value.dtype), np.zeros((len(query), 1), value.dtype)
        for j in range(len(key)):
            output += weights[:, j : j + 1] * value[j]
            total += weights[:, j : j + 1]
        return output / total

    result = check(attention)
    assert result.passed, result
    assert any("times those of careful code, in long rows" in remark for remark in result.remarks)
    strict = check(attention, strict=True)
    assert strict.first_failure.group == "long rows"
    assert "rounding errors only" in strict.cause


def test_a_mask_of_floats_may_be_read_as_flags():
    result = check(WRONG["empty_rows_nan"].function)
    assert counts_of(result, "float masks") == (0, 0, 10)
    assert any("float masks: a float mask is read as flags" in remark for remark in result.remarks)


# The result


def test_the_report_has_everything():
    result = check(WRONG["mask_inverted"].function)
    text = str(result)
    lines = text.splitlines()
    failed = sum(group.failed for group in result.groups)
    assert (
        lines[0] == f"mask_inverted: {failed} of {failed + sum(group.passed for group in result.groups)} cases FAILED"
    )
    for name, *counts in result.groups:
        (line,) = (line for line in lines if line.startswith(f"  {name}  "))
        assert line.split()[-4:] == [str(count or "-") for count in counts]
    assert f"First failure, bool masks: {result.first_failure.call}" in text
    assert result.first_failure.call == "mask_inverted(query, key, value, mask=mask)"
    assert result.first_failure.inputs == ("query (4, 8), key (4, 8), value (4, 8), float32; mask (4, 4), bool")
    assert f"Likely cause: {result.cause}." in text
    assert all(f"- {remark}" in lines for remark in result.remarks)
    assert repr(result) == text


def test_the_result_is_true_where_all_passed():
    """`assert check(attention)` means what it looks like."""
    assert check(formula)
    assert not check(WRONG["unscaled"].function)


def test_a_warning_is_no_failure():
    def attention(query, key, value):
        warnings.warn("attention is all you need", stacklevel=1)
        return formula(query, key, value)

    assert check(attention).passed


def test_every_run_is_the_same():
    function = WRONG["heads_mixed"].function
    assert str(check(function)) == str(check(function))


def test_the_caller_notices_nothing(capsys):
    with np.errstate(all="raise"):
        check(WRONG["overflows"].function)
        assert np.geterr()["over"] == "raise"
    assert capsys.readouterr() == ("", "")

"""pyattn.compare of functions: planted faults are named by stage and cause, and nothing is found on equal pairs."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
from support import drawing, planted, torch_twin
from support.helpers import EVERYTHING
from support.mha_cases import draw, draw_cases, twins
from support.planted import KEY, QUERY, VALUE, compare, with_weights

import pyattn
from pyattn import nn
from pyattn.testing.formula import compute
from pyattn.testing.mistakes import HYPOTHESES, mistakes_in
from pyattn.testing.sides import side_of

# Faults


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", planted.FUNCTIONS, ids=lambda fault: fault.function.__name__)
def test_a_fault_in_a_function_is_named(fault):
    inputs = planted.draw(**fault.inputs)
    report = pyattn.compare(pyattn.attention, fault.function, *inputs, **fault.arguments)
    assert not report.equal
    assert report.wrong == ("theirs",)
    assert report.cause, report
    assert (report.cause.name, report.cause.side, report.stage) == (fault.cause, "theirs", fault.stage), report
    assert report.complete


def test_every_mistake_is_planted():
    """The others are those of modules, of score functions and of NaN: test_comparing_modules.py, _scores.py, below."""
    others = {"weights transposed", "parameters missing", "packed by heads", "number of heads", "weights returned"}
    others |= {"another score", "hidden NaN leaks"}
    assert {one.name for one in HYPOTHESES} - others <= {fault.cause for fault in planted.FUNCTIONS}


@pytest.mark.parametrize("size", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_right_function_is_equal_and_nothing_is_said_of_it(size, dtype):
    for arguments in ({}, {"attn_mask": planted.VISIBLE}, {"attn_mask": planted.BIAS.astype(dtype)}, {"scale": 0.2}):
        report = pyattn.compare(pyattn.attention, planted.right, *planted.draw(dtype, size=size), **arguments)
        assert report.equal, report
        assert (report.stage, report.causes, report.wrong) == (None, (), ())


@pytest.mark.parametrize("largest", [0, 1, 100])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_may_be_off_by_more_where_scores_are_larger(largest, dtype):
    """Each side by 8u (1 + 2A), where A is the largest score: exp turns its rounding into a relative error."""
    inputs = [np.full((n, 1), largest**0.5, dtype) for n in (2, 4, 4)]
    output, weights = with_weights(*inputs)
    for times, equal in ((12, True), (40, False)):  # in float64 the formula itself is rounded, too
        off = weights * np.asarray(1 + times * np.finfo(dtype).eps / 2 * (1 + 2 * largest), dtype)
        report = pyattn.compare(with_weights, lambda *_, off=off: (output, off), *inputs)
        assert report.equal == equal, report


def test_dropout_is_random():
    report = pyattn.compare(with_weights, planted.dropping(0.3), QUERY, KEY, VALUE)
    assert report.cause.name == "random"
    assert "pass training=self.training to torch.nn.functional.dropout" in report.cause.fix


def test_nan_on_both_sides_is_equal_and_told():
    """A NaN in an input makes the comparison of the rows that it reaches worthless."""
    query = QUERY.copy()
    query[0, 0, 2, 1] = np.nan
    report = pyattn.compare(pyattn.attention, planted.right, query, KEY, VALUE)
    assert report.equal
    assert report.stages[-1].nan == VALUE.shape[-1]
    assert f"But {VALUE.shape[-1]} of {QUERY[..., 0].size * VALUE.shape[-1]} numbers of output are NaN on both" in str(
        report
    )


# Results of one side alone


def test_wrong_weights_of_one_side_alone_are_seen():
    output, weights, lse = with_weights(QUERY, KEY, VALUE, need_lse=True)
    right = (output, weights, lse)
    for side, wrong, stage in (
        ("theirs", (output, weights.mT, lse), "weights"),
        ("theirs", (output, weights.mean(axis=1)), "weights"),
        ("theirs", (output, weights[:1]), "weights"),
        ("theirs", (output, 2 * weights), "weights"),
        ("theirs", (output, None, lse / np.float32(np.log(2))), "lse"),
        ("ours", (output, weights.mT), "weights"),
    ):
        ours, theirs = (pyattn.attention, wrong) if side == "theirs" else (lambda *_, w=wrong: w, output)
        report = pyattn.compare(ours, theirs, QUERY, KEY, VALUE)
        found = [(one.name, one.only) for one in report.stages if not one.equal]
        assert (report.equal, report.wrong, report.stage, found) == (False, (side,), stage, [(stage, side)]), report
        assert f"<- differs, and only {side} returns it" in str(report)
        assert "the formula" in str(report).splitlines()[-1] or "A tuple is read as" in str(report)
    report = pyattn.compare(pyattn.attention, right, QUERY, KEY, VALUE)
    assert report.equal, report
    assert [stage.name for stage in report.stages] == ["output"]


def test_transposed_weights_of_one_side_alone_are_named():
    output, weights = with_weights(QUERY, KEY, VALUE)
    report = compare((output, weights.mT))
    assert (report.cause.name, report.stage, report.complete) == ("weights returned", "weights", True)
    assert str(report.cause) == "theirs returns its weights transposed, (keys, queries)"


def test_numbers_of_few_decimals_are_named():
    output = pyattn.attention(QUERY, KEY, VALUE).round(3)
    report = compare(output)
    assert (report.cause.name, report.stage) == ("rounded", "output")
    assert "rounds output to 3 decimals" in str(report)


def test_a_hidden_nan_that_leaks_is_a_documented_difference():
    visible = planted.VISIBLE.copy()
    visible[:, 3] = False
    value = VALUE.copy()
    value[..., 3, :] = np.nan
    report = pyattn.compare(pyattn.attention, planted.leaking, QUERY, KEY, value, attn_mask=visible)
    assert report.cause.name == "hidden NaN leaks"
    assert report.cause.documented


@pytest.mark.parametrize(("asked", "given"), [("zero", np.nan), ("nan", 0.0)])
def test_empty_rows_are_a_documented_difference(asked, given):
    visible = planted.EMPTY
    other = {"zero": "nan", "nan": "zero"}[asked]
    expected = pyattn.attention(QUERY, KEY, VALUE, attn_mask=visible, empty_rows=other)
    np.testing.assert_array_equal(expected[..., 2, :], given)
    report = compare(expected, attn_mask=visible, empty_rows=asked)
    assert report.cause.name == "empty rows"
    assert str(report.cause).startswith(f"theirs gives {'NaN' if np.isnan(given) else '0'} where")
    assert report.cause.documented


def test_two_faults_of_one_function_are_found_together():
    def theirs(query, key, value, is_causal):
        scores = query @ key.mT
        return planted.softmax(planted.hide(scores, planted.triangle(scores, 1))) @ value

    report = pyattn.compare(pyattn.attention, theirs, *planted.draw(keys=planted.L), is_causal=True)
    assert {cause.name for cause in report.causes} == {"scale missing", "off by one"}
    assert report.complete


@pytest.mark.slow
def test_three_faults_of_one_function_are_too_many():
    def theirs(query, key, value, is_causal):
        return planted.softmax(query @ key.mT, axis=-2) @ value

    report = pyattn.compare(pyattn.attention, theirs, *planted.draw(keys=planted.L), is_causal=True)
    assert not report.complete
    assert "No known cause explains it." in str(report)


def test_what_nobody_has_thought_of_is_shown_where_it_is_largest():
    def theirs(query, key, value):
        output = planted.right(query, key, value)
        output[1, 2, 3, 4] += 1
        return output

    report = compare(theirs)
    (stage,) = report.stages
    assert (report.cause, report.stage, stage.place, report.complete) == (None, "output", (1, 2, 3, 4), False)
    ours, other, exact = stage.numbers
    assert other - ours == pytest.approx(1)
    assert ours == pytest.approx(exact)
    assert "No known cause explains it." in str(report)
    assert "output[1, 2, 3, 4]" in str(report)


def test_errors_of_one_sign_are_no_dtypes():
    """Rounding is as often up as down, and nothing here fits these: float16 is not a cause."""

    def theirs(query, key, value):
        output = planted.right(query, key, value)
        return output + np.float32(1e-3) * output * output

    report = compare(theirs)
    assert (report.equal, report.cause) == (False, None), report


def test_the_wrong_side_is_named_whichever_it_is():
    left = pyattn.compare(planted.unscaled, pyattn.attention, QUERY, KEY, VALUE)
    both = pyattn.compare(planted.unscaled, planted.divided_by_head_dim, QUERY, KEY, VALUE)
    same = pyattn.compare(planted.unscaled, planted.unscaled, QUERY, KEY, VALUE)
    assert (left.wrong, [(one.side, one.name) for one in left.causes]) == (("ours",), [("ours", "scale missing")])
    assert both.wrong == ("theirs", "ours")
    assert [(one.side, one.name) for one in both.causes] == [("theirs", "wrong scale"), ("ours", "scale missing")]
    assert same.equal
    assert [(one.side, one.name) for one in same.causes] == [("each", "scale missing")]


def test_float16_is_seen_behind_the_rounding_of_a_large_layer():
    """Which a bound of absolute values alone would not do."""
    ours = nn.MultiheadAttention(256, 8, batch_first=True, rng=0)
    x = np.random.default_rng(0).standard_normal((1, 32, 256), np.float32)
    expected, _ = ours(x, x, x)
    assert pyattn.compare(ours, expected, x, x, x).equal
    report = pyattn.compare(ours, expected.astype(np.float16).astype(np.float32), x, x, x)
    assert (report.cause.name, report.stage) == ("less precision", "output")


# Every mistake that is known

FLAGS = {"attn_mask": planted.VISIBLE, "is_causal": True, "align": "lower_right"}
NUMBERS = {"attn_mask": planted.BIAS, "window": (2, 1), "align": "upper_left", "key_lengths": planted.LENGTHS}
HEADS_THIRD = [x.swapaxes(1, 2) for x in planted.draw()]
X = np.random.default_rng(2).standard_normal((3, 6, 12), np.float32)
BLOCKED = np.random.default_rng(3).random((3 * 4, 6, 6)) < 0.3
BLOCKED[..., 0] = False
PADDING = np.arange(6) > np.array([[5], [3], [4]])


def layer():
    rng = np.random.default_rng(5)
    ours = nn.MultiheadAttention(12, 4, batch_first=True, add_bias_kv=True, add_zero_attn=True, rng=rng)
    for bias in (ours.in_proj_bias, ours.out_proj.bias):
        bias[:] = rng.standard_normal(bias.shape)
    return ours


@pytest.mark.parametrize(
    ("ours", "inputs", "arguments"),
    [
        (pyattn.attention, planted.draw(kv_heads=2), FLAGS),
        pytest.param(pyattn.attention, planted.draw(kv_heads=2), NUMBERS, marks=pytest.mark.slow),
        pytest.param(pyattn.attention, HEADS_THIRD, {**FLAGS, "layout": "bshd"}, marks=pytest.mark.slow),
        pytest.param(layer(), [X, X + 1, X[::-1]], {"attn_mask": BLOCKED}, marks=pytest.mark.slow),
        pytest.param(layer(), [X, X + 1, X[::-1]], {"key_padding_mask": PADDING}, marks=pytest.mark.slow),
    ],
    ids=["flags", "numbers", "bshd", "module", "padding"],
)
def test_every_known_mistake_is_named_when_it_is_made(ours, inputs, arguments):
    """In float32, so that bounds and search are right for each; that mistakes are what people make is tested above."""
    formula, _ = side_of(ours, "ours", None).compute(inputs, arguments)
    right = compute(formula, np.float32).stages["output"]
    names = Counter()
    for mistake in mistakes_in(formula):
        try:
            made = compute(mistake.formula, np.float32).stages["output"].astype(np.float32)
        except ValueError:  # impossible with these shapes
            continue
        if made.shape == right.shape and np.allclose(made, right, rtol=0, atol=1e-5, equal_nan=True):
            continue  # nothing to see here, as of scores that do not overflow
        report = pyattn.compare(ours, made, *inputs, **arguments)
        named = {cause.name for cause in report.causes} | set(report.others)
        assert mistake.name in named, f"{mistake.name}: {mistake.what}\n{report}"
        names[mistake.name] += 1
    assert len(names) >= 12


# Equal pairs

BLOCKS = [0, *(pytest.param(block, marks=pytest.mark.slow) for block in (1, 2, 3))]


@pytest.mark.peers
@pytest.mark.parametrize("block", BLOCKS)
def test_nothing_is_found_on_equal_modules(block, torch):
    for number, case in enumerate(draw_cases(100 + block)[:30]):
        rng = np.random.default_rng([9, block, number])
        options, inputs, masks = draw({**case, "size": "small", "is_causal": False}, rng)
        masks = {name: without_empty_rows(mask) for name, mask in masks.items() if mask is not None}
        ours, theirs = twins(torch, options, case["dtype"], rng)
        asked = {name: case[name] for name in ("need_weights", "average_attn_weights")}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Support for mismatched", UserWarning)  # torch's, of two kinds of masks
            report = pyattn.compare(ours, theirs, *inputs, **masks, **asked)
        assert_nothing_found(report, case)
        stages = ["query", "key", "value", "scores", "weights", "heads", "output"]
        assert [stage.name for stage in report.stages] == stages


def without_empty_rows(mask):
    """The first key is visible to all: where none is, torch and pyattn differ, and say so."""
    mask = mask.copy()
    mask[..., 0] = False if mask.dtype == bool else 0
    return mask


@pytest.mark.peers
@pytest.mark.parametrize("block", BLOCKS)
def test_nothing_is_found_on_equal_functions(block, torch):
    indices = range(block, drawing.CASES, drawing.CASES // (40 if EVERYTHING else 20))
    for index in indices:
        case = drawing.draw(index)
        if not torch_twin.has_case(case):
            continue
        inputs = drawing.build(case)
        arguments = {name: x for name, x in inputs.arguments.items() if x is not None}

        def theirs(query, key, value, *, case=case, inputs=inputs, **arguments):
            return torch_twin.attend(torch, case, inputs)

        report = pyattn.compare(pyattn.attention, theirs, *inputs[:3], **arguments)
        assert_nothing_found(report, case)


def assert_nothing_found(report, about):
    assert report.equal, f"{about}\n{report}"
    assert (report.causes, report.wrong, report.complete) == ((), (), True), f"{about}\n{report}"


@pytest.mark.peers
def test_two_hundred_pairs_are_drawn():
    functions = sum(
        torch_twin.has_case(drawing.draw(index))
        for block in range(4)
        for index in range(block, drawing.CASES, drawing.CASES // 40)
    )
    assert functions + 4 * 30 >= 200


@pytest.mark.peers
@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION"])
def test_torchs_function_is_given_tensors(backend, torch):
    query, key, value = planted.draw(keys=planted.L)
    theirs = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
        report = pyattn.compare(pyattn.scaled_dot_product_attention, theirs, query, key, value, is_causal=True)
    assert_nothing_found(report, backend)
    assert report.theirs == "torch.scaled_dot_product_attention, float32"

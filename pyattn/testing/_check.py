"""`check`: run a user's function on all cases, and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from pyattn._util.arguments import as_choice
from pyattn._util.typing import Corner, Layout
from pyattn.testing._assert_close import WIDENED
from pyattn.testing.bounds import (
    Expected,
    describe_gradient,
    describe_worst,
    error_ratios,
    expect,
    output_bars,
    output_ratios,
)
from pyattn.testing.callee import Answer, BackwardCallee, Callee, Library, RefusedError
from pyattn.testing.calling import Array, is_of
from pyattn.testing.cases import GRADIENT_GROUPS, GROUPS, Case, Group
from pyattn.testing.causes import LENIENCY, evidence_of, explain_together, formula_of, reads_floats_as_flags
from pyattn.testing.gradient_mistakes import GradientEvidence, Row, explain_gradients_together
from pyattn.testing.gradients import Backward
from pyattn.testing.reports import CheckResult, Failure, GroupResult
from pyattn.testing.sides import MODULES, kind_of

__all__ = ["check"]

CORNERS: dict[Corner, str] = {
    "upper_left": "the first query is aligned with the first key (upper left), as in PyTorch and JAX",
    "lower_right": "the last query is aligned with the last key (lower right), as in FlashAttention",
}
NO_ARGUMENT = "no argument for "
NOT_FORWARD = "the function itself does not take all of these cases"
FLAGS = "a float mask is read as flags; other libraries add it to the scores"
TUPLE = "it returned a tuple, whose first item was marked"
WEIGHTS_FIRST = "your function returns a tuple that begins with the weights"
MAX_FAILURES = 30  # used to find the cause
GRADIENT_LENIENCY = 4.0
"""As LENIENCY, for the bounds of gradients, which are wider than those of outputs."""


class Rules(NamedTuple):
    """The options of `check`."""

    scale: float | None
    align: Corner | None
    strict: bool


class Mark(NamedTuple):
    """The outcome of a case."""

    group: Group
    status: Literal["passed", "failed", "not taken"]
    case: Case
    what: str = ""
    """Description of the failure, or the reason why the case was not taken."""
    raised: bool = False
    note: str = ""
    """A remark for the user."""
    answer: Answer | None = None
    slack: float = 0.0
    """The largest error ratio divided by its bar."""
    cause: str | None = None
    """The cause, if the failure itself shows it."""


def check(
    my_attention: Callable[..., Any],
    *,
    backward: Callable[..., Any] | None = None,
    scale: float | None = None,
    align: Corner | None = None,
    layout: Layout | None = None,
    arrays: Library | None = None,
    strict: bool = False,
) -> CheckResult:
    r"""Run an attention function on about 200 cases, and report what is wrong and why.

    The cases go from easy to hard: plain ones; one query or one key; lengths and dims that differ; batches and heads,
    grouped heads included; scale, causal, bool and float masks and key lengths if the function has arguments for them;
    scores so large that exp overflows, rows of 4,096 keys, denormals, float64, views. Each number must be within 16
    times the bound of `assert_attention_close`. If a result is wrong, `check` computes some 30 known mistakes. The one
    that reproduces the result is reported as the likely cause.

    The function needs only query, key and value. Arguments are recognised by their names: those of `pyattn.attention`,
    and common ones in NumPy code, PyTorch and JAX. Cases for a missing argument are skipped. Exceptions are accepted
    for features that a function need not support: batch and head axes, grouped heads, some kinds of masks.

    With `backward` it also tests gradients, on about 140 cases in groups of their own, of which those are skipped that
    the function itself does not take. They are judged by the formula's gradients in float64, each number within 4 times
    its rounding bound, and explained by some 40 known mistakes.

    Parameters
    ----------
    my_attention : callable
        Takes query, key and value, (L, head_dim), (S, head_dim) and (S, v_dim), optionally with batch and head axes in
        front, and returns the output, or a tuple that begins with the output.
    backward : callable, optional
        Your function for the gradients: takes grad_output, (L, v_dim), and then query, key and value, and returns the
        gradients of query, key and value as a tuple, which may end with that of a float mask. Its other arguments are
        recognised as those of my_attention. Default: None, gradients are not tested.
    scale : float, optional
        The function's default factor of scores. Default: ``1 / sqrt(head_dim)``; pass 1 for a function that does not
        scale the scores.
    align : {'upper_left', 'lower_right'}, optional
        The corner from which its causal mask starts if L differs from S. Default: None, either.
    layout : {'bhsd', 'bshd'}, optional
        The order of four axes; with 'bshd', (batch, length, heads, dim), only arrays with four axes are used. Default:
        None, 'bshd' for JAX's own functions and 'bhsd' for all others.
    arrays : {'numpy', 'torch', 'jax'}, optional
        The library whose arrays it takes. Default: None, the library that the function is from. Other functions get
        NumPy arrays or, if these raise, arrays of a library that has been imported.
    strict : bool
        Also require what is otherwise a remark: an empty row gives 0, a masked NaN does not reach the output, float32
        inputs give float32, and errors are within the bound itself. Default: False.

    Returns
    -------
    CheckResult
        Prints as a table. ``assert result.passed, result`` is a test.

    Raises
    ------
    TypeError
        my_attention is not a function of query, key and value, or it is a module with weights, which `pyattn.compare`
        takes. Or backward is not a function of grad_output, query, key and value.
    ValueError
        align, layout or arrays has an unknown value.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn.testing import check
    >>> def attention(query, key, value):
    ...     weights = np.exp(query @ key.T / query.shape[-1] ** 0.5)
    ...     return weights / weights.sum(axis=-1, keepdims=True) @ value
    >>> result = check(attention)
    >>> result.passed, result.first_failure.group
    (False, 'large scores')
    >>> print(result.cause.replace(": ", ":\n"))
    your function takes exp(score) without subtracting the row's own maximum, so it overflows or underflows:
    subtract scores.max(axis=-1, keepdims=True) first
    """
    as_choice(align, "align", (*CORNERS, None))
    as_choice(layout, "layout", ("bhsd", "bshd", None))
    as_choice(arrays, "arrays", ("numpy", "torch", "jax", None))
    _refuse_modules(my_attention)
    rules = Rules(None if scale is None else float(scale), align, strict)
    with np.errstate(all="ignore"):
        callee = Callee(my_attention, rules.scale, layout, arrays)
        return _check(callee, None if backward is None else BackwardCallee(backward, callee), rules)


def _refuse_modules(my_attention: Any) -> None:
    """Raise TypeError for a module: it has weights of its own, so it is not a function of query, key and value."""
    kind = None if isinstance(my_attention, type) else kind_of(my_attention)
    if kind in MODULES:
        given = f"my_attention is a {kind.name} with weights of its own, expected a function of query, key and value"
        ours = " (pyattn.interop.torch.from_torch makes ours)" if is_of(my_attention, "torch") else ""
        raise TypeError(f"{given}; use pyattn.compare(ours, theirs, query, key, value) for modules{ours}")


def _check(callee: Callee, backward: BackwardCallee | None, rules: Rules) -> CheckResult:
    marks = _judge_all(callee, GROUPS, rules)
    remarks = _remarks(marks, "function")
    if backward is not None:
        of_backward = _judge_backward(backward, marks, rules)
        remarks += [one for one in _remarks(of_backward, "backward") if one not in remarks]
        marks += of_backward
    failures = [mark for mark in marks if mark.status == "failed"]
    groups = dict.fromkeys(mark.group for mark in marks)
    counts = tuple(_count([mark for mark in marks if mark.group is group]) for group in groups)
    if not failures:
        return CheckResult(callee.name, counts, None, None, tuple(remarks))
    failing = callee if failures[0].case.grad_output is None or backward is None else backward
    cause = _find_cause(failing, failures, rules)
    return CheckResult(callee.name, counts, _describe(failing, failures[0], cause), cause, tuple(remarks))


def _judge_all(callee: Callee, groups: Sequence[Group], rules: Rules) -> list[Mark]:
    marks = [_judge(callee, group, case, rules) for group in groups for case in group.cases()]
    for name in ("attn_mask", "key_lengths", "enable_gqa"):
        using = [n for n, mark in enumerate(marks) if mark.case.arguments.get(name) is not None]
        if callee.takes(name) and all(marks[n].status == "not taken" for n in using):  # it always raises
            for n in using:
                marks[n] = marks[n]._replace(status="failed") if marks[n].raised else marks[n]
    return marks


def _judge_backward(backward: BackwardCallee, marks: Sequence[Mark], rules: Rules) -> list[Mark]:
    """Judge the groups of which the function itself takes every case: it may take others by chance, by broadcasting."""
    refused = {f"gradients, {mark.group.name}" for mark in marks if mark.status == "not taken"}
    found = _judge_all(backward, [group for group in GRADIENT_GROUPS if group.name not in refused], rules)
    for group in GRADIENT_GROUPS:
        if group.name in refused:
            lacking = [name for name in group.needs if not backward.takes(name)]
            what = NO_ARGUMENT + " and ".join(lacking) if lacking else NOT_FORWARD
            found += [Mark(group, "not taken", case, what) for case in group.cases()]
    order = [group.name for group in GRADIENT_GROUPS]
    return sorted(found, key=lambda mark: order.index(mark.group.name))


# One case


def _judge(callee: Callee, group: Group, case: Case, rules: Rules) -> Mark:
    lacking = [name for name in group.needs if not callee.takes(name)]
    if lacking:
        return Mark(group, "not taken", case, NO_ARGUMENT + " and ".join(lacking))
    if group.convention == "corner":
        align = rules.align or ("upper_left" if callee.takes("align") else None)
        rules = rules._replace(align=align)
        case = case._replace(arguments={**case.arguments, "align": align})
    try:
        case = callee.present(case)
    except RefusedError as refused:
        return Mark(group, "not taken", case, str(refused))
    try:
        answer = callee.call(case)
    except RefusedError as refused:
        return Mark(group, "not taken" if group.optional else "failed", case, str(refused), raised=True)

    mark = Mark(group, "passed", case, answer=answer, note=TUPLE if answer.from_tuple else "")
    given, expected = answer.output.shape, (*case.query.shape[:-1], case.value.shape[-1])
    if case.grad_output is None and given != expected:
        return mark._replace(status="failed", what=f"the result has shape {given}, expected {expected}")
    if answer.changed and group.name.endswith("inputs unchanged"):
        name = answer.changed[0]
        cause = f"{name} is changed in place, and the caller's array with it: write x = x * y, not x *= y"
        return mark._replace(status="failed", what=f"it wrote to {name}", cause=cause)
    if case.query.dtype == np.float64 != answer.output.dtype and not rules.strict:
        return mark._replace(status="not taken", what=f"float64 inputs give {answer.output.dtype}")
    if case.grad_output is not None:
        mark = _judge_gradients(mark, answer, rules)
    else:
        mark = _CONVENTIONS.get(group.convention, _judge_numbers)(mark, answer.output, rules)
    what = f"{case.query.dtype} inputs give {answer.output.dtype}"
    if case.query.dtype == answer.output.dtype or mark.status == "failed":
        return mark
    if rules.strict:
        return mark._replace(status="failed", what=what, cause=WIDENED)
    return mark._replace(note=f"{what}: {WIDENED}")


def _expect(case: Case, rules: Rules, **more: Any) -> Expected:
    arguments = {"scale": rules.scale, **case.arguments, **more}
    return expect(case.query, case.key, case.value, case.query.dtype, **arguments)


def _hold(mark: Mark, output: Array, expected: Expected, rules: Rules, ignore: Any = False) -> Mark:
    """Fail numbers outside the bound, or outside LENIENCY times the bound unless the check is strict."""
    ratios = np.where(ignore, 0, output_ratios(output, expected))
    bars = output_bars(expected)
    allowed = bars * (1 if rules.strict else LENIENCY)
    slack = float((ratios / bars).max(initial=0))
    if (ratios <= allowed).all():
        return mark._replace(slack=slack)
    return mark._replace(status="failed", what=describe_worst("result", output, expected, ratios, allowed))


def _judge_numbers(mark: Mark, output: Array, rules: Rules) -> Mark:
    judged = _hold(mark, output, _expect(mark.case, rules), rules)
    biased = judged.status == "failed" and mark.group.needs == ("attn_bias",)
    if biased and reads_floats_as_flags(mark.case, output, rules.scale):
        return mark._replace(status="not taken", what=FLAGS)
    return judged


def _judge_corner(mark: Mark, output: Array, rules: Rules) -> Mark:
    """Accept either corner, unless one is required; empty rows are judged by another group."""
    judged = mark
    for align in [rules.align] if rules.align else CORNERS:
        expected = _expect(mark.case, rules, align=align)
        judged = _hold(mark, output, expected, rules, ignore=_empty_rows(mark.case, expected))
        if judged.status == "passed":
            return judged._replace(note="" if rules.align else f"causal, lengths differ: {CORNERS[align]}")
    return judged


def _judge_empty_rows(mark: Mark, output: Array, rules: Rules) -> Mark:
    """Accept 0, NaN and averages in empty rows."""
    case, expected = mark.case, _expect(mark.case, rules)
    if rules.strict:
        return _hold(mark, output, expected, rules)
    empty = _empty_rows(case, expected)
    judged = _hold(mark, output, expected, rules, ignore=empty)
    if judged.status == "failed":
        return judged
    unmasked = case._replace(arguments={**case.arguments, "attn_mask": None})
    for what, other in (
        ("", expected),
        ("is NaN", _expect(case, rules, empty_rows="nan")),
        ("is the mean of all values, as in JAX", _expect(unmasked, rules, scale=0.0)),
        ("is the result without the mask", _expect(unmasked, rules)),
    ):
        if _hold(mark, output, other, rules, ignore=~empty).status == "passed":
            note = f"a row with nothing to attend to {what}; it is 0 in PyTorch, FlashAttention and pyattn"
            return judged._replace(note=note if what else "")
    return _hold(mark, output, expected, rules)


def _judge_masked_nan(mark: Mark, output: Array, rules: Rules) -> Mark:
    """Accept NaN in place of correct numbers."""
    ignore = np.isnan(output) & (not rules.strict)
    judged = _hold(mark, output, _expect(mark.case, rules), rules, ignore=ignore)
    note = "a masked NaN reaches the output, as in PyTorch; pyattn never reads masked positions"
    return judged._replace(note=note) if ignore.any() else judged


def _judge_gradients(mark: Mark, answer: Answer, rules: Rules) -> Mark:
    """Fail gradients of another shape, and numbers outside GRADIENT_LENIENCY times the bound unless it is strict."""
    evidence = _gradient_evidence(mark.case, answer, rules)
    bar, slack = 1.0 if rules.strict else GRADIENT_LENIENCY, 0.0
    for name, x in evidence.actual.items():
        exact, unit = evidence.right[name], evidence.allowed[name]
        if x.shape != exact.shape:
            what = f"the gradient of {name} has shape {x.shape}, expected {exact.shape}"
            return mark._replace(status="failed", what=what)
        ratios = error_ratios(x, exact, unit)
        slack = max(slack, float(ratios.max(initial=0)))
        if slack > bar:
            return mark._replace(status="failed", what=describe_gradient(name, x, exact, unit, bar))
    return mark._replace(slack=slack)


def _gradient_evidence(case: Case, answer: Answer, rules: Rules) -> GradientEvidence:
    formula, precision = formula_of(case, rules.scale)
    shapes = {name: x.shape for name, x in case.arguments.items() if isinstance(x, np.ndarray)}
    rows = [Row(name, (name,), shapes.get(name)) for name in answer.gradients]
    actual = {name: x.astype(np.float64) for name, x in answer.gradients.items()}
    assert case.grad_output is not None, "a case for gradients"
    return GradientEvidence(Backward(formula, case.grad_output), rows, actual, precision)


def _empty_rows(case: Case, expected: Expected) -> Array:
    """Tell which rows of the output have every key masked; broadcasts over v_dim."""
    rows = (expected.lse == -np.inf)[..., np.newaxis]
    return np.asarray(rows.swapaxes(-3, -2) if case.arguments.get("layout") == "bshd" else rows)


_CONVENTIONS: dict[str, Callable[[Mark, Array, Rules], Mark]] = {
    "corner": _judge_corner,
    "empty": _judge_empty_rows,
    "nan": _judge_masked_nan,
}


# The report


def _count(marks: Sequence[Mark]) -> GroupResult:
    statuses = [mark.status for mark in marks]
    counts = [statuses.count(status) for status in ("passed", "failed", "not taken")]
    return GroupResult(marks[0].group.name, len(marks), *counts)


def _describe(callee: Callee, mark: Mark, cause: str | None) -> Failure:
    case = mark.case
    mask = case.arguments.get("attn_mask")
    shapes = [f"query {case.query.shape}, key {case.key.shape}, value {case.value.shape}, {case.query.dtype}"]
    shapes += [] if mask is None else [f"mask {mask.shape}, {mask.dtype}"]
    shapes += [] if case.storage == "contiguous" else [f"in memory: {case.storage}"]
    unknown = mark.answer is not None and cause is None
    what = f"{mark.what}\nno known mistake gives these numbers" if unknown else mark.what
    return Failure(mark.group.name, callee.describe(case), "; ".join(shapes), what)


def _find_cause(callee: Callee, failures: Sequence[Mark], rules: Rules) -> str | None:
    first = failures[0]
    if first.answer is None or first.cause is not None:  # an exception explains itself
        return first.cause
    if _differs(callee, first.case, first.answer):
        return "two equal calls give different results: dropout that is still on, or numpy.empty that is not filled"
    if _differs(callee, first.case._replace(storage="contiguous"), first.answer):
        return "memory is read without regard to strides: copy arrays that are not contiguous first"
    alike = [mark for mark in failures if mark.group is first.group][:MAX_FAILURES]  # others may differ in cause
    if first.answer.gradients:
        answers = [(mark.case, mark.answer) for mark in alike if mark.answer is not None]
        return explain_gradients_together([_gradient_evidence(*one, rules) for one in answers])
    cause = explain_together(
        [evidence_of(mark.case, mark.answer.output, rules.scale) for mark in alike if mark.answer is not None]
    )
    if first.answer.from_tuple and cause is not None and cause.startswith("your function returns the weights:"):
        return f"{WEIGHTS_FIRST}: return (output, weights), or the output alone"
    return cause


def _differs(callee: Callee, case: Case, answer: Answer) -> bool:
    """Tell whether one of 8 calls differs by more than rounding; a single call may happen to drop nothing."""
    try:
        again = [callee.call(case).output for _ in range(8)]
    except RefusedError:
        return True
    same = (one.shape == answer.output.shape for one in again)
    return not all(same) or not all(np.allclose(one, answer.output, rtol=1e-3, equal_nan=True) for one in again)


def _remarks(marks: Sequence[Mark], who: str) -> list[str]:
    """List remarks on a function, or on its backward, each once, in the order of the cases."""
    passed = [mark for mark in marks if mark.status == "passed"]
    notes = dict.fromkeys(mark.note for mark in passed if mark.note)
    worst = max(passed, key=lambda mark: mark.slack, default=None)
    if worst is not None and worst.slack > 1.5 and all(mark.status != "failed" for mark in marks):
        notes[f"errors are up to {worst.slack:.2g} times those of careful code, in {worst.group.name}"] = None
    missing: dict[str, None] = {}
    refused: dict[str, dict[str, None]] = {}  # reason to groups
    for mark in marks:
        if mark.status != "not taken":
            continue
        if mark.what.startswith(NO_ARGUMENT):
            missing |= dict.fromkeys(mark.what.removeprefix(NO_ARGUMENT).split(" and "))
            missing.pop("attn_bias", None)  # as attn_mask is missing, too
        elif not any(mark.group.name in groups for groups in refused.values()):
            refused.setdefault(mark.what, {})[mark.group.name] = None
    if missing:
        notes[f"not taken: the {who} has no argument for {', '.join(missing)}"] = None
    return [*notes, *(f"not taken, {', '.join(groups)}: {what}" for what, groups in refused.items())]

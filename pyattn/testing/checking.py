"""`check`: a function of the user's on all cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn.testing._comparing.calling import is_of_torch
from pyattn.testing._comparing.kinds import MODULES, kind_of
from pyattn.testing.callee import Answer, Callee, Layout, Library, RefusedError
from pyattn.testing.cases import GROUPS, Case
from pyattn.testing.causes import find_cause
from pyattn.testing.judging import NO_ARGUMENT, Align, Mark, Rules, judge
from pyattn.testing.report import CheckResult, Failure, GroupResult

__all__ = ["check"]

Array = npt.NDArray[Any]


def check(
    my_attention: Callable[..., Any],
    *,
    scale: float | None = None,
    align: Align | None = None,
    layout: Layout | None = None,
    arrays: Library | None = None,
    strict: bool = False,
) -> CheckResult:
    r"""Mark an attention function of your own: run it on some 200 cases, from easy to hard, and say what is wrong.

    The cases: plain ones; one query, one key; lengths and dims that differ; batches and heads, also heads that share
    keys; scale, causal, bool and float masks and key lengths where the function has an argument for them; scores so
    large that exp overflows, rows of 4,096 keys, denormals, float64, views. Each number is held to the bound of
    `assert_attention_close`, times 16. Where a result is wrong, the formula is computed with each of some 80 known
    mistakes in it: one that reproduces what came back is the likely cause.

    A function of query, key and value alone is all that is needed. Arguments are found by their names, those of
    `pyattn.attention` and what NumPy users, PyTorch and JAX call them. What it has no argument for is not held against
    it, and neither are exceptions for arrays that it may refuse: several axes, shared heads, some kinds of masks.

    Parameters
    ----------
    my_attention : callable
        Takes query, key and value, (L, head_dim), (S, head_dim) and (S, v_dim), perhaps with batch and heads in front,
        and returns the output, or a tuple with the output first.
    scale : float, optional
        What it multiplies scores with unless told. Default: ``1 / sqrt(head_dim)``; articles that leave this out of
        their first example mean 1.
    align : {'upper_left', 'lower_right'}, optional
        The corner that its causal mask starts from when L differs from S. Default: None, either.
    layout : {'bhsd', 'bshd'}, optional
        Of arrays with four axes; 'bshd' is (batch, length, heads, dim), and arrays with fewer are not tried. Default:
        None, 'bshd' for JAX's own functions and 'bhsd' for all others.
    arrays : {'numpy', 'torch', 'jax'}, optional
        Whose arrays it takes. Default: None, those of the library that it is from; a function of the user's gets
        NumPy's unless it raises exceptions for them, and then those of a library that has been imported.
    strict : bool
        What is only remarked on otherwise counts: a row with nothing to attend to is 0, what is masked is not touched
        even if it is NaN, float32 inputs give float32, and errors are within the bound itself. Default: False.

    Returns
    -------
    CheckResult
        Prints as a table. ``assert result.passed, result`` is a test.

    Raises
    ------
    TypeError
        my_attention is no function of query, key and value, or a module with weights, which `pyattn.compare` takes.
    ValueError
        align, layout or arrays is none of the above.

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
    your function takes exp(score) as it is, which overflows or underflows:
    subtract each row's maximum, scores.max(axis=-1, keepdims=True), first
    """
    for name, choice, choices in (
        ("align", align, ("upper_left", "lower_right")),
        ("layout", layout, ("bhsd", "bshd")),
        ("arrays", arrays, ("numpy", "torch", "jax")),
    ):
        if choice not in (None, *choices):
            raise ValueError(f"{name} is {choice!r}, expected {', '.join(map(repr, choices))} or None")
    _refuse_modules(my_attention)
    rules = Rules(None if scale is None else float(scale), align, strict)
    with np.errstate(all="ignore"):
        return _check(Callee(my_attention, rules.scale, layout, arrays), rules)


def _refuse_modules(my_attention: Any) -> None:
    """Weights of its own make it another function than attention."""
    kind = None if isinstance(my_attention, type) else kind_of(my_attention)
    if kind in MODULES:
        given = f"my_attention is a {kind.name} with weights of its own, expected a function of query, key and value"
        ours = " (pyattn.interop.torch.from_torch makes ours)" if is_of_torch(my_attention) else ""
        raise TypeError(f"{given}; for modules there is pyattn.compare(ours, theirs, query, key, value){ours}")


def _check(callee: Callee, rules: Rules) -> CheckResult:
    marks = [judge(callee, group, case, rules) for group in GROUPS for case in group.cases()]
    for name in ("attn_mask", "key_lengths", "enable_gqa"):
        using = [n for n, mark in enumerate(marks) if mark.case.arguments.get(name) is not None]
        if callee.takes(name) and all(marks[n].status == "not taken" for n in using):  # its every use raises
            for n in using:
                marks[n] = marks[n]._replace(status="failed") if marks[n].raised else marks[n]
    failures = [mark for mark in marks if mark.status == "failed"]
    groups = tuple(_count([mark for mark in marks if mark.group is group]) for group in GROUPS)
    cause = _find_cause(callee, failures, rules) if failures else None
    first_failure = _describe(callee, failures[0], cause) if failures else None
    return CheckResult(callee.name, groups, first_failure, cause, tuple(_remarks(marks)))


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
    what = f"{mark.what}\nno mistake that is known here gives this" if unknown else mark.what
    return Failure(mark.group.name, callee.describe(case), "; ".join(shapes), what)


def _find_cause(callee: Callee, failures: Sequence[Mark], rules: Rules) -> str | None:
    first = failures[0]
    if first.answer is None:  # the exception says it
        return None
    if first.answer.changed and first.group.name == "inputs unchanged":
        name = first.answer.changed[0]
        return f"{name} is changed in place, and the caller's array with it: write x = x * y, not x *= y"
    if _differs(callee, first.case, first.answer):
        return "two equal calls give different results: dropout that is still on, or numpy.empty that is not filled"
    if _differs(callee, first.case._replace(storage="contiguous"), first.answer):
        return "memory is read without regard to strides: what is not contiguous has to be copied first"
    alike = [mark for mark in failures if mark.group is first.group]  # others may have other causes
    answers = [(mark.case, mark.answer.output) for mark in alike if mark.answer is not None]
    return find_cause(answers, rules.scale)


def _differs(callee: Callee, case: Case, answer: Answer) -> bool:
    """Tell whether a call gives another result, by more than rounding; a dropout may drop nothing at times."""
    try:
        again = [callee.call(case).output for _ in range(8)]
    except RefusedError:
        return True
    return not all(np.allclose(output, answer.output, rtol=1e-3, equal_nan=True) for output in again)


def _remarks(marks: Sequence[Mark]) -> list[str]:
    """Say what is good to know, each thing once, in the order of the cases."""
    passed = [mark for mark in marks if mark.status == "passed"]
    notes = dict.fromkeys(mark.note for mark in passed if mark.note)
    worst = max(passed, key=lambda mark: mark.slack, default=None)
    if worst is not None and worst.slack > 1.5 and all(mark.status != "failed" for mark in marks):
        notes[f"errors are up to {worst.slack:.2g} times what careful code stays below, in {worst.group.name}"] = None
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
        notes[f"not taken: there is no argument for {', '.join(missing)}"] = None
    return [*notes, *(f"not taken, {', '.join(groups)}: {what}" for what, groups in refused.items())]

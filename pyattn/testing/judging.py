"""One case of `check`: what is asked, whether the answer passes, and what is accepted where libraries differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.testing.bounds as _bounds
from pyattn.testing.callee import Answer, Callee, RefusedError
from pyattn.testing.cases import Case, Group
from pyattn.testing.causes import LENIENCY, reads_floats_as_flags
from pyattn.testing.closeness import WIDENED, describe_worst

__all__ = ["Align", "Mark", "Rules", "judge"]

Array = npt.NDArray[Any]
Align = Literal["upper_left", "lower_right"]

CORNERS = {
    "upper_left": "the first query stands beside the first key (upper left), as in PyTorch and JAX",
    "lower_right": "the last query stands beside the last key (lower right), as in FlashAttention",
}
NO_ARGUMENT = "no argument for "
FLAGS = "a mask of floats is read as flags, where others add it to the scores"
TUPLE = "it returned a tuple, of which the first item was marked"


class Rules(NamedTuple):
    """What `check` was told: see there."""

    scale: float | None
    align: Align | None
    strict: bool


class Mark(NamedTuple):
    """What became of a case.

    what: the failure, or why it was not taken. raised: by an exception. note: what is good to know. slack: the worst
    error ratio over its bar.
    """

    group: Group
    status: Literal["passed", "failed", "not taken"]
    case: Case
    what: str = ""
    raised: bool = False
    note: str = ""
    answer: Answer | None = None
    slack: float = 0.0


def judge(callee: Callee, group: Group, case: Case, rules: Rules) -> Mark:
    """Call the function with a case, and compare.

    Parameters
    ----------
    callee : Callee
        The function.
    group : Group
        That the case is of.
    case : Case
        What to ask.
    rules : Rules
        What was agreed.

    Returns
    -------
    Mark
    """
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
    if given != expected:
        return mark._replace(status="failed", what=f"the result has shape {given}, expected {expected}")
    if answer.changed and group.name == "inputs unchanged":
        return mark._replace(status="failed", what=f"it wrote to {answer.changed[0]}")
    if case.query.dtype == np.float64 != answer.output.dtype and not rules.strict:
        return mark._replace(status="not taken", what=f"float64 inputs give {answer.output.dtype}")
    return _judge_dtype(_CONVENTIONS.get(group.convention, _judge_numbers)(mark, answer.output, rules), answer, rules)


def _judge_dtype(mark: Mark, answer: Answer, rules: Rules) -> Mark:
    given, result = mark.case.query.dtype, answer.output.dtype
    if given == result or mark.status == "failed":
        return mark
    what = f"{given} inputs give {result}"
    if rules.strict:
        return mark._replace(status="failed", what=what)
    return mark._replace(note=f"{what}: {WIDENED}")


def _expect(case: Case, rules: Rules, **more: Any) -> _bounds.Expected:
    arguments = {"scale": rules.scale, **case.arguments, **more}
    return _bounds.expect(case.query, case.key, case.value, case.query.dtype, **arguments)


def _compare(mark: Mark, output: Array, expected: _bounds.Expected, rules: Rules, ignore: Any = False) -> Mark:
    """Fail what is outside the bound, and unless all is strict LENIENCY times the bound."""
    ratios = np.where(ignore, 0, _bounds.output_ratios(output, expected))
    bars = _bounds.output_bars(expected)
    allowed = bars * (1 if rules.strict else LENIENCY)
    slack = float((ratios / bars).max(initial=0))
    if (ratios <= allowed).all():
        return mark._replace(slack=slack)
    return mark._replace(status="failed", what=describe_worst("result", output, expected, ratios, allowed))


def _judge_numbers(mark: Mark, output: Array, rules: Rules) -> Mark:
    judged = _compare(mark, output, _expect(mark.case, rules), rules)
    biased = judged.status == "failed" and mark.group.needs == ("attn_bias",)
    if biased and reads_floats_as_flags(mark.case, output, rules.scale):
        return mark._replace(status="not taken", what=FLAGS)
    return judged


def _judge_corner(mark: Mark, output: Array, rules: Rules) -> Mark:
    """Accept either corner, unless one is asked for; rows that see nothing are another group's."""
    judged = mark
    for align in [rules.align] if rules.align else CORNERS:
        expected = _expect(mark.case, rules, align=align)
        judged = _compare(mark, output, expected, rules, ignore=_empty_rows(mark.case, expected))
        if judged.status == "passed":
            return judged._replace(note="" if rules.align else f"causal, lengths differ: {CORNERS[align]}")
    return judged


def _judge_empty_rows(mark: Mark, output: Array, rules: Rules) -> Mark:
    """Accept 0, NaN and averages in rows that see nothing."""
    case, expected = mark.case, _expect(mark.case, rules)
    if rules.strict:
        return _compare(mark, output, expected, rules)
    empty = _empty_rows(case, expected)
    judged = _compare(mark, output, expected, rules, ignore=empty)
    if judged.status == "failed":
        return judged
    unmasked = case._replace(arguments={**case.arguments, "attn_mask": None})
    for what, other in (
        ("", expected),
        ("is NaN", _expect(case, rules, empty_rows="nan")),
        ("is the mean of all values, as in JAX", _expect(unmasked, rules, scale=0.0)),
        ("is what it would be without the mask", _expect(unmasked, rules)),
    ):
        if _compare(mark, output, other, rules, ignore=~empty).status == "passed":
            note = f"a row with nothing to attend to {what}; it is 0 in PyTorch, FlashAttention and pyattn"
            return judged._replace(note=note if what else "")
    return _compare(mark, output, expected, rules)


def _judge_masked_nan(mark: Mark, output: Array, rules: Rules) -> Mark:
    """Accept NaN in the place of right numbers."""
    ignore = np.isnan(output) & (not rules.strict)
    judged = _compare(mark, output, _expect(mark.case, rules), rules, ignore=ignore)
    note = "a NaN that is masked reaches the output, as in PyTorch; pyattn never touches what is masked"
    return judged._replace(note=note) if ignore.any() else judged


def _empty_rows(case: Case, expected: _bounds.Expected) -> Array:
    """Tell which rows of the output see nothing; broadcasts over v_dim."""
    rows = (expected.lse == -np.inf)[..., np.newaxis]
    return np.asarray(rows.swapaxes(-3, -2) if case.arguments.get("layout") == "bshd" else rows)


_CONVENTIONS: dict[str, Callable[[Mark, Array, Rules], Mark]] = {
    "corner": _judge_corner,
    "empty": _judge_empty_rows,
    "nan": _judge_masked_nan,
}

"""Why an attention is wrong: each mistake that `pyattn.compare` knows, held against what came back.

What reproduces the numbers that came back explains them. A mistake that makes no difference to a case, or is impossible
with its shapes, is passed over. New ones belong into comparing/mistakes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn.testing._comparing.mistakes.in_results as in_results
from pyattn.testing._comparing.formula import Formula, compute
from pyattn.testing._comparing.kinds import FUNCTION
from pyattn.testing._comparing.mistakes import Mistake, in_empty_rows, is_systematic, mistakes_in
from pyattn.testing._comparing.rounding import PRECISIONS, Precision, bound, precision_of
from pyattn.testing._comparing.searching import agree, is_near
from pyattn.testing.cases import Case

__all__ = ["LENIENCY", "find_cause", "reads_floats_as_flags"]

Array = npt.NDArray[Any]

LENIENCY = 16.0
"""How many times further from a formula than the bars allow a function may be that computes it without great care."""

MOST_FAILURES = 30  # looked at
SUMS = "nothing but rounding, and more than need be: long sums lose digits when numbers are added one by one"


def find_cause(failures: Sequence[tuple[Case, Array]], scale: float | None = None) -> str | None:
    """Name the mistake that reproduces the first result and most of the others.

    Parameters
    ----------
    failures : sequence of (Case, ndarray)
        With wrong results.
    scale : float, optional
        Of cases that say nothing about it. Default: None, ``1 / sqrt(head_dim)``.

    Returns
    -------
    str or None
        A cause and its fix; None where no known mistake explains the first.
    """
    results = [_Result(case, output, scale) for case, output in failures[:MOST_FAILURES]]
    first, *others = results
    with np.errstate(all="ignore"):
        sentences = first.explanations()
        counts = dict.fromkeys(sentences, 1)
        for result in others if len(counts) > 1 else ():
            for name in result.explanations(only=counts):
                counts[name] += 1
        best = max(counts, key=lambda name: counts[name], default=None)  # the first of those that are level
        return sentences[best] if best is not None else _rounding(results)


def _rounding(results: Sequence[_Result]) -> str | None:
    """Name a dtype whose rounding the first may have, unless errors have a pattern, which takes some to see."""
    sentence = results[0].rounding()
    alike = [result for result in results if result.output.shape == result.right.shape]
    errors = [(result.output - result.right).ravel() for result in alike]
    if sentence is None or sentence == SUMS:
        return sentence
    systematic = is_systematic(np.concatenate(errors), np.concatenate([result.right.ravel() for result in alike]))
    return None if systematic else sentence


def reads_floats_as_flags(case: Case, output: Array, scale: float | None) -> bool:
    """Tell whether a float mask was read as a bool one, whatever numbers it holds.

    Parameters
    ----------
    case : Case
        With such a mask.
    output : ndarray
        What came back.
    scale : float or None
        Of cases that say nothing about it.

    Returns
    -------
    bool
    """
    mask = case.arguments["attn_mask"]
    result = _Result(case, output, scale)
    with np.errstate(all="ignore"):
        flags = (result.formula.but(attn_mask=flags) for flags in (mask != 0, mask > 0, mask == 0))
        return any(result.is_of(other) for one in flags for other in (one, *_in_its_empty_rows(one)))


def _in_its_empty_rows(formula: Formula) -> Iterator[Formula]:
    return (mistake.formula for mistake in in_empty_rows(formula))


class _Result:
    """A case as data, and what came back."""

    def __init__(self, case: Case, output: Array, scale: float | None) -> None:
        given = case.arguments.get("scale")
        arguments = {**case.arguments, "scale": scale if given is None else given}
        self.formula = FUNCTION.read(None, [case.query, case.key, case.value], arguments, {})
        self.output = output.astype(np.float64)
        self.right = compute(self.formula).stages["output"]
        precision = precision_of(case.query.dtype.newbyteorder("="))
        assert precision is not None, "float32 or float64"
        self.precision: Precision = precision

    def explanations(self, only: Collection[str] = ()) -> dict[str, str]:
        """Give names and sentences of the mistakes that reproduce the output, or of those among some."""
        found: dict[str, str] = {}
        for mistake in self._mistakes():
            if mistake.name not in found and (not only or mistake.name in only) and self.is_of(mistake.formula):
                found[mistake.name] = f"your function {mistake.what}: {mistake.fix}"
        return found

    def is_of(self, formula: Formula) -> bool:
        """Whether a formula gives the output, but not the right one."""
        try:
            computed = compute(formula)
            expected = computed.stages["output"]
            if not is_near(self.output, expected):
                return False
            allowed = LENIENCY / 4 * bound(formula, computed, self.precision)["output"]
            return agree(self.output, expected, allowed) and not agree(self.right, expected, allowed)
        except (IndexError, ValueError):  # impossible with these shapes
            return False

    def rounding(self) -> str | None:
        """Judge the output by more rounding than there should be."""
        computed = compute(self.formula)
        if self._rounds(computed, self.precision, LENIENCY):
            return SUMS
        for name in ("float32", "float16"):
            rough = PRECISIONS[name]
            if rough.bits < self.precision.bits and self._rounds(computed, rough, LENIENCY / 4):
                return f"its errors are of the size of {name}'s: something may be computed in that"
        return None

    def _rounds(self, computed: Any, precision: Precision, times: float) -> bool:
        allowed = times * bound(self.formula, computed, precision)["output"]
        if allowed.max(initial=0) > 0.1 * np.abs(self.formula.value).max(initial=0):  # it would explain anything
            return False
        return agree(self.output, self.right, allowed)

    def _mistakes(self) -> Iterator[Mistake]:
        """Yield those of empty rows first: beside averages and NaN, most others make no difference."""
        formula = self.formula
        empty = not compute(formula).visible.any(axis=-1).all()
        yield from in_empty_rows(formula) if empty else ()
        for mistake in (*mistakes_in(formula), *in_results(formula, {"output": self.output})):
            yield mistake
            yield from (mistake._replace(formula=other) for other in _in_its_empty_rows(mistake.formula))

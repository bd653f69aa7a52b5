"""Find why numbers are wrong: a known mistake that gives the same numbers, or a pattern in the numbers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from pyattn.testing.bounds import PRECISIONS, Precision, agree, norm, precision_of, stage_bounds
from pyattn.testing.cases import Case
from pyattn.testing.formula import STAGES, Array, Computed, Formula, compute
from pyattn.testing.mistakes import Mistake, conventions_for_empty_rows, mistakes_in
from pyattn.testing.sides import FUNCTION

__all__ = [
    "LENIENCY",
    "SLACK",
    "Evidence",
    "Explanation",
    "Reason",
    "evidence_of",
    "explain",
    "explain_together",
    "formula_of",
    "most_frequent",
    "random_results",
    "reads_floats_as_flags",
]

Chain: TypeAlias = tuple[Mistake, ...]
Reason: TypeAlias = tuple[str, str, str]
"""Name, sentence and fix of a mistake that explains a case."""
EvidenceT = TypeVar("EvidenceT")

LENIENCY = 16.0
"""Factor on the bars in `check`: allows for functions that are not written with great care about rounding."""
SLACK = 4.0
"""Factor on `stage_bounds` within which a mistake must reproduce the numbers."""
SUMS = "rounding errors only, but larger than necessary: long sums lose digits when numbers are added one by one"
MAX_PAIRED = 4096  # scores
MAX_DECIMALS = 8
MIN_ERRORS = 20  # needed to recognise a pattern


class Evidence:
    """A side's numbers for some stages, in the order of stages, compared with those of a formula."""

    def __init__(
        self,
        formula: Formula,
        rows: Mapping[str, Array],
        precision: Precision,
        slack: float = 1.0,
        reached: int | None = None,
    ) -> None:
        self.formula, self.rows, self.precision = formula, rows, precision
        self.right = compute(formula)
        allowed = stage_bounds(formula, self.right, precision)
        self.agrees = {name: agree(x, self.right.stages[name], slack * allowed[name]) for name, x in rows.items()}
        first = next((n for n, agrees in enumerate(self.agrees.values()) if not agrees), len(rows))
        self.reached = first if reached is None else reached
        """The number of stages that agree before the first one that differs."""

    @property
    def explained(self) -> bool:
        """Whether every stage agrees."""
        return self.reached == len(self.rows)

    @property
    def is_small(self) -> bool:
        """Whether inputs are small enough to try pairs of mistakes, which computes some 4,000 attentions."""
        return self.right.weights is not None and self.right.weights.size <= MAX_PAIRED

    def best(self, mistakes: Iterable[Mistake], only: Container[str] | None = None) -> list[Chain]:
        """Return the mistakes that explain the most stages, alone or combined with a convention for empty rows."""
        return self.best_chains((one,) for one in mistakes if only is None or one.name in only)

    def best_chains(self, chains: Iterable[Chain]) -> list[Chain]:
        """Return the chains of mistakes that explain the most stages."""
        most, found = self.reached, list[Chain]()
        for chain in itertools.chain([()], chains):
            with suppress(IndexError, ValueError):  # impossible with these shapes
                for made, reach in self._tried(chain):
                    if reach > most:
                        most, found = reach, []
                    if reach == most > self.reached:
                        found.append(made)
        return found

    def reach(self, formula: Formula, computed: Computed | None = None) -> int:
        """Count the stages, from the first one on, whose numbers a formula reproduces."""
        computed, allowed = computed or compute(formula), None
        for count, (name, actual) in enumerate(self.rows.items()):
            expected = computed.stages[name]
            if not _is_near(actual, expected):
                return count
            if allowed is None:
                allowed = stage_bounds(formula, computed, self.precision)
            if not agree(actual, expected, SLACK * allowed[name]):
                return count
            if not self.agrees[name] and not self._halves_the_error(name, actual, expected):
                return count
        return len(self.rows)

    def _tried(self, chain: Chain) -> Iterator[tuple[Chain, int]]:
        formula, computed = self.formula, self.right
        if chain:
            formula = chain[-1].formula
            computed = compute(formula)
            yield chain, self.reach(formula, computed)
        if computed.visible is not None and not computed.visible.any(axis=-1).all():
            for convention in conventions_for_empty_rows(formula):
                yield (*chain, convention), self.reach(convention.formula)

    def _halves_the_error(self, name: str, actual: Array, expected: Array) -> bool:
        """Whether a mistake halves the error at least: to be within a wide bound is not an explanation."""
        right = self.right.stages[name]
        if right.shape != actual.shape or not np.array_equal(np.isfinite(actual), np.isfinite(right)):
            return True
        return 2 * norm(actual - expected) <= norm(actual - right)


# `compare`: stage after stage


class Explanation(NamedTuple):
    """Why a side is wrong."""

    mistakes: tuple[tuple[str, Mistake], ...] = ()
    """Mistakes that together explain the numbers, each with its stage, in the order of stages; may be empty."""
    others: tuple[str, ...] = ()
    """Names of other mistakes that give the same numbers as the first one."""
    complete: bool = False
    """Whether they explain every stage."""


@np.errstate(all="ignore")  # a mistake may overflow, as the side did
def explain(
    formula: Formula, rows: Mapping[str, Array], precision: Precision, *, computed: bool = False
) -> Explanation:
    """Find the mistake, or a sequence of mistakes, that gives these numbers."""
    found, others = list[tuple[str, Mistake]](), tuple[str, ...]()
    evidence = Evidence(formula, rows, precision)
    while not evidence.explained:
        best = evidence.best(mistakes_in(formula))
        # Numbers computed from a module's options are not searched for pairs of mistakes or rounding.
        if not best and not computed:
            best = evidence.best(_fitted_scale(evidence))
            if not best and not found and evidence.is_small:
                best = evidence.best_chains(_pairs(formula))
        if not best:
            rough = None if computed else _rounding([evidence])
            stage = list(rows)[evidence.reached]
            found += [(stage, rough)] if rough else []
            return Explanation(tuple(found), others, complete=rough is not None)
        others = others if found else _names_besides_first(best)
        for mistake in best[0]:
            found.append((_stage_of(formula, mistake.formula), mistake))
            formula = mistake.formula
        evidence = Evidence(formula, rows, precision, SLACK, evidence.reach(formula))
    return Explanation(tuple(found), others, complete=True)


def _pairs(formula: Formula) -> Iterator[Chain]:
    for one in mistakes_in(formula):
        with suppress(IndexError, ValueError):  # impossible with these shapes
            yield from ((one, other) for other in mistakes_in(one.formula) if _differ(one, other))


def _differ(one: Mistake, other: Mistake) -> bool:
    return one.name != other.name or (one.name == "argument ignored" and one.what != other.what)


def _names_besides_first(best: list[Chain]) -> tuple[str, ...]:
    first = {one.name for one in best[0]}
    different = (chain for chain in best if not first & {one.name for one in chain})
    return tuple(dict.fromkeys(" with ".join(one.name for one in chain) for chain in different))


def _stage_of(right: Formula, wrong: Formula) -> str:
    """Find the first stage that a mistake changes."""
    before, after = compute(right).stages, compute(wrong).stages

    def same(name: str) -> bool:
        one, other = before[name], after.get(name, np.empty(0))
        return one.shape == other.shape and np.allclose(one, other, rtol=1e-9, atol=1e-12, equal_nan=True)

    return next((name for name in STAGES if name in before and not same(name)), "output")


def random_results(formula: Formula, dropout: str | None) -> Mistake:
    """Describe a side whose calls give different numbers; dropout tells how it was enabled, None if it was not."""
    if dropout is None:
        what, fix = (
            "gives other numbers when it is called again, as dropout does",
            "call eval(), and pass training=self.training to torch.nn.functional.dropout; or fix the seed",
        )
        return Mistake("random", what, fix, formula)
    return Mistake("dropout", f"drops weights, {dropout}", "call eval() first, or pass dropout_p=0.0", formula)


# `check`: one stage of many cases


def formula_of(case: Case, scale: float | None = None) -> tuple[Formula, Precision]:
    """Return the formula of a case, and the precision of its arrays; scale is the default for cases without one."""
    given = case.arguments.get("scale")
    arguments = {**case.arguments, "scale": scale if given is None else given}
    formula = FUNCTION.read(None, [case.query, case.key, case.value], arguments, {})
    precision = precision_of(case.query.dtype.newbyteorder("="))
    assert precision is not None, "float32 or float64"
    return formula, precision


def evidence_of(case: Case, output: Array, scale: float | None = None) -> Evidence:
    """Compare an output with the formula of its case."""
    formula, precision = formula_of(case, scale)
    return Evidence(formula, {"output": output.astype(np.float64)}, precision)


@np.errstate(all="ignore")
def reads_floats_as_flags(case: Case, output: Array, scale: float | None) -> bool:
    """Tell whether a float mask was read as a bool mask."""
    evidence, mask = evidence_of(case, output, scale), case.arguments["attn_mask"]
    made = (replace(evidence.formula, attn_mask=flags) for flags in (mask != 0, mask > 0, mask == 0))
    return bool(evidence.best(Mistake("mask misread", "", "", one) for one in made))


@np.errstate(all="ignore")
def explain_together(cases: Sequence[Evidence]) -> str | None:
    """Describe the mistake that explains the first case and most of the others, with its fix; None if unknown."""
    cause = most_frequent(cases, _reasons)
    if cause is not None:
        return f"your function {cause}"
    if _is_rounding(cases[0]):
        return SUMS
    rough = _rounding(cases)
    return None if rough is None else f"your function {rough.what}: {rough.fix}"


def most_frequent(
    cases: Sequence[EvidenceT], reasons_of: Callable[[EvidenceT, Container[str] | None], Iterable[Reason]]
) -> str | None:
    """Describe the reason for the first case that holds for most of the others, with its fix; None if unknown."""
    # reasons_of takes a case and the names of mistakes to try, None for all. Reasons that differ in numbers are one.
    first, *others = cases
    found = _by_sentence(reasons_of(first, None))
    counts = dict.fromkeys(found, 1)
    for case in others if len(counts) > 1 else ():
        for key in _by_sentence(reasons_of(case, {name for name, _ in counts})).keys() & counts.keys():
            counts[key] += 1
    return found[max(counts, key=lambda key: counts[key])] if counts else None  # the first of those with equal counts


def _by_sentence(reasons: Iterable[Reason]) -> dict[tuple[str, str], str]:
    """Return descriptions of reasons, by name and by the sentence without numbers."""
    found: dict[tuple[str, str], str] = {}
    for name, what, fix in reasons:
        found.setdefault((name, re.sub(r"\d[\d.e+-]*", "", what)), f"{what}: {fix}")
    return found


def _reasons(case: Evidence, only: Container[str] | None) -> list[Reason]:
    """Return the reasons for a case, of the mistakes with these names if given."""
    best = case.best(mistakes_in(case.formula), only) or case.best(_fitted_scale(case), only)
    return [(mistake.name, mistake.what, mistake.fix) for mistake, *_ in best]


def _is_rounding(case: Evidence) -> bool:
    """Whether the errors are within LENIENCY times the bounds of the same precision."""
    right, actual = case.right.stages["output"], case.rows["output"]
    allowed = LENIENCY * stage_bounds(case.formula, case.right, case.precision)["output"]
    return _is_near(actual, right) and agree(actual, right, allowed)


# Causes that the numbers themselves show


def _fitted_scale(evidence: Evidence) -> Iterator[Mistake]:
    """Yield the scale that fits best: a few steps of Newton's method from the correct scale."""
    f, output = evidence.formula, evidence.rows.get("output")
    if f.is_linear or output is None or output.shape != evidence.right.stages["output"].shape:
        return
    scale = f.factor
    for _ in range(4):
        step = 1e-6 * scale
        here, there = (compute(replace(f, scale=x)).stages["output"] for x in (scale, scale + step))
        slope = (there - here) / step
        scale += float(np.sum(slope * (output - here)) / np.square(slope).sum())
    if np.isfinite(scale):
        none = abs(scale) < 1e-4 * abs(f.factor)
        what = "gives all keys the same weight" if none else f"scales the scores by {scale:.6g}"
        yield Mistake("wrong scale", what, f"multiply the scores by {f.factor:.6g}", replace(f, scale=scale))


def _rounding(cases: Sequence[Evidence]) -> Mistake | None:
    """Describe rounding to decimals, or a coarser dtype with errors as large and as random as those of the case."""
    first = cases[0]
    off = [name for name, agrees in first.agrees.items() if not agrees]
    if not off:
        return None
    decimals = {name: _decimals(first.rows[name], first.right.stages[name]) for name in off}
    if None not in decimals.values():
        what = " and ".join(f"{name} to {n} decimals" for name, n in decimals.items())
        return Mistake("rounded", f"rounds {what}", "keep all digits", first.formula)
    for precision in sorted(PRECISIONS.values(), key=lambda one: -one.bits):
        if precision.bits < first.precision.bits and _rounds_like(first, precision):
            break
    else:
        return None
    errors, rights = list[Array](), list[Array]()
    for case in cases:
        for name, actual in case.rows.items():
            right = case.right.stages[name]
            if not case.agrees[name] and actual.shape == right.shape:
                errors.append((actual - right).ravel())
                rights.append(right.ravel())
    if _is_systematic(np.concatenate(errors), np.concatenate(rights)):
        return None
    what = f"has errors of the size of {precision.name}'s, without a pattern: it may compute with that somewhere"
    return Mistake("less precision", what, "use one dtype throughout, or compare in that one", first.formula)


def _decimals(x: Array, right: Array) -> int | None:
    """Return the number of decimals that all numbers are correctly rounded to, or None."""
    for n in range(MAX_DECIMALS if x.shape == right.shape else 0):
        if (np.abs(x - x.round(n)) <= 2.0**-22 * np.abs(x)).all():
            return n if (np.abs(x - right) <= 0.501 * 10.0**-n).all() else None
    return None


def _rounds_like(case: Evidence, precision: Precision) -> bool:
    """Whether errors are about as large as those of the formula with every stage rounded to a precision."""
    rough = compute(replace(case.formula, round_stage=partial(_round_bits, bits=precision.bits))).stages
    allowed = stage_bounds(case.formula, case.right, precision)
    for name, actual in case.rows.items():
        right = case.right.stages[name]
        if not case.agrees[name]:
            if not _is_near(actual, right) or not agree(actual, right, allowed[name]):
                return False
            error, made = norm(actual - right), norm(rough[name] - right)
            if not made / 6 <= error <= 6 * made:
                return False
    return True


def _round_bits(x: Array, stage: str, *, bits: int) -> Array:
    significand, exponent = np.frexp(x)
    return np.ldexp(np.round(significand * 2.0**bits) / 2.0**bits, exponent)


def _is_systematic(error: Array, right: Array) -> bool:
    """Whether errors show a pattern, unlike rounding errors: most have one sign, or they follow the numbers."""
    finite = np.isfinite(error) & np.isfinite(right)
    error, right = error[finite], right[finite]
    signs = np.sign(error)[error != 0]
    if signs.size < MIN_ERRORS:
        return False
    alike = np.sum(error * right) / np.sqrt(np.square(error).sum() * np.square(right).sum())
    return bool(max(abs(signs.mean()), abs(alike)) > 0.8)


# Distances


def _is_near(actual: Array, expected: Array) -> bool:
    """Whether bounds are worth computing: equal shapes, NaN in the same places, and errors below a tenth."""
    if actual.shape != expected.shape or not np.array_equal(np.isfinite(actual), np.isfinite(expected)):
        return False
    return _largest(actual - expected) <= 0.1 * _largest(expected)


def _largest(x: Array) -> float:
    return float(np.abs(x[np.isfinite(x)]).max(initial=0))

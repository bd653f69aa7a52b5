"""Which mistake gives a side's numbers: each is computed in float64 and held against them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import numpy as np

import pyattn.testing._comparing.mistakes.in_precision as in_precision
import pyattn.testing._comparing.mistakes.in_results as in_results
from pyattn.testing._comparing.formula import Array, Computed, Formula, compute
from pyattn.testing._comparing.mistakes import Mistake, in_empty_rows, is_systematic, mistakes_in
from pyattn.testing._comparing.rounding import Precision, bound

__all__ = ["Explanation", "agree", "explain", "is_near", "ratio"]

Mistakes: TypeAlias = tuple[Mistake, ...]
Stages: TypeAlias = Mapping[str, Array]

MOST_PAIRED = 4096
"""Scores in an attention that is small enough to try mistakes by twos: some thousand attentions."""


class Explanation(NamedTuple):
    """What is wrong with a side.

    Attributes
    ----------
    mistakes : tuple of Mistake
        Made together, in the order of stages; none where none is known.
    others : tuple of str
        Names of mistakes that give the same numbers as the first.
    complete : bool
        Whether they explain every stage.
    """

    mistakes: Mistakes = ()
    others: tuple[str, ...] = ()
    complete: bool = False


def ratio(actual: Array, expected: Array, allowed: Array) -> Array:
    """Give errors over what is allowed: at most 1 where rounding explains them.

    Parameters
    ----------
    actual, expected : ndarray
        Of one shape.
    allowed : ndarray
        What each number may be off by.

    Returns
    -------
    ndarray
        inf where NaN or an infinity is on one side alone.
    """
    with np.errstate(all="ignore"):
        found = np.abs(actual - expected) / allowed
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    return np.where(same, 0.0, np.nan_to_num(found, nan=np.inf, posinf=np.inf))


@np.errstate(all="ignore")  # a mistake may overflow, as the side did
def explain(formula: Formula, rows: Stages, precision: Precision, fallback: Iterable[Mistake] = ()) -> Explanation:
    """Find the mistake that gives these numbers, or several that do, one after another.

    Parameters
    ----------
    formula : Formula
        The right one.
    rows : mapping of str to ndarray
        What a side gives for some stages, in their order.
    precision : Precision
        Of its arithmetic.
    fallback : iterable of Mistake
        To be tried where no other explains anything. Default: none.

    Returns
    -------
    Explanation
    """
    found: Mistakes = ()
    others: tuple[str, ...] = ()
    search = _Search(formula, rows, precision)
    while search.reached < len(rows):
        best = search.best(_single(formula, mistakes_in(formula)))
        best = best or search.best(_single(formula, fallback))
        best = best or search.best(_single(formula, (*in_results(formula, rows), *in_precision(formula))))
        if not best and not found and search.is_small:
            best = search.best(_double(formula))
        if not best:
            break
        if not found:
            others = _other_names(best)
        found, formula = found + best[0], best[0][-1].formula
        search = _Search(formula, rows, precision, search.reach(best[0][-1]))
    return Explanation(found, others, search.reached == len(rows))


def _single(formula: Formula, mistakes: Iterable[Mistake]) -> Iterator[Mistakes]:
    """None, for what a library may do on purpose in empty rows; then each."""
    yield ()
    for mistake in mistakes:
        yield (mistake,)


def _double(formula: Formula) -> Iterator[Mistakes]:
    for one in mistakes_in(formula):
        with suppress(IndexError, ValueError):  # shapes of the one with which nothing else goes
            yield from ((one, other) for other in mistakes_in(one.formula) if other.name != one.name)


def _other_names(best: list[Mistakes]) -> tuple[str, ...]:
    """Of those that are not the first with something else, or in another order."""
    first = {one.name for one in best[0]}
    different = (mistakes for mistakes in best if not first & {one.name for one in mistakes})
    return tuple(dict.fromkeys(" with ".join(one.name for one in mistakes) for mistakes in different))


class _Search:
    """A side's numbers, and how many stages, from the first, a formula gives the numbers of."""

    def __init__(self, formula: Formula, rows: Stages, precision: Precision, reached: int | None = None) -> None:
        self.formula, self.rows, self.precision = formula, rows, precision
        self.right = compute(formula)
        allowed = bound(formula, self.right, precision)
        self.agrees = {name: agree(x, self.right.stages[name], allowed[name]) for name, x in rows.items()}
        agreeing = next((n for n, agrees in enumerate(self.agrees.values()) if not agrees), len(rows))
        self.reached = agreeing if reached is None else reached
        first = [*rows, ""][self.reached]
        self.early = first if first in ("query", "key", "value", "scores") else None  # most fail there already

    @property
    def is_small(self) -> bool:
        """Whether there is time for pairs."""
        return self.right.weights is not None and self.right.weights.size <= MOST_PAIRED

    def best(self, candidates: Iterable[Mistakes]) -> list[Mistakes]:
        """Give those that reach further than the right formula, and furthest, in order."""
        most = self.reached
        found: list[Mistakes] = []
        for candidate in candidates:
            reaches: list[tuple[Mistakes, int]] = []
            with suppress(IndexError, ValueError):  # shapes that do not go together: this is not what was done
                reaches = list(self._reaches(candidate))
            for mistakes, reached in reaches:
                if reached > most:
                    most, found = reached, []
                if reached == most > self.reached:
                    found.append(mistakes)
        return found

    def reach(self, mistake: Mistake, computed: Computed | None = None) -> int:
        """Count the stages that a mistake explains."""
        computed = computed or compute(mistake.formula)
        allowed = None
        for count, (name, actual) in enumerate(self.rows.items()):
            if mistake.precision is not None and self.agrees[name]:
                continue  # other stages are not rough
            expected = computed.stages[name]
            if not is_near(actual, expected):
                return count
            if allowed is None:
                allowed = bound(mistake.formula, computed, mistake.precision or self.precision)
            if _error(actual, expected) > _largest(allowed[name]):
                return count
            if not self.agrees[name] and not self._comes_near(mistake, actual, expected, name):
                return count
        return len(self.rows)

    def _reaches(self, candidate: Mistakes) -> Iterator[tuple[Mistakes, int]]:
        """Of the candidate, and of it with what libraries do on purpose where rows are empty."""
        formula, computed = self.formula, self.right
        if candidate:
            formula = candidate[-1].formula
            if self.early is not None and not self._begins_well(formula, self.early):
                return
            computed = compute(formula)
            yield candidate, self.reach(candidate[-1], computed)
        if computed.visible is not None and not computed.visible.any(axis=-1).all():
            for mistake in in_empty_rows(formula):
                yield (*candidate, mistake), self.reach(mistake)

    def _begins_well(self, formula: Formula, early: str) -> bool:
        """Whether the first stage that differs is near: there is no need to compute the others where it is not."""
        return is_near(self.rows[early], compute(formula, last=early).stages[early])

    def _comes_near(self, mistake: Mistake, actual: Array, expected: Array, name: str) -> bool:
        """Whether a mistake explains half of the error, at least, or where it is rough makes errors as large."""
        right = self.right.stages[name]
        if right.shape != actual.shape or not np.array_equal(np.isfinite(actual), np.isfinite(right)):
            return True
        error, left, made = (_norm(x) for x in (actual - right, actual - expected, expected - right))
        if mistake.by_size:
            return made / 4 <= error <= 6 * made and not is_systematic(actual - right, right)
        return 2 * left <= error


def agree(actual: Array, expected: Array, allowed: Array) -> bool:
    """Tell whether rounding explains every difference.

    Parameters
    ----------
    actual, expected : ndarray
        Of any shapes, which have to be the same.
    allowed : ndarray
        What each number may be off by.

    Returns
    -------
    bool
    """
    return actual.shape == expected.shape and bool((ratio(actual, expected, allowed) <= 1).all())


def is_near(actual: Array, expected: Array) -> bool:
    """Tell whether it is worth its bounds: of the same shape, NaN in the same places, and not a tenth off.

    Parameters
    ----------
    actual, expected : ndarray
        Of any shapes.

    Returns
    -------
    bool
    """
    if actual.shape != expected.shape or not np.array_equal(np.isfinite(actual), np.isfinite(expected)):
        return False
    return _error(actual, expected) <= 0.1 * _largest(expected)


def _error(actual: Array, expected: Array) -> float:
    return _largest(actual - expected)


def _largest(x: Array) -> float:
    """Give the largest of the finite ones."""
    return float(np.abs(x[np.isfinite(x)]).max(initial=0))


def _norm(x: Array) -> float:
    return float(np.sqrt(np.square(x[np.isfinite(x)]).sum()))

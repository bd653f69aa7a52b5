"""What `pyattn.compare` returns: a table of stages, and what is wrong in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Cause", "Comparison", "Stage"]


class Stage(NamedTuple):
    """One stage of two sides.

    Attributes
    ----------
    name : str
        'query', 'key', 'value', 'scores', 'weights', 'lse', 'heads' or 'output'.
    shape, their_shape : tuple of int
        Of ours, and of theirs.
    error : float
        The largest absolute difference; inf where shapes differ, or NaN and infinities are on one side alone.
    ulp : float
        The same in units in the last place of the stage's largest number.
    ratio : float
        The largest difference over what rounding may explain of it: 1 at most where the sides are equal.
    ours, theirs : float
        The same for each side against the formula in float64.
    place : tuple of int or None
        Where that ratio is largest.
    numbers : tuple of float
        What is there: of ours, of theirs, and exactly.
    """

    name: str
    shape: tuple[int, ...]
    their_shape: tuple[int, ...]
    error: float
    ulp: float
    ratio: float
    ours: float
    theirs: float
    place: tuple[int, ...] | None = None
    numbers: tuple[float, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether rounding explains the difference."""
        return self.ratio <= 1


class Cause(NamedTuple):
    """Why a side is not what it should be: tested, because computing it gives that side's numbers.

    Attributes
    ----------
    name : str
        Short and fixed, such as 'scale missing'.
    side : str
        'ours' or 'theirs'; 'each' where both do the same.
    stage : str
        Where.
    what : str
        A sentence without its subject.
    fix : str
        What to do.
    documented : bool
        Libraries differ here on purpose.
    """

    name: str
    side: str
    stage: str
    what: str
    fix: str
    documented: bool = False

    def __str__(self) -> str:
        """Give the sentence."""
        return f"{self.side} {self.what}"


@dataclass(frozen=True)
class Comparison:
    """What `pyattn.compare` has found. Its str is a table and a verdict, its repr one line.

    Attributes
    ----------
    ours, theirs : str
        What was compared, with dtypes.
    stages : tuple of Stage
        What both sides show, in the order in which it is computed.
    causes : tuple of Cause
        Known mistakes that explain what is wrong.
    others : tuple of str
        Names of causes that would give the same numbers as the first.
    wrong : tuple of str
        Those of 'ours' and 'theirs' that are off the formula in float64 (a module: off that of its own parameters).
    complete : bool
        Whether the causes explain all that is wrong.
    parameters : tuple of Cause
        Of two modules: those of theirs that are not ours, cast to their dtype.
    """

    ours: str
    theirs: str
    stages: tuple[Stage, ...]
    causes: tuple[Cause, ...] = ()
    others: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    complete: bool = True
    parameters: tuple[Cause, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether rounding explains every difference between the two, and one cast those of their parameters."""
        return not self.parameters and all(stage.equal for stage in self.stages)

    @property
    def cause(self) -> Cause | None:
        """The first cause; None where there is none, or none is known."""
        return next(iter(self.causes or self.parameters), None)

    @property
    def stage(self) -> str | None:
        """Where the two part ways: the cause's stage, or without one the first that differs; None where none does."""
        if self.equal:
            return None
        return self.cause.stage if self.cause else next(stage.name for stage in self.stages if not stage.equal)

    def __repr__(self) -> str:
        """Say it in one line."""
        if self.equal:
            return f"<Comparison: equal in {', '.join(stage.name for stage in self.stages)}>"
        return f"<Comparison: different in {self.stage}: {self.cause or 'no known cause'}>"

    def __str__(self) -> str:
        """Give the table, and what is wrong in words."""
        lines = [f"ours    {self.ours}", f"theirs  {self.theirs}", "", *_table(self.stages), "", *_verdict(self)]
        return "\n".join(lines)


_HEADS = ("stage", "shape", "max abs error", "ULP", "ratio", "ours", "theirs")
_LEGEND = (
    "ULP: of the stage's largest number. ratio: the error over what rounding may explain, 1 at most;",
    "ours, theirs: the same for each side against the formula in float64.",
)


def _table(stages: tuple[Stage, ...]) -> Iterator[str]:
    """Names to the left, numbers to the right."""
    rows = [_HEADS, *(_cells(stage) for stage in stages)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEADS))]
    marks = ["", *("" if stage.equal else "  <- differs" for stage in stages)]
    for row, mark in zip(rows, marks, strict=True):
        names = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join(names + numbers) + mark
    yield ""
    yield from _LEGEND


def _cells(stage: Stage) -> tuple[str, ...]:
    shape = str(stage.shape) if stage.shape == stage.their_shape else f"{stage.shape} and {stage.their_shape}"
    numbers = (stage.error, stage.ulp, stage.ratio, stage.ours, stage.theirs)
    return (stage.name, shape, *(f"{x:.2g}" for x in numbers))


def _verdict(found: Comparison) -> Iterator[str]:
    if found.equal:
        yield "Equal: rounding explains every difference."
        if found.wrong:
            who = "neither agrees" if len(found.wrong) > 1 else f"{found.wrong[0]} does not agree"
            yield f"But {who} with the formula in float64."
    else:
        yield f"Different in {found.stage}."
    for n, cause in enumerate(found.causes or found.parameters):
        yield f"Cause, in {cause.stage}: {cause}."
        if n == 0 and found.others:
            yield f"  The same numbers come of: {', '.join(found.others)}."
        if cause.documented:
            yield "  A documented difference between libraries, not a mistake."
        yield f"  Fix: {cause.fix}."
    if not found.complete:
        yield "No known cause explains the rest." if found.cause else "No known cause explains it."
    stages = [cause.stage for cause in found.causes]
    others = [one.what for one in found.parameters if stages and one.stage not in stages]
    if others:
        names = (what.removeprefix("has another ").partition(":")[0] for what in others)
        yield f"Parameters that differ by more than a cast, too: {', '.join(names)}."
    if not found.equal and not (found.complete and found.causes and all(one.documented for one in found.causes)):
        yield from _who(found)


def _who(found: Comparison) -> Iterator[str]:
    """Which side is wrong, and where to look."""
    first = next((stage for stage in found.stages if not stage.equal), None)
    if first is None:
        yield "No stage shows it, because rounding may be off by more."
        return
    if len(found.wrong) == 1:
        (wrong,) = found.wrong
        right = "theirs" if wrong == "ours" else "ours"
        yield f"Of the two, {wrong} is off the formula in float64, and {right} is not."
    elif found.wrong:
        further = "ours" if first.ours > first.theirs else "theirs"
        yield f"Both are off the formula in float64, {further} further."
    else:
        yield "Each computes what its own parameters and options say, and those differ."
    if first.place is None:
        yield f"In {first.name}, ours has shape {first.shape} and theirs {first.their_shape}."
    else:
        ours, theirs, exact = (f"{x:.9g}" for x in first.numbers)
        where = ", ".join(map(str, first.place))
        yield f"Furthest off in {first.name}[{where}]: ours {ours}, theirs {theirs}, exact {exact}."

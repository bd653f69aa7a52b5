"""The results of `compare` and `check`, and their text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from pyattn._util.names import unknown_field

__all__ = ["Cause", "CheckResult", "Comparison", "Failure", "GroupResult", "Stage"]


class Stage(NamedTuple):
    """One stage of two sides.

    Attributes
    ----------
    name : str
        'query', 'key', 'value', 'scores', 'weights', 'lse', 'heads' or 'output'. Gradients begin with ``grad_``, as
        'grad_query', 'grad_attn_mask' or, of a parameter, 'grad_out_proj.weight'. 'grad_x' is that of one array that is
        query, key and value.
    shape, their_shape : tuple of int
        The shapes of ours and theirs.
    error : float
        The largest absolute difference; inf where shapes differ, or where only one side is NaN or infinite.
    ulp : float
        The same in units in the last place of the stage's largest number.
    ratio : float
        The largest ratio of a difference to its rounding bound: at most 1 where the sides are equal.
    ours, theirs : float
        The same for each side against the formula in float64.
    place : tuple of int or None
        Where that ratio is largest; None where shapes differ.
    numbers : tuple of float
        The numbers at that place: of ours, of theirs, and exact.
    only : str or None
        'ours' or 'theirs' if only that side returns this stage; it is then compared with the formula in float64.
    nan : int
        How many numbers are NaN on both sides, which counts as equal.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.eye(3)
    >>> rounded = pyattn.attention(x, x, x).astype(np.float32)
    >>> (stage,) = pyattn.compare(pyattn.attention, rounded, x, x, x).stages
    >>> stage.name, stage.shape, stage.equal
    ('output', (3, 3), True)
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
    only: Literal["ours", "theirs"] | None = None
    nan: int = 0

    @property
    def equal(self) -> bool:
        """Whether rounding explains the difference."""
        return self.ratio <= 1


class Cause(NamedTuple):
    """Why a side is wrong: computing this mistake gives that side's numbers.

    Attributes
    ----------
    name : str
        Short and fixed, such as 'scale missing'.
    side : str
        'ours' or 'theirs'; 'each' if both make the mistake.
    stage : str
        The first stage that it changes.
    what : str
        A sentence without its subject, such as 'does not scale the scores'.
    fix : str
        How to correct it.
    documented : bool
        Whether this is an intended difference between libraries.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.eye(3)
    >>> unscaled = pyattn.attention(x, x, x, scale=1.0)
    >>> cause = pyattn.compare(pyattn.attention, unscaled, x, x, x).cause
    >>> cause.name, cause.side, cause.stage
    ('scale missing', 'theirs', 'scores')
    >>> print(cause)
    theirs does not scale the scores
    """

    name: str
    side: str
    stage: str
    what: str
    fix: str
    documented: bool = False

    def __str__(self) -> str:
        """Return the sentence."""
        return f"{self.side} {self.what}"


@dataclass(frozen=True)
class Comparison:
    """The result of `pyattn.compare`: print it for a table and a verdict.

    Attributes
    ----------
    ours, theirs : str
        The names of the two sides, with their dtypes.
    stages : tuple of Stage
        The stages of both sides, in the order of computation, and wrong stages that only one side returns. Gradients
        that were asked for come last.
    causes : tuple of Cause
        Known mistakes that explain the difference.
    others : tuple of str
        Names of mistakes that give the same numbers as the first cause.
    wrong : tuple of str
        The sides, 'ours' or 'theirs', that differ from the formula in float64. A module is compared with the formula
        with its own parameters.
    complete : bool
        Whether the causes explain everything that is wrong.
    parameters : tuple of Cause
        The parameters of two modules that differ by more than a cast from one dtype to the other.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.eye(3)
    >>> unscaled = pyattn.attention(x, x, x, scale=1.0)
    >>> report = pyattn.compare(pyattn.attention, unscaled, x, x, x)
    >>> report.equal, report.stage, report.cause.name
    (False, 'scores', 'scale missing')
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
        """Whether rounding, or a cast of parameters, explains every difference."""
        return not self.parameters and all(stage.equal for stage in self.stages)

    @property
    def cause(self) -> Cause | None:
        """The first cause; None where nothing is wrong, or no known mistake explains it."""
        return next(iter(self.causes or self.parameters), None)

    @property
    def stage(self) -> str | None:
        """The stage of the first cause; None where the sides are equal.

        Without a cause, it is the first stage that differs.
        """
        if self.equal:
            return None
        return self.cause.stage if self.cause else next(stage.name for stage in self.stages if not stage.equal)

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name, and say what to read instead."""
            names = ["equal", "cause", "stage", "stages", "causes", "others", "wrong", "complete", "parameters"]
            advice = {"fix": "cause.fix", **dict.fromkeys(("passed", "ok"), "equal")}
            unknown_field(self, name, names, advice)

    def __repr__(self) -> str:
        """Return one line, such as <Comparison: different in scores: theirs does not scale the scores>."""
        if self.equal:
            return f"<Comparison: equal in {', '.join(stage.name for stage in self.stages)}>"
        return f"<Comparison: different in {self.stage}: {self.cause or 'no known cause'}>"

    def __str__(self) -> str:
        """Return the table and the verdict."""
        lines = [f"ours    {self.ours}", f"theirs  {self.theirs}", "", *_table(self.stages), "", *_verdict(self)]
        return "\n".join(lines)


_HEADS = ("stage", "shape", "max abs error", "ULP", "ratio", "ours", "theirs")
_LEGEND = (
    "ULP: of the stage's largest number. ratio: the error over its rounding bound, at most 1 where equal;",
    "ours, theirs: the same for each side against the formula in float64.",
)


def _table(stages: tuple[Stage, ...]) -> Iterator[str]:
    """Yield the lines of the table: names aligned left, numbers aligned right."""
    rows = [_HEADS, *(_cells(stage) for stage in stages)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEADS))]
    marks = [""]
    for stage in stages:
        alone = f", and only {stage.only} returns it" if stage.only else ""
        marks.append("" if stage.equal else f"  <- differs{alone}")
    for row, mark in zip(rows, marks, strict=True):
        names = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join(names + numbers) + mark
    yield ""
    yield from _LEGEND


def _cells(stage: Stage) -> tuple[str, ...]:
    shape = str(stage.shape) if stage.shape == stage.their_shape else f"{stage.shape} and {stage.their_shape}"
    numbers = [f"{x:.2g}" for x in (stage.error, stage.ulp, stage.ratio, stage.ours, stage.theirs)]
    if stage.only:
        numbers[4 if stage.only == "ours" else 3] = "-"
    return (stage.name, shape, *numbers)


def _verdict(found: Comparison) -> Iterator[str]:
    if found.equal:
        yield "Equal: rounding explains every difference."
        for stage in found.stages:
            if stage.nan:
                numbers = f"{stage.nan} of {math.prod(stage.shape)} numbers of {stage.name}"
                yield f"But {numbers} are NaN on both sides: look for NaN in the inputs."
        if found.wrong:
            who = "neither agrees" if len(found.wrong) > 1 else f"{found.wrong[0]} does not agree"
            yield f"But {who} with the formula in float64."
    else:
        yield f"Different in {found.stage}."
    for n, cause in enumerate(found.causes or found.parameters):
        yield f"Cause, in {cause.stage}: {cause}."
        if n == 0 and found.others:
            yield f"  Other mistakes that give the same numbers: {', '.join(found.others)}."
        if cause.documented:
            yield "  A documented difference between libraries, not a mistake."
        yield f"  Fix: {cause.fix}."
    if not found.complete:
        yield "No known cause explains the rest." if found.cause else "No known cause explains it."
    stages = [cause.stage for cause in found.causes]
    others = [one.what for one in found.parameters if stages and one.stage not in stages]
    if others:
        names = (what.removeprefix("has another ").partition(":")[0] for what in others)
        yield f"Other parameters that differ by more than a cast: {', '.join(names)}."
    if not found.equal and not (found.complete and found.causes and all(one.documented for one in found.causes)):
        yield from _who(found)


def _who(found: Comparison) -> Iterator[str]:
    """Yield sentences that say which side is wrong, and where the largest difference is."""
    first = next((stage for stage in found.stages if not stage.equal), None)
    if first is None:
        yield "The stages do not show it: it is smaller than their rounding bounds."
        return
    if len(found.wrong) == 1:
        (wrong,) = found.wrong
        right = "theirs" if wrong == "ours" else "ours"
        yield f"{wrong.capitalize()} differs from the formula in float64; {right} does not."
    elif found.wrong:
        further = "ours" if first.ours > first.theirs else "theirs"
        yield f"Both differ from the formula in float64, {further} more."
    else:
        yield "Each side is right for its own parameters and options, but these differ."
    names = ["ours", "theirs"]
    if first.only:
        names[first.only == "ours"] = "the formula"
    if first.place is None:
        yield f"In {first.name}, {names[0]} has shape {first.shape} and {names[1]} {first.their_shape}."
        yield f"  Fix: {_fix_of_shapes(first, 'ours' if found.wrong == ('ours',) else 'theirs')}."
        if first.only and not first.name.startswith("grad_"):
            yield "A tuple is read as (output, weights, lse)."
    else:
        one, other, exact = (f"{x:.9g}" for x in first.numbers)
        where = f"{first.name}[{', '.join(map(str, first.place))}]"
        exactly = "" if first.only else f", exact {exact}"
        yield f"Largest difference in {where}: {names[0]} {one}, {names[1]} {other}{exactly}."


def _fix_of_shapes(stage: Stage, side: str) -> str:
    """Say what to do with the results of a side whose shape is not the other's."""
    given, wanted = (stage.shape, stage.their_shape) if side == "ours" else (stage.their_shape, stage.shape)
    if sorted(given) == sorted(wanted):
        moved = [n for n, (one, other) in enumerate(zip(given, wanted, strict=True)) if one != other]
        if len(moved) == 2:
            order = ", as batch_first does" if moved == [0, 1] and len(given) == 3 else ""
            return f"swap axes {moved[0]} and {moved[1]} of {side}{order}"
    if math.prod(given) == math.prod(wanted):
        return f"reshape {side} to {wanted}"
    if len(given) != len(wanted):
        return f"return {wanted} from {side}: {len(wanted)} axes, not {len(given)}"
    size = "; its last axis is v_dim, or embed_dim of a module" if given[:-1] == wanted[:-1] else ""
    return f"return {wanted} from {side}{size if stage.name == 'output' else ''}"


class GroupResult(NamedTuple):
    """The number of cases of a group, by outcome.

    Attributes
    ----------
    name : str
        The subject of the cases.
    cases : int
        The number of cases.
    passed, failed : int
        The number of right and wrong answers.
    not_taken : int
        The number of cases that need an argument that the function lacks, or that it refuses with an accepted
        exception.
    """

    name: str
    cases: int
    passed: int
    failed: int
    not_taken: int


class Failure(NamedTuple):
    """A case that failed.

    Attributes
    ----------
    group : str
        The name of its group.
    call : str
        The call, as it would be written.
    inputs : str
        Shapes and dtype of the arrays.
    what : str
        The answer, and its difference from the expected one.
    """

    group: str
    call: str
    inputs: str
    what: str


@dataclass(frozen=True, repr=False)
class CheckResult:
    """The result of `pyattn.testing.check`: prints as a table, true where all passed.

    Attributes
    ----------
    name : str
        The name of the function.
    groups : tuple of GroupResult
        From easy to hard.
    first_failure : Failure or None
        None where all passed.
    cause : str or None
        The mistake that explains the first failure, with its fix; None where no known mistake does.
    remarks : tuple of str
        Notes that are not mistakes: conventions in which libraries differ, and cases that were not taken.

    Examples
    --------
    >>> import pyattn
    >>> result = pyattn.testing.check(pyattn.attention)
    >>> result.passed, bool(result), result.first_failure
    (True, True, None)
    >>> result.groups[0]
    GroupResult(name='plain', cases=14, passed=14, failed=0, not_taken=0)
    """

    name: str
    groups: tuple[GroupResult, ...]
    first_failure: Failure | None
    cause: str | None
    remarks: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether no case failed."""
        return self.first_failure is None

    def __bool__(self) -> bool:
        """Return `passed`."""
        return self.passed

    def __repr__(self) -> str:
        """Return the report."""
        columns = list(zip(*self.groups, strict=True))[1:]
        cases, passed, failed, not_taken = map(sum, columns)
        verdict = f"all {passed} cases passed" if self.passed else f"{failed} of {passed + failed} cases FAILED"
        width = max(32, *(len(group.name) + 2 for group in self.groups))
        heads = f"{'cases':>8}{'passed':>8}{'failed':>8}{'not taken':>11}"
        lines = [f"{self.name}: {verdict}", "", f"  {'':<{width}}{heads}"]
        for name, *counts in (*self.groups, ("all", cases, passed, failed, not_taken)):
            cells = zip(counts, (8, 8, 8, 11), strict=True)
            lines.append(f"  {name:<{width}}" + "".join(f"{count or '-':>{room}}" for count, room in cells))
        if self.first_failure is not None:
            group, call, inputs, what = self.first_failure
            lines += ["", f"First failure, {group}: {call}", f"  {inputs}"]
            lines += [f"  {line}" for line in what.splitlines()]
            lines += [] if self.cause is None else [f"Likely cause: {self.cause}."]
        if self.remarks:
            lines += ["", "Remarks", *(f"- {remark}" for remark in self.remarks)]
        return "\n".join(lines)

"""What `check` returns, and how it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["CheckResult", "Failure", "GroupResult"]


class GroupResult(NamedTuple):
    """How many cases of a group came out how.

    Attributes
    ----------
    name : str
        What the cases have in common.
    cases : int
        How many there are.
    passed, failed, not_taken : int
        Not taken is what the function has no argument for, or refuses by an exception where it may.
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
        What came back.
    """

    group: str
    call: str
    inputs: str
    what: str


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What `check` found. It prints as a table, with the first failure and its cause; it is true where all passed.

    Attributes
    ----------
    name : str
        Of the function.
    groups : tuple of GroupResult
        From easy to hard.
    first_failure : Failure or None
        None where all passed.
    cause : str or None
        What explains it, with the fix; None where no known mistake does.
    remarks : tuple of str
        What is no mistake, and good to know: conventions that libraries differ in, what was not taken and why.
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
        lines = [f"{self.name}: {verdict}", "", f"  {'':<32}{'cases':>8}{'passed':>8}{'failed':>8}{'not taken':>11}"]
        for name, *counts in (*self.groups, ("all", cases, passed, failed, not_taken)):
            cells = zip(counts, (8, 8, 8, 11), strict=True)
            lines.append(f"  {name:<32}" + "".join(f"{count or '-':>{width}}" for count, width in cells))
        if self.first_failure is not None:
            group, call, inputs, what = self.first_failure
            lines += ["", f"First failure, {group}: {call}", f"  {inputs}"]
            lines += [f"  {line}" for line in what.splitlines()]
            lines += [] if self.cause is None else [f"Likely cause: {self.cause}."]
        if self.remarks:
            lines += ["", "Remarks", *(f"- {remark}" for remark in self.remarks)]
        return "\n".join(lines)

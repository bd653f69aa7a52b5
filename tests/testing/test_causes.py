"""Each mistake that check knows is told from all others by what it computes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from pyattn.testing.cases import GROUPS
from pyattn.testing.causes import evidence_of, explain_together
from pyattn.testing.formula import compute
from pyattn.testing.mistakes import mistakes_in


def planted(group):
    """Make each mistake once: its name to cases with the numbers that it gives, where these are wrong."""
    failures = defaultdict(list)
    for case in group.cases():
        made = {}
        for mistake in mistakes_in(evidence_of(case, case.value).formula):
            made.setdefault(mistake.name, mistake)
        for name, mistake in made.items():
            try:
                output = compute(mistake.formula).stages["output"]
            except (IndexError, ValueError):  # impossible with these shapes
                continue
            evidence = evidence_of(case, output.astype(case.query.dtype))
            if evidence.best([mistake]):
                failures[name].append((evidence, f"your function {mistake.what}: {mistake.fix}"))
    # The last of a group are larger than the first, and tell apart what is the same in a square array.
    return {name: found[:1] + found[1:][-2:] for name, found in failures.items()}


# The groups after these ask for two things at once, or for extremes, and a mistake shows up in one of these before.
# Each takes a second or two; some will do for `make test`.
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(group, id=group.name, marks=pytest.mark.slow if at > 1 else ())
        for at, group in enumerate(GROUPS[:11])
    ],
)
def test_known_mistakes_are_told_apart(group):
    with np.errstate(all="ignore"):
        mistakes = planted(group)
    confused = {}
    for name, failures in mistakes.items():
        found = explain_together([evidence for evidence, _ in failures])
        sentences = {
            f"your function {one.what}: {one.fix}"
            for evidence, _ in failures[:1]
            for one in mistakes_in(evidence.formula)
            if one.name == name
        }
        if found not in sentences:
            confused[name] = found
    assert confused == {}
    assert len(mistakes) >= 6

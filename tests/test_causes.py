"""Each mistake that check knows is told from all others by what it computes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from pyattn.testing._comparing.formula import compute
from pyattn.testing._comparing.mistakes import mistakes_in
from pyattn.testing.cases import GROUPS
from pyattn.testing.causes import _Result, find_cause


def planted(group):
    """Make each mistake once: its name to cases with what comes of it, where that is not right."""
    failures = defaultdict(list)
    for case in group.cases():
        formula = _Result(case, case.value, None).formula
        made = {}
        for mistake in mistakes_in(formula):
            made.setdefault(mistake.name, mistake)
        for name, mistake in made.items():
            try:
                output = compute(mistake.formula).stages["output"]
            except (IndexError, ValueError):  # impossible with these shapes
                continue
            if _Result(case, output, None).is_of(mistake.formula):
                failures[name].append((case, output.astype(case.query.dtype)))
    # The last of a group are larger than the first, and tell what is the same in a square array.
    return {name: found[:1] + found[1:][-2:] for name, found in failures.items()}


def sentences(case, name):
    """Give what may be said of a mistake, which may be made in several ways."""
    formula = _Result(case, case.value, None).formula
    return [f"your function {one.what}: {one.fix}" for one in mistakes_in(formula) if one.name == name]


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
    confused = {
        (name, found)
        for name, failures in mistakes.items()
        if (found := find_cause(failures)) not in sentences(failures[0][0], name)
    }
    assert confused == set()
    assert len(mistakes) >= 10

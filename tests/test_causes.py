"""Each mistake that check knows is told from all others by what it computes."""

from __future__ import annotations

from collections import defaultdict

import pytest

from pyattn.testing import causes
from pyattn.testing.cases import GROUPS
from pyattn.testing.formula import Setting

FAMILIES = [family for family in causes._FAMILIES if family is not causes._rounding]


def planted(group):
    """(sentence, n) to the results of the n-th way to make that mistake, where it makes a difference."""
    results = defaultdict(list)
    for case in group.cases():
        setting = Setting(case, None)
        ways = defaultdict(int)
        for sentence, compute in (mistake for family in FAMILIES for mistake in family(setting)):
            ways[sentence] += 1
            try:
                variant = compute()
            except (ValueError, IndexError):  # impossible with these shapes
                continue
            if not variant.reproduces(setting.exact()):
                output = variant.output.astype(case.query.dtype)
                results[sentence, ways[sentence]].append((setting, output))
    return results


# The groups after these ask for two things at once, or for extremes, and a mistake shows up in one of these before.
@pytest.mark.parametrize("group", GROUPS[:11], ids=lambda group: group.name)
def test_known_mistakes_are_told_apart(group):
    mistakes = planted(group)
    confused = {
        (sentence, found)
        for (sentence, _), failures in mistakes.items()
        if (found := causes.find_cause(failures)) != sentence
    }
    assert confused == set()
    assert len(mistakes) >= 10

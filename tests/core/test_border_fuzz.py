"""Calls of the core, all of whose arrays and lists change while they run: a result or a refusal, never a crash."""

from __future__ import annotations

import pytest
from support.helpers import run_python

FUZZ = """
import faulthandler, warnings
from support.calls import WORKING
from support.changing import fuzz, record
from support.module_calls import MODULES

faulthandler.enable()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    recorded = record([*WORKING.values(), *MODULES.values()])
functions = {name for name, *_ in recorded}
assert len(functions) >= 19, functions
for with_thread in (False, True):
    done = fuzz(recorded, SEED, 5000, with_thread)
    assert 1000 < done < 5000, done
"""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(10))
def test_arguments_may_change_at_any_time(seed):
    """By Python code that the call itself runs, and by another thread. Under AddressSanitizer it is said where."""
    run_python(FUZZ.replace("SEED", str(seed)), options=("-W", "ignore"), timeout=300, PYTHONMALLOC="malloc")

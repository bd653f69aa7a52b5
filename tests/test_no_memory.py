"""When memory cannot be had, wherever that happens: MemoryError or success, never a crash, and the next call works."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from calls import MISTAKES, MODULES, MODULES_MISTAKES, WORKING
from helpers import run_python

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python comes without _testcapi, which fails allocations"
)

# Where Python functions are called: of the CPythons that were tried, 3.11 alone survives having no memory there. 3.12
# and 3.13 free a member of a function twice, 3.10 crashes or loses the MemoryError.
only_where_functions_survive = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="this CPython itself crashes when its own allocations fail"
)

# Where others do not survive: CPython 3.11's warnings crash without a frame; NumPy takes a failed allocation for a
# buffer that cannot be read, and its generators have a RuntimeError for it.
LEFT_OUT = {"attention, MaskWarning", "attention, ShapeWarning", "attention, buffer"}
LEFT_OUT |= {"attention, dropout", "dropout_keep_mask", "rng", "MultiheadAttention, rng"}

# Large enough that scratch memory is asked for in every call, and not kept from the one before.
LARGE = {
    "large": "attend(WIDE, WIDE, WIDE)",
    "large, weights": "attend(WIDE, WIDE, WIDE, need_weights=True, need_lse=True, num_threads=2)",
    "large, decode": "attend(WIDE[:1], WIDE, WIDE, num_threads=2)",
    "large, bilinear": "attend(WIDE, WIDE[:, :8], WIDE, score='bilinear', score_weight=WIDE[:8].T)",
    "large, distance": "attend(WIDE, WIDE, WIDE, score='distance', num_threads=2)",
    "large, distance, decode": "attend(WIDE[:2], WIDE, WIDE, score='distance')",
    "large, linear": "pyattn.linear(WIDE, WIDE[:40], num_threads=2)",
    "large, linear, few": "pyattn.linear(WIDE[:2], WIDE[:40].copy('F'))",
    "large, multi_head": "_core.multi_head(WIDE, WIDE, WIDE, *[WIDE[:40]] * 3, heads=4, need_weights=True)",
    "large, merge": "pyattn.merge_states([WIDE[:1]] * 2, [WIDE[:1, 0]] * 2)",
    "large, softmax": "pyattn.softmax(WIDE)",
}

SCRIPT = """
import faulthandler, json, sys
import _testcapi
import numpy as np, pyattn
from calls import *
from pyattn import _core
from helpers import bits

faulthandler.enable()
faulthandler.dump_traceback_later(300, exit=True)
WIDE = np.ones((64, 16000), np.float32)
OURS = [repr(function) for function in vars(_core).values() if callable(function)]

def outcome(call):
    "The bits of a result, or the kind of exception."
    try:
        result = call()
    except Exception as error:
        return type(error)
    return bits_of(result)

def bits_of(result):
    if isinstance(result, np.ndarray):
        return bits(result).tobytes()
    return [bits_of(part) for part in result] if isinstance(result, tuple) else result

def without_memory(call, start, stop):
    "The outcome when allocations start to stop fail; MemoryError for exceptions that CPython or NumPy lost."
    _testcapi.set_nomemory(start, stop)
    try:
        result = call()
    except SystemError as error:
        _testcapi.remove_mem_hooks()
        return SystemError if any(name in str(error) for name in OURS) else MemoryError
    except Exception as error:
        _testcapi.remove_mem_hooks()
        return MemoryError if isinstance(error, MemoryError) else type(error)  # NumPy has one of its own
    finally:
        _testcapi.remove_mem_hooks()
    return bits_of(result)

def sweep(name, call, ways=(True, False)):
    "Each allocation fails in turn, alone or with all that follow, until the call no longer notices."
    print("at", name, file=sys.stderr, flush=True)  # should it crash
    expected, failed = outcome(call), 0
    for alone in ways:
        start = unnoticed = 0
        while unnoticed < 25:
            found = without_memory(call, start, start + 1 if alone else 0)
            assert found in (MemoryError, expected), (name, start, alone, found)
            assert outcome(call) == expected, ("after", name, start, alone)
            unnoticed = 0 if found is MemoryError else unnoticed + 1
            failed += found is MemoryError
            start += 1
    return failed

print(json.dumps({name: sweep(name, call, WAYS) for name, call in CALLS.items()}))
"""


def failures(calls, ways="(True, False)"):
    """How many times each of some calls, given as Python, ended in MemoryError."""
    return json.loads(run_python(SCRIPT.replace("CALLS", calls).replace("WAYS", ways), timeout=600).stdout)


@only_where_functions_survive
def test_every_entry_point():
    counts = failures(f"{{name: call for name, call in WORKING.items() if name not in {LEFT_OUT!r}}}")
    assert counts.keys() == WORKING.keys() - LEFT_OUT
    computing = [
        name for name in counts if name.split(",")[0] in ("attention", "sdpa", "linear", "softmax", "merge_states")
    ]
    assert all(counts[name] > 0 for name in computing)


@only_where_functions_survive
def test_modules():
    """One allocation at a time: see calls.py."""
    counts = failures("MODULES", "(True,)")
    assert counts.keys() == MODULES.keys()
    assert all(count > 0 for count in counts.values())


@only_where_functions_survive
def test_mistakes_with_modules():
    calls = f"{{name: call for name, call in MODULES_MISTAKES.items() if name not in {LEFT_OUT!r}}}"
    assert failures(calls, "(True,)").keys() == MODULES_MISTAKES.keys() - LEFT_OUT


@only_where_functions_survive
def test_every_error_path():
    calls = f"{{name: call for name, call in MISTAKES.items() if name not in {LEFT_OUT!r}}}"
    assert failures(calls).keys() == MISTAKES.keys() - LEFT_OUT


THROUGH_FUNCTIONS = {"large, merge", "large, softmax"}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=only_where_functions_survive if x in THROUGH_FUNCTIONS else ()) for x in LARGE]
)
def test_large_scratch_memory(name):
    assert failures(f"{{{name!r}: lambda: {LARGE[name]}}}")[name] > 0

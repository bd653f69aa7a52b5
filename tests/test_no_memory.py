"""When memory cannot be had, wherever that happens: MemoryError or success, never a crash, and the next call works."""

from __future__ import annotations

import importlib.util
import json

import pytest
from calls import MISTAKES, WORKING
from helpers import run_python

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python comes without _testcapi, which fails allocations"
)

# Large enough that scratch memory is asked for in every call, and not kept from the one before.
LARGE = {
    "large": "attend(WIDE, WIDE, WIDE)",
    "large, weights": "attend(WIDE, WIDE, WIDE, need_weights=True, need_lse=True, num_threads=2)",
    "large, decode": "attend(WIDE[:1], WIDE, WIDE, num_threads=2)",
    "large, merge": "pyattn.merge_states([WIDE[:1]] * 2, [LSE[:1]] * 2)",
    "large, softmax": "pyattn.softmax(WIDE)",
}

# Each allocation of a call fails in turn, alone or with all that follow, until the call no longer notices.
SCRIPT = """
import faulthandler, json, sys
import _testcapi
import numpy as np, pyattn
from calls import *
from helpers import bits

faulthandler.dump_traceback_later(300, exit=True)
WIDE = np.ones((64, 40000), np.float32)

def attempt(call, start, stop):
    _testcapi.set_nomemory(start, stop)
    try:
        return call()
    finally:
        _testcapi.remove_mem_hooks()

def result_of(call):
    try:
        return call()
    except MemoryError:
        raise
    except Exception as error:
        return type(error)

def all_bits(result):
    if isinstance(result, np.ndarray):
        return bits(result).tobytes()
    return [all_bits(part) for part in result] if isinstance(result, tuple) else result

def sweep(call, expected):
    failed = 0
    for alone in (True, False):
        unnoticed = start = 0
        while unnoticed < 25:
            try:
                found = attempt(call, start, start + 1 if alone else 0)
                unnoticed += 1
            except MemoryError:
                failed, unnoticed, found = failed + 1, 0, None
            except Exception as error:
                found = type(error)
                unnoticed = unnoticed + 1 if found == expected else 0
            assert found is None or all_bits(found) == all_bits(expected), (start, alone, found)
            found = result_of(call)
            assert all_bits(found) == all_bits(expected), ("next call", start, alone, found)
            start += 1
    return failed

counts = {{}}
for name, call in {calls}.items():
    print("in", name, file=sys.stderr, flush=True)
    counts[name] = sweep(call, result_of(call))
print(json.dumps(counts))
"""


def failures(calls):
    """How many times each call ended in MemoryError."""
    return json.loads(run_python(SCRIPT.format(calls=calls), timeout=600).stdout)


def test_every_entry_point():
    counts = failures("WORKING")
    assert counts.keys() == WORKING.keys()
    assert all(counts[name] > 0 for name in counts if name.split(",")[0] in ("attention", "softmax", "merge_states"))


def test_every_error_path():
    assert failures("MISTAKES").keys() == MISTAKES.keys()


def test_large_scratch_memory():
    calls = ", ".join(f"{name!r}: lambda: {call}" for name, call in LARGE.items())
    assert all(failures(f"{{{calls}}}").values())

"""When memory cannot be had, wherever that happens: MemoryError or success, never a crash, and the next call works."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest
from support.calls import WORKING
from support.helpers import run_python
from support.mistaken_calls import MISTAKES
from support.module_calls import MODULES, MODULES_MISTAKES

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python comes without _testcapi, which fails allocations"
)

# Where Python functions are called: of the CPythons that were tried, 3.11 alone survives having no memory there. 3.12
# and 3.13 free a member of a function twice, 3.10 crashes or loses the MemoryError.
only_where_functions_survive = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="this CPython itself crashes when its own allocations fail"
)

# Where CPython does not survive memory that is gone for good: its warnings crash without a frame, and its `try` never
# ends. There, one allocation at a time fails.
WARNING = {"attention, MaskWarning", "attention, ShapeWarning", "attention, inverted mask"}
CASTING = {"log_softmax_backward, half", "silu_backward, promoted"}  # NumPy's errstate crashes, too
DRAWING = {
    "attention, dropout",
    "attention, bilinear, drawn",
    "attention_backward, drawn",
    "attention_jvp, drawn",
    "dropout",
    "dropout rng",
    "dropout_keep_mask",
    "rng",
}

# What is not tried with modules. Of thousands of allocations, most are those of "models, llama", or of tests that have
# them in smaller calls; zipfile loses a MemoryError where it writes.
MANY = {"models, bert", "models, mobilebert", "models, gpt2", "compare", "compare, modules", "check"}
MANY |= {"assert_attention_close, far"}
UNTRIED = MANY | {"files, npz", "files, KVCache"}

# What NumPy and CPython say instead, where they lose a MemoryError: of a buffer, of the locks of a new generator and of
# a file, and of a path.
INSTEAD = ("multi-dimensional sub-views are not implemented", "can't allocate lock", "can't allocate read lock")
INSTEAD += ("os.PathLike object, not PosixPath", "os.PathLike or integer, not PosixPath")

# Large enough that scratch memory is asked for in every call, and not kept from the one before.
LARGE = {
    "large": "attend(WIDE, WIDE, WIDE)",
    "large, weights": "attend(WIDE, WIDE, WIDE, need_weights=True, need_lse=True, num_threads=2)",
    "large, decode": "attend(WIDE[:1], WIDE, WIDE, num_threads=2)",
    "large, bilinear": "attend(WIDE, WIDE[:, :8], WIDE, score='bilinear', score_weight=WIDE[:8].T)",
    "large, distance": "attend(WIDE, WIDE, WIDE, score='distance', num_threads=2)",
    "large, distance, decode": "attend(WIDE[:2], WIDE, WIDE, score='distance')",
    "large, gradients": "differentiate(WIDE, WIDE, WIDE, need=23, num_threads=2)",
    "large, tangents": "derive(WIDE, WIDE, WIDE, num_threads=2)",
    "large, linear": "pyattn.functional.linear(WIDE, WIDE[:40], num_threads=2)",
    "large, linear, few": "pyattn.functional.linear(WIDE[:2], WIDE[:40].copy('F'))",
    "large, embedding": "pyattn.functional.embedding([[0, 63]] * 9, WIDE, scale=2, residual=WIDE[0], num_threads=2)",
    "large, dropout": "_core.drop_rows(WIDE, 0.5, 1)",
    "large, multi_head": "_core.multi_head(WIDE, WIDE, WIDE, *[WIDE[:40]] * 3, heads=4, need_weights=True)",
    "large, rotary": "_core.rotary(WIDE, np.ones(8000), position_ids=[3] * 64, num_threads=2)",
    "large, merge": "pyattn.merge_states([WIDE[:1]] * 2, [WIDE[:1, 0]] * 2)",
    "large, softmax": "pyattn.softmax(WIDE)",
    "large, cross_entropy": "_core.cross_entropy(WIDE, np.arange(64), None, WIDE[0], -100, 0, 0.1)",
    "large, activate_backward": "_core.activate_backward(*[WIDE.astype(np.float16)] * 2, 'silu')",
    "large, softmax_backward": "_core.softmax_backward(*[WIDE.astype(np.float16)] * 2, True)",
    "large, normalize_backward": "_core.normalize_backward(WIDE, WIDE.astype(np.float16), num_threads=2)",
    "large, embedding_backward": "_core.embedding_backward(WIDE.astype(np.float16), range(64), 64)",
    "large, top_k": "_core.top_k_rows(WIDE, 9000)",
}

SCRIPT = """
import faulthandler, json, sys
import _testcapi
import numpy as np, pyattn
from support.calls import *
from support.mistaken_calls import *
from support.module_calls import *
from pyattn import _core
from support.helpers import bits

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
    if isinstance(result, (np.ndarray, pyattn.masks.Mask)):
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
        lost = isinstance(error, MemoryError) or any(text in str(error) for text in INSTEAD)  # NumPy has one of its own
        return MemoryError if lost else type(error)
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
    script = SCRIPT.replace("CALLS", calls).replace("WAYS", ways).replace("INSTEAD", repr(INSTEAD))
    return json.loads(run_python(script, timeout=600).stdout)


def among(calls, *, left_out):
    """As Python: some of the calls of calls.py."""
    return f"{{name: call for name, call in {calls}.items() if name not in {left_out!r}}}"


@only_where_functions_survive
def test_every_entry_point():
    left_out = (WARNING | CASTING | DRAWING) & WORKING.keys()
    counts = failures(among("WORKING", left_out=left_out))
    assert counts.keys() == WORKING.keys() - left_out
    computing = [
        name
        for name in counts
        if name.split(",")[0] in ("attention", "sdpa", "linear", "softmax", "top_k", "merge_states")
    ]
    assert all(counts[name] > 0 for name in computing)


@only_where_functions_survive
@pytest.mark.parametrize("name", sorted(WARNING | CASTING | DRAWING))
def test_warnings_casts_and_random_numbers(name):
    """One allocation at a time. A generator's own would be another each time, so these draw from an int."""
    assert failures(f"{{{name!r}: {'MISTAKES' if name in MISTAKES else 'WORKING'}[{name!r}]}}", "(True,)")[name] > 0


@pytest.mark.slow
@only_where_functions_survive
def test_modules():
    """One allocation at a time: see module_calls.py."""
    counts = failures(among("MODULES", left_out=UNTRIED), "(True,)")
    assert counts.keys() == MODULES.keys() - UNTRIED
    assert all(count > 0 for count in counts.values())


@only_where_functions_survive
def test_mistakes_with_modules():
    counts = failures(among("MODULES_MISTAKES", left_out=UNTRIED), "(True,)")
    assert counts.keys() == MODULES_MISTAKES.keys() - UNTRIED


@only_where_functions_survive
def test_every_error_path():
    assert failures(among("MISTAKES", left_out=DRAWING)).keys() == MISTAKES.keys() - DRAWING


THROUGH_FUNCTIONS = {"large, merge", "large, softmax"}
FEW = {"large", "large, decode", "large, linear", "large, multi_head"}


def failures_of_large(names):
    return failures("{" + ", ".join(f"{name!r}: lambda: {LARGE[name]}" for name in names) + "}")


def test_large_scratch_memory():
    assert all(failures_of_large(FEW).values())


@pytest.mark.slow
def test_large_scratch_memory_of_the_others():
    assert all(failures_of_large(LARGE.keys() - THROUGH_FUNCTIONS - FEW).values())


@only_where_functions_survive
def test_large_scratch_memory_through_functions():
    assert all(failures_of_large(THROUGH_FUNCTIONS).values())

"""What a call and an import weigh, each in a fresh process.

``python -m benchmarks.memory THREADS`` prints the growth of one call in bytes.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.grid import Bar
from benchmarks.run import Result

HEADS, LENGTH, HEAD_DIM = 8, 16_384, 64
IMPORTS = 7
IMPORT_CODE = """
import time
import numpy
start = time.perf_counter()
import pyattn
print(time.perf_counter() - start)
"""


def growth_result(threads: int) -> Result:
    """Peak resident growth of a long call with a padding mask, beyond its inputs and output."""
    result = Result(f"memory 1,{HEADS},{LENGTH},{LENGTH},{HEAD_DIM}", threads, (Bar("MB", 16.0, at_least=False),))
    result.figures["MB"] = _figure(["-m", "benchmarks.memory", str(threads)]) / 1e6
    return result


def import_result() -> Result:
    """How long `import pyattn` takes after `import numpy`: the least of several processes."""
    result = Result("import", 1, (Bar("milliseconds", 15.0, at_least=False),))
    result.figures["milliseconds"] = 1e3 * min(_figure(["-c", IMPORT_CODE]) for _ in range(IMPORTS))
    return result


def _figure(arguments: list[str]) -> float:
    command = [sys.executable, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _growth(threads: int) -> int:
    """Make one call and return by how many bytes the peak went above what was resident before."""
    import pyattn

    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((1, HEADS, LENGTH, HEAD_DIM), np.float32) for _ in "qkv")
    mask = (np.arange(LENGTH) < LENGTH - 100)[np.newaxis, np.newaxis, np.newaxis]
    out = np.ones_like(query)  # ones: its pages are resident before the call
    _forget_peak()
    before = _peak()
    pyattn.attention(query, key, value, attn_mask=mask, num_threads=threads, out=out)
    return _peak() - before


def _forget_peak() -> None:
    """Set the peak back to what is resident now. Only Linux can; elsewhere the peak so far counts as resident."""
    path = Path("/proc/self/clear_refs")
    if path.exists() and os.access(path, os.W_OK):
        path.write_text("5")


def _peak() -> int:
    """The peak resident size in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    print(_growth(int(sys.argv[1])))

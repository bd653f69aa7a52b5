"""What a call and an import weigh, each in a fresh process.

``python -m benchmarks.memory NAME THREADS`` prints the growth by one call in bytes.
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.cases import AdditiveCase, AttentionCase, Bar, Case, MultiHeadCase
from benchmarks.peers import Pyattn
from benchmarks.run import Result

LENGTH = 16_384
# q, k, v and the heads' output are as large as the input each, packed pieces come on top.
FOR_ITS_INPUT = Bar("times its input", 8.0, at_least=False)
# Less than a byte for each query and key, of a small input: too little for an array of scores.
FOR_ITS_SCORES = Bar("MB", LENGTH**2 / 1e6, at_least=False)
CASES: tuple[Case, ...] = (
    AttentionCase("memory", (1, 8, LENGTH, LENGTH, 64), mask="padding", own=(Bar("MB", 16.0, at_least=False),)),
    *(
        AttentionCase("memory", (1, 1, LENGTH, LENGTH, 64), score=score, own=(Bar("MB", 16.0, at_least=False),))
        for score in ("cosine", "distance", "bilinear")
    ),
    AdditiveCase("memory additive", (1, LENGTH, LENGTH, 8), own=(Bar("MB", 16.0, at_least=False),)),
    MultiHeadCase("memory mha", (1, 4096, 768, 12), own=(FOR_ITS_INPUT,)),
    MultiHeadCase("memory mha", (1, LENGTH, 64, 4), own=(FOR_ITS_INPUT, FOR_ITS_SCORES)),
)
IMPORT = "import"
IMPORTS = 7
IMPORT_CODE = """
import time
import numpy
start = time.perf_counter()
import pyattn
print(time.perf_counter() - start)
"""


def growth_result(case: Case, threads: int) -> Result:
    """Peak resident growth by one call, beyond its inputs, weights and output."""
    result = Result(case.name, threads, case.own)
    growth = _figure(["-m", "benchmarks.memory", case.name, str(threads)])
    result.figures["MB"] = growth / 1e6
    if isinstance(case, MultiHeadCase):
        result.figures["times its input"] = growth / (4 * math.prod(case.shape[:3]))
    return result


def import_result() -> Result:
    """How long `import pyattn` takes after `import numpy`: the least of several processes."""
    result = Result(IMPORT, 1, (Bar("milliseconds", 15.0, at_least=False),))
    result.figures["milliseconds"] = 1e3 * min(_figure(["-c", IMPORT_CODE]) for _ in range(IMPORTS))
    return result


def _figure(arguments: list[str]) -> float:
    command = [sys.executable, *arguments]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def growth(call: Callable[[], np.ndarray]) -> int:
    """Make one call and return by how many bytes the peak went above what was resident before, and the result."""
    _forget_peak()
    before = _peak()
    result = call()
    return _peak() - before - result.nbytes


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
    case = next(case for case in CASES if case.name == sys.argv[1])
    Pyattn.set_threads(int(sys.argv[2]))
    print(growth(Pyattn.enter(case, case.inputs()).output))

"""Thousands of drawn cases against the exact answer and against PyTorch, at every instruction-set level.

A failure names its cases: PYATTN_TEST_CASE=1234 python -m pytest tests/functional/test_drawn.py replays number 1234.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
from support import drawing, torch_twin
from support.helpers import EVERYTHING

import pyattn
from pyattn import _core
from pyattn.testing import bounds

pytestmark = pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # drawn masks may hide all keys

# PyTorch sums a long axis in fewer partial sums, which shows where nothing cancels, and its matrix product depends on
# the machine: up to 60 was seen in the flat family and 16 elsewhere. Its bars do not judge it: they prove that both
# were asked the same question.
TORCH_BARS = {"flat": 256.0}
TORCH_BAR = 64.0
NO_FURTHER = 1.5  # ours from the exact answer than PyTorch's, at worst of a family of numbers
# Values of 1e-38: pyattn takes denormals for 0, PyTorch does not. What that may cost is part of a ratio's unit.
FLUSHED, FLUSHED_BAR = ("tiny", "float32"), 1.0
REPLAY = os.environ.get("PYATTN_TEST_CASE")
CELLS = [drawing.cell_of(int(REPLAY))] if REPLAY else range(len(drawing.CELLS))


@pytest.fixture(scope="module")
def record(summary, levels):
    """What ran, and the worst error ratios; printed in the summary."""
    record = Record(levels)
    yield record
    summary[f"drawn cases: {sum(record.runs.values())} runs"] = list(record.lines())


class Record:
    """Counts of (mask, causal, dtype, level), and the worst (ratio, case) by (who, regime is flat).

    Of the cases that PyTorch has: their number, and the worst ratios (ours, PyTorch's) by (family of numbers, dtype).
    """

    def __init__(self, levels):
        self.levels = levels
        self.runs: Counter = Counter()
        self.worst: dict = {}
        self.beside: dict = {}
        self.with_torch = 0

    def note(self, who, case, ratio):
        place = (who, "flat" if case.regime == "flat" else "others")
        self.worst[place] = max(self.worst.get(place, (0.0, 0)), (ratio, case.index))

    def note_beside(self, case, ours, theirs):
        family = case.family, case.dtype
        self.beside[family] = np.maximum(self.beside.get(family, 0), (ours, theirs))
        self.with_torch += 1

    def lines(self):
        yield f"runs of each cell at {', '.join(self.levels)}"
        yield " ".join([f"{'mask, dtype':22}", *(f"{causal:>18}" for causal in drawing.CAUSALS)])
        for mask in drawing.MASKS:
            for dtype in drawing.DTYPES:
                cells = (
                    " ".join(str(self.runs[mask, causal, dtype, level]) for level in self.levels)
                    for causal in drawing.CAUSALS
                )
                yield " ".join([f"{mask + ', ' + dtype:22}", *(f"{cell:>18}" for cell in cells)])
        for (who, family), (ratio, index) in sorted(self.worst.items()):
            yield f"worst output error ratio, {family:6} {who:7} {ratio:6.2f}  (case {index})"
        for (family, dtype), (ours, theirs) in sorted(self.beside.items()):
            yield f"worst beside PyTorch, {family:6} {dtype}: pyattn {ours:5.2f}, PyTorch {theirs:5.2f}"


@pytest.fixture(scope="module", params=CELLS, ids=lambda cell: "-".join(drawing.CELLS[cell]))
def drawn(request):
    """The cases of a cell: (case, inputs, expected). Computed once for all levels and both tests below."""
    cases = [drawing.draw(index) for index in indices_of(request.param)]
    return [(case, inputs, _expect(case, inputs)) for case in cases for inputs in [drawing.build(case)]]


def indices_of(cell):
    """All cases of a cell; in `make test` a tenth of them, which begins elsewhere in each cell: other sizes."""
    if REPLAY:
        return [int(REPLAY)]
    indices = drawing.cases_of(cell)
    return indices if EVERYTHING else indices[(cell + cell // 10) % 10 :: 10]


def _expect(case, inputs):
    return bounds.expect(*inputs[:3], case.dtype, **inputs.arguments)


def test_error_is_within_the_bounds(drawn, record, levels):
    failures = []
    for case, inputs, expected in drawn:
        for level in levels:
            _core._set_isa(level)
            record.runs[case.mask, case.causal, case.dtype, level] += 1
            failures += [f"{level}: {problem}" for problem in _problems(case, inputs, expected, level, record)]
    assert not failures, _explain(failures)


def _problems(case, inputs, expected, level, record):
    """Run a case; yield a line for each thing that is wrong with the result."""
    try:
        result = _attend(case, inputs, expected)
        ratio = bounds.output_ratio(result.output, expected)
        record.note(level, case, ratio)
        if not ratio <= case.bar:
            yield f"output ratio {ratio:.3g} > {case.bar:g}: {case}"
        if case.need_weights and not (ratio := bounds.weights_ratio(result.weights, expected)) <= 1:
            yield f"weights ratio {ratio:.3g} > 1: {case}"
        if case.need_lse and not (ratio := bounds.lse_ratio(result.lse, expected)) <= 1:
            yield f"lse ratio {ratio:.3g} > 1: {case}"
    except Exception as error:  # one line that names the case, and on to the next
        yield f"{error!r}: {case}"


def _attend(case, inputs, expected):
    """Call pyattn as the case says; the result is always an AttentionResult."""
    out = np.full_like(expected.output, 7, dtype=case.dtype, order="C") if case.out else None
    result = pyattn.attention(
        *inputs[:3],
        **inputs.arguments,
        need_weights=case.need_weights,
        need_lse=case.need_lse,
        num_threads=case.num_threads,
        out=out,
    )
    if not (case.need_weights or case.need_lse):
        assert isinstance(result, np.ndarray)
        result = pyattn.AttentionResult(result)
    assert (result.weights is not None, result.lse is not None) == (case.need_weights, case.need_lse)
    assert out is None or result.output is out
    return result


@pytest.mark.peers
def test_pytorch_agrees(drawn, record, torch):
    """It is near the exact answer, as pyattn is by the test above: both were asked the same, and give the same.

    No more is known of how far one may be from the other: errors may point in opposite directions, and add up.
    """
    failures = []
    for case, inputs, expected in drawn:
        if not torch_twin.has_case(case):
            continue
        theirs = torch_twin.attend(torch, case, inputs)
        ratio, bar = bounds.output_ratio(theirs, expected), TORCH_BARS.get(case.regime, TORCH_BAR)
        record.note("torch", case, ratio)
        if not ratio <= bar:
            failures.append(f"torch: output ratio {ratio:.3g} > {bar:g}: {case}")
        record.note_beside(case, bounds.output_ratio(_attend(case, inputs, expected).output, expected), ratio)
    assert not failures, _explain(failures)


@pytest.mark.slow
@pytest.mark.peers
def test_no_further_from_the_exact_answer_than_pytorch(record):
    """PyTorch's MATH backend is its own reference. The worst of a family of numbers: one case may differ by chance."""
    all_cases = sum(torch_twin.has_case(drawing.draw(index)) for index in range(drawing.CASES))
    if record.with_torch < all_cases:
        pytest.skip(f"{record.with_torch} of {all_cases} cases ran: these are figures of all")
    for family, (ours, theirs) in record.beside.items():
        bar = FLUSHED_BAR if family == FLUSHED else NO_FURTHER * theirs
        assert ours <= bar, f"{family}: pyattn {ours:.3g}, PyTorch {theirs:.3g}"


def _explain(failures):
    lines = "\n  ".join(failures[:8])
    more = f"\n  ... {len(failures)} in all" if len(failures) > 8 else ""
    return f"\n  {lines}{more}\nreplay one: PYATTN_TEST_CASE=<index> python -m pytest tests/functional/test_drawn.py"


def test_the_draw_covers_what_it_must(summary):
    """At least 2,000 cases, and not only tiny ones. Every level runs every case, so a cell's count holds at each."""
    cases = [drawing.draw(index) for index in range(drawing.CASES)]
    cells = Counter((case.mask, case.causal, case.dtype) for case in cases)
    wanted = {  # name: (how many there are, how many there must be)
        "cases": (len(cases), 2000),
        "cases that PyTorch has": (sum(map(torch_twin.has_case, cases)), 1500),
        "the smallest cell": (min(cells[cell] for cell in drawing.CELLS), 10),
        "L > 100 and S > 260": (sum(case.q_len > 100 and case.kv_len > 260 for case in cases), len(cases) / 4),
        "L > 200 and S > 260": (sum(case.q_len > 200 and case.kv_len > 260 for case in cases), 100),
        "L > 100, several key/value heads": (sum(case.q_len > 100 and (case.kv_heads or 0) > 1 for case in cases), 100),
        "S > 1,000": (sum(case.kv_len > 1000 for case in cases), 300),
        "L > 100, S > 260, head_dim >= 64": (
            sum(case.q_len > 100 and case.kv_len > 260 and case.head_dim >= 64 for case in cases),
            150,
        ),
        "S > 260, head_dim > 128": (sum(case.kv_len > 260 and case.head_dim > 128 for case in cases), 40),
        "num_threads of two or more": (sum(case.num_threads > 1 for case in cases), 500),
        "two threads or more at work": (sum(case.runs_on_threads for case in cases), 500),
        "decode": (sum(case.q_len <= 16 and case.kv_len >= 300 for case in cases), 200),
        "decode, head_dim >= 64": (
            sum(case.q_len <= 16 and case.kv_len >= 300 and case.head_dim >= 64 for case in cases),
            60,
        ),
        "shared heads": (sum(case.heads != case.kv_heads for case in cases), 300),
        "v_dim is not head_dim": (sum(case.head_dim != case.v_dim for case in cases), 300),
        "head_dim > 128": (sum(case.head_dim > 128 for case in cases), 100),
        "NaN under masks": (sum(case.poison != "" for case in cases), 50),
        "lengths of both": (sum(case.key_lengths and case.query_lengths for case in cases), 50),
        "weights and lse": (sum(case.need_weights and case.need_lse for case in cases), 300),
    }
    for axis in ("q_len", "kv_len", "head_dim", "v_dim", "heads"):
        wanted[f"{axis} of 0"] = (sum(getattr(case, axis) == 0 for case in cases), 5)
        wanted[f"{axis} of 1"] = (sum(getattr(case, axis) == 1 for case in cases), 20)
    for n, array in enumerate(("query", "key", "value", "mask")):
        stored = Counter(case.storage[n] for case in cases)
        wanted[f"{array} in its rarest storage"] = (min(stored[kind] for kind in drawing.STORAGE), 50)
    summary["drawn cases: what they cover"] = [
        f"{name:32} {count:5}  (at least {least:g})" for name, (count, least) in wanted.items()
    ]
    assert {name: counts for name, counts in wanted.items() if counts[0] < counts[1]} == {}

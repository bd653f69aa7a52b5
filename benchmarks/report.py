"""The machine, the table with its bars, and the JSON."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyattn
from benchmarks.cases import AdditiveCase, AttentionCase, EncoderLayerCase, LinearCase, MultiHeadCase
from benchmarks.models import GenerateCase, SentencesCase
from benchmarks.run import OURS, READ, Result

NAME_WIDTH = 38
PEER_WIDTH = 13
FIGURES = ("thr", "time", "GFLOP/s", "of peak", "GB/s", "of read")
FIGURE_WIDTHS = (3, 9, 7, 7, 5, 7)
WITHOUT_COLUMN = ("cost", "times its input", "MB", "milliseconds")
PACKAGES = ("numpy", "torch", "transformers", "onnxruntime", "jax")


def machine(held_to: str | None) -> dict[str, Any]:
    """Processor, cores, what pyattn chose, the versions of all who take part, and what they were held to."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "processor": _processor(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
        "pyattn": pyattn.show_config(mode="dicts"),
        "held_to": held_to,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "MISSING"


def _processor() -> str:
    """The model's name; on x86 with family and model numbers, for clouds hide names but not these."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name", platform.machine())
    return f"{name} (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else name


def describe(facts: Mapping[str, Any]) -> str:
    """The machine in a few lines."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        f"{facts['processor']}, {facts['cores']} cores, {facts['system']}",
        f"Python {facts['python']}, {versions}",
    ]
    config = facts["pyattn"]
    lines.append(f"pyattn {config['pyattn']}, {config['isa']['chosen']}, compiler {config['compiler']}")
    return "\n".join(lines + [f"held to {facts['held_to']}"] * bool(facts["held_to"]))


class Table:
    """Lines of fixed width that are a Markdown table too, so that they can be printed as they come.

    A peer's cell is the ratio of minima, its time / pyattn's, and in brackets that of medians.
    """

    def __init__(self, peers: Sequence[str]) -> None:
        self.peers = tuple(peers)
        self.widths = (NAME_WIDTH, *FIGURE_WIDTHS, *(PEER_WIDTH for _ in peers))

    def header(self) -> str:
        """What the sizes in names are, the names of the columns and the rule below them."""
        sizes = f"{AttentionCase.axes}; of linear {LinearCase.axes}; of mha {MultiHeadCase.axes}; "
        sizes += f"of scores additive {AdditiveCase.axes}; of encoder layer {EncoderLayerCase.axes}; "
        sizes += f"of generate {GenerateCase.axes}; of sentences {SentencesCase.axes}"
        names = self._line(("case", *FIGURES, *self.peers), "bars")
        rule = "-" * NAME_WIDTH, *("-" * (width - 1) + ":" for width in self.widths[1:])
        return f"Sizes: {sizes}\n\n{names}\n{self._line(rule, '----')}"

    def row(self, result: Result, peak: float | None) -> str:
        """One line; `peak` is `core_peak` of the run."""
        cells = [result.name, str(result.threads), *_figure_cells(result, peak)]
        for peer in self.peers:
            if peer in result.figures:
                cells.append(f"{result.figures[peer]:.2f} ({result.median_ratios[peer]:.2f})")
            else:
                cells.append(result.absent.get(peer, "").partition(":")[0])
        return self._line(cells, _bar_cell(result))

    def _line(self, cells: Sequence[str], last: str) -> str:
        pairs = list(zip(cells, self.widths, strict=True))
        return "| " + " | ".join([pairs[0][0].ljust(NAME_WIDTH), *(c.rjust(w) for c, w in pairs[1:]), last]) + " |"


def core_peak(results: Sequence[Result]) -> float | None:
    """The highest peak that a core showed in this run: a neighbour's load can lower a single one."""
    return max((result.core_peak for result in results if result.core_peak), default=None)


def _figure_cells(result: Result, peak: float | None) -> list[str]:
    ours = result.times.get(OURS)
    if ours is None:
        return [""] * 5
    gflops = result.flops / ours.minimum / 1e9
    lanes = 0.5 if result.dtype == "float64" else 1.0
    share = f"{gflops / (peak * lanes * result.threads):.0%}" if peak else ""
    speed = f"{result.read_bytes / ours.minimum / 1e9:.1f}" if result.read_bytes else ""
    of_read = f"{result.figures['of a read']:.0%}" if READ in result.times else ""
    return [_seconds(ours.minimum), f"{gflops:.1f}", share, speed, of_read]


def _seconds(seconds: float) -> str:
    for unit, size in (("s ", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.2f} us"


def _bar_cell(result: Result) -> str:
    """ok and the figures that have no column, or the bars that are not passed with what was found."""
    troubles = []
    for bar in result.bars:
        value = result.figures.get(bar.figure)
        verdict = bar.verdict(value)
        if verdict != "passed":
            troubles.append(f"{verdict}: {bar}" + ("" if value is None else f" ({value:.3g})"))
    shown = [f"{result.figures[name]:.3g} {name}" for name in WITHOUT_COLUMN if name in result.figures]
    return "; ".join(troubles or ["ok", *shown])


def summary(results: Sequence[Result]) -> str:
    """How many bars were passed, missed and not shown; the missed ones by name; why the absent are absent."""
    verdicts = [(result, bar, verdict) for result in results for bar, verdict in result.verdicts().items()]
    counts = Counter(verdict for _, _, verdict in verdicts)
    lines = [f"Bars: {counts['passed']} passed, {counts['missed']} missed, {counts['not shown']} not shown."]
    lines += [f"  missed: {result.name}, {result.threads} thread{'s' * (result.threads > 1)}: {bar}"
              for result, bar, verdict in verdicts if verdict == "missed"]  # fmt: skip
    reasons = Counter(f"{who}: {why}" for result in results for who, why in result.absent.items())
    return "\n".join(lines + [f"  in {count} lines {reason}" for reason, count in reasons.items()])


def as_json(facts: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Everything that was measured."""
    records = []
    for result in results:
        record = dataclasses.asdict(result) | {"bars": result.verdicts()}
        if OURS in result.times:
            record["gflops"] = result.flops / result.times[OURS].minimum / 1e9
        records.append(record)
    return json.dumps({"machine": facts, "results": records}, indent=1)

"""``python -m benchmarks``: the grid against the peers, with the bars of each line."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.grid import grid
from benchmarks.measure import FULL, QUICK
from benchmarks.memory import CASES, IMPORT, growth_result, import_result
from benchmarks.peers import PEERS, Peer, PeerMissingError, Pyattn
from benchmarks.picture import draw
from benchmarks.report import Table, as_json, core_peak, describe, machine, summary
from benchmarks.run import Result, run_case

AVX2_ALL = {
    "PYATTN_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
"""What holds pyattn, PyTorch, JAX and NumPy to AVX2. ONNX Runtime has no such setting and is left out."""

Weighing = tuple[str, Callable[[], Result]]
"""Its name, and what does it."""


def main() -> int:
    """Run what the options ask for and return the exit status."""
    parser = _parser()
    options = parser.parse_args()
    cases, weighings = _chosen(options)
    if not cases and not weighings:
        parser.error(f"no {'quick ' * options.quick}case's name holds {options.only.pattern}")
    if options.list:
        print("\n".join(dict.fromkeys([*(case.name for case in cases), *(name for name, _ in weighings)])))
        return 0
    if options.isa:
        _hold_to(options.isa)
    if options.isa == "avx2-all" and "onnxruntime" in options.peers:
        options.peers.remove("onnxruntime")
        print("onnxruntime can't be held to AVX2 and is left out.")
    facts = machine(options.isa)
    print(describe(facts), end="\n\n")
    table = Table(options.peers)
    print(table.header(), flush=True)
    results: list[Result] = []
    with contextlib.closing(_progress()) as progress:
        for result in _results(options, cases, weighings, progress):
            results.append(result)
            progress.write(table.row(result, core_peak(results)))
    rows = "\n".join(table.row(result, core_peak(results)) for result in results)
    closing = summary(results)
    print(f"\n{closing}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(as_json(facts, results))
    (options.out / "table.md").write_text(f"{describe(facts)}\n\n{table.header()}\n{rows}\n\n{closing}\n")
    if not _draw(results, options.peers, describe(facts), options.out):
        print("No picture: matplotlib is missing, or there is nothing to draw.")
    print(f"Written to {options.out}{os.sep}")
    shown = all(verdict == "passed" for result in results for verdict in result.verdicts().values())
    return 1 if options.check and not shown else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="pyattn against its peers.")
    parser.add_argument("--threads", type=_thread_counts, default=[1, 2], metavar="1,2", help="thread counts")
    parser.add_argument("--quick", action="store_true", help="a few cases, a minute, less certain figures")
    parser.add_argument(
        "--only",
        type=_pattern,
        default="",
        metavar="PATTERN",
        help="cases whose name holds this regular expression: ^mha for a family",
    )
    parser.add_argument("--list", action="store_true", help="print the cases' names, and stop")
    parser.add_argument("--peers", type=_peers, default=list(PEERS), metavar="NAMES", help=",".join(PEERS))
    parser.add_argument("--out", type=Path, default=Path("build/benchmarks"), help="folder for JSON, table and picture")
    parser.add_argument(
        "--isa",
        metavar="LEVEL",
        help="a level for pyattn alone (scalar, avx2, ...), or avx2-all: AVX2 for pyattn and for all peers that can",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed or not shown")
    return parser


def _thread_counts(text: str) -> list[int]:
    counts = [int(part) if part.isdecimal() else 0 for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a list of positive numbers such as 1,2")
    return counts


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text} is not a regular expression: {error}") from error


def _peers(text: str) -> list[str]:
    names = [part for part in text.split(",") if part]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(PEERS)}")
    return names


def _hold_to(isa: str) -> None:
    """Start again with the variables that hold libraries to an instruction set: they read them when loaded."""
    wanted = AVX2_ALL if isa == "avx2-all" else {"PYATTN_ISA": isa}
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], {**os.environ, **wanted})


def _chosen(options: argparse.Namespace) -> tuple[list[Case], list[Weighing]]:
    """The cases that the options ask for, and what to weigh."""
    cases = [case for case in grid() if options.only.search(case.name) and (case.quick or not options.quick)]
    weighings = [] if options.quick else _weighings(options.threads)
    return cases, [(name, weigh) for name, weigh in weighings if options.only.search(name)]


def _weighings(thread_counts: Sequence[int]) -> list[Weighing]:
    """What is weighed in processes of its own: a call's memory, the import."""
    growths = [(case.name, partial(growth_result, case, threads)) for case in CASES for threads in thread_counts]
    return [*growths, (IMPORT, import_result)]


def _results(
    options: argparse.Namespace, cases: Sequence[Case], weighings: Sequence[Weighing], progress: Any
) -> Iterator[Result]:
    """Measure one thing after the other."""
    effort = QUICK if options.quick else FULL
    progress.reset(len(cases) * len(options.threads) + len(weighings))
    for threads in options.threads if cases else ():
        with contextlib.ExitStack() as cleanup:
            peers, absent = _meet(options.peers, threads, cleanup)
            for case in cases:
                progress.set_description(f"{case.name}, {threads} thr")
                yield run_case(case, threads, peers, absent, effort)
                progress.update()
    for name, weigh in weighings:
        progress.set_description(name)
        yield weigh()
        progress.update()


def _draw(results: Sequence[Result], peers: Sequence[str], title: str, folder: Path) -> bool:
    """Draw a picture per operation; False where there is none."""
    drawn = []
    for operation in dict.fromkeys(result.operation for result in results):
        own = [result for result in results if result.operation == operation]
        drawn.append(draw(own, peers, title, folder / f"{operation}.png"))
    return any(drawn)


def _meet(names: Sequence[str], threads: int, cleanup: contextlib.ExitStack) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers at a thread count, and why those are absent that are."""
    Pyattn.set_threads(threads)
    answers = {name: _invite(name, threads) for name in names}
    absent = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
    peers = {name: answer for name, answer in answers.items() if not isinstance(answer, str)}
    for peer in peers.values():
        cleanup.callback(peer.close)
    return peers, absent


def _invite(name: str, threads: int) -> Peer | str:
    """The peer, or why there is none."""
    try:
        return PEERS[name](threads)
    except PeerMissingError as error:
        return f"MISSING: {error}"


class _NoProgress:
    """What stands in for a progress bar where tqdm is missing."""

    def write(self, line: str) -> None:
        print(line, flush=True)

    def reset(self, total: int) -> None:
        pass

    def set_description(self, text: str) -> None:
        pass

    def update(self) -> None:
        pass

    def close(self) -> None:
        pass


def _progress() -> Any:
    """A progress bar that lets lines pass above it; none where nobody looks."""
    try:
        tqdm = importlib.import_module("tqdm")
    except ImportError:
        return _NoProgress()
    return tqdm.tqdm(total=1, leave=False, dynamic_ncols=True, disable=None, unit="case")


if __name__ == "__main__":
    sys.exit(main())

"""Compiles the C core and its tests for other systems, and runs them where something here can: `make targets`.

The compiler is zig's, which has the headers and libraries of each system. Programs run as they are, under wine, under
qemu or as WebAssembly; for macOS nothing here does. The bits of attention are compared with this machine's. For macOS
and Windows the extension is compiled and linked, too, where its headers can be had.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import extensions
from debian import ROOT, CommandError

TESTS = ROOT / "tests" / "c"
ZIG = f"{sys.executable} -m ziglang"

# Activations and their gradients need better long doubles than musl's of 128 bits, which it computes as doubles.
ACTIVATIONS = ("activation", "activation_backward")
# WebAssembly cannot flush denormals (tanh), has no threads, and sizes of 32 bits, where other tests know 64.
NOT_ON_WASM = (*ACTIVATIONS, "cache", "dropout", "embedding", "errors", "host", "rotary", "tanh", "threads")
# These take minutes each in emulation; `make core` runs them there.
SLOW = (*ACTIVATIONS, "attention", "bits", "cache", "dropout", "host", "multihead", "parts", "threads")


def wine() -> list[str] | None:
    found = shutil.which("wine64") or shutil.which("wine64", path="/usr/lib/wine") or shutil.which("wine")
    return [found] if found else None


def qemu() -> list[str] | None:
    found = shutil.which("qemu-aarch64")
    return [found, "-L", "/usr/aarch64-linux-gnu"] if found else None


def wasm() -> list[str] | None:
    return [sys.executable, str(ROOT / "tools" / "run_wasm.py")]


def here() -> list[str] | None:
    return [] if (platform.system(), platform.machine()) == ("Linux", "x86_64") else None


@dataclass(frozen=True)
class Target:
    """A system, as zig calls it, and what runs its programs here."""

    name: str
    runner: Callable[[], list[str] | None] | None = None
    left_out: tuple[str, ...] = ()


TARGETS = (
    Target("x86_64-linux-gnu.2.28", here),
    Target("x86_64-linux-musl", here),
    Target("aarch64-linux-gnu.2.28", qemu, SLOW),
    Target("aarch64-linux-musl", qemu, SLOW),
    Target("x86_64-macos"),
    Target("aarch64-macos"),
    Target("x86_64-windows-gnu", wine),
    Target("wasm32-wasi", wasm, NOT_ON_WASM),
)
RUN_QUICKLY = ("x86_64-windows-gnu", "wasm32-wasi")  # what nothing else runs


def make(build: str, compiler: str, *goals: str, flags: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run tests/c/Makefile with a compiler; flags are for zig's, and Makefile has its own for others."""
    words = [f"BUILD={build}", f"CC={compiler}", "PYATTN_WERROR=1", "-s", f"-j{os.cpu_count()}"]
    words += [f"AR={ZIG} ar", f"CFLAGS={flags}"] if flags else []
    return subprocess.run(["make", "-C", str(TESTS), *words, *goals], capture_output=True, text=True)


def run(command: list[str]) -> str:
    """Run a program; return what went wrong."""
    quiet = {"WINEDEBUG": "-all", "WINEPREFIX": str(TESTS / "build" / "wine")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **quiet}, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{Path(command[-1]).name}: {error}"
    return "" if done.returncode == 0 else f"{Path(command[-1]).name}: {(done.stdout + done.stderr)[-400:]}"


def try_target(target: Target, bits: Path, quick: bool) -> tuple[dict[str, str], list[str]]:
    """Compile and run; return a line of the table, and what went wrong."""
    runs = target.runner is not None and (not quick or target.name in RUN_QUICKLY)
    # A program is linked with the system's C library, which zig compiles first: a minute or two.
    links = runs or not quick
    build = f"build/{target.name}" if links else f"build/{target.name}-core"
    goal = "programs" if links else f"{build}/libattn.a"
    flags = "-O2" if not quick else "-O1" if runs else "-O0"
    made = make(build, f"{ZIG} cc -target {target.name}", goal, flags=flags)
    if made.returncode:
        return {"built": "no"}, [made.stderr[-2000:]]
    row = {"built": "yes" if links else "the core", "C tests run": "no", "same bits": "", "extension": ""}
    problems = []
    if target.name in extensions.WHEELS:
        try:
            row["extension"] = extensions.build(target.name, ZIG.split(), TESTS / build, "-O0" if quick else "-O2")
        except CommandError as error:
            row["extension"] = "no"
            problems.append(str(error))
    if not runs:
        return row, problems
    runner = target.runner()
    if runner is None:
        row["C tests run"] = "SKIPPED: no emulator here"
        return row, problems
    programs = sorted(path for path in (TESTS / build).glob("test_*") if not path.suffix)
    left_out = (*target.left_out, *(SLOW if quick else ()))
    chosen = [path for path in programs if path.name.removeprefix("test_") not in left_out]
    problems += [run([*runner, str(path)]) for path in chosen]
    problems.append(run([*runner, str(TESTS / build / "test_bits"), "--compare", str(bits)]))
    row["C tests run"] = f"{len(chosen)} of {len(programs)}"
    row["same bits"] = "no" if problems[-1] else "yes"
    return row, [problem for problem in problems if problem]


def main() -> int:
    """Print the table; 1 if something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help_names = f"parts of names, as macos; default: all of {', '.join(target.name for target in TARGETS)}"
    parser.add_argument("names", nargs="*", help=help_names)
    help_quick = "compile the core; compile and run tests where nothing else does, the quick ones: for CI"
    parser.add_argument("--quick", action="store_true", help=help_quick)
    options = parser.parse_args()
    for name in options.names:
        if not any(name in target.name for target in TARGETS):
            parser.error(f"no target is called {name}")
    chosen = [t for t in TARGETS if not options.names or any(name in t.name for name in options.names)]
    failed = False
    columns = ("built", "C tests run", "same bits", "extension")
    print(f"| target | {' | '.join(columns)} | seconds |\n|{'---|' * (len(columns) + 2)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        bits = Path(folder, "bits")
        made = make("build/check", os.environ.get("CC", "cc"), "build/check/test_bits")
        if made.returncode or run([str(TESTS / "build/check/test_bits"), "--write", str(bits)]):
            sys.exit(f"this machine's own bits are missing:\n{made.stderr}")
        for target in chosen:
            began = time.monotonic()
            row, problems = try_target(target, bits, options.quick)
            cells = [row.get(column, "") for column in columns]
            print(f"| {target.name} | {' | '.join(cells)} | {time.monotonic() - began:.0f} |", flush=True)
            for problem in problems:
                failed = True
                print(problem, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

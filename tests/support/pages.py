"""Run the code blocks of Markdown pages as a reader pastes them, and hold what they print against what the page shows.

A page's python blocks run from top to bottom in one fresh interpreter. A text block right after one shows what it
prints. A text block that begins with ``$ python`` shows a command and what that prints.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from typing import NamedTuple

from support.helpers import ROOT

FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
MEASURED = re.compile(r"\b(ms|us|seconds|MiB|GB/s|GFLOP/s)\b|\btimes\b")  # lines whose numbers differ from run to run
RUN = """
import contextlib, io, json, sys, types

sys.modules["__main__"] = page = types.ModuleType("__main__")
printed = []
for place, source in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, place, "exec"), vars(page))
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    output: str | None
    """What the text block right below it holds, if there is one."""


def blocks(page):
    """Every block of a page's text, in order."""
    found = list(FENCE.finditer(page))
    given = []
    for fence, following in zip(found, [*found[1:], None], strict=True):
        output = None
        if following and following[2] == "text" and not page[fence.end() : following.start()].strip():
            output = textwrap.dedent(following[3])
        given.append(Block(fence[2], textwrap.dedent(fence[3]), page.count("\n", 0, fence.start()) + 1, output))
    return given


def run_python(name, given, folder):
    """Run python blocks one after the other in a fresh interpreter; return what each of them prints."""
    sources = [(f"{name}, line {block.line}", block.text) for block in given]
    done = _run([sys.executable, "-W", "error", "-c", RUN], folder, json.dumps(sources))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def run_command(line, folder):
    """Run a command line that begins with ``python``; return what it prints."""
    _, *arguments = shlex.split(line)
    return _run([sys.executable, *arguments], folder).stdout


def _run(command, folder, given=None):
    """Run a command in a folder, with pyattn of this checkout."""
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH", "")) if path)
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, input=given, cwd=folder, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


def differences(printed, shown):
    """Yield pairs of lines that say different things: printed ones, and those that a page shows.

    Spaces do not count. Numbers may differ by one in the last digit that is shown, and by anything where the line has
    a unit of time or memory. A line ``...`` stands for any number of lines.
    """
    got, expected = _lines(printed), _lines(shown)
    while expected:
        line = expected.pop(0)
        if line == "...":
            if not expected:
                return
            while got and not _agree(got[0], expected[0]):
                got.pop(0)
            continue
        now = got.pop(0) if got else ""
        if not _agree(now, line):
            yield now, line
    yield from ((line, "") for line in got)


def _lines(text):
    """Lines with something on them, each with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _agree(printed, shown):
    """Whether two lines say the same."""
    words = [[part.strip() for part in NUMBER.split(line)] for line in (printed, shown)]
    if words[0] != words[1]:
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return bool(MEASURED.search(shown)) or all(abs(float(a) - float(b)) <= _last_digit(b) for a, b in pairs)


def _last_digit(number):
    """What one more in the last digit of a number is worth; 0 for integers, which have to be the same."""
    mantissa, _, exponent = number.partition("e")
    _, point, decimals = mantissa.partition(".")
    return 1.001 * 10.0 ** (int(exponent or 0) - len(decimals)) if point or exponent else 0.0

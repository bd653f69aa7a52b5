"""Run the code of Markdown pages as a reader pastes it, and hold what it prints against what the page shows.

README's python blocks run from top to bottom in one fresh interpreter, and the text block right below one shows what it
prints. A page of docs/ is a doctest: its python blocks without prompts are files that run, and its text blocks that
begin with ``$ python -m pyattn`` are commands that run, in the order of the page and in one folder.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

from support.helpers import ROOT

FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
NUMBER = r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?"
PIECES = re.compile(rf"(\.\.\.|{NUMBER})")
MEASURED = re.compile(r" ?(?:ms|us|s|seconds|MiB|GB/s|GFLOP/s|times)\b")  # after a number that differs from run to run
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
SCRIPT = "mine.py"
"""What the file of a page is called in its commands."""


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
    made = []
    for fence, following in itertools.zip_longest(found, found[1:]):
        shown = following and following[2] == "text" and not page[fence.end() : following.start()].strip()
        output = textwrap.dedent(following[3]) if shown and not following[3].startswith("$ ") else None
        made.append(Block(fence[2], textwrap.dedent(fence[3]), page.count("\n", 0, fence.start()) + 1, output))
    return made


def run_python(name, given, folder):
    """Run python blocks one after the other in a fresh interpreter; return what each of them prints."""
    sources = [(f"{name}, line {block.line}", block.text) for block in given]
    done = _run([sys.executable, "-W", "error", "-c", RUN], folder, json.dumps(sources))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_doctest(page, not_run):
    """The text of a page, line for line, in which scripts and commands are examples of a doctest, too.

    `not_run` tells for a command, or the first line of a script, whether it is left out.
    """
    lines = page.split("\n")
    for block in blocks(page):
        example = None
        if block.language == "python" and ">>> " not in block.text:
            if not_run(block.text.partition("\n")[0]):
                continue
            example = f"run_script({block.text!r}, {block.output!r})"
        elif block.language == "text" and block.text.startswith("$ "):
            typed = re.sub(r"\\\n\s*", "", block.text)  # a command goes on in the next line
            commands = [part.partition("\n")[::2] for part in re.split(r"^\$ ", typed, flags=re.MULTILINE)[1:]]
            kept = [(line, shown) for line, shown in commands if " -m pyattn" in line and not not_run(line)]
            example = f"run_commands({kept!r})"
        if example:
            end = block.line + block.text.count("\n")
            lines[block.line - 1 : end + 1] = [f">>> {example}", *[""] * (end - block.line + 1)]
    lines[0] = ">>> from support.pages import run_commands, run_script"
    return "\n".join(lines)


def run_script(source, shown):
    """Run a file of python; print how its output differs from what is shown, if anything is."""
    Path(SCRIPT).write_text(source, encoding="utf-8")
    done = _run([sys.executable, SCRIPT])
    if done.returncode:
        print(done.stdout)
    if shown is not None:
        _print_differences(SCRIPT, done.stdout, shown)


def run_commands(given):
    """Run command lines; print how the output of each differs from what is shown below it."""
    for line, shown in given:
        words = shlex.split(line)
        settings = dict(word.split("=", 1) for word in words[: words.index("python")])
        done = _run([sys.executable, *words[words.index("python") + 1 :]], settings=settings)
        _print_differences(line, done.stdout, shown)


def _print_differences(what, printed, shown):
    for got, expected in differences(printed, shown):
        print(f"{what}\n  prints: {got}\n  shown:  {expected}")


def _run(command, folder=".", given=None, settings=None):
    """Run a command in a folder, with pyattn of this checkout; errors go where the rest goes, unless there is input."""
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH", "")) if path)
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths, **(settings or {})},
        input=given,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if given is None else subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )


def differences(printed, shown):
    """Yield pairs of lines that say different things: a printed one, and the one that a page shows.

    Spaces do not count. Numbers may differ by one in the last digit that is shown, and by anything before a unit of
    time, speed or memory. ``...`` stands for the rest of a line, and on a line of its own for any number of lines.
    """
    got, expected = _lines(printed), _lines(shown)
    while expected:
        line = expected.pop(0)
        if line == "...":
            while got and not (expected and _agree(got[0], expected[0])):
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
    pieces = PIECES.split(shown)
    patterns = [".*?" if x == "..." else f"({NUMBER})" if re.fullmatch(NUMBER, x) else re.escape(x) for x in pieces]
    match = re.fullmatch("".join(patterns), printed)
    if match is None:
        return False
    numbers = [(x, after) for x, after in zip(pieces, [*pieces[1:], ""], strict=True) if re.fullmatch(NUMBER, x)]
    return all(
        MEASURED.match(after) or abs(float(ours) - float(x)) <= _last_digit(x)
        for ours, (x, after) in zip(match.groups(), numbers, strict=True)
    )


def _last_digit(number):
    """What one more in the last digit of a number is worth; 0 for integers, which have to be the same."""
    mantissa, _, exponent = number.partition("e")
    _, point, decimals = mantissa.partition(".")
    return 1.001 * 10.0 ** (int(exponent or 0) - len(decimals)) if point or exponent else 0.0

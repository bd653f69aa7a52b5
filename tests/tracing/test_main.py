"""``python -m pyattn`` in a shell, whose output may be closed, full, a broken pipe, or of a small encoding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from support.helpers import ROOT

UNUSUAL = """
def 注意(query, key, value):
    scores = query @ key.T / query.shape[-1] ** 0.5
    exponentials = 2.718281828459045 ** (scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value
"""
SLOW = {"compare", "check"}

quick_and_slow = pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])


@pytest.fixture
def commands(tmp_path):
    """Every sub-command with arguments for which it prints."""
    (tmp_path / "mine.py").write_text(UNUSUAL, encoding="utf-8")
    arrays = {"query": [[1]], "key": [[1]], "value": [[1]], "tokens": ["猫"]}
    (tmp_path / "cat.json").write_text(json.dumps(arrays))
    page = ["-o", str(tmp_path / "page.html")]
    return {
        "help": ["--help"],
        "demo": ["demo"],
        "info": ["info"],
        "info as JSON": ["info", "--json"],
        "compare": ["compare"],
        "explain": ["explain", *page],
        "explain a file": ["explain", str(tmp_path / "cat.json"), "--text", *page],
        "check": ["check", f"{tmp_path / 'mine.py'}:注意"],
        "embed": ["embed", "猫", "a"],  # without the model it says so
    }


def run(arguments, stdout=subprocess.PIPE, *, closed=False, **environment):
    words = [sys.executable, "-m", "pyattn", *arguments]
    words = ["sh", "-c", 'exec "$@" >&-', "sh", *words] if closed else words
    env = {**os.environ, "PYTHONUTF8": "0", **environment}
    return subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, cwd=ROOT, env=env, timeout=120, check=False)


def assert_one_line(done, name):
    """Of the sub-command itself, or of `python -m pyattn`; explain --text names its page, too."""
    lines = [line for line in done.stderr.decode().splitlines() if not line.endswith("open it in a browser")]
    assert done.returncode == 2, (name, lines)
    assert len(lines) == 1, (name, lines)
    assert lines[0].startswith("python -m pyattn"), name


@quick_and_slow
def test_a_closed_output_gets_a_line(commands, slow):
    for name, arguments in commands.items():
        if (name in SLOW) == slow:
            assert_one_line(run(arguments, closed=True), name)


@quick_and_slow
def test_a_full_output_gets_a_line(commands, slow):
    for name, arguments in commands.items():
        if (name in SLOW) == slow:
            unbuffered = "1" if name in ("demo", "help") else ""  # the demo would measure before it finds out
            with open("/dev/full", "wb") as full:
                assert_one_line(run(arguments, full, PYTHONUNBUFFERED=unbuffered), name)


def test_characters_that_the_encoding_lacks_are_escaped(commands):
    explained = run(commands["explain a file"], PYTHONIOENCODING="ascii")
    assert (explained.returncode, explained.stderr.decode().count("\n")) == (0, 1)
    assert b"Scores for input 1 (\\u732b)" in explained.stdout
    checked = run(commands["check"], PYTHONIOENCODING="ascii")
    assert (checked.returncode, checked.stderr) == (0, b"")
    assert checked.stdout.startswith(b"\\u6ce8\\u610f: all ")


@pytest.mark.parametrize("options", [["info"], ["-u", "info"], ["info", "--json"]], ids=str)
def test_a_reader_who_has_seen_enough_ends_it_quietly(options):
    """As in `python -m pyattn | head -1`, and whether lines leave one by one or all at once."""
    unbuffered, *arguments = options if options[0] == "-u" else ["-B", *options]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, unbuffered, "-m", "pyattn", *arguments]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False)
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 128 + signal.SIGPIPE

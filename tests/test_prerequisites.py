"""`make` says in one line what it needs and does not find: tools/check_prerequisites.sh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parent.parent / "tools" / "check_prerequisites.sh"


def complaint(python):
    """The line it prints; empty where all is there."""
    ran = subprocess.run(["sh", CHECK, str(python)], capture_output=True, text=True)
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == (ran.returncode != 0)
    return ran.stderr


def make_interpreter(path, lines):
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_may_have_a_space_in_its_path(tmp_path):
    python = make_interpreter(tmp_path / "my python", f'exec "{sys.executable}" "$@"')
    assert complaint(python) == complaint(sys.executable)


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.15"])
def test_another_version_is_named_with_the_way_out(version, tmp_path):
    python = make_interpreter(tmp_path / "python", f"echo {version}")
    line = complaint(python)
    assert f"needs Python 3.10 to 3.14, and '{python}' is {version}" in line
    assert "make PYTHON=python3" in line
    assert "apt install" not in line  # it is installed


def test_what_is_no_python_is_called_so(tmp_path):
    assert "is not a Python that runs" in complaint(make_interpreter(tmp_path / "python", "exit 1"))


def test_an_empty_or_missing_interpreter_is_called_so():
    assert "PYTHON is empty" in complaint("")
    assert "there is no 'no such python'" in complaint("no such python")

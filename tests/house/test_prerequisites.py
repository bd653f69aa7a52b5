"""`make` says in one line what it needs and does not find: tools/check_prerequisites.sh."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.helpers import for_each

CHECK = Path(__file__).parents[2] / "tools" / "check_prerequisites.sh"
VERSION = "{}.{}".format(*sys.version_info)


def complaint(python, **environment):
    """The line it prints; empty where all is there. A CC that is set here has no say."""
    shell = shutil.which("sh")  # also where PATH leads nowhere
    env = {**os.environ, "CC": "", **{name: str(text) for name, text in environment.items()}}
    ran = subprocess.run([shell, CHECK, str(python)], env=env, capture_output=True, text=True)
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == (ran.returncode != 0)
    return ran.stderr


def make_interpreter(path, lines):
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return path


def complaint_after(lines, directory):
    """What is said of this very interpreter when some lines of Python run first: they take away what it has."""
    (directory / "sitecustomize.py").write_text(lines)
    return complaint(sys.executable, PYTHONPATH=directory)


def test_nothing_is_said_where_these_tests_were_built():
    assert complaint(sys.executable) == ""


@pytest.mark.parametrize("compiler", ["gcc -pthread", "no-such-compiler"])
def test_a_missing_compiler_has_a_package(compiler, tmp_path):
    assert complaint(sys.executable, CC=compiler, PATH=tmp_path) == (
        f"pyattn needs a C compiler, and '{compiler}' does not compile a program. Fix: apt install build-essential\n"
    )


def test_without_cc_the_compiler_is_the_one_that_this_python_was_built_with(tmp_path):
    configured = "import sysconfig; sysconfig.get_config_vars()['CC'] = 'gcc-of-old -O2'"
    assert "and 'gcc-of-old -O2' does not compile" in complaint_after(configured, tmp_path)


def test_a_compiler_that_does_not_compile_is_as_good_as_none(tmp_path):
    """Without the C library's headers, say."""
    compiler = make_interpreter(tmp_path / "cc", "exit 1")
    assert complaint(sys.executable, CC=compiler).endswith("Fix: apt install build-essential\n")


def test_missing_headers_of_python_have_a_package_of_its_version(tmp_path):
    elsewhere = f"import sysconfig; sysconfig.get_path = lambda name: {str(tmp_path)!r}"
    assert complaint_after(elsewhere, tmp_path) == (
        f"pyattn needs Python's C headers, and Python.h is missing for '{sys.executable}'. "
        f"Fix: apt install python{VERSION}-dev\n"
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "lines",
    [
        "import sys; sys.modules['venv'] = None",
        "import sys; sys.modules['ensurepip'] = None",  # Debian's Python without its package for venv
        "import ensurepip; ensurepip.version = lambda: open('/no such/pip.whl')",
    ],
    ids=["venv", "ensurepip", "pip"],
)
def test_missing_environments_have_a_package_of_its_version(lines, tmp_path):
    assert complaint_after(lines, tmp_path) == (
        f"pyattn needs virtual environments, and '{sys.executable}' has no venv with pip. "
        f"Fix: apt install python{VERSION}-venv\n"
    )


def test_an_interpreter_may_have_a_space_in_its_path(tmp_path):
    python = make_interpreter(tmp_path / "my python", f'exec "{sys.executable}" "$@"')
    assert complaint(python) == complaint(sys.executable)


@for_each("version", ["2.7", "3.1", "3.9"])
def test_an_old_version_is_named_with_the_way_out(version, tmp_path):
    python = make_interpreter(tmp_path / "python", f"echo {version}")
    line = complaint(python)
    assert f"needs Python 3.10 or later, and '{python}' is {version}" in line
    assert "make PYTHON=python3" in line
    assert "apt install" not in line  # it is installed


@for_each("version", ["3.10", "3.14", "3.20"])
def test_a_later_version_is_accepted_as_in_pyproject(version, tmp_path):
    python = make_interpreter(tmp_path / "python", f"echo {version}")
    assert "needs a C compiler" in complaint(python, CC="no-such-compiler")  # the check after that of the version
    requires = 'requires-python = ">=3.10"'
    assert requires in (CHECK.parents[1] / "pyproject.toml").read_text().splitlines()


def test_what_is_no_python_is_called_so(tmp_path):
    assert "is not a Python that runs" in complaint(make_interpreter(tmp_path / "python", "exit 1"))


def test_an_empty_or_missing_interpreter_is_called_so():
    assert "PYTHON is empty" in complaint("")
    assert "'no such python' is not there" in complaint("no such python")

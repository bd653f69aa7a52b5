"""The examples of the pages in docs/ run and print what the pages say, with the options of pyproject.toml."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support.helpers import CODE_BLOCK, ROOT

# project/ shows files of the repository's root.
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "project")
SLOW = ("gallery.md", "how-fast-and-how-exact.md")


def parameter(page):
    """What imports torch is left out where torch is: PYATTN_TEST_PEERS=0 names it in the summary."""
    peers = re.search(r"^>>> .*\bimport\b.*\btorch\b", page.read_text(), re.MULTILINE)
    marks = [pytest.mark.peers] * bool(peers) + [pytest.mark.slow] * (page.name in SLOW)
    return pytest.param(page, id=page.name, marks=marks)


def run_page(page, folder):
    """In a folder for the files that it writes."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-glob=*.md", str(page)]
    paths = os.pathsep.join(path for path in (str(ROOT), os.environ.get("PYTHONPATH", "")) if path)
    return subprocess.run(
        [*command, f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"],
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("page", [parameter(page) for page in PAGES])
def test_the_examples_of_a_page_do_what_it_says(page, tmp_path):
    assert page.read_text().count(">>> ") > 3, "a page without examples"
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_that_is_wrong_fails(tmp_path):
    page = tmp_path / "wrong.md"
    page.write_text("```pycon\n>>> import pyattn\n>>> pyattn.softmax([0, 0])\narray([0.5, 0.3])\n\n```\n")
    done = run_page(page, tmp_path)
    assert done.returncode == 1
    assert "Expected:\n    array([0.5, 0.3])" in done.stdout


IN_CHINESE = [page for page in PAGES if page.name.endswith(".zh-CN.md")]


def english_of(page):
    return page.with_name(page.name.replace(".zh-CN.md", ".md"))


@pytest.mark.parametrize("page", [page for page in IN_CHINESE if english_of(page).exists()], ids=lambda page: page.name)
def test_a_page_in_chinese_has_the_code_of_the_english_one(page):
    assert CODE_BLOCK.findall(page.read_text(encoding="utf-8")) == CODE_BLOCK.findall(
        english_of(page).read_text(encoding="utf-8")
    )


def test_there_are_pages():
    names = {page.name for page in PAGES}
    assert {"check-a-pytorch-module.md", "the-eight-steps.zh-CN.md"} <= names

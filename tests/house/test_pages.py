"""The examples of the pages in docs/ run and print what the pages say, with the options of pyproject.toml."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support.helpers import CODE_BLOCK, ROOT

PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if ">>> " in page.read_text(encoding="utf-8"))
SLOW = ("draw-figures.md",)


def needs_torch(page):
    return re.search(r"^>>> .*\bimport\b.*\btorch\b", page.read_text(), re.MULTILINE) is not None


def needs_minilm(page):
    return ">>> encoder = pyattn.models.SentenceEncoder.load()" in page.read_text() and not needs_torch(page)


def needs_numpy_alone(page):
    return not (needs_torch(page) or needs_minilm(page))


def run_pages(pages, folder):
    """In a folder for the files that they write."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-glob=*.md", *map(str, pages)]
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


def assert_pages_do_what_they_say(pages, folder):
    done = run_pages(pages, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(pages)} passed" in done.stdout


def test_the_examples_of_pages_do_what_they_say(tmp_path):
    assert_pages_do_what_they_say([x for x in PAGES if x.name not in SLOW and needs_numpy_alone(x)], tmp_path)


@pytest.mark.peers
def test_the_examples_of_pages_with_torch_do_what_they_say(tmp_path):
    assert_pages_do_what_they_say([x for x in PAGES if x.name not in SLOW and needs_torch(x)], tmp_path)


def test_the_examples_of_pages_with_minilm_do_what_they_say(minilm, tmp_path):
    assert_pages_do_what_they_say([x for x in PAGES if x.name not in SLOW and needs_minilm(x)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_examples_of_slow_pages_do_what_they_say(name, tmp_path):
    assert_pages_do_what_they_say([x for x in PAGES if x.name == name], tmp_path)


def test_a_page_that_is_wrong_fails(tmp_path):
    page = tmp_path / "wrong.md"
    page.write_text("```pycon\n>>> import pyattn\n>>> pyattn.softmax([0, 0])\narray([0.5, 0.3])\n\n```\n")
    done = run_pages([page], tmp_path)
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

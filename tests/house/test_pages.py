"""The code of the pages in docs/ runs as pasted, from top to bottom, and prints what the pages say.

Examples with prompts are doctests, with the options of pyproject.toml; scripts and commands are run by `support.pages`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial

import pytest
from support.helpers import CODE_BLOCK, ROOT
from support.pages import as_doctest, differences

DOCS = ROOT / "docs"
COMMAND = re.compile(r"^\$ .*-m pyattn", re.MULTILINE)
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if ">>> " in page.read_text(encoding="utf-8") or COMMAND.search(page.read_text(encoding="utf-8"))
)
INSTALLS_A_FOLDER = re.compile(r"pip install(?: [^`\n]*?)? '?\.(?=[\[`\s'])[^`\n]*")
SLOW = ("draw-figures.md",)
INFO = r"(PYATTN_\w+=\w+ )*python -m pyattn info"
NOT_RUN = {
    "command-line.md": {
        r"python -m pyattn": "tests/tracing/test_article.py holds the demo to its output",
        r"python -m pyattn check .*": "test-your-implementation.md has the file, and runs it",
        r"python -m pyattn embed .*": "embed-and-search-sentences.md runs it with MiniLM",
        r"python -m pyattn accelerate .*": "takes a model that the page does not make; tests/interop runs it",
        r"python -m pyattn test": "takes a minute; tests/testing runs its parts",
        INFO: "prints what this machine is",
    },
    "install.md": {r"python -m pyattn test": "takes a minute; tests/testing runs its parts"},
    "threads-and-instruction-sets.md": {INFO: "prints what this machine is"},
    "make-a-pytorch-model-faster.md": {r"model = transformers\..*": "takes a model; faster-transformers.ipynb has one"},
}
"""Of a page, the commands and the first lines of scripts that no test here runs, and why."""


def not_run(page, line):
    return any(re.fullmatch(pattern, line) for pattern in NOT_RUN.get(page, ()))


def needs_torch(page):
    return re.search(r"^>>> .*\bimport\b.*\btorch\b", page.read_text(), re.MULTILINE) is not None


def needs_transformers(page):
    return re.search(r"^(>>> )?import transformers$", page.read_text(), re.MULTILINE) is not None


def needs_minilm(page):
    return ">>> encoder = pyattn.models.SentenceEncoder.load()" in page.read_text() and not needs_torch(page)


def needs_numpy_alone(page):
    return not (needs_torch(page) or needs_minilm(page))


def run_pages(pages, folder):
    """In a folder for the files that they write."""
    copies = folder / "pages"
    for page in pages:
        copy = copies / page.relative_to(DOCS) if page.is_relative_to(DOCS) else copies / page.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(as_doctest(page.read_text(encoding="utf-8"), partial(not_run, page.name)), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-glob=*.md", str(copies)]
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [*command, f"--rootdir={copies}", f"--config-file={ROOT / 'pyproject.toml'}"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
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
    pages = [x for x in PAGES if x.name not in SLOW and needs_torch(x) and not needs_transformers(x)]
    assert_pages_do_what_they_say(pages, tmp_path)


@pytest.mark.peers
def test_the_examples_of_pages_with_transformers_do_what_they_say(transformers, tmp_path):
    assert_pages_do_what_they_say([x for x in PAGES if needs_transformers(x)], tmp_path)


def test_the_examples_of_pages_with_minilm_do_what_they_say(minilm, tmp_path):
    assert_pages_do_what_they_say([x for x in PAGES if x.name not in SLOW and needs_minilm(x)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_the_examples_of_slow_pages_do_what_they_say(name, tmp_path):
    assert_pages_do_what_they_say([x for x in PAGES if x.name == name], tmp_path)


WRONG = {
    "an example": (
        "```pycon\n>>> import pyattn\n>>> pyattn.softmax([0, 0])\narray([0.5, 0.3])\n\n```",
        "array([0.5, 0.3])",
    ),
    "a command": ("```text\n$ python -m pyattn nothing\nAll is well.\n```", "shown:  All is well."),
    "a script": ("```python\nprint(2 + 2)\n```\n\n```text\n5\n```", "shown:  5"),
    "a script that fails": ("```python\nprint(what)\n```", "NameError"),
}


@pytest.mark.parametrize(("code", "complaint"), WRONG.values(), ids=WRONG)
def test_a_page_that_is_wrong_fails(code, complaint, tmp_path):
    page = tmp_path / "wrong.md"
    page.write_text(f"# A page\n\n{code}\n")
    done = run_pages([page], tmp_path)
    assert done.returncode == 1
    assert complaint in done.stdout


def test_a_page_keeps_its_lines_as_a_doctest():
    page = "# A page\n\n```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\n\n```pycon\n>>> 1\n1\n\n```\n"
    lines = as_doctest(page, lambda line: False).split("\n")
    assert lines[2:6] == [r">>> run_script('x = 1\nprint(x)\n', '1\n')", "", "", ""]
    assert lines[11:] == page.split("\n")[11:]


def test_a_command_may_take_two_lines():
    page = "# A page\n\n```text\n$ python -m pyattn check \\\n    mine.py:attention\nAll is well.\n```\n"
    lines = as_doctest(page, lambda line: False).split("\n")
    assert lines[2:] == [
        r">>> run_commands([('python -m pyattn check mine.py:attention', 'All is well.\n')])",
        *[""] * 5,
    ]


def test_outputs_agree_to_the_digits_that_are_shown():
    assert list(differences("a  1.2349 b\n\nc 3", "a 1.235 b\nc 3")) == []
    assert list(differences("a 1.24", "a 1.22")) == [("a 1.24", "a 1.22")]
    assert list(differences("3 cases", "4 cases")) == [("3 cases", "4 cases")]
    assert list(differences("NumPy 17.5 ms", "NumPy 2.31 ms")) == []
    assert list(differences("2 cases, 17.5 ms", "2 cases, 2.31 ms")) == []
    assert list(differences("2 cases, 17.5 ms", "3 cases, 17.5 ms")) != []
    assert list(differences("NumPy 17.5 ms", "torch 17.5 ms")) != []
    assert list(differences("a\nb\nc\nd: 1, 2", "a\n...\nd: 1, ...")) == []
    assert list(differences("a\nb", "a")) == [("b", "")]
    assert list(differences("a", "a\nb")) == [("", "b")]


def test_what_is_not_run_is_still_shown():
    for name, patterns in NOT_RUN.items():
        for page in DOCS.rglob(name):
            lines = [line.removeprefix("$ ") for line in page.read_text(encoding="utf-8").splitlines()]
            assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, line) for line in lines)] == []


IN_CHINESE = [page for page in PAGES if page.name.endswith(".zh-CN.md")]


def english_of(page):
    return page.with_name(page.name.replace(".zh-CN.md", ".md"))


@pytest.mark.parametrize("page", [page for page in IN_CHINESE if english_of(page).exists()], ids=lambda page: page.name)
def test_a_page_in_chinese_has_the_code_of_the_english_one(page):
    assert CODE_BLOCK.findall(page.read_text(encoding="utf-8")) == CODE_BLOCK.findall(
        english_of(page).read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("page", IN_CHINESE, ids=lambda page: page.name)
def test_a_paragraph_in_chinese_is_one_line(page):
    """A browser shows a line break between two Chinese characters as a space."""
    assert re.findall(r".*[\u2e80-\uffff]\n *[\u2e80-\uffff].*", page.read_text(encoding="utf-8")) == []


def test_pages_that_install_a_folder_install_it_editable():
    """Otherwise Python, started in that folder, finds the sources first, where the core is not built."""
    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"), *ROOT.glob("README*.md")]
    found = [
        (page.name, command)
        for page in pages
        for command in INSTALLS_A_FOLDER.findall(page.read_text(encoding="utf-8"))
    ]
    assert {"index.md", "README.md", "digits.ipynb"} <= {name for name, _ in found}
    assert [one for one in found if not re.search(r" (-e|--editable) ", one[1])] == [("install.md", "pip install .")]


def test_there_are_pages():
    names = {page.name for page in PAGES}
    assert {"check-a-pytorch-module.md", "the-eight-steps.zh-CN.md"} <= names
    with_scripts = {page for page in DOCS.rglob("*.md") if "```python\n" in page.read_text(encoding="utf-8")}
    assert {page.name for page in with_scripts} >= {"test-your-implementation.md"}
    assert with_scripts <= set(PAGES)

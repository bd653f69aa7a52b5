"""README.md does what it shows, and README.zh-CN.md says the same: code, numbers and names, section by section."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter

import pytest
from support.helpers import CODE_BLOCK, ROOT
from support.pages import blocks, differences, run_python

import pyattn

ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def sections(text):
    return re.split(r"^## ", text, flags=re.MULTILINE)


def pairs():
    """Sections in English and in Chinese, by their place."""
    return list(zip(sections(ENGLISH), sections(CHINESE), strict=True))


def prose(text):
    return CODE_BLOCK.sub("", text)


def table(text):
    """Rows of cells."""
    return [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]


def numbers(text):
    return re.findall(r"\d+(?:\.\d+)*", text)


def spans(text):
    return Counter(re.findall(r"`[^`]+`", prose(text)))


def test_there_is_something_to_compare():
    assert len(sections(ENGLISH)) > 5
    assert len(CODE_BLOCK.findall(ENGLISH)) > 8
    assert len(table(ENGLISH)) > 7


def test_each_readme_leads_to_the_other_at_its_top():
    assert ENGLISH.splitlines()[2] == "[简体中文](README.zh-CN.md)"
    assert CHINESE.splitlines()[2] == "[English](README.md)"


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_what_is_linked_is_there(text):
    links = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'\bsrc(?:set)?="([^"]+)"', text)
    assert "docs/pictures/steps.gif" in links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_both_have_the_same_code():
    for english, chinese in pairs():
        assert CODE_BLOCK.findall(chinese) == CODE_BLOCK.findall(english)


def test_both_tables_have_the_same_numbers_in_the_same_cells():
    for english, chinese in pairs():
        rows = [[[numbers(cell) for cell in row] for row in table(text)] for text in (english, chinese)]
        assert rows[1] == rows[0]


def test_both_name_the_same_numbers_functions_and_files():
    for english, chinese in pairs():
        assert spans(chinese) == spans(english)
        assert Counter(numbers(prose(chinese))) == Counter(numbers(prose(english)))


PYTHON = [block for block in blocks(ENGLISH) if block.language == "python"]
WITH_NUMPY_ALONE = [block for block in PYTHON if "SentenceEncoder" not in block.text]


def assert_prints_what_is_shown(given, folder):
    for block, printed in zip(given, run_python("README.md", given, folder), strict=True):
        assert list(differences(printed, block.output)) == [], printed


def test_every_block_of_code_shows_what_it_prints():
    assert [block.line for block in PYTHON if not block.output] == []
    assert len(WITH_NUMPY_ALONE) == len(PYTHON) - 1 >= 4


def test_the_code_runs_as_pasted_and_prints_what_is_shown(tmp_path):
    assert_prints_what_is_shown(WITH_NUMPY_ALONE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["trace.html"]


def test_the_code_that_needs_a_model_runs_after_it(minilm, tmp_path):
    assert_prints_what_is_shown(PYTHON, tmp_path)


def test_a_fresh_machine_takes_the_first_block_for_its_example():
    """As tools/fresh-machine finds it."""
    script = (ROOT / "tools" / "fresh-machine").read_text(encoding="utf-8")
    command = re.search(r"sed -n '(.*)' \"\$project/README.md\" >", script)[1]
    done = subprocess.run(["sed", "-n", command, ROOT / "README.md"], capture_output=True, text=True, check=True)
    assert done.stdout == PYTHON[0].text


def test_times_and_memory_of_a_prototype_are_those_saved_in_the_notebook():
    page = "docs/how-to/speed-up-a-numpy-prototype.ipynb"
    cells = json.loads((ROOT / page).read_text(encoding="utf-8"))["cells"]
    saved = "".join(text for cell in cells for out in cell.get("outputs", ()) for text in out.get("text", ()))
    numpy, ours = re.search(r"^ *1,024 +2 attention +(\S+ \S+) +(\S+ \S+) ", saved, re.MULTILINE).groups()
    memory = [
        f"{float(re.search(rf'^{name} +(.*) MiB', saved, re.MULTILINE)[1]):g} MiB" for name in ("NumPy", "pyattn")
    ]
    for text in (ENGLISH, CHINESE):
        paragraph = next(part for part in text.split("\n\n") if "1,024" in part and page in part)
        assert re.findall(r"[\d.]+ (?:us|ms|MiB)", paragraph) == [numpy, ours, *memory]


def test_versions_of_python_are_those_of_the_package():
    minors = re.findall(r"Python :: 3\.(\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"needs Python 3.{minors[0]} to 3.{minors[-1]} and NumPy" in ENGLISH  # the Chinese one has the same numbers


def test_what_is_cited_is_this_version():
    assert f"\nversion: {pyattn.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")

"""The notebooks of docs/ can be read as they are saved, and tools/notebooks.py fails where they are out of date.

`make notebooks` runs the notebooks, and then this.
"""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

RUNNER = Path(__file__).with_name("notebooks.py")
DOCS = RUNNER.parent.parent / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
MOST_BYTES = 300_000
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)


def test_the_site_has_every_notebook():
    listed = re.findall(r"^([\w-]+/[\w-]+)$", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert len(NOTEBOOKS) >= 4
    assert {path.relative_to(DOCS).with_suffix("").as_posix() for path in NOTEBOOKS} <= set(listed)


# As they are saved


def outputs_of(path):
    return [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", ())]


@every_notebook
def test_a_notebook_is_small(path):
    assert path.stat().st_size < MOST_BYTES


@every_notebook
def test_every_cell_was_run_in_order(path):
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))


@every_notebook
def test_nothing_is_saved_of_warnings_or_errors(path):
    for output in outputs_of(path):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]


@every_notebook
def test_no_output_names_a_place_of_the_machine(path):
    text = "\n".join(
        "".join(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in outputs_of(path)
    )
    assert not re.search(r"(?<![\w.])/(home|root|tmp|Users|usr|opt)/| at 0x[0-9a-f]+", text)


@every_notebook
def test_pictures_are_opaque(path):
    """Black labels on a transparent ground could not be read on a dark page."""
    for output in outputs_of(path):
        picture = output.get("data", {}).get("image/png")
        if picture is not None:
            with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
                assert image.convert("RGBA").getextrema()[3] == (255, 255)


@every_notebook
def test_a_notebook_asks_for_the_usual_kernel(path):
    metadata = json.loads(path.read_text())["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert metadata["language_info"] == {"name": "python"}, "a version of Python says nothing about the notebook"


# What the runner makes of one cell


def text(words):
    return {"output_type": "stream", "name": "stdout", "text": words}


@pytest.fixture
def run(tmp_path):
    """A function that runs a notebook of one cell, which has some output saved, and returns (status, text, path)."""

    def run(source, *saved, tags=(), options=()):
        cell = {"cell_type": "code", "id": "the-cell", "source": source, "outputs": saved}
        cell |= {"execution_count": 1, "metadata": {"tags": list(tags)}}
        path = tmp_path / "one.ipynb"
        path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
        command = [sys.executable, str(RUNNER), *options, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.startswith("one.ipynb: "), done.stderr  # or the runner itself failed
        return done.returncode, done.stdout, path

    return run


def test_a_notebook_that_gives_what_is_saved_passes(run):
    assert run("print(1)\nprint(2)", text("1\n2\n"))[:2] == (0, "one.ipynb: as saved\n")


def test_a_cell_that_raises_fails_and_is_named(run):
    status, printed, _ = run("{}['key']")
    assert status == 1
    assert "one.ipynb: FAILED\n  cell the-cell raised KeyError: 'key'\n" in printed


def test_a_cell_that_raises_fails_though_its_error_is_saved(run):
    error = {"output_type": "error", "ename": "KeyError", "evalue": "'key'", "traceback": []}
    assert run("{}['key']", error)[0] == 1


def test_another_output_fails_and_is_shown(run):
    status, printed, _ = run("print('new')", text("old\n"))
    assert status == 1
    assert "cell the-cell gives something else than is saved" in printed
    assert "\n-old\n+new\n" in printed


@pytest.mark.parametrize(("source", "saved"), [("print(1)", ()), ("", (text("1\n"),))], ids=["more", "less"])
def test_more_or_less_output_fails(source, saved, run):
    assert run(source, *saved)[0] == 1


@pytest.mark.parametrize("options", [(), ("--save",)])
def test_a_warning_fails(options, run):
    status, printed, _ = run("import warnings\nwarnings.warn('careful')", options=options)
    assert status == 1
    assert "cell the-cell warns" in printed
    assert "careful" in printed


def test_a_picture_that_is_gone_fails(run):
    picture = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "", "text/plain": "<Figure>"}}
    assert run("", picture)[0] == 1


def page(html):
    data = {"text/html": html, "text/plain": "a page"}
    return {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": data}


SHOWS_A_PAGE = """
class Page:
    def __repr__(self): return "a page"
    def _repr_html_(self): return '<p id="pyattn-0123456789ab">new</p>'
Page()
"""


@pytest.mark.parametrize(("words", "status"), [("new", 0), ("old", 1)])
def test_pages_are_compared_but_for_the_ids_that_are_drawn(words, status, run):
    assert run(SHOWS_A_PAGE, page(f'<p id="pyattn-ba9876543210">{words}</p>'))[0] == status


def test_the_output_of_a_timing_is_not_compared_but_has_to_be_there(run):
    assert run("print('3.1 ms')", text("2.9 seconds\n"), tags=["timing"])[0] == 0
    assert run("", text("2.9 seconds\n"), tags=["timing"])[0] == 1


@pytest.mark.parametrize("number", ["7", "-1,234.5", "1.25e-07", "12345678"])
def test_numbers_may_vary_where_a_cell_says_so(number, run):
    assert run(f"print('error {number:>12} off')", text("error  3 off\n"), tags=["varying-numbers"])[0] == 0


def test_words_may_not_vary_with_the_numbers(run):
    assert run("print('error 7, differs')", text("error 3\n"), tags=["varying-numbers"])[0] == 1


def test_saving_makes_a_notebook_that_passes(run):
    status, printed, path = run("print('new')", text("old\n"), options=["--save"])
    assert (status, printed) == (0, "one.ipynb: saved\n")
    assert "".join(outputs_of(path)[0]["text"]) == "new\n"
    again = subprocess.run([sys.executable, str(RUNNER), str(path)], capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout
    test_a_notebook_asks_for_the_usual_kernel(path)


def test_a_notebook_that_raises_is_not_saved(run):
    status, _, path = run("raise KeyError", text("old\n"), options=["--save"])
    assert status == 1
    assert outputs_of(path) == [text("old\n")]


def test_cells_run_beside_their_notebook_and_find_this_checkout(run):
    source = "import os, pyattn\nprint(os.listdir(), os.path.dirname(os.path.dirname(pyattn.__file__)))"
    assert run(source, text(f"['one.ipynb'] {DOCS.parent}\n"))[:2] == (0, "one.ipynb: as saved\n")


def test_cells_have_no_network(run):
    """The address is one of those that are kept for documentation: nobody has it."""
    status, printed, _ = run("import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=5)")
    assert status == 1
    assert "cell the-cell raised OSError: " in printed
    assert "192.0.2.1: tools/offline lets nothing out of this machine" in printed
    source = "import urllib.request\nurllib.request.urlopen('http://example.invalid')"
    assert "example.invalid: tools/offline lets nothing out of this machine" in run(source)[1]

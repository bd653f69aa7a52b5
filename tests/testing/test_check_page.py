"""docs/how-to/test-your-implementation.md shows what really happens: its file, its command and what that prints."""

from __future__ import annotations

import re
import sys

from support.helpers import ROOT

from pyattn import __main__ as command

PAGE = (ROOT / "docs" / "how-to" / "test-your-implementation.md").read_text()


def block(language):
    """The first fenced block of a kind."""
    return re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]


def without_digits(text):
    """Numbers may differ in their last digits from machine to machine."""
    return re.sub(r"-?\d+\.\d+(e[+-]\d+)?", "#", text)


def test_the_page_shows_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(block("python"))
    typed, _, shown = block("text").partition("\n")
    assert command.main(typed.removeprefix("$ python -m pyattn ").split()) == 1
    head, tail = without_digits(shown).split("  ...\n")
    found = without_digits(capsys.readouterr().out)
    assert found.startswith(head)
    assert tail in found

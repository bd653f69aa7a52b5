"""The command line's help, its errors, and its page in the reference."""

from __future__ import annotations

import re

import pytest
from support.helpers import ROOT

import pyattn
from pyattn.__main__ import main

PAGE = ROOT / "docs" / "reference" / "command-line.md"


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, capsys.readouterr()


def commands_of(capsys):
    """The commands that --help lists."""
    status, shown = refused(["--help"], capsys)
    assert status == 0
    commands = re.findall(r"^    (\w+)(?:  |$)", shown.out, re.MULTILINE)
    assert {"demo", "explain", "check", "compare", "info", "test"} <= {*commands}
    return commands


def test_the_version_is_printed(capsys):
    status, shown = refused(["--version"], capsys)
    assert (status, shown.out) == (0, f"pyattn {pyattn.__version__}\n")


@pytest.mark.parametrize(
    ("word", "hint"),
    [("chek", "; did you mean check?"), ("mine.py:attention", "; did you mean check?"), ("xyz", ".")],
)
def test_an_unknown_command_gets_a_suggestion(word, hint, capsys):
    status, shown = refused([word], capsys)
    assert status == 2
    assert shown.out == ""
    assert f"error: unknown command '{word}'{hint} The commands are demo, explain," in shown.err


def test_every_command_has_help(capsys):
    for command in commands_of(capsys):
        status, shown = refused([command, "--help"], capsys)
        assert status == 0
        assert shown.out.startswith(f"usage: python -m pyattn {command} ")


def test_every_command_and_option_is_on_the_page(capsys):
    page = PAGE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `?(\S+?)`?(?: .*)?\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for command in commands_of(capsys):
        assert f"python -m pyattn {command}".removesuffix(" demo") in sections[command], command
        _, shown = refused([command, "--help"], capsys)
        for option in {*re.findall(r"--[a-z]+", shown.out)} - {"--help"}:
            assert f"`{option}" in sections[command], f"{command} {option}"


def test_every_environment_variable_is_on_the_page():
    sources = [path.read_text() for path in (ROOT / "csrc").rglob("*.[ch]")]
    names = {name for text in sources for name in re.findall(r'"(PYATTN_[A-Z_]+|OMP_NUM_THREADS)"', text)}
    assert {"PYATTN_ISA", "PYATTN_NUM_THREADS"} <= names
    page = PAGE.read_text(encoding="utf-8")
    for name in names:
        assert f"`{name}`" in page, name


def test_the_page_shows_what_compare_prints(tmp_path, monkeypatch, capsys):
    """Each block of Python writes two files, and the block below it shows what the command prints of them."""
    monkeypatch.chdir(tmp_path)
    section = PAGE.read_text(encoding="utf-8").partition("\n## `compare`\n")[2].partition("\n## ")[0]
    names = {}
    written, shown = (re.findall(rf"^```{kind}\n(.*?)^```$", section, re.M | re.DOTALL) for kind in ("pycon", "text"))
    assert len(written) == len(shown) == 2
    for code, text in zip(written, shown, strict=True):
        exec("\n".join(line[4:] for line in code.splitlines()), names)
        assert main(["compare", "ours.npz", "theirs.npz"]) == 1
        printed = capsys.readouterr().out
        command, *parts = re.split(r"^\.\.\.\n|(?<=theirs\.npz)\n(?=ours)", text, flags=re.MULTILINE)
        assert command.rstrip() == "$ python -m pyattn compare ours.npz theirs.npz"
        for part in parts:
            assert part in printed


def test_the_page_shows_what_the_demo_prints(monkeypatch, capsys):
    monkeypatch.setattr("pyattn.testing.speed.describe_speed", lambda: "Speed")
    assert main([]) == 0
    printed = re.sub(r"\d+e-\d\d", "#", capsys.readouterr().out)
    shown = re.search(r"^\$ python -m pyattn\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.DOTALL)[1]
    assert re.sub(r"\d+e-\d\d", "#", re.sub(r"^Speed, .*", "Speed", shown, flags=re.MULTILINE)) == printed

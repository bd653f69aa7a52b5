"""``python -m pyattn check file.py:function``: what it prints, and its exit status."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from support.helpers import ROOT, run_python

from pyattn import __main__ as command

RIGHT = """
import numpy as np
from neighbour import softmax

def attention(query, key, value):
    return softmax(query @ key.T / query.shape[-1] ** 0.5) @ value

def wrong(query, key, value):
    return softmax(query @ key.T / query.shape[-1]) @ value

def unscaled(query, key, value):
    return softmax(query @ key.T) @ value

class Model:
    @staticmethod
    def attend(query, key, value):
        return attention(query, key, value)
"""
NEIGHBOUR = """
import numpy as np

def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file of the user's, and one beside it."""
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    (tmp_path / "mine.py").write_text(RIGHT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path / "mine.py"
    for name in ("neighbour", "_checked_mine"):
        sys.modules.pop(name, None)


def test_what_is_right_passes(mine, capsys):
    assert command.main(["check", f"{mine}:attention"]) == 0
    shown = capsys.readouterr()
    assert re.match(r"attention: all \d+ cases passed\n", shown.out)
    assert shown.err == ""


def test_what_is_wrong_fails_with_its_cause(mine, capsys):
    assert command.main(["check", f"{mine}:wrong"]) == 1
    shown = capsys.readouterr().out
    assert "Likely cause: your function divides the scores by head_dim, not by its square root" in shown


def test_attributes_are_functions_too(mine):
    assert command.main(["check", f"{mine}:Model.attend"]) == 0


def test_modules_are_found_by_name(capsys):
    assert command.main(["check", "pyattn.functional:scaled_dot_product_attention"]) == 0
    assert capsys.readouterr().out.startswith("scaled_dot_product_attention: all ")


def test_options_are_handed_on(mine, capsys):
    assert command.main(["check", f"{mine}:unscaled"]) == 1
    assert command.main(["check", f"{mine}:unscaled", "--scale", "1"]) == 0
    assert command.main(["check", f"{mine}:attention", "--layout", "bshd"]) == 1
    mine.write_text(RIGHT.replace("query.shape[-1] ** 0.5", "np.sqrt(query.shape[-1])"))
    capsys.readouterr()
    assert command.main(["check", f"{mine}:attention"]) == 0
    assert command.main(["check", f"{mine}:attention", "--strict"]) == 1
    assert "float32 inputs give float64" in capsys.readouterr().out


CORNER = """
import numpy as np, torch

def attention(query, key, value, is_causal=False):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -np.inf)
    return scores.softmax(-1) @ value
"""


@pytest.mark.peers
def test_arrays_and_align_are_handed_on(mine, torch, capsys):
    mine.write_text(CORNER)
    given = ["check", f"{mine}:attention"]
    assert command.main([*given, "--arrays", "torch", "--align", "upper_left"]) == 0
    assert command.main([*given, "--align", "lower_right"]) == 1
    assert "at the upper left corner" in capsys.readouterr().out
    assert command.main([*given, "--arrays", "numpy"]) == 1
    assert "AttributeError" in capsys.readouterr().out


def test_ctrl_c_gets_a_line(mine, capsys):
    mine.write_text("def attention(query, key, value):\n    raise KeyboardInterrupt")
    assert command.main(["check", f"{mine}:attention"]) == 130
    assert capsys.readouterr() == ("", f"check: interrupted in {mine}:attention\n")


def test_missing_functions_get_a_line(mine, capsys):
    places = {"file": mine, **{name: mine.with_name(f"{name}.py") for name in ("broken", "leaving", "empty", "silent")}}
    places["broken"].write_text("nowhere")
    places["leaving"].write_text("import sys\nsys.exit(3)")
    places["silent"].write_text("class E(Exception):\n    def __str__(self): raise self\nraise E")
    places["empty"].write_text("")
    for target, line in (
        ("{file}:attn", "{file} has no attn; it has attention, wrong, unscaled, Model"),
        ("{file}:Model.atend", "{file} has no Model.atend; it has attention, wrong, unscaled, Model"),
        ("{file}", "'{file}' does not name a function, expected file.py:function or package.module:function"),
        ("missing.py:attention", "file missing.py does not exist"),
        ("missing:attention", "missing does not import: ModuleNotFoundError: No module named 'missing'"),
        ("{broken}:attention", "{broken} does not import: NameError: name 'nowhere' is not defined"),
        ("{silent}:attention", "{silent} does not import: E:"),
        ("{leaving}:attention", "{leaving} does not import: SystemExit: 3"),
        (
            "{file}:Model",
            "my_attention is the class Model, expected a function of query, key and value, or an object like one",
        ),
        ("{empty}:attention", "{empty} has no attention; it has no functions"),
    ):
        assert command.main(["check", target.format(**places)]) == 2
        assert capsys.readouterr() == ("", f"check: {line.format(**places)}\n")


def test_an_error_in_the_file_is_named_with_its_line(mine, capsys):
    mine.write_text("def attention(query, key, value:\n    pass")
    assert command.main(["check", f"{mine}:attention"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "SyntaxError" in error
    assert "line 1" in error


def test_the_exit_status_is_the_commands(mine):
    for name, status in (("attention", 0), ("wrong", 1), ("missing", 2)):
        words = [sys.executable, "-m", "pyattn", "check", f"{mine}:{name}"]
        assert subprocess.run(words, cwd=ROOT, capture_output=True, timeout=120, check=False).returncode == status


def test_a_file_may_be_named_as_a_module_that_is_needed():
    """Such as json.py, or torch.py: it is imported by a name of its own."""
    run_python(
        """
import json, pathlib, sys, tempfile
from pyattn import __main__ as command
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "json.py")
    file.write_text("def attention(query, key, value): return value")
    assert command.main(["check", f"{file}:attention"]) == 1
assert sys.modules["json"] is json
"""
    )

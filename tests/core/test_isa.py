"""The instruction-set level: the best there is, or the one PYATTN_ISA names; and what this build says of itself."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import warnings

import numpy as np
import pytest
from conftest import ALL_LEVELS, LEVELS
from support.helpers import for_each, run_python

import pyattn
from pyattn import _core

ABSENT = [level for level in ALL_LEVELS if level not in LEVELS]
COMPUTE = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import numpy as np, pyattn
    from pyattn import _core
rng = np.random.default_rng(0)
query, key, value = (rng.standard_normal((3, 70, 20), np.float32) for _ in range(3))
result = pyattn.attention(query, key, value)
few = pyattn.attention(query[:, :1], key, value, num_threads=2)
exact = np.exp(query.astype(float) @ key.mT / 20**0.5)
exact = exact / exact.sum(-1, keepdims=True) @ value
assert np.abs(result - exact).max() < 1e-5 and np.abs(few - exact[:, :1]).max() < 1e-5
print(_core.isa())
for warning in caught:
    print(warning.category.__name__, warning.message)
"""


def run_with(level):
    """(level in use, warnings) of a process that is given PYATTN_ISA."""
    chosen, *caught = run_python(COMPUTE, PYATTN_ISA=level).stdout.splitlines()
    return chosen, caught


def test_the_best_level_is_chosen():
    assert run_with(None) == (LEVELS[0], [])
    assert run_with("") == (LEVELS[0], [])


@pytest.mark.parametrize("forced", LEVELS)
def test_a_level_can_be_forced(forced):
    assert run_with(forced) == (forced, [])


ODD_BYTES = [b"\xe4", b"avx\xff2", "ï".encode() * 40, b"a" + "ï".encode() * 40]  # not UTF-8, or cut within a character


@pytest.mark.sampled(3)
@pytest.mark.parametrize("forced", [*ABSENT, "sse9", "AVX2", "avx", "avx2 ", "0", "x" * 300, "naïve"])
def test_a_level_that_is_not_there_warns_and_the_best_is_taken(forced):
    chosen, caught = run_with(forced)
    assert chosen == LEVELS[0]
    assert len(caught) == 1
    start, _, rest = caught[0].partition("=")
    assert start == "RuntimeWarning PYATTN_ISA"
    assert rest.startswith(forced[:60])
    assert rest.endswith(f" is not a level of this machine; using {LEVELS[0]}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["PYATTN_ISA", "PYATTN_NUM_THREADS"])
@pytest.mark.parametrize("text", ODD_BYTES, ids=ascii)
def test_what_is_no_text_is_told_all_the_same(name, text):
    environment = {"PYATTN_ISA": None, name: os.fsdecode(text)}
    chosen, *caught = run_python(COMPUTE, **environment).stdout.splitlines()
    assert chosen == LEVELS[0]
    assert len(caught) == 1
    assert caught[0].startswith(f"RuntimeWarning {name}={text[:60].decode(errors='replace')} is not a ")


def test_levels_are_those_of_the_machine():
    compiled = _core._levels_compiled()
    assert [level for level in compiled if level in LEVELS] == list(LEVELS)
    assert compiled[-1] == LEVELS[-1] == "scalar"
    assert set(compiled) <= set(ALL_LEVELS)
    if platform.machine() == "x86_64":
        assert set(compiled) == {"scalar", "avx2", "avx512"}
    if platform.machine() in ("aarch64", "arm64"):
        assert set(compiled) == {"scalar", "neon"}


def test_tests_can_switch_levels():
    for level in LEVELS:
        _core._set_isa(level)
        assert _core.isa() == pyattn.runtime.isa() == level
    cut = "a" + "ï" * 40
    for wrong, kind in [*((name, ValueError) for name in ("sse9", "", cut)), (None, TypeError), (b"scalar", TypeError)]:
        with pytest.raises(kind, match="level") as caught:
            _core._set_isa(wrong)
        assert caught.type is kind
    assert _core.isa() == LEVELS[-1]


# show_config and python -m pyattn info


def test_show_config_gives_dicts():
    config = pyattn.show_config(mode="dicts")
    assert config["pyattn"] == pyattn.__version__ == _core.__version__
    assert config["numpy"] == np.__version__
    assert config["python"] == platform.python_version()
    assert re.match(r"[A-Za-z]", config["compiler"])
    assert config["compiler"].endswith(_core._compiler)
    assert config["isa"] == {
        "compiled": _core._levels_compiled(),
        "available": list(LEVELS),
        "chosen": _core.isa(),
    }
    assert config["threads"] == pyattn.get_num_threads()
    assert json.loads(json.dumps(config)) == config


def test_show_config_prints(capsys):
    assert pyattn.show_config() is None
    printed = capsys.readouterr().out
    for text in (pyattn.__version__, np.__version__, platform.python_version(), _core._compiler, *LEVELS):
        assert text in printed


@for_each(
    ("version", "shown"),
    [("12.2.0", "gcc 12.2.0"), ("14.2.1 20250110 (Red Hat)", "gcc 14.2.1 20250110 (Red Hat)")]
    + [(name, name) for name in ("Clang 18.1.3 (1ubuntu1)", "Apple LLVM 15.0.0", "Ubuntu Clang 14.0.0")],
)
def test_show_config_names_the_compiler(version, shown, monkeypatch):
    """gcc's __VERSION__ is the number alone."""
    monkeypatch.setattr(_core, "_compiler", version)
    assert pyattn.show_config(mode="dicts")["compiler"] == shown


def test_show_config_has_two_modes():
    with pytest.raises(ValueError, match="mode is 'json'; it must be 'stdout' or 'dicts'"):
        pyattn.show_config(mode="json")


def run_module(*arguments, **environment):
    script = (
        f"import runpy, sys; sys.argv = {['pyattn', *arguments]!r}; runpy.run_module('pyattn', run_name='__main__')"
    )
    return run_python(script, **environment).stdout


def test_info_prints_the_same():
    assert json.loads(run_module("info", "--json", PYATTN_ISA="scalar"))["isa"]["chosen"] == "scalar"
    printed = run_module("info", PYATTN_ISA=None, PYATTN_NUM_THREADS="3")
    assert re.search(rf"^isa +{LEVELS[0]}\b", printed, re.MULTILINE)
    assert re.search("^threads +3$", printed, re.MULTILINE)


def test_versions_are_one():
    assert sys.version_info >= (3, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", pyattn.__version__)

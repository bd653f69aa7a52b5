"""``python -m pyattn test``: passes here, and finds an installation that gives wrong numbers."""

from __future__ import annotations

import json
import os
import threading
import warnings

import numpy as np
import pytest

from pyattn import _core, runtime
from pyattn.__main__ import main
from pyattn.testing import self_check

CHECKS = {"article", "threads", "fork", "drawn cases"}

# Python, and JAX where an earlier test imported it, warn of a fork beside threads; `main` silences that.
beside_threads = pytest.mark.filterwarnings("ignore")


def test_every_level_passes_and_says_so(capsys):
    before = runtime.isa()
    assert main(["test", "--cases", "30"]) == 0
    text = capsys.readouterr().out
    for level in _core._levels():
        for check in CHECKS:
            assert f"{check:12}{level:8}passed: " in text
    assert "30 against float64, at most " in text
    assert text.startswith("pyattn ")
    assert "Everything passed, after " in text
    assert runtime.isa() == before


def test_the_report_as_json(capsys):
    assert main(["test", "--cases", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert {finding["check"] for finding in report["findings"]} == CHECKS | {"same bits"}
    assert report["config"] == runtime.show_config(mode="dicts")


def off_by_a_little(result):
    result.output[..., :1] *= 1 + 1e-3
    return result


def nan(result):
    result.weights[...] = np.nan
    return result


def refusing(result):
    raise ValueError("no such kernel")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [(off_by_a_little, " times the error that its bound allows"), (nan, " times the"), (refusing, "no such kernel")],
)
def test_wrong_numbers_are_found(wrong, said, monkeypatch, capsys):
    right = self_check.attention

    def attention(*arrays, **options):
        result = right(*arrays, **options)
        return wrong(result) if "need_weights" in options else result

    monkeypatch.setattr(self_check, "attention", attention)
    assert main(["test", "--cases", "8"]) == 1
    text = capsys.readouterr().out
    assert said in text
    assert "FAILED: please report it with all of the above" in text


def replace_attention(monkeypatch, change):
    right = self_check.attention

    def attention(*arrays, **options):
        return change(right(*arrays, **options))

    monkeypatch.setattr(self_check, "attention", attention)


@beside_threads
def test_bits_that_differ_between_calls_are_found(monkeypatch):
    calls = []

    def change(result):
        calls.append(1)
        result.output.flat[0] += np.float16(len(calls) % 2) / 8
        return result

    replace_attention(monkeypatch, change)
    assert not self_check._threads()[0]
    assert not self_check._fork()[0]


@beside_threads
def test_errors_in_threads_and_children_are_found(monkeypatch):
    """A child that fails ends there: it does not go on as a second check."""
    main_thread, parent = threading.get_ident(), os.getpid()

    def change(result):
        if threading.get_ident() != main_thread or os.getpid() != parent:
            raise MemoryError("no scratch")
        return result

    replace_attention(monkeypatch, change)
    assert self_check._threads() == (False, "MemoryError: no scratch")
    assert self_check._fork() == (False, "a child ended with status 2")


def test_nan_is_not_the_article(monkeypatch):
    replace_attention(monkeypatch, lambda result: result * np.nan)
    assert self_check._article() == (False, "float32: inf times the error that its bound allows")


def test_filters_of_warnings_stay(capsys):
    before = list(warnings.filters)
    assert main(["test", "--cases", "1"]) == 0
    assert warnings.filters == before


@pytest.mark.parametrize("cases", ["0", "-1", "1.5", "many"])
def test_no_cases_are_refused(cases, capsys):
    with pytest.raises(SystemExit):
        main(["test", "--cases", cases])
    assert f"argument --cases: expected a whole number of 1 or more, not '{cases}'" in capsys.readouterr().err

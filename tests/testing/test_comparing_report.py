"""How the report of pyattn.compare reads, and what python -m pyattn compare shows."""

from __future__ import annotations

import numpy as np
import pytest
from support import planted
from support.planted import KEY, QUERY, VALUE, compare, with_weights

import pyattn
import pyattn.testing.demo as demo
from pyattn.__main__ import main
from pyattn.testing import Comparison


def over_queries(query, key, value):
    weights = planted.softmax(planted.scaled(query, key), axis=-2)
    return weights @ value, weights


def test_the_table_is_aligned_and_says_which_stage_differs():
    text = str(pyattn.compare(with_weights, over_queries, QUERY, KEY, VALUE))
    lines = text.splitlines()
    assert lines[0] == "ours    support.with_weights, float32"
    assert lines[1] == "theirs  test_comparing_report.over_queries, float32"
    head, *rows = lines[3:6]
    assert head.split() == ["stage", "shape", "max", "abs", "error", "ULP", "ratio", "ours", "theirs"]
    assert {len(row.removesuffix("  <- differs")) for row in (head, *rows)} == {len(head)}
    assert [row.split()[0] for row in rows] == ["weights", "output"]
    assert all(row.endswith("<- differs") for row in rows)
    assert "Cause, in weights: theirs takes the softmax over the queries, not over the keys." in lines
    assert "Theirs differs from the formula in float64; ours does not." in lines


def test_a_line_says_it_for_assert():
    report = compare(planted.unscaled)
    assert repr(report) == "<Comparison: different in scores: theirs does not scale the scores>"
    assert repr(compare(planted.right)) == "<Comparison: equal in output>"
    assert isinstance(report, Comparison)


def test_errors_are_measured_as_they_are_called():
    exact = pyattn.attention(*(x.astype(np.float64) for x in (QUERY, KEY, VALUE)))
    step = np.spacing(np.float32(abs(exact).max()))
    (stage,) = compare(pyattn.attention(QUERY, KEY, VALUE) + 1000 * step).stages
    assert stage.error == pytest.approx(1000 * step, rel=0.01)
    assert stage.ulp == pytest.approx(1000, rel=0.01)
    assert stage.ratio < stage.theirs
    assert stage.ours < 1 < stage.ratio


def test_other_shapes_are_a_difference():
    report = compare(pyattn.attention(QUERY, KEY, VALUE)[0])
    (stage,) = report.stages
    assert (stage.shape, stage.their_shape) == (QUERY.shape, QUERY.shape[1:])
    assert stage.ratio == np.inf
    assert f"ours has shape {QUERY.shape} and theirs {QUERY.shape[1:]}" in str(report)


# python -m pyattn compare


@pytest.mark.parametrize("with_torch", [False, pytest.param(True, marks=pytest.mark.peers)])
def test_the_demonstration_shows_an_equal_pair_and_names_a_fault(with_torch):
    text, right = demo.demonstrate(with_torch)
    assert right
    assert "Equal: rounding explains every difference." in text
    assert "Cause, in key: theirs has the weights of key transposed." in text


@pytest.mark.parametrize(
    "blind", [lambda *_: compare(planted.right), lambda *_: compare(planted.unscaled)], ids=["equal", "different"]
)
def test_the_command_fails_where_nothing_is_told_apart(blind, capsys, monkeypatch):
    monkeypatch.setattr(demo, "compare", blind)
    assert main(["compare"]) == 1
    assert capsys.readouterr().out.count("theirs  support.") == 2

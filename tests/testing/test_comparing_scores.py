"""pyattn.compare with other scores than dot products, and of functions of x and weights."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
from support import planted
from support.helpers import for_each
from support.planted import KEY, QUERY, VALUE

import pyattn

BILINEAR = np.random.default_rng(1).standard_normal((planted.D, planted.D)).astype(np.float32)
ADDITIVE = np.linspace(-1, 1, planted.D, dtype=np.float32)


def directions(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def differences(query, key):
    return query[..., :, np.newaxis, :] - key[..., np.newaxis, :, :]


def cosine(query, key, value):
    return planted.softmax(directions(query) @ directions(key).mT) @ value


def distance(query, key, value):
    scale = np.float32(0.5 / planted.D**0.5)
    return planted.softmax(-scale * (differences(query, key) ** 2).sum(axis=-1)) @ value


def bilinear(query, key, value):
    return planted.softmax(query @ BILINEAR @ key.mT) @ value


def additive(query, key, value):
    return planted.softmax(np.tanh(differences(query, -key)) @ ADDITIVE) @ value


RIGHT = [
    (cosine, {"score": "cosine"}),
    (distance, {"score": "distance"}),
    (bilinear, {"score": "bilinear", "score_weight": BILINEAR}),
    (additive, {"score": "additive", "score_weight": ADDITIVE}),
]


@pytest.mark.parametrize(("theirs", "options"), RIGHT, ids=lambda x: getattr(x, "__name__", ""))
def test_a_function_may_be_written_for_a_score(theirs, options):
    for report in (
        pyattn.compare(pyattn.attention, theirs, QUERY, KEY, VALUE, **options),
        pyattn.compare(functools.partial(pyattn.attention, **options), theirs, QUERY, KEY, VALUE),
        pyattn.compare(pyattn.attention, lambda q, k, v, **given: theirs(q, k, v), QUERY, KEY, VALUE, **options),
    ):
        assert report.equal, report
        assert report.wrong == (), report


def test_a_function_that_has_the_argument_is_told():
    def theirs(query, key, value, score):
        return pyattn.attention(query, key, value, score=score)

    assert pyattn.compare(pyattn.attention, theirs, QUERY, KEY, VALUE, score="cosine").equal


def wrong(score):
    """Exponentials of one score in the place of another's."""
    return lambda query, key, value: planted.softmax(score(query, key)) @ value


FAULTS = [
    ("cosine", planted.right, "another score"),
    ("distance", cosine, "another score"),
    ("bilinear", lambda query, key, value: planted.right(query, key, value, scale=1), "another score"),
    ("additive", distance, "another score"),
    ("bilinear", wrong(lambda query, key: query @ BILINEAR.T @ key.mT), "another score"),
    (
        "distance",
        wrong(lambda query, key: (differences(query, key) ** 2).sum(axis=-1) / np.float32(2 * planted.D**0.5)),
        "wrong scale",
    ),
    ("distance", wrong(lambda query, key: -(differences(query, key) ** 2).sum(axis=-1)), "scale missing"),
    (
        "cosine",
        wrong(lambda query, key: directions(query) @ directions(key).mT / np.float32(planted.D**0.5)),
        "wrong scale",
    ),
]


@for_each(("score", "theirs", "cause"), FAULTS)
def test_a_fault_in_a_score_is_named(score, theirs, cause):
    weight = {"bilinear": BILINEAR, "additive": ADDITIVE}.get(score)
    report = pyattn.compare(pyattn.attention, theirs, QUERY, KEY, VALUE, score=score, score_weight=weight)
    assert report.wrong == ("theirs",), report
    assert report.cause, report
    assert (report.cause.name, report.stage, report.complete) == (cause, "scores", True), report


def test_unknown_scores_are_refused():
    for options, message in (
        ({"score": "dots"}, "score is 'dots'; it must be 'dot', 'cosine', 'distance', 'bilinear' or 'additive'"),
        ({"score": "additive"}, "score='additive' needs a score_weight"),
        ({"score_weight": BILINEAR}, "score='dot' takes no score_weight; 'bilinear' and 'additive' do"),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            pyattn.compare(planted.right, cosine, QUERY, KEY, VALUE, **options)


# Functions of x and weights

RNG = np.random.default_rng(2)
X = RNG.standard_normal((5, 6))
WEIGHTS = [RNG.standard_normal((6, size)) for size in (4, 4, 3)]
VECTORS = [RNG.standard_normal(size) for size in (4, 4, 3)]


def article(x, w_query, w_key, w_value, scale=None, bias=(0, 0, 0)):
    query, key, value = (x @ w + b for w, b in zip((w_query, w_key, w_value), bias, strict=True))
    return planted.right(query, key, value, scale=scale)


@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"bias": VECTORS}], ids=str)
def test_self_attention_is_compared_as_a_function(options):
    report = pyattn.compare(pyattn.self_attention, article, X, *WEIGHTS, **options)
    assert report.equal, report
    assert report.wrong == (), report


def test_what_only_self_attention_has_is_part_of_the_formula():
    ours = functools.partial(pyattn.self_attention, convention="column", context=X[:3].T, need_weights=True)
    query, key, value = (x @ w for x, w in zip((X, X[:3], X[:3]), WEIGHTS, strict=True))
    result = pyattn.attention(query, key, value, need_weights=True)
    report = pyattn.compare(ours, (result.output.T, result.weights.T), X.T, *(w.T for w in WEIGHTS))
    assert report.equal, report
    assert [stage.name for stage in report.stages] == ["weights", "output"]


@for_each(
    ("theirs", "cause", "stage"),
    [
        (lambda x, *weights: article(x, *weights, scale=1), "scale missing", "scores"),
        (lambda x, q, k, v: article(x, k, q, v), "inputs swapped", "query"),
    ],
)
def test_a_fault_in_a_function_of_weights_is_named(theirs, cause, stage):
    report = pyattn.compare(pyattn.self_attention, theirs, X, *WEIGHTS)
    assert (report.wrong, report.cause.name, report.stage) == (("theirs",), cause, stage), report


def test_mistakes_of_the_caller_are_told():
    for ours, inputs, options, message in (
        (
            lambda a, b, c, d: article(a, b, c, d),
            (X, *WEIGHTS),
            {},
            "4 inputs are given, expected 3, or 1 for all: query, key, value; pass everything else by name. A function "
            "of x and weights must call its arguments x, w_query, w_key, w_value",
        ),
        (
            pyattn.self_attention,
            (X, *WEIGHTS[:2]),
            {},
            "3 inputs are given, expected 4: x, w_query, w_key, w_value; pass everything else by name",
        ),
        (
            lambda x, w_query, w_key, w_value, **_: article(x, w_query, w_key, w_value),
            (X, *WEIGHTS),
            {"score": "cosine"},
            "the formula of a function of x and weights does not know the argument score; it knows attn_mask, ",
        ),
    ):
        with pytest.raises(TypeError, match=f"^{re.escape(message)}"):
            pyattn.compare(ours, article, *inputs, **options)

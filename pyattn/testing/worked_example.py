"""The story of ``python -m pyattn``: the worked example's matrices once, and a tick for each check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
import pyattn.tracing.article as article

__all__ = ["Check", "check_example", "tell"]

Array = npt.NDArray[np.floating[Any]]
DTYPES = (np.float32, np.float64)
OUTPUT_BOUND = 1e-6  # largest error of the outputs, compared with NumPy in float64


class Check(NamedTuple):
    """One check of the example: whether it passed, and a sentence that says what was compared."""

    passed: bool
    claim: str


def tell(tick: str, cross: str) -> tuple[str, bool]:
    """Return the text of the story, and whether every check passed."""
    checks = check_example()
    passed = all(check.passed for check in checks)
    lines = ["Self-attention on 3 inputs of 4 numbers each. The scores are not scaled.", ""]
    for blocks in _matrices(_steps(np.float32)):
        lines += [f"  {line}".rstrip() for line in _beside(blocks)] + [""]
    lines += [f"  {tick if check.passed else cross} {check.claim}" for check in checks]
    lines += ["", "Every number is right." if passed else "WRONG: a number differs. Please report it."]
    return "\n".join(lines), passed


def check_example() -> list[Check]:
    """Compare pyattn's numbers with the article's, and its outputs with NumPy's in float64."""
    steps = {dtype.__name__: _steps(dtype) for dtype in DTYPES}
    projections = {"keys": article.KEYS, "queries": article.QUERIES, "values": article.VALUES}
    errors = {name: float(np.abs(found["outputs"] - _exact_outputs()).max()) for name, found in steps.items()}
    sizes = " and ".join(f"{error:.1e} in {name}" for name, error in errors.items())
    both = "in float32 and in float64"
    return [
        Check(
            all(np.array_equal(found[name], given) for found in steps.values() for name, given in projections.items()),
            f"keys, queries and values equal the article's, {both}",
        ),
        Check(
            all(np.array_equal(found["scores"], article.SCORES) for found in steps.values()),
            f"scores equal the article's, {both}",
        ),
        Check(
            all(_texts(found["weights"], "{:.4e}") == article.SOFTMAX for found in steps.values()),
            f"weights have the article's five digits, {both}",
        ),
        Check(
            all(error <= OUTPUT_BOUND for error in errors.values()),
            f"outputs agree with NumPy: largest difference {sizes}",
        ),
    ]


def _steps(dtype: type[np.floating[Any]]) -> dict[str, Array]:
    """Compute every step of the example with the C core; linear takes weights of shape (out, in), as PyTorch's."""
    given = (article.X, article.W_KEY, article.W_QUERY, article.W_VALUE)
    x, *weights = (np.array(matrix, dtype) for matrix in given)
    keys, queries, values = (functional.linear(x, weight.T) for weight in weights)
    result = functional.attention(queries, keys, values, scale=1.0, need_weights=True)
    assert result.weights is not None, "they were asked for"
    return {
        "keys": keys,
        "queries": queries,
        "values": values,
        "scores": functional.linear(queries, keys),
        "weights": result.weights,
        "outputs": result.output,
    }


def _exact_outputs() -> Array:
    """Compute the outputs from the article's scores and values with NumPy in float64."""
    scores, values = np.array(article.SCORES, np.float64), np.array(article.VALUES, np.float64)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    outputs: Array = weights / weights.sum(axis=-1, keepdims=True) @ values
    return outputs


# Text

_Block = tuple[str, tuple[tuple[str, ...], ...]]


def _matrices(steps: dict[str, Array]) -> list[list[_Block]]:
    """Return the matrices with their titles, in lines of some that stand side by side."""
    given = {"x": article.X, "w_key": article.W_KEY, "w_query": article.W_QUERY, "w_value": article.W_VALUE}
    names = (("keys", "w_key"), ("queries", "w_query"), ("values", "w_value"))
    return [
        [(name, _texts(matrix, "{:g}")) for name, matrix in given.items()],
        [(f"{name} = x @ {weight}", _texts(steps[name], "{:g}")) for name, weight in names],
        [
            ("scores = queries @ keys.T", _texts(steps["scores"], "{:g}")),
            ("weights = softmax(scores)", _texts(steps["weights"], "{:.4e}")),
        ],
        [("outputs = weights @ values", _texts(steps["outputs"], "{:.4f}"))],
    ]


def _texts(matrix: Any, form: str) -> tuple[tuple[str, ...], ...]:
    """Format each number of a matrix."""
    return tuple(tuple(form.format(float(number)) for number in row) for row in matrix)


def _beside(blocks: Sequence[_Block]) -> list[str]:
    """Return the lines of matrices that stand side by side, each below its title."""
    columns = []
    for title, rows in blocks:
        width = max(len(text) for row in rows for text in row)
        lines = [title, *("  ".join(text.rjust(width) for text in row) for row in rows)]
        columns.append([line.ljust(max(map(len, lines))) for line in lines])
    blank = [" " * len(lines[0]) for lines in columns]
    return [
        "    ".join(cell or space for cell, space in zip(line, blank, strict=True)) for line in zip_longest(*columns)
    ]

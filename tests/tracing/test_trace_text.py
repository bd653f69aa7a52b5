"""A trace as text and Markdown: numbers below one another, whatever the tokens are."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pytest

import pyattn
from pyattn.tracing.render.text import cut, matrix_lines, number_text, vector_text, width_of

RNG = np.random.default_rng(7)


def example(article, **arguments):
    return pyattn.trace(*(article[name] for name in ("x", "w_query", "w_key", "w_value")), **arguments)


def columns_of(line):
    """What a terminal shows in each column; the second half of a wide character is empty."""
    composed = unicodedata.normalize("NFC", line)
    return "".join(c + "\0" * ("\u2e80" <= c <= "\uffef") for c in composed)


def blocks_of(text):
    """Title to lines of its matrix."""
    parts = re.split(r"^  (\w+), \d+ x \d+$", text, flags=re.MULTILINE)
    return [
        (name, block.split("\n\n")[0].strip("\n").splitlines())
        for name, block in zip(parts[1::2], parts[2::2], strict=True)
    ]


@pytest.mark.parametrize("convention", ["row", "column"])
@pytest.mark.parametrize(
    "tokens",
    [None, ["a", "bb", "c" * 40], ["我", "喜欢", "attention"], ["全" * 30, "\uff57\uff49", "e\u0301"]],
    ids=str,
)
def test_numbers_stand_below_one_another(tokens, convention):
    x, *weights = (RNG.standard_normal(shape) for shape in ((3, 4), (4, 2), (4, 2), (4, 5)))
    matrices = [matrix.T if convention == "column" else matrix for matrix in (x, *weights)]
    trace = pyattn.trace(*matrices, tokens=tokens, convention=convention, scale=0.1)  # no weight is tiny
    blocks = blocks_of(str(trace))
    assert len(blocks) == 4 + 3 + 4 + 3
    for name, lines in blocks:
        numbers = [line for line in lines if re.search(r"\d\.\d{4}$", line)]
        points = [[n for n, c in enumerate(columns_of(line)) if c == "."] for line in numbers]
        assert points, name
        assert all(row == points[0] for row in points), f"{name}\n" + "\n".join(lines)


@pytest.mark.parametrize("convention", ["row", "column"])
def test_every_row_and_column_has_its_token(convention):
    trace = pyattn.trace_attention(
        *(RNG.standard_normal((3, 3)) for _ in range(3)), tokens=list("abc"), convention=convention
    )
    for steps in (trace.steps, *(trace.for_query(i) for i in range(3))):
        for step in steps:
            for name, labels in step.labels.items():
                for size, tokens in zip(step.arrays[name].shape, labels, strict=True):
                    assert tokens is None or len(tokens) == size, (step.title, name)


def test_a_step_is_a_block(article):
    blocks = re.split(r"^(?=Step )", str(example(article)), flags=re.MULTILINE)[1:]
    assert [block.split(":")[0] for block in blocks] == [f"Step {n}" for n in range(1, 9)]
    assert all(block.endswith("\n\n") for block in blocks[:-1])


def test_the_text_has_the_numbers_of_the_example(article):
    text = str(example(article, round_weights=1, tokens=["I", "am", "here"]))
    assert "    I     2.0  7.0  1.5\n    am    2.0  8.0    0\n    here  2.0  7.8  0.3" in text
    assert "input 1 (I): [1, 0, 2] x K^T = [2, 4, 4]" in text


def test_large_matrices_are_shown_by_their_edges():
    x, weight = RNG.standard_normal((1000, 3)), np.eye(3)
    text = str(pyattn.trace(x, weight, weight, weight))
    assert len(text) < 20_000
    assert all(len(lines) <= 10 for _, lines in blocks_of(text))


@pytest.mark.parametrize(
    ("number", "text"),
    [(2.0, "2"), (-0.0, "0"), (0.5, "0.5"), (1 / 3, "0.3333"), (6.0337e-6, "6.0e-06"), (0.00005, "0.0001"),
     (12345678.9, "1.235e+07"), (-np.inf, "-inf"), (np.nan, "nan")],
)  # fmt: skip
def test_a_number_has_the_digits_it_needs(number, text):
    assert number_text(number) == text


def test_a_zero_that_is_exact_looks_so():
    assert matrix_lines(np.array([[0.0, 1e-9, 0.98201]])) == ["0  1.0e-09  0.9820"]


def test_a_long_vector_is_shown_by_its_beginning():
    assert vector_text(np.arange(9.0)) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]"


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("我们", 4), ("\uff57", 2), ("e\u0301", 1), ("", 0)])
def test_widths_are_those_of_a_terminal(text, width):
    assert width_of(text) == width


def test_tokens_are_cut_and_keep_to_their_line(article):
    assert cut("我" * 20) == "我" * 7 + "…"
    assert cut("a\nb\x1b[1m") == r"a\nb\x1b[1m"
    text = str(example(article, tokens=["a\nb", "\x1b[31m", "c"]))
    assert "\x1b" not in text
    assert "a\\nb" in text


# Markdown


def tables_of(text):
    """Rows of cells of each table; a bar behind a backslash is none."""
    groups = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [[re.split(r"(?<!\\)\|", line)[1:-1] for line in group.splitlines()] for group in groups]


def test_markdown_has_a_table_for_each_matrix(article):
    tables = tables_of(example(article).to_markdown())
    assert len(tables) == 4 + 3 + 4 + 3
    scores = [[float(cell) for cell in row[1:]] for row in tables[-3][2:]]
    np.testing.assert_array_equal(scores, article["scores"])
    assert all(len(row) == len(table[0]) for table in tables for row in table)


def test_tokens_are_not_markdown(article):
    text = example(article, tokens=["a|b", "<b>*x*", "`c`"]).to_markdown()
    assert all(len(row) == len(table[0]) for table in tables_of(text) for row in table)
    assert r"\<b\>\*x\*" in text
    assert "<b>" not in text
    assert text.count("\n## Step ") == 7


def test_one_is_told_in_the_singular():
    trace = pyattn.trace([[1]], [[1]], [[1]], [[1]], round_weights=1)
    assert trace.steps[0].note == "1 input, one per row."
    assert trace.steps[2].note == "Keys and queries share one size, 1; values have the size of the outputs, 1."
    with pytest.raises(IndexError, match=r"^i is 1; it must be from -1 to 0, for 1 input$"):
        trace.for_query(1)

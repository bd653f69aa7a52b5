"""The eight steps of a trace in words, with their arrays, and the two that join several heads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_index
from pyattn.tracing.compute import PROJECTED, Intermediates, as_rows, weigh_values
from pyattn.tracing.render.text import cut, matrix_lines, number_text, vector_text

__all__ = [
    "Labels",
    "TraceStep",
    "concatenating",
    "eight_steps",
    "labels_of",
    "make_step",
    "name_input",
    "projecting",
    "steps_of_query",
]

Array = npt.NDArray[np.float64]
Labels: TypeAlias = tuple[list[str] | None, list[str] | None]
_MAX_LINES = 8  # of a note

_WEIGHTS = {
    "softmax": "weights[j] = exp(scores[j]) / sum over k of exp(scores[k])",
    "sigmoid": "weights[j] = 1 / (1 + exp(-scores[j]))",
    "sparsemax": "weights[j] = max(scores[j] - tau, 0), with tau such that they sum to 1",
}


class TraceStep(NamedTuple):
    """One of the eight steps of a trace; its ``str`` is a block of text.

    Attributes
    ----------
    number : int
        1 to 8; of several heads, 9 is their concatenation and 10 the output projection.
    title : str
        Name of the step.
    formula : str
        Formula in NumPy's or mathematical notation; empty where nothing is computed.
    arrays : dict of str to ndarray, (rows, columns)
        Results of the step, by the names of the trace's fields.
    note : str
        The formula with numbers, or a remark, of one or more lines; may be empty.
    labels : dict of str to (list of str or None, list of str or None)
        Tokens of the rows and columns of each array.

    Examples
    --------
    >>> import pyattn
    >>> trace = pyattn.trace_attention([[1, 0]], [[4, 0], [0, 4]], [[10], [20]], scale=1, tokens=["it"])
    >>> print(trace.steps[3])
    Step 4: Scores for input 1 (it)
      scores = queries @ keys.T
      input 1 (it): [1, 0] x K^T = [4, 0]
    <BLANKLINE>
      scores, 1 x 2
        it  4  0
    <BLANKLINE>
    """

    number: int
    title: str
    formula: str
    arrays: dict[str, Array]
    note: str
    labels: dict[str, Labels]

    def __str__(self) -> str:
        """Write the step as a block of text that ends in an empty line."""
        lines = [f"Step {self.number}: {self.title}"]
        lines += [f"  {line}" for part in (self.formula, self.note) for line in part.splitlines()]
        for name, array in self.arrays.items():
            lines += ["", f"  {name}, {array.shape[0]} x {array.shape[1]}"]
            lines += [f"    {line}" for line in matrix_lines(array, *self.labels[name])]
        return "\n".join([*lines, ""])


def eight_steps(trace: Intermediates) -> tuple[TraceStep, ...]:
    """Return the eight steps; 4 to 7 are those of the first input."""
    return (*_projecting(trace), *steps_of_query(trace, 0), _repeating(trace))


def make_step(
    trace: Intermediates,
    number: int,
    title: str,
    formula: str,
    arrays: dict[str, Array],
    note: str,
    query: int | None = None,
) -> TraceStep:
    """Make a step for all queries or one."""
    tokens = None if trace.tokens is None or query is None else trace.tokens[query : query + 1]
    return TraceStep(number, title, formula, arrays, note, labels_of(trace, arrays, tokens))


def labels_of(trace: Intermediates, names: Iterable[str], one: list[str] | None = None) -> dict[str, Labels]:
    """Find the tokens for the axes of arrays, of all queries or of `one`."""
    tokens, key_tokens = one or trace.tokens, trace.key_tokens
    known: dict[str, Labels] = dict.fromkeys(("x", "queries", "outputs", "concatenated"), (tokens, None))
    known |= dict.fromkeys(("keys", "values", "weighted_values"), (key_tokens, None))
    known |= dict.fromkeys(("attn_bias", "scores", "visible", "weights"), (tokens, key_tokens)) | {
        "delta": (tokens, None)
    }
    labels = {name: known.get(name.removeprefix("grad_"), (None, None)) for name in names}
    if trace.convention == "column":
        labels = {name: (columns, rows) for name, (rows, columns) in labels.items()}
    return labels


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + "s" * (count != 1)


# Steps 1 to 3: inputs, weights, projections


def _projecting(trace: Intermediates) -> tuple[TraceStep, ...]:
    x = {} if trace.x is None else {"x": trace.x}
    every = {name: getattr(trace, name) for name in ("w_key", "w_query", "w_value", "b_key", "b_query", "b_value")}
    weights = {name: array for name, array in every.items() if array is not None}
    projected = {"keys": trace.keys, "queries": trace.queries, "values": trace.values}
    about_x = f"{_counted(len(trace.in_rows('queries')), 'input')}, one per {trace.convention}."
    about_weights = "In a network they start as small random numbers, and training improves them."
    about_weights += " With biases." * any(name.startswith("b_") for name in weights)
    formula = _projections(trace)
    if trace.x is None:
        about_x = about_weights = "Not known: this trace starts from queries, keys and values."
        formula = ""
    return (
        make_step(trace, 1, "Prepare inputs", "", x, about_x),
        make_step(trace, 2, "Initialise weights", "", weights, about_weights),
        make_step(trace, 3, "Derive keys, queries and values", formula, projected, _about_sizes(trace)),
    )


def _projections(trace: Intermediates) -> str:
    lines = []
    for name, plural in PROJECTED:
        product = f"x @ w_{name}" if trace.convention == "row" else f"w_{name} @ x"
        bias = "" if getattr(trace, f"b_{name}") is None else f" + b_{name}"
        lines.append(f"{plural} = {product}{bias}")
    return "\n".join(lines)


def _about_sizes(trace: Intermediates) -> str:
    (count, key_dim), v_dim = trace.in_rows("keys").shape, trace.in_rows("values").shape[1]
    if key_dim != trace.in_rows("queries").shape[1]:
        return ""  # score='bilinear' compares them through a matrix
    note = f"Keys and queries share one size, {key_dim}; values have the size of the outputs, {v_dim}."
    more = 0 if trace.x is None else count - len(trace.in_rows("x"))
    last = "The last key and value are" if more == 1 else f"The last {more} keys and values are"
    return note + f"\n{last} not projected from an input: they are parameters or zeros." * (more > 0)


# Steps 4 to 7: one input


def steps_of_query(trace: Intermediates, i: SupportsIndex) -> tuple[TraceStep, ...]:
    """Return steps 4 to 7 for input i; negative indices count from the end."""
    count, index = len(trace.in_rows("queries")), as_index(i, "i")
    if not -count <= index < count:
        raise IndexError(f"i is {index}; it must be from {-count} to {count - 1}, for {_counted(count, 'input')}")
    index %= count

    def row_of(name: str) -> Array:
        return as_rows(trace.in_rows(name)[index : index + 1], trace.convention)

    weighted = weigh_values(trace, slice(index, index + 1))[:, 0]
    scores = {name: row_of(name) for name in _scored(trace)}
    weights, outputs = {"weights": row_of("weights")}, {"outputs": row_of("outputs")}
    products = {"weighted_values": as_rows(weighted, trace.convention)}
    multiply, add = "weighted_values[j] = weights[j] * values[j]", "output = sum of weighted_values over the keys j"
    steps = (
        (f"Scores for {name_input(trace, index)}", _score_formula(trace), scores, _about_scores),
        (
            f"{trace.normalize.capitalize()} of the scores: the weights",
            _weights_formula(trace),
            weights,
            _about_weights,
        ),
        ("Multiply the weights with the values", multiply, products, _about_products),
        (f"Sum the weighted values: output {index + 1}", add, outputs, _about_output),
    )
    return tuple(
        make_step(trace, number, title, formula, arrays, about(trace, index, weighted), index)
        for number, (title, formula, arrays, about) in enumerate(steps, 4)
    )


def name_input(trace: Intermediates, i: int) -> str:
    """Name an input by its number, counted from 1, and its token."""
    return f"input {i + 1}" + ("" if trace.tokens is None else f" ({cut(trace.tokens[i])})")


def _scored(trace: Intermediates) -> tuple[str, ...]:
    """Name the arrays of step 4: the scores, and a float mask before them."""
    return ("scores",) if trace.attn_bias is None else ("attn_bias", "scores")


def _score_formula(trace: Intermediates) -> str:
    """Return the matrix product of 'dot', or the score of a query q and a key k."""
    scale = -trace.scale if trace.score == "distance" else trace.scale
    factor = {1.0: "", -1.0: "-"}.get(scale, f"{number_text(scale)} * ")
    added = "" if trace.attn_bias is None else " + attn_bias"
    if trace.score == "dot":
        product = "queries @ keys.T" if trace.convention == "row" else "keys.T @ queries"
        return f"scores = {factor}{product}{added}"
    terms = {"cosine": "(q . k) / (|q| |k|)", "distance": "|q - k|^2", "bilinear": "(q W k)"}
    return f"score(q, k) = {factor}{terms.get(trace.score, 'w . tanh(q + k)')}{added}"


def _weights_formula(trace: Intermediates) -> str:
    formula = _WEIGHTS[trace.normalize]
    if trace.round_weights is None:
        return formula
    return f"{formula}\nrounded to {_counted(trace.round_weights, 'decimal')}; each {trace.convention} keeps its sum"


def _attends_to_nothing(trace: Intermediates, i: int) -> bool:
    return bool((trace.in_rows("scores")[i] == -np.inf).all())


def _about_scores(trace: Intermediates, i: int, weighted: Array) -> str:
    query, scores = vector_text(trace.in_rows("queries")[i]), vector_text(trace.in_rows("scores")[i])
    added = "" if trace.attn_bias is None else f" + mask {vector_text(trace.in_rows('attn_bias')[i])}"
    if trace.score != "dot":
        note = f"{name_input(trace, i)}: {query} against every key{added} gives {scores}"
    else:
        product = f"{query} x K^T" if trace.convention == "row" else f"K^T x {query}"
        note = f"{name_input(trace, i)}: {'' if trace.scale == 1 else 'scale * '}{product}{added} = {scores}"
    hidden = 0 if trace.visible is None else int((~trace.in_rows("visible")[i]).sum())
    return note + f"\n-inf: hidden by the mask, {hidden} of {len(trace.in_rows('keys'))} keys" * (hidden > 0)


def _about_weights(trace: Intermediates, i: int, weighted: Array) -> str:
    scores, weights = (vector_text(trace.in_rows(name)[i]) for name in ("scores", "weights"))
    nothing = "\nEvery key is masked: all weights are 0." * _attends_to_nothing(trace, i)
    return f"{trace.normalize}({scores}) = {weights}{nothing}"


def _about_products(trace: Intermediates, i: int, weighted: Array) -> str:
    weights, values = trace.in_rows("weights")[i], trace.in_rows("values")
    lines = [
        f"{number_text(weights[j])} * {vector_text(values[j])} = {vector_text(weighted[j])}"
        for j in range(min(len(weights), _MAX_LINES))
    ]
    return "\n".join(lines + [f"... and {len(weights) - _MAX_LINES} more"] * (len(weights) > _MAX_LINES))


def _about_output(trace: Intermediates, i: int, weighted: Array) -> str:
    output = vector_text(trace.in_rows("outputs")[i])
    if trace.empty_rows == "nan" and _attends_to_nothing(trace, i):
        return f"Every key is masked: the output is {output} because of empty_rows='nan'."
    shown = [vector_text(row) for row in weighted[:_MAX_LINES]] + ["..."] * (len(weighted) > _MAX_LINES)
    return f"{' + '.join(shown)} = {output}"


# Step 8: all inputs


def _repeating(trace: Intermediates) -> TraceStep:
    row, count = trace.convention == "row", len(trace.in_rows("queries"))
    title = "Repeat 4 to 7 for the other inputs" if count > 1 else "Nothing to repeat: there is one input"
    axis = "" if trace.normalize == "sigmoid" else f", by {trace.convention}"
    outputs = "outputs = weights @ values" if row else "outputs = values @ weights"
    formula = f"{_score_formula(trace)}\nweights = {trace.normalize}(scores){axis}\n{outputs}"
    arrays = {name: getattr(trace, name) for name in (*_scored(trace), "weights", "outputs")}
    return make_step(trace, 8, title, formula, arrays, f"Matrix products compute all {trace.convention}s at once.")


# Steps 9 and 10: all heads


def concatenating(heads: Sequence[Intermediates], concatenated: Array) -> TraceStep:
    """Return step 9: the outputs of all heads in one matrix, side by side or stacked."""
    first, count = heads[0], len(heads)
    row = first.convention == "row"
    names = [f"head_{n}" for n in range(1, count + 1)] if count <= 4 else ["head_1", "...", f"head_{count}"]
    formula = f"concatenated = Concat({', '.join(names)})" if row else f"concatenated = [{'; '.join(names)}]"
    place = "side by side" if row else "on top of each other"
    lines = ["There is one head." if count == 1 else f"The outputs of the {count} heads are joined {place}."]
    for n, head in enumerate(heads[:_MAX_LINES], 1):
        lines.append(f"head {n}, {name_input(first, 0)}: {vector_text(head.in_rows('outputs')[0])}")
    lines += [f"... and {count - _MAX_LINES} more"] * (count > _MAX_LINES)
    lines.append(f"concatenated: {vector_text(as_rows(concatenated, first.convention)[0])}")
    return make_step(first, 9, "Concatenate the heads", formula, {"concatenated": concatenated}, "\n".join(lines))


def projecting(arrays: dict[str, Array], head: Intermediates) -> TraceStep:
    """Return step 10: the concatenated outputs times w_out; arrays are those of a HeadTraces that are not None."""
    product = "concatenated @ w_out" if head.convention == "row" else "w_out @ concatenated"
    bias = " + b_out" * ("b_out" in arrays)
    before, after = (vector_text(as_rows(arrays[name], head.convention)[0]) for name in ("concatenated", "outputs"))
    times = f"{before} x W_O" if head.convention == "row" else f"W_O x {before}"
    note = f"W_O combines the outputs of all heads.\n{name_input(head, 0)}: {times}{bias}\n= {after}"
    return make_step(head, 10, "Multiply by W_O: the outputs", f"outputs = {product}{bias}", arrays, note)

"""The eight steps in words, with their arrays."""

from __future__ import annotations

from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_index
from pyattn.tracing.data import Step, Trace
from pyattn.tracing.digits import cut, number_text, vector_text

__all__ = ["input_name", "score_formula", "steps_for", "steps_of"]

Array = npt.NDArray[np.float64]
_MOST_LINES = 8  # of a note


def steps_of(trace: Trace) -> tuple[Step, ...]:
    """Return the eight steps; 4 to 7 are those of the first input.

    Parameters
    ----------
    trace : Trace
        Of any kind.

    Returns
    -------
    tuple of Step
        Eight.
    """
    return (*_preparing(trace), *steps_for(trace, 0), _repeating(trace))


def _preparing(trace: Trace) -> tuple[Step, Step, Step]:
    """Return steps 1 to 3."""
    given = trace.x is None
    every = {name: getattr(trace, name) for name in ("x", "w_key", "w_query", "w_value", "b_key", "b_query", "b_value")}
    known = {name: array for name, array in every.items() if array is not None}
    known_x = {name: array for name, array in known.items() if name == "x"}
    weights = {name: array for name, array in known.items() if name != "x"}
    derived = {"keys": trace.keys, "queries": trace.queries, "values": trace.values}
    count = trace.in_rows("queries").shape[0]
    line = "row" if trace.convention == "row" else "column"
    here = "Not known here: keys, queries and values were given."
    return (
        Step(1, "Prepare inputs", "", known_x, here if given else f"{_counted(count, 'input')}, one per {line}."),
        Step(2, "Initialise weights", "", weights, here if given else _about_weights(trace)),
        Step(3, "Derive keys, queries and values", "" if given else _projections(trace), derived, _about_sizes(trace)),
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def _about_weights(trace: Trace) -> str:
    note = "Small random numbers at first, in a network, and then learned."
    return note if trace.b_key is None and trace.b_query is None and trace.b_value is None else f"{note} With biases."


def _about_sizes(trace: Trace) -> str:
    key_dim, v_dim = trace.in_rows("keys").shape[1], trace.in_rows("values").shape[1]
    if key_dim != trace.in_rows("queries").shape[1]:
        return ""  # queries are compared through a matrix
    note = f"A key has {_counted(key_dim, 'number')}, as a query; a value has {v_dim}, as an output."
    more = 0 if trace.x is None else len(trace.in_rows("keys")) - len(trace.in_rows("x"))
    which = "key and value is" if more == 1 else f"{more} keys and values are"
    return note + f"\nThe last {which} made of no input: a parameter, or zero." * (more > 0)


def _projections(trace: Trace) -> str:
    lines = []
    for name, plural in (("key", "keys"), ("query", "queries"), ("value", "values")):
        product = f"x @ w_{name}" if trace.convention == "row" else f"w_{name} @ x"
        bias = "" if getattr(trace, f"b_{name}") is None else f" + b_{name}"
        lines.append(f"{plural} = {product}{bias}")
    return "\n".join(lines)


def score_formula(trace: Trace) -> str:
    """Return how scores are computed.

    Parameters
    ----------
    trace : Trace
        Of any kind.

    Returns
    -------
    str
        A matrix product for 'dot', else the score of a query q and a key k.
    """
    scale = -trace.scale if trace.score == "distance" else trace.scale
    factor = {1.0: "", -1.0: "-"}.get(scale, f"{number_text(scale)} * ")
    added = "" if trace.attn_bias is None else " + attn_bias"
    if trace.score == "dot":
        product = "queries @ keys.T" if trace.convention == "row" else "keys.T @ queries"
        return f"scores = {factor}{product}{added}"
    terms = {"cosine": "(q . k) / (|q| |k|)", "distance": "|q - k|^2", "bilinear": "(q W k)"}
    return f"score(q, k) = {factor}{terms.get(trace.score, 'w . tanh(q + k)')}{added}"


def input_name(trace: Trace, i: int) -> str:
    """Name an input as texts on attention do, counting from 1.

    Parameters
    ----------
    trace : Trace
        Of any kind.
    i : int
        Counted from 0.

    Returns
    -------
    str
        Its number, and its token where it has one.
    """
    return f"input {i + 1}" + ("" if trace.tokens is None else f" ({cut(trace.tokens[i])})")


def steps_for(trace: Trace, i: SupportsIndex) -> tuple[Step, ...]:
    """Return steps 4 to 7 for one input.

    Parameters
    ----------
    trace : Trace
        Of any kind.
    i : int
        Which; counted from 0, or from the end where negative.

    Returns
    -------
    tuple of Step
        Four.

    Raises
    ------
    IndexError
        There is no such input.
    TypeError
        i is no integer.
    """
    count = len(trace.in_rows("queries"))
    index = as_index(i, "i", "an int, the number of an input from 0")
    if not -count <= index < count:
        are = "is" if count == 1 else "are"
        raise IndexError(f"i is {index}, expected {-count} to {count - 1}: there {are} {_counted(count, 'input')}")
    index %= count
    one = slice(index, index + 1)
    compared = {field: trace._turned(trace.in_rows(field)[one]) for field in _scored(trace)}
    weights, outputs = (trace._turned(trace.in_rows(field)[one]) for field in ("weights", "outputs"))
    weighted = trace._weighted(one)[:, 0]
    name = input_name(trace, index)
    return (
        Step(4, f"Scores for {name}", score_formula(trace), compared, _about_scores(trace, index)),
        Step(5, _NORMALISED[trace.normalise], _weights_formula(trace), {"weights": weights}, _about_row(trace, index)),
        Step(
            6,
            "Multiply the weights with the values",
            "weighted_values[j] = weights[j] * values[j]",
            {"weighted_values": trace._turned(weighted)},
            _about_weighted(trace, index, weighted),
        ),
        Step(
            7,
            f"Sum the weighted values: output {index + 1}",
            "output = sum of weighted_values over the keys j",
            {"outputs": outputs},
            _about_output(trace, index, weighted),
        ),
    )


_NORMALISED = {
    "softmax": "Softmax of the scores: the weights",
    "sigmoid": "Sigmoid of the scores: the weights",
    "sparsemax": "Sparsemax of the scores: the weights",
}
_FORMULAS = {
    "softmax": "weights[j] = exp(scores[j]) / sum over k of exp(scores[k])",
    "sigmoid": "weights[j] = 1 / (1 + exp(-scores[j]))",
    "sparsemax": "weights[j] = max(scores[j] - tau, 0), with tau such that they sum to 1",
}


def _weights_formula(trace: Trace) -> str:
    formula = _FORMULAS[trace.normalise]
    if trace.round_weights is None:
        return formula
    return f"{formula}\nrounded to {_counted(trace.round_weights, 'decimal')}, so that their sum stays"


def _hidden(trace: Trace, i: int) -> int:
    return 0 if trace.visible is None else int((~trace.in_rows("visible")[i]).sum())


def _attends_to_nothing(trace: Trace, i: int) -> bool:
    return bool((trace.in_rows("scores")[i] == -np.inf).all())


def _scored(trace: Trace) -> tuple[str, ...]:
    """Fields that step 4 shows: what is added to the scores stands before them."""
    return ("scores",) if trace.attn_bias is None else ("attn_bias", "scores")


def _about_scores(trace: Trace, i: int) -> str:
    query, scores = vector_text(trace.in_rows("queries")[i]), vector_text(trace.in_rows("scores")[i])
    name, hidden = input_name(trace, i), _hidden(trace, i)
    added = "" if trace.attn_bias is None else f" + mask {vector_text(trace.in_rows('attn_bias')[i])}"
    if trace.score != "dot":
        note = f"{name}: {query} against every key{added} gives {scores}"
    else:
        product = f"{query} x K^T" if trace.convention == "row" else f"K^T x {query}"
        note = f"{name}: {'' if trace.scale == 1 else 'scale * '}{product}{added} = {scores}"
    return note + f"\n-inf: hidden by the mask, {hidden} of {len(trace.in_rows('keys'))} keys" * (hidden > 0)


def _about_row(trace: Trace, i: int) -> str:
    scores, weights = trace.in_rows("scores")[i], trace.in_rows("weights")[i]
    note = f"{trace.normalise}({vector_text(scores)}) = {vector_text(weights)}"
    if _attends_to_nothing(trace, i):
        note += "\nThere is nothing to attend to: all weights are 0."
    return note


def _about_weighted(trace: Trace, i: int, weighted: Array) -> str:
    weights, values = trace.in_rows("weights")[i], trace.in_rows("values")
    lines = [
        f"{number_text(weights[j])} * {vector_text(values[j])} = {vector_text(weighted[j])}"
        for j in range(min(len(weights), _MOST_LINES))
    ]
    return "\n".join([*lines, f"... and {len(weights) - _MOST_LINES} more"] if len(weights) > _MOST_LINES else lines)


def _about_output(trace: Trace, i: int, weighted: Array) -> str:
    output = vector_text(trace.in_rows("outputs")[i])
    if trace.empty_rows == "nan" and _attends_to_nothing(trace, i):
        return f"There is nothing to attend to: the output is {output}, as empty_rows='nan' asks for."
    shown = [vector_text(row) for row in weighted[:_MOST_LINES]] + ["..."] * (len(weighted) > _MOST_LINES)
    return f"{' + '.join(shown)} = {output}"


def _repeating(trace: Trace) -> Step:
    count = len(trace.in_rows("queries"))
    arrays = {name: getattr(trace, name) for name in (*_scored(trace), "weights", "outputs")}
    title = "Repeat 4 to 7 for the other inputs" if count > 1 else "Nothing to repeat: there is one input"
    note = f"All {trace.convention}s at once are matrix products."
    row = trace.convention == "row"
    axis = {"softmax": f", by {trace.convention}", "sigmoid": "", "sparsemax": f", by {trace.convention}"}
    formula = f"{score_formula(trace)}\nweights = {trace.normalise}(scores){axis[trace.normalise]}\n"
    return Step(
        8, title, formula + ("outputs = weights @ values" if row else "outputs = values @ weights"), arrays, note
    )

"""The eight steps backwards, of one head or several, as HTML for a notebook or a saved page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pyattn.tracing.compute import Intermediates, as_rows
from pyattn.tracing.render.backward_steps import backward_steps
from pyattn.tracing.render.html import (
    HOW,
    MAX_HEADS,
    MAX_HEADS_REPEATED,
    Figure,
    data_of,
    embedded,
    fragment,
    new_id,
    section,
    with_data,
)
from pyattn.tracing.render.steps import TraceStep, labels_of

__all__ = ["TITLE", "backward_heads_html", "backward_html"]

Array = npt.NDArray[np.float64]
TITLE = "Attention backwards, step by step"
_READ = {
    6: ("grad_outputs", "weights", "values", "visible"),
    5: ("grad_weights", "weights"),
    4: ("grad_scores", "keys", "queries", "scale", "score_weight"),
    3: ("grad_keys", "grad_queries", "grad_values", "x"),
    1: ("grad_keys", "grad_queries", "grad_values", "w_key", "w_query", "w_value"),
}


@np.errstate(all="ignore")
def backward_html(trace: Intermediates, grads: Mapping[str, Array], page: bool = False) -> str:
    """Write the gradients of a trace as a fragment; on a page each step repeats what it reads."""
    name, level = new_id(), "h1" if page else "h2"
    head = f'<{level}>{TITLE}</{level}>\n<p class="pa-how" hidden>{HOW}</p>\n'
    return fragment(head + _steps(trace, grads, name, page), [name], page, "backward.js", "aboutBackward")


@np.errstate(all="ignore")
def backward_heads_html(
    heads: Sequence[tuple[Intermediates, Mapping[str, Array]]], joint: Sequence[TraceStep], page: bool = False
) -> str:
    """Write steps 10 and 9 of all heads, the steps of the first 16 to unfold, and steps 3 and 1 of all heads."""
    shown, level = heads[:MAX_HEADS], "h1" if page else "h2"
    names = [new_id() for _ in shown]
    parts = [f"<{level}>{TITLE}, with {len(heads)} heads</{level}>", f'<p class="pa-how" hidden>{HOW}</p>']
    parts += [section(step, heads[0][0]) for step in joint[:2]]
    if len(heads) > len(shown):
        rest = f"Heads {len(shown) + 1} to {len(heads)} are not shown"
        parts.append(f"<p>{rest}: heads[{len(shown)}].save_html(path) writes the page of one.</p>")
    for n, ((trace, grads), name) in enumerate(zip(shown, names, strict=True), 1):
        written = _steps(trace, grads, name, page, len(shown))
        parts.append(f"<details><summary>Head {n} backwards, step by step</summary>\n{written}\n</details>")
    parts += [section(step, heads[0][0]) for step in joint[2:]]
    return fragment("\n".join(parts), names, page, "backward.js", "aboutBackward")


def _steps(trace: Intermediates, grads: Mapping[str, Array], name: str, page: bool, heads: int = 1) -> str:
    """Write the steps and the data that the script needs; heads is the number of heads on the page."""
    repeats = page and heads <= MAX_HEADS_REPEATED
    sections = [
        section(step, trace, heads, _read_by(trace, grads, step.number) if repeats else (), name if page else "")
        for step in backward_steps(trace, grads)
    ]
    data = data_of(trace, heads)
    if data["m"]:
        rows = {key: as_rows(grad, trace.convention) for key, grad in grads.items()}
        if "grad_score_weight" in grads:  # the same in both conventions
            rows["grad_score_weight"] = grads["grad_score_weight"]
        data["m"] |= embedded(rows, trace, heads)
    return with_data(sections, data, name, page)


def _read_by(trace: Intermediates, grads: Mapping[str, Array], number: int) -> list[Figure]:
    """List the matrices that a step reads."""
    figures = []
    for name in _READ.get(number, ()) if trace.x is not None or number > 3 else ():
        array = grads[name] if name in grads else getattr(trace, name)
        if array is None or (name == "scale" and trace.scale == 1):
            continue
        array = np.atleast_2d(np.asarray(array, np.float64))
        figures.append(Figure(name, array, labels_of(trace, [name])[name]))
    return figures

"""The eight steps backwards as HTML for a notebook or a saved page."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pyattn.tracing.compute import Intermediates, as_rows
from pyattn.tracing.render.backward_steps import backward_steps
from pyattn.tracing.render.html import HOW, Figure, data_of, embedded, fragment, new_id, section, with_data
from pyattn.tracing.render.steps import labels_of

__all__ = ["TITLE", "backward_html"]

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
    sections = [
        section(step, trace, 1, _read_by(trace, grads, step.number) if page else (), name if page else "")
        for step in backward_steps(trace, grads)
    ]
    data = data_of(trace, 1)
    if data["m"]:
        rows = {key: as_rows(grad, trace.convention) for key, grad in grads.items()}
        if "grad_score_weight" in grads:  # the same in both conventions
            rows["grad_score_weight"] = grads["grad_score_weight"]
        data["m"] |= embedded(rows, trace)
    head = f'<{level}>{TITLE}</{level}>\n<p class="pa-how" hidden>{HOW}</p>\n'
    return fragment(head + with_data(sections, data, name, page), [name], page, "backward.js", "aboutBackward")


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

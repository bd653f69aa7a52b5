"""Text, Markdown and HTML of the stages of a Transformer layer."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pyattn.tracing.render.markdown import steps_markdown
from pyattn.tracing.render.page import class_of, style
from pyattn.tracing.render.steps import Labels, TraceStep
from pyattn.tracing.render.tables import table_of
from pyattn.tracing.render.text import matrix_lines

__all__ = ["TITLE", "LayerStage", "layer_html", "layer_markdown"]

Array = npt.NDArray[np.float64]
TITLE = "Transformer layer, stage by stage"
_PLAIN = ' style="--kind:var(--soft);--edge:var(--soft);--tint:12%"'


class LayerStage(NamedTuple):
    """One stage of a Transformer layer; its ``str`` is a block of text.

    Attributes
    ----------
    name : str
        'input', 'self_attention', 'cross_attention', 'add_norm_1', 'feed_forward', ...; with norm_first, 'norm_1' and
        'add_1' instead of 'add_norm_1'.
    title : str
        As in the figures of the architecture: 'Masked self-attention', 'Add & Norm'.
    formula : str
        One or more lines in NumPy's notation, with the names of arrays of this stage and earlier ones.
    arrays : dict of str to ndarray, (rows, columns)
        Parameters and results. The last array is the output of the stage.
    note : str
        A remark, of one or more lines.
    labels : dict of str to (list of str or None, list of str or None)
        Tokens of the rows and columns of each array.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> layer = nn.TransformerEncoderLayer(2, 1, 2, norm_first=True, rng=0)
    >>> print(layer.trace([[3, 1], [1, 3]], tokens=["a", "b"]).stages[1])
    Norm
      norm_1 = (x - mean_1) / sqrt(variance_1 + 1e-05) * norm_1_weight + norm_1_bias
      LayerNorm normalises each row by itself. Row 1 has mean 2 and variance 1.
    <BLANKLINE>
      mean_1, 2 x 1
        a  2
        b  2
    <BLANKLINE>
      variance_1, 2 x 1
        a  1
        b  1
    <BLANKLINE>
      norm_1_weight, 1 x 2
        1  1
    <BLANKLINE>
      norm_1_bias, 1 x 2
        0  0
    <BLANKLINE>
      norm_1, 2 x 2
        a   1.0000  -1.0000
        b  -1.0000   1.0000
    <BLANKLINE>
    """

    name: str
    title: str
    formula: str
    arrays: dict[str, Array]
    note: str
    labels: dict[str, Labels]

    @property
    def output(self) -> Array:
        """The last array: what the next stage reads."""
        return list(self.arrays.values())[-1]

    def block(self, number: int | None = None) -> str:
        """Write the stage as text that ends in an empty line.

        Parameters
        ----------
        number : int, optional
            Position in the layer, from 1. Default: None, not shown.

        Returns
        -------
        str
            Title, formula, note and arrays.
        """
        lines = [self.title if number is None else f"Stage {number}: {self.title}"]
        lines += [f"  {line}" for part in (self.formula, self.note) for line in part.splitlines()]
        for name, array in self.arrays.items():
            lines += ["", f"  {name}, {array.shape[0]} x {array.shape[1]}"]
            lines += [f"    {line}" for line in matrix_lines(array, *self.labels[name])]
        return "\n".join([*lines, ""])

    def __str__(self) -> str:
        """Write the stage as a block of text that ends in an empty line."""
        return self.block()


class Page(Protocol):
    """A trace that writes itself as HTML."""

    def _repr_html_(self) -> str: ...


def layer_markdown(stages: Sequence[LayerStage]) -> str:
    """Write a heading for each stage and a table for each of its arrays."""
    steps = [TraceStep(n, s.title, s.formula, s.arrays, s.note, s.labels) for n, s in enumerate(stages, 1)]
    return steps_markdown(steps, "Stage")


@np.errstate(all="ignore")
def layer_html(stages: Sequence[LayerStage], attentions: Mapping[str, Page], page: bool = False) -> str:
    """Write the stages, each attention with the page of its heads to unfold; a saved page is as wide as its window."""
    level, classes = ("h1", "pyattn pa-page") if page else ("h2", "pyattn")
    parts = [f"<{level}>{TITLE}</{level}>"]
    for n, stage in enumerate(stages, 1):
        parts.append(f"<section>\n<h3>{n}. {html.escape(stage.title)}</h3>")
        parts += [f"<pre>{html.escape(stage.formula)}</pre>"] if stage.formula else []
        parts += [f"<p>{html.escape(stage.note)}</p>"] if stage.note else []
        figures = [_figure(stage, name) for name in stage.arrays]
        parts += ['<div class="pa-row">', *figures, "</div>"]
        if stage.name in attentions:
            heads = attentions[stage.name]._repr_html_()
            parts.append(f"<details><summary>Every head, step by step</summary>\n{heads}\n</details>")
        parts.append("</section>")
    content = "\n".join(parts)
    return f'<div class="{classes}">\n<style>{style(page)}</style>\n{content}\n</div>'


def _figure(stage: LayerStage, name: str) -> str:
    """Write a caption and a table, in the colour of its kind: inputs, weights of heads, outputs, or neither."""
    array = stage.arrays[name]
    is_weights = name.startswith("head_")
    kind = "inputs" if stage.name == "input" else "scores" if is_weights else ""
    kind = "outputs" if array is stage.output and not kind else kind
    colour = f' class="{class_of(kind)}"' if kind else _PLAIN
    about = ", scores after softmax" if is_weights else f", {kind}" * bool(kind)
    caption = f"{name} <span>{array.shape[0]} x {array.shape[1]}{about}</span>"
    table = table_of(array, stage.labels[name], top=1.0 if is_weights else None)
    return f"<figure{colour}><figcaption>{caption}</figcaption>{table}</figure>"

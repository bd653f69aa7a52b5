"""Transformer layers: attention, Add & Norm and the feed-forward part as stages with their numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference
from pyattn._util.names import unknown_field
from pyattn.tracing.dicts import MAX_LISTED, as_plain
from pyattn.tracing.heads import HeadTraces
from pyattn.tracing.inputs import read_tokens
from pyattn.tracing.render.layers import TITLE, LayerStage, layer_html, layer_markdown
from pyattn.tracing.render.page import save_page
from pyattn.tracing.render.steps import Labels
from pyattn.tracing.render.text import number_text
from pyattn.tracing.traces import Trace

__all__ = ["Attending", "FeedForwardPart", "LayerParts", "LayerTrace", "NormPart", "trace_layer"]

Array = npt.NDArray[np.float64]
_MAX_HEADS = 8  # whose weights a stage shows; the trace of the attention has all


@dataclass(frozen=True, eq=False, repr=False)
class LayerTrace:
    """Every number of a Transformer layer, stage by stage.

    `pyattn.nn.TransformerEncoderLayer.trace` and `pyattn.nn.TransformerDecoderLayer.trace` return it. All arrays are
    float64 and read-only. Printed, it is text; in a notebook, a page with the stages and the steps of every head.

    Attributes
    ----------
    stages : tuple of LayerStage
        In the order of computation. An encoder layer has Input, Self-attention, Add & Norm, Feed-forward, Add & Norm; a
        decoder layer has Cross-attention and one more Add & Norm. With norm_first, Norm comes before each part and Add
        after it.
    attentions : dict of str to HeadTraces
        The eight steps of every head, by the name of the stage: 'self_attention', and 'cross_attention' in a decoder.
    norm_first : bool
        Whether the layer normalises the input of each part, not the sum after it.
    tokens : list of str, or None
        Names of the rows of x.
    memory_tokens : list of str, or None
        Names of the rows of memory, in a decoder layer.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> traced = nn.TransformerEncoderLayer(4, 2, 8, rng=0).trace(np.eye(3, 4))
    >>> traced
    LayerTrace(input, self_attention, add_norm_1, feed_forward, add_norm_2: 3 x 4)
    >>> traced.stages[2].title, list(traced.stages[2].arrays)
    ('Add & Norm', ['sum_1', 'mean_1', 'variance_1', 'norm_1_weight', 'norm_1_bias', 'norm_1'])
    >>> traced.attentions["self_attention"].heads[1].weights.shape
    (3, 3)
    """

    stages: tuple[LayerStage, ...]
    attentions: Mapping[str, HeadTraces]
    norm_first: bool
    tokens: list[str] | None
    memory_tokens: list[str] | None

    @property
    def arrays(self) -> dict[str, Array]:
        """All arrays of all stages by name."""
        return {name: array for stage in self.stages for name, array in stage.arrays.items()}

    @property
    def outputs(self) -> Array:
        """The output of the layer, (L, d_model): the last array of the last stage."""
        return self.stages[-1].output

    def to_dict(self) -> dict[str, Any]:
        """Return stages and heads as lists, numbers and strings for `json.dumps`.

        The dict is for export only: no ``from_dict`` makes a layer's trace from it. The heads of each attention can be
        read back, with `HeadTraces.from_dict`.

        Returns
        -------
        dict
            Numbers that JSON lacks are the strings 'Infinity', '-Infinity' and 'NaN'. Each entry of stages has the
            fields of `LayerStage` but labels; an array above 262,144 numbers is None there. attentions has the dicts of
            `HeadTraces.to_dict`.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> entries = nn.TransformerEncoderLayer(4, 2, 8, rng=0).trace(np.eye(3, 4)).to_dict()
        >>> entries["stages"][3]["name"], list(entries["attentions"])
        ('feed_forward', ['self_attention'])
        """
        stages = [
            {
                "name": stage.name,
                "title": stage.title,
                "formula": stage.formula,
                "note": stage.note,
                "arrays": {
                    name: as_plain(array) if array.size <= MAX_LISTED else None for name, array in stage.arrays.items()
                },
            }
            for stage in self.stages
        ]
        attentions = {name: heads.to_dict() for name, heads in self.attentions.items()}
        options = {"norm_first": self.norm_first, "tokens": self.tokens, "memory_tokens": self.memory_tokens}
        return {"stages": stages, "attentions": attentions, **options}

    def to_markdown(self) -> str:
        """Return the stages as Markdown, with a table for each matrix.

        Returns
        -------
        str
            Matrices above 12 rows or columns are shown by the first 6 and the last 3. The steps of the heads are those
            of `HeadTraces.to_markdown`.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> print(nn.TransformerEncoderLayer(4, 2, 8, rng=0).trace(np.eye(3, 4)).to_markdown()[:17])
        ## Stage 1: Input
        """
        return layer_markdown(self.stages)

    def to_html(self) -> str:
        """Return the stages as a fragment of HTML with its own style, which loads nothing.

        Returns
        -------
        str
            As a notebook shows it: the stages, and below each attention the steps of its heads to unfold.
        """
        return layer_html(self.stages, self.attentions)

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the stages as one self-contained HTML page, which works offline.

        Parameters
        ----------
        path : str or path
            File to write; an existing one is replaced.

        Examples
        --------
        >>> import numpy as np, pathlib, tempfile
        >>> from pyattn import nn
        >>> traced = nn.TransformerEncoderLayer(4, 2, 8, rng=0).trace(np.eye(3, 4))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     traced.save_html(pathlib.Path(folder, "layer.html"))
        """
        save_page(layer_html(self.stages, self.attentions, page=True), path, TITLE)

    def _repr_html_(self) -> str:
        return self.to_html()

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name; arrays are in stages, and those of one head in its attention."""
            names = ["stages", "attentions", "arrays", "outputs", "norm_first", "tokens", "memory_tokens"]
            of_head = {field: f"attentions['self_attention'].heads[0].{field}" for field in Trace.__dataclass_fields__}
            arrays = {array: f"arrays[{array!r}]" for stage in vars(self).get("stages", ()) for array in stage.arrays}
            unknown_field(self, name, names, {**of_head, **arrays})

    def __str__(self) -> str:
        """Write all stages as text."""
        return "\n".join(stage.block(n) for n, stage in enumerate(self.stages, 1)).rstrip("\n")

    def __repr__(self) -> str:
        """Show the stages and the size of the output."""
        rows, features = self.outputs.shape
        return f"LayerTrace({', '.join(stage.name for stage in self.stages)}: {rows} x {features})"


class NormPart(NamedTuple):
    """A normalisation over the last axis; RMS has no mean and no bias."""

    weight: Array | None
    bias: Array | None
    eps: float
    rms: bool


class FeedForwardPart(NamedTuple):
    """Weights (out, in) and biases of linear1, linear2 and the gate, and the activation between them."""

    linear1: tuple[Array, Array | None]
    linear2: tuple[Array, Array | None]
    gate: tuple[Array, Array | None] | None
    activation: str
    activate: Callable[[Array], Array]


class Attending(NamedTuple):
    """An attention of the layer: its stage, whether it is masked, and a function that traces it."""

    name: str
    is_masked: bool
    trace: Callable[[Array], HeadTraces]


class LayerParts(NamedTuple):
    """What a layer is made of. There is one norm more than attentions: that of the feed-forward part."""

    attends: tuple[Attending, ...]
    norms: tuple[NormPart, ...]
    feed_forward: FeedForwardPart
    norm_first: bool


@np.errstate(all="ignore")
def trace_layer(
    inputs: Mapping[str, Array], parts: LayerParts, names: Mapping[str, Sequence[str] | None]
) -> LayerTrace:
    """Compute the stages of a layer from x, and memory in a decoder; names are tokens, and memory_tokens."""
    rows, memory_rows = read_tokens(names["tokens"], "tokens", len(inputs["x"])), None
    if "memory" in inputs:
        memory_rows = read_tokens(names["memory_tokens"], "memory_tokens", len(inputs["memory"]))
    made = _Stages(rows)
    title, given_arrays = "Inputs" if len(inputs) > 1 else "Input", dict(reversed(list(inputs.items())))  # x last
    made.add("input", title, given_arrays, (), _about_inputs(inputs), memory_rows)
    attentions: dict[str, HeadTraces] = {}
    x, name = inputs["x"], "x"
    for n, (attend, norm) in enumerate(zip(parts.attends, parts.norms, strict=False), 1):
        given, source = _norm_stage(made, x, name, n, norm) if parts.norm_first else (x, name)
        heads = attentions[attend.name] = attend.trace(given)
        made.attention(attend, heads, source)
        x, name = _after(made, (x, name), (heads.outputs, attend.name), n, norm, parts.norm_first)
    n, norm = len(parts.norms), parts.norms[-1]
    given, source = _norm_stage(made, x, name, n, norm) if parts.norm_first else (x, name)
    y = _feed_stage(made, given, source, parts.feed_forward)
    _after(made, (x, name), (y, "feed_forward"), n, norm, parts.norm_first)
    return LayerTrace(tuple(made.stages), attentions, parts.norm_first, rows, memory_rows)


class _Stages:
    """The stages so far; it labels the rows of each array with the tokens."""

    def __init__(self, tokens: list[str] | None) -> None:
        self.tokens = tokens
        self.stages: list[LayerStage] = []

    def add(
        self,
        name: str,
        title: str,
        arrays: dict[str, Array],
        formulas: Iterable[str],
        note: str,
        memory_tokens: list[str] | None = None,
        labels: Mapping[str, Labels] | None = None,
    ) -> None:
        """Append a stage, and make its arrays read-only; parameters have no tokens."""
        for array in arrays.values():
            array.flags.writeable = False
        known: dict[str, Labels] = {
            array: (None if _is_parameter(array) else memory_tokens if array == "memory" else self.tokens, None)
            for array in arrays
        }
        formula = "\n".join(formulas)
        self.stages.append(LayerStage(name, title, formula, arrays, note, known | dict(labels or {})))

    def attention(self, attend: Attending, heads: HeadTraces, source: str) -> None:
        """Append an attention: the weights of its heads, and its output."""
        title = attend.name.replace("_", "-").capitalize()
        title = f"Masked {title.lower()}" if attend.is_masked else title
        count, first = len(heads.heads), heads.heads[0]
        shown = {f"head_{h}_weights": head.weights for h, head in enumerate(heads.heads[:_MAX_HEADS], 1)}
        concat = ", ".join(f"head_{h}" for h in ((1, 2, 3) if count == 3 else range(1, min(count, 2) + 1)))
        concat = f"{concat}, ..., head_{count}" if count > 3 else concat
        bias = "" if heads.b_out is None else " + b_out"
        mask = " + mask" if any(head.attn_bias is not None for head in heads.heads) else ""
        formulas = (
            f"head_i = softmax({number_text(first.scale)} * queries_i @ keys_i.T{mask}) @ values_i",
            f"{attend.name} = concat({concat}) @ w_out{bias}",
        )
        one = "1 head" if count == 1 else f"{count} heads"
        note = f"{one}. Queries, keys and values are projected from {source}."
        if attend.name == "cross_attention":
            note = f"{one}. Queries are projected from {source}; keys and values from memory."
        if any(head.visible is not None for head in heads.heads):
            note += "\nHidden keys have weight 0."
        if count > _MAX_HEADS:
            note += f"\nThe weights of heads {_MAX_HEADS + 1} to {count} are in attentions[{attend.name!r}]."
        labels: dict[str, Labels] = dict.fromkeys(shown, (first.tokens, first.key_tokens))
        self.add(attend.name, title, {**shown, attend.name: heads.outputs}, formulas, note, None, labels)


def _is_parameter(name: str) -> bool:
    """Tell a parameter's name."""
    return name.startswith(("w_", "b_")) or name.endswith(("_weight", "_bias"))


def _about_inputs(inputs: Mapping[str, Array]) -> str:
    """Say what the rows of the inputs are."""
    rows, features = inputs["x"].shape
    note = f"{rows} position{'s' * (rows != 1)} with {features} features, one per row."
    if "memory" in inputs:
        note += f"\nmemory, the output of the encoder, has {len(inputs['memory'])} rows."
    return note


def _norm_stage(made: _Stages, x: Array, name: str, n: int, norm: NormPart) -> tuple[Array, str]:
    """Append a normalisation that comes before a part; return its result and name."""
    arrays, formula = _normalise(x, name, n, norm)
    made.add(f"norm_{n}", "Norm", arrays, (formula,), _about_norm(x, norm))
    return arrays[f"norm_{n}"], f"norm_{n}"


def _after(
    made: _Stages, x: tuple[Array, str], y: tuple[Array, str], n: int, norm: NormPart, norm_first: bool
) -> tuple[Array, str]:
    """Append what follows a part: Add & Norm, or Add if the layer normalises first."""
    total, name = x[0] + y[0], f"sum_{n}"
    adding = f"{name} = {x[1]} + {y[1]}"
    about = "The residual connection adds the input of the part to its output."
    if norm_first:
        made.add(f"add_{n}", "Add", {name: total}, (adding,), about)
        return total, name
    arrays, formula = _normalise(total, name, n, norm)
    made.add(f"add_norm_{n}", "Add & Norm", {name: total, **arrays}, (adding, formula), _about_norm(total, norm))
    return arrays[f"norm_{n}"], f"norm_{n}"


def _normalise(x: Array, name: str, n: int, norm: NormPart) -> tuple[dict[str, Array], str]:
    """Compute a normalisation; return mean, variance, parameters and result by name, and its formula."""
    arrays: dict[str, Array] = {}
    if norm.rms:
        arrays[f"mean_square_{n}"] = np.mean(x**2, axis=-1, keepdims=True)
        formula = f"norm_{n} = {name} / sqrt(mean_square_{n} + {norm.eps:g})"
        y = reference.rms_norm(x, norm.weight, norm.eps)
    else:
        arrays[f"mean_{n}"] = x.mean(axis=-1, keepdims=True)
        arrays[f"variance_{n}"] = x.var(axis=-1, keepdims=True)
        formula = f"norm_{n} = ({name} - mean_{n}) / sqrt(variance_{n} + {norm.eps:g})"
        y = reference.layer_norm(x, norm.weight, norm.bias, norm.eps)
    for vector, word, sign in ((norm.weight, "weight", "*"), (norm.bias, "bias", "+")):
        if vector is not None:
            arrays[f"norm_{n}_{word}"] = vector[np.newaxis].copy()
            formula += f" {sign} norm_{n}_{word}"
    arrays[f"norm_{n}"] = np.asarray(y, np.float64)
    return arrays, formula


def _about_norm(x: Array, norm: NormPart) -> str:
    """Say what a normalisation does, with the numbers of the first row."""
    if norm.rms:
        return f"RMSNorm: each row is divided by the root of the mean square of its {x.shape[1]} numbers."
    mean, variance = number_text(float(x[0].mean())), number_text(float(x[0].var()))
    return f"LayerNorm normalises each row by itself. Row 1 has mean {mean} and variance {variance}."


def _feed_stage(made: _Stages, x: Array, name: str, part: FeedForwardPart) -> Array:
    """Append the feed-forward part; return its output."""
    arrays: dict[str, Array] = {}
    formulas = [_linear(arrays, x, name, part.linear1, "1", "hidden")]
    if part.gate is None:
        activated = part.activate(arrays["hidden"])
        formulas.append(f"activated = {part.activation}(hidden)")
    else:
        formulas.append(_linear(arrays, x, name, part.gate, "gate", "gate"))
        activated = part.activate(arrays["gate"]) * arrays["hidden"]
        formulas.append(f"activated = {part.activation}(gate) * hidden")
    arrays["activated"] = np.array(activated, np.float64)
    formulas.append(_linear(arrays, arrays["activated"], "activated", part.linear2, "2", "feed_forward"))
    inner, out = arrays["activated"].shape[1], arrays["feed_forward"].shape[1]
    about = f"Each position by itself, with the same weights: {x.shape[1]} features to {inner}, and back to {out}."
    made.add("feed_forward", "Feed-forward", arrays, formulas, about)
    return arrays["feed_forward"]


def _linear(
    arrays: dict[str, Array], x: Array, name: str, layer: tuple[Array, Array | None], n: str, result: str
) -> str:
    """Compute a linear layer into arrays, with its parameters; return its formula."""
    weight, bias = layer
    arrays[f"w_{n}"] = weight.T.copy()
    formula = f"{result} = {name} @ w_{n}"
    if bias is not None:
        arrays[f"b_{n}"] = bias[np.newaxis].copy()
        formula += f" + b_{n}"
    arrays[result] = np.asarray(reference.linear(x, weight, bias), np.float64)
    return formula

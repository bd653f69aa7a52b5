"""A trace as HTML for a notebook or a page.

Its size is bounded. Large matrices are shown by their edges and large weights as a picture. Matrices that the script
needs are embedded once, as float32, if they fit.
"""

from __future__ import annotations

import base64
import html
import json
import secrets
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn.tracing.compute import Intermediates
from pyattn.tracing.render.colours import HEAT, KINDS
from pyattn.tracing.render.page import SCRIPT, STYLE, class_of
from pyattn.tracing.render.steps import TraceStep, eight_steps
from pyattn.tracing.render.text import MAX_SHOWN, cut, number_text, part_of

__all__ = ["heads_html", "heat_map", "to_html"]

Array = npt.NDArray[np.float64]
_MAX_HEADS = 16
_MAX_PIXELS = 256  # per side of a heat map; in larger ones a pixel is the maximum of several weights
_CHARACTERS_PER_TOKEN = 2200  # limit of embedded matrices: 140 kB for 64 tokens; the rest of a page is some 40 kB
_OPACITY = 0.8  # of the largest weight: text on it is still legible


@np.errstate(all="ignore")
def to_html(trace: Intermediates) -> str:
    """Write a trace as a fragment with its own style and script."""
    name = _new_id()
    return _fragment(f"<h2>Attention, step by step</h2>\n{_steps(trace, eight_steps(trace), name)}", [name])


@np.errstate(all="ignore")
def heads_html(heads: Sequence[Intermediates], joining: Sequence[TraceStep]) -> str:
    """Write the weights of all heads side by side, the steps of the first 16 to unfold, and those that join them."""
    shown = heads[:_MAX_HEADS]
    names = [_new_id() for _ in shown]
    steps = [eight_steps(head) for head in shown]
    parts = [f"<h2>Attention with {len(heads)} heads</h2>", _overview(shown, steps, names)]
    if len(heads) > len(shown):
        rest = f"Heads {len(shown) + 1} to {len(heads)} are not shown"
        parts.append(f"<p>{rest}: heads[{len(shown)}].save_html(path) writes the page of one.</p>")
    # Tables are smaller the more heads there are, to bound the size of the page.
    for n, (head, its_steps, name) in enumerate(zip(shown, steps, names, strict=True), 1):
        written = _steps(head, its_steps, name, len(shown))
        parts.append(f"<details><summary>Head {n}, step by step</summary>\n{written}\n</details>")
    return _fragment("\n".join([*parts, *(_section(step, heads[0]) for step in joining)]), names)


def _overview(heads: Sequence[Intermediates], steps: Sequence[Sequence[TraceStep]], names: Sequence[str]) -> str:
    """Write the weights of all heads, large ones as pictures; data-of is the id of the steps that hold their data."""
    figures = []
    for n, (head, its_steps, name) in enumerate(zip(heads, steps, names, strict=True), 1):
        large = max(head.weights.shape) > MAX_SHOWN
        drawn = heat_map(head.weights) if large else _table("weights", its_steps[-1], head)
        figures.append(f'<div data-of="{name}">{_figure("weights", head.weights, head, drawn, f"head {n}, ")}</div>')
    return f'<div class="pa-row">{"".join(figures)}</div>'


def _new_id() -> str:
    """Make a random id: one notebook may show the same trace twice."""
    return f"pyattn-{secrets.token_hex(6)}"


def _fragment(content: str, names: Sequence[str]) -> str:
    """Add style and script. The script selects by id: a notebook may show one output in two views."""
    ids = ",".join(f"#{name}" for name in names)
    call = f"document.querySelectorAll('{ids}').forEach(explain)"
    script = f"<script>{{{SCRIPT}\n{call};}}</script>"
    return f'<div class="pyattn">\n<style>{STYLE}</style>\n{content}\n{script}\n</div>'


def _steps(trace: Intermediates, steps: Sequence[TraceStep], name: str, heads: int = 1) -> str:
    """Write the steps and the data that the script needs; heads is the number of heads on the page."""
    data = json.dumps(_data_of(trace, heads), separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":  # a token must not end the script
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = [f'<div id="{name}">', *(_section(step, trace, heads) for step in steps)]
    return "\n".join([*parts, f'<script type="application/json">{data}</script>', "</div>"])


def _section(step: TraceStep, trace: Intermediates, heads: int = 1) -> str:
    lines = [f"<section>\n<h3>{step.number}. {html.escape(step.title)}</h3>"]
    lines += [f"<pre>{html.escape(step.formula)}</pre>"] if step.formula else []
    lines += [f"<p>{html.escape(step.note)}</p>"] if step.note else []
    most = min(MAX_SHOWN, max(MAX_SHOWN // 2, 2 * MAX_SHOWN // heads))
    figures = []
    for name, array in step.arrays.items():
        drawn = _table(name, step, trace, most)
        if heads == 1 and name == "weights" and step.number == 8 and max(array.shape) > MAX_SHOWN:
            drawn = heat_map(array) + drawn
        figures.append(_figure(name, array, trace, drawn))
    return "\n".join([*lines, '<div class="pa-row">', *figures, "</div>\n</section>"])


def _figure(name: str, array: Array, trace: Intermediates, drawn: str, prefix: str = "") -> str:
    """Put a caption above a table or picture: name, size and kind."""
    kind = KINDS[name]
    about = {"weights": f"scores after {trace.normalize}", "x": "inputs", "attn_bias": "added to scores"}
    words = name.replace("_", " ")
    shown = words if kind == "weighted values" else name
    after = "" if words == kind else f", {about.get(name, f'for {kind}')}"
    caption = f"{prefix}{shown} <span>{array.shape[0]} x {array.shape[1]}{after}</span>"
    return f'<figure class="{class_of(kind)}"><figcaption>{caption}</figcaption>{drawn}</figure>'


def _table(name: str, step: TraceStep, trace: Intermediates, most: int = MAX_SHOWN) -> str:
    """Write a table. data-m, data-q, data-rows and data-cols tell the script which cells it shows."""
    array, (row_tokens, column_tokens) = step.arrays[name], step.labels[name]
    texts, rows, columns = part_of(array, most)
    attributes = f' data-m="{name}"' + ' data-q="0"' * (step.number in (4, 5, 6, 7))
    for axis, indices in (("rows", rows), ("cols", columns)):
        if -1 in indices:
            attributes += f' data-{axis}="{" ".join(map(str, indices))}"'
    top = float(np.nan_to_num(trace.weights).max()) if name == "weights" else 0.0  # one scale for all steps
    head = ""
    if column_tokens is not None:
        corner = "" if row_tokens is None else "<th></th>"
        head = f"<thead><tr>{corner}{''.join(_head(column_tokens, j) for j in columns)}</tr></thead>"
    lines = []
    for i, row in zip(rows, texts, strict=True):
        cells = ["" if row_tokens is None else _head(row_tokens, i)]
        for j, text in zip(columns, row, strict=True):
            if i < 0 or j < 0:
                cells.append('<td class="pa-gap">...</td>')
            elif name == "weights":
                share = float(np.nan_to_num(array[i, j])) / (top or 1.0)
                cells.append(f'<td style="--w:{_OPACITY * share:.2g}">{text}</td>')
            else:
                cells.append(f"<td>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table{attributes}>{head}<tbody>{''.join(lines)}</tbody></table>"


def _head(tokens: Sequence[str], n: int) -> str:
    return "<th>...</th>" if n < 0 else f"<th>{html.escape(cut(tokens[n]))}</th>"


# Weights as a picture


def heat_map(weights: Array) -> str:
    """Draw weights of 0 or more, a pixel each or the largest of a block; NaN is drawn as 0."""
    rows, columns = weights.shape
    blocks = [-(-size // _MAX_PIXELS) for size in weights.shape]
    small = np.maximum.reduceat(weights, range(0, rows, blocks[0]), axis=0)
    small = np.nan_to_num(np.maximum.reduceat(small, range(0, columns, blocks[1]), axis=1))
    top = float(small.max())
    levels = np.rint(255 * small / (top or 1.0)).astype(np.uint8)
    pixel = max(1, 480 // max(small.shape))
    about = f"Heat map of weights, {rows} x {columns}: 0 is transparent, {number_text(top)} has the full colour"
    if blocks != [1, 1]:
        about += f"; a pixel is the largest of {blocks[0]} x {blocks[1]} weights"
    source = base64.b64encode(_png(levels)).decode()
    return (
        f'<img data-n="{rows} {columns}" alt="{about}" width="{small.shape[1] * pixel}" '
        f'height="{small.shape[0] * pixel}" src="data:image/png;base64,{source}"><p>{about}.</p>'
    )


def _png(levels: npt.NDArray[np.uint8]) -> bytes:
    """Write levels as the opacity of one colour, which suits light and dark pages."""
    height, width = levels.shape
    chunks = {
        b"IHDR": struct.pack(">2I5B", width, height, 8, 3, 0, 0, 0),  # 8 bits, a palette
        b"PLTE": bytes(HEAT) * 256,
        b"tRNS": bytes(round(_OPACITY * level) for level in range(256)),
        b"IDAT": zlib.compress(b"".join(b"\0" + row.tobytes() for row in levels), 9),
        b"IEND": b"",
    }
    parts = [b"\x89PNG\r\n\x1a\n"]
    for name, data in chunks.items():
        parts.append(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))
    return b"".join(parts)


# Data of the script


def _data_of(trace: Intermediates, heads: int) -> dict[str, Any]:
    """Embed inputs and weights; if these are too large, queries, keys and values; if these are, too, nothing."""
    projected = ("keys", "queries", "values")
    given = ("x", "w_key", "w_query", "w_value", "b_key", "b_query", "b_value")
    others = ("attn_bias", *(["weights"] if trace.round_weights is not None else []))
    most = _CHARACTERS_PER_TOKEN * max(64, *trace.in_rows("scores").shape) // (1 if heads == 1 else 3 * heads // 2)
    first: tuple[str, ...] = projected
    if trace.x is not None:  # extra keys of MultiheadAttention cannot be computed from inputs
        extra = len(trace.in_rows("keys")) > len(trace.in_rows("x"))
        first = (*given, "keys", "values") if extra else given
    matrices: dict[str, Any] = {}
    for names in ((*first, *others), (*projected, *others)):
        arrays = {name: trace.in_rows(name) for name in names if getattr(trace, name) is not None}
        if trace.score_weight is not None:
            arrays["score_weight"] = np.atleast_2d(trace.score_weight)
        if sum(16 / 3 * array.size for array in arrays.values()) <= most:  # characters of base64 a float32
            matrices = {name: [*array.shape, _encoded(array.astype("<f4"))] for name, array in arrays.items()}
            break
    visible = None if trace.visible is None or not matrices else np.packbits(trace.in_rows("visible"))
    tokens = {"q": trace.tokens, "k": trace.key_tokens}
    return {
        "m": matrices,
        "column": trace.convention == "column",
        "score": trace.score,
        "scale": trace.scale,
        "normalize": trace.normalize,
        "rounded": trace.round_weights,
        "empty": trace.empty_rows,
        "visible": None if visible is None else _encoded(visible),
        "given": trace.x is None,
        **{name: None if names is None else [cut(token) for token in names] for name, names in tokens.items()},
    }


def _encoded(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()

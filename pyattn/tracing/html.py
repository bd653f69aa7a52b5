"""A trace as HTML that a notebook shows or a page holds.

Its size has a bound: large matrices are shown by their first and last rows and columns, large weights as a picture, and
what the script computes hovers from is embedded once, as float32, as far as it fits.
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

from pyattn.tracing.colours import HEAT, KINDS
from pyattn.tracing.data import Step, Trace
from pyattn.tracing.digits import cut, number_text, part_of
from pyattn.tracing.page import SCRIPT, STYLE, class_of
from pyattn.tracing.text import labels_of

__all__ = ["heads_html", "heat_map", "to_html"]

Array = npt.NDArray[np.float64]
_MOST_SHOWN = 12  # rows or columns of a table; fewer where there are many heads
_MOST_HEADS = 16
_MOST_PIXELS = 256  # of a heat map's side; beyond, a pixel is the largest of several weights
_CHARACTERS_PER_TOKEN = 2200  # of embedded matrices: 140 kB for 64 tokens, beside some 40 kB of all else
_OPACITY = 0.8  # of the largest weight: text on it can still be read


def to_html(trace: Trace) -> str:
    """Write a trace as HTML.

    Parameters
    ----------
    trace : Trace
        Of any kind.

    Returns
    -------
    str
        A fragment with its own style and script, which may stand beside others.
    """
    name = _new_id()
    return _fragment(f"<h2>Attention, step by step</h2>\n{_steps(trace, name)}", [name])


def heads_html(heads: Sequence[Trace], projection: Step) -> str:
    """Write the traces of several heads as HTML: their weights side by side, and the steps of each to unfold.

    Many heads share the room of one page: their tables are smaller, and heads beyond the sixteenth are left out.

    Parameters
    ----------
    heads : sequence of Trace
        One at least.
    projection : Step
        The last step.

    Returns
    -------
    str
        A fragment with its own style and script, which may stand beside others.
    """
    shown = heads[:_MOST_HEADS]
    names = [_new_id() for _ in shown]
    parts = [f"<h2>Attention with {len(heads)} heads</h2>", _overview(shown, names)]
    if len(heads) > len(shown):
        rest = f"Heads {len(shown) + 1} to {len(heads)} are left out here"
        parts.append(f"<p>{rest}: heads[{len(shown)}].save_html(path) writes the page of one.</p>")
    for n, (head, name) in enumerate(zip(shown, names, strict=True), 1):
        steps = _steps(head, name, len(shown))
        parts.append(f"<details><summary>Head {n}, step by step</summary>\n{steps}\n</details>")
    return _fragment("\n".join([*parts, _section(projection, heads[0])]), names)


def _overview(heads: Sequence[Trace], names: Sequence[str]) -> str:
    """Write the weights of all heads, large ones as pictures alone; hovers come from the data of the steps named."""
    figures = []
    for n, (head, name) in enumerate(zip(heads, names, strict=True), 1):
        large = max(head.weights.shape) > _MOST_SHOWN
        drawn = heat_map(head.weights) if large else _table("weights", head.weights, head, None)
        figures.append(f'<div data-of="{name}">{_figure("weights", head.weights, head, drawn, f"head {n}, ")}</div>')
    return f'<div class="pa-row">{"".join(figures)}</div>'


def _new_id() -> str:
    """Draw an id, anew each time: one notebook may show one trace twice."""
    return f"pyattn-{secrets.token_hex(6)}"


def _fragment(content: str, names: Sequence[str]) -> str:
    """Put style and script around parts of these ids, which a notebook may show in two views of one output."""
    ids = ",".join(f"#{name}" for name in names)
    call = f"document.querySelectorAll('{ids}').forEach(explain)"
    script = f"<script>{{{SCRIPT}\n{call};}}</script>"
    return f'<div class="pyattn">\n<style>{STYLE}</style>\n{content}\n{script}\n</div>'


def _steps(trace: Trace, name: str, heads: int = 1) -> str:
    """Write the steps, and the matrices that hovers are computed from; so many heads are on the page."""
    data = json.dumps(_data_of(trace, heads), separators=(",", ":"), ensure_ascii=False)
    for character in "<>&":  # no token ends the script
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = [f'<div id="{name}">', *(_section(step, trace, heads) for step in trace.steps)]
    return "\n".join([*parts, f'<script type="application/json">{data}</script>', "</div>"])


def _section(step: Step, trace: Trace, heads: int = 1) -> str:
    query = 0 if step.number in (4, 5, 6, 7) else None
    lines = [f"<section>\n<h3>{step.number}. {html.escape(step.title)}</h3>"]
    lines += [f"<pre>{html.escape(step.formula)}</pre>"] if step.formula else []
    lines += [f"<p>{html.escape(step.note)}</p>"] if step.note else []
    most = min(_MOST_SHOWN, max(_MOST_SHOWN // 2, 2 * _MOST_SHOWN // heads))
    figures = []
    for name, array in step.arrays.items():
        drawn = _table(name, array, trace, query, most)
        if heads == 1 and name == "weights" and query is None and max(array.shape) > _MOST_SHOWN:
            drawn = heat_map(array) + drawn
        figures.append(_figure(name, array, trace, drawn))
    return "\n".join([*lines, '<div class="pa-row">', *figures, "</div>\n</section>"])


def _figure(name: str, array: Array, trace: Trace, drawn: str, prefix: str = "") -> str:
    rows, columns = array.shape
    kind = KINDS[name]
    about = f"{prefix}{name.replace('_', ' ') if kind == 'weighted values' else name} <span>{rows} x {columns}"
    after = {"weights": f"scores after {trace.normalise}", "x": "inputs", "attn_bias": "added to scores"}.get(
        name, f"for {kind}"
    )
    about += "" if name.replace("_", " ") == kind else f", {after}"
    return f'<figure class="{class_of(kind)}"><figcaption>{about}</span></figcaption>{drawn}</figure>'


def _table(name: str, array: Array, trace: Trace, query: int | None, most: int = _MOST_SHOWN) -> str:
    part = part_of(array, most, most // 2, most // 4)
    attributes = f' data-m="{name}"' + ("" if query is None else f' data-q="{query}"')
    for axis, which in (("rows", part.rows), ("cols", part.columns)):
        if -1 in which.indices:
            attributes += f' data-{axis}="{" ".join(map(str, which.indices))}"'
    row_names, column_names = labels_of(trace, name, query)
    top = (float(np.nan_to_num(trace.weights).max()) or 1.0) if name == "weights" else 0.0  # one scale for all steps
    lines = []
    if column_names is not None:
        heads = [_head(column_names, n) for n in part.columns.indices]
        lines.append(f"<thead><tr>{'<th></th>' if row_names is not None else ''}{''.join(heads)}</tr></thead>")
    lines.append("<tbody>")
    for i, texts in zip(part.rows.indices, part.texts, strict=True):
        cells = [
            _cell(text, float(np.nan_to_num(array[i, j] / top)) if top > 0 else None, i < 0 or j < 0)
            for j, text in zip(part.columns.indices, texts, strict=True)
        ]
        lines.append(f"<tr>{_head(row_names, i) if row_names is not None else ''}{''.join(cells)}</tr>")
    return f"<table{attributes}>{''.join(lines)}</tbody></table>"


def _head(names: Sequence[str], n: int) -> str:
    return "<th>...</th>" if n < 0 else f"<th>{html.escape(cut(names[n]))}</th>"


def _cell(text: str, share: float | None, gap: bool) -> str:
    if gap:
        return '<td class="pa-gap">...</td>'
    return f"<td>{text}</td>" if share is None else f'<td style="--w:{_OPACITY * share:.2g}">{text}</td>'


# Weights as a picture


def heat_map(weights: Array) -> str:
    """Draw weights, a pixel each, as long as there are not too many.

    Parameters
    ----------
    weights : ndarray, (rows, columns)
        0 or more; NaN is drawn as 0.

    Returns
    -------
    str
        An image whose title has its scale.
    """
    rows, columns = weights.shape
    blocks = [-(-size // _MOST_PIXELS) for size in weights.shape]
    small = np.maximum.reduceat(weights, range(0, rows, blocks[0]), axis=0)
    small = np.nan_to_num(np.maximum.reduceat(small, range(0, columns, blocks[1]), axis=1))
    top = float(small.max())
    levels = np.rint(255 * small / top if top > 0 else small).astype(np.uint8)
    pixel = max(1, 480 // max(small.shape))
    about = f"Heat map of weights, {rows} x {columns}: from 0, empty, to {number_text(top)}, full colour"
    if blocks != [1, 1]:
        about += f"; a pixel is the largest of {blocks[0]} x {blocks[1]} weights"
    source = base64.b64encode(_png(levels)).decode()
    return (
        f'<img data-n="{rows} {columns}" alt="{about}" width="{small.shape[1] * pixel}" '
        f'height="{small.shape[0] * pixel}" src="data:image/png;base64,{source}"><p>{about}.</p>'
    )


def _png(levels: npt.NDArray[np.uint8]) -> bytes:
    """One colour whose opacity is the level, so that it stands on a light and on a dark page."""
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


# What the script computes from


def _data_of(trace: Trace, heads: int) -> dict[str, Any]:
    """Embed all from the inputs on, or, where that is too large, from the queries on, or nothing.

    The script computes scores and weights as needed; rounded weights it is given.
    """
    projected: tuple[str, ...] = ("keys", "queries", "values")
    given = ("x", "w_key", "w_query", "w_value", "b_key", "b_query", "b_value")
    others = ("attn_bias", *(["weights"] if trace.round_weights is not None else []))
    most = _CHARACTERS_PER_TOKEN * max(64, *trace.in_rows("scores").shape) // (1 if heads == 1 else 3 * heads // 2)
    matrices: dict[str, Any] = {}
    first = projected
    if trace.x is not None:  # keys that are not made of inputs can only be given
        extra = len(trace.in_rows("keys")) > len(trace.in_rows("x"))
        first = (*given, "keys", "values") if extra else given
    for names in ((*first, *others), (*projected, *others)):
        arrays = {name: trace.in_rows(name) for name in names if getattr(trace, name) is not None}
        if trace.score_weight is not None:
            arrays["score_weight"] = np.atleast_2d(trace.score_weight)
        if sum(16 / 3 * array.size for array in arrays.values()) <= most:
            with np.errstate(over="ignore"):  # beyond float32 a hover says inf
                matrices = {name: [*array.shape, _encoded(array.astype("<f4"))] for name, array in arrays.items()}
            break
    visible = None if trace.visible is None or not matrices else np.packbits(trace.in_rows("visible"))
    tokens = {"q": trace.tokens, "k": trace.key_tokens}
    return {
        "m": matrices,
        "column": trace.convention == "column",
        "score": trace.score,
        "scale": trace.scale,
        "normalise": trace.normalise,
        "rounded": trace.round_weights,
        "empty": trace.empty_rows,
        "visible": None if visible is None else _encoded(visible),
        "given": trace.x is None,
        **{name: None if names is None else [cut(token) for token in names] for name, names in tokens.items()},
    }


def _encoded(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()

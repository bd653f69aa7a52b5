"""The page of `flow`: lines between tokens as SVG; flow.css has its style, and flow.js shows the lines of one token."""

from __future__ import annotations

import functools
import html
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyattn.plot.fonts import shorten
from pyattn.plot.inputs import Array
from pyattn.tracing.render.page import read_source

__all__ = ["FlowPage", "flow_fragment", "flow_page"]

_ROW, _LETTER, _MIDDLE, _TOP = 26.0, 8.0, 220.0, 8.0
"""Height of a row, width of a letter, width of the lines and space above the rows, in the units of the SVG."""

_MAX_TOKEN_WIDTH = 18
_MAX_NAMED = 5
"""Largest weights that are named for a token."""

_HINT = "Hover over a token, tap it, or move to it with the tab key: its lines alone are shown."
_LIGHT = "--ink:#1c1c22;--paper:#ffffff;--soft:#5c5c66;--edge:#8a8a94;--line:#2563b0"
_DARK = "--ink:#f0f0f2;--paper:#17171c;--soft:#a9a9b4;--edge:#75757f;--line:#7db4f5"

_VISIBLE = str.maketrans({"\n": "↵", "\r": "↵", "\t": "→"})


class FlowPage(NamedTuple):
    """Weights (heads, L, S), the (head, query, key) of the lines to draw, tokens, heads and their colours."""

    weights: Array
    lines: Array
    queries: list[str]
    keys: list[str]
    heads: list[int] | None
    colours: list[str]
    title: str | None
    dark: bool | None


def flow_page(page: FlowPage) -> str:
    """Write a whole page."""
    scheme = {None: "light dark", True: "dark", False: "light"}[page.dark]
    dark = "body{background:#17171c}"
    ground = {None: f"@media(prefers-color-scheme:dark){{{dark}}}", True: dark, False: ""}[page.dark]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f'<meta name="color-scheme" content="{scheme}"><title>{_text(page.title or "Attention weights")}</title>'
    head += f"<style>body{{margin:8px}}{ground}</style>"
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{flow_fragment(page)}\n</body></html>\n'


def flow_fragment(page: FlowPage) -> str:
    """Write the figure with its style and script."""
    left, right = (max(_letters(token) for token in tokens) * _LETTER + 14 for tokens in (page.queries, page.keys))
    rows = max(len(page.queries), len(page.keys))
    width, height = left + _MIDDLE + right, rows * _ROW + 2 * _TOP
    kind = {None: "", True: " pa-dark", False: " pa-light"}[page.dark]
    title = f"<figcaption>{_text(page.title)}</figcaption>" if page.title else ""
    label = f"Attention weights from {len(page.queries)} queries to {len(page.keys)} keys"
    lines = "\n".join(_lines(page, left, rows))
    tokens = "\n".join([*_tokens(page, "q", left, width, rows), *_tokens(page, "k", left, width, rows)])
    return f"""<figure class="pa-flow{kind}">
<style>{_style()}</style>
{title}{_buttons(page)}
<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{1.4 * width:.0f}px" role="group" aria-label="{label}">
<g class="pa-lines">
{lines}
</g>
{tokens}
</svg>
<p role="status">{_HINT}</p>
<script>{_source("flow.js")}</script>
</figure>"""


def _text(text: str) -> str:
    """Escape a text for HTML, on one line."""
    return html.escape("".join(one if one.isprintable() else "□" for one in text.translate(_VISIBLE)))


def _letters(token: str) -> int:
    """Return the width of a shortened token, in letters; one beyond Latin is two wide."""
    return sum(1 + (one > "\u2e80") for one in shorten(token, _MAX_TOKEN_WIDTH))


def _height_of(at: int, count: int, rows: int) -> float:
    """Return the middle of a row; the shorter side is spread over the height of the longer one."""
    return _TOP + (at + 0.5) * _ROW * rows / count


def _buttons(page: FlowPage) -> str:
    """Write a button for each head, which shows or hides its lines."""
    if page.heads is None:
        return ""
    each = (
        f'<button type="button" aria-pressed="true" data-h="{n}" style="--c:{colour}">head {head}</button>'
        for n, (head, colour) in enumerate(zip(page.heads, page.colours, strict=True))
    )
    return f'\n<p role="group" aria-label="heads">{" ".join(each)}</p>'


def _lines(page: FlowPage, left: float, rows: int) -> list[str]:
    """Write a line for each weight, the largest last."""
    heads, queries, keys = page.weights.shape
    largest = max(float(page.weights.max()), np.finfo(np.float64).tiny)
    written = []
    for head, query, key in page.lines.tolist():
        share = float(page.weights[head, query, key]) / largest
        aside = 0.5 * _ROW * (head - (heads - 1) / 2) / heads
        y, z = (_height_of(at, count, rows) + aside for at, count in ((query, queries), (key, keys)))
        place = f'x1="{left:.0f}" y1="{y:.1f}" x2="{left + _MIDDLE:.0f}" y2="{z:.1f}"'
        colour = "" if page.heads is None else f' stroke="{page.colours[head]}"'
        style = f'stroke-width="{6 * share / heads**0.25:.2f}" stroke-opacity="{share:.2f}"'
        written.append(f'<line {place}{colour} {style} data-h="{head}" data-q="{query}" data-k="{key}"/>')
    return written


def _tokens(page: FlowPage, side: str, left: float, width: float, rows: int) -> list[str]:
    """Write the tokens of one side, each with the weights that the page names for it."""
    tokens = page.queries if side == "q" else page.keys
    written = []
    for at, token in enumerate(tokens):
        y = _height_of(at, len(tokens), rows)
        about = "\n".join(_about(page, side, at))
        x, wide = (2.0, left - 6) if side == "q" else (left + _MIDDLE + 4, width - left - _MIDDLE - 6)
        text_x, anchor = (x + wide - 5, "end") if side == "q" else (x + 5, "start")
        shown = _text(shorten(token, _MAX_TOKEN_WIDTH))
        height = min(_ROW - 4, _ROW * rows / len(tokens) - 1)
        written.append(
            f'<g tabindex="0" role="button" aria-label="{about}" data-s="{side}" data-n="{at}">'
            f'<rect x="{x:.0f}" y="{y - height / 2:.1f}" width="{wide:.0f}" height="{height:.1f}" rx="3"/>'
            f'<text x="{text_x:.0f}" y="{y:.1f}" text-anchor="{anchor}">{shown}</text></g>'
        )
    return written


def _about(page: FlowPage, side: str, at: int) -> list[str]:
    """Say which tokens a token attends to, or is attended to by: a line for each head."""
    token, others = (page.queries[at], page.keys) if side == "q" else (page.keys[at], page.queries)
    verb = "attends to" if side == "q" else "is attended to by"
    lines = []
    for n, array in enumerate(page.weights):
        weights = array[at] if side == "q" else array[:, at]
        order = np.argsort(-weights, kind="stable")[:_MAX_NAMED].tolist()
        named = [f"{others[j]} {weights[j]:.2f}" for j in order if weights[j] >= 0.005]
        head = "" if page.heads is None else f"head {page.heads[n]}: "
        lines.append(_text(f"{head}{token} {verb} {', '.join(named) or 'nothing'}"))
    return lines


@functools.cache
def _source(name: str) -> str:
    """Read a file of this folder."""
    return read_source(Path(__file__).with_name(name))


def _style() -> str:
    """Return the style: a given `dark` comes before the theme of a notebook or site, and this before the system's."""
    colours = [
        f".pa-flow{{{_LIGHT}}}",
        f"@media(prefers-color-scheme:dark){{.pa-flow{{{_DARK}}}}}",
        f"[data-theme=light] .pa-flow,[data-jp-theme-light=true] .pa-flow{{{_LIGHT}}}",
        f"[data-theme=dark] .pa-flow,[data-jp-theme-light=false] .pa-flow{{{_DARK}}}",
        f".pa-flow.pa-light{{{_LIGHT}}}",
        f".pa-flow.pa-dark{{{_DARK}}}",
    ]
    return "\n".join([*colours, _source("flow.css")])

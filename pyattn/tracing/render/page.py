"""Style, scripts and frame of a page, from the .css and .js files beside this one. A page loads nothing."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from pyattn.tracing.render.colours import COLOURS, DARK_EDGES, HEAT

__all__ = ["class_of", "read_source", "save_page", "script", "style"]


def class_of(kind: str) -> str:
    """Return the CSS class of a kind of tensor."""
    return "pa-" + kind.replace(" ", "-")


def _edges(colours: dict[str, str]) -> str:
    return "".join(f";--{class_of(kind)}:{colour}" for kind, colour in colours.items())


_LIGHT = (
    "--ink:#1c1e21;--paper:#ffffff;--soft:#5a626d;--line:#d5d9df;--cell:#f7f8fa;--tip:#ffffff;--mark:#111111;--tint:30%"
    ";--wrong:#c4162a"
) + _edges(COLOURS)
_DARK = (
    "--ink:#e8e8e8;--paper:#16181c;--soft:#a6adb8;--line:#3a3f47;--cell:#20242a;--tip:#2b3038;--mark:#ffffff;--tint:35%"
    ";--wrong:#ff8088"
) + _edges(DARK_EDGES)
# Connections are refused, too: nothing that a page does reaches a network.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@functools.cache
def style(page: bool = False) -> str:
    """Return the style of a fragment; a saved page has more of it."""
    themes = [
        f".pyattn{{--heat:{','.join(map(str, HEAT))};{_LIGHT}}}",
        f"@media(prefers-color-scheme:dark){{.pyattn{{{_DARK}}}}}",
        # Jupyter, and sites of documentation whose reader may choose another theme than the system's.
        f"[data-jp-theme-light=true] .pyattn,[data-theme=light] .pyattn{{{_LIGHT}}}",
        f"[data-jp-theme-light=false] .pyattn,[data-theme=dark] .pyattn{{{_DARK}}}",
    ]
    kinds = [
        f".pyattn .{class_of(kind)}{{--kind:{colour};--edge:var(--{class_of(kind)})}}"
        for kind, colour in COLOURS.items()
    ]
    files = ("style.css", "page.css") if page else ("style.css",)
    return "\n".join([*themes, *map(_source, files), *kinds])


@functools.cache
def script(*more: str) -> str:
    """Return the scripts; "edit.js" lets the numbers of a page be edited, "backward.js" explains gradients."""
    return "\n".join(map(_source, ("compute.js", "about.js", "hover.js", *more)))


def _source(name: str) -> str:
    """Read a file of this folder."""
    return read_source(Path(__file__).with_name(name))


def read_source(path: Path) -> str:
    """Read a file without indentation and lines of comment, because every output of a notebook holds a copy."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("//", "/*")))


def save_page(fragment: str, path: str | os.PathLike[str], title: str = "Attention, step by step") -> None:
    """Write a whole page around a fragment of HTML."""
    Path(path).write_text(_page_of(fragment, title), encoding="utf-8")


def _page_of(fragment: str, title: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n"
        "<style>html{scroll-padding-top:110px}body{margin:0 auto;max-width:1600px}"
        f"@media(prefers-color-scheme:dark){{body{{background:#16181c}}}}</style>\n</head>\n<body>\n{fragment}\n</body>\n</html>\n"
    )

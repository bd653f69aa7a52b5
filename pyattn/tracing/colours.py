"""The example's colours: one for each kind of tensor, far enough apart for colour-blind readers.

Hues are the example's; lightness tells apart those that deuteranopia or protanopia bring together: red and green,
green and dark green. On a page the edges of a matrix and of its caption have the colour. Its cells have a tint, on
which numbers can be read, but too pale for all readers to tell kinds apart; the caption names the kind, too.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COLOURS", "DARK_EDGES", "HEAT", "KINDS"]

COLOURS: Final[dict[str, str]] = {
    "inputs": "#6fd39b",
    "keys": "#ea8c00",
    "queries": "#d7372c",
    "values": "#c493e8",
    "scores": "#1f6fc8",
    "weighted values": "#fbf07a",
    "outputs": "#0b4f3c",
}
"""Kind to colour: green, orange, red, purple, blue, yellow, dark green."""

DARK_EDGES: Final[dict[str, str]] = COLOURS | {"scores": "#2587f4", "outputs": "#26735d"}
"""Of edges on a dark page, on which dark green would be lost; blue is as far from a lighter one as it was."""

KINDS: Final[dict[str, str]] = {
    "x": "inputs",
    "w_key": "keys",
    "b_key": "keys",
    "keys": "keys",
    "w_query": "queries",
    "b_query": "queries",
    "queries": "queries",
    "w_value": "values",
    "b_value": "values",
    "values": "values",
    "attn_bias": "scores",
    "scores": "scores",
    "weights": "scores",
    "weighted_values": "weighted values",
    "outputs": "outputs",
    "concatenated": "outputs",
    "w_out": "outputs",
    "b_out": "outputs",
}
"""Field of a trace to kind."""

HEAT: Final = (31, 111, 200)
"""Of weights: red, green and blue of the largest; smaller ones let the page through."""

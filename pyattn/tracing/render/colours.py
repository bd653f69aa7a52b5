"""Colours for each kind of tensor, which colour-blind readers can tell apart.

The hues are those of the worked example. Lightness separates pairs that look alike with deuteranopia or protanopia:
red and green, green and dark green. On a page the edges of a matrix and of its caption have the full colour. Cells have
a pale tint, on which numbers are legible. The caption also names the kind, as not everyone can tell pale tints apart.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COLOURS", "DARK_EDGES", "HEAT", "KINDS", "kind_of"]

COLOURS: Final[dict[str, str]] = {
    "inputs": "#6fd39b",
    "keys": "#ea8c00",
    "queries": "#d7372c",
    "values": "#c493e8",
    "scores": "#1f6fc8",
    "weighted values": "#fbf07a",
    "outputs": "#0b4f3c",
}
"""Colour of each kind: green, orange, red, purple, blue, yellow, dark green."""

DARK_EDGES: Final[dict[str, str]] = COLOURS | {"scores": "#2587f4", "outputs": "#26735d"}
"""Edges on a dark page: dark green is lighter to be visible, and blue is lighter to stay distinct from it."""

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
"""Kind of each array of a trace."""

HEAT: Final = (31, 111, 200)
"""Red, green and blue of the largest weight; smaller ones are more transparent."""


def kind_of(name: str) -> str:
    """Return the kind of an array of a trace; a gradient has that of its array. Other arrays count as scores."""
    return KINDS.get(name.removeprefix("grad_"), "scores")

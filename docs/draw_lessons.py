"""Draws the figures of the lessons, light and dark: python docs/draw_lessons.py.

The architecture of the Transformer is data: boxes and arrows. tests/house/test_architecture.py checks them.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as Curve
from PIL import Image

PICTURES = Path(__file__).parent / "pictures"
WIDTH, HEIGHT = 10.8, 12.25  # of the figure, in units of the coordinates below
INCHES, DPI = 7.8, 180  # 1,404 pixels: twice the width of a page
ENCODER, DECODER, BOX = 2.95, 7.35, 2.7  # centres of the columns, and the width of their boxes

# Edge, and faces on a light and a dark page.
KINDS = {
    "words": ("none", "none", "none"),
    "embedding": ("#2f9e62", "#def3e7", "#163527"),
    "attention": ("#d98200", "#fdeed6", "#40290a"),
    "norm": ("#8a8f98", "#eef0f2", "#2b2f35"),
    "feed-forward": ("#2e75c8", "#e0ebf8", "#152c47"),
    "output": ("#8e57bd", "#f0e6f8", "#32204a"),
    "matrix": ("#d98200", "#ffffff", "#16181c"),
}
INK = {False: ("#1c1e21", "#5a626d", "#ffffff"), True: ("#e8e8e8", "#a6adb8", "#131416")}


class Box(NamedTuple):
    """A box around its centre. The first line of the text is the title."""

    x: float
    y: float
    text: str
    kind: str
    width: float = BOX
    height: float = 0.72


class Arrow(NamedTuple):
    """An arrow between boxes; via has the corners of its way."""

    start: str
    end: str
    label: str = ""
    via: tuple[tuple[float, float], ...] = ()
    label_at: tuple[float, float] | None = None
    is_dashed: bool = False


NORM = "Add & Norm\nLayerNorm(X + Sublayer(X))"
FEED = "Feed-forward\n$W_2$ ReLU($W_1$x + $b_1$) + $b_2$"
POSITIONS = "Positional\nencoding\nsin, cos: fixed"

BOXES = {
    "source": Box(ENCODER, 0.35, "source: je suis étudiant", "words", height=0.4),
    "source_embedding": Box(ENCODER, 1.15, "Embedding", "embedding", height=0.5),
    "source_positions": Box(0.78, 1.95, POSITIONS, "embedding", 1.42, 0.95),
    "source_sum": Box(ENCODER, 1.95, "+", "embedding", 0.4, 0.4),
    "encoder_attention": Box(ENCODER, 3.2, "Multi-head\nself-attention", "attention"),
    "encoder_norm_1": Box(ENCODER, 4.25, NORM, "norm"),
    "encoder_feed_forward": Box(ENCODER, 5.5, FEED, "feed-forward"),
    "encoder_norm_2": Box(ENCODER, 6.55, NORM, "norm"),
    "memory": Box(ENCODER, 8.0, "Output of the encoder", "output", height=0.5),
    "w_key": Box(5.0, 6.05, "$W_K$", "matrix", 0.56, 0.4),
    "w_value": Box(5.0, 5.45, "$W_V$", "matrix", 0.56, 0.4),
    "target": Box(DECODER, 0.35, "target, shifted right: <s> I am a student", "words", 4.0, 0.4),
    "target_embedding": Box(DECODER, 1.15, "Embedding", "embedding", height=0.5),
    "target_positions": Box(9.6, 1.95, POSITIONS, "embedding", 1.42, 0.95),
    "target_sum": Box(DECODER, 1.95, "+", "embedding", 0.4, 0.4),
    "decoder_attention": Box(DECODER, 3.2, "Masked multi-head\nself-attention", "attention"),
    "decoder_norm_1": Box(DECODER, 4.25, NORM, "norm"),
    "cross_attention": Box(DECODER, 5.75, "Encoder-decoder\nattention\n(cross-attention)", "attention", height=1.0),
    "decoder_norm_2": Box(DECODER, 6.9, NORM, "norm"),
    "decoder_feed_forward": Box(DECODER, 8.15, FEED, "feed-forward"),
    "decoder_norm_3": Box(DECODER, 9.2, NORM, "norm"),
    "linear": Box(DECODER, 10.55, "Linear layer, last row", "output", 3.1, 0.45),
    "softmax": Box(DECODER, 11.25, "Softmax over the vocabulary", "output", 3.1, 0.45),
    "word": Box(DECODER, 11.9, "next word, until <end>", "words", height=0.4),
}
LEFT, RIGHT, LOOP = ENCODER - 1.62, DECODER + 1.62, 10.6  # the ways of residual connections, and of the next word


def _residual(start: str, end: str, x: float, y: float) -> Arrow:
    """Make the arrow around a part, which leaves the column at height y."""
    return Arrow(start, end, "", ((BOXES[end].x, y), (x, y), (x, BOXES[end].y)))


ARROWS = (
    Arrow("source", "source_embedding"),
    Arrow("source_embedding", "source_sum"),
    Arrow("source_positions", "source_sum"),
    Arrow("source_sum", "encoder_attention"),
    _residual("source_sum", "encoder_norm_1", LEFT, 2.72),
    Arrow("encoder_attention", "encoder_norm_1", "dropout"),
    Arrow("encoder_norm_1", "encoder_feed_forward"),
    _residual("encoder_norm_1", "encoder_norm_2", LEFT, 4.85),
    Arrow("encoder_feed_forward", "encoder_norm_2", "dropout"),
    Arrow("encoder_norm_2", "memory"),
    Arrow("memory", "w_key", "", ((4.5, 8.0), (4.5, 6.05))),
    Arrow("memory", "w_value", "", ((4.5, 8.0), (4.5, 5.45))),
    Arrow("w_key", "cross_attention", "$K^{enc}$", ((5.5, 6.05),), (5.52, 6.29)),
    Arrow("w_value", "cross_attention", "$V^{enc}$", ((5.5, 5.45),), (5.52, 5.19)),
    Arrow("target", "target_embedding"),
    Arrow("target_embedding", "target_sum"),
    Arrow("target_positions", "target_sum"),
    Arrow("target_sum", "decoder_attention"),
    _residual("target_sum", "decoder_norm_1", RIGHT, 2.72),
    Arrow("decoder_attention", "decoder_norm_1", "dropout"),
    Arrow("decoder_norm_1", "cross_attention", "queries", (), (DECODER + 0.5, 5.03)),
    _residual("decoder_norm_1", "decoder_norm_2", RIGHT, 4.78),
    Arrow("cross_attention", "decoder_norm_2", "dropout"),
    Arrow("decoder_norm_2", "decoder_feed_forward"),
    _residual("decoder_norm_2", "decoder_norm_3", RIGHT, 7.5),
    Arrow("decoder_feed_forward", "decoder_norm_3", "dropout"),
    Arrow("decoder_norm_3", "linear"),
    Arrow("linear", "softmax"),
    Arrow("softmax", "word"),
    Arrow("word", "target", "append the word", ((LOOP, 11.9), (LOOP, 0.35)), (LOOP - 0.02, 7.5), True),
)


class Frame(NamedTuple):
    """A frame around the boxes of a layer, which is repeated."""

    x: float
    bottom: float
    width: float
    top: float
    text: str
    text_x: float
    names: tuple[str, ...]


FRAMES = (
    Frame(1.02, 2.54, 3.36, 7.05, "Encoder:\n6 equal layers", 1.1, tuple(n for n in BOXES if n.startswith("encoder_"))),
    Frame(
        5.78,
        2.54,
        3.45,
        9.7,
        "Decoder:\n6 equal layers",
        5.86,
        (*(name for name in BOXES if name.startswith("decoder_")), "cross_attention"),
    ),
)


def way_of(arrow: Arrow) -> list[tuple[float, float]]:
    """Return the corners of an arrow, from the edge of one box to the edge of the other."""
    start, end = BOXES[arrow.start], BOXES[arrow.end]
    first, last = (arrow.via[0], arrow.via[-1]) if arrow.via else ((end.x, end.y), (start.x, start.y))
    return [_edge(start, first), *arrow.via, _edge(end, last)]


def _edge(box: Box, toward: tuple[float, float]) -> tuple[float, float]:
    """Return where a line from a corner at the same height, or in the same column, meets the box."""
    x, y = toward
    if abs(y - box.y) < box.height / 2:
        return (box.x + (box.width if x > box.x else -box.width) / 2, y)
    return (x if abs(x - box.x) < box.width / 2 else box.x, box.y + (box.height if y > box.y else -box.height) / 2)


def draw_transformer(*, dark: bool = False) -> Figure:
    """Draw the architecture from the boxes and arrows."""
    ink, soft, paper = INK[dark]
    figure = Figure(figsize=(INCHES, INCHES * HEIGHT / WIDTH), facecolor=paper)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    ax.set_axis_off()
    for frame in FRAMES:
        size = (frame.x, frame.bottom), frame.width, frame.top - frame.bottom
        patch = FancyBboxPatch(*size, "round,pad=0,rounding_size=0.15", facecolor="none", edgecolor=soft, linewidth=1.2)
        patch.set_linestyle((0, (5, 3)))
        ax.add_patch(patch)
        ax.text(frame.text_x, frame.top + 0.1, frame.text, color=ink, fontsize=9, weight="bold", va="bottom")
    for arrow in ARROWS:
        way = way_of(arrow)
        curve = Curve(way)
        style = "--" if arrow.is_dashed else "-"
        ax.add_patch(
            FancyArrowPatch(
                path=curve,
                arrowstyle="-|>",
                mutation_scale=9,
                color=soft if arrow.is_dashed else ink,
                linewidth=1.1,
                linestyle=style,
                joinstyle="round",
                shrinkA=0,
                shrinkB=0,
            )
        )
        if arrow.label:
            _label(ax, arrow, way, soft, paper)
    for box in BOXES.values():
        _draw_box(ax, box, ink, dark)
    return figure


def _label(ax, arrow, way, colour, paper):
    """Write the label of an arrow: right of its middle, or at its own place; upright along a dashed one."""
    options = {"va": "center", "fontsize": 8.5, "color": colour}
    if arrow.label_at is None:
        (x, y), (end_x, end_y) = way[0], way[-1]
        at = (x + end_x) / 2 + 0.1, (y + end_y) / 2
        options["ha"] = "left"
    else:
        at = arrow.label_at
        options["ha"] = "center"
    if arrow.is_dashed:
        options |= {"rotation": 90, "bbox": {"facecolor": paper, "edgecolor": "none", "pad": 1.5}}
    ax.text(*at, arrow.label, **options)


def _draw_box(ax, box, ink, dark):
    """Draw a box, or a circle for a sum, and its text: names are bold, formulas and remarks small."""
    edge, *faces = KINDS[box.kind]
    corner = box.x - box.width / 2, box.y - box.height / 2
    options = {"facecolor": faces[dark], "edgecolor": edge, "linewidth": 1.4}
    if box.text == "+":
        ax.add_patch(Circle((box.x, box.y), box.width / 2, **options))
    elif box.kind != "words":
        ax.add_patch(FancyBboxPatch(corner, box.width, box.height, "round,pad=0,rounding_size=0.1", **options))
    lines = box.text.split("\n")
    for n, line in enumerate(lines):
        y = box.y + 0.26 * ((len(lines) - 1) / 2 - n)
        is_small = n > 0 and ("(" in line or line.startswith("sin"))
        size = 8 if is_small else 12 if box.text == "+" else 9.5
        weight = "normal" if is_small or box.kind in ("words", "matrix") else "bold"
        ax.text(box.x, y, line, color=ink, fontsize=size, weight=weight, ha="center", va="center")


def save(figure: Figure, name: str) -> None:
    """Write a picture of 256 colours, which halves the file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    with Image.open(drawn) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(PICTURES / f"{name}.png", optimize=True)


def main() -> None:
    """Draw all figures."""
    for dark in (False, True):
        save(draw_transformer(dark=dark), f"transformer{'-dark' * dark}")


if __name__ == "__main__":
    main()

"""Draws docs/pictures/ anew: python docs/draw_pictures.py. Each picture has a dark twin, NAME-dark.

It needs the extras `plot` and `models`. An installed Chinese font is needed for one of the pictures; on Debian:
apt install fonts-noto-cjk.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import pyattn
from pyattn import plot
from pyattn.models.examples import student
from pyattn.plot.quantising import quantise
from pyattn.plot.theme import DARK, LIGHT
from pyattn.tracing.article import W_KEY, W_QUERY, W_VALUE, X

PICTURES = Path(__file__).parent / "pictures"
TEMPLATE = "The animal didn't cross the street because it was too {}."
FRENCH = ["je", "suis", "étudiant"]
CHINESE = ["动物", "没有", "过", "马路", "因为", "它", "太", "累", "了"]
CYCLE = (5 * CHINESE)[:40]
HEADS = ((0, 2, "previous token"), (1, 8, "next token"), (4, 5, "[CLS]"), (3, 1, '"it" to "animal"'))
"""Layer, head and the place that the head attends to most."""

GROUNDS = [colour for theme in (LIGHT, DARK) for colour in (theme.background, theme.foreground, theme.muted)]


class MiniLM:
    """The heads of all-MiniLM-L6-v2, a published model."""

    def __init__(self):
        self.encoder = pyattn.models.SentenceEncoder.load()

    def attend(self, ending):
        """Return the tokens of the sentence and the weights, (layers, heads, L, L)."""
        encoding = self.encoder.tokenizer.encode(TEMPLATE.format(ending))
        output = self.encoder.model([encoding.ids], need_weights=True)
        return encoding.tokens, np.stack([weights[0] for weights in output.attentions])

    def lean(self, ending):
        """Return how much more "it" attends to the animal than to the street, (layers, heads)."""
        tokens, weights = self.attend(ending)
        row = weights[:, :, tokens.index("it")]
        return row[..., tokens.index("animal")] - row[..., tokens.index("street")]


def attend_chinese():
    """Made-up weights: they fall with the distance, and are large for two pairs."""
    near = -0.5 * np.abs(np.subtract.outer(np.arange(len(CHINESE)), np.arange(len(CHINESE))))
    for query, key in (("它", "动物"), ("累", "动物")):
        near[CHINESE.index(query), CHINESE.index(key)] = 2.5
    return pyattn.softmax(near)


def translate():
    """Five steps of the model that comes with the package."""
    model, source_words, target_words = student()
    symbols = {"start_token_id": target_words.index("<s>"), "eos_token_id": target_words.index("<end>")}
    ids = [source_words.index(word) for word in FRENCH]
    return pyattn.generate(model, ids, max_new_tokens=9, **symbols, return_steps=True)


def write_by_chance(length, steps):
    """A model of random weights, larger than they are initialised, so that heads differ."""
    model = pyattn.nn.Seq2SeqTransformer(40, 40, 96, 12, 1, 6, 96, rng=0).eval()
    for weight in model.parameters():
        weight *= 1.6 if weight.ndim > 1 else 1
    options = {"start_token_id": 0, "do_sample": True, "rng": 0, "return_steps": True}
    return pyattn.generate(model, np.arange(length), max_new_tokens=steps, **options)


def save(figure, name, dpi=108, colours=None):
    """Save a picture: in few colours, which make the file small, unless it has a colorbar."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi)
    with Image.open(drawn) as image:
        small = image.convert("RGB") if colours is None else quantise([image], GROUNDS, colours)[0]
        small.save(PICTURES / f"{name}.png", optimize=True)


def draw_heads(minilm, twin, dark):
    """The heads of MiniLM."""
    tokens, weights = minilm.attend("tired")
    save(
        plot.heatmap(weights[3, 1], tokens, vmin=0, vmax=1, title="layer 3, head 1", dark=dark).figure, f"heatmap{twin}"
    )
    small = Figure(figsize=(7.5, 6))  # as wide as a page shows it
    save(plot.heads(weights[3], tokens, figure=small, title="layer 3", dark=dark), f"heads{twin}")
    named = np.stack([weights[layer, head] for layer, head, _ in HEADS])
    figure = plot.heads(named, tokens, dark=dark)
    for ax, (layer, head, place) in zip(figure.axes, HEADS, strict=False):
        ax.set_title(f"layer {layer}, head {head}: {place}", fontsize=9)
    save(figure, f"heads-named{twin}")
    save(plot.flow(weights[3, 1], tokens, title="layer 3, head 1", dark=dark).figure, f"flow{twin}", colours=128)
    several = plot.flow(weights[3], tokens, heads=[1, 8, 11], title="layer 3", dark=dark)
    save(several.figure, f"flow-heads{twin}", colours=256)
    for ending in ("tired", "wide"):
        labels = [f"layer {layer}" for layer in range(6)]
        title = f"too {ending}: animal minus street"
        options = {"center": 0, "vmin": -0.7, "vmax": 0.7, "xlabel": "heads", "ylabel": "", "title": title}
        ax = plot.heatmap(minilm.lean(ending), labels, range(12), numbers=False, **options, dark=dark)
        save(ax.figure, f"center-{ending}{twin}")


def draw_arrays(twin, dark):
    """A mask, positions, and tokens in another script."""
    words = TEMPLATE.format("tired").rstrip(".").split()
    save(plot.mask(pyattn.masks.causal(len(words)), words, dark=dark).figure, f"mask{twin}", colours=64)
    encoding = pyattn.functional.positional_encoding(100, 64)
    save(plot.positional(encoding, dark=dark).figure, f"positional{twin}")
    save(plot.flow(attend_chinese(), CHINESE, dark=dark).figure, f"flow-chinese{twin}", colours=64)


def draw_steps(twin, dark):
    """The worked example, and models that write."""
    trace = pyattn.trace(X, W_QUERY, W_KEY, W_VALUE)
    save(plot.steps(trace, dark=dark), f"steps{twin}", colours=128)
    save(plot.steps(trace.backward([[1, 0, 0], [0, 0, 0], [0, 0, 0]]), dark=dark), f"gradients{twin}", colours=128)
    plot.animate(trace, dark=dark).save(PICTURES / f"steps{twin}.gif", dpi=108)
    words = student().target_words
    plot.animate(translate(), source=FRENCH, vocabulary=words, dark=dark).save(
        PICTURES / f"decoding{twin}.gif", dpi=108
    )
    many = plot.animate(write_by_chance(40, 30), source=CYCLE, vocabulary=CYCLE, dark=dark)
    many._draw(21)
    save(many._figure, f"decoding-many{twin}", 90)
    many._draw_was_started = True  # or matplotlib warns that the animation was never shown


def main():
    """Draw all pictures, light and dark, and the page of `flow` that docs/how-to/draw-figures.md embeds."""
    minilm = MiniLM()
    for twin, dark in (("", False), ("-dark", True)):
        draw_heads(minilm, twin, dark)
        draw_arrays(twin, dark)
        draw_steps(twin, dark)
    tokens, weights = minilm.attend("tired")
    shown = np.where(weights[3] < 0.02, 0, weights[3])  # fewer lines make a smaller page
    page = plot.flow(shown, tokens, heads=[1, 8, 11], title="MiniLM, layer 3")._repr_html_()
    (PICTURES / "flow.html").write_text(page + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

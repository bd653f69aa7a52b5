"""Draws docs/pictures/ anew: python docs/draw_pictures.py. The weights of sentences are made up.

An installed Chinese font is needed for one of them; on Debian: apt install fonts-noto-cjk.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

import pyattn
from pyattn import plot
from pyattn.models.examples import student
from pyattn.tracing.article import W_KEY, W_QUERY, W_VALUE, X

PICTURES = Path(__file__).parent / "pictures"
ENGLISH = ["The", "animal", "didn't", "cross", "the", "street", "because", "it", "was", "too", "tired"]
LONG = ["自然语言处理", "与", "深度学习", "的应用场景", "包括", "机器翻译系统和对话机器人助手", "以及信息检索"]
FRENCH = ["je", "suis", "étudiant"]
CHINESE = ["动物", "没有", "过", "马路", "因为", "它", "太", "累", "了"]
CYCLE = (5 * CHINESE)[:40]


def attend(tokens, pairs, heads=None):
    """Weights that fall with the distance, here and there a little by chance, and are large for some pairs."""
    near = -0.5 * np.abs(np.subtract.outer(np.arange(len(tokens)), np.arange(len(tokens))))
    for query, key in pairs:
        near[tokens.index(query), tokens.index(key)] = 2.5
    if heads is None:
        return pyattn.softmax(near)
    reach = np.geomspace(0.3, 4, heads)[:, None, None]
    return pyattn.softmax(near * reach + np.random.default_rng(0).standard_normal((heads, *near.shape)))


def sentence(tokens, length, heads=None):
    """The tokens over and over, and what they attend to: some back, some on, and full stops most."""
    rng = np.random.default_rng(1)
    tokens = [tokens[i % len(tokens)] for i in range(length)]
    near = np.subtract.outer(np.arange(length), np.arange(length))
    many = heads or 1
    shift, reach = rng.integers(-9, 10, (many, 1, 1)), np.geomspace(3, length, many)[::-1, None, None]
    scores = -np.abs(near - shift) / reach + 2 * rng.standard_normal((many, 1, length))
    weights = pyattn.softmax(scores + rng.standard_normal((many, length, length)))
    return tokens, weights if heads else weights[0]


def encode(length, features):
    """Sines and cosines, as the Transformer's positions are encoded."""
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(features // 2) / (features // 2))
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, features)


def translate():
    """Five steps of the model that comes with the package."""
    model, source_words, target_words = student()
    symbols = {"start_token_id": target_words.index("<s>"), "eos_token_id": target_words.index("<end>")}
    ids = [source_words.index(word) for word in FRENCH]
    return pyattn.generate(model, ids, max_new_tokens=9, **symbols, return_steps=True)


def write_by_chance(length, steps):
    """A model of random weights, larger than they are drawn, whose heads so choose."""
    model = pyattn.nn.Seq2SeqTransformer(40, 40, 96, 12, 1, 6, 96, rng=0).eval()
    for weight in model.parameters():
        weight *= 1.6 if weight.ndim > 1 else 1
    options = {"start_token_id": 0, "do_sample": True, "rng": 0, "return_steps": True}
    return pyattn.generate(model, np.arange(length), max_new_tokens=steps, **options)


def save(figure, name):
    """Of 256 colours, which halves the file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    with Image.open(drawn) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        small.save(PICTURES / f"{name}.png", optimize=True)


def main():
    weights = attend(ENGLISH, [("it", "animal"), ("tired", "animal"), ("cross", "street")])
    save(plot.heatmap(weights, ENGLISH).figure, "heatmap")
    save(plot.heads(attend(ENGLISH, [], heads=6), ENGLISH, dark=True), "heads")
    save(plot.flow(weights, ENGLISH).figure, "flow")
    chinese = attend(CHINESE, [("它", "动物"), ("累", "动物")])
    save(plot.flow(chinese, CHINESE, dark=True).figure, "flow-chinese")
    tokens, many = sentence(ENGLISH, 200)
    save(plot.heatmap(many, tokens).figure, "heatmap-200")
    tokens, many = sentence(ENGLISH, 40)
    save(plot.flow(many, tokens).figure, "flow-40")
    tokens, many = sentence(ENGLISH, 128, heads=12)
    save(plot.heads(many, tokens), "heads-128")
    tokens, many = sentence(LONG, 14)
    save(plot.heatmap(many, tokens, title="自然语言处理").figure, "heatmap-chinese")
    save(plot.mask(pyattn.masks.causal(len(ENGLISH)), ENGLISH).figure, "mask")
    save(plot.positional(encode(100, 64)).figure, "positional")
    trace = pyattn.trace(X, W_QUERY, W_KEY, W_VALUE)
    save(plot.steps(trace), "steps")
    save(plot.steps(trace, dark=True), "steps-dark")
    plot.animate(trace, interval=2500).save(PICTURES / "steps.gif", dpi=108)  # as wide as README.md is shown
    plot.animate(translate(), source=FRENCH, vocabulary=student().target_words).save(PICTURES / "decoding.gif", dpi=90)
    many = plot.animate(write_by_chance(40, 30), source=CYCLE, vocabulary=CYCLE, dark=True)
    many._draw(20)
    save(many._figure, "decoding-many")


if __name__ == "__main__":
    main()

"""A task for a small Transformer: read a row of digits and write it backwards, 3 1 4 1 5 as 5 1 4 1 3.

`load_model` loads the weights that tools/training/train_digits.py trained with PyTorch. It needs NumPy and pyattn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import pyattn

PAD, START, END = 0, 1, 2
WORDS = ("<pad>", "<s>", "<end>", *"0123456789")
"""Vocabulary of source and target; a word's index is its token id."""

SHORTEST, LONGEST = 3, 12
HELD_OUT_SEED, HELD_OUT = 20261122, 1000
TRAINING_SEED, BATCHES, BATCH = 1, 2500, 64

SIZES = {
    "src_vocab_size": len(WORDS),
    "tgt_vocab_size": len(WORDS),
    "d_model": 32,
    "nhead": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "dim_feedforward": 64,
}
"""Sizes of the model, which has 44,141 parameters."""

WEIGHTS = Path(__file__).with_name("digits.npz")


def load_model() -> pyattn.nn.Seq2SeqTransformer:
    """Load the trained model in evaluation mode."""
    model = pyattn.nn.Seq2SeqTransformer(**SIZES, padding_idx=PAD, max_length=64).eval()
    model.load_state_dict(pyattn.nn.load(WEIGHTS))
    return model


def encode(text: str) -> list[int]:
    """Return the token ids of a row of digits."""
    return [WORDS.index(digit) for digit in text]


def decode(ids) -> str:
    """Return the digits of token ids, up to the end symbol."""
    words = [WORDS[token] for token in ids]
    return "".join(words[: words.index("<end>")] if "<end>" in words else words)


def reverse(source: np.ndarray) -> np.ndarray:
    """Return the correct outputs, (rows, length + 1), with an end symbol after each row."""
    lengths = (source != PAD).sum(axis=1, keepdims=True)
    places = lengths - 1 - np.arange(source.shape[1] + 1)
    digits = np.take_along_axis(source, np.maximum(places, 0), axis=1)
    return np.where(places >= 0, digits, np.where(places == -1, END, PAD))


def draw(rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw rows of random digits, (count, LONGEST), padded at the end; all lengths are equally likely."""
    lengths = rng.integers(SHORTEST, LONGEST + 1, (count, 1))
    digits = rng.integers(WORDS.index("0"), len(WORDS), (count, LONGEST))
    return np.where(np.arange(LONGEST) < lengths, digits, PAD)


def held_out() -> np.ndarray:
    """Return the rows of the test, all different and none of them in the training."""
    rows = draw(np.random.default_rng(HELD_OUT_SEED), 2 * HELD_OUT)
    _, first = np.unique(numbers_of(rows), return_index=True)
    return rows[np.sort(first)[:HELD_OUT]]


def training_batches() -> Iterator[np.ndarray]:
    """Yield the batches of the training in order: 64 drawn rows each, without those that are held out."""
    rng, judged_by = np.random.default_rng(TRAINING_SEED), numbers_of(held_out())
    for _ in range(BATCHES):
        rows = draw(rng, 2 * BATCH)
        yield rows[~np.isin(numbers_of(rows), judged_by)][:BATCH]


def numbers_of(rows: np.ndarray) -> np.ndarray:
    """Return a number for each row; only equal rows have equal numbers."""
    return rows @ len(WORDS) ** np.arange(rows.shape[1], dtype=np.int64)

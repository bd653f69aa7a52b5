"""A task for a small Transformer: read a row of digits and write it backwards, 3 1 4 1 5 as 5 1 4 1 3.

`load_model` loads trained weights. This program trains them, in less than a minute, and writes them to digits.npz:

    python docs/tutorials/digits.py

It needs NumPy and pyattn. The notebook train-digits.ipynb explains the training.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

import pyattn
from pyattn import nn, optim

PAD, START, END = 0, 1, 2
WORDS = ("<pad>", "<s>", "<end>", *"0123456789")
"""Vocabulary of source and target; a word's index is its token id."""

SHORTEST, LONGEST = 3, 12
HELD_OUT_SEED, HELD_OUT = 20261122, 1000
TRAINING_SEED, STEPS, BATCH = 1, 600, 64
RATE, WARMUP_STEPS, MAX_NORM = 5e-3, 100, 1.0

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


def new_model() -> nn.Seq2SeqTransformer:
    """Make a model with random weights, the same ones each time."""
    return nn.Seq2SeqTransformer(**SIZES, dropout=0.0, padding_idx=PAD, max_length=64, rng=0)


def load_model() -> nn.Seq2SeqTransformer:
    """Load the trained model in evaluation mode."""
    model = new_model().eval()
    model.load_state_dict(nn.load(WEIGHTS))
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


@functools.cache
def held_out() -> np.ndarray:
    """Return the rows of the test, all different and none of them in the training."""
    rows = draw(np.random.default_rng(HELD_OUT_SEED), 2 * HELD_OUT)
    _, first = np.unique(numbers_of(rows), return_index=True)
    return rows[np.sort(first)[:HELD_OUT]]


def draw_batch(rng: np.random.Generator) -> np.ndarray:
    """Draw the rows of one training step, without those that are held out."""
    rows = draw(rng, 2 * BATCH)
    return rows[~np.isin(numbers_of(rows), numbers_of(held_out()))][:BATCH]


def numbers_of(rows: np.ndarray) -> np.ndarray:
    """Return a number for each row; only equal rows have equal numbers."""
    return rows @ len(WORDS) ** np.arange(rows.shape[1], dtype=np.int64)


def make_optimizer(model: nn.Module) -> tuple[optim.Adam, optim.LRScheduler]:
    """Make the optimiser of the training and its learning-rate schedule."""
    optimizer = optim.Adam(model, betas=(0.9, 0.98), lr=RATE)
    return optimizer, optim.CosineWarmupLR(optimizer, WARMUP_STEPS, STEPS)


def loss_of(model: nn.Seq2SeqTransformer, rows: np.ndarray) -> float:
    """Return the mean loss of a token, without gradients."""
    target = reverse(rows)
    logits = model(rows, pyattn.generation.shift_right(target, START))
    return nn.losses.cross_entropy(logits, target, ignore_index=PAD)[0]


def train_step(
    model: nn.Seq2SeqTransformer, optimizer: optim.Optimizer, schedule: optim.LRScheduler, rows: np.ndarray
) -> float:
    """Move all parameters a little so that the loss of these rows falls; return the loss before."""
    target = reverse(rows)
    logits, backward = model.vjp(rows, pyattn.generation.shift_right(target, START))
    loss, grad = nn.losses.cross_entropy(logits, target, ignore_index=PAD)
    model.zero_grad()
    backward(grad)
    optim.clip_grad_norm_(model, MAX_NORM)
    optimizer.step()
    schedule.step()
    return loss


def count_right(model: nn.Seq2SeqTransformer, rows: np.ndarray, **options) -> int:
    """Count the rows that the model writes backwards without a mistake; options are those of `pyattn.generate`."""
    symbols = {"start_token_id": START, "eos_token_id": END}
    written = pyattn.generate(model, rows, max_new_tokens=rows.shape[1] + 2, **symbols, **options)
    return sum(decode(one) == decode(other) for one, other in zip(written.tokens, reverse(rows), strict=True))


def main() -> None:
    """Train the model and write its weights."""
    model, rng = new_model(), np.random.default_rng(TRAINING_SEED)
    optimizer, schedule = make_optimizer(model)
    for n in range(STEPS):
        loss = train_step(model, optimizer, schedule, draw_batch(rng))
        if n % 100 == 0 or n + 1 == STEPS:
            print(f"step {n:3} of {STEPS}: loss {loss:.4f}", flush=True)
    print(f"{count_right(model.eval(), held_out())} of {HELD_OUT} held-out rows are right")
    np.savez_compressed(WEIGHTS, **model.state_dict())


if __name__ == "__main__":
    main()

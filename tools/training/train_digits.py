"""Trains the model of digits.py with PyTorch, some minutes on two cores, and writes its weights to digits.npz.

python tools/training/train_digits.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch_translator import Translator, arrays_of, train

sys.path.append(str(Path(__file__).parents[2] / "docs" / "tutorials"))
import digits  # beside its notebook

RATE = 3e-3


def main():
    torch.manual_seed(0)
    model = Translator(**digits.SIZES, padding_idx=digits.PAD)
    batches = ((rows, digits.reverse(rows)) for rows in digits.training_batches())
    train(model, batches, digits.START, digits.BATCHES, RATE)

    rows = digits.held_out()
    written = model.write(torch.from_numpy(rows), digits.START, digits.END, digits.LONGEST + 1).numpy()
    expected = digits.reverse(rows)
    right = np.mean([digits.decode(one) == digits.decode(other) for one, other in zip(written, expected, strict=True)])
    print(f"{right:.1%} of {len(rows)} held-out sequences are written backwards without a mistake")
    np.savez_compressed(digits.WEIGHTS, **arrays_of(model))
    print(f"{digits.WEIGHTS.name}: {digits.WEIGHTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()

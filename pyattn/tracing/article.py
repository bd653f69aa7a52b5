"""The worked example of self-attention that `python -m pyattn` reproduces: one input per row, unscaled scores."""

from __future__ import annotations

from typing import Final

Matrix = tuple[tuple[float, ...], ...]

X: Final[Matrix] = ((1, 0, 1, 0), (0, 2, 0, 2), (1, 1, 1, 1))
W_KEY: Final[Matrix] = ((0, 0, 1), (1, 1, 0), (0, 1, 0), (1, 1, 0))
W_QUERY: Final[Matrix] = ((1, 0, 1), (1, 0, 0), (0, 0, 1), (0, 1, 1))
W_VALUE: Final[Matrix] = ((0, 2, 0), (0, 3, 0), (1, 0, 3), (1, 1, 0))

KEYS: Final[Matrix] = ((0, 1, 1), (4, 4, 0), (2, 3, 1))
QUERIES: Final[Matrix] = ((1, 0, 2), (2, 2, 2), (2, 1, 3))
VALUES: Final[Matrix] = ((1, 2, 3), (2, 8, 0), (2, 6, 3))
SCORES: Final[Matrix] = ((2, 4, 4), (4, 16, 12), (4, 12, 10))

SOFTMAX: Final[tuple[tuple[str, ...], ...]] = (
    ("6.3379e-02", "4.6831e-01", "4.6831e-01"),
    ("6.0337e-06", "9.8201e-01", "1.7986e-02"),
    ("2.9539e-04", "8.8054e-01", "1.1917e-01"),
)
"""Text, because the example gives five digits: a number is right if it prints the same."""

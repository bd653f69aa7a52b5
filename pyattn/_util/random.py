"""The argument rng: a generator of random numbers, and the seed that one call draws from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyattn._util.typing import RNG

if TYPE_CHECKING:  # numpy.random is imported by the first draw
    from numpy.random import Generator

__all__ = ["as_generator", "draw_seed"]


def as_generator(rng: RNG = None) -> Generator:
    """Make a generator."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        expected = "None, an int of 0 or more, a SeedSequence or a numpy.random.Generator"
        raise type(error)(f"rng is {rng!r}, expected {expected}") from None


def draw_seed(rng: RNG = None) -> int:
    """Draw the seed of one call's dropout."""
    return int(as_generator(rng).integers(1 << 64, dtype=np.uint64))

"""The argument rng: a generator of random numbers, and the seed that one call draws from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyattn._util.typing import RNG

if TYPE_CHECKING:  # numpy.random is imported by the first draw
    from numpy.random import Generator

__all__ = ["as_generator", "draw_seed"]


def as_generator(rng: RNG = None) -> Generator:
    """Make a generator.

    Parameters
    ----------
    rng : None, int, SeedSequence or Generator
        As `numpy.random.default_rng` takes it. Default: None, another one each time.

    Returns
    -------
    Generator
        rng itself where it is one.

    Raises
    ------
    TypeError
        rng is none of these.
    ValueError
        rng is negative.
    """
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        expected = "None, an int of 0 or more, a SeedSequence or a numpy.random.Generator"
        raise type(error)(f"rng is {rng!r}, expected {expected}") from None


def draw_seed(rng: RNG = None) -> int:
    """Draw the seed of one call's dropout.

    Parameters
    ----------
    rng : None, int, SeedSequence or Generator
        As `numpy.random.default_rng` takes it: an int gives the same seed each time, a Generator another one at each
        call. Default: None, another one each time.

    Returns
    -------
    int
        Of 64 bits.

    Raises
    ------
    TypeError
        rng is none of these.
    """
    return int(as_generator(rng).integers(1 << 64, dtype=np.uint64))

"""Dropout's random numbers: where a seed comes from, and which weights it keeps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsFloat, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

from pyattn import _core

if TYPE_CHECKING:  # numpy.random is imported by the first draw
    from numpy.random import Generator, SeedSequence

__all__ = ["RNG", "draw_seed", "dropout_keep_mask"]

RNG: TypeAlias = "int | SeedSequence | Generator | None"


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
    try:
        generator = np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        expected = "None, an int of 0 or more, a SeedSequence or a numpy.random.Generator"
        raise type(error)(f"rng is {rng!r}, expected {expected}") from None
    return int(generator.integers(1 << 64, dtype=np.uint64))


def dropout_keep_mask(
    shape: Sequence[SupportsIndex], dropout_p: SupportsFloat, rng: RNG = None
) -> npt.NDArray[np.bool_]:
    """Which weights a call with this `dropout_p` and `rng` keeps: True = kept.

    A keep is a function of the seed drawn from rng, the head (and batch entry), the query and the key alone: the same
    for any number of threads, and computed where it is used, so that dropout takes no memory. This writes it down.

    Parameters
    ----------
    shape : sequence of int, (..., L, S)
        Of the weights: (batch, heads, L, S), or less.
    dropout_p : float
        Probability that a weight becomes 0.
    rng : None, int, SeedSequence or Generator
        As the call takes it; a Generator as it was before the call. Default: None, other keeps each time.

    Returns
    -------
    ndarray of bool
        Of `shape`. Given back as ``keep_mask=`` it has the effect of rng.

    Raises
    ------
    ValueError
        shape has less than two axes; dropout_p is no probability.
    TypeError
        rng is none of these.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011): Philox4x32-10.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> keep = pyattn.dropout_keep_mask((3, 4), 0.5, rng=0)
    >>> x = np.eye(4)
    >>> result = pyattn.attention(x[:3], x, x, dropout_p=0.5, rng=0, need_weights=True)
    >>> bool(np.array_equal(result.weights != 0, keep))
    True
    """
    sizes = tuple(int(size) for size in shape)
    if len(sizes) < 2 or min(sizes) < 0:
        raise ValueError(f"shape is {sizes}, expected (..., L, S): two sizes or more, of 0 or more")
    if not 0 <= float(dropout_p) <= 1:
        raise ValueError(f"dropout_p is {dropout_p}, expected a probability from 0 to 1")
    keep = np.empty(sizes, np.bool_)
    _core.fill_keep_mask(keep.reshape(math.prod(sizes[:-2]), *sizes[-2:]), float(dropout_p), draw_seed(rng))
    return keep

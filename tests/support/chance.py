"""Whether counts of what is left to chance are likely."""

from __future__ import annotations

import math

import numpy as np


def deviations(counts, number, p):
    """Of counts of successes out of `number`, in standard deviations."""
    return (np.asarray(counts) - number * p) / math.sqrt(number * p * (1 - p))


def chi_square_is_likely(deviation):
    """The sum of n squares has mean n and variance 2n; six standard deviations either way."""
    n = deviation.size
    return abs((deviation**2).sum() - n) < 6 * math.sqrt(2 * n)

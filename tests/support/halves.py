"""float16 and bfloat16, and the rule of both: f(half) is f(half.astype(float32)).astype(half), bit for bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from support.helpers import assert_same_bits

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def half_bits(x):
    """The bits, with one NaN for all: ml_dtypes keeps neither sign nor payload."""
    return np.where(np.isnan(x), np.uint16(0x7FFF), x.view(np.uint16)) if x.itemsize == 2 else x


def assert_rounded(found, expected, kind):
    """The results are the float32 ones, rounded; so are those in tuples and lists."""
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        for one, other in zip(found, expected, strict=True):
            assert_rounded(one, other, kind)
    elif expected is not None:
        assert (found.dtype, expected.dtype) == (HALVES[kind], np.float32)
        with np.errstate(over="ignore"):
            assert_same_bits(half_bits(found), half_bits(expected.astype(HALVES[kind])))


def single(x):
    """The same numbers in float32, in the same memory order; None stays."""
    return None if x is None else x.astype(np.float32)

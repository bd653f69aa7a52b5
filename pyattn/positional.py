"""Positional encodings: what tells a Transformer the order of its inputs."""

from __future__ import annotations

import math
from typing import SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._arguments import as_count, as_float_dtype
from pyattn.functional import FloatArray

__all__ = ["positional_encoding"]


def positional_encoding(
    length: SupportsIndex,
    dim: SupportsIndex,
    start: SupportsIndex = 0,
    *,
    base: SupportsFloat = 10000.0,
    dtype: npt.DTypeLike = np.float32,
) -> FloatArray:
    """Sines and cosines of the positions, as the Transformer adds them to its inputs.

    ``PE[pos, 2i] = sin(pos / base**(2i / dim))`` and ``PE[pos, 2i + 1] = cos(pos / base**(2i / dim))``, computed in
    float64 and rounded once. An odd dim ends with a sine.

    Parameters
    ----------
    length : int
        How many positions.
    dim : int
        How many features each has: d_model.
    start : int
        The first position, as in decoding with a cache. Default: 0.
    base : float
        Wavelengths go from 2 pi to 2 pi times it. Default: 10000.0, as published.
    dtype : dtype
        float32, the default, or float64.

    Returns
    -------
    ndarray, (length, dim)
        Of dtype, with position `start` in row 0.

    Raises
    ------
    TypeError
        length, dim or start is no integer, base no number, or dtype another one.
    ValueError
        One of them is negative, or base is not above 0.

    References
    ----------
    Vaswani et al., "Attention Is All You Need" (2017), section 3.5.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.positional_encoding(3, 4).round(4)
    array([[ 0.    ,  1.    ,  0.    ,  1.    ],
           [ 0.8415,  0.5403,  0.01  ,  1.    ],
           [ 0.9093, -0.4161,  0.02  ,  0.9998]], dtype=float32)
    >>> pyattn.positional_encoding(1, 4, start=2).round(4)
    array([[ 0.9093, -0.4161,  0.02  ,  0.9998]], dtype=float32)
    """
    rows, columns = as_count(length, "length", least=0), as_count(dim, "dim", least=0)
    first = as_count(start, "start", least=0)
    table = np.empty((rows, columns), as_float_dtype(dtype))
    positions = np.arange(rows, dtype=np.float64) + first
    angles = positions[:, np.newaxis] / _as_base(base) ** (np.arange(0, columns, 2) / max(1, columns))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : columns // 2])
    return table


def _as_base(base: SupportsFloat) -> float:
    if isinstance(base, (bool, np.bool_)) or not isinstance(base, SupportsFloat):
        raise TypeError(f"base is of type {type(base).__name__}, expected a number")
    number = float(base)
    if not 0 < number < math.inf:
        raise ValueError(f"base is {base}, expected a finite number above 0")
    return number

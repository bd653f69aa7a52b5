"""Sinusoidal positional encoding."""

from __future__ import annotations

from typing import SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_count, as_finite
from pyattn._util.halves import as_stored_dtype, compute_dtype, round_to
from pyattn._util.typing import FloatArray

__all__ = ["positional_encoding"]

_FAR = 2**53
"""float64 cannot represent every position beyond it."""


def positional_encoding(
    length: SupportsIndex,
    embed_dim: SupportsIndex,
    start: SupportsIndex = 0,
    *,
    base: SupportsFloat = 10000.0,
    dtype: npt.DTypeLike = np.float32,
) -> FloatArray:
    """Compute the sinusoidal positional encoding of a Transformer's inputs.

    ``PE[pos, 2i] = sin(pos / base**(2i / embed_dim))`` and ``PE[pos, 2i + 1] = cos(pos / base**(2i / embed_dim))``,
    computed in float64 and rounded once. An odd embed_dim ends with a sine.

    Parameters
    ----------
    length : int
        Number of positions.
    embed_dim : int
        Features of each position.
    start : int
        The first position, as in decoding with a cache. Default: 0.
    base : float
        Wavelengths range from 2 pi to 2 pi * base. Default: 10000.0, as published.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16. The last two are float32, rounded.

    Returns
    -------
    ndarray, (length, embed_dim)
        Of dtype, with position `start` in row 0.

    Raises
    ------
    TypeError
        length, embed_dim or start is not an integer, base is not a number, or dtype is not
        float16, bfloat16, float32 or float64.
    ValueError
        length, embed_dim or start is negative, a position is 2**53 or more, or base is not above 0.

    References
    ----------
    Vaswani et al., "Attention Is All You Need" (2017), section 3.5.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.positional_encoding(3, 4).round(4)
    array([[ 0.    ,  1.    ,  0.    ,  1.    ],
           [ 0.8415,  0.5403,  0.01  ,  1.    ],
           [ 0.9093, -0.4161,  0.02  ,  0.9998]], dtype=float32)
    >>> pyattn.functional.positional_encoding(1, 4, start=2).round(4)
    array([[ 0.9093, -0.4161,  0.02  ,  0.9998]], dtype=float32)
    """
    rows, columns = as_count(length, "length", least=0), as_count(embed_dim, "embed_dim", least=0)
    first = as_count(start, "start", least=0)
    if first + rows > _FAR:
        raise ValueError(f"start is {first} and length {rows}, expected positions below 2**53")
    kind = as_stored_dtype(dtype)
    table = np.empty((rows, columns), compute_dtype(kind))
    positions = np.arange(rows, dtype=np.float64) + first
    angles = positions[:, np.newaxis] / as_finite(base, "base", above=0) ** (np.arange(0, columns, 2) / max(1, columns))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles[:, : columns // 2])
    return round_to(table, kind)

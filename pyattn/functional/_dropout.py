"""Dropout of any array, and the mask that attention's dropout uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_flag, as_index, as_probability
from pyattn._util.random import draw_seed
from pyattn._util.typing import RNG

__all__ = ["dropout", "dropout_keep_mask"]


def dropout(
    x: npt.ArrayLike, p: SupportsFloat = 0.5, training: bool = True, *, rng: RNG = None
) -> npt.NDArray[np.floating[Any]]:
    """Set each element to 0 with probability p, and divide the others by ``1 - p``.

    With x viewed as (rows, features), the mask depends only on the seed drawn from rng, the row and the feature. It is
    `dropout_keep_mask` of shape ``(rows, features)``, for up to 2**32 rows. The gradient of x is dropout of the
    gradient of the result, with the same p and int as rng.

    Parameters
    ----------
    x : array_like, (..., features)
        Real numbers; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are computed
        in float32, and the result is rounded to them.
    p : float
        Probability that an element becomes 0. Default: 0.5.
    training : bool
        Apply dropout; False returns x. Default: True.
    rng : None, int, SeedSequence or Generator
        Draws the numbers. Default: None, fresh entropy, so each call differs.

    Returns
    -------
    ndarray, (..., features)
        A new array. Without training or with p = 0 it is x itself, as in torch. Dropped elements are 0, even NaN.

    Raises
    ------
    TypeError
        x is not an array of real numbers, or p, training or rng is of another type.
    ValueError
        p is not a probability.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> pyattn.functional.dropout(np.ones((2, 6)), 0.25, rng=0).round(4)
    array([[1.3333, 1.3333, 1.3333, 1.3333, 1.3333, 1.3333],
           [1.3333, 0.    , 1.3333, 1.3333, 1.3333, 1.3333]])
    >>> pyattn.functional.dropout([1.0, 2.0], 0.25, training=False)
    array([1., 2.])
    """
    array, probability = _core.as_real(x, "x"), as_probability(p, "p")
    if not as_flag(training, "training") or probability == 0:
        return array
    return _core.drop_rows(np.ascontiguousarray(array), probability, draw_seed(rng)).reshape(array.shape)


def dropout_keep_mask(
    shape: Sequence[SupportsIndex], dropout_p: SupportsFloat, rng: RNG = None
) -> npt.NDArray[np.bool_]:
    """Return the dropout mask of a call with this `dropout_p` and `rng`: True = kept.

    Whether a weight is kept depends only on the seed drawn from rng, the batch entry, the head, the query and the key,
    not on the number of threads. Attention computes the mask on the fly and never stores it; this function stores it.

    Parameters
    ----------
    shape : sequence of int, (..., L, S)
        Shape of the weights: (batch, heads, L, S), or fewer axes.
    dropout_p : float
        Probability that a weight becomes 0.
    rng : None, int, SeedSequence or Generator
        As passed to the call; a Generator in its state before the call. Default: None, a different mask each time.

    Returns
    -------
    ndarray of bool
        Of `shape`. Passing it as ``keep_mask=`` has the same effect as rng.

    Raises
    ------
    ValueError
        shape has less than two axes; dropout_p is not a probability.
    TypeError
        shape, dropout_p or rng is of another type.

    References
    ----------
    Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011): Philox4x32-10.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> keep = pyattn.functional.dropout_keep_mask((3, 4), 0.5, rng=0)
    >>> x = np.eye(4)
    >>> result = pyattn.attention(x[:3], x, x, dropout_p=0.5, rng=0, need_weights=True)
    >>> bool(np.array_equal(result.weights != 0, keep))
    True
    """
    try:
        sizes = tuple(as_index(size, "shape") for size in shape)
    except TypeError:
        raise TypeError(f"shape is {shape!r}, expected a sequence of ints: (..., L, S)") from None
    if len(sizes) < 2 or min(sizes) < 0:
        raise ValueError(f"shape is {sizes}, expected (..., L, S): two sizes or more, of 0 or more")
    p = as_probability(dropout_p, "dropout_p")
    keep = np.empty(sizes, np.bool_)
    _core.fill_keep_mask(keep.reshape(math.prod(sizes[:-2]), *sizes[-2:]), p, draw_seed(rng))
    return keep

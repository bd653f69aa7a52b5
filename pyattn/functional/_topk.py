"""`argmax` and `topk`: the largest elements of rows and their indices."""

from __future__ import annotations

from typing import NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_index

import pyattn._core as _core
import pyattn._util.slabs as _slabs
from pyattn._util.arguments import as_count, as_index
from pyattn._util.halves import as_float32, round_to
from pyattn._util.typing import FloatArray

__all__ = ["TopK", "argmax", "topk"]


class TopK(NamedTuple):
    """Result of `topk`.

    Attributes
    ----------
    values : ndarray, (..., k)
        The largest first.
    indices : ndarray of int64, (..., k)
        Index of each value in its row.

    Examples
    --------
    >>> import pyattn
    >>> largest = pyattn.functional.topk([0.1, 0.7, 0.2], 2)
    >>> largest.values, largest.indices
    (array([0.7, 0.2]), array([1, 2]))
    """

    values: FloatArray
    indices: npt.NDArray[np.int64]


def argmax(x: npt.ArrayLike, axis: SupportsIndex | None = -1) -> npt.NDArray[np.int64]:
    """Find the index of the largest element along an axis.

    As in NumPy, it is the first of equal elements, and NaN comes before numbers.

    Parameters
    ----------
    x : array_like
        Real numbers.
    axis : int or None
        None: the index into the flattened array. Default: -1, the last.

    Returns
    -------
    ndarray of int64
        Of x's shape without the axis.

    Raises
    ------
    TypeError
        x is not an array of real numbers, or axis is not an integer.
    ValueError
        The axis has length 0.
    numpy.exceptions.AxisError
        axis is out of range for x.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.argmax([[0.1, 0.7, 0.2], [0.5, 0.0, 0.5]])
    array([1, 0])
    """
    array = as_float32(_core.as_real(x, "x"))
    number = None if axis is None else as_index(axis, "axis", "an int or None")
    if number is None or (array.ndim == 0 and number in (0, -1)):  # a scalar has no axis, as in softmax
        array, number = array.reshape(-1), 0
    number = normalize_axis_index(number, array.ndim)
    if array.shape[number] == 0:
        raise ValueError(f"x has shape {array.shape}: axis {number} is empty; argmax needs at least one element")
    moved = np.moveaxis(array, number, -1)
    if moved.flags.c_contiguous:
        return _core.argmax_rows(moved)
    indices = np.empty(moved.shape[:-1], np.int64)
    _slabs.compute_rows(moved, moved.ndim - 1, _core.argmax_rows, indices)
    return indices


def topk(x: npt.ArrayLike, k: SupportsIndex) -> TopK:
    """Find the k largest elements of each row and their indices.

    The order is that of a stable descending sort. Equal elements are ordered by index, which `torch.topk` does not
    guarantee. NaN comes before any number, as there.

    Parameters
    ----------
    x : array_like, (..., n)
        float32, float64, float16 or bfloat16; bools, integers and lists of Python's numbers become float64.
    k : int
        Number of elements, from 0 to n.

    Returns
    -------
    TopK
        With values (..., k) and indices (..., k).

    Raises
    ------
    TypeError
        x is not an array of real numbers, or k is not an int.
    ValueError
        x is a scalar, or its last axis has fewer than k elements.

    Examples
    --------
    >>> import pyattn
    >>> values, indices = pyattn.functional.topk([[0.1, 0.7, 0.2], [0.5, 0.0, 0.5]], 2)
    >>> values
    array([[0.7, 0.2],
           [0.5, 0.5]])
    >>> indices
    array([[1, 2],
           [0, 2]])
    """
    array, count = _core.as_real(x, "x"), as_count(k, "k", least=0)
    if array.ndim == 0:
        raise ValueError("x is a scalar, expected (..., n); for one row, pass [x]")
    if count > array.shape[-1]:
        raise ValueError(f"k is {count}, expected 0 <= k <= {array.shape[-1]}: x has shape {array.shape}")
    values, indices = _core.top_k_rows(np.ascontiguousarray(as_float32(array)), count)
    return TopK(round_to(values, array.dtype), indices)

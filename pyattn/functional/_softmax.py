"""Softmax and its logarithm along any axes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_tuple

import pyattn._core as _core
import pyattn._util.slabs as _slabs
from pyattn._util.arguments import as_index
from pyattn._util.typing import Axis, FloatArray

__all__ = ["log_softmax", "softmax"]


def softmax(x: npt.ArrayLike, axis: Axis = -1) -> FloatArray:
    """``exp(x) / sum(exp(x))`` along an axis, without overflow.

    Parameters
    ----------
    x : array_like
        Real numbers; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are computed
        in float32, and the result is rounded to them.
    axis : int or tuple of ints or None
        Axes to normalise over; None means all of them. Default: -1, the last.

    Returns
    -------
    ndarray
        Of x's shape. A slice that is -inf throughout gives NaN, as in SciPy and torch.

    Raises
    ------
    TypeError
        x is not an array of real numbers, or axis is not an integer.
    numpy.exceptions.AxisError
        axis is out of range for x.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.softmax([[2, 4, 4], [4, 16, 12]]).round(5)
    array([[6.3380e-02, 4.6831e-01, 4.6831e-01],
           [1.0000e-05, 9.8201e-01, 1.7990e-02]])
    """
    return _along(x, axis, logarithm=False)


def log_softmax(x: npt.ArrayLike, axis: Axis = -1) -> FloatArray:
    """Compute ``x - log(sum(exp(x)))`` along an axis, without overflow.

    It is the natural logarithm of `pyattn.softmax`.

    Parameters
    ----------
    x : array_like
        Real numbers; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are computed
        in float32, and the result is rounded to them.
    axis : int or tuple of ints or None
        Axes to normalise over; None means all of them. Default: -1, the last.

    Returns
    -------
    ndarray
        Of x's shape.

    Raises
    ------
    TypeError
        x is not an array of real numbers, or axis is not an integer.
    numpy.exceptions.AxisError
        axis is out of range for x.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.log_softmax([0.0, 0.0]).round(4)
    array([-0.6931, -0.6931])
    """
    return _along(x, axis, logarithm=True)


def _along(x: npt.ArrayLike, axis: Axis, *, logarithm: bool) -> FloatArray:
    """Move the axes to the end, compute over them as one contiguous axis, and move them back."""
    array = _core.as_real(x, "x")
    if type(axis) is int and axis in (-1, array.ndim - 1) and array.ndim > 0 and array.flags.c_contiguous:
        return _core.softmax_rows(array, logarithm)  # the usual call: moving axes takes 6 microseconds
    axes = _axes(axis, array.ndim)
    outer_axes, last = array.ndim - len(axes), tuple(range(-len(axes), 0))
    moved = np.moveaxis(array, axes, last)
    size = int(np.prod(moved.shape[outer_axes:], dtype=np.intp))
    if moved.flags.c_contiguous and axes == tuple(range(outer_axes, array.ndim)):
        return _core.softmax_rows(moved.reshape(*moved.shape[:outer_axes], size), logarithm).reshape(array.shape)
    result = np.empty(array.shape, array.dtype.newbyteorder("="))
    flat, step = result.reshape(-1), _slabs.SLAB // result.itemsize
    for start in range(0, flat.size, step):  # touch every page now, not all in the first slab
        flat[start : start + step : 512] = 0
    target = np.moveaxis(result, axes, last)
    _slabs.compute_rows(moved, outer_axes, lambda rows: _core.softmax_rows(rows, logarithm), target)
    return result


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Normalise axes to count from 0; for a scalar, 0 and -1 mean no axes, as in SciPy."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, tuple):
        return tuple(normalize_axis_tuple([as_index(one, f"axis[{n}]") for n, one in enumerate(axis)], ndim))
    index = as_index(axis, "axis", "an int, a tuple of ints or None")
    return () if ndim == 0 and index in (0, -1) else tuple(normalize_axis_tuple(index, ndim))

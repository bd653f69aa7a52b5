"""Softmax and its logarithm along any axes, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numpy.lib.array_utils import normalize_axis_tuple

import pyattn._core as _core
import pyattn._util.slabs as _slabs
from pyattn._util.arguments import as_index
from pyattn._util.typing import Axis, FloatArray
from pyattn.functional._upstream import as_alike, round_like

__all__ = ["log_softmax", "log_softmax_backward", "softmax", "softmax_backward"]


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


def softmax_backward(grad_output: npt.ArrayLike, output: npt.ArrayLike, axis: Axis = -1) -> FloatArray:
    """Compute the gradient of `pyattn.softmax` from its result.

    ``output * (grad_output - sum(grad_output * output))``, with the sum along the axis: the product with the softmax's
    Jacobian ``diag(output) - outer(output, output)``.

    Parameters
    ----------
    grad_output : array_like
        Gradient of the loss with respect to `output`; of its shape.
    output : array_like
        The result of ``softmax(x, axis)``.
    axis : int or tuple of ints or None
        As in the forward call. Default: -1, the last.

    Returns
    -------
    ndarray
        The gradient of x: of output's shape, and of its dtype if that is a half; else float64 for float64, float32 for
        float32.

    Raises
    ------
    TypeError
        An array does not hold real numbers, or axis is not an integer.
    ValueError
        Shapes differ.
    numpy.exceptions.AxisError
        axis is out of range for output.

    Examples
    --------
    >>> import pyattn
    >>> y = pyattn.functional.softmax([0.0, 1.0])
    >>> pyattn.functional.softmax_backward([1.0, 0.0], y).round(4)
    array([ 0.1966, -0.1966])
    """
    return _along_backward(grad_output, output, axis, logarithm=False)


def log_softmax_backward(grad_output: npt.ArrayLike, output: npt.ArrayLike, axis: Axis = -1) -> FloatArray:
    """Compute the gradient of `log_softmax` from its result.

    ``grad_output - exp(output) * sum(grad_output)``, with the sum along the axis: the product with its Jacobian.

    Parameters
    ----------
    grad_output : array_like
        Gradient of the loss with respect to `output`; of its shape.
    output : array_like
        The result of ``log_softmax(x, axis)``.
    axis : int or tuple of ints or None
        As in the forward call. Default: -1, the last.

    Returns
    -------
    ndarray
        The gradient of x: of output's shape, and of its dtype if that is a half; else float64 for float64, float32 for
        float32.

    Raises
    ------
    TypeError
        An array does not hold real numbers, or axis is not an integer.
    ValueError
        Shapes differ.
    numpy.exceptions.AxisError
        axis is out of range for output.

    Examples
    --------
    >>> import pyattn
    >>> y = pyattn.functional.log_softmax([0.0, 1.0])
    >>> pyattn.functional.log_softmax_backward([1.0, 0.0], y).round(4)
    array([ 0.7311, -0.7311])
    """
    return _along_backward(grad_output, output, axis, logarithm=True)


def _along(x: npt.ArrayLike, axis: Axis, *, logarithm: bool) -> FloatArray:
    """Compute over the axes."""
    array = _core.as_real(x, "x")
    if type(axis) is int and axis in (-1, array.ndim - 1) and array.ndim > 0 and array.flags.c_contiguous:
        return _core.softmax_rows(array, logarithm)  # the usual call: moving axes takes 6 microseconds
    return _over_axes([array], axis, lambda rows: _core.softmax_rows(rows, logarithm))


def _along_backward(grad_output: npt.ArrayLike, output: npt.ArrayLike, axis: Axis, *, logarithm: bool) -> FloatArray:
    """Compute the gradient over the axes."""
    upstream, array, dtype = as_alike(grad_output, output, "output")
    found = _over_axes([upstream, array], axis, lambda up, rows: _core.softmax_backward(up, rows, logarithm))
    return round_like(found, dtype)


def _over_axes(arrays: list[FloatArray], axis: Axis, compute: Callable[..., FloatArray]) -> FloatArray:
    """Move the axes to the end, compute over them as one contiguous axis, and move them back."""
    shape, ndim = arrays[0].shape, arrays[0].ndim
    axes = _axes(axis, ndim)
    outer_axes, last = ndim - len(axes), tuple(range(-len(axes), 0))
    moved = [np.moveaxis(array, axes, last) for array in arrays]
    outer, size = moved[0].shape[:outer_axes], int(np.prod(moved[0].shape[outer_axes:], dtype=np.intp))
    if axes == tuple(range(outer_axes, ndim)) and all(array.flags.c_contiguous for array in moved):
        return compute(*(array.reshape(*outer, size) for array in moved)).reshape(shape)
    result = np.empty(shape, arrays[0].dtype.newbyteorder("="))
    flat, step = result.reshape(-1), _slabs.SLAB // result.itemsize
    for start in range(0, flat.size, step):  # touch every page now, not all in the first slab
        flat[start : start + step : 512] = 0
    _slabs.compute_rows(moved, outer_axes, compute, np.moveaxis(result, axes, last))
    return result


def _axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Normalise axes to count from 0; for a scalar, 0 and -1 mean no axes, as in SciPy."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, tuple):
        return tuple(normalize_axis_tuple([as_index(one, f"axis[{n}]") for n, one in enumerate(axis)], ndim))
    index = as_index(axis, "axis", "an int, a tuple of ints or None")
    return () if ndim == 0 and index in (0, -1) else tuple(normalize_axis_tuple(index, ndim))

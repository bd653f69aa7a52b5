"""Losses, each with its gradient: those of `torch.nn.functional` for NumPy.

A loss returns a pair: the loss, and its gradient with respect to `input`, in input's dtype or, for float16 and
bfloat16, float32.

>>> import numpy as np
>>> from pyattn.nn import losses
>>> loss, grad = losses.cross_entropy(np.zeros((1, 2)), [0])
>>> loss, grad
(0.6931471805599453, array([[-0.5,  0.5]]))
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_index, as_probability
from pyattn._util.halves import as_float32, compute_dtype, is_half
from pyattn._util.names import showing
from pyattn._util.typing import FloatArray

__all__ = ["cross_entropy", "mse_loss"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]

_REDUCTIONS = ("mean", "sum", "none")  # in the core's order


@overload
def cross_entropy(
    input: npt.ArrayLike,
    target: npt.ArrayLike,
    *,
    weight: npt.ArrayLike | None = None,
    ignore_index: SupportsIndex = -100,
    reduction: Literal["mean", "sum"] = "mean",
    label_smoothing: SupportsFloat = 0.0,
) -> tuple[float, FloatArray]: ...
@overload
def cross_entropy(
    input: npt.ArrayLike,
    target: npt.ArrayLike,
    *,
    weight: npt.ArrayLike | None = None,
    ignore_index: SupportsIndex = -100,
    reduction: Literal["none"],
    label_smoothing: SupportsFloat = 0.0,
) -> tuple[FloatArray, FloatArray]: ...
def cross_entropy(
    input: npt.ArrayLike,
    target: npt.ArrayLike,
    *,
    weight: npt.ArrayLike | None = None,
    ignore_index: SupportsIndex = -100,
    reduction: Reduction = "mean",
    label_smoothing: SupportsFloat = 0.0,
) -> tuple[float | FloatArray, FloatArray]:
    """Compute the cross entropy of ``softmax(input)`` and a target, and its gradient.

    The loss of a row is ``-sum(weight * t * log_softmax(row))``, where t is the target: 1 for the class with its id,
    or the given probabilities. Label smoothing (Szegedy et al. 2016) takes
    ``(1 - label_smoothing) * t + label_smoothing / classes`` instead. Classes are the last axis, as in
    `pyattn.softmax`; torch has them as axis 1 of three axes or more: pass ``numpy.moveaxis(input, 1, -1)`` then.

    Parameters
    ----------
    input : array_like, (..., classes)
        Logits, which may be large. float16 and bfloat16 are computed in float32.
    target : array_like, (...) or (..., classes)
        Integers: the class id of each row. Floats: the probability of each class. They are converted to input's dtype.
    weight : array_like, (classes), optional
        A factor for each class, converted to input's dtype. Default: None, 1.
    ignore_index : int
        Rows with this id have the loss 0 and the gradient 0. Class ids alone. Default: -100.
    reduction : {'mean', 'sum', 'none'}
        'mean' divides the sum by the weights of the rows' ids, without the ignored ones; with probabilities, by the
        number of rows. 'none' returns the loss of each row. Default: 'mean'.
    label_smoothing : float
        From 0 to 1. Default: 0.0.

    Returns
    -------
    loss : float or ndarray, (...)
        With reduction='none', an array of the gradient's dtype. The mean of no rows is NaN, as in torch.
    grad : ndarray, (..., classes)
        The gradient of the mean or the sum, of the sum with reduction='none'. float64 for float64, else float32.

    Raises
    ------
    TypeError
        An array does not hold real numbers, or an argument has the wrong type.
    ValueError
        Shapes disagree; an id is not a class; label_smoothing is not from 0 to 1; reduction is something else;
        ignore_index of 0 or more with probabilities.

    Notes
    -----
    Sums over rows are in float64 and in a fixed order, so results are bit-identical for any number of threads. An
    ignored row is never read: unlike in torch, its gradient is 0 even where input holds NaN.

    Examples
    --------
    >>> from pyattn.nn import losses
    >>> loss, grad = losses.cross_entropy([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [0, 1])
    >>> round(loss, 4)
    0.3955
    >>> grad.round(3)
    array([[-0.107,  0.053,  0.053],
           [ 0.106, -0.212,  0.106]])
    """
    x = _core.as_real(input, "input")
    if x.ndim == 0:
        raise ValueError("input is a number, expected logits of shape (..., classes)")
    smoothing = as_probability(label_smoothing, "label_smoothing")
    kind = _REDUCTIONS.index(as_choice(reduction, "reduction", _REDUCTIONS))
    ignored = as_index(ignore_index, "ignore_index")
    if not -(2**63) <= ignored < 2**63:
        raise ValueError("ignore_index is outside the range of int64")
    given = _as_target(target, x)
    if given.dtype.kind not in "iu" and ignored >= 0:
        raise ValueError("ignore_index is for class ids, and target holds probabilities: leave ignore_index out")
    factors = None if weight is None else _converted(_core.as_real(weight, "weight"), x)
    if factors is not None and factors.shape != x.shape[-1:]:
        raise ValueError(f"weight has shape {factors.shape}, expected {x.shape[-1:]}: one factor for each class")

    lead, classes = x.shape[:-1], x.shape[-1]
    rows = lead if len(lead) < 8 else (math.prod(lead),)  # the core takes 8 axes
    ids = given.reshape(rows) if given.dtype.kind in "iu" else None
    shares = None if ids is not None else _converted(given, x).reshape(*rows, classes)
    x = x.reshape(*rows, classes)
    loss, grad = _core.cross_entropy(x, ids, shares, factors, ignored, kind, smoothing)
    return loss if isinstance(loss, float) else loss.reshape(lead), grad.reshape(*lead, classes)


@overload
def mse_loss(
    input: npt.ArrayLike, target: npt.ArrayLike, *, reduction: Literal["mean", "sum"] = "mean"
) -> tuple[float, FloatArray]: ...
@overload
def mse_loss(
    input: npt.ArrayLike, target: npt.ArrayLike, *, reduction: Literal["none"]
) -> tuple[FloatArray, FloatArray]: ...
def mse_loss(
    input: npt.ArrayLike, target: npt.ArrayLike, *, reduction: Reduction = "mean"
) -> tuple[float | FloatArray, FloatArray]:
    """Compute the mean squared error, ``mean((input - target)**2)``, and its gradient.

    Parameters
    ----------
    input : array_like
        Any shape. float16 and bfloat16 are computed in float32.
    target : array_like
        An array of input's shape; it is not broadcast. Converted to input's dtype.
    reduction : {'mean', 'sum', 'none'}
        'none' returns the square of each element. Default: 'mean'.

    Returns
    -------
    loss : float or ndarray
        With reduction='none', an array of input's shape and the gradient's dtype. The mean of nothing is NaN.
    grad : ndarray
        The gradient of the mean or the sum, of the sum with reduction='none', in input's shape. float64 for float64,
        else float32.

    Raises
    ------
    TypeError
        An array does not hold real numbers.
    ValueError
        Shapes differ, or reduction is something else.

    Examples
    --------
    >>> from pyattn.nn import losses
    >>> losses.mse_loss([1.0, 2.0], [1.0, 4.0])
    (2.0, array([ 0., -2.]))
    """
    x, other = _core.as_real(input, "input"), _core.as_real(target, "target")
    as_choice(reduction, "reduction", _REDUCTIONS)
    if other.shape != x.shape:
        raise ValueError(
            f"target has shape {other.shape} and input {x.shape}, expected one shape; "
            "reshape target, or pass numpy.broadcast_to(target, input.shape)"
        )
    with np.errstate(all="ignore"):
        grad = np.subtract(as_float32(x), as_float32(other), dtype=compute_dtype(x.dtype), casting="same_kind")
        grad = np.asarray(grad)  # NumPy makes a scalar of an array without axes
        if reduction == "none":
            return np.asarray(np.square(grad)), np.multiply(grad, 2, out=grad)
        total = _core.sum_squares(grad.ravel(order="K"))
        if reduction == "sum":
            return total, np.multiply(grad, 2, out=grad)
        mean = total / grad.size if grad.size else math.nan
        return mean, np.multiply(grad, 2 / max(grad.size, 1), out=grad)


def _as_target(target: npt.ArrayLike, x: FloatArray) -> npt.NDArray[Any]:
    """Read class ids of x's shape without classes, or probabilities of its whole shape."""
    array, lead = _core.as_array(target, "target"), x.shape[:-1]
    is_float = array.dtype.kind == "f" or is_half(array.dtype)
    if array.shape == lead and array.dtype.kind in "iu":
        return array
    if array.shape == lead and not array.size and x.shape != lead:  # an empty list is read as float64
        return array.astype(np.int64)
    if array.shape == x.shape and is_float:
        return _core.as_real(target, "target")
    shape = f"target has shape {array.shape} and dtype {array.dtype}, input {x.shape}"
    if array.dtype.kind not in "iu" and not is_float:
        fix = _core.cast(target, "target", "numpy.int64")
        raise TypeError(
            f"target has dtype {array.dtype}, expected integers, the ids of classes, or floats, their probabilities; "
            f"pass {fix}"
        )
    if array.shape == lead:
        fix = _core.cast(target, "target", "numpy.int64")
        raise ValueError(f"{shape}: floats are a probability of each class; for ids of classes pass {fix}")
    if array.shape == x.shape:
        fix = _core.cast(target, "target", "numpy.float32")
        raise ValueError(f"{shape}: integers are one id in a row; for probabilities pass {fix}")
    if x.ndim > 2 and array.shape in (x.shape[:1] + x.shape[2:], x.shape[:1] + x.shape[2:] + x.shape[1:2]):
        raise ValueError(f"{shape}: classes are input's last axis; pass numpy.moveaxis(input, 1, -1)")
    raise ValueError(f"{shape}, expected {lead} for ids of classes, or {x.shape} for probabilities")


def _converted(array: FloatArray, x: FloatArray) -> FloatArray:
    """Convert numbers to the dtype in which x is computed."""
    return as_float32(array).astype(compute_dtype(x.dtype), copy=False)


if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__)

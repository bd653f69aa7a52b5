"""Layer and RMS normalisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, SupportsFloat, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import FLOATS, as_index
from pyattn._util.typing import FloatArray

__all__ = ["as_shape", "layer_norm", "rms_norm"]

Shape = SupportsIndex | Sequence[SupportsIndex]


@overload
def layer_norm(
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    eps: SupportsFloat = 1e-5,
    *,
    residual: npt.ArrayLike | None = None,
    need_sum: Literal[False] = False,
) -> FloatArray: ...
@overload
def layer_norm(
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    eps: SupportsFloat = 1e-5,
    *,
    residual: npt.ArrayLike,
    need_sum: Literal[True],
) -> tuple[FloatArray, FloatArray]: ...
def layer_norm(
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    eps: SupportsFloat = 1e-5,
    *,
    residual: npt.ArrayLike | None = None,
    need_sum: bool = False,
) -> FloatArray | tuple[FloatArray, FloatArray]:
    """Normalise over the last axes: `torch.nn.functional.layer_norm` for NumPy.

    ``(x - mean) / sqrt(variance + eps) * weight + bias``, where residual, if given, is added to x first. Mean and
    population variance are taken over the axes of normalized_shape. Layer normalization, Ba et al. 2016.

    Parameters
    ----------
    x : array_like, (..., normalized_shape)
        Real numbers; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are computed
        in float32, and the result is rounded to them.
    normalized_shape : int or sequence of int
        The last axes of x.
    weight, bias : array_like, normalized_shape, optional
        Default: None, 1 and 0.
    eps : float
        0 or more. Default: 1e-5.
    residual : array_like, (..., normalized_shape), optional
        Added to x in the same pass, as around a Transformer's sublayer. Default: None.
    need_sum : bool
        Return ``x + residual`` too. Default: False.

    Returns
    -------
    ndarray, (..., normalized_shape)
        With need_sum a pair: the result, and ``x + residual``.

    Raises
    ------
    TypeError
        An array does not hold real numbers.
    ValueError
        Shapes disagree; eps is negative; need_sum without residual.

    Notes
    -----
    Values whose squares overflow (from about 1e19 in float32) are normalised correctly; torch gives NaN.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.layer_norm([[1.0, 2.0, 3.0]], 3).round(4)
    array([[-1.2247,  0.    ,  1.2247]])
    """
    return _normalize(x, normalized_shape, weight, bias, residual, False, eps, need_sum)


@overload
def rms_norm(
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    eps: SupportsFloat | None = None,
    *,
    residual: npt.ArrayLike | None = None,
    need_sum: Literal[False] = False,
) -> FloatArray: ...
@overload
def rms_norm(
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    eps: SupportsFloat | None = None,
    *,
    residual: npt.ArrayLike,
    need_sum: Literal[True],
) -> tuple[FloatArray, FloatArray]: ...
def rms_norm(
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    eps: SupportsFloat | None = None,
    *,
    residual: npt.ArrayLike | None = None,
    need_sum: bool = False,
) -> FloatArray | tuple[FloatArray, FloatArray]:
    """Divide by the root mean square: `torch.nn.functional.rms_norm` for NumPy.

    ``x / sqrt(mean(x**2) + eps) * weight`` over the last axes, where residual, if given, is added to x first. Root mean
    square layer normalization, Zhang and Sennrich 2019.

    Parameters
    ----------
    x : array_like, (..., normalized_shape)
        Real numbers; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are computed
        in float32, and the result is rounded to them.
    normalized_shape : int or sequence of int
        The last axes of x.
    weight : array_like, normalized_shape, optional
        Default: None, 1.
    eps : float, optional
        0 or more. Default: the distance from 1 to the next number of x's dtype, or of float32 for float16 and bfloat16.
    residual : array_like, (..., normalized_shape), optional
        Added to x in the same pass. Default: None.
    need_sum : bool
        Return ``x + residual`` too. Default: False.

    Returns
    -------
    ndarray, (..., normalized_shape)
        With need_sum a pair: the result, and ``x + residual``.

    Raises
    ------
    TypeError
        An array does not hold real numbers.
    ValueError
        Shapes disagree; eps is negative; need_sum without residual.

    Notes
    -----
    Values whose squares overflow (from about 1e19 in float32) are normalised correctly; torch gives 0.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.rms_norm([[3.0, 4.0]], 2).round(4)
    array([[0.8485, 1.1314]])
    """
    return _normalize(x, normalized_shape, weight, None, residual, True, eps, need_sum)


def _normalize(
    given: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None,
    bias: npt.ArrayLike | None,
    residual: npt.ArrayLike | None,
    rms: bool,
    eps: SupportsFloat | None,
    need_sum: bool,
) -> FloatArray | tuple[FloatArray, FloatArray]:
    """Flatten the last axes, compute, and restore the shape."""
    x = _core.as_real(given, "x")
    shape = as_shape(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        sizes = ", ".join(map(str, shape))
        raise ValueError(f"x has shape {x.shape}, expected (..., {sizes}): normalized_shape is {normalized_shape}")
    others = {"weight": weight, "bias": bias}
    factors = [None if one is None else _core.as_real(one, name) for name, one in others.items()]
    for name, one in zip(others, factors, strict=True):
        if one is not None and one.shape != shape:
            raise ValueError(f"{name} has shape {one.shape}, expected {shape}, the normalized_shape")
    added = None if residual is None else _core.as_real(residual, "residual")
    if added is not None and added.shape != x.shape:
        raise ValueError(f"residual has shape {added.shape}, expected {x.shape} as x")
    least = float(np.finfo(x.dtype if x.dtype in FLOATS else np.float32).eps) if eps is None else eps
    lead = x.shape[: x.ndim - len(shape)]
    rows = (*(lead if len(lead) < 8 else (math.prod(lead),)), math.prod(shape))  # the core takes 8 axes
    weight, bias, residual = (
        None if one is None else one.reshape(size)
        for one, size in ((factors[0], rows[-1]), (factors[1], rows[-1]), (added, rows))
    )
    result = _core.normalize(x.reshape(rows), weight, bias, residual, rms=rms, eps=least, need_sum=need_sum)
    if isinstance(result, tuple):
        normalized, total = result
        return normalized.reshape(x.shape), total.reshape(x.shape)
    return result.reshape(x.shape)


def as_shape(normalized_shape: Shape) -> tuple[int, ...]:
    """Read a normalized_shape."""
    if isinstance(normalized_shape, Sequence):
        return tuple(as_index(size, f"normalized_shape[{n}]") for n, size in enumerate(normalized_shape))
    return (as_index(normalized_shape, "normalized_shape", "an int or a sequence of ints"),)

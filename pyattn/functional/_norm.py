"""Layer and RMS normalisation, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, SupportsFloat, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import FLOATS, as_choices, as_index
from pyattn._util.typing import FloatArray
from pyattn.functional._upstream import as_alike, round_like

__all__ = ["NormGradients", "as_shape", "layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"]

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


class NormGradients(NamedTuple):
    """Gradients of `layer_norm` and `rms_norm`; None where not asked for.

    Attributes
    ----------
    x : ndarray or None, (..., normalized_shape)
        Of x's dtype if that is a half; else float64 for float64, float32 for float32.
    weight, bias : ndarray or None, normalized_shape
        Sums over all rows: float64 for float64, else float32.

    Examples
    --------
    >>> from pyattn import functional as F
    >>> of_x, of_weight, of_bias = F.layer_norm_backward([[1.0, 2.0]], [[3.0, 5.0]], 2)
    >>> of_bias
    array([1., 2.])
    """

    x: FloatArray | None
    weight: FloatArray | None
    bias: FloatArray | None


def layer_norm_backward(
    grad_output: npt.ArrayLike,
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    eps: SupportsFloat = 1e-5,
    *,
    need: str | Iterable[str] = ("x", "weight", "bias"),
) -> NormGradients:
    """Compute the gradients of `layer_norm`, without a residual.

    Mean and variance are computed again, so x is all that a training loop saves. Gradients are bit-identical for any
    number of threads, and grad_x of a row for any other rows.

    Parameters
    ----------
    grad_output : array_like, (..., normalized_shape)
        Gradient of the loss with respect to the result.
    x : array_like, (..., normalized_shape)
        As in the forward call, like all arguments up to `eps`.
    normalized_shape : int or sequence of int
        The last axes of x.
    weight : array_like, normalized_shape, optional
        Default: None, 1, whose gradient is that of a weight of ones.
    eps : float
        0 or more. Default: 1e-5.
    need : str or iterable of str
        Which gradients to return. Default: ("x", "weight", "bias").

    Returns
    -------
    NormGradients
        A tuple (x, weight, bias).

    Raises
    ------
    TypeError
        An array does not hold real numbers.
    ValueError
        Shapes disagree; eps is negative; need names something else.

    Notes
    -----
    With ``r = 1 / sqrt(variance + eps)``, ``n = (x - mean) * r`` and ``g = grad_output * weight``::

        grad_x = r * (g - mean(g) - n * mean(g * n))
        grad_weight = sum(grad_output * n)     grad_bias = sum(grad_output)

    Means are taken over the axes of normalized_shape, sums over all others. The formulas are those of Ioffe and
    Szegedy, "Batch normalization" (2015), section 3, for the axes of Ba et al., "Layer normalization" (2016).

    Examples
    --------
    >>> import pyattn
    >>> grad = pyattn.functional.layer_norm_backward([[1.0, 0.0, 0.0]], [[1.0, 2.0, 4.0]], 3)
    >>> grad.x.round(4)
    array([[ 0.2291, -0.3436,  0.1145]])
    >>> grad.weight.round(4)
    array([-1.069,  0.   ,  0.   ])
    """
    return _normalize_backward(grad_output, x, normalized_shape, weight, False, eps, need, ("x", "weight", "bias"))


def rms_norm_backward(
    grad_output: npt.ArrayLike,
    x: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None = None,
    eps: SupportsFloat | None = None,
    *,
    need: str | Iterable[str] = ("x", "weight"),
) -> NormGradients:
    """Compute the gradients of `rms_norm`, without a residual.

    The mean square is computed again, so x is all that a training loop saves. Gradients are bit-identical for any
    number of threads, and grad_x of a row for any other rows.

    Parameters
    ----------
    grad_output : array_like, (..., normalized_shape)
        Gradient of the loss with respect to the result.
    x : array_like, (..., normalized_shape)
        As in the forward call, like all arguments up to `eps`.
    normalized_shape : int or sequence of int
        The last axes of x.
    weight : array_like, normalized_shape, optional
        Default: None, 1, whose gradient is that of a weight of ones.
    eps : float, optional
        0 or more. Default: that of `rms_norm`.
    need : str or iterable of str
        Which gradients to return. Default: ("x", "weight").

    Returns
    -------
    NormGradients
        A tuple (x, weight, None).

    Raises
    ------
    TypeError
        An array does not hold real numbers.
    ValueError
        Shapes disagree; eps is negative; need names something else.

    Notes
    -----
    With ``r = 1 / sqrt(mean(x**2) + eps)``, ``n = x * r`` and ``g = grad_output * weight``::

        grad_x = r * (g - n * mean(g * n))     grad_weight = sum(grad_output * n)

    Means are taken over the axes of normalized_shape, the sum over all others: the derivative of the formula of Zhang
    and Sennrich, "Root mean square layer normalization" (2019).

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.rms_norm_backward([[1.0, 0.0]], [[3.0, 4.0]], 2, need="x").x.round(4)
    array([[ 0.181 , -0.1358]])
    """
    return _normalize_backward(grad_output, x, normalized_shape, weight, True, eps, need, ("x", "weight"))


def _normalize_backward(
    grad_output: npt.ArrayLike,
    given: npt.ArrayLike,
    normalized_shape: Shape,
    weight: npt.ArrayLike | None,
    rms: bool,
    eps: SupportsFloat | None,
    need: str | Iterable[str],
    known: tuple[str, ...],
) -> NormGradients:
    """Flatten the last axes, compute, and restore the shapes."""
    names = as_choices(need, "need", known)
    x = _core.as_real(given, "x")
    shape = _last_axes(x, normalized_shape)
    factor = _factor(weight, "weight", shape)
    upstream, array, _ = as_alike(grad_output, x, "x")
    rows = _rows_of(x, shape)
    found = _core.normalize_backward(
        upstream.reshape(rows),
        array.reshape(rows),
        None if factor is None else factor.reshape(rows[-1]),
        rms=rms,
        eps=_eps_of(x, eps),
        need_weight="weight" in names,
        need_bias="bias" in names,
    )
    of_x, of_weight, of_bias = found
    return NormGradients(
        round_like(of_x.reshape(x.shape), x.dtype) if "x" in names else None,
        None if of_weight is None else of_weight.reshape(shape),
        None if of_bias is None else of_bias.reshape(shape),
    )


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
    shape = _last_axes(x, normalized_shape)
    factors = [_factor(one, name, shape) for name, one in {"weight": weight, "bias": bias}.items()]
    added = None if residual is None else _core.as_real(residual, "residual")
    if added is not None and added.shape != x.shape:
        raise ValueError(f"residual has shape {added.shape}, expected {x.shape} as x")
    least, rows = _eps_of(x, eps), _rows_of(x, shape)
    weight, bias, residual = (
        None if one is None else one.reshape(size)
        for one, size in ((factors[0], rows[-1]), (factors[1], rows[-1]), (added, rows))
    )
    result = _core.normalize(x.reshape(rows), weight, bias, residual, rms=rms, eps=least, need_sum=need_sum)
    if isinstance(result, tuple):
        normalized, total = result
        return normalized.reshape(x.shape), total.reshape(x.shape)
    return result.reshape(x.shape)


def _last_axes(x: FloatArray, normalized_shape: Shape) -> tuple[int, ...]:
    """Read the normalized_shape, which must be x's last axes."""
    shape = as_shape(normalized_shape)
    if not shape or x.shape[-len(shape) :] != shape:
        sizes = ", ".join(map(str, shape))
        raise ValueError(f"x has shape {x.shape}, expected (..., {sizes}): normalized_shape is {normalized_shape}")
    return shape


def _factor(given: npt.ArrayLike | None, name: str, shape: tuple[int, ...]) -> FloatArray | None:
    """Read a weight or bias."""
    one = None if given is None else _core.as_real(given, name)
    if one is not None and one.shape != shape:
        raise ValueError(f"{name} has shape {one.shape}, expected {shape}, the normalized_shape")
    return one


def _eps_of(x: FloatArray, eps: SupportsFloat | None) -> SupportsFloat:
    """Return eps, or its default for x."""
    return float(np.finfo(x.dtype if x.dtype in FLOATS else np.float32).eps) if eps is None else eps


def _rows_of(x: FloatArray, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return x's shape with one last axis for those of normalized_shape, and the core's 8 axes at most."""
    lead = x.shape[: x.ndim - len(shape)]
    return (*(lead if len(lead) < 8 else (math.prod(lead),)), math.prod(shape))


def as_shape(normalized_shape: Shape) -> tuple[int, ...]:
    """Read a normalized_shape."""
    if isinstance(normalized_shape, Sequence):
        return tuple(as_index(size, f"normalized_shape[{n}]") for n, size in enumerate(normalized_shape))
    return (as_index(normalized_shape, "normalized_shape", "an int or a sequence of ints"),)

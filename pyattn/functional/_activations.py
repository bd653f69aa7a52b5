"""Activation functions and their gradients."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice
from pyattn._util.typing import FloatArray
from pyattn.functional._upstream import as_alike, round_like

__all__ = ["gelu", "gelu_backward", "silu", "silu_backward"]


def gelu(x: npt.ArrayLike, approximate: Literal["none", "tanh"] = "none") -> FloatArray:
    """Compute GELU, ``x * Phi(x)``: `torch.nn.functional.gelu` for NumPy.

    Phi is the normal distribution function. Gaussian error linear units, Hendrycks and Gimpel 2016. The error is at
    most 7 ULP, also for large negative x, where ``0.5 * x * (1 + erf(x / sqrt(2)))`` loses all digits (below -6 in
    float32).

    Parameters
    ----------
    x : array_like
        Real numbers; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are computed
        in float32, and the result is rounded to them.
    approximate : {'none', 'tanh'}
        'tanh': ``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``, as in GPT-2. Default: 'none'.

    Returns
    -------
    ndarray
        Of x's shape. -inf gives 0, its limit.

    Raises
    ------
    TypeError
        x is not an array of real numbers.
    ValueError
        approximate is something else.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.gelu([-1.0, 0.0, 1.0]).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    as_choice(approximate, "approximate", ("none", "tanh"))
    return _activate(x, "gelu" if approximate == "none" else "gelu_tanh")


def silu(x: npt.ArrayLike) -> FloatArray:
    """``x / (1 + exp(-x))``, also called swish: `torch.nn.functional.silu` for NumPy.

    Sigmoid linear units, Elfwing et al. 2017. The error is at most 4 ULP. A result below ``x * 2**-126``
    (float64: ``x * 2**-1022``) is 0.

    Parameters
    ----------
    x : array_like
        Real numbers; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are computed
        in float32, and the result is rounded to them.

    Returns
    -------
    ndarray
        Of x's shape. -inf gives 0, its limit.

    Raises
    ------
    TypeError
        x is not an array of real numbers.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.silu([-1.0, 0.0, 1.0]).round(4)
    array([-0.2689,  0.    ,  0.7311])
    """
    return _activate(x, "silu")


def gelu_backward(
    grad_output: npt.ArrayLike, x: npt.ArrayLike, approximate: Literal["none", "tanh"] = "none"
) -> FloatArray:
    """Compute the gradient of `gelu`: grad_output times the slope at x.

    The slope is ``Phi(x) + x * phi(x)``, where phi is the normal density; for 'tanh' that of the approximation. Its
    error is at most 4 ULP of ``Phi(x) + abs(x) * phi(x)``, so a large negative x keeps its digits.

    Parameters
    ----------
    grad_output : array_like
        Gradient of the loss with respect to ``gelu(x, approximate)``.
    x : array_like
        As in the forward call; of the same shape.
    approximate : {'none', 'tanh'}
        As in the forward call. Default: 'none'.

    Returns
    -------
    ndarray
        Of x's shape, and of its dtype if that is a half; else float64 for float64, float32 for float32. At -inf the
        slope is 0, its limit, where torch has NaN.

    Raises
    ------
    TypeError
        An array does not hold real numbers.
    ValueError
        Shapes differ; approximate is something else.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.gelu_backward([1.0, 1.0, 1.0], [-1.0, 0.0, 1.0]).round(4)
    array([-0.0833,  0.5   ,  1.0833])
    """
    as_choice(approximate, "approximate", ("none", "tanh"))
    return _activate_backward(grad_output, x, "gelu" if approximate == "none" else "gelu_tanh")


def silu_backward(grad_output: npt.ArrayLike, x: npt.ArrayLike) -> FloatArray:
    """Compute the gradient of `silu`: grad_output times the slope at x.

    The slope is ``s + x * s * (1 - s)``, where ``s = 1 / (1 + exp(-x))``. Its error is at most 4 ULP of
    ``s + abs(x) * s * (1 - s)``.

    Parameters
    ----------
    grad_output : array_like
        Gradient of the loss with respect to ``silu(x)``.
    x : array_like
        As in the forward call; of the same shape.

    Returns
    -------
    ndarray
        Of x's shape, and of its dtype if that is a half; else float64 for float64, float32 for float32. At -inf the
        slope is 0, its limit, where torch has NaN.

    Raises
    ------
    TypeError
        An array does not hold real numbers.
    ValueError
        Shapes differ.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.silu_backward([1.0, 1.0, 1.0], [-1.0, 0.0, 1.0]).round(4)
    array([0.0723, 0.5   , 0.9277])
    """
    return _activate_backward(grad_output, x, "silu")


def _activate(x: npt.ArrayLike, activation: str) -> FloatArray:
    return _core.activate(np.asarray(_core.as_real(x, "x"), order="C"), activation)


def _activate_backward(grad_output: npt.ArrayLike, x: npt.ArrayLike, activation: str) -> FloatArray:
    upstream, array, dtype = as_alike(grad_output, x, "x")
    gradient = _core.activate_backward(np.asarray(upstream, order="C"), np.asarray(array, order="C"), activation)
    return round_like(gradient, dtype)

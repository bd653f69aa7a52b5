"""Activation functions."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice
from pyattn._util.typing import FloatArray

__all__ = ["gelu", "silu"]


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


def _activate(x: npt.ArrayLike, activation: str) -> FloatArray:
    return _core.activate(np.asarray(_core.as_real(x, "x"), order="C"), activation)

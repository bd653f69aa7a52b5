"""Layer and RMS normalisation as modules."""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.arguments import as_finite, as_flag
from pyattn._util.halves import as_stored_dtype
from pyattn._util.typing import FloatArray
from pyattn.functional._norm import Shape, as_shape, layer_norm, rms_norm
from pyattn.nn import init
from pyattn.nn.gradients import add_gradient, recorded, running
from pyattn.nn.inputs import as_input, check_dtype
from pyattn.nn.module import Module

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(Module):
    """Normalise over the last axes: `torch.nn.LayerNorm` for NumPy.

    ``(x - mean) / sqrt(variance + eps) * weight + bias``, with mean and variance of each row.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The last axes of an input, over which mean and variance are taken.
    eps : float
        0 or more. Default: 1e-5.
    elementwise_affine : bool
        With a weight, and with a bias unless bias=False. Default: True.
    bias : bool
        With a bias. Default: True.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.

    Attributes
    ----------
    weight : ndarray, normalized_shape, or None
        Initially 1.
    bias : ndarray, normalized_shape, or None
        Initially 0.

    Raises
    ------
    TypeError
        An argument has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        normalized_shape is empty or has a size below 1, or eps is negative or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> norm = nn.LayerNorm(3)
    >>> norm
    LayerNorm((3,), eps=1e-05, elementwise_affine=True, bias=True)
    >>> norm(np.array([[1, 2, 3]], np.float32)).round(4)
    array([[-1.2247,  0.    ,  1.2247]], dtype=float32)
    """

    weight: FloatArray | None
    bias: FloatArray | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: SupportsFloat = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = as_finite(eps, "eps", least=0)
        self.elementwise_affine = as_flag(elementwise_affine, "elementwise_affine")
        with_bias, kind = as_flag(bias, "bias") and self.elementwise_affine, as_stored_dtype(dtype)
        self.register_parameter("weight", np.empty(self.normalized_shape, kind) if self.elementwise_affine else None)
        self.register_parameter("bias", np.empty(self.normalized_shape, kind) if with_bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to 1 and bias to 0, in place."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    @recorded
    def forward(self, x: npt.ArrayLike) -> FloatArray:
        """Normalise the last axes.

        Parameters
        ----------
        x : array_like, (..., normalized_shape)
            Of the weight's dtype; float32 mixes with float16 or bfloat16. Without a weight, any of them or float64.

        Returns
        -------
        ndarray, (..., normalized_shape)
            Of the same dtype.

        Raises
        ------
        TypeError
            x has another dtype.
        ValueError
            Its last axes have other sizes.
        """
        given = x if self.weight is None else as_input(x, "x", self.weight.dtype)
        y = layer_norm(given, self.normalized_shape, self.weight, self.bias, self.eps)

        def backward(grad: FloatArray) -> tuple[FloatArray]:
            need = ["x", *(name for name in ("weight", "bias") if vars(self)[name] is not None)]
            found = functional.layer_norm_backward(grad, given, self.normalized_shape, self.weight, self.eps, need=need)
            return _take(self, found)

        return running().step(y if self.weight is None else check_dtype(y, self, self.weight.dtype), (x,), backward)

    def extra_repr(self) -> str:
        """Return the sizes, as in torch's repr.

        Returns
        -------
        str
            Of one line.
        """
        affine = f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


class RMSNorm(Module):
    """``x / sqrt(mean(x**2) + eps) * weight``: `torch.nn.RMSNorm` for NumPy.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        The last axes of an input, over which the mean is taken.
    eps : float, optional
        0 or more. Default: the distance from 1 to the next number of x's dtype, or of float32 for float16 and bfloat16.
    elementwise_affine : bool
        With a weight. Default: True.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.

    Attributes
    ----------
    weight : ndarray, normalized_shape, or None
        Initially 1.

    Raises
    ------
    TypeError
        An argument has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        normalized_shape is empty or has a size below 1, or eps is negative or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> norm = nn.RMSNorm(2)
    >>> norm
    RMSNorm((2,), eps=None, elementwise_affine=True)
    >>> norm(np.array([[3, 4]], np.float32)).round(4)
    array([[0.8485, 1.1314]], dtype=float32)
    """

    weight: FloatArray | None

    def __init__(
        self,
        normalized_shape: Shape,
        eps: SupportsFloat | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = None if eps is None else as_finite(eps, "eps", least=0)
        self.elementwise_affine = as_flag(elementwise_affine, "elementwise_affine")
        kind = as_stored_dtype(dtype)
        self.register_parameter("weight", np.empty(self.normalized_shape, kind) if self.elementwise_affine else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set weight to 1, in place."""
        if self.weight is not None:
            init.ones_(self.weight)

    @recorded
    def forward(self, x: npt.ArrayLike) -> FloatArray:
        """Normalise the last axes.

        Parameters
        ----------
        x : array_like, (..., normalized_shape)
            Of the weight's dtype; float32 mixes with float16 or bfloat16. Without a weight, any of them or float64.

        Returns
        -------
        ndarray, (..., normalized_shape)
            Of the same dtype.

        Raises
        ------
        TypeError
            x has another dtype.
        ValueError
            Its last axes have other sizes.
        """
        given = x if self.weight is None else as_input(x, "x", self.weight.dtype)

        def backward(grad: FloatArray) -> tuple[FloatArray]:
            need = ["x"] if self.weight is None else ["x", "weight"]
            found = functional.rms_norm_backward(grad, given, self.normalized_shape, self.weight, self.eps, need=need)
            return _take(self, found)

        return running().step(rms_norm(given, self.normalized_shape, self.weight, self.eps), (x,), backward)

    def extra_repr(self) -> str:
        """Return the sizes, as in torch's repr.

        Returns
        -------
        str
            Of one line.
        """
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


def _take(module: Module, found: Any) -> tuple[FloatArray]:
    """Add the gradients of weight and bias to those of the module, and return that of the input."""
    for name in ("weight", "bias"):
        grad = getattr(found, name, None)
        if grad is not None:
            add_gradient(module, name, grad)
    return (found.x,)


def _sizes(normalized_shape: Shape) -> tuple[int, ...]:
    shape = as_shape(normalized_shape)
    if not shape or min(shape) < 1:
        raise ValueError(f"normalized_shape is {normalized_shape}, expected one size or more, each 1 or more")
    return shape

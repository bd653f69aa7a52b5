"""The linear layer as a module."""

from __future__ import annotations

import math
from typing import SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.arguments import as_count, as_flag
from pyattn._util.halves import as_stored_dtype
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray
from pyattn.nn import init
from pyattn.nn.gradients import add_product, add_sum, recorded, running
from pyattn.nn.inputs import as_input, check_dtype, check_mixture
from pyattn.nn.module import Module

__all__ = ["Linear"]

_Self = TypeVar("_Self", bound="Linear")


class Linear(Module):
    """``y = x @ weight.T + bias``: `torch.nn.Linear` for NumPy.

    Parameters
    ----------
    in_features : int
        Size of the last axis of an input.
    out_features : int
        Size of the last axis of an output.
    bias : bool
        With a bias. Default: True.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    weight : ndarray, (out_features, in_features)
        Initially from the uniform distribution within ``1 / sqrt(in_features)`` of 0. Stored as (in_features,
        out_features), like the W of ``x @ W``. Either memory order is fast, and gives the same bits: see
        `Module.to_order`.
    bias : ndarray, (out_features,), or None
        Initialised like weight.

    Raises
    ------
    TypeError
        An argument has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A size or rng is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> linear = nn.Linear(3, 2, rng=0)
    >>> linear
    Linear(in_features=3, out_features=2, bias=True)
    >>> linear(np.zeros((5, 3), np.float32)).shape
    (5, 2)
    """

    weight: FloatArray
    bias: FloatArray | None

    _linear_weights = ("weight",)

    def __init__(
        self,
        in_features: SupportsIndex,
        out_features: SupportsIndex,
        bias: bool = True,
        *,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        self.in_features = as_count(in_features, "in_features", least=0)
        self.out_features = as_count(out_features, "out_features", least=0)
        kind = as_stored_dtype(dtype)
        self.weight = np.empty((self.out_features, self.in_features), kind, order="F")
        self.register_parameter("bias", np.empty(self.out_features, kind) if as_flag(bias, "bias") else None)
        self.reset_parameters(rng)

    @classmethod
    def from_arrays(cls: type[_Self], weight: FloatArray, bias: FloatArray | None = None) -> _Self:
        """Make a layer whose parameters are these arrays, without copying them.

        Parameters
        ----------
        weight : ndarray, (out_features, in_features)
            float16, bfloat16, float32 or float64.
        bias : ndarray, (out_features,), optional
            Of weight's dtype; float32 also goes with float16 or bfloat16. Default: None, without one.

        Returns
        -------
        Linear
            With `weight` and `bias` themselves.

        Raises
        ------
        TypeError
            weight or bias is not an array of one of these dtypes, or they have two that do not mix.
        ValueError
            Their shapes disagree.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> weight = np.eye(2)
        >>> linear = nn.Linear.from_arrays(weight)
        >>> weight[0, 1] = 10
        >>> linear(np.array([1.0, 2.0]))
        array([21.,  2.])
        """
        linear = cls.__new__(cls)
        linear.register_parameter("weight", weight)
        linear.register_parameter("bias", bias)
        if weight.ndim != 2:
            raise ValueError(f"weight has shape {weight.shape}, expected 2 axes: (out_features, in_features)")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"bias has shape {bias.shape}, expected {weight.shape[:1]}: weight has {weight.shape}")
        check_mixture([("weight", weight)] if bias is None else [("weight", weight), ("bias", bias)])
        linear.out_features, linear.in_features = weight.shape
        return linear

    def reset_parameters(self, rng: RNG = None) -> None:
        """Initialise weight, then bias, again, in place.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        generator = as_generator(rng)
        bound = 1 / math.sqrt(max(1, self.in_features))
        init.uniform_(self.weight, -bound, bound, rng=generator)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound, rng=generator)

    @recorded
    def forward(self, x: npt.ArrayLike) -> FloatArray:
        """Compute ``x @ weight.T + bias``.

        Parameters
        ----------
        x : array_like, (..., in_features)
            Of the weight's dtype; float32 mixes with float16 or bfloat16.

        Returns
        -------
        ndarray, (..., out_features)
            Of the same dtype.

        Raises
        ------
        TypeError
            x's dtype does not mix with weight's, or bias has a larger one.
        ValueError
            The last axis of x is not in_features long.
        """
        rows = as_input(x, "x", self.weight.dtype)
        if rows.shape[-1:] != self.weight.shape[-1:]:
            raise ValueError(f"x has shape {rows.shape}, expected (..., {self.weight.shape[-1]}): in_features is last")
        y = check_dtype(functional.linear(rows, self.weight, self.bias), self, self.weight.dtype)

        def backward(grad: FloatArray) -> tuple[FloatArray]:
            add_product(self, "weight", rows, grad)
            add_sum(self, "bias", grad)
            return (functional.linear(grad, self.weight.T),)

        return running().step(y, (x,), backward)

    def extra_repr(self) -> str:
        """Return the sizes, as in torch's repr.

        Returns
        -------
        str
            Of one line.
        """
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

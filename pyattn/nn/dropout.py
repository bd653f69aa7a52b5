"""Dropout as a module."""

from __future__ import annotations

from typing import SupportsFloat

import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_probability
from pyattn._util.typing import RNG, FloatArray
from pyattn.nn.gradients import drop, recorded
from pyattn.nn.module import Module

__all__ = ["Dropout"]


class Dropout(Module):
    """Set elements to 0 by chance in training: `torch.nn.Dropout` for NumPy.

    In eval mode, the inputs are returned unchanged.

    Parameters
    ----------
    p : float
        Probability that an element becomes 0; the others are divided by ``1 - p``. Default: 0.5.

    Raises
    ------
    TypeError
        p is not a number.
    ValueError
        p is not a probability.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> dropout = nn.Dropout(0.25)
    >>> dropout(np.ones((2, 6)), rng=0).round(4)
    array([[1.3333, 1.3333, 1.3333, 1.3333, 1.3333, 1.3333],
           [1.3333, 0.    , 1.3333, 1.3333, 1.3333, 1.3333]])
    >>> dropout.eval()(np.ones(3))
    array([1., 1., 1.])
    """

    def __init__(self, p: SupportsFloat = 0.5) -> None:
        super().__init__()
        self.p = as_probability(p, "p")

    @recorded
    def forward(self, x: npt.ArrayLike, *, rng: RNG = None) -> FloatArray:
        """Drop in training, as `pyattn.functional.dropout` does.

        Parameters
        ----------
        x : array_like, (..., features)
            float16, bfloat16, float32 or float64.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        ndarray, (..., features)
            Of the same dtype; x itself where nothing is dropped.

        Raises
        ------
        TypeError
            x is not an array of real numbers.
        """
        return drop(_core.as_real(x, "x"), as_probability(self.p, "p") if self.training else 0.0, rng)

    def extra_repr(self) -> str:
        """Return the probability and torch's ``inplace=False``, as in torch's repr.

        Returns
        -------
        str
            Of one line.
        """
        return f"p={self.p:g}, inplace=False"

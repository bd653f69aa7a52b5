"""Positional encodings as a module."""

from __future__ import annotations

import functools
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn import _core
from pyattn._flags import as_flag
from pyattn.dropping import RNG, as_probability, dropout
from pyattn.functional import FloatArray
from pyattn.nn import init
from pyattn.nn.dtypes import as_count, as_float_dtype, as_input
from pyattn.nn.module import Module
from pyattn.positional import positional_encoding

__all__ = ["PositionalEncoding"]


class PositionalEncoding(Module):
    """Adds to each input what tells its position, sines and cosines or vectors that are learned; then dropout.

    Parameters
    ----------
    d_model : int
        Size of an input.
    max_len : int
        How many positions there are, from 0 on. Default: 5000. Sines and cosines are computed once for all of them, and
        for all modules of the same sizes.
    dropout : float
        Probability that an element of the sum becomes 0, in training. Default: 0.1, as published.
    learned : bool
        With a parameter, in place of `pyattn.positional_encoding`. Default: False.
    batch_first : bool
        Inputs are (..., length, d_model), the default; else (length, ..., d_model), as torch's layers have them unless
        they are told.
    base : float
        Wavelengths of sines and cosines go from 2 pi to 2 pi times it. Default: 10000.0, as published.
    dtype : dtype
        Of what is learned: float32, the default, or float64. Sines and cosines take the dtype of the input.
    rng : None, int, SeedSequence or Generator
        Where the first numbers of what is learned come from. Default: None, others each time.

    Attributes
    ----------
    weight : ndarray, (max_len, d_model), or None
        What is learned; at first drawn from the normal distribution of mean 0 and standard deviation 0.02, as in BERT
        and GPT-2. None for sines and cosines, of which nothing is in the `Module.state_dict`.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> positions = nn.PositionalEncoding(4).eval()
    >>> x = np.zeros((1, 3, 4), np.float32)
    >>> positions(x).round(4)
    array([[[ 0.    ,  1.    ,  0.    ,  1.    ],
            [ 0.8415,  0.5403,  0.01  ,  1.    ],
            [ 0.9093, -0.4161,  0.02  ,  0.9998]]], dtype=float32)
    >>> positions(x[:, :1], start=2).round(4)
    array([[[ 0.9093, -0.4161,  0.02  ,  0.9998]]], dtype=float32)
    """

    weight: FloatArray | None

    def __init__(
        self,
        d_model: SupportsIndex,
        max_len: SupportsIndex = 5000,
        dropout: SupportsFloat = 0.1,
        learned: bool = False,
        batch_first: bool = True,
        *,
        base: SupportsFloat = 10000.0,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        self.d_model = as_count(d_model, "d_model", least=0)
        self.max_len = as_count(max_len, "max_len", least=0)
        self.dropout = as_probability(dropout, "dropout")
        self.learned, self.batch_first = as_flag(learned, "learned"), as_flag(batch_first, "batch_first")
        positional_encoding(0, self.d_model, base=base)  # tells at once what is wrong with base
        self.base = float(base)
        kind = as_float_dtype(dtype)
        self.register_parameter("weight", np.empty((self.max_len, self.d_model), kind) if learned else None)
        self.reset_parameters(rng)

    def reset_parameters(self, rng: RNG = None) -> None:
        """Draw what is learned anew, into the array that is there.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Where the numbers come from. Default: None, others each time.
        """
        if self.weight is not None:
            init.normal_(self.weight, std=0.02, rng=rng)

    def rows(self, length: SupportsIndex, start: SupportsIndex = 0, dtype: npt.DTypeLike = np.float32) -> FloatArray:
        """Give what is added, for instance as the residual of `pyattn.embedding`.

        Parameters
        ----------
        length : int
            How many positions.
        start : int
            The first of them. Default: 0.
        dtype : dtype
            Of sines and cosines: float32, the default, or float64. What is learned has its own.

        Returns
        -------
        ndarray, (length, d_model)
            A view: of `weight`, or of numbers that are read-only.

        Raises
        ------
        TypeError
            length or start is no integer, or dtype another one.
        ValueError
            One of them is negative, or there are not so many positions.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> from pyattn import nn
        >>> embedding, positions = nn.Embedding(10, 4), nn.PositionalEncoding(4)
        >>> ids = np.array([[1, 2, 3], [4, 5, 6]])
        >>> pyattn.embedding(ids, embedding.weight, scale=4**0.5, residual=positions.rows(3)).shape
        (2, 3, 4)
        """
        count, first = as_count(length, "length", least=0), as_count(start, "start", least=0)
        if first + count > self.max_len:
            raise ValueError(
                f"a length of {count} from position {first} on needs {first + count} positions, and max_len is "
                f"{self.max_len}; make the module with a larger one"
            )
        table = self.weight
        if table is None:
            table = _sinusoids(self.max_len, self.d_model, self.base, as_float_dtype(dtype).name)
        return table[first : first + count]

    def forward(
        self,
        input: npt.ArrayLike,  # noqa: A002 (torch's name)
        start: SupportsIndex = 0,
        *,
        rng: RNG = None,
    ) -> FloatArray:
        """Add to each input what tells its position; in training, drop from the sum.

        Parameters
        ----------
        input : array_like, (..., length, d_model)
            (length, ..., d_model) unless `batch_first`. Of the weight's dtype; without one, float32 or float64.
        start : int
            The position of the first input, as in decoding with a cache. Default: 0.
        rng : None, int, SeedSequence or Generator
            Where dropout's numbers come from, in training. Default: None, others each time.

        Returns
        -------
        ndarray
            Of the shape and dtype of input.

        Raises
        ------
        TypeError
            input has another dtype.
        ValueError
            Its last axis has another size, or there are not so many positions.
        """
        x = _core.as_real(input, "input") if self.weight is None else as_input(input, "input", self.weight.dtype)
        axes = f"(..., length, {self.d_model})" if self.batch_first else f"(length, ..., {self.d_model})"
        if x.ndim < 2 or x.shape[-1] != self.d_model:
            raise ValueError(f"input has shape {x.shape}, expected {axes}: d_model is last")
        axis = x.ndim - 2 if self.batch_first else 0
        rows = self.rows(x.shape[axis], start, x.dtype)
        between = (1,) * (x.ndim - 2 - axis)  # axes behind the length that rows are the same along
        y = np.asarray(x + rows.reshape(len(rows), *between, self.d_model))
        return dropout(y, self.dropout, self.training, rng=rng)

    def extra_repr(self) -> str:
        """Tell the sizes, and what is not as usual.

        Returns
        -------
        str
            Of one line.
        """
        usual: dict[str, Any] = {"learned": False, "batch_first": True, "base": 10000.0}
        others = [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        return ", ".join([str(self.d_model), f"max_len={self.max_len}", f"dropout={self.dropout:g}", *others])


@functools.lru_cache(maxsize=4)
def _sinusoids(max_len: int, d_model: int, base: float, dtype: str) -> FloatArray:
    """Keep some tables for all modules together: a module holds no array but its parameters."""
    table = positional_encoding(max_len, d_model, base=base, dtype=dtype)
    table.flags.writeable = False
    return table

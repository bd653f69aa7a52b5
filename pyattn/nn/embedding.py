"""Embeddings as a module."""

from __future__ import annotations

from typing import Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.arguments import as_count, as_index
from pyattn._util.halves import as_float32, as_stored_dtype
from pyattn._util.typing import RNG, FloatArray
from pyattn.nn import init
from pyattn.nn.gradients import add_gradient, recorded, running, sum_to
from pyattn.nn.inputs import check_parameter
from pyattn.nn.module import Module

__all__ = ["Embedding"]

_Self = TypeVar("_Self", bound="Embedding")


class Embedding(Module):
    """A vector for each id: `torch.nn.Embedding` for NumPy.

    Parameters
    ----------
    num_embeddings : int
        Number of ids, counted from 0.
    embedding_dim : int
        Size of a vector.
    padding_idx : int, optional
        Id of the padding token, whose vector is initially zero; a negative one counts from the end. Default: None.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    weight : ndarray, (num_embeddings, embedding_dim)
        Initially from the normal distribution of mean 0 and standard deviation 1.
    padding_idx : int or None
        Counted from 0.

    Raises
    ------
    TypeError
        An argument has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        padding_idx is out of range, or a size or rng is negative.

    Examples
    --------
    >>> from pyattn import nn
    >>> embedding = nn.Embedding(10, 4, padding_idx=0, rng=0)
    >>> embedding
    Embedding(10, 4, padding_idx=0)
    >>> embedding([[3, 7, 0]]).shape
    (1, 3, 4)
    >>> embedding(0)
    array([0., 0., 0., 0.], dtype=float32)
    """

    weight: FloatArray
    padding_idx: int | None

    _widens_halves = False  # ids are not floats

    def __init__(
        self,
        num_embeddings: SupportsIndex,
        embedding_dim: SupportsIndex,
        padding_idx: SupportsIndex | None = None,
        *,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        self.num_embeddings = as_count(num_embeddings, "num_embeddings", least=0)
        self.embedding_dim = as_count(embedding_dim, "embedding_dim", least=0)
        self.padding_idx = _as_padding_idx(padding_idx, self.num_embeddings)
        self.weight = np.empty((self.num_embeddings, self.embedding_dim), as_stored_dtype(dtype))
        self.reset_parameters(rng)

    @classmethod
    def from_pretrained(cls: type[_Self], embeddings: FloatArray, padding_idx: SupportsIndex | None = None) -> _Self:
        """Make a layer whose weight is this array, without copying it.

        No row is set to zero.

        Parameters
        ----------
        embeddings : ndarray, (num_embeddings, embedding_dim)
            float16, bfloat16, float32 or float64.
        padding_idx : int, optional
            The id of padding. Default: None.

        Returns
        -------
        Embedding
            With `embeddings` itself as its weight.

        Raises
        ------
        TypeError
            embeddings is not an array of one of these dtypes, or padding_idx is not an int.
        ValueError
            embeddings does not have two axes, or padding_idx is out of range.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> nn.Embedding.from_pretrained(np.eye(3))([2, 0])
        array([[0., 0., 1.],
               [1., 0., 0.]])
        """
        check_parameter(embeddings, "embeddings")
        if embeddings.ndim != 2:
            raise ValueError(
                f"embeddings has shape {embeddings.shape}, expected 2 axes: (num_embeddings, embedding_dim)"
            )
        embedding = cls.__new__(cls)
        embedding.register_parameter("weight", embeddings)
        embedding.num_embeddings, embedding.embedding_dim = embeddings.shape
        embedding.padding_idx = _as_padding_idx(padding_idx, embedding.num_embeddings)
        return embedding

    def reset_parameters(self, rng: RNG = None) -> None:
        """Initialise the weight again, in place, and set the row of padding to zero.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        init.normal_(self.weight, rng=rng)
        if self.padding_idx is not None:
            self.weight[self.padding_idx] = 0

    @recorded
    def forward(self, input: npt.ArrayLike) -> FloatArray:
        """Look up ``weight[input]``.

        Parameters
        ----------
        input : array_like of int, (...)
            Ids from 0 to ``num_embeddings - 1``.

        Returns
        -------
        ndarray, (..., embedding_dim)
            Exact copies of rows of weight, in its dtype, but in float32 where weight is float16 or bfloat16.

        Raises
        ------
        TypeError
            input does not hold integers.
        ValueError
            An id is out of range.
        """
        return self._look_up(input)

    def _look_up(self, ids: npt.ArrayLike, scale: float = 1.0, residual: FloatArray | None = None) -> FloatArray:
        """Compute ``scale * weight[ids] + residual``, which is broadcast."""
        y = as_float32(functional.embedding(ids, self.weight, scale=scale, residual=residual))

        def backward(grad: FloatArray) -> tuple[FloatArray | None]:
            options: dict[str, Any] = {"padding_idx": self.padding_idx, "scale": scale}
            add_gradient(self, "weight", functional.embedding_backward(grad, ids, len(self.weight), **options))
            return (None if residual is None else sum_to(grad, residual.shape),)

        return running().step(y, (residual,), backward)

    def extra_repr(self) -> str:
        """Return the sizes, as in torch's repr.

        Returns
        -------
        str
            Of one line.
        """
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


def _as_padding_idx(index: SupportsIndex | None, num_embeddings: int) -> int | None:
    """Count from 0, as torch's modules do."""
    if index is None:
        return None
    number = as_index(index, "padding_idx")
    if not -num_embeddings <= number < num_embeddings:
        raise ValueError(
            f"padding_idx is {number}, expected {-num_embeddings} <= padding_idx < {num_embeddings}: "
            f"num_embeddings is {num_embeddings}"
        )
    return number % num_embeddings

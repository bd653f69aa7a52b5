"""Positions as modules: encodings that are added to inputs, and rotary embedding of queries and keys."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_count, as_flag, as_probability
from pyattn._util.halves import as_float32, as_stored_dtype, compute_dtype
from pyattn._util.typing import RNG, FloatArray, Layout, Rotation
from pyattn.functional._positions import positional_encoding
from pyattn.functional._rotary import rotary_embedding
from pyattn.functional._rotary_frequencies import (
    RotaryFrequencies,
    depends_on_length,
    rotary_frequencies,
    sequence_length,
)
from pyattn.nn import init
from pyattn.nn.gradients import drop, recorded, rows_of, running, sum_to
from pyattn.nn.inputs import as_input
from pyattn.nn.module import Module

__all__ = ["PositionalEncoding", "RotaryEmbedding"]


class PositionalEncoding(Module):
    """Adds a positional encoding to the inputs, sinusoidal or learned; then dropout.

    Parameters
    ----------
    embed_dim : int
        Size of an input.
    max_length : int
        Number of positions, counted from 0. Default: 5000. The sinusoidal table is computed once and shared by all
        modules of the same sizes.
    dropout : float
        Probability that an element of the sum becomes 0, in training. Default: 0.1, as published.
    learned : bool
        Learn the encoding as a parameter, in place of `pyattn.functional.positional_encoding`. Default: False.
    batch_first : bool
        Inputs are (..., length, embed_dim), the default, else (length, ..., embed_dim), the default of torch's layers.
    base : float
        Wavelengths of the sinusoids range from 2 pi to 2 pi * base. Default: 10000.0, as published.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial weight, if learned. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    weight : ndarray, (max_length, embed_dim), or None
        The learned encoding, initially from the normal distribution of mean 0 and standard deviation 0.02, as in BERT
        and GPT-2. None for sinusoids, which are not in the `Module.state_dict`.

    Raises
    ------
    TypeError
        An argument has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A size or rng is negative, dropout is not a probability, or base is not a finite number above 0.

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
        embed_dim: SupportsIndex,
        max_length: SupportsIndex = 5000,
        dropout: SupportsFloat = 0.1,
        learned: bool = False,
        batch_first: bool = True,
        *,
        base: SupportsFloat = 10000.0,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        self.embed_dim = as_count(embed_dim, "embed_dim", least=0)
        self.max_length = as_count(max_length, "max_length", least=0)
        self.dropout = as_probability(dropout, "dropout")
        self.learned, self.batch_first = as_flag(learned, "learned"), as_flag(batch_first, "batch_first")
        positional_encoding(0, self.embed_dim, base=base)  # checks base early
        self.base = float(base)
        kind = as_stored_dtype(dtype)
        self._set_dtype(kind)
        table = np.empty((self.max_length, self.embed_dim), kind) if learned else None
        self.register_parameter("weight", table)
        self.reset_parameters(rng)

    def reset_parameters(self, rng: RNG = None) -> None:
        """Initialise a learned weight again, in place.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        if self.weight is not None:
            init.normal_(self.weight, std=0.02, rng=rng)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the encoding, and of inputs; sinusoids are float32 or float64."""
        return self._dtype if self.weight is None else self.weight.dtype.newbyteorder("=")

    def _set_dtype(self, dtype: np.dtype[Any]) -> None:
        self._dtype = compute_dtype(dtype)

    def rows(self, length: SupportsIndex, start: SupportsIndex = 0, dtype: npt.DTypeLike | None = None) -> FloatArray:
        """Return the encoding of some positions.

        It can be the residual of `pyattn.functional.embedding`, for instance.

        Parameters
        ----------
        length : int
            Number of positions.
        start : int
            The first position. Default: 0.
        dtype : dtype, optional
            Of sinusoids, in place of the module's. Default: None. A learned weight has its own.

        Returns
        -------
        ndarray, (length, embed_dim)
            A view of `weight`, or a read-only view of the sinusoidal table.

        Raises
        ------
        TypeError
            length or start is not an integer, or dtype is not float16, bfloat16, float32 or float64.
        ValueError
            One of them is negative, or the last position is beyond max_length.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> from pyattn import nn
        >>> embedding, positions = nn.Embedding(10, 4), nn.PositionalEncoding(4)
        >>> ids = np.array([[1, 2, 3], [4, 5, 6]])
        >>> pyattn.functional.embedding(ids, embedding.weight, scale=4**0.5, residual=positions.rows(3)).shape
        (2, 3, 4)
        """
        count, first = as_count(length, "length", least=0), as_count(start, "start", least=0)
        if first + count > self.max_length:
            raise ValueError(
                f"length {count} from position {first} needs {first + count} positions, but max_length is "
                f"{self.max_length}; make the module with a larger max_length"
            )
        table = self.weight
        if table is None:
            kind = self._dtype if dtype is None else as_stored_dtype(dtype)
            table = _sinusoids(self.max_length, self.embed_dim, self.base, kind.name)
        return table[first : first + count]

    @recorded
    def forward(
        self,
        x: npt.ArrayLike,
        start: SupportsIndex = 0,
        *,
        rng: RNG = None,
    ) -> FloatArray:
        """Add the positional encoding to the inputs.

        In training, dropout is applied to the sum.

        Parameters
        ----------
        x : array_like, (..., length, embed_dim)
            (length, ..., embed_dim) unless `batch_first`. Of the module's dtype.
        start : int
            The first position, as in decoding with a cache. Default: 0.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        ndarray
            Of the shape and dtype of x.

        Raises
        ------
        TypeError
            x has another dtype.
        ValueError
            The last axis of x is not embed_dim long, or a position is beyond max_length.
        """
        given = as_input(x, "x", self.dtype)
        axes = f"(..., length, {self.embed_dim})" if self.batch_first else f"(length, ..., {self.embed_dim})"
        if given.ndim < 2 or given.shape[-1] != self.embed_dim:
            raise ValueError(f"x has shape {given.shape}, expected {axes}: embed_dim is last")
        axis = given.ndim - 2 if self.batch_first else 0
        rows = self._tracked_rows(given.shape[axis], start)
        between = (1,) * (given.ndim - 2 - axis)  # axes after the length, along which the encoding is repeated
        y = np.asarray(given + rows.reshape(len(rows), *between, self.embed_dim))

        def backward(grad: FloatArray) -> tuple[FloatArray, FloatArray | None]:
            if self.weight is None:
                return grad, None
            return grad, sum_to(grad, (len(rows), *between, self.embed_dim)).reshape(rows.shape)

        y = running().step(y, (x, rows), backward)
        return drop(y, as_probability(self.dropout, "dropout") if self.training else 0.0, rng)

    def _tracked_rows(
        self, length: SupportsIndex, start: SupportsIndex = 0, dtype: npt.DTypeLike | None = None
    ) -> FloatArray:
        """Return `rows`, whose gradient goes to a learned weight."""
        rows, first = as_float32(self.rows(length, start, dtype)), int(start)
        return rows if self.weight is None else rows_of(self, rows, slice(first, first + len(rows)))

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from their defaults.

        Returns
        -------
        str
            Of one line.
        """
        usual: dict[str, Any] = {"learned": False, "batch_first": True, "base": 10000.0}
        others = [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        return ", ".join([str(self.embed_dim), f"max_length={self.max_length}", f"dropout={self.dropout:g}", *others])


@functools.lru_cache(maxsize=4)
def _sinusoids(max_length: int, embed_dim: int, base: float, dtype: str) -> FloatArray:
    """Share tables between modules, because a module holds only its parameters."""
    table = positional_encoding(max_length, embed_dim, base=base, dtype=dtype)
    table.flags.writeable = False
    return table


class RotaryEmbedding(Module):
    """Rotate queries and keys by their positions (RoPE).

    The module calls `pyattn.functional.rotary_embedding`. It has no parameters and adds nothing to `Module.state_dict`.

    Parameters
    ----------
    dim : int
        Features of a head.
    theta : float, optional
        The base of the frequencies. Default: None, ``scaling["rope_theta"]`` or 10000.
    rotary_dim : int, optional
        Number of leading features to rotate. Default: None, ``scaling["partial_rotary_factor"]`` times dim, or all.
    interleaved : bool
        Pairs are adjacent features, as in GPT-J, not one feature of each half, as in Llama. Default: False.
    scaling : mapping, optional
        ``rope_scaling`` or ``rope_parameters`` of a config.json, as `pyattn.functional.rotary_frequencies` takes it.
        Default: None.
    max_position_embeddings : int, optional
        Of the same config.json. Default: None.
    layout : {'bhsd', 'bshd'}
        Of inputs: (..., heads, length, dim), the default, or (..., length, heads, dim).

    Raises
    ------
    TypeError
        An argument, or a value in scaling, has another type.
    ValueError
        A number is out of range, rotary_dim is odd, layout is unknown, or scaling has an unknown rope_type or lacks a
        key.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> embedding = nn.RotaryEmbedding(64)
    >>> embedding
    RotaryEmbedding(64, theta=10000.0)
    >>> keys = np.ones((2, 8, 5, 64), np.float32)
    >>> embedding(keys, offset=100).shape
    (2, 8, 5, 64)
    """

    _widens_halves = False  # the function rounds, into `out`, too

    def __init__(
        self,
        dim: SupportsIndex,
        *,
        theta: SupportsFloat | None = None,
        rotary_dim: SupportsIndex | None = None,
        interleaved: bool = False,
        scaling: Mapping[str, Any] | None = None,
        max_position_embeddings: SupportsIndex | None = None,
        layout: Layout = "bhsd",
    ) -> None:
        super().__init__()
        self.dim = as_count(dim, "dim", least=0)
        self.interleaved = as_flag(interleaved, "interleaved")
        self.layout: Layout = as_choice(layout, "layout", get_args(Layout))
        self._options: dict[str, Any] = {
            "theta": theta,
            "rotary_dim": rotary_dim,
            "scaling": dict(scaling) if isinstance(scaling, Mapping) else scaling,
            "max_position_embeddings": max_position_embeddings,
        }
        self._frequencies = self.frequencies()
        self._depends_on_length = depends_on_length(self._options["scaling"])

    def frequencies(self, seq_len: SupportsIndex | None = None) -> RotaryFrequencies:
        """Compute the angle by which each pair rotates from one position to the next.

        Parameters
        ----------
        seq_len : int, optional
            Sequence length, on which dynamic and longrope depend. Default: None, a length that needs no scaling.

        Returns
        -------
        RotaryFrequencies
            inv_freq and attention_factor.

        Raises
        ------
        TypeError
            seq_len is not an integer.
        ValueError
            seq_len is negative.
        """
        return rotary_frequencies(self.dim, seq_len=seq_len, **self._options)

    @recorded
    def forward(
        self,
        x: npt.ArrayLike,
        *,
        offset: SupportsIndex = 0,
        position_ids: npt.ArrayLike | None = None,
        seq_len: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> FloatArray:
        """Rotate queries or keys by their positions.

        Parameters
        ----------
        x : array_like, (..., heads, length, dim)
            float16, bfloat16, float32 or float64; (..., length, heads, dim) with ``layout="bshd"``.
        offset : int
            Position of the first row. Default: 0.
        position_ids : array_like of int, optional
            Position of each row; broadcasts to (..., length). Default: None, offset and so on.
        seq_len : int, optional
            Sequence length, on which dynamic and longrope depend. Default: None, the largest position plus 1.
        out : ndarray, optional
            Array for the result, which may be x. Default: None, a new one.

        Returns
        -------
        ndarray
            Of the same shape.

        Raises
        ------
        ValueError
            The last axis is not dim long, or the shape of position_ids does not match x.
        TypeError
            x is not an array of real numbers.
        """
        rows = _core.as_real(x, "x")
        if rows.shape[-1:] != (self.dim,):
            raise ValueError(f"x has shape {rows.shape}, expected (..., {self.dim}): dim is last")
        if seq_len is None:
            seq_len = sequence_length(self._options["scaling"], rows, offset, position_ids, self.layout)
        if out is not None and running().records:
            raise ValueError("out is given, and vjp writes to arrays of its own; leave it out")
        found = self._frequencies if seq_len is None else self.frequencies(seq_len)
        options: dict[str, Any] = {"interleaved": self.interleaved, "offset": offset, "position_ids": position_ids}
        options["layout"] = self.layout
        back = found._replace(inv_freq=-found.inv_freq)  # the opposite angles
        return running().step(
            rotary_embedding(rows, frequencies=found, out=out, **options),
            (x,),
            lambda grad: (rotary_embedding(grad, frequencies=back, **options),),
        )

    def rotation(self, offset: int, position_ids: npt.NDArray[np.int64] | None, seq_len: int) -> Rotation:
        """Return the rotation of queries and keys, as the core takes it.

        Parameters
        ----------
        offset : int
            Position of the first row.
        position_ids : ndarray, (..., length), or None
            Position of each row, in place of offset.
        seq_len : int
            Sequence length, on which dynamic and longrope depend.

        Returns
        -------
        Rotation

        Raises
        ------
        TypeError
            seq_len is not an integer, and the frequencies depend on it.
        ValueError
            seq_len is negative, and the frequencies depend on it.
        """
        found = self.frequencies(seq_len) if self._depends_on_length else self._frequencies
        return Rotation(found.inv_freq, found.attention_factor, offset, position_ids, self.interleaved)

    def extra_repr(self) -> str:
        """Return dim, theta and the other arguments that were given.

        Returns
        -------
        str
            Of one line.
        """
        scaling = self._options["scaling"] or {}
        theta = self._options["theta"] if self._options["theta"] is not None else scaling.get("rope_theta", 10000.0)
        parts = [str(self.dim), f"theta={theta}"]
        if 2 * len(self._frequencies.inv_freq) != self.dim:
            parts.append(f"rotary_dim={2 * len(self._frequencies.inv_freq)}")
        parts += ["interleaved=True"] if self.interleaved else []
        parts += [f"scaling={scaling}"] if scaling else []
        parts += [f"layout={self.layout!r}"] if self.layout != "bhsd" else []
        return ", ".join(parts)

"""Rotary position embedding as a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn import _core, rotary
from pyattn._flags import as_flag
from pyattn._frequencies import depends_on_length, sequence_length
from pyattn._positions import Turning
from pyattn.functional import FloatArray, Layout
from pyattn.nn.dtypes import as_count
from pyattn.nn.module import Module

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(Module):
    """Turn pairs of features of queries and keys by angles that tell their positions: `pyattn.rotary.rotary_embedding`.

    There is nothing to learn: it has no parameters, and is in no `Module.state_dict`.

    Parameters
    ----------
    dim : int
        Features of a head.
    theta : float, optional
        The base of the frequencies. Default: None, ``scaling["rope_theta"]`` or 10000.
    rotary_dim : int, optional
        The first so many features turn. Default: None, ``scaling["partial_rotary_factor"]`` times dim, or all of them.
    interleaved : bool
        Pairs are neighbours, as in GPT-J, and not a feature of each half, as in Llama. Default: False.
    scaling : mapping, optional
        ``rope_scaling`` or ``rope_parameters`` of a config.json, as `pyattn.rotary.frequencies` takes it.
        Default: None.
    max_position_embeddings : int, optional
        Of the same config.json. Default: None.
    layout : {'bhsd', 'bshd'}
        Of inputs: (..., heads, length, dim), the default, or (..., length, heads, dim).

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
        if layout not in ("bhsd", "bshd"):
            raise ValueError(f"layout is {layout!r}, expected 'bhsd' or 'bshd'")
        self.dim = as_count(dim, "dim", least=0)
        self.interleaved = as_flag(interleaved, "interleaved")
        self.layout: Layout = layout
        self._options: dict[str, Any] = {
            "theta": theta,
            "rotary_dim": rotary_dim,
            "scaling": None if scaling is None else dict(scaling),
            "max_position_embeddings": max_position_embeddings,
        }
        self._frequencies = self.frequencies()
        self._depends_on_length = depends_on_length(self._options["scaling"])

    def frequencies(self, seq_len: SupportsIndex | None = None) -> rotary.Frequencies:
        """Compute how far each pair turns from one position to the next.

        Parameters
        ----------
        seq_len : int, optional
            Length of the sequence, which dynamic and longrope depend on. Default: None, one that needs no stretching.

        Returns
        -------
        Frequencies
            inv_freq and attention_factor.
        """
        return rotary.frequencies(self.dim, seq_len=seq_len, **self._options)

    def forward(
        self,
        input: npt.ArrayLike,  # noqa: A002 (torch's name)
        *,
        offset: SupportsIndex = 0,
        position_ids: npt.ArrayLike | None = None,
        seq_len: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> FloatArray:
        """Turn queries or keys.

        Parameters
        ----------
        input : array_like, (..., heads, length, dim)
            float32 or float64; (..., length, heads, dim) with ``layout="bshd"``.
        offset : int
            Position of the first row. Default: 0.
        position_ids : array_like of int, optional
            Position of each row; broadcasts to (..., length). Default: None, offset and so on.
        seq_len : int, optional
            Length of the sequence, which dynamic and longrope depend on. Default: None, the largest position and 1.
        out : ndarray, optional
            Array for the result, which may be input. Default: None, a new one.

        Returns
        -------
        ndarray
            Of the same shape.

        Raises
        ------
        ValueError
            The last axis is not dim long, or positions do not go with input.
        TypeError
            input is no array of real numbers.
        """
        x = _core.as_real(input, "input")
        if x.shape[-1:] != (self.dim,):
            raise ValueError(f"input has shape {x.shape}, expected (..., {self.dim}): dim is last")
        if seq_len is None:
            seq_len = sequence_length(self._options["scaling"], x, offset, position_ids, self.layout)
        return rotary.turn(
            x,
            self._frequencies if seq_len is None else self.frequencies(seq_len),
            interleaved=self.interleaved,
            offset=offset,
            position_ids=position_ids,
            layout=self.layout,
            out=out,
        )

    def turning(self, offset: int, position_ids: npt.NDArray[np.int64] | None, seq_len: int) -> Turning:
        """Tell the core how queries and keys turn.

        Parameters
        ----------
        offset : int
            Position of the first row.
        position_ids : ndarray, (..., length), or None
            Position of each row, in place of offset.
        seq_len : int
            Length of the sequence, which dynamic and longrope depend on.

        Returns
        -------
        pyattn._positions.Turning
        """
        found = self.frequencies(seq_len) if self._depends_on_length else self._frequencies
        return Turning(found.inv_freq, found.attention_factor, offset, position_ids, self.interleaved)

    def extra_repr(self) -> str:
        """Tell the arguments that were given, besides dim and theta.

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

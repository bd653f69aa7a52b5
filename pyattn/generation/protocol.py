"""What a model must offer to be decoded: a state that takes tokens and gives scores of what follows them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pyattn.nn.transformer.decoding import Step

__all__ = ["Decodable", "Decoding", "IntArray", "Step"]

IntArray = npt.NDArray[np.integer[Any]]


class Decoding(Protocol):
    """Sequences that grow: what `pyattn.generate` works with, and a model's `begin` returns."""

    @property
    def lengths(self) -> IntArray:
        """How many tokens each row has, (rows,)."""
        ...

    def step(self, ids: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Step:
        """Take the next tokens of each row.

        Parameters
        ----------
        ids : array_like of int, (rows, n)
            At the start whole prompts, then mostly one token a row.
        lengths : array_like of int, (rows,), optional
            How many of each row's n count; what is behind is padding. Default: None, all.

        Returns
        -------
        Step
        """
        ...

    def reorder(self, index: npt.ArrayLike) -> None:
        """Make row i what row index[i] was: rows may be left out, and may be there several times.

        Parameters
        ----------
        index : array_like of int, (n,)
            As many rows as there will be.
        """
        ...


class Decodable(Protocol):
    """A model that `pyattn.generate` takes.

    It may also have `vocab_size` and, for an encoder-decoder, `src_vocab_size`, how many tokens there are;
    `max_length`, how many positions; `padding_idx`, the id of padding in the source; and `training`, in which nothing
    is generated.

    Attributes
    ----------
    is_encoder_decoder : bool
        Whether a source is encoded first; else the source is the beginning of what is generated.
    """

    is_encoder_decoder: bool

    def begin(
        self, source: IntArray | None, source_lengths: IntArray | None = None, *, need_weights: bool = False
    ) -> Decoding:
        """Begin to decode.

        Parameters
        ----------
        source : ndarray of int64, (rows, length), or None
            What an encoder-decoder encodes; None for a model without an encoder.
        source_lengths : ndarray of int64, (rows,), optional
            How many tokens of each row are no padding. Default: None, all.
        need_weights : bool
            Each `Step` has the weights of attention. Default: False.

        Returns
        -------
        Decoding
            Without any tokens.
        """
        ...

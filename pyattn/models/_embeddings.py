"""What BERT and its relatives make of ids: vectors of words, positions and types of tokens, added and normalised."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.ids import IntArray, check_range
from pyattn._util.typing import FloatArray
from pyattn.models._ids import as_ids, as_tokens
from pyattn.nn.embedding import Embedding
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module

__all__ = ["Embeddings"]


class Embeddings(Module):
    """``norm(words[input_ids] + positions[position_ids] + types[token_type_ids])``, and a projection of that.

    Parameters
    ----------
    words, positions : Embedding
        Vectors of tokens and of their positions.
    types : Embedding or None
        Vectors of token types, where the family has some.
    norm : Module
        What the sum goes through.
    padding_id : int, optional
        Positions begin after this id, which is that of padding and also its position. Default: None, they begin at 0.
    projection : Linear, optional
        Applied to what norm gives. Default: None.
    """

    words: Embedding
    positions: Embedding
    types: Embedding | None
    norm: Module
    projection: Linear | None

    def __init__(
        self,
        words: Embedding,
        positions: Embedding,
        types: Embedding | None,
        norm: Module,
        padding_id: int | None = None,
        projection: Linear | None = None,
    ) -> None:
        super().__init__()
        self.words, self.positions, self.types, self.norm = words, positions, types, norm
        self.padding_id = padding_id
        self.projection = projection

    @property
    def most_tokens(self) -> int:
        """Length of the longest sequence."""
        return self.positions.num_embeddings - (0 if self.padding_id is None else self.padding_id + 1)

    def forward(
        self,
        input_ids: npt.ArrayLike,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Look up and add.

        Parameters
        ----------
        input_ids : array_like of int, (N, L)
            Ids of the tokens.
        token_type_ids : array_like of int, (N, L) or (L,), optional
            Default: None, 0.
        position_ids : array_like of int, (N, L) or (L,), optional
            Default: None, in their order.

        Returns
        -------
        ndarray, (N, L, features)
            What the first layer takes.

        Raises
        ------
        TypeError
            Ids are no integers.
        ValueError
            They are out of range or have another shape, or there are too many.
        """
        ids = as_tokens(input_ids)
        check_range(ids, "input_ids", self.words.num_embeddings, "that is the size of the vocabulary")
        types = self._types(token_type_ids, ids.shape)
        rows = self._position_rows(ids, position_ids)

        x = self._words(ids, rows)
        if types is not None and self.types is not None:
            x = functional.embedding(types, self.types.weight, residual=x)
        elif self.types is not None:
            x += self.types.weight[0]
        y: FloatArray = self.norm(x)
        return y if self.projection is None else self.projection.forward(y)

    def _words(self, ids: IntArray, rows: FloatArray) -> FloatArray:
        """Look up the tokens and add rows, into an array that nobody else has."""
        return functional.embedding(ids, self.words.weight, residual=rows)

    def _types(self, given: npt.ArrayLike | None, shape: tuple[int, ...]) -> IntArray | None:
        if given is None:
            return None
        if self.types is None:
            raise ValueError("token_type_ids is given, and this model has no types of tokens; leave it out")
        types = as_ids(given, "token_type_ids", shape)
        check_range(types, "token_type_ids", self.types.num_embeddings, "so many types of tokens there are")
        return types

    def _position_rows(self, ids: IntArray, given: npt.ArrayLike | None) -> FloatArray:
        """Find the vectors of positions: (L, features), or (N, L, features)."""
        table, length = self.positions.weight, ids.shape[1]
        if given is not None:
            positions = as_ids(given, "position_ids", ids.shape)
            check_range(positions, "position_ids", len(table), "so many positions there are")
            return functional.embedding(positions, table)
        if self.padding_id is None:
            self._check_length(length, "")
            return table[:length]
        counted = ids != self.padding_id
        if counted.all():
            self._check_length(length, "")
            return table[self.padding_id + 1 :][:length]
        numbers = np.cumsum(counted, axis=1)
        self._check_length(int(numbers.max()), f" that are not padding (id {self.padding_id})")
        return functional.embedding(np.where(counted, numbers, 0) + self.padding_id, table)

    def _check_length(self, length: int, what: str) -> None:
        if length > self.most_tokens:
            raise ValueError(
                f"input_ids has sequences of {length} tokens{what}, expected {self.most_tokens} at most: "
                f"there are {self.positions.num_embeddings} positions"
            )

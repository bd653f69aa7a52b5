"""Words of token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

__all__ = ["Vocabulary", "word_of"]

Vocabulary: TypeAlias = "Sequence[str] | Mapping[int, str] | None"


def word_of(token: int, vocabulary: Vocabulary) -> str:
    """Look up the word of a token id; without a vocabulary, write the id itself."""
    if vocabulary is None:
        return str(token)
    if isinstance(vocabulary, (str, bytes)) or not hasattr(vocabulary, "__getitem__"):
        kind = type(vocabulary).__name__
        raise TypeError(f"vocabulary is of type {kind}, expected a sequence of words or a mapping of ids to words")
    try:
        return str(vocabulary[token])
    except (KeyError, IndexError):
        raise ValueError(f"vocabulary has no word for the id {token}") from None

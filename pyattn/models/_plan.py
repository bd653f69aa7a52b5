"""What a family of encoders makes of a configuration: which tensors there have to be, and a model of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyattn.functional as functional
from pyattn._util.typing import FloatArray
from pyattn.io.config import Config
from pyattn.models._embeddings import Embeddings
from pyattn.models._parts import Arrays, pair_shapes
from pyattn.models._weights import Shapes
from pyattn.nn.embedding import Embedding
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module

__all__ = ["Parts", "Plan", "Pooler", "embedding_shapes", "heads_of", "require_an_encoder", "tables"]

WORDS, POSITIONS, TYPES = (f"embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type"))
NORM = "embeddings.LayerNorm"


class Pooler(Module):
    """``tanh(dense(x[:, 0]))``: a vector for a sequence, out of that of its first token.

    Parameters
    ----------
    dense : Linear or None
        None for the first token's vector as it is.
    """

    dense: Linear | None

    def __init__(self, dense: Linear | None) -> None:
        super().__init__()
        self.dense = dense

    def forward(self, x: FloatArray) -> FloatArray:
        """Compute it.

        Parameters
        ----------
        x : ndarray, (N, L, features)
            What the last layer gives.

        Returns
        -------
        ndarray, (N, features)
            Another array.
        """
        first = x[:, 0]
        if self.dense is None:
            return first.copy()
        return functional.linear(first, self.dense.weight, self.dense.bias, activation="tanh")


class Parts(NamedTuple):
    """What a model consists of."""

    embeddings: Embeddings
    layers: Sequence[Module]
    pooler: Pooler | None


class Plan(NamedTuple):
    """Names and shapes of a model's tensors, and what makes the model of them.

    Attributes
    ----------
    shapes : dict of str to tuple of int
        As transformers names them, without the model's own prefix.
    optional : list of str
        Those among them that a model without a pooler goes without.
    build : callable
        From arrays by these names to parts.
    """

    shapes: Shapes
    optional: list[str]
    build: Callable[[Arrays], Parts]


# Keys that ask for another computation, with the values that do not.
USUAL: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, []),
    "rope_scaling": (),
    "quantization_config": (),
    "auto_map": (),  # code of the model's own
}


def require_an_encoder(config: Config) -> None:
    """Refuse configurations of models that compute otherwise.

    Parameters
    ----------
    config : Config
        Of a model.

    Raises
    ------
    ValueError
        It is of another model; the message names the key.
    """
    config.require(USUAL)


def heads_of(config: Config, dim: int, name: str = "num_attention_heads") -> int:
    """Read the number of heads.

    Parameters
    ----------
    config : Config
        Of a model.
    dim : int
        Features of all heads together.
    name : str
        The key. Default: as here.

    Returns
    -------
    int
        A divisor of dim.

    Raises
    ------
    ValueError
        It is something else.
    """
    heads = config.count(name)
    if dim % heads:
        raise config.wrong(name, f"a divisor of {dim}, the size of a layer")
    return heads


def embedding_shapes(words: int, positions: int, types: int, dim: int, word_dim: int | None = None) -> Shapes:
    """Name what the embeddings consist of.

    Parameters
    ----------
    words, positions, types : int
        How many there are of each; 0 types for a family that has none.
    dim : int
        Features of a vector.
    word_dim : int, optional
        Features of a word's. Default: dim.

    Returns
    -------
    dict of str to tuple of int
        Shapes by name.
    """
    shapes: Shapes = {f"{WORDS}.weight": (words, word_dim or dim), f"{POSITIONS}.weight": (positions, dim)}
    return shapes | ({f"{TYPES}.weight": (types, dim)} if types else {}) | pair_shapes(NORM, dim)


def tables(arrays: Arrays) -> tuple[Embedding, Embedding, Embedding | None]:
    """Make the tables of words, positions and types of tokens.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of the model.

    Returns
    -------
    tuple of Embedding
        With the arrays themselves; None for types that the family does not have.
    """
    words, positions = (Embedding.from_pretrained(arrays[f"{name}.weight"]) for name in (WORDS, POSITIONS))
    types = arrays.get(f"{TYPES}.weight")
    return words, positions, None if types is None else Embedding.from_pretrained(types)

"""Shared code of token models: ids and padding, embedding, output layer and initialisation.

Indices: N batch, L tokens, E d_model.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_count, as_flag
from pyattn._util.halves import as_float32, as_stored_dtype, compute_dtype
from pyattn._util.ids import as_ids, read_lengths
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray, IntArray
from pyattn.masks import from_blocked, padding
from pyattn.nn import init
from pyattn.nn.embedding import Embedding
from pyattn.nn.gradients import drop, running
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.positions import PositionalEncoding

__all__ = [
    "Tokens",
    "describe",
    "draw_weights",
    "embed",
    "make_embedding",
    "make_generator",
    "padding_of",
    "read_tokens",
]


class Tokens(NamedTuple):
    """Ids and their padding mask, True = blocked as in torch; None without padding."""

    ids: IntArray
    padding: npt.ArrayLike | None


def read_tokens(
    x: npt.ArrayLike,
    name: str,
    embedding: Module,
    positions: Module,
    *,
    batch_first: bool,
    lengths: npt.ArrayLike | None = None,
    key_padding_mask: npt.ArrayLike | None = None,
    names: tuple[str, str] = ("lengths", "key_padding_mask"),
) -> Tokens:
    """Read token ids and their padding mask."""
    ids = as_ids(x, name, getattr(embedding, "num_embeddings", None))
    if ids.ndim not in (1, 2):
        order = "(N, L)" if batch_first else "(L, N)"
        raise ValueError(f"{name} has shape {ids.shape}, expected {order} or, unbatched, (L,)")
    rows = ids if batch_first else ids.T
    length, most = rows.shape[-1], getattr(positions, "max_length", None)
    if most is not None and length > most:
        raise ValueError(
            f"{name} has {length} tokens in a row, but the model has {most} positions; shorten it, or make the model "
            "with a larger max_length"
        )
    index = getattr(embedding, "padding_idx", None)
    if lengths is None and key_padding_mask is None and index is not None:
        hidden = rows == index
        return Tokens(ids, from_blocked(hidden) if hidden.any() else None)
    return Tokens(ids, padding_of(lengths, key_padding_mask, rows.shape, names))


def padding_of(
    lengths: npt.ArrayLike | None,
    key_padding_mask: npt.ArrayLike | None,
    shape: tuple[int, ...],
    names: tuple[str, str],
) -> npt.ArrayLike | None:
    """Make a padding mask from lengths, or return a given mask unchanged."""
    if lengths is None:
        return key_padding_mask
    if key_padding_mask is not None:
        raise ValueError(f"{names[0]} and {names[1]} are both given; pass only one of them")
    ends = read_lengths(lengths, names[0], shape[:-1], most=shape[-1])
    return padding(ends, shape[-1], heads=False)


def embed(
    ids: IntArray,
    embedding: Module,
    positions: Module,
    *,
    d_model: int,
    batch_first: bool,
    start: SupportsIndex = 0,
    rng: RNG = None,
) -> FloatArray:
    """Compute ``embedding(ids) * sqrt(d_model)``, add positions, and drop in training, in one pass of the core."""
    options: dict[str, Any] = {} if rng is None else {"rng": rng}
    if type(embedding) is not Embedding or type(positions) is not PositionalEncoding:
        found, scale = as_float32(embedding(ids)), math.sqrt(d_model)
        scaled = running().step(found * scale, (found,), lambda grad: (grad * scale,))
        output: FloatArray = positions(scaled, start, **options)
        return output
    length_first = ids.ndim == 2 and not batch_first
    length, dtype = ids.shape[0] if length_first else ids.shape[-1], compute_dtype(embedding.weight.dtype)
    rows = positions._tracked_rows(length, start, dtype)
    rows = running().reshape(rows, (length, 1, rows.shape[-1])) if length_first else rows
    # Vaswani et al. 2017, sections 3.4 and 3.5.
    x = embedding._look_up(ids, math.sqrt(d_model), rows)
    return drop(x, positions.dropout if positions.training else 0.0, rng)


def make_embedding(
    vocab_size: SupportsIndex,
    d_model: SupportsIndex,
    padding_idx: SupportsIndex | None,
    dtype: npt.DTypeLike,
    name: str = "vocab_size",
) -> Embedding:
    """Make an embedding with uninitialised weights."""
    shape = as_count(vocab_size, name, least=1), as_count(d_model, "d_model", least=1)
    return Embedding.from_pretrained(np.empty(shape, as_stored_dtype(dtype)), padding_idx=padding_idx)


def make_generator(embedding: Embedding, bias: bool, tie_weights: bool) -> Linear:
    """Make the output layer, from vectors to logits, with uninitialised parameters."""
    weight = embedding.weight if as_flag(tie_weights, "tie_weights") else np.empty_like(embedding.weight, order="F")
    return Linear.from_arrays(weight, np.empty(len(weight), weight.dtype) if as_flag(bias, "bias") else None)


def draw_weights(model: Module, rng: RNG) -> None:
    """Initialise parameters of two axes by `init.xavier_uniform_`; rows of padding and output biases become 0."""
    generator = as_generator(rng)
    for array in model.parameters():
        if array.ndim > 1:
            init.xavier_uniform_(array, rng=generator)
    for part in model.children():
        if isinstance(part, Embedding) and part.padding_idx is not None:
            part.weight[part.padding_idx] = 0
        if isinstance(part, Linear) and part.bias is not None:
            part.bias[:] = 0


def describe(d_model: int, batch_first: bool, generator: Module, embedding: Module) -> str:
    """Return the text between the brackets of a model's repr."""
    tied = getattr(generator, "weight", None) is getattr(embedding, "weight", generator)
    return f"d_model={d_model}, batch_first={batch_first}, tie_weights={tied}"

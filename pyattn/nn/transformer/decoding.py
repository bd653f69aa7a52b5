"""`TokenModel`, the base of models that decode with a KV cache: next tokens in, logits out.

Indices: N batch, L tokens, E d_model.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_flag
from pyattn._util.halves import as_float32, compute_dtype
from pyattn._util.ids import as_ids, read_lengths
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray, IntArray
from pyattn.cache.kv_cache import KVCache
from pyattn.functional._multihead_masks import lengths_of
from pyattn.nn.attention.cached import check_cache
from pyattn.nn.embedding import Embedding
from pyattn.nn.gradients import drop
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.positions import PositionalEncoding
from pyattn.nn.transformer.stack import Stack
from pyattn.nn.transformer.tokens import embed

__all__ = ["ModelStep", "TokenModel", "as_stack", "embed_next", "read_counts", "rows_at"]


class ModelStep(NamedTuple):
    """Scores for the next token of each row, and attention weights if requested.

    Attributes
    ----------
    logits : ndarray, (N, vocabulary)
        Scores for the token after each row's last one.
    self_weights : ndarray, (layers, N, heads, L, S), or None
        Weights of the L new tokens over the S tokens so far; None unless requested. Padded rows are unspecified.
    cross_weights : ndarray, (layers, N, heads, L, S_source), or None
        Weights of the new tokens over the source of an encoder-decoder; None unless requested.

    Examples
    --------
    >>> from pyattn import nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, rng=0).eval()
    >>> step = model.decode_step([[3, 1, 4]], model.new_cache(), need_weights=True)
    >>> step.logits.shape, step.self_weights.shape
    ((1, 10), (1, 1, 2, 3, 3))
    """

    logits: FloatArray
    self_weights: FloatArray | None = None
    cross_weights: FloatArray | None = None


class TokenModel(Module):
    """Base of token models with a KV cache; subclasses define embedding, layers and output."""

    generator: Linear
    """Maps the last layer's output to logits."""
    is_encoder_decoder: bool
    batch_first: Any = True
    window: int | None = None
    """Number of earlier tokens that a token sees; None for all."""
    _widens_halves = False  # ids are not floats

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary; None if unknown."""
        raise NotImplementedError

    @property
    def max_length(self) -> int | None:
        """Number of positions; None if unlimited."""
        raise NotImplementedError

    @property
    def _hidden_id(self) -> int | None:
        """Id that `forward` treats as padding by default."""
        return None

    def _layers_with_cache(self) -> Stack:
        raise NotImplementedError

    def _embed_next(self, ids: IntArray, starts: IntArray, rng: RNG) -> FloatArray:
        """Embed ids, (N, L) or (L, N), whose rows start at these positions."""
        raise NotImplementedError

    def _score(self, x: FloatArray) -> FloatArray:
        """Compute logits from the last layer's output."""
        scores: FloatArray = self.generator(x)
        return scores

    def new_cache(
        self,
        batch_size: SupportsIndex = 1,
        *,
        max_length: SupportsIndex | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> KVCache:
        """Make an empty cache for `decode_step`.

        Parameters
        ----------
        batch_size : int
            Number of rows. Default: 1.
        max_length : int, optional
            Maximum number of tokens in a row. Default: None, the number of the model's positions.
        dtype : dtype, optional
            Of the stored keys and values: float16 and bfloat16 take half of the memory. Default: None, the dtype in
            which the model computes: float32, unless its weights are float64.

        Returns
        -------
        KVCache
            Without tokens.

        Raises
        ------
        TypeError
            dtype is not float16, bfloat16, float32 or float64.
        """
        return self._layers_with_cache().new_cache(batch_size, window=self.window, max_length=max_length, dtype=dtype)

    def decode_step(
        self,
        input: npt.ArrayLike,
        cache: KVCache,
        *,
        memory_cache: KVCache | None = None,
        lengths: npt.ArrayLike | None = None,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> ModelStep:
        """Compute the logits after the next tokens, and extend the KV cache by them.

        The logits are bit-identical to `forward` over all tokens at each row's last token, unless rotary frequencies
        depend on the sequence length (dynamic, longrope). A call that fails leaves the cache as it was.

        Parameters
        ----------
        input : array_like of int, (N, L)
            The next tokens: whole prompts first, then usually one token per row; (L, N) unless batch_first.
        cache : KVCache
            With N batch entries, as made by `new_cache`.
        memory_cache : KVCache, optional
            Result of an encoder-decoder's `encode_memory`. Default: None.
        lengths : array_like of int, (N,), optional
            Number of tokens of each row, 1 or more; later ones are padding. Default: None, all tokens except padding
            at the end, at least one, if the model has a padding id.
        need_weights : bool
            Return the weights too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        ModelStep
            logits, and the weights if requested.

        Raises
        ------
        TypeError
            input does not hold integers.
        ValueError
            An id or a length is out of range, a row has too many tokens, or shapes disagree.
        """
        check_cache(cache)
        if cache.window != self.window:
            raise ValueError(f"cache has window={cache.window}, but the model's is {self.window}; see new_cache")
        ids, counts = self._read_next(input, lengths, cache)
        options: dict[str, Any] = {} if rng is None else {"rng": as_generator(rng)}
        options |= {} if memory_cache is None else {"memory_cache": memory_cache}
        options |= {"need_weights": as_flag(need_weights, "need_weights")}
        n = ids.shape[1 if self.batch_first else 0]
        with cache._restored_on_error():
            x = self._embed_next(ids, cache.lengths, options.get("rng"))
            known = None if (counts == n).all() else counts
            output, own, cross = self._layers_with_cache().decode_step(x, cache, lengths=known, **options)
            logits = self._score(_last(output if self.batch_first else output.swapaxes(0, 1), counts))
            return ModelStep(logits, None if own is None else np.stack(own), None if cross is None else np.stack(cross))

    def _read_next(self, x: npt.ArrayLike, lengths: npt.ArrayLike | None, cache: KVCache) -> tuple[IntArray, IntArray]:
        ids = as_ids(x, "input", self.vocab_size)
        rows = ids if self.batch_first else ids.T
        if ids.ndim != 2 or len(rows) != cache.batch_size or not rows.shape[1]:
            order = f"({cache.batch_size}, L)" if self.batch_first else f"(L, {cache.batch_size})"
            raise ValueError(
                f"input has shape {ids.shape}, expected {order}: a token or more for each of the cache's batch entries"
            )
        counts = read_counts(self._without_padding(rows) if lengths is None else lengths, "lengths", rows.shape)
        most, longest = self.max_length, int((cache.lengths + counts).max(initial=0))
        if most is not None and longest > most:
            raise ValueError(f"input makes a sequence of {longest} tokens, but the model has {most} positions")
        return ids, counts

    def _without_padding(self, rows: IntArray) -> IntArray | None:
        """Count the tokens before padding at the end; None means all."""
        if self._hidden_id is None:
            return None
        counts = lengths_of(rows == self._hidden_id)
        if counts is None:
            raise ValueError(
                f"input has padding, id {self._hidden_id}, before other tokens, which a cache cannot hold; move it to "
                "the end, or pass lengths, the number of tokens of each row"
            )
        return np.maximum(counts, 1)  # a finished row, or a start symbol


def as_stack(module: Module, name: str) -> Stack:
    """Require a stack of layers that supports a KV cache."""
    if not isinstance(module, Stack):
        raise TypeError(
            f"{name} is of type {type(module).__name__}, which does not support a KV cache; use TransformerEncoder or "
            "TransformerDecoder, or pyattn.generate with use_cache=False"
        )
    return module


def _last(x: FloatArray, counts: IntArray) -> FloatArray:
    """Pick each row's last token: (N, L, E) to (N, E)."""
    return x[:, 0] if x.shape[1] == 1 else x[np.arange(len(counts)), counts - 1]


def read_counts(x: npt.ArrayLike | None, name: str, shape: tuple[int, ...]) -> IntArray:
    """Read the number of tokens of each row."""
    if x is None:
        return np.full(shape[0], shape[1])
    return read_lengths(x, name, shape[:1], least=1, most=shape[1]).astype(np.int64)


def embed_next(
    ids: IntArray,
    embedding: Module,
    positions: Module,
    starts: IntArray,
    *,
    d_model: int,
    batch_first: bool,
    rng: RNG = None,
) -> FloatArray:
    """Embed as `pyattn.nn.transformer.tokens.embed` does, with a start position for each row."""
    rows = ids if batch_first else ids.T
    if type(embedding) is Embedding and type(positions) is PositionalEncoding:
        table = positions.rows(positions.max_length, 0, compute_dtype(embedding.weight.dtype))
        found = as_float32(rows_at(table, starts, rows.shape[1]))
        x = embedding._look_up(rows, math.sqrt(d_model), found)
        x = drop(x, positions.dropout if positions.training else 0.0, rng)
        return x if batch_first else x.swapaxes(0, 1)
    sizes: dict[str, Any] = {"d_model": d_model, "batch_first": batch_first, "rng": rng}
    if (starts == starts[:1]).all():
        return embed(ids, embedding, positions, start=int(starts.max(initial=0)), **sizes)
    each = (rows[n : n + 1] if batch_first else rows[n : n + 1].T for n in range(len(rows)))
    parts = [embed(row, embedding, positions, start=int(at), **sizes) for row, at in zip(each, starts, strict=True)]
    return np.concatenate(parts, axis=0 if batch_first else 1)


def rows_at(table: FloatArray, starts: IntArray, length: int) -> FloatArray:
    """Return the encodings of positions."""
    first = int(starts.max(initial=0))
    if (starts == first).all() and first + length <= len(table):
        return table[first : first + length]
    found: FloatArray = table[np.minimum(starts[:, np.newaxis] + np.arange(length), len(table) - 1)]
    return found

"""Decoder-only language model: a causal Transformer encoder with an embedding and an output layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_count, as_flag
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray, IntArray
from pyattn.functional._multihead_masks import Masking
from pyattn.nn.embedding import Embedding
from pyattn.nn.feed_forward import Activation
from pyattn.nn.gradients import recorded
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.norm import LayerNorm
from pyattn.nn.positions import PositionalEncoding
from pyattn.nn.transformer.decoding import TokenModel, as_stack, embed_next
from pyattn.nn.transformer.layer import TransformerEncoderLayer, check_parts
from pyattn.nn.transformer.stack import Stack, TransformerEncoder
from pyattn.nn.transformer.tokens import (
    describe,
    draw_weights,
    embed,
    make_embedding,
    make_generator,
    read_tokens,
)

__all__ = ["TransformerLM"]

_Self = TypeVar("_Self", bound="TransformerLM")


class TransformerLM(TokenModel):
    """A decoder-only language model: logits of the token after each token.

    ``generator(encoder(embedding(ids) * sqrt(d_model) + positions))``, where a token sees itself and earlier
    ones. The state_dict names of each part are those of torch's module of the same name; sinusoidal positions have no
    parameters.

    Parameters
    ----------
    vocab_size : int
        Size of the vocabulary: ids go from 0 to ``vocab_size - 1``.
    d_model : int
        Size of the hidden vectors. Default: 512.
    nhead : int
        Heads of each attention; divides d_model. Default: 8.
    num_layers : int
        Number of layers. Default: 6.
    dim_feedforward : int
        Size of the last axis within feed-forward parts. Default: 2048.
    dropout : float
        As in `TransformerEncoderLayer`, also for the input of the first layer. Default: 0.1.
    activation : str or callable
        As in `FeedForward`. Default: 'relu'.
    layer_norm_eps : float
        eps of all normalisations. Default: 1e-5.
    batch_first : bool
        Ids are (batch, length), as from `pyattn.generation.pad_sequences` and for `pyattn.generate`, not (length,
        batch). Default: True, unlike in torch.
    norm_first : bool
        Normalise the input of each part (pre-norm) and the last layer's output, not each sum. Default: False.
    bias : bool
        All parts have biases. Default: True.
    max_length : int
        Length of the longest sequence. Default: 5000.
    learned_positions : bool
        Learn the positional encoding as a parameter; otherwise it is sinusoidal. Default: False.
    padding_idx : int, optional
        Id of the padding token, hidden from attention in calls without padding masks or lengths. Default: None.
    tie_weights : bool
        `generator` and embedding share one weight array. Default: False.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    embedding : Embedding
        All weights of two axes are initialised by `init.xavier_uniform_`; the row of padding is 0.
    positions : PositionalEncoding
        Added to the token vectors.
    encoder : TransformerEncoder
        The layers.
    generator : Linear
        d_model to vocab_size; its bias is initially 0.

    Raises
    ------
    TypeError
        An argument other than activation has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A number is out of range, d_model is not a multiple of nhead, or activation is neither callable nor a known
        name.

    Examples
    --------
    >>> from pyattn import nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, tie_weights=True, rng=0).eval()
    >>> model([[3, 1, 4], [1, 5, 9]]).shape
    (2, 3, 10)
    >>> model.generator.weight is model.embedding.weight
    True
    """

    is_encoder_decoder = False
    # Or modules with the same interfaces, see from_parts.
    embedding: Embedding
    positions: PositionalEncoding
    encoder: TransformerEncoder
    generator: Linear

    def __init__(
        self,
        vocab_size: SupportsIndex,
        d_model: SupportsIndex = 512,
        nhead: SupportsIndex = 8,
        num_layers: SupportsIndex = 6,
        dim_feedforward: SupportsIndex = 2048,
        dropout: SupportsFloat = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: SupportsFloat = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        *,
        max_length: SupportsIndex = 5000,
        learned_positions: bool = False,
        padding_idx: SupportsIndex | None = None,
        tie_weights: bool = False,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        draws = as_generator(rng)
        embedding = make_embedding(vocab_size, d_model, padding_idx, dtype)
        sizes = d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias
        layer = TransformerEncoderLayer(*sizes, dtype=dtype, rng=draws)
        norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype) if norm_first else None
        options: dict[str, Any] = {"batch_first": batch_first, "dtype": dtype, "rng": draws}
        parts = {
            "embedding": embedding,
            "positions": PositionalEncoding(d_model, max_length, dropout, learned_positions, **options),
            "encoder": TransformerEncoder(layer, num_layers, norm),
            "generator": make_generator(embedding, bias, tie_weights),
        }
        self._set(parts, d_model, batch_first)
        self.reset_parameters(draws)

    def _set(self, parts: Mapping[str, Module], d_model: SupportsIndex, batch_first: bool) -> None:
        self.d_model, self.batch_first = as_count(d_model, "d_model", least=1), batch_first
        for name in ("embedding", "positions", "encoder", "generator"):
            setattr(self, name, parts[name])

    @classmethod
    def from_parts(
        cls: type[_Self], parts: Mapping[str, Module], *, d_model: SupportsIndex, batch_first: bool = True
    ) -> _Self:
        """Make a model of these parts: nothing is copied, nothing is drawn.

        Parameters
        ----------
        parts : mapping of str to Module
            'embedding', 'positions', 'encoder' and 'generator', or modules with the same interfaces.
        d_model : int
            Size of the hidden vectors.
        batch_first : bool
            Layout of the parts. Default: True.

        Returns
        -------
        TransformerLM
            With the parts themselves; shared arrays stay shared.

        Raises
        ------
        ValueError
            A part is missing or unexpected.
        TypeError
            A part is not a module.
        """
        check_parts(parts, ("embedding", "positions", "encoder", "generator"))
        model = cls.__new__(cls)
        model._set(parts, d_model, batch_first)
        return model

    def reset_parameters(self, rng: RNG = None) -> None:
        """Initialise all parameters of two axes again, as the constructor does.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        draw_weights(self, rng)

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary; None if the embedding does not define it."""
        return getattr(self.embedding, "num_embeddings", None)

    @property
    def max_length(self) -> int | None:
        """Number of positions; None if positions does not define it."""
        return getattr(self.positions, "max_length", None)

    @property
    def padding_idx(self) -> int | None:
        """Id of the padding token, or None."""
        return getattr(self.embedding, "padding_idx", None)

    @property
    def _hidden_id(self) -> int | None:
        return self.padding_idx

    @overload
    def forward(
        self,
        input: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        *,
        lengths: npt.ArrayLike | None = None,
        need_weights: Literal[False] = False,
        rng: RNG = None,
    ) -> FloatArray: ...
    @overload
    def forward(
        self,
        input: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        *,
        lengths: npt.ArrayLike | None = None,
        need_weights: Literal[True],
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray, None]: ...
    @overload
    def forward(
        self,
        input: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        *,
        lengths: npt.ArrayLike | None = None,
        need_weights: bool,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, None]: ...
    @recorded
    def forward(
        self,
        input: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        *,
        lengths: npt.ArrayLike | None = None,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, None]:
        """Compute the logits of the token after each token.

        `pyattn.softmax` makes them probabilities.

        Parameters
        ----------
        input : array_like of int, (N, L) or unbatched (L,)
            Ids of tokens; (L, N) unless batch_first.
        mask : array_like, (L, L) or (N * nhead, L, L), optional
            bool: True = blocked; float: added to the scores of attention. Default: None.
        key_padding_mask : array_like, (N, L) or (L,), optional
            The same for padding tokens. Default: None, the tokens equal to padding_idx, if set.
        is_causal : bool
            A token does not see later ones, whatever mask says. Default: True.
        lengths : array_like of int, (N,), optional
            Instead of key_padding_mask: number of tokens of each row without padding. Default: None.
        need_weights : bool
            Return the weights of attention too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        logits : ndarray, (N, L, vocab_size) or (L, vocab_size)
            (L, N, vocab_size) unless batch_first. Without need_weights it is the only result.
        self_weights : ndarray, (layers, N, nhead, L, L) or (layers, nhead, L, L)
            With need_weights: one for each layer.
        cross_weights : None
            With need_weights, as of an encoder-decoder; the model has no cross-attention.

        Raises
        ------
        TypeError
            input does not hold integers; a mask is neither bool nor of floats.
        ValueError
            An id is out of range, input is too long, or shapes disagree; the message names the argument.
        """
        hidden = Masking(mask, key_padding_mask, is_causal, key_lengths=lengths)
        x, weights = self._run(input, hidden, rng, as_flag(need_weights, "need_weights"))
        logits: FloatArray = self.generator(x)
        return logits if weights is None else (logits, weights, None)

    def decode(
        self,
        input: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        *,
        lengths: npt.ArrayLike | None = None,
        rng: RNG = None,
    ) -> FloatArray:
        """Compute the input of `generator`: a vector for each token.

        Parameters
        ----------
        input : array_like of int
            As for `forward`.
        mask, key_padding_mask : array_like, optional
            As for `forward`. Default: None.
        is_causal : bool
            As for `forward`. Default: True.
        lengths : array_like of int, optional
            As for `forward`. Default: None.
        rng : None, int, SeedSequence or Generator
            As for `forward`. Default: None.

        Returns
        -------
        ndarray, (N, L, d_model), (L, N, d_model) or (L, d_model)

        Raises
        ------
        TypeError
            input does not hold integers; a mask is neither bool nor of floats.
        ValueError
            An id is out of range, input is too long, or shapes disagree; the message names the argument.
        """
        return self._run(input, Masking(mask, key_padding_mask, is_causal, key_lengths=lengths), rng, False)[0]

    def _run(
        self, ids: npt.ArrayLike, hidden: Masking, rng: RNG, need_weights: bool
    ) -> tuple[FloatArray, FloatArray | None]:
        """Embed the ids and call the layers."""
        drawn: dict[str, Any] = {} if rng is None else {"rng": as_generator(rng)}  # shared by all parts
        given: dict[str, Any] = {"lengths": hidden.key_lengths, "key_padding_mask": hidden.key_padding_mask}
        sizes: dict[str, Any] = {"batch_first": self.batch_first}
        tokens = read_tokens(ids, "input", self.embedding, self.positions, **given, **sizes)
        x = embed(tokens.ids, self.embedding, self.positions, d_model=self.d_model, **sizes, **drawn)
        masks: dict[str, Any] = {"mask": hidden.attn_mask, "src_key_padding_mask": tokens.padding}
        masks["is_causal"] = hidden.is_causal
        if not need_weights:
            return self.encoder(x, **masks, **drawn), None
        output, weights, _ = self.encoder(x, **masks, **drawn, need_weights=True)
        return output, np.stack(weights)

    def _layers_with_cache(self) -> Stack:
        return as_stack(self.encoder, "encoder")

    def _embed_next(self, ids: IntArray, starts: IntArray, rng: RNG) -> FloatArray:
        sizes: dict[str, Any] = {"d_model": self.d_model, "batch_first": self.batch_first}
        return embed_next(ids, self.embedding, self.positions, starts, **sizes, rng=rng)

    def extra_repr(self) -> str:
        """Return the options that the repr of the parts does not show.

        Returns
        -------
        str
            Of one line.
        """
        return describe(self.d_model, self.batch_first, self.generator, self.embedding)

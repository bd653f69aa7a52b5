"""Sequence-to-sequence model: a Transformer with embeddings and an output layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_flag
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray, IntArray
from pyattn.cache.kv_cache import KVCache
from pyattn.functional._multihead_masks import Masking, lengths_of, read_padding_mask
from pyattn.nn.embedding import Embedding
from pyattn.nn.feed_forward import Activation
from pyattn.nn.gradients import recorded
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.positions import PositionalEncoding
from pyattn.nn.transformer.decoding import TokenModel, as_stack, embed_next
from pyattn.nn.transformer.layer import check_parts
from pyattn.nn.transformer.stack import Stack, TransformerDecoder
from pyattn.nn.transformer.tokens import (
    describe,
    draw_weights,
    embed,
    make_embedding,
    make_generator,
    padding_of,
    read_tokens,
)
from pyattn.nn.transformer.transformer import Transformer

__all__ = ["Seq2SeqTransformer"]


_Self = TypeVar("_Self", bound="Seq2SeqTransformer")
PARTS = ("src_embedding", "tgt_embedding", "src_positions", "tgt_positions", "transformer", "generator")


class Seq2SeqTransformer(TokenModel):
    """The complete model of Vaswani et al. 2017: tokens in, logits out.

    Torch has no module for it. ``generator(transformer(src_embedding(src) * sqrt(d_model) + src_positions,
    tgt_embedding(tgt) * sqrt(d_model) + tgt_positions))``, where a target token sees itself and earlier ones. The
    state_dict names of each part are those of torch's module of the same name; sinusoidal positions have no parameters.

    Parameters
    ----------
    src_vocab_size, tgt_vocab_size : int
        Sizes of the vocabularies of source and target; ids start at 0.
    d_model : int
        Size of the hidden vectors. Default: 512.
    nhead : int
        Heads of each attention; divides d_model. Default: 8.
    num_encoder_layers, num_decoder_layers : int
        Number of layers. Default: 6.
    dim_feedforward : int
        Size of the last axis within feed-forward parts. Default: 2048.
    dropout : float
        As in `TransformerEncoderLayer`, also for the inputs of the first layers. Default: 0.1.
    activation : str or callable
        As in `FeedForward`. Default: 'relu'.
    custom_encoder, custom_decoder : Module, optional
        As in `Transformer`. Default: None.
    layer_norm_eps : float
        eps of all normalisations. Default: 1e-5.
    batch_first : bool
        Ids are (batch, length), as from `pyattn.generation.pad_sequences` and for `pyattn.generate`, not (length,
        batch). Default: True, unlike in torch.
    norm_first : bool
        Normalise the input of each part (pre-norm), not the sum after it. Default: False.
    bias : bool
        All parts have biases. Default: True.
    max_length : int
        Length of the longest sequence. Default: 5000.
    learned_positions : bool
        Learn the positional encoding as a parameter; otherwise it is sinusoidal. Default: False.
    padding_idx : int, optional
        Id of the padding token, hidden from attention in calls without padding masks or lengths. Default: None.
    tie_weights : bool
        `generator` and tgt_embedding share one weight array. Default: False.
    share_embeddings : bool
        Source and target share one embedding, for a common vocabulary. Default: False.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    src_embedding, tgt_embedding : Embedding
        All weights of two axes are initialised by `init.xavier_uniform_`; rows of padding are 0.
    src_positions, tgt_positions : PositionalEncoding
        Added to the token vectors.
    transformer : Transformer
        Encoder and decoder.
    generator : Linear
        d_model to tgt_vocab_size; its bias is initially 0.

    Raises
    ------
    TypeError
        An argument has another type, dtype is not float16, bfloat16, float32 or float64, or a custom part is not a
        module.
    ValueError
        A size is below 1, d_model is not a multiple of nhead, padding_idx or dropout is out of range, the activation is
        unknown, or vocabularies that share embeddings have different sizes.

    Examples
    --------
    >>> from pyattn import nn
    >>> model = nn.Seq2SeqTransformer(10, 12, 8, 2, 1, 1, 16, padding_idx=0, rng=0).eval()
    >>> src, tgt = [[3, 1, 4, 1], [5, 9, 0, 0]], [[1, 6, 2], [1, 2, 0]]
    >>> model(src, tgt).shape
    (2, 3, 12)
    """

    is_encoder_decoder = True
    # All but transformer: or modules with the same interfaces, see from_parts.
    src_embedding: Embedding
    tgt_embedding: Embedding
    src_positions: PositionalEncoding
    tgt_positions: PositionalEncoding
    transformer: Transformer
    generator: Linear

    def __init__(
        self,
        src_vocab_size: SupportsIndex,
        tgt_vocab_size: SupportsIndex,
        d_model: SupportsIndex = 512,
        nhead: SupportsIndex = 8,
        num_encoder_layers: SupportsIndex = 6,
        num_decoder_layers: SupportsIndex = 6,
        dim_feedforward: SupportsIndex = 2048,
        dropout: SupportsFloat = 0.1,
        activation: Activation = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: SupportsFloat = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        *,
        max_length: SupportsIndex = 5000,
        learned_positions: bool = False,
        padding_idx: SupportsIndex | None = None,
        tie_weights: bool = False,
        share_embeddings: bool = False,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        draws = as_generator(rng)
        tgt = make_embedding(tgt_vocab_size, d_model, padding_idx, dtype, "tgt_vocab_size")
        src = make_embedding(src_vocab_size, d_model, padding_idx, dtype, "src_vocab_size")
        if as_flag(share_embeddings, "share_embeddings"):
            if src.num_embeddings != tgt.num_embeddings:
                raise ValueError(
                    f"src_vocab_size is {src.num_embeddings} and tgt_vocab_size is {tgt.num_embeddings}, expected the "
                    "same of one vocabulary; or leave out share_embeddings"
                )
            src = tgt
        layers = num_encoder_layers, num_decoder_layers, dim_feedforward, dropout, activation
        options = layer_norm_eps, batch_first, norm_first, bias
        places: dict[str, Any] = {"learned": learned_positions, "batch_first": batch_first, "dtype": dtype}
        parts: dict[str, Module] = {
            "src_embedding": src,
            "tgt_embedding": tgt,
            "src_positions": PositionalEncoding(d_model, max_length, dropout, **places, rng=draws),
            "tgt_positions": PositionalEncoding(d_model, max_length, dropout, **places, rng=draws),
            "transformer": Transformer(
                d_model, nhead, *layers, custom_encoder, custom_decoder, *options, dtype=dtype, rng=draws
            ),
            "generator": make_generator(tgt, bias, tie_weights),
        }
        self._set(parts)
        self.reset_parameters(draws)

    def _set(self, parts: Mapping[str, Module]) -> None:
        for name in PARTS:
            setattr(self, name, parts[name])

    @classmethod
    def from_parts(cls: type[_Self], parts: Mapping[str, Module]) -> _Self:
        """Make a model of these parts: nothing is copied, nothing is drawn.

        Parameters
        ----------
        parts : mapping of str to Module
            'src_embedding', 'tgt_embedding', 'src_positions', 'tgt_positions', 'transformer' and 'generator', or
            modules with the same interfaces. Shared modules and shared arrays stay shared.

        Returns
        -------
        Seq2SeqTransformer
            With the parts themselves.

        Raises
        ------
        ValueError
            A part is missing or unexpected.
        TypeError
            A part is not a module, or transformer is not a Transformer.
        """
        check_parts(parts, PARTS)
        if not isinstance(parts["transformer"], Transformer):
            raise TypeError(f"transformer is of type {type(parts['transformer']).__name__}, expected Transformer")
        model = cls.__new__(cls)
        model._set(parts)
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
    def d_model(self) -> int:
        """Size of the hidden vectors."""
        return self.transformer.d_model

    @property
    def batch_first(self) -> bool:
        """Whether ids of two axes are (batch, length)."""
        return self.transformer.batch_first

    @property
    def vocab_size(self) -> int | None:
        """Size of the target vocabulary; None if the embedding does not define it."""
        return getattr(self.tgt_embedding, "num_embeddings", None)

    @property
    def src_vocab_size(self) -> int | None:
        """Size of the source vocabulary; None if the embedding does not define it."""
        return getattr(self.src_embedding, "num_embeddings", None)

    @property
    def max_length(self) -> int | None:
        """Number of target positions; None if tgt_positions does not define it."""
        return getattr(self.tgt_positions, "max_length", None)

    @property
    def padding_idx(self) -> int | None:
        """Id of the padding token in the source, or None."""
        return getattr(self.src_embedding, "padding_idx", None)

    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        tgt: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool = True,
        memory_is_causal: bool = False,
        *,
        src_lengths: npt.ArrayLike | None = None,
        tgt_lengths: npt.ArrayLike | None = None,
        need_weights: Literal[False] = False,
        rng: RNG = None,
    ) -> FloatArray: ...
    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        tgt: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool = True,
        memory_is_causal: bool = False,
        *,
        src_lengths: npt.ArrayLike | None = None,
        tgt_lengths: npt.ArrayLike | None = None,
        need_weights: Literal[True],
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]: ...
    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        tgt: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool = True,
        memory_is_causal: bool = False,
        *,
        src_lengths: npt.ArrayLike | None = None,
        tgt_lengths: npt.ArrayLike | None = None,
        need_weights: bool,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, FloatArray]: ...
    @recorded
    def forward(
        self,
        src: npt.ArrayLike,
        tgt: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool = True,
        memory_is_causal: bool = False,
        *,
        src_lengths: npt.ArrayLike | None = None,
        tgt_lengths: npt.ArrayLike | None = None,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, FloatArray]:
        """Compute the logits of the token after each token of tgt.

        `pyattn.softmax` makes them probabilities.

        Parameters
        ----------
        src : array_like of int, (N, S) or unbatched (S,)
            Ids of tokens; (S, N) unless batch_first.
        tgt : array_like of int, (N, L) or (L,)
            The tokens so far, as `pyattn.generation.shift_right` makes them in training; (L, N) unless batch_first.
        src_mask, tgt_mask, memory_mask : array_like, optional
            As in `Transformer.forward`. Default: None.
        src_key_padding_mask, tgt_key_padding_mask : array_like, (N, S) and (N, L), optional
            As in `Transformer.forward`. Default: None, the tokens equal to padding_idx, if set.
        memory_key_padding_mask : array_like, (N, S), optional
            As in `Transformer.forward`. Default: None, the padding of src.
        src_is_causal : bool, optional
            As in `Transformer.forward`. Default: None, False.
        tgt_is_causal : bool
            A token of tgt does not see later ones, whatever tgt_mask says. Default: True.
        memory_is_causal : bool
            As in `Transformer.forward`. Default: False.
        src_lengths, tgt_lengths : array_like of int, (N,), optional
            Instead of key padding masks: number of tokens of each row without padding. Default: None.
        need_weights : bool
            Return the weights of the decoder's attentions too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        logits : ndarray, (N, L, tgt_vocab_size) or (L, tgt_vocab_size)
            (L, N, tgt_vocab_size) unless batch_first. Without need_weights it is the only result.
        self_weights : ndarray, (layers, N, nhead, L, L) or (layers, nhead, L, L)
            With need_weights: one for each layer of the decoder.
        cross_weights : ndarray, (layers, N, nhead, L, S) or (layers, nhead, L, S)
            As self_weights, of the attention to the source.

        Raises
        ------
        TypeError
            src or tgt does not hold integers; a mask is neither bool nor of floats.
        ValueError
            An id is out of range, src or tgt is too long, or shapes disagree; the message names the argument.
        """
        source = Masking(
            src_mask,
            src_key_padding_mask,
            as_flag(src_is_causal, "src_is_causal", default=False),
            key_lengths=src_lengths,
        )
        target = Masking(tgt_mask, tgt_key_padding_mask, tgt_is_causal, key_lengths=tgt_lengths)
        cross = Masking(memory_mask, memory_key_padding_mask, memory_is_causal)
        weighted = as_flag(need_weights, "need_weights")
        logits, self_weights, cross_weights = self._call(src, tgt, (source, target, cross), rng, weighted)
        if not weighted:
            return logits
        assert self_weights is not None
        assert cross_weights is not None
        return logits, self_weights, cross_weights

    def encode(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        src_is_causal: bool | None = None,
        *,
        src_lengths: npt.ArrayLike | None = None,
        rng: RNG = None,
    ) -> FloatArray:
        """Compute the memory that the decoder attends to.

        Parameters
        ----------
        src : array_like of int
            As for `forward`.
        src_mask, src_key_padding_mask : array_like, optional
            As for `forward`. Default: None.
        src_is_causal : bool, optional
            As for `forward`. Default: None.
        src_lengths : array_like of int, optional
            As for `forward`. Default: None.
        rng : None, int, SeedSequence or Generator
            As for `forward`. Default: None.

        Returns
        -------
        ndarray, (N, S, d_model), (S, N, d_model) or (S, d_model)

        Raises
        ------
        TypeError
            src does not hold integers; a mask is neither bool nor of floats.
        ValueError
            An id is out of range, src is too long, or shapes disagree; the message names the argument.
        """
        hidden = Masking(
            src_mask,
            src_key_padding_mask,
            as_flag(src_is_causal, "src_is_causal", default=False),
            key_lengths=src_lengths,
        )
        return self._encode(src, hidden, rng)[0]

    def decode(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = True,
        memory_is_causal: bool = False,
        *,
        tgt_lengths: npt.ArrayLike | None = None,
        memory_lengths: npt.ArrayLike | None = None,
        rng: RNG = None,
    ) -> FloatArray:
        """Compute the input of `generator`: a vector for each token of tgt.

        Parameters
        ----------
        tgt : array_like of int
            As for `forward`.
        memory : array_like, (N, S, d_model), (S, N, d_model) or (S, d_model)
            Result of `encode`.
        tgt_mask, memory_mask, tgt_key_padding_mask : array_like, optional
            As for `forward`. Default: None.
        memory_key_padding_mask : array_like, optional
            Padding of the source, which memory does not contain. Default: None, no padding.
        tgt_is_causal : bool
            As for `forward`. Default: True.
        memory_is_causal : bool
            As for `forward`. Default: False.
        tgt_lengths : array_like of int, optional
            As for `forward`. Default: None.
        memory_lengths : array_like of int, (N,), optional
            Instead of memory_key_padding_mask: the lengths of the source. Default: None.
        rng : None, int, SeedSequence or Generator
            As for `forward`. Default: None.

        Returns
        -------
        ndarray, (N, L, d_model), (L, N, d_model) or (L, d_model)

        Raises
        ------
        TypeError
            tgt does not hold integers, memory's dtype does not mix with the weights', or a mask holds neither bools
            nor floats.
        ValueError
            An id is out of range, tgt is too long, or shapes disagree; the message names the argument.
        """
        target = Masking(tgt_mask, tgt_key_padding_mask, tgt_is_causal, key_lengths=tgt_lengths)
        cross = Masking(memory_mask, memory_key_padding_mask, memory_is_causal, key_lengths=memory_lengths)
        return self._decode(tgt, memory, target, cross, rng, False)[0]

    def _call(
        self,
        src: npt.ArrayLike,
        tgt: npt.ArrayLike,
        hidden: tuple[Masking, Masking, Masking],
        rng: RNG,
        need_weights: bool,
    ) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        """Encode and decode; hidden has the masks of the source, the target and the cross-attention."""
        drawn = None if rng is None else as_generator(rng)  # shared by all parts
        memory, padding = self._encode(src, hidden[0], drawn)
        cross = hidden[2]
        if cross.key_padding_mask is None:
            cross = cross._replace(key_padding_mask=padding)
        output, *weights = self._decode(tgt, memory, hidden[1], cross, drawn, need_weights)
        return self.generator(output), weights[0], weights[1]

    def _encode(self, src: npt.ArrayLike, hidden: Masking, rng: RNG) -> tuple[FloatArray, npt.ArrayLike | None]:
        """Return the memory and its padding mask."""
        drawn: dict[str, Any] = {} if rng is None else {"rng": as_generator(rng)}
        given: dict[str, Any] = {"lengths": hidden.key_lengths, "key_padding_mask": hidden.key_padding_mask}
        sizes: dict[str, Any] = {"batch_first": self.batch_first}
        names = ("src_lengths", "src_key_padding_mask")
        tokens = read_tokens(src, "src", self.src_embedding, self.src_positions, **given, **sizes, names=names)
        x = embed(tokens.ids, self.src_embedding, self.src_positions, d_model=self.d_model, **sizes, **drawn)
        masks: dict[str, Any] = {"mask": hidden.attn_mask, "src_key_padding_mask": tokens.padding}
        masks["is_causal"] = hidden.is_causal
        return self.transformer.encoder(x, **masks, **drawn), tokens.padding

    def _decode(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        hidden: Masking,
        cross: Masking,
        rng: RNG,
        need_weights: bool,
    ) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        drawn: dict[str, Any] = {} if rng is None else {"rng": as_generator(rng)}
        given: dict[str, Any] = {"lengths": hidden.key_lengths, "key_padding_mask": hidden.key_padding_mask}
        sizes: dict[str, Any] = {"batch_first": self.batch_first}
        names = ("tgt_lengths", "tgt_key_padding_mask")
        tokens = read_tokens(tgt, "tgt", self.tgt_embedding, self.tgt_positions, **given, **sizes, names=names)
        x = embed(tokens.ids, self.tgt_embedding, self.tgt_positions, d_model=self.d_model, **sizes, **drawn)
        masks: dict[str, Any] = {"tgt_mask": hidden.attn_mask, "tgt_key_padding_mask": tokens.padding}
        masks |= {"memory_mask": cross.attn_mask, "memory_key_padding_mask": self._padding_of(memory, cross)}
        masks |= {"tgt_is_causal": hidden.is_causal, "memory_is_causal": cross.is_causal}
        decoder = self.transformer.decoder
        if not need_weights:
            return decoder(x, memory, **masks, **drawn), None, None
        output, self_weights, cross_weights = decoder(x, memory, **masks, **drawn, need_weights=True)
        return output, np.stack(self_weights), np.stack(cross_weights)

    def _padding_of(self, memory: npt.ArrayLike, cross: Masking) -> npt.ArrayLike | None:
        shape = np.shape(memory)[:-1]
        names = ("memory_lengths", "memory_key_padding_mask")
        return padding_of(cross.key_lengths, cross.key_padding_mask, shape if self.batch_first else shape[::-1], names)

    # With a cache

    def encode_memory(self, src: npt.ArrayLike, *, src_lengths: npt.ArrayLike | None = None) -> KVCache:
        """Encode a source, and store its keys and values for all decoder layers.

        Call it once before the decoding steps.

        Parameters
        ----------
        src : array_like of int, (N, S)
            Ids of tokens; (S, N) unless batch_first.
        src_lengths : array_like of int, (N,), optional
            Number of tokens of each row without padding. Default: None, all tokens except padding_idx at the end.

        Returns
        -------
        KVCache
            The memory_cache of `decode_step`.

        Raises
        ------
        TypeError
            src does not hold integers.
        ValueError
            An id or a length is out of range, shapes disagree, or padding comes before other tokens.
        """
        memory, padding = self._encode(src, Masking(key_lengths=src_lengths), None)
        lengths = None if padding is None else lengths_of(read_padding_mask(padding, "src"))
        if padding is not None and lengths is None:
            raise ValueError("src has padding before other tokens, which a cache cannot hold; move it to the end")
        decoder = self._layers_with_cache()
        if not isinstance(decoder, TransformerDecoder):
            raise TypeError(f"transformer.decoder is of type {type(decoder).__name__}, expected TransformerDecoder")
        return decoder.encode_memory(memory, lengths)

    @property
    def _hidden_id(self) -> int | None:
        return getattr(self.tgt_embedding, "padding_idx", None)

    def _layers_with_cache(self) -> Stack:
        return as_stack(self.transformer.decoder, "transformer.decoder")

    def _embed_next(self, ids: IntArray, starts: IntArray, rng: RNG) -> FloatArray:
        sizes: dict[str, Any] = {"d_model": self.d_model, "batch_first": self.batch_first}
        return embed_next(ids, self.tgt_embedding, self.tgt_positions, starts, **sizes, rng=rng)

    def extra_repr(self) -> str:
        """Return the options that the repr of the parts does not show.

        Returns
        -------
        str
            Of one line.
        """
        return describe(self.d_model, self.batch_first, self.generator, self.tgt_embedding)

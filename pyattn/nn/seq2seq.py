"""A model that translates: a Transformer between two embeddings and a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from pyattn._flags import as_flag
from pyattn.dropping import RNG, as_generator
from pyattn.nn.encoder_decoder import EncoderDecoder
from pyattn.nn.feed_forward import Activation
from pyattn.nn.layer_parts import check_parts
from pyattn.nn.module import Module
from pyattn.nn.positional import PositionalEncoding
from pyattn.nn.tokens import describe, draw_weights, make_embedding, make_generator
from pyattn.nn.transformer import Transformer

__all__ = ["Seq2SeqTransformer"]

_Self = TypeVar("_Self", bound="Seq2SeqTransformer")
PARTS = ("src_embedding", "tgt_embedding", "src_positions", "tgt_positions", "transformer", "generator")


class Seq2SeqTransformer(EncoderDecoder):
    """The whole of Vaswani et al. 2017, which PyTorch leaves to its users: tokens in, scores of the next tokens out.

    ``generator(transformer(src_embedding(src) * sqrt(d_model) + src_positions, tgt_embedding(tgt) * sqrt(d_model) +
    tgt_positions))``, where a target's token sees itself and those before it. Every attribute but the positions, which
    have no parameters unless they are learned, has the state_dict names of torch's module of that name.

    Parameters
    ----------
    src_vocab_size, tgt_vocab_size : int
        How many tokens there are in the source and in the target: ids are from 0 on.
    d_model : int
        Size of the vectors in between. Default: 512.
    nhead : int
        Heads of each attention; divides d_model. Default: 8.
    num_encoder_layers, num_decoder_layers : int
        How many. Default: 6.
    dim_feedforward : int
        Size of the last axis within feed-forward parts. Default: 2048.
    dropout : float
        As in `TransformerEncoderLayer`, and of what goes into the first layers. Default: 0.1.
    activation : {'relu', 'gelu', 'gelu_tanh', 'silu'} or callable
        As in `TransformerEncoderLayer`. Default: 'relu'.
    custom_encoder, custom_decoder : Module, optional
        As in `Transformer`. Default: None.
    layer_norm_eps : float
        Of all normalisations. Default: 1e-5.
    batch_first : bool
        Ids of two axes are (batch, length), not (length, batch): as `pyattn.pad_sequences` makes them, and
        `pyattn.generate` takes them. So the default is not torch's. Default: True.
    norm_first : bool
        Normalise what goes into a part, not the sum. Default: False.
    bias : bool
        All parts have biases, the default.
    max_len : int
        The longest sequence. Default: 5000.
    learned_positions : bool
        Positions are parameters, not sines and cosines. Default: False.
    padding_idx : int, optional
        The id of padding, which is hidden in every call that does not say what padding is. Default: None.
    tie_weights : bool
        `generator` has tgt_embedding's own array for its weight. Default: False.
    share_embeddings : bool
        src_embedding is tgt_embedding: one vocabulary. Default: False.
    dtype : dtype
        float32, the default, or float64.
    rng : None, int, SeedSequence or Generator
        Where the first numbers come from. Default: None, others each time.

    Attributes
    ----------
    src_embedding, tgt_embedding : Embedding
        At first all weights of two axes are drawn by `init.xavier_uniform_`, and padding's rows are 0.
    src_positions, tgt_positions : PositionalEncoding
        Added to vectors of tokens.
    transformer : Transformer
        Encoder and decoder.
    generator : Linear
        d_model to tgt_vocab_size; its bias is 0 at first.

    Examples
    --------
    >>> from pyattn import nn
    >>> model = nn.Seq2SeqTransformer(10, 12, 8, 2, 1, 1, 16, padding_idx=0, rng=0).eval()
    >>> src, tgt = [[3, 1, 4, 1], [5, 9, 0, 0]], [[1, 6, 2], [1, 2, 0]]
    >>> model(src, tgt).shape
    (2, 3, 12)
    """

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
        max_len: SupportsIndex = 5000,
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
            "src_positions": PositionalEncoding(d_model, max_len, dropout, **places, rng=draws),
            "tgt_positions": PositionalEncoding(d_model, max_len, dropout, **places, rng=draws),
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
        """Make a model of these parts: nothing is copied, and nothing drawn.

        Parameters
        ----------
        parts : mapping of str to Module
            'src_embedding', 'tgt_embedding', 'src_positions', 'tgt_positions', 'transformer' and 'generator', or
            modules that are called as these. One may stand in two places, and weights that are one array stay one.

        Returns
        -------
        Seq2SeqTransformer
            With the parts themselves.

        Raises
        ------
        ValueError
            A part is missing or unexpected.
        TypeError
            A part is no module, or transformer no Transformer.
        """
        check_parts(parts, PARTS)
        if not isinstance(parts["transformer"], Transformer):
            raise TypeError(f"transformer is of type {type(parts['transformer']).__name__}, expected Transformer")
        model = cls.__new__(cls)
        model._set(parts)
        return model

    def reset_parameters(self, rng: RNG = None) -> None:
        """Draw all parameters of two axes anew, as the constructor does.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Where the numbers come from. Default: None, others each time.
        """
        draw_weights(self, rng)

    def extra_repr(self) -> str:
        """Tell what the repr of its parts does not.

        Returns
        -------
        str
            Of one line.
        """
        return describe(self.d_model, self.batch_first, self.generator, self.tgt_embedding)

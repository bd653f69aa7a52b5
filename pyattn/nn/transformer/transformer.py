"""The Transformer of Vaswani et al. 2017: an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsFloat, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_count, as_flag, as_float_dtype
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray
from pyattn.nn import init
from pyattn.nn.containers import check_module
from pyattn.nn.feed_forward import Activation
from pyattn.nn.module import Module
from pyattn.nn.norm import LayerNorm
from pyattn.nn.transformer.layer import TransformerDecoderLayer, TransformerEncoderLayer
from pyattn.nn.transformer.stack import TransformerDecoder, TransformerEncoder

__all__ = ["Transformer"]

_Self = TypeVar("_Self", bound="Transformer")


class Transformer(Module):
    """An encoder and a decoder: `torch.nn.Transformer` for NumPy. True = blocked in bare masks.

    "Attention Is All You Need", Vaswani et al. 2017, without embeddings, positions and what turns outputs into words.

    Parameters
    ----------
    d_model : int
        Size of the last axis of inputs and output. Default: 512.
    nhead : int
        Heads of each attention; divides d_model. Default: 8.
    num_encoder_layers, num_decoder_layers : int
        How many. Default: 6.
    dim_feedforward : int
        Size of the last axis within feed-forward parts. Default: 2048.
    dropout : float
        As in `TransformerEncoderLayer`. Default: 0.1.
    activation : {'relu', 'gelu', 'gelu_tanh', 'silu'} or callable
        As in `TransformerEncoderLayer`. Default: 'relu'.
    custom_encoder, custom_decoder : Module, optional
        Called in place of a `TransformerEncoder` or `TransformerDecoder`. What has a batch_first has that of the
        Transformer: torch does not look, and takes the batch for the length. Default: None.
    layer_norm_eps : float
        Of all normalisations. Default: 1e-5.
    batch_first : bool
        Inputs and output of three axes are (batch, length, features), not (length, batch, features). Default: False.
    norm_first : bool
        Normalise what goes into a part, not the sum. Default: False.
    bias : bool
        All parts have biases, the default.
    dtype : dtype
        float32, the default, or float64.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    encoder : TransformerEncoder
        Its norm is a `LayerNorm`, as the decoder's. At first all weights of two axes, a custom_encoder's, too, are
        drawn by `init.xavier_uniform_`.
    decoder : TransformerDecoder
        As the encoder.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True, rng=0).eval()
    >>> src, tgt = np.ones((1, 5, 8), np.float32), np.ones((1, 3, 8), np.float32)
    >>> transformer(src, tgt, tgt_is_causal=True).shape
    (1, 3, 8)
    """

    encoder: Module
    decoder: Module

    def __init__(
        self,
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
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        generator = as_generator(rng)
        sizes = d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias
        if custom_encoder is None:
            one = TransformerEncoderLayer(*sizes, dtype=dtype, rng=generator)
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
            custom_encoder = TransformerEncoder(one, num_encoder_layers, norm)
        if custom_decoder is None:
            other = TransformerDecoderLayer(*sizes, dtype=dtype, rng=generator)
            norm = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
            custom_decoder = TransformerDecoder(other, num_decoder_layers, norm)
        stacks = {"custom_encoder": custom_encoder, "custom_decoder": custom_decoder}
        self._set(stacks, d_model, nhead, batch_first)
        self.reset_parameters(generator)

    def _set(
        self, stacks: Mapping[str, Module], d_model: SupportsIndex, nhead: SupportsIndex, batch_first: bool
    ) -> None:
        """Take the encoder and the decoder, by the names that messages call them."""
        self.batch_first = as_flag(batch_first, "batch_first")
        for name, module in stacks.items():
            check_module(module, name)
            own = getattr(module, "batch_first", None)
            if own is not None and own != self.batch_first:
                raise ValueError(
                    f"{name} has batch_first={own}, expected {self.batch_first} as the Transformer: it would take the "
                    f"batch for the length; make both with batch_first={own}"
                )
        self.encoder, self.decoder = stacks.values()
        self.d_model = as_count(d_model, "d_model", least=1)
        self.nhead = as_count(nhead, "nhead", least=1)

    @classmethod
    def from_stacks(
        cls: type[_Self],
        encoder: Module,
        decoder: Module,
        *,
        d_model: SupportsIndex,
        nhead: SupportsIndex,
        batch_first: bool = False,
    ) -> _Self:
        """Make a Transformer of these stacks: nothing is copied, and nothing drawn.

        Parameters
        ----------
        encoder : TransformerEncoder
            Or another module that is called as one.
        decoder : TransformerDecoder
            Or another module that is called as one.
        d_model, nhead : int
            As for the constructor, where nothing depends on nhead.
        batch_first : bool
            That of the stacks. Default: False.

        Returns
        -------
        Transformer
            With the stacks themselves.

        Raises
        ------
        TypeError
            A stack is no module, or another argument of another type.
        ValueError
            A stack has another batch_first, or a size is less than 1.
        """
        transformer = cls.__new__(cls)
        transformer._set({"encoder": encoder, "decoder": decoder}, d_model, nhead, batch_first)
        return transformer

    def reset_parameters(self, rng: RNG = None) -> None:
        """Draw all parameters of two axes or more anew, by `init.xavier_uniform_`; the others stay as they are.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        generator = as_generator(rng)
        for array in self.parameters():
            if array.ndim > 1:
                init.xavier_uniform_(array, rng=generator)

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
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        *,
        rng: RNG = None,
    ) -> FloatArray:
        """Encode src, and decode tgt with what that gives for a memory.

        Parameters
        ----------
        src : array_like, (S, N, d_model) or unbatched (S, d_model)
            (N, S, d_model) with batch_first. Of the weights' dtype, as tgt.
        tgt : array_like, (L, N, d_model) or (L, d_model)
            (N, L, d_model) with batch_first.
        src_mask, tgt_mask, memory_mask : array_like, optional
            (S, S), (L, L) and (L, S), or the same for each head, as (N * nhead, S, S). bool: True = blocked; float:
            added to the scores. Default: None.
        src_key_padding_mask, tgt_key_padding_mask, memory_key_padding_mask : array_like, optional
            (N, S), (N, L) and (N, S), or (S,) and (L,). As the masks; memory's is not taken from src. Default: None.
        src_is_causal, tgt_is_causal : bool, optional
            Position i attends to 0 to i of its own, and to no others, whatever a mask says. Default: None, False.
        memory_is_causal : bool
            Position i of tgt attends to 0 to i of src, and to no others. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        ndarray
            Of tgt's shape.

        Raises
        ------
        TypeError
            src or tgt has another dtype than the weights; a mask is neither bool nor of floats.
        ValueError
            Shapes disagree; the message names the argument.
        """
        drawn = {} if rng is None else {"rng": as_generator(rng)}
        encoding = {"mask": src_mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": src_is_causal}
        memory = self.encoder(src, **encoding, **drawn)
        masks = {"tgt_mask": tgt_mask, "memory_mask": memory_mask}
        masks |= {"tgt_key_padding_mask": tgt_key_padding_mask, "memory_key_padding_mask": memory_key_padding_mask}
        hints = {"tgt_is_causal": tgt_is_causal, "memory_is_causal": memory_is_causal}
        output: FloatArray = self.decoder(tgt, memory, **masks, **hints, **drawn)
        return output

    @staticmethod
    def generate_square_subsequent_mask(sz: SupportsIndex, dtype: npt.DTypeLike = np.float32) -> FloatArray:
        """Make the mask that hides later positions: 0, and -inf above the diagonal. ``is_causal=True`` needs none.

        Parameters
        ----------
        sz : int
            Rows and columns.
        dtype : dtype
            float32, the default, or float64.

        Returns
        -------
        ndarray, (sz, sz)
            To be added to scores.

        Raises
        ------
        TypeError
            sz is no int, or dtype is another.
        ValueError
            sz is negative.

        Examples
        --------
        >>> from pyattn import nn
        >>> nn.Transformer.generate_square_subsequent_mask(3)
        array([[  0., -inf, -inf],
               [  0.,   0., -inf],
               [  0.,   0.,   0.]], dtype=float32)
        """
        size, kind = as_count(sz, "sz", least=0), as_float_dtype(dtype)
        return np.triu(np.full((size, size), -np.inf, kind), 1)

"""The Transformer of Vaswani et al. 2017: an encoder and a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_count, as_flag
from pyattn._util.halves import as_stored_dtype
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray
from pyattn.nn import init
from pyattn.nn.containers import check_module
from pyattn.nn.feed_forward import Activation
from pyattn.nn.gradients import recorded
from pyattn.nn.inputs import widen_half
from pyattn.nn.module import Module
from pyattn.nn.norm import LayerNorm
from pyattn.nn.transformer.layer import TransformerDecoderLayer, TransformerEncoderLayer
from pyattn.nn.transformer.stack import TransformerDecoder, TransformerEncoder

__all__ = ["Transformer"]

_Self = TypeVar("_Self", bound="Transformer")


class Transformer(Module):
    """An encoder and a decoder: `torch.nn.Transformer` for NumPy.

    True = blocked in bare masks. "Attention Is All You Need", Vaswani et al. 2017, without embeddings, positions and
    output layer.

    Parameters
    ----------
    d_model : int
        Size of the last axis of inputs and output. Default: 512.
    nhead : int
        Heads of each attention; divides d_model. Default: 8.
    num_encoder_layers, num_decoder_layers : int
        Number of layers. Default: 6.
    dim_feedforward : int
        Size of the last axis within feed-forward parts. Default: 2048.
    dropout : float
        As in `TransformerEncoderLayer`. Default: 0.1.
    activation : str or callable
        As in `FeedForward`. Default: 'relu'.
    custom_encoder, custom_decoder : Module, optional
        Replaces the `TransformerEncoder` or `TransformerDecoder`. If it has batch_first, that must equal the
        Transformer's; torch does not check this and swaps batch and length. Default: None.
    layer_norm_eps : float
        eps of all normalisations. Default: 1e-5.
    batch_first : bool
        Inputs and output of three axes are (batch, length, features), not (length, batch, features). Default: False.
    norm_first : bool
        Normalise the input of each part (pre-norm), not the sum after it. Default: False.
    bias : bool
        All parts have biases. Default: True.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    encoder : TransformerEncoder
        Its norm is a `LayerNorm`. All weights of two axes are initialised by `init.xavier_uniform_`, those of a
        custom_encoder too.
    decoder : TransformerDecoder
        As the encoder.

    Raises
    ------
    TypeError
        An argument other than activation has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A number is out of range, d_model is not a multiple of nhead, activation is neither callable nor a known name,
        or custom_encoder or custom_decoder has another batch_first.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True, rng=0).eval()
    >>> src, tgt = np.ones((1, 5, 8), np.float32), np.ones((1, 3, 8), np.float32)
    >>> transformer(src, tgt, tgt_is_causal=True).shape
    (1, 3, 8)
    """

    encoder: TransformerEncoder  # or modules with the same interfaces, see from_stacks
    decoder: TransformerDecoder

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
        """Set the encoder and the decoder, given by their names in messages."""
        self.batch_first = as_flag(batch_first, "batch_first")
        for name, module in stacks.items():
            check_module(module, name)
            own = getattr(module, "batch_first", None)
            if own is not None and own != self.batch_first:
                raise ValueError(
                    f"{name} has batch_first={own}, expected {self.batch_first} as the Transformer: it would take the "
                    f"batch for the length; make both with batch_first={own}"
                )
        encoder, decoder = stacks.values()
        self.encoder, self.decoder = cast(TransformerEncoder, encoder), cast(TransformerDecoder, decoder)
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
        """Make a Transformer of these stacks: nothing is copied, nothing is drawn.

        Parameters
        ----------
        encoder : TransformerEncoder
            Or another module with the same interface.
        decoder : TransformerDecoder
            Or another module with the same interface.
        d_model, nhead : int
            As for the constructor; nhead is only stored.
        batch_first : bool
            Layout of the stacks. Default: False.

        Returns
        -------
        Transformer
            With the stacks themselves.

        Raises
        ------
        TypeError
            A stack is not a module, or another argument has the wrong type.
        ValueError
            A stack has another batch_first, or a size is less than 1.
        """
        transformer = cls.__new__(cls)
        transformer._set({"encoder": encoder, "decoder": decoder}, d_model, nhead, batch_first)
        return transformer

    def reset_parameters(self, rng: RNG = None) -> None:
        """Initialise parameters of two or more axes by `init.xavier_uniform_`.

        Others do not change.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        generator = as_generator(rng)
        for array in self.parameters():
            if array.ndim > 1:
                init.xavier_uniform_(array, rng=generator)

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
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        *,
        rng: RNG = None,
    ) -> FloatArray:
        """Encode src, and decode tgt with the result as memory.

        Parameters
        ----------
        src : array_like, (S, N, d_model) or unbatched (S, d_model)
            (N, S, d_model) with batch_first. Of the weights' dtype, as tgt; float32 mixes with float16 or bfloat16.
        tgt : array_like, (L, N, d_model) or (L, d_model)
            (N, L, d_model) with batch_first.
        src_mask, tgt_mask, memory_mask : array_like, optional
            (S, S), (L, L) and (L, S), or per batch entry and head, such as (N * nhead, S, S). bool: True = blocked;
            float: added to the scores. Default: None.
        src_key_padding_mask, tgt_key_padding_mask, memory_key_padding_mask : array_like, optional
            (N, S), (N, L) and (N, S), or (S,) and (L,). Read as the masks. memory_key_padding_mask does not default to
            src's. Default: None.
        src_is_causal, tgt_is_causal : bool, optional
            Position i attends only to positions 0 to i of the same input, whatever a mask says. Default: None, False.
        memory_is_causal : bool
            Position i of tgt attends only to positions 0 to i of src. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        ndarray
            Of tgt's shape.

        Raises
        ------
        TypeError
            src's or tgt's dtype does not mix with the weights'; a mask is neither bool nor of floats.
        ValueError
            Shapes disagree; the message names the argument.
        """
        drawn: dict[str, Any] = {} if rng is None else {"rng": as_generator(rng)}
        encoding: dict[str, Any] = {"mask": src_mask, "src_key_padding_mask": src_key_padding_mask}
        encoding["is_causal"] = src_is_causal
        memory = self.encoder(src, **encoding, **drawn)
        if getattr(memory, "dtype", None) == np.float32:
            tgt = widen_half(tgt, "tgt")  # src alone says whether results are rounded
        masks: dict[str, Any] = {"tgt_mask": tgt_mask, "memory_mask": memory_mask}
        masks |= {"tgt_key_padding_mask": tgt_key_padding_mask, "memory_key_padding_mask": memory_key_padding_mask}
        masks |= {"tgt_is_causal": tgt_is_causal, "memory_is_causal": memory_is_causal}
        output: FloatArray = self.decoder(tgt, memory, **masks, **drawn)
        return output

    @staticmethod
    def generate_square_subsequent_mask(sz: SupportsIndex, dtype: npt.DTypeLike = np.float32) -> FloatArray:
        """Make the mask that hides later positions: 0, and -inf above the diagonal.

        ``is_causal=True`` does the same without an array.

        Parameters
        ----------
        sz : int
            Rows and columns.
        dtype : dtype
            float32, the default, float64, float16 or bfloat16.

        Returns
        -------
        ndarray, (sz, sz)
            To be added to scores.

        Raises
        ------
        TypeError
            sz is not an int, or dtype is not float16, bfloat16, float32 or float64.
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
        size, kind = as_count(sz, "sz", least=0), as_stored_dtype(dtype)
        return np.triu(np.full((size, size), -np.inf, kind), 1)

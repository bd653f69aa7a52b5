"""The layers of a Transformer's encoder and decoder."""

from __future__ import annotations

from typing import SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn.dropping import RNG
from pyattn.functional import FloatArray
from pyattn.nn.feed_forward import Activation
from pyattn.nn.layer_parts import Layer
from pyattn.nn.multihead import MultiheadAttention
from pyattn.nn.normalizing import LayerNorm
from pyattn.torch_rules import Hidden, Window

__all__ = ["TransformerDecoderLayer", "TransformerEncoderLayer"]


class TransformerEncoderLayer(Layer):
    """A layer of a Transformer's encoder: `torch.nn.TransformerEncoderLayer` for NumPy, True = blocked in masks.

    Self-attention, then ``linear2(act(linear1(x)))``; to each, what it works on is added. Vaswani et al. 2017 normalise
    the sum; with norm_first, what goes in (Xiong et al. 2020). One call of the core, unless dropout is at work or the
    activation is a function of the caller's.

    Parameters
    ----------
    d_model : int
        Size of the last axis of inputs and output.
    nhead : int
        Heads of the attention; divides d_model.
    dim_feedforward : int
        Size of the last axis within the feed-forward part. Default: 2048.
    dropout : float
        Probability of leaving out, in training, an attention's weight, a number of what is added, and one within the
        feed-forward part; `Module.eval` ends that. Default: 0.1.
    activation : {'relu', 'gelu', 'gelu_tanh', 'silu'} or callable
        A callable takes an array and returns another of its shape and dtype; `pyattn.gelu` and `pyattn.silu` are known
        by themselves. Default: 'relu'.
    layer_norm_eps : float
        Of the normalisations. Default: 1e-5.
    batch_first : bool
        Inputs and output of three axes are (batch, length, features), not (length, batch, features). Default: False.
    norm_first : bool
        Normalise what goes into a part, not the sum. Default: False.
    bias : bool
        All parts have biases, the default.
    dtype : dtype
        float32, the default, or float64.
    rng : None, int, SeedSequence or Generator
        Where the first numbers come from. Default: None, others each time.

    Attributes
    ----------
    self_attn : MultiheadAttention
        First numbers as in torch, of all parts.
    linear1, linear2 : Linear
        d_model to dim_feedforward, and back.
    norm1, norm2 : LayerNorm
        Of the attention and of the feed-forward part.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, rng=0).eval()
    >>> padding = np.array([[False, False, False], [False, False, True]])
    >>> layer(np.ones((2, 3, 8), np.float32), src_key_padding_mask=padding).shape
    (2, 3, 8)
    """

    attentions = ("self_attn",)

    def __init__(
        self,
        d_model: SupportsIndex,
        nhead: SupportsIndex,
        dim_feedforward: SupportsIndex = 2048,
        dropout: SupportsFloat = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: SupportsFloat = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        sizes, options = (d_model, nhead, dim_feedforward), (dropout, activation, norm_first)
        self._make(sizes, options, layer_norm_eps, batch_first, bias, dtype, rng)

    def forward(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        *,
        window: Window = None,
        rng: RNG = None,
    ) -> FloatArray:
        """Compute the layer.

        On purpose not as torch's: `is_causal` hides later positions, with or without a mask, where torch takes it for a
        hint on the mask that it must get, too. A row with nothing to attend to gives 0 before the attention's output
        projection, where torch's eval mode gives NaN.

        Parameters
        ----------
        src : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with batch_first. Of the weights' dtype.
        src_mask : array_like, (L, L) or (N * nhead, L, L), optional
            bool: True = blocked; float: added to the scores. Of batch entry b and head h at ``b * nhead + h``. Default:
            None.
        src_key_padding_mask : array_like, (N, L) or (L,), optional
            bool: True = blocked; float: added to the scores. Default: None.
        is_causal : bool
            Position i attends to 0 to i, and to no others, whatever src_mask says. Default: False.
        window : int or (left, right), optional
            Position i attends to i - left to i + right; None = unbounded. Default: None.
        rng : None, int, SeedSequence or Generator
            Where dropout's numbers come from, in training. Default: None, others each time.

        Returns
        -------
        ndarray
            Of src's shape.

        Raises
        ------
        TypeError
            src has another dtype than the weights; a mask is neither bool nor of floats.
        ValueError
            Shapes do not go together; the message names the argument.
        """
        return self._call(src, Hidden(src_mask, src_key_padding_mask, is_causal, window), rng)[0]

    def forward_with_weights(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        *,
        window: Window = None,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray, None]:
        """Compute the layer and return its attention's weights, too, as what a decoder's layer returns.

        Parameters
        ----------
        src : array_like
            As for `forward`.
        src_mask, src_key_padding_mask : array_like, optional
            As for `forward`. Default: None.
        is_causal : bool
            As for `forward`. Default: False.
        window : int or (left, right), optional
            As for `forward`. Default: None.
        rng : None, int, SeedSequence or Generator
            As for `forward`. Default: None.

        Returns
        -------
        output : ndarray
            As `forward` gives it, in the same bits.
        self_weights : ndarray, (N, nhead, L, L) or (nhead, L, L)
            After dropout, as torch's.
        cross_weights : None
            An encoder attends to nothing else.
        """
        output, weights, _ = self._call(src, Hidden(src_mask, src_key_padding_mask, is_causal, window), rng, True)
        assert weights is not None
        return output, weights, None

    def _call(
        self, src: npt.ArrayLike, hidden: Hidden, rng: RNG, need_weights: bool = False
    ) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        names = ("src_mask", "src_key_padding_mask", "is_causal")
        return self._compute((("src", src),), (hidden,), (names,), rng, need_weights)


class TransformerDecoderLayer(Layer):
    """A layer of a Transformer's decoder: `torch.nn.TransformerDecoderLayer` for NumPy, True = blocked in masks.

    Self-attention, attention to memory, then ``linear2(act(linear1(x)))``; to each, what it works on is added.
    Vaswani et al. 2017 normalise the sum; with norm_first, what goes in. One call of the core, unless dropout is at
    work or the activation is a function of the caller's.

    Parameters
    ----------
    d_model : int
        Size of the last axis of inputs and output.
    nhead : int
        Heads of both attentions; divides d_model.
    dim_feedforward : int
        Size of the last axis within the feed-forward part. Default: 2048.
    dropout : float
        As in `TransformerEncoderLayer`. Default: 0.1.
    activation : {'relu', 'gelu', 'gelu_tanh', 'silu'} or callable
        As in `TransformerEncoderLayer`. Default: 'relu'.
    layer_norm_eps : float
        Of the normalisations. Default: 1e-5.
    batch_first : bool
        Inputs and output of three axes are (batch, length, features), not (length, batch, features). Default: False.
    norm_first : bool
        Normalise what goes into a part, not the sum. Default: False.
    bias : bool
        All parts have biases, the default.
    dtype : dtype
        float32, the default, or float64.
    rng : None, int, SeedSequence or Generator
        Where the first numbers come from. Default: None, others each time.

    Attributes
    ----------
    self_attn, multihead_attn : MultiheadAttention
        Of tgt to itself, and to memory.
    linear1, linear2 : Linear
        d_model to dim_feedforward, and back.
    norm1, norm2, norm3 : LayerNorm
        Of the two attentions and of the feed-forward part.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, rng=0).eval()
    >>> tgt, memory = np.ones((2, 3, 8), np.float32), np.ones((2, 5, 8), np.float32)
    >>> layer(tgt, memory, tgt_is_causal=True).shape
    (2, 3, 8)
    """

    attentions = ("self_attn", "multihead_attn")
    multihead_attn: MultiheadAttention
    norm3: LayerNorm

    def __init__(
        self,
        d_model: SupportsIndex,
        nhead: SupportsIndex,
        dim_feedforward: SupportsIndex = 2048,
        dropout: SupportsFloat = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: SupportsFloat = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        sizes, options = (d_model, nhead, dim_feedforward), (dropout, activation, norm_first)
        self._make(sizes, options, layer_norm_eps, batch_first, bias, dtype, rng)

    def forward(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        rng: RNG = None,
    ) -> FloatArray:
        """Compute the layer. What is not as torch's is told in `TransformerEncoderLayer.forward`.

        Parameters
        ----------
        tgt : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with batch_first. Of the weights' dtype, as memory.
        memory : array_like, (S, N, d_model) or (S, d_model)
            (N, S, d_model) with batch_first.
        tgt_mask : array_like, (L, L) or (N * nhead, L, L), optional
            bool: True = blocked; float: added to the scores. Default: None.
        memory_mask : array_like, (L, S) or (N * nhead, L, S), optional
            As tgt_mask. Default: None.
        tgt_key_padding_mask : array_like, (N, L) or (L,), optional
            As tgt_mask. Default: None.
        memory_key_padding_mask : array_like, (N, S) or (S,), optional
            As tgt_mask. Default: None.
        tgt_is_causal : bool
            Position i attends to 0 to i of tgt, and to no others, whatever tgt_mask says. Default: False.
        memory_is_causal : bool
            Position i attends to 0 to i of memory, and to no others. Default: False.
        rng : None, int, SeedSequence or Generator
            Where dropout's numbers come from, in training. Default: None, others each time.

        Returns
        -------
        ndarray
            Of tgt's shape.

        Raises
        ------
        TypeError
            tgt or memory has another dtype than the weights; a mask is neither bool nor of floats.
        ValueError
            Shapes do not go together; the message names the argument.
        """
        own = Hidden(tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        return self._call(tgt, memory, own, Hidden(memory_mask, memory_key_padding_mask, memory_is_causal), rng)[0]

    def forward_with_weights(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Compute the layer and return the weights of its attentions, too.

        Parameters
        ----------
        tgt, memory : array_like
            As for `forward`.
        tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask : array_like, optional
            As for `forward`. Default: None.
        tgt_is_causal, memory_is_causal : bool
            As for `forward`. Default: False.
        rng : None, int, SeedSequence or Generator
            As for `forward`. Default: None.

        Returns
        -------
        output : ndarray
            As `forward` gives it, in the same bits.
        self_weights : ndarray, (N, nhead, L, L) or (nhead, L, L)
            After dropout, as torch's.
        cross_weights : ndarray, (N, nhead, L, S) or (nhead, L, S)
            As self_weights, of the attention to memory.
        """
        own = Hidden(tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        cross = Hidden(memory_mask, memory_key_padding_mask, memory_is_causal)
        output, self_weights, cross_weights = self._call(tgt, memory, own, cross, rng, True)
        assert self_weights is not None
        assert cross_weights is not None
        return output, self_weights, cross_weights

    def _call(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        own: Hidden,
        cross: Hidden,
        rng: RNG,
        need_weights: bool = False,
    ) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        masks = ("tgt_mask", "tgt_key_padding_mask", "tgt_is_causal")
        others = ("memory_mask", "memory_key_padding_mask", "memory_is_causal")
        return self._compute((("tgt", tgt), ("memory", memory)), (own, cross), (masks, others), rng, need_weights)

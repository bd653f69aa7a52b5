"""A Transformer's encoder and decoder: layers in a row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from pyattn import _core
from pyattn._flags import as_flag
from pyattn.dropping import RNG
from pyattn.functional import FloatArray
from pyattn.nn.feed_forward import name_in_the_core
from pyattn.nn.layers import TransformerEncoderLayer
from pyattn.nn.module import Module
from pyattn.nn.stack_parts import Stack

if TYPE_CHECKING:
    from pyattn.cache import KVCache

__all__ = ["TransformerDecoder", "TransformerEncoder"]

_Encoder = TypeVar("_Encoder", bound="TransformerEncoder")


class TransformerEncoder(Stack):
    """A Transformer's encoder, layers in a row: `torch.nn.TransformerEncoder` for NumPy, True = blocked in masks.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
        Or another module that is called as one. The layers are copies of it, with the same first numbers, as in torch.
    num_layers : int
        How many.
    norm : Module, optional
        Applied to what the last layer gives. Default: None.
    enable_nested_tensor : bool
        There are no nested tensors here, and nothing to gain from them. All that is left of it is what torch does with
        padding, see `forward`; the default.
    mask_check : bool
        Without effect: the padding is always looked at. Default: True.

    Attributes
    ----------
    layers : ModuleList
        The layers.
    norm : Module or None
        As given.
    use_nested_tensor : bool
        Rows of padding at the end are 0 in eval mode.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, rng=0)
    >>> encoder = nn.TransformerEncoder(layer, 3).eval()
    >>> padding = np.array([[False, False, True]])
    >>> encoder(np.ones((1, 3, 8), np.float32), src_key_padding_mask=padding)[0, 2]
    array([0., 0., 0., 0., 0., 0., 0., 0.], dtype=float32)
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: SupportsIndex,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self._clone(encoder_layer, num_layers, norm, "encoder_layer")
        self._set_options(enable_nested_tensor, mask_check)

    def _set_options(self, enable_nested_tensor: bool, mask_check: bool) -> None:
        self.enable_nested_tensor = as_flag(enable_nested_tensor, "enable_nested_tensor")
        self.mask_check = as_flag(mask_check, "mask_check")
        self.use_nested_tensor = self.enable_nested_tensor and _is_nestable(self.layers[0])

    @classmethod
    def from_layers(
        cls: type[_Encoder],
        layers: Iterable[Module],
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> _Encoder:
        """Make an encoder of these layers, which may differ: nothing is copied.

        Parameters
        ----------
        layers : iterable of Module
            One or more.
        norm : Module, optional
            Applied to what the last layer gives. Default: None.
        enable_nested_tensor : bool
            As for the constructor. Default: True.
        mask_check : bool
            As for the constructor. Default: True.

        Returns
        -------
        TransformerEncoder
            With the layers themselves.

        Raises
        ------
        TypeError
            What is given is no module, or an option is neither True nor False.
        ValueError
            There is no layer, or batch_first of one is another than that of the first.
        """
        encoder = super().from_layers(layers, norm)
        encoder._set_options(enable_nested_tensor, mask_check)
        return encoder

    def forward(
        self,
        src: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool | None = None,
        *,
        rng: RNG = None,
    ) -> FloatArray:
        """Call the layers in turn.

        Where torch's, without gradients, cuts padding off as a nested tensor, rows of padding are 0 before norm, as
        there: in eval mode, batched, with a src_key_padding_mask of padding at the ends alone, without mask and
        is_causal (for which torch needs a mask), if the layer given was a `TransformerEncoderLayer` with batch_first,
        biases, an even number of heads and relu or gelu, without norm_first. Not as in torch, a src_key_padding_mask of
        finite floats hides nothing.

        Parameters
        ----------
        src : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with the layers' batch_first. Of the weights' dtype.
        mask : array_like, (L, L) or (N * nhead, L, L), optional
            bool: True = blocked; float: added to the scores. Default: None.
        src_key_padding_mask : array_like, (N, L) or (L,), optional
            bool: True = blocked; float: added to the scores. Default: None.
        is_causal : bool, optional
            Position i attends to 0 to i, and to no others, whatever mask says. Default: None, False: there is nothing
            to be detected in a mask that counts anyway.
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
        causal = bool_or(is_causal)
        masks = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": causal}
        output: FloatArray = self._through(src, rng=rng, **masks)
        cut = self.use_nested_tensor and output.ndim == 3 and mask is None and not causal
        if cut and src_key_padding_mask is not None:
            padding = None if self.layers[0].training else _padding_at_the_ends(src_key_padding_mask)
            if padding is not None:
                output = np.where(padding[..., None], output.dtype.type(0), output)
        return output if self.norm is None else self.norm(output)


class TransformerDecoder(Stack):
    """A Transformer's decoder, layers in a row: `torch.nn.TransformerDecoder` for NumPy, True = blocked in masks.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
        Or another module that is called as one. The layers are copies of it, with the same first numbers, as in torch.
    num_layers : int
        How many.
    norm : Module, optional
        Applied to what the last layer gives. Default: None.

    Attributes
    ----------
    layers : ModuleList
        The layers.
    norm : Module or None
        As given.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, rng=0), 3).eval()
    >>> tgt, memory = np.ones((1, 3, 8), np.float32), np.ones((1, 5, 8), np.float32)
    >>> decoder(tgt, memory, tgt_is_causal=True).shape
    (1, 3, 8)
    """

    def __init__(self, decoder_layer: Module, num_layers: SupportsIndex, norm: Module | None = None) -> None:
        super().__init__()
        self._clone(decoder_layer, num_layers, norm, "decoder_layer")

    def forward(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        *,
        rng: RNG = None,
    ) -> FloatArray:
        """Call the layers in turn.

        Parameters
        ----------
        tgt : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with the layers' batch_first. Of the weights' dtype, as memory.
        memory : array_like, (S, N, d_model) or (S, d_model)
            (N, S, d_model) with batch_first.
        tgt_mask, memory_mask : array_like, optional
            (L, L) and (L, S), or (N * nhead, L, L) and (N * nhead, L, S). bool: True = blocked; float: added to the
            scores. Default: None.
        tgt_key_padding_mask, memory_key_padding_mask : array_like, optional
            (N, L) and (N, S), or (L,) and (S,). As the masks. Default: None.
        tgt_is_causal : bool, optional
            Position i attends to 0 to i of tgt, and to no others, whatever tgt_mask says. Default: None, False.
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
        masks = {"tgt_mask": tgt_mask, "memory_mask": memory_mask}
        masks |= {"tgt_key_padding_mask": tgt_key_padding_mask, "memory_key_padding_mask": memory_key_padding_mask}
        hints = {"tgt_is_causal": bool_or(tgt_is_causal), "memory_is_causal": memory_is_causal}
        output: FloatArray = self._through(tgt, memory, rng=rng, **masks, **hints)
        return output if self.norm is None else self.norm(output)

    def remember(self, memory: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> KVCache:
        """Compute what all layers attend to in a memory, once for all steps.

        Parameters
        ----------
        memory : array_like, (S, N, d_model)
            (N, S, d_model) with the layers' batch_first.
        lengths : array_like of int, (N,), optional
            How many rows of each batch entry count; those behind are padding. Default: None, all.

        Returns
        -------
        KVCache
            The memory_cache of `step`.

        Raises
        ------
        TypeError
            memory has another dtype than the weights, or layers are none of pyattn's.
        ValueError
            Shapes do not go together.
        """
        rows = _core.as_array(memory, "memory")
        if rows.ndim != 3:
            raise ValueError(f"memory has shape {rows.shape}, expected three axes: a cache has batch entries")
        cache = self._cache_of("multihead_attn", rows.shape[0 if self.batch_first else 1])
        layer: Any
        for n, layer in enumerate(self.layers):
            layer.multihead_attn.remember(rows, cache, n, lengths=lengths)
        return cache


def bool_or(hint: bool | None) -> bool:
    """Read a hint that may be left out.

    Parameters
    ----------
    hint : bool, optional
        As the caller gave it.

    Returns
    -------
    bool
        False for None.
    """
    return False if hint is None else hint


def _is_nestable(layer: Module) -> bool:
    """Tell whether torch's encoder would make nested tensors for copies of such a layer."""
    if not isinstance(layer, TransformerEncoderLayer):
        return False
    attention = layer.self_attn
    biased = attention.in_proj_weight is not None and attention.in_proj_bias is not None
    even = attention.num_heads % 2 == 0 and attention.batch_first
    known = name_in_the_core(layer.activation) in ("relu", "gelu")
    return even and biased and known and not layer.norm_first and layer.norm1.eps == layer.norm2.eps


def _padding_at_the_ends(given: npt.ArrayLike) -> npt.NDArray[np.bool_] | None:
    """Find what is blocked; None where that is not the ends of rows alone."""
    mask = _core.as_array(given, "src_key_padding_mask")
    blocked = mask if mask.dtype == np.bool_ else mask == -np.inf
    inside = (blocked[:, :-1] & ~blocked[:, 1:]).any() or not (blocked | (mask == 0)).all()
    return None if inside else blocked

"""A Transformer's encoder and decoder: stacks of layers."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_count, as_flag
from pyattn._util.halves import compute_dtype
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray
from pyattn.cache.kv_cache import KVCache
from pyattn.functional._multihead_masks import read_padding_mask
from pyattn.nn.attention.cached import check_cache
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.containers import ModuleList, check_module, modules_of
from pyattn.nn.feed_forward import core_activation
from pyattn.nn.gradients import recorded, running
from pyattn.nn.inputs import rounding_halves
from pyattn.nn.module import Module
from pyattn.nn.transformer.layer import TransformerDecoderLayer, TransformerEncoderLayer

__all__ = ["Stack", "StackResult", "TransformerDecoder", "TransformerEncoder"]


_Self = TypeVar("_Self", bound="Stack")
_Encoder = TypeVar("_Encoder", bound="TransformerEncoder")


class StackResult(NamedTuple):
    """Output, and weights of each layer and head if requested; None for an attention the layers lack."""

    output: FloatArray
    self_weights: list[FloatArray] | None
    cross_weights: list[FloatArray] | None


class Stack(Module):
    """Layers, and a normalisation of the last layer's output."""

    layers: ModuleList[Any]
    norm: Module | None

    def _clone(self, layer: Module, num_layers: SupportsIndex, norm: Module | None, name: str) -> None:
        count = as_count(num_layers, "num_layers", least=1)
        check_module(layer, name)
        self._set([copy.deepcopy(layer) for _ in range(count)], norm)

    def _set(self, layers: list[Module], norm: Module | None) -> None:
        if norm is not None:
            check_module(norm, "norm")
        self.layers = ModuleList(layers)
        self.num_layers = len(self.layers)
        self.norm = norm

    @classmethod
    def from_layers(cls: type[_Self], layers: Iterable[Module], norm: Module | None = None) -> _Self:
        """Make a stack of these layers, which may differ: nothing is copied.

        Parameters
        ----------
        layers : iterable of Module
            One or more.
        norm : Module, optional
            Applied to the output of the last layer. Default: None.

        Returns
        -------
        TransformerEncoder or TransformerDecoder
            With the layers themselves.

        Raises
        ------
        TypeError
            A layer or norm is not a module.
        ValueError
            layers is empty, or a layer differs from the first in batch_first.
        """
        stack, given = cls.__new__(cls), modules_of(layers, "layers")
        if not given:
            raise ValueError("layers is empty, expected one layer or more")
        first, *others = (getattr(layer, "batch_first", None) for layer in given)
        for n, other in enumerate(others, 1):
            if other != first and None not in (first, other):
                raise ValueError(f"layers[{n}] has batch_first={other}, expected {first} as of layers[0]")
        stack._set(given, norm)
        return stack

    @property
    def batch_first(self) -> bool | None:
        """Whether inputs of three axes are (batch, length, features).

        It is the batch_first of the first layer; None if that layer has none.
        """
        return getattr(self.layers[0], "batch_first", None)

    def new_cache(
        self,
        batch_size: SupportsIndex = 1,
        *,
        window: SupportsIndex | None = None,
        max_length: SupportsIndex | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> KVCache:
        """Make an empty cache for the keys and values of these layers' self-attentions.

        Parameters
        ----------
        batch_size : int
            Batch entries. Default: 1.
        window, max_length : int, optional
            As for `KVCache`. Default: None.
        dtype : dtype, optional
            Of the stored keys and values: float16 and bfloat16 take half of the memory. Default: None, the dtype in
            which the layers compute.

        Returns
        -------
        KVCache
            Without positions.

        Raises
        ------
        TypeError
            A layer is not one of pyattn's, or dtype is not float16, bfloat16, float32 or float64.
        ValueError
            Their attentions have different sizes.
        """
        return self._cache_of("self_attn", batch_size, dtype, window=window, max_length=max_length)

    def _cache_of(
        self, name: str, batch_size: SupportsIndex, dtype: npt.DTypeLike | None = None, **limits: SupportsIndex | None
    ) -> KVCache:
        """Make a cache for the attention of this name."""
        found = {_heads_of(layer, name) for layer in self.layers}
        if len(found) > 1:
            raise ValueError("layers have attentions of different sizes; a KVCache needs equal sizes in all layers")
        kv_heads, head_dim, v_head_dim, computed = found.pop()
        options: Any = {"batch_size": batch_size, "dtype": computed if dtype is None else dtype, **limits}
        return KVCache(len(self.layers), kv_heads, head_dim, v_head_dim=v_head_dim, **options)

    @rounding_halves
    def decode_step(
        self,
        x: npt.ArrayLike,
        cache: KVCache,
        *,
        memory_cache: KVCache | None = None,
        lengths: npt.ArrayLike | None = None,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> StackResult:
        """Call the layers in turn for the next tokens, and extend the KV cache by them.

        The output is bit-identical to these rows of `forward` over all tokens with is_causal, unless rotary frequencies
        depend on the sequence length (dynamic, longrope).

        Parameters
        ----------
        x : array_like, (L, N, d_model)
            The next tokens; (N, L, d_model) with the layers' batch_first.
        cache : KVCache
            With N batch entries, as made by `new_cache`. It changes only if the call succeeds.
        memory_cache : KVCache, optional
            For a decoder, the result of `TransformerDecoder.encode_memory`. Default: None.
        lengths : array_like of int, (N,), optional
            Number of tokens of each batch entry; later ones are padding. Default: None, all.
        need_weights : bool
            Return the weights too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        output : ndarray
            Of x's shape; padded rows are unspecified.
        self_weights : list of ndarray, (N, nhead, L, S), or None
            One for each layer; S counts the positions of the cache after the call.
        cross_weights : list of ndarray, (N, nhead, L, S), or None
            One for each layer; S counts the positions of memory_cache.

        Raises
        ------
        TypeError
            x's dtype does not mix with that of the weights or the cache.
        ValueError
            Shapes disagree, or the cache is full.
        """
        self._check_layers(cache, "cache")
        if memory_cache is not None:
            self._check_layers(memory_cache, "memory_cache")
        options: dict[str, Any] = {"lengths": lengths, "need_weights": need_weights}
        options |= {} if memory_cache is None else {"memory_cache": memory_cache}
        options |= {} if rng is None else {"rng": as_generator(rng)}
        own: list[FloatArray] = []
        cross: list[FloatArray] = []
        with cache._restored_on_error():
            layer: Any
            for n, layer in enumerate(self.layers):
                x, own_weights, cross_weights = layer.decode_step(x, cache, n, **options)
                own += [] if own_weights is None else [own_weights]
                cross += [] if cross_weights is None else [cross_weights]
            output = np.asarray(x) if self.norm is None else self.norm(x)
        return StackResult(output, own or None, cross or None)

    def _check_layers(self, cache: KVCache, name: str) -> None:
        """Require a cache for these layers, with equal lengths in all of them."""
        check_cache(cache, name)
        if cache.num_layers != len(self.layers):
            raise ValueError(f"{name} has {cache.num_layers} layers, expected {len(self.layers)}: see new_cache")
        for layer in self.layers:
            attention = getattr(layer, "self_attn" if name == "cache" else "multihead_attn", None)
            if isinstance(attention, MultiheadAttention):
                _check_sizes(cache, name, attention)
        if len({layer.lengths for layer in cache._layers}) > 1:
            raise ValueError(
                f"{name} has layers of different lengths; {name}.truncate({name}.lengths) makes them as long as the "
                "shortest"
            )

    def _through(
        self, x: npt.ArrayLike, *memory: npt.ArrayLike, rng: RNG, need_weights: bool, **masks: Any
    ) -> tuple[Any, list[FloatArray], list[FloatArray]]:
        """Call the layers in turn, and collect their weights if requested."""
        options: dict[str, Any] = {} if rng is None else {"rng": as_generator(rng)}  # shared by all parts
        options |= {"need_weights": True} if as_flag(need_weights, "need_weights") else {}
        own: list[FloatArray] = []
        cross: list[FloatArray] = []
        result: Any = x
        for layer in self.layers:
            result = running().layer(layer, result, *memory, **masks, **options)
            if need_weights:
                result, self_weights, cross_weights = result
                own.append(self_weights)
                cross += [] if cross_weights is None else [cross_weights]
        return result, own, cross


class TransformerEncoder(Stack):
    """A stack of encoder layers: `torch.nn.TransformerEncoder` for NumPy.

    True = blocked in bare masks.

    Parameters
    ----------
    encoder_layer : TransformerEncoderLayer
        A layer, or another module with the same interface. The stack holds copies with equal parameters, as in torch.
    num_layers : int
        Number of layers.
    norm : Module, optional
        Applied to the output of the last layer. Default: None.
    enable_nested_tensor : bool
        Set padded rows to 0 where torch's nested tensors do, see `forward`. pyattn itself does not use nested tensors.
        Default: True.

    Attributes
    ----------
    layers : ModuleList
        The layers.
    norm : Module or None
        As given.
    use_nested_tensor : bool
        Whether padded rows at the end become 0 in eval mode.

    Raises
    ------
    TypeError
        encoder_layer or norm is not a module, num_layers is not an integer, or enable_nested_tensor is not a bool.
    ValueError
        num_layers is below 1.

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

    layers: ModuleList[TransformerEncoderLayer]  # or modules with the same interface

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: SupportsIndex,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
    ) -> None:
        super().__init__()
        self._clone(encoder_layer, num_layers, norm, "encoder_layer")
        self._set_options(enable_nested_tensor)

    def _set_options(self, enable_nested_tensor: bool) -> None:
        self.enable_nested_tensor = as_flag(enable_nested_tensor, "enable_nested_tensor")
        self.use_nested_tensor = self.enable_nested_tensor and _is_nestable(self.layers[0])

    @classmethod
    def from_layers(
        cls: type[_Encoder],
        layers: Iterable[Module],
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
    ) -> _Encoder:
        """Make an encoder of these layers, which may differ: nothing is copied.

        Parameters
        ----------
        layers : iterable of Module
            One or more.
        norm : Module, optional
            Applied to the output of the last layer. Default: None.
        enable_nested_tensor : bool
            As for the constructor. Default: True.

        Returns
        -------
        TransformerEncoder
            With the layers themselves.

        Raises
        ------
        TypeError
            A layer or norm is not a module, or an option is not a bool.
        ValueError
            layers is empty, or a layer differs from the first in batch_first.
        """
        encoder = super().from_layers(layers, norm)
        encoder._set_options(enable_nested_tensor)
        return encoder

    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool | None = None,
        *,
        need_weights: Literal[False] = False,
        rng: RNG = None,
    ) -> FloatArray: ...
    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool | None = None,
        *,
        need_weights: Literal[True],
        rng: RNG = None,
    ) -> tuple[FloatArray, list[FloatArray], None]: ...
    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool | None = None,
        *,
        need_weights: bool,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, list[FloatArray], None]: ...
    @recorded
    def forward(
        self,
        src: npt.ArrayLike,
        mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool | None = None,
        *,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, list[FloatArray], None]:
        """Call the layers in turn.

        Padded rows are 0 before norm wherever torch, without gradients, drops padding with a nested tensor. That needs
        eval mode, a batch, a src_key_padding_mask with padding only at the ends of rows, and neither mask nor is_causal
        (for which torch needs a mask). The layer must be a `TransformerEncoderLayer` with batch_first, biases, an even
        number of heads and relu or gelu, without norm_first. Unlike in torch, a src_key_padding_mask of finite floats
        hides nothing.

        Parameters
        ----------
        src : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with the layers' batch_first. Of the weights' dtype; float32 mixes with float16 or bfloat16.
        mask : array_like, (L, L) or (N * nhead, L, L), optional
            bool: True = blocked; float: added to the scores. Default: None.
        src_key_padding_mask : array_like, (N, L) or (L,), optional
            bool: True = blocked; float: added to the scores. Default: None.
        is_causal : bool, optional
            Position i attends only to positions 0 to i, whatever mask says. Default: None, which means False; torch
            would check whether mask is causal.
        need_weights : bool
            Return the weights too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        output : ndarray
            Of src's shape. Without need_weights it is the only result.
        self_weights : list of ndarray, (N, nhead, L, L) or (nhead, L, L)
            With need_weights: one for each layer.
        cross_weights : None
            With need_weights, as of a decoder; an encoder has no cross-attention.

        Raises
        ------
        TypeError
            src's dtype does not mix with the weights'; a mask is neither bool nor of floats.
        ValueError
            Shapes disagree; the message names the argument.
        """
        causal = as_flag(is_causal, "is_causal", default=False)
        masks = {"src_mask": mask, "src_key_padding_mask": src_key_padding_mask, "is_causal": causal}
        output, self_weights, _ = self._through(src, rng=rng, need_weights=need_weights, **masks)
        cut = self.use_nested_tensor and not running().records and output.ndim == 3 and mask is None and not causal
        if cut and src_key_padding_mask is not None:
            padding = None if self.layers[0].training else _padding_at_the_ends(src_key_padding_mask)
            if padding is not None:
                output = np.where(padding[..., None], output.dtype.type(0), output)
        result: FloatArray = output if self.norm is None else self.norm(output)
        return (result, self_weights, None) if need_weights else result


class TransformerDecoder(Stack):
    """A stack of decoder layers: `torch.nn.TransformerDecoder` for NumPy.

    True = blocked in bare masks.

    Parameters
    ----------
    decoder_layer : TransformerDecoderLayer
        A layer, or another module with the same interface. The stack holds copies with equal parameters, as in torch.
    num_layers : int
        Number of layers.
    norm : Module, optional
        Applied to the output of the last layer. Default: None.

    Attributes
    ----------
    layers : ModuleList
        The layers.
    norm : Module or None
        As given.

    Raises
    ------
    TypeError
        decoder_layer or norm is not a module, or num_layers is not an integer.
    ValueError
        num_layers is below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, rng=0), 3).eval()
    >>> tgt, memory = np.ones((1, 3, 8), np.float32), np.ones((1, 5, 8), np.float32)
    >>> decoder(tgt, memory, tgt_is_causal=True).shape
    (1, 3, 8)
    """

    layers: ModuleList[TransformerDecoderLayer]  # or modules with the same interface

    def __init__(self, decoder_layer: Module, num_layers: SupportsIndex, norm: Module | None = None) -> None:
        super().__init__()
        self._clone(decoder_layer, num_layers, norm, "decoder_layer")

    @overload
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
        need_weights: Literal[False] = False,
        rng: RNG = None,
    ) -> FloatArray: ...
    @overload
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
        need_weights: Literal[True],
        rng: RNG = None,
    ) -> tuple[FloatArray, list[FloatArray], list[FloatArray]]: ...
    @overload
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
        need_weights: bool,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, list[FloatArray], list[FloatArray]]: ...
    @recorded
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
        need_weights: bool = False,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, list[FloatArray], list[FloatArray]]:
        """Call the layers in turn.

        Parameters
        ----------
        tgt : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with the layers' batch_first. Of the weights' dtype, as memory; float32 mixes with
            float16 or bfloat16.
        memory : array_like, (S, N, d_model) or (S, d_model)
            (N, S, d_model) with batch_first.
        tgt_mask, memory_mask : array_like, optional
            (L, L) and (L, S), or (N * nhead, L, L) and (N * nhead, L, S). bool: True = blocked; float: added to the
            scores. Default: None.
        tgt_key_padding_mask, memory_key_padding_mask : array_like, optional
            (N, L) and (N, S), or (L,) and (S,). As the masks. Default: None.
        tgt_is_causal : bool, optional
            Position i attends only to positions 0 to i of tgt, whatever tgt_mask says. Default: None, False.
        memory_is_causal : bool
            Position i attends only to positions 0 to i of memory. Default: False.
        need_weights : bool
            Return the weights too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        output : ndarray
            Of tgt's shape. Without need_weights it is the only result.
        self_weights : list of ndarray, (N, nhead, L, L) or (nhead, L, L)
            With need_weights: one for each layer.
        cross_weights : list of ndarray, (N, nhead, L, S) or (nhead, L, S)
            As self_weights, of the attention to memory.

        Raises
        ------
        TypeError
            tgt's or memory's dtype does not mix with the weights'; a mask is neither bool nor of floats.
        ValueError
            Shapes disagree; the message names the argument.
        """
        masks = {"tgt_mask": tgt_mask, "memory_mask": memory_mask}
        masks |= {"tgt_key_padding_mask": tgt_key_padding_mask, "memory_key_padding_mask": memory_key_padding_mask}
        causal = as_flag(tgt_is_causal, "tgt_is_causal", default=False)
        hints = {"tgt_is_causal": causal, "memory_is_causal": memory_is_causal}
        output, *weights = self._through(tgt, memory, rng=rng, need_weights=need_weights, **masks, **hints)
        result: FloatArray = output if self.norm is None else self.norm(output)
        return (result, weights[0], weights[1]) if need_weights else result

    def encode_memory(self, memory: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> KVCache:
        """Compute the keys and values of a memory for all layers, once for all steps.

        Parameters
        ----------
        memory : array_like, (S, N, d_model)
            (N, S, d_model) with the layers' batch_first.
        lengths : array_like of int, (N,), optional
            Number of rows of each batch entry; later ones are padding. Default: None, all.

        Returns
        -------
        KVCache
            The memory_cache of `decode_step`.

        Raises
        ------
        TypeError
            memory's dtype does not mix with the weights', or a layer is not one of pyattn's.
        ValueError
            Shapes disagree.
        """
        rows = _core.as_array(memory, "memory")
        if rows.ndim != 3:
            raise ValueError(f"memory has shape {rows.shape}, expected three axes, including the batch")
        cache = self._cache_of("multihead_attn", rows.shape[0 if self.batch_first else 1])
        layer: Any
        for n, layer in enumerate(self.layers):
            layer.multihead_attn.encode_memory(rows, cache, n, lengths=lengths)
        return cache


def _check_sizes(cache: KVCache, name: str, attention: MultiheadAttention) -> None:
    for size in ("num_kv_heads", "head_dim", "v_head_dim"):
        found, expected = getattr(cache, size), getattr(attention, size)
        if found != expected:
            raise ValueError(f"{name} has {size}={found}, expected {expected} as the layers': see new_cache")


def _heads_of(layer: Module, name: str) -> tuple[int, int, int, np.dtype[Any]]:
    attention = getattr(layer, name, None)
    if not isinstance(attention, MultiheadAttention):
        kind = type(layer).__name__
        raise TypeError(f"a layer is of type {kind}, whose cache sizes are unknown; make the KVCache yourself")
    return (
        attention.num_kv_heads,
        attention.head_dim,
        attention.v_head_dim,
        compute_dtype(attention.out_proj.weight.dtype),
    )


def _is_nestable(layer: Module) -> bool:
    """Tell whether torch's encoder would use nested tensors with copies of this layer."""
    if not isinstance(layer, TransformerEncoderLayer):
        return False
    attention = layer.self_attn
    biased = attention.in_proj_weight is not None and attention.in_proj_bias is not None
    even = attention.num_heads % 2 == 0 and attention.batch_first
    known = core_activation(layer.activation) in ("relu", "gelu")
    return even and biased and known and not layer.norm_first and layer.norm1.eps == layer.norm2.eps


def _padding_at_the_ends(given: npt.ArrayLike) -> npt.NDArray[np.bool_] | None:
    """Return the blocked positions, or None unless they are only the ends of rows."""
    mask = read_padding_mask(given, "src_key_padding_mask")
    blocked = mask if mask.dtype == np.bool_ else mask == -np.inf
    inside = (blocked[:, :-1] & ~blocked[:, 1:]).any() or not (blocked | (mask == 0)).all()
    return None if inside else blocked

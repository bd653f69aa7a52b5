"""What an encoder and a decoder have in common: layers in a row, all at once or a few tokens at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from pyattn.dropping import RNG, as_generator
from pyattn.functional import FloatArray
from pyattn.nn.containers import ModuleList, check_module, modules_of
from pyattn.nn.dtypes import as_count
from pyattn.nn.module import Module
from pyattn.nn.multihead import MultiheadAttention
from pyattn.nn.opening import check_cache

if TYPE_CHECKING:
    from pyattn.cache import KVCache

__all__ = ["Stack", "StackResult"]

_Self = TypeVar("_Self", bound="Stack")


class StackResult(NamedTuple):
    """Output, and weights of each layer, with heads, where they are asked for and there is such an attention."""

    output: FloatArray
    self_weights: list[FloatArray] | None
    cross_weights: list[FloatArray] | None


class Stack(Module):
    """Layers, and a normalisation of what the last of them gives."""

    layers: ModuleList
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
            Applied to what the last layer gives. Default: None.

        Returns
        -------
        TransformerEncoder or TransformerDecoder
            With the layers themselves.

        Raises
        ------
        TypeError
            What is given is no module.
        ValueError
            There is no layer, or batch_first of one is another than that of the first.
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
        """Whether inputs of three axes are (batch, length, features): the first layer's, None where it has none."""
        return getattr(self.layers[0], "batch_first", None)

    def new_cache(
        self,
        batch_size: SupportsIndex = 1,
        *,
        window: SupportsIndex | None = None,
        max_length: SupportsIndex | None = None,
    ) -> KVCache:
        """Make an empty cache for the keys and values of these layers' self-attentions.

        Parameters
        ----------
        batch_size : int
            Batch entries. Default: 1.
        window, max_length : int, optional
            As for `KVCache`. Default: None.

        Returns
        -------
        KVCache
            Of the weights' dtype.

        Raises
        ------
        TypeError
            Layers are none of pyattn's.
        ValueError
            Their attentions have different sizes.
        """
        return self._cache_of("self_attn", batch_size, window=window, max_length=max_length)

    def _cache_of(self, name: str, batch_size: SupportsIndex, **limits: SupportsIndex | None) -> KVCache:
        """Make one for the attention of that name."""
        from pyattn.cache import KVCache  # it needs modules itself

        found = {_heads_of(layer, name) for layer in self.layers}
        if len(found) > 1:
            raise ValueError("layers have attentions of different sizes, and a cache has one for all")
        kv_heads, head_dim, v_head_dim, dtype = found.pop()
        options: Any = {"batch_size": batch_size, "dtype": dtype, **limits}
        return KVCache(len(self.layers), kv_heads, head_dim, v_head_dim, **options)

    def step(
        self,
        x: npt.ArrayLike,
        cache: KVCache,
        *,
        memory_cache: KVCache | None = None,
        lengths: npt.ArrayLike | None = None,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> StackResult:
        """Call the layers in turn for the next tokens, whose keys and values go into a cache behind those it has.

        The output has the bits that `forward` over all tokens at once, with is_causal, gives these rows; not so with a
        rotary whose frequencies depend on the length of the sequence (dynamic, longrope).

        Parameters
        ----------
        x : array_like, (L, N, d_model)
            The next tokens; (N, L, d_model) with the layers' batch_first.
        cache : KVCache
            As `new_cache` makes it, of N batch entries. It changes when the call succeeds.
        memory_cache : KVCache, optional
            What `TransformerDecoder.remember` returned, for a decoder. Default: None.
        lengths : array_like of int, (N,), optional
            How many of each batch entry's tokens count; those behind are padding. Default: None, all.
        need_weights : bool
            Return weights, too. Default: False.
        rng : None, int, SeedSequence or Generator
            Where dropout's numbers come from, in training. Default: None, others each time.

        Returns
        -------
        output : ndarray
            Of x's shape; rows of padding mean nothing.
        self_weights : list of ndarray, (N, nhead, L, S), or None
            Of each layer; S is what the cache holds then.
        cross_weights : list of ndarray, (N, nhead, L, S), or None
            Of each layer, to what memory_cache holds.

        Raises
        ------
        TypeError
            x has another dtype than the weights or the cache.
        ValueError
            Shapes do not go together, or the cache is full.
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
                x, own_weights, cross_weights = layer.step(x, cache, n, **options)
                own += [] if own_weights is None else [own_weights]
                cross += [] if cross_weights is None else [cross_weights]
            output = np.asarray(x) if self.norm is None else self.norm(x)
        return StackResult(output, own or None, cross or None)

    def _check_layers(self, cache: KVCache, name: str) -> None:
        """Refuse a cache whose layers are not these: positions would not be what they seem."""
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

    def _through(self, x: npt.ArrayLike, *memory: npt.ArrayLike, rng: RNG, **masks: Any) -> Any:
        """Call the layers in turn."""
        options = {} if rng is None else {"rng": as_generator(rng)}  # the same numbers are drawn once
        for layer in self.layers:
            x = layer(x, *memory, **masks, **options)
        return x


def _check_sizes(cache: KVCache, name: str, attention: MultiheadAttention) -> None:
    for size in ("num_kv_heads", "head_dim", "v_head_dim"):
        found, expected = getattr(cache, size), getattr(attention, size)
        if found != expected:
            raise ValueError(f"{name} has {size}={found}, expected {expected} as the layers': see new_cache")


def _heads_of(layer: Module, name: str) -> tuple[int, int, int, np.dtype[Any]]:
    attention = getattr(layer, name, None)
    if not isinstance(attention, MultiheadAttention):
        kind = type(layer).__name__
        raise TypeError(f"a layer is of type {kind}, and what it would keep in a cache is not known; make a KVCache")
    return attention.num_kv_heads, attention.head_dim, attention.v_head_dim, attention.out_proj.weight.dtype

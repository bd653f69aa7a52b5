"""A layer of a Transformer in one call of the core."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import pyattn._core as _core
from pyattn._util.typing import CacheUse, FloatArray, Rotation
from pyattn.functional._multihead_masks import Masking

__all__ = ["LayerCaches", "LayerOptions", "LayerResult", "LayerWeights", "compute_layer"]

Arrays: TypeAlias = tuple[FloatArray | None, ...]


class LayerWeights(NamedTuple):
    """Parameters of a layer, as the core's tuples; None for absent ones."""

    self_attention: Arrays
    """The first eight of `Parameters` of _multihead.py, as for cross_attention."""
    cross_attention: Arrays | None
    feed_forward: Arrays
    """Weight and bias of linear1, linear2 and the gate."""
    norms: Arrays
    """Weight and bias of the three normalisations; an encoder's layer has only the first and the last."""


class LayerOptions(NamedTuple):
    """How a layer computes, as `_core.layer` calls it."""

    heads: int
    kv_heads: int
    scale: float | None
    activation: str
    norm_first: bool
    eps: float
    rms: bool = False


class LayerCaches(NamedTuple):
    """KV caches of the self-attention and of the memory, and the rotation of the self-attention."""

    cache: CacheUse | None = None
    memory_cache: CacheUse | None = None
    rotary: Rotation | None = None


NO_CACHES = LayerCaches()


class LayerResult(NamedTuple):
    """Output, and weights of each head if requested; None for an attention the layer lacks."""

    output: FloatArray
    self_weights: FloatArray | None
    cross_weights: FloatArray | None


def compute_layer(
    x: FloatArray,
    memory: FloatArray | None,
    weights: LayerWeights,
    options: LayerOptions,
    own: Masking,
    cross: Masking,
    caches: LayerCaches = NO_CACHES,
    *,
    need_weights: bool = False,
    blocked: bool = True,
) -> LayerResult:
    """Call the core; with `blocked`, True in a bool mask means blocked."""
    result = _core.layer(
        x,
        memory,
        *weights,
        heads=options.heads,
        kv_heads=options.kv_heads,
        scale=options.scale,
        activation=options.activation,
        norm_first=options.norm_first,
        eps=options.eps,
        rms=options.rms,
        cache=caches.cache,
        memory_cache=caches.memory_cache,
        rotary=caches.rotary,
        blocked=blocked,
        attn_mask=own.attn_mask,
        key_padding_mask=own.key_padding_mask,
        key_limits=own.key_limits,
        key_lengths=own.key_lengths,
        is_causal=own.is_causal,
        query_lengths=own.query_lengths,
        window=own.window,
        memory_mask=cross.attn_mask,
        memory_key_padding_mask=cross.key_padding_mask,
        memory_key_limits=cross.key_limits,
        memory_key_lengths=cross.key_lengths,
        memory_is_causal=cross.is_causal,
        need_weights=need_weights,
    )
    return LayerResult(*result) if need_weights else LayerResult(result, None, None)

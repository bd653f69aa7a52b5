"""Modules and a KVCache: what cannot be done with one is refused, and changes nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.cached_layers import HEADS, ROTARIES, E, N, layer_of, new_cache
from support.helpers import for_each, normal

import pyattn
from pyattn import KVCache, nn


def custom_layer():
    layer = layer_of("encoder")
    layer.self_attn = nn.Linear(E, E)
    return layer


def uneven():
    cache = STACK.new_cache(N)
    STACK.layers[1].decode_step(X, cache, 1)
    return cache


X = normal(N, 3, E)
STACK = nn.TransformerEncoder(layer_of("encoder"), 2).eval()
ZERO = nn.MultiheadAttention(E, HEADS, add_zero_attn=True, batch_first=True).eval()
ATTENTION = nn.MultiheadAttention(E, HEADS, batch_first=True).eval()
TURNING = nn.MultiheadAttention(E, HEADS, batch_first=True, rotary=ROTARIES["halves"]).eval()
MISTAKES = {
    "no cache": (
        lambda: ATTENTION.decode_step(X, None),
        TypeError,
        "cache is of type NoneType, expected pyattn.KVCache",
    ),
    "batch": (
        lambda: ATTENTION.decode_step(X[:1], new_cache()),
        ValueError,
        "(1, 3, 32), expected (2, L, 32): one for each batch entry of cache",
    ),
    "unbatched": (
        lambda: ATTENTION.decode_step(X[0], new_cache()),
        ValueError,
        "x, with batch first, has shape (3, 32)",
    ),
    "features": (
        lambda: ATTENTION.decode_step(X[..., 1:], new_cache()),
        ValueError,
        "x has shape (2, 3, 31), expected (N, L, 32)",
    ),
    "dtype": (
        lambda: ATTENTION.decode_step(X, new_cache(dtype="float64")),
        TypeError,
        "cache has dtype float64, expected float32, in which the module computes; make it with dtype=numpy.float32",
    ),
    "heads": (lambda: ATTENTION.decode_step(X, new_cache(2)), ValueError, "the cache has 2 heads but kv_heads is 4"),
    "head_dim": (
        lambda: ATTENTION.decode_step(X, KVCache(1, HEADS, 7, batch_size=N)),
        ValueError,
        "q_weight has head_dim 8 but the cache has 7",
    ),
    "v_head_dim": (
        lambda: ATTENTION.decode_step(X, KVCache(1, HEADS, 8, v_head_dim=9, batch_size=N)),
        ValueError,
        "v_weight has head_dim 8 but the cache has 9 for values",
    ),
    "layer": (lambda: ATTENTION.decode_step(X, new_cache(), 1), ValueError, "layer is 1, expected 0 to 0"),
    "lengths": (
        lambda: ATTENTION.decode_step(X, new_cache(), lengths=[1, 4]),
        ValueError,
        "lengths holds 4, expected 0 <= n <= 3",
    ),
    "full": (lambda: ATTENTION.decode_step(X, new_cache(max_length=2)), ValueError, "max_length is 2"),
    "window": (
        lambda: ATTENTION.decode_step(X, new_cache(window=2), window=1),
        ValueError,
        "the cache has its own, window=2",
    ),
    "mask": (
        lambda: ATTENTION.decode_step(X, new_cache(), attn_mask=np.zeros((3, 4))),
        ValueError,
        "attn_mask has shape (3, 4)",
    ),
    "extra key": (
        lambda: nn.MultiheadAttention(E, HEADS, add_bias_kv=True, batch_first=True).decode_step(X, new_cache()),
        ValueError,
        "add_bias_kv or add_zero_attn, which a KV cache cannot hold; decode_step needs neither",
    ),
    "zero, step": (lambda: ZERO.decode_step(X, new_cache()), ValueError, "cannot hold; decode_step needs"),
    "zero, remember": (lambda: ZERO.encode_memory(X, new_cache()), ValueError, "cannot hold; encode_memory needs"),
    "zero, recall": (lambda: ZERO.attend_memory(X, new_cache()), ValueError, "cannot hold; attend_memory needs"),
    "remembered, turned": (
        lambda: TURNING.encode_memory(X, new_cache()),
        ValueError,
        "the attention has rotary; attend_memory",
    ),
    "remembered, window": (
        lambda: ATTENTION.encode_memory(X, new_cache(window=3)),
        ValueError,
        "the cache has window=3",
    ),
    "recalled, window": (
        lambda: ATTENTION.attend_memory(X, new_cache(window=3)),
        ValueError,
        "cache has window=3, but a memory has no positions",
    ),
    "remember nothing": (lambda: ATTENTION.encode_memory(X, None), TypeError, "cache is of type NoneType"),
    "kdim": (
        lambda: nn.MultiheadAttention(E, HEADS, kdim=6, batch_first=True).decode_step(X, new_cache()),
        ValueError,
        "kdim is 6 and vdim 32; decode_step needs both to be embed_dim, 32",
    ),
    "memory of another type": (
        lambda: layer_of("decoder").decode_step(X, new_cache(), memory_cache=5),
        TypeError,
        "memory_cache is of type int, expected pyattn.KVCache",
    ),
    "memory of the same": (
        lambda: (lambda cache: layer_of("decoder").decode_step(X, cache, memory_cache=cache))(new_cache()),
        ValueError,
        "memory_cache is the same object as cache; pass the cache that encode_memory filled",
    ),
    "empty memory": (
        lambda: layer_of("decoder").decode_step(X, new_cache(), memory_cache=new_cache()),
        ValueError,
        "memory_cache is empty, expected a memory: see encode_memory",
    ),
    "sizes": (
        lambda: STACK.decode_step(X, KVCache(2, HEADS, 7, batch_size=N)),
        ValueError,
        "cache has head_dim=7, expected 8 as the layers': see new_cache",
    ),
    "layers": (lambda: STACK.decode_step(X, new_cache()), ValueError, "cache has 1 layers, expected 2: see new_cache"),
    "layers of different lengths": (
        lambda: STACK.decode_step(X, uneven()),
        ValueError,
        "cache has layers of different lengths",
    ),
    "no memory": (lambda: layer_of("decoder").decode_step(X, new_cache()), ValueError, "memory_cache is NoneType"),
    "a memory": (
        lambda: layer_of("encoder").decode_step(X, new_cache(), memory_cache=new_cache()),
        ValueError,
        "memory_cache is KVCache, and this layer has no memory to attend to",
    ),
    "recall": (lambda: TURNING.attend_memory(X, new_cache()), ValueError, "attend_memory supports neither rotary"),
    "rotary": (lambda: nn.MultiheadAttention(E, HEADS, rotary=8), TypeError, "rotary is of type int"),
    "rotary dim": (
        lambda: nn.MultiheadAttention(E, 2, rotary=ROTARIES["halves"]),
        ValueError,
        "rotary has dim 8; it must be the head_dim, 16",
    ),
    "trace": (lambda: TURNING.trace(X[0]), ValueError, "module has rotary"),
    "to_heads": (lambda: nn.to_heads(TURNING), ValueError, "module has rotary"),
    "custom": (lambda: custom_layer().decode_step(X, new_cache()), TypeError, "self_attn is of type Linear"),
    "stack": (lambda: nn.TransformerEncoder(nn.Linear(2, 2), 1).new_cache(), TypeError, "a layer is of type Linear"),
    "memory": (
        lambda: ATTENTION.encode_memory(X[0], new_cache()),
        ValueError,
        "memory has shape (3, 32), expected three axes",
    ),
}


@for_each("name", MISTAKES)
def test_mistakes_are_named(name):
    call, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_a_step_that_is_refused_leaves_the_cache_as_it_was():
    cache = new_cache()
    ATTENTION.decode_step(X, cache)
    with pytest.raises(ValueError, match="attn_mask"):
        ATTENTION.decode_step(X, cache, attn_mask=np.zeros((3, 4)))
    assert cache.lengths.tolist() == [3, 3]


@pytest.mark.peers
@pytest.mark.usefixtures("torch")
def test_torch_has_no_rotary():
    with pytest.raises(ValueError, match="module has rotary"):
        pyattn.interop.torch.to_torch(TURNING)

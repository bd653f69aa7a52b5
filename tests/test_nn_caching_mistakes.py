"""Modules and a KVCache: what cannot be done with one is refused, and changes nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cached_layers import HEADS, ROTARIES, E, N, draw, layer_of, new_cache

import pyattn
from pyattn import KVCache, nn


def custom_layer():
    layer = layer_of("encoder")
    layer.self_attn = nn.Linear(E, E)
    return layer


def uneven():
    cache = STACK.new_cache(N)
    STACK.layers[1].step(X, cache, 1)
    return cache


X = draw(N, 3, E)
STACK = nn.TransformerEncoder(layer_of("encoder"), 2).eval()
ZERO = nn.MultiheadAttention(E, HEADS, add_zero_attn=True, batch_first=True).eval()
ATTENTION = nn.MultiheadAttention(E, HEADS, batch_first=True).eval()
TURNING = nn.MultiheadAttention(E, HEADS, batch_first=True, rotary=ROTARIES["halves"]).eval()
MISTAKES = {
    "no cache": (lambda: ATTENTION.step(X, None), TypeError, "cache is of type NoneType, expected pyattn.KVCache"),
    "batch": (lambda: ATTENTION.step(X[:1], new_cache()), ValueError,
              "(1, 3, 32), expected (2, L, 32): one for each batch entry of cache"),
    "unbatched": (lambda: ATTENTION.step(X[0], new_cache()), ValueError, "x, with batch first, has shape (3, 32)"),
    "features": (lambda: ATTENTION.step(X[..., 1:], new_cache()), ValueError,
                 "x has shape (2, 3, 31), expected (N, L, 32)"),
    "dtype": (lambda: ATTENTION.step(X, new_cache(dtype="float64")), TypeError,
              "cache has dtype float64, expected float32 as x's; make it with dtype=numpy.float32"),
    "heads": (lambda: ATTENTION.step(X, new_cache(2)), ValueError, "the cache has 2 heads but kv_heads is 4"),
    "head_dim": (lambda: ATTENTION.step(X, KVCache(1, HEADS, 7, batch_size=N)), ValueError,
                 "q_weight has head_dim 8 but the cache has 7"),
    "v_head_dim": (lambda: ATTENTION.step(X, KVCache(1, HEADS, 8, 9, batch_size=N)), ValueError,
                   "v_weight has head_dim 8 but the cache has 9 for values"),
    "layer": (lambda: ATTENTION.step(X, new_cache(), 1), ValueError, "layer is 1, expected 0 to 0"),
    "lengths": (lambda: ATTENTION.step(X, new_cache(), lengths=[1, 4]), ValueError,
                "lengths holds 4, expected 0 <= n <= 3"),
    "full": (lambda: ATTENTION.step(X, new_cache(max_length=2)), ValueError, "max_length is 2"),
    "window": (lambda: ATTENTION.step(X, new_cache(window=2), window=1), ValueError, "the cache has its own, window=2"),
    "mask": (lambda: ATTENTION.step(X, new_cache(), attn_mask=np.zeros((3, 4))), ValueError,
             "attn_mask has shape (3, 4)"),
    "extra key": (lambda: nn.MultiheadAttention(E, HEADS, add_bias_kv=True, batch_first=True).step(X, new_cache()),
                  ValueError, "the attention has add_bias_kv or add_zero_attn, and step has keys of tokens alone"),
    "zero, step": (lambda: ZERO.step(X, new_cache()), ValueError, "add_zero_attn, and step has keys of tokens alone"),
    "zero, remember": (lambda: ZERO.remember(X, new_cache()), ValueError, "and remember has keys of tokens alone"),
    "zero, recall": (lambda: ZERO.recall(X, new_cache()), ValueError, "and recall has keys of tokens alone"),
    "remembered, turned": (lambda: TURNING.remember(X, new_cache()), ValueError, "the attention has rotary, and what"),
    "remembered, window": (lambda: ATTENTION.remember(X, new_cache(window=3)), ValueError, "the cache has window=3"),
    "recalled, window": (lambda: ATTENTION.recall(X, new_cache(window=3)), ValueError, "cache has window=3, and what"),
    "remember nothing": (lambda: ATTENTION.remember(X, None), TypeError, "cache is of type NoneType"),
    "kdim": (lambda: nn.MultiheadAttention(E, HEADS, kdim=6, batch_first=True).step(X, new_cache()), ValueError,
             "kdim is 6 and vdim 32, and step needs embed_dim, 32, for both"),
    "memory of another type": (lambda: layer_of("decoder").step(X, new_cache(), memory_cache=5), TypeError,
                               "memory_cache is of type int, expected pyattn.KVCache"),
    "memory of the same": (lambda: (lambda cache: layer_of("decoder").step(X, cache, memory_cache=cache))(new_cache()),
                           ValueError, "memory_cache is cache itself, expected what remember has filled"),
    "empty memory": (lambda: layer_of("decoder").step(X, new_cache(), memory_cache=new_cache()), ValueError,
                     "memory_cache is empty, expected a memory: see remember"),
    "sizes": (lambda: STACK.step(X, KVCache(2, HEADS, 7, batch_size=N)), ValueError,
              "cache has head_dim=7, expected 8 as the layers': see new_cache"),
    "layers": (lambda: STACK.step(X, new_cache()), ValueError, "cache has 1 layers, expected 2: see new_cache"),
    "layers of different lengths": (lambda: STACK.step(X, uneven()), ValueError,
                                    "cache has layers of different lengths"),
    "no memory": (lambda: layer_of("decoder").step(X, new_cache()), ValueError, "memory_cache is NoneType"),
    "a memory": (lambda: layer_of("encoder").step(X, new_cache(), memory_cache=new_cache()), ValueError,
                 "memory_cache is KVCache, and this layer has no memory to attend to"),
    "recall": (lambda: TURNING.recall(X, new_cache()), ValueError, "rotary turns queries with their positions"),
    "rotary": (lambda: nn.MultiheadAttention(E, HEADS, rotary=8), TypeError, "rotary is of type int"),
    "rotary dim": (lambda: nn.MultiheadAttention(E, 2, rotary=ROTARIES["halves"]), ValueError,
                   "rotary turns rows of 8 features, expected 16, the head_dim"),
    "trace": (lambda: TURNING.trace(X[0]), ValueError, "module has rotary"),
    "to_heads": (lambda: nn.per_head.to_heads(TURNING), ValueError, "module has rotary"),
    "custom": (lambda: custom_layer().step(X, new_cache()), TypeError, "self_attn is of type Linear"),
    "stack": (lambda: nn.TransformerEncoder(nn.Linear(2, 2), 1).new_cache(), TypeError, "a layer is of type Linear"),
    "memory": (lambda: ATTENTION.remember(X[0], new_cache()), ValueError,
               "memory has shape (3, 32), expected three axes"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    call, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_a_step_that_is_refused_leaves_the_cache_as_it_was():
    cache = new_cache()
    ATTENTION.step(X, cache)
    with pytest.raises(ValueError, match="attn_mask"):
        ATTENTION.step(X, cache, attn_mask=np.zeros((3, 4)))
    assert cache.lengths.tolist() == [3, 3]


@pytest.mark.peers
@pytest.mark.usefixtures("torch")
def test_torch_has_no_rotary():
    with pytest.raises(ValueError, match="module has rotary"):
        pyattn.interop.torch.to_torch(TURNING)

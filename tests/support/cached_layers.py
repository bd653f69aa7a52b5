"""Attentions and layers, small and drawn, and caches that fit them."""

from __future__ import annotations

import numpy as np

from pyattn import KVCache, nn

E, HEADS, LENGTH, N = 32, 4, 83, 2
ROTARIES = {
    "none": None,
    "halves": nn.RotaryEmbedding(8),
    "interleaved, partial": nn.RotaryEmbedding(
        8, rotary_dim=4, interleaved=True, scaling={"rope_type": "linear", "factor": 3.0}
    ),
}


def drawn(module, seed=1):
    """With all parameters drawn, in eval mode."""
    rng = np.random.default_rng(seed)
    for array in module.parameters():
        array[...] = 0.3 * rng.standard_normal(array.shape)
    return module.eval()


def layer_of(kind, *, dtype="float32", rotary=None, kv_heads=HEADS, gated=False, activation="gelu", norm_first=False):
    def attention():
        return nn.MultiheadAttention(E, HEADS, batch_first=True, num_kv_heads=kv_heads, rotary=rotary, dtype=dtype)

    def norm():
        return (nn.RMSNorm(E, 1e-6, dtype=dtype) if gated else nn.LayerNorm(E, dtype=dtype))  # fmt: skip

    parts = {
        "self_attn": attention(),
        "linear1": nn.Linear(E, 48, dtype=dtype),
        "linear2": nn.Linear(48, E, dtype=dtype),
    }
    parts |= {"norm1": norm(), "norm2": norm()}
    if gated:
        parts["gate"] = nn.Linear(E, 48, dtype=dtype)
    if kind == "encoder":
        return drawn(nn.TransformerEncoderLayer.from_parts(parts, activation=activation, norm_first=norm_first))
    plain = nn.MultiheadAttention(E, HEADS, batch_first=True, num_kv_heads=kv_heads, dtype=dtype)
    parts |= {"multihead_attn": plain, "norm3": norm()}
    return drawn(nn.TransformerDecoderLayer.from_parts(parts, activation=activation, norm_first=norm_first))


def new_cache(kv_heads=HEADS, dtype="float32", **options):
    return KVCache(1, kv_heads, E // HEADS, batch_size=N, dtype=dtype, **options)

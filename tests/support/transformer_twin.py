"""Layers and stacks of a Transformer once more, on top of the oracle: the formula in a float type of one's choice."""

from __future__ import annotations

import numpy as np
from support.module_bounds import Masking, added_to_scores

from pyattn import reference

NOTHING = Masking()


def attend(module, x, source, hidden, dtype):
    """(N, L, E) to (N, S, E). A row with nothing to attend to gives 0 before the output's projection."""
    heads = module.num_heads
    biases = [None] * 3 if module.in_proj_bias is None else np.split(module.in_proj_bias, 3)
    q, k, v = (
        reference.linear(y, weight, bias, dtype=dtype).reshape(*y.shape[:2], heads, -1).swapaxes(1, 2)
        for y, weight, bias in zip((x, source, source), np.split(module.in_proj_weight, 3), biases, strict=True)
    )
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(np.dtype(dtype).type(q.shape[-1]))
    scores = scores + added_to_scores(hidden, len(x), heads, x.shape[1], source.shape[1], 0)
    highest = scores.max(axis=-1, keepdims=True)
    shares = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = shares.sum(axis=-1, keepdims=True)
    y = ((shares / np.where(total == 0, 1, total)) @ v).swapaxes(1, 2).reshape(x.shape)
    return reference.linear(y, module.out_proj.weight, module.out_proj.bias, dtype=dtype)


def normalise(norm, x, dtype):
    return reference.layer_norm(x, norm.weight, norm.bias, norm.eps, dtype=dtype)


def feed(layer, activation, x, dtype):
    """activation: a name that the oracle knows, or a function."""
    hidden = reference.linear(x, layer.linear1.weight, layer.linear1.bias, dtype=dtype)
    hidden = activation(hidden) if callable(activation) else reference.activate(hidden, activation, dtype=dtype)
    return reference.linear(hidden, layer.linear2.weight, layer.linear2.bias, dtype=dtype)


def run_layer(layer, activation, x, own, memory=None, cross=NOTHING, *, dtype):
    """x and memory (N, length, E)."""

    def add(x, norm, part):
        return x + part(normalise(norm, x, dtype)) if layer.norm_first else normalise(norm, x + part(x), dtype)

    y = add(x.astype(dtype), layer.norm1, lambda x: attend(layer.self_attn, x, x, own, dtype))
    if memory is not None:
        memory = memory.astype(dtype)
        y = add(y, layer.norm2, lambda x: attend(layer.multihead_attn, x, memory, cross, dtype))
    return add(y, layer.norm2 if memory is None else layer.norm3, lambda x: feed(layer, activation, x, dtype))


def run(module, activation, x, own, memory=None, cross=NOTHING, *, dtype, zeroed=None):
    """A layer, or a stack of them; of a stack, rows that are zeroed are 0 before its norm."""
    if not hasattr(module, "layers"):
        return run_layer(module, activation, x, own, memory, cross, dtype=dtype)
    for layer in module.layers:
        x = run_layer(layer, activation, x, own, memory, cross, dtype=dtype)
    if zeroed is not None:
        x = np.where(zeroed[..., np.newaxis], 0, x)
    return x if module.norm is None else normalise(module.norm, x, dtype)


def run_transformer(module, activation, src, tgt, own, decoding, cross, *, dtype, zeroed=None):
    memory = run(module.encoder, activation, src, own, dtype=dtype, zeroed=zeroed)
    return run(module.decoder, activation, tgt, decoding, memory, cross, dtype=dtype)

"""Tiny decoders as they are published, written here without the packages that usually write them."""

from __future__ import annotations

import numpy as np
from support.published import write_model

GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 20,
    "n_positions": 12,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 16,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "tie_word_embeddings": False,
}


def gpt2_shapes(config=GPT2):
    """The published names, once more: typed out from a file of transformers, weights (in, out)."""
    dim, shapes = config["n_embd"], {}
    shapes |= {"wte.weight": (config["vocab_size"], dim), "wpe.weight": (config["n_positions"], dim)}
    for n in range(config["n_layer"]):
        for name, into, out in (
            ("attn.c_attn", dim, 3 * dim),
            ("attn.c_proj", dim, dim),
            ("mlp.c_fc", dim, 4 * dim),
            ("mlp.c_proj", 4 * dim, dim),
        ):
            shapes |= {f"h.{n}.{name}.weight": (into, out), f"h.{n}.{name}.bias": (out,)}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{n}.{name}.weight": (dim,), f"h.{n}.{name}.bias": (dim,)}
    return {
        f"transformer.{name}": shape for name, shape in (shapes | {"ln_f.weight": (dim,), "ln_f.bias": (dim,)}).items()
    }


def llama_shapes(config=LLAMA):
    dim, hidden, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = dim // config["num_attention_heads"]
    keys = config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (words, dim), "model.norm.weight": (dim,), "lm_head.weight": (words, dim)}
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}"
        for name, shape in {
            "self_attn.q_proj": (dim, dim),
            "self_attn.k_proj": (keys, dim),
            "self_attn.v_proj": (keys, dim),
            "self_attn.o_proj": (dim, dim),
            "mlp.gate_proj": (hidden, dim),
            "mlp.up_proj": (hidden, dim),
            "mlp.down_proj": (dim, hidden),
            "input_layernorm": (dim,),
            "post_attention_layernorm": (dim,),
        }.items():
            shapes[f"{layer}.{name}.weight"] = shape
    return shapes


def tensors_of(shapes, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return {name: (rng.standard_normal(shape) * 0.3).astype(dtype) for name, shape in shapes.items()}


FAMILIES = {"gpt2": (GPT2, gpt2_shapes), "llama": (LLAMA, llama_shapes)}


def write_decoder(folder, family, tensors=None, **changes):
    """A folder of config.json and model.safetensors; None takes a key away."""
    config, shapes = FAMILIES[family]
    config = {key: value for key, value in {**config, **changes}.items() if value is not None}
    return write_model(folder, config, tensors_of(shapes()) if tensors is None else tensors)

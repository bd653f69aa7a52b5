"""Make layers of `pyattn.nn` from a file's tensors, by the names in config.json and in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from pyattn._util.typing import FloatArray
from pyattn.io.config import Config
from pyattn.io.names import LayerNames
from pyattn.models.weights import Arrays, Shapes
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.feed_forward import Activation
from pyattn.nn.gradients import running
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.norm import LayerNorm
from pyattn.nn.transformer.layer import TransformerEncoderLayer

__all__ = [
    "ACTIVATIONS",
    "MAX_LAYERS",
    "LayerStates",
    "layer_shapes",
    "make_attention",
    "make_layer",
    "make_layer_norm",
    "make_linear",
    "parameter_shapes",
    "read_heads",
    "run_layers",
]

MAX_LAYERS = 10_000  # names of all tensors, a dozen for each layer, are made before the file is read

# Activations by their names in config.json; the tanh form of gelu has five names.
ACTIVATIONS: dict[str, Activation | Callable[..., Any]] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": np.tanh,
}


def read_heads(config: Config, dim: int, name: str = "num_attention_heads") -> int:
    """Read the number of heads, which must divide the size of a layer."""
    heads = config.count(name)
    if dim % heads:
        raise config.error(name, f"a divisor of {dim}, the size of a layer")
    return heads


def parameter_shapes(name: str, *shape: int, bias: bool = True) -> Shapes:
    """Return the shapes of weight and bias: of a linear layer, (out, in), or of a normalisation, (size,)."""
    return {f"{name}.weight": shape} | ({f"{name}.bias": shape[:1]} if bias else {})


def layer_shapes(names: LayerNames, dim: int, hidden: int) -> Shapes:
    """Return the shapes of all parameters of an encoder layer."""
    shapes: Shapes = {}
    for name in (names.query, names.key, names.value, names.out):
        shapes |= parameter_shapes(name, dim, dim)
    shapes |= parameter_shapes(names.linear1, hidden, dim) | parameter_shapes(names.linear2, dim, hidden)
    return shapes | parameter_shapes(names.norm1, dim) | parameter_shapes(names.norm2, dim)


def make_linear(arrays: Arrays, name: str) -> Linear:
    """Make a linear layer, with a bias if the file has one."""
    return Linear.from_arrays(arrays[f"{name}.weight"], arrays.get(f"{name}.bias"))


def make_layer_norm(arrays: Arrays, name: str, eps: float) -> LayerNorm:
    """Make a layer normalisation."""
    weight = arrays[f"{name}.weight"]
    norm = LayerNorm(weight.shape, eps, dtype=weight.dtype)
    norm.weight, norm.bias = weight, arrays[f"{name}.bias"]
    return norm


def make_attention(
    arrays: Arrays, names: tuple[str, str, str, str], heads: int, *, bias: bool = True, **options: Any
) -> MultiheadAttention:
    """Make an attention from linear layers query, key, value and out; the first three biases are concatenated."""
    *projections, out = names
    state = {f"{x}_proj_weight": arrays[f"{name}.weight"] for x, name in zip("qkv", projections, strict=True)}
    state["out_proj.weight"] = arrays[f"{out}.weight"]
    if bias:
        state["in_proj_bias"] = np.concatenate([arrays[f"{name}.bias"] for name in projections])
        state["out_proj.bias"] = arrays[f"{out}.bias"]
    return MultiheadAttention.from_arrays(state, heads, batch_first=True, **options)


def make_layer(
    arrays: Arrays, names: LayerNames, heads: int, activation: Activation, eps: float
) -> TransformerEncoderLayer:
    """Make an encoder layer that normalises the output of each part (post-norm), as in BERT."""
    parts: dict[str, Module] = {
        "self_attn": make_attention(arrays, (names.query, names.key, names.value, names.out), heads),
        "linear1": make_linear(arrays, names.linear1),
        "linear2": make_linear(arrays, names.linear2),
        "norm1": make_layer_norm(arrays, names.norm1, eps),
        "norm2": make_layer_norm(arrays, names.norm2, eps),
    }
    return TransformerEncoderLayer.from_parts(parts, dropout=0.0, activation=activation)


class LayerStates(NamedTuple):
    """The result of `run_layers`: the last output, all layers' inputs and outputs, and their attention weights."""

    x: FloatArray
    hidden_states: tuple[FloatArray, ...] | None
    attentions: tuple[FloatArray, ...] | None


def run_layers(
    layers: Iterable[Any], x: FloatArray, need_weights: bool, need_hidden_states: bool, **options: Any
) -> LayerStates:
    """Call layers one after another, with the same options, and collect the requested states and weights."""
    states, attentions = [x] if need_hidden_states else [], []
    for layer in layers:
        if need_weights:
            x, weights, _ = running().layer(layer, x, **options, need_weights=True)
            attentions.append(weights)
        else:
            x = running().layer(layer, x, **options)
        if need_hidden_states:
            states.append(x)
    return LayerStates(x, tuple(states) if need_hidden_states else None, tuple(attentions) if need_weights else None)

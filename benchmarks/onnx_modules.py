"""pyattn's modules as nodes of an ONNX graph, with the same weights and in the forms that ONNX Runtime is fastest with.

Products, norms and activations are standard operators: ONNX Runtime packs the weights and fuses the rest itself, and
com.microsoft.SkipLayerNormalization and BiasGelu in their place take as long or longer. Attention has three forms,
each of them the fastest at some sizes; the plain products that PyTorch exports are not ahead of the best of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import numpy as np

from benchmarks.onnx_model import Attribute, Graph
from pyattn import nn
from pyattn.models.bert import Bert
from pyattn.models.gpt2 import GPT2

WAYS = ("Attention", "com.microsoft.MultiHeadAttention", "com.microsoft.Attention")
"""The operators that compute self-attention; the last one does its input projection, too."""

ACTIVATIONS: dict[str, tuple[str, dict[str, Attribute]]] = {
    "relu": ("Relu", {}),
    "gelu": ("Gelu", {}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
}

Attend = Callable[[Graph, str, nn.MultiheadAttention], str]
"""Self-attention with its projections: adds nodes to the graph and takes x (batch, length, embed_dim) to its output."""


def linear(graph: Graph, x: str, weight: np.ndarray, bias: np.ndarray | None = None) -> str:
    """``x @ weight.T + bias``."""
    product = graph.node("MatMul", x, graph.weight(weight.T))
    return product if bias is None else graph.node("Add", product, graph.weight(bias))


def attend(way: str, mask: str = "", *, causal: bool = False) -> Attend:
    """Self-attention by one of `WAYS`; `mask` is the name of what `as_mask` makes for it."""

    def self_attention(graph: Graph, x: str, module: nn.MultiheadAttention) -> str:
        weight, bias, heads = *in_proj(module), module.num_heads
        parts = list(zip(np.split(weight, 3), np.split(bias, 3), strict=True))
        if way == "Attention":
            qkv = [linear(graph, x, *part) for part in parts]
            output = graph.node(way, *qkv, mask, q_num_heads=heads, kv_num_heads=heads, is_causal=int(causal))
        else:
            if way == "com.microsoft.Attention":
                inputs = [x, graph.weight(weight.T), graph.weight(bias), mask]
            else:
                inputs = [*(linear(graph, x, part) for part, _ in parts), graph.weight(bias), mask]
            output = graph.node(way, *inputs, num_heads=heads, unidirectional=int(causal))
        return linear(graph, output, module.out_proj.weight, module.out_proj.bias)

    return self_attention


def in_proj(module: nn.MultiheadAttention) -> tuple[np.ndarray, np.ndarray]:
    """The weight (3 * embed_dim, embed_dim) and the bias (3 * embed_dim,) of query, key and value."""
    state = module.state_dict()  # the weight as one array or as three
    weights = [array for name, array in state.items() if name.endswith("_proj_weight")]
    return np.concatenate(weights), state["in_proj_bias"]


def as_mask(way: str, padding: np.ndarray) -> np.ndarray:
    """The mask of a way: True or 1 = attend. `padding` (batch, length) is True where keys are blocked."""
    if way != "Attention":
        return (~padding).astype(np.int32)
    batch, length = padding.shape  # it broadcasts a mask over heads, not over queries
    return np.ascontiguousarray(np.broadcast_to(~padding[:, np.newaxis, np.newaxis], (batch, 1, length, length)))


def attend_with_weights(graph: Graph, x: str, module: nn.MultiheadAttention) -> tuple[str, str]:
    """Self-attention by plain products, and the mean of its weights over heads: no fused operator is faster there."""
    heads = graph.weight(np.array([0, 0, module.num_heads, -1]))
    joined = graph.weight(np.array([0, 0, -1]))
    query, key, value = (
        graph.node("Transpose", graph.node("Reshape", linear(graph, x, weight, bias), heads), perm=order)
        for weight, bias, order in zip(
            *(np.split(array, 3) for array in in_proj(module)),
            ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)),
            strict=True,
        )
    )
    scale = graph.weight(np.array(module.head_dim**-0.5, np.float32))
    weights = graph.node("Softmax", graph.node("Mul", graph.node("MatMul", query, key), scale))
    output = graph.node("Transpose", graph.node("MatMul", weights, value), perm=(0, 2, 1, 3))
    output = linear(graph, graph.node("Reshape", output, joined), module.out_proj.weight, module.out_proj.bias)
    return output, graph.node("ReduceMean", weights, graph.weight(np.array([1])), keepdims=0)


def encoder_layer(graph: Graph, x: str, layer: nn.TransformerEncoderLayer, attention: Attend) -> str:
    """Attention and feed-forward, each with its residual and its norm."""

    def feed_forward(x: str) -> str:
        operator, attributes = ACTIVATIONS[str(layer.activation)]
        hidden = graph.node(operator, linear(graph, x, layer.linear1.weight, layer.linear1.bias), **attributes)
        return linear(graph, hidden, layer.linear2.weight, layer.linear2.bias)

    def self_attention(x: str) -> str:
        return attention(graph, x, layer.self_attn)

    for norm, part in ((layer.norm1, self_attention), (layer.norm2, feed_forward)):
        if layer.norm_first:
            x = graph.node("Add", x, part(layer_norm(graph, x, norm)))
        else:
            x = layer_norm(graph, graph.node("Add", x, part(x)), norm)
    return x


def layer_norm(graph: Graph, x: str, norm: Any) -> str:
    """A `LayerNorm` over the last axis."""
    return graph.node("LayerNormalization", x, graph.weight(norm.weight), graph.weight(norm.bias), epsilon=norm.eps)


def bert(graph: Graph, ids: str, length: int, model: Bert, attention: Attend) -> str:
    """The vectors of sentences of one length, whose tokens are of type 0."""
    table, layers = model.embeddings, cast(Iterable[nn.TransformerEncoderLayer], model.layers)
    x = graph.node("Gather", graph.weight(table.words.weight), ids)
    x = graph.node("Add", x, graph.weight(table.positions.weight[:length] + table.types.weight[0]))
    x = layer_norm(graph, x, table.norm)
    for layer in layers:
        x = encoder_layer(graph, x, layer, attention)
    return x


def gpt2_step(model: GPT2, batch: int, capacity: int) -> bytes:
    """A model that reads some tokens of each row and chooses the next one, with caches of so many positions.

    Its inputs are ids (batch, length), their positions (length,), the index of the last of them for each row, how many
    tokens there are with those in the caches, and keys and values of each layer; its outputs the tokens (batch, 1), and
    keys and values. A cache may go in and come out as the same memory: then only the new positions are written.
    """
    graph = Graph()
    ids, positions = graph.input("ids", np.int64, (batch, None)), graph.input("positions", np.int64, (None,))
    counts = graph.input("last", np.int32, (batch,)), graph.input("total", np.int32, ())
    caches: list[str] = []

    def attention(graph: Graph, x: str, module: nn.MultiheadAttention) -> str:
        heads = {"num_heads": module.num_heads, "kv_num_heads": module.num_heads}
        shape = (batch, module.num_heads, capacity, module.head_dim)
        past = [graph.input(f"{kind}{len(caches)}", np.float32, shape) for kind in ("key", "value")]
        qkv = linear(graph, x, *in_proj(module))
        output, *new = graph.nodes(3, "com.microsoft.GroupQueryAttention", qkv, "", "", *past, *counts, **heads)
        caches.extend(new)
        return linear(graph, output, module.out_proj.weight, module.out_proj.bias)

    x = graph.node("Gather", graph.weight(model.embedding.weight), ids)
    x = graph.node("Add", x, graph.node("Gather", graph.weight(model.positions.weight), positions))
    for layer in model.decoder.layers:
        x = encoder_layer(graph, x, layer, attention)
    last = graph.node("Gather", x, graph.weight(np.array([-1])), axis=1)
    scores = linear(graph, layer_norm(graph, last, model.decoder.norm), model.embedding.weight)
    return graph.model(graph.node("ArgMax", scores, axis=-1, keepdims=0), *caches)

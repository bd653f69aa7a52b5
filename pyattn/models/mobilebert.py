"""MobileBERT: bottleneck layers, which compute with fewer features and have several feed-forward networks.

Sun et al., "MobileBERT: a Compact Task-Agnostic BERT for Resource-Limited Devices" (2020).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.typing import FloatArray, IntArray
from pyattn.io.config import Config
from pyattn.models.bert import NORM, UNSUPPORTED, Bert, Embeddings, Pooler, embedding_shapes, embedding_tables
from pyattn.models.layers import (
    ACTIVATIONS,
    MAX_LAYERS,
    make_attention,
    make_layer_norm,
    make_linear,
    parameter_shapes,
    read_heads,
)
from pyattn.models.weights import Arrays, Plan, Shapes
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.containers import ModuleList
from pyattn.nn.feed_forward import Activation, feed
from pyattn.nn.gradients import add_sum, recorded, running, sum_to
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module

__all__ = ["plan_mobilebert"]

MIXING, POOLER = "embeddings.embedding_transformation", "pooler.dense"
TORCH_EPS = 1e-5  # torch's default, used by two normalisations instead of layer_norm_eps


class NoNorm(Module):
    """``weight * x + bias``, which replaces a layer normalisation."""

    weight: FloatArray
    bias: FloatArray

    def __init__(self, weight: FloatArray, bias: FloatArray) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    @recorded
    def forward(self, x: FloatArray) -> FloatArray:
        """Scale and shift x, (..., features)."""
        y: FloatArray = self.weight * x
        y += self.bias

        def backward(grad: FloatArray) -> tuple[FloatArray]:
            add_sum(self, "weight", grad * x)
            add_sum(self, "bias", grad)
            return (self.weight * grad,)

        return running().step(y, (x,), backward)


class LinearNorm(Module):
    """``norm(linear(x) + residual)``: the projection into a bottleneck, or out of it."""

    linear: Linear
    norm: Module

    def __init__(self, linear: Linear, norm: Module) -> None:
        super().__init__()
        self.linear, self.norm = linear, norm

    @recorded
    def forward(self, x: FloatArray, residual: FloatArray | None = None) -> FloatArray:
        """Compute (..., out_features) from (..., in_features)."""
        result: FloatArray = self.norm(linear_with(self.linear, x, residual))
        return result


class FeedForwardNorm(Module):
    """``norm(linear2(activation(linear1(x))) + x)``."""

    linear1: Linear
    linear2: Linear
    norm: Module

    def __init__(self, linear1: Linear, linear2: Linear, norm: Module, activation: Activation) -> None:
        super().__init__()
        self.linear1, self.linear2, self.norm = linear1, linear2, norm
        self.activation = activation

    @recorded
    def forward(self, x: FloatArray) -> FloatArray:
        """Compute the network for x, (..., features)."""
        y = running().add(feed(x, self.linear1, self.linear2, None, self.activation, 0.0, None), x)
        result: FloatArray = self.norm(y)
        return result


class MobileBertLayer(Module):
    """Attention and feed-forward networks in a bottleneck of fewer features."""

    self_attn: MultiheadAttention
    norm1: Module
    feed_forwards: ModuleList[FeedForwardNorm]
    # narrow_residual projects the input into the bottleneck, for the values too if narrow_values is True;
    # narrow_attention projects the queries and keys into it, and widen projects back.
    narrow_residual: LinearNorm | None
    narrow_attention: LinearNorm | None
    widen: LinearNorm | None

    def __init__(
        self,
        self_attn: MultiheadAttention,
        norm1: Module,
        feed_forwards: Iterable[FeedForwardNorm],
        *,
        narrow_residual: LinearNorm | None = None,
        narrow_attention: LinearNorm | None = None,
        narrow_values: bool = False,
        widen: LinearNorm | None = None,
    ) -> None:
        super().__init__()
        self.self_attn, self.norm1 = self_attn, norm1
        self.feed_forwards = ModuleList(feed_forwards)
        self.narrow_residual, self.narrow_attention, self.widen = narrow_residual, narrow_attention, widen
        self.narrow_values = narrow_values

    @recorded
    def forward(
        self, src: FloatArray, *, src_key_padding_mask: npt.ArrayLike | None = None, need_weights: bool = False
    ) -> FloatArray | tuple[FloatArray, FloatArray | None, None]:
        """Compute the layer; arguments and results are those of `pyattn.nn.TransformerEncoderLayer`."""
        output, weights = self._compute(src, src_key_padding_mask, need_weights)
        return (output, weights, None) if need_weights else output

    def _compute(
        self, x: FloatArray, padding: npt.ArrayLike | None, need_weights: bool
    ) -> tuple[FloatArray, FloatArray | None]:
        residual = x if self.narrow_residual is None else self.narrow_residual(x)
        values = residual if self.narrow_values else x
        queries = values if self.narrow_attention is None else self.narrow_attention(x)
        y, weights = self.self_attn(
            queries, queries, values, padding, need_weights=need_weights, average_attn_weights=False
        )
        y = self.norm1(running().add(y, residual))
        for network in self.feed_forwards:
            y = network(y)
        return y if self.widen is None else self.widen(y, x), weights


class MixedEmbeddings(Embeddings):
    """Embeddings that project each word vector first, alone or joined with its two neighbours."""

    mixing: Linear

    def _embed_words(self, ids: IntArray, rows: FloatArray) -> FloatArray:
        words = self.words(ids)
        if self.mixing.in_features == 3 * words.shape[-1]:
            words = _with_neighbours(words)
        everywhere = np.broadcast_to(rows, (*ids.shape, rows.shape[-1]))
        everywhere = running().step(everywhere, (rows,), lambda grad: (sum_to(grad, rows.shape),))
        return linear_with(self.mixing, words, everywhere)


def _with_neighbours(words: FloatArray) -> FloatArray:
    """Put the next word before each one, and the last word behind it; zeros at the ends."""
    dim = words.shape[-1]
    three = np.zeros((*words.shape[:-1], 3 * dim), words.dtype)
    three[:, :-1, :dim] = words[:, 1:]
    three[..., dim : 2 * dim] = words
    three[:, 1:, 2 * dim :] = words[:, :-1]

    def backward(grad: FloatArray) -> tuple[FloatArray]:
        total = grad[..., dim : 2 * dim].copy()
        total[:, 1:] += grad[:, :-1, :dim]
        total[:, :-1] += grad[:, 1:, 2 * dim :]
        return (total,)

    return running().step(three, (words,), backward)


def linear_with(linear: Linear, x: FloatArray, residual: FloatArray | None) -> FloatArray:
    """Compute ``linear(x) + residual``, in one pass of the core unless gradients are wanted."""
    run = running()
    if not run.records:
        return functional.linear(x, linear.weight, linear.bias, residual=residual)
    y: FloatArray = linear(x)
    return y if residual is None else run.add(y, residual)


class _Sizes(NamedTuple):
    """Sizes and settings of the layers."""

    dim: int
    narrow: int  # features in the bottleneck; dim without one
    hidden: int
    heads: int
    networks: int
    bottleneck: bool
    narrow_values: bool
    shared: bool  # queries and keys share a projection into the bottleneck
    activation: Activation
    eps: float
    normalized: bool  # layer normalisations instead of NoNorm


def plan_mobilebert(config: Config) -> Plan:
    """Plan a MobileBERT; its pooler has no parameters if classifier_activation is false."""
    config.require(UNSUPPORTED)
    sizes = _read_sizes(config)
    counts = config.count("vocab_size"), config.count("max_position_embeddings"), config.count("type_vocab_size", 2)
    word_dim, trigram = config.count("embedding_size", 128), config.flag("trigram_input", True)
    mixed = trigram or word_dim != sizes.dim
    layers = config.count("num_hidden_layers", most=MAX_LAYERS // sizes.networks)

    shapes = embedding_shapes(*counts, sizes.dim, word_dim)
    shapes |= parameter_shapes(MIXING, sizes.dim, 3 * word_dim if trigram else word_dim) if mixed else {}
    for n in range(layers):
        shapes |= _layer_shapes(f"encoder.layer.{n}.", sizes)
    dense = config.flag("classifier_activation", True)
    pooling = parameter_shapes(POOLER, sizes.dim, sizes.dim) if dense else {}
    padding_idx = config.padding(counts[0], 0)

    def build(arrays: Arrays) -> Bert:
        kind = MixedEmbeddings if mixed else Embeddings
        embeddings = kind(*embedding_tables(arrays, padding_idx), _make_norm(arrays, NORM, sizes, TORCH_EPS))
        if isinstance(embeddings, MixedEmbeddings):
            embeddings.mixing = make_linear(arrays, MIXING)
        blocks = [_make_layer(arrays, f"encoder.layer.{n}.", sizes) for n in range(layers)]
        has_weight = f"{POOLER}.weight" in arrays
        pooler = Pooler(make_linear(arrays, POOLER) if dense else None) if has_weight or not dense else None
        return Bert(embeddings, blocks, pooler, config.values)

    return Plan(shapes | pooling, build, "mobilebert.", pooler=tuple(pooling))


def _read_sizes(config: Config) -> _Sizes:
    dim, bottleneck = config.count("hidden_size"), config.flag("use_bottleneck", True)
    narrow = config.count("intra_bottleneck_size", 128) if bottleneck else dim
    narrow_values = bottleneck and config.flag("use_bottleneck_attention", False)
    shared = bottleneck and not narrow_values and config.flag("key_query_shared_bottleneck", True)
    if not narrow_values and not shared and narrow != dim:
        raise config.error("intra_bottleneck_size", f"{dim}, the hidden_size, as queries have no bottleneck")
    return _Sizes(
        dim=dim,
        narrow=narrow,
        hidden=config.count("intermediate_size"),
        heads=read_heads(config, narrow),
        networks=config.count("num_feedforward_networks", 4, most=MAX_LAYERS),
        bottleneck=bottleneck,
        narrow_values=narrow_values,
        shared=shared,
        activation=config.choice("hidden_act", "relu", ACTIVATIONS),
        eps=config.number("layer_norm_eps", 1e-12),
        normalized=config.choice("normalization_type", "no_norm", {"no_norm": False, "layer_norm": True}),
    )


def _network_names(prefix: str, sizes: _Sizes) -> list[tuple[str, str, str, float]]:
    """List linear1, linear2, norm and eps of each feed-forward network, in order."""
    stacked = [f"{prefix}ffn.{n}." for n in range(sizes.networks - 1)]
    names = [(f"{one}intermediate.dense", f"{one}output.dense", f"{one}output.LayerNorm", sizes.eps) for one in stacked]
    return [*names, (f"{prefix}intermediate.dense", f"{prefix}output.dense", f"{prefix}output.LayerNorm", TORCH_EPS)]


def _bottleneck_names(prefix: str, sizes: _Sizes) -> dict[str, tuple[str, int, int]]:
    """Map arguments of `MobileBertLayer` to published names, with the sizes of outputs and inputs."""
    names = {"narrow_residual": (f"{prefix}bottleneck.input.", sizes.narrow, sizes.dim)} if sizes.bottleneck else {}
    names |= {"narrow_attention": (f"{prefix}bottleneck.attention.", sizes.narrow, sizes.dim)} if sizes.shared else {}
    return names | ({"widen": (f"{prefix}output.bottleneck.", sizes.dim, sizes.narrow)} if sizes.bottleneck else {})


def _layer_shapes(prefix: str, sizes: _Sizes) -> Shapes:
    narrow, hidden, own = sizes.narrow, sizes.hidden, f"{prefix}attention."
    shapes = parameter_shapes(f"{own}self.query", narrow, narrow) | parameter_shapes(f"{own}self.key", narrow, narrow)
    shapes |= parameter_shapes(f"{own}self.value", narrow, narrow if sizes.narrow_values else sizes.dim)
    shapes |= parameter_shapes(f"{own}output.dense", narrow, narrow)
    shapes |= parameter_shapes(f"{own}output.LayerNorm", narrow)
    for linear1, linear2, norm, _ in _network_names(prefix, sizes):
        shapes |= parameter_shapes(linear1, hidden, narrow) | parameter_shapes(linear2, narrow, hidden)
        shapes |= parameter_shapes(norm, narrow)
    for name, out, into in _bottleneck_names(prefix, sizes).values():
        shapes |= parameter_shapes(f"{name}dense", out, into) | parameter_shapes(f"{name}LayerNorm", out)
    return shapes


def _make_layer(arrays: Arrays, prefix: str, sizes: _Sizes) -> MobileBertLayer:
    own = f"{prefix}attention."
    names = f"{own}self.query", f"{own}self.key", f"{own}self.value", f"{own}output.dense"
    networks = [
        FeedForwardNorm(
            make_linear(arrays, linear1),
            make_linear(arrays, linear2),
            _make_norm(arrays, norm, sizes, eps),
            sizes.activation,
        )
        for linear1, linear2, norm, eps in _network_names(prefix, sizes)
    ]
    projections = {
        ours: LinearNorm(make_linear(arrays, f"{name}dense"), _make_norm(arrays, f"{name}LayerNorm", sizes, sizes.eps))
        for ours, (name, _, _) in _bottleneck_names(prefix, sizes).items()
    }
    norm1 = _make_norm(arrays, f"{own}output.LayerNorm", sizes, sizes.eps)
    attention = make_attention(arrays, names, sizes.heads)
    return MobileBertLayer(attention, norm1, networks, narrow_values=sizes.narrow_values, **projections)


def _make_norm(arrays: Arrays, name: str, sizes: _Sizes, eps: float) -> Module:
    if sizes.normalized:
        return make_layer_norm(arrays, name, eps)
    return NoNorm(arrays[f"{name}.weight"], arrays[f"{name}.bias"])

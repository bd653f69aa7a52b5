"""MobileBERT's tensors by their published names, and the model made of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import pyattn.functional as functional
from pyattn._util.ids import IntArray
from pyattn._util.typing import FloatArray
from pyattn.io.config import MOST_LAYERS, Config
from pyattn.models._embeddings import Embeddings
from pyattn.models._mobilebert import FeedForwardNorm, LinearNorm, MobileBertLayer, NoNorm
from pyattn.models._parts import Arrays, attention, layer_norm, linear, pair_shapes
from pyattn.models._plan import NORM, Parts, Plan, Pooler, embedding_shapes, heads_of, require_an_encoder, tables
from pyattn.models._weights import Shapes
from pyattn.nn.feed_forward import Activation
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module

__all__ = ["MixedEmbeddings", "plan_mobilebert"]

MIXING, POOLER = "embeddings.embedding_transformation", "pooler.dense"
TORCH_EPS = 1e-5  # of two normalisations, which do not ask the configuration


class _Sizes(NamedTuple):
    """What a configuration says of the layers; `narrow` is dim where there is no narrow space."""

    dim: int
    narrow: int
    hidden: int
    heads: int
    networks: int
    bottleneck: bool
    narrow_values: bool
    shared: bool  # queries and keys have a way of their own into the narrow space
    activation: Activation
    eps: float
    normalised: bool  # by layer normalisations


class MixedEmbeddings(Embeddings):
    """Embeddings of MobileBERT: words go through a linear layer first, three neighbours together or each by itself.

    Attributes
    ----------
    mixing : Linear
        From a word's features, or three times as many, to those of positions.
    """

    mixing: Linear

    def _words(self, ids: IntArray, rows: FloatArray) -> FloatArray:
        words = self.words(ids)
        dim = words.shape[-1]
        if self.mixing.in_features == 3 * dim:
            three = np.zeros((*ids.shape, 3 * dim), words.dtype)
            three[:, :-1, :dim] = words[:, 1:]  # the one behind comes first
            three[..., dim : 2 * dim] = words
            three[:, 1:, 2 * dim :] = words[:, :-1]
            words = three
        residual = np.broadcast_to(rows, (*ids.shape, rows.shape[-1]))
        return functional.linear(words, self.mixing.weight, self.mixing.bias, residual=residual)


def plan_mobilebert(config: Config) -> Plan:
    """Plan a MobileBERT: Sun et al., "MobileBERT: a Compact Task-Agnostic BERT for Resource-Limited Devices" (2020).

    Parameters
    ----------
    config : Config
        Of the model.

    Returns
    -------
    Plan
        With a pooler, which has no parameters where classifier_activation is false.

    Raises
    ------
    ValueError
        A value is wrong, or asks for what is not here.
    """
    require_an_encoder(config)
    sizes = _sizes_of(config)
    counts = config.count("vocab_size"), config.count("max_position_embeddings"), config.count("type_vocab_size", 2)
    word_dim, trigram = config.count("embedding_size", 128), config.flag("trigram_input", True)
    mixed = trigram or word_dim != sizes.dim
    layers = config.count("num_hidden_layers", most=MOST_LAYERS // sizes.networks)

    shapes = embedding_shapes(*counts, sizes.dim, word_dim)
    shapes |= pair_shapes(MIXING, sizes.dim, 3 * word_dim if trigram else word_dim) if mixed else {}
    for n in range(layers):
        shapes |= _layer_shapes(f"encoder.layer.{n}.", sizes)
    dense = config.flag("classifier_activation", True)
    optional = pair_shapes(POOLER, sizes.dim, sizes.dim) if dense else {}

    def build(arrays: Arrays) -> Parts:
        kind = MixedEmbeddings if mixed else Embeddings
        embeddings = kind(*tables(arrays), _norm(arrays, NORM, sizes, TORCH_EPS))
        if isinstance(embeddings, MixedEmbeddings):
            embeddings.mixing = linear(arrays, MIXING)
        blocks = [_layer(arrays, f"encoder.layer.{n}.", sizes) for n in range(layers)]
        there = f"{POOLER}.weight" in arrays
        pooler = Pooler(linear(arrays, POOLER) if dense else None) if there or not dense else None
        return Parts(embeddings, blocks, pooler)

    return Plan(shapes | optional, list(optional), build)


def _sizes_of(config: Config) -> _Sizes:
    dim, bottleneck = config.count("hidden_size"), config.flag("use_bottleneck", True)
    narrow = config.count("intra_bottleneck_size", 128) if bottleneck else dim
    narrow_values = bottleneck and config.flag("use_bottleneck_attention", False)
    shared = bottleneck and not narrow_values and config.flag("key_query_shared_bottleneck", True)
    if not narrow_values and not shared and narrow != dim:
        raise config.wrong("intra_bottleneck_size", f"{dim}, the hidden_size: queries have no bottleneck")
    return _Sizes(
        dim=dim,
        narrow=narrow,
        hidden=config.count("intermediate_size"),
        heads=heads_of(config, narrow),
        networks=config.count("num_feedforward_networks", 4, most=MOST_LAYERS),
        bottleneck=bottleneck,
        narrow_values=narrow_values,
        shared=shared,
        activation=config.activation("hidden_act", "relu"),
        eps=config.number("layer_norm_eps", 1e-12),
        normalised=config.choice("normalization_type", "no_norm", {"no_norm": False, "layer_norm": True}),
    )


def _networks(prefix: str, sizes: _Sizes) -> list[tuple[str, str, str, float]]:
    """Names of each feed-forward network's two linear layers and normalisation, and its eps, in their order."""
    stacked = [f"{prefix}ffn.{n}." for n in range(sizes.networks - 1)]
    names = [(f"{one}intermediate.dense", f"{one}output.dense", f"{one}output.LayerNorm", sizes.eps) for one in stacked]
    return [*names, (f"{prefix}intermediate.dense", f"{prefix}output.dense", f"{prefix}output.LayerNorm", TORCH_EPS)]


def _ways(prefix: str, sizes: _Sizes) -> dict[str, tuple[str, int, int]]:
    """Our names of the ways in and out, to published names, sizes behind and before."""
    ways = {"narrow_residual": (f"{prefix}bottleneck.input.", sizes.narrow, sizes.dim)} if sizes.bottleneck else {}
    ways |= {"narrow_attention": (f"{prefix}bottleneck.attention.", sizes.narrow, sizes.dim)} if sizes.shared else {}
    return ways | ({"widen": (f"{prefix}output.bottleneck.", sizes.dim, sizes.narrow)} if sizes.bottleneck else {})


def _layer_shapes(prefix: str, sizes: _Sizes) -> Shapes:
    narrow, hidden = sizes.narrow, sizes.hidden
    own = f"{prefix}attention."
    shapes = pair_shapes(f"{own}self.query", narrow, narrow) | pair_shapes(f"{own}self.key", narrow, narrow)
    shapes |= pair_shapes(f"{own}self.value", narrow, narrow if sizes.narrow_values else sizes.dim)
    shapes |= pair_shapes(f"{own}output.dense", narrow, narrow) | pair_shapes(f"{own}output.LayerNorm", narrow)
    for linear1, linear2, norm, _ in _networks(prefix, sizes):
        shapes |= pair_shapes(linear1, hidden, narrow) | pair_shapes(linear2, narrow, hidden)
        shapes |= pair_shapes(norm, narrow)
    for name, out, into in _ways(prefix, sizes).values():
        shapes |= pair_shapes(f"{name}dense", out, into) | pair_shapes(f"{name}LayerNorm", out)
    return shapes


def _layer(arrays: Arrays, prefix: str, sizes: _Sizes) -> MobileBertLayer:
    own = f"{prefix}attention."
    names = f"{own}self.query", f"{own}self.key", f"{own}self.value", f"{own}output.dense"
    networks = [
        FeedForwardNorm(
            linear(arrays, linear1), linear(arrays, linear2), _norm(arrays, norm, sizes, eps), sizes.activation
        )
        for linear1, linear2, norm, eps in _networks(prefix, sizes)
    ]
    ways = {
        ours: LinearNorm(linear(arrays, f"{name}dense"), _norm(arrays, f"{name}LayerNorm", sizes, sizes.eps))
        for ours, (name, _, _) in _ways(prefix, sizes).items()
    }
    norm1 = _norm(arrays, f"{own}output.LayerNorm", sizes, sizes.eps)
    own_attention = attention(arrays, names, sizes.heads)
    return MobileBertLayer(own_attention, norm1, networks, narrow_values=sizes.narrow_values, **ways)


def _norm(arrays: Arrays, name: str, sizes: _Sizes, eps: float) -> Module:
    if sizes.normalised:
        return layer_norm(arrays, name, eps)
    return NoNorm(arrays[f"{name}.weight"], arrays[f"{name}.bias"])

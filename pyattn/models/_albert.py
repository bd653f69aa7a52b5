"""ALBERT: layers that share their weights, and vectors of words that are smaller than those of layers."""

from __future__ import annotations

from pyattn.io.config import MOST_LAYERS, Config
from pyattn.models._embeddings import Embeddings
from pyattn.models._parts import Arrays, LayerNames, encoder_layer, layer_norm, layer_shapes, linear, pair_shapes
from pyattn.models._plan import NORM, Parts, Plan, Pooler, embedding_shapes, heads_of, require_an_encoder, tables
from pyattn.nn.transformer.layer import TransformerEncoderLayer

__all__ = ["plan_albert"]

LAYER = LayerNames(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    out="attention.dense",
    norm1="attention.LayerNorm",
    linear1="ffn",
    linear2="ffn_output",
    norm2="full_layer_layer_norm",
)
PROJECTION, POOLER = "encoder.embedding_hidden_mapping_in", "pooler"

# Of the first published files; nothing computes with other values.
OLDER = {"net_structure_type": (0,), "num_memory_blocks": (0,), "gap_size": (0,), "down_scale_factor": (1,)}


def plan_albert(config: Config) -> Plan:
    """Plan an ALBERT: Lan et al., "ALBERT: A Lite BERT for Self-supervised Learning" (2019).

    Parameters
    ----------
    config : Config
        Of the model.

    Returns
    -------
    Plan
        With a pooler. Its layers are fewer than it computes: some come more than once.

    Raises
    ------
    ValueError
        A value is wrong, or asks for what is not here.
    """
    require_an_encoder(config)
    config.require(OLDER)
    dim, hidden, word_dim = (config.count(name) for name in ("hidden_size", "intermediate_size", "embedding_size"))
    counts = config.count("vocab_size"), config.count("max_position_embeddings"), config.count("type_vocab_size", 2)
    heads, activation = heads_of(config, dim), config.activation("hidden_act", "gelu_new")
    eps = config.number("layer_norm_eps", 1e-12)
    groups, layers = _groups_of(config)
    inner = config.count("inner_group_num", 1, most=MOST_LAYERS // max(groups, len(layers)))
    names = [
        [LAYER.within(f"encoder.albert_layer_groups.{group}.albert_layers.{n}.") for n in range(inner)]
        for group in range(groups)
    ]

    shapes = embedding_shapes(*counts, word_dim) | pair_shapes(PROJECTION, dim, word_dim)
    for layer in (layer for group in names for layer in group):
        shapes |= layer_shapes(layer, dim, hidden)
    pooler = pair_shapes(POOLER, dim, dim)

    def build(arrays: Arrays) -> Parts:
        made: list[list[TransformerEncoderLayer]] = [
            [encoder_layer(arrays, layer, heads, activation, eps) for layer in group] for group in names
        ]
        behind = Pooler(linear(arrays, POOLER)) if f"{POOLER}.weight" in arrays else None
        embeddings = Embeddings(*tables(arrays), layer_norm(arrays, NORM, eps), projection=linear(arrays, PROJECTION))
        return Parts(embeddings, [layer for group in layers for layer in made[group]], behind)

    return Plan(shapes | pooler, list(pooler), build)


def _groups_of(config: Config) -> tuple[int, list[int]]:
    """How many groups there are, and the group of each layer: as many of each, or nearly so."""
    layers = config.count("num_hidden_layers", most=MOST_LAYERS)
    groups = config.count("num_hidden_groups", 1, most=MOST_LAYERS)
    return groups, [int(n / (layers / groups)) for n in range(layers)]  # the published rounding

"""BERT, RoBERTa and DistilBERT: the same layers under other names, with positions counted otherwise."""

from __future__ import annotations

from pyattn.io.config import MOST_LAYERS, Config
from pyattn.models._embeddings import Embeddings
from pyattn.models._parts import Arrays, LayerNames, encoder_layer, layer_norm, layer_shapes, linear, pair_shapes
from pyattn.models._plan import NORM, Parts, Plan, Pooler, embedding_shapes, heads_of, require_an_encoder, tables

__all__ = ["plan_bert", "plan_distilbert", "plan_roberta"]

# Our names of a layer's parts to published ones.
BERT_LAYER = LayerNames(
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    out="attention.output.dense",
    norm1="attention.output.LayerNorm",
    linear1="intermediate.dense",
    linear2="output.dense",
    norm2="output.LayerNorm",
)
DISTILBERT_LAYER = LayerNames(
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    out="attention.out_lin",
    norm1="sa_layer_norm",
    linear1="ffn.lin1",
    linear2="ffn.lin2",
    norm2="output_layer_norm",
)
POOLER = "pooler.dense"


def plan_bert(config: Config) -> Plan:
    """Plan a BERT: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018).

    Parameters
    ----------
    config : Config
        Of the model.

    Returns
    -------
    Plan
        With a pooler.

    Raises
    ------
    ValueError
        A value is wrong, or asks for what is not here.
    """
    return _plan(config, None)


def plan_roberta(config: Config) -> Plan:
    """Plan a RoBERTa (Liu et al. 2019): a BERT whose positions begin after the id of padding.

    Parameters
    ----------
    config : Config
        Of the model.

    Returns
    -------
    Plan
        With a pooler.

    Raises
    ------
    ValueError
        A value is wrong, or asks for what is not here.
    """
    positions = config.count("max_position_embeddings", least=2)
    return _plan(config, config.count("pad_token_id", 1, least=0, most=positions - 2))


def _plan(config: Config, padding_id: int | None) -> Plan:
    require_an_encoder(config)
    dim, hidden = config.count("hidden_size"), config.count("intermediate_size")
    counts = config.count("vocab_size"), config.count("max_position_embeddings"), config.count("type_vocab_size", 2)
    heads, activation = heads_of(config, dim), config.activation("hidden_act", "gelu")
    eps = config.number("layer_norm_eps", 1e-12)
    layers = config.count("num_hidden_layers", most=MOST_LAYERS)
    names = [BERT_LAYER.within(f"encoder.layer.{n}.") for n in range(layers)]

    shapes = embedding_shapes(*counts, dim)
    for layer in names:
        shapes |= layer_shapes(layer, dim, hidden)
    pooler = pair_shapes(POOLER, dim, dim)

    def build(arrays: Arrays) -> Parts:
        embeddings = Embeddings(*tables(arrays), layer_norm(arrays, NORM, eps), padding_id)
        behind = Pooler(linear(arrays, POOLER)) if f"{POOLER}.weight" in arrays else None
        return Parts(embeddings, [encoder_layer(arrays, layer, heads, activation, eps) for layer in names], behind)

    return Plan(shapes | pooler, list(pooler), build)


def plan_distilbert(config: Config) -> Plan:
    """Plan a DistilBERT (Sanh et al. 2019): a BERT without types of tokens and without a pooler.

    Parameters
    ----------
    config : Config
        Of the model.

    Returns
    -------
    Plan
        Without a pooler.

    Raises
    ------
    ValueError
        A value is wrong, or asks for what is not here.
    """
    require_an_encoder(config)
    dim, hidden = config.count("dim"), config.count("hidden_dim")
    counts = config.count("vocab_size"), config.count("max_position_embeddings"), 0
    heads, activation = heads_of(config, dim, "n_heads"), config.activation("activation", "gelu")
    eps = 1e-12  # in no configuration
    layers = config.count("n_layers", most=MOST_LAYERS)
    names = [DISTILBERT_LAYER.within(f"transformer.layer.{n}.") for n in range(layers)]

    shapes = embedding_shapes(*counts, dim)
    for layer in names:
        shapes |= layer_shapes(layer, dim, hidden)

    def build(arrays: Arrays) -> Parts:
        blocks = [encoder_layer(arrays, layer, heads, activation, eps) for layer in names]
        return Parts(Embeddings(*tables(arrays), layer_norm(arrays, NORM, eps)), blocks, None)

    return Plan(shapes, [], build)

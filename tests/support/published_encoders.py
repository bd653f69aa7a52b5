"""Tiny relatives of BERT as they are published, by the names and shapes that the package itself asks for."""

from __future__ import annotations

from support.published import BERT, write_model
from support.published_decoders import tensors_of

from pyattn.io.config import Config
from pyattn.models.loading import FAMILIES

DISTILBERT = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "activation": "gelu"}
ENCODERS = {
    "roberta": {**BERT, "type_vocab_size": 1, "pad_token_id": 1},
    "distilbert": {"vocab_size": 20, "max_position_embeddings": 10, **DISTILBERT},
    "albert": {**BERT, "embedding_size": 6, "num_hidden_groups": 1, "inner_group_num": 1},
    "mobilebert": {**BERT, "embedding_size": 6, "intra_bottleneck_size": 4, "num_feedforward_networks": 2}
    | {"hidden_act": "relu", "normalization_type": "no_norm", "trigram_input": True},
}


def write_encoder(folder, family, **changes):
    """A folder of config.json and model.safetensors."""
    config = {**ENCODERS[family], "model_type": family, **changes}
    shapes = FAMILIES[family](Config(config, "config.json")).shapes
    return write_model(folder, config, tensors_of(shapes))

"""Names of an encoder layer's parts, in published files and in the models of Hugging Face's transformers."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ALBERT_LAYER", "BERT_LAYER", "DISTILBERT_LAYER", "VIT_LAYER", "LayerNames"]


class LayerNames(NamedTuple):
    """The names of an encoder layer's parts in a family's files; each part has a weight and a bias."""

    query: str
    key: str
    value: str
    out: str
    norm1: str
    linear1: str
    linear2: str
    norm2: str

    def within(self, prefix: str) -> LayerNames:
        """Return the names with a prefix, for one of several layers."""
        return LayerNames(*(prefix + name for name in self))


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
ALBERT_LAYER = LayerNames(
    query="attention.query",
    key="attention.key",
    value="attention.value",
    out="attention.dense",
    norm1="attention.LayerNorm",
    linear1="ffn",
    linear2="ffn_output",
    norm2="full_layer_layer_norm",
)
VIT_LAYER = LayerNames(
    query="attention.q_proj",
    key="attention.k_proj",
    value="attention.v_proj",
    out="attention.o_proj",
    norm1="layernorm_before",
    linear1="mlp.fc1",
    linear2="mlp.fc2",
    norm2="layernorm_after",
)

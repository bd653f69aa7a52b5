"""Layers with parameters: `torch.nn` for NumPy.

>>> from pyattn import nn
>>> nn.Linear(3, 2)
Linear(in_features=3, out_features=2, bias=True)
"""

from typing import TYPE_CHECKING

from pyattn._util.names import showing
from pyattn.io.arrays import load, save
from pyattn.nn import init, losses
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.attention.per_head import Heads, from_heads, to_heads
from pyattn.nn.attention.self_attention import SelfAttention
from pyattn.nn.containers import ModuleList
from pyattn.nn.dropout import Dropout
from pyattn.nn.embedding import Embedding
from pyattn.nn.feed_forward import FeedForward
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.norm import LayerNorm, RMSNorm
from pyattn.nn.positions import PositionalEncoding, RotaryEmbedding
from pyattn.nn.state import IncompatibleKeys
from pyattn.nn.transformer.language_model import TransformerLM
from pyattn.nn.transformer.layer import TransformerDecoderLayer, TransformerEncoderLayer
from pyattn.nn.transformer.seq2seq import Seq2SeqTransformer
from pyattn.nn.transformer.stack import TransformerDecoder, TransformerEncoder
from pyattn.nn.transformer.transformer import Transformer

__all__ = [
    "Dropout",
    "Embedding",
    "FeedForward",
    "Heads",
    "IncompatibleKeys",
    "LayerNorm",
    "Linear",
    "Module",
    "ModuleList",
    "MultiheadAttention",
    "PositionalEncoding",
    "RMSNorm",
    "RotaryEmbedding",
    "SelfAttention",
    "Seq2SeqTransformer",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerLM",
    "from_heads",
    "init",
    "load",
    "losses",
    "save",
    "to_heads",
]

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__)

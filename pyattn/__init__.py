"""Attention for NumPy arrays, with its core in C.

>>> import numpy as np, pyattn
>>> query = key = value = np.eye(2, dtype=np.float32)
>>> pyattn.attention(query, key, value).shape
(2, 2)
"""

import importlib
from typing import TYPE_CHECKING

from pyattn import masks, runtime
from pyattn._version import __version__
from pyattn.dropping import dropout, dropout_keep_mask
from pyattn.functional import (
    AttentionResult,
    attention,
    embedding,
    feed_forward,
    linear,
    log_softmax,
    merge_states,
    scaled_dot_product_attention,
    softmax,
)
from pyattn.runtime import get_include, get_num_threads, set_num_threads, show_config
from pyattn.single_head import self_attention
from pyattn.warning import MaskWarning, ShapeWarning

__all__ = [
    "AttentionResult",
    "Dropout",
    "Embedding",
    "FeedForward",
    "Generation",
    "KVCache",
    "LayerNorm",
    "Linear",
    "MaskWarning",
    "MultiheadAttention",
    "PositionalEncoding",
    "RMSNorm",
    "RotaryEmbedding",
    "SelfAttention",
    "Seq2SeqTransformer",
    "ShapeWarning",
    "TopK",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "TransformerLM",
    "__version__",
    "add_special_tokens",
    "additive_attention",
    "argmax",
    "attention",
    "compare",
    "dropout",
    "dropout_keep_mask",
    "embedding",
    "feed_forward",
    "gelu",
    "generate",
    "generation",
    "get_include",
    "get_num_threads",
    "layer_norm",
    "linear",
    "log_softmax",
    "masks",
    "merge_states",
    "models",
    "multi_head_attention_forward",
    "nn",
    "pad_sequences",
    "plot",
    "positional_encoding",
    "rms_norm",
    "rotary",
    "rotary_embedding",
    "runtime",
    "scaled_dot_product_attention",
    "self_attention",
    "set_num_threads",
    "shift_right",
    "show_config",
    "silu",
    "softmax",
    "testing",
    "top_k",
    "trace",
    "trace_attention",
    "tracing",
]

# Imported on first use: submodules, and names out of submodules.
_LAZY = ("comparing", "generation", "interop", "models", "nn", "plot", "reference", "rotary", "testing", "tracing")
_FROM = {
    "Dropout": "nn",
    "Embedding": "nn",
    "FeedForward": "nn",
    "Generation": "generation",
    "KVCache": "cache",
    "LayerNorm": "nn",
    "Linear": "nn",
    "MultiheadAttention": "nn",
    "PositionalEncoding": "nn",
    "RMSNorm": "nn",
    "RotaryEmbedding": "nn",
    "SelfAttention": "nn",
    "Seq2SeqTransformer": "nn",
    "TopK": "choosing",
    "Transformer": "nn",
    "TransformerDecoder": "nn",
    "TransformerDecoderLayer": "nn",
    "TransformerEncoder": "nn",
    "TransformerEncoderLayer": "nn",
    "TransformerLM": "nn",
    "add_special_tokens": "sequences",
    "additive_attention": "additive",
    "argmax": "choosing",
    "compare": "comparing",
    "gelu": "activations",
    "generate": "generation",
    "layer_norm": "normalizing",
    "multi_head_attention_forward": "multi_head",
    "pad_sequences": "sequences",
    "positional_encoding": "positional",
    "rms_norm": "normalizing",
    "rotary_embedding": "rotary",
    "shift_right": "sequences",
    "silu": "activations",
    "top_k": "choosing",
    "trace": "tracing",
    "trace_attention": "tracing",
}

if TYPE_CHECKING:
    from pyattn import generation, models, nn, plot, rotary, testing
    from pyattn.activations import gelu, silu
    from pyattn.additive import additive_attention
    from pyattn.cache import KVCache
    from pyattn.choosing import TopK, argmax, top_k
    from pyattn.comparing import compare
    from pyattn.generation import Generation, generate
    from pyattn.multi_head import multi_head_attention_forward
    from pyattn.nn import (
        Dropout,
        Embedding,
        FeedForward,
        LayerNorm,
        Linear,
        MultiheadAttention,
        PositionalEncoding,
        RMSNorm,
        RotaryEmbedding,
        SelfAttention,
        Seq2SeqTransformer,
        Transformer,
        TransformerDecoder,
        TransformerDecoderLayer,
        TransformerEncoder,
        TransformerEncoderLayer,
        TransformerLM,
    )
    from pyattn.normalizing import layer_norm, rms_norm
    from pyattn.positional import positional_encoding
    from pyattn.rotary import rotary_embedding
    from pyattn.sequences import add_special_tokens, pad_sequences, shift_right
    from pyattn.tracing import trace, trace_attention
else:  # to a type checker a module's __getattr__ would mean that every name exists

    def __getattr__(name):
        if name in _LAZY:
            return importlib.import_module(f"pyattn.{name}")
        if name in _FROM:
            return getattr(importlib.import_module(f"pyattn.{_FROM[name]}"), name)
        raise AttributeError(f"module 'pyattn' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_LAZY, *_FROM})

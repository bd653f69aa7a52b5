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
from pyattn.dropping import dropout_keep_mask
from pyattn.functional import (
    AttentionResult,
    attention,
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
    "FeedForward",
    "LayerNorm",
    "Linear",
    "MaskWarning",
    "MultiheadAttention",
    "RMSNorm",
    "SelfAttention",
    "ShapeWarning",
    "Transformer",
    "TransformerDecoder",
    "TransformerDecoderLayer",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "__version__",
    "additive_attention",
    "attention",
    "compare",
    "dropout_keep_mask",
    "feed_forward",
    "gelu",
    "get_include",
    "get_num_threads",
    "layer_norm",
    "linear",
    "log_softmax",
    "masks",
    "merge_states",
    "multi_head_attention_forward",
    "nn",
    "plot",
    "rms_norm",
    "runtime",
    "scaled_dot_product_attention",
    "self_attention",
    "set_num_threads",
    "show_config",
    "silu",
    "softmax",
    "testing",
    "trace",
    "trace_attention",
    "tracing",
]

# Imported on first use: submodules, and names out of submodules.
_LAZY = ("comparing", "interop", "nn", "plot", "reference", "testing", "tracing")
_FROM = {
    "FeedForward": "nn",
    "LayerNorm": "nn",
    "Linear": "nn",
    "MultiheadAttention": "nn",
    "RMSNorm": "nn",
    "SelfAttention": "nn",
    "Transformer": "nn",
    "TransformerDecoder": "nn",
    "TransformerDecoderLayer": "nn",
    "TransformerEncoder": "nn",
    "TransformerEncoderLayer": "nn",
    "additive_attention": "additive",
    "compare": "comparing",
    "gelu": "activations",
    "layer_norm": "normalizing",
    "multi_head_attention_forward": "multi_head",
    "rms_norm": "normalizing",
    "silu": "activations",
    "trace": "tracing",
    "trace_attention": "tracing",
}

if TYPE_CHECKING:
    from pyattn import nn, plot, testing
    from pyattn.activations import gelu, silu
    from pyattn.additive import additive_attention
    from pyattn.comparing import compare
    from pyattn.multi_head import multi_head_attention_forward
    from pyattn.nn import (
        FeedForward,
        LayerNorm,
        Linear,
        MultiheadAttention,
        RMSNorm,
        SelfAttention,
        Transformer,
        TransformerDecoder,
        TransformerDecoderLayer,
        TransformerEncoder,
        TransformerEncoderLayer,
    )
    from pyattn.normalizing import layer_norm, rms_norm
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

"""Functions on arrays: `torch.nn.functional` for NumPy.

They have no parameters of their own. `attention` is the C function itself; the others are thin wrappers of the C core.
A row's result is bit-identical for any number of rows, batch entries and threads.
"""

from typing import TYPE_CHECKING

from pyattn._core import embedding, feed_forward, linear
from pyattn._util.names import showing
from pyattn.functional._activations import gelu, gelu_backward, silu, silu_backward
from pyattn.functional._additive import additive_attention
from pyattn.functional._attention import AttentionResult, attention, merge_states, scaled_dot_product_attention
from pyattn.functional._attention_backward import AttentionGradients, attention_backward
from pyattn.functional._attention_jvp import attention_jvp
from pyattn.functional._dropout import dropout, dropout_keep_mask
from pyattn.functional._embedding import embedding_backward
from pyattn.functional._multihead import multi_head_attention_forward
from pyattn.functional._norm import NormGradients, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from pyattn.functional._positions import positional_encoding
from pyattn.functional._rotary import rotary_embedding
from pyattn.functional._rotary_frequencies import RotaryFrequencies, rotary_frequencies
from pyattn.functional._self_attention import self_attention
from pyattn.functional._softmax import log_softmax, log_softmax_backward, softmax, softmax_backward
from pyattn.functional._topk import TopK, argmax, topk

__all__ = [
    "AttentionGradients",
    "AttentionResult",
    "NormGradients",
    "RotaryFrequencies",
    "TopK",
    "additive_attention",
    "argmax",
    "attention",
    "attention_backward",
    "attention_jvp",
    "dropout",
    "dropout_keep_mask",
    "embedding",
    "embedding_backward",
    "feed_forward",
    "gelu",
    "gelu_backward",
    "layer_norm",
    "layer_norm_backward",
    "linear",
    "log_softmax",
    "log_softmax_backward",
    "merge_states",
    "multi_head_attention_forward",
    "positional_encoding",
    "rms_norm",
    "rms_norm_backward",
    "rotary_embedding",
    "rotary_frequencies",
    "scaled_dot_product_attention",
    "self_attention",
    "silu",
    "silu_backward",
    "softmax",
    "softmax_backward",
    "topk",
]

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__, hot=("argmax", "gelu", "layer_norm", "rms_norm", "silu", "topk"))

"""Attention for NumPy arrays, with its core in C.

>>> import numpy as np, pyattn
>>> query = key = value = np.eye(2, dtype=np.float32)
>>> pyattn.attention(query, key, value).shape
(2, 2)
"""

from pyattn import masks, runtime
from pyattn._version import __version__
from pyattn.functional import (
    AttentionResult,
    MaskWarning,
    ShapeWarning,
    attention,
    log_softmax,
    merge_states,
    scaled_dot_product_attention,
    softmax,
)
from pyattn.runtime import get_include, get_num_threads, set_num_threads, show_config

__all__ = [
    "AttentionResult",
    "MaskWarning",
    "ShapeWarning",
    "__version__",
    "attention",
    "get_include",
    "get_num_threads",
    "log_softmax",
    "masks",
    "merge_states",
    "runtime",
    "scaled_dot_product_attention",
    "set_num_threads",
    "show_config",
    "softmax",
]

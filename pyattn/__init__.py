"""Attention for NumPy arrays, with its core in C.

>>> import numpy as np, pyattn
>>> query = key = value = np.eye(2, dtype=np.float32)
>>> pyattn.attention(query, key, value).shape
(2, 2)
"""

import importlib
from typing import TYPE_CHECKING

try:  # first: in a copy of the repository, Python finds the folder of sources before an installed pyattn
    importlib.import_module("pyattn._core")
except ModuleNotFoundError as missing:
    if missing.name != "pyattn._core":
        raise
    missing.msg += (
        f": the source folder {__path__[0]} was not built for this Python. Start Python in another folder to use "
        "an installed pyattn, or build this one: pip install --editable ."
    )
    raise

import pyattn.functional as functional
import pyattn.masks as masks
import pyattn.runtime as runtime
from pyattn._util.names import unknown_name
from pyattn._util.warnings import MaskWarning, ShapeWarning
from pyattn._version import __version__
from pyattn.functional import (
    AttentionResult,
    additive_attention,
    attention,
    merge_states,
    scaled_dot_product_attention,
    self_attention,
    softmax,
)
from pyattn.runtime import get_include, get_num_threads, set_num_threads, show_config

__all__ = [
    "AttentionResult",
    "KVCache",
    "MaskWarning",
    "MultiheadAttention",
    "ShapeWarning",
    "__version__",
    "additive_attention",
    "attention",
    "compare",
    "functional",
    "generate",
    "generation",
    "get_include",
    "get_num_threads",
    "interop",
    "masks",
    "merge_states",
    "models",
    "nn",
    "optim",
    "plot",
    "runtime",
    "scaled_dot_product_attention",
    "self_attention",
    "set_num_threads",
    "show_config",
    "softmax",
    "testing",
    "trace",
    "trace_attention",
    "tracing",
]

# Imported on first use, then ordinary attributes: name -> the package that defines it, or the name itself.
_LAZY = {name: name for name in ("generation", "interop", "models", "nn", "optim", "plot", "reference", "testing")}
_LAZY |= {"KVCache": "cache", "MultiheadAttention": "nn", "compare": "testing", "generate": "generation"}
_LAZY |= {"tracing": "tracing", "trace": "tracing", "trace_attention": "tracing"}

if TYPE_CHECKING:
    import pyattn.generation as generation
    import pyattn.interop as interop
    import pyattn.models as models
    import pyattn.nn as nn
    import pyattn.optim as optim
    import pyattn.plot as plot
    import pyattn.testing as testing
    import pyattn.tracing as tracing
    from pyattn.cache import KVCache
    from pyattn.generation import generate
    from pyattn.nn import MultiheadAttention
    from pyattn.testing import compare
    from pyattn.tracing import trace, trace_attention
else:  # hidden from type checkers, for which a module's __getattr__ defines every name

    def __getattr__(name):
        if name not in _LAZY:
            raise unknown_name("pyattn", name, __all__ if name.startswith("_") else _names_of_all())
        found = importlib.import_module(f"pyattn.{_LAZY[name]}")
        globals()[name] = found if _LAZY[name] == name else getattr(found, name)
        return globals()[name]

    def _names_of_all():
        """Return the names here, and in full those of modules with functions, layers, models and pictures."""
        names = ("functional", "nn", "optim", "generation", "models", "plot")
        homes = [importlib.import_module(f"pyattn.{name}") for name in names]
        return [*__all__, *(f"{home.__name__}.{name}" for home in (*homes, masks) for name in home.__all__)]

    def __dir__():
        return sorted({*__all__, *globals()} - {"TYPE_CHECKING", "importlib", "unknown_name"})

"""Convert to and from other libraries.

A library is imported only when a function needs it.
"""

import importlib
from typing import TYPE_CHECKING

__all__ = ["bertviz", "torch"]

if TYPE_CHECKING:
    import pyattn.interop.bertviz as bertviz
    import pyattn.interop.torch as torch
else:  # hidden from type checkers, to which __getattr__ means that every name exists

    def __getattr__(name):
        if name in __all__:
            return importlib.import_module(f"pyattn.interop.{name}")
        raise AttributeError(f"module 'pyattn.interop' has no attribute {name!r}")

    def __dir__():
        return sorted(__all__)

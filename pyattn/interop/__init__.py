"""Convert to and from other libraries.

A library is imported only when a function needs it.
"""

import importlib
from typing import TYPE_CHECKING

from pyattn._util.names import unknown_name

__all__ = ["bertviz", "torch", "transformers"]

if TYPE_CHECKING:
    import pyattn.interop.bertviz as bertviz
    import pyattn.interop.torch as torch
    import pyattn.interop.transformers as transformers
else:  # hidden from type checkers, to which __getattr__ means that every name exists

    def __getattr__(name):
        if name in __all__:
            return importlib.import_module(f"pyattn.interop.{name}")
        homes = () if name.startswith("_") else __all__
        functions = [f"{__name__}.{home}.{its}" for home in homes for its in __getattr__(home).__all__]
        raise unknown_name(__name__, name, [*__all__, *functions])

    def __dir__():
        return sorted(__all__)

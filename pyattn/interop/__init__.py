"""Convert to and from other libraries.

Each library is imported when a function first needs it, dask when `pyattn.interop.dask` is imported.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING

from pyattn._util.names import unknown_name

__all__ = ["bertviz", "torch", "transformers"]  # and dask, which `import *` must not need

if TYPE_CHECKING:
    import pyattn.interop.bertviz as bertviz
    import pyattn.interop.dask as dask  # noqa: F401
    import pyattn.interop.torch as torch
    import pyattn.interop.transformers as transformers
else:  # hidden from type checkers, to which __getattr__ means that every name exists

    def __getattr__(name):
        if name in (*__all__, "dask"):
            return importlib.import_module(f"pyattn.interop.{name}")
        homes = () if name.startswith("_") else __all__
        functions = [f"{__name__}.{home}.{its}" for home in homes for its in __getattr__(home).__all__]
        raise unknown_name(__name__, name, [*__all__, "dask", *functions])

    def __dir__():
        return sorted([*__all__, *(["dask"] if importlib.util.find_spec("dask") else [])])

"""To and from other libraries, which are imported when a function needs them: `pyattn.interop.torch`, `bertviz`."""

import importlib
from typing import TYPE_CHECKING

_LAZY = ("bertviz", "torch")  # submodules that are imported on first use

if not TYPE_CHECKING:  # as in pyattn itself

    def __getattr__(name):
        if name in _LAZY:
            return importlib.import_module(f"pyattn.interop.{name}")
        raise AttributeError(f"module 'pyattn.interop' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_LAZY})

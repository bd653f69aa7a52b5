"""Convert modules from and to PyTorch, and compute its models faster.

PyTorch is imported when it is needed.
"""

import importlib
from typing import TYPE_CHECKING

from pyattn._util.names import unknown_name
from pyattn.interop.torch.convert import from_torch, to_torch
from pyattn.interop.torch.tensors import import_torch

__all__ = [
    "Acceleration",
    "accelerate",
    "from_torch",
    "multi_head_attention_forward",
    "restore",
    "scaled_dot_product_attention",
    "to_torch",
]
_HOMES = {"scaled_dot_product_attention": "attention", "multi_head_attention_forward": "multi_head"}

if TYPE_CHECKING:
    from pyattn.interop.torch.acceleration import Acceleration, accelerate, restore
    from pyattn.interop.torch.attention import scaled_dot_product_attention
    from pyattn.interop.torch.multi_head import multi_head_attention_forward
else:  # hidden from type checkers, to which __getattr__ means that every name exists

    def __getattr__(name):
        if name in __all__:
            import_torch()
            home = _HOMES.get(name, "acceleration")
            return getattr(importlib.import_module(f"pyattn.interop.torch.{home}"), name)
        raise unknown_name(__name__, name, __all__)

    def __dir__():
        return sorted(__all__)

"""Convert modules from and to PyTorch, which is imported on the first call."""

from pyattn.interop.torch.convert import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]

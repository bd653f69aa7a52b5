"""Tensors as arrays and back, on the same memory or copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyattn._util.halves import of_tensor

if TYPE_CHECKING:
    import torch

__all__ = ["import_torch", "original_class", "to_array", "to_tensor", "view_as_array", "view_as_tensor"]


def import_torch() -> Any:
    """Import PyTorch, or say how to install it."""
    try:
        import torch
    except ImportError as missing:
        raise ImportError("pyattn.interop.torch needs PyTorch: pip install torch") from missing
    return torch


def original_class(kind: Any) -> Any:
    """Return the class that an accelerated one stands for; other classes as they are."""
    return kind.__dict__.get("_pyattn_original", kind)


def to_array(tensor: torch.Tensor, name: str, share: bool) -> npt.NDArray[Any]:
    """Copy a parameter into an array, or view its memory."""
    import torch

    if share and not isinstance(tensor, torch.nn.Parameter):
        raise ValueError(
            f"{name} is computed anew in each call of torch, by a parametrization or a hook such as weight_norm and "
            "prune: pass share=False to copy it"
        )
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} is on device '{tensor.device}'; pass module.cpu()")
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(
            f"{name} has dtype {tensor.dtype}, expected float16, bfloat16, float32 or float64; pass module.float()"
        )
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is sparse; pass {name}.to_dense()")
    if tensor.numel() and tensor.untyped_storage().nbytes() == 0:
        raise ValueError(f"{name} has no memory: torch has resized its storage to nothing")
    array = view_as_array(tensor.detach(), name)  # from now on torch refuses to resize it
    return array if share else array.copy()


def view_as_array(tensor: torch.Tensor, name: str) -> npt.NDArray[Any]:
    """View a tensor that requires no gradient as an array."""
    import torch

    array: npt.NDArray[Any] = of_tensor(tensor, name) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return array


def to_tensor(array: npt.NDArray[Any], name: str, share: bool) -> torch.Tensor:
    """Copy an array into a tensor, or view its memory."""
    if not share:
        return view_as_tensor(np.array(array, array.dtype.newbyteorder("="), order="C"))
    if not (array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0):
        raise ValueError(
            f"{name} is read-only, byte-swapped or has negative strides, which torch cannot view: pass share=False to "
            "copy it"
        )
    return view_as_tensor(array)


def view_as_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """View an array as a tensor; torch does not know the bfloat16 of ml_dtypes."""
    import torch

    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)

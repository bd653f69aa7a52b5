"""Modules to and from PyTorch, which is imported by the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn import nn

__all__ = ["from_torch", "to_torch"]


def from_torch(module: Any, share: bool = False) -> nn.Module:
    """Make the module that computes what one of torch's does.

    Parameters
    ----------
    module : torch.nn.Module
        A `torch.nn.Linear` on the CPU, in float32 or float64.
    share : bool
        Without a copy: the parameters are views of torch's memory, and what is written on either side, by an optimiser
        perhaps, counts on both. Default: False.

    Returns
    -------
    pyattn.nn.Module
        In the same mode, training or not.

    Raises
    ------
    TypeError
        There is no such module here, or its parameters have no twin in NumPy.
    ValueError
        share, and the parameters are computed by torch in every call.
    ImportError
        There is no torch.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> theirs = torch.nn.Linear(3, 2)  # doctest: +SKIP
    >>> pyattn.interop.torch.from_torch(theirs)  # doctest: +SKIP
    Linear(in_features=3, out_features=2, bias=True)
    """
    import torch

    for kind in _KINDS:
        theirs = getattr(torch.nn, kind.name)
        # A subclass may bring its own __init__, but not another forward.
        if isinstance(module, theirs) and type(module).forward is theirs.forward:
            if share and torch.nn.utils.parametrize.is_parametrized(module):
                raise ValueError("module has parametrizations, whose results torch computes anew: pass share=False")
            return kind.from_torch(module, share).train(module.training)
    raise TypeError(
        f"module is of type {type(module).__name__}, and from_torch knows torch.nn's {_names()}; "
        "load_state_dict takes the state_dict() of any module"
    )


def to_torch(module: nn.Module, share: bool = False) -> Any:
    """Make torch's module that computes what one of pyattn's does.

    Parameters
    ----------
    module : pyattn.nn.Module
        A `pyattn.nn.Linear`.
    share : bool
        Without a copy: the parameters are tensors on the arrays' memory, and what is written on either side counts on
        both. Default: False.

    Returns
    -------
    torch.nn.Module
        In the same mode, training or not; its parameters require gradients, as those of any new module.

    Raises
    ------
    TypeError
        torch has no such module.
    ValueError
        share, and torch cannot view an array: it is read-only, byte-swapped or has negative strides.
    ImportError
        There is no torch.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.interop.torch.to_torch(pyattn.nn.Linear(3, 2))  # doctest: +SKIP
    Linear(in_features=3, out_features=2, bias=True)
    """
    for kind in _KINDS:
        if isinstance(module, kind.ours) and type(module).forward is kind.ours.forward:
            return kind.to_torch(module, share).train(module.training)
    raise TypeError(f"module is of type {type(module).__name__}, and to_torch knows pyattn.nn's {_names()}")


def _linear_from_torch(linear: Any, share: bool) -> nn.Module:
    weight = _array(linear.weight, "weight", share)
    return nn.Linear.from_arrays(weight, None if linear.bias is None else _array(linear.bias, "bias", share))


def _linear_to_torch(linear: Any, share: bool) -> Any:
    import torch

    sizes = {"in_features": linear.in_features, "out_features": linear.out_features}
    theirs = torch.nn.Linear(**sizes, bias=linear.bias is not None, device="meta")  # without memory or numbers
    for name, array in linear.named_parameters():
        setattr(theirs, name, torch.nn.Parameter(_tensor(array, name, share)))
    return theirs


class _Kind(NamedTuple):
    """A module that both sides have, by the same name, and the way there and back."""

    name: str
    ours: type[nn.Module]
    from_torch: Callable[[Any, bool], nn.Module]
    to_torch: Callable[[Any, bool], Any]


_KINDS = (_Kind("Linear", nn.Linear, _linear_from_torch, _linear_to_torch),)


def _names() -> str:
    return ", ".join(kind.name for kind in _KINDS)


def _array(tensor: Any, name: str, share: bool) -> npt.NDArray[Any]:
    """Copy the tensor's numbers, or view its memory."""
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} is on device '{tensor.device}'; pass module.cpu()")
    if str(tensor.dtype) not in ("torch.float32", "torch.float64"):
        raise TypeError(f"{name} has dtype {tensor.dtype}, expected float32 or float64; pass module.float()")
    array: npt.NDArray[Any] = tensor.detach().numpy()
    return array if share else array.copy()


def _tensor(array: npt.NDArray[Any], name: str, share: bool) -> Any:
    import torch

    if not share:
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    if not (array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0):
        raise ValueError(f"{name} is read-only, byte-swapped or has negative strides: torch needs a copy, share=False")
    return torch.from_numpy(array)

"""Read the parameters of torch's modules, and the tensors of a call, as arrays on the same memory."""

from __future__ import annotations

from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.modules.dropout import _DropoutNd

import pyattn._core as _core
from pyattn._util.typing import FloatArray
from pyattn.interop.torch.convert import activation_from_torch
from pyattn.interop.torch.snapshot import UnfitError
from pyattn.interop.torch.tensors import original_class, to_array, view_as_array

__all__ = [
    "Norm",
    "activation_of",
    "array_of",
    "as_array",
    "check_author",
    "check_parts",
    "check_tensor",
    "eps_of",
    "is_faster_in_torch",
    "is_transformed",
    "leaves_rows",
    "linear_of",
    "norm_of",
    "normalized",
    "part_of",
    "read_tensor",
]

# transformers' activations by their class names; those of torch.nn are read by from_torch.
_ACTIVATIONS = {
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "SiLUActivation": "silu",
}
_LINEAR, _CONV1D = torch.nn.Linear, "transformers.pytorch_utils.Conv1D"
_HOMES = "transformers.activations", "transformers.pytorch_utils"  # beside torch.nn and the file of the module
_AUTHORS = "torch.", "transformers.", "pyattn."
# Methods that compute nothing.
_WITHOUT_NUMBERS = {*dir(torch.nn.Module), "reset_parameters", "_reset_parameters"} - {"forward", "__call__"}

# torch multiplies bfloat16 by instructions for it where the CPU has them, and from so many rows on wins by that.
_MULTIPLIES_BFLOAT16 = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
_MANY_ROWS = 8


class Norm(NamedTuple):
    """A normalisation over the last axis."""

    weight: FloatArray | None
    bias: FloatArray | None
    eps: float | None
    rms: bool


def check_parts(module: torch.nn.Module) -> None:
    """Refuse parts with forwards that someone else has written, as in a subclass."""
    own = original_class(type(module)).__module__
    for path, part in module.named_modules():
        kind = original_class(type(part))
        if kind.__module__ not in (own, *_HOMES) and not kind.__module__.startswith("torch.nn.modules."):
            raise UnfitError(f"a {kind.__name__} in it comes from {kind.__module__}")
        check_author(kind.forward, f"the forward of a {kind.__name__}")
        for name, method in vars(kind).items():
            if isinstance(method, FunctionType) and name not in _WITHOUT_NUMBERS:
                check_author(method, f"the {name} of a {kind.__name__}")
        for name in vars(part).keys() - _WITHOUT_NUMBERS:
            if callable(getattr(kind, name, None)):
                raise UnfitError(f"a {kind.__name__} has a {name} of its own")
        if "drop" in path.rpartition(".")[2] and not isinstance(part, (_DropoutNd, torch.nn.Identity)):
            raise UnfitError(f"{path} is a {kind.__name__}, not a Dropout")
        for name, one in part._parameters.items():
            _check_parameter(one, name)


def check_author(function: Any, what: str) -> None:
    """Refuse a function that someone else has put in its place, or wrapped, or had wrapped."""
    while function is not None:
        home = getattr(function, "__globals__", {"__name__": type(function).__module__})["__name__"]
        if not home.startswith(_AUTHORS):
            raise UnfitError(f"{what} comes from {home}")
        function = getattr(function, "__wrapped__", None)  # functools.wraps copies __module__


def part_of(module: Any, path: str) -> Any:
    """Return a part of a module by its name, such as 'attention.self.query'."""
    for name in path.split("."):
        module = module._modules.get(name)
        if module is None:
            raise UnfitError(f"it has no part {path}")
    return module


def _check_parameter(tensor: torch.Tensor | None, name: str) -> None:
    """Refuse what may not be the numbers that it holds, or is computed in each call."""
    if tensor is not None and type(tensor) is not torch.nn.Parameter:
        raise UnfitError(f"{name} is a {type(tensor).__name__}, not a Parameter")


def array_of(tensor: torch.Tensor | None, name: str) -> FloatArray | None:
    """View a parameter."""
    _check_parameter(tensor, name)
    try:
        return None if tensor is None else to_array(tensor, name, share=True)
    except (ImportError, TypeError, ValueError) as error:
        raise UnfitError(str(error)) from error


def linear_of(module: Any, path: str = "") -> tuple[FloatArray, FloatArray | None]:
    """View weight and bias of a Linear, or of transformers' Conv1D, whose weight is (in, out)."""
    part = part_of(module, path) if path else module
    kind, name = original_class(type(part)), f"{path}.weight".lstrip(".")
    is_conv = f"{kind.__module__}.{kind.__qualname__}" == _CONV1D
    if not is_conv and kind is not _LINEAR:
        raise UnfitError(f"{path or 'it'} is a {kind.__name__}, not a Linear")
    weight = array_of(part.weight, name)
    assert weight is not None
    return weight.T if is_conv else weight, array_of(part.bias, name.removesuffix("weight") + "bias")


def norm_of(module: Any, path: str = "") -> Norm:
    """View a LayerNorm, an RMSNorm of torch, or one of transformers."""
    part = part_of(module, path) if path else module
    kind, prefix = original_class(type(part)), f"{path}." if path else ""
    is_torch = kind in (torch.nn.LayerNorm, torch.nn.RMSNorm)
    if not is_torch and not (kind.__module__.startswith("transformers.models.") and kind.__name__.endswith("RMSNorm")):
        raise UnfitError(f"{path or 'it'} is a {kind.__name__}, not a LayerNorm or an RMSNorm")
    if is_torch and len(part.normalized_shape) != 1:
        raise UnfitError(f"{prefix}normalized_shape has {len(part.normalized_shape)} axes, and pyattn normalises one")
    weight, bias = (array_of(getattr(part, name, None), prefix + name) for name in ("weight", "bias"))
    return Norm(weight, bias, part.eps if is_torch else part.variance_epsilon, kind is not torch.nn.LayerNorm)


def normalized(x: FloatArray, norm: Norm) -> FloatArray:
    """Normalise rows."""
    result = _core.normalize(x, norm.weight, norm.bias, rms=norm.rms, eps=eps_of(norm.eps, x.dtype))
    assert isinstance(result, np.ndarray)
    return result


def eps_of(eps: float | None, dtype: np.dtype[Any]) -> float:
    """Return torch's eps of an RMSNorm: by default that of the dtype in which torch computes."""
    return float(np.finfo(np.float64 if dtype == np.float64 else np.float32).eps) if eps is None else eps


def activation_of(activation: Any) -> Any:
    """Return pyattn's name of an activation of torch or transformers."""
    kind = original_class(type(activation))
    if kind.__module__ == "transformers.activations":
        if kind.__name__ in _ACTIVATIONS:
            return _ACTIVATIONS[kind.__name__]
        raise UnfitError(f"pyattn has no {kind.__name__}")
    try:
        return activation_from_torch(activation)
    except TypeError:
        raise UnfitError(f"pyattn has no {kind.__name__} as an activation") from None


def read_tensor(tensor: torch.Tensor, name: str) -> Any:
    """View a tensor as an array, or say why that cannot be."""
    check_tensor(tensor, name)
    if _has_tangent(tensor):
        raise TypeError(f"{name} has a tangent of forward mode, which pyattn cannot read")
    return view_as_array(tensor.detach().resolve_neg(), name)


def check_tensor(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor whose memory pyattn cannot read."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is of type {type(tensor).__name__}, expected torch.Tensor")
    if not tensor.is_cpu:
        raise TypeError(f"{name} is on device '{tensor.device}'; pass {name}.cpu()")
    if tensor.is_nested:
        raise TypeError(f"{name} is a nested tensor; pass {name}.to_padded_tensor(0.0) and a mask")
    if tensor.layout is not torch.strided:
        raise TypeError(f"{name} is a sparse tensor; pass {name}.to_dense()")


def is_transformed(*tensors: torch.Tensor | None) -> bool:
    """Tell whether torch.func transforms a call, or a tensor is batched or has a tangent: torch has to compute it."""
    functorch = torch._C._functorch
    if functorch.peek_interpreter_stack() is not None:
        return True
    # Autograd batches gradients by a vmap older than that of torch.func.
    given = [x for x in tensors if isinstance(x, torch.Tensor)]
    return any(functorch.is_legacy_batchedtensor(x) or _has_tangent(x) for x in given)


def _has_tangent(tensor: torch.Tensor) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def as_array(tensor: Any, name: str, dtype: np.dtype[Any] | None = None) -> FloatArray:
    """View a tensor of a call, which must have the dtype of the weights, if that is given."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise UnfitError(f"{name} is a {type(tensor).__name__}")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UnfitError(f"gradients are enabled, and {name} requires one")
    try:
        array: FloatArray = read_tensor(tensor, name)
    except (ImportError, RuntimeError, TypeError) as error:
        raise UnfitError(f"{error}") from error
    if dtype is not None and array.dtype != dtype:
        raise UnfitError(f"{name} has dtype {array.dtype} and the weights {dtype}")
    return array


def leaves_rows(module: torch.nn.Module) -> bool:
    """Tell whether many rows times this module's own weights are left to torch."""
    if not _MULTIPLIES_BFLOAT16 or isinstance(module, torch.nn.Embedding):
        return False
    return any(one.dtype == torch.bfloat16 and one.ndim == 2 for one in module.parameters(recurse=False))


def is_faster_in_torch(rows: object) -> bool:
    """Tell whether torch multiplies these rows faster."""
    if not _MULTIPLIES_BFLOAT16 or not isinstance(rows, torch.Tensor) or rows.dtype != torch.bfloat16:
        return False
    return rows.ndim > 1 and not rows.is_nested and rows.numel() >= _MANY_ROWS * rows.shape[-1]

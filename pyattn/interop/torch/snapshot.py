"""What a torch module consists of, to notice later whether anything has changed."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

__all__ = ["Snapshot", "UnfitError"]


_GLOBAL_HOOKS = vars(torch.nn.modules.module)


class UnfitError(Exception):
    """Why torch computes a module, or a call of it, itself."""


class Snapshot:
    """The parts and parameters of a module: which objects they are, and where their memory is."""

    __slots__ = ("_groups", "_members", "_parts", "_tensors")

    def __init__(self, module: torch.nn.Module) -> None:
        parts = list(module.modules())
        self._parts = [vars(part) for part in parts[1:]]  # torch calls the hooks of the module itself
        groups = [members for part in parts for members in (part._modules, part._parameters)]
        grow = (*groups, *map(vars, parts))  # an attribute may stand for a method of the class
        self._groups = [(members, len(members)) for members in grow]
        self._members = [(members, name, one, type(one)) for members in groups for name, one in members.items()]
        tensors = {id(one): one for _, _, one, _ in self._members if isinstance(one, torch.Tensor)}
        try:
            self._tensors = [(one, one.data_ptr(), one.dtype, one.shape, one.stride()) for one in tensors.values()]
        except RuntimeError as error:  # a tensor of torch.func, or another without memory
            raise UnfitError(f"a parameter has no memory: {error}") from error

    def is_current(self) -> bool:
        """Tell whether all parts and parameters are the same objects, on the same memory."""
        for members, count in self._groups:
            if len(members) != count:
                return False
        for members, name, one, kind in self._members:
            if members.get(name) is not one or one.__class__ is not kind:
                return False
        for tensor, address, dtype, shape, stride in self._tensors:
            if tensor.data_ptr() != address or tensor.dtype != dtype:
                return False
            if tensor.shape != shape or tensor.stride() != stride:
                return False
        return True

    def check_calls(self) -> None:
        """Raise `UnfitError` if calling the parts one by one would run more than their forwards."""
        if self._parts and (_GLOBAL_HOOKS["_global_forward_pre_hooks"] or _GLOBAL_HOOKS["_global_forward_hooks"]):
            raise UnfitError("a hook is registered for all modules")
        for own in self._parts:
            if own["_forward_pre_hooks"] or own["_forward_hooks"]:
                _check_hooks((*own["_forward_pre_hooks"].values(), *own["_forward_hooks"].values()))
            if "forward" in own:
                raise UnfitError("a part of it has a forward of its own")
            if own["training"]:
                raise UnfitError("a part of it is in training mode; call model.eval()")

    def is_training(self) -> bool:
        """Tell whether a part is in training mode."""
        return any(own["training"] for own in self._parts)

    def requires_grad(self) -> bool:
        """Tell whether a parameter requires a gradient."""
        return any(tensor.requires_grad for tensor, *_ in self._tensors)


def _check_hooks(hooks: tuple[Any, ...]) -> None:
    """Allow only the hooks with which transformers collects outputs, while they collect none."""
    for hook in hooks:
        home = getattr(hook, "__module__", None)
        if home != "transformers.utils.output_capturing":
            raise UnfitError("a part of it has a hook")
        collected = sys.modules[home]._active_collector.get()  # by kind, such as "attentions"
        if collected and inspect.getclosurevars(hook).nonlocals.get("key") in collected:
            raise UnfitError("outputs of a part of it are collected")

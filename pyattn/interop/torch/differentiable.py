"""Layers of torch's tensors with gradients: pyattn computes both ways, torch's operations the gradients of gradients.

torch's operations also compute batches of gradients, and gradients that pyattn cannot read. Each function returns what
torch's function of its name does. A backward computes only what requires grad, and a forward keeps no more than that
needs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.halves import as_float32, round_to
from pyattn._util.typing import FloatArray
from pyattn.interop.torch.convert import activation_to_torch
from pyattn.interop.torch.reading import Norm, as_array, eps_of, is_transformed, normalized
from pyattn.interop.torch.snapshot import UnfitError
from pyattn.interop.torch.tensors import view_as_tensor
from pyattn.interop.torch.threads import call_on_torchs_threads

__all__ = ["activate", "differentiate_in_torch", "embed", "linear", "normalize"]


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ``x @ weight.T + bias``."""
    result: torch.Tensor = _Linear.apply(x, weight, bias)
    return result


def normalize(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float | None, rms: bool
) -> torch.Tensor:
    """Normalise rows, as LayerNorm or RMSNorm."""
    result: torch.Tensor = _Norm.apply(x, weight, bias, eps, rms)
    return result


def activate(x: torch.Tensor, name: str) -> torch.Tensor:
    """Apply an activation of the core."""
    result: torch.Tensor = _Activation.apply(x, name)
    return result


def embed(ids: torch.Tensor, weight: torch.Tensor, padding_idx: int | None) -> torch.Tensor:
    """Look up rows of weight; that of padding_idx gets no gradient."""
    result: torch.Tensor = _Embedding.apply(ids, weight, padding_idx)
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        needs_x, needs_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight else None, weight if needs_x else None)
        ctx.order = weight.stride()
        array = as_array(weight.detach(), "weight")
        shift = None if bias is None else as_array(bias.detach(), "bias", array.dtype)
        return _call(functional.linear, as_array(x.detach(), "input", array.dtype), array, shift)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_bias = ctx.needs_input_grad[2]
        if _is_left_to_torch(grad):
            rows = _rows(grad)
            of_weight = None if x is None else rows.T @ _rows(x)
            return None if weight is None else grad @ weight, of_weight, rows.sum(0) if needs_bias else None
        return (
            None if weight is None else _call(_of_input, grad, weight),
            None if x is None else _call(_of_weight, grad, x, ctx.order),
            _call(_of_bias, grad) if needs_bias else None,
        )


def _of_input(grad: torch.Tensor, weight: torch.Tensor) -> FloatArray:
    return functional.linear(as_array(grad, "grad_output"), as_array(weight.detach(), "weight").T)


def _of_weight(grad: torch.Tensor, x: torch.Tensor, order: tuple[int, int]) -> FloatArray:
    """Compute the weight's gradient in the weight's memory order, in which torch keeps it without a copy."""
    dtype = as_array(grad, "grad_output").dtype
    of_output, of_input = (as_float32(as_array(_rows(one.detach()), "rows")) for one in (grad, x))
    is_in_out = order[0] <= order[1]
    result = _core.linear(of_input.T, of_output.T).T if is_in_out else _core.linear(of_output.T, of_input.T)
    return round_to(result, dtype)


def _of_bias(grad: torch.Tensor) -> FloatArray:
    rows = as_array(_rows(grad), "grad_output")
    wide = as_float32(rows)
    return round_to(_core.linear(np.ones((1, len(wide)), wide.dtype), wide.T)[0], rows.dtype)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float | None,
        rms: bool,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.eps, ctx.rms = eps, rms
        array, shift = (None if one is None else as_array(one.detach(), "weight") for one in (weight, bias))
        dtype = None if array is None else array.dtype
        return _call(normalized, as_array(x.detach(), "input", dtype), Norm(array, shift, eps, rms))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if _is_left_to_torch(grad):
            function = functools.partial(_norm_in_torch, eps=ctx.eps, rms=ctx.rms)
            return (*differentiate_in_torch(function, grad, tensors), None, None)
        x, weight, _ = tensors
        names = ("x", "weight") if ctx.rms else ("x", "weight", "bias")
        need = [name for name, is_needed in zip(names, ctx.needs_input_grad, strict=False) if is_needed]
        backward: Any = functional.rms_norm_backward if ctx.rms else functional.layer_norm_backward
        array, scale = as_array(x.detach(), "x"), None if weight is None else as_array(weight.detach(), "weight")
        arguments = (as_array(grad, "grad_output"), array, x.shape[-1:], scale, eps_of(ctx.eps, array.dtype))
        found = call_on_torchs_threads(backward, *arguments, need=need)
        given = zip(("x", "weight", "bias"), tensors, ctx.needs_input_grad, strict=False)
        return (*(_like(one, getattr(found, name)) if wanted else None for name, one, wanted in given), None, None)


def _norm_in_torch(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: Any, rms: bool
) -> torch.Tensor:
    if rms:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _like(tensor: torch.Tensor, gradient: FloatArray) -> torch.Tensor:
    """View the gradient of a tensor, in its dtype."""
    return view_as_tensor(gradient).to(tensor.dtype)


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.name = name
        array = as_array(x.detach(), "input")
        return view_as_tensor(round_to(call_on_torchs_threads(_core.activate, as_float32(array), name), array.dtype))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None]:
        (x,) = ctx.saved_tensors
        if _is_left_to_torch(grad):
            return differentiate_in_torch(activation_to_torch(ctx.name), grad, (x,))[0], None
        arrays = [np.ascontiguousarray(as_float32(as_array(one.detach(), "input"))) for one in (grad, x)]
        found = call_on_torchs_threads(_core.activate_backward, *arrays, ctx.name)
        return _like(x, found), None


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, weight: torch.Tensor, padding_idx: int | None) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.count, ctx.padding_idx = len(weight), padding_idx
        return _call(functional.embedding, as_array(ids, "input"), as_array(weight.detach(), "weight"))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        (ids,) = ctx.saved_tensors
        if _is_left_to_torch(grad):
            padding = -1 if ctx.padding_idx is None else ctx.padding_idx
            return None, torch.ops.aten.embedding_dense_backward(grad, ids, ctx.count, padding, False), None
        arrays = as_array(grad, "grad_output"), as_array(ids, "input")
        options = {"padding_idx": ctx.padding_idx}
        found = call_on_torchs_threads(functional.embedding_backward, *arrays, ctx.count, **options)
        return None, _like(grad, found), None


def _call(function: Callable[..., FloatArray], *args: Any) -> torch.Tensor:
    return view_as_tensor(call_on_torchs_threads(function, *args))


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # flatten has no batching rule


def _is_left_to_torch(grad: torch.Tensor) -> bool:
    """Tell whether torch computes a backward: one that is differentiated itself, or of what pyattn cannot read."""
    if torch.is_grad_enabled() or is_transformed(grad):
        return True
    try:
        as_array(grad, "grad_output")
    except UnfitError:
        return True
    return False


def differentiate_in_torch(
    function: Callable[..., torch.Tensor], grad: torch.Tensor, tensors: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Compute gradients by torch's operations, which have gradients themselves."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases, as one tensor may be several arguments.
        sources = [None if x is None else x.view_as(x) if x.requires_grad else x for x in tensors]
        output = function(*sources)
    wanted = [x for x in sources if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, grad, create_graph=create_graph))
    return [next(found) if x is not None and x.requires_grad else None for x in sources]

"""Gradients of the two sides of `compare`: by vjp, `attention_backward`, autograd, or a function of the user's."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.halves import as_float32
from pyattn.testing.calling import is_of, parts_of, read_numbers, signature_of, to_torch
from pyattn.testing.formula import Array, Formula
from pyattn.testing.gradient_mistakes import Row
from pyattn.testing.sides import (
    ATTENTION,
    LINEAR,
    SELF_ATTENTION,
    WEIGHTED,
    Arguments,
    Side,
    by_own_names,
    call_side,
    call_with_tensors,
)

__all__ = ["Seeds", "gradients_of", "read_seeds", "rows_of"]

_FLOAT_MASKS = {"attn_mask": "attn_mask", "key_padding_mask": "padding"}
_RESULTS_ONLY = ("need_weights", "need_lse", "average_attn_weights", "empty_rows")
"""Arguments that change what a call returns, but no gradient."""
_PARAMETERS = {
    "weight": ("out.weight",),
    "bias": ("out.bias",),
    "in_proj_weight": ("query.weight", "key.weight", "value.weight"),
    "in_proj_bias": ("query.bias", "key.bias", "value.bias"),
    "q_proj_weight": ("query.weight",),
    "k_proj_weight": ("key.weight",),
    "v_proj_weight": ("value.weight",),
    "bias_k": ("bias_k",),
    "bias_v": ("bias_v",),
    "out_proj.weight": ("out.weight",),
    "out_proj.bias": ("out.bias",),
    **{f"w_{name}": (f"{name}.weight",) for name in ATTENTION},
    **{f"b_{name}": (f"{name}.bias",) for name in ATTENTION},
}


class Seeds(NamedTuple):
    """The gradients of the results that both sides start from."""

    output: Array
    lse: Array | None = None


def read_seeds(grad_output: Any, results: Mapping[str, Array]) -> Seeds:
    """Read grad_output, or draw multiples of 1/16, which every dtype holds exactly."""
    if grad_output is None:
        drawn = np.random.default_rng(0).standard_normal(results["output"].shape)
        return Seeds(np.clip(np.round(16 * drawn), -64, 64) / 16)
    given = grad_output if isinstance(grad_output, tuple) else (grad_output,)
    output, weights, lse = (*given, None, None, None)[:3]
    if len(given) > 3 or weights is not None or output is None:
        raise ValueError("grad_output must be an array, or a tuple (grad_output, None, grad_lse)")
    if lse is not None and "lse" not in results:
        raise ValueError("grad_output has a gradient of lse, which ours does not return; pass need_lse=True")
    return Seeds(_read_seed(output, "output", results), None if lse is None else _read_seed(lse, "lse", results))


def _read_seed(x: Any, name: str, results: Mapping[str, Array]) -> Array:
    array = as_float32(_core.as_real(x, f"grad_{name}"))
    if array.shape != results[name].shape:
        raise ValueError(f"grad_{name} has shape {array.shape}, expected {results[name].shape} as the {name}")
    return array.astype(np.float64)


# Rows


def rows_of(owner: Side, formula: Formula, inputs: list[Array], arguments: Arguments, parameters: bool) -> list[Row]:
    """List the gradients of a side: of each input, each float mask and, if asked for, each parameter."""
    if owner.kind is WEIGHTED:
        raise TypeError(
            f"gradients of {owner.kind_name} are not compared; make a module of the weights, "
            "pyattn.nn.SelfAttention.from_arrays(w_query, w_key, w_value), and pass x alone"
        )
    if formula.score_function != "dot":
        raise ValueError(f"gradients of score={formula.score_function!r} are not compared; those of 'dot' are")
    given = {**arguments, **owner.arguments}
    rows = [Row(name, parts) for name, (parts, _) in _inputs_of(owner, inputs, given).items()]
    for argument, part in _FLOAT_MASKS.items():
        mask: Any = given.get(argument)
        if _is_float(mask):
            rows.append(Row(f"grad_{argument}", (part,), mask.shape))
    if parameters:
        transposed = owner.kind is SELF_ATTENTION and formula.convention == "row"
        for name, x in owner.target.state_dict().items():
            parts, shape = _PARAMETERS[name], tuple(x.shape) if name.startswith("bias_") else None
            turned = transposed and name.startswith("w_")
            rows.append(Row(f"grad_{name}", parts, shape, stacked=len(parts) > 1, transposed=turned))
    return rows


def _is_float(mask: Any) -> bool:
    return isinstance(mask, np.ndarray) and mask.dtype != np.bool_


def _inputs_of(owner: Side, inputs: list[Array], arguments: Arguments) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Return the parts and the array of each input; an array that is given several times has one gradient."""
    arrays, names = list(inputs), list(ATTENTION)
    if owner.kind is LINEAR:
        names = ["input"]
    elif owner.kind is SELF_ATTENTION:
        context = arguments.get("context")
        other = inputs[1] if len(inputs) > 1 else inputs[0] if context is None else context
        arrays, names = [inputs[0], other, other], ["x", "context", "context"]
    parts: dict[int, list[int]] = {}
    for n, x in enumerate(arrays):
        parts.setdefault(id(x), []).append(n)
    found = {}
    for places in parts.values():
        name = "_".join(dict.fromkeys(names[n] for n in places))
        name = "x" if len(places) == len(ATTENTION) else name
        found[f"grad_{name}"] = (tuple(ATTENTION[n] for n in places), arrays[places[0]])
    return found


# Gradients of a side


class _Gradients:
    """Gradients by the array that they are of; those of an array that is given several times are added."""

    def __init__(self) -> None:
        self._found: dict[int, Array] = {}
        self._held: list[Any] = []  # an id belongs to an array only as long as that exists
        self.parameters: dict[str, Array] = {}

    def add(self, array: Any, grad: Any, name: str) -> None:
        """Add a gradient; None is 0."""
        x = np.zeros(array.shape) if grad is None else read_numbers(grad, name).astype(np.float64)
        self._held.append(array)
        before = self._found.get(id(array))
        self._found[id(array)] = x if before is None or before.shape != x.shape else before + x

    def get(self, array: Any) -> Array | None:
        """Return the gradient of an array; None if the side gives none."""
        return self._found.get(id(array))


def gradients_of(side: Side, owner: Side, inputs: list[Array], arguments: Arguments, seeds: Seeds) -> dict[str, Array]:
    """Call a side and its way back, and return gradients in float64, by the names of `rows_of`."""
    given = {**arguments, **side.arguments}
    if not is_of(side.target, "pyattn"):
        given = side.lower_masks(inputs, given)
    found = _Gradients()
    _way_back(side)(side, inputs, given, seeds, found)
    arrays = {name: x for name, (_, x) in _inputs_of(owner, inputs, given).items()}
    arrays |= {f"grad_{name}": given[name] for name in _FLOAT_MASKS if _is_float(given.get(name))}
    named = {name: found.get(x) for name, x in arrays.items()} | {
        f"grad_{name}": x for name, x in found.parameters.items()
    }
    return {name: x for name, x in named.items() if x is not None}


_WayBack = Callable[[Side, list[Array], dict[str, Any], Seeds, _Gradients], None]


def _way_back(side: Side) -> _WayBack:
    if side.backward is not None:
        return _by_function
    if side.tensors:
        return _by_autograd
    if hasattr(side.target, "vjp"):
        return _by_vjp
    if not callable(side.target):
        raise TypeError(f"{side.name} is {side.title()}, which have no gradients; pass a function or a module")
    if side.target in (functional.attention, functional.scaled_dot_product_attention):
        return _by_attention_backward
    raise TypeError(
        f"{side.name}, {side.title()}, has no gradients: pass a pair (forward, backward), where backward(grad_output, "
        "query, key, value, ...) returns the gradients of query, key and value; or an object with a vjp. "
        "For a function of tensors pass tensors=True"
    )


def _by_vjp(side: Side, inputs: list[Array], given: dict[str, Any], seeds: Seeds, found: _Gradients) -> None:
    """Differentiate a copy, so that the caller's gradients stay; each argument gets a copy of its array."""
    module = copy.deepcopy(side.target)
    arrays = [*inputs, *(x for x in given.values() if isinstance(x, np.ndarray))]
    copies = {id(x): np.copy(x, order="K") for x in arrays}
    of_copy = {id(copies[id(x)]): x for x in arrays}

    def own(x: Any) -> Any:
        return copies.get(id(x), x)

    positional, named = [own(x) for x in inputs], {name: own(x) for name, x in given.items()}
    try:
        signature = inspect.signature(getattr(module, "forward", module.vjp))
        order = signature.bind(*positional, **named).arguments
        _, backward = module.vjp(*positional, **named)
    except Exception as error:
        side.tell(error, inputs, given)
        raise
    grads = backward(seeds.output.astype(side.result_type(inputs)))
    if not isinstance(grads, tuple) or len(grads) != len(order):
        raise TypeError(
            f"the backward of {side.name} gives {_count(grads)}, expected a tuple of {len(order)} gradients"
        )
    for (name, x), grad in zip(order.items(), grads, strict=True):
        if id(x) in of_copy and x.dtype.kind not in "biu":
            found.add(of_copy[id(x)], grad, f"the gradient of {name} of {side.name}")
    for name, grad in getattr(module, "grads", {}).items():
        found.parameters[name] = read_numbers(grad, name).astype(np.float64)


def _by_attention_backward(
    side: Side, inputs: list[Array], given: dict[str, Any], seeds: Seeds, found: _Gradients
) -> None:
    options = {name: x for name, x in given.items() if name not in _RESULTS_ONLY}
    if side.target is functional.scaled_dot_product_attention:
        options["align"] = "upper_left"
    query, key, value = inputs
    output, lse = functional.attention(query, key, value, need_lse=True, **options)
    need = [*ATTENTION, *(["attn_mask"] if _is_float(given.get("attn_mask")) else [])]
    grads = functional.attention_backward(
        seeds.output, query, key, value, output, lse, grad_lse=seeds.lse, need=need, **options
    )
    for x, name in zip([*inputs, given.get("attn_mask")], need, strict=False):
        found.add(x, getattr(grads, name), name)


def _by_function(side: Side, inputs: list[Array], given: dict[str, Any], seeds: Seeds, found: _Gradients) -> None:
    """Call the user's backward with grad_output, and then as the forward function."""
    backward = side.backward
    assert backward is not None, "chosen for it"
    seed: Any = seeds.output.astype(side.result_type(inputs))
    bound = functools.partial(backward, to_torch(seed) if side.tensors else seed)
    for name in ("__qualname__", "__module__"):
        setattr(bound, name, getattr(backward, name, type(backward).__name__))
    own = signature_of(bound)
    options = {name: x for name, x in given.items() if name not in _RESULTS_ONLY or own.takes(name)}
    if seeds.lse is not None and own.takes("grad_lse"):
        options["grad_lse"] = seeds.lse.astype(seed.dtype)
    arrays = inputs
    if not side.is_module and len(inputs) == len(ATTENTION):
        arrays, options = by_own_names(bound, inputs, options, side.name)
    try:
        returned = call_side(bound, arrays, options, side.tensors)
    except Exception as error:
        side.of(bound).tell(error, inputs, options)
        raise
    grads = parts_of(returned, inputs[0].ndim, f"the gradients of {side.name}")
    names = ["the input"] if len(arrays) == 1 else list(ATTENTION[: len(inputs)])
    given_arrays = inputs[: len(names)]
    mask: Any = given.get("attn_mask")
    if _is_float(mask) and len(grads) == len(names) + 1:
        names, given_arrays = [*names, "attn_mask"], [*given_arrays, mask]
    if len(grads) != len(names):
        raise TypeError(f"the backward of {side.name} gives {_count(returned)}, expected those of {', '.join(names)}")
    for x, grad, name in zip(given_arrays, grads, names, strict=True):
        found.add(x, grad, f"the gradient of {name} of {side.name}")


def _count(grads: Any) -> str:
    return f"{len(grads)} gradients" if isinstance(grads, tuple) else f"a {type(grads).__name__}"


def _by_autograd(side: Side, inputs: list[Array], given: dict[str, Any], seeds: Seeds, found: _Gradients) -> None:
    import torch

    arrays, options = inputs, given
    if not side.is_module and len(inputs) == len(ATTENTION):
        arrays, options = by_own_names(side.target, inputs, given, side.name)
    leaves: dict[int, Any] = {}
    returned = call_with_tensors(side.target, arrays, options, leaves)
    parts = parts_of(returned, inputs[0].ndim, f"the result of {side.name}")
    results = [(parts[0], seeds.output)]
    if seeds.lse is not None and len(parts) > 2:
        results.append((parts[2], seeds.lse))
    outputs = [x for x, _ in results if getattr(x, "requires_grad", False)]
    if not outputs:
        raise TypeError(
            f"the output of {side.name}, {side.title()}, has no graph; compute it with tensors, without "
            "torch.no_grad() and detach()"
        )
    grads = [to_torch(seed).to(x.device, x.dtype) for x, seed in results if getattr(x, "requires_grad", False)]
    parameters: dict[str, Any] = {}
    if isinstance(side.target, torch.nn.Module):
        parameters = {name: x for name, x in side.target.named_parameters() if x.requires_grad}
    of = [*leaves.values(), *parameters.values()]
    derived: Iterable[Any] = torch.autograd.grad(outputs, of, grads, allow_unused=True)
    by_tensor = {id(x): grad for x, grad in zip(of, derived, strict=True)}
    for x in [*arrays, *(x for x in options.values() if isinstance(x, np.ndarray))]:
        if id(x) in leaves and found.get(x) is None:
            found.add(x, by_tensor[id(leaves[id(x)])], f"a gradient of {side.name}")
    for name, parameter in parameters.items():
        grad = by_tensor[id(parameter)]
        none = np.zeros(tuple(parameter.shape))
        found.parameters[name] = none if grad is None else read_numbers(grad, name).astype(np.float64)

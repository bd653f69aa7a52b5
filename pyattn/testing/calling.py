"""Call a user's function: match argument names, convert arrays to its library, and read its results."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.halves import as_float32

__all__ = [
    "Signature",
    "describe_error",
    "is_of",
    "name_of",
    "parts_of",
    "read_numbers",
    "signature_of",
    "text_of",
    "to_torch",
]

Array = npt.NDArray[Any]

# Our name of an argument, and other common names for it. attn_bias is a float mask; a function without such an argument
# gets float masks as attn_mask.
INPUTS = {"query": ("q", "queries", "querys"), "key": ("k", "keys"), "value": ("v", "values")}
OPTIONS = {
    "attn_mask": ("mask", "attention_mask"),
    "attn_bias": ("bias",),
    "is_causal": ("causal", "use_causal_mask"),
    "align": (),
    "scale": ("softmax_scale", "sm_scale", "scaling"),
    "enable_gqa": (),
    "key_lengths": ("key_value_seq_lengths",),
    "head_dim": ("d_k", "dk"),
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Signature(NamedTuple):
    """The arguments of a function: dicts map our names to its own."""

    inputs: dict[str, str]
    """Query, key and value, in this order; empty if it has other names for them."""
    options: dict[str, str]
    required: tuple[str, ...]
    """Its own names of arguments without a default."""
    positional: tuple[str, ...]
    """Its own names of arguments that may be given by position."""
    names: tuple[str, ...]
    takes_any: bool
    """Whether unknown arguments may be given by name."""

    def takes(self, name: str) -> bool:
        """Tell whether the function accepts a keyword argument of this name."""
        return self.takes_any or name in self.names


def signature_of(function: Callable[..., Any]) -> Signature:
    """Match the arguments of a function, or of a module's forward, with those of `pyattn.attention`."""
    try:
        parameters = list(inspect.signature(getattr(function, "forward", function)).parameters.values())
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    except (TypeError, ValueError):  # written in C, like functions of torch
        ours = functional.scaled_dot_product_attention
        known = ours if name_of(function) == ours.__name__ else lambda query, key, value, /: None
        parameters, takes_any = list(inspect.signature(known).parameters.values()), True
    named = [p for p in parameters if p.kind not in VARIADIC]
    if len(named) < len(INPUTS) and any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        inputs = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in INPUTS]
        named = inputs + [p for p in named if p.kind is inspect.Parameter.KEYWORD_ONLY]
    found = _match(INPUTS, named)
    found = found if len(found) == len(INPUTS) else {}
    return Signature(
        found,
        _options_of([p for p in named if p.name not in found.values()]),
        tuple(p.name for p in named if p.default is inspect.Parameter.empty),
        tuple(p.name for p in named if p.kind in POSITIONAL),
        tuple(p.name for p in named),
        takes_any,
    )


def _match(names: Mapping[str, tuple[str, ...]], parameters: list[inspect.Parameter]) -> dict[str, str]:
    own = {p.name.lower(): p.name for p in parameters}
    found = {ours: [own[name] for name in (ours, *others) if name in own] for ours, others in names.items()}
    return {ours: candidates[0] for ours, candidates in found.items() if candidates}


def _options_of(parameters: list[inspect.Parameter]) -> dict[str, str]:
    by_name = {p.name: p for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
    options = _match(OPTIONS, list(by_name.values()))
    flags = [ours for ours, own in options.items() if isinstance(by_name[own].default, bool)]
    if "attn_mask" in flags:  # a flag, not a mask
        options.setdefault("is_causal", options.pop("attn_mask"))
    if "scale" in flags:  # whether to scale
        del options["scale"]
    return options


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, of the function in a partial, or of an object's class."""
    function = getattr(function, "func", function)
    return str(getattr(function, "__name__", type(function).__name__))


def is_of(target: Any, library: str) -> bool:
    """Tell whether a function, or the class of an object or bound method, comes from a library."""
    target = getattr(target, "func", target)  # of a partial
    owner = getattr(target, "__self__", None)
    classes = () if isinstance(target, type) else type(target if owner is None else owner).__mro__
    modules = [getattr(target, "__module__", None), *(kind.__module__ for kind in classes)]
    return callable(target) and any(str(module).partition(".")[0] == library for module in modules)


def to_torch(x: Array) -> Any:
    """Convert an array to a tensor, with a copy if it has negative strides, is byte-swapped or read-only."""
    import torch

    if not x.flags.writeable or not x.dtype.isnative or min(x.strides, default=0) < 0:
        x = np.array(x, x.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(x)


def parts_of(returned: Any, axes: int, name: str) -> tuple[Any, ...]:
    """Return the results of a call as a tuple; a list counts as several results if they have an output's axes."""
    if isinstance(returned, functional.AttentionResult):
        return returned.output, returned.weights, returned.lse
    try:
        if isinstance(returned, list) and returned and getattr(returned[0], "ndim", 0) >= axes:
            return tuple(returned)
        return tuple(returned) if isinstance(returned, tuple) else (returned,)
    except Exception as error:
        raise _unreadable(error, name) from error


def read_numbers(x: Any, name: str) -> Array:
    """Read an array, or a tensor on any device, of real numbers; raise TypeError for anything else."""
    try:
        if hasattr(x, "detach"):
            x = x.detach().cpu()
            x = x.double() if str(x.dtype) == "torch.bfloat16" else x  # without ml_dtypes, too
        array: Array = _core.as_array(x, name)
    except Exception as error:  # reading an unknown object may raise anything
        raise _unreadable(error, name) from error
    array = array if array.dtype.kind == "f" else as_float32(array)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} has dtype {array.dtype}, expected real numbers")
    return array


def _unreadable(error: Exception, name: str) -> TypeError:
    text = text_of(error)
    return TypeError(text if text.startswith(name) else f"{name} cannot be read: {_typed(error)}")


def text_of(error: BaseException) -> str:
    """Return an exception's message, or "" if str() fails."""
    try:
        return str(error).strip()
    except Exception:
        return ""


def _typed(error: BaseException) -> str:
    """Return an exception's type and the first line of its message."""
    text = text_of(error).partition("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def describe_error(error: BaseException, function: Any) -> str:
    """Describe an exception in one line, with file and line number in the function's source."""
    text = _typed(error)
    try:
        file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", None)
    except ValueError:  # wrapped in itself
        file = None
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{text} ({os.path.basename(str(file))}, line {lines[-1]})" if lines else text

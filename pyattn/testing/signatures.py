"""What a function of the user's takes, read off its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyattn.functional as functional

__all__ = ["Names", "Signature", "name_of", "names_of", "read_signature", "takes"]

# Our name of an argument, and what else it is called. attn_bias is a float mask: a function without an argument of its
# own for these takes them as attn_mask.
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
    """A function's arguments, our name to its own. The inputs are in its order where they are positional."""

    inputs: dict[str, str]
    options: dict[str, str]
    required: tuple[str, ...]  # of the options, by our names
    positional: bool


class Names(NamedTuple):
    """What a function calls its arguments, our name to its own; inputs are empty where they have other names."""

    inputs: dict[str, str]
    options: dict[str, str]
    first: tuple[str, ...]  # of all that may be given by position


def names_of(function: Callable[..., Any]) -> Names:
    """Match as many arguments as have names that are known.

    Parameters
    ----------
    function : callable
        Of anything.

    Returns
    -------
    Names
    """
    parameters = _parameters_of(function)
    inputs = _match(INPUTS, parameters)
    inputs = inputs if len(inputs) == len(INPUTS) else {}
    options, _ = _options_of([p for p in parameters if p.name not in inputs.values()])
    return Names(inputs, options, tuple(p.name for p in parameters if p.kind in POSITIONAL))


def name_of(function: Callable[..., Any]) -> str:
    """Find out what a function is called.

    Parameters
    ----------
    function : callable
        A partial has the name of its function, an object that of its class.

    Returns
    -------
    str
    """
    function = getattr(function, "func", function)
    return str(getattr(function, "__name__", type(function).__name__))


def takes(function: Callable[..., Any], name: str) -> bool:
    """Tell whether an argument can be given by name.

    Parameters
    ----------
    function : callable
        Of anything.
    name : str
        Of the argument.

    Returns
    -------
    bool
        True where nothing is known of the function.
    """
    try:
        parameters = inspect.signature(getattr(function, "forward", function)).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def read_signature(function: Callable[..., Any]) -> Signature:
    """Match the arguments with query, key, value and the options of `pyattn.attention`.

    Parameters
    ----------
    function : callable
        Unless three of its arguments go by such names, the first three are query, key and value.

    Returns
    -------
    Signature

    Raises
    ------
    TypeError
        It is no function of query, key and value, or needs something else besides.
    """
    name = name_of(function)
    if isinstance(function, type) or not callable(function):
        what = f"the class {name}" if isinstance(function, type) else f"of type {name}"
        raise TypeError(f"my_attention is {what}, expected a function of query, key and value, or an object like one")
    parameters = _parameters_of(function)
    inputs = _match(INPUTS, parameters)
    if len(inputs) < len(INPUTS):
        others = _match(OPTIONS, parameters).values()
        first = [p.name for p in parameters if p.kind in POSITIONAL and p.name not in others]
        inputs = dict(zip(INPUTS, first, strict=False))
    known = [p for p in parameters if p.name in inputs.values()]
    options, required = _options_of([p for p in parameters if p not in known])
    unknown = [p.name for p in parameters if _is_required(p) and p.name not in (*inputs.values(), *options.values())]
    if len(inputs) < len(INPUTS) or unknown:
        what = f"needs {unknown[0]}" if unknown else f"takes ({', '.join(p.name for p in parameters)})"
        raise TypeError(
            f"{name} {what}, expected a function of query, key and value; "
            f"wrap it: lambda query, key, value: {name}(...)"
        )
    positional = all(p.kind in POSITIONAL for p in known) and parameters[: len(INPUTS)] == known
    if positional:
        inputs = {ours: p.name for p in known for ours, own in inputs.items() if own == p.name}
    return Signature(inputs, options, required, positional)


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """List all that can be named, and three for inputs where these are ``*args``."""
    try:
        parameters = list(inspect.signature(getattr(function, "forward", function)).parameters.values())
    except (TypeError, ValueError):  # written in C, as torch's own
        ours = functional.scaled_dot_product_attention
        known = ours if name_of(function) == ours.__name__ else lambda query, key, value, /: None
        parameters = list(inspect.signature(known).parameters.values())
    named = [p for p in parameters if p.kind not in VARIADIC]
    if len(named) < len(INPUTS) and any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        named = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in INPUTS] + [
            p for p in named if p.kind is inspect.Parameter.KEYWORD_ONLY
        ]
    return named


def _match(names: Mapping[str, tuple[str, ...]], parameters: list[inspect.Parameter]) -> dict[str, str]:
    own = {p.name.lower(): p.name for p in parameters}
    found = {ours: [own[name] for name in (ours, *others) if name in own] for ours, others in names.items()}
    return {ours: candidates[0] for ours, candidates in found.items() if candidates}


def _options_of(parameters: list[inspect.Parameter]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Our name of each option to its own, and those that have no default."""
    by_name = {p.name: p for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
    options = _match(OPTIONS, list(by_name.values()))
    flags = [ours for ours, own in options.items() if isinstance(by_name[own].default, bool)]
    if "attn_mask" in flags:  # whether to mask, and no mask
        options.setdefault("is_causal", options.pop("attn_mask"))
    if "scale" in flags:  # whether to scale
        del options["scale"]
    return options, tuple(ours for ours, own in options.items() if _is_required(by_name[own]))


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is inspect.Parameter.empty

"""How a side is called: with arrays or tensors, and what it returns as arrays again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import pyattn._core as _core
from pyattn.testing._comparing.formula import Array
from pyattn.testing._comparing.kinds import as_float64
from pyattn.testing.signatures import names_of, takes

__all__ = ["address", "call", "is_of_torch", "is_several", "read_arrays", "results_of"]

RESULTS = ("output", "weights", "lse")
"""What a call returns, in this order: as torch's MultiheadAttention, and as `pyattn.AttentionResult`."""

ARRAYS = ("attn_mask", "key_padding_mask", "key_lengths", "query_lengths", "score_weight")
"""Arguments that may be lists; a window of two ends may be one, too, and is no array."""

NATURE = ("score", "score_weight")
"""What a function that has no such argument is written for; the formula is told all the same."""


def address(
    target: Callable[..., Any], inputs: list[Array], arguments: Mapping[str, Any], name: str
) -> tuple[list[Array], dict[str, Any]]:
    """Hand query, key and value to the arguments of these names, and all else by the function's own names.

    Parameters
    ----------
    target : callable
        Of query, key and value, by whatever names and in whatever order; or of one array that is all three.
    inputs : list of ndarray
        Query, key and value.
    arguments : mapping of str to object
        By our names. A score function that the function has no argument for is what it computes anyhow.
    name : str
        What messages call the side.

    Returns
    -------
    inputs : list of ndarray
        By position.
    arguments : dict
        By name.

    Raises
    ------
    TypeError
        It takes one array, and the three are not one.
    """
    own = names_of(target)
    given = {
        own.options.get(ours, ours): x for ours, x in arguments.items() if ours not in NATURE or takes(target, ours)
    }
    if own.inputs:
        by_name = dict(zip(own.inputs.values(), inputs, strict=True))  # own.inputs are in our order
        first = own.first[: len(inputs)]
        if sorted(first) == sorted(by_name):
            return [by_name[one] for one in first], given
        return [], by_name | given
    if len([one for one in own.first if one not in own.options.values()]) == 1:
        if any(x is not inputs[0] for x in inputs):
            raise TypeError(f"{name} takes {own.first[0]} alone, expected one array for query, key and value")
        return inputs[:1], given
    return inputs, given


def call(target: Callable[..., Any], inputs: list[Array], arguments: Mapping[str, Any], tensors: bool) -> Any:
    """Call a module or function, without gradients where it takes tensors.

    Parameters
    ----------
    target : callable
        What to call.
    inputs : list of ndarray
        By position.
    arguments : mapping of str to object
        By name.
    tensors : bool
        Whether arrays are to become torch's tensors.

    Returns
    -------
    object
        What it returns.

    Raises
    ------
    TypeError
        It takes tensors. What it raises itself comes through.
    """
    if tensors:
        return _call_with_tensors(target, inputs, arguments)
    made: dict[int, Array] = {}  # one copy for one array: what writes into it writes into nobody else's

    def own(x: Any) -> Any:
        return made.setdefault(id(x), np.copy(x, order="K")) if isinstance(x, np.ndarray) else x

    try:
        return target(*map(own, inputs), **{name: own(x) for name, x in arguments.items()})
    except Exception as error:
        meant = "Tensor" in str(error) or "'numpy.ndarray' object has no" in str(error)
        if "torch" in sys.modules and (meant or _takes_tensors(target, inputs, arguments)):
            hint = "if theirs takes tensors, pass tensors=True; ours takes arrays"
            raise TypeError(f"arrays did not do: {error}; {hint}") from error
        raise


def _takes_tensors(target: Any, inputs: list[Array], arguments: Mapping[str, Any]) -> bool:
    """Try it: what NumPy says where a tensor was meant may be anything."""
    try:
        return "Tensor" in type(_call_with_tensors(target, inputs, arguments)).__name__
    except Exception:
        return False


def _call_with_tensors(target: Any, inputs: list[Array], arguments: Mapping[str, Any]) -> Any:
    """Use a module's own dtype and device; one tensor for one array, because torch looks at what `is` what."""
    import torch

    parameters = target.parameters() if isinstance(target, torch.nn.Module) else ()
    like = next((x for x in parameters if x.is_floating_point()), None)
    made: dict[int, Any] = {}

    def tensor(array: Array) -> Any:
        if id(array) not in made:
            native = np.array(array, array.dtype.newbyteorder("="), order="C")
            x = torch.from_numpy(native)
            if like is not None:
                x = x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)
            made[id(array)] = x
        return made[id(array)]

    turned = {name: tensor(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    with torch.no_grad():
        return target(*map(tensor, inputs), **turned)


def results_of(returned: Any, name: str, axes: int) -> dict[str, Array]:
    """Name what a side returns, in float64; what is no tuple is the output alone.

    Parameters
    ----------
    returned : array_like, or tuple of array_like or None
        The output, or (output, weights, lse); a list of these is as good as a tuple.
    name : str
        What messages call the side.
    axes : int
        Of an output: a list of arrays with fewer is one array.

    Returns
    -------
    dict of str to ndarray
        What is not None.

    Raises
    ------
    TypeError
        It is something else.
    """
    parts = returned if is_several(returned, axes) else (returned,)
    if not 0 < len(parts) <= len(RESULTS) or parts[0] is None:
        what = "None" if returned is None else f"a {type(returned).__name__} of {len(parts)}"
        raise TypeError(f"{name} gives {what}, expected the output, or (output, weights, lse)")
    labels = (f"the {part} of {name}" for part in RESULTS)
    found = zip(RESULTS, labels, parts, strict=False)
    return {part: as_float64(x, label) for part, label, x in found if x is not None}


def is_several(returned: Any, axes: int) -> bool:
    """Tell a tuple, or a list in place of one, from a list that is an output.

    Parameters
    ----------
    returned : object
        By a function.
    axes : int
        Of an output.

    Returns
    -------
    bool
        A list is one where its first item is an array of as many axes.
    """
    if isinstance(returned, list) and returned:
        return bool(getattr(returned[0], "ndim", 0) >= axes)
    return isinstance(returned, tuple)


def read_arrays(given: Mapping[str, Any]) -> dict[str, Any]:
    """Turn all arguments that are arrays into NumPy's.

    Parameters
    ----------
    given : mapping of str to object
        As the caller gave them.

    Returns
    -------
    dict of str to object
    """
    return {name: _core.as_array(x, name) if _is_array(x, name) else x for name, x in given.items()}


def _is_array(x: Any, name: str) -> bool:
    if isinstance(x, list):
        return name in ARRAYS
    return not isinstance(x, np.generic) and (hasattr(x, "__dlpack__") or hasattr(x, "__array__"))


def is_of_torch(target: Any) -> bool:
    """Look for a function of torch's own, and for an instance of a class that torch's are bases of.

    Parameters
    ----------
    target : object
        Anything.

    Returns
    -------
    bool
    """
    owner = getattr(target, "__self__", None)  # of a bound method
    classes = [] if isinstance(target, type) else type(target if owner is None else owner).__mro__
    modules = [getattr(target, "__module__", None), *(kind.__module__ for kind in classes)]
    return callable(target) and any(str(module).partition(".")[0] == "torch" for module in modules)

"""One of the two sides: a module, a function, or numbers that are expected. How it is called, and in which dtype."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyattn import _core
from pyattn.comparing.formula import Array, Formula, compute
from pyattn.comparing.kinds import MODULES, Kind, as_float64, kind_of, parameters_of
from pyattn.comparing.rounding import PRECISIONS, Precision, precision_of

__all__ = ["Side", "owner_of", "read_arrays", "side_of"]

RESULTS = ("output", "weights", "lse")
"""What a call returns, in this order: as torch's MultiheadAttention, and as `pyattn.AttentionResult`."""

_SHAPES = (
    "expected query (..., L, head_dim), key (..., S, head_dim), value (..., S, v_dim) and masks that broadcast to "
    "(..., L, S)"
)


@dataclass(frozen=True, eq=False)
class Side:
    """A module or function without what functools.partial has bound, which is in arguments.

    Attributes
    ----------
    name : {'ours', 'theirs'}
        As the report calls it.
    kind : Kind or None
        None for a module of which nothing is known, and for expected numbers.
    arguments : dict
        Its own, on top of those for both sides.
    tensors : bool
        Whether it takes torch's tensors.
    """

    name: str
    target: Any
    kind: Kind | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tensors: bool = False

    @property
    def is_module(self) -> bool:
        """Whether it has parameters that are read."""
        return self.kind is not None and hasattr(self.target, "state_dict")

    @property
    def kind_name(self) -> str:
        """As messages say it."""
        return "attention alone" if self.kind is None or not self.is_module else f"a {self.kind.name}"

    def formula(self, inputs: list[Array], arguments: Mapping[str, Any]) -> Formula:
        """Give what it computes by its own account.

        Parameters
        ----------
        inputs : list of ndarray
            As the caller gave them.
        arguments : mapping of str to object
            Those for both sides.

        Returns
        -------
        Formula

        Raises
        ------
        TypeError
            The formula does not know an argument.
        ValueError
            Inputs do not go together.
        """
        assert self.kind is not None
        arguments = {**arguments, **self.arguments}
        for name in arguments:
            if name not in self.kind.arguments:
                known = ", ".join(self.kind.arguments) or "none"
                raise TypeError(
                    f"the formula of {self.kind_name} does not know the argument {name}; it knows {known}. For an "
                    "argument of one side alone, wrap that side in a function"
                )
        parameters = parameters_of(self.target) if self.is_module else {}
        try:
            formula = self.kind.read(self.target, inputs, arguments, parameters)
            compute(formula)
        except (IndexError, ValueError) as error:
            given = dict(zip(self.kind.inputs, inputs, strict=False)) | arguments
            shapes = ", ".join(f"{name} {x.shape}" for name, x in given.items() if isinstance(x, np.ndarray))
            raise ValueError(f"the formula of {self.kind_name} cannot be computed with {shapes}; {_SHAPES}") from error
        return formula

    def read_inputs(self, inputs: tuple[Any, ...]) -> list[Array]:
        """Read what both sides are called with; one array for one object, as torch looks at what `is` what.

        Parameters
        ----------
        inputs : tuple of array_like
            As the caller gave them.

        Returns
        -------
        list of ndarray

        Raises
        ------
        TypeError
            They are of another number, or no arrays of real numbers.
        """
        assert self.kind is not None
        names = self.kind.inputs
        fewest = 1 if names[-1] in self.kind.arguments else len(names)
        if not fewest <= len(inputs) <= len(names):
            number = f"{fewest} or {len(names)}" if fewest < len(names) else f"{fewest}"
            raise TypeError(f"got {len(inputs)} inputs, expected {number}: {', '.join(names)}; pass all else by name")
        read: dict[int, Array] = {}
        for name, x in zip(names, inputs, strict=False):
            if id(x) not in read:
                read[id(x)] = _core.as_real(x, name)
        return [read[id(x)] for x in inputs]

    def dropout(self) -> str | None:
        """Say by what it is told to drop weights.

        Returns
        -------
        str or None
            None where it is not.
        """
        p = getattr(self.target, "dropout", 0)
        if getattr(self.target, "training", False) and isinstance(p, float) and p > 0:
            return f"being in training mode with dropout={p:g}"
        p = self.arguments.get("dropout_p", 0)
        return f"called with dropout_p={p:g}" if p else None

    def call(self, inputs: list[Array], arguments: Mapping[str, Any]) -> dict[str, Array]:
        """Give what it returns, in float64, by name: output, and weights and lse where they are there.

        Parameters
        ----------
        inputs : list of ndarray
            As the caller gave them.
        arguments : mapping of str to object
            Those for both sides.

        Returns
        -------
        dict of str to ndarray
        """
        if not callable(self.target):
            return _results(self.target, self.name)
        arguments = {**arguments, **self.arguments}
        if self.tensors:
            return _results(_call_with_tensors(self.target, inputs, arguments), self.name)
        try:
            return _results(self.target(*inputs, **arguments), self.name)
        except (AttributeError, TypeError) as error:
            if "torch" in sys.modules and ("Tensor" in str(error) or "numpy.ndarray" in str(error)):
                hint = f"; if {self.name} takes tensors, pass tensors=True"
                raise TypeError(f"{self.name} was called with arrays and failed: {error}{hint}") from error
            raise

    def precision(self, inputs: list[Array]) -> Precision:
        """Of its parameters; without any, of the inputs; of expected numbers, their own.

        Parameters
        ----------
        inputs : list of ndarray
            Of a function.

        Returns
        -------
        Precision
        """
        if hasattr(self.target, "state_dict"):
            dtypes = (getattr(x, "dtype", None) for x in self.target.state_dict().values())
            found = next((one for one in map(precision_of, dtypes) if one is not None), None)
        elif callable(self.target):
            found = precision_of(np.result_type(*inputs))
        else:
            found = precision_of(
                getattr(self.target[0] if isinstance(self.target, tuple) else self.target, "dtype", None)
            )
        return found or PRECISIONS["float64"]

    def title(self) -> str:
        """Give a name that a reader knows it by.

        Returns
        -------
        str
            Such as torch.nn.MultiheadAttention.
        """
        if not callable(self.target):
            return "expected numbers"
        named = self.target if hasattr(self.target, "__qualname__") else type(self.target)
        name = named.__qualname__.rpartition("<locals>.")[2]
        top, *rest = str(named.__module__ or "").split(".")
        package = f"{top}.nn" if "nn" in rest[:-1] else top  # where a user imports it from
        return name if package in ("", "__main__", "builtins") else f"{package}.{name}"


def side_of(target: Any, name: str, tensors: bool | None) -> Side:
    """Look at a module, a function, one of these in a functools.partial, or expected numbers.

    Parameters
    ----------
    target : object
        As the caller gave it.
    name : {'ours', 'theirs'}
        Which of the two.
    tensors : bool or None
        Whether it takes tensors; None: where it comes from torch.

    Returns
    -------
    Side

    Raises
    ------
    TypeError
        partial has bound positional arguments.
    """
    arguments: dict[str, Any] = {}
    while isinstance(target, functools.partial):
        if target.args:
            raise TypeError(f"{name} is a partial with positional arguments; bind them by name")
        arguments, target = {**target.keywords, **arguments}, target.func
    arguments = read_arrays(arguments)
    return Side(name, target, kind_of(target), arguments, _from_torch(target) if tensors is None else bool(tensors))


def owner_of(ours: Side, theirs: Side) -> Side:
    """Choose whose formula is computed in float64.

    Parameters
    ----------
    ours, theirs : Side
        The two.

    Returns
    -------
    Side
        A module, ours if both are; else ours, a function.

    Raises
    ------
    TypeError
        Nothing is known of ours, or the two are of different kinds.
    """
    if ours.is_module and theirs.is_module and ours.kind is not theirs.kind:
        raise TypeError(f"ours is {ours.kind_name} and theirs {theirs.kind_name}, expected two of a kind")
    if theirs.target is None:
        raise TypeError("theirs is None, expected a module, a function or expected numbers")
    if theirs.is_module and not ours.is_module and callable(ours.target):
        return theirs
    if ours.kind is None:
        kinds = f"{', '.join(kind.name for kind in MODULES)} or a function of query, key and value"
        raise TypeError(f"ours is of type {type(ours.target).__name__}, expected {kinds}")
    return ours


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
    """Say whether an argument is one; a list is where no other list is taken."""
    lists = ("attn_mask", "key_padding_mask", "key_lengths", "query_lengths")
    return hasattr(x, "__dlpack__") or hasattr(x, "__array__") or (name in lists and isinstance(x, list))


def _from_torch(target: Any) -> bool:
    """Look for a function of torch's own, and for an instance of a class that torch's are bases of."""
    owner = getattr(target, "__self__", None)  # of a bound method
    classes = [] if isinstance(target, type) else type(target if owner is None else owner).__mro__
    modules = [getattr(target, "__module__", None), *(kind.__module__ for kind in classes)]
    return callable(target) and any(str(module).partition(".")[0] == "torch" for module in modules)


def _call_with_tensors(target: Any, inputs: list[Array], arguments: Mapping[str, Any]) -> Any:
    """Floats in the module's dtype, all on its device; one tensor for one array: torch looks at what `is` what."""
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


def _results(returned: Any, name: str) -> dict[str, Array]:
    """By name. What is no tuple is the output alone."""
    parts = returned if isinstance(returned, tuple) else (returned,)
    if not 0 < len(parts) <= len(RESULTS) or parts[0] is None:
        raise TypeError(f"{name} gives {len(parts)} results, expected the output, or (output, weights, lse)")
    labels = (f"the {part} of {name}" for part in RESULTS)
    found = zip(RESULTS, labels, parts, strict=False)
    return {part: as_float64(x, label) for part, label, x in found if x is not None}

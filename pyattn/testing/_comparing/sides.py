"""One of the two sides: a module, a function, or numbers that are expected."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

import pyattn._core as _core
import pyattn.reference as reference
from pyattn.testing._comparing.calling import address, call, is_of_torch, read_arrays, results_of
from pyattn.testing._comparing.formula import Array, Computed, Formula, compute
from pyattn.testing._comparing.kinds import FUNCTION, MODULES, WEIGHTED, Kind, kind_of, parameters_of
from pyattn.testing._comparing.rounding import PRECISIONS, Precision, precision_of

__all__ = ["Side", "owner_of", "side_of"]
ATTENTION = ("query", "key", "value")
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
    def known(self) -> Kind:
        """The kind of a side that has one."""
        assert self.kind is not None
        return self.kind

    @property
    def kind_name(self) -> str:
        """As messages say it."""
        if self.kind is WEIGHTED or self.is_module:
            return f"a {self.known.name}"
        return "attention alone"

    def compute(self, inputs: list[Array], arguments: Mapping[str, Any]) -> tuple[Formula, Computed]:
        """Give what it computes by its own account.

        Parameters
        ----------
        inputs : list of ndarray
            As the caller gave them.
        arguments : mapping of str to object
            Those for both sides.

        Returns
        -------
        formula : Formula
            Of its parameters and options.
        computed : Computed
            In float64.

        Raises
        ------
        TypeError
            The formula does not know an argument.
        ValueError
            Inputs do not go together.
        """
        kind, arguments = self.known, {**arguments, **self.arguments}
        _check_score(arguments)
        for name in arguments:
            if name not in kind.arguments:
                known = ", ".join(kind.arguments) or "none"
                raise TypeError(
                    f"the formula of {self.kind_name} does not know the argument {name}; it knows {known}. For an "
                    "argument of one side alone, wrap that side in a function"
                )
        try:
            formula = kind.read(self.target, inputs, arguments, parameters_of(self.target))
            return formula, compute(formula)
        except (IndexError, ValueError) as error:
            given = dict(zip(kind.inputs, inputs, strict=False)) | arguments
            shapes = ", ".join(f"{name} {x.shape}" for name, x in given.items() if isinstance(x, np.ndarray))
            fits = f"; {_SHAPES}" if kind is FUNCTION else ""
            raise ValueError(f"the formula of {self.kind_name} cannot be computed with {shapes}{fits}") from error

    def read_inputs(self, inputs: tuple[Any, ...]) -> list[Array]:
        """Read what both sides are called with.

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
        names = self.known.inputs
        fewest = 1 if names[-1] in self.known.arguments else len(names)
        if names == ATTENTION and len(inputs) == 1:
            inputs = inputs * 3
        if not fewest <= len(inputs) <= len(names):
            number = f"{fewest} or {len(names)}" if fewest < len(names) else f"{fewest}"
            number += ", or 1 for all" if names == ATTENTION else ""
            hint = "pass all else by name"
            if self.kind is FUNCTION and len(inputs) == len(WEIGHTED.inputs):
                hint += f". Or is ours a function of {', '.join(WEIGHTED.inputs)}? It has to call them so"
            raise TypeError(f"got {len(inputs)} inputs, expected {number}: {', '.join(names)}; {hint}")
        read: dict[int, Array] = {}  # one array for one input
        return [read.setdefault(id(x), _core.as_real(x, name)) for name, x in zip(names, inputs, strict=False)]

    def dropout(self, arguments: Mapping[str, Any]) -> str | None:
        """Say by what it is told to drop weights.

        Parameters
        ----------
        arguments : mapping of str to object
            Those for both sides.

        Returns
        -------
        str or None
            None where it is not.
        """
        p = getattr(self.target, "dropout", 0)
        p = getattr(p, "p", p)  # of a layer
        if getattr(self.target, "training", False) and isinstance(p, float) and p > 0:
            return f"being in training mode with dropout={p:g}"
        p = {**arguments, **self.arguments}.get("dropout_p", 0)
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
        returned, axes = self.target, inputs[0].ndim
        if callable(self.target):
            given = {**arguments, **self.arguments}
            if not self.is_module and len(inputs) == len(ATTENTION):
                inputs, given = address(self.target, inputs, given, self.name)
            returned = call(self.target, inputs, given, self.tensors)
        return results_of(returned, self.name, axes)

    def precision(self, inputs: list[Array]) -> Precision:
        """Of its parameters, or without any of the inputs; of expected numbers, their own.

        Parameters
        ----------
        inputs : list of ndarray
            Of a function.

        Returns
        -------
        Precision
        """
        if hasattr(self.target, "state_dict"):
            kinds = [getattr(x, "dtype", None) for x in self.target.state_dict().values()]
        elif callable(self.target):
            kinds = [np.result_type(*inputs)]
        else:
            output = self.target[0] if isinstance(self.target, tuple) else self.target
            kinds = [getattr(output, "dtype", None)]
        return next(filter(None, map(precision_of, kinds)), PRECISIONS["float64"])

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


def _check_score(arguments: Mapping[str, Any]) -> None:
    """Refuse score functions that there are not: a function may not have looked."""
    score, weight = arguments.get("score"), arguments.get("score_weight")
    *known, last = map(repr, get_args(reference.Score))
    if score is not None and score not in get_args(reference.Score):
        raise ValueError(f"score is {score!r}, expected {', '.join(known)} or {last}")
    if (score in ("bilinear", "additive")) != (weight is not None):
        needs = "needs a score_weight" if weight is None else "takes no score_weight; 'bilinear' and 'additive' do"
        raise ValueError(f"score={score or 'dot'!r} {needs}")


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
        It is a class, or partial has bound positional arguments.
    """
    arguments: dict[str, Any] = {}
    if isinstance(target, type):
        raise TypeError(f"{name} is the class {target.__name__}, expected an instance: {target.__name__}(...)")
    while isinstance(target, functools.partial):
        if target.args:
            raise TypeError(f"{name} is a partial with positional arguments; bind them by name")
        arguments, target = {**target.keywords, **arguments}, target.func
    arguments = read_arrays(arguments)
    takes_tensors = is_of_torch(target) if tensors is None else bool(tensors)
    return Side(name, target, kind_of(target), arguments, takes_tensors)


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

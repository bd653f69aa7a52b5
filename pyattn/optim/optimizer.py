"""`Optimizer`, the base of all optimisers: parameter groups, state, and steps that are checked before they begin."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

import pyattn._core as _core
from pyattn._util.arguments import as_finite
from pyattn._util.halves import compute_dtype
from pyattn._util.messages import short_repr
from pyattn._util.names import naming_keywords_of_class, nearest
from pyattn._util.typing import FloatArray

__all__ = ["Groups", "HasGradients", "Optimizer", "Update", "gradients_of", "update_in_place"]

Groups: TypeAlias = Sequence[Mapping[str, Any]] | None


class HasGradients(Protocol):
    """What optimisers need of a module."""

    def named_parameters(self) -> Iterator[tuple[str, FloatArray]]:
        """Go through the names and arrays."""
        ...

    @property
    def grads(self) -> dict[str, FloatArray]:
        """The gradients by name, in the parameters' shape; only those that exist."""
        ...

    def zero_grad(self) -> None:
        """Drop the gradients."""
        ...


def gradients_of(module: HasGradients) -> dict[str, FloatArray]:
    """Return a module's gradients; refuse what has none by name, such as parameters() or a module of torch."""
    gradients = getattr(module, "grads", None)
    if isinstance(gradients, dict):
        return gradients
    kind = type(module).__name__
    if any(base.__module__ == "torch.nn.modules.module" for base in type(module).__mro__):
        raise TypeError(
            f"module is of type {kind}, a module of torch; pyattn.interop.torch.from_torch converts it to a "
            "pyattn.nn.Module"
        )
    raise TypeError(f"module is of type {kind}, expected a pyattn.nn.Module: the module itself, not its parameters")


class Update(NamedTuple):
    """One parameter's part of a step."""

    name: str
    parameter: FloatArray
    gradient: FloatArray
    moments: dict[str, FloatArray | None]
    options: dict[str, Any]


class Optimizer:
    """Base of all optimisers: parameter groups, state_dict, and steps.

    Use `SGD`, `Adam` or `AdamW`.

    Parameters
    ----------
    module : Module
        Its parameters are updated.
    defaults : dict
        Options of all groups that do not have their own.
    groups : sequence of dict, optional
        Parameter groups, as in `AdamW`. Default: None, one group of all parameters.

    Attributes
    ----------
    param_groups : list of dict
        ``"params"``, a list of names, and the options of each group, which may be changed between steps.
    state : dict of str to dict
        State of each parameter, by name. Empty before the first step.

    Raises
    ------
    TypeError
        module has no parameters and gradients, or an option has the wrong type or is unknown.
    ValueError
        An option is out of range, a name is unknown or in two groups, or the module has no parameters.
    """

    _arrays: ClassVar[tuple[str, ...]] = ()  # names of the arrays in a parameter's state
    _counts: ClassVar[bool] = False  # steps, so that state without arrays makes no sense

    def __init__(self, module: HasGradients, defaults: Mapping[str, Any], groups: Groups = None) -> None:
        gradients_of(module)
        self._module = module
        self._defaults = self._checked(defaults)
        names = [name for name, _ in module.named_parameters()]
        if not names:
            raise ValueError("the module has no parameters")
        self.param_groups: list[dict[str, Any]] = self._read_groups(groups, names)
        self.state: dict[str, dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the refusal of an unknown keyword say which one was meant."""
        super().__init_subclass__(**kwargs)
        naming_keywords_of_class(cls)

    # What subclasses define

    def _checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Check the options of a group, all given, and convert them."""
        raise NotImplementedError(f"{type(self).__name__} does not define _checked")

    def _uses(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the arrays of a parameter's state that a step with these options uses."""
        raise NotImplementedError(f"{type(self).__name__} does not define _uses")

    def _update(self, update: Update) -> None:
        """Update one parameter and its state."""
        raise NotImplementedError(f"{type(self).__name__} does not define _update")

    # Groups

    def _read_groups(self, groups: Groups, names: list[str]) -> list[dict[str, Any]]:
        """Make the groups given, and one of all other parameters."""
        found: list[dict[str, Any]] = []
        rest = dict.fromkeys(names)
        if isinstance(groups, (str, Mapping)) or not (groups is None or isinstance(groups, Iterable)):
            raise TypeError(f"groups is of type {type(groups).__name__}, expected a list of dicts, each with 'params'")
        for n, group in enumerate(() if groups is None else groups):
            if not isinstance(group, Mapping) or "params" not in group:
                raise TypeError(f"groups[{n}] is {short_repr(group)}, expected a dict with 'params' and options")
            params = self._read_names(group["params"], f"groups[{n}]['params']", names, rest)
            own = {name: value for name, value in group.items() if name != "params"}
            for name in own:
                if name not in self._defaults:
                    raise TypeError(f"groups[{n}] has {name!r}; options are {', '.join(self._defaults)}")
            found.append({"params": params, **self._checked({**self._defaults, **own})})
        if rest:
            found.append({"params": list(rest), **self._defaults})
        return found

    def _read_names(self, given: Iterable[str], what: str, names: list[str], rest: dict[str, None]) -> list[str]:
        """Read the names of a group's parameters and take them out of the rest."""
        if isinstance(given, (str, np.ndarray)) or not isinstance(given, Iterable):
            raise TypeError(f"{what} is of type {type(given).__name__}, expected a list of parameters' names")
        params = list(given)
        for name in params:
            if not isinstance(name, str):
                raise TypeError(f"{what} has a {type(name).__name__}, expected names, such as {names[0]!r}")
            if name not in names:
                meant = nearest(name, names)
                hint = f"did you mean {meant!r}?" if meant else "module.named_parameters() has all names"
                raise ValueError(f"{what} has {name!r}, which the module does not have; {hint}")
            if name not in rest:
                raise ValueError(f"{what} has {name!r}, which is already in a group")
            del rest[name]
        return params

    # Steps

    def step(self) -> None:
        """Update each parameter that has a gradient, in place.

        Everything is checked before the first parameter is written.

        Raises
        ------
        ValueError
            A parameter is read-only, or in no group; or a shape differs from that of its gradient or state.
        TypeError
            A gradient has another dtype than its parameter; float32 belongs to float16 and bfloat16.
        """
        parameters, gradients = dict(self._module.named_parameters()), self._module.grads
        updates = []
        unknown = gradients.keys() - {name for group in self.param_groups for name in group["params"]}
        if unknown:
            raise ValueError(f"{min(unknown)} has a gradient and is in no group; make a new optimizer for the module")
        for group in self.param_groups:
            options = self._checked({name: group[name] for name in self._defaults})
            for name in group["params"]:
                gradient = gradients.get(name)
                if gradient is None:
                    continue
                self._check_update(name, parameters[name], gradient)
                moments = self._moments(name, parameters[name], options)
                updates.append(Update(name, parameters[name], gradient, moments, options))
        for update in updates:
            self._update(update)

    def _check_update(self, name: str, parameter: FloatArray, gradient: FloatArray) -> None:
        """Refuse what cannot be updated."""
        if not parameter.flags.writeable:
            raise ValueError(f"{name} is read-only; assign a copy of it first")
        if gradient.shape != parameter.shape:
            raise ValueError(f"the gradient of {name} has shape {gradient.shape}, expected {parameter.shape}")
        wanted = compute_dtype(parameter.dtype)
        if gradient.dtype.newbyteorder("=") != wanted:
            raise TypeError(f"the gradient of {name} has dtype {gradient.dtype}, expected {wanted}")
        for key in self._arrays:
            moment = self.state.get(name, {}).get(key)
            if moment is not None and moment.shape != parameter.shape:
                raise ValueError(
                    f"{name} has shape {parameter.shape}, and {key} of an earlier step {moment.shape}; "
                    "make a new optimizer for the new parameter"
                )

    def _moments(self, name: str, parameter: FloatArray, options: Mapping[str, Any]) -> dict[str, FloatArray | None]:
        """Return the arrays of a parameter's state, new ones of zeros, and None for those that are not used."""
        state, used, dtype = self.state.get(name, {}), self._uses(options), compute_dtype(parameter.dtype)
        moments: dict[str, FloatArray | None] = dict.fromkeys(self._arrays)
        for key in used:
            moment = state.get(key)
            if moment is None:
                moment = empty_moment(parameter)
                moment[...] = 0
            moments[key] = moment.astype(dtype, copy=False)  # another one after module.to(dtype)
        return moments

    def zero_grad(self) -> None:
        """Call the module's `zero_grad`."""
        self._module.zero_grad()

    # State

    def _names(self) -> list[str]:
        return [name for group in self.param_groups for name in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """Collect state and options in torch's form.

        Returns
        -------
        dict
            ``{"state": {index: {...}}, "param_groups": [{"params": [index, ...], ...}]}``. Indices count the parameters
            of all groups in order. Arrays are those in use, not copies, as in torch.

        Examples
        --------
        A torch optimiser takes tensors: ``torch_optimizer.load_state_dict(tensors)`` after

        >>> def to_tensors(state_dict):
        ...     import torch
        ...
        ...     states = state_dict["state"].items()
        ...     state = {n: {name: torch.tensor(x) for name, x in own.items()} for n, own in states}
        ...     return {**state_dict, "state": state}
        """
        index = {name: n for n, name in enumerate(self._names())}
        groups = [{**group, "params": [index[name] for name in group["params"]]} for group in self.param_groups]
        return {"state": {index[name]: dict(own) for name, own in self.state.items() if own}, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over state and options of this form, also those of a torch optimiser.

        Arrays and tensors are copied into arrays in the parameters' dtype, float32 for float16 and bfloat16. Options
        that this optimiser does not have, such as torch's ``foreach``, are ignored. Nothing is changed unless
        everything fits.

        Parameters
        ----------
        state_dict : dict
            From `state_dict`, of an optimiser of the same class with the same groups.

        Raises
        ------
        TypeError
            state_dict is not a dict of this form.
        ValueError
            Groups or shapes differ, or the state is of another optimiser.
        """
        _check_form(state_dict)
        loaded = state_dict["param_groups"]
        sizes = [len(group["params"]) for group in loaded]
        own_sizes = [len(group["params"]) for group in self.param_groups]
        if sizes != own_sizes:
            raise ValueError(f"the state has groups of {sizes} parameters, expected {own_sizes}")
        groups = []
        for group, given in zip(self.param_groups, loaded, strict=True):
            self._check_kind(given)
            options = {name: given.get(name, group[name]) for name in self._defaults}
            groups.append({**group, **self._checked(options)})
            groups[-1].pop("initial_lr", None)  # of a schedule
            if "initial_lr" in given:
                groups[-1]["initial_lr"] = as_finite(given["initial_lr"], "initial_lr", least=0)
        order = [key for given in loaded for key in given["params"]]  # torch's are 0, 1, 2 ... too
        unknown = [key for key in state_dict["state"] if key not in order]
        if unknown:
            raise ValueError(f"the state has the key {unknown[0]!r}, which no group has; keys are those of 'params'")
        parameters, state = dict(self._module.named_parameters()), {}
        options_of = [own for own in groups for _ in own["params"]]
        for name, key, own in zip(self._names(), order, options_of, strict=True):
            if key in state_dict["state"]:
                state[name] = self._read_state(state_dict["state"][key], name, parameters[name], own)
        self.param_groups, self.state = groups, state

    def _check_kind(self, group: Mapping[str, Any]) -> None:
        """Refuse a group of another optimiser."""
        missing = [name for name in self._defaults if name not in group and name != "maximize"]
        if missing:
            raise ValueError(f"the state is of another optimizer than {type(self).__name__}: it has no {missing[0]}")

    def _read_state(
        self, given: Mapping[str, Any], name: str, parameter: FloatArray, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Copy the state of one parameter."""
        found: dict[str, Any] = {}
        for key in ("step", *self._arrays):
            value = given.get(key)
            if value is None:  # torch has None before the first step with momentum
                if self._counts and key in ("step", *self._uses(options)):
                    raise ValueError(f"the state of {name} has no {key}")
                continue
            array = _core.as_array(value, f"{key} of {name}")
            if key == "step":
                found[key] = int(as_finite(array.item() if array.size == 1 else -1, f"step of {name}", least=0))
                continue
            if array.shape != parameter.shape:
                raise ValueError(f"{key} of {name} has shape {array.shape}, expected {parameter.shape}")
            found[key] = empty_moment(parameter)
            found[key][...] = array
        return found

    def __repr__(self) -> str:
        """Write the options of the first group, and the number of groups if there are more."""
        options = ", ".join(f"{name}={self.param_groups[0][name]!r}" for name in self._defaults)
        more = f", {len(self.param_groups)} groups" if len(self.param_groups) > 1 else ""
        return f"{type(self).__name__}({options}{more})"


def _check_form(state_dict: Mapping[str, Any]) -> None:
    """Refuse what is not of the form that `Optimizer.state_dict` has."""
    if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= {*state_dict}:
        raise TypeError(
            f"state_dict is of type {type(state_dict).__name__}, expected a dict with 'state' and 'param_groups'"
        )
    state, groups = state_dict["state"], state_dict["param_groups"]
    if not isinstance(groups, (list, tuple)):
        raise TypeError(f"state_dict['param_groups'] is of type {type(groups).__name__}, expected a list of dicts")
    for n, group in enumerate(groups):
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), (list, tuple)):
            raise TypeError(
                f"state_dict['param_groups'][{n}] is {short_repr(group)}, expected a dict with 'params', a list of "
                "indices, and options"
            )
        for key in group["params"]:
            if not isinstance(key, Hashable):
                raise TypeError(
                    f"state_dict['param_groups'][{n}]['params'] has a {type(key).__name__}, expected indices"
                )
    if not isinstance(state, Mapping):
        raise TypeError(f"state_dict['state'] is of type {type(state).__name__}, expected a dict of dicts by index")
    for key, own in state.items():
        if not isinstance(own, Mapping):
            raise TypeError(f"state_dict['state'][{key!r}] is of type {type(own).__name__}, expected a dict")


def empty_moment(parameter: FloatArray) -> FloatArray:
    """Make an array for what is remembered of a parameter, in its memory order."""
    return np.empty_like(parameter, compute_dtype(parameter.dtype), subok=False)


def update_in_place(step: Callable[..., bool], update: Update, options: Sequence[Any]) -> None:
    """Call a step of the core on the arrays themselves, or on copies if their memory orders differ."""
    arrays = [update.parameter, update.gradient, *update.moments.values()]
    if step(*arrays, *options):
        return
    copies = [x if x is None else np.array(x, x.dtype.newbyteorder("="), order="C") for x in arrays]
    step(*copies, *options)
    update.parameter[...] = copies[0]
    for name, copy in zip(update.moments, copies[2:], strict=True):
        if copy is not None:
            moment = update.moments[name] = empty_moment(update.parameter)
            moment[...] = copy

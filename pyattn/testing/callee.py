"""The function under test in `check`: called with the axes, array type and arguments that it takes."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from pyattn._util.typing import Layout
from pyattn.testing.calling import (
    INPUTS,
    Array,
    Signature,
    describe_error,
    is_of,
    name_of,
    parts_of,
    read_numbers,
    signature_of,
    to_torch,
)
from pyattn.testing.cases import Case, store

__all__ = ["Answer", "BackwardCallee", "Callee", "Library", "RefusedError"]

Library: TypeAlias = Literal["numpy", "torch", "jax"]


class RefusedError(Exception):
    """The function does not take these arrays, raised an exception, or did not return an array."""


class Answer(NamedTuple):
    """The result of a call."""

    output: Array
    """Of a backward: the numbers of all gradients."""
    from_tuple: bool
    """Whether the function returned a tuple that begins with the output."""
    changed: tuple[str, ...]
    """Names of arguments that the function wrote to."""
    gradients: Mapping[str, Array] = MappingProxyType({})
    """Of a backward: those of query, key, value and perhaps attn_mask."""


class Callee:
    """A function of query, key and value with optional arguments; trial calls find out what it takes."""

    def __init__(
        self,
        function: Callable[..., Any],
        scale: float | None = None,
        layout: Layout | None = None,
        library: Library | None = None,
    ) -> None:
        if isinstance(function, type) or not callable(function):
            what = f"the class {function.__name__}" if isinstance(function, type) else f"of type {name_of(function)}"
            raise TypeError(
                f"my_attention is {what}, expected a function of query, key and value, or an object like one"
            )
        self.name = name_of(function)
        self.refusals: dict[int, str] = {}
        """The reason why it does not take arrays of 2, 3 or 4 axes; "" if it does."""
        self._function, self._scale = function, scale
        self._read_signature(signature_of(function))
        own: Library = "torch" if is_of(function, "torch") else "numpy"
        own = "jax" if is_of(function, "jax") or is_of(function, "jaxlib") else own
        self._layout: Layout = layout or ("bshd" if own == "jax" else "bhsd")
        self._needs_mask_array = False
        foreign: tuple[Library, ...] = ("torch", "jax")
        candidates: list[Library] = [library or own]
        if library is None and own == "numpy":
            candidates += [name for name in foreign if name in sys.modules]
        if not any(map(self._takes_arrays_of, candidates)):
            self._takes_arrays_of(candidates[0])  # to record its refusals

    def _read_signature(self, signature: Signature) -> None:
        """Match inputs and options with the function's arguments: inputs by name, or else the first three."""
        first = [name for name in signature.positional if name not in signature.options.values()]
        inputs = signature.inputs or dict(zip(INPUTS, first, strict=False))
        self._options = signature.options
        self._required = [ours for ours, own in self._options.items() if own in signature.required]
        own_names = (*inputs.values(), *self._options.values())
        unknown = [name for name in signature.required if name not in own_names]
        if len(inputs) < len(INPUTS) or unknown:
            what = f"needs {unknown[0]}" if unknown else f"takes ({', '.join(signature.names)})"
            raise TypeError(
                f"{self.name} {what}, expected a function of {self._words(' and ')}; "
                f"wrap it: lambda {self._words(', ')}: {self.name}(...)"
            )
        own_order = signature.positional[: len(INPUTS)]
        self._positional = sorted(own_order) == sorted(inputs.values())
        if self._positional:
            inputs = dict(sorted(inputs.items(), key=lambda item: own_order.index(item[1])))
        self._inputs = inputs

    def _words(self, last: str) -> str:
        """Name the inputs that the function must take."""
        return f"query, key{last}value"

    def takes(self, name: str) -> bool:
        """Tell whether the function has an argument; name is ours."""
        return name in self._options or (name == "attn_bias" and "attn_mask" in self._options)

    def describe(self, case: Case) -> str:
        """Write a call as source code, such as ``attention(query, key, value, mask=mask)``."""
        inputs = [] if case.grad_output is None else ["grad_output"]
        inputs += [ours if self._positional else f"{own}={ours}" for ours, own in self._inputs.items()]
        options = self._options_of(case).items()
        texts = [f"{name}={name if isinstance(x, np.ndarray) else repr(x)}" for name, x in options]
        return f"{self.name}({', '.join(inputs + texts)})"

    def present(self, case: Case) -> Case:
        """Convert a case to the function's layout, and add axes of size 1 if it needs more axes."""
        axes = case.query.ndim
        taken = [rank for rank, refusal in self.refusals.items() if rank >= axes and not refusal]
        if not taken and "" in self.refusals.values():
            raise RefusedError(self.refusals[axes])
        # Else the most axes: a function for four axes may accept three, and misread them.
        fallback = 4 if self._layout == "bshd" else axes
        return self._with_axes(case, axes if axes in taken else max(taken, default=fallback))

    def call(self, case: Case) -> Answer:
        """Call the function with copies of the arrays of a case from `present`."""
        arrays = {ours: store(getattr(case, ours), case.storage) for ours in self._inputs}
        first = {} if case.grad_output is None else {"grad_output": store(case.grad_output, case.storage)}
        options = self._options_of(case)
        given = first | arrays | {own: x for own, x in options.items() if isinstance(x, np.ndarray)}
        before = {name: x.copy() for name, x in given.items()}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            passed = [self._convert(x) for x in arrays.values()]
            options = {own: self._convert(x) if isinstance(x, np.ndarray) else x for own, x in options.items()}
            if not self._positional:
                options |= dict(zip(self._inputs.values(), passed, strict=True))
                passed = []
            passed = [self._convert(x) for x in first.values()] + passed
            try:
                answer = self._read(self._function(*passed, **options), case)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # including sys.exit() and the exceptions with which pytest ends a test
                raise RefusedError(self._describe(error)) from error
        changed = tuple(name for name, x in given.items() if not np.array_equal(x, before[name], equal_nan=True))
        return answer._replace(changed=changed)

    def _read(self, returned: Any, case: Case) -> Answer:
        parts = parts_of(returned, case.query.ndim, "the result")
        return Answer(_read_output(parts), len(parts) > 1, ())

    def _describe(self, error: BaseException) -> str:
        return str(error) if isinstance(error, RefusedError) else describe_error(error, self._function)

    def _takes_arrays_of(self, library: Library) -> bool:
        """Try 2, 3 and 4 axes; a required mask is None or, if that fails, a mask that blocks no key."""
        self.library = library
        for needs_array in (False, True) if "attn_mask" in self._required else (False,):
            self._needs_mask_array = needs_array
            self.refusals = {2 + len(batch): self._refusal_of(batch) for batch in ((), (2,), (2, 3))}
            if "" in self.refusals.values():
                return True
        return False

    def _refusal_of(self, batch: tuple[int, ...]) -> str:
        if self._layout == "bshd" and len(batch) < 2:
            return "arrays are (batch, length, heads, dim)"
        x = np.broadcast_to(np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4), (*batch, 5, 4))
        try:
            output = self.call(self._with_axes(Case(x, x, x), x.ndim)).output
        except RefusedError as refused:
            return str(refused)
        if "attn_mask" in self._required and not self._needs_mask_array and np.isnan(output).any():
            return "None is read as a mask"
        return ""

    def _with_axes(self, case: Case, rank: int) -> Case:
        arguments = dict(case.arguments)
        mask = arguments.get("attn_mask")
        if mask is not None and mask.ndim == case.query.ndim:
            arguments["attn_mask"] = _expand(mask, rank)
        query, key, value = (_expand(x, rank) for x in (case.query, case.key, case.value))
        if self._layout == "bshd":
            query, key, value = (x.swapaxes(-3, -2) for x in (query, key, value))
            arguments["layout"] = "bshd"
        grad = None if case.grad_output is None else _expand(case.grad_output, rank)
        if grad is not None and self._layout == "bshd":
            grad = grad.swapaxes(-3, -2)
        return Case(query, key, value, arguments, case.storage, grad)

    def _options_of(self, case: Case) -> dict[str, Any]:
        """Return options by the function's own names, without unknown ones and with those that it requires."""
        given = dict(case.arguments)
        mask = given.pop("attn_mask", None)
        if mask is not None:
            is_bias = mask.dtype != np.bool_ and "attn_bias" in self._options
            given["attn_bias" if is_bias else "attn_mask"] = mask.copy()
        length = -3 if self._layout == "bshd" else -2
        no_mask = np.ones((case.query.shape[length], case.key.shape[length]), bool) if self._needs_mask_array else None
        head_dim = case.query.shape[-1]
        scale = 1 / np.sqrt(head_dim) if self._scale is None else self._scale
        usual: dict[str, Any] = {"attn_mask": no_mask, "attn_bias": None, "is_causal": False, "align": None}
        usual |= {"scale": float(scale), "enable_gqa": False, "key_lengths": None, "head_dim": head_dim}
        given = {name: usual[name] for name in self._required} | given
        return {self._options[name]: option for name, option in given.items() if name in self._options}

    def _convert(self, x: Array) -> Any:
        """Convert an array to the function's library."""
        if self.library == "numpy":
            return x
        if self.library == "torch":
            return to_torch(x)
        jax: Any = importlib.import_module("jax.numpy")
        converted = jax.asarray(x)
        if converted.dtype != x.dtype:
            raise RefusedError(f"JAX makes {converted.dtype} of {x.dtype} unless jax_enable_x64 is on")
        return converted


class BackwardCallee(Callee):
    """A function of grad_output, query, key and value that returns gradients; its arrays are as its forward's."""

    def __init__(self, function: Callable[..., Any], forward: Callee) -> None:
        if isinstance(function, type) or not callable(function):
            raise TypeError(
                f"backward is of type {name_of(function)}, expected a function of {self._words(' and ')} that returns "
                "the gradients of query, key and value"
            )
        self.name, self.refusals, self.library = name_of(function), forward.refusals, forward.library
        self._function, self._scale, self._layout = function, forward._scale, forward._layout
        self._needs_mask_array = forward._needs_mask_array
        self._read_signature(signature_of(functools.partial(function, None)))

    def _words(self, last: str) -> str:
        return f"grad_output, {super()._words(last)}"

    def _read(self, returned: Any, case: Case) -> Answer:
        parts = parts_of(returned, case.query.ndim, "the result")
        names, mask = list(INPUTS), case.arguments.get("attn_mask")
        if len(parts) > len(names) and mask is not None and mask.dtype != np.bool_:
            names.append("attn_mask")
        if len(parts) < len(names):
            given = f"{len(parts)} gradients" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
            raise RefusedError(f"it returned {given}, expected a tuple: those of {', '.join(names)}")
        found = {name: _read_gradient(x, name) for name, x in zip(names, parts, strict=False) if x is not None}
        lacking = [name for name in INPUTS if name not in found]
        if lacking:
            raise RefusedError(f"it returned None as the gradient of {' and '.join(lacking)}: is one missing?")
        return Answer(np.concatenate([x.ravel() for x in found.values()]), False, (), found)


def _read_gradient(x: Any, name: str) -> Array:
    """Read and copy a gradient."""
    try:
        return read_numbers(x, f"the gradient of {name}").copy()
    except TypeError as error:
        raise RefusedError(str(error)) from error


def _expand(x: Array, rank: int) -> Array:
    """Insert axes of size 1 before the length."""
    return x[(..., *(np.newaxis,) * (rank - x.ndim), slice(None), slice(None))]


def _read_output(parts: tuple[Any, ...]) -> Array:
    """Read and copy the output: the function may reuse its memory."""
    if not parts:
        raise RefusedError("it returned an empty tuple")
    if parts[0] is None:
        raise RefusedError("it returned None: is a return missing?")
    try:
        return read_numbers(parts[0], "the result").copy()
    except TypeError as error:
        raise RefusedError(str(error)) from error

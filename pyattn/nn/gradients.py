"""Gradients of modules: a tape of what a call did, and the way back through it."""

from __future__ import annotations

import contextvars
import copy
import functools
import inspect
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import as_float32, compute_dtype, is_half, round_to, rounded
from pyattn._util.random import as_generator, draw_seed
from pyattn._util.typing import RNG, FloatArray
from pyattn.masks import Mask

__all__ = [
    "Backward",
    "Run",
    "Tape",
    "add_gradient",
    "add_product",
    "add_sum",
    "as_rows",
    "call_vjp",
    "drop",
    "recorded",
    "rows_of",
    "running",
    "sum_to",
]

_Forward = TypeVar("_Forward", bound=Callable[..., Any])
Step: TypeAlias = Callable[[FloatArray], Sequence[FloatArray | None]]


class Run:
    """How forward computes: a plain call notes nothing."""

    records = False

    def tracks(self, x: Any) -> bool:
        """Tell whether an array has a gradient."""
        return False

    def layer(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call one of several layers, which may be computed again on the way back."""
        return module(*args, **kwargs)

    def step(self, output: FloatArray, sources: Sequence[Any], backward: Step) -> FloatArray:
        """Note that output was computed from sources; backward turns its gradient into theirs."""
        return output

    def reshape(self, x: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        """View an array in another shape."""
        return self.step(x.reshape(shape), (x,), lambda grad: (grad.reshape(x.shape),))

    def swap(self, x: FloatArray) -> FloatArray:
        """Swap the first two axes of a view."""
        return self.step(x.swapaxes(0, 1), (x,), lambda grad: (grad.swapaxes(0, 1),))

    def add(self, x: FloatArray, y: FloatArray) -> FloatArray:
        """Compute x + y, of x's shape; y is broadcast."""
        return self.step(np.asarray(x + y), (x, y), lambda grad: (grad, sum_to(grad, y.shape)))


_PLAIN = Run()
_RUNNING: contextvars.ContextVar[Run] = contextvars.ContextVar("running", default=_PLAIN)


def running() -> Run:
    """Return how this thread's forward computes."""
    return _RUNNING.get()


def recorded(forward: _Forward) -> _Forward:
    """Mark a forward whose steps a tape can record: modules are called, all else is noted by `Run.step`."""
    forward._is_recorded = True  # type: ignore[attr-defined]
    return forward


class Tape(Run):
    """A record of the steps of a call, which gradients go through backwards."""

    records = True

    def __init__(self, inputs: Sequence[FloatArray] = (), checkpoint: bool = False) -> None:
        self._checkpoint = checkpoint
        self._steps: list[tuple[FloatArray, Sequence[Any], Step]] = []
        self._tracked = {id(x): x for x in inputs}  # an id belongs to an array only as long as that exists

    def run(self, forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a module's forward, whose steps are recorded here."""
        before = _RUNNING.set(self)
        try:
            return forward(*args, **kwargs)
        finally:
            _RUNNING.reset(before)

    def call(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a part: `Module.__call__` does this while a tape runs."""
        if is_recorded(module):
            return module.forward(*args, **kwargs)
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        given = tuple(bound.arguments)
        output, backward = self._plainly(module.vjp, args, kwargs)
        bound.apply_defaults()
        sources = bound.arguments
        if any(_first(output) is x for x in sources.values()):  # a step's output is an array of its own
            own = _first(output).view()
            output = (own, *output[1:]) if isinstance(output, tuple) else own

        def checked(grad: FloatArray) -> list[FloatArray | None]:
            return _gradients_of_user(type(module).__name__, backward(grad), sources, given)

        self.step(_first(output), tuple(sources.values()), checked)
        return output

    def layer(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a layer on a tape of its own, which with `checkpoint` is made on the way back."""
        tape, options = None, dict(kwargs)
        if self._checkpoint:
            if not is_recorded(module) and _has_general_vjp(module):
                raise _without_gradients(module)  # now, and not on the way back
            if "rng" in inspect.signature(module.forward).parameters:
                options["rng"] = as_generator(options.get("rng"))  # drawn from again on the way back
        sources = list({id(x): x for x in (*args, *options.values())}.values())
        inputs = [x for x in sources if self.tracks(x)]
        again = {name: copy.deepcopy(x) if name == "rng" else x for name, x in options.items()}
        if self._checkpoint:
            output = self._plainly(module, args, options)
        else:
            tape = Tape(inputs)
            output = tape.run(module, args, options)

        def backward(grad: FloatArray) -> Sequence[FloatArray | None]:
            if tape is not None:
                return tape.gradients([(_first(output), grad)], sources)
            other = Tape(inputs)
            found = other.run(module, args, again)
            return other.gradients([(_first(found), grad)], sources)

        self.step(_first(output), sources, backward)
        return output

    def _plainly(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call without recording."""
        before = _RUNNING.set(_PLAIN)
        try:
            return function(*args, **kwargs)
        finally:
            _RUNNING.reset(before)

    def step(self, output: FloatArray, sources: Sequence[Any], backward: Step) -> FloatArray:
        """Record a step, even one without a tracked source: it may have parameters."""
        if any(output is x for x in sources):
            return output
        self._tracked[id(output)] = output
        self._steps.append((output, sources, backward))
        return output

    def tracks(self, x: Any) -> bool:
        """Tell whether an array is an input, or computed from one or from parameters."""
        return id(x) in self._tracked

    def uses(self, x: FloatArray) -> bool:
        """Tell whether a step was computed from an array, or it is the result of one."""
        return any(source is x for _, sources, _ in self._steps for source in sources)

    def gradients(
        self, outputs: Sequence[tuple[FloatArray, FloatArray]], inputs: Sequence[Any]
    ) -> list[FloatArray | None]:
        """Go back from the gradients of outputs to those of inputs; the steps are forgotten on the way."""
        found: dict[int, FloatArray] = {}
        own: set[int] = set()  # sums, which belong to the tape: others may be shared

        def add(x: Any, grad: FloatArray) -> None:
            key = id(x)
            if key not in found:
                found[key] = grad
            elif key in own:
                found[key] += grad
            else:
                found[key] = np.asarray(found[key] + grad)
                own.add(key)

        for output, grad in outputs:
            add(output, grad)
        while self._steps:
            output, sources, backward = self._steps.pop()
            gradient = found.pop(id(output), None)
            own.discard(id(output))
            self._tracked.pop(id(output), None)  # what only it keeps alive is freed on the way
            if gradient is None:
                continue
            for x, grad_x in zip(sources, backward(gradient), strict=False):
                if grad_x is not None and id(x) in self._tracked:
                    add(x, grad_x)
        return [found.get(id(x)) for x in inputs]


def _first(result: Any) -> Any:
    """Return a result, or the first of several, which is the one that has a gradient."""
    return result[0] if isinstance(result, tuple) else result


def _gradients_of_user(
    name: str, found: Any, sources: Mapping[str, Any], given: Sequence[str]
) -> list[FloatArray | None]:
    """Check what a vjp of a user's own returned: gradients of all arguments, or of the first that were given."""
    names = sources if isinstance(found, tuple) and len(found) == len(sources) else given
    left_out = given[len(found) :] if isinstance(found, tuple) and len(found) <= len(names) else None
    if left_out is None or any(_as_floats(sources[argument], argument) is not None for argument in left_out):
        what = f"{len(found)} gradients" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise TypeError(
            f"the way back of {name}.vjp returned {what}, expected a tuple with a gradient or None for each argument: "
            f"{', '.join(given)}"
        )
    read = {}
    for argument, grad in zip(names, found, strict=False):
        if grad is None:
            continue
        array, shape = as_float32(_core.as_real(grad, f"the gradient of {argument}")), np.shape(sources[argument])
        if array.shape != shape:
            raise ValueError(f"the gradient of {argument} in {name}.vjp has shape {array.shape}, expected {shape}")
        read[argument] = array
    return [read.get(argument) for argument in sources]


class Backward:
    """The way back through one call: takes the gradient of its output, once."""

    def __init__(self, tape: Tape, output: Any, inputs: Mapping[str, Any], dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self._tape: Tape | None = tape
        self._output, self._inputs, self._dtypes = output, inputs, dtypes

    def __call__(self, grad_output: npt.ArrayLike) -> tuple[FloatArray | None, ...]:
        """Return the gradients of the arguments, as `Module.vjp` describes it."""
        if self._tape is None:
            raise RuntimeError("this backward has run, and runs once; call vjp again for another one")
        seeds = self._read(grad_output)
        tape, self._tape, self._output = self._tape, None, None
        inputs, self._inputs = self._inputs, {}
        found = tape.gradients(seeds, list(inputs.values()))
        result: list[FloatArray | None] = []
        for name, grad in zip(inputs, found, strict=True):
            dtype, array = self._dtypes.get(name), inputs[name]
            if dtype is None:
                result.append(None)
            elif grad is None:  # the loss does not depend on it
                result.append(np.zeros(array.shape, dtype))
            else:  # not the caller's own array, where a step passes gradients on
                result.append(round_to(grad.copy() if any(grad is seed for _, seed in seeds) else grad, dtype))
        return tuple(result)

    def _read(self, grad_output: Any) -> list[tuple[FloatArray, FloatArray]]:
        """Pair each output that has a gradient with it."""
        outputs = self._output if isinstance(self._output, tuple) else (self._output,)
        several = isinstance(self._output, tuple) and isinstance(grad_output, (tuple, list))
        seeds = []
        for n, one in enumerate(grad_output if several else (grad_output,)):
            name = f"grad_output[{n}]" if several else "grad_output"
            if one is None and several:
                continue
            output = outputs[n] if n < len(outputs) else None
            if output is None or self._tape is None or not self._tape.tracks(output):
                raise ValueError(f"{name} is given, but that entry of the output has no gradient; pass None")
            array = as_float32(_core.as_real(one, name))
            if array.shape != output.shape:
                raise ValueError(f"{name} has shape {array.shape}, expected {output.shape} as the output")
            seeds.append((output, array.astype(output.dtype, copy=False)))
        return seeds


def call_vjp(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], checkpoint: bool) -> tuple[Any, Backward]:
    """Call forward with a tape; the first argument says, as in a plain call, whether results are halves."""
    name, forward = type(module).__name__, _forward_of(module)
    bound = inspect.signature(forward).bind(*args, **kwargs)
    inputs: dict[str, Any] = {}
    dtypes: dict[str, np.dtype[Any]] = {}
    seen: set[int] = set()
    for argument, value in list(bound.arguments.items()):
        array = _as_floats(value, argument)
        if array is not None:
            dtypes[argument] = array.dtype.newbyteorder("=")
            wide = as_float32(array)
            if id(wide) in seen:
                wide = wide.view()  # each argument has a gradient of its own
            seen.add(id(wide))
            bound.arguments[argument] = value = wide
        inputs[argument] = value
    tape = Tape([inputs[argument] for argument in dtypes], checkpoint)
    output = tape.run(forward, bound.args, bound.kwargs)
    half = next(iter(dtypes.values()), None) if module._widens_halves else None
    shown = output if half is None or not is_half(half) else rounded(output, half)
    results = output if isinstance(output, tuple) else (output,)
    for argument in dtypes:
        if not tape.uses(inputs[argument]) and not any(inputs[argument] is x for x in results):
            raise NotImplementedError(f"{argument} has no gradient in {name}.vjp; pass it as an array of bool or int")
    return shown, Backward(tape, output, inputs, dtypes)


def _as_floats(value: Any, name: str) -> FloatArray | None:
    """Read an argument that holds floats; None for others."""
    if isinstance(value, (list, tuple)):
        try:
            value = np.asarray(value)
        except ValueError:
            return None
    elif isinstance(value, Mask) or not (isinstance(value, np.ndarray) or hasattr(value, "__dlpack__")):
        return None
    array = _core.as_array(value, name)
    return array if array.ndim > 0 and (array.dtype.kind == "f" or is_half(array.dtype)) else None


def is_recorded(module: Any) -> bool:
    """Tell whether the steps of a module's forward can be recorded, and are meant to be."""
    return getattr(module.forward, "_is_recorded", False) and _has_general_vjp(module)


def _has_general_vjp(module: Any) -> bool:
    return getattr(type(module).vjp, "_is_general", False)


def _forward_of(module: Any) -> Callable[..., Any]:
    """Return the forward to record: the module's, or for a vjp that calls super().vjp the one of a class above."""
    if is_recorded(module):
        return module.forward  # type: ignore[no-any-return]
    if not _has_general_vjp(module):
        for cls in type(module).__mro__:
            forward: Any = vars(cls).get("forward")
            if getattr(forward, "_is_recorded", False):
                return functools.partial(forward, module)
    raise _without_gradients(module)


def _without_gradients(module: Any) -> NotImplementedError:
    return NotImplementedError(
        f"{type(module).__name__} defines forward alone; for gradients, define vjp, which takes forward's arguments "
        "and returns its output and a function: from the gradient of the output to a tuple, one gradient for each "
        "argument"
    )


# Gradients of parameters

_locks: list[threading.RLock] = []


def _renew_locks() -> None:
    """Make the locks; a child of fork may be born while another thread holds one."""
    _locks[:] = [threading.RLock() for _ in range(64)]


_renew_locks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def _adding_to(module: Any) -> threading.RLock:
    """Lock the gradients of a module's own parameters, as threads may share it."""
    return _locks[id(module) // 64 % len(_locks)]


def _check_unchanged(parameter: FloatArray, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if parameter.shape != shape or compute_dtype(parameter.dtype) != dtype:
        raise ValueError(
            f"{name} has shape {parameter.shape} and dtype {parameter.dtype}, but its gradient has shape {shape} and "
            f"dtype {dtype}: it was replaced after vjp; call vjp again"
        )


def add_gradient(module: Any, name: str, grad: FloatArray) -> None:
    """Add to the gradient of a parameter, which has its memory order; grad is the caller's to give away."""
    like = vars(module)[name]
    _check_unchanged(like, name, grad.shape, grad.dtype)
    with _adding_to(module):
        held = module._gradients
        if name in held:
            held[name] += grad
            return
        if _order(grad) == _order(like) and grad.base is None:
            total = grad
        else:
            total = np.empty_like(like, dtype=grad.dtype)
            total[...] = grad
        module._set_gradients({**held, name: total})


def _order(array: FloatArray) -> list[int]:
    """Order of the axes in memory."""
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


_ALL = slice(None)


def add_product(module: Any, name: str, x: FloatArray, grad: FloatArray, rows: slice = _ALL) -> None:
    """Add ``grad.T @ x`` to the gradient of a weight's rows, in the weight's memory order, in one pass over it."""
    x, grad = as_rows(x), as_rows(grad)
    weight = vars(module)[name]
    _check_unchanged(weight[rows], name, (grad.shape[1], x.shape[1]), grad.dtype)
    with _adding_to(module):
        if name not in module._gradients and rows == _ALL:
            total = _like(weight, np.empty_like)
            _multiply(x, grad, None, total)
            module._set_gradients({**module._gradients, name: total})
        else:
            total = _gradient_of(module, name)[rows]
            _multiply(x, grad, total, total)


def _multiply(x: FloatArray, grad: FloatArray, before: FloatArray | None, out: FloatArray) -> None:
    """Write ``before + grad.T @ x`` to an array of either memory order."""
    if abs(out.strides[0]) <= abs(out.strides[1]):  # (in, out)
        _core.linear(x.T, grad.T, residual=None if before is None else before.T, out=out.T)
    else:
        _core.linear(grad.T, x.T, residual=before, out=out)


def add_sum(module: Any, name: str, grad: FloatArray, rows: slice = _ALL) -> None:
    """Add the sum over rows to the gradient of part of a bias; None has none."""
    if vars(module)[name] is None:
        return
    grad = as_rows(grad)
    _check_unchanged(vars(module)[name][rows], name, grad.shape[1:], grad.dtype)
    added = _core.linear(np.ones((1, len(grad)), grad.dtype), grad.T)[0]
    with _adding_to(module):
        total = _gradient_of(module, name)[rows]
        total += added


def _gradient_of(module: Any, name: str) -> FloatArray:
    """Return the gradient that a module holds for a parameter, at first zeros."""
    held: Mapping[str, FloatArray] = module._gradients
    if name not in held:
        held = {**held, name: _like(vars(module)[name], np.zeros_like)}
        module._set_gradients(held)
    return held[name]


def _like(parameter: FloatArray, make: Callable[..., FloatArray]) -> FloatArray:
    """Make an array for a parameter's gradient, in its memory order; that of a half is float32."""
    return make(parameter, dtype=compute_dtype(parameter.dtype))


def as_rows(x: FloatArray) -> FloatArray:
    """View (..., features) as rows."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def sum_to(grad: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Sum a gradient over the axes along which an array of this shape was broadcast."""
    lead = grad.ndim - len(shape)
    axes = (*range(lead), *(lead + n for n, size in enumerate(shape) if size == 1 and grad.shape[lead + n] != 1))
    if not axes:
        return grad
    total: FloatArray = grad.sum(axes, dtype=np.float64).astype(grad.dtype)
    return total.reshape(shape)


def rows_of(module: Any, rows: FloatArray, which: slice | int) -> FloatArray:
    """Track rows of a module's weight: their gradient goes to the weight's."""

    def backward(grad: FloatArray) -> tuple[()]:
        _check_unchanged(module.weight[which], "weight", grad.shape, grad.dtype)
        with _adding_to(module):
            total = _gradient_of(module, "weight")[which]
            total += grad
        return ()

    return running().step(rows, (), backward)


# Dropout


def drop(x: FloatArray, p: float, rng: RNG) -> FloatArray:
    """Apply dropout to (..., features), as `pyattn.functional.dropout` does."""
    if p == 0:
        return x
    seed = draw_seed(rng)

    def dropped(y: FloatArray) -> FloatArray:
        return _core.drop_rows(np.ascontiguousarray(y), p, seed).reshape(y.shape)

    return running().step(dropped(x), (x,), lambda grad: (dropped(grad),))

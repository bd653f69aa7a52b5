"""Checks of modules' inputs, as strict as torch: one of float32 and float64 throughout, and sizes.

Weights may be float16 or bfloat16, and so may inputs: either becomes float32 in the arithmetic.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import (
    as_float32,
    check_same_half,
    compute_dtype,
    expression_of,
    is_half,
    is_stored_dtype,
    rounded,
)
from pyattn._util.names import refuse_call

__all__ = [
    "as_input",
    "as_inputs",
    "call_rounding",
    "check_dtype",
    "check_mixture",
    "check_multiple",
    "check_parameter",
    "check_parameter_dtypes",
    "rounding_halves",
    "widen_half",
]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def check_multiple(whole: tuple[str, int], part: tuple[str, int], hint: str = "") -> None:
    """Refuse a size that another one does not divide."""
    if whole[1] % part[1]:
        raise ValueError(f"{whole[0]} is {whole[1]} and {part[0]} is {part[1]}, expected a multiple{hint}")


def as_input(x: npt.ArrayLike, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Read an input of a module: arrays have the weights' dtype; lists, bools and integers are converted to it."""
    return _converted(_core.as_array(x, name), x, name, dtype)


def as_inputs(given: Collection[tuple[str, npt.ArrayLike]], dtype: np.dtype[Any]) -> list[npt.NDArray[Any]]:
    """Read the inputs of one call, which do not mix float16 with bfloat16."""
    arrays = [_core.as_array(x, name) for name, x in given]
    if dtype.itemsize > 2 and {array.dtype for array in arrays} == {dtype}:  # most calls
        return arrays
    check_same_half([(name, array) for (name, _), array in zip(given, arrays, strict=True)])
    return [_converted(array, x, name, dtype) for (name, x), array in zip(given, arrays, strict=True)]


def _converted(array: npt.NDArray[Any], x: npt.ArrayLike, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert an input, whose array is read, to the dtype in which the module computes, or refuse it."""
    own = array.dtype
    if own == dtype and dtype.itemsize > 2:  # most calls
        return array
    wanted = compute_dtype(dtype)
    if own == wanted:
        return array
    if is_half(own) and wanted == np.float32:
        if is_half(dtype) and own.name != dtype.name:
            raise TypeError(
                f"{name} has dtype {own} and the module's weights {dtype}; convert one of them, or both to float32"
            )
        return as_float32(array)
    if own.kind in "biu" or (own == np.float64 and isinstance(x, (list, tuple, float))):
        return array.astype(wanted)
    if own.kind in "SUT":
        _core.as_real(x, name)  # which refuses text, and says how to make numbers of it
    given = own.newbyteorder("=")
    if given == wanted:
        return array
    expected = f"{wanted} or {dtype.newbyteorder('=')}" if is_half(dtype) else wanted
    fix = _core.cast(x, name, f"numpy.{wanted}")
    other = f", or make the module with dtype={expression_of(given)}" if is_stored_dtype(given) else ""
    raise TypeError(f"{name} has dtype {own}, expected {expected} as the module's weights; pass {fix}{other}")


def check_dtype(result: npt.NDArray[Any], module: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Refuse a result that the core promoted because an assigned parameter has a larger dtype than the module."""
    if result.dtype != dtype and result.dtype != compute_dtype(dtype):
        check_parameter_dtypes(module, dtype)
    return result


def check_parameter_dtypes(module: Any, dtype: np.dtype[Any]) -> None:
    """Name a parameter of a larger dtype than the module's, or of another half than a parameter before it."""
    wanted, own = compute_dtype(dtype), dtype.newbyteorder("=")
    for name, array in module.named_parameters():
        if compute_dtype(array.dtype) != wanted and np.promote_types(array.dtype, wanted) != wanted:
            raise TypeError(
                f"{name} has dtype {array.dtype}, expected {own} as the module's other parameters; "
                f"assign {name}.astype({expression_of(own)}), or convert all with to({expression_of(own)})"
            )
    check_same_half(module.named_parameters())


def check_mixture(arrays: Collection[tuple[str, npt.NDArray[Any]]]) -> None:
    """Require arrays of the first one's dtype; float32 and one kind of half may mix."""
    (first, like), *others = arrays
    for name, array in others:
        if compute_dtype(array.dtype) != compute_dtype(like.dtype):
            raise TypeError(f"{name} has dtype {array.dtype}, expected {like.dtype.newbyteorder('=')} as {first}")
    check_same_half(arrays)


def check_parameter(value: Any, name: str) -> None:
    """Refuse a value that cannot be a parameter."""
    if not isinstance(value, np.ndarray):
        kind = type(value).__name__
        raise TypeError(f"{name} is a parameter and takes an array of floats, not one of type {kind}")
    _core.as_array(value, name)  # refuses masked arrays and matrices
    if not is_stored_dtype(value.dtype.newbyteorder("=")):
        raise TypeError(
            f"{name} has dtype {value.dtype}, and a parameter has float16, bfloat16, float32 or float64; "
            f"use {name}.astype(numpy.float32)"
        )


def call_rounding(module: Any, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a bound method with a first argument that is a half as float32, and round the results to its dtype."""
    half = None
    try:
        first = args[0] if args else kwargs.get(_names_of(method)[0]) if kwargs else None
        if _is_half_array(first) and module._widens_halves:
            args, kwargs, half = _with_float32(module, method, args, kwargs)
        result = method(*args, **kwargs)
    except TypeError as error:
        called = f"{type(module).__name__}.{getattr(method, '__name__', 'forward')}"
        refuse_call(error, args, kwargs, method, called)
        raise
    return result if half is None else rounded(result, half)


def rounding_halves(method: _Method) -> _Method:
    """Make a method of a module compute in float32 where its first argument is a half, and round to that."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return call_rounding(self, method.__get__(self), args, kwargs)

    return cast(_Method, call)


def _is_half_array(x: Any) -> bool:
    """Tell whether an argument is an array, or a tensor of torch, of float16 or bfloat16."""
    dtype = getattr(x, "dtype", None)
    if getattr(dtype, "itemsize", 0) != 2 or getattr(x, "ndim", 0) == 0:
        return False
    return is_half(dtype) if isinstance(dtype, np.dtype) else str(dtype) in ("torch.float16", "torch.bfloat16")


def widen_half(x: npt.ArrayLike, name: str) -> npt.ArrayLike:
    """Return float32 numbers of an array, or a tensor, of halves; other inputs as they are."""
    return as_float32(_core.as_array(x, name)) if _is_half_array(x) else x


def _with_float32(
    module: Any, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], np.dtype[Any] | None]:
    """Make the first argument float32, and return its dtype, too; a module of float64 refuses it itself."""
    names, parameters = _names_of(method, len(args)), list(module.named_parameters())
    if ({compute_dtype(array.dtype) for _, array in parameters} or {module.dtype}) == {np.dtype(np.float64)}:
        return args, kwargs, None
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    inputs = [(name, _core.as_array(x, name)) for name, x in given.items() if _is_half_array(x) and "mask" not in name]
    check_same_half([*inputs, *parameters])
    first = _core.as_array(given[names[0]], names[0])
    half, wide = first.dtype.newbyteorder("="), as_float32(first)
    return ((wide, *args[1:]), kwargs, half) if args else (args, kwargs | {names[0]: wide}, half)


def _names_of(method: Callable[..., Any], given: int = 0) -> tuple[str, ...]:
    """Return the names of a bound method's parameters; those of ``*xs``, of which some are given, are ``xs[0]`` on."""
    function = getattr(method, "__func__", method)
    names: list[str] = []
    for name in _names_of_function(function)[function is not method :]:
        names += [f"{name[1:]}[{n}]" for n in range(given - len(names))] if name.startswith("*") else [name]
    return tuple(names) or ("input",)


@functools.lru_cache(maxsize=1000)
def _names_of_function(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters.values()
        return tuple("*" * (p.kind is p.VAR_POSITIONAL) + p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
    except (TypeError, ValueError):  # a function in C without a signature
        return ()

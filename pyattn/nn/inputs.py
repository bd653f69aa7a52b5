"""Checks of modules' inputs, as strict as torch: one of float32 and float64 throughout, and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import FLOATS

__all__ = [
    "as_input",
    "check_dtype",
    "check_multiple",
    "check_parameter",
    "check_parameter_dtypes",
]


def check_multiple(whole: tuple[str, int], part: tuple[str, int], hint: str = "") -> None:
    """Refuse a size that another one does not divide."""
    if whole[1] % part[1]:
        raise ValueError(f"{whole[0]} is {whole[1]} and {part[0]} is {part[1]}, expected a multiple{hint}")


def as_input(x: npt.ArrayLike, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Read an input of a module: arrays have the weights' dtype; lists, bools and integers are converted to it."""
    array = _core.as_array(x, name)
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "biu" or (array.dtype == np.float64 and isinstance(x, (list, tuple, float))):
        return array.astype(dtype)
    given, wanted = array.dtype.newbyteorder("="), dtype.newbyteorder("=")
    if given == wanted:
        return array
    fix = f"{name}.astype(numpy.{wanted})" if isinstance(x, np.ndarray) else f"numpy.asarray({name}, numpy.{wanted})"
    other = f", or make the module with dtype=numpy.{given}" if given in FLOATS else ""
    raise TypeError(f"{name} has dtype {array.dtype}, expected {wanted} as the module's weights; pass {fix}{other}")


def check_dtype(result: npt.NDArray[Any], module: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Refuse a result that the core promoted because an assigned parameter has a larger dtype than the module."""
    if result.dtype != dtype:  # the difference may be only the byte order
        check_parameter_dtypes(module, dtype)
    return result


def check_parameter_dtypes(module: Any, dtype: np.dtype[Any]) -> None:
    """Name a parameter of a larger dtype than the module's."""
    wanted = dtype.newbyteorder("=")
    for name, array in module.named_parameters():
        if np.promote_types(array.dtype, wanted) != wanted:
            raise TypeError(
                f"{name} has dtype {array.dtype}, expected {wanted} as the module's other parameters; "
                f"assign {name}.astype(numpy.{wanted}), or convert all with to(numpy.{wanted})"
            )


def check_parameter(value: Any, name: str) -> None:
    """Refuse a value that cannot be a parameter."""
    if not isinstance(value, np.ndarray):
        kind = type(value).__name__
        raise TypeError(f"{name} is a parameter and takes an array of float32 or float64, not one of type {kind}")
    _core.as_array(value, name)  # refuses masked arrays and matrices
    if value.dtype.newbyteorder("=") not in FLOATS:
        raise TypeError(
            f"{name} has dtype {value.dtype}, and a parameter has float32 or float64; use {name}.astype(numpy.float32)"
        )

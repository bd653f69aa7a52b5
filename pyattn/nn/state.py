"""Write a state_dict into parameters: all values, or none if one does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import is_half, store_as
from pyattn._util.typing import FloatArray
from pyattn.nn.inputs import check_mixture, check_parameter

__all__ = ["IncompatibleKeys", "check_arrays", "write_state"]


class IncompatibleKeys(NamedTuple):
    """Keys that `Module.load_state_dict` missed or did not expect.

    Both lists are empty with ``strict=True``, because missing or unexpected keys then raise ValueError.

    Attributes
    ----------
    missing_keys : list of str
        Parameters of the module without a value in the state.
    unexpected_keys : list of str
        Values in the state without a parameter in the module.

    Examples
    --------
    >>> from pyattn import nn
    >>> nn.Linear(2, 1).load_state_dict({"weight": [[1, 2]], "scale": 1}, strict=False)
    IncompatibleKeys(missing_keys=['bias'], unexpected_keys=['scale'])
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def write_state(
    own: dict[str, FloatArray], state: Mapping[str, npt.ArrayLike], strict: bool, owner: str
) -> IncompatibleKeys:
    """Write a state's values into parameters: see `Module.load_state_dict`."""
    keys = _keys_of(state)
    report = IncompatibleKeys([key for key in own if key not in keys], [key for key in keys if key not in own])
    problems = []
    if strict:
        problems += [f"{key} is missing" for key in report.missing_keys]
        problems += [f"{key} is unexpected" for key in report.unexpected_keys]
    values = {key: _real_values(state[key], key) for key in own if key in keys}
    for key, value in values.items():
        if value.shape != own[key].shape:
            problems.append(f"{key} has shape {value.shape}, expected {own[key].shape}")
        elif not own[key].flags.writeable:
            problems.append(f"{key} is read-only in the module; assign a copy of it first")
    if problems:
        text = "\n- ".join([f"this state does not fit {owner}:", *problems])
        raise ValueError(text + (_hint(own, report) if strict else ""))

    converted = [_separate(store_as(value, own[key].dtype), own) for key, value in values.items()]
    for key, value in zip(values, converted, strict=True):
        own[key][...] = value
    return report


def check_arrays(arrays: Mapping[str, FloatArray], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check names and shapes of arrays that become parameters; float32 and one kind of half may mix."""
    for name in (*shapes, *arrays):
        if name not in arrays or name not in shapes:
            raise ValueError(f"{name} is {'missing' if name in shapes else 'unexpected'}; expected {', '.join(shapes)}")
        check_parameter(arrays[name], name)
        if arrays[name].shape != shapes[name]:
            raise ValueError(f"{name} has shape {arrays[name].shape}, expected {shapes[name]}")
    last = list(shapes)[-1]
    check_mixture([(last, arrays[last]), *arrays.items()])


def _keys_of(state: Mapping[str, npt.ArrayLike]) -> dict[str, None]:
    """Return the keys in order; the error suggests the probable fix."""
    if isinstance(state, Mapping) or (hasattr(state, "keys") and hasattr(state, "__getitem__")):
        return dict.fromkeys(state.keys())
    fix = "; pass its state_dict()" if hasattr(state, "state_dict") else ""
    raise TypeError(f"state_dict is of type {type(state).__name__}, expected a mapping of names to arrays{fix}")


def _hint(own: Mapping[str, FloatArray], report: IncompatibleKeys) -> str:
    """Say how to make the names fit; "" if the names do not show it."""
    missing, unexpected = report
    if not missing or not unexpected:
        return ""
    for name in unexpected:
        prefix = name.removesuffix(missing[0])
        if prefix != name and {prefix + key for key in missing} <= {*unexpected}:
            made = f"{{name.removeprefix({prefix!r}): x for name, x in state.items()}}"
            return f"\nRemove the prefix {prefix!r} from the names: pass {made}."
        prefix = missing[0].removesuffix(name)
        if prefix != missing[0] and {key.removeprefix(prefix) for key in missing} <= {*unexpected}:
            return (
                f"\nAdd the prefix {prefix!r} to the names: pass {{{prefix!r} + name: x for name, x in state.items()}}."
            )
    if "in_proj_weight" in missing:
        return (
            "\nThe unexpected names are of another module; the missing ones are those of torch.nn.MultiheadAttention. "
            "Pass a dict with these: in_proj_weight is numpy.concatenate([w_query, w_key, w_value]), each of shape "
            "(out, in) as torch.nn.Linear's weight, and in_proj_bias the same of the biases."
        )
    return ""


def _real_values(value: npt.ArrayLike, key: str) -> npt.NDArray[Any]:
    array = _core.as_array(value, key)
    if array.dtype.kind not in "biuf" and not is_half(array.dtype):
        raise TypeError(f"{key} has dtype {array.dtype}, expected real numbers")
    return array


def _separate(value: FloatArray, own: dict[str, FloatArray]) -> FloatArray:
    """Copy a value that shares the module's memory, which may be overwritten before it is read."""
    return value.copy() if any(np.may_share_memory(value, array) for array in own.values()) else value

"""Tensors of a published model as arrays: which there are, which are missing, and of what dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_float_dtype
from pyattn._util.typing import FloatArray
from pyattn.io.json import shown
from pyattn.io.safetensors import Stored
from pyattn.models._files import ModelFiles

__all__ = ["Shapes", "Weights", "as_array", "fit", "without_prefix"]

Shapes = dict[str, tuple[int, ...]]

MOST_LISTED = 20
NUMPY = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BOOL": "?", "C64": "<c8"}
NUMPY |= {f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "IU" for bits in (8, 16, 32, 64)}
FLOATS = ("F32", "F64", "F16", "BF16")


class Weights(NamedTuple):
    """What a model is made of.

    Attributes
    ----------
    arrays : dict of str to ndarray
        By the names that the model's family has for them, all of one dtype.
    missing : list of str
        Those of the optional names that the files do not have.
    unused : list of str
        Names in the files that the model has no use for.
    """

    arrays: dict[str, FloatArray]
    missing: list[str]
    unused: list[str]


def fit(
    files: ModelFiles,
    shapes: Shapes,
    rename: Callable[[str], str],
    *,
    optional: Iterable[str] = (),
    strict: bool = True,
    dtype: npt.DTypeLike | None = None,
) -> Weights:
    """Take what a model needs.

    Parameters
    ----------
    files : ModelFiles
        Of the model.
    shapes : dict of str to tuple of int
        Names and shapes of all that the model's configuration asks for.
    rename : callable
        Makes the name in `shapes` of one in the files; older files have other names.
    optional : iterable of str
        Names in `shapes` that the model can do without, all or none. Default: none.
    strict : bool
        Do not do without them; the default.
    dtype : dtype, optional
        float32 or float64. Default: None, that of the files; float32 for halves, float64 where some are.

    Returns
    -------
    Weights
        Read-only views of the files, where these have numbers of the wanted dtype at aligned places; else copies.

    Raises
    ------
    ValueError
        Tensors are missing or have another shape or no floats, all of which the message lists.
    TypeError
        dtype is something else.
    """
    wanted = None if dtype is None else as_float_dtype(dtype)
    names, optional = _names(files, shapes, rename), list(optional)
    absent = [name for name in optional if name not in names]
    missing = absent if absent == optional and not strict else []
    if problems := _problems(files, shapes, names, missing):
        without = "; strict=False does without" if absent == optional and len(absent) == len(problems) else ""
        lines = problems[:MOST_LISTED]
        lines += [f"and {len(problems) - MOST_LISTED} more"] if len(problems) > MOST_LISTED else []
        raise ValueError("\n- ".join([f"{files.source} does not fit {files.config.source}{without}:", *lines]))

    tensors, used = {name: files.tensors[key] for name, key in names.items()}, set(names.values())
    if wanted is None:
        wanted = np.dtype(np.float64 if any(tensor.dtype == "F64" for tensor in tensors.values()) else np.float32)
    arrays = {name: as_array(tensor, wanted) for name, tensor in tensors.items()}
    return Weights(arrays, missing, [key for key in files.tensors if key not in used])


def _problems(files: ModelFiles, shapes: Shapes, names: dict[str, str], missing: list[str]) -> list[str]:
    """Tell what of `shapes` is not there, and what is there and is something else."""
    problems = [f"{name} is missing" for name in shapes if name not in names and name not in missing]
    for name, key in names.items():
        tensor = files.tensors[key]
        if tensor.shape != shapes[name]:
            problems.append(f"{key} has shape {tensor.shape}, expected {shapes[name]}")
        elif tensor.dtype not in FLOATS:
            problems.append(f"{key} has dtype {tensor.dtype}, expected one of {', '.join(FLOATS)}")
    return problems


def _names(files: ModelFiles, shapes: Shapes, rename: Callable[[str], str]) -> dict[str, str]:
    """Names in `shapes` that the files have: as they call it."""
    names: dict[str, str] = {}
    for key in files.tensors:
        name = rename(key)
        if name in names:
            raise ValueError(f"{files.source} has both {shown(names[name])} and {shown(key)}, expected one of them")
        if name in shapes:
            names[name] = key
    return names


def as_array(tensor: Stored, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """View a tensor's bytes as numbers.

    Parameters
    ----------
    tensor : Stored
        Of a file.
    dtype : dtype, optional
        What to convert to. Default: None, the nearest one of NumPy: float32 for bfloat16, which NumPy does not have.

    Returns
    -------
    ndarray
        A view of the file where nothing has to be converted and it is aligned there.

    Raises
    ------
    ValueError
        NumPy has nothing near: the numbers have 8 bits or less.
    """
    if tensor.dtype == "BF16":  # the upper half of a float32
        halves = tensor.raw.view("<u2").astype(np.uint32)
        array: npt.NDArray[Any] = np.left_shift(halves, 16, out=halves).view(np.float32)
    elif tensor.dtype in NUMPY:
        array = tensor.raw.view(NUMPY[tensor.dtype])
    else:
        raise ValueError(f"a tensor has dtype {tensor.dtype}, expected one of {', '.join([*NUMPY, 'BF16'])}")
    if not array.flags.aligned:
        array = array.copy()
    return array.astype(dtype or array.dtype, copy=False).reshape(tensor.shape)


def without_prefix(prefix: str) -> Callable[[str], str]:
    """Make a function that finds the usual name of a tensor.

    Parameters
    ----------
    prefix : str
        What names begin with where a model is part of another one.

    Returns
    -------
    callable
        From names in files. Those of TensorFlow's for a normalisation, gamma and beta, become weight and bias.
    """

    def rename(key: str) -> str:
        name = key.removeprefix(prefix)
        stem, _, last = name.rpartition(".")
        return f"{stem}.{_OLDER[last]}" if last in _OLDER else name

    return rename


_OLDER = {"gamma": "weight", "beta": "bias"}

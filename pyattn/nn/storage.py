"""Parameters in files: `.npz` and `.safetensors`. Neither kind can hold code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pyattn import _core
from pyattn.nn.module import Module

__all__ = ["load", "save"]

State: TypeAlias = dict[str, npt.NDArray[Any]]


def save(obj: Module | Mapping[str, npt.ArrayLike], path: str | os.PathLike[str]) -> None:
    """Write a module's parameters, or other named arrays, to a file.

    Parameters
    ----------
    obj : Module or mapping of str to array_like
        A module is written as its `state_dict`.
    path : str or path
        Ends in ``.npz``, or in ``.safetensors``, which needs the package safetensors. A file that is there is replaced.

    Raises
    ------
    ValueError
        path has another ending.
    TypeError
        obj is no module or mapping, or what it holds is no array of numbers.
    ImportError
        The package safetensors is missing.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from pyattn import nn
    >>> linear, other = nn.Linear(2, 3), nn.Linear(2, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nn.save(linear, pathlib.Path(folder, "linear.npz"))
    ...     other.load_state_dict(nn.load(pathlib.Path(folder, "linear.npz")))
    IncompatibleKeys(missing_keys=[], unexpected_keys=[])
    """
    write = {".npz": _write_npz, ".safetensors": _write_safetensors}[_ending(path)]
    state = obj.state_dict() if isinstance(obj, Module) else obj
    if not isinstance(state, Mapping):
        raise TypeError(f"obj is of type {type(obj).__name__}, expected a Module or a mapping of names to arrays")
    write({key: _array(value, key) for key, value in state.items()}, os.fspath(path))


def load(path: str | os.PathLike[str]) -> State:
    """Read named arrays from a file, for `Module.load_state_dict`.

    Parameters
    ----------
    path : str or path
        Ends in ``.npz``, or in ``.safetensors``, which needs the package safetensors.

    Returns
    -------
    dict of str to ndarray
        In the file's order.

    Raises
    ------
    ValueError
        path has another ending, or the file holds objects that are no arrays of numbers.
    OSError
        The file cannot be read.
    ImportError
        The package safetensors is missing.
    """
    read: Callable[[str], State] = {".npz": _read_npz, ".safetensors": _read_safetensors}[_ending(path)]
    return read(os.fspath(path))


def _ending(path: str | os.PathLike[str]) -> str:
    ending = os.path.splitext(os.fspath(path))[1]
    if ending not in (".npz", ".safetensors"):
        raise ValueError(f"path ends in {ending!r}, expected '.npz' or '.safetensors'")
    return ending


def _array(value: npt.ArrayLike, key: str) -> npt.NDArray[Any]:
    array = _core.as_array(value, key)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{key} has dtype {array.dtype}, expected numbers")
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _write_npz(state: State, path: str) -> None:
    """As numpy.savez, which has no place for a key such as 'file'."""
    import zipfile  # takes longer than all of this package

    with zipfile.ZipFile(path, "w") as archive:
        for key, array in state.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _read_npz(path: str) -> State:
    # NumPy leaves a file that it opened itself open when it is no archive
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
        return dict(archive)


def _write_safetensors(state: State, path: str) -> None:
    _safetensors().save_file(state, path)


def _read_safetensors(path: str) -> State:
    return dict(_safetensors().load_file(path))


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as missing:
        raise ImportError(
            f"files that end in .safetensors need the package safetensors ({missing}); pip install pyattn[safetensors]"
        ) from missing
    return safetensors.numpy

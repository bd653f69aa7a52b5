"""Parameters in files: `.npz` and `.safetensors`. Neither kind can hold code."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

import pyattn._core as _core

__all__ = ["load", "save"]

State: TypeAlias = dict[str, npt.NDArray[Any]]


@runtime_checkable
class HasState(Protocol):
    """A module, by the one method that saving needs."""

    def state_dict(self) -> Mapping[str, npt.ArrayLike]:
        """Return the parameters by name."""


def save(obj: HasState | Mapping[str, npt.ArrayLike], path: str | os.PathLike[str]) -> None:
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
        path has another ending, or a key the character NUL.
    TypeError
        obj is no module or mapping of str, or what it holds is no array of numbers, or of a dtype that such a file
        cannot hold.
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
    state = obj.state_dict() if isinstance(obj, HasState) else obj
    if not isinstance(state, Mapping):
        raise TypeError(f"obj is of type {type(obj).__name__}, expected a Module or a mapping of names to arrays")
    for key in state:
        _check_key(key)
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
        path has another ending, or the file is damaged, of another kind, or holds what is no array of NumPy's numbers,
        such as bfloat16. A .safetensors file has no checksum: damage to the numbers themselves is not seen.
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


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"obj has the key {key!r} of type {type(key).__name__}, expected names of type str")
    if "\0" in key:  # a .npz file would lose it, and what follows
        raise ValueError(f"obj has the key {key!r}, expected names without NUL")


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
    """As numpy.load, whose words for a damaged file offer to load it unsafely."""
    import zipfile

    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                if any(info.comment for info in entries):  # nobody writes one: entries that are read as one are lost
                    raise ValueError("an entry has a comment")
                return {info.filename.removesuffix(".npy"): _read_entry(archive, info) for info in entries}
        except MemoryError:
            raise
        except Exception as error:  # what a damaged file makes of Python's parsers and unpackers is of any kind
            raise _damaged(path, ".npz", error) from error


def _read_entry(archive: Any, info: Any) -> npt.NDArray[Any]:
    """Read one array, after a look at its header: what it says of the size decides how much memory is taken."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds objects that are no numbers, and these may run code")
        given, expected = info.file_size - file.tell(), math.prod(shape) * dtype.itemsize
        if given != expected:
            raise ValueError(
                f"{info.filename} holds {given} bytes of data, expected {expected}: shape {shape}, {dtype}"
            )
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _damaged(path: str, ending: str, error: Exception) -> ValueError:
    return ValueError(f"{path} is damaged, or no {ending} file: {error}")


# What .safetensors calls the dtypes that NumPy has as well.
_DTYPES = {"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64"}
_DTYPES |= {f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}


def _write_safetensors(state: State, path: str) -> None:
    package = _safetensors()
    for key, array in state.items():
        if array.dtype.name not in _DTYPES.values():
            fix = f"{key}.astype(numpy.{'complex64' if array.dtype.kind == 'c' else 'float64'})"
            raise TypeError(
                f"{key} has dtype {array.dtype}, which .safetensors cannot hold; pass {fix}, or save a .npz"
            )
    package.save_file(state, path)


def _read_safetensors(path: str) -> State:
    package = _safetensors()
    try:
        with package.safe_open(path, framework="np") as file:
            kinds = {key: file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118 (it is no mapping)
            others = [key for key, kind in kinds.items() if kind not in _DTYPES]
            if not others:
                return {key: file.get_tensor(key) for key in kinds}
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise _damaged(path, ".safetensors", error) from error
    raise ValueError(
        f"{path} holds {others[0]} as {kinds[others[0]]}, and NumPy has no such dtype; "
        "write the file anew from float32, as from module.float() in torch"
    )


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError as missing:
        raise ImportError(
            f"files that end in .safetensors need the package safetensors ({missing}); pip install pyattn[safetensors]"
        ) from missing
    return safetensors.numpy

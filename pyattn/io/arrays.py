"""Save and load named arrays: `.npz` and `.safetensors` files, which cannot contain code."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import bfloat16, is_half
from pyattn.io.safetensors import DTYPES, METADATA, NAMES, open_tensors, write_tensors

__all__ = ["load", "save"]

State: TypeAlias = dict[str, npt.NDArray[Any]]


@runtime_checkable
class HasState(Protocol):
    """An object with a state_dict, such as a module."""

    def state_dict(self) -> Mapping[str, npt.ArrayLike]:
        """Return the parameters by name."""


def save(obj: HasState | Mapping[str, npt.ArrayLike], path: str | os.PathLike[str]) -> None:
    """Write a module's parameters, or other named arrays, to a file.

    The file is replaced only once the new one is complete. If writing fails, the old file stays. Models that were
    loaded from the old file keep their weights.

    Parameters
    ----------
    obj : Module or mapping of str to array_like
        The `state_dict` of a module, or the arrays themselves.
    path : str or path
        Path that ends in ``.npz`` or ``.safetensors``. An existing file is replaced.

    Raises
    ------
    ValueError
        path has another ending, or a key has the character NUL or is reserved by the format.
    TypeError
        obj is neither a module nor a mapping of str, or one of its values is not an array of numbers, or has a dtype
        that the format lacks.
    OSError
        The file cannot be written.

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
    ending = ending_of(path)
    state = obj.state_dict() if isinstance(obj, HasState) else obj
    if not isinstance(state, Mapping):
        raise TypeError(f"obj is of type {type(obj).__name__}, expected a Module or a mapping of names to arrays")
    for key in state:
        _check_key(key, ending)
    arrays = {key: _as_numbers(value, key) for key, value in state.items()}
    _check_dtypes(arrays, ending)
    with _replacing(path) as file:
        write_tensors(arrays, file) if ending == ".safetensors" else _write_npz(arrays, file)


def load(path: str | os.PathLike[str]) -> State:
    """Read named arrays from a file, for `Module.load_state_dict`.

    Parameters
    ----------
    path : str or path
        Path that ends in ``.npz`` or ``.safetensors``.

    Returns
    -------
    dict of str to ndarray
        In the file's order.

    Raises
    ------
    ValueError
        path has another ending; the file is damaged, of another kind, or holds a dtype that NumPy lacks, such as
        float8. A .safetensors file has no checksum: damage to the numbers themselves is not detected.
    ImportError
        The file holds bfloat16, and ml_dtypes is not installed.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np, pyattn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "arrays.safetensors")
    ...     pyattn.io.save({"bias": np.zeros(2)}, path)
    ...     pyattn.io.load(path)
    {'bias': array([0., 0.])}
    """
    return _read_npz(os.fspath(path)) if ending_of(path) == ".npz" else _read_safetensors(os.fspath(path))


def ending_of(path: str | os.PathLike[str]) -> str:
    """Return the ending of a file's name; refuse others than .npz and .safetensors."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is of type {type(path).__name__}, expected a str or a path")
    ending = os.path.splitext(os.fspath(path))[1]
    if ending not in (".npz", ".safetensors"):
        raise ValueError(f"path ends in {ending!r}, expected '.npz' or '.safetensors'")
    return ending


def _check_key(key: object, ending: str) -> None:
    if not isinstance(key, str):
        raise TypeError(f"obj has the key {key!r} of type {type(key).__name__}, expected names of type str")
    if "\0" in key:  # a .npz file would cut off the name there
        raise ValueError(f"obj has the key {key!r}, expected names without NUL")
    if key == METADATA and ending == ".safetensors":
        raise ValueError(f"obj has the key {key!r}, which .safetensors reserves; rename it, or save a .npz")


def _as_numbers(value: npt.ArrayLike, key: str) -> npt.NDArray[Any]:
    array = _core.as_array(value, key)
    if array.dtype.kind not in "biufc" and not is_half(array.dtype):
        raise TypeError(f"{key} has dtype {array.dtype}, expected numbers")
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _check_dtypes(arrays: State, ending: str) -> None:
    for key, array in arrays.items():
        if ending == ".npz" and array.dtype.name == "bfloat16":
            raise TypeError(f"{key} has dtype bfloat16, which .npz lacks; save a .safetensors")
        if ending == ".safetensors" and array.dtype.name not in NAMES:
            fix = f"{key}.astype(numpy.{'complex64' if array.dtype.kind == 'c' else 'float64'})"
            raise TypeError(f"{key} has dtype {array.dtype}, which .safetensors lacks; pass {fix}, or save a .npz")


@contextlib.contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a new file that replaces path once it is complete; memory maps of the old file stay valid."""
    target = os.path.realpath(path)
    part = f"{target}.{os.urandom(4).hex()}.part"
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def _write_npz(arrays: State, file: BinaryIO) -> None:
    """Write like numpy.savez, which does not accept keys such as 'file'."""
    import zipfile  # slow to import

    with zipfile.ZipFile(file, "w") as archive:
        for key, array in arrays.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _read_npz(path: str) -> State:
    """Read like numpy.load, whose error for a damaged file suggests allow_pickle=True, which is unsafe."""
    import zipfile

    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                # No writer makes comments, but in a damaged file entries may be read as one.
                if any(info.comment for info in entries):
                    raise ValueError("an entry has a comment")
                arrays = {info.filename.removesuffix(".npy"): _read_entry(archive, info) for info in entries}
        except MemoryError:
            raise
        except Exception as error:  # damaged data may raise any exception
            raise ValueError(f"{path} is damaged or not a .npz file: {error}") from error
    for key, array in arrays.items():
        if array.dtype == "V2":  # what NumPy writes of a bfloat16 array
            raise ValueError(
                f"{path} holds {key} as {array.dtype}, probably bfloat16, which .npz lacks: save a .safetensors, or "
                "use numpy.load and .view(ml_dtypes.bfloat16)"
            )
    return arrays


def _read_entry(archive: Any, info: Any) -> npt.NDArray[Any]:
    """Read one array after checking its header, which determines how much memory is allocated."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds Python objects, which may run code, expected numbers")
        given, expected = info.file_size - file.tell(), math.prod(shape) * dtype.itemsize
        if given != expected:
            raise ValueError(
                f"{info.filename} holds {given} bytes of data, expected {expected}: shape {shape}, {dtype}"
            )
    with archive.open(info) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _read_safetensors(path: str) -> State:
    tensors = open_tensors(path)
    for key, tensor in tensors.items():
        if tensor.dtype == "BF16":
            bfloat16()
        elif tensor.dtype not in DTYPES:
            raise ValueError(
                f"{path} holds {key} as {tensor.dtype}, a dtype that NumPy lacks: "
                "save it as float32, in torch with module.float()"
            )
    return {key: np.array(tensor.to_array()) for key, tensor in tensors.items()}

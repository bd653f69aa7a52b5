"""The .safetensors format: 8 bytes with the length of the header, the header in JSON, and the tensors' bytes.

Files are memory-mapped and tensors are views. The package safetensors copies each tensor: a model would be in memory
twice while it loads, and processes that load the same model could not share its memory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.halves import bfloat16, has_bfloat16, is_half, store_as
from pyattn._util.messages import short_repr
from pyattn.io.json import parse_object

__all__ = ["DTYPES", "METADATA", "NAMES", "StoredTensor", "open_tensors", "write_tensors"]

MAX_HEADER_BYTES = 100_000_000  # the package's own limit
MAX_AXES = 64  # of a NumPy array
MAX_SIZE = 2**63 - 1  # of an axis or a file
METADATA = "__metadata__"

# NumPy's dtypes by their names in the format, and the bits of all dtypes. Tensors of other dtypes are found, not read.
_CODES = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "C64": "<c8", "BOOL": "?"}
_CODES |= {f"{kind}{bits}": f"<{kind.lower()}{bits // 8}" for kind in "IU" for bits in (8, 16, 32, 64)}
DTYPES = {name: np.dtype(code) for name, code in _CODES.items()}
NAMES = {dtype.name: name for name, dtype in DTYPES.items()}  # by name, as hashing a dtype hides a MemoryError
NAMES["bfloat16"] = "BF16"
BITS = {name: 8 * dtype.itemsize for name, dtype in DTYPES.items()} | {"BF16": 16}
BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
BITS |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


class StoredTensor(NamedTuple):
    """A tensor in a file: its dtype, named as in the format, its shape, and a read-only view of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]

    def to_array(self, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
        """View the bytes as numbers; another dtype or unaligned bytes need a copy, and BF16 without ml_dtypes."""
        array: npt.NDArray[Any]
        if self.dtype == "BF16" and (dtype is None or is_half(dtype)) and has_bfloat16():
            array = self.raw.view(bfloat16().newbyteorder("<")).reshape(self.shape)
        elif self.dtype == "BF16":  # the upper half of a float32
            array = np.empty(self.shape, np.float32)
            upper = self.raw.view("<u2").reshape(self.shape)
            np.left_shift(upper, 16, out=array.view(np.uint32), dtype=np.uint32)
        elif self.dtype in DTYPES:
            array = self.raw.view(DTYPES[self.dtype]).reshape(self.shape)
        else:
            raise ValueError(f"a tensor has dtype {self.dtype}, expected one of {', '.join([*DTYPES, 'BF16'])}")
        if not array.flags.aligned:
            array = array.copy()
        return store_as(array, dtype or array.dtype)


class _Entry(NamedTuple):
    """A tensor's entry in the header; start and stop are offsets from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def open_tensors(path: str | os.PathLike[str]) -> dict[str, StoredTensor]:
    """Map a file and return its tensors, in the header's order; it must not change while they are in use."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            entries, data = _read_header(file, size)
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise ValueError(f"{name} is damaged or not a .safetensors file: {error}") from error
    whole = np.frombuffer(mapping, np.uint8)
    return {
        key: StoredTensor(entry.dtype, entry.shape, whole[data + entry.start : data + entry.stop])
        for key, entry in entries.items()
    }


def write_tensors(arrays: Mapping[str, npt.NDArray[Any]], file: BinaryIO) -> None:
    """Write contiguous arrays of dtypes in `NAMES`; larger item sizes come first, so that all are aligned."""
    order = sorted(arrays, key=lambda key: arrays[key].itemsize, reverse=True)
    header, end = {}, 0
    for key in order:
        dtype, stop = NAMES[arrays[key].dtype.name], end + arrays[key].nbytes
        header[key] = {"dtype": dtype, "shape": arrays[key].shape, "data_offsets": (end, stop)}
        end = stop
    text = json.dumps({key: header[key] for key in arrays}).encode()
    text += b" " * (-len(text) % 8)
    file.write(struct.pack("<Q", len(text)) + text)
    for key in order:
        numbers = arrays[key].astype(arrays[key].dtype.newbyteorder("<"), copy=False)
        file.write(numbers.reshape(-1).view(np.uint8).data)  # bfloat16 itself has no buffer


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, _Entry], int]:
    """Read and check the header; return its entries and its end."""
    start = file.read(8)
    if len(start) < 8:
        raise ValueError(f"it has {len(start)} bytes; the header's length alone takes 8")
    (length,) = struct.unpack("<Q", start)
    if length > min(size - 8, MAX_HEADER_BYTES):
        raise ValueError(f"the header's length is {length}, expected at most {min(size - 8, MAX_HEADER_BYTES)}")
    text = file.read(length)
    if not text.startswith(b"{"):
        raise ValueError(f"the header begins with {text[:8]!r}, expected '{{'")
    header = parse_object(text, "its header")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{METADATA} in its header must be an object of strings")
    entries = {key: _read_entry(key, value) for key, value in header.items()}
    _check_places(entries, size - 8 - length)
    return entries, 8 + length


def _read_entry(key: str, value: Any) -> _Entry:
    """Read one tensor's entry, and check that dtype, shape and offsets match."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{short_repr(key)} in its header must be an object of dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{short_repr(key)} has dtype {short_repr(dtype)}, expected one of {', '.join(BITS)}")
    if not _are_sizes(shape) or len(shape) > MAX_AXES:
        raise ValueError(f"{short_repr(key)} has shape {short_repr(shape)}, expected a list of up to {MAX_AXES} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{short_repr(key)} has data_offsets {short_repr(offsets)}, expected [start, stop]")
    bits, (start, stop) = math.prod(shape) * BITS[dtype], offsets
    if bits != 8 * (stop - start):
        about = f"{short_repr(-(-bits // 8))} bytes: shape {short_repr(shape)} of {dtype}"
        raise ValueError(f"{short_repr(key)} has data_offsets [{start}, {stop}], expected {about}")
    return _Entry(dtype, tuple(shape), start, stop)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size <= MAX_SIZE for size in value)


def _check_places(entries: dict[str, _Entry], size: int) -> None:
    """Raise ValueError for overlaps, gaps, or data that does not end with the file."""
    end = 0
    for key, entry in sorted(entries.items(), key=lambda pair: pair[1][2:]):
        if entry.start != end:
            problem = "overlaps the tensor before it" if entry.start < end else "begins after a gap"
            raise ValueError(f"{short_repr(key)} {problem}: it starts at {entry.start}, expected {end}")
        end = entry.stop
    if end != size:
        raise ValueError(f"its header declares {end} data bytes; the file has {size}")

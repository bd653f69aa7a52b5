"""A reader of `.safetensors` files: their tensors where they lie in the file, without a copy.

The package safetensors has a reader for NumPy that copies every tensor, so that a model would be held twice while it
loads, and by every process that has loaded it. The format is simple: 8 bytes with the length of a header, the header,
which is JSON, and the tensors' numbers, one after another.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn.io.json import check_is_file, parse_object, shown

__all__ = ["Stored", "open_tensors"]

MOST_HEADER_BYTES = 100_000_000  # the package's own limit
MOST_AXES = 64  # of an array of NumPy

# Bits of a number. The first ones are NumPy's; the others are known, so that what lies behind them is found.
BITS = {"F32": 32, "F64": 64, "F16": 16, "BF16": 16, "BOOL": 8, "C64": 64}
BITS |= {f"{kind}{bits}": bits for kind in "IU" for bits in (8, 16, 32, 64)}
BITS |= {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
BITS |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


class Stored(NamedTuple):
    """A tensor in a file.

    Attributes
    ----------
    dtype : str
        As the format calls it.
    shape : tuple of int
        Of the tensor.
    raw : ndarray of uint8
        Its bytes: a read-only view of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    raw: npt.NDArray[np.uint8]


class _Entry(NamedTuple):
    """What the header says of a tensor; start and stop count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def open_tensors(path: str | os.PathLike[str]) -> dict[str, Stored]:
    """Find the tensors of a file. Nothing but its header is read.

    Parameters
    ----------
    path : str or path
        The file. It must not change as long as its tensors are in use.

    Returns
    -------
    dict of str to Stored
        In the header's order.

    Raises
    ------
    ValueError
        The file is truncated or damaged, or no such file: the message says where.
    OSError
        It cannot be opened.
    """
    name = os.fspath(path)
    check_is_file(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        try:
            entries, data = _read_header(file, size)
            whole = _map(file, size)
        except ValueError as error:
            raise ValueError(f"{name} is damaged, or no .safetensors file: {error}") from error
    return {
        key: Stored(entry.dtype, entry.shape, whole[data + entry.start : data + entry.stop])
        for key, entry in entries.items()
    }


def _map(file: BinaryIO, size: int) -> npt.NDArray[np.uint8]:
    """View a file's bytes; the view keeps the mapping alive."""
    return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)


def _read_header(file: BinaryIO, size: int) -> tuple[dict[str, _Entry], int]:
    """Return what it says, and where it ends; what it says of sizes holds for this file."""
    start = file.read(8)
    if len(start) < 8:
        raise ValueError(f"it has {len(start)} bytes, and the length of the header takes 8")
    (length,) = struct.unpack("<Q", start)
    if length > min(size - 8, MOST_HEADER_BYTES):
        raise ValueError(f"the header's length is {length}, expected {min(size - 8, MOST_HEADER_BYTES)} at most")
    text = file.read(length)
    if not text.startswith(b"{"):
        raise ValueError(f"the header begins with {text[:8]!r}, expected '{{'")
    header = parse_object(text, "its header")
    _check_metadata(header.pop("__metadata__", {}))
    entries = {key: _entry(key, value) for key, value in header.items()}
    _check_places(entries, size - 8 - length)
    return entries, 8 + length


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("__metadata__ in its header is something else than an object of strings")


def _entry(key: str, value: Any) -> _Entry:
    """Check a tensor's entry by itself."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{shown(key)} in its header is no object of dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"{shown(key)} has dtype {shown(dtype)}, expected one of {', '.join(BITS)}")
    if not _are_sizes(shape) or len(shape) > MOST_AXES:
        raise ValueError(f"{shown(key)} has shape {shown(shape)}, expected a list of {MOST_AXES} sizes at most")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{shown(key)} has data_offsets {shown(offsets)}, expected [start, stop]")
    bits, (start, stop) = math.prod(shape) * BITS[dtype], offsets
    if bits != 8 * (stop - start):
        about = f"shape {shown(shape)} of {dtype}"
        raise ValueError(f"{shown(key)} has data_offsets [{start}, {stop}], expected {bits / 8:g} bytes: {about}")
    return _Entry(dtype, tuple(shape), start, stop)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _check_places(entries: dict[str, _Entry], size: int) -> None:
    """Refuse overlaps, holes, and an end elsewhere than the file's."""
    end = 0
    for key, entry in sorted(entries.items(), key=lambda pair: pair[1][2:]):
        if entry.start != end:
            what = "overlaps what lies before it" if entry.start < end else "begins behind a hole"
            raise ValueError(f"{shown(key)} {what}: it is at {entry.start} to {entry.stop}, expected {end} first")
        end = entry.stop
    if end != size:
        raise ValueError(f"its header speaks of {end} bytes of numbers, and {size} are there")

"""float16 and bfloat16: dtypes in which numbers are stored, not computed. NumPy has bfloat16 from ml_dtypes."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import FLOATS
from pyattn._util.messages import short_repr

__all__ = [
    "are_mixable",
    "as_dtype",
    "as_float32",
    "as_stored_dtype",
    "bfloat16",
    "check_same_half",
    "compute_dtype",
    "expression_of",
    "has_bfloat16",
    "is_half",
    "is_stored_dtype",
    "of_tensor",
    "round_to",
    "rounded",
    "store_as",
]


def as_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Read a dtype; bfloat16 may be a name, and torch's dtypes count as NumPy's."""
    name = str(dtype).removeprefix("torch.")
    if name == "bfloat16":
        return bfloat16()
    return np.dtype(name if type(dtype).__module__ == "torch" else dtype)


def as_stored_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Read a half, float32 or float64 as a dtype."""
    with contextlib.suppress(TypeError):
        found = as_dtype(dtype).newbyteorder("=")
        if dtype is not None and is_stored_dtype(found):
            return found
    raise TypeError(f"dtype is {short_repr(dtype)}, expected float16, bfloat16, float32 or float64")


def is_stored_dtype(dtype: np.dtype[Any]) -> bool:
    """Tell whether numbers are stored in a native dtype: a half, float32 or float64."""
    return dtype in FLOATS or (dtype.isnative and is_half(dtype))


def is_half(dtype: np.dtype[Any]) -> bool:
    """Tell float16 and bfloat16, of either byte order."""
    return dtype.char == "e" or (dtype.itemsize == 2 and dtype.type.__name__ == "bfloat16")


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which numbers of a dtype are computed."""
    if is_half(dtype):
        return FLOATS[0]
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def as_float32(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return float32 numbers of a half; other arrays as they are."""
    return round_to(x, FLOATS[0]) if is_half(x.dtype) else x


def round_to(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert an array that has another dtype; overflow is infinity, as in torch, whatever the caller's errstate."""
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def store_as(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert numbers to a parameter's dtype: NumPy tells of what overflows float32, and a half has infinity then."""
    return round_to(array, dtype) if is_half(dtype) else array.astype(dtype, copy=False)


def rounded(result: Any, dtype: np.dtype[Any]) -> Any:
    """Round a result of float32, or all in a tuple, list or dict, to a half; other classes may have `_rounded`."""
    if type(result) in (tuple, list):
        return type(result)(rounded(part, dtype) for part in result)
    if type(result) is dict:
        return {name: rounded(part, dtype) for name, part in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_make"):  # a named one
        return result._make(rounded(part, dtype) for part in result)
    if hasattr(result, "_rounded"):
        return result._rounded(dtype)
    return round_to(result, dtype) if getattr(result, "dtype", None) == np.float32 else result


def bfloat16(instead: str = "") -> np.dtype[Any]:
    """Return the dtype of ml_dtypes; the error, without that, may say what else helps."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise ImportError(f"bfloat16 needs ml_dtypes: pip install ml_dtypes{instead}") from error
    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


def has_bfloat16() -> bool:
    """Tell whether ml_dtypes, which has bfloat16, is installed."""
    return importlib.util.find_spec("ml_dtypes") is not None


def expression_of(dtype: np.dtype[Any]) -> str:
    """Write a dtype as users do, for messages."""
    return f"{'ml_dtypes' if dtype.name == 'bfloat16' else 'numpy'}.{dtype.name}"


def are_mixable(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Tell whether two dtypes are computed in the same one, and are not float16 and bfloat16."""
    if is_half(one) and is_half(other):
        return one.name == other.name
    return compute_dtype(one) == compute_dtype(other)


def check_same_half(arrays: Iterable[tuple[str, npt.NDArray[Any]]]) -> None:
    """Refuse float16 with bfloat16; each array comes with its name."""
    found: dict[str, str] = {}
    for name, array in arrays:
        if is_half(array.dtype):
            found.setdefault(array.dtype.name, name)
    if len(found) > 1:
        (one, first), (other, second) = found.items()
        raise TypeError(f"{first} has dtype {one} and {second} {other}; convert one of them, or both to float32")


def of_tensor(tensor: Any, name: str) -> npt.NDArray[Any]:
    """View a bfloat16 tensor of torch, on the CPU, as an array; a list of arrays, some of them such, becomes one."""
    import torch

    if isinstance(tensor, (list, tuple)):
        items = [of_tensor(item, f"{name}[{n}]") for n, item in enumerate(tensor)]
        check_same_half((f"{name}[{n}]", item) for n, item in enumerate(items))
        same = len({item.dtype for item in items}) == 1
        return np.array(items if same else [as_float32(item) for item in items])  # NumPy promotes the others
    if getattr(tensor, "requires_grad", False):
        raise TypeError(f"{name} requires grad; pass {name}.detach(), or use pyattn.interop.torch, which has gradients")
    if getattr(tensor, "dtype", None) != torch.bfloat16:
        return _core.as_array(tensor, name)
    bits = tensor.resolve_neg().view(torch.int16).numpy()  # a view with torch's negative bit has no bits of its own
    array: npt.NDArray[Any] = bits.view(bfloat16(", or convert the tensor with float()"))
    return array

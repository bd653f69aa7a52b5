"""Prepare sequences of token ids: add start and end symbols, shift right, and pad to one length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_count, as_index
from pyattn._util.halves import as_dtype, as_float32, is_half
from pyattn._util.ids import as_signed_ids
from pyattn._util.typing import IntArray

__all__ = ["add_special_tokens", "pad_sequences", "shift_right"]

Side: TypeAlias = Literal["right", "left"]
_Number = TypeVar("_Number", bound=np.generic)


def add_special_tokens(
    sequences: Iterable[npt.ArrayLike],
    *,
    start_token_id: SupportsIndex | None = None,
    eos_token_id: SupportsIndex | None = None,
) -> list[IntArray]:
    """Add a start symbol before each sequence and an end symbol after it.

    Parameters
    ----------
    sequences : iterable of array_like of int, (length,)
        Token ids without padding.
    start_token_id : int, optional
        The start symbol, ``<s>``. Default: None, not added.
    eos_token_id : int, optional
        The end symbol, ``<end>``. Default: None, not added.

    Returns
    -------
    list of ndarray, (length + 1,) or (length + 2,)
        New arrays. Lists become int64; arrays keep their integer dtype.

    Raises
    ------
    TypeError
        sequences is not an iterable of sequences, its ids are not integers, or a symbol is not an int.
    ValueError
        A sequence is not one-dimensional, or a symbol does not fit the sequence's dtype.

    Examples
    --------
    >>> import pyattn
    >>> words = ["<s>", "<end>", "I", "am", "a", "student"]
    >>> (ids,) = pyattn.generation.add_special_tokens([[2, 3, 4, 5]], start_token_id=0, eos_token_id=1)
    >>> " ".join(words[i] for i in ids)
    '<s> I am a student <end>'
    """
    given = {"start_token_id": start_token_id, "eos_token_id": eos_token_id}
    symbols = {name: None if symbol is None else as_index(symbol, name) for name, symbol in given.items()}
    result = []
    for n, array in enumerate(_read_arrays(sequences)):
        ids = as_signed_ids(array, f"sequences[{n}]")
        dtype = ids.dtype.newbyteorder("=")
        first, last = (
            np.array([] if symbol is None else [_read_symbol(symbol, name, dtype)], dtype)
            for name, symbol in symbols.items()
        )
        result.append(np.concatenate([first, ids.astype(dtype), last]))
    return result


def shift_right(tokens: npt.ArrayLike, start_token_id: SupportsIndex) -> IntArray:
    """Make a decoder's training input from its target, for teacher forcing.

    The input is the start symbol, then all tokens but the last. At each position the decoder sees the tokens before it,
    and learns to predict the token at it.

    Parameters
    ----------
    tokens : array_like of int, (..., length)
        The target, with its end symbol.
    start_token_id : int
        The start symbol, ``<s>``.

    Returns
    -------
    ndarray, (..., length)
        A new array of the same dtype.

    Raises
    ------
    TypeError
        tokens does not hold integers, or start_token_id is not an int.
    ValueError
        tokens is a scalar, or start_token_id does not fit its dtype.

    Examples
    --------
    >>> import pyattn
    >>> words = ["<s>", "<end>", "I", "am", "a", "student"]
    >>> target = [2, 3, 4, 5, 1]
    >>> for given, wanted in zip(pyattn.generation.shift_right(target, 0), target):
    ...     print(words[given], "->", words[wanted])
    <s> -> I
    I -> am
    am -> a
    a -> student
    student -> <end>
    """
    ids = as_signed_ids(tokens, "tokens")
    if ids.ndim == 0:
        raise ValueError("tokens is a scalar, expected (..., length)")
    shifted = np.empty(ids.shape, ids.dtype.newbyteorder("="))
    shifted[..., :1] = _read_symbol(start_token_id, "start_token_id", shifted.dtype)
    shifted[..., 1:] = ids[..., :-1]
    return shifted


@overload
def pad_sequences(
    sequences: Iterable[npt.ArrayLike],
    *,
    length: SupportsIndex | None = None,
    padding_value: float = 0,
    truncate: Side | None = None,
    side: Side = "right",
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...


@overload
def pad_sequences(
    sequences: Iterable[npt.ArrayLike],
    *,
    length: SupportsIndex | None = None,
    padding_value: float = 0,
    truncate: Side | None = None,
    side: Side = "right",
    dtype: type[_Number] | np.dtype[_Number],
) -> tuple[npt.NDArray[_Number], npt.NDArray[np.int64]]: ...


@overload
def pad_sequences(
    sequences: Iterable[npt.ArrayLike],
    *,
    length: SupportsIndex | None = None,
    padding_value: float = 0,
    truncate: Side | None = None,
    side: Side = "right",
    dtype: npt.DTypeLike,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]: ...


def pad_sequences(
    sequences: Iterable[npt.ArrayLike],
    *,
    length: SupportsIndex | None = None,
    padding_value: float = 0,
    truncate: Side | None = None,
    side: Side = "right",
    dtype: npt.DTypeLike = np.int64,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Pad sequences of different lengths into one array.

    Parameters
    ----------
    sequences : iterable of array_like, (length,)
        Token ids, or other numbers that `dtype` can hold.
    length : int, optional
        Length of each row. Default: that of the longest sequence.
    padding_value : number
        Fills the rest of each row. Default: 0.
    truncate : {'right', 'left'}, optional
        The end from which longer sequences are cut. Default: None, they raise ValueError.
    side : {'right', 'left'}
        The side that is padded. Most models count positions from the first element of a row, padding included, and so
        need padding on the right. `pyattn.generate` takes both, given padding_idx. Default: 'right'.
    dtype : dtype
        dtype of the array. Default: int64.

    Returns
    -------
    array : ndarray, (batch, length)
        The padded sequences.
    lengths : ndarray of int64, (batch,)
        Number of elements in each row that are not padding. With padding on the right, pass them as ``key_lengths=``
        or to `pyattn.masks.padding`; on the left, the mask is ``numpy.arange(length) >= length - lengths[:, None]``.

    Raises
    ------
    TypeError
        sequences is not an iterable of sequences, or dtype cannot hold their kind of number.
    ValueError
        A sequence is not one-dimensional, is too long, or holds a number that dtype cannot hold; or truncate or side
        is not one of its choices.

    Examples
    --------
    >>> import pyattn
    >>> ids = pyattn.generation.add_special_tokens([[2, 3, 4, 5], [2, 3]], eos_token_id=1)
    >>> array, lengths = pyattn.generation.pad_sequences(ids)
    >>> array
    array([[2, 3, 4, 5, 1],
           [2, 3, 1, 0, 0]])
    >>> lengths
    array([5, 3])
    >>> pyattn.generation.pad_sequences(ids, length=4, truncate="left", side="left")[0]
    array([[3, 4, 5, 1],
           [0, 2, 3, 1]])
    """
    as_choice(truncate, "truncate", ("right", "left", None))
    as_choice(side, "side", ("right", "left"))
    numbers = as_dtype(dtype)
    if dtype is None or not (numbers.kind in "biuf" or is_half(numbers)):
        given = None if dtype is None else numbers
        raise TypeError(f"dtype is {given}, expected a dtype of numbers, such as numpy.int64")
    arrays = _read_arrays(sequences)
    size = max(map(len, arrays), default=0) if length is None else as_count(length, "length", least=0)
    padded = np.full((len(arrays), size), _read_padding_value(padding_value, numbers))
    lengths = np.array([min(len(array), size) for array in arrays], np.int64)
    for n, (array, count) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) > size and truncate is None:
            raise ValueError(
                f"sequences[{n}] has length {len(array)}, longer than length={size}; pass truncate='right' to cut off "
                "its end, or truncate='left' to cut off its beginning"
            )
        part = array[len(array) - count :] if truncate == "left" else array[:count]
        place = slice(size - count, size) if side == "left" else slice(0, count)
        padded[n, place] = _cast(part, f"sequences[{n}]", numbers)
    return padded, lengths


def _read_arrays(sequences: Iterable[npt.ArrayLike]) -> list[npt.NDArray[Any]]:
    """Read each sequence as an array of one axis."""
    if isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):
        raise TypeError(f"sequences is of type {type(sequences).__name__}, expected a list of sequences of ids")
    arrays = [_core.as_array(one, f"sequences[{n}]") for n, one in enumerate(sequences)]
    for n, array in enumerate(arrays):
        if array.ndim != 1:
            fix = "; for one sequence, pass [sequence]" if array.ndim == 0 else ""
            raise ValueError(f"sequences[{n}] has shape {array.shape}, expected (length,){fix}")
    return arrays


def _read_symbol(x: SupportsIndex, name: str, dtype: np.dtype[Any]) -> int:
    """Read the id of a symbol; it must fit into dtype."""
    symbol, limits = as_index(x, name), np.iinfo(dtype)
    if not limits.min <= symbol <= limits.max:
        raise ValueError(f"{name} is {symbol}, which {dtype} cannot hold")
    return symbol


def _read_padding_value(x: npt.ArrayLike, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Read the padding value as an array without axes."""
    array = _core.as_array(x, "padding_value")
    if array.ndim != 0:
        raise ValueError(f"padding_value has shape {array.shape}, expected one number")
    return _cast(array, "padding_value", dtype)


def _cast(array: npt.NDArray[Any], name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Cast an array: integers and bools must stay exact; floats may be rounded, but must not overflow."""
    array, floats = as_float32(array), dtype.kind == "f" or is_half(dtype)
    if array.size > 0 and array.dtype.kind not in ("biuf" if floats else "biu"):
        expected = "numbers" if floats else "integers"
        raise TypeError(f"{name} has dtype {array.dtype}, expected {expected} that {dtype} can hold")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    if array.dtype.kind == "f":
        lost = np.isinf(cast) & np.isfinite(array)
    else:  # compared in both dtypes: in one alone, 2**53 + 1 equals a rounded float, or -1 an unsigned integer
        with np.errstate(invalid="ignore"):
            lost = (as_float32(cast) != array) | (cast.astype(array.dtype) != array)
    if lost.any():
        raise ValueError(f"{name} holds {array[lost][0]}, which {dtype} cannot hold")
    return cast

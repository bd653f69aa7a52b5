"""Sequences of token ids, as models take them: with their first and last symbols, shifted, and padded to one length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_count, as_index

__all__ = ["add_special_tokens", "pad_sequences", "shift_right"]

IntArray = npt.NDArray[np.integer[Any]]
Side = Literal["right", "left"]


def add_special_tokens(
    sequences: Iterable[npt.ArrayLike],
    *,
    start_token_id: SupportsIndex | None = None,
    eos_token_id: SupportsIndex | None = None,
) -> list[IntArray]:
    """Put the start symbol before each sequence and the end symbol behind it.

    Parameters
    ----------
    sequences : iterable of array_like of int, (length,)
        Token ids, before they are padded.
    start_token_id : int, optional
        The start symbol, ``<s>``. Default: None, none is added.
    eos_token_id : int, optional
        The end symbol, ``<end>``. Default: None, none is added.

    Returns
    -------
    list of ndarray, (length + 1 or 2,)
        New arrays: int64, or the integer dtype of an array that was given.

    Raises
    ------
    TypeError
        sequences is no iterable of sequences, ids are no integers, or a symbol is no int.
    ValueError
        A sequence has not one axis, or a symbol does not fit its dtype.

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
    for n, ids in enumerate(_arrays_of(sequences)):
        kind = _as_ids(ids, f"sequences[{n}]")
        first, last = (
            np.array([] if symbol is None else [_as_id(symbol, name, kind)], kind) for name, symbol in symbols.items()
        )
        result.append(np.concatenate([first, ids.astype(kind), last]))
    return result


def shift_right(tokens: npt.ArrayLike, start_token_id: SupportsIndex) -> IntArray:
    """Make what a decoder is given to learn `tokens`: the start symbol first, and the last token left out.

    At each position it sees the tokens before, and is to give the one that is there.

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
        tokens are no integers, or start_token_id is no int.
    ValueError
        tokens have no axis, or start_token_id does not fit their dtype.

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
    ids = _core.as_array(tokens, "tokens")
    if ids.ndim == 0:
        raise ValueError("tokens is a scalar, expected (..., length)")
    kind = _as_ids(ids, "tokens")
    shifted = np.empty(ids.shape, kind)
    shifted[..., :1] = _as_id(start_token_id, "start_token_id", kind)
    shifted[..., 1:] = ids[..., :-1]
    return shifted


def pad_sequences(
    sequences: Iterable[npt.ArrayLike],
    *,
    length: SupportsIndex | None = None,
    padding_value: float = 0,
    truncate: Side | None = None,
    side: Side = "right",
    dtype: npt.DTypeLike = np.int64,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Make one array of sequences of different lengths.

    Parameters
    ----------
    sequences : iterable of array_like, (length,)
        Token ids, or other numbers that `dtype` holds.
    length : int, optional
        Of the array. Default: None, that of the longest.
    padding_value : number
        Fills what is left. Default: 0.
    truncate : {'right', 'left'}, optional
        Where sequences that are longer lose what is too much. Default: None: they are an error.
    side : {'right', 'left'}
        Where padding goes: behind, the default, or before. Most models count positions from the first element of a row,
        be it padding, and want it behind; `pyattn.generate` with a pad_token_id takes arrays with padding before, too.
    dtype : dtype
        Of the array. Default: int64.

    Returns
    -------
    array : ndarray, (batch, length)
        Of dtype.
    lengths : ndarray of int64, (batch,)
        How many of each row are no padding. With padding behind, what ``key_lengths=`` takes, and
        `pyattn.masks.padding`; with padding before, the mask is ``numpy.arange(length) >= length - lengths[:, None]``.

    Raises
    ------
    TypeError
        sequences is no iterable of sequences, or dtype does not hold their numbers.
    ValueError
        A sequence has not one axis, is too long, or holds a number that dtype does not; another side.

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
    _require_word("truncate", truncate, None, "right", "left")
    _require_word("side", side, "right", "left")
    kind = np.dtype(dtype)
    if dtype is None or kind.kind not in "biuf":
        raise TypeError(f"dtype is {None if dtype is None else kind}, expected one of numbers, such as numpy.int64")
    arrays = _arrays_of(sequences)
    size = max(map(len, arrays), default=0) if length is None else as_count(length, "length", least=0)
    padded = np.full((len(arrays), size), _as_element(padding_value, "padding_value", kind))
    lengths = np.array([min(len(array), size) for array in arrays], np.int64)
    for n, (array, count) in enumerate(zip(arrays, lengths, strict=True)):
        if len(array) > size and truncate is None:
            raise ValueError(
                f"sequences[{n}] has length {len(array)}, and length is {size}; pass truncate='right' to leave out the "
                "end of what is longer, or truncate='left' for its beginning"
            )
        part = array[len(array) - count :] if truncate == "left" else array[:count]
        place = slice(size - count, size) if side == "left" else slice(0, count)
        padded[n, place] = _cast(part, f"sequences[{n}]", kind)
    return padded, lengths


def _require_word(name: str, word: object, *words: str | None) -> None:
    if not any(word is one or (isinstance(word, str) and word == one) for one in words):
        raise ValueError(f"{name} is {word!r}, expected {' or '.join(map(repr, words))}")


def _arrays_of(sequences: Iterable[npt.ArrayLike]) -> list[npt.NDArray[Any]]:
    """Read them as arrays of one axis each."""
    if isinstance(sequences, (str, bytes)) or not isinstance(sequences, Iterable):
        raise TypeError(f"sequences is of type {type(sequences).__name__}, expected a list of sequences of ids")
    arrays = [_core.as_array(one, f"sequences[{n}]") for n, one in enumerate(sequences)]
    for n, array in enumerate(arrays):
        if array.ndim != 1:
            fix = "; for one sequence, pass [sequence]" if array.ndim == 0 else ""
            raise ValueError(f"sequences[{n}] has shape {array.shape}, expected (length,){fix}")
    return arrays


def _as_ids(array: npt.NDArray[Any], name: str) -> np.dtype[Any]:
    """Give the dtype of ids, in native byte order; that of an empty list is int64."""
    if array.dtype.kind in "iu":
        return array.dtype.newbyteorder("=")
    if array.size > 0:
        raise TypeError(f"{name} has dtype {array.dtype}, expected integers: ids of tokens")
    return np.dtype(np.int64)


def _as_id(x: SupportsIndex, name: str, kind: np.dtype[Any]) -> int:
    """Read the id of a symbol, which stands among others of that dtype."""
    n, limits = as_index(x, name), np.iinfo(kind)
    if not limits.min <= n <= limits.max:
        raise ValueError(f"{name} holds {n}, which {kind} does not hold")
    return n


def _as_element(x: object, name: str, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    array = _core.as_array(x, name)  # type: ignore[arg-type]
    if array.ndim != 0:
        raise ValueError(f"{name} has shape {array.shape}, expected one number")
    return _cast(array, name, kind)


def _cast(array: npt.NDArray[Any], name: str, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Cast bools and integers that stay as they are, and floats to floats."""
    if array.size > 0 and array.dtype.kind not in ("biuf" if kind.kind == "f" else "biu"):
        expected = "numbers" if kind.kind == "f" else "integers"
        raise TypeError(f"{name} has dtype {array.dtype}, expected {expected} that {kind} holds")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(kind)
    if array.dtype.kind == "f":
        lost = np.isinf(cast) & np.isfinite(array)
    else:  # compared as either: a float of 2^53 + 1 equals it, and so does -1 as an unsigned integer
        with np.errstate(invalid="ignore"):
            lost = (cast != array) | (cast.astype(array.dtype) != array)
    if lost.any():
        raise ValueError(f"{name} holds {array[lost][0]}, which {kind} does not hold")
    return cast

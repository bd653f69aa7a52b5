"""What `generate` begins with: the source of an encoder, and the first tokens of what is generated."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.ids import as_ids, read_lengths
from pyattn.generation.protocol import IntArray
from pyattn.generation.sequences import pad_sequences
from pyattn.nn.transformer.decoding import read_counts

__all__ = ["Beginning", "read_beginning", "read_next", "read_order", "read_source"]


class Beginning(NamedTuple):
    """Where a generation begins, a row for each sequence of the batch.

    Attributes
    ----------
    prompts : list of ndarray of int64
        What tokens follow: of an encoder-decoder, the start symbol.
    source : ndarray of int64, (batch, length), or None
        What an encoder-decoder encodes.
    source_lengths : ndarray of int64, (batch,), or None
        How many tokens of each row are no padding.
    """

    prompts: list[IntArray]
    source: IntArray | None
    source_lengths: IntArray | None


def read_source(model: Any, source: npt.ArrayLike | None, lengths: npt.ArrayLike | None) -> tuple[IntArray, IntArray]:
    """Read what an encoder-decoder encodes.

    Parameters
    ----------
    model : Decodable
        Says, if it can, how many tokens there are.
    source : array_like of int, (rows, length), or None
        As the caller gave it.
    lengths : array_like of int, (rows,), or None
        How many tokens of each row are no padding; None is all.

    Returns
    -------
    ids : ndarray of int, (rows, length)
    counts : ndarray of int64, (rows,)

    Raises
    ------
    TypeError
        They are no integers.
    ValueError
        Shapes do not go together, or numbers are out of range.
    """
    ids = as_ids([] if source is None else source, "source", getattr(model, "src_vocab_size", None))
    if ids.ndim != 2:
        raise ValueError(f"source has shape {ids.shape}, expected (rows, length)")
    return ids, read_counts(lengths, "source_lengths", ids.shape)


def read_next(
    model: Any, ids: npt.ArrayLike, lengths: npt.ArrayLike | None, rows: int | None
) -> tuple[IntArray, IntArray]:
    """Read the next tokens of each row.

    Parameters
    ----------
    model : Decodable
        Says, if it can, how many tokens there are.
    ids : array_like of int, (rows, n)
        As the caller gave them.
    lengths : array_like of int, (rows,), or None
        How many of each row's n count; None is all.
    rows : int or None
        How many rows there are; None where these tokens say so.

    Returns
    -------
    ids : ndarray of int, (rows, n)
    counts : ndarray of int64, (rows,)

    Raises
    ------
    TypeError
        They are no integers.
    ValueError
        Shapes do not go together, or numbers are out of range.
    """
    new = as_ids(ids, "ids", getattr(model, "vocab_size", None))
    if new.ndim != 2 or rows not in (None, len(new)):
        expected = "rows" if rows is None else rows
        raise ValueError(f"ids has shape {new.shape}, expected ({expected}, n): a row for each sequence")
    return new, read_counts(lengths, "lengths", new.shape)


def read_order(index: npt.ArrayLike, rows: int) -> IntArray:
    """Read which rows a `Decoding` goes on with.

    Parameters
    ----------
    index : array_like of int, (n,)
        As the caller gave it.
    rows : int
        How many there are.

    Returns
    -------
    ndarray of int, (n,)

    Raises
    ------
    TypeError
        Not integers.
    ValueError
        Not one axis, or there is no such row.
    """
    chosen = as_ids(index, "index", rows)
    if chosen.ndim != 1:
        raise ValueError(f"index has shape {chosen.shape}, expected one axis: (n,)")
    return chosen


def read_beginning(
    model: Any,
    source: Any,
    source_lengths: npt.ArrayLike | None,
    start_token_id: int | None,
    pad_token_id: int | None,
    eos_token_ids: tuple[int, ...],
) -> Beginning:
    """Read source and start symbol.

    Parameters
    ----------
    model : Decodable
        Says what a source is to it.
    source : array_like of int, sequence of these, or None
        As for `generate`.
    source_lengths : array_like of int, (batch,), or None
        As for `generate`.
    start_token_id : int or None
        As for `generate`.
    pad_token_id : int or None
        Left out at the ends of rows, unless it is an end symbol, or lengths are given; of a list, which needs no
        padding, only where the model hides it anyway.
    eos_token_ids : tuple of int
        End symbols.

    Returns
    -------
    Beginning

    Raises
    ------
    TypeError
        There are no integers.
    ValueError
        An id is out of range, a row is empty, or something is missing.
    """
    encodes = bool(model.is_encoder_decoder)
    words = getattr(model, "vocab_size", None)
    if start_token_id is not None and words is not None and start_token_id >= words:
        raise ValueError(f"start_token_id is {start_token_id}, expected 0 <= id < {words}")
    start = [] if start_token_id is None else [start_token_id]
    if encodes and not start:
        raise ValueError("start_token_id is missing: an encoder-decoder generates what follows it")
    if source is None:
        if source_lengths is not None:
            raise ValueError("source_lengths is given without source, whose lengths they are; pass both, or neither")
        if encodes or not start:
            need = "an encoder-decoder encodes it" if encodes else "pass what is to be continued, or a start_token_id"
            raise ValueError(f"source is missing: {need}")
        return Beginning([np.array(start, np.int64)], None, None)

    rows = _rows_of(source, getattr(model, "src_vocab_size", None) if encodes else words)
    if source_lengths is not None:
        rows = _cut(rows, source_lengths)
    elif pad_token_id not in (None, *eos_token_ids) and (
        not isinstance(source, (list, tuple)) or pad_token_id == getattr(model, "padding_idx", None)
    ):
        rows = [_stripped(row, pad_token_id) for row in rows]
    for n, row in enumerate(rows):
        if not row.size and (encodes or not start):
            raise ValueError(
                f"source[{n}] is empty{'' if encodes else ': pass a start_token_id, or tokens to continue'}"
            )
    if not encodes:
        return Beginning([np.array([*start, *row], np.int64) for row in rows], None, None)
    return Beginning([np.array(start, np.int64)] * len(rows), *pad_sequences(rows))


def _rows_of(source: Any, count: int | None) -> list[IntArray]:
    """One array, or a sequence of rows of different lengths."""
    if isinstance(source, (list, tuple)) and any(np.ndim(row) > 0 for row in source):
        rows = [as_ids(row, f"source[{n}]", count) for n, row in enumerate(source)]
        for n, row in enumerate(rows):
            if row.ndim != 1:
                raise ValueError(f"source[{n}] has shape {row.shape}, expected (length,)")
        return rows
    ids = as_ids(source, "source", count)
    if ids.ndim not in (1, 2) or not len(ids):
        raise ValueError(f"source has shape {ids.shape}, expected (batch, length) or (length,), with one row at least")
    return list(ids.reshape(-1, ids.shape[-1]))


def _cut(rows: list[IntArray], lengths: npt.ArrayLike) -> list[IntArray]:
    ends = read_lengths(lengths, "source_lengths", (len(rows),))
    for n, (row, end) in enumerate(zip(rows, ends, strict=True)):
        if not 0 <= end <= len(row):
            raise ValueError(
                f"source_lengths holds {end}, expected 0 <= length <= {len(row)}: source[{n}] is no longer"
            )
    return [row[: int(end)] for row, end in zip(rows, ends, strict=True)]


def _stripped(row: IntArray, padding: int | None) -> IntArray:
    """Without padding at the ends."""
    (places,) = np.nonzero(row != padding)
    return row[places[0] : places[-1] + 1] if places.size else row[:0]

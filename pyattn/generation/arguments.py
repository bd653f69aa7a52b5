"""Read the arguments of `generate`: the options of the search, and the prompts in source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsFloat, SupportsIndex, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_choice, as_count, as_finite, as_probability
from pyattn._util.ids import as_ids, read_lengths
from pyattn._util.typing import IntArray
from pyattn.generation.sequences import pad_sequences

__all__ = [
    "EarlyStopping",
    "Options",
    "Prompts",
    "Source",
    "TokenIds",
    "as_early_stopping",
    "as_length_penalty",
    "as_token_ids",
    "as_top_p",
    "read_prompts",
]

EarlyStopping: TypeAlias = "bool | Literal['never']"
Source: TypeAlias = "npt.ArrayLike | Sequence[npt.ArrayLike] | None"
TokenIds: TypeAlias = "SupportsIndex | Sequence[SupportsIndex] | npt.NDArray[np.integer[Any]] | None"

MAX_LENGTH_PENALTY = 50  # in absolute value: a million to this power still fits into a float


@dataclass(frozen=True)
class Options:
    """The arguments of `generate` that control the search."""

    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    min_new_tokens: int = 0
    do_sample: bool = False
    num_beams: int = 1
    num_return_sequences: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False

    def __post_init__(self) -> None:
        """Refuse options that contradict each other or would have no effect."""
        if self.min_new_tokens > self.max_new_tokens:
            raise ValueError(f"min_new_tokens is {self.min_new_tokens}, more than max_new_tokens={self.max_new_tokens}")
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"do_sample=True with num_beams={self.num_beams}: beams are not sampled; leave one out")
        for name in ("temperature", "top_k", "top_p"):
            if not self.do_sample and getattr(self, name) != getattr(Options, name):
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect without do_sample=True")
        for name in ("length_penalty", "early_stopping"):
            if self.num_beams == 1 and getattr(self, name) != getattr(Options, name):
                raise ValueError(f"{name}={getattr(self, name)!r} has no effect without num_beams=2 or more")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences is {self.num_return_sequences}, more than num_beams={self.num_beams}; raise "
                "num_beams, or pass do_sample=True"
            )


def as_token_ids(x: TokenIds, name: str) -> tuple[int, ...]:
    """Read a token id, a sequence of token ids, or None, as a tuple."""
    if x is None:
        return ()
    if isinstance(x, (list, tuple, range, np.ndarray)) and np.ndim(x) == 1:
        return tuple(as_count(one, f"{name}[{n}]", least=0) for n, one in enumerate(x))
    return (as_count(x, name, least=0),)  # type: ignore[arg-type] # another sequence: refused


def as_top_p(x: SupportsFloat | None) -> float | None:
    """Read a probability above 0, or None."""
    if x is None:
        return None
    p = as_probability(x, "top_p")
    if p == 0:
        raise ValueError("top_p is 0, expected a probability above 0")
    return p


def as_length_penalty(x: SupportsFloat) -> float:
    """Read an exponent of lengths."""
    penalty = as_finite(x, "length_penalty")
    if abs(penalty) > MAX_LENGTH_PENALTY:
        raise ValueError(f"length_penalty is {x}, expected -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}")
    return penalty


def as_early_stopping(x: EarlyStopping) -> EarlyStopping:
    """Read a bool or the word 'never'."""
    if isinstance(x, (bool, np.bool_)):
        return bool(x)
    as_choice(x, "early_stopping", (True, False, "never"))
    return "never"


class Prompts(NamedTuple):
    """The first tokens of each row, int64, and an encoder's source (rows, length) with its lengths (rows,)."""

    prompts: list[IntArray]
    source: IntArray | None
    source_lengths: IntArray | None


def read_prompts(
    model: object,
    source: Source,
    source_lengths: npt.ArrayLike | None,
    start_token_id: int | None,
    padding_idx: int | None,
    eos_token_ids: tuple[int, ...],
) -> Prompts:
    """Read source, source_lengths and start_token_id as `generate` takes them."""
    encodes = bool(getattr(model, "is_encoder_decoder", False))
    vocab_size: int | None = getattr(model, "vocab_size", None)
    if start_token_id is not None and vocab_size is not None and start_token_id >= vocab_size:
        raise ValueError(f"start_token_id is {start_token_id}, expected 0 <= id < {vocab_size}")
    start = [] if start_token_id is None else [start_token_id]
    if encodes and not start:
        raise ValueError("start_token_id is missing: an encoder-decoder generates the tokens that follow it")
    if source is None:
        if source_lengths is not None:
            raise ValueError("source_lengths was given without source; pass both or neither")
        if encodes or not start:
            need = "an encoder-decoder encodes it" if encodes else "pass the tokens to continue, or a start_token_id"
            raise ValueError(f"source is missing: {need}")
        return Prompts([np.array(start, np.int64)], None, None)

    rows = _read_rows(source, getattr(model, "src_vocab_size", None) if encodes else vocab_size)
    if source_lengths is not None:
        rows = _cut_rows(rows, source_lengths)
    elif padding_idx not in (None, *eos_token_ids) and (
        # Lists are rarely padded, so only the model's own padding_idx is stripped from them.
        not isinstance(source, (list, tuple)) or padding_idx == getattr(model, "padding_idx", None)
    ):
        rows = [_strip_padding(row, padding_idx) for row in rows]
    for n, row in enumerate(rows):
        if not row.size and (encodes or not start):
            fix = "" if encodes else "; pass the tokens to continue, or a start_token_id"
            raise ValueError(f"source[{n}] is empty{fix}")
    if not encodes:
        return Prompts([np.array([*start, *row], np.int64) for row in rows], None, None)
    return Prompts([np.array(start, np.int64)] * len(rows), *pad_sequences(rows))


def _read_rows(source: npt.ArrayLike | Sequence[npt.ArrayLike], count: int | None) -> list[IntArray]:
    """Read an array of one or two axes, or a sequence of rows of different lengths."""
    if isinstance(source, (list, tuple)) and any(np.ndim(row) > 0 for row in source):
        rows = [as_ids(row, f"source[{n}]", count) for n, row in enumerate(source)]
        for n, row in enumerate(rows):
            if row.ndim != 1:
                raise ValueError(f"source[{n}] has shape {row.shape}, expected (length,)")
        return rows
    ids = as_ids(cast("npt.ArrayLike", source), "source", count)
    if ids.ndim not in (1, 2) or not len(ids):
        raise ValueError(f"source has shape {ids.shape}, expected (batch, length) or (length,), with at least one row")
    return list(ids.reshape(-1, ids.shape[-1]))


def _cut_rows(rows: list[IntArray], source_lengths: npt.ArrayLike) -> list[IntArray]:
    """Cut each row to its length."""
    lengths = read_lengths(source_lengths, "source_lengths", (len(rows),))
    for n, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if not 0 <= length <= len(row):
            raise ValueError(f"source_lengths[{n}] is {length}, expected 0 <= length <= {len(row)}, as source[{n}] has")
    return [row[: int(length)] for row, length in zip(rows, lengths, strict=True)]


def _strip_padding(row: IntArray, padding_idx: int | None) -> IntArray:
    """Cut off leading and trailing padding."""
    (places,) = np.nonzero(row != padding_idx)
    return row[places[0] : places[-1] + 1] if places.size else row[:0]

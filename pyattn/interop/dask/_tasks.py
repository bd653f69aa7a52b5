"""The tasks of attention over chunks, which run in dask's workers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import is_half, rounded
from pyattn.functional import AttentionResult, merge_states
from pyattn.masks import Mask

Array = npt.NDArray[Any]


class Carry(NamedTuple):
    """A chunk of queries and its softmax over the keys so far, which a chain's links hand on."""

    query: Array
    limits: npt.NDArray[np.int64] | None
    """First key of each query and the one after its last, counted from the first key of all."""
    state: Array | None
    """None before the first key."""


class Options(NamedTuple):
    """The options of a call that are the same for all of its parts."""

    score: dict[str, Any]
    """score, scale, score_weight and enable_gqa, as the core takes them."""
    rest: dict[str, Any]
    """dropout_p, empty_rows and num_threads."""
    seed: int | None
    """Seed of dropout."""
    need_lse: bool


class Place(NamedTuple):
    """Where a part lies in the whole."""

    query_start: int
    key_start: int
    units: npt.NDArray[np.int64] | None
    """Number of each batch entry and head, for dropout."""


def begin(limits: npt.NDArray[np.int64] | None, is_wide: bool, query: Array) -> Carry:
    """Begin a chain; `is_wide` gives halves an output in float32."""
    return Carry(query.astype(np.float32) if is_wide and is_half(query.dtype) else query, limits, None)


def attend(
    options: Options,
    place: Place,
    is_last: bool,
    is_merged: bool,
    carry: Carry,
    key: Array,
    value: Array,
    attn_mask: Array | Mask | None,
    keep_mask: Array | Mask | None,
    *waits: None,  # a task that comes before
) -> Any:
    """Attend to a chunk of keys: the next link's Carry, or after the last chunk the output, with lse if requested."""
    result = _core.attention_part(
        carry.query,
        key,
        value,
        **options.score,
        attn_mask=np.asarray(attn_mask) if isinstance(attn_mask, Mask) else attn_mask,
        **options.rest,
        keep_mask=keep_mask,
        need_lse=is_last and (is_merged or options.need_lse),
        query_start=place.query_start,
        key_start=place.key_start,
        key_limits=None if carry.limits is None else carry.limits - place.key_start,
        units=place.units,
        seed=options.seed,
        state=carry.state,
        unfinished=not is_last,
    )
    return result if is_last else carry._replace(state=result)


def tick(done: object) -> None:
    """Tell that a task is done, without its result."""


def merge(dtype: np.dtype[Any], options: Options, parts: list[AttentionResult]) -> Any:
    """Merge the results of chains over several ranges of keys."""
    output, lse = merge_states(*zip(*parts, strict=True))
    if options.rest["empty_rows"] == "nan":
        output[np.isneginf(lse)] = np.nan
    output = rounded(output, dtype) if is_half(dtype) else output
    return (output, lse) if options.need_lse else output


def nothing(shape: tuple[int, ...], dtype: np.dtype[Any], options: Options) -> Any:
    """Return the results of queries that see no key."""
    output = np.full(shape, 0 if options.rest["empty_rows"] == "zero" else np.nan, dtype)
    if not options.need_lse:
        return output
    return output, np.full(shape[:-1], -np.inf, np.float64 if dtype == np.float64 else np.float32)

"""About 200 test cases for an attention function, in groups from easy to hard. They are the same in every run.

Arrays are (L, head_dim), (batch, L, head_dim) or (batch, heads, L, head_dim) and float32 unless said; masks broadcast
to (..., L, S). The number of shapes is kept small because a function may be compiled for each.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["GRADIENT_GROUPS", "GROUPS", "Case", "Group", "store"]

Array = npt.NDArray[Any]
Rng = np.random.Generator


class Case(NamedTuple):
    """Inputs for one call, and the options as arguments of `pyattn.attention`."""

    query: Array
    key: Array
    value: Array
    arguments: Mapping[str, Any] = MappingProxyType({})
    storage: str = "contiguous"  # of query, key and value: see store
    grad_output: Array | None = None  # of cases for gradients


class Group(NamedTuple):
    """Cases that test one feature."""

    name: str
    draw: Callable[[Rng], Iterator[Case]]
    needs: tuple[str, ...] = ()
    """The arguments that the cases need."""
    optional: bool = False
    """Whether an exception is accepted."""
    convention: str = ""
    """The name of the rule that judges the answers, for features in which libraries differ."""

    def cases(self) -> list[Case]:
        """Draw the cases, which are the same in every run and independent of other groups."""
        return list(self.draw(np.random.default_rng(zlib.crc32(self.name.encode()))))


def store(array: Array, storage: str) -> Array:
    """Copy an array to other memory: 'transposed', 'reversed', 'stepped' with NaN between, or 'read-only'."""
    if storage == "transposed":
        return array.swapaxes(-1, -2).copy().swapaxes(-1, -2)
    if storage == "reversed":
        return array[..., ::-1, :].copy()[..., ::-1, :]
    if storage == "stepped":
        wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan, array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    copy = array.copy()
    copy.flags.writeable = storage != "read-only"
    return copy


def _inputs(
    rng: Rng,
    q_len: int,
    kv_len: int,
    head_dim: int = 8,
    v_dim: int | None = None,
    batch: tuple[int, ...] = (),
    kv_heads: int | None = None,
) -> tuple[Array, Array, Array]:
    """Draw normal query, key and value; the last axis of batch is heads, and keys may have fewer."""
    shared = batch if kv_heads is None else (*batch[:-1], kv_heads)
    shapes = (*batch, q_len, head_dim), (*shared, kv_len, head_dim), (*shared, kv_len, v_dim or head_dim)
    query, key, value = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return query, key, value


def _keep(rng: Rng, *shape: int, share: float = 0.6) -> Array:
    """Draw a mask, True = attend, in which each row attends to at least one key."""
    numbers = rng.random(shape)
    return np.asarray((numbers < share) | (numbers == numbers.min(axis=-1, keepdims=True)))


# Cases for every function


def _plain(rng: Rng) -> Iterator[Case]:
    for length, dim, number in ((3, 3, 2), (4, 4, 2), (9, 5, 4), (40, 16, 3)):
        for _ in range(number):
            yield Case(*_inputs(rng, length, length, dim))
    for spread in (3, 3, 6):  # a few keys take all the weight
        query, key, value = _inputs(rng, 9, 9, 5)
        yield Case(query * np.float32(spread), key, value)


def _other_lengths(rng: Rng) -> Iterator[Case]:
    for q_len, kv_len, number in ((4, 9, 4), (9, 4, 4), (5, 40, 2)):
        for _ in range(number):
            yield Case(*_inputs(rng, q_len, kv_len, 8))


def _other_v_dim(rng: Rng) -> Iterator[Case]:
    for head_dim, v_dim in ((8, 4), (4, 8), (8, 1), (1, 8)):
        for _ in range(2):
            yield Case(*_inputs(rng, 6, 6, head_dim, v_dim))


def _single(rng: Rng) -> Iterator[Case]:
    for q_len, kv_len, dim in ((1, 1, 1), (1, 9, 8), (9, 1, 8), (9, 9, 1)):
        for _ in range(2):
            yield Case(*_inputs(rng, q_len, kv_len, dim))


def _batches(rng: Rng) -> Iterator[Case]:
    for batch, q_len, kv_len in (((2,), 6, 6), ((3,), 4, 9), ((4,), 4, 4)):
        for _ in range(3):
            yield Case(*_inputs(rng, q_len, kv_len, 8, batch=batch))


def _heads(rng: Rng) -> Iterator[Case]:
    for batch, q_len, kv_len in (((2, 3), 6, 6), ((3, 2), 4, 9), ((2, 4), 4, 4)):
        for _ in range(3):
            yield Case(*_inputs(rng, q_len, kv_len, 8, batch=batch))


def _large_scores(rng: Rng) -> Iterator[Case]:
    for size in (100, 300, 1e4, 1e4):  # exp overflows above 88 in float32 and above 709 in float64
        query, key, value = _inputs(rng, 4, 9, 8)
        yield Case(query * np.float32(size), key, value)
    for offset in (200, -200, 2000, -2000):  # all scores of a row: exp is inf, or 0, throughout
        query, key, value = _inputs(rng, 4, 9, 8)
        query[:, 0], key[:, 0] = 1, offset * np.sqrt(8)
        yield Case(query, key, value)
    for size in (200, 200, 2000, 2000):  # subtracting one maximum for all rows underflows in some
        query, key, value = _inputs(rng, 4, 9, 8)
        query[:, 0], key[:, 0] = np.linspace(-1, 1, 4), size
        yield Case(query, key, value)


def _long_rows(rng: Rng) -> Iterator[Case]:
    for length in (1024, 4096):
        for spread in (1, 1, 1e-3, 1e-3):
            query, key, value = _inputs(rng, 2, length, 8)
            if spread < 1:  # nearly equal weights and values of one sign: all rounding adds up
                key, value = key * np.float32(spread), np.abs(value) + np.float32(0.5)
            yield Case(query, key, value)


def _tiny_numbers(rng: Rng) -> Iterator[Case]:
    for n, size in ((0, 0), (0, 1e-40), (0, 1e-30), (1, 0), (1, 1e-40), (2, 0), (2, 1e-40), (2, 1e-37)):
        inputs = _inputs(rng, 4, 9, 8)
        inputs[n][...] *= np.float32(size)
        yield Case(*inputs)


def _float64(rng: Rng) -> Iterator[Case]:
    for q_len, kv_len, spread in ((4, 4, 1), (9, 9, 1), (9, 9, 6), (9, 9, 1000), (5, 40, 1), (5, 40, 1)):
        query, key, value = (x.astype(np.float64) for x in _inputs(rng, q_len, kv_len, 8))
        yield Case(query * (spread + rng.random()), key, value)


def _memory(rng: Rng) -> Iterator[Case]:
    for batch in ((), (2,), (2, 3)):
        for storage in ("transposed", "reversed", "stepped", "read-only"):
            yield Case(*_inputs(rng, 6, 6, 8, batch=batch), storage=storage)


def _unchanged(rng: Rng) -> Iterator[Case]:
    for batch in ((), (), (2,), (2, 3)):
        yield Case(*_inputs(rng, 6, 6, 8, batch=batch))


# Cases for an argument


def _scale(rng: Rng) -> Iterator[Case]:
    for length, dim in ((3, 3), (9, 5)):
        for scale in (1.0, 0.25, 0.1, -0.5):
            yield Case(*_inputs(rng, length, length, dim), {"scale": scale})


def _causal(rng: Rng) -> Iterator[Case]:
    for batch, length in (((), 4), ((), 6), ((), 9), ((2,), 6), ((2, 3), 6)):
        for _ in range(2):
            yield Case(*_inputs(rng, length, length, 8, batch=batch), {"is_causal": True})


def _causal_corners(rng: Rng) -> Iterator[Case]:
    for q_len, kv_len in ((1, 9), (4, 9), (9, 4), (5, 40)):
        for _ in range(2):
            yield Case(*_inputs(rng, q_len, kv_len, 8), {"is_causal": True})


def _flags(rng: Rng) -> Iterator[Case]:
    for batch, q_len, kv_len in (((), 4, 4), ((), 9, 9), ((), 4, 9), ((2,), 6, 6), ((2, 3), 6, 6)):
        for _ in range(2):
            keep = _keep(rng, *batch, q_len, kv_len)
            yield Case(*_inputs(rng, q_len, kv_len, 8, batch=batch), {"attn_mask": keep})
    for _ in range(2):  # scores of -30,000 reveal a fill of -10,000 for masked scores
        query, key, value = _inputs(rng, 4, 9, 8)
        query[:, 0], key[:, 0] = 100, -300 * np.sqrt(8)
        yield Case(query, key, value, {"attn_mask": _keep(rng, 4, 9)})


def _biases(rng: Rng) -> Iterator[Case]:
    for batch, q_len, kv_len in (((), 4, 4), ((), 9, 9), ((), 4, 9), ((2,), 6, 6), ((2, 3), 6, 6)):
        for hides in (False, True):
            keep = _keep(rng, *batch, q_len, kv_len)
            bias = np.float32(0) if hides else rng.standard_normal(keep.shape).astype(np.float32) * 2
            bias = np.where(keep, bias, np.float32(-np.inf if hides else 0))
            yield Case(*_inputs(rng, q_len, kv_len, 8, batch=batch), {"attn_mask": bias})


def _broadcast_masks(rng: Rng) -> Iterator[Case]:
    for batch, shapes in (
        ((), ((1, 6), (6,))),
        ((2,), ((6, 6), (1, 6, 6), (2, 1, 6), (1, 6))),
        ((2, 3), ((6, 6), (1, 1, 6, 6), (2, 1, 6, 6), (1, 3, 6, 6), (3, 1, 6), (2, 1, 1, 6))),
    ):
        for shape in shapes:
            yield Case(*_inputs(rng, 6, 6, 8, batch=batch), {"attn_mask": _keep(rng, *shape)})


def _padding(rng: Rng) -> Iterator[Case]:
    for batch, q_len, kv_len in (((2,), 6, 6), ((3,), 4, 9), ((2, 3), 6, 6), ((3, 2), 4, 9)):
        for _ in range(2):
            ends = rng.integers(1, kv_len + 1, size=(batch[0], *(1,) * len(batch)))
            keep = np.arange(kv_len) < ends[..., np.newaxis]
            yield Case(*_inputs(rng, q_len, kv_len, 8, batch=batch), {"attn_mask": keep})


def _lengths(rng: Rng) -> Iterator[Case]:
    for batch in ((2,), (2, 3)):
        for _ in range(2):
            ends = rng.integers(1, 7, size=2).astype(np.int32)
            yield Case(*_inputs(rng, 6, 6, 8, batch=batch), {"key_lengths": ends})


def _mask_and_causal(rng: Rng) -> Iterator[Case]:
    for batch, length in (((), 6), ((2,), 6), ((2, 3), 6)):
        for _ in range(2):
            keep = _keep(rng, *batch, length, length) | np.eye(length, dtype=bool)
            arguments = {"attn_mask": keep, "is_causal": True}
            yield Case(*_inputs(rng, length, length, 8, batch=batch), arguments)


def _groups(rng: Rng) -> Iterator[Case]:
    for heads, kv_heads, q_len, kv_len in ((6, 1, 6, 6), (6, 2, 6, 6), (6, 3, 6, 6), (4, 2, 4, 9)):
        for _ in range(2):
            inputs = _inputs(rng, q_len, kv_len, 8, batch=(2, heads), kv_heads=kv_heads)
            yield Case(*inputs, {"enable_gqa": True})


# Conventions in which libraries differ


def _empty_rows(rng: Rng) -> Iterator[Case]:
    for batch, q_len, kv_len in (((), 9, 9), ((), 4, 9), ((2,), 6, 6), ((2, 3), 6, 6)):
        for share in (0.2, 1.0):
            keep = _keep(rng, *batch, q_len, kv_len)
            keep[..., rng.permutation(q_len)[: max(1, int(share * q_len))], :] = False
            yield Case(*_inputs(rng, q_len, kv_len, 8, batch=batch), {"attn_mask": keep})


def _masked_nan(rng: Rng) -> Iterator[Case]:
    for batch, q_len, kv_len in (((), 9, 9), ((), 4, 9), ((2,), 6, 6), ((2, 3), 6, 6)):
        for n in (1, 2):
            inputs = _inputs(rng, q_len, kv_len, 8, batch=batch)
            keep = _keep(rng, *batch, q_len, kv_len)
            keep[..., -2:] = False
            keep[..., 0] = True
            inputs[n][..., -2:, :] = np.nan
            yield Case(*inputs, {"attn_mask": keep})


GROUPS = (
    Group("plain", _plain),
    Group("lengths differ", _other_lengths),
    Group("one query, one key, one feature", _single),
    Group("scale", _scale, needs=("scale",)),
    Group("causal", _causal, needs=("is_causal",)),
    Group("bool masks", _flags, needs=("attn_mask",), optional=True),
    Group("float masks", _biases, needs=("attn_bias",), optional=True),
    Group("v_dim is not head_dim", _other_v_dim, optional=True),
    Group("batch axis", _batches, optional=True),
    Group("batch and heads axes", _heads, optional=True),
    Group("masks that broadcast", _broadcast_masks, needs=("attn_mask",), optional=True),
    Group("padding", _padding, needs=("attn_mask",), optional=True),
    Group("key lengths", _lengths, needs=("key_lengths",), optional=True),
    Group("mask and causal", _mask_and_causal, needs=("attn_mask", "is_causal"), optional=True),
    Group("grouped heads", _groups, optional=True),
    Group("large scores", _large_scores),
    Group("long rows", _long_rows),
    Group("tiny numbers", _tiny_numbers),
    Group("float64", _float64, optional=True),
    Group("inputs unchanged", _unchanged),
    Group("views and read-only arrays", _memory),
    Group("causal, lengths differ", _causal_corners, needs=("is_causal",), optional=True, convention="corner"),
    Group("empty rows", _empty_rows, needs=("attn_mask",), optional=True, convention="empty"),
    Group("NaN under a mask", _masked_nan, needs=("attn_mask",), optional=True, convention="nan"),
)


# Gradients


def _with_gradients(group: Group) -> Group:
    """Make a group that tests gradients with the shapes and arguments of another one."""

    def draw(rng: Rng) -> Iterator[Case]:
        for case in group.draw(rng):
            shape = (*case.query.shape[:-1], case.value.shape[-1])
            yield case._replace(grad_output=rng.standard_normal(shape).astype(case.query.dtype))

    return group._replace(name=f"gradients, {group.name}", draw=draw)


# The groups left out take long, have numbers too small for gradients, or are about conventions.
_FORWARD_ALONE = ("padding", "key lengths", "mask and causal", "long rows", "tiny numbers")
GRADIENT_GROUPS = tuple(
    _with_gradients(group) for group in GROUPS if not group.convention and group.name not in _FORWARD_ALONE
)

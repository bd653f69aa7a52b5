"""Random but repeatable attention cases: `draw(index)` says what a case is, `build(case)` makes its arrays.

A case depends on its index alone, so a failure is replayed by its number. The first coordinates of the index walk the
cells (mask kind, causal form, dtype); inside a cell the regimes of REGIMES follow each other, and everything else is
drawn. Random tests that only meet tiny shapes prove nothing: test_drawn.py asserts what all cases together cover.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pyattn.testing.bounds import FLAT_OUTPUT_BAR, OUTPUT_BAR

SEED = 20260731
MASKS = ("none", "bool", "padding", "float", "float_inf", "float_mixed")
CAUSALS = ("none", "causal_upper_left", "causal_lower_right", "window_upper_left", "window_lower_right")
DTYPES = ("float32", "float64")
CELLS = tuple(product(MASKS, CAUSALS, DTYPES))


class Regime(NamedTuple):
    """How many cases of a cell, and the largest sizes that keep the whole suite fast."""

    name: str
    cases: int
    q_len: tuple[int, int]
    kv_len: tuple[int, int]
    batch: int
    kv_heads: int
    groups: tuple[int, ...]
    dims: tuple[int, ...]
    least_kv_heads: int = 0  # 0: not every case has heads


NARROW, WIDE = (4, 8, 16, 17, 24), (24, 40, 64, 72, 80, 96, 128, 130, 200, 256)
REGIMES = (
    Regime("degenerate", 3, (0, 1), (0, 1), 1, 1, (1,), (1, 2, 5)),  # and see _shrink_an_axis
    Regime("small", 15, (1, 70), (1, 200), 3, 2, (1, 2, 3), (1, 3, 8, 16, 31, 40, 64, 80, 129, 300)),
    Regime("prefill", 4, (101, 200), (261, 500), 2, 1, (1, 2), NARROW),
    Regime("wide prefill", 4, (101, 140), (261, 400), 1, 1, (1, 2), WIDE),
    Regime("long", 1, (101, 120), (1001, 1300), 1, 1, (1, 2), NARROW),
    Regime("wide long", 1, (101, 110), (1001, 1100), 1, 1, (1,), WIDE),
    Regime("decode", 4, (1, 16), (300, 3000), 2, 2, (1, 2, 4), NARROW),
    Regime("wide decode", 2, (1, 16), (300, 1600), 1, 2, (1, 2, 4), WIDE),
    Regime("flat", 2, (1, 3), (1001, 16384), 1, 1, (1, 2), (2, 8)),
)
LATER_REGIMES = (  # their cases are numbered behind all others, which so keep their numbers
    Regime("long queries", 2, (201, 400), (261, 450), 1, 1, (1,), NARROW),
    Regime("many heads", 2, (101, 160), (201, 320), 1, 4, (1, 2, 3), (*NARROW, 40, 64), 2),
)
PER_CELL, LATER_PER_CELL = (sum(regime.cases for regime in regimes) for regimes in (REGIMES, LATER_REGIMES))
LATER = len(CELLS) * PER_CELL  # the first of their numbers
CASES = LATER + len(CELLS) * LATER_PER_CELL

WORTH_THREADS = 1_000_000  # a call with less work runs on one thread, whatever num_threads says: csrc/core/plan.c
STORAGE = ("contiguous", "fortran", "reversed", "stepped", "transposed", "stride 0", "frozen", "unaligned", "swapped")


@dataclass(frozen=True)
class Case:
    """One case, by its choices. heads is None where no axis counts as heads; sizes are those of the result."""

    index: int
    regime: str
    mask: str
    causal: str
    dtype: str
    batch: tuple[int, ...]
    heads: int | None
    kv_heads: int | None
    q_len: int
    kv_len: int
    head_dim: int
    v_dim: int
    layout: str
    shared_batch: tuple[str, str, str]  # of query, key, value: "full", "ones" or "missing" batch axes
    storage: tuple[str, str, str, str]  # of query, key, value, mask
    family: str  # of numbers
    poison: str  # the array that gets a few NaN
    scale: float | None
    is_causal: bool
    align: str | None
    window: Any
    key_lengths: bool
    query_lengths: bool
    enable_gqa: bool
    empty_rows: str
    need_weights: bool
    need_lse: bool
    out: bool
    num_threads: int

    @property
    def bar(self) -> float:
        return FLAT_OUTPUT_BAR if self.regime == "flat" else OUTPUT_BAR

    @property
    def runs_on_threads(self) -> bool:
        return self.num_threads > 1 and _work(vars(self)) > WORTH_THREADS


class Inputs(NamedTuple):
    """Arrays, and the arguments that change the numbers."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    arguments: dict[str, Any]


def cases_of(cell: int) -> list[int]:
    """The numbers of a cell's cases."""
    later = LATER + cell * LATER_PER_CELL
    return [*range(cell * PER_CELL, (cell + 1) * PER_CELL), *range(later, later + LATER_PER_CELL)]


def cell_of(index: int) -> int:
    """The cell that a case belongs to."""
    return index // PER_CELL if index < LATER else (index - LATER) // LATER_PER_CELL


def _regime_of(index: int) -> Regime:
    regimes = REGIMES if index < LATER else LATER_REGIMES
    within = cases_of(cell_of(index)).index(index) - (0 if index < LATER else PER_CELL)
    return [regime for regime in regimes for _ in range(regime.cases)][within]


def draw(index: int) -> Case:
    """Choose everything about a case but its numbers."""
    mask, causal, dtype = CELLS[cell_of(index)]
    rng, regime = np.random.default_rng([SEED, index]), _regime_of(index)
    sizes = _draw_sizes(rng, regime)
    if regime.name == "degenerate":
        sizes = _shrink_an_axis(rng, sizes)
    key_lengths, query_lengths = bool(rng.random() < 0.25), bool(rng.random() < 0.15)
    is_causal, align, window = _draw_causal(rng, causal, sizes, key_lengths or query_lengths)
    no_features = sizes["head_dim"] == 0  # 1 / sqrt(0) is nobody's scale
    bshd = sizes["heads"] is not None and rng.random() < 0.3
    poisoned = (mask, causal) != ("none", "none") and regime.name != "flat" and rng.random() < 0.08
    return Case(
        index=index,
        regime=regime.name,
        mask=mask,
        causal=causal,
        dtype=dtype,
        layout="bshd" if bshd else "bhsd",
        shared_batch=_draw_shared_batch(rng, may_drop_axes=not bshd and sizes["heads"] is not None),
        storage=tuple(_choice(rng, STORAGE, weights=(9, *[1] * (len(STORAGE) - 1))) for _ in range(4)),
        family="flat" if regime.name == "flat" else _choice(rng, ("normal", "peaked", "spread", "offset", "tiny")),
        poison=_choice(rng, ("key", "value")) if poisoned else "",
        scale=0.5 if no_features else _choice(rng, (None, 1.0, 0.25, -0.5, 0.0), weights=(12, 2, 2, 1, 1)),
        is_causal=is_causal,
        align=align,
        window=window,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
        enable_gqa=sizes["heads"] is not None and (sizes["batch"] == () or bool(rng.random() < 0.5)),
        empty_rows=_choice(rng, ("zero", "nan"), weights=(5, 1)),
        need_weights=bool(rng.random() < 0.5),
        need_lse=bool(rng.random() < 0.5),
        out=bool(rng.random() < 0.2),
        num_threads=_choice(rng, (1, 2, 3, 7), weights=(4, 6, 1, 1) if _work(sizes) > WORTH_THREADS else (6, 3, 1, 1)),
        **sizes,
    )


def _draw_sizes(rng, regime: Regime) -> dict[str, Any]:
    def between(low, high):
        return int(rng.integers(low, high + 1))

    axes = _choice(rng, ("none", "batch", "heads", "batch heads", "batch batch heads"), weights=(2, 3, 2, 10, 2))
    if regime.least_kv_heads and "heads" not in axes:
        axes = "batch heads"
    kv_heads = between(max(1, regime.least_kv_heads), regime.kv_heads) if "heads" in axes else None
    q_len, kv_len = between(*regime.q_len), between(*regime.kv_len)
    if regime.name in ("degenerate", "small") and rng.random() < 0.3:
        kv_len = q_len
    return {
        "batch": tuple(between(1, regime.batch) for _ in range(axes.count("batch"))),
        "kv_heads": kv_heads,
        "heads": None if kv_heads is None else kv_heads * _choice(rng, regime.groups),
        "q_len": q_len,
        "kv_len": kv_len,
        "head_dim": _choice(rng, regime.dims),
        "v_dim": _choice(rng, regime.dims),
    }


def _work(sizes: dict[str, Any]) -> int:
    """Multiply-adds, as the core counts them."""
    rows = prod(sizes["batch"]) * (1 if sizes["heads"] is None else sizes["heads"]) * sizes["q_len"]
    return rows * sizes["kv_len"] * (sizes["head_dim"] + sizes["v_dim"])


def _shrink_an_axis(rng, sizes: dict[str, Any]) -> dict[str, Any]:
    """Some axis has size 0 (or stays 1), the others are ordinary."""
    sizes = {**sizes, "q_len": int(rng.integers(1, 6)), "kv_len": int(rng.integers(1, 8))}
    axis = _choice(rng, ("q_len", "kv_len", "head_dim", "v_dim", "batch", "heads", "all but one key", "one query"))
    if axis == "batch":
        sizes["batch"] = (0,) * len(sizes["batch"])
    elif axis == "heads" and sizes["heads"] is not None:
        sizes["heads"] = sizes["kv_heads"] = 0
    elif axis == "all but one key":
        sizes["kv_len"] = 1
    elif axis == "one query":
        sizes["q_len"] = 1
    elif axis != "heads":
        sizes[axis] = 0
    return sizes


def _draw_causal(rng, causal: str, sizes: dict[str, Any], has_lengths: bool) -> tuple[bool, str | None, Any]:
    if causal == "none":
        return False, None, None
    form, _, align = causal.partition("_")
    if sizes["q_len"] == sizes["kv_len"] and not has_lengths and rng.random() < 0.5:
        align = None  # needs no saying, and both are the same
    if form == "causal":
        return True, align, None
    left, right = (int(reach) for reach in rng.integers(0, max(2, sizes["kv_len"] // 2), size=2))
    window = _choice(rng, (left, (left, right), (left, 0), (None, right), (left, None), (None, None)))
    return bool(rng.random() < 0.25), align, window


def _draw_shared_batch(rng, may_drop_axes: bool) -> tuple[str, str, str]:
    """Batch axes that broadcast; one array always has them in full, so that the result has the sizes drawn."""
    kinds = ("full", "ones", "missing") if may_drop_axes else ("full", "ones")
    shared = [_choice(rng, kinds, weights=(6, 1, 1)[: len(kinds)]) for _ in range(3)]
    shared[int(rng.integers(3))] = "full"
    return tuple(shared)


def build(case: Case) -> Inputs:
    """Make a case's arrays."""
    rng = np.random.default_rng([SEED, case.index, 1])
    names = ("query", "key", "value")
    shapes = ((case.heads, case.q_len, case.head_dim), (case.kv_heads, case.kv_len, case.head_dim))
    shapes = (*shapes, (case.kv_heads, case.kv_len, case.v_dim))
    arrays = []
    for name, (heads, length, features), shared, storage in zip(
        names, shapes, case.shared_batch, case.storage[:3], strict=True
    ):
        batch = {"full": case.batch, "ones": (1,) * len(case.batch), "missing": ()}[shared]
        shape = (*batch, *(() if heads is None else (heads,)), length, features)
        array = _numbers(rng, name, shape, case.family).astype(case.dtype)
        if case.poison == name:
            array[..., rng.integers(length, size=2) if length else [], :] = np.nan
        if case.layout == "bshd":
            array = array.swapaxes(-3, -2)
        arrays.append(_store(rng, array, storage))

    arguments: dict[str, Any] = {"attn_mask": _build_mask(rng, case)}
    for name, length in (("key_lengths", case.kv_len), ("query_lengths", case.q_len)):
        if getattr(case, name):
            dtype = _choice(rng, (np.int64, np.int32, np.uint16))
            shape = _choice(rng, (case.batch, case.batch[:-1] + (1,) * len(case.batch[-1:]), ()))
            arguments[name] = rng.integers(0, length + 1, size=shape).astype(dtype)
    for name in ("is_causal", "align", "scale", "window", "enable_gqa", "empty_rows", "layout"):
        arguments[name] = getattr(case, name)
    return Inputs(*arrays, arguments)


def _numbers(rng, name: str, shape: tuple[int, ...], family: str) -> np.ndarray:
    x = rng.standard_normal(shape)
    if family == "peaked" and name == "query":
        return x * 6  # a few keys take all the weight, and a_j is large
    if family == "spread" and name == "value":
        return x * 10.0 ** rng.uniform(-6, 6, size=shape)
    if family == "offset" and name == "key":
        return x + 3  # what a bias in front of it does; values with one sign belong to "flat"
    if family == "tiny" and name == "value":
        return x * 1e-38  # float32 denormals among them
    if family == "flat":  # nearly uniform weights, values of one sign: nothing cancels, all rounding adds up
        return np.abs(x) + 0.5 if name == "value" else x * 1e-3
    return x


def _build_mask(rng, case: Case) -> np.ndarray | None:
    """A mask of the case's kind; its shape is one of those that users pass."""
    if case.mask == "none":
        return None
    one_head, heads = ((), ()) if case.heads is None else ((1,), (case.heads,))
    pairs = (case.q_len, case.kv_len)
    if case.mask == "padding":
        ends = rng.integers(0, case.kv_len + 1, size=(*case.batch, *one_head, 1, 1))
        return _store(rng, np.arange(case.kv_len) < ends, case.storage[3])
    shapes = {
        "bool": (pairs, (*case.batch, *heads, *pairs)),
        "float": ((*heads, *pairs), (*heads, *pairs), (*heads, 1, case.kv_len), (case.q_len, 1)),
        "float_inf": (pairs, (*case.batch, *one_head, *pairs)),
        "float_mixed": (pairs, (*case.batch, *heads, *pairs)),
    }[case.mask]
    shape = _choice(rng, shapes)
    keep = _keep(rng, shape)
    if case.mask == "bool":
        return _store(rng, keep, case.storage[3])
    bias = rng.standard_normal(shape) * (1e-3 if case.family == "flat" else 2)
    dtype = case.dtype
    if case.mask == "float_mixed":
        dtype = _choice(rng, ("float16", "float32" if case.dtype == "float64" else "float64"))
    if case.mask == "float_inf" and rng.random() < 0.2:
        bias[~keep] = np.finfo(dtype).min  # hides as well as -inf, unless the row holds nothing else
    elif case.mask == "float_inf" or (case.mask == "float_mixed" and rng.random() < 0.5):
        bias[~keep] = -np.inf
    return _store(rng, bias.astype(dtype), case.storage[3])


def _keep(rng, shape: tuple[int, ...]) -> np.ndarray:
    """Which pairs to attend to: scattered, or in blocks that leave whole tiles dead; some rows are empty."""
    if rng.random() < 0.5:
        keep = rng.random(shape) < _choice(rng, (0.05, 0.5, 0.9))
    else:
        i, j = np.ogrid[: shape[-2], : shape[-1]]
        block = _choice(rng, (8, 64, 100))
        coarse = rng.random((*shape[:-2], shape[-2] // block + 1, shape[-1] // block + 1)) < 0.5
        keep = coarse[..., i // block, j // block]
    return keep & (rng.random((*shape[:-1], 1)) < 0.95)


def _store(rng, array: np.ndarray, storage: str) -> np.ndarray:
    """The same numbers in other memory; what lies between them is poison."""
    axis = int(rng.integers(max(1, array.ndim)))
    if array.ndim == 0 or array.size == 0:
        return array
    if storage == "fortran":
        return np.asfortranarray(array)
    if storage == "reversed":
        return np.flip(np.flip(array, axis).copy(), axis)
    if storage == "stepped":
        wide = np.full([size * (2 if n == axis else 1) for n, size in enumerate(array.shape)], True, array.dtype)
        wide = wide * array.dtype.type(np.nan) if array.dtype.kind == "f" else wide
        view = wide[tuple(slice(None, None, 2 if n == axis else 1) for n in range(array.ndim))]
        view[...] = array
        return view
    if storage == "transposed" and array.ndim > 2:
        return array.swapaxes(0, -2).copy().swapaxes(0, -2)
    if storage == "stride 0":  # these are other numbers: one row, or one slice, over and over
        return np.broadcast_to(array.take([0], axis=0), array.shape)
    if storage == "frozen":
        array = array.copy()
        array.flags.writeable = False
        return array
    if storage == "unaligned":
        return np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1).reshape(array.shape)
    if storage == "swapped":
        return array.astype(array.dtype.newbyteorder())
    return array.copy()


def _choice(rng, options, weights=None):
    """rng.choice that leaves tuples and None as they are."""
    if weights is None:
        return options[int(rng.integers(len(options)))]
    edges = np.cumsum(weights)
    return options[int(np.searchsorted(edges, rng.random() * edges[-1], side="right"))]

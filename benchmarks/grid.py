"""What is measured, and the bar for each.

A bar on a peer is the least that (the peer's time) / (pyattn's time) must be. Shapes are
(batch, heads, q_len, kv_len, head_dim).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

Shape = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class Bar:
    """A figure of a result must be at least (`at_least`) or at most `limit`."""

    figure: str
    limit: float
    at_least: bool = True

    def verdict(self, value: float | None) -> str:
        """The word for a figure: passed, missed, or not shown where there is none."""
        if value is None:
            return "not shown"
        return "passed" if (value >= self.limit if self.at_least else value <= self.limit) else "missed"

    def __str__(self) -> str:
        return f"{self.figure} {'>=' if self.at_least else '<='} {self.limit:g}"


@dataclass(frozen=True)
class Inputs:
    """Arrays with axes (batch, heads, length, head_dim), and a mask in the form that a user would pass."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray | None


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    family: str
    shape: Shape
    torch: tuple[float, float] | None = None
    """The bars on torch at one thread and at more; None where pyattn is compared with itself."""
    causal: bool = False
    kv_heads: int = 0
    dtype: str = "float32"
    mask: str = ""
    strided: bool = False
    """(batch, length, heads, head_dim) in memory, seen through a transposed view."""
    own: tuple[Bar, ...] = ()
    """Bars beyond those on peers."""
    quick: bool = False

    @property
    def name(self) -> str:
        sizes = ",".join(map(str, self.shape))
        groups = f"/{self.kv_heads}" if self.kv_heads else ""
        return f"{self.family} {sizes}{groups}{' causal' if self.causal else ''}"

    @property
    def flops(self) -> float:
        """Of both products; what a mask hides is counted too, whoever skips it."""
        batch, heads, q_len, kv_len, head_dim = self.shape
        return 4.0 * batch * heads * q_len * kv_len * head_dim / (2 if self.causal else 1)

    def bars(self, threads: int) -> tuple[Bar, ...]:
        """Every bar of this case at a thread count."""
        if self.torch is None:
            return self.own
        ahead = tuple(Bar(peer, 1.0) for peer in ("onnxruntime", "jax", "numpy"))
        return (Bar("torch", self.torch[threads > 1]), *ahead, *self.own)

    def inputs(self) -> Inputs:
        """The arrays of this case: the same in every process, for they depend on its name alone."""
        batch, heads, q_len, kv_len, head_dim = self.shape
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))

        def draw(n_heads: int, length: int) -> np.ndarray:
            axes = (batch, length, n_heads, head_dim) if self.strided else (batch, n_heads, length, head_dim)
            array: np.ndarray = rng.standard_normal(axes, np.float64 if self.dtype == "float64" else np.float32)
            return array.swapaxes(1, 2) if self.strided else array

        query = draw(heads, q_len)
        key, value = (draw(self.kv_heads or heads, kv_len) for _ in "kv")
        return Inputs(query, key, value, self._draw_mask(rng))

    def _draw_mask(self, rng: np.random.Generator) -> np.ndarray | None:
        batch, heads, q_len, kv_len, _ = self.shape
        if self.mask == "bool":
            return rng.random((q_len, kv_len)) < 0.8
        if self.mask == "padding":
            lengths = rng.integers(kv_len // 2, kv_len, size=(batch, 1, 1, 1), endpoint=True)
            return np.arange(kv_len) < lengths
        if self.mask == "float":
            return rng.standard_normal((heads, q_len, kv_len), np.float32)
        return None


def denormal(inputs: Inputs, kind: str) -> Inputs:
    """The same sizes with numbers that make denormals on the way.

    Parameters
    ----------
    inputs : Inputs
        Of a case without a mask.
    kind : {"scores", "values"}
        "scores": one key is 95 nats above all others, whose weights are then near 1e-41; "values": values near 1e-40.
    """
    if kind == "values":
        return replace(inputs, value=inputs.value * np.float32(1e-40))
    query, key = 0.1 * inputs.query, 0.1 * inputs.key
    query[..., 0] = np.sqrt(query.shape[-1])
    key[..., 0] = 0.0
    key[..., 0, 0] = 95.0
    return replace(inputs, query=query, key=key)


PREFILL: tuple[tuple[Shape, float, float | None], ...] = (  # the bars on torch: plain, causal
    ((1, 12, 128, 128, 64), 1.2, 1.5),
    ((1, 12, 512, 512, 64), 1.2, 2.0),
    ((1, 16, 1024, 1024, 64), 1.2, 1.5),
    ((1, 8, 4096, 4096, 64), 1.2, 1.2),
    ((1, 8, 4096, 4096, 128), 1.1, 1.1),
    ((1, 8, 64, 2048, 64), 1.2, None),
    ((8, 12, 128, 128, 64), 1.2, 1.5),
)
RAGGED: tuple[tuple[Shape, bool], ...] = (
    ((1, 12, 77, 203, 40), False),
    ((1, 12, 203, 203, 40), True),
    ((1, 12, 500, 500, 80), False),
    ((1, 12, 300, 700, 96), False),
    ((1, 8, 512, 512, 256), False),
)
STRIDED: tuple[Shape, ...] = (
    (1, 16, 1024, 1024, 64),
    (1, 16, 1024, 1024, 128),
    (1, 32, 1024, 1024, 128),
)  # 4, 8, 16 KB


def grid() -> Iterator[Case]:
    """Every case, in the order of the table."""
    half_microsecond = Bar("microseconds", 0.5, at_least=False)
    yield Case("tiny", (1, 1, 3, 3, 3), (7.0, 7.0), own=(half_microsecond,), quick=True)
    yield Case("tiny", (1, 8, 16, 16, 64), (3.0, 3.0))
    for shape, plain, causal in PREFILL:
        quick = shape[:3] in ((1, 12, 128), (1, 12, 512))
        yield Case("prefill", shape, (plain, plain), quick=quick)
        if causal is not None:
            yield Case("prefill", shape, (causal, causal), causal=True, quick=quick and shape[2] == 512)
    for shape, is_causal in RAGGED:
        bar = 1.5 if is_causal else 1.2
        yield Case("ragged", shape, (bar, bar), causal=is_causal)
    for q_len in (1, 2, 4, 16):
        yield Case("decode", (1, 32, q_len, 4096, 128), (1.1, 1.25), own=(Bar("of a read", 0.9),), quick=q_len == 1)
    yield Case("decode", (1, 32, 1, 4096, 128), (1.1, 1.25), kv_heads=8, own=(Bar("of a read", 0.9),))
    for shape in STRIDED:
        yield Case("strided", shape, (1.1, 1.1), strided=True, quick=shape is STRIDED[0])
    yield Case("grouped", (1, 32, 1024, 1024, 64), (1.1, 1.1), kv_heads=8)
    yield Case("grouped", (1, 32, 512, 512, 128), (1.1, 1.1), kv_heads=4)
    for shape, is_causal in (((1, 12, 128, 128, 64), False), ((1, 12, 512, 512, 64), False),
                             ((1, 12, 512, 512, 64), True), ((1, 8, 512, 512, 128), False)):  # fmt: skip
        yield Case("float64", shape, (1.5, 1.5), causal=is_causal, dtype="float64")
    for mask in ("bool", "padding", "float"):
        yield Case(f"{mask} mask", (2, 12, 512, 512, 64), (1.2, 1.2), mask=mask, quick=mask == "bool")
    for shape in ((1, 12, 128, 128, 64), (1, 12, 512, 512, 64), (1, 16, 1024, 1024, 64)):
        yield Case("weights", shape, own=(Bar("cost", 1.25, at_least=False),), quick=shape[2] == 512)
    for kind in ("scores", "values"):
        yield Case(f"denormal {kind}", (1, 12, 512, 512, 64), own=(Bar("cost", 1.5, at_least=False),))

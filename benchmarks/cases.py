"""The kinds of cases: each has its sizes, its arrays, its bars, and what a call of it costs.

A bar on a peer is the least that (the peer's time) / (pyattn's time) must be.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from pyattn._util.halves import as_stored_dtype
from pyattn.masks import Mask, document


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


AHEAD_OF_ONNX_RUNTIME = Bar("onnxruntime", 1.05)
"""On layers and models; on attention alone the bar is that of all but torch."""


@dataclass(frozen=True)
class Case(ABC):
    """One line of the table."""

    family: str
    shape: tuple[int, ...]
    _: KW_ONLY
    own: tuple[Bar, ...] = ()
    """Bars beyond those on peers."""
    dtype: str = "float32"
    quick: bool = False

    operation: ClassVar[str]
    """What is computed, and the method of a peer that does."""
    axes: ClassVar[str]
    """Of `shape`."""

    @property
    def name(self) -> str:
        return f"{self.family} {','.join(map(str, self.shape))}"

    @property
    @abstractmethod
    def flops(self) -> float:
        """Of the products; what a mask hides is counted too, whoever skips it, but for half of a causal one."""

    @abstractmethod
    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        """A bar for each peer that takes part; none where pyattn is compared with itself."""

    def bars(self, threads: int) -> tuple[Bar, ...]:
        """Every bar of this case at a thread count."""
        return (*self.peer_bars(threads), *self.own)

    @abstractmethod
    def inputs(self) -> Any:
        """The arrays of this case: the same in every process, for they depend on its name alone."""

    @abstractmethod
    def read_once(self, inputs: Any) -> tuple[np.ndarray, ...]:
        """What a call has to read, where that is what takes its time."""

    def _generator(self) -> np.random.Generator:
        return np.random.default_rng(zlib.crc32(self.name.encode()))


@dataclass(frozen=True)
class AttentionInputs:
    """Arrays with axes (batch, heads, length, head_dim), and a mask in the form that a user would pass."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: Any
    """An array, None, or a mask object where pyattn is compared with itself."""
    score_weight: np.ndarray | None = None


@dataclass(frozen=True)
class AttentionCase(Case):
    """Attention alone."""

    torch: tuple[float, float] | None = None
    """The bars on torch at one thread and at more; None where pyattn is compared with itself."""
    causal: bool = False
    kv_heads: int = 0
    mask: str = ""
    score: str = "dot"
    strided: bool = False
    """(batch, length, heads, head_dim) in memory, seen through a transposed view."""

    operation = "attention"
    axes = "batch,heads,q_len,kv_len,head_dim"

    @property
    def name(self) -> str:
        groups = f"/{self.kv_heads}" if self.kv_heads else ""
        score = f" {self.score}" if self.score != "dot" else ""
        half = f" {self.dtype}" if self.is_half else ""
        return f"{super().name}{groups}{' causal' if self.causal else ''}{score}{half}"

    @property
    def is_half(self) -> bool:
        """Whether query, key and value are stored in half precision."""
        return self.dtype in ("float16", "bfloat16")

    @property
    def flops(self) -> float:
        batch, heads, q_len, kv_len, head_dim = self.shape
        return 4.0 * batch * heads * q_len * kv_len * head_dim / (2 if self.causal else 1)

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        if self.torch is None:
            return ()
        ahead = () if self.is_half else tuple(Bar(peer, 1.0) for peer in ("onnxruntime", "jax", "numpy"))
        return (Bar("torch", self.torch[threads > 1]), *ahead)

    def inputs(self) -> AttentionInputs:
        batch, heads, q_len, kv_len, head_dim = self.shape
        rng = self._generator()

        def draw(n_heads: int, length: int) -> np.ndarray:
            axes = (batch, length, n_heads, head_dim) if self.strided else (batch, n_heads, length, head_dim)
            array: np.ndarray = rng.standard_normal(axes, np.float64 if self.dtype == "float64" else np.float32)
            array = array.astype(as_stored_dtype(self.dtype), copy=False)
            return array.swapaxes(1, 2) if self.strided else array

        query = draw(heads, q_len)
        key, value = (draw(self.kv_heads or heads, kv_len) for _ in "kv")
        mask = self._draw_mask(rng)
        weight = rng.standard_normal((head_dim, head_dim), np.float32) if self.score == "bilinear" else None
        return AttentionInputs(query, key, value, mask, None if weight is None else weight / np.float32(head_dim))

    def _draw_mask(self, rng: np.random.Generator) -> np.ndarray | Mask | None:
        batch, heads, q_len, kv_len, _ = self.shape
        if self.mask == "bool":
            return rng.random((q_len, kv_len)) < 0.8
        if self.mask == "padding":
            lengths = rng.integers(kv_len // 2, kv_len, size=(batch, 1, 1, 1), endpoint=True)
            return np.arange(kv_len) < lengths
        if self.mask == "float":
            return rng.standard_normal((heads, q_len, kv_len), np.float32)
        if not self.mask:
            return None
        keep = rng.random((q_len, kv_len)) < 0.8
        if self.mask == "every second bool":
            return np.repeat(keep, 2, axis=1)[:, ::2]
        dtype, _, columns = self.mask.partition(" ")
        if columns == "documents":
            return document(np.arange(q_len) * int(dtype) // q_len)
        numbers = np.where(keep, rng.standard_normal(keep.shape), -np.inf)
        mask = keep if dtype == "bool" else numbers.astype(as_stored_dtype(dtype))
        return np.asfortranarray(mask) if columns else mask

    def read_once(self, inputs: AttentionInputs) -> tuple[np.ndarray, ...]:
        return (inputs.key, inputs.value) if self.family == "decode" else ()


def unusual(inputs: AttentionInputs, family: str) -> AttentionInputs:
    """The same sizes with numbers that a fast loop may trip over.

    Parameters
    ----------
    inputs : AttentionInputs
        Of a case without a mask.
    family : {"denormal scores", "denormal values", "NaN values", "NaN queries"}
        Denormals on the way: one key is 95 nats above all others, whose weights are then near 1e-41, or values are near
        1e-40. Or NaN in one column of the values, or in every seventh query.
    """
    if family == "denormal values":
        return replace(inputs, value=inputs.value * np.float32(1e-40))
    if family.startswith("NaN"):
        query, value = inputs.query.copy(), inputs.value.copy()
        if family == "NaN values":
            value[..., 3] = np.nan
        else:
            query[:, :, ::7] = np.nan
        return replace(inputs, query=query, value=value)
    query, key = 0.1 * inputs.query, 0.1 * inputs.key
    query[..., 0] = np.sqrt(query.shape[-1])
    key[..., 0] = 0.0
    key[..., 0, 0] = 95.0
    return replace(inputs, query=query, key=key)


@dataclass(frozen=True)
class AdditiveInputs:
    """query (batch, q_len, hidden), states (batch, kv_len, hidden), two weights (hidden, hidden), w_score (hidden,)."""

    query: np.ndarray
    states: np.ndarray
    """Keys, and values."""
    w_query: np.ndarray
    w_key: np.ndarray
    w_score: np.ndarray


@dataclass(frozen=True)
class AdditiveCase(Case):
    """Additive attention over some states, with its projections."""

    least: dict[str, float] = field(default_factory=dict)
    """Peer to its bar."""

    operation = "additive"
    axes = "batch,q_len,kv_len,hidden"

    @property
    def flops(self) -> float:
        batch, q_len, kv_len, hidden = self.shape
        return 2.0 * batch * hidden * ((q_len + kv_len) * hidden + 2 * q_len * kv_len)

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        return tuple(Bar(peer, limit) for peer, limit in self.least.items())

    def inputs(self) -> AdditiveInputs:
        batch, q_len, kv_len, hidden = self.shape
        rng = self._generator()
        query, states = (rng.standard_normal((batch, length, hidden), np.float32) for length in (q_len, kv_len))
        w_query, w_key = (_draw_linear(rng, hidden, hidden)[0].T for _ in "qk")
        return AdditiveInputs(
            query, states, w_query, w_key, rng.standard_normal(hidden, np.float32) * np.float32(1 / np.sqrt(hidden))
        )

    def read_once(self, inputs: AdditiveInputs) -> tuple[np.ndarray, ...]:
        return ()


@dataclass(frozen=True)
class LinearInputs:
    """x (rows, in_features), weight (out_features, in_features), bias (out_features,)."""

    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray


@dataclass(frozen=True)
class LinearCase(Case):
    """``x @ weight.T + bias``: a matrix product alone."""

    least: float | None = None
    """The bar on torch and on NumPy."""
    order: str = "out_in"
    """How the weight lies in memory: "in_out" as in ``x @ w``. Torch's lies as its modules keep it, (out, in)."""

    operation = "linear"
    axes = "rows,in_features,out_features"

    @property
    def name(self) -> str:
        return f"{super().name}{' in_out' if self.order == 'in_out' else ''}"

    @property
    def flops(self) -> float:
        return 2.0 * math.prod(self.shape)

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        if self.least is None:
            return ()
        return (Bar("torch", self.least), AHEAD_OF_ONNX_RUNTIME, Bar("numpy", self.least))

    def inputs(self) -> LinearInputs:
        rows, in_features, out_features = self.shape
        rng = self._generator()
        x = rng.standard_normal((rows, in_features), np.float32)
        weight, bias = _draw_linear(rng, out_features, in_features)
        return LinearInputs(x, np.asfortranarray(weight) if self.order == "in_out" else weight, bias)

    def read_once(self, inputs: LinearInputs) -> tuple[np.ndarray, ...]:
        return (inputs.weight,) if len(inputs.x) == 1 else ()


@dataclass(frozen=True)
class SelfAttentionInputs:
    """x (rows, features); weights (features, features), as in ``x @ w``."""

    x: np.ndarray
    weights: list[np.ndarray]


@dataclass(frozen=True)
class SelfAttentionCase(Case):
    """One head with its projections, as an article writes it: ``softmax(q k' / sqrt(features)) v``."""

    least: float = 1.0
    """The bar on NumPy."""

    operation = "self_attention"
    axes = "rows,features"

    @property
    def flops(self) -> float:
        rows, features = self.shape
        return 2.0 * rows * features * (3 * features + 2 * rows)

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        return (Bar("numpy", self.least),)

    def inputs(self) -> SelfAttentionInputs:
        rows, features = self.shape
        rng = self._generator()
        x = rng.standard_normal((rows, features), np.float32)
        return SelfAttentionInputs(x, [_draw_linear(rng, features, features)[0] for _ in "qkv"])

    def read_once(self, inputs: SelfAttentionInputs) -> tuple[np.ndarray, ...]:
        return ()


@dataclass(frozen=True)
class MultiHeadInputs:
    """x (batch, length, embed_dim); parameters of each layer by torch's names; padding (batch, length) or None."""

    x: np.ndarray
    parameters: list[dict[str, np.ndarray]]
    padding: np.ndarray | None
    """True = blocked."""


@dataclass(frozen=True)
class MultiHeadCase(Case):
    """The module on one input, batch first, in eval mode: self-attention with all projections."""

    least: float | None = None
    """The bar on torch; None where no peer takes part."""
    variant: str = ""
    """causal, padding (a key padding mask) or weights (returned, too, as their mean over heads)."""
    layers: int = 1
    """So many modules, each on the output of the one before: their weights come from memory, one's from the cache."""

    operation = "multi_head"
    axes = "batch,length,embed_dim,heads"

    @property
    def name(self) -> str:
        layers = f" in {self.layers} layers" if self.layers > 1 else ""
        return f"{super().name} {self.variant}".rstrip() + layers

    @property
    def flops(self) -> float:
        batch, length, embed_dim, _ = self.shape
        products = length / 2 if self.variant == "causal" else length
        return 4.0 * self.layers * batch * length * embed_dim * (2 * embed_dim + products)

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        return () if self.least is None else (Bar("torch", self.least), AHEAD_OF_ONNX_RUNTIME)

    def inputs(self) -> MultiHeadInputs:
        batch, length, embed_dim, _ = self.shape
        rng = self._generator()
        x = rng.standard_normal((batch, length, embed_dim), np.float32)
        parameters = [_draw_multi_head(rng, embed_dim) for _ in range(self.layers)]
        padding = None
        if self.variant == "padding":
            lengths = rng.integers(length // 2, length, size=(batch, 1), endpoint=True)
            padding = np.arange(length) >= lengths
        return MultiHeadInputs(x, parameters, padding)

    def read_once(self, inputs: MultiHeadInputs) -> tuple[np.ndarray, ...]:
        if inputs.x.size > inputs.x.shape[-1]:
            return ()
        return tuple(layer[name] for layer in inputs.parameters for name in ("in_proj_weight", "out_proj.weight"))


@dataclass(frozen=True)
class EncoderLayerInputs:
    """x (batch, length, d_model)."""

    x: np.ndarray


@dataclass(frozen=True)
class EncoderLayerCase(Case):
    """A Transformer's encoder layer as PyTorch makes it, after-normalised, with ReLU, batch first, in eval mode."""

    least: float | None = None
    """The bar on torch."""

    operation = "encoder_layer"
    axes = "batch,length,d_model,heads,hidden"

    @property
    def flops(self) -> float:
        batch, length, d_model, _, hidden = self.shape
        return 4.0 * batch * length * d_model * (2 * d_model + hidden + length)

    def peer_bars(self, threads: int) -> tuple[Bar, ...]:
        return () if self.least is None else (Bar("torch", self.least), AHEAD_OF_ONNX_RUNTIME)

    def inputs(self) -> EncoderLayerInputs:
        return EncoderLayerInputs(self._generator().standard_normal(self.shape[:3], np.float32))

    def read_once(self, inputs: EncoderLayerInputs) -> tuple[np.ndarray, ...]:
        """Another array, of as many bytes as the weights have."""
        *_, d_model, _, hidden = self.shape
        weights = (4 * d_model + 2 * hidden) * d_model
        return (np.ones(weights, np.float32),) if inputs.x.size == d_model else ()


def _draw_multi_head(rng: np.random.Generator, embed_dim: int) -> dict[str, np.ndarray]:
    in_weight, in_bias = _draw_linear(rng, 3 * embed_dim, embed_dim)
    out_weight, out_bias = _draw_linear(rng, embed_dim, embed_dim)
    return {
        "in_proj_weight": in_weight,
        "in_proj_bias": in_bias,
        "out_proj.weight": out_weight,
        "out_proj.bias": out_bias,
    }


def _draw_linear(rng: np.random.Generator, out_features: int, in_features: int) -> tuple[np.ndarray, np.ndarray]:
    """A weight and a bias that take numbers near 1 to numbers near 1."""
    weight = rng.standard_normal((out_features, in_features), np.float32)
    weight *= np.float32(1 / np.sqrt(in_features))  # in place: memory.py wants no freed memory that a call could take
    return weight, rng.standard_normal(out_features, np.float32)

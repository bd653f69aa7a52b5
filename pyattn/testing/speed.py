"""One line about speed for ``python -m pyattn``: a call of pyattn, NumPy and, if it is installed, PyTorch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
import pyattn.runtime as runtime
from pyattn.interop.torch.tensors import import_torch

__all__ = ["describe_speed"]

Array = npt.NDArray[np.floating[Any]]
HEADS, LENGTH, HEAD_DIM = 12, 512, 64
ROUNDS = 3
ROUND_SECONDS = 0.1


def describe_speed(heads: int = HEADS, length: int = LENGTH) -> str:
    """Time a causal call in float32, and return a line; in brackets is how many times as long as pyattn."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, heads, length, HEAD_DIM), np.float32) for _ in range(3)]
    calls = {"pyattn": _pyattn_call(arrays), "NumPy": _numpy_call(arrays), "PyTorch": _torch_call(arrays)}
    installed = {name: call for name, call in calls.items() if call is not None}
    ours, *others = zip(installed, _alternate(list(installed.values())), strict=True)
    times = [f"pyattn {_text(ours[1])}"]
    times += [f"{name} {_text(seconds)} ({seconds / ours[1]:.1f}x as long)" for name, seconds in others]
    return f"Speed, {heads} heads, {length} tokens, causal: {', '.join(times)}"


def _pyattn_call(arrays: Sequence[Array]) -> Callable[[], object]:
    """Make the call of pyattn."""
    query, key, value = arrays
    return lambda: functional.attention(query, key, value, is_causal=True)


def _torch_call(arrays: Sequence[Array]) -> Callable[[], object] | None:
    """Make the call of PyTorch with as many threads as pyattn; None if it is not installed."""
    try:
        torch = import_torch()
    except ImportError:
        return None
    torch.set_num_threads(runtime.get_num_threads())
    tensors = [torch.from_numpy(array) for array in arrays]
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(*tensors, is_causal=True)


def _numpy_call(arrays: Sequence[Array]) -> Callable[[], object]:
    """Make the call of NumPy: the formula as people write it, without needless copies."""
    query, key, value = arrays
    scale = np.float32(1 / np.sqrt(query.shape[-1]))
    visible = np.tri(query.shape[-2], key.shape[-2], dtype=bool)
    bias = np.where(visible, np.float32(0), np.float32(-np.inf))

    def call() -> object:
        scores = query @ key.swapaxes(-1, -2) * scale
        scores += bias
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return weights @ value

    return call


def _alternate(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Time calls in alternating rounds, and return the smallest median of each; pauses let thread pools go idle."""
    best = [float("inf")] * len(calls)
    for index in list(range(len(calls))) * ROUNDS:
        time.sleep(0.05)
        calls[index]()  # the first call of a round finds cold caches
        times: list[float] = []
        end = time.perf_counter() + ROUND_SECONDS
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            calls[index]()
            times.append(time.perf_counter() - start)
        best[index] = min(best[index], statistics.median(times))
    return best


def _text(seconds: float) -> str:
    """Write a time in milliseconds, or in microseconds below one."""
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"

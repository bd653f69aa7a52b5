"""JAX in its own process: it has no setting for its threads, it counts the cores that its process may use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from benchmarks.cases import AttentionCase
from benchmarks.measure import repeated


def serve(pipe: Connection[Any, Any], cores: int) -> None:
    """Answer requests until the other end closes.

    Parameters
    ----------
    pipe : Connection
        Requests are ``("start",)``, ``("enter", case)``, ``("sample", number)`` and ``("output",)``; an answer that
        is an exception says why there is none.
    cores : int
        How many cores to use, set as ``taskset`` does and before the import.
    """
    calls: dict[str, Callable[[], Any]] = {}

    def answer(request: str, *arguments: Any) -> Any:
        if request == "start":
            return _import_jax(cores)
        if request == "enter":
            calls["case"] = _prepare(arguments[0])
            return None
        call = calls["case"]
        return np.asarray(call()) if request == "output" else repeated(call)(arguments[0])

    while True:
        try:
            request = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            pipe.send(answer(*request))
        except Exception as error:  # reported where the table is made
            pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _import_jax(cores: int) -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise RuntimeError("this system can't pin a process to cores")
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < cores:
        raise RuntimeError(f"{cores} cores are needed and {len(allowed)} may be used")
    os.sched_setaffinity(0, allowed[:cores])
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)


def _prepare(case: AttentionCase) -> Callable[[], Any]:
    """Compile a case.

    The einsum form is used because it is 1.2 to 8 times faster on CPUs than `jax.nn.dot_product_attention`. Strided
    cases go in and come out as they lie in memory, grouped heads have an axis of their own: nothing is copied.
    """
    jax: Any = importlib.import_module("jax")
    jnp = jax.numpy
    inputs = case.inputs()
    batch, heads, q_len, kv_len, head_dim = case.shape
    kv_heads = case.kv_heads or heads
    axes = "blhgd,bshd->bhgls" if case.strided else "bhgld,bhsd->bhgls"
    back = "bhgls,bshd->blhgd" if case.strided else "bhgls,bhsd->bhgld"
    query_axes = (batch, q_len, kv_heads, -1, head_dim) if case.strided else (batch, kv_heads, -1, q_len, head_dim)
    order = (0, 2, 1, 3) if case.strided else (0, 1, 2, 3)
    query, key, value = (jnp.asarray(a.transpose(order)) for a in (inputs.query, inputs.key, inputs.value))
    mask = None if inputs.mask is None else jnp.asarray(inputs.mask)
    scale = inputs.query.dtype.type(1 / np.sqrt(head_dim))

    def attention(query: Any, key: Any, value: Any, mask: Any) -> Any:
        scores = jnp.einsum(axes, query.reshape(query_axes), key) * scale
        flat = scores.reshape(batch, heads, q_len, kv_len)
        if case.causal:
            flat = jnp.where(jnp.tri(q_len, kv_len, dtype=bool), flat, -jnp.inf)
        if mask is not None:
            flat = jnp.where(mask, flat, -jnp.inf) if mask.dtype == bool else flat + mask
        weights = jax.nn.softmax(flat).reshape(scores.shape)
        return jnp.einsum(back, weights, value).reshape(query.shape)

    compiled = jax.jit(attention)
    return lambda: compiled(query, key, value, mask).block_until_ready()

"""``python -m pyattn compare``: compare a correct module, and the same module with a planted fault."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

import pyattn.nn as nn
import pyattn.reference as reference
from pyattn.interop.torch import to_torch
from pyattn.testing._compare import compare

__all__ = ["demonstrate"]

EMBED_DIM, HEADS, BATCH, LENGTH = 64, 4, 2, 10


def demonstrate(with_torch: bool | None = None) -> tuple[str, bool]:
    """Compare a random attention and a faulty copy with a twin; return the text and whether both verdicts are right."""
    if with_torch is None:
        with_torch = importlib.util.find_spec("torch") is not None
    twin: Callable[[nn.MultiheadAttention], Any] = to_torch if with_torch else _formula_of
    rng = np.random.default_rng()
    ours = nn.MultiheadAttention(EMBED_DIM, HEADS, batch_first=True, rng=rng)
    x = rng.standard_normal((BATCH, LENGTH, EMBED_DIM), np.float32)
    wrong = copy.deepcopy(ours)
    key = wrong.state_dict()["in_proj_weight"][EMBED_DIM : 2 * EMBED_DIM]
    key[...] = key.T.copy()

    first, second = (compare(ours, twin(module), x, x, x) for module in (ours, wrong))
    found = second.cause is not None and (second.cause.name, second.stage) == ("weights transposed", "key")
    lines = ["This is a demo on a random module. For your arrays: python -m pyattn compare ours.npz theirs.npz", ""]
    lines += ["1. A multi-head attention, and the same one computed elsewhere", "", str(first), "", ""]
    lines += ["2. The same, but theirs has key's weights transposed", "", str(second)]
    return "\n".join(lines), first.equal and not second.equal and found


def _formula_of(module: nn.MultiheadAttention) -> Callable[..., tuple[Any, Any]]:
    """Compute output and mean weights of a module in float64 NumPy, without its code."""
    state = module.state_dict()
    weights, biases = (np.split(state[f"in_proj_{name}"], 3) for name in ("weight", "bias"))

    def formula_in_float64(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
        inputs = (query, key, value)
        projections = (reference.linear(*each) for each in zip(inputs, weights, biases, strict=True))
        heads = (x.reshape(*x.shape[:-1], module.num_heads, -1) for x in projections)
        attended = reference.attention(*heads, layout="bshd")
        merged = attended.output.reshape(query.shape)
        output = reference.linear(merged, state["out_proj.weight"], state["out_proj.bias"])
        return output, attended.weights.mean(axis=-3)

    return formula_in_float64

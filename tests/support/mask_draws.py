"""Masks of torch's modules, drawn; and with a triangle in them."""

from __future__ import annotations

import numpy as np


def draw_mask(rng, kind, shape, dtype):
    """True = blocked, or floats to be added; some rows have nothing to attend to."""
    if kind == "none":
        return None
    if "ends" in kind:
        blocked = np.arange(shape[-1]) >= rng.integers(shape[-1] + 1, size=(*shape[:-1], 1))
        return np.where(blocked, -np.inf, 0).astype(dtype) if "float" in kind else blocked
    blocked = rng.random(shape) < rng.choice([0.1, 0.5, 0.9])
    return blocked if "bool" in kind else np.where(blocked, -np.inf, rng.standard_normal(shape)).astype(dtype)


def with_triangle(mask, is_causal, q_len, kv_len):
    """torch is told of the triangle by its mask: as a hint alone it raises, or replaces the mask."""
    if not is_causal:
        return mask
    blocked = ~np.tri(q_len, kv_len, dtype=bool)
    if mask is None:
        return blocked
    return mask | blocked if mask.dtype == bool else np.where(blocked, mask.dtype.type(-np.inf), mask)

"""Attentions without a mistake, in NumPy; and how a check of them came out."""

from __future__ import annotations

import math

import numpy as np


def formula(query, key, value):
    """Six lines of an article."""
    scores = query @ key.T
    scores = scores / math.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ value


def careful(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """All there is to take, in NumPy."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if query.ndim > 3:
        key, value = (np.repeat(x, query.shape[-3] // x.shape[-3], axis=-3) for x in (key, value))
    scores = query @ key.swapaxes(-1, -2) * query.dtype.type(scale)
    keep = np.ones(scores.shape, bool)
    if is_causal:
        keep &= np.tri(*scores.shape[-2:], dtype=bool)
    if attn_mask is not None and attn_mask.dtype == bool:
        keep &= attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask
    scores = np.where(keep, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    hidden = ~keep.any(axis=-2)[..., np.newaxis]  # keys that nobody sees
    return weights / np.where(total == 0, 1, total) @ np.where(hidden, 0, value)


def counts_of(result, name):
    return next((group.passed, group.failed, group.not_taken) for group in result.groups if group.name == name)

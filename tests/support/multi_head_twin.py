"""pyattn._core.multi_head once more, on top of the oracle: the same arguments, in float64 NumPy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pyattn import reference


class Attended(NamedTuple):
    """Output (..., L, out_dim); weights (..., heads, L, S), S with the extra keys."""

    output: np.ndarray
    weights: np.ndarray


def multi_head(
    query,
    key,
    value,
    q_weight,
    k_weight,
    v_weight,
    *,
    out_weight=None,
    q_bias=None,
    k_bias=None,
    v_bias=None,
    out_bias=None,
    extra_key=None,
    extra_value=None,
    heads=1,
    kv_heads=None,
    add_zero=False,
    **attention,
) -> Attended:
    projections = []
    steps = (query, q_weight, q_bias, None), (key, k_weight, k_bias, extra_key), (value, v_weight, v_bias, extra_value)
    for n, (x, weight, bias, extra) in enumerate(steps):
        y = reference.linear(x, weight, bias)
        behind = [] if extra is None else [extra]
        behind += [np.zeros(y.shape[-1])] if add_zero and n > 0 else []
        y = np.concatenate([y, *(np.broadcast_to(row, (*y.shape[:-2], 1, y.shape[-1])) for row in behind)], axis=-2)
        projections.append(y.reshape(*y.shape[:-1], (kv_heads or heads) if n > 0 else heads, -1))
    extras = projections[1].shape[-3] - np.shape(key)[-2]
    if extras and "attn_mask" not in attention:  # nothing but a mask hides them
        pairs = (*np.shape(query)[:-2], heads, np.shape(query)[-2], np.shape(key)[-2])
        hides = {name: attention.pop(name) for name in ("is_causal", "align", "window") if name in attention}
        visible = reference.visible_pairs(pairs, True, None, **hides)
        attention["attn_mask"] = np.pad(visible, [(0, 0)] * (len(pairs) - 1) + [(0, extras)], constant_values=True)
    result = reference.attention(*projections, **attention, layout="bshd", enable_gqa=True)
    output = result.output.reshape(*result.output.shape[:-2], -1)
    output = output if out_weight is None else reference.linear(output, out_weight, out_bias)
    return Attended(output, result.weights)

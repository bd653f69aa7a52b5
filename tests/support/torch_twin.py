"""The same attention by PyTorch's MATH backend, which is PyTorch's own reference.

Where PyTorch has no such argument, the mask that its users would write is built here with its own triangles and slices,
and without a look at pyattn.reference, whose masks are on trial too.
"""

from __future__ import annotations

import numpy as np


def attend(torch, case, inputs) -> np.ndarray:
    """Return the output, in the case's layout."""
    query, key, value = (_tensor(torch, array) for array in inputs[:3])
    if case.layout == "bshd":
        query, key, value = (array.transpose(-3, -2) for array in (query, key, value))
    own_axes = 2 if case.heads is None else 3  # PyTorch wants the batch axes spelled out
    query, key, value = (array.expand(*case.batch, *array.shape[-own_axes:]) for array in (query, key, value))
    triangle_alone = case.causal == "causal_upper_left" and not (case.key_lengths or case.query_lengths)
    mask = _mask(torch, case, inputs.arguments, query, needs_pairs=not (triangle_alone and case.mask == "none"))
    with torch.no_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        output = torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None and triangle_alone,
            scale=case.scale,
            enable_gqa=case.heads != case.kv_heads,
        )
    return (output.transpose(-3, -2) if case.layout == "bshd" else output).numpy()


def has_case(case) -> bool:
    """PyTorch lets NaN leak from masked positions, and has no rows of NaN for empty ones."""
    return not case.poison and case.empty_rows == "zero"


def _tensor(torch, array: np.ndarray):
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _mask(torch, case, arguments, query, needs_pairs):
    """Return a mask, bool or of the query's dtype, that broadcasts to (..., heads, L, S); None if nothing is hidden."""
    mask = None if arguments["attn_mask"] is None else _tensor(torch, arguments["attn_mask"])
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    if not needs_pairs or not (case.is_causal or case.window is not None or case.key_lengths or case.query_lengths):
        return mask

    pairs = torch.ones(*case.batch, case.q_len, case.kv_len, dtype=torch.bool)
    flat = pairs.view(-1, case.q_len, case.kv_len) if pairs.numel() else pairs[:0]
    lengths = [
        np.broadcast_to(arguments.get(name, size), case.batch).ravel()
        for name, size in (("key_lengths", case.kv_len), ("query_lengths", case.q_len))
    ]
    left, right = case.window if isinstance(case.window, tuple) else (case.window, case.window)
    for b in range(len(flat)):
        keys, queries = int(lengths[0][b]), int(lengths[1][b])
        offset = keys - queries if case.align == "lower_right" else 0
        if case.is_causal:
            flat[b] = flat[b].tril(offset)
        if right is not None:
            flat[b] = flat[b].tril(offset + right)
        if left is not None:
            flat[b] = flat[b].triu(offset - left)
        flat[b, :, keys:] = False
        flat[b, queries:] = False
    if case.heads is not None:
        pairs = pairs[..., None, :, :]
    if mask is None:
        return pairs
    return mask & pairs if mask.dtype == torch.bool else mask.masked_fill(~pairs, -torch.inf)

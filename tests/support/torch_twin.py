"""The same attention by PyTorch's MATH backend, which is PyTorch's own reference.

Where PyTorch has no such argument, the mask that its users would write is built here with its own triangles and slices,
and without a look at pyattn.reference, whose masks are on trial too.
"""

from __future__ import annotations

import numpy as np


def attend(torch, case, inputs) -> np.ndarray:
    """Return the output, in the case's layout."""
    arrays = [tensor_of(torch, array) for array in inputs[:3]]
    mask = None if inputs.arguments["attn_mask"] is None else tensor_of(torch, inputs.arguments["attn_mask"])
    with torch.no_grad():
        return _attend(torch, case, inputs, arrays, mask, case.scale).numpy()


def gradients(torch, case, inputs, grad_output, score="dot", score_weight=None) -> dict[str, np.ndarray]:
    """Return the gradients of query, key, value, a float mask, score_weight and the scale, by autograd in float64."""
    leaves = leaves_of(torch, inputs, score_weight)
    mask = leaves.get("attn_mask")
    if mask is None and inputs.arguments["attn_mask"] is not None:
        mask = tensor_of(torch, inputs.arguments["attn_mask"])
    leaves["scale"] = torch.tensor(scale_of(case, score), dtype=torch.float64, requires_grad=True)
    arrays = [leaves[name] for name in ("query", "key", "value")]
    if score == "dot":
        output = _attend(torch, case, inputs, (arrays[0] * leaves["scale"], *arrays[1:]), mask, 1.0)
    else:
        weight = leaves.get("score_weight")
        output = _attend_by_formula(torch, case, inputs, arrays, mask, leaves["scale"], score, weight)
    found = torch.autograd.grad(output, list(leaves.values()), torch.from_numpy(grad_output), allow_unused=True)
    zeros = (np.zeros(leaf.shape) if x is None else x.numpy() for x, leaf in zip(found, leaves.values(), strict=True))
    return dict(zip(leaves, zeros, strict=True))


def tangent(torch, case, inputs, tangents, score="dot", score_weight=None) -> np.ndarray:
    """Return the output's tangent, from those of query, key, value and a float mask, by forward mode in float64."""
    leaves = {name: leaf.detach() for name, leaf in leaves_of(torch, inputs, score_weight).items()}
    mask = inputs.arguments["attn_mask"]
    constant = None if mask is None else tensor_of(torch, mask)

    def attention(*moving):
        given = {**leaves, **dict(zip(tangents, moving, strict=True))}
        arrays = [given[name] for name in ("query", "key", "value")]
        mask, weight = given.get("attn_mask", constant), given.get("score_weight")
        return _attend_by_formula(torch, case, inputs, arrays, mask, scale_of(case, score), score, weight)

    directions = tuple(torch.from_numpy(x).double() for x in tangents.values())
    return torch.func.jvp(attention, tuple(leaves[name] for name in tangents), directions)[1].numpy()


def leaves_of(torch, inputs, score_weight=None) -> dict:
    """Return query, key, value, a float mask and score_weight in float64, of which gradients are wanted."""
    arrays = {**inputs._asdict(), "attn_mask": inputs.arguments["attn_mask"], "score_weight": score_weight}
    names = ("query", "key", "value", "attn_mask", "score_weight")
    arrays = {name: arrays[name] for name in names if arrays[name] is not None}
    return {
        name: tensor_of(torch, array).double().requires_grad_()
        for name, array in arrays.items()
        if array.dtype.kind == "f"
    }


def spread(torch, case, arrays):
    """Bring arrays to (..., heads, length, features), with the batch axes spelled out, as PyTorch wants them."""
    own_axes = 2 if case.heads is None else 3
    arrays = [array.transpose(-3, -2) if case.layout == "bshd" else array for array in arrays]
    return [array.expand(*case.batch, *array.shape[-own_axes:]) for array in arrays]


def _attend(torch, case, inputs, arrays, mask, scale):
    query, key, value = spread(torch, case, arrays)
    triangle_alone = case.causal == "causal_upper_left" and not (case.key_lengths or case.query_lengths)
    mask = joined_mask(torch, case, inputs.arguments, mask, query, needs_pairs=not (triangle_alone and mask is None))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        output = torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None and triangle_alone,
            scale=scale,
            enable_gqa=case.heads != case.kv_heads,
        )
    return output.transpose(-3, -2) if case.layout == "bshd" else output


def scale_of(case, score) -> float:
    """Return the scale, which is the score's default where the case has none."""
    if case.scale is not None:
        return case.scale
    return {"dot": case.head_dim**-0.5, "distance": 0.5 * case.head_dim**-0.5}.get(score, 1.0)


def scores_of(score, query, key, weight):
    """Return the scores, before scale and mask; (..., L, S)."""
    if score == "dot":
        return query @ key.mT
    if score == "cosine":
        query, key = (x / x.norm(dim=-1, keepdim=True) for x in (query, key))
        return query @ key.mT
    query, key = query[..., :, None, :], key[..., None, :, :]
    if score == "distance":
        return -((query - key) ** 2).sum(-1)
    x = query + key
    slope = x.detach().cosh() ** -2  # autograd's 1 - tanh^2 has few digits where tanh is near 1
    return (weight * (x.detach().tanh() + slope * (x - x.detach()))).sum(-1)


def repeat_heads(case, key, value):
    """Repeat key and value heads for the query heads that share them."""
    group = 1 if not case.heads else case.heads // case.kv_heads
    return (key, value) if group == 1 else (x.repeat_interleave(group, -3) for x in (key, value))


def _attend_by_formula(torch, case, inputs, arrays, mask, scale, score, weight):
    """Attend with a score that scaled_dot_product_attention does not have; rows that see nothing give 0."""
    query, key, value = spread(torch, case, arrays)
    key, value = repeat_heads(case, key, value)
    scores = scale * scores_of(score, query, key, weight)
    mask = joined_mask(torch, case, inputs.arguments, mask, query)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    output = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0) @ value
    return output.transpose(-3, -2) if case.layout == "bshd" else output


def has_case(case) -> bool:
    """PyTorch lets NaN leak from masked positions, and has no rows of NaN for empty ones."""
    return not case.poison and case.empty_rows == "zero"


def tensor_of(torch, array: np.ndarray):
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))


def joined_mask(torch, case, arguments, mask, query, needs_pairs=True):
    """Return a mask, bool or of the query's dtype, that broadcasts to (..., heads, L, S); None if nothing is hidden."""
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

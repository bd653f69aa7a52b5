"""Bounds of the errors of attention's gradients: each element's unit, in which its error is measured.

A score has the error of its product, its mask and its logsumexp, A roundings: the relative error of its weight P. Then

    dV = W.T dO                     A W |dO|
    dP = dO V.T                     FEW |dO| |V|
    delta = sum of dO O             |dO| sum of A P |V|, the error of O
    dS = P (dP - delta)             P (A |dP - delta| + the two above)
    dQ = scale dS K, and so on      the error of dS times |K|; rounding their sums is in A, which is at least FEW

Numbers below the smallest normal one count as 0, which is more than a rounding where all are that small.
"""

from __future__ import annotations

import numpy as np
from support import torch_twin

FEW = 4.0
EPSILON = {"float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float32": 2.0**-126, "float64": 2.0**-1022}


def units(torch, case, inputs, grad_output) -> dict[str, np.ndarray]:
    """Return the unit of each gradient of torch_twin.gradients.

    A unit is a sum over pairs that is linear in each array's magnitudes: autograd reduces it to the array's shape.
    """
    leaves = torch_twin.leaves_of(torch, inputs)
    signed = torch_twin.spread(torch, case, [leaves[name].detach() for name in ("query", "key", "value")])
    magnitudes = {name: leaf.detach().abs().requires_grad_() for name, leaf in leaves.items()}
    query, key, value = torch_twin.spread(torch, case, [magnitudes[name] for name in ("query", "key", "value")])
    (up,) = torch_twin.spread(torch, case, [torch.from_numpy(grad_output)])
    group = 1 if not case.heads else case.heads // case.kv_heads
    if group > 1:
        signed[1:] = [x.repeat_interleave(group, -3) for x in signed[1:]]
        key, value = (x.repeat_interleave(group, -3) for x in (key, value))
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    of_scale = torch.tensor(abs(scale), dtype=torch.float64, requires_grad=True)
    products = of_scale * (query @ key.mT)
    with torch.no_grad():
        scores, sizes = scale * (signed[0] @ signed[1].mT), products.detach().clone()
        mask = inputs.arguments["attn_mask"]
        mask = leaves.get("attn_mask", None if mask is None else torch_twin.tensor_of(torch, mask))
        mask = torch_twin.joined_mask(torch, case, inputs.arguments, mask, signed[0])
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, -torch.inf)
        elif mask is not None:
            scores, sizes = scores + mask, sizes + mask.abs().nan_to_num(posinf=0)
        lse = scores.logsumexp(-1, keepdim=True)
        weights = scores.softmax(-1).nan_to_num()  # NaN where a row sees nothing
        flushed = SMALLEST[case.dtype] / EPSILON[case.dtype]
        errors = FEW + torch.where(weights > 0, sizes.clamp(max=1e30), 0) + lse.abs().clamp(max=64)
        output = weights @ signed[2]
        delta = (up * output).sum(-1, keepdim=True)
        of_delta = (up.abs() * ((weights * errors) @ signed[2].abs())).sum(-1, keepdim=True)
        of_upstream = FEW * (up.abs() @ signed[2].abs().mT) + of_delta
        of_scores = weights * (errors * (up @ signed[2].mT - delta).abs() + of_upstream) + flushed * (1 + of_upstream)
        of_weights = weights * errors + flushed
    total = (of_scores * products).sum() + (of_weights * (up.abs() @ value.mT)).sum()
    if "attn_mask" in magnitudes:
        ones = magnitudes["attn_mask"] = torch.ones_like(magnitudes["attn_mask"]).requires_grad_()
        total = total + (of_scores * ones).sum()
    magnitudes["scale"] = of_scale
    found = torch.autograd.grad(total, list(magnitudes.values()), allow_unused=True)
    epsilon = EPSILON[case.dtype]
    return {
        name: np.zeros(leaf.shape) if x is None else epsilon * x.numpy()
        for (name, leaf), x in zip(magnitudes.items(), found, strict=True)
    }

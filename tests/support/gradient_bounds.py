"""Bounds of the errors of attention's gradients and tangents: each element's unit, in which its error is measured.

A score has the error of its product, its mask and its logsumexp, A roundings: the relative error of its weight P. Then

    dV = W.T dO                     A W |dO|
    dP = dO V.T                     FEW |dO| |V|
    delta = sum of dO O             |dO| sum of A P |V|, the error of O
    dS = P (dP - delta)             P (A |dP - delta| + the two above)
    dQ = scale dS K, and so on      the error of dS times |K|; rounding their sums is in A, which is at least FEW

|K| stands for the derivative of the score, and A for the score's error, which depend on the score function:

    dot         |k|                             scale |q| |k|
    cosine      (|v| + (|u| |v|) |u|) / |q|     scale |u| |v|, of the unit vectors u of q and v of k
    distance    2 scale |q - k|                 scale (|q| + |k|)^2 for small vectors, which are multiplied; else
                                                3 |score|: the rounding of a difference counts twice in its square
    additive    scale |w| (1 - tanh^2), with    FEW scale |w| |tanh|: it has the error of tanh, and of the rounded sum
                the error of the rounded sum

In forward mode the tangents dQ, dK, dV and dmask are given, M is the sum of the magnitudes of a dS, and

    dS = scale (dQ K.T + Q dK.T) + dmask    FEW M
    W dS                                    W (A |dS| + FEW M)
    c = sum of P dS                         its sum over the row
    (W dS) V + W dV - c O                   those two times |V| and |O|, A W |dV|, and |c| times the error of O

Numbers below the smallest normal one count as 0, which is more than a rounding where all are that small.
"""

from __future__ import annotations

import numpy as np
from support import torch_twin

FEW = 4.0
EPSILON = {"float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float32": 2.0**-126, "float64": 2.0**-1022}


def units(torch, case, inputs, grad_output, score="dot", score_weight=None) -> dict[str, np.ndarray]:
    """Return the unit of each gradient of torch_twin.gradients.

    A unit is a sum over pairs that is linear in each array's magnitudes: autograd reduces it to the array's shape.
    """
    leaves = torch_twin.leaves_of(torch, inputs, score_weight)
    names = ("query", "key", "value")
    signed = torch_twin.spread(torch, case, [leaves[name].detach() for name in names])
    signed[1:] = torch_twin.repeat_heads(case, *signed[1:])
    magnitudes = {name: _magnitudes(score, name, leaf).requires_grad_() for name, leaf in leaves.items()}
    query, key, value = torch_twin.spread(torch, case, [magnitudes[name] for name in names])
    key, value = torch_twin.repeat_heads(case, key, value)
    (up,) = torch_twin.spread(torch, case, [torch.from_numpy(grad_output)])
    scale = torch_twin.scale_of(case, score)
    of_scale = torch.tensor(abs(scale), dtype=torch.float64, requires_grad=True)
    weights = [x.get("score_weight") for x in (leaves, magnitudes)]
    scores, sizes, products = SCORES[score](torch, scale, of_scale, signed, (query, key), weights)
    with torch.no_grad():
        weights, errors, flushed = _weights(torch, case, inputs, leaves.get("attn_mask"), signed[0], scores, sizes)
        output = weights @ signed[2]
        delta = (up * output).sum(-1, keepdim=True)
        of_delta = (up.abs() * ((weights * errors) @ signed[2].abs())).sum(-1, keepdim=True)
        of_upstream = FEW * (up.abs() @ signed[2].abs().mT) + of_delta
        of_scores = weights * (errors * (up @ signed[2].mT - delta).abs() + of_upstream) + flushed * (1 + of_upstream)
        of_weights = weights * errors + flushed
    total = (of_scores * products).sum() + (of_weights * (up.abs() @ value.mT)).sum()
    if "attn_mask" in magnitudes:
        total = total + (of_scores * magnitudes["attn_mask"]).sum()
    magnitudes["scale"] = of_scale
    found = torch.autograd.grad(total, list(magnitudes.values()), allow_unused=True)
    found = [torch.zeros_like(leaf) if x is None else x for x, leaf in zip(found, magnitudes.values(), strict=True)]
    epsilon = EPSILON[case.dtype]
    return {
        name: epsilon * (_across(x, leaves[name]) if score == "cosine" and name in names[:2] else x).numpy()
        for name, x in zip(magnitudes, found, strict=True)
    }


def tangent_units(torch, case, inputs, tangents, score="dot", score_weight=None) -> np.ndarray:
    """Return the unit of each element of torch_twin.tangent, in the case's layout."""
    leaves = {name: leaf.detach() for name, leaf in torch_twin.leaves_of(torch, inputs, score_weight).items()}
    names, scale = ("query", "key", "value"), torch_twin.scale_of(case, score)
    query, key, value = _spread(torch, case, [leaves[name] for name in names])
    moves = [torch.from_numpy(tangents[name]).double() for name in names]
    of_query, of_key, of_value = _spread(torch, case, moves)
    weight = leaves.get("score_weight")
    scores, sizes = SCORES[score](
        torch, scale, torch.ones(()), (query, key), _magnitudes_of(score, query, key), [weight] * 2
    )[:2]

    def scores_of(query, key):
        return scale * torch_twin.scores_of(score, query, key, weight)

    change = torch.func.jvp(scores_of, (query, key), (of_query, of_key))[1]
    moved = TANGENTS[score](scale, query, key, of_query, of_key, weight)
    weights, errors, flushed = _weights(torch, case, inputs, leaves.get("attn_mask"), query, scores, sizes)
    if "attn_mask" in tangents:
        of_mask = torch.from_numpy(tangents["attn_mask"]).double()
        change, moved = change + of_mask, moved + of_mask.abs()
    change = torch.where(weights > 0, change, 0)
    of_weights = weights * errors + flushed
    of_changes = weights * (errors * change.abs() + FEW * moved) + flushed * (1 + moved)
    mean, output = (weights * change).sum(-1, keepdim=True), weights @ value
    unit = of_changes @ value.abs() + of_changes.sum(-1, keepdim=True) * output.abs() + of_weights @ of_value.abs()
    unit = EPSILON[case.dtype] * (unit + mean.abs() * (of_weights @ value.abs()))
    return (unit.transpose(-3, -2) if case.layout == "bshd" else unit).numpy()


def _spread(torch, case, arrays):
    """Bring query, key and value to one shape of batch and heads."""
    query, *others = torch_twin.spread(torch, case, arrays)
    return query, *torch_twin.repeat_heads(case, *others)


def _weights(torch, case, inputs, float_mask, query, scores, sizes):
    """Return the weights, A, and what of a weight may have been flushed to 0."""
    mask = inputs.arguments["attn_mask"]
    mask = float_mask if float_mask is not None or mask is None else torch_twin.tensor_of(torch, mask)
    mask = torch_twin.joined_mask(torch, case, inputs.arguments, mask, query)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores, sizes = scores + mask, sizes + mask.abs().nan_to_num(posinf=0)
    lse = scores.logsumexp(-1, keepdim=True)
    weights = scores.softmax(-1).nan_to_num()  # NaN where a row sees nothing
    errors = FEW + torch.where(weights > 0, sizes.clamp(max=1e30), 0) + lse.abs().clamp(max=64)
    return weights, errors, SMALLEST[case.dtype] / EPSILON[case.dtype]


def _magnitudes_of(score, *arrays):
    return [(_unit_vectors(x) if score == "cosine" else x).abs() for x in arrays]


def _magnitudes(score, name, leaf):
    leaf = leaf.detach()
    if score == "cosine" and name in ("query", "key"):
        return _unit_vectors(leaf).abs()
    return leaf.abs()


def _unit_vectors(x):
    return x / x.norm(dim=-1, keepdim=True)


def _across(unit, x):
    """From the unit of a unit vector's gradient to that of the vector."""
    size = _unit_vectors(x.detach()).abs()
    return (unit + (unit * size).sum(-1, keepdim=True) * size) / x.detach().norm(dim=-1, keepdim=True)


# Each returns scores, the sizes of their errors, and sums over pairs whose derivatives are bounds of the score's.


def _dot(torch, scale, of_scale, signed, magnitudes, weights):
    products = of_scale * (magnitudes[0] @ magnitudes[1].mT)
    return scale * (signed[0] @ signed[1].mT), products.detach(), products


def _cosine(torch, scale, of_scale, signed, magnitudes, weights):
    return _dot(torch, scale, of_scale, [_unit_vectors(x) for x in signed[:2]], magnitudes, weights)


def _distance(torch, scale, of_scale, signed, magnitudes, weights):
    (query, key), (of_query, of_key) = _pairs(signed), _pairs(magnitudes)
    apart = (query - key).abs()
    scores = -scale * (apart**2).sum(-1)
    norms = abs(scale) * ((query**2).sum(-1) + (key**2).sum(-1)) / np.log(2)
    multiplied = abs(scale) * ((query.abs() + key.abs()) ** 2).sum(-1)
    sizes = torch.where(norms < 1.01 * PRODUCT_LIMIT, multiplied, 3 * scores.abs())
    slopes = 2 * abs(scale) * (apart * _linear(of_query, of_key)).sum(-1)
    return scores, sizes, of_scale * (apart**2).sum(-1) + slopes


def _additive(torch, scale, of_scale, signed, magnitudes, weights):
    (query, key), (of_query, of_key) = _pairs(signed), _pairs(magnitudes)
    weight, of_weight = weights[0].detach(), weights[1]
    x = query + key
    tanh, slope = x.tanh().abs(), x.cosh() ** -2
    scores = scale * (weight * x.tanh()).sum(-1)
    sizes = FEW * abs(scale) * (weight.abs() * tanh).sum(-1)
    slopes = abs(scale) * (weight.abs() * slope * (1 + x.abs() * tanh / 2) * _linear(of_query, of_key)).sum(-1)
    of_weights = abs(scale) * (tanh * _linear(of_weight)).sum(-1)
    return scores, sizes, of_scale * (weight.abs() * tanh).sum(-1) + slopes + of_weights


SCORES = {"dot": _dot, "cosine": _cosine, "distance": _distance, "additive": _additive}
PRODUCT_LIMIT = 32  # ATTN_PRODUCT_LIMIT


# Each returns the sum of the magnitudes of a score's tangent.


def _dot_tangent(scale, query, key, of_query, of_key, weight):
    return abs(scale) * (of_query.abs() @ key.abs().mT + query.abs() @ of_key.abs().mT)


def _cosine_tangent(scale, query, key, of_query, of_key, weight):
    of_units = [_across(x.abs(), of) for x, of in ((of_query, query), (of_key, key))]
    return _dot_tangent(scale, _unit_vectors(query), _unit_vectors(key), *of_units, weight)


def _distance_tangent(scale, query, key, of_query, of_key, weight):
    (query, key), (of_query, of_key) = _pairs((query, key)), _pairs((of_query, of_key))
    return 2 * abs(scale) * ((query - key).abs() * (of_query - of_key).abs()).sum(-1)


def _additive_tangent(scale, query, key, of_query, of_key, weight):
    (query, key), (of_query, of_key) = _pairs((query, key)), _pairs((of_query, of_key))
    x = query + key
    slope = x.cosh() ** -2 * (1 + x.abs() * x.tanh().abs() / 2)
    return abs(scale) * (weight.abs() * slope * (of_query + of_key).abs()).sum(-1)


TANGENTS = {
    "dot": _dot_tangent,
    "cosine": _cosine_tangent,
    "distance": _distance_tangent,
    "additive": _additive_tangent,
}


def _pairs(arrays):
    return arrays[0][..., :, None, :], arrays[1][..., None, :, :]


def _linear(*leaves):
    """Return a tensor of zeros whose derivatives by its leaves are 1."""
    return sum(leaf - leaf.detach() for leaf in leaves)

"""Drawn cases of torch's multi-head attention: arguments, inputs and masks, and twins of equal parameters."""

from __future__ import annotations

import warnings

import numpy as np
from support.mask_draws import draw_mask

from pyattn import nn

CASES = 85
VALUES = {
    "dtype": ["float32", "float64"],
    "heads": [1, 2, 4],
    "inputs": ["self", "one memory", "cross", "kdim", "vdim"],
    "batched": [False, True],
    "batch_first": [False, True],
    "bias": [False, True],
    "add_bias_kv": [False, True],
    "add_zero_attn": [False, True],
    "key_padding_mask": ["none", "bool", "bool, ends", "float"],
    "attn_mask": ["none", "bool", "float", "bool, 3-D", "float, 3-D"],
    "is_causal": [False, True],
    "need_weights": [False, True],
    "average_attn_weights": [False, True],
    "size": ["tiny", "small", "large"],
}
LARGEST = {"tiny": 3, "small": 40, "large": 180}


def draw_cases(block):
    rng = np.random.default_rng([7, block])
    return [{name: values[rng.integers(len(values))] for name, values in VALUES.items()} for _ in range(CASES)]


def draw(case, rng):
    """Constructor's arguments, inputs and masks of a case."""
    dtype, heads = case["dtype"], case["heads"]
    embed, batch = heads * int(rng.integers(1, 17)), int(rng.integers(1, 4))
    most = LARGEST[case["size"]]
    q_len, kv_len = (int(n) for n in rng.integers(max(1, most // 4), most + 1, size=2))
    if case["inputs"] == "self":
        kv_len = q_len
    kdim = embed + 3 if case["inputs"] == "kdim" else embed
    vdim = embed + 5 if case["inputs"] == "vdim" else embed

    def normal(length, features):
        shape = (length, features)
        if case["batched"]:
            shape = (batch, *shape) if case["batch_first"] else (length, batch, features)
        return rng.standard_normal(shape).astype(dtype)

    query = normal(q_len, embed)
    key = query if case["inputs"] == "self" else normal(kv_len, kdim)
    value = key if case["inputs"] in ("self", "one memory") else normal(kv_len, vdim)
    names = ("bias", "add_bias_kv", "add_zero_attn", "batch_first")
    options = {
        "embed_dim": embed,
        "num_heads": heads,
        "kdim": kdim,
        "vdim": vdim,
        **{name: case[name] for name in names},
    }
    rows = (batch * heads if case["batched"] else heads,) if "3-D" in case["attn_mask"] else ()
    padding = (batch, kv_len) if case["batched"] else (kv_len,)
    masks = {
        "attn_mask": draw_mask(rng, case["attn_mask"], (*rows, q_len, kv_len), dtype),
        "key_padding_mask": draw_mask(rng, case["key_padding_mask"], padding, dtype),
    }
    return options, (query, key, value), masks


def call_torch(torch, module, inputs, masks, **options):
    seen = {}
    tensors = [seen.setdefault(id(x), torch.from_numpy(x)) for x in inputs]  # torch looks at what `is` what
    masks = {name: None if mask is None else torch.from_numpy(mask) for name, mask in masks.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # masks of both kinds are deprecated there
        output, weights = module(*tensors, **masks, **options)
    return output.numpy(), None if weights is None else weights.numpy()


def twins(torch, options, dtype, rng):
    """Of the same parameters, all of them drawn, by a state_dict there and back."""
    theirs = torch.nn.MultiheadAttention(**options, dtype=getattr(torch, dtype)).eval()
    ours = nn.MultiheadAttention(**options, dtype=dtype, rng=rng).eval()
    for bias in (ours.in_proj_bias, ours.out_proj.bias):
        if bias is not None:
            bias[...] = rng.standard_normal(bias.shape)
    assert {key: array.shape for key, array in ours.state_dict().items()} == {
        key: tuple(tensor.shape) for key, tensor in theirs.state_dict().items()
    }
    theirs.load_state_dict({key: torch.from_numpy(array) for key, array in ours.state_dict().items()}, strict=True)
    return ours, theirs

"""Names and shapes of multi-head attention's parameters: torch's, packed in one array or separate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyattn._util.typing import FloatArray
from pyattn.functional._multihead import Parameters
from pyattn.nn.inputs import check_parameter, check_parameter_dtypes

__all__ = [
    "OWN",
    "SEPARATE",
    "check_fit",
    "is_packable",
    "parameters_of",
    "rows_of_projections",
    "shapes_of",
    "weights_of",
]

SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
OWN = ("in_proj_weight", *SEPARATE, "in_proj_bias", "bias_k", "bias_v")  # torch's order in a state_dict


def rows_of_projections(module: Any) -> tuple[int, int, int]:
    """Return the number of rows of the weights of query, key and value."""
    heads, kv_heads = module.num_heads, module.num_kv_heads
    return heads * module.head_dim, kv_heads * module.head_dim, kv_heads * module.v_head_dim


def is_packable(module: Any, out_dim: int) -> bool:
    """Tell whether all sizes are torch's defaults, so that one array holds the weights of query, key and value."""
    return {*rows_of_projections(module), module.kdim, module.vdim, out_dim} == {module.embed_dim}


def shapes_of(module: Any, out_dim: int, bias: bool, bias_kv: bool, packed: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the existing parameters, in torch's order."""
    q, k, v = rows_of_projections(module)
    shapes: dict[str, tuple[int, ...]] = {"in_proj_weight": (3 * module.embed_dim, module.embed_dim)}
    if not packed:
        separate = (q, module.embed_dim), (k, module.kdim), (v, module.vdim)
        shapes = dict(zip(SEPARATE, separate, strict=True))
    shapes |= {"in_proj_bias": (q + k + v,)} if bias else {}
    shapes |= {"bias_k": (1, 1, k), "bias_v": (1, 1, v)} if bias_kv else {}
    shapes["out_proj.weight"] = (out_dim, module.num_heads * module.v_head_dim)
    return shapes | ({"out_proj.bias": (out_dim,)} if bias else {})


def weights_of(state: Mapping[str, FloatArray]) -> list[FloatArray]:
    """Return the weights of query, key, value and output; a packed one is returned for the first three."""
    names = [*(["in_proj_weight"] * 3 if "in_proj_weight" in state else SEPARATE), "out_proj.weight"]
    for name in names:
        if name not in state:
            raise ValueError(f"{name} is missing; use the names of torch.nn.MultiheadAttention's state_dict")
        check_parameter(state[name], name)
        if state[name].ndim != 2:
            raise ValueError(f"{name} has shape {state[name].shape}, expected 2 axes: (out_features, in_features)")
    return [state[name] for name in names]


def parameters_of(module: Any) -> Parameters:
    """Return the parameters as the core takes them."""
    bias, bias_k, bias_v = module.in_proj_bias, module.bias_k, module.bias_v
    weights, biases = (module.in_proj_weight, None, None), (bias, None, None)
    if module.in_proj_weight is None:
        weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
        q, k, _ = rows_of_projections(module)
        biases = biases if bias is None else (bias[:q], bias[q : q + k], bias[q + k :])
    extra_key = None if bias_k is None else bias_k.squeeze((0, 1))
    extra_value = None if bias_v is None else bias_v.squeeze((0, 1))
    out = module.out_proj
    return Parameters(*weights, out.weight, *biases, out.bias, extra_key, extra_value)


def check_fit(module: Any) -> None:
    """Raise for a parameter that does not fit the module, by its own name; the core uses other names."""
    check_parameter_dtypes(module, module.out_proj.weight.dtype)
    state = module.state_dict()
    packed, bias_kv = not any(name in state for name in SEPARATE), "bias_k" in state or "bias_v" in state
    for name, shape in shapes_of(module, module.out_dim, True, bias_kv, packed).items():
        found = state[name].shape if name in state else None
        if found is None and not name.endswith("bias"):
            raise ValueError(f"{name} is None, expected an array of shape {shape}")
        if found not in (None, shape):
            raise ValueError(f"{name} has shape {found}, expected {shape}")

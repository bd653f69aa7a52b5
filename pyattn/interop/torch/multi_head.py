"""Multi-head attention of torch's tensors, with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import pyattn.functional as functional
import pyattn.interop.torch.differentiable as differentiable
from pyattn._util.arguments import as_flag, as_probability
from pyattn.functional._multihead import read_arrays
from pyattn.functional._multihead_masks import Masking, ScoreSizes, to_core
from pyattn.interop.torch.attention import attend, draw_seed, is_operation
from pyattn.interop.torch.reading import check_tensor, is_transformed, read_tensor
from pyattn.interop.torch.snapshot import UnfitError
from pyattn.interop.torch.tensors import view_as_tensor
from pyattn.interop.torch.threads import call_on_torchs_threads

__all__ = ["multi_head_attention_forward"]


def multi_head_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: torch.Tensor | None,
    in_proj_bias: torch.Tensor | None,
    bias_k: torch.Tensor | None,
    bias_v: torch.Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: torch.Tensor | None,
    training: bool = True,
    key_padding_mask: torch.Tensor | None = None,
    need_weights: bool = True,
    attn_mask: torch.Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: torch.Tensor | None = None,
    k_proj_weight: torch.Tensor | None = None,
    v_proj_weight: torch.Tensor | None = None,
    static_k: torch.Tensor | None = None,
    static_v: torch.Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute multi-head attention of torch's tensors, on the CPU.

    With the arguments of `torch.nn.functional.multi_head_attention_forward`, as
    `pyattn.functional.multi_head_attention_forward` describes them. Autograd differentiates it with respect to every
    tensor of floats. With gradients and ``need_weights=True``, PyTorch computes the call; with ``need_weights=False``,
    pyattn does. Gradients of gradients, transforms of `torch.func`, batches of gradients and forward mode are right but
    slower, as torch's own operations compute them.

    Parameters
    ----------
    query : Tensor, (L, N, E) or unbatched (L, E)
        float16, bfloat16, float32 or float64, as all tensors but the masks.
    key : Tensor, (S, N, kdim) or (S, kdim)
        kdim is E unless use_separate_proj_weight.
    value : Tensor, (S, N, vdim) or (S, vdim)
        As long as key.
    embed_dim_to_check : int
        E.
    num_heads : int
        Divides E.
    in_proj_weight : Tensor, (3 * E, E), or None
        Weights of query, key and value, stacked; unused with use_separate_proj_weight.
    in_proj_bias : Tensor, (3 * E,), or None
        Their biases.
    bias_k, bias_v : Tensor, (1, 1, E), or None
        An extra key and value, appended to the projected ones; every query attends to them.
    add_zero_attn : bool
        Append a key and a value of zeros, after bias_k and bias_v.
    dropout_p : float
        Probability that a weight becomes 0, when training; `torch.manual_seed` decides which.
    out_proj_weight : Tensor, (out_dim, E)
        Weight of the output projection.
    out_proj_bias : Tensor, (out_dim,), or None
        Its bias.
    training : bool
        Apply dropout. Default: True.
    key_padding_mask : Tensor, (N, S) or (S,), optional
        bool: True = blocked; float: added to the scores. Default: None.
    need_weights : bool
        Return the weights too. Default: True.
    attn_mask : Tensor, (L, S) or (N * num_heads, L, S), optional
        bool: True = blocked; float: added to the scores. Batch entry b, head h is at ``b * num_heads + h``.
        Default: None.
    use_separate_proj_weight : bool
        Use the next three arguments instead of in_proj_weight. Default: False.
    q_proj_weight : Tensor, (E, E), optional
        Default: None.
    k_proj_weight : Tensor, (E, kdim), optional
        Default: None.
    v_proj_weight : Tensor, (E, vdim), optional
        Default: None.
    static_k, static_v : Tensor, (N * num_heads, S, E / num_heads), optional
        Replace the projected key and value. Default: None.
    average_attn_weights : bool
        Return the mean of the weights over heads. Default: True.
    is_causal : bool
        Query i attends only to keys 0 to i, and to those of bias_k and add_zero_attn. Default: False.

    Returns
    -------
    output : Tensor, (L, N, out_dim) or (L, out_dim)
        Of the tensors' dtype.
    weights : Tensor, (N, L, S) or (L, S), or None
        With heads, (N, num_heads, L, S), unless averaged.

    Raises
    ------
    TypeError
        A tensor is not on the CPU, or not of query's dtype.
    ValueError
        Shapes disagree; dropout_p is not a probability.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> x, weight = torch.eye(2)[:, None], torch.eye(2).tile(3, 1)  # doctest: +SKIP
    >>> output, weights = pyattn.interop.torch.multi_head_attention_forward(
    ...     x, x, x, 2, 1, weight, None, None, None, False, 0.0, torch.eye(2), None
    ... )  # doctest: +SKIP
    >>> weights  # doctest: +SKIP
    tensor([[[0.6698, 0.3302],
             [0.3302, 0.6698]]])
    """
    tensors = {
        "query": query,
        "key": key,
        "value": value,
        "in_proj_weight": in_proj_weight,
        "in_proj_bias": in_proj_bias,
        "bias_k": bias_k,
        "bias_v": bias_v,
        "out_proj_weight": out_proj_weight,
        "out_proj_bias": out_proj_bias,
        "key_padding_mask": key_padding_mask,
        "attn_mask": attn_mask,
        "q_proj_weight": q_proj_weight,
        "k_proj_weight": k_proj_weight,
        "v_proj_weight": v_proj_weight,
        "static_k": static_k,
        "static_v": static_v,
    }
    options: dict[str, Any] = {
        "embed_dim_to_check": embed_dim_to_check,
        "num_heads": num_heads,
        "add_zero_attn": add_zero_attn,
        "dropout_p": dropout_p,
        "training": training,
        "need_weights": need_weights,
        "use_separate_proj_weight": use_separate_proj_weight,
        "average_attn_weights": average_attn_weights,
        "is_causal": is_causal,
    }
    if not is_operation(*tensors.values()):
        arrays = {name: None if x is None else read_tensor(x, name) for name, x in tensors.items()}
        rng = int(draw_seed()) if training and dropout_p else None
        found = call_on_torchs_threads(functional.multi_head_attention_forward, **arrays, **options, rng=rng)
        output, weights = (None if x is None else view_as_tensor(x) for x in found)
        return output.contiguous(), weights
    if not torch.compiler.is_compiling():
        for name, x in tensors.items():
            if x is not None:
                check_tensor(x, name)
                if x.dtype != query.dtype and not name.endswith("mask"):
                    wanted = query.dtype
                    raise TypeError(f"{name} has dtype {x.dtype}, expected {wanted}; pass {name}.to({wanted})")
        _check_shapes(tensors, embed_dim_to_check, num_heads, use_separate_proj_weight)
        dropout_p = as_probability(dropout_p, "dropout_p") if as_flag(training, "training") else 0.0
    if need_weights:
        result: tuple[Any, Any] = torch.nn.functional.multi_head_attention_forward(**tensors, **options)
        return result
    if not use_separate_proj_weight:
        tensors |= dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight"))
    if query.ndim == 2:
        unbatched = ("query", "key", "value")
        tensors |= {name: tensors[name].unsqueeze(1) for name in unbatched}
        if key_padding_mask is not None:
            tensors["key_padding_mask"] = key_padding_mask.unsqueeze(0)
    output = _compute(num_heads, add_zero_attn, dropout_p if training else 0.0, is_causal, tensors)
    return output.squeeze(1) if query.ndim == 2 else output, None


def _check_shapes(tensors: dict[str, Any], embed_dim: int, num_heads: int, separate: bool) -> None:
    """Check shapes as a call without gradients does, by arrays that take no memory."""
    like: dict[str, Any] = {name: None if x is None else _stand_in(x) for name, x in tensors.items()}
    masking = Masking(like.pop("attn_mask"), like.pop("key_padding_mask"))
    (query, key, _), _, heads, _ = read_arrays(like, embed_dim, num_heads, separate)
    to_core(masking, ScoreSizes(query.shape[:-2], heads, query.shape[-2], key.shape[-2]))


def _stand_in(x: torch.Tensor) -> np.ndarray[Any, Any]:
    """Make an array of a tensor's shape and kind that takes no memory."""
    if x.is_floating_point():
        return np.broadcast_to(np.float32(0), tuple(x.shape))
    return np.broadcast_to(np.bool_() if x.dtype == torch.bool else np.int64(0), tuple(x.shape))


def _compute(heads: int, add_zero: bool, dropout_p: float, is_causal: bool, tensors: dict[str, Any]) -> torch.Tensor:
    """Project, attend, and project back: operations that have gradients; batch entries come second."""
    query, key, value = (tensors[name].transpose(0, 1) for name in ("query", "key", "value"))
    query, key, value = _project(query, key, value, heads, tensors)
    extra = 0
    if tensors["bias_k"] is not None:
        shape = (len(key), 1, heads, -1)
        key, value = (
            torch.cat([x, tensors[name].view(1, 1, heads, -1).expand(*shape)], 1)
            for x, name in ((key, "bias_k"), (value, "bias_v"))
        )
        extra += 1
    if add_zero:
        key, value = (torch.nn.functional.pad(x, (0, 0, 0, 0, 0, 1)) for x in (key, value))
        extra += 1
    mask, causal = _mask(tensors["attn_mask"], tensors["key_padding_mask"], is_causal, (query, key), extra)
    output = attend(query, key, value, mask, dropout_p, causal, None, True, "bshd")
    joined = output.flatten(-2).transpose(0, 1)
    return _linear(joined, tensors["out_proj_weight"], tensors["out_proj_bias"])


def _project(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int, tensors: dict[str, Any]
) -> list[torch.Tensor]:
    """Project (N, length, features) to (N, length, heads, head_dim); one array is projected once."""
    weight, bias = tensors["in_proj_weight"], tensors["in_proj_bias"]
    is_static = tensors["static_k"] is not None or tensors["static_v"] is not None
    is_one = tensors["query"] is tensors["key"] and tensors["key"] is tensors["value"]
    if tensors["q_proj_weight"] is None and is_one and not is_static:
        return list(_linear(query, weight, bias).unflatten(-1, (3, heads, -1)).unbind(-3))
    separate = [tensors[f"{name}_proj_weight"] for name in "qkv"]
    weights = weight.chunk(3) if tensors["q_proj_weight"] is None else separate
    biases = [None] * 3 if bias is None else bias.chunk(3)
    projected = []
    for x, w, b, static in zip((query, key, value), weights, biases, (None, "static_k", "static_v"), strict=True):
        given = None if static is None else tensors[static]
        if given is None:
            projected.append(_linear(x, w, b).unflatten(-1, (heads, -1)))
        else:
            projected.append(given.unflatten(0, (-1, heads)).transpose(1, 2))
    return projected


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if torch.compiler.is_compiling() or is_transformed(x, weight, bias):
        return torch.nn.functional.linear(x, weight, bias)
    try:
        return differentiable.linear(x, weight, bias)
    except UnfitError:  # of a subclass, for one
        return torch.nn.functional.linear(x, weight, bias)


def _mask(
    attn_mask: torch.Tensor | None,
    padding: torch.Tensor | None,
    is_causal: bool,
    query_and_key: tuple[torch.Tensor, torch.Tensor],
    extra: int,
) -> tuple[torch.Tensor | None, bool]:
    """Join torch's masks, whose True means blocked; is_causal replaces attn_mask alone, as in torch."""
    query, key = query_and_key
    length, keys, heads = query.shape[1], key.shape[1] - extra, query.shape[2]
    if is_causal and padding is None:
        attn_mask = None
    if is_causal and extra and attn_mask is None:  # the extra keys come last, and are seen
        attn_mask = torch.ones(length, keys, dtype=torch.bool).triu(1)
    causal = is_causal and attn_mask is None
    joined = attn_mask
    if joined is not None and joined.ndim == 3:
        joined = joined.unflatten(0, (-1, heads))
    if padding is not None:
        padding = padding[:, None, None]
        if joined is None:
            joined = padding
        elif joined.dtype == padding.dtype == torch.bool:
            joined = joined | padding
        else:
            joined = _as_bias(joined, query.dtype) + _as_bias(padding, query.dtype)
    if joined is None:
        return None, causal
    joined = torch.nn.functional.pad(joined, (0, extra)) if extra else joined
    return ~joined if joined.dtype == torch.bool else joined, causal


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -torch.inf)

"""Attention of torch's tensors."""

from __future__ import annotations

from typing import Any, SupportsFloat

import torch

import pyattn.functional as functional
import pyattn.interop.torch.operators as operators
from pyattn._util.arguments import as_flag, as_probability, as_scale
from pyattn.interop.torch.reading import check_tensor, is_transformed, read_tensor
from pyattn.interop.torch.tensors import view_as_tensor
from pyattn.interop.torch.threads import call_on_torchs_threads

__all__ = ["attend", "attend_as_transformers", "draw_seed", "is_operation", "scaled_dot_product_attention"]


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: SupportsFloat = 0.0,
    is_causal: bool = False,
    scale: SupportsFloat | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute attention of torch's tensors, on the CPU.

    With the arguments of `torch.nn.functional.scaled_dot_product_attention`. Nothing is copied: pyattn reads the
    memory of the tensors. Autograd differentiates it with respect to query, key, value and a float mask; extra memory
    is O(L + S). Gradients of gradients, transforms of `torch.func`, batches of gradients and forward mode are right but
    slower, as torch's own operations compute them, in O(L * S) memory. `torch.compile` and `torch.export` see one
    operation, ``torch.ops.pyattn.scaled_dot_product_attention``.

    Parameters
    ----------
    query : Tensor, (..., L, head_dim)
        float16, bfloat16, float32 or float64.
    key : Tensor, (..., S, head_dim)
        Keys, of query's dtype.
    value : Tensor, (..., S, v_dim)
        Values, of query's dtype.
    attn_mask : Tensor, optional
        Broadcasts to (..., L, S). bool: True = attend; float: added to the scaled scores. Default: None, no mask.
    dropout_p : float
        Probability that a weight becomes 0; `torch.manual_seed` decides which. Default: 0.0.
    is_causal : bool
        Query i attends to keys 0 to i. Default: False.
    scale : float, optional
        Default: ``1 / sqrt(head_dim)``.
    enable_gqa : bool
        Query heads (axis -3) may be a multiple of key and value heads. Default: False.

    Returns
    -------
    Tensor, (..., L, v_dim)
        Output in query's dtype. A query with nothing to attend to gives 0.

    Raises
    ------
    TypeError
        A tensor is not on the CPU, or has another dtype than query.
    ValueError
        Shapes disagree; dropout_p is not a probability.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> x = torch.eye(2, requires_grad=True)  # doctest: +SKIP
    >>> y = pyattn.interop.torch.scaled_dot_product_attention(x, x, x, is_causal=True)  # doctest: +SKIP
    >>> y.detach()  # doctest: +SKIP
    tensor([[1.0000, 0.0000],
            [0.3302, 0.6698]])
    >>> torch.autograd.grad(y.square().sum(), x)  # doctest: +SKIP
    (tensor([[2.2181, 0.3362],
            [0.3362, 1.1096]]),)
    """
    named = {"query": query, "key": key, "value": value, "attn_mask": attn_mask}
    if not is_operation(*named.values()):
        arrays = [None if x is None else read_tensor(x, name) for name, x in named.items()]
        rng = int(draw_seed()) if dropout_p else None
        result = call_on_torchs_threads(
            functional.scaled_dot_product_attention,
            *arrays,
            dropout_p,
            is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            rng=rng,
        )
        return view_as_tensor(result)
    if not torch.compiler.is_compiling():
        for name, x in named.items():
            if x is not None:
                check_tensor(x, name)
        dropout_p, scale = as_probability(dropout_p, "dropout_p"), as_scale(scale)
        is_causal, enable_gqa = as_flag(is_causal, "is_causal"), as_flag(enable_gqa, "enable_gqa")
    options: Any = (dropout_p, is_causal, scale, enable_gqa)
    return attend(query, key, value, attn_mask, *options)


def is_operation(*tensors: torch.Tensor | None) -> bool:
    """Tell whether torch has to see operations: for gradients, for torch.func, or to compile a call."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or is_transformed(*tensors):
        return True
    if not torch.is_grad_enabled():
        return False
    return any(isinstance(x, torch.Tensor) and x.requires_grad for x in tensors)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    layout: str = "bhsd",
) -> torch.Tensor:
    """Compute attention as one operation of torch, which has gradients, or as several that torch can transform."""
    if not torch.compiler.is_compiling() and is_transformed(query, key, value, attn_mask):
        options = (None, dropout_p, is_causal, scale, enable_gqa, layout)
        return operators.attend_in_torch(query, key, value, attn_mask, *options)[0]
    seed = draw_seed() if dropout_p else None
    output: torch.Tensor = operators.attend(
        query, key, value, attn_mask, seed, dropout_p, is_causal, scale, enable_gqa, layout
    )[0]
    return output


def attend_as_transformers(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    need_weights: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend from (N, heads, length, dim) to (N, length, heads, dim); query heads may share keys."""
    named = {"query": query, "key": key, "value": value}
    with_gradients = is_operation(*named.values(), attention_mask)
    if with_gradients and need_weights:  # the loss may depend on the weights
        # Checkpointing calls again, with gradients at last, and the same weights have to be dropped.
        seed = draw_seed() if dropout_p and not is_transformed(*named.values(), attention_mask) else None
        options = (seed, dropout_p, is_causal, scale, True, "bhsd")
        output, weights = operators.attend_in_torch(query, key, value, attention_mask, *options)
        return output.transpose(1, 2), weights
    if with_gradients:
        q, k, v = (x.transpose(1, 2) for x in named.values())
        return attend(q, k, v, attention_mask, dropout_p, is_causal, scale, True, "bshd"), None
    arrays = [read_tensor(x, name).swapaxes(1, 2) for name, x in named.items()]
    result: Any = call_on_torchs_threads(
        functional.attention,
        *arrays,
        attn_mask=None if attention_mask is None else read_tensor(attention_mask, "attention_mask"),
        is_causal=is_causal,
        scale=scale,
        dropout_p=dropout_p,
        rng=int(draw_seed()) if dropout_p else None,
        enable_gqa=True,
        need_weights=need_weights,
        layout="bshd",
    )
    if not need_weights:
        return view_as_tensor(result), None
    return view_as_tensor(result.output), view_as_tensor(result.weights)


def draw_seed() -> torch.Tensor:
    """Draw a seed for dropout from torch's global generator."""
    return torch.randint(2**63 - 1, ())

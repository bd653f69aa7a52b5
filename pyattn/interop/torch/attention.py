"""Attention of torch's tensors."""

from __future__ import annotations

from typing import SupportsFloat

import torch

import pyattn.functional as functional
from pyattn.interop.torch.reading import read_tensor
from pyattn.interop.torch.tensors import view_as_tensor
from pyattn.interop.torch.threads import call_on_torchs_threads

__all__ = ["scaled_dot_product_attention", "seed_of_torch"]


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
    memory of the tensors. It computes no gradients.

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
        Of query's dtype. A query with nothing to attend to gives 0.

    Raises
    ------
    TypeError
        A tensor requires grad while gradients are enabled, is not on the CPU, or has another dtype than query.
    ValueError
        Shapes disagree; dropout_p is not a probability.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> x = torch.eye(2)  # doctest: +SKIP
    >>> pyattn.interop.torch.scaled_dot_product_attention(x, x, x, is_causal=True)  # doctest: +SKIP
    tensor([[1.0000, 0.0000],
            [0.3302, 0.6698]])
    """
    result = call_on_torchs_threads(
        functional.scaled_dot_product_attention,
        read_tensor(query, "query"),
        read_tensor(key, "key"),
        read_tensor(value, "value"),
        None if attn_mask is None else read_tensor(attn_mask, "attn_mask"),
        dropout_p,
        is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
        rng=seed_of_torch() if dropout_p else None,
    )
    return view_as_tensor(result)


def seed_of_torch() -> int:
    """Draw a seed for dropout from torch's global generator."""
    return int(torch.randint(2**63 - 1, ()))

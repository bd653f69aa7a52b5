"""Attention weights as bertviz reads them: its head_view and model_view show them in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core

if TYPE_CHECKING:
    import torch

__all__ = ["attentions"]

Array = npt.NDArray[Any]


def attentions(weights: Iterable[npt.ArrayLike], *, tensors: bool = False) -> tuple[Array | torch.Tensor, ...]:
    """Turn the weights of each layer into what bertviz's ``head_view`` and ``model_view`` take as ``attention``.

    It also fits their ``encoder_attention``, ``decoder_attention`` and ``cross_attention``.

    Parameters
    ----------
    weights : iterable of array_like, (heads, L, S) or (1, heads, L, S)
        One array per layer, of one batch entry: what ``pyattn.attention(..., need_weights=True)`` and
        ``MultiheadAttention(..., average_attn_weights=False)`` give. Of one layer, ``[weights]``.
    tensors : bool
        Whether to return tensors, which bertviz itself needs; torch is imported for these alone. They share the arrays'
        memory where torch can take it. Default: False.

    Returns
    -------
    tuple of ndarray or torch.Tensor, (1, heads, L, S)
        One per layer; without a copy where NumPy can view the weights.

    Raises
    ------
    ValueError
        There are no layers, or the weights of one are not those of one batch entry with all its heads, or layers differ
        in shape.
    TypeError
        The weights are not real numbers, or not one array per layer.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x = np.random.default_rng(0).standard_normal((12, 5, 8))
    >>> layer = pyattn.attention(x, x, x, need_weights=True).weights
    >>> [array.shape for array in pyattn.interop.bertviz.attentions([layer, layer])]
    [(1, 12, 5, 5), (1, 12, 5, 5)]
    """
    if not isinstance(weights, Iterable) or hasattr(weights, "weights"):
        fix = "; pass [weights.weights]" if hasattr(weights, "weights") else ""
        raise TypeError(f"weights is of type {type(weights).__name__}, expected an array for each layer{fix}")
    layers = tuple(_read_layer(layer, f"weights[{at}]") for at, layer in enumerate(weights))
    if not layers:
        raise ValueError("weights is empty, expected an array for each layer")
    for at, layer in enumerate(layers):
        if layer.shape != layers[0].shape:
            raise ValueError(
                f"weights[{at}] has shape {layer.shape[1:]} but weights[0] {layers[0].shape[1:]}; "
                "bertviz shows layers of one shape together"
            )
    if not tensors:
        return layers
    import torch

    return tuple(torch.from_numpy(layer if _can_be_shared(layer) else layer.copy()) for layer in layers)


def _can_be_shared(layer: Array) -> bool:
    """Whether torch takes its memory: it warns of what is read-only, and has no negative strides."""
    return layer.flags.writeable and min(layer.strides) >= 0


def _read_layer(layer: npt.ArrayLike, name: str) -> Array:
    if hasattr(layer, "weights"):
        kind = type(layer).__name__
        raise TypeError(f"{name} is of type {kind}, expected an array (heads, L, S); pass {name}.weights")
    array = np.asarray(_core.as_real(layer, name))
    if array.ndim == 2:
        raise ValueError(
            f"{name} has shape {array.shape}, expected (heads, L, S); one layer alone is given as [weights], "
            "and of a MultiheadAttention the weights of each head come with average_attn_weights=False"
        )
    if array.ndim == 4 and array.shape[0] != 1:
        raise ValueError(f"{name} has a batch of {array.shape[0]}, expected (heads, L, S); choose an entry, {name}[0]")
    if array.ndim not in (3, 4):
        raise ValueError(f"{name} has shape {array.shape}, expected (heads, L, S) or (1, heads, L, S)")
    return array[np.newaxis] if array.ndim == 3 else array

"""Convert attention weights for bertviz.

Its head_view and model_view show them in a notebook.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import as_float32

if TYPE_CHECKING:
    import torch

__all__ = ["attentions"]

Array = npt.NDArray[Any]


@overload
def attentions(weights: Iterable[npt.ArrayLike], *, tensors: Literal[False] = False) -> tuple[Array, ...]: ...
@overload
def attentions(weights: Iterable[npt.ArrayLike], *, tensors: Literal[True]) -> tuple[torch.Tensor, ...]: ...
@overload
def attentions(weights: Iterable[npt.ArrayLike], *, tensors: bool) -> tuple[Array | torch.Tensor, ...]: ...
def attentions(weights: Iterable[npt.ArrayLike], *, tensors: bool = False) -> tuple[Array | torch.Tensor, ...]:
    """Convert attention weights for bertviz.

    The result is the argument ``attention`` of bertviz's ``head_view`` and ``model_view``, or their
    ``encoder_attention``, ``decoder_attention`` or ``cross_attention``.

    Parameters
    ----------
    weights : iterable of array_like, (heads, L, S) or (1, heads, L, S)
        One array per layer, for one batch entry, as returned by ``pyattn.attention(..., need_weights=True)`` and
        ``MultiheadAttention(..., average_attn_weights=False)``. For a single layer, pass ``[weights]``.
    tensors : bool
        Return PyTorch tensors, which bertviz itself needs. They share the arrays' memory where torch can view it.
        Default: False, return arrays.

    Returns
    -------
    tuple of ndarray or torch.Tensor, (1, heads, L, S)
        One per layer; arrays are views where NumPy can view the weights.

    Raises
    ------
    ValueError
        weights is empty, a layer's weights are not (heads, L, S) of one batch entry, or layers differ in shape.
    TypeError
        weights does not hold one array of real numbers per layer.
    ImportError
        tensors is True, and PyTorch is not installed.

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
        raise TypeError(f"weights is of type {type(weights).__name__}, expected one array per layer{fix}")
    layers = tuple(_read_layer(layer, f"weights[{n}]") for n, layer in enumerate(weights))
    if not layers:
        raise ValueError("weights is empty, expected one array per layer")
    for n, layer in enumerate(layers):
        if layer.shape != layers[0].shape:
            raise ValueError(
                f"weights[{n}] has shape {layer.shape[1:]}, weights[0] has {layers[0].shape[1:]}; bertviz needs the "
                "same shape for all layers"
            )
    if not tensors:
        return layers
    try:
        import torch
    except ImportError as missing:
        raise ImportError("tensors=True needs PyTorch: pip install torch") from missing
    return tuple(torch.from_numpy(layer if _can_be_shared(layer) else layer.copy()) for layer in layers)


def _can_be_shared(layer: Array) -> bool:
    """Whether torch can view the array; it warns about read-only arrays and rejects negative strides."""
    return layer.flags.writeable and min(layer.strides) >= 0


def _read_layer(layer: npt.ArrayLike, name: str) -> Array:
    """Read the weights of one layer as (1, heads, L, S)."""
    if hasattr(layer, "weights"):
        kind = type(layer).__name__
        raise TypeError(f"{name} is of type {kind}, expected an array (heads, L, S); pass {name}.weights")
    array = as_float32(_core.as_real(layer, name))
    if array.ndim == 2:
        raise ValueError(
            f"{name} has shape {array.shape}, expected (heads, L, S); pass a single layer as [weights], and call "
            "MultiheadAttention with average_attn_weights=False to get the weights of each head"
        )
    if array.ndim == 4 and array.shape[0] != 1:
        raise ValueError(f"{name} has a batch of {array.shape[0]}, expected (heads, L, S); pass one entry, {name}[0]")
    if array.ndim not in (3, 4):
        raise ValueError(f"{name} has shape {array.shape}, expected (heads, L, S) or (1, heads, L, S)")
    return array[np.newaxis] if array.ndim == 3 else array

"""Parts of `pyattn.nn` whose parameters are a file's tensors themselves, and the shapes that these have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pyattn._util.typing import FloatArray
from pyattn.models._weights import Shapes
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.feed_forward import Activation
from pyattn.nn.linear import Linear
from pyattn.nn.norm import LayerNorm
from pyattn.nn.transformer.layer import TransformerEncoderLayer

__all__ = ["LayerNames", "attention", "encoder_layer", "layer_norm", "layer_shapes", "linear", "pair_shapes"]

Arrays = Mapping[str, FloatArray]


class LayerNames(NamedTuple):
    """What a family calls the parts of an encoder's layer; each has a weight and a bias."""

    query: str
    key: str
    value: str
    out: str
    norm1: str
    linear1: str
    linear2: str
    norm2: str

    def within(self, prefix: str) -> LayerNames:
        """Name the parts of one of several layers.

        Parameters
        ----------
        prefix : str
            What stands before the names.

        Returns
        -------
        LayerNames
            With it.
        """
        return LayerNames(*(prefix + name for name in self))


def pair_shapes(name: str, *shape: int) -> Shapes:
    """Name weight and bias of a linear layer, (out, in), or of a normalisation, (size,).

    Parameters
    ----------
    name : str
        Of the part.
    *shape : int
        Of its weight.

    Returns
    -------
    dict of str to tuple of int
        Of both.
    """
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def layer_shapes(names: LayerNames, dim: int, hidden: int) -> Shapes:
    """Name all of an encoder's layer.

    Parameters
    ----------
    names : LayerNames
        Of its parts.
    dim : int
        Features of its input.
    hidden : int
        Features within the feed-forward part.

    Returns
    -------
    dict of str to tuple of int
        Shapes by name.
    """
    shapes: Shapes = {}
    for name in (names.query, names.key, names.value, names.out):
        shapes |= pair_shapes(name, dim, dim)
    shapes |= pair_shapes(names.linear1, hidden, dim) | pair_shapes(names.linear2, dim, hidden)
    return shapes | pair_shapes(names.norm1, dim) | pair_shapes(names.norm2, dim)


def linear(arrays: Arrays, name: str) -> Linear:
    """Make a linear layer, with a bias where there is one.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of the model.
    name : str
        Of the part.

    Returns
    -------
    Linear
        With the arrays themselves.
    """
    return Linear.from_arrays(arrays[f"{name}.weight"], arrays.get(f"{name}.bias"))


def layer_norm(arrays: Arrays, name: str, eps: float) -> LayerNorm:
    """Make a normalisation.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of the model.
    name : str
        Of the part.
    eps : float
        Of the normalisation.

    Returns
    -------
    LayerNorm
        With the arrays themselves.
    """
    weight = arrays[f"{name}.weight"]
    norm = LayerNorm(weight.shape, eps, dtype=weight.dtype)
    norm.weight, norm.bias = weight, arrays[f"{name}.bias"]
    return norm


def attention(arrays: Arrays, names: tuple[str, str, str, str], heads: int) -> MultiheadAttention:
    """Make an attention whose query, key and value have weights of their own.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of the model.
    names : tuple of str
        Of query, key, value and output.
    heads : int
        Number of heads.

    Returns
    -------
    MultiheadAttention
        With the weights themselves. The biases of query, key and value are one array, as in torch, and so a copy.
    """
    state = {f"{x}_proj_weight": arrays[f"{name}.weight"] for x, name in zip("qkv", names[:3], strict=True)}
    state["in_proj_bias"] = np.concatenate([arrays[f"{name}.bias"] for name in names[:3]])
    state |= {f"out_proj.{part}": arrays[f"{names[3]}.{part}"] for part in ("weight", "bias")}
    return MultiheadAttention.from_arrays(state, heads, batch_first=True)


def encoder_layer(
    arrays: Arrays, names: LayerNames, heads: int, activation: Activation, eps: float
) -> TransformerEncoderLayer:
    """Make an encoder's layer, which normalises sums and drops nothing.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of the model.
    names : LayerNames
        Of its parts.
    heads : int
        Number of heads.
    activation : str or callable
        Of the feed-forward part.
    eps : float
        Of its normalisations.

    Returns
    -------
    TransformerEncoderLayer
        With the arrays themselves.
    """
    parts = {"self_attn": attention(arrays, (names.query, names.key, names.value, names.out), heads)}
    linears = {name: linear(arrays, getattr(names, name)) for name in ("linear1", "linear2")}
    norms = {name: layer_norm(arrays, getattr(names, name), eps) for name in ("norm1", "norm2")}
    return TransformerEncoderLayer.from_parts({**parts, **linears, **norms}, dropout=0.0, activation=activation)

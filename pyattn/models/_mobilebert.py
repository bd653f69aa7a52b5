"""MobileBERT: layers that compute in a narrow space, with several feed-forward networks each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.typing import FloatArray
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.containers import ModuleList
from pyattn.nn.feed_forward import Activation, feed
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module

__all__ = ["FeedForwardNorm", "LinearNorm", "MobileBertLayer", "NoNorm"]


class NoNorm(Module):
    """``weight * x + bias``, which takes the place of a layer normalisation.

    Parameters
    ----------
    weight, bias : ndarray, (features,)
        The parameters themselves.
    """

    weight: FloatArray
    bias: FloatArray

    def __init__(self, weight: FloatArray, bias: FloatArray) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: FloatArray) -> FloatArray:
        """Compute it.

        Parameters
        ----------
        x : ndarray, (..., features)
            Of the weight's dtype.

        Returns
        -------
        ndarray
            Of x's shape.
        """
        y: FloatArray = self.weight * x
        y += self.bias
        return y


class LinearNorm(Module):
    """``norm(linear(x) + residual)``.

    Parameters
    ----------
    linear : Linear
        Into the narrow space, or out of it.
    norm : Module
        What the sum goes through.
    """

    linear: Linear
    norm: Module

    def __init__(self, linear: Linear, norm: Module) -> None:
        super().__init__()
        self.linear, self.norm = linear, norm

    def forward(self, x: FloatArray, residual: FloatArray | None = None) -> FloatArray:
        """Compute it.

        Parameters
        ----------
        x : ndarray, (..., in_features)
            Of the weight's dtype.
        residual : ndarray, (..., out_features), optional
            Default: None, nothing is added.

        Returns
        -------
        ndarray, (..., out_features)
        """
        y = functional.linear(x, self.linear.weight, self.linear.bias, residual=residual)
        result: FloatArray = self.norm(y)
        return result


class FeedForwardNorm(Module):
    """``norm(linear2(act(linear1(x))) + x)``.

    Parameters
    ----------
    linear1, linear2 : Linear
        There and back.
    norm : Module
        What the sum goes through.
    activation : str or callable
        As for `pyattn.nn.FeedForward`.
    """

    linear1: Linear
    linear2: Linear
    norm: Module

    def __init__(self, linear1: Linear, linear2: Linear, norm: Module, activation: Activation) -> None:
        super().__init__()
        self.linear1, self.linear2, self.norm = linear1, linear2, norm
        self.activation = activation

    def forward(self, x: FloatArray) -> FloatArray:
        """Compute it.

        Parameters
        ----------
        x : ndarray, (..., features)
            Of the weights' dtype.

        Returns
        -------
        ndarray
            Of x's shape.
        """
        y = feed(x, self.linear1, self.linear2, None, self.activation, 0.0, None)
        y += x
        result: FloatArray = self.norm(y)
        return result


class MobileBertLayer(Module):
    """A layer of a MobileBERT: attention and feed-forward networks within a narrow space.

    Parameters
    ----------
    self_attn : MultiheadAttention
        Batch first, with a size of its own for values.
    norm1 : Module
        Of the attention.
    feed_forwards : iterable of FeedForwardNorm
        One after another.
    narrow_residual : LinearNorm, optional
        The way into the narrow space, of what the attention's output is added to. Default: None, a space for all.
    narrow_attention : LinearNorm, optional
        Another way there, of queries and keys. Default: None, these are what the values are.
    narrow_values : bool
        Values are of the narrow space. Default: False.
    widen : LinearNorm, optional
        The way out. Default: None.
    """

    self_attn: MultiheadAttention
    norm1: Module
    feed_forwards: ModuleList
    narrow_residual: LinearNorm | None
    narrow_attention: LinearNorm | None
    widen: LinearNorm | None

    def __init__(
        self,
        self_attn: MultiheadAttention,
        norm1: Module,
        feed_forwards: Iterable[FeedForwardNorm],
        *,
        narrow_residual: LinearNorm | None = None,
        narrow_attention: LinearNorm | None = None,
        narrow_values: bool = False,
        widen: LinearNorm | None = None,
    ) -> None:
        super().__init__()
        self.self_attn, self.norm1 = self_attn, norm1
        self.feed_forwards = ModuleList(feed_forwards)
        self.narrow_residual, self.narrow_attention, self.widen = narrow_residual, narrow_attention, widen
        self.narrow_values = narrow_values

    def forward(self, src: FloatArray, *, src_key_padding_mask: npt.ArrayLike | None = None) -> FloatArray:
        """Compute the layer.

        Parameters
        ----------
        src : ndarray, (N, L, features)
            Of the weights' dtype.
        src_key_padding_mask : array_like, (N, L), optional
            True = blocked. Default: None.

        Returns
        -------
        ndarray
            Of src's shape.
        """
        return self._compute(src, src_key_padding_mask, False)[0]

    def forward_with_weights(
        self, src: FloatArray, *, src_key_padding_mask: npt.ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray | None, None]:
        """Compute the layer and return the weights of its attention, too.

        Parameters
        ----------
        src : ndarray, (N, L, features)
            As for `forward`.
        src_key_padding_mask : array_like, (N, L), optional
            As for `forward`. Default: None.

        Returns
        -------
        output : ndarray
            As `forward` gives it.
        self_weights : ndarray, (N, heads, L, L)
            Of the attention.
        cross_weights : None
            As a `pyattn.nn.TransformerEncoderLayer` has it.
        """
        output, weights = self._compute(src, src_key_padding_mask, True)
        return output, weights, None

    def _compute(
        self, x: FloatArray, padding: npt.ArrayLike | None, need_weights: bool
    ) -> tuple[FloatArray, FloatArray | None]:
        residual = x if self.narrow_residual is None else self.narrow_residual(x)
        values = residual if self.narrow_values else x
        queries = values if self.narrow_attention is None else self.narrow_attention(x)
        options = {"need_weights": need_weights, "average_attn_weights": False}
        y, weights = self.self_attn(queries, queries, values, key_padding_mask=padding, **options)
        y += residual
        y = self.norm1(y)
        for network in self.feed_forwards:
            y = network(y)
        return y if self.widen is None else self.widen(y, x), weights

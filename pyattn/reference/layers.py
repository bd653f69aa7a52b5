"""Layers that work row by row: linear, normalization, activations and softmax."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["activate", "feed_forward", "layer_norm", "linear", "log_softmax", "rms_norm", "softmax"]

Floats = npt.NDArray[np.floating[Any]]


def softmax(x: npt.ArrayLike, axis: int = -1, *, dtype: npt.DTypeLike = np.float64) -> Floats:
    """Return exp(x) / sum(exp(x)) along an axis.

    Parameters
    ----------
    x : array_like
        Real numbers.
    axis : int
        Default: -1, the last.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    ndarray
        NaN if a whole row is -inf: softmax has no mask, so such a row is not an empty row.
    """
    x = np.asarray(x).astype(dtype)
    with np.errstate(all="ignore"):
        exponentials = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
        return np.asarray(exponentials / exponentials.sum(axis=axis, keepdims=True))


def log_softmax(x: npt.ArrayLike, axis: int = -1, *, dtype: npt.DTypeLike = np.float64) -> Floats:
    """Return x - log(sum(exp(x))) along an axis.

    Parameters
    ----------
    x : array_like
        Real numbers.
    axis : int
        Default: -1, the last.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    ndarray
        Of x's shape.
    """
    x = np.asarray(x).astype(dtype)
    with np.errstate(all="ignore"):
        below = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
        return np.asarray(below - np.log(np.exp(below).sum(axis=axis, keepdims=True)))


def linear(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    activation: str | None = None,
    gate: npt.ArrayLike | None = None,
    residual: npt.ArrayLike | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Floats:
    """Compute a linear layer, activation(x W^T + b) * gate + residual.

    Parameters
    ----------
    x : array_like, (..., inner)
        The input.
    weight : array_like, (features, inner)
        In the shape of torch.nn.Linear.
    bias : array_like, (features,), optional
        Default: None.
    activation : str, optional
        A name that `activate` knows. Default: None.
    gate : array_like, (..., features), optional
        Multiplies the activation. Default: None.
    residual : array_like, (..., features), optional
        Added last. Default: None.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    ndarray, (..., features)
    """
    y = np.asarray(x).astype(dtype) @ np.asarray(weight).astype(dtype).T
    if bias is not None:
        y = y + np.asarray(bias).astype(dtype)
    if activation is not None:
        y = activate(y, activation, dtype=dtype)
    if gate is not None:
        y = y * np.asarray(gate).astype(dtype)
    return np.asarray(y if residual is None else y + np.asarray(residual).astype(dtype))


def activate(x: npt.ArrayLike, activation: str, *, dtype: npt.DTypeLike = np.float64) -> Floats:
    """Apply an activation to each element.

    Parameters
    ----------
    x : array_like
        Real numbers.
    activation : {"relu", "gelu", "gelu_tanh", "silu", "tanh"}
        Its name.
    dtype : dtype_like
        The type of all arithmetic, except for Phi of "gelu" in float64. Default: float64.

    Returns
    -------
    ndarray
        Of x's shape.

    Raises
    ------
    ValueError
        The activation is unknown.
    """
    x = np.asarray(x).astype(dtype)
    if activation == "relu":
        return np.asarray(np.maximum(x, 0))
    if activation == "gelu":
        return np.asarray(x * np.vectorize(lambda one: math.erfc(-one * math.sqrt(0.5)) / 2, otypes=[x.dtype])(x))
    if activation == "tanh":
        return np.asarray(np.tanh(x))
    if activation not in ("gelu_tanh", "silu"):
        raise ValueError(f"activation is {activation!r}, which this function does not know")
    exponent = 2 * np.sqrt(x.dtype.type(2) / np.pi) * (x + 0.044715 * x**3) if activation == "gelu_tanh" else x
    with np.errstate(over="ignore"):
        return np.asarray(x / (1 + np.exp(-exponent)))


def feed_forward(
    x: npt.ArrayLike,
    in_weight: npt.ArrayLike,
    in_bias: npt.ArrayLike | None,
    out_weight: npt.ArrayLike,
    out_bias: npt.ArrayLike | None,
    *,
    activation: str | None = "relu",
    gate_weight: npt.ArrayLike | None = None,
    gate_bias: npt.ArrayLike | None = None,
    residual: npt.ArrayLike | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Floats:
    """Compute activation(x W1^T + b1) W2^T + b2 + residual, or its gated form.

    Parameters
    ----------
    x : array_like, (..., features)
        The input.
    in_weight : array_like, (hidden, features)
        W1.
    in_bias : array_like, (hidden,), or None
        b1.
    out_weight : array_like, (out_features, hidden)
        W2.
    out_bias : array_like, (out_features,), or None
        b2.
    activation : str or None
        A name that `activate` knows. Default: "relu".
    gate_weight : array_like, (hidden, features), optional
        Its projection is activated instead, and multiplied by x W1^T + b1. Default: None.
    gate_bias : array_like, (hidden,), optional
        The bias of the gate. Default: None.
    residual : array_like, (..., out_features), optional
        Added last. Default: None.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    ndarray, (..., out_features)
    """
    if gate_weight is None:
        hidden = linear(x, in_weight, in_bias, activation=activation, dtype=dtype)
    else:
        gate = linear(x, gate_weight, gate_bias, activation=activation, dtype=dtype)
        hidden = linear(x, in_weight, in_bias, gate=gate, dtype=dtype)
    return linear(hidden, out_weight, out_bias, residual=residual, dtype=dtype)


def layer_norm(
    x: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    dtype: npt.DTypeLike = np.float64,
) -> Floats:
    """Normalize the last axis to mean 0 and variance 1.

    Parameters
    ----------
    x : array_like, (..., features)
        The input.
    weight, bias : array_like, (features,), optional
        Default: None.
    eps : float
        Added to the variance. Default: 1e-5.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    ndarray
        Of x's shape.
    """
    x = np.asarray(x).astype(dtype)
    y = rms_norm(x - x.mean(axis=-1, keepdims=True), weight, eps, dtype=dtype)
    return y if bias is None else y + np.asarray(bias).astype(dtype)


def rms_norm(
    x: npt.ArrayLike, weight: npt.ArrayLike | None = None, eps: float = 1e-5, *, dtype: npt.DTypeLike = np.float64
) -> Floats:
    """Divide the last axis by the root of its mean square.

    Parameters
    ----------
    x : array_like, (..., features)
        The input.
    weight : array_like, (features,), optional
        Default: None.
    eps : float
        Added to the mean square. Default: 1e-5.
    dtype : dtype_like
        The type of all arithmetic and of the result. Default: float64.

    Returns
    -------
    ndarray
        Of x's shape.
    """
    x = np.asarray(x).astype(dtype)
    y = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + x.dtype.type(eps))
    return np.asarray(y if weight is None else y * np.asarray(weight).astype(dtype))

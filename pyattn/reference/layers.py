"""What is computed row by row: linear layers and softmax."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["linear", "log_softmax", "softmax"]

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
        Type of all arithmetic and of the result; float64 by default.

    Returns
    -------
    ndarray
        NaN where all of a row is -inf: unlike attention, softmax has no masks, so this is no empty row.
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
        Type of all arithmetic and of the result; float64 by default.

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
    residual: npt.ArrayLike | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Floats:
    """Compute a linear layer, activation(x W^T + b) + residual.

    Parameters
    ----------
    x : array_like, (..., inner)
        Any dtype.
    weight : array_like, (features, inner)
        As torch.nn.Linear keeps it.
    bias : array_like, (features,), optional
        Default: none.
    activation : {"relu"}, optional
        Default: none.
    residual : array_like, (..., features), optional
        Added last. Default: none.
    dtype : dtype_like
        What is computed in. Default: float64.

    Returns
    -------
    ndarray, (..., features)
    """
    y = np.asarray(x).astype(dtype) @ np.asarray(weight).astype(dtype).T
    if bias is not None:
        y = y + np.asarray(bias).astype(dtype)
    if activation == "relu":
        y = np.maximum(y, 0)
    return np.asarray(y if residual is None else y + np.asarray(residual).astype(dtype))

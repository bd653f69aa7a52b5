"""How each step of an attention is done: right, unless a mistake changes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference

__all__ = ["Steps", "merge_heads", "softmax", "split_heads"]

Array: TypeAlias = npt.NDArray[Any]


def split_heads(x: Array, heads: int) -> Array:
    """Cut (..., length, H * D) into (..., H, length, D).

    Parameters
    ----------
    x : ndarray, (..., length, H * D)
        A projection.
    heads : int
        H.

    Returns
    -------
    ndarray, (..., H, length, D)
    """
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-3, -2)


def merge_heads(x: Array) -> Array:
    """Put the heads of (..., H, length, D) side by side.

    Parameters
    ----------
    x : ndarray, (..., H, length, D)
        What the heads give.

    Returns
    -------
    ndarray, (..., length, H * D)
    """
    turned = x.swapaxes(-3, -2)
    return turned.reshape(*turned.shape[:-2], turned.shape[-2] * turned.shape[-1])


def softmax(scores: Array, visible: Array) -> Array:
    """Normalise over the keys; a row with nothing to attend to gives 0.

    Parameters
    ----------
    scores : ndarray, (..., L, S)
        -inf where a key is hidden.
    visible : ndarray of bool, (..., L, S)
        Where it is not.

    Returns
    -------
    ndarray, (..., L, S)
    """
    attends = visible.any(axis=-1, keepdims=True)
    return np.where(attends, reference.softmax(scores, dtype=scores.dtype), 0)


def _score(products: Array, scale: float, bias: Array, visible: Array) -> Array:
    return np.where(visible, products * products.dtype.type(scale) + bias, -np.inf)


class Steps(NamedTuple):
    """How each step is done; the defaults are right.

    Attributes
    ----------
    split : (x, heads) -> heads apart
        Of the projections.
    share : (x, heads, axis) -> x
        Keys or values before they are shared by query heads: h // (query heads / key heads), unless this does it.
    score : (products, scale, bias, visible) -> scores
        From ``query @ key.T`` to scores.
    normalize : (scores, visible) -> weights
        Softmax.
    attend : (weights, visible, value) -> heads
        The sum of values.
    merge : heads -> (..., L, H * D)
        Before the output's projection.
    keep : (x, stage) -> x
        What each stage's result is kept as.
    leave : output -> output
        Its axes as a caller sees them, after all else that is done with them.
    """

    split: Callable[[Array, int], Array] = split_heads
    share: Callable[[Array, int, int], Array] = lambda x, heads, axis: x
    score: Callable[[Array, float, Array, Array], Array] = _score
    normalize: Callable[[Array, Array], Array] = softmax
    attend: Callable[[Array, Array, Array], Array] = reference.weighted_sum
    merge: Callable[[Array], Array] = merge_heads
    keep: Callable[[Array, str], Array] = lambda x, stage: x
    leave: Callable[[Array], Array] = lambda x: x

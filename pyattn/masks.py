"""Bool masks for `pyattn.attention`: True = attend. A mask is only needed where no argument says the same.

``is_causal=True``, ``key_lengths=`` and ``window=`` are faster than the masks made here: they are never stored.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from pyattn import _core

__all__ = ["causal", "from_ones", "padding", "window"]

BoolArray = npt.NDArray[np.bool_]
Align = Literal["upper_left", "lower_right"]


def causal(q_len: int, kv_len: int | None = None, *, align: Align | None = None) -> BoolArray:
    """Make a causal mask: query i attends to no key after its own position.

    Parameters
    ----------
    q_len : int
    kv_len : int, optional
        Default: q_len.
    align : {'upper_left', 'lower_right'}, optional
        As in `pyattn.attention`; must be said when the lengths differ.

    Returns
    -------
    ndarray of bool, (q_len, kv_len)

    Raises
    ------
    ValueError
        A negative length, or a missing `align`.

    Examples
    --------
    >>> from pyattn import masks
    >>> masks.causal(2, 3, align="lower_right").astype(int)
    array([[1, 1, 0],
           [1, 1, 1]])
    """
    return _band(q_len, kv_len, None, 0, align, "causal")


def window(
    q_len: int, kv_len: int | None = None, *, left: int | None, right: int | None, align: Align | None = None
) -> BoolArray:
    """Make a sliding-window mask: query i attends to `left` keys before and `right` keys after its own position.

    Parameters
    ----------
    q_len : int
    kv_len : int, optional
        Default: q_len.
    left, right : int or None
        Inclusive; None is unbounded.
    align : {'upper_left', 'lower_right'}, optional
        As in `pyattn.attention`; must be said when the lengths differ.

    Returns
    -------
    ndarray of bool, (q_len, kv_len)

    Raises
    ------
    ValueError
        A negative length or side, or a missing `align`.

    Examples
    --------
    >>> from pyattn import masks
    >>> masks.window(3, left=1, right=0).astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    return _band(q_len, kv_len, left, right, align, "window")


def padding(lengths: npt.ArrayLike, kv_len: int | None = None) -> BoolArray:
    """Make a padding mask: key j of batch entry b is attended to when ``j < lengths[b]``.

    Parameters
    ----------
    lengths : array_like of int, (batch,)
    kv_len : int, optional
        Default: the largest length.

    Returns
    -------
    ndarray of bool, (batch, 1, 1, kv_len)
        Broadcasts over heads and queries.

    Raises
    ------
    TypeError
        lengths are not integers.
    ValueError
        lengths are not one-dimensional, or out of range.

    Examples
    --------
    >>> from pyattn import masks
    >>> masks.padding([1, 3])[:, 0, 0].astype(int)
    array([[1, 0, 0],
           [1, 1, 1]])
    """
    counts = _core.as_array(lengths, "lengths")
    if counts.ndim != 1:
        raise ValueError(f"lengths has shape {counts.shape}, expected (batch,)")
    if counts.size and not np.issubdtype(counts.dtype, np.integer):
        raise TypeError(f"lengths has dtype {counts.dtype}, expected integers")
    most = int(counts.max(initial=0)) if kv_len is None else kv_len
    if counts.size and (counts.min() < 0 or counts.max() > most):
        raise ValueError(f"lengths go from {counts.min()} to {counts.max()}, expected 0 <= n <= {most}")
    return (np.arange(most) < counts[:, None])[:, None, None, :]


def from_ones(mask: npt.ArrayLike) -> BoolArray:
    """Read a mask of zeros and ones, of any dtype, as 1 = attend.

    Parameters
    ----------
    mask : array_like
        Zeros and ones only.

    Returns
    -------
    ndarray of bool
        Of the same shape.

    Raises
    ------
    ValueError
        The mask holds anything else: it may be one that is added to the scores, and needs no conversion.

    Examples
    --------
    >>> from pyattn import masks
    >>> masks.from_ones([[1.0, 0.0]])
    array([[ True, False]])
    """
    array = _core.as_array(mask, "mask")
    attend = array == 1
    if not np.all(attend | (array == 0)):
        raise ValueError(
            "mask holds values other than 0 and 1; a mask that is added to the scores is passed to attention as it is"
        )
    return np.asarray(attend, dtype=np.bool_)


def _band(
    q_len: int, kv_len: int | None, left: int | None, right: int | None, align: Align | None, what: str
) -> BoolArray:
    """Keys i + offset - left <= j <= i + offset + right."""
    kv_len = q_len if kv_len is None else kv_len
    for name, n in (("q_len", q_len), ("kv_len", kv_len), ("left", left), ("right", right)):
        if n is not None and n < 0:
            raise ValueError(f"{name} is {n}, expected 0 or more")
    if align not in (None, "upper_left", "lower_right"):
        raise ValueError(f"align is {align!r}, expected 'upper_left' or 'lower_right'")
    if align is None and q_len != kv_len:
        raise ValueError(f"{what} with {q_len} queries and {kv_len} keys needs align='upper_left' or 'lower_right'")
    distance = np.arange(kv_len) - np.arange(q_len)[:, None] - (kv_len - q_len if align == "lower_right" else 0)
    visible = np.ones((q_len, kv_len), np.bool_)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    return visible

"""Bool masks for `pyattn.attention`: True = attend. A mask is only needed where no argument says the same.

``is_causal=True``, ``key_lengths=`` and ``window=`` are faster than the masks made here: they are never stored.
"""

from __future__ import annotations

from typing import Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_count, as_index

__all__ = ["causal", "from_ones", "padding", "window"]

BoolArray = npt.NDArray[np.bool_]
Align = Literal["upper_left", "lower_right"]

_MOST = 2**62
"""No axis is as long; numpy.arange of 2**63 - 1 is empty."""


def causal(q_len: SupportsIndex, kv_len: SupportsIndex | None = None, *, align: Align | None = None) -> BoolArray:
    """Make a causal mask: query i attends to no key after its own position.

    Parameters
    ----------
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys. Default: q_len.
    align : {'upper_left', 'lower_right'}, optional
        As in `pyattn.attention`. Default: None; must be said when the lengths differ.

    Returns
    -------
    ndarray of bool, (q_len, kv_len)

    Raises
    ------
    TypeError
        A length is not an integer.
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
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None = None,
    *,
    left: SupportsIndex | None,
    right: SupportsIndex | None,
    align: Align | None = None,
) -> BoolArray:
    """Make a sliding-window mask: query i attends to `left` keys before and `right` keys after its own position.

    Parameters
    ----------
    q_len : int
        Number of queries.
    kv_len : int, optional
        Number of keys. Default: q_len.
    left, right : int or None
        How many keys on that side, inclusive; None is unbounded.
    align : {'upper_left', 'lower_right'}, optional
        As in `pyattn.attention`. Default: None; must be said when the lengths differ.

    Returns
    -------
    ndarray of bool, (q_len, kv_len)

    Raises
    ------
    TypeError
        A length or side is not an integer.
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


def padding(lengths: npt.ArrayLike, kv_len: SupportsIndex | None = None, *, heads: bool = True) -> BoolArray:
    """Make a padding mask: key j of batch entry b is attended to when ``j < lengths[b]``.

    Parameters
    ----------
    lengths : array_like of int, (...)
        Number of keys of each batch entry; all batch axes, as `key_lengths` of `pyattn.attention`.
    kv_len : int, optional
        Number of keys that the mask has. Default: the largest length.
    heads : bool
        Whether the arrays have a heads axis: those of four axes or more do. Default: True.

    Returns
    -------
    ndarray of bool, (..., 1, 1, kv_len)
        Broadcasts over heads and queries. With ``heads=False`` (..., 1, kv_len).

    Raises
    ------
    TypeError
        lengths or kv_len are not integers.
    ValueError
        lengths or kv_len are out of range.

    Examples
    --------
    >>> from pyattn import masks
    >>> masks.padding([1, 3])[:, 0, 0].astype(int)
    array([[1, 0, 0],
           [1, 1, 1]])
    """
    counts = _core.as_array(lengths, "lengths")
    if counts.size and counts.dtype.kind not in "iu":
        raise TypeError(f"lengths has dtype {counts.dtype}, expected integers")
    least, largest = (int(counts.min()), int(counts.max())) if counts.size else (0, 0)
    most = min(max(0, largest), _MOST) if kv_len is None else as_count(kv_len, "kv_len", least=0, most=_MOST)
    if least < 0 or largest > most:
        raise ValueError(f"lengths go from {least} to {largest}, expected 0 <= n <= {most}")
    ends = counts.astype(np.int64)[..., None, None]
    return np.asarray(np.arange(most) < (ends[..., None] if heads else ends))


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
    q_len: SupportsIndex,
    kv_len: SupportsIndex | None,
    left: SupportsIndex | None,
    right: SupportsIndex | None,
    align: Align | None,
    what: str,
) -> BoolArray:
    """Keys i + offset - left <= j <= i + offset + right."""
    q_len = as_count(q_len, "q_len", least=0, most=_MOST)
    kv_len = q_len if kv_len is None else as_count(kv_len, "kv_len", least=0, most=_MOST)
    if align not in (None, "upper_left", "lower_right"):
        raise ValueError(f"align is {align!r}, expected 'upper_left' or 'lower_right'")
    if align is None and q_len != kv_len:
        raise ValueError(f"{what} with {q_len} queries and {kv_len} keys needs align='upper_left' or 'lower_right'")
    far = q_len + kv_len  # as good as unbounded
    left, right = (
        far if side is None else as_count(min(as_index(side, name), far), name, least=0)
        for side, name in ((left, "left"), (right, "right"))
    )
    keys, positions = np.arange(kv_len), np.arange(q_len) + (kv_len - q_len if align == "lower_right" else 0)
    visible = np.asarray(np.greater_equal.outer(positions + right, keys))  # bools at once: distances take 8 bytes each
    if left < far:
        visible &= np.less_equal.outer(positions - left, keys)
    return visible

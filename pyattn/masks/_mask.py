"""Mask objects and the functions that make them."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_count, as_flag, as_index
from pyattn._util.halves import as_dtype, is_half
from pyattn._util.ids import as_integers
from pyattn._util.typing import Align, Axis, Corner

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BoolArray = npt.NDArray[np.bool_]
Number: TypeAlias = int | np.integer[Any]
Index: TypeAlias = slice | EllipsisType | npt.ArrayLike | None
Limits = npt.NDArray[np.int64]
"""(..., L, 2): first key of each query and the one after its last; they may lie outside the keys or be out of order."""

_MOST = 2**62
"""Upper limit of sizes; numpy.arange(2**63 - 1) would be empty."""
_DRAWN = 12  # maximum number of rows and columns that a repr draws


class Mask:
    """A mask with a fixed meaning, True = attend.

    The functions of `pyattn.masks` make masks, and ``&`` and ``|`` combine them. `numpy.asarray` converts a mask to a
    bool array, and a mask works wherever an array does: indexing, `numpy.where`, matplotlib's imshow,
    `torch.as_tensor`. Either side of ``&`` and ``|`` may be a bool array. ``~`` raises TypeError, because it is
    ambiguous: `blocked` returns the array with True = blocked, `complement` the mask of all other pairs.

    Raises
    ------
    TypeError
        `Mask` itself is called: it has no constructor.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> mask = pyattn.masks.causal(3) & pyattn.masks.window(3, left=1, right=None)
    >>> np.asarray(mask)
    array([[ True, False, False],
           [ True,  True, False],
           [False,  True,  True]])
    >>> mask.blocked()
    array([[False,  True,  True],
           [False, False,  True],
           [ True, False, False]])
    """

    __slots__ = ()

    def __init__(self) -> None:
        if type(self) is Mask:
            raise TypeError("pyattn.masks.Mask has no constructor; make masks with causal, padding or from_array")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; it broadcasts to (..., heads, L, S)."""
        raise NotImplementedError

    def _attend(self) -> BoolArray:
        """Compute the array."""
        raise NotImplementedError

    def _limits(self) -> Limits | None:
        """Compute the limits; None unless the keys of each query are neighbours."""
        return None

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        """Return the part of the scores' axes, (..., heads, L, S), that slices with a start and a stop name."""
        raise NotImplementedError

    def _name(self) -> str:
        """Return the call that makes the mask, as text."""
        raise NotImplementedError

    def _operands(self) -> tuple[Mask, ...]:
        """Return the masks that an operator has combined."""
        return ()

    # Array interface

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[np.bool_]:
        """numpy.bool."""
        return np.dtype(np.bool_)

    @property
    def T(self) -> BoolArray:
        """The array with its axes reversed."""
        return self._attend().T

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Compute the array; every call computes it again."""
        if copy is False:
            raise ValueError("a mask computes its array on demand; leave out copy=False")
        return self._attend() if dtype is None else self._attend().astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Compute with the array; & and | of a bool array and a mask make a mask, and ~ raises."""
        if ufunc in (np.bitwise_and, np.bitwise_or) and method == "__call__" and not options:
            sign = "&" if ufunc is np.bitwise_and else "|"
            left, right = (_operand(x, sign) for x in inputs)
            return Both(left, right) if sign == "&" else Either(left, right)
        if ufunc is np.invert:
            return ~self
        arrays = [x._attend() if isinstance(x, Mask) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def __dlpack__(self, **options: Any) -> Any:
        """Export the array."""
        array: Any = self._attend()
        return array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device, the CPU."""
        return (1, 0)

    def astype(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Convert to an array of another dtype.

        Parameters
        ----------
        dtype : dtype
            For instance int: 1 = attend.

        Returns
        -------
        ndarray
            Of the mask's shape.
        """
        return self._attend().astype(dtype)

    @overload
    def all(self, axis: None = None) -> np.bool_: ...
    @overload
    def all(self, axis: SupportsIndex, *, keepdims: bool = False) -> BoolArray: ...
    @overload
    def all(self, axis: Axis = None, **options: Any) -> Any: ...
    def all(self, axis: Any = None, **options: Any) -> Any:
        """Test whether all elements, or all along an axis, are True.

        Parameters
        ----------
        axis : int or tuple of int, optional
            Default: None, all axes.
        **options
            As the array's method takes them.

        Returns
        -------
        bool or ndarray
        """
        return self._attend().all(axis, **options)

    @overload
    def any(self, axis: None = None) -> np.bool_: ...
    @overload
    def any(self, axis: SupportsIndex, *, keepdims: bool = False) -> BoolArray: ...
    @overload
    def any(self, axis: Axis = None, **options: Any) -> Any: ...
    def any(self, axis: Any = None, **options: Any) -> Any:
        """Test whether any element, or any along an axis, is True.

        Parameters
        ----------
        axis : int or tuple of int, optional
            Default: None, all axes.
        **options
            As the array's method takes them.

        Returns
        -------
        bool or ndarray
        """
        return self._attend().any(axis, **options)

    @overload
    def sum(self, axis: None = None) -> np.integer[Any]: ...
    @overload
    def sum(self, axis: SupportsIndex, *, keepdims: bool = False) -> npt.NDArray[np.integer[Any]]: ...
    @overload
    def sum(self, axis: Axis = None, **options: Any) -> Any: ...
    def sum(self, axis: Any = None, **options: Any) -> Any:
        """Count the pairs that attend, or count along an axis.

        Parameters
        ----------
        axis : int or tuple of int, optional
            Default: None, all axes.
        **options
            As the array's method takes them.

        Returns
        -------
        int or ndarray
        """
        return self._attend().sum(axis, **options)

    def tolist(self) -> list[Any]:
        """Convert to nested lists of bools.

        Returns
        -------
        list
        """
        return list(self._attend().tolist())

    @overload  # an element or an array: that depends on the number of axes
    def __getitem__(self, index: Number | tuple[Number, ...]) -> Any: ...
    @overload
    def __getitem__(self, index: Index | tuple[Index, ...]) -> BoolArray: ...
    def __getitem__(self, index: Any) -> Any:
        """Index the array."""
        return self._attend()[index]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first axis."""
        return iter(self._attend())

    def __len__(self) -> int:
        """Return the size of the first axis."""
        return self.shape[0]

    def __bool__(self) -> bool:
        """Raise, as an array does."""
        raise ValueError("the truth value of a mask is ambiguous; use mask.any() or mask.all()")

    def __eq__(self, other: object) -> BoolArray:  # type: ignore[override]  # object's returns bool
        """Compare elements, as an array does."""
        result: BoolArray = self._attend() == other
        return result

    def __ne__(self, other: object) -> BoolArray:  # type: ignore[override]  # object's returns bool
        """Compare elements, as an array does."""
        result: BoolArray = self._attend() != other
        return result

    # Operators

    def __and__(self, other: Mask | npt.NDArray[np.bool_]) -> Mask:
        """Attend where both do."""
        return Both(self, _operand(other, "&"))

    def __or__(self, other: Mask | npt.NDArray[np.bool_]) -> Mask:
        """Attend where either does."""
        return Either(self, _operand(other, "|"))

    def __rand__(self, other: npt.ArrayLike) -> Mask:
        """Attend where both do."""
        return Both(_operand(other, "&"), self)

    def __ror__(self, other: npt.ArrayLike) -> Mask:
        """Attend where either does."""
        return Either(_operand(other, "|"), self)

    def __add__(self, other: Any) -> Any:
        """Add to the array, in which 1 = attend."""
        return np.add(self, other)

    def __radd__(self, other: Any) -> Any:
        """Add the array, in which 1 = attend."""
        return np.add(other, self)

    def __sub__(self, other: Any) -> Any:
        """Subtract from the array, in which 1 = attend."""
        return np.subtract(self, other)

    def __rsub__(self, other: Any) -> Any:
        """Subtract the array, in which 1 = attend."""
        return np.subtract(other, self)

    def __mul__(self, other: Any) -> Any:
        """Multiply the array, in which 1 = attend."""
        return np.multiply(self, other)

    def __rmul__(self, other: Any) -> Any:
        """Multiply by the array, in which 1 = attend."""
        return np.multiply(other, self)

    def __invert__(self) -> Mask:
        """Raise, because most users of ``~`` mean a change of polarity."""
        raise TypeError(
            "~mask is not defined: a mask object means the same everywhere, so pass it as it is; .blocked() gives the "
            "array with True = blocked, .complement() the mask of all other pairs"
        )

    def complement(self) -> Mask:
        """Make the mask that attends exactly where this one does not.

        Returns
        -------
        Mask
            Of the same shape.
        """
        return Complement(self)

    # Conversion

    def blocked(self) -> BoolArray:
        """Compute the array with True = blocked, as torch.nn takes bool masks.

        Returns
        -------
        ndarray of bool
            Of the mask's shape.
        """
        return ~self._attend()

    def to_bias(self, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[np.floating[Any]]:
        """Compute an additive mask: 0 = attend, -inf = blocked.

        Parameters
        ----------
        dtype : dtype
            A float dtype. Default: float32.

        Returns
        -------
        ndarray
            Of the mask's shape.

        Raises
        ------
        TypeError
            dtype is not a float dtype.
        """
        kind = as_dtype(dtype)
        if kind.kind != "f" and not is_half(kind):
            raise TypeError(f"dtype is {kind}; a bias needs floats, such as numpy.float32")
        bias = np.zeros(self.shape, kind)
        bias[~self._attend()] = -np.inf
        return bias

    def plot(self, **options: Any) -> Axes:
        """Draw the mask with `pyattn.plot.mask`, which needs matplotlib.

        Parameters
        ----------
        **options
            Passed to `pyattn.plot.mask`.

        Returns
        -------
        matplotlib.axes.Axes
        """
        return importlib.import_module("pyattn.plot").mask(self, **options)  # pyattn.plot is a higher layer

    def __repr__(self) -> str:
        """Write the call that makes the mask, and draw small masks."""
        if self.ndim != 2 or max(self.shape) > _DRAWN or self.size == 0:
            return f"{self._name()}, shape {self.shape}" if self.ndim != 2 else self._name()
        return "\n".join([self._name(), *("  " + " ".join(".x"[int(seen)] for seen in row) for row in self._attend())])


class Limited(Mask):
    """A mask in which the keys of each query are neighbours."""

    __slots__ = ("kv_len",)
    kv_len: int

    def _limits(self) -> Limits:
        raise NotImplementedError

    def _attend(self) -> BoolArray:
        limits, keys = self._limits(), np.arange(self.kv_len)
        attend: BoolArray = keys < limits[..., 1:]
        if limits[..., 0].any():
            attend &= keys >= limits[..., :1]
        return attend


class Interval(Limited):
    """Query i attends to keys i + first to i + last; None is unbounded."""

    __slots__ = ("first", "last", "name", "q_len")

    def __init__(self, q_len: int, kv_len: int, first: int | None, last: int | None, name: str) -> None:
        self.q_len, self.kv_len, self.first, self.last, self.name = q_len, kv_len, first, last, name

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.q_len, self.kv_len)

    def _name(self) -> str:
        return self.name

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        rows, keys = cut[-2:]
        first, last = (None if side is None else side + rows.start - keys.start for side in (self.first, self.last))
        return Interval(rows.stop - rows.start, keys.stop - keys.start, first, last, self.name)

    def _limits(self) -> Limits:
        far = self.q_len + self.kv_len  # effectively unbounded
        limits, rows = np.empty((self.q_len, 2), np.int64), np.arange(self.q_len)
        limits[:, 0] = 0 if self.first is None else rows + max(-far, min(self.first, far))
        limits[:, 1] = self.kv_len if self.last is None else rows + max(-far, min(self.last + 1, far))
        return limits


class Lengths(Limited):
    """Key j of batch entry b is attended to when j < lengths[b]."""

    __slots__ = ("heads", "lengths")

    def __init__(self, lengths: npt.NDArray[np.int64], kv_len: int, heads: bool) -> None:
        self.lengths, self.kv_len, self.heads = lengths, kv_len, heads

    @property
    def batch(self) -> tuple[int, ...]:
        """Shape of the batch axes."""
        return self.lengths.shape

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.batch, *((1, 1) if self.heads else (1,)), self.kv_len)

    def _name(self) -> str:
        text = str(self.lengths.tolist()) if self.lengths.size <= _DRAWN else f"{self.lengths.size} lengths"
        return f"padding({text}, {self.kv_len}{'' if self.heads else ', heads=False'})"

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        keys, kv_len = cut[-1], cut[-1].stop - cut[-1].start
        lengths = sliced(self.lengths, cut[: -3 if self.heads else -2])
        return Lengths(np.clip(lengths - keys.start, 0, kv_len), kv_len, self.heads)

    def _limits(self) -> Limits:
        limits = np.zeros((*self.shape[:-1], 2), np.int64)
        limits[..., 1] = self.lengths.reshape(self.shape[:-1])
        return limits


class Document(Mask):
    """Queries attend to keys of the same id."""

    __slots__ = ("heads", "kv_ids", "q_ids")

    def __init__(self, q_ids: npt.NDArray[Any], kv_ids: npt.NDArray[Any], heads: bool) -> None:
        self.q_ids, self.kv_ids, self.heads = q_ids, kv_ids, heads

    @property
    def batch(self) -> tuple[int, ...]:
        """Shape of the batch axes."""
        return np.broadcast_shapes(self.q_ids.shape[:-1], self.kv_ids.shape[:-1])

    @property
    def shape(self) -> tuple[int, ...]:
        between = (1,) if self.heads and self.batch else ()
        return (*self.batch, *between, self.q_ids.shape[-1], self.kv_ids.shape[-1])

    def _name(self) -> str:
        ids = self.q_ids.tolist() if self.q_ids.size <= _DRAWN else f"{self.q_ids.shape}"
        return f"document({ids}{'' if self.kv_ids is self.q_ids else ', ...'})"

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        batch = cut[: -3 if self.heads else -2]
        return Document(sliced(self.q_ids, (*batch, cut[-2])), sliced(self.kv_ids, (*batch, cut[-1])), self.heads)

    def _attend(self) -> BoolArray:
        same: BoolArray = self.q_ids[..., :, np.newaxis] == self.kv_ids[..., np.newaxis, :]
        return same.reshape(self.shape)

    def _limits(self) -> Limits | None:
        if self.q_ids.dtype != self.kv_ids.dtype:
            return None
        if not self.batch:
            return _limits_of_ids(self.q_ids, self.kv_ids)
        count, (q_len, kv_len) = math.prod(self.batch), self.shape[-2:]
        if not count * kv_len:
            return np.zeros((*self.shape[:-1], 2), np.int64)
        q_ids = np.broadcast_to(self.q_ids, (*self.batch, q_len)).reshape(count, q_len)
        kv_ids = np.broadcast_to(self.kv_ids, (*self.batch, kv_len))
        # Replace ids by numbers that no two entries share. Queries without keys get a number that no key has.
        ids, keys = np.unique(kv_ids, return_inverse=True)
        queries = np.minimum(np.searchsorted(ids, q_ids), len(ids) - 1)
        queries[ids[queries] != q_ids] = len(ids)
        entries = np.arange(count)[:, np.newaxis]
        apart = entries * (len(ids) + 1)
        limits = _limits_of_ids((queries + apart).ravel(), (keys.reshape(count, kv_len) + apart).ravel())
        if limits is None:
            return None
        return (limits.reshape(count, q_len, 2) - entries[..., np.newaxis] * kv_len).reshape(*self.shape[:-1], 2)


class Prefix(Interval):
    """Causal, and all queries attend to the first n keys."""

    __slots__ = ("n", "offset")

    def __init__(self, n: int, q_len: int, kv_len: int, offset: int, name: str) -> None:
        super().__init__(q_len, kv_len, None, offset, name)
        self.n, self.offset = n, offset

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        rows, keys = cut[-2:]
        offset = self.offset + rows.start - keys.start
        return Prefix(self.n - keys.start, rows.stop - rows.start, keys.stop - keys.start, offset, self.name)

    def _limits(self) -> Limits:
        limits = super()._limits()
        np.maximum(limits[:, 1], min(self.n, self.kv_len), out=limits[:, 1])
        return limits


class Given(Mask):
    """A mask given as an array."""

    __slots__ = ("array", "name")

    def __init__(self, array: BoolArray, name: str) -> None:
        self.array, self.name = array, name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def _name(self) -> str:
        return f"{self.name}(...)"

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        return Given(sliced(self.array, cut), self.name)

    def _attend(self) -> BoolArray:
        return self.array.copy()


class Combined(Mask):
    """Masks and an operator, computed on demand."""

    __slots__ = ("_shape", "operands")
    sign: str
    combine: np.ufunc

    def __init__(self, left: Mask, right: Mask) -> None:
        try:
            self._shape = np.broadcast_shapes(left.shape, right.shape)
        except ValueError:
            raise ValueError(
                f"masks of shapes {left.shape} and {right.shape} do not broadcast: both end in (L, S)"
            ) from None
        sides = [one._operands() if type(one) is type(self) else (one,) for one in (left, right)]
        self.operands = tuple({id(one): one for side in sides for one in side}.values())  # each mask once

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def _operands(self) -> tuple[Mask, ...]:
        return self.operands

    def _name(self) -> str:
        names = (f"({one._name()})" if isinstance(one, Combined) else one._name() for one in self.operands)
        return f" {self.sign} ".join(names)

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        return functools.reduce(type(self), (one._part(cut) for one in self.operands))

    def _attend(self) -> BoolArray:
        return np.asarray(functools.reduce(self.combine, (one._attend() for one in self.operands)))

    def _limits(self) -> Limits | None:
        limits = [one._limits() for one in self.operands]
        known = [one for one in limits if one is not None]
        return self._join(known) if len(known) == len(limits) else None

    def _join(self, limits: list[Limits]) -> Limits | None:
        """Combine the operands' limits."""
        raise NotImplementedError


class Both(Combined):
    __slots__ = ()
    sign, combine = "&", np.logical_and

    def _join(self, limits: list[Limits]) -> Limits:
        return functools.reduce(intersect, limits)


class Either(Combined):
    __slots__ = ()
    sign, combine = "|", np.logical_or

    def _join(self, limits: list[Limits]) -> Limits | None:
        return _unite(limits, self.shape[-1])


class Complement(Mask):
    __slots__ = ("mask",)

    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mask.shape

    def _operands(self) -> tuple[Mask, ...]:
        return (self.mask,)

    def _name(self) -> str:
        return f"({self.mask._name()}).complement()"

    def _part(self, cut: tuple[slice, ...]) -> Mask:
        return Complement(self.mask._part(cut))

    def _attend(self) -> BoolArray:
        return ~self.mask._attend()


def _operand(other: object, sign: str) -> Mask:
    """Read the other operand of & and |: a mask, or a bool array with True = attend."""
    if isinstance(other, Mask):
        return other
    array = _core.as_array(other, f"the other side of {sign}")
    if array.dtype != np.bool_:
        raise TypeError(
            f"the other side of {sign} has dtype {array.dtype}; it must be a mask or a bool array with True = attend"
        )
    return Given(array, "from_array")


def sliced(array: npt.NDArray[Any], cut: tuple[slice, ...]) -> npt.NDArray[Any]:
    """Return the part of an array whose axes broadcast to those that are cut; axes of size 1 stay."""
    axes = zip(array.shape, cut[len(cut) - array.ndim :], strict=True)
    return array[tuple(slice(None) if size == 1 else one for size, one in axes)]


def intersect(one: Limits, other: Limits) -> Limits:
    """Return the limits of the keys that are inside both."""
    limits = np.maximum(one, other)
    np.minimum(one[..., 1], other[..., 1], out=limits[..., 1])
    return limits


def _unite(limits: list[Limits], kv_len: int) -> Limits | None:
    """Return the limits of the keys that are inside any; None if other keys lie between them."""
    firsts, ends = (np.stack(np.broadcast_arrays(*(one[..., side] for one in limits))) for side in (0, 1))
    firsts, ends = np.maximum(firsts, 0), np.minimum(ends, kv_len)
    empty = firsts >= ends
    firsts[empty], ends[empty] = kv_len, 0
    order = np.argsort(firsts, axis=0)
    firsts = np.take_along_axis(firsts, order, 0)
    ends = np.maximum.accumulate(np.take_along_axis(ends, order, 0), axis=0)
    if ((firsts[1:] > ends[:-1]) & (firsts[1:] < kv_len)).any():
        return None
    return np.stack((firsts[0], ends[-1]), axis=-1)


def _limits_of_ids(q_ids: npt.NDArray[Any], kv_ids: npt.NDArray[Any]) -> Limits | None:
    """Find the keys of each query's id; None if some id's keys are not neighbours."""
    order = np.argsort(kv_ids, kind="stable")
    ids = kv_ids[order]
    if (order[1:] - order[:-1])[ids[1:] == ids[:-1]].max(initial=1) > 1:
        return None
    before, after = (np.searchsorted(ids, q_ids, side) for side in ("left", "right"))
    limits = np.empty((len(q_ids), 2), np.int64)
    limits[:, 0] = np.concatenate((order, [0]))[before]  # an id without keys may lie after all others
    limits[:, 1] = limits[:, 0] + (after - before)
    return limits


# Constructors


def causal(L: SupportsIndex, S: SupportsIndex | None = None, *, align: Align | None = None) -> Mask:
    """Make a causal mask: no query attends to a key after its own position.

    Parameters
    ----------
    L : int
        Number of queries.
    S : int, optional
        Number of keys. Default: L.
    align : {'upper_left', 'lower_right'} or int, optional
        Position of query 0 among the keys: 0, ``S - L``, or the number given. Needed when L differs from S.
        Default: None.

    Returns
    -------
    Mask
        Of shape (L, S).

    Raises
    ------
    TypeError
        A size is not an integer.
    ValueError
        A size is negative, or L differs from S and align is None.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.masks.causal(2, 4, align="lower_right")
    causal(2, 4, align='lower_right')
      x x x .
      x x x x
    """
    q_len, kv_len, offset, text = _sizes(L, S, align, "causal")
    return Interval(q_len, kv_len, None, offset, f"causal({text})")


def window(
    L: SupportsIndex,
    S: SupportsIndex | None = None,
    *,
    left: SupportsIndex | None,
    right: SupportsIndex | None,
    align: Align | None = None,
) -> Mask:
    """Make a sliding-window mask.

    Each query sees `left` keys before its own position and `right` after it.

    Parameters
    ----------
    L : int
        Number of queries.
    S : int, optional
        Number of keys. Default: L.
    left, right : int or None
        Number of keys before and after its own position; None is unbounded.
    align : {'upper_left', 'lower_right'} or int, optional
        Position of query 0 among the keys: 0, ``S - L``, or the number given. Needed when L differs from S.
        Default: None.

    Returns
    -------
    Mask
        Of shape (L, S).

    Raises
    ------
    TypeError
        A size is not an integer.
    ValueError
        A size is negative, or L differs from S and align is None.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.masks.window(4, left=1, right=0)
    window(4, left=1, right=0)
      x . . .
      x x . .
      . x x .
      . . x x
    """
    q_len, kv_len, offset, text = _sizes(L, S, align, "window")
    far = q_len + kv_len + abs(offset)  # effectively unbounded
    sides = [_side(x, name, far) for x, name in ((left, "left"), (right, "right"))]
    first = None if sides[0] is None else offset - sides[0]
    last = None if sides[1] is None else offset + sides[1]
    return Interval(q_len, kv_len, first, last, f"window({text}, left={sides[0]}, right={sides[1]})")


def padding(lengths: npt.ArrayLike, S: SupportsIndex, *, heads: bool = True) -> Mask:
    """Make a padding mask from the number of keys of each batch entry.

    Key j of batch entry b is attended to when ``j < lengths[b]``.

    Parameters
    ----------
    lengths : array_like of int, (...,)
        Number of keys of each batch entry.
    S : int
        Number of keys, padding included.
    heads : bool
        Whether the call has a heads axis. Default: True.

    Returns
    -------
    Mask
        Of shape (..., 1, 1, S), or (..., 1, S) with ``heads=False``.

    Raises
    ------
    TypeError
        lengths or S are not integers.
    ValueError
        A length is negative or larger than S.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.masks.padding([1, 3], 4)[:, 0, 0]
    array([[ True, False, False, False],
           [ True,  True,  True, False]])
    """
    counts = as_integers(lengths, "lengths")
    most = as_count(S, "S", least=0, most=_MOST)
    if counts.size and (counts.min() < 0 or counts.max() > most):
        raise ValueError(f"lengths go from {counts.min()} to {counts.max()}; they must lie between 0 and S, {most}")
    return Lengths(counts.astype(np.int64), most, as_flag(heads, "heads"))


def document(q_ids: npt.ArrayLike, kv_ids: npt.ArrayLike | None = None, *, heads: bool = True) -> Mask:
    """Make a mask of packed documents: queries attend to their own document.

    A query and a key belong to the same document if their ids are equal.

    Parameters
    ----------
    q_ids : array_like of int, (..., L)
        Document of each query. Positions of one document need not be contiguous.
    kv_ids : array_like of int, (..., S), optional
        Document of each key. Default: q_ids.
    heads : bool
        Whether the call has a heads axis; only relevant if ids have a batch axis. Default: True.

    Returns
    -------
    Mask
        Of shape (L, S); with a batch (..., 1, L, S), or (..., L, S) with ``heads=False``.

    Raises
    ------
    TypeError
        Ids are not integers.
    ValueError
        Ids have no axis, or their batch axes do not broadcast.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.masks.document([0, 0, 1]) & pyattn.masks.causal(3)
    document([0, 0, 1]) & causal(3)
      x . .
      x x .
      . . x
    """
    queries = _ids(q_ids, "q_ids")
    keys = queries if kv_ids is None else _ids(kv_ids, "kv_ids")
    try:
        np.broadcast_shapes(queries.shape[:-1], keys.shape[:-1])
    except ValueError:
        raise ValueError(
            f"q_ids {queries.shape} and kv_ids {keys.shape} have batch axes that do not broadcast"
        ) from None
    return Document(queries, keys, as_flag(heads, "heads"))


def prefix(
    n: SupportsIndex,
    L: SupportsIndex,
    S: SupportsIndex | None = None,
    *,
    align: Align | None = None,
) -> Mask:
    """Make a prefix mask: causal, and every query attends to the first `n` keys.

    Parameters
    ----------
    n : int
        Number of keys in the prefix.
    L : int
        Number of queries.
    S : int, optional
        Number of keys. Default: L.
    align : {'upper_left', 'lower_right'} or int, optional
        As for `causal`. Default: None.

    Returns
    -------
    Mask
        Of shape (L, S).

    Raises
    ------
    TypeError
        A size is not an integer.
    ValueError
        A size is negative, or L differs from S and align is None.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.masks.prefix(2, 4)
    prefix(2, 4)
      x x . .
      x x . .
      x x x .
      x x x x
    """
    first = as_count(n, "n", least=0, most=_MOST)
    q_len, kv_len, offset, text = _sizes(L, S, align, "prefix")
    return Prefix(first, q_len, kv_len, offset, f"prefix({first}, {text})")


def from_array(array: npt.ArrayLike) -> Mask:
    """Make a mask from an array, True = attend.

    0 and 1 are read as False and True.

    Parameters
    ----------
    array : array_like of bool, or of 0 and 1
        Broadcasts to (..., heads, L, S). A bool array is not copied.

    Returns
    -------
    Mask
        Of the array's shape.

    Raises
    ------
    ValueError
        The array has other values than 0 and 1, or is a scalar.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.masks.from_array([[1, 0], [1, 1]])
    from_array(...)
      x .
      x x
    """
    return Given(_flags(array), "from_array")


def from_blocked(array: npt.ArrayLike) -> Mask:
    """Make a mask from an array with True = blocked, as in torch.nn.

    Parameters
    ----------
    array : array_like of bool, or of 0 and 1
        Broadcasts to (..., heads, L, S).

    Returns
    -------
    Mask
        Of the array's shape.

    Raises
    ------
    ValueError
        The array has other values than 0 and 1, or is a scalar.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> pyattn.masks.from_blocked(np.triu(np.ones((2, 2), bool), 1))
    from_blocked(...)
      x .
      x x
    """
    if isinstance(array, Mask):
        raise TypeError("array is a mask object, which knows what it means; pass an array, or use array.complement()")
    return Given(~_flags(array), "from_blocked")


def _side(x: SupportsIndex | None, name: str, far: int) -> int | None:
    """Read one side of a window."""
    if x is None:
        return None
    side = as_count(min(as_index(x, name), far), name, least=0)
    return None if side == far else side


def _flags(array: npt.ArrayLike) -> BoolArray:
    given = _core.as_array(array, "array")
    if given.ndim == 0:
        raise ValueError("array is a scalar; a mask has shape (..., L, S) or (S,)")
    if given.dtype == np.bool_:
        return given
    attend = np.asarray(given == 1)
    if not np.all(attend | (given == 0)):
        raise ValueError(
            "array holds values other than 0 and 1; pass a mask that is added to the scores directly to attention"
        )
    return attend


def _ids(ids: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    array = _core.as_array(ids, name)
    if array.dtype.kind not in "iub" and array.size:
        raise TypeError(f"{name} has dtype {array.dtype}; pass integers")
    if array.ndim == 0:
        raise ValueError(f"{name} is a scalar; pass one id for each position")
    return array


def _sizes(
    L: SupportsIndex,
    S: SupportsIndex | None,
    align: Align | None,
    what: str,
) -> tuple[int, int, int, str]:
    """Read sizes and alignment; return q_len, kv_len, the position of query 0, and the arguments as text."""
    q_len = as_count(L, "L", least=0, most=_MOST)
    kv_len = as_count(S, "S", least=0, most=_MOST, default=q_len)
    text = f"{q_len}" + ("" if S is None or (q_len == kv_len and align is None) else f", {kv_len}")
    if align is None and q_len != kv_len:
        raise ValueError(
            f"{what} with {q_len} queries and {kv_len} keys needs align='upper_left' (query 0 at key 0), "
            f"align='lower_right' (the last query at the last key), or the position of query 0"
        )
    offset = offset_of(align, q_len, kv_len)
    return q_len, kv_len, offset, text + ("" if align is None else f", align={align!r}")


def offset_of(align: Align | None, q_len: int, kv_len: int) -> int:
    """Find the position of query 0 among the keys."""
    if align is None or isinstance(align, str):
        return kv_len - q_len if as_choice(align, "align", (*get_args(Corner), None)) == "lower_right" else 0
    offset = as_index(align, "align", "'upper_left', 'lower_right' or an int")
    if abs(offset) > _MOST:
        raise ValueError("align is too large: it is the position of query 0 among the keys")
    return offset

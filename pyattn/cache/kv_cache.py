"""`KVCache`: its state is a `Layer` for each layer, which a change replaces as a whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal, SupportsFloat, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.io as io
import pyattn.masks as masks
from pyattn._util.arguments import as_count, as_float_dtype
from pyattn._util.typing import RNG, CacheUse, FloatArray, Layout, Score, Window
from pyattn.cache import files, pages
from pyattn.cache.inputs import as_counts, as_floats, as_integers, as_query, as_rows
from pyattn.cache.pages import Growth, Layer, Page, Sizes
from pyattn.functional._attention import AttentionResult

__all__ = ["KVCache"]

SETTINGS = ("num_layers", "num_kv_heads", "head_dim", "v_head_dim", "window", "max_length")


class KVCache:
    """Keys and values of all tokens so far, in pages of 64 positions that attention reads in place.

    A position stays at its address from its `append` on, but for the one page that a `fork` copies, and a token's
    attention has the bits that attention over all tokens at once gives its row. Batch entries may have different
    lengths. Any number of threads may read at once; changes are one thread's at a time, and one that fails, or is
    interrupted, changes nothing.

    Parameters
    ----------
    num_layers : int
        Layers, each with keys and values of its own.
    num_kv_heads : int
        Heads of keys and values.
    head_dim : int
        Features of a key.
    v_head_dim : int, optional
        Features of a value. Default: head_dim.
    batch_size : int
        Batch entries. Default: 1.
    dtype : dtype
        numpy.float32, the default, or numpy.float64.
    window : int, optional
        A query sees its own position and so many before it, in every call of `attend`; pages behind that are let go.
        Default: None, all positions.
    max_length : int, optional
        No batch entry may have more positions. Default: None, as many as memory holds.

    Attributes
    ----------
    num_layers, num_kv_heads, head_dim, v_head_dim : int
    dtype : dtype
    window, max_length : int or None

    Raises
    ------
    TypeError
        An argument is no integer, or dtype is neither float32 nor float64.
    ValueError
        A size is too small.

    Examples
    --------
    Three tokens at once, then one, which sees all four:

    >>> import numpy as np, pyattn
    >>> cache = pyattn.KVCache(num_layers=1, num_kv_heads=2, head_dim=8)
    >>> query = key = value = np.ones((1, 2, 3, 8), np.float32)
    >>> cache.append(0, key, value)
    >>> cache.attend(0, query, is_causal=True).shape
    (1, 2, 3, 8)
    >>> cache.append(0, key[:, :, :1], value[:, :, :1])
    >>> cache.attend(0, query[:, :, :1], is_causal=True).shape
    (1, 2, 1, 8)
    >>> cache.lengths
    array([4])
    """

    def __init__(
        self,
        num_layers: SupportsIndex,
        num_kv_heads: SupportsIndex,
        head_dim: SupportsIndex,
        v_head_dim: SupportsIndex | None = None,
        *,
        batch_size: SupportsIndex = 1,
        dtype: npt.DTypeLike = np.float32,
        window: SupportsIndex | None = None,
        max_length: SupportsIndex | None = None,
    ) -> None:
        self.num_layers = as_count(num_layers, "num_layers", least=1)
        self.num_kv_heads = as_count(num_kv_heads, "num_kv_heads", least=1)
        self.head_dim = as_count(head_dim, "head_dim", least=1)
        self.v_head_dim = self.head_dim if v_head_dim is None else as_count(v_head_dim, "v_head_dim", least=1)
        self.dtype = as_float_dtype(dtype)
        self.window = None if window is None else as_count(window, "window", least=0)
        self.max_length = None if max_length is None else as_count(max_length, "max_length", least=0)
        self._sizes = Sizes(self.num_kv_heads, self.head_dim, self.v_head_dim, self.dtype)
        batches = as_count(batch_size, "batch_size", least=0)
        self._layers = [pages.empty_layer(batches) for _ in range(self.num_layers)]

    def __repr__(self) -> str:
        """All settings, and how far it got."""
        settings = ", ".join(f"{name}={getattr(self, name)}" for name in SETTINGS)
        return f"{type(self).__name__}({settings}, dtype={self.dtype}, lengths={self.lengths.tolist()})"

    def __copy__(self) -> KVCache:
        """As `fork`: the two go on by themselves."""
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        """As `fork`: what they share neither changes."""
        return self.fork()

    def _pick(self, index: list[int]) -> KVCache:
        """Make another of these batch entries, on the same pages."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _layers=[pages.pick(layer, index) for layer in self._layers])
        return other

    # What it holds

    @property
    def batch_size(self) -> int:
        """Batch entries."""
        return len(self._layers[0].lengths)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Positions of each batch entry that all layers have, with those a window has passed: (batch_size,)."""
        return np.array([min(each) for each in zip(*(x.lengths for x in self._layers), strict=True)], np.int64)

    @property
    def length(self) -> int:
        """That of the longest batch entry."""
        return int(max(self.lengths, default=0))

    @property
    def nbytes(self) -> int:
        """Memory that all pages hold, counted once where they share it."""
        return pages.bytes_of(self._layers)

    def start(self, layer: SupportsIndex) -> int:
        """Find the first position that is held: 0, unless a window has passed it.

        Parameters
        ----------
        layer : int
            Layer.

        Returns
        -------
        int
            A multiple of 64; that of the batch entry with the earliest one.
        """
        return self._layer(layer).start

    def keys(self, layer: SupportsIndex, batch: SupportsIndex = 0) -> list[Page]:
        """Look at the keys of a batch entry, without a copy.

        Parameters
        ----------
        layer : int
            Layer.
        batch : int
            Batch entry. Default: 0.

        Returns
        -------
        list of ndarray, (num_kv_heads, n, head_dim)
            One for each page, in order, read-only; n is 64 but for the last.
        """
        return [key for key, _ in self._views(layer, batch)]

    def values(self, layer: SupportsIndex, batch: SupportsIndex = 0) -> list[Page]:
        """Look at the values of a batch entry, without a copy.

        Parameters
        ----------
        layer : int
            Layer.
        batch : int
            Batch entry. Default: 0.

        Returns
        -------
        list of ndarray, (num_kv_heads, n, v_head_dim)
            One for each page, in order, read-only; n is 64 but for the last.
        """
        return [value for _, value in self._views(layer, batch)]

    def to_arrays(self, layer: SupportsIndex) -> tuple[FloatArray, FloatArray]:
        """Copy the keys and values of a layer, from position `start` on; zeros behind a shorter batch entry.

        Parameters
        ----------
        layer : int
            Layer.

        Returns
        -------
        keys : ndarray, (batch_size, num_kv_heads, length - start, head_dim)
        values : ndarray, (batch_size, num_kv_heads, length - start, v_head_dim)
        """
        return pages.gather(self._layer(layer), self._sizes)

    @overload
    def attend(
        self,
        layer: SupportsIndex,
        query: npt.ArrayLike,
        *,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        scale: SupportsFloat | None = None,
        score: Score = "dot",
        score_weight: npt.ArrayLike | None = None,
        window: Window = None,
        query_lengths: npt.ArrayLike | None = None,
        dropout_p: SupportsFloat = 0.0,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        need_weights: Literal[False] = False,
        need_lse: Literal[False] = False,
        empty_rows: Literal["zero", "nan"] = "zero",
        layout: Layout = "bhsd",
        num_threads: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> FloatArray: ...
    @overload
    def attend(
        self,
        layer: SupportsIndex,
        query: npt.ArrayLike,
        *,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        scale: SupportsFloat | None = None,
        score: Score = "dot",
        score_weight: npt.ArrayLike | None = None,
        window: Window = None,
        query_lengths: npt.ArrayLike | None = None,
        dropout_p: SupportsFloat = 0.0,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        need_weights: Literal[True],
        need_lse: bool = False,
        empty_rows: Literal["zero", "nan"] = "zero",
        layout: Layout = "bhsd",
        num_threads: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> AttentionResult: ...
    @overload
    def attend(
        self,
        layer: SupportsIndex,
        query: npt.ArrayLike,
        *,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        scale: SupportsFloat | None = None,
        score: Score = "dot",
        score_weight: npt.ArrayLike | None = None,
        window: Window = None,
        query_lengths: npt.ArrayLike | None = None,
        dropout_p: SupportsFloat = 0.0,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        need_weights: bool = False,
        need_lse: Literal[True],
        empty_rows: Literal["zero", "nan"] = "zero",
        layout: Layout = "bhsd",
        num_threads: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> AttentionResult: ...
    @overload
    def attend(
        self,
        layer: SupportsIndex,
        query: npt.ArrayLike,
        *,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        scale: SupportsFloat | None = None,
        score: Score = "dot",
        score_weight: npt.ArrayLike | None = None,
        window: Window = None,
        query_lengths: npt.ArrayLike | None = None,
        dropout_p: SupportsFloat = 0.0,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        need_weights: bool = False,
        need_lse: bool = False,
        empty_rows: Literal["zero", "nan"] = "zero",
        layout: Layout = "bhsd",
        num_threads: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> FloatArray | AttentionResult: ...
    def attend(
        self,
        layer: SupportsIndex,
        query: npt.ArrayLike,
        *,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        scale: SupportsFloat | None = None,
        score: Score = "dot",
        score_weight: npt.ArrayLike | None = None,
        window: Window = None,
        query_lengths: npt.ArrayLike | None = None,
        dropout_p: SupportsFloat = 0.0,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        need_weights: bool = False,
        need_lse: bool = False,
        empty_rows: Literal["zero", "nan"] = "zero",
        layout: Layout = "bhsd",
        num_threads: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> FloatArray | AttentionResult:
        """Attend to all that a layer holds, in place: `pyattn.attention` with the cache's keys and values.

        The last query of a batch entry stands at its last position: ``align='lower_right'``. S is ``length - start`` of
        the layer, and key j is position ``start + j``. Dropout with a seed keeps what it keeps in attention over
        everything: a keep is a function of the positions of query and key.

        Parameters
        ----------
        layer : int
            Layer.
        query : array_like, (batch_size, heads, L, head_dim)
            Of the cache's dtype; heads are a multiple of num_kv_heads. With layout='bshd': (batch_size, L, heads,
            head_dim).
        attn_mask : array_like, optional
            Broadcasts to (batch_size, heads, L, S). bool: True = attend; float: added to the scaled scores. Default:
            None.
        is_causal : bool
            A query sees no position after its own. Default: False.
        scale : float, optional
            Default: that of the score.
        score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
            Default: 'dot'.
        score_weight : array_like, optional
            Of 'bilinear' and 'additive'. Default: None.
        window : int or (int or None, int or None), optional
            As `pyattn.attention` takes it, where the cache has no window of its own. Default: None.
        query_lengths : array_like of int, (batch_size,), optional
            As `append`'s lengths: queries behind are padding. Default: None, L.
        dropout_p : float
            Probability that a weight becomes 0. Default: 0.0.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask. Default: None, fresh entropy, so each call differs.
        keep_mask : array_like of bool, optional
            Broadcasts to (batch_size, heads, L, S): True = kept. Default: None.
        need_weights : bool
            Return weights. Default: False.
        need_lse : bool
            Return the logsumexp. Default: False.
        empty_rows : {'zero', 'nan'}
            What a query with nothing to attend to gives. Default: 'zero'.
        layout : {'bhsd', 'bshd'}
            Of query and output. Default: 'bhsd'.
        num_threads : int, optional
            Default: as `pyattn.set_num_threads` says.
        out : ndarray, optional
            Where the output goes. Default: None, a new array.

        Returns
        -------
        ndarray or AttentionResult
            (batch_size, heads, L, v_head_dim), or in the layout's order; as `pyattn.attention` returns it.

        Raises
        ------
        TypeError
            query has another dtype.
        ValueError
            Shapes do not fit, or a query sees pages that a window has let go.
        """
        held, use = self._read(layer)
        queries, length = as_query(query, self.batch_size, self._sizes, layout)
        if isinstance(attn_mask, masks.Mask):
            heads = queries.shape[2 if layout == "bshd" else 1]
            attn_mask = masks.as_array(attn_mask, (self.batch_size, heads, length, held.length - use.start), True)
        if self.window is not None:
            if window is not None:
                raise ValueError(f"window was given, but the cache has its own, window={self.window}: leave it out")
            window = (self.window, None)
            self._check_held(held, length if query_lengths is None else query_lengths, length, self.window)
        return _core.paged_attention(
            queries,
            use,
            score_weight=None if score_weight is None else as_floats(score_weight, "score_weight", self._sizes.dtype),
            attn_mask=attn_mask,
            is_causal=is_causal,
            align="lower_right",
            scale=scale,
            score=score,
            window=window,
            key_lengths=[length - use.start for length in held.lengths],
            query_lengths=query_lengths,
            dropout_p=dropout_p,
            rng=rng,
            keep_mask=keep_mask,
            need_weights=need_weights,
            need_lse=need_lse,
            empty_rows=empty_rows,
            layout=layout,
            num_threads=num_threads,
            out=out,
        )

    # Changes

    def append(
        self,
        layer: SupportsIndex,
        key: npt.ArrayLike,
        value: npt.ArrayLike,
        lengths: npt.ArrayLike | None = None,
        *,
        layout: Layout = "bhsd",
    ) -> None:
        """Store keys and values of new positions behind those that are there.

        Parameters
        ----------
        layer : int
            Layer.
        key : array_like, (batch_size, num_kv_heads, new, head_dim)
            Of the cache's dtype. With layout='bshd': (batch_size, new, num_kv_heads, head_dim).
        value : array_like, (batch_size, num_kv_heads, new, v_head_dim)
            In the same layout.
        lengths : array_like of int, (batch_size,), optional
            How many of the new positions of each batch entry count; those behind are padding, and not stored.
            Default: None, all.
        layout : {'bhsd', 'bshd'}
            Default: 'bhsd'.

        Raises
        ------
        TypeError
            key or value has another dtype.
        ValueError
            Shapes do not fit, or there would be more than max_length positions.
        MemoryError
            The cache is as it was, as after every error.
        """
        rows, new = as_rows(key, value, self.batch_size, self._sizes, layout)
        growth = self._begin(layer, new, lengths)
        _core.append_to_pages(growth.use, *rows, layout)
        self._finish(growth)

    def truncate(self, length: npt.ArrayLike) -> None:
        """Drop positions at the end, of every layer.

        What follows an `append` that not all layers got: ``cache.truncate(cache.lengths)``. Up to 16 pages of 64
        positions that one `append` made, as that of a prompt does, are one piece of memory: it goes back when the last
        of them is dropped, and counts whole in `nbytes` until then. Without a window, that is: with one, each page is
        a piece.

        Parameters
        ----------
        length : int or array_like of int, (batch_size,)
            No batch entry is longer then; one that is shorter stays as it is.

        Raises
        ------
        TypeError
            Not an integer.
        ValueError
            Negative, or the window of a query that comes next would reach pages that were let go.
        """
        most = as_counts(length, "length", self.batch_size, None)
        for layer in self._layers:
            for b, (start, own, wanted) in enumerate(zip(layer.starts, layer.lengths, most, strict=True)):
                left = min(own, wanted)
                if start > max(0, left - (self.window or 0)) and left > 0 and left < own:
                    raise ValueError(
                        f"length of batch entry {b} is {left}, and its window of {self.window} begins before position "
                        f"{start}, the first that is held; truncate to {start + (self.window or 0)} or more, or to 0"
                    )
        self._layers = [pages.cut(layer, most) for layer in self._layers]

    def fork(self, n: SupportsIndex = 1) -> KVCache:
        """Make another cache with each batch entry `n` times in a row, on the same pages.

        Each goes on by itself: at its next `append` a batch entry copies its last page, in each layer, where that is
        shared and not full. This cache stays as it is.

        Parameters
        ----------
        n : int
            As a number of beams. Default: 1.

        Returns
        -------
        KVCache
            Of batch_size * n batch entries.
        """
        times = as_count(n, "n", least=0)
        return self._pick(np.repeat(range(self.batch_size), times).tolist())

    def reorder(self, index: npt.ArrayLike) -> None:
        """Replace each batch entry by another, as beams go on from those that were best; pages are shared.

        Parameters
        ----------
        index : array_like of int, (n,)
            Batch entry i becomes what batch entry index[i] was, and n the batch size.

        Raises
        ------
        TypeError
            Not integers.
        ValueError
            Not one axis, or there is no such batch entry.
        """
        chosen = as_integers(index, "index")
        if chosen.ndim != 1:
            raise ValueError(f"index has shape {chosen.shape}, expected one axis: (n,)")
        wrong = chosen[(chosen < 0) | (chosen >= self.batch_size)]
        if wrong.size:
            raise ValueError(f"index holds {wrong[0]}, expected batch entries from 0 to {self.batch_size - 1}")
        self._layers = self._pick(chosen.tolist())._layers

    # One call's view, for modules

    def _layer(self, layer: SupportsIndex) -> Layer:
        return self._layers[_number_of(layer, "layer", self.num_layers)]

    def _read(self, layer: SupportsIndex) -> tuple[Layer, CacheUse]:
        """Tell what a layer holds, and the core where."""
        held = self._layer(layer)
        return held, pages.use_of(held, self._sizes)

    def _views(self, layer: SupportsIndex, batch: SupportsIndex) -> list[tuple[Page, Page]]:
        return pages.views_of(self._layer(layer), self._sizes, _number_of(batch, "batch", self.batch_size))

    def _check_held(self, layer: Layer, query_lengths: npt.ArrayLike, length: int, window: int) -> None:
        """Refuse queries of which the first sees a page that was let go."""
        counts = as_counts(query_lengths, "query_lengths", self.batch_size, length)
        for b, (start, end, count) in enumerate(zip(layer.starts, layer.lengths, counts, strict=True)):
            if count > 0 and start > max(0, end - count - window):
                raise ValueError(
                    f"query has {count} positions in batch entry {b}, and the window of the first begins before "
                    f"position {start}, the first that is held; at most {end - start - window} fit"
                )

    def _begin(self, layer: SupportsIndex, new: int, lengths: npt.ArrayLike | None = None) -> Growth:
        """Make room for new positions. The cache is as it was until `_finish`."""
        counts = as_counts(new if lengths is None else lengths, "lengths", self.batch_size, new)
        number = _number_of(layer, "layer", self.num_layers)
        before = self._layers[number]
        for b, (length, count) in enumerate(zip(before.lengths, counts, strict=True)):
            if self.max_length is not None and length + count > self.max_length:
                raise ValueError(
                    f"batch entry {b} has {length} positions and would get {count} more: max_length is "
                    f"{self.max_length}"
                )
        after = pages.grow(before, self._sizes, counts, self.window)
        use = pages.use_of(after, self._sizes)
        first = tuple(length - use.start for length in before.lengths)
        use = use._replace(first=first, new=tuple(counts))
        return Growth(number, before, after, tuple(counts), use)

    def _finish(self, growth: Growth) -> None:
        self._layers[growth.number] = growth.after

    @contextlib.contextmanager
    def _restored_on_error(self) -> Iterator[None]:
        """Undo what several layers did when one fails. What an append wrote, it wrote behind all that was held."""
        before = list(self._layers)
        try:
            yield
        except BaseException:
            self._layers = before
            # Other lists: who still looks at a layer that was made meanwhile shares its pages then, and keeps them.
            self._layers = [pages.pick(layer, range(len(layer.lengths))) for layer in before]
            raise

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that is held to a file.

        Parameters
        ----------
        path : str or path
            Ends in ``.npz`` or ``.safetensors``. An existing file is replaced.

        Raises
        ------
        ValueError
            path has another ending.
        """
        io.save(files.state_of(files.Saved(self.window, self.max_length, self._sizes, self._layers)), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KVCache:
        """Read a cache that was saved.

        Parameters
        ----------
        path : str or path
            As `save` takes it.

        Returns
        -------
        KVCache

        Raises
        ------
        ValueError
            path has another ending, or the file holds no cache.
        OSError
            The file cannot be read.
        """
        try:
            window, max_length, sizes, layers = files.read_state(io.load(path))
            cache = cls(len(layers), *sizes[:3], dtype=sizes.dtype, window=window, max_length=max_length)
            cache._layers = layers
        except (OSError, MemoryError, ImportError):
            raise
        except Exception as error:  # of zipfile, zlib and NumPy, all of their own kinds
            raise ValueError(f"{os.fspath(path)} holds no cache that was saved: {error}") from error
        return cache


def _number_of(x: SupportsIndex, name: str, count: int) -> int:
    """Read which of several is meant."""
    n = as_count(x, name, least=0)
    if n >= count:
        raise ValueError(f"{name} is {n}, expected 0 to {count - 1}")
    return n

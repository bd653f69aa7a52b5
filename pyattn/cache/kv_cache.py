"""`KVCache`: holds one immutable `Layer` per layer, and replaces it on every change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.io as io
from pyattn._util.arguments import as_count
from pyattn._util.halves import as_stored_dtype
from pyattn._util.ids import as_integers
from pyattn._util.names import naming_keywords_of_class
from pyattn._util.typing import RNG, CacheUse, EmptyRows, FloatArray, Layout, Score, Window
from pyattn.cache import files, pages
from pyattn.cache.inputs import as_counts, as_floats, as_query, as_rows
from pyattn.cache.pages import Growth, Layer, Page, PageSizes
from pyattn.functional._attention import AttentionResult
from pyattn.io.arrays import ending_of
from pyattn.masks import Mask
from pyattn.masks._lowering import checked_array, warn_if_inverted

__all__ = ["KVCache"]

SETTINGS = ("num_layers", "num_kv_heads", "head_dim", "v_head_dim", "window", "max_length")


@naming_keywords_of_class
class KVCache:
    """KV cache: keys and values of all tokens so far.

    Pages of 64 positions hold them, which attention reads in place. Stored positions never move in memory, except for
    the last page, which is copied on `append` if a `fork` shares it. Attention with the cache is bit-identical to
    attention over all tokens at once. Batch entries may have different lengths. Any number of threads may read at the
    same time, but only one may change the cache. A change that fails or is interrupted leaves the cache as it was.

    Parameters
    ----------
    num_layers : int
        Number of layers; each has its own keys and values.
    num_kv_heads : int
        Heads of keys and values.
    head_dim : int
        Features of a key.
    v_head_dim : int, optional
        Features of a value. Default: head_dim.
    batch_size : int
        Batch entries. Default: 1.
    dtype : dtype
        float32, float64, float16 or bfloat16; the last needs ml_dtypes, and both halves take half of float32's memory.
        They store float32 keys and values rounded to nearest, and take float32 queries, too; float32 takes halves.
        Default: float32.
    window : int, optional
        Each query sees this many positions before its own, in every call of `attend`; older pages are freed. Default:
        None, all positions.
    max_length : int, optional
        Maximum number of positions of a batch entry. Default: None, limited only by memory.

    Attributes
    ----------
    num_layers, num_kv_heads, head_dim, v_head_dim : int
    dtype : dtype
    window, max_length : int or None

    Raises
    ------
    TypeError
        An argument is not an integer, or dtype is not float16, bfloat16, float32 or float64.
    ImportError
        dtype is bfloat16 and ml_dtypes is missing.
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

    float16 takes half of the memory. Keys and values are rounded as they are stored; results stay float32:

    >>> half = pyattn.KVCache(1, 2, 8, dtype="float16")
    >>> half.append(0, key, value)
    >>> half.attend(0, query).dtype, half.keys(0)[0].dtype
    (dtype('float32'), dtype('float16'))
    """

    def __init__(
        self,
        num_layers: SupportsIndex,
        num_kv_heads: SupportsIndex,
        head_dim: SupportsIndex,
        *,
        v_head_dim: SupportsIndex | None = None,
        batch_size: SupportsIndex = 1,
        dtype: npt.DTypeLike = np.float32,
        window: SupportsIndex | None = None,
        max_length: SupportsIndex | None = None,
    ) -> None:
        self.num_layers = as_count(num_layers, "num_layers", least=1)
        self.num_kv_heads = as_count(num_kv_heads, "num_kv_heads", least=1)
        self.head_dim = as_count(head_dim, "head_dim", least=1)
        self.v_head_dim = as_count(v_head_dim, "v_head_dim", least=1, default=self.head_dim)
        self.dtype = as_stored_dtype(dtype)
        self.window = None if window is None else as_count(window, "window", least=0)
        self.max_length = None if max_length is None else as_count(max_length, "max_length", least=0)
        self._sizes = PageSizes(self.num_kv_heads, self.head_dim, self.v_head_dim, self.dtype)
        batches = as_count(batch_size, "batch_size", least=0)
        pages.check_memory(self.num_layers, batches)
        self._layers = [pages.empty_layer(batches) for _ in range(self.num_layers)]

    def __repr__(self) -> str:
        """Write all settings and the lengths."""
        settings = ", ".join(f"{name}={getattr(self, name)}" for name in SETTINGS)
        return f"{type(self).__name__}({settings}, dtype={self.dtype}, lengths={self.lengths.tolist()})"

    def __copy__(self) -> KVCache:
        """Copy as `fork` does: both caches then grow independently."""
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> KVCache:
        """Copy as `fork` does: neither cache changes shared pages."""
        return self.fork()

    def _pick(self, index: list[int]) -> KVCache:
        """Make another cache of these batch entries, sharing their pages."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _layers=[pages.pick(layer, index) for layer in self._layers])
        return other

    # Contents

    @property
    def batch_size(self) -> int:
        """Batch entries."""
        return len(self._layers[0].lengths)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Length of each batch entry, (batch_size,): the minimum over layers.

        Positions that a window has freed are counted, too.
        """
        return np.array([min(each) for each in zip(*(x.lengths for x in self._layers), strict=True)], np.int64)

    @property
    def length(self) -> int:
        """Length of the longest batch entry."""
        return int(max(self.lengths, default=0))

    @property
    def nbytes(self) -> int:
        """Memory of all pages in bytes, with shared memory counted once."""
        return pages.bytes_of(self._layers)

    def start(self, layer: SupportsIndex) -> int:
        """Return the first position still stored: 0, unless a window freed it.

        Parameters
        ----------
        layer : int
            Layer.

        Returns
        -------
        int
            A multiple of 64; the minimum over batch entries.
        """
        return self._layer(layer).start

    def keys(self, layer: SupportsIndex, batch: SupportsIndex = 0) -> list[Page]:
        """Return the keys of a batch entry as views of its pages.

        Parameters
        ----------
        layer : int
            Layer.
        batch : int
            Batch entry. Default: 0.

        Returns
        -------
        list of ndarray, (num_kv_heads, n, head_dim)
            One for each page, in order, read-only; n is 64, or less in the last page.
        """
        return [key for key, _ in self._views(layer, batch)]

    def values(self, layer: SupportsIndex, batch: SupportsIndex = 0) -> list[Page]:
        """Return the values of a batch entry as views of its pages.

        Parameters
        ----------
        layer : int
            Layer.
        batch : int
            Batch entry. Default: 0.

        Returns
        -------
        list of ndarray, (num_kv_heads, n, v_head_dim)
            One for each page, in order, read-only; n is 64, or less in the last page.
        """
        return [value for _, value in self._views(layer, batch)]

    def to_arrays(self, layer: SupportsIndex) -> tuple[FloatArray, FloatArray]:
        """Copy the keys and values of a layer, from position `start` on.

        Shorter batch entries end in zeros.

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
        empty_rows: EmptyRows = "zero",
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
        empty_rows: EmptyRows = "zero",
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
        empty_rows: EmptyRows = "zero",
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
        empty_rows: EmptyRows = "zero",
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
        empty_rows: EmptyRows = "zero",
        layout: Layout = "bhsd",
        num_threads: SupportsIndex | None = None,
        out: npt.NDArray[Any] | None = None,
    ) -> FloatArray | AttentionResult:
        """Attend to all stored positions of a layer.

        It is `pyattn.attention` with the cache's keys and values. The last query of a batch entry is at its last
        position: ``align='lower_right'``. S is ``length - start`` of the layer, and key j is position ``start + j``.
        With the same seed, dropout drops the same weights as in attention over all tokens at once, because its mask
        depends on the positions of query and key.

        Parameters
        ----------
        layer : int
            Layer.
        query : array_like, (batch_size, heads, L, head_dim)
            Of the cache's dtype; float32 also goes with float16 or bfloat16, and the result is float32 then. The number
            of heads is a multiple of num_kv_heads. With layout='bshd': (batch_size, L, heads, head_dim).
        attn_mask : array_like, optional
            Broadcasts to (batch_size, heads, L, S). bool: True = attend; float: added to the scaled scores. Default:
            None.
        is_causal : bool
            Hide positions after a query's own. Default: False.
        scale : float, optional
            Factor on the scores. Default: that of the score function.
        score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
            Default: 'dot'.
        score_weight : array_like, optional
            Weight of 'bilinear' and 'additive'. Default: None.
        window : int or (int or None, int or None), optional
            As for `pyattn.attention`; only for a cache without a window of its own. Default: None.
        query_lengths : array_like of int, (batch_size,), optional
            Number of queries of each batch entry; later ones are padding. Default: None, L.
        dropout_p : float
            Probability that a weight becomes 0. Default: 0.0.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask. Default: None, fresh entropy, so each call differs.
        keep_mask : array_like of bool, optional
            Broadcasts to (batch_size, heads, L, S): True = kept. Default: None.
        need_weights : bool
            Return the weights too. Default: False.
        need_lse : bool
            Return the logsumexp of the scores too. Default: False.
        empty_rows : {'zero', 'nan'}
            Output of a query with nothing to attend to. Default: 'zero'.
        layout : {'bhsd', 'bshd'}
            Layout of query and output. Default: 'bhsd'.
        num_threads : int, optional
            Default: as `pyattn.set_num_threads` says.
        out : ndarray, optional
            Array for the output. Default: None, a new one.

        Returns
        -------
        ndarray or AttentionResult
            As `pyattn.attention` returns it, with output (batch_size, heads, L, v_head_dim) in 'bhsd'.

        Raises
        ------
        TypeError
            query's dtype is neither the cache's nor one that goes with it.
        ValueError
            Shapes do not fit, or a query sees pages that a window has freed.
        """
        held, use = self._read(layer)
        queries, length = as_query(query, self.batch_size, self._sizes, layout)
        if isinstance(attn_mask, Mask):
            heads = queries.shape[2 if layout == "bshd" else 1]
            attn_mask = checked_array(attn_mask, (self.batch_size, heads, length, held.length - use.start), True)
        elif attn_mask is not None:
            attn_mask = _core.as_array(attn_mask, "attn_mask")
            warn_if_inverted(attn_mask)
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

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name; `update` is what transformers' caches have."""
            hint = "; call append(layer, key, value)" if name == "update" else ""
            raise AttributeError(f"'KVCache' object has no attribute {name!r}{hint}", name=name, obj=self)

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
        """Append the keys and values of new positions.

        Parameters
        ----------
        layer : int
            Layer.
        key : array_like, (batch_size, num_kv_heads, new, head_dim)
            Of the cache's dtype, to which float32 is rounded, and from which float16 and bfloat16 are widened.
            With layout='bshd': (batch_size, new, num_kv_heads, head_dim).
        value : array_like, (batch_size, num_kv_heads, new, v_head_dim)
            In the same layout.
        lengths : array_like of int, (batch_size,), optional
            Number of new positions of each batch entry; later ones are padding, which is not stored. Default: None,
            all.
        layout : {'bhsd', 'bshd'}
            Default: 'bhsd'.

        Raises
        ------
        TypeError
            A dtype is neither the cache's nor one that goes with it, or key and value have float16 and bfloat16.
        ValueError
            Shapes do not fit, or a batch entry would exceed max_length.
        MemoryError
            Memory is exhausted. The cache is unchanged, as after every error.
        """
        self._layer(layer)  # first, so that append(key, value) is told of the missing layer
        rows, new = as_rows(key, value, self.batch_size, self._sizes, layout)
        growth = self._begin(layer, new, lengths)
        _core.append_to_pages(growth.use, *rows, layout)
        self._finish(growth)

    def truncate(self, length: npt.ArrayLike) -> None:
        """Drop positions at the end, of every layer.

        ``cache.truncate(cache.lengths)`` undoes an `append` that did not reach all layers. Without a window, up to 16
        pages of one `append`, such as a prompt's, share one block of memory. The block is freed together with its last
        page, and until then `nbytes` counts all of it. With a window, every page is a block of its own.

        Parameters
        ----------
        length : int or array_like of int, (batch_size,)
            New maximum length of each batch entry; shorter ones stay as they are.

        Raises
        ------
        TypeError
            length is not an integer.
        ValueError
            length is negative, or the window of the next query would reach freed pages.
        """
        most = as_counts(length, "length", self.batch_size, None)
        for layer in self._layers:
            for b, (start, own, wanted) in enumerate(zip(layer.starts, layer.lengths, most, strict=True)):
                left = min(own, wanted)
                if start > max(0, left - (self.window or 0)) and left > 0 and left < own:
                    raise ValueError(
                        f"length of batch entry {b} is {left}, and its window of {self.window} begins before position "
                        f"{start}, the first one stored; truncate to {start + (self.window or 0)} or more, or to 0"
                    )
        self._layers = [pages.cut(layer, most) for layer in self._layers]

    def fork(self, n: SupportsIndex = 1) -> KVCache:
        """Make another cache that repeats each batch entry `n` times, sharing its pages.

        Every copy grows independently: its next `append` first copies its last page in each layer, if that page is
        shared and not full. This cache does not change.

        Parameters
        ----------
        n : int
            Number of copies, such as beams. Default: 1.

        Returns
        -------
        KVCache
            Of batch_size * n batch entries.
        """
        times = as_count(n, "n", least=0)
        return self._pick(np.repeat(range(self.batch_size), times).tolist())

    def reorder(self, index: npt.ArrayLike) -> None:
        """Select batch entries, as beam search does with its best beams; pages are shared.

        Parameters
        ----------
        index : array_like of int, (n,)
            Batch entry i becomes the old batch entry index[i]; the new batch size is n.

        Raises
        ------
        TypeError
            index is not an array of integers.
        ValueError
            index does not have one axis, or a batch entry is out of range.
        """
        chosen = as_integers(index, "index")
        if chosen.ndim != 1:
            raise ValueError(f"index has shape {chosen.shape}, expected one axis: (n,)")
        wrong = chosen[(chosen < 0) | (chosen >= self.batch_size)]
        if wrong.size:
            raise ValueError(f"index holds {wrong[0]}, expected batch entries from 0 to {self.batch_size - 1}")
        self._layers = self._pick(chosen.tolist())._layers

    # Access for modules

    def _layer(self, layer: SupportsIndex) -> Layer:
        return self._layers[_number_of(layer, "layer", self.num_layers)]

    def _read(self, layer: SupportsIndex) -> tuple[Layer, CacheUse]:
        """Return a layer, and its pages as the core takes them."""
        held = self._layer(layer)
        return held, pages.use_of(held, self._sizes)

    def _views(self, layer: SupportsIndex, batch: SupportsIndex) -> list[tuple[Page, Page]]:
        return pages.views_of(self._layer(layer), self._sizes, _number_of(batch, "batch", self.batch_size))

    def _check_held(self, layer: Layer, query_lengths: npt.ArrayLike, length: int, window: int) -> None:
        """Refuse queries whose first one sees a freed page."""
        counts = as_counts(query_lengths, "query_lengths", self.batch_size, length)
        for b, (start, end, count) in enumerate(zip(layer.starts, layer.lengths, counts, strict=True)):
            if count > 0 and start > max(0, end - count - window):
                raise ValueError(
                    f"query has {count} positions in batch entry {b}, and the window of the first begins before "
                    f"position {start}, the first one stored; at most {end - start - window} fit"
                )

    def _begin(self, layer: SupportsIndex, new: int, lengths: npt.ArrayLike | None = None) -> Growth:
        """Make room for new positions; the cache does not change until `_finish`."""
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
        """Restore all layers if one fails; an append writes only after the stored positions."""
        before = list(self._layers)
        try:
            yield
        except BaseException:
            self._layers = before
            # New lists count as sharing: a reader of a layer made in between keeps its pages unchanged.
            self._layers = [pages.pick(layer, range(len(layer.lengths))) for layer in before]
            raise

    # Files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the cache to a file.

        Parameters
        ----------
        path : str or path
            Ends in ``.npz`` or ``.safetensors``. An existing file is replaced.

        Raises
        ------
        TypeError
            path is neither a str nor a path.
        ValueError
            path ends in neither of them.
        """
        state = files.state_of(files.Saved(self.window, self.max_length, self._sizes, self._layers))
        if ending_of(path) == ".npz" and self.dtype.name == "bfloat16":
            state = files.with_bits(state)
        io.save(state, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KVCache:
        """Load a cache written by `save`.

        Parameters
        ----------
        path : str or path
            As for `save`.

        Returns
        -------
        KVCache

        Raises
        ------
        ValueError
            path has another ending, or the file does not hold a cache.
        OSError
            The file cannot be read.
        """
        try:
            window, max_length, sizes, layers = files.read_state(io.load(path))
            cache = cls(
                len(layers),
                *sizes[:2],
                v_head_dim=sizes.v_head_dim,
                dtype=sizes.dtype,
                window=window,
                max_length=max_length,
            )
            cache._layers = layers
        except (OSError, MemoryError, ImportError):
            raise
        except Exception as error:  # zipfile, zlib and NumPy raise many types
            raise ValueError(f"{os.fspath(path)} does not hold a saved KVCache: {error}") from error
        return cache


def _number_of(x: SupportsIndex, name: str, count: int) -> int:
    """Read an index below count."""
    if isinstance(x, np.ndarray) and x.ndim > 0:
        raise TypeError(f"{name} is an array, expected an int: the {name} comes first")
    n = as_count(x, name, least=0)
    if n >= count:
        raise ValueError(f"{name} is {n}, expected 0 to {count - 1}")
    return n

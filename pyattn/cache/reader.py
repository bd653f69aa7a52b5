"""What a cache tells and computes without being changed."""

from __future__ import annotations

from typing import Any, Literal, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from pyattn import _core
from pyattn._positions import CacheUse
from pyattn.cache import pages
from pyattn.cache.inputs import as_counts, as_floats, as_query
from pyattn.cache.pages import Layer, Page, Sizes
from pyattn.dropping import RNG
from pyattn.functional import AttentionResult, FloatArray, Layout, Score, Window
from pyattn.nn.dtypes import as_count

__all__ = ["CacheReader", "number_of"]


class CacheReader:
    """The part of `KVCache` that any number of threads may use at once."""

    num_layers: int
    window: int | None
    _sizes: Sizes
    _layers: list[Layer]

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
            Where dropout's numbers come from. Default: None, others each time.
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

    # Parts

    def _layer(self, layer: SupportsIndex) -> Layer:
        return self._layers[number_of(layer, "layer", self.num_layers)]

    def _read(self, layer: SupportsIndex) -> tuple[Layer, CacheUse]:
        """Tell what a layer holds, and the core where."""
        held = self._layer(layer)
        return held, pages.use_of(held, self._sizes)

    def _views(self, layer: SupportsIndex, batch: SupportsIndex) -> list[tuple[Page, Page]]:
        return pages.views_of(self._layer(layer), self._sizes, number_of(batch, "batch", self.batch_size))

    def _check_held(self, layer: Layer, query_lengths: npt.ArrayLike, length: int, window: int) -> None:
        """Refuse queries of which the first sees a page that was let go."""
        counts = as_counts(query_lengths, "query_lengths", self.batch_size, length)
        for b, (start, end, count) in enumerate(zip(layer.starts, layer.lengths, counts, strict=True)):
            if count > 0 and start > max(0, end - count - window):
                raise ValueError(
                    f"query has {count} positions in batch entry {b}, and the window of the first begins before "
                    f"position {start}, the first that is held; at most {end - start - window} fit"
                )


def number_of(x: SupportsIndex, name: str, count: int) -> int:
    """Read which of several is meant.

    Parameters
    ----------
    x : int
        From 0 to count - 1.
    name : str
        What messages call it.
    count : int
        How many there are.

    Returns
    -------
    int
    """
    n = as_count(x, name, least=0)
    if n >= count:
        raise ValueError(f"{name} is {n}, expected 0 to {count - 1}")
    return n

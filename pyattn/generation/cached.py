"""Decoding with a cache: at every step the model runs on the new tokens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pyattn._util.typing import FloatArray
from pyattn.generation.inputs import read_next, read_order, read_source
from pyattn.generation.protocol import IntArray, Step

if TYPE_CHECKING:
    from pyattn.cache import KVCache

__all__ = ["Cached"]


class Cached:
    """A `Decoding` of a model that has `new_cache` and `step`, and `remember` if it is an encoder-decoder.

    What it gives has the bits of `Recomputing`, but for rotary positions with the scaling dynamic or longrope beyond
    the trained length: there keys stay as they were stored, and a row depends on the longest of its batch, too. Rows
    that come from one share the pages of their cache, and what a source's keys and values are is computed once. A step
    that fails, or is interrupted, leaves it as it was.

    Parameters
    ----------
    model : Module
        Such as `pyattn.nn.TransformerLM`, `pyattn.nn.Seq2SeqTransformer` and the decoders of `pyattn.models`.
    source : array_like of int, (rows, length), optional
        What an encoder-decoder encodes. Default: None.
    source_lengths : array_like of int, (rows,), optional
        How many tokens of each row are no padding. Default: None, all.
    need_weights : bool
        Each `Step` has the weights of attention. Default: False.

    Attributes
    ----------
    lengths : ndarray of int64, (rows,)
        How many tokens each row has.
    cache : KVCache or None
        Keys and values of these tokens; None before the first step of a model without an encoder.

    Examples
    --------
    >>> from pyattn import generation, nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, rng=0).eval()
    >>> state = generation.Cached(model)
    >>> state.step([[3, 1, 4], [1, 5, 0]], lengths=[3, 2]).logits.shape
    (2, 10)
    >>> state.reorder([1])
    >>> state.step([[9]]).logits.shape, state.lengths
    ((1, 10), array([3]))
    """

    def __init__(
        self,
        model: Any,
        source: npt.ArrayLike | None = None,
        source_lengths: npt.ArrayLike | None = None,
        *,
        need_weights: bool = False,
    ) -> None:
        self._model, self._need_weights = model, need_weights
        self._turned = not getattr(model, "batch_first", True)
        self._caches: tuple[KVCache | None, KVCache | None] = (None, None)  # of the tokens, and of the source
        self._source_length = 0
        if model.is_encoder_decoder:
            ids, counts = read_source(model, source, source_lengths)
            memory = model.encode_memory(ids.T if self._turned else ids, src_lengths=counts)
            self._caches = (model.new_cache(len(ids)), memory)
            self._source_length = ids.shape[1]

    @property
    def lengths(self) -> IntArray:
        """How many tokens each row has, (rows,)."""
        cache = self.cache
        return np.zeros(0, np.int64) if cache is None else cache.lengths

    @property
    def cache(self) -> KVCache | None:
        """Keys and values of the tokens so far."""
        return self._caches[0]

    def step(self, ids: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> Step:
        """Take the next tokens of each row.

        Parameters
        ----------
        ids : array_like of int, (rows, n)
            n is 1 or more. The first call of a model without an encoder says how many rows there are.
        lengths : array_like of int, (rows,), optional
            How many of each row's n count, 1 or more. Default: None, all.

        Returns
        -------
        Step

        Raises
        ------
        TypeError
            ids or lengths are no integers.
        ValueError
            Shapes do not go together, or numbers are out of range; then the state is as it was, as after every error.
        """
        cache, memory = self._caches
        new, counts = read_next(self._model, ids, lengths, None if cache is None else cache.batch_size)
        cache = self._model.new_cache(len(new)) if cache is None else cache
        options: dict[str, Any] = {} if memory is None else {"memory_cache": memory}
        given = new.T if self._turned else new
        with cache._restored_on_error():
            found = self._model.decode_step(given, cache, lengths=counts, need_weights=self._need_weights, **options)
            found = self._with_all(found, counts, cache)
        self._caches = (cache, memory)
        return found

    def _with_all(self, found: Step, counts: IntArray, cache: KVCache) -> Step:
        """Give weights the axes of all tokens, also those that a window let go, and of all of the source."""
        _, own, cross = found
        if own is not None:
            own = _without_padding(_wider(own, before=cache.start(0)), counts)
        if cross is not None:
            cross = _without_padding(_wider(cross, behind=self._source_length - cross.shape[-1]), counts)
        return Step(found.logits, own, cross)

    def reorder(self, index: npt.ArrayLike) -> None:
        """Make row i what row index[i] was: rows may be left out, and may be there several times.

        Parameters
        ----------
        index : array_like of int, (n,)
            As many rows as there will be.

        Raises
        ------
        TypeError
            Not integers.
        ValueError
            Not one axis, or there is no such row.
        """
        chosen = read_order(index, len(self.lengths)).tolist()
        cache, memory = (None if one is None else one._pick(chosen) for one in self._caches)
        self._caches = (cache, memory)  # both or, if something came between, none


def _wider(weights: FloatArray, before: int = 0, behind: int = 0) -> FloatArray:
    """Add keys that nothing is given to."""
    return np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(before, behind)]) if before or behind else weights


def _without_padding(weights: FloatArray, counts: IntArray) -> FloatArray:
    """Set those of tokens that do not count to zero: (layers, rows, heads, n, S)."""
    padding = np.arange(weights.shape[3]) >= counts[:, np.newaxis]
    return np.where(padding[:, np.newaxis, :, np.newaxis], weights.dtype.type(0), weights) if padding.any() else weights

"""Decoding without a cache: at every step the whole model runs on all tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn._util.typing import FloatArray
from pyattn.generation.inputs import read_next, read_order, read_source
from pyattn.generation.protocol import IntArray, Step

__all__ = ["Recomputing"]


class Recomputing:
    """A `Decoding` of any model that is called with ids: it keeps nothing but the tokens.

    Slow, and simple: what decoding with a cache is held against.

    Parameters
    ----------
    model : Module
        Called with ``(ids, lengths=)``, or, where it has `is_encoder_decoder`, with ``(source, ids, src_lengths=,
        tgt_lengths=)``; so is its `forward_with_weights`, if weights are wanted.
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

    Examples
    --------
    >>> from pyattn import generation, nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, rng=0).eval()
    >>> state = generation.Recomputing(model)
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
        self._encodes = bool(getattr(model, "is_encoder_decoder", False))
        self._source = self._source_lengths = None
        if self._encodes:
            self._source, self._source_lengths = read_source(model, source, source_lengths)
        rows = 0 if self._source is None else len(self._source)
        self._tokens, self._lengths = np.zeros((rows, 0), np.int64), np.zeros(rows, np.int64)

    @property
    def lengths(self) -> IntArray:
        """How many tokens each row has, (rows,)."""
        return self._lengths

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
        tokens, before = self._tokens, self._lengths
        begins = not self._encodes and not before.size
        new, counts = read_next(self._model, ids, lengths, None if begins else len(before))
        if begins:
            tokens, before = np.zeros((len(new), 0), np.int64), np.zeros(len(new), np.int64)
        after = before + counts
        grown = np.zeros((len(new), int(after.max(initial=0))), np.int64)
        grown[:, : tokens.shape[1]] = tokens
        for row, (start, count) in enumerate(zip(before, counts, strict=True)):
            grown[row, start : start + count] = new[row, :count]

        logits, *weights = self._run(grown, after)
        self._tokens, self._lengths = grown, after
        n = new.shape[1]
        own, cross = (None if seen is None else _of_new(seen, before, counts, n) for seen in weights)
        return Step(logits[np.arange(len(new)), after - 1], own, cross)

    def _run(self, tokens: IntArray, lengths: IntArray) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        """Call the model, which may want the batch behind."""
        turned = not getattr(self._model, "batch_first", True)
        arguments = [self._source, tokens] if self._encodes else [tokens]
        options = (
            {"src_lengths": self._source_lengths, "tgt_lengths": lengths} if self._encodes else {"lengths": lengths}
        )
        given = [ids.T if turned else ids for ids in arguments if ids is not None]
        if self._need_weights:
            logits, own, cross = self._model.forward_with_weights(*given, **options)
        else:
            output, own, cross = self._model(*given, **options), None, None
            logits = getattr(output, "logits", output)
        return logits.swapaxes(0, 1) if turned else logits, own, cross

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
        chosen = read_order(index, len(self._lengths))
        self._tokens, self._lengths = self._tokens[chosen], self._lengths[chosen]
        self._tokens = self._tokens[:, : int(self._lengths.max(initial=0))]
        if self._source is not None and self._source_lengths is not None:
            self._source, self._source_lengths = self._source[chosen], self._source_lengths[chosen]


def _of_new(weights: FloatArray, before: IntArray, counts: IntArray, n: int) -> FloatArray:
    """Weights (layers, rows, heads, L, S) of the new tokens alone: (layers, rows, heads, n, S)."""
    result = np.zeros((*weights.shape[:3], n, weights.shape[4]), weights.dtype)
    for row, (start, count) in enumerate(zip(before, counts, strict=True)):
        result[:, row, :, :count] = weights[:, row, :, start : start + count]
    return result

"""Decoding states: each step appends tokens to each row and returns the model's scores for the next token.

`Decodable` and `Decoding` are the protocols of `pyattn.generate`. `CachedDecoding` runs a model on new tokens alone,
`UncachedDecoding` on all tokens in every step.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from pyattn._util.ids import as_ids
from pyattn._util.names import naming_keywords_of_class
from pyattn._util.typing import FloatArray, IntArray
from pyattn.cache import KVCache
from pyattn.nn.module import Module
from pyattn.nn.transformer.decoding import ModelStep, TokenModel, read_counts
from pyattn.nn.transformer.seq2seq import Seq2SeqTransformer

__all__ = ["CachedDecoding", "Decodable", "Decoding", "UncachedDecoding", "begin_decoding", "check_decodable"]


class Decoding(Protocol):
    """The state of sequences that grow token by token.

    A model's `begin` returns it, and `pyattn.generate` uses it.
    """

    @property
    def lengths(self) -> IntArray:
        """Number of tokens in each row, (rows,)."""
        ...

    def step(self, ids: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> ModelStep:
        """Append tokens to each row and score the next token.

        Parameters
        ----------
        ids : array_like of int, (rows, n)
            The prompts in the first step, usually one token per row after that.
        lengths : array_like of int, (rows,), optional
            Number of tokens in each row of ids; the rest of the row is padding. Default: None, all n.

        Returns
        -------
        ModelStep
            The scores of each row, and the attention weights if `begin` was asked for them.
        """
        ...

    def reorder(self, index: npt.ArrayLike) -> None:
        """Replace row i by row index[i], to drop or repeat rows.

        Parameters
        ----------
        index : array_like of int, (n,)
            One entry for each row of the new state.
        """
        ...


class Decodable(Protocol):
    """A model that `pyattn.generate` can use.

    Further attributes are optional: `vocab_size` and, in an encoder-decoder, `src_vocab_size` (number of tokens),
    `max_length` (number of positions), `padding_idx` (the source's padding token) and `training`, which must be False.

    Attributes
    ----------
    is_encoder_decoder : bool
        True: the source is encoded. False: the source is the prompt, which the generated tokens continue.
    """

    is_encoder_decoder: bool

    def begin(
        self, source: IntArray | None, source_lengths: IntArray | None = None, *, need_weights: bool = False
    ) -> Decoding:
        """Begin decoding.

        Parameters
        ----------
        source : ndarray of int64, (rows, length), or None
            The source of an encoder-decoder; None for other models.
        source_lengths : ndarray of int64, (rows,), optional
            Number of tokens in each row of source; the rest of the row is padding. Default: None, all.
        need_weights : bool
            Return attention weights in each `ModelStep`. Default: False.

        Returns
        -------
        Decoding
            A state without tokens.
        """
        ...


@naming_keywords_of_class
class CachedDecoding:
    """Decode with a KV cache: each step runs the model on the new tokens alone.

    Results are bit-identical to those of `UncachedDecoding`, with one exception. Beyond the trained length, the RoPE
    scalings 'dynamic' and 'longrope' rotate a token by frequencies that depend on the longest row of the batch, and
    cached keys are not rotated again. Rows that come from one row share cache pages, and keys and values of the source
    are computed once. After an error or an interrupt the state is as it was before the call.

    Parameters
    ----------
    model : Module
        A `pyattn.nn.TransformerLM` or `pyattn.nn.Seq2SeqTransformer`, or a decoder of `pyattn.models`.
    source : array_like of int, (rows, length), optional
        The source of an encoder-decoder. Default: None, for other models.
    source_lengths : array_like of int, (rows,), optional
        Number of tokens in each row of source; the rest of the row is padding. Default: None, all.
    need_weights : bool
        Return attention weights in each `ModelStep`. Default: False.

    Attributes
    ----------
    lengths : ndarray of int64, (rows,)
        Number of tokens in each row.
    cache : KVCache or None
        Keys and values of these tokens; None before the first step of a model without an encoder.

    Examples
    --------
    >>> from pyattn import generation, nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, rng=0).eval()
    >>> state = generation.CachedDecoding(model)
    >>> state.step([[3, 1, 4], [1, 5, 0]], lengths=[3, 2]).logits.shape
    (2, 10)
    >>> state.reorder([1])
    >>> state.step([[9]]).logits.shape, state.lengths
    ((1, 10), array([3]))
    """

    def __init__(
        self,
        model: TokenModel,
        source: npt.ArrayLike | None = None,
        source_lengths: npt.ArrayLike | None = None,
        *,
        need_weights: bool = False,
    ) -> None:
        self._model, self._need_weights = model, need_weights
        self._length_first = not getattr(model, "batch_first", True)
        self._caches: tuple[KVCache | None, KVCache | None] = (None, None)  # of the tokens, and of the source
        self._source_length = 0
        if model.is_encoder_decoder:
            ids, counts = _read_source(model, source, source_lengths)
            encoder = cast(Seq2SeqTransformer, model)
            memory = encoder.encode_memory(ids.T if self._length_first else ids, src_lengths=counts)
            self._caches = (model.new_cache(len(ids)), memory)
            self._source_length = ids.shape[1]

    @property
    def lengths(self) -> IntArray:
        """Number of tokens in each row, (rows,)."""
        cache = self.cache
        return np.zeros(0, np.int64) if cache is None else cache.lengths

    @property
    def cache(self) -> KVCache | None:
        """Keys and values of the tokens so far."""
        return self._caches[0]

    def step(self, ids: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> ModelStep:
        """Append tokens to each row and score the next token.

        Parameters
        ----------
        ids : array_like of int, (rows, n)
            One token or more per row. The first call for a model without an encoder sets the number of rows.
        lengths : array_like of int, (rows,), optional
            Number of tokens in each row of ids, 1 or more; the rest of the row is padding. Default: None, all n.

        Returns
        -------
        ModelStep
            The scores of each row, and the attention weights with need_weights.

        Raises
        ------
        TypeError
            ids or lengths are not integers.
        ValueError
            ids or lengths have the wrong shape or are out of range.
        """
        cache, memory = self._caches
        new, counts = _read_next(self._model, ids, lengths, None if cache is None else cache.batch_size)
        cache = self._model.new_cache(len(new)) if cache is None else cache
        inputs = new.T if self._length_first else new
        options: dict[str, Any] = {} if memory is None else {"memory_cache": memory}
        with cache._restored_on_error():
            step = self._model.decode_step(inputs, cache, lengths=counts, need_weights=self._need_weights, **options)
            step = self._complete_weights(step, counts, cache)
        self._caches = (cache, memory)
        return step

    def _complete_weights(self, step: ModelStep, counts: IntArray, cache: KVCache) -> ModelStep:
        """Add zeros for tokens dropped by a window and for source padding that the memory cache left out."""
        own, cross = step.self_weights, step.cross_weights
        if own is not None:
            own = _clear_padding(_add_keys(own, before=cache.start(0)), counts)
        if cross is not None:
            cross = _clear_padding(_add_keys(cross, after=self._source_length - cross.shape[-1]), counts)
        return ModelStep(step.logits, own, cross)

    def reorder(self, index: npt.ArrayLike) -> None:
        """Replace row i by row index[i], to drop or repeat rows.

        Parameters
        ----------
        index : array_like of int, (n,)
            One entry for each row of the new state.

        Raises
        ------
        TypeError
            index does not hold integers.
        ValueError
            index is not one-dimensional, or names a row that does not exist.
        """
        chosen = _read_index(index, len(self.lengths)).tolist()
        cache, memory = (None if one is None else one._pick(chosen) for one in self._caches)
        self._caches = (cache, memory)  # one assignment, so that an interrupt cannot change only one


@naming_keywords_of_class
class UncachedDecoding:
    """Decode without a cache: each step runs the whole model on all tokens.

    It is slow and simple, and serves as the reference for `CachedDecoding`.

    Parameters
    ----------
    model : Module
        Called with ``(ids, lengths=)`` or, if its `is_encoder_decoder` is True, with ``(source, ids, src_lengths=,
        tgt_lengths=)``, and with ``need_weights=True`` if requested.
    source : array_like of int, (rows, length), optional
        The source of an encoder-decoder. Default: None, for other models.
    source_lengths : array_like of int, (rows,), optional
        Number of tokens in each row of source; the rest of the row is padding. Default: None, all.
    need_weights : bool
        Return attention weights in each `ModelStep`. Default: False.

    Attributes
    ----------
    lengths : ndarray of int64, (rows,)
        Number of tokens in each row.

    Examples
    --------
    >>> from pyattn import generation, nn
    >>> model = nn.TransformerLM(10, 8, 2, 1, 16, rng=0).eval()
    >>> state = generation.UncachedDecoding(model)
    >>> state.step([[3, 1, 4], [1, 5, 0]], lengths=[3, 2]).logits.shape
    (2, 10)
    >>> state.reorder([1])
    >>> state.step([[9]]).logits.shape, state.lengths
    ((1, 10), array([3]))
    """

    def __init__(
        self,
        model: Module,
        source: npt.ArrayLike | None = None,
        source_lengths: npt.ArrayLike | None = None,
        *,
        need_weights: bool = False,
    ) -> None:
        self._model: Any = model  # typed as Any: signatures differ between modules
        self._need_weights = need_weights
        self._encodes = bool(getattr(model, "is_encoder_decoder", False))
        self._source: IntArray | None = None
        self._source_lengths: IntArray | None = None
        if self._encodes:
            self._source, self._source_lengths = _read_source(model, source, source_lengths)
        rows = 0 if self._source is None else len(self._source)
        self._tokens, self._lengths = np.zeros((rows, 0), np.int64), np.zeros(rows, np.int64)

    @property
    def lengths(self) -> IntArray:
        """Number of tokens in each row, (rows,)."""
        return self._lengths

    def step(self, ids: npt.ArrayLike, lengths: npt.ArrayLike | None = None) -> ModelStep:
        """Append tokens to each row and score the next token.

        Parameters
        ----------
        ids : array_like of int, (rows, n)
            One token or more per row. The first call for a model without an encoder sets the number of rows.
        lengths : array_like of int, (rows,), optional
            Number of tokens in each row of ids, 1 or more; the rest of the row is padding. Default: None, all n.

        Returns
        -------
        ModelStep
            The scores of each row, and the attention weights with need_weights.

        Raises
        ------
        TypeError
            ids or lengths are not integers.
        ValueError
            ids or lengths have the wrong shape or are out of range.
        """
        tokens, before = self._tokens, self._lengths
        is_first = not self._encodes and not before.size
        new, counts = _read_next(self._model, ids, lengths, None if is_first else len(before))
        if is_first:
            tokens, before = np.zeros((len(new), 0), np.int64), np.zeros(len(new), np.int64)
        after = before + counts
        grown = np.zeros((len(new), int(after.max(initial=0))), np.int64)
        grown[:, : tokens.shape[1]] = tokens
        for row, (start, count) in enumerate(zip(before, counts, strict=True)):
            grown[row, start : start + count] = new[row, :count]

        logits, *weights = self._run(grown, after)
        self._tokens, self._lengths = grown, after
        n = new.shape[1]
        own, cross = (None if one is None else _weights_of_new(one, before, counts, n) for one in weights)
        return ModelStep(logits[np.arange(len(new)), after - 1], own, cross)

    def _run(self, tokens: IntArray, lengths: IntArray) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        """Call the model on all tokens: logits (rows, length, vocabulary), and both kinds of weights or None."""
        length_first = not getattr(self._model, "batch_first", True)
        arguments = [self._source, tokens] if self._encodes else [tokens]
        options: dict[str, Any] = (
            {"src_lengths": self._source_lengths, "tgt_lengths": lengths} if self._encodes else {"lengths": lengths}
        )
        inputs = [ids.T if length_first else ids for ids in arguments if ids is not None]
        options |= {"need_weights": True} if self._need_weights else {}
        output, own, cross = self._model(*inputs, **options), None, None
        if hasattr(output, "logits"):  # a published model's
            attentions = getattr(output, "attentions", None)
            logits, own = output.logits, None if attentions is None else np.stack(attentions)
        elif self._need_weights:
            logits, own, cross = output
        else:
            logits = output
        return logits.swapaxes(0, 1) if length_first else logits, own, cross

    def reorder(self, index: npt.ArrayLike) -> None:
        """Replace row i by row index[i], to drop or repeat rows.

        Parameters
        ----------
        index : array_like of int, (n,)
            One entry for each row of the new state.

        Raises
        ------
        TypeError
            index does not hold integers.
        ValueError
            index is not one-dimensional, or names a row that does not exist.
        """
        chosen = _read_index(index, len(self._lengths))
        self._tokens, self._lengths = self._tokens[chosen], self._lengths[chosen]
        self._tokens = self._tokens[:, : int(self._lengths.max(initial=0))]
        if self._source is not None and self._source_lengths is not None:
            self._source, self._source_lengths = self._source[chosen], self._source_lengths[chosen]


def check_decodable(model: object) -> None:
    """Refuse a class, an object that cannot generate tokens, and a model in training mode."""
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__}; pass an instance of it, made with the model's sizes")
    if not hasattr(model, "is_encoder_decoder") or not (hasattr(model, "begin") or _has_forward(model)):
        raise TypeError(
            f"model is of type {type(model).__name__}, which cannot generate tokens; pass a pyattn.nn.TransformerLM or "
            "Seq2SeqTransformer, a decoder of pyattn.models, or an object with the methods of "
            "pyattn.generation.Decodable"
        )
    if getattr(model, "training", False):
        raise ValueError("model is in training mode, in which dropout is active; call model.eval() first")


def begin_decoding(
    model: Decodable | Module,
    source: IntArray | None,
    source_lengths: IntArray | None,
    *,
    use_cache: bool,
    need_weights: bool,
) -> Decoding:
    """Use the model's own `begin`, or else `CachedDecoding` if it has a cache, or else `UncachedDecoding`."""
    if hasattr(model, "begin") and (use_cache or not _has_forward(model)):
        return model.begin(source, source_lengths, need_weights=need_weights)
    if use_cache and hasattr(model, "new_cache") and hasattr(model, "decode_step"):
        return CachedDecoding(cast(TokenModel, model), source, source_lengths, need_weights=need_weights)
    return UncachedDecoding(cast(Module, model), source, source_lengths, need_weights=need_weights)


def _has_forward(model: object) -> bool:
    """Whether the model can be called with ids."""
    return callable(getattr(model, "forward", None))


def _read_source(
    model: object, source: npt.ArrayLike | None, lengths: npt.ArrayLike | None
) -> tuple[IntArray, IntArray]:
    """Read the source of an encoder-decoder, (rows, length), and the number of tokens in each row."""
    ids = as_ids([] if source is None else source, "source", getattr(model, "src_vocab_size", None))
    if ids.ndim != 2:
        raise ValueError(f"source has shape {ids.shape}, expected (rows, length)")
    return ids, read_counts(lengths, "source_lengths", ids.shape)


def _read_next(
    model: object, ids: npt.ArrayLike, lengths: npt.ArrayLike | None, rows: int | None
) -> tuple[IntArray, IntArray]:
    """Read the next tokens, (rows, n), and their number in each row; rows=None accepts any number of rows."""
    new = as_ids(ids, "ids", getattr(model, "vocab_size", None))
    if new.ndim != 2 or rows not in (None, len(new)):
        expected = "rows" if rows is None else rows
        raise ValueError(f"ids has shape {new.shape}, expected ({expected}, n): one row per sequence")
    return new, read_counts(lengths, "lengths", new.shape)


def _read_index(index: npt.ArrayLike, rows: int) -> IntArray:
    """Read the argument of `reorder`."""
    chosen = as_ids(index, "index", rows)
    if chosen.ndim != 1:
        raise ValueError(f"index has shape {chosen.shape}, expected one axis: (n,)")
    return chosen


def _add_keys(weights: FloatArray, before: int = 0, after: int = 0) -> FloatArray:
    """Add keys of weight zero to the last axis."""
    return np.pad(weights, [(0, 0)] * (weights.ndim - 1) + [(before, after)]) if before or after else weights


def _clear_padding(weights: FloatArray, counts: IntArray) -> FloatArray:
    """Set the weights of padded queries to zero: (layers, rows, heads, n, S)."""
    padding = np.arange(weights.shape[3]) >= counts[:, np.newaxis]
    return np.where(padding[:, np.newaxis, :, np.newaxis], weights.dtype.type(0), weights) if padding.any() else weights


def _weights_of_new(weights: FloatArray, before: IntArray, counts: IntArray, n: int) -> FloatArray:
    """Select the queries that are new: (layers, rows, heads, L, S) to (layers, rows, heads, n, S)."""
    result = np.zeros((*weights.shape[:3], n, weights.shape[4]), weights.dtype)
    for row, (start, count) in enumerate(zip(before, counts, strict=True)):
        result[:, row, :, :count] = weights[:, row, :, start : start + count]
    return result

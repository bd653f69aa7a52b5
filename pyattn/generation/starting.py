"""Where the state comes from that a model is decoded with."""

from __future__ import annotations

from typing import Any

from pyattn.generation.cached import Cached
from pyattn.generation.protocol import Decoding, IntArray
from pyattn.generation.recomputing import Recomputing

__all__ = ["begin"]


def begin(
    model: Any, source: IntArray | None, source_lengths: IntArray | None, *, use_cache: bool, need_weights: bool
) -> Decoding:
    """Begin to decode: with the model's own `begin`, which has a cache, or by running all of it at every step.

    Parameters
    ----------
    model : Decodable
        Or a module that is called with ids, as `Recomputing` takes it.
    source : ndarray of int64, (rows, length), or None
        What an encoder-decoder encodes.
    source_lengths : ndarray of int64, (rows,), or None
        How many tokens of each row are no padding.
    use_cache : bool
        Without, a model's own `begin` is called only where it cannot be called with ids.
    need_weights : bool
        Each `Step` has the weights of attention.

    Returns
    -------
    Decoding

    Raises
    ------
    TypeError
        model is none that can be decoded.
    """
    own, callable_with_ids = getattr(model, "begin", None), callable(getattr(model, "forward", None))
    if not hasattr(model, "is_encoder_decoder") or not (own or callable_with_ids):
        raise TypeError(
            f"model is of type {type(model).__name__}, expected a model of tokens: pyattn.nn's TransformerLM or "
            "Seq2SeqTransformer, or another that has begin() as pyattn.generation.Decodable says"
        )
    if own is not None and (use_cache or not callable_with_ids):
        state: Decoding = own(source, source_lengths, need_weights=need_weights)
        return state
    kind = Cached if use_cache and hasattr(model, "new_cache") and hasattr(model, "step") else Recomputing
    return kind(model, source, source_lengths, need_weights=need_weights)

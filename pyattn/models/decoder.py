"""Base class of published decoders: they score the next tokens, for whole sequences or with a KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_flag
from pyattn._util.typing import FloatArray, IntArray
from pyattn.functional._multihead_masks import read_padding_mask
from pyattn.masks import from_blocked
from pyattn.models.inputs import as_padding, as_tokens
from pyattn.models.layers import run_layers
from pyattn.models.weights import HEAD, Arrays
from pyattn.nn.embedding import Embedding
from pyattn.nn.linear import Linear
from pyattn.nn.transformer.decoding import TokenModel
from pyattn.nn.transformer.stack import TransformerEncoder
from pyattn.nn.transformer.tokens import padding_of

__all__ = ["UNSUPPORTED", "CausalLM", "CausalOutput", "make_head"]

# Entries of config.json that would change the computation, and their supported values.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, []),
    "layer_types": (),
    "quantization_config": (),
    "auto_map": (),  # custom code
}


class CausalOutput(NamedTuple):
    """The result of a decoder, under the names of Hugging Face's transformers.

    Attributes
    ----------
    logits : ndarray, (N, L, vocab_size), or None
        Scores of the next token at each position; None if the files have no head.
    last_hidden_state : ndarray, (N, L, features)
        The vectors from which the logits are computed.
    hidden_states : tuple of ndarray, (N, L, features), or None
        The first layer's input and each layer's output; the last is normalised, and equals last_hidden_state. None
        unless requested.
    attentions : tuple of ndarray, (N, heads, L, L), or None
        Each layer's attention weights, whose rows sum to 1; None unless requested.

    Examples
    --------
    >>> from pyattn import models, nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    >>> parts = nn.Embedding(10, 8), nn.Embedding(32, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 10)
    >>> output = models.GPT2(*parts).eval()([[3, 1, 4]], need_weights=True)
    >>> output.logits.shape, output.last_hidden_state.shape, output.attentions[0].shape
    ((1, 3, 10), (1, 3, 8), (1, 2, 3, 3))
    """

    logits: FloatArray | None
    last_hidden_state: FloatArray
    hidden_states: tuple[FloatArray, ...] | None
    attentions: tuple[FloatArray, ...] | None


class CausalLM(TokenModel):
    """Base of `GPT2` and `Llama`: an embedding, causal layers and an optional head."""

    is_encoder_decoder = False
    batch_first = True
    embedding: Embedding
    decoder: TransformerEncoder
    head: Linear | None

    def __init__(
        self,
        embedding: Embedding,
        decoder: TransformerEncoder,
        head: Linear | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.decoder, self.head = embedding, decoder, head
        self.config = dict(config or {})
        self.missing_keys: list[str] = []
        self.unexpected_keys: list[str] = []

    @property
    def vocab_size(self) -> int:
        """Number of tokens that the model knows."""
        return self.embedding.num_embeddings

    def _layers_with_cache(self) -> TransformerEncoder:
        return self.decoder

    def _score(self, x: FloatArray) -> FloatArray:
        if self.head is None:
            raise ValueError(f"the model has no head, as its files lack {HEAD}; load files with a head to get scores")
        scores: FloatArray = self.head(x)
        return scores

    def _read(
        self, input_ids: npt.ArrayLike, attention_mask: npt.ArrayLike | None, lengths: npt.ArrayLike | None
    ) -> tuple[IntArray, npt.NDArray[np.bool_] | None]:
        """Read token ids and the padding mask, True = blocked."""
        ids = as_tokens(input_ids, self.vocab_size)
        if lengths is None:
            return ids, as_padding(attention_mask, ids.shape)
        padding = padding_of(lengths, attention_mask, ids.shape, ("lengths", "attention_mask"))
        return ids, None if padding is None else read_padding_mask(padding, "attention_mask")

    def _run(
        self, x: FloatArray, padding: npt.NDArray[np.bool_] | None, need_weights: bool, need_hidden_states: bool
    ) -> CausalOutput:
        """Compute all layers for whole sequences."""
        weighted, states = as_flag(need_weights, "need_weights"), as_flag(need_hidden_states, "need_hidden_states")
        window = None if self.window is None else (self.window, None)
        options: dict[str, Any] = {
            "src_key_padding_mask": None if padding is None else from_blocked(padding),
            "is_causal": True,
            "window": window,
        }
        found = run_layers(self.decoder.layers, x, weighted, states, **options)
        x = found.x if self.decoder.norm is None else self.decoder.norm(found.x)
        hidden = None if found.hidden_states is None else (*found.hidden_states[:-1], x)
        return CausalOutput(None if self.head is None else self.head(x), x, hidden, found.attentions)


def make_head(arrays: Arrays) -> Linear | None:
    """Make the head from its own weight or the tied embedding; None if there is neither."""
    return Linear.from_arrays(arrays[HEAD]) if HEAD in arrays else None

"""What the published decoders have in common: tokens in, scores of the next tokens out, at once or with a cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_flag
from pyattn._util.ids import IntArray, check_range
from pyattn._util.typing import FloatArray
from pyattn.models._ids import as_padding, as_tokens
from pyattn.nn.embedding import Embedding
from pyattn.nn.linear import Linear
from pyattn.nn.transformer.decoding import TokenModel
from pyattn.nn.transformer.stack import TransformerEncoder
from pyattn.nn.transformer.tokens import padding_of

__all__ = ["CausalLM", "CausalOutput"]


class CausalOutput(NamedTuple):
    """What a decoder returns; the names are those of transformers, and None stands for what was not asked for.

    Attributes
    ----------
    logits : ndarray, (N, L, vocabulary), or None
        Scores of what follows each token; None where the files have no language model's head.
    last_hidden_state : ndarray, (N, L, features)
        A vector for each token, which logits are made of.
    hidden_states : tuple of ndarray, (N, L, features), or None
        What the first layer takes, then what each layer gives; the last of them normalised, as last_hidden_state.
    attentions : tuple of ndarray, (N, heads, L, L), or None
        What each token gives to each, in each layer: rows sum to 1.
    """

    logits: FloatArray | None
    last_hidden_state: FloatArray
    hidden_states: tuple[FloatArray, ...] | None
    attentions: tuple[FloatArray, ...] | None


class CausalLM(TokenModel):
    """Base of the published decoders.

    Attributes
    ----------
    embedding : Embedding
        Vectors of tokens.
    decoder : TransformerEncoder
        The layers, and the normalisation behind the last. They look back alone, and so they are an encoder's.
    head : Linear or None
        From vectors to scores of all tokens. Where weights are tied, its weight is that of `embedding`.
    config : dict of str to object
        What config.json says.
    missing_keys : list of str
        Tensors of a head that the files do not have; then there is none.
    unused_keys : list of str
        Tensors in the files that the model has no use for.
    """

    is_encoder_decoder = False
    batch_first = True
    embedding: Embedding
    decoder: TransformerEncoder
    head: Linear | None

    def _set(
        self,
        embedding: Embedding,
        decoder: TransformerEncoder,
        head: Linear | None,
        config: Mapping[str, Any] | None,
    ) -> None:
        self.embedding, self.decoder, self.head = embedding, decoder, head
        self.config = dict(config or {})
        self.missing_keys: list[str] = []
        self.unused_keys: list[str] = []

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return self.embedding.num_embeddings

    def _layers_with_cache(self) -> TransformerEncoder:
        return self.decoder

    def _score(self, x: FloatArray) -> FloatArray:
        if self.head is None:
            raise ValueError("the model was loaded without lm_head.weight, which its files lack: it gives no scores")
        scores: FloatArray = self.head(x)
        return scores

    def _read(
        self, input_ids: npt.ArrayLike, attention_mask: npt.ArrayLike | None, lengths: npt.ArrayLike | None
    ) -> tuple[IntArray, npt.NDArray[np.bool_] | None]:
        """Read ids, and what of them is padding: True = blocked."""
        ids = as_tokens(input_ids)
        check_range(ids, "input_ids", self.vocab_size, "that is the size of the vocabulary")
        given = as_padding(attention_mask, ids.shape)
        if lengths is None:
            return ids, given
        padding = padding_of(lengths, attention_mask, ids.shape, ("lengths", "attention_mask"))
        return ids, np.asarray(padding)

    def _run(
        self, x: FloatArray, padding: npt.NDArray[np.bool_] | None, need_weights: bool, need_hidden_states: bool
    ) -> CausalOutput:
        """Go through all layers at once."""
        weighted, kept = as_flag(need_weights, "need_weights"), as_flag(need_hidden_states, "need_hidden_states")
        window = None if self.window is None else (self.window, None)
        options: dict[str, Any] = {"src_key_padding_mask": padding, "is_causal": True, "window": window}
        states, attentions = [x] if kept else [], []
        layer: Any
        for layer in self.decoder.layers:
            if weighted:
                x, weights, _ = layer.forward_with_weights(x, **options)
                attentions.append(weights)
            else:
                x = layer(x, **options)
            if kept:
                states.append(x)
        x = x if self.decoder.norm is None else self.decoder.norm(x)
        hidden = (*states[:-1], x) if kept else None
        logits = None if self.head is None else self.head(x)
        return CausalOutput(logits, x, hidden, tuple(attentions) if weighted else None)

    def forward_with_weights(
        self,
        input_ids: npt.ArrayLike,
        attention_mask: npt.ArrayLike | None = None,
        *,
        lengths: npt.ArrayLike | None = None,
    ) -> tuple[FloatArray, FloatArray, None]:
        """Compute logits, and weights in one array, as `pyattn.nn.TransformerLM` returns them.

        Parameters
        ----------
        input_ids : array_like of int, (N, L)
            As for `forward`.
        attention_mask : array_like, (N, L), optional
            As for `forward`. Default: None.
        lengths : array_like of int, (N,), optional
            As for `forward`. Default: None.

        Returns
        -------
        logits : ndarray, (N, L, vocabulary)
        self_weights : ndarray, (layers, N, heads, L, L)
        cross_weights : None
        """
        output = self.forward(input_ids, attention_mask, lengths=lengths, need_weights=True)
        return output.logits, np.stack(output.attentions), None

"""Llama and Mistral: decoders with rotary positions (Touvron et al., "LLaMA", 2023; Jiang et al., "Mistral 7B", 2023).

By the ``model_type`` of config.json: ``llama``, as which many others are published, too, and ``mistral``, in which a
token may see a window of those before it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.arguments import as_flag
from pyattn._util.ids import IntArray
from pyattn._util.typing import RNG, FloatArray
from pyattn.models._causal import CausalLM, CausalOutput
from pyattn.models._causal_files import fit_decoder
from pyattn.models._files import open_model
from pyattn.models._llama_plan import NORM, PREFIX, WORDS, layer_of, norm_of, read_plan, shapes_of
from pyattn.nn.embedding import Embedding
from pyattn.nn.linear import Linear
from pyattn.nn.transformer.stack import TransformerEncoder

__all__ = ["Llama", "load"]


class Llama(CausalLM):
    """A Llama or a Mistral; `load` makes one of files.

    Layers normalise what goes into their parts by its root mean square, turn queries and keys with their positions,
    and have a gate in the feed-forward part: SwiGLU, mostly. `pyattn.generate` writes with it; `step`, with the cache
    that `new_cache` makes, is what that stands on. There is no end to its positions, whatever it was trained with.

    Parameters
    ----------
    embedding : Embedding
        Vectors of tokens.
    decoder : TransformerEncoder
        The layers.
    head : Linear, optional
        From vectors to scores. Default: None.
    window : int, optional
        How many tokens before its own a token sees. Default: None, all.
    config : mapping of str to object, optional
        What config.json says. Default: nothing.

    Attributes
    ----------
    config : dict of str to object
        As given.
    window : int or None
        As given.
    missing_keys : list of str
        Tensors of a head that the files do not have; then there is none.
    unused_keys : list of str
        Tensors in the files that the model has no use for.
    """

    def __init__(
        self,
        embedding: Embedding,
        decoder: TransformerEncoder,
        head: Linear | None = None,
        window: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._set(embedding, decoder, head, config)
        self.window = window

    @property
    def max_length(self) -> None:
        """None: there is no end to positions."""

    def forward(
        self,
        input_ids: npt.ArrayLike,
        attention_mask: npt.ArrayLike | None = None,
        *,
        lengths: npt.ArrayLike | None = None,
        need_weights: bool = False,
        need_hidden_states: bool = False,
    ) -> CausalOutput:
        """Compute scores of what follows each token.

        Parameters
        ----------
        input_ids : array_like of int, (N, L)
            Ids of tokens, as the model's tokenizer gives them.
        attention_mask : array_like, (N, L), optional
            1 or True = attend, 0 or False = padding. Default: None, there is no padding.
        lengths : array_like of int, (N,), optional
            In place of attention_mask: how many tokens of each row are no padding. Default: None.
        need_weights : bool
            Return the weights of all attentions. Default: False.
        need_hidden_states : bool
            Return what goes from layer to layer. Default: False.

        Returns
        -------
        CausalOutput
            Of the weights' dtype; rows of padding mean nothing.

        Raises
        ------
        TypeError
            Ids are no integers; attention_mask has no numbers.
        ValueError
            Ids are out of range; shapes do not go together; attention_mask holds other numbers than 0 and 1.
        """
        ids, padding = self._read(input_ids, attention_mask, lengths)
        x = functional.embedding(ids, self.embedding.weight)
        return self._run(x, padding, need_weights, need_hidden_states)

    def _embed_next(self, ids: IntArray, starts: IntArray, rng: RNG) -> FloatArray:
        return functional.embedding(ids, self.embedding.weight)


def load(path: str | os.PathLike[str], *, strict: bool = True, dtype: npt.DTypeLike | None = None) -> Llama:
    """Make a model of published files: config.json, and model.safetensors, whole or in parts. Nothing is downloaded.

    Parameters
    ----------
    path : str or path
        Their folder, or a file in it.
    strict : bool
        Everything that config.json speaks of is there. False does without a head whose weight is not the embedding's.
        Default: True.
    dtype : dtype, optional
        float32 or float64, to which weights are converted. Default: None, as they are in the files, and float32 for
        float16 and bfloat16, as which most are published.

    Returns
    -------
    Llama
        In evaluation mode. Its weights are read-only views of the file, which has to stay as it is, unless they had to
        be converted.

    Raises
    ------
    OSError
        A file is not there or cannot be read.
    ValueError
        A file is damaged; config.json is of another model, or asks for what is not here; tensors are missing or of
        another shape, all of which the message lists.
    TypeError
        dtype is something else.
    """
    strict = as_flag(strict, "strict")
    files = open_model(path)
    plan = read_plan(files.config)
    found = fit_decoder(files, shapes_of(plan), WORDS, PREFIX, tied=plan.tied, strict=strict, dtype=dtype)
    layers = [layer_of(found.arrays, n, plan) for n in range(plan.layers)]
    decoder = TransformerEncoder.from_layers(layers, norm_of(found.arrays, NORM, plan.eps))
    model = Llama(found.embedding, decoder, found.head, plan.window, files.config.values)
    model.missing_keys, model.unused_keys = found.missing, found.unused
    return model.eval()

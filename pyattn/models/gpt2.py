"""GPT-2: a decoder that writes (Radford et al., "Language models are unsupervised multitask learners", 2019)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.arguments import as_flag
from pyattn._util.ids import IntArray, check_range
from pyattn._util.typing import RNG, FloatArray
from pyattn.io.config import MOST_LAYERS, Config
from pyattn.models._causal import CausalLM, CausalOutput
from pyattn.models._causal_files import Decoder, fit_decoder, require_a_decoder
from pyattn.models._files import open_model
from pyattn.models._ids import as_ids
from pyattn.models._parts import Arrays, layer_norm, pair_shapes
from pyattn.models._plan import heads_of
from pyattn.models._weights import Shapes
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.embedding import Embedding
from pyattn.nn.feed_forward import Activation
from pyattn.nn.linear import Linear
from pyattn.nn.transformer.decoding import rows_at
from pyattn.nn.transformer.layer import TransformerEncoderLayer
from pyattn.nn.transformer.stack import TransformerEncoder

__all__ = ["GPT2", "load"]

WORDS, POSITIONS, NORM = "wte", "wpe", "ln_f"
USUAL: dict[str, tuple[Any, ...]] = {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)}


class GPT2(CausalLM):
    """A GPT-2; `load` makes one of files.

    Layers normalise what goes into their parts, with GELU in its tanh form, mostly. There is no dropout in it, as in
    evaluation elsewhere. `pyattn.generate` writes with it; `step`, with the cache that `new_cache` makes, is what that
    stands on.

    Parameters
    ----------
    embedding : Embedding
        Vectors of tokens.
    positions : Embedding
        Vectors of positions.
    decoder : TransformerEncoder
        The layers.
    head : Linear, optional
        From vectors to scores. Default: None.
    config : mapping of str to object, optional
        What config.json says. Default: nothing.

    Attributes
    ----------
    config : dict of str to object
        As given.
    missing_keys : list of str
        Tensors of a head that the files do not have; then there is none.
    unused_keys : list of str
        Tensors in the files that the model has no use for.
    """

    positions: Embedding

    def __init__(
        self,
        embedding: Embedding,
        positions: Embedding,
        decoder: TransformerEncoder,
        head: Linear | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._set(embedding, decoder, head, config)
        self.positions = positions

    @property
    def max_length(self) -> int:
        """How many positions there are."""
        return self.positions.num_embeddings

    def forward(
        self,
        input_ids: npt.ArrayLike,
        attention_mask: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
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
        position_ids : array_like of int, (N, L) or (L,), optional
            Default: None, in their order, whatever attention_mask says.
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
            Ids are out of range; a sequence is too long; shapes do not go together; attention_mask holds other numbers
            than 0 and 1.
        """
        ids, padding = self._read(input_ids, attention_mask, lengths)
        rows = self._rows_of(position_ids, ids)
        x = functional.embedding(ids, self.embedding.weight, residual=rows)
        return self._run(x, padding, need_weights, need_hidden_states)

    def _rows_of(self, given: npt.ArrayLike | None, ids: IntArray) -> FloatArray:
        table = self.positions.weight
        if given is not None:
            positions = as_ids(given, "position_ids", ids.shape)
            check_range(positions, "position_ids", len(table), "so many positions there are")
            return functional.embedding(positions, table)
        if ids.shape[1] > len(table):
            raise ValueError(f"input_ids has sequences of {ids.shape[1]} tokens, expected {len(table)} at most")
        return table[: ids.shape[1]]

    def _embed_next(self, ids: IntArray, starts: IntArray, rng: RNG) -> FloatArray:
        rows = rows_at(self.positions.weight, starts, ids.shape[1])
        return functional.embedding(ids, self.embedding.weight, residual=rows)


def load(path: str | os.PathLike[str], *, strict: bool = True, dtype: npt.DTypeLike | None = None) -> GPT2:
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
        float16 and bfloat16.

    Returns
    -------
    GPT2
        In evaluation mode. Embeddings, and the head, which is mostly one of them, are read-only views of the file,
        which has to stay as it is. Published weights of the layers are transposed, (in, out); here they are copies,
        (out, in): a product with a single row reads those ten times as quickly.

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
    config = files.config
    config.choice("model_type", "gpt2", {"gpt2": None})
    require_a_decoder(config, USUAL)
    dim = config.count("n_embd")
    heads, activation = heads_of(config, dim, "n_head"), config.activation("activation_function", "gelu_new")
    eps = config.number("layer_norm_epsilon", 1e-5)
    layers = [f"h.{n}." for n in range(config.count("n_layer", most=MOST_LAYERS))]
    tied = config.flag("tie_word_embeddings", True)

    shapes = _shapes(config, dim, layers)
    found = fit_decoder(files, shapes, f"{WORDS}.weight", "transformer.", tied=tied, strict=strict, dtype=dtype)
    blocks = [_layer(found.arrays, name, heads, activation, eps) for name in layers]
    decoder = TransformerEncoder.from_layers(blocks, layer_norm(found.arrays, NORM, eps))
    return _model(found, decoder, config)


def _shapes(config: Config, dim: int, layers: list[str]) -> Shapes:
    hidden = config.count("n_inner", 4 * dim) if config.values.get("n_inner") is not None else 4 * dim
    shapes: Shapes = {f"{WORDS}.weight": (config.count("vocab_size"), dim)}
    shapes |= {f"{POSITIONS}.weight": (config.count("n_positions"), dim)} | pair_shapes(NORM, dim)
    for name in layers:
        shapes |= pair_shapes(f"{name}ln_1", dim) | pair_shapes(f"{name}ln_2", dim)
        shapes |= _transposed_shapes(f"{name}attn.c_attn", 3 * dim, dim)
        shapes |= _transposed_shapes(f"{name}attn.c_proj", dim, dim)
        shapes |= _transposed_shapes(f"{name}mlp.c_fc", hidden, dim)
        shapes |= _transposed_shapes(f"{name}mlp.c_proj", dim, hidden)
    return shapes


def _transposed_shapes(name: str, out: int, into: int) -> Shapes:
    return {f"{name}.weight": (into, out), f"{name}.bias": (out,)}


def _layer(arrays: Arrays, name: str, heads: int, activation: Activation, eps: float) -> TransformerEncoderLayer:
    state: dict[str, FloatArray] = {}
    for ours, part in (("in_proj_", "attn.c_attn"), ("out_proj.", "attn.c_proj")):
        state |= {f"{ours}weight": _turned(arrays, name + part), f"{ours}bias": arrays[f"{name}{part}.bias"]}
    parts = {
        "self_attn": MultiheadAttention.from_arrays(state, heads, batch_first=True),
        "linear1": _linear(arrays, f"{name}mlp.c_fc"),
        "linear2": _linear(arrays, f"{name}mlp.c_proj"),
        "norm1": layer_norm(arrays, f"{name}ln_1", eps),
        "norm2": layer_norm(arrays, f"{name}ln_2", eps),
    }
    return TransformerEncoderLayer.from_parts(parts, dropout=0.0, activation=activation, norm_first=True)


def _linear(arrays: Arrays, name: str) -> Linear:
    return Linear.from_arrays(_turned(arrays, name), arrays[f"{name}.bias"])


def _turned(arrays: Arrays, name: str) -> FloatArray:
    """Copy a weight (in, out) to (out, in)."""
    return np.ascontiguousarray(arrays[f"{name}.weight"].T)


def _model(found: Decoder, decoder: TransformerEncoder, config: Config) -> GPT2:
    positions = Embedding.from_pretrained(found.arrays[f"{POSITIONS}.weight"])
    model = GPT2(found.embedding, positions, decoder, found.head, config.values)
    model.missing_keys, model.unused_keys = found.missing, found.unused
    return model.eval()

"""GPT-2: a decoder with learned positions.

Radford et al., "Language models are unsupervised multitask learners" (2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from pyattn._util.halves import as_float32
from pyattn._util.typing import RNG, FloatArray, IntArray
from pyattn.io.config import Config
from pyattn.models.decoder import UNSUPPORTED, CausalLM, CausalOutput, make_head
from pyattn.models.inputs import as_ids_per_token
from pyattn.models.layers import ACTIVATIONS, MAX_LAYERS, make_layer_norm, parameter_shapes, read_heads
from pyattn.models.weights import HEAD, Arrays, Plan, Shapes
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.embedding import Embedding
from pyattn.nn.feed_forward import Activation
from pyattn.nn.gradients import recorded, rows_of
from pyattn.nn.linear import Linear
from pyattn.nn.transformer.decoding import rows_at
from pyattn.nn.transformer.layer import TransformerEncoderLayer
from pyattn.nn.transformer.stack import TransformerEncoder

__all__ = ["GPT2", "plan_gpt2"]

WORDS, POSITIONS, NORM = "wte.weight", "wpe.weight", "ln_f"
UNSUPPORTED_SCALES = {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)}


class GPT2(CausalLM):
    """A GPT-2: a decoder with learned positions, made by `pyattn.models.load`.

    `pyattn.generate` continues sequences of tokens with it. Its layers normalise the input of each part (pre-norm). It
    has no dropout.

    Parameters
    ----------
    embedding : Embedding
        Vectors of tokens.
    positions : Embedding
        Vectors of positions.
    decoder : TransformerEncoder
        The layers, and the final normalisation. They have no cross-attention, so they are encoder layers, run causally.
    head : Linear, optional
        From vectors to scores of tokens. Default: None.
    config : mapping of str to object, optional
        The values of config.json. Default: none.

    Attributes
    ----------
    config : dict of str to object
        As given.
    missing_keys : list of str
        ``lm_head.weight`` where the files lack it; then `head` is None.
    unexpected_keys : list of str
        Tensors in the files that the model does not use.

    Examples
    --------
    >>> from pyattn import models, nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
    >>> parts = nn.Embedding(10, 8), nn.Embedding(32, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 10)
    >>> model = models.GPT2(*parts).eval()
    >>> model([[3, 1, 4]]).logits.shape
    (1, 3, 10)
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
        super().__init__(embedding, decoder, head, config)
        self.positions = positions

    @property
    def max_length(self) -> int:
        """Number of positions: the length of the longest sequence."""
        return self.positions.num_embeddings

    @recorded
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
        """Compute scores of the next token at each position.

        Parameters
        ----------
        input_ids : array_like of int, (N, L)
            Token ids from the model's tokenizer.
        attention_mask : array_like, (N, L), optional
            1 or True = attend, 0 or False = padding. Default: None, no padding.
        position_ids : array_like of int, (N, L) or (L,), optional
            Default: None, 0, 1, 2 and so on, with padding counted.
        lengths : array_like of int, (N,), optional
            Instead of attention_mask: the number of tokens before each row's padding. Default: None.
        need_weights : bool
            Return the attention weights of all layers. Default: False.
        need_hidden_states : bool
            Return the outputs of all layers. Default: False.

        Returns
        -------
        CausalOutput
            float32, or float64 with such weights; rows of padding are unspecified.

        Raises
        ------
        TypeError
            Ids are not integers, or attention_mask does not hold numbers.
        ValueError
            An id is out of range, a sequence is too long, a shape does not match input_ids, or attention_mask holds
            other numbers than 0 and 1.
        """
        ids, padding = self._read(input_ids, attention_mask, lengths)
        x = self.embedding._look_up(ids, residual=self._position_rows(position_ids, ids))
        return self._run(x, padding, need_weights, need_hidden_states)

    def _position_rows(self, given: npt.ArrayLike | None, ids: IntArray) -> FloatArray:
        table = self.positions.weight
        if given is not None:
            rows: FloatArray = self.positions(as_ids_per_token(given, "position_ids", len(table), ids.shape))
            return rows
        if ids.shape[1] > len(table):
            raise ValueError(
                f"input_ids has sequences of {ids.shape[1]} tokens, expected at most {len(table)}, "
                "the number of the model's positions"
            )
        return rows_of(self.positions, as_float32(table[: ids.shape[1]]), slice(ids.shape[1]))

    def _embed_next(self, ids: IntArray, starts: IntArray, rng: RNG) -> FloatArray:
        rows = as_float32(rows_at(self.positions.weight, starts, ids.shape[1]))
        return self.embedding._look_up(ids, residual=rows)


def plan_gpt2(config: Config) -> Plan:
    """Plan a GPT-2; its weights are published as (in, out)."""
    config.require(UNSUPPORTED | UNSUPPORTED_SCALES)
    dim, words = config.count("n_embd"), config.count("vocab_size")
    heads, activation = read_heads(config, dim, "n_head"), config.choice("activation_function", "gelu_new", ACTIVATIONS)
    eps = config.number("layer_norm_epsilon", 1e-5)
    hidden = 4 * dim if config.values.get("n_inner") is None else config.count("n_inner")
    layers = [f"h.{n}." for n in range(config.count("n_layer", most=MAX_LAYERS))]

    shapes: Shapes = {WORDS: (words, dim), HEAD: (words, dim), POSITIONS: (config.count("n_positions"), dim)}
    shapes |= parameter_shapes(NORM, dim)
    for name in layers:
        shapes |= _layer_shapes(name, dim, hidden)

    def build(arrays: Arrays) -> GPT2:
        embedding, positions = (Embedding.from_pretrained(arrays[name]) for name in (WORDS, POSITIONS))
        blocks = [_make_layer(arrays, name, heads, activation, eps) for name in layers]
        decoder = TransformerEncoder.from_layers(blocks, make_layer_norm(arrays, NORM, eps))
        return GPT2(embedding, positions, decoder, make_head(arrays), config.values)

    return Plan(shapes, build, "transformer.", embedding=WORDS, tied=config.flag("tie_word_embeddings", True))


def _layer_shapes(prefix: str, dim: int, hidden: int) -> Shapes:
    shapes = parameter_shapes(f"{prefix}ln_1", dim) | parameter_shapes(f"{prefix}ln_2", dim)
    linears = {"attn.c_attn": (dim, 3 * dim), "attn.c_proj": (dim, dim)}
    linears |= {"mlp.c_fc": (dim, hidden), "mlp.c_proj": (hidden, dim)}
    for name, (into, out) in linears.items():
        shapes |= {f"{prefix}{name}.weight": (into, out), f"{prefix}{name}.bias": (out,)}
    return shapes


def _make_layer(arrays: Arrays, prefix: str, heads: int, activation: Activation, eps: float) -> TransformerEncoderLayer:
    in_proj, out_proj, linear1, linear2 = (
        _make_linear(arrays, prefix + name) for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    )
    state = {f"in_proj_{name}": array for name, array in in_proj.named_parameters()}
    state |= {f"out_proj.{name}": array for name, array in out_proj.named_parameters()}
    parts = {
        "self_attn": MultiheadAttention.from_arrays(state, heads, batch_first=True),
        "linear1": linear1,
        "linear2": linear2,
        "norm1": make_layer_norm(arrays, f"{prefix}ln_1", eps),
        "norm2": make_layer_norm(arrays, f"{prefix}ln_2", eps),
    }
    return TransformerEncoderLayer.from_parts(parts, dropout=0.0, activation=activation, norm_first=True)


def _make_linear(arrays: Arrays, name: str) -> Linear:
    """Make a linear layer of a weight that is published as (in, out)."""
    return Linear.from_arrays(arrays[f"{name}.weight"].T, arrays[f"{name}.bias"])

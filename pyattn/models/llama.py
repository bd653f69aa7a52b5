"""Llama and Mistral: decoders with rotary positions, in a Mistral with a sliding window.

Touvron et al., "LLaMA" (2023); Jiang et al., "Mistral 7B" (2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy.typing as npt

from pyattn._util.typing import RNG, FloatArray, IntArray
from pyattn.io.config import Config
from pyattn.models.decoder import UNSUPPORTED, CausalLM, CausalOutput, make_head
from pyattn.models.layers import ACTIVATIONS, MAX_LAYERS, make_attention, make_linear, parameter_shapes
from pyattn.models.weights import HEAD, Arrays, Plan, Shapes
from pyattn.nn.embedding import Embedding
from pyattn.nn.feed_forward import Activation
from pyattn.nn.gradients import recorded
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.norm import RMSNorm
from pyattn.nn.positions import RotaryEmbedding
from pyattn.nn.transformer.layer import TransformerEncoderLayer
from pyattn.nn.transformer.stack import TransformerEncoder

__all__ = ["Llama", "plan_llama", "plan_mistral"]

WORDS, NORM = "embed_tokens.weight", "norm"
QUERY, KEY, VALUE, OUT = (f"self_attn.{part}_proj" for part in "qkvo")
GATE, UP, DOWN = (f"mlp.{part}_proj" for part in ("gate", "up", "down"))
NORM1, NORM2 = "input_layernorm", "post_attention_layernorm"

# Entries of config.json that would change the computation, and their supported values.
UNSUPPORTED_IN_LLAMA: dict[str, tuple[Any, ...]] = {"partial_rotary_factor": (1, 1.0), "sliding_window": ()}
UNSUPPORTED_IN_MISTRAL: dict[str, tuple[Any, ...]] = {
    "partial_rotary_factor": (1, 1.0),
    "attention_bias": (False,),
    "mlp_bias": (False,),
}

# As in transformers, these types also read original_max_position_embeddings from outside rope_scaling.
TRAINED = ("llama3", "yarn", "longrope")


class Llama(CausalLM):
    """A Llama or Mistral, a decoder with rotary positions (RoPE).

    `pyattn.models.load` makes it, and `pyattn.generate` continues sequences of tokens with it. Its layers normalise the
    input of each part by its root mean square, rotate queries and keys by their positions, and have a gate in the
    feed-forward part, in most models SwiGLU. It has no dropout. Sequences may be of any length, also longer than those
    of its training.

    Parameters
    ----------
    embedding : Embedding
        Vectors of tokens.
    decoder : TransformerEncoder
        The layers, and the final normalisation. They have no cross-attention, so they are encoder layers, run causally.
    head : Linear, optional
        From vectors to scores of tokens. Default: None.
    window : int, optional
        The number of tokens before it that each token sees. Default: None, all of them.
    config : mapping of str to object, optional
        The values of config.json. Default: none.

    Attributes
    ----------
    config : dict of str to object
        As given.
    window : int or None
        As given.
    missing_keys : list of str
        ``lm_head.weight`` where the files lack it; then `head` is None.
    unexpected_keys : list of str
        Tensors in the files that the model does not use.

    Examples
    --------
    >>> from pyattn import models, nn
    >>> rotary = nn.RotaryEmbedding(4)
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, rotary=rotary)
    >>> model = models.Llama(nn.Embedding(10, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 10)).eval()
    >>> model([[3, 1, 4]]).logits.shape
    (1, 3, 10)
    """

    def __init__(
        self,
        embedding: Embedding,
        decoder: TransformerEncoder,
        head: Linear | None = None,
        window: int | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(embedding, decoder, head, config)
        self.window = window

    @property
    def max_length(self) -> None:
        """None: sequences may be of any length."""

    @recorded
    def forward(
        self,
        input_ids: npt.ArrayLike,
        attention_mask: npt.ArrayLike | None = None,
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
            An id is out of range, a shape does not match input_ids, or attention_mask holds other numbers than 0 and 1.
        """
        ids, padding = self._read(input_ids, attention_mask, lengths)
        return self._run(self._embed(ids), padding, need_weights, need_hidden_states)

    def _embed(self, ids: IntArray) -> FloatArray:
        return self.embedding._look_up(ids)

    def _embed_next(self, ids: IntArray, starts: IntArray, rng: RNG) -> FloatArray:
        return self._embed(ids)


class _Sizes(NamedTuple):
    """Sizes and settings of the layers."""

    dim: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    mlp_bias: bool
    activation: Activation
    eps: float
    rotary: RotaryEmbedding


def plan_llama(config: Config) -> Plan:
    """Plan a Llama; many other models are published in this format."""
    config.require(UNSUPPORTED | UNSUPPORTED_IN_LLAMA)
    return _plan(config, None)


def plan_mistral(config: Config) -> Plan:
    """Plan a Mistral: a Llama with a sliding window."""
    config.require(UNSUPPORTED | UNSUPPORTED_IN_MISTRAL)
    seen = _optional_count(config, "sliding_window")
    return _plan(config, None if seen is None else seen - 1)  # sliding_window counts the token itself


def _plan(config: Config, window: int | None) -> Plan:
    sizes = _read_sizes(config)
    words, layers = config.count("vocab_size"), config.count("num_hidden_layers", most=MAX_LAYERS)
    shapes: Shapes = {WORDS: (words, sizes.dim), HEAD: (words, sizes.dim)}
    shapes |= parameter_shapes(NORM, sizes.dim, bias=False)
    for n in range(layers):
        shapes |= _layer_shapes(f"layers.{n}.", sizes)
    padding_idx = config.padding(words)

    def build(arrays: Arrays) -> Llama:
        blocks = [_make_layer(arrays, f"layers.{n}.", sizes) for n in range(layers)]
        decoder = TransformerEncoder.from_layers(blocks, _make_norm(arrays, NORM, sizes.eps))
        embedding = Embedding.from_pretrained(arrays[WORDS], padding_idx)
        return Llama(embedding, decoder, make_head(arrays), window, config.values)

    return Plan(shapes, build, "model.", embedding=WORDS, tied=config.flag("tie_word_embeddings", False))


def _read_sizes(config: Config) -> _Sizes:
    dim, heads = config.count("hidden_size"), config.count("num_attention_heads")
    kv_heads = _optional_count(config, "num_key_value_heads") or heads
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of {heads}, the number of heads")
    head_dim = _optional_count(config, "head_dim")
    if head_dim is None and dim % heads:
        raise config.error("num_attention_heads", f"a divisor of {dim}, the size of a layer; or add head_dim")
    head_dim = dim // heads if head_dim is None else head_dim
    return _Sizes(
        dim=dim,
        hidden=config.count("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        activation=config.choice("hidden_act", "silu", ACTIVATIONS),
        eps=config.number("rms_norm_eps", 1e-6),
        rotary=_make_rotary(config, head_dim),
    )


def _optional_count(config: Config, name: str) -> int | None:
    """Read a size; None if it is missing or null."""
    return None if config.values.get(name) is None else config.count(name)


def _make_rotary(config: Config, head_dim: int) -> RotaryEmbedding:
    """Read ``rope_parameters``, or in older files ``rope_theta`` and ``rope_scaling``."""
    values = config.values
    names = [name for name in ("rope_scaling", "rope_parameters") if values.get(name)]
    if len(names) == 2 and values[names[0]] != values[names[1]]:
        raise config.error("rope_scaling", "the same as rope_parameters; leave out one of the two")
    scaling = values[names[0]] if names else {}
    if not isinstance(scaling, Mapping):
        raise config.error(names[0], "an object with a rope_type")
    if scaling.get("partial_rotary_factor") not in (None, 1):
        raise config.error(names[0], "no partial_rotary_factor: only whole heads are rotated")
    trained = "original_max_position_embeddings"
    if values.get(trained) is not None and scaling.get("rope_type", scaling.get("type")) in TRAINED:
        scaling = {**scaling, trained: values[trained]}
    try:
        return RotaryEmbedding(
            head_dim,
            theta=None if values.get("rope_theta") is None else config.number("rope_theta", 0.0),
            scaling=scaling or None,
            max_position_embeddings=_optional_count(config, "max_position_embeddings"),
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{config.source}: {names[0] if names else 'rope_theta'} does not fit: {error}") from error


def _layer_shapes(prefix: str, sizes: _Sizes) -> Shapes:
    dim, queries, keys = sizes.dim, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    shapes: Shapes = {}
    for part, out, into in ((QUERY, queries, dim), (KEY, keys, dim), (VALUE, keys, dim), (OUT, dim, queries)):
        shapes |= parameter_shapes(prefix + part, out, into, bias=sizes.attention_bias)
    for part, out, into in ((GATE, sizes.hidden, dim), (UP, sizes.hidden, dim), (DOWN, dim, sizes.hidden)):
        shapes |= parameter_shapes(prefix + part, out, into, bias=sizes.mlp_bias)
    return shapes | {f"{prefix}{norm}.weight": (dim,) for norm in (NORM1, NORM2)}


def _make_layer(arrays: Arrays, prefix: str, sizes: _Sizes) -> TransformerEncoderLayer:
    names = (prefix + QUERY, prefix + KEY, prefix + VALUE, prefix + OUT)
    options = {"num_kv_heads": sizes.kv_heads, "rotary": sizes.rotary}
    parts: dict[str, Module] = {
        "self_attn": make_attention(arrays, names, sizes.heads, bias=sizes.attention_bias, **options),
        "gate": make_linear(arrays, prefix + GATE),
        "linear1": make_linear(arrays, prefix + UP),
        "linear2": make_linear(arrays, prefix + DOWN),
        "norm1": _make_norm(arrays, prefix + NORM1, sizes.eps),
        "norm2": _make_norm(arrays, prefix + NORM2, sizes.eps),
    }
    return TransformerEncoderLayer.from_parts(parts, dropout=0.0, activation=sizes.activation, norm_first=True)


def _make_norm(arrays: Arrays, name: str, eps: float) -> RMSNorm:
    weight = arrays[f"{name}.weight"]
    norm = RMSNorm(weight.shape, eps, dtype=weight.dtype)
    norm.weight = weight
    return norm

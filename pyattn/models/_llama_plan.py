"""What a Llama's configuration asks for: sizes, rotary positions, tensors and layers of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pyattn.io.config import MOST_LAYERS, Config
from pyattn.models._causal_files import require_a_decoder
from pyattn.models._parts import Arrays, linear
from pyattn.models._weights import Shapes
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.feed_forward import Activation
from pyattn.nn.norm import RMSNorm
from pyattn.nn.positions import RotaryEmbedding
from pyattn.nn.transformer.layer import TransformerEncoderLayer

__all__ = ["NORM", "PREFIX", "WORDS", "LlamaPlan", "layer_of", "norm_of", "read_plan", "shapes_of"]

WORDS, NORM, PREFIX = "embed_tokens.weight", "norm", "model."
QUERY, KEY, VALUE, OUT = (f"self_attn.{part}_proj" for part in "qkvo")
GATE, UP, DOWN = (f"mlp.{part}_proj" for part in ("gate", "up", "down"))
NORM1, NORM2 = "input_layernorm", "post_attention_layernorm"

# Of all, of a llama and of a mistral: keys that ask for another computation, with the values that do not.
USUAL: dict[str, tuple[Any, ...]] = {"partial_rotary_factor": (1, 1.0)}
OF_LLAMA: dict[str, tuple[Any, ...]] = {"sliding_window": ()}
OF_MISTRAL: dict[str, tuple[Any, ...]] = {"attention_bias": (False,), "mlp_bias": (False,)}


class LlamaPlan(NamedTuple):
    """What a configuration says."""

    words: int
    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    attention_bias: bool
    mlp_bias: bool
    activation: Activation
    eps: float
    tied: bool
    window: int | None
    rotary: RotaryEmbedding


def read_plan(config: Config) -> LlamaPlan:
    """Read a configuration.

    Parameters
    ----------
    config : Config
        Of a model.

    Returns
    -------
    LlamaPlan

    Raises
    ------
    ValueError
        A value is wrong, or asks for what is not here.
    """
    others = config.choice("model_type", "llama", {"llama": OF_LLAMA, "mistral": OF_MISTRAL})
    require_a_decoder(config, USUAL | others)
    dim, heads = config.count("hidden_size"), config.count("num_attention_heads")
    kv_heads = _count_or(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.wrong("num_key_value_heads", f"a divisor of {heads}, the number of heads")
    head_dim = _count_or(config, "head_dim", None)
    if head_dim is None and dim % heads:
        raise config.wrong("num_attention_heads", f"a divisor of {dim}, the size of a layer, or head_dim beside it")
    head_dim = dim // heads if head_dim is None else head_dim
    seen = None if others is OF_LLAMA else _count_or(config, "sliding_window", None)
    return LlamaPlan(
        words=config.count("vocab_size"),
        dim=dim,
        hidden=config.count("intermediate_size"),
        layers=config.count("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        attention_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        activation=config.activation("hidden_act", "silu"),
        eps=config.number("rms_norm_eps", 1e-6),
        tied=config.flag("tie_word_embeddings", False),
        window=None if seen is None else seen - 1,  # transformers counts the token itself
        rotary=_rotary(config, head_dim),
    )


def _count_or(config: Config, name: str, default: Any) -> Any:
    """Read a size that may be null."""
    return default if config.values.get(name) is None else config.count(name)


def _rotary(config: Config, head_dim: int) -> RotaryEmbedding:
    """Read ``rope_parameters``, or what older files have: ``rope_theta``, and ``rope_scaling`` unless it is null."""
    values = config.values
    names = [name for name in ("rope_scaling", "rope_parameters") if values.get(name)]
    if len(names) == 2 and values[names[0]] != values[names[1]]:
        raise config.wrong("rope_scaling", "what rope_parameters says; leave out one of the two")
    scaling = values[names[0]] if names else {}
    if not isinstance(scaling, Mapping):
        raise config.wrong(names[0], "an object with a rope_type")
    if scaling.get("partial_rotary_factor") not in (None, 1):
        raise config.wrong(names[0], "no partial_rotary_factor: all of a head turns")
    trained = "original_max_position_embeddings"
    if values.get(trained) is not None and scaling.get("rope_type", scaling.get("type")) in TRAINED:
        scaling = {**scaling, trained: values[trained]}
    try:
        return RotaryEmbedding(
            head_dim,
            theta=None if values.get("rope_theta") is None else config.number("rope_theta", 0.0),
            scaling=scaling or None,
            max_position_embeddings=_count_or(config, "max_position_embeddings", None),
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{config.source}: {names[0] if names else 'rope_theta'} does not fit: {error}") from error


TRAINED = ("llama3", "yarn", "longrope")  # take what stands beside rope_scaling for their own, as in transformers


def shapes_of(plan: LlamaPlan) -> Shapes:
    """Name all tensors but a head's.

    Parameters
    ----------
    plan : LlamaPlan
        Of the model.

    Returns
    -------
    dict of str to tuple of int
        Shapes by name.
    """
    queries, keys = plan.heads * plan.head_dim, plan.kv_heads * plan.head_dim
    shapes: Shapes = {WORDS: (plan.words, plan.dim), f"{NORM}.weight": (plan.dim,)}
    for n in range(plan.layers):
        name = f"layers.{n}."
        for part, out in ((QUERY, queries), (KEY, keys), (VALUE, keys)):
            shapes |= _linear_shapes(name + part, out, plan.dim, plan.attention_bias)
        shapes |= _linear_shapes(name + OUT, plan.dim, queries, plan.attention_bias)
        for part in (GATE, UP):
            shapes |= _linear_shapes(name + part, plan.hidden, plan.dim, plan.mlp_bias)
        shapes |= _linear_shapes(name + DOWN, plan.dim, plan.hidden, plan.mlp_bias)
        shapes |= {f"{name}{norm}.weight": (plan.dim,) for norm in (NORM1, NORM2)}
    return shapes


def _linear_shapes(name: str, out: int, into: int, bias: bool) -> Shapes:
    return {f"{name}.weight": (out, into)} | ({f"{name}.bias": (out,)} if bias else {})


def layer_of(arrays: Arrays, n: int, plan: LlamaPlan) -> TransformerEncoderLayer:
    """Make a layer.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of the model.
    n : int
        Which layer.
    plan : LlamaPlan
        Of the model.

    Returns
    -------
    TransformerEncoderLayer
        With the arrays themselves. The biases of query, key and value, if there are some, are one array, as in torch,
        and so a copy.
    """
    name = f"layers.{n}."
    state = {
        f"{x}_proj_weight": arrays[f"{name}{part}.weight"] for x, part in zip("qkv", (QUERY, KEY, VALUE), strict=True)
    }
    state["out_proj.weight"] = arrays[f"{name}{OUT}.weight"]
    if plan.attention_bias:
        state["in_proj_bias"] = np.concatenate([arrays[f"{name}{part}.bias"] for part in (QUERY, KEY, VALUE)])
        state["out_proj.bias"] = arrays[f"{name}{OUT}.bias"]
    options: dict[str, Any] = {"num_kv_heads": plan.kv_heads, "batch_first": True, "rotary": plan.rotary}
    parts = {
        "self_attn": MultiheadAttention.from_arrays(state, plan.heads, **options),
        "gate": linear(arrays, name + GATE),
        "linear1": linear(arrays, name + UP),
        "linear2": linear(arrays, name + DOWN),
        "norm1": norm_of(arrays, name + NORM1, plan.eps),
        "norm2": norm_of(arrays, name + NORM2, plan.eps),
    }
    return TransformerEncoderLayer.from_parts(parts, dropout=0.0, activation=plan.activation, norm_first=True)


def norm_of(arrays: Arrays, name: str, eps: float) -> RMSNorm:
    """Make a normalisation.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of the model.
    name : str
        Of the part.
    eps : float
        Of the normalisation.

    Returns
    -------
    RMSNorm
        With the array itself.
    """
    weight = arrays[f"{name}.weight"]
    norm = RMSNorm(weight.shape, eps, dtype=weight.dtype)
    norm.weight = weight
    return norm

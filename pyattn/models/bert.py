"""BERT, RoBERTa, DistilBERT and ALBERT: encoders that compute a vector for each token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.arguments import as_flag
from pyattn._util.halves import as_float32
from pyattn._util.typing import FloatArray, IntArray
from pyattn.io.config import Config
from pyattn.io.names import ALBERT_LAYER, BERT_LAYER, DISTILBERT_LAYER, LayerNames
from pyattn.masks import from_blocked
from pyattn.models.inputs import as_ids_per_token, as_padding, as_tokens
from pyattn.models.layers import (
    ACTIVATIONS,
    MAX_LAYERS,
    layer_shapes,
    make_layer,
    make_layer_norm,
    make_linear,
    parameter_shapes,
    read_heads,
    run_layers,
)
from pyattn.models.weights import Arrays, Plan, Shapes
from pyattn.nn.containers import ModuleList
from pyattn.nn.embedding import Embedding
from pyattn.nn.feed_forward import Activation
from pyattn.nn.gradients import recorded, rows_of, running
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module

__all__ = [
    "NORM",
    "UNSUPPORTED",
    "Bert",
    "Embeddings",
    "EncoderOutput",
    "Pooler",
    "embedding_shapes",
    "embedding_tables",
    "plan_albert",
    "plan_bert",
    "plan_distilbert",
    "plan_roberta",
]

WORDS, POSITIONS, TYPES = (f"embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type"))
NORM = "embeddings.LayerNorm"

# Entries of config.json that would change the computation, and their supported values.
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, []),
    "rope_scaling": (),
    "quantization_config": (),
    "auto_map": (),  # custom code
}


class EncoderOutput(NamedTuple):
    """The result of a `Bert`, under the names of Hugging Face's transformers.

    Attributes
    ----------
    last_hidden_state : ndarray, (N, L, features)
        A vector for each token; those of padding are unspecified.
    pooler_output : ndarray, (N, features), or None
        A vector for each sequence; None where the files have no pooler.
    hidden_states : tuple of ndarray, (N, L, features), or None
        The first layer's input and each layer's output; None unless requested.
    attentions : tuple of ndarray, (N, heads, L, L), or None
        Each layer's attention weights, whose rows sum to 1; None unless requested.

    Examples
    --------
    >>> import pyattn
    >>> output = pyattn.models.load("bert-base-uncased")([[101, 7592, 102]])  # doctest: +SKIP
    >>> output.last_hidden_state.shape, output.pooler_output.shape  # doctest: +SKIP
    ((1, 3, 768), (1, 768))
    """

    last_hidden_state: FloatArray
    pooler_output: FloatArray | None
    hidden_states: tuple[FloatArray, ...] | None
    attentions: tuple[FloatArray, ...] | None


class Bert(Module):
    """An encoder of the BERT family, made by `pyattn.models.load`.

    It has no dropout. Its layers are modules that can also be called directly; in most families each layer is one call
    of the C core.

    Parameters
    ----------
    embeddings : Module
        Called with input_ids, token_type_ids and position_ids.
    layers : iterable of Module
        Called like a `pyattn.nn.TransformerEncoderLayer` with batch_first. A layer may occur more than once, as in
        ALBERT.
    pooler : Module, optional
        Called with the output of the last layer. Default: None.
    config : mapping of str to object, optional
        The values of config.json. Default: none.

    Attributes
    ----------
    config : dict of str to object
        As given.
    missing_keys : list of str
        Tensors of a pooler that the files lack; then `pooler` is None.
    unexpected_keys : list of str
        Tensors in the files that the model does not use, such as heads for other tasks.

    Examples
    --------
    >>> import pyattn
    >>> model = pyattn.models.load("bert-base-uncased")  # doctest: +SKIP
    >>> model([[101, 7592, 102]]).last_hidden_state.shape  # doctest: +SKIP
    (1, 3, 768)
    """

    embeddings: Any
    layers: ModuleList[Module]
    pooler: Module | None

    _widens_halves = False  # ids are not floats

    def __init__(
        self,
        embeddings: Module,
        layers: Iterable[Module],
        pooler: Module | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.embeddings, self.layers, self.pooler = embeddings, ModuleList(layers), pooler
        self.config = dict(config or {})
        self.missing_keys: list[str] = []
        self.unexpected_keys: list[str] = []

    @property
    def max_length(self) -> int:
        """Largest number of tokens in a sequence."""
        return int(self.embeddings.max_length)

    @property
    def padding_idx(self) -> int | None:
        """The padding id in RoBERTa's families; None in other families.

        In RoBERTa's families padding takes no position.
        """
        found: int | None = self.embeddings.padding_idx
        return found

    @recorded
    def forward(
        self,
        input_ids: npt.ArrayLike,
        attention_mask: npt.ArrayLike | None = None,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
        *,
        need_weights: bool = False,
        need_hidden_states: bool = False,
    ) -> EncoderOutput:
        """Compute a vector for each token.

        Parameters
        ----------
        input_ids : array_like of int, (N, L)
            Token ids from the model's tokenizer.
        attention_mask : array_like, (N, L), optional
            1 or True = attend, 0 or False = padding. Default: None, no padding.
        token_type_ids : array_like of int, (N, L) or (L,), optional
            In most families 0 for a first sentence and 1 for a second. Default: None, all 0.
        position_ids : array_like of int, (N, L) or (L,), optional
            Default: None, 0, 1, 2 and so on. In RoBERTa's families positions start after the padding id, and padding
            takes no position.
        need_weights : bool
            Return the attention weights of all layers. Default: False.
        need_hidden_states : bool
            Return the outputs of all layers. Default: False.

        Returns
        -------
        EncoderOutput
            float32, or float64 with such weights. A sequence of padding alone attends to no key, but to the padding in
            transformers.

        Raises
        ------
        TypeError
            Ids are not integers, or attention_mask does not hold numbers.
        ValueError
            An id is out of range, a sequence is too long, a shape does not match input_ids, or attention_mask holds
            other numbers than 0 and 1.
        """
        weighted, states = as_flag(need_weights, "need_weights"), as_flag(need_hidden_states, "need_hidden_states")
        x: FloatArray = self.embeddings(input_ids, token_type_ids, position_ids)
        padding = as_padding(attention_mask, x.shape[:2])
        found = run_layers(
            self.layers, x, weighted, states, src_key_padding_mask=None if padding is None else from_blocked(padding)
        )
        pooled = None if self.pooler is None else self.pooler(found.x)
        return EncoderOutput(found.x, pooled, found.hidden_states, found.attentions)


class Embeddings(Module):
    """``projection(norm(words[input_ids] + positions[position_ids] + types[token_type_ids]))``."""

    words: Embedding
    positions: Embedding
    types: Embedding | None
    norm: Module
    projection: Linear | None

    _widens_halves = False  # ids are not floats

    def __init__(
        self,
        words: Embedding,
        positions: Embedding,
        types: Embedding | None,
        norm: Module,
        padding_idx: int | None = None,
        projection: Linear | None = None,
    ) -> None:
        super().__init__()
        self.words, self.positions, self.types, self.norm = words, positions, types, norm
        self.padding_idx = padding_idx  # in RoBERTa positions start after it
        self.projection = projection

    @property
    def max_length(self) -> int:
        """Length of the longest sequence."""
        return self.positions.num_embeddings - (0 if self.padding_idx is None else self.padding_idx + 1)

    @recorded
    def forward(
        self,
        input_ids: npt.ArrayLike,
        token_type_ids: npt.ArrayLike | None = None,
        position_ids: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Add up the vectors of words, positions and token types, then normalize."""
        ids = as_tokens(input_ids, self.words.num_embeddings)
        types = self._read_types(token_type_ids, ids.shape)
        x = self._embed_words(ids, self._position_rows(ids, position_ids))
        if types is not None and self.types is not None:
            x = self.types._look_up(types, residual=x)
        elif self.types is not None:
            x = running().add(x, rows_of(self.types, as_float32(self.types.weight[0]), 0))
        y: FloatArray = self.norm(x)
        return y if self.projection is None else self.projection(y)

    def _embed_words(self, ids: IntArray, rows: FloatArray) -> FloatArray:
        """Look up the vectors of tokens and add rows, in a new array."""
        return self.words._look_up(ids, residual=rows)

    def _read_types(self, given: npt.ArrayLike | None, shape: tuple[int, ...]) -> IntArray | None:
        if given is None:
            return None
        if self.types is None:
            raise ValueError("token_type_ids is given, but this model has no token types; leave it out")
        return as_ids_per_token(given, "token_type_ids", self.types.num_embeddings, shape)

    def _position_rows(self, ids: IntArray, given: npt.ArrayLike | None) -> FloatArray:
        """Return the vectors of positions: (L, features), or (N, L, features)."""
        table, length = self.positions.weight, ids.shape[1]
        if given is not None:
            return self.positions._look_up(as_ids_per_token(given, "position_ids", len(table), ids.shape))
        if self.padding_idx is None:
            self._check_length(length, "")
            return rows_of(self.positions, as_float32(table[:length]), slice(length))
        counted = ids != self.padding_idx
        if counted.all():
            self._check_length(length, "")
            own = slice(self.padding_idx + 1, self.padding_idx + 1 + length)
            return rows_of(self.positions, as_float32(table[own]), own)
        numbers = np.cumsum(counted, axis=1)
        self._check_length(int(numbers.max()), f" that are not padding (id {self.padding_idx})")
        return self.positions._look_up(np.where(counted, numbers, 0) + self.padding_idx)

    def _check_length(self, length: int, which: str) -> None:
        if length > self.max_length:
            raise ValueError(
                f"input_ids has sequences of {length} tokens{which}, expected at most {self.max_length}: "
                f"the model has {self.positions.num_embeddings} positions"
            )


class Pooler(Module):
    """``tanh(dense(x[:, 0]))``: a vector for each sequence; without dense, the vector of its first token."""

    dense: Linear | None

    def __init__(self, dense: Linear | None) -> None:
        super().__init__()
        self.dense = dense

    @recorded
    def forward(self, x: FloatArray) -> FloatArray:
        """Compute (N, features) from the last layer's (N, L, features)."""
        run, first = running(), np.ascontiguousarray(x[:, 0])

        def backward(grad: FloatArray) -> tuple[FloatArray]:
            whole = np.zeros_like(x)
            whole[:, 0] = grad
            return (whole,)

        run.step(first, (x,), backward)
        if self.dense is None:
            return first
        if not run.records:
            return functional.linear(first, self.dense.weight, self.dense.bias, activation="tanh")
        y = self.dense(first)
        pooled = _core.activate(y, "tanh")
        return run.step(pooled, (y,), lambda grad: (_core.activate_backward(grad, y, "tanh"),))


def embedding_shapes(words: int, positions: int, types: int, dim: int, word_dim: int | None = None) -> Shapes:
    """Return the embeddings' shapes; types is 0 without token types, word_dim the size of word vectors if not dim."""
    shapes: Shapes = {f"{WORDS}.weight": (words, word_dim or dim), f"{POSITIONS}.weight": (positions, dim)}
    return shapes | ({f"{TYPES}.weight": (types, dim)} if types else {}) | parameter_shapes(NORM, dim)


def embedding_tables(
    arrays: Arrays, word_padding: int | None, position_padding: int | None = None
) -> tuple[Embedding, Embedding, Embedding | None]:
    """Make the tables of words, positions and types, None without these; the vectors of padding get no gradient."""
    words = Embedding.from_pretrained(arrays[f"{WORDS}.weight"], word_padding)
    positions = Embedding.from_pretrained(arrays[f"{POSITIONS}.weight"], position_padding)
    types = arrays.get(f"{TYPES}.weight")
    return words, positions, None if types is None else Embedding.from_pretrained(types)


# Families: the same computation under different names

ALBERT_PROJECTION = "encoder.embedding_hidden_mapping_in"

# Entries of the first published ALBERT files, and the only values that were ever implemented.
UNSUPPORTED_BY_ALBERT = {
    "net_structure_type": (0,),
    "num_memory_blocks": (0,),
    "gap_size": (0,),
    "down_scale_factor": (1,),
}


class _Sizes(NamedTuple):
    """Sizes and settings of an encoder."""

    words: int
    positions: int
    types: int
    dim: int
    hidden: int
    heads: int
    activation: Activation
    eps: float


def plan_bert(config: Config) -> Plan:
    """Plan a BERT: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers" (2018)."""
    return _plan_layers_in_a_row(config, "bert.")


def plan_roberta(config: Config) -> Plan:
    """Plan a RoBERTa (Liu et al. 2019): a BERT whose positions start after the padding id."""
    positions = config.count("max_position_embeddings", least=2)
    padding_idx = config.count("pad_token_id", 1, least=0, most=positions - 2)
    return _plan_layers_in_a_row(config, "roberta.", padding_idx)


def plan_distilbert(config: Config) -> Plan:
    """Plan a DistilBERT (Sanh et al. 2019): a BERT without token types and without a pooler."""
    config.require(UNSUPPORTED)
    dim = config.count("dim")
    sizes = _Sizes(
        words=config.count("vocab_size"),
        positions=config.count("max_position_embeddings"),
        types=0,
        dim=dim,
        hidden=config.count("hidden_dim"),
        heads=read_heads(config, dim, "n_heads"),
        activation=config.choice("activation", "gelu", ACTIVATIONS),
        eps=1e-12,  # not in config.json
    )
    layers = config.count("n_layers", most=MAX_LAYERS)
    names = [DISTILBERT_LAYER.within(f"transformer.layer.{n}.") for n in range(layers)]
    return _plan(config, sizes, names, prefix="distilbert.")


def plan_albert(config: Config) -> Plan:
    """Plan an ALBERT (Lan et al. 2019): layers share weights, and words have smaller vectors than layers."""
    config.require(UNSUPPORTED_BY_ALBERT)
    sizes = _read_sizes(config, activation="gelu_new")
    layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    groups = config.count("num_hidden_groups", 1, most=MAX_LAYERS)
    inner = config.count("inner_group_num", 1, most=MAX_LAYERS // max(groups, layers))
    names = [
        ALBERT_LAYER.within(f"encoder.albert_layer_groups.{group}.albert_layers.{n}.")
        for group in range(groups)
        for n in range(inner)
    ]
    group_of_layer = [int(n / (layers / groups)) for n in range(layers)]  # the published rounding
    order = [group * inner + n for group in group_of_layer for n in range(inner)]
    word_dim = config.count("embedding_size")
    return _plan(config, sizes, names, order, prefix="albert.", pooler="pooler", word_dim=word_dim)


def _plan_layers_in_a_row(config: Config, prefix: str, padding_idx: int | None = None) -> Plan:
    sizes = _read_sizes(config, activation="gelu")
    layers = config.count("num_hidden_layers", most=MAX_LAYERS)
    names = [BERT_LAYER.within(f"encoder.layer.{n}.") for n in range(layers)]
    return _plan(config, sizes, names, prefix=prefix, pooler="pooler.dense", padding_idx=padding_idx)


def _read_sizes(config: Config, activation: str) -> _Sizes:
    config.require(UNSUPPORTED)
    dim = config.count("hidden_size")
    return _Sizes(
        words=config.count("vocab_size"),
        positions=config.count("max_position_embeddings"),
        types=config.count("type_vocab_size", 2),
        dim=dim,
        hidden=config.count("intermediate_size"),
        heads=read_heads(config, dim),
        activation=config.choice("hidden_act", activation, ACTIVATIONS),
        eps=config.number("layer_norm_eps", 1e-12),
    )


def _plan(
    config: Config,
    sizes: _Sizes,
    names: list[LayerNames],
    order: Iterable[int] | None = None,
    *,
    prefix: str,
    pooler: str | None = None,
    padding_idx: int | None = None,
    word_dim: int | None = None,
) -> Plan:
    """Plan an encoder that runs its layers in the given order; words of word_dim are projected to dim."""
    dim, eps = sizes.dim, sizes.eps
    shapes = embedding_shapes(sizes.words, sizes.positions, sizes.types, word_dim or dim)
    shapes |= parameter_shapes(ALBERT_PROJECTION, dim, word_dim) if word_dim else {}
    for layer in names:
        shapes |= layer_shapes(layer, dim, sizes.hidden)
    pooling = parameter_shapes(pooler, dim, dim) if pooler else {}
    word_padding = config.padding(sizes.words, 0) if padding_idx is None else padding_idx

    def build(arrays: Arrays) -> Bert:
        norm = make_layer_norm(arrays, NORM, eps)
        projection = make_linear(arrays, ALBERT_PROJECTION) if word_dim else None
        embeddings = Embeddings(*embedding_tables(arrays, word_padding, padding_idx), norm, padding_idx, projection)
        layers = [make_layer(arrays, layer, sizes.heads, sizes.activation, eps) for layer in names]
        first = Pooler(make_linear(arrays, str(pooler))) if f"{pooler}.weight" in arrays else None
        return Bert(embeddings, layers if order is None else [layers[n] for n in order], first, config.values)

    return Plan(shapes | pooling, build, prefix, pooler=tuple(pooling))

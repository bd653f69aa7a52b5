"""What an encoder's and a decoder's layer have in common: their parts, and both ways to compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, SupportsFloat, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from pyattn import _core
from pyattn._flags import as_flag
from pyattn.dropping import RNG, as_generator, as_probability
from pyattn.functional import FloatArray
from pyattn.layer import LayerOptions, LayerResult, LayerWeights, compute_layer
from pyattn.nn.dtypes import as_count, as_input
from pyattn.nn.feed_forward import Activation, as_activation, drop, feed, name_in_the_core
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.multihead import MultiheadAttention
from pyattn.nn.normalizing import LayerNorm
from pyattn.nn.packing import parameters_of
from pyattn.torch_rules import Hidden, Sizes, for_the_core, with_batch_first

__all__ = ["Layer", "check_parts"]

_Self = TypeVar("_Self", bound="Layer")
NOTHING = Hidden()


class Layer(Module):
    """Attentions and a feed-forward part, each with what it works on added, and a normalisation before or after.

    A layer is one call of the core. Where dropout is at work, where the activation is a function of the caller's, and
    where other modules have taken the place of its parts, it calls its parts one by one.

    Attributes
    ----------
    self_attn : MultiheadAttention
        Of x to itself.
    linear1, linear2 : Linear
        The feed-forward part.
    norm1, norm2 : LayerNorm
        One of each part.
    """

    attentions: ClassVar[tuple[str, ...]]  # names of the parts, in the order of the layer; each has a norm, as the last
    self_attn: MultiheadAttention
    linear1: Linear
    linear2: Linear
    norm1: LayerNorm
    norm2: LayerNorm

    def _make(
        self,
        sizes: tuple[SupportsIndex, SupportsIndex, SupportsIndex],
        options: tuple[SupportsFloat, Activation, bool],
        layer_norm_eps: SupportsFloat,
        batch_first: bool,
        bias: bool,
        dtype: npt.DTypeLike,
        rng: RNG,
    ) -> None:
        """For a constructor: make all parts."""
        d_model = as_count(sizes[0], "d_model", least=1)
        heads = as_count(sizes[1], "nhead", least=1)
        if d_model % heads:
            raise ValueError(f"d_model is {d_model} and nhead is {heads}, expected a multiple")
        hidden = as_count(sizes[2], "dim_feedforward", least=1)
        dropout = as_probability(options[0], "dropout")
        generator = as_generator(rng)
        parts: dict[str, Module] = {
            name: MultiheadAttention(
                d_model, heads, dropout, bias=bias, batch_first=batch_first, dtype=dtype, rng=generator
            )
            for name in self.attentions
        }
        parts["linear1"] = Linear(d_model, hidden, bias, dtype=dtype, rng=generator)
        parts["linear2"] = Linear(hidden, d_model, bias, dtype=dtype, rng=generator)
        for name in self._norms():
            parts[name] = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self._set(parts, dropout, *options[1:])

    def _set(
        self, parts: Mapping[str, Module], dropout: SupportsFloat, activation: Activation, norm_first: bool
    ) -> None:
        self.dropout = as_probability(dropout, "dropout")
        self.activation = as_activation(activation)
        self.norm_first = as_flag(norm_first, "norm_first")
        for name in (*self.attentions, "linear1", "linear2", *self._norms()):
            setattr(self, name, parts[name])

    @classmethod
    def from_parts(
        cls: type[_Self],
        parts: Mapping[str, Module],
        *,
        dropout: SupportsFloat = 0.1,
        activation: Activation = "relu",
        norm_first: bool = False,
    ) -> _Self:
        """Make a layer of these parts: nothing is copied, and nothing drawn.

        Parameters
        ----------
        parts : mapping of str to Module
            As the layer calls them.
        dropout : float
            As for the constructor, of what is added and within the feed-forward part. Default: 0.1.
        activation : str or callable
            As for the constructor. Default: 'relu'.
        norm_first : bool
            As for the constructor. Default: False.

        Returns
        -------
        TransformerEncoderLayer or TransformerDecoderLayer
            With the parts themselves.

        Raises
        ------
        ValueError
            A part is missing or unexpected.
        TypeError
            A part is no module, or self_attn no attention.
        """
        layer = cls.__new__(cls)
        check_parts(parts, (*cls.attentions, "linear1", "linear2", *layer._norms()))
        for name in cls.attentions:
            if not isinstance(parts[name], MultiheadAttention):
                raise TypeError(f"{name} is of type {type(parts[name]).__name__}, expected MultiheadAttention")
        layer._set(parts, dropout, activation, norm_first)
        return layer

    def _norms(self) -> list[str]:
        return [f"norm{n}" for n in range(1, len(self.attentions) + 2)]

    @property
    def batch_first(self) -> bool:
        """Whether inputs of three axes are (batch, length, features), as self_attn's are."""
        return self.self_attn.batch_first

    def _compute(
        self,
        inputs: tuple[tuple[str, npt.ArrayLike], ...],
        hidden: tuple[Hidden, ...],
        names: tuple[tuple[str, str, str], ...],
        rng: RNG,
        need_weights: bool = False,
    ) -> LayerResult:
        """Take x, and memory for a decoder, with their names; for each attention what is hidden, with its names."""
        first = self.self_attn
        if type(first) is not MultiheadAttention:  # it reads them as it likes
            return self._in_steps([_core.as_real(x, name) for name, x in inputs], hidden, rng, need_weights)
        given = [as_input(x, name, first.out_proj.weight.dtype) for name, x in inputs]
        (x, memory), who = (given[0], given[-1]), (inputs[0][0], inputs[-1][0], inputs[-1][0])
        sizes = (first.embed_dim,) * 3
        x, memory, _ = with_batch_first(x, memory, memory, sizes, batch_first=self.batch_first, names=who)
        read = []
        for masks, about, source in zip(hidden, names, (x, memory), strict=False):
            as_flag(masks.is_causal, about[2])
            lengths = Sizes(x.shape[:-2], first.num_heads, x.shape[-2], source.shape[-2])
            read.append(for_the_core(masks, lengths, about[:2]))
        if not self._is_one_call():
            return self._in_steps(given, hidden, rng, need_weights)

        result = compute_layer(
            x,
            memory if len(inputs) == 2 else None,
            self._weights(),
            self._options(),
            read[0],
            read[1] if len(inputs) == 2 else NOTHING,
            need_weights=need_weights,
        )
        if result.output.dtype != x.dtype.newbyteorder("="):  # the core promotes
            raise TypeError(
                f"parts of the layer have other dtypes than {x.dtype}; convert all with to(numpy.{x.dtype})"
            )
        turn = x.ndim == 3 and not self.batch_first
        return result._replace(output=result.output.swapaxes(0, 1)) if turn else result

    # One call of the core

    def _is_one_call(self) -> bool:
        """Tell whether the layer is what the core computes: the usual parts, and no dropout."""
        parts = vars(self)
        attentions, norms = [parts[name] for name in self.attentions], [parts[name] for name in self._norms()]
        usual = (attentions, MultiheadAttention), ((parts["linear1"], parts["linear2"]), Linear), (norms, LayerNorm)
        if any(type(part) is not kind for some, kind in usual for part in some):
            return False
        first, one = attentions[0], norms[0]
        same_heads = all((a.num_heads, a.num_kv_heads) == (first.num_heads, first.num_kv_heads) for a in attentions)
        plain = all(a.bias_k is None and not a.add_zero_attn for a in attentions)
        dropping = (self.training and self.dropout) or any(a.training and a.dropout for a in attentions)
        alike = all(norm.eps == one.eps and len(norm.normalized_shape) == 1 for norm in norms)
        known = name_in_the_core(self.activation) is not None
        return bool(same_heads and plain and not dropping and alike and known)

    def _weights(self) -> LayerWeights:
        parts = vars(self)
        attentions = [parameters_of(parts[name])[:8] for name in self.attentions]
        norms = [(parts[name].weight, parts[name].bias) for name in self._norms()]
        if len(attentions) == 1:
            norms.insert(1, (None, None))
        one, two = self.linear1, self.linear2
        feed_forward = (one.weight, one.bias, two.weight, two.bias, None, None)
        cross = attentions[1] if len(attentions) == 2 else None
        return LayerWeights(attentions[0], cross, feed_forward, (*norms[0], *norms[1], *norms[2]))

    def _options(self) -> LayerOptions:
        heads, kv_heads = self.self_attn.num_heads, self.self_attn.num_kv_heads
        return LayerOptions(heads, kv_heads, str(name_in_the_core(self.activation)), self.norm_first, self.norm1.eps)

    # Its parts, one by one

    def _in_steps(
        self, given: list[FloatArray], hidden: tuple[Hidden, ...], rng: RNG, need_weights: bool
    ) -> LayerResult:
        parts, dropout = vars(self), self.dropout if self.training else 0.0
        generator = None if rng is None else as_generator(rng)  # the same numbers are drawn once
        weights: list[FloatArray | None] = []

        def attend(name: str, x: FloatArray, source: FloatArray, masks: Hidden) -> FloatArray:
            options: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": False}
            options |= {"attn_mask": masks.attn_mask, "key_padding_mask": masks.key_padding_mask}
            options |= {} if generator is None else {"rng": generator}
            y, seen = parts[name](x, source, source, is_causal=masks.is_causal, **options)
            weights.append(seen)
            return drop(y, dropout, generator)

        def feed_on(x: FloatArray) -> FloatArray:
            y = feed(x, parts["linear1"], parts["linear2"], None, self.activation, dropout, generator)
            return drop(y, dropout, generator)

        def add(x: FloatArray, norm: Callable[[FloatArray], FloatArray], part: Callable[..., FloatArray]) -> FloatArray:
            return x + part(norm(x)) if self.norm_first else norm(x + part(x))

        norms = [parts[name] for name in self._norms()]
        own, *others = hidden
        y = add(given[0], norms[0], lambda x: attend("self_attn", x, x, own))
        for masks in others:
            y = add(y, norms[1], lambda x, masks=masks: attend(self.attentions[1], x, given[1], masks))
        y = add(y, norms[-1], feed_on)
        return LayerResult(np.asarray(y), weights[0], weights[1] if others else None)

    def extra_repr(self) -> str:
        """Tell what the repr of its parts does not.

        Returns
        -------
        str
            Of one line.
        """
        activation = name_in_the_core(self.activation) or self.activation
        return f"activation={activation}, dropout={self.dropout}, norm_first={self.norm_first}"


def check_parts(parts: Mapping[str, Module], names: tuple[str, ...]) -> None:
    """Check modules that are to be parts of another.

    Parameters
    ----------
    parts : mapping of str to Module
        The modules.
    names : tuple of str
        Those that there should be.

    Raises
    ------
    ValueError
        One is missing or unexpected.
    TypeError
        One is no module.
    """
    for name in (*names, *parts):
        if name not in parts or name not in names:
            raise ValueError(f"{name} is {'missing' if name in names else 'unexpected'}; expected {', '.join(names)}")
        if not isinstance(parts[name], Module):
            raise TypeError(f"{name} is of type {type(parts[name]).__name__}, expected a module of pyattn.nn")

"""The layers of a Transformer's encoder and decoder."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, SupportsFloat, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.reference as reference
from pyattn._util.arguments import as_count, as_flag, as_probability
from pyattn._util.halves import as_float32, compute_dtype
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, FloatArray, Window
from pyattn.cache.kv_cache import KVCache
from pyattn.functional._layer import LayerCaches, LayerOptions, LayerResult, LayerWeights, compute_layer
from pyattn.functional._multihead_masks import Masking, ScoreSizes, as_objects, to_core, with_batch_first
from pyattn.nn.attention.cached import check_cache, open_cache, rotation_of
from pyattn.nn.attention.multihead import MultiheadAttention
from pyattn.nn.attention.parameters import parameters_of
from pyattn.nn.containers import check_module
from pyattn.nn.feed_forward import Activation, as_activation, core_activation, feed
from pyattn.nn.gradients import drop, recorded, running
from pyattn.nn.inputs import as_input, as_inputs, check_dtype, check_multiple, rounding_halves
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.norm import LayerNorm, RMSNorm
from pyattn.nn.positions import RotaryEmbedding

if TYPE_CHECKING:
    from pyattn.tracing import LayerTrace
    from pyattn.tracing.layers import FeedForwardPart, NormPart

__all__ = ["TransformerDecoderLayer", "TransformerEncoderLayer", "TransformerLayer", "check_parts"]


_Self = TypeVar("_Self", bound="TransformerLayer")
NOTHING = Masking()
_FEED = ("linear1", "linear2", "gate")
_STAGES = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}

Attend: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray | None]]


class TransformerLayer(Module):
    """Base of both kinds of layer: attentions and a feed-forward part, each with Add & Norm."""

    attentions: ClassVar[tuple[str, ...]]  # attention parts in order; each has a norm, as has the feed-forward part
    self_attn: MultiheadAttention
    linear1: Linear
    linear2: Linear
    gate: Module | None = None
    norm1: LayerNorm | RMSNorm
    norm2: LayerNorm | RMSNorm

    def __init__(
        self,
        d_model: SupportsIndex,
        nhead: SupportsIndex,
        dim_feedforward: SupportsIndex = 2048,
        dropout: SupportsFloat = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: SupportsFloat = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        num_kv_heads: SupportsIndex | None = None,
        rotary: RotaryEmbedding | None = None,
        scale: SupportsFloat | None = None,
        gated: bool = False,
        rms_norm: bool = False,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        size = as_count(d_model, "d_model", least=1)
        heads = as_count(nhead, "nhead", least=1)
        check_multiple(("d_model", size), ("nhead", heads))
        inner = as_count(dim_feedforward, "dim_feedforward", least=1)
        generator = as_generator(rng)
        options: dict[str, Any] = {"bias": bias, "dtype": dtype, "rng": generator}
        heads_options: dict[str, Any] = {"batch_first": batch_first, "num_kv_heads": num_kv_heads, "scale": scale}
        parts: dict[str, Module] = {}
        for name in self.attentions:  # a memory has no positions
            heads_options["rotary"] = rotary if name == "self_attn" else None
            parts[name] = MultiheadAttention(size, heads, dropout, **heads_options, **options)
        parts["linear1"] = Linear(size, inner, **options)
        parts["linear2"] = Linear(inner, size, **options)
        if as_flag(gated, "gated"):
            parts["gate"] = Linear(size, inner, **options)
        rms = as_flag(rms_norm, "rms_norm")
        for name in self._norms():
            norm = RMSNorm(size, layer_norm_eps, dtype=dtype) if rms else None
            parts[name] = norm or LayerNorm(size, layer_norm_eps, bias=bias, dtype=dtype)
        self._set(parts, dropout, activation, norm_first)

    def _set(
        self, parts: Mapping[str, Module], dropout: SupportsFloat, activation: Activation, norm_first: bool
    ) -> None:
        self.dropout = as_probability(dropout, "dropout")
        self.activation = as_activation(activation)
        self.norm_first = as_flag(norm_first, "norm_first")
        for name in (*self.attentions, *(name for name in _FEED if name in parts), *self._norms()):
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
        """Make a layer of these parts: nothing is copied, nothing is drawn.

        Parameters
        ----------
        parts : mapping of str to Module
            Parts by attribute name. ``gate`` is optional; norms may be `RMSNorm`.
        dropout : float
            As for the constructor, but not within attentions, which have their own. Default: 0.1.
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
            A part is not a module, or self_attn is not a MultiheadAttention.
        """
        layer = cls.__new__(cls)
        check_parts(parts, (*cls.attentions, "linear1", "linear2", *layer._norms()), ("gate",))
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
        masking: tuple[Masking, ...],
        names: tuple[tuple[str, str, str], ...],
        rng: RNG,
        need_weights: bool = False,
    ) -> LayerResult:
        """Compute the layer; inputs are x and a decoder's memory, names those of each attention's masks."""
        first = self.self_attn
        if type(first) is not MultiheadAttention:  # a custom attention checks its own inputs
            given = [as_float32(_core.as_real(x, name)) for name, x in inputs]
            return self._call_parts(given, masking, rng, need_weights)
        given = as_inputs(inputs, first.out_proj.weight.dtype)
        (x, memory), who = (given[0], given[-1]), (inputs[0][0], inputs[-1][0], inputs[-1][0])
        sizes = (first.embed_dim,) * 3
        x, memory, _ = with_batch_first(x, memory, memory, sizes, batch_first=self.batch_first, names=who)
        read = []
        for masks, about, source in zip(masking, names, (x, memory), strict=False):
            as_flag(masks.is_causal, about[2])
            lengths = ScoreSizes(x.shape[:-2], first.num_heads, x.shape[-2], source.shape[-2])
            read.append(to_core(masks, lengths, about[:2]))
        if running().records or not self._is_one_call():
            own = [type(vars(self)[name]) is MultiheadAttention for name in self.attentions]  # others take arrays
            pairs = zip(own, masking, read, strict=True)
            masking = tuple(as_objects(masks, seen) if one else masks for one, masks, seen in pairs)
            return self._call_parts(given, masking, rng, need_weights)
        rotation = rotation_of(first.rotary, (0,), (x.shape[-2],), x.shape[-2])
        cross = memory if len(inputs) == 2 else None
        return self._call_core(x, cross, read, LayerCaches(rotary=rotation), need_weights)

    @rounding_halves
    def decode_step(
        self,
        x: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        memory_cache: KVCache | None = None,
        lengths: npt.ArrayLike | None = None,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> LayerResult:
        """Compute the layer for the next tokens, and extend the KV cache by them.

        The output is bit-identical to `forward` over all tokens with is_causal, unless rotary frequencies depend on the
        sequence length.

        Parameters
        ----------
        x : array_like, (L, N, d_model)
            The next tokens; (N, L, d_model) with batch_first.
        cache : KVCache
            With N batch entries. It changes only if the call succeeds.
        layer : int
            Layer of the caches. Default: 0.
        memory_cache : KVCache, optional
            Memory of a decoder's layer, filled by `encode_memory`; None for an encoder's. Default: None.
        lengths : array_like of int, (N,), optional
            Number of tokens of each batch entry; later ones are padding. Default: None, all.
        need_weights : bool
            Return the weights too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        output : ndarray
            Of x's shape; padded rows are unspecified.
        self_weights : ndarray, (N, nhead, L, S), or None
            S counts the positions of the cache after the call.
        cross_weights : ndarray, (N, nhead, L, S), or None
            S counts the positions of memory_cache; None for an encoder's layer.

        Raises
        ------
        TypeError
            x's dtype does not mix with that of the weights or the cache.
        ValueError
            Shapes disagree, the cache is full, or a decoder's layer has no memory_cache.
        """
        what = "has no memory to attend to" if len(self.attentions) == 1 else "needs a memory_cache: see encode_memory"
        if (memory_cache is None) != (len(self.attentions) == 1):
            raise ValueError(f"memory_cache is {type(memory_cache).__name__}, and this layer {what}")
        check_cache(cache)
        if memory_cache is cache:
            raise ValueError("memory_cache is the same object as cache; pass the cache that encode_memory filled")
        first = self.self_attn
        if not isinstance(first, MultiheadAttention):
            raise TypeError(f"self_attn is of type {type(first).__name__}; decode_step needs a MultiheadAttention")
        given, sizes = as_input(x, "x", first.out_proj.weight.dtype), (first.embed_dim,) * 3
        rows, _, _ = with_batch_first(given, given, given, sizes, batch_first=self.batch_first, names=("x",) * 3)
        if not self._is_one_call():
            with cache._restored_on_error():
                return self._step_parts(rows, cache, layer, memory_cache, lengths, need_weights, rng)
        own = open_cache(cache, layer, rows, "x", Masking(is_causal=True), lengths)
        options: Any = {"stores": False, "cache_name": "memory_cache"}
        cross = None if memory_cache is None else open_cache(memory_cache, layer, rows, "x", NOTHING, **options)
        rotation = rotation_of(first.rotary, own.starts, own.ends, rows.shape[-2])
        caches = LayerCaches(own.use, None if cross is None else cross.use, rotation)
        masking = [own.masking, NOTHING if cross is None else cross.masking]
        result = self._call_core(rows, None, masking, caches, need_weights)
        own.close()
        return result

    # One call of the core

    def _call_core(
        self, x: FloatArray, memory: FloatArray | None, masking: list[Masking], caches: LayerCaches, need_weights: bool
    ) -> LayerResult:
        """Compute the layer in the core, from inputs with batch first; the output has the caller's layout."""
        cross = masking[1] if len(masking) == 2 else NOTHING
        weights, options = self._weights(), self._options()
        result = compute_layer(x, memory, weights, options, masking[0], cross, caches, need_weights=need_weights)
        check_dtype(result.output, self, x.dtype)
        transpose = x.ndim == 3 and not self.batch_first
        return result._replace(output=result.output.swapaxes(0, 1)) if transpose else result

    def _is_one_call(self) -> bool:
        """Tell whether the core can compute the layer in one call: standard parts, and no dropout."""
        parts = vars(self)
        attentions, norms = [parts[name] for name in self.attentions], [parts[name] for name in self._norms()]
        feed_forward = [part for part in (parts["linear1"], parts["linear2"], self.gate) if part is not None]
        usual = (attentions, MultiheadAttention), (feed_forward, Linear), (norms, type(norms[0]))
        if any(type(part) is not kind for some, kind in usual for part in some):
            return False
        if type(norms[0]) not in (LayerNorm, RMSNorm):
            return False
        one = norms[0]
        same_heads = len({(a.num_heads, a.num_kv_heads, a.scale) for a in attentions}) == 1
        plain = all(a.bias_k is None and not a.add_zero_attn for a in attentions)
        plain &= all(a.rotary is None for a in attentions[1:])
        dropping = (self.training and self.dropout) or any(a.training and a.dropout for a in attentions)
        alike = all(norm.eps == one.eps and len(norm.normalized_shape) == 1 for norm in norms)
        known = core_activation(self.activation) is not None
        return bool(same_heads and plain and not dropping and alike and known)

    def _weights(self) -> LayerWeights:
        parts = vars(self)
        attentions = [parameters_of(parts[name])[:8] for name in self.attentions]
        norms = [(parts[name].weight, getattr(parts[name], "bias", None)) for name in self._norms()]
        if len(attentions) == 1:
            norms.insert(1, (None, None))
        one, two = self.linear1, self.linear2
        gate: Any = self.gate
        gating = (None, None) if gate is None else (gate.weight, gate.bias)
        feed_forward = (one.weight, one.bias, two.weight, two.bias, *gating)
        cross = attentions[1] if len(attentions) == 2 else None
        return LayerWeights(attentions[0], cross, feed_forward, (*norms[0], *norms[1], *norms[2]))

    def _options(self) -> LayerOptions:
        heads, kv_heads = self.self_attn.num_heads, self.self_attn.num_kv_heads
        name, rms = str(core_activation(self.activation)), type(self.norm1) is RMSNorm
        eps = np.finfo(compute_dtype(self.linear1.weight.dtype)).eps if self.norm1.eps is None else self.norm1.eps
        return LayerOptions(heads, kv_heads, self.self_attn.scale, name, self.norm_first, float(eps), rms)

    # One call for each part

    def _call_parts(
        self, given: list[FloatArray], masking: tuple[Masking, ...], rng: RNG, need_weights: bool
    ) -> LayerResult:
        generator = None if rng is None else as_generator(rng)  # shared by all parts

        def attention(name: str, masks: Masking) -> Attend:
            part = getattr(self, name)
            options: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": False} | masks._asdict()
            known = {name: x for name, x in options.items() if name.endswith("mask") or x is not None}
            options = known | ({} if generator is None else {"rng": generator})  # custom parts may not take the rest
            if name == "self_attn":
                return lambda x: part(x, x, x, **options)
            return lambda x: part(x, given[1], given[1], **options)

        attends = [attention(name, masks) for name, masks in zip(self.attentions, masking, strict=True)]
        return self._through_parts(given[0], attends, generator)

    def _step_parts(
        self,
        rows: FloatArray,
        cache: KVCache,
        layer: SupportsIndex,
        memory_cache: KVCache | None,
        lengths: npt.ArrayLike | None,
        need_weights: bool,
        rng: RNG,
    ) -> LayerResult:
        generator = None if rng is None else as_generator(rng)
        options: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": False, "rng": generator}
        attends: list[Attend] = [lambda x: self.self_attn.decode_step(x, cache, layer, lengths=lengths, **options)]
        if memory_cache is not None:
            attends.append(lambda x: getattr(self, self.attentions[1]).attend_memory(x, memory_cache, layer, **options))
        x = rows if self.batch_first else rows.swapaxes(0, 1)
        return self._through_parts(x, attends, generator)

    def _through_parts(self, x: FloatArray, attends: list[Attend], generator: RNG) -> LayerResult:
        parts, dropout = vars(self), self.dropout if self.training else 0.0
        norms = [parts[name] for name in self._norms()]
        weights: list[FloatArray | None] = []

        def add(x: FloatArray, norm: Callable[[FloatArray], FloatArray], part: Callable[..., FloatArray]) -> FloatArray:
            y = drop(part(norm(x) if self.norm_first else x), dropout, generator)
            total = running().add(x, y)
            return total if self.norm_first else norm(total)

        def attended(x: FloatArray, attend: Attend) -> FloatArray:
            y, seen = attend(x)
            weights.append(seen)
            return y

        def feed_on(x: FloatArray) -> FloatArray:
            return feed(x, parts["linear1"], parts["linear2"], self.gate, self.activation, dropout, generator)

        for norm, attend in zip(norms, attends, strict=False):
            x = add(x, norm, lambda x, attend=attend: attended(x, attend))
        x = add(x, norms[-1], feed_on)
        return LayerResult(np.asarray(x), weights[0], weights[1] if len(attends) == 2 else None)

    # Traces

    def _trace(
        self,
        inputs: Mapping[str, npt.ArrayLike],
        masking: tuple[Masking, ...],
        tokens: Mapping[str, Sequence[str] | None],
    ) -> LayerTrace:
        """Trace the layer from src, or tgt and memory, which are unbatched."""
        from pyattn.tracing.heads import trace_heads
        from pyattn.tracing.inputs import read_entry
        from pyattn.tracing.layers import Attending, LayerParts, trace_layer

        norms, feed_forward = self._norms_to_trace(), self._feed_forward_to_trace()
        for name in self.attentions:
            if not isinstance(getattr(self, name), MultiheadAttention):
                raise TypeError(
                    f"{name} is of type {type(getattr(self, name)).__name__}; trace needs a MultiheadAttention"
                )
        read = [read_entry(x, name, ("length", "d_model"), self.batch_first) for name, x in inputs.items()]
        with np.errstate(all="ignore"):
            cast = [x.astype(compute_dtype(self.linear1.weight.dtype)) for x in read]
        self._check_call(cast, masking)

        def attend(name: str, masks: Masking) -> Attending:
            part, is_self = getattr(self, name), name == "self_attn"
            options = {**masks._asdict(), "empty_rows": "zero"}
            key = None if is_self else read[1]
            names = (tokens["tokens"], None if is_self else tokens["memory_tokens"])
            is_masked = bool(masks.is_causal) or masks.attn_mask is not None or masks.window is not None
            return Attending(
                _STAGES[name], is_masked, lambda x: trace_heads(part, (x, key, None), options, names, is_checked=True)
            )

        attends = tuple(attend(name, masks) for name, masks in zip(self.attentions, masking, strict=True))
        named = dict(zip(("x", "memory"), read, strict=False))
        return trace_layer(named, LayerParts(attends, norms, feed_forward, self.norm_first), tokens)

    def _check_call(self, inputs: Sequence[FloatArray], masking: tuple[Masking, ...]) -> None:
        """Compute the layer once, which checks inputs and masks under the names of `forward`."""
        raise NotImplementedError

    def _norms_to_trace(self) -> tuple[NormPart, ...]:
        """Read the normalisations as float64."""
        from pyattn.tracing.layers import NormPart

        read = []
        for name in self._norms():
            norm = getattr(self, name)
            if not isinstance(norm, (LayerNorm, RMSNorm)) or len(norm.normalized_shape) != 1:
                raise TypeError(f"{name} is {norm!r}; trace needs a LayerNorm or RMSNorm over the last axis")
            eps = np.finfo(compute_dtype(self.linear1.weight.dtype)).eps if norm.eps is None else norm.eps
            is_rms = isinstance(norm, RMSNorm)
            bias = None if is_rms else getattr(norm, "bias", None)
            read.append(NormPart(_as_float64(norm.weight), _as_float64(bias), float(eps), is_rms))
        return tuple(read)

    def _feed_forward_to_trace(self) -> FeedForwardPart:
        """Read the feed-forward part as float64."""
        from pyattn.tracing.layers import FeedForwardPart

        pairs: list[Any] = []
        for name in _FEED:
            part = getattr(self, name)
            if part is not None and not isinstance(part, Linear):
                raise TypeError(f"{name} is of type {type(part).__name__}; trace needs a Linear")
            pairs.append(None if part is None else (_as_float64(part.weight), _as_float64(part.bias)))
        known = core_activation(self.activation)
        given: Any = self.activation
        own: str = getattr(given, "__name__", "")
        title = known or (own if own.isidentifier() else "activation")  # a lambda has no name to call
        activate: Any = given if known is None else functools.partial(reference.activate, activation=known)
        return FeedForwardPart(pairs[0], pairs[1], pairs[2], title, activate)

    def extra_repr(self) -> str:
        """Return the options that the repr of the parts does not show.

        Returns
        -------
        str
            Of one line.
        """
        activation = core_activation(self.activation) or self.activation
        return f"activation={activation}, dropout={self.dropout}, norm_first={self.norm_first}"


class TransformerEncoderLayer(TransformerLayer):
    """A layer of an encoder: `torch.nn.TransformerEncoderLayer` for NumPy.

    True = blocked in bare masks. Self-attention, then ``linear2(act(linear1(x)))``, each with a residual connection.
    The sum is normalised (Vaswani et al. 2017), or with norm_first the input of each part (Xiong et al. 2020). The core
    computes a layer in one call, unless dropout is active or the activation is the caller's own function.

    Parameters
    ----------
    d_model : int
        Size of the last axis of inputs and output.
    nhead : int
        Heads of the attention; divides d_model.
    dim_feedforward : int
        Size of the last axis within the feed-forward part. Default: 2048.
    dropout : float
        Probability that an attention weight, an element of a part's output or a hidden value of the feed-forward part
        becomes 0, in training only. Default: 0.1.
    activation : str or callable
        As in `FeedForward`. Default: 'relu'.
    layer_norm_eps : float
        eps of the normalisations. Default: 1e-5.
    batch_first : bool
        Inputs and output of three axes are (batch, length, features), not (length, batch, features). Default: False.
    norm_first : bool
        Normalise the input of each part (pre-norm), not the sum after it. Default: False.
    bias : bool
        All parts have biases. Default: True.
    num_kv_heads : int, optional
        Heads of keys and values; divides nhead. Default: nhead.
    rotary : RotaryEmbedding, optional
        Rotates queries and keys of the self-attention by their positions. Default: None.
    scale : float, optional
        Factor on attention scores. Default: None, ``1 / sqrt(d_model / nhead)``.
    gated : bool
        The feed-forward part is ``linear2(act(gate(x)) * linear1(x))``: SwiGLU with activation 'silu'. Default: False.
    rms_norm : bool
        Normalise by `RMSNorm`, not `LayerNorm`. Default: False.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    self_attn : MultiheadAttention
        Self-attention. All parts are initialised as in torch.
    linear1, linear2 : Linear
        d_model to dim_feedforward, and back.
    gate : Linear or None
        The gate of the feed-forward part, if it has one.
    norm1, norm2 : LayerNorm or RMSNorm
        Norms of the attention and of the feed-forward part.

    Raises
    ------
    TypeError
        An argument other than activation has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A number is out of range, d_model is not a multiple of nhead, nhead is not a multiple of num_kv_heads,
        activation is neither callable nor a known name, or the dim of rotary is not ``d_model / nhead``.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, rng=0).eval()
    >>> padding = np.array([[False, False, False], [False, False, True]])
    >>> layer(np.ones((2, 3, 8), np.float32), src_key_padding_mask=padding).shape
    (2, 3, 8)
    """

    attentions = ("self_attn",)

    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        *,
        window: Window = None,
        need_weights: Literal[False] = False,
        rng: RNG = None,
    ) -> FloatArray: ...
    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        *,
        window: Window = None,
        need_weights: Literal[True],
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray, None]: ...
    @overload
    def forward(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        *,
        window: Window = None,
        need_weights: bool,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, None]: ...
    @recorded
    def forward(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        *,
        window: Window = None,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, None]:
        """Compute the layer.

        Intended differences from torch: `is_causal` hides later positions with or without a mask, while torch treats it
        as a hint about a mask that it also needs. A row with nothing to attend to gives 0 before the attention's output
        projection, while torch in eval mode gives NaN.

        Parameters
        ----------
        src : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with batch_first. Of the weights' dtype; float32 mixes with float16 or bfloat16.
        src_mask : array_like, (L, L) or (N * nhead, L, L), optional
            bool: True = blocked; float: added to the scores. Batch entry b, head h is at ``b * nhead + h``. Default:
            None.
        src_key_padding_mask : array_like, (N, L) or (L,), optional
            bool: True = blocked; float: added to the scores. Default: None.
        is_causal : bool
            Position i attends only to positions 0 to i, whatever src_mask says. Default: False.
        window : int or (left, right), optional
            Position i attends to i - left to i + right; None = unbounded. Default: None.
        need_weights : bool
            Return the weights too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        output : ndarray
            Of src's shape. Without need_weights it is the only result.
        self_weights : ndarray, (N, nhead, L, L) or (nhead, L, L)
            With need_weights: after dropout, as in torch.
        cross_weights : None
            With need_weights, as of a decoder's layer; an encoder has no cross-attention.

        Raises
        ------
        TypeError
            src's dtype does not mix with the weights'; a mask is neither bool nor of floats.
        ValueError
            Shapes disagree; the message names the argument.
        """
        masks = Masking(src_mask, src_key_padding_mask, is_causal, window)
        weighted = as_flag(need_weights, "need_weights")
        output, weights, _ = self._call(src, masks, rng, weighted)
        if not weighted:
            return output
        assert weights is not None
        return output, weights, None

    def trace(
        self,
        src: npt.ArrayLike,
        src_mask: npt.ArrayLike | None = None,
        src_key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        *,
        window: Window = None,
        tokens: Sequence[str] | None = None,
    ) -> LayerTrace:
        """Trace the layer: attention, Add & Norm and feed-forward, with their numbers.

        All arithmetic is in float64, without dropout.

        Parameters
        ----------
        src : array_like, (L, d_model)
            One batch entry, of any real dtype.
        src_mask, src_key_padding_mask : array_like, optional
            As for `forward`: True = blocked. Default: None.
        is_causal : bool
            As for `forward`, like window. Default: False.
        window : int or (left, right), optional
            Default: None.
        tokens : sequence of str, optional
            Names of the positions. Default: None, their indices.

        Returns
        -------
        pyattn.tracing.LayerTrace
            ``stages`` in the order of computation; ``outputs`` is what the layer returns.

        Raises
        ------
        TypeError
            src does not hold real numbers, or a part of the layer is a custom module.
        ValueError
            src has a batch axis, the layer has rotary positions, or sizes, masks or the number of tokens do not match.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> for stage in nn.TransformerEncoderLayer(8, 2, 16, rng=0).trace(np.eye(3, 8)).stages:
        ...     print(stage.title, stage.output.shape)
        Input (3, 8)
        Self-attention (3, 8)
        Add & Norm (3, 8)
        Feed-forward (3, 8)
        Add & Norm (3, 8)
        """
        masks = Masking(src_mask, src_key_padding_mask, is_causal, window)
        return self._trace({"src": src}, (masks,), {"tokens": tokens})

    def _check_call(self, inputs: Sequence[FloatArray], masking: tuple[Masking, ...]) -> None:
        self._call(inputs[0], masking[0], None, False)

    def _call(
        self, src: npt.ArrayLike, masking: Masking, rng: RNG, need_weights: bool
    ) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        names = ("src_mask", "src_key_padding_mask", "is_causal")
        return self._compute((("src", src),), (masking,), (names,), rng, need_weights)


class TransformerDecoderLayer(TransformerLayer):
    """A layer of a decoder: `torch.nn.TransformerDecoderLayer` for NumPy.

    True = blocked in bare masks. Self-attention, attention to memory, then ``linear2(act(linear1(x)))``, each with a
    residual connection. The sum is normalised (Vaswani et al. 2017), or with norm_first the input of each part. The
    core computes a layer in one call, unless dropout is active or the activation is the caller's own function.

    Parameters
    ----------
    d_model : int
        Size of the last axis of inputs and output.
    nhead : int
        Heads of both attentions; divides d_model.
    dim_feedforward : int
        Size of the last axis within the feed-forward part. Default: 2048.
    dropout : float
        As in `TransformerEncoderLayer`. Default: 0.1.
    activation : str or callable
        As in `FeedForward`. Default: 'relu'.
    layer_norm_eps : float
        eps of the normalisations. Default: 1e-5.
    batch_first : bool
        Inputs and output of three axes are (batch, length, features), not (length, batch, features). Default: False.
    norm_first : bool
        Normalise the input of each part (pre-norm), not the sum after it. Default: False.
    bias : bool
        All parts have biases. Default: True.
    num_kv_heads : int, optional
        Heads of keys and values; divides nhead. Default: nhead.
    rotary : RotaryEmbedding, optional
        Rotates queries and keys of the self-attention by their positions. Default: None.
    scale : float, optional
        Factor on attention scores. Default: None, ``1 / sqrt(d_model / nhead)``.
    gated : bool
        The feed-forward part is ``linear2(act(gate(x)) * linear1(x))``: SwiGLU with activation 'silu'. Default: False.
    rms_norm : bool
        Normalise by `RMSNorm`, not `LayerNorm`. Default: False.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    self_attn, multihead_attn : MultiheadAttention
        Self-attention of tgt, and attention of tgt to memory.
    linear1, linear2 : Linear
        d_model to dim_feedforward, and back.
    gate : Linear or None
        The gate of the feed-forward part, if it has one.
    norm1, norm2, norm3 : LayerNorm or RMSNorm
        Norms of the two attentions and of the feed-forward part.

    Raises
    ------
    TypeError
        An argument other than activation has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A number is out of range, d_model is not a multiple of nhead, nhead is not a multiple of num_kv_heads,
        activation is neither callable nor a known name, or the dim of rotary is not ``d_model / nhead``.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, rng=0).eval()
    >>> tgt, memory = np.ones((2, 3, 8), np.float32), np.ones((2, 5, 8), np.float32)
    >>> layer(tgt, memory, tgt_is_causal=True).shape
    (2, 3, 8)
    """

    attentions = ("self_attn", "multihead_attn")
    multihead_attn: MultiheadAttention
    norm3: LayerNorm | RMSNorm

    @overload
    def forward(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        need_weights: Literal[False] = False,
        rng: RNG = None,
    ) -> FloatArray: ...
    @overload
    def forward(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        need_weights: Literal[True],
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray, FloatArray]: ...
    @overload
    def forward(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        need_weights: bool,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, FloatArray]: ...
    @recorded
    def forward(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        need_weights: bool = False,
        rng: RNG = None,
    ) -> FloatArray | tuple[FloatArray, FloatArray, FloatArray]:
        """Compute the layer.

        For differences from torch see `TransformerEncoderLayer.forward`.

        Parameters
        ----------
        tgt : array_like, (L, N, d_model) or unbatched (L, d_model)
            (N, L, d_model) with batch_first. Of the weights' dtype, as memory; float32 mixes with float16 or bfloat16.
        memory : array_like, (S, N, d_model) or (S, d_model)
            (N, S, d_model) with batch_first.
        tgt_mask : array_like, (L, L) or (N * nhead, L, L), optional
            bool: True = blocked; float: added to the scores. Default: None.
        memory_mask : array_like, (L, S) or (N * nhead, L, S), optional
            As tgt_mask. Default: None.
        tgt_key_padding_mask : array_like, (N, L) or (L,), optional
            As tgt_mask. Default: None.
        memory_key_padding_mask : array_like, (N, S) or (S,), optional
            As tgt_mask. Default: None.
        tgt_is_causal : bool
            Position i attends only to positions 0 to i of tgt, whatever tgt_mask says. Default: False.
        memory_is_causal : bool
            Position i attends only to positions 0 to i of memory. Default: False.
        need_weights : bool
            Return the weights too. Default: False.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy, so each call differs.

        Returns
        -------
        output : ndarray
            Of tgt's shape. Without need_weights it is the only result.
        self_weights : ndarray, (N, nhead, L, L) or (nhead, L, L)
            With need_weights: after dropout, as in torch.
        cross_weights : ndarray, (N, nhead, L, S) or (nhead, L, S)
            As self_weights, of the attention to memory.

        Raises
        ------
        TypeError
            tgt's or memory's dtype does not mix with the weights'; a mask is neither bool nor of floats.
        ValueError
            Shapes disagree; the message names the argument.
        """
        own = Masking(tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        cross = Masking(memory_mask, memory_key_padding_mask, memory_is_causal)
        weighted = as_flag(need_weights, "need_weights")
        output, self_weights, cross_weights = self._call(tgt, memory, own, cross, rng, weighted)
        if not weighted:
            return output
        assert self_weights is not None
        assert cross_weights is not None
        return output, self_weights, cross_weights

    def trace(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        tgt_mask: npt.ArrayLike | None = None,
        memory_mask: npt.ArrayLike | None = None,
        tgt_key_padding_mask: npt.ArrayLike | None = None,
        memory_key_padding_mask: npt.ArrayLike | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        tokens: Sequence[str] | None = None,
        memory_tokens: Sequence[str] | None = None,
    ) -> LayerTrace:
        """Trace the layer: attentions, Add & Norm and feed-forward, with their numbers.

        All arithmetic is in float64, without dropout.

        Parameters
        ----------
        tgt : array_like, (L, d_model)
            One batch entry, of any real dtype.
        memory : array_like, (S, d_model)
            Output of the encoder for the same batch entry.
        tgt_mask, memory_mask : array_like, optional
            As for `forward`: True = blocked. Default: None.
        tgt_key_padding_mask, memory_key_padding_mask : array_like, optional
            As for `forward`. Default: None.
        tgt_is_causal, memory_is_causal : bool
            As for `forward`. Default: False.
        tokens, memory_tokens : sequence of str, optional
            Names of the positions of tgt and of memory. Default: None, their indices.

        Returns
        -------
        pyattn.tracing.LayerTrace
            ``stages`` in the order of computation; ``outputs`` is what the layer returns.

        Raises
        ------
        TypeError
            An input does not hold real numbers, or a part of the layer is a custom module.
        ValueError
            An input has a batch axis, the layer has rotary positions, or sizes, masks or tokens do not match.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> layer = nn.TransformerDecoderLayer(8, 2, 16, rng=0)
        >>> traced = layer.trace(np.eye(3, 8), np.eye(5, 8), tgt_is_causal=True)
        >>> [stage.title for stage in traced.stages][1:4]
        ['Masked self-attention', 'Add & Norm', 'Cross-attention']
        """
        own = Masking(tgt_mask, tgt_key_padding_mask, tgt_is_causal)
        cross = Masking(memory_mask, memory_key_padding_mask, memory_is_causal)
        inputs = {"tgt": tgt, "memory": memory}
        return self._trace(inputs, (own, cross), {"tokens": tokens, "memory_tokens": memory_tokens})

    def _check_call(self, inputs: Sequence[FloatArray], masking: tuple[Masking, ...]) -> None:
        (tgt, memory), (own, cross) = inputs, masking
        self._call(tgt, memory, own, cross, None, False)

    def _call(
        self,
        tgt: npt.ArrayLike,
        memory: npt.ArrayLike,
        own: Masking,
        cross: Masking,
        rng: RNG,
        need_weights: bool,
    ) -> tuple[FloatArray, FloatArray | None, FloatArray | None]:
        masks = ("tgt_mask", "tgt_key_padding_mask", "tgt_is_causal")
        others = ("memory_mask", "memory_key_padding_mask", "memory_is_causal")
        return self._compute((("tgt", tgt), ("memory", memory)), (own, cross), (masks, others), rng, need_weights)


def _as_float64(array: FloatArray | None) -> npt.NDArray[np.float64] | None:
    """Copy a parameter as float64; None stays None."""
    return None if array is None else np.array(array, np.float64)


def check_parts(parts: Mapping[str, Module], names: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Check the parts of a module: names and types."""
    for name in (*names, *parts):
        if name not in parts or name not in (*names, *optional):
            raise ValueError(f"{name} is {'missing' if name in names else 'unexpected'}; expected {', '.join(names)}")
        check_module(parts[name], name)

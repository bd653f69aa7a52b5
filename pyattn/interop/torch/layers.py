"""The layers of transformers' models, each in one call of the core, or a few around a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

import pyattn._core as _core
from pyattn._util.halves import as_float32, round_to
from pyattn._util.typing import FloatArray
from pyattn.functional._layer import LayerOptions, LayerWeights, compute_layer
from pyattn.functional._multihead_masks import Masking
from pyattn.interop.torch.reading import (
    activation_of,
    as_array,
    check_author,
    linear_of,
    norm_of,
    normalized,
    part_of,
)
from pyattn.interop.torch.snapshot import UnfitError
from pyattn.interop.torch.tensors import original_class, view_as_tensor
from pyattn.io.names import ALBERT_LAYER, BERT_LAYER, DISTILBERT_LAYER, VIT_LAYER, LayerNames

__all__ = ["IMPLEMENTATIONS", "LAYERS", "check_function", "gated_feed_forward", "home"]

IMPLEMENTATIONS = ("eager", "sdpa", "pyattn")  # of attention in transformers, that compute the same
# Arguments of a layer that do not change what it computes.
_HARMLESS = {"position_ids", "cache_position", "use_cache", "return_dict", "output_hidden_states"}


def _encoder_layer(
    names: LayerNames, attention: str, heads: str, activation: str, norm_first: bool = False
) -> Callable[[Any], Callable[..., Any]]:
    """Make what computes an encoder's layer: names of its parts, its attention, and their attributes."""

    def make(module: Any) -> Callable[..., Any]:
        if any(getattr(part, "chunk_size_feed_forward", 0) for part in module.modules()):
            raise UnfitError("chunk_size_feed_forward is set")
        owner = part_of(module, attention)
        projections = [linear_of(module, name) for name in names[:4]]
        weights, biases = zip(*projections, strict=True)
        norm1, norm2 = norm_of(module, names.norm1), norm_of(module, names.norm2)
        if norm1[2:] != norm2[2:] or norm1.eps is None:
            raise UnfitError("its norms differ in kind or eps")
        feed = (*linear_of(module, names.linear1), *linear_of(module, names.linear2), None, None)
        all_weights = LayerWeights((*weights, *biases), None, feed, (*norm1[:2], None, None, *norm2[:2]))
        act = activation_of(_attribute(module, activation))
        count = getattr(owner, heads)
        options = LayerOptions(count, count, float(owner.scaling), act, norm_first, norm1.eps, norm1.rms)
        dtype = weights[0].dtype

        def compute(
            hidden_states: torch.Tensor,
            attention_mask: torch.Tensor | None = None,
            encoder_hidden_states: Any = None,
            encoder_attention_mask: Any = None,
            past_key_values: Any = None,
            is_causal: bool | None = None,
            **more: Any,
        ) -> torch.Tensor:
            if encoder_hidden_states is not None or past_key_values is not None:
                raise UnfitError("it is called as a decoder's layer")
            _check_more(more)
            mask, causal = _masking(owner, hidden_states, attention_mask, is_causal)
            x = as_array(hidden_states, "hidden_states", dtype)
            own = Masking(mask, is_causal=causal)
            result = compute_layer(as_float32(x), None, all_weights, options, own, Masking(), blocked=False)
            return view_as_tensor(round_to(result.output, dtype))

        return compute

    return make


def _attribute(module: Any, path: str) -> Any:
    *parts, name = path.split(".")
    return getattr(part_of(module, ".".join(parts)) if parts else module, name)


def _check_more(more: dict[str, Any]) -> None:
    """Refuse an argument whose meaning is not known."""
    for name, value in more.items():
        if value is not None and name not in _HARMLESS and (value is not False or name != "output_attentions"):
            raise UnfitError(f"it is called with {name}")


def _masking(attention: Any, x: torch.Tensor, mask: torch.Tensor | None, is_causal: bool | None) -> tuple[Any, bool]:
    """Read the mask of a call, and whether the attention is causal without one, as transformers' sdpa does."""
    implementation = attention.config._attn_implementation
    if implementation not in IMPLEMENTATIONS:
        raise UnfitError(f"attn_implementation is {implementation}")
    check_function(attention, implementation)
    if mask is not None:
        if implementation == "eager" and getattr(mask, "dtype", None) == torch.bool:
            raise UnfitError("attention_mask is of bool, which transformers' eager attention adds to the scores")
        return as_array(mask, "attention_mask"), False
    causal = attention.is_causal if is_causal is None else is_causal
    return None, bool(causal) and implementation != "eager" and x.shape[-2] > 1


def check_function(attention: Any, implementation: str) -> None:
    """Refuse a function for attention that someone else has put in its place."""
    used = vars(sys.modules[original_class(type(attention)).__module__])
    own = used["eager_attention_forward"]
    check_author(used["ALL_ATTENTION_FUNCTIONS"].get_interface(implementation, own), "its attention function")


def gated_feed_forward(module: Any) -> Callable[..., FloatArray]:
    """Make what computes Llama's feed-forward block, whose hidden rows are multiplied with a gate."""
    up, down, gate = (linear_of(module, f"{name}_proj") for name in ("up", "down", "gate"))
    options: Any = {"activation": activation_of(module.act_fn), "gate_weight": gate[0], "gate_bias": gate[1]}

    def feed_forward(x: FloatArray, residual: FloatArray | None = None) -> FloatArray:
        return _core.feed_forward(x, *up, *down, **options, residual=residual)

    return feed_forward


# Decoders' layers


class _Decoder:
    """A decoder's layer that keeps keys and values in a cache of transformers."""

    def __init__(self, module: Any, attention: str, norms: tuple[str, str], dtype: torch.dtype) -> None:
        self.attention = part_of(module, attention)
        self.norm1, self.norm2 = (norm_of(module, name) for name in norms)
        self.scale = float(self.attention.scaling)
        self.dtype = dtype

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        masking: tuple[Any, bool],
        cache: Any,
        rest: Callable[[FloatArray], torch.Tensor],
    ) -> torch.Tensor:
        """Attend from queries (B, H, L, D) to keys and values and those of the cache; `rest` takes (B, L, H * D)."""
        mask, is_causal = masking
        options: Any = {"attn_mask": mask, "is_causal": is_causal, "scale": self.scale, "enable_gqa": True}
        cache = getattr(cache, "self_attention_cache", cache)
        if cache is None:
            return rest(self._attend(q, k, v, options))
        if torch.is_grad_enabled() and _requires_grad(cache):
            raise UnfitError("gradients are enabled, and past_key_values requires one")
        k, v = cache.update(k.to(self.dtype), v.to(self.dtype), self.attention.layer_idx)
        try:
            return rest(self._attend(q, k, v, options))
        except (TypeError, UnfitError, ValueError) as error:  # torch would extend the cache once more
            text = str(error).replace("attn_mask", "attention_mask")
            raise RuntimeError(f"pyattn has extended past_key_values, and fails: {text}") from error

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Any) -> Any:
        if options["is_causal"]:  # an empty static cache is longer
            k, v = k[:, :, : q.shape[-2]], v[:, :, : q.shape[-2]]
        named = {"query": q, "key": k, "value": v}
        y = _core.attention(*(as_array(x, name).swapaxes(1, 2) for name, x in named.items()), **options, layout="bshd")
        return y.reshape(*y.shape[:2], -1)


def _requires_grad(cache: Any) -> bool:
    """Tell whether keys or values of a cache do, as in prefix tuning."""
    held = (getattr(layer, name, None) for layer in getattr(cache, "layers", ()) for name in ("keys", "values"))
    return any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in held)


def _gpt2_block(module: Any) -> Callable[..., Any]:
    if "crossattention" in module._modules:
        raise UnfitError("it attends to an encoder")
    decoder = _Decoder(module, "attn", ("ln_1", "ln_2"), part_of(module, "attn.c_attn").weight.dtype)
    attention = decoder.attention
    if attention.reorder_and_upcast_attn:
        raise UnfitError("reorder_and_upcast_attn is set")
    qkv, out = linear_of(module, "attn.c_attn"), linear_of(module, "attn.c_proj")
    feed = (*linear_of(module, "mlp.c_fc"), *linear_of(module, "mlp.c_proj"))
    activation = activation_of(module.mlp.act)
    dtype = qkv[0].dtype

    def compute(
        hidden_states: torch.Tensor,
        past_key_values: Any = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: Any = None,
        encoder_attention_mask: Any = None,
        use_cache: Any = False,
        is_causal: bool | None = None,
        **more: Any,
    ) -> torch.Tensor:
        if encoder_hidden_states is not None:
            raise UnfitError("it attends to an encoder")
        _check_more(more)
        masking = _masking(attention, hidden_states, attention_mask, is_causal)
        x = as_float32(as_array(hidden_states, "hidden_states", dtype))
        rows = view_as_tensor(_core.linear(normalized(x, decoder.norm1), *qkv))
        q, k, v = rows.view(*rows.shape[:-1], 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4).unbind()

        def rest(y: FloatArray) -> torch.Tensor:
            z = _core.linear(y, *out, residual=x)
            z = _core.feed_forward(normalized(z, decoder.norm2), *feed, activation=activation, residual=z)
            return view_as_tensor(round_to(z, dtype))

        return decoder.attend(q, k, v, masking, past_key_values, rest)

    return compute


def _llama_layer(module: Any) -> Callable[..., Any]:
    norms = "input_layernorm", "post_attention_layernorm"
    decoder = _Decoder(module, "self_attn", norms, part_of(module, "self_attn.q_proj").weight.dtype)
    attention = decoder.attention
    q_proj, k_proj, v_proj, out = (linear_of(module, f"self_attn.{name}_proj") for name in "qkvo")
    feed_forward = gated_feed_forward(part_of(module, "mlp"))
    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    dtype = q_proj[0].dtype

    def compute(
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        use_cache: Any = False,
        position_embeddings: Any = None,
        is_causal: bool | None = None,
        **more: Any,
    ) -> torch.Tensor:
        _check_more(more)
        masking = _masking(attention, hidden_states, attention_mask, is_causal)
        x = as_float32(as_array(hidden_states, "hidden_states", dtype))
        y = normalized(x, decoder.norm1)

        def project(weights: Any) -> torch.Tensor:
            rows = view_as_tensor(_core.linear(y, *weights))
            return rows.view(*rows.shape[:-1], -1, attention.head_dim).transpose(1, 2)

        q, k = rotate(project(q_proj), project(k_proj), *position_embeddings)

        def rest(y: FloatArray) -> torch.Tensor:
            z = _core.linear(y, *out, residual=x)
            z = feed_forward(normalized(z, decoder.norm2), residual=z)
            return view_as_tensor(round_to(z, dtype))

        return decoder.attend(q, k, project(v_proj), masking, past_key_values, rest)

    return compute


def home(family: str) -> str:
    """Return the module in which transformers defines a family's classes, with a dot."""
    return f"transformers.models.{family.lower()}.modeling_{family.lower()}."


_BERT = _encoder_layer(BERT_LAYER, "attention.self", "num_attention_heads", "intermediate.intermediate_act_fn")
LAYERS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    home("bert") + "BertLayer": _BERT,
    home("roberta") + "RobertaLayer": _BERT,
    home("distilbert") + "TransformerBlock": _encoder_layer(DISTILBERT_LAYER, "attention", "n_heads", "ffn.activation"),
    home("albert") + "AlbertLayer": _encoder_layer(ALBERT_LAYER, "attention", "num_attention_heads", "activation"),
    home("vit") + "ViTLayer": _encoder_layer(
        VIT_LAYER, "attention", "num_attention_heads", "mlp.activation_fn", norm_first=True
    ),
    home("gpt2") + "GPT2Block": _gpt2_block,
    home("llama") + "LlamaDecoderLayer": _llama_layer,
    home("mistral") + "MistralDecoderLayer": _llama_layer,
    home("qwen2") + "Qwen2DecoderLayer": _llama_layer,
}

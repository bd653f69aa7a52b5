"""Modules of torch and transformers with gradients: each leaf of a model, and attention whole.

What computes a module's calls takes the module, and reads its parameters in each call, as autograd needs the tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

import pyattn.interop.torch.differentiable as differentiable
import pyattn.interop.transformers as transformers
from pyattn.interop.torch.layers import IMPLEMENTATIONS, check_function, home
from pyattn.interop.torch.multi_head import multi_head_attention_forward
from pyattn.interop.torch.reading import activation_of, norm_of
from pyattn.interop.torch.snapshot import UnfitError
from pyattn.interop.torch.tensors import original_class

__all__ = ["find_differentiable"]


def find_differentiable(module: torch.nn.Module) -> Callable[[Any], Callable[..., Any]] | None:
    """Return what makes the function that computes a module's calls with gradients; None: its parts have them."""
    kind = original_class(type(module))
    return _KINDS.get(f"{kind.__module__}.{kind.__qualname__}")


def _linear(module: Any) -> Callable[..., Any]:
    is_conv = original_class(type(module)) is not torch.nn.Linear  # whose weight is (in, out)

    def linear(module: Any, input: torch.Tensor) -> torch.Tensor:
        weight = module.weight.t() if is_conv else module.weight
        return differentiable.linear(input, weight, module.bias)

    return linear


def _norm(module: Any) -> Callable[..., Any]:
    *_, eps, rms = norm_of(module)
    shape = getattr(module, "normalized_shape", None) or module.weight.shape

    def normalize(module: Any, input: torch.Tensor) -> torch.Tensor:
        if not input.is_floating_point() or input.shape[-1:] != shape:
            raise UnfitError("input is not of floats, or not as wide as the norm")
        return differentiable.normalize(input, module.weight, getattr(module, "bias", None), eps, rms)

    return normalize


def _activation(module: Any) -> Callable[..., Any]:
    name = activation_of(module)
    return lambda module, input: differentiable.activate(input, name)


def _embedding(module: Any) -> Callable[..., Any]:
    if module.sparse or module.scale_grad_by_freq:
        raise UnfitError("its gradients are sparse, or scaled by frequency")
    return lambda module, input: differentiable.embed(input, module.weight, module.padding_idx)


def _multi_head(module: Any) -> Callable[..., Any]:
    names = ("in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    options = {"embed_dim_to_check": module.embed_dim, "num_heads": module.num_heads}
    options |= {"use_separate_proj_weight": not module._qkv_same_embed_dim}

    def attend(
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if need_weights:
            raise UnfitError("attention weights are returned, with gradients or dropout; pass need_weights=False")
        if is_causal and attn_mask is None:
            raise UnfitError("is_causal needs attn_mask in torch")
        swaps = module.batch_first and query.ndim == 3
        inputs = (query, key, value)
        if swaps:  # one tensor stays one
            swapped = {id(x): x.transpose(0, 1) for x in inputs}
            inputs = tuple(swapped[id(x)] for x in inputs)
        given: Any = {**options, **{name: getattr(module, name) for name in names}}
        output, _ = multi_head_attention_forward(
            *inputs,
            **given,
            add_zero_attn=module.add_zero_attn,
            dropout_p=module.dropout,
            out_proj_weight=module.out_proj.weight,
            out_proj_bias=module.out_proj.bias,
            training=module.training,
            key_padding_mask=key_padding_mask,
            need_weights=False,
            attn_mask=attn_mask,
            is_causal=is_causal,
        )
        return output.transpose(0, 1) if swaps else output, None

    return attend


class _Overlay:
    """An object with some attributes of its own; the others are those of the object beneath."""

    def __init__(self, beneath: Any, **own: Any) -> None:
        vars(self).update(own, _beneath=beneath)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


def _attention_of_transformers(module: Any) -> Callable[..., Any]:
    """Run the module's own forward, whose config names pyattn's attention."""
    forward = original_class(type(module)).forward
    signature = inspect.signature(forward)
    transformers.register()

    def attend(module: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(module, *args, **kwargs)
        implementation = module.config._attn_implementation
        if implementation not in IMPLEMENTATIONS:
            raise UnfitError(f"attn_implementation is {implementation}")
        check_function(module, implementation)
        if implementation == "eager":
            if getattr(module, "reorder_and_upcast_attn", False):
                raise UnfitError("reorder_and_upcast_attn is set")
            mask = given.arguments.get("attention_mask")
            if getattr(mask, "dtype", None) == torch.bool:
                raise UnfitError("attention_mask is of bool, which transformers' eager attention adds to the scores")
            kwargs["is_causal"] = False  # its masks hide what follows
        config = _Overlay(module.config, _attn_implementation="pyattn")
        try:
            return forward(_Overlay(module, config=config), *args, **kwargs)
        except (TypeError, ValueError) as error:  # torch would extend a cache once more
            raise RuntimeError(f"pyattn's attention of transformers fails: {error}") from error

    return attend


_ATTENTIONS = {
    "Bert": "BertSelfAttention",
    "Roberta": "RobertaSelfAttention",
    "DistilBert": "DistilBertSelfAttention",
    "Albert": "AlbertAttention",
    "ViT": "ViTAttention",
    **{name: f"{name}Attention" for name in ("GPT2", "Llama", "Mistral", "Qwen2")},
}
_KINDS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "torch.nn.modules.linear.Linear": _linear,
    "transformers.pytorch_utils.Conv1D": _linear,
    "torch.nn.modules.normalization.LayerNorm": _norm,
    "torch.nn.modules.normalization.RMSNorm": _norm,
    **{home(name) + f"{name}RMSNorm": _norm for name in ("Llama", "Mistral", "Qwen2")},
    "torch.nn.modules.activation.GELU": _activation,
    "torch.nn.modules.activation.SiLU": _activation,
    "transformers.activations.GELUActivation": _activation,
    "transformers.activations.NewGELUActivation": _activation,
    "torch.nn.modules.sparse.Embedding": _embedding,
    "torch.nn.modules.activation.MultiheadAttention": _multi_head,
    **{home(family) + name: _attention_of_transformers for family, name in _ATTENTIONS.items()},
}

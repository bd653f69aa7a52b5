"""Convert modules from and to PyTorch, which is imported on the first call."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

import pyattn.nn as nn
from pyattn.interop.torch.tensors import import_torch, original_class, to_array, to_tensor
from pyattn.nn.feed_forward import Activation, core_activation

if TYPE_CHECKING:
    import torch

__all__ = ["activation_from_torch", "activation_to_torch", "from_torch", "to_torch"]

_Twin = TypeVar("_Twin", "nn.Module", "torch.nn.Module")


@overload
def from_torch(module: torch.nn.Linear, share: bool = False) -> nn.Linear: ...
@overload
def from_torch(module: torch.nn.Embedding, share: bool = False) -> nn.Embedding: ...
@overload
def from_torch(module: torch.nn.Dropout, share: bool = False) -> nn.Dropout: ...
@overload
def from_torch(module: torch.nn.LayerNorm, share: bool = False) -> nn.LayerNorm: ...
@overload
def from_torch(module: torch.nn.RMSNorm, share: bool = False) -> nn.RMSNorm: ...
@overload
def from_torch(module: torch.nn.MultiheadAttention, share: bool = False) -> nn.MultiheadAttention: ...
@overload
def from_torch(module: torch.nn.TransformerEncoderLayer, share: bool = False) -> nn.TransformerEncoderLayer: ...
@overload
def from_torch(module: torch.nn.TransformerDecoderLayer, share: bool = False) -> nn.TransformerDecoderLayer: ...
@overload
def from_torch(module: torch.nn.TransformerEncoder, share: bool = False) -> nn.TransformerEncoder: ...
@overload
def from_torch(module: torch.nn.TransformerDecoder, share: bool = False) -> nn.TransformerDecoder: ...
@overload
def from_torch(module: torch.nn.Transformer, share: bool = False) -> nn.Transformer: ...
@overload
def from_torch(module: torch.nn.Module, share: bool = False) -> nn.Module: ...
def from_torch(module: torch.nn.Module, share: bool = False) -> nn.Module:
    """Convert a PyTorch module to the pyattn module that computes the same.

    Parameters
    ----------
    module : torch.nn.Module
        A `torch.nn.Linear`, `Embedding`, `Dropout`, `LayerNorm`, `RMSNorm`, `MultiheadAttention`, `Transformer`, or a
        layer or stack of a `Transformer`, on the CPU, in float16, bfloat16, float32 or float64. Activations may be
        torch's relu, gelu and silu, as functions or modules.
    share : bool
        Share torch's memory instead of copying it: changes of a parameter on either side, such as an optimiser's steps,
        show on the other. Default: False.

    Returns
    -------
    pyattn.nn.Module
        In the same mode, training or evaluation.

    Raises
    ------
    TypeError
        The module is of another type, has an activation that pyattn does not know, or has parameters on another device
        or of another dtype.
    ValueError
        share is True, but torch recomputes a parameter in each call (weight_norm, prune); or the module has an option
        that pyattn lacks, such as max_norm.
    ImportError
        PyTorch is not installed.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> theirs = torch.nn.Linear(3, 2)  # doctest: +SKIP
    >>> pyattn.interop.torch.from_torch(theirs)  # doctest: +SKIP
    Linear(in_features=3, out_features=2, bias=True)
    """
    torch = import_torch()
    for kind in _KINDS:
        theirs = getattr(torch.nn, kind.name)
        # A subclass may override __init__, but not the methods that compute.
        if isinstance(module, theirs) and all(
            getattr(original_class(type(module)), name, None) is getattr(theirs, name, None)
            for name in _COMPUTING_METHODS
        ):
            _update_hooked_weights(module)
            ours: nn.Module = _copy_modes(module, kind.from_torch(module, share))
            return ours
    if isinstance(module, type):
        raise TypeError(f"module is the class {module.__name__}, expected an instance: {module.__name__}(...)")
    raise TypeError(
        f"module is of type {type(module).__name__}; from_torch converts torch.nn's {_kind_names()}. For other "
        "modules, make a pyattn module, and load the state_dict()"
    )


@overload
def to_torch(module: nn.Linear, share: bool = False) -> torch.nn.Linear: ...
@overload
def to_torch(module: nn.Embedding, share: bool = False) -> torch.nn.Embedding: ...
@overload
def to_torch(module: nn.Dropout, share: bool = False) -> torch.nn.Dropout: ...
@overload
def to_torch(module: nn.LayerNorm, share: bool = False) -> torch.nn.LayerNorm: ...
@overload
def to_torch(module: nn.RMSNorm, share: bool = False) -> torch.nn.RMSNorm: ...
@overload
def to_torch(module: nn.MultiheadAttention, share: bool = False) -> torch.nn.MultiheadAttention: ...
@overload
def to_torch(module: nn.TransformerEncoderLayer, share: bool = False) -> torch.nn.TransformerEncoderLayer: ...
@overload
def to_torch(module: nn.TransformerDecoderLayer, share: bool = False) -> torch.nn.TransformerDecoderLayer: ...
@overload
def to_torch(module: nn.TransformerEncoder, share: bool = False) -> torch.nn.TransformerEncoder: ...
@overload
def to_torch(module: nn.TransformerDecoder, share: bool = False) -> torch.nn.TransformerDecoder: ...
@overload
def to_torch(module: nn.Transformer, share: bool = False) -> torch.nn.Transformer: ...
@overload
def to_torch(module: nn.Module, share: bool = False) -> torch.nn.Module: ...
def to_torch(module: nn.Module, share: bool = False) -> torch.nn.Module:
    """Convert a pyattn module to the PyTorch module that computes the same.

    Parameters
    ----------
    module : pyattn.nn.Module
        A `pyattn.nn.Linear`, `Embedding`, `Dropout`, `LayerNorm`, `RMSNorm`, `MultiheadAttention`, `Transformer`, or a
        layer or stack of a `Transformer`.
    share : bool
        Share the arrays' memory instead of copying it: changes of a parameter on either side, such as an optimiser's
        steps, show on the other. Weights of new pyattn modules are then not contiguous tensors, as they lie as
        (in, out): before ``view``, `parameters_to_vector` or safetensors call ``module.to_order("out_in")``. Default:
        False.

    Returns
    -------
    torch.nn.Module
        In the same mode, training or evaluation. Its parameters require gradients, as in any new torch module.

    Raises
    ------
    TypeError
        The module is of another type, or has an activation that torch lacks.
    ValueError
        share is True, but torch cannot view an array because it is read-only, byte-swapped or has negative strides. Or
        the module has a feature that torch's lacks: rotary positions, a scale, a gate, or sizes such as num_kv_heads.
    ImportError
        PyTorch is not installed.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.interop.torch.to_torch(pyattn.nn.Linear(3, 2))  # doctest: +SKIP
    Linear(in_features=3, out_features=2, bias=True)
    """
    import_torch()
    for kind in _KINDS:
        if isinstance(module, kind.ours) and type(module).forward is kind.ours.forward:
            return _copy_modes(module, kind.to_torch(module, share))
    raise TypeError(f"module is of type {type(module).__name__}; to_torch converts pyattn.nn's {_kind_names()}")


# The methods with which torch's modules compute; its Transformer layers have one for each part.
_COMPUTING_METHODS = ("forward", "_sa_block", "_mha_block", "_ff_block")


def _copy_modes(original: nn.Module | torch.nn.Module, twin: _Twin) -> _Twin:
    """Copy the mode, training or evaluation, of a module and its parts to its twin."""
    twin.train(original.training)
    parts = dict(twin.named_modules())
    for name, part in original.named_modules():
        if name in parts:
            parts[name].training = part.training
    return twin


# Linear, Embedding, Dropout


def _linear_from_torch(linear: torch.nn.Linear, share: bool) -> nn.Linear:
    """Convert weight and bias."""
    weight = to_array(linear.weight, "weight", share)
    return nn.Linear.from_arrays(weight, None if linear.bias is None else to_array(linear.bias, "bias", share))


def _linear_to_torch(linear: nn.Linear, share: bool) -> torch.nn.Linear:
    """Convert weight and bias."""
    import torch

    sizes = {"in_features": linear.in_features, "out_features": linear.out_features}
    theirs = torch.nn.Linear(**sizes, bias=linear.bias is not None, device="meta")  # no memory, no random numbers
    for name, array in linear.named_parameters():
        setattr(theirs, name, torch.nn.Parameter(to_tensor(array, name, share)))
    return theirs


def _embedding_from_torch(embedding: torch.nn.Embedding, share: bool) -> nn.Embedding:
    """Convert the weight and padding_idx."""
    if embedding.max_norm is not None:
        raise ValueError(f"module has max_norm={embedding.max_norm}, which pyattn.nn.Embedding does not have")
    weight = to_array(embedding.weight, "weight", share)
    return nn.Embedding.from_pretrained(weight, padding_idx=embedding.padding_idx)


def _embedding_to_torch(embedding: nn.Embedding, share: bool) -> torch.nn.Embedding:
    """Convert the weight and padding_idx."""
    import torch

    sizes = (embedding.num_embeddings, embedding.embedding_dim)
    theirs = torch.nn.Embedding(*sizes, embedding.padding_idx, device="meta")  # no memory, no random numbers
    theirs.weight = torch.nn.Parameter(to_tensor(embedding.weight, "weight", share))
    return theirs


def _dropout_from_torch(dropout: torch.nn.Dropout, share: bool) -> nn.Dropout:
    """Convert the probability."""
    return nn.Dropout(dropout.p)


def _dropout_to_torch(dropout: nn.Dropout, share: bool) -> torch.nn.Dropout:
    """Convert the probability."""
    import torch

    return torch.nn.Dropout(dropout.p)


# MultiheadAttention

_IN_PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_ATTENTION = ("in_proj_weight", *_IN_PROJECTIONS, "in_proj_bias", "bias_k", "bias_v")


def _attention_from_torch(attention: torch.nn.MultiheadAttention, share: bool) -> nn.MultiheadAttention:
    """Convert all parameters, packed or not, and options."""
    given = {name: getattr(attention, name) for name in _ATTENTION}
    given |= {"out_proj.weight": attention.out_proj.weight, "out_proj.bias": attention.out_proj.bias}
    arrays = {name: to_array(tensor, name, share) for name, tensor in given.items() if tensor is not None}
    options = {name: getattr(attention, name) for name in ("dropout", "add_zero_attn", "batch_first")}
    return nn.MultiheadAttention.from_arrays(arrays, attention.num_heads, **options)


def _attention_to_torch(attention: nn.MultiheadAttention, share: bool) -> torch.nn.MultiheadAttention:
    """Convert all parameters and options; torch packs the projections if query, key and value have one size."""
    import torch

    dim = attention.embed_dim
    if attention.rotary is not None:
        raise ValueError("module has rotary positions, which torch.nn.MultiheadAttention does not have")
    if attention.scale not in (None, 1 / math.sqrt(attention.head_dim)):
        raise ValueError(
            f"module has scale={attention.scale:g}, and torch.nn.MultiheadAttention always divides by sqrt(head_dim): "
            "multiply the rows of q_proj_weight, and its bias, by scale * sqrt(head_dim), and set scale=None"
        )
    usual = {"num_kv_heads": attention.num_heads, "head_dim": dim / attention.num_heads, "out_dim": dim}
    for name, size in {**usual, "v_head_dim": attention.head_dim}.items():
        if getattr(attention, name) != size:
            raise ValueError(
                f"module has {name}={getattr(attention, name)}, which torch.nn.MultiheadAttention cannot have: it is "
                f"always {size:g} there"
            )
    names = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
    options = {name: getattr(attention, name) for name in names}
    given = {"bias": attention.in_proj_bias is not None, "add_bias_kv": attention.bias_k is not None}
    theirs = torch.nn.MultiheadAttention(**options, **given, device="meta")  # no memory, no random numbers
    arrays = attention.state_dict()
    if theirs.in_proj_weight is not None and attention.in_proj_weight is None:
        if share:
            raise ValueError(
                "module has separate weights for query, key and value, which torch packs into one array: pass "
                "share=False to copy them"
            )
        arrays["in_proj_weight"] = np.concatenate([arrays.pop(name) for name in _IN_PROJECTIONS])
    for name, array in arrays.items():
        owner = theirs.out_proj if name.startswith("out_proj.") else theirs
        setattr(owner, name.removeprefix("out_proj."), torch.nn.Parameter(to_tensor(array, name, share)))
    return theirs


# LayerNorm, RMSNorm


def _norm_from_torch(norm: torch.nn.LayerNorm | torch.nn.RMSNorm, share: bool) -> nn.LayerNorm | nn.RMSNorm:
    """Convert the parameters that are not None, and eps."""
    import torch

    kind = nn.RMSNorm if isinstance(norm, torch.nn.RMSNorm) else nn.LayerNorm
    ours = kind(tuple(norm.normalized_shape), eps=norm.eps, elementwise_affine=norm.elementwise_affine)
    for name in ours._parameter_names:
        tensor = getattr(norm, name)
        ours.register_parameter(name, None if tensor is None else to_array(tensor, name, share))
    return ours


def _norm_to_torch(norm: nn.LayerNorm | nn.RMSNorm, share: bool) -> torch.nn.LayerNorm | torch.nn.RMSNorm:
    """Convert the parameters that are not None, and eps."""
    import torch

    bias = {"bias": norm.bias is not None} if isinstance(norm, nn.LayerNorm) else {}
    kind = torch.nn.LayerNorm if bias else torch.nn.RMSNorm
    options = {"eps": norm.eps, "elementwise_affine": norm.elementwise_affine, **bias}
    theirs = kind(norm.normalized_shape, **options, device="meta")
    for name, array in norm.named_parameters():
        setattr(theirs, name, torch.nn.Parameter(to_tensor(array, name, share)))
    return theirs


# Transformer: activations, layers, stacks, the whole


def activation_from_torch(activation: Any) -> str:
    """Return pyattn's name of an activation of torch."""
    import torch

    functions = torch.nn.functional
    known = {"relu": (functions.relu, torch.relu), "gelu": (functions.gelu,), "silu": (functions.silu,)}
    for name, same in known.items():  # compared by identity, as callables may be unhashable
        if any(activation is one for one in same):
            return name
    kind = original_class(type(activation))
    if kind in (torch.nn.ReLU, torch.nn.SiLU):
        return str(kind.__name__).lower()
    if kind is torch.nn.GELU:
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    if isinstance(activation, functools.partial) and activation.func is functions.gelu and not activation.args:
        return "gelu_tanh" if activation.keywords.get("approximate") == "tanh" else "gelu"
    raise TypeError(
        f"module has the activation {activation!r}; from_torch converts relu, gelu and silu of torch.nn.functional and "
        "ReLU, GELU and SiLU of torch.nn. For another one, make the module with a function of NumPy arrays as its "
        "activation, and load the state_dict()"
    )


def activation_to_torch(activation: Activation) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function of torch that computes an activation."""
    import torch

    name, functions = core_activation(activation), torch.nn.functional
    if name == "gelu_tanh":
        return functools.partial(functions.gelu, approximate="tanh")
    known: dict[str | None, Any] = {"relu": functions.relu, "gelu": functions.gelu, "silu": functions.silu}
    if name not in known:
        raise TypeError(f"module has the activation {activation!r}, which torch does not have")
    function: Callable[[torch.Tensor], torch.Tensor] = known[name]
    return function


def _layer_from_torch(
    layer: torch.nn.TransformerEncoderLayer | torch.nn.TransformerDecoderLayer, share: bool
) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
    """Convert the parts and options of a layer."""
    is_decoder = hasattr(layer, "multihead_attn")
    kind = nn.TransformerDecoderLayer if is_decoder else nn.TransformerEncoderLayer
    norms = [f"norm{n}" for n in range(1, len(kind.attentions) + 2)]
    parts = {name: from_torch(getattr(layer, name), share) for name in (*kind.attentions, "linear1", "linear2", *norms)}
    dropouts = {getattr(layer, name).p for name in ("dropout", *(f"dropout{n}" for n in range(1, len(norms) + 1)))}
    if len(dropouts) > 1:
        raise ValueError(
            f"module has dropouts of {sorted(dropouts)}, but a layer of pyattn has one probability for all of them"
        )
    options = {"activation": activation_from_torch(layer.activation), "norm_first": layer.norm_first}
    return kind.from_parts(parts, dropout=dropouts.pop(), **options)


def _layer_to_torch(
    layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, share: bool
) -> torch.nn.TransformerEncoderLayer | torch.nn.TransformerDecoderLayer:
    """Convert the parts and options of a layer."""
    import torch

    first = layer.self_attn
    sizes = {"d_model": first.embed_dim, "nhead": first.num_heads, "dim_feedforward": layer.linear1.out_features}
    options = {"dropout": layer.dropout, "batch_first": first.batch_first, "norm_first": layer.norm_first}
    name = "TransformerDecoderLayer" if isinstance(layer, nn.TransformerDecoderLayer) else "TransformerEncoderLayer"
    if layer.gate is not None:
        raise ValueError(f"module has a gate, which torch.nn.{name} does not have; convert its parts one by one")
    activation = activation_to_torch(layer.activation)
    theirs = getattr(torch.nn, name)(**sizes, **options, activation=activation, device="meta")
    for part, module in layer.named_children():
        setattr(theirs, part, to_torch(module, share))
    if name == "TransformerEncoderLayer":
        _check_fast_path(theirs)
    return theirs


def _stack_from_torch(
    stack: torch.nn.TransformerEncoder | torch.nn.TransformerDecoder, share: bool
) -> nn.TransformerEncoder | nn.TransformerDecoder:
    """Convert the layers and the final norm."""
    layers = [from_torch(layer, share) for layer in stack.layers]
    norm = None if stack.norm is None else from_torch(stack.norm, share)
    if not hasattr(stack, "use_nested_tensor"):
        return nn.TransformerDecoder.from_layers(layers, norm)
    options = {name: getattr(stack, name) for name in ("enable_nested_tensor",)}
    encoder = nn.TransformerEncoder.from_layers(layers, norm, **options)
    encoder.use_nested_tensor = stack.use_nested_tensor
    return encoder


def _stack_to_torch(
    stack: nn.TransformerEncoder | nn.TransformerDecoder, share: bool
) -> torch.nn.TransformerEncoder | torch.nn.TransformerDecoder:
    """Convert the layers and the final norm."""
    import torch

    layers = [to_torch(layer, share) for layer in stack.layers]
    norm = None if stack.norm is None else to_torch(stack.norm, share)
    if isinstance(stack, nn.TransformerDecoder):
        theirs = torch.nn.TransformerDecoder(layers[0], 0, norm)
    else:
        theirs = torch.nn.TransformerEncoder(layers[0], 0, norm, False)
        theirs.enable_nested_tensor, theirs.use_nested_tensor = stack.enable_nested_tensor, stack.use_nested_tensor
    theirs.layers, theirs.num_layers = torch.nn.ModuleList(layers), len(layers)
    return theirs


def _transformer_from_torch(transformer: torch.nn.Transformer, share: bool) -> nn.Transformer:
    """Convert both stacks."""
    stacks = [from_torch(getattr(transformer, name), share) for name in ("encoder", "decoder")]
    options = {name: getattr(transformer, name) for name in ("d_model", "nhead", "batch_first")}
    return nn.Transformer.from_stacks(*stacks, **options)


def _transformer_to_torch(transformer: nn.Transformer, share: bool) -> torch.nn.Transformer:
    """Convert both stacks; they are set last, because torch's constructor would reinitialize their parameters."""
    import torch

    encoder, decoder = to_torch(transformer.encoder, share), to_torch(transformer.decoder, share)
    theirs = torch.nn.Transformer(
        transformer.d_model,
        transformer.nhead,
        device="meta",
        custom_encoder=torch.nn.Identity(),
        custom_decoder=torch.nn.Identity(),
        batch_first=transformer.batch_first,
    )
    theirs.encoder, theirs.decoder = encoder, decoder
    return theirs


class _Kind(NamedTuple):
    """A module class that both libraries have under the same name, with its conversion functions."""

    name: str
    ours: type[nn.Module]
    from_torch: Callable[[Any, bool], nn.Module]
    to_torch: Callable[[Any, bool], torch.nn.Module]


_KINDS = (
    _Kind("Linear", nn.Linear, _linear_from_torch, _linear_to_torch),
    _Kind("Embedding", nn.Embedding, _embedding_from_torch, _embedding_to_torch),
    _Kind("Dropout", nn.Dropout, _dropout_from_torch, _dropout_to_torch),
    _Kind("MultiheadAttention", nn.MultiheadAttention, _attention_from_torch, _attention_to_torch),
    _Kind("LayerNorm", nn.LayerNorm, _norm_from_torch, _norm_to_torch),
    _Kind("RMSNorm", nn.RMSNorm, _norm_from_torch, _norm_to_torch),
    _Kind("TransformerEncoderLayer", nn.TransformerEncoderLayer, _layer_from_torch, _layer_to_torch),
    _Kind("TransformerDecoderLayer", nn.TransformerDecoderLayer, _layer_from_torch, _layer_to_torch),
    _Kind("TransformerEncoder", nn.TransformerEncoder, _stack_from_torch, _stack_to_torch),
    _Kind("TransformerDecoder", nn.TransformerDecoder, _stack_from_torch, _stack_to_torch),
    _Kind("Transformer", nn.Transformer, _transformer_from_torch, _transformer_to_torch),
)


def _kind_names() -> str:
    """List the class names for a message."""
    return ", ".join(kind.name for kind in _KINDS)


# Checks


def _update_hooked_weights(module: torch.nn.Module) -> None:
    """Update weights of weight_norm, spectral_norm and prune, which hooks compute only before a call."""
    from torch.nn.utils.prune import BasePruningMethod
    from torch.nn.utils.spectral_norm import SpectralNorm
    from torch.nn.utils.weight_norm import WeightNorm

    for part in module.modules():
        for hook in part._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):  # calling the hook in training mode would change its vectors
                setattr(part, hook.name, hook.compute_weight(part, do_power_iteration=False))
            elif isinstance(hook, (BasePruningMethod, WeightNorm)):
                hook(part, None)


def _check_fast_path(layer: torch.nn.TransformerEncoderLayer) -> None:
    """Raise ValueError for a layer on which torch's fast path, its fused call in eval mode, fails or is wrong."""
    import torch

    attention, norms = layer.self_attn, (layer.norm1, layer.norm2)
    is_taken = (
        torch.backends.mha.get_fastpath_enabled()
        and attention.batch_first
        and attention.in_proj_bias is not None
        and attention.num_heads % 2 == 0
        and layer.activation_relu_or_gelu
        and len({getattr(norm, "eps", None) for norm in norms}) == 1
    )
    if not is_taken:
        return
    biased = (*norms, layer.linear1, layer.linear2, attention.out_proj)
    unsupported = {
        "add_bias_kv or add_zero_attn": attention.bias_k is not None or attention.add_zero_attn,
        "norms other than LayerNorm": any(type(norm) is not torch.nn.LayerNorm for norm in norms),
        "norms of several axes": any(len(getattr(norm, "normalized_shape", "1")) != 1 for norm in norms),
        "parts without a bias beside a self_attn with one": any(getattr(part, "bias", None) is None for part in biased),
    }
    for description, is_found in unsupported.items():
        if is_found:
            raise ValueError(
                f"module has {description}, which the fast path of torch.nn.TransformerEncoderLayer does not support; "
                "turn it off first: torch.backends.mha.set_fastpath_enabled(False)"
            )

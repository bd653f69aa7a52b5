"""Modules to and from PyTorch, which is imported by the first call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.nn as nn
from pyattn.interop._fast_path import check_fast_path
from pyattn.interop._hooks import run_hooks
from pyattn.nn.feed_forward import core_activation

__all__ = ["from_torch", "to_torch"]


def from_torch(module: Any, share: bool = False) -> nn.Module:
    """Make the module that computes what one of torch's does.

    Parameters
    ----------
    module : torch.nn.Module
        A `torch.nn.Linear`, `Embedding`, `Dropout`, `LayerNorm`, `RMSNorm`, `MultiheadAttention`, `Transformer`, or a
        part of that, on the CPU, in float32 or float64. An activation is one of torch's relu, gelu and silu, as a
        function or a module.
    share : bool
        Without a copy: the parameters are views of torch's memory, and what is written on either side, by an optimiser
        perhaps, counts on both. Default: False.

    Returns
    -------
    pyattn.nn.Module
        In the same mode, training or not.

    Raises
    ------
    TypeError
        There is no such module here, its parameters have no twin in NumPy, or its activation is a function of the
        caller's.
    ValueError
        share, and torch computes a parameter anew in every call, as for weight_norm and prune. Or the module has an
        option that changes what it computes and is not here: an embedding's max_norm.
    ImportError
        There is no torch.

    Examples
    --------
    >>> import pyattn, torch  # doctest: +SKIP
    >>> theirs = torch.nn.Linear(3, 2)  # doctest: +SKIP
    >>> pyattn.interop.torch.from_torch(theirs)  # doctest: +SKIP
    Linear(in_features=3, out_features=2, bias=True)
    """
    import torch

    for kind in _KINDS:
        theirs = getattr(torch.nn, kind.name)
        # A subclass may bring its own __init__, but not another forward.
        if isinstance(module, theirs) and all(getattr(type(module), x, 0) is getattr(theirs, x, 0) for x in _COMPUTING):
            run_hooks(module)
            ours: nn.Module = _in_modes_of(module, kind.from_torch(module, share))
            return ours
    raise TypeError(
        f"module is of type {type(module).__name__}, and from_torch knows torch.nn's {_names()}; "
        "load_state_dict takes the state_dict() of any module"
    )


def to_torch(module: nn.Module, share: bool = False) -> Any:
    """Make torch's module that computes what one of pyattn's does.

    Parameters
    ----------
    module : pyattn.nn.Module
        A `pyattn.nn.Linear`, `Embedding`, `Dropout`, `LayerNorm`, `RMSNorm`, `MultiheadAttention`,
        `Transformer`, or a part of that.
    share : bool
        Without a copy: the parameters are tensors on the arrays' memory, and what is written on either side counts on
        both. Default: False.

    Returns
    -------
    torch.nn.Module
        In the same mode, training or not; its parameters require gradients, as those of any new module.

    Raises
    ------
    TypeError
        torch has no such module.
    ValueError
        share, and torch cannot view an array: it is read-only, byte-swapped or has negative strides. Or the module has
        sizes that torch's has no argument for, such as num_kv_heads, or parts that torch's layer does not compute, such
        as a gate.
    ImportError
        There is no torch.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.interop.torch.to_torch(pyattn.nn.Linear(3, 2))  # doctest: +SKIP
    Linear(in_features=3, out_features=2, bias=True)
    """
    for kind in _KINDS:
        if isinstance(module, kind.ours) and type(module).forward is kind.ours.forward:
            return _in_modes_of(module, kind.to_torch(module, share))
    raise TypeError(f"module is of type {type(module).__name__}, and to_torch knows pyattn.nn's {_names()}")


# What computes in torch's modules: layers have parts of it in methods of their own.
_COMPUTING = ("forward", "_sa_block", "_mha_block", "_ff_block")


def _in_modes_of(original: Any, twin: Any) -> Any:
    """Set each part to training or not, as the part of that name is."""
    twin.train(original.training)
    parts = dict(twin.named_modules())
    for name, part in original.named_modules():
        if name in parts:
            parts[name].training = part.training
    return twin


def _linear_from_torch(linear: Any, share: bool) -> nn.Module:
    weight = _array(linear.weight, "weight", share)
    return nn.Linear.from_arrays(weight, None if linear.bias is None else _array(linear.bias, "bias", share))


def _linear_to_torch(linear: Any, share: bool) -> Any:
    import torch

    sizes = {"in_features": linear.in_features, "out_features": linear.out_features}
    theirs = torch.nn.Linear(**sizes, bias=linear.bias is not None, device="meta")  # without memory or numbers
    for name, array in linear.named_parameters():
        setattr(theirs, name, torch.nn.Parameter(_tensor(array, name, share)))
    return theirs


def _embedding_from_torch(embedding: Any, share: bool) -> nn.Module:
    if embedding.max_norm is not None:
        raise ValueError(
            f"module has max_norm={embedding.max_norm}, expected None: pyattn.nn.Embedding has no max_norm"
        )
    weight = _array(embedding.weight, "weight", share)
    return nn.Embedding.from_pretrained(weight, padding_idx=embedding.padding_idx)


def _embedding_to_torch(embedding: Any, share: bool) -> Any:
    import torch

    sizes = (embedding.num_embeddings, embedding.embedding_dim)
    theirs = torch.nn.Embedding(*sizes, embedding.padding_idx, device="meta")  # without memory or numbers
    theirs.weight = torch.nn.Parameter(_tensor(embedding.weight, "weight", share))
    return theirs


def _dropout_from_torch(dropout: Any, share: bool) -> nn.Module:
    return nn.Dropout(dropout.p)


def _dropout_to_torch(dropout: Any, share: bool) -> Any:
    import torch

    return torch.nn.Dropout(dropout.p)


_IN_PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_ATTENTION = ("in_proj_weight", *_IN_PROJECTIONS, "in_proj_bias", "bias_k", "bias_v")


def _attention_from_torch(attention: Any, share: bool) -> nn.Module:
    given = {name: getattr(attention, name) for name in _ATTENTION}
    given |= {"out_proj.weight": attention.out_proj.weight, "out_proj.bias": attention.out_proj.bias}
    arrays = {name: _array(tensor, name, share) for name, tensor in given.items() if tensor is not None}
    options = {name: getattr(attention, name) for name in ("dropout", "add_zero_attn", "batch_first")}
    return nn.MultiheadAttention.from_arrays(arrays, attention.num_heads, **options)


def _attention_to_torch(attention: Any, share: bool) -> Any:
    import torch

    dim = attention.embed_dim
    if attention.rotary is not None:
        raise ValueError("module has rotary, and torch.nn.MultiheadAttention knows nothing of positions")
    usual = {"num_kv_heads": attention.num_heads, "head_dim": dim / attention.num_heads, "out_dim": dim}
    for name, size in {**usual, "v_head_dim": attention.head_dim}.items():
        if getattr(attention, name) != size:
            raise ValueError(
                f"module has {name}={getattr(attention, name)}, and torch.nn.MultiheadAttention always {size:g}"
            )
    names = ("embed_dim", "num_heads", "dropout", "add_zero_attn", "kdim", "vdim", "batch_first")
    options = {name: getattr(attention, name) for name in names}
    given = {"bias": attention.in_proj_bias is not None, "add_bias_kv": attention.bias_k is not None}
    theirs = torch.nn.MultiheadAttention(**options, **given, device="meta")  # without memory or numbers
    arrays = attention.state_dict()
    if theirs.in_proj_weight is not None and attention.in_proj_weight is None:
        if share:
            raise ValueError(
                "module has weights of their own for query, key and value: torch needs a copy, share=False"
            )
        arrays["in_proj_weight"] = np.concatenate([arrays.pop(name) for name in _IN_PROJECTIONS])
    for name, array in arrays.items():
        owner = theirs.out_proj if name.startswith("out_proj.") else theirs
        setattr(owner, name.removeprefix("out_proj."), torch.nn.Parameter(_tensor(array, name, share)))
    return theirs


def _norm_from_torch(norm: Any, share: bool) -> nn.Module:
    options = {"eps": norm.eps, "elementwise_affine": norm.elementwise_affine}
    import torch

    kind: Any = nn.RMSNorm if isinstance(norm, torch.nn.RMSNorm) else nn.LayerNorm
    ours: nn.Module = kind(tuple(norm.normalized_shape), **options)
    for name in ours._parameter_names:
        tensor = getattr(norm, name)
        ours.register_parameter(name, None if tensor is None else _array(tensor, name, share))
    return ours


def _norm_to_torch(norm: Any, share: bool) -> Any:
    import torch

    with_bias = {"bias": norm.bias is not None} if isinstance(norm, nn.LayerNorm) else {}
    kind = torch.nn.LayerNorm if with_bias else torch.nn.RMSNorm
    options = {"eps": norm.eps, "elementwise_affine": norm.elementwise_affine, **with_bias}
    theirs = kind(norm.normalized_shape, **options, device="meta")
    for name, array in norm.named_parameters():
        setattr(theirs, name, torch.nn.Parameter(_tensor(array, name, share)))
    return theirs


def _activation_from_torch(activation: Any) -> Any:
    import torch

    functions = torch.nn.functional
    known = {"relu": (functions.relu, torch.relu), "gelu": (functions.gelu,), "silu": (functions.silu,)}
    for name, same in known.items():  # by identity: a callable need not be hashable
        if any(activation is one for one in same):
            return name
    if type(activation) in (torch.nn.ReLU, torch.nn.SiLU):
        return type(activation).__name__.lower()
    if type(activation) is torch.nn.GELU:
        return "gelu" if activation.approximate == "none" else "gelu_tanh"
    if isinstance(activation, functools.partial) and activation.func is functions.gelu and not activation.args:
        return "gelu_tanh" if activation.keywords.get("approximate") == "tanh" else "gelu"
    raise TypeError(
        f"module has the activation {activation!r}, and from_torch knows torch.nn.functional's relu, gelu and silu and "
        "torch.nn's ReLU, GELU and SiLU; make the module with a function of NumPy arrays and load its state_dict()"
    )


def _activation_to_torch(activation: Any) -> Any:
    import torch

    name, functions = core_activation(activation), torch.nn.functional
    known: dict[Any, Any] = {"relu": functions.relu, "gelu": functions.gelu, "silu": functions.silu}
    if name == "gelu_tanh":
        return functools.partial(functions.gelu, approximate="tanh")
    if name not in known:
        raise TypeError(f"module has the activation {activation!r}, and torch has no function for it")
    return known[name]


def _layer_from_torch(layer: Any, share: bool) -> nn.Module:
    decoder = hasattr(layer, "multihead_attn")
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    norms = [f"norm{n}" for n in range(1, len(kind.attentions) + 2)]
    parts = {name: from_torch(getattr(layer, name), share) for name in (*kind.attentions, "linear1", "linear2", *norms)}
    dropouts = {getattr(layer, name).p for name in ("dropout", *(f"dropout{n}" for n in range(1, len(norms) + 1)))}
    if len(dropouts) > 1:
        raise ValueError(f"module has dropouts of {sorted(dropouts)}, expected one probability for all")
    options = {"activation": _activation_from_torch(layer.activation), "norm_first": layer.norm_first}
    return kind.from_parts(parts, dropout=dropouts.pop(), **options)


def _layer_to_torch(layer: Any, share: bool) -> Any:
    import torch

    first = layer.self_attn
    sizes = {"d_model": first.embed_dim, "nhead": first.num_heads, "dim_feedforward": layer.linear1.out_features}
    options = {"dropout": layer.dropout, "batch_first": first.batch_first, "norm_first": layer.norm_first}
    name = "TransformerDecoderLayer" if isinstance(layer, nn.TransformerDecoderLayer) else "TransformerEncoderLayer"
    if layer.gate is not None:
        raise ValueError(f"module has a gate, and the feed-forward part of torch.nn.{name} has none; convert the parts")
    activation = _activation_to_torch(layer.activation)
    theirs = getattr(torch.nn, name)(**sizes, **options, activation=activation, device="meta")
    for part, module in layer.named_children():
        setattr(theirs, part, to_torch(module, share))
    if name == "TransformerEncoderLayer":
        check_fast_path(theirs)
    return theirs


def _stack_from_torch(stack: Any, share: bool) -> nn.Module:
    layers, norm = [from_torch(layer, share) for layer in stack.layers], stack.norm
    norm = None if norm is None else from_torch(norm, share)
    if not hasattr(stack, "use_nested_tensor"):
        return nn.TransformerDecoder.from_layers(layers, norm)
    options = {name: getattr(stack, name) for name in ("enable_nested_tensor",)}
    encoder = nn.TransformerEncoder.from_layers(layers, norm, **options)
    encoder.use_nested_tensor = stack.use_nested_tensor
    return encoder


def _stack_to_torch(stack: Any, share: bool) -> Any:
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


def _transformer_from_torch(transformer: Any, share: bool) -> nn.Module:
    stacks = [from_torch(getattr(transformer, name), share) for name in ("encoder", "decoder")]
    options = {name: getattr(transformer, name) for name in ("d_model", "nhead", "batch_first")}
    return nn.Transformer.from_stacks(*stacks, **options)


def _transformer_to_torch(transformer: Any, share: bool) -> Any:
    import torch

    stacks = {f"custom_{name}": to_torch(getattr(transformer, name), share) for name in ("encoder", "decoder")}
    theirs = torch.nn.Transformer(
        transformer.d_model,
        transformer.nhead,
        device="meta",
        **{name: torch.nn.Identity() for name in stacks},
        batch_first=transformer.batch_first,
    )
    theirs.encoder, theirs.decoder = stacks.values()  # its constructor would draw their parameters anew
    return theirs


class _Kind(NamedTuple):
    """A module that both sides have, by the same name, and the way there and back."""

    name: str
    ours: type[nn.Module]
    from_torch: Callable[[Any, bool], nn.Module]
    to_torch: Callable[[Any, bool], Any]


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


def _names() -> str:
    return ", ".join(kind.name for kind in _KINDS)


def _array(tensor: Any, name: str, share: bool) -> npt.NDArray[Any]:
    """Copy the tensor's numbers, or view its memory."""
    import torch

    if share and not isinstance(tensor, torch.nn.Parameter):
        raise ValueError(
            f"{name} is no torch.nn.Parameter: parametrizations and hooks, such as weight_norm and prune, compute it "
            "anew for every call; pass share=False"
        )
    if tensor.device.type != "cpu":
        raise TypeError(f"{name} is on device '{tensor.device}'; pass module.cpu()")
    if str(tensor.dtype) not in ("torch.float32", "torch.float64"):
        raise TypeError(f"{name} has dtype {tensor.dtype}, expected float32 or float64; pass module.float()")
    array: npt.NDArray[Any] = tensor.detach().numpy()
    return array if share else array.copy()


def _tensor(array: npt.NDArray[Any], name: str, share: bool) -> Any:
    import torch

    if not share:
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    if not (array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0):
        raise ValueError(f"{name} is read-only, byte-swapped or has negative strides: torch needs a copy, share=False")
    return torch.from_numpy(array)

"""Modules to and from PyTorch, which is imported by the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyattn import nn

__all__ = ["from_torch", "to_torch"]


def from_torch(module: Any, share: bool = False) -> nn.Module:
    """Make the module that computes what one of torch's does.

    Parameters
    ----------
    module : torch.nn.Module
        A `torch.nn.Linear`, `Embedding`, `Dropout` or `MultiheadAttention` on the CPU, in float32 or float64.
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
        There is no such module here, or its parameters have no twin in NumPy.
    ValueError
        share, and the parameters are computed by torch in every call. Or the module has an option that changes what it
        computes and is not here: an embedding's max_norm.
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
        if isinstance(module, theirs) and type(module).forward is theirs.forward:
            if share and any(map(torch.nn.utils.parametrize.is_parametrized, module.modules())):
                raise ValueError("module has parametrizations, whose results torch computes anew: pass share=False")
            return kind.from_torch(module, share).train(module.training)
    raise TypeError(
        f"module is of type {type(module).__name__}, and from_torch knows torch.nn's {_names()}; "
        "load_state_dict takes the state_dict() of any module"
    )


def to_torch(module: nn.Module, share: bool = False) -> Any:
    """Make torch's module that computes what one of pyattn's does.

    Parameters
    ----------
    module : pyattn.nn.Module
        A `pyattn.nn.Linear`, `Embedding`, `Dropout` or `MultiheadAttention`.
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
        sizes that torch's has no argument for, such as num_kv_heads.
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
            return kind.to_torch(module, share).train(module.training)
    raise TypeError(f"module is of type {type(module).__name__}, and to_torch knows pyattn.nn's {_names()}")


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
)


def _names() -> str:
    return ", ".join(kind.name for kind in _KINDS)


def _array(tensor: Any, name: str, share: bool) -> npt.NDArray[Any]:
    """Copy the tensor's numbers, or view its memory."""
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

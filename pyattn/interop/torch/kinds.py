"""The modules of torch and transformers that pyattn computes: found by their class, matched by their structure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.halves import as_float32, round_to
from pyattn.interop.torch.convert import from_torch
from pyattn.interop.torch.layers import LAYERS, gated_feed_forward, home
from pyattn.interop.torch.reading import (
    activation_of,
    array_of,
    as_array,
    check_parts,
    linear_of,
    norm_of,
    normalized,
)
from pyattn.interop.torch.snapshot import UnfitError
from pyattn.interop.torch.tensors import original_class, view_as_tensor
from pyattn.masks import from_blocked

__all__ = ["Compute", "find_kind", "make_compute"]

Compute: TypeAlias = Callable[..., Any]


def find_kind(module: torch.nn.Module) -> Callable[[Any], Compute] | None:
    """Return what makes the function that computes a module's calls; None for a class that pyattn does not know."""
    kind = original_class(type(module))
    if kind is torch.nn.Sequential:
        kinds = [original_class(type(part)) for part in _without_dropout(module)]
        is_known = len(kinds) == 3 and kinds[::2] == [torch.nn.Linear] * 2 and kinds[1] in _ACTIVATIONS
        return _sequential if is_known else None
    return _KINDS.get(f"{kind.__module__}.{kind.__qualname__}")


def make_compute(make: Callable[[Any], Compute], module: torch.nn.Module) -> Compute:
    """Read a module as it is now; raise `UnfitError` for one that is not as its class says."""
    check_parts(module)
    try:
        return make(module)
    except AttributeError as error:
        raise UnfitError(f"{error}") from error


# Parts of models


def _linear(module: Any) -> Compute:
    weight, bias = linear_of(module)

    def linear(input: torch.Tensor) -> torch.Tensor:
        return view_as_tensor(functional.linear(as_array(input, "input", weight.dtype), weight, bias))

    return linear


def _norm(module: Any) -> Compute:
    norm = norm_of(module)
    dtype = None if norm.weight is None else norm.weight.dtype

    def normalize(input: torch.Tensor) -> torch.Tensor:
        x = as_array(input, "input", dtype)
        if dtype is None and (not input.is_floating_point() or input.shape[-1:] != module.normalized_shape):
            raise UnfitError("input is not of floats, or not as wide as normalized_shape says")
        return view_as_tensor(normalized(x, norm))

    return normalize


def _activation(module: Any) -> Compute:
    name = activation_of(module)
    if getattr(module, "inplace", False):
        raise UnfitError("it writes to its input")

    def activate(input: torch.Tensor) -> torch.Tensor:
        x = as_array(input, "input")
        return view_as_tensor(round_to(_core.activate(as_float32(x), name), x.dtype))

    return activate


def _embedding(module: Any) -> Compute:
    if module.max_norm is not None:
        raise UnfitError("it has max_norm")
    weight = array_of(module.weight, "weight")
    assert weight is not None

    def embedding(input: torch.Tensor) -> torch.Tensor:
        return view_as_tensor(functional.embedding(as_array(input, "input"), weight))

    return embedding


def _without_dropout(module: torch.nn.Sequential) -> list[torch.nn.Module]:
    """Return what computes in eval mode."""
    return [part for part in module if original_class(type(part)) is not torch.nn.Dropout]


def _feed_forward(one: Any, activation: Any, two: Any) -> Compute:
    """Compute two linear layers around an activation."""
    weights, name = (*linear_of(one), *linear_of(two)), activation_of(activation)

    def feed_forward(input: torch.Tensor) -> torch.Tensor:
        x = as_array(input, "input", weights[0].dtype)
        return view_as_tensor(functional.feed_forward(x, *weights, activation=name))

    return feed_forward


def _sequential(module: Any) -> Compute:
    return _feed_forward(*_without_dropout(module))


def _gpt2_mlp(module: Any) -> Compute:
    return _feed_forward(module.c_fc, module.act, module.c_proj)


def _llama_mlp(module: Any) -> Compute:
    compute, dtype = gated_feed_forward(module), linear_of(module, "up_proj")[0].dtype

    def feed_forward(input: torch.Tensor) -> torch.Tensor:
        x = as_array(input, "input", dtype)
        return view_as_tensor(round_to(compute(as_float32(x)), dtype))

    return feed_forward


# torch's attention and Transformer


def _twin(module: Any, main: str) -> Compute:
    """Compute by the module of pyattn, which has torch's arguments; `main` names the rows."""
    try:
        twin = from_torch(module, share=True).eval()  # the module may be in training mode, and not when it is called
    except (ImportError, TypeError, ValueError) as error:
        raise UnfitError(str(error)) from error
    dtype = next(twin.parameters()).dtype
    num_heads = next(part.num_heads for part in module.modules() if hasattr(part, "num_heads"))

    def call(**given: Any) -> Any:
        rows = as_array(given.get(main), main, dtype)
        result = twin(**{name: read(value, name, rows.ndim == 3) for name, value in given.items()})
        return tuple(map(write, result)) if isinstance(result, tuple) else write(result)

    def read(value: Any, name: str, is_batch: bool) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if getattr(value, "dtype", None) == torch.bool:
            blocked = as_array(value, name)
            if is_batch and blocked.ndim == 3:  # torch has batch and heads in one axis
                blocked = blocked.reshape(-1, num_heads, *blocked.shape[1:])
            return from_blocked(blocked)
        return as_array(value, name, dtype)

    def write(array: Any) -> Any:
        return None if array is None else view_as_tensor(array).contiguous()  # with batch_first=False it is not

    return call


class _Hint(NamedTuple):
    """Names of is_causal, of the mask that it is a hint about in torch, and of the padding mask beside it."""

    causal: str
    mask: str
    padding: str


def _hinting(*hints: _Hint) -> Callable[[Any], Compute]:
    """As `_twin`, with torch's meaning of is_causal: it needs a mask, and replaces it where it stands alone."""

    def make(module: Any) -> Compute:
        names = tuple(inspect.signature(original_class(type(module)).forward).parameters)[1:]
        call = _twin(module, names[0])

        def hinted(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=False)) | kwargs
            if len(given) < len(args) + len(kwargs):
                raise UnfitError("it has too many arguments")
            for hint in hints:
                is_causal, mask = given.pop(hint.causal, None), given.get(hint.mask)
                if is_causal and mask is None:
                    raise UnfitError(f"{hint.causal} needs {hint.mask} in torch")
                weighs = given.get("need_weights", "need_weights" in names)
                alone = given.get(hint.padding) is None and not weighs
                if is_causal and alone:
                    given[hint.mask], given[hint.causal] = None, True
                elif _hides_what_follows(mask):
                    given[hint.causal] = True  # beside the mask, whose hidden half is not read then
            return call(**given)

        return hinted

    return make


def _hides_what_follows(mask: object) -> bool:
    """Tell a causal mask."""
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2 or mask.shape[0] != mask.shape[1] or not len(mask):
        return False
    blocked, allowed = (True, False) if mask.dtype == torch.bool else (-torch.inf, 0)
    if bool(mask[0, -1] != blocked) or bool(mask[-1, 0] != allowed):  # most others
        return False
    return bool(torch.equal(mask, torch.full_like(mask, blocked).triu(1)))


_ENCODER = _Hint("is_causal", "src_mask", "src_key_padding_mask")
_DECODER = (
    _Hint("tgt_is_causal", "tgt_mask", "tgt_key_padding_mask"),
    _Hint("memory_is_causal", "memory_mask", "memory_key_padding_mask"),
)
_ACTIVATIONS = torch.nn.GELU, torch.nn.ReLU, torch.nn.SiLU
_KINDS: dict[str, Callable[[Any], Compute]] = {
    "torch.nn.modules.linear.Linear": _linear,
    "transformers.pytorch_utils.Conv1D": _linear,
    "torch.nn.modules.normalization.LayerNorm": _norm,
    "torch.nn.modules.normalization.RMSNorm": _norm,
    **{home(name) + f"{name}RMSNorm": _norm for name in ("Llama", "Mistral", "Qwen2")},
    **{home(name) + f"{name}MLP": _llama_mlp for name in ("Llama", "Mistral", "Qwen2")},
    home("GPT2") + "GPT2MLP": _gpt2_mlp,
    "torch.nn.modules.activation.GELU": _activation,
    "torch.nn.modules.activation.SiLU": _activation,
    "transformers.activations.GELUActivation": _activation,
    "transformers.activations.NewGELUActivation": _activation,
    "torch.nn.modules.sparse.Embedding": _embedding,
    "torch.nn.modules.activation.MultiheadAttention": _hinting(_Hint("is_causal", "attn_mask", "key_padding_mask")),
    "torch.nn.modules.transformer.TransformerEncoderLayer": _hinting(_ENCODER),
    "torch.nn.modules.transformer.TransformerDecoderLayer": _hinting(*_DECODER),
    "torch.nn.modules.transformer.TransformerEncoder": _hinting(_ENCODER._replace(mask="mask")),
    "torch.nn.modules.transformer.TransformerDecoder": _hinting(*_DECODER),
    **LAYERS,
}

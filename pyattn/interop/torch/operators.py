"""Attention as an operation of torch.library, with gradients: torch.compile calls it in one piece."""

from __future__ import annotations

from typing import Any

import torch

import pyattn.functional as functional
from pyattn.functional._attention import as_torch_takes
from pyattn.interop.torch.differentiable import differentiate_in_torch
from pyattn.interop.torch.reading import is_transformed, read_tensor
from pyattn.interop.torch.tensors import view_as_tensor
from pyattn.interop.torch.threads import call_on_torchs_threads

__all__ = ["attend", "attend_in_torch"]

_INPUTS = ("query", "key", "value", "attn_mask")
_TENSORS = "Tensor query, Tensor key, Tensor value, Tensor? attn_mask"
_OPTIONS = "Tensor? seed, float dropout_p, bool is_causal, float? scale, bool enable_gqa, str layout"


def _named(
    seed: torch.Tensor | None, dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool, layout: str
) -> dict[str, Any]:
    """Name the options as pyattn.functional does; the seed is a tensor, since compiled code cannot read its value."""
    rng = None if seed is None else int(seed)
    options = {"dropout_p": dropout_p, "rng": rng, "is_causal": is_causal, "scale": scale}
    return {**options, "align": "upper_left", "enable_gqa": enable_gqa, "layout": layout}


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return output and logsumexp."""
    result = call_on_torchs_threads(_attend, *_read((query, key, value, attn_mask)), **_named(*options))
    return view_as_tensor(result.output), view_as_tensor(result.lse)


def _attend(query: Any, key: Any, value: Any, attn_mask: Any, *, enable_gqa: bool, **named: Any) -> Any:
    arrays, mask = as_torch_takes(query, key, value, attn_mask, enable_gqa)
    return functional.attention(*arrays, attn_mask=mask, need_lse=True, enable_gqa=enable_gqa, **named)


def _shapes_of_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None, *options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    *_, enable_gqa, layout = options
    own = 3 if layout == "bshd" else 2
    batch = [x.shape[:-own] for x in (query, key, value)]
    if enable_gqa and layout == "bhsd":  # heads are the query's
        batch[1:] = [(*one[:-1], 1) if one else one for one in batch[1:]]
    shape = (*torch.broadcast_shapes(*batch), *query.shape[-own:-1], value.shape[-1])
    rows = (*shape[:-3], shape[-2], shape[-3]) if layout == "bshd" else shape[:-1]
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(shape), query.new_empty(rows, dtype=wide)


def _gradients(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    output: torch.Tensor,
    lse: torch.Tensor,
    need: list[str],
    *options: Any,
) -> list[torch.Tensor]:
    """Return the gradients that are needed, in the order of the inputs."""
    *arrays, mask = _read((query, key, value, attn_mask))
    results = [read_tensor(x, name) for x, name in ((output, "output"), (lse, "lse"))]
    gradients = call_on_torchs_threads(
        functional.attention_backward,
        read_tensor(grad_output, "grad_output"),
        *arrays,
        *results,
        attn_mask=mask,
        need=need,
        **_named(*options),
    )
    return [view_as_tensor(gradient) for gradient in gradients]


def _shapes_of_gradients(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    output: torch.Tensor,
    lse: torch.Tensor,
    need: list[str],
    *options: Any,
) -> list[torch.Tensor]:
    inputs: Any = dict(zip(_INPUTS, (query, key, value, attn_mask), strict=True))
    return [inputs[name].new_empty(inputs[name].shape) for name in need]


def _read(tensors: tuple[torch.Tensor | None, ...]) -> list[Any]:
    return [None if x is None else read_tensor(x, name) for x, name in zip(tensors, _INPUTS, strict=True)]


# Gradients


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    query, key, value, mask, seed, *ctx.options = inputs
    ctx.save_for_backward(query, key, value, mask, seed, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad_output: torch.Tensor, _: Any) -> tuple[Any, ...]:
    *inputs, seed, output, lse = ctx.saved_tensors
    others = [None for _ in ("seed", *ctx.options)]
    if is_transformed(grad_output):  # a batch of gradients, for one

        def formula(query: Any, key: Any, value: Any, attn_mask: Any) -> torch.Tensor:
            return attend_in_torch(query, key, value, attn_mask, seed, *ctx.options)[0]

        return (*differentiate_in_torch(formula, grad_output, inputs), *others)
    need = [name for name, is_needed in zip(_INPUTS, ctx.needs_input_grad, strict=False) if is_needed]
    found = dict(zip(need, _backward(grad_output, *inputs, output, lse, need, seed, *ctx.options), strict=True))
    return (*map(found.get, _INPUTS), *others)


def _save_again(ctx: Any, inputs: tuple[Any, ...], output: list[torch.Tensor]) -> None:
    grad_output, query, key, value, mask, _, _, ctx.need, seed, *ctx.options = inputs
    ctx.save_for_backward(grad_output, query, key, value, mask, seed)


def _differentiate_again(ctx: Any, grads: list[torch.Tensor]) -> tuple[Any, ...]:
    """Differentiate the gradients by torch's own formula: output and lse are computed from the inputs there."""
    grad_output, *inputs, seed = ctx.saved_tensors
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases, as one tensor may be several inputs.
        sources: list[Any] = [
            None if x is None else x.view_as(x) if x.requires_grad else x for x in (grad_output, *inputs)
        ]
        again: Any = (*sources[1:], seed, *ctx.options)
        output, _ = attend_in_torch(*again)
        named = dict(zip(_INPUTS, sources[1:], strict=True))
        first = torch.autograd.grad(output, [named[name] for name in ctx.need], sources[0], create_graph=True)
    wanted = [n for n, x in enumerate(sources) if x is not None and x.requires_grad]
    second = torch.autograd.grad(
        first, [sources[n] for n in wanted], grads, create_graph=create_graph, allow_unused=True
    )
    found = dict(zip(wanted, second, strict=True))
    others = ("output", "lse", "need", "seed", *ctx.options)
    return (*map(found.get, range(len(sources))), *(None for _ in others))


def attend_in_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    seed: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    layout: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute output and weights by operations of torch, each of which autograd knows; without a seed torch drops."""
    if layout == "bshd":
        query, key, value = (x.transpose(-3, -2) for x in (query, key, value))
    if enable_gqa and min(query.ndim, key.ndim, value.ndim) > 2:
        key, value = (x.repeat_interleave(query.shape[-3] // max(1, x.shape[-3]), -3) for x in (key, value))
    scores = query @ key.transpose(-2, -1) * (max(1, query.shape[-1]) ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask
    elif attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    is_blind = (scores == -torch.inf).all(-1, keepdim=True)  # a row that sees nothing has weights of 0
    weights = scores.masked_fill(is_blind, 0).softmax(-1).masked_fill(is_blind, 0).to(query.dtype)
    if seed is not None:
        keep = torch.from_numpy(functional.dropout_keep_mask(tuple(weights.shape), dropout_p, int(seed)))
        weights = torch.where(keep, weights / (1 - dropout_p), 0)
    elif dropout_p:
        weights = torch.nn.functional.dropout(weights, dropout_p)
    output = weights @ value
    return output.transpose(-3, -2) if layout == "bshd" else output, weights


attend: Any = torch.library.custom_op(
    "pyattn::scaled_dot_product_attention",
    _forward,
    mutates_args=(),
    device_types="cpu",
    schema=f"({_TENSORS}, {_OPTIONS}) -> (Tensor output, Tensor lse)",
)
attend.register_fake(_shapes_of_forward)
attend.register_autograd(_differentiate, setup_context=_save)
_backward: Any = torch.library.custom_op(
    "pyattn::scaled_dot_product_attention_backward",
    _gradients,
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor grad_output, {_TENSORS}, Tensor output, Tensor lse, str[] need, {_OPTIONS}) -> Tensor[]",
)
_backward.register_fake(_shapes_of_gradients)
_backward.register_autograd(_differentiate_again, setup_context=_save_again)

"""Attention with gradients: the steps of multi-head attention, recorded on a tape."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.random import as_generator
from pyattn._util.typing import Align, EmptyRows, FloatArray, Rotation, Window
from pyattn.functional._attention import AttentionResult
from pyattn.functional._multihead import NO_DROPOUT, DropoutOptions
from pyattn.functional._multihead_masks import Masking, ScoreSizes, to_core
from pyattn.functional._self_attention import read_rows
from pyattn.masks import Mask, causal, from_array, padding, window
from pyattn.nn.attention.cached import rotation_of
from pyattn.nn.attention.parameters import SEPARATE, rows_of_projections
from pyattn.nn.gradients import add_gradient, add_product, add_sum, running, sum_to

__all__ = ["MultiheadInputs", "SelfMasks", "record_attention", "record_heads", "record_self"]

Array: TypeAlias = npt.NDArray[Any]

QUERY_KEY_VALUE, MASK = 7, 8  # the core's bits


class MultiheadInputs(NamedTuple):
    """Inputs of multi-head attention with the batch first, and the arrays that they are views of."""

    query: FloatArray
    key: FloatArray
    value: FloatArray
    given: tuple[Any, Any, Any]


class OneMask(NamedTuple):
    """Masks of a call as one argument of `pyattn.attention`: a mask object, bools (True = attend) or floats."""

    mask: Mask | Array | None
    options: dict[str, Any]
    """Other arguments of `pyattn.attention`."""
    floats: tuple[tuple[Any, tuple[int, ...]], ...] = ()
    """The float masks in it, and the shapes to which the gradient is summed."""


def record_attention(
    query: FloatArray,
    key: FloatArray,
    value: FloatArray,
    masks: OneMask,
    dropout: DropoutOptions,
    sources: tuple[Any, ...] = (),
    **options: Any,
) -> Any:
    """Call `pyattn.attention` with its logsumexp; sources are query, key and value as the tape knows them."""
    dropped: dict[str, Any] = {"dropout_p": dropout.dropout_p, "keep_mask": dropout.keep_mask}
    rng: Any = None
    if dropout.dropout_p > 0 and dropout.keep_mask is None:
        rng = as_generator(dropout.rng)
        again = copy.deepcopy(rng)  # draws the same seed on the way back
    shared: dict[str, Any] = {"attn_mask": masks.mask, "scale": options.pop("scale", None), **masks.options, **dropped}
    shared |= {"layout": options.pop("layout"), "enable_gqa": options.pop("enable_gqa", True)}
    needs_mask = any(running().tracks(mask) for mask, _ in masks.floats)
    result = _core.attention(query, key, value, need_lse=True, rng=rng, **shared, **options)

    def backward(grad: FloatArray) -> list[FloatArray | None]:
        bits = QUERY_KEY_VALUE | (MASK if needs_mask else 0)
        seed = None if rng is None else again
        found = _core.attention_backward(
            grad, query, key, value, result.output, None, result.lse, None, bits, rng=seed, **shared
        )
        of_mask = found[3]
        sums: list[FloatArray | None] = []
        for mask, shape in masks.floats:
            part = None if of_mask is None else sum_to(of_mask[..., : shape[-1]], shape)
            sums.append(None if part is None else part.reshape(mask.shape))
        return [*found[:3], *sums]

    running().step(result.output, (*(sources or (query, key, value)), *(mask for mask, _ in masks.floats)), backward)
    return result


def record_heads(
    module: Any,
    inputs: MultiheadInputs,
    masking: Masking,
    dropout: DropoutOptions,
    need_weights: bool,
    average: bool,
    empty_rows: EmptyRows,
) -> tuple[FloatArray, FloatArray | None]:
    """Compute `MultiheadAttention.forward` from `linear` and `attention`."""
    lead, (q_len, kv_len) = inputs.query.shape[:-2], (inputs.query.shape[-2], inputs.key.shape[-2])
    rotation = rotation_of(module.rotary, (0,), (max(q_len, kv_len),), q_len)
    q, k, v = _project(module, inputs)
    if rotation is not None:
        q, k = _rotate(q, rotation), _rotate(k, rotation)
    sizes = ScoreSizes(lead, module.num_heads, q_len, kv_len)
    masks = _one_mask(masking, sizes)
    if module.bias_k is not None or module.add_zero_attn:
        extra = (module.bias_k is not None) + module.add_zero_attn
        masks = _with_extra(masks, masking, sizes, extra)
        k, v = _append(module, k, "bias_k"), _append(module, v, "bias_v")
    options: dict[str, Any] = {"need_weights": need_weights, "empty_rows": empty_rows, "layout": "bshd"}
    result = record_attention(q, k, v, masks, dropout, scale=module.scale, **options)
    heads = running().reshape(result.output, _merged(result.output))
    swaps = heads.ndim == 3 and not module.batch_first
    output = module.out_proj(heads)
    if swaps:
        output = running().swap(output)
    weights = result.weights if need_weights else None
    if weights is not None and average:
        weights = weights.mean(axis=-3)
    return output, weights


class SelfMasks(NamedTuple):
    """Arguments of `SelfAttention.forward` that hide keys."""

    attn_mask: npt.ArrayLike | None
    is_causal: bool
    align: Align | None
    window: Window
    key_lengths: npt.ArrayLike | None


def record_self(
    module: Any,
    inputs: tuple[FloatArray, ...],
    given: tuple[Any, Any],
    masks: SelfMasks,
    need_weights: bool,
    empty_rows: EmptyRows,
) -> FloatArray | AttentionResult:
    """Compute `SelfAttention.forward` from products and `attention`, with one head; inputs are x and the context."""
    columns, names = module.convention == "column", ("query", "key", "value")
    x, context = inputs[0], inputs[-1]
    rows = [read_rows(one, "x", columns) for one in (x, context, context)]
    if len(inputs) == 1 or given[1] is None:
        given = (given[0], given[0])
    q, k, v = (
        _project_one(module, one, name, source, columns)
        for one, name, source in zip(rows, names, (given[0], given[1], given[1]), strict=True)
    )
    mask: Any = masks.attn_mask
    floats: tuple[tuple[Any, tuple[int, ...]], ...] = ()
    if mask is not None:
        array = np.asarray(mask) if isinstance(mask, Mask) else _core.as_array(mask, "attn_mask")
        array = array[..., np.newaxis, :, :] if array.ndim > 2 else array
        if array.dtype != np.bool_:
            floats = ((mask, array.shape),)
        mask = from_array(array) if isinstance(mask, Mask) else array
    options: dict[str, Any] = {"is_causal": masks.is_causal, "align": masks.align, "window": masks.window}
    options["key_lengths"] = masks.key_lengths
    scale = module.scale
    result = record_attention(
        q,
        k,
        v,
        OneMask(mask, options, floats),
        NO_DROPOUT,
        scale=scale,
        need_weights=need_weights,
        empty_rows=empty_rows,
        layout="bshd",
    )
    output = running().reshape(result.output, _merged(result.output))
    if columns:
        output = running().step(output.swapaxes(-1, -2), (output,), lambda grad: (grad.swapaxes(-1, -2),))
    if not need_weights:
        return output
    weights = result.weights[..., 0, :, :]
    return AttentionResult(output, weights.swapaxes(-1, -2) if columns else weights)


def _project_one(module: Any, rows: FloatArray, part: str, source: Any, columns: bool) -> FloatArray:
    """Compute queries, keys or values of the one head, (..., length, 1, dim)."""
    name, bias = f"w_{part}", f"b_{part}"
    weight = vars(module)[name] if columns else vars(module)[name].T
    y = _core.linear(rows, weight, vars(module)[bias])
    y = y.reshape(*y.shape[:-1], 1, y.shape[-1])

    def backward(grad: FloatArray) -> tuple[FloatArray]:
        flat = grad.reshape(_merged(grad))
        one, other = (rows, flat) if columns else (flat, rows)  # the weight is (dim, inner), or transposed
        add_product(module, name, one, other)
        add_sum(module, bias, flat)
        grad_x = _core.linear(flat, weight.T)
        return (grad_x.swapaxes(-1, -2) if columns else grad_x,)

    return running().step(y, (source,), backward)


def _project(module: Any, inputs: MultiheadInputs) -> list[FloatArray]:
    """Compute queries, keys and values, (..., length, heads, dim), which are the sources of attention."""
    sizes, bias = rows_of_projections(module), module.in_proj_bias
    ends = [sum(sizes[:n]) for n in range(4)]
    swaps = inputs.query.ndim == 3 and not module.batch_first
    found = []
    for n, x in enumerate(inputs[:3]):
        rows = slice(ends[n], ends[n + 1])
        packed = module.in_proj_weight is not None
        name, part = ("in_proj_weight", rows) if packed else (SEPARATE[n], slice(None))
        weight = vars(module)[name][part]
        y = _core.linear(x, weight, None if bias is None else bias[rows])
        heads = module.num_heads if n == 0 else module.num_kv_heads
        y = y.reshape(*y.shape[:-1], heads, y.shape[-1] // heads)

        def backward(
            grad: FloatArray, x: FloatArray = x, name: str = name, part: slice = part, rows: slice = rows
        ) -> tuple[FloatArray]:
            flat = grad.reshape(_merged(grad))
            add_product(module, name, x, flat, part)
            add_sum(module, "in_proj_bias", flat, rows)
            grad_x = _core.linear(flat, vars(module)[name][part].T)
            return (grad_x.swapaxes(0, 1) if swaps else grad_x,)

        found.append(running().step(y, (inputs.given[n],), backward))
    return found


def _merged(x: FloatArray) -> tuple[int, ...]:
    """Return the shape of (..., heads, dim) with the heads side by side."""
    return (*x.shape[:-2], x.shape[-2] * x.shape[-1])


def _rotate(x: FloatArray, rotation: Rotation) -> FloatArray:
    """Rotate queries or keys; gradients are rotated by the opposite angles."""
    options: dict[str, Any] = {"scale": rotation.scale, "offset": rotation.offset, "layout": "bshd"}
    options |= {"position_ids": rotation.position_ids, "interleaved": rotation.interleaved}
    y = _core.rotary(x, rotation.inv_freq, **options)
    return running().step(y, (x,), lambda grad: (_core.rotary(grad, -rotation.inv_freq, **options),))


def _append(module: Any, x: FloatArray, name: str) -> FloatArray:
    """Append the parameter and the zeros that add_bias_kv and add_zero_attn stand for to keys or values."""
    bias, (heads, dim), length = vars(module)[name], x.shape[-2:], x.shape[-3]
    rows = [] if bias is None else [bias.reshape(1, heads, dim)]
    rows += [np.zeros((1, heads, dim), x.dtype)] if module.add_zero_attn else []
    extra = [np.broadcast_to(row.astype(x.dtype, copy=False), (*x.shape[:-3], 1, heads, dim)) for row in rows]

    def backward(grad: FloatArray) -> tuple[FloatArray]:
        if bias is not None:
            add_gradient(module, name, sum_to(grad[..., length, :, :], (heads, dim)).reshape(bias.shape))
        return (np.ascontiguousarray(grad[..., :length, :, :]),)

    return running().step(np.concatenate([x, *extra], axis=-3), (x,), backward)


# Masks


def _one_mask(masking: Masking, sizes: ScoreSizes) -> OneMask:
    """Join torch's masks; mask objects stay objects."""
    read = to_core(masking, sizes)
    options: dict[str, Any] = {"is_causal": masking.is_causal, "window": masking.window}
    options |= {"key_lengths": read.key_lengths, "align": "upper_left"}
    given: Any = masking.attn_mask
    mask = given if isinstance(given, Mask) else _attend(read.attn_mask)
    keys = _attend(read.key_padding_mask)
    floats = tuple(
        (one, array.shape)
        for one, array in ((given, read.attn_mask), (masking.key_padding_mask, read.key_padding_mask))
        if isinstance(array, np.ndarray) and array.dtype != np.bool_ and not isinstance(one, Mask)
    )
    return OneMask(_join(mask, keys), options, floats)


def _attend(mask: Any) -> Any:
    """Turn a bool mask, True = blocked, into a mask object: its meaning is not to be doubted again."""
    return from_array(~mask) if mask is not None and mask.dtype == np.bool_ else mask


def _join(one: Any, other: Any) -> Any:
    """Let attend what both masks let."""
    if one is None or other is None:
        return other if one is None else one
    are_floats = [not isinstance(mask, Mask) for mask in (one, other)]
    if all(are_floats):
        return one + other
    if any(are_floats):
        bias, seen = (one, other) if are_floats[0] else (other, one)
        return np.where(np.asarray(seen), bias, bias.dtype.type(-np.inf))
    return one & other


def _with_extra(masks: OneMask, masking: Masking, sizes: ScoreSizes, extra: int) -> OneMask:
    """Add columns for keys that every row sees."""
    shape, mask = (sizes.q_len, sizes.kv_len), masks.mask
    if masking.is_causal:
        mask = _join(mask, causal(*shape, align="upper_left"))
    if masking.window is not None:
        pair = masking.window if isinstance(masking.window, tuple) else (masking.window, masking.window)
        mask = _join(mask, window(*shape, left=pair[0], right=pair[1], align="upper_left"))
    if masks.options["key_lengths"] is not None:
        mask = _join(mask, padding(masks.options["key_lengths"], sizes.kv_len))
    if mask is None:
        return OneMask(None, {"is_causal": False}, ())
    array = np.asarray(mask)
    columns = np.full((*array.shape[:-1], extra), array.dtype == np.bool_, array.dtype)
    joined: Any = np.concatenate([array, columns], axis=-1)
    return OneMask(from_array(joined) if isinstance(mask, Mask) else joined, {"is_causal": False}, masks.floats)

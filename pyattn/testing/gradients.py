"""Gradients of a formula as data that is computed step by step, and their rounding bounds.

A `Backward` holds a formula, the gradient of its output, and the steps that people write in different ways. A mistake
is a copy with a field or two changed: see gradient_mistakes.py.

Indices: N batch, H heads, L queries, S keys, D features of a head. With the weights P, the factors M of dropout, the
gradient G of the heads and the gradient g of lse:

    dV = (P * M).T G     dP = M * (G V.T)     delta = (P * dP).sum(-1)     dS = P * (dP - delta + g)
    dQ = scale dS K      dK = scale dS.T Q    dmask = dS
    y = x W.T + b:       dx = G W             dW = G.T x                   db = G.sum(0)

The bounds are first-order in u and follow these lines. e(X) is the bound of X, |X| its absolute values; P, Q, K, V and
the heads bring the bounds of `bounds.attention_errors`. A sum of n products adds 4u sqrt(n) times the sum of their
absolute values; sums over features in a layer add the squares of inherited errors, as in bounds.py.

    e(dP)     |M| (e(G) |V|.T + |G| e(V).T + 4u sqrt(D) T)                     T = |G| |V|.T
    e(delta)  sum(e(P) |M| T + P e(dP)) + 4u (sqrt(S) + sqrt(D)) sum(P |M| T)  for dO . O as well as for P . dP
    e(dS)     e(P) |dP - delta + g| + P (e(dP) + e(delta) + 4u |g|)
    e(dV)     |P M|.T e(G) + (e(P) |M|).T |G| + 4u sqrt(L) |P M|.T |G|
    e(dQ)     |scale| (e(dS) |K| + |dS| e(K) + 4u (1 + sqrt(S)) |dS| |K|), and dK alike

Numbers below the smallest normal one may be flushed to 0 on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import pyattn.reference as reference
from pyattn.testing.bounds import Precision, attention_errors
from pyattn.testing.formula import Affine, Array, Computed, Formula, compute, merge_heads

__all__ = ["Backward", "Forward", "Parts", "bound_gradients", "differentiate", "forward_of", "sum_to"]

Parts: TypeAlias = dict[str, Array]
"""Gradients by name: query, key, value, attn_mask, padding; query.weight, out.bias and so on; bias_k and bias_v."""

_INPUTS = ("query", "key", "value")


def sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the axes along which an array of this shape was broadcast."""
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + n for n, size in enumerate(shape) if size == 1))
    return np.asarray(x.sum(axis=axes).reshape(shape) if axes else x)


# Steps: the defaults of a Backward


def _delta(weights: Array, grad_weights: Array, grad: Array, heads: Array) -> Array:
    return np.asarray((weights * grad_weights).sum(axis=-1, keepdims=True))


def _softmax(weights: Array, grad_weights: Array, delta: Array) -> Array:
    return np.asarray(weights * (grad_weights - delta))


def _of_rows(weights: Array, visible: Array, x: Array) -> Array:
    """Return weights @ x."""
    return reference.weighted_sum(weights, visible, x)


def _of_columns(weights: Array, visible: Array, x: Array) -> Array:
    """Return weights.T @ x."""
    return reference.weighted_sum(weights.mT, visible.mT, x)


@dataclass(frozen=True, eq=False)
class Backward:
    """The way back through a formula."""

    formula: Formula
    grad_output: Array
    """In the axes of the output that the caller gets."""
    grad_lse: Array | None = None
    scale_query: float | None = None
    """The factor of dS K; None for the formula's."""
    scale_key: float | None = None

    start: Callable[[Array], Array] = lambda grad: grad
    """grad_output -> grad_output, as the first step."""
    weigh: Callable[[Computed], tuple[Array, Array]] = lambda computed: (computed.weights, computed.visible)
    """Attention without dropout -> (weights, visible) that gradients are computed from."""
    drop_weights: Callable[[Array, Any], Array] = lambda weights, drop: weights * drop
    drop_gradient: Callable[[Array, Any], Array] = lambda grad_weights, drop: grad_weights * drop
    delta: Callable[[Array, Array, Array, Array], Array] = _delta
    """(weights, grad_weights, gradient of heads, heads) -> (..., L, 1)."""
    softmax: Callable[[Array, Array, Array], Array] = _softmax
    """(weights, grad_weights, delta) -> gradient of the scores."""
    of_value: Callable[[Array, Array, Array], Array] = _of_columns
    """(weights, visible, gradient of heads) -> gradient of the values."""
    of_query: Callable[[Array, Array, Array], Array] = _of_rows
    """(gradient of scores, visible, key) -> gradient of the queries, before it is scaled."""
    of_key: Callable[[Array, Array, Array], Array] = _of_columns
    sum_group: Callable[[Array], Array] = lambda x: x.sum(axis=-3)
    """(..., kv_heads, heads of a group, S, D) -> (..., kv_heads, S, D)."""
    of_mask: Callable[[Array, tuple[int, ...]], Array] = sum_to
    """(gradient of scores, shape of the mask) -> gradient of the mask."""
    of_input: Callable[[Array, Array], Array] = lambda grad, weight: grad @ weight
    of_weight: Callable[[Array, Array, str], Array] = lambda grad, x, layer: grad.T @ x
    """(gradient of y, x, layer) -> gradient of the weight; both as rows."""
    of_bias: Callable[[Array, str], Array] = lambda grad, layer: grad.sum(axis=0)
    finish: Callable[[Parts], Parts] = lambda parts: parts
    """Gradients -> gradients, as the last step."""


class Forward(NamedTuple):
    """A formula computed on the way there."""

    plain: Computed
    """Without dropout."""
    dropped: Computed


def forward_of(formula: Formula) -> Forward:
    """Compute a formula with and without its dropout."""
    plain = compute(replace(formula, drop=None))
    return Forward(plain, plain if formula.drop is None else compute(formula))


def differentiate(backward: Backward, forward: Forward) -> Parts:
    """Compute all gradients in float64, in the shapes that the caller gets."""
    b, f = backward, backward.formula
    with np.errstate(all="ignore"):  # masked numbers may overflow, and mistakes may be invalid
        grad = f.as_computed(b.start(np.asarray(b.grad_output, np.float64)))
        if f.is_linear:
            assert f.out is not None, "a linear layer is its output projection"
            return b.finish(_layer(b, ("query", "out"), grad, f.query, f.out))
        found: Parts = {}
        if f.out is not None:
            found = _layer(b, ("merged", "out"), grad, forward.dropped.merged, f.out)
            grad = found.pop("merged")
        if f.projections is not None:
            grad = _split(grad, f.heads)
        return b.finish(found | _attention(b, forward, grad))


def _layer(b: Backward, names: tuple[str, str], grad: Array, x: Array, parameters: Affine) -> Parts:
    """Return the gradients of a layer's input, named first, and of its parameters."""
    rows, inputs, (name, layer) = _as_rows(grad), _as_rows(np.asarray(x, np.float64)), names
    found = {name: b.of_input(grad, parameters.weight), f"{layer}.weight": b.of_weight(rows, inputs, layer)}
    return found if parameters.bias is None else found | {f"{layer}.bias": b.of_bias(rows, layer)}


def _attention(b: Backward, forward: Forward, grad: Array) -> Parts:
    """Return the gradients of inputs, projections and masks from that of the heads, (..., H, L, D)."""
    f, (q, k, v, _) = b.formula, forward.plain.operands
    drop = 1.0 if f.drop is None else f.drop
    weights, visible = b.weigh(forward.plain)
    grad_weights = np.where(visible, b.drop_gradient(np.asarray(grad @ v.mT), drop), 0)
    delta = b.delta(weights, grad_weights, grad, forward.dropped.heads)
    if b.grad_lse is not None:
        delta = delta - b.grad_lse[..., np.newaxis]
    scores = np.where(visible, b.softmax(weights, grad_weights, delta), 0)
    scales = (f.factor if scale is None else scale for scale in (b.scale_query, b.scale_key))
    of_query, of_key = b.of_query(scores, visible, k), b.of_key(scores, visible, q)
    of_value = b.of_value(b.drop_weights(weights, drop), visible, grad)
    found = _masks(f, scores, b.of_mask)
    operands = [*(scale * x for scale, x in zip(scales, (of_query, of_key), strict=True)), of_value]
    for n, name in enumerate(_INPUTS):
        found |= _input(b, n, name, operands[n], forward.plain.operands.has_heads)
    return found


def _masks(f: Formula, scores: Array, of_mask: Callable[[Array, tuple[int, ...]], Array]) -> Parts:
    """Return the gradients of float masks, which do not reach extra keys."""
    given = scores[..., : scores.shape[-1] - len(f.extras)]
    masks = {"attn_mask": f.attn_mask, "padding": f.padding}
    return {name: of_mask(given, x.shape) for name, x in masks.items() if x is not None and x.dtype != np.bool_}


def _input(b: Backward, n: int, name: str, grad: Array, has_heads: bool) -> Parts:
    """Return the gradients of an input and of its projection from that of an operand."""
    f = b.formula
    given = (f.query, f.key, f.value)[n]
    if f.projections is None:
        swaps = f.layout == "bshd" and given.ndim >= 3
        shape = given.swapaxes(-3, -2).shape if swaps else given.shape
        gathered = _gather(grad, shape, has_heads, b.sum_group)
        return {name: gathered.swapaxes(-3, -2) if swaps else gathered}
    heads = f.heads if n == 0 else f.kv_heads
    shape = (*given.shape[:-2], heads, grad.shape[-2], grad.shape[-1])
    rows = merge_heads(_gather(grad, shape, has_heads, b.sum_group))
    found = _extras(f, n, rows)
    found |= _layer(b, (name, name), rows[..., : given.shape[-2], :], given, f.projections[n])
    return found | {name: _as_given(f, found[name])}


def _extras(f: Formula, n: int, rows: Array) -> Parts:
    """Return the gradient of the parameter that is appended to keys or values."""
    if n == 0 or not f.extras:
        return {}
    first = rows[..., rows.shape[-2] - len(f.extras), :]
    return {("bias_k", "bias_v")[n - 1]: sum_to(first, first.shape[-1:])}


def _gather(grad: Array, shape: tuple[int, ...], has_heads: bool, sum_group: Callable[[Array], Array]) -> Array:
    """Sum the gradient of an operand over the heads that share it, and over the axes that it was broadcast along."""
    full = (1,) * (grad.ndim - len(shape)) + shape
    if has_heads and full[-3] < grad.shape[-3]:
        grouped = grad.reshape(*grad.shape[:-3], full[-3], grad.shape[-3] // full[-3], *grad.shape[-2:])
        summed = sum_group(grouped)
        if summed.ndim == grouped.ndim:  # not summed, by mistake
            return grad
        grad = summed
    return sum_to(grad, full).reshape(shape)


def _split(x: Array, heads: int) -> Array:
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-3, -2)


def _as_rows(x: Array) -> Array:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _as_given(f: Formula, x: Array) -> Array:
    """Convert a gradient of a module's input, (..., length, E), to the caller's axes."""
    x = x.mT if f.convention == "column" else x
    return x.swapaxes(0, 1) if f.length_first else x


# Bounds


def bound_gradients(backward: Backward, forward: Forward, precision: Precision) -> Parts:
    """Bound the error of each number of each gradient, in the shapes of `differentiate`."""
    f, u = backward.formula, precision.u
    with np.errstate(all="ignore"):
        grad = f.as_computed(np.abs(np.asarray(backward.grad_output, np.float64)))
        error = u * grad  # it is rounded to the precision
        if f.is_linear:
            return _layer_bounds(("query", "out"), (grad, error), (f.query, 0.0), f.out, precision)
        errors = attention_errors(f, forward.dropped, precision)
        found: Parts = {}
        if f.out is not None:
            signed = f.as_computed(np.asarray(backward.grad_output, np.float64))
            merged = (forward.dropped.merged, errors.merged)
            found = _layer_bounds(("merged", "out"), (grad, error), merged, f.out, precision)
            grad, error = signed @ f.out.weight, found.pop("merged")
        else:
            grad = f.as_computed(np.asarray(backward.grad_output, np.float64))
        if f.projections is not None:
            grad, error = _split(grad, f.heads), _split(error, f.heads)
        return found | _attention_bounds(backward, forward, precision, grad, error)


def _layer_bounds(
    names: tuple[str, str],
    grad: tuple[Array, Array],
    x: tuple[Array, Any],
    parameters: Affine | None,
    precision: Precision,
) -> Parts:
    """Bound the gradients of a layer; grad and x are pairs of numbers and their bounds."""
    assert parameters is not None, "a layer has parameters"
    u, tiny, weight = precision.u, precision.flushed, np.abs(parameters.weight)
    size, error = np.abs(grad[0]), grad[1]
    given = np.abs(np.asarray(x[0], np.float64))
    rows, errors, inputs = _as_rows(size), _as_rows(error), _as_rows(given)
    of_x = _as_rows(np.broadcast_to(x[1], given.shape))
    count, features = max(1, len(rows)), max(1, weight.shape[0])
    own = 4 * u * math.sqrt(features) * (size @ weight) + (features + 1) * tiny
    largest = error.max(axis=-1, keepdims=True, initial=0)  # whose square may underflow: that of a tiny weight
    shares = error / np.where(largest == 0, 1, largest)
    found = {names[0]: own + largest * np.sqrt(np.square(shares) @ np.square(weight))}
    products = 4 * u * math.sqrt(count) * (rows.T @ inputs) + (count + 1) * tiny
    found[f"{names[1]}.weight"] = products + errors.T @ inputs + rows.T @ of_x
    if parameters.bias is not None:
        found[f"{names[1]}.bias"] = 4 * u * math.sqrt(count) * rows.sum(axis=0) + errors.sum(axis=0) + count * tiny
    return found


def _attention_bounds(backward: Backward, forward: Forward, precision: Precision, grad: Array, error: Array) -> Parts:
    """Bound the gradients that `_attention` returns; grad is that of the heads, and error its bound."""
    f, u, tiny = backward.formula, precision.u, precision.flushed
    plain = forward.plain
    errors = attention_errors(replace(f, drop=None), plain, precision)
    visible, p, e_p = plain.visible, plain.weights, np.where(plain.visible, errors.weights, 0)
    q, k, v = (np.nan_to_num(x) for x in plain.operands[:3])
    e_q, e_k, e_v = (np.zeros_like(x) for x in (q, k, v)) if errors.operands is None else errors.operands[:3]
    drop = 1.0 if f.drop is None else f.drop
    long_l, long_s, long_d = (math.sqrt(max(1, n)) for n in (*p.shape[-2:], v.shape[-1]))
    size = np.abs(grad)
    q_size, k_size, v_size = np.abs(q), np.abs(k), np.abs(v)

    terms = np.where(visible, drop * (size @ v_size.mT), 0)
    e_weights = np.where(visible, drop * (error @ v_size.mT + size @ e_v.mT), 0) + 4 * u * long_d * terms
    grad_weights = np.where(visible, drop * (grad @ v.mT), 0)
    delta = (p * grad_weights).sum(axis=-1, keepdims=True)
    e_delta = (e_p * terms + p * e_weights).sum(axis=-1, keepdims=True)
    e_delta = e_delta + 4 * u * (long_s + long_d) * (p * terms).sum(axis=-1, keepdims=True)
    of_lse: Any = 0.0 if backward.grad_lse is None else backward.grad_lse[..., np.newaxis]
    slope = grad_weights - delta + of_lse
    scores = np.where(visible, p * slope, 0)
    e_scores = e_p * np.abs(slope) + p * (e_weights + e_delta + 4 * u * np.abs(of_lse))
    e_scores = np.where(visible, e_scores + tiny * (1 + terms), 0)

    kept, e_kept, moved = p * drop, e_p * drop, np.abs(scores)
    scale = abs(f.factor)
    flush = [(n + 1) * tiny for n in (k.shape[-2], q.shape[-2], q.shape[-2])]
    own = [4 * u * (1 + root) for root in (long_s, long_l)]
    bounds = [
        scale * (e_scores @ k_size + moved @ e_k + own[0] * (moved @ k_size)) + flush[0],
        scale * (e_scores.mT @ q_size + moved.mT @ e_q + own[1] * (moved.mT @ q_size)) + flush[1],
        kept.mT @ error + e_kept.mT @ size + 4 * u * long_l * (kept.mT @ size) + flush[2],
    ]
    sizes = [scale * (moved @ k_size), scale * (moved.mT @ q_size), kept.mT @ size]

    found = _masks(f, e_scores, sum_to)
    for name, x in _masks(f, moved, sum_to).items():
        found[name] = found[name] + 4 * u * math.sqrt(moved.size / max(1, x.size)) * x + tiny
    for n, name in enumerate(_INPUTS):
        found |= _input_bounds(backward, n, name, (bounds[n], sizes[n]), plain.operands.has_heads, precision)
    return found


def _input_bounds(
    backward: Backward, n: int, name: str, bounds: tuple[Array, Array], has_heads: bool, precision: Precision
) -> Parts:
    """Bound what `_input` returns; bounds are those of an operand's gradient, and the sums of its absolute terms."""
    f = backward.formula
    given = (f.query, f.key, f.value)[n]
    heads = f.heads if n == 0 else f.kv_heads
    swaps = f.projections is None and f.layout == "bshd" and given.ndim >= 3
    shape = given.swapaxes(-3, -2).shape if swaps else given.shape
    if f.projections is not None:
        shape = (*given.shape[:-2], heads, *bounds[0].shape[-2:])
    error, size = (_gather(x, shape, has_heads, lambda x: np.asarray(x.sum(axis=-3))) for x in bounds)
    shared = bounds[0].size / max(1, error.size)
    if shared > 1:
        error = error + 4 * precision.u * math.sqrt(shared) * size
    if f.projections is None:
        return {name: error.swapaxes(-3, -2) if swaps else error}
    error, size = merge_heads(error), merge_heads(size)
    found = {key: x + precision.u * sum_to(size[..., -1, :], x.shape) for key, x in _extras(f, n, error).items()}
    length = given.shape[-2]
    pair = (size[..., :length, :], error[..., :length, :])
    found |= _layer_bounds((name, name), pair, (given, 0.0), f.projections[n], precision)
    return found | {name: _as_given(f, found[name])}

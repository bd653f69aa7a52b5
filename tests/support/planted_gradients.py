"""Gradients of attention in plain NumPy and the inputs' dtype: right ones, and ones with a mistake that people make.

FUNCTIONS lists them with arguments under which they show, and what `pyattn.compare` is to say: the cause and the first
gradient that differs. The inputs are those of `planted.draw`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from support import planted
from support.planted import BATCH, BIAS, HEADS, KEY, QUERY, VALUE, VISIBLE, L, S, hide, softmax, triangle

import pyattn

RNG = np.random.default_rng(43)
KEEP = RNG.random((L, S)) < 0.7
DROPOUT = 0.25
KEYS_BIAS = RNG.standard_normal((HEADS, 1, S)).astype(np.float32)


class Parts(NamedTuple):
    """What gradients are made of."""

    scale: Any
    weights: Any
    dropped: Any
    """Factors of dropout, or 1."""
    grad_weights: Any
    delta: Any
    grad_scores: Any


def weights_of(query, key, attn_mask=None, is_causal=False):
    scores = planted.scaled(query, key)
    if is_causal:
        scores = hide(scores, triangle(scores))
    if attn_mask is not None:
        scores = hide(scores, attn_mask) if attn_mask.dtype == bool else scores + attn_mask
    return softmax(scores)


def repeated(x, heads):
    return np.repeat(x, heads // x.shape[-3], axis=-3) if x.ndim > 2 else x


def drops(weights, keep_mask, dropout_p):
    one = weights.dtype.type(1)
    return one if keep_mask is None else keep_mask.astype(weights.dtype) / (one - weights.dtype.type(dropout_p))


def forward(query, key, value, *, attn_mask=None, is_causal=False, dropout_p=0.0, keep_mask=None):
    key, value = (repeated(x, query.shape[-3]) if query.ndim > 2 else x for x in (key, value))
    weights = weights_of(query, key, attn_mask, is_causal)
    return weights * drops(weights, keep_mask, dropout_p) @ value


def parts(grad, query, key, value, attn_mask=None, is_causal=False, dropout_p=0.0, keep_mask=None):
    weights = weights_of(query, key, attn_mask, is_causal)
    dropped = drops(weights, keep_mask, dropout_p)
    grad_weights = dropped * (grad @ value.mT)
    delta = (weights * grad_weights).sum(axis=-1, keepdims=True)
    scale = query.dtype.type(query.shape[-1] ** -0.5)
    return Parts(scale, weights, dropped, grad_weights, delta, weights * (grad_weights - delta))


def summed(x, heads):
    """Sum over the query heads that share a key head."""
    if x.ndim < 3:
        return x
    return x.reshape(*x.shape[:-3], heads, -1, *x.shape[-2:]).sum(axis=-3)


def shrink(x, shape):
    """Sum over the axes along which a mask was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(n for n, size in enumerate(shape) if size == 1), keepdims=True)


def right(grad, query, key, value, *, attn_mask=None, **options):
    return made(grad, query, key, value, lambda p: p, summed, shrink, attn_mask=attn_mask, **options)


def made(grad, query, key, value, change, group=summed, of_mask=shrink, attn_mask=None, **options):
    """Compute all gradients, of parts that are changed."""
    heads = key.shape[-3] if key.ndim > 2 else 1
    key, value = (repeated(x, query.shape[-3]) if query.ndim > 2 else x for x in (key, value))
    p = change(parts(grad, query, key, value, attn_mask, **options))
    of_query = p.scale * (p.grad_scores @ key)
    of_key = group(p.scale * (p.grad_scores.mT @ query), heads)
    of_value = group((p.weights * p.dropped).mT @ grad, heads)
    if attn_mask is None or attn_mask.dtype == bool:
        return of_query, of_key, of_value
    return of_query, of_key, of_value, of_mask(p.grad_scores, attn_mask.shape)


def changed(change=lambda p: p, **steps):
    """Make a backward of changed parts or steps."""

    def backward(grad, query, key, value, attn_mask=None, is_causal=False, dropout_p=0.0, keep_mask=None):
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "dropout_p": dropout_p, "keep_mask": keep_mask}
        return made(grad, query, key, value, change, **steps, **options)

    return backward


def scores(function):
    """Make a backward with another gradient of the scores."""
    return changed(lambda p: p._replace(grad_scores=function(p)))


def ending(function):
    """Make a backward whose results are changed."""
    return lambda *arrays, **options: function(*right(*arrays, **options))


# Scale

unscaled = changed(lambda p: p._replace(scale=p.scale.dtype.type(1)))
scaled_twice = changed(lambda p: p._replace(scale=p.scale**2))


def query_unscaled(grad, query, key, value):
    of_query, *others = right(grad, query, key, value)
    return of_query / query.dtype.type(query.shape[-1] ** -0.5), *others


# Softmax

without_delta = scores(lambda p: p.weights * p.grad_weights)
like_a_sigmoid = scores(lambda p: p.weights * (1 - p.weights) * p.grad_weights)
mean_for_delta = scores(lambda p: p.weights * (p.grad_weights - p.delta / p.weights.shape[-1]))
unweighted = scores(lambda p: p.grad_weights - p.delta)
straight_through = scores(lambda p: p.grad_weights)

# Products


def weights_not_transposed(grad, query, key, value):
    of_query, of_key, _ = right(grad, query, key, value)
    return of_query, of_key, weights_of(query, key) @ grad


def grad_for_value(grad, query, key, value):
    return *right(grad, query, key, value)[:2], grad


def scores_not_transposed(grad, query, key, value):
    p = parts(grad, query, key, value)
    of_query, _, of_value = right(grad, query, key, value)
    return of_query, p.scale * (p.grad_scores @ query), of_value


def key_times_key(grad, query, key, value):
    p = parts(grad, query, key, value)
    of_query, _, of_value = right(grad, query, key, value)
    return of_query, p.scale * (p.grad_scores.mT @ key), of_value


# Dropout


def drop_again(grad, query, key, value, step):
    """Use another factor for P and for dP."""
    p = parts(grad, query, key, value, dropout_p=DROPOUT, keep_mask=KEEP)
    dropped = step(KEEP.astype(grad.dtype))
    grad_weights = dropped * (grad @ value.mT)
    ds = p.weights * (grad_weights - (p.weights * grad_weights).sum(axis=-1, keepdims=True))
    return p.scale * (ds @ key), p.scale * (ds.mT @ query), (p.weights * dropped).mT @ grad


def factor_forgotten(grad, query, key, value, dropout_p, keep_mask):
    return drop_again(grad, query, key, value, lambda keep: keep)


def keep_mask_forgotten(grad, query, key, value, dropout_p, keep_mask):
    return drop_again(grad, query, key, value, lambda keep: np.full_like(keep, 1 / (1 - DROPOUT)))


def dropout_forgotten(grad, query, key, value, dropout_p, keep_mask):
    return drop_again(grad, query, key, value, np.ones_like)


# Masks


def no_mask_gradient(grad, query, key, value, attn_mask):
    return *right(grad, query, key, value, attn_mask=attn_mask)[:3], None


def mask_scaled(grad, query, key, value, attn_mask):
    *others, of_mask = right(grad, query, key, value, attn_mask=attn_mask)
    return *others, of_mask * grad.dtype.type(query.shape[-1] ** -0.5)


mask_not_summed = changed(of_mask=lambda x, shape: x)
mask_averaged = changed(of_mask=lambda x, shape: shrink(x, shape) / (BATCH * L))
mask_of_first = changed(of_mask=lambda x, shape: x[0, :, :1])


def mask_forgotten(grad, query, key, value, attn_mask):
    return right(grad, query, key, value)


def causal_forgotten(grad, query, key, value, is_causal):
    return right(grad, query, key, value)


def causal_forgotten_with_lse(grad, query, key, value, is_causal):
    """As code does that keeps output and lse of the way there."""
    scores, output = planted.scaled(query, key), forward(query, key, value, is_causal=True)
    lse = np.log(np.exp(hide(scores, triangle(scores))).sum(axis=-1, keepdims=True))
    weights, scale = np.exp(scores - lse), query.dtype.type(query.shape[-1] ** -0.5)
    ds = weights * (grad @ value.mT - (grad * output).sum(axis=-1, keepdims=True))
    return scale * (ds @ key), scale * (ds.mT @ query), weights.mT @ grad


# Heads


def grouping(step):
    """Make a backward with another sum over (..., kv_heads, heads of a group, S, D)."""

    def group(x, heads):
        return step(x.reshape(*x.shape[:-3], heads, -1, *x.shape[-2:]), x) if x.ndim > 3 else x

    return changed(group=group)


first_of_group = grouping(lambda grouped, x: grouped[..., 0, :, :])
mean_of_group = grouping(lambda grouped, x: grouped.mean(axis=-3))
groups_not_summed = grouping(lambda grouped, x: x)
groups_tiled = grouping(
    lambda grouped, x: x.reshape(*x.shape[:-3], grouped.shape[-3], grouped.shape[-4], *x.shape[-2:]).sum(axis=-4)
)

# The whole

averaged = ending(lambda *grads: tuple(x / BATCH for x in grads))
negative = ending(lambda *grads: tuple(-x for x in grads))
swapped = ending(lambda of_query, of_key, of_value: (of_key, of_query, of_value))
no_key = ending(lambda of_query, of_key, of_value: (of_query, None, of_value))


def of_the_sum(grad, query, key, value):
    return right(np.ones_like(grad), query, key, value)


class Planted(NamedTuple):
    """A wrong backward, arguments under which it shows, and what is to be said of it."""

    name: str
    backward: Any
    cause: str
    stage: str
    arguments: dict[str, Any] = {}  # noqa: RUF012 (of a NamedTuple)
    inputs: dict[str, Any] = {}  # noqa: RUF012


EQUAL = {"keys": L}
GROUPED = {"kv_heads": 2}
CAUSAL = {"is_causal": True}
DROPPED = {"dropout_p": DROPOUT, "keep_mask": KEEP}
WIDE = {"attn_mask": KEYS_BIAS}
FUNCTIONS = tuple(
    Planted(name, globals()[name], *rest)
    for name, *rest in (
        ("unscaled", "gradient scale", "grad_query"),
        ("scaled_twice", "gradient scale", "grad_query"),
        ("query_unscaled", "gradient scale", "grad_query"),
        ("without_delta", "delta missing", "grad_query"),
        ("like_a_sigmoid", "delta missing", "grad_query"),
        ("mean_for_delta", "delta missing", "grad_query"),
        ("unweighted", "softmax not differentiated", "grad_query"),
        ("straight_through", "softmax not differentiated", "grad_query"),
        ("weights_not_transposed", "products transposed", "grad_value", {}, EQUAL),
        ("grad_for_value", "products transposed", "grad_value", {}, EQUAL),
        ("scores_not_transposed", "products transposed", "grad_key", {}, EQUAL),
        ("key_times_key", "operands swapped", "grad_key", {}, EQUAL),
        ("factor_forgotten", "dropout on the way back", "grad_query", DROPPED),
        ("keep_mask_forgotten", "dropout on the way back", "grad_query", DROPPED),
        ("dropout_forgotten", "dropout on the way back", "grad_query", DROPPED),
        ("no_mask_gradient", "mask's gradient", "grad_attn_mask", WIDE),
        ("mask_scaled", "mask's gradient", "grad_attn_mask", {"attn_mask": BIAS}),
        ("mask_not_summed", "mask's gradient", "grad_attn_mask", WIDE),
        ("mask_averaged", "mask's gradient", "grad_attn_mask", WIDE),
        ("mask_of_first", "mask's gradient", "grad_attn_mask", WIDE),
        ("mask_forgotten", "mask ignored on the way back", "grad_query", {"attn_mask": VISIBLE}),
        ("mask_forgotten", "mask ignored on the way back", "grad_query", {"attn_mask": BIAS}),
        ("causal_forgotten", "mask ignored on the way back", "grad_query", CAUSAL, EQUAL),
        ("causal_forgotten_with_lse", "mask ignored on the way back", "grad_query", CAUSAL, EQUAL),
        ("first_of_group", "groups not summed", "grad_key", {}, GROUPED),
        ("mean_of_group", "groups not summed", "grad_key", {}, GROUPED),
        ("groups_not_summed", "groups not summed", "grad_key", {}, GROUPED),
        ("groups_tiled", "groups not summed", "grad_key", {}, GROUPED),
        ("averaged", "averaged over the batch", "grad_query"),
        ("negative", "grad_output ignored", "grad_query"),
        ("of_the_sum", "grad_output ignored", "grad_query"),
        ("swapped", "gradients swapped", "grad_query", {}, EQUAL),
        ("no_key", "no gradient", "grad_key"),
    )
)


def compare(backward, inputs=(QUERY, KEY, VALUE), **arguments):
    """Compare pyattn.attention, ours, with NumPy's and a backward."""
    return pyattn.compare(pyattn.attention, (forward, backward), *inputs, gradients=True, **arguments)

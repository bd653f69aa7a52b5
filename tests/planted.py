"""Attentions with one mistake each, as people write them, in plain NumPy and the inputs' dtype; and a right one.

FUNCTIONS lists them with arguments under which they show, and what `pyattn.compare` is to say: (cause, stage). The
inputs are of `draw`: two batch entries, four heads, and as many keys as queries where the mistake needs it.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

L, S, D, HEADS, BATCH = 6, 9, 8, 4, 2
RNG = np.random.default_rng(41)
VISIBLE = RNG.random((L, S)) < 0.6
VISIBLE[:, 0] = True
SQUARE = RNG.random((L, L)) < 0.6
SQUARE[:, 0] = SQUARE[0] = True
BIAS = RNG.standard_normal((L, S)).astype(np.float32)
LENGTHS = np.array([7, 4])


def draw(dtype=np.float32, *, keys=S, kv_heads=HEADS, size=1.0):
    rng = np.random.default_rng(42)
    shapes = (HEADS, L), (kv_heads, keys), (kv_heads, keys)
    return [(size * rng.standard_normal((BATCH, *shape, D))).astype(dtype) for shape in shapes]


# What all are made of


def scaled(query, key):
    return query @ key.mT / np.sqrt(query.shape[-1]).astype(query.dtype)


def softmax(x, axis=-1):
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def hide(scores, visible, by=-np.inf):
    return np.where(visible, scores, scores.dtype.type(by))


def triangle(scores, shift=0):
    return np.tri(*scores.shape[-2:], shift, dtype=bool)


def right(query, key, value, *, attn_mask=None, is_causal=False, scale=None):
    scores = scaled(query, key) if scale is None else query @ key.mT * query.dtype.type(scale)
    if is_causal:
        scores = hide(scores, triangle(scores))
    if attn_mask is not None:
        scores = hide(scores, attn_mask) if attn_mask.dtype == bool else scores + attn_mask
    return softmax(scores) @ value


# Scale


def unscaled(query, key, value):
    return softmax(query @ key.mT) @ value


def divided_by_head_dim(query, key, value):
    return softmax(query @ key.mT / query.dtype.type(query.shape[-1])) @ value


def scaled_by_embed_dim(query, key, value):
    return softmax(query @ key.mT / np.sqrt(query.dtype.type(HEADS * D))) @ value


def scaled_by_the_fourth_root(query, key, value):
    return softmax(query @ key.mT / query.dtype.type(D**0.25)) @ value


def multiplied_by_the_root(query, key, value):
    return softmax(query @ key.mT * np.sqrt(query.dtype.type(D))) @ value


def deaf_to_scale(query, key, value, scale):
    return softmax(scaled(query, key)) @ value


# Masks


def inverted(query, key, value, attn_mask):
    return softmax(hide(scaled(query, key), ~attn_mask)) @ value


def deaf_to_masks(query, key, value, attn_mask):
    return softmax(scaled(query, key)) @ value


def added_as_numbers(query, key, value, attn_mask):
    return softmax(scaled(query, key) + attn_mask.astype(query.dtype)) @ value


def read_as_flags(query, key, value, attn_mask):
    return softmax(hide(scaled(query, key), attn_mask != 0)) @ value


def added_before_the_scale(query, key, value, attn_mask):
    return softmax((query @ key.mT + attn_mask) / np.sqrt(query.dtype.type(D))) @ value


def subtracted(query, key, value, attn_mask):
    return softmax(scaled(query, key) - attn_mask) @ value


def multiplied(query, key, value, attn_mask):
    return softmax(scaled(query, key) * attn_mask) @ value


def hidden_after_the_softmax(query, key, value, attn_mask):
    return (softmax(scaled(query, key)) * attn_mask) @ value


def transposed_mask(query, key, value, attn_mask):
    return softmax(hide(scaled(query, key), attn_mask.T)) @ value


# Causal masks, windows, lengths


def not_causal(query, key, value, is_causal):
    return softmax(scaled(query, key)) @ value


def always_causal(query, key, value):
    scores = scaled(query, key)
    return softmax(hide(scores, triangle(scores))) @ value


def one_too_few(query, key, value, is_causal):
    scores = scaled(query, key)
    with np.errstate(invalid="ignore"):  # the first query sees nothing: NaN
        return softmax(hide(scores, triangle(scores, -1))) @ value


def one_too_many(query, key, value, is_causal):
    scores = scaled(query, key)
    return softmax(hide(scores, triangle(scores, 1))) @ value


def from_the_other_corner(query, key, value, is_causal, align):
    scores = scaled(query, key)
    return softmax(hide(scores, triangle(scores, S - L if align == "upper_left" else 0))) @ value


def backwards(query, key, value, is_causal):
    scores = scaled(query, key)
    return softmax(hide(scores, triangle(scores).T)) @ value


def distance(scores):
    return np.arange(scores.shape[-1]) - np.arange(scores.shape[-2])[:, None]


def window_without_its_ends(query, key, value, window, align):
    scores = scaled(query, key)
    return softmax(hide(scores, abs(distance(scores)) < window)) @ value


def window_to_the_other_side(query, key, value, window, align):
    scores = scaled(query, key)
    left, right = window
    return softmax(hide(scores, (distance(scores) >= -right) & (distance(scores) <= left))) @ value


def deaf_to_windows(query, key, value, window, align):
    return softmax(scaled(query, key)) @ value


def deaf_to_query_lengths(query, key, value, query_lengths):
    return softmax(scaled(query, key)) @ value


def one_key_too_many(query, key, value, key_lengths):
    visible = np.arange(S) <= key_lengths[:, None, None, None]
    return softmax(hide(scaled(query, key), visible)) @ value


def deaf_to_lengths(query, key, value, key_lengths):
    return softmax(scaled(query, key)) @ value


# Softmax


def over_queries(query, key, value):
    return softmax(scaled(query, key), axis=-2) @ value


def over_heads(query, key, value):
    return softmax(scaled(query, key), axis=1) @ value


def of_powers_of_two(query, key, value):
    powers = np.exp2(scaled(query, key))
    return powers / powers.sum(axis=-1, keepdims=True) @ value


def without_the_sum(query, key, value):
    return np.exp(scaled(query, key)) @ value


def without_softmax(query, key, value):
    return scaled(query, key) @ value


def with_one_more(query, key, value):
    exponentials = np.exp(scaled(query, key))
    return exponentials / (1 + exponentials.sum(axis=-1, keepdims=True)) @ value


def sigmoid(query, key, value):
    return 1 / (1 + np.exp(-scaled(query, key))) @ value


def overflowing(query, key, value):
    with np.errstate(over="ignore", invalid="ignore"):
        exponentials = np.exp(scaled(query, key))
        return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


# What is multiplied with what


def query_for_key(query, key, value):
    return softmax(scaled(key, query)) @ value


def key_for_value(query, key, value):
    return softmax(scaled(query, value)) @ key


def values_twice(query, key, value):
    return softmax(scaled(query, value)) @ value


def transposed_weights(query, key, value):
    return softmax(scaled(query, key)).mT @ value


def tiled_groups(query, key, value):
    key, value = (np.tile(x, (1, HEADS // x.shape[1], 1, 1)) for x in (key, value))
    return softmax(scaled(query, key)) @ value


def heads_behind(query, key, value):
    return right(query, key, value).swapaxes(1, 2)


# Numbers


def mean_in_empty_rows(query, key, value, attn_mask):
    return softmax(hide(scaled(query, key), attn_mask, by=-1e30)) @ value


def nan_in_empty_rows(query, key, value, attn_mask):
    with np.errstate(invalid="ignore"):
        return right(query, key, value, attn_mask=attn_mask)


def leaking(query, key, value, attn_mask):
    return right(query, key, value, attn_mask=attn_mask)


def halved(query, key, value):
    return right(*(x.astype(np.float16) for x in (query, key, value))).astype(query.dtype)


def halved_inputs(query, key, value):
    return right(*(x.astype(np.float16).astype(x.dtype) for x in (query, key, value)))


def singled(query, key, value):
    return right(*(x.astype(np.float32) for x in (query, key, value))).astype(query.dtype)


def rounded(query, key, value):
    return right(query, key, value).round(4)


def dropping(rate, divisor, seed=None):
    """Weights are returned, too, after dropout; the same in every call where there is a seed."""
    generator = np.random.default_rng(seed)

    def drop(query, key, value):
        weights = softmax(scaled(query, key))
        rng = generator if seed is None else np.random.default_rng(seed)
        weights = weights * (rng.random(weights.shape) >= rate).astype(weights.dtype) / weights.dtype.type(divisor)
        return weights @ value, weights

    return drop


def noisy(query, key, value, counter=itertools.count(1)):  # noqa: B008 (kept from call to call on purpose)
    return right(query, key, value) + value.dtype.type(next(counter) * 1e-3)


# The table


class Planted(NamedTuple):
    """A wrong function, arguments under which it shows, and what is to be said of it."""

    function: Any
    cause: str
    stage: str
    arguments: dict[str, Any] = {}  # noqa: RUF012 (of a NamedTuple)
    inputs: dict[str, Any] = {}  # noqa: RUF012


EQUAL = {"keys": L}
EMPTY = VISIBLE & (np.arange(L)[:, None] != 2)
MASK = {"attn_mask": VISIBLE}
CAUSAL = {"is_causal": True}
FUNCTIONS = (
    Planted(unscaled, "scale missing", "scores"),
    Planted(divided_by_head_dim, "scale squared", "scores"),
    Planted(scaled_by_embed_dim, "scale of another size", "scores"),
    Planted(scaled_by_the_fourth_root, "square root twice", "scores"),
    Planted(multiplied_by_the_root, "scale inverted", "scores"),
    Planted(deaf_to_scale, "scale ignored", "scores", {"scale": 0.6}),
    Planted(inverted, "mask inverted", "scores", MASK),
    Planted(deaf_to_masks, "mask ignored", "scores", MASK),
    Planted(added_as_numbers, "mask added as numbers", "scores", MASK),
    Planted(read_as_flags, "mask read as flags", "scores", {"attn_mask": np.where(VISIBLE, BIAS, 0)}),
    Planted(added_before_the_scale, "mask before the scale", "scores", {"attn_mask": BIAS}),
    Planted(subtracted, "mask subtracted", "scores", {"attn_mask": BIAS}),
    Planted(multiplied, "mask multiplied", "scores", MASK),
    Planted(hidden_after_the_softmax, "mask after the softmax", "weights", MASK),
    Planted(transposed_mask, "mask transposed", "scores", {"attn_mask": SQUARE}, EQUAL),
    Planted(not_causal, "causal missing", "scores", CAUSAL, EQUAL),
    Planted(always_causal, "causal added", "scores", {}, EQUAL),
    Planted(one_too_few, "causal off by one", "scores", CAUSAL, EQUAL),
    Planted(one_too_many, "causal off by one", "scores", CAUSAL, EQUAL),
    Planted(from_the_other_corner, "causal corner", "scores", {**CAUSAL, "align": "upper_left"}),
    Planted(from_the_other_corner, "causal corner", "scores", {**CAUSAL, "align": "lower_right"}),
    Planted(backwards, "causal reversed", "scores", CAUSAL, EQUAL),
    Planted(window_without_its_ends, "window off by one", "scores", {"window": 2, "align": "upper_left"}),
    Planted(window_to_the_other_side, "window reversed", "scores", {"window": (3, 1), "align": "upper_left"}),
    Planted(deaf_to_windows, "window ignored", "scores", {"window": 2, "align": "upper_left"}),
    Planted(deaf_to_query_lengths, "query_lengths ignored", "scores", {"query_lengths": np.array([4, 6])}),
    Planted(one_key_too_many, "key_lengths off by one", "scores", {"key_lengths": LENGTHS}),
    Planted(deaf_to_lengths, "key_lengths ignored", "scores", {"key_lengths": LENGTHS}),
    Planted(over_queries, "softmax over queries", "weights"),
    Planted(over_heads, "softmax over heads", "weights"),
    Planted(of_powers_of_two, "base of the softmax", "weights"),
    Planted(without_the_sum, "not normalised", "weights"),
    Planted(without_softmax, "softmax missing", "weights"),
    Planted(with_one_more, "one more in the sum", "weights"),
    Planted(sigmoid, "sigmoid", "weights"),
    Planted(overflowing, "maximum not subtracted", "weights", {}, {"size": 7.0}),
    Planted(query_for_key, "query and key swapped", "scores", {}, EQUAL),
    Planted(key_for_value, "key and value swapped", "scores", {}),
    Planted(values_twice, "inputs mixed up", "scores"),
    Planted(transposed_weights, "attention transposed", "heads", {}, EQUAL),
    Planted(tiled_groups, "groups tiled", "heads", {}, {"kv_heads": 2}),
    Planted(heads_behind, "output not turned", "output"),
    Planted(mean_in_empty_rows, "empty rows averaged", "weights", {"attn_mask": EMPTY}),
    Planted(nan_in_empty_rows, "empty rows NaN", "weights", {"attn_mask": EMPTY}),
    Planted(halved, "less precision", "scores"),
    Planted(halved_inputs, "less precision", "scores"),
    Planted(singled, "less precision", "scores", {}, {"dtype": np.float64}),
    Planted(rounded, "rounded", "output"),
    Planted(noisy, "random", "output"),
)

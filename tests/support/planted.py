"""Attentions with one mistake each, as people write them, in plain NumPy and the inputs' dtype; and a right one.

FUNCTIONS lists them with arguments under which they show, and what `pyattn.compare` is to say: (cause, stage). The
inputs are of `draw`: two batch entries, four heads, and as many keys as queries where the mistake needs it; plain ones
have neither batch nor heads.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

import pyattn

L, S, D, HEADS, BATCH = 6, 9, 8, 4, 2
RNG = np.random.default_rng(41)
VISIBLE = RNG.random((L, S)) < 0.6
VISIBLE[:, 0] = True
SQUARE = RNG.random((L, L)) < 0.6
SQUARE[:, 0] = SQUARE[0] = True
BIAS = RNG.standard_normal((L, S)).astype(np.float32)
LENGTHS = np.array([7, 4])


def draw(dtype=np.float32, *, keys=S, kv_heads=HEADS, size=1.0, queries=L, plain=False):
    rng = np.random.default_rng(42)
    shapes = (HEADS, queries), (kv_heads, keys), (kv_heads, keys)
    arrays = [(size * rng.standard_normal((BATCH, *shape, D))).astype(dtype) for shape in shapes]
    return [x[0, 0] for x in arrays] if plain else arrays


QUERY, KEY, VALUE = draw()


def compare(theirs, **arguments):
    """Compare pyattn.attention, ours, with theirs on QUERY, KEY and VALUE."""
    return pyattn.compare(pyattn.attention, theirs, QUERY, KEY, VALUE, **arguments)


def with_weights(query, key, value, **arguments):
    return pyattn.attention(query, key, value, need_weights=True, **arguments)


# What all are made of


def scaled(query, key):
    return query @ key.mT / np.sqrt(query.shape[-1]).astype(query.dtype)


def softmax(x, axis=-1):
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def hide(scores, visible, by=-np.inf):
    return np.where(visible, scores, scores.dtype.type(by))


def triangle(scores, k=0):
    return np.tri(*scores.shape[-2:], k, dtype=bool)


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


def scaled_a_little_less(query, key, value):
    return softmax(scaled(query, key) * query.dtype.type(0.99)) @ value


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


def added_where_true(query, key, value, attn_mask):
    return softmax(scaled(query, key) + attn_mask * np.float32(-1e9)) @ value


def hidden_a_little(query, key, value, attn_mask):
    return softmax(hide(scaled(query, key), attn_mask, by=-5)) @ value


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


def twice(query, key, value):
    return softmax(softmax(scaled(query, key))) @ value


def maximum_of_others(query, key, value):
    scores = scaled(query, key)
    exponentials = np.exp(scores - scores.max(axis=-1))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


# What is multiplied with what


def of_columns(query, key, value):
    return right(query.mT, key.mT, value.mT, scale=query.shape[-1] ** -0.5).mT


def of_raw_key(query, key, value):
    return softmax(query @ key / np.sqrt(query.shape[-1]).astype(query.dtype)) @ value


def reshaped_output(query, key, value):
    output = right(query, key, value)
    return output.swapaxes(1, 2).reshape(output.shape)


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


def dropping(rate):
    """Make an attention that drops weights, and returns them as well."""
    rng = np.random.default_rng(0)

    def drop(query, key, value):
        weights = softmax(scaled(query, key))
        weights = weights * (rng.random(weights.shape) >= rate).astype(weights.dtype) / weights.dtype.type(1 - rate)
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
    Planted(divided_by_head_dim, "wrong scale", "scores"),
    Planted(scaled_by_embed_dim, "wrong scale", "scores"),
    Planted(scaled_by_the_fourth_root, "wrong scale", "scores"),
    Planted(multiplied_by_the_root, "wrong scale", "scores"),
    Planted(deaf_to_scale, "wrong scale", "scores", {"scale": 0.6}),
    Planted(inverted, "mask inverted", "scores", MASK),
    Planted(deaf_to_masks, "argument ignored", "scores", MASK),
    Planted(added_as_numbers, "mask misread", "scores", MASK),
    Planted(read_as_flags, "mask misread", "scores", {"attn_mask": np.where(VISIBLE, BIAS, 0)}),
    Planted(added_before_the_scale, "mask misread", "scores", {"attn_mask": BIAS}),
    Planted(subtracted, "mask misread", "scores", {"attn_mask": BIAS}),
    Planted(multiplied, "mask leaks", "scores", MASK),
    Planted(hidden_after_the_softmax, "mask leaks", "scores", MASK),
    Planted(transposed_mask, "mask transposed", "scores", {"attn_mask": SQUARE}, EQUAL),
    Planted(not_causal, "argument ignored", "scores", CAUSAL, EQUAL),
    Planted(always_causal, "causal added", "scores", {}, EQUAL),
    Planted(one_too_few, "off by one", "scores", CAUSAL, EQUAL),
    Planted(one_too_many, "off by one", "scores", CAUSAL, EQUAL),
    Planted(from_the_other_corner, "causal corner", "scores", {**CAUSAL, "align": "upper_left"}),
    Planted(from_the_other_corner, "causal corner", "scores", {**CAUSAL, "align": "lower_right"}),
    Planted(backwards, "causal reversed", "scores", CAUSAL, EQUAL),
    Planted(window_without_its_ends, "off by one", "scores", {"window": 2, "align": "upper_left"}),
    Planted(window_to_the_other_side, "causal reversed", "scores", {"window": (3, 1), "align": "upper_left"}),
    Planted(deaf_to_windows, "argument ignored", "scores", {"window": 2, "align": "upper_left"}),
    Planted(deaf_to_query_lengths, "argument ignored", "scores", {"query_lengths": np.array([4, 6])}),
    Planted(one_key_too_many, "off by one", "scores", {"key_lengths": LENGTHS}),
    Planted(deaf_to_lengths, "argument ignored", "scores", {"key_lengths": LENGTHS}),
    Planted(over_queries, "softmax axis", "weights"),
    Planted(over_heads, "softmax axis", "weights"),
    Planted(of_powers_of_two, "wrong scale", "scores"),
    Planted(without_the_sum, "not a softmax", "weights"),
    Planted(without_softmax, "not a softmax", "weights"),
    Planted(with_one_more, "not a softmax", "weights"),
    Planted(sigmoid, "not a softmax", "weights"),
    Planted(overflowing, "maximum not subtracted", "weights", {}, {"size": 7.0}),
    Planted(query_for_key, "inputs swapped", "scores", {}, EQUAL),
    Planted(key_for_value, "inputs swapped", "scores", {}),
    Planted(values_twice, "inputs swapped", "scores"),
    Planted(transposed_weights, "not weights @ value", "heads", {}, EQUAL),
    Planted(tiled_groups, "groups tiled", "scores", {}, {"kv_heads": 2}),
    Planted(heads_behind, "output transposed", "output"),
    Planted(mean_in_empty_rows, "empty rows", "weights", {"attn_mask": EMPTY}),
    Planted(nan_in_empty_rows, "empty rows", "weights", {"attn_mask": EMPTY}),
    Planted(halved, "less precision", "output"),
    Planted(halved_inputs, "less precision", "output"),
    Planted(singled, "less precision", "output", {}, {"dtype": np.float64}),
    Planted(added_where_true, "mask inverted", "scores", MASK),
    Planted(hidden_a_little, "mask leaks", "scores", MASK),
    Planted(scaled_a_little_less, "wrong scale", "scores"),
    Planted(twice, "not a softmax", "weights"),
    Planted(maximum_of_others, "keepdims missing", "weights", {}, {**EQUAL, "plain": True}),
    Planted(of_columns, "axes misread", "scores", {}, {"keys": D, "queries": D}),
    Planted(of_raw_key, "key not transposed", "scores", {}, {"keys": D}),
    Planted(reshaped_output, "heads reshaped", "output"),
    Planted(rounded, "rounded", "output"),
    Planted(noisy, "random", "output"),
)

"""More attentions with one mistake each, as in planted: things in another order, and errors with a pattern."""

from __future__ import annotations

import numpy as np
from planted import MASK, Planted, hide, right, scaled, softmax


def added_where_true(query, key, value, attn_mask):
    return softmax(scaled(query, key) + attn_mask * np.float32(-1e9)) @ value


def hidden_a_little(query, key, value, attn_mask):
    return softmax(hide(scaled(query, key), attn_mask, by=-5)) @ value


def heads_reversed(query, key, value):
    return right(query, key, value)[:, ::-1]


def key_heads_rolled(query, key, value):
    return right(query, *(np.roll(x, 1, axis=1) for x in (key, value)))


def values_reversed(query, key, value):
    return right(query, key, value[..., ::-1, :])


def by_a_factor(query, key, value):
    return right(query, key, value) * value.dtype.type(1.001)


def with_a_summand(query, key, value):
    return right(query, key, value) + value.dtype.type(1e-3)


def with_an_epsilon(query, key, value):
    exponentials = np.exp(scaled(query, key))
    return exponentials / (exponentials.sum(axis=-1, keepdims=True) + value.dtype.type(1e-2)) @ value


def scaled_a_little_less(query, key, value):
    return softmax(scaled(query, key) * query.dtype.type(0.99)) @ value


PATTERNS = (
    Planted(added_where_true, "mask inverted", "scores", MASK),
    Planted(hidden_a_little, "mask leaks", "scores", MASK),
    Planted(heads_reversed, "heads in another order", "heads"),
    Planted(key_heads_rolled, "key heads in another order", "heads"),
    Planted(values_reversed, "values in another order", "heads"),
    Planted(by_a_factor, "output multiplied", "output"),
    Planted(with_a_summand, "output shifted", "output"),
    Planted(with_an_epsilon, "one more in the sum", "weights"),
    Planted(scaled_a_little_less, "scale of another size", "scores"),
)

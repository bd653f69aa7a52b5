"""Attentions as people write them, each with a mistake, and what check has to say of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Wrong(NamedTuple):
    """A function, the group of cases that finds the mistake, and words of the cause."""

    function: Callable
    group: str
    cause: str
    options: dict  # of check


WRONG: dict[str, Wrong] = {}


def wrong(group, cause, **options):
    def note(function):
        WRONG[function.__name__] = Wrong(function, group, cause, options)
        return function

    return note


def softmax(x, axis=-1):
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def scores_of(query, key):
    return query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])


def triangle(scores, k=0):
    return np.tri(*scores.shape[-2:], k=k, dtype=bool)


# The scale


@wrong("plain", "the scores are not scaled")
def unscaled(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2)) @ value


@wrong("plain", "divided by head_dim, or by its square root twice")
def divided_by_head_dim(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / query.shape[-1]) @ value


@wrong("plain", "multiplied by sqrt(head_dim), not divided")
def multiplied_by_the_root(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) * math.sqrt(query.shape[-1])) @ value


@wrong("plain", "divided by the square root of a length, not of head_dim")
def scaled_by_the_length(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / math.sqrt(key.shape[-2])) @ value


@wrong("v_dim is not head_dim", "divided by sqrt(v_dim)")
def scaled_by_v_dim(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / math.sqrt(value.shape[-1])) @ value


@wrong("plain", "the scale is applied after the softmax")
def scaled_too_late(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2)) / math.sqrt(query.shape[-1]) @ value


@wrong("plain", "the scores are divided by sqrt(head_dim): multiply query @ key.T by 1", scale=1)
def scaled_where_the_article_is_not(query, key, value):
    return softmax(scores_of(query, key)) @ value


@wrong("scale", "scaled twice, by the argument and by")
def scaled_twice(query, key, value, scale=None):
    return softmax(scores_of(query, key) * (1 if scale is None else scale)) @ value


@wrong("scale", "the argument scale is not used")
def deaf_to_scale(query, key, value, scale=None):
    return softmax(scores_of(query, key)) @ value


@wrong("scale", "scores are divided by scale")
def divided_by_scale(query, key, value, scale=None):
    return softmax(query @ key.swapaxes(-1, -2) / (scale or math.sqrt(query.shape[-1]))) @ value


# The softmax


@wrong("plain", "the softmax runs over the queries")
def softmax_over_queries(query, key, value):
    return softmax(scores_of(query, key), axis=-2) @ value


@wrong("batch axis", "the softmax runs over axis -3, heads or a batch")
def softmax_over_the_batch(query, key, value):
    return softmax(scores_of(query, key), axis=-1 if query.ndim < 3 else -3) @ value


@wrong("plain", "the softmax runs over the whole array")
def softmax_over_everything(query, key, value):
    exponentials = np.exp(scores_of(query, key))
    return exponentials / exponentials.sum() @ value


@wrong("plain", "there is no softmax")
def no_softmax(query, key, value):
    return scores_of(query, key) @ value


@wrong("plain", "the weights do not sum to 1")
def not_normalised(query, key, value):
    return np.exp(scores_of(query, key)) @ value


@wrong("plain", "the sum of the exponentials has lost its axis")
def sum_without_keepdims(query, key, value):
    exponentials = np.exp(scores_of(query, key))
    return exponentials / exponentials.sum(axis=-1) @ value


@wrong("plain", "the maximum of the scores has lost its axis")
def maximum_without_keepdims(query, key, value):
    scores = scores_of(query, key)
    exponentials = np.exp(scores - scores.max(axis=-1))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


@wrong("plain", "the softmax is taken twice")
def softmax_twice(query, key, value):
    return softmax(softmax(scores_of(query, key))) @ value


@wrong("plain", "the weighted values are averaged")
def averaged(query, key, value):
    return (softmax(scores_of(query, key))[..., np.newaxis] * value[..., np.newaxis, :, :]).mean(axis=-2)


@wrong("large scores", "subtract each row's maximum")
def overflows(query, key, value):
    exponentials = np.exp(scores_of(query, key))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


@wrong("large scores", "what is subtracted has to be each row's own maximum")
def one_maximum_for_all_rows(query, key, value):
    scores = scores_of(query, key)
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


# What is multiplied with what


@wrong("plain", "query and key are swapped")
def swapped(query, key, value):
    return softmax(scores_of(key, query)) @ value


@wrong("plain", "the weighted sum is of keys")
def keys_for_values(query, key, value):
    return softmax(scores_of(query, key)) @ key


@wrong("plain", "key is not transposed")
def key_as_it_is(query, key, value):
    return softmax(query @ key / math.sqrt(query.shape[-1])) @ value


@wrong("plain", "key is reshaped")
def key_reshaped(query, key, value):
    turned = key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2])
    return softmax(query @ turned / math.sqrt(query.shape[-1])) @ value


@wrong("plain", "the weights are transposed")
def weights_transposed(query, key, value):
    return softmax(scores_of(query, key)).swapaxes(-1, -2) @ value


@wrong("plain", "the weights are returned")
def weights_returned(query, key, value):
    return softmax(scores_of(query, key))


@wrong("plain", "inputs are read as columns")
def columns(query, key, value):
    return value @ softmax(key.swapaxes(-1, -2) @ query / math.sqrt(query.shape[-2]), axis=-2)


@wrong("plain", "inputs are read as columns", scale=1)
def columns_of_an_article(query, key, value):
    return value @ softmax(key.swapaxes(-1, -2) @ query, axis=-2)


@wrong("plain", "the output is transposed")
def output_transposed(query, key, value):
    return (softmax(scores_of(query, key)) @ value).swapaxes(-1, -2)


# Batches and heads


@wrong("batch axis", "the softmax runs over the keys of all entries")
def batch_flattened(query, key, value):
    shape = (*query.shape[:-1], value.shape[-1])
    query, key, value = (x.reshape(-1, x.shape[-1]) for x in (query, key, value))
    return (softmax(scores_of(query, key)) @ value).reshape(shape)


@wrong("batch axis", "meets the first entry's keys and values")
def first_entry_for_all(query, key, value):
    return softmax(scores_of(query, key if key.ndim < 3 else key[:1])) @ (value if value.ndim < 3 else value[:1])


@wrong("batch and heads axes", "in the output, reshape mixes heads and positions")
def heads_mixed(query, key, value):
    output = softmax(scores_of(query, key)) @ value
    return output.swapaxes(-3, -2).reshape(output.shape) if output.ndim > 3 else output


@wrong("batch and heads axes", "axes are read as (batch, length, heads, dim)")
def heads_last(query, key, value):
    if query.ndim < 4:
        return softmax(scores_of(query, key)) @ value
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return (softmax(scores_of(query, key)) @ value).swapaxes(1, 2)


@wrong("batch and heads axes", "the output's axes are (batch, length, heads, dim)")
def heads_not_swapped_back(query, key, value):
    output = softmax(scores_of(query, key)) @ value
    return output.swapaxes(-3, -2) if output.ndim > 3 else output


@wrong("grouped heads", "use numpy.repeat, not numpy.tile")
def heads_tiled(query, key, value, enable_gqa=False):
    if query.ndim > 3:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (np.tile(x, (1, groups, 1, 1)) for x in (key, value))
    return softmax(scores_of(query, key)) @ value


# Memory, rounding, and other ways


@wrong("views and read-only arrays", "memory is read without regard to strides")
def memory_taken_for_granted(query, key, value):
    """As code in C does that is handed a pointer and no strides."""
    *leading, length, dim = key.shape
    turned = np.lib.stride_tricks.as_strided(
        key, (*leading, dim, length), (*key.strides[:-2], key.itemsize, key.itemsize * dim)
    )
    return softmax(query @ turned / math.sqrt(dim)) @ value


@wrong("plain", "something is computed in float16")
def half_precision(query, key, value):
    return softmax(scores_of(query, key)).astype(np.float16).astype(value.dtype) @ value


@wrong("float64", "something is computed in float32")
def single_precision(query, key, value):
    return softmax(scores_of(query, key)).astype(np.float32).astype(value.dtype) @ value


@wrong("inputs unchanged", "query is changed in place")
def in_place(query, key, value):
    query /= math.sqrt(query.shape[-1])
    return softmax(query @ key.swapaxes(-1, -2)) @ value


@wrong("plain", "two equal calls give different results")
def dropout_on(query, key, value, rng=np.random.default_rng(0)):  # noqa: B008
    weights = softmax(scores_of(query, key))
    return weights * (rng.random(weights.shape) < 0.9) / 0.9 @ value

"""Attentions as people write them, each with a mistake, and what check has to say of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from support.planted import softmax


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


def scores_of(query, key):
    return query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1])


# The scale


@wrong("plain", "your function does not scale the scores")
def unscaled(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2)) @ value


@wrong("plain", "divides the scores by head_dim, not by its square root")
def divided_by_head_dim(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / query.shape[-1]) @ value


@wrong(
    "plain",
    "divides the scores by the number that they are to be multiplied by: multiply the scores by 1 / sqrt(head_dim)",
)
def multiplied_by_the_root(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) * math.sqrt(query.shape[-1])) @ value


@wrong("plain", "scales the scores by 1 / sqrt(query's length)")
def scaled_by_the_length(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / math.sqrt(key.shape[-2])) @ value


@wrong("v_dim is not head_dim", "scales the scores by 1 / sqrt(v_dim)")
def scaled_by_v_dim(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2) / math.sqrt(value.shape[-1])) @ value


@wrong("plain", "applies the scale after the softmax")
def scaled_too_late(query, key, value):
    return softmax(query @ key.swapaxes(-1, -2)) / math.sqrt(query.shape[-1]) @ value


@wrong("plain", "ignores scale, and scales the scores by 0.5774: multiply the scores by scale=1", scale=1)
def scaled_where_the_article_is_not(query, key, value):
    return softmax(scores_of(query, key)) @ value


@wrong("scale", "scales the scores twice, by scale and by 0.5774")
def scaled_twice(query, key, value, scale=None):
    return softmax(scores_of(query, key) * (1 if scale is None else scale)) @ value


@wrong("scale", "ignores scale, and scales the scores by 0.5774: multiply the scores by scale=1")
def deaf_to_scale(query, key, value, scale=None):
    return softmax(scores_of(query, key)) @ value


@wrong("scale", "divides the scores by the number that they are to be multiplied by: multiply the scores by scale=")
def divided_by_scale(query, key, value, scale=None):
    return softmax(query @ key.swapaxes(-1, -2) / (scale or math.sqrt(query.shape[-1]))) @ value


# The softmax


@wrong("plain", "takes the softmax over the queries")
def softmax_over_queries(query, key, value):
    return softmax(scores_of(query, key), axis=-2) @ value


@wrong("batch axis", "takes the softmax over the batch")
def softmax_over_the_batch(query, key, value):
    return softmax(scores_of(query, key), axis=-1 if query.ndim < 3 else -3) @ value


@wrong("plain", "takes the softmax over all scores at once")
def softmax_over_everything(query, key, value):
    exponentials = np.exp(scores_of(query, key))
    return exponentials / exponentials.sum() @ value


@wrong("plain", "multiplies the values by the scores themselves")
def no_softmax(query, key, value):
    return scores_of(query, key) @ value


@wrong("plain", "does not divide the exponentials by their sum")
def not_normalized(query, key, value):
    return np.exp(scores_of(query, key)) @ value


@wrong("plain", "divides each row by the sums of other rows: pass keepdims=True")
def sum_without_keepdims(query, key, value):
    exponentials = np.exp(scores_of(query, key))
    return exponentials / exponentials.sum(axis=-1) @ value


@wrong("plain", "subtracts the maxima of other rows: pass keepdims=True")
def maximum_without_keepdims(query, key, value):
    scores = scores_of(query, key)
    exponentials = np.exp(scores - scores.max(axis=-1))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


@wrong("plain", "takes the softmax twice")
def softmax_twice(query, key, value):
    return softmax(softmax(scores_of(query, key))) @ value


@wrong(
    "large scores",
    "takes exp(score) without subtracting the row's own maximum, so it overflows or underflows: subtract",
)
def overflows(query, key, value):
    exponentials = np.exp(scores_of(query, key))
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


@wrong("large scores", "takes exp(score) without subtracting the row's own maximum")
def one_maximum_for_all_rows(query, key, value):
    scores = scores_of(query, key)
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum(axis=-1, keepdims=True) @ value


# What is multiplied with what


@wrong("plain", "takes key for query and query for key")
def swapped(query, key, value):
    return softmax(scores_of(key, query)) @ value


@wrong("plain", "takes key for value")
def keys_for_values(query, key, value):
    return softmax(scores_of(query, key)) @ key


@wrong("plain", "does not transpose key")
def key_as_it_is(query, key, value):
    return softmax(query @ key / math.sqrt(query.shape[-1])) @ value


@wrong("plain", "reshapes key instead of transposing it, which mixes its numbers")
def key_reshaped(query, key, value):
    turned = key.reshape(*key.shape[:-2], key.shape[-1], key.shape[-2])
    return softmax(query @ turned / math.sqrt(query.shape[-1])) @ value


@wrong("plain", "multiplies the transposed weights")
def weights_transposed(query, key, value):
    return softmax(scores_of(query, key)).swapaxes(-1, -2) @ value


@wrong("plain", "returns the weights")
def weights_returned(query, key, value):
    return softmax(scores_of(query, key))


@wrong("plain", "reads inputs as columns")
def columns(query, key, value):
    return value @ softmax(key.swapaxes(-1, -2) @ query / math.sqrt(query.shape[-2]), axis=-2)


@wrong("plain", "reads inputs as columns", scale=1)
def columns_of_an_article(query, key, value):
    return value @ softmax(key.swapaxes(-1, -2) @ query, axis=-2)


@wrong("plain", "transposes the output")
def output_transposed(query, key, value):
    return (softmax(scores_of(query, key)) @ value).swapaxes(-1, -2)


# Batches and heads


@wrong("batch and heads axes", "mixes heads and positions of its output by reshape")
def heads_mixed(query, key, value):
    output = softmax(scores_of(query, key)) @ value
    return output.swapaxes(-3, -2).reshape(output.shape) if output.ndim > 3 else output


@wrong("batch and heads axes", "reads axes as (batch, length, heads, dim)")
def heads_last(query, key, value):
    if query.ndim < 4:
        return softmax(scores_of(query, key)) @ value
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return (softmax(scores_of(query, key)) @ value).swapaxes(1, 2)


@wrong("batch and heads axes", "returns the output with the two axes before the last swapped")
def heads_not_swapped_back(query, key, value):
    output = softmax(scores_of(query, key)) @ value
    return output.swapaxes(-3, -2) if output.ndim > 3 else output


@wrong("grouped heads", "numpy.repeat, not numpy.tile")
def heads_tiled(query, key, value, enable_gqa=False):
    if query.ndim > 3:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (np.tile(x, (1, groups, 1, 1)) for x in (key, value))
    return softmax(scores_of(query, key)) @ value


# Scales that are not on a list


@wrong("plain", "scales the scores by 0.576773: multiply the scores by 0.57735")
def scaled_a_little_less(query, key, value):
    return softmax(scores_of(query, key) * np.float32(0.999)) @ value


@wrong("plain", "gives all keys the same weight")
def mean_of_values(query, key, value):
    return np.repeat(value.mean(axis=-2, keepdims=True), query.shape[-2], axis=-2)


# Memory, rounding, and other ways


@wrong("views and read-only arrays", "memory is read without regard to strides")
def memory_taken_for_granted(query, key, value):
    """As code in C does that is handed a pointer and no strides."""
    *leading, length, dim = key.shape
    turned = np.lib.stride_tricks.as_strided(
        key, (*leading, dim, length), (*key.strides[:-2], key.itemsize, key.itemsize * dim)
    )
    return softmax(query @ turned / math.sqrt(dim)) @ value


@wrong("plain", "has errors of the size of float16's")
def half_precision(query, key, value):
    return softmax(scores_of(query, key)).astype(np.float16).astype(value.dtype) @ value


@wrong("float64", "has errors of the size of float32's")
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

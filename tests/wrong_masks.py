"""Attentions with mistakes in their masks; see wrong_attentions."""

from __future__ import annotations

import math

import numpy as np
from wrong_attentions import scores_of, softmax, triangle, wrong

# Masks


def with_mask(group, cause, **options):
    """Note a function of (scores, mask) that returns weights."""

    def note(weigh):
        def attention(query, key, value, mask=None):
            scores = scores_of(query, key)
            return (softmax(scores) if mask is None else weigh(scores, mask)) @ value

        attention.__name__ = weigh.__name__
        return wrong(group, cause, **options)(attention)

    return note


@with_mask("bool masks", "the mask is inverted")
def mask_inverted(scores, mask):
    return softmax(np.where(mask, -1e9, scores))


@with_mask("bool masks", "the mask is inverted")
def mask_inverted_with_infinity(scores, mask):
    return softmax(np.where(mask, -np.inf, scores))


@with_mask("bool masks", "the mask makes no difference")
def mask_unused(scores, mask):
    return softmax(scores)


@with_mask("bool masks", "the mask makes no difference: it is not used, or what it adds is tiny")
def mask_with_a_typo(scores, mask):
    return softmax(scores + (1 - mask) * -1e-9)


@with_mask("bool masks", "the mask is added to the scores as 0 and 1")
def mask_added(scores, mask):
    return softmax(scores + mask)


@with_mask("bool masks", "the mask is multiplied with the scores")
def mask_multiplied(scores, mask):
    return softmax(scores * mask)


@with_mask("bool masks", "the mask is applied after the softmax")
def mask_after_the_softmax(scores, mask):
    return softmax(scores) * mask


@with_mask("bool masks", "what the mask hides gets a score such as -1e4")
def mask_leaks(scores, mask):
    return softmax(np.where(mask, scores, -10))


@with_mask("bool masks", "what the mask hides gets a score such as -1e4")
def mask_leaks_with_large_scores(scores, mask):
    return softmax(np.where(mask, scores, -1e4))


@with_mask("float masks", "the float mask is scaled with the scores")
def bias_scaled(scores, mask):
    return softmax(np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask / math.sqrt(8))


@wrong("float masks", "the float mask is not used")
def bias_unused(query, key, value, bias=None):
    return softmax(scores_of(query, key)) @ value


@wrong("float masks", "the float mask is subtracted")
def bias_subtracted(query, key, value, bias=None):
    return softmax(scores_of(query, key) - (0 if bias is None else bias)) @ value


@with_mask("empty rows", "averages all values", strict=True)
def empty_rows_averaged(scores, mask):
    return softmax(np.where(mask, scores, -1e9))


@with_mask("empty rows", "becomes NaN", strict=True)
def empty_rows_nan(scores, mask):
    return softmax(np.where(mask, scores, -np.inf))


@with_mask("NaN under a mask", "a masked NaN reaches the output", strict=True)
def masked_nan_leaks(scores, mask):
    return np.where(mask.any(axis=-1, keepdims=True), np.nan_to_num(softmax(np.where(mask, scores, -np.inf))), 0)


# Causal masks


def with_causal(group, cause, **options):
    """Note a function of scores that returns causal weights."""

    def note(weigh):
        def attention(query, key, value, is_causal=False):
            scores = scores_of(query, key)
            return (weigh(scores) if is_causal else softmax(scores)) @ value

        attention.__name__ = weigh.__name__
        return wrong(group, cause, **options)(attention)

    return note


@with_causal("causal", "off by one and hides a query's own key")
def causal_hides_itself(scores):
    return softmax(np.where(triangle(scores, k=-1), scores, -1e9))


@with_causal("causal", "off by one and shows the next key")
def causal_shows_the_next(scores):
    return softmax(np.where(triangle(scores, k=1), scores, -np.inf))


@with_causal("causal", "hides the past, not the future")
def causal_upside_down(scores):
    return softmax(np.where(triangle(scores).T, scores, -np.inf))


@with_causal("causal", "the causal mask is applied after the softmax")
def causal_after_the_softmax(scores):
    return softmax(scores) * triangle(scores)


@with_causal("causal", "the causal mask makes no difference")
def causal_unused(scores):
    return softmax(scores)


@with_causal("causal, lengths differ", "aligned at the lower right corner, and align asks", align="upper_left")
def causal_at_the_lower_right(scores):
    return softmax(np.where(triangle(scores, k=scores.shape[-1] - scores.shape[-2]), scores, -np.inf))


@with_causal("causal, lengths differ", "aligned at the upper left corner, and align asks", align="lower_right")
def causal_at_the_upper_left(scores):
    return softmax(np.where(triangle(scores), scores, -np.inf))


@wrong("plain", "a causal mask is applied that nobody asked for")
def always_causal(query, key, value):
    scores = scores_of(query, key)
    return softmax(np.where(triangle(scores), scores, -np.inf)) @ value

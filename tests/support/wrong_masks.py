"""Attentions with mistakes in their masks; see wrong_attentions."""

from __future__ import annotations

import math

import numpy as np
from support.planted import softmax, triangle
from support.wrong_attentions import scores_of, wrong

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


@with_mask("bool masks", "reads attn_mask the other way round")
def mask_inverted(scores, mask):
    return softmax(np.where(mask, -1e9, scores))


@with_mask("bool masks", "reads attn_mask the other way round")
def mask_inverted_with_infinity(scores, mask):
    return softmax(np.where(mask, -np.inf, scores))


@with_mask("bool masks", "ignores attn_mask")
def mask_unused(scores, mask):
    return softmax(scores)


@with_mask("bool masks", "a mask that adds -1e-9, not -1e9, has no effect")
def mask_with_a_typo(scores, mask):
    return softmax(scores + (1 - mask) * -1e-9)


@with_mask("bool masks", "adds attn_mask to the scores as 0 and 1")
def mask_added(scores, mask):
    return softmax(scores + mask)


@with_mask("bool masks", "sets masked scores to 0")
def mask_multiplied(scores, mask):
    return softmax(scores * mask)


@with_mask("bool masks", "masks weights after the softmax")
def mask_after_the_softmax(scores, mask):
    return softmax(scores) * mask


@with_mask("bool masks", "sets masked scores to about -10,")
def mask_leaks(scores, mask):
    return softmax(np.where(mask, scores, -10))


@with_mask("bool masks", "sets masked scores to about -10000,")
def mask_leaks_with_large_scores(scores, mask):
    return softmax(np.where(mask, scores, -1e4))


@with_mask("float masks", "adds attn_mask to the scores before they are scaled")
def bias_scaled(scores, mask):
    return softmax(np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask / math.sqrt(8))


@wrong("float masks", "ignores attn_mask")
def bias_unused(query, key, value, bias=None):
    return softmax(scores_of(query, key)) @ value


@wrong("float masks", "subtracts attn_mask")
def bias_subtracted(query, key, value, bias=None):
    return softmax(scores_of(query, key) - (0 if bias is None else bias)) @ value


@with_mask("empty rows", "gives the mean of all values", strict=True)
def empty_rows_averaged(scores, mask):
    return softmax(np.where(mask, scores, -1e9))


@with_mask("empty rows", "gives NaN where a query has nothing", strict=True)
def empty_rows_nan(scores, mask):
    return softmax(np.where(mask, scores, -np.inf))


@with_mask("NaN under a mask", "lets a NaN or infinity of a masked key", strict=True)
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


@with_causal("causal", "does not let a query attend to its own position")
def causal_hides_itself(scores):
    return softmax(np.where(triangle(scores, k=-1), scores, -1e9))


@with_causal("causal", "lets a query attend to the position after its")
def causal_shows_the_next(scores):
    return softmax(np.where(triangle(scores, k=1), scores, -np.inf))


@with_causal("causal", "lets a query attend to later positions")
def causal_upside_down(scores):
    return softmax(np.where(triangle(scores).T, scores, -np.inf))


@with_causal("causal", "masks weights after the softmax")
def causal_after_the_softmax(scores):
    return softmax(scores) * triangle(scores)


@with_causal("causal", "is not causal")
def causal_unused(scores):
    return softmax(scores)


@with_causal(
    "causal, lengths differ",
    "at the lower right corner, not the upper left one",
    align="upper_left",
)
def causal_at_the_lower_right(scores):
    return softmax(np.where(triangle(scores, k=scores.shape[-1] - scores.shape[-2]), scores, -np.inf))


@with_causal(
    "causal, lengths differ",
    "at the upper left corner, not the lower right one",
    align="lower_right",
)
def causal_at_the_upper_left(scores):
    return softmax(np.where(triangle(scores), scores, -np.inf))


@wrong("plain", "is causal: leave the causal mask out, or make it an argument")
def always_causal(query, key, value):
    scores = scores_of(query, key)
    return softmax(np.where(triangle(scores), scores, -np.inf)) @ value


# Masks read as numbers


@with_mask("float masks", "your function reads the numbers of attn_mask as flags, 1 = attend")
def mask_of_flags(scores, mask):
    """Right for True and False, 1 and 0; what is added to scores is another thing."""
    return softmax(scores + (1 - mask) * -1e9)


@with_mask("float masks", "your function reads the numbers of attn_mask as flags, 1 = attend")
def mask_of_flags_in_float32(scores, mask):
    return softmax(scores + (1 - mask.astype(np.float32)) * np.float32(-1e9))


@with_mask("bool masks", "reads attn_mask the other way round, True = blocked")
def mask_of_blocked_flags(scores, mask):
    return softmax(scores + mask * -1e9)

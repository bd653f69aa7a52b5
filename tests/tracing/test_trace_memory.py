"""How much memory a trace takes, and what is made of it."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

import pyattn


def peak_of(call):
    """What a call returns, and the most bytes that it took meanwhile."""
    tracemalloc.start()
    try:
        returned = call()
        return returned, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def large_trace(score="dot", normalize="softmax", features=8, **options):
    x, weight = np.ones((2048, features)), np.eye(features)
    weights = {"bilinear": np.eye(features), "additive": np.ones(features)}
    return pyattn.trace(
        x, weight, weight, weight, score=score, score_weight=weights.get(score), normalize=normalize, **options
    )


@pytest.mark.parametrize(
    ("score", "normalize"),
    [
        ("dot", "softmax"),
        *(pytest.param(x, "softmax", marks=pytest.mark.slow) for x in ("cosine", "distance", "bilinear", "additive")),
        pytest.param("dot", "sigmoid", marks=pytest.mark.slow),
        ("dot", "sparsemax"),
    ],
)
def test_a_trace_of_2048_tokens_stays_under_200_megabytes(score, normalize):
    """With both masks, rounded, and with text and page made of it."""
    mask = np.full((2048, 2048), 0.5)

    def make():
        trace = large_trace(score, normalize, is_causal=True, attn_mask=mask, round_weights=3)
        return trace, (str(trace), trace.to_markdown(), trace._repr_html_())

    (trace, texts), most = peak_of(make)
    assert trace.weights.shape == (2048, 2048)
    assert all(texts)
    assert most < 200e6


@pytest.mark.slow
def test_the_dict_of_2048_tokens_is_little_more_than_its_numbers():
    """As lists, scores and weights take a pointer and a float, 32 bytes, each; weighted values, 8 times these."""
    trace = large_trace()
    entries, most = peak_of(trace.to_dict)
    assert entries["weighted_values"] is None
    assert most < 1.2 * 2 * 32 * 2048**2


@pytest.mark.parametrize("keys", [64, 65])
def test_a_dict_leaves_out_weighted_values_beyond_the_limit(keys):
    trace = pyattn.trace_attention(np.ones((64, 1)), np.ones((keys, 1)), np.ones((keys, 64)))
    listed = json.loads(json.dumps(trace.to_dict()))["weighted_values"]
    assert (listed is not None) == (keys == 64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "round_weights": 2}], ids=str)
def test_weighted_values_are_made_in_one_array(options):
    trace = large_trace(**options)
    weighted, most = peak_of(lambda: trace.weighted_values)
    assert weighted.nbytes == 2**28  # all that is allowed
    assert most < 1.3 * weighted.nbytes

"""Thousands of drawn cases: gradients of attention against PyTorch's autograd in float64, at every level.

The cases are those of test_drawn.py, whose forward pass they repeat: masks of all kinds, windows, lengths, shared heads
and batch axes, layouts, storage. Each gradient is compared in units of its own bound (support.gradient_bounds).
"""

from __future__ import annotations

import functools
from math import prod

import numpy as np
import pytest
from support import drawing, gradient_bounds, torch_twin
from support.helpers import EVERYTHING

import pyattn
from pyattn import _core
from pyattn.functional import attention_backward

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")]

BAR = 8.0
MOST_TRIPLES = 2_000_000  # of query, key and feature
SCORES = ("dot", "cosine", "distance", "additive")
OPTIONS = ("attn_mask", "is_causal", "align", "scale", "window", "key_lengths", "query_lengths", "enable_gqa", "layout")


@pytest.fixture(scope="module")
def worst(summary):
    """The worst ratios, by (score, level, gradient, dtype); printed in the summary."""
    worst: dict = {}
    yield worst
    cases = worst.pop("cases", 0)
    summary[f"drawn gradients: {cases} cases"] = [
        f"worst ratio of {' '.join(place):42} {ratio:6.2f}  (case {index})"
        for place, (ratio, index) in sorted(worst.items())
    ]


def is_judged(case, score="dot"):
    """Tell whether PyTorch computes the same, and in good time: its distances and tanh take memory for all triples.

    It does not compute the same with denormals, which pyattn takes for 0.
    """
    triples = prod(case.batch) * (case.heads or 1) * case.q_len * case.kv_len * case.head_dim
    return (
        torch_twin.has_case(case)
        and (case.family, case.dtype) != ("tiny", "float32")
        and (score in ("dot", "cosine") or triples <= MOST_TRIPLES)
    )


@functools.cache
def chosen(score):
    """All such cases; in `make test` one in 20 of them, or fewer of the scores that share their code with others."""
    cases = [case for case in map(drawing.draw, range(drawing.CASES)) if is_judged(case, score)]
    return cases if EVERYTHING else cases[5::20] if score == "dot" else cases[5::40]


@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("score", SCORES)
def test_gradients_are_within_their_bounds(score, part, torch, levels, worst):
    failures = []
    for case in chosen(score)[part::20]:
        inputs = drawing.build(case)
        rng = np.random.default_rng([drawing.SEED, case.index, 2])
        shape = pyattn.attention(*inputs[:3], **inputs.arguments).shape
        grad_output = rng.standard_normal(shape).astype(case.dtype)
        weight = rng.standard_normal(case.head_dim).astype(case.dtype) if score == "additive" else None
        expected = torch_twin.gradients(torch, case, inputs, grad_output.astype(np.float64), score, weight)
        units = gradient_bounds.units(torch, case, inputs, grad_output.astype(np.float64), score, weight)
        worst["cases"] = worst.get("cases", 0) + 1
        for level in levels:
            _core._set_isa(level)
            found = gradients_of(case, inputs, grad_output, list(expected), score=score, score_weight=weight)
            for name, gradient in found.items():
                error, unit = np.abs(gradient - expected[name]), units[name]
                if name == "attn_mask" and gradient.dtype == np.float16:  # a mask in float16: so is its gradient
                    error[np.isinf(gradient) & (np.abs(expected[name]) > np.finfo(np.float16).max)] = 0
                    unit = unit + 2.0**-11 * np.abs(expected[name]) + 2.0**-25
                ratio = float(np.max(error / np.where(error == 0, 1, unit), initial=0))
                place = score, level, name, case.dtype
                worst[place] = max(worst.get(place, (0.0, 0)), (ratio, case.index))
                if not (np.shape(gradient) == expected[name].shape and ratio <= BAR):
                    failures.append(f"{score}, {level}: {name}, ratio {ratio:.3g}: {case}")
    assert not failures, "\n".join(failures[:8])


def gradients_of(case, inputs, grad_output, names, **of_score):
    """Call pyattn forwards and backwards."""
    options = {name: inputs.arguments[name] for name in OPTIONS if name in inputs.arguments} | of_score
    output, lse = pyattn.attention(*inputs[:3], **inputs.arguments, **of_score, need_lse=True)
    found = attention_backward(
        grad_output, *inputs[:3], output, lse, **options, need=names, num_threads=case.num_threads
    )
    return {name: getattr(found, name) for name in names}


@pytest.mark.parametrize("score", SCORES)
def test_the_cases_are_many(score):
    assert sum(is_judged(case, score) for case in map(drawing.draw, range(drawing.CASES))) >= 1000

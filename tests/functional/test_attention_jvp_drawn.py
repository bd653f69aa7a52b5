"""Thousands of drawn cases: attention's tangents against PyTorch's forward mode in float64, at every level.

The cases are those of test_attention_backward_drawn.py. Each element is compared in units of its own bound
(support.gradient_bounds).
"""

from __future__ import annotations

import functools
from math import prod

import numpy as np
import pytest
from support import drawing, gradient_bounds, torch_twin
from support.helpers import EVERYTHING, assert_same_bits

import pyattn
from pyattn import _core
from pyattn.functional import attention_jvp

pytestmark = [
    pytest.mark.peers,
    pytest.mark.filterwarnings("ignore::pyattn.MaskWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # torch.func.jvp uses it
]

BAR = 4.0
MOST_TRIPLES = 2_000_000  # of query, key and feature
SCORES = ("dot", "cosine", "distance", "additive")
OPTIONS = ("attn_mask", "is_causal", "align", "scale", "window", "key_lengths", "query_lengths", "enable_gqa", "layout")


@pytest.fixture(scope="module")
def worst(summary):
    """The worst ratios, by (score, level, dtype); printed in the summary."""
    worst: dict = {}
    yield worst
    cases = worst.pop("cases", 0)
    summary[f"drawn tangents: {cases} cases"] = [
        f"worst ratio of {' '.join(place):32} {ratio:6.2f}  (case {index})"
        for place, (ratio, index) in sorted(worst.items())
    ]


def is_judged(case, score):
    """Tell whether PyTorch computes the same, and in good time: its distances and tanh take memory for all triples."""
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
    return cases if EVERYTHING else cases[11::20] if score == "dot" else cases[11::40]


def drawn_tangents(case, inputs):
    """Draw the tangents of query, key, value and a float mask."""
    rng = np.random.default_rng([drawing.SEED, case.index, 3])
    arrays = {**inputs._asdict(), "attn_mask": inputs.arguments["attn_mask"]}
    names = ("query", "key", "value", "attn_mask")
    floats = {name: arrays[name] for name in names if arrays[name] is not None and arrays[name].dtype.kind == "f"}
    return {name: rng.standard_normal(x.shape).astype(case.dtype) for name, x in floats.items()}


@pytest.mark.parametrize("part", range(20))
@pytest.mark.parametrize("score", SCORES)
def test_tangents_are_within_their_bounds(score, part, torch, levels, worst):
    failures = []
    for case in chosen(score)[part::20]:
        inputs = drawing.build(case)
        tangents = drawn_tangents(case, inputs)
        rng = np.random.default_rng([drawing.SEED, case.index, 4])
        weight = rng.standard_normal(case.head_dim).astype(case.dtype) if score == "additive" else None
        expected = torch_twin.tangent(torch, case, inputs, tangents, score, weight)
        unit = gradient_bounds.tangent_units(torch, case, inputs, tangents, score, weight)
        options = {name: inputs.arguments[name] for name in OPTIONS if name in inputs.arguments}
        options |= {"score": score, "score_weight": weight, "num_threads": case.num_threads}
        worst["cases"] = worst.get("cases", 0) + 1
        for level in levels:
            _core._set_isa(level)
            output, found = attention_jvp(
                *inputs[:3], **{f"tangent_{name}": tangent for name, tangent in tangents.items()}, **options
            )
            assert_same_bits(output, pyattn.attention(*inputs[:3], **options))
            error = np.abs(found - expected)
            ratio = float(np.max(error / np.where(error == 0, 1, unit), initial=0))
            place = score, level, case.dtype
            worst[place] = max(worst.get(place, (0.0, 0)), (ratio, case.index))
            if not (found.shape == expected.shape and found.dtype == case.dtype and ratio <= BAR):
                failures.append(f"{score}, {level}: ratio {ratio:.3g}: {case}")
    assert not failures, "\n".join(failures[:8])


@pytest.mark.parametrize("score", SCORES)
def test_the_cases_are_many(score):
    assert sum(is_judged(case, score) for case in map(drawing.draw, range(drawing.CASES))) >= 1000

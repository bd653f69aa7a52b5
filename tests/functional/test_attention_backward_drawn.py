"""Thousands of drawn cases: gradients of attention against PyTorch's autograd in float64, at every level.

The cases are those of test_drawn.py, whose forward pass they repeat: masks of all kinds, windows, lengths, shared heads
and batch axes, layouts, storage. Each gradient is compared in units of its own bound (support.gradient_bounds).
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support import drawing, gradient_bounds, torch_twin
from support.helpers import EVERYTHING

import pyattn
from pyattn import _core
from pyattn.functional import attention_backward

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")]

BAR = 8.0
OPTIONS = ("attn_mask", "is_causal", "align", "scale", "window", "key_lengths", "query_lengths", "enable_gqa", "layout")


@pytest.fixture(scope="module")
def worst(summary):
    """The worst ratios, by (level, gradient, dtype); printed in the summary."""
    worst: dict = {}
    yield worst
    cases = worst.pop("cases", 0)
    summary[f"drawn gradients: {cases} cases"] = [
        f"worst ratio of {' '.join(place):32} {ratio:6.2f}  (case {index})"
        for place, (ratio, index) in sorted(worst.items())
    ]


def is_judged(case):
    """Tell whether PyTorch computes the same. It does not with denormals, which pyattn takes for 0."""
    return torch_twin.has_case(case) and (case.family, case.dtype) != ("tiny", "float32")


@functools.cache
def chosen():
    """All such cases; in `make test` one in 20 of them."""
    cases = [case for case in map(drawing.draw, range(drawing.CASES)) if is_judged(case)]
    return cases if EVERYTHING else cases[5::20]


@pytest.mark.parametrize("part", range(20))
def test_gradients_are_within_their_bounds(part, torch, levels, worst):
    failures = []
    for case in chosen()[part::20]:
        inputs = drawing.build(case)
        rng = np.random.default_rng([drawing.SEED, case.index, 2])
        shape = pyattn.attention(*inputs[:3], **inputs.arguments).shape
        grad_output = rng.standard_normal(shape).astype(case.dtype)
        expected = torch_twin.gradients(torch, case, inputs, grad_output.astype(np.float64))
        units = gradient_bounds.units(torch, case, inputs, grad_output.astype(np.float64))
        worst["cases"] = worst.get("cases", 0) + 1
        for level in levels:
            _core._set_isa(level)
            for name, gradient in gradients_of(case, inputs, grad_output, list(expected)).items():
                error, unit = np.abs(gradient - expected[name]), units[name]
                if name == "attn_mask" and gradient.dtype == np.float16:  # a mask in float16: so is its gradient
                    error[np.isinf(gradient) & (np.abs(expected[name]) > np.finfo(np.float16).max)] = 0
                    unit = unit + 2.0**-11 * np.abs(expected[name]) + 2.0**-25
                ratio = float(np.max(error / np.where(error == 0, 1, unit), initial=0))
                place = level, name, case.dtype
                worst[place] = max(worst.get(place, (0.0, 0)), (ratio, case.index))
                if not (np.shape(gradient) == expected[name].shape and ratio <= BAR):
                    failures.append(f"{level}: {name}, ratio {ratio:.3g}: {case}")
    assert not failures, "\n".join(failures[:8])


def gradients_of(case, inputs, grad_output, names):
    """Call pyattn forwards and backwards."""
    options = {name: inputs.arguments[name] for name in OPTIONS if name in inputs.arguments}
    output, lse = pyattn.attention(*inputs[:3], **inputs.arguments, need_lse=True)
    found = attention_backward(
        grad_output, *inputs[:3], output, lse, **options, need=names, num_threads=case.num_threads
    )
    return {name: getattr(found, name) for name in names}


def test_the_cases_are_many():
    assert sum(map(is_judged, map(drawing.draw, range(drawing.CASES)))) >= 1000

"""nn.MultiheadAttention and multi_head_attention_forward: torch's numbers, for every pair of arguments.

How far from the formula they may be is judged twice. Each case is held to what rounding explains: module_bounds.py. And
over all draws of a family, by dtype and size, they are at most 1.5 times as far from it as torch's: the largest error
of a case, over its largest number, as the worst of all cases and as the 99th percentile. One case alone may be beyond
1.5 by chance.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from support.helpers import assert_same_bits, tenth
from support.mask_draws import with_triangle
from support.mha_cases import CASES, VALUES, call_torch, draw, draw_cases, twins
from support.module_bounds import Distances, Masking, distance, expect_module

import pyattn
from pyattn import nn

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")]

BLOCKS = 20


def functional(module, inputs, **options):
    packed = module.in_proj_weight is not None
    separate = {name: getattr(module, name) for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight")}
    return pyattn.functional.multi_head_attention_forward(
        *inputs,
        module.embed_dim,
        module.num_heads,
        module.in_proj_weight,
        module.in_proj_bias,
        module.bias_k,
        module.bias_v,
        module.add_zero_attn,
        module.dropout,
        module.out_proj.weight,
        module.out_proj.bias,
        training=module.training,
        use_separate_proj_weight=not packed,
        **separate,
        **options,
    )


def with_nan(module, inputs, **asked):
    """What torch gives for rows with nothing to attend to: NaN throughout. Our weights are 0 by either choice."""
    output, weights = module(*inputs, **{**asked, "average_attn_weights": False}, empty_rows="nan")
    if weights is not None:
        weights[weights.sum(-1) == 0] = np.nan
        weights = weights.mean(-3) if asked["average_attn_weights"] else weights
    return output, weights


def assert_equal(actual, expected, alternative, tolerance, about):
    """Rows that torch makes NaN are those of empty_rows='nan'."""
    for one, other, nan in zip(actual, expected, alternative, strict=True):
        assert (one is None) == (other is None), about
        if other is not None:
            assert one.shape == other.shape, about
            assert one.dtype == other.dtype, about
            mixed = np.where(np.isnan(other), nan, one)
            np.testing.assert_allclose(mixed, other, rtol=0, atol=tolerance, err_msg=str(about))


@pytest.fixture(scope="module")
def distances(summary):
    distances = Distances()
    yield distances
    summary["multi-head attention: how exact"] = list(distances.lines())


def judge(distances, module, case, inputs, masks, actual, expected, about):
    """Hold a result to its bounds, and note how far from the formula it and torch's are."""
    turned = inputs if case["batch_first"] or not case["batched"] else [x.swapaxes(0, 1) for x in inputs]
    turned = turned if case["batched"] else [x[np.newaxis] for x in inputs]
    hidden = Masking(masks["attn_mask"], masks["key_padding_mask"], case["is_causal"])
    near = expect_module(module, turned, hidden, average=case["average_attn_weights"])
    for name, one, other, exact in zip(("output", "weights"), actual, expected, near, strict=True):
        if other is None:
            continue
        if name == "output" and case["batched"] and not case["batch_first"]:
            one, other = one.swapaxes(0, 1), other.swapaxes(0, 1)
        if not case["batched"]:
            one, other = one[np.newaxis], other[np.newaxis]
        ratio = exact.ratio(one)
        assert ratio <= 1, f"{name}: {ratio:.3g} of its bound: {about}"
        numbers = ~np.isnan(other)
        other = np.where(numbers, other, 0)
        family = name, case["dtype"], case["size"]
        distances.note(family, distance(one, exact, numbers), distance(other, exact, numbers), ratio)


@pytest.mark.parametrize("block", range(tenth(BLOCKS)))
def test_equals_torch(block, torch, distances):
    for number, case in enumerate(draw_cases(block)):
        rng = np.random.default_rng([8, block, number])
        options, inputs, masks = draw(case, rng)
        ours, theirs = twins(torch, options, case["dtype"], rng)
        asked = {name: case[name] for name in ("need_weights", "average_attn_weights")}
        length = 1 if case["batched"] and case["batch_first"] else 0
        pair = inputs[0].shape[length], inputs[1].shape[length]
        triangle = with_triangle(masks["attn_mask"], case["is_causal"], *pair)
        expected = call_torch(torch, theirs, inputs, {**masks, "attn_mask": triangle}, **asked)
        own = {**masks, **asked, "is_causal": case["is_causal"]}
        actual = ours(*inputs, **own)
        about = {**case, "block": block, "number": number}
        tolerance = 1e-5 if case["dtype"] == "float32" else 1e-12
        assert_equal(actual, expected, with_nan(ours, inputs, **own), tolerance, about)
        assert not np.isnan(actual[0]).any()
        judge(distances, ours, case, inputs, masks, actual, expected, about)
        if not (case["batched"] and case["batch_first"]):
            for one, other in zip(functional(ours, inputs, **own), actual, strict=True):
                if other is not None:
                    assert_same_bits(one, other, about)


@pytest.mark.slow
def test_no_further_from_the_formula_than_torch(distances):
    if sum(map(len, distances.pairs.values())) < BLOCKS * CASES:
        pytest.skip("all blocks of test_equals_torch come first: these are figures of all draws")
    distances.assert_no_further()


def test_every_pair_of_argument_values_was_drawn():
    cases = [case for block in range(BLOCKS) for case in draw_cases(block)]
    assert len(cases) >= 1600
    for one, other in itertools.combinations(VALUES, 2):
        counts = Counter((case[one], case[other]) for case in cases)
        for pair in itertools.product(VALUES[one], VALUES[other]):
            assert counts[pair] >= 10, f"{one}, {other}: {pair} {counts[pair]} times"


def test_the_first_numbers_are_of_torchs_distributions(torch):
    """In torch's places: the same bounds of the uniform ones, the same spread of the normal ones, the same zeros."""
    sizes = {"embed_dim": 120, "num_heads": 4, "add_bias_kv": True}
    for more in ({}, {"kdim": 90, "vdim": 150}):
        ours, theirs = nn.MultiheadAttention(**sizes, **more, rng=0), torch.nn.MultiheadAttention(**sizes, **more)
        for key, tensor in theirs.state_dict().items():
            array, other = ours.state_dict()[key], tensor.numpy()
            if "bias" in key and not key.startswith("bias"):
                assert not array.any()
                assert not other.any()
            elif key.startswith("bias"):
                assert 0.6 < array.std() / other.std() < 1.6
            else:
                np.testing.assert_allclose(abs(array).max(), abs(other).max(), rtol=0.01)
                np.testing.assert_allclose(array.std(), other.std(), rtol=0.05)


def test_equals_torch_in_the_static_keys_of_the_function(torch, dtype):
    rng = np.random.default_rng(0)
    embed, heads, batch = 8, 2, 3
    x = rng.standard_normal((5, batch, embed)).astype(dtype)
    weight, out = (
        rng.standard_normal((3 * embed, embed)).astype(dtype),
        rng.standard_normal((embed, embed)).astype(dtype),
    )
    static = {
        name: rng.standard_normal((batch * heads, 7, embed // heads)).astype(dtype) for name in ("static_k", "static_v")
    }
    rest = (embed, heads), (None, None, None, True, 0.0)
    theirs = torch.nn.functional.multi_head_attention_forward(
        *[torch.from_numpy(x)] * 3,
        *rest[0],
        torch.from_numpy(weight),
        *rest[1],
        torch.from_numpy(out),
        None,
        training=False,
        **{name: torch.from_numpy(array) for name, array in static.items()},
    )
    ours = pyattn.functional.multi_head_attention_forward(
        x, x, x, *rest[0], weight, *rest[1], out, None, training=False, **static
    )
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=tolerance)

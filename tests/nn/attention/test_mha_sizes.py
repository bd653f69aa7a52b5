"""nn.MultiheadAttention at real sizes, and with the sizes, windows, lengths and dropout that torch does not have.

Each case is held to what rounding explains: module_bounds.py. At real sizes torch's distance from the formula is told,
too, and ours is at most 1.5 times as far.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from support.helpers import assert_same_bits, tenth
from support.module_bounds import NO_FURTHER, Masking, distance, expect_module

import pyattn
from pyattn import _core, nn

pytestmark = pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # drawn masks may look inverted


@pytest.fixture(autouse=True)
def _restore_threads():
    before = pyattn.get_num_threads()
    yield
    pyattn.set_num_threads(before)


def make(rng, dtype, *sizes, **options):
    """A module all of whose parameters are drawn, with the batch first."""
    module = nn.MultiheadAttention(*sizes, **options, batch_first=True, dtype=dtype, rng=rng).eval()
    for bias in (module.in_proj_bias, module.out_proj.bias):
        if bias is not None:
            bias[...] = rng.standard_normal(bias.shape) / 3
    return module


def draw_blocked(rng, shape):
    return rng.random(shape) < rng.choice([0.1, 0.5, 0.9])


def assert_within_bounds(actual, near, about):
    for name, one, exact in zip(("output", "weights"), actual, near, strict=True):
        if one is not None:
            assert exact.ratio(one) <= 1, f"{name}: {exact.ratio(one):.3g} of its bound: {about}"


# Real sizes, beside torch

REAL = [  # dtype, num_heads, head_dim, N, L, S; float64 is smaller: its formula is computed in long double
    ("float32", 4, 64, 2, 320, 320),
    ("float32", 12, 64, 1, 128, 128),
    ("float32", 6, 128, 1, 200, 700),
    ("float32", 8, 32, 1, 700, 300),
    ("float32", 8, 64, 1, 512, 512),
    ("float32", 4, 80, 1, 1, 700),
    ("float32", 5, 96, 2, 130, 257),
    ("float32", 12, 64, 1, 7, 640),
    ("float64", 8, 32, 1, 120, 130),
    ("float64", 4, 64, 1, 9, 300),
    ("float64", 2, 128, 2, 60, 100),
]
REAL_MASKS = ("none", "causal", "padding", "bool", "float")


@pytest.fixture(scope="module")
def distances(summary):
    """(ours, torch's) of each case, by what is judged."""
    distances = {"output": [], "weights": []}
    yield distances
    summary["multi-head attention at real sizes: distance from the formula, in u of the largest number"] = [
        "{:8} {} cases, worst: pyattn {:.2f}, torch {:.2f}".format(name, len(pairs), *np.max(pairs, axis=0))
        for name, pairs in distances.items()
        if pairs
    ]


def draw_real(index):
    dtype, heads, head_dim, batch, q_len, kv_len = REAL[index]
    rng = np.random.default_rng([9, index])
    query, key = (rng.standard_normal((batch, length, heads * head_dim)).astype(dtype) for length in (q_len, kv_len))
    kind = REAL_MASKS[index % len(REAL_MASKS)]
    hidden = Masking(is_causal=kind == "causal")
    if kind == "padding":
        ends = rng.integers(1, kv_len + 1, size=(batch, 1))
        hidden = Masking(key_padding_mask=np.arange(kv_len) >= ends)
    elif kind != "none" and kind != "causal":
        blocked = draw_blocked(rng, (q_len, kv_len))
        blocked[:, 0] = False  # torch has NaN for empty rows
        mask = np.where(blocked, -np.inf, rng.standard_normal(blocked.shape)).astype(dtype)
        hidden = Masking(attn_mask=blocked if kind == "bool" else mask)
    return make(rng, dtype, heads * head_dim, heads), (query, key, key), hidden


def by_torch(torch, module, inputs, hidden):
    theirs = pyattn.interop.torch.to_torch(module).eval()
    blocked = ~np.tri(inputs[0].shape[1], inputs[1].shape[1], dtype=bool) if hidden.is_causal else hidden.attn_mask
    masks = {"attn_mask": blocked, "key_padding_mask": hidden.key_padding_mask}
    tensors = [torch.from_numpy(x) for x in inputs]
    with torch.no_grad():
        masks = {name: None if mask is None else torch.from_numpy(mask) for name, mask in masks.items()}
        return [part.numpy() for part in theirs(*tensors, **masks, average_attn_weights=False)]


@pytest.mark.sampled(6)
@pytest.mark.peers
@pytest.mark.parametrize("index", range(len(REAL)), ids=["-".join(map(str, sizes)) for sizes in REAL])
def test_real_sizes_at_each_level_with_one_thread_and_two(index, levels, torch, distances):
    module, inputs, hidden = draw_real(index)
    near = expect_module(module, inputs, hidden, average=False)
    asked = {name: x for name, x in hidden._asdict().items() if x is not None}
    for level in levels:
        _core._set_isa(level)
        results = []
        for threads in (1, 2):
            pyattn.set_num_threads(threads)
            results.append(module(*inputs, **asked, average_attn_weights=False))
        for one, other in zip(*results, strict=True):
            assert_same_bits(one, other, level)
        alone = module(*inputs, **asked, need_weights=False)[0]
        assert_same_bits(alone, results[0][0], level)
        assert_within_bounds(results[0], near, level)
        if level == levels[0]:
            theirs = by_torch(torch, module, inputs, hidden)
            for name, one, other, exact in zip(distances, results[0], theirs, near, strict=True):
                distances[name].append((distance(one, exact), distance(other, exact)))


@pytest.mark.slow
@pytest.mark.peers
def test_real_sizes_are_no_further_from_the_formula_than_torch(distances):
    if len(distances["output"]) < len(REAL):
        pytest.skip("all cases of the test before this one come first: these are figures of all")
    for name, pairs in distances.items():
        ours, theirs = np.max(pairs, axis=0)
        assert ours <= NO_FURTHER * theirs, name


# Sizes of our own, with everything else

CASES, BLOCKS = 30, 14
VALUES = {
    "dtype": ["float32", "float64"],
    "groups": [1, 2, 3],
    "num_kv_heads": [1, 2],
    "head_dim": [1, 5, 17, 40],
    "v_head_dim": [None, 3, 24],
    "out_dim": [None, 9],
    "bias": [False, True],
    "add_bias_kv": [False, True],
    "add_zero_attn": [False, True],
    "kdim": [None, 6],
    "key_padding_mask": ["none", "bool", "float"],
    "attn_mask": ["none", "bool", "float", "bool, 3-D"],
    "is_causal": [False, True],
    "window": [None, (3, 2), (None, 0), (40, None)],
    "key_lengths": [False, True],
    "dropout": [0.0, 0.4],
    "average_attn_weights": [False, True],
    "need_weights": [False, True],
    "length": [4, 40, 150],
}


def draw_cases(block):
    rng = np.random.default_rng([10, block])
    return [{name: values[rng.integers(len(values))] for name, values in VALUES.items()} for _ in range(CASES)]


def test_every_pair_of_argument_values_was_drawn():
    cases = [case for block in range(BLOCKS) for case in draw_cases(block)]
    for one, other in itertools.combinations(VALUES, 2):
        counts = Counter((case[one], case[other]) for case in cases)
        for pair in itertools.product(VALUES[one], VALUES[other]):
            assert counts[pair] >= 10, f"{one}, {other}: {pair} {counts[pair]} times"


def draw(case, rng):
    """A module of the case, its inputs, and what is hidden from it."""
    dtype, batch, embed = case["dtype"], int(rng.integers(1, 4)), int(rng.integers(4, 30))
    heads = case["groups"] * case["num_kv_heads"]
    q_len, kv_len = (int(n) for n in rng.integers(max(1, case["length"] // 4), case["length"] + 1, size=2))
    names = ("bias", "add_bias_kv", "add_zero_attn", "kdim", "head_dim", "v_head_dim", "out_dim", "num_kv_heads")
    module = make(rng, dtype, embed, heads, case["dropout"], **{name: case[name] for name in names})
    sizes = (q_len, embed), (kv_len, module.kdim), (kv_len, module.vdim)
    inputs = tuple(rng.standard_normal((batch, *size)).astype(dtype) for size in sizes)

    def mask(kind, shape):
        blocked = draw_blocked(rng, shape)
        numbers = np.where(blocked, -np.inf, rng.standard_normal(shape)).astype(dtype)
        return None if kind == "none" else numbers if kind == "float" else blocked

    rows = (batch * heads,) if "3-D" in case["attn_mask"] else ()
    hidden = Masking(
        mask(case["attn_mask"], (*rows, q_len, kv_len)),
        mask(case["key_padding_mask"], (batch, kv_len)),
        case["is_causal"],
        case["window"],
        rng.integers(0, kv_len + 1, size=batch) if case["key_lengths"] else None,
    )
    return module, inputs, hidden


@pytest.mark.parametrize("block", range(tenth(BLOCKS)))
def test_sizes_of_our_own_with_all_that_hides_and_drops(block, levels):
    """In training, dropout's keeps are those of dropout_keep_mask for the same rng."""
    for number, case in enumerate(draw_cases(block)):
        rng = np.random.default_rng([11, block, number])
        module, inputs, hidden = draw(case, rng)
        keep, extras = None, case["add_bias_kv"] + case["add_zero_attn"]
        if case["dropout"]:
            pairs = len(inputs[0]), module.num_heads, inputs[0].shape[1], inputs[1].shape[1] + extras
            keep = pyattn.functional.dropout_keep_mask(pairs, module.dropout, rng=number)
        near = expect_module(module, inputs, hidden, average=case["average_attn_weights"], keep=keep)
        asked = {name: case[name] for name in ("need_weights", "average_attn_weights")}
        pyattn.set_num_threads(1 + number % 2)
        for level in levels:
            _core._set_isa(level)
            actual = module.train()(*inputs, **hidden._asdict(), **asked, rng=number)
            assert (actual[1] is not None) == case["need_weights"]
            assert_within_bounds(actual, near, (case, level, block, number))

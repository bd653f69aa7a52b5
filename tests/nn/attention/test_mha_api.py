"""nn.MultiheadAttention beside torch's numbers: what differs on purpose, what is ours alone, weights, and mistakes."""

from __future__ import annotations

import copy
import functools
import pickle
import threading

import numpy as np
import pytest
from support import helpers
from support.helpers import assert_same_bits
from support.multi_head_twin import multi_head

import pyattn
from pyattn import nn
from pyattn.functional._multihead_masks import Masking, ScoreSizes, to_core

normal = functools.partial(helpers.normal, dtype="float64")


def make(embed=8, heads=2, dtype="float64", **options):
    """A module all of whose parameters are drawn, with the batch first."""
    module = nn.MultiheadAttention(embed, heads, **{"batch_first": True, **options}, dtype=dtype, rng=0).eval()
    for n, array in enumerate(module.parameters()):
        array[...] = normal(*array.shape, seed=n) / 3
    return module


def formula(module, query, key, value, mask=None):
    """In float64 NumPy; mask is added to scores (N, heads, L, S)."""
    rows = [module.num_heads * module.head_dim, module.num_kv_heads * module.head_dim]
    if module.in_proj_weight is None:
        weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    else:
        weights = np.split(module.in_proj_weight, 3)
    biases = [None] * 3 if module.in_proj_bias is None else np.split(module.in_proj_bias, np.cumsum(rows))
    names = dict(zip(("q_bias", "k_bias", "v_bias"), biases, strict=True))
    names |= {"out_weight": module.out_proj.weight, "out_bias": module.out_proj.bias, "attn_mask": mask}
    return multi_head(query, key, value, *weights, **names, heads=module.num_heads, kv_heads=module.num_kv_heads)


def assert_near(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


X, Y = normal(2, 5, 8, seed=1), normal(2, 7, 8, seed=2)


# What differs from torch on purpose


def test_a_row_with_nothing_to_attend_to_gives_the_bias_of_the_output():
    module = make()
    blocked = np.zeros((5, 7), bool)
    blocked[3] = True
    for mask in (blocked, np.where(blocked, -np.inf, 0.0)):
        output, weights = module(X, Y, Y, attn_mask=mask)
        assert_same_bits(output[:, 3], np.broadcast_to(module.out_proj.bias, (2, 8)))
        assert not weights[:, 3].any()
        output, weights = module(X, Y, Y, attn_mask=mask, empty_rows="nan")
        assert np.isnan(output[:, 3]).all()
        assert not np.isnan(output[:, :3]).any()
        assert not weights[:, 3].any()


def test_a_triangle_needs_no_mask():
    module = make()
    triangle = ~np.tri(5, 7, dtype=bool)
    for need_weights in (True, False):
        actual = module(X, Y, Y, is_causal=True, need_weights=need_weights)
        expected = module(X, Y, Y, attn_mask=triangle, need_weights=need_weights)
        assert_same_bits(actual[0], expected[0])


@pytest.mark.peers
def test_without_a_mask_torch_refuses_a_triangle_or_ignores_it(torch):
    """Its module ignores it on the fast path; where that is closed, and in the function, it raises."""
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.from_numpy(normal(2, 5, 8, dtype="float32"))
    with torch.no_grad():
        ignored, everything = theirs(x, x, x, is_causal=True), theirs(x, x, x)
        assert all(torch.equal(one, other) for one, other in zip(ignored, everything, strict=True))
    for training in (False, True):
        with pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
            theirs.train(training)(x, x, x, is_causal=True)
    rest = (8, 2, theirs.in_proj_weight, None, None, None, False, 0.0, theirs.out_proj.weight, None)
    with torch.no_grad(), pytest.raises(RuntimeError, match="Need attn_mask if specifying the is_causal hint"):
        torch.nn.functional.multi_head_attention_forward(x, x, x, *rest, is_causal=True)
    ours = pyattn.interop.torch.from_torch(theirs.eval())
    assert not np.triu(ours(*[x.numpy()] * 3, is_causal=True)[1][0], 1).any()


def test_a_triangle_is_combined_with_the_mask_and_never_replaces_it():
    module = make()
    blocked = np.random.default_rng(0).random((5, 7)) < 0.3
    for mask in (blocked, normal(5, 7)):
        triangle = ~np.tri(5, 7, dtype=bool)
        both = mask | triangle if mask.dtype == bool else np.where(triangle, -np.inf, mask)
        for options in ({}, {"need_weights": False}, {"key_padding_mask": np.arange(7) >= [[6], [4]]}):
            actual = module(X, Y, Y, attn_mask=mask, is_causal=True, **options)
            assert_same_bits(actual[0], module(X, Y, Y, attn_mask=both, **options)[0])


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_appended_keys_stay_visible_under_a_triangle(options):
    module = make(**options)
    for need_weights in (True, False):
        output, weights = module(X, Y, Y, is_causal=True, need_weights=need_weights)
        expected = module(X, Y, Y, attn_mask=~np.tri(5, 7, dtype=bool), need_weights=need_weights)
        assert_same_bits(output, expected[0])
        if need_weights:
            assert (weights[..., -1] > 0).all()
            assert not weights[:, 0, 1:-1].any()


def test_nothing_leaks_from_a_blocked_key():
    module, key = make(), Y.copy()
    key[:, 4:] = np.nan
    for mask in (np.arange(7) >= [[4], [4]], np.where(np.arange(7) >= [[4], [4]], -np.inf, 0.0)):
        output, weights = module(X, key, key, key_padding_mask=mask)
        assert_near(output, formula(module, X, Y[:, :4], Y[:, :4])[0])
        assert not weights[..., 4:].any()


def test_masks_of_both_kinds_and_any_float_dtype_go_together():
    module = make()
    numbers, flags = normal(5, 7).astype("f2"), np.random.default_rng(0).random((2, 7)) < 0.3
    hidden = np.where(flags[:, None, None, :], -np.inf, numbers.astype("f8"))
    assert_near(module(X, Y, Y, attn_mask=numbers, key_padding_mask=flags)[0], formula(module, X, Y, Y, hidden)[0])
    blocked, added = np.random.default_rng(1).random((5, 7)) < 0.3, normal(2, 7, seed=5)
    hidden = np.where(blocked, -np.inf, added[:, None, None, :])
    assert_near(module(X, Y, Y, attn_mask=blocked, key_padding_mask=added)[0], formula(module, X, Y, Y, hidden)[0])


# Sizes, windows and lengths that torch does not have

OURS = [
    {"num_kv_heads": 1},
    {"num_kv_heads": 2, "heads": 6, "embed": 12},
    {"head_dim": 5},
    {"v_head_dim": 3},
    {"out_dim": 9},
    {"head_dim": 5, "v_head_dim": 3, "out_dim": 9, "num_kv_heads": 2, "heads": 4, "embed": 7, "kdim": 6, "vdim": 10},
    {"head_dim": 1, "bias": False},
]


@pytest.mark.parametrize("options", OURS, ids=str)
def test_sizes_of_our_own_equal_the_formula(options):
    module = make(**options)
    query, key, value = normal(2, 5, module.embed_dim), normal(2, 7, module.kdim), normal(2, 7, module.vdim, seed=9)
    output, weights = module(query, key, value, average_attn_weights=False)
    expected = formula(module, query, key, value)
    assert output.shape == (2, 5, options.get("out_dim", module.embed_dim)) == (2, 5, module.out_dim)
    assert_near(output, expected[0])
    assert_near(weights, expected[1])
    assert_near(module(query, key, value)[1], expected[1].mean(1))
    assert "in_proj_weight" not in module.state_dict()
    assert module.q_proj_weight.shape == (module.num_heads * module.head_dim, module.embed_dim)
    assert module.k_proj_weight.shape == (module.num_kv_heads * module.head_dim, module.kdim)
    assert module.v_proj_weight.shape == (module.num_kv_heads * module.v_head_dim, module.vdim)


def test_sizes_that_are_torchs_leave_its_state():
    own = {"head_dim": 4, "v_head_dim": 4, "out_dim": 8, "num_kv_heads": 2, "kdim": 8, "vdim": 8}
    module = nn.MultiheadAttention(8, 2, **own, rng=0)
    assert list(module.state_dict()) == ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    assert_same_bits(module.in_proj_weight, nn.MultiheadAttention(8, 2, rng=0).in_proj_weight)


@pytest.mark.parametrize("extra", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
@pytest.mark.parametrize(
    "hidden",
    [{"window": (2, 1)}, {"window": 1}, {"key_lengths": [7, 3]}, {"window": (None, 0), "key_lengths": [0, 6]}],
    ids=str,
)
def test_windows_and_lengths_are_those_of_attention(hidden, extra):
    module = make(**extra)
    plain = pyattn.attention(X[:, None], Y[:, None], Y[:, None], **hidden, align="upper_left", need_weights=True)
    visible = plain.weights[:, 0] > 0
    expected = module(X, Y, Y, attn_mask=np.repeat(~visible, 2, axis=0))
    for one, other in zip(module(X, Y, Y, **hidden), expected, strict=True):
        assert_same_bits(one, other)
    unbatched = {**hidden, "key_lengths": hidden["key_lengths"][1]} if "key_lengths" in hidden else hidden
    for one, other in zip(module(X[1], Y[1], Y[1], **unbatched), expected, strict=True):
        assert_same_bits(one, other[1])


# Bits


def test_a_batch_has_the_bits_of_its_entries_and_any_number_of_threads(dtype):
    module = make(64, 4, dtype)
    x = normal(3, 150, 64, dtype=dtype)
    expected = module(x, x, x)
    before = pyattn.get_num_threads()
    try:
        for threads in (1, 2, 3):
            pyattn.set_num_threads(threads)
            for n in range(3):
                for one, other in zip(module(x[n], x[n], x[n]), expected, strict=True):
                    assert_same_bits(one, other[n])
    finally:
        pyattn.set_num_threads(before)


def test_masks_that_say_the_same_give_the_same_bits():
    """Padding at the ends of rows, elsewhere, as floats, and as lengths."""
    module = make()
    padding = np.arange(7) >= [[5], [3]]
    expected = module(X, Y, Y, key_lengths=[5, 3])
    masks = [{"key_padding_mask": padding}, {"key_padding_mask": np.where(padding, -np.inf, 0.0)}]
    masks.append({"attn_mask": np.repeat(np.repeat(padding[:, None], 5, axis=1), 2, axis=0)})
    for mask in masks:
        for one, other in zip(module(X, Y, Y, **mask), expected, strict=True):
            assert_same_bits(one, other)


def test_axes_in_either_order():
    module, turned = make(), make(batch_first=False)
    expected = module(X, Y, Y)
    actual = turned(X.swapaxes(0, 1), Y.swapaxes(0, 1), Y.swapaxes(0, 1))
    assert_same_bits(actual[0].swapaxes(0, 1), expected[0])
    assert_same_bits(actual[1], expected[1])
    assert_same_bits(turned(X[0], Y[0], Y[0])[0], expected[0][0])


def test_inputs_without_entries():
    module = make()
    assert module(X[:0], Y[:0], Y[:0])[0].shape == (0, 5, 8)
    output, weights = module(X[:, :0], Y, Y)
    assert output.shape == (2, 0, 8)
    assert weights.shape == (2, 0, 7)
    output, weights = module(X, Y[:, :0], Y[:, :0], key_padding_mask=np.zeros((2, 0), bool), is_causal=True)
    assert_same_bits(output, np.broadcast_to(module.out_proj.bias, (2, 5, 8)))
    assert weights.shape == (2, 5, 0)


# Weights


def written_routes():
    def index(module):
        module.in_proj_weight[3, 2] += 1

    def view(module):
        module.state_dict()["in_proj_weight"].T[1:4][0, ::2] -= 1

    def bias(module):
        module.in_proj_bias[8:16][1] = 5

    def part(module):
        module.out_proj.weight[0] = 0

    def appended(module):
        module.bias_k[0, 0, 1] = 3

    def assigned(module):
        module.in_proj_weight = module.in_proj_weight[::-1]

    def loaded(module):
        module.load_state_dict({key: array * 2 for key, array in module.state_dict().items()})

    def optimised(module):
        for array in module.parameters():
            array -= 0.1 * np.sign(array)

    return [index, view, bias, part, appended, assigned, loaded, optimised]


@pytest.mark.parametrize("write", written_routes(), ids=lambda write: write.__name__)
def test_what_is_written_to_a_weight_counts_in_the_next_call(write):
    module = make(add_bias_kv=True)
    before = module(X, Y, Y)[0]
    write(module)
    after = module(X, Y, Y)[0]
    assert not np.array_equal(after, before)
    fresh = nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True, dtype="float64")
    fresh.load_state_dict(module.state_dict())
    assert_same_bits(after, fresh(X, Y, Y)[0])


def test_from_arrays_takes_the_arrays_themselves():
    module = make(add_bias_kv=True, kdim=6)
    state = module.state_dict()
    other = nn.MultiheadAttention.from_arrays(state, 2, batch_first=True)
    assert all(array is state[key] for key, array in other.state_dict().items())
    key = normal(2, 7, 6)
    assert_same_bits(other(X, key, Y)[0], module(X, key, Y)[0])
    assert repr(other) == repr(module)


@pytest.mark.parametrize(
    "options", [{}, {"kdim": 6}, {"num_kv_heads": 1, "out_dim": 3}, {"add_bias_kv": True}], ids=str
)
def test_copies_are_equal_and_independent(options, tmp_path):
    module = make(**options)
    inputs = X, normal(2, 7, module.kdim), Y
    expected = module(*inputs)[0]
    nn.save(module, tmp_path / "mha.npz")
    loaded = nn.MultiheadAttention(8, 2, **options, batch_first=True, dtype="float64")
    loaded.load_state_dict(nn.load(tmp_path / "mha.npz"))
    copies = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded]
    for other in copies:
        assert_same_bits(other(*inputs)[0], expected)
        for array in other.parameters():
            array[...] = 0
    assert_same_bits(module(*inputs)[0], expected)
    assert module.float()(*(x.astype("f4") for x in inputs))[0].dtype == np.float32


def test_both_dtypes_begin_with_the_same_numbers_and_rng_repeats_them():
    single, double = (nn.MultiheadAttention(8, 2, add_bias_kv=True, dtype=kind, rng=7) for kind in ("f4", "f8"))
    again = nn.MultiheadAttention(8, 2, add_bias_kv=True, rng=np.random.default_rng(7))
    for key, array in double.float().state_dict().items():
        assert_same_bits(array, single.state_dict()[key])
        assert_same_bits(array, again.state_dict()[key])
    weight = again.in_proj_weight
    again.reset_parameters(7)
    assert again.in_proj_weight is weight
    assert_same_bits(weight, single.in_proj_weight)


def test_the_repr_says_what_differs_from_the_usual():
    first, part, _ = repr(nn.MultiheadAttention(8, 2, num_kv_heads=1, batch_first=True)).splitlines()[1:]
    assert first.strip() == "embed_dim=8, num_heads=2, num_kv_heads=1, batch_first=True"
    assert part.strip() == "(out_proj): Linear(in_features=8, out_features=8, bias=True)"
    assert pyattn.MultiheadAttention is nn.MultiheadAttention


@pytest.mark.threads
def test_threads_may_share_a_module():
    module = make(64, 4)
    inputs = [normal(4, 80, 64, seed=n) for n in range(4)]  # enough for workers in each product and in attention
    expected = [module(x, x, x, is_causal=True) for x in inputs]
    wrong = []

    def work(n):
        for _ in range(30):
            for one, other in zip(module(*[inputs[n]] * 3, is_causal=True), expected[n], strict=True):
                if not np.array_equal(one, other):
                    wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Memory


def test_masks_are_not_expanded():
    """What the core is given has the caller's axes: length 1 where a mask has none."""
    sizes = ScoreSizes((2,), 4, 5, 7)
    pairs, added, scattered = np.eye(5, 7, dtype=bool), normal(8, 5, 7), np.eye(2, 7, dtype=bool)
    ends = np.arange(7) >= [[5], [3]]
    for_pairs = to_core(Masking(pairs, ends), sizes)
    assert for_pairs.attn_mask is pairs
    assert for_pairs.key_padding_mask is None
    assert for_pairs.key_lengths.tolist() == [5, 3]
    for_both = to_core(Masking(pairs, scattered), sizes)
    assert for_both.attn_mask is pairs
    assert for_both.key_padding_mask.shape == (2, 1, 1, 7)
    assert np.shares_memory(for_both.key_padding_mask, scattered)
    assert for_both.key_lengths is None
    assert to_core(Masking(is_causal=True), sizes) == Masking(is_causal=True)
    assert np.shares_memory(to_core(Masking(added), sizes).attn_mask, added)

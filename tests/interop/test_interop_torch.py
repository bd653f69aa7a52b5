"""pyattn.interop.torch: modules to torch and back, copied and shared."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, run_python

import pyattn
from pyattn import nn

pytestmark = pytest.mark.peers

LAZY = """
import sys, pyattn
assert "interop" in dir(pyattn) and "torch" in dir(pyattn.interop)
assert not hasattr(pyattn.interop, "tensorflow")
pyattn.interop.torch.to_torch, pyattn.interop.torch.from_torch
assert "torch" not in sys.modules
"""


@pytest.fixture
def interop(torch):
    return pyattn.interop.torch


@pytest.fixture
def x(dtype):
    return np.random.default_rng(0).standard_normal((5, 4)).astype(dtype)


def call(theirs, torch, x):
    with torch.no_grad():
        return theirs(torch.from_numpy(x)).numpy()


def test_a_dtype_may_be_torchs(torch):
    assert nn.MultiheadAttention(8, 2, dtype=torch.float64).dtype == np.float64
    assert nn.Linear(2, 3).to(torch.float64).to(torch.float32).dtype == np.float32
    assert nn.Linear(2, 3, dtype=torch.bfloat16).dtype.name == "bfloat16"
    with pytest.raises(TypeError, match=r"dtype is torch\.int8, expected float16, bfloat16, float32 or float64"):
        nn.Linear(2, 3, dtype=torch.int8)


def test_torch_is_not_imported_before_a_call():
    run_python(LAZY)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_to_torch_and_back(bias, share, dtype, x, torch, interop):
    theirs = torch.nn.Linear(4, 3, bias=bias, dtype=getattr(torch, dtype))
    ours = interop.from_torch(theirs, share=share)
    assert type(ours) is nn.Linear
    assert ours.dtype == dtype
    assert repr(ours) == repr(theirs)
    np.testing.assert_allclose(ours(x), call(theirs, torch, x), rtol=0, atol=1e-5 if dtype == "float32" else 1e-13)
    back = interop.to_torch(ours, share=share)
    assert type(back) is torch.nn.Linear
    assert list(back.state_dict()) == list(theirs.state_dict())
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor)
        assert (back.state_dict()[key].data_ptr() == tensor.data_ptr()) == share
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in back.parameters())


def test_a_copy_is_independent(dtype, x, torch, interop):
    theirs = torch.nn.Linear(4, 3, dtype=getattr(torch, dtype))
    ours = interop.from_torch(theirs)
    before = ours(x)
    with torch.no_grad():
        theirs.weight.zero_()
    assert_same_bits(ours(x), before)
    back = interop.to_torch(ours)
    ours.weight[...] = 0
    assert back.weight.abs().sum() > 0


def test_shared_weights_see_writes_of_both_sides(dtype, x, torch, interop):
    theirs = torch.nn.Linear(4, 3, dtype=getattr(torch, dtype))
    ours = interop.from_torch(theirs, share=True)
    with torch.no_grad():
        theirs.weight.mul_(2)
    np.testing.assert_allclose(ours(x), call(theirs, torch, x), rtol=0, atol=1e-5)
    ours.load_state_dict({"weight": np.ones((3, 4)), "bias": [1, 2, 3]})
    assert theirs.weight.sum() == 12
    assert theirs.bias.tolist() == [1, 2, 3]


def test_an_optimiser_of_torch_trains_a_shared_module(dtype, x, torch, interop):
    ours = nn.Linear(4, 3, dtype=dtype, rng=0)
    theirs = interop.to_torch(ours, share=True)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.01)
    before = ours(x)
    for _ in range(3):
        optimiser.zero_grad()
        theirs(torch.from_numpy(x)).square().sum().backward()
        optimiser.step()
    assert np.square(ours(x)).sum() < np.square(before).sum()
    np.testing.assert_allclose(ours(x), call(theirs, torch, x), rtol=0, atol=1e-5)


def test_strides_of_torch_are_shared_too(torch, interop):
    theirs = torch.nn.Linear(4, 3)
    theirs.weight = torch.nn.Parameter(torch.randn(8, 6)[::2, ::2].T)
    ours = interop.from_torch(theirs, share=True)
    assert ours.weight.strides == (8, 48)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(ours(x), call(theirs, torch, x), rtol=0, atol=1e-5)


@for_each("kind", ["read-only", "byte-swapped", "reversed"])
def test_arrays_that_torch_cannot_view_are_copied_or_refused(kind, torch, interop):
    weight = np.arange(12.0).reshape(3, 4)
    if kind == "read-only":
        weight.flags.writeable = False
    ours = nn.Linear.from_arrays({"byte-swapped": weight.astype(">f8"), "reversed": weight[::-1]}.get(kind, weight))
    np.testing.assert_array_equal(interop.to_torch(ours).weight.detach().numpy(), ours.weight)
    with pytest.raises(ValueError, match=r"weight is read-only, byte-swapped or has negative strides, .*share=False"):
        interop.to_torch(ours, share=True)


def test_the_mode_is_converted(torch, interop):
    for mode in (True, False):
        assert interop.from_torch(torch.nn.Linear(2, 2).train(mode)).training is mode
        assert interop.to_torch(nn.Linear(2, 2).train(mode)).training is mode


def test_a_subclass_of_linear_is_converted(torch, interop):
    """The output projection of torch's multi-head attention is of a subclass of Linear."""
    part = torch.nn.MultiheadAttention(4, 2).out_proj
    assert type(part) is not torch.nn.Linear
    assert_same_bits(interop.from_torch(part).weight, part.weight.detach().numpy())


def test_parametrizations_are_copied_and_not_shared(torch, interop):
    theirs = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 3))
    assert_same_bits(interop.from_torch(theirs).weight, theirs.weight.detach().numpy())
    with pytest.raises(ValueError, match=r"^weight is computed anew in each call .*: pass share=False"):
        interop.from_torch(theirs, share=True)


BY_HOOKS = {
    "weight_norm": lambda torch, module: torch.nn.utils.weight_norm(module),
    "spectral_norm": lambda torch, module: torch.nn.utils.spectral_norm(module),
    "prune": lambda torch, module: pruned(module, 0.5),
}


def pruned(module, amount):
    from torch.nn.utils import prune  # not imported by `import torch`

    return prune.l1_unstructured(module, "weight", amount)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("kind", BY_HOOKS)
def test_weights_that_hooks_compute_are_updated_copied_and_not_shared(kind, x, dtype, torch, interop):
    theirs = torch.nn.Linear(4, 3, dtype=getattr(torch, dtype))
    BY_HOOKS[kind](torch, theirs)
    theirs.eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(-1.5)  # as an optimiser would: the computed weight is out of date now
    ours = interop.from_torch(theirs)
    np.testing.assert_allclose(ours(x), call(theirs, torch, x), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"^weight is computed anew in each call .* hook .*: pass share=False"):
        interop.from_torch(theirs, share=True)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_vectors_of_spectral_norm_are_not_written_to(torch, interop):
    theirs = torch.nn.utils.spectral_norm(torch.nn.Linear(4, 3))
    kept = theirs.weight_u.clone()
    ours = interop.from_torch(theirs)
    assert torch.equal(theirs.weight_u, kept)
    theirs.eval()(torch.ones(4))
    assert_same_bits(ours.weight, theirs.weight.detach().numpy())


def test_a_pruned_norm_is_copied_with_its_pruned_weight(torch, interop):
    theirs = pruned(torch.nn.LayerNorm(4), 2)
    ours = interop.from_torch(theirs)
    assert list(ours.state_dict()) == ["weight", "bias"]
    assert_same_bits(ours.weight, theirs.weight.detach().numpy())
    assert np.count_nonzero(ours.weight) == 2


def test_nothing_is_drawn(torch, interop):
    """A conversion draws no random numbers."""
    state = torch.get_rng_state()
    interop.to_torch(nn.Linear(4, 3))
    interop.to_torch(nn.MultiheadAttention(4, 2, add_bias_kv=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_other_modules_are_refused(torch, interop):
    class Twice(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class OurTwice(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    for theirs in (Twice(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(2), None):
        with pytest.raises(TypeError, match=r"module is of type .*; from_torch converts torch.nn's Linear"):
            interop.from_torch(theirs)
    with pytest.raises(TypeError, match=r"module is the class Linear, expected an instance: Linear\(\.\.\.\)"):
        interop.from_torch(torch.nn.Linear)
    for ours in (OurTwice(2, 2), nn.Module(), np.ones(2), torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=r"module is of type .*; to_torch converts pyattn.nn's Linear"):
            interop.to_torch(ours)


def test_dtypes_and_devices_that_numpy_lacks_are_refused(torch, interop):
    eight = torch.nn.Linear(2, 2).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"weight has dtype torch\.float8_e4m3fn, .*; pass module.float\(\)"):
        interop.from_torch(eight)
    with pytest.raises(TypeError, match=r"weight is on device 'meta'; pass module.cpu\(\)"):
        interop.from_torch(torch.nn.Linear(2, 2, device="meta"))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_go_over_and_back(dtype, share, torch, interop):
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=getattr(torch, dtype)).eval()
    ours = interop.from_torch(theirs, share=share)
    assert ours.dtype.name == dtype
    x = torch.randn(2, 5, 8).to(getattr(torch, dtype))
    output = ours(x)
    assert output.dtype.name == dtype
    with torch.no_grad():
        expected = theirs.float()(x.float()).numpy()
    wide = ours(x.float())
    np.testing.assert_allclose(wide, expected, rtol=0, atol=1e-5)
    assert_same_bits(output, wide.astype(output.dtype))
    back = interop.to_torch(ours, share=share)
    assert back.linear1.weight.dtype == getattr(torch, dtype)
    if share:
        ours.linear1.weight[0, 0] = 3
        assert back.linear1.weight[0, 0].item() == 3


# Multi-head attention

EVERY = [
    {},
    {"bias": False},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 3, "batch_first": True},
    {"vdim": 5, "bias": False, "dropout": 0.25},
    {"kdim": 3, "vdim": 5, "add_bias_kv": True},
]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("options", EVERY, ids=str)
def test_multi_head_attention_to_torch_and_back(options, share, dtype, torch, interop):
    theirs = torch.nn.MultiheadAttention(6, 2, **options, dtype=getattr(torch, dtype)).eval()
    ours = interop.from_torch(theirs, share=share)
    assert type(ours) is nn.MultiheadAttention
    assert ours.dtype == dtype
    assert (ours.batch_first, ours.add_zero_attn) == (theirs.batch_first, theirs.add_zero_attn)
    assert ours.dropout == theirs.dropout
    inputs = [
        np.random.default_rng(n).standard_normal((4, 3, features)).astype(dtype)
        for n, features in enumerate((6, ours.kdim, ours.vdim))
    ]
    with torch.no_grad():
        expected = theirs(*map(torch.from_numpy, inputs))
    back = interop.to_torch(ours, share=share)
    assert type(back) is torch.nn.MultiheadAttention
    assert not back.training
    with torch.no_grad():
        again = back(*map(torch.from_numpy, inputs))
    for actual, one, other in zip(ours(*inputs), expected, again, strict=True):
        np.testing.assert_allclose(actual, one.numpy(), rtol=0, atol=1e-5 if dtype == "float32" else 1e-12)
        assert torch.equal(one, other)
    assert list(back.state_dict()) == list(theirs.state_dict()) == list(ours.state_dict())
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[key], tensor)
        assert (back.state_dict()[key].data_ptr() == tensor.data_ptr()) == share
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in back.parameters())


def test_an_optimiser_of_torch_trains_a_shared_attention(dtype, torch, interop):
    ours = nn.MultiheadAttention(8, 2, dtype=dtype, rng=0)
    theirs = interop.to_torch(ours, share=True)
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.01)
    x = np.random.default_rng(0).standard_normal((5, 3, 8)).astype(dtype)
    before = ours(x, x, x)[0]
    for _ in range(3):
        optimiser.zero_grad()
        theirs(*[torch.from_numpy(x)] * 3)[0].square().sum().backward()
        optimiser.step()
    after = ours(x, x, x)[0]
    assert np.square(after).sum() < np.square(before).sum()
    with torch.no_grad():
        expected = theirs(*[torch.from_numpy(x)] * 3)[0].numpy()
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-5)


def test_separate_projections_are_packed_in_a_copy_only(torch, interop):
    packed = nn.MultiheadAttention(4, 2, rng=0)
    state = packed.state_dict()
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    weights = dict(zip(names, np.split(state.pop("in_proj_weight"), 3), strict=True))
    ours = nn.MultiheadAttention.from_arrays({**weights, **state}, 2)
    assert_same_bits(interop.to_torch(ours).in_proj_weight.detach().numpy(), packed.in_proj_weight)
    with pytest.raises(ValueError, match=r"separate weights for query, key and value, .*: pass share=False"):
        interop.to_torch(ours, share=True)


SIZES_THAT_TORCH_LACKS = [
    (
        {"num_kv_heads": 1},
        "module has num_kv_heads=1, which torch.nn.MultiheadAttention cannot have",
    ),
    ({"head_dim": 5}, "module has head_dim=5, .* always 2"),
    ({"v_head_dim": 5}, "module has v_head_dim=5, .* always 2"),
    ({"out_dim": 5}, "module has out_dim=5, .* always 4"),
    ({"scale": 1}, r"module has scale=1, .* always divides by sqrt\(head_dim\): multiply the rows of q_proj_weight"),
]


def test_sizes_that_torch_lacks_are_refused(torch, interop):
    for options, message in SIZES_THAT_TORCH_LACKS:
        with pytest.raises(ValueError, match=message):
            interop.to_torch(nn.MultiheadAttention(4, 2, **options))
    interop.to_torch(nn.MultiheadAttention(4, 2, scale=1 / np.sqrt(2)))  # as torch's


def test_a_part_with_parametrizations_is_copied_and_not_shared(torch, interop):
    theirs = torch.nn.MultiheadAttention(4, 2)
    torch.nn.utils.parametrizations.weight_norm(theirs.out_proj)
    assert_same_bits(interop.from_torch(theirs).out_proj.weight, theirs.out_proj.weight.detach().numpy())
    with pytest.raises(ValueError, match=r"^out_proj.weight is computed anew in each call .* parametrization"):
        interop.from_torch(theirs, share=True)

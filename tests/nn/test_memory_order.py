"""Memory order of weights: everything keeps the order it was given, to_order changes it, and no bit."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from support.helpers import assert_same_bits

import pyattn
from pyattn import nn
from pyattn.io import load, save

MODULES = {
    "linear": lambda: nn.Linear(6, 5, rng=0),
    "attention": lambda: nn.MultiheadAttention(6, 2, rng=0),
    "attention, separate": lambda: nn.MultiheadAttention(6, 2, kdim=4, vdim=3, rng=0),
    "feed forward": lambda: nn.FeedForward(6, 20, gated=True, rng=0),
    "decoder layer": lambda: nn.TransformerDecoderLayer(6, 2, 20, rng=0),
    "language model": lambda: nn.TransformerLM(9, 6, 2, 1, dim_feedforward=20, rng=0, tie_weights=False),
}


def is_embedding(name):
    return "embed" in name or "positions" in name


def weights_of(module):
    return {name: array for name, array in module.state_dict().items() if array.ndim == 2 and not is_embedding(name)}


def orders(module):
    return {"in_out" if array.flags.f_contiguous else "out_in" for array in weights_of(module).values()}


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_every_copy_keeps_an_order(make):
    module = make()
    assert orders(module) == {"in_out"}
    for order in ("out_in", "in_out"):
        assert orders(module.to_order(order)) == {order}
        copies = [copy.deepcopy(module), copy.copy(module), copy.deepcopy(module).double()]
        copies += [pickle.loads(pickle.dumps(module, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
        for other in copies:
            assert orders(other) == {order}
        for other in copies[3:]:
            assert orders(other.to_order("out_in").to_order("in_out")) == {"in_out"}
        module.load_state_dict({name: np.ascontiguousarray(array) for name, array in module.state_dict().items()})
        assert orders(module) == {order}


def test_initial_numbers_do_not_depend_on_the_order():
    weight, linear = nn.Linear(4, 5, rng=3).weight, nn.Linear(4, 5).to_order("out_in")
    linear.reset_parameters(rng=3)
    assert_same_bits(linear.weight, weight)
    assert linear.weight.flags.c_contiguous


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_files_hold_c_order(ending, tmp_path):
    module = nn.Linear(4, 5, rng=0)
    for order in ("in_out", "out_in"):
        save(module.to_order(order), tmp_path / (order + ending))
    assert (tmp_path / f"in_out{ending}").read_bytes() == (tmp_path / f"out_in{ending}").read_bytes()
    assert load(tmp_path / f"in_out{ending}")["weight"].flags.c_contiguous


@pytest.mark.parametrize("rows", [1, 3, 9, 40])
def test_an_order_changes_no_bit(rows, dtype):
    x = np.random.default_rng(rows).standard_normal((2, rows, 24)).astype(dtype)
    for make in (
        lambda: nn.TransformerEncoderLayer(24, 4, 70, batch_first=True, rng=0, dtype=dtype),
        lambda: nn.MultiheadAttention(24, 4, num_kv_heads=2, head_dim=10, batch_first=True, rng=0, dtype=dtype),
    ):
        module = make().eval()
        arguments = (x,) if isinstance(module, nn.TransformerEncoderLayer) else (x, x, x)
        results = [module.to_order(order)(*arguments) for order in ("in_out", "out_in")]
        first, second = (result if isinstance(result, np.ndarray) else result[0] for result in results)
        assert_same_bits(first, second)


def test_ties_stay_and_embeddings_keep_their_order():
    first, second = nn.Linear(3, 4, rng=0), nn.Linear(3, 4, rng=1)
    second.weight = first.weight
    assert pair_of(first, second).to_order("in_out").second.weight is first.weight
    assert first.weight.flags.f_contiguous

    model = nn.TransformerLM(9, 6, 2, 1, dim_feedforward=20, rng=0, tie_weights=True)
    words = model.embedding.weight
    model.to_order("out_in").to_order("in_out")
    assert model.embedding.weight is model.generator.weight is words
    assert words.flags.c_contiguous


def pair_of(first, second):
    pair = nn.Module()
    pair.first, pair.second = first, second
    return pair


def test_shared_memory_is_kept_unless_told():
    whole = np.random.default_rng(0).standard_normal((6, 4), np.float32)
    kept, part = nn.Linear(4, 3, rng=0), nn.Linear.from_arrays(whole[:3])
    pair, weight = pair_of(kept, part), kept.weight
    with pytest.raises(ValueError, match=r"^second\.weight shares memory .* pass copy=True"):
        pair.to_order("in_out")
    assert kept.weight is weight  # nothing is replaced
    pair.to_order("in_out", copy=True)
    assert part.weight.flags.f_contiguous
    assert not np.may_share_memory(part.weight, whole)
    assert_same_bits(part.weight, whole[:3])

    viewed = nn.Linear.from_arrays(whole.copy())
    view = nn.Linear.from_arrays(viewed.weight[:3])
    with pytest.raises(ValueError, match=r"^first\.weight shares memory"):
        pair_of(viewed, view).to_order("in_out")
    assert nn.Linear.from_arrays(whole[:3]).to_order("out_in").weight.base is whole  # it lies so already


@pytest.mark.peers
def test_memory_of_torch_stays_where_it_is(torch):
    theirs = torch.nn.Linear(4, 3)
    shared, own = (pyattn.interop.torch.from_torch(theirs, share=share) for share in (True, False))
    assert orders(own.to_order("in_out")) == {"in_out"}
    for order in ("in_out", "out_in"):
        tensors = pyattn.interop.torch.to_torch(own.to_order(order), share=True)
        assert tensors.weight.is_contiguous() == (order == "out_in")
    with pytest.raises(ValueError, match="shares memory"):
        shared.to_order("in_out")


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="order is 'F'; it must be 'in_out' or 'out_in'"):
        nn.Linear(2, 2).to_order("F")
    with pytest.raises(TypeError, match="copy"):
        nn.Linear(2, 2).to_order("in_out", copy=1)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_view_of_an_array_that_pickle_made_is_shared(protocol):
    large = pickle.loads(pickle.dumps(np.ones((300, 40), np.float32), protocol))
    linear = nn.Linear(40, 100)
    linear.weight = large[:100]
    with pytest.raises(ValueError, match=r"^weight shares memory"):
        linear.to_order("in_out")

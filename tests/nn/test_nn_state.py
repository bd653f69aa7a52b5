"""state_dict and load_state_dict; and that whatever is written to a weight, by any route, counts at once."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from collections import OrderedDict

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.nets import Net, Scale, X, state_of, torch_net

from pyattn import nn


def test_state_dict_shares_memory():
    net = Net()
    state = net.state_dict()
    state["first.weight"][0, 0] = 7
    assert net.first.weight[0, 0] == 7


def test_load_state_dict_writes_into_the_arrays_that_are_there():
    source, target = Net(rng=1), Net(rng=2)
    arrays, view = list(target.parameters()), target.first.weight[1:]
    assert target.load_state_dict(source.state_dict()) == ([], [])
    assert all(one is other for one, other in zip(arrays, target.parameters(), strict=True))
    assert_same_bits(view, source.first.weight[1:])
    assert_same_bits(target(X), source(X))
    assert not any(np.shares_memory(*both) for both in zip(source.parameters(), arrays, strict=True))


@pytest.mark.parametrize(
    "convert",
    [
        lambda array: array.tolist(),
        lambda array: array.astype(np.float64),
        lambda array: array.astype(">f4"),
        lambda array: memoryview(np.ascontiguousarray(array)) if array.ndim else array,
    ],
    ids=["list", "float64", "byte-swapped", "memoryview"],
)
def test_values_may_be_anything_numpy_reads(convert):
    source, target = Net(rng=1), Net(rng=2)
    target.load_state_dict(OrderedDict((key, convert(array)) for key, array in source.state_dict().items()))
    assert_same_bits(target(X), source(X))


def test_integers_and_bools_are_converted():
    scale = Scale(3)
    scale.load_state_dict({"factor": np.array([True, False, True])})
    assert_same_bits(scale.factor, np.float32([1, 0, 1]))


def test_an_npz_file_is_a_state(tmp_path):
    source, target = Net(rng=1), Net(rng=2)
    np.savez(tmp_path / "net.npz", **source.state_dict())
    with np.load(tmp_path / "net.npz", allow_pickle=False) as file:
        target.load_state_dict(file)
    assert_same_bits(target(X), source(X))


@pytest.mark.peers
def test_state_goes_to_torch_and_back(torch):
    net, theirs, back = Net(rng=1), torch_net(torch), Net(rng=2)
    theirs.load_state_dict({key: torch.from_numpy(array) for key, array in net.state_dict().items()})
    back.load_state_dict(theirs.state_dict())
    for key, array in back.state_dict().items():
        assert_same_bits(array, net.state_dict()[key], key)
        assert_same_bits(array, theirs.state_dict()[key].numpy(), key)


BAD_STATES = {
    "missing": (lambda state: state.pop("gain"), "^this state does not fit Net:\n- gain is missing$"),
    "unexpected": (lambda state: state.update(more=1), "^this state does not fit Net:\n- more is unexpected$"),
    "shape": (
        lambda state: state.update({"first.weight": np.ones((4, 3))}),
        r"^this state does not fit Net:\n- first.weight has shape \(4, 3\), expected \(3, 4\)$",
    ),
    "all at once": (
        lambda state: (state.pop("gain"), state.update({"more": 1, "scale.factor": 1.0})),
        r"gain is missing\n- more is unexpected\n- scale.factor has shape \(\), expected \(3,\)$",
    ),
}


class Holder(nn.Module):
    """A module with one part, whose parameters get a prefix."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer


@pytest.mark.parametrize(
    ("rename", "hint"),
    [
        (lambda name: f"attn.{name}", "Remove the prefix 'attn.' from the names: pass {name.removeprefix('attn.'): x"),
        (lambda name: f"my_{name}"[::-1], "in_proj_weight is numpy.concatenate([w_query, w_key, w_value])"),
    ],
    ids=["prefix", "own names"],
)
def test_names_that_do_not_fit_get_a_hint(rename, hint):
    layer = nn.MultiheadAttention(4, 2, rng=0)
    with pytest.raises(ValueError, match=re.escape(hint)):
        layer.load_state_dict({rename(name): x for name, x in layer.state_dict().items()})
    with pytest.raises(ValueError, match=r"Add the prefix 'layer\.' to the names"):
        Holder(layer).load_state_dict(layer.state_dict())


@for_each("name", BAD_STATES)
def test_a_state_that_does_not_fit_is_reported_and_nothing_is_written(name):
    spoil, message = BAD_STATES[name]
    net, state = Net(rng=1), state_of(Net(rng=2))
    before = state_of(net)
    spoil(state)
    with pytest.raises(ValueError, match=message):
        net.load_state_dict(state)
    for key, array in net.state_dict().items():
        assert_same_bits(array, before[key], key)


def test_without_strict_missing_and_unexpected_keys_are_returned():
    net, other = Net(rng=1), Net(rng=2)
    state = state_of(other)
    del state["first.bias"]
    state["more"] = object()  # is not looked at
    bias = net.first.bias.copy()
    report = net.load_state_dict(state, strict=False)
    assert report.missing_keys == ["first.bias"]
    assert report.unexpected_keys == ["more"]
    assert_same_bits(net.first.weight, other.first.weight)
    assert_same_bits(net.first.bias, bias)
    with pytest.raises(ValueError, match=r"first.bias has shape \(4,\), expected \(3,\)"):
        net.load_state_dict({"first.bias": np.ones(4)}, strict=False)


@for_each(
    ("state", "message"),
    [
        ([("factor", 1)], "state_dict is of type list, expected a mapping of names to arrays$"),
        (Scale(3), r"state_dict is of type Scale, .*; pass its state_dict\(\)$"),
        ({"factor": np.ones(3, complex)}, "factor has dtype complex128, expected real numbers"),
        ({"factor": ["a", "b", "c"]}, "factor has dtype <U1, expected real numbers"),
        ({"factor": np.ma.ones(3)}, "factor is a masked array"),
        ({"factor": None}, "factor is an object of type NoneType"),
    ],
)
def test_what_is_no_state_is_refused(state, message):
    scale = Scale(3)
    with pytest.raises(TypeError, match=message):
        scale.load_state_dict(state)
    assert scale.factor.tolist() == [1, 2, 3]


def test_a_read_only_parameter_is_named_before_anything_is_written():
    net = Net(rng=1)
    before = state_of(net)
    net.scale.factor.flags.writeable = False
    with pytest.raises(ValueError, match=r"scale.factor is read-only in the module"):
        net.load_state_dict(state_of(Net(rng=2)))
    assert_same_bits(net.first.weight, before["first.weight"])


def test_a_value_too_large_for_the_dtype_is_told_before_anything_is_written():
    net = Net(rng=1)
    before, state = state_of(net), state_of(Net(rng=2))
    state["scale.factor"] = np.full(3, 1e300)
    with pytest.raises(RuntimeWarning, match="overflow"):  # warnings are errors here
        net.load_state_dict(state)
    assert_same_bits(net.first.weight, before["first.weight"])


def test_a_module_can_load_its_own_arrays_in_other_places():
    net = nn.Module()
    net.left, net.right = np.arange(3.0), np.arange(3.0, 6.0)
    net.load_state_dict({"left": net.right, "right": net.left})
    assert (net.left.tolist(), net.right.tolist()) == ([3, 4, 5], [0, 1, 2])
    net.load_state_dict({"left": net.left[::-1], "right": net.right})
    assert net.left.tolist() == [5, 4, 3]


def test_a_parameter_under_two_names_stays_one():
    net = Net()
    factor = net.scale.factor
    net.load_state_dict({**state_of(net), "scale.factor": [7, 8, 9], "again.factor": [1, 2, 3]})
    assert factor.tolist() == [1, 2, 3]  # the last one, as in torch
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.double()):
        assert other.scale is other.again
        assert other.state_dict()["again.factor"] is other.scale.factor


# Weights stay honest


def write_by_index(linear, value):
    linear.weight[...] = value


def write_by_view(linear, value):
    view = linear.weight.T[::-1]
    view[...] = value.T[::-1]


def write_by_raw_memory(linear, value):
    memoryview(linear.weight.T).cast("B")[:] = value.T.tobytes()


def write_by_state(linear, value):
    linear.state_dict()["weight"][...] = value


def write_by_load(linear, value):
    linear.load_state_dict({"weight": value}, strict=False)


def write_by_assignment(linear, value):
    linear.weight = value


def write_by_optimiser(linear, value):
    """In place, parameter by parameter."""
    for array in linear.parameters():
        if array.shape == value.shape:
            array *= 0
            array += value


@pytest.mark.parametrize(
    "write",
    [
        write_by_index,
        write_by_view,
        write_by_raw_memory,
        write_by_state,
        write_by_load,
        write_by_assignment,
        write_by_optimiser,
    ],
)
def test_whatever_is_written_counts_in_the_next_call(write):
    linear, other = nn.Linear(4, 3, rng=1), nn.Linear(4, 3, rng=2)
    other.bias[...] = linear.bias
    before = linear(X)
    write(linear, other.weight.copy())
    assert_same_bits(linear(X), other(X))
    assert not np.array_equal(linear(X), before)


@pytest.mark.threads
def test_threads_may_call_one_module():
    net = Net()
    inputs = np.random.default_rng(1).standard_normal((8, 200, 4), np.float32)
    alone = [net(x) for x in inputs]
    results, gate = [None] * 8, threading.Barrier(8)

    def call(n):
        gate.wait()
        for _ in range(100):
            results[n] = net(inputs[n])

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(results, alone, strict=True):
        assert_same_bits(one, other)


def test_a_call_leaves_the_module_as_it_was():
    net = Net()
    before = {name: dict(vars(module)) for name, module in net.named_modules()}
    net(X)
    assert {name: dict(vars(module)) for name, module in net.named_modules()} == before

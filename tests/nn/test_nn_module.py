"""Module: what is registered and in which order, train and eval, dtypes, repr, and copies."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.nets import KEYS, Net, Scale, X, torch_net

from pyattn import nn

# What it consists of


def test_float_arrays_and_modules_are_registered_in_order():
    net = Net()
    assert list(net.state_dict()) == KEYS
    assert [name for name, _ in net.named_parameters()] == KEYS[:-1]
    assert [name for name, _ in net.named_parameters(recurse=False)] == ["gain"]
    assert [name for name, _ in net.named_parameters("net")][1] == "net.first.weight"
    assert [name for name, _ in net.named_modules()] == ["", "first", "scale"]
    assert [name for name, _ in net.named_children()] == ["first", "scale"]
    assert list(net.modules()) == [net, net.first, net.scale]
    assert list(net.children()) == [net.first, net.scale]
    assert all(one is other for one, other in zip(net.parameters(), net.state_dict().values(), strict=False))


@pytest.mark.peers
def test_names_and_repr_are_those_of_torch(torch):
    net, theirs = Net(), torch_net(torch)
    assert list(net.state_dict()) == list(theirs.state_dict())
    assert repr(net) == repr(theirs)
    for method in ("named_parameters", "named_modules", "named_children"):
        assert [name for name, _ in getattr(net, method)()] == [name for name, _ in getattr(theirs, method)()]


def test_repr():
    lines = Net().__repr__().splitlines()
    assert lines[0] == "Net("
    assert lines[1] == "  (first): Linear(in_features=4, out_features=3, bias=True)"
    assert lines[-2:] == ["  (absent): None", ")"]
    assert repr(nn.Module()) == "Module()"


def test_other_values_are_ordinary_attributes():
    scale = Scale(3)
    scale.name, scale.number, scale.scalar, scale.later = "s", 1.5, np.float32(2), None
    assert list(scale.state_dict()) == ["factor"]


def test_a_place_that_is_left_out_can_be_filled_and_emptied():
    scale = Scale(3)
    plain = scale(X[:, :3])
    scale.offset = np.ones(3, np.float32)
    assert list(scale.state_dict()) == ["factor", "offset"]
    np.testing.assert_array_equal(scale(X[:, :3]), plain + 1)
    scale.offset = None
    assert list(scale.state_dict()) == ["factor"]
    np.testing.assert_array_equal(scale(X[:, :3]), plain)


def test_what_is_deleted_is_no_longer_registered():
    net = Net()
    del net.gain, net.first
    assert list(net.state_dict()) == ["scale.factor", "again.factor"]
    assert not hasattr(net, "gain")
    net.gain = "now something else"
    with pytest.raises(AttributeError):
        del net.first


def test_parameters_are_the_arrays_that_were_assigned():
    scale = Scale(3)
    for array in (np.zeros(3), np.zeros(6, np.float32)[::-2], np.zeros(3, ">f8")):
        scale.factor = array
        assert scale.factor is array
        assert scale.state_dict()["factor"] is array


def test_augmented_assignment_stays_in_place():
    scale = Scale(3)
    factor = scale.factor
    scale.factor *= 2
    assert scale.factor is factor
    assert factor.tolist() == [2, 4, 6]


@for_each(
    ("name", "value", "kind", "message"),
    [
        (
            "factor",
            [1.0, 2.0],
            TypeError,
            "factor is a parameter and takes an array of floats, not .* list",
        ),
        ("factor", np.arange(3), TypeError, "factor has dtype int64, .*; use factor.astype"),
        ("factor", nn.Module(), TypeError, "factor is a parameter and takes .* not one of type Module"),
        (
            "other",
            np.ones(3, np.longdouble),
            TypeError,
            rf"other has dtype {np.dtype(np.longdouble)}, .*; use other.astype\(numpy.float32\)",
        ),
        ("other", np.ma.ones(3), TypeError, "other is a masked array"),
        ("other", np.ones((1, 1)).view(np.matrix), TypeError, "other is a numpy.matrix"),
        ("part", 1, TypeError, "part is a module and cannot become a value of type int"),
        ("part", np.ones(3), KeyError, "part is already another attribute"),
        ("training", np.ones(3), KeyError, "training is already another attribute"),
        ("forward", nn.Module(), KeyError, "forward is already another attribute"),
        ("a.b", np.ones(3), KeyError, "'a.b' cannot be registered"),
        ("", nn.Module(), KeyError, "'' cannot be registered"),
    ],
)
def test_what_cannot_be_registered_is_refused(name, value, kind, message):
    scale = Scale(3)
    scale.part = nn.Module()
    before = dict(vars(scale))
    with pytest.raises(kind, match=message):
        setattr(scale, name, value)
    assert vars(scale) == before


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match="Module does not define forward"):
        nn.Module()(1)


# Mode and dtype


def test_train_and_eval_reach_every_part():
    net = Net()
    assert net.training
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    assert net.train() is net
    assert all(module.training for module in net.modules())
    net.scale.eval()
    assert net.training
    with pytest.raises(TypeError, match="mode is of type int, expected True or False"):
        net.train(0)
    assert net.eval().train(np.True_).scale.training is True


def test_dtype():
    net = Net()
    assert net.dtype == np.float32
    net.gain = np.ones(())
    assert net.dtype is None
    assert nn.Module().dtype is None
    swapped = Scale(3)
    swapped.factor = np.ones(3, ">f8")
    assert swapped.dtype == np.float64


def test_a_parameter_that_was_added_to_a_layer_may_be_replaced():
    layer = nn.Linear(2, 3)
    layer.register_parameter("extra", np.ones(2, np.float32))
    layer.extra = np.zeros(2, np.float32)
    assert layer.to("float64").extra.dtype == np.float64


def test_to_replaces_parameters_of_another_dtype():
    net = Net()
    weight = net.first.weight
    assert net.to(np.float32) is net
    assert net.to("cpu") is net
    assert net.first.weight is weight
    assert net.double().dtype == np.float64
    assert_same_bits(net.first.weight.astype(np.float32), weight)
    assert net(X.astype(np.float64)).dtype == np.float64
    assert_same_bits(net.float().first.weight, weight)
    assert net.scale.offset is None


@pytest.mark.parametrize("dtype", [np.longdouble, "int64", None, complex])
def test_to_takes_four_dtypes(dtype):
    with pytest.raises(TypeError, match=r"dtype is .*, expected float16, bfloat16, float32 or float64"):
        Net().to(dtype)


# Copies


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, *[lambda net, p=p: pickle.loads(pickle.dumps(net, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)]],
    ids=["deepcopy", *[f"pickle {n}" for n in range(pickle.HIGHEST_PROTOCOL + 1)]],
)
def test_copies_are_equal_and_independent(duplicate):
    net = Net()
    net.eval()
    other = duplicate(net)
    plain = net(X)
    assert_same_bits(other(X), plain)
    assert repr(other) == repr(net)
    assert list(other.state_dict()) == KEYS
    assert not other.training
    for array in other.parameters():
        array[...] = 0
    other.more = np.ones(2)
    assert_same_bits(net(X), plain)
    assert list(net.state_dict()) == KEYS


def test_a_shallow_copy_shares_arrays_and_registers_by_itself():
    net = Net()
    other = copy.copy(net)
    other.more = np.ones(2)
    del other.gain
    assert list(net.state_dict()) == KEYS
    assert other.first is net.first


MODULES = {
    "linear": lambda dtype: nn.Linear(4, 4, dtype=dtype),
    "norm": lambda dtype: nn.LayerNorm(4, dtype=dtype),
    "head": lambda dtype: nn.SelfAttention(4, 4, bias=True, dtype=dtype),
    "feed": lambda dtype: nn.FeedForward(4, 4, gated=True, dtype=dtype).eval(),
}


@for_each("kind", MODULES)
def test_a_call_of_a_module_with_a_parameter_of_another_dtype_is_refused(kind):
    """As in torch; those of MultiheadAttention are in test_mha_mistakes.py."""
    x = np.ones((3, 4), "f4")
    for name in list(MODULES[kind]("f4").state_dict())[1:]:  # the first has the dtype that inputs have
        module = MODULES[kind]("f4")
        *parts, last = name.split(".")
        setattr(functools.reduce(getattr, parts, module), last, module.state_dict()[name].astype("f8"))
        message = f"^{name} has dtype float64, expected float32 as the module's other parameters; assign {name}.astype"
        with pytest.raises(TypeError, match=rf"{message}\(numpy.float32\), or convert all with to\(numpy.float32\)$"):
            module(x)
        assert module.float()(x).dtype == np.float32
        swapped = functools.reduce(getattr, parts, module)
        setattr(swapped, last, getattr(swapped, last).astype(">f4"))
        assert module(x).dtype == np.float32


def test_the_signature_of_a_module_is_that_of_its_forward():
    linear, layer = nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2)
    assert list(inspect.signature(linear).parameters) == ["x"]
    assert inspect.signature(layer) == inspect.signature(layer.forward)
    assert list(inspect.signature(nn.Linear).parameters)[:2] == ["in_features", "out_features"]

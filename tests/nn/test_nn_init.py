"""nn.init: the distributions that torch draws from, by derived bounds; the gains; and mistakes."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

from pyattn import nn

init = nn.init
SHAPE = (500, 1000)  # fan_out, fan_in
RANDOM = ("uniform_", "normal_", "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_")

# (function, arguments): the distribution as its mean and standard deviation, by the papers' formulas.
LAWS = [
    ("uniform_", {}, 0.5, 1 / math.sqrt(12)),
    ("uniform_", {"a": -3.0, "b": 1.0}, -1.0, 4 / math.sqrt(12)),
    ("normal_", {}, 0.0, 1.0),
    ("normal_", {"mean": 2.0, "std": 0.02}, 2.0, 0.02),
    ("xavier_uniform_", {}, 0.0, math.sqrt(2 / 1500)),
    ("xavier_uniform_", {"gain": 3.0}, 0.0, 3 * math.sqrt(2 / 1500)),
    ("xavier_normal_", {}, 0.0, math.sqrt(2 / 1500)),
    ("xavier_normal_", {"gain": 0.5}, 0.0, 0.5 * math.sqrt(2 / 1500)),
    ("kaiming_uniform_", {}, 0.0, math.sqrt(2 / 1000)),
    ("kaiming_uniform_", {"a": math.sqrt(5)}, 0.0, math.sqrt(1 / 3000)),
    ("kaiming_uniform_", {"mode": "fan_out", "nonlinearity": "relu"}, 0.0, math.sqrt(2 / 500)),
    ("kaiming_normal_", {}, 0.0, math.sqrt(2 / 1000)),
    ("kaiming_normal_", {"nonlinearity": "tanh"}, 0.0, 5 / 3 / math.sqrt(1000)),
    ("kaiming_normal_", {"mode": "fan_out", "nonlinearity": "linear"}, 0.0, math.sqrt(1 / 500)),
]
every_law = pytest.mark.parametrize(("name", "arguments", "mean", "std"), LAWS)


def distance_bound(n, p=1e-9):
    """Kolmogorov and Smirnov's distance of n numbers exceeds this with probability p at most (Massart 1990)."""
    return math.sqrt(math.log(2 / p) / (2 * n))


def cumulative(name, z):
    """Of the distribution with mean 0 and standard deviation 1."""
    if "uniform" in name:
        return np.clip((z / math.sqrt(3) + 1) / 2, 0, 1)
    return np.fromiter(map(math.erfc, -z / math.sqrt(2)), float, z.size) / 2


@every_law
def test_numbers_follow_their_law(name, arguments, mean, std, dtype):
    tensor = np.empty(SHAPE, dtype)
    assert getattr(init, name)(tensor, **arguments, rng=0) is tensor
    n = tensor.size
    z = np.sort((tensor.ravel().astype(np.float64) - mean) / std)
    fourth = 9 / 5 if "uniform" in name else 3  # E z^4
    assert abs(z.mean()) <= 5 / math.sqrt(n)
    assert abs((z**2).mean() - 1) <= 5 * math.sqrt((fourth - 1) / n)
    assert np.abs(cumulative(name, z) - (np.arange(n) + 0.5) / n).max() <= distance_bound(n) + 0.5 / n
    if "uniform" in name:
        assert np.abs(z).max() <= math.sqrt(3) * (1 + 1e-6)


@pytest.mark.peers
@every_law
def test_torch_has_the_same_laws(name, arguments, mean, std, torch):
    """The figures above are torch's own."""
    tensor = torch.empty(SHAPE)
    getattr(torch.nn.init, name)(tensor, **arguments, generator=torch.Generator().manual_seed(0))
    n = tensor.numel()
    z = np.sort((tensor.numpy().ravel().astype(np.float64) - mean) / std)
    assert np.abs(cumulative(name, z) - (np.arange(n) + 0.5) / n).max() <= distance_bound(n) + 0.5 / n


@pytest.mark.peers
@pytest.mark.parametrize("name", init.__all__)
def test_arguments_are_those_of_torch(name, torch):
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (init, torch.nn.init))
    assert [*ours] == [{"generator": "rng"}.get(argument, argument) for argument in theirs]
    for argument in set(ours) - {"rng"}:
        assert ours[argument].default == theirs[argument].default, argument


@pytest.mark.parametrize("name", RANDOM)
def test_rows_and_columns_are_drawn_one_by_one(name):
    """No two numbers are equal, in float64, and neighbours do not know of each other: 5 sigma again."""
    tensor = getattr(init, name)(np.empty((400, 300)), rng=1)
    assert np.unique(tensor).size == tensor.size
    z = (tensor - tensor.mean()) / tensor.std()
    for one, other in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1])):
        assert abs((one * other).mean()) <= 5 / math.sqrt(one.size)


@pytest.mark.parametrize("name", RANDOM)
def test_rng(name):
    fill = getattr(init, name)
    first = fill(np.empty((3, 4)), rng=5)
    for rng in (5, np.random.SeedSequence(5), generator := np.random.default_rng(5)):
        assert_same_bits(fill(np.empty((3, 4)), rng=rng), first)
    assert not np.array_equal(fill(np.empty((3, 4)), rng=generator), first)
    assert not np.array_equal(fill(np.empty((3, 4))), fill(np.empty((3, 4))))
    assert_same_bits(fill(np.empty((3, 4), np.float32), rng=5), first.astype(np.float32))


def test_views_are_filled_and_nothing_else():
    memory = np.zeros((6, 8), np.float32)
    init.normal_(memory[::2, ::-2], rng=0)
    assert np.count_nonzero(memory) == 12
    assert_same_bits(memory[::2, ::-2], init.normal_(np.empty((3, 4), np.float32), rng=0))


def test_further_axes_count_in_both_fans():
    """A convolution's weight: (fan_out, fan_in, receptive field)."""
    small, large = (init.xavier_uniform_(np.empty(shape), rng=0) for shape in ((40, 30, 4), (160, 120)))
    assert np.abs(small).max() == pytest.approx(np.abs(large).max(), rel=0.01)


def test_constants(dtype):
    tensor = np.empty((2, 3), dtype)
    for fill, value in ((init.zeros_, 0), (init.ones_, 1), (lambda t: init.constant_(t, 0.3), 0.3)):
        assert fill(tensor) is tensor
        assert_same_bits(tensor, np.full((2, 3), value, dtype))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("name", RANDOM)
def test_nothing_to_fill(name, shape):
    assert getattr(init, name)(np.empty(shape)).shape == shape


# Gains

LINEAR = ["linear", *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))]


@pytest.mark.peers
@pytest.mark.parametrize("nonlinearity", [*LINEAR, "sigmoid", "tanh", "relu", "leaky_relu", "selu"])
def test_gains_are_those_of_torch(nonlinearity, torch):
    for param in (None, 0, 0.2, -1, 3.0):
        assert init.calculate_gain(nonlinearity, param) == torch.nn.init.calculate_gain(nonlinearity, param)


def test_gains():
    assert init.calculate_gain("relu") == math.sqrt(2)
    assert init.calculate_gain("leaky_relu", 0) == math.sqrt(2)
    assert init.calculate_gain("leaky_relu", np.float32(1)) == 1
    with pytest.raises(ValueError, match=r"nonlinearity is 'gelu'; it must be 'sigmoid', 'tanh', .* or 'leaky_relu'"):
        init.calculate_gain("gelu")
    for param in (True, "0.1"):
        with pytest.raises(TypeError, match=f"^param is of type {type(param).__name__}, expected a number$"):
            init.calculate_gain("leaky_relu", param)


# Mistakes


@for_each("name", [*RANDOM, "zeros_", "ones_"])
def test_what_cannot_be_filled_is_refused(name):
    fill, fixed = getattr(init, name), np.zeros((2, 2))
    fixed.flags.writeable = False
    with pytest.raises(TypeError, match=r"tensor is of type list, expected a numpy\.ndarray"):
        fill([[1.0]])
    with pytest.raises(TypeError, match="tensor has dtype int64, expected floats"):
        fill(np.ones((2, 2), int))
    with pytest.raises(ValueError, match="tensor is read-only"):
        fill(fixed)
    assert not fixed.any()


@for_each(
    ("name", "arguments", "message"),
    [
        ("uniform_", {"a": 1.0, "b": 0.0}, r"a is 1.0 and b is 0.0, expected finite bounds with a <= b"),
        ("uniform_", {"b": math.inf}, r"b is inf, expected finite bounds"),
        ("uniform_", {"a": math.nan}, r"a is nan"),
        ("normal_", {"std": -1.0}, r"std is -1.0, expected a finite number of 0 or more"),
        ("normal_", {"std": math.nan}, r"std is nan"),
        ("xavier_uniform_", {"gain": -1.0}, r"gain is -1.0, expected a finite number of 0 or more"),
        ("xavier_normal_", {"gain": -1.0}, r"gain is -1.0, expected a finite number of 0 or more"),
        ("kaiming_uniform_", {"mode": "fan"}, r"mode is 'fan'; it must be 'fan_in' or 'fan_out'"),
        ("kaiming_normal_", {"nonlinearity": "gelu"}, r"nonlinearity is 'gelu'"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(name, arguments, message):
    tensor = np.zeros((2, 2))
    with pytest.raises(ValueError, match=message):
        getattr(init, name)(tensor, **arguments)
    assert not tensor.any()


@for_each("name", RANDOM)
def test_what_gives_no_numbers_is_named_and_nothing_is_written(name):
    tensor = np.zeros((2, 2))
    for argument in {"a", "b", "mean", "std", "val", "gain"} & inspect.signature(getattr(init, name)).parameters.keys():
        for x, kind in (("x", "str"), (np.ones(2), "ndarray")):
            with pytest.raises(TypeError, match=rf"^{argument} is of type {kind}, expected a number$"):
                getattr(init, name)(tensor, **{argument: x})
    with pytest.raises(TypeError, match=r"^rng is 'x', expected None, an int of 0 or more, a SeedSequence or a numpy"):
        getattr(init, name)(tensor, rng="x")
    assert not tensor.any()


@pytest.mark.parametrize("name", RANDOM[2:])
def test_fans_need_two_axes(name):
    with pytest.raises(
        ValueError, match=r"tensor has shape \(3,\), expected 2 axes or more: \(fan_out, fan_in, \.\.\.\)"
    ):
        getattr(init, name)(np.zeros(3))

"""nn.Linear: torch's numbers, torch's first numbers, and one dtype."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn


@pytest.mark.peers
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(70,), (1, 70), (5, 70), (2, 3, 70), (0, 70), (200, 70)])
def test_equals_torch(shape, bias, dtype, torch):
    theirs = torch.nn.Linear(70, 33, bias=bias, dtype=getattr(torch, dtype))
    ours = nn.Linear(70, 33, bias=bias, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(x)).numpy()
    # 4u (|x||W| + |b|) times the square root of the inner length, from each of the two.
    size = np.abs(x) @ np.abs(ours.weight).T + (np.abs(ours.bias) if bias else 0)
    result = ours(x)
    assert result.dtype == dtype
    assert (np.abs(result - expected) <= 8 * np.finfo(dtype).eps / 2 * math.sqrt(70) * size).all()
    assert repr(ours) == repr(theirs)


def test_is_the_function(dtype):
    linear = nn.Linear(20, 7, dtype=dtype, rng=0)
    x = np.random.default_rng(1).standard_normal((3, 20)).astype(dtype)
    assert_same_bits(linear(x), pyattn.functional.linear(x, linear.weight, linear.bias))
    assert_same_bits(linear(x=x), linear.forward(x))
    assert pyattn.nn.Linear is nn.Linear


def test_parameters():
    linear = nn.Linear(3, 2)
    assert [(name, array.shape) for name, array in linear.named_parameters()] == [("weight", (2, 3)), ("bias", (2,))]
    assert linear.dtype == np.float32
    assert nn.Linear(3, 2, False).bias is None
    assert list(nn.Linear(3, 2, bias=False).state_dict()) == ["weight"]
    assert nn.Linear(np.int64(3), 2, dtype=float).dtype == np.float64


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_empty_sizes(sizes):
    linear = nn.Linear(*sizes, rng=0)
    result = linear(np.ones((4, sizes[0]), np.float32))
    assert result.shape == (4, sizes[1])
    assert_same_bits(result, np.broadcast_to(linear.bias, result.shape))


# The first numbers


def test_the_first_numbers_are_uniform(dtype):
    """Means of n numbers lie within 5 sigma, and no number beyond the bound, which some come close to."""
    linear = nn.Linear(400, 500, dtype=dtype, rng=0)
    bound = 1 / math.sqrt(400)
    for array in linear.parameters():
        n = array.size
        assert np.abs(array).max() <= np.asarray(bound, dtype)
        assert np.abs(array).max() >= bound * (1 - 20 / n)  # fails with probability e^-20
        assert abs(array.mean(dtype=np.float64)) <= 5 * bound / math.sqrt(3 * n)
        assert abs((array.astype(np.float64) ** 2).mean() - bound**2 / 3) <= 5 * bound**2 * math.sqrt(4 / 45 / n)


@pytest.mark.peers
def test_torch_draws_from_the_same_distribution(torch):
    """Two empirical distributions of n numbers differ by more than 2 sqrt(ln(2 / p) / 2n) with probability below 2p."""
    torch.manual_seed(0)
    n = 400 * 500
    ours, theirs = nn.Linear(400, 500, rng=0).weight.ravel(), torch.nn.Linear(400, 500).weight.detach().numpy().ravel()
    both = np.sort(np.concatenate([ours, theirs]))
    distance = np.abs(np.searchsorted(np.sort(ours), both) - np.searchsorted(np.sort(theirs), both)).max() / n
    assert distance <= 2 * math.sqrt(math.log(2 / 1e-9) / (2 * n))


def test_rng_gives_the_same_numbers_and_a_generator_moves_on():
    first = nn.Linear(5, 4, rng=7)
    for rng in (7, np.random.SeedSequence(7), np.random.default_rng(7)):
        assert_same_bits(nn.Linear(5, 4, rng=rng).weight, first.weight)
    generator = np.random.default_rng(7)
    assert_same_bits(nn.Linear(5, 4, rng=generator).bias, first.bias)
    assert not np.array_equal(nn.Linear(5, 4, rng=generator).bias, first.bias)
    assert not np.array_equal(nn.Linear(5, 4).weight, nn.Linear(5, 4).weight)
    assert not np.isin(first.bias, first.weight).any()


def test_both_dtypes_begin_with_the_same_numbers():
    single, double = (nn.Linear(5, 4, dtype=dtype, rng=7) for dtype in ("float32", "float64"))
    assert_same_bits(double.float().weight, single.weight)


def test_reset_parameters_draws_into_the_arrays_that_are_there():
    linear, fresh = nn.Linear(5, 4, rng=1), nn.Linear(5, 4, rng=2)
    weight = linear.weight
    linear.reset_parameters(rng=2)
    assert linear.weight is weight
    assert_same_bits(weight, fresh.weight)
    assert_same_bits(linear.bias, fresh.bias)


# From arrays


def test_from_arrays_takes_the_arrays_themselves(dtype):
    weight, bias = np.ones((2, 6), dtype)[:, ::-2], np.zeros(2, dtype)
    linear = nn.Linear.from_arrays(weight, bias)
    assert linear.weight is weight
    assert linear.bias is bias
    assert repr(linear) == "Linear(in_features=3, out_features=2, bias=True)"
    bias[1] = 5
    assert linear(np.ones(3, dtype)).tolist() == [3, 8]
    assert repr(nn.Linear.from_arrays(weight)).endswith("bias=False)")


def test_a_read_only_file_can_be_a_weight(tmp_path):
    np.save(tmp_path / "weight.npy", np.arange(6.0).reshape(2, 3))
    weight = np.load(tmp_path / "weight.npy", mmap_mode="r")
    assert nn.Linear.from_arrays(weight)(np.ones(3)).tolist() == [3, 12]


def test_weights_in_another_byte_order():
    linear = nn.Linear.from_arrays(np.arange(6.0).reshape(2, 3).astype(">f8"))
    assert linear(np.ones(3)).tolist() == [3, 12]
    assert linear(np.ones(3, ">f8")).tolist() == [3, 12]


W = np.ones((2, 3), np.float32)


@for_each(
    ("weight", "bias", "kind", "message"),
    [
        (W.tolist(), None, TypeError, "weight is a parameter and takes an array of floats, not .* list"),
        (W[0], None, ValueError, r"weight has shape \(3,\), expected 2 axes: \(out_features, in_features\)"),
        (W, W[0], ValueError, r"bias has shape \(3,\), expected \(2,\): weight has \(2, 3\)"),
        (W, np.ones(2), TypeError, "bias has dtype float64, expected float32 as weight"),
        (W.astype(int), None, TypeError, "weight has dtype int64"),
    ],
)
def test_arrays_that_make_no_layer_are_refused(weight, bias, kind, message):
    with pytest.raises(kind, match=message):
        nn.Linear.from_arrays(weight, bias)


# Mistakes


@for_each(
    ("x", "message"),
    [
        (
            np.ones(3),
            r"^x has dtype float64, expected float32 as the module's weights; "
            r"pass x.astype\(numpy.float32\), or make the module with dtype=numpy.float64$",
        ),
        (np.ones(3, np.longdouble), r"^x has dtype \w+, .*; pass x.astype\(numpy.float32\)$"),
        (np.ma.ones(3), "x is a masked array"),
        ("text", "x is a string"),
        (None, "x is an object of type NoneType"),
    ],
)
def test_another_dtype_is_refused_with_the_fix(x, message):
    with pytest.raises(TypeError, match=message):
        nn.Linear(3, 2)(x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "x", [[1, 2, 3], [1.0, 2.0, 3.0], (1, True, 3), np.arange(3), np.ones(3, bool), np.uint8([1, 2, 3])], ids=str
)
def test_lists_bools_and_integers_take_the_dtype_of_the_module(x, dtype):
    linear = nn.Linear(3, 2, dtype=dtype, rng=0)
    assert_same_bits(linear(x), linear(np.array(x, dtype)))


def test_the_fixes_that_are_offered_work():
    assert nn.Linear(3, 2)(np.ones(3).astype(np.float32)).dtype == np.float32
    assert nn.Linear(3, 2)(np.asarray([1, 2, 3], np.float32)).dtype == np.float32
    assert nn.Linear(3, 2, dtype=np.float64)([1.0, 2.0, 3.0]).dtype == np.float64


@for_each("x", [np.float32(1), np.ones((3, 2), np.float32), np.ones((), np.float32)])
def test_another_size_is_refused(x):
    with pytest.raises(ValueError, match=r"^x has shape \(.*\), expected \(\.\.\., 3\): in_features is last$"):
        nn.Linear(3, 2)(x)


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"in_features": 2.0}, TypeError, "in_features is of type float, expected an int"),
        ({"out_features": "2"}, TypeError, "out_features is of type str, expected an int"),
        ({"out_features": -1}, ValueError, "out_features is -1, expected 0 or more"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8', expected float16, bfloat16, float32 or float64"),
        ({"dtype": None}, TypeError, "dtype is None, expected float16, bfloat16, float32 or float64"),
        ({"rng": 1.5}, TypeError, "^rng is 1.5, expected None, an int of 0 or more, a SeedSequence or a numpy.random"),
        ({"rng": -1}, ValueError, "^rng is -1, expected None, an int of 0 or more"),
        ({"bias": "no"}, TypeError, "^bias is of type str, expected True or False"),
        ({"bias": None}, TypeError, "^bias is of type NoneType, expected True or False"),
    ],
)
def test_mistakes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        nn.Linear(**{"in_features": 3, "out_features": 2, **arguments})

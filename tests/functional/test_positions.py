"""positional_encoding and nn.PositionalEncoding: the published formula, from any position on."""

from __future__ import annotations

import copy
import math
import pickle

import mpmath
import numpy as np
import pytest
from support.halves import HALVES, assert_rounded
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn


def formula(positions, dim, base=10000.0):
    """As published, pair by pair, in float64."""
    table = np.empty((len(positions), dim))
    for row, position in enumerate(positions):
        for feature in range(dim):
            angle = position / base ** (2 * (feature // 2) / dim)
            table[row, feature] = math.cos(angle) if feature % 2 else math.sin(angle)
    return table


# The function


@for_each("dim", [0, 1, 2, 3, 7, 8, 64, 65])
@for_each("base", [10000.0, 100, 2.5, 0.5])
def test_it_is_the_published_formula(dim, base, dtype):
    table = pyattn.functional.positional_encoding(50, dim, base=base, dtype=dtype)
    angles = np.arange(50)[:, np.newaxis] / float(base) ** (2 * (np.arange(dim) // 2) / max(1, dim))
    assert table.dtype == dtype
    # the angle: of a power and a quotient, 16 u; the result: 4 u of 1, and one rounding to dtype
    bound = 2.0**-53 * (16 * angles + 4) + np.finfo(dtype).eps / 2
    assert (np.abs(table - formula(range(50), dim, base)) <= bound).all()


@pytest.mark.parametrize("position", [0, 1, 5, 4999, 10**6])
def test_against_fifty_digits(position, dtype):
    dim = 12
    table = pyattn.functional.positional_encoding(1, dim, position, dtype=dtype)[0]
    with mpmath.workdps(50):
        for feature in range(dim):
            angle = position / mpmath.mpf(10000) ** (mpmath.mpf(2 * (feature // 2)) / dim)
            exact = mpmath.cos(angle) if feature % 2 else mpmath.sin(angle)
            bound = 2.0**-53 * (16 * float(angle) + 4) + np.finfo(dtype).eps / 2
            assert abs(float(table[feature]) - exact) <= bound


def test_float32_is_float64_rounded_once():
    table = pyattn.functional.positional_encoding(300, 65, dtype=np.float64)
    single = table.astype(np.float32)
    assert_same_bits(pyattn.functional.positional_encoding(300, 65), single)
    for kind in HALVES:  # float32's, rounded
        assert_rounded(pyattn.functional.positional_encoding(300, 65, dtype=kind), single, kind)


@pytest.mark.parametrize("dim", [1, 6, 7, 64])
def test_a_row_is_that_of_its_position(dim, dtype):
    """Wherever it begins, and however many follow."""
    table = pyattn.functional.positional_encoding(600, dim, dtype=dtype)
    for start, length in [(1, 7), (3, 1), (130, 200), (599, 1), (600, 0)]:
        assert_same_bits(
            pyattn.functional.positional_encoding(length, dim, start, dtype=dtype), table[start : start + length]
        )


def test_a_step_is_a_rotation():
    """Which is why it was chosen: PE[pos + k] is linear in PE[pos], by one matrix for all positions."""
    table = pyattn.functional.positional_encoding(40, 2, dtype=np.float64)
    turn = np.array([[math.cos(5), -math.sin(5)], [math.sin(5), math.cos(5)]])
    np.testing.assert_allclose(table[5:], table[:-5] @ turn, atol=1e-14)


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"length": -1}, ValueError, "length is -1, expected 0 or more"),
        ({"length": 2.0}, TypeError, "length is of type float, expected an int"),
        ({"embed_dim": "a"}, TypeError, "embed_dim is of type str, expected an int"),
        ({"start": -1}, ValueError, "start is -1, expected 0 or more"),
        ({"base": 0}, ValueError, "base is 0, expected a finite number above 0"),
        ({"base": math.nan}, ValueError, "base is nan, expected a finite number above 0"),
        ({"base": math.inf}, ValueError, "base is inf, expected a finite number above 0"),
        ({"base": True}, TypeError, "base is of type bool, expected a number"),
        ({"base": "a"}, TypeError, "base is of type str, expected a number"),
        ({"dtype": int}, TypeError, "dtype is <class 'int'>, expected float16, bfloat16, float32 or float64"),
    ],
)
def test_mistakes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        pyattn.functional.positional_encoding(**{"length": 3, "embed_dim": 4, **arguments})


# The module


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("start", [0, 3])
def test_it_is_added_at_its_position(learned, start, dtype):
    module = nn.PositionalEncoding(6, 12, 0, learned, dtype=dtype, rng=0)
    x = np.random.default_rng(1).standard_normal((2, 4, 9, 6)).astype(dtype)
    table = module.weight if learned else pyattn.functional.positional_encoding(12, 6, dtype=dtype)
    expected = x + table[start : start + 9]
    assert_same_bits(module(x, start=start), expected)
    assert_same_bits(module(x[0, 0], start=start), expected[0, 0])
    assert_same_bits(module(x[:, :, 4:5], start=start + 4), expected[:, :, 4:5])


@pytest.mark.parametrize("learned", [False, True])
def test_the_length_comes_first_where_the_batch_does_not(learned):
    x = np.random.default_rng(1).standard_normal((2, 5, 6)).astype(np.float32)
    first = nn.PositionalEncoding(6, 12, 0, learned, rng=0)
    second = nn.PositionalEncoding(6, 12, 0, learned, batch_first=False, rng=0)
    assert_same_bits(second(x.swapaxes(0, 1), 3), np.ascontiguousarray(first(x, 3).swapaxes(0, 1)))
    assert_same_bits(second(x[0], 3), first(x[0], 3))


@pytest.mark.parametrize("learned", [False, True])
def test_the_sum_is_dropped_from_in_training(learned):
    module = nn.PositionalEncoding(6, 12, 0.25, learned, rng=0)
    x = np.random.default_rng(1).standard_normal((2, 5, 6)).astype(np.float32)
    dropped = module(x, 3, rng=7)
    whole = module.eval()(x, 3, rng=7)
    assert_same_bits(dropped, pyattn.functional.dropout(whole, 0.25, rng=7))
    assert (dropped == 0).any()
    assert (whole != 0).all()


def test_only_what_is_learned_is_state():
    assert nn.PositionalEncoding(4, 9).state_dict() == {}
    assert list(nn.PositionalEncoding(4, 9).parameters()) == []
    learned = nn.PositionalEncoding(4, 9, learned=True)
    assert {name: array.shape for name, array in learned.state_dict().items()} == {"weight": (9, 4)}


def test_what_is_learned_begins_as_the_models_that_have_it():
    weight = nn.PositionalEncoding(400, 500, learned=True, dtype=np.float64, rng=0).weight
    assert abs(weight.mean()) < 5 * 0.02 / math.sqrt(weight.size)
    assert abs(weight.var() / 0.02**2 - 1) < 5 * math.sqrt(2 / weight.size)


@pytest.mark.parametrize("learned", [False, True])
def test_rows_are_a_residual_for_embedding(learned, dtype):
    module, table = nn.PositionalEncoding(6, 12, 0, learned, dtype=dtype, rng=0), np.eye(6, dtype=dtype)
    ids = np.array([[0, 3, 5], [1, 1, 2]])
    fused = pyattn.functional.embedding(ids, table, scale=2, residual=module.rows(3, 4, dtype))
    assert_same_bits(fused, module(pyattn.functional.embedding(ids, table, scale=2), 4))


def test_modules_share_one_table_that_cannot_be_written():
    rows = nn.PositionalEncoding(6, 12).rows(3)
    assert np.shares_memory(rows, nn.PositionalEncoding(6, 12).rows(12))
    with pytest.raises(ValueError, match="read-only"):
        rows[0] = 1


@pytest.mark.parametrize("learned", [False, True])
def test_copies_and_pickles_compute_the_same(learned):
    module = nn.PositionalEncoding(6, 12, 0, learned, base=7.0, rng=0)
    x = np.zeros((3, 6), np.float32)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(twin) == repr(module)
        assert_same_bits(twin(x), module(x))
    assert_same_bits(module.double()(x.astype(float)).astype(np.float32), module.float()(x))


def test_it_tells_its_sizes():
    assert repr(nn.PositionalEncoding(6)) == "PositionalEncoding(6, max_length=5000, dropout=0.1)"
    module = nn.PositionalEncoding(6, 9, 0.25, True, False, base=7)
    assert (
        repr(module) == "PositionalEncoding(6, max_length=9, dropout=0.25, learned=True, batch_first=False, base=7.0)"
    )


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"embed_dim": -1}, ValueError, "embed_dim is -1, expected 0 or more"),
        ({"max_length": 2.0}, TypeError, "max_length is of type float, expected an int"),
        ({"dropout": 2}, ValueError, "dropout is 2, expected a probability from 0 to 1"),
        ({"dropout": True}, TypeError, "dropout is of type bool, expected a number"),
        ({"base": -1}, ValueError, "base is -1, expected a finite number above 0"),
        ({"dtype": "i1"}, TypeError, "dtype is 'i1', expected float16, bfloat16, float32 or float64"),
    ],
)
def test_wrong_sizes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        nn.PositionalEncoding(**{"embed_dim": 4, **arguments})


X = np.zeros((2, 5, 6), np.float32)


@for_each(
    ("x", "arguments", "kind", "message"),
    [
        (
            X,
            {"start": 8},
            ValueError,
            "^length 5 from position 8 needs 13 positions, but max_length is 12; make the",
        ),
        (X, {"start": -1}, ValueError, "^start is -1, expected 0 or more"),
        (X, {"start": 1.0}, TypeError, "^start is of type float, expected an int"),
        (X[..., :4], {}, ValueError, r"^x has shape \(2, 5, 4\), expected \(..., length, 6\): embed_dim is last"),
        (X[0, 0], {}, ValueError, r"^x has shape \(6,\), expected \(..., length, 6\)"),
        (X.astype("f8"), {}, TypeError, "^x has dtype float64, expected float32"),
    ],
)
@for_each("learned", [False, True])
def test_wrong_inputs_are_named(learned, x, arguments, kind, message):
    with pytest.raises(kind, match=message):
        nn.PositionalEncoding(6, 12, 0, learned)(x, **arguments)


@pytest.mark.parametrize("learned", [False, True])
def test_it_is_as_strict_as_other_modules(learned, dtype):
    module = nn.PositionalEncoding(6, 12, 0, learned, dtype=dtype, rng=0)
    assert module.dtype == dtype
    other = np.dtype("f4" if np.dtype(dtype) == "f8" else "f8")
    with pytest.raises(TypeError, match=f"^x has dtype {other}, expected {np.dtype(dtype)} as the module's weights"):
        module(X.astype(other))
    expected = module(X.astype(dtype))
    assert_same_bits(module(X.astype(int)), expected)
    assert_same_bits(module(X.tolist()), expected)
    whole = nn.ModuleList([module]).to(other)
    assert module.dtype == other
    assert module(X.tolist()).dtype == other
    assert module.rows(3).dtype == other
    assert whole.to(dtype)[0](X.tolist()).dtype == dtype


def test_the_axis_of_the_length_is_named():
    with pytest.raises(ValueError, match=r"expected \(length, ..., 6\)"):
        nn.PositionalEncoding(6, 12, 0, batch_first=False)(X[..., 0])

"""pad_sequences, add_special_tokens and shift_right: sequences of token ids."""

from __future__ import annotations

import numpy as np
import pytest
from support.halves import HALVES
from support.helpers import assert_same_bits

import pyattn

RAGGED = [[5, 6, 7], [8], [], [9, 10, 11, 12]]


def padded(sequences, **arguments):
    array, lengths = pyattn.generation.pad_sequences(sequences, **arguments)
    return array.tolist(), lengths.tolist()


# pad_sequences


@pytest.mark.peers
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("value", [0, -100])
def test_torch_pads_the_same(side, value, torch):
    rng = np.random.default_rng(0)
    for _ in range(20):
        sequences = [rng.integers(0, 99, rng.integers(0, 12)) for _ in range(rng.integers(1, 6))]
        theirs = torch.nn.utils.rnn.pad_sequence(
            [torch.from_numpy(ids) for ids in sequences], batch_first=True, padding_value=value, padding_side=side
        )
        array, lengths = pyattn.generation.pad_sequences(sequences, padding_value=value, side=side)
        np.testing.assert_array_equal(array, theirs.numpy())
        assert array.dtype == np.int64
        assert lengths.tolist() == [len(ids) for ids in sequences]


def test_padding_on_either_side():
    assert padded(RAGGED) == ([[5, 6, 7, 0], [8, 0, 0, 0], [0, 0, 0, 0], [9, 10, 11, 12]], [3, 1, 0, 4])
    assert padded(RAGGED, side="left")[0] == [[0, 5, 6, 7], [0, 0, 0, 8], [0, 0, 0, 0], [9, 10, 11, 12]]
    assert padded(RAGGED[:2], length=5, padding_value=-1) == ([[5, 6, 7, -1, -1], [8, -1, -1, -1, -1]], [3, 1])


@pytest.mark.parametrize("side", ["right", "left"])
def test_longer_sequences_are_cut_on_either_side(side):
    assert padded([[1, 2, 3]], length=2, truncate="right", side=side) == ([[1, 2]], [2])
    assert padded([[1, 2, 3]], length=2, truncate="left", side=side) == ([[2, 3]], [2])
    assert padded([[1, 2, 3]], length=0, truncate="left", side=side) == ([[]], [0])
    assert padded([[1, 2, 3]], length=3, truncate=None, side=side) == ([[1, 2, 3]], [3])


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("truncate", ["right", "left"])
@pytest.mark.parametrize("length", [None, 0, 1, 5, 12])
def test_lengths_exclude_padding(length, truncate, side):
    rng = np.random.default_rng(0)
    for count in range(12):
        sequences = [rng.integers(-(2**63), 2**63, rng.integers(0, 10)).tolist() for _ in range(count % 6)]
        check_padded(sequences, length, truncate, side)


def check_padded(sequences, length, truncate, side):
    array, lengths = pyattn.generation.pad_sequences(
        sequences, length=length, truncate=truncate, side=side, padding_value=-7
    )
    size = max(map(len, sequences), default=0) if length is None else length
    assert array.shape == (len(sequences), size)
    for row, count, ids in zip(array.tolist(), lengths.tolist(), sequences, strict=True):
        kept = ids[:count] if truncate == "right" else ids[len(ids) - count :]
        rest = [-7] * (size - count)
        assert count == min(len(ids), size)
        assert row == (kept + rest if side == "right" else rest + kept)


def test_the_masks_in_the_docstring():
    for side in ("right", "left"):
        array, lengths = pyattn.generation.pad_sequences(RAGGED, side=side)
        before = np.arange(4) >= 4 - lengths[:, None]
        mask = pyattn.masks.padding(lengths, 4)[:, 0, 0] if side == "right" else before
        np.testing.assert_array_equal(mask, array > 0)


def test_other_dtypes():
    assert pyattn.generation.pad_sequences([[True], []], dtype=bool)[0].tolist() == [[True], [False]]
    array, _ = pyattn.generation.pad_sequences([np.array([0.1]), [1, 2]], padding_value=np.nan, dtype=np.float32)
    np.testing.assert_array_equal(array, np.array([[0.1, np.nan], [1, 2]], np.float32))
    for name, half in HALVES.items():
        array, _ = pyattn.generation.pad_sequences([np.array([0.1]), np.ones(2, half), [3]], dtype=name)
        assert_same_bits(array, np.array([[0.1, 0], [1, 1], [3, 0]], np.float32).astype(half))
        assert pyattn.generation.pad_sequences([np.ones(1, half)], dtype=np.float64)[0].tolist() == [[1]]
    assert pyattn.generation.pad_sequences([np.array([300], ">u2")], dtype="i4")[0].tolist() == [[300]]
    assert pyattn.generation.pad_sequences(np.array([[1, 2], [3, 4]]))[0].tolist() == [[1, 2], [3, 4]]
    assert pyattn.generation.pad_sequences(iter(RAGGED))[1].tolist() == [3, 1, 0, 4]
    assert pyattn.generation.pad_sequences([])[0].shape == (0, 0)
    assert pyattn.generation.pad_sequences([], length=3)[0].shape == (0, 3)


MISTAKES_IN_PADDING = [
    (3, {}, TypeError, "^sequences is of type int, expected a list of sequences of ids"),
    ("text", {}, TypeError, "^sequences is of type str, expected a list of sequences of ids"),
    ([1, 2], {}, ValueError, r"^sequences\[0\] has shape \(\), expected \(length,\); for one sequence, pass \[seq"),
    ([[1], [[2]]], {}, ValueError, r"^sequences\[1\] has shape \(1, 1\), expected \(length,\)$"),
    (["word"], {}, ValueError, r"^sequences\[0\] has shape \(\)"),
    (
        [["word"]],
        {},
        TypeError,
        r"^sequences\[0\] has dtype <U4, expected integers that int64 can hold",
    ),
    ([[1], [0.5]], {}, TypeError, r"^sequences\[1\] has dtype float64, expected integers that int64 can hold"),
    ([[1, 300]], {"dtype": np.int8}, ValueError, r"^sequences\[0\] holds 300, which int8 cannot hold"),
    ([[2**64 - 1]], {}, ValueError, r"^sequences\[0\] holds 18446744073709551615, which int64 cannot hold"),
    (
        [[2**24 + 1]],
        {"dtype": np.float32},
        ValueError,
        r"^sequences\[0\] holds 16777217, which float32 cannot hold",
    ),
    ([None], {}, TypeError, r"^sequences\[0\] is an object of type NoneType"),
    ([np.ma.array([1])], {}, TypeError, r"^sequences\[0\] is a masked array"),
    (
        RAGGED,
        {"length": 3},
        ValueError,
        r"^sequences\[3\] has length 4, longer than length=3; pass truncate='right' to cut off its end, or",
    ),
    (RAGGED, {"length": -1}, ValueError, "^length is -1, expected 0 or more"),
    (RAGGED, {"length": 4.0}, TypeError, "^length is of type float, expected an int"),
    (RAGGED, {"truncate": "end"}, ValueError, "^truncate is 'end'; it must be 'right', 'left' or None$"),
    (RAGGED, {"side": None}, ValueError, "^side is None; it must be 'right' or 'left'$"),
    (
        RAGGED,
        {"padding_value": 0.5},
        TypeError,
        "^padding_value has dtype float64, expected integers that int64 can hold",
    ),
    (RAGGED, {"padding_value": [0]}, ValueError, r"^padding_value has shape \(1,\), expected one number"),
    (
        RAGGED,
        {"padding_value": 300, "dtype": "u1"},
        ValueError,
        "^padding_value holds 300, which uint8 cannot hold",
    ),
    (
        [[2**53 + 1]],
        {"dtype": float},
        ValueError,
        r"^sequences\[0\] holds 9007199254740993, which float64 cannot hold",
    ),
    ([[257, 2**20 + 1]], {"dtype": "bfloat16"}, ValueError, r"^sequences\[0\] holds 257, which bfloat16 cannot hold$"),
    ([[0.5], [1e300]], {"dtype": "f2"}, ValueError, r"^sequences\[1\] holds 1e\+300, which float16 cannot hold$"),
    ([[1e300]], {"dtype": "f4"}, ValueError, r"^sequences\[0\] holds 1e\+300, which float32 cannot hold$"),
    (RAGGED, {"dtype": None}, TypeError, "^dtype is None, expected a dtype of numbers, such as numpy.int64"),
    (RAGGED, {"dtype": str}, TypeError, "^dtype is <U0, expected a dtype of numbers"),
]


def test_mistakes_in_padding_are_named():
    for sequences, arguments, kind, message in MISTAKES_IN_PADDING:
        with pytest.raises(kind, match=message):
            pyattn.generation.pad_sequences(sequences, **arguments)


# add_special_tokens


def test_symbols_surround_each_sequence():
    def added(**symbols):
        return [ids.tolist() for ids in pyattn.generation.add_special_tokens([[5, 6], []], **symbols)]

    assert added(start_token_id=1, eos_token_id=2) == [[1, 5, 6, 2], [1, 2]]
    assert added(start_token_id=1) == [[1, 5, 6], [1]]
    assert added(eos_token_id=2) == [[5, 6, 2], [2]]
    assert added() == [[5, 6], []]


def test_symbols_have_the_dtype_of_the_ids():
    given_ids = np.array([5, 6], np.uint8)
    (ids,) = pyattn.generation.add_special_tokens([given_ids], eos_token_id=255)
    assert ids.dtype == np.uint8
    (same,) = pyattn.generation.add_special_tokens([given_ids])
    assert not np.shares_memory(same, given_ids)
    assert pyattn.generation.add_special_tokens([[], [1]])[0].dtype == np.int64


MISTAKES_IN_SYMBOLS = [
    ([["I"]], {}, TypeError, r"^sequences\[0\] has dtype <U1, expected integers: token ids"),
    ([[0.5]], {}, TypeError, r"^sequences\[0\] has dtype float64, expected integers"),
    (
        [1],
        {},
        ValueError,
        r"^sequences\[0\] has shape \(\), expected \(length,\); for one sequence, pass \[sequence\]",
    ),
    ([np.array([1], "i1")], {"eos_token_id": 128}, ValueError, "^eos_token_id is 128, which int8 cannot hold"),
    (
        [[1]],
        {"start_token_id": 1.0},
        TypeError,
        "^start_token_id is of type float, expected an int",
    ),
    ([[1]], {"eos_token_id": True}, TypeError, "^eos_token_id is of type bool, expected an int"),
    ([], {"eos_token_id": "</s>"}, TypeError, "^eos_token_id is of type str, expected an int"),
    (
        [[1]],
        {"start_token_id": "<s>"},
        TypeError,
        "^start_token_id is of type str, expected an int",
    ),
]


def test_mistakes_in_symbols_are_named():
    for sequences, symbols, kind, message in MISTAKES_IN_SYMBOLS:
        with pytest.raises(kind, match=message):
            pyattn.generation.add_special_tokens(sequences, **symbols)


# shift_right


def test_the_start_comes_first_and_the_last_token_is_left_out():
    tokens = np.arange(24).reshape(2, 3, 4)
    shifted = pyattn.generation.shift_right(tokens, -1)
    assert (shifted[..., 0] == -1).all()
    np.testing.assert_array_equal(shifted[..., 1:], tokens[..., :-1])
    assert not np.shares_memory(shifted, tokens)


@pytest.mark.parametrize("kind", ["int64", "uint8", ">i4"])
def test_a_shift_keeps_the_dtype(kind):
    assert pyattn.generation.shift_right(np.array([1, 2], kind), 7).dtype == np.dtype(kind).newbyteorder("=")


def test_a_shift_of_an_empty_sequence_is_empty():
    assert pyattn.generation.shift_right([], 7).tolist() == []
    assert pyattn.generation.shift_right(np.ones((3, 0), int), 7).shape == (3, 0)
    assert pyattn.generation.shift_right([4], 7).tolist() == [7]


MISTAKES_IN_SHIFTS = [
    (3, 0, ValueError, r"^tokens is a scalar, expected \(..., length\)"),
    ([0.5], 0, TypeError, "^tokens has dtype float64, expected integers: token ids"),
    ([True], 0, TypeError, "^tokens has dtype bool, expected integers: token ids"),
    ([1], None, TypeError, "^start_token_id is of type NoneType, expected an int"),
    ([1], [0], TypeError, "^start_token_id is of type list, expected an int"),
    ([1], True, TypeError, "^start_token_id is of type bool, expected an int"),
    ([1], np.array([1]), TypeError, "^start_token_id is of type ndarray, expected an int"),
    ([1], 2**63, ValueError, "^start_token_id is 9223372036854775808, which int64 cannot hold"),
    (np.array([1], "u1"), -1, ValueError, "^start_token_id is -1, which uint8 cannot hold"),
]


def test_mistakes_in_a_shift_are_named():
    for tokens, start, kind, message in MISTAKES_IN_SHIFTS:
        with pytest.raises(kind, match=message):
            pyattn.generation.shift_right(tokens, start)

"""Bad shapes and arguments get an exception that names them, what was expected, what came, and what to do instead."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.helpers import for_each
from support.refusing import BATCH, KEY, QUERY, VALUE, refuse, zeros

import pyattn
from benchmarks.memory import growth

# Shapes


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((zeros(), KEY, VALUE), "query has shape (), expected at least 2 axes: (..., length, dim)"),
        ((QUERY, zeros(4), VALUE), "key has shape (4,), expected at least 2 axes: (..., length, dim)"),
        ((QUERY, KEY, 1.0), "value has shape (), expected at least 2 axes: (..., length, dim)"),
        (
            (QUERY, zeros(5, 3), VALUE),
            "key has head_dim 3 but query has 4; both are (..., length, dim). Given: query (3, 4), key (5, 3)",
        ),
        (
            (QUERY, KEY, zeros(6, 2)),
            "value has length 6 but key has 5; both are (..., length, dim). Given: key (5, 4), value (6, 2)",
        ),
        (
            (zeros(6, 3, 4), zeros(2, 5, 4), zeros(2, 5, 2)),
            "query (6, 3, 4), key (2, 5, 4) and value (2, 5, 2) do not broadcast: axis -3 has sizes 6, 2 and 2; if it "
            "holds heads that share keys, pass enable_gqa=True",
        ),
        (
            (zeros(3, 1, 3, 4), zeros(2, 1, 5, 4), zeros(2, 1, 5, 2)),
            "query (3, 1, 3, 4), key (2, 1, 5, 4) and value (2, 1, 5, 2) do not broadcast: "
            "axis -4 has sizes 3, 2 and 2",
        ),
        (
            (zeros(1, 5, 3, 4), zeros(1, 2, 5, 4), zeros(1, 2, 5, 2)),
            "query has 5 heads, key 2 and value 2; query heads must be a multiple of key and value heads (axis -3, "
            "(..., heads, length, dim)). Given: query (1, 5, 3, 4), key (1, 2, 5, 4), value (1, 2, 5, 2)",
        ),
        (
            (zeros(1, 2, 3, 4), zeros(1, 4, 5, 4), zeros(1, 4, 5, 2)),
            "query has 2 heads, key 4 and value 4; query heads must be a multiple",
        ),
        ((zeros(1, 4, 3, 4), zeros(1, 0, 5, 4), zeros(1, 0, 5, 2)), "query has 4 heads, key 0 and value 0;"),
    ],
    ids=lambda argument: argument[:30] if isinstance(argument, str) else "",
)
def test_shapes_that_do_not_go_together(arrays, message):
    refuse(ValueError, message, *arrays)


def test_shapes_are_named_in_the_layout_given():
    arrays = [array.swapaxes(1, 2) for array in (zeros(1, 5, 3, 4), zeros(1, 2, 5, 4), zeros(1, 2, 5, 2))]
    message = "query has 5 heads, key 2 and value 2; query heads must be a multiple of key and value heads (axis -2, "
    refuse(ValueError, message + "(..., length, heads, dim))", *arrays, layout="bshd")
    message = "key has shape (5, 4), expected at least 3 axes: (..., length, heads, dim)"
    refuse(ValueError, message, arrays[0], KEY, VALUE, layout="bshd")
    message = "query has shape (3, 4), expected at least 3 axes: (..., heads, length, dim)"
    refuse(ValueError, message, enable_gqa=True)


@pytest.mark.parametrize("arrays", [(QUERY, KEY, VALUE), BATCH, (BATCH[0], KEY, VALUE)], ids=["2", "3", "both"])
def test_bshd_needs_an_axis_for_heads(arrays):
    message = (
        "layout='bshd' needs 4 axes, (batch, length, heads, dim). For (length, heads, dim), pass query[None], "
        "key[None] and value[None], or enable_gqa=True. "
        f"Given: query {arrays[0].shape}, key {arrays[1].shape}, value {arrays[2].shape}"
    )
    refuse(ValueError, message, *arrays, layout="bshd")
    with pytest.raises(ValueError, match="heads"):
        pyattn.reference.attention(*arrays, layout="bshd")


@for_each(("length", "heads"), [(6, 6), (3, 6), (1, 2)])
def test_what_the_message_on_bshd_offers_is_right(length, heads):
    """Each head by itself, as a loop over axis -2 has them."""
    query, key, value = (np.random.default_rng(n).random((length, heads, 4)) for n in range(3))
    refuse(ValueError, "layout='bshd' needs 4 axes", query, key, value, layout="bshd")
    whole = pyattn.attention(query, key, value, layout="bshd", enable_gqa=True)
    for h in range(heads):
        np.testing.assert_array_equal(whole[:, h], pyattn.attention(query[:, h], key[:, h], value[:, h]))


@pytest.mark.parametrize(("layout", "other"), [("bhsd", "pass layout='bshd'"), ("bshd", "leave layout='bshd' out")])
def test_heads_that_do_not_fit_may_be_lengths(layout, other):
    """Of 2 queries and 601 keys with 8 heads each, the other layout is offered; where it does not fit, it is not."""
    axes = "(..., length, heads, dim)" if layout == "bhsd" else "(..., heads, length, dim)"
    arrays = zeros(1, 2, 8, 8), zeros(1, 601, 8, 8), zeros(1, 601, 8, 8)
    if layout == "bshd":
        arrays = [array.swapaxes(1, 2) for array in arrays]
    with pytest.raises(ValueError, match=rf"; if the axes are {re.escape(axes)}, {re.escape(other)}$"):
        pyattn.attention(*arrays, layout=layout)
    pyattn.attention(*arrays, layout="bshd" if layout == "bhsd" else "bhsd")
    for wrong in (zeros(1, 601, 7, 8), zeros(1, 601, 3, 8)):
        wrong = wrong.swapaxes(1, 2) if layout == "bshd" else wrong
        with pytest.raises(ValueError, match=r"\)$"):
            pyattn.attention(arrays[0], wrong, wrong, layout=layout)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 5), "attn_mask has shape (2, 5), which does not broadcast to (3, 5): (..., q_len, kv_len)"),
        ((3, 4), "attn_mask has shape (3, 4), which does not broadcast to (3, 5): (..., q_len, kv_len)"),
        ((5, 3), "attn_mask has shape (5, 3), which does not broadcast to (3, 5): (..., q_len, kv_len)"),
        ((2, 3, 5), "attn_mask has shape (2, 3, 5), which does not broadcast to (3, 5): (..., q_len, kv_len)"),
        ((1, 3, 5), "attn_mask has shape (1, 3, 5), which does not broadcast to (3, 5): (..., q_len, kv_len)"),
        ((0,), "attn_mask has shape (0,), which does not broadcast to (3, 5): (..., q_len, kv_len)"),
    ],
)
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_masks_that_do_not_broadcast(shape, message, dtype):
    refuse(ValueError, message, attn_mask=np.zeros(shape, dtype))


@pytest.mark.parametrize(
    ("mask", "axis"),
    [((2, 1, 1, 5), -3), ((2, 1, 3, 5), -3), ((1, 2, 3, 5), -4), ((2, 3, 1, 5), -2), ((1, 2, 3, 4), None)],
)
def test_a_mask_with_an_axis_too_many_is_told_which(mask, axis):
    mask = np.ones(mask, bool)
    hint = "" if axis is None else f"; pass attn_mask.squeeze({axis})"
    message = f"attn_mask has shape {mask.shape}, which does not broadcast to (2, 3, 5): (..., q_len, kv_len){hint}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pyattn.attention(*BATCH, attn_mask=mask)
    if axis is not None:
        pyattn.attention(*BATCH, attn_mask=mask.squeeze(axis))


def test_masks_are_heads_first_in_every_layout():
    arrays = zeros(2, 3, 6, 4), zeros(2, 5, 6, 4), zeros(2, 5, 6, 2)
    message = (
        "attn_mask has shape (2, 3, 6, 5), which does not broadcast to (2, 6, 3, 5): (..., heads, q_len, kv_len); "
        "masks have heads before q_len in every layout: pass attn_mask.swapaxes(-3, -2)"
    )
    mask = zeros(2, 3, 6, 5)
    refuse(ValueError, message, *arrays, attn_mask=mask, layout="bshd")
    pyattn.attention(*arrays, attn_mask=mask.swapaxes(-3, -2), layout="bshd")


@for_each("shape", [(5, 5), (5,), (2, 1, 1, 5), (2, 6, 5, 5)])
def test_a_mask_that_fits_the_other_layout_says_so(shape):
    arrays, mask = (zeros(2, 5, 6, 4), zeros(2, 5, 6, 4), zeros(2, 5, 6, 2)), zeros(*shape)
    with pytest.raises(ValueError, match=r"; if the axes are \(..., length, heads, dim\), pass layout='bshd'$"):
        pyattn.attention(*arrays, attn_mask=mask)
    pyattn.attention(*arrays, attn_mask=mask, layout="bshd")


@for_each("layout", ["bhsd", "bshd"])
def test_a_mask_of_batch_and_queries_lacks_the_heads_axis(layout):
    arrays, mask = [zeros(2, 6, 3, 4), zeros(2, 6, 5, 4), zeros(2, 6, 5, 4)], zeros(2, 3, 5)
    if layout == "bshd":
        arrays = [array.swapaxes(1, 2) for array in arrays]
    message = r"; for \(batch, q_len, kv_len\), pass attn_mask\[:, None\]$"
    with pytest.raises(ValueError, match=message):
        pyattn.attention(*arrays, attn_mask=mask, layout=layout)
    pyattn.attention(*arrays, attn_mask=mask[:, None], layout=layout)


@for_each("name", ["key_lengths", "query_lengths"])
@pytest.mark.parametrize(
    ("lengths", "kind", "message"),
    [
        ([2, 9], ValueError, "{} holds 9, expected 0 <= n <= {} (the length of {})"),
        ([-1, 2], ValueError, "{} holds -1, expected 0 <= n <= {} (the length of {})"),
        ([1, 2, 3], ValueError, "{} has shape (3,), which does not broadcast to the batch axes (2,)"),
        ([[1, 2]], ValueError, "{} has shape (1, 2), which does not broadcast to the batch axes (2,)"),
        ([1.0, 2.0], TypeError, "{} has dtype float64, expected integers"),
        ([True, False], TypeError, "{} has dtype bool, expected integers"),
        (np.array([2**63, 1], np.uint64), ValueError, "{} holds 9223372036854775808, which is out of range"),
        (np.array([2, 2**64 - 1], np.uint64), ValueError, "{} holds 18446744073709551615, which is out of range"),
        ([2**63, 2], ValueError, "{} holds 9.223372036854776e+18, which is out of range"),
        ([np.inf, 2], ValueError, "{} holds inf, which is out of range"),
        ([np.nan, 2], TypeError, "{} has dtype float64, expected integers; pass numpy.asarray({}, numpy.int64)"),
        (["1", "2"], TypeError, "{} has dtype <U1, expected integers"),
    ],
    ids=str,
)
def test_lengths(name, lengths, kind, message):
    most, of = (5, "key") if name == "key_lengths" else (3, "query")
    message = message.replace("pass numpy.asarray({}", f"pass numpy.asarray({name}").format(name, most, of)
    refuse(kind, message, *BATCH, **{name: lengths})


@pytest.mark.parametrize("dtype", ["uint8", "uint64", ">u8", "int16"])
def test_lengths_of_any_integer_dtype(dtype):
    lengths = np.array([2, 5], dtype)
    np.testing.assert_array_equal(
        pyattn.attention(*BATCH, key_lengths=lengths), pyattn.attention(*BATCH, key_lengths=[2, 5])
    )


def test_lengths_are_checked_wherever_they_lie():
    """The last of many, in any order of axes, read backwards."""
    arrays = zeros(4, 3, 2, 3, 4), zeros(4, 3, 2, 5, 4), zeros(4, 3, 2, 5, 2)
    for place in np.ndindex(4, 3):
        lengths = np.full((4, 3), 5)
        lengths[place] = 6
        for given in (lengths, np.asfortranarray(lengths), lengths[::-1, ::-1]):
            refuse(ValueError, "key_lengths holds 6, expected 0 <= n <= 5", *arrays, key_lengths=given)
    refuse(ValueError, "key_lengths holds 6, expected 0 <= n <= 5", *arrays, key_lengths=[[6]])


# Alignment


@pytest.mark.parametrize(
    ("said", "what"),
    [({"is_causal": True}, "is_causal=True"), ({"window": 1}, "window"), ({"window": (None, 0)}, "window")],
    ids=str,
)
def test_a_missing_align_draws_both(said, what):
    message = (
        f"{what} with 3 queries and 5 keys needs align='upper_left' (torch, JAX) or align='lower_right' "
        "(FlashAttention; decoding with a cache). For 2 queries and 4 keys, x = up to the query's own position:\n"
        "  upper_left   lower_right\n"
        "    x . . .       x x x .\n"
        "    x x . .       x x x x"
    )
    refuse(ValueError, message, **said)


def test_a_missing_align_draws_more_queries_than_keys():
    message = (
        "is_causal=True with 5 queries and 3 keys needs align='upper_left' (torch, JAX) or align='lower_right' "
        "(FlashAttention; decoding with a cache). For 4 queries and 2 keys, x = up to the query's own position:\n"
        "  upper_left   lower_right\n"
        "    x .           . .\n"
        "    x x           . .\n"
        "    x x           x .\n"
        "    x x           x x"
    )
    refuse(ValueError, message, KEY, QUERY, QUERY, is_causal=True)


def test_one_query_and_a_cache_need_align_too():
    refuse(ValueError, "is_causal=True with 1 queries and 5 keys needs align=", QUERY[:1], KEY, VALUE, is_causal=True)


def test_the_drawings_are_right():
    for rows, columns in ((2, 4), (4, 2)):
        pictures = {
            align: ["".join("x" if seen else "." for seen in row) for row in pyattn.masks.causal(*shape, align=align)]
            for shape in [(rows, columns)]
            for align in ("upper_left", "lower_right")
        }
        with pytest.raises(ValueError, match="align") as caught:
            pyattn.attention(zeros(rows, 4), zeros(columns, 4), zeros(columns, 4), is_causal=True)
        drawn = [line.split() for line in str(caught.value).splitlines()[2:]]
        assert ["".join(line[:columns]) for line in drawn] == pictures["upper_left"]
        assert ["".join(line[columns:]) for line in drawn] == pictures["lower_right"]


# Values of the other arguments


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"align": "left"}, ValueError, "align is 'left', expected 'upper_left' or 'lower_right'"),
        ({"layout": "sbhd"}, ValueError, "layout is 'sbhd', expected 'bhsd' or 'bshd'"),
        ({"layout": None}, ValueError, "layout is None, expected 'bhsd' or 'bshd'"),
        ({"empty_rows": "inf"}, ValueError, "empty_rows is 'inf', expected 'zero' or 'nan'"),
        ({"window": -1}, ValueError, "window is -1, expected 0 or more keys on a side, or None for unbounded"),
        ({"window": (2, -3)}, ValueError, "window is -3, expected 0 or more keys on a side, or None for unbounded"),
        ({"window": (1, 2, 3)}, ValueError, "window is (1, 2, 3), expected an int or (left, right)"),
        ({"window": ()}, ValueError, "window is (), expected an int or (left, right)"),
        ({"window": 1.5}, TypeError, "window is of type float, expected an int or (left, right)"),
        ({"window": True}, TypeError, "window is of type bool, expected an int or (left, right)"),
        ({"window": np.True_}, TypeError, "window is of type numpy.bool, expected an int or (left, right)"),
        ({"window": (1, "2")}, TypeError, "window is of type str, expected an int or None for a side"),
        ({"window": (1, True)}, TypeError, "window is of type bool, expected an int or None for a side"),
        ({"scale": "1"}, TypeError, "scale is of type str, expected a number"),
        ({"scale": 1j}, TypeError, "scale is of type complex, expected a number"),
        ({"scale": np.nan}, ValueError, "scale is nan, expected a finite number"),
        ({"scale": -np.inf}, ValueError, "scale is -inf, expected a finite number"),
        ({"scale": 10**400}, ValueError, "scale is too large, expected a number"),
        ({"dropout_p": "0"}, TypeError, "dropout_p is of type str, expected a number"),
        ({"num_threads": 0}, ValueError, "num_threads is 0, expected 1 or more, or None"),
        ({"num_threads": -2}, ValueError, "num_threads is -2, expected 1 or more, or None"),
        ({"num_threads": 1.5}, TypeError, "num_threads is of type float, expected an int"),
        ({"num_threads": True}, TypeError, "num_threads is of type bool, expected an int"),
        ({"dropout_p": -0.5}, ValueError, "dropout_p is -0.5, expected a probability from 0 to 1"),
        ({"dropout_p": 2}, ValueError, "dropout_p is 2, expected a probability from 0 to 1"),
        ({"dropout_p": np.nan}, ValueError, "dropout_p is nan, expected a probability from 0 to 1"),
    ],
    ids=str,
)
def test_values_out_of_range(arguments, kind, message):
    refuse(kind, message, **arguments)


def test_more_than_any_array_has_is_no_limit():
    plain = pyattn.attention(QUERY, KEY, VALUE)
    for arguments in ({"window": 10**30, "align": "upper_left"}, {"num_threads": 10**30}):
        assert np.array_equal(pyattn.attention(QUERY, KEY, VALUE, **arguments), plain)


@for_each("name", ["is_causal", "enable_gqa", "need_weights", "need_lse"])
@pytest.mark.parametrize("given", ["False", "", None, 0.0, [True], np.ones(2)], ids=str)
def test_flags_are_true_or_false(name, given):
    kind = type(given).__name__ if not isinstance(given, np.ndarray) else "numpy.ndarray"
    refuse(TypeError, f"{name} is of type {kind}, expected True or False", **{name: given})


@pytest.mark.parametrize("yes", [True, 1, np.True_])
def test_what_is_true(yes):
    assert pyattn.attention(QUERY, KEY, VALUE, need_lse=yes).lse is not None


@pytest.mark.parametrize("window", [(2, 1), [2, 1], np.array([2, 1]), range(2, 0, -1)], ids=str)
def test_any_pair_is_a_window(window):
    expected = pyattn.attention(QUERY, KEY, VALUE, window=(2, 1), align="upper_left")
    assert np.array_equal(pyattn.attention(QUERY, KEY, VALUE, window=window, align="upper_left"), expected)


# Sizes


def endless(*shape):
    """An array of any size in four bytes."""
    return np.broadcast_to(np.float32(0), shape)


@pytest.mark.parametrize(
    ("arrays", "arguments"),
    [
        ((endless(2**32, 1, 1, 1, 1), *[endless(1, 2**32, 1, 1, 1)] * 2), {}),
        ((endless(2**40, 1), KEY[:, :1], endless(5, 2**20)), {}),
        ((endless(2**45, 1), KEY[:, :1], endless(5, 8)), {}),
        ((endless(2**20, 1), *[endless(2**30, 1)] * 2), {"need_weights": True}),
        ((endless(2**31, 1), *[endless(2**31, 1)] * 2), {"need_weights": True}),
        ((endless(1, 1, 2**48), *[endless(1, 1, 2**48)] * 2), {}),
        ((endless(2**60, 0), *[endless(1, 0)] * 2), {"scale": 1}),
    ],
    ids=["batch", "output", "queries", "weights", "weights overflow", "head_dim", "rows"],
)
def test_sizes_whose_product_overflows(arrays, arguments):
    def refused():
        with pytest.raises((ValueError, MemoryError), match=r"too (large|big)|[Uu]nable to allocate|scratch memory"):
            pyattn.attention(*arrays, **arguments)
        return np.empty(0)

    assert growth(refused) < 1 << 24
    pyattn.attention(QUERY, KEY, VALUE)


def test_lengths_are_looked_at_once_whatever_the_batch():
    """One length for 2**45 batch entries: looking at it for each would take a year."""
    arrays = endless(2**45, 1, 1), *[endless(1, 1, 1)] * 2
    refuse(ValueError, "key_lengths holds 2, expected 0 <= n <= 1", *arrays, key_lengths=2)
    for lengths in (1, [1], np.broadcast_to(np.int64(1), 1)):
        with pytest.raises(MemoryError):
            pyattn.attention(*arrays, key_lengths=lengths, query_lengths=1)


def test_nothing_of_a_huge_size_is_fine():
    for arrays in (
        (endless(0, 2**40), endless(1, 2**40), endless(1, 1)),
        (endless(2**40, 0, 1, 1), endless(1, 0, 1, 1), endless(1, 0, 1, 1)),
    ):
        assert pyattn.attention(*arrays).size == 0


# Quiet where nothing is wrong


def test_no_floating_point_error_reaches_numpy():
    with np.errstate(all="raise"):
        for number in (np.nan, np.inf, 1e38, 1e-45):
            arrays = [np.full_like(array, number) for array in (QUERY, KEY, VALUE)]
            pyattn.attention(*arrays, need_weights=True, need_lse=True)
        pyattn.attention(np.full((3, 4), 1e300), KEY, VALUE, attn_mask=np.full((3, 5), np.finfo("f8").min))
        pyattn.softmax(np.array([1e300, -1e300, np.inf]))
        pyattn.functional.log_softmax(np.array([1e300, -1e300, -np.inf]))
        pyattn.merge_states([VALUE, VALUE], [np.full(5, -np.inf, "f4")] * 2)

"""Warnings of likely mistakes: the answer comes as documented, and the message ends with the call probably meant."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

import pyattn

MASK_MESSAGE = (
    "attn_mask is a float mask whose first and last rows hold only zeros and ones: it is added to the scores, and "
    "masks nothing. If 1 means attend, pass attn_mask=pyattn.masks.from_array(attn_mask); if it means blocked, pass "
    "attn_mask=pyattn.masks.from_blocked(attn_mask)"
)


def make_arrays(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@pytest.fixture
def arrays():
    return make_arrays((6, 4), (9, 4), (9, 2))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble", ">f4"])
@pytest.mark.parametrize(
    "mask",
    [np.tri(6, 9), np.ones((6, 9)), np.ones((1, 9)), np.ones(()), np.tri(6, 9)[:, ::-1], np.eye(6, 9) * -0.0 + 1],
    ids=["triangle", "ones", "one row", "scalar", "backwards", "-0"],
)
def test_a_float_mask_of_zeros_and_ones_warns_and_is_added(mask, dtype, arrays):
    mask = mask.astype(dtype)
    with pytest.warns(pyattn.MaskWarning, match=f"^{re.escape(MASK_MESSAGE)}$"):
        result = pyattn.attention(*arrays, attn_mask=mask)
    np.testing.assert_allclose(result, pyattn.attention(*arrays, attn_mask=mask + np.float32(1e-6)), rtol=1e-3)


def test_the_call_that_the_warning_ends_with_is_right(arrays):
    zeros_and_ones = np.tri(6, 9, dtype=np.float32)
    np.testing.assert_array_equal(
        pyattn.attention(*arrays, attn_mask=pyattn.masks.from_array(zeros_and_ones)),
        pyattn.attention(*arrays, is_causal=True, align="upper_left"),
    )


@pytest.mark.parametrize(
    "mask",
    [
        np.tri(6, 9, dtype=bool),
        np.zeros((6, 9)),
        np.where(np.tri(6, 9), 0, -np.inf),
        np.where(np.tri(6, 9), 0, np.finfo(np.float64).min),
        np.tri(6, 9) - 1,
        np.tri(6, 9) * 0.5,
        np.where(np.tri(6, 9), 1, np.nan),
    ],
    ids=["bool", "zeros", "-inf", "finfo.min", "minus one", "halves", "nan"],
)
def test_other_masks_are_quiet(mask, arrays):
    pyattn.attention(*arrays, attn_mask=mask)  # warnings are errors here


def test_only_a_cheap_look_is_taken():
    """The first and last row: what lies between, or beyond some thousand keys, is not looked at."""
    arrays = make_arrays((3, 2), (5000, 2), (5000, 2))
    mask = np.ones((3, 5000), np.float32)
    mask[1] = mask[:, 4500:] = 0.5
    with pytest.warns(pyattn.MaskWarning):
        pyattn.attention(*arrays, attn_mask=mask)
    mask[2, 7] = 0.5
    pyattn.attention(*arrays, attn_mask=mask)


def test_a_mask_of_nothing_is_quiet():
    for shapes in (((0, 4), (5, 4), (5, 2)), ((3, 4), (0, 4), (0, 2)), ((0, 3, 4), (0, 5, 4), (0, 5, 2))):
        arrays = make_arrays(*shapes)
        pyattn.attention(*arrays, attn_mask=np.ones((shapes[0][-2], shapes[1][-2]), np.float32))


@pytest.mark.parametrize(
    ("shape", "layout", "message"),
    [
        (
            (2, 600, 8, 4),
            "bhsd",
            "the heads axis has size 600 and the length axis 8; if query's axes are (batch, length, heads, dim), "
            "call attention(..., layout='bshd')",
        ),
        (
            (2, 8, 600, 4),
            "bshd",
            "the heads axis has size 600 and the length axis 8; if query's axes are (batch, heads, length, dim), "
            "call attention(..., layout='bhsd')",
        ),
    ],
)
def test_swapped_heads_and_lengths_warn(shape, layout, message):
    query, *_ = arrays = make_arrays(shape, shape, shape)
    with pytest.warns(pyattn.ShapeWarning, match=f"^{re.escape(message)}$"):
        result = pyattn.attention(*arrays, layout=layout)
    assert result.shape == query.shape
    pyattn.attention(*arrays, layout="bshd" if layout == "bhsd" else "bhsd")  # the call probably meant is quiet


@pytest.mark.parametrize(("heads", "length", "warns"), [(512, 2, False), (513, 64, True), (513, 65, False)])
def test_where_heads_begin_to_look_like_lengths(heads, length, warns):
    arrays = make_arrays(*[(1, heads, length, 1)] * 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pyattn.attention(*arrays)
    assert [warning.category for warning in caught] == [pyattn.ShapeWarning] * warns


@pytest.mark.sampled(4)
@pytest.mark.parametrize("keys", [2, 50, 64, 4000])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_one_token_of_many_heads_against_a_cache_is_quiet(keys, layout):
    """A thousand heads do not look like a length where keys are more than queries: key heads never are."""
    arrays = make_arrays((1, 1024, 1, 8), (1, 1024, keys, 8), (1, 1024, keys, 8))
    pyattn.attention(*(array.swapaxes(1, 2) if layout == "bshd" else array for array in arrays), layout=layout)


def test_swapped_axes_warn_of_shared_heads_too():
    """8 query heads, 2 key heads, 600 tokens, as (batch, length, heads, dim)."""
    arrays = make_arrays((1, 600, 8, 4), (1, 600, 2, 4), (1, 600, 2, 4))
    with pytest.warns(pyattn.ShapeWarning):
        pyattn.attention(*arrays)


def test_three_axes_have_no_heads_to_swap():
    pyattn.attention(*make_arrays(*[(600, 8, 4)] * 3))


def test_both_warnings_can_come_together():
    arrays = make_arrays(*[(1, 513, 3, 2)] * 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pyattn.attention(*arrays, attn_mask=np.tri(3, dtype=np.float32))
    assert {warning.category for warning in caught} == {pyattn.MaskWarning, pyattn.ShapeWarning}


@pytest.mark.parametrize("function", ["attention", "scaled_dot_product_attention"])
def test_warnings_point_at_the_caller(function, arrays):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(pyattn, function)(*arrays, attn_mask=np.tri(6, 9, dtype=np.float32))
    assert [warning.filename for warning in caught] == [__file__]


def test_warnings_are_of_their_own_class_each():
    assert issubclass(pyattn.MaskWarning, UserWarning)
    assert issubclass(pyattn.ShapeWarning, UserWarning)
    assert not issubclass(pyattn.MaskWarning, pyattn.ShapeWarning)

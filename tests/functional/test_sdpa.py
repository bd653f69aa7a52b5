"""scaled_dot_product_attention has PyTorch's signature, semantics and strictness."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, make_arrays

import pyattn
from pyattn import scaled_dot_product_attention as sdpa
from pyattn.testing import bounds

SHAPES = {
    "no batch": ((9, 8), (12, 8), (12, 5)),
    "batch": ((2, 9, 8), (2, 12, 8), (2, 12, 5)),
    "heads": ((2, 3, 70, 8), (2, 3, 130, 8), (2, 3, 130, 8)),
    "square": ((2, 3, 40, 8), (2, 3, 40, 8), (2, 3, 40, 8)),
    "decode": ((2, 3, 1, 8), (2, 3, 700, 8), (2, 3, 700, 8)),
    "shared batch": ((2, 3, 9, 8), (1, 3, 12, 8), (1, 1, 12, 5)),
    "no queries": ((2, 3, 0, 8), (2, 3, 12, 8), (2, 3, 12, 5)),
    "no keys": ((2, 3, 9, 8), (2, 3, 0, 8), (2, 3, 0, 5)),
}


def make_mask(kind, arrays):
    shape = (arrays[0].shape[-2], arrays[1].shape[-2])
    keep = np.random.default_rng(1).random(shape) < 0.6
    keep[:1] = len(keep) < 2  # an empty row
    if kind in ("none", "causal"):
        return None
    return keep if kind == "bool" else np.where(keep, np.linspace(-1, 1, shape[1]), -np.inf).astype(arrays[0].dtype)


def torch_sdpa(torch, arrays, attn_mask=None, **arguments):
    """Of PyTorch's own reference."""
    mask = None if attn_mask is None else torch.from_numpy(attn_mask)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*map(torch.from_numpy, arrays), attn_mask=mask, **arguments).numpy()


@pytest.mark.peers
@for_each(("kind", "scale"), [("none", None), ("none", 0.3), ("bool", None), ("float", 0.3), ("causal", None)])
@for_each("shapes", SHAPES)
def test_it_gives_what_pytorch_gives(shapes, kind, scale, torch, dtype, level):
    arrays = make_arrays(*SHAPES[shapes], dtype=dtype)
    arguments = {"attn_mask": make_mask(kind, arrays), "is_causal": kind == "causal", "scale": scale}
    theirs, ours = torch_sdpa(torch, arrays, **arguments), sdpa(*arrays, **arguments)
    expected = bounds.expect(*arrays, dtype, align="upper_left", **arguments)
    assert ours.shape == theirs.shape
    assert bounds.output_ratio(ours, expected) <= bounds.OUTPUT_BAR
    assert np.all(np.abs(ours - theirs) <= 3 * bounds.OUTPUT_BAR * expected.output_unit)


@pytest.mark.peers
@pytest.mark.parametrize(
    "shapes",
    [((2, 6, 9, 8), (2, 2, 12, 8), (2, 2, 12, 8)), ((6, 9, 8), (3, 12, 8), (3, 12, 8))],
    ids=["4 axes", "3 axes"],
)
def test_heads_share_keys_as_in_pytorch(shapes, torch, dtype):
    arrays = make_arrays(*shapes, dtype=dtype)
    theirs, ours = torch_sdpa(torch, arrays, enable_gqa=True), sdpa(*arrays, enable_gqa=True)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.peers
def test_the_signature_is_pytorchs(torch):
    documented = re.search(
        r"scaled_dot_product_attention\((.*?)\) *->",
        torch.nn.functional.scaled_dot_product_attention.__doc__,
        re.DOTALL,
    )
    names = re.findall(r"(\w+)(?:=|,|$)", re.sub(r"=[^,]*", "=", documented[1].replace("\n", "")))
    assert list(inspect.signature(sdpa).parameters) == [*filter(None, names), "rng", "keep_mask"]


def test_arguments_may_be_positional_as_in_pytorch():
    arrays = make_arrays(*SHAPES["square"])
    mask = make_mask("bool", arrays)
    assert_same_bits(sdpa(*arrays, mask, 0.0, True), sdpa(*arrays, attn_mask=mask, is_causal=True))
    with pytest.raises(TypeError, match="is given 7 arguments by position; it takes query, "):
        sdpa(*arrays, mask, 0.0, True, 0.5)


def test_it_is_attention_aligned_upper_left(dtype):
    arrays = make_arrays(*SHAPES["heads"], dtype=dtype)
    assert_same_bits(sdpa(*arrays, is_causal=True), pyattn.attention(*arrays, is_causal=True, align="upper_left"))


def test_a_mask_and_is_causal_are_combined(dtype):
    arrays = make_arrays(*SHAPES["square"], dtype=dtype)
    mask = make_mask("bool", arrays)
    combined = mask & np.tri(40, dtype=bool)
    assert_same_bits(sdpa(*arrays, attn_mask=mask, is_causal=True), sdpa(*arrays, attn_mask=combined))


def test_what_is_masked_is_never_touched():
    query, key, value = make_arrays(*SHAPES["batch"])
    mask = np.arange(12) < 7
    clean = sdpa(query, key, value, attn_mask=mask)
    key[:, 7:] = value[:, 7:] = np.nan
    assert_same_bits(sdpa(query, key, value, attn_mask=mask), clean)


def test_an_empty_row_is_zero():
    arrays = make_arrays(*SHAPES["batch"])
    assert np.all(sdpa(*arrays, attn_mask=pyattn.masks.from_array(np.zeros((9, 12), bool))) == 0)


def test_a_float32_mask_is_fine_for_float64():
    arrays = make_arrays(*SHAPES["batch"], dtype="float64")
    mask = make_mask("float", arrays).astype(np.float32)
    assert_same_bits(sdpa(*arrays, attn_mask=mask), sdpa(*arrays, attn_mask=mask.astype(np.float64)))


@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_byte_order_is_no_dtype(kind, dtype):
    """Of each array by itself; as files in the other order are read."""
    arrays = make_arrays(*SHAPES["batch"], dtype=dtype)
    arrays = [*arrays, make_mask(kind, arrays)]
    expected = sdpa(*arrays)
    swapped = [array if array is None else array.astype(array.dtype.newbyteorder()) for array in arrays]
    assert_same_bits(sdpa(*swapped), expected)
    for n in range(4):
        result = sdpa(*arrays[:n], swapped[n], *arrays[n + 1 :])
        assert_same_bits(result, expected)
        assert result.dtype.isnative


QUERY, KEY, VALUE = make_arrays((3, 4), (5, 4), (5, 2))


@pytest.mark.parametrize(
    ("arrays", "arguments", "kind", "message"),
    [
        ((QUERY, KEY.astype("f8"), VALUE), {}, TypeError, "key has dtype float64, expected float32; pass key.astype("),
        ((QUERY.astype("f8"), KEY, VALUE), {}, TypeError, "key has dtype float32, expected float64; pass key.astype("),
        (
            (QUERY, KEY, [[1, 2]] * 5),
            {},
            TypeError,
            "value has dtype int64, expected float32; pass numpy.asarray(value, numpy.float32)",
        ),
        (
            (QUERY.astype("f2"), KEY, VALUE),
            {},
            TypeError,
            "key has dtype float32, expected float16; pass key.astype(numpy.float16)",
        ),
        ((QUERY.astype("i4"), KEY, VALUE), {}, TypeError, "query has dtype int32, expected float32; pass query."),
        (
            (QUERY, KEY, VALUE),
            {"attn_mask": np.ones((3, 5))},
            TypeError,
            "attn_mask has dtype float64, expected bool or",
        ),
        (
            (QUERY, KEY, VALUE),
            {"attn_mask": np.ones((3, 5), int)},
            TypeError,
            "attn_mask has dtype int64, expected bool",
        ),
        ((QUERY, KEY, VALUE), {"attn_mask": np.ones((3, 5), "f2")}, TypeError, "attn_mask has dtype float16, expected"),
        ((QUERY, KEY, VALUE), {"attn_mask": np.ones((2, 5), bool)}, ValueError, "attn_mask has shape (2, 5), which"),
        ((QUERY, KEY, VALUE), {"dropout_p": 1.1}, ValueError, "dropout_p is 1.1, expected a probability"),
        ((QUERY, VALUE, KEY), {}, ValueError, "key has head_dim 2 but query has 4"),
        ((QUERY, KEY[:4], VALUE), {}, ValueError, "value has length 5 but key has 4"),
        ((QUERY[0], KEY, VALUE), {}, ValueError, "query has shape (4,), expected at least 2 axes"),
    ],
    ids=lambda argument: argument[:24] if isinstance(argument, str) else "",
)
def test_it_is_as_strict_as_pytorch(arrays, arguments, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        sdpa(*arrays, **arguments)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("dtypes", "mask"),
    [
        (("f4", "f8", "f4"), None),
        (("f8", "f4", "f4"), None),
        (("f4", "f4", "f4"), "f8"),
        (("f4", "f4", "f4"), "i8"),
        (("i8", "i8", "i8"), None),
    ],
    ids=str,
)
def test_pytorch_refuses_these_too(dtypes, mask, torch):
    arrays = [array.astype(dtype) for array, dtype in zip((QUERY, KEY, VALUE), dtypes, strict=True)]
    arguments = {} if mask is None else {"attn_mask": np.zeros((3, 5), mask)}
    with pytest.raises(TypeError):
        sdpa(*arrays, **arguments)
    with pytest.raises((RuntimeError, TypeError)):
        torch_sdpa(torch, arrays, **arguments)


def test_shared_heads_must_be_said():
    arrays = make_arrays((2, 6, 3, 4), (2, 2, 5, 4), (2, 2, 5, 2))
    message = (
        "query, key and value have 6, 2 and 2 heads (axis -3), which do not broadcast; if query heads share keys, pass"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        sdpa(*arrays)
    assert_same_bits(sdpa(*arrays, enable_gqa=True), pyattn.attention(*arrays))


@pytest.mark.peers
@pytest.mark.parametrize(
    "shapes",
    [
        ((1, 4, 5, 8), (2, 7, 8), (2, 7, 8)),
        ((4, 5, 8), (3, 2, 7, 8), (3, 2, 7, 8)),
        ((4, 5, 8), (2, 7, 8), (3, 1, 7, 8)),
        ((1, 4, 5, 8), (7, 8), (2, 7, 8)),
    ],
    ids=str,
)
def test_shared_heads_must_be_said_for_arrays_of_fewer_axes_too(shapes, torch):
    """Where any array has four axes, axis -3 of each is heads; PyTorch broadcasts it as any other."""
    arrays = make_arrays(*shapes)
    with pytest.raises(ValueError, match=r"heads \(axis -3\), which do not broadcast; if query heads share keys, pass"):
        sdpa(*arrays)
    with pytest.raises(RuntimeError):
        torch_sdpa(torch, arrays)


@pytest.mark.peers
@pytest.mark.parametrize(
    "shapes",
    [((1, 4, 5, 8), (4, 7, 8), (1, 7, 8)), ((4, 5, 8), (3, 1, 7, 8), (3, 4, 7, 8)), ((5, 8), (3, 2, 7, 8), (7, 8))],
    ids=str,
)
def test_heads_that_broadcast_need_not_be_said(shapes, torch):
    arrays = make_arrays(*shapes)
    np.testing.assert_allclose(sdpa(*arrays), torch_sdpa(torch, arrays), rtol=1e-4, atol=1e-6)


def test_the_fix_fits_what_was_given():
    """A list has no astype."""
    with pytest.raises(TypeError, match=r"pass numpy\.asarray\(query, numpy\.float32\)$"):
        sdpa([[1, 2, 3, 4]], KEY, VALUE)
    message = (
        "attn_mask has dtype int64, expected bool or float32; pass numpy.asarray(attn_mask, bool) (True = attend) or "
        "numpy.asarray(attn_mask, numpy.float32)"
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        sdpa(QUERY, KEY, VALUE, [[1] * 5] * 3)

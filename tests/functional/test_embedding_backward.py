"""The gradient of an embedding's weight: sums by id, in the same bits however they are computed."""

from __future__ import annotations

import numpy as np
import pytest
from support.halves import HALVES
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, functional

CASES = [  # shape of ids, num_embeddings, dim
    ((0,), 4, 3),
    ((0,), 0, 0),
    ((), 3, 5),
    ((5,), 3, 0),
    ((1,), 1, 1),
    ((40, 3), 7, 33),
    ((3, 100), 1000, 64),
    ((2000,), 3, 130),
    ((64,), 40_000, 16),
]


@pytest.fixture(autouse=True)
def _restore_number():
    yield
    pyattn.set_num_threads(None)


def draw_ids(shape, count, seed=0):
    """Half of them small, as words are."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, max(count, 1), shape)
    return np.where(rng.random(shape) < 0.5, ids % 3 % max(count, 1), ids)


def in_order(upstream, ids, count, scale):
    """Each row added after the other, with one rounding: what fma gives in a wider type, rounded."""
    wide = np.longdouble if upstream.dtype == np.float64 else np.float64
    total = np.zeros((count, upstream.shape[-1]), upstream.dtype)
    for at, row in zip(ids.ravel(), upstream.reshape(-1, upstream.shape[-1]), strict=True):
        total[at] = (total[at].astype(wide) + row.astype(wide) * wide(scale)).astype(upstream.dtype)
    return total


@for_each(("shape", "count", "dim"), CASES)
@for_each("scale", [1.0, -2.5, 22.627416997969522])
def test_against_the_formula(scale, shape, count, dim, dtype, level):
    """A sum of n terms is off by (n + 2) u of their sizes at most: a rounding each, and that of the scale."""
    ids, upstream = draw_ids(shape, count), normal(*shape, dim, dtype=dtype)
    found = functional.embedding_backward(upstream, ids, count, scale=scale)
    wide = np.longdouble if dtype == "float64" else np.float64
    exact, sizes = np.zeros((2, count, dim), wide)
    rows = upstream.astype(wide).reshape(ids.size, dim) * wide(scale)
    np.add.at(exact, ids.ravel(), rows)
    np.add.at(sizes, ids.ravel(), np.abs(rows))
    numbers = np.bincount(ids.ravel(), minlength=count)[:, None]
    assert (found.shape, found.dtype) == ((count, dim), np.dtype(dtype))
    assert (np.abs(found - exact) <= (numbers + 2) * np.finfo(dtype).eps / 2 * sizes).all()


def test_rows_are_added_in_the_order_of_the_ids(dtype, level):
    """float32 by way of float64: products and sums of both are rounded once."""
    ids = draw_ids((60, 7), 9)
    upstream = normal(60, 7, 37, dtype=dtype)
    found = functional.embedding_backward(upstream, ids, 9)
    assert_same_bits(found, in_order(upstream, ids, 9, 1.0))


@pytest.mark.peers
@for_each("padding_idx", [None, 0, 2, -1])
def test_equals_torch(padding_idx, dtype, torch):
    ids, upstream = draw_ids((30, 8), 12), normal(30, 8, 19, dtype=dtype)
    weight = torch.zeros(12, 19, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.embedding(torch.from_numpy(ids), weight, padding_idx=padding_idx)
    (expected,) = torch.autograd.grad(y, weight, torch.from_numpy(upstream.astype(np.float64)))
    found = functional.embedding_backward(upstream, ids, 12, padding_idx=padding_idx)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=300 * np.finfo(dtype).eps)
    if padding_idx is not None:
        assert_same_bits(found[padding_idx], np.zeros(19, dtype))


def test_padding_is_not_read(dtype, level):
    ids, upstream = np.array([0, 2, 1, 2]), normal(4, 5, dtype=dtype)
    upstream[ids == 2] = np.nan
    found = functional.embedding_backward(upstream, ids, 3, padding_idx=2)
    assert_same_bits(found, np.stack([upstream[0], upstream[2], np.zeros_like(upstream[0])]))


@pytest.mark.threads
@for_each(("shape", "count", "dim"), [*CASES[5:], ((500, 4), 50, 1000)])
def test_levels_threads_and_strides_give_the_same_bits(shape, count, dim, dtype, levels):
    ids, upstream = draw_ids(shape, count), normal(*shape, dim, dtype=dtype)
    first = _core.embedding_backward(upstream, ids, count, num_threads=1)
    for level in levels:  # scale 1 leaves nothing for fma to round
        _core._set_isa(level)
        for threads in (1, 2, 3, 7):
            assert_same_bits(_core.embedding_backward(upstream, ids, count, num_threads=threads), first)
        views = np.asfortranarray(upstream), np.repeat(upstream, 2, axis=-1)[..., ::2], upstream[::-1].copy()[::-1]
        for view in views:
            assert_same_bits(functional.embedding_backward(view, np.asfortranarray(ids).astype(">i4"), count), first)


@pytest.mark.parametrize("half", HALVES)
@for_each(("shape", "count", "dim"), CASES[4:])
def test_halves_are_added_in_float32(shape, count, dim, half, level):
    ids, upstream = draw_ids(shape, count), normal(*shape, dim).astype(HALVES[half])
    for scale in (1.0, 0.3):
        found = functional.embedding_backward(upstream, ids, count, scale=scale)
        assert_same_bits(found, functional.embedding_backward(upstream.astype(np.float32), ids, count, scale=scale))


def test_many_axes_and_lists():
    ids, upstream = draw_ids((2,) * 9, 5), normal(*(2,) * 9, 3)
    flat = functional.embedding_backward(upstream.reshape(-1, 3), ids.ravel(), 5)
    assert_same_bits(functional.embedding_backward(upstream, ids, 5), flat)
    assert functional.embedding_backward([[1, 2]], [0], 1).tolist() == [[1.0, 2.0]]
    assert functional.embedding_backward(np.ones((0, 4)), [], 2).tolist() == [[0.0] * 4] * 2


X = np.ones((2, 3))


@for_each(
    ("call", "kind", "message"),
    [
        (
            lambda: functional.embedding_backward(X, [0, 4], 4),
            ValueError,
            r"ids holds 4 at index \(1,\), expected 0 <= id < 4: num_embeddings is 4",
        ),
        (lambda: functional.embedding_backward(X[None], [[0, -1]], 4), ValueError, r"ids holds -1 at index \(0, 1\)"),
        (lambda: functional.embedding_backward(X[0], 7, 4), ValueError, "ids is 7, expected 0 <= id < 4"),
        (lambda: functional.embedding_backward(X, [0.5, 1], 4), TypeError, "ids has dtype float64, expected integers"),
        (
            lambda: functional.embedding_backward(X, [0], 4),
            ValueError,
            r"grad_output has shape \(2, 3\), expected \(\.\.\., dim\) with the axes of ids, \(1,\)",
        ),
        (lambda: functional.embedding_backward(1.0, [0], 4), ValueError, r"grad_output has shape \(\), expected"),
        (lambda: functional.embedding_backward(X, [0, 1], -1), ValueError, "num_embeddings is -1, expected 0 or more"),
        (lambda: functional.embedding_backward(X, [0, 1], 2.0), TypeError, "num_embeddings is of type float, expected"),
        (
            lambda: functional.embedding_backward(X, [0, 1], 4, padding_idx=-5),
            ValueError,
            "padding_idx is -5, expected -4 <= padding_idx < 4: num_embeddings is 4",
        ),
        (lambda: functional.embedding_backward(X, [0, 1], 4, scale=np.nan), ValueError, "scale is nan, expected a fin"),
        (lambda: functional.embedding_backward(X * 1j, [0, 1], 4), TypeError, "grad_output has dtype complex128"),
        (lambda: functional.embedding_backward(X, [0, 1], 2**63), ValueError, "num_embeddings is .*: the gradient, "),
        (lambda: _core.embedding_backward(X, [0, 1], 4, num_threads=0), ValueError, "num_threads is 0, expected 1 or"),
    ],
)
def test_mistakes_are_named(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_table_without_rows():
    assert pyattn.functional.embedding_backward(np.zeros((0, 3)), np.zeros(0, int), 0).shape == (0, 3)

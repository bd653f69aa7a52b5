"""rotary_embedding: against the formula, in the same bits however it is called, and with clear words for mistakes."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, normal

import pyattn.functional as rotary
from pyattn import _core, functional

both_pairings = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "neighbours"])
WIDER = {"float32": np.float64, "float64": np.longdouble}


def pairs_of(size, interleaved):
    """The features of each pair's two places."""
    first = np.arange(0, size, 2) if interleaved else np.arange(size // 2)
    return first, first + (1 if interleaved else size // 2)


def formula(x, positions, size, interleaved, theta=10000.0):
    """Bhsd, in a wider type; positions broadcast to (..., heads, length). Angles are position * float64(inv_freq)."""
    wide = WIDER[x.dtype.name]
    inv_freq = theta ** (-np.arange(0, size, 2) / max(1, size))
    angle = np.asarray(positions, wide)[..., None] * inv_freq.astype(wide)
    first, second = pairs_of(size, interleaved)
    y = x.astype(wide)
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first] = a * np.cos(angle) - b * np.sin(angle)
    y[..., second] = b * np.cos(angle) + a * np.sin(angle)
    return y


def bound_of(x, size, interleaved):
    """4u (|a| + |b|) where pairs turn, and nothing elsewhere."""
    first, second = pairs_of(size, interleaved)
    bound = np.zeros(x.shape, WIDER[x.dtype.name])
    for place in (first, second):
        bound[..., place] = (np.abs(x[..., first]) + np.abs(x[..., second])) * 2 * np.finfo(x.dtype).eps
    return bound + np.finfo(x.dtype).tiny * (bound > 0)


def assert_close(y, x, positions, size, interleaved, theta=10000.0):
    error = np.abs(y - formula(x, positions, size, interleaved, theta))
    assert (error <= bound_of(x, size, interleaved)).all()


# Numbers


@both_pairings
@for_each("dim", [1, 2, 6, 16, 30, 34, 64, 80, 128, 130])
def test_against_the_formula(dim, interleaved, dtype, level):
    for length, offset, theta in ((1, 0, 1e4), (1, 700, 5e5), (5, 30, 1e4), (33, 0, 1e6), (70, 50, 100.0)):
        for size in {dim // 2 * 2, dim // 4 * 2, 0}:
            x = normal(2, 3, length, dim, dtype=dtype, seed=dim + length)
            y = functional.rotary_embedding(x, theta=theta, rotary_dim=size, interleaved=interleaved, offset=offset)
            assert_close(y, x, offset + np.arange(length), size, interleaved, theta)


@both_pairings
@pytest.mark.parametrize("position", [-1, 31, 1000, 99_999, 100_000, 1_048_575, 10**8, -(10**6)])
def test_far_positions_are_as_exact_as_near_ones(position, interleaved, dtype):
    """Against mpmath, with float64's own inv_freq."""
    x = normal(1, 16, dtype=dtype)
    y = functional.rotary_embedding(x, offset=position, interleaved=interleaved)
    bound = bound_of(x, 16, interleaved)
    first, second = pairs_of(16, interleaved)
    with mpmath.workdps(60):
        for n, f in enumerate(rotary.rotary_frequencies(16).inv_freq):
            angle = position * mpmath.mpf(float(f))
            a, b = (mpmath.mpf(float(x[0, place[n]])) for place in (first, second))
            turned = (
                a * mpmath.cos(angle) - b * mpmath.sin(angle),
                b * mpmath.cos(angle) + a * mpmath.sin(angle),
            )
            for place, exact in zip((first, second), turned, strict=True):
                assert abs(mpmath.mpf(float(y[0, place[n]])) - exact) <= float(bound[0, place[n]])


@both_pairings
def test_products_depend_on_the_distance_alone(interleaved, dtype):
    """Each turned number is off by 4u of its pair, in both factors and at both places."""
    q, k = normal(2, 1, 64, dtype=dtype)
    pairs = [np.stack([x[0, place] for place in pairs_of(64, interleaved)]) for x in (q, k)]
    sizes = [np.abs(pair).sum(0, dtype=np.float64) for pair in pairs]
    bound = 2 * 4 * np.finfo(dtype).eps * (sizes[0] * sizes[1]).sum() * (4 if dtype == "float64" else 1)
    products = []
    for at in (0, 17, 4096, 100_000):
        turned = (
            functional.rotary_embedding(x, offset=place, interleaved=interleaved).astype(np.longdouble)
            for x, place in ((q, at + 9), (k, at))
        )
        products.append(float(next(turned)[0] @ next(turned)[0]))
    assert np.ptp(products) <= bound
    assert abs(products[0] - float(q[0].astype(np.longdouble) @ k[0].astype(np.longdouble))) > 1000 * bound


def test_what_does_not_turn_is_copied_bit_for_bit(dtype, level):
    x = normal(3, 20, dtype=dtype)
    x[:, 12:] = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).smallest_subnormal, 1])
    assert_same_bits(functional.rotary_embedding(x, rotary_dim=12, offset=5)[:, 12:], x[:, 12:])


@both_pairings
def test_nan_stays_in_its_pair(interleaved, dtype, level):
    x = normal(40, 32, dtype=dtype)
    plain = functional.rotary_embedding(x, interleaved=interleaved)
    first, second = pairs_of(32, interleaved)
    x[7, first[3]] = np.nan
    y = functional.rotary_embedding(x, interleaved=interleaved)
    hit = np.zeros(x.shape, bool)
    hit[7, [first[3], second[3]]] = True
    assert np.isnan(y[hit]).all()
    assert_same_bits(y[~hit], plain[~hit])


# Same bits


@both_pairings
def test_levels_give_the_same_bits(interleaved, dtype, levels):
    x, results = normal(2, 70, 3, 44, dtype=dtype), {}
    for level in levels:
        _core._set_isa(level)
        results[level] = functional.rotary_embedding(
            x, rotary_dim=38, interleaved=interleaved, offset=99_990, layout="bshd"
        )
    fused = [level for level in levels if level != "scalar"]
    for level in fused[1:]:
        assert_same_bits(results[level], results[fused[0]], level)


def test_both_pairings_give_a_pair_the_same_bits(dtype, level):
    x = normal(50, 36, dtype=dtype)
    apart = np.concatenate([x[:, 0::2], x[:, 1::2]], axis=1)
    neighbours = functional.rotary_embedding(x, interleaved=True)
    halves = functional.rotary_embedding(apart)
    assert_same_bits(np.concatenate([neighbours[:, 0::2], neighbours[:, 1::2]], axis=1), halves)


@pytest.mark.threads
@both_pairings
def test_threads_do_not_change_a_bit(interleaved, dtype):
    x = normal(3, 4, 300, 64, dtype=dtype)
    ids = np.random.default_rng(1).integers(0, 5000, (3, 300))
    one = functional.rotary_embedding(x, position_ids=ids, interleaved=interleaved, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(
            functional.rotary_embedding(x, position_ids=ids, interleaved=interleaved, num_threads=threads),
            one,
            threads,
        )


def test_a_row_has_the_same_bits_however_it_is_computed(dtype, level):
    x = normal(2, 3, 100, 24, dtype=dtype)
    whole = functional.rotary_embedding(x, offset=1000)
    for at in (0, 1, 23, 24, 31, 32, 99):
        assert_same_bits(
            functional.rotary_embedding(x[1, 2, at : at + 1], offset=1000 + at), whole[1, 2, at : at + 1], at
        )
    assert_same_bits(functional.rotary_embedding(x[:, :, 40:], offset=1040), whole[:, :, 40:])
    some = np.random.default_rng(0).permutation(100)
    assert_same_bits(functional.rotary_embedding(x[:, :, some], position_ids=1000 + some), whole[:, :, some])


def test_layouts_give_the_same_bits(dtype, level):
    x = normal(2, 5, 40, 16, dtype=dtype)
    expected = functional.rotary_embedding(x, offset=3)
    turned = functional.rotary_embedding(x.swapaxes(1, 2).copy(), offset=3, layout="bshd")
    assert_same_bits(turned.swapaxes(1, 2), expected)
    assert_same_bits(functional.rotary_embedding(x.swapaxes(1, 2), offset=3, layout="bshd").swapaxes(1, 2), expected)
    assert_same_bits(functional.rotary_embedding(x.swapaxes(1, 2)[0], offset=3, layout="bshd"), turned[0])
    assert_same_bits(functional.rotary_embedding(x[0], offset=3), expected[0])
    assert_same_bits(functional.rotary_embedding(x[0, 0], offset=3), expected[0, 0])


def views_of(x):
    """The same numbers, elsewhere in memory."""
    yield "fortran", np.asfortranarray(x)
    yield "reversed", x[:, ::-1, :, ::-1].copy()[:, ::-1, :, ::-1]
    yield "swapped", x.astype(x.dtype.newbyteorder())
    unaligned = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    unaligned[...] = x
    yield "unaligned", unaligned
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
    wide[..., : x.shape[-1]] = x
    yield "rows apart", wide[..., : x.shape[-1]]
    yield "a view of (batch, length, heads, dim)", x.swapaxes(1, 2).copy().swapaxes(1, 2)


def test_strides_do_not_change_a_bit(dtype, level):
    x = normal(2, 3, 37, 18, dtype=dtype)
    plain = functional.rotary_embedding(x, offset=8)
    for kind, view in views_of(x):
        assert_same_bits(functional.rotary_embedding(view, offset=8), plain, kind)
    same = functional.rotary_embedding(np.broadcast_to(x[0, 0], (4, 2, 37, 18)), offset=8)
    assert_same_bits(same, np.broadcast_to(plain[0, 0], (4, 2, 37, 18)))


# Positions


def test_position_ids_broadcast_to_the_axes_without_heads(dtype):
    x = normal(2, 3, 4, 10, 8, dtype=dtype)  # (2, 3) batches of 4 heads
    rng = np.random.default_rng(2)
    for shape in ((10,), (1,), (3, 10), (3, 1), (2, 1, 10), (2, 3, 10)):
        ids = rng.integers(-50, 500, shape)
        y = functional.rotary_embedding(x, position_ids=ids)
        positions = np.broadcast_to(ids, (2, 3, 10))[:, :, None]
        assert_close(y, x, positions, 8, False)
        turned = functional.rotary_embedding(x.swapaxes(2, 3), position_ids=ids.tolist(), layout="bshd")
        assert_same_bits(turned.swapaxes(2, 3), y)


def test_position_ids_of_three_axes_are_those_of_batches(dtype):
    x = normal(3, 10, 8, dtype=dtype)
    ids = np.random.default_rng(3).integers(0, 99, (3, 10))
    assert_close(functional.rotary_embedding(x, position_ids=ids), x, ids, 8, False)


@pytest.mark.parametrize("kind", ["i1", "u2", "i4", ">i8", "u8", "strided"])
def test_position_ids_of_any_integers(kind):
    x, ids = normal(10, 8, dtype="f4"), np.arange(10)[::-1] + 3
    given = np.repeat(ids, 2)[::2] if kind == "strided" else ids.astype(kind)
    assert_same_bits(
        functional.rotary_embedding(x, position_ids=given),
        functional.rotary_embedding(x[::-1], offset=3)[::-1],
    )


def test_a_negative_offset_turns_back(dtype):
    x = normal(1, 32, dtype=dtype)
    there = functional.rotary_embedding(x, offset=1234)
    back = functional.rotary_embedding(there, offset=-1234)
    assert (np.abs(back - x) <= 2 * np.sqrt(2) * bound_of(x, 32, False)).all()
    assert (np.abs(there - x) > bound_of(x, 32, False)).any()


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 5, 4), (0, 2, 5, 4), (2, 3, 0, 4), (2, 3, 5, 0)])
def test_empty_axes(shape, dtype):
    y = functional.rotary_embedding(np.ones(shape, dtype))
    assert y.shape == shape
    assert y.dtype == dtype


# Memory


@both_pairings
def test_in_place(interleaved, dtype, level):
    """Also where rows are a view of projected keys."""
    x = normal(2, 40, 3, 3, 24, dtype=dtype)
    options = {"rotary_dim": 20, "interleaved": interleaved, "layout": "bshd", "offset": 7}
    plain = functional.rotary_embedding(x[:, :, 1], **options)
    untouched = x.copy()
    keys = x[:, :, 1]
    assert functional.rotary_embedding(keys, **options, out=keys) is keys
    assert_same_bits(x[:, :, 1], plain)
    assert_same_bits(x[:, :, ::2], untouched[:, :, ::2])


def test_rows_that_share_memory_are_not_rotated_in_place(dtype):
    x = normal(1, 8, dtype=dtype)
    untouched, rows = x.copy(), np.lib.stride_tricks.as_strided(x, (3, 8), (0, x.strides[1]))
    with pytest.raises(ValueError, match="out overlaps itself"):
        functional.rotary_embedding(rows, position_ids=[4, 5, 6], out=rows)
    assert_same_bits(x, untouched)


def test_out(dtype):
    x = normal(2, 50, 16, dtype=dtype)
    plain = functional.rotary_embedding(x)
    for out in (np.empty_like(x), np.empty_like(x, order="F"), np.empty((2, 50, 32), dtype)[..., ::2]):
        assert functional.rotary_embedding(x, out=out) is out
        assert_same_bits(out, plain)
    memory = np.concatenate([x.ravel(), np.zeros(16, dtype)])
    shifted = memory[16:].reshape(x.shape)  # one row further
    functional.rotary_embedding(memory[:-16].reshape(x.shape), out=shifted)
    assert_same_bits(shifted, plain)


def test_what_numpy_can_read():
    assert functional.rotary_embedding([[1, 0], [1, 0]], offset=1).dtype == np.float64
    assert functional.rotary_embedding(memoryview(np.ones((2, 2), "f4"))).dtype == np.float32
    assert functional.rotary_embedding([[True, False]]).tolist() == [[1.0, 0.0]]


def test_a_multiple_of_cosines_and_sines(dtype):
    x = normal(9, 8, dtype=dtype)
    plain, doubled = (
        rotary.rotary_embedding(x, frequencies=rotary.rotary_frequencies(8)._replace(attention_factor=f))
        for f in (1.0, 2.0)
    )
    assert_same_bits(doubled, 2 * plain)


# Mistakes


X = np.ones((2, 4))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"x": 1.0}, ValueError, r"x has shape \(\), expected at least 2 axes: \(..., length, dim\)"),
        (
            {"layout": "bshd"},
            ValueError,
            r"x has shape \(2, 4\), expected at least 3 axes: \(..., length, heads, dim\)",
        ),
        ({"layout": "sbhd"}, ValueError, "layout is 'sbhd', expected 'bhsd' or 'bshd'"),
        ({"x": X[:, :3]}, ValueError, "rotary_dim is 3, expected an even number of at most dim, 3"),
        ({"rotary_dim": 6}, ValueError, "rotary_dim is 6, expected an even number of at most dim, 4"),
        ({"rotary_dim": -2}, ValueError, "rotary_dim is -2, expected 0 or more"),
        ({"rotary_dim": 2.0}, TypeError, "rotary_dim is of type float, expected an int"),
        ({"theta": 1}, ValueError, "theta is 1.0, expected more than 1"),
        ({"theta": math.inf}, ValueError, "theta is inf, expected a finite number above 0"),
        ({"theta": "10000"}, TypeError, "theta is of type str, expected a number"),
        ({"interleaved": "no"}, TypeError, "interleaved is of type str, expected True or False"),
        ({"offset": 1.5}, TypeError, "offset is of type float, expected an int"),
        ({"offset": True}, TypeError, "offset is of type bool, expected an int"),
        (
            {"offset": 2**53},
            ValueError,
            r"offset is 9007199254740992 and x has length 2, expected positions from -2\*\*53 to 2\*\*53",
        ),
        ({"offset": -(2**70)}, ValueError, "offset is -9223372036854775808 and x has length 2"),
        (
            {"offset": 3, "position_ids": [0, 1]},
            ValueError,
            r"offset is 3, but position_ids already give every position; pass offset \+ position_ids as position_ids",
        ),
        (
            {"position_ids": [0, 1, 2]},
            ValueError,
            r"position_ids has shape \(3,\), which does not broadcast to \(2,\): \(..., length\), one for each row of "
            "all heads",
        ),
        (
            {"x": np.ones((2, 3, 5, 4)), "position_ids": np.zeros((2, 3, 5), int)},
            ValueError,
            r"position_ids has shape \(2, 3, 5\), which does not broadcast to \(2, 5\): \(..., length\)",
        ),
        ({"position_ids": [0, 2**54]}, ValueError, "position_ids holds 18014398509481984, expected positions from"),
        ({"position_ids": [0, 2**63]}, ValueError, "position_ids holds 9.22.*, which is out of range"),
        ({"position_ids": [0.0, 1.0]}, TypeError, "position_ids has dtype float64, expected integers; pass"),
        ({"num_threads": 0}, ValueError, "num_threads is 0, expected 1 or more, or None"),
        ({"out": np.zeros((2, 3))}, ValueError, r"out has shape \(2, 3\), expected \(2, 4\)"),
        ({"out": np.zeros((2, 4), "f4")}, ValueError, "out has dtype float32, expected float64"),
        ({"out": [[1.0]]}, TypeError, "out is of type list, expected a numpy.ndarray"),
        ({"x": X * 1j}, TypeError, r"x has dtype complex128, .* pass x.real.astype\(numpy.float64\)"),
        ({"x": np.ma.array(X)}, TypeError, "x is a masked array"),
        ({"bogus": 1}, TypeError, "unexpected keyword argument 'bogus'"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        functional.rotary_embedding(**{"x": X, **arguments})


@both_pairings
@for_each("options", [{}, {"offset": 70_000}, {"position_ids": [[3, 1, 4, 1, 5]]}, {"layout": "bshd", "offset": -3}])
def test_negative_angles_give_the_gradient(options, interleaved, dtype, level):
    """The gradient g of a pair at angle t is (ga cos t + gb sin t, gb cos t - ga sin t); other features pass it on."""
    upstream = normal(2, 5, 5, 12, dtype=dtype)
    frequencies = rotary.rotary_frequencies(8)
    backwards = frequencies._replace(inv_freq=-frequencies.inv_freq)
    found = rotary.rotary_embedding(upstream, frequencies=backwards, interleaved=interleaved, **options)
    positions = np.asarray(options.get("position_ids", np.arange(5) + options.get("offset", 0)))
    heads = (lambda x: x.swapaxes(1, 2)) if options.get("layout") == "bshd" else (lambda x: x)
    exact = heads(formula(heads(upstream), -positions, 8, interleaved))
    assert (np.abs(found - exact) <= bound_of(upstream, 8, interleaved)).all()
    restored = rotary.rotary_embedding(found, frequencies=frequencies, interleaved=interleaved, **options)
    assert (np.abs(restored - upstream) <= 2 * bound_of(upstream, 8, interleaved) + 8 * np.finfo(dtype).eps).all()


def test_a_mistake_leaves_out_alone():
    out = np.full((2, 4), 7.0)
    with pytest.raises(ValueError, match="position_ids has shape"):
        functional.rotary_embedding(X, position_ids=[1, 2, 3], out=out)
    frozen = out.view()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        functional.rotary_embedding(frozen, out=frozen)
    assert (out == 7).all()


def test_frequencies_that_x_has_no_room_for():
    wide = rotary.rotary_frequencies(8)
    with pytest.raises(ValueError, match=r"inv_freq has 4 pairs, but x has dim 4: at most 2 pairs. Given: x \(2, 4\)"):
        rotary.rotary_embedding(X, frequencies=wide)
    with pytest.raises(ValueError, match=r"inv_freq has shape \(1, 4\), expected \(pairs,\)"):
        rotary.rotary_embedding(X, frequencies=wide._replace(inv_freq=wide.inv_freq[None]))


def test_a_result_that_no_memory_holds():
    with pytest.raises(MemoryError):
        functional.rotary_embedding(np.broadcast_to(np.ones(4, "f4"), (2**52, 4)))
    with pytest.raises(ValueError, match=r"the result is too large for memory: x \(288230376151711744, 4\)"):
        functional.rotary_embedding(np.broadcast_to(np.ones(4, "f4"), (2**58, 4)))


def test_out_may_lie_over_the_frequencies():
    frequencies, x = np.ones(400), np.random.default_rng(0).standard_normal((100, 4))
    expected = functional.rotary_embedding(x, frequencies=functional.RotaryFrequencies(np.ones(2), 1.0))
    over = frequencies.reshape(100, 4)
    assert_same_bits(
        functional.rotary_embedding(x, frequencies=functional.RotaryFrequencies(frequencies[:2], 1.0), out=over),
        expected,
    )

"""embedding: rows of a table, scaled, with another row added; against NumPy and torch, however arrays lie in memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, run_python

import pyattn
from pyattn import _core

DIMS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1000)
WIDER = {"float32": np.float64, "float64": np.longdouble}


def draw(rows, dim, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(dtype)


def ids_of(shape, rows, seed=1):
    return np.random.default_rng(seed).integers(0, rows, shape)


def assert_close(y, ids, weight, scale=1.0, residual=0.0):
    """One rounding of the scale, one of the sum; without fma one more of the product."""
    wide, info = WIDER[y.dtype.name], np.finfo(y.dtype)
    product = wide(scale) * weight[ids].astype(wide)
    exact = product + np.asarray(residual, wide)
    assert (np.abs(y - exact) <= info.eps * (np.abs(product) + np.abs(exact)) + info.tiny).all()


@for_each("dim", DIMS)
def test_against_the_formula(dim, dtype, level):
    weight, ids = draw(20, dim, dtype), ids_of((3, 5), 20)
    rows, row = draw(15, dim, dtype, 2).reshape(3, 5, dim), draw(1, dim, dtype, 3)
    assert_close(pyattn.functional.embedding(ids, weight, scale=-0.3), ids, weight, -0.3)
    assert_close(pyattn.functional.embedding(ids, weight, residual=rows), ids, weight, 1, rows)
    assert_close(pyattn.functional.embedding(ids, weight, scale=7.7, residual=rows), ids, weight, 7.7, rows)
    assert_close(pyattn.functional.embedding(ids, weight, scale=7.7, residual=row), ids, weight, 7.7, row)


@for_each("dim", DIMS)
def test_rows_have_their_own_bits(dim, dtype, level):
    """Denormals, infinities and NaN with their payloads, too."""
    memory = np.random.default_rng(0).integers(0, 256, (9, dim * np.dtype(dtype).itemsize), np.uint8)
    weight, ids = memory.view(dtype), ids_of(40, 9)
    weight[0] = np.finfo(dtype).smallest_subnormal
    weight[1] = -0.0
    assert_same_bits(pyattn.functional.embedding(ids, weight), weight[ids])


@pytest.mark.peers
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3), (2, 1, 4), (0,), (3, 0)], ids=str)
def test_equals_torch(shape, dtype, torch):
    weight, ids = draw(11, 10, dtype), ids_of(shape, 11)
    theirs = torch.nn.functional.embedding(torch.from_numpy(np.asarray(ids)), torch.from_numpy(weight), padding_idx=2)
    assert_same_bits(pyattn.functional.embedding(ids, weight, 2), theirs.numpy())
    assert_same_bits(
        pyattn.functional.embedding(torch.from_numpy(np.asarray(ids)), torch.from_numpy(weight)), theirs.numpy()
    )


def test_levels_give_the_same_bits(dtype, levels):
    weight, ids, residual = draw(50, 100, dtype), ids_of((4, 60), 50), draw(60, 100, dtype, 2)
    results = {}
    for level in levels:
        _core._set_isa(level)
        results[level] = pyattn.functional.embedding(ids, weight, scale=1.7, residual=residual)
    fused = [level for level in levels if level != "scalar"]
    for level in fused[1:]:
        assert_same_bits(results[level], results[fused[0]], level)


@pytest.mark.threads
@pytest.mark.parametrize("dim", [1, 64, 40000])
def test_threads_and_neighbours_do_not_change_a_bit(dim, dtype):
    rows = max(5, 200000 // dim)
    weight, ids, residual = draw(30, dim, dtype), ids_of(rows, 30), draw(rows, dim, dtype, 2)
    one = pyattn.functional.embedding(ids, weight, scale=1.7, residual=residual, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(
            pyattn.functional.embedding(ids, weight, scale=1.7, residual=residual, num_threads=threads), one
        )
    assert_same_bits(pyattn.functional.embedding(ids[3], weight, scale=1.7, residual=residual[3]), one[3])


@pytest.mark.parametrize("kind", ["fortran", "reversed", "swapped", "unaligned", "apart", "read-only"])
def test_strides_do_not_change_a_bit(kind, dtype, level):
    def strided(x):
        if kind == "fortran":
            return np.asfortranarray(x)
        if kind == "reversed":
            return x[..., ::-1].copy()[..., ::-1]
        if kind == "swapped":
            return x.astype(x.dtype.newbyteorder())
        if kind == "unaligned":
            memory = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
            memory[...] = x
            return memory
        if kind == "read-only":
            x = x.copy()
            x.flags.writeable = False
            return x
        return np.repeat(np.repeat(x, 3, 0), 2, -1)[::3, ..., ::2]

    arrays = [ids_of((6, 9), 40), draw(40, 37, dtype), draw(54, 37, dtype, 2).reshape(6, 9, 37)]
    plain = pyattn.functional.embedding(*arrays[:2], scale=1.7, residual=arrays[2])
    copied = pyattn.functional.embedding(*arrays[:2])
    for n in range(3):
        ids, weight, residual = (strided(a) if m == n else a for m, a in enumerate(arrays))
        assert_same_bits(pyattn.functional.embedding(ids, weight, scale=1.7, residual=residual), plain, n)
        assert_same_bits(pyattn.functional.embedding(ids, weight), copied, n)


@pytest.mark.parametrize("shape", [(37,), (1,), (), (9, 1), (9, 37), (6, 1, 37), (1, 9, 37), (6, 1, 1), (6, 9, 37)])
def test_a_residual_broadcasts(shape, dtype):
    ids, weight = ids_of((6, 9), 40), draw(40, 37, dtype)
    residual = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    whole = np.ascontiguousarray(np.broadcast_to(residual, (6, 9, 37)))
    assert_same_bits(
        pyattn.functional.embedding(ids, weight, scale=3, residual=residual),
        pyattn.functional.embedding(ids, weight, scale=3, residual=whole),
    )


def test_a_residual_is_not_expanded_and_a_table_is_not_copied():
    """Both would take terabytes."""
    row, ids = np.ones(1 << 20, np.float32), np.array([1 << 21, 5])
    table = np.broadcast_to(row, (1 << 22, 1 << 20))
    y = pyattn.functional.embedding(ids, table, residual=np.broadcast_to(row, (2, 1 << 20)))
    assert (y == 2).all()


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint32", ">i4", "int64", "uint64", ">i8"])
def test_all_integers_are_ids(kind, dtype):
    weight, ids = draw(100, 5, dtype), ids_of((4, 6), 100)
    assert_same_bits(pyattn.functional.embedding(ids.astype(kind), weight), weight[ids])


def test_what_numpy_can_read():
    assert pyattn.functional.embedding([[1, 0]], [[1, 2], [3, 4]]).tolist() == [[[3.0, 4.0], [1.0, 2.0]]]
    assert pyattn.functional.embedding(1, np.eye(2, dtype=np.float32)).tolist() == [0.0, 1.0]
    assert pyattn.functional.embedding([], np.eye(2)).shape == (0, 2)
    assert pyattn.functional.embedding([0], np.eye(2, dtype=np.float32), residual=[0.5, 0.5]).dtype == np.float64
    assert pyattn.functional.embedding(np.ones((3, 2), int), np.ones((2, 0))).shape == (3, 2, 0)


def test_out(dtype):
    ids, weight, residual = ids_of(40, 40), draw(40, 40, dtype), draw(40, 40, dtype, 2)
    plain = pyattn.functional.embedding(ids, weight, scale=2, residual=residual)
    for out in (np.empty_like(plain), np.empty_like(plain, order="F"), np.empty((40, 80), dtype)[:, ::2]):
        assert pyattn.functional.embedding(ids, weight, scale=2, residual=residual, out=out) is out
        assert_same_bits(out, plain)
    for n in range(2):
        arrays = [weight.copy(), residual.copy()]
        pyattn.functional.embedding(ids, arrays[0], scale=2, residual=arrays[1], out=arrays[n])
        assert_same_bits(arrays[n], plain, n)


def test_nan_and_infinity_stay_in_their_place(dtype, level):
    weight, ids = draw(10, 33, dtype), np.arange(10)
    residual = draw(10, 33, dtype, 2)
    plain = pyattn.functional.embedding(ids, weight, scale=2, residual=residual)
    weight[3, 7], residual[5, 32] = np.nan, np.inf
    y = pyattn.functional.embedding(ids, weight, scale=2, residual=residual)
    assert np.isnan(y[3, 7])
    assert np.isposinf(y[5, 32])
    y[3, 7], y[5, 32] = plain[3, 7], plain[5, 32]
    assert_same_bits(y, plain)


IDS = """
import faulthandler, sys, threading, time
import numpy as np, pyattn

faulthandler.dump_traceback_later(30, exit=True)
sys.setswitchinterval(1e-5)
ids, weight, stop = np.full(100000, 3), np.ones((5, 8), np.float32), []

def change():
    while not stop:
        for number in (10**12, -(10**12), 2**63 - 1, -(2**63), 3):
            ids[:] = number
            time.sleep(0.0005)

thread = threading.Thread(target=change)
thread.start()
end, calls, refused = time.monotonic() + 1, 0, 0
while time.monotonic() < end:
    calls += 1
    try:
        assert (pyattn.functional.embedding(ids, weight, num_threads=calls % 2 + 1) == 1).all()
    except ValueError:
        refused += 1
stop.append(1)
thread.join()
assert 0 < refused < calls, (calls, refused)
"""


@pytest.mark.threads
def test_ids_that_change_meanwhile_crash_nothing():
    """What was checked is what is used: else a row could be looked for anywhere."""
    run_python(IDS)


# Mistakes

WEIGHT = np.ones((5, 3))
LARGE = np.array([2**64 - 1], np.uint64)


@for_each(
    ("input", "arguments", "kind", "message"),
    [
        (
            [[0, 1], [7, 9]],
            {},
            ValueError,
            r"^input holds 7 at index \(1, 0\), expected 0 <= id < 5: weight .* \(5, 3\)",
        ),
        ([4, -1], {}, ValueError, r"^input holds -1 at index \(1,\), expected 0 <= id < 5"),
        (5, {}, ValueError, r"^input is 5, expected 0 <= id < 5"),
        ([0], {"weight": WEIGHT[:0]}, ValueError, r"expected 0 <= id < 0: weight has shape \(0, 3\)"),
        (LARGE, {}, ValueError, r"^input holds 18446744073709551615, which is out of range"),
        (
            [0.0],
            {},
            TypeError,
            r"^input has dtype float64, expected integers; pass numpy.asarray\(input, numpy.int64\)",
        ),
        ([True], {}, TypeError, r"^input has dtype bool, expected integers; pass numpy.asarray\(input, numpy.int64\)"),
        (["a"], {}, TypeError, r"^input has dtype <U1, expected integers"),
        (None, {}, TypeError, "^input is an object of type NoneType"),
        (np.ma.array([0]), {}, TypeError, "^input is a masked array"),
        (np.zeros((1,) * 64, int), {}, ValueError, "^maximum supported dimension for an ndarray is"),
        ([0], {"weight": WEIGHT[0]}, ValueError, r"^weight has shape \(3,\), expected 2 axes: \(num_embeddings, embed"),
        (
            [0],
            {"weight": WEIGHT * 1j},
            TypeError,
            r"^weight has dtype complex128, .* weight.real.astype\(numpy.float64\)",
        ),
        (
            [0],
            {"residual": np.ones(2)},
            ValueError,
            r"^residual has shape \(2,\), which does not broadcast to \(1, 3\)",
        ),
        (
            [0],
            {"residual": np.ones((1, 1, 3))},
            ValueError,
            r"^residual has shape \(1, 1, 3\), which does not broadcast",
        ),
        ([0], {"residual": "a"}, TypeError, "^residual is a string"),
        ([0], {"padding_idx": 5}, ValueError, "^padding_idx is 5, expected -5 <= padding_idx < 5: weight has 5 rows"),
        ([0], {"padding_idx": -6}, ValueError, "^padding_idx is -6, expected -5"),
        ([0], {"padding_idx": 1.0}, TypeError, "^padding_idx is of type float, expected an int"),
        ([0], {"scale": np.nan}, ValueError, "^scale is nan, expected a finite number"),
        ([0], {"scale": "a"}, TypeError, "^scale is of type str, expected a number"),
        ([0], {"num_threads": 0}, ValueError, "^num_threads is 0, expected 1 or more, or None"),
        ([0], {"out": np.empty((1, 4))}, ValueError, r"^out has shape \(1, 4\), expected \(1, 3\)"),
        ([0], {"out": np.empty((1, 3), "f4")}, ValueError, "^out has dtype float32, expected float64"),
        ([0], {"bogus": 1}, TypeError, "unexpected keyword argument 'bogus'"),
    ],
)
def test_mistakes_are_named(input, arguments, kind, message):
    with pytest.raises(kind, match=message):
        pyattn.functional.embedding(input, **{"weight": WEIGHT, **arguments})


def test_a_wrong_id_writes_nothing():
    out = np.full((100000, 3), 7.0)
    with pytest.raises(ValueError, match="input holds 5"):
        pyattn.functional.embedding([*range(4)] * 24999 + [0, 1, 2, 5], WEIGHT, out=out)
    assert (out == 7).all()


def test_a_padding_idx_that_changes_the_weight_changes_nothing():
    """It is read before the weight is looked at."""
    weight, kept = np.arange(16, dtype=np.float32).reshape(4, 4).copy(), []

    class Index:
        def __index__(self):
            weight.resize((4, 4, 1), refcheck=False)
            kept.append(np.empty((7, 9)))
            return 0

    with pytest.raises(ValueError, match="weight has shape"):
        pyattn.functional.embedding([3, 2], weight, Index())

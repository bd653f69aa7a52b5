"""linear: against the formula, in the same bits however it is called, and with clear words for what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import EVERYTHING, assert_same_bits, for_each, run_python

import pyattn
from pyattn import _core, reference

ROWS = (1, 2, 3, 5, 8, 9, 16, 17, 31, 48, 49, 97, 400)
INNER = (0, 1, 3, 16, 17, 64, 127, 128, 129, 256, 300, 1024)
FEATURES = (1, 2, 7, 16, 33, 64, 65, 130)
WIDER = {"float32": np.float64, "float64": np.longdouble}


def draw(rng, rows, inner, features, dtype):
    shapes = ((rows, inner), (features, inner), (features,), (rows, features))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def assert_close(y, x, weight, bias=None, *, activation=None, residual=None):
    """4u (|x||W| + |b|), times at most the square root of the inner length; what is added last rounds once more."""
    wide, u = WIDER[y.dtype.name], np.finfo(y.dtype).eps / 2
    exact = reference.linear(x, weight, bias, activation=activation, residual=residual, dtype=wide)
    size = reference.linear(np.abs(x), np.abs(weight), None if bias is None else np.abs(bias), dtype=wide)
    bound = 4 * u * np.sqrt(max(1, np.shape(x)[-1])) * size + 2 * u * np.abs(exact) + np.finfo(y.dtype).tiny
    assert (np.abs(y - exact) <= bound).all()


@for_each("rows", ROWS)
def test_against_the_formula(rows, dtype, level):
    rng = np.random.default_rng(rows)
    for inner in INNER:
        x, weight, bias, residual = draw(rng, rows, inner, int(rng.choice(FEATURES)), dtype)
        assert_close(pyattn.functional.linear(x, weight), x, weight)
        assert_close(pyattn.functional.linear(x, weight, bias), x, weight, bias)
        options = {"activation": "relu", "residual": residual}
        assert_close(pyattn.functional.linear(x, weight, bias, **options), x, weight, bias, **options)


@for_each("activation", ["relu", "gelu", "gelu_tanh", "silu", "tanh"])
@for_each("rows", [1, 7, 40])
def test_activation_and_gate_have_the_bits_of_their_steps(rows, activation, dtype, level):
    x, weight, bias, gate = draw(np.random.default_rng(rows), rows, 96, 70, dtype)
    whole = pyattn.functional.linear(x, weight, bias, activation=activation, gate=gate, residual=gate)
    step = _core.activate(pyattn.functional.linear(x, weight, bias), activation)
    assert_same_bits(whole, step * gate + gate)


@pytest.mark.peers
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_equals_torch(rows, dtype, torch):
    rng = np.random.default_rng(rows)
    x, weight, bias, _ = draw(rng, rows, 96, 70, dtype)
    theirs = torch.nn.functional.linear(*map(torch.from_numpy, (x, weight, bias))).numpy()
    size = reference.linear(np.abs(x), np.abs(weight), np.abs(bias))  # each of the two may be half of this off
    np.testing.assert_array_less(
        np.abs(pyattn.functional.linear(x, weight, bias) - theirs), 4 * np.finfo(dtype).eps * size
    )


def test_levels_give_the_same_bits(dtype, levels):
    x, weight, bias, residual = draw(np.random.default_rng(0), 50, 300, 70, dtype)
    results = {}
    for level in levels:
        _core._set_isa(level)
        results[level] = pyattn.functional.linear(x, weight, bias, activation="relu", residual=residual)
    fused = [level for level in levels if level != "scalar"]
    for level in fused[1:]:
        assert_same_bits(results[level], results[fused[0]], level)


@pytest.mark.parametrize("rows", [1, 4, 9, 200])
def test_a_row_has_the_same_bits_however_it_is_computed(rows, dtype, level):
    rng = np.random.default_rng(1)
    x, weight, bias, residual = draw(rng, 200, 260, 130, dtype)
    whole = pyattn.functional.linear(x, weight, bias, residual=residual)
    some = rng.choice(200, rows, replace=False)
    assert_same_bits(pyattn.functional.linear(x[some], weight, bias, residual=residual[some]), whole[some])
    assert_same_bits(pyattn.functional.linear(x, weight[:65], bias[:65], residual=residual[:, :65]), whole[:, :65])


@pytest.mark.threads
@pytest.mark.parametrize("rows", [1, 8, 300])
def test_threads_do_not_change_a_bit(rows, dtype):
    x, weight, bias, residual = draw(np.random.default_rng(2), rows, 700, 500, dtype)
    one = pyattn.functional.linear(x, weight, bias, residual=residual, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(
            pyattn.functional.linear(x, weight, bias, residual=residual, num_threads=threads), one, threads
        )


def strided(x, kind):
    """The same numbers, elsewhere in memory."""
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
    wide = np.zeros((*x.shape[:-1], 2048 // x.itemsize), x.dtype)  # rows 2 KB apart: they share sets of the cache
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


@for_each("kind", ["fortran", "reversed", "swapped", "unaligned", "apart"])
@for_each("rows", [2, 60])
def test_strides_do_not_change_a_bit(kind, rows, dtype, level):
    arrays = draw(np.random.default_rng(3), rows, 140, 100, dtype)
    plain = pyattn.functional.linear(*arrays[:3], residual=arrays[3])
    for n in range(4):
        x, weight, bias, residual = (strided(a, kind) if m == n else a for m, a in enumerate(arrays))
        assert_same_bits(pyattn.functional.linear(x, weight, bias, residual=residual), plain, n)


def laid_out(weight, order):
    """The same weight, (out, in), in memory that begins in the middle of a vector."""
    rows, columns = weight.shape
    if order == "out_in":
        memory = np.zeros((rows, columns + 3), weight.dtype)[:, 1 : columns + 1]
    elif order == "in_out":
        memory = np.zeros((columns, rows + 5), weight.dtype)[:, 3 : rows + 3].T
    else:
        memory = np.zeros((2 * rows, 2 * columns), weight.dtype)[::2, 1::2]
    memory[...] = weight
    return memory


@for_each("rows", (*ROWS, 4, 6, 11, 12, 23, 24, 385, 800))
@for_each("order", ["out_in", "in_out", "neither"])
def test_memory_order_of_a_weight_changes_no_bit(order, rows, dtype, level):
    rng = np.random.default_rng(rows)
    for inner in INNER:
        x, weight, bias, residual = draw(rng, rows, inner, int(rng.choice(FEATURES)), dtype)
        options = {"residual": residual, "activation": rng.choice(["relu", "gelu"])}
        plain = pyattn.functional.linear(x, weight, bias, **options, num_threads=1)
        elsewhere = laid_out(x, rng.choice(["out_in", "in_out", "neither"]))
        threads = int(rng.choice([1, 2, 3, 16]))
        y = pyattn.functional.linear(elsewhere, laid_out(weight, order), bias, **options, num_threads=threads)
        assert_same_bits(y, plain, (inner, weight.shape, threads))


@pytest.mark.threads
@for_each("order", ["out_in", "in_out"])
@for_each("sizes", [(1, 3000, 2100), (20, 2100, 2100), (40, 2050, 2100), (2000, 130, 70), (700, 140, 900)])
def test_memory_order_and_threads_change_no_bit_at_real_sizes(sizes, order):
    """A weight out of the cache, rows that are shared out in chunks, and chunks that are packed together."""
    x, weight, bias, _ = draw(np.random.default_rng(7), *sizes, np.float32)
    few = pyattn.functional.linear(x[:1], weight, bias)
    for threads in (1, 2, 16):
        y = pyattn.functional.linear(x, laid_out(weight, order), bias, num_threads=threads)
        assert_same_bits(y[:1], few, threads)
        alone = pyattn.functional.linear(x[:1], laid_out(weight, order), bias, num_threads=threads)
        assert_same_bits(alone, few, threads)
        assert_close(y, x, weight, bias)
        copied = pyattn.functional.linear(laid_out(x, "neither"), laid_out(weight, order), bias, num_threads=threads)
        assert_same_bits(copied, y, threads)


@pytest.mark.threads
@for_each("rows", (16, 24, 48, 49, 96, 128, 385))
def test_a_weight_of_a_few_columns_is_read_in_place_by_all_workers(rows, dtype, level):
    """Some whole vectors at some level: rows are then shared out, whatever they are."""
    rng = np.random.default_rng(rows)
    for features in (4, 8, 16, 24, 40, 48, 64, 80, 128):
        x, weight, bias, residual = draw(rng, rows, 300, features, dtype)
        plain = pyattn.functional.linear(x, weight, bias, residual=residual, num_threads=1)
        wide = np.concatenate([weight, weight, weight])
        close, apart = laid_out(weight, "in_out"), laid_out(wide, "in_out")[:features]
        for narrow in (close, apart):
            for given in (x, laid_out(x, "neither"), laid_out(x, "in_out")):
                threads = int(rng.choice([1, 2, 16]))
                y = pyattn.functional.linear(given, narrow, bias, residual=residual, num_threads=threads)
                assert_same_bits(y, plain, (features, threads))


def test_every_few_rows_times_a_weight_out_of_the_cache(dtype, level):
    """Their number decides how many of them read the weight at a time, and what is prefetched meanwhile."""
    x, weight, bias, _ = draw(np.random.default_rng(8), 24, 1030, 1100, dtype)
    plain = pyattn.functional.linear(x, weight, bias)
    assert_close(plain, x, weight, bias)
    weight = laid_out(weight, "in_out")
    for rows in range(1, 25):
        assert_same_bits(pyattn.functional.linear(x[:rows], weight, bias), plain[:rows], rows)


def test_leading_axes(dtype):
    rng = np.random.default_rng(4)
    x, weight, bias, _ = draw(rng, 24, 20, 9, dtype)
    plain = pyattn.functional.linear(x, weight, bias)
    assert_same_bits(pyattn.functional.linear(x.reshape(2, 3, 4, 20), weight, bias), plain.reshape(2, 3, 4, 9))
    turned = x.reshape(4, 6, 20).swapaxes(0, 1)
    assert_same_bits(pyattn.functional.linear(turned, weight, bias), plain.reshape(4, 6, 9).swapaxes(0, 1))
    assert_same_bits(pyattn.functional.linear(x[5], weight, bias), plain[5])
    assert_same_bits(pyattn.functional.linear(np.broadcast_to(x[0], (3, 20)), weight, bias), plain[[0, 0, 0]])


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (3, 0), (0,)])
def test_empty_axes(shape, dtype):
    x, weight, bias = np.ones(shape, dtype), np.ones((4, shape[-1]), dtype), np.arange(4, dtype=dtype)
    assert_same_bits(pyattn.functional.linear(x, weight, bias), x @ weight.T + bias)
    assert pyattn.functional.linear(x, weight[:0]).shape == (*shape[:-1], 0)


def test_out(dtype):
    x, weight, bias, residual = draw(np.random.default_rng(5), 60, 60, 60, dtype)
    plain = pyattn.functional.linear(x, weight, bias, residual=residual)
    for out in (np.empty_like(plain), np.empty_like(plain, order="F"), np.empty((60, 120), dtype)[:, ::2]):
        assert pyattn.functional.linear(x, weight, bias, residual=residual, out=out) is out
        assert_same_bits(out, plain)
    for n, name in enumerate(("x", "weight", "bias", "residual")):
        arrays = [a.copy() for a in (x, weight, bias, residual)]
        out = arrays[n] if name != "bias" else arrays[0]
        pyattn.functional.linear(*arrays[:3], residual=arrays[3], out=out)
        assert_same_bits(out, plain, name)


def test_what_numpy_can_read():
    assert pyattn.functional.linear([[1, 2]], [[3, 4]]).dtype == np.float64
    assert pyattn.functional.linear(np.ones((1, 2), np.float32), np.ones((3, 2))).dtype == np.float64
    assert pyattn.functional.linear(np.ones((1, 2), bool), [[1, 1]], [True]).tolist() == [[3.0]]


def test_nan_and_infinity_stay_in_their_row(dtype, level):
    x, weight, bias, _ = draw(np.random.default_rng(6), 20, 30, 10, dtype)
    plain = pyattn.functional.linear(x, weight, bias)
    x[3, 7], x[11, 0] = np.nan, np.inf
    y = pyattn.functional.linear(x, weight, bias)
    assert np.isnan(y[3]).all()
    assert np.isinf(y[11]).all()
    assert_same_bits(np.delete(y, [3, 11], 0), np.delete(plain, [3, 11], 0))
    assert np.isnan(pyattn.functional.linear(x, weight, activation="relu")[3]).all()


X, W, B = np.ones((2, 3)), np.ones((4, 3)), np.ones(4)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"x": 1.0}, ValueError, r"x has 0 axes, expected \(..., inner\)"),
        ({"weight": B}, ValueError, r"weight has shape \(4,\), expected 2 axes: \(features, inner\)"),
        ({"weight": W.T}, ValueError, r"weight has shape \(3, 4\), expected \(features, 3\): x has shape \(2, 3\)"),
        ({"bias": X[0]}, ValueError, r"bias has shape \(3,\), expected \(4,\): weight has shape \(4, 3\)"),
        ({"bias": W}, ValueError, r"bias has shape \(4, 3\), expected \(4,\)"),
        ({"residual": B}, ValueError, r"residual has shape \(4,\), expected \(2, 4\)"),
        ({"activation": "swish"}, ValueError, "activation is 'swish', expected None, 'relu', 'gelu'"),
        ({"activation": 1}, ValueError, "activation is 1, expected None, 'relu'"),
        ({"gate": np.ones((2, 3))}, ValueError, r"gate has shape \(2, 3\), expected \(2, 4\)"),
        ({"num_threads": 0}, ValueError, "num_threads is 0, expected 1 or more, or None"),
        ({"out": np.zeros((2, 3))}, ValueError, r"out has shape \(2, 3\), expected \(2, 4\)"),
        ({"out": np.zeros((2, 4), "f4")}, ValueError, "out has dtype float32, expected float64"),
        ({"out": [[1.0]]}, TypeError, "out is of type list, expected a numpy.ndarray"),
        ({"x": X * 1j}, TypeError, r"x has dtype complex128, .* pass x.real.astype\(numpy.float64\)"),
        ({"bias": np.ma.array(B)}, TypeError, "bias is a masked array"),
        ({"residual": "text"}, TypeError, "residual is a string"),
        ({"bogus": 1}, TypeError, "unexpected keyword argument 'bogus'"),
    ],
    ids=str,
)
def test_mistakes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        pyattn.functional.linear(**{"x": X, "weight": W, **arguments})


def test_a_result_that_no_memory_holds():
    endless = np.broadcast_to(np.float32(1), (2**59, 3))
    with pytest.raises(ValueError, match=r"the result is too large for memory: x \(576460752303423488, 3\)"):
        pyattn.functional.linear(endless, W.astype("f4"))
    with pytest.raises(MemoryError):
        pyattn.functional.linear(endless[: 2**57], W[:1].astype("f4"))


@for_each("rows", [1, 2, 3, 8])
def test_rows_of_a_weight_that_share_cache_sets(rows, dtype, level):
    """Wherever in a cache line such rows begin, and wherever they end."""
    rng, size = np.random.default_rng(rows), np.dtype(dtype).itemsize
    stride = 4096 // size
    for inner in (256, 257, 300, 512 - 1, 512):
        x, weight = rng.standard_normal((rows, inner)).astype(dtype), rng.standard_normal((70, inner)).astype(dtype)
        expected = pyattn.functional.linear(np.repeat(x, 30, 0), weight)[::30]
        memory = np.empty(71 * stride, dtype)
        begin = -memory.ctypes.data // size % (64 // size)
        for offset in range(64 // size):
            apart = memory[begin + offset :][: 70 * stride].reshape(70, stride)[:, :inner]
            apart[...] = weight
            assert_same_bits(pyattn.functional.linear(x, apart), expected, f"{inner} features, {offset} into a line")


@pytest.mark.threads
def test_another_thread_may_assign_to_a_shape():
    """The core reads shapes only while no other Python code runs."""
    script = """
import sys, threading, time
import numpy as np, pyattn
x, weight, stop = np.ones((4096, 64), "f4"), np.ones((64, 64), "f4"), []
def reshape():
    spare = []
    while not stop:
        x.shape = (64, 64, 64)
        spare = [np.empty((0, 0, 0)) for _ in range(50)]
        x.shape = (4096, 64)
sys.setswitchinterval(1e-6)
thread = threading.Thread(target=reshape)
thread.start()
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    assert (pyattn.functional.linear(x, weight, num_threads=1) == 64).all()
stop.append(1)
thread.join()
"""
    run_python(script.replace("SECONDS", "2" if EVERYTHING else "1"))

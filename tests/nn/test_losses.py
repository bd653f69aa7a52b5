"""Losses and their gradients against PyTorch's autograd in float64, with all options."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.learning import MEMORY, stored_in

import pyattn
from pyattn import _core
from pyattn.nn import losses

OPTIONS = list(
    itertools.product(
        ["mean", "sum", "none"],  # reduction
        [0.0, 0.1, 1.0],  # label_smoothing
        [False, True],  # weight
        ["ids", "ignored", "probabilities"],  # target
    )
)


def make_case(shape, kind, weighted, dtype, seed=0, size=3.0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * size).astype(dtype)
    if kind == "probabilities":
        target = rng.random(shape)
        target = (target / target.sum(axis=-1, keepdims=True)).astype(dtype)
    else:
        target = rng.integers(0, shape[-1], shape[:-1])
    ignore_index = -100
    if kind == "ignored":
        ignore_index = int(target.flat[0])
    weight = rng.random(shape[-1]).astype(dtype) if weighted else None
    return x, target, weight, ignore_index


def torchs(torch, x, target, weight, ignore_index, reduction, smoothing):
    """Loss and gradient in float64, with classes as torch has them."""
    leaf = torch.tensor(np.asarray(x, np.float64), requires_grad=True)
    given = torch.tensor(np.asarray(target, np.float64) if target.dtype.kind == "f" else target)
    moved = leaf.movedim(-1, 1) if x.ndim > 1 else leaf
    if target.dtype.kind == "f" and x.ndim > 1:
        given = given.movedim(-1, 1)
    loss = torch.nn.functional.cross_entropy(
        moved,
        given,
        weight=None if weight is None else torch.tensor(np.asarray(weight, np.float64)),
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    loss.sum().backward()
    return loss.detach().numpy(), leaf.grad.numpy()


def exact(case, reduction, smoothing):
    """Loss, gradient and what rounding may cost both, by the formula in long double.

    As for log_softmax, a term of the loss has the error 8u (1 + |it| + A), A = max |x|; softmax has 8u (1 + 2A). The
    target's share of the gradient is rounded 7 times.
    """
    x, target, weight, ignore_index = case
    classes, u, tiny = x.shape[-1], float(np.finfo(x.dtype).eps) / 2, float(np.finfo(x.dtype).tiny)
    wide = x.astype(np.longdouble)
    factor = np.ones(classes) if weight is None else weight.astype(np.longdouble)
    if target.dtype.kind == "f":
        share, counted, count = target.astype(np.longdouble), np.ones(x.shape[:-1]), math.prod(x.shape[:-1])
    else:
        share, counted = np.eye(classes)[target], (target != ignore_index).astype(float)
        count = (factor[target] * counted).sum()
    share = (share * (1 - np.longdouble(smoothing)) + np.longdouble(smoothing) / classes) * factor
    share = share * counted[..., np.newaxis]
    top = np.abs(wide).max(axis=-1, keepdims=True)
    log_p = wide - wide.max(axis=-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(axis=-1, keepdims=True))
    p, total, scale = np.exp(log_p), share.sum(axis=-1, keepdims=True), 1 / count if reduction == "mean" else 1
    loss, grad = -(share * log_p).sum(axis=-1), (total * p - share) * scale
    loss_bound = 8 * u * (share * (1 + np.abs(log_p) + top)).sum(axis=-1) + tiny
    grad_bound = 8 * u * (total * p * (1 + 2 * top) + share) * scale + tiny
    if reduction != "none":
        loss, loss_bound = loss.sum() * scale, loss_bound.sum() * scale
    return (loss, grad), (loss_bound, grad_bound)


@pytest.mark.peers
@pytest.mark.parametrize("shape", [(3,), (1, 2), (5, 33), (40, 17), (2, 3, 300), (2, 4200)], ids=str)
def test_cross_entropy_and_its_gradient_are_torchs(torch, shape, dtype, level, summary):
    worst = (0.0, 0.0)
    for reduction, smoothing, weighted, kind in OPTIONS:
        if kind == "ignored" and math.prod(shape[:-1]) == 1:  # nothing is left
            continue
        case = x, target, weight, ignore_index = make_case(shape, kind, weighted, dtype)
        given = {"ignore_index": ignore_index} if kind == "ignored" else {}
        found = losses.cross_entropy(x, target, weight=weight, reduction=reduction, label_smoothing=smoothing, **given)
        wanted, bounds = exact(case, reduction, smoothing)
        for one, other in zip(torchs(torch, *case, reduction, smoothing), wanted, strict=True):
            np.testing.assert_allclose(one, other.astype(float), rtol=1e-12, atol=1e-12)
        assert found[1].dtype == dtype
        assert isinstance(found[0], float) == (reduction != "none")
        ratios = [float(np.max(np.abs(a - b) / c)) for a, b, c in zip(found, wanted, bounds, strict=True)]
        assert max(ratios) <= 1, (reduction, smoothing, weighted, kind)
        worst = tuple(map(max, worst, ratios))
    line = f"{dtype}, {level}, {shape}: loss {worst[0]:.2g}, gradient {worst[1]:.2g}"
    summary.setdefault("cross entropy: error / bound", []).append(line)


@pytest.mark.peers
def test_every_edge_is_torchs(torch, dtype):
    """Large logits, a class that is impossible, rows that are all ignored, and no rows."""
    big = np.finfo(dtype).max / 4
    cases = {
        "large": np.array([[big, 0, -big], [3e4, 3e4, -3e4]], dtype),
        "impossible": np.array([[0, -np.inf, 1], [2, 0, -np.inf]], dtype),
        "hit": np.array([[-np.inf, 0, 1], [0, -np.inf, 1]], dtype),
        "NaN": np.array([[0, np.nan, 1], [2, 0, 1]], dtype),
        "all impossible": np.full((2, 3), -np.inf, dtype),
        "infinite": np.array([[np.inf, 0, 1], [0, 1, 2]], dtype),
    }
    ids = np.array([0, 1])
    for name, x in cases.items():
        for reduction, smoothing in itertools.product(["mean", "sum", "none"], [0.0, 0.2]):
            loss, grad = losses.cross_entropy(x, ids, reduction=reduction, label_smoothing=smoothing)
            wanted = torchs(torch, x, ids, None, -100, reduction, smoothing)
            np.testing.assert_allclose(loss, wanted[0], rtol=1e-6, err_msg=name)
            if not (name in ("impossible", "hit") and smoothing):  # torch has NaN or not as its terms come
                np.testing.assert_allclose(grad, wanted[1], rtol=1e-6, atol=1e-7, err_msg=name)
    x = np.ones((2, 3), dtype)
    for target, reduction in itertools.product(([7, 7], []), ("mean", "sum", "none")):
        rows = x[: len(target)]
        loss, grad = losses.cross_entropy(rows, target, ignore_index=7, reduction=reduction)
        wanted = torchs(torch, rows, np.array(target, int), None, 7, reduction, 0.0)
        np.testing.assert_array_equal(loss, wanted[0])
        np.testing.assert_array_equal(grad, wanted[1])


def test_an_ignored_row_is_never_read(dtype, level):
    x = np.array([[np.nan, np.inf, 1], [1, 2, 3]], dtype)
    loss, grad = losses.cross_entropy(x, [-100, 2])
    alone = losses.cross_entropy(x[1:], [2])
    assert loss == alone[0]
    assert (grad[0] == 0).all()
    assert_same_bits(grad[1], alone[1][0])


@for_each("half", [np.float16, ml_dtypes.bfloat16])
@for_each(("reduction", "smoothing", "weighted", "kind"), OPTIONS)
def test_halves_are_float32(half, reduction, smoothing, weighted, kind):
    x, target, weight, _ = make_case((6, 21), kind, weighted, np.float32)
    halves = [None if a is None else a.astype(half) if a.dtype.kind == "f" else a for a in (x, target, weight)]
    wide = [None if a is None else a.astype(np.float32) if a.dtype == half else a for a in halves]
    found, expected = (
        losses.cross_entropy(a, t, weight=w, reduction=reduction, label_smoothing=smoothing)
        for a, t, w in (halves, wide)
    )
    np.testing.assert_array_equal(found[0], expected[0])
    assert_same_bits(found[1], expected[1])
    assert found[1].dtype == np.float32


@pytest.mark.threads
@pytest.mark.parametrize("kind", ["ids", "probabilities"])
def test_bits_do_not_depend_on_threads(kind, dtype, level):
    x, target, weight, _ = make_case((4000, 50), kind, True, dtype)
    before, found = pyattn.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            pyattn.set_num_threads(threads)
            found.append(losses.cross_entropy(x, target, weight=weight, label_smoothing=0.1))
            found.append((losses.mse_loss(x, x[::-1])[0], found[-1][1]))
    finally:
        pyattn.set_num_threads(before)
    for n, (loss, grad) in enumerate(found):
        assert loss == found[n % 2][0]
        assert_same_bits(grad, found[0][1])


def test_levels_with_fused_multiply_adds_have_the_same_bits(levels, dtype):
    x, target, weight, _ = make_case((30, 777), "ids", True, dtype)
    found = {}
    for level in levels:
        _core._set_isa(level)
        found[level] = losses.cross_entropy(x, target, weight=weight, label_smoothing=0.1, reduction="none")
    fused = [result for level, result in found.items() if level != "scalar"]
    for result in fused:
        assert_same_bits(result, fused[0])


@for_each("kind", MEMORY)
def test_memory_does_not_matter(kind, dtype):
    x, ids, weight, _ = make_case((4, 3, 5), "ids", True, dtype)
    shares = make_case((4, 3, 5), "probabilities", False, dtype)[1]
    for target in (ids, shares):
        stored = stored_in(target, kind)
        found = losses.cross_entropy(stored_in(x, kind), stored, weight=stored_in(np.stack([weight]), kind)[0])
        expected = losses.cross_entropy(x, target, weight=weight)
        assert found[0] == expected[0]
        assert_same_bits(found[1], expected[1])
    loss, grad = losses.mse_loss(stored_in(x, kind), stored_in(shares, kind))
    expected = losses.mse_loss(x, shares)
    assert loss == pytest.approx(expected[0], rel=1e-14)
    np.testing.assert_array_equal(grad, expected[1])


def test_rows_of_any_size_do_not_matter_to_each_other(dtype, level):
    for classes in (1, 2, 7, 8, 15, 16, 17, 255, 256, 257, 4097):
        x, target, _, _ = make_case((3, classes), "probabilities", False, dtype)
        together = losses.cross_entropy(x, target, reduction="none", label_smoothing=0.1)
        for row in range(3):
            alone = losses.cross_entropy(x[row], target[row], reduction="none", label_smoothing=0.1)
            assert alone[0].shape == ()
            assert_same_bits(alone[1], together[1][row])
            assert alone[0] == together[0][row]


def test_many_axes_and_none():
    rng = np.random.default_rng(0)
    x, ids = rng.standard_normal((1, 2, 1, 2, 1, 2, 1, 2, 3, 4)), rng.integers(0, 4, (1, 2, 1, 2, 1, 2, 1, 2, 3))
    flat = losses.cross_entropy(x.reshape(-1, 4), ids.ravel(), reduction="none")
    loss, grad = losses.cross_entropy(x, ids, reduction="none")
    assert_same_bits((loss, grad), (flat[0].reshape(ids.shape), flat[1].reshape(x.shape)))
    assert losses.cross_entropy(x, np.eye(4)[ids])[0] == pytest.approx(losses.cross_entropy(x, ids)[0], rel=1e-14)
    loss, grad = losses.cross_entropy([0.0, 0.0], 1)
    assert (loss, grad.tolist()) == (pytest.approx(math.log(2)), [0.5, -0.5])
    for shape in ((0, 3), (2, 0, 3)):
        loss, grad = losses.cross_entropy(np.ones(shape), np.ones(shape[:-1], int), reduction="sum")
        assert (loss, grad.shape) == (0, shape)


def test_the_gradient_is_that_of_differences():
    x, ids, weight, _ = make_case((3, 4), "ids", True, np.float64)
    _, grad = losses.cross_entropy(x, ids, weight=weight, label_smoothing=0.3)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-6
        high, low = (losses.cross_entropy(x + d, ids, weight=weight, label_smoothing=0.3)[0] for d in (step, -step))
        assert (high - low) / 2e-6 == pytest.approx(grad[index], abs=1e-8)


@pytest.mark.peers
@for_each("shape", [(), (1,), (5, 33), (2, 3, 300), (0,), (3, 0)])
@for_each("reduction", ["mean", "sum", "none"])
@for_each("kind", ["float16", "bfloat16", "float32", "float64"])
def test_mse_loss_and_its_gradient_are_torchs(torch, shape, reduction, kind):
    rng = np.random.default_rng(0)
    stored = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    x, target = (np.asarray(rng.standard_normal(shape), stored) for _ in range(2))
    loss, grad = losses.mse_loss(x, target, reduction=reduction)
    leaf = torch.tensor(x.astype(np.float64), requires_grad=True)
    wanted = torch.nn.functional.mse_loss(leaf, torch.tensor(target.astype(np.float64)), reduction=reduction)
    wanted.sum().backward()
    u = float(np.finfo(np.float64 if kind == "float64" else np.float32).eps) / 2
    np.testing.assert_allclose(loss, wanted.detach().numpy(), rtol=4 * u)
    np.testing.assert_allclose(grad, leaf.grad.numpy(), rtol=4 * u)
    assert grad.dtype == (np.float64 if kind == "float64" else np.float32)
    assert grad.shape == shape
    assert isinstance(loss, float) == (reduction != "none")


X, IDS = np.ones((2, 3)), np.zeros(2, int)
MISTAKES = {
    "id": (lambda: losses.cross_entropy(X, [0, 3]), ValueError, "target holds 3 in row 1, expected 0 <= id < 3"),
    "negative id": (lambda: losses.cross_entropy(X, [0, -1]), ValueError, "target holds -1 in row 1"),
    "torch's axes": (
        lambda: losses.cross_entropy(np.ones((2, 3, 5)), np.zeros((2, 5), int)),
        ValueError,
        "classes are input's last axis; pass numpy.moveaxis(input, 1, -1)",
    ),
    "shape": (
        lambda: losses.cross_entropy(X, [0, 1, 2]),
        ValueError,
        "target has shape (3,) and dtype int64, input (2, 3), expected (2,) for ids of classes, or (2, 3)",
    ),
    "float ids": (
        lambda: losses.cross_entropy(X, np.zeros(2)),
        ValueError,
        "for ids of classes pass target.astype(numpy.int64)",
    ),
    "integer probabilities": (
        lambda: losses.cross_entropy(X, np.eye(3, dtype=int)[:2]),
        ValueError,
        "for probabilities pass target.astype(numpy.float32)",
    ),
    "bools": (lambda: losses.cross_entropy(X, np.eye(3, dtype=bool)[:2]), TypeError, "target has dtype bool, expected"),
    "text": (lambda: losses.cross_entropy(X, ["a", "b"]), TypeError, "target has dtype <U1, expected integers"),
    "number": (lambda: losses.cross_entropy(1.0, 0), ValueError, "input is a number, expected logits"),
    "complex": (lambda: losses.cross_entropy(X * 1j, IDS), TypeError, "input has dtype complex128"),
    "weight": (
        lambda: losses.cross_entropy(X, IDS, weight=[1, 2]),
        ValueError,
        "weight has shape (2,), expected (3,): one factor for each class",
    ),
    "smoothing": (lambda: losses.cross_entropy(X, IDS, label_smoothing=2), ValueError, "label_smoothing is 2"),
    "reduction": (
        lambda: losses.cross_entropy(X, IDS, reduction="avg"),
        ValueError,
        "reduction is 'avg'; it must be 'mean', 'sum' or 'none'",
    ),
    "ignore_index": (lambda: losses.cross_entropy(X, IDS, ignore_index=1.0), TypeError, "ignore_index is of type"),
    "large ignore_index": (lambda: losses.cross_entropy(X, IDS, ignore_index=2**63), ValueError, "range of int64"),
    "ignored probabilities": (
        lambda: losses.cross_entropy(X, X, ignore_index=1),
        ValueError,
        "ignore_index is for class ids, and target holds probabilities",
    ),
    "keyword": (lambda: losses.cross_entropy(X, labels=IDS), TypeError, "unexpected keyword argument 'labels'"),
    "mse shape": (lambda: losses.mse_loss(X, X[0]), ValueError, "target has shape (3,) and input (2, 3)"),
    "mse reduction": (lambda: losses.mse_loss(X, X, reduction=None), ValueError, "reduction is None"),
    "core": (
        lambda: _core.cross_entropy(X, IDS, X, None, -100, 0, 0.0),
        ValueError,
        "either ids or target must be given",
    ),
    "core, number": (lambda: _core.cross_entropy(1.0, None, None, None, 0, 0, 0.0), ValueError, "input has no axes"),
    "core, squares": (lambda: _core.sum_squares(X[:, ::2]), TypeError, "x must be a contiguous array"),
}


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def test_probabilities_and_weights_take_inputs_dtype():
    x = X.astype(np.float32)
    loss, grad = losses.cross_entropy(x, [[0.5, 0.25, 0.25], [0, 0, 1]], weight=[1, 2, 3.0])
    assert grad.dtype == np.float32
    again = losses.cross_entropy(x, np.array([[0.5, 0.25, 0.25], [0, 0, 1]], "f"), weight=np.array([1, 2, 3], "f"))
    assert loss == again[0]
    assert losses.mse_loss(x, [[1, 2, 3]] * 2)[1].dtype == np.float32


def test_memory_is_that_of_the_gradient(dtype):
    x = np.ones((2000, 500), dtype)
    ids, shares = np.zeros(2000, int), x / 500
    for call in (
        lambda: losses.cross_entropy(x, ids),
        lambda: losses.cross_entropy(x, shares, label_smoothing=0.1),
        lambda: losses.mse_loss(x, shares),
    ):
        tracemalloc.start()
        call()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert x.nbytes <= peak < 1.1 * x.nbytes

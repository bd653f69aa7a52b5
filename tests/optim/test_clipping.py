"""clip_grad_norm_ against torch's and a float64 formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.learning import MEMORY, Learner, stored_in

import pyattn
from pyattn import _core, nn, optim

SHAPES = [(70, 33), (5,), (), (0, 2), (2, 3, 4)]


def gradients_of(dtype, size=1.0):
    rng = np.random.default_rng(0)
    return {f"g{n}": np.asarray(rng.standard_normal(shape) * size, dtype) for n, shape in enumerate(SHAPES)}


def holding(gradients):
    module = Learner()
    module.set_grads(**gradients)
    return module


@pytest.mark.peers
@for_each("norm_type", [1, 2, 2.0, 3.5, 0.5, math.inf])
@for_each("max_norm", [0, 0.1, 1e6])
def test_norm_and_gradients_are_torchs(torch, norm_type, max_norm, dtype, level):
    ours = gradients_of(dtype)
    theirs = [torch.zeros(array.shape, dtype=getattr(torch, dtype)) for array in ours.values()]
    for tensor, array in zip(theirs, ours.values(), strict=True):
        tensor.grad = torch.tensor(array)
    filled = [tensor for tensor in theirs if tensor.numel() or norm_type != math.inf]  # torch refuses to take those
    wanted = torch.nn.utils.clip_grad_norm_(filled, max_norm, norm_type)
    found = optim.clip_grad_norm_(holding(ours), max_norm, norm_type)
    u = float(np.finfo(dtype).eps)
    assert found == pytest.approx(float(wanted), rel=16 * u)
    for array, tensor in zip(ours.values(), theirs, strict=True):
        np.testing.assert_allclose(array, tensor.grad.numpy(), rtol=20 * u)


def test_the_norm_is_that_of_float64(dtype, level):
    gradients = gradients_of(dtype, 1e20 if dtype == "float32" else 1.0)  # squares overflow float32
    flat = np.concatenate([array.ravel() for array in gradients.values()]).astype(np.longdouble)
    exact = float(np.sqrt((flat**2).sum()))
    assert optim.clip_grad_norm_(holding(gradients), math.inf) == pytest.approx(exact, rel=1e-14)


@for_each("kind", MEMORY)
def test_memory_does_not_matter(kind, dtype):
    plain = {"g": np.random.default_rng(0).standard_normal((4, 3, 5)).astype(dtype)}
    stored = {"g": stored_in(plain["g"], kind)}
    same = stored["g"]
    norms = [optim.clip_grad_norm_(holding(gradients), 0.5) for gradients in (plain, stored)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-14)  # added in memory's order
    assert stored["g"] is same
    np.testing.assert_allclose(same, plain["g"], rtol=2 * np.finfo(dtype).eps)


@pytest.mark.threads
def test_bits_depend_on_neither_threads_nor_level(dtype, levels):
    x = np.random.default_rng(0).standard_normal(100_003).astype(dtype)
    expected, before = _core.sum_squares(x), pyattn.get_num_threads()
    try:
        for level in levels:
            _core._set_isa(level)
            for threads in (1, 3):
                pyattn.set_num_threads(threads)
                assert _core.sum_squares(x) == expected
    finally:
        pyattn.set_num_threads(before)


@pytest.mark.peers
def test_numbers_that_are_not_finite_do_as_in_torch(torch):
    for bad in (math.nan, math.inf):
        ours = {"a": np.array([1.0, bad]), "b": np.array([2.0])}
        theirs = [torch.zeros(array.shape, dtype=torch.float64) for array in ours.values()]
        for tensor, array in zip(theirs, ours.values(), strict=True):
            tensor.grad = torch.tensor(array)
        before = {key: array.copy() for key, array in ours.items()}
        with pytest.raises(RuntimeError, match=r"the norm of the gradients is (nan|inf), so they cannot be clipped"):
            optim.clip_grad_norm_(holding(ours), 1.0, error_if_nonfinite=True)
        assert_same_bits(tuple(ours.values()), tuple(before.values()))
        norm = torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        np.testing.assert_equal(optim.clip_grad_norm_(holding(ours), 1.0), float(norm))
        for array, tensor in zip(ours.values(), theirs, strict=True):
            np.testing.assert_array_equal(array, tensor.grad.numpy())


def test_without_gradients_the_norm_is_0():
    assert optim.clip_grad_norm_(holding({}), 1.0) == 0.0
    assert optim.clip_grad_norm_(holding({}), 1.0, math.inf) == 0.0


def test_nothing_is_written_if_a_gradient_is_read_only():
    gradients = {"a": np.ones(2), "b": np.ones(2)}
    gradients["b"].flags.writeable = False
    with pytest.raises(ValueError, match="the gradient of b is read-only"):
        optim.clip_grad_norm_(holding(gradients), 0.1)
    assert (gradients["a"] == 1).all()


@for_each(
    ("arguments", "error", "message"),
    [
        ((-1,), ValueError, "max_norm is -1, expected 0 or more"),
        ((math.nan,), ValueError, "max_norm is nan"),
        ((1, 0), ValueError, "norm_type is 0, expected a number above 0"),
        (("1",), TypeError, "max_norm is of type str"),
        ((1, 2, 1), TypeError, "error_if_nonfinite is of type int"),
    ],
)
def test_mistakes_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        optim.clip_grad_norm_(holding({"a": np.ones(2)}), *arguments)


@for_each(
    ("module", "kind"), [(nn.Linear(2, 2).parameters(), "generator"), ([np.ones(2)], "list"), (np.ones(2), "ndarray")]
)
def test_what_is_not_a_module_is_refused(module, kind):
    with pytest.raises(TypeError, match=f"module is of type {kind}, expected a pyattn.nn.Module: the module itself"):
        optim.clip_grad_norm_(module, 1.0)


@pytest.mark.peers
def test_a_module_of_torch_is_to_be_converted(torch):
    with pytest.raises(
        TypeError, match=r"type Linear, a module of torch; pyattn\.interop\.torch\.from_torch converts it"
    ):
        optim.clip_grad_norm_(torch.nn.Linear(1, 1), 1.0)

"""Schedules against the paper's formula and torch's LambdaLR."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.helpers import for_each
from support.learning import Learner

from pyattn import optim


def optimizer(lr=1e-3, **options):
    module = Learner(weight=np.ones((2, 2)), bias=np.ones(2))
    return optim.SGD(module, lr, groups=[{"params": ["bias"], "lr": 2 * lr}], **options)


def rates(schedule, steps):
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in schedule.optimizer.param_groups])
        assert schedule.get_last_lr() == found[-1]
        schedule.step()
    return np.array(found)


def test_the_papers_schedule_is_equation_3():
    d_model, warmup = 512, 40
    found = rates(optim.TransformerLR(optimizer(), d_model, warmup), 200)
    n = np.arange(1, 201)
    wanted = d_model**-0.5 * np.minimum(n**-0.5, n * warmup**-1.5)
    np.testing.assert_allclose(found, np.stack([wanted, wanted], axis=1), rtol=1e-14)
    assert found[:, 0].argmax() == warmup - 1
    half = rates(optim.TransformerLR(optimizer(), d_model, warmup, factor=0.5), 3)
    np.testing.assert_allclose(half, found[:3] / 2)


@pytest.mark.peers
@for_each(("warmup", "total", "cycles"), [(0, 9, 0.5), (4, 20, 0.5), (3, 3, 0.5), (5, 30, 1.5)])
def test_the_cosine_is_that_of_transformers(torch, warmup, total, cycles):
    """By its lambda, in torch's LambdaLR, and past the end."""

    def factor(step):
        if step < warmup:
            return step / max(1, warmup)
        progress = (step - warmup) / max(1, total - warmup)
        return max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))

    theirs = torch.optim.SGD([{"params": [torch.ones(1)], "lr": 2.0}, {"params": [torch.ones(1)]}], lr=1.0)
    schedule, wanted = torch.optim.lr_scheduler.LambdaLR(theirs, factor), []
    for _ in range(total + 5):
        wanted.append(schedule.get_last_lr())
        theirs.step()
        schedule.step()
    found = rates(optim.CosineWarmupLR(optimizer(1.0), warmup, total, cycles), total + 5)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)
    ours = rates(optim.LambdaLR(optimizer(1.0), factor), total + 5)
    np.testing.assert_allclose(ours, wanted, rtol=1e-14)


@pytest.mark.peers
def test_a_state_continues_also_that_of_torch(torch):
    theirs = torch.optim.SGD([{"params": [torch.ones(1)], "lr": 2.0}, {"params": [torch.ones(1)]}], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(theirs, lambda n: 0.9**n)
    for _ in range(3):
        theirs.step()
        schedule.step()
    ours = optim.LambdaLR(optimizer(7.0), lambda n: 0.9**n)
    ours.load_state_dict(schedule.state_dict())
    np.testing.assert_allclose(ours.get_last_lr(), schedule.get_last_lr(), rtol=1e-14)

    for make in (lambda o: optim.TransformerLR(o, 8, 3), lambda o: optim.CosineWarmupLR(o, 2, 9)):
        first = make(optimizer(0.5))
        rates(first, 4)
        second = make(optimizer(0.25))
        second.load_state_dict(first.state_dict())
        np.testing.assert_array_equal(rates(second, 5), rates(first, 5))


@pytest.mark.peers
def test_a_second_schedule_begins_where_the_first_did(torch):
    """As in torch; optimisers' states carry that learning rate in both directions."""
    theirs = torch.optim.SGD([{"params": [torch.ones(1)], "lr": 2.0}, {"params": [torch.ones(1)]}], lr=1.0)
    torch.optim.lr_scheduler.LambdaLR(theirs, lambda n: 0.0)
    ours = optimizer(1.0)
    optim.CosineWarmupLR(ours, 10, 100)
    loaded = optimizer(3.0)
    loaded.load_state_dict(theirs.state_dict())
    for one in (ours, loaded):
        assert [group["lr"] for group in one.param_groups] == [0, 0]
        np.testing.assert_array_equal(rates(optim.LambdaLR(one, lambda n: 0.5), 1), [[1.0, 0.5]])
    theirs.load_state_dict(ours.state_dict())
    again = torch.optim.lr_scheduler.LambdaLR(theirs, lambda n: 0.25, last_epoch=3)
    assert again.get_last_lr() == [0.5, 0.25]
    ours.load_state_dict(optimizer(0.125).state_dict())  # of no schedule
    np.testing.assert_array_equal(rates(optim.LambdaLR(ours, lambda n: 1.0), 1), [[0.25, 0.125]])


def test_each_group_may_have_its_own_function():
    found = rates(optim.LambdaLR(optimizer(1.0), [lambda n: n, lambda n: 0.5**n]), 3)
    np.testing.assert_allclose(found, [[0, 1], [2, 0.5], [4, 0.25]])


MISTAKES = {
    "optimizer": (lambda: optim.TransformerLR(one, 8), TypeError, "expected one of pyattn.optim"),
    "d_model": (lambda: optim.TransformerLR(optimizer(), 0), ValueError, "d_model is 0, expected 1 or more"),
    "warmup": (lambda: optim.TransformerLR(optimizer(), 8, 0.5), TypeError, "warmup_steps is of type float"),
    "factor": (lambda: optim.TransformerLR(optimizer(), 8, factor=-1), ValueError, "factor is -1"),
    "total": (lambda: optim.CosineWarmupLR(optimizer(), 5, 4), ValueError, "total_steps is 4, below warmup_steps, 5"),
    "cycles": (lambda: optim.CosineWarmupLR(optimizer(), 1, 4, math.nan), ValueError, "num_cycles is nan"),
    "function": (
        lambda: optim.LambdaLR(optimizer(), 0.5),
        TypeError,
        "lr_lambda is of type float, expected a function",
    ),
    "one of them": (
        lambda: optim.LambdaLR(optimizer(), [abs, 1]),
        TypeError,
        "lr_lambda[1] is of type int, expected a function",
    ),
    "functions": (lambda: optim.LambdaLR(optimizer(), [abs]), ValueError, "lr_lambda has 1 functions, expected 2"),
    "number": (lambda: optim.LambdaLR(optimizer(), str), TypeError, "the result of lr_lambda is of type str"),
    "state": (lambda: optim.LambdaLR(optimizer(), abs).load_state_dict({}), TypeError, "'base_lrs' and 'last_epoch'"),
    "groups": (
        lambda: optim.LambdaLR(optimizer(), abs).load_state_dict({"base_lrs": [1], "last_epoch": 0}),
        ValueError,
        "the state has 1 groups, expected 2",
    ),
    "base_lrs": (
        lambda: optim.LambdaLR(optimizer(), abs).load_state_dict({"base_lrs": 1.0, "last_epoch": 0}),
        TypeError,
        "base_lrs is of type float, expected a list of numbers",
    ),
    "base": (lambda: optim.LRScheduler(optimizer()), NotImplementedError, "LRScheduler does not define get_lr"),
}


def one():
    return None


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)

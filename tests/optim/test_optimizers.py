"""SGD, Adam and AdamW against torch's, step by step and from one library to the other."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each
from support.learning import MEMORY, Learner, stored_in

import pyattn
from pyattn import _core, nn, optim

STEPS = 50
SHAPES = {"weight": (7, 33), "bias": (19,), "scale": (), "cube": (2, 3, 5), "none": (0, 4)}


def combinations(**values):
    return [dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())]


SGD = [
    options
    for options in combinations(
        lr=[1e-3, 0.1], momentum=[0, 0.9], dampening=[0, 0.3], weight_decay=[0, 0.1], nesterov=[0, 1], maximize=[0, 1]
    )
    if not options["nesterov"] or (options["momentum"] and not options["dampening"])
]
ADAM = combinations(
    lr=[1e-3, 0.1],
    betas=[(0.9, 0.999), (0.4, 0.9), (0.0, 0.99)],
    eps=[1e-8, 1e-3],
    weight_decay=[0, 0.1],
    amsgrad=[0, 1],
    maximize=[0, 1],
)
FLAGS = ("nesterov", "amsgrad", "maximize")


def drawn(name):
    """Twelve of the combinations, and all values of each option among them."""
    every = SGD if name == "SGD" else ADAM
    chosen = random.Random(name).sample(every, 12)
    assert all(any(one[key] == value for one in chosen) for other in every for key, value in other.items())
    return [{key: bool(value) if key in FLAGS else value for key, value in one.items()} for one in chosen]


CASES = [(name, options) for name in ("SGD", "Adam", "AdamW") for options in drawn(name)]


def numbers(rng, dtype):
    return {name: np.asarray(rng.standard_normal(shape), dtype) for name, shape in SHAPES.items()}


def make(torch, name, options, dtype, rng, groups=None):
    """An optimiser of ours and one of torch on the same parameters."""
    start = numbers(rng, dtype)
    module = Learner(**{key: array.copy() for key, array in start.items()})
    tensors = {key: torch.tensor(array) for key, array in start.items()}
    ours = getattr(optim, name)(module, **options, groups=groups)
    theirs = getattr(torch.optim, name)(list(tensors.values()), foreach=False, **options)
    return module, ours, tensors, theirs


def set_gradients(torch, rng, module, tensors, without=()):
    dtype = next(iter(tensors.values())).numpy().dtype
    gradients = {key: array for key, array in numbers(rng, dtype).items() if key not in without}
    module.set_grads(**gradients)
    for key, tensor in tensors.items():
        tensor.grad = torch.tensor(gradients[key]) if key in gradients else None
    return gradients


def error_ratio(module, tensors, before, steps, largest):
    """The largest difference in units of what two runs may differ by.

    Each rounds the parameter once in a step, and a step itself has some 8 roundings.
    """
    worst = 0.0
    for key, array in module.named_parameters():
        if not array.size:
            continue
        theirs = tensors[key].numpy()
        size = np.maximum(np.abs(theirs), np.abs(before[key])) + largest[key]
        bound = 2 * steps * np.finfo(array.dtype).eps / 2 * (size + 8 * largest[key])
        worst = max(worst, float(np.max(np.abs(array - theirs) / bound)))
    return worst


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_fifty_steps_are_torchs(torch, name, dtype, summary):
    ratios = []
    for n, options in enumerate(drawn(name)):
        rng = np.random.default_rng(n)
        module, ours, tensors, theirs = make(torch, name, options, dtype, rng)
        start = {key: tensor.numpy().copy() for key, tensor in tensors.items()}
        largest = dict.fromkeys(SHAPES, 0.0)
        for step in range(STEPS):
            before = {key: tensor.numpy().copy() for key, tensor in tensors.items()}
            set_gradients(torch, rng, module, tensors, without=["bias"] if step % 3 == 1 else [])
            ours.step()
            theirs.step()
            for key, tensor in tensors.items():
                if tensor.numel():
                    largest[key] = max(largest[key], float(np.abs(tensor.numpy() - before[key]).max()))
        ratios.append(error_ratio(module, tensors, start, STEPS, largest))
        assert ratios[-1] <= 1, options
        moved = max(np.abs(array - start[key]).max() for key, array in module.named_parameters() if array.size)
        assert moved > 1e-3, "or nothing was compared"
    summary.setdefault("optimizers: error of 50 steps / bound", []).append(f"{name}, {dtype}: {max(ratios):.2g}")


@pytest.mark.peers
@for_each(("name", "options"), CASES)
def test_states_go_both_ways(torch, name, options):
    rng = np.random.default_rng(5)
    module, _, tensors, theirs = make(torch, name, options, "float64", rng)
    for _ in range(5):
        set_gradients(torch, rng, module, tensors, without=["cube"])
        theirs.step()
    for key, array in module.named_parameters():
        array[...] = tensors[key].numpy()
    fresh = getattr(optim, name)(module)  # with other options, which the state brings
    fresh.load_state_dict(theirs.state_dict())
    assert {key: fresh.param_groups[0][key] for key in options} == options
    advance(torch, rng, module, fresh, tensors, theirs)

    state = fresh.state_dict()
    entries = {n: {key: torch.tensor(x) for key, x in own.items()} for n, own in state["state"].items()}
    again = getattr(torch.optim, name)(list(tensors.values()), lr=7.0)
    again.load_state_dict({**state, "state": entries})
    advance(torch, rng, module, fresh, tensors, again)


def advance(torch, rng, module, ours, tensors, theirs):
    for _ in range(5):
        set_gradients(torch, rng, module, tensors)
        ours.step()
        theirs.step()
    for key, array in module.named_parameters():
        np.testing.assert_allclose(array, tensors[key].numpy(), rtol=1e-13, atol=1e-13)


@pytest.mark.peers
def test_the_state_has_torchs_form(torch):
    for name, options in CASES:
        rng = np.random.default_rng(0)
        module, ours, tensors, theirs = make(torch, name, options, "float32", rng)
        set_gradients(torch, rng, module, tensors, without=["bias"])
        ours.step()
        theirs.step()
        found, wanted = ours.state_dict(), theirs.state_dict()
        assert found["param_groups"][0]["params"] == wanted["param_groups"][0]["params"]
        assert found["param_groups"][0].items() <= wanted["param_groups"][0].items()
        filled = {n: {key for key, x in own.items() if x is not None} for n, own in wanted["state"].items()}
        assert {n: set(own) for n, own in found["state"].items()} == {n: keys for n, keys in filled.items() if keys}
        for n, own in found["state"].items():
            for key, array in own.items():
                np.testing.assert_allclose(array, wanted["state"][n][key].numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.peers
def test_groups_are_torchs(torch):
    rng = np.random.default_rng(1)
    start = numbers(rng, "float64")
    module = Learner(**{key: array.copy() for key, array in start.items()})
    tensors = {key: torch.tensor(array) for key, array in start.items()}
    small = [key for key, array in module.named_parameters() if array.ndim < 2]
    groups = [{"params": small, "weight_decay": 0}, {"params": iter(["cube"]), "lr": 0.5, "betas": [0.5, 0.5]}]
    ours = optim.AdamW(module, weight_decay=0.2, groups=groups)
    rest = [key for key in SHAPES if key not in (*small, "cube")]
    named = [small, ["cube"], rest]
    assert [group["params"] for group in ours.param_groups] == named
    theirs = torch.optim.AdamW(
        [
            {
                **({} if n == 2 else groups[n]),
                "params": [tensors[key] for key in keys],
                **({"betas": (0.5, 0.5)} if n == 1 else {}),
            }
            for n, keys in enumerate(named)
        ],
        weight_decay=0.2,
    )
    advance(torch, rng, module, ours, tensors, theirs)
    other = optim.AdamW(module, groups=[{"params": small}, {"params": ["cube"]}])
    other.load_state_dict(theirs.state_dict())
    assert [group["lr"] for group in other.param_groups] == [1e-3, 0.5, 1e-3]
    advance(torch, rng, module, other, tensors, theirs)


def run(name, options, parameter, gradients):
    module = Learner(weight=parameter)
    optimizer = getattr(optim, name)(module, **options)
    for gradient in gradients:
        module.set_grads(weight=gradient)
        optimizer.step()
    return (module.weight, *(x for x in optimizer.state.get("weight", {}).values() if isinstance(x, np.ndarray)))


EVERYTHING = [
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True, "betas": (0.4, 0.9)}),
    ("AdamW", {}),
]


@pytest.mark.threads
@for_each(("name", "options"), EVERYTHING)
def test_bits_depend_on_neither_threads_nor_level(name, options, dtype, levels):
    rng = np.random.default_rng(2)
    start, gradients = rng.standard_normal(50_003).astype(dtype), rng.standard_normal((3, 50_003)).astype(dtype)
    expected = run(name, options, start.copy(), gradients)
    before = pyattn.get_num_threads()
    try:
        for level in levels:
            _core._set_isa(level)
            for threads in (1, 2, 5):
                pyattn.set_num_threads(threads)
                assert_same_bits(run(name, options, start.copy(), gradients), expected, (level, threads))
    finally:
        pyattn.set_num_threads(before)


@for_each(("name", "options"), EVERYTHING)
def test_a_parameter_of_any_size_is_a_part_of_a_longer_one(name, options, dtype, level):
    rng = np.random.default_rng(3)
    start, gradients = rng.standard_normal(70).astype(dtype), rng.standard_normal((2, 70)).astype(dtype)
    expected = run(name, options, start.copy(), gradients)
    for n in (0, 1, 3, 4, 8, 15, 16, 17, 33):
        found = run(name, options, start[:n].copy(), gradients[:, :n])
        assert_same_bits(found, tuple(x[:n] for x in expected), n)


@for_each("kind", MEMORY)
@for_each("other", MEMORY)
@for_each(("name", "options"), EVERYTHING)
def test_memory_does_not_matter(kind, other, name, options, dtype):
    rng = np.random.default_rng(4)
    start, gradients = rng.standard_normal((4, 3, 5)).astype(dtype), rng.standard_normal((3, 4, 3, 5)).astype(dtype)
    expected = run(name, options, start.copy(), gradients)
    parameter = stored_in(start, kind)
    weight, *moments = run(name, options, parameter, [stored_in(gradient, other) for gradient in gradients])
    assert weight is parameter, "it is updated in place"
    assert_same_bits((weight, *moments), expected, (kind, other))


@for_each("half", [np.float16, ml_dtypes.bfloat16])
@for_each(("name", "options"), EVERYTHING)
def test_halves_are_rounded_once_in_a_step(half, name, options, level):
    rng = np.random.default_rng(6)
    start, gradients = rng.standard_normal(9001).astype(half), rng.standard_normal((4, 9001)).astype(np.float32)
    module, other = Learner(weight=start.copy()), Learner(weight=start.astype(np.float32))
    optimizer, wide = (getattr(optim, name)(one, **options) for one in (module, other))
    for gradient in gradients:
        for one in (module, other):
            one.set_grads(weight=gradient)
        optimizer.step()
        wide.step()
        other.weight[...] = other.weight.astype(half)
        assert_same_bits(module.weight.view(np.uint16), other.weight.astype(half).view(np.uint16))
    for key, array in wide.state["weight"].items():
        if key != "step":
            assert_same_bits(optimizer.state["weight"][key], array, key)


def test_a_gradient_that_is_not_finite_stays_with_its_element(dtype, level):
    for name, options in EVERYTHING:
        gradient = np.ones(40, dtype)
        gradient[17], gradient[39] = np.nan, np.inf
        weight, *_ = run(name, options, np.ones(40, dtype), [gradient])
        assert list(np.flatnonzero(~np.isfinite(weight))) == [17, 39]


def test_a_parameter_without_a_gradient_stays_and_has_no_state():
    module = Learner(a=np.ones(3), b=np.ones(3))
    optimizer = optim.AdamW(module, weight_decay=0.5)
    module.set_grads(a=np.ones(3))
    optimizer.step()
    assert (module.b == 1).all()
    assert (module.a != 1).all()
    assert optimizer.state.keys() == {"a"}
    assert optimizer.state["a"]["step"] == 1
    optimizer.zero_grad()
    assert module.grads == {}
    optimizer.step()
    assert optimizer.state["a"]["step"] == 1


def test_a_tied_parameter_is_updated_once():
    weight = np.ones((2, 2))
    module = Learner(first=weight, second=weight)
    optimizer = optim.SGD(module, lr=1.0)
    assert optimizer.param_groups[0]["params"] == ["first"]
    module.set_grads(first=np.ones((2, 2)))
    optimizer.step()
    assert (weight == 0).all()


@for_each(("name", "options"), EVERYTHING)
def test_nothing_is_written_before_everything_is_checked(name, options):
    ones = {key: np.ones(3) for key in ("a", "b")}
    frozen = np.ones(3)
    frozen.flags.writeable = False
    wrong = [
        ({"b": frozen}, {}, ValueError, "b is read-only; assign a copy of it first"),
        ({}, {"b": np.ones(4)}, ValueError, r"the gradient of b has shape \(4,\), expected \(3,\)"),
        ({}, {"b": np.ones(3, np.float32)}, TypeError, "the gradient of b has dtype float32, expected float64"),
    ]
    for parameters, gradients, error, message in wrong:
        module = Learner(**{key: x.copy() for key, x in ones.items()} | parameters)
        optimizer = getattr(optim, name)(module, **options)
        module.set_grads(**{**ones, **gradients})
        with pytest.raises(error, match=message):
            optimizer.step()
        assert (module.a == 1).all()
        assert optimizer.state == {}


def test_options_may_change_between_steps():
    module = Learner(a=np.zeros(2))
    optimizer = optim.SGD(module, lr=1.0)
    module.set_grads(a=np.ones(2))
    for lr in (1.0, 0.25):
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
    assert (module.a == -1.25).all()
    optimizer.param_groups[0]["lr"] = -1
    with pytest.raises(ValueError, match="lr is -1, expected a finite number of 0 or more"):
        optimizer.step()


def test_a_module_may_change_its_dtype_and_order_between_steps():
    rng = np.random.default_rng(8)
    start, gradients = rng.standard_normal((5, 6)), rng.standard_normal((3, 5, 6))
    module, plain = Learner(weight=start.astype(np.float32)), Learner(weight=start.astype(np.float32))
    ours, other = optim.AdamW(module), optim.AdamW(plain)
    for n, gradient in enumerate(gradients):
        if n == 1:
            module.weight = np.asfortranarray(module.weight)
        if n == 2:
            for one in (module, plain):
                one.to(np.float64)
        for one in (module, plain):
            one.set_grads(weight=gradient.astype(one.weight.dtype))
        ours.step()
        other.step()
        assert_same_bits(module.weight, plain.weight)
    assert ours.state["weight"]["exp_avg"].dtype == np.float64
    module.weight = np.ones((2, 2))
    module.set_grads(weight=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"weight has shape \(2, 2\), and exp_avg of an earlier step \(5, 6\)"):
        ours.step()


def test_copies_continue_alike():
    module = nn.Linear(3, 2, rng=0)
    learner = Learner(weight=module.weight, bias=module.bias)
    optimizer = optim.AdamW(learner)
    learner.set_grads(weight=np.ones((2, 3), np.float32), bias=np.ones(2, np.float32))
    optimizer.step()
    others = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    optimizer.step()
    for other in others:
        other.step()
        for key, array in other._module.named_parameters():
            assert_same_bits(array, getattr(learner, key))


@for_each(("name", "options"), EVERYTHING)
@for_each("order", ["C", "F"])
def test_a_step_takes_no_memory(name, options, order, dtype):
    module = Learner(weight=np.ones((300, 500), dtype, order=order))
    optimizer = getattr(optim, name)(module, **options)
    module.set_grads(weight=np.ones((300, 500), dtype, order=order))
    optimizer.step()  # makes its state
    tracemalloc.start()
    optimizer.step()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.1 * module.weight.nbytes


class Quadratic:
    """A minimum at 3."""

    def __init__(self):
        self.module = Learner(x=np.zeros(4))

    def solve(self, optimizer, steps):
        for _ in range(steps):
            self.module.set_grads(x=self.module.x - 3)
            optimizer.step()
        return np.abs(self.module.x - 3).max()


def test_each_of_them_finds_a_minimum():
    for make_optimizer in (
        lambda module: optim.SGD(module, 0.1, momentum=0.9, nesterov=True),
        lambda module: optim.Adam(module, 0.1),
        lambda module: optim.AdamW(module, 0.1, weight_decay=0),
    ):
        problem = Quadratic()
        assert problem.solve(make_optimizer(problem.module), 400) < 1e-2


def one():
    return Learner(weight=np.ones((2, 2)), bias=np.ones(2))


MISTAKES = {
    "no module": (lambda: optim.SGD([np.ones(3)]), TypeError, "module is of type list, expected a pyattn.nn.Module"),
    "parameters": (
        lambda: optim.AdamW(one().parameters()),
        TypeError,
        "module is of type generator, expected a pyattn.nn.Module: the module itself",
    ),
    "no parameters": (lambda: optim.SGD(nn.Dropout()), ValueError, "the module has no parameters"),
    "lr": (lambda: optim.Adam(one(), lr=-1), ValueError, "lr is -1, expected a finite number of 0 or more"),
    "lr's type": (lambda: optim.Adam(one(), lr="1"), TypeError, "lr is of type str"),
    "beta": (lambda: optim.Adam(one(), betas=(0.9, 1)), ValueError, "betas[1] is 1.0, expected a number below 1"),
    "betas": (lambda: optim.AdamW(one(), betas=0.9), TypeError, "betas is 0.9, expected a pair"),
    "eps": (lambda: optim.AdamW(one(), eps=-1), ValueError, "eps is -1"),
    "amsgrad": (lambda: optim.Adam(one(), amsgrad=1), TypeError, "amsgrad is of type int"),
    "nesterov": (lambda: optim.SGD(one(), nesterov=True), ValueError, "nesterov=True needs a momentum above 0"),
    "keyword": (lambda: optim.SGD(one(), learning_rate=1), TypeError, "unexpected keyword argument 'learning_rate'"),
    "groups": (lambda: optim.SGD(one(), groups=3), TypeError, "groups is of type int, expected a list of dicts"),
    "one group": (
        lambda: optim.SGD(one(), groups={"params": ["bias"]}),
        TypeError,
        "groups is of type dict, expected a list of dicts, each with 'params'",
    ),
    "group": (lambda: optim.SGD(one(), groups=[["bias"]]), TypeError, "groups[0] is ['bias'], expected a dict"),
    "one name": (
        lambda: optim.SGD(one(), groups=[{"params": "bias"}]),
        TypeError,
        "groups[0]['params'] is of type str, expected a list of parameters' names",
    ),
    "array": (
        lambda: optim.SGD(one(), groups=[{"params": [np.ones(2)]}]),
        TypeError,
        "groups[0]['params'] has a ndarray, expected names, such as 'weight'",
    ),
    "name": (
        lambda: optim.SGD(one(), groups=[{"params": ["bais"]}]),
        ValueError,
        "has 'bais', which the module does not have; did you mean 'bias'?",
    ),
    "twice": (
        lambda: optim.SGD(one(), groups=[{"params": ["bias"]}, {"params": ["bias"]}]),
        ValueError,
        "groups[1]['params'] has 'bias', which is already in a group",
    ),
    "option": (
        lambda: optim.SGD(one(), groups=[{"params": ["bias"], "betas": 1}]),
        TypeError,
        "groups[0] has 'betas'; options are lr, momentum",
    ),
    "state": (lambda: optim.SGD(one()).load_state_dict([]), TypeError, "expected a dict with 'state' and"),
    "groups of a state": (
        lambda: optim.SGD(one()).load_state_dict(optim.SGD(Learner(a=np.ones(1))).state_dict()),
        ValueError,
        "the state has groups of [1] parameters, expected [2]",
    ),
    "state of another": (
        lambda: optim.Adam(one()).load_state_dict(optim.SGD(one()).state_dict()),
        ValueError,
        "the state is of another optimizer than Adam: it has no betas",
    ),
}


GROUP = {"params": [0, 1], "lr": 0.1}
FORMS = {
    "groups": ({"state": {}, "param_groups": 3}, "state_dict['param_groups'] is of type int, expected a list of dicts"),
    "group": ({"state": {}, "param_groups": [3]}, "state_dict['param_groups'][0] is 3, expected a dict with 'params'"),
    "no params": ({"state": {}, "param_groups": [GROUP, {"lr": 1}]}, "['param_groups'][1] is {'lr': 1}, expected"),
    "params": (
        {"state": {}, "param_groups": [{"params": 2}]},
        "[0] is {'params': 2}, expected a dict with 'params', a",
    ),
    "index": ({"state": {}, "param_groups": [{"params": [0, [1]]}]}, "[0]['params'] has a list, expected indices"),
    "state": ({"state": 3, "param_groups": [GROUP]}, "state_dict['state'] is of type int, expected a dict of dicts"),
    "one state": ({"state": {0: 3}, "param_groups": [GROUP]}, "state_dict['state'][0] is of type int, expected a dict"),
}


@pytest.mark.parametrize(("state_dict", "message"), FORMS.values(), ids=FORMS)
def test_a_state_of_another_form_is_named(state_dict, message):
    optimizer = optim.SGD(one(), lr=0.5)
    with pytest.raises(TypeError) as raised:
        optimizer.load_state_dict(state_dict)
    assert message in str(raised.value)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.peers
def test_a_module_of_torch_is_to_be_converted(torch):
    with pytest.raises(
        TypeError, match=r"type Linear, a module of torch; pyattn\.interop\.torch\.from_torch converts it"
    ):
        optim.SGD(torch.nn.Linear(1, 1))


@pytest.mark.parametrize(("call", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


def test_a_state_that_does_not_fit_changes_nothing():
    module = one()
    optimizer = optim.AdamW(module)
    module.set_grads(weight=np.ones((2, 2)), bias=np.ones(2))
    optimizer.step()
    good = optimizer.state_dict()
    fresh = optim.AdamW(module, lr=0.5)
    for n, change, error, message in (
        (1, {"exp_avg": np.ones(3)}, ValueError, r"exp_avg of bias has shape \(3,\), expected \(2,\)"),
        (1, {"exp_avg_sq": None}, ValueError, "the state of bias has no exp_avg_sq"),
        (0, {"step": -1}, ValueError, "step of weight is -1"),
    ):
        bad = {**good, "state": {**good["state"], n: {**good["state"][n], **change}}}
        with pytest.raises(error, match=message):
            fresh.load_state_dict(bad)
        assert fresh.state == {}
        assert fresh.param_groups[0]["lr"] == 0.5
    bad = {**good, "param_groups": [{**good["param_groups"][0], "decoupled_weight_decay": False}]}
    with pytest.raises(ValueError, match="the state is of torch's Adam, which decays weights in another way"):
        fresh.load_state_dict(bad)
    fresh.load_state_dict(good)
    assert fresh.param_groups[0]["lr"] == 1e-3
    assert fresh.state["bias"]["exp_avg"] is not optimizer.state["bias"]["exp_avg"]


def test_the_core_refuses_what_the_optimizers_never_pass():
    x = np.ones(3, np.float32)
    numbers = (0.1, 0.9, 0.999, 1e-8, 0.0)
    with pytest.raises(TypeError, match="the first and second moment must be arrays"):
        _core.adam_step(x, x, x, None, None, *numbers, 1, False, False)
    with pytest.raises(TypeError, match="gradient has dtype float64, expected float32"):
        _core.adam_step(x, x.astype(float), x, x, None, *numbers, 1, False, False)
    with pytest.raises(ValueError, match="gradient has another shape"):
        _core.sgd_step(x, x[:2], None, *numbers[:4], True, False, False)
    with pytest.raises(TypeError, match="parameter must be an array of floats"):
        _core.sgd_step(x.astype(int), x, None, *numbers[:4], True, False, False)
    with pytest.raises(ValueError, match="step is 0, expected 1 or more"):
        _core.adam_step(x, x, x, x, None, *numbers, 0, False, False)
    assert (x == 1).all()

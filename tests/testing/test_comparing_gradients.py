"""pyattn.compare of gradients: right ones agree within bounds, planted mistakes are named, and bad calls are told."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from support import planted
from support import planted_gradients as gradients
from support.planted import KEY, QUERY, VALUE

import pyattn
from pyattn import nn
from pyattn.testing.bounds import PRECISIONS
from pyattn.testing.gradient_mistakes import GradientEvidence, assemble, explain_gradients, mistakes_in
from pyattn.testing.gradient_sides import rows_of
from pyattn.testing.gradients import Backward, bound_gradients, differentiate, forward_of
from pyattn.testing.sides import FUNCTION, side_of

E, HEADS, N, L, S = 24, 4, 2, 6, 9
RNG = np.random.default_rng(44)
X, MEMORY = (RNG.standard_normal((N, length, E)).astype(np.float32) for length in (L, S))
PAIRS, HEAD_PAIRS = (RNG.standard_normal(shape).astype(np.float32) for shape in ((L, S), (N * HEADS, L, S)))
PADDING = RNG.standard_normal((N, S)).astype(np.float32)


def as_dtype(dtype, arguments):
    return {
        name: x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
        for name, x in arguments.items()
    }


def names_of(report):
    return [stage.name for stage in report.stages if stage.name.startswith("grad_")]


# Planted mistakes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("one", gradients.FUNCTIONS, ids=lambda one: one.name)
def test_a_mistake_on_the_way_back_is_named(one, dtype):
    inputs, arguments = planted.draw(dtype, **one.inputs), as_dtype(dtype, one.arguments)
    report = gradients.compare(gradients.right, inputs, **arguments)
    assert report.equal, report
    assert report.wrong == ()
    report = gradients.compare(one.backward, inputs, **arguments)
    assert not report.equal
    assert report.cause, report
    assert (report.cause.name, report.cause.side, report.stage) == (one.cause, "theirs", one.stage), report
    assert (report.wrong, report.complete) == (("theirs",), True)
    assert report.stages[0].equal
    assert f"Cause, in {one.stage}: theirs {report.cause.what}." in str(report)


def test_two_mistakes_are_named_one_after_the_other():
    def backward(grad, query, key, value):
        return *gradients.unscaled(grad, query, key, value)[:2], gradients.weights_of(query, key) @ grad

    report = gradients.compare(backward, planted.draw(keys=planted.L))
    assert [(cause.name, cause.stage) for cause in report.causes] == [
        ("gradient scale", "grad_query"),
        ("products transposed", "grad_value"),
    ]
    assert report.complete


def test_a_side_is_judged_alone():
    """Ours is wrong, and theirs is not."""
    wrong = (gradients.forward, gradients.without_delta)
    report = pyattn.compare(wrong, (gradients.forward, gradients.right), QUERY, KEY, VALUE, gradients=True)
    assert (report.wrong, report.cause.side, report.cause.name) == (("ours",), "ours", "delta missing")


def test_an_unknown_mistake_is_not_guessed():
    def backward(grad, query, key, value):
        of_query, of_key, of_value = gradients.right(grad, query, key, value)
        return of_query * np.float32(1.01), of_key, of_value

    report = gradients.compare(backward)
    assert (report.equal, report.cause, report.complete) == (False, None, False)
    assert report.stage == "grad_query"
    assert "No known cause explains it." in str(report)


def test_gradients_of_a_wrong_output_say_nothing_new():
    def forward(query, key, value):
        return planted.unscaled(query, key, value)

    report = pyattn.compare(pyattn.attention, (forward, gradients.unscaled), QUERY, KEY, VALUE, gradients=True)
    assert [cause.name for cause in report.causes] == ["scale missing"]
    assert names_of(report) == ["grad_query", "grad_key", "grad_value"]


def test_half_precision_on_the_way_back_is_told_from_float32():
    def backward(grad, query, key, value):
        halves = (x.astype(np.float16) for x in (grad, query, key, value))
        return tuple(x.astype(np.float32) for x in gradients.right(*halves))

    report = gradients.compare(backward)
    assert not report.equal
    assert report.wrong == ("theirs",)


# Modules


def changed_module(module, change):
    """Make a copy whose backward changes the gradients of parameters."""

    class Changed(type(module)):
        def vjp(self, *args: Any, **kwargs: Any) -> Any:
            output, backward = super().vjp(*args, **kwargs)

            def wrong(grad_output: Any) -> Any:
                found = backward(grad_output)
                change(self.grads)
                return found

            return output, wrong

    made = type(module).__new__(Changed)
    vars(made).update(vars(module))
    return made


def mean_bias(grads):
    grads["in_proj_bias"] /= N * L


def mean_out_bias(grads):
    grads["out_proj.bias"] /= N * L


def no_bias(grads):
    grads["in_proj_bias"][:] = 0


def transposed(grads):
    grads["out_proj.weight"][:] = grads["out_proj.weight"].T.copy()


def transposed_inside(grads):
    for block in np.split(grads["in_proj_weight"], 3):
        block[:] = block.T.copy()


def averaged(grads):
    for x in grads.values():
        x /= N


CHANGES = (
    (mean_bias, "bias not summed", "grad_in_proj_bias", "the bias of query, key and value"),
    (mean_out_bias, "bias not summed", "grad_out_proj.bias", "the bias of the output projection"),
    (no_bias, "bias not summed", "grad_in_proj_bias", "gives no gradient of the bias of query, key and value"),
    (transposed, "weight's gradient transposed", "grad_out_proj.weight", "the weight of the output projection"),
    (transposed_inside, "weight's gradient transposed", "grad_in_proj_weight", "the weight of query, key and value"),
    (averaged, "averaged over the batch", "grad_in_proj_weight", "the gradients of parameters by the batch"),
)


@pytest.mark.parametrize(("change", "cause", "stage", "words"), CHANGES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_mistake_in_gradients_of_parameters_is_named(change, cause, stage, words):
    ours = nn.MultiheadAttention(E, HEADS, batch_first=True, rng=5).eval()
    report = pyattn.compare(ours, changed_module(ours, change), X, gradients=True)
    assert report.cause, report
    assert (report.cause.name, report.stage, report.wrong) == (cause, stage, ("theirs",)), report
    assert words in report.cause.what
    assert report.complete


@pytest.mark.parametrize(
    ("backward", "cause"),
    [
        (lambda grad, x, weight: grad @ weight.T, "weight not transposed back"),
        (lambda grad, x, weight: grad @ weight / len(grad), "averaged over the batch"),
        (lambda grad, x, weight: np.ones_like(grad) @ weight, "grad_output ignored"),
    ],
    ids=["transposed", "averaged", "ones"],
)
def test_a_mistake_in_a_linear_layer_is_named(backward, cause):
    ours = nn.Linear(E, E, rng=0)
    theirs = (lambda x: ours(x), lambda grad, x: backward(grad, x, ours.weight))
    report = pyattn.compare(ours, theirs, X, gradients=True)
    assert names_of(report) == ["grad_input"]
    assert (report.cause.name, report.stage) == (cause, "grad_input"), report
    right = (theirs[0], lambda grad, x: grad @ ours.weight)
    assert pyattn.compare(ours, right, X, gradients=True).equal


def test_parts_of_an_input_that_is_used_three_times():
    ours = nn.MultiheadAttention(E, HEADS, batch_first=True, rng=5).eval()

    def backward(grad, x):
        _, back = ours.vjp(x, x.copy(), x.copy(), need_weights=False)
        of_query, _, of_value = back(grad)[:3]
        ours.zero_grad()
        return of_query + of_value

    report = pyattn.compare(ours, (lambda x: ours(x, x, x)[0], backward), X, gradients=True)
    assert (report.cause.name, report.stage) == ("parts of the input", "grad_x"), report
    assert report.cause.what == "leaves out what the input's gradient gets as key"


def test_the_callers_gradients_stay():
    ours = nn.Linear(E, 3, rng=0)
    ours.vjp(X)[1](np.ones((N, L, 3), np.float32))
    before = {name: x.copy() for name, x in ours.grads.items()}
    assert pyattn.compare(ours, ours, X, gradients=True).equal
    for name, x in ours.grads.items():
        np.testing.assert_array_equal(x, before[name])


# Right ones: torch's and ours


MODULES = {
    "multi-head": ({"batch_first": True}, {}),
    "length first": ({}, {}),
    "extra keys": ({"batch_first": True, "add_bias_kv": True, "add_zero_attn": True}, {}),
    "other sizes": ({"batch_first": True, "kdim": E, "vdim": 7}, {}),
    "no biases": ({"batch_first": True, "bias": False}, {}),
    "pairs": ({"batch_first": True}, {"attn_mask": PAIRS}),
    "pairs of heads": ({"batch_first": True}, {"attn_mask": HEAD_PAIRS}),
    "padding": ({"batch_first": True}, {"key_padding_mask": PADDING, "need_weights": False}),
    "bools": ({"batch_first": True}, {"attn_mask": PAIRS > 1}),
}


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MODULES)
def test_torchs_modules_and_ours_agree(name, dtype, torch):
    options, arguments = MODULES[name]
    torch.manual_seed(1)
    theirs = torch.nn.MultiheadAttention(E, HEADS, **options, dtype=getattr(torch, dtype)).eval()
    ours = pyattn.interop.torch.from_torch(theirs)
    value = RNG.standard_normal((N, S, options.get("vdim") or E))
    inputs = [x.astype(dtype) for x in (X, MEMORY, value)]
    if not options.get("batch_first"):
        inputs = [x.swapaxes(0, 1) for x in inputs]
    report = pyattn.compare(ours, theirs, *inputs, gradients=True, **as_dtype(dtype, arguments))
    assert (report.equal, report.wrong) == (True, ()), report
    masks = [f"grad_{key}" for key, x in arguments.items() if isinstance(x, np.ndarray) and x.dtype != np.bool_]
    parameters = [f"grad_{key}" for key in ours.state_dict()]
    assert names_of(report) == ["grad_query", "grad_key", "grad_value", *masks, *parameters]
    assert max(stage.theirs for stage in report.stages[-len(parameters) :]) > 0


@pytest.mark.peers
def test_a_linear_layer_of_torch(torch):
    theirs = torch.nn.Linear(E, 5)
    report = pyattn.compare(pyattn.interop.torch.from_torch(theirs), theirs, X, gradients=True)
    assert report.equal, report
    assert names_of(report) == ["grad_input", "grad_weight", "grad_bias"]


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_held_to_their_own_rounding(kind, torch):
    theirs = torch.nn.MultiheadAttention(E, HEADS, batch_first=True).eval()
    ours = pyattn.interop.torch.from_torch(theirs)
    report = pyattn.compare(ours, theirs.to(getattr(torch, kind)), X, gradients=True)
    assert report.equal, report
    assert max(stage.error for stage in report.stages) > 1e-4


@pytest.mark.parametrize("convention", ["row", "column"])
def test_self_attention_has_gradients_of_x_and_context(convention):
    ours = nn.SelfAttention(E, 8, 5, bias=True, convention=convention, dtype=np.float64, rng=3)
    x, context = (one.astype(np.float64) for one in (X, MEMORY))
    x, context = (x.mT, context.mT) if convention == "column" else (x, context)
    parameters = ["w_query", "w_key", "w_value", "b_query", "b_key", "b_value"]
    expected = [f"grad_{name}" for name in parameters]
    report = pyattn.compare(ours, ours, x, context, gradients=True, attn_mask=PAIRS.astype(np.float64))
    assert (report.equal, report.wrong) == (True, ()), report
    assert sorted(names_of(report)) == sorted(["grad_x", "grad_context", "grad_attn_mask", *expected])
    report = pyattn.compare(ours, ours, x, gradients=True)
    assert (report.equal, report.wrong) == (True, ()), report
    assert sorted(names_of(report)) == sorted(["grad_x", *expected])


@pytest.mark.peers
def test_torchs_attention_and_ours(torch):
    theirs = torch.nn.functional.scaled_dot_product_attention
    ours = pyattn.scaled_dot_product_attention
    grouped = planted.draw(kv_heads=2, keys=L)
    for arguments in ({"is_causal": True}, {"attn_mask": PAIRS[:, :L], "scale": 0.3}, {"enable_gqa": True}):
        inputs = grouped if "enable_gqa" in arguments else planted.draw(keys=L)
        report = pyattn.compare(ours, theirs, *inputs, gradients=True, **arguments)
        assert (report.equal, report.wrong) == (True, ()), report


@pytest.mark.peers
def test_a_function_of_tensors_with_a_wrong_gradient(torch):
    def theirs(query, key, value):
        weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
        return weights.detach() @ value

    report = pyattn.compare(pyattn.attention, theirs, QUERY, KEY, VALUE, tensors=True, gradients=True)
    assert [cause.name for cause in report.causes] == ["no gradient", "no gradient"]
    assert (report.stage, report.complete) == ("grad_query", True)


@pytest.mark.peers
def test_the_gradient_of_lse(torch):
    def graph(query, key, value):
        scores = query @ key.mT * query.shape[-1] ** -0.5
        return scores.softmax(-1) @ value, None, scores.logsumexp(-1)

    def detached(query, key, value):
        output, _, lse = graph(query, key, value)
        return output, None, lse.detach()

    ours = functools.partial(pyattn.attention, need_lse=True)
    seeds = (RNG.standard_normal(QUERY.shape), None, RNG.standard_normal(QUERY.shape[:-1]))
    options = {"tensors": True, "gradients": True, "grad_output": seeds}
    assert pyattn.compare(ours, graph, QUERY, KEY, VALUE, **options).equal
    report = pyattn.compare(ours, detached, QUERY, KEY, VALUE, **options)
    assert (report.cause.name, report.stage, report.wrong) == ("gradient of lse", "grad_query", ("theirs",))


def test_an_object_with_a_vjp_is_a_side():
    class Mine:
        def __call__(self, query, key, value):
            return gradients.forward(query, key, value)

        def vjp(self, query, key, value):
            return self(query, key, value), lambda grad: gradients.unweighted(grad, query, key, value)

    report = pyattn.compare(pyattn.attention, Mine(), QUERY, KEY, VALUE, gradients=True)
    assert report.cause.name == "softmax not differentiated"


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_layouts_groups_and_broadcast_batches(layout):
    query = RNG.standard_normal((2, 4, 5, 8))
    key, value = RNG.standard_normal((2, 1, 2, 7, 8))  # one batch entry and two heads for all
    mask = RNG.standard_normal((4, 1, 7))
    inputs = [x.swapaxes(1, 2) if layout == "bshd" else x for x in (query, key, value)]
    arguments = {"layout": layout, "attn_mask": mask, "is_causal": True, "align": "lower_right"}
    report = pyattn.compare(pyattn.attention, pyattn.attention, *inputs, gradients=True, **arguments)
    assert (report.equal, report.wrong) == (True, ()), report


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_no_numbers(shape):
    x = np.zeros((2, *shape))
    report = pyattn.compare(pyattn.attention, pyattn.attention, x, x, x, gradients=True, scale=1.0)
    assert report.equal, report


def test_what_is_hidden_may_be_nan():
    query, key, value = planted.draw(np.float64)
    key[..., -1, :] = value[..., -1, :] = np.nan
    mask = planted.VISIBLE.copy()
    mask[:, -1] = False
    report = pyattn.compare(pyattn.attention, pyattn.attention, query, key, value, attn_mask=mask, gradients=True)
    assert (report.equal, report.wrong) == (True, ()), report


def test_weights_whose_squares_underflow_have_bounds_too():
    """Scores differ by hundreds: the gradients of a key and a value are about 1e-211, and as exact as others."""
    rng = np.random.default_rng(49)
    side = side_of(nn.MultiheadAttention(8, 1, batch_first=True, dtype=np.float64, rng=49).eval(), "ours", None)
    x, y = 80 * rng.standard_normal((1, 1, 8)), 80 * rng.standard_normal((1, 11, 8))
    formula, _ = side.compute([x, y, y], {})
    backward = Backward(formula, rng.standard_normal((1, 1, 8)))
    found = differentiate(backward, forward_of(formula))
    units = bound_gradients(backward, forward_of(formula), PRECISIONS["float64"])
    for name in ("key", "value"):
        size = np.abs(found[name])
        assert size[size > 0].min() < 1e-200, name
        assert (units[name] >= 1000 * 2.0**-53 * size).all(), name  # a weight is off by the error of such a score


# The table of mistakes


def told_apart(ours, inputs, **arguments):
    """Make each mistake of the table and round its numbers; return those that are not found again, and a count."""
    side = side_of(ours, "ours", None)
    formula, computed = side.compute(inputs, arguments)
    grad = RNG.standard_normal(computed.stages["output"].shape)
    backward = Backward(formula, grad)
    forward, rows = forward_of(formula), rows_of(side, formula, inputs, arguments, side.is_module)
    confused, count = [], 0
    for one in mistakes_in(backward):
        try:
            made = assemble(differentiate(one.backward, forward), rows)
        except (IndexError, ValueError):  # impossible with these shapes
            continue
        actual = {name: x.astype(np.float32).astype(np.float64) for name, x in made.items()}
        evidence = GradientEvidence(backward, rows, actual, PRECISIONS["float32"])
        if evidence.wrong:
            found, count = explain_gradients(evidence), count + 1
            if not found.complete or [mistake.name for _, mistake in found.mistakes] != [one.name]:
                confused.append(one.what)
    return confused, count


def test_known_mistakes_on_the_way_back_are_told_apart():
    rng = np.random.default_rng(9)
    grouped = [rng.standard_normal(shape) for shape in ((2, 4, 6, 5), (2, 2, 9, 5), (2, 2, 9, 3))]
    square = [rng.standard_normal((2, 6, 5)) for _ in range(3)]
    dropped = {"dropout_p": 0.3, "keep_mask": rng.random((6, 6)) < 0.7}
    for inputs, arguments in (
        (grouped, {"attn_mask": rng.standard_normal((4, 1, 9))}),
        (square, {"is_causal": True, "key_lengths": np.array([6, 4])}),
        (square, dropped),
    ):
        confused, count = told_apart(pyattn.attention, inputs, **arguments)
        assert confused == []
        assert count >= 30
    for module in (
        nn.MultiheadAttention(E, HEADS, batch_first=True, rng=1),
        nn.SelfAttention(E, 4, 3, bias=True, rng=1),
        nn.Linear(E, E, rng=2),
    ):
        confused, count = told_apart(module, [X.astype(np.float64)] * (3 if hasattr(module, "num_heads") else 1))
        assert confused == []
        assert count >= 10


# The formula itself, and its bounds


@pytest.mark.peers
def test_the_formulas_gradients_are_those_of_autograd(torch):
    """In float64, to 1e-12 of their size; dropout, masks, groups and lse included."""
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape) for shape in ((2, 4, 6, 5), (2, 2, 9, 5), (2, 2, 9, 3), (4, 1, 9))]
    keep, grad, grad_lse = rng.random((6, 9)) < 0.7, rng.standard_normal((2, 4, 6, 3)), rng.standard_normal((2, 4, 6))
    arguments = {"attn_mask": arrays[3], "dropout_p": 0.3, "keep_mask": keep, "scale": 0.7}
    backward = Backward(FUNCTION.read(None, arrays[:3], arguments, {}), grad, grad_lse)
    found = differentiate(backward, forward_of(backward.formula))
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    query, key, value, mask = leaves
    scores = 0.7 * query @ key.repeat_interleave(2, 1).mT + mask
    output = (scores.softmax(-1) * torch.tensor(keep) / 0.7) @ value.repeat_interleave(2, 1)
    seeds = [torch.tensor(grad), torch.tensor(grad_lse)]
    exact = torch.autograd.grad([output, scores.logsumexp(-1)], leaves, seeds)
    for name, x in zip(("query", "key", "value", "attn_mask"), exact, strict=True):
        np.testing.assert_allclose(found[name], x.numpy(), rtol=0, atol=1e-12 * float(x.abs().max()), err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("offset", [0.0, 5.0])
def test_bounds_hold_for_plain_sums_and_ours(dtype, size, offset):
    """Long rows, nearly equal weights, values of one sign, and weights that are 0 or 1: no case is near its bound."""
    rng = np.random.default_rng(8)
    wide = np.longdouble if dtype == "float64" else np.float64
    query, key, value, grad = (rng.standard_normal(n).astype(dtype) for n in ((70, 64), (300, 64), (300, 9), (70, 9)))
    query, value = query * np.dtype(dtype).type(size), value + np.dtype(dtype).type(offset)
    backward = Backward(FUNCTION.read(None, [query, key, value], {}, {}), grad)
    units = bound_gradients(backward, forward_of(backward.formula), PRECISIONS[dtype])
    exact = gradients.right(*(x.astype(wide) for x in (grad, query, key, value)))
    output, lse = pyattn.attention(query, key, value, need_lse=True)
    ours = pyattn.functional.attention_backward(grad, query, key, value, output, lse)
    for found in (ours, gradients.right(grad, query, key, value)):
        for name, x, right in zip(("query", "key", "value"), found, exact, strict=True):
            ratio = np.abs(x - right) / units[name]
            assert ratio.max() < 0.5, name
            assert (np.abs(right) / units[name]).max() > 2.0 ** (PRECISIONS[dtype].bits - 15), name


# Bad calls


def test_a_function_without_gradients_is_told_what_to_pass():
    with pytest.raises(TypeError, match=r"^theirs, support.right, has no gradients: pass a pair \(forward, backward\)"):
        pyattn.compare(pyattn.attention, planted.right, QUERY, KEY, VALUE, gradients=True)
    expected = pyattn.attention(QUERY, KEY, VALUE)
    with pytest.raises(TypeError, match=r"^theirs is expected numbers, which have no gradients; pass a function"):
        pyattn.compare(pyattn.attention, expected, QUERY, KEY, VALUE, gradients=True)


def test_weights_as_inputs_and_other_scores_are_refused():
    weights = RNG.standard_normal((3, E, 8))
    with pytest.raises(
        TypeError, match=r"nn\.SelfAttention\.from_arrays\(w_query, w_key, w_value\), and pass x alone$"
    ):
        pyattn.compare(pyattn.self_attention, pyattn.self_attention, X[0], *weights, gradients=True)
    with pytest.raises(ValueError, match=r"^gradients of score='cosine' are not compared; those of 'dot' are$"):
        pyattn.compare(pyattn.attention, pyattn.attention, QUERY, KEY, VALUE, score="cosine", gradients=True)


@pytest.mark.parametrize(
    ("grads", "said"),
    [
        (lambda *grads: grads[:2], "the backward of theirs gives 2 gradients, expected those of query, key, value"),
        (lambda *grads: grads[0], "the backward of theirs gives a ndarray, expected those of query, key, value"),
        (lambda *grads: ("x", *grads[1:]), "the gradient of query of theirs has dtype <U1, expected real numbers"),
    ],
)
def test_a_backward_that_returns_something_else(grads, said):
    with pytest.raises(TypeError, match=said):
        gradients.compare(gradients.ending(grads))


def test_a_backward_that_lacks_an_argument_is_told_so():
    with pytest.raises(TypeError, match=r"does not take this call: got an unexpected keyword argument 'attn_mask'"):
        gradients.compare(lambda grad, query, key, value: None, attn_mask=planted.VISIBLE)


@pytest.mark.peers
def test_an_output_without_a_graph_is_told(torch):
    def theirs(query, key, value):
        with torch.no_grad():
            return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    with pytest.raises(TypeError, match=r"^the output of theirs, .*, has no graph; compute it with tensors"):
        pyattn.compare(pyattn.attention, theirs, QUERY, KEY, VALUE, tensors=True, gradients=True)


def test_grad_output_is_checked():
    for given, said in (
        (np.ones(3), r"^grad_output has shape \(3,\), expected \(2, 4, 6, 8\) as the output$"),
        ((QUERY, KEY), r"^grad_output must be an array, or a tuple \(grad_output, None, grad_lse\)$"),
        ((QUERY, None, QUERY), r"^grad_output has a gradient of lse, which ours does not return; pass need_lse=True$"),
    ):
        with pytest.raises(ValueError, match=said):
            gradients.compare(gradients.right, grad_output=given)
    with pytest.raises(ValueError, match=r"^grad_output is given, but gradients are not asked for; pass gradients"):
        pyattn.compare(pyattn.attention, planted.right, QUERY, KEY, VALUE, grad_output=QUERY)
    with pytest.raises(TypeError, match=r"^gradients is of type str, expected True or False$"):
        pyattn.compare(pyattn.attention, planted.right, QUERY, KEY, VALUE, gradients="no")


def test_a_given_grad_output_is_used():
    report = gradients.compare(gradients.right, grad_output=np.zeros(QUERY.shape))
    assert report.equal
    assert all(not any(stage.numbers) for stage in report.stages[1:])

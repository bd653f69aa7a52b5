"""check(f, backward=g): right gradients pass in every group, each mistake is named, and bad ones are told."""

from __future__ import annotations

import numpy as np
import pytest
from support import planted_gradients as gradients
from support.right_attentions import careful, counts_of

import pyattn
from pyattn.__main__ import main
from pyattn.testing import check
from pyattn.testing.cases import GRADIENT_GROUPS, GROUPS


def backward(grad_output, query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Gradients by the core, of all arguments that have cases."""
    options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    options["align"] = "upper_left"
    output, lse = pyattn.attention(query, key, value, need_lse=True, **options)
    is_float = attn_mask is not None and attn_mask.dtype != bool
    need = ["query", "key", "value", *(["attn_mask"] if is_float else [])]
    return pyattn.functional.attention_backward(grad_output, query, key, value, output, lse, need=need, **options)


def gradient_groups(result):
    return [group for group in result.groups if group.name.startswith("gradients, ")]


@pytest.mark.parametrize("strict", [False, True])
def test_the_cores_gradients_pass_every_case(strict):
    result = check(pyattn.attention, backward=backward, strict=strict)
    assert result.passed, result
    assert [group.name for group in gradient_groups(result)] == [group.name for group in GRADIENT_GROUPS]
    assert all(group.passed == group.cases > 0 for group in gradient_groups(result))


def test_numpys_gradients_pass_and_lacking_arguments_are_skipped():
    result = check(gradients.forward, backward=gradients.right)
    assert result.passed, result
    assert counts_of(result, "gradients, float64") == (6, 0, 0)
    assert counts_of(result, "gradients, scale") == (0, 0, 8)
    remark = "not taken: the backward has no argument for scale, is_causal"
    assert remark in result.remarks


def test_what_the_function_takes_by_chance_is_not_asked_of_backward():
    """A product broadcasts one key head over all query heads; the gradient would have to be summed."""

    def forward(query, key, value):
        return gradients.weights_of(query, key) @ value

    def mine(grad_output, query, key, value):
        return gradients.changed(group=lambda x, heads: x)(grad_output, query, key, value)

    result = check(forward, backward=mine)
    assert result.passed, result
    assert counts_of(result, "gradients, grouped heads") == (0, 0, 8)
    said = "not taken, gradients, grouped heads: the function itself does not take all of these cases"
    assert said in result.remarks


def test_without_backward_nothing_changes():
    result = check(careful)
    assert [group.name for group in result.groups] == [group.name for group in GROUPS]


# Each in the first group whose cases show it.
WRONG = {
    "unscaled": ("plain", "leaves the scale out of the gradients of query and key"),
    "scaled_twice": ("plain", "applies the scale twice to the gradients of query and key"),
    "query_unscaled": ("plain", "leaves the scale out of the gradient of query"),
    "without_delta": ("plain", "leaves delta, the row sums of P * dP, out of the softmax's gradient"),
    "like_a_sigmoid": ("plain", "takes the softmax's gradient as P * (1 - P) * dP"),
    "mean_for_delta": ("plain", "takes delta as the mean of P * dP"),
    "unweighted": ("plain", "does not multiply dP - delta by P"),
    "straight_through": ("plain", "takes dP, the gradient of the weights, as that of the scores"),
    "of_the_sum": ("plain", "ignores grad_output"),
    "negative": ("plain", "gives gradients of the opposite sign"),
    "swapped": ("plain", "returns gradients in the order key, query, value"),
    "groups_tiled": ("grouped heads", "sums the gradients of key and value over every kv_heads-th head"),
    "first_of_group": ("grouped heads", "takes the gradients of key and value of the first head of each group"),
    "mean_of_group": ("grouped heads", "averages the gradients of key and value over the heads of a group"),
    "groups_not_summed": ("grouped heads", "does not sum the gradients of key and value over the heads of a group"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named(name):
    wrong, (group, words) = getattr(gradients, name), WRONG[name]

    def mine(grad, query, key, value):
        return wrong(grad, query, key, value)

    result = check(gradients.forward, backward=mine)
    assert not result.passed
    assert result.first_failure.group == f"gradients, {group}", result
    assert result.cause.startswith(f"your backward {words}"), result
    assert result.first_failure.call == "mine(grad_output, query, key, value)"
    assert all(group.failed == 0 for group in result.groups if not group.name.startswith("gradients, "))


def only_where_square(step):
    """Make a backward that is wrong where it can be: with as many keys as queries."""

    def mine(grad_output, query, key, value):
        right = gradients.right(grad_output, query, key, value)
        return step(*right, grad_output, query, key) if query.shape[-2] == key.shape[-2] else right

    return mine


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda dq, dk, dv, grad, query, key: (dq, dk, gradients.weights_of(query, key) @ grad), "multiplies P by dO"),
        (lambda dq, dk, dv, grad, query, key: (dq, dk, grad), "returns dO itself as the gradient of value"),
    ],
    ids=["P", "dO"],
)
def test_a_product_that_is_not_transposed_is_named(step, words):
    result = check(gradients.forward, backward=only_where_square(step))
    assert result.first_failure.group == "gradients, plain"
    assert result.cause.startswith(f"your backward {words}"), result


@pytest.mark.parametrize(
    ("forgets", "group", "words"),
    [
        ("is_causal", "causal", "does not apply the causal mask on the way back"),
        ("attn_mask", "bool masks", "does not apply attn_mask on the way back"),
    ],
)
def test_a_mask_that_is_forgotten_on_the_way_back_is_named(forgets, group, words):
    def mine(grad_output, query, key, value, attn_mask=None, is_causal=False):
        given = {"attn_mask": attn_mask, "is_causal": is_causal, forgets: None if forgets == "attn_mask" else False}
        return gradients.right(grad_output, query, key, value, **given)

    result = check(gradients.forward, backward=mine)
    assert result.first_failure.group == f"gradients, {group}"
    assert result.cause.startswith(f"your backward {words}"), result


def test_a_masks_gradient_that_is_scaled_is_named():
    def mine(grad_output, query, key, value, attn_mask=None):
        found = gradients.right(grad_output, query, key, value, attn_mask=attn_mask)
        return (*found[:3], found[3] * query.dtype.type(query.shape[-1] ** -0.5)) if len(found) > 3 else found

    result = check(gradients.forward, backward=mine)
    assert result.first_failure.group == "gradients, float masks"
    assert result.cause.startswith("your backward multiplies the mask's gradient by the scale: it is dS"), result


def test_a_wrong_output_is_explained_first():
    result = check(lambda query, key, value: query, backward=gradients.unscaled)
    assert not result.first_failure.group.startswith("gradients, ")
    assert any(group.failed for group in gradient_groups(result))


NOT_GRADIENTS = {
    "array": (lambda query, key, value: query, "it returned a ndarray, expected a tuple: those of query, key, value"),
    "two": (lambda query, key, value: (query, key), "it returned 2 gradients, expected a tuple"),
    "None": (
        lambda query, key, value: (query, None, value),
        "it returned None as the gradient of key: is one missing?",
    ),
    "text": (lambda query, key, value: ("x", key, value), "the gradient of query has dtype <U1, expected real numbers"),
    "shape": (
        lambda query, key, value: (query[:1], key, value),
        "the gradient of query has shape (1, 3), expected (3, 3)",
    ),
    "error": (lambda query, key, value: 1 / 0, "ZeroDivisionError: division by zero"),
}


@pytest.mark.parametrize("name", NOT_GRADIENTS)
def test_a_backward_that_gives_no_gradients_is_told(name):
    returned, said = NOT_GRADIENTS[name]
    result = check(gradients.forward, backward=lambda grad, query, key, value: returned(query, key, value))
    assert result.first_failure.group == "gradients, plain"
    assert said in result.first_failure.what


def test_what_is_not_a_backward_is_refused():
    with pytest.raises(
        TypeError, match=r"^backward is of type int, expected a function of grad_output, query, key and"
    ):
        check(careful, backward=3)
    said = (
        r"^f takes \(grad, x\), expected a function of grad_output, query, key and value; wrap it: lambda grad_output"
    )

    def f(grad, x):
        return x

    with pytest.raises(TypeError, match=said.replace("grad, x", "x")):
        check(careful, backward=f)


def test_writing_into_grad_output_is_seen():
    def mine(grad_output, query, key, value):
        found = gradients.right(grad_output, query, key, value)
        if grad_output.flags.writeable:
            grad_output *= 2
        return found

    result = check(gradients.forward, backward=mine)
    assert result.first_failure.group == "gradients, inputs unchanged"
    assert result.first_failure.what == "it wrote to grad_output"


def test_single_precision_is_not_double():
    def mine(grad_output, query, key, value):
        singles = (x.astype(np.float32) for x in (grad_output, query, key, value))
        return tuple(x.astype(query.dtype) for x in gradients.right(*singles))

    result = check(gradients.forward, backward=mine)
    assert result.first_failure.group == "gradients, float64"


@pytest.mark.peers
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_functions_of_tensors(layout, torch):
    def attention(query, key, value):
        query, key, value = (x.transpose(1, 2) if layout == "bshd" else x for x in (query, key, value))
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        return output.transpose(1, 2) if layout == "bshd" else output

    def mine(grad_output, query, key, value):
        leaves = [x.detach().requires_grad_() for x in (query, key, value)]
        return torch.autograd.grad(attention(*leaves), leaves, grad_output)

    result = check(attention, backward=mine, arrays="torch", layout=layout)
    assert result.passed, result
    assert sum(group.passed for group in gradient_groups(result)) > (0 if layout == "bshd" else 80)


# python -m pyattn check


def test_the_command_takes_a_backward(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "import pyattn\n\n\ndef f(query, key, value):\n    return pyattn.attention(query, key, value)\n\n\n"
        "def g(grad_output, query, key, value):\n    return query, key, value\n"
    )
    assert main(["check", f"{path}:f"]) == 0
    for name in ("g", f"{path}:g"):
        assert main(["check", f"{path}:f", "--backward", name]) == 1
        assert "First failure, gradients, plain: g(grad_output, query, key, value)" in capsys.readouterr().out
    assert main(["check", f"{path}:f", "--backward", "h"]) == 2
    assert "has no h; it has f, g" in capsys.readouterr().err

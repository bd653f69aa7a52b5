"""The steps backwards of several heads: gradients against PyTorch's and the module's own, then words, dict and page."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
import pytest
from support.helpers import for_each
from test_trace_html import Reader, data_of

import pyattn
from pyattn import nn
from pyattn.tracing import BackwardHeadTraces, HeadTraces

RNG = np.random.default_rng(222)
# Sums of at most 5 * 12 terms, each of which went through some twenty operations: 2^-40 is 8,192 roundings of float64.
TOLERANCE = 2.0**-40


def module(**options):
    made = nn.MultiheadAttention(**{"embed_dim": 12, "num_heads": 3, "dtype": np.float64, "rng": 1, **options}).eval()
    for _, array in made.named_parameters():
        array[...] = RNG.standard_normal(array.shape) / 2
    return made


def assert_same(ours, theirs, name):
    assert ours.shape == theirs.shape, name
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * max(1, np.abs(theirs).max()), err_msg=name)


def parameters_of(backward):
    """The gradients of the joint weights and biases, by torch's names; in torch's own shapes with columns."""
    weights, biases = (
        [getattr(backward, f"grad_{kind}_{name}") for name in ("query", "key", "value")] for kind in "wb"
    )
    found = {"out_proj.weight": backward.grad_w_out}
    joint = {"in_proj_weight": np.concatenate(weights)} if len({w.shape for w in weights}) == 1 else {}
    found |= joint or dict(zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), weights, strict=True))
    if biases[0] is not None:
        found |= {"in_proj_bias": np.concatenate(biases)[:, 0], "out_proj.bias": backward.grad_b_out[:, 0]}
    return found


MASKS = {
    "none": {},
    "causal": {"attn_mask": ~np.tri(5, dtype=bool)},
    "float": {"attn_mask": RNG.standard_normal((5, 5))},
    "a mask for each head": {"attn_mask": RNG.random((3, 5, 5)) < 0.3},
    "padding": {"key_padding_mask": np.arange(5) >= 3},
}


@pytest.mark.peers
@for_each("bias", [True, False])
@for_each("mask", MASKS)
@for_each("extra", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}])
def test_every_gradient_is_that_of_autograd(torch, bias, mask, extra):
    theirs = torch.nn.MultiheadAttention(12, 3, bias=bias, dtype=torch.float64, **extra).eval()
    if bias:
        torch.nn.init.normal_(theirs.in_proj_bias)
        torch.nn.init.normal_(theirs.out_proj.bias)
    ours = pyattn.interop.torch.from_torch(theirs)
    x, grad = RNG.standard_normal((2, 5, 12))
    masks = {name: torch.from_numpy(np.array(one)) for name, one in MASKS[mask].items()}
    if mask == "a mask for each head":
        masks["attn_mask"][:, :, 0] = False  # PyTorch gives NaN where nothing is seen
    leaf = torch.from_numpy(x.copy()).requires_grad_()
    theirs(leaf, leaf, leaf, **masks)[0].backward(torch.from_numpy(grad))
    traced = ours.trace(x.T, convention="column", **{name: one.numpy() for name, one in masks.items()})
    backward = traced.backward(grad.T)
    assert_same(backward.grad_x.T, leaf.grad.numpy(), "x")
    found = parameters_of(backward)
    for name, parameter in theirs.named_parameters():
        if name == "bias_k":  # of no input: each head has a part
            grads = [head.grad_keys[:, 5] for head in backward.heads]
            assert_same(np.concatenate(grads), parameter.grad.numpy().ravel(), name)
        elif name == "bias_v":
            grads = [head.grad_values[:, 5] for head in backward.heads]
            assert_same(np.concatenate(grads), parameter.grad.numpy().ravel(), name)
        else:
            assert_same(found.pop(name), parameter.grad.numpy(), name)
    assert not found
    assert (backward.grad_b_out is None) == (not bias)


@for_each("kv_heads", [1, 2, 4])
@for_each("masks", [{}, {"is_causal": True}, {"window": 1}, {"key_lengths": 2}, {"key_lengths": 0}])
def test_heads_that_share_keys_add_their_gradients(kv_heads, masks):
    mha = module(num_heads=4, num_kv_heads=kv_heads, head_dim=3, v_head_dim=5, out_dim=7, scale=0.7)
    x, grad = RNG.standard_normal((5, 12)), RNG.standard_normal((5, 7))
    columns = mha.trace(x.T, convention="column", **masks).backward(grad.T)
    mha.grads.clear()
    _, back = mha.vjp(x, x, x, **masks)
    assert_same(columns.grad_x.T, sum(back(grad)[:3]), "x")
    found = parameters_of(columns)
    assert found.keys() == mha.grads.keys()
    for name, array in mha.grads.items():
        assert_same(found[name], array, name)
    rows = mha.trace(x, **masks).backward(grad)
    assert rows.arrays.keys() == columns.arrays.keys()
    for name, array in rows.arrays.items():
        np.testing.assert_array_equal(columns.arrays[name].T, array, err_msg=name)
    assert rows.grad_w_key.shape == (12, 3 * kv_heads)


def test_a_head_is_its_own_trace_backwards():
    traced = module().trace(RNG.standard_normal((5, 12)))
    backward = traced.backward(RNG.standard_normal((5, 12)))
    for n, head in enumerate(backward.heads):
        assert head.trace is traced.heads[n]
        np.testing.assert_array_equal(head.grad_outputs, backward.grad_concatenated[:, 4 * n : 4 * n + 4])
        np.testing.assert_array_equal(head.grad_w_query, backward.grad_w_query[:, 4 * n : 4 * n + 4])
        again = traced.heads[n].backward(head.grad_outputs)
        assert all((again.arrays[name] == array).all() for name, array in head.arrays.items())
    assert backward.traces is traced


def test_other_keys_end_at_the_heads_queries_keys_and_values():
    """Heads of cross-attention begin at their third step, so gradients end there."""
    mha = module(kdim=4, vdim=5)
    given = [RNG.standard_normal(shape) for shape in ((3, 12), (6, 4), (6, 5))]
    grad = RNG.standard_normal((3, 12))
    backward = mha.trace(*given).backward(grad)
    assert backward.grad_x is backward.grad_w_key is backward.grad_b_query is None
    _, back = mha.vjp(*given)
    back(grad)
    assert_same(backward.grad_w_out.T, mha.grads["out_proj.weight"], "w_out")
    joined = np.concatenate([head.grad_keys for head in backward.heads], axis=1)
    assert_same(joined.T @ given[1], mha.grads["k_proj_weight"], "k_proj_weight")
    assert [step.note.startswith("Not known") for step in (backward.joint_weights, backward.joint_inputs)] == [True] * 2
    assert "Step 3: Join the gradients of the heads' weights\n  Not known" in str(backward)


def test_a_query_that_sees_nothing_moves_the_bias_alone():
    mha = module()
    blocked = np.zeros((5, 5), bool)
    blocked[2] = True
    grad = np.zeros((5, 12))
    grad[2] = 1
    backward = mha.trace(RNG.standard_normal((5, 12)), attn_mask=blocked).backward(grad)
    moved = {name for name, array in backward.arrays.items() if array.any()}
    assert moved == {"grad_outputs", "grad_b_out", "grad_concatenated"}


def test_arrays_are_read_only_and_belong_to_the_traces():
    grad = np.ones((5, 12))
    backward = module().trace(RNG.standard_normal((5, 12))).backward(grad)
    grad[:] = 7
    assert (backward.grad_outputs == 1).all()
    for name, array in backward.arrays.items():
        assert array.dtype == np.float64, name
        assert not array.flags.writeable, name


def test_traces_that_were_read_from_a_dict_have_the_same_gradients():
    traced = module(num_heads=4, num_kv_heads=2).trace(RNG.standard_normal((3, 12)))
    again = HeadTraces.from_dict(json.loads(json.dumps(traced.to_dict())))
    grad = RNG.standard_normal((3, 12))
    assert again.num_kv_heads == 2
    assert again.backward(grad).to_dict() == traced.backward(grad).to_dict()


# Words


@for_each("convention", ["row", "column"])
def test_formulas_of_the_joint_steps_compute_their_arrays(convention):
    swapped = np.transpose if convention == "column" else np.asarray
    traced = module(num_heads=4, num_kv_heads=2).trace(swapped(RNG.standard_normal((5, 12))), convention=convention)
    backward = traced.backward(swapped(RNG.standard_normal((5, 12))))
    ran = 0
    for line in f"{backward.projection.formula}\n{backward.joint_weights.formula}".splitlines():
        name, _, formula = line.partition(" = ")
        if "sum of" in formula:
            continue
        names = {"w_out": traced.w_out, "concatenated": traced.concatenated, **backward.arrays}
        names |= {f"head_{n}": getattr(head, name, None) for n, head in enumerate(backward.heads, 1)}
        names["Concat"] = lambda *parts: np.concatenate(parts, axis=1)
        formula = re.sub(r"^\[(.*)\]$", lambda found: f"np.concatenate([{found[1].replace(';', ',')}])", formula)
        np.testing.assert_allclose(eval(formula, {"np": np}, names), names[name], rtol=0, atol=TOLERANCE, err_msg=line)
        ran += 1
    assert ran == 2 + 6
    np.testing.assert_array_equal(sum(head.grad_x for head in backward.heads), backward.grad_x)


def test_numbers_of_the_notes_are_those_of_the_arrays():
    traced = module(embed_dim=4, num_heads=2).trace(RNG.standard_normal((3, 4)), tokens=["a", "b", "c"])
    backward = traced.backward(RNG.standard_normal((3, 4)))
    first, second = backward.projection.note.splitlines()
    assert first.startswith("input 1 (a): [")
    after = np.array(json.loads(first.rpartition(" = ")[2]))
    np.testing.assert_allclose(after, backward.grad_concatenated[0], rtol=0, atol=5e-5)
    left, _, right = second.partition(": ")[2].partition(" = ")
    assert abs(eval(left) - float(right)) < 1e-3
    assert abs(float(right) - backward.grad_w_out[0, 0]) <= 5e-5
    parts = [json.loads(line.partition(": ")[2]) for line in backward.concatenation.note.splitlines()[1:]]
    np.testing.assert_allclose(np.concatenate(parts), backward.grad_concatenated[0], rtol=0, atol=5e-5)
    left, _, right = backward.joint_inputs.note.partition(": ")[2].partition(" = ")
    np.testing.assert_allclose(json.loads(right), backward.grad_x[0], rtol=0, atol=5e-5)
    shares = np.sum([json.loads(one) for one in left.split(" + ")], axis=0)
    np.testing.assert_allclose(shares, backward.grad_x[0], rtol=0, atol=2e-4)


def test_steps_go_from_the_outputs_through_every_head_to_the_inputs():
    backward = module().trace(RNG.standard_normal((3, 12)), tokens=["我", "b", "c"]).backward(np.ones((3, 12)))
    text = str(backward)
    titles = re.findall(r"^(Step \d+|Head \d of 3|All heads.*)", text, re.MULTILINE)
    one = [f"Step {n}" for n in range(8, 0, -1)]
    heads = [line for n in (1, 2, 3) for line in (f"Head {n} of 3", *one)]
    assert titles == ["All heads", "Step 10", "Step 9", *heads, "All heads: weights and inputs", "Step 3", "Step 1"]
    assert repr(backward) == "BackwardHeadTraces(3 heads, outputs 3 x 12)"
    markdown = backward.to_markdown()
    assert markdown.count("\n## Step 8") == 3
    assert re.findall("^# (.*)$", markdown, re.MULTILINE) == [
        "All heads", "Head 1", "Head 2", "Head 3", "All heads: weights and inputs"]  # fmt: skip


def test_many_heads_are_told_shortly():
    backward = module(num_heads=12).trace(RNG.standard_normal((3, 12))).backward(np.ones((3, 12)))
    assert "grad_w_key = Concat(head_1, ..., head_12)" in backward.joint_weights.formula
    assert backward.concatenation.note.endswith("... and 4 more")
    shared = module(num_heads=12, num_kv_heads=1).trace(np.ones((3, 12))).backward(np.ones((3, 12)))
    assert "grad_w_key = Concat(head_1 + ... + head_12)" in shared.joint_weights.formula


def test_the_dict_is_json():
    grad = np.ones((3, 12))
    grad[1, 1] = np.inf
    backward = module(bias=False).trace(RNG.standard_normal((3, 12))).backward(grad)
    entries = json.loads(json.dumps(backward.to_dict(), allow_nan=False))
    assert entries["grad_outputs"][1][1] == "Infinity"
    assert entries["grad_b_out"] is None
    assert len(entries["heads"]) == 3
    assert entries.keys() == BackwardHeadTraces.__dataclass_fields__.keys() - {"traces"}


# The page


def test_the_page_has_the_steps_of_every_head_and_of_all(tmp_path):
    traced = module(add_zero_attn=True).trace(RNG.standard_normal((3, 12)), tokens=["<b>", "b", "c"])
    backward = traced.backward(RNG.standard_normal((3, 12)))
    backward.save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    reader = Reader(page)
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("details") == 3
    assert tags.count("script") == 4
    assert tags.count("b") == 0
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs and "data-step" not in attrs]
    assert len(set(ids)) == 3
    assert (
        f"querySelectorAll('{','.join('#' + name for name in ids)}').forEach(root=>explain(root,aboutBackward))" in page
    )
    assert backward.arrays.keys() <= {table["data-m"] for table in reader.tables}
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles[:2] == ["10. Back through W_O", "9. Split the gradient among the heads"]
    assert titles[-2:] == [
        "3. Join the gradients of the heads&#x27; weights",
        "1. Add the heads&#x27; gradients of the inputs",
    ]
    rows, columns, numbers = data_of(reader)["m"]["grad_keys"]
    held = np.frombuffer(base64.b64decode(numbers), "<f8").reshape(rows, columns)
    np.testing.assert_array_equal(held, backward.heads[0].grad_keys)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("heads", [8, 12, 16, 40])
def test_pages_of_many_heads_of_64_tokens_stay_small(heads):
    tokens = ["很长的词语" * 100] * 64
    traced = module(embed_dim=12 * heads, num_heads=heads).trace(RNG.standard_normal((64, 12 * heads)), tokens=tokens)
    page = traced.backward(np.ones((64, 12 * heads)))._repr_html_()
    assert len(page.encode()) < 400_000
    assert ("Heads 17 to 40 are not shown: heads[16].save_html(path)" in page) == (heads == 40)


# Mistakes


def test_mistakes_are_named():
    traced = module().trace(np.ones((3, 12)))
    for kind, message, given in (
        (ValueError, "grad_outputs has shape (3, 4); it must be (3, 12), the shape of outputs", np.ones((3, 4))),
        (ValueError, "grad_outputs has shape (2, 3, 12); it must be (length, out_dim)", np.ones((2, 3, 12))),
        (TypeError, "grad_outputs has dtype complex128", np.ones((3, 12), complex)),
    ):
        with pytest.raises(kind, match="^" + re.escape(message)):
            traced.backward(given)
    columns = module().trace(np.ones((12, 3)), convention="column")
    with pytest.raises(ValueError, match=re.escape("grad_outputs has shape (3, 12); it must be (12, 3)")):
        columns.backward(np.ones((3, 12)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "num_kv_heads is 3; it must be 1 or more, and divide the 4 heads"),
        ({"num_kv_heads": 0}, "num_kv_heads is 0; it must be 1 or more, and divide the 4 heads"),
        ({"num_kv_heads": 1}, "w_key of heads 1 and 3 must be equal, as 4 heads share each of the 1 num_kv_heads"),
        ({"x": 1}, "x of heads 1 and 2 must be equal, as all heads read the same inputs"),
    ],
    ids=str,
)
def test_heads_of_a_dict_have_to_belong_together(change, message):
    entries = module(num_heads=4, num_kv_heads=2).trace(RNG.standard_normal((3, 12))).to_dict()
    if "x" in change:
        entries["heads"][1]["x"][0][0] = 7.0
    else:
        entries |= change
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        HeadTraces.from_dict(entries)
    with pytest.raises(TypeError, match="num_kv_heads"):
        HeadTraces.from_dict(entries | {"num_kv_heads": 1.5})


def test_names_that_users_try_are_answered():
    traced = module().trace(np.ones((3, 12)))
    with pytest.raises(
        AttributeError, match=r"has no 'grad_x'; traced\.backward\(grad_outputs\) computes all gradients$"
    ):
        _ = traced.grad_x
    backward = traced.backward(np.ones((3, 12)))
    for name, meant in (
        ("dX", "grad_x"),
        ("dW_O", "grad_w_out"),
        ("dW_q", "grad_w_query"),
        ("grad_scores", "heads[0].grad_scores"),
        ("outputs", "traces.outputs"),
        ("weights", "heads[0].trace.weights"),
        ("grad_w_querry", "grad_w_query"),
    ):
        with pytest.raises(
            AttributeError, match=f"^a BackwardHeadTraces has no '{name}'; did you mean {re.escape(meant)}\\?"
        ):
            getattr(backward, name)

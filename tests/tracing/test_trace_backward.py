"""The eight steps backwards: gradients against PyTorch's autograd and by hand, then their text, dict and page."""

from __future__ import annotations

import base64
import json
import math
import re

import numpy as np
import pytest
from test_trace_html import Reader, data_of

import pyattn
from pyattn.tracing import BackwardTrace

TOLERANCE = 2.0**-40  # of the largest number of an array, or 1: 8,192 roundings of float64; no sum here has 100 terms
SCORES = ["dot", "cosine", "distance", "bilinear", "additive"]
MATRICES = ("x", "w_query", "w_key", "w_value")


def example(article, **arguments):
    return pyattn.trace(*(article[name] for name in MATRICES), **arguments)


@pytest.fixture
def rng():
    return np.random.default_rng(22)


def assert_same(ours, theirs, name):
    theirs = theirs.numpy()
    assert ours.shape == theirs.shape, name
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE * max(1, np.abs(theirs).max()), err_msg=name)


def torch_scores(torch, q, k, score, weight):
    if score == "bilinear":
        return q @ weight @ k.T
    if score == "cosine":
        return torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1)
    pairs = q[:, None], k[None]
    if score == "distance":
        return -((pairs[0] - pairs[1]) ** 2).sum(-1)
    return q @ k.T if score == "dot" else torch.tanh(pairs[0] + pairs[1]) @ weight


def torch_weights(torch, scores, normalize):
    if normalize == "softmax":
        return torch.nan_to_num(torch.softmax(scores, dim=1))
    if normalize == "sigmoid":
        return torch.sigmoid(scores)
    weights = torch.zeros_like(scores)
    for i, row in enumerate(scores):  # the support is found by its definition, and does not move with the scores
        finite = row[row != -math.inf]
        taken = max((n for n in range(1, len(finite) + 1) if 1 + n * finite.sort(descending=True)[0][n - 1]
                     > finite.sort(descending=True)[0][:n].sum()), default=0)  # fmt: skip
        if taken:
            tau = (finite.topk(taken)[0].sum() - 1) / taken
            weights[i] = torch.clamp(row - tau, min=0)
    return weights


# Values


@pytest.mark.parametrize("convention", ["row", "column"])
@pytest.mark.parametrize("normalize", ["softmax", "sigmoid", "sparsemax"])
@pytest.mark.parametrize("score", SCORES)
def test_every_gradient_is_that_of_autograd(torch, score, normalize, convention, rng):
    for case in range(4):
        inputs, features, key_dim, v_dim = rng.integers(2, 7, 4)
        made = {"x": rng.standard_normal((inputs, features))}
        made |= {f"w_{name}": rng.standard_normal((features, key_dim)) for name in ("query", "key")}
        made |= {"w_value": rng.standard_normal((features, v_dim))}
        made |= {"b_query": rng.standard_normal((1, key_dim)), "b_value": rng.standard_normal((1, v_dim))}
        made |= {"attn_bias": rng.standard_normal((inputs, inputs)), "scale": np.array(rng.uniform(0.2, 1.5))}
        shape = {"bilinear": (key_dim, key_dim), "additive": (key_dim,)}.get(score)
        made |= {} if shape is None else {"score_weight": rng.standard_normal(shape)}
        masked = rng.random((inputs, inputs)) < 0.3 if case % 2 else np.zeros((inputs, inputs), bool)
        masked[0] |= case == 3  # a query that attends to nothing
        leaf = {name: torch.tensor(array, requires_grad=True) for name, array in made.items()}
        q = leaf["x"] @ leaf["w_query"] + leaf["b_query"]
        k, v = leaf["x"] @ leaf["w_key"], leaf["x"] @ leaf["w_value"] + leaf["b_value"]
        scores = torch_scores(torch, q, k, score, leaf.get("score_weight")) * leaf["scale"] + leaf["attn_bias"]
        scores = scores.masked_fill(torch.from_numpy(masked), -math.inf)
        weights = torch_weights(torch, scores, normalize)
        between = {"queries": q, "keys": k, "values": v, "scores": scores, "weights": weights}
        for tensor in between.values():
            tensor.retain_grad()
        grad_outputs = rng.standard_normal((inputs, v_dim))
        (weights @ v).backward(torch.from_numpy(grad_outputs))

        swapped = np.transpose if convention == "column" else np.asarray
        trace = pyattn.trace(
            *(swapped(made[name]) for name in MATRICES),
            scale=float(made["scale"]),
            attn_mask=np.where(masked, -np.inf, made["attn_bias"]),
            bias=(made["b_query"][0], None, made["b_value"][0]),
            score=score,
            score_weight=made.get("score_weight"),
            normalize=normalize,
            convention=convention,
        )
        backward = trace.backward(swapped(grad_outputs))
        for name, tensor in leaf.items():
            ours = getattr(backward, f"grad_{name}")
            ours = np.asarray(ours) if name in ("scale", "score_weight") else swapped(ours)
            assert_same(ours, tensor.grad, name)
        for name, tensor in between.items():
            # Weights of masked keys are constants; PyTorch gives them a gradient that nothing reads.
            grad = torch.where(torch.from_numpy(masked), 0, tensor.grad) if name == "weights" else tensor.grad
            assert_same(swapped(getattr(backward, f"grad_{name}")), torch.nan_to_num(grad), name)
        assert backward.grad_b_key is None
        assert (backward.delta is None) == (normalize == "sigmoid")


def test_the_example_by_hand(article):
    """The loss is number 1 of output 1: each line below is one of the formulas, in plain Python."""
    backward = example(article).backward([[1, 0, 0], [0, 0, 0], [0, 0, 0]])
    total = math.exp(2) + 2 * math.exp(4)
    p = [math.exp(2) / total, math.exp(4) / total, math.exp(4) / total]  # of the scores 2, 4, 4
    grad_weights = [1, 2, 2]  # number 1 of each value
    delta = sum(weight * grad for weight, grad in zip(p, grad_weights, strict=True))
    grad_scores = [weight * (grad - delta) for weight, grad in zip(p, grad_weights, strict=True)]
    keys, query, first = [[0, 1, 1], [4, 4, 0], [2, 3, 1]], [1, 0, 2], [1, 0, 1, 0]
    grad_query = [sum(grad_scores[j] * keys[j][d] for j in range(3)) for d in range(3)]
    near = {"rtol": 1e-14, "atol": 1e-15}
    np.testing.assert_allclose(backward.delta[0, 0], delta, **near)
    np.testing.assert_allclose(backward.grad_values[:, 0], p, **near)
    np.testing.assert_allclose(backward.grad_scores[0], grad_scores, **near)
    np.testing.assert_allclose(backward.grad_queries[0], grad_query, **near)
    np.testing.assert_allclose(backward.grad_keys, np.outer(grad_scores, query), **near)
    np.testing.assert_allclose(backward.grad_w_query, np.outer(first, grad_query), **near)
    assert (backward.grad_weights[0] == grad_weights).all()
    assert not backward.grad_scores[1:].any()
    assert not backward.grad_queries[1:].any()


def test_a_step_against_the_gradient_changes_the_loss_as_predicted(article):
    """Of half the squared error: the loss falls by step * |grad|^2, up to a term of the second order."""
    target = np.array([[1.0, 8.0, 1.0], [2.0, 6.0, 0.0], [3.0, 7.0, 1.0]])
    matrices = [article[name] for name in MATRICES]

    def loss(*given):
        return 0.5 * ((pyattn.trace(*given).outputs - target) ** 2).sum()

    trace = pyattn.trace(*matrices)
    backward = trace.backward(trace.outputs - target)
    grads = [getattr(backward, f"grad_{name}") for name in MATRICES]
    predicted = sum((grad * grad).sum() for grad in grads)
    fallen = []
    for step in (1e-6, 1e-7):
        after = [array - step * grad for array, grad in zip(matrices, grads, strict=True)]
        fallen.append((loss(*matrices) - loss(*after)) / step - predicted)
    assert abs(fallen[1]) < 0.11 * abs(fallen[0]) < 0.11 * 1e-3 * predicted


def test_masked_keys_do_not_count_even_if_they_hold_nan(rng):
    query, key, value = rng.standard_normal((3, 4, 2))
    grad = rng.standard_normal((4, 2))
    seen = np.tri(4, dtype=bool)
    seen[:, 2] = False
    for score, weight in (("dot", None), ("cosine", None), ("distance", None), ("additive", [1.0, -2.0])):
        options = {"attn_mask": seen, "score": score, "score_weight": weight}
        clean = pyattn.trace_attention(query, key, value, **options).backward(grad)
        key[2] = value[2] = np.nan
        dirty = pyattn.trace_attention(query, key, value, **options).backward(grad)
        key[2] = value[2] = 0
        for name, array in clean.arrays.items():
            np.testing.assert_allclose(dirty.arrays[name], array, rtol=0, atol=TOLERANCE, err_msg=f"{score} {name}")
        assert not clean.grad_keys[2].any()
        assert not clean.grad_values[2].any()


@pytest.mark.parametrize("normalize", ["softmax", "sigmoid"])
@pytest.mark.parametrize("where", ["query", "key", "value", "underflow", "grad"])
def test_a_nan_that_is_seen_stays_in_the_gradients(torch, rng, normalize, where):
    query, key, value = rng.standard_normal((3, 4, 2))
    grad = rng.standard_normal((4, 2))
    array = {"query": query, "key": key, "grad": grad}.get(where, value)
    array[1, 0] = np.nan
    if where == "underflow":  # the weight of the key of the NaN is 0 for every query
        query[:], key[1] = np.abs(query), -1e4
    leaf = [torch.tensor(x, requires_grad=True) for x in (query, key, value)]
    scores = leaf[0] @ leaf[1].T
    weights = torch.softmax(scores, dim=1) if normalize == "softmax" else torch.sigmoid(scores)
    (weights @ leaf[2]).backward(torch.tensor(grad))
    backward = pyattn.trace_attention(query, key, value, scale=1, normalize=normalize).backward(grad)
    for name, tensor in zip(("queries", "keys", "values"), leaf, strict=True):
        expected = np.isnan(tensor.grad.numpy())
        np.testing.assert_array_equal(np.isnan(getattr(backward, f"grad_{name}")), expected, err_msg=name)


def test_sparsemax_of_nan_has_gradients_of_nan():
    trace = pyattn.trace_attention([[np.nan, 1.0], [1, 1]], [[1, 2], [3, 4]], [[1], [2]], normalize="sparsemax")
    backward = trace.backward([[1], [1]])
    assert np.isnan(backward.grad_scores[0]).all()
    assert np.isfinite(backward.grad_scores[1]).all()


@pytest.mark.parametrize("normalize", ["softmax", "sigmoid", "sparsemax"])
@pytest.mark.parametrize("empty_rows", ["zero", "nan"])
def test_a_query_that_attends_to_nothing_has_no_effect(rng, normalize, empty_rows):
    query, key, value, grad = rng.standard_normal((4, 3, 2))
    seen = np.array([[True] * 3, [False] * 3, [True] * 3])
    trace = pyattn.trace_attention(query, key, value, attn_mask=seen, normalize=normalize)
    trace = pyattn.tracing.Trace.from_dict(trace.to_dict() | {"empty_rows": empty_rows})
    query[1] = grad[1] = np.nan
    others = pyattn.trace_attention(query[::2], key, value, normalize=normalize).backward(grad[::2])
    grad[1] = 7
    backward = trace.backward(grad)
    assert not backward.grad_queries[1].any()
    for name in ("grad_keys", "grad_values"):
        assert_close = np.testing.assert_allclose
        assert_close(getattr(backward, name), getattr(others, name), rtol=0, atol=TOLERANCE, err_msg=name)


def test_a_zero_vector_has_no_gradient_of_a_cosine():
    backward = pyattn.trace_attention([[0, 0]], [[1, 2], [0, 0]], [[1], [3]], score="cosine").backward([[1]])
    assert not backward.grad_queries.any()
    assert not backward.grad_keys[1].any()


def test_a_trace_of_queries_keys_and_values_has_no_gradient_of_x(rng):
    backward = pyattn.trace_attention(*rng.standard_normal((3, 2, 2))).backward(np.ones((2, 2)))
    assert [getattr(backward, f"grad_{name}") for name in MATRICES] == [None] * 4
    assert [step.note for step in backward.steps][-1].startswith("Not known")


def test_a_module_with_added_keys_has_gradients_of_its_inputs_alone(torch, rng):
    module = pyattn.MultiheadAttention(4, 1, add_bias_kv=True, dtype="float64", rng=0)
    trace = module.trace(rng.standard_normal((3, 4))).heads[0]
    backward = trace.backward(np.ones((3, 4)))
    assert backward.grad_keys.shape == (4, 4)
    assert backward.grad_x.shape == (3, 4)
    x, w_key = torch.tensor(trace.x), torch.tensor(trace.w_key, requires_grad=True)
    keys = torch.cat([x @ w_key + torch.tensor(trace.b_key), torch.tensor(trace.keys[3:])])
    scores = torch.tensor(trace.queries) @ keys.T * trace.scale
    (torch.softmax(scores, 1) @ torch.tensor(trace.values)).sum().backward()
    assert_same(backward.grad_w_key, w_key.grad, "w_key")


def test_arrays_are_read_only_and_belong_to_the_trace(article):
    trace, grad = example(article), np.ones((3, 3))
    backward = trace.backward(grad)
    grad[:] = 7
    assert (backward.grad_outputs == 1).all()
    assert backward.trace is trace
    for name, array in backward.arrays.items():
        assert name == "grad_scale" or not array.flags.writeable, name


# Words


def test_the_steps_go_from_8_to_1(article):
    steps = example(article).backward(np.ones((3, 3))).steps
    assert [step.number for step in steps] == [8, 7, 6, 5, 4, 3, 2, 1]
    held = [name for step in steps for name in step.arrays]
    assert held == [
        *("grad_outputs", "grad_values", "grad_weights", "delta", "grad_scores", "grad_queries", "grad_keys"),
        *("grad_w_key", "grad_w_query", "grad_w_value", "grad_x"),
    ]


@pytest.mark.parametrize("convention", ["row", "column"])
def test_formulas_of_the_steps_compute_their_arrays(article, convention, rng):
    """Each line is run as NumPy code, on the arrays of the trace and of the gradients."""
    swapped = np.transpose if convention == "column" else np.asarray
    trace = pyattn.trace(
        *(swapped(article[name]) for name in MATRICES), scale=0.5, bias=[[1, 2, 3]] * 3, convention=convention
    )
    backward = trace.backward(swapped(rng.standard_normal((3, 3))))
    names = {name: getattr(trace, name) for name in (*MATRICES, "keys", "queries", "values", "weights")}
    names |= backward.arrays
    lines = [line for step in backward.steps if step.number != 2 for line in step.formula.splitlines()]
    lines = [line for line in lines if " = " in line and not re.search("sum of|sum over|for every", line)]
    assert len(lines) == 9
    for line in lines:
        name, _, formula = line.partition(" = ")
        np.testing.assert_allclose(eval(formula, {}, names), names[name], rtol=1e-13, atol=1e-13, err_msg=line)


NOTES = {
    "plain": ({}, 8),
    "causal": ({"is_causal": True, "scale": 0.5, "tokens": ["Paris", "is", "big"]}, 8),
    "sigmoid": ({"normalize": "sigmoid"}, 7),
}


@pytest.mark.parametrize(("options", "count"), NOTES.values(), ids=NOTES)
def test_numbers_of_the_notes_are_those_of_the_arrays(article, rng, options, count):
    """The right side of every line of a note that is a sum, computed from its left side."""
    found = 0
    for step in example(article, **options).backward(rng.integers(1, 4, (3, 3))).steps:
        for line in step.note.splitlines():
            left, equals, right = line.rpartition(" = ")
            if not equals or "..." in line:
                continue
            code = left.rpartition(": ")[2].removeprefix("delta = ")
            numbers = [float(number) for number in re.findall(r"-?\d[\d.]*(?:e-?\d+)?", code)]
            code = re.sub(r"(\[[^]]*\]) \. (\[[^]]*\])", r"np.dot(\1, \2)", code)
            code = re.sub(r"(?<!dot\()(?<!\], )\[([^]]*)\]", r"np.array([\1])", code).replace("scale", "0.5")
            # Each factor of a product is off by half of the fourth decimal, and so is the right side.
            bar = 5e-5 * (sum(map(abs, numbers)) + 1)
            np.testing.assert_allclose(eval(code), np.array(json.loads(right)), rtol=0, atol=bar, err_msg=line)
            found += 1
    assert found == count


def test_notes_keep_the_letters_of_tokens_and_choose_a_query_that_attends_to_two_keys(article):
    trace = example(article, is_causal=True, tokens=["Paris", "Is", "big"])
    notes = "\n".join(step.note for step in trace.backward(np.ones((3, 3))).steps)
    assert "input 1 (Paris)" in notes
    assert "query of input 2 (Is), over all keys" in notes
    assert "weight of key 1 for input 2 (Is): " in notes
    nothing = example(article, attn_mask=pyattn.masks.from_array(np.zeros((3, 3), bool))).backward(np.ones((3, 3)))
    notes = "\n".join(step.note for step in nothing.steps)
    assert "hidden by the mask = 0" in notes
    assert "every key is hidden by the mask" in notes
    assert "nothing" not in notes


def test_formulas_name_the_rows_of_added_keys(rng):
    module = pyattn.MultiheadAttention(4, 1, add_bias_kv=True, dtype="float64", rng=0)
    backward = module.trace(rng.standard_normal((3, 4))).heads[0].backward(np.ones((3, 4)))
    trace, formula = backward.trace, backward.steps[5].formula
    assert "grad_w_key = x.T @ grad_keys[:3]" in formula
    np.testing.assert_allclose(backward.grad_w_key, trace.x.T @ backward.grad_keys[:3], rtol=1e-13)
    np.testing.assert_allclose(backward.grad_b_value[0], backward.grad_values[:3].sum(axis=0), rtol=1e-13)


def test_every_score_and_normalisation_has_words(article):
    for score, weight in zip(SCORES, (None, None, None, np.eye(3), [1, 2, 3]), strict=True):
        for normalize in ("softmax", "sigmoid", "sparsemax"):
            trace = example(article, score=score, score_weight=weight, normalize=normalize, scale=0.5, is_causal=True)
            text = str(trace.backward(np.ones((3, 3))))
            assert f"Step 5: Back through the {normalize}: scores" in text
            assert "grad_scale, 1 x 1" in text
            assert ("grad_score_weight," in text) == (weight is not None)


def test_the_dict_is_json_and_markdown_has_a_table_for_each_matrix(article):
    backward = example(article).backward([[1, 0, 0], [0, np.inf, 0], [0, 0, 0]])
    entries = json.loads(json.dumps(backward.to_dict(), allow_nan=False))
    assert (entries["grad_outputs"][1][1], entries["grad_scale"]) == ("Infinity", "NaN")
    assert set(entries) == {field for field in BackwardTrace.__dataclass_fields__ if field != "trace"}
    markdown = backward.to_markdown()
    assert all(
        f"\n\n**{name.replace('_', chr(92) + '_')}**, " in markdown for step in backward.steps for name in step.arrays
    )


# The page


@pytest.mark.parametrize("convention", ["row", "column"])
def test_a_page_holds_every_gradient_once_and_repeats_what_a_step_reads(tmp_path, article, convention, rng):
    swapped = np.transpose if convention == "column" else np.asarray
    trace = pyattn.trace(
        *(swapped(article[name]) for name in MATRICES), convention=convention, tokens=["a", "我", "<b>"]
    )
    backward = trace.backward(swapped(rng.standard_normal((3, 3))))
    backward.save_html(tmp_path / "backward.html")
    reader = Reader((tmp_path / "backward.html").read_text(encoding="utf-8"))
    held = data_of(reader)["m"]
    for name, array in backward.arrays.items():
        rows, columns, text = held[name]
        numbers = np.frombuffer(base64.b64decode(text), "<f8").reshape(rows, columns)
        np.testing.assert_array_equal(numbers, swapped(array), err_msg=name)
    shown = [table["data-m"] for table in reader.tables]
    for name in (*MATRICES, "weights", "values", "keys", "queries"):
        assert name in shown, name
    assert shown.count("grad_scores") == 2
    assert shown.count("grad_keys") == 3
    assert "pa-page" not in backward._repr_html_()
    assert len(Reader(backward._repr_html_()).tables) == 11


def test_a_large_page_stays_small(tmp_path, rng):
    x, *weights = rng.standard_normal((4, 200, 200))
    backward = pyattn.trace(x, *weights, scale=0.01).backward(x)
    backward.save_html(tmp_path / "backward.html")
    assert (tmp_path / "backward.html").stat().st_size < 600_000


# Mistakes


def test_mistakes_are_named(article):
    trace = example(article)
    for kind, message, given in (
        (ValueError, "grad_outputs has shape (3, 2); it must be (3, 3), the shape of outputs", np.ones((3, 2))),
        (ValueError, "grad_outputs has shape (); it must be (length, v_dim)", 1.0),
        (TypeError, "grad_outputs has dtype complex128", np.ones((3, 3), complex)),
    ):
        with pytest.raises(kind, match="^" + re.escape(message)):
            trace.backward(given)
    with pytest.raises(ValueError, match=r"^round_weights is 1: rounded weights have no gradient"):
        example(article, round_weights=1).backward(np.ones((3, 3)))


def test_names_that_users_try_are_answered(article):
    backward = example(article).backward(np.ones((3, 3)))
    for name, meant in (
        ("grad_mask", "grad_attn_bias"),
        ("grad_q", "grad_queries"),
        ("dQ", "grad_queries"),
        ("dP", "grad_weights"),
        ("grad_key", "grad_keys"),
        ("w_key", "trace.w_key"),
    ):
        with pytest.raises(AttributeError, match=f"^a BackwardTrace has no '{name}'; did you mean {meant}\\?"):
            getattr(backward, name)
    with pytest.raises(AttributeError, match=r"To draw it: pyattn\.plot\.steps\(backward\)$"):
        backward.plot()

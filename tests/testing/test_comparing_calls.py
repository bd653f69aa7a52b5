"""pyattn.compare: what it takes, how the two sides are called, how the report reads, and what bad calls are told."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support import multi_head_twin, planted
from support.helpers import for_each
from support.mha_cases import call_torch
from support.planted import KEY, QUERY, VALUE, compare, with_weights

import pyattn
from pyattn import nn
from pyattn.nn.attention.multihead import parameters_of

# What is compared, and how it is called


def test_expected_numbers_may_be_an_output_or_more():
    output, weights, lse = pyattn.attention(QUERY, KEY, VALUE, need_weights=True, need_lse=True)
    ours = functools.partial(pyattn.attention, need_weights=True, need_lse=True)
    for expected, names in (
        (output, ["output"]),
        (output.tolist(), ["output"]),
        ((output, weights), ["weights", "output"]),
        ((output, weights, lse), ["weights", "lse", "output"]),
        ((output, None, lse), ["lse", "output"]),
    ):
        report = pyattn.compare(ours, expected, QUERY, KEY, VALUE)
        assert report.equal, report
        assert [stage.name for stage in report.stages] == names


def test_expected_numbers_are_no_more_precise_than_what_they_are_for():
    output = pyattn.attention(QUERY, KEY, VALUE)
    for expected in (output, output.astype(np.float64), output.tolist()):
        report = compare(expected)
        assert (report.equal, report.wrong, report.theirs) == (True, (), "expected numbers, float32")
    wide = [x.astype(np.float64) for x in (QUERY, KEY, VALUE)]
    report = pyattn.compare(
        pyattn.attention, output, *wide
    )  # float32, for results in float64: equal, as far as it goes
    assert (report.equal, report.theirs) == (True, "expected numbers, float32")
    report = pyattn.compare(pyattn.attention, output.astype(np.float64), *wide)
    assert (report.cause.name, report.wrong) == ("less precision", ("theirs",))


def test_a_side_may_be_off_though_the_other_is_too_rough_to_tell():
    layer = nn.Linear(8, 8, rng=0)
    fine = nn.Linear(8, 8, dtype=np.float64)
    fine.load_state_dict({name: x.astype(np.float64) for name, x in layer.state_dict().items()})

    class Rough(type(fine)):
        def forward(self, x):
            return layer(x.astype(np.float32))

    rough = Rough.from_arrays(fine.weight, fine.bias)
    report = pyattn.compare(layer, rough, QUERY[0])
    assert (report.equal, report.wrong) == (True, ("theirs",))
    assert (report.cause.side, report.cause.name) == ("theirs", "less precision")
    assert "But theirs does not agree with the formula in float64." in str(report)


def test_a_wrong_lse_is_seen():
    output, lse = pyattn.attention(QUERY, KEY, VALUE, need_lse=True)
    ours = functools.partial(pyattn.attention, need_lse=True)
    report = pyattn.compare(ours, (output, None, lse / np.float32(np.log(2))), QUERY, KEY, VALUE)  # base 2
    assert [stage.name for stage in report.stages if not stage.equal] == ["lse"]


def test_what_partial_binds_is_for_one_side():
    ours = functools.partial(pyattn.attention, scale=1.0)
    assert pyattn.compare(ours, planted.unscaled, QUERY, KEY, VALUE).equal
    theirs = functools.partial(planted.right, scale=np.float32(1))
    assert compare(theirs).cause.name == "scale missing"


@pytest.mark.parametrize(
    "theirs",
    [
        lambda value, key, query: planted.right(query, key, value),
        lambda *, query, key, value: planted.right(query, key, value),
        lambda Q, V, K: planted.right(Q, K, V),  # noqa: N803
        lambda a, b, c: planted.right(a, b, c),
        lambda *inputs: planted.right(*inputs),
    ],
    ids=["other order", "by name", "short names", "unknown names", "no names"],
)
def test_inputs_go_by_their_names(theirs):
    assert compare(theirs).equal


def test_arguments_go_by_the_names_that_a_function_has():
    def theirs(query, key, value, mask=None, softmax_scale=None):
        return planted.right(query, key, value, attn_mask=mask, scale=softmax_scale)

    assert compare(theirs, attn_mask=planted.VISIBLE, scale=0.3).equal


def test_a_list_of_output_and_weights_is_a_tuple():
    def theirs(query, key, value):
        return list(with_weights(query, key, value)[:2])

    report = pyattn.compare(with_weights, theirs, QUERY, KEY, VALUE)
    assert [stage.name for stage in report.stages] == ["weights", "output"]
    assert report.equal


def test_a_list_of_entries_is_an_output():
    report = compare(lambda *inputs: [planted.right(*entry) for entry in zip(*inputs, strict=True)])
    assert [stage.name for stage in report.stages] == ["output"]
    assert report.equal


def test_self_attention_may_take_its_one_input_alone():
    layer = nn.MultiheadAttention(8, 2, batch_first=True, rng=0)
    x = QUERY[0]
    for inputs in ((x,), (x, x, x)):
        assert pyattn.compare(layer, lambda x: layer(x, x, x)[0], *inputs).equal
    with pytest.raises(TypeError, match=r"^theirs takes x alone, expected one array for query, key and value$"):
        pyattn.compare(layer, lambda x: layer(x, x, x)[0], x, x + 1, x)


def test_integers_and_lists_are_inputs_as_anywhere():
    x = [[1, 0, 1], [0, 2, 2], [1, 1, 1]]
    report = pyattn.compare(pyattn.attention, planted.right, x, x, x, attn_mask=[[True] * 3] * 3)
    assert report.equal
    assert report.ours == "pyattn.attention, float64"


def test_inputs_are_left_alone():
    inputs = planted.draw()
    for x in inputs:
        x.flags.writeable = False
    pyattn.compare(pyattn.attention, planted.unscaled, *inputs)


@pytest.mark.peers
def test_functions_of_tensors_are_told_apart_by_an_argument(torch):
    def theirs(query, key, value):
        assert isinstance(query, torch.Tensor)
        assert not torch.is_grad_enabled()
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    assert compare(theirs, tensors=True).equal
    with pytest.raises(
        TypeError, match=r"^calling it with arrays failed: .*Tensor.*; if theirs takes tensors, pass tensors=True"
    ):
        compare(lambda *inputs: torch.nn.functional.scaled_dot_product_attention(*inputs))
    with pytest.raises(TypeError, match=r"^calling it with arrays failed: 'numpy.ndarray' object has no"):
        compare(lambda query, key, value: query.unsqueeze(0))


@pytest.mark.peers
@pytest.mark.parametrize(
    "theirs",
    [
        lambda query, key, value: (query @ key.transpose(-2, -1)).softmax(-1) @ value,
        lambda query, key, value: query.repeat(1, 1, 1, 1),
        lambda query, key, value: query.permute(0, 1, 2),
    ],
    ids=["axes don't match", "takes at most 2 arguments", "has no attribute"],
)
def test_whatever_numpy_says_where_a_tensor_was_meant_the_hint_is_there(theirs, torch):
    with pytest.raises(
        TypeError, match=r"^calling it with arrays failed: .*; if theirs takes tensors, pass tensors=True; ours"
    ):
        compare(theirs)


@pytest.mark.peers
def test_one_array_twice_is_one_tensor_twice(torch):
    def theirs(query, key, value):
        assert key is value
        assert query is not key
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    assert pyattn.compare(pyattn.attention, theirs, QUERY, KEY, KEY, tensors=True).equal


@pytest.mark.peers
def test_a_function_of_ours_is_judged_by_their_module(torch):
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = QUERY[0]
    expected = call_torch(torch, theirs, (x, x, x), {}, need_weights=False)[0]
    report = pyattn.compare(lambda *inputs: expected, theirs, x, x, x)
    assert (report.equal, report.wrong) == (True, ()), report


def multi_head(parameters, **options):
    """The oracle of the core, with weights averaged over heads."""

    def theirs(query, key, value, **arguments):
        names = parameters._asdict()
        attended = multi_head_twin.multi_head(query, key, value, **names, heads=4, **options, **arguments)
        return attended.output, attended.weights.mean(axis=-3)

    return theirs


GROUPED = {"head_dim": 5, "v_head_dim": 3, "out_dim": 7, "kdim": 9, "vdim": 10, "num_kv_heads": 2, "batch_first": True}


def draw_grouped(**options):
    rng = np.random.default_rng(4)
    ours = nn.MultiheadAttention(12, 4, **GROUPED, **options, dtype=np.float64, rng=rng)
    ours.in_proj_bias[:] = rng.standard_normal(ours.in_proj_bias.shape)
    return ours, [rng.standard_normal((2, length, features)) for length, features in ((6, 12), (8, 9), (8, 10))]


def test_sizes_and_arguments_that_torch_lacks_are_compared_too():
    ours, inputs = draw_grouped(add_bias_kv=True, add_zero_attn=True)
    report = pyattn.compare(ours, multi_head(parameters_of(ours), kv_heads=2, add_zero=True), *inputs)
    assert (report.equal, report.wrong) == (True, ()), report
    ours, inputs = draw_grouped()
    hidden = {"window": (2, 1), "key_lengths": [8, 5]}
    report = pyattn.compare(ours, multi_head(parameters_of(ours), kv_heads=2), *inputs, **hidden)
    assert (report.equal, report.wrong) == (True, ()), report
    hidden["window"] = [2, 1]
    report = pyattn.compare(functools.partial(ours, **hidden), multi_head(parameters_of(ours), kv_heads=2), *inputs)
    assert report.wrong == ("theirs",)
    assert {cause.name for cause in report.causes} == {"argument ignored"}


def test_a_modules_groups_in_another_order_are_named():
    ours, inputs = draw_grouped()
    p = parameters_of(ours)
    tiled = {
        name: np.concatenate([x, x])
        for name, x in p._asdict().items()
        if name in ("k_weight", "v_weight", "k_bias", "v_bias")
    }
    report = pyattn.compare(ours, multi_head(p._replace(**tiled), kv_heads=4), *inputs)
    assert (report.cause.name, report.stage, report.complete) == ("groups tiled", "scores", True)


def test_dropout_that_was_asked_for_is_named():
    drop = planted.dropping(0.25)

    def theirs(query, key, value, dropout_p):
        return drop(query, key, value)[0]

    report = compare(functools.partial(theirs, dropout_p=0.25))
    assert (report.cause.name, report.stage) == ("dropout", "weights")
    assert str(report.cause) == "theirs drops weights, called with dropout_p=0.25"


class Head(nn.Module):
    """The articles' one head, by the names of its parameters."""

    def __init__(self, convention, scale=None):
        super().__init__()
        rng = np.random.default_rng(3)
        for name, shape in (("w_query", (8, 5)), ("w_key", (8, 5)), ("w_value", (8, 3))):
            setattr(self, name, rng.standard_normal(shape[::-1] if convention == "column" else shape))
        self.b_query, self.b_key, self.b_value = rng.random(5), rng.random(5), rng.random(3)
        self.convention, self.scale = convention, scale

    def forward(self, x, context=None, **arguments):
        own = {"bias": (self.b_query, self.b_key, self.b_value), "scale": self.scale, "context": context}
        weights = self.w_query, self.w_key, self.w_value
        if self.convention == "row":
            return pyattn.self_attention(x, *weights, **own, **arguments)
        own["context"] = None if context is None else context.mT
        result = pyattn.self_attention(x.mT, *(weight.T for weight in weights), **own, **arguments)
        return result.mT if isinstance(result, np.ndarray) else (result.output.mT, result.weights.mT)


@pytest.mark.parametrize("convention", ["row", "column"])
def test_a_head_of_an_article_shows_all_stages(convention):
    x, context = (planted.draw(np.float64)[n][0] for n in range(2))
    x, context = (x.mT, context.mT) if convention == "column" else (x, context)
    arguments = {"attn_mask": planted.VISIBLE, "need_weights": True}
    report = pyattn.compare(Head(convention), Head(convention), x, context, **arguments)
    assert (report.equal, report.wrong) == (True, ()), report
    assert [stage.name for stage in report.stages][-4:] == ["scores", "weights", "heads", "output"]
    assert pyattn.compare(Head(convention), Head(convention), x, context=context, **arguments).equal
    assert pyattn.compare(Head(convention), Head(convention), x).equal
    report = pyattn.compare(Head(convention), Head(convention, scale=1.0), x, context)
    assert (report.cause.name, report.stage) == ("scale missing", "scores")


@for_each("count", [3, 4])
def test_two_inputs_may_be_one(count):
    expected = "expected 1 or 2: x, context; pass everything else by name"
    with pytest.raises(TypeError, match=f"^{count} inputs are given, {expected}$"):
        pyattn.compare(Head("row"), Head("row"), *[planted.draw(np.float64)[0]] * count)


def test_a_side_that_writes_into_its_inputs_writes_into_nobody_elses():
    rng = np.random.default_rng(0)
    query, key, value = given = rng.standard_normal((3, 2, 10, 16)).astype("f4")
    kept, blocked = given.copy(), np.tri(10, dtype=bool)

    def in_place(query, key, value, attn_mask):
        query /= 4
        np.logical_not(attn_mask, out=attn_mask)
        scores = np.where(attn_mask, -np.inf, query @ key.mT)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ value

    report = pyattn.compare(pyattn.attention, in_place, query, key, value, attn_mask=blocked)
    assert report.equal, str(report)
    assert report.cause is None
    np.testing.assert_array_equal(given, kept)
    np.testing.assert_array_equal(blocked, np.tri(10, dtype=bool))


@pytest.mark.parametrize("align", [2, -1, 0, "lower_right"])
def test_an_alignment_may_be_a_position(align):
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((4, 8)), rng.standard_normal((7, 8))

    def attention(query, key, value, is_causal, align):
        start = len(key) - len(query) if align == "lower_right" else align
        scores = query @ key.T / np.sqrt(query.shape[-1])
        scores[np.arange(len(key)) > np.arange(len(query))[:, np.newaxis] + start] = -np.inf
        weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-1e300))
        return weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300) @ value

    assert pyattn.compare(pyattn.attention, attention, query, key, key, is_causal=True, align=align).equal

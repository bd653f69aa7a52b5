"""pyattn.compare of modules: faults planted in torch's, in their parameters, options and calls, are named."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import pytest

import pyattn
from pyattn import nn

pytestmark = pytest.mark.peers

E, HEADS, N, L, S = 24, 4, 3, 6, 9
PADDING = np.arange(S) >= np.array([9, 7, 4])[:, None]  # True = blocked
BLOCKED = np.random.default_rng(1).random((N * HEADS, L, S)) < 0.4
BLOCKED[..., 0] = False


def draw(length, *, batch=N):
    return np.random.default_rng(length).standard_normal((batch, length, E), np.float32)


QUERY, MEMORY = draw(L), draw(S)


@pytest.fixture
def twins(torch):
    """Make ours and torch's of the same parameters, all drawn."""

    def make(**options):
        ours = nn.MultiheadAttention(E, HEADS, batch_first=True, rng=5, **options).eval()
        rng = np.random.default_rng(6)
        for bias in (ours.in_proj_bias, ours.out_proj.bias):
            bias[...] = rng.standard_normal(bias.shape)
        return ours, pyattn.interop.torch.to_torch(ours)

    return make


# Parameters and options


def transpose_all(torch, theirs):
    theirs.in_proj_weight.copy_(torch.cat([block.T for block in theirs.in_proj_weight.chunk(3)]))


def transpose_key(torch, theirs):
    block = theirs.in_proj_weight.chunk(3)[1]
    block.copy_(block.T.clone())


def transpose_output(torch, theirs):
    theirs.out_proj.weight.copy_(theirs.out_proj.weight.T.clone())


def forget_biases(torch, theirs):
    theirs.in_proj_bias.zero_()


def forget_value_bias(torch, theirs):
    theirs.in_proj_bias[2 * E :] = 0


def forget_output_bias(torch, theirs):
    theirs.out_proj.bias.zero_()


def swap_query_and_key(torch, theirs):
    for packed in (theirs.in_proj_weight, theirs.in_proj_bias):
        query, key, value = packed.clone().chunk(3)
        packed.copy_(torch.cat([key, query, value]))


def pack_by_heads(torch, theirs):
    for packed in (theirs.in_proj_weight, theirs.in_proj_bias):
        packed.copy_(packed.reshape(3, HEADS, E // HEADS, -1).transpose(0, 1).reshape(packed.shape).clone())


def other_heads(torch, theirs):
    theirs.num_heads, theirs.head_dim = 2, E // 2


def other_axes(torch, theirs):
    theirs.batch_first = False


def no_zero_key(torch, theirs):
    theirs.add_zero_attn = False


def other_key_bias(torch, theirs):
    theirs.bias_k.mul_(2)


def other_value_weights(torch, theirs):
    theirs.in_proj_weight[2 * E :].mul_(1.5)


def other_everything(torch, theirs):
    torch.manual_seed(0)
    theirs.in_proj_weight.normal_()
    theirs.out_proj.weight.normal_()


def train(torch, theirs):
    theirs.train()


class Planted(NamedTuple):
    """A change to torch's module, and what is to be said of it."""

    change: Any
    cause: str
    stage: str
    options: dict[str, Any] = {}  # noqa: RUF012 (of a NamedTuple)
    memory: np.ndarray = MEMORY


PARAMETERS = (
    Planted(transpose_all, "weights transposed", "query"),
    Planted(transpose_key, "weights transposed", "key"),
    Planted(transpose_output, "weights transposed", "output"),
    Planted(forget_biases, "parameters missing", "query"),
    Planted(forget_value_bias, "parameters missing", "value"),
    Planted(forget_output_bias, "parameters missing", "output"),
    Planted(swap_query_and_key, "inputs swapped", "query"),
    Planted(pack_by_heads, "packed by heads", "query"),
    Planted(other_heads, "number of heads", "scores"),
    Planted(other_axes, "axes misread", "query", {}, QUERY),
    Planted(no_zero_key, "other parameters", "key", {"add_zero_attn": True}),
    Planted(other_key_bias, "other parameters", "key", {"add_bias_kv": True}),
    Planted(other_value_weights, "other parameters", "value"),
    Planted(other_everything, "other parameters", "query"),
)


@pytest.mark.parametrize("planted", PARAMETERS, ids=lambda planted: planted.change.__name__)
def test_a_fault_in_parameters_or_options_is_named(planted, twins, torch):
    ours, theirs = twins(**planted.options)
    with torch.no_grad():
        planted.change(torch, theirs)
    report = pyattn.compare(ours, theirs, QUERY, planted.memory, planted.memory)
    assert not report.equal
    assert report.cause, report
    assert (report.cause.name, report.cause.side, report.stage) == (planted.cause, "theirs", planted.stage), report
    assert report.complete
    assert report.wrong == ()  # each computes what its own parameters say
    assert next(stage.name for stage in report.stages if not stage.equal) == planted.stage


def test_dropout_in_training_mode_is_named(twins):
    ours, theirs = twins(dropout=0.3)
    theirs.train()
    report = pyattn.compare(ours, theirs, QUERY, MEMORY, MEMORY)
    assert theirs.training
    assert (report.cause.name, report.stage, report.wrong) == ("dropout", "weights", ("theirs",))
    assert str(report.cause) == "theirs drops weights, being in training mode with dropout=0.3"


# What a subclass does with the right parameters


def attend(query, key, value, scale=None):
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return scores.softmax(-1) @ value


def apart(x, heads=HEADS):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def together(x):
    return x.transpose(1, 2).flatten(2)


def without_scale(module, query, key, value):
    return module.out_proj(together(attend(apart(query), apart(key), apart(value), scale=1.0)))


def with_scale_of_all_features(module, query, key, value):
    return module.out_proj(together(attend(apart(query), apart(key), apart(value), scale=E**-0.5)))


def without_output_projection(module, query, key, value):
    return together(attend(apart(query), apart(key), apart(value)))


def with_raw_split(module, query, key, value):
    parts = (x.reshape(N, HEADS, -1, E // HEADS) for x in (query, key, value))
    return module.out_proj(together(attend(*parts)))


def with_raw_merge(module, query, key, value):
    return module.out_proj(attend(apart(query), apart(key), apart(value)).reshape(N, L, E))


def with_interleaved_features(module, query, key, value):
    parts = (x.unflatten(-1, (-1, HEADS)).permute(0, 3, 1, 2) for x in (query, key, value))
    return module.out_proj(together(attend(*parts)))


def with_one_head(module, query, key, value):
    return module.out_proj(attend(query, key, value))


def with_swapped_values(module, query, key, value):
    return module.out_proj(together(attend(apart(query), apart(value), apart(key))))


def with_softmax_over_heads(module, query, key, value):
    query, key, value = (apart(x) for x in (query, key, value))
    return module.out_proj(together((query @ key.mT * query.shape[-1] ** -0.5).softmax(1) @ value))


def in_half_precision(module, query, key, value):
    half = (apart(x).half() for x in (query, key, value))
    return module.out_proj(together(attend(*half).float()))


FORWARDS = (
    (without_scale, "scale missing", "scores"),
    (with_scale_of_all_features, "wrong scale", "scores"),
    (without_output_projection, "parameters missing", "output"),
    (with_raw_split, "heads reshaped", "scores"),
    (with_raw_merge, "heads reshaped", "output"),
    (with_interleaved_features, "heads reshaped", "scores"),
    (with_one_head, "number of heads", "scores"),
    (with_swapped_values, "inputs swapped", "key"),
    (with_softmax_over_heads, "softmax axis", "weights"),
    (in_half_precision, "less precision", "output"),
)


@pytest.mark.parametrize(("compute", "cause", "stage"), FORWARDS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_fault_in_a_forward_of_its_own_is_named(compute, cause, stage, twins, torch):
    class Own(torch.nn.MultiheadAttention):
        def forward(self, *inputs):
            weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
            return compute(self, *map(torch.nn.functional.linear, inputs, weights, biases))

    ours, theirs = twins()
    own = Own(E, HEADS, batch_first=True)
    own.load_state_dict(theirs.state_dict())
    report = pyattn.compare(ours, own, QUERY, MEMORY, MEMORY)
    assert [stage.name for stage in report.stages if not stage.equal] == ["output"]  # all else is by its parameters
    assert report.cause, report
    assert (report.cause.name, report.stage, report.wrong) == (cause, stage, ("theirs",)), report
    assert report.complete


# What a function around a module hands on


def wrapped(module, **changes):
    """Call with some arguments changed, or left out."""

    def call(query, key, value, **arguments):
        for name, change in changes.items():
            arguments[name] = change(arguments.get(name))
        return module(query, key, value, **{name: x for name, x in arguments.items() if x is not None})

    return call


WRAPPED = (
    ({"key_padding_mask": lambda mask: ~mask}, "mask inverted", "scores"),
    ({"key_padding_mask": lambda mask: None}, "argument ignored", "scores"),
    ({"attn_mask": lambda mask: ~mask}, "mask inverted", "scores"),
    ({"attn_mask": lambda mask: None}, "argument ignored", "scores"),
    ({"attn_mask": lambda mask: mask.float()}, "mask misread", "scores"),
    (
        {"attn_mask": lambda mask: mask.unflatten(0, (N, HEADS)).transpose(0, 1).flatten(0, 1)},
        "mask transposed",
        "scores",
    ),
    ({"average_attn_weights": lambda _: False}, "weights returned", "weights"),
    ({"average_attn_weights": lambda _: True}, "weights returned", "weights"),
)


@pytest.mark.parametrize(("changes", "cause", "stage"), WRAPPED, ids=lambda x: str(*x) if isinstance(x, dict) else "")
def test_a_fault_in_what_is_handed_on_is_named(changes, cause, stage, twins):
    ours, theirs = twins()
    masks = {"key_padding_mask": PADDING} if "key_padding_mask" in changes else {"attn_mask": BLOCKED}
    if cause == "weights returned" and changes["average_attn_weights"](None):
        masks |= {"average_attn_weights": False}
    report = pyattn.compare(ours, wrapped(theirs, **changes), QUERY, MEMORY, MEMORY, tensors=True, **masks)
    assert report.cause, report
    assert (report.cause.name, report.stage, report.wrong) == (cause, stage, ("theirs",)), report
    assert [stage.name for stage in report.stages] == ["weights", "output"]


def test_two_faults_are_named_one_after_the_other(twins, torch):
    ours, theirs = twins()
    with torch.no_grad():
        transpose_key(torch, theirs)
        forget_output_bias(torch, theirs)
    report = pyattn.compare(ours, theirs, QUERY, MEMORY, MEMORY)
    assert [(cause.name, cause.stage) for cause in report.causes] == [
        ("weights transposed", "key"),
        ("parameters missing", "output"),
    ]


# Linear layers


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda theirs: theirs.weight.copy_(theirs.weight.T.clone()), "weights transposed"),
        (lambda theirs: theirs.bias.zero_(), "parameters missing"),
        (lambda theirs: theirs.weight.mul_(2), "other parameters"),
        (lambda theirs: theirs.bfloat16().float(), "other parameters"),
    ],
    ids=["transposed", "no bias", "other", "rounded parameters"],
)
def test_a_fault_in_a_linear_layer_is_named(change, cause, torch):
    ours = nn.Linear(E, E, rng=0)
    theirs = pyattn.interop.torch.to_torch(ours)
    assert pyattn.compare(ours, theirs, QUERY).equal
    with torch.no_grad():
        change(theirs)
    report = pyattn.compare(ours, theirs, QUERY)
    assert (report.cause.name, report.stage) == (cause, "output"), report


# The wrong side, and differences that are not mistakes


def test_a_fault_of_ours_is_told_of_ours(twins):
    ours, theirs = twins()

    def mine(query, key, value):
        return ours(value, key, query)[0]

    report = pyattn.compare(mine, theirs, QUERY, QUERY + 1, QUERY[:, ::-1])
    assert report.wrong == ("ours",)
    assert (report.cause.side, report.cause.name) == ("ours", "inputs swapped")


def test_torchs_nan_in_empty_rows_is_a_documented_difference(twins):
    ours, theirs = twins()
    blocked = np.zeros((L, S), bool)
    blocked[2] = True
    report = pyattn.compare(ours, theirs, QUERY, MEMORY, MEMORY, attn_mask=blocked)
    assert not report.equal
    assert report.cause.documented
    assert report.cause.name == "empty rows"
    assert "A documented difference" in str(report)
    assert "from the formula" not in str(report)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_module_in_half_precision_is_held_to_its_own_rounding(kind, twins, torch):
    ours, theirs = twins()
    half = copy.deepcopy(theirs).to(getattr(torch, kind))
    report = pyattn.compare(ours, half, QUERY, MEMORY, MEMORY)
    assert report.equal, report
    assert report.theirs == f"torch.nn.MultiheadAttention, {kind}"
    assert report.stages[-1].error > 1e-4
    report = pyattn.compare(copy.deepcopy(ours).to(kind), half, QUERY, MEMORY, MEMORY)  # both have rounded weights
    assert report.equal, report
    assert report.ours == f"pyattn.nn.MultiheadAttention, {kind}"


MASK_OBJECTS = {
    "causal": {"attn_mask": pyattn.masks.causal(L)},
    "padding": {"attn_mask": pyattn.masks.padding([6, 4, 1], L) & pyattn.masks.causal(L)},
    "documents": {"attn_mask": pyattn.masks.document(np.arange(L) // [[2], [3], [4]])},
    "keys": {"key_padding_mask": pyattn.masks.padding([6, 4, 1], L)},
}


@pytest.mark.parametrize("name", MASK_OBJECTS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_mask_objects_reach_torch_as_torch_reads_masks(twins, torch, name, batch_first):
    ours, theirs = twins()
    ours.batch_first = theirs.batch_first = batch_first
    x = QUERY if batch_first else QUERY.swapaxes(0, 1)
    assert pyattn.compare(ours, theirs, x, **MASK_OBJECTS[name]).equal
    blind = torch.nn.MultiheadAttention.forward

    def forward(*inputs, **arguments):
        return blind(theirs, *inputs, **arguments | dict.fromkeys(MASK_OBJECTS[name]))

    theirs.forward = forward
    report = pyattn.compare(ours, theirs, x, **MASK_OBJECTS[name])
    assert not report.equal


def test_mask_objects_reach_a_function_with_true_meaning_attend():
    def attention(query, key, value, attn_mask):
        scores = np.where(attn_mask, query @ key.mT / np.sqrt(query.shape[-1]), -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ value

    assert pyattn.compare(pyattn.attention, attention, *[QUERY] * 3, attn_mask=pyattn.masks.causal(L)).equal

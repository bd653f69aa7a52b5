"""nn.TransformerEncoderLayer and DecoderLayer: one call of the core, honest weights, and what their mistakes say."""

from __future__ import annotations

import copy
import functools
import pickle
import re

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import _core, nn

pytestmark = pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # drawn masks may look inverted

KINDS = [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer]
E, HEADS = 8, 2
every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind, *, dtype="float32", **options):
    """In eval mode, with all parameters drawn."""
    layer = kind(
        **{"d_model": E, "nhead": HEADS, "dim_feedforward": 12, "batch_first": True, **options}, dtype=dtype, rng=0
    ).eval()
    rng = np.random.default_rng(1)
    for array in layer.parameters():
        array += 0.2 * rng.standard_normal(array.shape)
    return layer


def inputs_of(kind, dtype="float32", batch=(3,)):
    """Batch first: src, or tgt and memory."""
    rng, lengths = np.random.default_rng(2), (5, 7)[: KINDS.index(kind) + 1]
    return [rng.standard_normal((*batch, n, E)).astype(dtype) for n in lengths]


def masks_of(kind):
    """One of every kind, by the layer's names."""
    rng = np.random.default_rng(3)
    bools, ends = np.arange(5) > np.array([[4], [2], [3]]), np.arange(7) > np.array([[4], [2], [0]])
    if kind is KINDS[0]:
        return {"src_mask": rng.standard_normal((5, 5)), "src_key_padding_mask": bools, "is_causal": True}
    masks = {"tgt_mask": rng.random((3 * HEADS, 5, 5)) < 0.3, "tgt_key_padding_mask": bools, "tgt_is_causal": True}
    masks |= {"memory_mask": rng.standard_normal((5, 7)), "memory_key_padding_mask": ends}
    return masks | {"memory_is_causal": True}


@pytest.fixture
def calls(monkeypatch):
    """Names of the core's functions as they are called."""
    called = []

    def counting(name, core):
        def count(*args, **options):
            called.append(name)
            return core(*args, **options)

        return count

    for name in ("layer", "multi_head", "normalize"):
        monkeypatch.setattr(_core, name, counting(name, getattr(_core, name)))
    return called


@every_kind
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "activation",
    ["relu", "gelu", pyattn.functional.silu, functools.partial(pyattn.functional.gelu, approximate="tanh")],
)
def test_a_layer_is_one_call(kind, activation, training, calls):
    """In training, too, as long as nothing is dropped."""
    layer = make(kind, activation=activation, dropout=0.0 if training else 0.1).train(training)
    layer(*inputs_of(kind))
    assert calls == ["layer"]


@every_kind
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_step_by_step_it_has_the_same_bits(kind, activation, batch_first, norm_first, dtype, calls, monkeypatch):
    layer = make(kind, activation=activation, batch_first=batch_first, norm_first=norm_first, dtype=dtype)
    inputs = [x if batch_first else x.swapaxes(0, 1) for x in inputs_of(kind, dtype)]
    expected = layer(*inputs, **masks_of(kind), need_weights=True)
    assert_same_bits(layer(*inputs, **masks_of(kind)), expected[0])
    assert calls == ["layer"] * 2
    layer.dropout = 0.0
    for name in layer.attentions:
        getattr(layer, name).dropout = 0.0
    function = nn.feed_forward._FUNCTIONS[activation]
    layer.activation = lambda x: function(x)  # one that the core does not know
    actual = layer.train()(*inputs, **masks_of(kind), need_weights=True)
    assert "layer" not in calls[2:]
    for one, other in zip(actual, expected, strict=True):
        if other is not None:
            assert_same_bits(one, other)


@every_kind
def test_dropout_in_training_is_composed(kind):
    layer = make(kind, dropout=0.5).train()
    inputs = inputs_of(kind)
    drawn = np.random.default_rng(0)  # one after the other from one generator: no two parts drop the same
    attended = layer.self_attn(*[inputs[0]] * 3, need_weights=False, rng=drawn)[0]
    y = layer.norm1(inputs[0] + pyattn.functional.dropout(attended, 0.5, rng=drawn))
    if kind is nn.TransformerDecoderLayer:
        attended = layer.multihead_attn(y, *[inputs[1]] * 2, need_weights=False, rng=drawn)[0]
        y = layer.norm2(y + pyattn.functional.dropout(attended, 0.5, rng=drawn))
    hidden = pyattn.functional.dropout(np.maximum(layer.linear1(y), 0), 0.5, rng=drawn)
    last = layer.norm3 if kind is nn.TransformerDecoderLayer else layer.norm2
    assert_same_bits(layer(*inputs, rng=0), last(y + pyattn.functional.dropout(layer.linear2(hidden), 0.5, rng=drawn)))
    layer.dropout = 0.0  # of the attentions' weights alone
    first = layer(*inputs, rng=0)
    assert_same_bits(layer(*inputs, rng=0), first)
    assert not np.array_equal(layer(*inputs, rng=1), first)
    assert not np.array_equal(layer.eval()(*inputs), first)


@every_kind
def test_what_took_a_parts_place_is_called(kind):
    class Silent(nn.Linear):
        def forward(self, x):
            return 0 * super().forward(x)

    layer, inputs = make(kind, norm_first=True, bias=False), inputs_of(kind)
    before = layer(*inputs)
    layer.linear2 = Silent.from_arrays(layer.linear2.weight)
    changed = layer(*inputs)
    assert not np.array_equal(changed, before)
    layer.linear2 = nn.Linear.from_arrays(np.zeros_like(layer.linear2.weight))
    np.testing.assert_array_equal(changed, layer(*inputs))
    layer.norm1.eps = 0.5
    assert not np.array_equal(layer(*inputs), changed)


@every_kind
def test_weights_have_heads(kind):
    layer, inputs = make(kind, batch_first=True), inputs_of(kind)
    result = layer(*inputs, need_weights=True)
    assert_same_bits(result[0], layer(*inputs))
    shapes = [(3, HEADS, 5, 5), (3, HEADS, 5, 7)]
    for weights, shape in zip(result[1 : len(inputs) + 1], shapes, strict=False):
        assert weights.shape == shape
        np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-6)
    assert kind is KINDS[1] or result[2] is None
    assert_same_bits(result[1], layer.self_attn(*[inputs[0]] * 3, average_attn_weights=False)[1])


@every_kind
def test_a_sequence_alone_has_the_bits_it_has_in_a_batch(kind, dtype):
    layer, inputs = make(kind, dtype=dtype, batch_first=False), inputs_of(kind, dtype)
    batch = layer(*[x.swapaxes(0, 1) for x in inputs])
    for n in range(3):
        assert_same_bits(layer(*[x[n] for x in inputs]), batch[:, n])


@every_kind
def test_what_is_masked_may_be_nan(kind):
    layer, inputs, masks = make(kind, batch_first=True), inputs_of(kind), masks_of(kind)
    expected = layer(*inputs, **masks)
    padding = masks["src_key_padding_mask" if kind is KINDS[0] else "memory_key_padding_mask"]
    inputs[-1][padding] = np.nan
    actual = layer(*inputs, **masks)
    seen = ~padding if kind is KINDS[0] else np.ones((3, 5), bool)
    assert_same_bits(actual[seen], expected[seen])


@every_kind
def test_a_sequence_of_padding_alone_is_finite(kind):
    layer, inputs = make(kind, batch_first=True), inputs_of(kind)
    masks = {name: np.ones_like(x) for name, x in masks_of(kind).items() if "padding" in name}
    actual = layer(*inputs, **masks)
    layer.self_attn.out_proj.weight[...] = 0  # as a 0 before the output's projection
    if kind is KINDS[1]:
        layer.multihead_attn.out_proj.weight[...] = 0
    assert_same_bits(actual, layer(*inputs))


@every_kind
def test_state_goes_there_and_back(kind):
    layer, inputs = make(kind, activation=pyattn.functional.gelu, norm_first=True), inputs_of(kind)
    other = kind(E, HEADS, 12, activation="gelu", norm_first=True, batch_first=True).eval()
    other.load_state_dict(layer.state_dict(), strict=True)
    for twin in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert_same_bits(twin(*inputs), layer(*inputs))
    parts = dict(layer.named_children())
    again = kind.from_parts(parts, activation="gelu", norm_first=True).eval()
    assert_same_bits(again(*inputs), layer(*inputs))
    assert all(a is b for a, b in zip(again.parameters(), layer.parameters(), strict=True))


@every_kind
def test_what_is_written_to_a_weight_counts(kind):
    layer, inputs = make(kind), inputs_of(kind)
    for name, array in layer.named_parameters():
        before = layer(*inputs)
        array += np.linspace(0.1, 0.5, array.size, dtype="f4").reshape(array.shape)
        changed = not np.array_equal(layer(*inputs), before)
        assert changed, name


@every_kind
def test_the_repr_tells_what_its_parts_do_not(kind):
    lines = repr(kind(4, 2, 8, norm_first=True)).splitlines()
    assert lines[:2] == [f"{kind.__name__}(", "  activation=relu, dropout=0.1, norm_first=True"]
    assert (
        lines[-2] == f"  (norm{KINDS.index(kind) + 2}): LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)"
    )


@pytest.mark.peers
@every_kind
def test_the_first_numbers_are_of_torchs_distributions(kind, torch):
    ours, theirs = kind(60, 4, 100, rng=0), getattr(torch.nn, kind.__name__)(60, 4, 100)
    for key, tensor in theirs.state_dict().items():
        array, other = ours.state_dict()[key], tensor.numpy()
        if np.ptp(other) == 0:
            np.testing.assert_array_equal(array, other)
        else:
            np.testing.assert_allclose(abs(array).max(), abs(other).max(), rtol=0.1)
            np.testing.assert_allclose(array.std(), other.std(), rtol=0.3)


@every_kind
@for_each(
    ("arguments", "error", "message"),
    [
        ({"d_model": 0}, ValueError, "d_model is 0, expected 1 or more"),
        ({"nhead": 3}, ValueError, "d_model is 8 and nhead is 3, expected a multiple"),
        ({"nhead": 2.0}, TypeError, "nhead is of type float, expected an int"),
        ({"dim_feedforward": 0}, ValueError, "dim_feedforward is 0, expected 1 or more"),
        ({"dropout": -1}, ValueError, "dropout is -1, expected a probability from 0 to 1"),
        ({"activation": "swish"}, ValueError, "activation is 'swish'; it must be 'relu', 'gelu'"),
        ({"activation": 3}, ValueError, "activation is of type int; it must be 'relu', .* or a callable"),
        ({"layer_norm_eps": -1}, ValueError, "eps is -1, expected a finite number of 0 or more"),
        ({"batch_first": 1}, TypeError, "batch_first is of type int, expected True or False"),
        ({"norm_first": "yes"}, TypeError, "norm_first is of type str, expected True or False"),
        ({"bias": None}, TypeError, "bias is of type NoneType, expected True or False"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8', expected float16, bfloat16, float32 or float64"),
        ({"rng": "a"}, TypeError, "rng is 'a', expected None, an int"),
    ],
)
def test_mistakes_of_the_constructor_are_named(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**{"d_model": 8, "nhead": 2, **arguments})


X, MEMORY = (np.ones((n, 3, E), np.float32) for n in (5, 7))


@pytest.mark.parametrize("known", [True, False], ids=["one call", "composed"])
@for_each(
    ("arguments", "error", "message"),
    [
        ({"src": X[0, 0]}, ValueError, "src has shape (8,), expected (L, N, 8) or, unbatched, (L, 8)"),
        ({"src": X[..., :7]}, ValueError, "src has shape (5, 3, 7), expected (L, N, 8)"),
        (
            {"src": X.astype(float)},
            TypeError,
            "src has dtype float64, expected float32 as the module's weights; pass src.",
        ),
        ({"src": None}, TypeError, "src is an object of type NoneType"),
        ({"src_mask": np.ones((5, 4), bool)}, ValueError, "src_mask has shape (5, 4), expected (5, 5) or (6, 5, 5)"),
        ({"src_mask": np.ones((3, 5, 5), bool)}, ValueError, "pass numpy.repeat(src_mask, 2, axis=0)"),
        (
            {"src_mask": np.ones((5, 5), int)},
            TypeError,
            "src_mask has dtype int64, expected bool or floats; pass pyattn.masks.from_array(src_mask) if 1 = attend",
        ),
        (
            {"src_key_padding_mask": np.ones((5, 3), bool)},
            ValueError,
            "src_key_padding_mask has shape (5, 3), expected (3, 5)",
        ),
        ({"is_causal": None}, TypeError, "is_causal is of type NoneType, expected True or False"),
    ],
)
def test_mistakes_of_an_encoders_call_are_named(arguments, error, message, known):
    layer = make(KINDS[0], activation="relu" if known else np.tanh, batch_first=False)
    with pytest.raises(error, match=re.escape(message)):
        layer(**{"src": X, **arguments})


@pytest.mark.parametrize("known", [True, False], ids=["one call", "composed"])
@for_each(
    ("arguments", "error", "message"),
    [
        ({"tgt": X[..., :7]}, ValueError, "tgt has shape (5, 3, 7), expected (L, N, 8)"),
        (
            {"memory": MEMORY[:, :2]},
            ValueError,
            "memory has shape (7, 2, 8), expected (S, 3, 8): tgt has shape (5, 3, 8)",
        ),
        ({"memory": MEMORY[:, 0]}, ValueError, "memory has shape (7, 8), expected (S, 3, 8): tgt has shape (5, 3, 8)"),
        ({"memory": MEMORY.astype("f8")}, TypeError, "memory has dtype float64, expected float32"),
        ({"memory": None}, TypeError, "memory is an object of type NoneType"),
        ({"tgt_mask": np.ones((5, 7), bool)}, ValueError, "tgt_mask has shape (5, 7), expected (5, 5)"),
        ({"memory_mask": np.ones((5, 5), bool)}, ValueError, "memory_mask has shape (5, 5), expected (5, 7)"),
        (
            {"memory_key_padding_mask": np.ones((3, 5), bool)},
            ValueError,
            "memory_key_padding_mask has shape (3, 5), expected",
        ),
        (
            {"tgt_key_padding_mask": np.ones((3, 5), int)},
            TypeError,
            "tgt_key_padding_mask has dtype int64, expected bool",
        ),
        ({"tgt_is_causal": "yes"}, TypeError, "tgt_is_causal is of type str, expected True or False"),
        ({"memory_is_causal": 1}, TypeError, "memory_is_causal is of type int, expected True or False"),
    ],
)
def test_mistakes_of_a_decoders_call_are_named(arguments, error, message, known):
    layer = make(KINDS[1], activation="relu" if known else np.tanh, batch_first=False)
    with pytest.raises(error, match=re.escape(message)):
        layer(**{"tgt": X, "memory": MEMORY, **arguments})


@for_each(
    ("change", "error", "message"),
    [
        ({"linear1": None}, TypeError, "linear1 is of type NoneType, expected a module of pyattn.nn"),
        ({"self_attn": nn.Linear(8, 8)}, TypeError, "self_attn is of type Linear, expected MultiheadAttention"),
        (
            {"norm3": nn.LayerNorm(8)},
            ValueError,
            "norm3 is unexpected; expected self_attn, linear1, linear2, norm1, norm2",
        ),
    ],
)
def test_parts_that_do_not_fit_are_named(change, error, message):
    parts = dict(make(KINDS[0]).named_children())
    with pytest.raises(error, match=message):
        KINDS[0].from_parts({**parts, **change})
    del parts["norm2"]
    with pytest.raises(ValueError, match="norm2 is missing"):
        KINDS[0].from_parts(parts)


def test_parts_of_other_dtypes_are_named():
    layer, x = make(KINDS[0]), inputs_of(KINDS[0])[0]
    layer.norm1.double()
    with pytest.raises(
        TypeError, match=r"^norm1.weight has dtype float64, expected float32 as .* convert all with to\("
    ):
        layer.eval()(x)


def test_an_attention_of_the_callers_is_called():
    class Double(nn.Module):
        def forward(self, query, *others, **options):
            return 2 * query, None

    layer, x = make(KINDS[0]), inputs_of(KINDS[0])[0]
    layer.self_attn = Double()
    y = layer.norm1(x + 2 * x)
    np.testing.assert_array_equal(layer.eval()(x), layer.norm2(y + layer.linear2(np.maximum(layer.linear1(y), 0))))

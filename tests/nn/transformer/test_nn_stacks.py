"""nn.TransformerEncoder and TransformerDecoder: layers in turn, and rows of padding that are 0 when torch's are."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

from pyattn import nn

pytestmark = pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # drawn masks may look inverted

E = 8
ENCODER, DECODER = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer


def layer_of(kind, **options):
    return kind(**{"d_model": E, "nhead": 2, "dim_feedforward": 12, "batch_first": True, **options}, rng=0)


def perturb(module):
    """All parameters are drawn, so that layers differ and norms of 0 are not 0."""
    rng = np.random.default_rng(1)
    for array in module.parameters():
        array += 0.2 * rng.standard_normal(array.shape)
    return module.eval()


@pytest.fixture
def x():
    return np.random.default_rng(2).standard_normal((3, 5, E)).astype("f4")


RIGHT = np.arange(5) >= np.array([[5], [3], [1]])
PADDINGS = {
    "right": RIGHT,
    "left": RIGHT[:, ::-1].copy(),
    "none of it": np.zeros((3, 5), bool),
    "a whole sequence": np.arange(5) >= np.array([[5], [0], [2]]),
    "float, right": np.where(RIGHT, -np.inf, 0).astype("f4"),
    "absent": None,
}
# Arguments of layer, encoder and call; what is not told is as torch needs it to cut padding off.
CONDITIONS = {
    "all of them": ({}, {}, {}),
    "with a norm": ({}, {"norm": True}, {}),
    "gelu": ({"activation": "gelu"}, {}, {}),
    "silu": ({"activation": "silu"}, {}, {}),
    "norm_first": ({"norm_first": True}, {}, {}),
    "no batch_first": ({"batch_first": False}, {}, {}),
    "no bias": ({"bias": False}, {}, {}),
    "odd heads": ({"nhead": 1}, {}, {}),
    "enable_nested_tensor=False": ({}, {"enable_nested_tensor": False}, {}),
    "mask": ({}, {}, {"mask": np.zeros((5, 5), bool)}),
    "unbatched": ({}, {}, {"unbatched": True}),
    "training": ({"dropout": 0.0}, {}, {"training": True}),
}
# Without its check, torch takes the first positions of a row for what is not padding.
CASES = list(itertools.product(CONDITIONS, PADDINGS))


@pytest.mark.peers
@pytest.mark.parametrize(("condition", "padding"), CASES)
def test_rows_of_padding_are_zero_when_torchs_are(condition, padding, x, torch):
    of_layer, of_encoder, of_call = CONDITIONS[condition]
    norm = {"norm": nn.LayerNorm(E)} if of_encoder.get("norm") else {}
    ours = perturb(nn.TransformerEncoder(layer_of(ENCODER, **of_layer), 2, **{**of_encoder, **norm}))
    theirs = torch_twin(torch, ours, of_layer, of_encoder)
    ours.train(of_call.get("training", False))
    theirs.train(ours.training)
    mask, blocked = of_call.get("mask"), PADDINGS[padding]
    x = x if of_layer.get("batch_first", True) else x.swapaxes(0, 1).copy()
    if of_call.get("unbatched"):
        x, blocked = x[1], None if blocked is None else blocked[1]
    actual = ours(x, mask, blocked)
    tensors = [None if array is None else torch.from_numpy(array) for array in (x, mask, blocked)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = theirs(*tensors).numpy()
    assert np.isfinite(actual).all()
    numbers = ~np.isnan(expected)
    assert numbers.all() or padding == "a whole sequence"
    np.testing.assert_array_equal((actual == 0) & numbers, expected == 0)
    np.testing.assert_allclose(actual[numbers], expected[numbers], rtol=0, atol=1e-5)


def torch_twin(torch, ours, of_layer, of_encoder):
    options = {"d_model": E, "nhead": 2, "dim_feedforward": 12, "batch_first": True, **of_layer}
    options["activation"] = {"silu": torch.nn.functional.silu}.get(options.get("activation"), options.get("activation"))
    options = {name: option for name, option in options.items() if option is not None}
    norm = {"norm": torch.nn.LayerNorm(E)} if of_encoder.get("norm") else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of why there are to be no nested tensors
        encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(**options), 2, **{**of_encoder, **norm})
    encoder.load_state_dict({key: torch.from_numpy(array) for key, array in ours.state_dict().items()}, strict=True)
    return encoder


def test_the_conditions_decide_something(x):
    """With them rows are 0, and without one of them they are not."""
    for condition, (of_layer, of_encoder, of_call) in CONDITIONS.items():
        if condition in ("with a norm", "no batch_first", "unbatched"):
            continue
        encoder = perturb(nn.TransformerEncoder(layer_of(ENCODER, **of_layer), 2, **of_encoder))
        encoder.train(of_call.get("training", False))
        zero = (encoder(x, of_call.get("mask"), RIGHT)[RIGHT] == 0).all()
        assert zero == (condition in ("all of them", "gelu")), condition


def test_a_causal_encoder_keeps_rows_of_padding(x):
    """As torch's does, which needs a mask for it."""
    encoder = perturb(nn.TransformerEncoder(layer_of(ENCODER), 2))
    triangle = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
    assert_same_bits(encoder(x, src_key_padding_mask=RIGHT, is_causal=True), encoder(x, triangle, RIGHT))


def test_the_input_is_left_alone(x):
    before = x.copy()
    perturb(nn.TransformerEncoder(layer_of(ENCODER), 1))(x, src_key_padding_mask=RIGHT)
    assert_same_bits(x, before)


@pytest.mark.parametrize("with_norm", [False, True])
def test_a_stack_is_its_layers_in_turn(with_norm, x):
    norm = nn.LayerNorm(E) if with_norm else None
    encoder = perturb(nn.TransformerEncoder(layer_of(ENCODER), 3, norm))
    decoder = perturb(nn.TransformerDecoder(layer_of(DECODER), 3, norm))
    y = x
    for layer in encoder.layers:
        y = layer(y, is_causal=True)
    assert_same_bits(encoder(x, is_causal=True), norm(y) if with_norm else y)
    y, masks = x, {"tgt_is_causal": True, "memory_mask": np.eye(5, dtype=bool), "memory_key_padding_mask": RIGHT}
    for layer in decoder.layers:
        y = layer(y, x, **masks)
    assert_same_bits(decoder(x, x, **masks), norm(y) if with_norm else y)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_weights_on_request_are_the_layers(kind, x):
    layer = layer_of(ENCODER if kind == "encoder" else DECODER)
    stack = perturb((nn.TransformerEncoder if kind == "encoder" else nn.TransformerDecoder)(layer, 2, nn.LayerNorm(E)))
    given = (x,) if kind == "encoder" else (x, x[:, :4])
    masks = {f"{'src' if kind == 'encoder' else 'tgt'}_key_padding_mask": RIGHT}
    output, *weights = stack(*given, need_weights=True, **masks)
    assert_same_bits(output, stack(*given, **masks))
    y, expected = x, []
    for each in stack.layers:
        y, *seen = each(y, *given[1:], need_weights=True, **masks)
        expected.append(seen)
    for one, other in zip(weights, zip(*expected, strict=True), strict=True):
        if one is None:
            assert other == (None, None)
        else:
            for left, right in zip(one, other, strict=True):
                assert_same_bits(left, right)


@pytest.mark.parametrize(("stack", "kind"), [(nn.TransformerEncoder, ENCODER), (nn.TransformerDecoder, DECODER)])
def test_layers_are_copies_and_state_goes_there_and_back(stack, kind, x):
    one = layer_of(kind)
    module = stack(one, 2, nn.LayerNorm(E))
    for layer in module.layers:
        assert_same_bits(layer.linear1.weight, one.linear1.weight)
        assert not np.shares_memory(layer.linear1.weight, one.linear1.weight)
    perturb(module)
    other = stack(one, 2, nn.LayerNorm(E)).eval()
    other.load_state_dict(module.state_dict(), strict=True)
    inputs = [x] if kind is ENCODER else [x, x]
    again = stack.from_layers(module.layers, module.norm).eval()
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), again):
        assert_same_bits(twin(*inputs), module(*inputs))
    assert list(module.state_dict())[:1] == ["layers.0.self_attn.in_proj_weight"]
    assert list(module.state_dict())[-2:] == ["norm.weight", "norm.bias"]


def test_the_repr_counts_layers_that_look_alike():
    lines = repr(nn.TransformerEncoder(layer_of(ENCODER), 3)).splitlines()
    assert lines[:3] == ["TransformerEncoder(", "  (layers): ModuleList(", "    (0-2): 3 x TransformerEncoderLayer("]
    one, other = nn.Linear(1, 2), nn.Linear(2, 1)
    assert repr(nn.ModuleList([one, one, other])) == (f"ModuleList(\n  (0-1): 2 x {one!r}\n  (2): {other!r}\n)")
    assert repr(nn.ModuleList()) == "ModuleList()"


def test_dropouts_numbers_are_drawn_once(x):
    module = perturb(nn.TransformerEncoder(layer_of(ENCODER), 2)).train()
    for layer in module.layers:
        layer.dropout = 0.0  # that of the attentions' weights is left
    first = module(x, rng=0)
    assert_same_bits(module(x, rng=0), first)
    assert not np.array_equal(module(x, rng=1), first)
    generator = np.random.default_rng(0)
    y = module.layers[0](x, rng=generator)
    assert_same_bits(module.layers[1](y, rng=generator), first)


def test_a_list_of_modules():
    modules = [nn.Linear(1, n) for n in (1, 2, 3)]
    listed = nn.ModuleList(modules)
    assert len(listed) == 3
    assert list(listed) == modules
    assert listed[0] is modules[0]
    assert listed[-1] is modules[2]
    assert [name for name, _ in listed.named_children()] == ["0", "1", "2"]
    for n in (3, -4):
        with pytest.raises(IndexError, match=f"index is {n}, expected less than 3"):
            listed[n]
    with pytest.raises(TypeError, match="index is of type str, expected an int"):
        listed["0"]
    with pytest.raises(TypeError, match="module is of type int, expected a module"):
        listed.append(1)


@for_each(
    ("call", "error", "message"),
    [
        (
            lambda: nn.TransformerEncoder(1, 2),
            TypeError,
            "encoder_layer is of type int, expected a module of pyattn.nn",
        ),
        (lambda: nn.TransformerDecoder(None, 2), TypeError, "decoder_layer is of type NoneType, expected a module"),
        (lambda: nn.TransformerEncoder(layer_of(ENCODER), 0), ValueError, "num_layers is 0, expected 1 or more"),
        (
            lambda: nn.TransformerDecoder(layer_of(DECODER), 2.0),
            TypeError,
            "num_layers is of type float, expected an int",
        ),
        (
            lambda: nn.TransformerEncoder(layer_of(ENCODER), 1, "norm"),
            TypeError,
            "norm is of type str, expected a module",
        ),
        (
            lambda: nn.TransformerEncoder(layer_of(ENCODER), 1, None, 1),
            TypeError,
            "enable_nested_tensor is of type int",
        ),
        (lambda: nn.TransformerEncoder.from_layers([]), ValueError, "layers is empty, expected one layer or more"),
        (lambda: nn.TransformerDecoder.from_layers([1]), TypeError, r"^layers\[0\] is of type int, expected a module"),
        (
            lambda: nn.TransformerEncoder.from_layers(layer_of(ENCODER)),
            TypeError,
            r"^layers is of type TransformerEncoderLayer, expected a list of modules of pyattn.nn; for one, pass \[lay",
        ),
        (lambda: nn.TransformerEncoder.from_layers(None), TypeError, "^layers is of type NoneType, expected a list"),
        (
            lambda: nn.TransformerEncoder.from_layers([layer_of(ENCODER), ENCODER]),
            TypeError,
            r"^layers\[1\] is the class TransformerEncoderLayer, expected a module of pyattn.nn: call it",
        ),
        (
            lambda: nn.TransformerDecoder.from_layers([layer_of(DECODER)], 3),
            TypeError,
            "^norm is of type int, expected",
        ),
        (
            lambda: nn.TransformerDecoder.from_layers([layer_of(DECODER), layer_of(DECODER, batch_first=False)]),
            ValueError,
            r"^layers\[1\] has batch_first=False, expected True as of layers\[0\]",
        ),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_mistakes_of_a_call_are_named(x):
    encoder, decoder = nn.TransformerEncoder(layer_of(ENCODER), 2).eval(), nn.TransformerDecoder(layer_of(DECODER), 2)
    with pytest.raises(ValueError, match=r"src_mask has shape \(4, 5\), expected \(5, 5\) or \(6, 5, 5\)"):
        encoder(x, np.ones((4, 5), bool))
    with pytest.raises(ValueError, match=r"src_key_padding_mask has shape \(3, 4\), expected \(3, 5\)"):
        encoder(x, src_key_padding_mask=RIGHT[:, 1:])
    with pytest.raises(TypeError, match="is_causal is of type str, expected True or False"):
        encoder(x, is_causal="yes")
    with pytest.raises(ValueError, match=r"memory has shape \(3, 5, 7\), expected"):
        decoder.eval()(x, x[..., 1:])

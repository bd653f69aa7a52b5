"""nn.Transformer: its encoder, then its decoder; torch's first numbers, state and mask."""

from __future__ import annotations

import copy
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import test_transformer as layers
from support.helpers import assert_same_bits, for_each
from support.mask_draws import with_triangle
from support.module_bounds import Near, distance
from support.transformer_twin import run_transformer

from pyattn import nn
from pyattn.testing.bounds import WIDER

pytestmark = pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # drawn masks may look inverted

SMALL = {"d_model": 8, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 3, "dim_feedforward": 12}
RNG = np.random.default_rng(0)
SRC, TGT = (RNG.standard_normal((3, n, 8)).astype("f4") for n in (7, 5))
PADDING = np.arange(7) >= np.array([[7], [2], [4]])


def make(**options):
    return nn.Transformer(**{**SMALL, "batch_first": True, **options}, rng=0).eval()


def test_it_is_its_encoder_then_its_decoder():
    module = make()
    masks = {
        "tgt_mask": np.eye(5, k=1, dtype=bool),
        "memory_mask": RNG.standard_normal((5, 7)),
        "memory_is_causal": True,
    }
    masks |= {"memory_key_padding_mask": PADDING, "tgt_key_padding_mask": PADDING[:, :5]}
    memory = module.encoder(SRC, np.eye(7, k=1, dtype=bool), PADDING, True)
    expected = module.decoder(TGT, memory, **masks, tgt_is_causal=True)
    options = {"src_mask": np.eye(7, k=1, dtype=bool), "src_key_padding_mask": PADDING, "src_is_causal": True}
    assert_same_bits(module(SRC, TGT, **options, **masks, tgt_is_causal=True), expected)


def test_sequences_alone_have_the_bits_they_have_in_a_batch():
    module = make(batch_first=False)
    batch = module(SRC.swapaxes(0, 1), TGT.swapaxes(0, 1), tgt_is_causal=True)
    for n in range(3):
        assert_same_bits(module(SRC[n], TGT[n], tgt_is_causal=True), batch[:, n])


@pytest.mark.peers
def test_names_and_first_numbers_are_torchs(torch):
    sizes = {**SMALL, "d_model": 60, "dim_feedforward": 100}
    ours, theirs = nn.Transformer(**sizes, rng=0), torch.nn.Transformer(**sizes, batch_first=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, tensor in theirs.state_dict().items():
        array, other = ours.state_dict()[key], tensor.numpy()
        assert array.shape == other.shape
        if np.ptp(other) == 0:
            np.testing.assert_array_equal(array, other)
        else:
            np.testing.assert_allclose(abs(array).max(), abs(other).max(), rtol=0.1)
            np.testing.assert_allclose(array.std(), other.std(), rtol=0.3)
    first, second = ours.encoder.layers[0].linear1.weight, ours.encoder.layers[1].linear1.weight
    assert not np.array_equal(first, second)  # copies at first, and drawn anew


# Layers and stacks are drawn in test_transformer.py, for every pair of values: here, what holds them together.
BLOCKS, DRAWS = 6, 12
VALUES = dict(layers.VALUES)
for name in ("kind", "dtype", "num_layers", "norm", "enable_nested_tensor"):
    del VALUES[name]  # a Transformer is not told, or a test has it for a fixture
VALUES |= {f"src_{name}": VALUES[name] for name in ("mask", "padding", "is_causal")}
VALUES |= {"num_encoder_layers": [1, 2, 3], "num_decoder_layers": [1, 2, 3], "size": ["tiny", "small"]}
VALUES["activation"] = [*VALUES["activation"], "relu squared"]
# What torch has a faster path for, which makes rows of padding 0: few draws would have all of it by chance.
USUAL = {"heads": 2, "batched": True, "batch_first": True, "bias": True, "norm_first": False, "activation": "relu"}
USUAL |= {name: False for name in VALUES if name.endswith("is_causal")}
USUAL |= {
    name: "none" if name.endswith("mask") else "bool, ends"
    for name in VALUES
    if VALUES[name] in (layers.MASKS, layers.PADDINGS)
}


def relu_squared(x):
    """Of NumPy and of torch alike."""
    return x.clip(0, None) ** 2


def draw_case(rng, dtype):
    case = {name: values[rng.integers(len(values))] for name, values in VALUES.items()}
    return case | {name: value for name, value in USUAL.items() if rng.random() < 0.6} | {"dtype": dtype}


class TransformerDraw(layers.Draw):
    """x is tgt, and memory is src."""

    def __init__(self, case, rng):
        super().__init__(case, rng)
        self.source = self.hidden("src_", *[self.memory.shape[1]] * 2)


def twins(torch, case, draw):
    """Of the same parameters, by a state_dict there and back."""
    names = ("batch_first", "norm_first", "bias", "layer_norm_eps", "num_encoder_layers", "num_decoder_layers")
    options = {name: case[name] for name in names} | {"dim_feedforward": int(draw.rng.integers(1, 50))}
    options |= {"d_model": draw.embed, "nhead": case["heads"]}
    known = {**layers.activations(torch), "relu squared": (relu_squared, relu_squared)}
    ours = nn.Transformer(**options, activation=known[case["activation"]][0], dtype=case["dtype"], rng=draw.rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of why there are to be no nested tensors
        dtype = getattr(torch, case["dtype"])
        theirs = torch.nn.Transformer(**options, activation=known[case["activation"]][1], dtype=dtype)
    layers.perturb(ours, draw.rng)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict({key: torch.from_numpy(array) for key, array in ours.state_dict().items()}, strict=True)
    return ours.eval(), theirs.eval()


def run(torch, case, draw, ours, theirs):
    """Ours, torch's, and the formula's, which is batch first."""
    hidden = {"src": draw.source, "tgt": draw.own, "memory": draw.cross}
    inputs, q_len, kv_len = [draw.given(draw.memory), draw.given(draw.x)], draw.x.shape[1], draw.memory.shape[1]
    lengths = {"src": (kv_len, kv_len), "tgt": (q_len, q_len), "memory": (q_len, kv_len)}
    masks = {f"{name}_mask": each.attn_mask for name, each in hidden.items()}
    paddings = {f"{name}_key_padding_mask": draw.padding(each) for name, each in hidden.items()}
    hints = {f"{name}_is_causal": each.is_causal for name, each in hidden.items()}
    actual = ours(*inputs, **masks, **paddings, **hints)

    of_source = {**case, "padding": case["src_padding"]}
    zeroed = layers.zeroed_by_torch(of_source, SimpleNamespace(own=draw.source), theirs.encoder)
    given = {f"{name}_mask": with_triangle(x.attn_mask, x.is_causal, *lengths[name]) for name, x in hidden.items()}
    expected = np.full_like(actual, np.nan)
    if zeroed is None or not zeroed.all():  # torch raises where no token of src is left
        expected = call_torch(torch, theirs, inputs, given | paddings)
    activation = relu_squared if case["activation"] == "relu squared" else case["activation"].split(",")[0]
    options = {"dtype": WIDER[case["dtype"]], "zeroed": zeroed}
    return actual, expected, run_transformer(ours, activation, draw.memory, draw.x, *hidden.values(), **options)


def call_torch(torch, module, inputs, masks):
    """A float mask has its meaning in torch's decoder; in its encoder, where the fast path is left out."""
    given = {name: None if mask is None else torch.from_numpy(mask) for name, mask in masks.items()}
    with layers.as_torch_means_it(torch, [masks["src_mask"], masks["src_key_padding_mask"]]):
        return module(*map(torch.from_numpy, inputs), **given).numpy()


@pytest.fixture(scope="module")
def distances(summary):
    distances = layers.LayerDistances()
    yield distances
    summary["Transformer: how exact"] = list(distances.lines())


@pytest.mark.sampled(2)
@pytest.mark.peers
@pytest.mark.parametrize("block", range(BLOCKS))
def test_equals_torch(block, dtype, torch, distances):
    """Where torch has numbers: those of rows with nothing to attend to are NaN on its fast path."""
    rng = np.random.default_rng([13, block])
    for number in range(DRAWS):
        case = draw_case(rng, dtype)
        about = str({**case, "block": block, "number": number})
        draw = TransformerDraw(case, np.random.default_rng([14, block, number]))
        actual, expected, exact = run(torch, case, draw, *twins(torch, case, draw))
        assert actual.shape == expected.shape, about
        assert actual.dtype == dtype, about
        assert np.isfinite(actual).all(), about
        numbers = ~np.isnan(expected)
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(actual[numbers], expected[numbers], rtol=0, atol=tolerance, err_msg=about)

        near = Near(np.stack([draw.given(exact)]), None)
        if draw.embed >= layers.JUDGED:
            pair = (distance(y[np.newaxis], near, numbers) for y in (actual, np.where(numbers, expected, 0)))
            distances.note((dtype,), *pair)
        distances.cases += 1
        distances.whole += bool(numbers.all())
        assert distance(actual[np.newaxis], near) < 1e4, about  # those that torch has no numbers for, too


@pytest.mark.slow
@pytest.mark.peers
def test_no_further_from_the_formula_than_torch(distances):
    if distances.cases < 2 * BLOCKS * DRAWS:
        pytest.skip("all blocks of test_equals_torch come first: these are figures of all draws")
    assert min(map(len, distances.pairs.values())) >= 40
    distances.assert_no_further()
    assert distances.whole > 0.7 * distances.cases


@pytest.mark.peers
@pytest.mark.parametrize("size", [0, 1, 4])
def test_the_mask_is_torchs(size, dtype, torch):
    ours = nn.Transformer.generate_square_subsequent_mask(size, dtype=dtype)
    theirs = torch.nn.Transformer.generate_square_subsequent_mask(size, dtype=getattr(torch, dtype))
    assert_same_bits(ours, theirs.numpy())
    assert nn.Transformer.generate_square_subsequent_mask(2).dtype == np.float32


def test_is_causal_hides_what_the_mask_does():
    module = make()
    triangle = module.generate_square_subsequent_mask(5)
    assert_same_bits(module(SRC, TGT, tgt_is_causal=True), module(SRC, TGT, tgt_mask=triangle))


def test_custom_stacks_are_called_and_drawn_anew():
    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = np.zeros((8, 8), np.float32)

        def forward(self, src, mask=None, src_key_padding_mask=None, is_causal=None):
            return src @ self.weight

    module = make(custom_encoder=Double())
    assert module.encoder.weight.any()
    assert_same_bits(module(SRC, TGT), module.decoder(TGT, SRC @ module.encoder.weight))
    with pytest.raises(TypeError, match="custom_decoder is of type int, expected a module"):
        make(custom_decoder=3)


def stack_of(kind, layer, batch_first):
    return kind(layer(8, 2, 12, batch_first=batch_first), 1)


@pytest.mark.parametrize("batch_first", [False, True])
def test_custom_stacks_have_the_transformers_batch_first(batch_first):
    """torch takes the batch for the length without a word."""
    encoder, wrong = (
        stack_of(nn.TransformerEncoder, nn.TransformerEncoderLayer, x) for x in (batch_first, not batch_first)
    )
    decoder = stack_of(nn.TransformerDecoder, nn.TransformerDecoderLayer, not batch_first)
    alike = nn.Transformer(**SMALL, batch_first=batch_first, custom_encoder=encoder)
    assert alike.encoder is encoder
    message = f"has batch_first={not batch_first}, expected {batch_first} as the Transformer: it would"
    with pytest.raises(ValueError, match=f"^custom_encoder {message}"):
        nn.Transformer(**SMALL, batch_first=batch_first, custom_encoder=wrong)
    with pytest.raises(ValueError, match=f"^custom_decoder {message}"):
        nn.Transformer(**SMALL, batch_first=batch_first, custom_decoder=decoder)
    with pytest.raises(ValueError, match=f"^decoder {message}"):
        nn.Transformer.from_stacks(encoder, decoder, d_model=8, nhead=2, batch_first=batch_first)


@for_each(
    ("stacks", "options", "message"),
    [
        ((3, None), {}, "^encoder is of type int, expected a module of pyattn.nn"),
        (
            (nn.Dropout(), nn.Dropout),
            {},
            "^decoder is the class Dropout, expected a module of pyattn.nn: call it, to ma",
        ),
        ((nn.Dropout(), nn.Dropout()), {"batch_first": "yes"}, "^batch_first is of type str, expected True or False"),
        ((nn.Dropout(), nn.Dropout()), {"nhead": None}, "^nhead is of type NoneType, expected an int"),
    ],
)
def test_mistakes_of_from_stacks_are_named(stacks, options, message):
    with pytest.raises(TypeError, match=message):
        nn.Transformer.from_stacks(*stacks, **{"d_model": 8, "nhead": 2, **options})


def test_state_goes_there_and_back():
    module = make()
    other = nn.Transformer(**SMALL, batch_first=True, rng=1).eval()
    assert not np.array_equal(other(SRC, TGT), module(SRC, TGT))
    other.load_state_dict(module.state_dict(), strict=True)
    again = nn.Transformer.from_stacks(module.encoder, module.decoder, d_model=8, nhead=2, batch_first=True).eval()
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module)), again):
        assert_same_bits(twin(SRC, TGT), module(SRC, TGT))


def test_dropouts_numbers_are_drawn_once():
    module = make(dropout=0.0).train()
    for layer in (*module.encoder.layers, *module.decoder.layers):
        layer.self_attn.dropout = 0.5
    first = module(SRC, TGT, rng=0)
    assert_same_bits(module(SRC, TGT, rng=0), first)
    assert not np.array_equal(module(SRC, TGT, rng=1), first)


@for_each(
    ("inputs", "options", "error", "message"),
    [
        ((SRC[..., :7], TGT), {}, ValueError, r"src has shape \(3, 7, 7\), expected \(N, L, 8\)"),
        (
            (SRC, TGT[:2]),
            {},
            ValueError,
            r"memory has shape \(3, 7, 8\), expected \(2, S, 8\): tgt has shape \(2, 5, 8\)",
        ),
        ((SRC, TGT.astype("f8")), {}, TypeError, "tgt has dtype float64, expected float32"),
        ((SRC, TGT), {"memory_mask": np.ones((7, 5), bool)}, ValueError, r"memory_mask has shape \(7, 5\), expected"),
        (
            (SRC, TGT),
            {"tgt_mask": np.ones((7, 7), bool)},
            ValueError,
            r"tgt_mask has shape \(7, 7\), expected \(5, 5\)",
        ),
        ((SRC, TGT), {"tgt_is_causal": "yes"}, TypeError, "tgt_is_causal is of type str, expected True or False"),
    ],
)
def test_mistakes_of_a_call_are_named(inputs, options, error, message):
    with pytest.raises(error, match=message):
        make()(*inputs, **options)


@for_each(
    ("arguments", "error", "message"),
    [
        ({"d_model": 9}, ValueError, "d_model is 9 and nhead is 2, expected a multiple"),
        ({"num_encoder_layers": 0}, ValueError, "num_layers is 0, expected 1 or more"),
        ({"batch_first": 0}, TypeError, "batch_first is of type int, expected True or False"),
        ({"activation": "swish"}, ValueError, "activation is 'swish'; it must be 'relu'"),
    ],
)
def test_mistakes_of_the_constructor_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


@for_each(
    ("size", "dtype", "error", "message"),
    [
        (-1, "f4", ValueError, "sz is -1, expected 0 or more"),
        (2.0, "f4", TypeError, "sz is of type float"),
        (2, int, TypeError, "dtype is <class 'int'>"),
    ],
)
def test_mistakes_of_the_mask_are_named(size, dtype, error, message):
    with pytest.raises(error, match=message):
        nn.Transformer.generate_square_subsequent_mask(size, dtype)

"""nn.Transformer: its encoder, then its decoder; torch's first numbers, state and mask."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from helpers import assert_same_bits

from pyattn import nn

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


@pytest.mark.peers
@pytest.mark.parametrize("seed", range(24))
def test_equals_torch(seed, dtype, torch):
    """Layers and stacks are drawn in test_transformer.py: here, what holds them together."""
    rng = np.random.default_rng([13, seed])
    flags = {name: bool(rng.integers(2)) for name in ("batch_first", "norm_first", "bias")}
    options = {**SMALL, **flags, "activation": str(rng.choice(["relu", "gelu"])), "layer_norm_eps": 1e-3}
    ours = nn.Transformer(**options, dtype=dtype, rng=seed).eval()
    for array in ours.parameters():
        array += 0.2 * rng.standard_normal(array.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of why there are to be no nested tensors
        theirs = torch.nn.Transformer(**options, dtype=getattr(torch, dtype)).eval()
    theirs.load_state_dict({key: torch.from_numpy(array) for key, array in ours.state_dict().items()}, strict=True)
    inputs = [np.ascontiguousarray(x if flags["batch_first"] else x.swapaxes(0, 1), dtype) for x in (SRC, TGT)]
    masks = {"src_mask": np.eye(7, k=2, dtype=bool), "tgt_mask": ours.generate_square_subsequent_mask(5, dtype)}
    masks |= {"memory_mask": rng.random((6, 5, 7)) < 0.2, "src_key_padding_mask": PADDING}
    masks |= {"memory_key_padding_mask": PADDING[::-1].copy(), "tgt_key_padding_mask": np.arange(5) > [[4], [2], [3]]}
    masks = {name: mask for name, mask in masks.items() if rng.integers(2)}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # masks of both kinds are deprecated there
        given = {name: torch.from_numpy(mask) for name, mask in masks.items()}
        expected = theirs(*map(torch.from_numpy, inputs), **given).numpy()
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(ours(*inputs, **masks), expected, rtol=0, atol=tolerance, err_msg=str((options, masks)))


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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"d_model": 9}, ValueError, "d_model is 9 and nhead is 2, expected a multiple"),
        ({"num_encoder_layers": 0}, ValueError, "num_layers is 0, expected 1 or more"),
        ({"batch_first": 0}, TypeError, "batch_first is of type int, expected True or False"),
        ({"activation": "swish"}, ValueError, "activation is 'swish', expected one of 'relu'"),
    ],
)
def test_mistakes_of_the_constructor_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        make(**arguments)


@pytest.mark.parametrize(
    ("size", "dtype", "error", "message"),
    [
        (-1, "f4", ValueError, "sz is -1, expected 0 or more"),
        (2.0, "f4", TypeError, "sz is of type float"),
        (2, int, TypeError, "dtype is int64"),
    ],
)
def test_mistakes_of_the_mask_are_named(size, dtype, error, message):
    with pytest.raises(error, match=message):
        nn.Transformer.generate_square_subsequent_mask(size, dtype)

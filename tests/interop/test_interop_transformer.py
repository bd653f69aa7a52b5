"""pyattn.interop.torch: norms, layers, stacks and Transformers to torch and back, copied and shared."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn
from pyattn.interop.torch import from_torch, to_torch

pytestmark = pytest.mark.peers

RNG = np.random.default_rng(0)
X, MEMORY = (RNG.standard_normal((3, n, 8)).astype("f4") for n in (5, 7))
PADDING = np.arange(5) >= np.array([[5], [2], [4]])
LAYER = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "batch_first": True}
KINDS = {
    "LayerNorm": lambda nn: nn.LayerNorm((5, 8), 1e-3),
    "LayerNorm, no bias": lambda nn: nn.LayerNorm(8, bias=False),
    "LayerNorm, not affine": lambda nn: nn.LayerNorm(8, elementwise_affine=False),
    "RMSNorm": lambda nn: nn.RMSNorm(8),
    "encoder layer": lambda nn: nn.TransformerEncoderLayer(**LAYER, dropout=0.3, activation="gelu", norm_first=True),
    "encoder layer, no bias": lambda nn: nn.TransformerEncoderLayer(**LAYER, bias=False, layer_norm_eps=1e-3),
    "decoder layer": lambda nn: nn.TransformerDecoderLayer(**LAYER),
    "encoder": lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER), 2, nn.LayerNorm(8)),
    "encoder, plain": lambda nn: nn.TransformerEncoder(nn.TransformerEncoderLayer(**LAYER), 2, None, False, False),
    "decoder": lambda nn: nn.TransformerDecoder(nn.TransformerDecoderLayer(**LAYER), 2),
    "Transformer": lambda nn: nn.Transformer(8, 2, 2, 1, 12, batch_first=True),
}


class Unhashable:
    """A callable without a hash, as instances of dataclasses are."""

    __hash__ = None

    def __call__(self, x):
        return x


def inputs_of(kind):
    if "ecoder" in kind or kind == "Transformer":
        return [X, MEMORY], {}
    return [X], ({"src_key_padding_mask": PADDING} if kind.startswith("encoder") else {})


def perturbed(module, torch):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return module.eval()


def call(theirs, torch, inputs, masks):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return theirs(*map(torch.from_numpy, inputs), **{k: torch.from_numpy(x) for k, x in masks.items()}).numpy()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_to_torch_and_back(kind, share, torch):
    torch.manual_seed(0)
    theirs = perturbed(KINDS[kind](torch.nn), torch)
    inputs, masks = inputs_of(kind)
    ours = pyattn.interop.torch.from_torch(theirs, share=share)
    assert type(ours) is getattr(nn, type(theirs).__name__)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    expected = call(theirs, torch, inputs, masks)
    np.testing.assert_allclose(ours(*inputs, **masks), expected, rtol=0, atol=1e-5)
    back = pyattn.interop.torch.to_torch(ours, share=share)
    assert type(back) is type(theirs)
    assert repr(back) == repr(theirs)
    assert not back.training
    np.testing.assert_array_equal(call(back, torch, inputs, masks), expected)
    for key, tensor in theirs.state_dict().items():
        assert (back.state_dict()[key].data_ptr() == tensor.data_ptr()) == share
        assert np.shares_memory(ours.state_dict()[key], tensor.numpy()) == share
    again = pyattn.interop.torch.from_torch(back)
    assert repr(again) == repr(ours)
    assert_same_bits(again(*inputs, **masks), ours(*inputs, **masks))


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_of_parts_is_converted_too(mode, torch):
    theirs = torch.nn.TransformerEncoderLayer(**LAYER).train(not mode)
    theirs.train(mode)
    ours = pyattn.interop.torch.from_torch(theirs)
    assert {module.training for module in ours.modules()} == {mode}
    assert {module.training for module in pyattn.interop.torch.to_torch(ours).modules()} == {mode}


def test_every_activation_is_converted(torch):
    functions = torch.nn.functional
    pairs = [(functions.relu, "relu"), (torch.nn.ReLU(), "relu"), (functions.gelu, "gelu"), (torch.nn.GELU(), "gelu")]
    pairs += [(functions.silu, "silu"), (torch.nn.SiLU(), "silu"), (torch.nn.GELU(approximate="tanh"), "gelu_tanh")]
    for theirs, name in pairs:
        layer = torch.nn.TransformerEncoderLayer(**LAYER, activation=theirs)
        assert pyattn.interop.torch.from_torch(layer).activation == name
    tanh = functools.partial(pyattn.functional.gelu, approximate="tanh")
    x = torch.linspace(-3, 3, 7)
    for ours, name in [
        (pyattn.functional.gelu, "gelu"),
        (pyattn.functional.silu, "silu"),
        (tanh, "gelu_tanh"),
        ("relu", "relu"),
    ]:
        back = pyattn.interop.torch.to_torch(nn.TransformerDecoderLayer(**LAYER, activation=ours))
        expected = nn.feed_forward._FUNCTIONS[name](x.numpy())
        np.testing.assert_allclose(back.activation(x).numpy(), expected, rtol=0, atol=1e-6)


def test_unknown_activations_and_dropouts_are_refused(torch):
    layer = torch.nn.TransformerEncoderLayer(**LAYER, activation=torch.tanh)
    with pytest.raises(TypeError, match=r"module has the activation .*tanh.*; from_torch converts relu, gelu and silu"):
        pyattn.interop.torch.from_torch(layer)
    with pytest.raises(TypeError, match=r"module has the activation .*, which torch does not have"):
        pyattn.interop.torch.to_torch(nn.TransformerEncoderLayer(**LAYER, activation=np.tanh))
    layer = torch.nn.TransformerEncoderLayer(**LAYER, activation=Unhashable())
    with pytest.raises(TypeError, match=r"module has the activation .*Unhashable.*; from_torch converts"):
        pyattn.interop.torch.from_torch(layer)
    layer = torch.nn.TransformerEncoderLayer(**LAYER)
    layer.dropout1.p = 0.5
    with pytest.raises(ValueError, match=r"module has dropouts of \[0.1, 0.5\], but a layer"):
        pyattn.interop.torch.from_torch(layer)


def layer_with(kind="TransformerEncoderLayer", batch_first=True, **others):
    parts = {"self_attn": nn.MultiheadAttention(8, 2, batch_first=batch_first, rng=1)}
    parts |= {"linear1": nn.Linear(8, 12, rng=2), "linear2": nn.Linear(12, 8, rng=3)}
    parts |= {"norm1": nn.LayerNorm(8), "norm2": nn.LayerNorm(8)}
    if kind == "TransformerDecoderLayer":
        parts |= {"multihead_attn": nn.MultiheadAttention(8, 2, batch_first=True, rng=4), "norm3": nn.LayerNorm(8)}
    options = {name: others.pop(name) for name in ("activation", "norm_first") if name in others}
    return getattr(nn, kind).from_parts(parts | others, **options).eval()


@pytest.mark.parametrize("kind", ["TransformerEncoderLayer", "TransformerDecoderLayer"])
def test_a_gate_is_not_dropped(kind, torch):
    layer = layer_with(kind, gate=nn.Linear(8, 12, rng=5), activation="silu")
    for module in (layer, getattr(nn, kind.removesuffix("Layer")).from_layers([layer])):
        with pytest.raises(ValueError, match=f"^module has a gate, which torch.nn.{kind} does not have"):
            to_torch(module)


RMS = {"norm1": nn.RMSNorm(8), "norm2": nn.RMSNorm(8)}
NOT_ON_THE_FAST_PATH = {
    "norms other than LayerNorm": RMS,
    "norms of several axes": {"norm1": nn.LayerNorm((5, 8))},
    "parts without a bias": {"linear1": nn.Linear(8, 12, bias=False)},
    "parts without a bias beside": {"norm2": nn.LayerNorm(8, elementwise_affine=False)},
    "add_bias_kv or add_zero_attn": {"self_attn": nn.MultiheadAttention(8, 2, add_zero_attn=True, batch_first=True)},
}


@for_each("what", NOT_ON_THE_FAST_PATH)
def test_layers_that_the_fast_path_does_not_support_are_refused(what, torch):
    layer, mha = layer_with(**NOT_ON_THE_FAST_PATH[what]), torch.backends.mha
    with pytest.raises(ValueError, match=rf"^module has {what}.*; .*mha.set_fastpath_enabled\(False\)$"):
        to_torch(layer)
    mha.set_fastpath_enabled(False)
    try:
        np.testing.assert_allclose(call(to_torch(layer), torch, [X], {}), layer(X), rtol=0, atol=1e-5)
    finally:
        mha.set_fastpath_enabled(True)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": False, **RMS},
        {"activation": "silu", **RMS},
        {"activation": "gelu_tanh", **NOT_ON_THE_FAST_PATH["parts without a bias"]},
        {"norm1": nn.RMSNorm(8, 1e-3), "norm2": nn.RMSNorm(8)},
        {"self_attn": nn.MultiheadAttention(8, 2, bias=False, batch_first=True), "norm_first": True, **RMS},
        {"self_attn": nn.MultiheadAttention(8, 1, add_zero_attn=True, batch_first=True)},
        {"kind": "TransformerDecoderLayer", "norm3": nn.RMSNorm(8), **RMS},
    ],
    ids=lambda options: ", ".join(options),
)
def test_layers_without_a_fast_path_are_converted(options, torch):
    layer = layer_with(**options)
    inputs = [X, MEMORY] if "kind" in options else [X]
    inputs = inputs if layer.batch_first else [np.ascontiguousarray(x.swapaxes(0, 1)) for x in inputs]
    np.testing.assert_allclose(call(to_torch(layer), torch, inputs, {}), layer(*inputs), rtol=0, atol=1e-5)


def test_a_subclass_with_the_same_forward_is_converted(torch):
    class Norm(torch.nn.RMSNorm):
        pass

    assert isinstance(from_torch(Norm(4, eps=1e-5)), nn.RMSNorm)


def test_a_layer_with_another_computation_is_refused(torch):
    class Layer(torch.nn.TransformerEncoderLayer):
        def _ff_block(self, x):
            return x * 0

    with pytest.raises(TypeError, match="module is of type Layer"):
        from_torch(Layer(8, 2, 16))


def test_parts_keep_their_modes_and_activations_come_back(torch):
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation="gelu_tanh", rng=0).train()
    layer.self_attn.eval()
    theirs = to_torch(layer)
    assert theirs.training
    assert not theirs.self_attn.training
    back = from_torch(theirs)
    assert back.activation == "gelu_tanh"
    assert back.training
    assert not back.self_attn.training

"""Modules with half precision: float32 arithmetic and results, rounded for an input in half precision."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
from support.halves import HALVES, assert_rounded, single
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import nn

MODULES = {
    "linear": lambda **k: nn.Linear(16, 8, **k),
    "layer norm": lambda dtype, rng: nn.LayerNorm(16, dtype=dtype),
    "rms norm": lambda dtype, rng: nn.RMSNorm(16, dtype=dtype),
    "feed-forward": lambda **k: nn.FeedForward(16, 32, gated=True, **k),
    "another activation": lambda **k: nn.FeedForward(16, 32, activation=np.tanh, **k),
    "multi-head": lambda **k: nn.MultiheadAttention(16, 4, batch_first=True, num_kv_heads=2, **k),
    "multi-head, extra keys": lambda **k: nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=True, **k),
    "self-attention": lambda **k: nn.SelfAttention(16, 8, **k),
    "encoder layer": lambda **k: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True, **k),
    "a layer in parts": lambda **k: nn.TransformerEncoderLayer(16, 4, 32, activation=np.tanh, batch_first=True, **k),
    "decoder layer": lambda **k: nn.TransformerDecoderLayer(16, 4, 32, batch_first=True, **k),
    "encoder": lambda **k: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **k), 2, norm=nn.LayerNorm(16, dtype=k["dtype"])
    ),
    "transformer": lambda **k: nn.Transformer(16, 4, 1, 1, 32, batch_first=True, **k),
    "positions": lambda **k: nn.PositionalEncoding(16, 20, batch_first=True, **k),
    "learned positions": lambda **k: nn.PositionalEncoding(16, 20, batch_first=True, learned=True, **k),
    "rotary": lambda dtype, rng: nn.RotaryEmbedding(16),
}
TAKES = {"multi-head": 3, "multi-head, extra keys": 3, "decoder layer": 2, "transformer": 2}

pytestmark = pytest.mark.parametrize("kind", HALVES)


@for_each("name", MODULES)
def test_weights_and_inputs(name, kind):
    half = HALVES[kind]
    module = MODULES[name](dtype=half, rng=0).eval()
    inputs = [normal(2, 7, 16, seed=n).astype(half) for n in range(TAKES.get(name, 1))]
    wide = copy.deepcopy(module).to(np.float32)
    expected = wide(*map(single, inputs))
    assert_same_bits(module(*map(single, inputs)), expected)
    for one in (module, wide):
        assert_rounded(one(*inputs), expected, kind)
    if list(module.parameters()):
        assert (module.dtype, wide.dtype) == (half, np.float32)


class Parts(nn.Module):
    """A user's module, whose results are in a dict."""

    def forward(self, x):
        return {"sum": x + x, "all": [x, None, np.arange(3)]}


def test_results_of_other_classes(kind):
    x = normal(5, 16).astype(HALVES[kind])
    attention = nn.SelfAttention(16, 8, dtype=kind, rng=0)
    found, expected = attention(x, need_weights=True), attention(single(x), need_weights=True)
    assert_rounded(found, expected, kind)
    assert_rounded(found.output, expected.output, kind)
    assert_rounded(found.weights, expected.weights, kind)
    parts = Parts()(x)
    assert parts["sum"].dtype == parts["all"][0].dtype == HALVES[kind]
    assert parts["all"][1] is None
    assert parts["all"][2].dtype == np.int64


TOKEN_MODELS = {
    "language model": lambda **k: nn.TransformerLM(30, 16, 4, 2, 32, **k),
    "sequence to sequence": lambda **k: nn.Seq2SeqTransformer(30, 30, 16, 4, 1, 1, 32, **k),
    "length first": lambda **k: nn.TransformerLM(30, 16, 4, 2, 32, batch_first=False, **k),
}


class HalfEmbedding(nn.Module):
    """Whose results are halves, as no module of pyattn has them."""

    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, ids):
        return self.weight[ids]


@for_each("learned", [False, True])
@for_each("own", [False, True])
@for_each("name", TOKEN_MODELS)
def test_token_models(name, own, learned, kind):
    """They start from ids, and give float32, with a cache, too."""
    model = TOKEN_MODELS[name](learned_positions=learned, dtype=kind, rng=0).eval()
    assert model.dtype == HALVES[kind]
    if own:
        part = "tgt_embedding" if model.is_encoder_decoder else "embedding"
        setattr(model, part, HalfEmbedding(getattr(model, part).weight))
    wide, ids = copy.deepcopy(model).float(), np.array([[1, 2, 3, 4]])
    ids = ids if model.batch_first else ids.T
    memory = {}
    for one in (model, wide):
        inputs = (ids, ids) if one.is_encoder_decoder else (ids,)
        memory[one] = {"memory_cache": one.encode_memory(ids)} if one.is_encoder_decoder else {}
        assert one(*inputs).dtype == np.float32
    assert_same_bits(*(one(*inputs) for one in (model, wide)))
    for dtype in (None, kind):
        steps = [one.decode_step(ids, one.new_cache(dtype=dtype), **memory[one]).logits for one in (model, wide)]
        assert_same_bits(*steps)
    if name == "language model":
        assert model.new_cache().dtype == np.float32
        assert model.new_cache(dtype=kind).dtype == model.encoder.new_cache(dtype=kind).dtype == HALVES[kind]
        found, expected = (pyattn.generate(one, ids, max_new_tokens=5) for one in (model, wide))
        assert_same_bits(found.sequences[0], expected.sequences[0])


def test_vectors_of_ids_are_float32(kind):
    embedding = nn.Embedding(5, 3, dtype=kind, rng=0)
    assert_same_bits(embedding([1, 2]), single(embedding.weight)[1:3])
    with pytest.raises(TypeError, match=rf"^input has dtype {kind}, expected integers"):
        embedding(np.ones(2, HALVES[kind]))
    with pytest.raises(TypeError, match=rf"^input has dtype {kind}, expected integers"):
        TOKEN_MODELS["language model"](rng=0)(np.ones((1, 2), HALVES[kind]))


def test_weights_in_lists_are_rounded(kind):
    encoder = MODULES["encoder"](dtype=np.float32, rng=0).eval()
    decoder = nn.TransformerDecoder(MODULES["decoder layer"](dtype=np.float32, rng=0), 2).eval()
    x, y = (normal(2, n, 16, seed=n).astype(HALVES[kind]) for n in (7, 5))
    assert_rounded(encoder(x, need_weights=True), encoder(single(x), need_weights=True), kind)
    assert_rounded(decoder(x, y, need_weights=True), decoder(single(x), single(y), need_weights=True), kind)
    steps = [encoder.decode_step(one, encoder.new_cache(2), need_weights=True) for one in (x, single(x))]
    assert_rounded(*steps, kind)


class Mixing(nn.Module):
    """Of a number and an array, with a matrix."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, rng=0)

    def forward(self, scale, x):
        return self.linear(x) * scale


def test_the_first_parameter_decides(kind):
    """Whatever the order of keywords; a number or a mask does not count."""
    half, layer = HALVES[kind], MODULES["decoder layer"](dtype=np.float32, rng=0).eval()
    x, y = normal(2, 7, 16), normal(2, 5, 16, seed=1)
    assert layer(memory=y.astype(half), tgt=x).dtype == layer(tgt=x, memory=y.astype(half)).dtype == np.float32
    assert layer(memory=y, tgt=x.astype(half)).dtype == layer(tgt=x.astype(half), memory=y).dtype == half
    transformer = MODULES["transformer"](dtype=np.float32, rng=0).eval()
    assert_same_bits(transformer(x, y.astype(half)), transformer(x, single(y.astype(half))))
    assert transformer(tgt=y, src=x.astype(half)).dtype == half
    mixing, rows = Mixing(), normal(3, 4)
    for scale in (half.type(2), np.array(2, half)):
        assert mixing(scale, rows).dtype == mixing(x=rows, scale=scale).dtype == np.float32
    attention = MODULES["multi-head"](dtype=np.float32, rng=0)
    given = {"key_padding_mask": np.zeros((2, 7), half), "key": x, "value": x}
    assert attention(**given, query=x)[0].dtype == np.float32


def test_masks_of_halves(kind):
    """Of either kind, whatever the inputs are."""
    module, x = MODULES["multi-head"](dtype=np.float32, rng=0).eval(), normal(2, 7, 16)
    bias = np.where(np.tri(7), normal(7, 7, seed=1), -np.inf).astype(HALVES[kind])
    padding = np.where(np.arange(7) < [[7], [4]], 0, -np.inf).astype(HALVES[kind])
    expected = module(x, x, x, single(padding), attn_mask=single(bias))
    assert_same_bits(module(x, x, x, padding, attn_mask=bias), expected)
    for other, half in HALVES.items():
        rounded = x.astype(half)
        wide = module(*[single(rounded)] * 3, single(padding), attn_mask=single(bias))
        assert_rounded(module(*[rounded] * 3, padding, attn_mask=bias), wide, other)


def test_float16_and_bfloat16_do_not_meet(kind):
    half, name = HALVES[kind], "bfloat16" if kind == "float16" else "float16"
    x, y = normal(2, 7, 16).astype(half), normal(2, 7, 16).astype(HALVES[name])
    attention, decoder = (MODULES[one](dtype=np.float32, rng=0).eval() for one in ("multi-head", "decoder layer"))
    for call, about in {
        lambda: attention(x, y, x): f"query has dtype {kind} and key {name}",
        lambda: attention(key=single(x), value=y, query=x): f"value has dtype {name} and query {kind}",
        lambda: attention(single(x), x, y): f"key has dtype {kind} and value {name}",
        lambda: decoder(x, y): f"tgt has dtype {kind} and memory {name}",
        lambda: nn.Linear(16, 3, dtype=name)(x): f"x has dtype {kind} and weight {name}",
        lambda: nn.SelfAttention(16, 3, dtype=name)(x): f"x has dtype {kind} and w_query {name}",
        lambda: MODULES["decoder layer"](dtype=HALVES[name], rng=0)(
            single(x), x
        ): f"memory has dtype {kind} and the module's weights {name}",
        lambda: nn.SelfAttention(16, 3)(single(x), context=x, attn_mask=y[0, :7, :7]): None,
    }.items():
        if about is None:
            call()
            continue
        with pytest.raises(TypeError, match=f"^{about}; convert one of them, or both to float32$"):
            call()


class Several(nn.Module):
    """A user's module of any number of inputs."""

    def forward(self, first, *others, scale=1, **more):
        return first


def test_inputs_of_any_number_are_named(kind):
    half, name = np.ones(3, HALVES[kind]), "bfloat16" if kind == "float16" else "float16"
    other = half.astype(HALVES[name])
    assert Several()(half, half, scale=2, last=half).dtype == half.dtype
    for others, named, about in (
        ((half, other), {}, "others[1]"),
        ((half,), {"scale": other}, "scale"),
        ((), {"last": other}, "last"),
    ):
        with pytest.raises(TypeError, match=f"^{re.escape(f'first has dtype {kind} and {about} {name}')}; convert"):
            Several()(half, *others, **named)


def test_messages_are_those_of_float32(kind):
    """With the argument's name, and what the method takes."""
    module = MODULES["multi-head"](dtype=np.float32, rng=0)
    for x in (normal(2, 7, 16), normal(2, 7, 16).astype(HALVES[kind])):
        for call, message in {
            lambda x=x: module(np.ma.masked_array(x), x, x): "query is a masked array",
            lambda x=x: module(x): r"MultiheadAttention.forward\(\) is called without key, value; for self-attention",
            lambda x=x: module(x, x, x, mask=x): r"MultiheadAttention.forward\(\) got an unexpected .*; did you mean",
            lambda x=x: module.decode_step(
                x
            ): r"MultiheadAttention.decode_step\(\) is called without cache; it takes x",
            lambda x=x: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2), 1).decode_step(
                x, past=1
            ): r"TransformerEncoder.decode_step\(\) got an unexpected keyword argument 'past'; it takes x, cache,",
            lambda x=x: module.decode_step(
                x, pyattn.KVCache(1, 2, 4, batch_size=2, dtype=np.float64)
            ): "cache has dtype float64, expected float32, in which the module computes; make it with",
        }.items():
            with pytest.raises(TypeError, match=f"^{message}"):
                call()
    double = MODULES["multi-head"](dtype=np.float64, rng=0)
    with pytest.raises(TypeError, match=rf"^x has dtype {kind}, expected float64 as the module's weights; pass"):
        double.decode_step(x, pyattn.KVCache(1, 2, 4, batch_size=2, dtype=np.float64))


@pytest.mark.filterwarnings("error")
def test_rounding_never_complains(kind):
    """Whatever the caller's errstate is: too large is infinity, too small is 0."""
    half, large, small = HALVES[kind], np.float32(3e38), np.float32(1e-45)
    with np.errstate(all="raise"):
        module = nn.Linear(2, 2, bias=False)
        nn.init.constant_(module.weight, float(large))
        module.weight[0] = small
        one, state = nn.Linear(2, 2, bias=False, dtype=half, rng=0), module.state_dict()
        one.load_state_dict(state)
        values = one.weight.copy()
        assert_same_bits(module.to(kind).weight.view(np.uint16), values.view(np.uint16))
        nn.init.constant_(one.weight, 1e300)
        assert np.isinf(one.weight.astype(np.float32)).all()
        scaled = nn.Linear.from_arrays(np.full((1, 1), large))
        assert scaled(np.array([1e4], half)).astype(np.float32) == np.inf
        tiny = np.full((1, 3), np.finfo(np.float16).smallest_subnormal, half)
        assert pyattn.functional.topk(tiny, 2).values.dtype == half


@for_each("halves", ["weight", "bias"])
def test_float32_and_one_half_mix(halves, kind):
    """Matrices of one and vectors of the other, as published files have them."""
    half = HALVES[kind]
    for name in ("linear", "multi-head", "encoder layer", "a layer in parts", "decoder layer", "encoder"):
        module = MODULES[name](dtype=half, rng=0).eval()
        wide, inputs = copy.deepcopy(module).float(), [normal(2, 7, 16, seed=n) for n in range(TAKES.get(name, 1))]
        for part in module.modules():
            for parameter, array in list(part.__dict__.items()):
                if isinstance(array, np.ndarray) and halves not in parameter:
                    setattr(part, parameter, single(array))
        assert module.dtype is None
        assert_same_bits(module(*inputs), wide(*inputs))
        rounded = [x.astype(half) for x in inputs]
        assert_rounded(module(*rounded), wide(*map(single, rounded)), kind)
    arrays = nn.MultiheadAttention(16, 4, rng=0).state_dict()
    arrays = {name: x.astype(half) if halves in name else x for name, x in arrays.items()}
    assert nn.MultiheadAttention.from_arrays(arrays, 4).state_dict().keys() == arrays.keys()
    weight, bias = np.ones((2, 3), half), np.ones(2, np.float32)
    assert_same_bits(nn.Linear.from_arrays(weight, bias)(np.ones(3, np.float32)), np.full(2, 4, np.float32))
    other = next(dtype for dtype in HALVES.values() if dtype != half)
    for wrong, message in (
        (bias.astype(other), f"weight has dtype {half} and bias {other}; convert one of them"),
        (bias.astype(np.float64), f"bias has dtype float64, expected {half} as weight$"),
    ):
        with pytest.raises(TypeError, match=f"^{message}"):
            nn.Linear.from_arrays(weight, wrong)
    linear = nn.Linear.from_arrays(weight)
    linear.register_parameter("bias", bias.astype(np.float64))
    place = {"float16": "numpy.float16", "bfloat16": "ml_dtypes.bfloat16"}[kind]
    with pytest.raises(TypeError, match=rf"^bias has dtype float64, expected {kind} as .*bias.astype\({place}\), or"):
        linear(np.ones(3, half))


def test_rotary_writes_into_out(kind):
    module, x = nn.RotaryEmbedding(16), normal(2, 7, 16).astype(HALVES[kind])
    expected = module(single(x))
    assert module(x, out=x) is x
    assert_rounded(x, expected, kind)


def test_tables_and_masks_of_a_dtype(kind):
    table = nn.PositionalEncoding(16, learned=True, dtype=kind, rng=0)
    assert table.rows(3).dtype == nn.PositionalEncoding(16).rows(3, dtype=kind).dtype == HALVES[kind]
    mask = nn.Transformer.generate_square_subsequent_mask(3, kind)
    assert_rounded(mask, nn.Transformer.generate_square_subsequent_mask(3), kind)


def test_steps_of_halves(kind):
    """decode_step and attend_memory round like a call; a half cache rounds keys and values besides."""
    half = HALVES[kind]
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dtype=half, rng=0).eval()
    x = normal(1, 5, 16).astype(half)
    caches = [pyattn.KVCache(1, 4, 4) for _ in range(2)]
    wide, rounded = (layer.decode_step(one, cache) for one, cache in zip((single(x), x), caches, strict=True))
    assert_rounded(rounded.output, wide.output, kind)
    part, cache = layer.self_attn, pyattn.KVCache(1, 4, 4, dtype=half)
    part.encode_memory(x, cache)
    assert_rounded(part.attend_memory(x, cache)[0], part.attend_memory(single(x), cache)[0], kind)


def test_constructors_round_what_they_draw(kind):
    half = HALVES[kind]
    drawn, wide = (nn.MultiheadAttention(8, 2, dtype=dtype, rng=3) for dtype in (half, np.float64))
    for one, other in zip(drawn.parameters(), wide.parameters(), strict=True):
        assert one.dtype == half
        assert_same_bits(one.view(np.uint16), other.astype(half).view(np.uint16))
    assert wide.to(kind).dtype == getattr(nn.Linear(2, 2), {"float16": "half"}.get(kind, kind))().dtype == half


def test_states(kind):
    half = HALVES[kind]
    module, other = nn.Linear(5, 3, dtype=half, rng=0), nn.Linear(5, 3, rng=1)
    other.load_state_dict(module.state_dict())
    assert_same_bits(other.weight, single(module.weight))
    module.load_state_dict(nn.Linear(5, 3, rng=1).state_dict())
    assert module.dtype == half
    module.weight = np.ones((3, 5), half)
    assert "weight" in module.state_dict()
    with pytest.raises(TypeError, match=rf"x has dtype float64, expected float32 or {kind} as the module's weights"):
        module(np.ones(5))
    with pytest.raises(TypeError, match=rf"x has dtype {kind}, expected float64 as the module's weights"):
        nn.Linear(5, 3, dtype=np.float64)(np.ones(5, half))

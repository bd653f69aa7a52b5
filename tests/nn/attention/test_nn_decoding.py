"""Modules and a KVCache: tokens that come a few at a time give the bits of all at once."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support.cached_layers import HEADS, LENGTH, ROTARIES, E, N, drawn, layer_of, new_cache
from support.caches import page_addresses
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, nn

KINDS = ["encoder", "decoder"]
every_kind = pytest.mark.parametrize("kind", KINDS)
CHUNKS = {"one by one": [1] * LENGTH, "a prompt": [70] + [1] * 13, "pages": [64, 19], "anyhow": [3, 1, 60, 2, 17]}


def whole(layer, kind, x, memory):
    return layer(x, is_causal=True) if kind == "encoder" else layer(x, memory, tgt_is_causal=True)


def memory_of(layer, kind, memory):
    if kind == "encoder":
        return {}
    cache = new_cache(layer.multihead_attn.num_kv_heads, memory.dtype)
    layer.multihead_attn.encode_memory(memory, cache)
    return {"memory_cache": cache}


def stepped(step, x, chunks):
    """The outputs of all steps, one behind the other."""
    ends = np.cumsum(chunks)
    return np.concatenate([step(x[:, end - n : end])[0] for n, end in zip(chunks, ends, strict=True)], 1)


# The bits of all tokens at once


@for_each("chunks", CHUNKS)
@for_each("rotary", ROTARIES)
@pytest.mark.parametrize("kv_heads", [HEADS, 1])
def test_attention_token_by_token(chunks, rotary, kv_heads, dtype, level):
    attention = drawn(
        nn.MultiheadAttention(E, HEADS, batch_first=True, num_kv_heads=kv_heads, rotary=ROTARIES[rotary], dtype=dtype)
    )
    x, cache = normal(N, LENGTH, E, dtype=dtype), new_cache(kv_heads, dtype)
    expected, _ = attention(x, x, x, need_weights=False, is_causal=True)
    assert_same_bits(stepped(lambda part: attention.decode_step(part, cache), x, CHUNKS[chunks]), expected)
    assert cache.lengths.tolist() == [LENGTH] * N


@every_kind
@pytest.mark.parametrize("norm_first", [False, True])
@for_each("gated", [False, True])
@for_each("known", [True, False])
def test_a_layer_token_by_token(kind, norm_first, gated, known, dtype, level):
    activation = "silu" if known else lambda x: np.tanh(x)
    rotary = ROTARIES["halves"]
    layer = layer_of(
        kind, dtype=dtype, rotary=rotary, kv_heads=2, gated=gated, activation=activation, norm_first=norm_first
    )
    x, memory, cache = normal(N, LENGTH, E, dtype=dtype), normal(N, 9, E, dtype=dtype, seed=1), new_cache(2, dtype)
    options = memory_of(layer, kind, memory)
    actual = stepped(lambda part: layer.decode_step(part, cache, **options), x, CHUNKS["anyhow"])
    assert_same_bits(actual, whole(layer, kind, x, memory))


@pytest.fixture
def two_threads():
    pyattn.set_num_threads(2)
    yield
    pyattn.set_num_threads(None)


@every_kind
@pytest.mark.usefixtures("two_threads")
def test_a_long_prompt_is_no_group_of_its_own(kind):
    """A layer does a batch of so many rows in groups; a cache, of tokens or of memory, is for all of it."""
    layer = layer_of(kind)
    x, memory, cache = normal(N, 1600, E), normal(N, 9, E, seed=1), new_cache()
    expected = whole(layer, kind, x, memory)
    assert_same_bits(layer.decode_step(x, cache, **memory_of(layer, kind, memory)).output, expected)


@every_kind
def test_a_stack_token_by_token(kind, level):
    x, memory = normal(N, LENGTH, E), normal(N, 9, E, seed=1)
    norm = drawn(nn.LayerNorm(E), 3)
    stack = (nn.TransformerEncoder if kind == "encoder" else nn.TransformerDecoder)(layer_of(kind), 3, norm).eval()
    for n, layer in enumerate(stack.layers):
        drawn(layer, 10 + n)
    cache = stack.new_cache(N)
    options = {} if kind == "encoder" else {"memory_cache": stack.encode_memory(memory)}
    actual = stepped(lambda part: stack.decode_step(part, cache, **options), x, CHUNKS["a prompt"])
    assert_same_bits(actual, whole(stack, kind, x, memory) if kind == "decoder" else stack(x, is_causal=True))
    assert cache.num_layers == 3


@every_kind
def test_a_stack_in_training_drops_by_one_generator(kind):
    x, memory = normal(N, 9, E), normal(N, 9, E, seed=1)
    stack = (nn.TransformerEncoder if kind == "encoder" else nn.TransformerDecoder)(layer_of(kind), 2).train()
    for attention in (module for module in stack.modules() if isinstance(module, nn.MultiheadAttention)):
        attention.dropout = 0.5
    options = {} if kind == "encoder" else {"memory_cache": stack.encode_memory(memory)}
    step = functools.partial(stack.decode_step, x, **options)
    expected = stack(x, is_causal=True, rng=7) if kind == "encoder" else stack(x, memory, tgt_is_causal=True, rng=7)
    assert_same_bits(step(stack.new_cache(N), rng=7).output, expected)
    assert not np.array_equal(step(stack.new_cache(N), rng=8).output, expected)
    assert not np.array_equal(step(stack.new_cache(N)).output, step(stack.new_cache(N)).output)


@every_kind
def test_batch_entries_have_lengths_of_their_own(kind, level):
    layer = layer_of(kind, rotary=ROTARIES["halves"])
    x, memory, cache = normal(N, LENGTH, E), normal(N, 9, E, seed=1), new_cache()
    options = memory_of(layer, kind, memory)
    expected = whole(layer, kind, x, memory)
    lengths = [70, 33]
    y = layer.decode_step(x[:, :70], cache, lengths=lengths, **options).output
    for b, length in enumerate(lengths):
        assert_same_bits(y[b, :length], expected[b, :length])
    for n in range(10):
        at = [length + n for length in lengths]
        y = layer.decode_step(x[range(N), at][:, None], cache, **options).output
        assert_same_bits(y[:, 0], expected[range(N), at])
    assert cache.lengths.tolist() == [80, 43]


def test_batch_first_or_not():
    one, other = layer_of("encoder"), layer_of("encoder")
    other.self_attn.batch_first = False
    x, cache = normal(N, 5, E), new_cache()
    assert_same_bits(other.decode_step(x.swapaxes(0, 1), cache).output.swapaxes(0, 1), one(x, is_causal=True))


def test_weights_are_those_of_all_at_once():
    layer = layer_of("decoder")
    x, memory, cache = normal(N, 7, E), normal(N, 9, E, seed=1), new_cache()
    _, own, cross = layer(x, memory, tgt_is_causal=True, need_weights=True)
    options = memory_of(layer, "decoder", memory)
    layer.decode_step(x[:, :4], cache, **options)
    result = layer.decode_step(x[:, 4:], cache, need_weights=True, **options)
    assert_same_bits(result.self_weights, own[:, :, 4:])
    assert_same_bits(result.cross_weights, cross[:, :, 4:])


def test_a_memory_may_be_padded():
    attention = drawn(nn.MultiheadAttention(E, HEADS, batch_first=True, kdim=20, vdim=20))
    x, memory, cache = normal(N, 5, E), normal(N, 90, 20, seed=1), new_cache()
    attention.encode_memory(memory, cache, lengths=[90, 13])
    expected = attention(x, memory, memory, key_lengths=[90, 13])
    for actual, wanted in zip(attention.attend_memory(x, cache, need_weights=True), expected, strict=True):
        assert_same_bits(actual, wanted)
    assert cache.lengths.tolist() == [90, 13]


@pytest.mark.parametrize("window", [0, 5, 100])
def test_a_window_of_the_cache(window, level):
    attention = drawn(nn.MultiheadAttention(E, HEADS, batch_first=True))
    x, cache = normal(N, 300, E), new_cache(window=window)
    expected, _ = attention(x, x, x, need_weights=False, is_causal=True, window=(window, None))
    assert_same_bits(stepped(lambda part: attention.decode_step(part, cache), x, [100] + [1] * 200), expected)
    assert cache.start(0) == max(0, 299 - window) // 64 * 64


def test_masks_are_about_what_the_cache_holds():
    attention = drawn(nn.MultiheadAttention(E, HEADS, batch_first=True))
    x, cache = normal(N, 8, E), new_cache()
    mask, padding = np.random.default_rng(3).standard_normal((8, 8)), np.zeros((N, 8), bool)
    padding[1, 2:4] = True
    expected, _ = attention(x, x, x, padding, False, mask, is_causal=True)
    attention.decode_step(x[:, :5], cache)
    actual, _ = attention.decode_step(x[:, 5:], cache, attn_mask=mask[5:], key_padding_mask=padding)
    assert_same_bits(actual, expected[:, 5:])


def test_memory_may_have_heads_of_its_own():
    layer = layer_of("decoder")
    layer.multihead_attn = drawn(nn.MultiheadAttention(E, HEADS, batch_first=True, num_kv_heads=1))
    decoder = nn.TransformerDecoder(layer, 2).eval()
    x, memory = normal(N, 5, E), normal(N, 9, E, seed=1)
    actual = decoder.decode_step(x, decoder.new_cache(N), memory_cache=decoder.encode_memory(memory)).output
    assert_same_bits(actual, decoder(x, memory, tgt_is_causal=True))


def test_a_memory_that_turns_is_not_left_unturned():
    """The core's layer turns its own tokens alone."""
    layer = layer_of("decoder")
    x, memory = normal(N, 5, E), normal(N, 9, E, seed=1)
    plain = layer(x, memory)
    layer.multihead_attn.rotary = ROTARIES["halves"]
    turned_too = layer(x, memory)
    assert abs(turned_too - plain).max() > 1e-3
    layer.activation = lambda x: pyattn.functional.gelu(x)
    assert_same_bits(layer(x, memory), turned_too)


def test_frequencies_that_depend_on_the_length_see_no_padding():
    rotary = nn.RotaryEmbedding(8, scaling={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=2)
    attention = drawn(nn.MultiheadAttention(E, HEADS, batch_first=True, rotary=rotary))
    x = normal(N, 6, E)
    padded, _ = attention.decode_step(x, new_cache(), lengths=[4, 4])
    assert_same_bits(padded[:, :4], attention.decode_step(x[:, :4], new_cache())[0])
    some, all_of_them = (attention(x[:, :n], x, x, need_weights=False)[0] for n in (3, 6))
    assert_same_bits(some, all_of_them[:, :3])


# Against formulas


def turned(x, positions, pairs):
    """Halves turn, written out: (L, dim) in float64."""
    angles = np.outer(positions, 10000.0 ** (-np.arange(pairs) / pairs))
    a, b = x[:, :pairs], x[:, pairs : 2 * pairs]
    return np.hstack([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)])


def test_rotary_attention_is_the_formula(level):
    attention = drawn(
        nn.MultiheadAttention(E, 1, batch_first=True, bias=False, rotary=nn.RotaryEmbedding(E), dtype="float64")
    )
    x = normal(12, E, dtype="float64")
    q, k, v = np.split(x @ attention.in_proj_weight.T, 3, axis=1)
    q, k = (turned(part, range(12), E // 2) for part in (q, k))
    weights = np.exp(q @ k.T / E**0.5)
    weights /= weights.sum(1, keepdims=True)
    actual, found = attention(x, x, x)
    np.testing.assert_allclose(found, weights, rtol=1e-12)
    np.testing.assert_allclose(actual, weights @ v @ attention.out_proj.weight.T, rtol=1e-11, atol=1e-13)


@pytest.mark.peers
def test_a_gated_layer_with_rms_norms_is_torchs_composition(torch):
    layer = layer_of("encoder", dtype="float64", gated=True, activation="silu", norm_first=True)
    x = normal(N, 7, E, dtype="float64")
    weights = {name: torch.from_numpy(array) for name, array in layer.state_dict().items()}

    def norm(y, name):
        return torch.nn.functional.rms_norm(y, (E,), weights[f"{name}.weight"], 1e-6)

    def linear(y, name):
        return torch.nn.functional.linear(y, weights[f"{name}.weight"], weights[f"{name}.bias"])

    theirs = torch.nn.MultiheadAttention(E, HEADS, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict({k.removeprefix("self_attn."): v for k, v in weights.items() if k.startswith("self_attn.")})
    y = torch.from_numpy(x)
    y = y + theirs(*[norm(y, "norm1")] * 3, need_weights=False)[0]
    z = norm(y, "norm2")
    y = y + linear(torch.nn.functional.silu(linear(z, "gate")) * linear(z, "linear1"), "linear2")
    np.testing.assert_allclose(layer(x), y.detach().numpy(), rtol=1e-11, atol=1e-12)


# One call, and all or nothing


@every_kind
@pytest.mark.parametrize("gated", [False, True])
def test_a_step_is_one_call(kind, gated, monkeypatch):
    called = []
    for name in ("layer", "multi_head", "normalize", "linear", "append_to_pages", "paged_attention"):
        core = getattr(_core, name)
        monkeypatch.setattr(
            _core, name, functools.partial(lambda n, f, *a, **o: called.append(n) or f(*a, **o), name, core)
        )
    layer = layer_of(kind, gated=gated, activation="silu", rotary=ROTARIES["halves"])
    options = memory_of(layer, kind, normal(N, 9, E, seed=1))
    called.clear()
    cache = new_cache()
    layer.decode_step(normal(N, 3, E), cache, **options)
    assert called == ["layer"]


@pytest.mark.parametrize("known", [True, False])
def test_a_step_that_fails_leaves_the_cache_as_it_was(known):
    def fails(x):
        if failing:
            raise KeyboardInterrupt
        return x

    failing = False
    stack = nn.TransformerEncoder(layer_of("encoder", activation="gelu" if known else fails), 2).eval()
    if known:
        stack.norm = drawn(nn.LayerNorm(E))
        stack.norm.forward = fails
    x, cache = normal(N, 9, E), stack.new_cache(N)
    expected = stack(x, is_causal=True)
    stack.decode_step(x[:, :6], cache)
    failing = True
    with pytest.raises(KeyboardInterrupt):
        stack.decode_step(x[:, 6:], cache)
    assert [layer.lengths for layer in cache._layers] == [(6, 6)] * 2
    failing = False
    assert_same_bits(stack.decode_step(x[:, 6:], cache).output, expected[:, 6:])


def test_steps_move_no_page():
    stack = nn.TransformerEncoder(layer_of("encoder"), 2).eval()
    x, cache = normal(N, LENGTH, E), stack.new_cache(N)
    stack.decode_step(x[:, :3], cache)
    before = page_addresses(cache)
    for n in range(3, LENGTH):
        stack.decode_step(x[:, n : n + 1], cache)
    keys, values = np.split(np.array(page_addresses(cache)), 2)
    assert [keys[0], values[0]] == before
    assert len(keys) == 2


def test_a_fork_of_the_cache_goes_on_by_itself():
    layer = layer_of("encoder")
    x, cache = normal(N, 9, E), new_cache()
    layer.decode_step(x[:, :6], cache)
    before = cache.to_arrays(0)
    beams = cache.fork(3)
    y = layer.decode_step(np.repeat(x[:, 6:], 3, 0), beams).output
    assert_same_bits(y, np.repeat(layer(x, is_causal=True)[:, 6:], 3, 0))
    assert_same_bits(cache.to_arrays(0)[0], before[0])

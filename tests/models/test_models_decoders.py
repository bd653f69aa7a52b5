"""GPT-2, Llama and Mistral against Hugging Face's transformers, from files that it writes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.helpers import assert_same_bits
from support.rope_scalings import LLAMA3, LONGROPE, YARN

import pyattn
from pyattn import models, nn
from pyattn.generation import CachedDecoding, UncachedDecoding
from pyattn.models.gpt2 import GPT2
from pyattn.models.llama import Llama

pytestmark = pytest.mark.peers

WORDS, LENGTH = 60, 37
USUAL = 0.02  # the initializer_range of all of them
PADDING = 1  # 0 does for false in transformers, whose beams then end in the end symbol

SMALL_GPT2 = {"vocab_size": WORDS, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}
SMALL_LLAMA = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 24,
}


def rope(**parameters):
    return {"rope_parameters": {"rope_theta": 10000.0, **parameters}}


def cut(scaling, pairs, **more):
    """A published scaling for small heads and short sequences."""
    short = {name: value[:pairs] if isinstance(value, list) else value for name, value in scaling.items()}
    return rope(**short | more)


# Name: transformers' class, its configuration, ours.
MODELS = {
    "gpt2": ("GPT2LMHeadModel", SMALL_GPT2),
    "gpt2, relu": ("GPT2LMHeadModel", SMALL_GPT2 | {"activation_function": "relu", "n_inner": 20}),
    "gpt2, gelu": ("GPT2LMHeadModel", SMALL_GPT2 | {"activation_function": "gelu", "layer_norm_epsilon": 1e-3}),
    "gpt2, tanh": ("GPT2LMHeadModel", SMALL_GPT2 | {"activation_function": "tanh"}),
    "gpt2, silu": ("GPT2LMHeadModel", SMALL_GPT2 | {"activation_function": "silu", "n_head": 1}),
    "gpt2, a head of its own": ("GPT2LMHeadModel", SMALL_GPT2 | {"tie_word_embeddings": False}),
    "llama": ("LlamaForCausalLM", SMALL_LLAMA),
    "llama, one head for all": ("LlamaForCausalLM", SMALL_LLAMA | {"num_key_value_heads": 1}),
    "llama, no groups": ("LlamaForCausalLM", SMALL_LLAMA | {"num_key_value_heads": 4}),
    "llama, head_dim": ("LlamaForCausalLM", SMALL_LLAMA | {"head_dim": 20}),
    "llama, biases": ("LlamaForCausalLM", SMALL_LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("LlamaForCausalLM", SMALL_LLAMA | {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama, gelu": ("LlamaForCausalLM", SMALL_LLAMA | {"hidden_act": "gelu"}),
    "llama, theta": ("LlamaForCausalLM", SMALL_LLAMA | {"rope_parameters": {"rope_theta": 500.0}}),
    "llama, linear": ("LlamaForCausalLM", SMALL_LLAMA | rope(rope_type="linear", factor=4.0)),
    "llama, dynamic": ("LlamaForCausalLM", SMALL_LLAMA | rope(rope_type="dynamic", factor=3.0)),
    "llama, yarn": ("LlamaForCausalLM", SMALL_LLAMA | cut(YARN, 4, factor=4.0, original_max_position_embeddings=12)),
    "llama, longrope": ("LlamaForCausalLM", SMALL_LLAMA | cut(LONGROPE, 4, original_max_position_embeddings=12)),
    "llama, llama3": ("LlamaForCausalLM", SMALL_LLAMA | cut(LLAMA3, 4, original_max_position_embeddings=12)),
    "mistral": ("MistralForCausalLM", SMALL_LLAMA | {"sliding_window": None}),
    "mistral, a window": ("MistralForCausalLM", SMALL_LLAMA | {"sliding_window": 7}),
    "mistral, a window of two": ("MistralForCausalLM", SMALL_LLAMA | {"sliding_window": 2}),
    "mistral, a wide window": ("MistralForCausalLM", SMALL_LLAMA | {"sliding_window": 100}),
}
# Keys that were turned for another length stay as they are: with a cache these differ, here as there.
LENGTH_MATTERS = ("llama, dynamic", "llama, longrope")
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def loaded(transformers, torch, tmp_path_factory):
    """Makes both, the same, of files that transformers has written; each pair once."""
    made = {}

    def load(name, dtype="float32", scale=0.3):
        if (name, dtype, scale) not in made:
            kind, settings = MODELS[name]
            model_class = getattr(transformers, kind)
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of configurations that are small on purpose
                config = model_class.config_class(**settings, initializer_range=scale, bos_token_id=1, eos_token_id=2)
                theirs = model_class._from_config(config, attn_implementation="eager")
                with torch.no_grad():
                    for parameter in theirs.parameters():
                        if parameter.ndim == 1 and scale != USUAL:
                            parameter += 0.3 * torch.randn_like(parameter)
                theirs = theirs.to(getattr(torch, dtype)).eval()
                folder = tmp_path_factory.mktemp("model")
                theirs.save_pretrained(folder)
            made[name, dtype, scale] = theirs, models.load(folder)
        return made[name, dtype, scale]

    return load


def bound(name, dtype="float32"):
    """As the issue asks, on numbers near 1; transformers' Llama normalises and weighs in float32, always."""
    return 1e-11 if dtype == "float64" and name.startswith("gpt2") else 1e-5


def assert_near(actual, expected, most):
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=0, atol=most * scale)


@every_model
def test_all_that_a_model_gives(name, dtype, loaded, torch):
    theirs, ours = loaded(name, dtype)
    ids = np.random.default_rng(0).integers(0, WORDS, (2, LENGTH))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), output_hidden_states=True, output_attentions=True)
    found = ours(ids, need_weights=True, need_hidden_states=True)
    assert found.logits.dtype == dtype
    assert_near(found.logits, expected.logits.numpy(), bound(name, dtype))
    assert_near(found.last_hidden_state, expected.hidden_states[-1].numpy(), bound(name, dtype))
    for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert_near(one, other.numpy(), bound(name, dtype))
    for one, other in zip(found.attentions, expected.attentions, strict=True):
        assert_near(one, other.numpy(), bound(name, dtype))
    plain = ours(ids)
    assert_same_bits(plain.logits, found.logits)
    assert plain.hidden_states is plain.attentions is None
    assert not ours.training
    assert ours.missing_keys == ours.unexpected_keys == []


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_new_model_is_transformers_within_the_bar_as_it_is(name, loaded, torch):
    """With the weights that transformers draws: each number as it is, not in parts of the largest."""
    theirs, ours = loaded(name, scale=USUAL)
    assert type(theirs.config)().initializer_range == USUAL
    ids = np.random.default_rng(0).integers(0, WORDS, (2, LENGTH))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), output_hidden_states=True)
    found = ours(ids, need_hidden_states=True)
    pairs = zip([*found.hidden_states, found.logits], [*expected.hidden_states, expected.logits], strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=1e-5)


@every_model
def test_padding(name, loaded, torch):
    theirs, ours = loaded(name)
    rng = np.random.default_rng(1)
    ids, lengths = rng.integers(0, WORDS, (3, 20)), np.array([20, 9, 1])
    mask = (np.arange(20) < lengths[:, None]).astype(np.int64)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).logits.numpy()
    found = ours(ids, mask).logits
    assert_near(found[mask == 1], expected[mask == 1], bound(name))
    assert_same_bits(ours(ids, lengths=lengths).logits, found)
    left = np.ascontiguousarray(mask[:, ::-1])
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), attention_mask=torch.from_numpy(left)).logits.numpy()
    assert_near(ours(ids, left.astype(bool)).logits[left == 1], expected[left == 1], bound(name))


def test_position_ids(loaded, torch):
    theirs, ours = loaded("gpt2")
    rng = np.random.default_rng(1)
    ids, positions = rng.integers(0, WORDS, (2, 9)), rng.integers(0, 64, (2, 9))
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), position_ids=torch.from_numpy(positions)).logits.numpy()
    assert_near(ours(ids, position_ids=positions).logits, expected, bound("gpt2"))


@every_model
def test_decoding_with_a_cache_has_the_bits_of_none(name, loaded, dtype):
    _, ours = loaded(name, dtype)
    rng = np.random.default_rng(2)
    longest = 6 if name in LENGTH_MATTERS else 25
    pair = [kind(ours, need_weights=True) for kind in (CachedDecoding, UncachedDecoding)]
    ids, lengths = rng.integers(0, WORDS, (3, longest)), [longest, 2, longest // 2]
    assert_same_bits(*(state.step(ids, lengths) for state in pair))
    for n in range(4):
        ids = rng.integers(0, WORDS, (3, 1))
        assert_same_bits(*(state.step(ids) for state in pair))
        if n == 1:
            for state in pair:
                state.reorder([2, 0, 0])


def test_a_window_lets_pages_go(loaded):
    _, ours = loaded("mistral, a window")
    rng = np.random.default_rng(2)
    pair = [kind(ours, need_weights=True) for kind in (CachedDecoding, UncachedDecoding)]
    for n in (150, 1, 64, 1):
        ids = rng.integers(0, WORDS, (2, n))
        assert_same_bits(*(state.step(ids) for state in pair))
    assert pair[0].cache.start(0) == 192
    with pytest.raises(ValueError, match="cache has window=None, but the model's is 6; see new_cache"):
        ours.decode_step([[1]], ours.decoder.new_cache())


# Writing


def prompts_of(rng):
    return [rng.integers(3, WORDS, n) for n in (11, 4, 7)]


def left_padded(torch, prompts):
    """As transformers wants prompts of different lengths."""
    longest = max(map(len, prompts))
    ids = np.array([[PADDING] * (longest - len(one)) + one.tolist() for one in prompts])
    mask = np.array([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    return {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}


def written(theirs, torch, prompts, **options):
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        output = theirs.generate(**left_padded(torch, prompts), pad_token_id=PADDING, **options)
    return output[:, max(map(len, prompts)) :].numpy()


def assert_written(found, expected):
    """Rows of transformers' are as long as the longest of their batch."""
    for row, length, other in zip(found.tokens, found.lengths, expected, strict=True):
        np.testing.assert_array_equal(row[:length], other[:length])
        assert (other[length:] == PADDING).all()


SEARCHES = {"greedy": {"do_sample": False}, "beams": {"do_sample": False, "num_beams": 4}}


@every_model
@pytest.mark.parametrize("search", SEARCHES)
def test_it_writes_what_transformers_writes(name, search, loaded, torch):
    theirs, ours = loaded(name)
    rng = np.random.default_rng(3)
    alone = name in LENGTH_MATTERS  # there the longest row's length counts for all, and padding counts
    for prompts in [[one] for one in prompts_of(rng)] if alone else [prompts_of(rng)]:
        options = {"max_new_tokens": 20, "eos_token_id": [2, 7, 9], **SEARCHES[search]}
        expected = written(theirs, torch, prompts, **options)
        assert_written(pyattn.generate(ours, prompts, padding_idx=PADDING, **options), expected)


# Prompts, by their seed, that models with large weights do not follow with a repetition.
VARIED = {"gpt2": 26, "llama": 17, "mistral, a window": 30}


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("search", SEARCHES)
def test_twenty_varied_tokens_are_those_of_transformers(name, search, loaded, torch):
    """Of every row: nothing ends before."""
    theirs, ours = loaded(name, scale=1.0)
    prompts = prompts_of(np.random.default_rng(VARIED[name]))
    options = {"max_new_tokens": 20, "min_new_tokens": 20, "eos_token_id": 2, **SEARCHES[search]}
    found = pyattn.generate(ours, prompts, padding_idx=PADDING, **options)
    np.testing.assert_array_equal(found.tokens, written(theirs, torch, prompts, **options))
    assert found.lengths.tolist() == [20, 20, 20]
    assert min(len(set(row)) for row in found.tokens.tolist()) >= 9


# Weights


@pytest.mark.parametrize("name", ["gpt2", "llama, tied", "llama"])
def test_weights_are_held_once(name, loaded):
    _, ours = loaded(name)
    tied = name != "llama"
    assert np.shares_memory(ours.head.weight, ours.embedding.weight) == tied
    assert not any(array.flags.writeable for array in ours.parameters())  # views of the file
    if name == "gpt2":
        blocks = [array for array in ours.decoder.layers.parameters() if array.ndim == 2]
        assert all(array.flags.f_contiguous for array in blocks)  # published as (in, out)


@pytest.mark.parametrize("name", ["gpt2", "llama, linear"])
def test_a_layer_is_one_call_of_the_core(name, loaded, monkeypatch):
    from pyattn import _core

    _, ours = loaded(name)
    calls = []
    core = _core.layer
    monkeypatch.setattr(_core, "layer", lambda *args, **kwargs: calls.append(1) or core(*args, **kwargs))
    ours([[1, 2, 3]])
    cache = ours.new_cache()
    ours.decode_step([[1, 2, 3]], cache)
    ours.decode_step([[1]], cache)
    assert len(calls) == 9


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_halves_stay_as_they_lie(name, dtype, transformers, torch, tmp_path):
    """And give the numbers of the same weights in float32."""
    kind, settings = MODELS[name]
    model_class = getattr(transformers, kind)
    theirs = model_class._from_config(model_class.config_class(**settings), attn_implementation="eager")
    theirs = theirs.to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path)
    ours, ids = models.load(tmp_path), np.arange(9)[None]
    assert {array.dtype.name for array in ours.parameters()} == {dtype}
    assert not any(array.flags.owndata or array.flags.writeable for array in ours.parameters())
    with torch.no_grad():
        expected = theirs.float().eval()(torch.from_numpy(ids)).logits.numpy()
    assert_near(ours(ids).logits, expected, bound(name))
    assert models.load(tmp_path, dtype="float64")(ids).logits.dtype == np.float64
    wide = models.load(tmp_path, dtype="float32")
    assert_same_bits(ours(ids).logits, wide(ids).logits)
    steps = [model.decode_step(ids, model.new_cache()).logits for model in (ours, wide)]
    assert_same_bits(*steps)
    found, expected = (pyattn.generate(model, ids, max_new_tokens=4).sequences for model in (ours, wide))
    assert_same_bits(found[0], expected[0])
    for parameter in theirs.to(getattr(torch, dtype)).parameters():
        parameter.data = parameter.data.float() if parameter.ndim == 1 else parameter.data
    theirs.save_pretrained(tmp_path)  # vectors of float32, as some publish them
    mixed = models.load(tmp_path)
    assert {array.dtype.name for array in mixed.parameters()} == {dtype, "float32"}
    assert_same_bits(mixed(ids).logits, wide(ids).logits)
    assert_same_bits(mixed.decode_step(ids, mixed.new_cache()).logits, steps[0])


def test_files_in_parts(transformers, torch, tmp_path):
    config = transformers.LlamaConfig(**SMALL_LLAMA)
    theirs = transformers.LlamaForCausalLM._from_config(config, attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    ids = np.arange(9)[None]
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    assert_near(models.load(tmp_path)(ids).logits, expected, bound("llama"))


def test_kinds(loaded):
    assert type(loaded("gpt2")[1]) is GPT2
    assert type(loaded("llama")[1]) is type(loaded("mistral")[1]) is Llama
    assert isinstance(loaded("llama")[1], nn.Module)

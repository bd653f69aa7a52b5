"""Files of decoders: configurations, required tensors and damage, with NumPy alone."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, tenth
from support.published_decoders import FAMILIES, GPT2, LLAMA, tensors_of, write_decoder
from test_models_fuzz import changed

import pyattn
from pyattn import models

IDS = [[3, 1, 4, 1, 5]]


def tensors(family, seed=0):
    return tensors_of(FAMILIES[family][1](), seed)


def by_hand(arrays, ids):
    """A GPT-2 in float64 NumPy, formula by formula."""
    weights = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in arrays.items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x, name):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["wte.weight"][ids] + weights["wpe.weight"][: len(ids)]
    heads, hidden = GPT2["n_head"], np.triu(np.full((len(ids),) * 2, -np.inf), 1)
    for n in range(GPT2["n_layer"]):
        q, k, v = np.split(linear(norm(x, f"h.{n}.ln_1"), f"h.{n}.attn.c_attn"), 3, axis=-1)
        q, k, v = (part.reshape(len(ids), heads, -1).swapaxes(0, 1) for part in (q, k, v))
        scores = np.exp(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + hidden)
        mixed = scores / scores.sum(-1, keepdims=True) @ v
        x = x + linear(mixed.swapaxes(0, 1).reshape(len(ids), -1), f"h.{n}.attn.c_proj")
        y = linear(norm(x, f"h.{n}.ln_2"), f"h.{n}.mlp.c_fc")
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, f"h.{n}.mlp.c_proj")
    return norm(x, "ln_f") @ weights["wte.weight"].T


def test_gpt2_is_its_formula(tmp_path):
    model = models.load(write_decoder(tmp_path, "gpt2"), dtype="float64")
    np.testing.assert_allclose(model(IDS).logits[0], by_hand(tensors("gpt2"), IDS[0]), rtol=1e-11, atol=1e-12)


# Names


@pytest.mark.parametrize("family", FAMILIES)
def test_prefixes_may_be_left_out(family, tmp_path):
    expected = models.load(write_decoder(tmp_path / "a", family))(IDS).logits
    bare = {re.sub(r"^(transformer|model)\.", "", name): array for name, array in tensors(family).items()}
    assert_same_bits(models.load(write_decoder(tmp_path / "b", family, bare))(IDS).logits, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_and_unused_tensors_are_listed(family, tmp_path):
    arrays = tensors(family)
    buffers = {"transformer.h.0.attn.bias": np.ones((1, 1, 12, 12), bool), "classifier.weight": np.ones((2, 8), "<f4")}
    model = models.load(write_decoder(tmp_path, family, arrays | buffers))
    assert model.unexpected_keys == list(buffers)
    assert model.missing_keys == []
    first = next(name for name in arrays if "h.0" in name or "layers.0" in name)
    del arrays[first]
    bare = re.sub(r"^(transformer|model)\.", "", first)
    with pytest.raises(ValueError, match=rf"does not fit .*config\.json:\n- {re.escape(bare)} is missing"):
        models.load(write_decoder(tmp_path, family, arrays))


def test_a_head_may_be_missing(tmp_path):
    arrays = tensors("llama")
    del arrays["lm_head.weight"]
    folder = write_decoder(tmp_path, "llama", arrays)
    with pytest.raises(ValueError, match=r"strict=False loads it without a head:\n- lm_head\.weight is missing$"):
        models.load(folder)
    model = models.load(folder, strict=False)
    assert model.missing_keys == ["lm_head.weight"]
    output = model(IDS)
    assert output.logits is None
    assert output.last_hidden_state.shape == (1, 5, 8)
    with pytest.raises(ValueError, match=r"the model has no head, as its files lack lm_head\.weight"):
        pyattn.generate(model, IDS, max_new_tokens=2)


TIED = {"gpt2": "transformer.wte.weight", "llama": "model.embed_tokens.weight"}


@pytest.mark.parametrize("family", FAMILIES)
def test_one_of_two_tied_weights_is_enough(family, tmp_path):
    words, arrays = TIED[family], tensors(family)
    arrays.pop("lm_head.weight", None)
    expected = models.load(write_decoder(tmp_path / "a", family, arrays, tie_word_embeddings=True))(IDS).logits
    both = arrays | {"lm_head.weight": arrays[words]}
    model = models.load(write_decoder(tmp_path / "b", family, both, tie_word_embeddings=True))
    assert np.shares_memory(model.head.weight, model.embedding.weight)
    assert model.unexpected_keys == ["lm_head.weight"]
    assert_same_bits(model(IDS).logits, expected)
    del both[words]
    model = models.load(write_decoder(tmp_path / "c", family, both, tie_word_embeddings=True))
    assert model.unexpected_keys == []
    assert_same_bits(model(IDS).logits, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_weights_that_differ_are_not_tied(family, tmp_path):
    arrays = tensors(family)
    other = arrays | {"lm_head.weight": tensors(family, 1)[TIED[family]]}
    apart = models.load(write_decoder(tmp_path / "a", family, other, tie_word_embeddings=False))(IDS).logits
    said = models.load(write_decoder(tmp_path / "b", family, other, tie_word_embeddings=True))(IDS).logits
    assert_same_bits(said, apart)


# Configurations

WRONG = {
    "gpt2": {
        "n_embd": [0, -8, 8.0, "8", True, 10**9, [8]],
        "n_layer": [0, 20_000, "2"],
        "n_head": [0, 3, "2"],
        "n_inner": [0, "2", 1.5],
        "n_positions": [0, False],
        "vocab_size": [0, 2**70],
        "activation_function": ["gelu_newer", 1, ["gelu"]],
        "layer_norm_epsilon": [-1.0, "1e-5"],
        "scale_attn_weights": [False, 2],
        "scale_attn_by_inverse_layer_idx": [True],
        "add_cross_attention": [True],
        "is_encoder_decoder": [True],
        "tie_word_embeddings": [1, "true"],
        "quantization_config": [{"bits": 4}],
        "model_type": ["gpt3", 2],
    },
    "llama": {
        "hidden_size": [0, 7, "8"],
        "num_attention_heads": [0, 3, -(10**4000)],
        "num_key_value_heads": [0, 3, 8],
        "head_dim": [0, 3, "2"],
        "intermediate_size": [0],
        "hidden_act": ["swiglu"],
        "rms_norm_eps": [-1e-6, "1e-6"],
        "attention_bias": ["yes"],
        "mlp_bias": [0],
        "rope_theta": [0.5, -1, "10000", True],
        "rope_scaling": [
            {"rope_type": "llama4", "factor": 8.0},
            {"rope_type": "x" * 10_000},
            {"rope_type": ["x"] * 10_000},
            {"rope_type": "linear", "factor": 8.0, "x" * 10_000: 1},
            {"rope_type": "linear", "factor": 8.0} | {str(n): n for n in range(10_000)},
            {"rope_type": "llama3", "original_max_position_embeddings": -(10**4000)},
            {"rope_type": "linear"},
            {"rope_type": "linear", "factor": "8"},
            {"rope_type": "linear", "factor": 0},
            {"rope_type": "linear", "factor": 8.0, "beta": 1},
            {"rope_type": ["linear"], "factor": 8.0},
            {"full_attention": {"rope_type": "linear", "factor": 8.0}},
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            [1],
            "linear",
        ],
        "partial_rotary_factor": [0.5],
        "max_position_embeddings": [0, "16"],
        "sliding_window": [4],
        "layer_types": [["full_attention"] * 2],
        "auto_map": [{"AutoModel": "x.Y"}],
    },
}


@for_each("family", WRONG)
def test_configurations_that_ask_for_something_else_are_refused(family, tmp_path):
    related = {"hidden_size": "num_attention_heads", "num_attention_heads": "num_key_value_heads", "head_dim": "rope"}
    for name, value in [(name, value) for name, values in WRONG[family].items() for value in values]:
        folder = write_decoder(tmp_path, family, **{name: value})
        with pytest.raises(ValueError, match=re.escape(str(folder / "config.json"))) as caught:
            models.load(folder)
        assert name in str(caught.value) or related.get(name, "theta is") in str(caught.value)
        assert len(str(caught.value)) < 600 + len(str(folder)), name


def test_a_mistral_has_no_biases(tmp_path):
    folder = write_decoder(tmp_path, "llama", model_type="mistral", attention_bias=True)
    with pytest.raises(ValueError, match="attention_bias is True, expected False"):
        models.load(folder)


def test_older_names_of_rotary_settings_mean_the_same(tmp_path):
    scaling = LLAMA["rope_scaling"]
    forms = [
        {},
        {"rope_parameters": scaling | {"rope_theta": 10000.0}, "rope_scaling": None, "rope_theta": None},
        {"rope_scaling": scaling | {"original_max_position_embeddings": 16}},
        {"original_max_position_embeddings": 16, "max_position_embeddings": 99},
        {"rope_scaling": {"type": "llama3"} | {name: x for name, x in scaling.items() if name != "rope_type"}},
    ]
    outputs = [models.load(write_decoder(tmp_path, "llama", **form))(IDS).logits for form in forms]
    plain = models.load(write_decoder(tmp_path, "llama", rope_scaling=None))(IDS).logits
    assert not np.array_equal(outputs[0], plain)
    for output in outputs[1:]:
        assert_same_bits(output, outputs[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_shapes_are_listed(family, tmp_path):
    folder = write_decoder(tmp_path, family, vocab_size=21)
    with pytest.raises(ValueError, match=r"has shape \(20, 8\), expected \(21, 8\)"):
        models.load(folder)


# Calls


@pytest.fixture(params=FAMILIES)
def model(request, tmp_path):
    return models.load(write_decoder(tmp_path, request.param))


CALLS = {
    "ids": (([[20]],), ValueError, "input_ids holds 20 at index (0, 0), expected 0 <= id < 20"),
    "negative": (([[1, -1]],), ValueError, "input_ids holds -1"),
    "one sequence": (([1, 2],), ValueError, "for one sequence pass [input_ids]"),
    "floats": (([[1.0]],), TypeError, "expected integers"),
    "nothing": ((np.zeros((1, 0), int),), ValueError, "at least one token"),
    "mask": (([[1, 2]], [[1]]), ValueError, "attention_mask has shape (1, 1)"),
    "mask of twos": (([[1, 2]], [[1, 2]]), ValueError, "must hold 1 = attend and 0 = padding only"),
}


def test_mistakes_are_named(model):
    for args, error, words in CALLS.values():
        with pytest.raises(error, match=re.escape(words)):
            model(*args)


def test_lengths_and_a_mask_say_the_same(model):
    with pytest.raises(ValueError, match="lengths and attention_mask are both given"):
        model([[1, 2]], [[1, 1]], lengths=[2])
    with pytest.raises(ValueError, match="lengths holds 3"):
        model([[1, 2]], lengths=[3])


def test_positions_end(tmp_path):
    model = models.load(write_decoder(tmp_path, "gpt2"))
    with pytest.raises(ValueError, match="sequences of 13 tokens, expected at most 12"):
        model(np.ones((1, 13), int))
    with pytest.raises(ValueError, match="position_ids holds 12"):
        model([[1]], position_ids=[[12]])
    cache = model.new_cache()
    model.decode_step(np.ones((1, 12), int), cache)
    with pytest.raises(ValueError, match="input makes a sequence of 13 tokens, but the model has 12 positions"):
        model.decode_step([[1]], cache)
    with pytest.raises(ValueError, match="has 12 positions"):
        pyattn.generate(model, [[1]], max_new_tokens=13)
    assert pyattn.generate(model, [[1]], max_new_tokens=12).tokens.shape == (1, 12)


def test_rotary_positions_do_not_end(tmp_path):
    model = models.load(write_decoder(tmp_path, "llama"))
    assert model.max_length is None
    assert pyattn.generate(model, [[1]], max_new_tokens=30).tokens.shape == (1, 30)


def test_padding_that_hides_all_gives_finite_numbers(model):
    assert np.isfinite(model([[1, 2]], [[0, 0]]).logits).all()


# Damage

DRAWS = tenth(1_500)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_changed_files_give_a_model_or_a_clear_error(family, name, tmp_path):
    folder = write_decoder(tmp_path, family)
    path, rng = folder / name, np.random.default_rng(0)
    content = path.read_bytes()
    head = 8 + struct.unpack("<Q", content[:8])[0] if name.endswith("tensors") else len(content)
    outcomes, messages = {"model": 0, "error": 0}, []
    for _ in range(DRAWS):
        path.write_bytes(changed(content, rng, head))
        try:
            model = models.load(folder)
        except (ValueError, OSError) as error:
            outcomes["error"] += 1
            messages.append(str(error))
        else:
            outcomes["model"] += 1
            assert model([[1]]).logits.shape[:2] == (1, 1)
    assert max(map(len, messages)) < 4000
    assert outcomes["error"] > DRAWS // 2
    assert outcomes["model"] or name != "config.json"

"""Encoders of the BERT family against transformers' own, with random weights: every layer, pooler and attention."""

from __future__ import annotations

import numpy as np
import pytest

from pyattn import models

pytestmark = pytest.mark.peers

SIZES = {"vocab_size": 60, "max_position_embeddings": 40, "type_vocab_size": 2}
BERT = {**SIZES, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 50}
MOBILE = {**BERT, "embedding_size": 10, "intra_bottleneck_size": 12, "num_hidden_layers": 2}

# What a case is called: the model of transformers, and its configuration.
CASES = {
    "bert": ("Bert", BERT),
    "bert, one layer": ("Bert", {**BERT, "num_hidden_layers": 1, "hidden_size": 6, "layer_norm_eps": 1e-3}),
    "bert, large": ("Bert", {**BERT, "hidden_size": 192, "num_attention_heads": 4, "intermediate_size": 500}),
    "bert, gelu_new": ("Bert", {**BERT, "hidden_act": "gelu_new", "type_vocab_size": 5}),
    "bert, gelu_pytorch_tanh": ("Bert", {**BERT, "hidden_act": "gelu_pytorch_tanh"}),
    "bert, relu": ("Bert", {**BERT, "hidden_act": "relu"}),
    "bert, silu": ("Bert", {**BERT, "hidden_act": "silu"}),
    "bert, swish": ("Bert", {**BERT, "hidden_act": "swish"}),
    "bert, tanh": ("Bert", {**BERT, "hidden_act": "tanh"}),
    "roberta": ("Roberta", {**BERT, "type_vocab_size": 1}),
    "roberta, padding 7": ("Roberta", {**BERT, "pad_token_id": 7}),
    "camembert": ("Camembert", {**BERT, "type_vocab_size": 1, "pad_token_id": 1}),
    "xlm-roberta": ("XLMRoberta", {**BERT, "type_vocab_size": 1, "pad_token_id": 1}),
    "distilbert": (
        "DistilBert",
        {"vocab_size": 60, "max_position_embeddings": 40, "dim": 24, "n_layers": 3, "n_heads": 2, "hidden_dim": 50},
    ),
    "distilbert, relu": (
        "DistilBert",
        {"vocab_size": 60, "max_position_embeddings": 40, "dim": 16, "n_layers": 1, "n_heads": 4, "hidden_dim": 8}
        | {"activation": "relu"},
    ),
    "albert": ("Albert", {**BERT, "embedding_size": 10, "num_hidden_layers": 4}),
    "albert, groups": ("Albert", {**BERT, "embedding_size": 24, "num_hidden_layers": 5, "num_hidden_groups": 2}),
    "albert, inner": (
        "Albert",
        {**BERT, "embedding_size": 30, "num_hidden_layers": 3, "num_hidden_groups": 3, "inner_group_num": 2},
    ),
    "mobilebert": ("MobileBert", MOBILE),
    "mobilebert, layer_norm": ("MobileBert", {**MOBILE, "normalization_type": "layer_norm", "layer_norm_eps": 1e-2}),
    "mobilebert, one network": ("MobileBert", {**MOBILE, "num_feedforward_networks": 1, "hidden_act": "gelu"}),
    "mobilebert, no trigram": ("MobileBert", {**MOBILE, "trigram_input": False}),
    "mobilebert, no mixing": ("MobileBert", {**MOBILE, "trigram_input": False, "embedding_size": 24}),
    "mobilebert, narrow attention": ("MobileBert", {**MOBILE, "use_bottleneck_attention": True}),
    "mobilebert, one way": (
        "MobileBert",
        {**MOBILE, "key_query_shared_bottleneck": False, "intra_bottleneck_size": 24},
    ),
    "mobilebert, no bottleneck": ("MobileBert", {**MOBILE, "use_bottleneck": False, "hidden_act": "tanh"}),
    "mobilebert, no activation": ("MobileBert", {**MOBILE, "classifier_activation": False}),
}

# Parts that these models have and do not compute with.
UNUSED = {"mobilebert, no mixing": "embedding_transformation", "mobilebert, narrow attention": "bottleneck.attention"}


@pytest.fixture
def make(torch, transformers, tmp_path):
    """A case's model with weights of a seed, on disk, as transformers' own and ours."""

    def made(name, seed=0, dtype="float32", perturbed=True):
        family, sizes = CASES[name]
        # Nothing is normalised in most of MobileBERT's: states would grow to 30, and rounding with them, before a tanh.
        scale = 0.5 if family == "MobileBert" else 1.0
        torch.manual_seed(seed)
        theirs = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**sizes))
        with torch.no_grad():
            for parameter in theirs.parameters() if perturbed else ():  # biases that are not 0, norms that are not 1
                if parameter.ndim == 2:
                    parameter.normal_(0, scale * parameter.shape[1] ** -0.5)
                else:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        theirs = theirs.to(getattr(torch, dtype)).eval()
        theirs.set_attn_implementation("eager")
        theirs.save_pretrained(tmp_path)
        return theirs, models.load(tmp_path)

    return made


def draw_inputs(rng, sizes, batch, length):
    """Ids, a mask with padding at the right or left of some rows and within one, and token types."""
    ids = rng.integers(0, sizes["vocab_size"], (batch, length))
    mask = np.ones((batch, length), np.int64)
    for row in range(1, batch):
        padding = rng.integers(0, length)
        mask[row, length - padding :] = 0
        if row % 3 == 2:
            mask[row] = mask[row, ::-1]
    if batch > 4 and length > 3:
        mask[4] = rng.integers(0, 2, length)
        mask[4, 1] = 1
    ids[mask == 0] = sizes.get("pad_token_id", 0)
    return ids, mask, rng.integers(0, sizes.get("type_vocab_size", 1), (batch, length))


def pairs_of(torch, theirs, ours, ids, mask, types, positions=None):
    """Masking states, pooler and attentions of both."""
    given = {"attention_mask": mask, "token_type_ids": types, "position_ids": positions}
    tensors = {name: torch.tensor(x) for name, x in given.items() if x is not None}
    with torch.no_grad():
        expected = theirs(torch.tensor(ids), **tensors, output_hidden_states=True, output_attentions=True)
    found = ours(ids, mask, types, positions, need_weights=True, need_hidden_states=True)
    pairs = [(found.last_hidden_state, expected.last_hidden_state)]
    pairs += zip(found.hidden_states, expected.hidden_states, strict=True)
    pairs += zip(found.attentions, expected.attentions, strict=True)
    pooled = getattr(expected, "pooler_output", None)
    assert (found.pooler_output is None) == (pooled is None)
    pairs += [] if pooled is None else [(found.pooler_output, pooled)]
    pairs = [(one, other.numpy()) for one, other in pairs]
    for one, other in pairs:
        assert one.shape == other.shape
        assert one.dtype == other.dtype
    return pairs


def differences(*given):
    """The largest difference, relative to the largest number of each array."""
    pairs = pairs_of(*given)
    return max(float(np.abs(one - other).max() / max(1.0, np.abs(other).max())) for one, other in pairs)


BARS = {"float32": 1e-5, "float64": 1e-13}


@pytest.mark.parametrize("name", CASES)
def test_all_states_and_weights_are_transformers(name, dtype, make, torch, summary):
    """From one token on, with padding of all kinds."""
    sizes = CASES[name][1]
    typed, worst = "type_vocab_size" in sizes, 0.0
    for seed in range(2 if dtype == "float32" else 1):
        theirs, ours = make(name, seed, dtype)
        assert ours.missing_keys == []
        assert all(UNUSED.get(name, "none") in key for key in ours.unexpected_keys)
        rng = np.random.default_rng(seed)
        for batch, length in ((1, 1), (1, 16), (5, 9), (6, 32)):
            ids, mask, types = draw_inputs(rng, sizes, batch, length)
            worst = max(worst, differences(torch, theirs, ours, ids, mask, types if typed else None))
            worst = max(worst, differences(torch, theirs, ours, ids, None, None))
    summary.setdefault("encoders, the largest difference from transformers", []).append(f"{name} {dtype}: {worst:.1e}")
    assert worst < BARS[dtype]


families = pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "albert", "mobilebert"])


@families
def test_a_new_model_is_transformers_within_the_bar_as_it_is(name, make, torch):
    """With the weights that transformers draws: absolute differences, not relative to the largest number."""
    theirs, ours = make(name, perturbed=False)
    assert theirs.config.initializer_range == 0.02
    ids, mask, _ = draw_inputs(np.random.default_rng(0), CASES[name][1], 6, 32)
    for one, other in pairs_of(torch, theirs, ours, ids, mask, None):
        np.testing.assert_allclose(one, other, rtol=0, atol=BARS["float32"])


@families
def test_given_positions_are_transformers(name, make, torch):
    theirs, ours = make(name)
    rng = np.random.default_rng(0)
    ids, positions = rng.integers(0, 60, (3, 8)), rng.integers(0, 40, (3, 8))
    assert differences(torch, theirs, ours, ids, None, None, positions) < BARS["float32"]


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Camembert", "DistilBert", "Albert", "MobileBert"])
def test_a_model_within_one_with_a_head_is_found(family, torch, transformers, tmp_path):
    """Its names have a prefix, it has no pooler, and the head is not used."""
    sizes = next(sizes for kind, sizes in CASES.values() if kind == family)
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{family}ForMaskedLM")(getattr(transformers, f"{family}Config")(**sizes)).eval()
    theirs.set_attn_implementation("eager")
    theirs.save_pretrained(tmp_path)
    ours = models.load(tmp_path)
    assert ours.pooler is None
    assert len(ours.missing_keys) == (0 if family == "DistilBert" else 2)
    assert ours.unexpected_keys
    ids, mask, _ = draw_inputs(np.random.default_rng(0), sizes, 4, 12)
    assert differences(torch, theirs.base_model, ours, ids, mask, None) < BARS["float32"]


def test_halves_stay_as_they_lie(make, torch, tmp_path):
    theirs, _ = make("bert")
    for kind in (torch.bfloat16, torch.float16):
        rounded = theirs.to(kind)
        rounded.save_pretrained(tmp_path)
        ours = models.load(tmp_path)
        assert ours.dtype.name == str(kind).removeprefix("torch.")
        ids, mask, types = draw_inputs(np.random.default_rng(0), BERT, 3, 12)
        assert differences(torch, rounded.float(), ours, ids, mask, types) < BARS["float32"]
        for parameter in theirs.to(kind).parameters():
            parameter.data = parameter.data.float() if parameter.ndim == 1 else parameter.data
        theirs.save_pretrained(tmp_path)  # vectors of float32, as some publish them
        mixed = models.load(tmp_path)
        assert {array.itemsize for array in mixed.parameters()} == {2, 4}
        assert differences(torch, theirs.float(), mixed, ids, mask, types) < BARS["float32"]


def test_parts_that_transformers_writes_are_one_model(make, torch, tmp_path):
    theirs, _ = make("bert")
    (tmp_path / "model.safetensors").unlink()
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    ids, mask, types = draw_inputs(np.random.default_rng(0), BERT, 3, 12)
    assert differences(torch, theirs, models.load(tmp_path), ids, mask, types) < BARS["float32"]

"""Calls of encoders: results, messages for mistakes, and that edited weights count."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from support.helpers import assert_same_bits
from support.published import BERT, bert_tensors, write_model

import pyattn
from pyattn import models, nn

IDS = [[3, 1, 4, 1], [5, 9, 2, 6]]
MASK = [[1, 1, 1, 1], [1, 1, 0, 0]]


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "model")


def states(model, **options):
    return model(IDS, MASK, **options).last_hidden_state


def test_outputs_that_are_not_requested_are_none(folder):
    model = models.load(folder)
    found = model(IDS, MASK)
    assert found.hidden_states is found.attentions is None
    everything = model(IDS, MASK, need_weights=True, need_hidden_states=True)
    assert len(everything.hidden_states) == 3
    assert [weights.shape for weights in everything.attentions] == [(2, 2, 4, 4)] * 2
    assert_same_bits(everything.last_hidden_state, found.last_hidden_state)
    assert_same_bits(everything.pooler_output, found.pooler_output)
    for weights in everything.attentions:
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
        assert not weights[1, :, :, 2:].any()


def test_padding_changes_no_bit_of_the_tokens_before_it(folder):
    model = models.load(folder)
    whole, alone = model(IDS, MASK), model([IDS[1][:2]])
    assert_same_bits(whole.last_hidden_state[1:, :2], alone.last_hidden_state)
    assert_same_bits(whole.pooler_output[1:], alone.pooler_output)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.float32, list])
def test_masks_of_any_kind_mean_the_same(kind, folder):
    model, expected = models.load(folder), states(models.load(folder))
    mask = MASK if kind is list else np.array(MASK, kind)
    assert_same_bits(model(IDS, mask).last_hidden_state, expected)


@pytest.mark.parametrize("heads", [True, False])
def test_a_mask_object_of_padding_means_the_same(heads, folder):
    mask = pyattn.masks.padding(np.sum(MASK, axis=1), 4, heads=heads)
    assert_same_bits(models.load(folder)(IDS, mask).last_hidden_state, states(models.load(folder)))


def test_a_sequence_of_padding_alone_attends_to_nothing(folder):
    found = models.load(folder)(IDS, [[1, 1, 1, 1], [0, 0, 0, 0]], need_weights=True)
    assert np.isfinite(found.last_hidden_state).all()
    assert not found.attentions[0][1].any()


def test_types_and_positions_may_be_given_for_all_rows_at_once(folder):
    model = models.load(folder)
    expected = model(IDS, None, [[0, 0, 1, 1]] * 2, [[3, 2, 1, 0]] * 2).last_hidden_state
    assert_same_bits(model(IDS, None, [0, 0, 1, 1], [[3, 2, 1, 0]]).last_hidden_state, expected)
    assert not np.array_equal(model(IDS).last_hidden_state, expected)
    usual = model(IDS, None, np.zeros((2, 4), int), np.arange(4)).last_hidden_state
    np.testing.assert_allclose(usual, model(IDS).last_hidden_state, rtol=0, atol=1e-6)


MISTAKES = {
    "one sequence": ({"input_ids": [1, 2]}, ValueError, r"shape \(2,\), expected \(batch, length\); for one"),
    "three axes": ({"input_ids": [[[1]]]}, ValueError, r"input_ids has shape \(1, 1, 1\)"),
    "no tokens": ({"input_ids": np.zeros((2, 0), int)}, ValueError, "expected at least one token"),
    "floats": ({"input_ids": [[1.0]]}, TypeError, "input_ids has dtype float64, expected integers"),
    "halves": ({"input_ids": np.ones((1, 4), np.float16)}, TypeError, "input_ids has dtype float16, expected integers"),
    "bools": ({"input_ids": [[True]]}, TypeError, "input_ids has dtype bool"),
    "words": ({"input_ids": [["a"]]}, TypeError, "input_ids"),
    "an id too large": (
        {"input_ids": [[1, 2], [3, 20]]},
        ValueError,
        r"input_ids holds 20 at index \(1, 1\), expected 0 <= id < 20$",
    ),
    "a negative id": ({"input_ids": [[-1]]}, ValueError, r"input_ids holds -1 at index \(0, 0\)"),
    "too long": (
        {"input_ids": [[1] * 11]},
        ValueError,
        "sequences of 11 tokens, expected at most 10: the model has 10 positions",
    ),
    "mask's shape": (
        {"attention_mask": [1, 1, 1, 1]},
        ValueError,
        r"attention_mask has shape \(4,\), expected \(2, 4\)",
    ),
    "mask's axes": ({"attention_mask": np.ones((2, 1, 4, 4))}, ValueError, r"attention_mask has shape \(2, 1, 4, 4\)"),
    "mask's numbers": (
        {"attention_mask": np.full((2, 4), -1e9)},
        ValueError,
        "attention_mask must hold 1 = attend and 0 = padding only",
    ),
    "mask's NaN": (
        {"attention_mask": np.full((2, 4), np.nan)},
        ValueError,
        "attention_mask must hold 1 = attend and 0 = padding only",
    ),
    "mask's dtype": ({"attention_mask": np.full((2, 4), "1")}, TypeError, "attention_mask"),
    "types' shape": (
        {"token_type_ids": [[0, 1]]},
        ValueError,
        r"token_type_ids has shape \(1, 2\), expected \(2, 4\) as input_ids, or \(4,\) for all",
    ),
    "a type too large": ({"token_type_ids": [0, 0, 0, 2]}, ValueError, r"token_type_ids holds 2 at index \(3,\)"),
    "types' dtype": ({"token_type_ids": [0.0] * 4}, TypeError, "token_type_ids has dtype float64"),
    "a position too large": ({"position_ids": [0, 1, 2, 10]}, ValueError, "position_ids holds 10 at index"),
    "positions' dtype": ({"position_ids": ["a"] * 4}, TypeError, "position_ids"),
    "a flag": ({"need_weights": "yes"}, TypeError, "need_weights is of type str"),
    "another flag": ({"need_hidden_states": 1}, TypeError, "need_hidden_states is of type int"),
}


def test_mistakes_are_named(folder):
    model = models.load(folder)
    for given, error, words in MISTAKES.values():
        with pytest.raises(error, match=words):
            model(**{"input_ids": IDS, **given})


def test_positions_behind_the_padding_have_an_end_of_their_own(tmp_path):
    """RoBERTa never uses the positions up to its padding id: here 2 of 10."""
    model = models.load(write_model(tmp_path / "model", {**BERT, "model_type": "roberta", "pad_token_id": 1}))
    assert model([[2] * 8 + [1] * 5]).last_hidden_state.shape == (1, 13, 8)
    with pytest.raises(ValueError, match="sequences of 9 tokens, expected at most 8"):
        model([[2] * 9])
    with pytest.raises(ValueError, match=r"sequences of 9 tokens that are not padding \(id 1\), expected at most 8"):
        model([[2] * 9 + [1]])


def test_distilbert_has_no_types(tmp_path):
    names = {
        "attention.self.query": "attention.q_lin",
        "attention.self.key": "attention.k_lin",
        "attention.self.value": "attention.v_lin",
        "attention.output.dense": "attention.out_lin",
        "attention.output.LayerNorm": "sa_layer_norm",
        "intermediate.dense": "ffn.lin1",
        "output.dense": "ffn.lin2",
        "output.LayerNorm": "output_layer_norm",
        "encoder.layer": "transformer.layer",
    }
    tensors = {}
    for name, array in bert_tensors(pooler=False).items():
        for theirs, other in names.items():
            name = name.replace(f"{theirs}.", f"{other}.")
        tensors[name.replace("embeddings.output_layer_norm", "embeddings.LayerNorm")] = array
    sizes = {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12}
    model = models.load(write_model(tmp_path / "model", {**BERT, **sizes, "model_type": "distilbert"}, tensors))
    assert model.unexpected_keys == ["embeddings.token_type_embeddings.weight"]
    assert model(IDS).pooler_output is None
    with pytest.raises(ValueError, match="token_type_ids is given, but this model has no token types; leave it out"):
        model(IDS, token_type_ids=[0] * 4)


# Weights


def test_a_layer_is_one_call_of_the_core(folder):
    model = models.load(folder)
    assert all(layer._is_one_call() for layer in model.layers)
    assert not any(module.training for module in model.modules())


def test_weights_are_held_once(folder):
    """All but the biases of queries, keys and values, which are one array."""
    model = models.load(folder)
    own = [name for name, array in model.named_parameters() if array.flags.writeable]
    assert own == [f"layers.{n}.self_attn.in_proj_bias" for n in range(2)]
    assert model.dtype == np.float32


def test_albert_shares_its_layers(tmp_path):
    """A layer that runs 12 times is one module, and its arrays are in the model once."""
    layer = "encoder.albert_layer_groups.0.albert_layers.0"
    tensors = {
        name.replace("encoder.layer.0", layer)
        .replace("attention.self.", "attention.")
        .replace("attention.output.", "attention.")
        .replace("intermediate.dense", "ffn")
        .replace("output.dense", "ffn_output")
        .replace(f"{layer}.output.LayerNorm", f"{layer}.full_layer_layer_norm")
        .replace("pooler.dense", "pooler"): array
        for name, array in bert_tensors().items()
        if "layer.1" not in name
    }
    tensors["encoder.embedding_hidden_mapping_in.weight"] = np.eye(8, dtype=np.float32)
    tensors["encoder.embedding_hidden_mapping_in.bias"] = np.zeros(8, np.float32)
    sizes = {"model_type": "albert", "embedding_size": 8, "num_hidden_layers": 12}
    model = models.load(write_model(tmp_path / "model", {**BERT, **sizes}, tensors))
    assert len(model.layers) == 12
    assert len({id(layer) for layer in model.layers}) == 1
    # tables and norm, projection, a layer of 16 published tensors whose three biases are one array, pooler
    assert len(list(model.parameters())) == 5 + 2 + (16 - 2) + 2


def test_an_edited_weight_changes_the_next_call(folder):
    model = copy.deepcopy(models.load(folder))
    before = states(model)
    for name, array in model.named_parameters():
        if name == "embeddings.types.weight":
            array = array[0]  # the only type here
        elif name in ("embeddings.words.weight", "embeddings.positions.weight"):
            array = array[1]
        elif name.endswith("in_proj_bias"):
            array = array[-8:]  # a bias of all keys changes no weight
        if name.startswith("pooler"):
            continue
        array += np.float32(0.25)
        after = states(model)
        assert not np.array_equal(after, before), name
        before = after


def test_copies_compute_the_same_and_can_be_written_to(folder):
    model = models.load(folder)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same_bits(states(other), states(model))
        assert other.unexpected_keys == model.unexpected_keys
        assert all(array.flags.writeable for array in other.parameters())
        other.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="read-only in the module; assign a copy"):
        model.load_state_dict(model.state_dict())


def test_other_dtypes_on_request(folder, tmp_path):
    model, wide = models.load(folder), models.load(folder, dtype="float64")
    assert wide.dtype == np.float64
    np.testing.assert_allclose(states(wide), states(model), rtol=0, atol=1e-5)
    assert states(wide).dtype == np.float64
    doubles = write_model(tmp_path / "doubles", BERT, bert_tensors(dtype=np.float64))
    assert models.load(doubles).dtype == np.float64
    assert models.load(doubles, dtype=np.float32).dtype == np.float32
    mixed = bert_tensors()
    mixed["pooler.dense.bias"] = mixed["pooler.dense.bias"].astype(np.float64)
    assert models.load(write_model(tmp_path / "mixed", BERT, mixed)).dtype == np.float64
    with pytest.raises(TypeError, match=r"dtype is .*, expected float16, bfloat16, float32 or float64"):
        models.load(folder, dtype=np.int8)
    with pytest.raises(TypeError, match="strict is of type int"):
        models.load(folder, strict=1)


def test_a_model_is_made_of_parts_of_any_origin():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, rng=0).eval()

    class Words(nn.Module):
        def forward(self, ids, types, positions):
            return np.ones((*np.shape(ids), 8), np.float32)

    model = models.Bert(Words(), [layer, layer])
    expected = layer(layer(np.ones((2, 4, 8), np.float32)))
    assert_same_bits(model(IDS).last_hidden_state, expected)
    assert model.config == {}

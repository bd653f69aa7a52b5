"""Models from their files: names, configurations and dtypes, and that mapped weights take no memory."""

from __future__ import annotations

import gc
import json
import os
import re

import numpy as np
import pytest
from support.helpers import EVERYTHING, assert_same_bits, run_python
from support.published import BERT, bert_tensors, bytes_of, file_of, write_model
from support.published_decoders import write_decoder
from support.published_encoders import ENCODERS, write_encoder

from benchmarks.memory import growth
from pyattn import models

IDS = [[3, 1, 4, 1], [5, 9, 2, 6]]
MASK = [[1, 1, 1, 1], [1, 1, 0, 0]]


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "model")


def states(model, **options):
    return model(IDS, MASK, **options).last_hidden_state


# Names


def test_older_names_and_a_prefix_mean_the_same(folder, tmp_path):
    def older(name):
        name = re.sub(r"(LayerNorm)\.weight", r"\1.gamma", name)
        return "bert." + re.sub(r"(LayerNorm)\.bias", r"\1.beta", name)

    renamed = {older(name): array for name, array in bert_tensors().items()}
    assert "bert.encoder.layer.1.output.LayerNorm.gamma" in renamed
    renamed["bert.embeddings.position_ids"] = np.arange(10)[np.newaxis]
    renamed["cls.predictions.bias"] = np.zeros(20, np.float32)
    other = models.load(write_model(tmp_path / "older", BERT, renamed))
    assert_same_bits(states(other), states(models.load(folder)))
    assert other.unexpected_keys == ["bert.embeddings.position_ids", "cls.predictions.bias"]
    assert other.missing_keys == []


def test_two_names_of_one_tensor_are_an_error(tmp_path):
    tensors = bert_tensors()
    tensors["bert.pooler.dense.bias"] = tensors["pooler.dense.bias"]
    folder = write_model(tmp_path / "twice", BERT, tensors)
    with pytest.raises(ValueError, match=r"has both 'pooler\.dense\.bias' and 'bert\.pooler\.dense\.bias'"):
        models.load(folder)


def test_everything_that_does_not_fit_is_listed(tmp_path):
    tensors = bert_tensors()
    del tensors["encoder.layer.1.output.dense.weight"]
    tensors["encoder.layer.0.output.dense.weight"] = np.zeros((12, 8), np.float32)
    tensors["pooler.dense.bias"] = np.zeros(8, np.int64)
    folder = write_model(tmp_path / "model", BERT, tensors)
    with pytest.raises(ValueError, match="does not fit") as caught:
        models.load(folder, strict=False)
    assert str(caught.value).splitlines()[1:] == [
        "- encoder.layer.1.output.dense.weight is missing",
        "- encoder.layer.0.output.dense.weight has shape (12, 8), expected (8, 12)",
        "- pooler.dense.bias has dtype I64, expected one of F32, F64, F16, BF16",
    ]


def test_a_long_list_ends(tmp_path):
    folder = write_model(tmp_path / "model", BERT, {"x": np.zeros(1, np.float32)})
    with pytest.raises(ValueError, match=r"- and 17 more$") as caught:
        models.load(folder)
    assert "strict=False" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 22


def test_a_pooler_is_optional(folder, tmp_path):
    """A fine-tuned token classifier has none, as BertModel(config, add_pooling_layer=False) writes it."""
    model = models.load(write_model(tmp_path / "other", BERT, bert_tensors(pooler=False)))
    assert model.missing_keys == ["pooler.dense.weight", "pooler.dense.bias"]
    assert model.pooler is None
    assert model(IDS).pooler_output is None
    assert_same_bits(states(model), states(models.load(folder)))
    half = bert_tensors()
    del half["pooler.dense.bias"]
    with pytest.raises(ValueError, match=r"- pooler\.dense\.bias is missing$"):
        models.load(write_model(tmp_path / "half", BERT, half), strict=False)


def test_every_family_is_loaded_in_evaluation_mode(tmp_path):
    folders = [write_model(tmp_path / "bert")]
    folders += [write_encoder(tmp_path / family, family) for family in ENCODERS]
    folders += [write_decoder(tmp_path / family, family) for family in ("gpt2", "llama")]
    folders += [write_decoder(tmp_path / "mistral", "llama", model_type="mistral")]
    for folder in folders:
        assert not any(module.training for module in models.load(folder).modules()), folder.name


# Configurations

WRONG = {
    "vocab_size": (["many", 0, True, 20.0, None, 10**9], "an int from 1 to 100000000"),
    "num_hidden_layers": ([0, 10_001, [2]], "an int from 1 to 10000"),
    "num_attention_heads": ([3, -2], "a divisor of 8, the size of a layer|an int from 1"),
    "layer_norm_eps": ([-1.0, "1e-5", True, 10**400], "a finite number of 0 or more"),
    "hidden_act": (["mish", None, 3], "one of 'gelu', .*'tanh'"),
    "position_embedding_type": (["relative_key", "relative_key_query", 1], "'absolute'; nothing else is supported"),
    "is_decoder": ([True], "False"),
    "add_cross_attention": ([True], "False"),
    "pruned_heads": ([{"0": [1]}], r"\{\} or \[\]"),
    "quantization_config": ([{"bits": 8}], "no value; nothing else is supported"),
    "auto_map": ([{"AutoModel": "modeling.Model"}], "no value; nothing else is supported"),
    "model_type": (["gpt", 3, None, ["bert"], "xlnet"], "one of 'bert', 'roberta'"),
}


def test_wrong_and_unknown_values_in_a_config_have_their_messages(tmp_path):
    for name, (values, expected) in WRONG.items():
        for value in [*values, "x" * 10_000, [{}] * 10_000]:
            folder = write_model(tmp_path / "model", {**BERT, name: value}, bert_tensors())
            with pytest.raises(ValueError, match=rf"config\.json: {name} is .*, expected (?:{expected})") as caught:
                models.load(folder)
            assert len(str(caught.value)) < 600 + len(str(tmp_path))


def test_missing_values_in_a_config_are_named(tmp_path):
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings"):
        config = {key: value for key, value in BERT.items() if key != name}
        folder = write_model(tmp_path / "model", config, bert_tensors())
        with pytest.raises(ValueError, match=f"{name} is missing, expected an int from 1"):
            models.load(folder)


def test_files_of_before_model_types_are_a_bert(folder):
    expected = states(models.load(folder))
    config = {key: value for key, value in BERT.items() if key not in ("model_type", "layer_norm_eps", "hidden_act")}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"model_type is missing, .* if the model is a BERT, pass model_type='bert'$"):
        models.load(folder)
    assert_same_bits(states(models.load(folder, model_type="bert")), expected)
    with pytest.raises(ValueError, match=r"^model_type is 'bart'; it must be 'bert', 'roberta'"):
        models.load(folder, model_type="bart")


def test_mobilebert_needs_a_way_for_its_queries(tmp_path):
    config = {**BERT, "model_type": "mobilebert", "key_query_shared_bottleneck": False, "intra_bottleneck_size": 4}
    with pytest.raises(ValueError, match="intra_bottleneck_size is 4, expected 8, the hidden_size"):
        models.load(write_model(tmp_path / "model", config, bert_tensors()))


def test_roberta_needs_positions_behind_its_padding(tmp_path):
    config = {**BERT, "model_type": "roberta", "pad_token_id": 9}
    with pytest.raises(ValueError, match="pad_token_id is 9, expected an int from 0 to 8"):
        models.load(write_model(tmp_path / "model", config, bert_tensors()))


def test_the_argument_model_type_does_not_change_what_config_says(folder):
    assert models.load(folder, model_type="bert").config == BERT
    with pytest.raises(ValueError, match="model_type is 'bert', expected 'roberta', the argument model_type; leave"):
        models.load(folder, model_type="roberta")


# Memory


WITHOUT = """
import sys
sys.modules["safetensors"] = sys.modules["torch"] = sys.modules["tokenizers"] = None
import pyattn
model = pyattn.models.load({folder!r})
assert model([[1, 2]]).last_hidden_state.shape == (1, 2, 8)
try:
    pyattn.models.SentenceEncoder.load({folder!r})
except ImportError as error:
    assert "pip install tokenizers" in str(error), error
"""


def test_reading_a_model_needs_numpy_alone(folder):
    run_python(WITHOUT.format(folder=str(folder)))


def test_a_large_file_is_not_read_to_be_loaded(tmp_path):
    """A vocabulary of 1 GB, a sparse file, loads at once and takes no memory."""
    words = 2**25
    config, tensors = {**BERT, "vocab_size": words}, bert_tensors()
    del tensors["embeddings.word_embeddings.weight"]
    folder = write_model(tmp_path / "model", config, tensors)
    path = folder / "model.safetensors"
    content, size = bytes_of(tensors), words * 8 * 4
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    end = sum(array.nbytes for array in tensors.values())
    header["embeddings.word_embeddings.weight"] = {
        "dtype": "F32",
        "shape": [words, 8],
        "data_offsets": [end, end + size],
    }
    start = file_of(header, b"".join(array.tobytes() for array in tensors.values()))
    with open(path, "wb") as file:
        file.write(start)
        file.truncate(len(start) + size)

    def loaded():
        state = models.load(folder)([[5, words - 1]]).last_hidden_state
        assert np.isfinite(state).all()
        return state

    assert growth(loaded) < 1e8


def test_loading_leaves_nothing_open(folder, tmp_path):
    """Neither files nor mappings, whether it works or not."""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("/proc is missing")
    wrong = write_model(tmp_path / "wrong", {**BERT, "vocab_size": 21}, bert_tensors())

    def count():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum(str(tmp_path) in line for line in maps)

    def load_and_fail():
        assert models.load(folder)(IDS).pooler_output is not None
        with pytest.raises(ValueError, match="does not fit"):
            models.load(wrong)

    load_and_fail()
    before = count()
    for _ in range(50 if EVERYTHING else 10):
        load_and_fail()
    assert count() == before
    assert before[1] == 0

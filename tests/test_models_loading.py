"""A model out of its files: names, configurations and dtypes, and that no memory is taken for what lies in a file."""

from __future__ import annotations

import gc
import json
import os
import re

import numpy as np
import pytest
from helpers import assert_same_bits, run_python
from published import BERT, bert_tensors, bytes_of, file_of, write_model

from benchmarks.memory import growth
from pyattn import models
from pyattn.models.bert import load

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
    assert other.unused_keys == ["bert.embeddings.position_ids", "cls.predictions.bias"]
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
    with pytest.raises(ValueError, match=r"- and 19 more$") as caught:
        models.load(folder)
    assert "strict=False" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 22


def test_a_pooler_is_left_out_where_that_is_allowed(folder, tmp_path):
    other = write_model(tmp_path / "other", BERT, bert_tensors(pooler=False))
    with pytest.raises(ValueError, match=r"strict=False does without:\n- pooler\.dense\.weight is missing\n"):
        models.load(other)
    model = models.load(other, strict=False)
    assert model.missing_keys == ["pooler.dense.weight", "pooler.dense.bias"]
    assert model(IDS).pooler_output is None
    half = bert_tensors()
    del half["pooler.dense.bias"]
    with pytest.raises(ValueError, match=r"- pooler\.dense\.bias is missing$"):
        models.load(write_model(tmp_path / "half", BERT, half), strict=False)


# Configurations

WRONG = {
    "vocab_size": (["many", 0, True, 20.0, None, 10**9], "an int from 1 to 100000000"),
    "num_hidden_layers": ([0, 10_001, [2]], "an int from 1 to 10000"),
    "num_attention_heads": ([3, -2], "a divisor of 8, the size of a layer|an int from 1"),
    "layer_norm_eps": ([-1.0, "1e-5", True], "a finite number of 0 or more"),
    "hidden_act": (["mish", None, 3], "one of 'gelu', .*'tanh'"),
    "position_embedding_type": (["relative_key", "relative_key_query", 1], "'absolute'; pyattn.models does not have"),
    "is_decoder": ([True], "False"),
    "add_cross_attention": ([True], "False"),
    "pruned_heads": ([{"0": [1]}], r"\{\} or \[\]"),
    "quantization_config": ([{"bits": 8}], "nothing: leave it out"),
    "auto_map": ([{"AutoModel": "modeling.Model"}], "nothing: leave it out"),
    "model_type": (["gpt", 3, None, ["bert"], "xlnet"], "one of 'bert', 'roberta'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_or_unknown_value_in_config_is_told_of(name, tmp_path):
    values, expected = WRONG[name]
    for value in values:
        folder = write_model(tmp_path / "model", {**BERT, name: value}, bert_tensors())
        with pytest.raises(ValueError, match=rf"config\.json: {name} is .*, expected (?:{expected})"):
            models.load(folder)


def test_a_value_that_is_missing_is_told_of(tmp_path):
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings"):
        config = {key: value for key, value in BERT.items() if key != name}
        folder = write_model(tmp_path / "model", config, bert_tensors())
        with pytest.raises(ValueError, match=f"{name} is not there, expected an int from 1"):
            models.load(folder)


def test_files_of_before_model_types_are_a_bert(folder):
    expected = states(models.load(folder))
    config = {key: value for key, value in BERT.items() if key not in ("model_type", "layer_norm_eps", "hidden_act")}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"model_type is not there.*pyattn\.models\.bert\.load takes it"):
        models.load(folder)
    assert_same_bits(states(load(folder)), expected)


def test_mobilebert_needs_a_way_for_its_queries(tmp_path):
    config = {**BERT, "model_type": "mobilebert", "key_query_shared_bottleneck": False, "intra_bottleneck_size": 4}
    with pytest.raises(ValueError, match="intra_bottleneck_size is 4, expected 8, the hidden_size"):
        models.load(write_model(tmp_path / "model", config, bert_tensors()))


def test_roberta_needs_positions_behind_its_padding(tmp_path):
    config = {**BERT, "model_type": "roberta", "pad_token_id": 9}
    with pytest.raises(ValueError, match="pad_token_id is 9, expected an int from 0 to 8"):
        models.load(write_model(tmp_path / "model", config, bert_tensors()))


def test_a_file_of_gpt_is_refused_by_berts_own_load(folder):
    (folder / "config.json").write_text(json.dumps({**BERT, "model_type": "gpt2"}))
    with pytest.raises(ValueError, match="model_type is 'gpt2', expected one of 'bert'"):
        load(folder)


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
    assert "pip install 'pyattn[models]'" in str(error), error
"""


def test_reading_a_model_needs_numpy_alone(folder):
    run_python(WITHOUT.format(folder=str(folder)))


def test_a_large_file_is_not_read_to_be_loaded(tmp_path):
    """1 GB of a vocabulary, which takes no place on the disk, is there at once, and takes no memory either."""
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
        pytest.skip("there is no /proc")
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
    for _ in range(50):
        load_and_fail()
    assert count() == before
    assert before[1] == 0

"""Bytes of a model's files that are changed, cut out and put in: a model all the same, or one clear error."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from support.helpers import tenth
from support.published import BERT, bert_tensors, write_model
from support.published_encoders import ENCODERS, write_encoder
from test_models_files import write_shards

from pyattn import models
from pyattn.models import EncoderOutput

DRAWS = tenth(3_000)
FILES = ("model.safetensors", "config.json", "model.safetensors.index.json")

# What random bytes seldom hit.
WORDS = (b'"', b"{", b"}", b"[", b"]", b",", b":", b"-", b"0", b"1", b"9" * 30, b"null", b"true", b"1e999", b"\\ud800")


def changed(content, rng, head):
    """One to three bytes or words changed, cut out or put in, within the first `head` bytes, or the end cut off."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(min(head, len(content)) or 1))
        kind = rng.integers(6)
        if kind == 0:
            content[place : place + 1] = bytes([rng.integers(256)])
        elif kind == 1:
            content[place : place + 1] = bytes([int(content[place]) ^ 1 << int(rng.integers(8))]) if content else b""
        elif kind == 2:
            del content[place : place + int(rng.integers(1, 9))]
        elif kind == 3:
            content[place:place] = WORDS[rng.integers(len(WORDS))]
        elif kind == 4:
            content[place : place + int(rng.integers(1, 9))] = WORDS[rng.integers(len(WORDS))]
        else:
            del content[int(rng.integers(len(content) + 1)) :]
    return bytes(content)


def load_or_message(folder):
    try:
        return models.load(folder), ""
    except (ValueError, OSError) as error:
        return None, str(error)


def outcomes_of(folder, name, draws):
    """How often a changed file gave a model, which computes, and an error."""
    path, rng = folder / name, np.random.default_rng(FILES.index(name))
    content = path.read_bytes()
    head = 8 + struct.unpack("<Q", content[:8])[0] if name == FILES[0] else len(content)
    outcomes = {"model": 0, "error": 0}
    for _ in range(draws):
        path.write_bytes(changed(content, rng, head))
        model, message = load_or_message(folder)
        if model is None:
            outcomes["error"] += 1
            assert len(message) < 4000
            message.encode()  # can be printed
        else:
            outcomes["model"] += 1
            assert isinstance(model([[1]]), EncoderOutput)
    path.write_bytes(content)
    return outcomes


@pytest.mark.parametrize("name", FILES)
def test_changed_files_give_a_model_or_a_clear_error(name, tmp_path):
    folder = write_model(tmp_path / "model")
    if name.endswith("index.json"):
        write_shards(folder, bert_tensors())
        (folder / "model.safetensors").unlink()
    outcomes = outcomes_of(folder, name, DRAWS)
    assert outcomes["error"] > DRAWS // 2
    assert outcomes["model"] or name != "config.json"


@pytest.mark.parametrize("family", ENCODERS)
def test_changed_files_of_other_families_give_a_model_or_a_clear_error(family, tmp_path):
    folder = write_encoder(tmp_path / "model", family)
    assert isinstance(models.load(folder)([[1]]), EncoderOutput)
    for name in FILES[:2]:
        outcomes = outcomes_of(folder, name, DRAWS // 10)
        assert outcomes["error"] > DRAWS // 20
        assert outcomes["model"] or name != "config.json"


LARGE = {
    "vocab_size": 10**8,
    "hidden_size": 10**8,
    "num_hidden_layers": 10_000,
    "intermediate_size": 10**8,
    "max_position_embeddings": 10**8,
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("larger", [0, 1, 10**20])
def test_large_sizes_in_a_configuration_take_no_memory(name, larger, tmp_path):
    folder = write_model(tmp_path / "model", {**BERT, name: LARGE[name] + larger}, bert_tensors())
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"does not fit|expected an int from"):
            models.load(folder)
        most = 100e6 if name == "num_hidden_layers" else 2e6  # names of a great many tensors
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()

"""`python -m pyattn accelerate`: the speed before and after, and its errors."""

from __future__ import annotations

import re

import pytest

import pyattn
from pyattn.__main__ import main

pytestmark = pytest.mark.peers


@pytest.mark.filterwarnings("ignore")
def test_a_folder_is_measured(tmp_path, capsys, monkeypatch, torch, transformers):
    monkeypatch.setattr("pyattn.interop.command.SECONDS", 0.001)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    before = torch.get_num_threads()
    try:
        assert main(["accelerate", str(tmp_path), "--batch", "2", "--length", "9", "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(before)
        pyattn.set_num_threads(None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "BertModel, 2 x 9 tokens, 1 thread"
    assert lines[1].startswith("replaced: 3 Embedding, 5 LayerNorm, 2 BertLayer")
    assert re.fullmatch(r"PyTorch [\d.]+ ms, pyattn [\d.]+ ms: [\d.]+ times as fast", lines[2])
    assert float(re.search(r"hidden states: (\S+) of", lines[-1])[1]) < 1e-5


@pytest.fixture
def fails(tmp_path, capsys):
    def check(reason, *options):
        assert main(["accelerate", str(tmp_path), *options]) == 2
        error = capsys.readouterr().err
        assert re.fullmatch(f"python -m pyattn accelerate: {reason}\n", error), error

    return check


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_loaded(tmp_path, fails, transformers):
    fails(r".* is not a folder with config\.json and weights, as save_pretrained writes them")
    sizes = {"vocab_size": 100, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(**sizes, num_hidden_layers=1, max_position_embeddings=64)
    transformers.BertModel(config).save_pretrained(tmp_path)
    fails("the model takes at most 64 tokens: pass --length 64", "--length", "65")
    (tmp_path / "model.safetensors").write_bytes(b"1234")
    fails("transformers cannot load .*: SafetensorError: .*")
    (tmp_path / "config.json").write_text("{")
    fails("transformers cannot load .*")


@pytest.mark.filterwarnings("ignore")
def test_models_of_more_than_a_text(tmp_path, fails, transformers):
    config = transformers.T5Config(vocab_size=100, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
    transformers.T5Model(config).save_pretrained(tmp_path)
    fails(r"T5Model does not take one text: time it in Python, with accelerate\(model\)")

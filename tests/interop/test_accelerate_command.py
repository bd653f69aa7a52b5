"""`python -m pyattn accelerate`: the speed before and after, and its errors."""

from __future__ import annotations

import re

import pytest

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
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "BertModel, 2 x 9 tokens, 1 thread"
    assert lines[1].startswith("replaced: 3 Embedding, 5 LayerNorm, 2 BertLayer")
    assert re.fullmatch(r"PyTorch [\d.]+ ms, pyattn [\d.]+ ms: [\d.]+ times as fast", lines[2])
    assert float(re.search(r"hidden states: (\S+) of", lines[-1])[1]) < 1e-5


def test_a_missing_folder(tmp_path, capsys, transformers):
    assert main(["accelerate", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("python -m pyattn accelerate: ")

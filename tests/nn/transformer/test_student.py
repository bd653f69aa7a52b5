"""pyattn.models.examples.student: the tiny model that comes with the package."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
from support.helpers import ROOT, assert_same_bits

import pyattn
from pyattn.models import examples

SUBJECTS = {"je suis": "I am", "tu es": "you are", "il est": "he is"}
PROFESSIONS = {"étudiant": "a student", "artiste": "an artist", "ingénieur": "an engineer"}
PROFESSIONS |= {"médecin": "a doctor", "professeur": "a teacher"}


def translate(sentences, **options):
    model, source_words, target_words = examples.student()
    source = [[source_words.index(word) for word in sentence.split()] for sentence in sentences]
    start, end = target_words.index("<s>"), target_words.index("<end>")
    return pyattn.generate(model, source, max_new_tokens=9, start_token_id=start, eos_token_id=end, **options)


def text(tokens):
    return " ".join(examples.student().target_words[token] for token in tokens)


def test_it_writes_the_sentence_of_the_articles_in_five_steps():
    steps = translate(["je suis étudiant"], return_steps=True).row_steps()
    assert [(text(step.decoder_input), text([step.token])) for step in steps] == [
        ("<s>", "I"),
        ("<s> I", "am"),
        ("<s> I am", "a"),
        ("<s> I am a", "student"),
        ("<s> I am a student", "<end>"),
    ]
    assert all(step.probability > 0.9 for step in steps)
    assert [step.cross_weights.shape for step in steps] == [(1, 2, 1, 3)] * 5


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_cache": False}])
def test_it_knows_all_its_sentences(options):
    pairs = {
        f"{one} {other}": f"{SUBJECTS[one]} {PROFESSIONS[other]} <end>" for one in SUBJECTS for other in PROFESSIONS
    }
    found = translate(pairs, **options)
    assert [text(tokens) for tokens in found.tokens] == list(pairs.values())


def test_every_call_makes_a_model_of_its_own():
    first, second = examples.student().model, examples.student().model
    assert not first.training
    first.generator.weight[:] = 0
    assert np.abs(second.generator.weight).min() > 0
    assert {array.dtype for array in second.parameters()} == {np.dtype(np.float32)}
    assert sum(array.size for array in second.parameters()) < 2000


def test_it_is_packed_with_the_package(tmp_path):
    """A few kB, which a wheel has as well."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    packed, own = tmp_path / "pyattn" / "models" / examples._WEIGHTS.name, examples._WEIGHTS
    assert packed.read_bytes() == own.read_bytes()
    assert own.stat().st_size < 16_000


@pytest.mark.peers
def test_pytorch_gives_the_same_scores(torch, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "training"))
    translator = importlib.import_module("torch_translator")
    model, source_words, target_words = examples.student()
    theirs = translator.Translator(len(source_words), len(target_words), **examples._SIZES, padding_idx=0)
    state = {name: torch.from_numpy(array) for name, array in model.state_dict().items()}
    theirs.load_state_dict(state)
    theirs.double().eval()
    rng = np.random.default_rng(0)
    src, tgt = rng.integers(1, len(source_words), (50, 5)), rng.integers(1, len(target_words), (50, 7))
    with torch.no_grad():
        exact = theirs(torch.from_numpy(src), torch.from_numpy(tgt)).numpy()
    ours = model(src, tgt)
    np.testing.assert_allclose(ours, exact, atol=1e-5 * np.abs(exact).max())
    assert_same_bits(pyattn.functional.argmax(ours), exact.argmax(-1))

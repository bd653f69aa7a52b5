"""The digit model of docs/tutorials/: its training, sequences that it never saw, and PyTorch with the same weights."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from support.helpers import ROOT

import pyattn


@pytest.fixture(scope="module")
def _examples_are_found():
    folders = [str(ROOT / "docs" / "tutorials"), str(ROOT / "tools" / "training")]
    sys.path[:0] = folders
    yield
    for folder in folders:
        sys.path.remove(folder)


@pytest.fixture(scope="module")
def digits(_examples_are_found):
    return importlib.import_module("digits")


@pytest.fixture(scope="module")
def written(digits):
    """What the model makes of the rows that were held out."""
    options = {"max_new_tokens": digits.LONGEST + 1, "start_token_id": digits.START, "eos_token_id": digits.END}
    return pyattn.generate(digits.load_model(), digits.held_out(), **options)


def test_at_least_99_percent_of_held_out_sequences_are_right(digits, written, summary):
    right = 0
    for row, tokens, length in zip(digits.held_out(), written.tokens, written.lengths, strict=True):
        source = "".join(digits.WORDS[token] for token in row if token != digits.PAD)
        expected = [digits.WORDS.index(digit) for digit in source[::-1]] + [digits.END]
        right += tokens[:length].tolist() == expected
    summary["the digit model"] = [f"{right} of {len(digits.held_out())} held-out sequences are right"]
    assert right >= 990


def test_none_of_them_was_trained_on(digits):
    """All batches once more, from the seed of the training."""
    rows = digits.held_out()
    numbers = digits.numbers_of(rows)
    assert rows.shape == (1000, 12)
    assert len(np.unique(numbers)) == len(np.unique(rows, axis=0)) == 1000
    assert set((rows != digits.PAD).sum(axis=1).tolist()) == set(range(3, 13))
    rng = np.random.default_rng(digits.TRAINING_SEED)
    for _ in range(digits.STEPS):
        batch = digits.draw_batch(rng)
        assert batch.shape == (digits.BATCH, digits.LONGEST)
        assert not np.isin(digits.numbers_of(batch), numbers).any()


def test_the_training_brings_the_loss_down(digits):
    """In its warm-up already. The program goes on to the 600 steps that gave the weights."""
    model, rng = digits.new_model(), np.random.default_rng(digits.TRAINING_SEED)
    optimizer, schedule = digits.make_optimizer(model)
    before = digits.loss_of(model, digits.held_out())
    losses = [digits.train_step(model, optimizer, schedule, digits.draw_batch(rng)) for _ in range(40)]
    after = digits.loss_of(model, digits.held_out())
    assert before > np.log(len(digits.WORDS)) > 2.2 > after
    assert abs(losses[0] - before) < 0.1 > abs(losses[-1] - after)


@pytest.mark.slow
def test_the_program_trains_a_model_as_good(digits, tmp_path, monkeypatch, capsys):
    """And writes a file that loads."""
    monkeypatch.setattr(digits, "WEIGHTS", tmp_path / "digits.npz")
    digits.main()
    assert int(capsys.readouterr().out.splitlines()[-1].split()[0]) >= 990
    assert digits.count_right(digits.load_model(), digits.held_out()) >= 990


def test_what_is_to_be_written_is_the_row_backwards(digits):
    rows = np.array([[*digits.encode("271"), 0, 0], digits.encode("31415")])
    assert [digits.decode(row) for row in digits.reverse(rows)] == ["172", "51413"]
    assert digits.reverse(rows)[0].tolist() == [*digits.encode("172"), digits.END, 0, 0]


def test_the_file_is_small(digits):
    state = pyattn.nn.load(digits.WEIGHTS)
    assert {array.dtype for array in state.values()} == {np.dtype(np.float32)}
    assert digits.WEIGHTS.stat().st_size < 200_000


@pytest.fixture(scope="module")
def translator(torch, _examples_are_found):
    return importlib.import_module("torch_translator")


@pytest.mark.slow
@pytest.mark.peers
def test_pytorch_writes_the_same(digits, written, torch, translator):
    model = translator.Translator(**digits.SIZES, padding_idx=digits.PAD)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in pyattn.nn.load(digits.WEIGHTS).items()})
    rows = torch.from_numpy(digits.held_out())
    theirs = model.write(rows, digits.START, digits.END, digits.LONGEST + 1).numpy()
    assert len(theirs) == len(written.tokens) == 1000
    for ours, length, other in zip(written.tokens, written.lengths, theirs, strict=True):
        assert ours[:length].tolist() == other[:length].tolist()


@pytest.mark.slow
@pytest.mark.peers
def test_what_trained_it_trains(digits, torch, translator, capsys):
    """Some steps, which bring the loss down, of a smaller model; its names are ours."""
    sizes = {**digits.SIZES, "num_encoder_layers": 1, "num_decoder_layers": 1}
    rows = digits.held_out()[:64]
    model = translator.Translator(**sizes, padding_idx=digits.PAD)
    translator.train(model, [(rows, digits.reverse(rows))] * 30, digits.START, 30, 1e-2)
    losses = [float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < 0.8 * losses[0]
    ours = pyattn.nn.Seq2SeqTransformer(**sizes, padding_idx=digits.PAD)
    assert ours.load_state_dict(translator.arrays_of(model)) == ([], [])

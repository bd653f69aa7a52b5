"""generate shows its work: recorded steps, a table, a callback, a progress bar."""

from __future__ import annotations

import numpy as np
import pytest
from support.decoding import CHAIN, END, LOG, TABLE, Markov
from support.helpers import assert_same_bits, run_python

import pyattn
from pyattn import nn


def test_steps_record_the_generation():
    generation = pyattn.generate(Markov(CHAIN), [[2, 3], [1]], max_new_tokens=9, eos_token_id=END, return_steps=True)
    assert len(generation.steps) == 4
    assert [step.batch_indices.tolist() for step in generation.steps] == [[0, 1], [0, 1], [1], [1]]
    rows = generation.row_steps(1)
    assert [step.decoder_input.tolist() for step in rows] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert [step.token for step in rows] == [2, 3, 4, 5]
    shares = pyattn.softmax(CHAIN[0])
    for number, step in enumerate(rows):
        assert step.number == number
        np.testing.assert_allclose(step.probability, shares[1])
        assert len(step.alternatives.indices) == 5
        assert step.token not in step.alternatives.indices
        np.testing.assert_allclose(step.alternatives.values, shares[0])
        assert step.self_weights.shape == (3, 2, 1, number + 1)
        assert (step.self_weights == number + 1).all()
        assert step.cross_weights is None
    assert generation.row_steps(0)[0].self_weights.shape == (3, 2, 2, 2)
    assert len(generation.row_steps(0)) == 2


def test_steps_of_an_encoder_decoder_have_both_weights():
    generation = pyattn.generate(
        Markov(TABLE, encodes=True), [[2, 3, 3], [1]], max_new_tokens=2, start_token_id=0, return_steps=True
    )
    assert generation.row_steps(0)[1].cross_weights.shape == (3, 2, 1, 3)
    assert generation.row_steps(1)[1].cross_weights.shape == (3, 2, 1, 1)


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"do_sample": True, "rng": 0}], ids=str)
def test_steps_lead_to_each_sequence(options):
    """Whichever beam a sequence was before, each step's input is the result of the steps before it."""
    generation = pyattn.generate(
        Markov(TABLE),
        [[3], [1, 2]],
        max_new_tokens=7,
        eos_token_id=END,
        return_steps=True,
        num_return_sequences=3,
        **options,
    )
    for row, whole in enumerate(generation.sequences):
        steps, before = generation.row_steps(row), len(generation.prompts[row])
        assert len(steps) == generation.lengths[row]
        for number, step in enumerate(steps):
            assert step.decoder_input.tolist() == whole[: before + number].tolist()
            assert step.token == whole[before + number]
            np.testing.assert_allclose(step.probability, np.exp(LOG[step.decoder_input[-1], step.token]))
            assert (step.self_weights == before + number).all()
        total = sum(np.log(step.probability) for step in steps)
        share = len(steps) if "num_beams" in options else 1
        np.testing.assert_allclose(generation.scores[row], total / share)


@pytest.mark.parametrize("seed", range(40))
def test_beams_may_stop_where_nothing_ends(seed):
    """A last step may add nothing, if finished beams beat all running ones; some of these tables have such a step."""
    table = np.random.default_rng(seed).standard_normal((6, 6)) * 3
    given = {"max_new_tokens": 8, "eos_token_id": END, "num_beams": 2, "length_penalty": 0.0}
    one = pyattn.generate(Markov(table), [[0]], **given, return_steps=True)
    two = pyattn.generate(Markov(table), [[0], [1]], **given)
    assert one.sequences[0].tolist() == two.sequences[0].tolist()
    assert len(one.row_steps()) == one.lengths[0] <= len(one.steps)


def test_recording_steps_changes_nothing():
    for options in ({}, {"num_beams": 3}, {"do_sample": True, "rng": 0}):
        given = {"max_new_tokens": 6, "eos_token_id": END, **options}
        one, other = (pyattn.generate(Markov(TABLE), [[3], [1]], **given, return_steps=keep) for keep in (False, True))
        assert one.steps is None
        assert_same_bits(one.scores, other.scores)
        assert one.tokens.tolist() == other.tokens.tolist()


def test_a_table_can_be_read():
    table = np.log(np.array([[0.25, 0.75, 1e-30], [0.125, 0.375, 0.5], [1, 1, 1]]))
    generation = pyattn.generate(Markov(table), [[0]], max_new_tokens=5, eos_token_id=2, return_steps=True)
    assert generation.table(vocabulary=["<s>", "go", "<end>"]) == (
        "step  decoder input  next token  probability  alternatives\n"
        "   1  <s>            go               0.7500  <s> 0.2500, <end> 0.0000\n"
        "   2  <s> go         <end>            0.5000  go 0.3750, <s> 0.1250"
    )
    assert str(generation).splitlines()[0] == "row 0, score -0.9808: 1 2"
    assert str(generation).endswith(generation.table())
    assert repr(generation) == "Generation(1 rows, lengths=[2], 2 steps)"
    assert generation.table(0, {0: "a", 1: "b", 2: "c"}).count(" b ") == 3
    long = pyattn.generate(Markov(CHAIN), [[0] * 60], max_new_tokens=1, return_steps=True).table()
    assert "  ...0 0 0" in long
    assert max(map(len, long.splitlines())) < 150


MISSING_WORDS = [
    (["a"], ValueError, r"^vocabulary has no word for the id \d$"),
    ({0: "a"}, ValueError, r"^vocabulary has no word for the id \d$"),
    ("abc", TypeError, "^vocabulary is of type str, expected a sequence of words or a mapping of ids to words$"),
]


def test_missing_words_are_named():
    for vocabulary, kind, message in MISSING_WORDS:
        generation = pyattn.generate(Markov(CHAIN), [[0]], max_new_tokens=2, return_steps=True)
        with pytest.raises(kind, match=message):
            generation.table(vocabulary=vocabulary)


def test_missing_steps_are_named():
    generation = pyattn.generate(Markov(CHAIN), [[0], [1]], max_new_tokens=2)
    assert str(generation) == "row 0, score -0.0000: 1 2\nrow 1, score -0.0000: 2 3"
    with pytest.raises(ValueError, match="steps were not recorded; call generate with return_steps=True"):
        generation.row_steps()
    with pytest.raises(ValueError, match="row is 2, expected 0 <= row < 2"):
        generation.row_steps(2)


# Callback and progress bar


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True, "rng": 0}], ids=str)
def test_a_callback_sees_each_step_and_may_stop(options):
    seen = []

    def look(step):
        seen.append(step)
        return len(seen) == 3

    generation = pyattn.generate(Markov(CHAIN), [[0], [1]], max_new_tokens=9, callback=look, **options)
    assert [step.number for step in seen] == [0, 1, 2]
    assert generation.lengths.tolist() == [3, 3]
    assert seen[1].self_weights is not None
    if "num_beams" not in options:
        assert seen[2].tokens.tolist() == generation.tokens[:, 2].tolist()
    else:
        np.testing.assert_allclose(generation.scores, 0, atol=1e-6)


def test_a_callback_may_fail():
    model = nn.TransformerLM(9, 8, 2, 1, 12, rng=0).eval()
    before = {name: array.copy() for name, array in model.state_dict().items()}
    expected = pyattn.generate(model, [[1, 2]], max_new_tokens=5)
    for error in (RuntimeError, KeyboardInterrupt):

        def look(step, error=error):
            if step.number == 2:
                raise error

        with pytest.raises(error):
            pyattn.generate(model, [[1, 2]], max_new_tokens=5, callback=look)
        assert pyattn.generate(model, [[1, 2]], max_new_tokens=5).tokens.tolist() == expected.tokens.tolist()
    for name, array in model.state_dict().items():
        assert_same_bits(array, before[name])


def test_a_callback_must_return_a_bool():
    for answer in (1, "stop", 0):
        with pytest.raises(TypeError, match=f"callback returned {answer!r}, expected True to stop, or False or None"):
            pyattn.generate(Markov(CHAIN), [[0]], max_new_tokens=3, callback=lambda _, answer=answer: answer)


def test_progress_is_shown(capsys):
    pyattn.generate(Markov(CHAIN), [[0]], max_new_tokens=9, eos_token_id=END, progress=True)
    assert "5/9" in capsys.readouterr().err


def test_progress_needs_tqdm():
    script = """
import sys
sys.modules["tqdm"] = None
import pyattn
from support.decoding import CHAIN, END, LOG, TABLE, Markov
try:
    pyattn.generate(Markov([[0.0, 1.0]] * 2), [[0]], max_new_tokens=2, progress=True)
except ImportError as error:
    print(error)
"""
    assert run_python(script).stdout == "progress=True needs tqdm: pip install tqdm, or leave progress out\n"

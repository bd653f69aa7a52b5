"""generate with modules: their tokens, their weights, decoding states by hand, and error messages."""

from __future__ import annotations

import numpy as np
import pytest
from support.decoding import CHAIN, Markov
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn
from pyattn.generation import ModelStep, UncachedDecoding


def model_of(kind, **options):
    options = {"d_model": 16, "nhead": 2, "dim_feedforward": 24, "max_length": 30, "rng": 0, **options}
    if kind == "LM":
        model = nn.TransformerLM(11, num_layers=2, **options)
    else:
        model = nn.Seq2SeqTransformer(13, 11, num_encoder_layers=2, num_decoder_layers=2, **options)
    for array in model.parameters():
        array *= 2  # so that scores differ clearly
    return model.eval()


def arguments_of(kind):
    return {"start_token_id": 1} if kind == "Seq2Seq" else {}


PROMPTS = [[3, 5, 7, 2], [4], [9, 9, 1, 8, 6, 10]]
kinds = pytest.mark.parametrize("kind", ["LM", "Seq2Seq"])


@kinds
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_module_generates_its_most_likely_tokens(kind, batch_first):
    """Compare with a greedy search by hand: one row at a time, the whole row in each step."""
    model = model_of(kind, batch_first=batch_first)
    generation = pyattn.generate(model, PROMPTS, max_new_tokens=8, use_cache=False, **arguments_of(kind))
    for prompt, row in zip(PROMPTS, generation.tokens, strict=True):
        tokens = [1] if kind == "Seq2Seq" else list(prompt)
        for expected in row.tolist():
            logits = model(prompt, tokens) if kind == "Seq2Seq" else model(tokens)
            assert int(np.argmax(logits[-1])) == expected
            tokens.append(expected)


@kinds
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"do_sample": True, "rng": 1}], ids=str)
def test_the_batch_does_not_change_a_bit(kind, options):
    model, options = model_of(kind), {"max_new_tokens": 8, "eos_token_id": 3, **arguments_of(kind), **options}
    batch = pyattn.generate(model, PROMPTS, **options)
    alone = pyattn.generate(model, PROMPTS[:1], **options)
    assert alone.sequences[0].tolist() == batch.sequences[0].tolist()
    assert alone.scores[0] == batch.scores[0]


@kinds
def test_steps_have_the_weights_of_the_model(kind):
    model = model_of(kind)
    generation = pyattn.generate(
        model, PROMPTS, max_new_tokens=4, return_steps=True, use_cache=False, **arguments_of(kind)
    )
    for row, prompt in enumerate(PROMPTS):
        steps, whole = generation.row_steps(row), generation.sequences[row]
        given = (prompt, whole[:-1]) if kind == "Seq2Seq" else (whole[:-1],)
        _, own, cross = model(*given, need_weights=True)
        first = len(generation.prompts[row])
        assert_same_bits(steps[0].self_weights, own[:, :, :first, :first])
        for number, step in enumerate(steps[1:], first):
            assert_same_bits(step.self_weights, own[:, :, number : number + 1, : number + 1])
            if cross is not None:
                assert_same_bits(step.cross_weights, cross[:, :, number : number + 1])


def test_padding_idx_of_the_model_is_padding():
    model = model_of("Seq2Seq", padding_idx=0)
    padded, _ = pyattn.generation.pad_sequences(PROMPTS)
    options = {"max_new_tokens": 6, "start_token_id": 1, "eos_token_id": 3}
    one, other = (pyattn.generate(model, source, **options) for source in (padded, PROMPTS))
    assert one.tokens.tolist() == other.tokens.tolist()


def test_states_may_be_used_by_hand():
    model = model_of("LM")
    state = UncachedDecoding(model, need_weights=True)
    first = state.step([[3, 5, 7], [4, 0, 0]], lengths=[3, 1])
    assert isinstance(first, ModelStep)
    assert_same_bits(first.logits[0], model([3, 5, 7])[-1])
    assert first.self_weights.shape == (2, 2, 2, 3, 3)
    assert (first.self_weights[:, 1, :, 1:] == 0).all()
    state.reorder([1, 0, 1])
    assert state.lengths.tolist() == [1, 3, 1]
    second = state.step([[2, 8], [6, 6], [1, 0]], lengths=[2, 2, 1])
    assert_same_bits(second.logits[2], model([4, 1])[-1])
    assert_same_bits(second.logits[1], model([3, 5, 7, 6, 6])[-1])
    for wrong, options, message in [
        ([[1]], {}, r"ids has shape \(1, 1\), expected \(3, n\)"),
        ([[11]] * 3, {}, r"ids holds 11 at index \(0, 0\), expected 0 <= id < 11"),
        ([[1, 2]] * 3, {"lengths": [1, 0, 1]}, "lengths holds 0, expected 1 <= length <= 2"),
        ([[1, 2]] * 3, {"lengths": [1, 1]}, r"lengths has shape \(2,\), expected \(3,\)"),
        (np.ones((3, 40), int), {}, "the model has 30 positions"),
    ]:
        with pytest.raises(ValueError, match=message):
            state.step(wrong, **options)
        assert state.lengths.tolist() == [3, 5, 2]
    for index in ([3], [[0]], [-1]):
        with pytest.raises(ValueError, match="index"):
            state.reorder(index)
    with pytest.raises(ValueError, match=r"source has shape \(2,\), expected \(rows, length\)"):
        UncachedDecoding(model_of("Seq2Seq"), [1, 2])


# Mistakes

LM, SEQ = nn.TransformerLM(11, 8, 2, 1, 12, max_length=9, rng=0).eval(), model_of("Seq2Seq")


MISTAKES = [
    (LM, None, {}, ValueError, "^source is missing: pass the tokens to continue, or a start_token_id$"),
    (LM, [[]], {}, ValueError, r"^source\[0\] is empty; pass the tokens to continue, or a start_token_id$"),
    (
        LM,
        None,
        {"start_token_id": 1, "source_lengths": [1]},
        ValueError,
        "^source_lengths was given without source; pass both or neither$",
    ),
    (LM, [[1], []], {}, ValueError, r"^source\[1\] is empty"),
    (LM, [], {}, ValueError, r"^source has shape \(0,\), expected \(batch, length\) or \(length,\)"),
    (LM, np.array([[1, 11]]), {}, ValueError, r"^source holds 11 at index \(0, 1\), expected 0 <= id < 11$"),
    (LM, [[1], [2, -1]], {}, ValueError, r"^source\[1\] holds -1 at index \(1,\), expected 0 <= id < 11$"),
    (LM, [[0.5]], {}, TypeError, r"^source\[0\] has dtype float64, expected integers: token ids; pass numpy"),
    (LM, [[[1]]], {}, ValueError, r"^source\[0\] has shape \(1, 1\), expected \(length,\)$"),
    (LM, "text", {}, TypeError, "^source has dtype <U4"),
    (
        LM,
        np.ones((2, 3), int),
        {"source_lengths": [4, 1]},
        ValueError,
        r"^source_lengths\[0\] is 4, expected 0 <= length <= 3",
    ),
    (LM, np.ones((2, 3), int), {"source_lengths": [1]}, ValueError, r"^source_lengths has shape \(1,\), expected"),
    (LM, np.ones((2, 3), int), {"source_lengths": [1.0, 2]}, TypeError, "^source_lengths has dtype float64"),
    (LM, [[1, 2]], {"padding_idx": 1, "source_lengths": [0]}, ValueError, r"^source\[0\] is empty"),
    (
        LM,
        [[1] * 7],
        {},
        ValueError,
        "^max_new_tokens is 4 after a prompt of 7 tokens, but the model has 9 positions; pass 3 or less$",
    ),
    (
        LM,
        [[1] * 9],
        {},
        ValueError,
        "^max_new_tokens is 4 after a prompt of 9 tokens, but the model has 9 positions; pass 1 or less$",
    ),
    (
        LM,
        [[1], [1] * 9],
        {"start_token_id": 1, "max_new_tokens": 1},
        ValueError,
        "^the longest prompt has 10 tokens, but the model has 9 positions; shorten it, or",
    ),
    (SEQ, [[1] * 31], {"start_token_id": 1}, ValueError, "^src has 31 tokens in a row, but the model has 30 posit"),
    (LM, [[1]], {"max_new_tokens": 0}, ValueError, "^max_new_tokens is 0, expected 1 or more$"),
    (LM, [[1]], {"max_new_tokens": 2.0}, TypeError, "^max_new_tokens is of type float, expected an int$"),
    (
        LM,
        [[1]],
        {"eos_token_id": 11},
        ValueError,
        "^eos_token_id is 11, expected 0 <= id < 11, the model's vocabulary$",
    ),
    (LM, [[1]], {"eos_token_id": [1, -2]}, ValueError, r"^eos_token_id\[1\] is -2, expected 0 or more$"),
    (LM, [[1]], {"eos_token_id": "a"}, TypeError, "^eos_token_id is of type str, expected an int$"),
    (LM, [[1]], {"start_token_id": 11}, ValueError, "^start_token_id is 11, expected 0 <= id < 11$"),
    (LM, [[1]], {"padding_idx": -1}, ValueError, "^padding_idx is -1, expected 0 or more$"),
    (LM, [[1]], {"min_new_tokens": 5}, ValueError, "^min_new_tokens is 5, more than max_new_tokens=4$"),
    (
        LM,
        [[1]],
        {"temperature": 0.5},
        ValueError,
        "^temperature=0.5 has no effect without do_sample=True$",
    ),
    (
        LM,
        [[1]],
        {"do_sample": True, "temperature": 0},
        ValueError,
        "^temperature is 0, expected a finite number above 0$",
    ),
    (
        LM,
        [[1]],
        {"do_sample": True, "temperature": "a"},
        TypeError,
        "^temperature is of type str, expected a number",
    ),
    (
        LM,
        [[1]],
        {"do_sample": True, "temperature": np.nan},
        ValueError,
        "^temperature is nan, expected a finite number above 0",
    ),
    (LM, [[1]], {"do_sample": True, "top_p": 0}, ValueError, "^top_p is 0, expected a probability above 0$"),
    (
        LM,
        [[1]],
        {"do_sample": True, "top_p": 1.5},
        ValueError,
        "^top_p is 1.5, expected a probability from 0 to 1$",
    ),
    (LM, [[1]], {"do_sample": True, "top_k": 0}, ValueError, "^top_k is 0, expected 1 or more$"),
    (LM, [[1]], {"top_k": 3}, ValueError, "^top_k=3 has no effect without do_sample=True"),
    (LM, [[1]], {"do_sample": 1}, TypeError, "^do_sample is of type int, expected True or False$"),
    (LM, [[1]], {"do_sample": True, "rng": "a"}, TypeError, "^rng is 'a', expected None, an int of 0 or more"),
    (
        LM,
        [[1]],
        {"do_sample": True, "num_beams": 2},
        ValueError,
        "^do_sample=True with num_beams=2: beams are not sampled; leave one out$",
    ),
    (LM, [[1]], {"num_beams": 0}, ValueError, "^num_beams is 0, expected 1 or more$"),
    (
        LM,
        [[1]],
        {"num_return_sequences": 2},
        ValueError,
        "^num_return_sequences is 2, more than num_beams=1; raise num_beams, or pass do_sample=True$",
    ),
    (
        LM,
        [[1]],
        {"repetition_penalty": -1},
        ValueError,
        "^repetition_penalty is -1, expected a finite number above",
    ),
    (
        LM,
        [[1]],
        {"length_penalty": 2},
        ValueError,
        "^length_penalty=2.0 has no effect without num_beams=",
    ),
    (LM, [[1]], {"num_beams": 2, "length_penalty": 50.5}, ValueError, "^length_penalty is 50.5, expected -50 to 50$"),
    (nn.TransformerLM, [[1]], {}, TypeError, "^model is the class TransformerLM; pass an instance of it"),
    (
        LM,
        [[1]],
        {"num_beams": 2, "length_penalty": np.inf},
        ValueError,
        "^length_penalty is inf, expected a finite",
    ),
    (
        LM,
        [[1]],
        {"early_stopping": True},
        ValueError,
        "^early_stopping=True has no effect without num_beams=",
    ),
    (
        LM,
        [[1]],
        {"num_beams": 2, "early_stopping": "no"},
        ValueError,
        "^early_stopping is 'no'; it must be True, False or 'never'$",
    ),
    (LM, [[1]], {"callback": 3}, TypeError, "^callback is of type int, expected a function of a GenerationStep$"),
    (LM, [[1]], {"return_steps": "yes"}, TypeError, "^return_steps is of type str, expected True or False$"),
    (LM, [[1]], {"use_cache": None}, TypeError, "^use_cache is of type NoneType, expected True or False$"),
    (
        SEQ,
        [[1]],
        {},
        ValueError,
        "^start_token_id is missing: an encoder-decoder generates the tokens that",
    ),
    (SEQ, None, {"start_token_id": 1}, ValueError, "^source is missing: an encoder-decoder encodes it$"),
    (SEQ, [[1], []], {"start_token_id": 1}, ValueError, r"^source\[1\] is empty$"),
    (
        SEQ,
        [[13]],
        {"start_token_id": 1},
        ValueError,
        r"^source\[0\] holds 13 at index \(0,\), expected 0 <= id < 13$",
    ),
    (
        nn.Linear(2, 3),
        [[1]],
        {},
        TypeError,
        "^model is of type Linear, which cannot generate tokens; pass a pyattn.nn.TransformerLM or Seq2Seq",
    ),
    (np.eye(2), [[1]], {}, TypeError, "^model is of type ndarray, which cannot generate tokens"),
]


def test_mistakes_are_named():
    for model, source, options, error, message in MISTAKES:
        with pytest.raises(error, match=message):
            pyattn.generate(model, source, **{"max_new_tokens": 4, **options})


@kinds
def test_lists_may_be_padded_like_arrays(kind):
    """Lists are stripped of the model's own padding_idx, and of no other token."""
    options = {"max_new_tokens": 5, **arguments_of(kind)}
    model = model_of(kind, padding_idx=0)
    padded = [[3, 5, 0], [3, 5, 7]]
    expected = pyattn.generate(model, [[3, 5], [3, 5, 7]], **options)
    for source in (padded, np.array(padded), [[0, 3, 5], [3, 5, 7]], tuple(map(tuple, padded))):
        found = pyattn.generate(model, source, **options)
        assert_same_bits(found.scores, expected.scores)
        assert found.tokens.tolist() == expected.tokens.tolist()
    assert_same_bits(pyattn.generate(model, [[3, 5, 0], [3]], **options).scores[0], expected.scores[0])
    plain = model_of(kind)
    said = pyattn.generate(plain, padded, source_lengths=[3, 3], **options)
    assert_same_bits(pyattn.generate(plain, padded, padding_idx=0, **options).scores, said.scores)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"^model is in training mode, .*; call model\.eval\(\) first$"):
        pyattn.generate(nn.TransformerLM(11, 8, 2, 1, 12, rng=0), [[1]], max_new_tokens=2)


@for_each("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True, "rng": 0}], ids=str)
def test_logits_with_nan_or_inf_are_refused(wrong, options):
    table = CHAIN.copy()
    table[3, 2] = wrong
    with pytest.raises(
        ValueError,
        match=r"^the model's logits in step 2, row 0 hold NaN or inf, or are all -inf: no token",
    ):
        pyattn.generate(Markov(table), [[1]], max_new_tokens=9, **options)


def test_a_vocabulary_of_end_symbols_is_refused():
    with pytest.raises(ValueError, match="only eos_token_id can be chosen in step 0, but min_new_tokens is 2"):
        pyattn.generate(Markov(np.zeros((1, 1))), [[0]], max_new_tokens=3, eos_token_id=0, min_new_tokens=2)

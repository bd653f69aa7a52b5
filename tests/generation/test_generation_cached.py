"""CachedDecoding: bit-identical to UncachedDecoding, and unchanged by errors."""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import EVERYTHING, assert_same_bits, for_each

import pyattn
from pyattn import _core, functional, nn
from pyattn.generation import CachedDecoding, UncachedDecoding

WORDS, SRC_WORDS = 17, 13


def language_model(seed=0, dtype="float32", **options):
    options = {"d_model": 16, "nhead": 4, "num_layers": 2, "dim_feedforward": 24, "dtype": dtype, "rng": seed} | options
    return drawn(nn.TransformerLM(WORDS, **options).eval(), seed)


def translator(seed=0, dtype="float32", **options):
    sizes = {"d_model": 16, "nhead": 4, "num_encoder_layers": 1, "num_decoder_layers": 2, "dim_feedforward": 24}
    options = sizes | {"dtype": dtype, "rng": seed} | options
    return drawn(nn.Seq2SeqTransformer(SRC_WORDS, WORDS, **options).eval(), seed)


def drawn(model, seed):
    """Perturb all parameters, those that begin as 0 or 1 too, so that scores differ enough for beams to separate."""
    rng = np.random.default_rng(seed + 100)
    for array in model.parameters():
        array += rng.standard_normal(array.shape).astype(array.dtype) * 0.3
    return model


MODELS = {
    "norm last": lambda **o: language_model(**o),
    "norm_first, tied, learned positions": lambda **o: language_model(
        norm_first=True, tie_weights=True, learned_positions=True, **o
    ),
    "gelu, no biases": lambda **o: language_model(activation="gelu", bias=False, **o),
    "custom activation": lambda **o: language_model(activation=lambda x: np.maximum(x, 0) ** 2, **o),
    "length first": lambda **o: language_model(batch_first=False, **o),
    "padding": lambda **o: language_model(padding_idx=3, **o),
    "translator": lambda **o: translator(**o),
    "translator, norm_first, tied": lambda **o: translator(norm_first=True, tie_weights=True, **o),
    "translator, length first": lambda **o: translator(batch_first=False, **o),
    "translator, padding, shared": lambda **o: drawn(
        nn.Seq2SeqTransformer(WORDS, WORDS, 16, 4, 1, 2, 24, padding_idx=0, share_embeddings=True, **o).eval(), 3
    ),
}
every_model = pytest.mark.parametrize("name", MODELS)


def states(model, rng, rows, **options):
    """A state of both kinds with the same source, whose rows have different lengths."""
    source = lengths = None
    if model.is_encoder_decoder:
        lengths = rng.integers(1, 9, rows)
        source = rng.integers(1, model.src_vocab_size, (rows, 8))
    return [kind(model, source, lengths, **options) for kind in (CachedDecoding, UncachedDecoding)]


def assert_same_step(states, ids, lengths=None):
    found, expected = (state.step(ids, lengths) for state in states)
    assert_same_bits(found, expected)
    np.testing.assert_array_equal(states[0].lengths, states[1].lengths)


@every_model
def test_steps_are_bit_identical_to_those_without_a_cache(name, dtype, level):
    rng = np.random.default_rng(0)
    pair = states(MODELS[name](dtype=dtype), rng, 4, need_weights=True)
    assert_same_step(pair, rng.integers(0, WORDS, (4, 70)), [70, 3, 1, 66])
    for n in (1, 1, 5, 1):
        assert_same_step(pair, rng.integers(0, WORDS, (4, n)), None if n == 1 else [1, 5, 3, 2])


@every_model
def test_rows_are_dropped_and_repeated(name):
    rng = np.random.default_rng(1)
    pair = states(MODELS[name](), rng, 3, need_weights=True)
    assert_same_step(pair, rng.integers(0, WORDS, (3, 5)), [2, 5, 3])
    for index in ([1, 1, 0, 2, 0], [4, 4, 1], [2], [0, 0]):
        for state in pair:
            state.reorder(index)
        for _ in range(2):
            assert_same_step(pair, rng.integers(0, WORDS, (len(index), 1)))


SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.7},
    "sampling": {"do_sample": True, "num_return_sequences": 3, "top_k": 8, "temperature": 1.5, "rng": 5},
}


@pytest.mark.sampled(3)
@every_model
@pytest.mark.parametrize("search", SEARCHES)
def test_generation_is_the_same_without_a_cache(name, search, dtype):
    for seed in range(5 if EVERYTHING else 2):
        rng = np.random.default_rng(seed)
        model = MODELS[name](dtype=dtype)
        rows = [rng.integers(4, min(WORDS, SRC_WORDS), n).tolist() for n in rng.integers(1, 12, 3)]
        options = {"max_new_tokens": 12, "start_token_id": 1, "eos_token_id": [2, 5], "return_steps": True}
        found, expected = (
            pyattn.generate(model, rows, use_cache=kept, **options, **SEARCHES[search]) for kept in (True, False)
        )
        assert_same_bits(found.tokens, expected.tokens)
        assert_same_bits(found.scores, expected.scores)
        assert len(found.steps) == len(expected.steps)
        for one, other in zip(found.steps, expected.steps, strict=True):
            assert one.self_weights is not None
            for field in ("probabilities", "best", "self_weights", "cross_weights"):
                if getattr(other, field) is not None:
                    assert_same_bits(getattr(one, field), getattr(other, field))
            np.testing.assert_array_equal(one.tokens, other.tokens)


# Number of computations


def counted(monkeypatch):
    """Count the calls of whole layers and of separate linear functions."""
    calls = {"layer": 0, "linear": 0}

    def count(name, function):
        def called(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return called

    for name, module in (("layer", _core), ("linear", functional)):
        monkeypatch.setattr(module, name, count(name, getattr(module, name)))
    return calls


def test_the_source_is_computed_once(monkeypatch):
    """The core is called once per layer and step; keys and values of the source are computed at the beginning."""
    model = translator()
    calls = counted(monkeypatch)
    state = CachedDecoding(model, [[1, 2, 3], [4, 5, 6]])
    assert calls == {"layer": 1, "linear": 4}  # the encoder's layer; keys and values for the decoder's two layers
    calls.update(layer=0, linear=0)
    for _ in range(3):
        state.step([[1], [2]])
    state.reorder([1, 0, 1])
    state.step([[1], [2], [3]])
    assert calls == {"layer": 8, "linear": 4}  # two decoder layers and one output projection, in each of 4 steps


def test_a_step_scores_last_tokens_alone(monkeypatch):
    model, seen = language_model(), []
    monkeypatch.setattr(model.generator, "forward", lambda x: seen.append(x.shape) or x @ model.generator.weight.T)
    state = CachedDecoding(model)
    state.step(np.ones((2, 9), int), [9, 4])
    state.step([[1], [2]])
    assert seen == [(2, 16), (2, 16)]


def test_rows_that_come_from_one_row_share_pages():
    state = CachedDecoding(language_model())
    state.step(np.ones((1, 128), int))
    before = state.cache.nbytes
    state.reorder([0] * 4)
    assert state.cache.nbytes == before
    state.step(np.ones((4, 1), int))
    assert 2.9 * before < state.cache.nbytes < 3.1 * before  # two shared pages per layer, and one more for each row


# Errors


def refused(state, ids, lengths=None, error=ValueError, words=""):
    before = state.lengths.tolist()
    with pytest.raises(error, match=words):
        state.step(ids, lengths)
    assert state.lengths.tolist() == before


@for_each("kind", [CachedDecoding, UncachedDecoding])
def test_bad_steps_are_refused_and_leave_the_state_unchanged(kind):
    model = language_model(max_length=8)
    pair = [kind(model), UncachedDecoding(model)]
    refused(pair[0], [[WORDS]], words=f"ids holds {WORDS}")
    assert_same_step(pair, [[1, 2, 3], [4, 5, 0]], [3, 2])
    state = pair[0]
    refused(state, [[1.5], [2]], error=TypeError, words="expected integers")
    refused(state, [[1], [-2]], words="ids holds -2")
    refused(state, [[1]], words="one row per sequence")
    refused(state, [1, 2], words="one row per sequence")
    refused(state, [[1, 2], [1, 2]], [0, 2], words="lengths holds 0")
    refused(state, [[1, 2], [1, 2]], [1], words="lengths has shape")
    refused(state, np.ones((2, 6), int), words="positions")
    with pytest.raises(ValueError, match="index holds 2"):
        state.reorder([0, 2])
    with pytest.raises(ValueError, match="expected one axis"):
        state.reorder([[0]])
    assert_same_step(pair, [[6], [7]])


def test_padding_may_exceed_the_last_position():
    model = language_model(max_length=8)
    pair = [CachedDecoding(model), UncachedDecoding(model)]
    assert_same_step(pair, [[1, 2, 3, 4, 5, 6], [4, 0, 0, 0, 0, 0]], [6, 1])
    assert_same_step(pair, [[7, 8, 0, 0, 0], [1, 2, 3, 4, 5]], [2, 5])


class StopError(Exception):
    pass


@pytest.mark.parametrize("where", ["layers", "head"])
@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt])
def test_a_step_that_fails_leaves_the_state_unchanged(where, error, monkeypatch):
    model = translator()
    pair = states(model, np.random.default_rng(0), 2)
    assert_same_step(pair, [[1, 2], [3, 4]])

    def breaks_off(*_, **__):
        raise error

    last = model.transformer.decoder.layers[1] if where == "layers" else model.generator
    with monkeypatch.context() as patch:
        patch.setattr(last, "decode_step" if where == "layers" else "forward", breaks_off)
        with pytest.raises(error):
            pair[0].step([[5], [6]])
    assert pair[0].lengths.tolist() == [2, 2]
    assert_same_step(pair, [[5], [6]])


def test_a_reorder_that_fails_leaves_the_state_unchanged(monkeypatch):
    pair = states(translator(), np.random.default_rng(0), 2)
    assert_same_step(pair, [[1, 2], [3, 4]])
    pick, calls = pyattn.KVCache._pick, []

    def second_breaks_off(self, index):
        calls.append(index)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return pick(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(pyattn.KVCache, "_pick", second_breaks_off)
        with pytest.raises(KeyboardInterrupt):
            pair[0].reorder([1])
    assert_same_step(pair, [[5], [6]])


def test_layers_without_a_cache_are_named():
    class Other(nn.Module):
        def forward(self, x, **_):
            return x

    model = language_model()
    model.encoder = Other()
    with pytest.raises(TypeError, match="encoder is of type Other, which does not support a KV cache"):
        pyattn.generate(model, [[1]], max_new_tokens=2)
    pyattn.generate(model, [[1]], max_new_tokens=2, use_cache=False)


def test_a_source_is_padded_on_the_right_only():
    model = translator(padding_idx=0)
    with pytest.raises(ValueError, match="padding before other tokens"):
        model.encode_memory([[0, 1, 2]])
    assert model.encode_memory([[1, 2, 0], [3, 0, 0]]).lengths.tolist() == [2, 1]
    with pytest.raises(ValueError, match=r"source has shape \(2,\)"):
        CachedDecoding(model, [1, 2])


def test_step_by_hand_is_forward():
    """With a cache of the caller's, as in the docs."""
    model, ids = language_model(), np.array([[1, 2, 3, 4, 5]])
    cache = model.new_cache()
    prompt = model.decode_step(ids[:, :3], cache)
    one, two = (model.decode_step(ids[:, n : n + 1], cache).logits for n in (3, 4))
    assert_same_bits(np.stack([prompt.logits, one, two], 1), model(ids)[:, 2:])
    with pytest.raises(TypeError, match="cache is of type NoneType"):
        model.decode_step(ids, None)
    with pytest.raises(ValueError, match=r"input has shape \(2, 1\), expected \(1, L\)"):
        model.decode_step([[1], [2]], cache)

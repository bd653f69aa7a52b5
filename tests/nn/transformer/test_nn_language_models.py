"""TransformerLM and Seq2SeqTransformer: torch's numbers, padding in three forms, ties that hold, dropout."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from support import token_twin
from support.helpers import EVERYTHING, assert_same_bits, for_each

from pyattn import nn

WORDS, PAD = 13, 0
RNG = np.random.default_rng(0)
IDS, SRC = (RNG.integers(1, WORDS, (3, n)) for n in (6, 8))
LENGTHS, SRC_LENGTHS = np.array([6, 2, 4]), np.array([3, 8, 5])
HIDDEN, SRC_HIDDEN = np.arange(6) >= LENGTHS[:, None], np.arange(8) >= SRC_LENGTHS[:, None]
PADDED, SRC_PADDED = np.where(HIDDEN, PAD, IDS), np.where(SRC_HIDDEN, PAD, SRC)
MODELS = ("LM", "Seq2Seq")


def make(kind, **options):
    options = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "rng": 0, **options}
    if kind == "LM":
        return nn.TransformerLM(WORDS, **{"num_layers": 2, **options}).eval()
    return nn.Seq2SeqTransformer(
        WORDS + 4, WORDS, **{"num_encoder_layers": 2, "num_decoder_layers": 3, **options}
    ).eval()


def call(model, ids=IDS, src=SRC, **options):
    """Of whatever kind: what it needs of ids (N, L) and src (N, S)."""
    given = [src, ids] if model.is_encoder_decoder else [ids]
    if not model.batch_first:
        given = [np.transpose(x) for x in given]
    return model(*given, **options)


def with_lengths(model):
    lengths = {"src_lengths": SRC_LENGTHS, "tgt_lengths": LENGTHS} if model.is_encoder_decoder else {"lengths": LENGTHS}
    return call(model, **lengths)


kinds = pytest.mark.parametrize("kind", MODELS)


def draw_model(kind, rng, dtype):
    flags = {name: bool(rng.integers(2)) for name in ("batch_first", "norm_first", "bias", "learned_positions")}
    flags |= {"tie_weights": bool(rng.integers(2)), "activation": str(rng.choice(["relu", "gelu"]))}
    flags |= {"padding_idx": PAD if rng.integers(2) else None, "layer_norm_eps": float(rng.choice([1e-5, 1e-3]))}
    model = make(kind, d_model=24, nhead=4, dim_feedforward=40, max_length=9, **flags, dtype=dtype, rng=rng)
    for array in model.parameters():
        array += 0.1 * rng.standard_normal(array.shape)
    return model


@pytest.mark.peers
@kinds
def test_equals_torch(kind, dtype, torch):
    """float32 no further from float64 than 1.5 times torch's own distance; float64 within 1e-12 of torch.

    That is judged over 40 models. `make test` draws 15, and leaves more to chance.
    """
    found, peers = [], []
    for seed in range(40 if EVERYTHING else 15):
        rng = np.random.default_rng([3, seed])
        model = draw_model(kind, rng, dtype)
        theirs = token_twin.make(torch, model)
        hides = bool(rng.integers(4)) or model.padding_idx is not None
        ids, src = (PADDED, SRC_PADDED) if hides else (IDS, SRC)
        masks = [SRC_HIDDEN, HIDDEN] if model.is_encoder_decoder else [HIDDEN]
        given = [torch.from_numpy(x) for x in ([src, ids] if model.is_encoder_decoder else [ids])]
        given += [torch.from_numpy(mask) if hides else None for mask in masks]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of nested tensors, a prototype
            peer = theirs(*given).numpy()
            exact = theirs.double()(*given).numpy()
        options = {}
        if hides and model.padding_idx is None:
            names = ["src_key_padding_mask", "tgt_key_padding_mask"] if len(masks) == 2 else ["key_padding_mask"]
            options = dict(zip(names, masks, strict=True))
        ours = call(model, ids, src, **options)
        ours = ours if model.batch_first else ours.swapaxes(0, 1)
        assert ours.dtype == dtype
        shown = ~HIDDEN if hides else np.ones_like(HIDDEN)
        if dtype == "float64":
            np.testing.assert_allclose(ours[shown], exact[shown], rtol=0, atol=1e-12 * abs(exact).max())
        found.append(abs(ours - exact)[shown].max() / abs(exact[shown]).max())
        peers.append(abs(peer - exact)[shown].max() / abs(exact[shown]).max())
    if dtype == "float32":
        assert max(peers) > 0
        most = 1.5 if EVERYTHING else 3
        assert max(found) <= most * max(peers)
        assert np.percentile(found, 99) <= most * np.percentile(peers, 99)


@pytest.mark.peers
@kinds
def test_names_are_torchs(kind, torch):
    for learned in (False, True):
        model = make(kind, learned_positions=learned)
        assert list(model.state_dict()) == list(token_twin.make(torch, model).state_dict())


@kinds
def test_padding_is_said_in_three_ways(kind, dtype):
    model = make(kind, dtype=dtype)
    expected = with_lengths(model)
    names = {"src_key_padding_mask": SRC_HIDDEN, "tgt_key_padding_mask": HIDDEN}
    masks = names if model.is_encoder_decoder else {"key_padding_mask": HIDDEN}
    assert_same_bits(call(model, **masks), expected)

    padding = make(kind, padding_idx=PAD, dtype=dtype)
    assert_same_bits(call(padding, PADDED, SRC_PADDED)[~HIDDEN], with_lengths(padding)[~HIDDEN])
    assert np.array_equal(call(padding), call(padding, **{name: np.zeros_like(mask) for name, mask in masks.items()}))


@kinds
def test_padding_changes_nothing(kind):
    """Each row has the bits that it has alone, without any."""
    model = make(kind)
    batch = with_lengths(model)
    for n, (length, source) in enumerate(zip(LENGTHS, SRC_LENGTHS, strict=True)):
        assert_same_bits(batch[n, :length], call(model, IDS[n, :length], SRC[n, :source]))


@pytest.mark.parametrize("kind", ["LM", "Seq2Seq"])
def test_a_step_takes_no_padding_for_tokens(kind):
    """It has the logits that forward gives the last token before padding, as with lengths."""
    model = make(kind, padding_idx=PAD)
    memory = {"memory_cache": model.encode_memory(SRC_PADDED)} if model.is_encoder_decoder else {}
    caches = [model.new_cache(len(PADDED)) for _ in range(2)]
    found = model.decode_step(PADDED, caches[0], **memory).logits
    assert_same_bits(found, model.decode_step(PADDED, caches[1], lengths=LENGTHS, **memory).logits)
    assert_same_bits(found, call(model, PADDED, SRC_PADDED)[np.arange(len(PADDED)), np.array(LENGTHS) - 1])
    assert caches[0].lengths.tolist() == list(LENGTHS)
    with pytest.raises(ValueError, match=r"^input has padding, id \d+, before other tokens, which a cache cannot hold"):
        model.decode_step([[PAD, 3]] * len(PADDED), caches[0], **memory)
    model.decode_step([[PAD]] * len(PADDED), caches[0], **memory)  # as rows are filled that have ended
    assert caches[0].lengths.tolist() == [length + 1 for length in LENGTHS]


def test_what_is_said_counts_more_than_padding_idx():
    model = make("LM", padding_idx=PAD)
    assert not np.array_equal(model(PADDED, lengths=[6, 6, 6])[:, -1], model(PADDED)[:, -1])


@kinds
def test_a_token_sees_none_after_it(kind, dtype):
    model = make(kind, dtype=dtype)
    whole, other = call(model), IDS.copy()
    other[:, 4:] = 1
    assert_same_bits(call(model, other)[:, :4], whole[:, :4])
    assert_same_bits(call(model, IDS[:, :4]), whole[:, :4])
    name = "tgt_is_causal" if model.is_encoder_decoder else "is_causal"
    assert not np.array_equal(call(model, **{name: False})[:, :4], whole[:, :4])


@kinds
def test_batch_first_changes_the_axes_alone(kind):
    one, other = make(kind), make(kind, batch_first=False)
    assert_same_bits(call(other).swapaxes(0, 1), call(one))
    lengths = {"src_lengths": SRC_LENGTHS, "tgt_lengths": LENGTHS} if one.is_encoder_decoder else {"lengths": LENGTHS}
    assert_same_bits(call(other, **lengths).swapaxes(0, 1), call(one, **lengths))


def test_two_halves_make_a_whole():
    model = make("Seq2Seq", padding_idx=PAD)
    memory = model.encode(SRC_PADDED)
    hidden = model.decode(PADDED, memory, memory_lengths=SRC_LENGTHS)
    assert_same_bits(model.generator(hidden), model(SRC_PADDED, PADDED))
    assert_same_bits(model.decode(PADDED, memory, memory_key_padding_mask=SRC_HIDDEN), hidden)
    alone = model.decode(PADDED[0], memory[0], memory_lengths=3)
    assert_same_bits(alone, hidden[0])
    assert_same_bits(make("LM").generator(make("LM").decode(IDS)), make("LM")(IDS))


@kinds
def test_weights_come_with_the_same_bits(kind):
    model = make(kind)
    given = (SRC, IDS) if model.is_encoder_decoder else (IDS,)
    lengths = {"src_lengths": SRC_LENGTHS, "tgt_lengths": LENGTHS} if model.is_encoder_decoder else {"lengths": LENGTHS}
    logits, own, cross = model(*given, **lengths, need_weights=True)
    assert_same_bits(logits, model(*given, **lengths))
    layers = 3 if model.is_encoder_decoder else 2
    assert own.shape == (layers, 3, 2, 6, 6)
    np.testing.assert_allclose(own.sum(-1), 1, rtol=1e-6)
    assert (own[..., np.triu(np.ones((6, 6), bool), 1)] == 0).all()
    assert (cross is None) == (not model.is_encoder_decoder)
    if cross is not None:
        assert cross.shape == (layers, 3, 2, 6, 8)
        np.testing.assert_allclose(cross.sum(-1), 1, rtol=1e-6)
        assert (cross[:, SRC_HIDDEN.nonzero()[0], :, :, SRC_HIDDEN.nonzero()[1]] == 0).all()
    first = model.transformer.decoder.layers[0] if model.is_encoder_decoder else model.encoder.layers[0]
    first.self_attn.in_proj_weight[:16] = 0  # of query and key: all that is seen counts the same
    _, own, _ = model(*given, need_weights=True)
    np.testing.assert_allclose(own[0, 0, 0], np.tri(6) / np.arange(1, 7)[:, None], rtol=1e-6)


# Ties


@kinds
def test_ties_hold(kind):
    model = make(kind, tie_weights=True)
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.deepcopy(model).double()):
        embedding = twin.tgt_embedding if twin.is_encoder_decoder else twin.embedding
        assert twin.generator.weight is embedding.weight
        before = call(twin)
        embedding.weight[5] *= 2
        changed = call(twin)
        assert not np.array_equal(changed, before)
    assert len(list(model.parameters())) + 1 == len(model.state_dict())
    assert "tie_weights=True" in repr(model)
    assert "tie_weights=False" in repr(make(kind))
    other = make(kind, tie_weights=True, rng=1)
    other.load_state_dict(model.state_dict())
    assert_same_bits(call(other), call(model))


def test_one_vocabulary():
    model = nn.Seq2SeqTransformer(9, 9, 8, 2, 1, 1, 12, share_embeddings=True, tie_weights=True, rng=0).eval()
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.src_embedding is twin.tgt_embedding
        assert twin.generator.weight is twin.src_embedding.weight
    assert {"src_embedding.weight", "tgt_embedding.weight"} <= model.state_dict().keys()
    with pytest.raises(
        ValueError, match=r"src_vocab_size is 9 and tgt_vocab_size is 8, expected the same of one vocab"
    ):
        nn.Seq2SeqTransformer(9, 8, 8, 2, 1, 1, share_embeddings=True)


# Parts and first numbers


@kinds
def test_parts_make_a_model(kind):
    model = make(kind, tie_weights=True)
    parts = dict(model.named_children())
    more = {} if model.is_encoder_decoder else {"d_model": 8}
    twin = type(model).from_parts(parts, **more).eval()
    assert_same_bits(call(twin), call(model))
    assert [*twin.state_dict()] == [*model.state_dict()]
    assert all(one is other for one, other in zip(twin.parameters(), model.parameters(), strict=True))
    first = next(iter(parts))
    with pytest.raises(ValueError, match=f"{first} is missing"):
        type(model).from_parts({name: part for name, part in parts.items() if name != first}, **more)
    with pytest.raises(TypeError, match="generator is of type int, expected a module"):
        type(model).from_parts({**parts, "generator": 3}, **more)


def test_transformer_must_be_one():
    parts = dict(make("Seq2Seq").named_children())
    with pytest.raises(TypeError, match="transformer is of type Linear, expected Transformer"):
        nn.Seq2SeqTransformer.from_parts({**parts, "transformer": parts["generator"]})


@kinds
def test_parts_may_be_others(kind):
    """Anything but an Embedding is called, and then scaled: the same numbers but for one rounding."""

    class Table(nn.Embedding):
        def forward(self, input):
            return self.weight[input]

    model = make(kind)
    parts, more = dict(model.named_children()), {} if model.is_encoder_decoder else {"d_model": 8}
    name = "tgt_embedding" if model.is_encoder_decoder else "embedding"
    other = type(model).from_parts({**parts, name: Table.from_pretrained(parts[name].weight)}, **more).eval()
    np.testing.assert_allclose(call(other), call(model), rtol=0, atol=1e-5)


@kinds
def test_first_numbers(kind, dtype):
    model = make(kind, d_model=60, dim_feedforward=100, padding_idx=3, learned_positions=True, dtype=dtype)
    assert model.dtype == dtype
    for name, array in model.state_dict().items():
        if array.ndim == 2:
            drawn = np.delete(array, 3, 0) if "embedding" in name else array
            bound = np.sqrt(6 / sum(array.shape))
            assert 0.95 * bound < abs(drawn).max() <= bound * (1 + 1e-6), name
            np.testing.assert_allclose(drawn.std(), bound / 3**0.5, rtol=0.1, err_msg=name)
        if name.endswith("embedding.weight"):
            assert (array[3] == 0).all()
    assert (model.generator.bias == 0).all()
    assert_same_bits(call(make(kind, rng=5)), call(make(kind, rng=5)))
    assert not np.array_equal(call(make(kind, rng=5)), call(make(kind, rng=6)))


@kinds
def test_what_they_say_of_themselves(kind):
    model = make(kind, max_length=20, padding_idx=-1)
    assert (model.vocab_size, model.max_length, model.padding_idx) == (WORDS, 20, 16 if kind == "Seq2Seq" else 12)
    assert model.is_encoder_decoder == (kind == "Seq2Seq")
    assert (model.d_model, model.batch_first) == (8, True)


# Training


@kinds
def test_dropout_is_at_work_in_training(kind):
    model = make(kind, dropout=0.3)
    still = call(model)
    model.train()
    first = call(model, rng=0)
    assert_same_bits(call(model, rng=0), first)
    assert not np.array_equal(call(model, rng=1), first)
    assert not np.array_equal(call(model), call(model))
    assert_same_bits(call(model.eval()), still)


@kinds
def test_dropout_of_what_goes_in(kind):
    """Of the sum of embedding and positions alone, in numbers that are kept or not."""
    model = make(kind, dropout=0.0).train()
    positions = model.tgt_positions if model.is_encoder_decoder else model.positions
    before = call(model, rng=0)
    assert_same_bits(before, call(model, rng=1))
    positions.dropout = 0.5
    assert not np.array_equal(call(model, rng=0), call(model, rng=1))
    positions.dropout = 1.0  # all of it: then the ids make no difference
    assert_same_bits(call(model, rng=0), call(model, IDS[::-1], rng=0))


# Mistakes


@for_each(
    ("kind", "ids", "options", "error", "message"),
    [
        ("LM", [[1, 13]], {}, ValueError, r"^input holds 13 at index \(0, 1\), expected 0 <= id < 13$"),
        ("LM", [-1], {}, ValueError, r"^input holds -1 at index \(0,\), expected 0 <= id < 13$"),
        ("LM", [1.5], {}, TypeError, "^input has dtype float64, expected integers: token ids; pass numpy"),
        ("LM", 3, {}, ValueError, r"^input has shape \(\), expected \(N, L\) or, unbatched, \(L,\)$"),
        ("LM", [[1, 2]], {"lengths": [3]}, ValueError, "^lengths holds 3, expected 0 <= length <= 2$"),
        (
            "LM",
            [[1, 2]],
            {"lengths": [1, 2]},
            ValueError,
            r"^lengths has shape \(2,\), expected \(1,\): one length per row$",
        ),
        ("LM", [[1, 2]], {"lengths": [1.0]}, TypeError, "^lengths has dtype float64, expected integers; pass numpy"),
        (
            "LM",
            [[1, 2]],
            {"lengths": [1], "key_padding_mask": [[False, True]]},
            ValueError,
            "^lengths and key_padding_mask are both given; pass only one of them$",
        ),
        ("LM", [[1] * 6], {"mask": np.ones((5, 6), bool)}, ValueError, r"mask has shape \(5, 6\), expected \(6, 6\)"),
        ("LM", [[1] * 10], {}, ValueError, "^input has 10 tokens in a row, but the model has 9 positions; shorten it"),
        ("LM", [1] * 10, {}, ValueError, "^input has 10 tokens in a row, but the model has 9 positions"),
        ("Seq2Seq", [[1] * 10] * 3, {}, ValueError, "^tgt has 10 tokens in a row, but the model has 9 positions"),
        ("Seq2Seq", [[13]], {}, ValueError, r"^tgt holds 13 at index \(0, 0\), expected 0 <= id < 13$"),
        ("Seq2Seq", IDS[:2], {}, ValueError, r"memory has shape \(3, 8, 8\), expected \(2, S, 8\): tgt has shape"),
        ("Seq2Seq", IDS, {"src_lengths": [9, 1, 1]}, ValueError, "^src_lengths holds 9, expected 0 <= length <= 8$"),
        (
            "Seq2Seq",
            IDS,
            {"tgt_lengths": LENGTHS, "tgt_key_padding_mask": HIDDEN},
            ValueError,
            "^tgt_lengths and tgt_key_padding_mask are both given",
        ),
    ],
)
def test_mistakes_of_a_call_are_named(kind, ids, options, error, message):
    with pytest.raises(error, match=message):
        call(make(kind, max_length=9), ids, **options)


def test_mistakes_with_memory_are_named():
    model = make("Seq2Seq")
    memory = model.encode(SRC)
    with pytest.raises(ValueError, match=r"^memory_lengths has shape \(2,\), expected \(3,\)"):
        model.decode(IDS, memory, memory_lengths=[1, 2])
    with pytest.raises(ValueError, match=r"^memory_lengths and memory_key_padding_mask are both given"):
        model.decode(IDS, memory, memory_lengths=SRC_LENGTHS, memory_key_padding_mask=SRC_HIDDEN)
    with pytest.raises(ValueError, match=r"^src holds 17 at index \(0,\), expected 0 <= id < 17$"):
        model.encode([17])
    with pytest.raises(ValueError, match=r"^src has 10 tokens in a row, but the model has 9 positions; .* max_length$"):
        make("Seq2Seq", max_length=9, batch_first=False).encode(np.ones((10, 2), int))


@for_each(
    ("arguments", "error", "message"),
    [
        ({"vocab_size": 0}, ValueError, "vocab_size is 0, expected 1 or more"),
        ({"d_model": 9}, ValueError, "d_model is 9 and nhead is 2, expected a multiple"),
        ({"d_model": 8.0}, TypeError, "d_model is of type float, expected an int"),
        ({"padding_idx": 13}, ValueError, "padding_idx is 13, expected -13 <= padding_idx < 13"),
        ({"tie_weights": 1}, TypeError, "tie_weights is of type int, expected True or False"),
        ({"learned_positions": "yes"}, TypeError, "learned is of type str, expected True or False"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8', expected float16, bfloat16, float32 or float64"),
        ({"num_layers": 0}, ValueError, "num_layers is 0, expected 1 or more"),
    ],
)
def test_mistakes_of_the_constructor_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.TransformerLM(**{"vocab_size": 13, "d_model": 8, "nhead": 2, "num_layers": 1, **arguments})

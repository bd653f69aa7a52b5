"""nn.Embedding: torch's arguments, numbers and state."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each

import pyattn
from pyattn import nn


def test_it_looks_up_its_weight(dtype):
    embedding = nn.Embedding(7, 3, dtype=dtype, rng=0)
    ids = np.array([[6, 0], [2, 2]])
    assert_same_bits(embedding(ids), embedding.weight[ids])
    embedding.weight[2] = 5
    assert (embedding(2) == 5).all()


def test_the_first_numbers_are_normal():
    weight = nn.Embedding(400, 500, dtype=np.float64, rng=0).weight
    assert abs(weight.mean()) < 5 / math.sqrt(weight.size)
    assert abs(weight.var() - 1) < 5 * math.sqrt(2 / weight.size)
    # the share within one standard deviation, erf(1 / sqrt(2)), tells it from other distributions
    share = math.erf(math.sqrt(0.5))
    assert abs((np.abs(weight) < 1).mean() - share) < 5 * math.sqrt(share * (1 - share) / weight.size)


@pytest.mark.parametrize("index", [2, -3])
def test_the_row_of_padding_begins_as_zeros(index):
    embedding, plain = nn.Embedding(5, 3, index, rng=0), nn.Embedding(5, 3, rng=0)
    assert embedding.padding_idx == 2
    assert (embedding.weight[2] == 0).all()
    assert_same_bits(np.delete(embedding.weight, 2, 0), np.delete(plain.weight, 2, 0))


@pytest.mark.peers
@for_each("seed", range(100))
def test_torch_says_the_same(seed, dtype, torch):
    """All arguments drawn; ids of any shape, sizes of 0, too."""
    rng = np.random.default_rng(seed)
    words, dim = int(rng.integers(9)), int(rng.integers(40))
    padding_idx = int(rng.integers(-words, words)) if words and rng.random() < 0.7 else None
    theirs = torch.nn.Embedding(words, dim, padding_idx, dtype=getattr(torch, dtype))
    if rng.random() < 0.5:
        torch.nn.init.normal_(theirs.weight)  # padding's, too: it is looked up as any other
    ours = nn.Embedding(words, dim, padding_idx, dtype=dtype)
    assert [not row.any() for row in ours.weight] == [n == ours.padding_idx or not dim for n in range(words)]
    ours.load_state_dict(theirs.state_dict())
    shape = tuple(rng.integers(6, size=rng.integers(4))) if words else (2, 0)
    ids = np.asarray(rng.integers(max(1, words), size=shape), rng.choice(["i4", "i8"]))
    loaded = nn.Embedding.from_pretrained(theirs.weight.detach().numpy(), padding_idx=padding_idx)
    for one in (ours, loaded):
        assert_same_bits(one(ids), theirs(torch.from_numpy(ids)).detach().numpy())
        assert repr(one) == repr(theirs)
        assert one.padding_idx == theirs.padding_idx
        assert list(one.state_dict()) == list(theirs.state_dict())


@pytest.mark.peers
@pytest.mark.parametrize("share", [False, True])
def test_to_torch_and_back(share, dtype, torch):
    interop = pyattn.interop.torch
    theirs = torch.nn.Embedding(6, 3, padding_idx=1, sparse=True, dtype=getattr(torch, dtype)).eval()
    ours = interop.from_torch(theirs, share=share)
    assert type(ours) is nn.Embedding
    assert repr(ours) == "Embedding(6, 3, padding_idx=1)"
    assert not ours.training
    assert_same_bits(ours.weight, theirs.weight.detach().numpy())
    back = interop.to_torch(ours, share=share)
    assert type(back) is torch.nn.Embedding
    assert torch.equal(back.weight, theirs.weight)
    assert (back.weight.data_ptr() == theirs.weight.data_ptr()) == share
    assert back.padding_idx == 1


@pytest.mark.peers
def test_a_norm_that_torch_sees_to_is_refused(torch):
    with pytest.raises(ValueError, match=r"^module has max_norm=1.0, which pyattn.nn.Embedding does not have$"):
        pyattn.interop.torch.from_torch(torch.nn.Embedding(3, 2, max_norm=1.0))


def test_from_pretrained_takes_the_array_itself(dtype):
    weight = np.ones((2, 6), dtype)[:, ::-2]
    embedding = nn.Embedding.from_pretrained(weight, padding_idx=-1)
    assert embedding.weight is weight
    assert repr(embedding) == "Embedding(2, 3, padding_idx=1)"
    assert (embedding(1) == 1).all()
    assert nn.Embedding.from_pretrained(weight).padding_idx is None


def test_copies_and_pickles_are_equal_and_apart():
    embedding = nn.Embedding(5, 3, 1, rng=0)
    for twin in (copy.deepcopy(embedding), pickle.loads(pickle.dumps(embedding))):
        assert repr(twin) == repr(embedding)
        assert_same_bits(twin([0, 4]), embedding([0, 4]))
        assert twin.weight is not embedding.weight


def test_a_weight_may_be_shared_with_a_linear_layer():
    """As the vocabulary layer of many models does."""
    embedding = nn.Embedding(5, 3, rng=0)
    linear = nn.Linear.from_arrays(embedding.weight)
    embedding.weight[4] = 2
    assert linear(np.ones(3, np.float32))[4] == 6


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"num_embeddings": 2.0}, TypeError, "num_embeddings is of type float, expected an int"),
        ({"embedding_dim": -1}, ValueError, "embedding_dim is -1, expected 0 or more"),
        ({"padding_idx": 3}, ValueError, "padding_idx is 3, expected -3 <= padding_idx < 3: num_embeddings is 3"),
        ({"padding_idx": -4}, ValueError, "padding_idx is -4, expected -3 <= padding_idx < 3: num_embeddings"),
        ({"padding_idx": 1.0}, TypeError, "padding_idx is of type float, expected an int"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8', expected float16, bfloat16, float32 or float64"),
    ],
)
def test_mistakes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        nn.Embedding(**{"num_embeddings": 3, "embedding_dim": 2, **arguments})


@for_each(
    ("embeddings", "options", "kind", "message"),
    [
        (
            [[1.0]],
            {},
            TypeError,
            "^embeddings is a parameter and takes an array of floats, not one of type",
        ),
        (None, {}, TypeError, "^embeddings is a parameter and takes an array of floats, not one of type"),
        (np.eye(3, dtype=int), {}, TypeError, r"^embeddings has dtype int64, .*; use embeddings.astype\(numpy.float32"),
        (np.ma.ones((3, 3)), {}, TypeError, "^embeddings is a masked array"),
        (np.ones(3), {}, ValueError, r"^embeddings has shape \(3,\), expected 2 axes"),
        (np.ones((1, 3)), {"padding_idx": 1}, ValueError, "^padding_idx is 1, expected -1 <= padding_idx < 1"),
        (np.ones((1, 3)), {"padding_idx": False}, TypeError, "^padding_idx is of type bool, expected an int"),
    ],
)
def test_arrays_that_make_no_layer_are_refused(embeddings, options, kind, message):
    with pytest.raises(kind, match=message):
        nn.Embedding.from_pretrained(embeddings, **options)


@for_each(
    ("ids", "kind", "message"),
    [
        ([3], ValueError, r"input holds 3 at index \(0,\), expected 0 <= id < 3"),
        ([0.5], TypeError, "input has dtype float64, expected integers"),
    ],
)
def test_wrong_ids_are_named(ids, kind, message):
    with pytest.raises(kind, match=message):
        nn.Embedding(3, 2)(ids)

"""Gradients of published models' families, against derivatives by differences."""

from __future__ import annotations

import numpy as np
import pytest
from support.derivatives import check_by_differences
from support.published import write_model
from support.published_decoders import FAMILIES as DECODERS
from support.published_decoders import write_decoder
from support.published_encoders import ENCODERS, write_encoder

from pyattn import models

IDS = np.array([[2, 5, 7, 4], [3, 9, 1, 1]])
ATTENDED = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])


def load(folder):
    return models.load(folder, dtype=np.float64)


@pytest.mark.parametrize("family", ["bert", *ENCODERS])
def test_encoders(family, tmp_path):
    write_model(tmp_path) if family == "bert" else write_encoder(tmp_path, family)
    model = load(tmp_path)
    check_by_differences(model, (IDS,), {"attention_mask": ATTENDED}, unused=("pooler",))


def test_pooled_vectors(tmp_path):
    write_model(tmp_path)
    model = load(tmp_path)
    output, backward = model.vjp(IDS, token_type_ids=IDS % 2)
    rng = np.random.default_rng(1)
    grads = rng.standard_normal(output.last_hidden_state.shape), rng.standard_normal(output.pooler_output.shape)
    assert backward(grads) == (None, None)
    weight = model.pooler.dense.weight
    direction, before = rng.standard_normal(weight.shape), weight.copy()
    found = (model.grads["pooler.dense.weight"] * direction).sum()
    losses = []
    for sign in (1, -1):
        weight[...] = before + sign * 2.0**-20 * direction
        losses.append((model(IDS, token_type_ids=IDS % 2).pooler_output * grads[1]).sum())
    assert abs((losses[0] - losses[1]) * 2.0**19 - found) <= 3e-8 * (1 + abs(losses[0]) + abs(losses[1]))


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family, checkpoint, tmp_path):
    write_decoder(tmp_path, family)
    check_by_differences(load(tmp_path), (IDS,), {"attention_mask": ATTENDED}, checkpoint)


@pytest.mark.parametrize(("family", "padding"), [("bert", 0), ("roberta", 1), ("mobilebert", 0)])
def test_vectors_of_padding_get_no_gradient(family, padding, tmp_path):
    """As in transformers, whose tables have a padding_idx; that of positions is RoBERTa's alone."""
    write_model(tmp_path) if family == "bert" else write_encoder(tmp_path, family)
    model = load(tmp_path)
    output, backward = model.vjp(np.array([[2, 5, padding, padding]]))
    backward((np.ones_like(output.last_hidden_state) * np.arange(output.last_hidden_state.shape[-1]), None))
    words, positions = (model.grads[f"embeddings.{table}.weight"] for table in ("words", "positions"))
    assert not words[padding].any()
    assert words[[2, 5]].any(1).all()
    assert positions[padding].any() == (family != "roberta")


def test_a_decoder_counts_padding_from_the_end(tmp_path):
    model = load(write_decoder(tmp_path, "llama", pad_token_id=-1))
    assert model.embedding.padding_idx == model.vocab_size - 1

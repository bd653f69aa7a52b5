"""Token ids that many modules read: rows of different lengths, and none at all."""

from __future__ import annotations

import numpy as np
import pytest

from pyattn import nn
from pyattn.models.inputs import as_tokens


@pytest.mark.parametrize(
    ("read", "name"),
    [(nn.TransformerLM(13, 8, 2, 1, 12, rng=0).eval(), "input"), (lambda x: as_tokens(x, 13), "input_ids")],
    ids=["language model", "published models"],
)
def test_rows_of_different_lengths_are_refused(read, name):
    with pytest.raises(
        ValueError,
        match=rf"^{name} has rows of different lengths; ids, lengths = pyattn\.generation\.pad_sequences\({name}\) ",
    ):
        read([[1, 2], [3]])


def test_an_empty_array_of_strings_holds_no_ids():
    assert nn.Embedding(3, 2, rng=0)(np.array([], str)).shape == (0, 2)

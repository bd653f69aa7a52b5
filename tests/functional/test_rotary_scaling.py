"""frequencies: what a configuration may hold, and what it may not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.helpers import assert_same_bits
from support.rope_scalings import LLAMA3, LONGROPE, YARN

import pyattn
import pyattn.functional as rotary
from pyattn import nn


def test_theta_and_part_of_a_configuration():
    scaling = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
    found = rotary.rotary_frequencies(64, scaling=scaling)
    assert_same_bits(found.inv_freq, rotary.rotary_frequencies(64, theta=500, rotary_dim=16).inv_freq)
    assert_same_bits(found.inv_freq, rotary.rotary_frequencies(64, theta=500, rotary_dim=16, scaling=scaling).inv_freq)
    assert len(found.inv_freq) == 8
    assert (
        rotary.rotary_frequencies(64, scaling={}).inv_freq.tolist() == rotary.rotary_frequencies(64).inv_freq.tolist()
    )


def test_null_is_as_good_as_left_out():
    with_null = YARN | {"attention_factor": None, "beta_fast": None, "mscale": None, "type": None}
    assert_same_bits(
        rotary.rotary_frequencies(64, scaling=with_null).inv_freq, rotary.rotary_frequencies(64, scaling=YARN).inv_freq
    )


def test_a_configuration_may_come_from_json():
    text = json.dumps(LLAMA3 | {"rope_theta": 500000})
    expected = rotary.rotary_frequencies(64, theta=500000.0, scaling=LLAMA3)
    assert_same_bits(rotary.rotary_frequencies(64, scaling=json.loads(text)).inv_freq, expected.inv_freq)


def test_two_features_turn_by_one_whatever_theta_is():
    scaling = {"rope_type": "dynamic", "factor": 2}
    found = rotary.rotary_frequencies(2, scaling=scaling, max_position_embeddings=4, seq_len=100)
    assert found.inv_freq.tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"scaling": {"rope_type": "mrope"}},
            ValueError,
            r"scaling\['rope_type'\] is 'mrope'; it must be 'default', 'l",
        ),
        (
            {"scaling": {"rope_type": "yarn", "type": "linear"}},
            ValueError,
            "scaling has rope_type 'yarn' and type 'linear'; leave one of the two out",
        ),
        (
            {"scaling": {"rope_type": ["yarn"]}},
            ValueError,
            r"scaling\['rope_type'\] is of type list; it must be 'default'",
        ),
        ({"scaling": "linear"}, TypeError, "scaling is of type str, expected a dict, as rope_scaling of config.json"),
        (
            {"scaling": {"factor": 2.0}},
            ValueError,
            "^scaling has 'factor', which rope_type 'default' does not take; it may have 'rope_theta', 'partial_rot",
        ),
        (
            {"scaling": {"rope_type": "linear"}},
            ValueError,
            "^scaling lacks 'factor'; it takes 'factor' and may have 'rope_theta', 'partial_rotary_factor'$",
        ),
        (
            {"scaling": LLAMA3 | {"factor": None, "beta_fast": 3}},
            ValueError,
            "^scaling lacks 'factor' and has 'beta_fast', which rope_type 'llama3' does not take; it takes 'factor', "
            "'low_freq_factor', 'high_freq_factor' and may have 'original_max_position_embeddings', 'rope_theta', "
            "'partial_rotary_factor'$",
        ),
        (
            {"scaling": YARN | {"finetuned": True}},
            ValueError,
            "^scaling has 'finetuned', which rope_type 'yarn' does not take; it may have 'factor', 'orig",
        ),
        (
            {"scaling": {"rope_type": "linear", "factor": 0}},
            ValueError,
            r"scaling\['factor'\] is 0, expected a finite n",
        ),
        (
            {"scaling": {"rope_type": "linear", "factor": "2"}},
            TypeError,
            r"scaling\['factor'\] is of type str, expected",
        ),
        ({"scaling": {"rope_type": "linear", "factor": True}}, TypeError, r"scaling\['factor'\] is of type bool"),
        (
            {"scaling": {"rope_type": "dynamic", "factor": 2.0}},
            ValueError,
            "rope_type 'dynamic' needs max_position_embeddings; config.json has it next to rope_scaling",
        ),
        (
            {"scaling": YARN | {"original_max_position_embeddings": None}},
            ValueError,
            "scaling lacks 'original_max_position_embeddings', which rope_type 'yarn' needs; or pass max_position_emb",
        ),
        (
            {"scaling": YARN | {"factor": None}},
            ValueError,
            "scaling lacks 'factor', which rope_type 'yarn' needs; or p",
        ),
        (
            {"scaling": YARN | {"original_max_position_embeddings": 1.5}},
            TypeError,
            r"scaling\['original_max_position_embeddings'\] is of type float, expected an int",
        ),
        (
            {"scaling": YARN | {"beta_fast": 0.5}},
            ValueError,
            r"scaling\['beta_fast'\] is 0.5, expected beta_slow, 1.0, o",
        ),
        (
            {"scaling": YARN | {"truncate": 1}},
            TypeError,
            r"scaling\['truncate'\] is of type int, expected True or False",
        ),
        (
            {"scaling": YARN | {"mscale": -1}},
            ValueError,
            r"scaling\['mscale'\] is -1, expected a finite number of 0 or",
        ),
        (
            {"scaling": LLAMA3 | {"high_freq_factor": 1}},
            ValueError,
            r"scaling\['high_freq_factor'\] is 1.0, expected more than low_freq_factor, 1.0",
        ),
        (
            {"scaling": LONGROPE | {"short_factor": [1.0, 2.0]}, "max_position_embeddings": 100},
            ValueError,
            r"scaling\['short_factor'\] has 2 numbers, expected 32, one for each pair",
        ),
        (
            {"scaling": LONGROPE | {"long_factor": 3.0}, "max_position_embeddings": 100},
            TypeError,
            r"scaling\['long_factor'\] is of type float, expected a list of numbers",
        ),
        (
            {"scaling": LONGROPE | {"long_factor": [0.0] * 32}, "max_position_embeddings": 100},
            ValueError,
            r"scaling\['long_factor'\] is 0.0, expected a finite number above 0",
        ),
        (
            {"scaling": {"rope_theta": 5e5}, "theta": 1e4},
            ValueError,
            r"theta is 10000.0, but scaling\['rope_theta'\] is 500000.0; leave one of the two out",
        ),
        (
            {"scaling": {"partial_rotary_factor": 0.5}, "rotary_dim": 16},
            ValueError,
            "rotary_dim is 16, but scaling says 32, which is partial_rotary_factor, 0.5, of dim 64; leave one of the t",
        ),
        (
            {"scaling": {"partial_rotary_factor": 0.3}},
            ValueError,
            "rotary_dim is 19, which is partial_rotary_factor, 0.3, of dim 64, expected an even number of at most dim",
        ),
        ({"dim": -1}, ValueError, "dim is -1, expected 0 or more"),
        ({"dim": 6.0}, TypeError, "dim is of type float, expected an int"),
        ({"max_position_embeddings": 1}, ValueError, "max_position_embeddings is 1, expected 2 or more"),
        ({"seq_len": -1}, ValueError, "seq_len is -1, expected 0 or more"),
        ({"seq_len": True}, TypeError, "seq_len is of type bool, expected an int"),
    ],
    ids=lambda argument: str(argument)[:60],
)
def test_mistakes_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        rotary.rotary_frequencies(**{"dim": 64, **arguments})


# The length of the sequence


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "dynamic", "factor": 2.0}, LONGROPE | {"original_max_position_embeddings": 20}]
)
def test_the_length_is_the_largest_position_and_one_unless_it_is_said(scaling):
    x = np.random.default_rng(4).standard_normal((3, 6, 64))
    options = {"scaling": scaling, "max_position_embeddings": 20}
    long = rotary.rotary_frequencies(64, **options, seq_len=36)
    assert not np.array_equal(long.inv_freq, rotary.rotary_frequencies(64, **options, seq_len=20).inv_freq)
    expected = rotary.rotary_embedding(x, frequencies=long, offset=30)
    module = nn.RotaryEmbedding(64, **options)
    for call in (lambda x, **more: pyattn.functional.rotary_embedding(x, **options, **more), module):
        assert_same_bits(call(x, offset=30), expected)
        assert_same_bits(call(x, position_ids=range(30, 36)), expected)
        assert_same_bits(call(x, seq_len=36), rotary.rotary_embedding(x, frequencies=long))
        short = rotary.rotary_embedding(x, frequencies=rotary.rotary_frequencies(64, **options))
        assert_same_bits(call(x), short)
        assert_same_bits(call(x, position_ids=np.arange(6)), short)
    turned = pyattn.functional.rotary_embedding(x[:, :, None], **options, offset=30, layout="bshd")
    assert_same_bits(turned[:, :, 0], expected)


def test_what_a_message_quotes_is_short():
    """A config.json is another's text: its words are not repeated at any length."""
    long = "x" * 10_000
    for scaling in (
        {"rope_type": long},
        {"rope_type": [long] * 9},
        {"rope_type": "linear", "factor": 2.0, long: 1},
        {"rope_type": "linear", "factor": 2.0} | {f"{n}": n for n in range(10_000)},
        {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        | {"original_max_position_embeddings": -(10**4000)},
    ):
        with pytest.raises(ValueError, match=r"^scaling") as caught:
            rotary.rotary_frequencies(8, scaling=scaling)
        assert len(str(caught.value)) < 500

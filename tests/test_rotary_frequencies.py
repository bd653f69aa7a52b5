"""frequencies: every rope_type against its formula and against transformers, and what configurations may hold."""

from __future__ import annotations

import copy
import json
import math
import pickle

import numpy as np
import pytest
from helpers import assert_same_bits

import pyattn
from pyattn import nn, rotary

PAIRS = 32
rng = np.random.default_rng(0)
FACTORS = {name: np.round(rng.uniform(1, most, PAIRS), 3).tolist() for name, most in (("short", 1.5), ("long", 60))}
LONGROPE = {"rope_type": "longrope", "short_factor": FACTORS["short"], "long_factor": FACTORS["long"]}
YARN = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

# Name: theta, max_position_embeddings, scaling, lengths. Published configurations, and one for each key.
CASES = {
    "default": (1e4, 2048, {"rope_type": "default"}, [None]),
    "linear": (1e4, 2048, {"rope_type": "linear", "factor": 4.0}, [None]),
    "linear, older": (1e4, 2048, {"type": "linear", "factor": 2.5}, [None]),
    "dynamic": (1e4, 2048, {"rope_type": "dynamic", "factor": 2.0}, [None, 100, 2048, 2049, 9000]),
    "yarn": (1e4, 163840, YARN, [None]),
    "yarn, DeepSeek-V3": (
        1e4,
        163840,
        YARN | {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
        [None],
    ),
    "yarn, mscale": (1e4, 163840, YARN | {"mscale": 0.707, "mscale_all_dim": 1.2}, [None]),
    "yarn, one mscale": (1e4, 163840, YARN | {"mscale": 0.707, "mscale_all_dim": 0}, [None]),
    "yarn, gpt-oss": (
        150000.0,
        131072,
        YARN | {"factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        [None],
    ),
    "yarn, attention_factor": (1e6, 32768, YARN | {"factor": 4.0, "attention_factor": 0.8}, [None]),
    "yarn, no factor": (1e6, 16384, YARN | {"factor": None}, [None]),
    "yarn, a steep ramp": (1e4, 8192, YARN | {"beta_fast": 2.0, "beta_slow": 2.0, "truncate": False}, [None]),
    "yarn, short": (1e4, 16, YARN | {"original_max_position_embeddings": 4}, [None]),
    "longrope": (1e4, 131072, LONGROPE | {"original_max_position_embeddings": 4096}, [None, 10, 4096, 4097]),
    "longrope, factor": (
        1e4,
        131072,
        LONGROPE | {"original_max_position_embeddings": 4096, "factor": 4.0},
        [4096, 5000],
    ),
    "longrope, attention_factor": (
        1e4,
        131072,
        LONGROPE | {"original_max_position_embeddings": 4096, "attention_factor": 1.3},
        [5000],
    ),
    "longrope, no factor": (1e4, 4096, LONGROPE | {"original_max_position_embeddings": 4096}, [5000]),
    "llama3": (500000.0, 131072, LLAMA3, [None]),
    "llama3, small": (500000.0, 131072, LLAMA3 | {"factor": 32.0, "high_freq_factor": 1.5}, [None]),
}
every_case = pytest.mark.parametrize(
    ("name", "length"), [(name, length) for name, case in CASES.items() for length in case[3]]
)


def ours(name, length):
    theta, most, scaling, _ = CASES[name]
    return rotary.frequencies(2 * PAIRS, theta=theta, scaling=scaling, max_position_embeddings=most, seq_len=length)


def formula(name, length):
    """(inv_freq, attention_factor), a pair at a time, from the papers."""
    theta, most, scaling, _ = CASES[name]
    kind, dim = scaling.get("rope_type", scaling.get("type")), 2 * PAIRS
    trained = scaling.get("original_max_position_embeddings") or most
    s = scaling.get("factor") or most / trained
    f = [theta ** (-2 * n / dim) for n in range(PAIRS)]
    if kind == "linear":
        return [x / s for x in f], 1.0
    if kind == "dynamic":
        stretched = theta * (1 + s * (max(length or 0, most) / most - 1)) ** (dim / (dim - 2))
        return [stretched ** (-2 * n / dim) for n in range(PAIRS)], 1.0
    if kind == "longrope":
        divisors = scaling["long_factor" if (length or 0) > trained else "short_factor"]
        temperature = math.sqrt(1 + math.log(s, trained)) if s > 1 else 1.0
        return [x / d for x, d in zip(f, divisors, strict=True)], scaling.get("attention_factor", temperature)
    if kind == "llama3":
        return [llama3_of(x, s, trained, scaling) for x in f], 1.0
    if kind == "yarn":
        a, b = scaling.get("mscale"), scaling.get("mscale_all_dim")
        tenth = 0.1 * math.log(s)
        temperature = (1 + a * tenth) / (1 + b * tenth) if a and b else 1 + tenth
        kept = yarn_kept(theta, trained, scaling, dim)
        return [x / s + (x - x / s) * k for x, k in zip(f, kept, strict=True)], scaling.get(
            "attention_factor", temperature
        )
    return f, 1.0


def llama3_of(x, s, trained, scaling):
    wavelength = 2 * math.pi / x
    longest, shortest = trained / scaling["low_freq_factor"], trained / scaling["high_freq_factor"]
    if wavelength > longest:
        return x / s
    if wavelength < shortest:
        return x
    # 1 / wavelength goes from 1 / longest, where the frequency is divided, to 1 / shortest, where it is not.
    part = (1 / wavelength - 1 / longest) / (1 / shortest - 1 / longest)
    return x / s + (x - x / s) * part


def yarn_kept(theta, trained, scaling, dim):
    """Which part of each pair's frequency stays: 1 up to the pair that turns beta_fast times, 0 from beta_slow on."""
    turns = (scaling.get("beta_fast") or 32, scaling.get("beta_slow") or 1)
    # trained * theta ** (-2n / dim) = 2 pi turns, solved for n
    ends = [dim / 2 * math.log(trained / (2 * math.pi * turn), theta) for turn in turns]
    if scaling.get("truncate", True):
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(0, ends[0]), min(dim - 1, ends[1])
    width = 0.001 if low == high else high - low
    return [1 - min(1, max(0, (n - low) / width)) for n in range(PAIRS)]


@every_case
def test_against_the_formula(name, length):
    inv_freq, attention_factor = ours(name, length)
    expected, temperature = formula(name, length)
    assert inv_freq.dtype == np.float64
    np.testing.assert_allclose(inv_freq, expected, rtol=1e-11)  # the ramp cancels
    assert math.isclose(attention_factor, temperature, rel_tol=1e-14)


@pytest.mark.peers
@every_case
def test_is_transformers(name, length, transformers):
    """It computes in float32: an exponent's rounding counts ln(theta) times, and a ramp's up to factor times more."""
    theta, most, scaling, _ = CASES[name]
    scaling = scaling | {"rope_theta": theta}
    scaling.setdefault("rope_type", scaling.get("type"))
    config = transformers.LlamaConfig(
        head_dim=2 * PAIRS,
        hidden_size=2 * PAIRS,
        num_attention_heads=1,
        max_position_embeddings=most,
        rope_parameters=copy.deepcopy(scaling),
    )
    kind = scaling["rope_type"]
    if kind == "default":
        module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
        theirs, temperature = module.inv_freq, module.attention_scaling
    else:
        theirs, temperature = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind](config, seq_len=length)
    inv_freq, attention_factor = ours(name, length)
    ramp = {"yarn": 1, "llama3": 8}.get(kind, 0) * (scaling.get("factor") or 4)
    np.testing.assert_allclose(inv_freq, theirs.numpy(), rtol=2.0**-24 * (4 + math.log(theta)) * (1 + ramp))
    assert math.isclose(attention_factor, float(temperature), rel_tol=1e-14)


# Whole functions of transformers


@pytest.mark.peers
@pytest.mark.parametrize("rotary_dim", [16, 64])
def test_is_gpt_js(rotary_dim, torch, transformers):
    """Neighbours, of a part of the features, in its own layout; float32 positions and angles on their side."""
    theirs = transformers.models.gptj.modeling_gptj
    x = np.random.default_rng(1).standard_normal((2, 30, 3, 64), np.float32)
    sines, cosines = torch.split(theirs.create_sinusoidal_positions(30, rotary_dim), rotary_dim // 2, dim=-1)
    turned = theirs.apply_rotary_pos_emb(torch.from_numpy(x[..., :rotary_dim]), sines[None], cosines[None]).numpy()
    y = pyattn.rotary_embedding(x, rotary_dim=rotary_dim, interleaved=True, layout="bshd")
    u = 2.0**-24
    size = np.abs(x[..., :rotary_dim]).reshape(2, 30, 3, -1, 2).sum(-1).repeat(2, axis=-1)
    # Positions below 30, times a frequency that is off by 4 + ln(theta) units.
    assert (np.abs(y[..., :rotary_dim] - turned) <= u * (8 + 30 * (5 + math.log(1e4))) * size).all()
    assert_same_bits(y[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.peers
@pytest.mark.parametrize("name", ["default", "linear", "dynamic", "yarn, gpt-oss", "longrope", "llama3"])
def test_is_llamas(name, torch, transformers):
    theta, most, scaling, _ = CASES[name]
    config = transformers.LlamaConfig(
        head_dim=64,
        hidden_size=192,
        num_attention_heads=3,
        max_position_embeddings=most,
        rope_parameters=copy.deepcopy(scaling) | {"rope_theta": theta},
    )
    theirs = transformers.models.llama.modeling_llama
    x = np.random.default_rng(2).standard_normal((2, 3, 40, 64), np.float32)
    ids = np.random.default_rng(3).integers(0, 50, (2, 40))
    if name in ("dynamic", "longrope"):
        ids[0, 0] = 5000  # beyond the trained length
    cosines, sines = theirs.LlamaRotaryEmbedding(config)(torch.from_numpy(x), torch.from_numpy(ids))
    turned = theirs.apply_rotary_pos_emb(*[torch.from_numpy(x)] * 2, cosines, sines)[0].numpy()
    module = nn.RotaryEmbedding(64, theta=theta, scaling=scaling, max_position_embeddings=most)
    y = module(x, position_ids=ids)
    size = np.abs(x).reshape(2, 3, 40, 2, 32).sum(-2)
    size = np.concatenate([size, size], axis=-1) * module.frequencies().attention_factor
    ramp = {"llama3": 64, "yarn, gpt-oss": 32}.get(name, 0)
    angle = (ids[:, None, :, None] + 1) * (5 + math.log(theta)) * (1 + ramp)
    assert (np.abs(y - turned) <= 2.0**-24 * (8 + angle) * size).all()


# What a configuration may hold


def test_theta_and_part_of_a_configuration():
    scaling = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}
    found = rotary.frequencies(64, scaling=scaling)
    assert_same_bits(found.inv_freq, rotary.frequencies(64, theta=500, rotary_dim=16).inv_freq)
    assert_same_bits(found.inv_freq, rotary.frequencies(64, theta=500, rotary_dim=16, scaling=scaling).inv_freq)
    assert len(found.inv_freq) == 8
    assert rotary.frequencies(64, scaling={}).inv_freq.tolist() == rotary.frequencies(64).inv_freq.tolist()


def test_null_is_as_good_as_left_out():
    with_null = YARN | {"attention_factor": None, "beta_fast": None, "mscale": None, "type": None}
    assert_same_bits(rotary.frequencies(64, scaling=with_null).inv_freq, rotary.frequencies(64, scaling=YARN).inv_freq)


def test_a_configuration_may_come_from_json():
    text = json.dumps(LLAMA3 | {"rope_theta": 500000})
    assert_same_bits(rotary.frequencies(64, scaling=json.loads(text)).inv_freq, ours("llama3", None).inv_freq)


def test_two_features_turn_by_one_whatever_theta_is():
    scaling = {"rope_type": "dynamic", "factor": 2}
    found = rotary.frequencies(2, scaling=scaling, max_position_embeddings=4, seq_len=100)
    assert found.inv_freq.tolist() == [1.0]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"scaling": {"rope_type": "mrope"}},
            ValueError,
            "scaling has rope_type 'mrope', expected one of 'default', 'l",
        ),
        (
            {"scaling": {"rope_type": "yarn", "type": "linear"}},
            ValueError,
            "scaling has rope_type 'yarn' and 'linear',",
        ),
        ({"scaling": {"rope_type": ["yarn"]}}, ValueError, r"scaling has rope_type \['yarn'\], expected one of"),
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
            "rope_type 'dynamic' needs max_position_embeddings, which is beside it in config.json",
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
        rotary.frequencies(**{"dim": 64, **arguments})


# The length of the sequence


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "dynamic", "factor": 2.0}, LONGROPE | {"original_max_position_embeddings": 20}]
)
def test_the_length_is_the_largest_position_and_one_unless_it_is_said(scaling):
    x = np.random.default_rng(4).standard_normal((3, 6, 64))
    options = {"scaling": scaling, "max_position_embeddings": 20}
    long = rotary.frequencies(64, **options, seq_len=36)
    assert not np.array_equal(long.inv_freq, rotary.frequencies(64, **options, seq_len=20).inv_freq)
    expected = rotary.turn(x, long, offset=30)
    module = nn.RotaryEmbedding(64, **options)
    for call in (lambda x, **more: pyattn.rotary_embedding(x, **options, **more), module):
        assert_same_bits(call(x, offset=30), expected)
        assert_same_bits(call(x, position_ids=range(30, 36)), expected)
        assert_same_bits(call(x, seq_len=36), rotary.turn(x, long))
        short = rotary.turn(x, rotary.frequencies(64, **options))
        assert_same_bits(call(x), short)
        assert_same_bits(call(x, position_ids=np.arange(6)), short)
    turned = pyattn.rotary_embedding(x[:, :, None], **options, offset=30, layout="bshd")
    assert_same_bits(turned[:, :, 0], expected)


# The module


def test_the_module_is_the_function(dtype):
    x = np.random.default_rng(5).standard_normal((2, 5, 3, 24)).astype(dtype)
    module = nn.RotaryEmbedding(24, theta=500, rotary_dim=16, interleaved=True, layout="bshd")
    options = {"theta": 500, "rotary_dim": 16, "interleaved": True, "layout": "bshd"}
    expected = pyattn.rotary_embedding(x, **options, offset=9)
    assert_same_bits(module(x, offset=9), expected)
    assert_same_bits(module(input=x, position_ids=[[9, 10, 11, 12, 13]]), expected)
    for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert_same_bits(other(x, offset=9), expected)
        assert repr(other) == repr(module)
    assert module(x, offset=9, out=x) is x
    assert_same_bits(x, expected)
    assert pyattn.RotaryEmbedding is nn.RotaryEmbedding


def test_the_module_has_no_parameters():
    module = nn.RotaryEmbedding(8)
    assert list(module.parameters()) == []
    assert module.state_dict() == {}
    assert module.dtype is None
    assert module.to("float64")(np.ones((1, 8), "f4")).dtype == np.float32


def test_the_module_keeps_a_configuration_of_its_own():
    scaling = dict(YARN)
    module = nn.RotaryEmbedding(64, scaling=scaling)
    before = module.frequencies().inv_freq
    scaling["factor"] = 2.0
    assert_same_bits(module.frequencies().inv_freq, before)


def test_the_modules_repr():
    assert repr(nn.RotaryEmbedding(64)) == "RotaryEmbedding(64, theta=10000.0)"
    module = nn.RotaryEmbedding(
        64, interleaved=True, layout="bshd", scaling={"rope_theta": 5e5, "partial_rotary_factor": 0.5}
    )
    assert repr(module) == (
        "RotaryEmbedding(64, theta=500000.0, rotary_dim=32, interleaved=True, "
        "scaling={'rope_theta': 500000.0, 'partial_rotary_factor': 0.5}, layout='bshd')"
    )


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: nn.RotaryEmbedding(8)(np.ones((2, 6))),
            ValueError,
            r"input has shape \(2, 6\), expected \(..., 8\): dim",
        ),
        (lambda: nn.RotaryEmbedding(8)(3.0), ValueError, r"input has shape \(\), expected \(..., 8\)"),
        (lambda: nn.RotaryEmbedding(8)(np.ones((1, 8), complex)), TypeError, "input has dtype complex128, expected"),
        (lambda: nn.RotaryEmbedding(7), ValueError, "rotary_dim is 7, expected an even number"),
        (lambda: nn.RotaryEmbedding(8.0), TypeError, "dim is of type float, expected an int"),
        (lambda: nn.RotaryEmbedding(8, layout="bsd"), ValueError, "layout is 'bsd', expected 'bhsd' or 'bshd'"),
        (lambda: nn.RotaryEmbedding(8, interleaved=1), TypeError, "interleaved is of type int, expected True or False"),
        (
            lambda: nn.RotaryEmbedding(8, scaling={"type": "ntk"}),
            ValueError,
            "scaling has rope_type 'ntk', expected one",
        ),
    ],
)
def test_mistakes_with_the_module_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()

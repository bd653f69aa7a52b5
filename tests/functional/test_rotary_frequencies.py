"""frequencies: every rope_type against its formula and against transformers."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from support.helpers import assert_same_bits
from support.rope_scalings import LLAMA3, LONGROPE, PAIRS, YARN

import pyattn
import pyattn.functional as rotary
from pyattn import nn

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
    return rotary.rotary_frequencies(
        2 * PAIRS, theta=theta, scaling=scaling, max_position_embeddings=most, seq_len=length
    )


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
    y = pyattn.functional.rotary_embedding(x, rotary_dim=rotary_dim, interleaved=True, layout="bshd")
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

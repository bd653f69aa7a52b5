"""Training: torch's run, step by step, and a run that is saved and resumed.

Ctrl-C in a training step is tried in tests/core/test_interrupt.py.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import pytest
from support import training
from support.helpers import assert_same_bits, run_python

from pyattn import nn, optim
from pyattn.nn import losses

# torch ------------------------------------------------------------------------------------------------------------

FORMS = {
    "float64": ("float64", 200, "relu", False),
    "float32": ("float32", 50, "relu", False),
    "float64, norm first, gelu": ("float64", 200, "gelu", True),
}
SLOW = ("float64, norm first, gelu",)


class Twins(NamedTuple):
    """What two runs found: losses and norms as (step, two), arrays as pairs by name."""

    dtype: str
    losses: np.ndarray
    norms: np.ndarray
    gradients: dict
    parameters: dict
    states: dict


def batch_of(rng, dtype):
    """Draw sources, targets, what to learn of both, and the padding of the sources."""
    source = rng.standard_normal((4, 7, 16))
    target = np.cumsum(rng.standard_normal((4, 5, 16)), axis=1) / 2
    wanted = np.cos(source[:, :5] + target[:, ::-1])
    padding = np.arange(7) >= np.array([7, 5, 6, 3])[:, None]
    return source.astype(dtype), target.astype(dtype), wanted.astype(dtype), padding


def pairs_of(own, theirs):
    """Pair arrays with tensors by name."""
    return {name: (own[name].copy(), tensor.detach().numpy().copy()) for name, tensor in theirs}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in FORMS],
)
def twins(request, torch):
    """Train ours and torch's on the same batches: AdamW with warm-up, clipping, and a causal mask beside padding."""
    dtype, steps, activation, norm_first = FORMS[request.param]
    torch.manual_seed(1)
    options = {"batch_first": True, "norm_first": norm_first}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about nested tensors with norm_first
        theirs = torch.nn.Transformer(16, 2, 2, 2, 32, 0.0, activation, **options, dtype=getattr(torch, dtype))
    ours = nn.Transformer(16, 2, 2, 2, 32, 0.0, activation, **options, dtype=dtype)
    ours.load_state_dict(theirs.state_dict())
    named = dict(theirs.named_parameters())
    optimizer, other = optim.AdamW(ours, 3e-3), torch.optim.AdamW(named.values(), 3e-3)
    schedule = optim.LambdaLR(optimizer, lambda n: min(1, (n + 1) / 20))
    other_schedule = torch.optim.lr_scheduler.LambdaLR(other, lambda n: min(1, (n + 1) / 20))
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)

    rng, found, norms, gradients = np.random.default_rng(3), [], [], {}
    for _ in range(steps):
        source, target, wanted, padding = batch_of(rng, dtype)
        hidden = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
        output, backward = ours.vjp(source, target, **hidden, tgt_is_causal=True)
        loss, grad = losses.mse_loss(output, wanted)
        backward(grad)
        tensors = {name: torch.from_numpy(mask) for name, mask in hidden.items()}
        prediction = theirs(torch.from_numpy(source), torch.from_numpy(target), **tensors, tgt_mask=later)
        other_loss = torch.nn.functional.mse_loss(prediction, torch.from_numpy(wanted))
        other.zero_grad()
        other_loss.backward()
        gradients = gradients or pairs_of(ours.grads, [(name, one.grad) for name, one in named.items()])
        norms.append([optim.clip_grad_norm_(ours, 1.0), float(torch.nn.utils.clip_grad_norm_(named.values(), 1.0))])
        for one in (optimizer, other, schedule, other_schedule):
            one.step()
        ours.zero_grad()
        found.append([loss, other_loss.item()])

    states = {}
    for moment in ("exp_avg", "exp_avg_sq"):
        own = {name: state[moment] for name, state in optimizer.state.items()}
        own = pairs_of(own, [(name, other.state[one][moment]) for name, one in named.items()])
        states |= {f"{moment} of {name}": pair for name, pair in own.items()}
    parameters = pairs_of(dict(ours.named_parameters()), named.items())
    return Twins(dtype, np.array(found), np.array(norms), gradients, parameters, states)


def furthest(pairs):
    """Return the largest difference of pairs, as a share of the largest element of its array."""
    shares = {name: np.abs(own - other).max() / np.abs(other).max() for name, (own, other) in pairs.items()}
    return max(shares.values()), max(shares, key=shares.__getitem__)


# Rounding: the longest chain of a gradient has some 1,000 additions, each off by at most half a unit in the last place.
# They are as good as random, so that the sum of all stays below 4 * sqrt(1,000) of them. Losses, norms and the averages
# that AdamW keeps are off in that proportion, and by what the weights of earlier steps were off: 8 times as much.
CHAIN = {"float64": 130 * 2.0**-53, "float32": 130 * 2.0**-24}


@pytest.mark.peers
def test_the_first_gradients_are_torchs(twins):
    assert len(twins.gradients) == 64
    share, name = furthest(twins.gradients)
    assert share <= CHAIN[twins.dtype], name


@pytest.mark.peers
def test_all_losses_are_torchs(twins):
    own, theirs = twins.losses.T
    assert np.abs(own / theirs - 1).max() <= 8 * CHAIN[twins.dtype]
    assert own[-10:].mean() < (0.5 if len(own) == 200 else 0.8) * own[:10].mean()  # it learns


@pytest.mark.peers
def test_the_states_of_adamw_are_torchs_after_all_steps(twins, summary):
    assert len(twins.states) == 128
    share, name = furthest(twins.states)
    summary.setdefault("training beside torch's", []).append(f"{twins.dtype}: states within {share:.1e}")
    assert share <= 8 * CHAIN[twins.dtype], name


@pytest.mark.peers
def test_norms_are_torchs_and_some_are_clipped(twins):
    own, theirs = twins.norms.T
    np.testing.assert_allclose(own, theirs, rtol=8 * CHAIN[twins.dtype])
    assert 0 < (own > 1).mean() < 1


@pytest.mark.peers
def test_the_trained_parameters_are_torchs(twins):
    """But for the biases of keys, whose gradient is rounding alone: a softmax does not see them."""
    pairs = dict(twins.parameters)
    for name in [name for name in pairs if name.endswith("in_proj_bias")]:
        pairs[name] = tuple(np.delete(bias, np.s_[16:32]) for bias in pairs[name])
    share, name = furthest(pairs)
    assert share <= {"float64": 1e-7, "float32": 0.05}[twins.dtype], name


# Save and resume --------------------------------------------------------------------------------------------------

RESUME = """
import json, sys
from support import training
run = training.begin({dtype!r})
training.load(run, {folder!r}, {ending!r})
losses = training.train(run, 6)
training.save(run, {folder!r}, {ending!r})
print(json.dumps(losses))
"""


@pytest.mark.threads
@pytest.mark.parametrize(("dtype", "ending"), [("float32", ".npz"), ("float64", ".safetensors"), ("float16", ".npz")])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(dtype, ending, tmp_path, levels):
    """Another process resumes it, with other threads, and at the lowest level of vectors: scalars round differently."""
    level = [level for level in levels if level != "scalar" or len(levels) == 1][-1]
    whole, half = training.begin(dtype), training.begin(dtype)
    expected = training.train(whole, 12)
    begun = training.train(half, 6)
    training.save(half, tmp_path, ending)
    script = RESUME.format(dtype=dtype, folder=str(tmp_path), ending=ending)
    done = run_python(script, PYATTN_NUM_THREADS="3", PYATTN_ISA=level)
    assert str(begun + [float(x) for x in done.stdout.strip("[]\n").split(", ")]) == str(expected)
    resumed = training.begin(dtype)
    training.load(resumed, tmp_path, ending)
    assert resumed.rng.bit_generator.state == whole.rng.bit_generator.state
    assert resumed.optimizer.param_groups == whole.optimizer.param_groups
    assert resumed.schedule.state_dict() == whole.schedule.state_dict()
    arrays = training.arrays_of(whole)
    assert [*training.arrays_of(resumed)] == [*arrays]
    for name, array in training.arrays_of(resumed).items():
        assert_same_bits(array, arrays[name], name)


@pytest.mark.parametrize("part", ["model", "optimizer", "schedule", "rng"])
def test_a_run_resumed_without_a_part_of_it_differs(part, tmp_path):
    """Or the test above would prove nothing about that part."""
    run = training.begin()
    training.train(run, 6)
    training.save(run, tmp_path, ".npz")
    found = []
    for without in ((), (part,)):
        again = training.begin()
        training.load(again, tmp_path, ".npz", without)
        found.append(training.train(again, 3)[-1])
    assert found[0] != found[1]


def test_checkpoints_of_layers_give_the_same_bits():
    """With dropout, whose generator goes on as without them."""
    plain, saving = training.begin(), training.begin()
    assert training.train(plain, 4) == training.train(saving, 4, checkpoint=True)
    assert plain.rng.bit_generator.state == saving.rng.bit_generator.state
    for name, array in training.arrays_of(saving).items():
        assert_same_bits(array, training.arrays_of(plain)[name], name)

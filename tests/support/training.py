"""A run of training that can be saved and resumed: a language model, its optimiser, its schedule and its generator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pyattn import nn, optim
from pyattn.nn import losses


class Run(NamedTuple):
    """All that a step reads or changes."""

    model: nn.TransformerLM
    optimizer: optim.AdamW
    schedule: optim.LRScheduler
    rng: np.random.Generator


def begin(dtype="float32"):
    """Make a run, whose biases and norms are not decayed."""
    model = nn.TransformerLM(13, 8, 2, 2, 16, 0.2, padding_idx=0, tie_weights=True, dtype=dtype, rng=4)
    small = [name for name, array in model.named_parameters() if array.ndim < 2]
    optimizer = optim.AdamW(model, 3e-2, weight_decay=0.1, groups=[{"params": small, "weight_decay": 0.0}])
    return Run(model, optimizer, optim.CosineWarmupLR(optimizer, 4, 40), np.random.default_rng(7))


def train(run, steps, **options):
    """Return the losses. Batches and seeds of dropout are drawn from the run's generator."""
    found = []
    for _ in range(steps):
        ids = run.rng.integers(1, 13, (6, 9))
        ids[0, 7:] = 0
        logits, backward = run.model.vjp(ids[:, :-1], rng=run.rng, **options)
        loss, grad = losses.cross_entropy(logits, ids[:, 1:], ignore_index=0)
        backward(grad)
        optim.clip_grad_norm_(run.model, 0.5)
        run.optimizer.step()
        run.schedule.step()
        run.model.zero_grad()
        found.append(loss)
    return found


def save(run, folder, ending):
    """Write three files: the parameters, the optimiser's arrays, and the rest."""
    nn.save(run.model, Path(folder, f"model{ending}"))
    state = run.optimizer.state_dict()
    arrays = {f"{n}.{name}": array for n, own in state["state"].items() for name, array in own.items()}
    nn.save(arrays, Path(folder, f"optimizer{ending}"))
    rest = {"param_groups": state["param_groups"], "schedule": run.schedule.state_dict()}
    Path(folder, "rest.json").write_text(json.dumps({**rest, "rng": run.rng.bit_generator.state}))


def load(run, folder, ending, without=()):
    """Continue what was saved, but for the parts that are named."""
    if "model" not in without:
        run.model.load_state_dict(nn.load(Path(folder, f"model{ending}")))
    rest = json.loads(Path(folder, "rest.json").read_text())
    state: dict[int, dict[str, np.ndarray]] = {}
    for key, array in nn.load(Path(folder, f"optimizer{ending}")).items():
        n, _, name = key.partition(".")
        state.setdefault(int(n), {})[name] = array
    if "optimizer" not in without:
        run.optimizer.load_state_dict({"state": state, "param_groups": rest["param_groups"]})
    if "schedule" not in without:
        run.schedule.load_state_dict(rest["schedule"])
    if "rng" not in without:
        run.rng.bit_generator.state = rest["rng"]


def arrays_of(run):
    """Return all arrays of a run by name, and copies of them."""
    found = {name: array.copy() for name, array in run.model.named_parameters()}
    for name, own in run.optimizer.state.items():
        found |= {f"{name}, {key}": np.array(value) for key, value in own.items()}
    return found

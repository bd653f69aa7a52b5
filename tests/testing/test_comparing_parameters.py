"""pyattn.compare holds parameters against each other: results in half precision cannot tell them apart."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import pyattn

pytestmark = pytest.mark.peers

E = 24
QUERY, MEMORY = (np.random.default_rng(n).standard_normal((3, n, E), np.float32) for n in (6, 9))


def twins(torch, **options):
    theirs = torch.nn.MultiheadAttention(E, 4, batch_first=True, **options).eval()
    return pyattn.interop.torch.from_torch(theirs), theirs


def shift_key_bias(torch, theirs):
    theirs.in_proj_bias[E : 2 * E].add_(0.05)


def shift_one_output_bias(torch, theirs):
    theirs.out_proj.bias[3] += 0.05


def stretch_query_weights(torch, theirs):
    theirs.in_proj_weight[:E].mul_(1.05)


def shift_key_row(torch, theirs):
    theirs.bias_k.add_(0.05)


@pytest.mark.parametrize(
    ("change", "name", "stage"),
    [
        (shift_key_bias, "bias of key", "key"),
        (shift_one_output_bias, "bias of the output projection", "output"),
        (stretch_query_weights, "weight of query", "query"),
        (shift_key_row, "bias_k", "key"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_parameter_is_held_to_one_cast(change, name, stage, kind, torch):
    ours, theirs = twins(torch, add_bias_kv=True)
    half = copy.deepcopy(theirs).to(getattr(torch, kind))
    assert pyattn.compare(ours, half, QUERY, MEMORY, MEMORY).equal
    with torch.no_grad():
        change(torch, half)
    report = pyattn.compare(ours, half, QUERY, MEMORY, MEMORY)
    assert (report.equal, report.stage) == (False, stage), report
    (parameter,) = report.parameters
    assert parameter.what.startswith(f"has another {name}: [")
    assert f"which a cast to {kind} does not explain" in parameter.what


def test_what_hides_behind_another_fault_is_named(torch):
    ours, theirs = twins(torch)
    half = copy.deepcopy(theirs).bfloat16()
    with torch.no_grad():
        key = half.in_proj_weight[E : 2 * E]
        key.copy_(key.T.clone())
        half.out_proj.bias[3] += 0.05
    report = pyattn.compare(ours, half, QUERY, MEMORY, MEMORY)
    assert (report.cause.name, report.stage) == ("weights transposed", "key")
    line = "Other parameters that differ by more than a cast: bias of the output projection."
    assert line in str(report).splitlines()


def test_what_no_stage_shows_is_said(torch):
    ours, theirs = twins(torch)
    half = copy.deepcopy(theirs).bfloat16()
    with torch.no_grad():
        half.out_proj.bias[3] += 0.05
    report = pyattn.compare(ours, half, QUERY, MEMORY, MEMORY)
    assert all(stage.equal for stage in report.stages)
    assert (report.cause.name, report.causes) == ("other parameters", ())
    assert "The stages do not show it: it is smaller than their rounding bounds." in str(report)


def test_a_cause_of_all_stages_needs_no_other_parameters(torch):
    """The bias is off by too little for the stages, so that the heads explain all of them."""
    ours, theirs = twins(torch)
    half = copy.deepcopy(theirs).bfloat16()
    half.num_heads, half.head_dim = 2, E // 2
    with torch.no_grad():
        half.out_proj.bias[3] += 0.05
    report = pyattn.compare(ours, half, QUERY, MEMORY, MEMORY)
    assert [cause.name for cause in report.causes] == ["number of heads"]
    assert [parameter.stage for parameter in report.parameters] == ["output"]
    assert report.complete
    assert "No known cause" not in str(report)

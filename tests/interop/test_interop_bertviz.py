"""pyattn.interop.bertviz: weights in the shape and order that bertviz needs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.helpers import run_python
from support.pictures import draw_weights

import pyattn
from pyattn.interop.bertviz import attentions

LAYERS = [draw_weights(4, 5, 7), draw_weights(4, 5, 7)[::-1]]
RESULT = pyattn.attention(*np.ones((3, 2, 4, 3)), need_weights=True)


def test_each_layer_becomes_a_batch_of_one():
    given = attentions(LAYERS)
    assert type(given) is tuple
    for array, layer in zip(given, LAYERS, strict=True):
        np.testing.assert_array_equal(array, layer[np.newaxis])


@pytest.mark.parametrize("weights", [np.stack(LAYERS), [layer[np.newaxis] for layer in LAYERS], iter(LAYERS)])
def test_layers_may_come_as_one_array_or_with_their_batch_axis(weights):
    for array, layer in zip(attentions(weights), LAYERS, strict=True):
        np.testing.assert_array_equal(array[0], layer)


def test_nothing_is_copied():
    assert all(np.shares_memory(array, layer) for array, layer in zip(attentions(LAYERS), LAYERS, strict=True))


def test_the_weights_of_a_module_fit():
    mha = pyattn.MultiheadAttention(8, 2, batch_first=True, rng=0)
    x = np.random.default_rng(0).random((1, 5, 8), np.float32)
    _, weights = mha(x, x, x, average_attn_weights=False)
    (layer,) = attentions([weights])
    assert layer.shape == (1, 2, 5, 5)
    assert layer.dtype == np.float32


@pytest.mark.peers
def test_tensors_stack_as_bertviz_does(torch):
    """bertviz's format_attention squeezes the batch axis of each layer, then stacks the layers."""
    tensors = attentions(LAYERS[:1] * 2, tensors=True)
    stacked = torch.stack([tensor.squeeze(0) for tensor in tensors])
    np.testing.assert_array_equal(stacked.numpy(), np.stack(LAYERS[:1] * 2))


@pytest.mark.peers
def test_read_only_and_reversed_weights_become_tensors(torch):
    fixed = draw_weights(2, 3, 3)
    fixed.flags.writeable = False
    for weights in (fixed, draw_weights(2, 3, 3)[::-1]):
        (tensor,) = attentions([weights], tensors=True)
        np.testing.assert_array_equal(tensor.numpy()[0], weights)


def test_torch_is_not_imported_without_tensors():
    run_python("import sys, pyattn; pyattn.interop.bertviz.attentions([[[[1.0]]]]); assert 'torch' not in sys.modules")


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import pyattn
from pyattn.interop import *
assert hasattr(pyattn.interop, "torch") and hasattr(pyattn.interop, "bertviz") and not hasattr(pyattn.interop, "jax")
for call in (
    lambda: pyattn.interop.torch.to_torch(pyattn.nn.Linear(1, 1)),
    lambda: pyattn.interop.torch.from_torch(None),
    lambda: pyattn.interop.bertviz.attentions([[[[1.0]]]], tensors=True),
):
    try:
        call()
    except ImportError as error:
        print(error)
"""


def test_interop_without_torch_says_how_to_install_it():
    needed = "pyattn.interop.torch needs", "pyattn.interop.torch needs", "tensors=True needs"
    assert run_python(WITHOUT_TORCH).stdout.splitlines() == [f"{name} PyTorch: pip install torch" for name in needed]


MISTAKES = [
    ([], ValueError, "weights is empty, expected one array per layer"),
    (LAYERS[0], ValueError, "weights[0] has shape (5, 7), expected (heads, L, S); pass a single layer as [weights]"),
    (
        [np.ones((2, 4, 5, 5))],
        ValueError,
        "weights[0] has a batch of 2, expected (heads, L, S); pass one entry, weights",
    ),
    ([np.ones(3)], ValueError, "weights[0] has shape (3,), expected (heads, L, S) or (1, heads, L, S)"),
    (
        [np.ones((4, 5, 5)), np.ones((2, 5, 5))],
        ValueError,
        "weights[1] has shape (2, 5, 5), weights[0] has (4, 5, 5); bertviz needs the same shape for all layers",
    ),
    ([[["a"]]], TypeError, "weights[0] holds text (dtype <U1)"),
    (None, TypeError, "weights is of type NoneType, expected one array per layer"),
    (RESULT, TypeError, "weights is of type AttentionResult, expected one array per layer; pass [weights.we"),
    (
        [RESULT],
        TypeError,
        "weights[0] is of type AttentionResult, expected an array (heads, L, S); pass weights[0].",
    ),
]


def test_mistakes_are_named():
    for weights, kind, message in MISTAKES:
        with pytest.raises(kind, match=re.escape(message)):
            attentions(weights)

"""Calls that people type before they have read the documentation: the message alone says how to mend them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.helpers import for_each

import pyattn
from pyattn import nn

X, W = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
TRIANGLE = np.tri(3, dtype=int)


def language_model():
    return nn.TransformerLM(11, 8, 2, 1, rng=0).eval()


CALLS = {
    "mask": (lambda: pyattn.attention(X, X, X, mask=TRIANGLE), TypeError, "; did you mean attn_mask? It takes query, "),
    "mask by position": (lambda: pyattn.attention(X, X, X, TRIANGLE), TypeError, "by name: score_weight, attn_mask"),
    "causal": (lambda: pyattn.attention(X, X, X, causal=True), TypeError, "did you mean is_causal?"),
    "one query": (lambda: pyattn.attention(X[0], X, X), ValueError, "for a single query, pass query[None]"),
    "heads after length": (
        lambda: pyattn.attention(X[None], X[None], X[None], layout="bshd"),
        ValueError,
        "pass query[None], key[None] and value[None]",
    ),
    "x @ weight": (lambda: pyattn.functional.linear(X, X[:, :2]), ValueError, "for x @ weight, pass weight.T"),
    "padding of a batch": (
        lambda: pyattn.attention(*[np.ones((2, 1, 4, 3))] * 3, attn_mask=np.ones((2, 4), bool)),
        ValueError,
        "for (batch, kv_len), pass attn_mask[:, None, None, :]",
    ),
    "half": (lambda: language_model().half(), AttributeError, "call float() or double()"),
    "gradients": (lambda: language_model().zero_grad(), AttributeError, "computes no gradients"),
    "ragged tokens": (
        lambda: language_model()([[1, 2], [3]]),
        ValueError,
        "ids, lengths = pyattn.generation.pad_sequences(input)",
    ),
    "no layer": (lambda: pyattn.KVCache(1, 1, 3).append(X, X, 0), TypeError, "the layer comes first"),
    "cache's name": (lambda: pyattn.KVCache(1, 1, 3).update(X, X), AttributeError, "append(layer, key, value)"),
    "hub": (lambda: pyattn.models.load("gpt2"), FileNotFoundError, "downloads nothing"),
    "lengths": (lambda: pyattn.attention(X, X, X, lengths=[2]), TypeError, "key_lengths"),
    "padding": (lambda: pyattn.attention(X, X, X, key_padding_mask=TRIANGLE), TypeError, "from_blocked(key_padding"),
    "rows": (lambda: pyattn.attention([[1.0, 2.0], [3.0]], X, X), ValueError, "pad them to one length"),
    "weights": (lambda: pyattn.attention(X, X, X, return_weights=True), TypeError, "need_weights"),
    "no scale": (lambda: pyattn.attention(X, X, X, scale=False), TypeError, "pass 1 not to scale"),
    "NumPy's False": (lambda: pyattn.attention(X, X, X, scale=np.False_), TypeError, "scale is of type bool"),
    "module, no scale": (lambda: nn.SelfAttention(3, 3, scale=False), TypeError, "pass 1 not to scale"),
    "trace, no scale": (lambda: pyattn.trace_attention(X, X, X, scale=False), TypeError, "pass 1 not to scale"),
    "self_attention, mask": (lambda: pyattn.self_attention(X, W, W, W, mask=TRIANGLE), TypeError, "mean attn_mask? It"),
    "self_attention, no scale": (lambda: pyattn.self_attention(X, W, W, W, scale=False), TypeError, "of type bool"),
    "trace, mask": (lambda: pyattn.trace(X, W, W, W, mask=TRIANGLE), TypeError, "attn_mask"),
    "trace's weights": (lambda: pyattn.trace(X, W, W, W).attention_weights, AttributeError, "scores, weights, outputs"),
    "trace's picture": (lambda: pyattn.trace(X, W, W, W).plot(), AttributeError, "pyattn.plot.steps(trace)"),
    "module of arrays": (lambda: nn.SelfAttention(W, W, W), TypeError, "nn.SelfAttention.from_arrays"),
    "module's mask": (lambda: nn.MultiheadAttention(3, 1)(X, X, X, mask=TRIANGLE), TypeError, "attn_mask"),
    "constructor": (
        lambda: nn.MultiheadAttention(3, 1, device="cpu"),
        TypeError,
        "it takes embed_dim, num_heads",
    ),
    "layer at the top": (lambda: pyattn.SelfAttention, AttributeError, "did you mean pyattn.nn.SelfAttention?"),
    "function at the top": (lambda: pyattn.layer_norm, AttributeError, "did you mean pyattn.functional.layer_norm?"),
    "another spelling": (lambda: nn.MultiHeadAttention, AttributeError, "did you mean pyattn.nn.MultiheadAttention?"),
    "mask's name": (lambda: pyattn.masks.causal_mask, AttributeError, "did you mean pyattn.masks.causal?"),
    "loader's name": (
        lambda: pyattn.models.from_pretrained,
        AttributeError,
        "examples, find_minilm, load",
    ),
    "picture's name": (lambda: pyattn.plot.attention, AttributeError, "it has StepsAnimation, animate, flow, heads"),
    "generation's name": (lambda: pyattn.generation.pad, AttributeError, "pad_sequences"),
    "function's name": (lambda: pyattn.functional.rope, AttributeError, "rotary_embedding"),
    "lengths as padding": (
        lambda: nn.MultiheadAttention(3, 1)(X, X, X, key_padding_mask=[2, 3, 1]),
        TypeError,
        "pyattn.masks.padding(key_padding_mask, S)",
    ),
    "ones as padding": (
        lambda: nn.MultiheadAttention(3, 1)(X, X, X, key_padding_mask=[1, 1, 0]),
        TypeError,
        "pyattn.masks.from_array(key_padding_mask) if 1 = attend",
    ),
    "attention_mask": (lambda: language_model()([1, 2], attention_mask=[1, 1]), TypeError, "key_padding_mask"),
    "generate": (lambda: language_model().generate([1]), AttributeError, "pyattn.generate(model, source)"),
    "max_length": (lambda: pyattn.generate(language_model(), [1], max_length=3), TypeError, "max_new_tokens"),
    "cuda": (lambda: language_model().to("cuda"), TypeError, "dtype is 'cuda', expected numpy.float32"),
    "text": (lambda: language_model()(["a sentence"]), TypeError, "token ids, which a tokenizer makes of text"),
}


def test_the_mend_of_a_key_padding_mask_blocks_keys():
    query, padding = np.random.default_rng(0).random((2, 2, 4, 4, 3)), np.tri(4, k=-1, dtype=bool)[[2, 0]]
    for x, key_padding_mask in ((query[0], padding), (query[0, 0], padding[0])):
        with pytest.raises(TypeError) as caught:
            pyattn.attention(x, x, x, key_padding_mask=key_padding_mask)
        mask = eval(re.search(r"attn_mask=(.+?);", str(caught.value))[1])
        output = pyattn.attention(x, x, x, attn_mask=mask)
        keep = ~np.broadcast_to(key_padding_mask[..., None, None, :], (*x.shape[:-1], x.shape[-2]))
        np.testing.assert_array_equal(output, pyattn.attention(x, x, x, attn_mask=keep))


@for_each("name", CALLS)
def test_the_message_names_the_mend(name):
    call, error, mend = CALLS[name]
    with pytest.raises(error) as caught:
        call()
    assert mend in str(caught.value)


def test_integers_make_a_module_of_arrays():
    module = nn.SelfAttention.from_arrays([[1, 0], [0, 1]], np.eye(2, dtype=int), np.ones((2, 1), bool))
    assert all(array.flags.writeable and array.dtype == np.float64 for array in module.parameters())
    mixed = nn.SelfAttention.from_arrays(W, W, W, b_query=[1, 2, 3])
    assert mixed.w_key is W
    assert mixed.b_query.dtype == np.float32
    np.testing.assert_array_equal(module([[1, 2]]), pyattn.self_attention([[1, 2]], np.eye(2), np.eye(2), [[1], [1]]))


def test_an_error_inside_a_call_is_not_taken_for_one_of_its_arguments():
    class Layer(nn.Module):
        def forward(self, x):
            return int(x, bogus=1)

    with pytest.raises(TypeError) as caught:
        Layer()(1)
    assert "it takes" not in str(caught.value)

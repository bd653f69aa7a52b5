"""Calls that people type before they have read the documentation: the message alone says how to mend them."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.helpers import ROOT, for_each

import pyattn
from pyattn import nn

X, W = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
TRIANGLE = np.tri(3, dtype=int)


def language_model():
    return nn.TransformerLM(11, 8, 2, 1, rng=0).eval()


class Mistaken(nn.Module):
    @property
    def size(self):
        return self.wieght.shape


CALLS = {
    "mask": (
        lambda: pyattn.attention(X, X, X, mask=TRIANGLE),
        TypeError,
        "; did you mean attn_mask (bools: True = attend; floats are added to the scores, and key_lengths takes the "
        "lengths of padding)? It takes query, ",
    ),
    "heads": (
        lambda: pyattn.attention(X, X, X, num_heads=2),
        TypeError,
        "; heads are an axis, (..., heads, length, dim)",
    ),
    "heads of x": (
        lambda: pyattn.self_attention(X, W, W, W, nhead=2),
        TypeError,
        "pyattn.MultiheadAttention makes; it",
    ),
    "heads of one": (
        lambda: nn.SelfAttention(8, num_heads=2),
        TypeError,
        "; SelfAttention has one head, MultiheadAttention(embed_dim, num_heads) more; it takes embed_dim",
    ),
    "weights of a constructor": (
        lambda: nn.MultiheadAttention(8, 2, state_dict={}),
        TypeError,
        "; make the module, then call its load_state_dict(state_dict); it takes embed_dim",
    ),
    "lengths as mask": (
        lambda: pyattn.attention(X, X, X, attn_mask=[3, 2, 1]),
        TypeError,
        "; key_lengths takes the lengths of padding",
    ),
    "padding as a word": (
        lambda: pyattn.attention(X, X, X, padding=[2]),
        TypeError,
        "; did you mean key_lengths? It takes query, ",
    ),
    "ALiBi": (
        lambda: pyattn.attention(X, X, X, alibi=True),
        TypeError,
        "; ALiBi is a float attn_mask, -slope * distance, which is added to the scores; it takes query, ",
    ),
    "padding without heads": (
        lambda: pyattn.attention(*[np.ones((2, 4, 3))] * 3, attn_mask=np.ones((2, 4), bool)),
        ValueError,
        "for (batch, kv_len), pass attn_mask[:, None, :]",
    ),
    "mask by position": (lambda: pyattn.attention(X, X, X, TRIANGLE), TypeError, "by name: score_weight, attn_mask"),
    "causal": (lambda: pyattn.attention(X, X, X, causal=True), TypeError, "did you mean is_causal?"),
    "weights by their letters": (
        lambda: pyattn.trace(X, W_q=X, W_k=X, wv=X),
        TypeError,
        "did you mean w_query for W_q and w_key for W_k and w_value for wv?",
    ),
    "inputs by their letters": (
        lambda: pyattn.attention(Q=X, K=X, V=X),
        TypeError,
        "did you mean query?",
    ),
    "one query": (lambda: pyattn.attention(X[0], X, X), ValueError, "for a single query, pass numpy.atleast_2d(query)"),
    "transposed key": (
        lambda: pyattn.attention(np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 3))),
        ValueError,
        "if key is transposed, swap its last two axes",
    ),
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
    "weights under another name": (
        lambda: pyattn.attention(X, X, X, return_attention_weights=True),
        TypeError,
        "did you mean need_weights?",
    ),
    "names of inputs": (lambda: pyattn.trace(X, W, W, W, labels=["a", "b", "c"]), TypeError, "did you mean tokens?"),
    "numbers as tokens": (
        lambda: pyattn.trace(X, W, W, W, tokens=[1, 2, 3]),
        TypeError,
        "pass list(map(str, tokens))",
    ),
    "output of a trace": (lambda: pyattn.trace(X, W, W, W).output, AttributeError, "did you mean outputs?"),
    "query of a trace": (lambda: pyattn.trace(X, W, W, W).query, AttributeError, "did you mean queries?"),
    "unknown field of a trace": (lambda: pyattn.trace(X, W, W, W).sums, AttributeError, "it has x, w_key, w_query"),
    "drawing a trace": (lambda: pyattn.trace(X, W, W, W).plot(), AttributeError, "pyattn.plot.steps(trace)"),
    "weights of several heads": (
        lambda: nn.MultiheadAttention(3, 1).trace(X).weights,
        AttributeError,
        "did you mean heads[0].weights?",
    ),
    "output of several heads": (
        lambda: nn.MultiheadAttention(3, 1).trace(X).output,
        AttributeError,
        "a HeadTraces has no 'output'; did you mean outputs?",
    ),
    "columns in a trace": (
        lambda: nn.MultiheadAttention(4, 1).trace(np.ones((4, 3))),
        ValueError,
        "if each column is an input, pass convention='column'",
    ),
    "weights of a layer": (
        lambda: nn.TransformerEncoderLayer(4, 1, 8).trace(np.ones((3, 4))).weights,
        AttributeError,
        "did you mean attentions['self_attention'].heads[0].weights?",
    ),
    "array of a layer": (
        lambda: nn.TransformerEncoderLayer(4, 1, 8).trace(np.ones((3, 4))).norm_1,
        AttributeError,
        "did you mean arrays['norm_1']?",
    ),
    "mask of a layer": (
        lambda: nn.TransformerEncoderLayer(4, 1, 8).trace(np.ones((3, 4)), attn_mask=TRIANGLE),
        TypeError,
        "did you mean src_mask?",
    ),
    "trace of a stack": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1, 8), 2).trace(np.ones((3, 4))),
        AttributeError,
        "TransformerEncoderLayer and TransformerDecoderLayer have it, such as one of layers",
    ),
    "transposed W_O": (
        lambda: nn.from_heads(*[[np.ones((5, 3))] * 2] * 3, np.ones((4, 6))),
        ValueError,
        "if its axes are the other way round, pass w_out.T",
    ),
    "transposed heads": (
        lambda: nn.from_heads(*[[np.ones((3, 4))] * 2] * 3, np.ones((6, 4))),
        ValueError,
        "if the axes of w_query, w_key and w_value are the other way round, transpose each matrix",
    ),
    "verdict of a comparison": (
        lambda: pyattn.compare(pyattn.attention, X, X, X, X).passed,
        AttributeError,
        "did you mean equal?",
    ),
    "fix of a comparison": (
        lambda: pyattn.compare(pyattn.attention, X, X, X, X).fix,
        AttributeError,
        "did you mean cause.fix?",
    ),
    "gradients": (lambda: language_model().backward(), AttributeError, "output, backward = module.vjp(x)"),
    "ragged tokens": (
        lambda: language_model()([[1, 2], [3]]),
        ValueError,
        "ids, lengths = pyattn.generation.pad_sequences(input)",
    ),
    "no layer": (lambda: pyattn.KVCache(1, 1, 3).append(X, X, 0), TypeError, "the layer comes first"),
    "several words": (
        lambda: pyattn.KVCache(num_heads=4, max_len=16, head_dim=8),
        TypeError,
        "KVCache() got unexpected keyword arguments 'num_heads', 'max_len'; did you mean num_kv_heads for num_heads "
        "and max_length for max_len? It takes num_layers, ",
    ),
    "words with a meaning of their own": (
        lambda: pyattn.trace(X, W, W, W, key_padding_mask=TRIANGLE, num_heads=2, causal=True),
        TypeError,
        "'num_heads', 'causal'; did you mean is_causal for causal? It takes x, ",
    ),
    "heads of a layer": (lambda: nn.MultiheadAttention(4, nheads=2), TypeError, "did you mean num_heads? It takes"),
    "another layer's weight": (
        lambda: setattr(nn.MultiheadAttention(3, 1), "W_q", X),
        AttributeError,
        "MultiheadAttention has no parameter 'W_q'; its parameters are in_proj_weight, in_proj_bias, out_proj.weight, ",
    ),
    "cache's name": (lambda: pyattn.KVCache(1, 1, 3).update(X, X), AttributeError, "append(layer, key, value)"),
    "hub": (lambda: pyattn.models.load("gpt2"), FileNotFoundError, "downloads nothing"),
    "lengths": (lambda: pyattn.attention(X, X, X, lengths=[2]), TypeError, "key_lengths"),
    "padding": (lambda: pyattn.attention(X, X, X, key_padding_mask=TRIANGLE), TypeError, "from_blocked(key_padding"),
    "x and three weights": (
        lambda: pyattn.attention(X, W, W, W),
        TypeError,
        "for x and three weights call pyattn.self_attention",
    ),
    "three-letter layout": (
        lambda: pyattn.attention(X, X, X, layout="lhd"),
        ValueError,
        "pass query.swapaxes(0, 1)",
    ),
    "bias": (lambda: pyattn.attention(X, X, X, bias=X), TypeError, "a bias is attn_mask"),
    "axis": (lambda: pyattn.attention(X, X, X, axis=0), TypeError, "move axes with swapaxes"),
    "axis of x": (lambda: pyattn.self_attention(X, W, W, W, axis=1), TypeError, "move axes with swapaxes"),
    "articles' sizes": (
        lambda: nn.SelfAttention(d_in=4, d_out=3),
        TypeError,
        "did you mean embed_dim for d_in and key_dim for d_out",
    ),
    "heads of arrays": (
        lambda: nn.MultiheadAttention(W, W, W),
        TypeError,
        "from_heads(w_query, w_key, w_value, w_out)",
    ),
    "split": (lambda: pyattn.split_heads, AttributeError, "x.reshape(*x.shape[:-1], heads, -1).swapaxes(-3, -2)"),
    "weights alone": (lambda: pyattn.attention_weights, AttributeError, "need_weights=True"),
    "torch.nn.functional": (lambda: nn.functional, AttributeError, "did you mean pyattn.functional"),
    "tokenizer's mask in generate": (
        lambda: pyattn.generate(None, [[1]], max_new_tokens=1, attention_mask=[[1]]),
        TypeError,
        "source_lengths=attention_mask.sum(axis=1), or a list of lists of ids",
    ),
    "trace of three arrays": (
        lambda: pyattn.trace(query=X, key=X, value=X),
        TypeError,
        "trace_attention takes query, key and value",
    ),
    "NumPy's function": (lambda: pyattn.functional.relu, AttributeError, "numpy.maximum(x, 0)"),
    "rows": (lambda: pyattn.attention([[1.0, 2.0], [3.0]], X, X), ValueError, "pad them to one length"),
    "weights": (lambda: pyattn.attention(X, X, X, return_weights=True), TypeError, "need_weights"),
    "no scale": (lambda: pyattn.attention(X, X, X, scale=False), TypeError, "pass 1 not to scale"),
    "NumPy's False": (lambda: pyattn.attention(X, X, X, scale=np.False_), TypeError, "scale is of type bool"),
    "module, no scale": (lambda: nn.SelfAttention(3, 3, scale=False), TypeError, "pass 1 not to scale"),
    "trace, no scale": (lambda: pyattn.trace_attention(X, X, X, scale=False), TypeError, "pass 1 not to scale"),
    "self_attention, mask": (
        lambda: pyattn.self_attention(X, W, W, W, mask=TRIANGLE),
        TypeError,
        "bools: True = attend",
    ),
    "self_attention, no scale": (lambda: pyattn.self_attention(X, W, W, W, scale=False), TypeError, "of type bool"),
    "trace, mask": (lambda: pyattn.trace(X, W, W, W, mask=TRIANGLE), TypeError, "attn_mask"),
    "trace's weights": (lambda: pyattn.trace(X, W, W, W).attention_weights, AttributeError, "scores, weights, outputs"),
    "trace's picture": (lambda: pyattn.trace(X, W, W, W).plot(), AttributeError, "pyattn.plot.steps(trace)"),
    "module of arrays": (lambda: nn.SelfAttention(W, W, W), TypeError, "nn.SelfAttention.from_arrays"),
    "module's mask": (lambda: nn.MultiheadAttention(3, 1)(X, X, X, mask=TRIANGLE), TypeError, "bools: True = blocked"),
    "module of named arrays": (
        lambda: nn.SelfAttention(W_q=W, W_k=W, W_v=W),
        TypeError,
        "; nn.SelfAttention.from_arrays(w_query, w_key, w_value) makes a module of arrays; it takes embed_dim",
    ),
    "module's inputs": (
        lambda: nn.SelfAttention(3, 3)(X, X, X),
        TypeError,
        "forward() is given 3 arguments by position; it takes x, context by position, and by name need_weights",
    ),
    "one input": (
        lambda: nn.MultiheadAttention(3, 1)(X),
        TypeError,
        "is called without key, value; for self-attention pass x three times: module(x, x, x); it takes query, key, ",
    ),
    "trace of a module": (
        lambda: pyattn.trace(nn.SelfAttention(3, 3), X),
        TypeError,
        "trace() is called without w_key, w_value; trace_attention takes query, key and value, and modules have a",
    ),
    "cache without sizes": (
        lambda: pyattn.KVCache(),
        TypeError,
        "KVCache() is called without num_layers, num_kv_heads, head_dim; it takes num_layers",
    ),
    "cache's sizes": (
        lambda: pyattn.KVCache(1, 8, 64, 128),
        TypeError,
        "is given 4 arguments by position; it takes num_layers, num_kv_heads, head_dim by position, and by name v_head",
    ),
    "cache without a layer": (
        lambda: pyattn.KVCache(1, 1, 3).append(X, X),
        TypeError,
        "KVCache.append() is called without value; call append(layer, key, value); it takes layer, key",
    ),
    "cache's queries": (
        lambda: pyattn.KVCache(1, 1, 3).attend(X, X, X),
        TypeError,
        "; call append(layer, key, value) and then attend(layer, query); it takes layer, query by position",
    ),
    "result's dtype": (
        lambda: pyattn.attention(X, X, X, dtype="f2"),
        TypeError,
        "dtype: convert it with astype; it takes",
    ),
    "tokenizer's mask": (
        lambda: pyattn.attention(X, X, X, attention_mask=TRIANGLE),
        TypeError,
        "; a tokenizer's attention_mask is attn_mask=attention_mask.astype(bool)[..., None, None, :], without heads [",
    ),
    "tokenizer's mask of a module": (
        lambda: nn.MultiheadAttention(3, 1)(X, X, X, attention_mask=TRIANGLE),
        TypeError,
        "; a tokenizer's attention_mask is key_padding_mask=attention_mask == 0; it takes query",
    ),
    "tokenizer's mask of a layer": (
        lambda: nn.TransformerEncoderLayer(3, 1)(X, attention_mask=TRIANGLE),
        TypeError,
        "; a tokenizer's attention_mask is src_key_padding_mask=attention_mask == 0; it takes src",
    ),
    "integers by other names": (
        lambda: nn.SelfAttention(4, key=3),
        TypeError,
        "unexpected keyword argument 'key'; it takes embed_dim, key_dim",
    ),
    "trace without context": (
        lambda: nn.SelfAttention(3, 3, context_dim=2).trace(X),
        ValueError,
        "context_dim is 2 and embed_dim 3: a trace has no context",
    ),
    "length before batch": (
        lambda: nn.TransformerEncoderLayer(2, 1)(
            np.ones((3, 5, 2), np.float32), src_key_padding_mask=np.ones((3, 5)) > 1
        ),
        ValueError,
        "(N, S); for inputs (N, S, embed_dim) make the module with batch_first=True, else pass src_key_padding_mas",
    ),
    "weight's axes": (
        lambda: pyattn.self_attention(np.ones((2, 4)), *[np.ones((3, 4))] * 3),
        ValueError,
        "or w_query (4, dim); if its axes are the other way round, pass w_query.T",
    ),
    "model's loader": (lambda: pyattn.load, AttributeError, "did you mean pyattn.models.load?"),
    "rotary's name": (lambda: pyattn.apply_rope, AttributeError, "did you mean pyattn.functional.rotary_embedding?"),
    "language model's name": (lambda: nn.GPT, AttributeError, "did you mean pyattn.nn.TransformerLM?"),
    "converter of modules": (
        lambda: nn.from_torch,
        AttributeError,
        "did you mean pyattn.interop.torch.from_torch?",
    ),
    "constructor": (
        lambda: nn.MultiheadAttention(3, 1, device="cpu"),
        TypeError,
        "it takes embed_dim, num_heads",
    ),
    "layer at the top": (lambda: pyattn.SelfAttention, AttributeError, "did you mean pyattn.nn.SelfAttention?"),
    "function at the top": (lambda: pyattn.layer_norm, AttributeError, "did you mean pyattn.functional.layer_norm?"),
    "another spelling": (lambda: nn.MultiHeadAttention, AttributeError, "did you mean pyattn.nn.MultiheadAttention?"),
    "picture at the top": (lambda: pyattn.heatmap, AttributeError, "did you mean pyattn.plot.heatmap?"),
    "mask's name": (lambda: pyattn.masks.causal_mask, AttributeError, "did you mean pyattn.masks.causal?"),
    "loader's name": (
        lambda: pyattn.models.from_pretrained,
        AttributeError,
        "did you mean pyattn.models.load?",
    ),
    "gradients at the top": (lambda: pyattn.autograd, AttributeError, "output, backward = module.vjp(...)"),
    "optimizer": (lambda: pyattn.AdamW, AttributeError, "did you mean pyattn.optim.AdamW?"),
    "converter's name": (
        lambda: pyattn.interop.from_torch,
        AttributeError,
        "did you mean pyattn.interop.torch.from_torch?",
    ),
    "inputs alone": (
        lambda: pyattn.compare(nn.Linear(3, 3), X),
        TypeError,
        "compare takes ours, theirs and then the inputs",
    ),
    "integers": (
        lambda: pyattn.scaled_dot_product_attention(*[np.ones((2, 2), int)] * 3),
        TypeError,
        "pass query.astype(numpy.float32), and key and value likewise",
    ),
    "picture's name": (
        lambda: pyattn.plot.attention,
        AttributeError,
        "it has FlowAxes, StepsAnimation, animate, flow, heads",
    ),
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
    "max_length": (
        lambda: pyattn.generate(language_model(), [1], max_length=3),
        TypeError,
        "max_new_tokens counts new",
    ),
    "another's cache": (
        lambda: language_model()([1, 2], past_key_values=None),
        TypeError,
        "; decode_step(input, cache) takes a step with a cache that new_cache() makes; it takes input",
    ),
    "a step's cache": (
        lambda: language_model().decode_step([[1]], None, past_key_values=None),
        TypeError,
        "'past_key_values'; did you mean cache? It takes input, cache",
    ),
    "generation's cache": (
        lambda: pyattn.generate(language_model(), [1], past_key_values=None),
        TypeError,
        "'past_key_values'; did you mean use_cache? It takes model",
    ),
    "cache of a mask": (
        lambda: pyattn.masks.padding([1], cache=1),
        TypeError,
        "unexpected keyword argument 'cache'; it takes lengths, S",
    ),
    "weights of a function": (
        lambda: pyattn.attention(X, X, X, state_dict={}),
        TypeError,
        "unexpected keyword argument 'state_dict'; it takes query, key",
    ),
    "weights of a norm": (
        lambda: nn.LayerNorm(8, state_dict={}),
        TypeError,
        "; make the module, then call its load_state_dict(state_dict); it takes normalized_shape",
    ),
    "cuda": (lambda: language_model().to("cuda"), TypeError, "dtype is 'cuda', expected float16, bfloat16, float32"),
    "mask's word": (lambda: pyattn.attention(X, X, X, attn_mask="causal"), TypeError, "such as pyattn.masks.causal(L)"),
    "padding as lengths": (
        lambda: pyattn.attention(X, X, X, key_lengths=pyattn.masks.padding([3, 1], 3)),
        TypeError,
        "a mask goes to attn_mask",
    ),
    "masked array": (lambda: pyattn.softmax(np.ma.masked_array(X)), TypeError, "pass x.filled(0), or with another"),
    "save": (lambda: nn.save("a.npz", nn.Linear(2, 3)), TypeError, "path is of type Linear"),
    "from_dict": (lambda: pyattn.tracing.Trace.from_dict(None), TypeError, "expected what to_dict() returned"),
    "mask's class": (lambda: pyattn.masks.Mask(), TypeError, "make masks with causal, padding or from_array"),
    "a property's own mistake": (lambda: Mistaken().size, AttributeError, "no attribute 'wieght'"),
    "module of tensors": (lambda: nn.SelfAttention(W, W), TypeError, "nn.SelfAttention.from_arrays"),
    "text": (lambda: language_model()(["a sentence"]), TypeError, "token ids, which a tokenizer makes of text"),
}


def test_the_mend_of_a_key_padding_mask_blocks_keys():
    query, padding = np.random.default_rng(0).random((2, 2, 4, 4, 3)), np.tri(4, k=-1, dtype=bool)[[2, 0]]
    for x, key_padding_mask in ((query[0], padding), (query[0, 0], padding[0])):
        with pytest.raises(TypeError) as caught:
            pyattn.attention(x, x, x, key_padding_mask=key_padding_mask)
        mask = eval(re.search(r"attn_mask=(.+?\)),", str(caught.value))[1])
        output = pyattn.attention(x, x, x, attn_mask=mask)
        keep = ~np.broadcast_to(key_padding_mask[..., None, None, :], (*x.shape[:-1], x.shape[-2]))
        np.testing.assert_array_equal(output, pyattn.attention(x, x, x, attn_mask=keep))
    x, weights = query[0, :, 0], [np.eye(3)] * 3
    with pytest.raises(TypeError) as caught:
        pyattn.self_attention(x, *weights, key_padding_mask=padding)
    mask = eval(re.search(r"attn_mask=(.+?\));", str(caught.value))[1], {"pyattn": pyattn, "key_padding_mask": padding})
    output = pyattn.self_attention(x, *weights, attn_mask=mask)
    np.testing.assert_array_equal(output, pyattn.self_attention(x, *weights, attn_mask=~padding[:, None, :]))


@for_each("name", CALLS)
def test_the_message_names_the_mend(name):
    call, error, mend = CALLS[name]
    with pytest.raises(error) as caught:
        call()
    assert mend in str(caught.value)


def multihead_attention(**options):
    return nn.MultiheadAttention(3, 1)(X, X, X, **options)


class Encoder(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(8, 2, norm_frist=True)


# Call, the name of what was called, and the keyword that was meant.
KEYWORDS = {
    "mask": (lambda: multihead_attention(mask=1), "MultiheadAttention.forward", "attn_mask"),
    "mask of a layer": (lambda: Encoder.from_parts({}, mask=1), "Encoder.from_parts", None),
    "letters swapped": (lambda: multihead_attention(is_casual=True), "MultiheadAttention.forward", "is_causal"),
    "another case": (lambda: multihead_attention(Is_Causal=True), "MultiheadAttention.forward", "is_causal"),
    "one letter": (lambda: multihead_attention(a=1), "MultiheadAttention.forward", None),
    "one letter of a layer": (lambda: nn.Linear(3, 2, n=1), "Linear", None),
    "part of two names": (lambda: nn.TransformerEncoderLayer(8, 2, norm="x"), "TransformerEncoderLayer", None),
    "part of one name": (
        lambda: nn.TransformerEncoderLayer(8, 2, norm_eps=1),
        "TransformerEncoderLayer",
        "layer_norm_eps",
    ),
    "base class": (Encoder, "TransformerEncoderLayer", "norm_first"),
    "heads of a layer": (lambda: nn.TransformerEncoderLayer(8, num_heads=2), "TransformerEncoderLayer", "nhead"),
    "size": (lambda: nn.MultiheadAttention(dim=8, num_heads=2), "MultiheadAttention", "embed_dim"),
    "causal": (
        lambda: pyattn.scaled_dot_product_attention(X, X, X, causal=1),
        "scaled_dot_product_attention",
        "is_causal",
    ),
    "causal, additive": (
        lambda: pyattn.additive_attention(X, X, X, W, W, W, causal=1),
        "additive_attention",
        "is_causal",
    ),
    "dim": (lambda: pyattn.softmax(X, dim=-1), "softmax", "axis"),
    "base": (lambda: pyattn.functional.rotary_embedding(X, base=10), "rotary_embedding", "theta"),
    "kv_len": (lambda: pyattn.masks.padding(lengths=[3], kv_len=4), "padding", "S"),
    "cache": (lambda: pyattn.KVCache(num_heads=8), "KVCache", "num_kv_heads"),
    "cache, causal": (lambda: pyattn.KVCache(1, 1, 3).attend(0, X, causal=True), "KVCache.attend", "is_causal"),
    "device": (lambda: pyattn.models.load("gpt2", device="cpu"), "load", None),
    "max_length": (lambda: pyattn.generate(language_model(), [1], max_length=3), "generate", None),
    "trace": (lambda: pyattn.trace(X, W, W, W, mask=1), "trace", "attn_mask"),
    "C": (lambda: pyattn.attention(X, X, X, is_casual=True), "attention", "is_causal"),
    "C, one letter": (lambda: pyattn.functional.linear(X, W, a=1), "linear", None),
}


@for_each("name", KEYWORDS)
def test_an_unknown_keyword_is_refused_with_those_there_are(name):
    call, called, meant = KEYWORDS[name]
    with pytest.raises(TypeError) as caught:
        call()
    message = str(caught.value)
    assert re.match(rf"{called}\(\) got an unexpected keyword argument '\w+'; .*\b[Ii]t takes \w+, ", message)
    assert re.findall(r"did you mean (\w+)(?: \([^)]*\))?\?", message) == ([meant] if meant else [])


def test_public_functions_are_pickled_by_name():
    functions = []
    for module in ("functional", "generation", "masks", "models", "nn", "plot", "testing", "tracing"):
        home = importlib.import_module(f"pyattn.{module}")
        functions += filter(inspect.isfunction, (getattr(home, name) for name in home.__all__))
    assert {pyattn.softmax, pyattn.generate, pyattn.models.load} <= {*functions}
    assert pickle.loads(pickle.dumps(functions)) == functions


def test_sizes_may_be_numbers_of_numpy():
    assert nn.MultiheadAttention(np.int64(8), np.array(2)).embed_dim == 8
    assert nn.SelfAttention(np.int32(4), np.uint8(3)).embed_dim == 4
    for arrays in (W, [W, W], {"weight": W}):
        with pytest.raises(TypeError, match=r"from_heads\(w_query"):
            nn.MultiheadAttention(arrays, arrays)
        with pytest.raises(TypeError, match="from_arrays"):
            nn.SelfAttention(arrays, arrays)


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


def test_a_folder_that_was_not_built_says_how_to_build_it(tmp_path):
    """As after `pip install .` in a copy of the repository, where Python finds the folder of sources first."""
    shutil.copytree(ROOT / "pyattn", tmp_path / "pyattn", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    command = [sys.executable, "-E", "-S", "-m", "pyattn", "--version"]  # without site-packages and PYTHONPATH
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ModuleNotFoundError: No module named 'pyattn._core': ")
    assert f" {tmp_path / 'pyattn'} was not built" in message
    assert message.endswith(": pip install --editable .")

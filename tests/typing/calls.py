"""Public calls as a user's project sees them: every one has a concrete type. Checked by mypy and pyright, never run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from typing_extensions import assert_type

import pyattn
from pyattn import functional, generation, masks, models, nn, plot
from pyattn.masks import Mask
from pyattn.tracing import BackwardHeadTraces, HeadTraces, Trace

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

x = np.ones((2, 3, 8), np.float32)
ids = np.ones((2, 3), np.int64)

# Attention
assert_type(pyattn.attention(x, x, x), Floats)
assert_type(pyattn.attention(x, x, x, need_weights=True), pyattn.AttentionResult)
assert_type(pyattn.attention(x, x, x, need_lse=True), pyattn.AttentionResult)
assert_type(pyattn.scaled_dot_product_attention(x, x, x, is_causal=True), Floats)
assert_type(pyattn.self_attention(x, x[0].T, x[0].T, x[0].T), Floats)
assert_type(pyattn.self_attention(x, x[0].T, x[0].T, x[0].T, need_weights=True), pyattn.AttentionResult)
assert_type(pyattn.additive_attention(x, x, x, None, None, x[0, 0]), Floats)
assert_type(pyattn.additive_attention(x, x, x, None, None, x[0, 0], need_lse=True), pyattn.AttentionResult)
assert_type(pyattn.merge_states([x], [x[..., 0]]), tuple[Floats, Floats])
assert_type(pyattn.softmax(x), Floats)
pyattn.self_attention(x, x[0].T, x[0].T, x[0].T).shape  # noqa: B018

# Masks
assert_type(masks.causal(3), Mask)
assert_type(masks.causal(3) & masks.padding([1, 2], 3), Mask)
assert_type(masks.causal(3) | np.ones((3, 3), bool), Mask)
pyattn.attention(x, x, x, attn_mask=masks.causal(3))
assert_type(masks.causal(3)[:2], Bools)
assert_type(masks.causal(3)[0, 1:], Bools)
assert_type(masks.causal(3)[..., 0], Bools)
assert_type(masks.causal(3)[[0, 2]], Bools)
assert_type(masks.causal(3) == masks.causal(3), Bools)
assert_type(masks.causal(3) != np.ones((3, 3), bool), Bools)
assert_type(masks.causal(3).all(), np.bool_)
assert_type(masks.causal(3).all(axis=-1), Bools)
assert_type(masks.causal(3).any(), np.bool_)
assert_type(masks.causal(3).any(-1, keepdims=True), Bools)
assert_type(masks.causal(3).sum(), np.integer[Any])
assert_type(masks.causal(3).sum(-1), npt.NDArray[np.integer[Any]])
assert_type(masks.causal(3).sum((-2, -1)), Any)  # a number or an array: that depends on the number of axes

# Functions
assert_type(functional.linear(x, x[0]), Floats)
assert_type(functional.layer_norm(x, 8), Floats)
assert_type(functional.layer_norm(x, 8, residual=x, need_sum=True), tuple[Floats, Floats])
assert_type(functional.gelu(x), Floats)
assert_type(functional.gelu_backward(x, x), Floats)
assert_type(functional.softmax_backward(x, x, (0, 1)), Floats)
assert_type(functional.layer_norm_backward(x, x, 8), functional.NormGradients)
assert_type(functional.embedding_backward(x, [0], 3), Floats)
assert_type(functional.topk(x, 2), functional.TopK)
assert_type(functional.argmax(x), Ints)
assert_type(functional.rotary_embedding(x), Floats)
assert_type(functional.rotary_frequencies(8), functional.RotaryFrequencies)

# Modules
mha = nn.MultiheadAttention(8, 2, batch_first=True)
assert_type(mha(x, x, x), tuple[Floats, Floats])
assert_type(mha(x, x, x, need_weights=False), tuple[Floats, None])
assert_type(mha.eval(), nn.MultiheadAttention)
_, backward = mha.vjp(x, x, x)
assert_type(backward(x), tuple[Floats | None, ...])
assert_type(mha.grads, dict[str, Floats])
assert_type(pyattn.optim.AdamW(mha, lr=1e-3).step(), None)
assert_type(pyattn.optim.clip_grad_norm_(mha, 1.0), float)
assert_type(mha.trace(x[0]), HeadTraces)
assert_type(mha.trace(x[0]).backward(x[0]), BackwardHeadTraces)
assert_type(mha.trace(x[0].T, convention="column"), HeadTraces)
assert_type(mha.state_dict(), dict[str, Floats])
assert_type(nn.SelfAttention(8, 4)(x), Floats)
assert_type(nn.SelfAttention(8, 4)(x, need_weights=True), pyattn.AttentionResult)
assert_type(nn.Linear(8, 4)(x), Floats)
assert_type(nn.Embedding(9, 8)(ids), Floats)
assert_type(nn.LayerNorm(8)(x), Floats)
assert_type(nn.RMSNorm(8)(x), Floats)
assert_type(nn.Dropout(0.1)(x), Floats)
assert_type(nn.FeedForward(8, 16)(x), Floats)
assert_type(nn.PositionalEncoding(8)(x), Floats)
assert_type(nn.RotaryEmbedding(8)(x), Floats)
assert_type(nn.TransformerEncoderLayer(8, 2)(x), Floats)
assert_type(nn.TransformerDecoderLayer(8, 2)(x, x), Floats)
assert_type(nn.TransformerEncoderLayer(8, 2)(x, need_weights=True), tuple[Floats, Floats, None])
assert_type(nn.TransformerDecoderLayer(8, 2)(x, x, need_weights=True), tuple[Floats, Floats, Floats])
assert_type(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)(x), Floats)
assert_type(nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2), 2)(x, x), Floats)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 2)
assert_type(encoder(x, need_weights=True), tuple[Floats, list[Floats], None])
assert_type(encoder.layers[0].self_attn, nn.MultiheadAttention)
assert_type([layer.linear1.weight for layer in encoder.layers], list[Floats])
decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2), 2)
assert_type(decoder.layers[0].multihead_attn, nn.MultiheadAttention)
assert_type(nn.ModuleList([nn.Linear(8, 4)])[0], nn.Linear)
assert_type(nn.ModuleList([nn.Linear(8, 4)]).append(nn.Linear(4, 2)), nn.ModuleList[nn.Linear])
assert_type(nn.ModuleList(), nn.ModuleList[nn.Module])
linears: nn.ModuleList[nn.Linear] = nn.ModuleList([])
assert_type(nn.Transformer(8, 2)(x, x), Floats)
assert_type(nn.Transformer(8, 2).encoder(x), Floats)
assert_type(nn.Transformer(8, 2).decoder(x, x), Floats)
assert_type(nn.TransformerLM(9, 8, 2)(ids), Floats)
assert_type(nn.TransformerLM(9, 8, 2)(ids, need_weights=True), tuple[Floats, Floats, None])
lm = nn.TransformerLM(9, 8, 2)
assert_type(lm.embedding(ids), Floats)
assert_type(lm.positions(x), Floats)
assert_type(lm.encoder.layers[0].self_attn, nn.MultiheadAttention)
assert_type(lm.generator(x), Floats)
assert_type(lm.generator.weight, Floats)
assert_type(nn.Seq2SeqTransformer(9, 9, 8, 2)(ids, ids), Floats)
seq2seq = nn.Seq2SeqTransformer(9, 9, 8, 2)
assert_type(seq2seq.src_embedding(ids), Floats)
assert_type(seq2seq.tgt_positions(x), Floats)
assert_type(seq2seq.transformer.decoder.layers[0].linear2, nn.Linear)
assert_type(seq2seq.generator.weight, Floats)

# The rest
assert_type(models.load("model")(ids), models.EncoderOutput | models.CausalOutput)
cache = pyattn.KVCache(1, 2, 4)
assert_type(cache.attend(0, x), Floats)
assert_type(cache.attend(0, x, need_weights=True), pyattn.AttentionResult)
assert_type(cache.lengths, Ints)
assert_type(pyattn.trace(x[0], x[0].T, x[0].T, x[0].T), Trace)
assert_type(pyattn.trace_attention(x[0], x[0], x[0]), Trace)
assert_type(pyattn.generate(nn.TransformerLM(9, 8, 2), ids, max_new_tokens=2), generation.Generation)
assert_type(pyattn.get_num_threads(), int)
assert_type(plot.flow(x[0]), plot.FlowAxes)
assert_type(plot.flow(x[0], ax=plot.flow(x[0])), plot.FlowAxes)
assert_type(plot.flow(x[0], ax=Figure().add_subplot()), Axes)
plot.flow(x[0], ["a", "b", "c"]).save_html("flow.html")

# Mistakes that a type checker sees
mha(1, bogus=3)  # type: ignore[call-overload]
nn.Linear(8, 4)(x, scale=2)  # type: ignore[call-arg]
pyattn.attention(x, x, x, is_casual=True)  # type: ignore[call-overload]
nn.TransformerEncoderLayer(8, 2)(x, src_padding_mask=None)  # type: ignore[call-overload]

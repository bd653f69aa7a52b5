"""Every module, called well and badly, as in calls.py."""

from __future__ import annotations

import atexit
import tempfile
import types
from pathlib import Path

import numpy as np
from support.calls import LSE, K, Q, V
from support.learning import Learner
from support.published import BERT, bert_tensors, write_model
from support.published_decoders import write_decoder
from support.published_encoders import write_encoder

import pyattn
from pyattn import models, nn, optim, reference
from pyattn.nn import losses

X = np.stack([Q, -Q])
FLAGS = np.tri(3, 3, -1, dtype=bool).T
MHA = nn.MultiheadAttention(4, 2, batch_first=True, rng=0)
WIDER = nn.MultiheadAttention(
    4, 2, 0.5, add_bias_kv=True, add_zero_attn=True, head_dim=3, v_head_dim=2, num_kv_heads=1, batch_first=True, rng=0
)
EMBEDDING = nn.Embedding(5, 4, 0, rng=0)
POSITIONS, LEARNED = nn.PositionalEncoding(4, 9, 0), nn.PositionalEncoding(4, 9, 0, True, False, rng=0)
DROPOUT = nn.Dropout(0.5).eval()
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
ROTARY = nn.RotaryEmbedding(4, scaling={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=2)
HEAD = nn.SelfAttention(4, 3, 2, bias=True, rng=0)
NORM, FEED = nn.LayerNorm(4), nn.FeedForward(4, 6, activation="silu", gated=True, rng=0)
FEED_BY_HAND = nn.FeedForward(4, 6, activation=np.negative, rng=0)
ENCODER_LAYER = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, rng=0).eval()
DECODER_LAYER = nn.TransformerDecoderLayer(4, 2, 6, activation=np.negative, batch_first=True, rng=0).eval()
LANGUAGE_MODEL = nn.TransformerLM(5, 4, 2, 1, 6, padding_idx=0, rng=0).eval()
ENCODER = nn.TransformerEncoder(ENCODER_LAYER, 2, nn.LayerNorm(4)).eval()
TRANSFORMER = nn.Transformer(4, 2, 1, 1, 6, batch_first=True, rng=0).eval()
TRANSLATOR = nn.Seq2SeqTransformer(5, 5, 4, 2, 1, 1, 6, batch_first=False, learned_positions=True, rng=0).eval()
BAD_FEED = nn.FeedForward(4, 6, activation=np.sum, rng=0)

ROWS = np.random.default_rng(1).standard_normal((2, 1, 70, 4), np.float32)
CACHE, WINDOWED = pyattn.KVCache(1, 1, 4, batch_size=2, max_length=200), pyattn.KVCache(1, 1, 4, batch_size=2, window=3)
for each in (CACHE, WINDOWED):
    each.append(0, ROWS, -ROWS)

FILES = tempfile.TemporaryDirectory()
atexit.register(FILES.cleanup)
FOLDER, ONE_LAYER = Path(FILES.name), {**BERT, "num_hidden_layers": 1}
PUBLISHED = {
    "bert": write_model(FOLDER / "bert", ONE_LAYER),
    "mobilebert": write_encoder(FOLDER / "mobilebert", "mobilebert", num_hidden_layers=1),
    "gpt2": write_decoder(FOLDER / "gpt2", "gpt2", n_layer=1),
    "llama": write_decoder(FOLDER / "llama", "llama", num_hidden_layers=1),
    "unlike its config.json": write_model(FOLDER / "unlike", ONE_LAYER | {"vocab_size": 21}, bert_tensors()),
}


def trained(make, *args, gradient=None, **options):
    """The parameters after two steps."""
    module = Learner(q=Q.copy(), v=V.copy("F"))
    optimizer = make(module, *args, **options)
    for size in (1, 2):
        module.set_grads(q=np.negative(Q) if gradient is None else gradient, v=V * size)
        optimizer.step()
    return module.q, module.v


def continued():
    """A step after loading a state."""
    module = Learner(q=Q.copy())
    first, second = optim.Adam(module, amsgrad=True), optim.Adam(module, 0.5)
    module.set_grads(q=Q)
    first.step()
    second.load_state_dict(first.state_dict())
    second.step()
    return module.q, second.param_groups[0]["lr"]


def scheduled():
    """Learning rates of every schedule."""
    rates = []
    for make in (optim.TransformerLR, optim.CosineWarmupLR):
        schedule = make(optim.SGD(MHA), 4, 9)
        schedule.step()
        schedule.load_state_dict(schedule.state_dict())
        rates += schedule.get_last_lr()
    return tuple(rates)


def clipped(module):
    """Norms of several kinds, and the gradients."""
    module.set_grads(q=Q.copy(), v=V.copy()[:, ::-1])
    return *(optim.clip_grad_norm_(module, 0.5, p) for p in (2, 3, np.inf)), *module.grads.values()


LAWS = ("xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal")
COLUMNS, CLOSE = X.swapaxes(1, 2), pyattn.attention(Q, K, V)
DAMAGED = FOLDER / "damaged"
for ending in (".npz", ".safetensors"):
    DAMAGED.with_suffix(ending).write_bytes(b"no such file " * 9)
STATIC = np.ones((6, 2, 2), np.float32)
SEPARATE = {f"{name}_proj_weight": MHA.in_proj_weight[:4] for name in "qkv"}
MISFIT, MIXED = nn.MultiheadAttention(4, 2, batch_first=True, rng=0), nn.Linear(4, 2, rng=0)
MISFIT.bias_k, MIXED.bias = X, MIXED.bias.astype(float)


def forward(**changed):
    names = ("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k")
    names += ("bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias")
    usual = (X, X, X, 4, 2, MHA.in_proj_weight, None, None, None, False, 0.0, MHA.out_proj.weight, None)
    return pyattn.functional.multi_head_attention_forward(**dict(zip(names, usual, strict=True)) | changed)


def saved(path):
    nn.save(HEAD, path)
    return tuple(nn.load(path)[name] for name in HEAD.state_dict())


def grown(cache, rows):
    """What one more `append` gives; where it fails, the cache is as it was."""
    cache = cache.fork()
    before = cache._layers[0]
    try:
        cache.append(0, rows, rows)
    except MemoryError:
        assert cache._layers[0] is before
        raise
    return cache.attend(0, rows, is_causal=True)


def saved_cache(cache):
    cache.save(FOLDER / "cache.npz")
    return pyattn.KVCache.load(FOLDER / "cache.npz").to_arrays(0)


class Letters:
    """What `SentenceEncoder` needs of a tokenizer: an id for each letter."""

    def no_padding(self):
        pass

    def enable_truncation(self, length):
        self.length = length

    def encode_batch(self, sentences):
        return [types.SimpleNamespace(ids=[ord(x) % 20 for x in sentence[: self.length]]) for sentence in sentences]


LOADED = {name: models.load(PUBLISHED[name]) for name in ("bert", "mobilebert", "gpt2")}
SENTENCES = models.SentenceEncoder(LOADED["bert"], Letters())


def changed(cache):
    cache.reorder([1, 0, 1])
    cache.truncate([3, 70, 65])
    return (*cache.to_arrays(0), *cache.keys(0, 1), *cache.values(0, 2), cache.lengths, cache.nbytes)


# Python's own `try` never ends in CPython 3.11 once memory is gone for good: these are spared that alone.
MODULES = {
    "MultiheadAttention": lambda: MHA(X, X, X),
    "MultiheadAttention, masks": lambda: MHA(X, X, X, X[:, :, 0] > 0, False, FLAGS, is_causal=True),
    "MultiheadAttention, more": lambda: WIDER(
        X, X, X, X[:, :, 0] > 0, attn_mask=FLAGS, keep_mask=True, key_lengths=[2, 3]
    ),
    "SelfAttention": lambda: HEAD(X, need_weights=True),
    "Linear": lambda: MHA.out_proj(X),
    "Embedding": lambda: EMBEDDING([[1, 2]]),
    "PositionalEncoding": lambda: POSITIONS(X, start=2),
    "PositionalEncoding, learned": lambda: LEARNED(X),
    "positional_encoding": lambda: pyattn.functional.positional_encoding(3, 5, 2, base=100),
    "pad_sequences": lambda: pyattn.generation.pad_sequences(
        [[1, 2], FLAGS[0]], side="left", length=2, truncate="right"
    ),
    "add_special_tokens": lambda: tuple(pyattn.generation.add_special_tokens([[1]], start_token_id=2, eos_token_id=3)),
    "shift_right": lambda: pyattn.generation.shift_right([[1, 2]], 0),
    "Dropout": lambda: DROPOUT(X),
    "RotaryEmbedding": lambda: ROTARY(X, position_ids=[1, 2, 3]),
    "rotary_embedding": lambda: pyattn.functional.rotary_embedding(X, offset=3, scaling=YARN),
    "LayerNorm": lambda: NORM(X),
    "FeedForward": lambda: FEED(X),
    "FeedForward, callable": lambda: FEED_BY_HAND(X),
    "TransformerEncoderLayer": lambda: ENCODER_LAYER(X, FLAGS, X[:, :, 0] > 0),
    "TransformerEncoderLayer, weights": lambda: ENCODER_LAYER(X, is_causal=True, need_weights=True),
    "TransformerDecoderLayer, composed": lambda: DECODER_LAYER(X, X, memory_key_padding_mask=X[:, :, 0] > 0),
    "TransformerEncoder": lambda: ENCODER(X, src_key_padding_mask=FLAGS[:2]),
    "Transformer": lambda: TRANSFORMER(X, X, tgt_is_causal=True, memory_key_padding_mask=FLAGS[:2]),
    "TransformerLM": lambda: LANGUAGE_MODEL([[1, 2, 0], [3, 4, 1]]),
    "Seq2SeqTransformer, weights": lambda: TRANSLATOR([[1], [2]], [[3]], src_lengths=[1], need_weights=True),
    "generate": lambda: pyattn.generate(LANGUAGE_MODEL, [[1, 2]], max_new_tokens=1).tokens,
    "generate, samples": lambda: (
        pyattn.generate(LANGUAGE_MODEL, [[1, 2]], max_new_tokens=1, do_sample=True, top_k=3, top_p=0.9, rng=0).tokens
    ),
    "generate, beams": lambda: (
        pyattn.generate(TRANSLATOR, [[1]], max_new_tokens=2, start_token_id=2, num_beams=2, return_steps=True).scores
    ),
    "self_attention": lambda: pyattn.self_attention(Q, *[V[:4]] * 3, convention="row", attn_mask=~FLAGS),
    "self_attention, columns": lambda: pyattn.self_attention(
        *(COLUMNS, K, -K, K[:2]),
        bias=(K[:, 0], None, LSE[:2]),
        context=-COLUMNS,
        convention="column",
        need_weights=True,
    ),
    "additive_attention": lambda: pyattn.additive_attention(Q, K, V, K[:4], -K[:4], Q[0], Q[1]),
    "multi_head_attention_forward": lambda: forward(),
    "multi_head_attention_forward, static": lambda: forward(
        key_padding_mask=FLAGS[:, :2], static_k=STATIC, static_v=-STATIC, use_separate_proj_weight=True, **SEPARATE
    ),
    "init": lambda: tuple(getattr(nn.init, f"{law}_")(Q.copy(), rng=0) for law in ("uniform", "normal")),
    "init, weights": lambda: tuple(getattr(nn.init, f"{law}_")(Q.copy(), rng=0) for law in LAWS),
    "init, constants": lambda: (nn.init.zeros_(Q.copy()), nn.init.ones_(Q.copy()), nn.init.constant_(Q.copy(), 3)),
    "files, npz": lambda: saved(FOLDER / "head.npz"),
    "files, safetensors": lambda: saved(FOLDER / "head.safetensors"),
    "assert_attention_close": lambda: pyattn.testing.assert_attention_close(CLOSE, Q, K, V),
    "compare": lambda: str(pyattn.compare(pyattn.attention, reference.attention, Q, K, V)),
    "compare, modules": lambda: str(pyattn.compare(MHA, MHA, X, X, X)),
    "check": lambda: str(pyattn.testing.check(pyattn.attention)),
    "cross_entropy": lambda: losses.cross_entropy(X, [[0, 1, 2], [3, 0, 1]]),
    "cross_entropy, everything": lambda: losses.cross_entropy(
        X, np.abs(X), weight=[1, 2, 3, 4], reduction="none", label_smoothing=0.1
    ),
    "mse_loss": lambda: losses.mse_loss(Q, K[:3]),
    "mse_loss, none": lambda: losses.mse_loss(Q.T, K[:3].T, reduction="none"),
    "optimizers": lambda: trained(optim.AdamW, 0.1),
    "optimizers, SGD": lambda: trained(optim.SGD, 0.1, 0.9, groups=[{"params": ["v"], "lr": 1}]),
    "optimizers, state": lambda: continued(),
    "schedules": lambda: scheduled(),
    "clip_grad_norm_": lambda: clipped(Learner()),
    "state_dict": lambda: MHA.load_state_dict(MHA.state_dict()),
    "heads": lambda: nn.from_heads(*nn.to_heads(MHA)).in_proj_weight,
    "KVCache": lambda: grown(WINDOWED, ROWS),
    "KVCache, beams": lambda: grown(CACHE.fork(2), np.concatenate([ROWS, ROWS[::-1]])),
    "KVCache, changes": lambda: changed(CACHE.fork()),
    "files, KVCache": lambda: saved_cache(CACHE),
    "SentenceEncoder": lambda: SENTENCES.encode(["ab", "c"]),
    "MobileBERT": lambda: LOADED["mobilebert"]([[3, 1, 0]], [[1, 1, 0]]).pooler_output,
    "GPT-2": lambda: LOADED["gpt2"]([[3, 1, 4]]).logits,
    "models, bert": lambda: models.load(PUBLISHED["bert"])([[3, 1, 0]]).pooler_output,
    "models, mobilebert": lambda: models.load(PUBLISHED["mobilebert"])([[3, 1, 0]]).pooler_output,
    "models, gpt2": lambda: models.load(PUBLISHED["gpt2"])([[3, 1, 4]]).logits,
    "models, llama": lambda: models.load(PUBLISHED["llama"], dtype="float64")([[3, 1, 4]]).logits,
}

MODULES_MISTAKES = {
    "MultiheadAttention, dtype": lambda: MHA(X.astype(float), X, X),
    "MultiheadAttention, shape": lambda: MHA(X, X[:1], X),
    "MultiheadAttention, mask": lambda: MHA(X, X, X, attn_mask=FLAGS[:2]),
    "MultiheadAttention, padding": lambda: MHA(X, X, X, [1, 0, 1]),
    "MultiheadAttention, keep_mask": lambda: WIDER(X, X, X, keep_mask=FLAGS),
    "MultiheadAttention, rng": lambda: WIDER(X, X, X, rng="a"),
    "SelfAttention, inner": lambda: HEAD(X[..., :3]),
    "Embedding, id": lambda: EMBEDDING(5),
    "Embedding, option": lambda: nn.Embedding(5, 4, sparse=True),
    "PositionalEncoding, length": lambda: POSITIONS(X, start=7),
    "PositionalEncoding, shape": lambda: LEARNED(X[..., :3]),
    "PositionalEncoding, dtype": lambda: LEARNED(X.astype(float)),
    "positional_encoding, dim": lambda: pyattn.functional.positional_encoding(3, -1),
    "pad_sequences, length": lambda: pyattn.generation.pad_sequences([[1, 2]], length=1),
    "pad_sequences, range": lambda: pyattn.generation.pad_sequences([[300]], dtype="u1"),
    "shift_right, dtype": lambda: pyattn.generation.shift_right(Q, 0),
    "Dropout, p": lambda: nn.Dropout(2),
    "Dropout, dtype": lambda: DROPOUT(X * 1j),
    "LayerNorm, shape": lambda: NORM(X[..., :3]),
    "FeedForward, shape": lambda: FEED(X[..., :3]),
    "FeedForward, activation": lambda: BAD_FEED(X),
    "TransformerEncoderLayer, mask": lambda: ENCODER_LAYER(X, FLAGS[:2]),
    "TransformerDecoderLayer, memory": lambda: DECODER_LAYER(X, X[..., :3]),
    "TransformerLM, id": lambda: LANGUAGE_MODEL([[5]]),
    "TransformerLM, lengths": lambda: LANGUAGE_MODEL([[1]], lengths=[2]),
    "Seq2SeqTransformer, masks": lambda: TRANSLATOR([1], [1], tgt_lengths=1, tgt_key_padding_mask=[False]),
    "generate, empty": lambda: pyattn.generate(LANGUAGE_MODEL, [[]], max_new_tokens=1),
    "generate, option": lambda: pyattn.generate(LANGUAGE_MODEL, [[1]], max_new_tokens=1, top_k=3),
    "generate, callback": lambda: pyattn.generate(LANGUAGE_MODEL, [[1]], max_new_tokens=1, callback=lambda step: 3),
    "additive_attention, inner": lambda: pyattn.additive_attention(Q, K, V, K, K, LSE),
    "additive_attention, w_score": lambda: pyattn.additive_attention(Q, K, V, K[:4], K[:4], LSE),
    "RotaryEmbedding, dim": lambda: ROTARY(V),
    "rotary_embedding, scaling": lambda: pyattn.functional.rotary_embedding(Q, scaling={**YARN, "factors": 2}),
    "cross_entropy, ids": lambda: losses.cross_entropy(Q, [0, 1, 4]),
    "cross_entropy, axes": lambda: losses.cross_entropy(X, [[0] * 4] * 2),
    "cross_entropy, reduction": lambda: losses.cross_entropy(Q, [0, 1, 2], reduction="avg"),
    "mse_loss, shape": lambda: losses.mse_loss(Q, K),
    "optimizers, lr": lambda: optim.SGD(MHA, lr=-1),
    "optimizers, groups": lambda: optim.AdamW(MHA, groups=[{"params": ["bias"]}]),
    "optimizers, gradient": lambda: trained(optim.Adam, gradient=K),
    "optimizers, state of others": lambda: optim.SGD(MHA).load_state_dict({"state": {}, "param_groups": []}),
    "schedules, d_model": lambda: optim.TransformerLR(optim.SGD(MHA), 0),
    "clip_grad_norm_, norm": lambda: optim.clip_grad_norm_(Learner(), -1),
    "state_dict, key": lambda: MHA.load_state_dict({"in_proj_weights": Q}),
    "models, shapes": lambda: models.load(PUBLISHED["unlike its config.json"]),
    "models, no file": lambda: models.load(FOLDER),
    "KVCache, key": lambda: CACHE.append(0, ROWS[:, 0], ROWS),
    "KVCache, dtype": lambda: CACHE.append(0, ROWS.astype(float), ROWS),
    "KVCache, lengths": lambda: CACHE.append(0, ROWS, ROWS, lengths=[70, 71]),
    "KVCache, max_length": lambda: CACHE.append(0, np.concatenate([ROWS, ROWS], 2), np.concatenate([ROWS, ROWS], 2)),
    "KVCache, query": lambda: CACHE.attend(0, ROWS[..., :3]),
    "KVCache, mask": lambda: CACHE.attend(0, ROWS, attn_mask=FLAGS),
    "KVCache, layer": lambda: CACHE.keys(1),
    "KVCache, truncate": lambda: CACHE.truncate([1, -1]),
    "KVCache, reorder": lambda: CACHE.reorder([0, 2]),
    "MultiheadAttention, parameter": lambda: MISFIT(X, X, X),
    "self_attention, inner": lambda: pyattn.self_attention(Q, K, K, K),
    "self_attention, dtype": lambda: pyattn.self_attention(Q, Q.T, Q.T * 1j, Q.T),
    "self_attention, bias": lambda: pyattn.self_attention(Q, Q.T, Q.T, Q.T, bias=(None, LSE[:2], None)),
    "self_attention, biases": lambda: pyattn.self_attention(Q, Q.T, Q.T, Q.T, bias=True),
    "self_attention, context": lambda: pyattn.self_attention(X, Q.T, Q.T, Q.T, context=Q),
    "self_attention, mask": lambda: pyattn.self_attention(Q, Q.T, Q.T, Q.T, attn_mask=FLAGS[:2]),
    "self_attention, flag": lambda: pyattn.self_attention(Q, Q.T, Q.T, Q.T, convention="no"),
    "multi_head_attention_forward, heads": lambda: forward(num_heads=2.5),
    "multi_head_attention_forward, shape": lambda: forward(in_proj_weight=Q),
    "multi_head_attention_forward, dtype": lambda: forward(value=X.astype(float)),
    "multi_head_attention_forward, mask": lambda: forward(attn_mask=FLAGS[:2]),
    "multi_head_attention_forward, static": lambda: forward(static_v=STATIC[:, :1]),
    "multi_head_attention_forward, flag": lambda: forward(training="no"),
    "Linear, parameter": lambda: MIXED(X),
    "init, tensor": lambda: nn.init.uniform_([1.0]),
    "init, axes": lambda: nn.init.xavier_normal_(LSE.copy()),
    "init, slope": lambda: nn.init.kaiming_uniform_(Q.copy(), "x"),
    "save, ending": lambda: nn.save(HEAD, FOLDER / "head.pt"),
    "save, key": lambda: nn.save({"b\0c": Q}, FOLDER / "wrong.npz"),
    "save, dtype": lambda: nn.save({"b": Q.astype(complex)}, FOLDER / "wrong.safetensors"),
    "load, npz": lambda: nn.load(DAMAGED.with_suffix(".npz")),
    "load, safetensors": lambda: nn.load(DAMAGED.with_suffix(".safetensors")),
    "assert_attention_close, far": lambda: pyattn.testing.assert_attention_close(-CLOSE, Q, K, V),
    "assert_attention_close, shape": lambda: pyattn.testing.assert_attention_close(Q, Q, K, V),
    "compare, kinds": lambda: pyattn.compare(MHA, HEAD, X),
    "check, module": lambda: pyattn.testing.check(MHA),
    "state_dict, shape": lambda: MHA.load_state_dict({**MHA.state_dict(), "in_proj_bias": Q}),
}

"""Every entry point and every way to misuse it, as small calls: tests run them thousands of times, or out of memory."""

from __future__ import annotations

import functools
import warnings
from types import SimpleNamespace

import numpy as np

import pyattn
from pyattn import _core, nn

Q, K, V = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((3, 4), (5, 4), (5, 2)))
BATCH = tuple(np.stack([x, x]) for x in (Q, K, V))
HEADS = tuple(np.stack([x] * 4)[np.newaxis] for x in (Q, K, V))
PAGES = [[np.zeros(64 * 8, np.float32)]]
MASK, BIAS, LSE = np.tri(3, 5, dtype=bool), np.zeros((3, 5), np.float32), np.zeros(3, np.float32)
TURNS = np.array([1.0, 0.01])
FROZEN = np.zeros((3, 2), np.float32)
FROZEN.flags.writeable = False
with warnings.catch_warnings():
    warnings.simplefilter("ignore", PendingDeprecationWarning)
    MATRIX = np.matrix(Q)
SPARSE = SimpleNamespace(toarray=Q.copy)
ELSEWHERE = SimpleNamespace(requires_grad=False, device=SimpleNamespace(type="cuda"))
REQUIRES_GRAD = SimpleNamespace(requires_grad=True)


class Exporter:
    """An array through DLPack alone."""

    def __dlpack__(self, **options):
        return Q.__dlpack__(**options)

    def __dlpack_device__(self):
        return Q.__dlpack_device__()


class Failing:
    """Raises where its attributes are looked for."""

    @property
    def requires_grad(self):
        raise OSError("no such tensor")


# By way of another builtin, which checks what it is returned: NULL and an exception, or neither.
checked = functools.partial(pyattn.attention)


def attend(*arrays, **arguments):
    return checked(*(arrays or (Q, K, V)), **arguments)


def quietly(category, call):
    """A call that warns, without the warning."""

    def run():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category)
            return call()

    return run


SQUARE = np.eye(4, dtype=np.float32)
PROJECTIONS = (SQUARE,) * 4 + (None,) * 4
NORMS = (SQUARE[0], None, SQUARE[1], SQUARE[2], None, SQUARE[3])


def layer(x, memory=None, **options):
    cross = None if memory is None else PROJECTIONS
    return _core.layer(x, memory, PROJECTIONS, cross, (K, BIAS[0], K.T, None, None, None), NORMS, **options)


ZEROS_AND_ONES = BIAS + MASK
MANY_HEADS = np.zeros((1, 513, 1, 1), np.float32)

WORKING = {
    "attention": attend,
    "attention, everything": lambda: attend(need_weights=True, need_lse=True),
    "attention, batch": lambda: attend(*BATCH, key_lengths=[3, 0], query_lengths=np.array([1, 3])),
    "attention, heads": lambda: attend(*HEADS, window=(1, 2), align="lower_right", scale=2, empty_rows="nan"),
    "attention, bshd": lambda: attend(*HEADS[:1] * 3, layout="bshd"),
    "attention, threads": lambda: attend(num_threads=2),
    "attention, lists": lambda: attend([[1, 2]], [[3, 4]], [[5]]),
    "attention, promoted": lambda: attend(Q.astype(np.float64), K, V),
    "attention, bool mask": lambda: attend(attn_mask=MASK, is_causal=True, align="upper_left"),
    "attention, float mask": lambda: attend(attn_mask=BIAS),
    "attention, list mask": lambda: attend(attn_mask=[True] * 5),
    "attention, swapped mask": lambda: attend(attn_mask=BIAS.astype(">f4")),
    "attention, out": lambda: attend(out=np.empty((3, 2), np.float32)),
    "attention, out overlaps": lambda: attend(Q, K, K, out=Q.copy()),
    "attention, out swapped": lambda: attend(out=np.empty((3, 2), ">f4")),
    "attention, subclass": lambda: attend(Q.view(np.recarray), K, V),
    "attention, swapped": lambda: attend(Q.astype(">f4"), K, V),
    "attention, buffer": lambda: attend(memoryview(Q), K, V),
    "attention, DLPack": lambda: attend(Exporter(), K, V),
    "attention, MaskWarning": quietly(pyattn.MaskWarning, lambda: attend(attn_mask=ZEROS_AND_ONES)),
    "attention, ShapeWarning": quietly(pyattn.ShapeWarning, lambda: attend(MANY_HEADS, MANY_HEADS, MANY_HEADS)),
    "attention, dropout": lambda: attend(dropout_p=0.5, rng=0, need_weights=True),
    "attention, keep_mask": lambda: attend(dropout_p=0.5, keep_mask=MASK[:, ::-1], attn_mask=BIAS),
    "attention, cosine": lambda: attend(score="cosine", need_weights=True),
    "attention, distance": lambda: attend(*BATCH, score="distance", need_lse=True),
    "attention, bilinear": lambda: attend(Q[:, :2], K, V, score="bilinear", score_weight=Q[:2]),
    "attention, additive": lambda: attend(score="additive", score_weight=K[::-1, 1][:4]),
    "dropout": lambda: pyattn.dropout(Q, rng=0),
    "dropout_keep_mask": lambda: pyattn.dropout_keep_mask((2, 3, 5), 0.5, 0),
    "fill_keep_mask": lambda: _core.fill_keep_mask(MASK[None].copy(), 0.5, 1),
    "drop_rows": lambda: _core.drop_rows(Q, 0.5, 1),
    "sdpa": lambda: pyattn.scaled_dot_product_attention(Q, K, V, MASK, 0.0, True, scale=1.0),
    "softmax": lambda: pyattn.softmax(Q),
    "softmax, axes": lambda: pyattn.softmax(Q, (0, 1)),
    "softmax, list": lambda: pyattn.softmax([1, 2, 3], None),
    "log_softmax": lambda: pyattn.log_softmax(K, 0),
    "linear": lambda: pyattn.linear(Q, K),
    "linear, everything": lambda: pyattn.linear(
        Q, K, LSE[[0] * 5], activation="relu", residual=BIAS, num_threads=2, out=np.empty_like(BIAS)
    ),
    "linear, lists": lambda: pyattn.linear([[1, 2]], [[3, 4]], [5], residual=[[6]]),
    "linear, copied": lambda: pyattn.linear(
        Q.T, V[:3].T, residual=np.ones((2, 4), np.float32).T, out=np.empty((4, 2), "f")
    ),
    "linear, gate": lambda: pyattn.linear(Q, K, activation="silu", gate=BIAS, residual=BIAS),
    "gelu": lambda: pyattn.gelu(Q.T),
    "silu, list": lambda: pyattn.silu([1, 2]),
    "layer_norm": lambda: pyattn.layer_norm(Q, 4, K[0], K[1]),
    "layer_norm, everything": lambda: pyattn.layer_norm(Q.T, (4, 3), residual=Q.T, need_sum=True),
    "rms_norm": lambda: pyattn.rms_norm(Q[::-1], [4], K[0]),
    "feed_forward": lambda: pyattn.feed_forward(Q, K, None, K.T, None),
    "feed_forward, everything": lambda: pyattn.feed_forward(
        Q, K, BIAS[0], K.T, K[0], activation="silu", gate_weight=K, gate_bias=BIAS[1], residual=Q, out=Q.copy()
    ),
    "layer": lambda: layer(Q),
    "layer, everything": lambda: layer(
        Q, K, norm_first=True, need_weights=True, attn_mask=MASK[:, :3], memory_key_padding_mask=MASK[0], blocked=True
    ),
    "embedding": lambda: pyattn.embedding([[0, 4], [2, 2]], K),
    "embedding, everything": lambda: pyattn.embedding(
        np.array([1, 0], ">u2"), V.T, -1, scale=2, residual=V[:, 0], num_threads=2, out=np.empty((2, 5), "f")[::-1]
    ),
    "multi_head": lambda: _core.multi_head(Q, K, K, K, K, K, heads=5),
    "multi_head, everything": lambda: _core.multi_head(
        *(Q, K, K, K[:4], K[:2].copy("F"), K[2:4]),
        out_weight=K[:4].T,
        out_bias=BIAS[0, :4],
        q_bias=BIAS[:, :2].ravel()[:4:],
        v_bias=BIAS[:2, 0],
        extra_key=BIAS[0, :2],
        extra_value=BIAS[0, :4:2],
        add_zero=True,
        attn_mask=np.zeros((3, 5), bool),
        key_padding_mask=np.zeros((1, 5), np.float32),
        blocked=True,
        keep_mask=np.ones(7, bool),
        heads=4,
        kv_heads=2,
        need_weights=True,
        average_weights=True,
        is_causal=True,
        align="lower_right",
        num_threads=2,
    ),
    "rotary": lambda: _core.rotary(Q, TURNS),
    "rotary, everything": lambda: _core.rotary(
        np.stack([HEADS[0], HEADS[0]]), TURNS[:1], scale=2, position_ids=[[[3]], [[5]]], layout="bshd", interleaved=True
    ),
    "rotary, offset": lambda: _core.rotary(Q.T, TURNS[:1], offset=3, num_threads=2, out=np.empty((4, 3), np.float32)),
    "rotary, in place": lambda: (lambda x: _core.rotary(x, TURNS, out=x))(Q.copy()),
    "paged_attention": lambda: _core.paged_attention(Q[None, None], PAGES, 1, 4, 4, 64, 64, need_lse=True),
    "new_page": lambda: _core.new_page(7, Q),
    "append_to_pages": lambda: _core.append_to_pages(PAGES, 1, 4, 4, (3,), (2,), K[None, None], K[None, None], "bhsd"),
    "merge_states": lambda: pyattn.merge_states([Q, Q], [LSE, LSE]),
    "masks.causal": lambda: pyattn.masks.causal(3, 5, align="lower_right"),
    "masks.window": lambda: pyattn.masks.window(3, left=1, right=None),
    "masks.padding": lambda: pyattn.masks.padding([1, 2], 3),
    "masks.from_ones": lambda: pyattn.masks.from_ones(ZEROS_AND_ONES),
    "get_num_threads": pyattn.get_num_threads,
    "set_num_threads": lambda: pyattn.set_num_threads(None),
    "isa": pyattn.runtime.isa,
    "levels": lambda: (_core._levels(), _core._levels_compiled()),
    "set_isa": lambda: _core._set_isa(_core.isa()),
}

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
BAD_FEED = nn.FeedForward(4, 6, activation=np.sum, rng=0)

ROWS = np.random.default_rng(1).standard_normal((2, 1, 70, 4), np.float32)
CACHE, WINDOWED = pyattn.KVCache(1, 1, 4, batch_size=2, max_length=200), pyattn.KVCache(1, 1, 4, batch_size=2, window=3)
for each in (CACHE, WINDOWED):
    each.append(0, ROWS, -ROWS)


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
    "positional_encoding": lambda: pyattn.positional_encoding(3, 5, 2, base=100),
    "pad_sequences": lambda: pyattn.pad_sequences([[1, 2], FLAGS[0]], side="left", length=2, truncate="right"),
    "add_special_tokens": lambda: tuple(pyattn.add_special_tokens([[1]], start_token_id=2, eos_token_id=3)),
    "shift_right": lambda: pyattn.shift_right([[1, 2]], 0),
    "Dropout": lambda: DROPOUT(X),
    "RotaryEmbedding": lambda: ROTARY(X, position_ids=[1, 2, 3]),
    "rotary_embedding": lambda: pyattn.rotary_embedding(X, offset=3, scaling=YARN),
    "LayerNorm": lambda: NORM(X),
    "FeedForward": lambda: FEED(X),
    "FeedForward, callable": lambda: FEED_BY_HAND(X),
    "TransformerEncoderLayer": lambda: ENCODER_LAYER(X, FLAGS, X[:, :, 0] > 0),
    "TransformerEncoderLayer, weights": lambda: ENCODER_LAYER.forward_with_weights(X, is_causal=True),
    "TransformerDecoderLayer, composed": lambda: DECODER_LAYER(X, X, memory_key_padding_mask=X[:, :, 0] > 0),
    "self_attention": lambda: pyattn.self_attention(Q, *[V[:4]] * 3, columns=False, attn_mask=FLAGS),
    "additive_attention": lambda: pyattn.additive_attention(Q, K, V, K[:4], -K[:4], Q[0], Q[1]),
    "multi_head_attention_forward": lambda: pyattn.multi_head_attention_forward(
        *(X, X, X, 4, 2, MHA.in_proj_weight, None, None, None, False, 0.0, MHA.out_proj.weight, None)
    ),
    "state_dict": lambda: MHA.load_state_dict(MHA.state_dict()),
    "heads": lambda: nn.from_heads(*nn.to_heads(MHA)).in_proj_weight,
    "KVCache": lambda: grown(WINDOWED, ROWS),
    "KVCache, beams": lambda: grown(CACHE.fork(2), np.concatenate([ROWS, ROWS[::-1]])),
    "KVCache, changes": lambda: changed(CACHE.fork()),
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
    "positional_encoding, dim": lambda: pyattn.positional_encoding(3, -1),
    "pad_sequences, length": lambda: pyattn.pad_sequences([[1, 2]], length=1),
    "pad_sequences, range": lambda: pyattn.pad_sequences([[300]], dtype="u1"),
    "shift_right, dtype": lambda: pyattn.shift_right(Q, 0),
    "Dropout, p": lambda: nn.Dropout(2),
    "Dropout, dtype": lambda: DROPOUT(X * 1j),
    "LayerNorm, shape": lambda: NORM(X[..., :3]),
    "FeedForward, shape": lambda: FEED(X[..., :3]),
    "FeedForward, activation": lambda: BAD_FEED(X),
    "TransformerEncoderLayer, mask": lambda: ENCODER_LAYER(X, FLAGS[:2]),
    "TransformerDecoderLayer, memory": lambda: DECODER_LAYER(X, X[..., :3]),
    "additive_attention, inner": lambda: pyattn.additive_attention(Q, K, V, K, K, LSE),
    "additive_attention, w_score": lambda: pyattn.additive_attention(Q, K, V, K[:4], K[:4], LSE),
    "RotaryEmbedding, dim": lambda: ROTARY(V),
    "rotary_embedding, scaling": lambda: pyattn.rotary_embedding(Q, scaling={**YARN, "factors": 2}),
    "state_dict, key": lambda: MHA.load_state_dict({"in_proj_weights": Q}),
    "KVCache, key": lambda: CACHE.append(0, ROWS[:, 0], ROWS),
    "KVCache, dtype": lambda: CACHE.append(0, ROWS.astype(float), ROWS),
    "KVCache, lengths": lambda: CACHE.append(0, ROWS, ROWS, lengths=[70, 71]),
    "KVCache, max_length": lambda: CACHE.append(0, np.concatenate([ROWS, ROWS], 2), np.concatenate([ROWS, ROWS], 2)),
    "KVCache, query": lambda: CACHE.attend(0, ROWS[..., :3]),
    "KVCache, mask": lambda: CACHE.attend(0, ROWS, attn_mask=FLAGS),
    "KVCache, layer": lambda: CACHE.keys(1),
    "KVCache, truncate": lambda: CACHE.truncate([1, -1]),
    "KVCache, reorder": lambda: CACHE.reorder([0, 2]),
    "state_dict, shape": lambda: MHA.load_state_dict({**MHA.state_dict(), "in_proj_bias": Q}),
}

MISTAKES = {
    "positional": lambda: checked(Q, K, V, None),
    "missing": lambda: checked(Q, K),
    "unknown keyword": lambda: attend(mask=None),
    "twice": lambda: checked(Q, K, V, query=Q),
    "rank": lambda: attend(Q[0], K, V),
    "head_dim": lambda: attend(Q, K[:, :3], V),
    "length": lambda: attend(Q, K[:4], V),
    "batch": lambda: attend(BATCH[0], np.stack([K] * 3), V),
    "heads": lambda: attend(HEADS[0], HEADS[1][:, :3], HEADS[2]),
    "bshd axes": lambda: attend(HEADS[0], K, V, layout="bshd"),
    "bshd without heads": lambda: attend(layout="bshd"),
    "layouts": lambda: attend(HEADS[0][:, :2], HEADS[1][:, :3], HEADS[1][:, :3]),
    "mask axes": lambda: attend(attn_mask=MASK[None]),
    "mask of integers": lambda: attend(attn_mask=MASK.astype(int).tolist()),
    "mask shape": lambda: attend(attn_mask=MASK[:2]),
    "mask dtype": lambda: attend(attn_mask=MASK.astype(int)),
    "mask of text": lambda: attend(attn_mask=[["a"]]),
    "mask of objects": lambda: attend(attn_mask=[[None]]),
    "lengths": lambda: attend(*BATCH, key_lengths=[3, 6]),
    "lengths shape": lambda: attend(*BATCH, query_lengths=[1, 2, 3]),
    "lengths dtype": lambda: attend(*BATCH, query_lengths=[1.0, 2.0]),
    "lengths too large": lambda: attend(*BATCH, key_lengths=[2**63, 2]),
    "no align": lambda: attend(is_causal=True),
    "align": lambda: attend(align="left"),
    "layout": lambda: attend(layout=3),
    "empty_rows": lambda: attend(empty_rows=None),
    "window": lambda: attend(window=-1),
    "window flag": lambda: attend(window=True),
    "window pair": lambda: attend(window=(1, "a")),
    "window triple": lambda: attend(window=(1, 2, 3)),
    "scale": lambda: attend(scale="a"),
    "score": lambda: attend(score="cosin"),
    "score without weight": lambda: attend(score="additive"),
    "bilinear without weight": lambda: attend(score="bilinear"),
    "score_weight": lambda: attend(score_weight=Q),
    "score_weight shape": lambda: attend(score="additive", score_weight=K),
    "score_weight dtype": lambda: attend(score="additive", score_weight=Q[0] * 1j),
    "bilinear shape": lambda: attend(score="bilinear", score_weight=K),
    "bilinear batch": lambda: attend(np.stack([Q] * 3), BATCH[1], V, score="bilinear", score_weight=K[:4]),
    "num_threads": lambda: attend(num_threads=0),
    "keep_mask dtype": lambda: attend(keep_mask=BIAS),
    "keep_mask shape": lambda: attend(keep_mask=MASK[:2]),
    "rng": lambda: attend(dropout_p=0.5, rng="a"),
    "keep mask size": lambda: pyattn.dropout_keep_mask((3, 4), 2),
    "core, drop_rows": lambda: _core.drop_rows(Q.T, 0.5, 0),
    "core, drop_rows p": lambda: _core.drop_rows(Q, 2, 0),
    "dropout p": lambda: pyattn.dropout(Q, 2),
    "dropout rng": lambda: pyattn.dropout(Q, rng="a"),
    "core, fill_keep_mask": lambda: _core.fill_keep_mask(BIAS, 0.5, 0),
    "core, fill_keep_mask p": lambda: _core.fill_keep_mask(MASK[None].copy(), 2, 0),
    "dropout_p range": lambda: attend(dropout_p=2),
    "flag": lambda: attend(is_causal=np.ones(2)),
    "need_weights": lambda: attend(need_weights=np.ones(2)),
    "out type": lambda: attend(out=[]),
    "out shape": lambda: attend(out=np.empty((2, 2), np.float32)),
    "out dtype": lambda: attend(out=np.empty((3, 2))),
    "out read-only": lambda: attend(out=FROZEN),
    "complex": lambda: attend(Q * 1j, K, V),
    "half": lambda: attend(Q, K, V.astype(np.float16)),
    "objects": lambda: attend(None, K, V),
    "text": lambda: attend("text", K, V),
    "ragged": lambda: attend([[1], [2, 3]], K, V),
    "masked array": lambda: attend(np.ma.array(Q), K, V),
    "masked key": lambda: attend(Q, np.ma.array(K), V),
    "masked arrays in a list": lambda: attend([[Q[0]], [np.ma.array(Q[0])]], K, V),
    "matrix": lambda: attend(MATRIX, K, V),
    "sparse": lambda: attend(SPARSE, K, V),
    "elsewhere": lambda: attend(ELSEWHERE, K, V),
    "requires grad": lambda: attend(REQUIRES_GRAD, K, V),
    "failing": lambda: attend(Failing(), K, V),
    "too large": lambda: attend(*[np.broadcast_to(Q[0, 0], (2**31, 1))] * 3, need_weights=True),
    "sdpa dtype": lambda: pyattn.scaled_dot_product_attention(Q, K.astype(float), V),
    "sdpa list": lambda: pyattn.scaled_dot_product_attention(Q, K, [[1, 2]] * 5),
    "sdpa mask": lambda: pyattn.scaled_dot_product_attention(Q, K, V, MASK.astype(int)),
    "sdpa heads": lambda: pyattn.scaled_dot_product_attention(HEADS[0], HEADS[1][:, :2], HEADS[2][:, :2]),
    "softmax axis": lambda: pyattn.softmax(Q, 2),
    "softmax axes": lambda: pyattn.log_softmax(Q, (0, 0)),
    "softmax dtype": lambda: pyattn.softmax(["a"]),
    "linear, inner": lambda: pyattn.linear(Q, V),
    "linear, bias": lambda: pyattn.linear(Q, K, LSE),
    "linear, residual": lambda: pyattn.linear(Q, K, residual=Q),
    "linear, activation": lambda: pyattn.linear(Q, K, activation="swish"),
    "linear, gate": lambda: pyattn.linear(Q, K, gate=Q),
    "gelu, kind": lambda: pyattn.gelu(Q, "erf"),
    "silu, dtype": lambda: pyattn.silu(["a"]),
    "layer_norm, shape": lambda: pyattn.layer_norm(Q, 3),
    "layer_norm, weight": lambda: pyattn.layer_norm(Q, 4, K[:, 0]),
    "layer_norm, residual": lambda: pyattn.layer_norm(Q, 4, residual=K),
    "layer_norm, eps": lambda: pyattn.layer_norm(Q, 4, eps=-1.0),
    "layer_norm, sum": lambda: pyattn.layer_norm(Q, 4, need_sum=True),
    "rms_norm, size": lambda: pyattn.rms_norm(Q, 4.0),
    "core, normalize": lambda: _core.normalize(Q, K[0], K[:, 0]),
    "core, activate": lambda: _core.activate(Q.T, "gelu"),
    "core, activate what": lambda: _core.activate(Q, "swish"),
    "core, activate a list": lambda: _core.activate([1], "gelu"),
    "feed_forward, hidden": lambda: pyattn.feed_forward(Q, K, None, K, None),
    "feed_forward, gate": lambda: pyattn.feed_forward(Q, K, None, K.T, None, gate_weight=K[:3]),
    "feed_forward, gate's bias": lambda: pyattn.feed_forward(Q, K, None, K.T, None, gate_bias=BIAS[0]),
    "feed_forward, residual": lambda: pyattn.feed_forward(Q, K, None, K.T, None, residual=BIAS),
    "feed_forward, out": lambda: pyattn.feed_forward(Q, K, None, K.T, None, out=FROZEN),
    "feed_forward, none": lambda: pyattn.feed_forward(Q, None, None, K.T, None),
    "layer, weights": lambda: _core.layer(Q, None, (K,), None, (), ()),
    "layer, heads": lambda: layer(Q, heads=3),
    "layer, mask": lambda: layer(Q, attn_mask=MASK),
    "layer, memory": lambda: layer(Q, K[:, :2]),
    "layer, activation": lambda: layer(Q, activation="swish"),
    "layer, eps": lambda: layer(Q, eps=-1.0),
    "linear, dtype": lambda: pyattn.linear(Q, K, V * 1j),
    "linear, out": lambda: pyattn.linear(Q, K, out=FROZEN),
    "embedding, id": lambda: pyattn.embedding([[0], [5]], K),
    "embedding, ids": lambda: pyattn.embedding([0.5], K),
    "embedding, weight": lambda: pyattn.embedding([0], K[0]),
    "embedding, residual": lambda: pyattn.embedding([0], K, residual=V),
    "embedding, padding_idx": lambda: pyattn.embedding([0], K, 5),
    "embedding, scale": lambda: pyattn.embedding([0], K, scale="a"),
    "embedding, out": lambda: pyattn.embedding([0], K, out=FROZEN),
    "multi_head, weight": lambda: _core.multi_head(Q, K, K, V, K, K),
    "multi_head, heads": lambda: _core.multi_head(Q, K, K, K, K, K, heads=2),
    "multi_head, bias": lambda: _core.multi_head(Q, K, K, K, K, K, q_bias=LSE),
    "multi_head, option": lambda: _core.multi_head(Q, K, K, K, K, K, attn_mask=MASK.astype(int)),
    "rotary, axes": lambda: _core.rotary(Q[0], TURNS),
    "rotary, pairs": lambda: _core.rotary(V, TURNS),
    "rotary, frequencies": lambda: _core.rotary(Q, "a"),
    "rotary, layout": lambda: _core.rotary(Q, TURNS, layout="sbhd"),
    "rotary, offset range": lambda: _core.rotary(Q, TURNS, offset=2**53),
    "rotary, both positions": lambda: _core.rotary(Q, TURNS, offset=1, position_ids=[1]),
    "rotary, position_ids": lambda: _core.rotary(Q, TURNS, position_ids=[1, 2]),
    "rotary, position_ids dtype": lambda: _core.rotary(Q, TURNS, position_ids=[1.5]),
    "rotary, out": lambda: _core.rotary(Q, TURNS, out=FROZEN),
    "paged_attention, pages": lambda: _core.paged_attention(Q[None, None], [PAGES], 1, 4, 4, 5, 0),
    "paged_attention, list": lambda: _core.paged_attention(Q[None, None], [[PAGES[0][0]], 3], 1, 4, 4, 5, 0),
    "paged_attention, length": lambda: _core.paged_attention(Q[None, None], PAGES, 1, 4, 4, 65, 0),
    "paged_attention, size": lambda: _core.paged_attention(Q[None, None], PAGES, 1, 4.0, 4, 5, 0),
    "new_page, size": lambda: _core.new_page(-1, Q),
    "new_page, like": lambda: _core.new_page(7, np.empty(0, "V0")),
    "append_to_pages, page": lambda: _core.append_to_pages([[Q]], 1, 4, 4, (0,), (5,), K[None, None], V, "bhsd"),
    "append_to_pages, first": lambda: _core.append_to_pages(PAGES, 1, 4, 4, ("a",), (5,), K[None, None], V, "bhsd"),
    "append_to_pages, rows": lambda: _core.append_to_pages(PAGES, 1, 4, 4, (0,), (5,), K[None, None], V, "bhsd"),
    "merge nothing": lambda: pyattn.merge_states([], []),
    "merge shapes": lambda: pyattn.merge_states([Q, K], [LSE, LSE]),
    "merge lse": lambda: pyattn.merge_states([Q], [LSE[:2]]),
    "merge dtype": lambda: pyattn.merge_states([Q], [LSE * 1j]),
    "core, softmax_rows": lambda: _core.softmax_rows(Q.T, False),
    "core, softmax_rows of a list": lambda: _core.softmax_rows([1], False),
    "core, as_real": lambda: _core.as_real(Q),
    "core, merge_states": lambda: _core.merge_states((Q,), (LSE,), Q.T, LSE),
    "core, merge_states of others": lambda: _core.merge_states((Q,), (LSE.astype(float),), Q.copy(), LSE.copy()),
    "masks align": lambda: pyattn.masks.causal(3, 5),
    "masks size": lambda: pyattn.masks.window(3, left=-1, right=0),
    "masks padding": lambda: pyattn.masks.padding([3], 2),
    "masks ones": lambda: pyattn.masks.from_ones([2.0]),
    "set_num_threads": lambda: pyattn.set_num_threads(0),
    "set_isa": lambda: _core._set_isa("no such level"),
    "set_isa type": lambda: _core._set_isa(3),
    "read_speed": lambda: _core._read_speed(LSE.astype(float), 1),
    "fma_peak": lambda: _core._fma_peak("a"),
}

"""Every entry point, as small calls: tests run them thousands of times, or out of memory.

mistaken_calls.py has every way to misuse them, module_calls.py the modules.
"""

from __future__ import annotations

import functools
import warnings
from types import SimpleNamespace

import numpy as np

import pyattn
from pyattn import _core

Q, K, V = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((3, 4), (5, 4), (5, 2)))
WORTH_THREADS = np.ones((130, 32), np.float32)  # as query, key and value: more work than one thread does alone
BATCH = tuple(np.stack([x, x]) for x in (Q, K, V))
HEADS = tuple(np.stack([x] * 4)[np.newaxis] for x in (Q, K, V))
F4 = np.dtype(np.float32)
PAGES = [[np.zeros(64 * 8, np.float32)]]
MASK, BIAS, LSE = np.tri(3, 5, dtype=bool), np.zeros((3, 5), np.float32), np.zeros(3, np.float32)
LONG, CHAIN = np.ones((512, 4), np.float32), np.ones((3, 4), np.float32)  # a whole part, and a state with v_dim 2
TURNS = np.array([1.0, 0.01])
FROZEN = np.zeros((3, 2), np.float32)
FROZEN.flags.writeable = False
FROZEN_HALF = Q.astype(np.float16)
FROZEN_HALF.flags.writeable = False
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


def differentiate(*arrays, dtype=np.float32, need=7, grad_lse=None, score_weight=None, **options):
    query, key, value = (x.astype(dtype) for x in (*arrays, *(Q, K, V)[len(arrays) :]))
    output, lse = checked(query, key, value, need_lse=True, score_weight=score_weight, **options)
    return _core.attention_backward(output, query, key, value, output, score_weight, lse, grad_lse, need, **options)


def derive(*arrays, dtype=np.float32, score_weight=None, tangent_attn_mask=None, **options):
    query, key, value = (x.astype(dtype) for x in (*arrays, *(Q, K, V)[len(arrays) :]))
    output, lse = checked(query, key, value, need_lse=True, score_weight=score_weight, **options)
    tangents = (query, None, value, score_weight, lse, tangent_attn_mask)
    return _core.attention_jvp(query, key, value, output, *tangents, **options)


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
    cross = None if memory is None and "memory_cache" not in options else PROJECTIONS
    return _core.layer(x, memory, PROJECTIONS, cross, (K, BIAS[0], K.T, None, None, None), NORMS, **options)


PROJECTION = np.ones((4, 4), np.float32)
TURNING = (np.ones(2), 1.0, 3, None, False)
USE = (PAGES, F4, 1, 4, 4, 5, 0, (3,), (2,))
READ = (*USE[:7], None, None)
ZEROS_AND_ONES = BIAS + MASK
MANY_HEADS = np.zeros((1, 513, 1, 1), np.float32)
HALF = np.abs(Q).astype(np.float16)
ADAM = (0.1, 0.9, 0.999, 1e-8, 0.01, 3, True, False)


def stepped(step, parameter, gradient, moment, moments, *options):
    """A step of an optimiser on copies, and what it changed."""
    own, *states = (x.copy() for x in (parameter, *[np.abs(moment)] * moments))
    states += [None] * (step is _core.adam_step and len(states) < 3)
    return step(own, gradient.copy(), *states, *options), own, *(x for x in states if x is not None)


WORKING = {
    "attention": attend,
    "attention, everything": lambda: attend(need_weights=True, need_lse=True),
    "attention, batch": lambda: attend(*BATCH, key_lengths=[3, 0], query_lengths=np.array([1, 3])),
    "attention, heads": lambda: attend(*HEADS, window=(1, 2), align="lower_right", scale=2, empty_rows="nan"),
    "attention, bshd": lambda: attend(*HEADS[:1] * 3, layout="bshd"),
    "attention, threads": lambda: attend(WORTH_THREADS, WORTH_THREADS, WORTH_THREADS, num_threads=2),
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
    "attention, inverted mask": quietly(pyattn.MaskWarning, lambda: attend(attn_mask=~MASK)),
    "attention, ShapeWarning": quietly(pyattn.ShapeWarning, lambda: attend(MANY_HEADS, MANY_HEADS, MANY_HEADS)),
    "attention, dropout": lambda: attend(dropout_p=0.5, rng=0, need_weights=True),
    "attention, keep_mask": lambda: attend(dropout_p=0.5, keep_mask=MASK[:, ::-1], attn_mask=BIAS),
    "attention, cosine": lambda: attend(score="cosine", need_weights=True),
    "attention, distance": lambda: attend(*BATCH, score="distance", need_lse=True),
    "attention, bilinear": lambda: attend(Q[:, :2], K, V, score="bilinear", score_weight=Q[:2]),
    "attention, bilinear, drawn": lambda: attend(
        Q[:, :2], K, V, score="bilinear", score_weight=Q[:2], dropout_p=0.5, rng=0
    ),
    "attention, additive": lambda: attend(score="additive", score_weight=K[::-1, 1][:4]),
    "attention_backward": lambda: differentiate(),
    "attention_backward, everything": lambda: differentiate(
        *HEADS,
        dtype=np.float64,
        need=47,
        grad_lse=np.ones((1, 4, 3)),
        attn_mask=BIAS[0],
        dropout_p=0.5,
        keep_mask=MASK[:, ::-1],
        window=2,
        align="upper_left",
    ),
    "attention_backward, drawn": lambda: differentiate(dropout_p=0.5, rng=0),
    "attention_backward, halves and lengths": lambda: differentiate(
        *BATCH, dtype=np.float16, key_lengths=[3, 5], query_lengths=[2, 0], attn_mask=MASK
    ),
    "attention_backward, threads": lambda: differentiate(
        *[WORTH_THREADS] * 3, num_threads=2, need=47, attn_mask=np.zeros((130, 130), np.float32)
    ),
    "attention_backward, coarse": lambda: differentiate(attn_mask=BIAS - np.float32(1e9)),
    "attention_backward, cosine": lambda: differentiate(score="cosine", need=47, attn_mask=BIAS),
    "attention_backward, distance": lambda: differentiate(*BATCH, score="distance", need=39),
    "attention_backward, additive": lambda: differentiate(score="additive", score_weight=K[::-1, 1][:4], need=55),
    "attention_backward, a scale of 0": lambda: differentiate(scale=0.0, need=39),
    "attention_backward, NaN": lambda: differentiate(Q * np.float32(np.nan), attn_mask=MASK),
    "attention_jvp": lambda: derive(),
    "attention_jvp, everything": lambda: derive(
        *HEADS,
        dtype=np.float64,
        attn_mask=BIAS,
        tangent_attn_mask=ZEROS_AND_ONES.tolist(),
        dropout_p=0.5,
        keep_mask=MASK[:, ::-1],
        window=2,
        align="upper_left",
    ),
    "attention_jvp, drawn": lambda: derive(dropout_p=0.5, rng=0),
    "attention_jvp, lengths": lambda: derive(*BATCH, key_lengths=[3, 5], query_lengths=[2, 0], attn_mask=MASK),
    "attention_jvp, threads": lambda: derive(*[WORTH_THREADS] * 3, num_threads=2),
    "attention_jvp, coarse": lambda: derive(attn_mask=BIAS - np.float32(1e9)),
    "attention_jvp, cosine": lambda: derive(score="cosine", attn_mask=BIAS, tangent_attn_mask=BIAS),
    "attention_jvp, distance": lambda: derive(*BATCH, score="distance"),
    "attention_jvp, additive": lambda: derive(score="additive", score_weight=K[::-1, 1][:4]),
    "attention_jvp, NaN": lambda: derive(Q * np.float32(np.nan), attn_mask=MASK),
    "attention_jvp, public": lambda: pyattn.functional.attention_jvp(Q, K, V, Q),
    "dropout": lambda: pyattn.functional.dropout(Q, rng=0),
    "dropout_keep_mask": lambda: pyattn.functional.dropout_keep_mask((2, 3, 5), 0.5, 0),
    "fill_keep_mask": lambda: _core.fill_keep_mask(MASK[None].copy(), 0.5, 1),
    "drop_rows": lambda: _core.drop_rows(Q, 0.5, 1),
    "sdpa": lambda: pyattn.scaled_dot_product_attention(Q, K, V, MASK, 0.0, True, scale=1.0),
    "softmax": lambda: pyattn.softmax(Q),
    "softmax, axes": lambda: pyattn.softmax(Q, (0, 1)),
    "softmax, list": lambda: pyattn.softmax([1, 2, 3], None),
    "log_softmax": lambda: pyattn.functional.log_softmax(K, 0),
    "cross_entropy": lambda: _core.cross_entropy(Q, [0, 1, 3], None, None, -100, 0, 0.0),
    "cross_entropy, everything": lambda: _core.cross_entropy(Q.T, None, [LSE + 0.5] * 4, LSE + 1, -100, 2, 0.1),
    "cross_entropy, halves": lambda: _core.cross_entropy(HALF, None, HALF, HALF[0], -100, 1, 0.0),
    "sum_squares": lambda: _core.sum_squares(Q),
    "adam_step": lambda: stepped(_core.adam_step, Q, K[:3], V[:3, [0, 0, 1, 1]], 3, *ADAM),
    "adam_step, halves": lambda: stepped(_core.adam_step, HALF, K[:3], Q, 2, *ADAM),
    "sgd_step": lambda: stepped(_core.sgd_step, Q, K[:3], K[:3], 1, 0.1, 0.9, 0.0, 0.1, False, True, False),
    "softmax_backward": lambda: pyattn.functional.softmax_backward(Q, Q),
    "softmax_backward, axes": lambda: pyattn.functional.softmax_backward(HEADS[0], HEADS[0], (0, 2)),
    "log_softmax_backward, half": lambda: pyattn.functional.log_softmax_backward(Q, FROZEN_HALF, 0),
    "argmax": lambda: pyattn.functional.argmax(Q),
    "argmax, another axis": lambda: pyattn.functional.argmax(Q, 0),
    "top_k": lambda: pyattn.functional.topk(Q, 3),
    "top_k, copied": lambda: pyattn.functional.topk(Q.T, 2),
    "linear": lambda: pyattn.functional.linear(Q, K),
    "linear, everything": lambda: pyattn.functional.linear(
        Q, K, LSE[[0] * 5], activation="relu", residual=BIAS, num_threads=2, out=np.empty_like(BIAS)
    ),
    "linear, lists": lambda: pyattn.functional.linear([[1, 2]], [[3, 4]], [5], residual=[[6]]),
    "linear, copied": lambda: pyattn.functional.linear(
        Q.T, V[:3].T, residual=np.ones((2, 4), np.float32).T, out=np.empty((4, 2), "f")
    ),
    "linear, gate": lambda: pyattn.functional.linear(Q, K, activation="silu", gate=BIAS, residual=BIAS),
    "gelu": lambda: pyattn.functional.gelu(Q.T),
    "silu, list": lambda: pyattn.functional.silu([1, 2]),
    "gelu_backward": lambda: pyattn.functional.gelu_backward(Q.T, Q.T, "tanh"),
    "silu_backward, promoted": lambda: pyattn.functional.silu_backward([1, 2], Q[0, :2].astype(np.float16)),
    "activate_backward": lambda: _core.activate_backward(Q, Q, "relu"),
    "activate_backward, gate": lambda: _core.activate_backward(Q, Q, "silu", gate=Q),
    "activate_backward, halves": lambda: _core.activate_backward(*[Q.astype(np.float16)] * 2, None, FROZEN_HALF),
    "layer_norm": lambda: pyattn.functional.layer_norm(Q, 4, K[0], K[1]),
    "layer_norm, everything": lambda: pyattn.functional.layer_norm(Q.T, (4, 3), residual=Q.T, need_sum=True),
    "rms_norm": lambda: pyattn.functional.rms_norm(Q[::-1], [4], K[0]),
    "layer_norm_backward": lambda: pyattn.functional.layer_norm_backward(Q.T, Q.T, (4, 3)),
    "rms_norm_backward": lambda: pyattn.functional.rms_norm_backward(Q, Q[::-1], [4], K[0], need="x"),
    "normalize_backward, halves": lambda: _core.normalize_backward(
        Q, FROZEN_HALF, FROZEN_HALF[0], rms=True, eps=1, need_weight=True, need_bias=False, num_threads=2
    ),
    "feed_forward": lambda: pyattn.functional.feed_forward(Q, K, None, K.T, None),
    "feed_forward, everything": lambda: pyattn.functional.feed_forward(
        Q, K, BIAS[0], K.T, K[0], activation="silu", gate_weight=K, gate_bias=BIAS[1], residual=Q, out=Q.copy()
    ),
    "layer": lambda: layer(Q),
    "layer, everything": lambda: layer(
        Q, K, norm_first=True, need_weights=True, attn_mask=MASK[:, :3], memory_key_padding_mask=MASK[0], blocked=True
    ),
    "layer, cache": lambda: layer(
        Q[None],
        cache=USE,
        memory_cache=READ,
        rotary=TURNING,
        is_causal=True,
        window=3,
        key_lengths=[5],
        query_lengths=[2],
    ),
    "embedding": lambda: pyattn.functional.embedding([[0, 4], [2, 2]], K),
    "embedding, everything": lambda: pyattn.functional.embedding(
        np.array([1, 0], ">u2"), V.T, -1, scale=2, residual=V[:, 0], num_threads=2, out=np.empty((2, 5), "f")[::-1]
    ),
    "embedding_backward": lambda: pyattn.functional.embedding_backward(K[:2], [4, 0], 5),
    "embedding_backward, everything": lambda: _core.embedding_backward(
        FROZEN_HALF.T, np.array([1, 0, 1, 2], ">u2"), 5, padding_idx=-5, scale=2, num_threads=2
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
    "multi_head, cache": lambda: _core.multi_head(
        *(Q[None], Q[None], Q[None], PROJECTION, PROJECTION, PROJECTION),
        cache=USE,
        rotary=TURNING,
        align="lower_right",
        key_lengths=[5],
        query_lengths=[2],
    ),
    "multi_head, what a cache holds": lambda: _core.multi_head(Q[None], None, None, *[PROJECTION] * 3, cache=READ),
    "rotary": lambda: _core.rotary(Q, TURNS),
    "rotary, everything": lambda: _core.rotary(
        np.stack([HEADS[0], HEADS[0]]), TURNS[:1], scale=2, position_ids=[[[3]], [[5]]], layout="bshd", interleaved=True
    ),
    "rotary, offset": lambda: _core.rotary(Q.T, TURNS[:1], offset=3, num_threads=2, out=np.empty((4, 3), np.float32)),
    "rotary, in place": lambda: (lambda x: _core.rotary(x, TURNS, out=x))(Q.copy()),
    "attention_part": lambda: _core.attention_part(
        *BATCH, key_start=64, need_lse=True, dropout_p=0.5, seed=3, units=[7, 2], key_limits=[[0, 4]]
    ),
    "attention_part, a chain": lambda: _core.attention_part(Q, K, V, key_start=512, state=CHAIN, query_start=2),
    "attention_part, unfinished": lambda: _core.attention_part(Q, LONG, LONG, unfinished=True),
    "attention_shape": lambda: _core.attention_shape(*HEADS, is_causal=True, align=1, dropout_p=0.5),
    "paged_attention": lambda: _core.paged_attention(
        Q[None, None], (PAGES, F4, 1, 4, 4, 64, 64, None, None), need_lse=True
    ),
    "new_page": lambda: _core.new_page(7, Q.dtype),
    "append_to_pages": lambda: _core.append_to_pages(
        (PAGES, F4, 1, 4, 4, 0, 0, (3,), (2,)), K[None, None], K[None, None], "bhsd"
    ),
    "merge_states": lambda: pyattn.merge_states([Q, Q], [LSE, LSE]),
    "masks.causal": lambda: pyattn.masks.causal(3, 5, align="lower_right"),
    "masks.window": lambda: pyattn.masks.window(3, left=1, right=None),
    "masks.padding": lambda: pyattn.masks.padding([1, 2], 3),
    "masks.from_array": lambda: pyattn.masks.from_array(ZEROS_AND_ONES),
    "get_num_threads": pyattn.get_num_threads,
    "set_num_threads": lambda: pyattn.set_num_threads(None),
    "isa": pyattn.runtime.isa,
    "levels": lambda: (_core._levels(), _core._levels_compiled()),
    "set_isa": lambda: _core._set_isa(_core.isa()),
}

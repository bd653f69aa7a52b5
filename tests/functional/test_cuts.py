"""Long inputs are done in parts: the bits are those of the whole, whatever belongs to a query.

With one thread a part has at least 768 rows, with eight 3,072 and with sixteen 6,144: those calls are in one.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.helpers import assert_same_bits
from test_layer import HEADS, Drawn
from test_layer import E as FEATURES
from test_multi_head import draw, step_by_step

import pyattn
from pyattn import _core
from pyattn._util.typing import Rotation

B, L, S = 2, 2311, 450  # three parts, of which the first has one query more
IN_PARTS, WHOLE = 1, 8  # threads

OF_EACH_QUERY = {
    "nothing": lambda rng: {},
    "causal": lambda rng: {"is_causal": True, "align": "upper_left"},
    "causal, to the last key": lambda rng: {"is_causal": True, "align": "lower_right"},
    "window": lambda rng: {"window": (200, 30), "align": "upper_left"},
    "mask": lambda rng: {"attn_mask": rng.random((L, S)) < 0.1},
    "mask of each entry": lambda rng: {"attn_mask": rng.standard_normal((B, 1, L, S))},
    "mask of queries": lambda rng: {"attn_mask": rng.random((L, 1)) < 0.9},
    "mask of keys": lambda rng: {"attn_mask": rng.random(S) < 0.1},
    "two masks": lambda rng: {
        "attn_mask": rng.standard_normal((4, 1, S)),
        "key_padding_mask": rng.random((B, 1, L, S)) < 0.1,
        "is_causal": True,
        "align": "upper_left",
    },
    "lengths": lambda rng: {"key_lengths": [S, 3], "is_causal": True, "align": "upper_left"},
    "lengths of queries": lambda rng: {"query_lengths": [L, 1800], "key_lengths": [200, S]},
    "lower right, lengths": lambda rng: {"key_lengths": [200, S], "is_causal": True, "align": "lower_right"},
    "dropout": lambda rng: {"dropout_p": 0.3, "rng": 5},
    "keeps": lambda rng: {"dropout_p": 0.3, "keep_mask": rng.random((B, 1, L, S)) < 0.7},
}


def both(*arguments, **options):
    """In parts and whole."""
    return [_core.multi_head(*arguments, **options, num_threads=threads) for threads in (IN_PARTS, WHOLE)]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OF_EACH_QUERY)
def test_attention_of_many_queries(name, dtype):
    rng = np.random.default_rng(0)
    inputs, weights, options = draw(rng, dtype, batch=B, q_len=L, kv_len=S)
    attention = OF_EACH_QUERY[name](rng)
    parts, whole = both(*inputs, *weights, **options, **attention, need_weights=True)
    for part, expected in zip(parts[:2], whole[:2], strict=True):
        assert_same_bits(part, expected)
    if "key_padding_mask" in attention or "dropout_p" in attention:
        return  # not among the arguments of `pyattn.attention`, or by another name
    for part, expected in zip(parts[:2], step_by_step(inputs, weights, options, **attention), strict=True):
        assert_same_bits(part, expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["average_weights", "extra", "add_zero"])
def test_what_else_goes_with_it(name, dtype):
    rng = np.random.default_rng(1)
    inputs, weights, given = draw(rng, dtype, batch=B, q_len=L, kv_len=S)
    pair = [rng.standard_normal(len(weight)).astype(dtype) for weight in weights[1:]]
    options = {"extra_key": pair[0], "extra_value": pair[1]} if name == "extra" else {name: True}
    options |= {"is_causal": True, "align": "upper_left", "need_weights": True}
    parts, whole = both(*inputs, *weights, **given, **options)
    assert_same_bits(parts[0], whole[0])
    assert_same_bits(parts[1], whole[1])
    heads, keys = () if name == "average_weights" else (4,), S if name == "average_weights" else S + 1
    assert parts[1].shape == (B, *heads, L, keys)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ids", [None, (B, L), (1, L)])
def test_queries_turn_by_their_own_positions(ids, dtype):
    rng = np.random.default_rng(2)
    (x, *_), weights, options = draw(rng, dtype, batch=B, q_len=L, kv_len=L)
    ids = None if ids is None else rng.integers(0, 1000, ids)
    turning = Rotation(1 / 10.0 ** np.arange(4), 1.0, 5, ids, False)
    parts, whole = both(x, x, x, *weights, **options, rotary=turning)
    assert_same_bits(parts[0], whole[0])
    assert not np.array_equal(parts[0], both(x, x, x, *weights, **options)[0][0])


def test_axes_in_any_order(dtype, level):
    rng = np.random.default_rng(3)
    inputs, weights, options = draw(rng, dtype, batch=B, q_len=L, kv_len=S)
    expected = both(*inputs, *weights, **options)[1][0]
    strided = [np.asfortranarray(inputs[0]), inputs[1], np.repeat(inputs[2], 2, axis=0)[::2]]
    assert_same_bits(both(*strided, *weights, **options)[0][0], expected)
    axes = [x[:, None] for x in inputs]
    assert_same_bits(both(*axes, *weights, **options)[0][0], expected[:, None])
    length_first = np.ascontiguousarray(inputs[0].swapaxes(0, 1)).swapaxes(0, 1)
    assert_same_bits(both(length_first, *inputs[1:], *weights, **options)[0][0], expected)


@pytest.mark.peers
def test_equals_torchs_module(dtype, torch):
    rng = np.random.default_rng(4)
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True, dtype=getattr(torch, dtype)).eval()
    x, hidden = rng.standard_normal((1, 1700, 32)).astype(dtype), np.triu(np.ones((1700, 1700), bool), 1)
    hidden[:, 700:720] = True
    with torch.no_grad():
        theirs, weights = module(*[torch.from_numpy(x)] * 3, attn_mask=torch.from_numpy(hidden))
    ours = pyattn.interop.torch.from_torch(module)
    before = pyattn.get_num_threads()
    pyattn.set_num_threads(IN_PARTS)
    try:
        output, own = ours(x, x, x, attn_mask=hidden)
    finally:
        pyattn.set_num_threads(before)
    close = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(output, theirs.numpy(), rtol=0, atol=close)
    np.testing.assert_allclose(own, weights.numpy(), rtol=0, atol=close)


@pytest.mark.sampled(2)
@pytest.mark.threads
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("with_memory", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_layer_of_long_entries(batch, with_memory, norm_first, dtype):
    drawn, rng = Drawn(dtype, gated=True), np.random.default_rng(5)
    drawn.x, memory = (rng.standard_normal((batch, n, FEATURES)).astype(dtype) for n in (1600, S))
    memory = memory if with_memory else None
    options = {"norm_first": norm_first, "activation": "silu", "is_causal": True}
    options |= {"attn_mask": rng.random((HEADS, 1600, 1600)) < 0.1}
    parts = drawn.whole(memory, **options, num_threads=IN_PARTS)
    assert_same_bits(parts, drawn.whole(memory, **options, num_threads=16))
    assert_same_bits(parts, drawn.steps(memory, **options))


@pytest.mark.threads
@pytest.mark.parametrize("shape", [(2000,), (2000, 1), (3, 600), (600, 3), (1, 2000), (2, 2, 500)])
def test_feed_forward_of_many_rows(shape, dtype):
    rng = np.random.default_rng(6)
    x, residual = (rng.standard_normal((*shape, 24)).astype(dtype) for _ in range(2))
    w1, w2, w3 = (rng.standard_normal(shape).astype(dtype) for shape in ((50, 24), (24, 50), (50, 24)))
    weights, options = (w1, None, w2, None), {"activation": "gelu", "gate_weight": w3}
    whole = pyattn.functional.feed_forward(x, *weights, **options, residual=residual, num_threads=WHOLE)
    for rows in (x, np.asfortranarray(x)):
        in_place = residual.copy()
        pyattn.functional.feed_forward(rows, *weights, **options, residual=in_place, out=in_place, num_threads=IN_PARTS)
        assert_same_bits(in_place, whole)
    few = pyattn.functional.feed_forward(x[-1:], *weights, **options, residual=residual[-1:])
    assert_same_bits(few, whole[-1:])

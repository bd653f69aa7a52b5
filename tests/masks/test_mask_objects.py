"""Mask objects mean the same to every function and module: held against the array that each stands for."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, normal

import pyattn
from pyattn import _core, functional, masks, nn
from pyattn.masks._lowering import lower

N, H, L, S, E = 2, 2, 6, 9, 8
Q, K = normal(N, L, E), normal(N, S, E, seed=1)
Q4, K4 = normal(N, H, L, 4), normal(N, H, S, 4, seed=2)
LENGTHS = [9, 4]
RANDOM = np.random.default_rng(3).random((L, S)) < 0.6
SOURCE, TARGET = np.arange(2 * S).reshape(2, S) % 7 + 1, np.arange(2 * L).reshape(2, L) % 7 + 1
OPTIONS = {"batch_first": True, "rng": 0}

MASKS = {
    "causal": masks.causal(L, S, align="upper_left"),
    "causal, lower right": masks.causal(L, S, align="lower_right"),
    "causal, offset": masks.causal(L, S, align=-2),
    "window": masks.window(L, S, left=2, right=1, align="upper_left"),
    "window, one side": masks.window(L, S, left=1, right=None, align=1),
    "window beside": masks.window(L, S, left=0, right=0, align=3),
    "padding": masks.padding(LENGTHS, S),
    "document": masks.document([0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 0, 0, 1]),
    "documents of a batch": masks.document(np.arange(12).reshape(2, 6) % 3, np.arange(18).reshape(2, 9) % 3),
    "documents in order": masks.document([2, 0, 0, 7, 7, 7], [2, 2, 0, 0, 7, 9, 9, 9, 9]),
    "documents in order of a batch": masks.document([[1, 1, 2, 2, 2, 3], [3, 3, 3, 3, 3, 1]], [[1] * 5 + [2] * 4] * 2),
    "prefix": masks.prefix(3, L, S, align="upper_left"),
    "array": masks.from_array(RANDOM),
    "blocked": masks.from_blocked(RANDOM),
    "of heads": masks.from_array(np.random.default_rng(4).random((N, H, L, S)) < 0.6),
    "and": masks.causal(L, S, align="upper_left") & masks.padding(LENGTHS, S),
    "intervals": masks.causal(L, S, align=2) & masks.window(L, S, left=3, right=None, align=0),
    "two windows": masks.window(L, S, left=2, right=2, align=0) & masks.window(L, S, left=1, right=4, align=2),
    "and array": RANDOM & masks.causal(L, S, align="lower_right"),
    "or": masks.window(L, S, left=0, right=0, align=0) | RANDOM | masks.padding([1, 2], S),
    "all": masks.causal(L, S, align=1) & masks.padding(LENGTHS, S) & RANDOM & masks.padding([5, 9], S),
    "complement": masks.causal(L, S, align="upper_left").complement(),
    "nothing": masks.window(L, S, left=0, right=0, align=2) & masks.window(L, S, left=0, right=0, align=5),
}


def mha(**options):
    return nn.MultiheadAttention(E, H, **OPTIONS, **options).eval()


def decode(mask):
    """The last L of S tokens, after a first part that has none."""
    module, cache = mha(), pyattn.KVCache(1, H, 4, batch_size=N)
    module.decode_step(K[:, : S - L], cache)
    return module.decode_step(K[:, S - L :], cache, attn_mask=mask, is_causal=False, need_weights=True)


def attend_memory(mask, **options):
    module, cache = mha(), pyattn.KVCache(1, H, 4, batch_size=N)
    module.encode_memory(K, cache)
    return module.attend_memory(Q, cache, attn_mask=mask, **options)


def cached(mask):
    cache = pyattn.KVCache(1, H, 4, batch_size=N)
    cache.append(0, K4, K4)
    return cache.attend(0, Q4, attn_mask=mask)


def bshd(mask):
    return pyattn.attention(*(x.swapaxes(1, 2) for x in (Q4, K4, K4)), attn_mask=mask, layout="bshd")


def function(mask):
    weights = normal(3 * E, E, seed=5), normal(E, E, seed=6)
    inputs = (x.swapaxes(0, 1) for x in (Q, K, K))
    return functional.multi_head_attention_forward(
        *inputs, E, H, weights[0], None, None, None, False, 0.0, weights[1], None, attn_mask=mask
    )


DECODER = nn.TransformerDecoderLayer(E, H, 16, **OPTIONS).eval()
STACK = nn.TransformerDecoder(DECODER, 2)
TRANSFORMER = nn.Transformer(E, H, 1, 1, 16, **OPTIONS).eval()
SEQ2SEQ = nn.Seq2SeqTransformer(9, 9, E, H, 1, 1, 16, **OPTIONS).eval()
ADDITIVE = normal(4, 5, seed=7), normal(4, 5, seed=8), normal(5, seed=9)

# True = attend in a bare array.
ATTEND = {
    "attention": lambda mask: pyattn.attention(Q4, K4, K4, attn_mask=mask, need_weights=True, need_lse=True),
    "attention, bshd": bshd,
    "attention, dropout": lambda mask: pyattn.attention(Q4, K4, K4, attn_mask=mask, dropout_p=0.3, rng=0),
    "scaled_dot_product_attention": lambda mask: pyattn.scaled_dot_product_attention(Q4, K4, K4, mask),
    "additive_attention": lambda mask: pyattn.additive_attention(Q4, K4, K4, *ADDITIVE, attn_mask=mask),
    "KVCache.attend": cached,
}
# True = blocked in a bare array.
BLOCKED = {
    "MultiheadAttention": lambda mask: mha()(Q, K, K, attn_mask=mask),
    "MultiheadAttention, add_bias_kv": lambda mask: mha(add_bias_kv=True)(Q, K, K, attn_mask=mask),
    "MultiheadAttention, key_lengths": lambda mask: mha()(Q, K, K, attn_mask=mask, key_lengths=[7, 8]),
    "MultiheadAttention, window": lambda mask: mha()(Q, K, K, attn_mask=mask, window=(3, 1)),
    "multi_head_attention_forward": function,
    "decode_step": decode,
    "attend_memory": attend_memory,
    "TransformerDecoderLayer": lambda mask: DECODER(Q, K, memory_mask=mask),
    "TransformerDecoder": lambda mask: STACK(Q, K, memory_mask=mask),
    "Transformer": lambda mask: TRANSFORMER(K, Q, memory_mask=mask),
    "Seq2SeqTransformer": lambda mask: SEQ2SEQ(SOURCE, TARGET, memory_mask=mask),
}


def four_axes(mask):
    """The array with True = attend, for scores of (N, H, L, S)."""
    return np.broadcast_to(mask, (N, H, L, S))


def assert_same(found, expected):
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, expected)), strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert_same_bits(one, other)


@for_each("mask", MASKS.values())
@pytest.mark.parametrize("call", ATTEND.values(), ids=ATTEND)
def test_functions_read_a_mask_as_its_array(call, mask):
    assert_same(call(mask), call(four_axes(mask)))


@for_each("mask", MASKS.values())
@pytest.mark.parametrize("call", BLOCKED.values(), ids=BLOCKED)
def test_modules_read_a_mask_as_its_array_blocked(call, mask):
    blocked = ~four_axes(mask)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these look inverted as arrays
        expected = call(blocked.reshape(N * H, L, S))
    assert_same(call(mask), expected)


LIMITED = {
    "causal", "causal, lower right", "causal, offset", "window", "window, one side", "window beside", "padding",
    "documents in order", "documents in order of a batch", "prefix", "and", "intervals", "two windows", "nothing",
}  # fmt: skip


def test_only_masks_of_scattered_keys_need_an_array():
    for name, mask in MASKS.items():
        attend, key_limits = lower(mask, (N, H, L, S), True)
        assert (attend is None) == (name in LIMITED), name
        limits = np.array([0, S]) if key_limits is None else key_limits
        inside = (limits[..., :1] <= np.arange(S)) & (np.arange(S) < limits[..., 1:])
        np.testing.assert_array_equal(four_axes(inside if attend is None else inside & attend), four_axes(mask), name)


@for_each("seed", range(200))
@pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # some hide all keys
def test_limits_of_united_masks_leave_no_key_between(seed):
    rng = np.random.default_rng(seed)
    one, other = (
        masks.window(L, S, left=int(rng.integers(3)), right=int(rng.integers(3)), align=int(rng.integers(-8, 9)))
        for _ in range(2)
    )
    united = one | masks.causal(L, S, align=-L) | other
    rows = [np.flatnonzero(row) for row in np.asarray(united)]
    gaps = any(len(keys) and keys[-1] - keys[0] + 1 > len(keys) for keys in rows)
    assert (lower(united, (L, S), False).attend is not None) == gaps
    assert_same_bits(pyattn.attention(Q, K, K, attn_mask=united), pyattn.attention(Q, K, K, attn_mask=[*united]))


@pytest.mark.parametrize("dtype", ["i1", ">i4", "u8", "i8", "?"])
def test_ids_of_documents_may_be_any_integers(dtype):
    low, high = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    ids = np.array([[high, high, low, low, low], [low, high, high, high, high]], dtype)
    for q_ids, kv_ids in ((ids, ids), (ids, ids[0]), (ids[1], ids), (ids[0], ids[1]), (ids, ids[:, ::-1])):
        mask = masks.document(q_ids, kv_ids)
        array = np.equal(q_ids[..., :, np.newaxis], kv_ids[..., np.newaxis, :])
        array = array[:, np.newaxis] if array.ndim == 3 else array
        np.testing.assert_array_equal(mask, array)
        attend, limits = lower(mask, (2, 3, 5, 5), True)
        assert attend is None
        inside = (limits[..., :1] <= np.arange(5)) & (np.arange(5) < limits[..., 1:])
        np.testing.assert_array_equal(inside, array)
    mixed = masks.document(np.array([-1, 2**63 - 1]), np.array([2**64 - 1, 2**63 - 1], np.uint64))
    assert mixed.tolist() == [[False, False], [False, True]]


def test_documents_of_many_entries():
    """One pass over all entries; an empty one, and queries without keys, among them."""
    ids = np.sort(np.random.default_rng(0).integers(0, 4, (500, 16)), axis=1)
    q_ids = np.where(ids == 2, 9, ids)
    attend, limits = lower(masks.document(q_ids, ids), (500, 2, 16, 16), True)
    inside = (limits[..., :1] <= np.arange(16)) & (np.arange(16) < limits[..., 1:])
    assert attend is None
    np.testing.assert_array_equal(inside[:, 0], q_ids[..., np.newaxis] == ids[:, np.newaxis])
    for shape in ((0, 4), (3, 0)):
        assert lower(masks.document(np.zeros(shape, int)), (shape[0], 2, shape[1], shape[1]), True).attend is None


@pytest.mark.parametrize("ids", [np.repeat([3, 1, 2, 0], 500), np.tile([0, 1], 1000)], ids=["limits", "array"])
def test_long_inputs_are_cut_with_their_masks(ids):
    """Queries, and entries of a batch, go through the core in parts."""
    x, several = normal(1, 2000, E), normal(8, 250, E, seed=1)
    mask = masks.document(ids) & masks.causal(2000)
    each = masks.document(ids.reshape(8, 250)) & masks.padding(np.arange(243, 251), 250)
    module, layer = mha(), nn.TransformerEncoderLayer(E, H, 16, **OPTIONS).eval()
    assert_same(module(x, x, x, attn_mask=mask), module(x, x, x, attn_mask=mask.blocked()))
    assert_same(layer(several, each), layer(several, np.repeat(each.blocked()[:, 0], H, axis=0)))


def drawn_mask(rng, batch, heads, has_heads):
    """Up to three of the masks that fit scores of (*batch, heads, L, S), combined."""
    size = int(np.prod(batch))
    ids = rng.integers(3, size=(2, *batch, S))
    makers = [
        lambda: masks.causal(L, S, align=int(rng.integers(-2, 5))),
        lambda: masks.window(L, S, left=int(rng.integers(4)), right=None, align="lower_right"),
        lambda: masks.padding(rng.integers(1, S + 1, size).reshape(batch), S, heads=has_heads),
        lambda: masks.document(ids[0, ..., :L], ids[1], heads=has_heads),
        lambda: masks.document(ids[0, ..., :L], np.sort(ids[1]), heads=has_heads),
        lambda: masks.prefix(int(rng.integers(S)), L, S, align=int(rng.integers(-2, 3))),
        lambda: masks.from_array(rng.random((heads, L, S) if has_heads else (L, S)) < 0.8),
    ]
    chosen = [makers[n]() for n in rng.choice(len(makers), rng.integers(1, 4), replace=False)]
    mask = chosen[0]
    for other in chosen[1:]:
        mask = mask | other if rng.random() < 0.2 else mask & other
    return mask


@pytest.mark.filterwarnings("ignore::pyattn.MaskWarning")  # some look inverted as arrays
@for_each("seed", range(300))
def test_a_mask_beside_any_arguments_is_read_as_its_array(seed):
    """Sizes of any rank, also mixed; grouped heads; either layout; and what the call hides itself."""
    rng = np.random.default_rng(seed)
    has_heads, grouped = (bool(flag) for flag in rng.integers(2, size=2))
    batch = ((), (2,), (2, 3))[rng.integers(3 if has_heads else 2)]
    grouped = has_heads and (grouped or not batch)  # three axes have heads if they are grouped
    heads = (4, 2, 2) if grouped else (3, 3, 3)
    shapes = [(*batch, *((heads[n],) if has_heads else ()), (L, S, S)[n], 4) for n in range(3)]
    arrays = [rng.standard_normal(shape).astype("f4") for shape in shapes]
    if batch and rng.random() < 0.3:  # one of the inputs has no batch
        n = rng.integers(3)
        arrays[n] = arrays[n][(0,) * len(batch)]
    options = {"enable_gqa": grouped}
    if has_heads and rng.random() < 0.3:
        arrays, options["layout"] = [x.swapaxes(-2, -3) for x in arrays], "bshd"
    if rng.random() < 0.5:
        options["align"] = ("upper_left", "lower_right", 2)[rng.integers(3)]
        options["is_causal"] = bool(rng.integers(2))
    if rng.random() < 0.3:
        options.setdefault("align", "lower_right")
        options["window"] = (3, None)
    if rng.random() < 0.3:
        options["key_lengths"] = rng.integers(1, S + 1, batch)
    mask = drawn_mask(rng, batch, heads[0], has_heads)
    found, expected = (
        pyattn.attention(*arrays, attn_mask=one, need_weights=True, **options) for one in (mask, np.asarray(mask))
    )
    assert_same(found, expected)


SQUARE = {
    "causal": masks.causal(L),
    "window": masks.window(L, left=1, right=2),
    "document": masks.document([0, 0, 1, 1, 1, 2]),
    "prefix": masks.prefix(2, L),
    "array": masks.from_array(np.random.default_rng(5).random((L, L)) < 0.6),
    "and": masks.causal(L) & masks.padding([6, 3], L),
}
ENCODER = nn.TransformerEncoderLayer(E, H, 16, **OPTIONS).eval()
LANGUAGE_MODEL = nn.TransformerLM(9, E, H, 1, 16, rng=0).eval()
SQUARES = {
    "TransformerEncoderLayer": lambda mask: ENCODER(Q, mask),
    "TransformerEncoderLayer, training": lambda mask: nn.TransformerEncoderLayer(E, H, 16, 0.5, **OPTIONS)(
        Q, mask, rng=1
    ),
    "TransformerEncoder": lambda mask: nn.TransformerEncoder(ENCODER, 2)(Q, mask),
    "TransformerDecoderLayer": lambda mask: DECODER(Q, K, mask),
    "TransformerLM": lambda mask: LANGUAGE_MODEL(TARGET, mask, is_causal=False),
    "Seq2SeqTransformer": lambda mask: SEQ2SEQ(SOURCE, TARGET, tgt_mask=mask, tgt_is_causal=False),
    "TransformerEncoderLayer, weights": lambda mask: ENCODER(Q, mask, need_weights=True),
}


@pytest.mark.parametrize("mask", SQUARE.values(), ids=SQUARE)
@pytest.mark.parametrize("call", SQUARES.values(), ids=SQUARES)
def test_layers_and_models_read_a_mask_of_their_own_tokens(call, mask):
    blocked = ~np.broadcast_to(mask, (N, H, L, L))
    assert_same(call(mask), call(blocked.reshape(N * H, L, L)))


PADDED = {
    "MultiheadAttention": lambda mask: mha()(Q, K, K, key_padding_mask=mask),
    "MultiheadAttention, add_zero_attn": lambda mask: mha(add_zero_attn=True)(Q, K, K, key_padding_mask=mask),
    "attend_memory": lambda mask: attend_memory(None, key_padding_mask=mask),
    "TransformerEncoderLayer": lambda mask: ENCODER(K, src_key_padding_mask=mask),
    "TransformerEncoder": lambda mask: nn.TransformerEncoder(ENCODER, 2)(K, src_key_padding_mask=mask),
    "TransformerDecoderLayer": lambda mask: DECODER(Q, K, memory_key_padding_mask=mask),
    "Transformer": lambda mask: TRANSFORMER(K, Q, None, None, None, mask, None, mask),
    "TransformerLM": lambda mask: LANGUAGE_MODEL(SOURCE, key_padding_mask=mask),
    "Seq2SeqTransformer": lambda mask: SEQ2SEQ(SOURCE, TARGET, src_key_padding_mask=mask),
}


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("call", PADDED.values(), ids=PADDED)
def test_modules_take_padding_of_keys(call, heads):
    array = np.arange(S) >= np.array(LENGTHS)[:, None]
    assert_same(call(masks.padding(LENGTHS, S, heads=heads)), call(array))
    assert_same(call(masks.from_blocked(array)), call(array))
    two = masks.padding(LENGTHS, S, heads=heads) & masks.padding(S - 1, S, heads=heads)
    assert_same(call(two), call(two.blocked().reshape(N, S)))
    left = masks.padding(LENGTHS, S, heads=heads).complement()
    assert_same(call(left), call(masks.from_blocked(~array)))


def test_one_head_reads_a_mask_without_a_heads_axis():
    weights = [normal(E, 4, seed=n) for n in range(3)]
    for mask in (masks.causal(L, S, align=2), masks.padding(LENGTHS, S, heads=False), masks.from_array(RANDOM)):
        array = np.broadcast_to(mask, (N, L, S))
        for call in (
            lambda mask: pyattn.self_attention(Q, *weights, context=K, attn_mask=mask, need_weights=True),
            lambda mask: nn.SelfAttention.from_arrays(*weights)(Q, K, attn_mask=mask, need_weights=True),
            lambda mask: pyattn.attention(Q, K, K, attn_mask=mask),
            lambda mask: pyattn.scaled_dot_product_attention(Q, K, K, mask),
        ):
            assert_same(call(mask), call(array))


def test_traces_read_a_mask_as_its_array():
    weights = [normal(E, 4, seed=n) for n in range(3)]
    causal = masks.causal(L)
    np.testing.assert_array_equal(
        pyattn.trace(Q[0], *weights, attn_mask=causal).weights,
        pyattn.trace(Q[0], *weights, is_causal=True).weights,
    )
    cross = masks.causal(L, S, align=3)
    np.testing.assert_array_equal(
        pyattn.trace_attention(Q[0], K[0], K[0], attn_mask=cross).weights,
        pyattn.trace_attention(Q[0], K[0], K[0], attn_mask=np.asarray(cross)).weights,
    )
    for mask, array in ((causal, causal.blocked()), (masks.causal(L) & masks.padding(4, L), None)):
        array = mask.blocked().reshape(L, L) if array is None else array
        found, expected = (mha().trace(Q[0], attn_mask=one).outputs for one in (mask, array))
        np.testing.assert_array_equal(found, expected)


# The two examples that read a mask the wrong way round


def test_the_mask_of_pyattn_is_causal_in_nn():
    x = normal(4, 1, E)
    module = nn.MultiheadAttention(E, H, rng=0)
    assert_same(module(x, x, x, attn_mask=masks.causal(4)), module(x, x, x, is_causal=True))
    with pytest.warns(pyattn.MaskWarning, match=r"attn_mask blocks each query's own key and all before it"):
        module(x, x, x, attn_mask=np.asarray(masks.causal(4)))

    ids = [[1, 2, 3, 4]]
    assert_same(LANGUAGE_MODEL(ids, mask=masks.causal(4)), LANGUAGE_MODEL(ids))
    with pytest.warns(pyattn.MaskWarning, match=r"mask blocks each"):
        LANGUAGE_MODEL(ids, mask=np.asarray(masks.causal(4)))


# Bare arrays that warn, and that do not; True = blocked

TRIANGLE = np.tri(4, 6, dtype=bool)
BARE = {
    "inverted causal": (np.tri(4, dtype=bool), True),
    "inverted causal, 4 x 6": (TRIANGLE, True),
    "inverted causal, 6 x 4": (np.tri(6, 4, dtype=bool), True),
    "inverted and more blocked": (TRIANGLE | (np.arange(6) == 5), True),
    "causal": (~TRIANGLE, False),
    "triu(0)": (np.triu(np.ones((4, 4), bool)), False),
    "triu(1)": (np.triu(np.ones((4, 4), bool), 1), False),
    "band": (~np.asarray(masks.window(4, left=1, right=1)), False),
    "later keys and one before": (TRIANGLE & ~np.eye(4, 6, -3, dtype=bool), False),
    "documents": (masks.document([0, 0, 1, 1]).blocked(), False),
    "all blocked": (np.ones((4, 4), bool), False),
    "nothing blocked": (np.zeros((4, 4), bool), False),
    "one by one": (np.ones((1, 1), bool), False),
    "float": (np.where(TRIANGLE, -np.inf, 0).astype("f4"), False),
}
BARE_PADDING = {
    "right padding inverted": ([[1, 1, 1, 0], [1, 0, 0, 0]], True),
    "inverted, one full row": ([[1, 1, 1, 1], [1, 1, 0, 0]], True),
    "inverted, one empty row": ([[0, 0, 0, 0], [1, 1, 0, 0]], True),
    "right padding": ([[0, 0, 0, 1], [0, 1, 1, 1]], False),
    "one dead entry": ([[1, 1, 1, 1], [0, 0, 0, 0]], False),
    "dead entries alone": ([[1, 1, 1, 1], [1, 1, 1, 1]], False),
    "nothing blocked": ([[0, 0, 0, 0], [0, 0, 0, 0]], False),
    "hole": ([[1, 0, 1, 0], [1, 1, 0, 0]], False),
}


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [warning for warning in caught if warning.category is pyattn.MaskWarning]


@pytest.mark.parametrize(("mask", "expected"), BARE.values(), ids=BARE)
def test_bare_masks_that_look_inverted_warn(mask, expected):
    q, k = normal(len(mask), E), normal(mask.shape[1], E)
    found = warnings_of(lambda: mha()(q, k, k, attn_mask=mask))
    assert bool(found) == expected
    if found:
        assert found[0].filename == __file__
        assert str(found[0].message).endswith("pyattn.masks.from_array(attn_mask)")
        for silent in (masks.from_array(mask), masks.from_blocked(mask)):
            assert not warnings_of(lambda: mha()(q, k, k, attn_mask=silent))  # noqa: B023


@pytest.mark.parametrize(("mask", "expected"), BARE.values(), ids=BARE)
def test_bare_masks_that_look_inverted_warn_where_true_attends(mask, expected):
    q, k, attend = normal(len(mask), E), normal(mask.shape[1], E), ~mask if mask.dtype == bool else mask
    # Of those exactly this one warns: random masks of few rows often let queries attend to later keys alone.
    expected = expected and np.array_equal(attend, np.triu(np.ones(mask.shape), 1))
    expected = expected or (attend.size > 1 and not attend.any())
    w, cache = np.eye(E, dtype="f4"), pyattn.KVCache(1, 1, E)
    cache.append(0, k[None, None], k[None, None])
    for call in (
        lambda mask: cache.attend(0, q[None, None], attn_mask=mask),
        lambda mask: cache.attend(0, q[None, None], attn_mask=mask if isinstance(mask, masks.Mask) else mask.tolist()),
        lambda mask: pyattn.attention(q, k, k, attn_mask=mask),
        lambda mask: pyattn.scaled_dot_product_attention(q, k, k, mask),
        lambda mask: pyattn.self_attention(q, w, w, w, context=k, attn_mask=mask),
    ):
        found = warnings_of(lambda: call(attend))  # noqa: B023
        assert [one.filename for one in found] == [__file__] * expected
        if found:
            assert str(found[0].message).endswith("pyattn.masks.from_blocked(attn_mask)")
            for silent in (masks.from_array(attend), masks.from_blocked(attend)):
                assert not warnings_of(lambda: call(silent))  # noqa: B023
    if expected:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for axes in (attend, attend[np.newaxis, np.newaxis]):
                with pytest.raises(pyattn.MaskWarning):
                    pyattn.attention(*(x[np.newaxis, np.newaxis] for x in (q, k, k)), attn_mask=axes)


@pytest.mark.parametrize(("mask", "expected"), BARE_PADDING.values(), ids=BARE_PADDING)
def test_bare_padding_that_looks_inverted_warns(mask, expected):
    x, array = normal(2, 4, E), np.array(mask, bool)
    found = warnings_of(lambda: mha()(x, x, x, key_padding_mask=array))
    assert bool(found) == expected
    if found:
        assert str(found[0].message).endswith("pyattn.masks.from_array(key_padding_mask)")
        assert not warnings_of(lambda: mha()(x, x, x, key_padding_mask=masks.from_blocked(array)))


@for_each(
    ("lengths", "error", "message"),
    [
        ([1, 2, 3], ValueError, "key_lengths has shape (3,), which does not broadcast to the batch axes (2,)"),
        ([1.0, 2.0], TypeError, "key_lengths has dtype float64, expected integers"),
        (np.array([2**64 - 1, 2], np.uint64), ValueError, "key_lengths holds 1"),
    ],
)
def test_lengths_that_do_not_fit_beside_a_mask_of_padding_are_named(lengths, error, message):
    x, mask = normal(2, 4, E), masks.padding([2, 3], 4)
    for call in (lambda: mha()(x, x, x, attn_mask=mask, key_lengths=lengths), lambda: heads_of(x, mask, lengths)):
        with pytest.raises(error, match=f"^{re.escape(message)}"):
            call()


def heads_of(x, mask, lengths):
    x = x[:, np.newaxis]
    return pyattn.attention(x, x, x, attn_mask=mask, key_lengths=lengths)


def test_a_call_site_warns_once():
    x = normal(4, E)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            mha()(x, x, x, attn_mask=np.tri(4, dtype=bool))
    assert len(caught) == 1


# As arrays


def test_a_mask_is_an_array_in_what_people_do_with_it():
    mask, array = masks.causal(4), np.tri(4, dtype=bool)
    np.testing.assert_array_equal(mask.astype(int), array.astype(int))
    np.testing.assert_array_equal(np.where(mask, 1.0, 0.0), array)
    np.testing.assert_array_equal(mask[1:, 0], array[1:, 0])
    for dtype in ("f8", "f4", "f2", "bfloat16"):
        bias = mask.to_bias(dtype)
        assert bias.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(bias.astype(np.float32), np.where(array, 0, -np.inf))
    assert (mask.shape, mask.ndim, mask.size, mask.dtype, len(mask)) == ((4, 4), 2, 16, np.bool_, 4)
    assert (mask.any(), mask.all(), mask.sum(), mask.tolist()) == (True, False, 10, array.tolist())
    assert ((mask == array).all(), (mask != array).any()) == (True, False)
    for combined in (mask & array, array & mask, mask | array, array | mask):
        assert isinstance(combined, masks.Mask)
        np.testing.assert_array_equal(combined, array)
    np.testing.assert_array_equal(mask.T, array.T)
    np.testing.assert_array_equal(masks.padding([1, 3], 4) & masks.padding([2, 2], 4), masks.padding([1, 2], 4))
    with pytest.raises(ValueError, match="a mask computes its array on demand; leave out copy=False"):
        mask.__array__(copy=False)
    np.testing.assert_array_equal(list(mask), array)


@pytest.mark.peers
def test_a_mask_becomes_a_tensor(torch):
    mask = masks.causal(4)
    for tensor in (torch.as_tensor(mask), torch.from_dlpack(mask)):
        assert tensor.dtype == torch.bool
        np.testing.assert_array_equal(tensor.numpy(), mask)
    x = torch.from_numpy(Q4[:, :, :4])
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=torch.as_tensor(mask))
    np.testing.assert_allclose(pyattn.scaled_dot_product_attention(*[x.numpy()] * 3, mask), expected, atol=1e-6)


def test_a_mask_computes_as_its_array_does():
    mask, array = masks.causal(3), np.tri(3, dtype=bool)
    numbers = np.arange(9.0).reshape(3, 3)
    np.testing.assert_array_equal(np.sum(mask, axis=0), [3, 2, 1])
    np.testing.assert_array_equal(np.all(mask, axis=1), [False, False, True])
    np.testing.assert_array_equal(np.any(mask, axis=0, keepdims=True), [[True] * 3])
    for one, other in ((mask, array), (mask.complement(), ~array)):
        np.testing.assert_array_equal(numbers * one, numbers * other)
        np.testing.assert_array_equal(one * numbers, numbers * other)
        np.testing.assert_array_equal(np.logical_not(one), ~other)
    assert isinstance(array & mask, masks.Mask)
    assert isinstance(array[::-1] | mask, masks.Mask)
    flags = np.ones((3, 3), bool)
    kept = flags
    flags &= mask
    assert flags is kept
    np.testing.assert_array_equal(flags, array)
    with pytest.raises(TypeError, match="~mask is not defined"):
        np.invert(mask)


@for_each("mask", MASKS.values())
def test_no_mask_is_hashable(mask):
    with pytest.raises(TypeError, match="unhashable"):
        hash(mask)


def test_a_mask_object_is_not_inverted_as_an_array():
    with pytest.raises(TypeError, match=r"^array is a mask object.*complement"):
        masks.from_blocked(masks.causal(3))
    np.testing.assert_array_equal(masks.from_array(masks.causal(3)), np.tri(3))


def test_a_mask_of_entries_fits_values_of_more_entries():
    mask, value = masks.padding(LENGTHS, S), normal(N, H, S, 4)
    expected = pyattn.attention(Q4[:1], K4[:1], value, attn_mask=np.asarray(mask))
    assert_same_bits(pyattn.attention(Q4[:1], K4[:1], value, attn_mask=mask), expected)


def test_many_masks_are_one():
    """Any number of one operator, and each only once."""
    mask = masks.causal(3)
    for _ in range(40):
        mask = mask | mask
    np.testing.assert_array_equal(mask, np.tri(3))
    for n in range(3000):
        mask = mask | masks.document([n, n, n + 1])
    np.testing.assert_array_equal(mask, [[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    assert repr(mask).startswith("causal(3) | document([0, 0, 1]) | document([1, 1, 2]) | ")


def test_a_mask_is_drawn():
    assert repr(masks.prefix(2, 3)) == "prefix(2, 3)\n  x x .\n  x x .\n  x x x"
    assert repr(masks.causal(2, 3, align=1) & RANDOM[:2, :3]).startswith("causal(2, 3, align=1) & from_array(...)\n  ")
    assert repr(masks.causal(50)) == "causal(50)"
    assert repr(masks.padding([1, 2], 3, heads=False)) == "padding([1, 2], 3, heads=False), shape (2, 1, 3)"
    assert masks.causal(3).plot().axes


# Sizes


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: pyattn.attention(Q4, K4, K4, attn_mask=masks.causal(L)),
            "is causal(6) for 6 queries and 6 keys; the call has 6 and 9",
        ),
        (
            lambda: pyattn.attention(Q4, K4, K4, attn_mask=masks.padding(LENGTHS, 10)),
            "is padding([9, 4], 10) for 10 keys; the call has 9",
        ),
        (
            lambda: pyattn.attention(Q4, K4, K4, attn_mask=masks.causal(L, S, align=3) | masks.causal(1)),
            "is causal(1) for 1 queries and 1 keys; the call has 6 and 9",
        ),
        (
            lambda: pyattn.attention(Q4, K4, K4, attn_mask=masks.padding([0, 1], 1).complement()),
            "is padding([0, 1], 1) for 1 keys; the call has 9",
        ),
        (
            lambda: pyattn.attention(Q4, K4, K4, attn_mask=masks.document([0])),
            "is document([0]) for 1 queries and 1 keys; the call has 6 and 9",
        ),
        (
            lambda: pyattn.attention(K, K, K, enable_gqa=True, attn_mask=masks.padding(LENGTHS, S, heads=False)),
            "and the call has a heads axis; make it with heads=True",
        ),
        (
            lambda: pyattn.attention(Q4, K4[0, 0], K4[0, 0], attn_mask=masks.causal(1)),
            "is causal(1) for 1 queries and 1 keys; the call has 6 and 9",
        ),
        (
            lambda: pyattn.attention(K4, K4, K4, attn_mask=masks.document([[0] * S, [1] * S], heads=False)),
            "and the call has a heads axis; make it with heads=True",
        ),
        (
            lambda: pyattn.attention(
                K4, K4, K4, attn_mask=masks.padding(LENGTHS, S, heads=False).complement() | masks.causal(S)
            ),
            "and the call has a heads axis; make it with heads=True",
        ),
        (
            lambda: pyattn.attention(Q, K, K, attn_mask=masks.padding(LENGTHS, S)),
            "and the call has no heads axis; make it with heads=False",
        ),
        (
            lambda: pyattn.attention(Q4, K4, K4, attn_mask=masks.padding(LENGTHS, S, heads=False)),
            "and the call has a heads axis; make it with heads=True",
        ),
        (
            lambda: mha()(Q, K, K, attn_mask=masks.causal(S)),
            "is causal(9) for 9 queries and 9 keys; the call has 6 and 9",
        ),
        (
            lambda: mha()(Q, K, K, attn_mask=masks.from_array(np.ones((N * H, L, S), bool))),
            "has shape (4, 6, 9), which does not broadcast to (2, 2, 6, 9)",
        ),
        (
            lambda: mha()(Q, K, K, key_padding_mask=masks.padding([4], S)),
            "key_padding_mask has shape (1, 9), expected (2, 9)",
        ),
        (lambda: mha()(Q, K, K, key_padding_mask=masks.document([[0] * S] * 2)), "is a mask of pairs of query"),
        (lambda: mha()(*[normal(S, S, E)] * 3, key_padding_mask=masks.causal(S)), "is a mask of pairs of query"),
        (lambda: pyattn.attention(K, K, K, attn_mask=masks.causal(S), align="corner"), "align is 'corner'"),
        (lambda: cached(masks.causal(L)), "is causal(6) for 6 queries and 6 keys; the call has 6 and 9"),
    ],
)
def test_a_mask_is_never_cropped(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_chunk_takes_limits_from_one_place():
    mask, limits = masks.causal(L, S, align="upper_left"), np.array([[0, S]] * L)
    with pytest.raises(TypeError, match="pass it without key_limits"):
        _core.attention_part(Q, K, K, attn_mask=mask, key_limits=limits)

"""A cache of float16 or bfloat16 is one of float32 whose keys and values were rounded."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest
from support.halves import HALVES
from support.helpers import assert_same_bits, bits, for_each, normal

import pyattn
from pyattn import nn

BATCH, HEADS, KV_HEADS, DIM, V_DIM = 2, 4, 2, 24, 70

pytestmark = pytest.mark.parametrize("kind", HALVES)


def caches_of(kind, *dtypes, **options):
    return [pyattn.KVCache(1, KV_HEADS, DIM, v_head_dim=V_DIM, batch_size=BATCH, dtype=d, **options) for d in dtypes]


def rows(new, seed=0, layout="bhsd"):
    key, value = (normal(BATCH, KV_HEADS, new, dim, seed=seed + n) * 3 for n, dim in enumerate((DIM, V_DIM)))
    return (key, value) if layout == "bhsd" else (key.swapaxes(1, 2).copy(), value.swapaxes(1, 2).copy())


@for_each("layout", ["bhsd", "bshd"])
def test_rows_are_rounded_to_nearest(kind, layout, level):
    """Float32 rows, contiguous or not, and rows of the cache's own dtype are stored alike."""
    half, other, wide = caches_of(kind, kind, HALVES[kind], "float32")
    for n, new in enumerate((100, 1, 30)):
        key, value = rows(new, 2 * n, layout)
        key[..., 0], key[..., 1], key[..., 2] = 1e-40, np.inf, -np.nan
        with np.errstate(over="ignore"):
            rounded = [x.astype(HALVES[kind]) for x in (key, value)]
        half.append(0, np.repeat(key, 2, -1)[..., ::2], value, layout=layout)
        other.append(0, np.asfortranarray(rounded[0]), rounded[1][..., ::-1].copy()[..., ::-1], layout=layout)
        wide.append(0, *(x.astype(np.float32) for x in rounded), layout=layout)
    for one, two, three in zip(half.to_arrays(0), other.to_arrays(0), wide.to_arrays(0), strict=True):
        assert one.dtype == HALVES[kind]
        assert_same_bits(bits(one), bits(two))
        np.testing.assert_array_equal(one.astype(np.float32), three)
    assert half.nbytes < 0.51 * wide.nbytes
    (last,) = caches_of(kind, "float32")  # nothing is lost in a cache of float32
    last.append(0, *rounded, layout=layout)
    for one, two in zip(last.to_arrays(0), wide.to_arrays(0), strict=True):
        assert one.dtype == np.float32
        assert_same_bits(one, two[..., -30:, :])


@for_each("q_len", [1, 3, 40])
@for_each("options", [{}, {"is_causal": True}, {"need_weights": True, "need_lse": True}, {"window": 20}])
def test_attention_is_that_over_rounded_rows(kind, options, q_len, level):
    half, wide = caches_of(kind, kind, "float32")
    key, value = rows(600)
    half.append(0, key, value)
    wide.append(0, *(x.astype(HALVES[kind]).astype(np.float32) for x in (key, value)))
    query = normal(BATCH, HEADS, q_len, DIM, seed=9)
    found, expected = half.attend(0, query, **options), wide.attend(0, query, **options)
    if not options.get("need_weights"):
        found, expected = (found,), (expected,)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == np.float32
        assert_same_bits(one, other)
    rounded = query.astype(HALVES[kind])
    output = half.attend(0, rounded)
    assert output.dtype == HALVES[kind]
    assert_same_bits(bits(output), bits(wide.attend(0, rounded.astype(np.float32)).astype(HALVES[kind])))
    assert_same_bits(wide.attend(0, rounded), wide.attend(0, rounded.astype(np.float32)))


def test_both_halves_do_not_meet(kind):
    other = HALVES["float16" if kind == "bfloat16" else "bfloat16"]
    (cache,) = caches_of(kind, "float32")
    key, value = rows(3)
    with pytest.raises(TypeError, match=f"^key has dtype {kind} and value {other}; convert one of them, or both to"):
        cache.append(0, key.astype(kind), value.astype(other))
    assert cache.length == 0


def test_modules_decode_with_it(kind, level):
    """Keys and values are rounded as they are stored; activations stay float32."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, rng=0).eval()
    attention, x = layer.self_attn, normal(BATCH, 9, 32)
    half = pyattn.KVCache(1, 4, 8, batch_size=BATCH, dtype=kind)
    wide = pyattn.KVCache(1, 4, 8, batch_size=BATCH)
    for part in (x[:, :6], x[:, 6:7], x[:, 7:]):
        output, _ = attention.decode_step(part, half, 0)
        attention.decode_step(part, wide, 0)
        own = pyattn.KVCache(1, 4, 8, batch_size=BATCH)
        own.append(0, *half.to_arrays(0))
        later = ~np.tri(part.shape[1], own.length, own.length - part.shape[1], dtype=bool)
        assert_same_bits(output, attention.attend_memory(part, own, attn_mask=later)[0])
    for one, other in zip(half.to_arrays(0), wide.to_arrays(0), strict=True):
        assert_same_bits(bits(one), bits(other.astype(HALVES[kind])))
    half.truncate(0)
    assert layer.decode_step(x, half, 0)[0].dtype == np.float32
    with pytest.raises(TypeError, match=f"cache has dtype {kind}, expected float64, in which the module computes"):
        nn.MultiheadAttention(32, 4, batch_first=True, dtype=np.float64, rng=0).eval().decode_step(
            x.astype(np.float64), half, 0
        )


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_files_and_copies_keep_the_bits(kind, ending, tmp_path):
    (cache,) = caches_of(kind, kind, max_length=500)
    cache.append(0, *rows(130), lengths=[130, 7])
    cache.save(tmp_path / f"cache.{ending}")
    stored = pyattn.io.load(tmp_path / f"cache.{ending}")["0.key"].dtype
    assert stored == (np.uint16 if (kind, ending) == ("bfloat16", "npz") else HALVES[kind])
    for other in (pyattn.KVCache.load(tmp_path / f"cache.{ending}"), pickle.loads(pickle.dumps(cache)), cache.fork()):
        assert (other.dtype, other.lengths.tolist()) == (HALVES[kind], [130, 7])
        for one, two in zip(cache.to_arrays(0), other.to_arrays(0), strict=True):
            assert_same_bits(bits(one), bits(two))
        other.append(0, *rows(1))
        assert cache.lengths.tolist() == [130, 7]


def test_files_have_a_path(kind):
    (cache,) = caches_of(kind, kind)
    for path, error in ((b"c.npz", TypeError), (None, TypeError), ("c.txt", ValueError)):
        with pytest.raises(error, match=r"^path "):
            cache.save(path)


def test_other_dtypes_are_refused(kind):
    (cache,) = caches_of(kind, kind)
    key, value = rows(3)
    name = {"float16": "numpy.float16", "bfloat16": "ml_dtypes.bfloat16"}[kind]
    with pytest.raises(TypeError) as caught:
        cache.append(0, key.astype(np.float64), value)
    fix = f"pass key.astype({name}), or make the cache with dtype=numpy.float64"
    assert f"expected {kind} as the cache's or float32; {fix}" in str(caught.value)
    cache.append(0, key, value)
    other = {"float16": ml_dtypes.bfloat16, "bfloat16": np.float16}[kind]
    with pytest.raises(TypeError, match=f"query has dtype .*, expected {kind}"):
        cache.attend(0, normal(BATCH, HEADS, 1, DIM).astype(other))
    with pytest.raises(TypeError, match=r"dtype is .*, expected float16, bfloat16, float32 or float64"):
        pyattn.KVCache(1, 1, 1, dtype=np.int32)

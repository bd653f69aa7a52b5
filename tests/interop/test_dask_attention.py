"""Attention over dask arrays has the bits of one call, whatever the chunks; pairs that a mask hides get no task."""

from __future__ import annotations

import pickle

import dask
import dask.array as da
import ml_dtypes
import numpy as np
import pytest
from support.helpers import assert_same_bits, normal, run_python

import pyattn
from pyattn import masks
from pyattn.interop.dask import attention

ALONE = {"scheduler": "synchronous"}


def cut(rng, size, *, multiple=1, most=4):
    """Draw chunks of an axis: up to `most`, ragged, which start at multiples."""
    steps = -(-size // multiple)
    inner = rng.choice(np.arange(1, steps), min(int(rng.integers(most)), steps - 1), replace=False) if steps > 1 else []
    edges = [0, *(int(edge) * multiple for edge in sorted(inner)), size]
    return tuple(np.diff(edges).tolist())


def draw_mask(rng, batch, q_len, kv_len):
    """Draw a mask of one kind: an object, an array, or a lazy array."""
    ids = [np.sort(rng.integers(5, size=n)) for n in (q_len, kv_len)]
    kind = rng.integers(12)
    attend = rng.random((q_len, kv_len)) < 0.5
    bias = normal(batch, 1, q_len, kv_len, seed=rng)
    align = int(rng.integers(-q_len, kv_len))
    return [
        None,
        masks.causal(q_len, kv_len, align=align),
        masks.window(q_len, kv_len, left=256, right=0, align=align),
        masks.padding(rng.integers(0, kv_len + 1, batch), kv_len),
        masks.document(*ids),
        masks.document(rng.permutation(ids[0]), ids[1]) & masks.causal(q_len, kv_len, align=align),
        masks.document(rng.integers(3, size=(batch, q_len)), rng.integers(3, size=(batch, kv_len))),
        masks.prefix(int(rng.integers(kv_len)), q_len, kv_len, align=align),
        (masks.causal(q_len, kv_len, align=0) | masks.from_array(attend)).complement(),
        attend,
        bias,
        da.from_array(attend if rng.random() < 0.5 else bias, chunks=257),
    ][kind]


def draw(seed):
    """Draw a call: arrays, their chunks, and options."""
    rng = np.random.default_rng(seed)
    batch, heads, group = rng.integers(1, 4), rng.integers(1, 4), rng.integers(1, 3)
    q_len, kv_len = int(rng.integers(1, 700)), int(rng.integers(1, 2100))
    dtype = rng.choice(np.array(["f4", "f8", "f2", ml_dtypes.bfloat16], object))
    sizes = [(batch, heads * group, q_len, 24), (batch, heads, kv_len, 24), (batch, heads, kv_len, 17)]
    arrays = [normal(*size, seed=rng).astype(dtype) for size in sizes]
    options = {"attn_mask": draw_mask(rng, batch, q_len, kv_len), "need_lse": bool(rng.random() < 0.5)}
    if rng.random() < 0.4:
        options |= {"is_causal": True, "align": rng.choice(np.array(["upper_left", "lower_right", 50], object))}
    if rng.random() < 0.3:
        options |= {"window": (int(rng.integers(400)), None), "align": "lower_right"}
    if rng.random() < 0.3:
        options["key_lengths"] = rng.integers(0, kv_len + 1, batch)
    if rng.random() < 0.2:
        options["query_lengths"] = rng.integers(0, q_len + 1, batch)
    if rng.random() < 0.2:
        options |= {"dropout_p": 0.3, "rng": int(rng.integers(99))}
    options["score"] = rng.choice(["dot", "dot", "dot", "cosine", "distance"])
    keys = cut(rng, kv_len, multiple=512)
    heads_of_keys = cut(rng, heads)
    chunks = [
        (cut(rng, batch), tuple(n * group for n in heads_of_keys), cut(rng, q_len), 24),
        (cut(rng, batch), cut(rng, heads), keys, cut(rng, 24)),
        (cut(rng, batch), cut(rng, heads), cut(rng, kv_len), 17),
    ]
    return arrays, [da.from_array(x, chunks=one) for x, one in zip(arrays, chunks, strict=True)], options


@pytest.mark.parametrize("tens", range(30))
@pytest.mark.sampled(3)
def test_any_chunks_have_the_bits_of_one_call(tens):
    """300 drawn calls: all masks, alignments, lengths, grouped heads, dtypes, ragged chunks."""
    for seed in range(10 * tens, 10 * tens + 10):
        arrays, lazy, options = draw(seed)
        mask = options["attn_mask"]
        whole = mask.compute(**ALONE) if isinstance(mask, da.Array) else mask
        expected = pyattn.attention(*arrays, **{**options, "attn_mask": whole})
        found = attention(*lazy, **options)
        found, expected = (found, expected) if options["need_lse"] else ([found], [expected])
        for lazy_one, one in zip(found, expected, strict=True):
            assert (lazy_one.shape, lazy_one.dtype) == (one.shape, one.dtype), seed
            assert_same_bits(lazy_one.compute(**ALONE), one)


@pytest.mark.parametrize("score", ["dot", "additive", "bilinear"])
@pytest.mark.parametrize(
    ("query", "key", "options"),
    [
        ((600, 8), (1100, 8), {}),
        ((3, 600, 8), (3, 1100, 8), {}),
        ((4, 600, 8), (2, 1100, 8), {"enable_gqa": True}),
    ],
    ids=str,
)
def test_dropout_knows_its_place_on_any_axes(query, key, options, score):
    arrays = [normal(*shape, seed=n) for n, shape in enumerate((query, key, key))]
    weights = {"dot": None, "additive": normal(8, seed=5), "bilinear": normal(8, 8, seed=6)}
    options = {"score": score, "score_weight": weights[score], "dropout_p": 0.3, "rng": 9, "need_lse": True, **options}
    chunks = ({-2: 250, **({0: 2} if len(query) > 2 else {})}, *[{-2: 512, **({0: 1} if len(key) > 2 else {})}] * 2)
    lazy = [da.from_array(x, chunks=-1).rechunk(one) for x, one in zip(arrays, chunks, strict=True)]
    for found, one in zip(attention(*lazy, **options), pyattn.attention(*arrays, **options), strict=True):
        assert_same_bits(found.compute(**ALONE), one)


def links(result):
    """Count the tasks that attend to a chunk of keys."""
    return sum("attend" in repr(task) and "Carry" not in repr(task) for task in dict(result.dask).values())


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(4096),
        masks.window(4096, left=256, right=0),
        masks.window(4096, left=0, right=900),
        masks.document(np.repeat(np.arange(4), 1024)),
        masks.document(np.repeat([5, 1, 5, 2], 1024)),
        masks.prefix(600, 4096),
        masks.causal(4096) & masks.document(np.repeat([0, 1], 2048)),
        masks.causal(4096).complement(),
        masks.document(np.repeat(np.arange(4), 1024)).complement(),
        masks.causal(4096) & masks.document(np.repeat([0, 1], 2048)).complement(),
        masks.window(4096, left=256, right=0) | masks.document(np.repeat([5, 1, 5, 2], 1024)),
    ],
    ids=str,
)
def test_pairs_of_chunks_that_a_mask_hides_get_no_task(mask):
    x = da.zeros((4096, 8), chunks=(512, 8), dtype="f4")
    seen = np.asarray(mask).reshape(8, 512, 8, 512).any(axis=(1, 3))
    assert links(attention(x, x, x, attn_mask=mask)) == seen.sum()


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True, "align": "upper_left"},
        {"is_causal": True, "align": "lower_right"},
        {"window": (256, 0), "align": "lower_right"},
        {"window": 600, "align": "upper_left"},
        {"key_lengths": [1000, 3072]},
        {"key_lengths": [1000, 3072], "query_lengths": [600, 2000], "window": (None, 0), "align": "lower_right"},
    ],
    ids=str,
)
def test_pairs_of_chunks_that_arguments_hide_get_no_task(options):
    query, key = (da.zeros((2, 1, n, 8), chunks=(1, 1, 512, 8), dtype="f4") for n in (2048, 3072))
    arrays = [np.zeros(x.shape, x.dtype) for x in (query, key, key)]
    _, weights = pyattn.attention(*arrays, need_weights=True, **options)
    seen = (weights > 0).reshape(2, 4, 512, 6, 512).any(axis=(2, 4))
    assert links(attention(query, key, key, **options)) == seen.sum()


def test_an_empty_chunk_of_keys_gets_no_task():
    query, key = normal(100, 8), normal(1024, 8)
    lazy = [da.from_array(x, chunks=(chunks, 8)) for x, chunks in ((query, 100), (key, (512, 0, 512)))]
    found = attention(lazy[0], lazy[1], lazy[1], key_lengths=1000)
    assert links(found) == 2
    assert_same_bits(found.compute(**ALONE), pyattn.attention(query, key, key, key_lengths=1000))


def test_an_empty_chunk_beside_a_single_entry():
    query, key = normal(2, 4, 10, 8), normal(1, 4, 1024, 8)
    expected = pyattn.attention(query, key, key)
    for chunks in ((0, 1), (1, 0)):
        for batch in (1, 2):
            lazy = da.from_array(query, chunks=(batch, 4, 10, 8)), da.from_array(key, chunks=(chunks, 4, 512, 8))
            found = attention(lazy[0], lazy[1], lazy[1])
            assert found.shape == expected.shape
            assert_same_bits(found.compute(**ALONE), expected)


def test_a_lazy_weight_of_the_score_is_computed_once():
    calls, x = [], normal(1024, 8)
    weight = da.from_delayed(dask.delayed(lambda: calls.append(1) or normal(8, 8, seed=1))(), (8, 8), "f4")
    lazy = da.from_array(x, chunks=(512, 8))
    found = attention(lazy, lazy, lazy, score="bilinear", score_weight=weight).compute(**ALONE)
    assert len(calls) == 1
    expected = pyattn.attention(x, x, x, score="bilinear", score_weight=normal(8, 8, seed=1))
    assert_same_bits(found, expected)


def test_links_of_the_first_keys_are_the_most_urgent():
    """So the chains of a worker keep in step, chunk of heads after chunk of heads, before any array makes a chunk."""
    x = da.zeros((2, 3, 2048, 8), chunks=(1, 1, 512, 8), dtype="f4")
    result = attention(x, x, x)
    layer = result.dask.layers[result.name]
    urgency = {key: layer.annotations["priority"](key) for key in layer}
    assert min(urgency.values()) > 0
    links = sorted((key[1:3], key[-1], -urgency[key]) for key in urgency if key[0].startswith("attention-link"))
    assert len(links) == 2 * 3 * 4 * 3
    assert [one[-1] for one in links] == sorted(one[-1] for one in links)
    assert len({one[1:] for one in links if one[0] == (1, 1)}) == 3
    with dask.annotate(priority=7, retries=2):
        layer = attention(x, x, x, is_causal=True).dask.layers
    assert {"priority": 7, "retries": 2} in [one.annotations for one in layer.values()]


@pytest.mark.parametrize("need_lse", [False, True])
def test_a_slice_computes_its_own_chunks_alone(need_lse):
    x = da.zeros((2, 4096, 8), chunks=(1, 512, 8), dtype="f4")
    results = attention(x, x, x, need_lse=need_lse)
    for result in results if need_lse else [results]:
        assert links(result) == 2 * 8 * 8
        with dask.config.set({"optimization.fuse.active": False}):
            (part,) = dask.optimize(result[1, -1:])
        assert links(part) == 8


@pytest.mark.parametrize("splits", [1, 2])
def test_all_queries_are_there_before_the_first_link(splits):
    """So all workers get as many chains, and nobody waits for the slowest one."""
    x = da.zeros((2048, 8), chunks=(512, 8), dtype="f4")
    graph = dict(attention(x, x, x, splits=splits).dask)
    begins = {key for key in graph if key[0].startswith("attention-begin")}
    for key in graph:
        if key[0].startswith("attention-link") and key[-1] % (4 // splits) == 0:
            before, ahead = set(), [key]
            while ahead:
                new = dask.core.get_dependencies(graph, ahead.pop()) - before
                before |= new
                ahead += new
            assert {begin for begin in begins if begin[-1] == key[-1] * splits // 4} <= before


@pytest.mark.parametrize("splits", [2, 3, 9])
def test_ranges_of_keys_are_merged(splits):
    """Within four times the error of one call, which both have against float64."""
    arrays = [normal(2, n, 32, seed=n) for n in (70, 2000, 2000)]
    lazy = [da.from_array(x, chunks=(1, 512, 32)) for x in arrays]
    exact = pyattn.attention(*(x.astype("f8") for x in arrays))
    error = np.abs(pyattn.attention(*arrays) - exact).max()
    output, lse = dask.compute(*attention(*lazy, splits=splits, need_lse=True), **ALONE)
    assert np.abs(output - exact).max() <= 4 * error
    np.testing.assert_allclose(lse, pyattn.attention(*arrays, need_lse=True).lse, rtol=1e-6)
    assert output.dtype == lse.dtype == np.float32
    half = [x.astype("f2") for x in lazy]
    assert attention(*half, splits=splits).compute(**ALONE).dtype == np.float16


def test_a_masked_nan_is_never_touched_and_a_visible_one_is():
    query, key, value = (normal(n, 16, seed=n) for n in (600, 1600, 1601))
    value = value[:1600]
    value[700], key[1590] = np.nan, np.inf
    value[100, 3] = np.inf
    lazy = [da.from_array(x, chunks=(512, 16)) for x in (query, key, value)]
    with np.errstate(invalid="ignore"):
        for mask in (masks.causal(600, 1600, align=550), masks.document(np.zeros(600, int), np.arange(1600) % 2)):
            assert_same_bits(
                attention(*lazy, attn_mask=mask).compute(**ALONE), pyattn.attention(query, key, value, attn_mask=mask)
            )


def test_nothing_to_attend_to():
    x = da.zeros((600, 4), chunks=(200, 4))
    keys = da.zeros((0, 4))
    assert not attention(x, keys, keys).compute(**ALONE).any()
    output, lse = attention(x, keys, keys, need_lse=True, empty_rows="nan")
    assert np.isnan(output.compute(**ALONE)).all()
    assert np.isneginf(lse.compute(**ALONE)).all()
    keys = da.zeros((1024, 4), chunks=(512, 4))
    late = attention(x, keys, keys, is_causal=True, align=-100, splits=2, empty_rows="nan").compute(**ALONE)
    assert np.isnan(late[:100]).all()
    assert not late[100:].any()


def test_numpy_arrays_lists_and_broadcast_heads_are_taken():
    query, key, value = (normal(1, 4, 30, 8), normal(3, 1, 40, 8), normal(40, 8))
    assert_same_bits(attention(query, key, value).compute(**ALONE), pyattn.attention(query, key, value))
    assert attention([[1.0]], [[1.0]], [[2.0]]).compute(**ALONE) == 2


def test_the_same_call_has_the_same_name_and_another_seed_another():
    x = da.ones((1024, 4), chunks=(512, 4))
    calls = [attention(x, x, x, dropout_p=0.5, rng=seed).name for seed in (1, 1, 2, None, None)]
    assert calls[0] == calls[1]
    assert len(set(calls)) == 4


X = da.zeros((1, 6, 1536, 8), chunks=(1, 3, 512, 8))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: attention(X, X.rechunk({2: 500}), X),
            r"key's chunks along axis -2 start at 500, expected multiples of 512, .* key\.rechunk\(\{-2: 512\}\)",
        ),
        (
            lambda: attention(X, X[:, :3], X[:, :3]),
            r"query has chunks of \(3, 3\) heads, which cut a group of 2 .*: 2\}\)",
        ),
        (
            lambda: attention(X[0, 0][X[0, 0, :, 0] > 0], X[0, 0], X[0, 0]),
            r"query has chunks of unknown sizes.*compute_",
        ),
        (lambda: attention(X[0, 0, 0], X, X), r"query has shape \(8,\), expected 2 to 8 axes"),
        (lambda: attention(X, X[..., :4], X), r"key has head_dim 4 but query has 8"),
        (lambda: attention(X, X[:, :, :512], X[:, :, :512], is_causal=True), r"needs align='upper_left'"),
        (lambda: attention(X, X, X, attn_mask=masks.causal(5)), r"attn_mask is causal\(5\) for 5 queries"),
        (lambda: attention(X, X, X, attn_mask=np.ones((3, 5), bool)), r"attn_mask has shape \(3, 5\)"),
        (lambda: attention(X, X, X, attn_mask=da.ones((3, 5), dtype=bool)), r"attn_mask has shape \(3, 5\)"),
        (lambda: attention(X, X, X, key_lengths=[2000]), r"key_lengths holds 2000"),
        (lambda: attention(X, X, X, splits=0), r"splits is 0, expected 1 or more"),
        (lambda: attention(X, X, X, dropout_p=2), r"dropout_p is 2"),
        (lambda: attention(X, X, X, num_threads=0), r"num_threads is 0"),
    ],
)
def test_bad_input_is_refused_when_the_graph_is_made(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_types_are_refused_when_the_graph_is_made():
    with pytest.raises(TypeError, match="query"):
        attention(X.astype(complex), X, X)
    with pytest.raises(TypeError, match="attn_mask"):
        attention(X, X, X, attn_mask=da.zeros((1536, 1536), dtype=int))
    with pytest.raises(TypeError, match="rng"):
        attention(X, X, X, dropout_p=0.5, rng="a")


def test_a_graph_of_256_by_256_chunks_is_small():
    """A task for each pair, and a few for each chunk."""
    x = da.zeros((256 * 512, 4), chunks=(512, 4))
    assert len(attention(x, x, x).dask) < 256**2 + 5 * 256


def test_a_mask_without_limits_goes_to_the_workers_once():
    ids = np.arange(32 * 512) % 7
    x = da.zeros((len(ids), 4), chunks=(512, 4))
    plain, masked = (
        len(pickle.dumps(dict(attention(x, x, x, attn_mask=mask).dask))) for mask in (None, masks.document(ids))
    )
    assert masked < plain + ids.nbytes + 32**2 * 400


def test_a_bilinear_graph_makes_no_product():
    """It would take a petabyte."""
    query, key = da.zeros((8, 1 << 40, 64), chunks=-1, dtype="f4"), da.zeros((8, 512, 32), chunks=-1, dtype="f4")
    result = attention(query, key, key, score="bilinear", score_weight=normal(64, 32))
    assert result.shape == (8, 1 << 40, 32)


def test_ids_of_two_types_are_compared_exactly():
    """As floats, 2**60 and 2**60 + 1 are the same."""
    q_ids, kv_ids = np.full(512, 2**60, np.uint64), np.full(1024, 2**60 + 1)
    kv_ids[700] = 2**60
    arrays = [normal(n, 8, seed=n) for n in (512, 1024, 1024)]
    lazy = [da.from_array(x, chunks=(512, 8)) for x in arrays]
    mask = masks.document(q_ids, kv_ids).complement()
    found = attention(*lazy, attn_mask=mask).compute(**ALONE)
    assert_same_bits(found, pyattn.attention(*arrays, attn_mask=mask))


def test_a_weight_that_changes_later_changes_nothing():
    x, weight = normal(600, 8), normal(8, 8, seed=1)
    expected = pyattn.attention(x, x, x, score="bilinear", score_weight=weight)
    found = attention(x, x, x, score="bilinear", score_weight=weight)
    weight[:] = 0
    assert_same_bits(found.compute(**ALONE), expected)


def test_without_dask_the_message_says_what_to_install():
    done = run_python(
        "import sys; sys.modules['dask'] = sys.modules['dask.array'] = None\n"
        "import pyattn, inspect\n"
        "try:\n    import pyattn.interop.dask\nexcept ImportError as error: print(error)\n"
        "inspect.getmembers(pyattn.interop)"
    )
    assert done.stdout == "pyattn.interop.dask needs dask: pip install 'dask[array]' distributed\n"


@pytest.mark.parametrize("given", [masks.causal(600, 1100, align=500), np.tri(600, 1100, 500, dtype=bool)], ids=str)
def test_a_keep_mask_is_cut_like_others(given):
    query, key, value = (normal(2, 3, n, 8, seed=n) for n in (600, 1100, 1100))
    lazy = [da.from_array(x, chunks=(1, 3, 512, 8)) for x in (query, key, value)]
    expected = pyattn.attention(query, key, value, keep_mask=given, dropout_p=0.5)
    assert_same_bits(attention(*lazy, keep_mask=given, dropout_p=0.5).compute(**ALONE), expected)
    chunked = da.from_array(np.asarray(given), chunks=300)
    assert_same_bits(attention(*lazy, keep_mask=chunked, dropout_p=0.5).compute(**ALONE), expected)


def test_chunks_and_axes_without_elements():
    query, key = da.ones((10, 8), chunks=((5, 0, 5), 8)), da.ones((1024, 8), chunks=(512, 8))
    assert (attention(query, key, key).compute(**ALONE) == 1).all()
    for shape in ((0, 3, 40, 8), (2, 0, 40, 8), (2, 3, 0, 8)):
        assert attention(np.zeros(shape), np.zeros(shape), np.zeros(shape)).compute(**ALONE).shape == shape


def test_numpy_arrays_are_cut_where_sums_are():
    x = normal(1, 1, 9000, 4)
    result = attention(x, x, x, window=3, align=0)
    assert result.chunks[2] == (4096, 4096, 808)
    assert_same_bits(result.compute(**ALONE), pyattn.attention(x, x, x, window=3))


@pytest.mark.parametrize("splits", [1, 2])
def test_a_score_weight_takes_part_in_the_dtype(splits):
    half, weight = np.ones((1024, 8), "f2"), np.ones(8, "f4")
    lazy = da.from_array(half, chunks=(512, 8))
    result = attention(lazy, lazy, lazy, score="additive", score_weight=weight, splits=splits)
    assert result.dtype == result.compute(**ALONE).dtype == np.float32
    ints = lazy.astype("i2")
    assert attention(ints, lazy, lazy, splits=splits).compute(**ALONE).dtype == np.float64

"""Scores other than the dot product: their formulas, their bounds, their bits, and what they leave alone."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from support.helpers import assert_same_bits, for_each, run_python

import pyattn
from pyattn import _core, reference
from pyattn.testing import bounds

SCORES = ("cosine", "distance", "bilinear", "additive")
every_score = pytest.mark.parametrize("score", SCORES)


def options_of(score, rng, dtype, q_dim, k_dim=None):
    """The arguments that a score takes, with a weight that makes scores near 1; a larger scale for cosines."""
    if score == "bilinear":
        weight = rng.standard_normal((q_dim, k_dim or q_dim)) / np.sqrt(q_dim * (k_dim or q_dim))
        return {"score": score, "score_weight": weight.astype(dtype)}
    if score == "additive":
        return {"score": score, "score_weight": (rng.standard_normal(q_dim) / np.sqrt(q_dim)).astype(dtype)}
    return {"score": score, "scale": 8.0} if score == "cosine" else {"score": score}


def draw(score, dtype, query=(3, 9, 20), key=(3, 13, 20), v_dim=6, seed=0):
    """Query, key, value, and the score's arguments."""
    rng = np.random.default_rng([seed, SCORES.index(score)])
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in (query, key, (*key[:-1], v_dim))]
    return arrays, options_of(score, rng, dtype, query[-1], key[-1])


def row(arrays, i):
    """Row i as a call of its own, which takes the form of decoding."""
    query, key, value = arrays
    return query[..., i : i + 1, :], key, value


# Formulas


def score_exactly(score, q, k, weight):
    """One pair in 50 digits, without a scale."""
    q, k = ([mpmath.mpf(float(x)) for x in row] for row in (q, k))
    if score == "bilinear":
        rows = ([mpmath.mpf(float(w)) for w in row] for row in weight)
        return mpmath.fsum(a * mpmath.fdot(row, k) for a, row in zip(q, rows, strict=True))
    if score == "additive":
        return mpmath.fsum(float(w) * mpmath.tanh(a + b) for w, a, b in zip(weight, q, k, strict=True))
    if score == "distance":
        return -mpmath.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True))
    norms = mpmath.norm(q) * mpmath.norm(k)
    return mpmath.fdot(q, k) / norms if norms else mpmath.mpf(0)


@every_score
@pytest.mark.parametrize("wide", [np.float64, np.longdouble])
def test_the_reference_is_the_formula(score, wide):
    (query, key, value), options = draw(score, np.float64, (4, 3), (5, 3))
    query[1] = 0
    _, weights, lse = reference.attention(query, key, value, dtype=wide, **options)
    slack = 64 * float(np.finfo(wide).eps)
    with mpmath.workdps(50):
        scale = {"cosine": 8, "distance": 1 / (2 * mpmath.sqrt(3))}.get(score, 1)
        for i, q in enumerate(query):
            scores = [scale * score_exactly(score, q, k, options.get("score_weight")) for k in key]
            total = mpmath.fsum(map(mpmath.exp, scores))
            assert abs(mpmath.mpf(str(lse[i])) - mpmath.log(total)) < slack
            for j, exact in enumerate(scores):
                assert abs(mpmath.mpf(str(weights[i, j])) - mpmath.exp(exact) / total) < slack


@every_score
@pytest.mark.peers
def test_torch_has_the_same_formulas(score, torch):
    arrays, options = draw(score, np.float64)
    q, k, v = map(torch.from_numpy, arrays)
    weight = torch.from_numpy(options["score_weight"]) if "score_weight" in options else None
    pairs = q[..., :, None, :], k[..., None, :, :]
    scores = {
        "cosine": lambda: 8 * torch.nn.functional.cosine_similarity(*pairs, dim=-1),
        "distance": lambda: -(torch.cdist(q, k) ** 2) / (2 * np.sqrt(20)),
        "bilinear": lambda: torch.einsum("blc,cd,bsd->bls", q, weight, k),
        "additive": lambda: torch.tanh(sum(pairs)) @ weight,
    }[score]()
    expected = torch.softmax(scores, dim=-1)
    result = pyattn.attention(*arrays, **options, need_weights=True, need_lse=True)
    np.testing.assert_allclose(result.weights, expected, rtol=1e-12)
    np.testing.assert_allclose(result.output, expected @ v, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(result.lse, torch.logsumexp(scores, dim=-1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("score", "scale"), [("dot", 1 / 6), ("cosine", 1), ("distance", 1 / 12), ("bilinear", 1), ("additive", 1)]
)
def test_scales_have_defaults(score, scale, dtype):
    rng = np.random.default_rng(0)
    options = options_of(score, rng, dtype, 36)
    options.pop("scale", None)
    arrays = [rng.standard_normal((7, 36)).astype(dtype) for _ in range(3)]
    assert_same_bits(pyattn.attention(*arrays, **options), pyattn.attention(*arrays, **options, scale=scale))


# Bounds. Sizes of query and key, and arguments.


def keep(*shape):
    return np.random.default_rng(7).random(shape) < 0.6


CASES = {
    "tiny": ((3, 4), (5, 4), {}),
    "one feature": ((3, 1), (5, 1), {}),
    "no features": ((3, 0), (5, 0), {}),
    "no keys": ((3, 4), (0, 4), {}),
    "prefill": ((2, 2, 101, 40), (2, 2, 290, 40), {"need_lse": True}),
    "decode": ((3, 1, 64), (3, 1100, 64), {"need_lse": True}),
    "folds": ((40, 300), (70, 300), {}),
    "causal": ((150, 16), (150, 16), {"is_causal": True}),
    "window": ((2, 60, 17), (2, 300, 17), {"window": (100, 3), "align": "lower_right"}),
    "bool mask": ((3, 50, 24), (3, 140, 24), {"attn_mask": keep(3, 50, 140)}),
    "float mask": ((4, 80, 24), (4, 80, 24), {"attn_mask": np.random.default_rng(8).standard_normal((80, 80))}),
    "lengths": ((3, 20, 8), (3, 90, 8), {"key_lengths": [90, 7, 0], "query_lengths": [20, 20, 3]}),
    "grouped": ((2, 6, 30, 12), (2, 2, 70, 12), {}),
    "grouped decode": ((2, 6, 1, 12), (2, 2, 300, 12), {}),
    "bshd": ((2, 30, 4, 12), (2, 70, 4, 12), {"layout": "bshd"}),
    "broadcast": ((3, 1, 30, 12), (4, 40, 12), {}),
    "scale": ((30, 12), (40, 12), {"scale": -0.25}),
    "threads": ((1, 128), (5000, 128), {"num_threads": 4}),
}
REFERENCE = {"attn_mask", "is_causal", "align", "scale", "window", "key_lengths", "query_lengths", "layout", "score",
             "score_weight"}  # fmt: skip


@pytest.mark.sampled(2)
@every_score
@for_each("name", CASES)
def test_bounds_hold(score, name, dtype, levels):
    query, key, more = CASES[name]
    arrays, options = draw(score, dtype, query, key)
    options |= more
    expected = bounds.expect(*arrays, dtype, **{k: v for k, v in options.items() if k in REFERENCE})
    for level in levels:
        _core._set_isa(level)
        result = pyattn.attention(*arrays, **{**options, "need_weights": True, "need_lse": True})
        assert bounds.output_ratio(result.output, expected) <= bounds.OUTPUT_BAR, level
        assert bounds.weights_ratio(result.weights, expected) <= 1, level
        assert bounds.lse_ratio(result.lse, expected) <= 1, level


def test_query_and_key_of_a_bilinear_score_have_sizes_of_their_own(dtype):
    arrays, options = draw("bilinear", dtype, (2, 9, 5), (2, 13, 20))
    query, key, value = (x.astype(np.float64) for x in arrays)
    weights = reference.softmax(np.einsum("blc,cd,bsd->bls", query, np.float64(options["score_weight"]), key))
    np.testing.assert_allclose(pyattn.attention(*arrays, **options), weights @ value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strides", ["transposed", "reversed", "every other"])
def test_a_score_weight_has_any_strides(strides, dtype):
    for score in ("bilinear", "additive"):
        arrays, options = draw(score, dtype)
        weight = options["score_weight"]
        odd = {
            "transposed": lambda w: np.asfortranarray(w),
            "reversed": lambda w: w[::-1].copy()[::-1],
            "every other": lambda w: np.repeat(w, 2, axis=-1)[..., ::2],
        }[strides](weight)
        assert_same_bits(
            pyattn.attention(*arrays, **{**options, "score_weight": odd}), pyattn.attention(*arrays, **options)
        )


def test_a_wider_score_weight_promotes_all(dtype):
    arrays, options = draw("additive", np.float32)
    options["score_weight"] = options["score_weight"].astype(dtype)
    assert pyattn.attention(*arrays, **options).dtype == dtype


# Bits


@every_score
def test_a_row_has_the_same_bits_however_it_is_computed(score, dtype, level):
    arrays, options = draw(score, dtype, (2, 2, 60, 40), (2, 2, 700, 40))
    whole = pyattn.attention(*arrays, **options, need_weights=True, need_lse=True)
    for threads in (1, 2, 3):
        assert_same_bits(
            pyattn.attention(*arrays, **options, need_weights=True, need_lse=True, num_threads=threads), whole
        )
    assert_same_bits(pyattn.attention(*arrays, **options), whole.output, "without weights and lse")
    assert_same_bits(pyattn.attention(*(x[1, 1] for x in arrays), **options), whole.output[1, 1], "alone")
    for i in (0, 33, 59):
        alone = pyattn.attention(*row(arrays, i), **options, need_weights=True, need_lse=True)
        for one, all_rows in zip(alone, whole, strict=True):
            assert_same_bits(one, all_rows[:, :, i : i + 1], f"row {i}")


@every_score
def test_levels_agree(score, dtype, levels):
    arrays, options = draw(score, dtype, (40, 70), (300, 70))
    fused = [level for level in levels if level != "scalar"]
    results = []
    for level in fused:
        pyattn._core._set_isa(level)
        results.append(pyattn.attention(*arrays, **options, need_weights=True, need_lse=True))
    for level, result in zip(fused, results, strict=True):
        assert_same_bits(result, results[0], level)


@pytest.mark.threads
@every_score
def test_spans_of_keys_over_threads_have_the_same_bits(score, dtype):
    arrays, options = draw(score, dtype, (2, 128), (9000, 128))
    one, many = (pyattn.attention(*arrays, **options, need_lse=True, num_threads=n) for n in (1, 4))
    assert_same_bits(many, one)


# What is left alone


@every_score
@for_each("poison", [np.nan, np.inf])
@for_each("q_len", [1, 40])
def test_masked_numbers_are_never_touched(score, poison, q_len, dtype, level):
    arrays, options = draw(score, dtype, (q_len, 20), (130, 20))
    mask = keep(q_len, 130)
    mask[:, [3, 70, 129]] = False
    clean = pyattn.attention(*arrays, **options, attn_mask=mask, need_weights=True, need_lse=True)
    query, key, value = (x.copy() for x in arrays)
    key[[3, 129]] = value[[70, 129]] = poison
    dirty = pyattn.attention(query, key, value, **options, attn_mask=mask, need_weights=True, need_lse=True)
    assert_same_bits(dirty, clean)


@every_score
def test_a_nan_that_is_attended_to_shows(score, dtype):
    (query, key, value), options = draw(score, dtype, (30, 20), (40, 20))
    query[4, 5] = np.nan
    output = pyattn.attention(query, key, value, **options)
    assert np.isnan(output[4]).all()
    assert np.isfinite(np.delete(output, 4, axis=0)).all()


@every_score
def test_the_query_of_an_empty_row_is_not_looked_at(score, dtype):
    (query, key, value), options = draw(score, dtype, (3, 4), (5, 4))
    query[1] = np.nan
    mask = np.ones((3, 5), bool)
    mask[1] = False
    result = pyattn.attention(query, key, value, **options, attn_mask=mask, need_weights=True, need_lse=True)
    assert (result.output[1] == 0).all()
    assert (result.weights[1] == 0).all()
    assert result.lse[1] == -np.inf


@every_score
def test_dropout_is_in_the_weights_alone(score, dtype):
    arrays, options = draw(score, dtype, (30, 20), (70, 20))
    kept = keep(30, 70)
    plain = pyattn.attention(*arrays, **options, need_weights=True, need_lse=True)
    dropped = pyattn.attention(*arrays, **options, dropout_p=0.4, keep_mask=kept, need_weights=True, need_lse=True)
    assert_same_bits(dropped.lse, plain.lse)
    np.testing.assert_allclose(
        dropped.weights, np.where(kept, plain.weights / 0.6, 0), rtol=4 * np.finfo(dtype).eps, atol=0
    )


@pytest.mark.parametrize("score", ["bilinear", "additive"])
def test_out_may_overlap_the_score_weight(score, dtype):
    """Where the rows that are computed first go: the last."""
    arrays, options = draw(score, dtype, (1500, 20), (20, 20), v_dim=20)
    weight = options["score_weight"]
    expected = pyattn.attention(*arrays, **options)
    memory = np.zeros((1500, 20), dtype)
    shared = memory[-20:] if score == "bilinear" else memory[-1]
    shared[:] = weight
    assert_same_bits(pyattn.attention(*arrays, score=score, score_weight=shared, out=memory, num_threads=1), expected)


GROWTH = """
import numpy as np, pyattn
from benchmarks.memory import growth
query, key, value = np.ones((3, 4096, 4), np.float32)
weight = np.ones((4, 4), np.float32)
for score, one in (("cosine", None), ("distance", None), ("bilinear", weight), ("additive", weight[0])):
    print(growth(lambda: pyattn.attention(query, key, value, score=score, score_weight=one)))
"""


def test_memory_does_not_grow_with_queries_times_keys():
    assert max(map(int, run_python(GROWTH).stdout.split())) < 4096 * 4096


# The ends of the range


@pytest.mark.parametrize("exponents", [(60, 100), (-60, -90), (100, -90)])
def test_cosines_do_not_depend_on_length(exponents, dtype, level):
    """A power of two changes no bit, however large or small it makes the squares."""
    (query, key, value), options = draw("cosine", dtype, (20, 30), (50, 30))
    more = 8 if dtype == "float64" else 1
    small, large = (np.ldexp(x, more * exponent) for x, exponent in zip((query, key), exponents, strict=True))
    assert_same_bits(pyattn.attention(small, large, value, **options), pyattn.attention(query, key, value, **options))


def test_a_vector_of_zeros_has_cosine_0(dtype, level):
    (query, key, value), options = draw("cosine", dtype, (4, 20), (50, 20))
    query[1] = key[7] = 0
    result = pyattn.attention(query, key, value, **options, need_weights=True, need_lse=True)
    np.testing.assert_allclose(result.weights[1], 1 / 50, rtol=8 * np.finfo(dtype).eps)
    np.testing.assert_allclose(result.weights[:, 7], np.exp(-result.lse), rtol=16 * np.finfo(dtype).eps)


def test_a_key_far_away_has_no_weight(dtype):
    (query, key, value), options = draw("distance", dtype, (4, 20), (50, 20))
    near = pyattn.attention(query, key[1:], value[1:], **options, need_lse=True)
    key[0] = np.sqrt(np.finfo(dtype).max)
    far = pyattn.attention(query, key, value, **options, need_lse=True)
    np.testing.assert_allclose(far.output, near.output, rtol=0, atol=8 * np.finfo(dtype).eps)
    np.testing.assert_allclose(far.lse, near.lse, rtol=8 * np.finfo(dtype).eps)


# Mistakes

Q, K, V = (np.ones(shape, np.float32) for shape in ((3, 4), (5, 4), (5, 2)))


@for_each(
    ("arguments", "message"),
    [
        ({"score": "cosin"}, "^score is 'cosin', expected 'dot', 'cosine', 'distance', 'bilinear' or 'additive'$"),
        ({"score": None}, "^score is None, expected 'dot'"),
        (
            {"score": "additive"},
            r"^score='additive' needs score_weight, an array of shape \(4,\): query has head_dim 4$",
        ),
        ({"score": "bilinear"}, r"^score='bilinear' needs score_weight, an array of shape \(4, 4\): query's features"),
        ({"score_weight": Q[0]}, "^score='dot' takes no score_weight: leave it out, or pass score='bilinear' or"),
        ({"score": "cosine", "score_weight": Q}, "^score='cosine' takes no score_weight"),
        ({"score": "distance", "score_weight": Q}, "^score='distance' takes no score_weight"),
        ({"score": "additive", "score_weight": Q}, r"^score_weight has shape \(3, 4\), expected \(4,\): query has"),
        ({"score": "additive", "score_weight": Q[0, :3]}, r"^score_weight has shape \(3,\), expected \(4,\)"),
        ({"score": "bilinear", "score_weight": Q}, r"^score_weight has shape \(3, 4\), expected \(4, 4\): query's"),
        ({"score": "bilinear", "score_weight": Q[0]}, r"^score_weight has shape \(4,\), expected \(4, 4\)"),
        ({"score": "bilinear", "score_weight": K[:4], "query": Q[0]}, r"^query has shape \(4,\), expected at least 2"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        pyattn.attention(**{"query": Q, "key": K, "value": V, **arguments})


def test_a_score_weight_of_no_numbers_is_refused():
    with pytest.raises(TypeError, match=r"^score_weight has dtype complex64, .* pass score_weight.real.astype"):
        pyattn.attention(Q, K, V, score="additive", score_weight=Q[0] * np.complex64(1j))

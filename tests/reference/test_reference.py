"""The oracle on trial: against 50-digit arithmetic pair by pair, against the worked example, and by its own rules."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from pyattn import reference

mpmath.mp.dps = 50


def sees(i, j, offset, *, is_causal=False, left=None, right=None, keep=None):
    """Whether query i attends to key j, in the words of the documentation."""
    reasons_not = (
        is_causal and j > i + offset,
        left is not None and j < i + offset - left,
        right is not None and j > i + offset + right,
        keep is not None and not keep[i, j],
    )
    return not any(reasons_not)


def attend_exactly(query, key, value, visible, scale=None, bias=None):
    """Two-dimensional attention in mpmath: output, weights, lse as nested lists."""
    scale = 1 / mpmath.sqrt(query.shape[1]) if scale is None else mpmath.mpf(scale)
    outputs, weights, lses = [], [], []
    for i, row in enumerate(query):
        seen = [j for j in range(len(key)) if visible(i, j)]
        score = {j: scale * mpmath.fdot(zip(map(float, row), map(float, key[j]), strict=True)) for j in seen}
        if bias is not None:
            score = {j: score[j] + mpmath.mpf(float(bias[i, j])) for j in seen}
        total = mpmath.fsum(mpmath.exp(score[j]) for j in seen)
        p = [mpmath.exp(score[j]) / total if j in score else mpmath.mpf(0) for j in range(len(key))]
        weights.append(p)
        lses.append(mpmath.log(total) if seen else -mpmath.inf)
        outputs.append([mpmath.fsum(p[j] * float(value[j, d]) for j in seen) for d in range(value.shape[1])])
    return outputs, weights, lses


def assert_near(actual, exact, slack=64):
    """Within `slack` units in the last place of the largest number."""
    flat = [mpmath.mpf(str(x)) for x in np.asarray(actual).ravel()]  # str keeps all digits of a long double
    wanted = [x for row in exact for x in (row if isinstance(row, list) else [row])]
    assert len(flat) == len(wanted)
    size = max([1, *(abs(x) for x in wanted if mpmath.isfinite(x))])
    for got, want in zip(flat, wanted, strict=True):
        assert got == want or abs(got - want) <= slack * size * mpmath.mpf(float(np.finfo(actual.dtype).eps))


@pytest.fixture(params=[np.float64, np.longdouble])
def wide(request):
    """The types in which the reference is used."""
    return request.param


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    return rng.standard_normal((4, 3)), rng.standard_normal((6, 3)), rng.standard_normal((6, 2))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"scale": 1.0},
        {"scale": -0.5},
        {"is_causal": True},
        {"is_causal": True, "align": "upper_left"},
        {"is_causal": True, "align": "lower_right"},
        {"window": 1, "align": "upper_left"},
        {"window": (0, None), "align": "lower_right"},
        {"window": (None, 2), "align": "upper_left"},
        {"window": (2, 1), "align": "lower_right", "is_causal": True},
    ],
    ids=str,
)
def test_attention_is_exact(arrays, arguments, wide):
    query, key, value = arrays
    window = arguments.get("window")
    left, right = window if isinstance(window, tuple) else (window, window)
    offset = 2 if arguments.get("align") == "lower_right" else 0
    causal = arguments.get("is_causal", False)
    exact = attend_exactly(
        *arrays, lambda i, j: sees(i, j, offset, is_causal=causal, left=left, right=right), arguments.get("scale")
    )
    for got, want in zip(reference.attention(query, key, value, dtype=wide, **arguments), exact, strict=True):
        assert got.dtype == wide
        assert_near(got, want)


@pytest.mark.parametrize("kind", ["bool", "float", "float with -inf", "float16"])
def test_masks_are_exact(arrays, kind, wide):
    rng = np.random.default_rng(2)
    keep = rng.random((4, 6)) < 0.6
    keep[2] = False
    bias = rng.standard_normal((4, 6)).astype(np.float16 if kind == "float16" else np.float64)
    mask = {"bool": keep, "float": bias, "float16": bias}.get(kind, np.where(keep, bias, -np.inf))
    hides = kind in ("bool", "float with -inf")
    exact = attend_exactly(
        *arrays,
        lambda i, j: sees(i, j, 0, keep=keep if hides else None),
        bias=None if kind == "bool" else bias,
    )
    for got, want in zip(reference.attention(*arrays, attn_mask=mask, dtype=wide), exact, strict=True):
        assert_near(got, want)


def test_lengths_cut_each_batch_by_itself(arrays, wide):
    batch = [np.stack([array, -array, array]) for array in arrays]
    key_lengths, query_lengths = np.array([6, 2, 0]), np.array([4, 3, 1])
    output, weights, lse = reference.attention(
        *batch,
        key_lengths=key_lengths,
        query_lengths=query_lengths,
        is_causal=True,
        align="lower_right",
        dtype=wide,
    )
    for b, (keys, queries) in enumerate(zip(key_lengths, query_lengths, strict=True)):
        offset = int(keys - queries)
        exact = attend_exactly(
            *(array[b] for array in batch),
            lambda i, j, keys=keys, queries=queries, offset=offset: i < queries and j < keys and j <= i + offset,
        )
        for got, want in zip((output[b], weights[b], lse[b]), exact, strict=True):
            assert_near(got, want)


def picture(*arguments, **keywords):
    visible = reference.visible_pairs(*arguments, **keywords)
    return ["".join("x" if seen else "." for seen in row) for row in visible]


def test_alignment_looks_as_documented():
    shape = (3, 5)
    assert picture(shape, False, is_causal=True) == ["x....", "xx...", "xxx.."]
    assert picture(shape, False, is_causal=True, align="lower_right") == ["xxx..", "xxxx.", "xxxxx"]
    assert picture((3, 2), False, is_causal=True, align="lower_right") == ["..", "x.", "xx"]
    assert picture(shape, False, window=1, align="upper_left") == ["xx...", "xxx..", ".xxx."]
    assert picture(shape, False, window=(1, 0), align="lower_right") == [".xx..", "..xx.", "...xx"]
    assert picture(shape, False, key_lengths=4, is_causal=True, align="lower_right") == ["xx...", "xxx..", "xxxx."]
    assert picture(shape, False, key_lengths=4, query_lengths=2, window=(0, 0), align="lower_right") == [
        "..x..",
        "...x.",
        ".....",
    ]


def test_heads_share_keys_in_order():
    rng = np.random.default_rng(3)
    query, key, value = rng.standard_normal((2, 6, 4, 3)), rng.standard_normal((2, 2, 5, 3)), rng.random((2, 2, 5, 2))
    together = reference.attention(query, key, value)
    for h in range(6):
        alone = reference.attention(query[:, h], key[:, h // 3], value[:, h // 3])
        for whole, part in zip(together, alone, strict=True):
            np.testing.assert_allclose(whole[:, h], part, rtol=1e-14)
    three_axes = reference.attention(query[0], key[0], value[0], enable_gqa=True)
    np.testing.assert_array_equal(three_axes.output, together.output[0])


def test_bshd_moves_the_output_alone():
    rng = np.random.default_rng(4)
    query, key, value = (rng.standard_normal((2, 3, length, 4)) for length in (5, 6, 6))
    lengths = {"key_lengths": [6, 3], "attn_mask": rng.random((5, 6)) < 0.7}
    bhsd = reference.attention(query, key, value, **lengths)
    bshd = reference.attention(*(x.swapaxes(1, 2) for x in (query, key, value)), layout="bshd", **lengths)
    np.testing.assert_array_equal(bshd.output, bhsd.output.swapaxes(1, 2))
    np.testing.assert_array_equal(bshd.weights, bhsd.weights)
    np.testing.assert_array_equal(bshd.lse, bhsd.lse)


def test_leading_axes_broadcast():
    rng = np.random.default_rng(5)
    query, key, value = rng.random((3, 1, 4, 2)), rng.random((5, 2)), rng.random((2, 1, 5, 2))
    assert reference.attention(query, key, value[:1]).output.shape == (3, 1, 4, 2)
    assert reference.attention(query[:1], key, value).weights.shape == (2, 1, 4, 5)  # value alone has a batch


def test_masked_nan_is_never_touched():
    rng = np.random.default_rng(6)
    query, key, value = (rng.standard_normal((n, 3)) for n in (4, 6, 6))
    keep = np.ones((4, 6), bool)
    keep[:2, 3] = False
    clean = reference.attention(query, key, value, attn_mask=keep)
    for poison in (np.nan, np.inf, -np.inf):
        bad_key, bad_value = key.copy(), value.copy()
        bad_key[3] = bad_value[3] = poison
        for poisoned in ((bad_key, value), (key, bad_value)):
            dirty = reference.attention(query, *poisoned, attn_mask=keep)
            np.testing.assert_allclose(dirty.output[:2], clean.output[:2], rtol=1e-14)
        assert not np.isfinite(dirty.output[2:]).any()  # the rows that do attend to it


def test_hidden_keys_weigh_nothing_beside_one_that_is_not_a_number():
    weights = reference.attention([[1], [1]], [[np.nan], [1]], [[1], [2]], is_causal=True).weights
    np.testing.assert_array_equal(weights, [[np.nan, 0], [np.nan, np.nan]])


@pytest.mark.parametrize("empty_rows", ["zero", "nan"])
def test_a_row_with_nothing_to_attend_to(empty_rows):
    mask = np.array([[True, True], [False, False]])
    ones = np.ones((2, 1))
    output, weights, lse = reference.attention(ones, ones, ones, attn_mask=mask, empty_rows=empty_rows)
    np.testing.assert_array_equal(output, [[1], [0 if empty_rows == "zero" else np.nan]])
    np.testing.assert_array_equal(weights, [[0.5, 0.5], [0, 0]])
    assert lse[1] == -np.inf
    no_keys = reference.attention(ones, np.ones((0, 1)), np.ones((0, 3)))
    np.testing.assert_array_equal(no_keys.output, np.zeros((2, 3)))


def test_the_worked_example(article):
    keys, queries, values = (article["x"] @ article[f"w_{name}"] for name in ("key", "query", "value"))
    np.testing.assert_array_equal(keys, article["keys"])
    np.testing.assert_array_equal(queries, article["queries"])
    np.testing.assert_array_equal(values, article["values"])
    np.testing.assert_array_equal(queries @ keys.T, article["scores"])
    output, weights, _ = reference.attention(queries, keys, values, scale=1)
    five_digits = np.vectorize(lambda x: f"{x:.4e}")
    np.testing.assert_array_equal(five_digits(weights), five_digits(article["softmax"]))
    np.testing.assert_array_equal(weights, reference.softmax(article["scores"]))
    weighted = values[:, np.newaxis] * article["softmax_rounded"].T[:, :, np.newaxis]
    np.testing.assert_allclose(weighted, article["weighted_values_of_rounded"], rtol=1e-14)
    np.testing.assert_allclose(weighted.sum(0), article["outputs_of_rounded"], rtol=1e-14)
    np.testing.assert_allclose(output, article["outputs_of_rounded"], atol=0.5)  # weights rounded to one digit


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_is_exact(axis, wide):
    x = np.random.default_rng(7).standard_normal((3, 4)) * 20
    y, log_y = reference.softmax(x, axis, dtype=wide), reference.log_softmax(x, axis, dtype=wide)
    for n in range(x.shape[1 - axis % 2]):
        row = [mpmath.mpf(float(v)) for v in x.take(n, 1 - axis % 2)]
        total = mpmath.fsum(map(mpmath.exp, row))
        assert_near(y.take(n, 1 - axis % 2), [mpmath.exp(v) / total for v in row])
        assert_near(log_y.take(n, 1 - axis % 2), [v - mpmath.log(total) for v in row])


def test_softmax_of_nothing_but_minus_infinity_is_nan():
    assert np.isnan(reference.softmax([-np.inf, -np.inf])).all()
    np.testing.assert_array_equal(reference.softmax([-np.inf, 0]), [0, 1])


def test_merged_parts_are_the_whole(arrays, wide):
    query, key, value = arrays
    exact = attend_exactly(*arrays, lambda i, j: True)
    parts = [
        reference.attention(query, key[cut], value[cut], dtype=wide) for cut in (slice(4, 6), slice(0, 0), slice(0, 4))
    ]
    output, lse = reference.merge_states([part.output for part in parts], [part.lse for part in parts], dtype=wide)
    assert_near(output, exact[0])
    assert_near(lse, exact[2])


def test_merging_nothing_gives_nothing():
    output, lse = reference.merge_states([np.zeros((2, 3)), np.full((2, 3), np.nan)], [np.full(2, -np.inf)] * 2)
    np.testing.assert_array_equal(output, np.zeros((2, 3)))
    np.testing.assert_array_equal(lse, [-np.inf, -np.inf])


SCORES = {
    "dot": lambda q, k, w: mpmath.fdot(q, k) / mpmath.sqrt(3),
    "cosine": lambda q, k, w: mpmath.fdot(q, k) / mpmath.norm(q) / mpmath.norm(k),
    "distance": lambda q, k, w: -mpmath.fsum((a - b) ** 2 for a, b in zip(q, k, strict=True)) / (2 * mpmath.sqrt(3)),
    "bilinear": lambda q, k, w: mpmath.fsum(q[a] * w[a][b] * k[b] for a in range(3) for b in range(3)),
    "additive": lambda q, k, w: mpmath.fsum(w[0][d] * mpmath.tanh(q[d] + k[d]) for d in range(3)),
}


@pytest.mark.parametrize("score", SCORES)
def test_scores_are_exact(score, wide):
    rng = np.random.default_rng(4)
    query, key, weight = (rng.standard_normal(shape) for shape in ((2, 1, 4, 3), (5, 5, 3), (3, 3)))
    given = {"bilinear": weight, "additive": weight[0]}.get(score)
    found = reference.scores(query, key, score, score_weight=given, dtype=wide)
    assert (found.shape, found.dtype) == ((2, 5, 4, 5), wide)
    exact = [
        SCORES[score](list(map(mpmath.mpf, q)), list(map(mpmath.mpf, k)), weight.tolist())
        for batch in query[:, 0].tolist() for head in key.tolist() for q in batch for k in head
    ]  # fmt: skip
    assert_near(found, exact)


def test_the_cosine_of_vectors_whose_squares_overflow_is_right():
    found = reference.attention([[3e200, 4e200]], [[4e200, 3e200], [-3e200, -4e200]], [[1], [0]], score="cosine")
    exact = 1 / (1 + mpmath.exp(mpmath.mpf("-1.96")))
    assert_near(found.weights[:, 0], [exact])


# Gradients: derivatives of the formulas in 50 digits, one argument at a time


def derivatives_exactly(function, numbers):
    """The derivative of a function of a list of numbers with respect to each of them."""
    exact = [mpmath.mpf(str(number)) for number in numbers]
    return [
        mpmath.diff(lambda moved, n=n: function([*exact[:n], moved, *exact[n + 1 :]]), exact[n])
        for n in range(len(exact))
    ]


@pytest.mark.parametrize("score", SCORES)
def test_gradients_of_scores_are_derivatives(score, wide):
    rng = np.random.default_rng(4)
    q, k, w, grad = (rng.standard_normal(shape).astype(wide) for shape in ((3, 3), (4, 3), (3, 3), (3, 4)))
    weight, scale = {"bilinear": w, "additive": w[0]}.get(score), wide(0.7)
    seen = np.array([[True, True, False, True], [True, False, False, True], [False] * 4])
    grad[~seen] = 0
    undone = {"dot": mpmath.sqrt(3), "distance": 2 * mpmath.sqrt(3)}.get(score, 1)  # SCORES have the default scale

    def loss(given):
        queries, keys, rows = (
            [given[n : n + 3] for n in range(at, at + size, 3)] for at, size in ((0, 9), (9, 12), (21, 9))
        )
        return (
            given[30]
            * undone
            * mpmath.fsum(
                mpmath.mpf(str(grad[i, j])) * SCORES[score](queries[i], keys[j], rows) for i, j in np.argwhere(seen)
            )
        )

    exact = derivatives_exactly(loss, [*q.ravel(), *k.ravel(), *w.ravel(), scale])
    k[2], q[2] = np.nan, np.inf  # masked everywhere: not read
    ours = reference.scores_backward(grad, q, k, score, scale, weight, visible=seen, dtype=wide)
    assert ours.query.dtype == ours.key.dtype == ours.scale.dtype == wide
    assert (ours.score_weight is None) == (weight is None)
    assert_near(ours.query, exact[:9])
    assert_near(ours.key, exact[9:21])
    assert_near(ours.scale, exact[30:])
    if weight is not None:
        assert_near(ours.score_weight, exact[21 : 21 + weight.size])


def test_gradients_of_a_softmax_are_derivatives(wide):
    rng = np.random.default_rng(5)
    scores, grad = rng.standard_normal((2, 3, 5)).astype(wide)
    seen = np.ones((3, 5), bool)
    seen[1, 2:4], seen[2] = False, False
    weights = reference.softmax(np.where(seen, scores, -np.inf), dtype=wide)
    ours, delta = reference.softmax_backward(grad, weights, visible=seen, dtype=wide)
    assert ours.dtype == delta.dtype == wide
    for i in range(3):
        js = np.flatnonzero(seen[i])

        def loss(given, i=i, js=js):
            exps = [mpmath.exp(number) for number in given]
            return mpmath.fsum(mpmath.mpf(str(grad[i, j])) * e for j, e in zip(js, exps, strict=True)) / mpmath.fsum(
                exps
            )

        assert_near(ours[i, js], derivatives_exactly(loss, scores[i, js]))
        assert not ours[i, ~seen[i]].any()
        mean = [loss([mpmath.mpf(str(s)) for s in scores[i, js]])] if len(js) else [mpmath.mpf(0)]
        assert_near(delta[i], mean)


def test_gradients_of_masked_pairs_do_not_read_them():
    weights, grad = [[0.25, 0.75, np.nan]], [[1.0, 3.0, np.nan]]
    ours, delta = reference.softmax_backward(grad, weights, visible=[[True, True, False]])
    assert delta.tolist() == [[2.5]]
    assert ours.tolist() == [[-0.375, 0.375, 0.0]]

"""nn.SelfAttention: the article's numbers, the formula in both conventions, first numbers, honest weights, mistakes."""

from __future__ import annotations

import copy
import functools
import math
import pickle

import numpy as np
import pytest
from support import helpers
from support.helpers import assert_same_bits, for_each
from support.papers import Papers, assert_near

import pyattn
from pyattn import nn

NAMES = ["w_query", "w_key", "w_value", "b_query", "b_key", "b_value"]

normal = functools.partial(helpers.normal, dtype="float64")


def make(embed_dim=7, key_dim=5, v_dim=3, *, dtype="float64", **options):
    """A module all of whose parameters are drawn."""
    module = nn.SelfAttention(embed_dim, key_dim, v_dim, dtype=dtype, rng=0, **options)
    for n, array in enumerate(module.parameters()):
        array[...] = normal(*array.shape, seed=n) / 2
    return module


def function_of(module, x, **options):
    """The same by the function, with the module's parameters."""
    weights, biases = ([getattr(module, name) for name in names] for names in (NAMES[:3], NAMES[3:]))
    options |= {"scale": module.scale, "convention": module.convention}
    return pyattn.self_attention(x, *weights, bias=biases, **options)


X, CONTEXT = normal(2, 9, 7, seed=10), normal(2, 13, 6, seed=11)


# The article


@pytest.fixture(params=[False, True], ids=["rows", "columns"])
def article_module(request, article, dtype):
    """The module of the article's weights, its input, and whether both are turned."""
    x, *weights = (article[name].astype(dtype) for name in ("x", "w_query", "w_key", "w_value"))
    if request.param:
        x, *weights = (array.T for array in (x, *weights))
    return (
        nn.SelfAttention.from_arrays(*weights, scale=1, convention="column" if request.param else "row"),
        x,
        request.param,
    )


def test_the_article(article, article_module, level):
    module, x, columns = article_module
    result = module(x, need_weights=True)
    output, weights = (array.T if columns else array for array in (result.output, result.weights))
    digits = [[f"{number:.4e}" for number in row] for row in weights]
    assert digits == [[f"{number:.4e}" for number in row] for row in article["softmax"]]
    exponentials = np.exp(np.float64(article["scores"]))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True) @ article["values"]
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-6)
    assert output.dtype == module.dtype


# The formula


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("bias", [False, True])
def test_rows_equal_the_formula(bias, scale, dtype, level):
    module = make(bias=bias, scale=scale, dtype=dtype)
    weights, biases = ([getattr(module, name) for name in names] for names in (NAMES[:3], NAMES[3:]))
    x = X.astype(dtype)
    result = module(x, need_weights=True)
    expected = Papers(dtype).rows(x, x, x, weights, biases, scale)
    assert_near(result.output, expected[0])
    assert_near(result.weights, expected[1])
    assert result.lse is None


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("bias", [False, True])
def test_columns_equal_the_formula(bias, scale, dtype, level):
    module = make(bias=bias, scale=scale, dtype=dtype, convention="column", context_dim=6)
    weights, biases = ([getattr(module, name) for name in names] for names in (NAMES[:3], NAMES[3:]))
    x, context = X.astype(dtype).mT, CONTEXT.astype(dtype).mT
    result = module(x, context, need_weights=True)
    expected = Papers(dtype).columns(x, context, context, weights, biases, scale)
    assert_near(result.output, expected[0])
    assert_near(result.weights, expected[1])


def test_a_context_may_have_features_of_its_own(dtype):
    module = make(context_dim=6, dtype=dtype)
    x, context = X.astype(dtype), CONTEXT.astype(dtype)
    expected = Papers(dtype).rows(x, context, context, [module.w_query, module.w_key, module.w_value])
    assert_near(module(x, context), expected[0])
    assert_same_bits(module(x, context=context), module.forward(x, context))


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": np.random.default_rng(3).random((9, 9)) < 0.7},
        {"attn_mask": normal(2, 9, 9)},
        {"is_causal": True},
        {"window": (2, None), "need_weights": True},
        {"key_lengths": [4, 9]},
        {"attn_mask": np.tri(9, 9, -1, bool), "empty_rows": "nan"},
    ],
    ids=lambda options: ", ".join(options),
)
def test_options_are_those_of_the_function(options, columns):
    module = make(bias=True, convention="column" if columns else "row")
    x = X.mT if columns else X
    assert_same_bits(module(x, **options), function_of(module, x, **options))
    assert not np.array_equal(module(x), getattr(module(x, **options), "output", module(x, **options)))


def test_align_is_that_of_the_function():
    module = make(context_dim=6)
    for align in ("upper_left", "lower_right"):
        options = {"context": CONTEXT, "is_causal": True, "align": align}
        assert_same_bits(module(X, **options), function_of(module, X, **options))
    with pytest.raises(ValueError, match="is_causal=True with 9 queries and 13 keys needs align="):
        module(X, CONTEXT, is_causal=True)


# Parameters


@pytest.mark.parametrize("options", [{}, {"bias": True, "scale": 0.5, "convention": "column"}])
def test_a_trace_has_the_numbers_of_the_call(options):
    head = nn.SelfAttention(4, 3, 2, rng=0, **options)
    rows = np.random.default_rng(1).standard_normal((5, 4), dtype=np.float32)
    x = rows.T if head.convention == "column" else rows
    output, weights = head(x, need_weights=True, is_causal=True)
    trace = head.trace(x, is_causal=True, tokens=list("abcde"))
    np.testing.assert_allclose(trace.outputs, output, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trace.weights, weights, rtol=1e-5, atol=1e-6)
    assert list(trace.tokens) == list("abcde")


def test_parameters_are_those_of_the_article():
    sizes = {"w_query": (7, 5), "w_key": (6, 5), "w_value": (6, 3), "b_query": (5,), "b_key": (5,), "b_value": (3,)}
    module = nn.SelfAttention(7, 5, 3, True, context_dim=6)
    assert {name: array.shape for name, array in module.named_parameters()} == sizes
    assert list(module.state_dict()) == NAMES
    turned = nn.SelfAttention(7, 5, 3, True, context_dim=6, convention="column")
    assert [weight.shape for weight in turned.parameters()] == [shape[::-1] for shape in sizes.values()]
    assert list(nn.SelfAttention(7, 5).state_dict()) == NAMES[:3]
    assert nn.SelfAttention(7, 5).w_value.shape == (7, 5)
    assert pyattn.nn.SelfAttention is nn.SelfAttention


def test_the_repr_says_what_differs_from_the_usual():
    assert repr(nn.SelfAttention(4, 3)) == "SelfAttention(embed_dim=4, key_dim=3, v_dim=3, bias=False)"
    module = nn.SelfAttention(4, 3, 2, True, context_dim=5, scale=1, convention="column")
    sizes = "embed_dim=4, key_dim=3, v_dim=2, context_dim=5"
    assert repr(module) == f"SelfAttention({sizes}, bias=True, scale=1.0, convention=column)"


def test_the_first_weights_are_uniform_as_xavier_says(dtype):
    """Means of n numbers lie within 5 sigma, and no number beyond the bound, which some come close to."""
    module = nn.SelfAttention(400, 500, 300, True, context_dim=200, dtype=dtype, rng=0)
    for weight in (module.w_query, module.w_key, module.w_value):
        bound, n = math.sqrt(6 / sum(weight.shape)), weight.size
        assert np.abs(weight).max() <= np.asarray(bound, dtype)
        assert np.abs(weight).max() >= bound * (1 - 20 / n)  # fails with probability e^-20
        assert abs(weight.mean(dtype=np.float64)) <= 5 * bound / math.sqrt(3 * n)
        assert abs((weight.astype(np.float64) ** 2).mean() - bound**2 / 3) <= 5 * bound**2 * math.sqrt(4 / 45 / n)
    assert not any(bias.any() for bias in (module.b_query, module.b_key, module.b_value))


def test_the_first_weights_are_those_of_multi_head_attention():
    """Of one head with weights of its own for query, key and value."""
    mha = nn.MultiheadAttention(7, 1, head_dim=5, v_head_dim=3, rng=4)
    module = nn.SelfAttention(7, 5, 3, rng=4)
    for one, other in zip(module.parameters(), mha.parameters(), strict=False):
        assert_same_bits(one, other.T)


def test_rng_draws_the_same_in_both_conventions_and_dtypes():
    module = nn.SelfAttention(7, 5, 3, rng=4)
    turned = nn.SelfAttention(7, 5, 3, convention="column", dtype="float64", rng=np.random.default_rng(4))
    for one, other in zip(module.parameters(), turned.float().parameters(), strict=True):
        assert_same_bits(one, other.T)
    assert not np.array_equal(nn.SelfAttention(7, 5).w_key, nn.SelfAttention(7, 5).w_key)
    assert not np.isin(module.w_key, module.w_query).any()


def test_reset_parameters_draws_into_the_arrays_that_are_there():
    module, fresh = make(bias=True), nn.SelfAttention(7, 5, 3, True, dtype="float64", rng=2)
    arrays = list(module.parameters())
    module.reset_parameters(2)
    for array, now, expected in zip(arrays, module.parameters(), fresh.parameters(), strict=True):
        assert now is array
        assert_same_bits(now, expected)


# From arrays


def test_from_arrays_takes_the_arrays_themselves():
    for columns in (False, True):
        module = make(bias=True, context_dim=6, scale=0.5, convention="column" if columns else "row")
        other = nn.SelfAttention.from_arrays(
            **module.state_dict(), scale=0.5, convention="column" if columns else "row"
        )
        assert all(array is module.state_dict()[name] for name, array in other.state_dict().items())
        assert repr(other) == repr(module)
        inputs = [array.mT if columns else array for array in (X, CONTEXT)]
        assert_same_bits(other(*inputs), module(*inputs))


@pytest.mark.parametrize("name", NAMES[3:])
def test_one_bias_may_come_without_the_others(name):
    module = make(bias=True)
    other = nn.SelfAttention.from_arrays(*list(module.parameters())[:3], **{name: getattr(module, name)})
    for another in {*NAMES[3:]} - {name}:
        setattr(module, another, np.zeros_like(getattr(module, another)))
    assert list(other.state_dict()) == [*NAMES[:3], name]
    np.testing.assert_array_equal(other(X), module(X))
    assert "bias=True" in repr(other)


def test_weights_in_another_byte_order_and_any_strides():
    module = make()
    strange = [np.asfortranarray(array.astype(">f8")[::-1])[::-1] for array in module.parameters()]
    assert_same_bits(nn.SelfAttention.from_arrays(*strange)(X), module(X))


@pytest.mark.peers
def test_weights_keep_their_dtype_and_lists_take_it(torch):
    weights = [normal(5, 5).astype(np.float32) for _ in range(3)]
    expected, x = nn.SelfAttention.from_arrays(*weights), normal(2, 5).astype(np.float32)
    for given in (
        [torch.from_numpy(w) for w in weights],
        [w.astype(">f4") for w in weights],
        [weights[0].tolist(), weights[1], weights[2].tolist()],
    ):
        module = nn.SelfAttention.from_arrays(*given)
        assert module.w_query.dtype == np.float32
        assert_same_bits(module(x), expected(x))
    assert nn.SelfAttention.from_arrays(*[w.tolist() for w in weights]).w_query.dtype == np.float64


def arrays(**change):
    state = {"w_query": normal(7, 5), "w_key": normal(6, 5), "w_value": normal(6, 3), "b_value": normal(3), **change}
    return {name: array for name, array in state.items() if array is not None}


@for_each(
    ("change", "kind", "message"),
    [
        ({"w_query": [["a"]]}, TypeError, r"w_query holds text \(dtype <U1\)"),
        ({"w_key": [[1j]]}, TypeError, "w_key has dtype complex128"),
        ({"w_query": normal(7)}, ValueError, r"w_query has shape \(7,\), expected \(embed_dim, dim\)"),
        (
            {"w_query": normal(7), "convention": "column"},
            ValueError,
            r"w_query has shape \(7,\), expected \(dim, embed_dim\)",
        ),
        ({"w_key": normal(6, 4)}, ValueError, r"w_key has shape \(6, 4\), expected \(6, 5\)"),
        ({"w_value": normal(7, 3)}, ValueError, r"w_value has shape \(7, 3\), expected \(6, 3\)"),
        ({"b_query": normal(3)}, ValueError, r"b_query has shape \(3,\), expected \(5,\)"),
        ({"b_value": normal(1, 3)}, ValueError, r"b_value has shape \(1, 3\), expected \(3,\)"),
        ({"b_value": normal(3, dtype="f4")}, TypeError, "b_value has dtype float32, expected float64 as w_query"),
        ({"w_key": normal(6, 5, dtype="f4")}, TypeError, "w_key has dtype float32, expected float64 as w_query"),
        ({"scale": "1"}, TypeError, "scale is of type str, expected a number"),
    ],
)
def test_arrays_that_make_no_module_are_refused(change, kind, message):
    assert nn.SelfAttention.from_arrays(**arrays())(X, CONTEXT).shape == (2, 9, 3)
    with pytest.raises(kind, match=f"^{message}"):
        nn.SelfAttention.from_arrays(**arrays(**change))


# Weights stay honest


def written_routes():
    def index(module):
        module.w_query[3, 2] += 1

    def view(module):
        module.state_dict()["w_key"].T[1:4][0, ::2] -= 1

    def bias(module):
        module.b_value[1] = 5

    def assigned(module):
        module.w_value = module.w_value[::-1]

    def loaded(module):
        module.load_state_dict({key: array * 2 for key, array in module.state_dict().items()})

    def optimised(module):
        for array in module.parameters():
            array -= 0.1 * np.sign(array)

    return [index, view, bias, assigned, loaded, optimised]


@pytest.mark.parametrize("write", written_routes(), ids=lambda write: write.__name__)
def test_what_is_written_to_a_weight_counts_in_the_next_call(write):
    module = make(bias=True)
    before = module(X)
    write(module)
    after = module(X)
    assert not np.array_equal(after, before)
    assert_same_bits(after, nn.SelfAttention.from_arrays(**{k: v.copy() for k, v in module.state_dict().items()})(X))


@pytest.mark.parametrize("options", [{}, {"bias": True, "scale": 1, "convention": "column"}], ids=str)
def test_copies_are_equal_and_independent(options, tmp_path):
    module = make(**options)
    x = X.mT if module.convention == "column" else X
    expected = module(x)
    nn.save(module, tmp_path / "head.npz")
    loaded = nn.SelfAttention(7, 5, 3, **options, dtype="float64")
    loaded.load_state_dict(nn.load(tmp_path / "head.npz"))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), loaded):
        assert_same_bits(other(x), expected)
        for array in other.parameters():
            array[...] = 0
    assert_same_bits(module(x), expected)
    assert module.float()(x.astype("f4")).dtype == np.float32


def test_a_call_leaves_the_module_as_it_was():
    module = make(bias=True)
    before = dict(vars(module))
    module(X, is_causal=True, need_weights=True)
    assert vars(module) == before


# Bits


def test_a_batch_has_the_bits_of_its_entries_and_any_number_of_threads(dtype):
    module = make(64, 32, 48, dtype=dtype)
    x = normal(3, 150, 64, dtype=dtype)
    expected = module(x)
    before = pyattn.get_num_threads()
    try:
        for threads in (1, 2, 3):
            pyattn.set_num_threads(threads)
            for n in range(3):
                assert_same_bits(module(x[n]), expected[n])
    finally:
        pyattn.set_num_threads(before)


# Mistakes


@for_each(
    ("arguments", "kind", "message"),
    [
        ({"embed_dim": 2.0}, TypeError, "embed_dim is of type float, expected an int"),
        ({"key_dim": 0}, ValueError, "key_dim is 0, expected 1 or more"),
        ({"v_dim": -1}, ValueError, "v_dim is -1, expected 1 or more"),
        ({"context_dim": "6"}, TypeError, "context_dim is of type str, expected an int"),
        ({"scale": "1"}, TypeError, "scale is of type str, expected a number"),
        ({"scale": 1j}, TypeError, "scale is of type complex, expected a number"),
        ({"scale": math.nan}, ValueError, "scale is nan, expected a finite number"),
        ({"dtype": "int8"}, TypeError, "dtype is 'int8', expected float16, bfloat16, float32 or float64"),
        ({"bias": "no"}, TypeError, "^bias is of type str, expected True or False"),
        ({"convention": 1}, ValueError, "^convention is of type int; it must be 'row' or 'column'$"),
        ({"rng": "x"}, TypeError, "^rng is 'x', expected None, an int of 0 or more"),
        ({"rng": 1.5}, TypeError, "SeedSequence"),
    ],
)
def test_mistakes_in_the_constructor_are_named(arguments, kind, message):
    with pytest.raises(kind, match=message):
        nn.SelfAttention(**{"embed_dim": 7, "key_dim": 5, **arguments})


def test_a_scale_may_be_any_number():
    for scale in (2, np.float32(2), np.array(2.0), True + True):
        module = nn.SelfAttention(7, 5, scale=scale)
        assert type(module.scale) is float
        assert module.scale == 2
        assert list(module.state_dict()) == NAMES[:3]


@for_each(
    ("arguments", "kind", "message"),
    [
        (
            {"x": X.astype("f4")},
            TypeError,
            r"^x has dtype float32, expected float64 as the module's weights; pass x.astype\(numpy.float64\), "
            r"or make the module with dtype=numpy.float32$",
        ),
        ({"context": CONTEXT.astype("f4")}, TypeError, r"^context has dtype float32, expected float64"),
        ({"x": X[0, 0]}, ValueError, r"^x has shape \(7,\), expected \(..., length, embed_dim\)$"),
        (
            {"x": X[..., 1:]},
            ValueError,
            r"^x has shape \(2, 9, 6\) and w_query has shape \(7, 5\), expected x \(..., length, 7\) or ",
        ),
        (
            {"context": None},
            ValueError,
            r"^x has shape \(2, 9, 7\) and w_key has shape \(6, 5\), expected x \(..., length, 6\) or ",
        ),
        ({"context": CONTEXT[:1]}, ValueError, r"^context has the leading axes \(1,\), expected \(2,\)"),
        ({"attn_mask": np.ones((9, 13), int)}, TypeError, "attn_mask has dtype int64"),
        ({"attn_mask": np.ones((13, 9), bool)}, ValueError, r"attn_mask has shape \(13, 9\)"),
        ({"empty_rows": "inf"}, ValueError, "empty_rows is 'inf'"),
    ],
)
def test_mistakes_in_a_call_are_named(arguments, kind, message):
    module = make(context_dim=6)
    with pytest.raises(kind, match=message):
        module(**{"x": X, "context": CONTEXT, **arguments})


def test_a_parameter_that_was_assigned_and_does_not_fit_is_named():
    module = make(bias=True)
    module.b_key = normal(3)
    with pytest.raises(ValueError, match=r"^bias\[1\] has shape \(3,\), expected \(5,\): w_key gives 5 features$"):
        module(X)
    module = make()
    module.w_value = normal(6, 3)
    with pytest.raises(ValueError, match=r"^x has shape \(2, 9, 7\) and w_value has shape \(6, 3\), expected x "):
        module(X)

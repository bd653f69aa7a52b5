"""Weights for each head, as papers write them: to the papers' formula, there and back, and mistakes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.halves import HALVES
from support.helpers import assert_same_bits, for_each
from support.papers import Papers, assert_near

import pyattn
from pyattn import nn

D_X, D_K, D_V, D_OUT, HEADS = 7, 5, 3, 9, 4
SWAPPED = "; if its axes are the other way round, pass w_out.T"
PACKED = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
SEPARATE = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]


def draw(
    *, embed_dim=D_X, d_k=D_K, d_v=D_V, d_out=D_OUT, kdim=None, vdim=None, heads=HEADS, kv_heads=None, dtype="float64"
):
    """What from_heads is given, in its order and the row convention; small, so that a query attends to many keys."""
    rng, kv_heads = np.random.default_rng(0), kv_heads or heads

    def some(*shape):
        return (rng.standard_normal(shape) / 2).astype(dtype)

    weights = [(heads, embed_dim, d_k), (kv_heads, kdim or embed_dim, d_k), (kv_heads, vdim or embed_dim, d_v)]
    biases = [(count, dim) for count, _, dim in weights]
    given = [[some(*shape[1:]) for _ in range(shape[0])] for shape in weights]
    return [*given, some(heads * d_v, d_out), *([some(n) for _ in range(count)] for count, n in biases), some(d_out)]


def turned(given):
    """The same in the column convention."""
    return [*([w.T for w in matrices] for matrices in given[:3]), given[3].T, *given[4:]]


def inputs_of(given, dtype="float64", *, q_len=6, kv_len=8):
    """query, key and value: an input per row, batch first."""
    rng = np.random.default_rng(1)
    lengths = zip((q_len, kv_len, kv_len), given[:3], strict=True)
    return [rng.standard_normal((2, n, matrices[0].shape[0])).astype(dtype) for n, matrices in lengths]


def flat(heads):
    """All arrays of a Heads, or of what from_heads is given."""
    return [array for part in heads for array in (part if isinstance(part, list) else [part]) if array is not None]


# The papers' formula

SIZES = [
    {},
    {"heads": 1},
    {"kv_heads": 2},
    {"kv_heads": 1, "heads": 3},
    {"kdim": 6, "vdim": 8},
    {"embed_dim": 8, "d_k": 2, "d_v": 2, "d_out": 8},
    {"embed_dim": 8, "d_k": 2, "d_v": 2, "d_out": 8, "kdim": 3},
]


@for_each("biases", [False, True])
@for_each("sizes", SIZES)
def test_rows_equal_the_papers_formula(sizes, biases, dtype, level):
    given = draw(**sizes, dtype=dtype)
    inputs = inputs_of(given, dtype)
    given = given if biases else [*given[:4], None, None, None, None]
    output, weights = nn.from_heads(*given, batch_first=True)(*inputs, average_attn_weights=False)
    expected, by_head = Papers(dtype).multi_head(inputs, given)
    assert output.dtype == dtype
    assert_near(output, expected)
    for n, one in enumerate(by_head):
        assert_near(weights[:, n], one)


@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_columns_equal_the_papers_formula(sizes, biases, dtype):
    given = draw(**sizes, dtype=dtype)
    inputs = inputs_of(given, dtype)
    given = turned(given if biases else [*given[:4], None, None, None, None])
    output, weights = nn.from_heads(*given, convention="column", batch_first=True)(*inputs, average_attn_weights=False)
    expected, by_head = Papers(dtype).multi_head([x.mT for x in inputs], given, columns=True)
    assert_near(output, expected.turned())
    for n, one in enumerate(by_head):
        assert_near(weights[:, n], one.turned())


@pytest.mark.parametrize("kind", HALVES)
def test_halves_stay(kind):
    given = [
        x.astype(HALVES[kind]) if isinstance(x, np.ndarray) else [one.astype(HALVES[kind]) for one in x]
        for x in draw(embed_dim=8, d_k=2, d_v=2, d_out=8)
    ]
    given[4][0] = None  # a bias of zeros, which does not widen the others
    module = nn.from_heads(*given)
    assert module.dtype == HALVES[kind]
    assert_same_bits(module.in_proj_weight[:2].view(np.uint16), given[0][0].T.view(np.uint16))
    other = given[0][0].astype(HALVES["float16" if kind == "bfloat16" else "bfloat16"])
    with pytest.raises(TypeError, match=r"w_query has dtype .*float16 and w_value .*float16; convert one of them"):
        nn.from_heads(*given[:2], [other] * 4, *given[3:])


def test_both_conventions_give_one_module():
    given = draw(kv_heads=2, kdim=6)
    rows, columns = nn.from_heads(*given), nn.from_heads(*turned(given), convention="column")
    for name, array in rows.state_dict().items():
        assert_same_bits(columns.state_dict()[name], array)
        assert array.flags.c_contiguous
        assert columns.state_dict()[name].flags.c_contiguous
    assert repr(rows) == repr(columns)


def test_one_head_without_an_output_is_self_attention():
    given = [[w[0]] for w in draw()[:3]]
    x = inputs_of(given)[0]
    mha = nn.from_heads(*given, np.eye(D_V), batch_first=True)
    np.testing.assert_array_equal(mha(x, x, x)[0], nn.SelfAttention.from_arrays(*(w for (w,) in given))(x))


def test_heads_without_biases_make_a_module_without():
    given = draw()[:4]
    module = nn.from_heads(*nn.Heads(*given))
    assert module.in_proj_bias is module.out_proj.bias is None
    assert module.state_dict().keys() == nn.from_heads(*given).state_dict().keys()


# What module there comes


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_are_those_of_the_arrays(sizes):
    given = draw(**sizes)
    module = nn.from_heads(*given)
    (embed_dim, d_k), (kdim, _), (vdim, d_v) = (matrices[0].shape for matrices in given[:3])
    assert (module.embed_dim, module.kdim, module.vdim, module.out_dim) == (embed_dim, kdim, vdim, given[3].shape[1])
    assert (module.num_heads, module.head_dim, module.v_head_dim) == (len(given[0]), d_k, d_v)
    assert module.num_kv_heads == len(given[1])
    options = {"kdim": kdim, "vdim": vdim, "head_dim": d_k, "v_head_dim": d_v, "num_kv_heads": len(given[1])}
    made = nn.MultiheadAttention(embed_dim, len(given[0]), **options, out_dim=module.out_dim, dtype="float64")
    assert {name: array.shape for name, array in module.state_dict().items()} == {
        name: array.shape for name, array in made.state_dict().items()
    }
    assert repr(module) == repr(made)


def test_torchs_sizes_give_torchs_state_and_others_separate_weights():
    usual = {"embed_dim": 8, "d_k": 2, "d_v": 2, "d_out": 8}
    assert list(nn.from_heads(*draw(**usual)).state_dict()) == PACKED
    for change in ({"embed_dim": 9}, {"d_k": 3}, {"d_v": 3}, {"d_out": 7}, {"kdim": 7}, {"vdim": 7}, {"kv_heads": 2}):
        assert list(nn.from_heads(*draw(**{**usual, **change})).state_dict()) == SEPARATE


@pytest.mark.peers
def test_heads_go_to_torch_and_come_back(torch):
    given = draw(embed_dim=8, d_k=2, d_v=2, d_out=8)
    theirs = pyattn.interop.torch.to_torch(nn.from_heads(*given, batch_first=True)).eval()
    inputs = inputs_of(given)
    with torch.no_grad():
        output, weights = theirs(*map(torch.from_numpy, inputs), average_attn_weights=False)
    expected, by_head = Papers("float64").multi_head(inputs, given)
    assert_near(output.numpy(), expected)
    for n, one in enumerate(by_head):
        assert_near(weights[:, n].numpy(), one)
    for one, other in zip(flat(nn.to_heads(pyattn.interop.torch.from_torch(theirs))), flat(given), strict=True):
        assert_same_bits(one, other)


def test_options_are_the_modules():
    module = nn.from_heads(*draw(), dropout=0.25, add_zero_attn=True, batch_first=True)
    assert (module.dropout, module.add_zero_attn, module.batch_first) == (0.25, True, True)
    usual = nn.from_heads(*draw())
    assert (usual.dropout, usual.add_zero_attn, usual.batch_first) == (0, False, False)


def test_what_is_given_is_copied():
    given = draw(heads=1)
    module = nn.from_heads(*given)
    before = {name: array.copy() for name, array in module.state_dict().items()}
    for array in flat(given):
        array[...] = 0
    for name, array in module.state_dict().items():
        assert_same_bits(array, before[name])


def test_a_bias_that_is_left_out_is_zero():
    given = draw()
    for n in range(4, 8):
        alone = [*given[:4], *([None] * 4)]
        alone[n] = given[n]
        filled = [*given[:4], *([np.zeros_like(b) for b in bias] for bias in given[4:7]), np.zeros_like(given[7])]
        filled[n] = given[n]
        for one, other in zip(flat(nn.to_heads(nn.from_heads(*alone))), flat(filled), strict=True):
            assert_same_bits(one, other)
    given[5][2] = None
    assert not nn.to_heads(nn.from_heads(*given)).b_key[2].any()
    assert nn.to_heads(nn.from_heads(*given)).b_key[3].all()
    assert list(nn.from_heads(*given[:4]).state_dict()) == [*SEPARATE[:3], "out_proj.weight"]


def test_arrays_of_all_heads_iterators_lists_and_integers():
    given = draw(dtype="float32")
    expected = nn.from_heads(*given)
    for convert in (np.stack, iter, tuple):
        module = nn.from_heads(*map(convert, given[:3]), given[3], *map(convert, given[4:7]), given[7])
        for one, other in zip(module.parameters(), expected.parameters(), strict=True):
            assert_same_bits(one, other)
    ones = [[[1, 0], [2, 1]]]
    assert nn.from_heads(ones, ones, ones, [[1, 2], [3, 4]]).in_proj_weight.tolist() == [[1, 2], [0, 1]] * 3
    assert nn.from_heads(ones, ones, ones, [[1, 2], [3, 4]]).dtype == np.float64


def test_the_widest_dtype_is_taken():
    given = draw(dtype="float32")
    assert nn.from_heads(*given).dtype == np.float32
    assert nn.from_heads(*given[:7]).dtype == np.float32  # of zeros for b_out, too
    given[1][2] = given[1][2].astype(">f8")
    wide = nn.from_heads(*given)
    assert wide.dtype == np.float64
    assert wide.k_proj_weight.dtype.isnative
    for one, other in zip(flat(nn.to_heads(wide)), flat(given), strict=True):
        assert_same_bits(one, other.astype(np.float64))


# And back


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("biases", [False, True], ids=["", "biases"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_what_is_given_comes_back_bit_by_bit(sizes, biases, columns, dtype):
    given = draw(**sizes, dtype=dtype)
    given = given if biases else [*given[:4], None, None, None, None]
    given = turned(given) if columns else given
    heads = nn.to_heads(
        nn.from_heads(*given, convention="column" if columns else "row"), "column" if columns else "row"
    )
    for one, other in zip(heads, given, strict=True):
        assert (one is None) == (other is None)
        assert not isinstance(other, list) or len(one) == len(other)
    for one, other in zip(flat(heads), flat(given), strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("options", [{}, {"bias": False, "num_kv_heads": 1, "v_head_dim": 3, "kdim": 5}], ids=str)
def test_a_module_comes_back_bit_by_bit(options, dtype):
    module = nn.MultiheadAttention(8, 2, **options, dtype=dtype, rng=0)
    for columns in (False, True):
        again = nn.from_heads(
            *nn.to_heads(module, "column" if columns else "row"), convention="column" if columns else "row"
        )
        assert repr(again) == repr(module)
        for name, array in module.state_dict().items():
            assert_same_bits(again.state_dict()[name], array, name)


@pytest.mark.parametrize("sizes", [{}, {"embed_dim": 8, "d_k": 2, "d_v": 2, "d_out": 8}], ids=["separate", "packed"])
def test_what_is_written_to_a_head_counts_in_the_next_call(sizes):
    given = draw(**sizes)
    module, inputs = nn.from_heads(*given, batch_first=True), inputs_of(given)
    for columns in (False, True):
        heads = nn.to_heads(module, "column" if columns else "row")
        for array in flat(heads):
            before = module(*inputs)[0]
            array += 0.25
            changed = not np.array_equal(module(*inputs)[0], before)
            # A bias of keys adds one number to all scores of a row.
            assert changed or any(array is bias for bias in heads.b_key)
        for one, other in zip(flat(nn.to_heads(module)), flat(given), strict=True):
            assert np.abs(one - other - (0.5 if columns else 0.25)).max() < 1e-12


# Mistakes


def replaced(part, entry, array):
    """What from_heads is given, with one array another; entry None replaces all of the part."""
    given = draw(kdim=6)
    names = ("w_query", "w_key", "w_value", "w_out", "b_query", "b_key", "b_value", "b_out")
    arguments = dict(zip(names, given, strict=True))
    if entry is None:
        arguments[part] = array
    else:
        arguments[part][entry] = array
    return arguments


def zeros(*shape):
    return np.zeros(shape)


@for_each(
    ("part", "entry", "array", "message"),
    [
        ("w_query", 0, zeros(7), r"w_query[0] has shape (7,), expected (embed_dim, dim), a matrix for each head"),
        (
            "w_query",
            3,
            zeros(4, 7, 5),
            r"w_query[3] has shape (4, 7, 5), expected (embed_dim, dim), a matrix for each head",
        ),
        ("w_query", 2, zeros(7, 0), r"w_query[2] has shape (7, 0), expected (embed_dim, dim), a matrix for each head"),
        ("w_query", 2, zeros(5, 7), "w_query[2] has shape (5, 7), expected (7, 5) as w_query[0]"),
        ("w_key", 1, zeros(7, 5), "w_key[1] has shape (7, 5), expected (6, 5) as w_key[0]"),
        ("w_key", None, zeros(4, 6, 3), "w_key[0] has shape (6, 3), expected (6, 5): w_query[0] has shape (7, 5)"),
        ("w_value", 3, zeros(7, 4), "w_value[3] has shape (7, 4), expected (7, 3) as w_value[0]"),
        ("w_query", None, [], "w_query is empty, expected a matrix for each head"),
        ("w_query", None, zeros(7, 5), "w_query[0] has shape (5,), expected (embed_dim, dim), a matrix for each head"),
        ("w_key", None, zeros(3, 6, 5), "w_key has 3 entries, expected 4 as w_query, or a divisor of that"),
        ("w_key", None, zeros(8, 6, 5), "w_key has 8 entries, expected 4 as w_query, or a divisor of that"),
        ("w_value", None, zeros(2, 7, 3), "w_value has 2 entries, expected 4 as w_key"),
        ("w_out", None, zeros(9, 12), f"w_out has shape (9, 12), expected (12, d_out): 4 heads with d_v = 3{SWAPPED}"),
        (
            "w_out",
            None,
            zeros(4, 3, 9),
            "w_out has shape (4, 3, 9), expected (12, d_out): 4 heads with d_v = 3",
        ),
        (
            "w_out",
            None,
            zeros(2, 12, 9),
            "w_out has shape (2, 12, 9), expected (12, d_out): 4 heads with d_v = 3",
        ),
        ("w_out", None, zeros(12, 0), "w_out has shape (12, 0), expected (12, d_out): 4 heads with d_v = 3"),
        ("b_query", 1, zeros(3), "b_query[1] has shape (3,), expected (5,): w_query[1] gives 5 features"),
        ("b_key", 3, zeros(5, 1), "b_key[3] has shape (5, 1), expected (5,): w_key[3] gives 5 features"),
        ("b_value", None, zeros(3, 3), "b_value has 3 entries, expected 4 as w_value"),
        ("b_value", None, zeros(12), "b_value has 12 entries, expected 4 as w_value"),
        ("b_out", None, zeros(12), "b_out has shape (12,), expected (9,): w_out gives 9 features"),
    ],
)
def test_a_shape_that_does_not_fit_names_the_argument_and_the_head(part, entry, array, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (compared below)
        nn.from_heads(**replaced(part, entry, array))
    assert str(caught.value) == message


@for_each(
    ("part", "entry", "array", "message"),
    [
        ("w_query", 1, zeros(7, 5), "w_query[1] has shape (7, 5), expected (5, 7) as w_query[0]"),
        ("w_value", 0, zeros(3), "w_value[0] has shape (3,), expected (dim, embed_dim), a matrix for each head"),
        ("w_key", None, zeros(4, 3, 6), "w_key[0] has shape (3, 6), expected (5, 6): w_query[0] has shape (5, 7)"),
        ("w_out", None, zeros(12, 9), f"w_out has shape (12, 9), expected (d_out, 12): 4 heads with d_v = 3{SWAPPED}"),
    ],
)
def test_messages_tell_shapes_as_they_are_written(part, entry, array, message):
    given = dict(zip(("w_query", "w_key", "w_value", "w_out"), turned(draw(kdim=6)), strict=False))
    if entry is None:
        given[part] = array
    else:
        given[part][entry] = array
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (compared below)
        nn.from_heads(**given, convention="column")
    assert str(caught.value) == message


def test_weights_of_the_other_convention_are_told():
    for columns in (False, True):
        given = draw() if columns else turned(draw())
        with pytest.raises(
            ValueError, match=f"; convention='{'row' if columns else 'column'}' reads all matrices transposed$"
        ):
            nn.from_heads(*given, convention="column" if columns else "row")
        nn.from_heads(*given, convention="row" if columns else "column")


@for_each(
    ("part", "entry", "array", "message"),
    [
        ("w_query", None, None, "w_query is of type NoneType, expected a sequence of arrays, one for each head"),
        ("w_key", None, 3.0, "w_key is of type float, expected a sequence of arrays, one for each head"),
        ("b_value", None, 0, "b_value is of type int, expected a sequence of arrays, one for each head"),
        ("w_value", 2, None, "w_value[2] is an object of type NoneType"),
        ("w_key", 1, zeros(6, 5) * 1j, "w_key[1] has dtype complex128"),
        ("w_query", 0, np.ma.ones((7, 5)), "w_query[0] is a masked array"),
        ("b_key", 1, "text", "b_key[1] is a string"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(part, entry, array, message):
    with pytest.raises(TypeError) as caught:
        nn.from_heads(**replaced(part, entry, array))
    assert str(caught.value).startswith(message)


def test_modules_without_a_papers_heads_are_refused():
    with pytest.raises(ValueError, match=r"^module has bias_k and bias_v, which to_heads does not support; read them"):
        nn.to_heads(nn.MultiheadAttention(8, 2, add_bias_kv=True))
    with pytest.raises(TypeError, match=r"^module is of type pyattn.nn.linear.Linear, expected a pyattn.nn.Multihead"):
        nn.to_heads(nn.Linear(8, 2))
    with pytest.raises(ValueError, match="dropout is nan"):
        nn.from_heads(*draw(), dropout=math.nan)

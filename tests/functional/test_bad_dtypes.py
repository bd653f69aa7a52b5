"""Arrays of dtypes and kinds that are refused: the message says what to pass instead, and that can be passed."""

from __future__ import annotations

import re
import warnings
from collections import UserList, deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from support.helpers import for_each
from support.refusing import BATCH, KEY, QUERY, VALUE, refuse, zeros

import pyattn

REALS = "float16, bfloat16, float32 or float64"

# Dtypes


@for_each(
    ("dtype", "fix"),
    [
        ("complex64", ".real.astype(numpy.float32)"),
        ("complex128", ".real.astype(numpy.float64)"),
        ("longdouble", ".astype(numpy.float64)"),
        ("object", ".astype(numpy.float64)"),
        ("datetime64[s]", ".astype(numpy.float32)"),
        ("timedelta64[s]", ".astype(numpy.float32)"),
        ("f4,f4", ".astype(numpy.float32)"),
        ("V2", ".view(ml_dtypes.bfloat16)"),
    ],
)
@for_each("place", [0, 1, 2])
def test_dtypes_that_are_no_numbers(dtype, fix, place):
    arrays = [QUERY, KEY, VALUE]
    arrays[place] = np.zeros(arrays[place].shape, dtype)
    name = ("query", "key", "value")[place]
    refuse(TypeError, f"{name} has dtype {arrays[place].dtype}, expected {REALS}; pass {name}{fix}", *arrays)


@for_each("dtype", ["U3", "S3", np.dtypes.StringDType()])
@for_each("place", [0, 1, 2])
def test_text_must_become_numbers_first(dtype, place):
    arrays = [QUERY, KEY, VALUE]
    arrays[place] = np.zeros(arrays[place].shape, dtype)
    name = ("query", "key", "value")[place]
    refuse(TypeError, f"{name} holds text (dtype {arrays[place].dtype}): turn it into numbers first", *arrays)
    refuse(TypeError, f"{name} holds text", *[array.tolist() for array in arrays])


def test_a_string_is_not_an_array():
    refuse(
        TypeError, "query is a string: pass an array of numbers; for a file's name, numpy.load(query)", "q", KEY, KEY
    )


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8", ">i4"])
def test_an_integer_mask_has_two_meanings(dtype):
    message = (
        f"attn_mask has dtype {np.dtype(dtype)}; pass attn_mask.astype(bool) if nonzero means attend, or "
        "attn_mask.astype(numpy.float32) if it is to be added to the scores"
    )
    refuse(TypeError, message, attn_mask=np.ones((3, 5), dtype))
    message = (
        "attn_mask has dtype int64; pass numpy.asarray(attn_mask, bool) if nonzero means attend, or "
        "numpy.asarray(attn_mask, numpy.float32) if it is to be added to the scores"
    )
    refuse(TypeError, message, attn_mask=[[1] * 5] * 3)


@for_each("dtype", ["complex64", "complex128", "longdouble", "U3"])
@pytest.mark.parametrize("make", [lambda x: x, list, lambda x: tuple(map(list, x))], ids=["array", "list", "tuple"])
def test_the_cast_that_a_message_offers_can_be_called(make, dtype):
    """A list has no astype."""
    query = np.ones((3, 4)).astype(dtype)
    query = make(query)
    problem = "holds text (" if dtype == "U3" else f"has dtype {np.dtype(dtype)}, expected {REALS}; pass "
    message = refuse(TypeError, f"query {problem}", query, KEY, VALUE)
    fixed = eval(message.partition("pass ")[2], {"numpy": np, "query": query})
    np.testing.assert_array_equal(pyattn.attention(fixed, KEY, VALUE), pyattn.attention(QUERY + 1, KEY, VALUE))


@pytest.mark.parametrize("dtype", ["complex64", "U1", "datetime64[s]", "object"])
def test_other_masks(dtype):
    message = (
        f"attn_mask has dtype {np.dtype(dtype)}, expected bool (True = attend) or a float type (added to the scores); "
        "pass numpy.asarray(attn_mask, bool) or numpy.asarray(attn_mask, numpy.float32)"
    )
    refuse(TypeError, message, attn_mask=np.ones((3, 5)).astype(dtype))


@pytest.mark.parametrize(
    ("given", "came"),
    [(given, f"is an object of type {type(given).__name__}") for given in (None, {}, object(), Ellipsis, print)]
    + [
        ([[None]], "holds an object of type NoneType"),
        ([["a", None]], "holds an object of type str"),
        ([[1.0, 2**64, print, Fraction(1, 2)]], "holds an object of type builtin_function_or_method"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_objects_that_are_no_arrays(given, came):
    message = f"{came}, expected an array of numbers"
    refuse(TypeError, f"query {message}", given, KEY, VALUE)
    refuse(TypeError, f"value {message}", QUERY, KEY, given)
    if given is not None:
        refuse(TypeError, f"attn_mask {message}", attn_mask=given)
        refuse(TypeError, f"key_lengths {message}", *BATCH, key_lengths=given)


@pytest.mark.parametrize("make", [list, tuple, lambda numbers: deque([tuple(numbers)])], ids=["list", "tuple", "deque"])
@pytest.mark.parametrize(
    ("numbers", "came"),
    [
        ([1, 2**64], "an int of more than 64 bits"),
        ([True, 0.5, -(2**70)], "an int of more than 64 bits"),
        ([np.float32(1), np.int64(2), np.True_, 2**64], "an int of more than 64 bits"),
        ([1, 2.5, Fraction(1, 3)], "an object of type Fraction"),
        ([Decimal("0.1"), 2**64], "an object of type decimal.Decimal"),
    ],
    ids=str,
)
def test_numbers_that_numpy_keeps_as_objects_can_be_cast(numbers, came, make):
    x = make(numbers)
    message = f"x holds {came}, expected {REALS}; pass numpy.asarray(x, numpy.float64)"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        pyattn.softmax(x)
    fixed = eval(message.partition("pass ")[2], {"numpy": np, "x": x})
    np.testing.assert_array_equal(pyattn.softmax(fixed).ravel(), pyattn.softmax([float(number) for number in numbers]))
    refuse(TypeError, "attn_mask has dtype object, expected bool (True = attend) or a float type", attn_mask=x)
    if any(isinstance(number, int) and abs(number) >= 2**63 for number in numbers):
        refuse(ValueError, "key_lengths holds an int that is too large for int64", *BATCH, key_lengths=x)
    else:
        refuse(TypeError, "key_lengths has dtype object, expected integers; pass", *BATCH, key_lengths=x)


@for_each("kind", [list, tuple])
def test_rows_of_different_lengths_are_named(kind):
    ragged = kind([kind([1, 2]), kind([3])])
    fix = "has rows of different lengths; pad them to one length .attention takes key_lengths."
    for name, arguments in {"key": (ragged, VALUE), "value": (KEY, ragged)}.items():
        with pytest.raises(ValueError, match=f"^{name} {fix}$") as caught:
            pyattn.attention(QUERY, *arguments)
        assert "inhomogeneous" in str(caught.value.__cause__)
    with pytest.raises(ValueError, match=f"^attn_mask {fix}$"):
        pyattn.attention(QUERY, KEY, VALUE, attn_mask=ragged)


def test_a_list_that_is_too_deep_has_rows_of_one_length():
    deep = []
    deep.append(deep)
    with pytest.raises(ValueError, match=r"^query is not an array of numbers: "):
        pyattn.attention(deep, KEY, VALUE)


# Arrays with another meaning


def test_masked_arrays_would_lose_their_mask():
    masked = np.ma.array(QUERY, mask=QUERY > 1)
    filled = "is a masked array, whose mask would be lost; pass {}.filled(0), or with another value than 0"
    refuse(TypeError, "query " + filled.format("query"), masked, KEY, VALUE)
    refuse(TypeError, "attn_mask " + filled.format("attn_mask"), attn_mask=np.ma.array(np.ones((3, 5), bool)))
    refuse(TypeError, "key_lengths " + filled.format("key_lengths"), *BATCH, key_lengths=np.ma.array([1, 2]))
    with pytest.raises(TypeError, match=re.escape("x " + filled.format("x"))):
        pyattn.softmax(masked)
    with pytest.raises(TypeError, match=re.escape("lses[0] " + filled.format("lses[0]"))):
        pyattn.merge_states([QUERY], [masked[:, 0]])


@pytest.mark.parametrize("name", ["key", "value"])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
def test_the_fix_for_masked_keys_and_values_leaves_them_out(name, batch):
    """As each batch entry without its masked rows gives."""
    rng = np.random.default_rng(0)
    given = {
        "query": rng.random((*batch, 4, 3)),
        "key": rng.random((*batch, 9, 3)),
        "value": rng.random((*batch, 9, 2)),
    }
    rows = rng.random((*batch, 9)) < 0.5
    rows[..., 0] = False
    places = np.repeat(rows[..., np.newaxis], given[name].shape[-1], axis=-1)
    places[..., 1] = False  # a row with a masked part cannot be attended to
    masked = {**given, name: np.ma.array(given[name], mask=places)}
    message = refuse(
        TypeError, f"{name} is a masked array, whose mask would be lost; pass {name}.filled(0)", *masked.values()
    )
    mask = eval(re.search(r"attn_mask=(.*)$", message)[1], {"numpy": np}, masked)
    result = pyattn.attention(*({**masked, name: masked[name].filled(0)}).values(), attn_mask=mask)
    for entry in np.ndindex(batch):
        query, key, value = (np.asarray(array)[entry] for array in given.values())
        kept = ~rows[entry]
        if name == "value":
            value = masked["value"].filled(0)[entry]
        np.testing.assert_allclose(result[entry], pyattn.attention(query, key[kept], value[kept]), rtol=1e-12)


MASKED = np.ma.array(QUERY[0], mask=[1, 0, 0, 0])


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda x: [x, x], "[0]"),
        (lambda x: [QUERY[0], x], "[1]"),
        (lambda x: (QUERY[0], x), "[1]"),
        (lambda x: [[1.0, 2.0, 3.0, 4.0], [5, 6, 7, 8], x], "[2]"),
        (lambda x: [[QUERY[0], QUERY[1]], [QUERY[0], x]], "[1][1]"),
        (lambda x: type("Rows", (list,), {})([x]), "[0]"),
        (lambda x: deque([QUERY[0], x]), "[1]"),
        (lambda x: [UserList([QUERY[0]]), UserList([x])], "[1][0]"),
        (lambda x: [[*QUERY[0], x[0]]], "[0][4]"),
    ],
)
@pytest.mark.parametrize("call", [pyattn.softmax, lambda x: pyattn.attention(x, KEY, VALUE)], ids=["x", "query"])
def test_lists_of_masked_arrays_would_lose_their_masks(make, place, call):
    name = "x" if call is pyattn.softmax else "query"
    with pytest.raises(
        TypeError, match=f"^{re.escape(name + place)} is a masked array, whose mask would be lost; pass"
    ):
        call(make(MASKED))
    if place != "[0][4]":
        with pytest.raises(TypeError, match=f"^{re.escape(name + place)} is a numpy.matrix"):
            call(make(np.asmatrix(QUERY[0])))


def test_masks_and_lengths_in_lists_too():
    refuse(TypeError, "attn_mask[1] is a masked array", attn_mask=[[0.0] * 5, np.ma.array([0.0] * 5), [0.0] * 5])
    refuse(TypeError, "key_lengths[1] is a masked array", *BATCH, key_lengths=[1, np.ma.array(2)])
    refuse(TypeError, "key[0] is a masked array", QUERY, [np.ma.array(KEY[0])] * 5, VALUE)


def test_an_object_that_turns_into_a_masked_array_would_lose_its_mask():
    class Convertible:
        def __array__(self, dtype=None, copy=None):
            return np.ma.array(QUERY, mask=QUERY > 1)

    message = refuse(TypeError, "numpy.asanyarray(query) is a masked array", Convertible(), KEY, VALUE)
    fix = re.search(r"pass (.*)\.filled", message)[1]
    pyattn.attention(eval(fix, {"numpy": np, "query": Convertible()}).filled(0), KEY, VALUE)


def test_a_sequence_that_fails_is_told_as_numpy_tells_it():
    class Rows:
        def __init__(self, error):
            self.error = error

        def __len__(self):
            return 3

        def __getitem__(self, n):
            raise self.error

    for error, kind, message in [
        (ValueError("no row"), ValueError, "query is not an array of numbers: no row"),
        (OSError("no row"), OSError, "no row"),
        (KeyError("no row"), TypeError, "query is an object of type Rows, expected an array of numbers"),
    ]:
        refuse(kind, message, Rows(error), KEY, VALUE)


def test_items_without_an_end_are_not_asked_for():
    class Endless:
        def __getitem__(self, index):
            return 1.0

    refuse(TypeError, "query is an object of type Endless, expected an array of numbers", Endless(), KEY, VALUE)


def test_lists_of_plain_arrays_are_arrays():
    class Named(np.ndarray):
        pass

    expected = pyattn.attention(QUERY, KEY, VALUE)
    for rows in (list(KEY), [tuple(row) for row in KEY.tolist()], [row.view(Named) for row in KEY], deque(KEY)):
        np.testing.assert_array_equal(pyattn.attention(QUERY, rows, VALUE), expected)
    assert pyattn.attention(list(QUERY), list(KEY), list(VALUE)).dtype == np.float32


def test_matrices_multiply_otherwise():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.matrix(KEY)
    message = "key is a numpy.matrix, which changes the meaning of *; pass numpy.asarray(key)"
    refuse(TypeError, message, QUERY, matrix, VALUE)


def test_sparse_arrays_are_made_dense_by_their_owner():
    class Sparse:
        shape, dtype = (5, 2), np.dtype("float32")

        def toarray(self):
            return VALUE

    refuse(TypeError, "value is a sparse array; pass value.toarray()", QUERY, KEY, Sparse())
    pyattn.attention(QUERY, KEY, Sparse().toarray())


@pytest.mark.parametrize("make", [lambda: np.ma.array(QUERY), lambda: np.asmatrix(QUERY)], ids=["masked", "matrix"])
@pytest.mark.parametrize(
    "call",
    [
        lambda x: pyattn.scaled_dot_product_attention(x, KEY, VALUE),
        lambda x: pyattn.scaled_dot_product_attention(QUERY, zeros(4, 4), zeros(4, 4), attn_mask=x),
        pyattn.softmax,
        pyattn.functional.log_softmax,
        lambda x: pyattn.merge_states([x], [QUERY[:, 0]]),
        pyattn.masks.from_array,
    ],
    ids=["query", "mask", "softmax", "log_softmax", "merge_states", "from_array"],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_no_function_loses_a_meaning(call, make):
    given = make()
    with pytest.raises(TypeError, match=r"masked array|numpy\.matrix"):
        call(given)

"""The rules on a trace's arguments. Arrays come out as float64, an input per row, and as copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, SupportsFloat, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.reference as reference
from pyattn._util.arguments import as_finite, as_index
from pyattn.tracing.data import Convention, Settings
from pyattn.tracing.scoring import NORMALISERS, SCORES, Normaliser, Score

__all__ = [
    "Align",
    "ScoreFunction",
    "check_choice",
    "check_key_dim",
    "hiding_of",
    "is_column",
    "names_of",
    "read_given",
    "read_matrix",
    "read_real",
    "settings_of",
]

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Align = Literal["upper_left", "lower_right"]
_MOST_DECIMALS = 15  # a double has no more


class ScoreFunction(NamedTuple):
    """The arguments score, score_weight and scale, as the caller gave them."""

    score: Score
    score_weight: npt.ArrayLike | None
    scale: SupportsFloat | None


def is_column(convention: Convention) -> bool:
    """Check the convention.

    Parameters
    ----------
    convention : {'row', 'column'}
        As the caller gave it.

    Returns
    -------
    bool
        Whether inputs are columns.

    Raises
    ------
    ValueError
        It is something else.
    """
    check_choice(convention, "convention", get_args(Convention))
    return convention == "column"


def check_choice(given: str, name: str, choices: Sequence[str]) -> None:
    """Check an argument that has a few values.

    Parameters
    ----------
    given : str
        As the caller gave it.
    name : str
        What messages call it.
    choices : sequence of str
        Two at least.

    Raises
    ------
    ValueError
        It is none of them.
    """
    if not isinstance(given, str) or given not in choices:  # an array is not compared
        raise ValueError(f"{name} is {given!r}, expected {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")


def read_real(x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Read an array of real numbers, also in the float types that no kernel has.

    Parameters
    ----------
    x : array_like
        Of real numbers.
    name : str
        What messages call it.

    Returns
    -------
    ndarray of float32 or float64
        Not always a copy.

    Raises
    ------
    TypeError
        It is no array of real numbers.
    """
    array = _core.as_array(x, name)
    return array.astype(np.float64) if array.dtype.kind == "f" else _core.as_real(x, name)


def read_matrix(array: npt.ArrayLike, name: str, axes: tuple[str, str], columns: bool) -> Array:
    """Read a matrix.

    Parameters
    ----------
    array : array_like
        Of real numbers.
    name : str
        What messages call it.
    axes : (str, str)
        What messages call its axes, in the row convention.
    columns : bool
        Whether it is transposed.

    Returns
    -------
    ndarray, of the given axes
        A copy.

    Raises
    ------
    ValueError
        It has not two axes, or nothing in it.
    TypeError
        It is no array of real numbers.
    """
    matrix = read_real(array, name)
    if matrix.ndim != 2:
        text = f"{name} has shape {matrix.shape}, expected ({', '.join(axes[::-1] if columns else axes)})"
        first = ", ".join("0" * (matrix.ndim - 2))
        raise ValueError(f"{text}: trace one of its matrices, such as {name}[{first}]" if first else text)
    if matrix.size == 0:
        raise ValueError(f"{name} has shape {matrix.shape}, expected something to look at in each axis")
    return np.array(matrix.T if columns else matrix, np.float64, order="C")


def read_given(
    x: npt.ArrayLike,
    weights: Mapping[str, npt.ArrayLike],
    bias: Sequence[npt.ArrayLike | None] | None,
    columns: bool,
) -> dict[str, Array]:
    """Read inputs, weights and biases.

    Parameters
    ----------
    x : array_like, (L, d_x)
        The inputs.
    weights : mapping of str to array_like
        Those of "query", "key" and "value".
    bias : sequence of three array_like or None, optional
        In this order.
    columns : bool
        Whether all matrices are transposed.

    Returns
    -------
    dict of str to ndarray
        x, w_query, w_key, w_value, and b_query, b_key, b_value, (1, dim), where there are such.

    Raises
    ------
    ValueError
        Shapes do not go together.
    """
    given = {"x": read_matrix(x, "x", ("length", "d_x"), columns)}
    features = given["x"].shape[1]
    for name, weight in weights.items():
        matrix = given[f"w_{name}"] = read_matrix(weight, f"w_{name}", ("d_x", "dim"), columns)
        if len(matrix) != features:
            shapes = [array.T.shape if columns else array.shape for array in (given["x"], matrix)]
            expected = f"(dim, {features})" if columns else f"({features}, dim)"
            raise ValueError(f"w_{name} has shape {shapes[1]}, expected {expected}: x has shape {shapes[0]}")
    for n, (name, vector) in enumerate(zip(weights, _three_biases(bias), strict=True)):
        if vector is not None:
            row, size = read_real(vector, f"bias[{n}]"), given[f"w_{name}"].shape[1]
            if row.shape != (size,):
                raise ValueError(f"bias[{n}] has shape {row.shape}, expected ({size},): w_{name} gives {size} numbers")
            given[f"b_{name}"] = np.array(row, np.float64)[np.newaxis]
    return given


def _three_biases(bias: Sequence[npt.ArrayLike | None] | None) -> list[npt.ArrayLike | None]:
    if bias is None:
        return [None] * 3
    for_each = "expected three, for queries, keys and values; each may be None"
    try:
        entries = list(bias)
    except TypeError:
        raise TypeError(f"bias is of type {type(bias).__name__}, {for_each}") from None
    if len(entries) != 3:
        raise ValueError(f"bias has {len(entries)} entries, {for_each}")
    return entries


def check_key_dim(queries: Array, keys: Array, score: Score, names: tuple[str, str]) -> None:
    """Refuse queries and keys that the score function cannot compare.

    Parameters
    ----------
    queries : ndarray, (L, q_dim)
        One per row.
    keys : ndarray, (S, key_dim)
        One per row.
    score : str
        The score function.
    names : (str, str)
        Of the arguments that they come from.

    Raises
    ------
    ValueError
        There is no such score function, or q_dim is not key_dim; only 'bilinear' has a matrix between.
    """
    check_choice(score, "score", SCORES)
    q_dim, key_dim = queries.shape[1], keys.shape[1]
    if q_dim != key_dim and score != "bilinear":
        raise ValueError(
            f"{names[0]} gives {q_dim} numbers a query but {names[1]} {key_dim} a key; "
            "only score='bilinear' compares vectors of different sizes"
        )


def names_of(tokens: Sequence[str] | None, name: str, length: int) -> list[str] | None:
    """Read names of inputs.

    Parameters
    ----------
    tokens : sequence of str, optional
        As the caller gave them.
    name : str
        What messages call them.
    length : int
        How many there should be.

    Returns
    -------
    list of str, or None
        As they are.

    Raises
    ------
    ValueError
        There are more or fewer.
    TypeError
        One is no string, or tokens is one string.
    """
    if tokens is None:
        return None
    if isinstance(tokens, str):
        raise TypeError(f"{name} is one string, expected a sequence of {length}; pass {name}.split() or list({name})")
    try:
        names = list(tokens)
    except TypeError:
        kind = type(tokens).__name__
        raise TypeError(f"{name} is of type {kind}, expected a sequence of {length} strings") from None
    for n, token in enumerate(names):
        if not isinstance(token, str):
            raise TypeError(f"{name}[{n}] is of type {type(token).__name__}, expected str")
    if len(names) != length:
        entries = "1 entry" if len(names) == 1 else f"{len(names)} entries"
        raise ValueError(f"{name} has {entries}, expected {length}: one for each")
    return [str(token) for token in names]


def settings_of(
    function: ScoreFunction,
    compared: tuple[Array, Array],
    normalise: Normaliser,
    round_weights: SupportsIndex | None,
    convention: Convention,
    names: tuple[list[str] | None, list[str] | None],
) -> Settings:
    """Check the arguments that are not arrays of inputs.

    Parameters
    ----------
    function : ScoreFunction
        Its score is one of those there are.
    compared : (ndarray, ndarray)
        Queries and keys.
    normalise : {'softmax', 'sigmoid', 'sparsemax'}
        What makes weights of scores.
    round_weights : int or None
        Decimals of the weights.
    convention : {'row', 'column'}
        As checked.
    names : (list of str or None, list of str or None)
        Of queries and keys.

    Returns
    -------
    Settings
        With a scale, whoever chose it.

    Raises
    ------
    ValueError
        One has none of its values.
    TypeError
        The scale is no number, or round_weights no integer.
    """
    check_choice(normalise, "normalise", NORMALISERS)
    shape = compared[0].shape[1], compared[1].shape[1]
    usual = float(reference.default_scale(function.score, shape[0]))
    scale = usual if function.scale is None else as_finite(function.scale, "scale")
    weight = _score_weight_of(function, shape)
    decimals = None
    if round_weights is not None:
        decimals = as_index(round_weights, "round_weights", "an int, the number of decimals")
        if not 0 <= decimals <= _MOST_DECIMALS:
            raise ValueError(f"round_weights is {decimals}, expected 0 to {_MOST_DECIMALS} decimals")
    return Settings(function.score, weight, scale, normalise, decimals, convention, *names)


def _score_weight_of(function: ScoreFunction, shape: tuple[int, int]) -> Array | None:
    """Read the score function's weight; those without one refuse it."""
    expected: dict[str, tuple[int, ...]] = {"bilinear": shape, "additive": shape[:1]}
    wanted = expected.get(function.score)
    if function.score_weight is None:
        if wanted is None:
            return None
        raise ValueError(f"score={function.score!r} needs a score_weight of shape {wanted}")
    if wanted is None:
        raise ValueError(f"score={function.score!r} takes no score_weight; 'bilinear' and 'additive' do")
    weight = np.array(read_real(function.score_weight, "score_weight"), np.float64)
    if weight.shape != wanted:
        raise ValueError(f"score_weight has shape {weight.shape}, expected {wanted} with score={function.score!r}")
    weight.flags.writeable = False
    return weight


def hiding_of(
    q_len: int,
    kv_len: int,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
) -> tuple[Bools | None, Array | None]:
    """Read what hides keys from queries.

    Parameters
    ----------
    q_len : int
        L.
    kv_len : int
        S.
    attn_mask : array_like, optional
        Broadcasts to (L, S). bool: True = attend; float: added to the scores. Default: None.
    is_causal : bool
        Query i attends to no key after its own position. Default: False.
    align : {'upper_left', 'lower_right'}, optional
        Where a causal mask starts. Default: None.

    Returns
    -------
    visible : ndarray of bool, (L, S), or None
        None where nothing is hidden.
    bias : ndarray, (L, S), or None
        Added to the scores.

    Raises
    ------
    ValueError
        As `pyattn.attention`.
    TypeError
        As `pyattn.attention`.
    """
    if attn_mask is None and not is_causal:
        return None, None
    query, key = np.zeros((q_len, 1)), np.zeros((kv_len, 1))
    # The core has the rules on masks, their messages and warnings: it is asked by attending to zeros.
    _core.attention(query, key, key, attn_mask=attn_mask, is_causal=is_causal, align=align)
    mask = None if attn_mask is None else _core.as_array(attn_mask, "attn_mask")
    visible = reference.visible_pairs((q_len, kv_len), False, mask, is_causal, align)
    bias = None if mask is None or mask.dtype == np.bool_ else np.broadcast_to(mask.astype(np.float64), visible.shape)
    return (None if visible.all() else np.array(visible)), bias

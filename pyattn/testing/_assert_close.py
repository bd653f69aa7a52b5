"""`assert_attention_close`: check one result against its rounding bounds."""

from __future__ import annotations

from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.functional as functional
from pyattn._util.typing import Align, EmptyRows, Layout, Score, Window
from pyattn.masks import Mask
from pyattn.testing.bounds import describe_worst, expect, output_bars, output_ratios
from pyattn.testing.cases import Case
from pyattn.testing.causes import evidence_of, explain_together

__all__ = ["WIDENED", "assert_attention_close"]

WIDENED = "a NumPy scalar such as numpy.sqrt(head_dim) is float64 and widens them; use math.sqrt(head_dim)"
MOST_PAIRS = 300_000  # of queries and keys, so that computing every mistake takes a few seconds


def assert_attention_close(
    actual: npt.ArrayLike,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    score: Score = "dot",
    score_weight: npt.ArrayLike | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    bar: float | None = None,
) -> None:
    """Assert that `actual` is the attention of the inputs, up to rounding.

    The exact answer is the formula in float64, or in long double for float64 inputs. The tolerance follows from
    rounding: each number may be off by ``bar * u * sum_j p_j (|v_j| + |o|) (1 + a_j)``, plus some denormals. Here u is
    half the distance from 1 to the next number, p_j the weight of key j, and o the exact output. ``a_j = |scale| sum_d
    |q_d| |k_jd| + |bias_j|`` is the sum of the absolute terms of a score. (For 'cosine', q and k have norm 1. For
    'distance', it covers the direct and the expanded form. For 'bilinear' it is ``sum_cd |q_c| |W_cd| |k_jd|``, for
    'additive' ``sum_d |w_d|``.) The error ratio in the message is the error divided by this bound without `bar`.

    Parameters
    ----------
    actual : array_like, (..., heads, L, v_dim)
        The result to test, from any library, in the promoted dtype of query, key and value.
    query, key, value : array_like
        As for `pyattn.attention`; so are all further arguments except `bar`.
    attn_mask : array_like, optional
        bool, True = attend, or float. Default: None.
    is_causal : bool
        Queries attend only to keys up to their own position. Default: False.
    align : {'upper_left', 'lower_right'} or int, optional
        Required for a causal mask or a window if L differs from S. Default: None.
    scale : float, optional
        Factor of the scores. Default: ``1 / sqrt(head_dim)`` for 'dot', half of that for 'distance', else 1.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        The score function. Default: 'dot'.
    score_weight : array_like, optional
        The weight of the score, required for 'bilinear' and 'additive'. Default: None.
    window : int or (int or None, int or None), optional
        Keys before and after its own position that a query attends to, inclusive. Default: None.
    key_lengths, query_lengths : array_like of int, optional
        Number of valid keys and queries of each batch entry. Default: None, all.
    enable_gqa : bool
        With three axes the first is heads, and keys may have fewer. Default: False.
    empty_rows : {'zero', 'nan'}
        The output of a row that has nothing to attend to. Default: 'zero'.
    layout : {'bhsd', 'bshd'}
        The axes of query, key, value and actual. Default: 'bhsd'.
    bar : float, optional
        The largest error ratio that passes. Default: 4, but 16 where at least 32 nearly equal weights meet values of
        one sign, because rounding errors do not cancel there. Naive summation of long rows needs more there: up to 64
        in PyTorch, with 16,384 keys.

    Raises
    ------
    AssertionError
        A number exceeds its bound: the message names the worst one, and a known mistake that gives these numbers, if
        there is one. Or actual has another shape or dtype.
    ValueError
        The inputs break a rule of `pyattn.attention`.
    TypeError
        An argument is not an array of real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn.testing import assert_attention_close
    >>> query, key, value = np.random.default_rng(0).standard_normal((3, 5, 4))
    >>> weights = np.exp(query @ key.T / 2)
    >>> assert_attention_close(weights @ value / weights.sum(axis=-1, keepdims=True), query, key, value)
    """
    if bar is not None and not bar > 0:
        raise ValueError(f"bar is {bar!r}; it must be a positive number")
    result = _core.as_real(actual, "actual")
    inputs = _core.as_real(query, "query"), _core.as_real(key, "key"), _core.as_real(value, "value")
    arguments: dict[str, Any] = {"is_causal": is_causal, "align": align, "window": window, "enable_gqa": enable_gqa}
    arguments |= {"empty_rows": empty_rows, "layout": layout, "scale": scale, "score": score}
    arrays = {"attn_mask": attn_mask, "key_lengths": key_lengths, "query_lengths": query_lengths}
    arrays |= {"score_weight": score_weight}
    arguments |= {name: None if x is None else _core.as_array(x, name) for name, x in arrays.items()}
    given_mask = {"attn_mask": attn_mask} if isinstance(attn_mask, Mask) else {}  # only bare arrays may warn
    like = functional.attention(*inputs, **arguments | given_mask)  # checks the arguments; of the right shape and dtype
    if result.shape != like.shape:
        raise AssertionError(f"actual has shape {result.shape}, expected {like.shape}: {_shapes(inputs)}")
    if result.dtype.newbyteorder("=") != like.dtype:
        fix = _core.cast(actual, "actual", f"numpy.{like.dtype}")
        why = f", or leave them {like.dtype}: {WIDENED}" if isinstance(actual, np.ndarray) and like.itemsize < 8 else ""
        given = f"actual has dtype {result.dtype}, expected that of the inputs, {like.dtype}"
        raise AssertionError(f"{given}; pass {fix}{why}")
    arguments["scale"] = None if scale is None else float(scale)
    arguments["window"] = tuple(window) if isinstance(window, list) else window

    expected = expect(*inputs, like.dtype, **arguments)
    ratios = output_ratios(result, expected)
    bars = output_bars(expected) if bar is None else np.full(ratios.shape, float(bar))
    if not (ratios <= bars).all():
        cause = None
        if inputs[0].shape[-1] and expected.weights.size <= MOST_PAIRS:
            cause = explain_together([evidence_of(Case(*inputs, arguments), result)])
        worst = describe_worst("actual", result, expected, ratios, bars)
        raise AssertionError(worst if cause is None else f"{worst}\nlikely cause: {cause}")


def _shapes(inputs: tuple[npt.NDArray[Any], ...]) -> str:
    names = ("query", "key", "value")
    return ", ".join(f"{name} has shape {x.shape}" for name, x in zip(names, inputs, strict=True))

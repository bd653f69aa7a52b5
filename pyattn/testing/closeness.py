"""One result against the exact one, within the bound that rounding gives it."""

from __future__ import annotations

from typing import Any, Literal, SupportsFloat

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.functional as functional
import pyattn.testing.bounds as _bounds
from pyattn.testing.cases import Case
from pyattn.testing.causes import find_cause

__all__ = ["WIDENED", "assert_attention_close", "describe_worst"]

Array = npt.NDArray[Any]
WIDENED = "a NumPy scalar such as numpy.sqrt(head_dim) is a float64 and widens them, which math.sqrt(head_dim) does not"
MOST_PAIRS = 300_000  # of queries and keys, for some 80 mistakes in all their ways to be computed in a few seconds


def assert_attention_close(
    actual: npt.ArrayLike,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Literal["upper_left", "lower_right"] | None = None,
    scale: SupportsFloat | None = None,
    score: functional.Score = "dot",
    score_weight: npt.ArrayLike | None = None,
    window: functional.Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    empty_rows: Literal["zero", "nan"] = "zero",
    layout: functional.Layout = "bhsd",
    bar: float | None = None,
) -> None:
    """Raise an AssertionError unless `actual` is the attention of the inputs, as far as rounding lets it be.

    The exact answer is the formula in float64, in long double for float64 inputs. How far each number may be off is no
    tolerance to be guessed: ``bar * u * sum_j p_j (|v_j| + |o|) (1 + a_j)``, where u is half the distance between 1 and
    the next number, p_j the weight of key j, o the exact output and ``a_j = |scale| sum_d |q_d| |k_jd| + |bias_j|`` the
    size of what is added up to make a score (of 'cosine' that of the rows of norm 1, of 'distance' nothing cancels, of
    'bilinear' ``sum_cd |q_c| |W_cd| |k_jd|``, of 'additive' ``sum_d |w_d|``); and some denormals. The error over the
    bound without `bar` is the error ratio that the message gives.

    Parameters
    ----------
    actual : array_like, (..., heads, L, v_dim)
        What is on trial, from whatever library: of the dtype that query, key and value have together.
    query, key, value : array_like
        As for `pyattn.attention`, like all arguments that follow.
    attn_mask : array_like, optional
        bool, True = attend, or float. Default: None.
    is_causal : bool
        Query i attends to no key after its own position. Default: False.
    align : {'upper_left', 'lower_right'}, optional
        Must be said for a causal mask or a window when L differs from S. Default: None.
    scale : float, optional
        Default: ``1 / sqrt(head_dim)``, of 'distance' half of that, of the others 1.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}
        How well a query goes with a key. Default: 'dot'.
    score_weight : array_like, optional
        Of a bilinear or additive score, which need it. Default: None.
    window : int or (int or None, int or None), optional
        Keys before and after its own position that a query attends to, inclusive. Default: None.
    key_lengths, query_lengths : array_like of int, optional
        How many keys and queries of each batch entry are there. Default: None, all.
    enable_gqa : bool
        With three axes the first is heads, and keys may have fewer. Default: False.
    empty_rows : {'zero', 'nan'}
        What a row with nothing to attend to has to be. Default: 'zero'.
    layout : {'bhsd', 'bshd'}
        Of query, key, value and actual. Default: 'bhsd'.
    bar : float, optional
        The largest error ratio that passes. Default: 4; where at least 32 nearly equal weights meet values of one sign,
        so that no rounding error cancels another, 16. What adds a long row up one number after the other needs more
        there: up to 64 was seen in PyTorch, with 16,384 keys.

    Raises
    ------
    AssertionError
        A number is outside its bound; the message says where the worst is and, if a known mistake gives these numbers,
        which. Or actual has another shape or dtype.
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
        raise ValueError(f"bar is {bar!r}, expected a positive number")
    result = _core.as_real(actual, "actual")
    inputs = _core.as_real(query, "query"), _core.as_real(key, "key"), _core.as_real(value, "value")
    arguments: dict[str, Any] = {"is_causal": is_causal, "align": align, "window": window, "enable_gqa": enable_gqa}
    arguments |= {"empty_rows": empty_rows, "layout": layout, "scale": scale, "score": score}
    arrays = {"attn_mask": attn_mask, "key_lengths": key_lengths, "query_lengths": query_lengths}
    arrays |= {"score_weight": score_weight}
    arguments |= {name: None if x is None else _core.as_array(x, name) for name, x in arrays.items()}
    like = functional.attention(*inputs, **arguments)  # for the core's rules on what goes together, and for the shape
    if result.shape != like.shape:
        raise AssertionError(f"actual has shape {result.shape}, expected {like.shape}: {_shapes(inputs)}")
    if result.dtype.newbyteorder("=") != like.dtype:
        fix = _core.cast(actual, "actual", f"numpy.{like.dtype}")
        why = f", or leave them {like.dtype}: {WIDENED}" if isinstance(actual, np.ndarray) and like.itemsize < 8 else ""
        given = f"actual has dtype {result.dtype}, expected that of the inputs, {like.dtype}"
        raise AssertionError(f"{given}; pass {fix}{why}")
    arguments["scale"] = None if scale is None else float(scale)
    arguments["window"] = tuple(window) if isinstance(window, list) else window

    expected = _bounds.expect(*inputs, like.dtype, **arguments)
    ratios = _bounds.output_ratios(result, expected)
    bars = _bounds.output_bars(expected) if bar is None else np.full(ratios.shape, float(bar))
    if not (ratios <= bars).all():
        cause = None
        if inputs[0].shape[-1] and expected.weights.size <= MOST_PAIRS:
            cause = find_cause([(Case(*inputs, arguments), result)])
        worst = describe_worst("actual", result, expected, ratios, bars)
        raise AssertionError(worst if cause is None else f"{worst}\nlikely cause: {cause}")


def _shapes(inputs: tuple[Array, ...]) -> str:
    names = ("query", "key", "value")
    return ", ".join(f"{name} has shape {x.shape}" for name, x in zip(names, inputs, strict=True))


def describe_worst(name: str, actual: Array, expected: _bounds.Expected, ratios: Array, bars: Array) -> str:
    """Say how many numbers are outside their bounds, and where the worst is.

    Parameters
    ----------
    name : str
        What to call the array that is on trial.
    actual : ndarray
        That array, of the shape of all others.
    expected : Expected
        What it should be.
    ratios : ndarray
        Error ratios; what is not to be judged has 0.
    bars : ndarray
        How large ratios may be; some is larger.

    Returns
    -------
    str
        Two lines.
    """
    outside = np.count_nonzero(ratios > bars)
    index = tuple(int(n) for n in np.unravel_index(int(np.argmax(ratios / bars)), ratios.shape))
    exact, bar = expected.output[index], bars[index]
    with np.errstate(all="ignore"):
        error = abs(actual[index].astype(exact.dtype) - exact)
    return (
        f"{outside} of {ratios.size} numbers are further from exact attention than rounding explains\n"
        f"worst: {name}[{', '.join(map(str, index))}] is {actual[index]:.9g}, exact {exact:.9g}, "
        f"error {error:.3g}, bound {bar * expected.output_unit[index]:.3g}; "
        f"error ratio {ratios[index]:.3g}, at most {bar:g}"
    )

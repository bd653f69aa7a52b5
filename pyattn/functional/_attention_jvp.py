"""Attention and its tangent, in one call: forward mode."""

from __future__ import annotations

from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.halves import as_float32, check_same_half, is_half, round_to
from pyattn._util.messages import short_repr
from pyattn._util.typing import RNG, Align, FloatArray, Layout, Score, Window
from pyattn.functional._attention_backward import check_score, drops_again

__all__ = ["attention_jvp"]


def attention_jvp(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    tangent_query: npt.ArrayLike | None = None,
    tangent_key: npt.ArrayLike | None = None,
    tangent_value: npt.ArrayLike | None = None,
    *,
    tangent_attn_mask: npt.ArrayLike | None = None,
    attn_mask: npt.ArrayLike | None = None,
    is_causal: bool = False,
    align: Align | None = None,
    scale: SupportsFloat | None = None,
    score: Score = "dot",
    score_weight: npt.ArrayLike | None = None,
    window: Window = None,
    key_lengths: npt.ArrayLike | None = None,
    query_lengths: npt.ArrayLike | None = None,
    dropout_p: SupportsFloat = 0.0,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Compute `pyattn.attention` and its derivative in one direction.

    The direction is given by tangents of the inputs; the result is the Jacobian of the output times them. Weights are
    computed tile by tile: extra memory is O(L + S). The tangent is bit-identical for any number of threads. A hidden
    pair adds nothing to it, even if it holds NaN.

    Parameters
    ----------
    query : array_like, (..., heads, L, head_dim)
        Queries. `pyattn.attention` describes all arguments but the tangents.
    key : array_like, (..., heads, S, head_dim)
        Keys.
    value : array_like, (..., heads, S, v_dim)
        Values.
    tangent_query : array_like, optional
        The direction of `query`, in its shape. Default: None, for 0.
    tangent_key : array_like, optional
        The direction of `key`, in its shape. Default: None, for 0.
    tangent_value : array_like, optional
        The direction of `value`, in its shape. Default: None, for 0.
    tangent_attn_mask : array_like, optional
        The direction of a float mask, in the shape of `attn_mask`. Default: None, for 0.
    attn_mask : array_like or pyattn.masks.Mask, optional
        Which pairs are visible, or what is added to scores. Default: None.
    is_causal : bool, default False
        Whether each query sees no later keys.
    align : {'upper_left', 'lower_right'} or int, optional
        Where the causal diagonal or window begins if L and S differ.
    scale : float, optional
        Factor of the scores.
    score : {'dot', 'cosine', 'distance', 'bilinear', 'additive'}, default 'dot'
        The score of a query and a key.
    score_weight : array_like, optional
        Weight of a bilinear or additive score; it is constant.
    window : int or (int or None, int or None), optional
        How many keys each query sees before and after its own place.
    key_lengths : array_like of int, optional
        The number of keys of each batch entry.
    query_lengths : array_like of int, optional
        The number of queries of each batch entry.
    dropout_p : float, default 0.0
        The probability that a weight is dropped.
    rng : int or SeedSequence, optional
        The seed, from which other calls drop the same weights.
    keep_mask : array_like of bool, optional
        The weights that are kept, in place of `rng`.
    enable_gqa : bool, default False
        Whether query heads may share key and value heads in arrays of fewer than four axes.
    layout : {'bhsd', 'bshd'}, default 'bhsd'
        Layout of query, key, value, their tangents and the results.
    num_threads : int, optional
        Default: `get_num_threads`.

    Returns
    -------
    output : ndarray, (..., heads, L, v_dim)
        The result of `pyattn.attention`.
    tangent_output : ndarray, (..., heads, L, v_dim)
        Its derivative in the direction of the tangents, in its dtype.

    Raises
    ------
    ValueError
        Shapes disagree; a tangent of a mask that is not an array of floats; weights are dropped at random, and `rng` is
        not a seed.
    TypeError
        As for `pyattn.attention`.

    Notes
    -----
    With the weights P = softmax(S), where S = scale Q K.T + mask, and tangents dQ, dK, dV::

        dS = scale (dQ K.T + Q dK.T) + dmask     c = (P * dS).sum(-1)
        dO = (P * dS) V + P dV - c O

    The derivative of a softmax, diag(P) - P.T P of a row P, is symmetric, so `attention_backward` has the same, after
    Dao et al., "FlashAttention" (2022), appendix B.4. The tangents of the other scores of a query q and a key k are::

        cosine      scale (du . v + u . dv), of the unit vectors u of q and v of k: du = (dq - (dq . u) u) / abs(q)
        distance    -2 scale (q - k) . (dq - dk)
        bilinear    scale (dq W k + q W dk)
        additive    scale score_weight . ((1 - tanh(q + k)**2) * (dq + dk))

    The cosine score of a zero vector is constant, so its tangent is 0. A row that sees no key has a tangent of 0.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import functional as F
    >>> x = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 1.0]])
    >>> output, tangent = F.attention_jvp(x, x, x, tangent_query=np.ones((2, 3)))
    >>> step = 1e-6
    >>> slope = (F.attention(x + step * np.ones((2, 3)), x, x) - output) / step
    >>> np.allclose(tangent, slope, atol=1e-6)
    True
    """
    if not drops_again(dropout_p, rng, keep_mask):
        raise ValueError(
            f"rng is {short_repr(rng)}; pass an int, from which output and tangent drop the same weights, or "
            "keep_mask=pyattn.functional.dropout_keep_mask(...)"
        )
    check_score(score, score_weight)
    given = {
        "query": query,
        "key": key,
        "value": value,
        "tangent_query": tangent_query,
        "tangent_key": tangent_key,
        "tangent_value": tangent_value,
        "score_weight": score_weight,
    }
    stored = {name: _core.as_array(x, name) for name, x in given.items() if x is not None}
    check_same_half(stored.items())
    options: dict[str, Any] = {
        "attn_mask": attn_mask,
        "is_causal": is_causal,
        "align": align,
        "scale": scale,
        "window": window,
        "key_lengths": key_lengths,
        "query_lengths": query_lengths,
        "dropout_p": dropout_p,
        "rng": rng,
        "keep_mask": keep_mask,
        "enable_gqa": enable_gqa,
        "layout": layout,
        "num_threads": num_threads,
    }
    arrays: dict[str, Any] = dict.fromkeys(given) | _promoted(
        {name: _core.as_real(x, name) for name, x in stored.items()}
    )
    dots, keys, values = arrays["query"], arrays["key"], arrays["value"]
    of_dots, of_keys, of_values = arrays["tangent_query"], arrays["tangent_key"], arrays["tangent_value"]
    weight = arrays["score_weight"]
    output, lse = _core.attention(dots, keys, values, score=score, score_weight=weight, need_lse=True, **options)
    if score == "bilinear" and weight is not None:  # the products of keys with `query @ score_weight`
        _check_tangent(of_dots, dots)
        dots = _core.linear(dots, weight.T, num_threads=num_threads)
        of_dots = None if of_dots is None else _core.linear(of_dots, weight.T, num_threads=num_threads)
        score, weight = "dot", None
        options["scale"] = 1.0 if scale is None else scale
    tangent = _core.attention_jvp(
        dots, keys, values, output, of_dots, of_keys, of_values, weight, lse, tangent_attn_mask, score=score, **options
    )
    if all(is_half(x.dtype) for x in stored.values()):
        half = stored["query"].dtype.newbyteorder("=")
        return round_to(output, half), round_to(tangent, half)
    return output, tangent


def _promoted(arrays: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Convert arrays to the dtype in which they are computed together."""
    reals = {name: as_float32(x) for name, x in arrays.items()}
    dtype = np.result_type(*reals.values())
    return {name: x.astype(dtype, copy=False) for name, x in reals.items()}


def _check_tangent(tangent: FloatArray | None, query: FloatArray) -> None:
    """Refuse a tangent of another shape, before its features are others."""
    if tangent is not None and tangent.shape != query.shape:
        raise ValueError(f"tangent_query has shape {tangent.shape}, expected {query.shape}")

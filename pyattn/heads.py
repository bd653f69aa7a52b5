"""Multi-head attention in one call of the core.

Indices: N batch, H heads, L queries, S keys.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy.typing as npt

from pyattn import _core
from pyattn._flags import as_flag
from pyattn._positions import CacheUse, Turning
from pyattn.dropping import RNG
from pyattn.functional import FloatArray
from pyattn.torch_rules import Hidden, Sizes, for_the_core

__all__ = ["NO_DROPOUT", "Dropout", "EmptyRows", "Parameters", "compute"]

EmptyRows: TypeAlias = Literal["zero", "nan"]


class Parameters(NamedTuple):
    """What the core multiplies with and adds: its names, in its order; None for what is left out.

    Where k_weight and v_weight are left out, q_weight and q_bias hold those of query, key and value on top of one
    another, as torch's in_proj_weight and in_proj_bias.
    """

    q_weight: FloatArray
    k_weight: FloatArray | None
    v_weight: FloatArray | None
    out_weight: FloatArray
    q_bias: FloatArray | None = None
    k_bias: FloatArray | None = None
    v_bias: FloatArray | None = None
    out_bias: FloatArray | None = None
    extra_key: FloatArray | None = None
    extra_value: FloatArray | None = None


class Dropout(NamedTuple):
    """What happens to weights after the softmax: nothing, by default. Fields as `attention`'s arguments."""

    dropout_p: float = 0.0
    rng: RNG = None
    keep_mask: npt.ArrayLike | None = None


NO_DROPOUT = Dropout()


def compute(
    query: FloatArray,
    key: FloatArray | None,
    value: FloatArray | None,
    parameters: Parameters,
    hidden: Hidden,
    dropout: Dropout = NO_DROPOUT,
    *,
    heads: int,
    kv_heads: int | None = None,
    add_zero: bool = False,
    need_weights: bool = True,
    average_weights: bool = True,
    empty_rows: EmptyRows = "zero",
    cache: CacheUse | None = None,
    turning: Turning | None = None,
) -> tuple[FloatArray, FloatArray | None]:
    """Call the core with torch's masks.

    Parameters
    ----------
    query, key, value : ndarray, (N, length, features) or (length, features)
        As `with_batch_first` gives them. key and value are None where a cache holds what is attended to already.
    parameters : Parameters
        Of fitting shapes.
    hidden : Hidden
        As the caller gave it.
    dropout : Dropout
        None by default.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of key and value heads. Default: heads.
    add_zero : bool
        A key and a value of zeros behind all others. Default: False.
    need_weights : bool
        Return weights; the default.
    average_weights : bool
        Their mean over heads, the default.
    empty_rows : {'zero', 'nan'}
        What a row with nothing to attend to gives. Default: 'zero'.
    cache : CacheUse, optional
        What keys and values go to and are read from; the last query stands at its last position. Default: None.
    turning : Turning, optional
        How queries and keys turn with their positions. Default: None, not at all.

    Returns
    -------
    output : ndarray, (N, L, out_dim) or (L, out_dim)
        Of query's dtype.
    weights : ndarray or None
        (N, heads, L, S), with N where query has it, and heads unless averaged.
    """
    if hidden.attn_mask is not None or hidden.key_padding_mask is not None:
        kv_len = key.shape[-2] if cache is None and key is not None else cache.length  # type: ignore[union-attr]
        hidden = for_the_core(hidden, Sizes(query.shape[:-2], heads, query.shape[-2], kv_len))
    # named one by one: a starred argument would make a tuple and a dict of all of them
    q_weight, k_weight, v_weight, out_weight, q_bias, k_bias, v_bias, out_bias, extra_key, extra_value = parameters
    result: tuple[FloatArray, FloatArray | None] = _core.multi_head(
        query,
        key,
        value,
        q_weight,
        k_weight,
        v_weight,
        out_weight,
        q_bias,
        k_bias,
        v_bias,
        out_bias,
        extra_key,
        extra_value,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        add_zero=_flag(add_zero, "add_zero_attn"),
        average_weights=_flag(average_weights, "average_attn_weights"),
        key_padding_mask=hidden.key_padding_mask,
        blocked=True,
        cache=cache,
        rotary=turning,
        attn_mask=hidden.attn_mask,
        is_causal=hidden.is_causal,
        align="upper_left" if cache is None else "lower_right",
        window=hidden.window,
        key_lengths=hidden.key_lengths,
        query_lengths=hidden.query_lengths,
        dropout_p=dropout.dropout_p,
        rng=dropout.rng,
        keep_mask=dropout.keep_mask,
        need_weights=need_weights,
        empty_rows=empty_rows,
    )
    return result


def _flag(x: bool, name: str) -> bool:
    """Check what the core has another name for; whole numbers are flags to it as well."""
    return x if isinstance(x, int) else as_flag(x, name)

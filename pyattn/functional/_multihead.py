"""Multi-head attention with torch's arguments, in one call of the core.

Indices: N batch, H heads, L queries, S keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, SupportsFloat, SupportsIndex, TypeAlias, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_count, as_flag, as_probability
from pyattn._util.halves import as_float32, check_same_half, compute_dtype, is_half, rounded
from pyattn._util.typing import RNG, CacheUse, EmptyRows, FloatArray, Rotation
from pyattn.functional._multihead_masks import Masking, ScoreSizes, to_core, with_batch_first

__all__ = ["NO_DROPOUT", "DropoutOptions", "Parameters", "compute", "multi_head_attention_forward", "read_arrays"]


Array: TypeAlias = npt.NDArray[Any]


@overload
def multi_head_attention_forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    embed_dim_to_check: SupportsIndex,
    num_heads: SupportsIndex,
    in_proj_weight: npt.ArrayLike | None,
    in_proj_bias: npt.ArrayLike | None,
    bias_k: npt.ArrayLike | None,
    bias_v: npt.ArrayLike | None,
    add_zero_attn: bool,
    dropout_p: SupportsFloat,
    out_proj_weight: npt.ArrayLike,
    out_proj_bias: npt.ArrayLike | None,
    training: bool = True,
    key_padding_mask: npt.ArrayLike | None = None,
    need_weights: Literal[True] = True,
    attn_mask: npt.ArrayLike | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: npt.ArrayLike | None = None,
    k_proj_weight: npt.ArrayLike | None = None,
    v_proj_weight: npt.ArrayLike | None = None,
    static_k: npt.ArrayLike | None = None,
    static_v: npt.ArrayLike | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
) -> tuple[FloatArray, FloatArray]: ...
@overload
def multi_head_attention_forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    embed_dim_to_check: SupportsIndex,
    num_heads: SupportsIndex,
    in_proj_weight: npt.ArrayLike | None,
    in_proj_bias: npt.ArrayLike | None,
    bias_k: npt.ArrayLike | None,
    bias_v: npt.ArrayLike | None,
    add_zero_attn: bool,
    dropout_p: SupportsFloat,
    out_proj_weight: npt.ArrayLike,
    out_proj_bias: npt.ArrayLike | None,
    training: bool = True,
    key_padding_mask: npt.ArrayLike | None = None,
    *,
    need_weights: Literal[False],
    attn_mask: npt.ArrayLike | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: npt.ArrayLike | None = None,
    k_proj_weight: npt.ArrayLike | None = None,
    v_proj_weight: npt.ArrayLike | None = None,
    static_k: npt.ArrayLike | None = None,
    static_v: npt.ArrayLike | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
) -> tuple[FloatArray, None]: ...
@overload
def multi_head_attention_forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    embed_dim_to_check: SupportsIndex,
    num_heads: SupportsIndex,
    in_proj_weight: npt.ArrayLike | None,
    in_proj_bias: npt.ArrayLike | None,
    bias_k: npt.ArrayLike | None,
    bias_v: npt.ArrayLike | None,
    add_zero_attn: bool,
    dropout_p: SupportsFloat,
    out_proj_weight: npt.ArrayLike,
    out_proj_bias: npt.ArrayLike | None,
    training: bool = True,
    key_padding_mask: npt.ArrayLike | None = None,
    need_weights: bool = True,
    attn_mask: npt.ArrayLike | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: npt.ArrayLike | None = None,
    k_proj_weight: npt.ArrayLike | None = None,
    v_proj_weight: npt.ArrayLike | None = None,
    static_k: npt.ArrayLike | None = None,
    static_v: npt.ArrayLike | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
) -> tuple[FloatArray, FloatArray | None]: ...
def multi_head_attention_forward(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    embed_dim_to_check: SupportsIndex,
    num_heads: SupportsIndex,
    in_proj_weight: npt.ArrayLike | None,
    in_proj_bias: npt.ArrayLike | None,
    bias_k: npt.ArrayLike | None,
    bias_v: npt.ArrayLike | None,
    add_zero_attn: bool,
    dropout_p: SupportsFloat,
    out_proj_weight: npt.ArrayLike,
    out_proj_bias: npt.ArrayLike | None,
    training: bool = True,
    key_padding_mask: npt.ArrayLike | None = None,
    need_weights: bool = True,
    attn_mask: npt.ArrayLike | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: npt.ArrayLike | None = None,
    k_proj_weight: npt.ArrayLike | None = None,
    v_proj_weight: npt.ArrayLike | None = None,
    static_k: npt.ArrayLike | None = None,
    static_v: npt.ArrayLike | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    rng: RNG = None,
    keep_mask: npt.ArrayLike | None = None,
    empty_rows: EmptyRows = "zero",
) -> tuple[FloatArray, FloatArray | None]:
    """Compute multi-head attention with torch's arguments.

    `torch.nn.functional.multi_head_attention_forward` for NumPy. The meaning of a bool mask depends on the function::

        attention:                    True = attend
        MultiheadAttention, as torch: True = blocked

    Project query, key and value; attend with every head; project the concatenated heads. All arrays but the masks share
    one dtype; float32 and one of float16 and bfloat16 may mix, which gives float32.

    Intended differences from torch: `is_causal` works without `attn_mask` (torch raises) and is combined with it (torch
    replaces it in some cases); the keys of bias_k and add_zero_attn stay visible under it; a row with nothing to attend
    to gives 0 before the output projection.

    Parameters
    ----------
    query : array_like, (L, N, E) or unbatched (L, E)
        float16, bfloat16, float32 or float64.
    key : array_like, (S, N, kdim) or (S, kdim)
        kdim is E unless use_separate_proj_weight.
    value : array_like, (S, N, vdim) or (S, vdim)
        As long as key.
    embed_dim_to_check : int
        E.
    num_heads : int
        Divides E.
    in_proj_weight : array_like, (3 * E, E), or None
        Weights of query, key and value, stacked; unused with use_separate_proj_weight.
    in_proj_bias : array_like, (3 * E,), or None
        Their biases.
    bias_k, bias_v : array_like, (1, 1, E), or None
        An extra key and value, appended to the projected ones; every query attends to them.
    add_zero_attn : bool
        Append a key and a value of zeros, after bias_k and bias_v.
    dropout_p : float
        Probability that a weight becomes 0, when training; the others are divided by ``1 - dropout_p``.
    out_proj_weight : array_like, (out_dim, E)
        Weight of the output projection.
    out_proj_bias : array_like, (out_dim,), or None
        Its bias.
    training : bool
        Apply dropout. Default: True.
    key_padding_mask : array_like, (N, S) or (S,), optional
        bool: True = blocked; float: added to the scores. Default: None.
    need_weights : bool
        Return the weights too. Default: True.
    attn_mask : array_like, (L, S) or (N * num_heads, L, S), optional
        bool: True = blocked; float: added to the scores. Batch entry b, head h is at ``b * num_heads + h``.
        Default: None.
    use_separate_proj_weight : bool
        Use the next three arguments instead of in_proj_weight. Default: False.
    q_proj_weight : array_like, (E, E), optional
        Default: None.
    k_proj_weight : array_like, (E, kdim), optional
        Default: None.
    v_proj_weight : array_like, (E, vdim), optional
        Default: None.
    static_k, static_v : array_like, (N * num_heads, S, E / num_heads), optional
        Replace the projected key and value. Default: None.
    average_attn_weights : bool
        Return the mean of the weights over heads. Default: True.
    is_causal : bool
        Query i attends only to keys 0 to i, whatever attn_mask says. Default: False.
    rng : None, int, SeedSequence or Generator
        Draws dropout's mask; torch uses its global state. Default: None, fresh entropy, so each call differs.
    keep_mask : array_like of bool, optional
        Broadcasts to (N, num_heads, L, S), with S as in the weights: True = kept. Used instead of drawing from rng.
        Default: None.
    empty_rows : {'zero', 'nan'}
        Output of a row with nothing to attend to: 'zero', the default, or 'nan', as often in torch. Weights are 0.

    Returns
    -------
    output : ndarray, (L, N, out_dim) or (L, out_dim)
        Of the arrays' dtype.
    weights : ndarray, (N, L, S) or (L, S), or None
        With heads, (N, num_heads, L, S), unless averaged; S counts the keys of bias_k and add_zero_attn. After
        dropout, as torch's.

    Raises
    ------
    TypeError
        An array is not of query's dtype (float32 goes with float16 or bfloat16); a mask is neither bool nor of floats.
    ValueError
        Shapes disagree; the message names the argument.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> x, weight = np.eye(2)[:, None], np.tile(np.eye(2), (3, 1))
    >>> blocked = np.array([[False, True], [False, False]])
    >>> output, weights = pyattn.functional.multi_head_attention_forward(
    ...     x, x, x, 2, 1, weight, None, None, None, False, 0.0, np.eye(2), None, attn_mask=blocked
    ... )
    >>> weights.round(4)
    array([[[1.    , 0.    ],
            [0.3302, 0.6698]]])
    """
    training = as_flag(training, "training")
    dropped = as_probability(dropout_p, "dropout_p") if training else 0.0
    given = {
        "query": query,
        "key": key,
        "value": value,
        "in_proj_weight": in_proj_weight,
        "q_proj_weight": q_proj_weight,
        "k_proj_weight": k_proj_weight,
        "v_proj_weight": v_proj_weight,
        "in_proj_bias": in_proj_bias,
        "bias_k": bias_k,
        "bias_v": bias_v,
        "static_k": static_k,
        "static_v": static_v,
        "out_proj_weight": out_proj_weight,
        "out_proj_bias": out_proj_bias,
    }
    inputs, parameters, heads, half = read_arrays(given, embed_dim_to_check, num_heads, use_separate_proj_weight)
    output, attended = compute(
        *inputs,
        parameters,
        Masking(attn_mask, key_padding_mask, is_causal),
        DropoutOptions(dropped, rng, keep_mask) if training else NO_DROPOUT,
        heads=heads,
        add_zero=add_zero_attn,
        need_weights=need_weights,
        average_weights=average_attn_weights,
        empty_rows=empty_rows,
    )
    result = output.swapaxes(0, 1) if output.ndim == 3 else output, attended
    return result if half is None else rounded(result, half)


# Arrays of the function


def read_arrays(
    given: Mapping[str, npt.ArrayLike | None],
    embed_dim_to_check: SupportsIndex,
    num_heads: SupportsIndex,
    use_separate_proj_weight: bool,
) -> tuple[tuple[Array, Array, Array], Parameters, int, np.dtype[Any] | None]:
    """Check all arrays but the masks; return the inputs, batch first, the parameters, heads, and a half to round to."""
    separate = as_flag(use_separate_proj_weight, "use_separate_proj_weight")
    joint, own = ("in_proj_weight",), ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    used, unused = (own, joint) if separate else (joint, own)
    for name in used:
        if given[name] is None:
            raise ValueError(f"{name} is None, but use_separate_proj_weight={separate} needs it")
    arrays, half = _of_one_dtype({name: x for name, x in given.items() if name not in unused})
    embed_dim, heads = _check_sizes(embed_dim_to_check, num_heads)
    _check_shapes(arrays, embed_dim)
    return *_project(arrays, embed_dim, heads), heads, half


def _of_one_dtype(given: Mapping[str, npt.ArrayLike | None]) -> tuple[dict[str, Array], np.dtype[Any] | None]:
    """Read arrays that are computed in one dtype, inputs as that; the dtype of the result, if all are one half."""
    # as_array's message names a required argument that is None.
    arrays = {name: _core.as_array(x, name) for name, x in given.items() if x is not None or name in _REQUIRED}
    wanted = compute_dtype(arrays["query"].dtype)
    wanted = wanted if wanted in (np.float32, np.float64) else np.dtype(np.float32)
    for name, array in arrays.items():
        if compute_dtype(array.dtype) != wanted:
            fix = _core.cast(given[name], name, f"numpy.{wanted}")
            raise TypeError(f"{name} has dtype {array.dtype}, expected {wanted}; pass {fix}")
    check_same_half(arrays.items())
    half = arrays["query"].dtype.newbyteorder("=") if all(is_half(x.dtype) for x in arrays.values()) else None
    return arrays | {name: as_float32(arrays[name]) for name in _INPUTS if name in arrays}, half


_INPUTS = ("query", "key", "value", "static_k", "static_v")
_REQUIRED = ("query", "key", "value", "out_proj_weight")


def _check_sizes(embed_dim_to_check: SupportsIndex, num_heads: SupportsIndex) -> tuple[int, int]:
    embed_dim = as_count(embed_dim_to_check, "embed_dim_to_check", least=1)
    heads = as_count(num_heads, "num_heads", least=1)
    if embed_dim % heads:
        raise ValueError(f"embed_dim_to_check is {embed_dim} and num_heads is {heads}, expected a multiple")
    return embed_dim, heads


def _check_shapes(arrays: Mapping[str, Array], embed_dim: int) -> None:
    """Check the parameters' shapes; a size of None is not checked."""
    if ("bias_k" in arrays) != ("bias_v" in arrays):
        raise ValueError("bias_k and bias_v come together: pass both or neither")
    expected: dict[str, tuple[int | None, ...]] = {
        "in_proj_weight": (3 * embed_dim, embed_dim),
        "q_proj_weight": (embed_dim, embed_dim),
        "k_proj_weight": (embed_dim, None),
        "v_proj_weight": (embed_dim, None),
        "in_proj_bias": (3 * embed_dim,),
        "bias_k": (1, 1, embed_dim),
        "bias_v": (1, 1, embed_dim),
        "out_proj_weight": (None, embed_dim),
        "out_proj_bias": arrays["out_proj_weight"].shape[:1],
    }
    for name, shape in expected.items():
        found = arrays[name].shape if name in arrays else shape
        if len(found) != len(shape) or any(b not in (None, a) for a, b in zip(found, shape, strict=True)):
            text = ", ".join("any" if size is None else str(size) for size in shape) + "," * (len(shape) == 1)
            raise ValueError(f"{name} has shape {found}, expected ({text})")


def _project(arrays: Mapping[str, Array], embed_dim: int, heads: int) -> tuple[tuple[Array, Array, Array], Parameters]:
    """Transpose inputs to (N, length, features) and pick their weights; static keys replace projected ones."""
    separate = "in_proj_weight" not in arrays
    blocks = [slice(n * embed_dim, (n + 1) * embed_dim) for n in range(3)]
    weights = [
        arrays[f"{x}_proj_weight"] if separate else arrays["in_proj_weight"][b]
        for x, b in zip("qkv", blocks, strict=True)
    ]
    bias = arrays.get("in_proj_bias")
    biases = [None if bias is None else bias[block] for block in blocks]
    features = [weight.shape[1] for weight in weights]
    inputs = [*with_batch_first(arrays["query"], arrays["key"], arrays["value"], features, batch_first=False)]
    names = ["query", "key", "value"]
    for n, name in enumerate(("static_k", "static_v"), 1):
        if name in arrays:
            if "bias_k" in arrays:
                raise ValueError(f"{name} and bias_k are given, expected one of them at most")
            inputs[n] = _static_input(arrays[name], name, inputs[0].shape[:-2], heads, embed_dim // heads)
            names[n], weights[n], biases[n] = name, np.eye(embed_dim, dtype=inputs[n].dtype), None  # the identity
    extra = [arrays[name][0, 0] if name in arrays else None for name in ("bias_k", "bias_v")]
    query, key, value = inputs
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{names[2]} has length {value.shape[-2]}, expected {key.shape[-2]} as {names[1]}")
    parameters = [*weights, arrays["out_proj_weight"], *biases, arrays.get("out_proj_bias"), *extra]
    return (query, key, value), Parameters._make(parameters)


def _static_input(static: Array, name: str, batch: tuple[int, ...], heads: int, dim: int) -> Array:
    """Reshape (N * heads, S, head_dim) to (N, S, E)."""
    rows = math.prod((*batch, heads))
    if static.ndim != 3 or static.shape[::2] != (rows, dim):
        raise ValueError(f"{name} has shape {static.shape}, expected ({rows}, S, {dim}): (N * num_heads, S, head_dim)")
    by_head = static.reshape(*batch, heads, *static.shape[1:])
    return by_head.swapaxes(-3, -2).reshape(*batch, static.shape[1], heads * dim)


class Parameters(NamedTuple):
    """Weights and biases with the core's names, in its order; None for absent ones."""

    # Without k_weight and v_weight, q_weight and q_bias hold those of query, key and value, stacked as in torch.
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


class DropoutOptions(NamedTuple):
    """Dropout of the weights, none by default. Fields as `attention`'s arguments."""

    dropout_p: float = 0.0
    rng: RNG = None
    keep_mask: npt.ArrayLike | None = None


NO_DROPOUT = DropoutOptions()


def compute(
    query: FloatArray,
    key: FloatArray | None,
    value: FloatArray | None,
    parameters: Parameters,
    masking: Masking,
    dropout: DropoutOptions = NO_DROPOUT,
    *,
    heads: int,
    kv_heads: int | None = None,
    scale: float | None = None,
    add_zero: bool = False,
    need_weights: bool = True,
    average_weights: bool = True,
    empty_rows: EmptyRows = "zero",
    cache: CacheUse | None = None,
    rotation: Rotation | None = None,
) -> tuple[FloatArray, FloatArray | None]:
    """Call the core with torch's masks."""
    if masking.attn_mask is not None or masking.key_padding_mask is not None:
        # key is None only with a cache.
        kv_len = cache.length if cache is not None else 0 if key is None else key.shape[-2]
        sizes = ScoreSizes(query.shape[:-2], heads, query.shape[-2], kv_len)
        masking = to_core(masking, sizes)
    # Arguments are passed one by one, because a starred call would build a tuple and a dict each time.
    q_weight, k_weight, v_weight, out_weight, q_bias, k_bias, v_bias, out_bias, extra_key, extra_value = parameters
    return _core.multi_head(
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
        scale=scale,
        add_zero=as_flag(add_zero, "add_zero_attn"),
        average_weights=as_flag(average_weights, "average_attn_weights"),
        key_padding_mask=masking.key_padding_mask,
        key_limits=masking.key_limits,
        blocked=True,
        cache=cache,
        rotary=rotation,
        attn_mask=masking.attn_mask,
        is_causal=masking.is_causal,
        align="upper_left" if cache is None else "lower_right",
        window=masking.window,
        key_lengths=masking.key_lengths,
        query_lengths=masking.query_lengths,
        dropout_p=dropout.dropout_p,
        rng=dropout.rng,
        keep_mask=dropout.keep_mask,
        need_weights=need_weights,
        empty_rows=empty_rows,
    )

"""Multi-head attention's weights as papers write them: matrices per head, and one for the concatenated heads.

A module stacks the matrices of all heads as (out, in). In this interface a matrix is (embed_dim, dim), or (dim,
embed_dim) in the column convention. Internally all are (dim, embed_dim).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, SupportsFloat, TypeAlias

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice
from pyattn._util.halves import check_same_half
from pyattn._util.in_proj import in_projections
from pyattn._util.typing import Convention, FloatArray
from pyattn.nn.attention.multihead import MultiheadAttention

__all__ = ["Heads", "from_heads", "to_heads"]

Arrays: TypeAlias = list[npt.NDArray[Any]]


class Heads(NamedTuple):
    """Weights per head: the result of `to_heads` and arguments of `from_heads`.

    Entry i of a list belongs to head i.

    Attributes
    ----------
    w_query : list of ndarray, (embed_dim, d_k)
        ``W_Q^i``. In the column convention (d_k, embed_dim), and so on.
    w_key : list of ndarray, (kdim, d_k)
        ``W_K^i``, of each key head; kdim is embed_dim in papers.
    w_value : list of ndarray, (vdim, d_v)
        ``W_V^i``, of each value head; vdim is embed_dim in papers.
    w_out : ndarray, (heads * d_v, d_out)
        ``W_O``.
    b_query : list of ndarray, (d_k,), or None
        Biases of queries.
    b_key : list of ndarray, (d_k,), or None
        Biases of keys.
    b_value : list of ndarray, (d_v,), or None
        Biases of values.
    b_out : ndarray, (d_out,), or None
        Bias of the output.

    Examples
    --------
    >>> from pyattn import nn
    >>> heads = nn.to_heads(nn.MultiheadAttention(8, 2))
    >>> len(heads.w_query), heads.w_query[0].shape, heads.w_out.shape
    (2, (8, 4), (8, 8))
    """

    w_query: list[FloatArray]
    w_key: list[FloatArray]
    w_value: list[FloatArray]
    w_out: FloatArray
    b_query: list[FloatArray] | None = None
    b_key: list[FloatArray] | None = None
    b_value: list[FloatArray] | None = None
    b_out: FloatArray | None = None


def from_heads(
    w_query: Iterable[npt.ArrayLike],
    w_key: Iterable[npt.ArrayLike],
    w_value: Iterable[npt.ArrayLike],
    w_out: npt.ArrayLike,
    b_query: Iterable[npt.ArrayLike | None] | None = None,
    b_key: Iterable[npt.ArrayLike | None] | None = None,
    b_value: Iterable[npt.ArrayLike | None] | None = None,
    b_out: npt.ArrayLike | None = None,
    *,
    convention: Convention = "row",
    dropout: SupportsFloat = 0.0,
    add_zero_attn: bool = False,
    batch_first: bool = False,
    scale: SupportsFloat | None = None,
) -> MultiheadAttention:
    """Make a multi-head attention from the weights of a paper.

    ``Concat(head_1 ... head_H) W_O``, with ``head_i = softmax(q_i k_i^T / sqrt(d_k)) v_i`` of ``q_i = x W_Q^i``, ``k_i
    = x W_K^i`` and ``v_i = x W_V^i``. Other papers write inputs as columns: ``W_O [head_1; ...; head_H]`` with ``q_i =
    W_Q^i x``. The module itself takes an input per row.

    Parameters
    ----------
    w_query : sequence of array_like, (embed_dim, d_k)
        A matrix for each head, or one array of all, (heads, embed_dim, d_k). In the column convention (d_k, embed_dim),
        and so on. Lists and integers are read as float64; where dtypes differ, all become the wider one.
    w_key : sequence of array_like, (kdim, d_k)
        kdim may differ from embed_dim. The number of key heads may divide that of query heads: consecutive query
        heads then share a key head.
    w_value : sequence of array_like, (vdim, d_v)
        One for each key head.
    w_out : array_like, (heads * d_v, d_out)
        (d_out, heads * d_v) with columns.
    b_query : sequence of array_like or None, (d_k,), optional
        A bias for each query head; None is 0. Default: None, which is 0 if any bias is given; otherwise the module has
        no biases.
    b_key : sequence of array_like or None, (d_k,), optional
        A bias for each key head. Default: None, as b_query.
    b_value : sequence of array_like or None, (d_v,), optional
        A bias for each value head. Default: None, as b_query.
    b_out : array_like, (d_out,), optional
        Bias of the output. Default: None, as b_query.
    convention : {'row', 'column'}
        'column': matrices multiply from the left, ``q_i = W_Q^i x``; inputs of the module stay rows. Default: 'row'.
    dropout : float
        As for `MultiheadAttention`. Default: 0.0.
    add_zero_attn : bool
        As for `MultiheadAttention`. Default: False.
    batch_first : bool
        As for `MultiheadAttention`. Default: False.
    scale : float, optional
        Factor on the scores; 1 leaves them unscaled. Default: None, ``1 / sqrt(d_k)``.

    Returns
    -------
    MultiheadAttention
        With copies of the arrays, packed in in_proj_weight if all sizes are torch's defaults.

    Raises
    ------
    TypeError
        An argument is not a sequence, or an entry not an array of real numbers.
    ValueError
        Shapes disagree; the message names the argument and the head.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> embed_dim, d_k, d_v, d_out = 6, 4, 3, 5
    >>> w_query, w_key = np.ones((2, 2, embed_dim, d_k))  # two heads
    >>> w_value, w_out = np.ones((2, embed_dim, d_v)), np.ones((2 * d_v, d_out))
    >>> mha = nn.from_heads(w_query, w_key, w_value, w_out)
    >>> mha.num_heads, mha.head_dim, mha.v_head_dim, mha.out_dim
    (2, 4, 3, 5)
    >>> nn.to_heads(mha).w_value[1].shape
    (6, 3)
    """
    columns = as_choice(convention, "convention", ("row", "column")) == "column"
    query, key, value = (
        _matrices(matrices, name, columns)
        for matrices, name in ((w_query, "w_query"), (w_key, "w_key"), (w_value, "w_value"))
    )
    _check_heads(query, key, value, columns)
    out = _out_matrix(w_out, len(query), value[0], columns)
    parts: dict[str, Arrays] = {"out_proj.weight": [out]}
    if any(bias is not None for bias in (b_query, b_key, b_value, b_out)):
        given = (b_query, "b_query", query), (b_key, "b_key", key), (b_value, "b_value", value)
        parts["in_proj_bias"] = [vector for biases in given for vector in _vectors(*biases)]
        parts["out_proj.bias"] = [_vector(b_out, "b_out", out)]
    sizes = {size for x in (query, key, value) for size in (len(x) * len(x[0]), x[0].shape[1])} | {len(out)}
    if len(sizes) == 1:  # torch's default sizes, packed into one array
        parts["in_proj_weight"] = [*query, *key, *value]
    else:
        parts |= {"q_proj_weight": query, "k_proj_weight": key, "v_proj_weight": value}
    named = {"w_query": query, "w_key": key, "w_value": value, "w_out": [out], "a bias": parts.get("in_proj_bias", [])}
    check_same_half((name, array) for name, arrays in named.items() for array in arrays)
    dtype = np.result_type(*(array for arrays in parts.values() for array in arrays))
    return MultiheadAttention.from_arrays(
        {name: np.ascontiguousarray(np.concatenate(arrays, dtype=dtype)) for name, arrays in parts.items()},
        len(query),
        num_kv_heads=len(key),
        dropout=dropout,
        add_zero_attn=add_zero_attn,
        batch_first=batch_first,
        scale=scale,
    )


def to_heads(module: MultiheadAttention, convention: Convention = "row") -> Heads:
    """Split a module's parameters into one matrix per head, as papers write them.

    Parameters
    ----------
    module : MultiheadAttention
        Without add_bias_kv and rotary, which papers' matrices cannot represent.
    convention : {'row', 'column'}
        'column': matrices multiply from the left, ``q_i = W_Q^i x``; inputs of the module stay rows. Default: 'row'.

    Returns
    -------
    Heads
        Views of the parameters: edit one and the module's next call uses it. ``from_heads(*heads)`` makes a module
        with equal parameters; pass options such as batch_first, scale and convention again.

    Raises
    ------
    TypeError
        module is not a MultiheadAttention.
    ValueError
        module has bias_k and bias_v, or rotary.

    Examples
    --------
    >>> from pyattn import nn
    >>> mha = nn.MultiheadAttention(8, 2, bias=False)
    >>> heads = nn.to_heads(mha)
    >>> heads.w_query[0][...] = 0  # head 0 attends to everything alike
    >>> float(abs(mha.in_proj_weight[:4]).max())
    0.0
    """
    if not isinstance(module, MultiheadAttention):
        kind = f"{type(module).__module__}.{type(module).__qualname__}"
        fix = "; pyattn.interop.torch.from_torch converts one of torch" if kind.startswith("torch.") else ""
        raise TypeError(f"module is of type {kind}, expected a pyattn.nn.MultiheadAttention{fix}")
    if module.bias_k is not None:
        raise ValueError("module has bias_k and bias_v, which to_heads does not support; read them from state_dict()")
    if module.rotary is not None:
        raise ValueError("module has rotary, which to_heads does not support; read the matrices from state_dict()")
    counts = module.num_heads, module.num_kv_heads, module.num_kv_heads
    pairs = list(zip(in_projections(module.state_dict()), counts, strict=True))
    query, key, value = (np.split(projection.weight, count) for projection, count in pairs)
    b_query, b_key, b_value = (None if one.bias is None else np.split(one.bias, count) for one, count in pairs)
    out = module.out_proj.weight
    if as_choice(convention, "convention", ("row", "column")) == "row":
        query, key, value = ([matrix.T for matrix in matrices] for matrices in (query, key, value))
        out = out.T
    return Heads(query, key, value, out, b_query, b_key, b_value, module.out_proj.bias)


def _entries(given: Iterable[Any], name: str) -> list[Any]:
    try:
        return list(given)
    except TypeError:
        kind = type(given).__name__
        raise TypeError(f"{name} is of type {kind}, expected a sequence of arrays, one for each head") from None


def _matrices(given: Iterable[npt.ArrayLike], name: str, columns: bool) -> Arrays:
    """Read matrices of one shape, as (dim, embed_dim)."""
    matrices = [_core.as_real(entry, f"{name}[{n}]") for n, entry in enumerate(_entries(given, name))]
    if not matrices:
        raise ValueError(f"{name} is empty, expected a matrix for each head")
    for n, matrix in enumerate(matrices):
        if matrix.ndim != 2 or matrix.size == 0:
            expected = "(dim, embed_dim)" if columns else "(embed_dim, dim)"
            raise ValueError(f"{name}[{n}] has shape {matrix.shape}, expected {expected}, a matrix for each head")
        if matrix.shape != matrices[0].shape:
            raise ValueError(f"{name}[{n}] has shape {matrix.shape}, expected {matrices[0].shape} as {name}[0]")
    return [matrix if columns else matrix.T for matrix in matrices]


def _check_heads(query: Arrays, key: Arrays, value: Arrays, columns: bool) -> None:
    """Check the numbers of heads, and that keys and queries have equal sizes."""
    if len(query) % len(key):
        raise ValueError(f"w_key has {len(key)} entries, expected {len(query)} as w_query, or a divisor of that")
    if len(value) != len(key):
        raise ValueError(f"w_value has {len(value)} entries, expected {len(key)} as w_key")
    wanted = (len(query[0]), key[0].shape[1])
    if key[0].shape != wanted:
        shapes = [shape if columns else shape[::-1] for shape in (key[0].shape, wanted, query[0].shape)]
        raise ValueError(f"w_key[0] has shape {shapes[0]}, expected {shapes[1]}: w_query[0] has shape {shapes[2]}")


def _out_matrix(w_out: npt.ArrayLike, heads: int, value: npt.NDArray[Any], columns: bool) -> npt.NDArray[Any]:
    """Read w_out as (d_out, heads * d_v)."""
    given = _core.as_real(w_out, "w_out")
    out, wide = given if columns else given.T, heads * len(value)
    if out.ndim == 2 and out.shape[1] == wide and len(out) > 0:
        return out
    expected = f"(d_out, {wide})" if columns else f"({wide}, d_out)"
    message = f"w_out has shape {given.shape}, expected {expected}: {heads} heads with d_v = {len(value)}"
    if out.ndim == 2 and len(out) == heads * value.shape[1]:
        message += f"; convention={'row' if columns else 'column'!r} reads all matrices transposed"
    elif out.ndim == 2 and len(out) == wide:
        message += "; if its axes are the other way round, pass w_out.T"
    elif out.ndim == 2 and out.shape[1] == heads * value.shape[1]:
        message += "; if the axes of w_query, w_key and w_value are the other way round, transpose each matrix"
    raise ValueError(message)


def _vectors(given: Iterable[npt.ArrayLike | None] | None, name: str, matrices: Arrays) -> Arrays:
    """Read a bias for each matrix."""
    entries = [None] * len(matrices) if given is None else _entries(given, name)
    if len(entries) != len(matrices):
        raise ValueError(f"{name} has {len(entries)} entries, expected {len(matrices)} as w{name[1:]}")
    pairs = enumerate(zip(entries, matrices, strict=True))
    return [_vector(entry, f"{name}[{n}]", matrix) for n, (entry, matrix) in pairs]


def _vector(given: npt.ArrayLike | None, name: str, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Read the bias of a matrix; None becomes 0, in a dtype that does not widen the others."""
    vector = np.zeros(len(matrix), matrix.dtype) if given is None else _core.as_real(given, name)
    size = len(matrix)
    if vector.shape != (size,):
        raise ValueError(f"{name} has shape {vector.shape}, expected ({size},): w{name[1:]} gives {size} features")
    return vector

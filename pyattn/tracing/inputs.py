"""Check the arguments of a trace. Matrices become float64 copies in the row convention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.reference as reference
from pyattn._util.arguments import as_choice, as_count, as_scale
from pyattn._util.halves import as_float32
from pyattn._util.typing import Align, Convention, EmptyRows, Score
from pyattn.tracing.compute import Options
from pyattn.tracing.weights import Normalize

__all__ = [
    "check_pairs",
    "read_convention",
    "read_entry",
    "read_given",
    "read_mask",
    "read_matrix",
    "read_options",
    "read_real",
    "read_tokens",
]

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
_MAX_DECIMALS = 15  # the decimal digits of a float64


def read_convention(convention: object) -> Convention:
    """Check the argument convention."""
    read: Convention = as_choice(convention, "convention", get_args(Convention))
    return read


def read_real(x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Read an array of real numbers, of float16 to longdouble; it may share the caller's memory."""
    array = _core.as_array(x, name)
    if array.dtype.kind in "US":
        hint = "; tokens takes the names of inputs" if name == "x" else ""
        raise TypeError(f"{name} holds text: pass numbers, such as a vector for each word{hint}")
    return array.astype(np.float64) if array.dtype.kind == "f" else as_float32(_core.as_real(x, name))


def read_matrix(x: npt.ArrayLike, name: str, axes: tuple[str, str], convention: Convention = "row") -> Array:
    """Read a matrix as a float64 copy in the row convention; `axes` names its axes there."""
    matrix = read_real(x, name)
    if matrix.ndim != 2:
        expected = ", ".join(axes[::-1] if convention == "column" else axes)
        one = f": trace one matrix, such as {name}[{', '.join('0' * (matrix.ndim - 2))}]" if matrix.ndim > 2 else ""
        if matrix.ndim == 1 and name in ("x", "query") and convention == "row":
            one = f"; for a single input, pass numpy.atleast_2d({name})"
        raise ValueError(f"{name} has shape {matrix.shape}; it must be ({expected}){one}")
    if matrix.size == 0:
        raise ValueError(f"{name} has shape {matrix.shape}; it must not be empty")
    return np.array(matrix.T if convention == "column" else matrix, np.float64, order="C")


def read_entry(
    x: npt.ArrayLike, name: str, axes: tuple[str, str], batch_first: bool, convention: Convention = "row"
) -> Array:
    """Read an input of a module as `read_matrix` does; the message names an entry of a batch."""
    given = read_real(x, name)
    if given.ndim == 3 and convention == "row":
        entry = f"{name}[0]" if batch_first else f"{name}[:, 0]"
        raise ValueError(
            f"{name} has shape {given.shape}; it must be ({', '.join(axes)}): trace one entry, such as {entry}"
        )
    return read_matrix(given, name, axes, convention)


def read_given(
    x: npt.ArrayLike,
    weights: Mapping[str, npt.ArrayLike],
    bias: Sequence[npt.ArrayLike | None] | None,
    convention: Convention,
) -> dict[str, Array]:
    """Read x, the weights of query, key and value, and the biases that are not None, as (1, dim)."""
    given = {"x": read_matrix(x, "x", ("length", "embed_dim"), convention)}
    embed_dim = given["x"].shape[1]
    for name, weight in weights.items():
        given[f"w_{name}"] = matrix = read_matrix(weight, f"w_{name}", ("embed_dim", "dim"), convention)
        if len(matrix) != embed_dim:
            column = convention == "column"
            own, of_x = (array.T.shape if column else array.shape for array in (matrix, given["x"]))
            swapped = "; if its axes are the other way round, transpose it" if matrix.shape[1] == embed_dim else ""
            expected = f"(dim, {embed_dim})" if column else f"({embed_dim}, dim)"
            raise ValueError(f"w_{name} has shape {own}; it must be {expected}, as x has shape {of_x}{swapped}")
    for n, (name, entry) in enumerate(zip(weights, _three(bias), strict=True)):
        if entry is not None:
            vector, size = read_real(entry, f"bias[{n}]"), given[f"w_{name}"].shape[1]
            if vector.shape != (size,):
                raise ValueError(f"bias[{n}] has shape {vector.shape}; it must be ({size},), as w_{name} gives {size}")
            given[f"b_{name}"] = np.array(vector, np.float64)[np.newaxis]
    return given


def _three(bias: Sequence[npt.ArrayLike | None] | None) -> list[npt.ArrayLike | None]:
    """Read the argument bias as a list of three entries."""
    if bias is None:
        return [None, None, None]
    needs = "it needs three: for queries, keys and values, each an array or None"
    try:
        entries = list(bias)
    except TypeError:
        raise TypeError(f"bias is of type {type(bias).__name__}; {needs}") from None
    if len(entries) != 3:
        raise ValueError(f"bias has {len(entries)} entries; {needs}")
    return entries


def check_pairs(keys: Array, values: Array, names: tuple[str, str], convention: Convention) -> None:
    """Raise ValueError if the numbers of keys and values differ."""
    if len(keys) != len(values):
        lines = f"{convention}s" if len(values) != 1 else convention
        raise ValueError(f"{names[1]} has {len(values)} {lines}, {names[0]} has {len(keys)}: each key needs one value")


def read_tokens(tokens: Sequence[str] | None, name: str, length: int) -> list[str] | None:
    """Read the names of inputs as a list of `length` strings."""
    if tokens is None:
        return None
    if isinstance(tokens, str):
        raise TypeError(f"{name} is one string; it must be {length} strings: pass {name}.split() or list({name})")
    try:
        read = list(tokens)
    except TypeError:
        raise TypeError(f"{name} is of type {type(tokens).__name__}; it must be {length} strings") from None
    for n, token in enumerate(read):
        if not isinstance(token, str):
            raise TypeError(
                f"{name}[{n}] is of type {type(token).__name__}; it must be a str: pass list(map(str, {name}))"
            )
    if len(read) != length:
        raise ValueError(f"{name} has {len(read)} {'entry' if len(read) == 1 else 'entries'}; it must have {length}")
    return [str(token) for token in read]


def read_options(
    queries: Array,
    keys: Array,
    names: tuple[str, str],
    *,
    score: Score,
    score_weight: npt.ArrayLike | None,
    scale: SupportsFloat | None,
    normalize: Normalize,
    round_weights: SupportsIndex | None,
    convention: Convention,
    tokens: list[str] | None,
    key_tokens: list[str] | None,
    empty_rows: EmptyRows = "zero",
) -> Options:
    """Check the options of a trace; messages use `names`, the arguments that gave queries and keys."""
    as_choice(score, "score", get_args(Score))
    q_dim, key_dim = queries.shape[1], keys.shape[1]
    if q_dim != key_dim and score != "bilinear":
        raise ValueError(
            f"queries ({names[0]}) have size {q_dim}, keys ({names[1]}) have size {key_dim}: "
            "make them equal, or pass score='bilinear'"
        )
    as_choice(normalize, "normalize", get_args(Normalize))
    factor = as_scale(scale)
    if factor is None:
        factor = float(reference.default_scale(score, q_dim))
    weight = _read_score_weight(score, score_weight, (q_dim, key_dim))
    decimals = None if round_weights is None else as_count(round_weights, "round_weights", least=0, most=_MAX_DECIMALS)
    as_choice(empty_rows, "empty_rows", get_args(EmptyRows))
    return Options(score, weight, factor, normalize, decimals, empty_rows, convention, tokens, key_tokens)


def _read_score_weight(score: Score, given: npt.ArrayLike | None, dims: tuple[int, int]) -> Array | None:
    """Read the weight that 'bilinear' and 'additive' need."""
    shapes: dict[str, tuple[int, ...]] = {"bilinear": dims, "additive": dims[:1]}
    if score not in shapes:
        if given is not None:
            raise ValueError(f"score={score!r} takes no score_weight; 'bilinear' and 'additive' do")
        return None
    if given is None:
        raise ValueError(f"score={score!r} needs a score_weight of shape {shapes[score]}")
    weight = np.array(read_real(given, "score_weight"), np.float64)
    if weight.shape != shapes[score]:
        raise ValueError(f"score_weight has shape {weight.shape}; score={score!r} needs {shapes[score]}")
    weight.flags.writeable = False
    return weight


def read_mask(
    q_len: int, kv_len: int, attn_mask: npt.ArrayLike | None, is_causal: bool, align: Align | None = None
) -> tuple[Bools | None, Array | None]:
    """Convert masks to visible pairs, None if all are visible, and a bias for the scores, or None."""
    if attn_mask is None and not is_causal:
        return None, None
    query, key = np.zeros((q_len, 1)), np.zeros((kv_len, 1))
    # This call on zeros only lets the core check the masks, with its own messages and warnings.
    _core.attention(query, key, key, attn_mask=attn_mask, is_causal=is_causal, align=align)
    mask = None if attn_mask is None else _core.as_array(attn_mask, "attn_mask")
    visible = reference.visible_pairs((q_len, kv_len), False, mask, is_causal, align)
    if mask is None or mask.dtype == np.bool_ or not mask.any():  # a mask of zeros adds nothing
        bias = None
    else:
        bias = np.broadcast_to(mask.astype(np.float64), visible.shape)
    return (None if visible.all() else np.array(visible)), bias

"""Multi-head attention: a trace for each head, and the projection of the heads side by side as the last step."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.reference as reference
from pyattn._util.in_proj import in_projections
from pyattn.tracing import inputs
from pyattn.tracing.data import Settings, Step, Trace, make_trace

__all__ = ["HeadTraces", "join_heads", "trace_heads"]

Array = npt.NDArray[np.float64]
_NAMES = ("query", "key", "value")


@dataclass(frozen=True, eq=False, repr=False)
class HeadTraces:
    """What `pyattn.nn.MultiheadAttention.trace` returns.

    Attributes
    ----------
    heads : tuple of Trace
        One for each head, in float64.
    concatenated : ndarray, (L, num_heads * v_head_dim)
        The heads' outputs side by side.
    w_out : ndarray, (num_heads * v_head_dim, out_dim)
        ``out_proj.weight``, turned: one input per row.
    b_out : ndarray, (1, out_dim), or None
        ``out_proj.bias``.
    outputs : ndarray, (L, out_dim)
        ``concatenated @ w_out + b_out``: what the module returns.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> traced = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8))
    >>> traced
    HeadTraces(2 heads, outputs 3 x 8)
    >>> traced.heads[1].queries.shape, traced.projection.number
    ((3, 4), 9)
    """

    heads: tuple[Trace, ...]
    concatenated: Array
    w_out: Array
    b_out: Array | None
    outputs: Array

    @property
    def projection(self) -> Step:
        """The last step, which comes after the eight of each head."""
        arrays = {"concatenated": self.concatenated, "w_out": self.w_out, "b_out": self.b_out, "outputs": self.outputs}
        formula = "outputs = concatenated @ w_out" + ("" if self.b_out is None else " + b_out")
        note = f"The outputs of all {len(self.heads)} heads side by side, and a linear transformation of them."
        known = {name: array for name, array in arrays.items() if array is not None}
        return Step(9, "Project the heads", formula, known, note)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as lists, numbers and strings, which `json.dumps` takes.

        Returns
        -------
        dict
            heads is a list of what `Trace.to_dict` returns.
        """
        from pyattn.tracing.text import plain

        arrays = {"concatenated": self.concatenated, "w_out": self.w_out, "b_out": self.b_out, "outputs": self.outputs}
        return {
            "heads": [head.to_dict() for head in self.heads],
            **{name: plain(array) for name, array in arrays.items()},
        }

    def to_markdown(self) -> str:
        """Return the steps of each head, and the last, as Markdown.

        Returns
        -------
        str
            Large matrices are shown by their first and last rows and columns.
        """
        from pyattn.tracing.markdown import step_markdown, to_markdown

        parts = [f"# Head {n}\n\n{to_markdown(head)}" for n, head in enumerate(self.heads, 1)]
        return "\n".join([*parts, f"# All heads\n\n{step_markdown(self.projection, self.heads[0])}\n"])

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as a page that needs nothing else: no network, no library.

        Parameters
        ----------
        path : str or path
            Of the file, which is replaced.
        """
        from pyattn.tracing.page import write_page

        write_page(self._repr_html_(), path)

    def _repr_html_(self) -> str:
        from pyattn.tracing.html import heads_html

        return heads_html(self.heads, self.projection)

    def __str__(self) -> str:
        """Write all steps of all heads as text."""
        from pyattn.tracing.text import step_text, to_text

        parts = [f"Head {n} of {len(self.heads)}\n\n{to_text(head)}\n" for n, head in enumerate(self.heads, 1)]
        return "\n".join([*parts, step_text(self.projection, self.heads[0])]).rstrip("\n")

    def __repr__(self) -> str:
        """Tell the sizes."""
        return f"HeadTraces({len(self.heads)} heads, outputs {self.outputs.shape[0]} x {self.outputs.shape[1]})"


def trace_heads(
    module: Any,
    given: tuple[npt.ArrayLike, npt.ArrayLike | None, npt.ArrayLike | None],
    masks: Mapping[str, Any],
    names: tuple[Sequence[str] | None, Sequence[str] | None],
) -> HeadTraces:
    """Trace a `MultiheadAttention`, read through its state_dict and its sizes.

    Parameters
    ----------
    module : MultiheadAttention
        It is called once, because it has the rules on its arguments.
    given : (array_like, array_like or None, array_like or None)
        x, key and value, as the method has them.
    masks : mapping of str to object
        attn_mask, key_padding_mask, is_causal, window, key_lengths and empty_rows, as the method has them: True =
        blocked.
    names : (sequence of str or None, sequence of str or None)
        Tokens of queries and keys.

    Returns
    -------
    HeadTraces
        Without dropout.

    Raises
    ------
    ValueError
        There is a batch, or what the module says.
    """
    if getattr(module, "rotary", None) is not None:
        raise ValueError("module has rotary, and none of the eight steps turns queries and keys")
    arrays = _unbatched(given, module.batch_first)
    dtype = module.out_proj.weight.dtype
    module(*(array.astype(dtype) for array in arrays), need_weights=False, **masks)
    own = given[1] is None and given[2] is None
    state = {name: np.asarray(array, np.float64) for name, array in module.state_dict().items()}
    count, kv_count = module.num_heads, module.num_kv_heads
    parts = _parts_of(state, (count, kv_count, kv_count))
    extras = _extras_of(state, kv_count, module.head_dim, module.v_head_dim, module.add_zero_attn)
    tokens = inputs.names_of(names[0], "tokens", len(arrays[0]))
    key_tokens = inputs.names_of(names[1], "key_tokens", len(arrays[1]))
    key_tokens = tokens if key_tokens is None and own else key_tokens
    if key_tokens is not None:
        key_tokens = key_tokens + extras[2]
    scale = float(reference.default_scale("dot", module.head_dim))
    settings = Settings("dot", None, scale, "softmax", None, "row", tokens, key_tokens, masks["empty_rows"])
    traces = []
    for h in range(count):
        kv = h // (count // kv_count)
        weights = {name: parts[name][n] for name, n in zip(parts, (h, kv, kv) * 2, strict=False)}
        hiding = _hiding_of(masks, h, len(arrays[0]), len(arrays[1]), len(extras[2]))
        projected = _projected(arrays, weights, (extras[0][kv], extras[1][kv]))
        shown = {"x": arrays[0].copy(), **weights} if own else {}
        traces.append(make_trace(shown, *projected, hiding, settings))
    b_out = state.get("out_proj.bias")
    return join_heads(traces, state["out_proj.weight"].T.copy(), None if b_out is None else b_out[np.newaxis].copy())


def join_heads(traces: Sequence[Trace], w_out: Array, b_out: Array | None) -> HeadTraces:
    """Put the heads side by side, and project them.

    Parameters
    ----------
    traces : sequence of Trace
        One for each head.
    w_out : ndarray, (num_heads * v_head_dim, out_dim)
        The projection's weight, which becomes the result's.
    b_out : ndarray, (1, out_dim), or None
        Its bias.

    Returns
    -------
    HeadTraces
        With read-only arrays.
    """
    concatenated = np.concatenate([trace.outputs for trace in traces], axis=1)
    outputs = np.asarray(reference.linear(concatenated, w_out.T, None if b_out is None else b_out[0]), np.float64)
    for array in (concatenated, w_out, b_out, outputs):
        if array is not None:
            array.flags.writeable = False
    return HeadTraces(tuple(traces), concatenated, w_out, b_out, outputs)


def _unbatched(
    given: tuple[npt.ArrayLike, npt.ArrayLike | None, npt.ArrayLike | None], batch_first: bool
) -> list[npt.NDArray[Any]]:
    """Query, key and value; what is left out is the one before."""
    arrays: list[npt.NDArray[Any]] = []
    for array, name in zip(given, ("x", "key", "value"), strict=True):
        read = arrays[-1] if array is None else np.asarray(inputs.read_real(array, name), np.float64)
        if read.ndim == 3:
            entry = f"{name}[0]" if batch_first else f"{name}[:, 0]"
            raise ValueError(
                f"{name} has shape {read.shape}, expected (length, features): trace one of the batch, such as {entry}"
            )
        if read.size == 0:
            raise ValueError(f"{name} has shape {read.shape}, expected something to look at in each axis")
        arrays.append(read)
    return arrays


def _parts_of(state: Mapping[str, Array], counts: tuple[int, int, int]) -> dict[str, list[Array]]:
    """Weights (d_x, dim) and biases (1, dim) of each head, by the trace's names; biases where there are such."""
    found = list(zip(_NAMES, in_projections(state), counts, strict=True))
    parts = {f"w_{name}": [matrix.T.copy() for matrix in np.split(one.weight, n)] for name, one, n in found}
    for name, one, n in found:
        if one.bias is not None:
            parts[f"b_{name}"] = [vector[np.newaxis].copy() for vector in np.split(one.bias, n)]
    return parts


def _extras_of(
    state: Mapping[str, Array], kv_heads: int, head_dim: int, v_head_dim: int, add_zero: bool
) -> tuple[list[Array], list[Array], list[str]]:
    """Keys and values of each head behind the given ones, in torch's order, and their names."""
    keys, values, names = np.zeros((kv_heads, 0, head_dim)), np.zeros((kv_heads, 0, v_head_dim)), []
    if "bias_k" in state:
        keys = state["bias_k"].reshape(kv_heads, 1, head_dim)
        values = state["bias_v"].reshape(kv_heads, 1, v_head_dim)
        names.append("bias_k/v")
    if add_zero:
        keys, values = (np.pad(array, ((0, 0), (0, 1), (0, 0))) for array in (keys, values))
        names.append("zero")
    return list(keys), list(values), names


def _projected(
    arrays: Sequence[npt.NDArray[Any]], weights: Mapping[str, Array], extras: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Keys, queries and values of one head."""
    with np.errstate(all="ignore"):
        query, key, value = (
            array @ weights[f"w_{name}"] + weights.get(f"b_{name}", 0.0)
            for array, name in zip(arrays, _NAMES, strict=True)
        )
    return np.concatenate([key, extras[0]]), query, np.concatenate([value, extras[1]])


def _hiding_of(
    masks: Mapping[str, Any], head: int, q_len: int, kv_len: int, extras: int
) -> tuple[npt.NDArray[np.bool_] | None, Array | None]:
    """Turn torch's masks, True = blocked, into what a head sees and adds; keys behind the given ones stay visible."""
    window, lengths = masks["window"], masks["key_lengths"]
    visible = np.array(
        reference.visible_pairs(
            (q_len, kv_len),
            False,
            is_causal=masks["is_causal"],
            window=tuple(window) if isinstance(window, list) else window,
            key_lengths=lengths,
        )
    )
    bias = np.zeros((q_len, kv_len))
    attn_mask, padding = (
        None if masks[name] is None else _core.as_array(masks[name], name) for name in ("attn_mask", "key_padding_mask")
    )
    if attn_mask is not None and attn_mask.ndim == 3:
        attn_mask = attn_mask[head]
    added = False
    for mask in (attn_mask, padding):
        if mask is not None and mask.dtype == np.bool_:
            visible &= ~mask
        elif mask is not None:
            bias, visible, added = bias + mask, visible & (mask != -np.inf), True
    visible = np.pad(visible, ((0, 0), (0, extras)), constant_values=True)
    return (None if visible.all() else visible), (np.pad(bias, ((0, 0), (0, extras))) if added else None)

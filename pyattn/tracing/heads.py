"""Multi-head attention: traces of all heads, forward and backward, and the steps that join them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
import pyattn.reference as reference
from pyattn._util.arguments import as_index
from pyattn._util.halves import compute_dtype
from pyattn._util.in_proj import in_projections
from pyattn._util.names import unknown_field
from pyattn._util.typing import Convention
from pyattn.masks import Mask
from pyattn.tracing.compute import PROJECTED, Options, as_rows, compute, project
from pyattn.tracing.dicts import as_plain, check_entries, read_numbers
from pyattn.tracing.gradients import join_gradients, read_gradient
from pyattn.tracing.inputs import read_convention, read_entry, read_matrix, read_tokens
from pyattn.tracing.render.backward_page import TITLE, backward_heads_html
from pyattn.tracing.render.backward_steps import joint_steps
from pyattn.tracing.render.html import heads_html
from pyattn.tracing.render.markdown import steps_markdown
from pyattn.tracing.render.page import save_page
from pyattn.tracing.render.steps import TraceStep, concatenating, projecting
from pyattn.tracing.traces import BackwardTrace, Trace

__all__ = ["BackwardHeadTraces", "HeadTraces", "trace_heads"]

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False, repr=False)
class HeadTraces:
    """Traces of all heads of multi-head attention.

    `pyattn.nn.MultiheadAttention.trace` returns it. Printed, it is text; in a notebook, a page with the weights of all
    heads and the steps of each. Shapes below are those of ``convention="row"``; with ``convention="column"`` every
    array is transposed.

    Attributes
    ----------
    heads : tuple of Trace
        One for each head, in float64.
    concatenated : ndarray, (L, num_heads * v_head_dim)
        Outputs of the heads side by side; stacked in the column convention.
    w_out : ndarray, (num_heads * v_head_dim, out_dim)
        Transpose of ``out_proj.weight``; that matrix itself in the column convention.
    b_out : ndarray, (1, out_dim), or None
        ``out_proj.bias``.
    outputs : ndarray, (L, out_dim)
        ``concatenated @ w_out + b_out``: the module's output. ``w_out @ concatenated + b_out`` with columns.
    num_kv_heads : int
        Number of key and value heads; each serves ``len(heads) // num_kv_heads`` heads in a row.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> traced = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8))
    >>> traced
    HeadTraces(2 heads, outputs 3 x 8)
    >>> traced.heads[1].queries.shape, traced.concatenated.shape
    ((3, 4), (3, 8))
    >>> traced.concatenation.title, traced.projection.title
    ('Concatenate the heads', 'Multiply by W_O: the outputs')
    """

    heads: tuple[Trace, ...]
    concatenated: Array
    w_out: Array
    b_out: Array | None
    outputs: Array
    num_kv_heads: int

    @property
    def convention(self) -> Convention:
        """'row' or 'column', as of every head."""
        return self.heads[0].convention

    @property
    def concatenation(self) -> TraceStep:
        """The ninth step: the outputs of all heads in one matrix."""
        return concatenating(self.heads, self.concatenated)

    @property
    def projection(self) -> TraceStep:
        """The tenth step: the concatenated outputs times ``w_out``."""
        arrays = {"concatenated": self.concatenated, "w_out": self.w_out, "b_out": self.b_out, "outputs": self.outputs}
        return projecting({name: array for name, array in arrays.items() if array is not None}, self.heads[0])

    def backward(self, grad_outputs: npt.ArrayLike) -> BackwardHeadTraces:
        """Compute all steps backwards: the gradients of a loss.

        Parameters
        ----------
        grad_outputs : array_like, (L, out_dim)
            Gradient of a loss with respect to each number of outputs; (out_dim, L) with ``convention="column"``.

        Returns
        -------
        BackwardHeadTraces
            Gradients of the output projection and of every head, and those of the weights and inputs of all heads.

        Raises
        ------
        ValueError
            grad_outputs has another shape than outputs, or a head has rounded weights, which have no gradient.
        TypeError
            grad_outputs is not an array of real numbers.

        Notes
        -----
        The chain rule: ``dW_O = concatenated^T dO`` and ``dconcatenated = dO W_O^T``. The columns of the latter are the
        gradients of each head's outputs, from which `Trace.backward` computes the others.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> traced = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8))
        >>> backward = traced.backward(np.ones((3, 8)))
        >>> backward
        BackwardHeadTraces(2 heads, outputs 3 x 8)
        >>> backward.heads[1].grad_w_query.shape, backward.grad_w_query.shape, backward.grad_w_out.shape
        ((8, 4), (8, 8), (8, 8))
        """
        return BackwardHeadTraces(self, **_compute_backward(self, grad_outputs))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as lists, numbers and strings for `json.dumps`.

        Returns
        -------
        dict
            heads is a list of the dicts of `Trace.to_dict`.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> list(pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8)).to_dict())
        ['heads', 'concatenated', 'w_out', 'b_out', 'outputs', 'num_kv_heads']
        """
        names = ("concatenated", "w_out", "b_out", "outputs", "num_kv_heads")
        return {
            "heads": [head.to_dict() for head in self.heads],
            **{name: as_plain(getattr(self, name)) for name in names},
        }

    @classmethod
    def from_dict(cls, entries: Mapping[str, Any]) -> HeadTraces:
        """Make traces from what `to_dict` returned.

        As in `Trace.from_dict`, only the inputs are read: heads, w_out, b_out and num_kv_heads. All else is computed
        again.

        Parameters
        ----------
        entries : mapping of str to object
            heads, w_out, b_out and num_kv_heads.

        Returns
        -------
        HeadTraces
            Equal to the original.

        Raises
        ------
        ValueError
            A field is missing, is not a matrix, or does not match the others.
        TypeError
            A field has another type.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> traced = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8))
        >>> pyattn.tracing.HeadTraces.from_dict(traced.to_dict())
        HeadTraces(2 heads, outputs 3 x 8)
        """
        check_entries(entries, ("heads", "w_out", "b_out", "num_kv_heads"))
        if not isinstance(entries["heads"], list) or not entries["heads"]:
            raise ValueError("heads must be a list of traces: pass what to_dict() returned")
        heads = tuple(Trace.from_dict(head) for head in entries["heads"])
        if len({head.convention for head in heads}) > 1:
            raise ValueError("heads have different conventions: all must be 'row', or all 'column'")
        convention = heads[0].convention
        axes = ("num_heads * v_head_dim", "out_dim")
        w_out = read_matrix(read_numbers(entries, "w_out"), "w_out", axes, convention)
        b_out = None if entries["b_out"] is None else as_rows(read_numbers(entries, "b_out"), convention)
        num_kv_heads = as_index(entries["num_kv_heads"], "num_kv_heads")
        _check_joined(heads, w_out, b_out)
        _check_shared(heads, num_kv_heads)
        return cls(heads, **_join(heads, w_out, b_out), num_kv_heads=num_kv_heads)

    def to_markdown(self) -> str:
        """Return the steps of each head, and the last, as Markdown.

        Returns
        -------
        str
            Matrices above 12 rows or columns are shown by the first 6 and the last 3.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> print(pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8)).to_markdown()[:36])
        # Head 1
        <BLANKLINE>
        ## Step 1: Prepare inputs
        <BLANKLINE>
        """
        return "\n".join(
            [*_each_markdown(self.heads), f"# All heads\n\n{steps_markdown([self.concatenation, self.projection])}"]
        )

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as one self-contained HTML page, which works offline.

        Parameters
        ----------
        path : str or path
            File to write; an existing one is replaced.

        Examples
        --------
        >>> import numpy as np, pathlib, pyattn, tempfile
        >>> traced = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     traced.save_html(pathlib.Path(folder, "heads.html"))
        """
        save_page(heads_html(self.heads, (self.concatenation, self.projection), page=True), path)

    def _repr_html_(self) -> str:
        return heads_html(self.heads, (self.concatenation, self.projection))

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name; those of one head are in each."""
            if name.startswith("grad") or name in ("jvp", "vjp"):
                raise AttributeError(
                    f"a HeadTraces has no {name!r}; traced.backward(grad_outputs) computes all gradients",
                    name=name,
                    obj=self,
                )
            names = [*self.__dataclass_fields__, "concatenation", "projection", "convention"]
            unknown_field(self, name, names, {field: f"heads[0].{field}" for field in Trace.__dataclass_fields__})

    def __str__(self) -> str:
        """Write all steps of all heads as text."""
        return "\n".join(
            [*_each_text(self.heads), "All heads\n", str(self.concatenation), str(self.projection)]
        ).rstrip("\n")

    def __repr__(self) -> str:
        """Show the sizes."""
        return f"HeadTraces({len(self.heads)} heads, outputs {self.outputs.shape[0]} x {self.outputs.shape[1]})"


@dataclass(frozen=True, eq=False, repr=False)
class BackwardHeadTraces:
    """Every gradient of multi-head attention, from the outputs back to the inputs.

    `HeadTraces.backward` returns it. All arrays are float64 and read-only, and have the shape of what they are the
    gradient of. Printed, it is text; in a notebook, a page. Shapes below are those of ``convention="row"``; with
    ``convention="column"`` every array is transposed.

    In cross-attention heads begin at their third step: the last gradients are ``heads[i].grad_queries``, grad_keys and
    grad_values, and those of x and of the heads' weights and biases are None. The last rows of ``heads[i].grad_keys``
    and grad_values are those of extra keys and values, such as those of add_bias_kv.

    Attributes
    ----------
    traces : HeadTraces
        The forward pass.
    heads : tuple of BackwardTrace
        The eight steps backwards of each head.
    grad_outputs : ndarray, (L, out_dim)
        As given.
    grad_w_out : ndarray, (num_heads * v_head_dim, out_dim)
        ``concatenated.T @ grad_outputs``.
    grad_b_out : ndarray, (1, out_dim), or None
        Sum of grad_outputs over the inputs; None without a bias.
    grad_concatenated : ndarray, (L, num_heads * v_head_dim)
        ``grad_outputs @ w_out.T``: ``heads[i].grad_outputs`` side by side.
    grad_w_key : ndarray, (embed_dim, num_kv_heads * head_dim), or None
        Those of the heads side by side. Heads that share keys and values share their weights, too: the sum of theirs.
    grad_w_query : ndarray, (embed_dim, num_heads * head_dim), or None
        Those of the heads side by side.
    grad_w_value : ndarray, (embed_dim, num_kv_heads * v_head_dim), or None
        As grad_w_key.
    grad_b_key, grad_b_query, grad_b_value : ndarray, (1, ...), or None
        As the gradients of the weights; None without a bias.
    grad_x : ndarray, (L, embed_dim), or None
        Sum of ``heads[i].grad_x``.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> mha = pyattn.MultiheadAttention(8, 2, rng=0, dtype="float64")
    >>> backward = mha.trace(np.eye(3, 8)).backward(np.ones((3, 8)))
    >>> output, back = mha.vjp(*[np.eye(3, 8)] * 3)
    >>> grad_query, grad_key, grad_value = back(np.ones((3, 8)))
    >>> bool(np.allclose(backward.grad_x, grad_query + grad_key + grad_value))
    True
    >>> bool(np.allclose(backward.grad_w_out.T, mha.grads["out_proj.weight"]))
    True
    """

    traces: HeadTraces
    heads: tuple[BackwardTrace, ...]
    grad_outputs: Array
    grad_w_out: Array
    grad_b_out: Array | None
    grad_concatenated: Array
    grad_w_key: Array | None
    grad_w_query: Array | None
    grad_w_value: Array | None
    grad_b_key: Array | None
    grad_b_query: Array | None
    grad_b_value: Array | None
    grad_x: Array | None

    @property
    def projection(self) -> TraceStep:
        """The tenth step backwards: from the outputs through ``w_out``."""
        return self._joint_steps[0]

    @property
    def concatenation(self) -> TraceStep:
        """The ninth step backwards: a part of the gradient for each head."""
        return self._joint_steps[1]

    @property
    def joint_weights(self) -> TraceStep:
        """The third step backwards of all heads: their weights in one matrix."""
        return self._joint_steps[2]

    @property
    def joint_inputs(self) -> TraceStep:
        """The first step backwards of all heads: the sum of their gradients of x."""
        return self._joint_steps[3]

    @property
    def arrays(self) -> dict[str, Array]:
        """All gradients of all heads together by name, without those that are None."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[2:]}
        return {name: array for name, array in fields.items() if array is not None}

    @property
    def _joint_steps(self) -> tuple[TraceStep, ...]:
        forward = {"concatenated": self.traces.concatenated, "w_out": self.traces.w_out}
        heads = [(head.trace, head.arrays) for head in self.heads]
        return joint_steps(heads, self.arrays, forward, self.traces.num_kv_heads)

    def to_dict(self) -> dict[str, Any]:
        """Return all gradients as lists, numbers and strings for `json.dumps`.

        `HeadTraces.to_dict` returns the forward pass.

        Returns
        -------
        dict
            heads is a list of the dicts of `BackwardTrace.to_dict`.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> backward = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8)).backward(np.ones((3, 8)))
        >>> list(backward.to_dict())[:5]
        ['heads', 'grad_outputs', 'grad_w_out', 'grad_b_out', 'grad_concatenated']
        """
        return {
            "heads": [head.to_dict() for head in self.heads],
            **{field.name: as_plain(getattr(self, field.name)) for field in dataclasses.fields(self)[2:]},
        }

    def to_markdown(self) -> str:
        """Return the steps of each head, and those of all heads, as Markdown.

        Returns
        -------
        str
            Matrices above 12 rows or columns are shown by the first 6 and the last 3.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> backward = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8)).backward(np.ones((3, 8)))
        >>> [line for line in backward.to_markdown().splitlines() if line.startswith("# ")]
        ['# All heads', '# Head 1', '# Head 2', '# All heads: weights and inputs']
        """
        steps = self._joint_steps
        first, last = steps_markdown(steps[:2]), steps_markdown(steps[2:])
        each = _each_markdown(self.heads)
        return "\n".join([f"# All heads\n\n{first}", *each, f"# All heads: weights and inputs\n\n{last}"])

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as one self-contained HTML page, which works offline.

        Parameters
        ----------
        path : str or path
            File to write; an existing one is replaced.

        Examples
        --------
        >>> import numpy as np, pathlib, pyattn, tempfile
        >>> backward = pyattn.MultiheadAttention(8, 2, rng=0).trace(np.eye(3, 8)).backward(np.ones((3, 8)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     backward.save_html(pathlib.Path(folder, "backward.html"))
        """
        save_page(self._to_html(page=True), path, TITLE)

    def _repr_html_(self) -> str:
        return self._to_html()

    def _to_html(self, page: bool = False) -> str:
        return backward_heads_html([(head.trace, head.arrays) for head in self.heads], self._joint_steps, page)

    if not TYPE_CHECKING:  # type checkers would then accept every name

        def __getattr__(self, name):
            """Refuse an unknown name; those of one head are in each."""
            names = [*self.__dataclass_fields__, "projection", "concatenation", "joint_weights", "joint_inputs"]
            one = {field: f"heads[0].{field}" for field in BackwardTrace.__dataclass_fields__}
            forward = {field: f"heads[0].trace.{field}" for field in Trace.__dataclass_fields__}
            forward |= {field: f"traces.{field}" for field in HeadTraces.__dataclass_fields__}
            short = {f"dw_{word[0]}": f"grad_w_{word}" for word in ("query", "key", "value", "out")}
            short |= {"dx": "grad_x", "grad_input": "grad_x", "grad_inputs": "grad_x"}
            known = {**one, **forward, **short}
            unknown_field(self, name, names, {**known, name: short.get(name.lower(), known.get(name))})

    def __str__(self) -> str:
        """Write all steps of all heads as text."""
        steps = self._joint_steps
        first, last = map(str, steps[:2]), map(str, steps[2:])
        parts = ["All heads\n", *first, *_each_text(self.heads), "All heads: weights and inputs\n", *last]
        return "\n".join(parts).rstrip("\n")

    def __repr__(self) -> str:
        """Show the sizes."""
        return f"Backward{self.traces!r}"


def _each_markdown(heads: Sequence[Trace | BackwardTrace]) -> list[str]:
    return [f"# Head {n}\n\n{head.to_markdown()}" for n, head in enumerate(heads, 1)]


def _each_text(heads: Sequence[Trace | BackwardTrace]) -> list[str]:
    return [f"Head {n} of {len(heads)}\n\n{head}\n" for n, head in enumerate(heads, 1)]


def trace_heads(
    module: Any,
    given: tuple[npt.ArrayLike, npt.ArrayLike | None, npt.ArrayLike | None],
    masks: Mapping[str, Any],
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    convention: Convention = "row",
    *,
    is_checked: bool = False,
) -> HeadTraces:
    """Trace a MultiheadAttention from its state_dict and sizes, without dropout; masks are those of its `trace`."""
    if getattr(module, "rotary", None) is not None:
        raise ValueError("module has rotary positions, which a trace does not show")
    read_convention(convention)
    inputs = _read_unbatched(given, module.batch_first, convention)
    if convention == "column":
        _check_sizes(inputs, (module.embed_dim, module.kdim, module.vdim))
    rows, features = inputs[0].shape
    looks_transposed = features != module.embed_dim and rows == module.embed_dim
    if convention == "row" and looks_transposed:
        raise ValueError(
            f"x has shape {inputs[0].shape}; it must be (length, {module.embed_dim}): if each column is an input, "
            "pass convention='column'"
        )
    if not is_checked:  # a layer has checked inputs and masks, and warned, in the names of its own arguments
        with np.errstate(all="ignore"):
            cast = [array.astype(compute_dtype(module.out_proj.weight.dtype)) for array in inputs]
        # The call checks the arguments. No frame of NumPy's is around it, so a warning names the caller's line.
        module(*cast, need_weights=False, **masks)
    is_self_attention = given[1] is None and given[2] is None
    return _trace_each(module, inputs, is_self_attention, masks, names, convention)


@np.errstate(all="ignore")
def _trace_each(
    module: Any,
    inputs: Sequence[npt.NDArray[Any]],
    is_self_attention: bool,
    masks: Mapping[str, Any],
    names: tuple[Sequence[str] | None, Sequence[str] | None],
    convention: Convention,
) -> HeadTraces:
    """Trace each head, and join them."""
    state = {name: np.asarray(array, np.float64) for name, array in module.state_dict().items()}
    count, kv_count = module.num_heads, module.num_kv_heads
    parts = _split_weights(state, (count, kv_count, kv_count))
    more_keys, more_values, more_names = _extra_keys(
        state, kv_count, module.head_dim, module.v_head_dim, module.add_zero_attn
    )
    tokens = read_tokens(names[0], "tokens", len(inputs[0]))
    key_tokens = read_tokens(names[1], "key_tokens", len(inputs[1]))
    key_tokens = tokens if key_tokens is None and is_self_attention else key_tokens
    if key_tokens is not None:
        key_tokens = key_tokens + more_names
    scale = float(reference.default_scale("dot", module.head_dim) if module.scale is None else module.scale)
    options = Options("dot", None, scale, "softmax", None, masks["empty_rows"], convention, tokens, key_tokens)
    heads = []
    for h in range(count):
        kv = h // (count // kv_count)
        weights = {name: arrays[h if name.endswith("query") else kv] for name, arrays in parts.items()}
        queries, keys, values = project(inputs, weights)
        keys, values = np.concatenate([keys, more_keys[kv]]), np.concatenate([values, more_values[kv]])
        visible, attn_bias = _read_masks(masks, h, len(inputs[0]), len(inputs[1]), len(more_names))
        shown = {"x": inputs[0].copy(), **weights} if is_self_attention else {}
        heads.append(Trace(**compute(shown, queries, keys, values, visible, attn_bias, options)))
    b_out = state.get("out_proj.bias")
    b_out = None if b_out is None else b_out[np.newaxis].copy()
    joined = _join(heads, state["out_proj.weight"].T.copy(), b_out)
    return HeadTraces(tuple(heads), **joined, num_kv_heads=kv_count)


@np.errstate(all="ignore")
def _join(heads: Sequence[Trace], w_out: Array, b_out: Array | None) -> dict[str, Any]:
    """Compute the other fields of HeadTraces, read-only and in the heads' convention; w_out and b_out are in rows."""
    concatenated = np.concatenate([head.in_rows("outputs") for head in heads], axis=1)
    outputs = np.asarray(reference.linear(concatenated, w_out.T, None if b_out is None else b_out[0]), np.float64)
    fields = {"concatenated": concatenated, "w_out": w_out, "b_out": b_out, "outputs": outputs}
    for array in fields.values():
        if array is not None:
            array.flags.writeable = False
    convention = heads[0].convention
    return {name: None if array is None else as_rows(array, convention) for name, array in fields.items()}


def _compute_backward(traces: HeadTraces, grad_outputs: npt.ArrayLike) -> dict[str, Any]:
    """Compute all fields of a BackwardHeadTraces but the traces, read-only and in the heads' convention."""
    convention = traces.convention
    given = read_gradient(grad_outputs, "out_dim", traces.outputs, convention)
    rows = {name: as_rows(getattr(traces, name), convention) for name in ("concatenated", "w_out")}
    with np.errstate(all="ignore"):
        grads: dict[str, Array | None] = {"grad_outputs": given, "grad_w_out": rows["concatenated"].T @ given}
        grads["grad_b_out"] = None if traces.b_out is None else given.sum(axis=0, keepdims=True)
        grads["grad_concatenated"] = concatenated = given @ rows["w_out"].T
    ends = np.cumsum([head.in_rows("outputs").shape[1] for head in traces.heads])[:-1]
    parts = np.split(concatenated, ends, axis=1)
    heads = tuple(head.backward(as_rows(part, convention)) for head, part in zip(traces.heads, parts, strict=True))
    grads |= join_gradients([(head.trace, head.arrays) for head in heads], traces.num_kv_heads)
    for array in grads.values():
        if array is not None:
            array.flags.writeable = False
    return {"heads": heads} | {
        name: None if array is None else as_rows(array, convention) for name, array in grads.items()
    }


def _check_joined(heads: Sequence[Trace], w_out: Array, b_out: Array | None) -> None:
    """Raise ValueError unless heads, w_out and b_out, the last two in rows, fit together."""
    rows = heads[0].convention == "row"
    outputs = [head.in_rows("outputs") for head in heads]
    width, out_dim = sum(one.shape[1] for one in outputs), w_out.shape[1]
    if len({len(one) for one in outputs}) > 1:
        raise ValueError("heads have different numbers of queries")
    if len(w_out) != width:
        own, expected = (w_out.shape, f"({width}, out_dim)") if rows else (w_out.T.shape, f"(out_dim, {width})")
        raise ValueError(f"w_out has shape {own}; it must be {expected}, as heads have {width} outputs")
    if b_out is not None and b_out.shape != (1, out_dim):
        own, expected = (b_out.shape, f"(1, {out_dim})") if rows else (b_out.T.shape, f"({out_dim}, 1)")
        raise ValueError(f"b_out has shape {own}; it must be {expected}, as w_out")


def _check_shared(heads: Sequence[Trace], num_kv_heads: int) -> None:
    """Raise ValueError unless heads have the same x, and those of one key and value head the same keys and values."""
    if not 1 <= num_kv_heads <= len(heads) or len(heads) % num_kv_heads:
        raise ValueError(f"num_kv_heads is {num_kv_heads}; it must be 1 or more, and divide the {len(heads)} heads")
    size = len(heads) // num_kv_heads
    shared = [f"{kind}_{name}" for name, _ in PROJECTED if name != "query" for kind in "wb"]
    for n, head in enumerate(heads):
        for first, names, rule in (
            (0, ["x"], "all heads read the same inputs"),
            (n - n % size, [*shared, "keys", "values"], f"{size} heads share each of the {num_kv_heads} num_kv_heads"),
        ):
            for name in names:
                one, other = getattr(heads[first], name), getattr(head, name)
                is_same = one is other if one is None or other is None else np.array_equal(one, other, equal_nan=True)
                if not is_same:
                    raise ValueError(f"{name} of heads {first + 1} and {n + 1} must be equal, as {rule}")


def _check_sizes(inputs: Sequence[Array], sizes: tuple[int, int, int]) -> None:
    """Raise ValueError, in the words of columns, unless query, key and value have as many features as the module."""
    for array, name, size in zip(inputs, ("x", "key", "value"), sizes, strict=True):
        if array.shape[1] != size:
            raise ValueError(
                f"{name} has shape {array.T.shape}; with convention='column' it must be ({size}, length): "
                "each column is an input"
            )


def _read_unbatched(
    given: tuple[npt.ArrayLike, npt.ArrayLike | None, npt.ArrayLike | None], batch_first: bool, convention: Convention
) -> list[Array]:
    """Read query, key and value in rows; key defaults to query, value to key."""
    arrays: list[Array] = []
    for x, name in zip(given, ("x", "key", "value"), strict=True):
        axes = ("length", "embed_dim" if name == "x" else f"{name[0]}dim")
        arrays.append(arrays[-1] if x is None else read_entry(x, name, axes, batch_first, convention))
    return arrays


def _split_weights(state: Mapping[str, Array], counts: tuple[int, int, int]) -> dict[str, list[Array]]:
    """Split projections into weights (embed_dim, dim) and biases (1, dim) of each head, by the fields of a trace."""
    found = list(zip(("query", "key", "value"), in_projections(state), counts, strict=True))
    parts = {f"w_{name}": [matrix.T.copy() for matrix in np.split(one.weight, n)] for name, one, n in found}
    for name, one, n in found:
        if one.bias is not None:
            parts[f"b_{name}"] = [vector[np.newaxis].copy() for vector in np.split(one.bias, n)]
    return parts


def _extra_keys(
    state: Mapping[str, Array], kv_heads: int, head_dim: int, v_head_dim: int, add_zero: bool
) -> tuple[Array, Array, list[str]]:
    """Return the extra keys and values of each head, which follow the projected ones as in torch, and their names."""
    keys, values, names = np.zeros((kv_heads, 0, head_dim)), np.zeros((kv_heads, 0, v_head_dim)), []
    if "bias_k" in state:
        keys = state["bias_k"].reshape(kv_heads, 1, head_dim)
        values = state["bias_v"].reshape(kv_heads, 1, v_head_dim)
        names.append("bias_k/v")
    if add_zero:
        keys, values = (np.pad(array, ((0, 0), (0, 1), (0, 0))) for array in (keys, values))
        names.append("zero")
    return keys, values, names


def _blocked(given: npt.ArrayLike, name: str, q_len: int, kv_len: int) -> npt.NDArray[Any]:
    """Read a mask in torch's convention, True = blocked; mask objects are converted."""
    if not isinstance(given, Mask):
        return _core.as_array(given, name)
    blocked = given.blocked()
    if name == "key_padding_mask":
        return blocked.reshape(kv_len)
    heads = () if blocked.ndim == 2 or blocked.shape[-3] == 1 else blocked.shape[-3:-2]
    return np.broadcast_to(blocked.reshape(*heads, *blocked.shape[-2:]), (*heads, q_len, kv_len))


def _read_masks(
    masks: Mapping[str, Any], head: int, q_len: int, kv_len: int, extra: int
) -> tuple[Bools | None, Array | None]:
    """Convert torch's masks, True = blocked, to visible pairs and a bias; extra keys are always visible."""
    window = masks["window"]
    visible = np.array(
        reference.visible_pairs(
            (q_len, kv_len),
            False,
            is_causal=masks["is_causal"],
            window=tuple(window) if isinstance(window, list) else window,
            key_lengths=masks["key_lengths"],
        )
    )
    bias = np.zeros((q_len, kv_len))
    adds = False
    for name in ("attn_mask", "key_padding_mask"):
        if masks[name] is None:
            continue
        mask = _blocked(masks[name], name, q_len, kv_len)
        mask = mask[head] if mask.ndim == 3 else mask
        if mask.dtype == np.bool_:
            visible &= ~mask
        else:
            bias, visible, adds = bias + mask, visible & (mask != -np.inf), True
    visible = np.pad(visible, ((0, 0), (0, extra)), constant_values=True)
    return (None if visible.all() else visible), (np.pad(bias, ((0, 0), (0, extra))) if adds else None)

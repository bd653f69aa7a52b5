"""Single-head self-attention as a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, SupportsFloat, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import as_choice, as_count, as_flag, as_scale, is_collection
from pyattn._util.halves import as_stored_dtype, is_half, store_as
from pyattn._util.names import FROM_ARRAYS
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, Align, Convention, EmptyRows, FloatArray, Window
from pyattn.functional._attention import AttentionResult
from pyattn.functional._self_attention import read_weight, self_attention
from pyattn.nn import init
from pyattn.nn.attention.gradients import SelfMasks, record_self
from pyattn.nn.gradients import recorded, running
from pyattn.nn.inputs import as_inputs, check_dtype
from pyattn.nn.module import Module
from pyattn.nn.state import check_arrays

if TYPE_CHECKING:
    from pyattn.tracing import Trace

__all__ = ["SelfAttention"]

_Self = TypeVar("_Self", bound="SelfAttention")
_WEIGHTS = ("w_query", "w_key", "w_value")
_BIASES = ("b_query", "b_key", "b_value")


class SelfAttention(Module):
    """One head of self-attention: ``softmax(scale * Q K^T) V``, with nothing after it.

    ``Q = x W_query``, ``K = x W_key``, ``V = x W_value``.

    The function `pyattn.self_attention` with its own weights, as articles on attention build it step by step. Masks
    follow that function, True = attend; those of MultiheadAttention follow torch, True = blocked.

    Parameters
    ----------
    embed_dim : int
        Features of an input.
    key_dim : int
        Features of a query and of a key.
    v_dim : int, optional
        Features of a value, and so of an output. Default: key_dim.
    bias : bool
        Queries, keys and values have biases. Default: False.
    context_dim : int, optional
        Features of the context, from which keys and values are computed. Default: embed_dim.
    scale : float, optional
        Factor on the scores. Default: ``1 / sqrt(key_dim)``. Pass 1 for articles whose first example has no scale.
    convention : {'row', 'column'}
        'column': ``K = W_key X``. Inputs and outputs are columns, and the weights are transposed. Default: 'row'.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    w_query : ndarray, (embed_dim, key_dim)
        In the column convention (key_dim, embed_dim), and so on. Initialised by `init.xavier_uniform_`, as the next
        two; the same rng gives the same numbers in both conventions.
    w_key : ndarray, (context_dim, key_dim)
        Weight of keys.
    w_value : ndarray, (context_dim, v_dim)
        Weight of values.
    b_query : ndarray, (key_dim,), or None
        Bias of queries. Initially 0, like the next two.
    b_key : ndarray, (key_dim,), or None
        Bias of keys.
    b_value : ndarray, (v_dim,), or None
        Bias of values.

    Raises
    ------
    TypeError
        An argument has another type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A size is below 1, scale is not finite, or convention is unknown.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> head = nn.SelfAttention(4, 3, v_dim=2, scale=1, rng=0)
    >>> head
    SelfAttention(embed_dim=4, key_dim=3, v_dim=2, bias=False, scale=1.0)
    >>> output, weights = head(np.ones((5, 4), np.float32), need_weights=True)
    >>> output.shape, weights.shape
    ((5, 2), (5, 5))
    """

    w_query: FloatArray
    w_key: FloatArray
    w_value: FloatArray
    b_query: FloatArray | None
    b_key: FloatArray | None
    b_value: FloatArray | None

    def __init__(
        self,
        embed_dim: SupportsIndex,
        key_dim: SupportsIndex,
        v_dim: SupportsIndex | None = None,
        bias: bool = False,
        *,
        context_dim: SupportsIndex | None = None,
        scale: SupportsFloat | None = None,
        convention: Convention = "row",
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        if is_collection(embed_dim):
            raise TypeError(f"embed_dim is of type {type(embed_dim).__name__}, expected an int; {FROM_ARRAYS}")
        self.embed_dim = as_count(embed_dim, "embed_dim", least=1)
        self.key_dim = as_count(key_dim, "key_dim", least=1)
        self.v_dim = as_count(v_dim, "v_dim", least=1, default=self.key_dim)
        self.context_dim = as_count(context_dim, "context_dim", least=1, default=self.embed_dim)
        self.scale = as_scale(scale)
        self.convention: Convention = as_choice(convention, "convention", ("row", "column"))
        biases = _BIASES if as_flag(bias, "bias") else ()
        kind = as_stored_dtype(dtype)
        shapes = self._shapes()
        order: Literal["C", "F"] = "C" if self.convention == "row" else "F"  # (in, out) in memory
        self._set_parameters({name: np.empty(shapes[name], kind, order=order) for name in (*_WEIGHTS, *biases)})
        self.reset_parameters(rng)

    @classmethod
    def from_arrays(
        cls: type[_Self],
        w_query: npt.ArrayLike,
        w_key: npt.ArrayLike,
        w_value: npt.ArrayLike,
        b_query: npt.ArrayLike | None = None,
        b_key: npt.ArrayLike | None = None,
        b_value: npt.ArrayLike | None = None,
        *,
        scale: SupportsFloat | None = None,
        convention: Convention = "row",
    ) -> _Self:
        """Make a module whose parameters are these arrays; float arrays are not copied.

        Parameters
        ----------
        w_query : array_like, (embed_dim, key_dim)
            Float arrays are float16, bfloat16, float32 or float64, all the same. Integers, bools and lists take their
            dtype, or float64 without float arrays. Column convention: (key_dim, embed_dim), and so on.
        w_key : array_like, (context_dim, key_dim)
            Weight of keys.
        w_value : array_like, (context_dim, v_dim)
            Weight of values.
        b_query : array_like, (key_dim,), optional
            Bias of queries. Default: None, without one.
        b_key : array_like, (key_dim,), optional
            Bias of keys. Default: None, without one.
        b_value : array_like, (v_dim,), optional
            Bias of values. Default: None, without one.
        scale : float, optional
            As for the constructor. Default: ``1 / sqrt(key_dim)``.
        convention : {'row', 'column'}
            As for the constructor. Default: 'row'.

        Returns
        -------
        SelfAttention
            Its parameters are the float arrays themselves, not copies.

        Raises
        ------
        TypeError
            A parameter is not an array of real numbers, or the dtypes differ.
        ValueError
            Their shapes disagree.

        Examples
        --------
        An article's example, whose scores are not scaled:

        >>> from pyattn import nn
        >>> x = [[1, 0, 1, 0], [0, 2, 0, 2], [1, 1, 1, 1]]
        >>> w_query = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 1]]
        >>> w_key = [[0, 0, 1], [1, 1, 0], [0, 1, 0], [1, 1, 0]]
        >>> w_value = [[0, 2, 0], [0, 3, 0], [1, 0, 3], [1, 1, 0]]
        >>> nn.SelfAttention.from_arrays(w_query, w_key, w_value, scale=1)(x).round(4)
        array([[1.9366, 6.6831, 1.5951],
               [2.    , 7.964 , 0.054 ],
               [1.9997, 7.7599, 0.3584]])
        """
        given: dict[str, npt.ArrayLike] = dict(zip(_WEIGHTS, (w_query, w_key, w_value), strict=True))
        biases = zip(_BIASES, (b_query, b_key, b_value), strict=True)
        given |= {name: x for name, x in biases if x is not None}
        arrays = {name: _core.as_real(x, name) for name, x in given.items()}
        is_list = {name: isinstance(x, (list, tuple)) for name, x in given.items()}
        dtypes = {name: _core.as_array(x, name).dtype for name, x in given.items() if not is_list[name]}
        floats = [name for name, dtype in dtypes.items() if dtype.kind == "f" or is_half(dtype)]
        dtype = arrays[floats[0]].dtype if floats else np.dtype(np.float64)
        others = [name for name in arrays if name not in floats]  # lists and integers
        arrays |= {name: np.array(store_as(arrays[name], dtype)) for name in others}
        self = cls.__new__(cls)
        self.scale = as_scale(scale)
        self.convention = as_choice(convention, "convention", ("row", "column"))
        query, key, value = (read_weight(arrays[name], name, self.convention == "column") for name in _WEIGHTS)
        (self.key_dim, self.embed_dim), self.context_dim, self.v_dim = query.shape, key.shape[1], value.shape[0]
        shapes = self._shapes()
        check_arrays(arrays, {name: shapes[name] for name in reversed(arrays)})  # the last one's dtype is the module's
        self._set_parameters(arrays)
        return self

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all possible parameters, in order."""
        weights = (self.embed_dim, self.key_dim), (self.context_dim, self.key_dim), (self.context_dim, self.v_dim)
        shapes: dict[str, tuple[int, ...]] = dict(zip(_WEIGHTS, weights, strict=True))
        if self.convention == "column":
            shapes = {name: shape[::-1] for name, shape in shapes.items()}
        return shapes | {"b_query": (self.key_dim,), "b_key": (self.key_dim,), "b_value": (self.v_dim,)}

    def _set_parameters(self, arrays: Mapping[str, FloatArray]) -> None:
        for name in (*_WEIGHTS, *_BIASES):
            self.register_parameter(name, arrays.get(name))

    def _biases(self) -> tuple[FloatArray | None, FloatArray | None, FloatArray | None]:
        return self.b_query, self.b_key, self.b_value

    def reset_parameters(self, rng: RNG = None) -> None:
        """Initialise the weights again, in place, and set biases to 0.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        generator = as_generator(rng)
        for weight in (self.w_query, self.w_key, self.w_value):
            init.xavier_uniform_(
                weight if self.convention == "column" else weight.T, rng=generator
            )  # as (fan_out, fan_in)
        for bias in self._biases():
            if bias is not None:
                init.zeros_(bias)

    @overload
    def forward(
        self,
        x: npt.ArrayLike,
        context: npt.ArrayLike | None = None,
        *,
        need_weights: Literal[False] = False,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        align: Align | None = None,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> FloatArray: ...
    @overload
    def forward(
        self,
        x: npt.ArrayLike,
        context: npt.ArrayLike | None = None,
        *,
        need_weights: Literal[True],
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        align: Align | None = None,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> AttentionResult: ...
    @overload
    def forward(
        self,
        x: npt.ArrayLike,
        context: npt.ArrayLike | None = None,
        *,
        need_weights: bool = False,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        align: Align | None = None,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> FloatArray | AttentionResult: ...
    @recorded
    def forward(
        self,
        x: npt.ArrayLike,
        context: npt.ArrayLike | None = None,
        *,
        need_weights: bool = False,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        align: Align | None = None,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> FloatArray | AttentionResult:
        """Compute `pyattn.self_attention` of x with the module's weights.

        Parameters
        ----------
        x : array_like, (..., L, embed_dim)
            Of the weights' dtype; float32 mixes with float16 or bfloat16. (..., embed_dim, L) in the column
            convention, and so on.
        context : array_like, (..., S, context_dim), optional
            Source of keys and values, in the same dtype. Default: x.
        need_weights : bool
            Return the weights too. Default: False.
        attn_mask : array_like, optional
            Broadcasts to (..., L, S), in both conventions. bool: True = attend; float: added to the scaled scores.
            Default: None, no mask.
        is_causal : bool
            Query i attends to no key after its own position. Default: False.
        align : {'upper_left', 'lower_right'} or int, optional
            As in `pyattn.attention`. Default: None; required for a causal mask or a window when L differs from S.
        window : int or (int or None, int or None), optional
            Number of keys before and after its own position that a query attends to. Default: None, unbounded.
        key_lengths : array_like of int, optional
            Number of keys in each batch entry. Default: None, all.
        empty_rows : {'zero', 'nan'}
            Output of a query with nothing to attend to. Default: 'zero'.

        Returns
        -------
        ndarray, (..., L, v_dim)
            Or, with ``need_weights=True``, a `pyattn.AttentionResult`: the output and the weights, (..., L, S).

        Raises
        ------
        TypeError
            x's or context's dtype does not mix with the weights', or attn_mask is neither bool nor float.
        ValueError
            Shapes disagree, or a rule of `pyattn.attention` is broken.
        """
        dtype = self.w_query.dtype
        given = (("x", x),) if context is None else (("x", x), ("context", context))
        rows, *others = as_inputs(given, dtype)
        if running().records:
            masks = SelfMasks(attn_mask, is_causal, align, window, key_lengths)
            return record_self(
                self, (rows, *others), (x, context), masks, as_flag(need_weights, "need_weights"), empty_rows
            )
        result = self_attention(
            rows,
            self.w_query,
            self.w_key,
            self.w_value,
            bias=self._biases(),
            scale=self.scale,
            context=others[0] if others else None,
            convention=self.convention,
            need_weights=need_weights,
            attn_mask=attn_mask,
            is_causal=is_causal,
            align=align,
            window=window,
            key_lengths=key_lengths,
            empty_rows=empty_rows,
        )
        check_dtype(result[0] if isinstance(result, AttentionResult) else result, self, dtype)
        return result

    def trace(
        self,
        x: npt.ArrayLike,
        *,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        tokens: Sequence[str] | None = None,
    ) -> Trace:
        """Trace the eight steps of the module's attention.

        Parameters
        ----------
        x : array_like, (L, embed_dim)
            Of any real dtype; all arithmetic is in float64. (embed_dim, L) in the column convention.
        attn_mask : array_like, optional
            As for `forward`, like the next one: True = attend. Default: None.
        is_causal : bool
            Default: False.
        tokens : sequence of str, optional
            Names of the inputs. Default: None, their numbers.

        Returns
        -------
        pyattn.tracing.Trace
            `pyattn.trace` of x with the module's weights, biases and scale.

        Raises
        ------
        TypeError
            x does not hold real numbers, or tokens are not a sequence of strings.
        ValueError
            x has a batch axis, the module needs a context, or sizes, the mask or the number of tokens do not match.

        Examples
        --------
        >>> from pyattn import nn
        >>> nn.SelfAttention(4, 3, rng=0).trace([[1, 0, 1, 0], [0, 2, 0, 2]]).outputs.shape
        (2, 3)
        """
        from pyattn.tracing import trace

        if self.context_dim != self.embed_dim:
            raise ValueError(
                f"context_dim is {self.context_dim} and embed_dim {self.embed_dim}: a trace has no context"
            )
        biases = self._biases()
        return trace(
            x,
            self.w_query,
            self.w_key,
            self.w_value,
            bias=None if all(bias is None for bias in biases) else biases,
            scale=self.scale,
            convention=self.convention,
            attn_mask=attn_mask,
            is_causal=is_causal,
            tokens=tokens,
        )

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from their defaults.

        Returns
        -------
        str
            Of one line.
        """
        names = ["embed_dim", "key_dim", "v_dim", *(["context_dim"] if self.context_dim != self.embed_dim else [])]
        told = {name: getattr(self, name) for name in names}
        told |= {"bias": any(bias is not None for bias in self._biases())}
        told |= {} if self.scale is None else {"scale": self.scale}
        told |= {} if self.convention == "row" else {"convention": self.convention}
        return ", ".join(f"{name}={x}" for name, x in told.items())

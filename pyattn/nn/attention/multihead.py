"""Multi-head attention as a module, for all tokens at once or step by step with a KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, SupportsFloat, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

import pyattn.functional as functional
from pyattn._util.arguments import as_count, as_flag, as_probability, as_scale, is_collection
from pyattn._util.halves import as_stored_dtype
from pyattn._util.in_proj import in_projections
from pyattn._util.random import as_generator
from pyattn._util.typing import RNG, Convention, EmptyRows, FloatArray, Window
from pyattn.cache.kv_cache import KVCache
from pyattn.functional._multihead import NO_DROPOUT, DropoutOptions, compute
from pyattn.functional._multihead_masks import Masking, with_batch_first
from pyattn.nn import init
from pyattn.nn.attention.cached import Opened, check_cache, open_cache, rotation_of
from pyattn.nn.attention.gradients import MultiheadInputs, record_heads
from pyattn.nn.attention.parameters import OWN, SEPARATE, check_fit, is_packable, parameters_of, shapes_of, weights_of
from pyattn.nn.gradients import recorded, running
from pyattn.nn.inputs import as_input, as_inputs, check_dtype, check_multiple, rounding_halves
from pyattn.nn.linear import Linear
from pyattn.nn.module import Module
from pyattn.nn.positions import RotaryEmbedding
from pyattn.nn.state import check_arrays

if TYPE_CHECKING:  # imported on use, by trace
    from pyattn.tracing import HeadTraces

__all__ = ["MultiheadAttention"]

_Self = TypeVar("_Self", bound="MultiheadAttention")


class MultiheadAttention(Module):
    """Multi-head attention: `torch.nn.MultiheadAttention` for NumPy.

    Arguments, parameters and initialisation are torch's. The meaning of a bool mask depends on the function::

        attention:                    True = attend
        MultiheadAttention, as torch: True = blocked

    ``head_h = softmax(scale * q_h k_h^T + mask) v_h`` with q, k and v the projections of query, key and value, split
    into heads; the output is a projection of the concatenated heads.

    Parameters
    ----------
    embed_dim : int
        Size of the last axis of query, and of the output.
    num_heads : int
        Number of heads. embed_dim must be a multiple of it unless head_dim is given.
    dropout : float
        Probability that a weight becomes 0, in training only. Default: 0.0.
    bias : bool
        Projections have biases. Default: True.
    add_bias_kv : bool
        Append a key and a value that are parameters. Default: False.
    add_zero_attn : bool
        Append a key and a value of zeros. Default: False.
    kdim : int, optional
        Size of the last axis of key. Default: embed_dim.
    vdim : int, optional
        Size of the last axis of value. Default: embed_dim.
    batch_first : bool
        Inputs and output of three axes are (batch, length, features), not (length, batch, features). Default: False.
    head_dim : int, optional
        Size of a head of query and key. Default: ``embed_dim // num_heads``.
    v_head_dim : int, optional
        Size of a head of value. Default: head_dim.
    out_dim : int, optional
        Size of the last axis of the output. Default: embed_dim.
    num_kv_heads : int, optional
        Heads of key and value, each shared by ``num_heads // num_kv_heads`` query heads. Default: num_heads.
    rotary : RotaryEmbedding, optional
        Rotates queries and keys by their positions, counted from 0, or from the end of a cache. Default: None.
    scale : float, optional
        Factor on the scores. Default: None, ``1 / sqrt(head_dim)``; 1 leaves them unscaled.
    dtype : dtype
        float32, the default, float64, float16 or bfloat16.
    rng : None, int, SeedSequence or Generator
        Draws the initial parameters. Default: None, fresh entropy, so each call differs.

    Attributes
    ----------
    in_proj_weight : ndarray, (3 * embed_dim, embed_dim), or None
        Weights of query, key and value, stacked. Initialised by `init.xavier_uniform_`. None if a size differs from
        torch's default; the next three then replace it. New weights are stored transposed: see `Module.to_order`.
    q_proj_weight : ndarray, (num_heads * head_dim, embed_dim), or None
        Initialised by `init.xavier_uniform_`, like the next two.
    k_proj_weight : ndarray, (num_kv_heads * head_dim, kdim), or None
        Weight of key.
    v_proj_weight : ndarray, (num_kv_heads * v_head_dim, vdim), or None
        Weight of value.
    in_proj_bias : ndarray, or None
        Biases of query, key and value, concatenated. Initially 0.
    bias_k : ndarray, (1, 1, num_kv_heads * head_dim), or None
        The key of add_bias_kv. Initialised by `init.xavier_normal_`, like bias_v.
    bias_v : ndarray, (1, 1, num_kv_heads * v_head_dim), or None
        The value of add_bias_kv.
    out_proj : Linear
        ``num_heads * v_head_dim`` to out_dim. Initialised as any Linear, but its bias is 0.

    Raises
    ------
    TypeError
        An argument has the wrong type, or dtype is not float16, bfloat16, float32 or float64.
    ValueError
        A number is out of range, embed_dim is not a multiple of num_heads and head_dim is not given, num_heads is not a
        multiple of num_kv_heads, or the dim of rotary is not head_dim.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import nn
    >>> mha = nn.MultiheadAttention(8, 2, batch_first=True, rng=0)
    >>> x = np.ones((1, 3, 8), np.float32)
    >>> output, weights = mha(x, x, x, is_causal=True)
    >>> output.shape
    (1, 3, 8)
    >>> weights[0].round(4)
    array([[1.    , 0.    , 0.    ],
           [0.5   , 0.5   , 0.    ],
           [0.3333, 0.3333, 0.3333]], dtype=float32)
    """

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    kdim: int
    vdim: int
    dropout: float
    add_zero_attn: bool
    batch_first: bool
    rotary: RotaryEmbedding | None
    scale: float | None
    _linear_weights = ("in_proj_weight", *SEPARATE)

    in_proj_weight: FloatArray | None
    q_proj_weight: FloatArray | None
    k_proj_weight: FloatArray | None
    v_proj_weight: FloatArray | None
    in_proj_bias: FloatArray | None
    bias_k: FloatArray | None
    bias_v: FloatArray | None
    out_proj: Linear

    def __init__(
        self,
        embed_dim: SupportsIndex,
        num_heads: SupportsIndex,
        dropout: SupportsFloat = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: SupportsIndex | None = None,
        vdim: SupportsIndex | None = None,
        batch_first: bool = False,
        *,
        head_dim: SupportsIndex | None = None,
        v_head_dim: SupportsIndex | None = None,
        out_dim: SupportsIndex | None = None,
        num_kv_heads: SupportsIndex | None = None,
        rotary: RotaryEmbedding | None = None,
        scale: SupportsFloat | None = None,
        dtype: npt.DTypeLike = np.float32,
        rng: RNG = None,
    ) -> None:
        super().__init__()
        if is_collection(embed_dim):
            raise TypeError(
                "embed_dim is not an int; MultiheadAttention.from_arrays(state_dict, num_heads) makes a module of a "
                "state_dict, and pyattn.nn.from_heads(w_query, w_key, w_value, w_out) of the weights of each head"
            )
        self.embed_dim = as_count(embed_dim, "embed_dim", least=1)
        self.num_heads = as_count(num_heads, "num_heads", least=1)
        self.num_kv_heads = as_count(num_kv_heads, "num_kv_heads", least=1, default=self.num_heads)
        if head_dim is None:
            check_multiple(("embed_dim", self.embed_dim), ("num_heads", self.num_heads), "; or pass head_dim")
        self.head_dim = as_count(head_dim, "head_dim", least=1, default=self.embed_dim // self.num_heads)
        self.v_head_dim = as_count(v_head_dim, "v_head_dim", least=1, default=self.head_dim)
        self.kdim = as_count(kdim, "kdim", least=1, default=self.embed_dim)
        self.vdim = as_count(vdim, "vdim", least=1, default=self.embed_dim)
        self._set_options(dropout, add_zero_attn, batch_first, rotary, scale)
        out = as_count(out_dim, "out_dim", least=1, default=self.embed_dim)
        flags = as_flag(bias, "bias"), as_flag(add_bias_kv, "add_bias_kv")
        shapes = shapes_of(self, out, *flags, is_packable(self, out))
        kind = as_stored_dtype(dtype)
        self._set_parameters({name: np.empty(shape, kind, order="F") for name, shape in shapes.items()})
        self.reset_parameters(rng)

    @classmethod
    def from_arrays(
        cls: type[_Self],
        state_dict: Mapping[str, FloatArray],
        num_heads: SupportsIndex,
        *,
        num_kv_heads: SupportsIndex | None = None,
        dropout: SupportsFloat = 0.0,
        add_zero_attn: bool = False,
        batch_first: bool = False,
        rotary: RotaryEmbedding | None = None,
        scale: SupportsFloat | None = None,
    ) -> _Self:
        """Make a module whose parameters are these arrays, without copying them.

        Parameters
        ----------
        state_dict : mapping of str to ndarray
            As returned by `Module.state_dict`. The arrays set the sizes. float16, bfloat16, float32 or float64;
            float32 and one of the first two may mix, other dtypes may not.
        num_heads : int
            Number of heads.
        num_kv_heads : int, optional
            Heads of key and value. Default: num_heads.
        dropout : float
            As for the constructor. Default: 0.0.
        add_zero_attn : bool
            Append a key and a value of zeros. Default: False.
        batch_first : bool
            As for the constructor. Default: False.
        rotary : RotaryEmbedding, optional
            As for the constructor. Default: None.
        scale : float, optional
            As for the constructor. Default: None.

        Returns
        -------
        MultiheadAttention
            With the arrays themselves.

        Raises
        ------
        TypeError
            An array has none of these dtypes, or dtypes do not mix.
        ValueError
            An array is missing or unexpected, or shapes disagree.

        Examples
        --------
        >>> import numpy as np
        >>> from pyattn import nn
        >>> state = {"in_proj_weight": np.ones((6, 2)), "out_proj.weight": np.eye(2)}
        >>> nn.MultiheadAttention.from_arrays(state, 1)(*np.ones((3, 4, 2)))[0][0]
        array([2., 2.])
        """
        self = cls.__new__(cls)
        self.num_heads = as_count(num_heads, "num_heads", least=1)
        self.num_kv_heads = as_count(num_kv_heads, "num_kv_heads", least=1, default=self.num_heads)
        weights = weights_of(state_dict)
        (_, self.embed_dim), (_, self.kdim), (v_rows, self.vdim) = (weight.shape for weight in weights[:3])
        self.head_dim = weights[0].shape[0] // self.num_heads
        self.v_head_dim = v_rows // self.num_kv_heads
        packed = "in_proj_weight" in state_dict
        if packed:
            self.head_dim = self.v_head_dim = self.embed_dim // self.num_heads
        self._set_options(dropout, add_zero_attn, batch_first, rotary, scale)
        shapes = shapes_of(self, weights[3].shape[0], "in_proj_bias" in state_dict, "bias_k" in state_dict, packed)
        check_arrays(state_dict, shapes)
        self._set_parameters(state_dict)
        return self

    def _set_options(
        self,
        dropout: SupportsFloat,
        add_zero_attn: bool,
        batch_first: bool,
        rotary: RotaryEmbedding | None,
        scale: SupportsFloat | None,
    ) -> None:
        check_multiple(("num_heads", self.num_heads), ("num_kv_heads", self.num_kv_heads))
        self.dropout = as_probability(dropout, "dropout")
        self.add_zero_attn = as_flag(add_zero_attn, "add_zero_attn")
        self.batch_first = as_flag(batch_first, "batch_first")
        self.rotary = _as_rotary(rotary, self.head_dim)
        self.scale = as_scale(scale)

    def _set_parameters(self, arrays: Mapping[str, FloatArray]) -> None:
        for name in OWN:
            self.register_parameter(name, arrays.get(name))
        self.out_proj = Linear.from_arrays(arrays["out_proj.weight"], arrays.get("out_proj.bias"))

    def reset_parameters(self, rng: RNG = None) -> None:
        """Initialise the parameters again, in place.

        Parameters
        ----------
        rng : None, int, SeedSequence or Generator
            Draws the numbers. Default: None, fresh entropy, so each call differs.
        """
        generator = as_generator(rng)
        for name in ("in_proj_weight", *SEPARATE):
            if getattr(self, name) is not None:
                init.xavier_uniform_(getattr(self, name), rng=generator)
        self.out_proj.reset_parameters(generator)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias, rng=generator)

    @property
    def out_dim(self) -> int:
        """Size of the last axis of the output."""
        return self.out_proj.out_features

    @overload
    def forward(
        self,
        query: npt.ArrayLike,
        key: npt.ArrayLike,
        value: npt.ArrayLike,
        key_padding_mask: npt.ArrayLike | None = None,
        need_weights: Literal[True] = True,
        attn_mask: npt.ArrayLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> tuple[FloatArray, FloatArray]: ...
    @overload
    def forward(
        self,
        query: npt.ArrayLike,
        key: npt.ArrayLike,
        value: npt.ArrayLike,
        key_padding_mask: npt.ArrayLike | None = None,
        *,
        need_weights: Literal[False],
        attn_mask: npt.ArrayLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> tuple[FloatArray, None]: ...
    @overload
    def forward(
        self,
        query: npt.ArrayLike,
        key: npt.ArrayLike,
        value: npt.ArrayLike,
        key_padding_mask: npt.ArrayLike | None = None,
        need_weights: bool = True,
        attn_mask: npt.ArrayLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> tuple[FloatArray, FloatArray | None]: ...
    @recorded
    def forward(
        self,
        query: npt.ArrayLike,
        key: npt.ArrayLike,
        value: npt.ArrayLike,
        key_padding_mask: npt.ArrayLike | None = None,
        need_weights: bool = True,
        attn_mask: npt.ArrayLike | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        window: Window = None,
        key_lengths: npt.ArrayLike | None = None,
        rng: RNG = None,
        keep_mask: npt.ArrayLike | None = None,
        empty_rows: EmptyRows = "zero",
    ) -> tuple[FloatArray, FloatArray | None]:
        """Compute the attention of every head and the output projection.

        Intended differences from torch: `is_causal` works without `attn_mask` (torch raises or, on its fast path in
        eval mode without gradients, ignores it) and is combined with it (torch replaces it in some cases); the keys of
        add_bias_kv and add_zero_attn stay visible under it; a row with nothing to attend to gives 0 before the
        output's projection.

        Parameters
        ----------
        query : array_like, (L, N, embed_dim) or unbatched (L, embed_dim)
            (N, L, embed_dim) with batch_first. Of the weights' dtype, as key and value;
            float32 mixes with float16 or bfloat16.
        key : array_like, (S, N, kdim) or (S, kdim)
            (N, S, kdim) with batch_first.
        value : array_like, (S, N, vdim) or (S, vdim)
            (N, S, vdim) with batch_first.
        key_padding_mask : array_like, (N, S) or (S,), optional
            bool: True = blocked; float: added to the scores. Default: None.
        need_weights : bool
            Return the weights too. Default: True.
        attn_mask : array_like, (L, S) or (N * num_heads, L, S), optional
            bool: True = blocked; float: added to the scores. Batch entry b, head h is at ``b * num_heads + h``.
            Default: None.
        average_attn_weights : bool
            Return the mean of the weights over heads. Default: True.
        is_causal : bool
            Query i attends only to keys 0 to i, whatever attn_mask says. Default: False.
        window : int or (left, right), optional
            Query i attends to keys i - left to i + right; None = unbounded. Default: None.
        key_lengths : array_like of int, (N,) or (), optional
            Batch entry b attends to its first ``key_lengths[b]`` keys. Default: None.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy.
        keep_mask : array_like of bool, optional
            Broadcasts to (N, num_heads, L, S), S as in the weights: True = kept, in training. Default: None, drawn.
        empty_rows : {'zero', 'nan'}
            Output of a row with nothing to attend to: 'zero', the default, or 'nan', as often in torch. Weights are 0.

        Returns
        -------
        output : ndarray, (L, N, out_dim) or (L, out_dim)
            (N, L, out_dim) with batch_first.
        weights : ndarray, (N, L, S) or (L, S), or None
            With heads, (N, num_heads, L, S), unless averaged; S counts the keys of add_bias_kv and add_zero_attn.
            After dropout, as in torch.

        Raises
        ------
        TypeError
            An input's dtype does not mix with the weights'; a mask is neither bool nor of floats.
        ValueError
            Shapes disagree; the message names the argument.
        """
        dtype = self.out_proj.weight.dtype
        q, k, v = as_inputs((("query", query), ("key", key), ("value", value)), dtype)
        q, k, v = with_batch_first(q, k, v, (self.embed_dim, self.kdim, self.vdim), batch_first=self.batch_first)
        masking = Masking(attn_mask, key_padding_mask, is_causal, window, key_lengths)
        dropout = NO_DROPOUT
        if self.training:
            dropout = DropoutOptions(as_probability(self.dropout, "dropout"), rng, keep_mask)
        if running().records:
            inputs = MultiheadInputs(q, k, v, (query, key, value))
            flags = as_flag(need_weights, "need_weights"), as_flag(average_attn_weights, "average_attn_weights")
            output, weights = record_heads(self, inputs, masking, dropout, *flags, empty_rows)
            return check_dtype(output, self, dtype), weights
        try:
            output, weights = compute(
                q,
                k,
                v,
                parameters_of(self),
                masking,
                dropout,
                heads=self.num_heads,
                kv_heads=self.num_kv_heads,
                scale=self.scale,
                add_zero=self.add_zero_attn,
                need_weights=need_weights,
                average_weights=average_attn_weights,
                empty_rows=empty_rows,
                rotation=rotation_of(self.rotary, (0,), (max(q.shape[-2], k.shape[-2]),), q.shape[-2]),
            )
        except (IndexError, TypeError, ValueError):
            check_fit(self)
            raise
        check_dtype(output, self, dtype)
        swapped = output.ndim == 3 and not self.batch_first
        return output.swapaxes(0, 1) if swapped else output, weights

    # With a cache

    @overload
    def decode_step(
        self,
        x: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        lengths: npt.ArrayLike | None = None,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        window: Window = None,
        need_weights: Literal[False] = False,
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, None]: ...
    @overload
    def decode_step(
        self,
        x: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        lengths: npt.ArrayLike | None = None,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        window: Window = None,
        need_weights: Literal[True],
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray]: ...
    @overload
    def decode_step(
        self,
        x: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        lengths: npt.ArrayLike | None = None,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        window: Window = None,
        need_weights: bool = False,
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray | None]: ...
    @rounding_halves
    def decode_step(
        self,
        x: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        lengths: npt.ArrayLike | None = None,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        is_causal: bool = True,
        window: Window = None,
        need_weights: bool = False,
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray | None]:
        """Append the keys and values of x to the KV cache, and attend to all of it.

        The output is bit-identical to these rows of `forward` over all tokens with is_causal, unless rotary's
        frequencies depend on the length of the sequence (dynamic, longrope): stored keys are not rotated again.

        Parameters
        ----------
        x : array_like, (L, N, embed_dim)
            The next tokens; (N, L, embed_dim) with batch_first.
        cache : KVCache
            With N batch entries. It changes only if the call succeeds.
        layer : int
            Layer of the cache. Default: 0.
        lengths : array_like of int, (N,), optional
            Number of tokens of each batch entry; later ones are padding. Default: None, all.
        attn_mask : array_like, (L, S) or (N * num_heads, L, S), optional
            bool: True = blocked; float: added to the scores. S counts the keys of the cache after the call. Default:
            None.
        key_padding_mask : array_like, (N, S), optional
            bool: True = blocked; float: added to the scores. Default: None.
        is_causal : bool
            No token attends to a later one. Default: True.
        window : int or (left, right), optional
            As for `forward`; only for a cache without a window of its own. Default: None.
        need_weights : bool
            Return the weights too. Default: False.
        average_attn_weights : bool
            Return the mean of the weights over heads. Default: True.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy.

        Returns
        -------
        output : ndarray
            Of x's shape; padded rows are unspecified.
        weights : ndarray, (N, L, S) or (N, num_heads, L, S), or None
            As `forward` returns them.

        Raises
        ------
        TypeError
            x's dtype does not mix with that of the weights or the cache.
        ValueError
            Shapes disagree, or the cache is full.
        """
        self._check_plain("decode_step")
        rows = as_input(x, "x", self.out_proj.weight.dtype)
        if not self.kdim == self.vdim == self.embed_dim:
            raise ValueError(
                f"kdim is {self.kdim} and vdim {self.vdim}; decode_step needs both to be embed_dim, {self.embed_dim}"
            )
        features = (self.embed_dim, self.kdim, self.vdim)
        rows, _, _ = with_batch_first(rows, rows, rows, features, batch_first=self.batch_first, names=("x",) * 3)
        masking = Masking(attn_mask, key_padding_mask, is_causal, window)
        opened = open_cache(cache, layer, rows, "x", masking, lengths)
        result = self._attend(rows, rows, opened, need_weights, average_attn_weights, rng)
        opened.close()
        return result

    def encode_memory(
        self, memory: npt.ArrayLike, cache: KVCache, layer: SupportsIndex = 0, *, lengths: npt.ArrayLike | None = None
    ) -> None:
        """Store the keys and values of a memory in a KV cache, for `attend_memory`.

        Parameters
        ----------
        memory : array_like, (S, N, kdim)
            (N, S, kdim) with batch_first. Source of keys and values.
        cache : KVCache
            With N batch entries.
        layer : int
            Layer of the cache. Default: 0.
        lengths : array_like of int, (N,), optional
            Number of rows of each batch entry; later ones are padding. Default: None, all.

        Raises
        ------
        TypeError
            memory's dtype does not mix with that of the weights or the cache.
        ValueError
            Shapes disagree, or the cache is full.
        """
        self._check_plain("encode_memory")
        check_cache(cache)
        if self.rotary is not None or cache.window is not None:
            what = "the attention has rotary" if self.rotary is not None else f"the cache has window={cache.window}"
            raise ValueError(f"{what}; attend_memory supports neither rotary positions nor windows")
        rows = as_input(memory, "memory", self.out_proj.weight.dtype)
        features = (self.kdim, self.kdim, self.vdim)
        rows, _, _ = with_batch_first(rows, rows, rows, features, batch_first=self.batch_first, names=("memory",) * 3)
        if rows.ndim != 3:
            raise ValueError(f"memory has shape {rows.shape}, expected three axes, including the batch")
        try:
            key, value = (
                functional.linear(rows, weight, bias).reshape(*rows.shape[:2], self.num_kv_heads, -1)
                for weight, bias in in_projections(self.state_dict())[1:]
            )
            cache.append(layer, key, value, lengths, layout="bshd")
        except (TypeError, ValueError):
            check_fit(self)
            raise

    @overload
    def attend_memory(
        self,
        query: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        need_weights: Literal[False] = False,
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, None]: ...
    @overload
    def attend_memory(
        self,
        query: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        need_weights: Literal[True],
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray]: ...
    @overload
    def attend_memory(
        self,
        query: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray | None]: ...
    @rounding_halves
    def attend_memory(
        self,
        query: npt.ArrayLike,
        cache: KVCache,
        layer: SupportsIndex = 0,
        *,
        attn_mask: npt.ArrayLike | None = None,
        key_padding_mask: npt.ArrayLike | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = True,
        rng: RNG = None,
    ) -> tuple[FloatArray, FloatArray | None]:
        """Attend to a memory whose keys and values `encode_memory` stored.

        The cache stays as it is.

        Parameters
        ----------
        query : array_like, (L, N, embed_dim)
            (N, L, embed_dim) with batch_first.
        cache : KVCache
            With N batch entries.
        layer : int
            Layer of the cache. Default: 0.
        attn_mask : array_like, (L, S) or (N * num_heads, L, S), optional
            bool: True = blocked; float: added to the scores. S counts the keys of the cache. Default: None.
        key_padding_mask : array_like, (N, S), optional
            bool: True = blocked; float: added to the scores. Default: None.
        need_weights : bool
            Return the weights too. Default: False.
        average_attn_weights : bool
            Return the mean of the weights over heads. Default: True.
        rng : None, int, SeedSequence or Generator
            Draws dropout's mask in training. Default: None, fresh entropy.

        Returns
        -------
        output : ndarray
            Of query's shape.
        weights : ndarray, (N, L, S) or (N, num_heads, L, S), or None
            As `forward` returns them.

        Raises
        ------
        TypeError
            query's dtype does not mix with that of the weights or the cache.
        ValueError
            Shapes disagree.
        """
        self._check_plain("attend_memory")
        if self.rotary is not None:
            raise ValueError("the attention has rotary; attend_memory supports neither rotary positions nor windows")
        rows = as_input(query, "query", self.out_proj.weight.dtype)
        rows, _, _ = with_batch_first(rows, rows, rows, (self.embed_dim,) * 3, batch_first=self.batch_first)
        opened = open_cache(cache, layer, rows, "query", Masking(attn_mask, key_padding_mask), stores=False)
        return self._attend(rows, None, opened, need_weights, average_attn_weights, rng)

    def _check_plain(self, name: str) -> None:
        """Refuse extra keys, which a cache cannot hold."""
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError(
                f"the attention has add_bias_kv or add_zero_attn, which a KV cache cannot hold; {name} needs neither"
            )

    def _attend(
        self, query: FloatArray, new: FloatArray | None, opened: Opened, need_weights: bool, average: bool, rng: RNG
    ) -> tuple[FloatArray, FloatArray | None]:
        try:
            output, weights = compute(
                query,
                new,
                new,
                parameters_of(self),
                opened.masking,
                DropoutOptions(as_probability(self.dropout, "dropout"), rng) if self.training else NO_DROPOUT,
                heads=self.num_heads,
                kv_heads=self.num_kv_heads,
                scale=self.scale,
                need_weights=need_weights,
                average_weights=average,
                cache=opened.use,
                rotation=rotation_of(self.rotary, opened.starts, opened.ends, query.shape[1]),
            )
        except (IndexError, TypeError, ValueError):
            check_fit(self)
            raise
        return output if self.batch_first else output.swapaxes(0, 1), weights

    # Representation

    def trace(
        self,
        x: npt.ArrayLike,
        key: npt.ArrayLike | None = None,
        value: npt.ArrayLike | None = None,
        *,
        key_padding_mask: npt.ArrayLike | None = None,
        attn_mask: npt.ArrayLike | None = None,
        is_causal: bool = False,
        window: Window = None,
        key_lengths: SupportsIndex | None = None,
        empty_rows: EmptyRows = "zero",
        convention: Convention = "row",
        tokens: Sequence[str] | None = None,
        key_tokens: Sequence[str] | None = None,
    ) -> HeadTraces:
        """Trace the eight steps of every head, their concatenation and the projection.

        All arithmetic is in float64, without dropout::

            concatenated = Concat(head_1, ..., head_h)        outputs = concatenated @ w_out + b_out

        Parameters
        ----------
        x : array_like, (L, embed_dim)
            The query; of any real dtype, as the next two. In the column convention (embed_dim, L), and so on.
        key : array_like, (S, kdim), optional
            Default: x.
        value : array_like, (S, vdim), optional
            Default: key.
        key_padding_mask, attn_mask : array_like, optional
            As for `forward`: True = blocked. Default: None.
        is_causal : bool
            As for `forward`, like the next three. Default: False.
        window, key_lengths : int, optional
            A window may also be (left, right). Default: None.
        empty_rows : {'zero', 'nan'}
            Default: 'zero'.
        convention : {'row', 'column'}
            'column': inputs are columns, and every matrix of the trace is transposed: ``Q^i = W_Q^i X``, ``A = K^T Q``,
            softmax by column, ``W_O [head_1; ...; head_h]``. Masks stay (L, S). Default: 'row'.
        tokens, key_tokens : sequence of str, optional
            Names of queries and keys. Default: None, their indices.

        Returns
        -------
        pyattn.tracing.HeadTraces
            ``heads[i]`` is the `pyattn.tracing.Trace` of head i; with key or value, heads begin at their third step.
            ``concatenation`` and ``projection`` are the steps that join the heads. ``backward(grad_outputs)`` computes
            the gradients of all steps.

        Raises
        ------
        TypeError
            An input does not hold real numbers, or tokens are not a sequence of strings.
        ValueError
            An input has a batch axis, sizes, masks or the number of tokens do not match, or convention is unknown.

        Examples
        --------
        >>> import numpy as np, pyattn
        >>> mha = pyattn.MultiheadAttention(8, 2, rng=0)
        >>> rows, columns = mha.trace(np.eye(3, 8)), mha.trace(np.eye(8, 3), convention="column")
        >>> columns.heads[1].w_query.shape, columns.outputs.shape
        ((4, 8), (8, 3))
        >>> np.array_equal(columns.outputs, rows.outputs.T)
        True
        """
        from pyattn.tracing.heads import trace_heads

        masks: dict[str, object] = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
        masks |= {"is_causal": is_causal, "window": window, "key_lengths": key_lengths, "empty_rows": empty_rows}
        return trace_heads(self, (x, key, value), masks, (tokens, key_tokens), convention)

    def extra_repr(self) -> str:
        """Return the sizes, and the options that differ from torch's defaults.

        Returns
        -------
        str
            Of one line.
        """
        usual = {"embed_dim": None, "num_heads": None, "num_kv_heads": self.num_heads, "kdim": self.embed_dim}
        usual |= {"vdim": self.embed_dim, "head_dim": self.embed_dim // self.num_heads, "v_head_dim": self.head_dim}
        usual |= {"dropout": 0, "add_zero_attn": False, "batch_first": False, "scale": None}
        return ", ".join(f"{name}={getattr(self, name)}" for name, x in usual.items() if getattr(self, name) != x)


def _as_rotary(rotary: RotaryEmbedding | None, head_dim: int) -> RotaryEmbedding | None:
    """Check that rotary rotates heads of this size."""
    if rotary is not None and not isinstance(rotary, RotaryEmbedding):
        raise TypeError(f"rotary is of type {type(rotary).__name__}, expected pyattn.nn.RotaryEmbedding")
    if rotary is not None and rotary.dim != head_dim:
        raise ValueError(f"rotary has dim {rotary.dim}; it must be the head_dim, {head_dim}")
    return rotary

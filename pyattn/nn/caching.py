"""Multi-head attention of tokens that come a few at a time, with a `KVCache` of those before."""

from __future__ import annotations

from typing import TYPE_CHECKING, SupportsIndex

import numpy.typing as npt

from pyattn import functional
from pyattn._packed import in_projections
from pyattn.dropping import RNG, as_probability
from pyattn.functional import FloatArray
from pyattn.heads import NO_DROPOUT, Dropout, compute
from pyattn.nn.dtypes import as_input
from pyattn.nn.opening import Opened, check_cache, open_cache, turning_of
from pyattn.nn.packing import AttentionParameters, check_fit, parameters_of
from pyattn.torch_rules import Hidden, Window, with_batch_first

if TYPE_CHECKING:
    from pyattn.cache import KVCache
    from pyattn.nn.rotary import RotaryEmbedding

__all__ = ["CachingAttention", "as_rotary"]


class CachingAttention(AttentionParameters):
    """What `MultiheadAttention` does with a cache."""

    embed_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kdim: int
    vdim: int
    dropout: float
    add_zero_attn: bool
    batch_first: bool
    rotary: RotaryEmbedding | None = None

    def step(
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
        """Attend to all tokens so far: keys and values of x go into the cache, behind those that it has.

        The output has the bits of `forward` over all tokens at once with is_causal, at these rows; not so with a rotary
        whose frequencies depend on the length of the sequence (dynamic, longrope): keys stay as they were stored.

        Parameters
        ----------
        x : array_like, (L, N, embed_dim)
            The next tokens; (N, L, embed_dim) with batch_first.
        cache : KVCache
            Of N batch entries; it changes when the call succeeds.
        layer : int
            Which layer of it. Default: 0.
        lengths : array_like of int, (N,), optional
            How many of each batch entry's tokens count; those behind are padding. Default: None, all.
        attn_mask : array_like, (L, S) or (N * num_heads, L, S), optional
            bool: True = blocked; float: added to the scores. S is what the cache holds then. Default: None.
        key_padding_mask : array_like, (N, S), optional
            bool: True = blocked; float: added to the scores. Default: None.
        is_causal : bool
            A token attends to none after it, the default.
        window : int or (left, right), optional
            As for `forward`, where the cache has no window of its own. Default: None.
        need_weights : bool
            Return weights, too. Default: False.
        average_attn_weights : bool
            Weights are their mean over heads, the default.
        rng : None, int, SeedSequence or Generator
            Where dropout's numbers come from, in training. Default: None, others each time.

        Returns
        -------
        output : ndarray
            Of x's axes; rows of padding mean nothing.
        weights : ndarray, (N, L, S) or (N, num_heads, L, S), or None
            As `forward` returns them.

        Raises
        ------
        TypeError
            x has another dtype than the weights or the cache.
        ValueError
            Shapes do not go together, or the cache is full.
        """
        self._check_plain("step")
        rows = as_input(x, "x", self.out_proj.weight.dtype)
        if not self.kdim == self.vdim == self.embed_dim:
            raise ValueError(
                f"kdim is {self.kdim} and vdim {self.vdim}, and step needs embed_dim, {self.embed_dim}, for both"
            )
        features = (self.embed_dim, self.kdim, self.vdim)
        rows, _, _ = with_batch_first(rows, rows, rows, features, batch_first=self.batch_first, names=("x",) * 3)
        hidden = Hidden(attn_mask, key_padding_mask, is_causal, window)
        opened = open_cache(cache, layer, rows, "x", hidden, lengths)
        result = self._attend(rows, rows, opened, need_weights, average_attn_weights, rng)
        opened.close()
        return result

    def remember(
        self, memory: npt.ArrayLike, cache: KVCache, layer: SupportsIndex = 0, *, lengths: npt.ArrayLike | None = None
    ) -> None:
        """Put keys and values of a memory into a cache, for `recall`.

        Parameters
        ----------
        memory : array_like, (S, N, kdim)
            (N, S, kdim) with batch_first. Keys and values come from the same.
        cache : KVCache
            Of N batch entries.
        layer : int
            Which layer of it. Default: 0.
        lengths : array_like of int, (N,), optional
            How many rows of each batch entry count; those behind are padding. Default: None, all.

        Raises
        ------
        TypeError
            memory has another dtype than the weights or the cache.
        ValueError
            Shapes do not go together, or the cache is full.
        """
        self._check_plain("remember")
        check_cache(cache)
        if self.rotary is not None or cache.window is not None:
            what = "the attention has rotary" if self.rotary is not None else f"the cache has window={cache.window}"
            raise ValueError(f"{what}, and what recall attends to has no positions")
        rows = as_input(memory, "memory", self.out_proj.weight.dtype)
        features = (self.kdim, self.kdim, self.vdim)
        rows, _, _ = with_batch_first(rows, rows, rows, features, batch_first=self.batch_first, names=("memory",) * 3)
        if rows.ndim != 3:
            raise ValueError(f"memory has shape {rows.shape}, expected three axes: a cache has batch entries")
        try:
            key, value = (
                functional.linear(rows, weight, bias).reshape(*rows.shape[:2], self.num_kv_heads, -1)
                for weight, bias in in_projections(self.state_dict())[1:]
            )
            cache.append(layer, key, value, lengths, layout="bshd")
        except (TypeError, ValueError):
            check_fit(self)
            raise

    def recall(
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
        """Attend to what a cache holds, which stays as it is: `forward` over a memory whose keys and values are there.

        Parameters
        ----------
        query : array_like, (L, N, embed_dim)
            (N, L, embed_dim) with batch_first.
        cache : KVCache
            Of N batch entries.
        layer : int
            Which layer of it. Default: 0.
        attn_mask : array_like, (L, S) or (N * num_heads, L, S), optional
            bool: True = blocked; float: added to the scores. S is what the cache holds. Default: None.
        key_padding_mask : array_like, (N, S), optional
            bool: True = blocked; float: added to the scores. Default: None.
        need_weights : bool
            Return weights, too. Default: False.
        average_attn_weights : bool
            Weights are their mean over heads, the default.
        rng : None, int, SeedSequence or Generator
            Where dropout's numbers come from, in training. Default: None, others each time.

        Returns
        -------
        output : ndarray
            Of query's axes.
        weights : ndarray, (N, L, S) or (N, num_heads, L, S), or None
            As `forward` returns them.

        Raises
        ------
        TypeError
            query has another dtype than the weights or the cache.
        ValueError
            Shapes do not go together.
        """
        self._check_plain("recall")
        if self.rotary is not None:
            raise ValueError("rotary turns queries with their positions, and those of recall's are not known")
        rows = as_input(query, "query", self.out_proj.weight.dtype)
        rows, _, _ = with_batch_first(rows, rows, rows, (self.embed_dim,) * 3, batch_first=self.batch_first)
        opened = open_cache(cache, layer, rows, "query", Hidden(attn_mask, key_padding_mask), stores=False)
        return self._attend(rows, None, opened, need_weights, average_attn_weights, rng)

    def _check_plain(self, name: str) -> None:
        """Refuse keys that no cache holds."""
        if self.bias_k is not None or self.add_zero_attn:
            raise ValueError(f"the attention has add_bias_kv or add_zero_attn, and {name} has keys of tokens alone")

    def _attend(
        self, query: FloatArray, new: FloatArray | None, opened: Opened, need_weights: bool, average: bool, rng: RNG
    ) -> tuple[FloatArray, FloatArray | None]:
        try:
            output, weights = compute(
                query,
                new,
                new,
                parameters_of(self),
                opened.hidden,
                Dropout(as_probability(self.dropout, "dropout"), rng) if self.training else NO_DROPOUT,
                heads=self.num_heads,
                kv_heads=self.num_kv_heads,
                need_weights=need_weights,
                average_weights=average,
                cache=opened.use,
                turning=turning_of(self.rotary, opened.starts, opened.ends, query.shape[1]),
            )
        except (IndexError, TypeError, ValueError):
            check_fit(self)
            raise
        return output if self.batch_first else output.swapaxes(0, 1), weights


def as_rotary(rotary: RotaryEmbedding | None, head_dim: int) -> RotaryEmbedding | None:
    """Refuse what does not turn the heads of an attention.

    Parameters
    ----------
    rotary : RotaryEmbedding or None
        As the caller gave it.
    head_dim : int
        Features of a head.

    Returns
    -------
    RotaryEmbedding or None
        The same.

    Raises
    ------
    TypeError
        It is something else.
    ValueError
        It turns rows of another size.
    """
    from pyattn.nn.rotary import RotaryEmbedding  # which most attentions do without

    if rotary is not None and not isinstance(rotary, RotaryEmbedding):
        raise TypeError(f"rotary is of type {type(rotary).__name__}, expected pyattn.nn.RotaryEmbedding")
    if rotary is not None and rotary.dim != head_dim:
        raise ValueError(f"rotary turns rows of {rotary.dim} features, expected {head_dim}, the head_dim")
    return rotary

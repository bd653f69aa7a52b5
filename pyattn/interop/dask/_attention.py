"""Attention over dask arrays: its arguments, and the graph of its tasks."""

from __future__ import annotations

from typing import Any, SupportsFloat, SupportsIndex

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize

import pyattn._core as _core
from pyattn._util.arguments import as_count, as_flag
from pyattn._util.random import draw_seed
from pyattn._util.typing import RNG, Align, EmptyRows, Score, Window
from pyattn.interop.dask._chunks import Grid, arranged, check_sizes, is_lazy
from pyattn.interop.dask._graph import Graph
from pyattn.interop.dask._tasks import Options
from pyattn.interop.dask._visible import Visible
from pyattn.masks import Mask

Array = npt.NDArray[Any]


def attention(
    query: da.Array,
    key: da.Array,
    value: da.Array,
    *,
    attn_mask: npt.ArrayLike | da.Array | None = None,
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
    keep_mask: npt.ArrayLike | da.Array | None = None,
    enable_gqa: bool = False,
    need_lse: bool = False,
    empty_rows: EmptyRows = "zero",
    splits: SupportsIndex = 1,
    num_threads: SupportsIndex | None = 1,
) -> da.Array | tuple[da.Array, da.Array]:
    """Compute attention over dask arrays in chunks, with the bits of one call.

    The graph has one task for each chunk of queries and each chunk of keys that some of these queries may see. The
    tasks of a chunk of queries take the keys from left to right, and each hands its running softmax to the next. All
    chunks of queries begin first, so that all workers get as many of them.

    Parameters
    ----------
    query : dask.array.Array, (..., heads, L, head_dim)
        In chunks along any axis but the last. NumPy arrays are accepted too, and cut into chunks of 4,096 tokens.
    key : dask.array.Array, (..., heads, S, head_dim)
        Its chunks along S start at multiples of 512.
    value : dask.array.Array, (..., heads, S, v_dim)
        Rechunked to key's chunks along S.
    attn_mask : array_like, dask.array.Array or pyattn.masks.Mask, optional
        As in `pyattn.attention`. Mask objects are cut, never computed as a whole. Do not change an array before the
        result is computed. Default: None.
    is_causal : bool
        As in `pyattn.attention`. Default: False.
    align, scale : optional
        As in `pyattn.attention`. Default: None.
    score : str
        As in `pyattn.attention`. Default: 'dot'.
    score_weight, window, key_lengths, query_lengths : optional
        As in `pyattn.attention`. Default: None.
    dropout_p : float
        As in `pyattn.attention`. Default: 0.0.
    rng : None, int, SeedSequence or Generator
        As in `pyattn.attention`: an int drops the same weights. The seed is drawn with the graph. Default: None.
    keep_mask : array_like of bool or dask.array.Array, optional
        As in `pyattn.attention`. Default: None.
    enable_gqa : bool
        Axis -3 of arrays with three axes holds heads, too. Default: False.
    need_lse : bool
        Also return the logsumexp. Default: False.
    empty_rows : {'zero', 'nan'}
        The output of a row that sees no key. Default: 'zero'.
    splits : int
        Number of ranges of keys, each computed on its own and merged by `pyattn.merge_states`: for few queries, which
        would leave workers idle. The bits then depend on `splits`. Default: 1.
    num_threads : int, optional
        Threads of one task; None is `pyattn.get_num_threads` of the worker's process. Default: 1, as dask's workers run
        a task in each of their threads.

    Returns
    -------
    dask.array.Array, (..., heads, L, v_dim)
        In query's chunks. With need_lse: (output, lse), whose second array is (..., heads, L).

    Raises
    ------
    ValueError
        A chunk of keys does not start at a multiple of 512, a chunk of query heads cuts a group that shares key heads,
        a size is unknown, or what `pyattn.attention` raises.
    TypeError
        As in `pyattn.attention`.

    See Also
    --------
    pyattn.attention : The same in one process.
    pyattn.merge_states : Merges the ranges of `splits`.

    Notes
    -----
    Finite values whose sum overflows, above about 1e34 in float32, can give infinities, where one call repairs that.

    The tasks have priorities that keep the chunks of queries in step, so that a worker needs few chunks of keys at a
    time. ``dask.distributed`` obeys them with ``dask.config.set({"optimization.fuse.active": False})``.

    Examples
    --------
    >>> import dask.array as da, numpy as np, pyattn  # doctest: +SKIP
    >>> x = da.random.standard_normal((8, 65536, 64), chunks=(8, 4096, 64)).astype(np.float32)  # doctest: +SKIP
    >>> y = pyattn.interop.dask.attention(x[None], x[None], x[None], is_causal=True)  # doctest: +SKIP
    >>> y.sum().compute()  # doctest: +SKIP
    """
    gqa = as_flag(enable_gqa, "enable_gqa")
    score_weight, key_lengths, query_lengths = (
        None if x is None else np.array(_core.as_array(x, name))  # read once, even if it is lazy
        for x, name in (
            (score_weight, "score_weight"),
            (key_lengths, "key_lengths"),
            (query_lengths, "query_lengths"),
        )
    )
    arrays = arranged(query, key, value, gqa)
    masks: dict[str, Any] = {"attn_mask": attn_mask, "keep_mask": keep_mask}
    for name, mask in masks.items():
        check_sizes(mask, name)
    own: dict[str, Any] = {
        "is_causal": is_causal,
        "align": align,
        "window": window,
        "key_lengths": key_lengths,
        "query_lengths": query_lengths,
    }
    scores: dict[str, Any] = {"score": score, "scale": scale, "score_weight": score_weight, "enable_gqa": gqa}
    rest: dict[str, Any] = {"dropout_p": dropout_p, "empty_rows": empty_rows, "num_threads": num_threads}
    dtype = _dtype_of(*arrays, score_weight)
    like = [_stand_in(x, dtype) for x in arrays]
    shape = _core.attention_shape(
        like[0], like[1], like[2], **{n: _stand_in(x) for n, x in masks.items()}, **own, **scores, **rest
    )
    grid = Grid.of(arrays, shape, gqa)
    visible = Visible(grid, own, masks)
    ranges = as_count(splits, "splits", least=1)
    seed = draw_seed(rng) if float(dropout_p) > 0 and keep_mask is None else None
    options = Options(scores, rest, seed, as_flag(need_lse, "need_lse"))
    token = tokenize(*arrays, masks, own, options, ranges)
    return Graph(grid, arrays, visible, options, ranges, dtype, token).results()


def _dtype_of(query: da.Array, key: da.Array, value: da.Array, score_weight: Array | None) -> np.dtype[Any]:
    """Find the dtype of the output, by a call without queries."""
    arrays = [np.zeros((0, 1), x.dtype) for x in (query, key, value)]
    if score_weight is None:
        return _core.attention(*arrays).dtype
    weight = np.zeros(1, score_weight.dtype)
    return _core.attention(*arrays, score="additive", score_weight=weight).dtype


def _stand_in(x: Any, dtype: np.dtype[Any] | None = None) -> Any:
    """Make an array of a dask array's shape that takes no memory: zeros, or True. Other arrays stay."""
    if isinstance(x, Mask):
        return None  # checked where it is lowered
    if not is_lazy(x):
        return x
    dtype = x.dtype if dtype is None else dtype
    return np.broadcast_to(np.ones((), dtype) if dtype == np.bool_ else np.zeros((), dtype), x.shape)

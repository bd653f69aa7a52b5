from collections.abc import Callable
from typing import Any, Literal, SupportsFloat, SupportsIndex, TypeVar, overload

import numpy as np
import numpy.typing as npt

from pyattn._util.typing import RNG, Align, CacheUse, EmptyRows, Layout, Score, Window
from pyattn.functional._attention import AttentionResult

__version__: str
_compiler: str

_T = TypeVar("_T")
_Float = npt.NDArray[np.floating[Any]]
_Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]

@overload
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
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
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: Literal[False] = False,
    need_lse: Literal[False] = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> _Float: ...
@overload
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
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
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: Literal[True],
    need_lse: bool = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> AttentionResult: ...
@overload
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
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
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: bool = False,
    need_lse: Literal[True],
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> AttentionResult: ...
@overload
def attention(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    *,
    attn_mask: npt.ArrayLike | None = None,
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
    keep_mask: npt.ArrayLike | None = None,
    enable_gqa: bool = False,
    need_weights: bool = False,
    need_lse: bool = False,
    empty_rows: EmptyRows = "zero",
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> _Float | AttentionResult: ...
def attention_part(query: npt.ArrayLike, key: npt.ArrayLike, value: npt.ArrayLike, **options: Any) -> Any: ...
def attention_shape(
    query: npt.ArrayLike, key: npt.ArrayLike, value: npt.ArrayLike, **options: Any
) -> tuple[int, ...]: ...
def paged_attention(query: npt.ArrayLike, cache: CacheUse, **options: Any) -> _Float | AttentionResult: ...
def attention_backward(
    grad_output: npt.ArrayLike,
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    output: npt.ArrayLike,
    score_weight: npt.ArrayLike | None,
    lse: npt.ArrayLike,
    grad_lse: npt.ArrayLike | None,
    need: SupportsIndex,
    **options: Any,
) -> tuple[_Float | None, _Float | None, _Float | None, _Float | None, _Float | None, float | None]: ...
def attention_jvp(
    query: npt.ArrayLike,
    key: npt.ArrayLike,
    value: npt.ArrayLike,
    output: npt.ArrayLike,
    tangent_query: npt.ArrayLike | None,
    tangent_key: npt.ArrayLike | None,
    tangent_value: npt.ArrayLike | None,
    score_weight: npt.ArrayLike | None,
    lse: npt.ArrayLike,
    tangent_attn_mask: npt.ArrayLike | None,
    **options: Any,
) -> _Float: ...
def new_page(elements: int, dtype: np.dtype[Any], /) -> npt.NDArray[Any]: ...
def append_to_pages(cache: CacheUse, key: npt.ArrayLike, value: npt.ArrayLike, layout: Layout) -> None: ...
def as_array(x: object, name: str, /) -> npt.NDArray[Any]: ...
def check_out(out: object, like: npt.NDArray[Any], /) -> None: ...
def cast(x: object, name: str, dtype: str, /) -> str: ...
def as_real(x: npt.ArrayLike, name: str, /) -> _Float: ...
def linear(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    activation: _Activation | None = None,
    gate: npt.ArrayLike | None = None,
    residual: npt.ArrayLike | None = None,
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> _Float: ...
def embedding(
    input: npt.ArrayLike,
    weight: npt.ArrayLike,
    padding_idx: SupportsIndex | None = None,
    *,
    scale: SupportsFloat = 1.0,
    residual: npt.ArrayLike | None = None,
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> _Float: ...
def embedding_backward(
    grad_output: npt.ArrayLike,
    ids: npt.ArrayLike,
    num_embeddings: SupportsIndex,
    *,
    padding_idx: SupportsIndex | None = None,
    scale: SupportsFloat = 1.0,
    num_threads: SupportsIndex | None = None,
) -> _Float: ...
def feed_forward(
    x: npt.ArrayLike,
    in_weight: npt.ArrayLike,
    in_bias: npt.ArrayLike | None,
    out_weight: npt.ArrayLike,
    out_bias: npt.ArrayLike | None,
    *,
    activation: _Activation | None = "relu",
    gate_weight: npt.ArrayLike | None = None,
    gate_bias: npt.ArrayLike | None = None,
    residual: npt.ArrayLike | None = None,
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> _Float: ...
def layer(
    x: npt.ArrayLike,
    memory: npt.ArrayLike | None,
    self_attention: tuple[npt.ArrayLike | None, ...],
    cross_attention: tuple[npt.ArrayLike | None, ...] | None,
    feed_forward: tuple[npt.ArrayLike | None, ...],
    norms: tuple[npt.ArrayLike | None, ...],
    **options: Any,
) -> Any: ...
def normalize(
    x: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    bias: npt.ArrayLike | None = None,
    residual: npt.ArrayLike | None = None,
    *,
    rms: bool = False,
    eps: SupportsFloat = 1e-5,
    need_sum: bool = False,
    num_threads: SupportsIndex | None = None,
) -> _Float | tuple[_Float, _Float]: ...
def normalize_backward(
    grad_output: npt.ArrayLike,
    x: npt.ArrayLike,
    weight: npt.ArrayLike | None = None,
    *,
    rms: bool = False,
    eps: SupportsFloat = 1e-5,
    need_weight: bool = True,
    need_bias: bool = True,
    num_threads: SupportsIndex | None = None,
) -> tuple[_Float, _Float | None, _Float | None]: ...
def activate(x: _Float, activation: str, /) -> _Float: ...
@overload
def activate_backward(grad_output: _Float, x: _Float, activation: str | None, gate: None = None) -> _Float: ...
@overload
def activate_backward(
    grad_output: _Float, x: _Float, activation: str | None, gate: _Float
) -> tuple[_Float, _Float]: ...
@overload
def activate_backward(
    grad_output: _Float, x: _Float, activation: str | None, gate: _Float | None = None
) -> _Float | tuple[_Float, _Float]: ...
def multi_head(
    query: npt.ArrayLike,
    key: npt.ArrayLike | None,
    value: npt.ArrayLike | None,
    q_weight: npt.ArrayLike,
    *more_arrays: npt.ArrayLike | None,
    **options: Any,
) -> tuple[_Float, _Float | None]: ...
def rotary(
    x: npt.ArrayLike,
    inv_freq: npt.NDArray[np.float64],
    *,
    scale: SupportsFloat = 1.0,
    offset: SupportsIndex = 0,
    position_ids: npt.ArrayLike | None = None,
    interleaved: bool = False,
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> _Float: ...
def argmax_rows(x: _Float, /) -> npt.NDArray[np.int64]: ...
def top_k_rows(x: _Float, k: int, /) -> tuple[_Float, npt.NDArray[np.int64]]: ...
def softmax_rows(x: _Float, logarithm: bool, /) -> _Float: ...
def cross_entropy(
    input: npt.ArrayLike,
    ids: npt.ArrayLike | None,
    target: npt.ArrayLike | None,
    weight: npt.ArrayLike | None,
    ignore_index: int,
    reduction: int,
    label_smoothing: float,
    /,
) -> tuple[float | _Float, _Float]: ...
def sum_squares(x: _Float, /) -> float: ...
def adam_step(
    parameter: _Float,
    gradient: _Float,
    mean: _Float,
    square: _Float,
    max_square: _Float | None,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: float,
    decoupled: bool,
    maximize: bool,
    /,
) -> bool: ...
def sgd_step(
    parameter: _Float,
    gradient: _Float,
    buffer: _Float | None,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    begins: bool,
    nesterov: bool,
    maximize: bool,
    /,
) -> bool: ...
def softmax_backward(grad_output: _Float, output: _Float, logarithm: bool, /) -> _Float: ...
def fill_keep_mask(keep: npt.NDArray[np.bool_], dropout_p: float, seed: int, /) -> None: ...
def drop_rows(x: _Float, dropout_p: float, seed: int, /) -> _Float: ...
def merge_states(outputs: tuple[_Float, ...], lses: tuple[_Float, ...], output: _Float, lse: _Float, /) -> None: ...
def set_num_threads(num_threads: SupportsIndex | None, /) -> None: ...
def call_on_threads(
    num_threads: int | None,
    team: object,
    function: Callable[..., _T],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    /,
) -> _T: ...
def get_num_threads() -> int: ...
def isa() -> str: ...
def _levels() -> list[str]: ...
def _levels_compiled() -> list[str]: ...
def _set_isa(name: str, /) -> None: ...
def _fma_peak(seconds: float, /) -> float: ...
def _read_speed(array: npt.NDArray[np.float32], num_threads: SupportsIndex | None, /) -> float: ...

"""The gradient of an embedding's weight."""

from __future__ import annotations

from typing import SupportsFloat, SupportsIndex

import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.typing import FloatArray

__all__ = ["embedding_backward"]


def embedding_backward(
    grad_output: npt.ArrayLike,
    ids: npt.ArrayLike,
    num_embeddings: SupportsIndex,
    *,
    padding_idx: SupportsIndex | None = None,
    scale: SupportsFloat = 1.0,
) -> FloatArray:
    """Compute the gradient of the weight of `embedding`.

    ``grad_weight[i] = scale * sum(grad_output[ids == i])``. Rows are added in the order of ids, so the gradient is
    bit-identical for any number of threads. It needs no memory but the result.

    Parameters
    ----------
    grad_output : array_like, (..., embedding_dim)
        Gradient of the loss with respect to the result.
    ids : array_like of int, (...)
        The `input` of the forward call.
    num_embeddings : int
        Number of rows of the weight.
    padding_idx : int, optional
        The id of padding, whose row gets 0; a negative one counts from the end. Default: None.
    scale : float
        The forward call's. Default: 1.0.

    Returns
    -------
    ndarray, (num_embeddings, embedding_dim)
        float64 for float64, else float32. A residual has the gradient ``grad_output``, summed over the axes that it
        broadcasts.

    Raises
    ------
    ValueError
        An id outside 0 <= id < num_embeddings; shapes disagree; a padding_idx out of range.
    TypeError
        Ids that are not integers; a grad_output that does not hold real numbers.

    Examples
    --------
    >>> import pyattn
    >>> pyattn.functional.embedding_backward([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [2, 0, 2], 3)
    array([[3., 4.],
           [0., 0.],
           [6., 8.]])
    """
    upstream = _core.as_real(grad_output, "grad_output")
    array = _core.as_array(ids, "ids")
    if upstream.ndim > 8 and upstream.shape[:-1] == array.shape:  # the core takes 8 axes
        upstream, array = upstream.reshape(-1, upstream.shape[-1]), array.reshape(-1)
    return _core.embedding_backward(upstream, array, num_embeddings, padding_idx=padding_idx, scale=scale)

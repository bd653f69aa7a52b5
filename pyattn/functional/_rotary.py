"""Rotary position embedding (RoPE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex

import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.typing import FloatArray, Layout
from pyattn.functional._rotary_frequencies import RotaryFrequencies, rotary_frequencies, sequence_length

__all__ = ["rotary_embedding"]


def rotary_embedding(
    x: npt.ArrayLike,
    *,
    frequencies: RotaryFrequencies | None = None,
    theta: SupportsFloat | None = None,
    rotary_dim: SupportsIndex | None = None,
    interleaved: bool = False,
    offset: SupportsIndex = 0,
    position_ids: npt.ArrayLike | None = None,
    scaling: Mapping[str, Any] | None = None,
    max_position_embeddings: SupportsIndex | None = None,
    seq_len: SupportsIndex | None = None,
    layout: Layout = "bhsd",
    num_threads: SupportsIndex | None = None,
    out: npt.NDArray[Any] | None = None,
) -> FloatArray:
    """Rotate pairs of features by angles proportional to positions (RoPE).

    x holds queries or keys. The n-th pair (a, b) of a row at position p becomes ``(a cos t - b sin t, b cos t + a sin
    t)``, where ``t = p * inv_freq[n]``. The dot product of a rotated query and a rotated key then depends only on the
    distance between their positions (Su et al., "RoFormer: enhanced Transformer with rotary position embedding", 2021).
    The gradient of x is the gradient of the result rotated by the negative angles: call it with
    ``frequencies._replace(inv_freq=-frequencies.inv_freq)`` and the same positions.

    Parameters
    ----------
    x : array_like, (..., heads, length, dim)
        Queries or keys; bools, integers and lists of Python's numbers become float64. float16 and bfloat16 are
        computed in float32, and the result is rounded to them. Without heads: (..., length, dim), of up to three axes.
    frequencies : RotaryFrequencies, optional
        Result of `rotary_frequencies`, in place of theta, rotary_dim, scaling, max_position_embeddings and seq_len:
        the first ``2 * len(inv_freq)`` features are rotated. Default: None, computed from those.
    theta : float, optional
        The base of the frequencies. Default: None, ``scaling["rope_theta"]`` or 10000.
    rotary_dim : int, optional
        Number of leading features to rotate, even; the others are copied. Default: None,
        ``scaling["partial_rotary_factor"]`` times dim, or all of them.
    interleaved : bool
        Pair n is the features (2n, 2n + 1), as in RoFormer, GPT-J, CodeGen, ChatGLM, Cohere's Command R and the Llama
        files that Meta published. Otherwise it is (n, n + rotary_dim / 2), as in GPT-NeoX, Mistral, Qwen, Gemma, Phi
        and Llama as transformers has it. Default: False.
    offset : int
        Position of the first row; each following row is one further. Default: 0. A negative offset rotates
        backwards.
    position_ids : array_like of int, optional
        Position of each row, the same for all heads; broadcasts to (..., length), leading axes without heads.
        Default: None, positions offset, offset + 1 and so on.
    scaling : mapping, optional
        ``rope_scaling`` or ``rope_parameters`` of a config.json, as `rotary_frequencies` takes it. Default: None.
    max_position_embeddings : int, optional
        Of the same config.json. Default: None.
    seq_len : int, optional
        Sequence length, on which dynamic and longrope depend. Default: None, the largest position + 1. Keys
        that were rotated for another length are not rotated again.
    layout : {'bhsd', 'bshd'}
        Default 'bhsd'. 'bshd': x is (..., length, heads, dim), of three axes or more.
    num_threads : int, optional
        Default: None, `get_num_threads`. The result does not depend on it, to the last bit.
    out : ndarray, optional
        Array for the result, of its shape and dtype; pass x to rotate in place. Default: None, a new one.

    Returns
    -------
    ndarray
        Of x's shape; out where it was given.

    Raises
    ------
    ValueError
        Shapes disagree, a position is beyond 2**53, out does not fit, or `rotary_frequencies` refuses the arguments.
    TypeError
        An argument is of another type.

    Notes
    -----
    Angles are exact; sines and cosines are accurate to a few ULP of float64 and rounded once. So a row at position
    100,000 is as accurate as the first: within ``4 u (|a| + |b|)`` of the formula with the given inv_freq, where
    u = 2**-24 or 2**-53. The bits of a row depend only on its own values and position.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> pyattn.functional.rotary_embedding(np.ones((2, 4))).round(4)
    array([[ 1.    ,  1.    ,  1.    ,  1.    ],
           [-0.3012,  0.99  ,  1.3818,  1.0099]])
    >>> q, k = np.random.default_rng(0).standard_normal((2, 1, 64))
    >>> rotate = pyattn.functional.rotary_embedding
    >>> near, far = (rotate(q, offset=at + 3) @ rotate(k, offset=at).T for at in (0, 5000))
    >>> bool(np.allclose(near, far))
    True
    """
    array = _core.as_real(x, "x")
    if frequencies is None:
        if seq_len is None:
            seq_len = sequence_length(scaling, array, offset, position_ids, layout)
        frequencies = rotary_frequencies(
            array.shape[-1] if array.ndim else 0,
            theta=theta,
            rotary_dim=rotary_dim,
            scaling=scaling,
            max_position_embeddings=max_position_embeddings,
            seq_len=seq_len,
        )
    else:
        others = {
            "theta": theta,
            "rotary_dim": rotary_dim,
            "scaling": scaling,
            "max_position_embeddings": max_position_embeddings,
            "seq_len": seq_len,
        }
        for name, option in others.items():
            if option is not None:
                raise ValueError(f"frequencies and {name} are both given; pass one of them")
    return _core.rotary(
        array,
        frequencies.inv_freq,
        scale=frequencies.attention_factor,
        offset=offset,
        position_ids=position_ids,
        interleaved=interleaved,
        layout=layout,
        num_threads=num_threads,
        out=out,
    )

"""Upstream gradients, as callers pass them, and the dtypes of gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import pyattn._core as _core
from pyattn._util.arguments import FLOATS
from pyattn._util.halves import as_float32, check_same_half, is_half, round_to
from pyattn._util.typing import FloatArray

__all__ = ["as_alike", "round_like"]


def as_alike(grad_output: npt.ArrayLike, x: npt.ArrayLike, name: str) -> tuple[FloatArray, FloatArray, np.dtype[Any]]:
    """Read grad_output and x, which have one shape, in one dtype; the third is x's, for `round_like`."""
    upstream, array = _core.as_real(grad_output, "grad_output"), _core.as_real(x, name)
    if upstream.shape != array.shape:
        raise ValueError(f"grad_output has shape {upstream.shape}, expected {array.shape} as {name}")
    check_same_half([("grad_output", upstream), (name, array)])
    if upstream.dtype == array.dtype:
        return upstream, array, array.dtype
    wide = FLOATS[1] if FLOATS[1] in (upstream.dtype, array.dtype) else FLOATS[0]
    return as_float32(upstream).astype(wide, copy=False), as_float32(array).astype(wide, copy=False), array.dtype


def round_like(gradient: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
    """Round the gradient of an array of this dtype to it, if that is a half."""
    return round_to(gradient, dtype) if is_half(dtype) else gradient

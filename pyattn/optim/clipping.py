"""Clip gradients by their norm."""

from __future__ import annotations

import math
from typing import SupportsFloat

import numpy as np

import pyattn._core as _core
from pyattn._util.arguments import as_flag, as_number
from pyattn._util.halves import as_float32
from pyattn._util.typing import FloatArray
from pyattn.optim.optimizer import HasGradients, gradients_of

__all__ = ["clip_grad_norm_"]

_SLAB = 1 << 16  # elements that are widened at a time


def clip_grad_norm_(
    module: HasGradients, max_norm: SupportsFloat, norm_type: SupportsFloat = 2.0, error_if_nonfinite: bool = False
) -> float:
    """Scale a module's gradients, in place, so that their norm is at most max_norm.

    ``torch.nn.utils.clip_grad_norm_`` for NumPy: all gradients together are one vector, and each is multiplied by
    ``min(max_norm / (norm + 1e-6), 1)`` (Pascanu et al. 2013).

    Parameters
    ----------
    module : Module
        The arrays of ``module.grads`` are scaled.
    max_norm : float
        0 or more; infinite only to compute the norm.
    norm_type : float
        The p of the norm, above 0; ``math.inf`` for the largest absolute value. Default: 2.0.
    error_if_nonfinite : bool
        Refuse a norm that is NaN or infinite, before anything is written. Default: False.

    Returns
    -------
    float
        The norm before clipping, computed in float64 in a fixed order. 0.0 without gradients.

    Raises
    ------
    TypeError
        An argument has the wrong type.
    ValueError
        max_norm is negative or NaN, norm_type is not above 0, or a gradient that has to be scaled is read-only.
    RuntimeError
        The norm is not finite, with error_if_nonfinite=True.

    Examples
    --------
    >>> import numpy as np
    >>> from pyattn import optim
    >>> class Module:
    ...     grads = {"weight": np.array([3.0, 4.0])}
    >>> optim.clip_grad_norm_(Module(), 1.0)
    5.0
    >>> Module.grads["weight"].round(3)
    array([0.6, 0.8])
    """
    most, p = as_number(max_norm, "max_norm"), as_number(norm_type, "norm_type")
    if not most >= 0:
        raise ValueError(f"max_norm is {max_norm}, expected 0 or more")
    if not p > 0:
        raise ValueError(f"norm_type is {norm_type}, expected a number above 0")
    refuses = as_flag(error_if_nonfinite, "error_if_nonfinite")
    gradients = gradients_of(module)
    norm = _norm([_flat(gradient) for gradient in gradients.values()], p)
    if refuses and not math.isfinite(norm):
        raise RuntimeError(f"the norm of the gradients is {norm}, so they cannot be clipped")
    factor = most / (norm + 1e-6)
    if factor >= 1 or math.isinf(most):
        return norm
    for name, gradient in gradients.items():
        if not gradient.flags.writeable:
            raise ValueError(f"the gradient of {name} is read-only")
    with np.errstate(all="ignore"):
        for gradient in gradients.values():
            np.multiply(gradient, gradient.dtype.type(factor), out=gradient)
    return norm


def _flat(gradient: FloatArray) -> FloatArray:
    """View a dense gradient in its memory order as one axis; copy others."""
    flat = as_float32(gradient).ravel(order="K")
    return np.require(flat, flat.dtype.newbyteorder("="), ["C", "A"])


def _norm(arrays: list[FloatArray], p: float) -> float:
    """Return the p-norm of all elements, in float64."""
    with np.errstate(all="ignore"):
        if p == 2:
            return math.sqrt(sum(map(_core.sum_squares, arrays)))
        if math.isinf(p):
            return float(np.max([np.max(np.abs([x.max(), x.min()])) for x in arrays if x.size], initial=0.0))
        slabs = (x[n : n + _SLAB] for x in arrays for n in range(0, x.size, _SLAB))
        total = sum(float(np.sum(np.abs(slab.astype(np.float64)) ** p)) for slab in slabs)
        return float(np.float64(total) ** (1 / p))

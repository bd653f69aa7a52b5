"""Gradients of a module against derivatives by differences, in float64."""

from __future__ import annotations

import inspect

import numpy as np
from support.helpers import assert_same_bits

STEP = 2.0**-20


def first(result):
    return result[0] if isinstance(result, tuple) else result


def check_by_differences(module, args, kwargs, checkpoint=False, unused=()):
    """Each gradient times a direction is the derivative along it; the output is that of a plain call.

    Parameters of the parts that `unused` names have no part in the first output.
    """
    rng = np.random.default_rng(5)
    options = {"checkpoint": True} if checkpoint else {}  # a vjp of a user's own may not take it
    output, backward = module.vjp(*args, **options, **kwargs)
    assert_same_bits(first(output), first(module(*args, **kwargs)))
    grad = rng.standard_normal(first(output).shape)
    found = backward(grad)
    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    assert len(found) == len(given)
    inputs = {name: x for name, x in given.items() if isinstance(x, np.ndarray) and x.dtype == np.float64}
    assert [name for name, one in zip(given, found, strict=True) if one is not None] == [*inputs]
    pairs = [(x, one) for x, one in zip(given.values(), found, strict=True) if one is not None]
    parameters = dict(module.named_parameters())
    assert [*module.grads] == [name for name in parameters if not name.startswith(unused)]
    pairs += [(parameters[name], one) for name, one in module.grads.items()]

    def loss():
        return float((first(module(*args, **kwargs)) * grad).sum())

    for array, one in pairs:
        assert one.shape == array.shape
        assert one.dtype == array.dtype
        direction, before = rng.standard_normal(array.shape), array.copy()
        for padding in [m for m in module.modules() if getattr(m, "padding_idx", None) is not None]:
            if array is getattr(padding, "weight", None):
                direction[padding.padding_idx] = 0  # which gets no gradient
        array[...] = before + STEP * direction
        above = loss()
        array[...] = before - STEP * direction
        below = loss()
        array[...] = before
        # truncation of STEP**2 and rounding of 2**-53 / STEP, times sizes of some hundreds
        size = abs(above) + abs(below) + np.abs(one * direction).sum()
        assert abs((above - below) / (2 * STEP) - (one * direction).sum()) <= 3e-8 * max(size, 1)

"""What torch packs: the projections of query, key and value in a state_dict of multi-head attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Projection", "in_projections"]


class Projection(NamedTuple):
    """A linear layer, as torch keeps it.

    Attributes
    ----------
    weight : ndarray, (out, in)
        All heads on top of one another.
    bias : ndarray, (out,), or None
        None where there is none.
    """

    weight: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None


def in_projections(state: Mapping[str, npt.NDArray[Any]]) -> tuple[Projection, Projection, Projection]:
    """Cut the projections of query, key and value out of a state_dict."""
    packed, bias = state.get("in_proj_weight"), state.get("in_proj_bias")
    weights = [state[f"{x}_proj_weight"] for x in "qkv"] if packed is None else np.split(packed, 3)
    ends = np.cumsum([len(weight) for weight in weights])[:-1]
    biases: list[Any] = [None] * 3 if bias is None else np.split(bias, ends)
    query, key, value = map(Projection, weights, biases)
    return query, key, value

"""Input projections of query, key and value in a state_dict of multi-head attention, packed or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Projection", "in_projections"]


class Projection(NamedTuple):
    """Weight (out, in) and bias (out,) of a linear layer, all heads stacked; the bias may be None."""

    weight: npt.NDArray[Any]
    bias: npt.NDArray[Any] | None


def in_projections(state: Mapping[str, npt.NDArray[Any]]) -> tuple[Projection, Projection, Projection]:
    """Extract the projections of query, key and value from a state_dict."""
    packed, bias = state.get("in_proj_weight"), state.get("in_proj_bias")
    weights = [state[f"{x}_proj_weight"] for x in "qkv"] if packed is None else np.split(packed, 3)
    ends = np.cumsum([len(weight) for weight in weights])[:-1]
    biases: list[Any] = [None] * 3 if bias is None else np.split(bias, ends)
    query, key, value = map(Projection, weights, biases)
    return query, key, value

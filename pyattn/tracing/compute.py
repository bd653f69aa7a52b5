"""Compute attention in float64 with every intermediate: the arrays of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import pyattn.reference as reference
from pyattn._util.typing import Convention, EmptyRows, Score
from pyattn.tracing.weights import Normalize, normalize, round_rows

__all__ = [
    "GIVEN",
    "PROJECTED",
    "Intermediates",
    "Options",
    "as_rows",
    "compute",
    "project",
    "seen_pairs",
    "weigh_values",
]

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_MAX_BYTES = 2**28  # of weighted_values, which would take 8 GiB for 4,096 tokens with 64 features
PROJECTED = (("key", "keys"), ("query", "queries"), ("value", "values"))
"""What an input is projected to: the word in the names of weights, and the array of a trace."""
GIVEN = ("x", "w_key", "w_query", "w_value", "b_key", "b_query", "b_value")


@dataclass(frozen=True, eq=False, repr=False)
class Intermediates:
    """The arrays and options of a trace, in the order of the steps; `pyattn.tracing.Trace` documents them."""

    x: Array | None
    w_key: Array | None
    w_query: Array | None
    w_value: Array | None
    b_key: Array | None
    b_query: Array | None
    b_value: Array | None
    keys: Array
    queries: Array
    values: Array
    scores: Array
    weights: Array
    outputs: Array
    visible: Bools | None
    attn_bias: Array | None
    score: Score
    score_weight: Array | None
    scale: float
    normalize: Normalize
    round_weights: int | None
    empty_rows: EmptyRows
    convention: Convention
    tokens: list[str] | None
    key_tokens: list[str] | None

    def in_rows(self, name: str) -> npt.NDArray[Any]:
        """Return a field in the row convention, whichever convention the trace has.

        Parameters
        ----------
        name : str
            Name of a field that holds an array.

        Returns
        -------
        ndarray
            A view.

        Examples
        --------
        >>> import pyattn
        >>> trace = pyattn.trace_attention([[1], [2]], [[3], [4]], [[5]], scale=1, convention="column")
        >>> trace.queries.shape, trace.in_rows("queries").shape
        ((2, 1), (1, 2))
        """
        return as_rows(getattr(self, name), self.convention)

    @property
    def weighted_values(self) -> Array:
        """Each value times its weights, (S, L, v_dim): the sum over S is outputs.

        It is computed on each access. With ``convention="column"`` it is (v_dim, L, S). Above 256 MiB it raises
        ValueError: use `for_query`.
        """
        (queries, keys), v_dim = self.in_rows("weights").shape, self.in_rows("values").shape[1]
        size = 8 * keys * queries * v_dim
        if size > _MAX_BYTES:
            raise ValueError(
                f"weighted_values of shape {(keys, queries, v_dim)} would take {size / 2**20:,.0f} MiB, above the "
                f"limit of {_MAX_BYTES / 2**20:,.0f} MiB: use for_query(i) for one query"
            )
        return as_rows(weigh_values(self, slice(None)), self.convention)


class Options(NamedTuple):
    """Checked arguments of a trace that are not matrices; each is a field of the trace."""

    score: Score
    score_weight: Array | None
    scale: float
    normalize: Normalize
    round_weights: int | None
    empty_rows: EmptyRows
    convention: Convention
    tokens: list[str] | None
    key_tokens: list[str] | None


def as_rows(array: npt.NDArray[Any], convention: Convention) -> npt.NDArray[Any]:
    """Convert an array to rows: transpose it in the column convention. The reverse conversion is the same."""
    return array.T if convention == "column" else array


@np.errstate(all="ignore")
def project(inputs: Sequence[Array], weights: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """Compute queries, keys and values from an input (length, embed_dim) for each."""
    queries, keys, values = (
        x @ weights[f"w_{name}"] + weights.get(f"b_{name}", 0.0)
        for x, name in zip(inputs, ("query", "key", "value"), strict=True)
    )
    return queries, keys, values


@np.errstate(all="ignore")
def compute(
    given: Mapping[str, Array],
    queries: Array,
    keys: Array,
    values: Array,
    visible: Bools | None,
    attn_bias: Array | None,
    options: Options,
) -> dict[str, Any]:
    """Compute all fields of a trace from matrices in the row convention, which are made read-only and kept."""
    scores: npt.NDArray[Any] = reference.scores(queries, keys, options.score, options.scale, options.score_weight)
    if attn_bias is not None:
        scores = scores + attn_bias
    if visible is not None:
        scores[~visible] = -np.inf
    weights = normalize(scores, options.normalize)
    numerators, denominator = weights, 1.0
    if options.round_weights is not None:  # sums of integers are exact
        numerators, denominator = round_rows(weights, options.round_weights)
        weights = numerators / denominator
    everywhere = np.broadcast_to(True, weights.shape)
    outputs = np.asarray(reference.weighted_sum(numerators, everywhere if visible is None else visible, values))
    outputs = outputs / denominator
    if options.empty_rows == "nan":
        outputs[(scores == -np.inf).all(axis=1)] = np.nan
    fields: dict[str, Any] = {name: given.get(name) for name in GIVEN}
    fields |= {"keys": keys, "queries": queries, "values": values, "scores": scores, "weights": weights}
    fields |= {"outputs": outputs, "visible": visible, "attn_bias": attn_bias}
    for name, array in fields.items():
        if array is not None:
            array.flags.writeable = False
            fields[name] = as_rows(array, options.convention)
    return fields | options._asdict()


def seen_pairs(trace: Intermediates) -> Bools:
    """Return which query attends to which key, (L, S): those that neither mask hides."""
    seen = trace.in_rows("scores") != -np.inf
    return np.asarray(seen if trace.visible is None else seen & trace.in_rows("visible"))


@np.errstate(all="ignore")
def weigh_values(trace: Intermediates, queries: slice) -> Array:
    """Multiply values by the weights of some queries, (S, L, v_dim); masked values give 0, even if they are NaN."""
    weights, values = trace.in_rows("weights")[queries], trace.in_rows("values")
    numerators, denominator = weights, 1.0
    if trace.round_weights is not None:  # 1 * 3 / 10 is 0.3, and 0.1 * 3 is 0.30000000000000004
        denominator = 10.0**trace.round_weights
        numerators = np.rint(weights * denominator)
    weighted: Array = values[:, np.newaxis] * numerators.T[:, :, np.newaxis]
    weighted /= denominator  # in place: it may be large
    if trace.visible is not None:
        weighted[~trace.in_rows("visible")[queries].T] = 0
    return weighted

"""The arrays of a trace as pictures need them: whole, of one input, and the products between the steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pyattn.plot.inputs import Array, read_tokens
from pyattn.tracing.render.text import factor_text, number_text
from pyattn.tracing.traces import BackwardTrace

__all__ = ["StepLike", "TraceArrays", "TraceLike", "read_steps"]

_NAMES: tuple[str, ...] = (
    "x",
    "w_key",
    "w_query",
    "w_value",
    "b_key",
    "b_query",
    "b_value",
    "keys",
    "queries",
    "values",
)
_NAMES += ("attn_bias", "scores", "weights", "outputs")

_BY_QUERY = ("x", "queries", "attn_bias", "scores", "weights", "outputs", "delta")
_BY_KEY = ("keys", "values", "products", "weighted_values")
"""Arrays with a line for each query, and those with a line for each key."""

_MAX_TERMS, _MAX_SUMS = 5, 6
"""Longest sum, and most sums, that are written out."""


class StepLike(Protocol):
    """A step of a trace, as `pyattn.tracing` makes it."""

    @property
    def number(self) -> int:
        """From 1 to 8."""

    @property
    def title(self) -> str:
        """Title of the step."""

    @property
    def formula(self) -> str:
        """Formula of the step; may be empty."""

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Results of the step, by name."""

    @property
    def note(self) -> str:
        """Remark on the step; may be empty."""


class TraceLike(Protocol):
    """A trace, as `pyattn.tracing` makes it. The attributes that hold its arrays are read, too."""

    @property
    def steps(self) -> Iterable[StepLike]:
        """The eight steps."""

    @property
    def tokens(self) -> Sequence[str] | None:
        """A token for each input, or None."""


def read_steps(trace: TraceLike) -> list[StepLike]:
    """Read the steps of a trace, and check their arrays."""
    if not hasattr(trace, "steps"):
        fix = "; choose a head, trace.heads[0]" if hasattr(trace, "heads") else ""
        raise TypeError(f"trace is of type {type(trace).__name__}, expected what pyattn.trace returns{fix}")
    trace_steps = list(trace.steps)
    for step in trace_steps:
        for name, array in step.arrays.items():
            if np.ndim(array) not in (1, 2):
                raise ValueError(f"{name} of step {step.number} has shape {np.shape(array)}, expected (rows, columns)")
    return trace_steps


class TraceArrays:
    """The arrays of a trace; `axis` is 0 if each input is a row, 1 if it is a column."""

    def __init__(self, trace: TraceLike) -> None:
        self.grads: Mapping[str, Array] = trace.arrays if isinstance(trace, BackwardTrace) else {}
        self.trace: Any = trace.trace if isinstance(trace, BackwardTrace) else trace
        trace = self.trace
        self.axis = 0 if getattr(trace, "convention", "row") == "row" else 1
        known = {name: getattr(trace, name, None) for name in _NAMES}
        self.whole = {name: np.asarray(array, dtype=np.float64) for name, array in known.items() if array is not None}
        self.queries = self.whole["weights"].shape[self.axis]
        self.keys = self.whole["weights"].shape[1 - self.axis]
        self.query_names = self._names("tokens", self.queries)
        self.key_names = self._names("key_tokens", self.keys)
        if self.key_names is None and self.keys == self.queries:
            self.key_names = self.query_names

    def _names(self, attribute: str, count: int) -> list[str] | None:
        """Read the tokens of the queries or the keys; None without."""
        tokens = getattr(self.trace, attribute, None)
        return None if tokens is None or len(tokens) != count else read_tokens(tokens, attribute, count, "")

    def labels(self, name: str, query: int | None = None) -> list[str]:
        """Return a token or a number, from 1, for each line of an array; query is that of a single line."""
        name = name.removeprefix("grad_")
        if name in _BY_KEY:
            return self.key_names or [str(at + 1) for at in range(self.keys)]
        if name not in _BY_QUERY:
            return []
        names = self.query_names or [str(at + 1) for at in range(self.queries)]
        return names if query is None else names[query : query + 1]

    def of(self, name: str) -> Array:
        """Return an array of the trace, or a gradient."""
        return self.grads[name] if name in self.grads else self.whole[name]

    def of_query(self, name: str, query: int) -> Array:
        """Return the line of one query."""
        return self.of(name).take([query], axis=self.axis)

    def weighted_values(self, query: int) -> Array:
        """Return the values times the weights of one query, with a line for each key."""
        if hasattr(self.trace, "for_query"):
            return np.asarray(self.trace.for_query(query)[2].arrays["weighted_values"])
        return np.asarray(self.whole["values"] * self.of_query("weights", query).T)

    @property
    def has_products(self) -> bool:
        """Whether a score is a sum of products: of a query and a key, number by number."""
        alike = self.whole["queries"].shape[1 - self.axis] == self.whole["keys"].shape[1 - self.axis]
        return getattr(self.trace, "score", "dot") == "dot" and alike

    @np.errstate(all="ignore")
    def products(self, query: int) -> Array:
        """Return the keys times one query, number by number: a score is the sum of a line."""
        return np.asarray(self.whole["keys"] * self.of_query("queries", query))

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        return float(getattr(self.trace, "scale", 1.0))

    def score_sums(self, query: int) -> list[str]:
        """Write each score of a query as a sum of products, in the digits of the cells; empty if it is too long."""
        if not self.has_products or self.keys > _MAX_SUMS:
            return []
        keys = np.moveaxis(self.whole["keys"], self.axis, 0)
        if keys.shape[1] > _MAX_TERMS:
            return []
        numbers = self.of_query("queries", query).ravel().tolist()
        scores = self.of_query("scores", query).ravel().tolist()
        bias = self.of_query("attn_bias", query).ravel().tolist() if "attn_bias" in self.whole else None
        lines = []
        for at, (key, score) in enumerate(zip(keys.tolist(), scores, strict=True)):
            terms = " + ".join(f"{factor_text(x)}×{factor_text(y)}" for x, y in zip(numbers, key, strict=True))
            if self.scale != 1:
                terms = f"{number_text(self.scale)} × ({terms})"
            if bias is not None:
                terms += f" + {factor_text(bias[at])}"
            masked = score == -np.inf and (bias is None or bias[at] > -np.inf)
            result = "hidden by the mask" if masked else f"{terms} = {number_text(score)}"
            lines.append(f"score of key {at + 1}: {result}")
        return lines

"""Where two attentions differ, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn.testing._comparing.calling import read_arrays
from pyattn.testing._comparing.formula import STAGES, Array, compute
from pyattn.testing._comparing.mistakes import Mistake, other_parameters, unequal_parameters, unsteady
from pyattn.testing._comparing.report import Cause, Comparison, Stage
from pyattn.testing._comparing.rounding import PRECISIONS, Precision, bound
from pyattn.testing._comparing.searching import Explanation, explain, ratio
from pyattn.testing._comparing.sides import Side, owner_of, side_of

__all__ = ["compare"]


def compare(ours: Any, theirs: Any, *inputs: npt.ArrayLike, tensors: bool | None = None, **kwargs: Any) -> Comparison:
    """Find where two attentions differ, and why.

    Both are called with the same inputs, each in its own dtype, and held against each other and against the formula in
    float64, stage by stage: projections, scores, weights, heads, output. Two modules show all stages, by their own
    parameters and options; output, and weights where they are returned, come from the calls. Of a function there is
    what it returns. The bound is that of rounding in the dtypes of the two, which is derived for each number, so there
    is no tolerance to choose. Parameters of two modules are held against each other, too: a cast from one dtype to the
    other rounds once, and explains far less than results may be off by.

    Where they differ, mistakes that people make are computed one by one: scale, masks, causal alignment, the softmax's
    axis, heads, weights transposed, inputs swapped, dropout, dtypes and more. The one that gives the wrong side's
    numbers is the cause. Attentions of up to 4,096 scores are searched for two mistakes at a time, too.

    Parameters
    ----------
    ours : module or callable
        A multi-head attention, a self-attention or a linear layer of `pyattn.nn`; or a function of query, key and value
        with arguments of `pyattn.attention`, or one of x, w_query, w_key and w_value with those of
        `pyattn.self_attention`. What only one side is to be given, functools.partial binds.
    theirs : module, callable or array_like
        A torch.nn.MultiheadAttention or torch.nn.Linear, a function, or expected numbers: an output, or a tuple of
        output, weights and lse. Modules are called without gradients, training or not as they are.
    *inputs : array_like
        Query, key and value; for a linear layer its input; for a self-attention x, and context if there is one; for its
        function x and the three weights. float32 or float64; torch's modules get them in their own dtype.
    tensors : bool, optional
        Whether theirs takes torch's tensors. Default: None, where it comes from torch.
    **kwargs
        For both sides, such as attn_mask; they mean what they mean to ours. A function without an argument for score or
        score_weight is taken to compute these scores by itself.

    Returns
    -------
    Comparison
        Print it. ``equal``, ``stage``, ``cause`` and ``stages`` say the same to a program:
        ``assert report.equal, str(report)``.

    Raises
    ------
    TypeError
        A side cannot be compared, or an argument is not known.
    ValueError
        Inputs do not go together. What a side raises comes through.

    Notes
    -----
    float64 results are judged by a float64 formula, whose own rounding is part of the bound. All of an attention's
    scores are held in float64: this is for inputs of a test's size.

    Examples
    --------
    >>> import numpy as np, pyattn
    >>> def attention(query, key, value):
    ...     scores = np.exp(query @ key.T)
    ...     return scores / scores.sum(axis=-1, keepdims=True) @ value
    >>> report = pyattn.compare(pyattn.attention, attention, *np.eye(3)[:, None] + np.eye(3))
    >>> report
    <Comparison: different in scores: theirs does not scale the scores>
    >>> report.cause.fix.partition(";")[0]
    'multiply them by 1 / sqrt(head_dim) = 0.5774, once'
    """
    sides = side_of(ours, "ours", None), side_of(theirs, "theirs", tensors)
    owner = owner_of(*sides)
    arrays, given = owner.read_inputs(inputs), read_arrays(kwargs)
    left, right = (_Run(side, owner, arrays, given) for side in sides)
    if left.side.is_module and right.side.is_module:
        left.add_stages()
        right.add_stages()
    stages = tuple(_stages(left, right))
    found = _find(left, right, equal=all(stage.equal for stage in stages))
    ours, theirs = (f"{run.side.title()}, {run.precision.name}" for run in (left, right))
    return Comparison(ours, theirs, stages, *found, tuple(_cause("theirs", one) for one in _unequal(left, right)))


class _Run:
    """A side and what came of it.

    Attributes
    ----------
    side : Side
        Which was called.
    formula : Formula
        Its own, or the other's where it has no parameters to read.
    precision : Precision
        Of its arithmetic.
    dropout : str or None
        By what the side is told to drop weights.
    returned, shown : dict of str to ndarray
        Stages that the call gave, and those with what is known by parameters and options.
    """

    def __init__(self, side: Side, owner: Side, arrays: list[Array], given: Mapping[str, Any]) -> None:
        self.side, self._call = side, partial(side.call, arrays, given)
        self.returned = self.shown = self._call()
        self.formula, self.computed = (side if side.is_module else owner).compute(arrays, given)
        self.precision, self.dropout = side.precision(arrays), side.dropout(given)
        if not callable(side.target):  # nobody knows what they were computed in: no better than what they are for
            self.precision = min(self.precision, owner.precision(arrays), key=lambda one: one.bits)
        extra = self.returned.keys() - self.computed.stages.keys()
        if extra:
            raise TypeError(f"{side.name} returns {' and '.join(sorted(extra))}, which {owner.kind_name} does not have")

    def add_stages(self) -> None:
        """Compute what the call does not show, by the side's own parameters and options, in its own dtype."""
        dtype = np.float64 if self.precision.name == "float64" else np.float32  # NumPy sums no halves
        found = {**compute(self.formula, dtype).stages, **self.returned}
        self.shown = {name: found[name].astype(np.float64) for name in STAGES if name in found}

    def allowed(self, precision: Precision) -> dict[str, Array]:
        """Bound what rounds so and, on top, the float64 formula that judges it."""
        more = 1 + 2.0 ** (precision.bits - PRECISIONS["float64"].bits)
        return {name: more * x for name, x in bound(self.formula, self.computed, precision).items()}

    def is_wrong(self) -> bool:
        """Whether the call gave what its formula does not."""
        exact, allowed = self.computed.stages, self.allowed(self.precision)
        return any(_worst(x, exact[name], allowed[name])[0] > 1 for name, x in self.returned.items())

    def is_random(self) -> bool:
        """Whether another call gives other numbers."""
        again = self._call() if callable(self.side.target) else self.returned
        return not all(np.array_equal(again[name], x, equal_nan=True) for name, x in self.returned.items())


# The table


def _stages(left: _Run, right: _Run) -> Iterator[Stage]:
    """Yield what both show. One formula judges all: that of ours, or of their module where ours is none."""
    allowed = [left.allowed(run.precision) for run in (left, right)]
    coarser = _coarser(left, right)
    for name in STAGES:
        if name in left.shown and name in right.shown:
            one, other, exact = left.shown[name], right.shown[name], left.computed.stages[name]
            each = [bounds[name] for bounds in allowed]
            ours, theirs = (_worst(x, exact, most)[0] for x, most in zip((one, other), each, strict=True))
            worst, place = _worst(one, other, each[0] + each[1])
            error = float(ratio(one, other, np.ones(())).max(initial=0)) if one.shape == other.shape else np.inf
            numbers = [float(x[place]) if x.shape == one.shape else np.nan for x in (one, other, exact) if place]
            ulp = error / _ulp(exact, coarser)
            yield Stage(name, one.shape, other.shape, error, ulp, worst, ours, theirs, place, tuple(numbers))


def _worst(actual: Array, expected: Array, allowed: Array) -> tuple[float, tuple[int, ...] | None]:
    """Find the largest ratio of error to bound, and where: nowhere in arrays of two shapes, or of none."""
    if actual.shape != expected.shape:
        return np.inf, None
    if allowed.shape != actual.shape:  # neither is of the formula's shape: its largest bound will do
        allowed = np.full(actual.shape, allowed.max(initial=0))
    ratios = ratio(actual, expected, allowed)
    if not ratios.size:
        return 0.0, None
    place = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
    return float(ratios[place]), tuple(int(n) for n in place)


def _ulp(exact: Array, precision: Precision) -> float:
    """Give the unit in the last place of the largest number."""
    largest = float(np.abs(exact[np.isfinite(exact)]).max(initial=0))
    return float(np.ldexp(1.0, int(np.frexp(max(largest, precision.tiny))[1]) - precision.bits))


# Why


def _find(left: _Run, right: _Run, equal: bool) -> tuple[tuple[Cause, ...], tuple[str, ...], tuple[str, ...], bool]:
    """Give causes, what else gives the same numbers, the wrong sides, and whether all is explained."""
    wrong = [run for run in (right, left) if run.is_wrong()]
    names = tuple(run.side.name for run in wrong)
    explained: list[tuple[str, Explanation]] = []
    if not equal and left.side.is_module and right.side.is_module:
        by_options = {name: x for name in STAGES if (x := right.computed.stages.get(name)) is not None}
        others = other_parameters(left.formula, right.formula)
        explained.append(("theirs", explain(left.formula, by_options, right.precision, others)))
    if equal and len(wrong) == 2:
        explained.append(("each", _explain(right)))
    else:
        explained += [(run.side.name, _explain(run)) for run in wrong]
    causes = [_cause(side, one) for side, explanation in explained for one in explanation.mistakes]
    same = [name for _, explanation in explained for name in explanation.others]
    return tuple(causes), tuple(same), names, all(explanation.complete for _, explanation in explained)


def _cause(side: str, one: Mistake) -> Cause:
    return Cause(one.name, side, one.stage, one.what, one.fix, one.documented)


def _unequal(left: _Run, right: _Run) -> Iterator[Mistake]:
    """Yield parameters that are not those of the other module, whatever the stages say."""
    if left.side.is_module and right.side.is_module:
        yield from unequal_parameters(left.formula, right.formula, _coarser(left, right))


def _coarser(left: _Run, right: _Run) -> Precision:
    return min((left.precision, right.precision), key=lambda one: one.bits)


def _explain(run: _Run) -> Explanation:
    if run.is_random():
        return Explanation((unsteady(run.formula, run.dropout),), complete=True)
    rows = {name: run.returned[name] for name in STAGES if name in run.returned}
    return explain(run.formula, rows, run.precision)

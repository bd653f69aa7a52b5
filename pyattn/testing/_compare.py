"""`compare`: call both sides, compare their stages, and look for causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pyattn._util.arguments import as_flag
from pyattn.testing.bounds import PRECISIONS, Precision, error_ratios, stage_bounds
from pyattn.testing.causes import Evidence, Explanation, explain, random_results
from pyattn.testing.formula import STAGES, Affine, Array, Formula, compute
from pyattn.testing.gradient_mistakes import GradientEvidence, GradientExplanation, GradientMistake, explain_gradients
from pyattn.testing.gradient_sides import Seeds, gradients_of, read_seeds, rows_of
from pyattn.testing.gradients import Backward
from pyattn.testing.mistakes import Mistake
from pyattn.testing.reports import Cause, Comparison, Stage
from pyattn.testing.sides import Side, owner_of, read_arrays, side_of

__all__ = ["compare"]


def compare(
    ours: Any,
    theirs: Any,
    *inputs: npt.ArrayLike,
    tensors: bool | None = None,
    gradients: bool = False,
    grad_output: npt.ArrayLike | tuple[npt.ArrayLike | None, ...] | None = None,
    **kwargs: Any,
) -> Comparison:
    """Find where two attentions differ, and why.

    Both are called with the same inputs, each in its own dtype. Their results are compared with each other and with
    the formula in float64, stage by stage: projections, scores, weights, heads, output. Two modules
    are compared in all stages: output and returned weights come from the calls, the rest is computed from parameters
    and options. A function is compared in its results only. The rounding bound of each number is derived from the two
    dtypes, so you need not choose a tolerance. Parameters of two modules must agree within the rounding of one cast.

    If the sides differ, `compare` computes the formula with each of some 30 common mistakes: scale, masks, causal
    alignment, the softmax's axis, heads, weights transposed, inputs swapped, dropout, dtypes and more. The cause is the
    mistake that gives the wrong side's numbers.

    With ``gradients=True`` it compares gradients, too: those of the inputs, of float masks and, for two modules, of all
    parameters. Each is judged by the formula's gradient in float64 and a derived rounding bound. If the outputs are
    right and a gradient is wrong, the cause is one of some 40 mistakes on the way back: the scale left out, delta left
    out of the softmax's gradient, P in place of P.T, grouped heads that are not summed, and more.

    Parameters
    ----------
    ours : module or callable
        A multi-head attention, a self-attention or a linear layer of `pyattn.nn`; or a function of query, key and value
        with arguments of `pyattn.attention`, or one of x, w_query, w_key and w_value with those of
        `pyattn.self_attention`. Bind arguments for one side alone with functools.partial.
    theirs : module, callable or array_like
        A torch.nn.MultiheadAttention or torch.nn.Linear, a function, or expected numbers: an output, or a tuple of
        output, weights and lse. Modules are called without gradients, in their current mode, training or evaluation.
    *inputs : array_like
        Query, key and value; for a linear layer its input; for a self-attention module x, and optionally context; for a
        self-attention function x and the three weights. float16 and bfloat16 become float32; torch's modules get their
        own dtype.
    tensors : bool, optional
        Whether theirs takes torch's tensors. Default: None, true if it comes from torch.
    gradients : bool
        Whether to compare gradients. Ours are those of ``vjp`` or of `pyattn.functional.attention_backward`, torch's of
        autograd. For another function pass a pair (forward, backward), where ``backward(grad_output, query, key,
        value, ...)`` returns the gradients of query, key and value, and may add that of a float mask. An object with a
        ``vjp`` as `pyattn.nn.Module`'s does as well. An array that is given several times has one gradient, the sum.
        Default: False.
    grad_output : array_like or tuple, optional
        Gradient of the loss with respect to the output. A tuple (grad_output, None, grad_lse) also has that of lse.
        Default: None, fixed random numbers.
    **kwargs
        Arguments for both sides, such as attn_mask, with their meaning for ours. A function without an argument score
        or score_weight is assumed to compute that score itself.

    Returns
    -------
    Comparison
        Print it. Programs read ``equal``, ``stage``, ``cause`` and ``stages``: ``assert report.equal, str(report)``.
        Weights and lse that only one side returns are compared with the formula; the sides are unequal if these are
        wrong.

    Raises
    ------
    TypeError
        A side cannot be compared, does not take the inputs or an argument, or does not return numbers or gradients.
    ValueError
        Inputs or grad_output do not match, or gradients are asked for of another score than the dot product. An
        exception that a side raises is passed on; from Python 3.11, a note names the side.

    Notes
    -----
    float64 results are judged by a float64 formula, whose own rounding is part of the bound. All scores are held in
    memory in float64: use small inputs.

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
    gradients = as_flag(gradients, "gradients")
    if grad_output is not None and not gradients:
        raise ValueError("grad_output is given, but gradients are not asked for; pass gradients=True")
    if not inputs and not callable(theirs):
        raise TypeError(
            "compare takes ours, theirs and then the inputs; no inputs are given, and theirs is not callable"
        )
    sides = side_of(ours, "ours", None), side_of(theirs, "theirs", tensors)
    owner = owner_of(*sides)
    arrays, given = owner.read_inputs(inputs), read_arrays(kwargs)
    left, right = [_Run(side, owner, arrays, given) for side in sides]
    modules = left.side.is_module and right.side.is_module
    if modules:
        left.add_stages()
        right.add_stages()
    stages = tuple(_stages(left, right))
    parameters = tuple(_unequal_parameters(left, right)) if modules else ()
    equal = all(stage.equal for stage in stages)
    if gradients and left.returned["output"].shape == right.returned["output"].shape:
        seeds = read_seeds(grad_output, left.returned)
        for run in (left, right):
            run.differentiate(seeds, modules)
        stages += tuple(_gradients(left, right))
    found = _find(left, right, equal, parameters)
    ours, theirs = (f"{run.side.title()}, {run.precision.name}" for run in (left, right))
    return Comparison(ours, theirs, stages, *found, parameters)


class _Run:
    """A side, and the results of its call."""

    def __init__(self, side: Side, owner: Side, arrays: list[Array], given: Mapping[str, Any]) -> None:
        self.side, self._owner, self._arrays, self._given = side, owner, arrays, given
        self._call = partial(side.call, arrays, given)
        self.gradients: GradientEvidence | None = None
        self.returned = self.shown = self._call()
        # Computed with its own parameters, or with the other side's if it is not a module.
        self.formula, self.computed = (side if side.is_module else owner).compute(arrays, given)
        self.precision, self.dropout = side.precision(arrays), side.dropout(given)
        if not callable(side.target):  # expected numbers: at most as precise as the other side
            self.precision = min(self.precision, owner.precision(arrays), key=lambda one: one.bits)
        extra = self.returned.keys() - self.computed.stages.keys()
        if extra:
            raise TypeError(f"{side.name} returns {' and '.join(sorted(extra))}, which {owner.kind_name} does not have")

    def add_stages(self) -> None:
        """Compute the stages that the call does not return, from the side's parameters and options, in its dtype."""
        dtype = np.float64 if self.precision.name == "float64" else np.float32  # NumPy does not sum in half precision
        found = {**compute(self.formula, dtype).stages, **self.returned}
        self.shown = {name: found[name].astype(np.float64) for name in STAGES if name in found}

    def differentiate(self, seeds: Seeds, parameters: bool) -> None:
        """Compute the gradients of the side and of its formula."""
        owner = self.side if self.side.is_module else self._owner
        given = {**self._given, **self.side.arguments}
        rows = rows_of(owner, self.formula, self._arrays, given, parameters)
        found = gradients_of(self.side, owner, self._arrays, self._given, seeds)
        known = {row.name for row in rows}
        actual = {name: x for name, x in found.items() if name in known}
        backward = Backward(self.formula, seeds.output, seeds.lse)
        self.gradients = GradientEvidence(backward, rows, actual, self.precision)

    def allowed(self, precision: Precision) -> dict[str, Array]:
        """Return bounds for results of this precision, including the rounding of the float64 formula."""
        more = 1 + 2.0 ** (precision.bits - PRECISIONS["float64"].bits)
        return {name: more * x for name, x in stage_bounds(self.formula, self.computed, precision).items()}

    def is_wrong(self) -> bool:
        """Whether the call and its formula differ."""
        exact, allowed = self.computed.stages, self.allowed(self.precision)
        return any(_worst(x, exact[name], allowed[name])[0] > 1 for name, x in self.returned.items())

    def is_random(self) -> bool:
        """Whether another call gives other numbers."""
        again = self._call() if callable(self.side.target) else self.returned
        return not all(
            name in again and np.array_equal(again[name], x, equal_nan=True) for name, x in self.returned.items()
        )


# The table


def _stages(left: _Run, right: _Run) -> Iterator[Stage]:
    """Yield the stages of both sides, and wrong ones of one side; all are judged by the formula of ours."""
    allowed = [left.allowed(run.precision) for run in (left, right)]
    exact = left.computed.stages
    yield from _rows(STAGES, (left.shown, right.shown), exact, allowed, _coarser(left, right))


def _gradients(left: _Run, right: _Run) -> Iterator[Stage]:
    """Yield gradients as `_stages` does results; one that only theirs has is judged by its own formula."""
    assert left.gradients is not None, "differentiated"
    assert right.gradients is not None, "differentiated"
    both = (right.gradients, left.gradients)  # the latter's come first
    exact = {name: x for one in both for name, x in one.right.items()}
    allowed = [{name: x for one in both for name, x in one.bounds(run.precision).items()} for run in (left, right)]
    names = tuple(dict.fromkeys((*left.gradients.right, *right.gradients.right)))
    yield from _rows(names, (left.gradients.actual, right.gradients.actual), exact, allowed, _coarser(left, right))


def _rows(
    names: tuple[str, ...],
    found: tuple[Mapping[str, Array], Mapping[str, Array]],
    exacts: Mapping[str, Array],
    allowed: list[dict[str, Array]],
    coarser: Precision,
) -> Iterator[Stage]:
    """Yield the rows of a table from the numbers and the bounds of both sides."""
    for name in names:
        shown = [side for side, numbers in zip(("ours", "theirs"), found, strict=True) if name in numbers]
        if not shown:
            continue
        only: Any = shown[0] if len(shown) == 1 else None
        exact, each = exacts[name], [bounds[name] for bounds in allowed]
        one, other = (numbers.get(name, exact) for numbers in found)
        ours, theirs = (_worst(x, exact, most)[0] for x, most in zip((one, other), each, strict=True))
        worst, place = _worst(one, other, {None: each[0] + each[1], "ours": each[0], "theirs": each[1]}[only])
        if only and worst <= 1:
            continue
        error = float(error_ratios(one, other, np.ones(())).max(initial=0)) if one.shape == other.shape else np.inf
        numbers = [float(x[place]) if x.shape == one.shape else np.nan for x in (one, other, exact) if place]
        ulp = error / _ulp(exact, coarser)
        nan = int((np.isnan(one) & np.isnan(other)).sum()) if one.shape == other.shape else 0
        yield Stage(name, one.shape, other.shape, error, ulp, worst, ours, theirs, place, tuple(numbers), only, nan)


def _worst(actual: Array, expected: Array, allowed: Array) -> tuple[float, tuple[int, ...] | None]:
    """Find the largest ratio of error to bound, and its index; None if shapes differ or arrays are empty."""
    if actual.shape != expected.shape:
        return np.inf, None
    if allowed.shape != actual.shape:  # neither side has the formula's shape: use its largest bound
        allowed = np.full(actual.shape, allowed.max(initial=0))
    ratios = error_ratios(actual, expected, allowed)
    if not ratios.size:
        return 0.0, None
    place = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
    return float(ratios[place]), tuple(int(n) for n in place)


def _ulp(exact: Array, precision: Precision) -> float:
    """Return the unit in the last place of the largest number."""
    largest = float(np.abs(exact[np.isfinite(exact)]).max(initial=0))
    return float(np.ldexp(1.0, int(np.frexp(max(largest, precision.tiny))[1]) - precision.bits))


def _coarser(left: _Run, right: _Run) -> Precision:
    return min((left.precision, right.precision), key=lambda one: one.bits)


# Causes


def _find(
    left: _Run, right: _Run, equal: bool, parameters: tuple[Cause, ...]
) -> tuple[tuple[Cause, ...], tuple[str, ...], tuple[str, ...], bool]:
    """Return the causes, other mistakes with the same numbers, the wrong sides, and whether this explains all."""
    wrong = [run for run in (right, left) if run.is_wrong()]
    explained: list[tuple[str, Explanation | GradientExplanation]] = []
    if not equal and left.side.is_module and right.side.is_module:
        stages = {name: right.computed.stages[name] for name in STAGES if name in right.computed.stages}
        found = explain(left.formula, stages, right.precision, computed=True)
        if parameters and not found.complete:
            found = found._replace(complete=_has_formula_of(left, right, stages))
        explained.append(("theirs", found))
    if equal and len(wrong) == 2:
        explained.append(("each", _explain(right)))
    else:
        explained += [(run.side.name, _explain(run)) for run in wrong]
    for run in (right, left):  # gradients of wrong outputs are wrong, too, and say nothing new
        if run not in wrong and run.gradients is not None and run.gradients.wrong:
            explained.append((run.side.name, explain_gradients(run.gradients)))
            wrong.append(run)
    causes = [_cause(side, stage, one) for side, found in explained for stage, one in found.mistakes]
    others = [name for _, found in explained for name in found.others]
    names = tuple(run.side.name for run in wrong)
    return tuple(causes), tuple(others), names, all(found.complete for _, found in explained)


def _cause(side: str, stage: str, one: Mistake | GradientMistake) -> Cause:
    return Cause(one.name, side, stage, one.what, one.fix, isinstance(one, Mistake) and one.documented)


def _explain(run: _Run) -> Explanation:
    if run.is_random():
        mistake = random_results(run.formula, run.dropout)
        return Explanation((("weights" if mistake.name == "dropout" else "output", mistake),), complete=True)
    rows = {name: run.returned[name] for name in STAGES if name in run.returned}
    return explain(run.formula, rows, run.precision)


# Parameters of two modules

_LAYERS = ("query", "key", "value")


def _has_formula_of(left: _Run, right: _Run, stages: Mapping[str, Array]) -> bool:
    """Whether our formula gives their stages with their parameters."""
    other = right.formula
    made = replace(left.formula, projections=other.projections, out=other.out, extras=other.extras)
    return Evidence(made, stages, right.precision).explained


def _unequal_parameters(left: _Run, right: _Run) -> Iterator[Cause]:
    """Yield the parameters that differ by more than a cast to the coarser dtype."""
    precision, fix = _coarser(left, right), "make both with the same options, and load the same state_dict into both"
    for stage, name, here, there in _pairs(left.formula, right.formula):
        if here.shape != there.shape:
            continue  # the stages show the difference
        # Results cannot show a small difference: their bounds grow with every sum, while a cast rounds once.
        error = np.abs(here - there)
        allowed = precision.u * (np.maximum(np.abs(here), np.abs(there)) + precision.tiny)
        if (error > allowed).any():
            place = np.unravel_index(int(np.argmax(error - allowed)), error.shape)
            where = ", ".join(map(str, place))
            what = f"has another {name}: [{where}] is {there[place]:.6g} and not {here[place]:.6g}"
            what += f", which a cast to {precision.name} does not explain"
            yield Cause("other parameters", "theirs", stage, what, fix)
    counts = [len(run.formula.extras) for run in (left, right)]
    if counts[0] != counts[1]:
        what = f"has another number of extra keys (add_bias_kv, add_zero_attn): {counts[1]} and not {counts[0]}"
        yield Cause("other parameters", "theirs", "key", what, fix)


def _pairs(formula: Formula, other: Formula) -> Iterator[tuple[str, str, Array, Array]]:
    """Yield stage, name and numbers of each parameter; a missing bias is 0."""
    layers: list[tuple[str, str, Affine, Affine]] = []
    if formula.projections is not None and other.projections is not None:
        layers += zip(_LAYERS, _LAYERS, formula.projections, other.projections, strict=True)
    if formula.out is not None and other.out is not None:
        name = "the layer" if formula.is_linear else "the output projection"
        layers.append(("output", name, formula.out, other.out))
    for stage, layer, here, there in layers:
        yield stage, f"weight of {layer}", here.weight, there.weight
        ours, theirs = (np.zeros(len(one.weight)) if one.bias is None else one.bias for one in (here, there))
        yield stage, f"bias of {layer}", ours, theirs
    for one, two in zip(formula.extras, other.extras, strict=False):
        yield "key", "bias_k", one[0], two[0]
        yield "value", "bias_v", one[1], two[1]

"""How far rounding may take each stage from the exact one.

    u      2^-24 for float32, 2^-53 for float64; tiny   2^-126, 2^-1022: denormals may be flushed
    a_j    |scale| sum_d |q_d| |k_jd| + |bias_j|: the size of what was added up to make a score; A = max_j a_j. Of other
           scores than dot products _bounds.py has it
    linear   4u sqrt(n) (|x| |W| + |b|) with n features
    score    16u a_j
    weight   8u w (1 + 2A) + tiny
    lse      4u (1 + |lse| + A)
    heads    16u sqrt(S / 64) sum_j w_j (|v_j| + |o|) (1 + a_j) + (S + D + 1) tiny; without the root up to 64 keys

These are the bounds that all of pyattn is held to, the wider one where there are two, because nothing is known of the
other side's order of sums: hence also the roots, which pyattn's sums in blocks do not need. What a stage takes over
from those before it comes on top. Errors of features that are added up are taken as independent, so that their squares
add: with absolute values the bound of float32 would hide float16 from some 100 features on. Over keys absolute values
add, because an error of a query moves all scores of its row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import pyattn.reference as reference
import pyattn.testing.bounds as _bounds
from pyattn.testing._comparing.formula import STAGES, Affine, Array, Computed, Formula, append_rows

__all__ = ["Precision", "bound", "precision_of"]


class Precision(NamedTuple):
    """Of a floating-point type; a bfloat16 is none of NumPy's.

    Attributes
    ----------
    name : str
        Such as 'float32'.
    bits : int
        Of the significand, the leading one included: u is ``2 ** -bits``.
    least : int
        The smallest normal number is ``2 ** least``.
    """

    name: str
    bits: int
    least: int

    @property
    def u(self) -> float:
        """Half the distance from 1 to the next number."""
        return 2.0**-self.bits

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0**self.least


PRECISIONS = {
    name: Precision(name, bits, least)
    for name, bits, least in (
        ("bfloat16", 8, -126),
        ("float16", 11, -14),
        ("float32", 24, -126),
        ("float64", 53, -1022),
    )
}


def precision_of(dtype: object) -> Precision | None:
    """Find a precision by what a dtype is called.

    Parameters
    ----------
    dtype : object
        Of NumPy or of torch.

    Returns
    -------
    Precision or None
        None for what is no dtype of floats.
    """
    return PRECISIONS.get(str(dtype).rpartition(".")[2])


def bound(formula: Formula, computed: Computed, precision: Precision) -> dict[str, Array]:
    """Give what each number of each stage may be off by.

    Parameters
    ----------
    formula : Formula
        What was computed.
    computed : Computed
        In float64.
    precision : Precision
        Of the arithmetic that is judged.

    Returns
    -------
    dict of str to ndarray
        In the shapes of ``computed.stages``.
    """
    with np.errstate(all="ignore"):
        if formula.is_linear:
            return {"output": _linear(formula.query, formula.out, precision)}
        return _attention(formula, computed, precision)


def _linear(x: Array, parameters: Affine | None, precision: Precision, before: Any = 0.0) -> Array:
    """Of a linear layer whose input is already off by `before`."""
    if parameters is None:
        return np.asarray(before)
    x, weight = np.abs(x.astype(np.float64)), np.abs(parameters.weight.astype(np.float64))
    size = x @ weight.T + (0.0 if parameters.bias is None else np.abs(parameters.bias.astype(np.float64)))
    own = 4 * precision.u * np.sqrt(max(1, x.shape[-1])) * size + (x.shape[-1] + 1) * precision.tiny
    return np.asarray(own + (np.sqrt(np.square(before) @ np.square(weight).T) if np.ndim(before) else 0.0))


def _attention(f: Formula, c: Computed, precision: Precision) -> dict[str, Array]:
    u, tiny = precision.u, precision.tiny
    q, k, v = (np.abs(np.nan_to_num(x)) for x in c.operands[:3])
    found, operands = _projected(f, precision)
    scale, flush = abs(f.factor), (k.shape[-2] + q.shape[-1] + 1) * tiny
    query, key = (np.nan_to_num(x) for x in c.operands[:2])
    size = _bounds.score_sizes(query, key, f.score_function, scale, f.score_weight)
    size = np.where(c.visible, size + np.abs(np.nan_to_num(c.bias, posinf=0, neginf=0)), 0)
    largest = size.max(axis=-1, keepdims=True, initial=0)
    w, before, moved = np.abs(c.weights), np.zeros(()), np.zeros_like(c.weights)
    if operands is not None:
        before = np.where(c.visible, scale * np.sqrt(operands.query**2 @ (k**2).mT + q**2 @ (operands.key**2).mT), 0)
        moved = w * np.expm1(np.minimum(before, 80))  # e^80 is more than any weight can take

    found["scores"] = before + 16 * u * size + flush
    found["weights"] = moved + w * moved.sum(axis=-1, keepdims=True) + 8 * u * w * (1 + 2 * largest) + tiny
    if "lse" in c.stages:
        found["lse"] = 4 * u * (1 + np.abs(c.stages["lse"]) + largest[..., 0])
    longer = max(1.0, k.shape[-2] / 64) ** 0.5
    amplified = 16 * u * longer * w * (1 + size) + moved
    found["heads"] = amplified @ v + amplified.sum(axis=-1, keepdims=True) * np.abs(c.heads) + flush
    if operands is not None:
        found["heads"] = found["heads"] + np.sqrt(w**2 @ operands.value**2)
    return found | _after_heads(f, c, found, precision)


def _after_heads(f: Formula, c: Computed, found: dict[str, Array], precision: Precision) -> dict[str, Array]:
    """As a caller sees them: weights averaged, the output projected and turned."""
    output = found["heads"] if f.projections is None else f.steps.merge(found["heads"])
    if f.out is not None:
        output = _linear(c.merged, f.out, precision, output)
    return {"weights": f.gathered(found["weights"]), "output": f.turned(output)}


def _projected(f: Formula, precision: Precision) -> tuple[dict[str, Array], reference.Operands | None]:
    """Of the projections, as a caller sees them and as they are multiplied; inputs of attention alone are exact."""
    if f.projections is None:
        return {}, None
    bounds = [_linear(x, a, precision) for x, a in zip((f.query, f.key, f.value), f.projections, strict=True)]
    rows = [[precision.u * np.abs(extra[n]) + precision.tiny for extra in f.extras] for n in range(2)]
    bounds[1:] = [append_rows(x, extra) for x, extra in zip(bounds[1:], rows, strict=True)]
    return dict(zip(STAGES, bounds, strict=False)), f.cut(bounds)

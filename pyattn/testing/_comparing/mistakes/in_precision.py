"""Numbers of less precision than the inputs have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from pyattn.testing._comparing.formula import STAGES, Array, Formula
from pyattn.testing._comparing.mistakes.mistake import Mistake
from pyattn.testing._comparing.rounding import PRECISIONS

__all__ = ["in_precision"]


def in_precision(formula: Formula) -> Iterator[Mistake]:
    """Yield what comes of a dtype of less precision in some place.

    Parameters
    ----------
    formula : Formula
        The right one.

    Yields
    ------
    Mistake
    """
    first = "output" if formula.is_linear else "query" if formula.projections is not None else "scores"
    places = {
        "inputs": (first, ("input", "query", "key", "value")),
        "weights": ("weights", ("weights",)),
        "output": ("output", ("output",)),
    }
    fix = "use one dtype throughout, or compare in that one"
    below = [one for one in PRECISIONS.values() if one.name != "float64"]
    for precision in below:
        for place, (stage, stages) in places.items():
            kept = formula.but(keep=partial(_in_places, bits=precision.bits, stages=stages))
            what = f"has the {place} in {precision.name}"
            yield Mistake("less precision", stage, what, fix, kept, precision=precision)
    for precision in below:
        kept = formula.but(keep=partial(_in_places, bits=precision.bits, stages=("input", *STAGES)))
        what = f"has errors of the size of {precision.name}'s, without a pattern: it may compute with that somewhere"
        yield Mistake("less precision", first, what, fix, kept, precision=precision, by_size=True)


def _in_places(x: Array, stage: str, *, bits: int, stages: tuple[str, ...]) -> Array:
    return _rounded(x, bits) if stage in stages else x


def _rounded(x: Array, bits: int) -> Array:
    """Keep `bits` bits of each number."""
    significand, exponent = np.frexp(x)
    return np.ldexp(np.round(significand * 2.0**bits) / 2.0**bits, exponent)

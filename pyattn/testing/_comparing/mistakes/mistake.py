"""What a hypothesis about a wrong side is made of."""

from __future__ import annotations

from typing import NamedTuple

from pyattn.testing._comparing.formula import Formula
from pyattn.testing._comparing.rounding import Precision

__all__ = ["Mistake"]


class Mistake(NamedTuple):
    """The formula as somebody may have written it.

    Attributes
    ----------
    name : str
        Short, and the same for all variants.
    stage : str
        Where it is made.
    what : str
        What the side does, as the rest of a sentence that begins with its name.
    fix : str
        What to do instead.
    formula : Formula
        Which computes what comes of it.
    documented : bool
        Libraries differ here on purpose.
    precision : Precision or None
        What is computed in, where that is the mistake; the formula then comes near, and no nearer.
    by_size : bool
        Not even that: its errors are as large, and have no pattern either.
    """

    name: str
    stage: str
    what: str
    fix: str
    formula: Formula
    documented: bool = False
    precision: Precision | None = None
    by_size: bool = False

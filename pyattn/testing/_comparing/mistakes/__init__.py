"""What people get wrong in attention, each mistake as a copy of the formula with a field or two changed.

A mistake is a hypothesis: it explains a wrong side when computing it gives that side's numbers. A new one is a line or
two in the file of its stage.
"""

from collections.abc import Iterator

from pyattn.testing._comparing.formula import Formula
from pyattn.testing._comparing.mistakes.in_axes import in_axes
from pyattn.testing._comparing.mistakes.in_heads import in_empty_rows, in_heads, in_hidden_numbers
from pyattn.testing._comparing.mistakes.in_parameters import in_parameters, other_parameters, unequal_parameters
from pyattn.testing._comparing.mistakes.in_precision import in_precision
from pyattn.testing._comparing.mistakes.in_results import in_results, is_systematic, unsteady
from pyattn.testing._comparing.mistakes.in_scores import in_scores
from pyattn.testing._comparing.mistakes.mistake import Mistake

__all__ = [
    "Mistake",
    "in_empty_rows",
    "in_precision",
    "in_results",
    "is_systematic",
    "mistakes_in",
    "other_parameters",
    "unequal_parameters",
    "unsteady",
]


def mistakes_in(formula: Formula) -> Iterator[Mistake]:
    """Yield all that may be wrong, the common first.

    Parameters
    ----------
    formula : Formula
        The right one.

    Yields
    ------
    Mistake
    """
    if not formula.is_linear:
        yield from in_hidden_numbers(formula)  # NaN all over may also come of other mistakes
    yield from in_parameters(formula)
    if not formula.is_linear:
        yield from in_scores(formula)
        yield from in_heads(formula)
        yield from in_axes(formula)
